"""KeyIndex for one key column whose values are one int64 word: integers, booleans, floats, dates, times, timestamps.

An open-addressing table of slots (4 bytes an entry: slot + 1, or 0; at most half full, linear probing, Fibonacci
hashing by the top bits) over the dense array of keys by slot. Removal shifts back, so there are no tombstones. Growing
doubles the table; because the position is the *top* bits of the hash, entries move to the table's double position in
the order in which they lie, so moving reads and writes sequentially (measured in docs/decisions/0010-key-lookup.md).
They move a few at a time, with the batches that follow: a key whose place in the old table was not reached yet is
looked for there, all others in the new one. Moving pauses only where a run of entries ends, so no run lies in both.

The hash here is private to the process and has nothing to do with the stable hash of key groups.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from snapline.dataflow.columnar.arrow_columns import Int64Array, column_words, fixed_array, validity, words_to_values
from snapline.dataflow.columnar.gather import gather_values
from snapline.dataflow.columnar.kernel import (
    I32,
    I64,
    U64,
    VOID,
    BOOLs,
    I32s,
    I64s,
    RO_I32s,
    RO_I64s,
    inlined,
    kernel,
    prefetch,
)
from snapline.taskmanager.state.index.copy_on_write import CopyOnWrite, FrozenArrays
from snapline.taskmanager.state.index.slots import (
    FREE,
    HIGH,
    NO_SLOT,
    SlotAllocator,
    Slots,
    grow_in_place,
    next_slot,
    release_slot,
)

_PHI = np.uint64(0x9E3779B97F4A7C15)
_MIN_BITS = 8
_BLOCK = 64
_MOVED, _FIRST = 0, 1
"""Indexes into the progress of growing: places of the old table that were moved, and the one at which that began."""
_MOVED_PER_ROW = 4
"""So the old table, at most half full when growing begins, is empty before it is three quarters full."""


@inlined
def _position(word: Any, shift: Any) -> Any:
    bits = np.uint64(word)
    return np.int64(((bits ^ (bits >> np.uint64(32))) * _PHI) >> shift)


@inlined
def _find(word: Any, table: Any, shift: Any, keys: Any) -> Any:
    """Where the entry of this key is, or would be."""
    mask = table.shape[0] - 1
    position = _position(word, shift)
    while table[position] != 0 and keys[table[position] - 1] != word:
        position = (position + 1) & mask
    return position


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
            slot = table[position] - np.int32(1)
            if slot < 0:
                if counters[FREE] == 0 and counters[HIGH] == keys.shape[0]:
                    return row
                slot = next_slot(counters, free, live)
                table[position] = slot + np.int32(1)
                keys[slot] = word
                break
            if keys[slot] == word:
                break
            position = (position + 1) & mask
        slots[row] = slot
    return words.shape[0]


@kernel(VOID(RO_I64s, I32s, U64, I64s, I32s))
def _lookup(words: Any, table: Any, shift: Any, keys: Any, slots: Any) -> None:
    for row in range(words.shape[0]):
        slots[row] = table[_find(words[row], table, shift, keys)] - np.int32(1)


@inlined
def _is_in_old(word: Any, old: Any, shift: Any, progress: Any) -> Any:
    """Whether the key's place is in the part of the old table that was not moved yet."""
    home = _position(word, shift + np.uint64(1))
    return ((home - progress[_FIRST]) & (old.shape[0] - 1)) >= progress[_MOVED]


@kernel(I64(RO_I64s, I64, I32s, U64, I32s, I64s, I64s, I64s, I32s, BOOLs, I32s))
def _lookup_or_insert_moving(
    words: Any, start: int, table: Any, shift: Any, old: Any, progress: Any, keys: Any,
    counters: Any, free: Any, live: Any, slots: Any,
) -> int:  # fmt: skip
    """As `_lookup_or_insert`, while entries move from the old table to the new one."""
    for row in range(start, words.shape[0]):
        word = words[row]
        in_old = _is_in_old(word, old, shift, progress)
        if in_old:
            position = _find(word, old, shift + np.uint64(1), keys)
            slot = old[position] - np.int32(1)
        else:
            position = _find(word, table, shift, keys)
            slot = table[position] - np.int32(1)
        if slot < 0:
            if counters[FREE] == 0 and counters[HIGH] == keys.shape[0]:
                return row
            slot = next_slot(counters, free, live)
            keys[slot] = word
            if in_old:
                old[position] = slot + np.int32(1)
            else:
                table[position] = slot + np.int32(1)
        slots[row] = slot
    return words.shape[0]


@kernel(VOID(RO_I64s, I32s, U64, I32s, I64s, I64s, I32s))
def _lookup_moving(words: Any, table: Any, shift: Any, old: Any, progress: Any, keys: Any, slots: Any) -> None:
    for row in range(words.shape[0]):
        word = words[row]
        if _is_in_old(word, old, shift, progress):
            slots[row] = old[_find(word, old, shift + np.uint64(1), keys)] - np.int32(1)
        else:
            slots[row] = table[_find(word, table, shift, keys)] - np.int32(1)


