"""Joins, connected streams, broadcast rules and batch functions, against dictionaries and loops."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime, timedelta
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from snapline.dataflow.api.function_contexts import BatchKeys, BatchState, Row
from snapline.dataflow.api.functions import (
    KeyedBatchProcessFunction,
    KeyedBroadcastProcessFunction,
    KeyedCoBatchProcessFunction,
    KeyedCoProcessFunction,
    SideOutput,
)
from snapline.dataflow.api.state import ListStateDescriptor, MapStateDescriptor, ValueStateDescriptor
from snapline.dataflow.api.state_ttl import StateTtlConfig
from snapline.dataflow.api.windows import SlidingEventTimeWindows, TumblingEventTimeWindows
from snapline.dataflow.elements import MAX_WATERMARK_MS, MIN_WATERMARK_MS, Watermark
from snapline.dataflow.errors import JobDefinitionError, StateError
from snapline.dataflow.graph.operator_specs import (
    CoProcessSpec,
    IntervalJoinSpec,
    JoinSide,
    KeyedBatchProcessSpec,
    TableLookupSpec,
    TemporalJoinSpec,
    WindowJoinSpec,
)
from snapline.taskmanager.operators.factory import create_operator
from snapline.taskmanager.operators.joins import stream_joins as joins
from snapline.taskmanager.operators.joins.window_join import JoinContents
from snapline.taskmanager.operators.windows import pane_windows, window_contents
from tests.unit.taskmanager.operators.driving import Subtasks, steps
from tests.unit.taskmanager.operators.harness import Harness, restored_state

pytestmark = pytest.mark.usefixtures("state_backend_and_checkpoints")

LEFT = pa.schema([("k", pa.string()), ("t", pa.int64()), ("a", pa.int64())])
RIGHT = pa.schema([("key", pa.string()), ("at", pa.timestamp("ms")), ("b", pa.int64())])
BOTH = pa.schema([*LEFT, *RIGHT])
SIDES = JoinSide(("k",), "t", LEFT), JoinSide(("key",), "at", RIGHT)
ROW = st.tuples(st.sampled_from(["a", "b", None]), st.integers(-50, 120), st.integers(0, 1000))


def create(spec: Any) -> Any:
    return create_operator(copy.deepcopy(spec), lambda: None)  # type: ignore[arg-type, return-value]


def rows_of_step(step: Any) -> Any:
    """The drawn triples as rows of their input."""
    if not isinstance(step, tuple):
        return step
    index, triples = step
    names = (LEFT, RIGHT)[index].names
    return index, [dict(zip(names, (k, _time(t) if index else t, v), strict=True)) for k, t, v in triples]


def _time(ms: int) -> Any:
    return pa.scalar(ms, pa.timestamp("ms")).as_py()


def pair(left: Any, right: Any) -> tuple[Any, ...]:
    return (*(left or (None,) * 3), *(right or (None,) * 3))


def alone(index: int, one: Any) -> tuple[Any, ...]:
    """A late row: in the columns of pairs, whichever side it is of."""
    return pair(one, None) if index == 0 else pair(None, one)


def found(rows: Iterable[dict[str, Any]]) -> list[tuple[Any, ...]]:
    out = []
    for row in rows:
        at = row["at"]
        ms = None if at is None else round((at - type(at)(1970, 1, 1)).total_seconds() * 1000)
        out.append((row["k"], row["t"], row["a"], row["key"], ms, row["b"]))
    return sorted(out, key=str)


class Story:
    """What a reference knows: rows of both sides that were not late, and the watermark."""

    late_right = True

    def __init__(self) -> None:
        self.watermark = MIN_WATERMARK_MS
        self.rows: tuple[list[Any], list[Any]] = ([], [])
        self.late: list[Any] = []

    def is_late(self, index: int, time: int) -> bool:
        return time <= self.watermark


class Interval(Story):
    def __init__(self, lower: int, upper: int) -> None:
        super().__init__()
        self.lower, self.upper = lower, upper

    def batch(self, index: int, triples: Sequence[Any]) -> list[Any]:
        out = []
        for one in triples:
            if self.is_late(index, one[1]):
                self.late.append(alone(index, one))
                continue
            for other in self.rows[1 - index]:
                left, right = (one, other) if index == 0 else (other, one)
                if left[0] == right[0] and self.lower <= right[1] - left[1] <= self.upper:
                    out.append(pair(left, right))
            self.rows[index].append(one)
        return out

    def advance(self, watermark: int) -> list[Any]:
        self.watermark = max(self.watermark, watermark)
        return []


class Temporal(Story):
    def __init__(self, how: str) -> None:
        super().__init__()
        self.how = how

    def batch(self, index: int, triples: Sequence[Any]) -> list[Any]:
        for one in triples:
            if index == 0 and self.is_late(0, one[1]):
                self.late.append(pair(one, None))
            else:
                self.rows[index].append(one)
        return []

    def advance(self, watermark: int) -> list[Any]:
        self.watermark = max(self.watermark, watermark)
        due = [one for one in self.rows[0] if one[1] <= self.watermark]
        self.rows[0][:] = [one for one in self.rows[0] if one[1] > self.watermark]
        out = []
        for one in due:
            versions = [v for v in self.rows[1] if v[0] == one[0] and v[1] <= one[1]]
            if versions:
                newest = max(v[1] for v in versions)
                out.append(pair(one, [v for v in versions if v[1] == newest][-1]))
            elif self.how == "left":
                out.append(pair(one, None))
        return out


class Windowed(Story):
    def __init__(self, size: int, slide: int, how: str) -> None:
        super().__init__()
        self.size, self.slide, self.how = size, slide, how

    def windows(self, time: int) -> list[int]:
        last = time - time % self.slide
        return [s for s in range(last, last - self.size, -self.slide) if s <= time < s + self.size]

    def batch(self, index: int, triples: Sequence[Any]) -> list[Any]:
        for one in triples:
            if self.windows(one[1])[0] + self.size - 1 <= self.watermark:
                self.late.append(alone(index, one))
            else:
                self.rows[index].append(one)
        return []

    def advance(self, watermark: int) -> list[Any]:
        before, self.watermark = self.watermark, max(self.watermark, watermark)
        out = []
        everyone = [*self.rows[0], *self.rows[1]]
        for key in {one[0] for one in everyone}:
            for start in {s for one in everyone if one[0] == key for s in self.windows(one[1])}:
                if not before < start + self.size - 1 <= self.watermark:
                    continue
                lefts, rights = (
                    [one for one in side if one[0] == key and start <= one[1] < start + self.size] for side in self.rows
                )
                out += [pair(left, right) for left in lefts for right in rights]
                if not rights and self.how in ("left", "full"):
                    out += [pair(left, None) for left in lefts]
                if not lefts and self.how in ("right", "full"):
                    out += [pair(None, right) for right in rights]
        return out


def tell(reference: Any, spec: Any, story: list[Any]) -> None:
    subtasks = Subtasks(lambda: create(spec), (("k",), ("key",)), (LEFT, RIGHT))
    for step in [*story, MAX_WATERMARK_MS]:
        rows = found(subtasks.step(rows_of_step(step)))
        if isinstance(step, str):
            assert rows == []
        elif isinstance(step, tuple):
            assert rows == sorted(reference.batch(*step), key=str)
        else:
            assert rows == sorted(reference.advance(step), key=str)
    assert found(subtasks.side.get("late", [])) == sorted(reference.late, key=str)


@settings(max_examples=40, deadline=None)
@given(steps(ROW, 2), st.sampled_from([(-5, 5), (0, 30), (3, 10), (-40, -2), (0, 0)]))
def test_interval_join_equals_the_reference(story: list, bounds: tuple[int, int]) -> None:
    """Any cuts, restores and rescales."""
    tell(Interval(*bounds), IntervalJoinSpec(*SIDES, BOTH, *bounds, "late"), story)


@settings(max_examples=40, deadline=None)
@given(steps(ROW, 2))
def test_a_join_without_bounds_keeps_everything(story: list) -> None:
    """No row is late."""
    reference = Interval(-(10**6), 10**6)
    reference.is_late = lambda index, time: False  # type: ignore[method-assign]
    sides = JoinSide(("k",), "", LEFT), JoinSide(("key",), "", RIGHT)
    tell(reference, IntervalJoinSpec(*sides, BOTH, None, None), story)


@settings(max_examples=40, deadline=None)
@given(steps(ROW, 2), st.sampled_from(["inner", "left"]), st.integers(1, 3))
def test_temporal_join_equals_the_reference(story: list, how: str, slice_rows: int) -> None:
    """The latest version at a row's time; of versions of one time the last that came."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(joins, "ROWS_PER_SLICE", slice_rows)
        tell(Temporal(how), TemporalJoinSpec(*SIDES, BOTH, how, "late"), story)


