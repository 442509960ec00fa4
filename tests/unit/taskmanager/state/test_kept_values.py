"""What a row reads of a state does not depend on where batches end, whatever Python objects were put."""

from __future__ import annotations

import copy
import datetime as dt
import decimal
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pytest

import snapline as sl
from snapline.taskmanager.state import kept_values
from snapline.taskmanager.state.kept_values import keeping_of
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


def read_in_batches(
    rows: list[Any], size: int, claim: Callable[[KeyedStateBackend], Callable[[Any], Any]]
) -> list[str]:
    """What rows of one key read, so many in a batch."""
    backend = KeyedStateBackend(pa.schema([("key", pa.int64())]), ALL, MAX_PARALLELISM)
    backend.scope.now_ms = lambda: 0
    row = claim(backend)
    read = []
    for first in range(0, len(rows), size):
        some = rows[first : first + size]
        backend.begin_batch(backend.slots([pa.array([7] * len(some))]))
        read += [repr(row(value)) for value in some]
        backend.end_batch()
    return read


@pytest.mark.parametrize("ttl", [{}, {"ttl": sl.StateTtlConfig(dt.timedelta(days=1))}], ids=["plain", "ttl"])
@pytest.mark.parametrize("claim", [of_value, of_others])
def test_batches_of_any_size_read_the_same(claim: Callable[..., Callable[[float], Any]], ttl: dict[str, Any]) -> None:
    """A number was rounded only where a batch ended, so that sums depended on it."""
    read = [read_in_batches(ROWS, size, lambda backend: claim(backend, **ttl)) for size in (1, 3, len(ROWS))]

    assert read[0] == read[1] == read[2]
    assert repr(float(np.float32(0.1))) in read[0][1]


DAY, NOON = dt.date(2026, 1, 2), dt.datetime(2026, 1, 2, 12, tzinfo=dt.UTC)
GAP = dt.datetime(2026, 3, 29, 2, 30, tzinfo=pa.lib.string_to_tzinfo("Europe/Berlin"))
"""An hour that clocks pass over."""
RECORD = pa.struct([("a", pa.int64()), ("b", pa.list_(pa.date32()))])
Decimal = decimal.Decimal
PUT: dict[pa.DataType, tuple[Any, ...]] = {
    pa.date32(): (NOON, NOON.replace(tzinfo=None), DAY, 20_000),
    pa.decimal128(10, 2): (1, Decimal("1.1"), Decimal("1.10"), Decimal("1.1000"), Decimal("-0.00"), Decimal("-1.00")),
    pa.timestamp("us", "Europe/Berlin"): (NOON, NOON.replace(tzinfo=None), 5, *(GAP.replace(fold=n) for n in (0, 1))),
    pa.timestamp("ms"): (NOON, NOON.replace(tzinfo=None)),
    pa.timestamp("ns"): (NOON, NOON.replace(tzinfo=None)),
    pa.duration("ns"): (dt.timedelta(seconds=1),),
    pa.time32("s"): (5, dt.time(1, 2, 3), dt.time(1, 2, 3, tzinfo=dt.UTC)),
    RECORD: ({"a": 1}, {"b": (NOON, DAY), "a": 1}, {"a": 1, "b": None, "c": 3}, [("a", 1)], OrderedDict(b=[None], a=2)),
    pa.map_(pa.string(), pa.int64()): ({"a": 1}, (("a", 1),), [("a", 1), ("b", None)], {}),
    pa.map_(pa.date32(), RECORD): ({NOON: {"a": 1}, DAY: None}, [(DAY, {"a": 1, "b": []})]),
    pa.list_(pa.int64()): ((1, 2), [1, 2], range(2), np.array([1, 2])),
    pa.list_(pa.int64(), 2): ((1, 2), [1, 2]),
    pa.large_list(RECORD): (({"a": 1}, None), [{"a": 1, "b": [DAY]}]),
    pa.dictionary(pa.int32(), pa.string()): ("a", "b"),
    pa.binary(): (b"a", bytearray(b"a"), memoryview(b"a"), "a"),
}


def last(left: Any, right: Any) -> Any:
    """What came last."""
    return right


class Last(sl.AggregateFunction):
    """What came last."""

    def create_accumulator(self) -> Any:
        return None

    def add(self, value: Any, accumulator: Any) -> Any:
        return value

    def get_result(self, accumulator: Any) -> Any:
        return accumulator


