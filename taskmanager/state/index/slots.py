"""Slots: dense int32 numbers for keys (or list elements), handed out lowest first and reused after removal.

Decides only which number is next. `counters` and `free` are plain arrays because kernels allocate inside their loops.
"""

from __future__ import annotations

import mmap
from typing import Any

import numpy as np

from snapline.dataflow.columnar.arrow_columns import BoolArray, Int64Array
from snapline.dataflow.columnar.kernel import VOID, BOOLs, I32s, I64s, RO_I32s, inlined, kernel
from snapline.runtime.cores.machine import check

Slots = np.ndarray[Any, np.dtype[np.int32]]

HIGH, FREE = 0, 1
"""Indexes into `counters`: slots ever handed out, and length of the free stack."""
NO_SLOT = -1
MAPPED_BYTES = 1 << 20
"""Arrays from this size on lie in memory mappings of their own."""
_ROOM = 8
"""Addresses for so many times what a mapping has to hold at first; they cost nothing."""
MAX_SLOTS = 2**31 - 1


@inlined
def next_slot(counters: Any, free: Any, live: Any) -> Any:
    """A free slot, marked live. The caller has seen to it that there is room."""
    if counters[FREE] > 0:
        counters[FREE] -= 1
        slot = free[counters[FREE]]
    else:
        slot = np.int32(counters[HIGH])
        counters[HIGH] += 1
    live[slot] = True
    return slot


@inlined
def release_slot(slot: Any, counters: Any, free: Any, live: Any) -> None:
    """Give a slot back: the inverse of `next_slot`."""
    live[slot] = False
    free[counters[FREE]] = slot
    counters[FREE] += 1


@kernel(VOID(I64s, I32s, BOOLs, I32s))
def _allocate(counters: Any, free: Any, live: Any, slots: Any) -> None:
    """As `next_slot` would, one by one."""
    count, left, high = slots.shape[0], counters[FREE], counters[HIGH]
    reused = min(count, left)
    for position in range(reused):
        slots[position] = free[left - 1 - position]
    for position in range(reused, count):
        slots[position] = np.int32(high + position - reused)
    for position in range(count):
        live[slots[position]] = True
    counters[FREE], counters[HIGH] = left - reused, high + count - reused


@kernel(VOID(RO_I32s, I64s, I32s, BOOLs))
def _release(slots: Any, counters: Any, free: Any, live: Any) -> None:
    for position in range(slots.shape[0]):
        if live[slots[position]]:
            release_slot(slots[position], counters, free, live)


class SlotAllocator:
    """Which slots are in use. Capacity doubles; slots keep their numbers."""

    __slots__ = ("counters", "free", "live")

    def __init__(self, capacity: int = 64) -> None:
        self.counters: Int64Array = np.zeros(2, np.int64)
        self.free: Slots = np.empty(capacity, np.int32)
        self.live: BoolArray = np.zeros(capacity, np.bool_)

    @property
    def capacity(self) -> int:
        """Slots that fit without growing."""
        return len(self.live)

    @property
    def high_water(self) -> int:
        """All slots in use are below this."""
        return int(self.counters[HIGH])

    def __len__(self) -> int:
        """Return how many slots are in use."""
        return int(self.counters[HIGH] - self.counters[FREE])

    def grow(self, capacity: int) -> None:
        """Make room for `capacity` slots."""
        check(capacity <= MAX_SLOTS, f"one subtask holds at most {MAX_SLOTS} keys: raise the parallelism")
        grow_in_place(self, "free", capacity)
        grow_in_place(self, "live", capacity)

    def allocate(self, count: int) -> Slots:
        """Return `count` slots that were not in use."""
        if len(self) + count > self.capacity:
            self.grow(doubled(self.capacity, len(self) + count))
        slots = np.empty(count, np.int32)
        _allocate(self.counters, self.free, self.live, slots)
        return slots

    def release(self, slots: Slots) -> None:
        """Take slots back; those that are free already stay free."""
        _release(slots, self.counters, self.free, self.live)

    def candidates(self, count: int) -> Slots:
        """Slots that were used before, and that the next so many allocations may hand out again."""
        free = int(self.counters[FREE])
        return self.free[max(0, free - count) : free]

    def live_slots(self) -> Slots:
        """The slots in use, ascending."""
        return np.flatnonzero(self.live[: self.high_water]).astype(np.int32)


def distinct(slots: Slots) -> Slots:
    """Each of these slots once, ascending: faster than sorting or hashing them, because slots are dense."""
    mask = np.zeros(int(slots.max(initial=-1)) + 1, np.bool_)
    mask[slots] = True
    return np.flatnonzero(mask).astype(np.int32)


def doubled(capacity: int, needed: int) -> int:
    """The capacity doubled until it is enough."""
    while capacity < needed:
        capacity *= 2
    return capacity


def grown(array: np.ndarray[Any, Any], capacity: int, fill: Any = 0) -> np.ndarray[Any, Any]:
    """A copy with room for `capacity` elements (the first dimension), the new ones `fill`."""
    if len(array) >= capacity:
        return array
    shape = (capacity, *array.shape[1:])
    larger = np.zeros(shape, array.dtype) if fill == 0 else np.full(shape, fill, array.dtype)
    larger[: len(array)] = array
    return larger


def grow_in_place(owner: Any, name: str, capacity: int) -> None:
    """Make room for `capacity` elements in an array, an attribute of `owner` (or an item, if that is a dictionary); the
    new ones are zero.

    A large array lies in a mapping of its own, which has addresses for several times as many elements: nothing is
    copied when it grows, and memory is touched only when it is used. Who still looks at the array as it was before
    sees what is written to the one that has grown, as without that. When there are no addresses left the operating
    system moves the mapping elsewhere, or the array is copied, if somebody else looks at it."""
    array = owner[name] if isinstance(owner, dict) else getattr(owner, name)
    if len(array) >= capacity:
        return
    size_bytes, dtype = capacity * array.itemsize, array.dtype
    if size_bytes < MAPPED_BYTES:
        _set(owner, name, grown(array, capacity))
        return
    base = array.base
    mapping = base.obj if isinstance(base, memoryview) else base
    if isinstance(mapping, mmap.mmap):
        if size_bytes <= len(mapping):
            _set(owner, name, np.frombuffer(mapping, dtype, capacity))
            return
        length = len(array)
        _set(owner, name, None)
        del array, base
        try:
            mapping.resize(_ROOM * size_bytes)
        except (BufferError, OSError):  # frozen, for example
            array = np.frombuffer(mapping, dtype, length)
        else:
            _set(owner, name, np.frombuffer(mapping, dtype, capacity))
            return
    larger = np.frombuffer(_mapped(size_bytes), dtype, capacity)
    larger[: len(array)] = array
    _set(owner, name, larger)


def _mapped(size_bytes: int) -> mmap.mmap:
    """A mapping with room, where the system promises addresses beyond its memory."""
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    try:
        return mmap.mmap(-1, _ROOM * size_bytes, flags=flags)
    except OSError:
        return mmap.mmap(-1, size_bytes, flags=flags)


def _set(owner: Any, name: str, array: Any) -> None:
    if isinstance(owner, dict):
        owner[name] = array
    else:
        setattr(owner, name, array)
