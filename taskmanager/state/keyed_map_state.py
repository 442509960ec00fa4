"""MapState: every pair is an entry, found through a KeyIndex over (slot, map key); each key has a chain of its entries.

Reading, setting and removing one pair costs that pair, however large the map and however many keys the batch has. Row
by row, a pair that is not known is looked up alone; once look-ups in a map have cost as much as loading it, it is
loaded whole; maps of a few pairs are loaded at once, with those of the keys that follow. What was read or written
stays known for later batches (a bounded number of pairs, those used last; only values that Python cannot change in
place, and structs of such, which are given as copies), what was changed is written when the batch ends. Mirrors
Flink's HeapMapState.
"""

from __future__ import annotations

import datetime as dt
import decimal
import math
from collections.abc import Callable, Iterable
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa

from snapline.dataflow.api.state import MapStateDescriptor
from snapline.dataflow.columnar.arrow_columns import BoolArray, bitmap_of
from snapline.dataflow.errors import StateError
from snapline.taskmanager.state.batch_scope import BatchScope
from snapline.taskmanager.state.columns import Column, FrozenColumn, NumpyColumn, make_column
from snapline.taskmanager.state.index.chains import Chains, FrozenChains
from snapline.taskmanager.state.index.key_index import FrozenKeys, KeyIndex
from snapline.taskmanager.state.index.slots import Slots
from snapline.taskmanager.state.keyed_state import KeyedState, PythonValues, apart, is_flat, python_values
from snapline.taskmanager.state.list_cache import may_be_kept
from snapline.taskmanager.state.lookahead import Lookahead
from snapline.taskmanager.state.map_cache import KnownMap, KnownMaps

_SMALL = 32
"""Looking up one pair costs about as much as loading so many at once, ..."""
_LOOKUPS_PER_LOAD = 8
"""... not counting what it costs to begin with loading, which is so many look-ups."""
_ABSENT = object()
"""In place of a value: it is known that there is none."""
_UNKNOWN = object()
_PYTHON_TYPES: tuple[tuple[Any, type], ...] = (
    (pa.types.is_integer, int), (pa.types.is_floating, float), (pa.types.is_boolean, bool),
    (pa.types.is_string, str), (pa.types.is_large_string, str), (pa.types.is_binary, bytes),
    (pa.types.is_large_binary, bytes), (pa.types.is_fixed_size_binary, bytes), (pa.types.is_decimal, decimal.Decimal),
    (pa.types.is_date, dt.date), (pa.types.is_timestamp, dt.datetime), (pa.types.is_time, dt.time),
    (pa.types.is_duration, dt.timedelta),
)  # fmt: skip
_STEPS = {"s": 1_000_000, "ms": 1_000, "us": 1, "ns": 1}
"""Microseconds of Python's times that each unit keeps apart."""


_UTC = pa.lib.string_to_tzinfo("UTC")
_NAN = float("nan")
"""The one that stands for all: others are keys of their own to a dictionary."""