def every_kind(backend: KeyedStateBackend, data_type: pa.DataType, **ttl: Any) -> Callable[[Any], Any]:
    """Put a value into a state of each kind, and read it."""
    value = backend.get_state(sl.ValueStateDescriptor("value", data_type, **ttl))
    found = backend.get_list_state(sl.ListStateDescriptor("list", data_type, **ttl))
    pairs = backend.get_map_state(sl.MapStateDescriptor("map", pa.string(), data_type, **ttl))
    sums = backend.get_reducing_state(sl.ReducingStateDescriptor("sums", last, data_type, **ttl))
    totals = backend.get_aggregating_state(sl.AggregatingStateDescriptor("totals", Last(), data_type, **ttl))

    def row(given: Any) -> Any:
        before = value.value(), found.get(), pairs.get("a"), sums.get(), totals.get()
        value.update(given)
        found.add(given)
        found.update([*found.get(), given])
        pairs.put("a", given)
        sums.add(given)
        totals.add(given)
        return before

    return row


@pytest.mark.parametrize("ttl", [{}, {"ttl": sl.StateTtlConfig(dt.timedelta(days=1))}], ids=["plain", "ttl"])
@pytest.mark.parametrize("data_type", PUT, ids=str)
def test_what_is_read_is_what_the_column_keeps(data_type: pa.DataType, ttl: dict[str, Any]) -> None:
    """Within a batch a row read the very object that was put: a day with hours, a struct without a field, a tuple."""
    rows = [*PUT[data_type], None, *PUT[data_type]]
    read = [read_in_batches(rows, size, lambda backend: every_kind(backend, data_type, **ttl)) for size in (1, 3, 99)]

    assert read[0] == read[1] == read[2]


@pytest.mark.parametrize("put_twice", [[[1]], {"a": [1]}], ids=["list", "struct"])
def test_what_is_changed_after_it_was_put_is_not_changed_in_the_state(put_twice: Any) -> None:
    """A list that a row put and then filled further was longer for the rows of its batch, and not for those behind."""
    data_type = (
        pa.list_(pa.list_(pa.int64())) if isinstance(put_twice, list) else pa.struct([("a", pa.list_(pa.int64()))])
    )

    def claim(backend: KeyedStateBackend) -> Callable[[Any], Any]:
        value = backend.get_state(sl.ValueStateDescriptor("value", data_type))
        pairs = backend.get_map_state(sl.MapStateDescriptor("map", pa.string(), data_type))

        def row(_: Any) -> Any:
            before = value.value(), pairs.get("a")
            given = copy.deepcopy(put_twice)
            value.update(given)
            pairs.put("a", given)
            (given[0] if isinstance(given, list) else given["a"]).append(2)
            return before

        return row

    assert read_in_batches([1, 2], 1, claim) == read_in_batches([1, 2], 2, claim)


@pytest.mark.parametrize("zone", [None, "Asia/Tokyo"])
def test_moments_of_pandas_are_those_of_the_column(zone: str | None) -> None:
    """One of another zone, or of none, was read as it was put until the batch ended."""
    pandas = pytest.importorskip("pandas", reason="Python's own times have no nanoseconds")
    rows = [NOON, pandas.Timestamp(NOON), pandas.Timestamp("2026-01-02 12:00"), pandas.Timestamp(NOON).tz_convert(zone)]
    read = [
        read_in_batches(rows, size, lambda backend: every_kind(backend, pa.timestamp("ns", zone))) for size in (1, 99)
    ]

    assert read[0] == read[1]


def test_a_record_whose_fields_are_called_by_bytes_keeps_its_values() -> None:
    """A client of Redis gives such ones, and all of their fields were null."""
    keep = keeping_of(RECORD, copies=True)

    assert keep is not None
    assert keep({b"a": 1}) == {"a": 1, "b": None}
    assert keep({}) == {"a": None, "b": None}
    for misspelled in ({"c": 1}, {"a": 1, "c": 2}):
        assert keep(misspelled) == misspelled  # refused when it is written


def test_a_buffer_that_is_filled_again_for_the_next_key_does_not_change_the_states_before() -> None:
    """All keys of a batch had the bytes that were put last."""
    backend = KeyedStateBackend(pa.schema([("key", pa.int64())]), ALL, MAX_PARALLELISM)
    state = backend.get_state(sl.ValueStateDescriptor("value", pa.binary()))
    buffer, slots = bytearray(1), backend.slots([pa.array([7, 8])])
    for number in backend.begin_batch(slots):
        backend.scope.index = number
        buffer[0] = number
        state.update(buffer)
    backend.end_batch()

    assert isinstance(state, KeyedValueState)
    assert state.get_batch(slots).to_pylist() == [b"\0", b"\1"]


def test_a_moment_that_a_zone_has_no_year_for_is_left_for_the_column() -> None:
    """Putting the last moment of UTC into a state of a zone in the east was an OverflowError of Python's."""
    keep = keeping_of(pa.timestamp("us", "Asia/Tokyo"), copies=True)
    last_moment = dt.datetime.max.replace(tzinfo=dt.UTC)

    assert keep is not None
    assert keep(last_moment) is last_moment


