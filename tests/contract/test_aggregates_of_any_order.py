"""The least and the greatest text, bytes or decimal, rows chosen by one, and sums of decimals, are those that Python
finds: in windows, sessions and running, with savepoints and another parallelism in between."""

from __future__ import annotations

import decimal
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import snapline as sl
from snapline.connectors.builtin.collection import CollectionSource
from snapline.dataflow.api.aggregate_types import check_aggregate_type
from snapline.dataflow.api.windows import Aggregate
from snapline.dataflow.errors import JobDefinitionError
from snapline.testing import OperatorHarness

Values = Sequence[Any]
TEXTS = st.text("ab\0ä€😀", max_size=3)
VALUES: dict[str, tuple[pa.DataType, st.SearchStrategy[Any]]] = {
    "text": (pa.string(), TEXTS),
    "large text": (pa.large_string(), TEXTS),
    "text as views": (pa.string_view(), TEXTS),
    "categories": (pa.dictionary(pa.int32(), pa.string()), TEXTS),
    "bytes": (pa.binary(), st.binary(max_size=3)),
    "bytes of one size": (pa.binary(2), st.binary(min_size=2, max_size=2)),
    "decimal": (pa.decimal128(6, 2), st.decimals(-9999, 9999, places=2)),
    "small decimal": (pa.decimal64(6, 2), st.decimals(-9999, 9999, places=2)),
    "wide decimal": (pa.decimal256(50, 3), st.decimals(-(10**6), 10**6, places=3)),
}
"""Types, and values of them. Texts are in the order of their bytes in UTF-8, which is that of their code points."""
TIMES = 100
"""The size of a window in milliseconds."""


def best(rows: sl.KeyedStream) -> dict[str, Any]:
    """Every aggregate that takes something else than a number."""
    return {
        "least": sl.min("value"), "most": sl.max("value"), "two": sl.top_n("value", 2), "n": sl.count("value"),
        "first": sl.first("number", by="value"), "last": sl.last("number", by="value"),
    }  # fmt: skip


def expected(values: list[tuple[int, Any]]) -> dict[str, Any]:
    """The same of rows (number, value) by Python."""
    there = [(number, value) for number, value in values if value is not None]
    ordered = sorted(value for _, value in there)
    return {
        "least": ordered[0] if there else None, "most": ordered[-1] if there else None,
        "two": ordered[::-1][:2], "n": len(there),
        "first": min(there, key=lambda row: (row[1], row[0]))[0] if there else None,
        "last": max(there, key=lambda row: (row[1], row[0]))[0] if there else None,
    }  # fmt: skip


def batches_of(values: Values, kind: pa.DataType) -> list[pa.RecordBatch]:
    """Row i has key i % 2 and time 7 * i; three rows a batch."""
    numbers = range(len(values))
    columns = [pa.array([i % 2 for i in numbers]), pa.array(numbers, pa.int64()), pa.array([7 * i for i in numbers])]
    table = pa.table([*columns, pa.array(values, kind)], ["key", "number", "at", "value"])
    return table.to_batches(max_chunksize=3) or [pa.RecordBatch.from_pylist([], schema=table.schema)]


def run(build: Callable[..., sl.DataStream], batches: list[pa.RecordBatch], *, saved: bool) -> list[dict[str, Any]]:
    """What comes out. `saved`: with a savepoint after every batch, and another parallelism."""
    harness = OperatorHarness(build, batches[0].schema, event_time="at", parallelism=1)
    rows: list[dict[str, Any]] = []
    for number, batch in enumerate(batches):
        rows += harness.push(batch).rows()
        if saved:
            harness = harness.snapshot().restore(parallelism=1 + number % 2)
    rows += harness.end_input().rows()
    harness.close()
    return rows


@st.composite
def columns(draw: st.DrawFn) -> tuple[str, Values]:
    """The name of a type, and values of it."""
    name = draw(st.sampled_from(list(VALUES)))
    return name, draw(st.lists(st.none() | VALUES[name][1], min_size=1, max_size=40))


