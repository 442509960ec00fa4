"""The task loop: life, data, back-pressure, cancel, failures."""

from __future__ import annotations

import sys
from asyncio import CancelledError
from collections.abc import Callable
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from snapline.dataflow.api.function_contexts import Row
from snapline.dataflow.api.functions import AsyncFunction
from snapline.dataflow.api.watermarks import WatermarkStrategy
from snapline.dataflow.api.windows import TumblingEventTimeWindows
from snapline.dataflow.elements import EndOfPartition, SnapshotType, Watermark, WatermarkStatus
from snapline.dataflow.failures import Blame, SerializedFailure
from snapline.dataflow.graph.operator_specs import (
    AsyncSpec,
    CustomOperatorSpec,
    FilterSpec,
    FlatMapRowsSpec,
    MapBatchesSpec,
    MapRowsSpec,
    SinkSpec,
    SourceSpec,
    WatermarkSpec,
    WindowProcessSpec,
)
from snapline.dataflow.partitioning import Partitioning
from snapline.dataflow.wire.messages import ExecutionState
from snapline.runtime.cores.machine import InvariantViolation
from snapline.taskmanager.operators.base.operator_contract import StreamOperator
from snapline.taskmanager.task.stream_task import ProgressKind
from tests.unit.taskmanager.task.local_job import (
    Gates,
    ListSource,
    LocalJob,
    Operator,
    Outside,
    StagingSink,
    batch,
    edge,
)


def source_of(*splits: list[pa.RecordBatch], **pauses: int) -> SourceSpec:
    source = ListSource(splits, pauses)
    return SourceSpec(source, source.spec_splits())


def numbers(name: str = "out") -> list[int]:
    return sorted(row["k"] for row in Outside.rows(name))


def state_names(running) -> list[str]:
    return [change.state.value for change in running.world.states]


def test_a_chain_runs_from_source_to_sink() -> None:
    """Chained operators, several splits over several subtasks, a hash edge; everything arrives once."""
    job = LocalJob(
        [
            Operator("src", source_of([batch(k=[1, 2, 3]), batch(k=[4])], [batch(k=[5, 6])]), parallelism=2),
            Operator("even", FilterSpec(lambda b: pc.equal(pc.bit_wise_and(b["k"], 1), 0)), [edge(0)], 2),
            Operator("twice", FlatMapRowsSpec(lambda row: [row, {"k": row["k"] * 10}]), [edge(1)], 2),
            Operator("sink", SinkSpec(StagingSink("out")), [edge(2, Partitioning.HASH, ["k"])], 3),
        ]
    ).run_to_end()

    assert numbers() == [2, 4, 6, 20, 40, 60]
    assert all(state_names(r) == ["INITIALIZING", "RUNNING", "FINISHED"] for r in job.tasks)
    assert [r.name for r in job.tasks] == [
        "src -> even -> twice#0",
        "src -> even -> twice#1",
        "sink#0",
        "sink#1",
        "sink#2",
    ]


def test_side_outputs_and_several_consumers_get_their_rows() -> None:
    """One operator's main output goes to two consumers, its side output to a third."""

    def split(rows: pa.RecordBatch) -> pa.RecordBatch:
        return rows

    LocalJob(
        [
            Operator("src", source_of([batch(k=[1, 2])])),
            Operator("tee", CustomOperatorSpec(SideWriter), [edge(0)]),
            Operator("a", SinkSpec(StagingSink("a")), [edge(1)]),
            Operator("b", SinkSpec(StagingSink("b")), [edge(1, Partitioning.REBALANCE)]),
            Operator("odd", SinkSpec(StagingSink("odd")), [edge(1, None, (), "odd")]),
        ]
    ).run_to_end()

    assert (numbers("a"), numbers("b"), numbers("odd")) == ([1, 2], [1, 2], [1])


