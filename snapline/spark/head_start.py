"""What a driver starts beside Spark's Java, in place of after it.

Java and Spark take seconds until they run something, and what they wait for then takes seconds more: the daemon that
workers are forked from loads its libraries, and so does the coordinator. On a machine with two processors both are done
by the time that Spark is there. Only where Java is started by this process and on this machine: elsewhere the settings
of Spark decide what runs where, and nobody knows them before Java has read them.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from snapline.spark.daemon import MODULE, WAIT_AT, WAITS_AT_VARIABLE

if TYPE_CHECKING:
    from snapline.coordinator.coordinator_process import CoordinatorProcess

SOCKET = "socket"
"""Name of the socket in its directory."""
END_SECONDS = 5.0
"""How long a daemon that is not needed has to end by itself."""
_places: list[str] = []
"""The directory where the Java of this process looks for a daemon, once it runs: it keeps the environment that it was
started with, and starts a daemon for each session."""


def as_spark_sets_them(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment that Spark will give its daemon, as far as libraries look at it when they are loaded."""
    return {"PYTHONHASHSEED": "0", **environment, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "YES"}


class HeadStart:
    """A daemon that loads, and a coordinator that loads, for a session that is about to be opened."""

    def __init__(self) -> None:
        self._daemon: subprocess.Popen[bytes] | None = None
        self._coordinator: CoordinatorProcess | None = None

    def begin(self, *, with_coordinator: bool, starts_java: bool = True, with_daemon: bool = True) -> None:
        """Start them. `starts_java`: Java starts before `java_is_there`, and finds the daemon by a variable of the
        environment. `with_daemon`: workers run on this machine as children of this Java."""
        if with_coordinator:
            from snapline.coordinator.coordinator_process import CoordinatorProcess

            self._coordinator = CoordinatorProcess.begin()
        if with_daemon and os.environ.get("PYSPARK_PYTHON", sys.executable) == sys.executable:
            with contextlib.suppress(OSError):  # Java's daemon loads by itself then
                if starts_java:
                    _places[:] = [tempfile.mkdtemp(prefix="snapline-daemon-")]
                    atexit.register(shutil.rmtree, _places[0], ignore_errors=True)
                    os.environ[WAITS_AT_VARIABLE] = str(Path(_places[0], SOCKET))
                if _places:
                    self._begin_daemon(Path(_places[0], SOCKET))

    def _begin_daemon(self, address: Path) -> None:
        address.unlink(missing_ok=True)
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(address))
            listener.listen(1)
            self._daemon = subprocess.Popen(
                [sys.executable, "-m", MODULE, WAIT_AT, str(listener.fileno()), str(os.getpid()), str(address.parent)],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,  # what does not load is said by the daemon that Java starts
                pass_fds=(listener.fileno(),),
                process_group=0,
                env=as_spark_sets_them(os.environ),
            )

    def java_is_there(self, *, needs_daemon: bool) -> None:
        """Java has our environment. `needs_daemon`: its Python workers come from our daemon."""
        os.environ.pop(WAITS_AT_VARIABLE, None)
        if not needs_daemon:
            self._end_daemon()

    def take_coordinator(self) -> CoordinatorProcess | None:
        """The coordinator that waits for its settings, for who takes it first."""
        taken, self._coordinator = self._coordinator, None
        return taken

    def close(self) -> None:
        """End what nobody uses: after Spark was stopped, which ends a daemon that it uses."""
        os.environ.pop(WAITS_AT_VARIABLE, None)
        if (coordinator := self.take_coordinator()) is not None:
            coordinator.stop()
        self._end_daemon()

    def _end_daemon(self) -> None:
        if (daemon := self._daemon) is None:
            return
        self._daemon = None
        if daemon.stdin is not None:
            daemon.stdin.close()
        try:
            daemon.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            daemon.kill()
            daemon.wait()
