"""Results before a window is over: by count, by the clock, by the watermark and when no rows come; purged or not, and
what is not in a result twice or never."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

import snapline as sl
from snapline.dataflow.api.batch_aggregates import HeldAggregate
from snapline.dataflow.api.triggers import EarlyTrigger
from snapline.dataflow.api.windows import Aggregate, WindowAssigner
from snapline.dataflow.elements import MAX_WATERMARK_MS
from snapline.dataflow.errors import InvalidArgument, JobDefinitionError
from snapline.dataflow.graph.operator_specs import WindowAggregateSpec
from snapline.taskmanager.operators.windows.window_factory import create_window_operator
from tests.unit.taskmanager.operators.driving import ms
from tests.unit.taskmanager.operators.harness import Harness, restored_state

pytestmark = pytest.mark.usefixtures("state_backend")
TUMBLING, SESSIONS = sl.TumblingEventTimeWindows(100), sl.EventTimeSessionWindows(50)


def operator(assigner: WindowAssigner, trigger: EarlyTrigger | None = None, lateness_ms: int = 0) -> Harness:
    asked = (Aggregate("n", "count"),)
    spec = WindowAggregateSpec(("k",), "t", assigner, asked, allowed_lateness_ms=lateness_ms, early_trigger=trigger)
    return Harness(create_window_operator(spec))


def rows(*times: int, key: str = "a") -> pa.RecordBatch:
    return pa.record_batch({"k": [key] * len(times), "t": list(times)})


def counts(harness: Harness) -> list[int]:
    """Of all results since the last call."""
    return [row["n"] for row in harness.work().rows()]


@pytest.mark.parametrize("assigner", [TUMBLING, SESSIONS])
def test_by_count(assigner: WindowAssigner) -> None:
    """After each batch that brings enough rows, and all at the end; the count of rows goes through a snapshot."""
    harness = operator(assigner, sl.CountTrigger(3)).start().process(rows(1, 2))
    assert counts(harness) == []
    again = operator(assigner, sl.CountTrigger(3)).start(restored_state([harness.snapshot()]))
    assert counts(again.process(rows(3))) == [3]
    assert counts(again.process(rows(4, 5))) == []
    assert counts(again.watermark(MAX_WATERMARK_MS)) == [5]


@pytest.mark.parametrize("assigner", [TUMBLING, SESSIONS, None])
def test_what_the_watermark_made_fire_does_not_come_again_after_a_restore(assigner: WindowAssigner | None) -> None:
    """Wherever the snapshot is taken, the results are those of a run without one; at the end as well, where the last
    watermark comes again."""
    trigger = sl.ContinuousEventTimeTrigger(10)

    def make() -> Harness:
        return operator(sl.GlobalWindows(trigger)) if assigner is None else operator(assigner, trigger)

    def results(restored_after: int | None) -> list[int]:
        harness, found = make().start(), list[int]()
        for step, watermark in enumerate((15, 25, 35, MAX_WATERMARK_MS)):
            if step % 2 == 0:
                harness.process(rows(step * 10 + 6, step * 10 + 7))
            found += counts(harness.watermark(watermark))
            if step == restored_after:
                harness = make().start(restored_state([harness.snapshot()]))
        return found + counts(harness.watermark(MAX_WATERMARK_MS))

    assert [results(step) for step in range(4)] == [results(None)] * 4


@pytest.mark.parametrize("assigner", [TUMBLING, SESSIONS, sl.GlobalWindows(sl.ContinuousEventTimeTrigger(10))])
def test_an_incremental_checkpoint_holds_what_the_watermark_made_fire(assigner: WindowAssigner) -> None:
    """The job that goes on from it does not say once more what was said before it."""
    trigger = None if isinstance(assigner, sl.GlobalWindows) else sl.ContinuousEventTimeTrigger(10)
    incremental = {"execution.checkpointing.incremental": "true"}
    harness = Harness(operator(assigner, trigger).operator, configuration=incremental).start()
    harness.process(rows(6, 7)).checkpoint(1)
    assert counts(harness.watermark(15)) == [2]
    files = restored_state([harness.snapshot(2)])
    again = Harness(operator(assigner, trigger).operator, configuration=incremental).start(files)
    assert counts(again.watermark(25)) == []
    assert counts(again.process(rows(26)).watermark(35)) == [3]


def test_a_trigger_of_the_watermark_may_be_added() -> None:
    """The rows of a snapshot that does not know what has fired are said with those that come."""
    written = operator(TUMBLING).start().process(rows(1, 2)).snapshot()
    added = operator(TUMBLING, sl.ContinuousEventTimeTrigger(10)).start(restored_state([written]))
    assert counts(added.process(rows(3)).watermark(15)) == [3]
    assert counts(added.watermark(25)) == []


@pytest.mark.parametrize("purges", [False, True])
def test_a_count_window_that_holds_more_rows_than_it_now_takes_fires_with_the_next(purges: bool) -> None:
    """They waited for a larger window; those of a smaller one go on waiting."""
    harness = operator(sl.GlobalWindows(sl.CountTrigger(5, purge=purges))).start().process(rows(1, 2, 3, 4))
    harness.process(rows(1, key="b"))
    files = restored_state([harness.snapshot()])
    smaller = operator(sl.GlobalWindows(sl.CountTrigger(2, purge=purges))).start(files)
    assert counts(smaller.process(rows(5))) == [5]
    assert counts(smaller.process(rows(6))) == []
    assert counts(smaller.process(rows(7))) == [2 if purges else 7]
    assert counts(smaller.process(rows(2, key="b"))) == [2]
    larger = operator(sl.GlobalWindows(sl.CountTrigger(6, purge=purges))).start(files)
    assert counts(larger.process(rows(5, 6))) == [6]


@pytest.mark.parametrize("assigner", [TUMBLING, SESSIONS])
@pytest.mark.parametrize("trigger", [sl.CountTrigger(2, purge=True), sl.PurgingTrigger(sl.CountTrigger(2))])
def test_purged_by_count(assigner: WindowAssigner, trigger: EarlyTrigger) -> None:
    """Each row is in one result, and a window that was emptied says nothing at its end."""
    harness = operator(assigner, trigger).start()
    assert counts(harness.process(rows(1, 2))) == [2]
    assert counts(harness.process(rows(3, 4, 5))) == [3]
    assert counts(harness.process(rows(6))) == []
    assert counts(harness.watermark(MAX_WATERMARK_MS)) == [1]
    emptied = operator(assigner, trigger).start().process(rows(1, 2))
    assert counts(emptied) == [2]
    assert counts(emptied.watermark(MAX_WATERMARK_MS)) == []


@pytest.mark.parametrize("assigner", [TUMBLING, SESSIONS])
@pytest.mark.parametrize("trigger", [sl.CountTrigger(9, purge=True), sl.PurgingTrigger(sl.CountTrigger(9))])
def test_what_comes_late_to_a_purged_window_is_in_a_result_of_its_own(
    assigner: WindowAssigner, trigger: EarlyTrigger
) -> None:
    """The rows of the results before came with it again, and once more with the next one."""
    harness = operator(assigner, trigger, 1_000).start().process(rows(1, 2))
    assert counts(harness.watermark(150)) == [2]
    assert counts(harness.process(rows(3))) == [1]
    again = operator(assigner, trigger, 1_000).start(restored_state([harness.snapshot()]))
    assert counts(again.process(rows(4, 5))) == [2]
    assert sorted(counts(again.process(rows(6, 151)).watermark(MAX_WATERMARK_MS))) == [1, 1]
    unpurged = operator(assigner, sl.CountTrigger(9), 1_000).start().process(rows(1, 2))
    assert counts(unpurged.watermark(150).process(rows(3))) == [2, 3]


def test_rows_of_a_result_at_the_end_do_not_count_again() -> None:
    """A session that a late row extends is not over any more: only what came since its result makes it fire."""
    harness = operator(SESSIONS, sl.CountTrigger(3), 1_000).start().process(rows(1, 2))
    assert counts(harness.watermark(60)) == [2]
    again = operator(SESSIONS, sl.CountTrigger(3), 1_000).start(restored_state([harness.snapshot()]))
    assert counts(again.process(rows(40))) == []
    assert counts(again.process(rows(41, 42))) == [5]
    late = operator(SESSIONS, sl.CountTrigger(3), 1_000).start().watermark(60).process(rows(1, 2))
    assert counts(late) == [2]
    assert counts(late.process(rows(3, 40))) == []
    assert counts(late.process(rows(41))) == [5]


@pytest.mark.parametrize("assigner", [TUMBLING, SESSIONS])
@pytest.mark.parametrize("purges", [False, True])
def test_by_the_clock(assigner: WindowAssigner, purges: bool) -> None:
    """At multiples of the interval, windows with new rows; after a restore, too."""
    plain = sl.ContinuousProcessingTimeTrigger(10)
    trigger = sl.PurgingTrigger(plain) if purges else plain
    harness = operator(assigner, trigger).start().advance(1_003).process(rows(1, 2))
    assert counts(harness.advance(1_009)) == []
    assert counts(harness.advance(1_010)) == [2]
    assert counts(harness.advance(1_030)) == []
    harness.process(rows(3))
    again = operator(assigner, trigger)
    again.time.advance(1_032)
    again.start(restored_state([harness.snapshot()]))
    again.process(rows(4))  # on a backend that keeps few keys in memory, a row brings the key back
    assert counts(again.advance(1_040)) == [2 if purges else 4]
    assert counts(again.watermark(MAX_WATERMARK_MS)) == ([] if purges else [4])


def test_by_silence() -> None:
    """When no row has come for the timeout, once."""
    harness = operator(TUMBLING, sl.ProcessingTimeoutTrigger(20)).start().advance(1_000).process(rows(1))
    harness.advance(1_015).process(rows(2))
    assert counts(harness.advance(1_034)) == []
    assert counts(harness.advance(1_035)) == [2]
    assert counts(harness.advance(2_000)) == []
    assert counts(harness.watermark(MAX_WATERMARK_MS)) == [2]


def test_by_event_time() -> None:
    """When the watermark passes a multiple of the interval, windows with new rows that are not over."""
    harness = operator(TUMBLING, sl.ContinuousEventTimeTrigger(30)).start().watermark(5).process(rows(10, 20))
    assert counts(harness.watermark(28)) == []
    assert counts(harness.watermark(29)) == [2]
    assert counts(harness.watermark(61)) == []
    assert counts(harness.process(rows(70)).watermark(95)) == [3]
    assert counts(harness.watermark(MAX_WATERMARK_MS)) == [3]


@pytest.mark.parametrize("assigner", [TUMBLING, SESSIONS, None])
def test_the_first_watermark_passes_what_lies_behind_the_rows_so_far(assigner: WindowAssigner | None) -> None:
    """It rises from the beginning of all time, and yet each job began with a result of the very first rows."""
    trigger = sl.ContinuousEventTimeTrigger(30)
    harness = operator(sl.GlobalWindows(trigger)) if assigner is None else operator(assigner, trigger)
    assert counts(harness.start().process(rows(80, 72)).watermark(65)) == []
    assert counts(harness.process(rows(85)).watermark(88)) == []
    assert counts(harness.watermark(89)) == [3]


@pytest.mark.parametrize("assigner", [TUMBLING, SESSIONS, None])
def test_the_first_watermark_may_pass_a_multiple(assigner: WindowAssigner | None) -> None:
    """Rows that were far behind it are said with it; those of a restored operator are, too, for it does not know."""
    trigger = sl.ContinuousEventTimeTrigger(10)

    def make() -> Harness:
        return operator(sl.GlobalWindows(trigger)) if assigner is None else operator(assigner, trigger)

    assert counts(make().start().process(rows(20, 12)).watermark(25)) == [2]
    written = make().start().process(rows(12)).snapshot()
    assert counts(make().start(restored_state([written])).process(rows(21)).watermark(25)) == [2]


@pytest.mark.parametrize("purges", [False, True])
def test_windows_without_an_end(purges: bool) -> None:
    """They fire by their trigger only; what it has not fired never comes out."""
    plain = sl.ContinuousProcessingTimeTrigger(10)
    windows = sl.GlobalWindows(sl.PurgingTrigger(plain) if purges else plain)
    harness = operator(windows).start().advance(1_001).process(rows(1, 2)).process(rows(3, key="b"))
    assert sorted(counts(harness.advance(1_010))) == [1, 2]
    again = operator(windows)
    again.time.advance(1_011)
    again.start(restored_state([harness.process(rows(4)).snapshot()])).process(rows(5))
    assert max(counts(again.advance(1_020))) == (2 if purges else 4)
    again.process(rows(6)).operator.finish()
    assert counts(again.watermark(MAX_WATERMARK_MS)) == []


def test_sessions_of_processing_time() -> None:
    """A key's rows until the clock has gone on by the gap without one; a snapshot keeps what is open, and the end of
    the input closes it."""
    windows = sl.ProcessingTimeSessionWindows(32)
    harness = operator(windows).start().advance(1_000).process(rows(0)).advance(1_020).process(rows(0))
    assert counts(harness.advance(1_051)) == []
    found = harness.advance(1_060).work().rows()
    assert [(row["k"], ms(row["window_start"]), ms(row["window_end"]), row["n"]) for row in found] == [
        ("a", 1_000, 1_052, 2)
    ]
    written = harness.process(rows(0)).snapshot()
    again = operator(windows)
    again.time.advance(1_070)
    again.start(restored_state([written])).process(rows(0))
    assert counts(again.advance(1_200)) == [2]
    again.process(rows(0, key="b"))
    again.operator.finish()
    assert counts(again) == [1]


def test_sliding_windows_of_processing_time() -> None:
    """A row is in every window in which it comes, of the clock."""
    harness = operator(sl.SlidingProcessingTimeWindows(20, 10)).start().advance(1_005).process(rows(0, 0))
    found = harness.advance(1_010).work().rows()
    assert [(ms(row["window_start"]), row["n"]) for row in found] == [(990, 2)]
    harness.process(rows(0))
    found = harness.advance(1_020).work().rows()
    assert [(ms(row["window_start"]), row["n"]) for row in found] == [(1_000, 3)]
    harness.operator.finish()
    assert counts(harness) == [1]


def test_a_trigger_may_be_added_and_removed() -> None:
    """Those that go by time are not in the state."""
    trigger = sl.ContinuousProcessingTimeTrigger(10)
    written = operator(TUMBLING).start().process(rows(1)).snapshot()
    added = operator(TUMBLING, trigger).start(restored_state([written])).process(rows(2))
    assert counts(added.advance(10)) == [2]
    removed = operator(TUMBLING).start(restored_state([added.snapshot()]))
    assert counts(removed.watermark(MAX_WATERMARK_MS)) == [2]


def test_a_trigger_that_counts_may_be_removed_from_windows_of_values() -> None:
    """Its count was taken for rows that the windows kept, so that the job was told to keep what it had kept."""
    asked = (HeldAggregate("times", "collect_list", "t"),)

    def make(trigger: EarlyTrigger | None) -> Harness:
        spec = WindowAggregateSpec(("k",), "t", TUMBLING, asked, early_trigger=trigger)
        leave = {"state.schema-evolution.drop-columns": "true"}
        return Harness(create_window_operator(spec), configuration=leave)

    written = make(sl.CountTrigger(3)).start().process(rows(1, 2)).snapshot()
    removed = make(None).start(restored_state([written]))
    assert [row["times"] for row in removed.watermark(MAX_WATERMARK_MS).rows()] == [[1, 2]]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: sl.ContinuousProcessingTimeTrigger(0), "interval must be positive, got 0 ms"),
        (lambda: sl.ProcessingTimeoutTrigger(1.5), "timeout is whole milliseconds, got 1.5"),  # type: ignore[arg-type]
        (lambda: sl.PurgingTrigger("count"), "a PurgingTrigger takes a trigger, one of CountTrigger"),
        (lambda: sl.GlobalWindows(None), "never fires without a trigger"),  # type: ignore[arg-type]
    ],
)
def test_what_is_no_trigger(make: Any, message: str) -> None:
    """It is refused where it is written."""
    with pytest.raises(InvalidArgument, match=message):
        make()


def test_windows_that_take_no_trigger() -> None:
    """Sliding ones, whose rows are shared, and global ones, which have one."""
    env = sl.StreamExecutionEnvironment.get_execution_environment()
    time = sl.WatermarkStrategy.for_monotonous_timestamps("t")
    keyed = env.from_collection([{"k": "a", "t": 1}]).assign_timestamps_and_watermarks(time).key_by("k")
    with pytest.raises(JobDefinitionError, match="sliding windows share their rows"):
        keyed.window(sl.SlidingEventTimeWindows(20, 10)).trigger(sl.CountTrigger(3))
    with pytest.raises(JobDefinitionError, match="has its trigger already"):
        keyed.count_window(3).trigger(sl.CountTrigger(3))
    with pytest.raises(JobDefinitionError, match="'often' is no trigger: one of CountTrigger"):
        keyed.window(TUMBLING).trigger("often")  # type: ignore[arg-type]
