"""A coordinator as a child process, beside a Spark driver or a test.

Started by exec, never by a bare fork, and after the SparkContext. The child gets its settings (and the shared secret)
through its standard input, answers with its address or one line of error, and ends when that input ends: when this
process says so, or is gone however it went. Signals of the terminal do not reach it: it has a session of its own.
"""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO

from snapline.dataflow.config import COORDINATOR_ADDRESS, LOG_LEVEL
from snapline.dataflow.errors import SnaplineError
from snapline.runtime.rpc.security import settings_of_token

START_TIMEOUT_SECONDS = 60.0
STOP_TIMEOUT_SECONDS = 15.0


class CoordinatorStartError(SnaplineError):
    """The coordinator did not start; the message is its own."""


class CoordinatorProcess:
    """A running coordinator; make one with `start`."""

    def __init__(self, process: subprocess.Popen[bytes], status: IO[bytes], log_level: str) -> None:
        self._process = process
        self._status = status
        self._log_level = log_level
        """Unless the settings say another."""
        self.address: str = ""
        """host:port; empty: it stood by when it had started, ZooKeeper knows who leads."""
        self._was_told = False

    @classmethod
    def start(
        cls,
        bind: str = "127.0.0.1:0",
        settings: Mapping[str, str] | None = None,
        token: str = "",
        log_to: Path | None = None,
        *,
        failures_are_told: bool = False,
    ) -> CoordinatorProcess:
        """Start and wait until it listens. It logs to `log_to`, or to this process's standard error, there from WARNING
        up unless `log.level` is set. `failures_are_told`: this process says itself why tasks fail. Raises
        CoordinatorStartError with the one line that the child gave."""
        begun = cls.begin(log_to)
        begun.serve(bind, settings, token, failures_are_told=failures_are_told)
        return begun

    @classmethod
    def begin(cls, log_to: Path | None = None) -> CoordinatorProcess:
        """Start the process, which loads its libraries and waits for `serve`: while it does, other things can start.

        It is a process group of its own, which Ctrl-C does not reach, in this process's session: Linux shares the
        processors between sessions (autogroup), and let one that is nearly idle wait for up to five seconds while
        TaskManagers in another took both processors."""
        read_end, write_end = os.pipe()
        command = [sys.executable, "-m", "snapline.coordinator", "--sidecar", "--status-fd", str(write_end)]
        log = log_to.open("ab") if log_to else None
        try:
            process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stderr=log,
                pass_fds=(write_end,),
                process_group=0,
                env=_environment(),
            )
        except BaseException:
            os.close(read_end)
            raise
        finally:
            os.close(write_end)
            if log:
                log.close()
        return cls(process, os.fdopen(read_end, "rb", buffering=0), "INFO" if log_to else "WARNING")

    def serve(
        self,
        bind: str = "127.0.0.1:0",
        settings: Mapping[str, str] | None = None,
        token: str = "",
        *,
        failures_are_told: bool = False,
    ) -> None:
        """Let it listen there, with these settings, and wait until it does. Raises CoordinatorStartError, and it is
        stopped."""
        values = {LOG_LEVEL.key: self._log_level, **(settings or {}), **settings_of_token(token)}
        values[COORDINATOR_ADDRESS.key] = bind
        told = {"settings": values, "failures_are_told": failures_are_told}
        self._was_told = True
        try:
            self._hand_over(json.dumps(told).encode() + b"\n")
            self.address = self._wait_for_address()
        except BaseException:
            self.stop()
            raise

    @property
    def pid(self) -> int:
        """Return the process id of the coordinator."""
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        """Return whether the process still runs."""
        return self._process.poll() is None

    @property
    def last_words(self) -> str:
        """Why it ended, in one line; empty while it runs."""
        code = self._process.poll()
        if code is None:
            return ""
        said = self._read_status()
        if "error" in said:
            return said["error"]
        return f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"

    def stop(self) -> None:
        """Stop it in order, the hard way when that takes too long, or when it has not been told what to do.
        Idempotent."""
        if not self._was_told:
            self._process.kill()
        if self._process.stdin is not None and not self._process.stdin.closed:
            try:
                self._process.stdin.close()
            except OSError:  # it is gone, and what was to be sent with it
                pass
        try:
            self._process.wait(STOP_TIMEOUT_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if not self._status.closed:
            self._status.close()

    def kill(self) -> None:
        """End it as a crash would, for tests."""
        self._process.kill()
        self._process.wait()

    def _hand_over(self, line: bytes) -> None:
        stdin = self._process.stdin
        if stdin is None:
            raise CoordinatorStartError("the coordinator has no standard input")
        try:
            stdin.write(line)
            stdin.flush()
        except OSError:  # it ended before it read; it says why
            return

    def _wait_for_address(self) -> str:
        said = self._read_status(START_TIMEOUT_SECONDS)
        if "address" in said:
            return said["address"]
        if "standby" in said:
            return ""
        if "error" in said:
            raise CoordinatorStartError(said["error"])
        with suppress(subprocess.TimeoutExpired):  # the pipe closes a moment before the process is gone
            self._process.wait(1.0)
        code = self._process.poll()
        why = f"took longer than {START_TIMEOUT_SECONDS:.0f} s" if code is None else f"ended with exit code {code}"
        raise CoordinatorStartError(f"the coordinator did not start: it {why}; its standard error says more")

    def _read_status(self, timeout_seconds: float = 0.0) -> dict[str, str]:
        """The next line of the status pipe, if it comes in time; an empty answer: nothing."""
        if self._status.closed:
            return {}
        deadline = time.monotonic() + timeout_seconds
        line = b""
        with selectors.DefaultSelector() as selector:
            selector.register(self._status, selectors.EVENT_READ)
            while not line.endswith(b"\n"):
                if not selector.select(max(0.0, deadline - time.monotonic())):
                    break
                part = self._status.read(4096)
                if not part:
                    break
                line += part
        try:
            return dict(json.loads(line.splitlines()[-1])) if line else {}
        except ValueError:
            return {}


def _environment() -> dict[str, str]:
    """Ours, with the import path of this process: it may have been extended since it started."""
    environment = dict(os.environ)
    environment["PYTHONPATH"] = os.pathsep.join(path or str(Path.cwd()) for path in sys.path)
    return environment
