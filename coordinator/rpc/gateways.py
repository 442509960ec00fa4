"""ResourceManagerGateway and JobMasterGateway: the streams that TaskManagers (and remote JobMasters) dial in on.

Everything here runs on the server's loop, except `ServedStreams.apply`, which any thread may call. A stream is one reading
and one writing coroutine; what waits to be written leaves as one envelope. An envelope that comes in is decoded at once and
told to its actor as one message. A stream ends when the other side closes or is gone (the actor is told ConnectionLost), when
the actor closes it, or when its queue grows past its bound. The first message of a stream to a JobMaster names the job.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc
import grpc.aio

from coordinator.rpc.switchboard import Operation, Switchboard, Tell
from dataflow.ids import JobID
from dataflow.messages import Fenced, RegisterTaskExecutorAtJobMaster
from dataflow.wire import WireError, decode_envelope, encode_envelope
from protos import cluster_pb2, cluster_pb2_grpc
from runtime.actor import Incoming
from runtime.connections import ConnectionID, ConnectionLost, PeerKind, Send
from runtime.dialing import MAX_QUEUED_MESSAGES, take_envelope
from runtime.grpc_channels import STREAM_IS_OPEN
from runtime.logs import Logger

Context = grpc.aio.ServicerContext[cluster_pb2.Envelope, cluster_pb2.Envelope]


class ServedStream:
    """One served connection, on the loop."""

    __slots__ = ("closed_by_core", "connection", "ending", "overflowed", "waiting", "wake")

    def __init__(self, connection: ConnectionID, wake: Callable[[], None]) -> None:
        self.connection = connection
        self.waiting: deque[Fenced[Any]] = deque()
        self.wake = wake
        """Called when something waits, or the stream is ending."""
        self.ending = False
        """No more will be put in; what waits is still written."""
        self.closed_by_core = False
        self.overflowed = False


class ServedStreams:
    """All streams of the server."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._streams: dict[ConnectionID, ServedStream] = {}

    def __len__(self) -> int:
        """How many are open."""
        return len(self._streams)

    def add(self, stream: ServedStream) -> None:
        """A new stream. On the loop."""
        self._streams[stream.connection] = stream

    def forget(self, stream: ServedStream) -> None:
        """The stream has ended. On the loop."""
        self._streams.pop(stream.connection, None)

    def apply(self, operations: list[Operation]) -> None:
        """Send and close, in order; from any thread."""
        try:
            self._loop.call_soon_threadsafe(self._apply, operations)
        except RuntimeError:  # the loop is closed: so are all streams
            return

    def _apply(self, operations: list[Operation]) -> None:
        streams = self._streams
        for operation in operations:
            stream = streams.get(operation.connection)
            if stream is None or stream.ending:
                continue
            if type(operation) is Send:
                if len(stream.waiting) >= MAX_QUEUED_MESSAGES:
                    stream.overflowed = stream.ending = True
                else:
                    stream.waiting.append(operation.envelope)
            else:
                stream.closed_by_core = stream.ending = True
            stream.wake()


class Refused(Exception):
    """The stream ends with a status."""

    def __init__(self, code: grpc.StatusCode, reason: str) -> None:
        super().__init__(reason)
        self.code = code


def owner_of(switchboard: Switchboard, kind: PeerKind, messages: list[Any]) -> Tell:
    """The actor that a stream is for which begins with these messages. Raises Refused."""
    job_id = JobID("")
    if kind is PeerKind.JOB_MASTER:
        if not messages or type(messages[0]) is not RegisterTaskExecutorAtJobMaster:
            raise Refused(
                grpc.StatusCode.INVALID_ARGUMENT,
                "the first message to a JobMaster has to be RegisterTaskExecutorAtJobMaster",
            )
        job_id = messages[0].job_id
    owner = switchboard.owner_of(kind, job_id)
    if owner is None and job_id:
        raise Refused(grpc.StatusCode.NOT_FOUND, f"no job {job_id} runs here")
    if owner is None:
        raise Refused(grpc.StatusCode.UNAVAILABLE, "this coordinator does not lead")
    return owner


