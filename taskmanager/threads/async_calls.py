"""The event loop beside a task that runs an AsyncFunction's calls: a daemon thread, and a list of what is done.

Mirrors the user's own threads behind Flink's ResultFuture. Everything but the calls themselves runs on the task's
thread.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from typing import Any

from snapline.dataflow.api.function_contexts import Row

JOIN_TIMEOUT_SECONDS = 5.0


def new_event_loop() -> asyncio.AbstractEventLoop:
    """The loop of uvloop where it is installed (extra `async`), else Python's own.

    >>> loop = new_event_loop()
    >>> loop.run_until_complete(asyncio.sleep(0, "done"))
    'done'
    >>> loop.close()
    """
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


class EventLoopCalls:
    """AsyncCalls of production. `wake_up` makes the task loop run again soon."""

    def __init__(self, function: Any, wake_up: Callable[[], None]) -> None:
        self._function = function
        self._wake_up = wake_up
        self._submitted: deque[tuple[int, Row]] = deque()
        """Calls that the loop has not begun."""
        self._is_called = False
        """The loop will look at them; calling it costs as much as beginning a call."""
        self._done: deque[tuple[int, Any, BaseException | None]] = deque()
        self._is_told = False
        """The task is going to be woken in this turn of the loop."""
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._loop = new_event_loop()
        self._thread = threading.Thread(target=self._run, name="async-function", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
        finally:
            self._tasks.clear()
            tasks = asyncio.all_tasks(self._loop)  # those, too, that the function has begun beside its answers
            for task in tasks:
                task.cancel()
            if tasks:
                self._loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
            self._loop.close()

    def submit(self, number: int, row: Row) -> None:
        """Begin the asynchronous call of one row."""
        self._submitted.append((number, row))
        if not self._is_called:
            self._is_called = True
            self._loop.call_soon_threadsafe(self._begin)

    def _begin(self) -> None:
        self._is_called = False  # what is submitted from here on may be seen below, and calls again
        submitted, tasks, create_task = self._submitted, self._tasks, self._loop.create_task
        while submitted:
            number, row = submitted.popleft()
            tasks[number] = create_task(self._call(number, row))

    async def _call(self, number: int, row: Row) -> None:
        try:
            result = await self._function.async_invoke(row)
            failure: BaseException | None = None
        except asyncio.CancelledError as error:
            if number not in self._tasks:  # nobody waits for it
                raise
            result, failure = None, error
        except BaseException as error:  # whatever a user's function raises belongs to the task
            result, failure = None, error
        finally:
            self._tasks.pop(number, None)
        self._done.append((number, result, failure))
        if not self._is_told:
            self._is_told = True
            self._loop.call_soon(self._tell)

    def _tell(self) -> None:
        """Wake the task for all calls that have ended in this turn of the loop: woken for each of them, it would wait
        for Python's lock as often."""
        self._is_told = False
        self._wake_up()

    def take_done(self) -> list[tuple[int, Any, BaseException | None]]:
        """What has ended since the last time."""
        done = self._done
        return [done.popleft() for _ in range(len(done))]

    @property
    def has_done(self) -> bool:
        """Return whether a call has ended whose result was not taken."""
        return bool(self._done)

    def forget(self, number: int) -> None:
        """Cancel one call, whose answer nobody waits for."""
        self._loop.call_soon_threadsafe(self._cancel, number)

    def _cancel(self, number: int) -> None:
        task = self._tasks.pop(number, None)
        if task is not None:
            task.cancel()

    def close(self) -> None:
        """Cancel all, end the thread."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(JOIN_TIMEOUT_SECONDS)
