"""Push-style sources: batches, the checkpoint lock, back-pressure, the end; on a thread and turn by turn."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from snapline.dataflow.api.connector_api import InputStatus
from snapline.dataflow.api.function_contexts import SourceContext
from snapline.dataflow.api.functions import SourceFunction
from snapline.dataflow.api.watermarks import WatermarkStrategy
from snapline.dataflow.elements import Watermark, WatermarkStatus
from snapline.dataflow.graph.operator_specs import SourceFunctionSpec
from snapline.taskmanager.operators.sources import push_source_operator as push_source
from snapline.taskmanager.operators.sources.push_source_operator import PushSourceOperator
from snapline.taskmanager.threads.push_source_threads import ThreadedPushSource, TurnTakingPushSource
from tests.unit.taskmanager.operators.harness import Harness, restored_state

LIMIT = 10_000
"""Polls before a test gives up."""


class Counter(SourceFunction):
    """Emits numbers; its position is the next one."""

    def __init__(self, end: int, *, locked: bool = True) -> None:
        self.end, self.locked = end, locked
        self.position = 0
        self.running = True

    def initialize_state(self, context: Any) -> None:
        self.state = context.operator_state_store.get_list_state("position")
        for position in self.state.get():
            self.position = position

    def snapshot_state(self, context: Any) -> None:
        self.state.update([self.position])

    def run(self, context: SourceContext) -> None:
        while self.running and self.position < self.end:
            with context.get_checkpoint_lock():
                self.position += 1  # before the emission, on purpose: only the lock makes the two one
                context.collect({"k": self.position - 1})

    def cancel(self) -> None:
        self.running = False


class Threaded:
    """Waits for the thread instead of the clock."""

    def __init__(self) -> None:
        self.bell = threading.Event()
        self.runner = ThreadedPushSource("source", self.bell.set)


def drain(
    harness: Harness, bell: threading.Event | None = None, until: Callable[[], bool] = lambda: False
) -> InputStatus:
    """Poll until the end, or until the condition holds."""
    for _ in range(LIMIT):
        status = harness.operator.emit_next()
        if status is InputStatus.END_OF_INPUT or until():
            return status
        if status is InputStatus.NOTHING_AVAILABLE:
            if bell is not None and harness.operator.wake_at_ms is None:
                bell.wait(5)
                bell.clear()
            harness.time.advance(harness.time.now_ms() + 1)
    raise AssertionError("the source does not end")


def emitted(harness: Harness) -> list[int]:
    return [value for item in harness.emitted if isinstance(item, pa.RecordBatch) for value in item["k"].to_pylist()]


def test_a_function_on_a_thread_emits_everything_once() -> None:
    """Gathered into batches, in order."""
    threaded = Threaded()
    harness = Harness(PushSourceOperator(SourceFunctionSpec(Counter(20_000)), threaded.runner)).start()
    drain(harness, threaded.bell)
    harness.operator.close()

    assert emitted(harness) == list(range(20_000))
    assert len(harness.emitted) < 2_000


@pytest.mark.parametrize("threads", [True, False])
def test_a_snapshot_holds_exactly_what_was_emitted_before_it(threads: bool) -> None:
    """Whatever the function was doing: the position moves with the emission, under the lock."""
    threaded = Threaded()
    runner = threaded.runner if threads else TurnTakingPushSource("source")
    harness = Harness(PushSourceOperator(SourceFunctionSpec(Counter(50_000)), runner)).start()
    for checkpoint_id in range(1, 30):
        harness.operator.emit_next()
        written = harness.snapshot(checkpoint_id)
        before = emitted(harness)
        again = Counter(0)
        other = Threaded()
        Harness(PushSourceOperator(SourceFunctionSpec(again), other.runner)).start(restored_state([written]))
        assert again.position == len(before), f"checkpoint {checkpoint_id}"
    drain(harness, threaded.bell if threads else None)
    harness.operator.close()

    assert emitted(harness) == list(range(50_000))


def test_a_function_that_is_not_read_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """The inbox is bounded; nothing is lost when the task goes on."""
    monkeypatch.setattr(push_source, "MAX_WAITING_ROWS", 100)
    function = Counter(1_000)
    runner = TurnTakingPushSource("source")
    harness = Harness(PushSourceOperator(SourceFunctionSpec(function), runner)).start()
    harness.operator.emit_next()
    for _ in range(500):
        runner.give_turn()
    assert function.position == 100

    drain(harness)
    harness.operator.close()
    assert emitted(harness) == list(range(1_000))


def test_a_thread_that_waits_for_room_ends_with_its_task(monkeypatch: pytest.MonkeyPatch) -> None:
    """Closing does not wait for rows that nobody will read."""
    monkeypatch.setattr(push_source, "MAX_WAITING_ROWS", 10)
    threaded = Threaded()
    harness = Harness(PushSourceOperator(SourceFunctionSpec(Counter(10**9)), threaded.runner)).start()
    drain(harness, threaded.bell, until=lambda: bool(harness.emitted))
    harness.operator.cancel()
    harness.operator.close()

    assert threaded.runner.is_done


class Breaks(Counter):
    def run(self, context: SourceContext) -> None:
        context.collect({"k": 0})
        raise ConnectionError("the broker is gone")


@pytest.mark.parametrize("threads", [True, False])
def test_what_a_function_raises_fails_the_task(threads: bool) -> None:
    """After what it had emitted."""
    threaded = Threaded()
    runner = threaded.runner if threads else TurnTakingPushSource("source")
    harness = Harness(PushSourceOperator(SourceFunctionSpec(Breaks(1)), runner)).start()
    with pytest.raises(ConnectionError, match="the broker is gone"):
        drain(harness, threaded.bell if threads else None)
    harness.operator.close()

    assert emitted(harness) == [0]


class StepsAhead(Counter):
    def run(self, context: SourceContext) -> None:
        context.collect({"k": self.position})
        with context.get_checkpoint_lock():
            self.position += 2
            raise OSError("the second row cannot be read")


@pytest.mark.parametrize("take", [Harness.snapshot, lambda harness, n: harness.operator.stop_emitting(n, drain=False)])
def test_no_snapshot_has_the_position_of_a_function_that_failed_on_its_way(
    take: Callable[[Harness, int], object],
) -> None:
    """While its last rows wait for the task, a checkpoint may come: restored from it, the second row would be lost."""
    runner = TurnTakingPushSource("source")
    harness = Harness(PushSourceOperator(SourceFunctionSpec(StepsAhead(2)), runner)).start()
    harness.operator.emit_next()
    runner.join()

    with pytest.raises(OSError, match="the second row cannot be read"):
        take(harness, 1)


class Careless(Counter):
    """Goes on with the next row, whatever is raised."""

    def run(self, context: SourceContext) -> None:
        for number in ["one", 2, 3]:
            with contextlib.suppress(Exception):
                context.collect({"k": number})


def test_rows_that_fit_into_no_batch_fail_the_task_also_where_the_function_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All rows that were gathered until then were lost, and nobody knew."""
    monkeypatch.setattr(push_source, "ROWS_PER_BATCH", 2)
    harness = Harness(PushSourceOperator(SourceFunctionSpec(Careless(0)), TurnTakingPushSource("source"))).start()
    with pytest.raises(TypeError, match="k"):
        drain(harness)
    harness.operator.close()


