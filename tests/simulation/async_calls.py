"""Calls of an AsyncFunction in simulated processes: each is answered after a while, in any order (EventLoopCalls).

The function's coroutine is run when its answer is due, in one go; it awaits nothing that takes time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import snapline.taskmanager.threads.async_calls
from snapline.dataflow.api.functions import AsyncFunction, Row
from tests.simulation.world import Process, World

LONGEST_CALL_MS = 40


class SimulatedCalls:
    """Of one task."""

    def __init__(self, process: Process, function: AsyncFunction, wake_up: Callable[[], None]) -> None:
        self._process = process
        self._rng = process.world.random(f"calls {process.world.number('async calls')}")
        self._function = function
        self._unanswered: float = getattr(function, "unanswered", 0)
        self._wake_up = wake_up
        self._open: set[int] = set()
        self._done: list[tuple[int, Any, BaseException | None]] = []

    def submit(self, number: int, row: Row) -> None:
        """It is under way."""
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
            self._function.async_invoke(row).send(None)
        except StopIteration as returned:
            return number, returned.value, None
        except Exception as error:  # whatever a user's function raises belongs to the task
            return number, None, error
        raise NotImplementedError("functions that wait for something are not simulated")

    def take_done(self) -> list[tuple[int, Any, BaseException | None]]:
        """What has ended since the last time."""
        done, self._done = self._done, []
        return done

    @property
    def has_done(self) -> bool:
        """Whether something has ended."""
        return bool(self._done)

    def forget(self, number: int) -> None:
        """Cancel a call."""
        self._open.discard(number)

    def close(self) -> None:
        """Cancel all."""
        self._open.clear()


@contextmanager
def async_calls_in(world: World) -> Iterator[None]:
    """Tasks of simulated processes call without an event loop."""

    def create(function: AsyncFunction, wake_up: Callable[[], None]) -> SimulatedCalls:
        assert world.current is not None
        return SimulatedCalls(world.current, function, wake_up)

    with patch.object(snapline.taskmanager.threads.async_calls, "EventLoopCalls", create):
        yield
