"""The enumerator's task and the readers that it feeds, each alone, and together in a local job."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

import snapline as sl
from snapline.dataflow.elements import MAX_WATERMARK_MS, SnapshotType, Watermark, WatermarkStatus
from snapline.dataflow.errors import ConnectorError, JobDefinitionError
from snapline.dataflow.graph.operator_specs import SourceSpec, SplitEnumeratorSpec
from snapline.dataflow.ids import CheckpointID
from snapline.taskmanager.network.channels.watermark_valve import StatusWatermarkValve
from snapline.taskmanager.operators.sources.source_operator import SourceOperator
from snapline.taskmanager.operators.sources.split_enumerator_operator import ALL_SPLITS, SplitEnumeratorOperator
from snapline.taskmanager.operators.sources.split_reader_operator import SplitReaderOperator
from tests.services.measured import figures_of
from tests.unit.taskmanager.operators.harness import Harness, Written, restored_state

SCHEMA = pa.schema([("t", pa.int64())])


class CountingEnumerator(sl.SplitEnumerator):
    """Finds two splits at each look, with the least times that it was given, and ends after the last one."""

    def __init__(self, times: Sequence[int | None]) -> None:
        self._times = times

    def discover(self, state: dict[str, Any]) -> sl.Discovery:
        begin = state.get("next", 0)
        end = min(begin + 2, len(self._times))
        found = [
            sl.SourceSplit(f"split-{n}", {"t": at or 0}, least_times_ms={} if at is None else {"t": at})
            for n, at in list(enumerate(self._times))[begin:end]
        ]
        return sl.Discovery(found, {"next": end}, finished=end == len(self._times), again_after_ms=10)


class Reader(sl.SourceReader):
    """Reads one row of each split, and one split after the other."""

    def __init__(self) -> None:
        self.splits: list[sl.SourceSplit] = []

    def add_splits(self, splits: Sequence[sl.SourceSplit]) -> None:
        self.splits += splits

    def poll_next(self, now_ms: int) -> sl.Polled:
        if not self.splits:
            return sl.Polled(sl.InputStatus.NOTHING_AVAILABLE)
        split = self.splits.pop(0)
        batch = pa.RecordBatch.from_pydict({"t": [split.description["t"]]}, SCHEMA)
        return sl.Polled(
            sl.InputStatus.MORE_AVAILABLE, batch, split_id=split.split_id, finished_splits=(split.split_id,)
        )

    def snapshot_splits(self, checkpoint_id: int) -> Sequence[sl.SourceSplit]:
        return self.splits


class Numbered(sl.Source):
    """A source whose splits are discovered two at a time."""

    def __init__(self, times: Sequence[int | None], at_once: int | None = 1) -> None:
        self.times, self.at_once = tuple(times), at_once

    def schema(self) -> pa.Schema:
        return SCHEMA

    def enumerate_splits(self) -> Sequence[sl.SourceSplit]:
        return []

    def create_enumerator(self, splits: Sequence[sl.SourceSplit]) -> sl.SplitEnumerator:
        return CountingEnumerator(self.times)

    @property
    def splits_at_once(self) -> int | None:
        return self.at_once

    def create_reader(self, context: sl.SourceContextInfo) -> sl.SourceReader:
        return Reader()


class Endless(Numbered):
    """The same of a program that follows what appears."""

    @property
    def bounded(self) -> bool:
        return False


class Submitted(Numbered):
    """A source whose first splits are found at submission, and the rest by looks."""

    def __init__(self, there: int) -> None:
        super().__init__([None] * 3)
        self.there = there

    def enumerate_splits(self) -> Sequence[sl.SourceSplit]:
        return [sl.SourceSplit(f"split-{n}", {"t": 0}) for n in range(self.there)]

    def create_enumerator(self, splits: Sequence[sl.SourceSplit]) -> sl.SplitEnumerator:
        return AddedEnumerator(self.times, len(splits))


class AddedEnumerator(CountingEnumerator):
    """Begins behind what the submission found."""

    def __init__(self, times: Sequence[int | None], there: int) -> None:
        super().__init__(times)
        self._there = there

    def discover(self, state: dict[str, Any]) -> sl.Discovery:
        return super().discover(state or {"next": self._there})


class CallAtOnce:
    """A call that has ended when it begins."""

    def __init__(self, function: Callable[[], Any], wake_up: Callable[[], None]) -> None:
        self._result = function()
        self.is_done = True

    def result(self) -> Any:
        return self._result

    def close(self) -> None:
        """Nothing runs."""


class Enumerating:
    """One enumerator, whose readers are played by the test."""

    def __init__(self, source: sl.Source, demand: list[int | None], restored: Any = None) -> None:
        spec = SplitEnumeratorSpec(source, tuple(source.enumerate_splits()), "t")
        self.operator = SplitEnumeratorOperator(spec, CallAtOnce)
        self.harness = Harness(self.operator)
        self.demand = demand
        self.operator.setup(replace(self.harness.context, split_demand=lambda: self.demand), self.harness)
        self.harness.start(restored)

    def run(self, steps: int = 10) -> sl.InputStatus:
        """Let it work until it has nothing to do; each split that leaves counts as demanded."""
        status = sl.InputStatus.MORE_AVAILABLE
        for _ in range(steps):
            before = len(self.splits())
            status = self.operator.emit_next()
            if len(self.splits()) > before:
                at = max(range(len(self.demand)), key=lambda index: self.demand[index] or 0)
                self.demand[at] = (self.demand[at] or 0) - 1
            if status is sl.InputStatus.END_OF_INPUT:
                break
        return status

    def splits(self) -> list[str]:
        batches = [item for item in self.harness.emitted if isinstance(item, pa.RecordBatch)]
        return [json.loads(text)["split_id"] for batch in batches for text in batch.column(0).to_pylist()]


def test_nothing_is_handed_out_before_every_reader_has_spoken_or_beyond_what_is_asked_for() -> None:
    """A reader that came first would get everything; one that asks for one split gets one."""
    enumerating = Enumerating(Numbered([None] * 4), [1, None])
    enumerating.run()
    assert [] == enumerating.splits()
    enumerating.demand[1] = 0
    enumerating.run()
    assert ["split-0"] == enumerating.splits()


def test_a_look_can_limit_how_many_splits_a_reader_has() -> None:
    """Of a source without a limit; a restored enumerator keeps to it."""

    class Limited(CountingEnumerator):
        def discover(self, state: dict[str, Any]) -> sl.Discovery:
            return replace(super().discover(state), at_once=1)

    source = Numbered([None] * 6, at_once=None)
    source.create_enumerator = lambda splits: Limited(source.times)  # type: ignore[method-assign]
    first = Enumerating(source, [ALL_SPLITS, ALL_SPLITS])
    first.run()
    assert ["split-0", "split-1"] == first.splits()
    written = Written(first.operator.snapshot_state(CheckpointID(1), 0))
    second = Enumerating(source, [ALL_SPLITS, ALL_SPLITS - 1], restored_state([written]))
    second.run()
    assert ["split-2"] == second.splits()


def test_a_look_that_waits_for_all_splits_waits_also_for_those_just_found() -> None:
    """Nothing was handed out and everything read when the look before it returned them."""
    looks: list[int] = []

    class OneAfterTheOther(CountingEnumerator):
        def discover(self, state: dict[str, Any]) -> sl.Discovery:
            looks.append(state.get("next", 0))
            return replace(super().discover(state), after_all_read=True, again_after_ms=0)

    source = Numbered([None] * 4)
    source.create_enumerator = lambda splits: OneAfterTheOther(source.times)  # type: ignore[method-assign]
    enumerating = Enumerating(source, [1])
    enumerating.run()
    assert ([0], ["split-0"]) == (looks, enumerating.splits())
    enumerating.demand[0] = 1
    enumerating.run()
    assert ([0], ["split-0", "split-1"]) == (looks, enumerating.splits())
    enumerating.demand[0] = 1
    enumerating.run()
    assert ([0, 2], ["split-0", "split-1", "split-2"]) == (looks, enumerating.splits())


def test_an_enumerator_whose_look_waits_for_readers_is_not_asked_again_by_the_clock(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It was due all the time, so that its task took a processor of its own until the first source of a hybrid one was
    read, or until few splits waited."""

    class OneAfterTheOther(CountingEnumerator):
        def discover(self, state: dict[str, Any]) -> sl.Discovery:
            return replace(super().discover(state), after_all_read=True, again_after_ms=0)

    hybrid = Numbered([None] * 4)
    hybrid.create_enumerator = lambda splits: OneAfterTheOther(hybrid.times)  # type: ignore[method-assign]
    waits_for_readers, looks_on = Enumerating(hybrid, [1]), Enumerating(Numbered([None] * 4), [0])
    waits_for_readers.run()
    looks_on.run()
    assert (waits_for_readers.operator.wake_at_ms, looks_on.operator.wake_at_ms) == (None, 10)
    monkeypatch.setattr(f"{SplitEnumeratorOperator.__module__}.ENOUGH_WAITING", 2)
    looks_on.harness.advance(10)
    looks_on.run()
    assert looks_on.operator.wake_at_ms is None
    looks_on.demand[0] = 1
    looks_on.run()
    assert (looks_on.splits(), len(looks_on.operator._waiting)) == (["split-0"], 3)


