"""Sources over splits, their snapshots, and the watermarks of what was read."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from snapline.connectors.builtin.generator import GeneratorSource
from snapline.connectors.builtin.scripted import End, ScriptedSource
from snapline.dataflow.api.connector_api import InputStatus
from snapline.dataflow.api.watermark_generators import WatermarkGenerator
from snapline.dataflow.api.watermarks import WatermarkStrategy
from snapline.dataflow.elements import MAX_WATERMARK_MS, Watermark, WatermarkStatus
from snapline.dataflow.graph.operator_specs import SourceSpec, WatermarkSpec
from snapline.dataflow.ids import JobID
from snapline.taskmanager.operators.base.event_time import create_tracker, max_event_time_ms
from snapline.taskmanager.operators.sources.source_operator import SourceOperator
from snapline.taskmanager.operators.sources.watermark_operator import ROWS_BETWEEN, WatermarkCadence, WatermarkOperator
from snapline.taskmanager.task.processing_time import TaskProcessingTime
from tests.unit.taskmanager.operators.harness import Harness, Written, restored_state
from tests.unit.taskmanager.task.local_job import ListSource


def times(*values: int) -> pa.RecordBatch:
    return pa.record_batch({"t": pa.array(values, pa.int64())})


def source(splits: list[list[pa.RecordBatch]], strategy: WatermarkStrategy | None = None, **pauses: int) -> SourceSpec:
    made = ListSource(splits, pauses)
    return SourceSpec(made, made.spec_splits(), strategy)


def read(harness: Harness, polls: int = 100) -> list[Any]:
    for _ in range(polls):
        if harness.operator.emit_next() is not InputStatus.MORE_AVAILABLE:
            break
    return [item.column("t").to_pylist() if isinstance(item, pa.RecordBatch) else item for item in harness.take()]


def values(emitted: list[Any]) -> list[int]:
    return [value for item in emitted if isinstance(item, list) for value in item]


def test_splits_are_assigned_by_index() -> None:
    """Split i to subtask i modulo parallelism."""
    spec = source([[times(0)], [times(1)], [times(2)], [times(3)], [times(4)]])

    assert [values(read(Harness(SourceOperator(spec), subtask=i, parallelism=2).start())) for i in (0, 1)] == [
        [0, 2, 4],
        [1, 3],
    ]


def test_a_restored_source_goes_on_behind_its_position() -> None:
    """Finished splits stay finished."""
    spec = source([[times(0)], [times(1), times(2), times(3)]])
    harness = Harness(SourceOperator(spec)).start()
    assert values(read(harness, 3)) == [0, 1]

    assert values(read(Harness(SourceOperator(spec)).start(restored_state([harness.snapshot()])))) == [2, 3]


def test_splits_that_the_snapshot_does_not_know_are_read_from_their_start() -> None:
    """Files that came between two runs; each by one subtask only."""
    written = Harness(SourceOperator(source([[times(0)]]))).start()
    read(written)
    grown = source([[times(0)], [times(1)], [times(2)]])
    snapshot = written.snapshot()
    split = Written.__new__(Written)
    split.keyed, split.lists = [], tuple(state for state in snapshot.lists if state.name != "source-splits")
    subtasks = [
        Harness(SourceOperator(grown), subtask=0, parallelism=2).start(restored_state([snapshot])),
        Harness(SourceOperator(grown), subtask=1, parallelism=2).start(restored_state([split])),
    ]

    assert [values(read(one)) for one in subtasks] == [[2], [1]]


def test_a_source_that_had_no_split_yet_reads_those_that_have_come_since() -> None:
    """A directory that was empty when the job was started: nothing that came into it was read after a restore, ever."""
    snapshot = Harness(SourceOperator(source([]))).start().snapshot()
    subject = Harness(SourceOperator(source([[times(0)], [times(1)]]))).start(restored_state([snapshot]))

    assert values(read(subject)) == [0, 1]


def test_splits_that_are_new_are_not_given_to_a_subtask_that_had_finished() -> None:
    """It is restored as finished where the parallelism is the same, and nobody read them."""
    one = source([[times(0)]])
    written = Harness(SourceOperator(one), subtask=0, parallelism=2).start().snapshot()
    ended = Harness(SourceOperator(one), subtask=1, parallelism=2).start()
    assert read(ended) == []
    restored = restored_state([written, ended.snapshot()])
    grown = source([[times(0)], [times(1)], [times(2)]])

    same = Harness(SourceOperator(grown), subtask=0, parallelism=2).start(restored)
    other = [Harness(SourceOperator(grown), subtask=i, parallelism=3).start(restored) for i in range(3)]

    assert values(read(same)) == [0, 1, 2]
    assert [set(values(read(one))) - {0} for one in other] == [set(), {1}, {2}]


def test_a_source_whose_reader_had_finished_reads_nothing_again() -> None:
    """Its subtask left nothing in the snapshot but that the operator was there."""
    spec = source([[times(0)], [times(1)]])
    empty = Written.__new__(Written)
    empty.keyed, empty.lists = [], ()

    assert values(read(Harness(SourceOperator(spec)).start(restored_state([empty])))) == []


def test_a_drained_source_reads_nothing_more_in_its_job_and_goes_on_in_another() -> None:
    """Its windows have fired: rows after that would be late. A later snapshot of the same job says so, too."""
    batches = [[times(1), times(2), times(3)]]
    first = Harness(SourceOperator(source(batches))).start()
    first.operator.emit_next()
    first.operator.stop_emitting(9, drain=True)
    restarted = Harness(SourceOperator(source(batches))).start(restored_state([first.snapshot(9)]))
    once_more = Harness(SourceOperator(source(batches))).start(restored_state([restarted.snapshot(10)]))
    another = Harness(SourceOperator(source(batches)))
    another.context = replace(another.context, job_id=JobID("another"))
    another.operator.setup(another.context, another)
    another.start(restored_state([first.snapshot(9)]))

    assert [read(restarted), restarted.operator.emit_next()] == [[], InputStatus.END_OF_INPUT]
    assert [read(once_more), once_more.operator.emit_next()] == [[], InputStatus.END_OF_INPUT]
    assert values(read(another)) == [2, 3]


def test_the_watermark_is_the_least_of_the_unfinished_splits() -> None:
    """A split that was not begun holds it back; a finished one does not."""
    strategy = WatermarkStrategy.for_bounded_out_of_orderness("t", 5)
    harness = Harness(SourceOperator(source([[times(100), times(200)], [times(50), times(300)]], strategy))).start()

    assert read(harness) == [[100], [200], [50], Watermark(44), [300], Watermark(294)]


def test_a_split_that_waits_holds_the_watermark_back_only_to_its_least_time() -> None:
    """Where the source knows it without reading; after a restore, too. Disorder within it changes nothing."""
    strategy = WatermarkStrategy.for_bounded_out_of_orderness("t", 5)
    spec = source([[times(100), times(200)], [times(154), times(150), times(300)]], strategy)
    spec = replace(spec, splits=(spec.splits[0], replace(spec.splits[1], least_times_ms={"t": 150, "other": 1})))
    harness = Harness(SourceOperator(spec)).start()
    assert read(harness, 2) == [[100], Watermark(94), [200], Watermark(149)]
    again = Harness(SourceOperator(spec)).start(restored_state([harness.snapshot()]))

    assert read(again) == [Watermark(149), [154], [150], [300], Watermark(294)]


def test_the_least_times_of_splits_that_only_the_snapshot_knows_are_kept() -> None:
    """As of the rows of a DataFrame: after a start from a savepoint the watermark stood still until all splits were
    begun, which with another parallelism were read in the order of the subtasks that had had them."""
    strategy = WatermarkStrategy.for_monotonous_timestamps("t")
    spec = source([[times(100)], [times(200)], [times(300)], [times(400)]], strategy)
    splits = [replace(split, least_times_ms={"t": 100 * (n + 1)}) for n, split in enumerate(spec.splits)]
    spec = replace(spec, splits=tuple(splits))
    written = [Harness(SourceOperator(spec), subtask=n, parallelism=2).start().snapshot() for n in (0, 1)]
    emitted = read(Harness(SourceOperator(replace(spec, splits=()))).start(restored_state(written)))

    assert values(emitted) == [100, 200, 300, 400]
    assert Watermark(299) in emitted[: emitted.index([400])]


def test_the_watermark_of_a_computed_least_time_is_a_whole_number_of_python() -> None:
    """One of NumPy cannot be written into the snapshots of keyed operators, whose checkpoints failed for ever."""
    spec = source([[times(200)], [times(150)]], WatermarkStrategy.for_monotonous_timestamps("t"))
    least_times_ms: Any = {"t": np.array([150, 300]).min()}
    spec = replace(spec, splits=(spec.splits[0], replace(spec.splits[1], least_times_ms=least_times_ms)))
    emitted = read(Harness(SourceOperator(spec)).start(), 1)

    assert emitted == [[200], Watermark(149)]
    assert type(emitted[1].timestamp_ms) is int


def test_the_watermark_of_all_rows_when_splits_are_not_told_apart() -> None:
    """`per_split` off: the greatest time of the subtask counts."""
    strategy = WatermarkStrategy("t", per_split=False)
    harness = Harness(SourceOperator(source([[times(100), times(90)], [times(50), times(300)]], strategy))).start()

    assert read(harness) == [[100], Watermark(99), [90], [50], [300], Watermark(299)]


def test_the_watermark_survives_a_restore() -> None:
    """What was late before is late after."""
    strategy = WatermarkStrategy.for_monotonous_timestamps("t")
    spec = source([[times(100), times(10), times(20)]], strategy)
    harness = Harness(SourceOperator(spec)).start()
    assert read(harness, 1) == [[100], Watermark(99)]
    again = Harness(SourceOperator(spec)).start(restored_state([harness.snapshot()]))

    assert read(again) == [[10], Watermark(99), [20]]


def test_watermarks_keep_their_interval() -> None:
    """One at once, the next when the interval is over, also without rows."""
    strategy = WatermarkStrategy.for_monotonous_timestamps("t")
    spec = source([[times(1), times(2), times(3)]], strategy, s0=2)
    harness = Harness(SourceOperator(spec), configuration={"pipeline.auto-watermark-interval": "200 ms"})
    harness.time.advance(1000)
    harness.start()

    assert read(harness) == [[1], Watermark(0), [2]]
    assert harness.operator.wake_at_ms == 1200
    harness.time.advance(1200)
    assert read(harness) == [Watermark(1)]


def test_a_silent_source_leaves_the_watermark_to_others() -> None:
    """Idle after the timeout, active with the next row."""
    strategy = WatermarkStrategy.for_monotonous_timestamps("t").with_idleness(50)
    spec = source([[times(1), times(2)]], strategy, s0=1)
    harness = Harness(SourceOperator(spec)).start()
    read(harness)
    harness.time.advance(49)
    assert read(harness) == []
    assert harness.operator.wake_at_ms == 50
    harness.time.advance(50)
    assert read(harness) == [WatermarkStatus.IDLE]

    harness.operator._reader.source.pauses.clear()
    assert read(harness) == [WatermarkStatus.ACTIVE, [2], Watermark(1)]


def test_watermarks_in_the_middle_of_a_stream() -> None:
    """Those from upstream are replaced, but for the last; the greatest time lies in the snapshot."""
    spec = WatermarkSpec(WatermarkStrategy.for_bounded_out_of_orderness("t", 10))
    harness = Harness(WatermarkOperator(spec)).start()
    harness.process(times(100)).watermark(5, work=False).process(times(90))
    assert [i for i in harness.take() if isinstance(i, Watermark)] == [Watermark(89)]

    again = Harness(WatermarkOperator(spec)).start(restored_state([harness.snapshot()]))
    again.process(times(20)).watermark(MAX_WATERMARK_MS, work=False)
    assert [i for i in again.take() if isinstance(i, Watermark)] == [Watermark(89), Watermark(MAX_WATERMARK_MS)]


def test_a_watermark_that_waited_for_its_interval_comes_with_the_clock() -> None:
    """No row has to push it."""
    spec = WatermarkSpec(WatermarkStrategy.for_monotonous_timestamps("t").with_idleness(500))
    harness = Harness(WatermarkOperator(spec), configuration={"pipeline.auto-watermark-interval": "100 ms"}).start()
    harness.process(times(1)).process(times(7))
    assert [i for i in harness.take() if isinstance(i, Watermark)] == [Watermark(0)]

    harness.advance(100)
    assert harness.take() == [Watermark(6)]
    harness.advance(600)
    assert harness.take() == []
    harness.advance(700)
    assert harness.take() == [WatermarkStatus.IDLE]


def test_a_watermark_that_is_not_due_goes_before_the_stream_becomes_idle() -> None:
    """Nobody listens to who is idle: windows of the last rows stayed open until more rows came."""
    spec = WatermarkSpec(WatermarkStrategy.for_monotonous_timestamps("t"))
    harness = Harness(WatermarkOperator(spec), configuration={"pipeline.auto-watermark-interval": "100 ms"}).start()
    harness.process(times(1)).process(times(7)).take()
    harness.operator.process_watermark_status(WatermarkStatus.IDLE)
    assert harness.take() == [Watermark(6), WatermarkStatus.IDLE]
    harness.advance(1_000)
    assert harness.take() == []


def test_a_watermark_that_is_not_due_goes_before_the_source_becomes_idle() -> None:
    """The idle timeout may be shorter than the interval of watermarks."""
    spec = source(
        [[times(1), times(7), times(9)]], WatermarkStrategy.for_monotonous_timestamps("t").with_idleness(50), s0=2
    )
    harness = Harness(SourceOperator(spec), configuration={"pipeline.auto-watermark-interval": "100 ms"}).start()
    assert read(harness) == [[1], Watermark(0), [7]]
    harness.time.advance(50)
    assert read(harness) == [Watermark(6), WatermarkStatus.IDLE]


def test_rows_that_came_while_the_task_was_busy_are_no_sign_of_idleness() -> None:
    """The timer is long over when the task can look at last: an interval after it has found nothing it is certain."""
    spec = WatermarkSpec(WatermarkStrategy.for_monotonous_timestamps("t").with_idleness(500))
    harness = Harness(WatermarkOperator(spec), configuration={"pipeline.auto-watermark-interval": "100 ms"}).start()
    harness.process(times(1)).take()

    harness.advance(5_000, rows_wait=True).advance(5_300, rows_wait=True).process(times(2))
    assert WatermarkStatus.IDLE not in harness.take()
    harness.advance(5_800).advance(5_899)
    assert WatermarkStatus.IDLE not in harness.take()
    harness.advance(5_900)
    assert harness.take() == [WatermarkStatus.IDLE]


def test_a_stream_of_which_nothing_comes_through_is_idle_though_the_task_never_rests() -> None:
    """A filter before it drops all that there is: after as long again."""
    spec = WatermarkSpec(WatermarkStrategy.for_monotonous_timestamps("t").with_idleness(500))
    harness = Harness(WatermarkOperator(spec), configuration={"pipeline.auto-watermark-interval": "100 ms"}).start()
    harness.process(times(1)).take()

    for now_ms in range(10, 1_000, 10):
        harness.advance(now_ms, rows_wait=True)
    assert harness.take() == []
    harness.advance(1_000, rows_wait=True)
    assert harness.take() == [WatermarkStatus.IDLE]


def test_timers_of_a_stream_do_not_multiply() -> None:
    """Rows keep coming for a minute, between two watermarks and within the idle timeout."""
    spec = WatermarkSpec(WatermarkStrategy.for_monotonous_timestamps("t").with_idleness(10_000))
    harness = Harness(WatermarkOperator(spec), configuration={"pipeline.auto-watermark-interval": "200 ms"}).start()
    fired = 0
    for now_ms in range(50, 60_000, 50):
        harness.time.advance(now_ms)
        while (token := harness.time.take_due()) is not None:
            fired += 1
            token.callback(token.at_ms)
        harness.process(times(now_ms))

    assert fired <= 60_000 / 200


def test_a_source_that_may_not_read_is_not_idle_nor_are_its_splits() -> None:
    """Back-pressure of ten times the idle timeout between any two batches: the watermark waits for the split that could
    not be read."""
    strategy = WatermarkStrategy.for_monotonous_timestamps("t").with_idleness(50)
    harness = Harness(SourceOperator(source([[times(1), times(2)], [times(100)]], strategy, s0=1, s1=1))).start()
    assert read(harness, 2) == [[1], [100], Watermark(0)]

    for number in range(1, 4):
        harness.time.advance(number * 500, hindered=True)
        assert read(harness) == []
    harness.time.advance(1_549)
    assert read(harness) == []
    harness.time.advance(1_550)
    assert read(harness) == [Watermark(99), WatermarkStatus.IDLE]


def test_a_split_without_rows_leaves_the_watermark_to_the_others_until_it_comes_back() -> None:
    """Idleness is per split; the watermark never goes back."""
    from snapline.taskmanager.operators.base.event_time import WatermarkTracker

    generator = WatermarkTracker(WatermarkStrategy("t").with_idleness(100))
    generator.add_splits({"busy": None, "silent": None})
    generator.on_batch(times(10), "busy", 0)
    assert generator.next_watermark_ms(0) is None
    generator.on_batch(times(20), "busy", 99)
    assert generator.next_watermark_ms(99) is None
    generator.on_batch(times(30), "busy", 100)
    assert generator.next_watermark_ms(100) == 29
    generator.on_batch(times(5), "silent", 150)
    generator.on_batch(times(40), "busy", 150)
    assert generator.next_watermark_ms(150) is None
    generator.on_batch(times(35), "silent", 160)
    assert generator.next_watermark_ms(160) == 34


def test_the_watermark_rises_when_a_split_becomes_idle() -> None:
    """Not with the next row of the others: where they had gone quiet, too, their windows waited until rows came."""
    strategy = WatermarkStrategy.for_monotonous_timestamps("t").with_idleness(50)
    harness = Harness(SourceOperator(source([[times(1), times(2)], [times(100), times(200)]], strategy, s0=1, s1=1)))
    assert read(harness.start()) == [[1], [100], Watermark(0)]
    harness.time.advance(30)
    harness.operator._reader.source.pauses["s1"] = 2
    assert read(harness) == [[200]]
    assert harness.operator.wake_at_ms == 50

    harness.time.advance(50)
    assert read(harness) == [Watermark(199)]
    assert harness.operator.wake_at_ms == 80
    harness.time.advance(80)
    assert read(harness) == [WatermarkStatus.IDLE]


def test_a_source_is_idle_where_the_furthest_of_its_splits_is() -> None:
    """That one became idle first: the windows of its last rows stayed open, which closed the other way round."""
    strategy = WatermarkStrategy.for_monotonous_timestamps("t").with_idleness(50)
    harness = Harness(SourceOperator(source([[times(1), times(2)], [times(100)]], strategy, s0=1, s1=1)))
    assert read(harness.start()) == [[1], [100], Watermark(0)]
    harness.time.advance(30)
    harness.operator._reader.source.pauses["s0"] = 2
    assert read(harness, 1) == [[2], Watermark(1)]

    harness.time.advance(50)
    assert read(harness) == []
    harness.time.advance(80)
    assert read(harness) == [Watermark(99), WatermarkStatus.IDLE]


def test_a_split_that_never_had_rows_holds_nothing_back_when_all_are_idle() -> None:
    """Rows that came at one time, all from one partition, had no watermark, however long nothing else came."""
    strategy = WatermarkStrategy.for_monotonous_timestamps("t").with_idleness(50)
    operator = SourceOperator(source([[times(1)], [times(100), times(200)]], strategy, s0=0, s1=1))
    operator._generator.waits_for_unread = False  # type: ignore[union-attr]  # as in a source without an end
    harness = Harness(operator).start()
    assert read(harness) == [[100]]
    harness.time.advance(49)
    assert read(harness) == []

    harness.time.advance(50)
    assert read(harness) == [Watermark(99), WatermarkStatus.IDLE]
    harness.time.advance(500)
    assert read(harness) == []


def test_a_source_is_idle_once_the_last_of_its_splits_is() -> None:
    """Rows go through the chain before their split counts as active: the watermark that a split let rise after the
    source had become idle was heard by nobody."""
    strategy = WatermarkStrategy.for_monotonous_timestamps("t").with_idleness(50)
    operator = SourceOperator(source([[times(1)], [times(100), times(200)]], strategy, s0=0, s1=1))
    operator._generator.waits_for_unread = False  # type: ignore[union-attr]  # as in a source without an end
    harness = Harness(operator).start()
    emit = harness.emit_batch

    def emit_slowly(batch: pa.RecordBatch) -> None:
        emit(batch)
        harness.time.advance(7)

    harness.emit_batch = emit_slowly  # type: ignore[method-assign]
    assert read(harness) == [[100]]
    harness.time.advance(50)
    assert read(harness) == []
    assert operator.wake_at_ms == 57

    harness.time.advance(57)
    assert read(harness) == [Watermark(99), WatermarkStatus.IDLE]


# --- alignment --------------------------------------------------------------------------------------------------------

ALIGNED = WatermarkStrategy.for_monotonous_timestamps("t").with_watermark_alignment("g", 50, update_interval_ms=100)


class Aligned:
    """A source that reports, and is told how far it may go."""

    def __init__(self, spec: SourceSpec, operator: Any = None) -> None:
        self.reports: list[tuple[str, int, int]] = []
        self.harness = Harness(operator or SourceOperator(spec))
        context = replace(self.harness.context, report_watermark=lambda *report: self.reports.append(report))
        self.harness.operator.setup(context, self.harness)
        self.harness.start()

    def read(self) -> list[int]:
        return values(read(self.harness))

    def allowed(self, max_watermark_ms: int) -> Aligned:
        self.harness.operator.align_watermarks(max_watermark_ms)
        return self


def test_a_source_that_is_ahead_of_its_group_waits() -> None:
    """Until it may go on; it keeps reporting, keeps its snapshots, and is not idle meanwhile."""
    spec = source([[times(100), times(200), times(300), times(400)]], ALIGNED.with_idleness(150))
    aligned = Aligned(spec)
    assert aligned.read() == [100]  # and no more before it knows how far it may go
    assert aligned.allowed(198).read() == [200]
    assert aligned.read() == []
    assert aligned.reports == [("g", -(2**63), 50)]
    harness = aligned.harness
    assert harness.operator.wake_at_ms == 100
    for now_ms in (100, 200, 300):
        assert values(read(harness.advance(now_ms))) == []
    assert aligned.reports[1:] == [("g", 199, 50)] * 3
    restored = Harness(SourceOperator(spec)).start(restored_state([harness.snapshot()]))
    restored.operator.align_watermarks(10_000)
    assert values(read(restored)) == [300, 400]
    assert aligned.allowed(10_000).read() == [300, 400]
    assert aligned.reports[-1] == ("g", MAX_WATERMARK_MS, 50)
    assert WatermarkStatus.IDLE not in harness.emitted


def test_splits_that_are_ahead_wait_for_the_others() -> None:
    """The source is as far as its slowest split, which goes on alone."""
    rows = [[times(10), times(500), times(600)], [times(20), times(30), times(40), times(700)]]
    scripted = ScriptedSource(*[[*one, End()] for one in rows])
    spec = SourceSpec(scripted, tuple(scripted.enumerate_splits()), ALIGNED)
    aligned = Aligned(spec).allowed(100)
    assert aligned.read() == [10, 20, 500, 30, 40, 700]
    assert aligned.read() == []
    assert aligned.allowed(650).read() == [600]


def test_an_idle_source_holds_nobody_back() -> None:
    """It reports the greatest watermark until it has rows again."""
    spec = source([[times(100), times(200)]], ALIGNED.with_idleness(150), s0=1)
    aligned = Aligned(spec).allowed(1000)
    for now_ms in (0, 100, 200, 300):
        aligned.harness.time.advance(now_ms)
        aligned.harness.operator.emit_next()
    assert aligned.reports == [("g", -(2**63), 50), ("g", 99, 50), ("g", 99, 50), ("g", MAX_WATERMARK_MS, 50)]


def test_a_watermark_that_is_nearly_due_leaves_with_the_rows() -> None:
    """Rows came every 98 ms, and a watermark each 200 ms: it woke the source and all behind it just after the rows."""
    time, emitted = TaskProcessingTime(), list[Any]()
    tracker = create_tracker(WatermarkStrategy.for_monotonous_timestamps("at"))
    cadence = WatermarkCadence(tracker, time, 200, 0)
    output: Any = SimpleNamespace(emit_watermark=lambda watermark: emitted.append((time.now_ms(), watermark)))
    for at_ms in (1_000, 1_098, 1_179, 1_196, 1_294, 1_392):
        time.advance(at_ms)
        tracker.on_batch(pa.record_batch({"at": pa.array([at_ms], pa.int64())}))
        cadence.after_batch(output, 1)
    assert emitted == [(at_ms, Watermark(at_ms - 1)) for at_ms in (1_000, 1_196, 1_392)]
    time.advance(1_591)
    cadence.on_time(output)
    assert len(emitted) == 3, "without rows it waits for its time"


def test_many_rows_bring_the_next_watermark_before_its_time() -> None:
    """A source of 80 million events a second filled eight windows of ten seconds in the 200 ms for which it kept the
    watermark that would have ended them."""
    time, emitted = TaskProcessingTime(), list[Any]()
    tracker = create_tracker(WatermarkStrategy.for_monotonous_timestamps("at"))
    cadence = WatermarkCadence(tracker, time, 200, 0)
    output: Any = SimpleNamespace(emit_watermark=lambda watermark: emitted.append((time.now_ms(), watermark)))
    for at_ms in range(1_000, 1_010):
        time.advance(at_ms)
        tracker.on_batch(pa.record_batch({"at": pa.array([at_ms], pa.int64())}))
        cadence.after_batch(output, ROWS_BETWEEN // 4)
    assert emitted == [(at_ms, Watermark(at_ms - 1)) for at_ms in (1_000, 1_004, 1_008)]


def test_a_watermark_that_left_alone_goes_with_the_next_rows() -> None:
    """Rows came every 100 ms and watermarks 40 ms behind them: each woke the source and all behind it once more, for as
    long as the job ran."""
    time, emitted = TaskProcessingTime(), list[int]()
    tracker = create_tracker(WatermarkStrategy.for_monotonous_timestamps("at"))
    cadence = WatermarkCadence(tracker, time, 200, 0)
    output: Any = SimpleNamespace(emit_watermark=lambda _watermark: emitted.append(time.now_ms()))
    rows = {1_000, *range(1_060, 2_000, 100)}
    for at_ms in range(1_000, 1_900):
        time.advance(at_ms)
        if at_ms in rows:
            tracker.on_batch(pa.record_batch({"at": pa.array([at_ms], pa.int64())}))
            cadence.after_batch(output, 1)
        elif cadence.wake_at_ms is not None and at_ms >= cadence.wake_at_ms:
            cadence.on_time(output)
    assert emitted == [1_000, 1_200, 1_260, 1_460, 1_660, 1_860]


def test_a_time_that_is_none_is_refused_and_not_dropped_as_late() -> None:
    """The least int64 is what NaT becomes as a number; its window would have begun before all numbers."""
    batch = pa.record_batch({"t": pa.array([5, -(2**63)])})

    with pytest.raises(ValueError, match=r"event time column 't' holds -9223372036854775808, .* filter such rows out"):
        max_event_time_ms(batch, "t")


@pytest.mark.parametrize("value", [2**63 - 1, -(2**63) + 1])
@pytest.mark.parametrize("unit", ["s", "ms", "us"])
def test_a_timestamp_beyond_all_years_is_no_event_time(unit: str, value: int) -> None:
    """Seconds went round in 64 bits, and the watermark behind such a row fired windows without an end."""
    batch = pa.record_batch({"t": pa.array([5, value]).cast(pa.timestamp(unit))})

    with pytest.raises(
        ValueError, match=rf"event time column 't' is timestamp\[{unit}\] and holds {value}, which is no time "
    ):
        max_event_time_ms(batch, "t")


def test_a_generator_of_the_users_does_not_see_what_is_no_time() -> None:
    """The row that is wrong is named before its windows are."""
    tracker = create_tracker(WatermarkStrategy.for_generator("t", WatermarkGenerator))

    with pytest.raises(ValueError, match=r"event time column 't' holds 9223372036854775807, .* beyond the year 9999"):
        tracker.on_batch(times(2**63 - 1))


@pytest.mark.parametrize("bounded", [True, False])
def test_a_split_that_waits_to_be_read_is_not_idle(bounded: bool) -> None:
    """A reader of files reads one after the other: rows of those behind were late once the first took its time."""
    tracker = create_tracker(WatermarkStrategy("t", idle_timeout_ms=100))
    tracker.waits_for_unread = bounded
    tracker.add_splits({"read": None, "unread": None})
    tracker.on_batch(times(10), "read", 0)
    assert tracker.next_watermark_ms(0) is None
    tracker.on_batch(times(500), "read", 200)
    assert tracker.next_watermark_ms(200) == (None if bounded else 499)
    tracker.on_batch(times(20), "unread", 250)
    tracker.on_batch(times(600), "read", 400)
    assert tracker.next_watermark_ms(400) == 599


def test_only_a_source_with_an_end_has_splits_that_wait_to_be_read() -> None:
    """A partition of a topic that has no rows may never have any."""
    strategy = WatermarkStrategy("t", idle_timeout_ms=100)
    endless = SourceSpec(GeneratorSource(), tuple(GeneratorSource().enumerate_splits()), strategy)
    trackers = [SourceOperator(spec)._generator for spec in (source([[]], strategy), endless)]
    assert [tracker and tracker.waits_for_unread for tracker in trackers] == [True, False]
