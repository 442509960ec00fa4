"""A relay as a process, for clusters whose TaskManagers go through it.

    with RelayProcess(tmp_path) as relay, LocalCluster(tmp_path, settings=relay.settings) as cluster:
        ...
        relay.kill()

It is up when the block begins. Its log lies with those of the cluster, which are shown when a test fails.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from types import TracebackType
from typing import Any

from snapline.dataflow.config import TASKMANAGER_RELAYS
from tests.services.cluster import wait_until


class RelayProcess:
    """One `python -m snapline.runtime.relay.relay_process`; a context manager."""

    def __init__(self, directory: Path, *arguments: str, python_path: str = "") -> None:
        """`directory`: the cluster's; `arguments`: more of the command line; `python_path`: empty: that of this
        process."""
        self._arguments = arguments
        self._python_path = python_path or os.pathsep.join(path or str(Path.cwd()) for path in sys.path)
        self._address_file = directory / "relay-address"
        self.log = directory / "logs" / "relay.log"
        self.address = ""
        """host:port, once it is up."""

    def __enter__(self) -> RelayProcess:
        """Start it and wait until it listens."""
        command = [sys.executable, "-m", "snapline.runtime.relay.relay_process", "--bind", "127.0.0.1:0"]
        command += ["--address-file", str(self._address_file), *self._arguments]
        environment = {**os.environ, "PYTHONPATH": self._python_path}
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment, process_group=0
            )
        try:
            wait_until(self._is_up, "the relay to listen")
        except BaseException:
            self.kill()
            raise
        self.address = self._address_file.read_text().strip()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """End it, whatever it does."""
        self.kill()

    def _is_up(self) -> bool:
        if self.process.poll() is not None:
            raise AssertionError(f"the relay ended with {self.process.returncode}: {self.log.read_text()[-2000:]}")
        return self._address_file.exists()

    @property
    def settings(self) -> dict[str, str]:
        """Of TaskManagers that go through it."""
        return {TASKMANAGER_RELAYS.key: self.address}

    def kill(self) -> None:
        """With signal 9. Idempotent."""
        self.process.kill()
        self.process.wait()

    def hang(self) -> None:
        """It does nothing any more; who dials is not refused, and hears nothing."""
        self.process.send_signal(signal.SIGSTOP)


def lines_of(log: Path, message: str) -> list[dict[str, Any]]:
    """What a process logged with this message; a line that it is just writing does not count."""
    written = log.read_text().rpartition("\n")[0].splitlines()
    return [json.loads(line)["context"] for line in written if f'"msg":"{message}"' in line]


ALL_OF_TWO = Counter({"resource-manager": 2, "job-master": 2})
"""The streams of two TaskManagers that work for one job; more when one of them had to dial again."""


def relayed_streams(coordinator: Path) -> Counter[str]:
    """How many streams were opened through relays by now, and to whom; from the coordinator's log."""
    return Counter(stream["gateway"] for stream in lines_of(coordinator, "relayed stream opened"))