def change(given: Any) -> None:
    """Change a list or a record in place."""
    if isinstance(given, list):
        given.append(9)
    else:
        given["a"] = 9 if isinstance(given["a"], int) else [9]


@pytest.mark.parametrize("ttl", [{}, {"ttl": sl.StateTtlConfig(dt.timedelta(days=1))}], ids=["plain", "ttl"])
@pytest.mark.parametrize("put", [{"a": 1}, {"a": [1]}, [1]], ids=["flat", "struct", "list"])
def test_what_a_later_row_changes_is_not_changed_in_the_state(put: Any, ttl: dict[str, Any]) -> None:
    """Elements of a list that was put back, those that were read from it, and what an aggregate took from a row changed
    in the state for the rows of the same batch."""
    data_type = pa.array([put]).type

    def claim(backend: KeyedStateBackend) -> Callable[[Any], Any]:
        found = backend.get_list_state(sl.ListStateDescriptor("list", data_type, **ttl))
        added = backend.get_list_state(sl.ListStateDescriptor("added", data_type, **ttl))
        totals = backend.get_aggregating_state(sl.AggregatingStateDescriptor("totals", Last(), data_type, **ttl))
        known: list[Any] = []

        def row(_: Any) -> Any:
            for each in known:
                change(each)
            before = copy.deepcopy((found.get(), added.get(), totals.get()))
            given = copy.deepcopy(put)
            found.update([*found.get(), given])
            added.add(given)
            totals.add(given)
            known.extend([given, *found.get(), *added.get(), totals.get()])
            return before

        return row

    assert read_in_batches([1, 2, 3, 4], 1, claim) == read_in_batches([1, 2, 3, 4], 4, claim)


@pytest.mark.parametrize("cut", [0, 1], ids=["longer", "window"])
@pytest.mark.parametrize("element", [NOON.date(), {"a": 1, "b": None}], ids=["day", "struct"])
def test_what_a_list_had_is_not_looked_at_again(element: Any, cut: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each row that put back a list with one element more looked at all elements: the square of the rows of a key."""
    looked_at: list[Any] = []

    def look(value: Any) -> Any:
        looked_at.append(value)
        return copy.copy(value)

    monkeypatch.setattr(kept_values, "keeping_of", lambda *_, **__: look)

    def claim(backend: KeyedStateBackend) -> Callable[[Any], Any]:
        data_type = pa.date32() if isinstance(element, dt.date) else pa.struct([("a", pa.int64()), ("b", pa.int64())])
        found = backend.get_list_state(sl.ListStateDescriptor("list", data_type))

        def row(_: Any) -> Any:
            found.update([*found.get()[cut:], element, element])
            return found.get()

        return row

    assert read_in_batches([None] * 20, 20, claim) == read_in_batches([None] * 20, 7, claim)
    assert len(looked_at) == 2 * 2 * 20


def test_accumulators_stay_the_same_objects_where_they_are_kept() -> None:
    """By that one that grows with each row is not copied for each."""
    keep = keeping_of(RECORD, copies=False)
    kept = {"a": 1, "b": [DAY]}

    assert keep is not None
    assert keep(kept) is kept


def test_lists_that_an_aggregate_fills_are_not_looked_through_for_each_row() -> None:
    """That took the square of the rows of a key. Where floats are to be rounded they are, as long as they are few."""
    inside = pa.struct([("seen", pa.list_(RECORD)), ("day", pa.date32())])
    keep = keeping_of(inside, copies=False)
    seen = [{"a": 1}, OrderedDict(a=2)]

    assert keeping_of(pa.list_(RECORD), copies=False) is None
    assert keep is not None
    assert {"seen": seen, "day": DAY} == (kept := keep({"seen": seen, "day": NOON}))
    assert kept["seen"] is seen
    assert keeping_of(pa.list_(pa.float32()), copies=False) is not None


def test_other_states_are_made_without_any_of_this() -> None:
    """Whole numbers, floats of 64 bits and texts are what they are: their states are of the class that they were."""
    backend = KeyedStateBackend(pa.schema([("key", pa.int64())]), ALL, MAX_PARALLELISM)
    for number, data_type in enumerate((pa.float64(), pa.string(), pa.int8(), pa.bool_())):
        assert type(backend.get_state(sl.ValueStateDescriptor(str(number), data_type))) is KeyedValueState
    by_json = backend.get_state(sl.ValueStateDescriptor("json", serializer="json"))
    assert type(by_json) is KeyedValueState
