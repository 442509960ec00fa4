"""KeyIndex for keys that are byte strings: one string or binary column, or the encoded rows of several columns.

The table's entries are 8 bytes: the upper 32 bits of XXH64 of the key, then its slot + 1, or 0. A probe that meets
another key is settled by those 32 bits nearly always, so the key's bytes are read once, to confirm. Positions are the
top bits of the same 32, so growing needs no key at all and reads and writes sequentially. Entries move to a larger
table a few at a time, with the batches that follow, as those of `word_key_index` do. Bytes lie in an arena that only
grows at its end; what removed keys leave behind is squeezed out, into a new arena, when it is more than half.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from snapline.dataflow.columnar.arrow_columns import BoolArray, BytesArray, Int64Array
from snapline.dataflow.columnar.gather import gather_spans
from snapline.dataflow.columnar.kernel import (
    I64,
    U64,
    VOID,
    BOOLs,
    I32s,
    I64s,
    RO_BOOLs,
    RO_I32s,
    RO_I64s,
    RO_U8s,
    U8s,
    copy_bytes,
    inlined,
    kernel,
    load_u64,
    prefetch,
)
from snapline.dataflow.columnar.key_hash import xxh64
from snapline.taskmanager.state.index.copy_on_write import CopyOnWrite
from snapline.taskmanager.state.index.slots import (
    FREE,
    HIGH,
    NO_SLOT,
    SlotAllocator,
    Slots,
    doubled,
    grow_in_place,
    grown,
    next_slot,
    release_slot,
)

_MIN_BITS = 8
_BLOCK = 64
_EMPTY = np.int64(0)
_SLOT_BITS = np.uint64(32)
_SLOT_MASK = np.int64(0xFFFFFFFF)
_MOVED, _FIRST = 0, 1
"""Indexes into the progress of growing: places of the old table that were moved, and the one at which that began."""
_MOVED_PER_ROW = 4
"""So the old table, at most half full when growing begins, is empty before it is three quarters full."""

USED, GARBAGE = 0, 1
"""Indexes into the counters of the arena: bytes used, and how many of them belong to removed keys."""
ROW, NEEDED = 0, 1
"""What `_lookup_or_insert` reports: the row it stopped at, and the bytes for which the arena has no room (0: no
slot)."""

_NO_TABLE: Int64Array = np.zeros(0, np.int64)


@inlined
def _equal(left: Any, left_start: Any, right: Any, right_start: Any, length: Any) -> Any:
    done = 0
    while done + 8 <= length:
        if load_u64(left, left_start + done) != load_u64(right, right_start + done):
            return False
        done += 8
    while done < length:
        if left[left_start + done] != right[right_start + done]:
            return False
        done += 1
    return True


@inlined
def _position(tag: Any, shift: Any) -> Any:
    """`tag`: the upper 32 bits of the hash; `shift`: 32 - bits of the table."""
    return np.int64(tag >> shift)


@inlined
def _tag_of(entry: Any) -> Any:
    return np.uint64(entry) >> _SLOT_BITS


@inlined
def _slot_of(entry: Any) -> Any:
    """-1 for an empty entry."""
    return (entry & _SLOT_MASK) - 1


@inlined
def _entry_of(tag: Any, slot: Any) -> Any:
    return np.int64((tag << _SLOT_BITS) | np.uint64(slot + 1))


@inlined
def _is_in_old(tag: Any, old: Any, shift: Any, progress: Any) -> Any:
    """Whether the key's place is in the part of the old table that was not moved yet. An empty old table has no such
    part."""
    if old.shape[0] == 0:
        return False
    home = _position(tag, shift + np.uint64(1))
    return ((home - progress[_FIRST]) & (old.shape[0] - 1)) >= progress[_MOVED]


@inlined
def _first_with_tag(tag: Any, table: Any, shift: Any) -> Any:
    """The first entry that may be this key's; an empty one if there is none."""
    mask = table.shape[0] - 1
    position = _position(tag, shift)
    while table[position] != _EMPTY and _tag_of(table[position]) != tag:
        position = (position + 1) & mask
    return table[position]


