"""Tumbling windows on whole batches, against a dictionary."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from snapline.dataflow.api.batch_aggregates import HeldAggregate
from snapline.dataflow.api.windows import (
    Aggregate,
    EventTimeSessionWindows,
    RowsBy,
    SlidingEventTimeWindows,
    TumblingEventTimeWindows,
)
from snapline.dataflow.columnar.key_partition import split_batch
from snapline.dataflow.elements import MAX_WATERMARK_MS, MIN_WATERMARK_MS, Watermark
from snapline.dataflow.errors import StateError
from snapline.dataflow.graph.operator_specs import WindowAggregateSpec, WindowProcessSpec
from snapline.taskmanager.operators.windows.window_contents import AccumulatorContents
from snapline.taskmanager.operators.windows.window_factory import create_window_operator
from snapline.taskmanager.operators.windows.window_operator import WINDOW_TIME_STATE
from tests.unit.taskmanager.operators.harness import Harness, restored_state

pytestmark = pytest.mark.usefixtures("state_backend_and_checkpoints")

AGGREGATES = (
    Aggregate("rows", "count"),
    Aggregate("values", "count", "v"),
    Aggregate("total", "sum", "v"),
    Aggregate("least", "min", "v"),
    Aggregate("greatest", "max", "v"),
    Aggregate("average", "mean", "v"),
)
SCHEMA = pa.schema([("k", pa.string()), ("g", pa.int32()), ("t", pa.int64()), ("v", pa.int64())])


def spec(
    size: int = 10, offset: int = 0, lateness: int = 0, tag: str = "", aggregates=AGGREGATES
) -> WindowAggregateSpec:
    return WindowAggregateSpec(("k", "g"), "t", TumblingEventTimeWindows(size, offset), aggregates, lateness, tag)


def rows_to_batch(rows: Sequence[dict[str, Any]]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(list(rows), schema=SCHEMA)


class Reference:
    """Row by row, a dictionary of lists."""

    def __init__(self, size: int, offset: int, lateness: int = 0) -> None:
        self.size, self.offset, self.lateness = size, offset, lateness
        self.watermark = MIN_WATERMARK_MS
        self.windows: dict[tuple[Any, Any, int], list[Any]] = {}
        self.late: list[dict[str, Any]] = []

    def batch(self, rows: Sequence[dict[str, Any]]) -> list[tuple[Any, ...]]:
        changed = []
        for row in rows:
            start = row["t"] - (row["t"] - self.offset) % self.size
            if start + self.size - 1 + self.lateness <= self.watermark:
                self.late.append(row)
                continue
            key = (row["k"], row["g"], start)
            self.windows.setdefault(key, []).append(row["v"])
            if start + self.size - 1 <= self.watermark and key not in changed:
                changed.append(key)
        return [self.result(key) for key in changed]

    def advance(self, watermark: int) -> list[tuple[Any, ...]]:
        before, self.watermark = self.watermark, max(self.watermark, watermark)
        due = [key for key in self.windows if before < key[2] + self.size - 1 <= self.watermark]
        out = [self.result(key) for key in due]
        gone = [key for key in self.windows if key[2] + self.size - 1 + self.lateness <= self.watermark]
        for key in gone:
            del self.windows[key]
        return out

    def result(self, key: tuple[Any, Any, int]) -> tuple[Any, ...]:
        every = self.windows[key]
        values = [value for value in every if value is not None]
        return (
            *key,
            key[2] + self.size,
            len(every),
            len(values),
            sum(values) if values else None,
            min(values, default=None),
            max(values, default=None),
            sum(values) / len(values) if values else None,
        )


def results(rows: Sequence[dict[str, Any]]) -> list[tuple[Any, ...]]:
    return [
        (
            row["k"],
            row["g"],
            _ms(row["window_start"]),
            _ms(row["window_end"]),
            *(row[aggregate.name] for aggregate in AGGREGATES),
        )
        for row in rows
    ]


def _ms(time: Any) -> int:
    return round((time - type(time)(1970, 1, 1)).total_seconds() * 1000)


def in_order(found: Sequence[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    return sorted(found, key=lambda one: (one[2], str(one[0]), str(one[1])))


ROW = st.fixed_dictionaries(
    {
        "k": st.sampled_from(["a", "b", None]),
        "g": st.integers(0, 2),
        "t": st.integers(-50, 120),
        "v": st.one_of(st.none(), st.integers(-1000, 1000)),
    }
)
STEPS = st.lists(
    st.one_of(st.lists(ROW, max_size=12), st.integers(-60, 130), st.sampled_from(["restore", "rescale"])), max_size=14
)


@settings(max_examples=40, deadline=None)
@example([[{"k": "a", "g": 0, "t": 0, "v": None}] * 2, "restore", 0, "restore", []], 1, 0, 0)
@given(STEPS, st.sampled_from([1, 7, 10, 50]), st.integers(-20, 20), st.sampled_from([0, 0, 15]))
def test_windows_equal_the_reference_whatever_the_cuts(steps: list, size: int, offset: int, lateness: int) -> None:
    """Any batches, any watermarks, snapshots and rescales in between: same results, same late rows."""
    described = spec(size, offset, lateness, "late")
    reference = Reference(size, offset, lateness)
    subtasks = [Harness(create_window_operator(described)).start()]
    late = 0
    for step in [*steps, MAX_WATERMARK_MS]:
        if isinstance(step, str):
            written = [one.snapshot() for one in subtasks]
            late += sum(b.num_rows for one in subtasks for b in one.side.get("late", ()))
            count = len(subtasks) if step == "restore" else 3 - len(subtasks)
            subtasks = [
                Harness(create_window_operator(described), subtask=i, parallelism=count).start(restored_state(written))
                for i in range(count)
            ]
            continue
        if isinstance(step, list):
            expected = reference.batch(step)
            parts = split_batch(rows_to_batch(step), ["k", "g"], 128, len(subtasks))
            for one, part in zip(subtasks, parts, strict=True):
                one.process(part)
        else:
            expected = reference.advance(step)
            for one in subtasks:
                one.watermark(step)
        found = [result for one in subtasks for result in results(one.rows())]
        assert in_order(found) == in_order(expected)
    late += sum(b.num_rows for one in subtasks for b in one.side.get("late", ()))
    assert late == len(reference.late)


@settings(max_examples=40, deadline=None)
@given(st.lists(ROW, min_size=1, max_size=60), st.integers(1, 7))
def test_work_is_cut_into_slices_and_a_snapshot_may_come_between(rows: list, slice_rows: int) -> None:
    """What was emitted before the snapshot is not emitted after the restore; the watermark goes on last."""
    kept, AccumulatorContents.windows_per_slice = AccumulatorContents.windows_per_slice, slice_rows
    try:
        reference = Reference(10, 0)
        reference.batch(rows)
        harness = (
            Harness(create_window_operator(spec())).start().process(rows_to_batch(rows)).watermark(1000, work=False)
        )
        harness.operator.continue_work()
        before = results(harness.rows())
        written = harness.snapshot()
        again = Harness(create_window_operator(spec())).start(restored_state([written])).work()
        emitted = again.take()
        after = results([row for item in emitted if isinstance(item, pa.RecordBatch) for row in item.to_pylist()])

        assert len(before) <= slice_rows
        assert in_order(before + after) == in_order(reference.advance(1000))
        assert not after or emitted[-1] == Watermark(1000)
    finally:
        AccumulatorContents.windows_per_slice = kept


def test_windows_come_out_in_the_order_of_their_starts_before_the_watermark() -> None:
    """Several windows become due at once."""
    harness = Harness(create_window_operator(spec())).start()
    harness.process(rows_to_batch([{"k": "a", "g": 0, "t": t, "v": t} for t in (25, 3, 14, 4)])).watermark(30)
    emitted = harness.take()

    assert [_ms(row["window_start"]) for item in emitted[:-1] for row in item.to_pylist()] == [0, 10, 20]
    assert emitted[-1] == Watermark(30)


def test_a_watermark_without_due_windows_passes_at_once() -> None:
    """And one that goes back is not passed on."""
    harness = Harness(create_window_operator(spec())).start()
    harness.process(rows_to_batch([{"k": "a", "g": 0, "t": 25, "v": 1}]))
    harness.watermark(20, work=False).watermark(5, work=False)

    assert harness.take() == [Watermark(20)]
    assert not harness.operator.has_pending_work


def test_types_of_the_results() -> None:
    """Minimum and maximum keep the type of their column, sums widen, means are floats, times are timestamps."""
    aggregates = (
        Aggregate("s", "sum", "i"),
        Aggregate("lo", "min", "i"),
        Aggregate("f", "sum", "f"),
        Aggregate("hi", "max", "f"),
        Aggregate("first", "min", "at"),
        Aggregate("day", "max", "d"),
        Aggregate("any", "max", "b"),
        Aggregate("texts", "count", "s"),
        Aggregate("avg", "mean", "i"),
    )
    described = WindowAggregateSpec(("k",), "at", TumblingEventTimeWindows(1000), aggregates)
    rows = pa.record_batch(
        {
            "k": pa.array([1, 1, 1], pa.int64()),
            "at": pa.array([100, 200, 999], pa.timestamp("ms", "UTC")),
            "i": pa.array([3, None, 5], pa.int16()),
            "f": pa.array([1.5, 2.5, None], pa.float32()),
            "d": pa.array([3, 1, 2], pa.int32()).cast(pa.date32()),
            "b": pa.array([False, None, True]),
            "s": pa.array(["x", None, "y"]),
        }
    )
    harness = Harness(create_window_operator(described)).start().process(rows)
    written = harness.snapshot()
    restored = Harness(create_window_operator(described)).start(restored_state([written])).watermark(5000)
    emitted = restored.take()[0]

    assert emitted.schema == pa.schema(
        [
            ("k", pa.int64()),
            ("window_start", pa.timestamp("ms", "UTC")),
            ("window_end", pa.timestamp("ms", "UTC")),
            ("s", pa.int64()),
            ("lo", pa.int16()),
            ("f", pa.float64()),
            ("hi", pa.float32()),
            ("first", pa.timestamp("ms", "UTC")),
            ("day", pa.date32()),
            ("any", pa.bool_()),
            ("texts", pa.int64()),
            ("avg", pa.float64()),
        ]
    )
    row = emitted.to_pylist()[0]
    assert (row["s"], row["lo"], row["f"], row["hi"], row["texts"], row["avg"]) == (8, 3, 4.0, 2.5, 2, 4.0)
    assert (row["first"].microsecond, row["day"].day, row["any"]) == (100_000, 4, True)


@pytest.mark.parametrize(
    ("event_time", "expected"),
    [
        (pa.timestamp("us", "UTC"), pa.timestamp("us", "UTC")),
        (pa.timestamp("ns"), pa.timestamp("ns")),
        (pa.timestamp("s", "Europe/Berlin"), pa.timestamp("ms", "Europe/Berlin")),
        (pa.int64(), pa.timestamp("ms")),
    ],
)
@pytest.mark.parametrize("assigner", [TumblingEventTimeWindows(1000), EventTimeSessionWindows(500)])
def test_windows_have_the_unit_and_the_zone_of_the_event_time(event_time: Any, expected: Any, assigner: Any) -> None:
    """It holds of a fresh operator, and of one that fires after a restore without having seen a row."""
    described = WindowAggregateSpec(("k",), "t", assigner, (Aggregate("n", "count"),))
    batch = pa.record_batch({"k": [1], "t": pa.array([0], event_time)})
    harness = Harness(create_window_operator(described)).start().process(batch)
    restored = Harness(create_window_operator(described)).start(restored_state([harness.snapshot()]))

    for one in (harness, restored):
        schema = one.watermark(10_000).take()[0].schema
        assert [schema.field(name).type for name in ("window_start", "window_end")] == [expected, expected]


def test_windows_of_a_snapshot_that_knows_no_type_go_on_with_milliseconds() -> None:
    """What comes after them has keys and state of that type."""
    described = WindowAggregateSpec(("k",), "t", TumblingEventTimeWindows(1000), (Aggregate("n", "count"),))
    batch = pa.record_batch({"k": [1], "t": pa.array([0], pa.timestamp("us", "UTC"))})
    written = Harness(create_window_operator(described)).start().process(batch).snapshot()
    written.lists = tuple(one for one in written.lists if one.name != WINDOW_TIME_STATE)
    restored = Harness(create_window_operator(described)).start(restored_state([written]))

    emitted = restored.process(batch).watermark(10_000).take()[0]

    assert emitted.schema.field("window_start").type == pa.timestamp("ms")


def test_nanosecond_and_second_timestamps_are_read_as_milliseconds() -> None:
    """Finer units round down, also before 1970."""
    for unit, values in (("ns", [-1, 1_999_999]), ("s", [-1, 0])):
        described = WindowAggregateSpec(("k",), "t", TumblingEventTimeWindows(1000), (Aggregate("n", "count"),))
        rows = pa.record_batch({"k": [1, 1], "t": pa.array(values, pa.timestamp(unit))})
        harness = Harness(create_window_operator(described)).start().process(rows).watermark(10_000)

        assert [_ms(row["window_start"]) for row in harness.rows()] == [-1000, 0]


@pytest.mark.parametrize(
    ("described", "rows", "message"),
    [
        (spec(), {"k": ["a"], "g": [1], "x": [1], "v": [1]}, "no event time column 't'"),
        (spec(), {"k": ["a"], "g": [1], "t": ["noon"], "v": [1]}, "event time column 't' is string"),
        (spec(), {"k": ["a", "a"], "g": [1, 1], "t": [1, None], "v": [1, 1]}, "event time column 't' is null in row 1"),
        (spec(), {"k": ["a"], "t": [1], "v": [1]}, "no key column 'g'"),
        (spec(), {"k": ["a"], "g": [1], "t": [1]}, "no column 'v' for count() as 'values'"),
        (
            spec(aggregates=(Aggregate("s", "sum", "v"),)),
            {"k": ["a"], "g": [1], "t": [1], "v": ["x"]},
            "sum() as 's': column 'v' is string, which cannot be added up here",
        ),
    ],
)
def test_unusable_columns_are_named(described: WindowAggregateSpec, rows: dict, message: str) -> None:
    """Each with what is there instead."""
    harness = Harness(create_window_operator(described)).start()
    with pytest.raises((KeyError, TypeError, ValueError)) as raised:
        harness.process(pa.record_batch({name: pa.array(values) for name, values in rows.items()}))

    assert message in str(raised.value).replace('\\"', '"')


def test_a_snapshot_of_other_windows_is_refused() -> None:
    """Hours restored as days would be silently wrong."""
    written = (
        Harness(create_window_operator(spec(10)))
        .start()
        .process(rows_to_batch([{"k": "a", "g": 0, "t": 1, "v": 1}]))
        .snapshot()
    )
    with pytest.raises(StateError, match="the snapshot holds windows of 10 ms with offset 0 ms"):
        Harness(create_window_operator(spec(20))).start(restored_state([written]))


@pytest.mark.parametrize("key_columns", [("k",), ("k", "v"), ("k", "g", "v")])
def test_a_snapshot_of_another_key_is_refused_before_the_first_row(key_columns: tuple[str, ...]) -> None:
    """Also where no schema is declared: the state would be found under no key, and results would bear its old name."""
    written = Harness(create_window_operator(spec())).start()
    written.process(rows_to_batch([{"k": "a", "g": 0, "t": 1, "v": 1}]))
    other = replace(spec(), key_columns=key_columns)

    with pytest.raises(
        StateError, match=f"written for the key k, g, .* now keyed by {', '.join(key_columns)}: restore"
    ):
        Harness(create_window_operator(other)).start(restored_state([written.snapshot()]))


def test_a_window_that_begins_where_none_does_is_refused() -> None:
    """Its rows would never come out: the file says the windows of the job, and holds others."""
    forger: Any = create_window_operator(spec(10, offset=5))
    operator: Any = create_window_operator(spec(10))
    forger._state_name = operator._state_name
    forged = Harness(forger).start().process(rows_to_batch([{"k": "a", "g": 0, "t": 7, "v": 1}])).snapshot()

    with pytest.raises(StateError, match="has rows of a window from 5 ms on, where none of its windows begins"):
        Harness(operator).start(restored_state([forged]))


def test_windows_that_were_kept_for_late_rows_go_when_none_are_allowed_any_more() -> None:
    """The lateness is no part of the state: a restored job may change it."""
    rows = rows_to_batch([{"k": "a", "g": 0, "t": 1, "v": 1}])
    kept = Harness(create_window_operator(spec(lateness=100))).start().process(rows).watermark(20)
    operator: Any = create_window_operator(spec())
    again = Harness(operator).start(restored_state([kept.snapshot()])).watermark(500)

    assert len(kept.rows()) == 1
    assert again.rows() == []
    assert operator._state is not None
    assert operator._state.window_count == 0


@pytest.mark.parametrize(
    "assigner", [TumblingEventTimeWindows(10), EventTimeSessionWindows(5)], ids=["panes", "sessions"]
)
@pytest.mark.parametrize("contents", ["aggregates", "rows"])
def test_rows_that_come_too_late_are_counted(assigner: Any, contents: str) -> None:
    """Also where nobody reads them: that they are dropped is seen in a metric, which is there from the beginning."""
    described: Any = WindowAggregateSpec(("k",), "t", assigner, (Aggregate("n", "count"),))
    if contents == "rows":
        described = WindowProcessSpec(("k",), "t", assigner, lambda key, window, rows: rows, "batches")
    harness = Harness(create_window_operator(described)).start()
    assert harness.context.metrics.counter("late_rows").value == 0
    rows = [{"k": "a", "g": 0, "t": time_ms, "v": 1} for time_ms in (1, 2, 90)]
    harness.watermark(50).process(rows_to_batch(rows))
    assert harness.context.metrics.counter("late_rows").value == 2


def test_floats_fold_like_floats() -> None:
    """NaN does not hide other values in min and max."""
    described = WindowAggregateSpec(
        ("k",),
        "t",
        TumblingEventTimeWindows(10),
        (Aggregate("lo", "min", "v"), Aggregate("hi", "max", "v"), Aggregate("s", "sum", "v")),
    )
    rows = pa.record_batch({"k": [1, 1, 1], "t": [1, 2, 3], "v": [2.0, math.nan, 1.0]})
    row = Harness(create_window_operator(described)).start().process(rows).watermark(100).rows()[0]

    assert (row["lo"], row["hi"]) == (1.0, 2.0)
    assert math.isnan(row["s"])


@pytest.mark.parametrize(
    "assigner", [TumblingEventTimeWindows(10), SlidingEventTimeWindows(10, 5), EventTimeSessionWindows(5)]
)
def test_the_least_and_the_greatest_of_nothing_but_nan_is_nan(assigner: Any) -> None:
    """No value was infinite; one that is a number comes before NaN, in whichever pane or session it was."""
    described = WindowAggregateSpec(("k",), "t", assigner, (Aggregate("lo", "min", "v"), Aggregate("hi", "max", "v")))
    nan, inf = math.nan, math.inf
    values: dict[int, list[Any]] = {1: [nan, nan, None], 2: [nan, inf, nan], 3: [-inf, nan, nan], 4: [None, nan, 7.0]}
    harness = Harness(create_window_operator(described)).start()
    for number, time in enumerate([1, 7, 4]):
        column = pa.array([of_key[number] for of_key in values.values()], pa.float64())
        harness.process(pa.record_batch({"k": [*values], "t": [time] * len(values), "v": column}))
    rows = harness.watermark(100).rows()
    found = {row["k"]: (row["lo"], row["hi"]) for row in rows if _ms(row["window_start"]) in (0, 1)}

    assert [str(found[key]) for key in values] == ["(nan, nan)", "(inf, inf)", "(-inf, -inf)", "(7.0, 7.0)"]


def test_a_window_is_forgotten_when_it_has_fired() -> None:
    """Keys and windows do not pile up."""
    operator: Any = create_window_operator(spec())
    harness = Harness(operator).start()
    for second in range(50):
        rows = [{"k": f"key-{second}", "g": 0, "t": second * 10, "v": 1}]
        harness.process(rows_to_batch(rows)).watermark(second * 10 + 9)

    assert operator._state is not None
    assert operator._state.window_count == 0
    assert len(operator._state._index) == 0
    assert len(harness.rows()) == 50


@pytest.mark.parametrize("wide_first", [True, False])
def test_windows_keep_rows_whose_texts_have_either_kind_of_offset(wide_first: bool) -> None:
    """Files of polars say large_string, those of others string, and one source may read both."""
    batches = [
        pa.record_batch({"k": [1], "t": [t], "c": pa.array([{"s": "x"}], pa.struct([("s", text)]))})
        for t, text in enumerate([pa.string(), pa.large_string()])
    ]
    described = WindowProcessSpec(("k",), "t", TumblingEventTimeWindows(10), lambda one, _: one, "reduce", None)
    harness = Harness(create_window_operator(described)).start()
    for batch in reversed(batches) if wide_first else batches:
        harness.process(batch)

    assert [row["c"] for row in harness.watermark(100).rows()] == [{"s": "x"}]


@pytest.mark.parametrize("kind", ["reduce", "max_by", "last"])
def test_windows_go_on_with_records_whose_parts_may_be_null_from_now_on(kind: str) -> None:
    """Sources said of some parts that they are never null when the snapshot was made, and do not say so any more."""
    held = (HeldAggregate("c", "last", "c"),)
    specs: dict[str, WindowProcessSpec | WindowAggregateSpec] = {
        "reduce": WindowProcessSpec(("k",), "t", TumblingEventTimeWindows(10), lambda _, new: new, "reduce", None),
        "max_by": WindowProcessSpec(("k",), "t", TumblingEventTimeWindows(10), RowsBy("t", largest=True), "rows_by"),
        "last": WindowAggregateSpec(("k",), "t", TumblingEventTimeWindows(10), held),
    }
    described = specs[kind]

    def rows(time: int, said: bool, value: str | None) -> pa.RecordBatch:
        part = pa.field("s", pa.string(), nullable=not said)
        return pa.record_batch({"k": [1], "t": [time], "c": pa.array([{"s": value}], pa.struct([part]))})

    written = Harness(create_window_operator(described)).start().process(rows(0, True, "x")).snapshot()
    restored = Harness(create_window_operator(described)).start(restored_state([written]))
    again = Harness(create_window_operator(described)).start(
        restored_state([restored.process(rows(1, False, None)).snapshot()])
    )
    for one in (restored, again):
        assert [row["c"] for row in one.watermark(100).rows()] == [{"s": None}]


@pytest.mark.parametrize(
    "assigner", [TumblingEventTimeWindows(86_400_000), SlidingEventTimeWindows(86_400_000, 43_200_000)]
)
@pytest.mark.parametrize("time", [2**63 - 1, -(2**63)])
def test_windows_that_nanoseconds_have_no_room_for(assigner: Any, time: int) -> None:
    """One line says which window that is, and what to do: Arrow's spoke of a cast."""
    asked = WindowAggregateSpec(("k",), "t", assigner, (Aggregate("n", "count"),))
    rows = pa.record_batch({"k": ["a", "a"], "t": pa.array([0, time]).view(pa.timestamp("ns", "UTC"))})
    harness = Harness(create_window_operator(asked)).start().process(rows)
    said = (
        r"a window from (1677|2262)-\S+ to \S+ is not within what timestamp\[ns, tz=UTC\] holds .* make it microseconds"
    )
    with pytest.raises(ValueError, match=said):
        harness.watermark(MAX_WATERMARK_MS).rows()
