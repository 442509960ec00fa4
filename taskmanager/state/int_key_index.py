"""KeyIndex for one key column whose values are one int64 word: integers, booleans, floats, dates, times, timestamps.

An open-addressing table of slot numbers (4 bytes an entry, at most half full, linear probing, Fibonacci hashing by the top
bits) over the dense array of keys by slot. Removal shifts back, so there are no tombstones. Growing doubles the table;
because the position is the *top* bits of the hash, entries move to the table's double position in the order in which they
lie, so growing reads and writes sequentially (measured in docs/decisions/0010-key-lookup.md).

The hash here is private to the process and has nothing to do with the stable hash of key groups.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from dataflow.arrow_columns import Int64Array, column_words, fixed_array, validity, words_to_values
from dataflow.gather import gather_values
from dataflow.kernel import I32, I64, U64, VOID, BOOLs, I32s, I64s, RO_I32s, RO_I64s, inlined, kernel, prefetch
from taskmanager.state.copy_on_write import CopyOnWrite, FrozenArrays
from taskmanager.state.slots import FREE, HIGH, NO_SLOT, SlotAllocator, Slots, grown, next_slot, release_slot

_PHI = np.uint64(0x9E3779B97F4A7C15)
_MIN_BITS = 8
_BLOCK = 64


@inlined
def _position(word: Any, shift: Any) -> Any:
    bits = np.uint64(word)
    return np.int64(((bits ^ (bits >> np.uint64(32))) * _PHI) >> shift)


@kernel(I64(RO_I64s, I64, I32s, U64, I64s, I64s, I32s, BOOLs, I32s))
def _lookup_or_insert(
    words: Any, start: int, table: Any, shift: Any, keys: Any, counters: Any, free: Any, live: Any, slots: Any
) -> int:
    """Fill slots from row `start`; return the row at which there was no room for a new key, or the number of rows."""
    mask = table.shape[0] - 1
    for row in range(start, words.shape[0]):
        word = words[row]
        position = _position(word, shift)
        while True:
            slot = table[position]
            if slot < 0:
                if counters[FREE] == 0 and counters[HIGH] == keys.shape[0]:
                    return row
                slot = next_slot(counters, free, live)
                table[position] = slot
                keys[slot] = word
                break
            if keys[slot] == word:
                break
            position = (position + 1) & mask
        slots[row] = slot
    return words.shape[0]


@kernel(VOID(RO_I64s, I32s, U64, I64s, I32s))
def _lookup(words: Any, table: Any, shift: Any, keys: Any, slots: Any) -> None:
    mask = table.shape[0] - 1
    for row in range(words.shape[0]):
        position = _position(words[row], shift)
        while True:
            slot = table[position]
            if slot < 0 or keys[slot] == words[row]:
                break
            position = (position + 1) & mask
        slots[row] = slot


@kernel(VOID(I32s, I32s, U64, I64s))
def _rehash(old: Any, table: Any, shift: Any, keys: Any) -> None:
    """Start at an empty entry, so that a run that wraps around the end is met in its own order."""
    old_mask = old.shape[0] - 1
    mask = table.shape[0] - 1
    first = 0
    while old[first] >= 0:
        first += 1
    for block in range(0, old.shape[0], _BLOCK):  # a power of two, not less than _BLOCK
        for step in range(block, block + _BLOCK):
            slot = old[(first + step) & old_mask]
            if slot >= 0:
                prefetch(keys, slot)
        for step in range(block, block + _BLOCK):
            slot = old[(first + step) & old_mask]
            if slot >= 0:
                position = _position(keys[slot], shift)
                while table[position] >= 0:
                    position = (position + 1) & mask
                table[position] = slot


@kernel(VOID(RO_I32s, I32, I32s, U64, I64s, I64s, I32s, BOOLs))
def _remove(slots: Any, null_slot: Any, table: Any, shift: Any, keys: Any, counters: Any, free: Any, live: Any) -> None:
    mask = table.shape[0] - 1
    for row in range(slots.shape[0]):
        slot = slots[row]
        if not live[slot]:
            continue
        release_slot(slot, counters, free, live)
        if slot == null_slot:
            continue
        hole = _position(keys[slot], shift)
        while table[hole] != slot:
            hole = (hole + 1) & mask
        candidate = hole
        while True:
            candidate = (candidate + 1) & mask
            moved = table[candidate]
            if moved < 0:
                break
            home = _position(keys[moved], shift)
            if ((candidate - home) & mask) >= ((candidate - hole) & mask):
                table[hole] = moved
                hole = candidate
        table[hole] = -1


class IntKeyIndex:
    """Keys of one fixed-width column to slots; null is a key like any other."""

    __slots__ = ("_guard", "_keys", "_null_slot", "_shift", "_table", "_type", "allocator")

    def __init__(self, key_type: pa.DataType) -> None:
        self._type = key_type
        capacity = 1 << (_MIN_BITS - 1)
        self.allocator = SlotAllocator(capacity)
        self._keys: Int64Array = np.zeros(capacity, np.int64)
        self._table: Slots = np.full(2 * capacity, NO_SLOT, np.int32)
        self._shift = np.uint64(64 - _MIN_BITS)
        self._null_slot = NO_SLOT
        self._guard = CopyOnWrite()

    def __len__(self) -> int:
        """Number of keys."""
        return len(self.allocator)

    def lookup_or_insert(self, columns: Sequence[pa.Array]) -> Slots:
        """The slot of each row's key; keys not seen before get one, in row order."""
        array = columns[0]
        valid = validity(array)
        if self._guard.is_needed:
            self._guard.before_write(self.allocator.candidates(len(array)))
        if valid is None:
            return self._insert(column_words(array))
        slots = np.empty(len(array), np.int32)
        slots[valid] = self._insert(column_words(array)[valid])
        if self._null_slot == NO_SLOT:
            if len(self.allocator) == len(self._keys):
                self._grow()
            self._null_slot = int(self.allocator.allocate(1)[0])
        slots[~valid] = self._null_slot
        return slots

    def lookup(self, columns: Sequence[pa.Array]) -> Slots:
        """The slot of each row's key, -1 where it is not known."""
        array = columns[0]
        slots = np.empty(len(array), np.int32)
        _lookup(column_words(array), self._table, self._shift, self._keys, slots)
        valid = validity(array)
        if valid is not None:
            slots[~valid] = self._null_slot
        return slots

    def remove(self, slots: Slots) -> None:
        """Forget these keys; their slots are handed out again. Slots that are free already are skipped."""
        allocator = self.allocator
        self._guard.before_write(slots)
        _remove(
            slots, self._null_slot, self._table, self._shift, self._keys,
            allocator.counters, allocator.free, allocator.live,
        )  # fmt: skip
        if self._null_slot != NO_SLOT and not allocator.live[self._null_slot]:
            self._null_slot = NO_SLOT

    def keys(self, slots: Slots) -> list[pa.Array]:
        """The key columns of these slots, which must be in use."""
        return _key_columns(self._keys, self._null_slot, slots, self._type)

    def freeze(self) -> FrozenIntKeys:
        """The keys as they are now."""
        frozen = self._guard.freeze([self._keys, self.allocator.live], self.allocator.high_water)
        return FrozenIntKeys(frozen, self._null_slot, self._type)

    def _insert(self, words: Int64Array) -> Slots:
        slots = np.empty(len(words), np.int32)
        allocator = self.allocator
        row = 0
        while True:
            row = _lookup_or_insert(
                words, row, self._table, self._shift, self._keys,
                allocator.counters, allocator.free, allocator.live, slots,
            )  # fmt: skip
            if row == len(words):
                return slots
            self._grow()

    def _grow(self) -> None:
        capacity = 2 * len(self._keys)
        self.allocator.grow(capacity)
        self._keys = grown(self._keys, capacity)
        table: Slots = np.full(2 * capacity, NO_SLOT, np.int32)
        self._shift -= np.uint64(1)
        _rehash(self._table, table, self._shift, self._keys)
        self._table = table


class FrozenIntKeys:
    """Keys by slot at one moment."""

    __slots__ = ("_frozen", "_null_slot", "_type")

    def __init__(self, frozen: FrozenArrays, null_slot: int, key_type: pa.DataType) -> None:
        """`frozen`: keys, and which slots are in use."""
        self._frozen, self._null_slot, self._type = frozen, null_slot, key_type

    def keys(self, slots: Slots) -> list[pa.Array]:
        """The key columns of these slots."""
        return _key_columns(self._frozen.arrays()[0], self._null_slot, slots, self._type)

    def live_slots(self) -> Slots:
        """All slots that were in use, ascending."""
        return np.flatnonzero(self._frozen.arrays()[1]).astype(np.int32)


def _key_columns(keys: Int64Array, null_slot: int, slots: Slots, key_type: pa.DataType) -> list[pa.Array]:
    values = words_to_values(gather_values(keys, slots), key_type)
    valid = None if null_slot == NO_SLOT else slots != null_slot
    return [fixed_array(values, valid, key_type)]
