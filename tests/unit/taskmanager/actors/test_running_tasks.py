"""What a TaskManager's log says of tasks that end, and whether an operator is woken for it."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from snapline.connectors import DiscardingSink
from snapline.dataflow.api.function_contexts import RuntimeContext
from snapline.dataflow.api.functions import Function
from snapline.dataflow.graph.operator_specs import MapBatchesSpec, SinkSpec, SourceSpec
from snapline.dataflow.ids import ResourceID
from snapline.dataflow.partitioning import Partitioning
from snapline.dataflow.wire.messages import ExecutionState
from snapline.runtime.clock import ManualClock
from snapline.runtime.storage.memory_storage import MemoryStorage
from snapline.runtime.storage.state_storages import StateStorages
from snapline.taskmanager.actors import running_tasks
from snapline.taskmanager.actors.running_tasks import RunningTasks
from snapline.taskmanager.network.channels.local_exchange import LocalExchange
from snapline.taskmanager.snapshots.uploader import SnapshotUploader
from snapline.taskmanager.task.stream_task import ProgressKind, StreamTask
from tests.unit.taskmanager.task.local_job import ListSource, LocalJob, Operator, Outside, batch, edge

SCHEMA = pa.schema([("k", pa.int64())])


class RecordedLog:
    """Keeps each line with its level."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, str, dict[str, Any]]] = []

    def info(self, event: str, **context: Any) -> None:
        self.lines.append(("info", event, context))

    def warning(self, event: str, **context: Any) -> None:
        self.lines.append(("warning", event, context))