def test_the_source_ends_when_all_splits_were_read_to_their_end() -> None:
    """The enumerator stays until every reader asks for as much as it ever does."""
    enumerating = Enumerating(Numbered([None, None]), [1, 1])
    enumerating.run()
    enumerating.harness.advance(10)
    assert sl.InputStatus.NOTHING_AVAILABLE is enumerating.run()
    enumerating.demand[:] = [1, 0]
    assert sl.InputStatus.NOTHING_AVAILABLE is enumerating.run()
    enumerating.demand[:] = [1, 1]
    assert sl.InputStatus.END_OF_INPUT is enumerating.run()
    assert WatermarkStatus.ACTIVE is enumerating.harness.emitted[-1]


def test_how_many_splits_wait_is_a_metric() -> None:
    """Those that were found and that no reader has asked for."""
    enumerating = Enumerating(Numbered([None] * 4), [1, 0])
    enumerating.run()

    measured = figures_of(enumerating.operator.context.metrics)
    assert (measured, len(enumerating.splits())) == ({"waiting_splits": 1.0}, 1)


def test_splits_wait_in_the_order_of_their_least_time_and_readers_hear_it() -> None:
    """What waits is promised by a watermark; nothing that waits is said by an idle status."""
    enumerating = Enumerating(Numbered([50, 20]), [0])
    enumerating.run()
    assert [Watermark(19)] == enumerating.harness.emitted
    enumerating.demand[0] = 1
    enumerating.run()
    assert ["split-1"] == enumerating.splits()
    assert Watermark(49) == enumerating.harness.emitted[-1]
    enumerating.demand[0] = 1
    enumerating.run()
    assert WatermarkStatus.IDLE is enumerating.harness.emitted[-1]


