"""Keys that wait for an answer, asked for many at a time by a few workers, on the event loop of `async_wait`.

Decides that a key which several rows ask for is asked once, how many keys go into one question (all that have come
while the workers were busy, up to a bound), and that a question that failed fails every row that waits for one of its
keys, and none of them is remembered. It does not know the service. Flink's look-ups ask for one key at a time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any


class WaitingKeys:
    """Gathers keys, and hands them to `ask`, which returns an answer for each."""

    def __init__(
        self, ask: Callable[[int, Sequence[Any]], Awaitable[Mapping[Any, Any]]], workers: int, most: int
    ) -> None:
        """`ask(worker, keys)`: the worker is a number from 0 on, which asks one question at a time. `most`: keys of a
        question."""
        self._ask, self._most = ask, most
        self._idle = list(range(workers))
        self._waiting: list[Any] = []
        """Keys that nobody asks for yet."""
        self._answers: dict[Any, asyncio.Future[Any]] = {}
        """The answers by key, also those of keys that are asked for just now."""
        self._tasks: set[asyncio.Task[None]] = set()

    async def answer(self, key: Any) -> Any:
        """Wait for the answer to this key. Raises what the question raised."""
        future = self._answers.get(key)
        if future is None:
            loop = asyncio.get_running_loop()
            future = self._answers[key] = loop.create_future()
            self._waiting.append(key)
            if self._idle:
                task = loop.create_task(self._work(self._idle.pop()))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
        # Shielded: a row that is given up does not take the answer from the others.
        return await asyncio.shield(future)

    async def _work(self, worker: int) -> None:
        """Ask as long as keys wait."""
        await asyncio.sleep(0)  # so that the rows of one batch come together
        while self._waiting:
            keys, self._waiting = self._waiting[: self._most], self._waiting[self._most :]
            try:
                found = await self._ask(worker, keys)
            except Exception as error:
                for key in keys:
                    future = self._answers.pop(key)
                    future.set_exception(error)
                    future.exception()  # perhaps nobody waits any more
            else:
                for key in keys:
                    self._answers.pop(key).set_result(found[key])
        self._idle.append(worker)