@settings(max_examples=40, deadline=None)
@given(
    steps(ROW, 2),
    st.sampled_from([(10, 10), (10, 10), (20, 5), (15, 10)]),
    st.sampled_from(["inner", "left", "right", "full"]),
    st.sampled_from([1, 3, 1_000]),
    st.integers(1, 3),
)
def test_window_join_equals_the_reference(
    story: list, shape: tuple[int, int], how: str, whole_rows: int, slice_windows: int
) -> None:
    """Every pair of every window, and what outer joins add, by way of the state or of windows that fire whole."""
    assigner = TumblingEventTimeWindows(shape[0]) if shape[0] == shape[1] else SlidingEventTimeWindows(*shape)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pane_windows, "WHOLE_WINDOW_ROWS", whole_rows)
        patch.setattr(JoinContents, "windows_per_slice", slice_windows)
        tell(Windowed(*shape, how), WindowJoinSpec(*SIDES, assigner, BOTH, how, 0, "late"), story)


@pytest.mark.parametrize("whole_rows", [1, 1_000])
def test_pairs_of_a_window_join_come_out_a_few_at_a_time(monkeypatch: pytest.MonkeyPatch, whole_rows: int) -> None:
    """Those of thousands of keys were put out in one step, however many they were, and memory held them all."""
    monkeypatch.setattr(pane_windows, "WHOLE_WINDOW_ROWS", whole_rows)
    monkeypatch.setattr(window_contents, "ROWS_PER_SLICE", 50)
    harness = Harness(create(WindowJoinSpec(*SIDES, TumblingEventTimeWindows(10), BOTH))).start()
    for _ in range(2):  # the first batch of a schema comes into the state
        for index in (0, 1):
            _, rows = rows_of_step((index, [(str(key), 1, 0) for key in range(10) for _ in range(2)]))
            harness.operator.process_batch(pa.RecordBatch.from_pylist(rows, schema=(LEFT, RIGHT)[index]), index)
    harness.watermark(9, work=False)
    slices = list[int]()
    while harness.operator.has_pending_work:
        harness.operator.continue_work()
        slices.append(len(harness.rows()))
    assert max(slices) <= 32
    assert sum(slices) == 160