def test_a_restored_enumerator_goes_on_with_what_waited_and_looks_behind_it() -> None:
    """Handed-out splits are the readers'; the rest and the state of the discovery are in the snapshot."""
    first = Enumerating(Numbered([None] * 4), [1])
    first.run()
    written = Written(first.operator.snapshot_state(CheckpointID(1), 0))
    second = Enumerating(Numbered([None] * 4), [9], restored_state([written]))
    second.run()
    assert ["split-1", "split-2", "split-3"] == second.splits()


def test_a_source_without_an_end_looks_on_from_a_snapshot_of_one_that_had_ended() -> None:
    """The program may have been changed between two runs, to follow what it has read once."""
    ended = Enumerating(Numbered([None]), [1])
    ended.run()
    written = Written(ended.operator.snapshot_state(CheckpointID(1), 0))
    follows = Enumerating(Endless([None] * 3), [9], restored_state([written]))
    follows.run()
    assert ["split-1", "split-2"] == follows.splits()


def test_a_first_look_behind_a_restore_goes_on_from_the_splits_of_the_first_submission() -> None:
    """A later submission finds more, and who took these for known would never hand them out."""
    first = Enumerating(Submitted(1), [None])
    written = Written(first.operator.snapshot_state(CheckpointID(1), 0))
    second = Enumerating(Submitted(3), [None], restored_state([written]))
    written = Written(second.operator.snapshot_state(CheckpointID(2), 0))
    third = Enumerating(Submitted(3), [9], restored_state([written]))
    third.run()
    assert ["split-0", "split-1", "split-2"] == third.splits()


