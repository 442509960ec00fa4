"""The core of a relay: streams share a trunk, and whatever ends is told to those whom it concerns, once."""

from __future__ import annotations

from collections import defaultdict

from hypothesis import given, settings
from hypothesis import strategies as st

from snapline.runtime.cores import relaying
from snapline.runtime.cores.connections import PeerKind
from snapline.runtime.cores.relaying import (
    INVALID_ARGUMENT,
    RESOURCE_EXHAUSTED,
    UNAVAILABLE,
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
    SendEnvelope,
    SendFrame,
    StreamAccepted,
    StreamClosed,
    StreamNumber,
    TrunkLost,
    TrunkNumber,
    TrunkOpened,
)

A, B, C = (StreamNumber(n) for n in (1, 2, 3))
FIRST, SECOND = TrunkNumber(1), TrunkNumber(2)
HERE, THERE = "here:1", "there:1"
RM, JM = PeerKind.RESOURCE_MANAGER, PeerKind.JOB_MASTER


def relay_with(*streams: StreamNumber) -> Relay:
    """All to one coordinator, on an open trunk."""
    relay = Relay()
    for stream in streams:
        relay.handle(StreamAccepted(stream, RM, HERE))
    relay.handle(TrunkOpened(FIRST))
    return relay


def test_streams_to_one_coordinator_share_a_trunk():
    """It is dialed once; who comes before it is open is admitted when it is, who comes later at once."""
    relay = Relay()
    assert relay.handle(StreamAccepted(A, RM, HERE, "tm-a")) == [OpenTrunk(FIRST, HERE)]
    assert relay.handle(StreamAccepted(B, JM, HERE, "tm-b")) == []
    assert relay.handle(TrunkOpened(FIRST)) == [
        SendFrame(FIRST, Frame(A, Opened(RM, "tm-a"))),
        AdmitStream(A),
        SendFrame(FIRST, Frame(B, Opened(JM, "tm-b"))),
        AdmitStream(B),
    ]
    assert relay.handle(StreamAccepted(C, RM, HERE)) == [SendFrame(FIRST, Frame(C, Opened(RM, ""))), AdmitStream(C)]
    assert (relay.streams, relay.trunks) == (3, 1)


def test_another_coordinator_has_another_trunk():
    """During a change of leaders, streams to the old and to the new one stand side by side."""
    relay = relay_with(A)
    assert relay.handle(StreamAccepted(B, RM, THERE)) == [OpenTrunk(SECOND, THERE)]
    assert [effect.trunk for effect in relay.handle(TrunkOpened(SECOND)) if isinstance(effect, SendFrame)] == [SECOND]


def test_envelopes_pass_in_both_directions():
    """As they are."""
    relay = relay_with(A, B)
    assert relay.handle(EnvelopeReceived(B, b"hello")) == [SendFrame(FIRST, Frame(B, b"hello"))]
    assert relay.handle(FramesReceived(FIRST, [Frame(B, b"one"), Frame(A, b"two"), Frame(B, b"three")])) == [
        SendEnvelope(B, b"one"),
        SendEnvelope(A, b"two"),
        SendEnvelope(B, b"three"),
    ]


def test_what_is_said_before_the_stream_is_admitted_goes_nowhere():
    """It would come before the frame that opens the stream."""
    relay = Relay()
    relay.handle(StreamAccepted(A, RM, HERE))
    assert relay.handle(EnvelopeReceived(A, b"too early")) == []


def test_a_stream_that_its_task_manager_closes_is_over_for_the_coordinator_too():
    """The others stay; what still comes for it is dropped."""
    relay = relay_with(A, B)
    assert relay.handle(StreamClosed(A, "gone")) == [SendFrame(FIRST, Frame(A, Ended(0, "gone")))]
    assert relay.handle(StreamClosed(A, "gone")) == []
    assert relay.handle(FramesReceived(FIRST, [Frame(A, b"late"), Frame(A, Ended(0, "")), Frame(B, b"on time")])) == [
        SendEnvelope(B, b"on time")
    ]


