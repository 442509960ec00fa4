"""Columns of every type go through windows, joins and state, with savepoints and another parallelism in between, and
come out as without them. Types are those that Polars, DuckDB, pandas and Arrow itself hand over."""

from __future__ import annotations

import datetime as dt
import decimal
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import snapline as sl
from snapline.testing import OperatorHarness

VIEWS = pa.array(["a", "b" * 40, None, "c"], pa.string_view())
CATEGORIES = pa.array(["x", None, "y", "x"]).dictionary_encode()
FOUR = pa.array([0, 1, 1, 2, 4], pa.int32())
COLUMNS = {
    "int": pa.array([1, None, 3, 2**62]),
    "float": pa.array([float("nan"), None, -0.0, float("inf")]),
    "half": pa.array([np.float16(0.5), None, np.float16(1), np.float16(2)], pa.float16()),
    "text": pa.array(["", None, "ä" * 50, "\0"]),
    "text as views": VIEWS,
    "bytes as views": VIEWS.cast(pa.binary_view()),
    "bytes of one size": pa.array([b"abc", None, b"\0\0\0", b"xyz"], pa.binary(3)),
    "decimal": pa.array([decimal.Decimal("1.25"), None, decimal.Decimal("-2.50"), None], pa.decimal128(10, 2)),
    "wide decimal": pa.array([decimal.Decimal("1.250"), None, None, decimal.Decimal(-2)], pa.decimal256(50, 3)),
    "time with zone": pa.array([0, None, 5, 10**15], pa.timestamp("us", "Europe/Berlin")),
    "date": pa.array([dt.date(2026, 1, 1), None, dt.date(1960, 1, 1), None], pa.date32()),
    "categories": CATEGORIES,
    "categories of views": pa.DictionaryArray.from_arrays(pa.array([0, 1, None, 0], pa.uint32()), VIEWS.slice(0, 2)),
    "lists of categories": pa.ListArray.from_arrays(FOUR, CATEGORIES),
    "lists of views": pa.LargeListArray.from_arrays(FOUR.cast(pa.int64()), VIEWS),
    "lists as views": pa.array([["a"], None, ["b", None], []], pa.list_view(pa.string())),
    "structs": pa.StructArray.from_arrays([VIEWS, CATEGORIES], ["text", "kind"]),
    "lists of structs": pa.ListArray.from_arrays(FOUR, pa.StructArray.from_arrays([CATEGORIES], ["kind"])),
    "maps": pa.array([[("k", 1)], None, [], [("a", None), ("b", 2)]], pa.map_(pa.string(), pa.int64())),
    "runs": pc.run_end_encode(pa.array([1, 1, None, 2])),
    "nothing": pa.nulls(4),
}
IN_MEMORY_ONLY = {
    "vectors": pa.array([[1, 2], None, [3, 4], [5, 6]], pa.list_(pa.int64(), 2)),
    "intervals": pa.array([(1, 2, 3), None, (0, 0, 0), None], pa.month_day_nano_interval()),
}
BACKENDS = {
    "hashmap": {},
    "rocksdb": {"state.backend.type": "rocksdb", "state.backend.rocksdb.memory.fixed-per-slot": "1 mb"},
}


class Last(sl.KeyedProcessFunction):
    """Keeps the last value of a key, and all of them."""

    def __init__(self, kind: pa.DataType) -> None:
        self.kind = kind

    def open(self, context: sl.RuntimeContext) -> None:
        """One value and a list."""
        self.last = context.get_state(sl.ValueStateDescriptor("last", self.kind))
        self.all = context.get_list_state(sl.ListStateDescriptor("all", self.kind))

    def process_element(self, row: sl.Row, context: sl.ProcessContext) -> Iterable[sl.Row]:
        """Say both as they were before the row."""
        yield {"number": row["number"], "last": repr(self.last.value()), "all": repr(list(self.all.get()))}
        self.last.update(row["value"])
        if row["value"] is not None:
            self.all.add(row["value"])


def windows(rows: sl.DataStream) -> sl.DataStream:
    return (
        rows.key_by("key").window(sl.TumblingEventTimeWindows(100)).process_batches(lambda _key, _window, batch: batch)
    )


def sessions(rows: sl.DataStream) -> sl.DataStream:
    return rows.key_by("key").window(sl.EventTimeSessionWindows(30)).aggregate(first=sl.first("value"), n=sl.count())


def pairs(left: sl.DataStream, right: sl.DataStream) -> sl.DataStream:
    return left.key_by("key").join(right.key_by("key")).window(sl.TumblingEventTimeWindows(100), how="full")


def near(left: sl.DataStream, right: sl.DataStream) -> sl.DataStream:
    return left.key_by("key").join(right.key_by("key")).between(-20, 20)


STORIES: dict[str, tuple[int, Callable[..., sl.DataStream], str]] = {
    "windows": (1, windows, "hashmap"), "windows outside of memory": (1, windows, "rocksdb"),
    "sessions": (1, sessions, "hashmap"), "pairs": (2, pairs, "hashmap"), "near": (2, near, "hashmap"),
}  # fmt: skip