def test_a_drained_enumerator_hands_out_nothing_more() -> None:
    """The job that was stopped for good ends when it is restored by itself."""
    first = Enumerating(Numbered([None] * 4), [0])
    first.operator.stop_emitting(CheckpointID(1), drain=True)
    written = Written(first.operator.snapshot_state(CheckpointID(1), 0))
    assert sl.InputStatus.END_OF_INPUT is Enumerating(Numbered([None]), [1], restored_state([written])).run()


class Reading:
    """One reader, whose enumerator is played by the test."""

    def __init__(
        self, source: sl.Source, restored: Any = None, idle_timeout_ms: int = 0, interval: str = "0 ms"
    ) -> None:
        strategy = sl.WatermarkStrategy("t", idle_timeout_ms=idle_timeout_ms)
        self.operator = SplitReaderOperator(SourceSpec(source, (), strategy, is_fed=True))
        self.harness = Harness(self.operator, configuration={"pipeline.auto-watermark-interval": interval})
        self.asked: list[int] = []
        self.operator.setup(replace(self.harness.context, request_splits=self.asked.append), self.harness)
        self.harness.start(restored)

    def give(self, split_id: str, at_ms: int) -> None:
        element = {"split_id": split_id, "description": {"t": at_ms}, "position": {}, "least_times_ms": {"t": at_ms}}
        self.operator.process_batch(pa.RecordBatch.from_pydict({"split": [json.dumps(element)]}))


def test_a_reader_asks_for_another_split_when_one_is_finished() -> None:
    """It never has more than the source reads at once."""
    reading = Reading(Numbered([], at_once=2))
    assert [2] == reading.asked
    reading.give("a", 10)
    reading.give("b", 20)
    reading.operator.emit_next()
    assert [2, 1] == reading.asked
    assert [ALL_SPLITS] == Reading(Numbered([], at_once=None)).asked


def test_a_split_that_is_discovered_while_it_is_read_is_the_sources_mistake() -> None:
    """Snapline was blamed, and a local run ended with a traceback of its own."""
    reading = Reading(Numbered([]))
    reading.give("a", 10)
    with pytest.raises(ConnectorError, match="Numbered: split 'a' was discovered once more while it is read"):
        reading.give("a", 10)


def test_a_restored_reader_asks_for_less_by_what_it_holds() -> None:
    """A reader that holds as much as it takes still says that it is there."""
    first = Reading(Numbered([]))
    first.give("a", 10)
    written = Written(first.operator.snapshot_state(CheckpointID(1), 0))
    second = Reading(Numbered([]), restored_state([written]))
    assert [0] == second.asked
    second.operator.emit_next()
    assert [0, 1] == second.asked


def test_a_snapshot_of_a_source_that_did_not_discover_is_refused() -> None:
    """Its splits would be handed out again, and be read twice."""
    plain = Harness(SourceOperator(SourceSpec(Numbered([]), (sl.SourceSplit("a", {"t": 1}),), None)))
    plain.start(None)
    written = Written(plain.operator.snapshot_state(CheckpointID(1), 0))
    with pytest.raises(JobDefinitionError, match="discovers splits now, and did not when the snapshot was made"):
        Reading(Numbered([]), restored_state([written]))


