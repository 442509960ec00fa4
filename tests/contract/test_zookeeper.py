"""ZooKeeper when it hurts: its leader is killed, its majority is away, sessions end, and settings are wrong."""

from __future__ import annotations

import signal
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import ConnectionLoss
from kazoo.security import make_acl

from snapline.coordinator.ha.high_availability import LeadershipLost
from snapline.coordinator.ha.zookeeper_high_availability import ClusterIdTaken, FencedNodes, claim_cluster_id
from snapline.dataflow.config import Configuration
from snapline.dataflow.ids import CheckpointID, JobID
from snapline.runtime.leaders.leader_election import CANDIDATES, LeaderElection, Leadership, leader_name
from snapline.runtime.leaders.zookeeper_session import ZooKeeperError, ZooKeeperSession, ZooKeeperSettings
from snapline.runtime.logs import silent_logger
from tests.contract.high_availability_stores import ZooKeeperPlace
from tests.services.zookeeper import ZooKeeperEnsemble, expire_session

pytestmark = pytest.mark.zookeeper
JOB = JobID("0" * 32)
WAIT_SECONDS = 30.0


@pytest.fixture
def place(tmp_path: Path, zookeeper_ensemble: ZooKeeperEnsemble) -> Iterator[ZooKeeperPlace]:
    """A cluster id of its own."""
    place = ZooKeeperPlace(tmp_path, zookeeper_ensemble)
    yield place
    place.close()


@pytest.fixture
def settings(zookeeper_ensemble: ZooKeeperEnsemble) -> ZooKeeperSettings:
    """For a session of its own."""
    return ZooKeeperSettings(zookeeper_ensemble.quorum, cluster_id=uuid.uuid4().hex, connection_timeout_ms=5_000)


def opened(settings: ZooKeeperSettings) -> ZooKeeperSession:
    session = ZooKeeperSession(settings, silent_logger())
    session.open()
    return session


@pytest.mark.leaks("the server that was killed is started again, for the tests that follow")
def test_writes_go_on_when_the_leader_of_the_ensemble_is_killed(place: ZooKeeperPlace) -> None:
    """A suspended connection is a pause: the session lives, no id comes twice, no pointer is lost or doubled."""
    leader = place.lead("first")
    stores = leader.open_job(JOB)
    drawn: list[int] = []
    stop = threading.Event()
    errors: list[Exception] = []

    def work() -> None:
        try:
            while not stop.is_set():
                number = stores.counter.get_and_increment()
                stores.pointers.add(number, b"p%d" % number)
                drawn.append(int(number))
        except Exception as error:
            errors.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    wait_for(lambda: len(drawn) >= 5)
    killed = place.ensemble.kill_leader()
    before = len(drawn)
    wait_for(lambda: len(drawn) >= before + 20 or bool(errors))
    killed.start()
    place.ensemble.await_quorum()
    stop.set()
    thread.join()

    assert errors == []
    assert drawn == sorted(set(drawn))
    assert not place.sessions[0].is_over
    assert list(place.lead("second").open_job(JOB).pointers.load()) == [b"p%d" % number for number in drawn]


def test_coordinator_that_reaches_nobody_stops_leading(tmp_path: Path, zookeeper_ensemble: ZooKeeperEnsemble) -> None:
    """It need not be told: after the session timeout without contact its own calls end with LeadershipLost."""
    place = ZooKeeperPlace(tmp_path, zookeeper_ensemble, session_timeout_ms=1_000)
    stores = place.lead("first").open_job(JOB)
    stores.counter.get_and_increment()
    for server in zookeeper_ensemble.servers:
        server.send(signal.SIGSTOP)
    try:
        with pytest.raises(LeadershipLost, match="no ZooKeeper server was reached"):
            stores.counter.get_and_increment()
    finally:
        for server in zookeeper_ensemble.servers:
            server.send(signal.SIGCONT)
        zookeeper_ensemble.await_quorum()

    assert place.lead("second").open_job(JOB).counter.get() == 2
    place.close()


def test_ensemble_refuses_what_a_deposed_leader_believes_to_be_allowed(settings: ZooKeeperSettings) -> None:
    """The fence is in the transaction: without any word to the old leader, its next write fails."""
    session = opened(settings)
    leadership = LeaderElection(session, "first", silent_logger()).contend(threading.Event())
    assert leadership is not None
    other = KazooClient(settings.quorum)
    other.start()
    (candidate,) = other.get_children(f"{settings.base}/leader/candidates")
    other.delete(f"{settings.base}/leader/candidates/{candidate}")
    other.stop()
    other.close()

    nodes = FencedNodes(leadership)
    with pytest.raises(LeadershipLost):
        nodes.put("anything", b"x")
    assert not session.is_over
    assert nodes.get("anything") is None
    session.close()


