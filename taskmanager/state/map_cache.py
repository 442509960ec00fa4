"""What a MapState knows of maps as Python objects: pairs by slot, some of a map or all, a bounded number of them.

Holds what was read and what is to be written; decides what is forgotten. Knows no columns: MapState keeps both equal.
"""

from __future__ import annotations

from typing import Any

from snapline.taskmanager.state.index.slots import Slots

KNOWN_PAIRS = 1 << 19
"""Pairs that are kept as Python objects between batches, per state and subtask: some 80 MB."""


class KnownMap:
    """What is known of one key's map: pairs, and whether these are all."""

    __slots__ = ("ahead", "changed", "cleared", "complete", "counted", "lookups", "pairs")

    def __init__(self, pairs: dict[Any, Any], *, complete: bool, ahead: bool = False) -> None:
        self.pairs = pairs
        self.complete = complete
        self.changed: dict[Any, None] = {}
        self.cleared = False
        self.lookups = 0
        """Pairs that were looked up alone."""
        self.ahead = ahead
        """Loaded, and not asked for yet."""
        self.counted = 0
        """The share of this map in `KnownMaps.size`, the pairs that are held in memory."""


class KnownMaps:
    """Maps by slot that are kept between batches: two generations; what is not used while one fills up is forgotten."""

    __slots__ = ("_old", "_young", "size")

    def __init__(self) -> None:
        self._young: dict[int, KnownMap] = {}
        self._old: dict[int, KnownMap] = {}
        self.size = 0
        """Pairs of the young generation."""

    def find(self, slot: int) -> KnownMap | None:
        known = self._young.get(slot)
        if known is None and self._old:
            known = self._old.pop(slot, None)
            if known is not None and len(known.pairs) > KNOWN_PAIRS // 4:
                return None  # it alone would fill the memory, in the end: begin again with those that are in use
            if known is not None:
                known.counted = 0
                self._young[slot] = known
        return known

    def add(self, slot: int, known: KnownMap) -> None:
        self._young[slot] = known

    def count(self, known: KnownMap) -> None:
        """Count the pairs of a map anew, because they have changed."""
        size = len(known.pairs) + 1
        self.size += size - known.counted
        known.counted = size

    def age(self) -> None:
        """Forget what was not used for long, if there is too much."""
        if self.size > KNOWN_PAIRS // 2:
            self._young, self._old, self.size = {}, self._young, 0

    def forget(self, slots: Slots) -> None:
        if len(slots) > len(self._young) + len(self._old):
            self.clear()
        for slot in slots.tolist():
            self._old.pop(slot, None)
            gone = self._young.pop(slot, None)
            if gone is not None:
                self.size -= gone.counted

    def clear(self) -> None:
        self._young, self._old, self.size = {}, {}, 0
