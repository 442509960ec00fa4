"""The twelve faults, and two of functions that wait: how each is planted in a job that runs well, and what has to be
said about it.

    with PlantedFault(tmp_path, FAULTS["slow sink"]) as planted:
        found = planted.wait_for_cause()

A cluster is a coordinator and TaskManagers, all processes of their own. Before the fault is planted the job runs and
has completed a checkpoint, and nothing is said of it yet that would name the cause.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType

import pyarrow as pa
import pyarrow.parquet as pq

from snapline import DataStream, GeneratorSource, StreamExecutionEnvironment, count
from snapline.connectors import DiscardingSink, FileSource
from snapline.protos import client_pb2 as pb
from tests.faults.broken_functions import (
    HeldLock,
    SlowSink,
    UnansweredRequests,
    leak,
    skew,
    stumble,
    wait_for_answer,
    work,
)
from tests.services.cluster import LocalCluster, wait_until
from tests.services.s3 import BUCKET, S3Server, start_s3

MIB = 1 << 20
DISK_BYTES = 4 * MIB
LIMIT_SECONDS = 60.0
"""Within which the cause has to be named."""
ROWS_PER_SECOND = 400
SETTINGS = {"heartbeat.interval": "1 s", "execution.checkpointing.timeout": "30 s"}


@dataclass(frozen=True)
class Fault:
    """One thing that goes wrong."""

    name: str
    kinds: tuple[str, ...]
    """The kind of the finding that names the cause."""
    says: str
    """A regular expression that this finding matches."""
    build: Callable[[StreamExecutionEnvironment, PlantedFault], object]
    plant: Callable[[PlantedFault], object]
    settings: dict[str, str] = field(default_factory=dict)
    slots: tuple[int, ...] = (2,)
    parallelism: int = 2
    needs: str = ""
    """`root`, `s3`: what else it takes."""
    leaping_clock: bool = False


@dataclass(frozen=True)
class Cause:
    """What was said, and how long after the fault was planted."""

    finding: pb.JobFinding
    after_seconds: float
    is_first: bool
    """Whether it is what `why` says first."""


class PlantedFault:
    """A cluster with a job, in which one fault can be planted; a context manager."""

    def __init__(self, directory: Path, fault: Fault) -> None:
        self.directory = directory
        self.fault = fault
        self.mark = directory / "fault"
        """The fault is there when this file is."""
        self.cluster: LocalCluster
        self.job_id = ""
        self.s3: S3Server | None = None
        self._stack = ExitStack()

    def __enter__(self) -> PlantedFault:
        """Start everything, and wait until the job runs well."""
        with ExitStack() as stack:
            settings = {**SETTINGS, **self.fault.settings}
            if self.fault.needs == "s3":
                self.s3 = start_s3(self.directory / "s3")
                stack.callback(self._stop_s3, self.s3)
                settings |= self.s3.configuration
                settings["execution.checkpointing.dir"] = f"s3://{BUCKET}/slow"
            if self.fault.needs == "root":
                disk = self.directory / "checkpoints"
                disk.mkdir()
                subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(disk)], check=True)
                stack.callback(subprocess.run, ["umount", "-l", str(disk)], check=True)
            self.cluster = LocalCluster(self.directory, slots=(), settings=settings)
            stack.enter_context(self.cluster)
            program: tuple[str, ...] = ("-m", "snapline.taskmanager")
            if self.fault.leaping_clock:
                program = ("-m", "tests.faults.broken_functions", str(self.mark))
            for slots in self.fault.slots:
                self.cluster.start_task_manager(slots, program)
            self.cluster.wait_for_task_managers()
            if self.fault.name != "too few slots":
                self.submit()
                self.cluster.wait_for_checkpoints(self.job_id, 1)
                wait_until(self._is_well, "a job that works and of which nothing is said")
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Stop everything; what waits for the end of the fault goes on before."""
        Path(f"{self.mark}.over").touch()
        self._stack.__exit__(kind, error, traceback)

    def _is_well(self) -> bool:
        rows = [
            subtask.records_in
            for vertex in self.cluster.client.get_job(self.job_id).vertices
            for subtask in vertex.subtasks
        ]
        said = self.cluster.client.explain_job(self.job_id, without_stacks=True).findings
        return any(rows) and not any(finding.kind in self.fault.kinds for finding in said)

    @staticmethod
    def _stop_s3(server: S3Server) -> None:
        server.process.send_signal(signal.SIGCONT)
        server.stop()

    def submit(self) -> None:
        """Submit the job."""
        environment = self.cluster.environment(self.fault.parallelism, "500 ms")
        self.fault.build(environment, self)
        self.job_id = self.cluster.submit(environment, self.fault.name)

    def wait_for_cause(self) -> Cause:
        """Plant the fault, and wait until the cause is named. Raises AssertionError when nothing names it in time."""
        begin = time.monotonic()
        self.fault.plant(self)
        said: list[pb.JobFinding] = []
        while time.monotonic() < begin + 2 * LIMIT_SECONDS:
            said = list(self.cluster.client.explain_job(self.job_id).findings)
            for finding in said:
                if finding.kind in self.fault.kinds and re.search(self.fault.says, finding.summary):
                    return Cause(finding, time.monotonic() - begin, finding is said[0])
            time.sleep(0.3)
        lines = "; ".join(f"{finding.kind}: {finding.summary}" for finding in said)
        raise AssertionError(f"{self.fault.name}: nothing named the cause; said was: {lines or 'nothing'}")


def why_not(fault: Fault) -> str:
    """Why the fault cannot be planted here; empty: it can."""
    if fault.needs == "root" and os.getuid() != 0:
        return "a disk of its own needs root"
    return ""


