"""ResourceManagerGateway and JobMasterGateway: the streams that TaskManagers (and remote JobMasters) dial in on.

Everything here runs on the server's loop, except `ServedStreams.apply`, which any thread may call. A stream is one
reading and one writing coroutine; what waits to be written leaves as one envelope. What comes in is decoded at once;
all envelopes of one turn of the loop that are for the same actor are told to it as one message. A stream ends when the
other side closes or is gone (the actor is told ConnectionLost), when the actor closes it, or when its queue grows past
its bound. The first message of a stream to a JobMaster names the job.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc
import grpc.aio

from snapline.coordinator.rpc.switchboard import Operation, Switchboard, Tell
from snapline.dataflow.ids import JobID, LeaderSessionID
from snapline.dataflow.wire.codec import WireError, decode_envelope
from snapline.dataflow.wire.envelope_bytes import serialize_envelope
from snapline.dataflow.wire.messages import Fenced, ForTasks, RegisterTaskExecutorAtJobMaster
from snapline.protos import cluster_pb2
from snapline.runtime.cores.connections import ConnectionID, ConnectionLost, PeerKind, Send, SendToTasks
from snapline.runtime.cores.credentials import Identity
from snapline.runtime.cores.inbox import Events, Incoming
from snapline.runtime.cores.message_budget import MessageBudget
from snapline.runtime.cores.message_permissions import refuse_messages
from snapline.runtime.cores.senders import MAX_SENDERS, MAX_STREAMS, StreamsBySender, host_of
from snapline.runtime.logs import Logger
from snapline.runtime.rpc.dialing import MAX_MESSAGES_PER_ENVELOPE, MAX_QUEUED_MESSAGES, take_envelope
from snapline.runtime.rpc.grpc_channels import STREAM_IS_OPEN
from snapline.runtime.rpc.rpc_server import retrieve_exception
from snapline.runtime.rpc.security import Security
from snapline.runtime.rpc.sender_limits import RefusalLog

Context = grpc.aio.ServicerContext[cluster_pb2.Envelope, bytes]


class StreamRefused(Exception):
    """The stream ends with a status."""

    def __init__(self, code: grpc.StatusCode, reason: str) -> None:
        super().__init__(reason)
        self.code = code


class ServedStream:
    """One served connection, on the loop."""

    __slots__ = (
        "closed_by_core",
        "connection",
        "ending",
        "give_up",
        "identity",
        "kind",
        "owner",
        "refusal",
        "sender",
        "waiting",
        "wake",
    )

    def __init__(
        self, kind: PeerKind, connection: ConnectionID, identity: Identity, peer: str, wake: Callable[[], None]
    ) -> None:
        """`wake` is called when something waits to be written, or the stream is ending. `identity`: who dialed in, from
        `peer`."""
        self.kind = kind
        self.sender = f"{identity} at {host_of(peer)}"
        self.identity = identity
        self.connection = connection
        self.wake = wake
        self.owner: Tell | None = None
        """The actor that the stream is for; known from its first envelope on, until the actor has been told of the
        end."""
        self.waiting: deque[Fenced[Any]] = deque()
        self.ending = False
        """No more will be put in; what waits is still written."""
        self.closed_by_core = False
        self.give_up: Callable[[], object] = lambda: None
        """Called when the other side does not read: what is being written is not waited for any more."""
        self.refusal: StreamRefused | None = None
        """Why it is ended by the server."""

    def say(self, message: Fenced[Any]) -> None:
        """Write it, soon and in order."""
        if len(self.waiting) < MAX_QUEUED_MESSAGES:
            self.waiting.append(message)
            self.wake()
        else:
            reason = f"more than {MAX_QUEUED_MESSAGES} messages wait to be sent: the other side does not read"
            self.waiting.clear()
            self.refuse(StreamRefused(grpc.StatusCode.RESOURCE_EXHAUSTED, reason))
            self.give_up()

    def end(self) -> None:
        """Write what waits, then end."""
        self.ending = True
        self.wake()

    def refuse(self, refusal: StreamRefused) -> None:
        """End it with a status."""
        self.refusal = self.refusal or refusal
        self.end()


class ServedStreams:
    """All streams of the server, and what is to be told of them: what comes in one turn of the loop is told as one
    message."""

    def __init__(
        self, switchboard: Switchboard, loop: asyncio.AbstractEventLoop, security: Security, refusals: RefusalLog
    ) -> None:
        """`security` says who dials in, `refusals` is told what is refused."""
        self.security = security
        self.refusals = refusals
        self._by_sender = StreamsBySender()
        self._budgets: OrderedDict[str, MessageBudget] = OrderedDict()
        """What TaskManagers with a credential of their own may say, of those that were here last."""
        self._switchboard = switchboard
        self._loop = loop
        self._streams: dict[ConnectionID, ServedStream] = {}
        self._told: dict[Tell, list[Any]] = {}

    def __len__(self) -> int:
        """Return how many streams are open."""
        return len(self._streams)

    # --- in, on the loop ----------------------------------------------------------------------------------------------

    def draw_id(self) -> ConnectionID:
        """Return an id for a new stream, which no other has."""
        return self._switchboard.draw_served_id()

    def add(self, stream: ServedStream) -> None:
        """Add a stream that was just opened; one more than its sender may have is refused."""
        if not self._by_sender.open(stream.sender):
            line = f"{stream.sender} has {MAX_STREAMS} streams already, which is the most"
            stream.refuse(StreamRefused(grpc.StatusCode.RESOURCE_EXHAUSTED, line))
            return
        self._streams[stream.connection] = stream

    def budget_of(self, stream: ServedStream, now_s: float) -> MessageBudget:
        """What may be said on the stream: of all that show the credential of one TaskManager, as the functions in it
        can, together."""
        if not stream.identity.name:
            return MessageBudget(now_s)
        budget = self._budgets.setdefault(stream.sender, MessageBudget(now_s))
        self._budgets.move_to_end(stream.sender)
        while len(self._budgets) > MAX_SENDERS:
            self._budgets.popitem(last=False)
        return budget

    def received(self, stream: ServedStream, envelope: cluster_pb2.Envelope) -> None:
        """Tell the stream's actor, soon and in order; nothing, once the stream is ending. Raises StreamRefused."""
        if stream.ending:
            return
        if len(envelope.messages) > MAX_MESSAGES_PER_ENVELOPE:
            reason = (
                f"Envelope.messages has {len(envelope.messages)} messages, and {MAX_MESSAGES_PER_ENVELOPE} is the most"
            )
            raise StreamRefused(grpc.StatusCode.INVALID_ARGUMENT, reason)
        try:
            session, messages = decode_envelope(envelope)
        except WireError as error:
            raise StreamRefused(grpc.StatusCode.INVALID_ARGUMENT, str(error)) from error
        self.take(stream, session, messages)

    def take(self, stream: ServedStream, session: LeaderSessionID, messages: list[Any]) -> None:
        """Tell the stream's actor what came in, decoded. Raises StreamRefused."""
        line = refuse_messages(stream.identity, messages)
        if line:
            raise StreamRefused(grpc.StatusCode.PERMISSION_DENIED, line)
        if stream.owner is None:
            stream.owner = self._owner_of(stream.kind, messages)
        self._tell(stream.owner, Incoming(stream.connection, session, messages))

    def tell_end(self, stream: ServedStream, reason: str) -> None:
        """The stream has ended: unless its actor closed it, that is told, too. Once."""
        if self._streams.pop(stream.connection, None) is not None:
            self._by_sender.close(stream.sender)
        if stream.refusal is not None:
            self.refusals.write(stream.sender, reason, connection=stream.connection)
        if stream.owner is not None and not stream.closed_by_core:
            self._tell(stream.owner, ConnectionLost(stream.connection, reason))
        stream.owner = None

    def _owner_of(self, kind: PeerKind, messages: list[Any]) -> Tell:
        job_id = JobID("")
        if kind is PeerKind.JOB_MASTER:
            if not messages or type(messages[0]) is not RegisterTaskExecutorAtJobMaster:
                raise StreamRefused(
                    grpc.StatusCode.INVALID_ARGUMENT,
                    "the first message to a JobMaster has to be RegisterTaskExecutorAtJobMaster",
                )
            job_id = messages[0].job_id
        owner = self._switchboard.owner_of(kind, job_id)
        if owner is None and job_id:
            raise StreamRefused(grpc.StatusCode.NOT_FOUND, f"no job {job_id} runs here")
        if owner is None:
            raise StreamRefused(grpc.StatusCode.UNAVAILABLE, "this coordinator does not lead")
        return owner

    def _tell(self, owner: Tell, event: Any) -> None:
        if not self._told:
            self._loop.call_soon(self._tell_all)
        self._told.setdefault(owner, []).append(event)

    def _tell_all(self) -> None:
        told, self._told = self._told, {}
        for owner, events in told.items():
            if not owner(events[0] if len(events) == 1 else Events(tuple(events))):
                # what the actor said last may be on its way to the loop, and comes before this
                self._loop.call_soon(self._refuse_all_of, owner)

    def _refuse_all_of(self, owner: Tell) -> None:
        for stream in [stream for stream in self._streams.values() if stream.owner == owner and not stream.ending]:
            stream.refuse(StreamRefused(grpc.StatusCode.UNAVAILABLE, f"the {stream.kind.value} has stopped"))

    # --- out ----------------------------------------------------------------------------------------------------------

    def apply(self, operations: list[Operation]) -> None:
        """Send and close, in order; from any thread."""
        try:
            self._loop.call_soon_threadsafe(self._apply, operations)
        except RuntimeError:  # the loop is closed: so are all streams
            return

    def _apply(self, operations: list[Operation]) -> None:
        streams = self._streams
        for operation in operations:
            if isinstance(operation, SendToTasks):
                session, template = operation.session, operation.template
                for connection, attempt_ids in operation.to:
                    stream = streams.get(connection)
                    if stream is not None and not stream.ending:
                        stream.say(Fenced(session, ForTasks(template, attempt_ids)))
                continue
            stream = streams.get(operation.connection)
            if stream is None or stream.ending:
                continue
            if type(operation) is Send:
                stream.say(operation.envelope)
            else:
                stream.closed_by_core = True
                stream.end()