def test_leader_whose_candidate_is_removed_ends_its_session(settings: ZooKeeperSettings) -> None:
    """Also while it has nothing to write: the standby leads, and there are not two that believe to."""
    session = opened(settings)
    leadership = LeaderElection(session, "first", silent_logger()).contend(threading.Event())
    assert leadership is not None
    leadership.end_with_candidate()
    other = opened(settings)
    (candidate,) = other.children(f"{settings.base}/{CANDIDATES}")
    other.transact(lambda transaction: transaction.delete(f"{settings.base}/{CANDIDATES}/{candidate}"))

    over = threading.Event()
    session.on_over(lambda _: over.set())
    assert over.wait(WAIT_SECONDS)
    assert session.reason == "its candidate node is gone"
    session.close()
    other.close()


def test_candidate_whose_creation_is_sent_again_has_one_node(settings: ZooKeeperSettings) -> None:
    """The connection breaks when the servers have created the node and before they say so."""
    session = opened(settings)
    create = session.client.create_async
    broken: list[str] = []

    def create_and_lose(path: str, value: bytes, **how: bool) -> Any:
        result = create(path, value, **how)
        if how.get("sequence") and not broken:
            broken.append(result.get(WAIT_SECONDS))
            result = session.client.handler.async_result()
            result.set_exception(ConnectionLoss())
        return result

    session.client.create_async = create_and_lose
    assert LeaderElection(session, "first", silent_logger()).contend(threading.Event()) is not None

    assert [
        f"{settings.base}/{CANDIDATES}/{name}" for name in session.children(f"{settings.base}/{CANDIDATES}")
    ] == broken
    session.close()


def test_what_is_no_candidate_neither_leads_nor_ends_one(settings: ZooKeeperSettings) -> None:
    """A node that somebody has tried something with among the candidates ended each coordinator with a traceback."""
    session = opened(settings)
    session.ensure_path(f"{settings.base}/{CANDIDATES}/5")
    session.ensure_path(f"{settings.base}/{CANDIDATES}/a-note")

    assert LeaderElection(session, "first", silent_logger()).contend(threading.Event()) is not None
    assert leader_name(session) == "first"
    session.close()


def test_standby_takes_over_when_the_session_of_the_leader_ends(settings: ZooKeeperSettings) -> None:
    """And learns before who leads."""
    first, second = opened(settings), opened(settings)
    assert LeaderElection(first, "first", silent_logger()).contend(threading.Event()) is not None
    told: list[str] = []
    won: list[Leadership | None] = []
    thread = threading.Thread(
        target=lambda: won.append(
            LeaderElection(second, "second", silent_logger()).contend(threading.Event(), told.append)
        )
    )
    thread.start()
    wait_for(lambda: told == ["first"])
    expire_session(first.client, settings.quorum)
    thread.join(WAIT_SECONDS)

    assert won and won[0] is not None and won[0].holds()
    wait_for(lambda: first.is_over)
    assert leader_name(second) == "second"
    first.close()
    second.close()


def test_candidate_that_is_stopped_leaves(settings: ZooKeeperSettings) -> None:
    """A standby that ends does not come to lead."""
    first, second = opened(settings), opened(settings)
    assert LeaderElection(first, "first", silent_logger()).contend(threading.Event()) is not None
    stopping = threading.Event()
    stopping.set()

    assert LeaderElection(second, "second", silent_logger()).contend(stopping) is None
    second.close()
    first.close()


def test_unreachable_ensemble_is_named() -> None:
    """The quorum and its setting."""
    settings = ZooKeeperSettings("127.0.0.1:1", connection_timeout_ms=300)

    with pytest.raises(ZooKeeperError, match=r"no ZooKeeper server answers at 127\.0\.0\.1:1 .*zookeeper\.quorum"):
        opened(settings)


def test_missing_chroot_is_named(settings: ZooKeeperSettings) -> None:
    """It is not created: a spelling mistake would be a cluster of its own."""
    wrong = replace(settings, quorum=f"{settings.quorum}/no-such-chroot")

    with pytest.raises(ZooKeeperError, match="has no node /no-such-chroot"):
        opened(wrong)


