"""ListState: every element is an entry with a value in a column, and each key has a chain of entries.

Adding costs the elements added, never the list. Row by row, additions wait until the batch ends, unless the list is
read: then it is loaded, and those of keys that follow as far as that has paid (Lookahead). Mirrors Flink's
HeapListState.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from snapline.dataflow.api.state import ListStateDescriptor, StateError
from snapline.dataflow.columnar.arrow_columns import BoolArray, bitmap_of
from snapline.taskmanager.state.batch_scope import BatchScope
from snapline.taskmanager.state.columns import Column, FrozenColumn, make_column
from snapline.taskmanager.state.index.chains import Chains, FrozenChains
from snapline.taskmanager.state.index.slots import SlotAllocator, Slots
from snapline.taskmanager.state.keyed_state import KeyedState, python_values
from snapline.taskmanager.state.lookahead import Lookahead


class KeyedListState(KeyedState):
    """List state in columns (implements snapline.dataflow.api.state.ListState)."""

    __slots__ = (
        "_added", "_ahead", "_allocator", "_chains", "_lists", "_lookahead", "_python", "_replaced", "_scope", "_values",
        "descriptor",
    )  # fmt: skip

    def __init__(self, descriptor: ListStateDescriptor, scope: BatchScope, capacity: int) -> None:
        self.descriptor: ListStateDescriptor = descriptor
        self._scope = scope
        self._python = python_values(descriptor, descriptor.element_type)
        self._chains = Chains(capacity)
        self._allocator = SlotAllocator()
        self._values: Column = make_column(descriptor.element_type, self._allocator.capacity)
        self._lists: dict[int, list[Any]] = {}
        self._ahead: dict[int, list[Any]] = {}
        """Stored lists that were loaded with another key's and not asked for yet."""
        self._added: dict[int, list[Any]] = {}
        self._replaced: set[int] = set()
        self._lookahead = Lookahead()

    def get(self) -> list[Any]:
        index = self._index()
        known = self._lists.get(index)
        if known is None:
            self._load(index)
            known = self._lists[index]
        return list(known)

    def add(self, value: Any) -> None:
        index = self._index()
        self._added.setdefault(index, []).append(value)
        known = self._lists.get(index)
        if known is not None:
            known.append(value)

    def add_all(self, values: Sequence[Any]) -> None:
        for value in values:
            self.add(value)

    def update(self, values: Sequence[Any]) -> None:
        index = self._index()
        self._replaced.add(index)
        self._added[index] = list(values)
        self._lists[index] = list(values)

    def clear(self) -> None:
        self.update(())

    def flush(self) -> None:
        self._ahead = {}
        if not self._added and not self._replaced:
            self._lists = {}
            return
        slots = self._scope.slots
        added, replaced = self._added, sorted(self._replaced)
        self._lists, self._added, self._replaced = {}, {}, set()
        elements = self._python.to_arrow([value for values in added.values() for value in values])
        if replaced:
            self._cut(slots[np.array(replaced, np.int32)])
        owners = np.repeat(np.fromiter(added, np.int32), [len(values) for values in added.values()])
        self._append(slots[owners], elements)

    def grow(self, capacity: int) -> None:
        self._chains.grow_slots(capacity)

    def occupied(self, high_water: int) -> BoolArray:
        return self._chains.occupied(high_water)

    def freeze(self, high_water: int) -> FrozenColumn:
        entries = self._allocator.high_water
        return _FrozenLists(self._chains.freeze(high_water, entries), self._values.freeze(entries), self.descriptor)

    def restore(self, slots: Slots, values: pa.Array) -> None:
        self._append(np.repeat(slots, np.diff(values.offsets.to_numpy())), values.flatten())

    def get_batch(self, slots: Slots) -> pa.Array:
        self.flush()
        offsets, entries = self._chains.entries(slots)
        return _list_array(offsets, self._values.get(entries), self.descriptor.storage_type)

    def add_batch(self, slots: Slots, values: pa.Array) -> None:
        """Append one element per row, in row order."""
        self.flush()
        if values.type != self.descriptor.element_type:
            raise StateError(
                f"list state {self.descriptor.name!r} holds {self.descriptor.element_type}, the column to add is "
                f"{values.type}: cast it"
            )
        self._append(slots, values)

    def clear_batch(self, slots: Slots) -> None:
        self.flush()
        self._cut(slots)

    def remove_entries(self, slots: Slots, are_gone: Callable[[Slots], BoolArray]) -> Slots:
        """Of these keys, forget the elements whose entries (by which `values` goes) are gone; returns whose they
        were."""
        owners, entries = self._chains.owned(slots)
        gone = are_gone(entries)
        owners, entries = owners[gone], entries[gone]
        if len(entries):
            self._chains.unlink(owners, entries)
            self._values.clear(entries)
            self._allocator.release(entries)
        return owners

    def _index(self) -> int:
        if not self._scope.is_open:
            self._scope.check_open(self.descriptor.name)
        return self._scope.index

    def _load(self, index: int) -> None:
        """Know the list of one key; and what is stored of those that follow."""
        known = self._ahead.pop(index, None)
        if known is not None:
            self._lookahead.asked += 1
            self._lists[index] = known + self._added.get(index, [])
            return
        slots = self._scope.slots
        known_already, ahead = self._lists, self._ahead
        following = self._lookahead.numbers(index, len(slots))[1:]
        wanted = [index, *(n for n in following if n not in known_already and n not in ahead)]
        self._lookahead.loaded_ahead(len(wanted) - 1)
        offsets, entries = self._chains.entries(slots[np.array(wanted, np.int32)])
        elements = self._python.to_python(self._values.get(entries))
        bounds = offsets.tolist()
        for position, number in enumerate(wanted):
            ahead[number] = elements[bounds[position] : bounds[position + 1]]
        self._lists[index] = ahead.pop(index) + self._added.get(index, [])

    def _append(self, slots: Slots, values: pa.Array) -> None:
        entries = self._allocator.allocate(len(slots))
        self._values.grow(self._allocator.capacity)
        self._chains.grow_entries(self._allocator.capacity)
        self._values.put(entries, values)
        self._chains.append(slots, entries)

    def _cut(self, slots: Slots) -> None:
        entries = self._chains.cut(slots)
        self._values.clear(entries)
        self._allocator.release(entries)


class _FrozenLists:
    __slots__ = ("_chains", "_descriptor", "_values")

    def __init__(self, chains: FrozenChains, values: FrozenColumn, descriptor: ListStateDescriptor) -> None:
        self._chains, self._values, self._descriptor = chains, values, descriptor

    def get(self, slots: Slots) -> pa.Array:
        offsets, entries = self._chains.entries(slots)
        return _list_array(offsets, self._values.get(entries), self._descriptor.storage_type)

    def occupied(self) -> BoolArray:
        return self._chains.occupied()


def _list_array(offsets: np.ndarray[Any, np.dtype[np.int64]], elements: pa.Array, data_type: pa.DataType) -> pa.Array:
    bitmap = bitmap_of(np.diff(offsets) > 0)
    return pa.Array.from_buffers(data_type, len(offsets) - 1, [bitmap, pa.py_buffer(offsets)], children=[elements])
