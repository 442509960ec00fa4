"""Aggregates that keep values, sketches or a user's accumulators: in windows and running, through snapshots and at
other parallelism, against loops over the rows themselves."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings

import snapline as sl
import snapline.connectors as sl_connectors
from snapline.dataflow.api.aggregate_types import result_type
from snapline.dataflow.api.batch_aggregates import HeldAggregate
from snapline.dataflow.api.functions import ProcessWindowFunction
from snapline.dataflow.api.windows import (
    EventTimeSessionWindows,
    SlidingEventTimeWindows,
    TumblingEventTimeWindows,
    WindowAssigner,
)
from snapline.dataflow.elements import MAX_WATERMARK_MS
from snapline.dataflow.errors import StateError
from snapline.dataflow.graph.operator_specs import RunningAggregateSpec, WindowAggregateSpec, WindowProcessSpec
from snapline.taskmanager.operators.aggregation.running_aggregate import RunningAggregateOperator
from snapline.taskmanager.operators.windows.window_factory import create_window_operator
from tests.unit.taskmanager.operators.driving import SCHEMA, Subtasks, steps
from tests.unit.taskmanager.operators.harness import Harness, restored_state

pytestmark = pytest.mark.usefixtures("state_backend")


class Weighted(sl.BatchAggregateFunction):
    """The sum of values times times."""

    accumulator = pa.schema([("total", pa.int64())])

    def result_type(self, *input_types: pa.DataType) -> pa.DataType:
        if not all(pa.types.is_integer(one) for one in input_types):
            raise TypeError("only integers")
        return pa.int64()

    def add(self, accumulators: pa.RecordBatch, groups: Any, *columns: pa.Array) -> pa.RecordBatch:
        product = pc.multiply(*columns).fill_null(0).to_numpy()
        return self._more(accumulators, groups, product)

    def merge(self, accumulators: pa.RecordBatch, groups: Any, others: pa.RecordBatch) -> pa.RecordBatch:
        return self._more(accumulators, groups, others["total"].fill_null(0).to_numpy())

    def _more(self, accumulators: pa.RecordBatch, groups: Any, values: Any) -> pa.RecordBatch:
        totals = accumulators["total"].fill_null(0).to_numpy(zero_copy_only=False).copy()
        np.add.at(totals, groups, values)
        return pa.RecordBatch.from_arrays([pa.array(totals)], schema=self.accumulator)

    def result(self, accumulators: pa.RecordBatch) -> pa.Array:
        return accumulators["total"].fill_null(0)


ASKED: dict[str, Any] = {
    "rows": sl.count(),
    "different": sl.count_distinct("v"),
    "about": sl.approx_count_distinct("v"),
    "middle": sl.median("v"),
    "third": sl.quantile("v", 1 / 3),
    "near": sl.approx_quantile("v", 0.5),
    "opening": sl.first("v", by="t"),
    "closing": sl.last("v", by="t"),
    "came_first": sl.first("v"),
    "came_last": sl.last("v"),
    "best": sl.top_n("v", 2),
    "latest": sl.top_n("v", 2, by="t"),
    "all": sl.collect_list("v"),
    "own": sl.batch_aggregate(Weighted(), "v", "t"),
    "total": sl.sum("v"),
}


def called(**asked: Any) -> tuple[Any, ...]:
    """Aggregates under their names."""
    return tuple(replace(aggregate, name=name) for name, aggregate in asked.items())


def named() -> tuple[Any, ...]:
    """All kinds of aggregates."""
    return called(**ASKED)


def by_hand(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """The same with lists and loops, in the order of the rows."""
    some = [row for row in rows if row["v"] is not None]
    values = [row["v"] for row in some]
    by_time = sorted(range(len(some)), key=lambda i: (some[i]["t"], i))
    latest = sorted(range(len(some)), key=lambda i: (-some[i]["t"], i))
    ordered = sorted(values)
    return {
        "rows": len(rows),
        "different": len(set(values)),
        "about": len(set(values)),
        "middle": float(np.quantile(values, 0.5)) if values else None,
        "third": float(np.quantile(values, 1 / 3)) if values else None,
        "near": float(ordered[(len(ordered) + 1) // 2 - 1]) if values else None,
        "opening": values[by_time[0]] if values else None,
        "closing": values[by_time[-1]] if values else None,
        "came_first": values[0] if values else None,
        "came_last": values[-1] if values else None,
        "best": sorted(values, reverse=True)[:2],
        "latest": [values[i] for i in latest[:2]],
        "all": values,
        "own": sum(row["v"] * row["t"] for row in some),
        "total": sum(values) if values else None,
    }


class ByHand(ProcessWindowFunction):
    """All rows of a window at once."""

    def process(self, key: Any, context: Any, rows: Any) -> Iterator[dict[str, Any]]:
        yield {"k": key[0], "g": key[1], **by_hand(list(rows))}


def close(found: list[dict[str, Any]]) -> list[str]:
    """Rows that can be compared: without the windows' times, and quantiles as far as arithmetic goes."""
    kept = [{name: value for name, value in row.items() if not name.startswith("window_")} for row in found]
    return sorted(
        repr({name: round(value, 6) if isinstance(value, float) else value for name, value in row.items()})
        for row in kept
    )