class SideWriter(StreamOperator):
    def process_batch(self, batch: pa.RecordBatch, input_index: int = 0) -> None:
        self.output.emit_side("odd", batch.filter(pc.equal(pc.bit_wise_and(batch["k"], 1), 1)))
        self.output.emit_side("nobody reads this", batch)
        self.output.emit_batch(batch)


def test_without_checkpoints_output_is_committed_at_the_end() -> None:
    """Nobody would notify the sink later."""
    LocalJob(
        [Operator("src", source_of([batch(k=[1])])), Operator("sink", SinkSpec(StagingSink("out")), [edge(0)])]
    ).run_to_end()

    assert numbers() == [1]


def test_a_slow_consumer_stops_the_source_and_memory_stays_bounded() -> None:
    """The source reads no further than the queues between hold, and goes on when there is room."""
    job = LocalJob(
        [
            Operator("src", source_of([batch(k=[i]) for i in range(100)])),
            Operator("sink", SinkSpec(StagingSink("out")), [edge(0, Partitioning.REBALANCE)]),
        ],
        max_queued_batches=4,
    )
    job.find("sink").paused = True
    job.run()
    source = job.find("src")

    assert source.task.metrics().records_out == 4
    assert job.step(source) is ProgressKind.BACKPRESSURED

    job.now_ms += 250
    job.step(source)
    job.find("sink").paused = False
    job.run_to_end()

    assert numbers() == list(range(100))
    assert source.task.metrics().backpressured_ms == 250


def test_rows_of_windows_that_cannot_fire_wait_a_moment_in_their_channel() -> None:
    """A source is 100 s ahead of another one, which is silent: the windows take no more of it for 50 ms, then all."""
    watermarks = WatermarkStrategy.for_monotonous_timestamps("k")
    source = ListSource(
        [[batch(k=[k]) for k in (1, 100_000, 101_000, 102_000)], [batch(k=[k]) for k in (2, 103_000)]], {"s1": 1}
    )
    windows = WindowProcessSpec(
        ("k",), "k", TumblingEventTimeWindows(1_000), lambda _key, _window, rows: rows, form="batches"
    )
    job = LocalJob(
        [
            Operator("src", SourceSpec(source, source.spec_splits(), watermarks), parallelism=2),
            Operator("windows", windows, [edge(0, Partitioning.HASH, ["k"])]),
            Operator("sink", SinkSpec(StagingSink("out")), [edge(1)]),
        ]
    ).run()
    task = job.find("windows")
    assert task.task.metrics().records_in == 3, "one row of each, and the one that was seen to be far ahead"
    assert job.step(task) is ProgressKind.HELD
    assert task.wake_at_ms == job.now_ms + 50

    job.advance(49)
    assert task.task.metrics().records_in == 3
    job.advance(1)
    assert task.task.metrics().records_in == 5
    assert task.task.metrics().idle_ms >= 50
    Gates.opened.add("s1")
    job.run_to_end()

    assert numbers() == [1, 2, 100_000, 101_000, 102_000, 103_000]


class Statuses(StreamOperator):
    """Writes down what it is told of idleness, and passes rows on."""

    seen: ClassVar[list[WatermarkStatus]] = []

    def open(self) -> None:
        self.seen.clear()

    def process_batch(self, rows: pa.RecordBatch, input_index: int = 0) -> None:
        self.output.emit_batch(rows)

    def process_watermark_status(self, status: WatermarkStatus) -> None:
        self.seen.append(status)


