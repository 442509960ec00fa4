"""KeyIndex for keys that are one int64 word, or as many of them for each key: a column of integers, booleans, floats,
dates, times or timestamps, or the encoded rows of several such columns.

An open-addressing table of slots (4 bytes an entry: slot + 1, or 0; at most half full, linear probing, Fibonacci
hashing by the top bits) over the dense array of keys by slot. Removal shifts back, so there are no tombstones. Growing
doubles the table; because the position is the *top* bits of the hash, entries move to the table's double position in
the order in which they lie, so moving reads and writes sequentially (measured in docs/decisions/0010-key-lookup.md).
They move a few at a time, with the batches that follow: a key whose place in the old table was not reached yet is
looked for there, all others in the new one. Moving pauses only where a run of entries ends, so no run lies in both.

Keys are looked up by code that is compiled for one word, for the three and four words of two and three columns, and for
any number of them: where the number is known, hashing and comparing are no loops, and take half as long. The hash here
is private to the process and has nothing to do with the stable hash of key groups.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from snapline.dataflow.columnar.arrow_columns import BoolArray, Int64Array
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
from snapline.taskmanager.state.index.copy_on_write import CopyOnWrite
from snapline.taskmanager.state.index.slots import (
    FREE,
    HIGH,
    NO_SLOT,
    SlotAllocator,
    Slots,
    doubled,
    grow_in_place,
    next_slot,
    release_slot,
)

_PHI = np.uint64(0x9E3779B97F4A7C15)
_MIN_BITS = 8
_BLOCK = 64
_AHEAD = 12
"""A key's memory is asked for so many rows before it is looked at, and the table's entry twice as many."""
_NEAR_ENTRIES = 1 << 18
"""A table up to here, with its keys, is in the caches: asking ahead would cost as much as looking."""
_MOVED, _FIRST = 0, 1
"""Indexes into the progress of growing: places of the old table that were moved, and the one at which that began."""
_MOVED_PER_ROW = 4
"""So the old table, at most half full when growing begins, is empty before it is three quarters full."""


@inlined
def _position(words: Any, row: Any, width: Any, shift: Any) -> Any:
    """Where the key that is in this row of the words belongs."""
    bits = np.uint64(words[row * width])
    mixed = bits ^ (bits >> np.uint64(32))
    for column in range(1, width):
        bits = np.uint64(words[row * width + column])
        mixed *= _PHI
        mixed ^= (mixed >> np.uint64(32)) ^ bits ^ (bits >> np.uint64(32))
    return np.int64((mixed * _PHI) >> shift)


@inlined
def _is_same(words: Any, row: Any, keys: Any, slot: Any, width: Any) -> Any:
    same = True
    for column in range(width):
        same &= words[row * width + column] == keys[slot * width + column]
    return same


@inlined
def _keep(words: Any, row: Any, keys: Any, slot: Any, width: Any) -> None:
    for column in range(width):
        keys[slot * width + column] = words[row * width + column]


@inlined
def _find(words: Any, row: Any, width: Any, table: Any, shift: Any, keys: Any) -> Any:
    """Where the entry of this key is, or would be."""
    mask = table.shape[0] - 1
    position = _position(words, row, width, shift)
    while table[position] != 0 and not _is_same(words, row, keys, np.int64(table[position]) - 1, width):
        position = (position + 1) & mask
    return position


@inlined
def _rows_with_others_ahead(table: Any, rows: Any) -> Any:
    """Memory is asked for ahead in the rows before this one: in none while the table fits the processor's caches."""
    return rows - 2 * _AHEAD if table.shape[0] > _NEAR_ENTRIES else 0


@inlined
def _ask_ahead(words: Any, row: Any, width: Any, table: Any, shift: Any, keys: Any) -> None:
    """Ask for the entry of a later row, and for the key that the entry of an earlier one of these names."""
    prefetch(table, _position(words, row + 2 * _AHEAD, width, shift))
    entry = np.int64(table[_position(words, row + _AHEAD, width, shift)])
    prefetch(keys, (entry - (entry > 0)) * width)


