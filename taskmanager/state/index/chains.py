"""Which entries (list elements, map pairs) belong to which slot: doubly linked chains in plain arrays.

An entry is a small number, like a slot; where its value lies is the business of a column by entry. Appending, walking
and releasing cost the entries they touch, however long the other chains are. Order in a chain is the order of
appending.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from snapline.dataflow.columnar.arrow_columns import BoolArray, Int64Array
from snapline.dataflow.columnar.gather import gather_values
from snapline.dataflow.columnar.kernel import I64, VOID, I32s, RO_I32s, RO_I64s, kernel
from snapline.taskmanager.state.index.copy_on_write import CopyOnWrite, FrozenArrays
from snapline.taskmanager.state.index.slots import Slots, grow_in_place

_END = -1
"""In place of the entry after the last, or before the first. What no count and no chain vouches for means nothing."""


@kernel(VOID(RO_I32s, RO_I32s, I32s, I32s, I32s, I32s, I32s))
def _append(slots: Any, entries: Any, heads: Any, tails: Any, counts: Any, following: Any, preceding: Any) -> None:
    for row in range(slots.shape[0]):
        slot, entry = slots[row], entries[row]
        following[entry] = _END
        if counts[slot] == 0:
            preceding[entry] = _END
            heads[slot] = entry
        else:
            tail = tails[slot]
            preceding[entry] = tail
            following[tail] = entry
        tails[slot] = entry
        counts[slot] += 1


@kernel(VOID(RO_I32s, RO_I64s, RO_I32s, RO_I32s, I32s))
def _walk(slots: Any, offsets: Any, heads: Any, following: Any, entries: Any) -> None:
    for row in range(slots.shape[0]):
        entry = heads[slots[row]]
        for position in range(offsets[row], offsets[row + 1]):
            entries[position] = entry
            entry = following[entry]


@kernel(VOID(RO_I32s, RO_I32s, I32s, I32s, I32s, I32s, I32s))
def _unlink(slots: Any, entries: Any, heads: Any, tails: Any, counts: Any, following: Any, preceding: Any) -> None:
    for row in range(slots.shape[0]):
        slot, entry = slots[row], entries[row]
        before, after = preceding[entry], following[entry]
        if before == _END:
            heads[slot] = after
        else:
            following[before] = after
        if after == _END:
            tails[slot] = before
        else:
            preceding[after] = before
        counts[slot] -= 1


@kernel(I64(RO_I32s, RO_I32s, I32s, RO_I32s, I32s))
def _cut(slots: Any, heads: Any, counts: Any, following: Any, entries: Any) -> int:
    """Empty the chains; what was in them goes into `entries`. Returns how many that are."""
    found = 0
    for row in range(slots.shape[0]):
        slot = slots[row]
        entry = heads[slot]
        for _ in range(counts[slot]):
            entries[found] = entry
            found += 1
            entry = following[entry]
        counts[slot] = 0
    return found


@kernel(I64(RO_I32s, RO_I64s, RO_I64s, RO_I32s, RO_I32s, RO_I32s, RO_I64s, I32s, I32s))
def _find(
    slots: Any, lows: Any, highs: Any, heads: Any, counts: Any, following: Any, values: Any, rows: Any, entries: Any
) -> int:
    """The entries of each row's slot whose value lies between the row's bounds, which are empty where there are none.
    Returns how many there are, also when there is no room for all of them."""
    found = 0
    room, bounded = rows.shape[0], lows.shape[0] > 0
    for row in range(slots.shape[0]):
        entry = heads[slots[row]]
        for _ in range(counts[slots[row]]):
            if not bounded or lows[row] <= values[entry] <= highs[row]:
                if found < room:
                    rows[found] = row
                    entries[found] = entry
                found += 1
            entry = following[entry]
    return found


class Chains:
    """A chain of entries per slot."""

    __slots__ = ("_entry_guard", "_following", "_heads", "_preceding", "_slot_guard", "_tails", "counts")

    def __init__(self, capacity: int = 64) -> None:
        self._heads: Slots = np.zeros(capacity, np.int32)
        self._tails: Slots = np.zeros(capacity, np.int32)
        self.counts: Slots = np.zeros(capacity, np.int32)
        self._following: Slots = np.zeros(capacity, np.int32)
        self._preceding: Slots = np.zeros(capacity, np.int32)
        self._slot_guard, self._entry_guard = CopyOnWrite(), CopyOnWrite()

    def grow_slots(self, capacity: int) -> None:
        """Make room for slots below `capacity`."""
        for name in ("_heads", "_tails", "counts"):
            grow_in_place(self, name, capacity)

    def grow_entries(self, capacity: int) -> None:
        """Make room for entries below `capacity`."""
        for name in ("_following", "_preceding"):
            grow_in_place(self, name, capacity)

    def append(self, slots: Slots, entries: Slots) -> None:
        """Put entries, which are in no chain, at the ends of the chains of these slots, in row order."""
        self._slot_guard.before_write(slots)
        if self._entry_guard.is_needed:
            self._entry_guard.before_write(entries)
            self._entry_guard.before_write(self._tails[slots[self.counts[slots] > 0]])
        _append(slots, entries, self._heads, self._tails, self.counts, self._following, self._preceding)

    def entries(self, slots: Slots) -> tuple[Int64Array, Slots]:
        """(offsets, entries): the chain of slots[i] is entries[offsets[i]:offsets[i + 1]]."""
        return _entries(slots, gather_values(self.counts, slots), self._heads, self._following)

    def find(self, slots: Slots, lows: Int64Array, highs: Int64Array, values: Int64Array) -> tuple[Slots, Slots]:
        """(rows, entries): for each row of `slots`, in row order, the entries of its chain with lows[row] <=
        values[entry] <= highs[row]; all of the chain when there are no bounds."""
        room = 2 * len(slots)
        while True:
            rows, entries = np.empty(room, np.int32), np.empty(room, np.int32)
            found = _find(slots, lows, highs, self._heads, self.counts, self._following, values, rows, entries)
            if found <= room:
                return rows[:found], entries[:found]
            room = found

    def owned(self, slots: Slots) -> tuple[Slots, Slots]:
        """(slots, entries): all entries of these slots, and whose each is."""
        offsets, entries = self.entries(slots)
        return np.repeat(slots, np.diff(offsets)), entries

    def unlink(self, slots: Slots, entries: Slots) -> None:
        """Take entries out of the chains of their slots; an entry at most once."""
        self._slot_guard.before_write(slots)
        if self._entry_guard.is_needed:
            self._entry_guard.before_write(self._preceding[entries])
        _unlink(slots, entries, self._heads, self._tails, self.counts, self._following, self._preceding)

    def cut(self, slots: Slots) -> Slots:
        """Empty the chains of these slots; returns what was in them. A slot may occur more than once."""
        slots = np.ascontiguousarray(slots, np.int32)
        self._slot_guard.before_write(slots)
        entries = np.empty(int(gather_values(self.counts, slots).sum()), np.int32)
        return entries[: _cut(slots, self._heads, self.counts, self._following, entries)]

    def occupied(self, high_water: int) -> BoolArray:
        """For each slot below, whether its chain has entries."""
        return self.counts[:high_water] > 0

    def freeze(self, slots: int, entries: int) -> FrozenChains:
        """The chains as they are now."""
        by_slot = self._slot_guard.freeze([self.counts, self._heads], slots)
        return FrozenChains(by_slot, self._entry_guard.freeze([self._following], entries))


class FrozenChains:
    """Chains as they were at one moment, whatever changes later."""

    __slots__ = ("_by_entry", "_by_slot")

    def __init__(self, by_slot: FrozenArrays, by_entry: FrozenArrays) -> None:
        """Counts and heads; what follows each entry."""
        self._by_slot, self._by_entry = by_slot, by_entry

    def entries(self, slots: Slots) -> tuple[Int64Array, Slots]:
        """Return (offsets, entries) of the slots' chains, as Chains.entries does."""
        counts, heads = self._by_slot.arrays()
        return _entries(slots, gather_values(counts, slots), heads, self._by_entry.arrays()[0])

    def occupied(self) -> BoolArray:
        """For each slot, whether its chain had entries."""
        occupied: BoolArray = self._by_slot.arrays()[0] > 0
        return occupied


def _entries(slots: Slots, counts: Slots, heads: Slots, following: Slots) -> tuple[Int64Array, Slots]:
    offsets = np.zeros(len(slots) + 1, np.int64)
    np.cumsum(counts, out=offsets[1:])
    entries = np.empty(int(offsets[-1]), np.int32)
    _walk(slots, offsets, heads, following, entries)
    return offsets, entries
