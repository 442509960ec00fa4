"""What data and users get wrong at keyed operators: refused by name, with the way out; or harmless, as Flink has it."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from snapline.dataflow.api.functions import KeyedBatchProcessFunction, KeyedProcessFunction
from snapline.dataflow.api.state import ListStateDescriptor, MapStateDescriptor, ValueStateDescriptor
from snapline.dataflow.api.watermarks import WatermarkStrategy
from snapline.dataflow.api.windows import (
    Aggregate,
    CountTrigger,
    EventTimeSessionWindows,
    SlidingEventTimeWindows,
    TumblingEventTimeWindows,
    TumblingProcessingTimeWindows,
)
from snapline.dataflow.elements import Watermark
from snapline.dataflow.errors import JobDefinitionError, StateError
from snapline.dataflow.graph.operator_specs import KeyedProcessSpec, WatermarkSpec, WindowAggregateSpec
from snapline.dataflow.key_groups import KeyGroupRange
from snapline.taskmanager.operators.base.failure import RowFailure
from snapline.taskmanager.operators.process.keyed_batches import KeyedBatchesOperator
from snapline.taskmanager.operators.process.keyed_process import KeyedProcessOperator
from snapline.taskmanager.operators.sources.watermark_operator import WatermarkOperator
from snapline.taskmanager.operators.windows.window_factory import create_window_operator
from snapline.taskmanager.state.keyed_backend import KeyedStateBackend
from tests.unit.taskmanager.operators.harness import Harness, restored_state


class Remember(KeyedProcessFunction):
    """Keeps the value, and a timer at the time that the row names."""

    def open(self, context) -> None:
        self.kept = context.get_state(ValueStateDescriptor("kept", pa.int64()))

    def process_element(self, row, context):
        self.kept.update(row["v"])
        if row.get("event_timer") is not None:
            context.timer_service.register_event_time_timer(row["event_timer"])
        if row.get("clock_timer") is not None:
            context.timer_service.register_processing_time_timer(row["clock_timer"])

    def on_timer(self, timestamp_ms, context):
        yield {"key": context.current_key, "timer": timestamp_ms, "kept": self.kept.value()}


def remember(time: str = "") -> Harness:
    return Harness(KeyedProcessOperator(KeyedProcessSpec(("k",), Remember(), event_time_column=time)))


def row(**values: Any) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([{"k": 1, "v": 1, **values}])


# --- keys -------------------------------------------------------------------------------------------------------------


def test_a_null_is_a_key_like_any_other() -> None:
    """State of its own, which comes back."""
    batch = pa.record_batch({"k": pa.array([None, 1, None], pa.int64()), "v": [1, 2, 3], "event_timer": [5, 5, 5]})
    harness = remember().start().process(batch)
    again = remember().start(restored_state([harness.snapshot()])).watermark(5)
    found = sorted((each["key"] is None, each["kept"]) for each in again.rows())
    assert found == [(False, 2), (True, 3)]


def test_a_key_that_is_not_a_number_is_one_key() -> None:
    """NaN is not equal to itself, as a key it is; zero has one sign."""
    keys = pa.array([float("nan"), -0.0, float("nan"), 0.0])
    batch = pa.record_batch({"k": keys, "v": [1, 2, 3, 4], "event_timer": [5, 5, 5, 5]})
    found = remember().start().process(batch).watermark(5).rows()
    assert sorted(each["kept"] for each in found) == [3, 4]


@pytest.mark.parametrize(
    ("key", "said"),
    [
        (
            pa.array(["1"]),
            "key column 'k' changed its type: the state was created for int64, this batch has string; cast",
        ),
        (
            pa.array([1], pa.int32()),
            "key column 'k' changed its type: the state was created for int64, this batch has int32",
        ),
    ],
)
def test_a_key_of_another_type_is_refused(key: pa.Array, said: str) -> None:
    """By column; what the state was stays."""
    harness = remember().start().process(row(event_timer=5))
    with pytest.raises(TypeError, match=said):
        harness.process(pa.record_batch({"k": key, "v": [2]}))
    assert [each["kept"] for each in harness.watermark(5).rows()] == [1]


def test_a_key_that_is_another_one_now_than_when_the_row_was_sent() -> None:
    """It belongs to another subtask: a snapshot with it could not be restored, so there is none, and the key is
    named."""
    backend = KeyedStateBackend(pa.schema([("k", pa.int64())]), KeyGroupRange(0, 63), 128)
    state = backend.get_state(ValueStateDescriptor("kept", pa.int64()))
    slots = backend.slots([pa.array(range(20))])
    state.put_batch(slots, pa.array(range(20)))
    with pytest.raises(
        StateError, match=r"holds the key k=\d+ of another subtask's key group.*compute them once, before key_by"
    ):
        backend.snapshot().encode()


def test_a_value_that_the_state_cannot_hold_is_named() -> None:
    """With the state and its type."""
    with pytest.raises(StateError, match="state 'kept' holds int64, which 'x' \\(str\\) is not"):
        remember().start().process(row(v="x"))


# --- windows and time -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [0, -5, 1.5, "1h", None, True])
@pytest.mark.parametrize(
    "make",
    [
        TumblingEventTimeWindows,
        TumblingProcessingTimeWindows,
        EventTimeSessionWindows,
        lambda size: SlidingEventTimeWindows(size, 10),
        lambda size: SlidingEventTimeWindows(10, size),
        CountTrigger,
    ],
)
def test_a_window_without_a_size_is_refused_when_it_is_declared(make: Any, size: Any) -> None:
    """As an error of the job's definition, which commands print in one line."""
    with pytest.raises(JobDefinitionError, match=f"(must be positive|whole milliseconds|at least 1 row), got {size!r}"):
        make(size)