@inlined
def _insert_rows(
    words: Any, start: Any, width: Any, table: Any, shift: Any, keys: Any, counters: Any, free: Any, live: Any, slots: Any
) -> Any:  # fmt: skip
    mask = table.shape[0] - 1
    ahead = _rows_with_others_ahead(table, slots.shape[0])
    for row in range(start, slots.shape[0]):
        if row < ahead:
            _ask_ahead(words, row, width, table, shift, keys)
        position = _position(words, row, width, shift)
        while True:
            slot = table[position] - np.int32(1)
            if slot < 0:
                if counters[FREE] == 0 and counters[HIGH] == live.shape[0]:
                    return row
                slot = next_slot(counters, free, live)
                table[position] = slot + np.int32(1)
                _keep(words, row, keys, np.int64(slot), width)
                break
            if _is_same(words, row, keys, np.int64(slot), width):
                break
            position = (position + 1) & mask
        slots[row] = slot
    return slots.shape[0]


@kernel(I64(RO_I64s, I64, I64, I32s, U64, I64s, I64s, I32s, BOOLs, I32s))
def _lookup_or_insert(
    words: Any, start: int, width: int, table: Any, shift: Any, keys: Any, counters: Any, free: Any, live: Any, slots: Any
) -> int:  # fmt: skip
    """Fill slots from row `start`; return the row at which there was no room for a new key, or the number of rows."""
    if width == 1:
        return _insert_rows(words, start, 1, table, shift, keys, counters, free, live, slots)
    if width == 3:
        return _insert_rows(words, start, 3, table, shift, keys, counters, free, live, slots)
    if width == 4:
        return _insert_rows(words, start, 4, table, shift, keys, counters, free, live, slots)
    return _insert_rows(words, start, width, table, shift, keys, counters, free, live, slots)


@inlined
def _find_rows(words: Any, width: Any, table: Any, shift: Any, keys: Any, slots: Any) -> None:
    ahead = _rows_with_others_ahead(table, slots.shape[0])
    for row in range(slots.shape[0]):
        if row < ahead:
            _ask_ahead(words, row, width, table, shift, keys)
        slots[row] = table[_find(words, row, width, table, shift, keys)] - np.int32(1)


@kernel(VOID(RO_I64s, I64, I32s, U64, I64s, I32s))
def _lookup(words: Any, width: int, table: Any, shift: Any, keys: Any, slots: Any) -> None:
    if width == 1:
        _find_rows(words, 1, table, shift, keys, slots)
    elif width == 3:
        _find_rows(words, 3, table, shift, keys, slots)
    elif width == 4:
        _find_rows(words, 4, table, shift, keys, slots)
    else:
        _find_rows(words, width, table, shift, keys, slots)


@inlined
def _is_in_old(words: Any, row: Any, width: Any, old: Any, shift: Any, progress: Any) -> Any:
    """Whether the key's place is in the part of the old table that was not moved yet."""
    home = _position(words, row, width, shift + np.uint64(1))
    return ((home - progress[_FIRST]) & (old.shape[0] - 1)) >= progress[_MOVED]


@inlined
def _insert_rows_moving(
    words: Any, start: Any, width: Any, table: Any, shift: Any, old: Any, progress: Any, keys: Any,
    counters: Any, free: Any, live: Any, slots: Any,
) -> Any:  # fmt: skip
    for row in range(start, slots.shape[0]):
        in_old = _is_in_old(words, row, width, old, shift, progress)
        if in_old:
            position = _find(words, row, width, old, shift + np.uint64(1), keys)
            slot = old[position] - np.int32(1)
        else:
            position = _find(words, row, width, table, shift, keys)
            slot = table[position] - np.int32(1)
        if slot < 0:
            if counters[FREE] == 0 and counters[HIGH] == live.shape[0]:
                return row
            slot = next_slot(counters, free, live)
            _keep(words, row, keys, np.int64(slot), width)
            if in_old:
                old[position] = slot + np.int32(1)
            else:
                table[position] = slot + np.int32(1)
        slots[row] = slot
    return slots.shape[0]


