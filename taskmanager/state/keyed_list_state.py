"""ListState: every element is an entry with a value in a column, and each key has a chain of entries.

Adding costs the elements added, never the list. Row by row, additions wait until the batch ends, unless the list is
read: then it is loaded, and those of keys that follow as far as that has paid (Lookahead). What was decoded stays known
for later batches (KeptLists), so that only what was added since is decoded; a list that is put back without its first
or last elements costs nothing for those that stay. Mirrors Flink's HeapListState.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa

from snapline.dataflow.api.state import ListStateDescriptor
from snapline.dataflow.api.state_ttl import VALUE_FIELD
from snapline.dataflow.columnar.arrow_columns import BoolArray, bitmap_of
from snapline.dataflow.errors import StateError
from snapline.taskmanager.state.batch_scope import BatchScope
from snapline.taskmanager.state.columns import Column, FrozenColumn, make_column
from snapline.taskmanager.state.index.chains import Chains, FrozenChains
from snapline.taskmanager.state.index.slots import SlotAllocator, Slots
from snapline.taskmanager.state.keyed_state import KeyedState, apart, is_flat, python_values
from snapline.taskmanager.state.list_cache import KeptLists, KnownList, may_be_kept
from snapline.taskmanager.state.lookahead import Lookahead


class KeyedListState(KeyedState):
    """List state in columns (implements snapline.dataflow.api.state.ListState)."""

    __slots__ = (
        "_added", "_ahead", "_allocator", "_chains", "_copies", "_entries", "_flat", "_keeps", "_kept", "_lists", "_lookahead",
        "_python", "_scope", "_values", "descriptor",
    )  # fmt: skip

    def __init__(self, descriptor: ListStateDescriptor, scope: BatchScope, capacity: int) -> None:
        self.descriptor: ListStateDescriptor = descriptor
        self._scope = scope
        self._python = python_values(descriptor, descriptor.element_type)
        self._chains = Chains(capacity)
        self._allocator = SlotAllocator()
        self._values: Column = make_column(descriptor.element_type, self._allocator.capacity)
        user_type = (
            descriptor.element_type if descriptor.ttl is None else descriptor.element_type.field(VALUE_FIELD).type
        )
        self._copies = pa.types.is_struct(user_type) and descriptor.ttl is None
        self._keeps = (
            not descriptor.serializer
            and may_be_kept(user_type)
            and (descriptor.ttl is None or not pa.types.is_struct(user_type))
        )
        self._flat = is_flat(descriptor, descriptor.element_type)
        self._lists: dict[int, KnownList] = {}
        """The lists of the present batch that were read or replaced, by number of the key."""
        self._added: dict[int, list[Any]] = {}
        """What the present batch adds to the others: most functions add more often than they read."""
        self._entries: dict[int, Slots] = {}
        """Where the elements of lists that were loaded lie, by number of the key."""
        self._ahead: dict[int, tuple[list[Any], Slots]] = {}
        """Stored lists that were loaded with another key's and not asked for yet."""
        self._kept = KeptLists()
        self._lookahead = Lookahead()

    def get(self) -> list[Any]:
        index = self._index()
        known = self._lists.get(index) or self._know(index)
        if known.stored is None and not known.is_cut:
            known.take_stored(self._load(index))
        given = known.give(copies=self._copies)
        return given if self._keeps else [apart(each, flat=self._flat) for each in given]

    def add(self, value: Any) -> None:
        index = self._index()
        known = self._lists.get(index)
        if known is not None:
            known.add(value)
            return
        added = self._added.get(index)
        if added is None:
            self._added[index] = [value]
        else:
            added.append(value)

    def add_all(self, values: Sequence[Any]) -> None:
        for value in values:
            self.add(value)

    def update(self, values: Sequence[Any]) -> None:
        self.replace(values, None)

    def replace(self, values: Sequence[Any], keep: Callable[[Any], Any] | None) -> None:
        """Let the list be these values. `keep`: what makes of a value that is new what is kept of it."""
        index = self._index()
        known = self._lists.get(index) or self._know(index)
        known.replace(values, keep, compares=self._keeps)

    def clear(self) -> None:
        self.update(())

    def flush(self) -> None:
        if not self._lists and not self._added and not self._ahead:
            return
        slots = self._scope.slots
        added, lists, entries, ahead = self._added, self._lists, self._entries, self._ahead
        self._added, self._lists, self._entries, self._ahead = {}, {}, {}, {}
        added.update((number, known.added) for number, known in lists.items() if known.added)
        elements = self._python.to_arrow(list(chain.from_iterable(added.values())))
        slot_of = slots.tolist()
        if self._keeps:
            for number, (elements_ahead, _) in ahead.items():
                self._kept.keep(slot_of[number], elements_ahead)
        cut = [number for number, known in lists.items() if known.is_cut]
        if cut:
            self._cut(slots[np.array(cut, np.int32)])
        dropped: list[tuple[int, Slots]] = []
        for number, known in lists.items():
            stored = known.stored
            if stored is None or known.is_cut:
                continue
            first, end = known.first, known.end
            if first or end < len(stored):
                places = entries[number]
                dropped += [(number, part) for part in (places[:first], places[end:]) if len(part)]
                stored = stored[first:end]
            if self._keeps:
                self._kept.keep(slot_of[number], stored)
        if dropped:
            owners = np.repeat(
                np.array([number for number, _ in dropped], np.int32), [len(part) for _, part in dropped]
            )
            self._unlink(slots[owners], np.concatenate([part for _, part in dropped]))
        if added:
            owners = np.repeat(np.fromiter(added, np.int32), list(map(len, added.values())))
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
        """Forget the elements of these keys whose entries (by which `values` goes) are gone; returns whose they
        were."""
        owners, entries = self._chains.owned(slots)
        gone = are_gone(entries)
        owners, entries = owners[gone], entries[gone]
        if len(entries):
            self._kept.forget(np.unique(owners).tolist())
            self._unlink(owners, entries)
        return owners

    def _index(self) -> int:
        if not self._scope.is_open:
            self._scope.check_open(self.descriptor.name)
        return self._scope.index

    def _know(self, index: int) -> KnownList:
        """The list of one key of the batch, which is read or replaced from now on."""
        known = self._lists[index] = KnownList(self._added.pop(index, None))
        return known

    def _load(self, index: int) -> list[Any]:
        """The stored elements of one key; what is stored of those that follow is loaded, too."""
        known = self._ahead.pop(index, None)
        if known is not None:
            self._lookahead.asked += 1
            stored, self._entries[index] = known
            return stored
        slots, ahead, lists = self._scope.slots, self._ahead, self._lists
        following = self._lookahead.numbers(index, len(slots))[1:]
        wanted = [index, *(n for n in following if n not in ahead and n not in lists)]
        self._lookahead.loaded_ahead(len(wanted) - 1)
        chosen = slots[np.array(wanted, np.int32)]
        offsets, entries = self._chains.entries(chosen)
        bounds = offsets.tolist()
        kept = [self._kept.take(slot) for slot in chosen.tolist()]
        unknown = [entries[bounds[at] + len(each) : bounds[at + 1]] for at, each in enumerate(kept)]
        decoded = self._python.to_python(self._values.get(np.concatenate(unknown)))
        begin = 0
        for at, number in enumerate(wanted):
            end = begin + len(unknown[at])
            ahead[number] = (kept[at] + decoded[begin:end], entries[bounds[at] : bounds[at + 1]])
            begin = end
        stored, self._entries[index] = ahead.pop(index)
        return stored

    def _append(self, slots: Slots, values: pa.Array) -> None:
        entries = self._allocator.allocate(len(slots))
        self._values.grow(self._allocator.capacity)
        self._chains.grow_entries(self._allocator.capacity)
        self._values.put(entries, values)
        self._chains.append(slots, entries)

    def _unlink(self, slots: Slots, entries: Slots) -> None:
        self._chains.unlink(slots, entries)
        self._values.clear(entries)
        self._allocator.release(entries)

    def _cut(self, slots: Slots) -> None:
        self._kept.forget(slots.tolist())
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