class Watermarks(Counter):
    def run(self, context: SourceContext) -> None:
        context.collect_batch(pa.record_batch({"k": [1, 2]}))
        context.emit_watermark(2)
        context.collect({"k": 3})
        context.mark_as_temporarily_idle()
        context.mark_as_temporarily_idle()
        context.collect({"k": 4})
        context.mark_as_temporarily_idle()
        context.emit_watermark(4)


def test_watermarks_and_idleness_keep_their_place() -> None:
    """Idle until the next row or watermark: nobody listens to the watermark of who is idle."""
    harness = Harness(PushSourceOperator(SourceFunctionSpec(Watermarks(0)), TurnTakingPushSource("source"))).start()
    drain(harness)
    harness.operator.close()
    found = [item["k"].to_pylist() if isinstance(item, pa.RecordBatch) else item for item in harness.emitted]

    idle, active = WatermarkStatus.IDLE, WatermarkStatus.ACTIVE
    assert found == [[1, 2], Watermark(2), [3], idle, active, [4], idle, active, Watermark(4)]


class Measured(Watermarks):
    """Says a watermark that it has computed."""

    def run(self, context: SourceContext) -> None:
        context.emit_watermark(np.array([1, 7]).max())
        context.emit_watermark(8.5)  # type: ignore[arg-type]


