"""Connections over real gRPC on loopback: dialed on threads, served on the loop, and local ones without either."""

from __future__ import annotations

import io
import json
import queue
import threading
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import grpc
import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from snapline.coordinator.rpc import gateways
from snapline.coordinator.rpc.gateways import ServedStreams, add_gateways
from snapline.coordinator.rpc.leaders import LeaderPublisher
from snapline.coordinator.rpc.relays import RelayGateway
from snapline.coordinator.rpc.switchboard import Switchboard
from snapline.dataflow.config import Configuration
from snapline.dataflow.ids import CheckpointID, ExecutionAttemptID, JobID, JobVertexID, LeaderSessionID, ResourceID
from snapline.dataflow.wire.codec import encode_envelope
from snapline.dataflow.wire.messages import (
    AcknowledgeCheckpoint,
    Disconnect,
    Fenced,
    HeartbeatRequest,
    NotifyCheckpointComplete,
    RegisterTaskExecutorAtJobMaster,
    TaskManagerInfo,
)
from snapline.protos import cluster_pb2_grpc, relay_pb2_grpc
from snapline.runtime.clock import SystemClock
from snapline.runtime.cores.connections import (
    CloseConnection,
    ConnectionID,
    ConnectionLost,
    ConnectionOpened,
    OpenConnection,
    Peer,
    PeerKind,
    Send,
    SendToTasks,
)
from snapline.runtime.cores.inbox import Events, Incoming
from snapline.runtime.leaders.leader_retrieval import LeaderAddress, LeaderRetrieval, LeaderTable
from snapline.runtime.logs import make_logger, silent_logger
from snapline.runtime.relay.relay_server import RelayServer
from snapline.runtime.rpc import dialing, sender_limits
from snapline.runtime.rpc.dialing import MAX_MESSAGES_PER_ENVELOPE, Dialer
from snapline.runtime.rpc.grpc_channels import open_channel
from snapline.runtime.rpc.rpc_server import CannotListen, RpcServer, parse_address
from snapline.runtime.rpc.security import Security, SecurityError
from snapline.runtime.timers import TimerScheduler
from tests.services.certificates import Authority, why_not

SESSION = LeaderSessionID("session")
DIAL = ConnectionID("dial-1")
JOB = JobID("j" * 32)
INFO = TaskManagerInfo(ResourceID("tm"), "127.0.0.1:1", 2, "0.1.0", "localhost", 1)


class Inbox:
    """Stands where an actor does: everything told, in order."""

    def __init__(self):
        self.told: queue.Queue[Any] = queue.Queue()
        self.alive = True

    def __call__(self, event):
        if self.alive:
            for each in event.events if isinstance(event, Events) else (event,):
                self.told.put(each)
        return self.alive

    def next(self):
        return self.told.get(timeout=20)

    def messages(self, n):
        """The next n messages, whatever envelopes they came in."""
        found: list[Any] = []
        while len(found) < n:
            found += self.next().messages
        return found