class _Gateway:
    """What both gateways share: run one stream from its first to its last message."""

    def __init__(self, kind: PeerKind, streams: ServedStreams, logger: Logger) -> None:
        self._kind = kind
        self._streams = streams
        self._logger = logger

    async def serve(self, requests: AsyncIterator[cluster_pb2.Envelope], context: Context) -> None:
        """Serve one stream from its first message to its end."""
        wake = asyncio.Event()
        identity = self._streams.security.identify(context.invocation_metadata() or ())
        stream = ServedStream(self._kind, self._streams.draw_id(), identity, context.peer(), wake.set)
        self._streams.add(stream)
        logger = self._logger.bind(
            connection=stream.connection, gateway=self._kind.value, peer=context.peer(), who=str(identity)
        )
        reading: asyncio.Task[None] | None = None
        writing: asyncio.Task[None] | None = None
        reason = "the other side is gone"
        try:
            await context.send_initial_metadata(STREAM_IS_OPEN)
            reading = asyncio.create_task(self._read(stream, requests))
            reading.add_done_callback(retrieve_exception)
            writing = asyncio.create_task(self._write(stream, wake, context))
            stream.give_up = writing.cancel
            await asyncio.wait([writing])
            if stream.refusal is not None:
                reason = str(stream.refusal)
                self._streams.tell_end(stream, reason)  # before the status, which waits until the other side reads
                await context.abort(stream.refusal.code, reason)
            await writing
            if reading.done():
                await reading
                reason = "closed by the other side"
        finally:
            for task in (reading, writing):
                if task is not None:
                    task.cancel()
            if stream.refusal is None:
                ended = "closed by us" if stream.closed_by_core else reason
                self._streams.refusals.note_stream(stream.sender, logger.info, "stream ended", reason=ended)
            self._streams.tell_end(stream, reason)

    async def _read(self, stream: ServedStream, requests: AsyncIterator[cluster_pb2.Envelope]) -> None:
        """Until the other side closes, or is refused."""
        clock = asyncio.get_running_loop().time
        budget = self._streams.budget_of(stream, clock())
        try:
            if pause_s := budget.spend(0, clock()):  # other streams have spent it
                await asyncio.sleep(pause_s)
            async for envelope in requests:
                self._streams.received(stream, envelope)
                pause_s = budget.spend(max(1, len(envelope.messages)), clock())  # an empty one is told, too
                if pause_s:
                    await asyncio.sleep(pause_s)
        except StreamRefused as refusal:
            stream.refuse(refusal)
        finally:
            stream.end()

    @staticmethod
    async def _write(stream: ServedStream, wake: asyncio.Event, context: Context) -> None:
        """Write what waits until the stream is ending and everything is written."""
        waiting = stream.waiting
        while True:
            while waiting:
                await context.write(serialize_envelope(*take_envelope(waiting)))
            if stream.ending:
                return
            wake.clear()
            await wake.wait()


def add_gateways(server: grpc.aio.Server, streams: ServedStreams, logger: Logger) -> list[str]:
    """Serve both; returns the full names of their services. Not the generated servicers: what is written is bytes
    already."""
    names = []
    for name, kind in (
        ("ResourceManagerGateway", PeerKind.RESOURCE_MANAGER),
        ("JobMasterGateway", PeerKind.JOB_MASTER),
    ):
        service = cluster_pb2.DESCRIPTOR.services_by_name[name].full_name
        serve = _Gateway(kind, streams, logger).serve
        method: Any = grpc.stream_stream_rpc_method_handler(serve, cluster_pb2.Envelope.FromString)
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, {"Connect": method}),))
        names.append(service)
    return names