def test_a_snapshot_of_a_source_that_discovered_is_refused_by_one_that_does_not() -> None:
    """Allowed to leave the state of the enumerator behind, it read what its readers held, and never a split that was
    new."""
    reading = Reading(Numbered([]))
    written = Written(reading.operator.snapshot_state(CheckpointID(1), 0))
    plain = Harness(SourceOperator(SourceSpec(Numbered([]), (sl.SourceSplit("a", {"t": 1}),), None)))
    with pytest.raises(JobDefinitionError, match="discovered splits when the snapshot was made, and does not now"):
        plain.start(restored_state([written]))


def test_the_watermark_stays_below_what_waits_at_the_enumerator() -> None:
    """A reader that is ahead promises no more than the least time of splits that nobody reads yet."""
    reading = Reading(Numbered([], at_once=2))
    reading.give("a", 100)
    reading.operator.process_watermark(Watermark(49))
    reading.operator.emit_next()
    reading.operator.emit_next()
    assert [Watermark(49)] == [item for item in reading.harness.emitted if isinstance(item, Watermark)]
    reading.operator.process_watermark_status(WatermarkStatus.IDLE)
    reading.operator.emit_next()
    assert [Watermark(99), WatermarkStatus.IDLE] == reading.harness.emitted[-2:]
    reading.operator.process_watermark(Watermark(MAX_WATERMARK_MS))
    assert [WatermarkStatus.ACTIVE, Watermark(MAX_WATERMARK_MS)] == reading.harness.emitted[-2:]


def test_a_reader_without_splits_says_what_it_has_reached_before_it_is_idle() -> None:
    """The watermark of the last rows was not due yet, and nobody listens to who is idle: their windows stayed open."""
    reading = Reading(Numbered([], at_once=2), interval="200 ms")
    reading.operator.process_watermark_status(WatermarkStatus.IDLE)
    for at_ms in (100, 200, 300):
        reading.give(f"split-{at_ms}", at_ms)
        reading.operator.emit_next()
    reading.operator.emit_next()
    said = [item for item in reading.harness.emitted if not isinstance(item, pa.RecordBatch)]
    assert said[-2:] == [Watermark(299), WatermarkStatus.IDLE]


class AlwaysRead(Reader):
    """Has a row of this moment whenever it is asked."""

    def poll_next(self, now_ms: int) -> sl.Polled:
        batch = pa.RecordBatch.from_pydict({"t": [now_ms]}, SCHEMA)
        return sl.Polled(sl.InputStatus.MORE_AVAILABLE, batch, split_id=self.splits[0].split_id)


def test_what_waits_at_the_enumerator_is_never_idle() -> None:
    """An idle timeout is for splits that are read and have no rows: rows of files that wait would all be late."""
    source = Numbered([], at_once=2)
    source.create_reader = lambda context: AlwaysRead()  # type: ignore[method-assign]
    reading = Reading(source, idle_timeout_ms=100)
    reading.give("a", 0)
    for now_ms in (0, 90, 180, 400):
        reading.harness.time.advance(now_ms)
        reading.operator.emit_next()
    assert [] == [item for item in reading.harness.emitted if isinstance(item, Watermark)]
    reading.operator.process_watermark_status(WatermarkStatus.IDLE)
    reading.harness.time.advance(800)
    reading.operator.emit_next()
    assert [Watermark(799)] == [item for item in reading.harness.emitted if isinstance(item, Watermark)]


def test_what_waits_again_holds_the_watermark_back_also_where_it_is_no_later_than_what_waited_before() -> None:
    """No second watermark of that time comes through the gate of the reader, and rows of the other file were late."""
    source = Numbered([], at_once=2)
    source.create_reader = lambda context: AlwaysRead()  # type: ignore[method-assign]
    reading, gate = Reading(source), StatusWatermarkValve(1)

    def say(said: Watermark | WatermarkStatus) -> None:
        told = gate.input_watermark(0, said) if isinstance(said, Watermark) else gate.input_status(0, said)
        for one in told:
            if isinstance(one, Watermark):
                reading.operator.process_watermark(one)
            else:
                reading.operator.process_watermark_status(one)

    say(Watermark(49))
    reading.give("a", 50)
    for waits in (WatermarkStatus.IDLE, WatermarkStatus.ACTIVE, Watermark(49)):
        say(waits)
    reading.harness.time.advance(90)
    reading.operator.emit_next()
    assert [] == [item for item in reading.harness.emitted if item == Watermark(89)]
    say(WatermarkStatus.IDLE)
    reading.operator.emit_next()
    assert Watermark(89) in reading.harness.emitted


