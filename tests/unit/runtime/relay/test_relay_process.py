"""A relay as a process: what it says when it cannot start, and how it ends."""

from __future__ import annotations

import re
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.services.relay import RelayProcess

ROOT = Path(__file__).resolve().parents[4]


@pytest.fixture
def taken() -> Iterator[str]:
    """An address at which somebody listens."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"127.0.0.1:{listener.getsockname()[1]}"


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (
            ["--bind", "{taken}"],
            (
                "cannot listen on {taken}: address already in use; is another relay running there? "
                "Choose another address with --bind or relay.rpc.address"
            ),
        ),
        (
            ["--bind", "0.0.0.0:0", "--insecure"],
            (
                "nobody can connect to 0.0.0.0: give the address under which this relay is reached, "
                "and relay.bind-host=0.0.0.0 to listen on all of them"
            ),
        ),
        (
            ["--bind", "127.0.0.1:0", "-D", "relay.bind-host=0.0.0.0"],
            (
                "whoever reaches 0.0.0.0:0 can run code in this relay: run `snapline certificates DIR --host 127.0.0.1` and use "
                "what it makes, or set security.auth.token to one secret for all processes "
                "(SNAPLINE_CONF_security__auth__token=$(openssl rand -hex 32)), or listen on "
                "127.0.0.1, or say --insecure"
            ),
        ),
        (
            ["-D", "relay.lingr=5 ms"],
            "unknown setting 'relay.lingr'; did you mean 'relay.linger'? (from -D relay.lingr)",
        ),
        (
            ["--bind", "127.0.0.1:0", "--address-file", "{taken}/address"],
            "--address-file: cannot write {taken}/address: no such file or directory",
        ),
        (
            ["--bind", "127.0.0.1:0", "--metrics-port", "{port}"],
            "cannot serve metrics on {taken}: Address already in use; choose another --metrics-port",
        ),
    ],
    ids=["taken", "any", "exposed", "unknown", "unwritable", "metrics"],
)
def test_a_wrong_command_line_is_one_line_and_exit_code_1(taken: str, arguments: list[str], error: str) -> None:
    """With the way out; never a traceback."""
    command = [sys.executable, "-m", "snapline.cli", "relay", "-D", "log.level=ERROR"]
    command += [argument.format(taken=taken, port=taken.rpartition(":")[2]) for argument in arguments]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"snapline relay: {error.format(taken=taken)}\n"


def test_a_relay_stops_on_sigterm(tmp_path: Path) -> None:
    """The file with its address is there while it listens, and gone when it has ended."""
    with RelayProcess(tmp_path) as relay:
        file = tmp_path / "relay-address"
        assert file.read_text() == f"{relay.address}\n"
        relay.process.send_signal(signal.SIGTERM)
        assert relay.process.wait(60) == 0
        assert list(tmp_path.iterdir()) == [relay.log.parent]


def test_a_relay_shows_its_figures_to_prometheus(tmp_path: Path) -> None:
    """Those of `RelayServer.samples`, on the port that it says in its log."""
    with RelayProcess(tmp_path, "--metrics-port", "0") as relay:
        (port,) = re.findall(
            r'"metrics are served".*"port": ?(\d+)|"port": ?(\d+).*"metrics are served"', relay.log.read_text()
        )
        with urllib.request.urlopen(f"http://127.0.0.1:{''.join(port)}/metrics", timeout=20) as answer:
            assert "snapline_relay_numStreams 0.0" in answer.read().decode()
