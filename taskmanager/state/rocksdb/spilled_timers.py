"""A timer queue of which some keys, with all their timers, lie outside of memory.

Only each such key's earliest timer matters: when it is due, the key is loaded, its timers are here again, and they fire
in their turn. It does not know what loading is.
"""

from __future__ import annotations

from collections.abc import Callable

from snapline.taskmanager.state.timer_queue import FiredTimers, TimerQueue


class SpilledTimerQueue(TimerQueue):
    """TimerQueue that asks for keys to be loaded before it hands out timers."""

    __slots__ = ("_load_due", "earliest_outside")

    def __init__(self, load_due: Callable[[int, int], None]) -> None:
        """`load_due(timestamp, limit)`: load the keys with the first so many timers that are due outside."""
        super().__init__()
        self._load_due = load_due
        self.earliest_outside: int | None = None
        """No timer outside is earlier than this; None: there is none."""

    def expect(self, timestamp: int) -> None:
        """A timer with this time has left."""
        known = self.earliest_outside
        self.earliest_outside = timestamp if known is None else min(timestamp, known)

    def next_timestamp(self) -> int | None:
        """When the earliest timer is due; None without timers."""
        here, outside = super().next_timestamp(), self.earliest_outside
        if here is None or outside is None:
            return outside if here is None else here
        return min(here, outside)

    def advance(self, timestamp: int, limit: int) -> FiredTimers:
        """At most `limit` timers that are due at `timestamp`, in order. Fewer only when no more are due."""
        if self.earliest_outside is not None and self.earliest_outside <= timestamp:
            self._load_due(timestamp, limit)
        return super().advance(timestamp, limit)