@kernel(I64(RO_I64s, I64, I64, I32s, U64, I32s, I64s, I64s, I64s, I32s, BOOLs, I32s))
def _lookup_or_insert_moving(
    words: Any, start: int, width: int, table: Any, shift: Any, old: Any, progress: Any, keys: Any,
    counters: Any, free: Any, live: Any, slots: Any,
) -> int:  # fmt: skip
    """As `_lookup_or_insert`, while entries move from the old table to the new one."""
    if width == 1:
        return _insert_rows_moving(words, start, 1, table, shift, old, progress, keys, counters, free, live, slots)
    if width == 3:
        return _insert_rows_moving(words, start, 3, table, shift, old, progress, keys, counters, free, live, slots)
    if width == 4:
        return _insert_rows_moving(words, start, 4, table, shift, old, progress, keys, counters, free, live, slots)
    return _insert_rows_moving(words, start, width, table, shift, old, progress, keys, counters, free, live, slots)


@kernel(VOID(RO_I64s, I64, I32s, U64, I32s, I64s, I64s, I32s))
def _lookup_moving(
    words: Any, width: int, table: Any, shift: Any, old: Any, progress: Any, keys: Any, slots: Any
) -> None:
    for row in range(slots.shape[0]):
        if _is_in_old(words, row, width, old, shift, progress):
            slots[row] = old[_find(words, row, width, old, shift + np.uint64(1), keys)] - np.int32(1)
        else:
            slots[row] = table[_find(words, row, width, table, shift, keys)] - np.int32(1)


@inlined
def _move_entries(old: Any, progress: Any, count: Any, table: Any, shift: Any, keys: Any, width: Any) -> None:
    mask = old.shape[0] - 1
    done = 0
    while progress[_MOVED] < old.shape[0]:
        first = progress[_FIRST] + progress[_MOVED]
        for ahead in range(first, first + _BLOCK):
            if old[ahead & mask] != 0:
                prefetch(keys, (np.int64(old[ahead & mask]) - 1) * width)
        for place in range(first, min(first + _BLOCK, progress[_FIRST] + old.shape[0])):
            entry = old[place & mask]
            progress[_MOVED] += 1
            done += 1
            if entry != 0:
                table[_find(keys, np.int64(entry) - 1, width, table, shift, keys)] = entry
                old[place & mask] = 0
            elif done >= count:
                return
    place = progress[_FIRST]
    while old[place & mask] != 0:
        entry = old[place & mask]
        table[_find(keys, np.int64(entry) - 1, width, table, shift, keys)] = entry
        old[place & mask] = 0
        place += 1


@kernel(VOID(I32s, I64s, I64, I32s, U64, I64s, I64))
def _move(old: Any, progress: Any, count: int, table: Any, shift: Any, keys: Any, width: int) -> None:
    """Move at least `count` places of the old table on, up to the end of a run; at the table's end also what has run
    over it."""
    if width == 1:
        _move_entries(old, progress, count, table, shift, keys, 1)
    elif width == 3:
        _move_entries(old, progress, count, table, shift, keys, 3)
    elif width == 4:
        _move_entries(old, progress, count, table, shift, keys, 4)
    else:
        _move_entries(old, progress, count, table, shift, keys, width)


@kernel(I64(I32s))
def _first_empty(table: Any) -> int:
    position = 0
    while table[position] != 0:
        position += 1
    return position


@inlined
def _close(table: Any, hole: Any, shift: Any, keys: Any, width: Any) -> None:
    """Let what follows in the run move back over an entry that is gone."""
    mask = table.shape[0] - 1
    candidate = hole
    while True:
        candidate = (candidate + 1) & mask
        moved = table[candidate] - 1
        if moved < 0:
            break
        home = _position(keys, np.int64(moved), width, shift)
        if ((candidate - home) & mask) >= ((candidate - hole) & mask):
            table[hole] = np.int32(moved + 1)
            hole = candidate
    table[hole] = 0


