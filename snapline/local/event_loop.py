"""The loop of a local run: what was asked for, timers that are due, and one turn for each task that can go on, on one
thread.

Takes the place of actors' threads, the timer thread and tasks' threads; it is the simulator's world with a real clock.
Whoever runs it calls `turn`, so that user functions run on the thread that called `execute`: a breakpoint, a profiler
and Ctrl-C find them there. Knows nothing of jobs. Anything may be asked for from any thread.
"""

from __future__ import annotations

import heapq
import itertools
import threading
from collections import deque
from collections.abc import Callable
from typing import Any

from snapline.dataflow.ids import JobID
from snapline.runtime.clock import Clock
from snapline.runtime.timers import ScheduledTimer, TimerScheduler
from snapline.taskmanager.task.stream_task import ProgressKind, StreamTask

QUANTUM_MS = 5
"""How long a task may work before the others have their turn."""
LONGEST_WAIT_MS = 60_000


class EventLoop(TimerScheduler):
    """One thread's worth of actors, timers and tasks."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock)
        self.clock = clock
        self._called: deque[Callable[[], None]] = deque()
        self._ready: deque[LoopTask] = deque()
        self._bell = threading.Event()
        self._guard = threading.Lock()
        self._due: list[tuple[int, int, ScheduledTimer]] = []
        self._numbers = itertools.count()
        self.stepped: StreamTask | None = None
        """The task whose code runs now; after an exception, whose code it left."""
        self.is_waiting = False
        """Nothing runs: it can be interrupted."""

    # --- from any thread ----------------------------------------------------------------------------------------------

    def call_soon(self, action: Callable[[], None]) -> None:
        """Call it in one of the next turns, in order."""
        self._called.append(action)
        self._bell.set()

    def schedule(self, at_ms: int, callback: Callable[[], None]) -> ScheduledTimer:
        """Call it in the first turn at or after `at_ms`, unless it is cancelled before."""
        timer = ScheduledTimer(self, at_ms, callback)
        with self._guard:
            heapq.heappush(self._due, (at_ms, next(self._numbers), timer))
        self._bell.set()
        return timer

    def forget(self, timer: ScheduledTimer) -> None:
        """Cancel the timer, as `timer.cancel()` does."""
        timer.cancelled = True

    def make_ready(self, task: LoopTask) -> None:
        """Give the task a turn."""
        self._ready.append(task)
        self._bell.set()

    def ring(self) -> None:
        """End the wait of a turn."""
        self._bell.set()

    @property
    def is_idle(self) -> bool:
        """Whether nothing is to be done but what timers bring."""
        return not self._called and not self._ready

    # --- on the loop's thread -----------------------------------------------------------------------------------------

    def turn(self, wait_ms: int = LONGEST_WAIT_MS) -> None:
        """Do what is there to do; when that is nothing, wait for it, at most so long."""
        self._bell.clear()
        for _ in range(len(self._called)):
            self._called.popleft()()
        while (timer := self._take_due()) is not None:
            timer.cancelled = True
            timer.callback()
        for _ in range(len(self._ready)):
            self._step(self._ready.popleft())
        if self._called or self._ready:
            return
        with self._guard:
            while self._due and self._due[0][2].cancelled:
                heapq.heappop(self._due)
            next_ms = self._due[0][0] - self.clock.now_ms() if self._due else LONGEST_WAIT_MS
        self.is_waiting = True
        try:
            self._bell.wait(max(0, min(wait_ms, next_ms)) / 1000)
        finally:
            self.is_waiting = False

    def _take_due(self) -> ScheduledTimer | None:
        now_ms = self.clock.now_ms()
        with self._guard:
            while self._due:
                at_ms, _, timer = self._due[0]
                if not timer.cancelled and at_ms > now_ms:
                    return None
                heapq.heappop(self._due)
                if not timer.cancelled:
                    return timer
        return None

    def _step(self, ready: LoopTask) -> None:
        task = ready.begins()
        if task is None:
            return
        self.stepped = task
        began_ms = now_ms = self.clock.now_ms()
        while True:
            progress = task.step(now_ms)
            if progress.kind is not ProgressKind.WORKED:
                break
            now_ms = self.clock.now_ms()
            if now_ms - began_ms >= QUANTUM_MS or self._called:
                break
        self.stepped = None
        if progress.kind is ProgressKind.WORKED:
            ready.wake_up()
        elif progress.kind is not ProgressKind.FINISHED and progress.wake_at_ms is not None:
            ready.wake_at(progress.wake_at_ms)


class LoopTask:
    """A task that has its turns on the loop; the face of `TaskThread`. Made before its task, whose environment needs
    `wake_up`."""

    def __init__(self, name: str, loop: EventLoop) -> None:
        self.name = name
        self.task: StreamTask | None = None
        self._loop = loop
        self._is_ready = False
        self._timer: ScheduledTimer | None = None

    def start(self, task: StreamTask) -> None:
        """Run the task to its end."""
        self.task = task
        self.wake_up()

    def wake_up(self) -> None:
        """Something has come; from any thread, and often."""
        if not self._is_ready:
            self._is_ready = True
            self._loop.make_ready(self)

    def wake_at(self, at_ms: int) -> None:
        """Give it a turn then, if nothing comes before."""
        self._timer = self._loop.schedule(at_ms, self.wake_up)

    def begins(self) -> StreamTask | None:
        """Note that a turn begins: what comes from now on asks for another one."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._is_ready = False
        return self.task

    def join(self, timeout_seconds: float) -> bool:
        """Let it take its mail, which says that it is to end; a task that was interrupted in the middle is given up."""
        del timeout_seconds
        if self.task is not None and self.task is not self._loop.stepped:
            self.task.step(self._loop.clock.now_ms())
        if self.task is not None:
            self.task.abandon(InterruptedError("the local run ends"))
        return True


class LoopWorkers:
    """Slow work on the loop itself: snapshots are encoded and written between the turns of tasks."""

    def __init__(self, loop: EventLoop) -> None:
        self._loop = loop

    def submit(self, _job_id: JobID, work: Callable[[], None]) -> None:
        """Call it in one of the next turns."""
        self._loop.call_soon(work)

    def close(self) -> None:
        """Nothing is left to be done when the loop has ended."""


class LoopIo:
    """The coordinator's slow work on the loop itself (`snapline.coordinator.io.IoExecutor`)."""

    def __init__(self, loop: EventLoop) -> None:
        self._loop = loop

    def submit(
        self,
        name: str,
        work: Callable[[], Any],
        tell: Callable[[Any], object],
        failed: Callable[[BaseException], Any],
        limit_ms: int = 0,
    ) -> None:
        """Do it in one of the next turns and tell what it returns, or what `failed` makes of the exception; None is not
        told."""
        del name, limit_ms

        def perform() -> None:
            try:
                answer = work()
            except Exception as error:
                answer = failed(error)
            if answer is not None:
                tell(answer)

        self._loop.call_soon(perform)

    def close(self, timeout_seconds: float = 0.0) -> None:
        """Return at once, because no work is left behind on this loop."""