@kernel(VOID(I32s, I64s, I64, I32s, U64, I64s))
def _move(old: Any, progress: Any, count: int, table: Any, shift: Any, keys: Any) -> None:
    """Move at least `count` places of the old table on, up to the end of a run; at the table's end also what has run
    over it."""
    mask = old.shape[0] - 1
    done = 0
    while progress[_MOVED] < old.shape[0]:
        first = progress[_FIRST] + progress[_MOVED]
        for ahead in range(first, first + _BLOCK):
            if old[ahead & mask] != 0:
                prefetch(keys, old[ahead & mask] - 1)
        for place in range(first, min(first + _BLOCK, progress[_FIRST] + old.shape[0])):
            entry = old[place & mask]
            progress[_MOVED] += 1
            done += 1
            if entry != 0:
                table[_find(keys[entry - 1], table, shift, keys)] = entry
                old[place & mask] = 0
            elif done >= count:
                return
    place = progress[_FIRST]
    while old[place & mask] != 0:
        entry = old[place & mask]
        table[_find(keys[entry - 1], table, shift, keys)] = entry
        old[place & mask] = 0
        place += 1


@kernel(I64(I32s))
def _first_empty(table: Any) -> int:
    position = 0
    while table[position] != 0:
        position += 1
    return position


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
        while table[hole] != slot + 1:
            hole = (hole + 1) & mask
        candidate = hole
        while True:
            candidate = (candidate + 1) & mask
            moved = table[candidate] - 1
            if moved < 0:
                break
            home = _position(keys[moved], shift)
            if ((candidate - home) & mask) >= ((candidate - hole) & mask):
                table[hole] = np.int32(moved + 1)
                hole = candidate
        table[hole] = 0


class IntKeyIndex:
    """Keys of one fixed-width column to slots; null is a key like any other."""

    __slots__ = ("_guard", "_keys", "_null_slot", "_old", "_progress", "_shift", "_table", "_type", "allocator")

    def __init__(self, key_type: pa.DataType) -> None:
        self._type = key_type
        capacity = 1 << (_MIN_BITS - 1)
        self.allocator = SlotAllocator(capacity)
        self._keys: Int64Array = np.zeros(capacity, np.int64)
        self._table: Slots = np.zeros(2 * capacity, np.int32)
        self._shift = np.uint64(64 - _MIN_BITS)
        self._old: Slots | None = None
        """The smaller table, while its entries move."""
        self._progress: Int64Array = np.zeros(2, np.int64)
        self._null_slot = NO_SLOT
        self._guard = CopyOnWrite()

    def __len__(self) -> int:
        """Return the number of keys in the table."""
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
        if self._old is None:
            _lookup(column_words(array), self._table, self._shift, self._keys, slots)
        else:
            words = column_words(array)
            _lookup_moving(words, self._table, self._shift, self._old, self._progress, self._keys, slots)
        valid = validity(array)
        if valid is not None:
            slots[~valid] = self._null_slot
        return slots

    def remove(self, slots: Slots) -> None:
        """Forget these keys; their slots are handed out again. Slots that are free already are skipped."""
        if not len(slots):
            return
        allocator = self.allocator
        self._guard.before_write(slots)
        self._move_on(len(self._table))
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
        self._move_on(_MOVED_PER_ROW * len(words))
        row = 0
        while True:
            old = self._old
            if old is None:
                row = _lookup_or_insert(
                    words, row, self._table, self._shift, self._keys,
                    allocator.counters, allocator.free, allocator.live, slots,
                )  # fmt: skip
            else:
                row = _lookup_or_insert_moving(
                    words, row, self._table, self._shift, old, self._progress, self._keys,
                    allocator.counters, allocator.free, allocator.live, slots,
                )  # fmt: skip
            if row == len(words):
                return slots
            self._grow()
            self._move_on(_MOVED_PER_ROW * (len(words) - row))

    def _grow(self) -> None:
        self._move_on(len(self._table))
        capacity = 2 * len(self._keys)
        self.allocator.grow(capacity)
        grow_in_place(self, "_keys", capacity)
        self._old = self._table
        self._progress[_MOVED], self._progress[_FIRST] = 0, _first_empty(self._old)
        self._table = np.zeros(2 * capacity, np.int32)  # memory that is not touched before it is used
        self._shift -= np.uint64(1)

    def _move_on(self, places: int) -> None:
        """Move some entries to the new table, if there is an old one."""
        old = self._old
        if old is not None:
            _move(old, self._progress, places, self._table, self._shift, self._keys)
            if self._progress[_MOVED] == len(old):
                self._old = None


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