def window(assigner: WindowAssigner) -> Callable[[], Any]:
    return lambda: create_window_operator(WindowAggregateSpec(("k", "g"), "t", assigner, named(), input_schema=SCHEMA))


ASSIGNERS = [TumblingEventTimeWindows(20), SlidingEventTimeWindows(30, 10), EventTimeSessionWindows(8)]


@pytest.mark.parametrize("assigner", ASSIGNERS, ids=lambda one: type(one).__name__)
@settings(max_examples=20, deadline=None)
@given(story=steps(rows=8, size=8))
def test_windows_against_loops(assigner: WindowAssigner, story: list[Any]) -> None:
    """Every step of every story puts out what a function over all rows of the window computes."""
    types = [pa.field(one.name, result_type(one, SCHEMA)) for one in named()]
    schema = pa.schema([SCHEMA.field("k"), SCHEMA.field("g"), *types])
    spec = WindowProcessSpec(("k", "g"), "t", assigner, ByHand(), "rows", schema)
    ours, loops = Subtasks(window(assigner)), Subtasks(lambda: create_window_operator(spec))
    for step in [*story, MAX_WATERMARK_MS]:
        assert close(loops.step(step)) == close(ours.step(step))


@settings(max_examples=20, deadline=None)
@given(story=steps(rows=8, size=8))
def test_running_aggregates_against_loops(story: list[Any]) -> None:
    """Each row comes out with the aggregates over all rows of its key up to it."""
    spec = RunningAggregateSpec(("k", "g"), named(), ("t", "v"), SCHEMA)
    ours = Subtasks(lambda: RunningAggregateOperator(spec))
    seen: dict[Any, list[dict[str, Any]]] = {}
    for step in story:
        expected = []
        for row in step[1] if isinstance(step, tuple) else []:
            known = seen.setdefault((row["k"], row["g"]), [])
            known.append(row)
            expected.append({"k": row["k"], "g": row["g"], "t": row["t"], "v": row["v"], **by_hand(known)})
        assert close(expected) == close(ours.step(step))


def test_types_of_every_kind_are_counted_and_collected() -> None:
    """Texts, decimals, times and floats, with NaN counted as one value and left out where there is an order."""
    batch = pa.record_batch(
        {
            "k": ["a"] * 4,
            "t": [1, 2, 3, 4],
            "s": ["x", None, "x", "y"],
            "d": pa.array(["1.0", "2.5", "1.0", None]).cast(pa.decimal128(5, 2)),
            "f": [float("nan"), float("nan"), 0.5, -1.5],
            "w": pa.array([1, 2, 2, 3], pa.timestamp("us", "UTC")),
        }
    )
    asked = {
        "s": sl.count_distinct("s"), "d": sl.count_distinct("d"), "f": sl.count_distinct("f"), "w": sl.count_distinct("w"),
        "about": sl.approx_count_distinct("d"), "times": sl.approx_count_distinct("w"), "best": sl.top_n("f", 3),
        "who": sl.last("s", by="w"), "list": sl.collect_list("s"),
    }  # fmt: skip
    aggregates = called(**asked)
    spec = WindowAggregateSpec(("k",), "t", TumblingEventTimeWindows(10), aggregates)
    harness = Harness(create_window_operator(spec)).start().process(batch)
    (row,) = harness.watermark(MAX_WATERMARK_MS).rows()
    assert {name: row[name] for name in asked} == {
        "s": 2, "d": 2, "f": 3, "w": 3, "about": 2, "times": 3, "best": [0.5, -1.5], "who": "y", "list": ["x", "x", "y"],
    }  # fmt: skip


def test_an_aggregate_that_is_added_starts_empty() -> None:
    """A job that asks for one more goes on with those of the snapshot."""
    first = called(n=sl.count_distinct("v"))
    both = called(n=sl.count_distinct("v"), all=sl.collect_list("v"))

    def operator(aggregates: Any) -> Harness:
        spec = WindowAggregateSpec(("k",), "t", TumblingEventTimeWindows(10), aggregates, input_schema=SCHEMA)
        return Harness(create_window_operator(spec))

    def rows(*values: int) -> pa.RecordBatch:
        return pa.RecordBatch.from_pylist([{"k": "a", "g": 0, "t": 1, "v": v} for v in values], schema=SCHEMA)

    written = operator(first).start().process(rows(1, 2)).snapshot()
    found = operator(both).start(restored_state([written])).process(rows(2, 3)).watermark(MAX_WATERMARK_MS).rows()
    assert [(row["n"], row["all"]) for row in found] == [(3, [2, 3])]