def test_a_task_manager_that_does_not_read_loses_its_stream():
    """Both ends are told; nobody else is."""
    relay = relay_with(A, B)
    assert relay.handle(StreamClosed(A, "does not read", RESOURCE_EXHAUSTED)) == [
        SendFrame(FIRST, Frame(A, Ended(RESOURCE_EXHAUSTED, "does not read"))),
        EndStream(A, RESOURCE_EXHAUSTED, "does not read"),
    ]


def test_an_envelope_that_is_too_large_for_a_trunk_ends_its_own_stream_alone(monkeypatch):
    """The trunk would not take it, and would end with everybody on it."""
    monkeypatch.setattr(relaying, "MAX_ENVELOPE_BYTES", 3)
    relay = relay_with(A, B)
    assert relay.handle(EnvelopeReceived(A, b"fit")) == [SendFrame(FIRST, Frame(A, b"fit"))]
    sent, ended = relay.handle(EnvelopeReceived(A, b"does not"))
    assert isinstance(sent, SendFrame) and isinstance(sent.frame.body, Ended)
    assert isinstance(ended, EndStream)
    assert (ended.stream, ended.status) == (A, RESOURCE_EXHAUSTED)
    assert relay.streams == 1


def test_a_refusal_of_the_coordinator_reaches_the_task_manager_as_it_is():
    """Status and reason."""
    relay = relay_with(A, B)
    assert relay.handle(FramesReceived(FIRST, [Frame(A, Ended(5, "no such job"))])) == [EndStream(A, 5, "no such job")]


def test_the_trunk_is_closed_after_its_last_stream():
    """And dialed again for the next one."""
    relay = relay_with(A, B)
    relay.handle(StreamClosed(A, "gone"))
    assert relay.handle(FramesReceived(FIRST, [Frame(B, Ended(0, "bye"))])) == [
        EndStream(B, 0, "bye"),
        CloseTrunk(FIRST),
    ]
    assert relay.handle(TrunkLost(FIRST, "late")) == []
    assert relay.handle(StreamAccepted(C, RM, HERE)) == [OpenTrunk(SECOND, HERE)]
    assert relay.handle(TrunkOpened(FIRST)) == []


def test_a_trunk_that_is_lost_takes_its_streams_with_it():
    """Each is told why; the next stream dials anew."""
    relay = relay_with(A, B)
    why = "the relay lost the coordinator at here:1: connection reset"
    assert relay.handle(TrunkLost(FIRST, "connection reset")) == [
        EndStream(A, UNAVAILABLE, why),
        EndStream(B, UNAVAILABLE, why),
    ]
    assert (relay.streams, relay.trunks) == (0, 0)
    assert relay.handle(StreamAccepted(C, RM, HERE)) == [OpenTrunk(SECOND, HERE)]
    assert relay.handle(TrunkLost(SECOND, "refused")) == [
        EndStream(C, UNAVAILABLE, "the relay cannot reach the coordinator at here:1: refused")
    ]


def test_a_stream_has_to_say_for_which_coordinator_it_is():
    """A TaskManager that takes the relay for a coordinator."""
    (ended,) = Relay().handle(StreamAccepted(A, RM, ""))
    assert isinstance(ended, EndStream)
    assert ended.status == INVALID_ARGUMENT
    assert "snapline-coordinator: host:port" in ended.reason


# --- whatever happens -------------------------------------------------------------------------------------------------