def test_old_rows_of_joins_are_forgotten() -> None:
    """State does not grow with the stream."""
    interval, temporal = create(IntervalJoinSpec(*SIDES, BOTH, 0, 10)), create(TemporalJoinSpec(*SIDES, BOTH))
    for operator in (interval, temporal):
        harness = Harness(operator).start()
        for second in range(40):
            for index in (0, 1):
                _, rows = rows_of_step((index, [("a", second * 1000, second)]))
                operator.process_batch(pa.RecordBatch.from_pylist(rows, schema=(LEFT, RIGHT)[index]), index)
            harness.watermark(second * 1000)
        assert sum(len(side) for side in operator._rows) <= 3


def intervals(bounds: tuple[int, int]) -> Any:
    return pytest.param(IntervalJoinSpec(*SIDES, BOTH, *bounds), 190 - max(bounds[1], 0), id=f"{bounds}")


def windows(size: int, slide: int, reached: int) -> Any:
    assigner = SlidingEventTimeWindows(size, slide)
    return pytest.param(WindowJoinSpec(*SIDES, assigner, BOTH), reached, id=f"{size} every {slide}")


@pytest.mark.parametrize(
    ("spec", "last"),
    [
        *map(intervals, [(0, 40), (-40, 0), (-40, 40), (20, 40), (-40, -20)]),
        windows(40, 40, 159),
        windows(40, 20, 159),
        windows(10, 10, 189),
        windows(20, 50, 190),
        windows(1, 1, 190),
        pytest.param(TemporalJoinSpec(*SIDES, BOTH), 190, id="temporal"),
    ],
)
def test_pairs_of_a_join_are_not_late_for_what_is_behind_it(spec: Any, last: int) -> None:
    """Their event time is that of the left row, which may have waited for the right one: each is beyond all watermarks
    that have left before it, also those of a job that goes on from a snapshot. `last`: the one before the end."""
    harness, reached, pairs = Harness(create(spec)).start(), MIN_WATERMARK_MS, 0
    for time in range(0, 200, 10):
        for index in (0, 1):
            _, rows = rows_of_step((index, [("a", time, 1)]))
            harness.operator.process_batch(pa.RecordBatch.from_pylist(rows, schema=(LEFT, RIGHT)[index]), index)
        if time == 100:
            emitted = harness.take()
            harness = Harness(create(spec)).start(restored_state([harness.snapshot()]))
            harness.emitted = emitted
        for one in harness.watermark(time).take():
            if isinstance(one, pa.RecordBatch):
                assert min(one.column("t").to_pylist()) > reached
                pairs += one.num_rows
            else:
                reached = one.timestamp_ms
    assert pairs > 5
    assert reached == last
    assert harness.watermark(MAX_WATERMARK_MS).take()[-1].timestamp_ms == MAX_WATERMARK_MS