class Cluster:
    """A server with its switchboard, and a dialer."""

    def __init__(self, security=None, *, relayed=False, of_relay=None):
        """`of_relay`: what the relay has for its security, if that is not everybody's."""
        self.security = security or Security()
        self.clock = SystemClock()
        self.timers = TimerScheduler(self.clock)
        self.log = io.StringIO()
        """Of relay and dialer."""
        logger = make_logger("", stream=self.log)
        self.relay = RelayServer(of_relay or self.security, 1, logger) if relayed else None
        self.relay_address = self.relay.start("127.0.0.1:0") if self.relay else ""
        self.dialer = Dialer(self.security, self.timers, self.clock, logger, self.relay_address)
        self.switchboard = Switchboard(self.dialer)
        self.server = RpcServer(self.security, silent_logger())
        self.streams = ServedStreams(self.switchboard, self.server.loop, self.security, self.server.refusals)
        self.leaders = LeaderPublisher(self.server.loop)
        self.address = self.server.start("127.0.0.1:0", self.add)
        self.switchboard.serve_with(self.streams, [self.address])
        self.rm, self.jm, self.tm = Inbox(), Inbox(), Inbox()
        self.switchboard.set_resource_manager(self.rm)
        self.switchboard.add_job_master(JOB, self.jm)

    def add(self, server):
        gateways = add_gateways(server, self.streams, silent_logger())
        relay_pb2_grpc.add_RelayGatewayServicer_to_server(RelayGateway(self.streams, silent_logger()), server)
        cluster_pb2_grpc.add_LeaderRetrievalServicer_to_server(self.leaders, server)
        return [*gateways, "snapline.v1.LeaderRetrieval"]

    def logged(self, message):
        """What relay or dialer logged with this message."""
        lines = [json.loads(line) for line in self.log.getvalue().splitlines()]
        return [line["context"] for line in lines if line["msg"] == message]

    def dial(self, kind=PeerKind.RESOURCE_MANAGER, connection=DIAL):
        self.dialer.open(connection, Peer(kind, self.address), self.tm)
        assert self.tm.next() == ConnectionOpened(connection)

    def send(self, *messages, connection=DIAL):
        for message in messages:
            self.dialer.send(connection, Fenced(SESSION, message))

    def stop(self):
        self.dialer.shutdown()
        if self.relay is not None:
            self.relay.stop()
        self.server.stop()
        self.timers.close()

    def stop_server_first(self):
        self.server.stop()
        self.stop()


@pytest.fixture(params=[False, True], ids=["direct", "relayed"])
def cluster(request):
    cluster = Cluster(relayed=request.param)
    yield cluster
    cluster.stop()


def test_a_task_manager_that_reads_nothing_loses_its_stream(monkeypatch):
    """It was refused for all that waited for it, and then went on to wait: its actor was not told, and the stream and
    what it held stayed for as long as the other side did."""
    monkeypatch.setattr(gateways, "MAX_QUEUED_MESSAGES", 5)
    cluster, hold = Cluster(), threading.Event()

    def requests():
        yield encode_envelope(SESSION, [Disconnect("hello")]).SerializeToString()
        hold.wait(60)

    try:
        with grpc.insecure_channel(cluster.address) as channel:
            connect: Any = channel.stream_stream("/snapline.v1.ResourceManagerGateway/Connect")
            call = connect(requests())
            served = cluster.rm.next().connection
            for _ in range(40):
                cluster.switchboard.apply([Send(served, Fenced(SESSION, Disconnect("x" * (1 << 20))))])
            lost = cluster.rm.next()
            assert isinstance(lost, ConnectionLost)
            assert lost.reason == "more than 5 messages wait to be sent: the other side does not read"
            assert len(cluster.streams) == 0
            hold.set()
            call.cancel()
    finally:
        cluster.stop()


class LoggingCluster(Cluster):
    """One whose gateways write into the log of relay and dialer, too."""

    def add(self, server):
        logger = make_logger("", stream=self.log)
        relay_pb2_grpc.add_RelayGatewayServicer_to_server(RelayGateway(self.streams, logger), server)
        return add_gateways(server, self.streams, logger)


@pytest.mark.parametrize("relayed", [False, True])
def test_streams_that_are_opened_and_closed_all_the_time_do_not_fill_the_log(monkeypatch, relayed):
    """Who has a credential had a line written for each, some thousand a second; a few are, and then one a second."""
    monkeypatch.setattr(sender_limits, "NEWS_AT_ONCE", 2)
    monkeypatch.setattr(sender_limits, "time", SimpleNamespace(monotonic=lambda: 0.0))
    cluster = LoggingCluster(relayed=relayed)
    try:
        for number in range(5):
            dial = ConnectionID(f"dial-{number + 1}")
            cluster.dial(connection=dial)
            cluster.send(*words(1), connection=dial)
            cluster.rm.next()
            cluster.dialer.close(dial)
            assert isinstance(cluster.rm.next(), ConnectionLost)
    finally:
        cluster.stop()
    assert len(cluster.logged("relayed stream opened" if relayed else "stream ended")) == 2


