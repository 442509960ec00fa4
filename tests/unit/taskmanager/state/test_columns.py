"""Columns by slot against a dictionary: every shape, growth, duplicates, freezing."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from snapline.dataflow.api.state import RunningAggregateDescriptor
from snapline.taskmanager.state.aggregate_column import AggregateColumn
from snapline.taskmanager.state.columns import ArrowColumn, Column, NumpyColumn, StructColumn, make_column

POINT = pa.struct([pa.field("x", pa.int64()), pa.field("tags", pa.list_(pa.string()))])
VALUES: dict[str, tuple[pa.DataType, st.SearchStrategy[Any], type[Column]]] = {
    "int64": (pa.int64(), st.integers(-(2**63), 2**63 - 1), NumpyColumn),
    "int8": (pa.int8(), st.integers(-128, 127), NumpyColumn),
    "bool": (pa.bool_(), st.booleans(), NumpyColumn),
    "float": (pa.float32(), st.floats(width=32, allow_nan=False), NumpyColumn),
    "time": (pa.time64("us"), st.times(), NumpyColumn),
    "date": (pa.date32(), st.dates(dt.date(1970, 1, 1), dt.date(2100, 1, 1)), NumpyColumn),
    "string": (pa.string(), st.text(max_size=12), ArrowColumn),
    "binary": (pa.large_binary(), st.binary(max_size=12), ArrowColumn),
    "decimal": (pa.decimal128(20, 3), st.integers(-9, 9).map(Decimal), ArrowColumn),
    "list": (pa.list_(pa.int64()), st.lists(st.integers(0, 9), max_size=3), ArrowColumn),
    "map": (pa.map_(pa.string(), pa.int64()), st.lists(st.tuples(st.text(max_size=2), st.integers(0, 9)), max_size=2), ArrowColumn),
    "struct": (POINT, st.fixed_dictionaries({"x": st.integers(0, 9), "tags": st.lists(st.text(max_size=2), max_size=2)}), StructColumn),
}  # fmt: skip
SLOTS = 40


@pytest.mark.parametrize("name", VALUES)
@settings(max_examples=30)
@given(data=st.data())
def test_against_a_dictionary(name: str, data: st.DataObject) -> None:
    """Puts (the last of a slot stays, a null removes), clears and gets, in any order; a frozen column stays as it
    was."""
    data_type, values, shape = VALUES[name]
    column = make_column(data_type, 8)
    assert isinstance(column, shape)
    reference: dict[int, Any] = {}
    capacity = 8
    frozen: list[tuple[Any, list[Any]]] = []
    everything = np.arange(SLOTS, dtype=np.int32)
    for _ in range(data.draw(st.integers(1, 6))):
        puts = data.draw(st.lists(st.tuples(st.integers(0, SLOTS - 1), st.one_of(st.none(), values)), max_size=30))
        if any(slot >= capacity for slot, _ in puts):
            capacity = SLOTS
            column.grow(capacity)
        padding = [None, *(value for _, value in puts)]
        column.put(np.array([slot for slot, _ in puts], np.int32), pa.array(padding, data_type).slice(1))
        reference.update(puts)
        gone = data.draw(st.lists(st.integers(0, capacity - 1), max_size=3))
        column.clear(np.array(gone, np.int32))
        for slot in gone:
            reference[slot] = None
        column.grow(SLOTS)
        capacity = SLOTS

        expected = [reference.get(slot) for slot in range(SLOTS)]
        assert column.get(everything).to_pylist() == expected
        assert column.get(everything[::-1].copy()).to_pylist() == expected[::-1]
        assert column.occupied(SLOTS).tolist() == [value is not None for value in expected]
        assert column.get(everything).type == data_type
        column.get(everything).validate(full=True)
        frozen.append((column.freeze(SLOTS), expected))

    for past, expected in frozen:
        assert past.get(everything).to_pylist() == expected


def test_a_log_does_not_keep_what_was_overwritten() -> None:
    """Updating the same slots for ever takes constant room, in few pieces."""
    column = ArrowColumn(pa.string(), 100)
    slots = np.arange(100, dtype=np.int32)
    for turn in range(300):
        column.put(slots, pa.array([f"{turn}/{slot}" for slot in range(100)]))

    assert sum(len(piece) for piece in column._log) < 2 * 100 + 1024 + 200
    assert len(column._log) < 12
    assert column.get(slots[:2]).to_pylist() == ["299/0", "299/1"]


def test_a_log_does_not_keep_the_batch_of_a_slice() -> None:
    """A value cut from a large batch must not hold the batch."""
    column = ArrowColumn(pa.string(), 8)
    column.put(np.array([0], np.int32), pa.array(["x" * 100] * 10_000).slice(5, 1))

    assert column._log[0].get_total_buffer_size() < 10_000


NUMBERS = {
    pa.int64(): st.integers(-1000, 1000),
    pa.int32(): st.integers(-1000, 1000),
    pa.float64(): st.floats(-1000, 1000).map(lambda value: round(value * 4) / 4),
}


@pytest.mark.parametrize("data_type", NUMBERS, ids=str)
@pytest.mark.parametrize("names", [(), ("sum",), ("min",), ("sum", "min", "max")], ids=str)
@given(data=st.data())
def test_running_aggregates_against_a_loop(data_type: pa.DataType, names: tuple[str, ...], data: st.DataObject) -> None:
    """After every row, whatever the batches; nulls change nothing."""
    column = AggregateColumn(RunningAggregateDescriptor("a", data_type, names), 8)
    seen: dict[int, list[Any]] = {}
    functions: dict[str, Any] = {"count": len, "sum": sum, "min": min, "max": max}
    for _ in range(data.draw(st.integers(1, 3))):
        rows = data.draw(st.lists(st.tuples(st.integers(0, 7), st.one_of(st.none(), NUMBERS[data_type])), max_size=20))
        slots = np.array([slot for slot, _ in rows], np.int32)
        expected: dict[str, list[Any]] = {name: [] for name in ("count", *names)}
        for slot, value in rows:
            history = seen.setdefault(slot, [])
            if value is not None:
                history.append(value)
            for name, results in expected.items():
                results.append(functions[name](history) if history else 0)

        got = column.fold(slots, pa.array([value for _, value in rows], data_type))

        assert got["count"].tolist() == expected["count"]
        for name in names:
            pairs = zip(got[name].tolist(), expected[name], expected["count"], strict=True)
            assert all(value == wanted for value, wanted, counted in pairs if counted)

    stored = column.get(np.arange(8, dtype=np.int32))
    stored.validate(full=True)
    assert stored.to_pylist() == [
        {name: functions[name](seen[slot]) for name in ("count", *names)} if seen.get(slot) else None
        for slot in range(8)
    ]
    copy = AggregateColumn(RunningAggregateDescriptor("a", data_type, names), 8)
    copy.put(np.arange(8, dtype=np.int32), stored)
    copy.clear(np.array([0], np.int32))
    column.clear(np.array([0], np.int32))
    assert copy.get(np.arange(8, dtype=np.int32)).equals(column.get(np.arange(8, dtype=np.int32)))


def test_folding_without_running_results() -> None:
    """Only the end matters: nothing is reported per row."""
    column = AggregateColumn(RunningAggregateDescriptor("a", pa.int64(), ("sum", "max")), 8)

    assert column.fold(np.array([1, 1], np.int32), np.array([2, 3]), running=False)["sum"].tolist() == []
    assert column.get(np.array([1], np.int32)).to_pylist() == [{"count": 2, "sum": 5, "max": 3}]
