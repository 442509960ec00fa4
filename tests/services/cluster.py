"""A real cluster without Spark: a coordinator process and `python -m snapline.taskmanager` processes on loopback.

    with LocalCluster(tmp_path, slots=(2, 2)) as cluster:
        job_id = cluster.submit(environment, "name")
        cluster.client.stop_with_savepoint(job_id, ...)

Everything a cluster writes lies below its directory: `checkpoints/`, `savepoints/`, `ha/`, `logs/`. A coordinator that
is started again after `kill_coordinator` has the same address, and the jobs, because high availability is on.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TypeVar

from snapline import StreamExecutionEnvironment
from snapline.client import ClusterClient
from snapline.coordinator.coordinator_process import CoordinatorProcess
from snapline.dataflow.config import SECURITY_TOKEN, Configuration
from snapline.dataflow.wire.codec import decode_job_status
from snapline.dataflow.wire.messages import JobStatus
from snapline.protos import client_pb2 as pb
from snapline.runtime.rpc.security import Security

WAIT_SECONDS = 60.0
"""Without any progress."""
PATIENCE = 5
"""Times as long it may take with progress."""
POLL_SECONDS = 0.02
STOP_SECONDS = 15.0
SETTINGS = {
    "heartbeat.interval": "200 ms",
    "heartbeat.timeout": "20 s",
    "high-availability.type": "embedded",
    "execution.checkpointing.num-retained": "3",
    "restart-strategy.type": "fixed-delay",
    "restart-strategy.fixed-delay.attempts": "20",
    "restart-strategy.fixed-delay.delay": "50 ms",
}
T = TypeVar("T")


@dataclass
class TaskManagerProcess:
    """One `python -m snapline.taskmanager`."""

    resource_id: str
    process: subprocess.Popen[bytes]
    log: Path

    @property
    def pid(self) -> int:
        """Process id."""
        return self.process.pid

    def kill(self) -> None:
        """As a crash of the executor would."""
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def stop(self) -> None:
        """In order, the hard way when that takes too long."""
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                self.kill()


class LocalCluster:
    """One coordinator and its TaskManagers; a context manager."""

    def __init__(
        self, directory: Path, slots: Sequence[int] = (2,), settings: Mapping[str, str] | None = None, token: str = ""
    ) -> None:
        """One TaskManager per entry of `slots`. `settings` are the coordinator's and the TaskManagers'; `token` is
        their secret."""
        self.directory = directory
        self._token = token
        self.checkpoints = directory / "checkpoints"
        self.savepoints = directory / "savepoints"
        self.logs = directory / "logs"
        for path in (self.checkpoints, self.savepoints, self.logs, directory / "ha"):
            path.mkdir(parents=True, exist_ok=True)
        self.settings = {
            **SETTINGS,
            "execution.checkpointing.dir": str(self.checkpoints),
            "execution.checkpointing.savepoint-dir": str(self.savepoints),
            "high-availability.storageDir": str(directory / "ha"),
            **(settings or {}),
        }
        self._slots = tuple(slots)
        self._started = 0
        self._coordinator: CoordinatorProcess | None = None
        self._client: ClusterClient | None = None
        self.address = ""
        self.task_managers: list[TaskManagerProcess] = []

    # --- up and down --------------------------------------------------------------------------------------------------

    def __enter__(self) -> LocalCluster:
        """Start everything; does not wait for TaskManagers."""
        try:
            self.start_coordinator()
            for slots in self._slots:
                self.start_task_manager(slots)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Stop everything; show the logs of a test that failed."""
        self.close()
        if error is not None:
            for log in sorted(self.logs.iterdir()):
                print(f"--- {log.name}\n{log.read_text()[-6000:]}")

    def start_coordinator(self) -> None:
        """Start it, at the address that it had before, if it had one."""
        self._coordinator = CoordinatorProcess.start(
            self.address or "127.0.0.1:0", self.settings, self._token, log_to=self.logs / "coordinator.log"
        )
        self.address = self._coordinator.address
        if self._client is None:
            with_token = Configuration({**self.settings, SECURITY_TOKEN.key: self._token})
            self._client = ClusterClient(self.address, Security.from_configuration(with_token))

    @property
    def coordinator_pid(self) -> int:
        """Process id."""
        if self._coordinator is None:
            raise RuntimeError("the coordinator does not run")
        return self._coordinator.pid

    @property
    def coordinator_is_alive(self) -> bool:
        """Whether its process runs."""
        return self._coordinator is not None and self._coordinator.is_alive

    def kill_coordinator(self) -> None:
        """As a crash would."""
        if self._coordinator is not None:
            self._coordinator.kill()

    def start_task_manager(
        self, slots: int = 2, program: Sequence[str] = ("-m", "snapline.taskmanager"), token: str = ""
    ) -> TaskManagerProcess:
        """One more; `program` is what Python runs, `token` what it is given in place of the cluster's secret."""
        self._started += 1
        name = f"tm-{self._started}"
        log = self.logs / f"{name}.log"
        command = [sys.executable, *program, "--coordinator", self.address, "--slots", str(slots)]
        command += ["--resource-id", name, "--bind-host", "127.0.0.1"]
        for key, value in self.settings.items():
            command += ["-D", f"{key}={value}"]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path or str(Path.cwd()) for path in sys.path)}
        if token or self._token:
            environment["SNAPLINE_CONF_security__auth__token"] = token or self._token
        with log.open("ab") as output:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=environment, process_group=0
            )
        started = TaskManagerProcess(name, process, log)
        self.task_managers.append(started)
        return started

    def on(self, resource_id: str) -> TaskManagerProcess:
        """The process of a TaskManager."""
        return next(each for each in self.task_managers if each.resource_id == resource_id)

    def close(self) -> None:
        """Stop everything. Idempotent."""
        for task_manager in self.task_managers:
            if task_manager.process.poll() is None:
                task_manager.process.terminate()
        for task_manager in self.task_managers:
            task_manager.stop()
        if self._client is not None:
            self._client.close()
            self._client = None
        if self._coordinator is not None:
            self._coordinator.stop()
            self._coordinator = None

    # --- jobs ---------------------------------------------------------------------------------------------------------

    @property
    def client(self) -> ClusterClient:
        """A client of the coordinator."""
        if self._client is None:
            raise RuntimeError("the cluster is not running")
        return self._client

    def environment(
        self, parallelism: int = 2, interval: str = "200 ms", **settings: str
    ) -> StreamExecutionEnvironment:
        """For a job on this cluster. Keyword `execution__checkpointing__unaligned__enabled`: two underscores are a dot,
        one is a hyphen."""
        values: dict[str, object] = {
            **self.settings,
            "jobmanager.rpc.address": self.address,
            "parallelism.default": parallelism,
            "execution.checkpointing.interval": interval,
            **{key.replace("__", ".").replace("_", "-"): value for key, value in settings.items()},
        }
        return StreamExecutionEnvironment.get_execution_environment(values)

    def submit(self, environment: StreamExecutionEnvironment, name: str) -> str:
        """Submit and return the job's id at once."""
        return self.client.submit(environment.translate(name).job_graph)

    def status(self, job_id: str) -> JobStatus:
        """Of the job, now."""
        return decode_job_status(self.client.get_job(job_id).overview.status)

    def follow(self, job_id: str, condition: Callable[[pb.JobDetails], object]) -> pb.JobDetails:
        """Watch the job until the condition holds, which may be for a moment only."""
        details = None
        for details in self.client.watch_job(job_id, timeout_s=WAIT_SECONDS):
            if condition(details):
                return details
        raise AssertionError(f"waited in vain; the job is {details}")

    def wait_for(self, job_id: str, status: JobStatus) -> pb.JobDetails:
        """Wait until the job has this status. Fails at once when it ended in another."""
        details = self.client.get_job(job_id)

        def reached() -> bool:
            nonlocal details
            details = self.client.get_job(job_id)
            now = decode_job_status(details.overview.status)
            if now.is_globally_terminal and now is not status:
                raise AssertionError(f"the job is {now.value}, not {status.value}: {details.overview.failure.summary}")
            return now is status

        wait_until(reached, f"job {job_id} to be {status.value}", progress=lambda: progress_of(details))
        return details

    def wait_for_task_managers(self) -> None:
        """Until all that run are registered: a job that is submitted before has all of its tasks on the first."""
        running = len(self.task_managers)
        wait_until(lambda: len(self.client.list_task_managers()) == running, f"{running} TaskManagers")

    def wait_for_checkpoints(
        self, job_id: str, count: int, seconds: float = WAIT_SECONDS
    ) -> pb.ListCheckpointsResponse:
        """Wait until so many have completed."""
        answer, details = self.client.list_checkpoints(job_id), self.client.get_job(job_id)

        def reached() -> bool:
            nonlocal answer, details
            answer, details = self.client.list_checkpoints(job_id), self.client.get_job(job_id)
            now = decode_job_status(details.overview.status)
            if now.is_globally_terminal and answer.counts.completed < count:
                raise AssertionError(f"the job is {now.value} after {answer.counts.completed} of {count} checkpoints")
            return answer.counts.completed >= count

        going_on = lambda: (progress_of(details), str(answer.counts))  # noqa: E731
        wait_until(reached, f"{count} checkpoints of job {job_id}", seconds, going_on)
        return answer

    def cancel(self, job_id: str) -> None:
        """Cancel and wait for the end."""
        self.client.cancel(job_id)
        self.wait_for(job_id, JobStatus.CANCELED)