# --- connected streams ------------------------------------------------------------------------------------------------


class Balance(KeyedCoProcessFunction):
    """Adds the left rows up, takes the right ones away; a timer 10 ms after each left row says the balance."""

    def open(self, context: Any) -> None:
        self.balance = context.get_state(ValueStateDescriptor("balance", pa.int64()))

    def process_element1(self, row: Row, context: Any) -> None:
        self.balance.update((self.balance.value() or 0) + row["a"])
        context.timer_service.register_event_time_timer(context.timestamp_ms + 10)

    def process_element2(self, row: Row, context: Any) -> list[Row]:
        self.balance.update((self.balance.value() or 0) - row["b"])
        return [{"key": context.current_key, "time": context.timestamp_ms, "balance": self.balance.value()}]

    def on_timer(self, timestamp_ms: int, context: Any) -> list[Row]:
        return [{"key": context.current_key, "time": timestamp_ms, "balance": self.balance.value()}]


class BatchBalance(KeyedCoBatchProcessFunction):
    """The same, without what comes out for right rows."""

    balance = ValueStateDescriptor("balance", pa.int64())

    def process_batch1(self, keys: BatchKeys, batch: pa.RecordBatch, state: BatchState) -> None:
        self._add(keys, batch.column("a").to_numpy(), state)
        state.register_event_time_timers(state.event_times_ms + 10, keys.rows)

    def process_batch2(self, keys: BatchKeys, batch: pa.RecordBatch, state: BatchState) -> None:
        self._add(keys, -batch.column("b").to_numpy(), state)

    def _add(self, keys: BatchKeys, amounts: Any, state: BatchState) -> None:
        sums = state.get(self.balance).fill_null(0).to_numpy() + np.bincount(keys.rows, amounts, len(keys)).astype(
            np.int64
        )
        state.put(self.balance, pa.array(sums))

    def on_timers(self, keys: BatchKeys, times_ms: Any, state: BatchState) -> pa.RecordBatch:
        rows = pa.array(keys.rows)
        columns = [keys.columns.column(0).take(rows), pa.array(times_ms), state.get(self.balance).take(rows)]
        return pa.RecordBatch.from_arrays(columns, names=["key", "time", "balance"])


class Balances(Story):
    def __init__(self, say_right: bool) -> None:
        super().__init__()
        self.balance: dict[Any, int] = {}
        self.timers: set[tuple[int, Any]] = set()
        self.say_right = say_right

    def batch(self, index: int, triples: Sequence[Any]) -> list[Any]:
        out = []
        for key, time, amount in triples:
            self.balance[key] = self.balance.get(key, 0) + (amount if index == 0 else -amount)
            if index == 0:
                self.timers.add((time + 10, key))
            elif self.say_right:
                out.append((key, time, self.balance[key]))
        return out

    def advance(self, watermark: int) -> list[Any]:
        if watermark <= self.watermark:
            return []
        self.watermark = watermark
        due = {timer for timer in self.timers if timer[0] <= watermark}
        self.timers -= due
        return [(key, time, self.balance[key]) for time, key in due]


@settings(max_examples=40, deadline=None)
@given(steps(ROW, 2), st.booleans())
def test_connected_streams_share_state_and_timers(story: list, batches: bool) -> None:
    """Row by row and batch by batch, under different names of the key."""
    schema = pa.schema([("key", pa.string()), ("time", pa.int64()), ("balance", pa.int64())])
    function = BatchBalance() if batches else Balance()
    spec = CoProcessSpec((("k",), ("key",)), ("t", "at"), function, schema, batches=batches)
    subtasks = Subtasks(lambda: create(spec), (("k",), ("key",)), (LEFT, RIGHT))
    reference = Balances(not batches)
    for step in [*story, MAX_WATERMARK_MS]:
        rows = sorted([tuple(row.values()) for row in subtasks.step(rows_of_step(step))], key=str)
        if isinstance(step, tuple):
            assert rows == sorted(reference.batch(*step), key=str)
        elif not isinstance(step, str):
            assert rows == sorted(reference.advance(step), key=str)


LIMITS = MapStateDescriptor("limits", pa.string(), pa.timestamp("ms"))


class Filter(KeyedBroadcastProcessFunction):
    """Lets rows pass that are later than the limit of their key, says how many of the key have passed."""

    def open(self, context: Any) -> None:
        self.passed = context.get_state(ValueStateDescriptor("passed", pa.int64()))

    def process_element(self, row: Row, context: Any) -> list[Row] | None:
        limit = context.get_broadcast_state(LIMITS).get(row["k"] or "")
        if limit is None or _time(row["t"]) <= limit:
            return None
        self.passed.update((self.passed.value() or 0) + 1)
        return [{"k": row["k"], "t": row["t"], "passed": self.passed.value()}]

    def process_broadcast_element(self, row: Row, context: Any) -> None:
        context.get_broadcast_state(LIMITS)[row["key"] or ""] = row["at"]


