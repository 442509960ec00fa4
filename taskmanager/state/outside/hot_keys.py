"""What is known of the keys in memory when there are more outside: which were loaded, changed, used lately, and which
go next.

One byte of flags per slot. Which keys go is decided as a clock does: the hand goes round, a key that was used since it
came by last is spared once. It does not know where keys go.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from snapline.dataflow.columnar.arrow_columns import BoolArray, BytesArray
from snapline.dataflow.columnar.kernel import I64, U64, I32s, I64s, RO_I32s, U8s, kernel
from snapline.taskmanager.state.index.slots import Slots, grow_in_place, grown

LOADED, CHANGED, USED, GOING = 1, 2, 4, 8
"""Flags of a key. Its row was looked for outside; it may differ from what lies outside; it was used since the hand came
by; it goes next."""


@kernel(I64(RO_I32s, U64, U8s, I32s))
def _mark(slots: Any, mark: Any, flags: Any, fresh: Any) -> int:
    """Set the bits; the slots that were not loaded, each once."""
    count = 0
    for row in range(slots.shape[0]):
        slot = slots[row]
        known = flags[slot]
        if known & np.uint8(1) == 0:
            fresh[count] = slot
            count += 1
        flags[slot] = known | np.uint8(mark)
    return count


@kernel(I64(U8s, I64, I64, I32s, I64s))
def _next_to_go(flags: Any, start: int, high: int, chosen: Any, hand: Any) -> int:
    """Let the hand go round, twice at the most, until enough are chosen."""
    count = 0
    for step in range(2 * high):
        if count == chosen.shape[0]:
            break
        slot = start + step
        while slot >= high:
            slot -= high
        known = flags[slot]
        if known & np.uint8(LOADED | USED | GOING) == LOADED:
            chosen[count] = slot
            count += 1
            flags[slot] = known | np.uint8(GOING)
        flags[slot] &= np.uint8(255 - USED)
        hand[0] = slot + 1
    return count


class HotKeys:
    """Flags and numbers by slot, and the hand of the clock."""

    __slots__ = ("_hand", "_outside", "flags")

    def __init__(self, capacity: int) -> None:
        self.flags: BytesArray = np.zeros(capacity, np.uint8)
        self._outside: Slots = np.full(capacity, -1, np.int32)
        """The number of a key that has a row outside, perhaps an old one; else -1."""
        self._hand = 0

    def grow(self, capacity: int) -> None:
        """Make room for slots below `capacity`."""
        grow_in_place(self, "flags", capacity)
        self._outside = grown(self._outside, capacity, -1)

    def use(self, slots: Slots, *, changes: bool) -> Slots:
        """These are used; returns those that were not loaded yet, each once. From now on they count as loaded."""
        fresh = np.empty(len(slots), np.int32)
        mark = LOADED | USED | (CHANGED if changes else 0)
        return fresh[: _mark(slots, np.uint64(mark), self.flags, fresh)]

    def have(self, slots: Slots, flag: int) -> BoolArray:
        """Which of these slots have the flag."""
        found: BoolArray = (self.flags[slots] & flag) != 0
        return found

    def add(self, slots: Slots, flag: int) -> None:
        """Set a flag of the slots."""
        self.flags[slots] |= np.uint8(flag)

    def forget(self, slots: Slots) -> None:
        """These slots belong to no key any more."""
        self.flags[slots] = 0
        self._outside[slots] = -1

    def lie_outside(self, slots: Slots, numbers: Slots) -> None:
        """There are rows of these keys outside, under these numbers."""
        self._outside[slots] = numbers

    def outside(self, slots: Slots) -> Slots:
        """The numbers of these keys outside, -1 for one without a row there."""
        return self._outside[slots]

    def stored(self, high_water: int) -> BoolArray:
        """For each slot below, whether there is a row outside."""
        found: BoolArray = self._outside[:high_water] >= 0
        return found

    def next_to_go(self, count: int, high_water: int) -> Slots:
        """So many loaded slots, or all: first those that were not used since the hand came by."""
        chosen, hand = np.empty(count, np.int32), np.zeros(1, np.int64)
        chosen = chosen[
            : _next_to_go(self.flags, self._hand if self._hand < high_water else 0, high_water, chosen, hand)
        ]
        self._hand = int(hand[0])
        return chosen
