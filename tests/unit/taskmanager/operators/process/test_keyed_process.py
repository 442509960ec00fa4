"""KeyedProcessFunction: rows, state, timers in their order, side outputs."""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from snapline.dataflow.api.functions import KeyedBatchProcessFunction, KeyedProcessFunction
from snapline.dataflow.api.state import ListStateDescriptor, MapStateDescriptor, ValueStateDescriptor
from snapline.dataflow.columnar.key_partition import split_batch
from snapline.dataflow.elements import MAX_WATERMARK_MS, Watermark
from snapline.dataflow.errors import StateError
from snapline.dataflow.graph.operator_specs import KeyedProcessSpec
from snapline.taskmanager.operators.base.failure import RowFailure
from snapline.taskmanager.operators.process import keyed_process
from snapline.taskmanager.operators.process.keyed_batches import KeyedBatchesOperator
from snapline.taskmanager.operators.process.keyed_process import KeyedProcessOperator
from tests.unit.taskmanager.operators.harness import Harness, restored_state

pytestmark = pytest.mark.usefixtures("state_backend_and_checkpoints")

SCHEMA = pa.schema([("k", pa.string()), ("t", pa.int64()), ("do", pa.string()), ("at", pa.int64())])
OUTPUT = pa.schema([("k", pa.string()), ("what", pa.string()), ("at", pa.int64()), ("n", pa.int64())])


class Script(KeyedProcessFunction):
    """Does what its rows say; a timer at a multiple of 3 registers the next one, at a multiple of 7 deletes one."""

    def open(self, context) -> None:
        self.count = context.get_state(ValueStateDescriptor("count", pa.int64()))

    def _next(self) -> int:
        n = (self.count.value() or 0) + 1
        self.count.update(n)
        return n

    def process_element(self, row, context) -> Iterable[dict[str, Any]]:
        assert context.timestamp_ms == row["t"]
        assert context.time_domain is None
        assert context.current_key == row["k"]
        timers = context.timer_service
        if row["do"] == "register":
            timers.register_event_time_timer(row["at"])
        elif row["do"] == "delete":
            timers.delete_event_time_timer(row["at"])
        yield {"k": row["k"], "what": row["do"], "at": row["at"], "n": self._next()}

    def on_timer(self, timestamp_ms: int, context) -> list[dict[str, Any]]:
        assert context.timestamp_ms == timestamp_ms
        if timestamp_ms % 3 == 0:
            context.timer_service.register_event_time_timer(timestamp_ms + 1)
            context.timer_service.register_event_time_timer(timestamp_ms + 4)
        if timestamp_ms % 7 == 0:
            context.timer_service.delete_event_time_timer(timestamp_ms + 2)
        return [{"k": context.current_key, "what": "timer", "at": timestamp_ms, "n": self._next()}]


class Reference:
    """Flink's rules: per key a set of timers, in order of time."""

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}
        self.timers: dict[str, set[int]] = {}
        self.watermark = -(2**63)

    def next(self, key: str) -> int:
        self.counts[key] = self.counts.get(key, 0) + 1
        return self.counts[key]

    def row(self, row: dict[str, Any]) -> tuple[Any, ...]:
        timers = self.timers.setdefault(row["k"], set())
        if row["do"] == "register":
            timers.add(row["at"])
        elif row["do"] == "delete":
            timers.discard(row["at"])
        return (row["k"], row["do"], row["at"], self.next(row["k"]))

    def advance(self, watermark: int) -> list[tuple[Any, ...]]:
        if watermark <= self.watermark:
            return []
        self.watermark = watermark
        fired = []
        for key, timers in self.timers.items():
            heap = sorted(timers)
            while heap and heap[0] <= watermark:
                at = heapq.heappop(heap)
                if at not in timers:
                    continue
                timers.remove(at)
                if at % 3 == 0:
                    for following in (at + 1, at + 4):
                        if following not in timers:
                            timers.add(following)
                            heapq.heappush(heap, following)
                if at % 7 == 0:
                    timers.discard(at + 2)
                fired.append((key, "timer", at, self.next(key)))
        return fired


def by_key(found: Iterable[tuple[Any, ...]]) -> dict[str, list[tuple[Any, ...]]]:
    """Order matters within a key only."""
    keys: dict[str, list[tuple[Any, ...]]] = {}
    for one in found:
        keys.setdefault(one[0], []).append(one)
    return keys


