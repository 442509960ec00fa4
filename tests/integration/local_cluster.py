"""A coordinator process and TaskManager processes on loopback, without Spark, for integration tests."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from coordinator.process import CoordinatorProcess
from protos import client_pb2 as pb
from runtime.grpc_channels import Security
from snapline import StreamExecutionEnvironment
from snapline.client import ClusterClient

FAST: dict[str, str] = {
    "heartbeat.interval": "500 ms",
    "heartbeat.timeout": "30 s",
    "cluster.registration.error-delay": "100 ms",
}
PATIENCE_SECONDS = 60.0


class LocalCluster:
    """Use as a context manager."""

    def __init__(
        self,
        directory: Path,
        task_managers: int = 2,
        slots: int = 2,
        token: str = "",
        settings: Mapping[str, str] | None = None,
    ) -> None:
        self.directory = directory
        self.checkpoints = directory / "checkpoints"
        self.token = token
        self.slots = slots
        self.settings = {**FAST, "execution.checkpointing.dir": str(self.checkpoints), **(settings or {})}
        self.processes: list[subprocess.Popen[bytes]] = []
        self.coordinator = self.start_coordinator("127.0.0.1:0")
        self.client = ClusterClient(self.coordinator.address, Security(token))
        for _ in range(task_managers):
            self.start_task_manager()

    def __enter__(self) -> LocalCluster:
        return self

    def __exit__(self, *error: object) -> None:
        self.client.close()
        for process in self.processes:
            if process.poll() is None:
                process.terminate()
        for process in self.processes:
            process.wait(30)
        self.coordinator.stop()

    def start_coordinator(self, bind: str) -> CoordinatorProcess:
        log = self.directory / "coordinator.log"
        return CoordinatorProcess.start(bind, self.settings, self.token, log_to=log)

    def start_task_manager(
        self, program: Sequence[str] = ("-m", "taskmanager"), **settings: str
    ) -> subprocess.Popen[bytes]:
        """One more; in the list `processes`."""
        command = [sys.executable, *program, "--coordinator", self.coordinator.address]
        command += ["--slots", str(self.slots), "--resource-id", f"tm-{len(self.processes)}"]
        for key, value in {**FAST, **settings}.items():
            command += ["-D", f"{key}={value}"]
        environment = dict(os.environ)
        if self.token:
            environment["SNAPLINE_CONF_security__auth__token"] = self.token
        with (self.directory / f"tm-{len(self.processes)}.log").open("wb") as log:
            process = subprocess.Popen(command, stderr=log, env=environment)
        self.processes.append(process)
        return process

    def environment(self, parallelism: int = 2, **settings: Any) -> StreamExecutionEnvironment:
        """For a job that is to run here."""
        quick = {"restart-strategy.type": "fixed-delay", "restart-strategy.fixed-delay.delay": "100 ms"}
        merged: Mapping[str, Any] = {
            **quick,
            "restart-strategy.fixed-delay.attempts": "10",
            "execution.checkpointing.interval": "300 ms",
            **{key.replace("__", "."): value for key, value in settings.items()},
        }
        environment = StreamExecutionEnvironment.get_execution_environment(merged)
        environment.set_parallelism(parallelism)
        return environment

    def submit(self, environment: StreamExecutionEnvironment, name: str) -> str:
        """Returns the job id."""
        return self.client.submit(environment.translate(name).job_graph)

    def wait_until(self, job_id: str, condition: Callable[[pb.JobDetails], object]) -> pb.JobDetails:
        """Follow the job until the condition holds."""
        details = None
        for details in self.client.watch_job(job_id, timeout_s=PATIENCE_SECONDS):
            if condition(details):
                return details
        raise AssertionError(f"waited in vain; the job is {details}\n{self.logs()}")

    def on(self, resource_id: str) -> subprocess.Popen[bytes]:
        """The process of a TaskManager."""
        return self.processes[int(resource_id.removeprefix("tm-"))]

    def logs(self) -> str:
        """The end of every log, for failures."""
        return "\n".join(
            f"--- {path.name}\n" + "\n".join(path.read_text().splitlines()[-40:])
            for path in sorted(self.directory.glob("*.log"))
        )


def rows_of(directory: Path) -> list[dict[str, Any]]:
    """All committed rows of a Parquet sink."""
    return pq.read_table(directory).to_pylist() if directory.exists() else []
