"""A daemon that loads beside Java: who asks for it gets it, and nothing of it stays."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from snapline.spark.daemon import MODULE, WAITS_AT_VARIABLE, hand_over
from snapline.spark.head_start import SOCKET, HeadStart, _places, as_spark_sets_them
from tests.services.cluster import wait_until

DRIVER = """
import sys
from snapline.spark.head_start import HeadStart, _places
start = HeadStart()
start.begin(with_coordinator=True)
print(start._daemon.pid, start._coordinator.pid, _places[0], flush=True)
sys.stdin.read()
"""


@pytest.fixture
def start():
    """A head start without a coordinator, which is closed at the end."""
    begun = HeadStart()
    begun.begin(with_coordinator=False)
    yield begun
    begun.close()


def as_java_does(**changed: str) -> Any:
    """Start the daemon with what Spark adds to the environment."""
    environment = {**as_spark_sets_them(os.environ), "PYTHON_WORKER_FACTORY_SECRET": "s", **changed}
    command = [sys.executable, "-m", MODULE, "pyspark.worker"]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment)


def port_of(daemon: Any) -> int:
    """What a daemon says first: where it forks workers."""
    return int(struct.unpack("!i", daemon.stdout.read(4))[0])


def listener_of(port: int) -> str:
    """The inode of the socket that listens there."""
    lines = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return next(line[9] for line in lines if line[1].endswith(f":{port:04X}") and line[3] == "0A")


def listens(pid: int, port: int) -> bool:
    """Whether this process has the socket that listens there."""
    wanted = f"socket:[{listener_of(port)}]"
    return any(str(link.readlink()) == wanted for link in Path(f"/proc/{pid}/fd").iterdir() if link.is_symlink())


def has_loaded(pid: int) -> bool:
    """Whether a copy of the daemon has loaded its libraries, and waits at its socket: that is what it has a selector
    for."""
    for link in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # a file that it has read by now
            if str(link.readlink()) == "anon_inode:[eventpoll]":
                return True
    return False


def is_over(pid: int) -> bool:
    """Whether a process that is not ours has ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def test_the_copy_that_has_loaded_is_the_daemon(start):
    """Java reads the port of the copy from what it has started, has the copy's environment replaced by its own, and
    ends it by closing its input."""
    daemon = as_java_does(PYTHON_WORKER_FACTORY_SECRET="java's")
    copy = start._daemon
    port = port_of(daemon)
    assert listens(copy.pid, port) and not listens(daemon.pid, port)
    daemon.stdin.close()
    copy.wait(60)
    assert daemon.wait(60) == 0


def test_sigterm_ends_both(start):
    """It is how Spark stops its daemon."""
    daemon = as_java_does()
    port_of(daemon)
    daemon.terminate()
    assert start._daemon.wait(60) in (1, -signal.SIGTERM), "Spark's daemon says its port before it handles signals"
    assert daemon.wait(60) == 0


def test_other_settings_of_libraries_are_not_handed_over(start):
    """Hashes of strings and threads of numpy were decided when the copy started: it ends, and Java's daemon loads."""
    daemon = as_java_does(PYTHONHASHSEED="7")
    port = port_of(daemon)
    assert listens(daemon.pid, port)
    assert start._daemon.wait(60) == 0
    daemon.stdin.close()
    daemon.wait(60)


def test_a_second_daemon_loads_by_itself(start):
    """There is one copy; executors of their own, or a daemon that Spark starts anew, find nobody."""
    first, second = as_java_does(), as_java_does()
    ports = port_of(first), port_of(second)
    assert sum(listens(start._daemon.pid, port) for port in ports) == 1
    for daemon in (first, second):
        daemon.stdin.close()
        daemon.wait(60)


def test_what_nobody_has_asked_for_ends_at_the_close():
    """The daemon, and a coordinator that has not been told its settings, which says nothing."""
    begun = HeadStart()
    begun.begin(with_coordinator=True)
    daemon: Any = begun._daemon
    coordinator: Any = begun._coordinator
    begun.java_is_there(needs_daemon=True)
    assert WAITS_AT_VARIABLE not in os.environ
    wait_until(lambda: has_loaded(daemon.pid), "the daemon to have loaded")
    begun.close()
    assert daemon.returncode == 0
    assert coordinator.last_words == "killed by SIGKILL"


def test_java_finds_a_daemon_for_each_session(start):
    """It keeps the environment that it was started with: the next copy waits at the same place."""
    first = as_java_does()
    assert listens(start._daemon.pid, port_of(first))
    first.stdin.close()
    first.wait(60)
    start.close()
    start.begin(with_coordinator=False, starts_java=False)
    second = as_java_does(**{WAITS_AT_VARIABLE: str(Path(_places[0], SOCKET))})
    assert listens(start._daemon.pid, port_of(second))
    second.stdin.close()
    second.wait(60)


def test_a_java_that_others_have_started_gets_no_daemon(monkeypatch):
    """It would not find one."""
    monkeypatch.setattr("snapline.spark.head_start._places", [])
    begun = HeadStart()
    begun.begin(with_coordinator=False, starts_java=False)
    assert begun._daemon is None
    begun.close()


def test_a_driver_that_is_killed_takes_both_with_it():
    """Their input ends with it, and the directory of the socket is gone."""
    driver: Any = subprocess.Popen(
        [sys.executable, "-c", DRIVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    *pids, directory = driver.stdout.readline().decode().split()
    driver.send_signal(signal.SIGKILL)
    driver.wait(60)
    wait_until(
        lambda: all(is_over(int(pid)) for pid in pids), "the daemon and the coordinator to end with their driver"
    )
    assert not Path(directory).exists()


def test_a_socket_of_somebody_else_is_told_nothing(tmp_path, monkeypatch):
    """The environment of a daemon has secrets in it."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "socket"))
        listener.listen(1)
        monkeypatch.setattr("os.getuid", lambda: 4711)
        assert not hand_over(str(tmp_path / "socket"))
        connection, _ = listener.accept()
        with connection:
            assert connection.recv(1) == b""
