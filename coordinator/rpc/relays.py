"""RelayGateway: where relays dial in (`snapline.runtime.relay.relay_server`), each with the streams of many
TaskManagers on one.

To everybody else in this process a relayed stream is a served one like those of `snapline.coordinator.rpc.gateways`: it
has a connection id, an owner, a queue with a bound, and an end of its own. What is different is the cost: the frames of
many TaskManagers come in one message, and what there is to say to all of them leaves in one. A relay that is gone takes
its streams with it: each owner is told ConnectionLost, as if every TaskManager behind it had been cut off.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import Any

import grpc
import grpc.aio
from google.protobuf.message import DecodeError

from snapline.coordinator.rpc.gateways import ServedStream, ServedStreams, StreamRefused
from snapline.dataflow.wire.codec import WireError
from snapline.dataflow.wire.envelope_bytes import serialize_envelope
from snapline.dataflow.wire.field_counts import refuse_many_fields
from snapline.protos import cluster_pb2, relay_pb2, relay_pb2_grpc
from snapline.runtime.cores.connections import ConnectionID, PeerKind
from snapline.runtime.cores.credentials import CredentialRefused, Identity, Role
from snapline.runtime.cores.permissions import PREFIX, refuse_call
from snapline.runtime.cores.relaying import MAX_BYTES_PER_WRITE, MAX_ENVELOPE_BYTES
from snapline.runtime.cores.senders import host_of
from snapline.runtime.logs import Logger
from snapline.runtime.rpc.dialing import take_envelope
from snapline.runtime.rpc.grpc_channels import STREAM_IS_OPEN
from snapline.runtime.rpc.rpc_server import retrieve_exception

MAX_STREAMS_OF_A_RELAY = 131_072
"""Streams that one connection of a relay carries: as many as one host may have without a relay."""
Context = grpc.aio.ServicerContext[relay_pb2.RelayFrames, relay_pb2.RelayFrames]

_KINDS = {
    relay_pb2.RelayStreamOpened.GATEWAY_RESOURCE_MANAGER: PeerKind.RESOURCE_MANAGER,
    relay_pb2.RelayStreamOpened.GATEWAY_JOB_MASTER: PeerKind.JOB_MASTER,
}

_METHODS = {
    PeerKind.RESOURCE_MANAGER: f"{PREFIX}ResourceManagerGateway/Connect",
    PeerKind.JOB_MASTER: f"{PREFIX}JobMasterGateway/Connect",
}


class _RelayedStream(ServedStream):
    """The stream of one TaskManager that comes through a relay."""

    __slots__ = ("number",)

    def __init__(
        self,
        number: int,
        kind: PeerKind,
        connection: ConnectionID,
        identity: Identity,
        peer: str,
        wake: Callable[[_RelayedStream], None],
    ) -> None:
        """`number` is the one that the relay gave to the stream, `peer` who has dialed in there, or the relay."""
        super().__init__(kind, connection, identity, peer, lambda: wake(self))
        self.number = number


class _RelayConnection:
    """One connection of one relay, on the loop."""

    def __init__(self, streams: ServedStreams, logger: Logger, relay: str) -> None:
        """`relay`: what gRPC calls the peer."""
        self._served = streams
        self._logger = logger
        self._relay = relay
        self._streams: dict[int, _RelayedStream] = {}
        self._ready: dict[int, _RelayedStream] = {}
        """Streams that have something to say, or to end, in the order in which they had it first."""
        self._wake = asyncio.Event()
        self._is_gone = False

    # --- in -----------------------------------------------------------------------------------------------------------

    def take(self, frames: relay_pb2.RelayFrames) -> None:
        """All that came in together. Raises StreamRefused for what no relay says."""
        for frame in frames.frames:
            kind = frame.WhichOneof("kind")
            stream = self._streams.get(frame.stream)
            if kind == "opened":
                self._open(frame.stream, stream, frame.opened)
            elif stream is None:  # it has ended here, and the relay does not know yet
                continue
            elif kind == "envelope":
                try:
                    refuse_many_fields(frame.envelope, cluster_pb2.Envelope)
                    self._served.received(stream, cluster_pb2.Envelope.FromString(frame.envelope))
                except DecodeError as error:
                    stream.refuse(StreamRefused(grpc.StatusCode.INVALID_ARGUMENT, f"not an Envelope: {error}"))
                except StreamRefused as refusal:
                    stream.refuse(refusal)
            elif kind == "ended":
                self._end_stream(stream, frame.ended.reason)

    def _open(self, number: int, stream: _RelayedStream | None, opened: relay_pb2.RelayStreamOpened) -> None:
        kind = _KINDS.get(opened.gateway)
        if kind is None:
            raise StreamRefused(
                grpc.StatusCode.INVALID_ARGUMENT,
                f"RelayStreamOpened.gateway has to be one of two, got {opened.gateway}",
            )
        if stream is not None:
            raise StreamRefused(grpc.StatusCode.INVALID_ARGUMENT, f"RelayFrame.stream {number} is open already")
        if len(self._streams) >= MAX_STREAMS_OF_A_RELAY:
            reason = f"{MAX_STREAMS_OF_A_RELAY} streams are the most that a connection of a relay carries"
            raise StreamRefused(grpc.StatusCode.RESOURCE_EXHAUSTED, reason)
        identity, refusal = self._identify(kind, opened.credential)
        # the relay may say any peer, a new one for each stream: who proves a name is known by that
        sender = self._relay if identity.name else opened.peer
        stream = self._streams[number] = _RelayedStream(
            number, kind, self._served.draw_id(), identity, sender, self._mark_ready
        )
        self._served.add(stream)
        if refusal is not None:
            stream.refuse(refusal)
        self._served.refusals.note_stream(
            stream.sender,
            self._logger.info,
            "relayed stream opened",
            connection=stream.connection,
            gateway=kind.value,
            peer=opened.peer,
            stream=number,
            who=str(identity),
            refused=str(refusal or ""),
        )

    def _identify(self, kind: PeerKind, credential: str) -> tuple[Identity, StreamRefused | None]:
        """Who dialed in at the relay, and why not: the relay's word is not taken for it."""
        try:
            identity = self._served.security.identify_token(credential)
        except CredentialRefused as error:
            return Identity(Role.TASK_MANAGER), StreamRefused(grpc.StatusCode.UNAUTHENTICATED, str(error))
        line = refuse_call(identity, _METHODS[kind])
        return identity, StreamRefused(grpc.StatusCode.PERMISSION_DENIED, line) if line else None

    def _end_stream(self, stream: _RelayedStream, reason: str) -> None:
        del self._streams[stream.number]
        self._ready.pop(stream.number, None)
        self._served.tell_end(stream, reason)

    def mark_gone(self) -> None:
        """Nothing comes in any more."""
        self._is_gone = True
        self._wake.set()

    def lose_all(self, reason: str) -> None:
        """The relay is gone: so are its streams."""
        for stream in list(self._streams.values()):
            self._end_stream(stream, reason)

    # --- out ----------------------------------------------------------------------------------------------------------

    def _mark_ready(self, stream: _RelayedStream) -> None:
        if stream.number in self._streams:
            self._ready[stream.number] = stream
            self._wake.set()

    async def write(self, context: Context) -> None:
        """Write what all streams have to say, until the relay is gone."""
        while True:
            while self._ready:
                await context.write(self._take_frames())
            if self._is_gone:
                return
            self._wake.clear()
            await self._wake.wait()

    def _take_frames(self) -> relay_pb2.RelayFrames:
        """As much as one write should carry."""
        frames = relay_pb2.RelayFrames()
        add = frames.frames.add
        size = 0
        ready, self._ready = self._ready, {}
        unfinished: dict[int, _RelayedStream] = {}
        for number, stream in ready.items():
            if size >= MAX_BYTES_PER_WRITE:
                self._ready[number] = stream
                continue
            if stream.waiting:
                envelope = self._take_envelope(stream)
                size += len(envelope)
                if envelope:
                    add(stream=number, envelope=envelope)
            if stream.waiting:
                unfinished[number] = stream
            elif stream.ending:
                refusal = stream.refusal
                reason = "closed by us" if refusal is None else str(refusal)
                status = 0 if refusal is None else refusal.code.value[0]
                add(stream=number, ended=relay_pb2.RelayStreamEnded(status=status, reason=reason))
                self._end_stream(stream, reason)
        self._ready |= unfinished  # after those that have not had their turn
        return frames

    @staticmethod
    def _take_envelope(stream: _RelayedStream) -> bytes:
        """Empty: it cannot travel, which ends this stream and no other."""
        reason = ""
        try:
            envelope = serialize_envelope(*take_envelope(stream.waiting))
            if len(envelope) > MAX_ENVELOPE_BYTES:
                reason = f"an envelope of {len(envelope) >> 20} MiB is too large for a relay"
        except WireError as error:
            reason = str(error)
        if not reason:
            return envelope
        stream.waiting.clear()
        stream.refuse(StreamRefused(grpc.StatusCode.INTERNAL, reason))
        return b""


