"""States of floats of less than 64 bits: what a row reads does not depend on where batches end."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pytest

import snapline as sl
from snapline.taskmanager.state.keyed_backend import KeyedStateBackend
from snapline.taskmanager.state.keyed_state import KeyedValueState
from tests.unit.taskmanager.state.naive import ALL, MAX_PARALLELISM

SINGLE = pa.float32()
STRUCT = pa.struct([("x", SINGLE), ("n", pa.int64()), ("more", pa.list_(pa.float16()))])
MAP = pa.map_(pa.string(), SINGLE)
ROWS = [0.1, 0.2, float("nan"), 1e300, -0.0, 1 / 3, 16777217.0, 1e-50, cast(Any, np.float32(0.7))]


class Total(sl.AggregateFunction):
    """A sum."""

    def create_accumulator(self) -> float:
        return 0.1

    def add(self, value: float, accumulator: float) -> float:
        return accumulator + value

    def get_result(self, accumulator: float) -> float:
        return accumulator * 3


def plus(left: float, right: float) -> float:
    """A sum."""
    return left + right


def of_value(backend: KeyedStateBackend, **ttl: Any) -> Callable[[float], Any]:
    """Put and read a number, one in a struct, and one in a map."""
    plain = backend.get_state(sl.ValueStateDescriptor("plain", SINGLE, **ttl))
    half = backend.get_state(sl.ValueStateDescriptor("half", pa.float16(), **ttl))
    struct = backend.get_state(sl.ValueStateDescriptor("struct", STRUCT, **ttl))
    mapped = backend.get_state(sl.ValueStateDescriptor("mapped", MAP, **ttl))

    def row(value: float) -> Any:
        before = plain.value(), half.value(), struct.value(), mapped.value()
        plain.update((before[0] or 0) + value)
        half.update(value)
        struct.update({"x": value, "n": 2, "more": [value, None]})
        mapped.update([("a", value)])
        return before

    return row


def of_others(backend: KeyedStateBackend, **ttl: Any) -> Callable[[float], Any]:
    """Add to a list, a map and what is combined."""
    sums = backend.get_reducing_state(sl.ReducingStateDescriptor("sums", plus, SINGLE, **ttl))
    totals = backend.get_aggregating_state(sl.AggregatingStateDescriptor("totals", Total(), SINGLE, **ttl))
    values = backend.get_list_state(sl.ListStateDescriptor("values", SINGLE, **ttl))
    pairs = backend.get_map_state(sl.MapStateDescriptor("pairs", pa.string(), SINGLE, **ttl))

    def row(value: float) -> Any:
        before = sums.get(), totals.get(), values.get(), list(pairs.items())
        sums.add(value)
        totals.add(value)
        values.add(value) if value > 0 else values.update([*values.get(), value])
        pairs.put("last", value)
        return before

    return row


@pytest.mark.parametrize("ttl", [{}, {"ttl": sl.StateTtlConfig(dt.timedelta(days=1))}], ids=["plain", "ttl"])
@pytest.mark.parametrize("claim", [of_value, of_others])
def test_batches_of_any_size_read_the_same(claim: Callable[..., Callable[[float], Any]], ttl: dict[str, Any]) -> None:
    """A number was rounded only where a batch ended, so that sums depended on it."""
    read: list[list[str]] = []
    for size in (1, 3, len(ROWS)):
        backend = KeyedStateBackend(pa.schema([("key", pa.int64())]), ALL, MAX_PARALLELISM)
        backend.scope.now_ms = lambda: 0
        row = claim(backend, **ttl)
        read.append([])
        for first in range(0, len(ROWS), size):
            rows = ROWS[first : first + size]
            backend.begin_batch(backend.slots([pa.array([7] * len(rows))]))
            read[-1] += [repr(row(value)) for value in rows]
            backend.end_batch()

    assert read[0] == read[1] == read[2]
    assert repr(float(np.float32(0.1))) in read[0][1]


def test_other_states_are_made_without_rounding() -> None:
    """Floats of 64 bits are Python's own: their states are of the class that they were."""
    backend = KeyedStateBackend(pa.schema([("key", pa.int64())]), ALL, MAX_PARALLELISM)
    for number, data_type in enumerate((pa.float64(), pa.list_(pa.string()), pa.map_(pa.string(), pa.int8()))):
        assert type(backend.get_state(sl.ValueStateDescriptor(str(number), data_type))) is KeyedValueState
    by_json = backend.get_state(sl.ValueStateDescriptor("json", serializer="json"))
    assert type(by_json) is KeyedValueState
