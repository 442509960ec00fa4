"""What is known of the keys in memory when there are more outside: which were loaded, changed, used lately, and which
go next.

One byte of flags per slot. Which keys go is decided as a clock does: the hand goes round, a key that was used since it
came by last is spared once. It does not know where keys go.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from snapline.dataflow.columnar.arrow_columns import BoolArray, BytesArray
from snapline.dataflow.columnar.kernel import I64, U64, I32s, RO_I32s, U8s, kernel
from snapline.taskmanager.state.index.slots import Slots, grow_in_place

LOADED, CHANGED, USED, STORED = 1, 2, 4, 8
"""Flags of a key. Its row was looked for outside; it may differ from what lies outside; it was used since the hand came
by; outside there is a row of it, perhaps an old one."""


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


class HotKeys:
    """Flags by slot, and the hand of the clock."""

    __slots__ = ("_hand", "flags")

    def __init__(self, capacity: int) -> None:
        self.flags: BytesArray = np.zeros(capacity, np.uint8)
        self._hand = 0

    def grow(self, capacity: int) -> None:
        """Make room for slots below `capacity`."""
        grow_in_place(self, "flags", capacity)

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

    def stored(self, high_water: int) -> BoolArray:
        """For each slot below, whether there is a row outside."""
        found: BoolArray = (self.flags[:high_water] & STORED) != 0
        return found

    def next_to_go(self, count: int, high_water: int) -> Slots:
        """So many loaded slots, or all: first those that were not used since the hand came by."""
        ring = np.concatenate([np.arange(self._hand, high_water), np.arange(min(self._hand, high_water))]).astype(
            np.int32
        )
        seen = self.flags[ring]
        chosen = ring[(seen & (LOADED | USED)) == LOADED][:count]
        if len(chosen) == count:
            end = int(np.flatnonzero(ring == chosen[-1])[0]) + 1
            self.flags[ring[:end]] &= np.uint8(255 - USED)
            self._hand = int(chosen[-1]) + 1
            return chosen
        spared = ring[(seen & (LOADED | USED)) == (LOADED | USED)]
        self.flags[ring] &= np.uint8(255 - USED)
        return np.concatenate([chosen, spared[: count - len(chosen)]])