def test_a_node_that_an_administrator_has_made_for_it_does(settings: ZooKeeperSettings) -> None:
    """Above it nothing may be created, as in an ensemble that is shared; nor need it be."""
    above = f"/{uuid.uuid4().hex}"
    administrator = KazooClient(settings.quorum, auth_data=[("digest", "administrator:secret")])
    administrator.start(timeout=15)
    administrator.create(above, acl=[make_acl("auth", "", all=True), make_acl("world", "anyone", read=True)])
    administrator.create(f"{above}/ours", acl=[make_acl("world", "anyone", all=True)])

    session = opened(replace(settings, root=f"{above}/ours"))
    leadership = LeaderElection(session, "first", silent_logger()).contend(threading.Event())
    assert leadership is not None
    assert leadership.holds()

    session.close()
    administrator.stop()
    administrator.close()


def test_nodes_of_others_are_refused(settings: ZooKeeperSettings) -> None:
    """With acl creator, only who has the credentials gets in; the error names the settings."""
    settings = replace(settings, root=f"/{uuid.uuid4().hex}")
    ours = replace(settings, creator_only=True, credentials="snapline:secret")
    session = opened(ours)
    nodes_of_a_leader = LeaderElection(session, "first", silent_logger()).contend(threading.Event())
    assert nodes_of_a_leader is not None

    with pytest.raises(ZooKeeperError, match=r"refuses access to .*client\.credentials"):
        opened(replace(settings, credentials="someone:else"))
    friend = opened(ours)
    assert leader_name(friend) == "first"
    friend.close()
    session.close()


def test_second_cluster_with_the_same_id_is_refused(settings: ZooKeeperSettings) -> None:
    """It would wait for the first one's leader to die, and then run its jobs."""
    session = opened(settings)
    claim_cluster_id(session, "file:///one")
    claim_cluster_id(session, "file:///one")

    with pytest.raises(
        ClusterIdTaken, match=r"used by a cluster with the storage file:///one; this one has file:///two"
    ):
        claim_cluster_id(session, "file:///two")
    session.close()


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({}, "quorum is not set"),
        ({"high-availability.zookeeper.quorum": "h:2181,"}, "quorum cannot be used: 'h:2181,'"),
        ({"high-availability.zookeeper.quorum": "h:21x81"}, "quorum cannot be used: 'h:21x81'"),
        ({"high-availability.zookeeper.path.root": "snapline"}, "must begin with '/'"),
        ({"high-availability.cluster-id": "a/b"}, "one name without '/'"),
        ({"high-availability.zookeeper.client.acl": "creator"}, "credentials is not set"),
        ({"high-availability.zookeeper.client.credentials": "user"}, "must be user:password"),
        (
            {"high-availability.zookeeper.client.credentials": "user:word"},
            "would travel to h:2181 as plain text: set .*ca-file",
        ),
        ({"high-availability.zookeeper.client.ssl.ca-file": "/none"}, "ca-file: there is no file /none"),
        ({"high-availability.zookeeper.client.ssl.key-file": "/none"}, "belong together"),
    ],
)
def test_settings_that_cannot_work_are_refused(values: dict[str, str], message: str) -> None:
    """Before any connection."""
    given = {"high-availability.zookeeper.quorum": "h:2181", **values} if values else {}

    with pytest.raises(ZooKeeperError, match=message):
        ZooKeeperSettings.from_configuration(Configuration(given))


def test_ids_and_pointers_are_in_numeric_order(place: ZooKeeperPlace) -> None:
    """Ten comes after nine."""
    stores = place.lead("first").open_job(JOB)
    for number in (100, 9, 10):
        stores.pointers.add(CheckpointID(number), b"%d" % number)

    assert list(stores.pointers.load()) == [b"9", b"10", b"100"]


def test_nothing_of_a_job_is_left(place: ZooKeeperPlace) -> None:
    """Neither node nor file."""
    leader = place.lead("first")
    stores = leader.open_job(JOB)
    stores.counter.get_and_increment()
    stores.pointers.add(CheckpointID(1), b"p")
    stores.statistics.write(b"one")
    stores.statistics.write(b"two")
    leader.forget_job(JOB)

    nodes = place.sessions[0].client
    left = [
        f"{d}/{n}"
        for d in ("counters", "pointers", "statistics")
        for n in nodes.get_children(f"{place.settings.base}/{d}")
    ]
    assert left == []
    assert [path for path, _ in place.storage.list("")] == []


def wait_for(reached: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_SECONDS
    while not reached():
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.02)