def words(n):
    return [Disconnect(f"word {i}") for i in range(n)]


def test_messages_arrive_in_order_in_both_directions(cluster):
    """More than fit into one envelope."""
    said = words(2 * MAX_MESSAGES_PER_ENVELOPE + 7)
    cluster.dial()
    cluster.send(*said)
    first = cluster.rm.next()
    served = first.connection
    assert served.startswith("serve-")
    assert first.session == SESSION
    assert first.messages + cluster.rm.messages(len(said) - len(first.messages)) == said
    outbox = cluster.switchboard.outbox(cluster.rm)
    perform = outbox.performers()
    for word in said:
        perform[Send](Send(served, Fenced(SESSION, word)))
    outbox.flush()
    assert cluster.tm.messages(len(said)) == said


ATTEMPTS = tuple(ExecutionAttemptID("g", JobVertexID("v"), index, 0) for index in range(3))
COMPLETE = NotifyCheckpointComplete(JOB, ATTEMPTS[0], CheckpointID(7), 5, CheckpointID(6))
COMPLETES = [replace(COMPLETE, attempt_id=attempt_id) for attempt_id in ATTEMPTS]


def test_what_is_for_many_tasks_keeps_its_place(cluster):
    """Between two words to the same TaskManager; a stream that is gone takes nothing from the others."""
    cluster.dial()
    cluster.send(Disconnect("hello"))
    served = cluster.rm.next().connection
    first, last = words(2)
    everybody = ((ConnectionID("serve-999"), ATTEMPTS[:1]), (served, ATTEMPTS))
    cluster.switchboard.apply(
        [
            Send(served, Fenced(SESSION, first)),
            SendToTasks(SESSION, COMPLETE, everybody),
            Send(served, Fenced(SESSION, last)),
        ]
    )
    assert cluster.tm.messages(5) == [first, *COMPLETES, last]


def test_much_for_many_tasks_is_several_envelopes(cluster, monkeypatch):
    """What is for one TaskManager stays together; what waits is not all put into one message."""
    monkeypatch.setattr(dialing, "MAX_MESSAGES_PER_ENVELOPE", 4)
    cluster.dial()
    cluster.send(Disconnect("hello"))
    served = cluster.rm.next().connection
    cluster.switchboard.apply([SendToTasks(SESSION, COMPLETE, ((served, ATTEMPTS),))] * 3)
    sizes: list[int] = []
    while sum(sizes) < 9:
        sizes.append(len(cluster.tm.next().messages))
    assert sizes == [6, 3]


def test_envelopes_do_not_mix_sessions(cluster):
    """A message of a new leader never hides behind the old one's session."""
    cluster.dial()
    for session in ("old", "new"):
        cluster.dialer.send(DIAL, Fenced(LeaderSessionID(session), Disconnect(session)))
    told = [cluster.rm.next(), cluster.rm.next()]
    assert [(envelope.session, envelope.messages) for envelope in told] == [
        ("old", [Disconnect("old")]),
        ("new", [Disconnect("new")]),
    ]


def test_the_dialing_side_closes_after_everything_has_left(cluster):
    """The server's actor gets the last word, then ConnectionLost; the closing side hears nothing."""
    cluster.dial()
    cluster.send(*words(50))
    cluster.dialer.close(DIAL)
    assert cluster.rm.messages(50) == words(50)
    assert isinstance(lost := cluster.rm.next(), ConnectionLost)
    assert lost.reason == "closed by the other side"
    assert cluster.tm.told.empty()


def test_the_serving_side_closes_after_everything_has_left(cluster):
    """The other way round."""
    cluster.dial()
    cluster.send(Disconnect("hello"))
    served = cluster.rm.next().connection
    cluster.switchboard.apply([Send(served, Fenced(SESSION, Disconnect("bye"))), CloseConnection(served)])
    assert cluster.tm.messages(1) == [Disconnect("bye")]
    assert cluster.tm.next() == ConnectionLost(DIAL, "closed by the other side")
    assert cluster.rm.told.empty()