@kernel(VOID(RO_I32s, I32, I32s, U64, I64s, I64, I64s, I32s, BOOLs))
def _remove(
    slots: Any, null_slot: Any, table: Any, shift: Any, keys: Any, width: int, counters: Any, free: Any, live: Any
) -> None:
    mask = table.shape[0] - 1
    for row in range(slots.shape[0]):
        slot = slots[row]
        if not live[slot]:
            continue
        release_slot(slot, counters, free, live)
        if slot == null_slot:
            continue
        hole = _position(keys, np.int64(slot), width, shift)
        while table[hole] != slot + 1:
            hole = (hole + 1) & mask
        _close(table, hole, shift, keys, width)


@inlined
def _take_rows(
    words: Any, width: Any, table: Any, shift: Any, keys: Any, counters: Any, free: Any, live: Any, slots: Any
) -> None:
    for row in range(slots.shape[0]):
        position = _find(words, row, width, table, shift, keys)
        slot = table[position] - np.int32(1)
        slots[row] = slot
        if slot >= 0:
            release_slot(slot, counters, free, live)
            _close(table, position, shift, keys, width)


@kernel(VOID(RO_I64s, I64, I32s, U64, I64s, I64s, I32s, BOOLs, I32s))
def _take(
    words: Any, width: int, table: Any, shift: Any, keys: Any, counters: Any, free: Any, live: Any, slots: Any
) -> None:
    if width == 3:
        _take_rows(words, 3, table, shift, keys, counters, free, live, slots)
    else:
        _take_rows(words, width, table, shift, keys, counters, free, live, slots)