@pytest.mark.parametrize("wrong", [pa.int32(), pa.string(), pa.date32(), pa.float64(), pa.time64("us"), pa.uint64()])
def test_event_time_of_a_wrong_type_is_refused(wrong: pa.DataType) -> None:
    """By column, where a function wants it and where watermarks are made of it."""
    batch = pa.record_batch({"k": [1], "v": [1], "t": pa.nulls(1, wrong)})
    for harness in (remember("t"), Harness(WatermarkOperator(WatermarkSpec(WatermarkStrategy("t"))))):
        with pytest.raises(
            TypeError, match=r"event time column 't' is .*: it must be a timestamp, or int64 milliseconds"
        ):
            harness.start().process(batch)


def test_event_time_of_a_wrong_unit_is_refused() -> None:
    """Microseconds that are read as milliseconds would end all windows at once, for good."""
    harness = Harness(WatermarkOperator(WatermarkSpec(WatermarkStrategy("t")))).start()
    harness.process(pa.record_batch({"t": pa.array([1_700_000_000_000])}))
    with pytest.raises(
        ValueError, match=r"event time column 't' holds 1700000000000000, which as milliseconds .* year 9999"
    ):
        harness.process(pa.record_batch({"t": pa.array([1_700_000_000_000_000])}))
    harness.process(pa.record_batch({"t": pa.array([1_700_000_000_000_000]).cast(pa.timestamp("us"))}))


@pytest.mark.parametrize("time", [2**63 - 1, -(2**63), 2**62])
@pytest.mark.parametrize(
    "assigner", [TumblingEventTimeWindows(10), SlidingEventTimeWindows(10, 5), EventTimeSessionWindows(10)]
)
def test_a_time_that_became_none_behind_its_watermarks_is_refused_by_windows(assigner: Any, time: int) -> None:
    """The ends of windows are computed in 64 bits: the row was in none, or in one that ended before it began."""
    spec = WindowAggregateSpec(("k",), "t", assigner, (Aggregate("n", "count"),))
    with pytest.raises(ValueError, match=rf"event time column 't' holds {time}, which .* since the epoch"):
        Harness(create_window_operator(spec)).start().process(row(t=5)).process(row(t=time))


@pytest.mark.parametrize("time", [-(2**63), 2**62, 2**61 + 1, 2**53])
@pytest.mark.parametrize("assigner", [TumblingEventTimeWindows(10), EventTimeSessionWindows(10)])
def test_a_second_that_is_no_time_does_not_become_one_by_its_milliseconds(assigner: Any, time: int) -> None:
    """A NaT of seconds, times a thousand, is the year 1970 in 64 bits, and its row was counted there."""
    spec = WindowAggregateSpec(("k",), "t", assigner, (Aggregate("n", "count"),))
    batch = pa.record_batch({"k": [1], "t": pa.array([time]).cast(pa.timestamp("s"))})
    with pytest.raises(
        ValueError, match=rf"event time column 't' is timestamp\[s\] and holds {time}, which is no time"
    ):
        Harness(create_window_operator(spec)).start().process(batch)


def test_event_time_that_is_null_is_refused_with_its_row() -> None:
    """Where a function wants it."""
    with pytest.raises(ValueError, match="event time column 't' is null in row 0: filter such rows out"):
        remember("t").start().process(row(t=None).set_column(2, "t", pa.nulls(1, pa.timestamp("ms"))))


def test_a_clock_that_goes_back_fires_nothing_twice_and_nothing_late() -> None:
    """Processing time stands still until the clock is where it was."""
    harness = remember().start()
    harness.advance(1_000).process(row(clock_timer=1_500, event_timer=None))
    assert harness.advance(200).rows() == []
    assert harness.context.processing_time.now_ms() == 1_000
    assert [each["timer"] for each in harness.advance(1_500).rows()] == [1_500]
    assert harness.advance(1_000).advance(1_600).rows() == []