ROW = st.fixed_dictionaries(
    {
        "k": st.sampled_from(["a", "b", "c"]),
        "t": st.integers(0, 100),
        "do": st.sampled_from(["register", "register", "delete", "nothing"]),
        "at": st.integers(0, 60),
    }
)
STEPS = st.lists(
    st.one_of(st.lists(ROW, max_size=10), st.integers(0, 70), st.sampled_from(["restore", "rescale"])), max_size=10
)


@settings(max_examples=150, deadline=None)
@given(STEPS, st.sampled_from([1, 3, 1000]))
def test_timers_fire_as_in_flink_whatever_the_cuts(steps: list, slice_timers: int) -> None:
    """Deleted ones do not fire, new ones take their place; across snapshots and rescales."""
    kept, keyed_process.TIMERS_PER_SLICE = keyed_process.TIMERS_PER_SLICE, slice_timers
    try:
        described = KeyedProcessSpec(("k",), Script(), OUTPUT, "t")
        reference = Reference()
        subtasks = [Harness(KeyedProcessOperator(described)).start()]
        for step in [*steps, 1000]:
            if isinstance(step, str):
                written = [one.snapshot() for one in subtasks]
                count = len(subtasks) if step == "restore" else 3 - len(subtasks)
                subtasks = [
                    Harness(
                        KeyedProcessOperator(KeyedProcessSpec(("k",), Script(), OUTPUT, "t")),
                        subtask=i,
                        parallelism=count,
                    ).start(restored_state(written))
                    for i in range(count)
                ]
                continue
            if isinstance(step, list):
                expected = [reference.row(row) for row in step]
                parts = split_batch(pa.RecordBatch.from_pylist(step, schema=SCHEMA), ["k"], 128, len(subtasks))
                for one, part in zip(subtasks, parts, strict=True):
                    one.process(part)
            else:
                expected = reference.advance(step)
                for one in subtasks:
                    one.watermark(step)
            found = [tuple(row.values()) for one in subtasks for row in one.rows()]
            assert by_key(found) == by_key(expected)
    finally:
        keyed_process.TIMERS_PER_SLICE = kept


class Remember(KeyedProcessFunction):
    """Uses state that is not a value, and a side output."""

    def open(self, context) -> None:
        self.seen = context.get_list_state(ListStateDescriptor("seen", pa.int64()))
        self.per = context.get_map_state(MapStateDescriptor("per", pa.string(), pa.int64()))

    def process_element(self, row, context):
        self.seen.add(row["v"])
        self.per.put(str(row["v"] % 2), row["v"])
        if row["v"] > 10:
            context.output("large", {"v": row["v"]})
            return None
        return ({"k": context.current_key[0], "seen": len(self.seen.get()), "odd": self.per.get("1")},)


def test_rows_of_one_batch_see_each_others_state() -> None:
    """Keys of several columns, list and map state, side output, a type inferred from the first values."""
    rows = pa.record_batch({"a": [1, 1, 2, 1], "b": ["x", "x", "x", "x"], "v": [2, 3, 4, 11]})
    harness = Harness(KeyedProcessOperator(KeyedProcessSpec(("a", "b"), Remember()))).start().process(rows)

    assert harness.rows() == [
        {"k": 1, "seen": 1, "odd": None},
        {"k": 1, "seen": 2, "odd": 3},
        {"k": 2, "seen": 1, "odd": None},
    ]
    assert harness.side["large"][0].to_pylist() == [{"v": 11}]


class Clocked(KeyedProcessFunction):
    """A processing-time timer that repeats itself three times."""

    def open(self, context) -> None:
        self.left = context.get_state(ValueStateDescriptor("left", pa.int64()))

    def process_element(self, row, context):
        self.left.update(3)
        context.timer_service.register_processing_time_timer(
            context.timer_service.current_processing_time() + row["after"]
        )

    def on_timer(self, timestamp_ms, context):
        left = self.left.value() - 1
        self.left.update(left)
        if left:
            context.timer_service.register_processing_time_timer(timestamp_ms + 10)
        return [{"k": context.current_key, "at": timestamp_ms}]