def test_a_connection_to_nobody_is_lost():
    """Answered, with a reason."""
    timers = TimerScheduler(SystemClock())
    dialer = Dialer(Security(), timers, SystemClock(), silent_logger())
    inbox = Inbox()
    dialer.open(DIAL, Peer(PeerKind.RESOURCE_MANAGER, "127.0.0.1:1"), inbox)
    lost = inbox.next()
    assert isinstance(lost, ConnectionLost)
    assert "UNAVAILABLE" in lost.reason
    dialer.shutdown()
    timers.close()


def test_a_stopped_server_is_noticed(cluster):
    """By the connection, long before a heartbeat is missed."""
    cluster.dial()
    cluster.send(Disconnect("hello"))
    cluster.rm.next()
    cluster.server.stop()
    assert isinstance(cluster.tm.next(), ConnectionLost)
    assert isinstance(cluster.rm.next(), ConnectionLost)


def test_a_stream_to_a_job_master_says_for_which_job(cluster):
    """And ends with a clear status when it does not, or when there is no such job."""
    cluster.dial(PeerKind.JOB_MASTER)
    cluster.send(RegisterTaskExecutorAtJobMaster(JOB, INFO), Disconnect("next"))
    assert cluster.jm.messages(2) == [RegisterTaskExecutorAtJobMaster(JOB, INFO), Disconnect("next")]
    for connection, first, reason in (
        (ConnectionID("dial-2"), RegisterTaskExecutorAtJobMaster(JobID("x"), INFO), "NOT_FOUND: no job x runs here"),
        (ConnectionID("dial-3"), HeartbeatRequest(), "INVALID_ARGUMENT: the first message to a JobMaster has to be"),
    ):
        cluster.dial(PeerKind.JOB_MASTER, connection)
        cluster.send(first, connection=connection)
        assert cluster.tm.next().reason.startswith(reason)


def test_a_coordinator_that_does_not_lead_refuses(cluster):
    """The caller looks for the leader elsewhere."""
    cluster.switchboard.set_resource_manager(None)
    cluster.dial()
    cluster.send(Disconnect("hello"))
    assert cluster.tm.next().reason == "UNAVAILABLE: this coordinator does not lead"


def test_an_incomplete_message_ends_the_stream_by_name(cluster):
    """What the author of another client has to know."""
    cluster.dial()
    attempt = ExecutionAttemptID("", JobVertexID("v"), 0, 0)
    cluster.send(AcknowledgeCheckpoint(JOB, attempt, CheckpointID(1)))
    assert cluster.tm.next().reason == "INVALID_ARGUMENT: ExecutionAttemptID.execution_graph_id is missing"


# --- connections inside the process -----------------------------------------------------------------------------------


def open_local(cluster):
    outbox = cluster.switchboard.outbox(cluster.jm)
    perform = outbox.performers()
    perform[OpenConnection](OpenConnection(DIAL, Peer(PeerKind.RESOURCE_MANAGER, cluster.address)))
    assert cluster.jm.next() == ConnectionOpened(DIAL)
    return outbox, perform


def test_our_own_address_is_no_detour_over_the_network(cluster):
    """JobMaster and ResourceManager of one process talk directly, and cannot tell the difference."""
    outbox, perform = open_local(cluster)
    for word in words(3):
        perform[Send](Send(DIAL, Fenced(SESSION, word)))
    outbox.flush()
    told, *rest = (cluster.rm.next() for _ in range(3))
    assert [told, *rest] == [Incoming(told.connection, SESSION, [word]) for word in words(3)]
    cluster.switchboard.apply([Send(told.connection, Fenced(SESSION, HeartbeatRequest()))])
    assert cluster.jm.next() == Incoming(DIAL, SESSION, [HeartbeatRequest()])
    cluster.switchboard.apply([SendToTasks(SESSION, COMPLETE, ((told.connection, ATTEMPTS),))])
    assert cluster.jm.messages(len(COMPLETES)) == COMPLETES
    perform[CloseConnection](CloseConnection(DIAL))
    outbox.flush()
    assert cluster.rm.next() == ConnectionLost(told.connection, "closed by the other side")
    assert cluster.jm.told.empty()


