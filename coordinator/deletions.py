"""Deletions that nobody waits for: tried again when the storage is away for a moment, and then given up.

What is left behind costs space, not correctness. Decides how often and when; does not know what is deleted. Mirrors
Flink's CheckpointsCleaner and the retries of DispatcherResourceCleaner.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from snapline.coordinator.ha.high_availability import LeadershipLost
from snapline.coordinator.io import IoLane
from snapline.runtime.clock import Clock

DELETE_PAUSES_MS = (1_000, 2_000, 4_000)
"""Before what could not be deleted is tried again, and again; then it stays."""


class Timers(Protocol):
    """Calls back at a given time (implemented by TimerScheduler)."""

    def schedule(self, at_ms: int, callback: Callable[[], None]) -> object:
        """Call back at `at_ms`, in milliseconds since the epoch."""
        ...


class Deletions:
    """Deletes files, and tries again later when the storage does not answer. Thread-safe."""

    def __init__(self, io: IoLane, timers: Timers, clock: Clock) -> None:
        self._io = io
        self._timers = timers
        self._clock = clock

    def delete_until_gone(self, name: str, work: Callable[[], None], failures: int = 0) -> None:
        """Do the work; storage that is away for a moment must not make it stay for ever. `work` may be done several
        times."""
        self._io.submit(name, work, lambda _: None, lambda error: self.retry_later(name, work, error, failures))

    def retry_later(self, name: str, work: Callable[[], None], error: BaseException, failures: int = 0) -> None:
        """Try the work, which failed with this error after so many failures before, again in a while."""
        if failures < len(DELETE_PAUSES_MS) and not isinstance(error, LeadershipLost):
            at_ms = self._clock.now_ms() + DELETE_PAUSES_MS[failures]
            self._timers.schedule(at_ms, lambda: self.delete_until_gone(name, work, failures + 1))