def test_watermarks_never_go_back() -> None:
    """Whatever comes in."""
    harness = remember().start()
    harness.watermark(100).watermark(50).watermark(100)
    assert harness.take() == [Watermark(100)]


@pytest.mark.parametrize(
    ("time", "said"),
    [
        (
            datetime(2026, 1, 2, tzinfo=UTC),
            r"got datetime\.datetime\(2026.*, a datetime: take context\.timestamp_ms, or int\(",
        ),
        (1.5, r"got 1\.5, a float: int\(\.\.\.\) makes one of it"),
        ("5", "got '5', a str"),
    ],
)
def test_a_timer_whose_time_is_no_number_of_milliseconds_is_refused(time: Any, said: str) -> None:
    """With the row that registers it."""

    class Wrong(Remember):
        def process_element(self, row, context):
            context.timer_service.register_event_time_timer(time if row["v"] == 2 else np.int64(7))

    harness = Harness(KeyedProcessOperator(KeyedProcessSpec(("k",), Wrong()))).start()
    batch = pa.RecordBatch.from_pylist([{"k": 1, "v": 1}, {"k": 1, "v": 2}])
    with pytest.raises(RowFailure) as failure:
        harness.process(batch)
    assert re.search(f"a timer's time is whole milliseconds since the epoch, {said}", str(failure.value.cause))
    assert failure.value.row_index == 1


def test_a_timer_that_returns_no_iterable_of_rows_is_told() -> None:
    """As `process_element` is, for which the row is known besides."""

    class Wrong(Remember):
        def on_timer(self, timestamp_ms, context):
            return 5

    harness = Harness(KeyedProcessOperator(KeyedProcessSpec(("k",), Wrong()))).start()
    harness.process(row(event_timer=7))
    with pytest.raises(
        TypeError, match=r"'int' object is not iterable: .* on_timer, .* return an iterable of rows, or None"
    ):
        harness.watermark(7)


def test_what_is_handed_to_a_state_is_not_taken_for_rows() -> None:
    """A list state goes over what it is given, and says nothing of what functions return."""

    class Wrong(Remember):
        def open(self, context) -> None:
            self.all = context.get_list_state(ListStateDescriptor("all", pa.int64()))

        def process_element(self, row, context):
            self.all.add_all(row["v"])

    with pytest.raises(RowFailure) as failure:
        Harness(KeyedProcessOperator(KeyedProcessSpec(("k",), Wrong()))).start().process(row())
    assert "rows, or None" not in str(failure.value.cause)


@pytest.mark.parametrize("times", [np.array(["2026-01-02"], "datetime64[us]"), pa.array([1.5]), np.array([True])])
def test_times_of_timers_that_are_no_numbers_of_milliseconds_are_refused(times: Any) -> None:
    """Microseconds of a numpy datetime are not read as milliseconds."""

    class Wrong(KeyedBatchProcessFunction):
        def process_batch(self, keys, batch, state):
            state.register_event_time_timers(times, keys.rows)

    function = Wrong()
    operator = KeyedBatchesOperator([(("k",), "")], [function.process_batch], function, None)
    with pytest.raises(StateError, match=r"the times of timers are int64 milliseconds since the epoch, got"):
        Harness(operator).start().process(row())


@pytest.mark.parametrize("ask", ["append", "append to some", "lookup", "put keys", "put values"])
def test_a_column_that_does_not_have_a_value_for_each_row_is_refused_by_states_of_batches(ask: str) -> None:
    """Nobody reads what lies in memory behind the values that there are."""
    elements, prices = ListStateDescriptor("all", pa.int64()), MapStateDescriptor("prices", pa.int64(), pa.int64())
    one, two = pa.array([1], pa.int64()), pa.array([1, 2], pa.int64())

    class Wrong(KeyedBatchProcessFunction):
        def process_batch(self, keys, batch, state):
            match ask:
                case "append":
                    state.append(elements, one)
                case "append to some":
                    state.append(elements, one, np.array([0, 1]))
                case "lookup":
                    state.lookup(prices, one)
                case "put keys":
                    state.put_entries(prices, one, two)
                case "put values":
                    state.put_entries(prices, two, one)

    function = Wrong()
    operator = KeyedBatchesOperator([(("k",), "")], [function.process_batch], function, None)
    with pytest.raises(StateError, match=r"1 values for 2 rows: give one per row, in their order"):
        Harness(operator).start().process(pa.record_batch({"k": [1, 2]}))


def test_timers_in_the_past_fire_at_once() -> None:
    """Those of the clock in the next step, those of event time with the next watermark; a restored job keeps them."""
    harness = remember().start().advance(1_000).watermark(100)
    harness.take()
    harness.process(row(clock_timer=5, event_timer=50))
    again = remember().start(restored_state([harness.snapshot()]))
    for one in (harness, again):
        assert [each["timer"] for each in one.advance(1_000).rows()] == [5]
        assert [each["timer"] for each in one.watermark(101).rows()] == [50]