def test_equal_ids_of_different_actors_do_not_meet(cluster):
    """Each JobMaster counts its dialed connections from 1."""
    other = Inbox()
    outbox, perform = open_local(cluster)
    second = cluster.switchboard.outbox(other)
    second.performers()[OpenConnection](OpenConnection(DIAL, Peer(PeerKind.RESOURCE_MANAGER, cluster.address)))
    assert other.next() == ConnectionOpened(DIAL)
    perform[CloseConnection](CloseConnection(DIAL))
    outbox.flush()
    assert isinstance(cluster.rm.next(), ConnectionLost)
    second.performers()[Send](Send(DIAL, Fenced(SESSION, Disconnect("still here"))))
    second.flush()
    assert cluster.rm.messages(1) == [Disconnect("still here")]


def test_an_actor_that_stops_loses_its_local_connections(cluster):
    """The other end is told, whether it notices first or the shell does."""
    outbox, perform = open_local(cluster)
    cluster.rm.alive = False
    perform[Send](Send(DIAL, Fenced(SESSION, Disconnect("hello?"))))
    outbox.flush()
    assert cluster.jm.next() == ConnectionLost(DIAL, "the other side has stopped")
    cluster.rm.alive = True
    open_local(cluster)
    cluster.switchboard.drop_actor(cluster.rm)
    assert cluster.jm.next() == ConnectionLost(DIAL, "the other side has stopped")


def test_no_leader_in_this_process_is_answered(cluster):
    """With ConnectionLost, as when dialing elsewhere fails."""
    cluster.switchboard.set_resource_manager(None)
    cluster.switchboard.open(DIAL, Peer(PeerKind.RESOURCE_MANAGER, cluster.address), cluster.jm)
    assert cluster.jm.next() == ConnectionLost(DIAL, f"no resource-manager at {cluster.address}")


# --- leaders, health, secret ------------------------------------------------------------------------------------------


def test_leaders_are_followed(cluster):
    """The table now, and after each change."""
    tables: queue.Queue[LeaderTable] = queue.Queue()
    retrieval = LeaderRetrieval(["127.0.0.1:1", cluster.address], Security(), tables.put, silent_logger())
    here = LeaderAddress(cluster.address, SESSION)
    cluster.leaders.set_resource_manager(here)
    retrieval.start()
    try:
        assert tables.get(timeout=20) == LeaderTable(here)
        cluster.leaders.set_job_master(JOB, here)
        assert tables.get(timeout=20) == LeaderTable(here, {JOB: here})
        cluster.leaders.set_job_master(JOB, None)
        assert tables.get(timeout=20) == LeaderTable(here)
    finally:
        retrieval.stop()


def test_leaders_elsewhere_are_published_with_our_own(cluster):
    """The ResourceManager of another coordinator and its JobMasters; of a job that both know, ours."""
    tables: queue.Queue[LeaderTable] = queue.Queue()
    here, there = LeaderAddress(cluster.address, SESSION), LeaderAddress("there:1", SESSION)
    cluster.leaders.set_job_master(JOB, here)
    cluster.leaders.set_elsewhere(LeaderTable(there, {JOB: there, JobID("other"): there}))
    retrieval = LeaderRetrieval([cluster.address], Security(), tables.put, silent_logger())
    retrieval.start()
    try:
        assert tables.get(timeout=20) == LeaderTable(there, {JOB: here, JobID("other"): there})
        cluster.leaders.set_elsewhere(LeaderTable(there))
        assert tables.get(timeout=20) == LeaderTable(there, {JOB: here})
    finally:
        retrieval.stop()