@settings(max_examples=40, deadline=None)
@given(steps(ROW, 2))
def test_rules_reach_all_subtasks_and_survive_a_rescale(story: list) -> None:
    """Broadcast state is the same everywhere."""
    spec = CoProcessSpec((("k",), ()), ("t", ""), Filter(), None, (LIMITS,))
    subtasks = Subtasks(lambda: create(spec), (("k",), ("key",)), (LEFT, RIGHT))
    limits: dict[str, int] = {}
    passed: dict[Any, int] = {}
    for step in story:
        if isinstance(step, tuple) and step[0] == 1:
            _, rows = rows_of_step(step)
            for one in subtasks.all:
                one.operator.process_batch(pa.RecordBatch.from_pylist(rows, schema=RIGHT), 1)
            limits.update((key or "", time) for key, time, _ in step[1])
            continue
        out = [tuple(row.values()) for row in subtasks.step(rows_of_step(step))]
        expected = []
        if isinstance(step, tuple):
            for key, time, _ in step[1]:
                if time > limits.get(key or "", 10**9):
                    passed[key] = passed.get(key, 0) + 1
                    expected.append((key, time, passed[key]))
        assert sorted(out, key=str) == sorted(expected, key=str)


class Counted(Filter):
    """Keeps its state in a list, and counts the rules in what `open` has made."""

    def open(self, context: Any) -> None:
        super().open(context)
        self.rules, self.others = [0], [context.get_list_state(ListStateDescriptor("times", pa.int64()))]

    def process_element(self, row: Row, context: Any) -> list[Row]:
        self.passed.update((self.passed.value() or 0) + 1)
        self.others[0].add(row["a"])
        return [{"rules": self.rules[0], "passed": self.passed.value(), "times": list(self.others[0].get())}]

    def process_broadcast_element(self, row: Row, context: Any) -> None:
        self.rules[0] += 1
        if row["b"] == 1:
            self.passed.value()


def test_a_rule_before_the_first_row_finds_the_function_opened() -> None:
    """Its `open` has run once, and the states that it asked for are those of the rows that come then, also after a
    restore of a subtask that has had no row."""
    spec = CoProcessSpec((("k",), ()), ("", ""), Counted(), None, (LIMITS,))
    rule = pa.RecordBatch.from_pylist([{"key": "a", "at": None, "b": 0}] * 2, schema=RIGHT)
    row = pa.RecordBatch.from_pylist([{"k": "a", "t": 1, "a": 7}], schema=LEFT)
    harness = Harness(create(spec)).start()
    harness.operator.process_batch(rule, 1)
    harness = Harness(create(spec)).start(restored_state([harness.snapshot()]))
    harness.operator.process_batch(rule, 1)
    assert [{"rules": 2, "passed": 1, "times": [7]}] == harness.process(row).rows()
    again = Harness(create(spec)).start(restored_state([harness.snapshot()]))
    assert [{"rules": 0, "passed": 2, "times": [7, 7]}] == again.process(row).rows()


def test_a_rule_cannot_read_the_state_of_keys() -> None:
    """There is no current key, whether or not a row has come before."""
    spec = CoProcessSpec((("k",), ()), ("", ""), Counted(), None, (LIMITS,))
    rule = pa.RecordBatch.from_pylist([{"key": "a", "at": None, "b": 1}], schema=RIGHT)
    with pytest.raises(Exception, match="state 'passed' was used without a current key"):
        Harness(create(spec)).start().operator.process_batch(rule, 1)


def test_rows_cannot_change_rules() -> None:
    """Only what all subtasks see may."""

    class Meddler(Filter):
        def process_element(self, row: Row, context: Any) -> None:
            context.get_broadcast_state(LIMITS)["x"] = None

    harness = Harness(create(CoProcessSpec((("k",), ()), ("t", ""), Meddler(), None, (LIMITS,)))).start()
    with pytest.raises(Exception, match="does not support item assignment"):
        harness.process(pa.RecordBatch.from_pylist([{"k": "a", "t": 1, "a": 1}], schema=LEFT))


