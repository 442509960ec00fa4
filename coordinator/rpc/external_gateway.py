"""ExternalTasks: the streams of programs outside (protos/external.proto).

To everybody else in this process such a stream is a served one like those of `snapline.coordinator.rpc.gateways`, to a
JobMaster: what the JobMaster says, and what the program says, goes through the core ExternalProgram, which makes one
of the other. Everything here runs on the server's loop. A stream ends when the program closes it or is gone, when the
core ends it, or when the program does not read.
"""

from __future__ import annotations

import asyncio
import uuid
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any

import grpc
import grpc.aio

from snapline.coordinator.execution.given_slots import GivenSlots
from snapline.coordinator.external.external_program import (
    EndProgram,
    ExternalProgram,
    FindJob,
    JobFound,
    JobMasterSaid,
    JobNotFound,
    ProgramEvent,
    ProgramIdentity,
    ProgramSaid,
    TellJobMaster,
    TellProgram,
)
from snapline.coordinator.external.places import PlaceOfAttempt, ProgramTurns
from snapline.coordinator.job_registry import JobRegistry
from snapline.coordinator.rpc.gateways import ServedStream, ServedStreams, StreamRefused
from snapline.coordinator.rpc.leaders import LeaderPublisher
from snapline.dataflow.ids import JobID, LeaderSessionID, ResourceID
from snapline.dataflow.wire.messages import Fenced, ForTasks
from snapline.protos import external_pb2 as pb
from snapline.protos import external_pb2_grpc
from snapline.runtime.cores.connections import PeerKind
from snapline.runtime.cores.credentials import Identity, sign_ticket
from snapline.runtime.cores.message_budget import MessageBudget
from snapline.runtime.logs import Logger
from snapline.runtime.rpc.grpc_channels import STREAM_IS_OPEN
from snapline.runtime.rpc.rpc_server import retrieve_exception
from snapline.runtime.version import VERSION

MAX_QUEUED_FOR_PROGRAM = 10_000
"""So many messages may wait for a program that does not read."""
END_SECONDS = 5.0
"""How long a program may take to read what was said last."""

Context = grpc.aio.ServicerContext[pb.FromProgram, pb.ToProgram]
FindForProgram = Callable[[Identity, str, str], Awaitable["tuple[JobID, LeaderSessionID] | pb.Rejected"]]


