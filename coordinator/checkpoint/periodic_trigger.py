"""When the next periodic checkpoint is due.

Decides start, stop and the next due time, always with one timer: a timer with an equal key replaces its predecessor.
Fixed rate, as in Flink's ScheduledTrigger: the next is due one interval after the last was, not after it was served;
ticks that were missed (the process slept) are left out instead of fired in a burst.
"""

from __future__ import annotations

from snapline.coordinator.checkpoint.effects import PeriodicTriggerKey
from snapline.dataflow.ids import JobID
from snapline.runtime.cores.machine import CancelTimer, StartTimer


class PeriodicTrigger:
    """The timer of periodic checkpoints."""

    def __init__(self, job_id: JobID, interval_ms: int) -> None:
        self._key = PeriodicTriggerKey(job_id)
        self._interval_ms = interval_ms
        self._due_ms: int | None = None

    @property
    def is_started(self) -> bool:
        """Whether periodic checkpoints are on."""
        return self._due_ms is not None

    def start(self, now_ms: int, delay_ms: int) -> StartTimer:
        """Switch the periodic trigger on, or begin a new period when it is on."""
        self._due_ms = now_ms + delay_ms
        return StartTimer(self._key, self._due_ms)

    def stop(self) -> list[CancelTimer]:
        """Off; nothing to do when it was off."""
        if self._due_ms is None:
            return []
        self._due_ms = None
        return [CancelTimer(self._key)]

    def fired(self, now_ms: int) -> StartTimer | None:
        """The timer is due; returns the next one, or None when periodic checkpoints are off."""
        if self._due_ms is None:
            return None
        self._due_ms += self._interval_ms
        if self._due_ms <= now_ms:
            missed = (now_ms - self._due_ms) // self._interval_ms + 1
            self._due_ms += missed * self._interval_ms
        return StartTimer(self._key, self._due_ms)

    def reschedule(self, now_ms: int, delay_ms: int) -> list[StartTimer]:
        """The next one is due after `delay_ms` instead, and all later ones count from there."""
        return [] if self._due_ms is None else [self.start(now_ms, delay_ms)]