def test_a_computed_watermark_is_a_whole_number_of_python() -> None:
    """One of NumPy cannot be written into the snapshots of keyed operators, whose checkpoints failed for ever, and one
    with a fraction cannot be sent to another process."""
    harness = Harness(PushSourceOperator(SourceFunctionSpec(Measured(0)), TurnTakingPushSource("source"))).start()
    drain(harness)
    harness.operator.close()

    assert harness.emitted == [Watermark(7), Watermark(8)]
    assert [int, int] == [type(watermark.timestamp_ms) for watermark in harness.emitted]


def test_a_strategy_makes_watermarks_of_rows() -> None:
    """As for any source."""
    spec = SourceFunctionSpec(Counter(3), WatermarkStrategy.for_monotonous_timestamps("k"))
    harness = Harness(PushSourceOperator(spec, TurnTakingPushSource("source"))).start()
    drain(harness)
    harness.operator.close()

    assert Watermark(1) in harness.emitted


def test_a_strategy_is_not_overtaken_by_watermarks_of_the_function() -> None:
    """Both were emitted, so that rows were late for windows that the strategy would have left open."""
    spec = SourceFunctionSpec(Watermarks(0), WatermarkStrategy.for_bounded_out_of_orderness("k", 1_000))
    harness = Harness(PushSourceOperator(spec, TurnTakingPushSource("source"))).start()
    drain(harness)
    harness.operator.close()

    times = [item.timestamp_ms for item in harness.emitted if isinstance(item, Watermark)]
    assert times
    assert max(times) < 0


class Tables(Counter):
    """Collects a table, as Polars makes one of a frame."""

    def run(self, context: SourceContext) -> None:
        context.collect_batch(pa.table({"k": [1, 2]}))


@pytest.mark.parametrize("schema", [None, pa.schema([("k", pa.int64())])])
def test_a_table_that_a_function_collects_is_refused(schema: pa.Schema | None) -> None:
    """It was taken for the news that the source is idle, and its rows were lost."""
    spec = SourceFunctionSpec(Tables(0), None, schema)
    harness = Harness(PushSourceOperator(spec, TurnTakingPushSource("source"))).start()
    with pytest.raises(TypeError, match=r"collect_batch takes a pyarrow.RecordBatch, not a Table"):
        drain(harness)
    harness.operator.close()


class WholeAndFractions(Counter):
    """Collects whole numbers before others, and a batch in the end that has another column."""

    def run(self, context: SourceContext) -> None:
        context.collect({"k": 1})
        context.collect_batch(pa.record_batch({"other": [0], "k": [2]}))
        context.collect({"k": 2.5})
        context.collect_batch(pa.record_batch({"other": [0]}))


def test_the_rows_of_a_function_have_the_columns_that_were_declared() -> None:
    """Types were taken from the first row, and an error about a later one asked for the schema that was there."""
    schema = pa.schema([("k", pa.float64())])
    spec = SourceFunctionSpec(WholeAndFractions(0), None, schema)
    harness = Harness(PushSourceOperator(spec, TurnTakingPushSource("source"))).start()
    with pytest.raises(TypeError, match="the function returned columns other, but schema= declares k: k missing"):
        drain(harness)
    harness.operator.close()

    assert [row["k"] for batch in harness.emitted for row in batch.to_pylist()] == [1.0, 2.0, 2.5]


class FallsSilent(Counter):
    """Collects two batches, and leaves the watermark to others."""

    def run(self, context: SourceContext) -> None:
        context.collect_batch(pa.record_batch({"k": [1]}))
        context.collect_batch(pa.record_batch({"k": [2]}))
        context.mark_as_temporarily_idle()


def test_the_watermark_of_the_last_rows_goes_before_the_source_is_idle() -> None:
    """It was not due yet, and nobody listens to who is idle."""
    spec = SourceFunctionSpec(FallsSilent(0), WatermarkStrategy.for_monotonous_timestamps("k"))
    operator = PushSourceOperator(spec, TurnTakingPushSource("source"))
    harness = Harness(operator, configuration={"pipeline.auto-watermark-interval": "200 ms"}).start()
    drain(harness)
    harness.operator.close()

    assert harness.emitted[-2:] == [Watermark(1), WatermarkStatus.IDLE]


