"""What a driver starts beside Spark's Java, in place of after it.

Java and Spark take seconds until they run something, and what they wait for then takes seconds more: the daemon that
workers are forked from loads its libraries, and so does the coordinator. On a machine with two processors both are done
by the time that Spark is there. Only where Java is started by this process and on this machine: elsewhere the settings
of Spark decide what runs where, and nobody knows them before Java has read them.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from snapline.spark.daemon import MODULE, WAIT_AT, WAITS_AT_VARIABLE

if TYPE_CHECKING:
    from snapline.coordinator.coordinator_process import CoordinatorProcess

AS_SPARK_SETS_THEM = {"PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "1"}
"""Variables that Spark gives its daemon, where they are not set: another value, and the daemon loads by itself."""
END_SECONDS = 5.0


class HeadStart:
    """A daemon that loads, and a coordinator that loads, for a session that is about to be opened."""

    def __init__(self) -> None:
        self._daemon: subprocess.Popen[bytes] | None = None
        self._coordinator: CoordinatorProcess | None = None
        self._directory = ""

    def begin(self, *, with_coordinator: bool) -> None:
        """Start both. Java has to be started before `java_is_there`, because the daemon that it starts finds ours by a
        variable of the environment."""
        if with_coordinator:
            from snapline.coordinator.coordinator_process import CoordinatorProcess

            self._coordinator = CoordinatorProcess.begin()
        if os.environ.get("PYSPARK_PYTHON", sys.executable) == sys.executable:
            with contextlib.suppress(OSError):  # Java's daemon loads by itself then
                self._begin_daemon()

    def _begin_daemon(self) -> None:
        self._directory = tempfile.mkdtemp(prefix="snapline-daemon-")
        address = str(Path(self._directory, "socket"))
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(address)
            listener.listen(1)
            self._daemon = subprocess.Popen(
                [sys.executable, "-m", MODULE, WAIT_AT, str(listener.fileno())],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                pass_fds=(listener.fileno(),),
                process_group=0,
                env={**AS_SPARK_SETS_THEM, **os.environ, "PYTHONUNBUFFERED": "YES"},
            )
        os.environ[WAITS_AT_VARIABLE] = address

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
        shutil.rmtree(self._directory, ignore_errors=True)