class RelayGateway(relay_pb2_grpc.RelayGatewayServicer):
    """Serves the streams of relays, each of which carries those of many TaskManagers."""

    def __init__(self, streams: ServedStreams, logger: Logger) -> None:
        self._streams = streams
        self._logger = logger

    async def Carry(self, request_iterator: Any, context: Any) -> None:  # type: ignore[override]  # noqa: N802
        logger = self._logger.bind(gateway="relay", peer=context.peer())
        note = partial(self._streams.refusals.note_stream, f"relays at {host_of(context.peer())}", logger.info)
        relay = _RelayConnection(self._streams, logger, context.peer())
        reason = "its relay is gone"
        reading: asyncio.Task[None] | None = None
        try:
            await context.send_initial_metadata(STREAM_IS_OPEN)
            note("relay connected")
            reading = asyncio.create_task(self._read(relay, request_iterator))
            reading.add_done_callback(retrieve_exception)
            await relay.write(context)
            await reading
        except StreamRefused as refusal:
            reason = str(refusal)
            await context.abort(refusal.code, reason)
        finally:
            if reading is not None:
                reading.cancel()
            note("relay is gone", reason=reason)
            relay.lose_all(reason)

    @staticmethod
    async def _read(relay: _RelayConnection, requests: AsyncIterator[relay_pb2.RelayFrames]) -> None:
        try:
            async for frames in requests:
                relay.take(frames)
        finally:
            relay.mark_gone()