def batches_of(column: pa.Array) -> list[pa.RecordBatch]:
    """Six batches of four rows and two keys."""
    schema = pa.schema([("key", pa.int64()), ("number", pa.int64()), ("at", pa.int64()), ("value", column.type)])
    return [
        pa.RecordBatch.from_arrays(
            [
                pa.array([0, 1, 0, 1]),
                pa.array(range(first, first + 4)),
                pa.array(range(10 * first, 10 * first + 4)),
                column,
            ],
            schema=schema,
        )
        for first in range(0, 24, 4)
    ]


def tell(
    build: Callable[..., sl.DataStream],
    inputs: int,
    batches: list[pa.RecordBatch],
    settings: dict[str, str],
    *,
    saved: bool,
) -> list[str]:
    """What comes out, sorted. `saved`: with savepoints, each started from with another parallelism."""
    harness = OperatorHarness(
        build, *[batches[0].schema] * inputs, event_time="at", parallelism=1, configuration=settings
    )
    found: list[dict[str, Any]] = []
    for number, batch in enumerate(batches):
        for input_index in range(inputs):
            found += harness.push(batch, input=input_index).rows()
        if saved and number % 2:
            harness = harness.snapshot().restore(parallelism=3 - number // 2)
    found += harness.watermark(50).rows() + harness.end_input().rows()
    harness.close()
    return sorted(repr(row) for row in found)


def check(build: Callable[..., sl.DataStream], inputs: int, column: pa.Array, settings: dict[str, str]) -> None:
    """The same comes out with savepoints as without, and something does."""
    batches = batches_of(column)
    expected = tell(build, inputs, batches, {}, saved=False)
    assert expected and tell(build, inputs, batches, settings, saved=True) == expected


@pytest.mark.parametrize("story", STORIES)
@pytest.mark.parametrize("name", COLUMNS)
def test_rows_that_are_kept(name: str, story: str) -> None:
    """Windows and joins hold them, and a savepoint does."""
    inputs, build, backend = STORIES[story]
    check(build, inputs, COLUMNS[name], BACKENDS[backend])


@pytest.mark.parametrize("name", IN_MEMORY_ONLY)
def test_rows_that_are_kept_in_memory(name: str) -> None:
    """Types that have no form outside of memory."""
    check(pairs, 2, IN_MEMORY_ONLY[name], {})


@pytest.mark.parametrize("build", [near, pairs])
def test_uuids_of_one_side_alone(build: Callable[..., sl.DataStream]) -> None:
    """A join whose other side has no row yet could not go on from its own snapshot, which was called damaged: Arrow
    makes no empty column of extensions within records."""
    ids = pa.array([bytes([number] * 16) for number in range(4)], pa.binary(16)).cast(pa.uuid())
    first = batches_of(ids)[0]
    harness = OperatorHarness(build, first.schema, first.schema, event_time="at").push(first)
    harness = harness.snapshot().restore(parallelism=2).push(first, input=1)
    assert harness.end_input().rows()


@pytest.mark.parametrize("other_subtask", [False, True])
@pytest.mark.parametrize(
    ("was", "now"),
    [(pa.string(), pa.large_string()), (pa.large_string(), pa.string()), (pa.large_binary(), pa.binary())],
)
@pytest.mark.parametrize("story", STORIES)
def test_texts_that_another_writer_of_files_calls_otherwise(
    story: str, was: pa.DataType, now: pa.DataType, other_subtask: bool
) -> None:
    """A job whose first file was one of Polars could not go on from its snapshot once it was of somebody else, nor with
    another parallelism where subtasks had seen both first."""
    inputs, build, backend = STORIES[story]

    def started(kind: pa.DataType, **options: Any) -> OperatorHarness:
        schema = pa.schema([("key", kind), ("at", pa.int64()), ("value", kind)])
        settings = BACKENDS[backend]
        return OperatorHarness(build, *[schema] * inputs, event_time="at", configuration=settings, **options)

    def filled(harness: OperatorHarness) -> OperatorHarness:
        texts = [b"%d" % n if pa.types.is_binary(now) else str(n) for n in range(9)]
        rows = [{"key": texts[n], "at": n, "value": texts[0]} for n in range(9)]
        for number in range(inputs):
            harness.push(rows, input=number)
        return harness

    snapshot = filled(started(was, parallelism=2)).snapshot()
    if other_subtask:
        others = filled(started(now, parallelism=2)).snapshot()
        snapshot = replace(others, subtasks=(snapshot.subtasks[0], others.subtasks[1]))
    whole = filled(started(now))
    whole.rows()  # as the first harness has done
    expected = filled(whole).end_input().rows()
    found = filled(started(now, restore_from=snapshot, parallelism=1)).end_input().rows()
    assert sorted(map(repr, found)) == sorted(map(repr, expected))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", [name for name in COLUMNS if name != "nothing"])
def test_state_of_a_function(name: str, backend: str) -> None:
    """A value and a list of that type."""
    column = COLUMNS[name]
    check(lambda rows: rows.key_by("key").process(Last(column.type)), 1, column, BACKENDS[backend])