class _ProgramStream(ServedStream):
    """The stream of one program; the JobMaster takes it for that of a TaskManager."""

    __slots__ = ("ended", "find", "finding", "logger", "out", "program", "session", "streams")

    def __init__(
        self,
        streams: ServedStreams,
        identity: Identity,
        peer: str,
        wake: asyncio.Event,
        find: FindForProgram,
        given: GivenSlots,
        max_state_bytes: int,
        logger: Logger,
    ) -> None:
        super().__init__(PeerKind.JOB_MASTER, streams.draw_id(), identity, peer, wake.set)
        self.streams = streams
        self.find = find
        self.finding: asyncio.Future[None] | None = None
        """The look for the program's job."""
        self.logger = logger
        self.out: deque[pb.ToProgram] = deque()
        self.ended = asyncio.Event()
        self.session = LeaderSessionID("")
        self.program = ExternalProgram(
            ProgramIdentity(
                ResourceID(f"external-{uuid.uuid4().hex[:12]}"),
                given.give,
                uuid.uuid4().hex,
                VERSION,
                max_state_bytes,
            )
        )

    def say(self, message: Fenced[Any]) -> None:
        """Hand what the JobMaster says to the core."""
        said = message.message
        if type(said) is ForTasks:
            for attempt_id in said.attempt_ids:
                self.take(JobMasterSaid(replace(said.template, attempt_id=attempt_id)))
        else:
            self.take(JobMasterSaid(said))

    def end(self) -> None:
        """Write what waits, then end."""
        super().end()
        self.ended.set()

    def take(self, event: ProgramEvent) -> None:
        """Let the core decide, and do what it says."""
        for effect in self.program.handle(event):
            match effect:
                case TellProgram(message):
                    self._tell_program(message)
                case TellJobMaster(message):
                    self._tell_job_master(message)
                case FindJob(job, task):
                    self.finding = asyncio.ensure_future(self._find(job, task))
                case EndProgram(reason, is_fault):
                    if is_fault:
                        self.refuse(StreamRefused(grpc.StatusCode.INVALID_ARGUMENT, reason))
                    else:
                        self.end()

    def _tell_program(self, message: pb.ToProgram) -> None:
        if message.HasField("complaint"):
            self.streams.refusals.write(
                self.sender, message.complaint.detail, resource_id=self.program.resource_id, gateway="external"
            )
        if len(self.out) < MAX_QUEUED_FOR_PROGRAM:
            self.out.append(message)
            self.wake()
        else:
            self.refuse(StreamRefused(grpc.StatusCode.RESOURCE_EXHAUSTED, DOES_NOT_READ))

    def _tell_job_master(self, message: Any) -> None:
        if self.ending:
            return
        try:
            self.streams.take(self, self.session, [message])
        except StreamRefused as refusal:
            self.refuse(refusal)

    async def _find(self, job: str, task: str) -> None:
        try:
            found = await self.find(self.identity, job, task)
        except StreamRefused as refusal:
            self.refuse(refusal)
            return
        except Exception as error:  # whatever it is, the program waits for an answer
            line = f"the job's leader does not answer ({type(error).__name__}: {error}): connect again"
            self.refuse(StreamRefused(grpc.StatusCode.UNAVAILABLE, line))
            return
        if isinstance(found, pb.Rejected):
            self.take(JobNotFound(found))
        else:
            self.session = found[1]
            self.take(JobFound(found[0]))


def _just_beginning(job: str) -> pb.Rejected:
    detail = f"job {job!r} is just beginning: try again"
    return pb.Rejected(reason=pb.REJECTION_REASON_UNKNOWN_JOB, detail=detail, try_again=True)


DOES_NOT_READ = "the program does not read what it is told: it is given up, and may register again"