class Twice(KeyedProcessFunction):
    """Sets a timer of each time for one moment, and says which has fired."""

    def process_element(self, row, context) -> list[dict[str, Any]]:
        context.timer_service.register_event_time_timer(50)
        context.timer_service.register_processing_time_timer(50)
        return [{"of": context.time_domain}]

    def on_timer(self, timestamp_ms: int, context) -> list[dict[str, Any]]:
        return [{"of": context.time_domain}]


def test_a_timer_says_which_time_it_was_registered_for() -> None:
    """A function that sets timers of both has one method for them, and nothing else to tell them apart."""
    spec = KeyedProcessSpec(("k",), Twice(), pa.schema([("of", pa.string())]), "t")
    harness = Harness(KeyedProcessOperator(spec)).start()
    row = pa.RecordBatch.from_pylist([{"k": "a", "t": 1, "do": "", "at": 0}], schema=SCHEMA)
    assert harness.process(row).rows() == [{"of": None}]
    assert harness.advance(60).rows() == [{"of": "processing"}]
    assert harness.watermark(60).rows() == [{"of": "event"}]
    assert harness.process(row).rows() == [{"of": None}]


def test_processing_time_timers_fire_with_the_clock_and_survive_a_restore() -> None:
    """Also those that were due while nobody ran."""
    described = KeyedProcessSpec(("k",), Clocked())
    harness = Harness(KeyedProcessOperator(described))
    harness.time.advance(100)
    harness.start().process(pa.record_batch({"k": ["a", "b"], "after": [5, 7]}))
    harness.advance(104)
    assert harness.rows() == []

    harness.advance(105)
    assert harness.rows() == [{"k": "a", "at": 105}]

    written = harness.snapshot()
    again = Harness(KeyedProcessOperator(KeyedProcessSpec(("k",), Clocked())))
    again.time.advance(1000)
    again.start(restored_state([written])).advance(1000)
    assert sorted((row["k"], row["at"]) for row in again.rows()) == [
        ("a", 115),
        ("a", 125),
        ("b", 107),
        ("b", 117),
        ("b", 127),
    ]


class OverBatches(KeyedBatchProcessFunction):
    """Does nothing, with any state."""

    def process_batch(self, keys: Any, batch: pa.RecordBatch, state: Any) -> None: ...


def test_timers_of_the_clock_do_not_come_to_a_function_over_batches() -> None:
    """They stayed in its state, and never fired."""
    written = Harness(KeyedProcessOperator(KeyedProcessSpec(("k",), Clocked()))).start()
    written.process(pa.record_batch({"k": ["a", "b"], "after": [5, 7]}))
    again = Harness(KeyedBatchesOperator([(("k",), "")], [OverBatches().process_batch], OverBatches(), None))
    snapshot = restored_state([written.snapshot()])
    setting = "state.schema-evolution.drop-columns"
    with pytest.raises(
        StateError, match=rf"operator 'op': .* timers of processing time, .* unfired by {setting} = true"
    ):
        again.start(snapshot)
    operator = KeyedBatchesOperator([(("k",), "")], [OverBatches().process_batch], OverBatches(), None)
    Harness(operator, configuration={setting: "true"}).start(snapshot)


class Reminded(KeyedProcessFunction):
    """An event-time timer asks the clock to be called again."""

    def process_element(self, row, context):
        context.timer_service.register_event_time_timer(10)

    def on_timer(self, timestamp_ms, context):
        if timestamp_ms == 10:
            context.timer_service.register_processing_time_timer(50)
        return [{"k": context.current_key, "at": timestamp_ms}]


def test_a_timer_of_event_time_registers_one_of_the_clock() -> None:
    """It fires by the clock alone, without a row that comes after it."""
    harness = Harness(KeyedProcessOperator(KeyedProcessSpec(("k",), Reminded()))).start()
    harness.process(pa.record_batch({"k": ["a"]})).watermark(10)
    harness.advance(50)
    assert [row["at"] for row in harness.rows()] == [10, 50]


