"""Clients that wait for thread dumps of TaskManagers: request id -> what has come so far.

An answer is complete when all that were asked have answered, or when the time is over: a TaskManager whose every thread
holds Python's lock, or that is gone, must not keep anybody waiting. Each answers once: what it says again, and what
others say, counts for nobody else.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable, Collection, Sequence

from snapline.dataflow.wire.messages import ThreadDump


class PendingThreadDumps:
    """Used on the loop, except `arrived`, which any thread may call."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._waiting: dict[str, tuple[frozenset[str], dict[str, ThreadDump], asyncio.Event]] = {}

    def draw(self, resource_ids: Collection[str]) -> tuple[str, Callable[[float], Awaitable[Sequence[ThreadDump]]]]:
        """A new request, and the function that waits so many seconds for its answers."""
        request_id = uuid.uuid4().hex
        found: dict[str, ThreadDump] = {}
        complete = asyncio.Event()
        if not resource_ids:
            complete.set()
        self._waiting[request_id] = (frozenset(resource_ids), found, complete)

        async def answer(timeout_seconds: float) -> Sequence[ThreadDump]:
            try:
                await asyncio.wait_for(complete.wait(), timeout_seconds)
            except TimeoutError:
                pass
            finally:
                del self._waiting[request_id]
            return tuple(found.values())

        return request_id, answer

    def arrived(self, dump: ThreadDump) -> None:
        """Take the answer of a TaskManager."""
        self._loop.call_soon_threadsafe(self._arrived, dump)

    def _arrived(self, dump: ThreadDump) -> None:
        waiting = self._waiting.get(dump.request_id)
        if waiting is None or dump.resource_id not in waiting[0]:
            return
        asked, found, complete = waiting
        found.setdefault(dump.resource_id, dump)
        if len(found) == len(asked):
            complete.set()