@inlined
def _guess(
    offsets: Any, data: Any, first: Any, count: Any, table: Any, shift: Any, old: Any, progress: Any, spans: Any, arena: Any,
    guesses: Any, tags: Any,
) -> None:  # fmt: skip
    """For a block of rows: the hash, and the slot that it leads to (-1: none), whose key is still to be compared.

    In passes over the block, each of which asks for the memory that the next one needs, so that the waiting for memory
    overlaps: with a million keys that is five times as fast as one row after the other.
    """
    for row in range(count):
        start = offsets[first + row]
        tag = xxh64(data, start, offsets[first + row + 1] - start) >> _SLOT_BITS
        tags[row] = np.int64(tag)
        if _is_in_old(tag, old, shift, progress):
            prefetch(old, _position(tag, shift + np.uint64(1)))
        else:
            prefetch(table, _position(tag, shift))
    for row in range(count):
        tag = np.uint64(tags[row])
        if _is_in_old(tag, old, shift, progress):
            guesses[row] = _slot_of(_first_with_tag(tag, old, shift + np.uint64(1)))
        else:
            guesses[row] = _slot_of(_first_with_tag(tag, table, shift))
        if guesses[row] >= 0:
            prefetch(spans, 2 * guesses[row])
    for row in range(count):
        if guesses[row] >= 0:
            prefetch(arena, spans[2 * guesses[row]])


@inlined
def _is_key_of(slot: Any, data: Any, start: Any, length: Any, spans: Any, arena: Any) -> Any:
    known = spans[2 * slot]
    return spans[2 * slot + 1] - known == length and _equal(data, start, arena, known, length)


@inlined
def _find(tag: Any, data: Any, start: Any, length: Any, table: Any, shift: Any, spans: Any, arena: Any) -> Any:
    """Where the entry of this key is, or would be."""
    mask = table.shape[0] - 1
    position = _position(tag, shift)
    while True:
        entry = table[position]
        if entry == _EMPTY:
            return position
        if _tag_of(entry) == tag and _is_key_of(_slot_of(entry), data, start, length, spans, arena):
            return position
        position = (position + 1) & mask


@kernel(VOID(RO_I64s, RO_U8s, RO_BOOLs, I64s, I64s, U64, I64s, I64s, I64s, U8s, I64s, I64s, I32s, BOOLs, I64s, I32s))
def _lookup_or_insert(
    offsets: Any, data: Any, valid: Any, report: Any, table: Any, shift: Any, old: Any, progress: Any, spans: Any, arena: Any,
    arena_counters: Any, counters: Any, free: Any, live: Any, scratch: Any, slots: Any,
) -> None:  # fmt: skip
    """Fill slots from row `report[ROW]`. `valid`: empty if every row is; rows that are not are left alone."""
    capacity = spans.shape[0] // 2
    guesses, tags = scratch[:_BLOCK], scratch[_BLOCK:]
    first = report[ROW]
    while first < slots.shape[0]:
        count = min(_BLOCK, slots.shape[0] - first)
        _guess(offsets, data, first, count, table, shift, old, progress, spans, arena, guesses, tags)
        for row in range(first, first + count):
            if valid.shape[0] > 0 and not valid[row]:
                continue
            start = offsets[row]
            length = offsets[row + 1] - start
            slot = guesses[row - first]
            if slot >= 0 and _is_key_of(slot, data, start, length, spans, arena):
                slots[row] = np.int32(slot)
                continue
            tag = np.uint64(tags[row - first])
            in_old = _is_in_old(tag, old, shift, progress)
            if in_old:
                position = _find(tag, data, start, length, old, shift + np.uint64(1), spans, arena)
                slot = _slot_of(old[position])
            else:
                position = _find(tag, data, start, length, table, shift, spans, arena)
                slot = _slot_of(table[position])
            if slot < 0:
                if counters[FREE] == 0 and counters[HIGH] == capacity:
                    report[ROW], report[NEEDED] = row, 0
                    return
                used = arena_counters[USED]
                if used + length > arena.shape[0]:
                    report[ROW], report[NEEDED] = row, length
                    return
                slot = np.int64(next_slot(counters, free, live))
                if in_old:
                    old[position] = _entry_of(tag, slot)
                else:
                    table[position] = _entry_of(tag, slot)
                copy_bytes(data, start, arena, used, length)
                spans[2 * slot], spans[2 * slot + 1] = used, used + length
                arena_counters[USED] = used + length
            slots[row] = np.int32(slot)
        first += count
    report[ROW] = slots.shape[0]


