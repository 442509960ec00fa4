"""The core of a relay: which stream belongs to which trunk, and when either is over.

A relay stands between TaskManagers and coordinators (`protos/relay.proto`). Each TaskManager's stream names the
coordinator that it wants; all streams to one coordinator share a trunk, which is dialed for the first of them and
closed after the last. A stream is admitted when its trunk is open, not before: whoever dials through a relay learns the
same as without one. What a trunk's end takes with it is told to every stream, and a new stream dials a new trunk; the
relay itself never tries again, because the TaskManagers do. Nothing is kept of what is said, so that a relay can be
killed at any moment: that is a lost connection to everybody behind it, and nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NewType

from snapline.runtime.cores.connections import PeerKind

StreamNumber = NewType("StreamNumber", int)
"""A TaskManager's stream; drawn by the shell, never used twice."""
TrunkNumber = NewType("TrunkNumber", int)
"""A connection to a coordinator; drawn here, never used twice."""

MAX_BYTES_PER_WRITE = 1 << 20
"""Frames are gathered up to about this size."""

MAX_ENVELOPE_BYTES = 252 << 20
"""Below what one message of gRPC may have (`snapline.runtime.rpc.grpc_channels`) by more than a whole write, with which
it may travel."""

OK = 0
INVALID_ARGUMENT = 3
RESOURCE_EXHAUSTED = 8
UNAVAILABLE = 14
"""gRPC's numbers, as they stand in RelayStreamEnded."""


@dataclass(frozen=True, slots=True)
class Opened:
    """First frame of a stream, to the coordinator."""

    kind: PeerKind
    peer: str
    credential: str = field(default="", repr=False)
    """What the TaskManager has shown to the relay."""


@dataclass(frozen=True, slots=True)
class Ended:
    """Last frame of a stream, in either direction."""

    status: int
    reason: str


@dataclass(frozen=True, slots=True)
class Frame:
    """`bytes`: a serialized Envelope, which nobody here looks into."""

    stream: StreamNumber
    body: Opened | bytes | Ended


# --- events -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class StreamAccepted:
    """A TaskManager dialed in. `coordinator`: host:port."""

    stream: StreamNumber
    kind: PeerKind
    coordinator: str
    peer: str = ""
    credential: str = field(default="", repr=False)


@dataclass(frozen=True, slots=True)
class EnvelopeReceived:
    """An envelope has come from a TaskManager on one of the relay's streams."""

    stream: StreamNumber
    envelope: bytes


@dataclass(frozen=True, slots=True)
class StreamClosed:
    """Event: the TaskManager of a stream closed it, in order or not; or it does not read what it is sent (`status`
    RESOURCE_EXHAUSTED)."""

    stream: StreamNumber
    reason: str
    status: int = OK


@dataclass(frozen=True, slots=True)
class TrunkOpened:
    """The connection that an OpenTrunk asked for is there."""

    trunk: TrunkNumber


@dataclass(frozen=True, slots=True)
class TrunkLost:
    """An OpenTrunk failed, or the trunk broke or was closed by the coordinator."""

    trunk: TrunkNumber
    reason: str


@dataclass(frozen=True, slots=True)
class FramesReceived:
    """Frames have come from a coordinator on the trunk to it."""

    trunk: TrunkNumber
    frames: Sequence[Frame]


# --- effects ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class OpenTrunk:
    """Dial the coordinator; answered by TrunkOpened or TrunkLost."""

    trunk: TrunkNumber
    coordinator: str


@dataclass(frozen=True, slots=True)
class CloseTrunk:
    """Close after everything sent before has left; nothing of this trunk is reported after that."""

    trunk: TrunkNumber


@dataclass(frozen=True, slots=True)
class SendFrame:
    """Put it on the trunk."""

    trunk: TrunkNumber
    frame: Frame


@dataclass(frozen=True, slots=True)
class AdmitStream:
    """Tell the TaskManager that its stream is open."""

    stream: StreamNumber


@dataclass(frozen=True, slots=True)
class SendEnvelope:
    """Put it on the TaskManager's stream."""

    stream: StreamNumber
    envelope: bytes


@dataclass(frozen=True, slots=True)
class EndStream:
    """End the TaskManager's stream after everything sent before has left; nothing of it is reported after that."""

    stream: StreamNumber
    status: int
    reason: str


RelayEvent = StreamAccepted | EnvelopeReceived | StreamClosed | TrunkOpened | TrunkLost | FramesReceived
RelayEffect = OpenTrunk | CloseTrunk | SendFrame | AdmitStream | SendEnvelope | EndStream


@dataclass(slots=True)
class _Trunk:
    number: TrunkNumber
    coordinator: str
    is_open: bool = False
    streams: dict[StreamNumber, StreamAccepted] = field(default_factory=dict)
    """In the order in which they came."""


