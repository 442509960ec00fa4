"""Relays over real gRPC on loopback: who is behind one, and what happens when it is not there, silent, gone, or talks
nonsense.

That connections through a relay are like direct ones is shown in test_connections, which runs both ways.
"""

from __future__ import annotations

import queue
import socket
import threading
from typing import Any
from unittest import mock

import grpc
import pytest

from snapline.coordinator.rpc import relays
from snapline.dataflow.ids import JobID, ResourceID
from snapline.dataflow.wire.codec import encode_envelope
from snapline.dataflow.wire.messages import Disconnect, Fenced, RegisterTaskExecutorAtJobMaster
from snapline.protos import relay_pb2, relay_pb2_grpc
from snapline.runtime.cores.connections import CloseConnection, ConnectionID, ConnectionLost, Peer, PeerKind, Send
from snapline.runtime.cores.credentials import Identity, Role
from snapline.runtime.logs import make_logger, silent_logger
from snapline.runtime.relay import relay_server as relay
from snapline.runtime.rpc import dialing
from snapline.runtime.rpc.dialing import Dialer, relay_for
from snapline.runtime.rpc.grpc_channels import COORDINATOR_METADATA_KEY, open_channel
from snapline.runtime.rpc.security import Security
from tests.services.cluster import wait_until
from tests.unit.coordinator.rpc.test_connections import DIAL, INFO, JOB, SESSION, Cluster, words

OTHER = ConnectionID("dial-2")
RM = relay_pb2.RelayStreamOpened.GATEWAY_RESOURCE_MANAGER
JM = relay_pb2.RelayStreamOpened.GATEWAY_JOB_MASTER


@pytest.fixture
def cluster():
    cluster = Cluster(relayed=True)
    yield cluster
    cluster.stop()


def test_a_relay_that_is_gone_is_a_lost_connection_and_nothing_else(cluster):
    """Both ends hear of it at once; whoever dials again gets through directly, with every message in its place."""
    cluster.dial()
    cluster.send(Disconnect("through the relay"))
    cluster.rm.next()
    cluster.relay.stop()
    assert isinstance(cluster.tm.next(), ConnectionLost)
    assert isinstance(cluster.rm.next(), ConnectionLost)
    cluster.dial(connection=OTHER)
    cluster.send(*words(3), connection=OTHER)
    assert cluster.rm.messages(3) == words(3)


def test_a_relay_counts_what_it_carries(cluster):
    """Streams that are open, and what has gone through since the start; a trunk that is lost counts, one that is not
    needed any more does not."""

    def figures():
        return {sample.full_name.removeprefix("snapline_relay_"): sample.value for sample in cluster.relay.samples()}

    assert set(figures().values()) == {0}
    cluster.dial()
    cluster.send(*words(1))
    served = cluster.rm.next().connection
    cluster.switchboard.apply([Send(served, Fenced(SESSION, Disconnect("answer")))])
    assert cluster.tm.messages(1) == [Disconnect("answer")]
    open_now = figures()
    assert (open_now["numStreams"], open_now["numTrunks"]) == (1, 1)
    assert open_now["numFramesToCoordinators"] == 2  # that it is open, and the word
    assert 1 <= open_now["numMessagesToCoordinators"] <= 2
    assert open_now["numEnvelopesToTaskManagers"] == 1
    assert (open_now["bytesQueuedForTaskManagers"], open_now["bytesQueuedForCoordinators"]) == (0, 0)
    cluster.dialer.close(DIAL)
    assert isinstance(cluster.rm.next(), ConnectionLost)
    cluster.dial(connection=OTHER)
    cluster.send(*words(1), connection=OTHER)
    cluster.rm.next()
    assert (figures()["numStreams"], figures()["numTrunksLost"]) == (1, 0)
    cluster.server.stop()
    assert isinstance(cluster.tm.next(), ConnectionLost)
    lost = figures()
    assert (lost["numStreams"], lost["numTrunks"], lost["numTrunksLost"]) == (0, 0, 1)


def test_a_relay_that_is_silent_is_gone_around_and_left_alone_for_a_while(cluster, monkeypatch):
    """It takes connections and never answers, as a stopped process does: the second one does not even try."""
    monkeypatch.setattr(dialing, "RELAY_TIMEOUT_MS", 200)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        host, port = silent.getsockname()
        cluster.dialer = Dialer(Security(), cluster.timers, cluster.clock, silent_logger(), f"{host}:{port}")
        cluster.dial()
        cluster.send(*words(3))
        assert cluster.rm.messages(3) == words(3)
        silent.settimeout(10)
        silent.accept()[0].close()
        cluster.dial(connection=OTHER)
        silent.setblocking(False)
        with pytest.raises(BlockingIOError):
            silent.accept()


