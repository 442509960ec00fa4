"""A cluster whose coordinators find each other through ZooKeeper: several of them, of which one leads, and TaskManager
processes.

    with HighAvailabilityCluster(tmp_path, ensemble) as cluster:
        job_id = cluster.client().submit(...)
        cluster.kill_leader()

Everything is a process; nothing of it is Spark's.
"""

from __future__ import annotations

import os
import subprocess
import sys
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from deploy.zookeeper_ensemble import ZooKeeperEnsemble
from snapline import StreamExecutionEnvironment
from snapline.client import ClusterClient
from snapline.coordinator.coordinator_process import CoordinatorProcess
from snapline.dataflow.config import Configuration
from snapline.dataflow.errors import SnaplineError
from snapline.runtime.leaders.coordinator_address import coordinator_address
from snapline.runtime.rpc.security import Security
from tests.services.cluster import wait_until


class HighAvailabilityCluster:
    """Use as a context manager."""

    def __init__(
        self,
        directory: Path,
        ensemble: ZooKeeperEnsemble,
        coordinators: int = 2,
        slots: tuple[int, ...] = (2,),
        settings: Mapping[str, str] | None = None,
        python_path: str = "",
    ) -> None:
        """`python_path`: of processes that are started from now on; empty: that of this process."""
        self.directory = directory
        self.python_path = python_path
        self.logs = directory / "logs"
        self.logs.mkdir(parents=True, exist_ok=True)
        self.settings = {
            "high-availability.type": "zookeeper",
            "high-availability.zookeeper.quorum": ensemble.quorum,
            "high-availability.zookeeper.client.session-timeout": "3 s",
            "high-availability.cluster-id": uuid.uuid4().hex,
            "high-availability.storageDir": str(directory / "ha"),
            "execution.checkpointing.dir": str(directory / "checkpoints"),
            "cluster.registration.error-delay": "100 ms",
            "restart-strategy.type": "fixed-delay",
            "restart-strategy.fixed-delay.attempts": "20",
            "restart-strategy.fixed-delay.delay": "50 ms",
            **(settings or {}),
        }
        self._coordinators = coordinators
        self._slots = slots
        self.coordinators: list[CoordinatorProcess] = []
        self.task_managers: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> HighAvailabilityCluster:
        """Start everything; one coordinator leads then. Does not wait for TaskManagers."""
        try:
            for _ in range(self._coordinators):
                self.start_coordinator()
            self.client().close()
            for slots in self._slots:
                self.start_task_manager(slots)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Stop everything; show the logs when something went wrong."""
        self.close()
        if kind is not None:
            for log in sorted(self.logs.iterdir()):
                print(f"--- {log.name}\n{log.read_text()[-5000:]}")

    @contextmanager
    def _import_path(self) -> Iterator[None]:
        """Coordinators are started with the import path of this process."""
        before = list(sys.path)
        if self.python_path:
            sys.path[:0] = self.python_path.split(os.pathsep)
        try:
            yield
        finally:
            sys.path[:] = before

    def start_coordinator(self) -> CoordinatorProcess:
        """One more."""
        log = self.logs / f"coordinator-{len(list(self.logs.iterdir()))}.log"
        with self._import_path():
            started = CoordinatorProcess.start(bind="127.0.0.1:0", settings=self.settings, log_to=log)
        self.coordinators.append(started)
        return started

    def start_task_manager(self, slots: int = 2) -> subprocess.Popen[bytes]:
        """One more."""
        name = f"tm-{len(self.task_managers) + 1}"
        command = [sys.executable, "-m", "snapline.taskmanager", "--slots", str(slots), "--resource-id", name]
        command += ["--bind-host", "127.0.0.1"]
        for key, value in self.settings.items():
            command += ["-D", f"{key}={value}"]
        own = os.pathsep.join(path or str(Path.cwd()) for path in sys.path)
        environment = {**os.environ, "PYTHONPATH": self.python_path or own}
        with (self.logs / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment, process_group=0
            )
        self.task_managers.append(process)
        return process

    @property
    def leader_address(self) -> str:
        """host:port of the coordinator that leads, as ZooKeeper has it. Raises SnaplineError before there was one."""
        return coordinator_address(Configuration(self.settings))

    def client(self) -> ClusterClient:
        """Of the coordinator that leads now; close it."""
        address = ""

        def found() -> bool:
            nonlocal address
            try:
                address = self.leader_address
            except SnaplineError:
                return False
            with ClusterClient(address, Security.from_configuration(Configuration(self.settings))) as client:
                try:
                    client.overview()
                except SnaplineError:
                    return False
            return True

        wait_until(found, "a coordinator that leads")
        return ClusterClient(address, Security.from_configuration(Configuration(self.settings)))

    def leader_process(self) -> CoordinatorProcess:
        """The process that listens at the leader's address."""
        port = int(self.leader_address.rpartition(":")[2])
        for process in self.coordinators:
            if process.is_alive and port in _listening_ports(process.pid):
                return process
        raise RuntimeError(f"no coordinator process listens at port {port}")

    def kill_leader(self) -> None:
        """As a crash would."""
        process = self.leader_process()
        self.coordinators.remove(process)
        process.kill()
        process.stop()

    def environment(self, parallelism: int = 2, interval: str = "200 ms") -> StreamExecutionEnvironment:
        """For a job on this cluster."""
        values = {
            **self.settings,
            "parallelism.default": str(parallelism),
            "execution.checkpointing.interval": interval,
        }
        return StreamExecutionEnvironment.get_execution_environment(values)

    def close(self) -> None:
        """Stop everything. Idempotent."""
        for process in self.task_managers:
            if process.poll() is None:
                process.terminate()
        for process in self.task_managers:
            try:
                process.wait(15)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        for coordinator in self.coordinators:
            coordinator.stop()


def _listening_ports(pid: int) -> set[int]:
    """TCP ports on which the process listens, from /proc."""
    inodes = set()
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        try:
            target = str(descriptor.readlink())
        except OSError:
            continue
        if target.startswith("socket:["):
            inodes.add(target[8:-1])
    ports = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and fields[9] in inodes:
                ports.add(int(fields[1].rpartition(":")[2], 16))
    return ports