class Relay:
    """All streams and trunks of one relay."""

    def __init__(self) -> None:
        self._trunks: dict[TrunkNumber, _Trunk] = {}
        self._to: dict[str, _Trunk] = {}
        """The trunk that new streams take, by coordinator."""
        self._of: dict[StreamNumber, _Trunk] = {}
        self._drawn = 0

    @property
    def streams(self) -> int:
        """How many are accepted and not over."""
        return len(self._of)

    @property
    def trunks(self) -> int:
        """How many are dialed and not over."""
        return len(self._trunks)

    def handle(self, event: RelayEvent, now_ms: int = 0) -> list[RelayEffect]:
        """Take one event. Whatever is said of a stream or trunk that is over has no effect."""
        match event:
            case EnvelopeReceived(stream, envelope):
                if len(envelope) > MAX_ENVELOPE_BYTES:
                    reason = f"an envelope of {len(envelope) >> 20} MiB is too large for a relay"
                    return self._stream_closed(stream, Ended(RESOURCE_EXHAUSTED, reason))
                trunk = self._of.get(stream)
                # nobody may speak before the stream is admitted; what comes all the same goes nowhere
                return [SendFrame(trunk.number, Frame(stream, envelope))] if trunk is not None and trunk.is_open else []
            case FramesReceived(number, frames):
                return self._frames_received(self._trunks.get(number), frames)
            case StreamAccepted():
                return self._stream_accepted(event)
            case StreamClosed(stream, reason, status):
                return self._stream_closed(stream, Ended(status, reason))
            case TrunkOpened(number):
                return self._trunk_opened(self._trunks.get(number))
            case TrunkLost(number, reason):
                return self._trunk_lost(self._trunks.get(number), reason)

    def _stream_accepted(self, event: StreamAccepted) -> list[RelayEffect]:
        if not event.coordinator:
            reason = "the stream names no coordinator: send snapline-coordinator: host:port in the metadata"
            return [EndStream(event.stream, INVALID_ARGUMENT, reason)]
        effects: list[RelayEffect] = []
        trunk = self._to.get(event.coordinator)
        if trunk is None:
            self._drawn += 1
            trunk = _Trunk(TrunkNumber(self._drawn), event.coordinator)
            self._trunks[trunk.number] = self._to[event.coordinator] = trunk
            effects.append(OpenTrunk(trunk.number, event.coordinator))
        trunk.streams[event.stream] = event
        self._of[event.stream] = trunk
        return effects + (self._admit(trunk, event) if trunk.is_open else [])

    @staticmethod
    def _admit(trunk: _Trunk, event: StreamAccepted) -> list[RelayEffect]:
        return [
            SendFrame(trunk.number, Frame(event.stream, Opened(event.kind, event.peer, event.credential))),
            AdmitStream(event.stream),
        ]

    def _stream_closed(self, stream: StreamNumber, ended: Ended) -> list[RelayEffect]:
        trunk = self._of.get(stream)
        if trunk is None:
            return []
        effects: list[RelayEffect] = []
        if trunk.is_open:
            effects.append(SendFrame(trunk.number, Frame(stream, ended)))
        if ended.status != OK:
            effects.append(EndStream(stream, ended.status, ended.reason))
        return effects + self._forget(trunk, stream)

    def _trunk_opened(self, trunk: _Trunk | None) -> list[RelayEffect]:
        if trunk is None:
            return []
        trunk.is_open = True
        return [effect for event in trunk.streams.values() for effect in self._admit(trunk, event)]

    def _trunk_lost(self, trunk: _Trunk | None, reason: str) -> list[RelayEffect]:
        if trunk is None:
            return []
        del self._trunks[trunk.number], self._to[trunk.coordinator]
        for stream in trunk.streams:
            del self._of[stream]
        what = "the relay lost" if trunk.is_open else "the relay cannot reach"
        text = f"{what} the coordinator at {trunk.coordinator}: {reason}"
        return [EndStream(stream, UNAVAILABLE, text) for stream in trunk.streams]

    def _frames_received(self, trunk: _Trunk | None, frames: Sequence[Frame]) -> list[RelayEffect]:
        effects: list[RelayEffect] = []
        if trunk is None:
            return effects
        for frame in frames:
            if frame.stream not in trunk.streams:
                continue
            match frame.body:
                case bytes(envelope):
                    effects.append(SendEnvelope(frame.stream, envelope))
                case Ended(status, reason):
                    effects.append(EndStream(frame.stream, status, reason))
                    effects += self._forget(trunk, frame.stream)
        return effects

    def _forget(self, trunk: _Trunk, stream: StreamNumber) -> list[RelayEffect]:
        del self._of[stream], trunk.streams[stream]
        if trunk.streams:
            return []
        del self._trunks[trunk.number], self._to[trunk.coordinator]
        return [CloseTrunk(trunk.number)]