def test_a_relay_that_is_left_alone_is_named_in_the_log(cluster, monkeypatch):
    """Even when whoever dialed had given up before: its next connection goes around the relay, and somebody will ask
    why."""
    monkeypatch.setattr(dialing, "RELAY_TIMEOUT_MS", 200)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        relay = "{}:{}".format(*silent.getsockname())
        cluster.dialer = Dialer(Security(), cluster.timers, cluster.clock, make_logger("", stream=cluster.log), relay)
        cluster.dialer.open(DIAL, Peer(PeerKind.RESOURCE_MANAGER, cluster.address), cluster.tm)
        cluster.dialer.close(DIAL)
        wait_until(lambda: bool(cluster.logged("dialing without the relay")), "the relay to be named")
        assert cluster.logged("dialing without the relay") == [{"relay": relay, "reason": "no answer within 200 ms"}]


def test_streams_of_a_relay_end_one_by_one(cluster):
    """The one that its actor closes is closed, the other one goes on, on the same trunk."""
    cluster.dial()
    cluster.send(Disconnect("a"))
    first = cluster.rm.next().connection
    cluster.dial(connection=OTHER)
    cluster.send(Disconnect("b"), connection=OTHER)
    second = cluster.rm.next().connection
    cluster.switchboard.apply([Send(first, Fenced(SESSION, Disconnect("bye"))), CloseConnection(first)])
    assert cluster.tm.messages(1) == [Disconnect("bye")]
    assert cluster.tm.next() == ConnectionLost(DIAL, "closed by the other side")
    cluster.switchboard.apply([Send(second, Fenced(SESSION, Disconnect("still here")))])
    assert cluster.tm.messages(1) == [Disconnect("still here")]


def test_a_coordinator_that_is_not_there_is_nobodys_fault(cluster):
    """The relay says so, and the direct way does, too."""
    cluster.dialer.open(DIAL, Peer(PeerKind.RESOURCE_MANAGER, "127.0.0.1:1"), cluster.tm)
    lost = cluster.tm.next()
    assert isinstance(lost, ConnectionLost)
    assert "UNAVAILABLE" in lost.reason


def test_a_client_that_names_no_coordinator_is_told_what_to_send(cluster):
    """For instance one that takes the relay for its coordinator."""
    with grpc.insecure_channel(cluster.relay_address) as channel:
        call: Any = channel.stream_stream("/snapline.v1.JobMasterGateway/Connect")(iter(()))
        with pytest.raises(grpc.RpcError) as refused:
            next(call)
    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "send snapline-coordinator: host:port" in str(refused.value.details())


def test_a_task_manager_that_does_not_read_loses_its_stream(cluster, monkeypatch):
    """What waits for it has a bound; its actor is told why it is gone."""
    monkeypatch.setattr(relay, "MAX_QUEUED_BYTES", 1 << 20)
    hold = threading.Event()

    def requests():
        yield encode_envelope(SESSION, [Disconnect("hello")]).SerializeToString()
        hold.wait(60)

    with grpc.insecure_channel(cluster.relay_address) as channel:
        connect: Any = channel.stream_stream("/snapline.v1.ResourceManagerGateway/Connect")
        call = connect(requests(), metadata=((COORDINATOR_METADATA_KEY, cluster.address),))
        served = cluster.rm.next().connection
        for _ in range(40):
            cluster.switchboard.apply([Send(served, Fenced(SESSION, Disconnect("x" * (1 << 20))))])
        lost = cluster.rm.next()
        assert isinstance(lost, ConnectionLost)
        assert lost.reason == "more than 1 MiB wait to be sent: the TaskManager does not read"
        hold.set()
        call.cancel()


# --- the coordinator's side -------------------------------------------------------------------------------------------


class Trunk:
    """A relay of another make."""

    def __init__(self, address):
        self._say: queue.Queue[Any] = queue.Queue()
        self._channel = open_channel(address, Security())
        self.call = relay_pb2_grpc.RelayGatewayStub(self._channel).Carry(iter(self._say.get, None))

    def say(self, *frames):
        self._say.put(relay_pb2.RelayFrames(frames=frames))

    def next(self):
        return list(next(self.call).frames)

    def close(self):
        self._say.put(None)
        self._channel.close()


@pytest.fixture
def trunk(cluster):
    trunk = Trunk(cluster.address)
    yield trunk
    trunk.close()


