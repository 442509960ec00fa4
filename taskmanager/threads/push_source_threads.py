"""Threads for push-style sources: the function runs beside the task, and the checkpoint lock keeps the two apart.

`ThreadedPushSource` is production's: a daemon thread. `TurnTakingPushSource` is the simulator's: the function's thread
and the caller's never run at the same time, and each turn ends at the same point in every run, so that a run can be
replayed. Mirrors the LegacySourceFunctionThread of Flink's SourceStreamTask.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from contextvars import copy_context
from typing import Any

JOIN_TIMEOUT_SECONDS = 5.0
"""How long the end of a task waits for a function that was cancelled. After that its thread is left to itself: it can
emit nothing any more."""


class _RunOnThread:
    """What both have in common: one daemon thread, and what it raised."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._thread: threading.Thread | None = None
        self._failure: BaseException | None = None
        self._done = False

    def _start(self, target: Callable[[], None]) -> None:
        self._thread = threading.Thread(target=copy_context().run, args=(target,), name=self._name, daemon=True)
        self._thread.start()

    def _run(self, run: Callable[[], None]) -> None:
        try:
            run()
        except BaseException as error:
            self._failure = error
        finally:
            self._done = True

    def join(self) -> None:
        """Wait a little for the end of the function."""
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(JOIN_TIMEOUT_SECONDS)

    @property
    def is_done(self) -> bool:
        """Whether the function has ended."""
        return self._done

    @property
    def failure(self) -> BaseException | None:
        """Return what the function raised, None for nothing."""
        return self._failure


class ThreadedPushSource(_RunOnThread):
    """PushSourceRunner of production. `wake_up` makes the task loop run again soon."""

    def __init__(self, name: str, wake_up: Callable[[], None]) -> None:
        super().__init__(name)
        self._wake_up = wake_up
        self._lock = threading.RLock()
        self._room = threading.Condition(threading.Lock())
        self._stopped = False

    @property
    def checkpoint_lock(self) -> AbstractContextManager[Any]:
        """Return the checkpoint lock as a context manager; it is reentrant."""
        return self._lock

    def start(self, run: Callable[[], None]) -> None:
        """Start the function's `run` on a thread of its own."""

        def target() -> None:
            self._run(run)
            self._wake_up()

        self._start(target)

    def give_turn(self) -> None:
        """Nothing: the thread runs by itself."""

    def wait_for_room(self, has_room: Callable[[], bool]) -> bool:
        """Block the function's thread until there is room; False when it is to end."""
        with self._room:
            self._room.wait_for(lambda: self._stopped or has_room())
        return not self._stopped

    def notify_room(self) -> None:
        """Wake the function's thread, because the task has taken rows."""
        with self._room:
            self._room.notify_all()

    def pushed(self) -> None:
        """Wake the task, because the function has pushed rows."""
        self._wake_up()

    def tell(self, cancel: Callable[[], None]) -> None:
        """On a thread of its own. What it raises is reported as what ends a thread is."""
        with contextlib.suppress(RuntimeError):  # the host has no thread left, and the function hears nothing
            threading.Thread(target=cancel, name=f"{self._name} cancel", daemon=True).start()

    def stop(self) -> None:
        """Let nothing wait any longer."""
        with self._room:
            self._stopped = True
            self._room.notify_all()


class TurnTakingPushSource(_RunOnThread):
    """PushSourceRunner of the simulator: `give_turn` lets the function run until it has emitted once, outside of the
    lock, or has ended. A function that waits for anything but room (sleeps, reads a socket) would make its turn
    last."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self._lock = _DepthLock(self._end_turn_after_emission)
        self._task_turn = threading.Semaphore(0)
        self._function_turn = threading.Semaphore(0)
        self._stopped = False
        self._emitted = False

    @property
    def checkpoint_lock(self) -> AbstractContextManager[Any]:
        """Only counted: the two sides never run at the same time."""
        return self._lock

    def start(self, run: Callable[[], None]) -> None:
        """Begin, with the first turn at the first `give_turn`."""

        def target() -> None:
            self._function_turn.acquire()
            if not self._stopped:
                self._run(run)
            self._done = True
            self._task_turn.release()

        self._start(target)

    def give_turn(self) -> None:
        """Let the function go on until it has emitted, or has ended."""
        if self._thread is not None and not self._done:
            self._function_turn.release()
            self._task_turn.acquire()

    def wait_for_room(self, has_room: Callable[[], bool]) -> bool:
        """End the turn, as often as there is no room."""
        while not self._stopped and not has_room():
            self._end_turn()
        return not self._stopped

    def notify_room(self) -> None:
        """Nothing: who waits looks again in its next turn."""

    def pushed(self) -> None:
        """The turn ends as soon as the function does not hold the lock."""
        self._emitted = True
        self._end_turn_after_emission()

    def _end_turn_after_emission(self) -> None:
        if self._emitted and self._lock.depth == 0 and threading.current_thread() is self._thread:
            self._emitted = False
            self._end_turn()

    def _end_turn(self) -> None:
        self._task_turn.release()
        self._function_turn.acquire()

    def tell(self, cancel: Callable[[], None]) -> None:
        """At once. What it raises is reported as what ends a thread is."""
        try:
            cancel()
        except Exception:
            threading.excepthook(threading.ExceptHookArgs((*sys.exc_info(), threading.current_thread())))

    def stop(self) -> None:
        """Let the function run to its end, with nothing to wait for."""
        self._stopped = True

    def join(self) -> None:
        """Give turns until it has ended, but not for ever."""
        for _ in range(MAX_LAST_TURNS):
            if self._thread is None or self._done:
                break
            self.give_turn()
        super().join()


MAX_LAST_TURNS = 10_000


class _DepthLock(AbstractContextManager[None]):
    """Counts, and calls back when it is free again."""

    def __init__(self, on_free: Callable[[], None]) -> None:
        self.depth = 0
        self._on_free = on_free

    def __enter__(self) -> None:
        self.depth += 1

    def __exit__(self, *exc: object) -> None:
        self.depth -= 1
        if self.depth == 0:
            self._on_free()