def test_a_reader_without_splits_is_not_idle_while_some_may_come() -> None:
    """Its channel would let others pass, and the rows of the splits that it is handed next would all be late."""
    reading = Reading(Numbered([], at_once=2), idle_timeout_ms=100)
    for now_ms in (0, 200, 400):
        reading.harness.time.advance(now_ms)
        reading.operator.emit_next()
    assert [] == reading.harness.emitted
    reading.operator.process_watermark_status(WatermarkStatus.IDLE)
    reading.operator.emit_next()
    assert [WatermarkStatus.IDLE] == reading.harness.emitted


def test_a_drained_reader_reads_nothing_of_what_it_is_restored_with() -> None:
    """Windows have fired by then; more rows would be counted twice."""
    first = Reading(Numbered([]))
    first.give("a", 10)
    first.operator.announce_snapshot(SnapshotType.SAVEPOINT_TERMINATE)
    written = Written(first.operator.snapshot_state(CheckpointID(1), 0))
    second = Reading(Numbered([]), restored_state([written]))
    assert sl.InputStatus.NOTHING_AVAILABLE is second.operator.emit_next()
    assert [] == second.harness.emitted


def test_a_reader_reads_nothing_behind_the_last_watermark() -> None:
    """The end of data of a job that is drained may come a moment later: rows that were read meanwhile were late for all
    windows, and read as far as the savepoint knew."""
    reading = Reading(Numbered([]))
    reading.give("a", 10)
    reading.operator.process_watermark(Watermark(MAX_WATERMARK_MS))
    reading.operator.emit_next()
    assert [Watermark(MAX_WATERMARK_MS)] == reading.harness.emitted


@pytest.mark.parametrize("at_once", [1, 3, None])
def test_a_local_job_reads_each_discovered_split_once(at_once: int | None) -> None:
    """Three readers, discovery beside them, checkpoints meanwhile."""
    environment = sl.StreamExecutionEnvironment.get_execution_environment()
    environment.set_parallelism(3)
    environment.checkpointing.interval(20)
    stream = environment.from_source(Numbered(range(40), at_once), uid="numbered")
    rows = [row["t"] for row in stream.execute_and_collect(local=True, threads=3)]
    assert list(range(40)) == sorted(rows)


class Publishing(Reader):
    """Notes which checkpoints it may publish its positions for."""

    def __init__(self) -> None:
        super().__init__()
        self.final: list[int] = []

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        self.final.append(checkpoint_id)


def test_a_savepoint_makes_no_position_final_unless_the_job_stops_with_it() -> None:
    """After a failure the job starts from the checkpoint before a savepoint, and reads again what was read since then:
    what a reader freed by then would be missing."""
    source = Numbered([None])
    reader = Publishing()
    source.create_reader = lambda context: reader  # type: ignore[method-assign]
    operator = SplitReaderOperator(SourceSpec(source, (), is_fed=True))
    harness = Harness(operator)
    operator.setup(replace(harness.context, request_splits=lambda count: None), harness)
    harness.start(None)
    kinds = [SnapshotType.CHECKPOINT, SnapshotType.SAVEPOINT, SnapshotType.CHECKPOINT, SnapshotType.SAVEPOINT_SUSPEND]
    for checkpoint_id, kind in enumerate(kinds, 1):
        operator.announce_snapshot(kind)
        operator.snapshot_state(CheckpointID(checkpoint_id), 0)
    for checkpoint_id in range(1, 5):
        operator.notify_checkpoint_complete(CheckpointID(checkpoint_id))

    assert [1, 3, 4] == reader.final