class WordKeyIndex:
    """Keys of so many words to slots; a null is a key like any other."""

    __slots__ = ("_guard", "_keys", "_null_slot", "_old", "_progress", "_shift", "_table", "_width", "allocator")

    def __init__(self, width: int = 1) -> None:
        self._width = width
        capacity = 1 << (_MIN_BITS - 1)
        self.allocator = SlotAllocator(capacity)
        self._keys: Int64Array = np.zeros(width * capacity, np.int64)
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

    def reserve(self, keys: int) -> None:
        """Make room for so many keys at once, while there is none: they come in without a step of growing."""
        capacity = doubled(self.allocator.capacity, keys)
        if len(self) or capacity == self.allocator.capacity:
            return
        self.allocator.grow(capacity)
        grow_in_place(self, "_keys", self._width * capacity)
        self._table, self._old = np.zeros(2 * capacity, np.int32), None
        self._shift = np.uint64(65 - (2 * capacity).bit_length())

    def lookup_or_insert(self, words: Int64Array, valid: BoolArray | None) -> Slots:
        """The slot of each row's key, whose words lie one after the other; keys not seen before get one, in row order.
        `valid`: which keys are not null, for keys of one word; None: all."""
        if self._guard.is_needed:
            self._guard.before_write(self.allocator.candidates(len(words) // self._width))
        if valid is None:
            return self._insert(words)
        slots = np.empty(len(words), np.int32)
        slots[valid] = self._insert(words[valid])
        if self._null_slot == NO_SLOT:
            if len(self.allocator) == self.allocator.capacity:
                self._grow()
            self._null_slot = int(self.allocator.allocate(1)[0])
        slots[~valid] = self._null_slot
        return slots

    def lookup(self, words: Int64Array, valid: BoolArray | None) -> Slots:
        """The slot of each row's key, -1 where it is not known. Entries move on meanwhile, so that who only looks up
        does not look into two tables for ever."""
        slots = np.empty(len(words) // self._width, np.int32)
        self._move_on(_MOVED_PER_ROW * len(slots))
        if self._old is None:
            _lookup(words, self._width, self._table, self._shift, self._keys, slots)
        else:
            _lookup_moving(
                words, self._width, self._table, self._shift, self._old, self._progress, self._keys, slots
            )  # fmt: skip
        if valid is not None:
            slots[~valid] = self._null_slot
        return slots

    def lookup_one(self, key: bytes) -> int:
        """The slot of one key, -1 if it is not known."""
        return int(self.lookup(np.frombuffer(key, np.int64), None)[0])

    def remove(self, slots: Slots) -> None:
        """Forget these keys; their slots are handed out again. Slots that are free already are skipped."""
        if not len(slots):
            return
        allocator = self.allocator
        self._guard.before_write(slots)
        self._move_on(len(self._table))
        _remove(
            slots, self._null_slot, self._table, self._shift, self._keys, self._width,
            allocator.counters, allocator.free, allocator.live,
        )  # fmt: skip
        if self._null_slot != NO_SLOT and not allocator.live[self._null_slot]:
            self._null_slot = NO_SLOT

    def take(self, words: Int64Array) -> Slots:
        """As `lookup` for keys that are not null, and forget them: their slots are handed out again. Of equal keys only
        the first one is there."""
        if self._guard.is_needed:
            known = self.lookup(words, None)
            self._guard.before_write(known[known >= 0])
        self._move_on(len(self._table))
        allocator = self.allocator
        slots = np.empty(len(words) // self._width, np.int32)
        _take(
            words, self._width, self._table, self._shift, self._keys,
            allocator.counters, allocator.free, allocator.live, slots,
        )  # fmt: skip
        return slots

    def freeze(self) -> FrozenWords:
        """The keys as they are now."""
        frozen = self._guard.freeze([self._keys, self.allocator.live], self.allocator.high_water, [self._width, 1])
        return FrozenWords(frozen.arrays, self._null_slot, self._width)

    def view(self) -> FrozenWords:
        """The keys, valid until the next change."""
        return FrozenWords(lambda: [self._keys, self.allocator.live], self._null_slot, self._width)

    def _insert(self, words: Int64Array) -> Slots:
        rows = len(words) // self._width
        slots = np.empty(rows, np.int32)
        allocator = self.allocator
        self._move_on(_MOVED_PER_ROW * rows)
        row = 0
        while True:
            old = self._old
            if old is None:
                row = _lookup_or_insert(
                    words, row, self._width, self._table, self._shift, self._keys,
                    allocator.counters, allocator.free, allocator.live, slots,
                )  # fmt: skip
            else:
                row = _lookup_or_insert_moving(
                    words, row, self._width, self._table, self._shift, old, self._progress, self._keys,
                    allocator.counters, allocator.free, allocator.live, slots,
                )  # fmt: skip
            if row == rows:
                return slots
            self._grow()
            self._move_on(_MOVED_PER_ROW * (rows - row))

    def _grow(self) -> None:
        self._move_on(len(self._table))
        capacity = 2 * self.allocator.capacity
        self.allocator.grow(capacity)
        grow_in_place(self, "_keys", self._width * capacity)
        self._old = self._table
        self._progress[_MOVED], self._progress[_FIRST] = 0, _first_empty(self._old)
        self._table = np.zeros(2 * capacity, np.int32)  # memory that is not touched before it is used
        self._shift -= np.uint64(1)

    def _move_on(self, places: int) -> None:
        """Move some entries to the new table, if there is an old one."""
        old = self._old
        if old is not None:
            _move(old, self._progress, places, self._table, self._shift, self._keys, self._width)
            if self._progress[_MOVED] == len(old):
                self._old = None


class FrozenWords:
    """Keys by slot at one moment."""

    __slots__ = ("_arrays", "_null_slot", "_width")

    def __init__(self, arrays: Callable[[], list[Any]], null_slot: int, width: int) -> None:
        """`arrays`: the words of keys, and which slots are in use."""
        self._arrays, self._null_slot, self._width = arrays, null_slot, width

    def live_slots(self) -> Slots:
        """All slots that were in use, ascending."""
        return np.flatnonzero(self._arrays()[1]).astype(np.int32)

    def gather(self, slots: Slots) -> tuple[Int64Array, BoolArray | None]:
        """The words of these slots' keys, and which of them are not null."""
        keys = self._arrays()[0]
        words = gather_values(keys, slots) if self._width == 1 else keys.reshape(-1, self._width)[slots].reshape(-1)
        return words, None if self._null_slot == NO_SLOT else slots != self._null_slot