@pytest.mark.parametrize(
    ("method", "answer", "message"),
    [
        (
            "add",
            pa.record_batch({"total": [1, 2]}),
            r"Wrong.add\(\) returns .* of 1 accumulators, not a RecordBatch of 2",
        ),
        ("add", pa.record_batch({"sum": [1]}), r"Wrong.add\(\) .* with the columns total, not sum"),
        ("add", pa.record_batch({"total": ["x"]}), r"Wrong.add\(\) .* whose column 'total' is int64, not string"),
        ("result", [1], r"Wrong.result\(\) returns an Arrow array of 1 results, not a list"),
        ("result", pa.array(["x"]), r"Wrong.result\(\) returns int64, as its result_type says, not string: Failed to"),
    ],
)
def test_what_a_function_may_not_give_back(method: str, answer: Any, message: str) -> None:
    """One line names the function, the method and what it should have given."""
    wrong = type("Wrong", (Weighted,), {method: lambda *_: answer})
    aggregates = called(own=sl.batch_aggregate(wrong(), "v", "t"))
    spec = WindowAggregateSpec(("k",), "t", TumblingEventTimeWindows(10), aggregates)
    harness = Harness(create_window_operator(spec)).start()
    with pytest.raises(TypeError, match=message):
        harness.process(pa.record_batch({"k": ["a"], "t": [1], "v": [1]})).watermark(MAX_WATERMARK_MS)


def test_a_column_that_changes_its_type_is_named() -> None:
    """Values of one type are kept, and another one is no such value."""
    spec = WindowAggregateSpec(("k",), "t", TumblingEventTimeWindows(10), called(all=sl.collect_list("v")))
    harness = Harness(create_window_operator(spec)).start().process(pa.record_batch({"k": ["a"], "t": [1], "v": [1]}))
    with pytest.raises(StateError, match="column 'v' is string, and the state of 'all' was made for int64"):
        harness.process(pa.record_batch({"k": ["a"], "t": [1], "v": ["x"]}))


def test_uint64_are_ordered_and_averaged_as_what_they_are() -> None:
    """The upper half of them would be negative as int64."""
    values = [5, 2**63, 2**64 - 1, None, 2**63 - 1]
    schema = pa.schema([("k", pa.int64()), ("at", pa.timestamp("ms")), ("v", pa.uint64())])
    rows = [{"k": 1, "at": number, "v": value} for number, value in enumerate(values)]
    env = sl.StreamExecutionEnvironment.get_execution_environment()
    source = sl_connectors.CollectionSource.of_rows(rows, schema=schema, batch_rows=2)
    stream = env.from_source(source, sl.WatermarkStrategy.for_monotonous_timestamps("at"), uid="rows")
    found: dict[str, Any] = {
        "lo": sl.min("v"),
        "hi": sl.max("v"),
        "best": sl.top_n("v", 3),
        "mean": sl.mean("v"),
        "middle": sl.median("v"),
    }
    windows = stream.key_by("k").window(sl.TumblingEventTimeWindows(1000))
    in_windows = windows.aggregate(uid="windows", **found)
    running = stream.key_by("k").running_aggregate(uid="running", **found)
    expected = {
        "k": 1,
        "lo": 5,
        "hi": 2**64 - 1,
        "best": [2**64 - 1, 2**63, 2**63 - 1],
        "mean": float(5 + 2**63 + 2**64 - 1 + 2**63 - 1) / 4,
        "middle": float(2**63),
    }

    for last in ([*in_windows.execute_and_collect(local=True)][-1], [*running.execute_and_collect(local=True)][-1]):
        assert {name: last[name] for name in expected} == expected
    greatest = windows.max_by("v", uid="greatest").execute_and_collect(local=True)
    assert [row["v"] for row in greatest] == [2**64 - 1]


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    ("values", "middle"),
    [
        ([float("inf")] * 2, float("inf")),
        ([float("-inf")] * 4, float("-inf")),
        ([1.0, float("inf")], float("inf")),
        ([float("-inf"), 1.0], float("-inf")),
        ([-1.5e308, 1.5e308], 0.0),
        ([1.5e308] * 2, 1.5e308),
    ],
)
def test_a_quantile_between_what_has_no_distance(values: list[float], middle: float) -> None:
    """Infinities, and numbers that are further apart than a float holds, which gave NaN or an infinity."""
    batch = pa.record_batch({"k": ["a"] * len(values), "t": [1] * len(values), "v": values})
    spec = WindowAggregateSpec(("k",), "t", TumblingEventTimeWindows(10), called(middle=sl.median("v")))
    harness = Harness(create_window_operator(spec)).start().process(batch)

    assert [row["middle"] for row in harness.watermark(MAX_WATERMARK_MS).rows()] == [middle]