@kernel(VOID(RO_I64s, RO_U8s, I64s, U64, I64s, I64s, I64s, U8s, I64s, I32s))
def _lookup(
    offsets: Any, data: Any, table: Any, shift: Any, old: Any, progress: Any, spans: Any, arena: Any, scratch: Any, slots: Any
) -> None:  # fmt: skip
    guesses, tags = scratch[:_BLOCK], scratch[_BLOCK:]
    first = 0
    while first < slots.shape[0]:
        count = min(_BLOCK, slots.shape[0] - first)
        _guess(offsets, data, first, count, table, shift, old, progress, spans, arena, guesses, tags)
        for row in range(first, first + count):
            start = offsets[row]
            length = offsets[row + 1] - start
            found = guesses[row - first]
            if found >= 0 and not _is_key_of(found, data, start, length, spans, arena):
                tag = np.uint64(tags[row - first])
                if _is_in_old(tag, old, shift, progress):
                    found = _slot_of(old[_find(tag, data, start, length, old, shift + np.uint64(1), spans, arena)])
                else:
                    found = _slot_of(table[_find(tag, data, start, length, table, shift, spans, arena)])
            slots[row] = np.int32(found)
        first += count


@inlined
def _put(entry: Any, table: Any, shift: Any) -> None:
    """A key that is not there yet."""
    mask = table.shape[0] - 1
    position = _position(_tag_of(entry), shift)
    while table[position] != _EMPTY:
        position = (position + 1) & mask
    table[position] = entry


@kernel(VOID(I64s, I64s, I64, I64s, U64))
def _move(old: Any, progress: Any, count: int, table: Any, shift: Any) -> None:
    """Move at least `count` places of the old table on, up to the end of a run; at the table's end also what has run
    over it."""
    mask = old.shape[0] - 1
    done = 0
    while progress[_MOVED] < old.shape[0]:
        place = (progress[_FIRST] + progress[_MOVED]) & mask
        entry = old[place]
        progress[_MOVED] += 1
        done += 1
        if entry != _EMPTY:
            _put(entry, table, shift)
            old[place] = _EMPTY
        elif done >= count:
            return
    place = progress[_FIRST]
    while old[place & mask] != _EMPTY:
        _put(old[place & mask], table, shift)
        old[place & mask] = _EMPTY
        place += 1


@kernel(I64(I64s))
def _first_empty(table: Any) -> int:
    position = 0
    while table[position] != _EMPTY:
        position += 1
    return position


@kernel(VOID(RO_I32s, I64, I64s, U64, I64s, U8s, I64s, I64s, I32s, BOOLs))
def _remove(
    slots: Any, null_slot: int, table: Any, shift: Any, spans: Any, arena: Any, arena_counters: Any,
    counters: Any, free: Any, live: Any,
) -> None:  # fmt: skip
    mask = table.shape[0] - 1
    for row in range(slots.shape[0]):
        slot = slots[row]
        if not live[slot]:
            continue
        release_slot(slot, counters, free, live)
        if slot == null_slot:
            continue
        start = spans[2 * slot]
        length = spans[2 * slot + 1] - start
        arena_counters[GARBAGE] += length
        hole = _position(xxh64(arena, start, length) >> _SLOT_BITS, shift)
        while _slot_of(table[hole]) != slot:
            hole = (hole + 1) & mask
        candidate = hole
        while True:
            candidate = (candidate + 1) & mask
            moved = table[candidate]
            if moved == _EMPTY:
                break
            home = _position(_tag_of(moved), shift)
            if ((candidate - home) & mask) >= ((candidate - hole) & mask):
                table[hole] = moved
                hole = candidate
        table[hole] = _EMPTY