@given(column=columns(), saved=st.booleans())
@example(column=("text", ["b", "a", None, "a", "b", None]), saved=True)
@settings(max_examples=60)
def test_windows(column: tuple[str, Values], saved: bool) -> None:
    """Each window has those of its rows."""
    name, values = column
    build = lambda rows: rows.key_by("key").window(sl.TumblingEventTimeWindows(TIMES)).aggregate(**best(rows))  # noqa: E731
    found = {
        (row.pop("key"), row.pop("window_start"), row.pop("window_end")): row
        for row in run(build, batches_of(values, VALUES[name][0]), saved=saved)
    }
    wanted: dict[tuple[int, int], list[tuple[int, Any]]] = {}
    for number, value in enumerate(values):
        wanted.setdefault((number % 2, 7 * number // TIMES), []).append((number, value))
    assert len(found) == len(wanted)
    told = {(key, start.timestamp() * 1_000 // TIMES): row for (key, start, _), row in found.items()}
    assert told == {place: expected(rows) for place, rows in wanted.items()}


@given(column=columns(), saved=st.booleans())
@settings(max_examples=40)
def test_sliding_windows_and_sessions(column: tuple[str, Values], saved: bool) -> None:
    """Panes and sessions are merged: one window over all rows says what all rows say."""
    name, values = column
    batches = batches_of(values, VALUES[name][0])
    everything = 7 * len(values) + 1
    for assigner in (sl.SlidingEventTimeWindows(100 * TIMES, 10 * TIMES), sl.EventTimeSessionWindows(everything)):
        rows = run(
            lambda stream, a=assigner: stream.key_by("key").window(a).aggregate(**best(stream)), batches, saved=saved
        )
        for key in {number % 2 for number in range(len(values))}:
            ours = [(number, value) for number, value in enumerate(values) if number % 2 == key]
            whole = [row for row in rows if row["key"] == key and row["n"] == expected(ours)["n"]]
            assert expected(ours) in [{name: row[name] for name in expected(ours)} for row in whole]


@given(column=columns(), saved=st.booleans())
@settings(max_examples=40)
def test_running(column: tuple[str, Values], saved: bool) -> None:
    """Each row says what its key's rows so far say."""
    name, values = column
    build = lambda rows: rows.key_by("key").running_aggregate(passthrough=["number"], **best(rows))  # noqa: E731
    for row in run(build, batches_of(values, VALUES[name][0]), saved=saved):
        key, number = row.pop("key"), row.pop("number")
        assert row == expected([(i, value) for i, value in enumerate(values[: number + 1]) if i % 2 == key])


@given(column=columns(), ties=st.sampled_from(["first", "last", "all"]), largest=st.booleans(), saved=st.booleans())
@settings(max_examples=60)
def test_rows_with_the_greatest_value(column: tuple[str, Values], ties: str, largest: bool, saved: bool) -> None:
    """`max_by` and `min_by` keep whole rows, tumbling and sliding."""
    name, values = column
    for size, slide in ((TIMES, TIMES), (4 * TIMES, TIMES)):

        def build(rows: sl.DataStream, size: int = size, slide: int = slide) -> sl.DataStream:
            windows = rows.key_by("key").window(sl.SlidingEventTimeWindows(size, slide))
            return windows.max_by("value", ties=ties) if largest else windows.min_by("value", ties=ties)

        found: dict[tuple[int, int], list[int]] = {}
        for row in run(build, batches_of(values, VALUES[name][0]), saved=saved):
            found.setdefault((row["key"], int(row["window_end"].timestamp() * 1_000)), []).append(row["number"])
        for end in range(slide, 7 * len(values) + size, slide):
            for key in (0, 1):
                there = [(i, v) for i, v in enumerate(values) if v is not None and i % 2 == key]
                rows = [(i, v) for i, v in there if end - size <= 7 * i < end]
                extreme = (max if largest else min)((v for _, v in rows), default=None)
                numbers = [i for i, v in rows if v == extreme]
                kept = {"all": numbers, "first": numbers[:1], "last": numbers[-1:]}[ties]
                assert sorted(found.get((key, end), [])) == kept


@given(values=st.lists(st.none() | VALUES["decimal"][1], min_size=1, max_size=40), kind=st.sampled_from(["decimal", "small decimal", "wide decimal"]), saved=st.booleans())  # fmt: skip
@settings(max_examples=60)
def test_sums_of_decimals(values: Values, kind: str, saved: bool) -> None:
    """They are exact, and stay decimals; a mean is a float."""
    what = {"total": sl.sum("value"), "mean": sl.mean("value")}
    builds = [
        lambda rows: rows.key_by("key").window(sl.EventTimeSessionWindows(7 * len(values) + 1)).aggregate(**what),
        lambda rows: rows.key_by("key").running_aggregate(passthrough=["number"], **what),
    ]
    for build in builds:
        last: dict[int, dict[str, Any]] = {}
        for row in run(build, batches_of(values, VALUES[kind][0]), saved=saved):
            if row.get("number", -1) >= last.get(row["key"], {}).get("number", -1):
                last[row["key"]] = row
        for key, row in last.items():
            ours = [v for i, v in enumerate(values) if v is not None and i % 2 == key]
            assert row["total"] == (sum(ours) if ours else None)
            assert row["mean"] == (pytest.approx(float(sum(ours) / len(ours))) if ours else None)


def test_a_sum_with_too_many_digits_is_null_and_an_accumulator_goes_on() -> None:
    """As in Flink's SQL: 38 digits are what a sum has."""
    most = decimal.Decimal("9" * 38)
    build = lambda rows: rows.key_by("key").running_aggregate(passthrough=["number"], total=sl.sum("value"))  # noqa: E731
    values = [most, None, most, None, most.copy_negate(), None]
    found = {row["number"]: row["total"] for row in run(build, batches_of(values, pa.decimal128(38, 0)), saved=True)}
    assert [found[i] for i in (0, 2, 4)] == [most, None, most]


def test_types_are_known_and_what_cannot_be_is_said_at_once() -> None:
    """The schema says what comes; a list has no order, and a text no sum."""
    schema = pa.schema([("key", pa.int64()), ("at", pa.int64()), ("price", pa.decimal64(6, 2)), ("who", pa.string()), ("all", pa.list_(pa.int64()))])  # fmt: skip
    environment = sl.StreamExecutionEnvironment.get_execution_environment({})
    strategy = sl.WatermarkStrategy.for_monotonous_timestamps("at")
    keyed = environment.from_source(CollectionSource([], schema=schema), strategy, uid="rows").key_by("key")
    found = keyed.running_aggregate(
        total=sl.sum("price"), mean=sl.mean("price"), least=sl.min("price"), who=sl.max("who")
    )
    assert found.schema is not None
    assert found.schema.types[1:] == [pa.decimal128(38, 2), pa.float64(), pa.decimal64(6, 2), pa.string()]
    with pytest.raises(JobDefinitionError, match="'all' is list<item: int64>, which cannot be ordered here"):
        keyed.running_aggregate(least=sl.min("all"))
    with pytest.raises(JobDefinitionError, match="'who' is string, which cannot be added up here"):
        keyed.running_aggregate(total=sl.sum("who"))
    with pytest.raises(JobDefinitionError, match="'all' is list<item: int64>, which has no greatest value here"):
        keyed.window(sl.TumblingEventTimeWindows(9)).max_by("all")


def test_columns_that_are_not_declared() -> None:
    """Accumulators are chosen when the job is made, so that such a column has to be known then."""
    for function, column in (("min", pa.string()), ("sum", pa.decimal128(5, 2))):
        with pytest.raises(TypeError, match=f"{function}.. as 'x': .* has to be known before the first row: declare"):
            check_aggregate_type(Aggregate("x", function, "v"), column)