@pytest.mark.parametrize(
    ("values", "different"),
    [([0.0, -0.0, float("nan"), float("nan")], 2), ([None] * 4, 0), ([1.5, None, 1.5, 2.0], 2)],
    ids=["zeros", "nulls", "some"],
)
@pytest.mark.parametrize("assigner", [TumblingEventTimeWindows(100), SlidingEventTimeWindows(100, 50)])
def test_different_values_of_several_panes_are_those_of_one(
    assigner: WindowAssigner, values: list[float | None], different: int
) -> None:
    """Minus zero is zero, in another pane, too."""
    rows = pa.record_batch({"k": ["a"] * 4, "t": [10, 60, 70, 20], "v": pa.array(values, pa.float64())})
    spec = WindowAggregateSpec(("k",), "t", assigner, called(n=sl.count_distinct("v")))
    found = Harness(create_window_operator(spec)).start().process(rows).watermark(MAX_WATERMARK_MS).rows()
    assert different == found[len(found) // 2]["n"]


@pytest.mark.parametrize(
    ("values", "middle", "most"), [([1.0, 3.0, float("nan")], 2.0, 3.0), ([float("nan"), None], None, None)]
)
def test_quantiles_leave_out_what_has_no_order(values: list[float | None], middle: Any, most: Any) -> None:
    """NaN was the greatest of all, and moved the median, where approximate quantiles leave it out."""
    rows = pa.record_batch({"k": ["a"] * len(values), "t": [1] * len(values), "v": pa.array(values, pa.float64())})
    asked = called(middle=sl.median("v"), most=sl.quantile("v", 1.0), near=sl.approx_quantile("v", 1.0))
    spec = WindowAggregateSpec(("k",), "t", TumblingEventTimeWindows(100), asked)
    [found] = Harness(create_window_operator(spec)).start().process(rows).watermark(MAX_WATERMARK_MS).rows()
    assert (middle, most, most) == (found["middle"], found["most"], found["near"])


@pytest.mark.parametrize(
    "values",
    [
        pa.array(["", "", "x"]),
        pa.array(["", "", "x"], pa.large_string()).dictionary_encode(),
        pa.array([Decimal("1.50"), Decimal("1.50"), Decimal(2)], pa.decimal32(5, 2)),
        pa.array([Decimal("1.50"), Decimal("1.50"), Decimal(2)], pa.decimal64(12, 2)),
        pa.ExtensionArray.from_storage(pa.uuid(), pa.array([b"1" * 16, b"1" * 16, b"2" * 16], pa.binary(16))),
    ],
    ids=lambda values: str(values.type),
)
def test_sketches_count_empty_texts_small_decimals_and_extensions(values: pa.Array) -> None:
    """An empty text is a value as any other, and the form that a value has says nothing of what it is."""
    batch = pa.record_batch({"k": pa.array([0] * len(values)), "v": values})
    spec = RunningAggregateSpec(("k",), called(about=sl.approx_count_distinct("v")))
    rows = Harness(RunningAggregateOperator(spec)).start().process(batch).rows()
    assert [row["about"] for row in rows] == [1, 1, 2]


@pytest.mark.parametrize("text", ["6.10", "-4.35", "0.07", "123456789.01", "18014398509481983.25"])
def test_the_mean_of_one_decimal_is_the_float_nearest_to_it(text: str) -> None:
    """Arrow's cast of a decimal to a float is one bit off for every eighth price."""
    values = pa.array([Decimal(text), None], pa.decimal128(20, 2))
    batch = pa.record_batch({"k": pa.array([0, 1]), "v": values})
    over_decimals = (HeldAggregate("mean", "mean", "v"),)
    found = Harness(RunningAggregateOperator(RunningAggregateSpec(("k",), over_decimals))).start().process(batch).rows()
    assert [row["mean"] for row in found] == [float(text), None]


def test_a_null_that_a_dictionary_holds_is_no_value() -> None:
    """Arrow counts the nulls of the indices alone; a sketch failed with the types of its arguments."""
    values = pa.DictionaryArray.from_arrays(pa.array([0, 1, None, 2]), pa.array(["x", None, "y"]))
    batch = pa.record_batch({"k": pa.array([0] * 4), "v": values})
    asked = called(n=sl.count("v"), different=sl.count_distinct("v"), about=sl.approx_count_distinct("v"))
    rows = Harness(RunningAggregateOperator(RunningAggregateSpec(("k",), asked))).start().process(batch).rows()
    assert [{row["n"], row["different"], row["about"]} for row in rows] == [{1}, {1}, {1}, {2}]