def test_rules_are_asked_for_by_their_descriptor() -> None:
    """A name in its place ended in an AttributeError of the engine."""

    class Named(Filter):
        def process_element(self, row: Row, context: Any) -> None:
            context.get_broadcast_state("limits")

    harness = Harness(create(CoProcessSpec((("k",), ()), ("t", ""), Named(), None, (LIMITS,)))).start()
    with pytest.raises(Exception, match=r"asked for by its MapStateDescriptor, not by 'limits': give one .*\(limits\)"):
        harness.process(pa.RecordBatch.from_pylist([{"k": "a", "t": 1, "a": 1}], schema=LEFT))


@pytest.mark.parametrize(
    "put",
    [
        lambda rules: rules.__setitem__("b", "late"),
        lambda rules: rules.update(b="late"),
        lambda rules: rules.setdefault("b", "late"),
        lambda rules: rules.__ior__({"b": "late"}),  # |=
        lambda rules: rules.__setitem__(7, None),
    ],
)
def test_a_rule_that_is_none_of_its_types_is_refused_with_the_row_that_brought_it(put: Callable[[Any], None]) -> None:
    """It was taken, and the next checkpoint failed, which knows no row; without checkpoints nothing was said."""

    class Hasty(Filter):
        def process_broadcast_element(self, row: Row, context: Any) -> None:
            rules = context.get_broadcast_state(LIMITS)
            rules["a"] = datetime(2024, 1, 1)  # noqa: DTZ001 - the type has no zone
            assert rules.setdefault("a") == rules["a"]
            put(rules)

    harness = Harness(create(CoProcessSpec((("k",), ()), ("t", ""), Hasty(), None, (LIMITS,)))).start()
    with pytest.raises(Exception, match=r"row 0 .*state 'limits' holds .*, which .* is not"):
        harness.operator.process_batch(pa.RecordBatch.from_pylist([{"key": "a", "at": None, "b": 0}], schema=RIGHT), 1)


# --- batch functions --------------------------------------------------------------------------------------------------


class Tally(KeyedBatchProcessFunction):
    """Lists, maps and values of a key in columns."""

    rows, values, last = (
        ListStateDescriptor("rows", pa.int64()),
        MapStateDescriptor("values", pa.int64(), pa.int64()),
        ValueStateDescriptor("last", pa.int64()),
    )

    def process_batch(self, keys: BatchKeys, batch: pa.RecordBatch, state: BatchState) -> Any:
        state.append(self.rows, batch.column("a"))
        known = state.lookup(self.values, batch.column("a"))
        state.put_entries(self.values, batch.column("a"), batch.column("t"))
        lengths = state.get(self.rows).value_lengths()
        columns = [keys.columns.column(0), lengths]
        yield pa.RecordBatch.from_arrays(columns, names=["k", "n"])
        yield SideOutput("known", batch.filter(known.is_valid()))


@settings(max_examples=40, deadline=None)
@given(steps(ROW, 1))
def test_batch_functions_see_their_keys_once(story: list) -> None:
    """Lists grow by rows, look-ups are per row, side outputs take batches."""
    subtasks = Subtasks(lambda: create(KeyedBatchProcessSpec(("k",), Tally())), (("k",),), (LEFT,))
    rows: dict[Any, int] = {}
    seen: dict[Any, set[int]] = {}
    known = 0
    for step in story:
        out = sorted([tuple(row.values()) for row in subtasks.step(rows_of_step(step))], key=str)
        if isinstance(step, tuple):
            known += sum(value in seen.get(key, ()) for key, _, value in step[1])
            for key, _, value in step[1]:
                rows[key] = rows.get(key, 0) + 1
                seen.setdefault(key, set()).add(value)
            assert out == sorted({(key, rows[key]) for key, _, _ in step[1]}, key=str)
    assert len(subtasks.side.get("known", [])) == known


def test_a_column_of_another_length_is_refused() -> None:
    """A value per key, not per row."""

    class Wrong(KeyedBatchProcessFunction):
        def process_batch(self, keys: BatchKeys, batch: pa.RecordBatch, state: BatchState) -> None:
            state.put(ValueStateDescriptor("v", pa.int64()), batch.column("a"))

    rows = [{"k": "a", "t": 1, "a": 1}, {"k": "a", "t": 2, "a": 2}]
    with pytest.raises(StateError, match="2 values for 1 keys"):
        Harness(create(KeyedBatchProcessSpec(("k",), Wrong()))).start().process(
            pa.RecordBatch.from_pylist(rows, schema=LEFT)
        )


def test_a_time_to_live_is_refused_where_a_function_works_on_columns() -> None:
    """It was told to cast its column, and what it read held the times and never expired."""
    total = ValueStateDescriptor("total", pa.int64(), ttl=StateTtlConfig(timedelta(seconds=1)))

    class Fleeting(KeyedBatchProcessFunction):
        def process_batch(self, keys: BatchKeys, batch: pa.RecordBatch, state: BatchState) -> None:
            state.get(total)

    with pytest.raises(StateError, match="'total' has a time-to-live, which a function over batches cannot have"):
        Harness(create(KeyedBatchProcessSpec(("k",), Fleeting()))).start().process(pa.record_batch({"k": ["a"]}))