def opened(stream, gateway=RM):
    return relay_pb2.RelayFrame(stream=stream, opened=relay_pb2.RelayStreamOpened(gateway=gateway, peer="tm"))


def envelope(stream, *messages):
    return relay_pb2.RelayFrame(stream=stream, envelope=encode_envelope(SESSION, messages).SerializeToString())


def ended(stream, status, reason):
    return relay_pb2.RelayFrame(stream=stream, ended=relay_pb2.RelayStreamEnded(status=status, reason=reason))


def test_what_came_in_together_is_told_together(cluster, trunk):
    """One message for each actor, whatever streams it came on; the answers leave together, too."""
    told: list[Any] = []
    seen = threading.Event()

    def tell(event):
        told.append(event)
        seen.set()
        return True

    cluster.switchboard.set_resource_manager(tell)
    numbers = range(1, 6)
    trunk.say(*(opened(n) for n in numbers), *(envelope(n, Disconnect(f"{n}")) for n in numbers), ended(2, 0, "bye"))
    assert seen.wait(20)
    (together,) = told
    assert [type(event).__name__ for event in together.events] == ["Incoming"] * 5 + ["ConnectionLost"]
    connections = [event.connection for event in together.events[:5]]
    assert together.events[5] == ConnectionLost(connections[1], "bye")
    cluster.switchboard.apply([Send(c, Fenced(SESSION, Disconnect("hello"))) for c in connections])
    answers = trunk.next()
    assert [frame.stream for frame in answers] == [1, 3, 4, 5]
    assert {frame.envelope for frame in answers} == {envelope(1, Disconnect("hello")).envelope}


def test_a_refused_stream_ends_alone(cluster, trunk):
    """With the status that it would have had directly."""
    nobody = RegisterTaskExecutorAtJobMaster(JobID("x"), INFO)
    trunk.say(opened(1, JM), envelope(1, nobody), opened(2, JM), envelope(2, Disconnect("first")), opened(3))
    trunk.say(relay_pb2.RelayFrame(stream=3, envelope=b"\xff\xff"), opened(4, JM))
    frames: list[relay_pb2.RelayFrame] = []
    while len(frames) < 3:
        frames += trunk.next()
    assert [(frame.stream, frame.ended.status) for frame in frames] == [(1, 5), (2, 3), (3, 3)]
    assert frames[0].ended.reason == "no job x runs here"
    assert frames[2].ended.reason.startswith("not an Envelope")
    trunk.say(envelope(1, Disconnect("late")), envelope(4, RegisterTaskExecutorAtJobMaster(JOB, INFO)))
    assert cluster.jm.messages(1) == [RegisterTaskExecutorAtJobMaster(JOB, INFO)]


def test_what_cannot_travel_ends_its_own_stream_alone(cluster, trunk):
    """A defect of an actor's costs the one whom it would have told, and nobody else behind the relay."""
    trunk.say(opened(1), envelope(1, Disconnect("a")), opened(2), envelope(2, Disconnect("b")))
    first, second = cluster.rm.next().connection, cluster.rm.next().connection
    cluster.switchboard.apply(
        [Send(c, Fenced(SESSION, word)) for c, word in ((first, "no message"), (second, words(1)[0]))]
    )
    frames = trunk.next()
    assert [(frame.stream, frame.ended.status) for frame in frames] == [(1, 13), (2, 0)]
    assert "str is no control message" in frames[0].ended.reason
    assert frames[1].envelope == envelope(2, *words(1)).envelope
    assert isinstance(cluster.rm.next(), ConnectionLost)


def test_streams_take_turns_when_there_is_much_to_say(cluster, trunk, monkeypatch):
    """One that has a thousand messages does not keep the others waiting."""
    monkeypatch.setattr(relays, "MAX_BYTES_PER_WRITE", 1)
    trunk.say(opened(1), envelope(1, Disconnect("a")), opened(2), envelope(2, Disconnect("b")))
    first, second = cluster.rm.next().connection, cluster.rm.next().connection
    many = words(2 * dialing.MAX_MESSAGES_PER_ENVELOPE + 1)
    cluster.switchboard.apply(
        [*(Send(first, Fenced(SESSION, w)) for w in many), Send(second, Fenced(SESSION, many[0]))]
    )
    assert [trunk.next()[0].stream for _ in range(4)] == [1, 2, 1, 1]


