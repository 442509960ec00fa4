"""A timer queue of which some keys, with all their timers, lie outside of memory.

Only each such key's earliest timer matters: when it is due, the key is loaded, its timers are here again, and they fire
in their turn. It does not know what loading is.
"""

from __future__ import annotations

from collections.abc import Callable

from snapline.taskmanager.state.adopted_state import NEVER_DUE
from snapline.taskmanager.state.outside.due_outside import DueOutside
from snapline.taskmanager.state.timer_queue import FiredTimers, TimerQueue


class SpilledTimerQueue(TimerQueue):
    """TimerQueue that asks for keys to be loaded before it hands out timers."""

    __slots__ = ("_load_due", "outside")

    def __init__(self, load_due: Callable[[DueOutside, int, int], None]) -> None:
        """`load_due(outside, timestamp, limit)`: load the keys with the first so many timers that are due outside."""
        super().__init__()
        self._load_due = load_due
        self.outside = DueOutside()
        """The earliest timers of keys outside; none of these is earlier than what they say."""

    def next_timestamp(self) -> int | None:
        """When the earliest timer is due; None without timers."""
        here, outside = super().next_timestamp(), self.outside.earliest
        if here is None or outside is None:
            return outside if here is None else here
        return min(here, outside)

    def advance(self, timestamp: int, limit: int) -> FiredTimers:
        """At most `limit` timers that are due at `timestamp`, in order. None of them goes before one that is still
        outside, so that there may be fewer although more are due."""
        earliest = self.outside.earliest
        if earliest is not None and earliest <= timestamp:
            self._load_due(self.outside, timestamp, limit)
            earliest = self.outside.earliest
            if (
                earliest is not None and earliest < NEVER_DUE - 1
            ):  # what stands for the end of all time holds nothing back
                timestamp = min(timestamp, earliest)
        return super().advance(timestamp, limit)