def test_a_stream_that_cannot_pass_rows_on_is_not_idle() -> None:
    """Its rows wait before it while its output has no room, for many times the idle timeout; once they have all passed,
    it is."""
    watermarks = WatermarkStrategy.for_monotonous_timestamps("k").with_idleness(100)
    job = LocalJob(
        [
            Operator("src", source_of([batch(k=[i]) for i in range(20)], s0=19)),
            Operator("watermarks", WatermarkSpec(watermarks), [edge(0, Partitioning.REBALANCE)]),
            Operator("statuses", CustomOperatorSpec(Statuses), [edge(1)]),
            Operator("sink", SinkSpec(StagingSink("out")), [edge(2, Partitioning.REBALANCE)]),
        ],
        max_queued_batches=2,
    )
    sink = job.find("sink")
    sink.paused = True
    job.run()
    for _ in range(4):
        job.advance(1_000)
        assert Statuses.seen == []
        job.step(sink)
        job.run()
        assert Statuses.seen == []

    sink.paused = False
    job.advance(99)
    assert Statuses.seen == []
    job.advance(100).advance(1)
    assert Statuses.seen == [WatermarkStatus.IDLE]


class Elements(StreamOperator):
    """Writes down how many rows it gets, and what watermarks and statuses."""

    seen: ClassVar[list[object]] = []

    def open(self) -> None:
        self.seen.clear()

    def process_batch(self, rows: pa.RecordBatch, input_index: int = 0) -> None:
        self.seen.append(rows.num_rows)

    def process_watermark(self, watermark: Watermark) -> None:
        self.seen.append(watermark.timestamp_ms)

    def process_watermark_status(self, status: WatermarkStatus) -> None:
        self.seen.append(status)


@pytest.mark.parametrize("edge_behind", [None, Partitioning.REBALANCE])
def test_an_input_is_idle_behind_the_windows_that_its_last_watermark_made_due(edge_behind: Partitioning | None) -> None:
    """All inputs are idle, the one behind the others last, and so nobody holds the watermark back: whoever is behind
    the windows would not listen to it any more."""
    watermarks = WatermarkStrategy.for_monotonous_timestamps("k").with_idleness(100)
    source = ListSource([[batch(k=[1_000])], [batch(k=[500])], [], [batch(k=[501])]], {"s0": 1, "s1": 1, "s3": 0})
    windows = WindowProcessSpec(
        ("k",), "k", TumblingEventTimeWindows(10), lambda _key, _window, rows: rows, form="batches"
    )
    job = LocalJob(
        [
            Operator("src", SourceSpec(source, source.spec_splits(), watermarks), parallelism=2),
            Operator("windows", windows, [edge(0, Partitioning.HASH, ["k"])]),
            Operator("elements", CustomOperatorSpec(Elements), [edge(1, edge_behind)]),
        ]
    ).run()
    job.advance(110)
    Gates.opened.add("s3")
    for _ in range(30):
        job.advance(10)
    assert Elements.seen == [500, 2, 999, WatermarkStatus.IDLE]


@pytest.mark.parametrize("in_the_middle", [False, True])
def test_a_watermark_that_was_due_at_a_snapshot_comes_after_a_restore(in_the_middle: bool) -> None:
    """The source has no more rows then: what is due by those before it does not wait for one."""
    watermarks = WatermarkStrategy.for_monotonous_timestamps("k")
    source = ListSource([[batch(k=[1]), batch(k=[500])]], {"s0": 2})
    middle = [Operator("watermarks", WatermarkSpec(watermarks), [edge(0, Partitioning.REBALANCE)])]
    windows = WindowProcessSpec(
        ("k",), "k", TumblingEventTimeWindows(10), lambda _key, _window, rows: rows, form="batches"
    )
    operators = [
        Operator("src", SourceSpec(source, source.spec_splits(), None if in_the_middle else watermarks)),
        *(middle if in_the_middle else []),
        Operator("windows", windows, [edge(int(in_the_middle), Partitioning.HASH, ["k"])]),
        Operator("elements", CustomOperatorSpec(Elements), [edge(1 + in_the_middle)]),
    ]
    settings = {"execution.checkpointing.interval": "100 ms", "pipeline.auto-watermark-interval": "200 ms"}
    completed = LocalJob(operators, settings).run().checkpoint()
    assert Elements.seen == [0], "the second watermark is not due yet"

    LocalJob(operators, settings, restored=completed, attempt=1).run().advance(199).advance(1)
    assert Elements.seen == [1, 499]