class ByHand:
    """Steps its task when the test says so."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.task: StreamTask | None = None

    def start(self, task: StreamTask) -> None:
        self.task = task

    def wake_up(self) -> None: ...

    def join(self, timeout_seconds: float) -> bool:
        return True

    def run(self) -> ExecutionState:
        assert self.task is not None
        while self.task.step(0).kind is ProgressKind.WORKED:
            pass
        return self.task.state


class RaisingFunction:
    """Fails on the first batch."""

    def __call__(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        raise ValueError("no such airport")


class WaitingGauge(Function):
    """Counts rows, and has a gauge that waits for what the test decides."""

    asked, answered = threading.Event(), threading.Event()

    def open(self, context: RuntimeContext) -> None:
        self.rows = context.metrics.counter("rows")
        context.metrics.gauge("waiting", self.tell)

    def tell(self) -> float:
        self.asked.set()
        return 7 if self.answered.wait(30) else -1

    def __call__(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        self.rows.inc(rows.num_rows)
        return rows


@pytest.fixture
def uploader():
    """Uploads that nobody asks for."""
    made = SnapshotUploader(ResourceID("tm"), StateStorages(lambda _: MemoryStorage("none")))
    yield made
    made.close()


def tasks_of(
    uploader: SnapshotUploader,
    make_runner: Callable[[str], ByHand],
    log: RecordedLog,
    *,
    exchange: LocalExchange | None = None,
    tell: Callable[[Any], Any] = lambda _: None,
    **more: Any,
) -> RunningTasks:
    """Tasks whose steps are taken by hand, without local recovery."""
    return RunningTasks(
        exchange or LocalExchange(),
        uploader,
        StateStorages(lambda _: MemoryStorage("none")),
        None,
        False,
        make_runner,
        ManualClock(),
        tell,
        log,  # type: ignore[arg-type]
        **more,
    )


def run_with(uploader: SnapshotUploader, function: Any) -> tuple[RunningTasks, list[ByHand], LocalJob, RecordedLog]:
    """A source that waits after a batch and its consumer, each having done what there was to do."""
    Outside.reset()  # another test may have let this split go on
    source = ListSource([[batch(k=[1])]], pauses={"s0": 1})
    job = LocalJob(
        [
            Operator("source", SourceSpec(source, source.spec_splits())),
            Operator("map", MapBatchesSpec(function, SCHEMA), [edge(0, Partitioning.REBALANCE)]),
            Operator("sink", SinkSpec(DiscardingSink()), [edge(1)]),
        ]
    )
    log, runners = RecordedLog(), []

    def make_runner(name: str) -> ByHand:
        runners.append(ByHand(name))
        return runners[-1]

    tasks = tasks_of(uploader, make_runner, log)
    for each in job.tasks:
        tasks.start(each.descriptor)
    for runner in (*runners, *runners):
        runner.run()
    return tasks, runners, job, log


def test_a_task_without_a_thread_fails_by_itself(uploader) -> None:
    """It was the end of the TaskManager, and of all other tasks there, when its host had no thread left."""

    class Threadless(ByHand):
        def start(self, task: StreamTask) -> None:
            super().start(task)
            raise RuntimeError("can't start new thread")

    Outside.reset()
    source = ListSource([[batch(k=[1])]])
    job = LocalJob([Operator("all", SourceSpec(source, source.spec_splits()))])
    (descriptor,) = (each.descriptor for each in job.tasks)
    told: list[Any] = []
    log = RecordedLog()
    tasks = tasks_of(uploader, Threadless, log, tell=told.append)
    tasks.start(descriptor)

    (entered,) = told
    assert (entered.attempt_id, entered.state) == (descriptor.attempt_id, ExecutionState.FAILED)
    assert "can't start new thread" in entered.failure.summary
    assert not tasks.are_running
    assert [line[:2] for line in log.lines] == [("info", "task started"), ("warning", "task failed")]
    tasks.release_snapshots(descriptor.attempt_id, ())


@pytest.mark.parametrize("is_read", [True, False])
def test_what_nobody_will_read_goes_with_the_last_of_its_job(uploader, is_read: bool) -> None:
    """A finished task leaves its results to its consumers; when the job ended before these came, they stayed until the
    TaskManager ended. A consumer that has begun to read goes on."""
    Outside.reset()
    source = ListSource([[batch(k=[1])]])
    job = LocalJob(
        [
            Operator("source", SourceSpec(source, source.spec_splits())),
            Operator("sink", SinkSpec(DiscardingSink()), [edge(0, Partitioning.REBALANCE)]),
        ]
    )
    descriptor = job.tasks[0].descriptor
    producer, edge_id = str(descriptor.attempt_id), job.graph.edges[0].edge_id
    exchange, log = LocalExchange(), RecordedLog()
    runner = ByHand("source")
    tasks = tasks_of(uploader, lambda _: runner, log, exchange=exchange)
    tasks.start(descriptor)
    assert runner.run() is ExecutionState.FINISHED
    left = exchange.subpartition(producer, edge_id, 0)
    assert left is not None
    view = left.create_view() if is_read else None
    tasks.release_job(descriptor.job_id)

    assert (exchange.subpartition(producer, edge_id, 0) is not None) is is_read
    assert view is None or view.poll() is not None


def test_a_producer_that_is_cancelled_first_is_no_warning(uploader) -> None:
    """When a job is cancelled each task hears of it by itself, and the consumer may be the last: only the JobMaster
    knows whether the loss of an input is a failure, and it warns of one."""
    tasks, (producer, consumer), job, log = run_with(uploader, lambda rows: rows)
    tasks.cancel(job.tasks[0].descriptor.attempt_id)

    assert producer.run() is ExecutionState.CANCELED
    assert consumer.run() is ExecutionState.FAILED
    ((level, event, context),) = [line for line in log.lines if line[1] != "task started"]
    assert (level, event, sorted(context)) == ("info", "task lost its input", ["attempt", "job_id", "reason", "task"])
    assert "subtask 1, on TaskManager tm broke: producer" in context["reason"]


def test_a_user_function_that_fails_is_a_warning_with_its_traceback(uploader) -> None:
    """It is a failure whatever the JobMaster makes of it."""
    _, (_, consumer), _, log = run_with(uploader, RaisingFunction())

    assert consumer.run() is ExecutionState.FAILED
    ((level, event, context),) = [line for line in log.lines if line[1] != "task started"]
    assert (level, event, context["operator"]) == ("warning", "task failed", "map")
    assert "no such airport" in context["traceback"]


def test_a_gauge_that_waits_holds_no_heartbeat_up(uploader, monkeypatch) -> None:
    """Its function ran on the thread that answers heartbeats and cancels, and the whole TaskManager stood still."""
    monkeypatch.setattr(running_tasks, "GAUGES_SECONDS", 0.01)
    WaitingGauge.asked.clear()
    WaitingGauge.answered.clear()
    tasks, _, job, _ = run_with(uploader, WaitingGauge())
    attempt_id = job.tasks[1].descriptor.attempt_id

    (said,) = tasks.metrics([attempt_id])
    assert WaitingGauge.asked.wait(30)
    (again,) = tasks.metrics([attempt_id])
    WaitingGauge.answered.set()
    monkeypatch.setattr(running_tasks, "GAUGES_SECONDS", 30)
    for thread in (each for each in threading.enumerate() if each.name == "gauges"):
        thread.join()
    (told,) = tasks.metrics([attempt_id])

    assert [value.value for value in said.user_metrics if value.name == "rows"] == [1], "the rest travels"
    assert all(math.isnan(value.value) for value in again.user_metrics if value.name == "waiting")
    assert [value.value for value in told.user_metrics] == [1, 7]


def test_state_outside_of_memory_lies_where_the_job_says_else_its_task_manager(uploader, tmp_path: Path) -> None:
    """What a TaskManager's settings said of a directory on its machine was read by nobody, and the state filled the
    temporary directory."""
    source = ListSource([[batch(k=[1])]])
    job = LocalJob([Operator("all", SourceSpec(source, source.spec_splits()))])
    runner, log = ByHand("all"), RecordedLog()
    tasks = tasks_of(uploader, lambda _: runner, log, segment_directory=str(tmp_path / "machine"))
    tasks.start(job.tasks[0].descriptor)
    assert runner.task is not None
    for named in ("", str(tmp_path / "job")):
        runner.task._environment.open_segment_space(named)

    assert ["job", "machine"] == sorted(each.name for each in tmp_path.iterdir())