# --- tables -----------------------------------------------------------------------------------------------------------


def lookup(table: Any, how: str = "left") -> Harness:
    return Harness(create(TableLookupSpec(lambda: table, ("k",), ("key",), how))).start()


def test_a_static_table_adds_its_columns() -> None:
    """Nulls where it has no row, or no row at all."""
    table = pa.table({"key": ["a", "b"], "name": ["Anna", None], "n": [1, 2]})
    batch = pa.record_batch({"k": ["b", "x", "a", None]})

    assert [tuple(r.values()) for r in lookup(table).process(batch).rows()] == [
        ("b", None, 2), ("x", None, None), ("a", "Anna", 1), (None, None, None),
    ]  # fmt: skip
    assert [r["k"] for r in lookup(table, "inner").process(batch).rows()] == ["b", "a"]


@pytest.mark.parametrize(
    ("table", "message"),
    [
        (pa.table({"key": ["a", "a"]}), "several rows for key='a': give it one row per key"),
        (pa.table({"id": ["a"]}), "has no column 'key': it has id"),
        (pa.table({"key": ["a"], "k": [1]}), "both the stream and the table have a column 'k'"),
        (pa.table({"key": [1]}), "column 'k' is string and the table's 'key' is int64: cast one of them"),
        (None, "the function that loads the table returned a NoneType: return a pyarrow.Table"),
        ({"key": ["a"]}, "the function that loads the table returned a dict: return a pyarrow.Table"),
    ],
)
def test_unusable_tables_are_refused(table: Any, message: str) -> None:
    """With the way out."""
    with pytest.raises(JobDefinitionError, match=message):
        lookup(table).process(pa.record_batch({"k": ["a"]}))


def test_a_stream_without_the_column_that_is_looked_up_is_told_by_name() -> None:
    """Where its columns are not known before the first batch; Arrow's own error named none of those that there are."""
    operator = create(TableLookupSpec(lambda: pa.table({"key": [1], "v": [2]}), ("customer",), ("key",)))
    with pytest.raises(KeyError, match=r"no column to look up 'customer' in the batch \(did you mean 'customers'\?\)"):
        Harness(operator).start().process(pa.record_batch({"customers": [1]}))


def test_a_subtask_without_rows_of_one_side_restores_with_one_that_had_both() -> None:
    """What one snapshot lacks, the other brings."""
    spec = CoProcessSpec((("k",), ("key",)), ("t", "at"), Balance(), None)
    empty = Harness(create(spec)).start().snapshot()
    full = Harness(create(spec)).start()
    rows = [{"k": str(i), "t": 1, "a": 1} for i in range(9)]
    full.operator.process_batch(pa.RecordBatch.from_pylist(rows, schema=LEFT), 0)
    again = Harness(create(spec)).start(restored_state([empty, full.snapshot()]))
    assert len(again.watermark(100).rows()) > 0


@pytest.mark.parametrize(
    ("spec", "batches", "message"),
    [
        (
            CoProcessSpec((("k",), ("key",)), ("", ""), Balance(), None),
            [{"k": pa.nulls(1)}],
            "key column 'k' is of type null in the first batch",
        ),
        (
            CoProcessSpec((("k",), ("key",)), ("", ""), BatchBalance(), None, batches=True),
            [{"key": pa.array([1]), "b": pa.array([1])}, {"key": pa.array(["x"]), "b": pa.array([1])}],
            r"the state was created for int64, this batch has string; .* \(this input calls it 'key'\)",
        ),
        (
            IntervalJoinSpec(*SIDES, BOTH, 0, 1),
            [{"key": pa.array(["x"]), "at": pa.array([1], pa.timestamp("ms"))}],
            "no column 'b', which the join was built for: the columns are key, at",
        ),
        (
            IntervalJoinSpec(*SIDES, BOTH, 0, 1),
            [{"key": pa.array(["x"]), "at": pa.array(["noon"]), "b": pa.array([1])}],
            "column 'at' as string, but schema= declares timestamp",
        ),
    ],
)
def test_unusable_columns_are_named(spec: Any, batches: list[dict[str, Any]], message: str) -> None:
    """With what is there instead."""
    operator = create(spec)
    Harness(operator).start()
    with pytest.raises((KeyError, TypeError), match=message):
        for columns in batches:
            operator.process_batch(pa.record_batch(columns), 1 if "key" in columns else 0)


