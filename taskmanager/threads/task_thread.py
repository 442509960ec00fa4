"""The thread of one task: calls `StreamTask.step` while there is work, waits while there is none.

Decides only how long to wait: until the time that the task named, or until somebody calls `wake_up`; and it works in
turns with the other tasks of its process (`snapline.taskmanager.threads.turns`). Whatever `step` lets out is a defect
of ours: the task is abandoned, which reports FAILED. Mirrors the executing thread of Flink's Task.
"""

from __future__ import annotations

import threading
from contextvars import copy_context

from snapline.runtime.clock import Clock
from snapline.taskmanager.task.stream_task import WORKED, Progress, ProgressKind, StreamTask
from snapline.taskmanager.threads.turns import QUANTUM_MS, Turn, Turns

LONGEST_WAIT_SECONDS = 60.0


class Bell:
    """Rung by any thread, heard by one. A lock that is free while it rings: an Event makes a lock for each wait, and
    takes one more for each ring."""

    __slots__ = ("_silence",)

    def __init__(self) -> None:
        self._silence = threading.Lock()
        self._silence.acquire()

    def ring(self) -> None:
        """Wake who waits, or who will."""
        if self._silence.locked():
            try:
                self._silence.release()
            except RuntimeError:  # another thread has rung just now
                pass

    def clear(self) -> None:
        """Forget that it was rung."""
        self._silence.acquire(blocking=False)

    def wait(self, seconds: float) -> None:
        """Until it is rung, and no longer than this."""
        self._silence.acquire(timeout=seconds)


class TaskThread:
    """One task, one thread. Made before its task, whose environment needs `wake_up`."""

    def __init__(self, name: str, clock: Clock, turns: Turns) -> None:
        self.name = name
        self.task: StreamTask | None = None
        self._clock = clock
        self._turns = turns
        self._bell = Bell()
        self._thread = threading.Thread(target=copy_context().run, args=(self._run,), name=name, daemon=True)

    @property
    def thread_id(self) -> int | None:
        """Identifier of the thread, None before it has started."""
        return self._thread.ident

    def start(self, task: StreamTask) -> None:
        """Run the task to its end."""
        self.task = task
        self._thread.start()

    def wake_up(self) -> None:
        """Something has come; from any thread, and often."""
        self._bell.ring()

    def join(self, timeout_seconds: float) -> bool:
        """Wait for the end; whether it has come."""
        if self._thread.ident is not None:
            self._thread.join(timeout_seconds)
        return not self._thread.is_alive()

    def _run(self) -> None:
        task, clock, bell = self.task, self._clock, self._bell
        if task is None:
            return
        turn = Turn()
        try:
            while True:
                progress = self._work(task, turn)
                if progress.kind is ProgressKind.WORKED:
                    continue
                if progress.kind is ProgressKind.FINISHED:
                    return
                wait_seconds = LONGEST_WAIT_SECONDS
                if progress.wake_at_ms is not None:
                    wait_seconds = min(wait_seconds, clock.seconds_until(progress.wake_at_ms))
                if wait_seconds > 0:
                    bell.wait(wait_seconds)
        except BaseException as error:
            task.abandon(error)
        finally:
            self._turns.leave(turn)

    def _work(self, task: StreamTask, turn: Turn) -> Progress:
        """One turn: until nothing is left to do, or others have waited long enough."""
        clock, bell, turns = self._clock, self._bell, self._turns
        turns.begin(turn)
        try:
            began_ms: int | None = None
            while True:
                bell.clear()
                now_ms = clock.now_ms()
                began_ms = now_ms if began_ms is None else began_ms
                if now_ms - began_ms >= QUANTUM_MS and turns.somebody_waits:
                    return WORKED
                progress = task.step(now_ms)
                if progress.kind is not ProgressKind.WORKED:
                    return progress
        finally:
            turns.end(turn)