def test_health_and_reflection_answer_any_client(cluster):
    """Probes, and tools that want to know what can be called."""
    with open_channel(cluster.address, Security()) as channel:
        health = health_pb2_grpc.HealthStub(channel).Check(
            health_pb2.HealthCheckRequest(service="snapline.v1.JobMasterGateway")
        )
        assert health.status == health_pb2.HealthCheckResponse.SERVING
        request = reflection_pb2.ServerReflectionRequest(list_services="")
        (answer,) = reflection_pb2_grpc.ServerReflectionStub(channel).ServerReflectionInfo(iter([request]))
        names = {service.name for service in answer.list_services_response.service}
        assert {"snapline.v1.JobMasterGateway", "grpc.health.v1.Health"} <= names


@pytest.mark.parametrize(
    ("symbol", "files"),
    [
        ("snapline.v1.JobMasterGateway", ["checkpoint.proto", "cluster.proto", "job.proto"]),
        ("grpc.health.v1.Health", ["health.proto"]),
        ("grpc.reflection.v1alpha.ServerReflection", ["reflection.proto"]),
    ],
)
def test_reflection_describes_each_service(cluster, symbol, files):
    """Ours are in a pool of their own, and gRPC's are added to it: a tool gets each with the files that it imports."""
    with open_channel(cluster.address, Security()) as channel:
        request = reflection_pb2.ServerReflectionRequest(file_containing_symbol=symbol)
        (answer,) = reflection_pb2_grpc.ServerReflectionStub(channel).ServerReflectionInfo(iter([request]))
    found = [FileDescriptorProto.FromString(file) for file in answer.file_descriptor_response.file_descriptor_proto]
    assert files == sorted(file.name.rpartition("/")[2] for file in found)


def test_the_shared_secret_is_asked_for():
    """Streams and watchers without it are refused by name; health answers without it."""
    cluster = Cluster(Security(token="open sesame"))
    strange = Dialer(Security(token="guess"), cluster.timers, cluster.clock, silent_logger())
    inbox = Inbox()
    try:
        cluster.dial()
        cluster.send(Disconnect("hello"))
        assert cluster.rm.messages(1) == [Disconnect("hello")]
        strange.open(DIAL, Peer(PeerKind.RESOURCE_MANAGER, cluster.address), inbox)
        lost = inbox.next()
        assert lost.reason.startswith("UNAUTHENTICATED: the call carries no or another token")
        with open_channel(cluster.address, Security()) as channel:
            health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest())
            request = iter([reflection_pb2.ServerReflectionRequest(list_services="")])
            with pytest.raises(grpc.RpcError) as refused:
                next(reflection_pb2_grpc.ServerReflectionStub(channel).ServerReflectionInfo(request))
            assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED
    finally:
        strange.shutdown()
        cluster.stop()


def there_and_back(cluster):
    cluster.dial()
    cluster.send(Disconnect("hello"))
    told = cluster.rm.next()
    assert told.messages == [Disconnect("hello")]
    cluster.switchboard.apply([Send(told.connection, Fenced(SESSION, Disconnect("bye")))])
    assert cluster.tm.messages(1) == [Disconnect("bye")]


REFUSED = "UNAUTHENTICATED: the call carries no or another token: set security.auth.token to the cluster's"


@pytest.mark.parametrize(
    ("token", "reasons"),
    [
        ("open sesame", []),
        ("guess", [REFUSED]),
        ("", [f"UNAVAILABLE: the relay cannot reach the coordinator at {{}}: {REFUSED}"]),
    ],
    ids=["the same", "another", "none"],
)
def test_a_relay_needs_the_secret_too(token, reasons):
    """One that refuses whoever has it, and one that the coordinator refuses, are done without; nothing says the
    secret."""
    cluster = Cluster(Security(token="open sesame"), relayed=True, of_relay=Security(token=token))
    try:
        there_and_back(cluster)
        without = [said["reason"] for said in cluster.logged("dialing without the relay")]
        assert without == [reason.format(cluster.address) for reason in reasons]
        assert "sesame" not in cluster.log.getvalue()
    finally:
        cluster.stop()


def test_a_secret_is_not_shown():
    """Not even by a traceback with locals."""
    assert "sesame" not in repr(Security(token="open sesame"))


