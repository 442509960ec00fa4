"""Savepoints that clients have asked for, by the id that the client chose: under way, complete or failed.

A savepoint goes on when the client that asked for it is gone, and can be asked for afterwards; a request that is
repeated under its id joins the first one. Lives on the server's loop, under one leader; bounded.
"""

from __future__ import annotations

import asyncio
import uuid
from collections import OrderedDict
from collections.abc import Callable, Coroutine

from snapline.protos import client_pb2 as pb

MAX_OPERATIONS = 1_000
"""The latest ones; those that are under way are never forgotten."""

MAX_ID = 200
"""Characters of an id: a thousand of them are kept."""

TakeSavepoint = Callable[[], Coroutine[None, None, pb.SavepointResponse]]


class BadTriggerId(ValueError):
    """The id that a client chose for its savepoint is too long to be kept."""


class SavepointOperations:
    """All operations of one leader."""

    def __init__(self) -> None:
        self._operations: OrderedDict[tuple[str, str], asyncio.Task[pb.SavepointResponse]] = OrderedDict()

    async def run(self, job_id: str, trigger_id: str, take: TakeSavepoint, *, detached: bool) -> pb.SavepointResponse:
        """Begin, or join the one of this id; returns when it has ended, or at once with the id alone. Raises
        BadTriggerId, and begins nothing then."""
        if len(trigger_id) > MAX_ID:
            raise BadTriggerId(f"trigger_id may have {MAX_ID} characters, not {len(trigger_id)}")
        trigger_id = trigger_id or uuid.uuid4().hex
        task = self._operations.get((job_id, trigger_id))
        if task is None:
            task = self._operations[(job_id, trigger_id)] = asyncio.create_task(take())
            task.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
            self._forget_oldest()
        if detached:
            return pb.SavepointResponse(trigger_id=trigger_id)
        answer = pb.SavepointResponse()
        answer.CopyFrom(await asyncio.shield(task))
        answer.trigger_id = trigger_id
        return answer

    def find(self, job_id: str, trigger_id: str) -> pb.SavepointOperation | None:
        """How far it is; None: nobody has asked for such a savepoint, or it is forgotten."""
        task = self._operations.get((job_id, trigger_id))
        if task is None:
            return None
        operation = pb.SavepointOperation(trigger_id=trigger_id, status=pb.CHECKPOINT_STATUS_IN_PROGRESS)
        if not task.done():
            return operation
        error = None if task.cancelled() else task.exception()
        if task.cancelled() or error is not None:
            why = "the coordinator stopped" if error is None else str(error)
            operation.result.failure.message = why
        else:
            operation.result.CopyFrom(task.result())
        failed = operation.result.HasField("failure")
        operation.status = pb.CHECKPOINT_STATUS_FAILED if failed else pb.CHECKPOINT_STATUS_COMPLETED
        return operation

    def _forget_oldest(self) -> None:
        while len(self._operations) > MAX_OPERATIONS:
            over = next((key for key, task in self._operations.items() if task.done()), None)
            if over is None:
                return
            del self._operations[over]