def reason_of_end(stream: ServedStream, otherwise: str) -> str:
    """Why a stream is over; `otherwise`: what its reader says."""
    if stream.overflowed:
        return f"more than {MAX_QUEUED_MESSAGES} messages wait to be sent: the other side does not read"
    return otherwise


class _Gateway:
    """What both gateways share: run one stream from its first to its last message."""

    def __init__(self, kind: PeerKind, switchboard: Switchboard, streams: ServedStreams, logger: Logger) -> None:
        self._kind = kind
        self._switchboard = switchboard
        self._streams = streams
        self._logger = logger

    async def serve(self, requests: AsyncIterator[cluster_pb2.Envelope], context: Context) -> None:
        """One stream."""
        wake = asyncio.Event()
        stream = ServedStream(self._switchboard.draw_served_id(), wake.set)
        self._streams.add(stream)
        logger = self._logger.bind(connection=stream.connection, gateway=self._kind.value, peer=context.peer())
        owner: list[Tell] = []
        reading: asyncio.Task[str] | None = None
        reason = "the other side is gone"
        try:
            await context.send_initial_metadata(STREAM_IS_OPEN)
            reading = asyncio.create_task(self._read(stream, requests, owner))
            reading.add_done_callback(_retrieve)
            await self._write(stream, wake, context)
            reason = reason_of_end(stream, reason)
            if not stream.overflowed and reading.done():
                reason = reading.result()
        except Refused as refusal:
            reason = str(refusal)
            await context.abort(refusal.code, reason)
        finally:
            self._streams.forget(stream)
            if reading is not None:
                reading.cancel()
            logger.info("stream ended", reason="closed by us" if stream.closed_by_core else reason)
            if owner and not stream.closed_by_core:
                owner[0](ConnectionLost(stream.connection, reason))

    async def _read(
        self, stream: ServedStream, requests: AsyncIterator[cluster_pb2.Envelope], owner: list[Tell]
    ) -> str:
        """Read until the other side closes; why it ended."""
        try:
            async for envelope in requests:
                session, messages = decode_envelope(envelope)
                if not owner:
                    owner.append(owner_of(self._switchboard, self._kind, messages))
                if not stream.closed_by_core and not owner[0](Incoming(stream.connection, session, messages)):
                    raise Refused(grpc.StatusCode.UNAVAILABLE, f"the {self._kind.value} has stopped")
            return "closed by the other side"
        except WireError as error:
            raise Refused(grpc.StatusCode.INVALID_ARGUMENT, str(error)) from error
        finally:
            stream.ending = True
            stream.wake()

    @staticmethod
    async def _write(stream: ServedStream, wake: asyncio.Event, context: Context) -> None:
        """Write what waits until the stream is ending and everything is written."""
        waiting = stream.waiting
        while True:
            while waiting:
                session, messages = take_envelope(waiting)
                await context.write(encode_envelope(session, messages))
            if stream.ending:
                return
            wake.clear()
            await wake.wait()


def _retrieve(reading: asyncio.Task[str]) -> None:
    """A stream that is gone fails its reader too; that is no news."""
    if not reading.cancelled():
        reading.exception()


class ResourceManagerGateway(cluster_pb2_grpc.ResourceManagerGatewayServicer):
    """Streams to the ResourceManager."""

    def __init__(self, switchboard: Switchboard, streams: ServedStreams, logger: Logger) -> None:
        self._gateway = _Gateway(PeerKind.RESOURCE_MANAGER, switchboard, streams, logger)

    async def Connect(self, request_iterator: Any, context: Any) -> None:  # type: ignore[override]  # noqa: N802
        await self._gateway.serve(request_iterator, context)


class JobMasterGateway(cluster_pb2_grpc.JobMasterGatewayServicer):
    """Streams to the JobMasters."""

    def __init__(self, switchboard: Switchboard, streams: ServedStreams, logger: Logger) -> None:
        self._gateway = _Gateway(PeerKind.JOB_MASTER, switchboard, streams, logger)

    async def Connect(self, request_iterator: Any, context: Any) -> None:  # type: ignore[override]  # noqa: N802
        await self._gateway.serve(request_iterator, context)