class World:
    """TaskManagers, coordinators and the network around one relay; what it may do is checked with every effect."""

    def __init__(self) -> None:
        self.relay = Relay()
        self.accepted = 0
        self.streams: dict[StreamNumber, str] = {}
        """Not over yet: its coordinator."""
        self.admitted: set[StreamNumber] = set()
        self.trunks: dict[TrunkNumber, str] = {}
        self.open_trunks: set[TrunkNumber] = set()
        self.trunk_of: dict[StreamNumber, TrunkNumber] = {}
        """As the coordinators see it."""
        self.sent: dict[StreamNumber, list[bytes]] = defaultdict(list)
        self.arrived: dict[StreamNumber, list[bytes]] = defaultdict(list)
        self.answered: dict[StreamNumber, list[bytes]] = defaultdict(list)
        self.delivered: dict[StreamNumber, list[bytes]] = defaultdict(list)

    def handle(self, event) -> None:
        for effect in self.relay.handle(event):
            self.perform(effect)

    def perform(self, effect) -> None:
        match effect:
            case OpenTrunk(trunk, coordinator):
                assert trunk not in self.trunks
                assert coordinator not in self.trunks.values(), "two trunks to one coordinator"
                self.trunks[trunk] = coordinator
            case CloseTrunk(trunk):
                assert trunk in self.trunks
                assert trunk not in self.trunk_of.values(), "streams are left on the trunk"
                del self.trunks[trunk]
                self.open_trunks.discard(trunk)
            case SendFrame(trunk, Frame(stream, body)):
                assert trunk in self.open_trunks
                if isinstance(body, Opened):
                    assert stream not in self.trunk_of
                    assert self.streams[stream] == self.trunks[trunk]
                    self.trunk_of[stream] = trunk
                elif isinstance(body, Ended):
                    assert self.trunk_of.pop(stream) == trunk
                else:
                    assert self.trunk_of[stream] == trunk
                    self.arrived[stream].append(body)
            case AdmitStream(stream):
                assert stream in self.trunk_of
                assert stream not in self.admitted
                self.admitted.add(stream)
            case SendEnvelope(stream, envelope):
                assert stream in self.streams
                self.delivered[stream].append(envelope)
            case EndStream(stream):
                del self.streams[stream]

    def check(self) -> None:
        assert self.relay.streams == len(self.streams)
        assert self.relay.trunks == len(self.trunks)
        assert set(self.streams.values()) == set(self.trunks.values()), "a trunk for nobody, or nobody's trunk"
        for stream, coordinator in self.streams.items():
            is_open = any(self.trunks[trunk] == coordinator for trunk in self.open_trunks)
            assert (stream in self.admitted) == is_open
        assert self.arrived == self.sent
        assert self.delivered == self.answered


def pick(data, things, label):
    things = sorted(things)
    return data.draw(st.sampled_from(things), label=label) if things else None


def step(world: World, data) -> None:
    word = data.draw(st.binary(max_size=2), label="word")
    match data.draw(st.sampled_from("accept say say answer close refuse open lose".split()), label="what"):
        case "accept":
            world.accepted += 1
            stream = StreamNumber(world.accepted)
            world.streams[stream] = data.draw(st.sampled_from([HERE, THERE]), label="to")
            world.handle(StreamAccepted(stream, RM, world.streams[stream]))
        case "say" if (stream := pick(data, world.admitted & world.streams.keys(), "who")) is not None:
            world.sent[stream].append(word)
            world.handle(EnvelopeReceived(stream, word))
        case "answer" if (stream := pick(data, world.trunk_of, "whom")) is not None:
            world.answered[stream].append(word)
            world.handle(FramesReceived(world.trunk_of[stream], [Frame(stream, word)]))
        case "refuse" if (stream := pick(data, world.trunk_of, "whom")) is not None:
            world.handle(FramesReceived(world.trunk_of.pop(stream), [Frame(stream, Ended(5, "no"))]))
        case "close" if (stream := pick(data, world.streams, "who")) is not None:
            status = data.draw(st.sampled_from([0, RESOURCE_EXHAUSTED]), label="status")
            if not status:
                del world.streams[stream]
            world.handle(StreamClosed(stream, "gone", status))
        case "open" if (trunk := pick(data, world.trunks.keys() - world.open_trunks, "trunk")) is not None:
            world.open_trunks.add(trunk)
            world.handle(TrunkOpened(trunk))
        case "lose" if (trunk := pick(data, world.trunks, "trunk")) is not None:
            del world.trunks[trunk]
            world.open_trunks.discard(trunk)
            world.trunk_of = {stream: of for stream, of in world.trunk_of.items() if of != trunk}
            world.handle(TrunkLost(trunk, "reset"))


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_whatever_happens_streams_are_whole_and_nothing_is_left_behind(data):
    """Order is kept within a stream, none speaks before it is open or after it is over, each end is told once."""
    world = World()
    for _ in range(data.draw(st.integers(0, 40), label="steps")):
        step(world, data)
        world.check()
    for trunk in list(world.trunks):
        del world.trunks[trunk]
        world.open_trunks.discard(trunk)
        world.handle(TrunkLost(trunk, "the end"))
    assert (world.relay.streams, world.relay.trunks) == (0, 0)
