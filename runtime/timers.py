"""The timer service: one thread per process that calls back when something is due.

Decides nothing: callbacks only hand a message to an actor or a loop (`tell`, `call_soon_threadsafe`) and return at
once. A callback that raises is reported as what ends a thread is, and ends nothing. A cancelled timer may still be on
its way when it is cancelled; `TimerTable` is the owner's side that recognises those, so that a core sees `TimerFired`
exactly for the timers that it has running. pykka has no timers of its own.
"""

from __future__ import annotations

import heapq
import itertools
import sys
import threading
from collections.abc import Callable, Hashable
from dataclasses import dataclass

from snapline.runtime.clock import Clock
from snapline.runtime.cores.machine import TimerFired

IDLE_WAIT_SECONDS = 3600.0
"""How long the thread sleeps when nothing is due; any new timer wakes it."""

MIN_CANCELLED_TO_COMPACT = 64
"""Cancelled timers stay in the heap until they are due, or until they are more than half of it and more than this."""


class ScheduledTimer:
    """One callback that waits for its time. `cancel` may be called from any thread, more than once."""

    __slots__ = ("_service", "at_ms", "callback", "cancelled")

    def __init__(self, service: TimerScheduler, at_ms: int, callback: Callable[[], None]) -> None:
        self._service = service
        self.at_ms = at_ms
        self.callback = callback
        self.cancelled = False

    def cancel(self) -> None:
        """Do not call back, unless that has begun already."""
        self._service.forget(self)


class TimerScheduler:
    """Calls back at a time of `clock`, in order of due time, then of scheduling. One daemon thread, started at first
    use."""

    def __init__(self, clock: Clock, name: str = "snapline-timers") -> None:
        self._clock = clock
        self._name = name
        self._condition = threading.Condition()
        self._heap: list[tuple[int, int, ScheduledTimer]] = []
        self._sequence = itertools.count()
        self._cancelled = 0
        self._closed = False
        self._thread: threading.Thread | None = None

    def schedule(self, at_ms: int, callback: Callable[[], None]) -> ScheduledTimer:
        """Call `callback` on the timer thread at `at_ms`, at once when that has passed. Ignored after `close`."""
        timer = ScheduledTimer(self, at_ms, callback)
        with self._condition:
            if self._closed:
                timer.cancelled = True
                return timer
            heapq.heappush(self._heap, (at_ms, next(self._sequence), timer))
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                self._thread.start()
            elif self._heap[0][2] is timer:
                self._condition.notify()
        return timer

    def forget(self, timer: ScheduledTimer) -> None:
        """Cancel the timer, as `timer.cancel()` does."""
        with self._condition:
            if timer.cancelled:
                return
            timer.cancelled = True
            self._cancelled += 1
            if self._cancelled > MIN_CANCELLED_TO_COMPACT and self._cancelled > len(self._heap) // 2:
                self._heap = [entry for entry in self._heap if not entry[2].cancelled]
                heapq.heapify(self._heap)
                self._cancelled = 0

    def close(self) -> None:
        """Forget all timers and end the thread. Idempotent."""
        with self._condition:
            self._closed = True
            self._heap.clear()
            self._condition.notify()
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    def _run(self) -> None:
        while True:
            with self._condition:
                due = self._next_due()
                if due is None:
                    return
            if not due.cancelled:
                due.cancelled = True  # from here on it is not in the heap
                try:
                    due.callback()
                except Exception:  # a defect of ours, which must not take the heartbeats of the whole process with it
                    threading.excepthook(threading.ExceptHookArgs((*sys.exc_info(), threading.current_thread())))

    def _next_due(self) -> ScheduledTimer | None:
        """Wait for the next timer that is due; None: closed."""
        while not self._closed:
            if not self._heap:
                self._condition.wait(IDLE_WAIT_SECONDS)
                continue
            at_ms, _, timer = self._heap[0]
            if timer.cancelled:
                heapq.heappop(self._heap)
                self._cancelled = max(0, self._cancelled - 1)
                continue
            wait_ms = at_ms - self._clock.now_ms()
            if wait_ms <= 0:
                heapq.heappop(self._heap)
                return timer
            self._condition.wait(min(wait_ms / 1000, IDLE_WAIT_SECONDS))
        return None


@dataclass(frozen=True, slots=True)
class TimerDue:
    """What the timer thread tells the owner; `TimerTable.fired` says whether it still counts."""

    key: Hashable
    generation: int


class TimerTable:
    """The timers of one core, used on its shell's thread only."""

    def __init__(self, service: TimerScheduler, tell: Callable[[TimerDue], None]) -> None:
        self._service = service
        self._tell = tell
        self._running: dict[Hashable, tuple[int, ScheduledTimer]] = {}
        self._generation = 0

    def start(self, key: Hashable, at_ms: int) -> None:
        """Start a timer, in place of a running one with an equal key."""
        self.cancel(key)
        self._generation += 1
        due = TimerDue(key, self._generation)
        tell = self._tell
        self._running[key] = (self._generation, self._service.schedule(at_ms, lambda: tell(due)))

    def cancel(self, key: Hashable) -> None:
        """Forget a timer, if there is one."""
        running = self._running.pop(key, None)
        if running is not None:
            running[1].cancel()

    def fired(self, due: TimerDue) -> TimerFired | None:
        """The event for the core; None when the timer was cancelled or replaced meanwhile."""
        running = self._running.get(due.key)
        if running is None or running[0] != due.generation:
            return None
        del self._running[due.key]
        return TimerFired(due.key)

    def close(self) -> None:
        """Cancel all timers of the table."""
        for key in list(self._running):
            self.cancel(key)

    def __len__(self) -> int:
        """Return how many timers are running."""
        return len(self._running)
