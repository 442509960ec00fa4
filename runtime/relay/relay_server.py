"""The shell of a relay: gRPC on both sides of `snapline.runtime.cores.relaying`, all on one loop.

Serves both gateways without knowing their messages: an envelope stays bytes from a TaskManager's stream to the trunk.
What goes to a coordinator waits a moment for more (`relay.linger`), and again while more comes, so that the
acknowledgements of one checkpoint come in a few messages; the other way nothing waits. Queues have a bound in bytes: a
TaskManager that does not read loses what waits for it, and its stream; a coordinator that does not read loses the
trunk.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections import deque
from collections.abc import AsyncIterator, Iterator
from functools import partial
from typing import Any

import grpc
import grpc.aio
from google.protobuf.message import DecodeError

from snapline.protos import cluster_pb2, relay_pb2
from snapline.runtime.cores.connections import RELAY_TIMEOUT_MS, PeerKind
from snapline.runtime.cores.credentials import Identity, Role
from snapline.runtime.cores.relaying import (
    MAX_BYTES_PER_WRITE,
    OK,
    RESOURCE_EXHAUSTED,
    AdmitStream,
    CloseTrunk,
    Ended,
    EndStream,
    EnvelopeReceived,
    Frame,
    FramesReceived,
    Opened,
    OpenTrunk,
    Relay,
    RelayEvent,
    SendEnvelope,
    SendFrame,
    StreamAccepted,
    StreamClosed,
    StreamNumber,
    TrunkLost,
    TrunkNumber,
    TrunkOpened,
)
from snapline.runtime.logs import Logger
from snapline.runtime.metrics import Sample
from snapline.runtime.rpc.grpc_channels import COORDINATOR_METADATA_KEY, STREAM_IS_OPEN, open_aio_channel, reason_of
from snapline.runtime.rpc.rpc_server import RELAY, RpcServer, retrieve_exception
from snapline.runtime.rpc.security import TOKEN_METADATA_KEY, Security

MAX_LINGERS = 4
"""How many times `relay.linger` something waits for more at most, while more comes."""

MAX_QUEUED_BYTES = 256 << 20
"""What may wait to be written to one TaskManager or one coordinator."""

TRUNK_TIMEOUT_SECONDS = RELAY_TIMEOUT_MS / 1000 * 0.75
"""How long a coordinator may take to open a trunk: whoever waits behind it hears of it before it takes the relay itself
for gone."""

_SERVICES = {
    cluster_pb2.DESCRIPTOR.services_by_name["ResourceManagerGateway"].full_name: PeerKind.RESOURCE_MANAGER,
    cluster_pb2.DESCRIPTOR.services_by_name["JobMasterGateway"].full_name: PeerKind.JOB_MASTER,
}
CARRY = f"/{relay_pb2.DESCRIPTOR.services_by_name['RelayGateway'].full_name}/Carry"
"""The call of a trunk."""
_GATEWAYS = {
    PeerKind.RESOURCE_MANAGER: relay_pb2.RelayStreamOpened.GATEWAY_RESOURCE_MANAGER,
    PeerKind.JOB_MASTER: relay_pb2.RelayStreamOpened.GATEWAY_JOB_MASTER,
}
COUNTERS = (
    "numFramesToCoordinators",
    "numMessagesToCoordinators",
    "numEnvelopesToTaskManagers",
    "numTrunksLost",
    "numTrunksFailed",
)
"""Since the start. Frames come together in messages; a lost trunk was open, and took its streams with it; a failed one
did not open."""

_STATUS = {code.value[0]: code for code in grpc.StatusCode}

Context = grpc.aio.ServicerContext[bytes, bytes]


class _Stream:
    """The stream of one TaskManager that the relay serves."""

    def __init__(self) -> None:
        self.waiting: deque[bytes] = deque()
        self.waiting_bytes = 0
        self.wake = asyncio.Event()
        self.is_admitted = False
        self.end: EndStream | None = None

    def finish(self, end: EndStream) -> None:
        """After what waits has been written; whoever does not read it is not waited for with more than is on its
        way."""
        self.end = self.end or end
        if self.end.status == RESOURCE_EXHAUSTED:
            self.waiting.clear()
            self.waiting_bytes = 0
        self.wake.set()


class _TrunkCall:
    """A connection to a coordinator."""

    def __init__(self) -> None:
        self.waiting: deque[Frame] = deque()
        self.waiting_bytes = 0
        self.wake = asyncio.Event()
        self.is_closing = False
        self.task: asyncio.Task[None] | None = None


class RelayServer:
    """One relay, from `start` to `stop`."""

    def __init__(self, security: Security, linger_ms: int, logger: Logger) -> None:
        self._security = security.acting_as(Identity(Role.RELAY))
        self._linger_seconds = linger_ms / 1000
        self._logger = logger
        self._core = Relay()
        self._numbers = itertools.count(1)
        self._streams: dict[StreamNumber, _Stream] = {}
        self._trunks: dict[TrunkNumber, _TrunkCall] = {}
        self._counts = dict.fromkeys(COUNTERS, 0)
        self._server = RpcServer(security, logger, RELAY)

    def start(self, address: str, bind_host: str = "") -> str:
        """Listen and serve; returns host:port. Raises CannotListen."""
        return self._server.start(address, self._add_servicers, bind_host)

    def stop(self) -> None:
        """Stop serving; every stream is lost. Idempotent."""
        self._server.stop()

    def samples(self) -> Iterator[Sample]:
        """What Prometheus is shown; from any thread."""
        yield Sample("relay", "numStreams", self._core.streams)
        yield Sample("relay", "numTrunks", self._core.trunks)
        streams, trunks = list(self._streams.values()), list(self._trunks.values())
        yield Sample("relay", "bytesQueuedForTaskManagers", sum(stream.waiting_bytes for stream in streams))
        yield Sample("relay", "bytesQueuedForCoordinators", sum(trunk.waiting_bytes for trunk in trunks))
        for name, count in self._counts.items():
            yield Sample("relay", name, count)

    def _add_servicers(self, server: grpc.aio.Server) -> list[str]:
        for service, kind in _SERVICES.items():
            method: Any = grpc.stream_stream_rpc_method_handler(partial(self._serve, kind))
            server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, {"Connect": method}),))
        return list(_SERVICES)

    # --- effects ------------------------------------------------------------------------------------------------------

    def _handle(self, event: RelayEvent) -> None:
        for effect in self._core.handle(event):
            match effect:
                case SendFrame(trunk, frame):
                    self._send_frame(trunk, frame)
                case SendEnvelope(stream, envelope):
                    self._send_envelope(stream, envelope)
                case AdmitStream(stream):
                    if (admitted := self._streams.get(stream)) is not None:
                        admitted.is_admitted = True
                        admitted.wake.set()
                case EndStream(stream):
                    if (ended := self._streams.get(stream)) is not None:
                        ended.finish(effect)
                case OpenTrunk(trunk, coordinator):
                    opened = self._trunks[trunk] = _TrunkCall()
                    opened.task = asyncio.create_task(self._run_trunk(trunk, opened, coordinator))
                case CloseTrunk(trunk):
                    if (closed := self._trunks.pop(trunk, None)) is not None:
                        closed.is_closing = True
                        closed.wake.set()

    def _send_frame(self, number: TrunkNumber, frame: Frame) -> None:
        trunk = self._trunks.get(number)
        if trunk is None:
            return
        self._counts["numFramesToCoordinators"] += 1
        trunk.waiting.append(frame)
        trunk.waiting_bytes += len(frame.body) if type(frame.body) is bytes else 0
        trunk.wake.set()
        if trunk.waiting_bytes > MAX_QUEUED_BYTES and trunk.task is not None:
            trunk.task.cancel()

    def _send_envelope(self, number: StreamNumber, envelope: bytes) -> None:
        stream = self._streams.get(number)
        if stream is None:
            return
        self._counts["numEnvelopesToTaskManagers"] += 1
        stream.waiting.append(envelope)
        stream.waiting_bytes += len(envelope)
        stream.wake.set()
        if stream.waiting_bytes > MAX_QUEUED_BYTES:
            reason = f"more than {MAX_QUEUED_BYTES >> 20} MiB wait to be sent: the TaskManager does not read"
            asyncio.get_running_loop().call_soon(self._handle, StreamClosed(number, reason, RESOURCE_EXHAUSTED))

    # --- TaskManagers -------------------------------------------------------------------------------------------------

    async def _serve(self, kind: PeerKind, requests: AsyncIterator[bytes], context: Context) -> None:
        """One stream of one TaskManager."""
        number = StreamNumber(next(self._numbers))
        stream = self._streams[number] = _Stream()
        metadata = {str(key): str(value) for key, value in context.invocation_metadata() or ()}
        reading: asyncio.Task[None] | None = None
        try:
            coordinator, credential = metadata.get(COORDINATOR_METADATA_KEY, ""), metadata.get(TOKEN_METADATA_KEY, "")
            self._handle(StreamAccepted(number, kind, coordinator, context.peer(), credential))
            while not stream.is_admitted and stream.end is None:
                await self._wait_for_wake(stream.wake)
            if stream.is_admitted:
                await context.send_initial_metadata(STREAM_IS_OPEN)
                reading = asyncio.create_task(self._read(number, requests))
                reading.add_done_callback(retrieve_exception)
                await self._write(stream, context)
            if stream.end is not None and stream.end.status != OK:
                code = _STATUS.get(stream.end.status, grpc.StatusCode.UNKNOWN)
                await context.abort(code, stream.end.reason)
        finally:
            del self._streams[number]
            if reading is not None:
                reading.cancel()
            self._handle(StreamClosed(number, "the other side is gone"))

    async def _read(self, number: StreamNumber, requests: AsyncIterator[bytes]) -> None:
        try:
            async for envelope in requests:
                self._handle(EnvelopeReceived(number, envelope))
            self._handle(StreamClosed(number, "closed by the other side"))
        finally:
            if (stream := self._streams.get(number)) is not None:
                stream.finish(EndStream(number, OK, ""))

    async def _write(self, stream: _Stream, context: Context) -> None:
        while True:
            while stream.waiting:
                envelope = stream.waiting.popleft()
                stream.waiting_bytes -= len(envelope)
                await context.write(envelope)
            if stream.end is not None:
                return
            await self._wait_for_wake(stream.wake)

    @staticmethod
    async def _wait_for_wake(wake: asyncio.Event) -> None:
        await wake.wait()
        wake.clear()

    # --- coordinators -------------------------------------------------------------------------------------------------

    async def _run_trunk(self, number: TrunkNumber, trunk: _TrunkCall, coordinator: str) -> None:
        """One trunk, from its dialing to its end."""
        logger = self._logger.bind(coordinator=coordinator, trunk=number)
        reason, is_open = "the relay stops", False
        reading: asyncio.Task[None] | None = None
        try:
            async with open_aio_channel(coordinator, self._security) as channel:
                # what comes is decoded here: gRPC writes a traceback for each message that is none
                carry: Any = channel.stream_stream(CARRY, relay_pb2.RelayFrames.SerializeToString)
                call = carry(metadata=self._security.metadata)
                sent = await asyncio.wait_for(call.initial_metadata(), TRUNK_TIMEOUT_SECONDS)
                opened = {(str(key), str(value)) for key, value in sent or ()}
                if opened.issuperset(STREAM_IS_OPEN):
                    is_open = True
                    logger.info("trunk opened")
                    self._handle(TrunkOpened(number))
                reading = asyncio.create_task(self._read_trunk(number, call))
                reading.add_done_callback(retrieve_exception)
                reading.add_done_callback(lambda _: trunk.wake.set())
                with contextlib.suppress(asyncio.InvalidStateError, grpc.RpcError):  # it is over; reading says why
                    await self._write_trunk(trunk, reading, call)
                reason = "closed by the other side"
                await reading
        except asyncio.CancelledError:
            if trunk.waiting_bytes <= MAX_QUEUED_BYTES:
                raise
            reason = f"more than {MAX_QUEUED_BYTES >> 20} MiB wait to be sent: it does not read"
        except TimeoutError:
            reason = f"no answer within {TRUNK_TIMEOUT_SECONDS} s"
        except grpc.RpcError as error:
            reason = reason_of(error)
        except DecodeError as error:
            reason = f"what it sent is no message: {str(error).splitlines()[0]}"
        finally:
            if reading is not None:
                reading.cancel()
            self._trunks.pop(number, None)
            if is_open:
                logger.info("trunk ended", reason="not needed any more" if trunk.is_closing else reason)
                self._counts["numTrunksLost"] += not trunk.is_closing
            else:
                self._counts["numTrunksFailed"] += 1
                self._server.refusals.note_stream("trunks", logger.warning, "trunk did not open", reason=reason)
            self._handle(TrunkLost(number, reason))

    async def _read_trunk(self, number: TrunkNumber, call: Any) -> None:
        async for data in call:
            frames = relay_pb2.RelayFrames.FromString(data).frames
            self._handle(FramesReceived(number, [_decode(frame) for frame in frames]))

    async def _write_trunk(self, trunk: _TrunkCall, reading: asyncio.Task[None], call: Any) -> None:
        """Until the other side or the core has closed it."""
        while not reading.done():
            while trunk.waiting:
                self._counts["numMessagesToCoordinators"] += 1
                await call.write(_take_frames(trunk))
            if trunk.is_closing:
                await call.done_writing()
                return
            await self._wait_for_wake(trunk.wake)
            await self._linger(trunk)

    async def _linger(self, trunk: _TrunkCall) -> None:
        """As long as more comes, but not for long."""
        for _ in range(MAX_LINGERS if self._linger_seconds else 0):
            waiting = len(trunk.waiting)
            if trunk.is_closing or trunk.waiting_bytes >= MAX_BYTES_PER_WRITE:
                return
            await asyncio.sleep(self._linger_seconds)
            if len(trunk.waiting) == waiting:
                return


def _take_frames(trunk: _TrunkCall) -> relay_pb2.RelayFrames:
    frames = relay_pb2.RelayFrames()
    add = frames.frames.add
    size = 0
    while trunk.waiting and size < MAX_BYTES_PER_WRITE:
        frame = trunk.waiting.popleft()
        match frame.body:
            case bytes(envelope):
                size += len(envelope)
                add(stream=frame.stream, envelope=envelope)
            case Opened(kind, peer, credential):
                opened = relay_pb2.RelayStreamOpened(gateway=_GATEWAYS[kind], peer=peer, credential=credential)
                add(stream=frame.stream, opened=opened)
            case Ended(status, reason):
                add(stream=frame.stream, ended=relay_pb2.RelayStreamEnded(status=status, reason=reason))
    trunk.waiting_bytes -= size
    return frames


def _decode(frame: relay_pb2.RelayFrame) -> Frame:
    """From a coordinator; it opens none."""
    if frame.WhichOneof("kind") == "envelope":
        return Frame(StreamNumber(frame.stream), frame.envelope)
    return Frame(StreamNumber(frame.stream), Ended(frame.ended.status, frame.ended.reason))