OF_EACH_KIND = pytest.mark.parametrize(
    "spec",
    [
        WindowJoinSpec(*SIDES, TumblingEventTimeWindows(10), BOTH),
        IntervalJoinSpec(*SIDES, BOTH, -5, 5),
        TemporalJoinSpec(*SIDES, BOTH),
    ],
    ids=["window", "interval", "temporal"],
)


@pytest.mark.parametrize("index", [0, 1])
@OF_EACH_KIND
def test_what_is_no_time_is_refused(spec: Any, index: int) -> None:
    """A join without windows took it for a row that comes too late, or kept it where no partner could find it."""
    rows = pa.RecordBatch.from_pylist([{(LEFT, RIGHT)[index].names[0]: "a"}], schema=(LEFT, RIGHT)[index])
    name = ("t", "at")[index]
    missing = pa.array([-(2**63)]).view(rows.schema.field(name).type)
    batch = rows.set_column(1, name, missing)
    for watermark in (None, 50):
        harness = Harness(create(spec)).start()
        if watermark is not None:
            harness.watermark(watermark)
        with pytest.raises(ValueError, match=f"event time column '{name}' .*, which is no time"):
            harness.operator.process_batch(batch, index)


KEYS_OF_TABLE = st.lists(st.sampled_from(["a", "b", "c", None]), unique=True, max_size=4)


@given(
    keys=KEYS_OF_TABLE,
    batches=st.lists(st.lists(st.sampled_from(["a", "b", "c", "d", None]), max_size=6), max_size=5),
    how=st.sampled_from(["left", "inner"]),
)
def test_a_static_table_equals_the_reference(keys: list[Any], batches: list[list[Any]], how: str) -> None:
    """A dictionary, row by row, however the stream is cut."""
    table = pa.table({"key": pa.array(keys, pa.string()), "n": pa.array(range(len(keys)), pa.int64())})
    values = dict(zip(keys, range(len(keys)), strict=True))
    harness = lookup(table, how)
    found = []
    for keys_of_batch in batches:
        harness.operator.process_batch(pa.record_batch({"k": pa.array(keys_of_batch, pa.string())}))
        found += harness.rows()
    rows = [key for each in batches for key in each]
    assert found == [{"k": key, "n": values.get(key)} for key in rows if how == "left" or key in values]


@OF_EACH_KIND
def test_rows_that_come_too_late_for_a_join_are_counted(spec: Any) -> None:
    """A version of a temporal join is never late, and a row that is dropped counts also when nobody reads it."""
    harness = Harness(create(spec)).start()
    assert harness.context.metrics.counter("late_rows").value == 0
    harness.watermark(50)
    for index in (0, 1):
        rows = [dict(zip((LEFT, RIGHT)[index].names, ("a", _time(t) if index else t, 1), strict=True)) for t in (1, 90)]
        harness.operator.process_batch(pa.RecordBatch.from_pylist(rows, schema=(LEFT, RIGHT)[index]), index)
    late = 1 if isinstance(spec, TemporalJoinSpec) else 2
    assert harness.context.metrics.counter("late_rows").value == late


@pytest.mark.parametrize(
    "spec",
    [
        WindowJoinSpec(*SIDES, TumblingEventTimeWindows(10), BOTH),
        WindowJoinSpec(*SIDES, SlidingEventTimeWindows(10, 5), BOTH, allowed_lateness_ms=7),
        IntervalJoinSpec(*SIDES, BOTH, -5, 9),
        IntervalJoinSpec(*SIDES, BOTH, -9, -5),
        TemporalJoinSpec(*SIDES, BOTH),
    ],
    ids=["window", "late updates", "interval", "interval before", "temporal"],
)
def test_no_pair_is_late_for_who_follows(spec: Any) -> None:
    """A pair has the event time of its left row, and windows behind a join dropped it where its partner came later."""
    harness = Harness(create(spec)).start()
    for end in range(3, 60, 3):
        for index in (0, 1):
            _, rows = rows_of_step((index, [("a", t, t) for t in range(end - 6, end + 4)]))
            harness.operator.process_batch(pa.RecordBatch.from_pylist(rows, schema=(LEFT, RIGHT)[index]), index)
        harness.watermark(end)

    reached, pairs = MIN_WATERMARK_MS, 0
    for element in harness.emitted:
        if isinstance(element, Watermark):
            reached = element.timestamp_ms
        else:
            pairs += element.num_rows
            assert min(element["t"].to_pylist()) > reached
    assert pairs
    assert harness.watermark(MAX_WATERMARK_MS).take()[-1] == Watermark(MAX_WATERMARK_MS)
