"""Timers of the checkpointing cores of one task, by key.

A second start with an equal key replaces the first. Due ones fire in the order of their time, then of their start. It
does not know a clock. Mirrors the TimerService that Flink's barrier handlers register delayed actions with.
"""

from __future__ import annotations

from collections.abc import Hashable


class TaskTimers:
    """A handful of timers; a heap would be slower."""

    def __init__(self) -> None:
        self._at_ms: dict[Hashable, int] = {}

    def start(self, key: Hashable, at_ms: int) -> None:
        """Fire at this time, and at no other that was set before."""
        self._at_ms.pop(key, None)
        self._at_ms[key] = at_ms

    def cancel(self, key: Hashable) -> None:
        """Forget the timer, if there is one."""
        self._at_ms.pop(key, None)

    def take_due(self, now_ms: int) -> Hashable | None:
        """The key of the next due timer, taken off."""
        if not self._at_ms:
            return None
        key = min(self._at_ms, key=self._at_ms.__getitem__)
        if self._at_ms[key] > now_ms:
            return None
        del self._at_ms[key]
        return key

    @property
    def next_at_ms(self) -> int | None:
        """When the next timer is due."""
        return min(self._at_ms.values()) if self._at_ms else None