class ExternalGateway(external_pb2_grpc.ExternalTasksServicer):
    """Serves the streams of programs outside."""

    def __init__(
        self,
        streams: ServedStreams,
        registry: JobRegistry,
        leaders: LeaderPublisher,
        is_accepted: Callable[[str], Awaitable[bool]],
        given: GivenSlots,
        max_state_bytes: int,
        logger: Logger,
    ) -> None:
        self._streams = streams
        self._registry = registry
        self._leaders = leaders
        self._is_accepted = is_accepted
        """Whether a job of this id or name is known that has not ended."""
        self._given = given
        self._max_state_bytes = max_state_bytes
        self._turns = ProgramTurns()
        self._logger = logger

    async def Participate(  # type: ignore[override]  # noqa: N802
        self, request_iterator: AsyncIterator[pb.FromProgram], context: Context
    ) -> None:
        wake = asyncio.Event()
        identity = self._streams.security.identify(context.invocation_metadata() or ())
        logger = self._logger.bind(gateway="external", peer=context.peer(), who=str(identity))
        peer = context.peer()
        stream = _ProgramStream(
            self._streams, identity, peer, wake, self._find, self._given, self._max_state_bytes, logger
        )
        self._streams.add(stream)
        tasks: list[asyncio.Task[None]] = []
        reason = "the program is gone"
        try:
            await context.send_initial_metadata(STREAM_IS_OPEN)
            tasks = [
                asyncio.create_task(self._read(stream, request_iterator)),
                asyncio.create_task(self._write(stream, wake, context)),
            ]
            for task in tasks:
                task.add_done_callback(retrieve_exception)
            await stream.ended.wait()
            reads = len(stream.out) < MAX_QUEUED_FOR_PROGRAM
            written, _ = await asyncio.wait(tasks[1:], timeout=END_SECONDS if reads else 0)
            if not written:
                stream.refuse(StreamRefused(grpc.StatusCode.RESOURCE_EXHAUSTED, DOES_NOT_READ))
            if stream.refusal is not None:
                reason = str(stream.refusal)
                stream.out.clear()
                self._streams.tell_end(stream, reason)  # before the status, which waits until the program reads
                await context.abort(stream.refusal.code, reason)
            reason = "closed"
        finally:
            for task in (*tasks, *([stream.finding] if stream.finding is not None else ())):
                task.cancel()
            details = {"resource_id": stream.program.resource_id, "reason": reason}
            self._streams.refusals.note_stream(stream.sender, logger.info, "external program's stream ended", **details)
            self._streams.tell_end(stream, reason)

    async def _find(self, identity: Identity, job: str, task: str) -> tuple[JobID, LeaderSessionID] | pb.Rejected:
        """Where the job is led. Raises StreamRefused for one that the program's credential is not for."""
        found = self._registry.find_for_program(job, task, identity.job)
        if (
            isinstance(found, pb.Rejected)
            and found.reason == pb.REJECTION_REASON_JOB_IS_OVER
            and await self._is_accepted(identity.job or job)
        ):
            return _just_beginning(job)  # an earlier one of its name has ended
        job_id = found if isinstance(found, str) else JobID(job)
        if identity.job and not isinstance(found, pb.Rejected) and job_id != identity.job:
            if self._leaders.job_master(JobID(identity.job)) is None and await self._is_accepted(identity.job):
                return _just_beginning(identity.job)  # another one of its name runs already
            line = f"a {identity} may not take part in job {job!r}"
            raise StreamRefused(grpc.StatusCode.PERMISSION_DENIED, line)
        leader = self._leaders.job_master(job_id)
        if isinstance(found, pb.Rejected):
            if leader is None or found.reason != pb.REJECTION_REASON_UNKNOWN_JOB:
                return found
            detail = f"job {job} is led by {leader.address}: connect there"
            return pb.Rejected(
                reason=pb.REJECTION_REASON_ELSEWHERE, detail=detail, address=leader.address, try_again=True
            )
        if leader is None:
            detail = f"job {job!r} is just beginning, or ending"
            return pb.Rejected(reason=pb.REJECTION_REASON_UNKNOWN_JOB, detail=detail, try_again=True)
        places = await self._registry.places_for_program(job_id, task)
        return (job_id, leader.session) if places is None else self._send_on(job_id, task, places)

    def _send_on(self, job_id: JobID, task: str, places: Sequence[PlaceOfAttempt]) -> pb.Rejected:
        """To a TaskManager, where the rows are."""
        place = self._turns.next_of(job_id, task, places)
        if place is None:
            detail = f"external task {task!r} of job {job_id} is on no TaskManager just now: try again"
            return pb.Rejected(reason=pb.REJECTION_REASON_NO_PLACE, detail=detail, try_again=True)
        return pb.Rejected(
            reason=pb.REJECTION_REASON_AT_TASK_MANAGER,
            detail=f"external task {task!r} has rows: take part by Arrow Flight at {place.address}, with the ticket",
            address=place.address,
            ticket=sign_ticket(place.allocation_id, job_id, task, str(place.attempt_id)),
        )

    @staticmethod
    async def _read(stream: _ProgramStream, requests: AsyncIterator[pb.FromProgram]) -> None:
        clock = asyncio.get_running_loop().time
        budget = MessageBudget(clock())
        try:
            async for message in requests:
                if stream.ending:
                    return
                stream.take(ProgramSaid(message))
                if pause_s := budget.spend(1, clock()):
                    await asyncio.sleep(pause_s)
            if stream.finding is not None:
                await stream.finding  # a program that says no more is still told where to go
        finally:
            stream.end()

    @staticmethod
    async def _write(stream: _ProgramStream, wake: asyncio.Event, context: Context) -> None:
        while True:
            while stream.out:
                await context.write(stream.out.popleft())
            if stream.ending:
                return
            wake.clear()
            await wake.wait()