class Again(Counter):
    """Collects one row again and again, with another number each time."""

    def run(self, context: SourceContext) -> None:
        row = {"k": 0}
        for row["k"] in range(3):
            context.collect(row)


def test_a_row_that_is_collected_again_is_taken_as_it_is_each_time() -> None:
    """All were the last one that it had been."""
    harness = Harness(PushSourceOperator(SourceFunctionSpec(Again(0)), TurnTakingPushSource("source"))).start()
    drain(harness)
    harness.operator.close()
    assert emitted(harness) == [0, 1, 2]


class Late(SourceFunction):
    """Collects a row, and another when it is told."""

    def __init__(self) -> None:
        self.go, self.collected = threading.Semaphore(0), threading.Semaphore(0)

    def run(self, context: SourceContext) -> None:
        for number in range(2):
            self.go.acquire()
            context.collect({"k": number})
            self.collected.release()
        self.go.acquire()

    def cancel(self) -> None:
        self.go.release(3)

    def collect(self) -> None:
        self.go.release()
        assert self.collected.acquire(timeout=5)


def test_a_source_whose_rows_wait_for_more_is_not_idle() -> None:
    """They came while the task was busy for longer than the idle timeout, and do not fill a batch."""
    function = Late()
    spec = SourceFunctionSpec(function, WatermarkStrategy.for_monotonous_timestamps("k").with_idleness(500))
    harness = Harness(PushSourceOperator(spec, Threaded().runner)).start()
    harness.operator.emit_next()
    function.collect()
    drain(harness, until=lambda: bool(harness.emitted))
    began_ms = harness.time.now_ms()

    function.collect()
    harness.time.advance(began_ms + 1_000)
    drain(harness, until=lambda: len(emitted(harness)) == 2)
    harness.operator.cancel()
    harness.operator.close()

    assert WatermarkStatus.IDLE not in harness.emitted


def test_a_source_that_is_stopped_for_a_savepoint_emits_what_its_position_covers() -> None:
    """And nothing after it; the snapshot is that of the stop."""
    runner = TurnTakingPushSource("source")
    harness = Harness(PushSourceOperator(SourceFunctionSpec(Counter(1_000_000)), runner)).start()
    for _ in range(20):
        harness.operator.emit_next()
    harness.operator.stop_emitting(9, drain=False)
    before = emitted(harness)
    written = harness.snapshot(9)
    again = Counter(0)
    Harness(PushSourceOperator(SourceFunctionSpec(again), TurnTakingPushSource("other"))).start(
        restored_state([written])
    )
    harness.operator.close()

    assert emitted(harness) == before
    assert again.position == len(before)
    assert runner.is_done


def test_a_drained_source_is_not_run_again_in_its_job() -> None:
    """It was stopped for good, and the job failed before all of its tasks had ended."""
    harness = Harness(PushSourceOperator(SourceFunctionSpec(Counter(1_000)), TurnTakingPushSource("source"))).start()
    for _ in range(20):
        harness.operator.emit_next()
    harness.operator.stop_emitting(9, drain=True)
    written = harness.snapshot(9)
    harness.operator.close()
    runner = TurnTakingPushSource("again")
    again = Harness(PushSourceOperator(SourceFunctionSpec(Counter(1_000)), runner)).start(restored_state([written]))

    assert again.operator.emit_next() is InputStatus.END_OF_INPUT
    assert again.emitted == []
    assert again.snapshot(10).lists == written.lists


def test_turns_repeat_exactly() -> None:
    """Two runs cut the stream into the same batches at the same polls."""

    def run() -> list[list[int]]:
        harness = Harness(
            PushSourceOperator(SourceFunctionSpec(Counter(9_000)), TurnTakingPushSource("source"))
        ).start()
        drain(harness)
        harness.operator.close()
        return [item["k"].to_pylist() for item in harness.emitted]

    assert run() == run()


class FailsToCancel(Counter):
    def cancel(self) -> None:
        super().cancel()
        raise AttributeError("there is no connection to close")