def test_time_is_accounted_by_what_the_last_step_answered() -> None:
    """Idle while the source has nothing; the counters say what went through."""
    job = LocalJob(
        [
            Operator("src", source_of([batch(k=[1]), batch(k=[2])], s0=1)),
            Operator("sink", SinkSpec(StagingSink("out")), [edge(0)]),
        ]
    )
    job.run()
    job.advance(40)
    Gates.opened.add("s0")
    job.find("src").world.awake = True
    job.run_to_end()
    metrics = job.find("src").task.metrics()

    assert (metrics.idle_ms, metrics.records_in) == (40, 2)


def test_cancel_ends_a_running_task() -> None:
    """CANCELED is told once, and consumers of the partition learn that it is gone."""
    job = LocalJob(
        [
            Operator("src", source_of([batch(k=[1]), batch(k=[2])], s0=1)),
            Operator("sink", SinkSpec(StagingSink("out")), [edge(0, Partitioning.REBALANCE)]),
        ]
    ).run()
    source, sink = job.find("src"), job.find("sink")
    source.task.cancel()
    source.task.cancel()
    job.run()

    assert state_names(source) == ["INITIALIZING", "RUNNING", "CANCELED"]
    assert sink.state is ExecutionState.FAILED
    assert sink.failure.blame is Blame.EXTERNAL
    assert "subtask 1, on TaskManager" in sink.failure.summary


def test_cancel_before_the_first_step_restores_nothing() -> None:
    """A task that is cancelled before it began never opens its operators."""
    job = LocalJob([Operator("src", CustomOperatorSpec(Explodes, {"where": "open"}))])
    job.tasks[0].task.cancel()
    job.run()

    assert state_names(job.tasks[0]) == ["INITIALIZING", "CANCELED"]


class Interrupted(StreamOperator):
    """Waits for something outside, until it is told that its task is to end."""

    meanwhile: ClassVar[list[Callable[[], None]]] = []
    is_told = False

    def process_batch(self, batch: pa.RecordBatch, input_index: int = 0) -> None:
        for end in self.meanwhile:
            end()
        if self.is_told:
            raise TimeoutError("the wait was ended")

    def cancel(self) -> None:
        self.is_told = True


@pytest.mark.parametrize("is_cancelled", [True, False])
def test_what_is_raised_because_a_task_is_to_end_is_no_failure_of_its_own(monkeypatch, is_cancelled: bool) -> None:
    """It was said in place of the cause, and as a warning for each task that was cancelled while it waited."""
    job = LocalJob(
        [Operator("src", source_of([batch(k=[1])])), Operator("waits", CustomOperatorSpec(Interrupted), [edge(0)])]
    )
    task = job.tasks[0].task
    lost = SerializedFailure("slot 0 was freed", Blame.EXTERNAL)
    monkeypatch.setattr(Interrupted, "meanwhile", [task.cancel if is_cancelled else lambda: task.fail_externally(lost)])
    job.run()

    assert job.tasks[0].state is (ExecutionState.CANCELED if is_cancelled else ExecutionState.FAILED)
    assert job.tasks[0].failure == (None if is_cancelled else lost)


class Explodes(StreamOperator):
    """Raises where it is told to."""

    def __init__(self, where: str) -> None:
        self.where = where

    def open(self) -> None:
        if self.where == "open":
            raise OSError("no such host")

    def process_batch(self, batch: pa.RecordBatch, input_index: int = 0) -> None:
        if self.where == "process":
            raise InvariantViolation("two and two is five")
        self.output.emit_batch(batch)

    def close(self) -> None:
        if self.where == "close":
            raise OSError("cannot flush")