def progress_of(details: pb.JobDetails) -> tuple[object, ...]:
    """What changes while a job goes on: its status, the states of its tasks, and the rows that they have read."""
    tasks = [each for vertex in details.vertices for each in vertex.subtasks]
    return (details.overview.status, *((each.state, each.attempt_number, each.records_in) for each in tasks))


def wait_until(
    reached: Callable[[], bool],
    what: str,
    seconds: float = WAIT_SECONDS,
    progress: Callable[[], object] = lambda: None,
) -> None:
    """Look again and again. Raises AssertionError that names what did not come, when `progress` has been the same for
    so many seconds, or after PATIENCE times as many; what goes on slowly, because the machine does other things, is
    waited for."""
    seen, begun = progress(), time.monotonic()
    since = begun
    while not reached():
        now = progress()
        if now != seen:
            seen, since = now, time.monotonic()
        if time.monotonic() > min(since + seconds, begun + PATIENCE * seconds):
            raise AssertionError(f"waited {time.monotonic() - begun:.0f} s for {what}; what goes on: {now}")
        time.sleep(POLL_SECONDS)


def files_below(directory: Path) -> Iterator[Path]:
    """All files, sorted. What is deleted meanwhile is there or not; it does no harm."""
    return iter(sorted(Path(folder) / name for folder, _, names in os.walk(directory) for name in names))