@pytest.mark.parametrize("threads", [True, False])
def test_a_cancel_that_raises_is_reported_and_ends_its_function(threads: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who cancels a task is the actor of its TaskManager, which would break down, and all other tasks with it."""
    reported: list[str] = []
    told = threading.Event()

    def report(what: threading.ExceptHookArgs) -> None:
        reported.append(str(what.exc_value))
        told.set()

    monkeypatch.setattr(threading, "excepthook", report)
    threaded = Threaded()
    runner = threaded.runner if threads else TurnTakingPushSource("source")
    harness = Harness(PushSourceOperator(SourceFunctionSpec(FailsToCancel(10**9)), runner)).start()
    drain(harness, threaded.bell if threads else None, until=lambda: bool(harness.emitted))
    harness.operator.cancel()
    assert told.wait(5)
    harness.operator.close()

    assert set(reported) == {"there is no connection to close"}
    assert runner.is_done


class CancelsUnderTheLock(Counter):
    def run(self, context: SourceContext) -> None:
        self.context = context
        super().run(context)

    def cancel(self) -> None:
        with self.context.get_checkpoint_lock():
            super().cancel()


def test_nobody_waits_for_the_cancel_of_a_function(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may wait for a server, or for room before the lock, which nobody makes any more. The actor that cancels has
    heartbeats to answer."""
    monkeypatch.setattr(push_source, "MAX_WAITING_ROWS", 10)
    threaded = Threaded()
    function = CancelsUnderTheLock(10**9)
    harness = Harness(PushSourceOperator(SourceFunctionSpec(function), threaded.runner)).start()
    harness.operator.emit_next()
    while function.position < 10:
        assert threaded.bell.wait(5)
    actor = threading.Thread(target=harness.operator.cancel, daemon=True)
    actor.start()
    actor.join(5)

    assert not actor.is_alive()
    harness.operator.close()
    assert threaded.runner.is_done


class HangsUp(Counter):
    def run(self, context: SourceContext) -> None:
        super().run(context)
        raise ConnectionError("the connection was closed")


@pytest.mark.parametrize("threads", [True, False])
@pytest.mark.parametrize("function", [Counter, HangsUp])
def test_the_end_of_a_cancelled_function_is_not_that_of_its_rows(threads: bool, function: type[Counter]) -> None:
    """It comes before the task hears that it is cancelled. The last watermark would fire windows that are not full."""
    threaded = Threaded()
    runner = threaded.runner if threads else TurnTakingPushSource("source")
    harness = Harness(PushSourceOperator(SourceFunctionSpec(function(10**9)), runner)).start()
    drain(harness, threaded.bell if threads else None, until=lambda: bool(harness.emitted))
    harness.operator.cancel()
    runner.join()
    assert runner.is_done

    while (status := harness.operator.emit_next()) is InputStatus.MORE_AVAILABLE:
        pass
    harness.operator.close()
    assert status is InputStatus.NOTHING_AVAILABLE


class SaysTimes(Counter):
    """Says how far time has come, as it is told."""

    def __init__(self, said: Any) -> None:
        super().__init__(0)
        self.said = said

    def run(self, context: SourceContext) -> None:
        context.emit_watermark(self.said)


def test_a_watermark_of_the_clock_is_whole_milliseconds() -> None:
    """That of `time.time() * 1000` could not be sent, nor could the heartbeats of the TaskManager that it came to."""
    spec = SourceFunctionSpec(SaysTimes(1_700_000_000_000.75))
    harness = Harness(PushSourceOperator(spec, TurnTakingPushSource("source"))).start()
    drain(harness)
    harness.operator.close()
    (watermark,) = harness.emitted
    assert repr(watermark) == "Watermark(timestamp_ms=1700000000000)"


@pytest.mark.parametrize("said", [None, float("nan"), "soon", 2**70])
def test_what_is_no_watermark_is_refused_where_it_is_said(said: Any) -> None:
    """Whoever it came to failed, or the whole TaskManager."""
    harness = Harness(PushSourceOperator(SourceFunctionSpec(SaysTimes(said)), TurnTakingPushSource("source"))).start()
    with pytest.raises(ValueError, match="a watermark is whole milliseconds since the epoch, in 64 bits, got "):
        drain(harness)
    harness.operator.close()
