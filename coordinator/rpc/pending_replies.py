"""Clients that wait for the answer of a core: request id -> future on the server's loop.

An id is drawn for each request and answered once, by a `Reply` effect of a Dispatcher or JobMaster; a JobMaster that is
gone answers nothing any more, so its requests fail then. A client that went away is no error.
"""

from __future__ import annotations

import asyncio
import uuid

from snapline.coordinator.jobmaster.operations import Answer, OperationFailed, Reply, RequestID
from snapline.dataflow.failures import SerializedFailure
from snapline.dataflow.ids import JobID


class PendingReplies:
    """Used on the loop, except `perform` and `job_master_gone`, which any thread may call."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._waiting: dict[RequestID, tuple[JobID, asyncio.Future[Answer]]] = {}

    def __len__(self) -> int:
        """Return how many requests wait for an answer."""
        return len(self._waiting)

    def draw(self, job_id: JobID) -> tuple[RequestID, asyncio.Future[Answer]]:
        """A new request about this job and the future of its answer."""
        request_id = RequestID(uuid.uuid4().hex)
        future: asyncio.Future[Answer] = self._loop.create_future()
        self._waiting[request_id] = (job_id, future)
        future.add_done_callback(lambda _: self._waiting.pop(request_id, None))
        return request_id, future

    def perform(self, reply: Reply) -> None:
        """The effect of a core."""
        self._loop.call_soon_threadsafe(self._answer, reply.request_id, reply.answer)

    def job_master_gone(self, job_id: JobID, why: SerializedFailure) -> None:
        """Nothing will be answered any more for this job."""
        self._loop.call_soon_threadsafe(self._fail, job_id, OperationFailed(why))

    def _answer(self, request_id: RequestID, answer: Answer) -> None:
        waiting = self._waiting.get(request_id)
        if waiting is not None and not waiting[1].done():
            waiting[1].set_result(answer)

    def _fail(self, job_id: JobID, failed: OperationFailed) -> None:
        for request_id, (about, _) in list(self._waiting.items()):
            if about == job_id:
                self._answer(request_id, failed)