def test_an_actor_that_has_stopped_ends_its_streams(cluster, trunk):
    """And no others."""
    trunk.say(
        opened(1),
        envelope(1, Disconnect("hello")),
        opened(2, JM),
        envelope(2, RegisterTaskExecutorAtJobMaster(JOB, INFO)),
    )
    cluster.rm.next()
    cluster.rm.alive = False
    trunk.say(envelope(1, Disconnect("hello?")), envelope(2, Disconnect("word")))
    assert trunk.next() == [ended(1, 14, "the resource-manager has stopped")]
    assert cluster.jm.messages(2)[1] == Disconnect("word")


@pytest.mark.parametrize(
    ("frames", "reason"),
    [
        ((opened(1), opened(1)), "RelayFrame.stream 1 is open already"),
        ((opened(1, 0),), "RelayStreamOpened.gateway has to be one of two, got 0"),
    ],
    ids=["opened twice", "no gateway"],
)
def test_nonsense_ends_the_connection_of_the_relay(cluster, trunk, frames, reason):
    """It cannot be known any more whose words are whose."""
    cluster.dial()
    cluster.send(Disconnect("of another relay"))
    cluster.rm.next()
    trunk.say(*frames)
    with pytest.raises(grpc.RpcError) as refused:
        trunk.next()
    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert refused.value.details() == reason
    cluster.send(Disconnect("goes on"))
    assert cluster.rm.messages(1) == [Disconnect("goes on")]


def test_an_envelope_of_millions_of_empty_messages_ends_its_stream_unparsed(cluster, trunk):
    """A relay carries them as bytes, which are parsed where they arrive."""
    many = relay_pb2.RelayFrame(stream=1, envelope=b"\x12\x00" * 1_100_000)
    trunk.say(opened(1), many)
    reason = "not an Envelope: Envelope has more than 1048576 fields, and that is the most"
    assert [(frame.ended.status, frame.ended.reason) for frame in trunk.next()] == [(3, reason)]


def test_a_relay_opens_so_many_streams_and_no_more(cluster, trunk, monkeypatch):
    """Bytes of a few megabytes were a million streams, each with a peer of its own so that no sender had too many."""
    monkeypatch.setattr(relays, "MAX_STREAMS_OF_A_RELAY", 3)
    trunk.say(*(opened(number) for number in range(1, 5)))
    with pytest.raises(grpc.RpcError) as refused:
        trunk.next()
    assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert refused.value.details() == "3 streams are the most that a connection of a relay carries"


def test_who_proves_a_name_is_one_sender_whatever_peers_its_relay_makes_up():
    """What a sender may have, and how often the log tells of it, was counted anew for each peer that a relay says."""
    senders: list[str] = []
    served = mock.Mock()
    served.add = lambda stream: senders.append(stream.sender)
    served.security.identify_token = lambda name: Identity(Role.TASK_MANAGER, name=name)
    relay = relays._RelayConnection(served, silent_logger(), "ipv4:10.0.0.9:4711")
    for number, name in enumerate(["tm-1", "tm-1", "", ""]):
        said = relay_pb2.RelayStreamOpened(gateway=RM, peer=f"ipv4:10.0.1.{number}:4711", credential=name)
        relay.take(relay_pb2.RelayFrames(frames=[relay_pb2.RelayFrame(stream=number, opened=said)]))
    assert senders[:2] == ["taskmanager tm-1 at 10.0.0.9"] * 2
    assert senders[2:] == ["taskmanager at 10.0.1.2", "taskmanager at 10.0.1.3"]


def test_a_relay_that_is_killed_loses_all_its_streams(cluster, trunk):
    """Each owner is told for each of them."""
    trunk.say(
        opened(1), envelope(1, Disconnect("a")), opened(2, JM), envelope(2, RegisterTaskExecutorAtJobMaster(JOB, INFO))
    )
    cluster.rm.next()
    cluster.jm.next()
    trunk.call.cancel()
    assert isinstance(cluster.rm.next(), ConnectionLost)
    assert isinstance(cluster.jm.next(), ConnectionLost)


def test_task_managers_spread_over_the_relays():
    """Each takes the same one always; all are taken."""
    addresses = "a:1, b:1,c:1"
    chosen = [relay_for(ResourceID(f"tm-{i}"), addresses) for i in range(300)]
    assert chosen == [relay_for(ResourceID(f"tm-{i}"), addresses) for i in range(300)]
    assert {name: chosen.count(name) > 60 for name in ("a:1", "b:1", "c:1")} == dict.fromkeys(
        ("a:1", "b:1", "c:1"), True
    )
    assert relay_for(ResourceID("tm"), "") == ""