class Fails(KeyedProcessFunction):
    def process_element(self, row, context):
        return [{"v": 1 // row["v"]}]


def test_a_failing_row_is_named() -> None:
    """By its place in the batch."""
    harness = Harness(KeyedProcessOperator(KeyedProcessSpec(("k",), Fails()))).start()
    with pytest.raises(RowFailure) as raised:
        harness.process(pa.record_batch({"k": [1, 2, 3], "v": [1, 0, 1]}))

    assert (raised.value.row_index, type(raised.value.cause)) == (1, ZeroDivisionError)


class BeyondAllTime(KeyedProcessFunction):
    def __init__(self, time_ms: int, deletes: bool) -> None:
        self.time_ms, self.deletes = time_ms, deletes

    def process_element(self, row, context) -> None:
        timers = context.timer_service
        (timers.delete_event_time_timer if self.deletes else timers.register_event_time_timer)(self.time_ms)


@pytest.mark.parametrize("wrong", [2**63, -(2**63) - 1])
@pytest.mark.parametrize("deletes", [False, True])
def test_a_time_that_no_timer_has_room_for_is_named(wrong: int, deletes: bool) -> None:
    """A number beyond int64 is refused as what it is, whether a timer is set for it or forgotten."""
    harness = Harness(KeyedProcessOperator(KeyedProcessSpec(("k",), BeyondAllTime(wrong, deletes)))).start()
    with pytest.raises(StateError, match=f"a timer's time is int64 milliseconds since the epoch, which {wrong} is not"):
        harness.process(pa.record_batch({"k": [1]}))


class TooEarly(KeyedProcessFunction):
    def open(self, context) -> None:
        context.get_state(ValueStateDescriptor("n", pa.int64())).value()

    def process_element(self, row, context):
        return None


def test_state_has_no_key_in_open() -> None:
    """The message says where keyed state exists."""
    harness = Harness(KeyedProcessOperator(KeyedProcessSpec(("k",), TooEarly()))).start()
    with pytest.raises(StateError, match="without a current key"):
        harness.process(pa.record_batch({"k": [1]}))


class Lifecycle(KeyedProcessFunction):
    """With operator state and notifications of its own."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def open(self, context) -> None:
        self.calls.append(f"open {context.subtask_index}/{context.parallelism}")

    def close(self) -> None:
        self.calls.append("close")

    def initialize_state(self, context) -> None:
        self.state = context.operator_state_store.get_list_state("rows")
        self.calls.append(f"initialize {context.is_restored} {self.state.get()}")
        self.rows = sum(self.state.get())

    def snapshot_state(self, context) -> None:
        self.calls.append(f"snapshot {context.checkpoint_id}")
        self.state.update([self.rows])

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        self.calls.append(f"complete {checkpoint_id}")

    def notify_checkpoint_aborted(self, checkpoint_id: int) -> None:
        self.calls.append(f"aborted {checkpoint_id}")

    def process_element(self, row, context):
        self.rows += 1


def test_the_life_of_a_function() -> None:
    """State before open, close once; checkpointed like any other function."""
    function = Lifecycle()
    harness = Harness(KeyedProcessOperator(KeyedProcessSpec(("k",), function))).start()
    harness.process(pa.record_batch({"k": [1, 2]}))
    written = harness.snapshot(5)
    harness.operator.notify_checkpoint_complete(5)
    harness.operator.notify_checkpoint_aborted(6)
    harness.operator.close()
    harness.operator.close()
    restored = Lifecycle()
    Harness(KeyedProcessOperator(KeyedProcessSpec(("k",), restored))).start(restored_state([written]))

    assert function.calls == ["initialize False []", "open 0/1", "snapshot 5", "complete 5", "aborted 6", "close"]
    assert restored.calls[0] == "initialize True [2]"


def test_watermarks_pass_when_no_timer_is_due() -> None:
    """Also before the first row."""
    harness = Harness(KeyedProcessOperator(KeyedProcessSpec(("k",), Fails()))).start().watermark(5, work=False)

    assert harness.take() == [Watermark(5)]


class AtTheEnd(KeyedProcessFunction):
    """Says each key when there is no more to come."""

    def process_element(self, row, context):
        context.timer_service.register_event_time_timer(MAX_WATERMARK_MS)

    def on_timer(self, timestamp_ms, context):
        return [{"k": context.current_key}]


def test_a_timer_for_the_end_of_all_time_fires_for_every_key() -> None:
    """Those of keys that memory had no room for were taken to be due never, so that their results were missing."""
    harness = Harness(KeyedProcessOperator(KeyedProcessSpec(("k",), AtTheEnd()))).start()
    for first in range(0, 3000, 60):
        harness.process(pa.record_batch({"k": list(range(first, first + 60))}))
    assert sorted(row["k"] for row in harness.watermark(MAX_WATERMARK_MS).rows()) == list(range(3000))
