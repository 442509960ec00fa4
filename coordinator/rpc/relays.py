"""RelayGateway: where relays dial in (`runtime.relay`), each with the streams of many TaskManagers on one.

To everybody else in this process a relayed stream is a served one like those of `coordinator.rpc.gateways`: it has a connection
id, an owner, a queue with a bound, and an end of its own. What is different is the cost: all frames that came in together are told to their
actor as one message, and what all streams of a relay have to say leaves in one write. A relay that is gone takes its streams with it:
each owner is told ConnectionLost, as if every TaskManager behind it had been cut off.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc
import grpc.aio
from google.protobuf.message import DecodeError

from coordinator.rpc.gateways import Refused, ServedStream, ServedStreams, owner_of, reason_of_end
from coordinator.rpc.switchboard import Switchboard, Tell
from dataflow.wire import WireError, decode_envelope, encode_envelope
from protos import cluster_pb2, relay_pb2, relay_pb2_grpc
from runtime.actor import Events, Incoming
from runtime.connections import ConnectionID, ConnectionLost, PeerKind
from runtime.dialing import take_envelope
from runtime.grpc_channels import STREAM_IS_OPEN
from runtime.logs import Logger
from runtime.relaying import MAX_BYTES_PER_WRITE

Context = grpc.aio.ServicerContext[relay_pb2.RelayFrames, relay_pb2.RelayFrames]

_KINDS = {
    relay_pb2.RelayStreamOpened.GATEWAY_RESOURCE_MANAGER: PeerKind.RESOURCE_MANAGER,
    relay_pb2.RelayStreamOpened.GATEWAY_JOB_MASTER: PeerKind.JOB_MASTER,
}


class _RelayedStream(ServedStream):
    """One TaskManager's stream."""

    __slots__ = ("kind", "number", "owner", "status")

    def __init__(
        self, number: int, kind: PeerKind, connection: ConnectionID, wake: Callable[[_RelayedStream], None]
    ) -> None:
        super().__init__(connection, lambda: wake(self))
        self.number = number
        """The relay's."""
        self.kind = kind
        self.owner: Tell | None = None
        """Known from the first envelope on."""
        self.status: tuple[grpc.StatusCode, str] = (grpc.StatusCode.OK, "")
        """How it ends."""