class _MapKeys(PythonValues):
    """Keys of maps so that those that are equal in columns are equal to a dictionary, and others are not: one NaN, and
    moments of a zone in UTC, since Python takes no account of which of two equal hours in autumn it is."""

    __slots__ = ("_is_double", "_step", "_told_in", "_zone", "plain")

    def __init__(self, name: str, data_type: pa.DataType) -> None:
        super().__init__(name, data_type, "")
        self._is_double = pa.types.is_float64(data_type)
        is_moment = pa.types.is_timestamp(data_type)
        self._step = _STEPS[data_type.unit] if is_moment else 0
        self._zone = pa.lib.string_to_tzinfo(data_type.tz) if is_moment and data_type.tz else None
        self._told_in = None if self._zone is None else _UTC
        is_cut = getattr(data_type, "unit", "us") in ("s", "ms")
        kinds = () if is_moment or is_cut or pa.types.is_floating(data_type) else _PYTHON_TYPES
        self.plain: type = next((kind for is_kind, kind in kinds if is_kind(data_type)), object)
        """Objects of exactly this class are keys as they are."""

    def to_python(self, values: pa.Array) -> list[Any]:
        if self._zone is not None:
            values = values.cast(pa.timestamp(values.type.unit, "UTC"))
        keys = super().to_python(values)
        return [_NAN if math.isnan(key) else key for key in keys] if pa.types.is_floating(values.type) else keys

    def canonical(self, key: Any) -> Any:
        """The key as it is when it is read back."""
        kind = key.__class__
        if kind is dt.datetime and self._step and (self._step == 1 or not key.microsecond % self._step):
            zone = key.tzinfo
            if zone is self._told_in or (zone is dt.UTC and self._told_in is not None):
                return key
            return (key if zone is None else key.astimezone(_UTC)).replace(tzinfo=self._told_in)
        if kind is float and self._is_double:
            return _NAN if math.isnan(key) else key
        if kind is self.plain or key is None:
            return key
        return self.to_python(self.to_arrow([key]))[0]

    def shown(self, pairs: list[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
        """Pairs with the keys as they are in rows."""
        return pairs if self._zone is None else [(key.astimezone(self._zone), value) for key, value in pairs]


class KeyedMapState(KeyedState):
    """Map state in columns (implements snapline.dataflow.api.state.MapState)."""

    __slots__ = (
        "_canonical", "_chains", "_flat", "_index", "_keeps", "_key_type", "_keys", "_known", "_lookahead", "_maps", "_plain", "_python", "_scope",
        "_values", "descriptor",
    )  # fmt: skip

    def __init__(self, descriptor: MapStateDescriptor, scope: BatchScope, capacity: int) -> None:
        self.descriptor: MapStateDescriptor = descriptor
        self._scope = scope
        element_type = descriptor.element_type
        self._python = python_values(descriptor, element_type)
        self._keys = _MapKeys(descriptor.name, descriptor.key_type)
        self._key_type, self._canonical = self._keys.plain, self._keys.canonical
        self._index = KeyIndex([pa.field("slot", pa.int32()), pa.field(f"{descriptor.name}.key", descriptor.key_type)])
        self._chains = Chains(capacity)
        self._values: Column = make_column(element_type)
        numeric = any(is_kind(element_type) for is_kind, _ in _PYTHON_TYPES[:3])
        self._plain = self._values if numeric and isinstance(self._values, NumpyColumn) else None
        self._flat = is_flat(descriptor, element_type)
        is_copied = descriptor.ttl is None and pa.types.is_struct(element_type) and may_be_kept(element_type)
        known_type = is_copied or any(is_kind(element_type) for is_kind, _ in _PYTHON_TYPES)
        self._keeps = not descriptor.serializer and known_type
        self._maps: dict[int, KnownMap] = {}
        """The maps of the present batch, by number of the key."""
        self._known = KnownMaps()
        self._lookahead = Lookahead()

    def get(self, key: Any) -> Any:
        known = self._maps.get(self._scope.index)
        if known is None:
            known = self._open()
        if key.__class__ is not self._key_type:
            key = self._canonical(key)
        value = known.pairs.get(key, _UNKNOWN)
        if value is _UNKNOWN:
            value = self._find(known, key)
        if value is _ABSENT or value is None:
            return None
        return value if self._flat is None else apart(value, flat=self._flat)

    def contains(self, key: Any) -> bool:
        known = self._current()
        key = self._canonical(key)
        value = known.pairs.get(key, _UNKNOWN)
        return (self._find(known, key) if value is _UNKNOWN else value) is not _ABSENT

    def put(self, key: Any, value: Any) -> None:
        known = self._maps.get(self._scope.index)
        if known is None:
            known = self._open()
        if key.__class__ is not self._key_type:
            if key is None:
                raise StateError(f"map state {self.descriptor.name!r}: a key cannot be None")
            key = self._canonical(key)
        known.pairs[key] = value
        known.changed[key] = None

    def put_all(self, mapping: dict[Any, Any]) -> None:
        for key, value in mapping.items():
            self.put(key, value)

    def remove(self, key: Any) -> None:
        known = self._current()
        key = self._canonical(key)
        known.pairs[key] = _ABSENT
        known.changed[key] = None

    def keys(self) -> Iterable[Any]:
        return [key for key, _ in self.items()]

    def values(self) -> Iterable[Any]:
        return [value for _, value in self.items()]

    def items(self) -> Iterable[tuple[Any, Any]]:
        known = self._current()
        if not known.complete:
            self._load(known)
        pairs = self._keys.shown([(key, value) for key, value in known.pairs.items() if value is not _ABSENT])
        return pairs if self._flat is None else [(key, apart(value, flat=self._flat)) for key, value in pairs]

    def is_empty(self) -> bool:
        return not self.items()

    def clear(self) -> None:
        known = self._current()
        known.pairs, known.complete, known.changed, known.cleared = {}, True, {}, True

    def flush(self) -> None:
        if not self._maps:
            return
        maps, self._maps = self._maps, {}
        cleared = [number for number, known in maps.items() if known.cleared]
        changes = [(number, key, known.pairs[key]) for number, known in maps.items() for key in known.changed]
        if cleared or changes:
            try:
                self._write(maps, cleared, changes)
            except Exception:
                self._known.clear()  # it holds what could not be written
                raise
        if not self._keeps:
            self._known.clear()
            return
        for known in maps.values():
            self._known.count(known)
        self._known.age()

    def _write(self, maps: dict[int, KnownMap], cleared: list[int], changes: list[tuple[int, Any, Any]]) -> None:
        """What rows have changed; afterwards the maps hold what reading would give."""
        slots = self._scope.slots
        kept = [change for change in changes if change[2] is not _ABSENT]
        gone = [change for change in changes if change[2] is _ABSENT]
        kept_keys = self._keys.to_arrow([key for _, key, _ in kept])
        kept_values = self._python.to_arrow([value for _, _, value in kept])
        gone_keys = self._keys.to_arrow([key for _, key, _ in gone])
        if cleared:
            self._cut(slots[np.array(cleared, np.int32)])
        if gone:
            self._remove(slots[np.array([number for number, _, _ in gone], np.int32)], gone_keys)
        if kept:
            self._put(slots[np.array([number for number, _, _ in kept], np.int32)], kept_keys, kept_values)
        if not self._keeps:
            return
        for known in maps.values():
            known.changed, known.cleared = {}, False
        for number, key, _ in gone:
            if maps[number].complete:
                del maps[number].pairs[key]
        stored = zip(kept, self._keys.to_python(kept_keys), self._values_of(kept_values), strict=True)
        for (number, key, _), stored_key, value in stored:
            pairs = maps[number].pairs
            if key != stored_key:
                del pairs[key]
            pairs[stored_key] = value

    def _values_of(self, values: pa.Array) -> list[Any]:
        if self._plain is not None and not values.null_count and not pa.types.is_boolean(values.type):
            numbers: list[Any] = values.to_numpy().tolist()
            return numbers
        return self._python.to_python(values)

    def grow(self, capacity: int) -> None:
        self._chains.grow_slots(capacity)

    def occupied(self, high_water: int) -> BoolArray:
        return self._chains.occupied(high_water)

    def freeze(self, high_water: int) -> FrozenColumn:
        entries = self._index.high_water
        return _FrozenMaps(
            self._chains.freeze(high_water, entries),
            self._index.freeze(),
            self._values.freeze(entries),
            self.descriptor,
        )

    def restore(self, slots: Slots, values: pa.Array) -> None:
        offsets = values.offsets.to_numpy()
        first, length = int(offsets[0]), int(offsets[-1] - offsets[0])
        self._known.clear()
        self._put(
            np.repeat(slots, np.diff(offsets)), values.keys.slice(first, length), values.items.slice(first, length)
        )

    def get_batch(self, slots: Slots) -> pa.Array:
        """Return the whole map of each slot."""
        self.flush()
        offsets, entries = self._chains.entries(slots)
        return _map_array(
            offsets, self._index.keys(entries)[1], self._values.get(entries), self.descriptor.storage_type
        )

    def lookup_batch(self, slots: Slots, keys: pa.Array) -> pa.Array:
        """The value under each row's map key, null where there is none."""
        self.flush()
        entries = self._index.lookup([pa.array(slots), keys])
        known = entries >= 0
        if known.all():
            return self._values.get(entries)
        positions = np.cumsum(known) - 1
        return self._values.get(entries[known]).take(pa.array(positions, mask=~known))

    def put_batch(self, slots: Slots, keys: pa.Array, values: pa.Array) -> None:
        """Set the value under each row's map key; the last of equal rows stays."""
        self.flush()
        if keys.null_count:
            raise StateError(f"map state {self.descriptor.name!r}: a key cannot be null")
        if values.type != self.descriptor.element_type:
            raise StateError(
                f"map state {self.descriptor.name!r} holds {self.descriptor.element_type}, the column to put is "
                f"{values.type}: cast it"
            )
        self._known.forget(slots)
        self._put(slots, keys, values)

    def remove_batch(self, slots: Slots, keys: pa.Array) -> None:
        """Remove each row's map key, where it is there."""
        self.flush()
        self._known.forget(slots)
        self._remove(slots, keys)

    def clear_batch(self, slots: Slots) -> None:
        self.flush()
        self._known.forget(slots)
        self._cut(slots)

    def remove_entries(self, slots: Slots, are_gone: Callable[[Slots], BoolArray]) -> Slots:
        """Forget the pairs of these keys whose entries (by which `values` goes) are gone; returns whose they were."""
        owners, entries = self._chains.owned(slots)
        gone = are_gone(entries)
        owners, entries = owners[gone], entries[gone]
        if len(entries):
            self._known.forget(owners)
            self._chains.unlink(owners, entries)
            self._values.clear(entries)
            self._index.remove(entries)
        return owners

    def _current(self) -> KnownMap:
        known = self._maps.get(self._scope.index)
        return self._open() if known is None else known

    def _open(self) -> KnownMap:
        """What is known of the current key's map."""
        scope = self._scope
        scope.check_open(self.descriptor.name)
        slot = int(scope.slots[scope.index])
        known = self._known.find(slot)
        if known is None:
            known = KnownMap({}, complete=not self._chains.counts[slot])
            self._known.add(slot, known)
        elif known.ahead:
            known.ahead = False
            self._lookahead.asked += 1
        self._maps[scope.index] = known
        return known

    def _find(self, known: KnownMap, key: Any) -> Any:
        """The value under a key that is not known yet."""
        if known.complete or key is None:
            return _ABSENT
        slot = int(self._scope.slots[self._scope.index])
        size = self._chains.counts[slot]
        known.lookups += 1
        if size <= _SMALL or (known.lookups - _LOOKUPS_PER_LOAD) * _SMALL >= size:
            self._load(known)
            return known.pairs.get(key, _ABSENT)
        entry = self._index.lookup_one((slot, key))
        if entry < 0:
            value = _ABSENT
        elif self._plain is not None:
            value = self._plain.values[entry].item() if self._plain.valid[entry] else None
        else:
            value = self._python.to_python(self._values.get(np.array([entry], np.int32)))[0]
        known.pairs[key] = value
        return value

    def _load(self, known: KnownMap) -> None:
        """Know the whole map of the current key; and, if it is small, those of keys that follow and are small."""
        index, slots = self._scope.index, self._scope.slots
        numbers = [index]
        counts = self._chains.counts
        if counts[slots[index]] <= _SMALL:
            following = np.array(self._lookahead.numbers(index, len(slots)), np.int32)[1:]
            sizes = counts[slots[following]]
            following = following[(sizes <= _SMALL) & (sizes > 0)]
            numbers += [
                number
                for number, slot in zip(following.tolist(), slots[following].tolist(), strict=True)
                if number not in self._maps and self._known.find(slot) is None
            ]
            self._lookahead.loaded_ahead(len(numbers) - 1)
        own, *others = self._read(numbers)
        own.update(known.pairs)
        known.pairs, known.complete = own, True
        for slot, pairs in zip(slots[np.array(numbers[1:], np.int32)].tolist(), others, strict=True):
            ahead = KnownMap(pairs, complete=True, ahead=True)
            self._known.add(slot, ahead)
            self._known.count(ahead)

    def _read(self, numbers: list[int]) -> list[dict[Any, Any]]:
        """The stored maps of these keys of the batch."""
        offsets, entries = self._chains.entries(self._scope.slots[np.array(numbers, np.int32)])
        keys = self._keys.to_python(self._index.keys(entries)[1])
        values = self._values_of(self._values.get(entries))
        bounds = offsets.tolist()
        return [dict(zip(keys[first:end], values[first:end], strict=True)) for first, end in pairwise(bounds)]

    def _put(self, slots: Slots, keys: pa.Array, values: pa.Array) -> None:
        columns = [pa.array(slots), keys]
        new = self._index.lookup(columns) < 0
        entries = self._index.lookup_or_insert(columns)
        capacity = self._index.capacity
        self._values.grow(capacity)
        self._chains.grow_entries(capacity)
        if new.any():
            fresh, rows = np.unique(entries[new], return_index=True)
            order = np.argsort(rows)
            self._chains.append(slots[new][rows[order]], fresh[order])
        self._values.put(entries, values)

    def _remove(self, slots: Slots, keys: pa.Array) -> None:
        entries, rows = np.unique(self._index.lookup([pa.array(slots), keys]), return_index=True)
        known = entries >= 0
        entries, rows = entries[known], rows[known]
        self._chains.unlink(slots[rows], entries)
        self._values.clear(entries)
        self._index.remove(entries)

    def _cut(self, slots: Slots) -> None:
        entries = self._chains.cut(slots)
        self._values.clear(entries)
        self._index.remove(entries)


class _FrozenMaps:
    __slots__ = ("_chains", "_descriptor", "_keys", "_values")

    def __init__(
        self, chains: FrozenChains, keys: FrozenKeys, values: FrozenColumn, descriptor: MapStateDescriptor
    ) -> None:
        self._chains, self._keys, self._values, self._descriptor = chains, keys, values, descriptor

    def get(self, slots: Slots) -> pa.Array:
        offsets, entries = self._chains.entries(slots)
        keys = self._keys.keys(entries)[1]
        return _map_array(offsets, keys, self._values.get(entries), self._descriptor.storage_type)

    def occupied(self) -> BoolArray:
        return self._chains.occupied()


def _map_array(
    offsets: np.ndarray[Any, np.dtype[np.int64]], keys: pa.Array, values: pa.Array, data_type: pa.MapType
) -> pa.Array:
    bitmap = bitmap_of(np.diff(offsets) > 0)
    pairs = pa.StructArray.from_arrays([keys, values], fields=[data_type.key_field, data_type.item_field])
    buffers = [bitmap, pa.py_buffer(offsets.astype(np.int32))]
    return pa.Array.from_buffers(data_type, len(offsets) - 1, buffers, children=[pairs])