def test_a_taken_port_is_one_clear_line(cluster):
    """With the way out."""
    server = RpcServer(Security(), silent_logger())
    with pytest.raises(
        CannotListen, match=r"cannot listen on 127.0.0.1:\d+: address already in use; .* --bind"
    ) as taken:
        server.start(cluster.address, cluster.add)
    assert "\n" not in str(taken.value)
    server.stop()


def test_nobody_is_told_to_connect_to_any_address(cluster):
    """It is refused with the setting that is meant; with it, others are told an address that leads here."""
    server = RpcServer(Security(), silent_logger())
    with pytest.raises(CannotListen, match=r"nobody can connect to 0\.0\.0\.0: .*jobmanager\.bind-host=0\.0\.0\.0"):
        server.start("0.0.0.0:0", cluster.add)
    address = server.start("127.0.0.1:0", cluster.add, "0.0.0.0")
    try:
        assert address.startswith("127.0.0.1:")
        with open_channel(address, Security()) as channel:
            health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest())
    finally:
        server.stop()


def test_stopping_with_open_streams_says_nothing(caplog):
    """Calls that are being cancelled are not cancelled twice, which gRPC would log as errors."""
    for _ in range(5):  # before they were waited for, most rounds logged an error
        cluster = Cluster()
        for number in range(20):
            cluster.dial(connection=ConnectionID(f"dial-{number}"))
        cluster.stop_server_first()
    assert [record.getMessage() for record in caplog.records] == []


@pytest.mark.parametrize("address", ["6123", "localhost", "localhost:", ":6123", "localhost:http", "h:70000"])
def test_an_address_is_host_and_port(address):
    """Anything else is named."""
    with pytest.raises(CannotListen, match="not an address"):
        parse_address(address)


# --- TLS --------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def certificates(tmp_path_factory):
    """An authority, and a certificate for this machine, as files."""
    if reason := why_not():
        pytest.skip(reason)
    return Authority(tmp_path_factory.mktemp("tls"))


def with_tls(authority, **changed):
    return Configuration({key: value for key, value in (authority.settings | changed).items() if value})


def test_tls_on_both_sides(certificates):
    """Messages pass; whoever has no certificate does not get in."""
    cluster = Cluster(Security.from_configuration(with_tls(certificates)))
    stranger = Dialer(Security(), cluster.timers, cluster.clock, silent_logger())
    inbox = Inbox()
    try:
        cluster.dial()
        cluster.send(Disconnect("hello"))
        assert cluster.rm.messages(1) == [Disconnect("hello")]
        stranger.open(DIAL, Peer(PeerKind.RESOURCE_MANAGER, cluster.address), inbox)
        assert isinstance(inbox.next(), ConnectionLost)
    finally:
        stranger.shutdown()
        cluster.stop()


@pytest.mark.parametrize(("has_one", "seen"), [(True, (1, 0)), (False, (0, 1))])
def test_a_relay_needs_a_certificate_too(certificates, has_one, seen):
    """With one, both of its sides are encrypted; one that has none is done without."""
    security = Security.from_configuration(with_tls(certificates))
    cluster = Cluster(security, relayed=True, of_relay=security if has_one else Security())
    try:
        there_and_back(cluster)
        assert (len(cluster.logged("trunk opened")), len(cluster.logged("dialing without the relay"))) == seen
    finally:
        cluster.stop()


@pytest.mark.parametrize(
    ("changed", "error"),
    [
        ({"security.ssl.key-file": ""}, r"security.ssl.key-file is not set; TLS needs security.ssl.ca-file, "),
        (
            {"security.ssl.ca-file": "/nowhere/ca.pem"},
            r"security.ssl.ca-file: cannot read /nowhere/ca.pem: No such file",
        ),
    ],
)
def test_a_certificate_that_is_missing_is_named(certificates, changed, error):
    """By setting and file."""
    with pytest.raises(SecurityError, match=error):
        Security.from_configuration(with_tls(certificates, **changed))
