"""Calls of an AsyncFunction in simulated processes: each is answered after a while, in any order (EventLoopCalls).

The function's coroutine is run when its answer is due, in one go: what it waits for, `asyncio.sleep` say, takes no real
time. It may not wait for the outside world.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import snapline.taskmanager.threads.async_calls
import snapline.taskmanager.threads.background_call
from snapline.dataflow.api.function_contexts import Row
from snapline.dataflow.api.functions import AsyncFunction
from snapline.runtime.cores.machine import check
from snapline.testing.simulated.world import Process, World

LONGEST_CALL_MS = 40
LONGEST_WAIT_SECONDS = 3_600.0
"""How long a coroutine waits by its own clock, which jumps: who waits for longer waits for the outside world."""


class _JumpingSelector(selectors.DefaultSelector):
    """Does not wait: the clock of its loop jumps instead."""

    def __init__(self) -> None:
        super().__init__()
        self.waited_seconds = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if not ready and timeout is not None:
            self.waited_seconds += timeout
        return ready


class _JumpingLoop(asyncio.SelectorEventLoop):
    """Runs coroutines in no time."""

    def __init__(self) -> None:
        self._jumping = _JumpingSelector()
        super().__init__(self._jumping)

    def time(self) -> float:
        return self._jumping.waited_seconds


class _Coroutines:
    """Runs the coroutines of one simulated world, one after the other."""

    def __init__(self) -> None:
        self._loop: _JumpingLoop | None = None

    def run(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        """Return what it returns. Raises what it raises, and TimeoutError."""
        if self._loop is None:
            self._loop = _JumpingLoop()
        return self._loop.run_until_complete(asyncio.wait_for(coroutine, LONGEST_WAIT_SECONDS))

    def close(self) -> None:
        if self._loop is not None:
            self._loop.close()


class SimulatedCalls:
    """The calls of one task, answered in simulated time."""

    def __init__(
        self, process: Process, function: AsyncFunction, wake_up: Callable[[], None], coroutines: _Coroutines
    ) -> None:
        self._process = process
        self._rng = process.world.random(f"calls {process.world.number('async calls')}")
        self._function = function
        self._coroutines = coroutines
        self._unanswered: float = getattr(function, "unanswered", 0)
        self._wake_up = wake_up
        self._open: set[int] = set()
        self._done: list[tuple[int, Any, BaseException | None]] = []

    def submit(self, number: int, row: Row) -> None:
        """Begin the call of one row."""
        self._open.add(number)

        def answered() -> None:
            if number in self._open:
                self._open.remove(number)
                self._done.append(self._answer(number, row))
                self._wake_up()

        delay_ms = self._rng.randint(0, LONGEST_CALL_MS)
        if not self._unanswered or self._rng.random() >= self._unanswered:
            self._process.later(delay_ms, answered)

    def _answer(self, number: int, row: Row) -> tuple[int, Any, BaseException | None]:
        try:
            return number, self._coroutines.run(self._function.async_invoke(row)), None
        except (Exception, asyncio.CancelledError) as error:  # whatever a user's function raises belongs to the task
            return number, None, error

    def take_done(self) -> list[tuple[int, Any, BaseException | None]]:
        """What has ended since the last time."""
        done, self._done = self._done, []
        return done

    @property
    def has_done(self) -> bool:
        """Return whether a call has ended whose result was not taken."""
        return bool(self._done)

    def forget(self, number: int) -> None:
        """Cancel one call, whose answer nobody waits for."""
        self._open.discard(number)

    def close(self) -> None:
        """Cancel all calls of the task."""
        self._open.clear()


@contextmanager
def async_calls_in(world: World) -> Iterator[None]:
    """Tasks of simulated processes call without a thread of their own."""
    coroutines = _Coroutines()

    def create(function: AsyncFunction, wake_up: Callable[[], None]) -> SimulatedCalls:
        process = check(world.current, "an asynchronous call belongs to a process")
        return SimulatedCalls(process, function, wake_up, coroutines)

    with patch.object(snapline.taskmanager.threads.async_calls, "EventLoopCalls", create):
        try:
            yield
        finally:
            coroutines.close()


class SimulatedBackgroundCall:
    """A call beside a simulated task: it is made when its answer is due, in simulated time."""

    def __init__(self, process: Process, function: Callable[[], Any], wake_up: Callable[[], None]) -> None:
        self._function = function
        self._wake_up = wake_up
        self._is_closed = False
        self._result: Any = None
        self._failure: BaseException | None = None
        self.is_done = False
        delay_ms = process.world.random(f"calls {process.world.number('background calls')}").randint(0, LONGEST_CALL_MS)
        process.later(delay_ms, self._answer)

    def _answer(self) -> None:
        if self._is_closed:
            return
        try:
            self._result = self._function()
        except (Exception, asyncio.CancelledError) as error:  # whatever a user's function raises belongs to the task
            self._failure = error
        self.is_done = True
        self._wake_up()

    def result(self) -> Any:
        """Return what the function returned, or raise what it raised."""
        if self._failure is not None:
            raise self._failure
        return self._result

    def close(self) -> None:
        """Forget the call, because its task is gone."""
        self._is_closed = True


@contextmanager
def background_calls_in(world: World) -> Iterator[None]:
    """Enumerators of simulated processes discover splits without a thread of their own."""

    def create(function: Callable[[], Any], wake_up: Callable[[], None]) -> SimulatedBackgroundCall:
        process = check(world.current, "a background call belongs to a process")
        return SimulatedBackgroundCall(process, function, wake_up)

    with patch.object(snapline.taskmanager.threads.background_call, "BackgroundCall", create):
        yield
