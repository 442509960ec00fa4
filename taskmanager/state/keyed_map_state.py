"""MapState: every pair is an entry, found through a KeyIndex over (slot, map key); each key has a chain of its entries.

Reading, setting and removing one pair costs that pair, however large the map. Row by row, a small map is loaded when it is
first asked (and, when several keys have asked, for all keys of the batch that are left); of a large one only the pairs that
are asked for. What was changed is written when the batch ends. Mirrors Flink's HeapMapState.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa

from dataflow.arrow_columns import BoolArray, bitmap_of
from dataflow.gather import gather_values
from dataflow.state import MapStateDescriptor, StateError
from taskmanager.state.batch_scope import BatchScope
from taskmanager.state.chains import Chains, FrozenChains
from taskmanager.state.columns import Column, FrozenColumn, make_column
from taskmanager.state.key_index import FrozenKeys, KeyIndex
from taskmanager.state.keyed_state import KeyedState, PythonValues
from taskmanager.state.slots import Slots

_SINGLE_LOADS = 8
"""Keys whose maps are loaded one by one before all keys of the batch are."""
_SMALL = 256
"""Maps up to this size are loaded whole."""
_ABSENT = object()
"""In place of a value: it is known that there is none."""
_UNKNOWN = object()


class _Map:
    """What is known of one key's map: pairs, and whether these are all."""

    __slots__ = ("changed", "cleared", "complete", "pairs")

    def __init__(self, pairs: dict[Any, Any], *, complete: bool) -> None:
        self.pairs = pairs
        self.complete = complete
        self.changed: dict[Any, None] = {}
        self.cleared = False


class KeyedMapState(KeyedState):
    """dataflow.state.MapState."""

    __slots__ = (
        "_chains", "_index", "_keys", "_maps", "_python", "_scope", "_single_loads", "_values", "descriptor",
    )  # fmt: skip

    def __init__(self, descriptor: MapStateDescriptor, scope: BatchScope, capacity: int) -> None:
        self.descriptor: MapStateDescriptor = descriptor
        self._scope = scope
        self._python = PythonValues(descriptor.name, descriptor.element_type, descriptor.serializer)
        self._keys = PythonValues(descriptor.name, descriptor.key_type, "")
        self._index = KeyIndex([pa.field("slot", pa.int32()), pa.field(f"{descriptor.name}.key", descriptor.key_type)])
        self._chains = Chains(capacity)
        self._values: Column = make_column(descriptor.element_type)
        self._maps: dict[int, _Map] = {}
        self._single_loads = 0

    def get(self, key: Any) -> Any:
        value = self._find(key)
        return None if value is _ABSENT else value

    def contains(self, key: Any) -> bool:
        return self._find(key) is not _ABSENT

    def put(self, key: Any, value: Any) -> None:
        if key is None:
            raise StateError(f"map state {self.descriptor.name!r}: a key cannot be None")
        known = self._current()
        known.pairs[key] = value
        known.changed[key] = None

    def put_all(self, mapping: dict[Any, Any]) -> None:
        for key, value in mapping.items():
            self.put(key, value)

    def remove(self, key: Any) -> None:
        known = self._current()
        known.pairs[key] = _ABSENT
        known.changed[key] = None

    def keys(self) -> Iterable[Any]:
        return [key for key, _ in self.items()]

    def values(self) -> Iterable[Any]:
        return [value for _, value in self.items()]

    def items(self) -> Iterable[tuple[Any, Any]]:
        known = self._current()
        if not known.complete:
            stored = self._read([self._scope.index])[0]
            stored.update(known.pairs)
            known.pairs, known.complete = stored, True
        return [(key, value) for key, value in known.pairs.items() if value is not _ABSENT]

    def is_empty(self) -> bool:
        return not self.items()

    def clear(self) -> None:
        known = self._current()
        known.pairs, known.complete, known.changed, known.cleared = {}, True, {}, True

    def flush(self) -> None:
        maps, self._maps, self._single_loads = self._maps, {}, 0
        cleared = [number for number, known in maps.items() if known.cleared]
        changes = [(number, key, known.pairs[key]) for number, known in maps.items() for key in known.changed]
        if not cleared and not changes:
            return
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
        self._put(
            np.repeat(slots, np.diff(offsets)), values.keys.slice(first, length), values.items.slice(first, length)
        )

    def get_batch(self, slots: Slots) -> pa.Array:
        """Whole maps."""
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
        self._put(slots, keys, values)

    def remove_batch(self, slots: Slots, keys: pa.Array) -> None:
        """Remove each row's map key, where it is there."""
        self.flush()
        self._remove(slots, keys)

    def clear_batch(self, slots: Slots) -> None:
        self.flush()
        self._cut(slots)

    def _current(self) -> _Map:
        scope = self._scope
        if not scope.is_open:
            scope.check_open(self.descriptor.name)
        known = self._maps.get(scope.index)
        if known is None:
            self._load(scope.index)
            known = self._maps[scope.index]
        return known

    def _find(self, key: Any) -> Any:
        known = self._current()
        value = known.pairs.get(key, _UNKNOWN)
        if value is not _UNKNOWN:
            return value
        if known.complete:
            return _ABSENT
        slot = self._scope.slots[self._scope.index : self._scope.index + 1]
        entry = self._index.lookup([pa.array(slot), self._keys.to_arrow([key])])
        value = self._python.to_python(self._values.get(entry))[0] if entry[0] >= 0 else _ABSENT
        known.pairs[key] = value
        return value

    def _load(self, index: int) -> None:
        """Know the map of one key, or of all keys of the batch once several have asked."""
        slots = self._scope.slots
        self._single_loads += 1
        if self._single_loads <= _SINGLE_LOADS:
            wanted = [index]
        else:
            wanted = [number for number in range(len(slots)) if number not in self._maps]
        sizes = gather_values(self._chains.counts, slots[np.array(wanted, np.int32)]).tolist()
        small = [number for number, size in zip(wanted, sizes, strict=True) if size <= _SMALL]
        for number, pairs in zip(small, self._read(small), strict=True):
            self._maps[number] = _Map(pairs, complete=True)
        for number, size in zip(wanted, sizes, strict=True):
            if size > _SMALL:
                self._maps[number] = _Map({}, complete=False)

    def _read(self, numbers: list[int]) -> list[dict[Any, Any]]:
        """The stored maps of these keys of the batch."""
        offsets, entries = self._chains.entries(self._scope.slots[np.array(numbers, np.int32)])
        keys = self._keys.to_python(self._index.keys(entries)[1])
        values = self._python.to_python(self._values.get(entries))
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


def _map_array(
    offsets: np.ndarray[Any, np.dtype[np.int64]], keys: pa.Array, values: pa.Array, data_type: pa.MapType
) -> pa.Array:
    bitmap = bitmap_of(np.diff(offsets) > 0)
    pairs = pa.StructArray.from_arrays([keys, values], fields=[data_type.key_field, data_type.item_field])
    buffers = [bitmap, pa.py_buffer(offsets.astype(np.int32))]
    return pa.Array.from_buffers(data_type, len(offsets) - 1, buffers, children=[pairs])
