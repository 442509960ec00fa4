"""MapState and ListState row by row against dictionaries: what is kept between batches, looked up alone, loaded
ahead."""

from __future__ import annotations

import datetime as dt
import decimal
import zoneinfo
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from snapline.dataflow.api.state import ListStateDescriptor, MapStateDescriptor
from snapline.dataflow.errors import StateError
from snapline.taskmanager.state import map_cache
from snapline.taskmanager.state.index.slots import Slots
from snapline.taskmanager.state.keyed_backend import KeyedStateBackend
from snapline.taskmanager.state.lookahead import Lookahead
from tests.unit.taskmanager.state.naive import ALL, MAX_PARALLELISM


def _time(number: int) -> dt.datetime:
    return dt.datetime.fromtimestamp(number, pa.lib.string_to_tzinfo("UTC"))


def _decimal(number: int) -> decimal.Decimal:
    return decimal.Decimal(number) / 4


KINDS: dict[str, tuple[pa.DataType, pa.DataType, Callable[[int], Any], Callable[[int], Any]]] = {
    "int64": (pa.int64(), pa.int64(), lambda n: n, lambda n: n),
    "string": (pa.string(), pa.string(), str, lambda n: None if n == 0 else f"v{n}"),
    "double": (pa.float64(), pa.float32(), float, lambda n: n / 4),
    "timestamp": (pa.timestamp("ms", "UTC"), pa.list_(pa.int64()), _time, lambda n: [n]),
    "decimal": (pa.decimal128(9, 2), pa.bool_(), _decimal, lambda n: n % 2 == 0),
}


class Subject:
    """One map state over integer keys, a batch at a time."""

    def __init__(self, kind: str = "int64") -> None:
        key_type, value_type, self.pair, self.value = KINDS[kind]
        self.backend = KeyedStateBackend(pa.schema([("key", pa.int64())]), ALL, MAX_PARALLELISM)
        self.descriptor = MapStateDescriptor("pairs", key_type, value_type)
        self.state = self.backend.get_map_state(self.descriptor)

    def slots(self, keys: list[int]) -> Any:
        return self.backend.slots([pa.array(keys, pa.int64())])

    def run(self, rows: list[tuple[int, str, int, int]]) -> list[Any]:
        numbers = self.backend.begin_batch(self.slots([key for key, _, _, _ in rows]))
        results = []
        for number, (_, verb, pair, value) in zip(numbers, rows, strict=True):
            self.backend.scope.index = number
            results.append(self.apply(verb, pair, value))
        self.backend.end_batch()
        return results

    def apply(self, verb: str, pair: int, value: int) -> Any:
        match verb:
            case "get":
                return self.state.get(self.pair(pair))
            case "contains":
                return self.state.contains(self.pair(pair))
            case "put":
                return self.state.put(self.pair(pair), self.value(value))
            case "remove":
                return self.state.remove(self.pair(pair))
            case "clear":
                return self.state.clear() if value == 0 else None
            case _:
                return sorted(self.state.items(), key=repr)


class Naive(Subject):
    """Dictionaries."""

    def __init__(self, kind: str) -> None:
        super().__init__(kind)
        self.maps: dict[int, dict[Any, Any]] = {}

    def run(self, rows: list[tuple[int, str, int, int]]) -> list[Any]:
        results: list[Any] = []
        for key, verb, number, value in rows:
            pairs, pair = self.maps.setdefault(key, {}), self.pair(number)
            match verb:
                case "put":
                    pairs[pair] = self.value(value)
                case "remove":
                    pairs.pop(pair, None)
                case "clear" if value == 0:
                    pairs.clear()
            looks = {"get": pairs.get(pair), "contains": pair in pairs, "items": sorted(pairs.items(), key=repr)}
            results.append(looks.get(verb))
        return results


ROWS = st.lists(
    st.tuples(
        st.integers(0, 3),
        st.sampled_from(["get", "get", "put", "put", "put", "remove", "contains", "clear", "items"]),
        st.integers(0, 60),
        st.integers(0, 9),
    ),
    max_size=60,
)