def _rows(environment: StreamExecutionEnvironment, rows_per_second: int = ROWS_PER_SECOND) -> DataStream:
    source = GeneratorSource(keys=1_000, rows_per_second=rows_per_second, batch_rows=20)
    return environment.from_source(source, uid="rows")


def _mark(planted: PlantedFault) -> None:
    planted.mark.touch()


def _keyed(environment: StreamExecutionEnvironment, planted: PlantedFault) -> None:
    """A healthy job with state."""
    _rows(environment).key_by("key").running_aggregate(uid="counts", n=count()).sink_to(DiscardingSink(), uid="nowhere")


def _skewed(environment: StreamExecutionEnvironment, planted: PlantedFault) -> None:
    rows = _rows(environment, 6_000)
    rows = rows.map_batches(skew(planted.mark), uid="keys", schema=rows.schema)
    keyed = rows.key_by("key").running_aggregate(uid="counts", n=count())
    keyed.map(work, uid="work", schema=keyed.schema).sink_to(DiscardingSink(), uid="nowhere")


def _mapped(
    function: Callable[[Path], Callable[[dict[str, object]], dict[str, object]]], uid: str
) -> Callable[[StreamExecutionEnvironment, PlantedFault], object]:
    def build(environment: StreamExecutionEnvironment, planted: PlantedFault) -> None:
        rows = _rows(environment)
        rows.map(function(planted.mark), uid=uid, schema=rows.schema).sink_to(DiscardingSink(), uid="nowhere")

    return build


def _asked(environment: StreamExecutionEnvironment, planted: PlantedFault) -> None:
    rows = _rows(environment)
    asked = rows.async_wait(
        UnansweredRequests(planted.mark), timeout_ms=600_000, capacity=10, uid="asks", schema=rows.schema
    )
    asked.sink_to(DiscardingSink(), uid="nowhere")


def _sink(environment: StreamExecutionEnvironment, planted: PlantedFault) -> None:
    _rows(environment).rebalance().add_sink(SlowSink(planted.mark), uid="slow")


def _files(environment: StreamExecutionEnvironment, planted: PlantedFault) -> None:
    folder = planted.directory / "incoming"
    folder.mkdir()
    pq.write_table(pa.table({"id": [1, 2, 3], "cents": [10, 20, 30]}), folder / "1.parquet")
    source = FileSource(folder, "parquet", follow=True, discovery_interval_ms=200)
    environment.from_source(source, uid="files").sink_to(DiscardingSink(), uid="nowhere")


def _other_schema(planted: PlantedFault) -> None:
    staged = planted.directory / "2.parquet"
    pq.write_table(pa.table({"id": [4], "price": ["n/a"]}), staged)
    staged.rename(planted.directory / "incoming" / "2.parquet")


def _fill_disk(planted: PlantedFault) -> None:
    with (planted.directory / "checkpoints" / "other").open("wb", buffering=0) as file:
        while True:
            try:
                file.write(bytes(4096))
            except OSError:
                return


def _stop_storage(planted: PlantedFault) -> None:
    if planted.s3 is not None:
        planted.s3.process.send_signal(signal.SIGSTOP)


def _kill_task_manager(planted: PlantedFault) -> None:
    planted.cluster.task_managers[0].kill()


def _change_leader(planted: PlantedFault) -> None:
    planted.cluster.kill_coordinator()
    planted.cluster.start_coordinator()


def _submit(planted: PlantedFault) -> None:
    planted.submit()


FAULTS = {
    fault.name: fault
    for fault in (
        Fault("slow sink", ("sink", "user code"), r"SlowSink.*write_slowly \(broken_functions", _sink, _mark),
        Fault(
            "blocked call", ("user code",), r"has not come back from a call.*ask_service \(broken_functions",
            _mapped(wait_for_answer, "asks"), _mark,
        ),
        Fault("skewed key", ("skew",), r"gets \d+ % of the rows.*key.*skewed", _skewed, _mark, slots=(2, 2), parallelism=4),
        Fault("poison row", ("failure",), r"ValueError: price 'n/a' of row \d+ is no number", _mapped(stumble, "parses"), _mark),
        Fault("full disk", ("checkpoint", "failure"), r"[Nn]o space left", _keyed, _fill_disk, needs="root"),
        Fault(
            "slow storage", ("storage",), r"checkpoint \d+ .*(written to the storage|stores its metadata)", _keyed,
            _stop_storage, {"execution.checkpointing.data-inline-threshold": "0"}, needs="s3",
        ),
        Fault(
            "lost TaskManager", ("failure", "slots"), r"TaskManager tm-1|tm-1", _keyed, _kill_task_manager, slots=(1, 1)
        ),
        Fault("leader change", ("leader",), r"the leader has changed", _keyed, _change_leader),
        Fault("clock step", ("clock",), r"has leapt by \+3,600 s since tm-1", _keyed, _mark, leaping_clock=True),
        Fault("leak in user code", ("leak",), r"user code keeps more and more in broken_functions\.KEPT", _mapped(leak, "leaks"), _mark),
        Fault("wrong schema", ("failure",), r"2\.parquet", _files, _other_schema),
        Fault("too few slots", ("slots",), r"4 required", _keyed, _submit, parallelism=4),
        Fault("held lock", ("lock",), r"it waits for a lock in user code: HeldLock\.__call__", _mapped(HeldLock, "counts"), _mark),
        Fault("unanswered requests", ("answer",), r"it waits for the answers to 10 requests of asks", _asked, _mark),
    )
}  # fmt: skip
"""By name."""