def divide(row: dict) -> dict:
    return {"k": 10 // row["k"]}


def test_a_users_exception_says_which_operator_and_which_row() -> None:
    """Uid, type, traceback and position reach the failure; the rest of the chain is not blamed."""
    job = LocalJob(
        [
            Operator("src", source_of([batch(k=[1, 2])], [batch(k=[5, 0, 1])])),
            Operator("pass", MapBatchesSpec(lambda b: b), [edge(0, Partitioning.REBALANCE)]),
            Operator("divide", MapRowsSpec(divide), [edge(1)]),
            Operator("sink", SinkSpec(StagingSink("out")), [edge(2)]),
        ]
    ).run()
    failed = job.find("divide")

    assert failed.state is ExecutionState.FAILED
    failure = failed.failure
    assert failure.operator_uid == "divide"
    assert failure.summary == (
        "operator 'divide' (uid 'divide') failed in process_batch: ZeroDivisionError: integer division or modulo by zero"
    )
    assert failure.position == "input 0, channel 0, batch 2 (rows 2 to 4 of this attempt), row 1 of the batch"
    assert 'return {"k": 10 // row["k"]}' in failure.traceback
    assert (failure.blame, failure.retryable) == (Blame.USER, True)
    assert numbers() == []


def test_a_failure_is_reported_before_consumers_see_that_the_results_are_gone(monkeypatch) -> None:
    """A consumer fails too, on another thread: what it says must not stand before the cause."""
    job = LocalJob(
        [
            Operator("src", source_of([batch(k=[0])])),
            Operator("divide", MapRowsSpec(divide), [edge(0, Partitioning.REBALANCE)]),
            Operator("sink", SinkSpec(StagingSink("out")), [edge(1, Partitioning.REBALANCE)]),
        ]
    )
    failing, seen = job.find("divide"), []
    release = failing.world.exchange.release_result_partition

    def note_and_release(producer: str, edge_id: str) -> None:
        if producer == str(failing.descriptor.attempt_id):
            seen.append(failing.world.states[-1].state)
        release(producer, edge_id)

    monkeypatch.setattr(failing.world.exchange, "release_result_partition", note_and_release)
    job.run()
    assert [ExecutionState.FAILED] == seen


def leave(_batch: pa.RecordBatch) -> pa.RecordBatch:
    sys.exit(3)


def test_a_function_that_calls_exit_fails_its_task_by_name() -> None:
    """It is the user's failure as any other, and not the end of the TaskManager."""
    job = LocalJob(
        [
            Operator("src", source_of([batch(k=[1])])),
            Operator("leave", MapBatchesSpec(leave), [edge(0)]),
        ]
    ).run()
    failure = job.find("leave").failure

    assert (failure.operator_uid, failure.blame) == ("leave", Blame.USER)
    assert failure.summary == "operator 'leave' (uid 'leave') failed in process_batch: SystemExit: 3"


class PanicException(BaseException):
    """What a library in Rust, such as Polars, raises, which is no Exception."""


class Timeout(BaseException):
    """What gevent and others raise, so that no `except Exception` takes it for an error."""


@pytest.mark.parametrize(
    "raised", [PanicException("index 3"), CancelledError("index 3"), Timeout("index 3"), GeneratorExit("index 3")]
)
def test_what_is_no_exception_and_comes_from_a_function_fails_its_task_by_name(raised: BaseException) -> None:
    """A panic of Polars named no operator, blamed Snapline, and went through a local run as it was."""

    def panic(_batch: pa.RecordBatch) -> pa.RecordBatch:
        raise raised

    job = LocalJob([Operator("src", source_of([batch(k=[1])])), Operator("panic", MapBatchesSpec(panic), [edge(0)])])
    failure = job.run().find("panic").failure

    assert (failure.operator_uid, failure.blame) == ("panic", Blame.USER)
    assert (
        failure.summary == f"operator 'panic' (uid 'panic') failed in process_batch: {type(raised).__name__}: index 3"
    )


def test_an_operator_that_cannot_open_fails_its_task() -> None:
    """Before RUNNING is ever told."""
    job = LocalJob(
        [
            Operator("src", source_of([batch(k=[1])])),
            Operator("bad", CustomOperatorSpec(Explodes, {"where": "open"}), [edge(0)]),
        ]
    ).run()

    assert state_names(job.tasks[0]) == ["INITIALIZING", "FAILED"]
    assert job.tasks[0].failure.summary == "operator 'bad' (uid 'bad') failed in open: OSError: no such host"


def test_an_operator_that_cannot_close_fails_a_task_that_would_have_finished() -> None:
    """What close flushes may be data."""
    job = LocalJob(
        [
            Operator("src", source_of([batch(k=[1])])),
            Operator("bad", CustomOperatorSpec(Explodes, {"where": "close"}), [edge(0)]),
        ]
    ).run()

    assert job.tasks[0].state is ExecutionState.FAILED
    assert "cannot flush" in job.tasks[0].failure.summary


class Exits(StreamOperator):
    """Calls exit when it is closed, and notes how often that was."""

    closed: ClassVar[list[str]] = []

    def __init__(self, name: str) -> None:
        self.name = name

    def process_batch(self, batch: pa.RecordBatch, input_index: int = 0) -> None:
        self.output.emit_batch(batch)

    def close(self) -> None:
        self.closed.append(self.name)
        sys.exit(3)


def test_operators_that_call_exit_when_they_are_closed_are_named_and_closed_once() -> None:
    """Snapline was blamed, and operators that had been closed were closed again."""
    job = LocalJob(
        [
            Operator("src", source_of([batch(k=[1])])),
            Operator("one", CustomOperatorSpec(Exits, {"name": "one"}), [edge(0)]),
            Operator("two", CustomOperatorSpec(Exits, {"name": "two"}), [edge(1)]),
        ]
    ).run()

    assert ["one", "two"] == Exits.closed
    assert (job.tasks[0].state, job.tasks[0].failure.blame) == (ExecutionState.FAILED, Blame.USER)
    assert job.tasks[0].failure.summary == "operator 'one' (uid 'one') failed in close: SystemExit: 3"


def test_a_function_that_cannot_be_unpickled_is_not_retried() -> None:
    """The message names the operator and the way out."""
    job = LocalJob([Operator("src", source_of([batch(k=[1])]))])
    descriptor = job.tasks[0].descriptor
    broken = type(descriptor.operators[0])(descriptor.operators[0].operator_id, "src", "src", b"no pickle")
    object.__setattr__(descriptor, "operators", (broken,))
    job.run()
    failure = job.tasks[0].failure

    assert (failure.retryable, failure.blame) == (False, Blame.USER)
    assert "operator 'src' cannot be unpickled on the TaskManager" in failure.summary


def test_a_broken_invariant_stops_the_shell() -> None:
    """It is not turned into a failure of the user's; the shell abandons the task."""
    job = LocalJob(
        [
            Operator("src", source_of([batch(k=[1])])),
            Operator("bad", CustomOperatorSpec(Explodes, {"where": "process"}), [edge(0)]),
        ]
    )
    running = job.tasks[0]
    raised: BaseException | None = None
    for _ in range(10):
        try:
            job.step(running)
        except InvariantViolation as error:
            raised = error
            break
    running.task.abandon(raised)

    assert running.state is ExecutionState.FAILED
    assert (running.failure.blame, running.failure.error_type) == (Blame.INTERNAL, "InvariantViolation")


def test_fail_externally_reports_the_failure_it_was_given() -> None:
    """The JobMaster or the TaskManager has found what is wrong."""
    job = LocalJob([Operator("src", source_of([batch(k=[1]), batch(k=[2])], s0=1))]).run()
    failure = SerializedFailure("the slot was taken away", Blame.EXTERNAL)
    job.tasks[0].task.fail_externally(failure)
    job.run()

    assert job.tasks[0].failure == failure


def test_a_finished_partition_can_still_be_read() -> None:
    """The producer is over; what it left in its queue is not lost."""
    job = LocalJob(
        [
            Operator("src", source_of([batch(k=[1]), batch(k=[2])])),
            Operator("sink", SinkSpec(StagingSink("out")), [edge(0, Partitioning.REBALANCE)]),
        ]
    )
    job.find("sink").paused = True
    job.run()
    assert job.find("src").state is ExecutionState.FINISHED

    job.find("sink").paused = False
    job.run_to_end()

    assert numbers() == [1, 2]
    assert job.exchange.subpartition(str(job.find("src").descriptor.attempt_id), job.graph.edges[0].edge_id, 0) is None


def test_data_for_operators_only() -> None:
    """The end of a partition is no business of an operator that has ended; nothing is told after the end."""
    job = LocalJob([Operator("src", source_of([batch(k=[1])]))]).run_to_end()
    job.tasks[0].notify_complete(1)

    assert job.tasks[0].task.step(job.now_ms).kind is ProgressKind.FINISHED
    assert isinstance(EndOfPartition(), EndOfPartition)


class NeverAnswers(AsyncFunction):
    """Its requests all time out."""

    async def async_invoke(self, row: Row) -> list[Row]:
        raise NotImplementedError

    def timeout(self, row: Row) -> list[Row]:
        return [{"k": -row["k"]}]


class Unanswered:
    """AsyncCalls of a database that is gone."""

    has_done = False

    def __init__(self, function: AsyncFunction, wake_up: Callable[[], None]) -> None: ...
    def submit(self, number: int, row: Row) -> None: ...
    def take_done(self) -> list[tuple[int, Any, BaseException | None]]:
        return []

    def forget(self, number: int) -> None: ...
    def close(self) -> None: ...


@pytest.mark.parametrize("capacity", [1, 2, 5])
def test_requests_time_out_also_while_rows_wait_for_room(monkeypatch, capacity) -> None:
    """A task that can do nothing but wait for answers rests, and its timers are due all the same: also at the end of
    its input."""
    monkeypatch.setattr("snapline.taskmanager.threads.async_calls.EventLoopCalls", Unanswered)
    job = LocalJob(
        [
            Operator("src", source_of([batch(k=[1, 2, 3, 4])])),
            Operator("ask", AsyncSpec(NeverAnswers(), capacity, 100), [edge(0)]),
            Operator("sink", SinkSpec(StagingSink("out")), [edge(1)]),
        ]
    )
    begin_ms = job.now_ms
    job.run()
    assert [r.wake_at_ms for r in job.tasks] == [begin_ms + 100]
    job.run_to_end()
    assert numbers() == [-4, -3, -2, -1]
    metrics = job.tasks[0].task.metrics()
    assert (metrics.busy_ms, metrics.idle_ms) == (job.now_ms - begin_ms, 0)
    assert job.now_ms - begin_ms == -(-4 // capacity) * 100


def test_requests_that_a_savepoint_holds_are_not_answered_behind_it(monkeypatch) -> None:
    """They are made again when the job goes on from there, so that their rows would come twice."""
    monkeypatch.setattr("snapline.taskmanager.threads.async_calls.EventLoopCalls", Unanswered)
    job = LocalJob(
        [
            Operator("src", source_of([batch(k=[1, 2, 3, 4]), batch(k=[5])], s0=1)),
            Operator("ask", AsyncSpec(NeverAnswers(), 5, 100), [edge(0)]),
            Operator("sink", SinkSpec(StagingSink("out")), [edge(1, Partitioning.REBALANCE)]),
        ]
    ).run()
    savepoint = job.trigger(SnapshotType.SAVEPOINT_SUSPEND)
    job.run().advance(100)
    asks = job.find("ask")
    assert (asks.task.metrics().records_out, asks.wake_at_ms) == (0, None)

    job.complete(savepoint)
    assert {r.state for r in job.tasks} == {ExecutionState.FINISHED}


class Answering:
    """AsyncCalls that the test answers."""

    made: ClassVar[dict[str, Answering]] = {}

    def __init__(self, function: Asks, wake_up: Callable[[], None]) -> None:
        self.wake_up = wake_up
        self.open: dict[int, Row] = {}
        self.done: list[tuple[int, Any, BaseException | None]] = []
        Answering.made[function.name] = self

    @property
    def has_done(self) -> bool:
        return bool(self.done)

    def submit(self, number: int, row: Row) -> None:
        self.open[number] = row

    def answer(self, number: int) -> None:
        self.done.append((number, [self.open.pop(number)], None))
        self.wake_up()

    def take_done(self) -> list[tuple[int, Any, BaseException | None]]:
        done, self.done = self.done, []
        return done

    def forget(self, number: int) -> None:
        del self.open[number]

    def close(self) -> None:
        self.open.clear()


class Asks(NeverAnswers):
    def __init__(self, name: str) -> None:
        self.name = name


def test_a_request_that_took_too_long_waits_for_a_blocked_operator_below(monkeypatch) -> None:
    """The task rests until that one has room, and then both go on."""
    monkeypatch.setattr("snapline.taskmanager.threads.async_calls.EventLoopCalls", Answering)
    job = LocalJob(
        [
            Operator("src", source_of([batch(k=[1, 2, 3, 4])])),
            Operator("upper", AsyncSpec(Asks("upper"), 10, 100, ordered=False), [edge(0)]),
            Operator("lower", AsyncSpec(Asks("lower"), 1, 10_000), [edge(1)]),
            Operator("sink", SinkSpec(StagingSink("out")), [edge(2)]),
        ]
    ).run()
    upper, lower = Answering.made["upper"], Answering.made["lower"]
    upper.answer(0)
    upper.answer(1)
    job.run()
    assert len(lower.open) == 1  # and another row waits for room
    job.advance(200)
    assert len(upper.open) == 2
    lower.answer(0)
    job.run()
    assert not upper.open
    while lower.open:
        lower.answer(min(lower.open))
        job.run()
    job.run_to_end()
    assert numbers() == [-4, -3, 1, 2]


class Slices(StreamOperator):
    """Emits row by row, and another by the clock."""

    left: ClassVar[list[int]] = []
    fired_at_ms: ClassVar[list[int]] = []

    def open(self) -> None:
        self.left.clear()
        self.fired_at_ms.clear()
        service = self.context.processing_time
        service.register_timer(service.now_ms() + 50, lambda _: self.fired_at_ms.append(service.now_ms()))

    def process_batch(self, rows: pa.RecordBatch, input_index: int = 0) -> None:
        self.left.extend(rows.column("k").to_pylist())

    @property
    def has_pending_work(self) -> bool:
        return bool(self.left)

    def continue_work(self) -> None:
        self.output.emit_batch(batch(k=[self.left.pop(0)]))


def test_nothing_goes_on_above_an_operator_that_takes_nothing(monkeypatch) -> None:
    """Neither work that was begun, nor timers: what they emit would pile up."""
    monkeypatch.setattr("snapline.taskmanager.threads.async_calls.EventLoopCalls", Unanswered)
    job = LocalJob(
        [
            Operator("src", source_of([batch(k=[1, 2, 3, 4])])),
            Operator("slices", CustomOperatorSpec(Slices), [edge(0)]),
            Operator("ask", AsyncSpec(NeverAnswers(), 1, 100), [edge(1)]),
            Operator("sink", SinkSpec(StagingSink("out")), [edge(2)]),
        ]
    )
    begin_ms = job.now_ms
    job.run()
    assert Slices.left == [3, 4]
    job.advance(60)
    assert (Slices.left, Slices.fired_at_ms) == ([3, 4], [])
    job.run_to_end()
    assert numbers() == [-4, -3, -2, -1]
    assert Slices.fired_at_ms[0] > begin_ms + 100