@settings(max_examples=120, deadline=None)
@given(st.sampled_from(sorted(KINDS)), st.lists(ROWS, min_size=1, max_size=5), st.sampled_from([8, 1 << 18]))
def test_maps_against_dictionaries(kind: str, batches: list[list[Any]], known_pairs: int) -> None:
    """However little is kept between batches, and however much of a map is known."""
    subject, naive = Subject(kind), Naive(kind)
    everything = [(key, "put", pair, pair % 10) for key in (0, 1) for pair in range(50)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(map_cache, "KNOWN_PAIRS", known_pairs)
        for rows in [everything, *batches]:
            assert naive.run(rows) == subject.run(rows)
        restored = Subject(kind)
        frozen = subject.backend.snapshot()
        restored.backend.restore([_File(bytes(frozen.encode()))])
        looks = [(key, "items", 0, 0) for key in range(4)]

        assert naive.run(looks) == subject.run(looks) == restored.run(looks)


def test_whole_columns_and_rows_see_each_other() -> None:
    """What rows know of a map is forgotten when its column is changed."""
    subject = Subject()
    subject.run([(1, "put", 7, 1), (2, "put", 7, 2), (1, "get", 8, 0)])
    slots = subject.slots([1, 2])
    subject.state.put_batch(slots, pa.array([8, 8]), pa.array([80, 90]))
    assert [80, 1, 90] == subject.run([(1, "get", 8, 0), (1, "get", 7, 0), (2, "get", 8, 0)])

    subject.state.remove_batch(slots[:1], pa.array([7]))
    assert [None, 2] == subject.run([(1, "get", 7, 0), (2, "get", 7, 0)])

    subject.state.clear_batch(slots)
    assert [[], []] == subject.run([(1, "items", 0, 0), (2, "items", 0, 0)])


def test_a_value_reads_as_it_is_stored() -> None:
    """Also by the batch after the one that wrote it: the type of the state, not of what was put."""
    subject = Subject("double")
    subject.value = lambda n: n
    subject.run([(1, "put", 1, 3)])
    subject.backend.end_batch()

    [value] = subject.run([(1, "get", 1, 0)])
    assert isinstance(value, float)


_AUTUMN = dt.datetime(2020, 10, 25, 0, 30, tzinfo=dt.UTC)
"""Half past two in Berlin, which comes again an hour later."""
_BERLIN = zoneinfo.ZoneInfo("Europe/Berlin")
EQUAL_KEYS: list[tuple[pa.DataType, list[Any], list[Any]]] = [
    (pa.float64(), [float("nan"), float("nan"), np.float64("nan")], [1.5]),
    (pa.float32(), [0.1, np.float32(0.1)], [float("inf")]),
    (pa.timestamp("us"), [_AUTUMN, _AUTUMN.replace(tzinfo=None)], [_AUTUMN + dt.timedelta(microseconds=1)]),
    (
        pa.timestamp("us", "Europe/Berlin"),
        [_AUTUMN, _AUTUMN.astimezone(_BERLIN), _AUTUMN.replace(tzinfo=None)],
        [(_AUTUMN + dt.timedelta(hours=1)).astimezone(_BERLIN)],
    ),
]


@pytest.mark.parametrize(("key_type", "equal", "others"), EQUAL_KEYS, ids=[str(one[0]) for one in EQUAL_KEYS])
@pytest.mark.parametrize("apart", [False, True], ids=["one batch", "batches"])
@pytest.mark.parametrize("size", [0, 1000], ids=["small", "looked up alone"])
def test_keys_are_the_same_within_a_batch_and_later(
    key_type: pa.DataType, equal: list[Any], others: list[Any], size: int, *, apart: bool
) -> None:
    """Whichever way a key is spelled, it finds what another spelling has put, and no other key's value."""
    subject = Subject()
    subject.state = subject.backend.get_map_state(MapStateDescriptor("of-type", key_type, pa.int64()))
    keys = [*equal, *others]
    subject.pair = lambda n: (
        keys[n] if n < len(keys) else pa.scalar(n - 100_000).cast(pa.int64()).cast(key_type).as_py()
    )
    rows = [(1, "put", 1_000 + n, n) for n in range(size)]
    rows += [(1, "put", len(equal), -1)]
    for n in range(len(equal)):
        rows += [(1, "put", n, n), *((1, "get", each, 0) for each in range(len(keys)))]
    found = [one for part in ([[row] for row in rows] if apart else [rows]) for one in subject.run(part)]

    assert [one for one in found if one is not None] == [v for n in range(len(equal)) for v in [*[n] * len(equal), -1]]
    assert len(subject.run([(1, "items", 0, 0)])[0]) == size + 2


def test_what_cannot_be_written_is_not_remembered() -> None:
    """The batch fails, and the map is as it was."""
    subject = Subject()
    subject.run([(1, "put", 1, 5)])
    subject.value = lambda n: "five"
    with pytest.raises(StateError, match="'pairs' holds int64, which 'five'"):
        subject.run([(1, "put", 1, 5)])
    subject.backend.scope.close()

    assert [5] == subject.run([(1, "get", 1, 0)])


def test_a_list_that_one_row_in_a_hundred_reads_is_not_loaded_for_all() -> None:
    """Loading ahead follows what is asked for."""
    backend = KeyedStateBackend(pa.schema([("key", pa.int64())]), ALL, MAX_PARALLELISM)
    state = backend.get_list_state(ListStateDescriptor("numbers", pa.int64()))
    slots = backend.slots([pa.array(range(1000), pa.int64())])
    state.add_batch(slots, pa.array(range(1000), pa.int64()))
    read: list[int] = []
    stored = state._values.get

    def counted(entries: Slots) -> pa.Array:
        read.append(len(entries))
        return stored(entries)

    state._values.get = counted  # type: ignore[method-assign,assignment]
    for every, most in ((100, 60), (1, 1100)):
        read.clear()
        numbers = backend.begin_batch(slots)
        for number in numbers[::every]:
            backend.scope.index = number
            assert [number] == state.get()
        backend.end_batch()

        assert sum(read) <= most


def test_lookahead_widens_while_it_pays_and_narrows_when_not() -> None:
    """The window of a state."""
    ahead = Lookahead()
    widths = []
    for _ in range(4):
        numbers = ahead.numbers(0, 100)
        widths.append(len(numbers))
        ahead.loaded_ahead(len(numbers) - 1)
        ahead.asked = len(numbers) - 1
    ahead.asked = 0
    assert [2, 4, 8, 16] == widths
    assert range(98, 100) == ahead.numbers(98, 100)


class _File:
    def __init__(self, data: bytes) -> None:
        self.data = data

    def read_range(self, offset: int, size: int) -> bytes:
        return self.data[offset : offset + size]