class _Relay:
    """One connection of one relay, on the loop."""

    def __init__(self, switchboard: Switchboard, streams: ServedStreams, logger: Logger) -> None:
        self._switchboard = switchboard
        self._served = streams
        self._logger = logger
        self._streams: dict[int, _RelayedStream] = {}
        self._ready: deque[_RelayedStream] = deque()
        """Streams that have something to say, or to end; each at most once."""
        self._is_ready: set[int] = set()
        self._wake = asyncio.Event()
        self._told: dict[Tell, list[Any]] = {}
        self.is_ending = False

    # --- in -----------------------------------------------------------------------------------------------------------

    def take(self, frames: relay_pb2.RelayFrames) -> None:
        """All that came in together."""
        for frame in frames.frames:
            kind = frame.WhichOneof("kind")
            if kind == "opened":
                self._opened(frame.stream, frame.opened)
                continue
            stream = self._streams.get(frame.stream)
            if stream is None:  # it has ended here, and the relay does not know yet
                continue
            if kind == "envelope":
                self._received(stream, frame.envelope)
            elif kind == "ended":
                self._forget(stream)
                self._tell_lost(stream, frame.ended.reason)
        self._tell_all()

    def _opened(self, number: int, opened: relay_pb2.RelayStreamOpened) -> None:
        kind = _KINDS.get(opened.gateway)
        if kind is None or number in self._streams:
            raise Refused(
                grpc.StatusCode.INVALID_ARGUMENT,
                f"RelayStreamOpened.gateway {opened.gateway} is of a kind that this version does not know"
                if kind is None
                else f"RelayFrame.stream {number} is open already",
            )
        stream = _RelayedStream(number, kind, self._switchboard.draw_served_id(), self._has_to_say)
        self._streams[number] = stream
        self._served.add(stream)
        self._logger.info(
            "relayed stream opened", connection=stream.connection, gateway=kind.value, peer=opened.peer, stream=number
        )

    def _received(self, stream: _RelayedStream, envelope: bytes) -> None:
        try:
            session, messages = decode_envelope(cluster_pb2.Envelope.FromString(envelope))
            if stream.owner is None:
                stream.owner = owner_of(self._switchboard, stream.kind, messages)
        except DecodeError as error:
            self._refuse(stream, grpc.StatusCode.INVALID_ARGUMENT, f"not an Envelope: {error}")
        except WireError as error:
            self._refuse(stream, grpc.StatusCode.INVALID_ARGUMENT, str(error))
        except Refused as refusal:
            self._refuse(stream, refusal.code, str(refusal))
        else:
            if not stream.ending:
                self._told.setdefault(stream.owner, []).append(Incoming(stream.connection, session, messages))

    def _refuse(self, stream: _RelayedStream, code: grpc.StatusCode, reason: str) -> None:
        stream.status = (code, reason)
        stream.ending = True
        self._tell_lost(stream, reason)
        self._has_to_say(stream)

    def _tell_lost(self, stream: _RelayedStream, reason: str) -> None:
        if stream.owner is not None and not stream.closed_by_core:
            self._told.setdefault(stream.owner, []).append(ConnectionLost(stream.connection, reason))
            stream.owner = None

    def _tell_all(self) -> None:
        told, self._told = self._told, {}
        for owner, events in told.items():
            if not owner(Events(tuple(events))):
                for stream in [stream for stream in self._streams.values() if stream.owner == owner]:
                    stream.owner = None
                    self._refuse(stream, grpc.StatusCode.UNAVAILABLE, f"the {stream.kind.value} has stopped")

    def lost(self, reason: str) -> None:
        """The relay is gone: so are its streams."""
        for stream in list(self._streams.values()):
            self._forget(stream)
            self._tell_lost(stream, reason)
        self._tell_all()

    def _forget(self, stream: _RelayedStream) -> None:
        self._streams.pop(stream.number, None)
        self._served.forget(stream)

    # --- out ----------------------------------------------------------------------------------------------------------

    def end(self) -> None:
        """Nothing comes in any more."""
        self.is_ending = True
        self._wake.set()

    def _has_to_say(self, stream: _RelayedStream) -> None:
        if stream.number not in self._is_ready:
            self._is_ready.add(stream.number)
            self._ready.append(stream)
            self._wake.set()

    async def write(self, context: Context) -> None:
        """Write what all streams have to say, until the relay is gone."""
        while not self.is_ending:
            while self._ready:
                await context.write(self._take_frames())
            self._wake.clear()
            await self._wake.wait()

    def _take_frames(self) -> relay_pb2.RelayFrames:
        """As much as one write should carry."""
        frames = relay_pb2.RelayFrames()
        add = frames.frames.add
        size = 0
        while self._ready and size < MAX_BYTES_PER_WRITE:
            stream = self._ready.popleft()
            self._is_ready.discard(stream.number)
            if stream.number not in self._streams:
                continue
            if stream.waiting:
                envelope = encode_envelope(*take_envelope(stream.waiting)).SerializeToString()
                size += len(envelope)
                add(stream=stream.number, envelope=envelope)
            if stream.waiting:
                self._has_to_say(stream)
            elif stream.ending:
                self._end_stream(stream, add(stream=stream.number).ended)
        return frames

    def _end_stream(self, stream: _RelayedStream, ended: relay_pb2.RelayStreamEnded) -> None:
        code, reason = stream.status
        if stream.overflowed:
            reason = reason_of_end(stream, reason)
            self._tell_lost(stream, reason)
            self._tell_all()
        ended.status, ended.reason = code.value[0], reason
        self._forget(stream)


class RelayGateway(relay_pb2_grpc.RelayGatewayServicer):
    """Streams of relays."""

    def __init__(self, switchboard: Switchboard, streams: ServedStreams, logger: Logger) -> None:
        self._switchboard = switchboard
        self._streams = streams
        self._logger = logger

    async def Carry(self, request_iterator: Any, context: Any) -> None:  # type: ignore[override]  # noqa: N802
        logger = self._logger.bind(gateway="relay", peer=context.peer())
        relay = _Relay(self._switchboard, self._streams, logger)
        reason = "its relay is gone"
        reading: asyncio.Task[None] | None = None
        try:
            await context.send_initial_metadata(STREAM_IS_OPEN)
            logger.info("relay connected")
            reading = asyncio.create_task(self._read(relay, request_iterator))
            reading.add_done_callback(lambda task: task.cancelled() or task.exception())
            await relay.write(context)
            await reading
            reason = "its relay closed the connection"
        except Refused as refusal:
            reason = str(refusal)
            await context.abort(refusal.code, reason)
        finally:
            if reading is not None:
                reading.cancel()
            logger.info("relay is gone", reason=reason)
            relay.lost(reason)

    @staticmethod
    async def _read(relay: _Relay, requests: AsyncIterator[relay_pb2.RelayFrames]) -> None:
        try:
            async for frames in requests:
                relay.take(frames)
        finally:
            relay.end()