class BytesKeyIndex:
    """Byte strings to slots; a null is a key like any other."""

    __slots__ = (
        "_arena", "_arena_counters", "_found", "_guard", "_null_slot", "_old", "_one", "_progress", "_scratch", "_shift", "_spans", "_table",
        "allocator",
    )  # fmt: skip

    def __init__(self) -> None:
        capacity = 1 << (_MIN_BITS - 1)
        self.allocator = SlotAllocator(capacity)
        self._spans: Int64Array = np.zeros(2 * capacity, np.int64)  # start and end in the arena, by slot
        self._arena: BytesArray = np.zeros(16 * capacity, np.uint8)
        self._arena_counters: Int64Array = np.zeros(2, np.int64)
        self._table: Int64Array = np.zeros(2 * capacity, np.int64)
        self._old: Int64Array = _NO_TABLE
        """The smaller table, while its entries move."""
        self._progress: Int64Array = np.zeros(2, np.int64)
        self._shift = np.uint64(32 - _MIN_BITS)
        self._scratch: Int64Array = np.zeros(2 * _BLOCK, np.int64)
        self._null_slot = NO_SLOT
        self._guard = CopyOnWrite()
        self._one: Int64Array = np.zeros(2, np.int64)  # offsets of the key that is looked up alone, and what was found
        self._found: Slots = np.zeros(1, np.int32)

    def __len__(self) -> int:
        """Return the number of keys in the table."""
        return len(self.allocator)

    def reserve(self, keys: int) -> None:
        """Make room for so many keys at once, while there is none: they come in without a step of growing, but for
        their bytes."""
        capacity = doubled(self.allocator.capacity, keys)
        if len(self) or capacity == self.allocator.capacity:
            return
        self.allocator.grow(capacity)
        grow_in_place(self, "_spans", 2 * capacity)
        self._table, self._old = np.zeros(2 * capacity, np.int64), _NO_TABLE
        self._shift = np.uint64(33 - (2 * capacity).bit_length())

    def lookup_or_insert(self, offsets: Int64Array, data: BytesArray, valid: BoolArray | None) -> Slots:
        """The slot of each row's key; keys not seen before get one, in row order."""
        length = len(offsets) - 1
        slots = np.empty(length, np.int32)
        allocator = self.allocator
        report = np.zeros(2, np.int64)
        mask = np.zeros(0, np.bool_) if valid is None else valid
        if self._guard.is_needed:
            self._guard.before_write(allocator.candidates(length + 1))
        self._move_on(_MOVED_PER_ROW * length)
        while True:
            _lookup_or_insert(
                offsets, data, mask, report, self._table, self._shift, self._old, self._progress, self._spans, self._arena,
                self._arena_counters, allocator.counters, allocator.free, allocator.live, self._scratch, slots,
            )  # fmt: skip
            if report[ROW] == length:
                break
            if report[NEEDED]:
                self._grow_arena(int(report[NEEDED]))
            else:
                self._grow()
                self._move_on(_MOVED_PER_ROW * (length - int(report[ROW])))
        if valid is not None:
            if self._null_slot == NO_SLOT and not valid.all():
                if len(allocator) == allocator.capacity:
                    self._grow()
                self._null_slot = int(allocator.allocate(1)[0])
                self._spans[2 * self._null_slot : 2 * self._null_slot + 2] = 0
            slots[~valid] = self._null_slot
        return slots

    def lookup(self, offsets: Int64Array, data: BytesArray, valid: BoolArray | None) -> Slots:
        """The slot of each row's key, -1 where it is not known."""
        slots = np.empty(len(offsets) - 1, np.int32)
        self._lookup(offsets, data, slots)
        if valid is not None:
            slots[~valid] = self._null_slot
        return slots

    def lookup_one(self, key: bytes) -> int:
        """The slot of one key, -1 if it is not known."""
        offsets = self._one
        offsets[1] = len(key)
        data = np.frombuffer(key, np.uint8)
        self._lookup(offsets, data, self._found)
        return int(self._found[0])

    def _lookup(self, offsets: Int64Array, data: BytesArray, slots: Slots) -> None:
        self._move_on(_MOVED_PER_ROW * len(slots))
        _lookup(
            offsets, data, self._table, self._shift, self._old, self._progress, self._spans, self._arena, self._scratch, slots
        )  # fmt: skip

    def remove(self, slots: Slots) -> None:
        """Forget these keys; their slots are handed out again. Slots that are free already are skipped."""
        if not len(slots):
            return
        allocator = self.allocator
        self._guard.before_write(slots)
        self._move_on(len(self._table))
        _remove(
            slots, self._null_slot, self._table, self._shift, self._spans, self._arena,
            self._arena_counters, allocator.counters, allocator.free, allocator.live,
        )  # fmt: skip
        if self._null_slot != NO_SLOT and not allocator.live[self._null_slot]:
            self._null_slot = NO_SLOT

    def freeze(self) -> FrozenBytes:
        """The keys as they are now. The arena is shared: below what is used it never changes."""
        allocator = self.allocator
        frozen = self._guard.freeze([self._spans, allocator.live], allocator.high_water, [2, 1])
        return FrozenBytes(frozen.arrays, self._arena, self._null_slot)

    def view(self) -> FrozenBytes:
        """The keys, valid until the next change."""
        return FrozenBytes(lambda: [self._spans, self.allocator.live], self._arena, self._null_slot)

    def _grow(self) -> None:
        self._move_on(len(self._table))
        capacity = 2 * self.allocator.capacity
        self.allocator.grow(capacity)
        grow_in_place(self, "_spans", 2 * capacity)
        self._old = self._table
        self._progress[_MOVED], self._progress[_FIRST] = 0, _first_empty(self._old)
        self._table = np.zeros(2 * capacity, np.int64)  # memory that is not touched before it is used
        self._shift -= np.uint64(1)

    def _move_on(self, places: int) -> None:
        """Move some entries to the new table, if there is an old one."""
        old = self._old
        if len(old):
            _move(old, self._progress, places, self._table, self._shift)
            if self._progress[_MOVED] == len(old):
                self._old = _NO_TABLE

    def _grow_arena(self, needed: int) -> None:
        used, garbage = (int(count) for count in self._arena_counters)
        if 2 * garbage > used:
            live = self.allocator.live_slots()
            offsets, squeezed, _ = self.view().gather(live)
            self._spans = self._spans.copy()  # the old one may be frozen
            spans = self._spans.reshape(-1, 2)
            spans[live, 0], spans[live, 1] = offsets[:-1], offsets[1:]
            used = len(squeezed)
            self._arena_counters[:] = used, 0
            # as large as before: what was garbage is room now; the old one stays as it is for whom it was frozen
            self._arena = grown(squeezed, max(len(self._arena), used))
        if used + needed > len(self._arena):
            grow_in_place(self, "_arena", doubled(len(self._arena), used + needed))


class FrozenBytes:
    """Byte strings by slot at one moment."""

    __slots__ = ("_arena", "_arrays", "_null_slot")

    def __init__(self, arrays: Callable[[], list[Any]], arena: BytesArray, null_slot: int) -> None:
        """`arrays`: where each slot's bytes begin and end, and which slots are in use."""
        self._arrays, self._arena, self._null_slot = arrays, arena, null_slot

    def live_slots(self) -> Slots:
        """All slots that were in use, ascending."""
        return np.flatnonzero(self._arrays()[1]).astype(np.int32)

    def gather(self, slots: Slots) -> tuple[Int64Array, BytesArray, BoolArray | None]:
        """Offsets, bytes and validity of these slots' keys."""
        offsets, data = gather_spans(self._arrays()[0], self._arena, np.ascontiguousarray(slots, np.int32))
        return offsets, data, None if self._null_slot == NO_SLOT else slots != self._null_slot
