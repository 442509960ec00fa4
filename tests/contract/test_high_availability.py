"""One suite for every implementation of the high availability ports: what a successor finds, and what a deposed leader
cannot do."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from snapline.coordinator.ha import embedded, zookeeper_high_availability
from snapline.coordinator.ha.high_availability import HighAvailability, JobStores, LeadershipLost, PointerExists
from snapline.coordinator.ha.zookeeper_high_availability import FencedNodes
from snapline.dataflow.graph.jobgraph import JobGraph, JobVertex, OperatorNode
from snapline.dataflow.ids import CheckpointID, JobID, JobVertexID, OperatorID
from snapline.dataflow.wire.messages import JobStatus
from snapline.runtime.signing import UNSIGNED, NotSigned, Signer
from tests.contract.high_availability_stores import PLACES, Place, ZooKeeperPlace
from tests.services.zookeeper import ZooKeeperEnsemble

JOB = JobID("0" * 32)


@pytest.fixture(params=[*PLACES, pytest.param("zookeeper", marks=pytest.mark.zookeeper)])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    """An empty place."""
    if request.param == "zookeeper":
        place: Place = ZooKeeperPlace(tmp_path, request.getfixturevalue("zookeeper_ensemble"))
    else:
        place = PLACES[request.param](tmp_path)
    yield place
    place.close()


@pytest.fixture
def leader(place: Place) -> HighAvailability:
    """The coordinator that leads."""
    return place.lead("first")


@pytest.fixture
def stores(leader: HighAvailability) -> JobStores:
    """Its stores of one job."""
    return leader.open_job(JOB)


def graph(name: str) -> JobGraph:
    node = OperatorNode(OperatorID("a" * 32), "uid", "source", b"payload", is_source=True)
    return JobGraph(JobID(name * 32), f"job {name}", (JobVertex(JobVertexID("b" * 32), "v", 1, 128, (node,)),), ())


def test_ids_rise_from_one(stores: JobStores) -> None:
    """`get` shows the next one without taking it."""
    counter = stores.counter

    assert [counter.get_and_increment() for _ in range(3)] == [1, 2, 3]
    assert counter.get() == 4


def test_ids_go_on_with_the_next_leader(place: Place, stores: JobStores) -> None:
    """Across leaders no id is drawn twice."""
    stores.counter.get_and_increment()
    stores.counter.get_and_increment()
    stores.counter.shutdown(JobStatus.SUSPENDED)

    assert place.lead("second").open_job(JOB).counter.get_and_increment() == 3


def test_id_counter_can_be_set(stores: JobStores) -> None:
    """Behind a savepoint, and back."""
    stores.counter.set_count(CheckpointID(57))
    assert stores.counter.get_and_increment() == 57
    stores.counter.set_count(CheckpointID(5))
    assert stores.counter.get_and_increment() == 5
    assert stores.counter.get() == 6


def test_ids_are_drawn_once_by_many_threads(stores: JobStores) -> None:
    """No two calls get the same id, none is left out."""
    drawn: list[int] = []

    def draw() -> None:
        drawn.extend(stores.counter.get_and_increment() for _ in range(15))

    threads = [threading.Thread(target=draw) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert sorted(drawn) == list(range(1, 61))


def test_counter_of_a_finished_job_is_gone(place: Place, stores: JobStores) -> None:
    """A job with the same id would start from one again."""
    stores.counter.get_and_increment()
    stores.counter.shutdown(JobStatus.FINISHED)

    assert place.lead("second").open_job(JOB).counter.get() == 1


def test_a_draw_that_comes_after_the_end_of_its_job_leaves_nothing(place: Place) -> None:
    """A checkpoint was about to begin, on a slow storage, when the job ended."""
    leader = place.lead("first")
    stores = leader.open_job(JOB)
    leader.forget_job(JOB)
    stores.counter.get_and_increment()

    assert place.lead("second").open_job(JOB).counter.get() == 1


def test_pointers_are_found_by_the_next_leader(place: Place, stores: JobStores) -> None:
    """In order of their ids; removed ones are not."""
    for number in (10, 9, 2):
        stores.pointers.add(CheckpointID(number), f"p{number}".encode())
    assert stores.pointers.remove(CheckpointID(9))
    stores.pointers.release()

    assert list(place.lead("second").open_job(JOB).pointers.load()) == [b"p2", b"p10"]


def test_pointer_is_created_once(stores: JobStores) -> None:
    """Two coordinators that finish one id: the second is told, and changes nothing."""
    stores.pointers.add(CheckpointID(1), b"first")

    with pytest.raises(PointerExists):
        stores.pointers.add(CheckpointID(1), b"second")
    assert stores.pointers.contains(CheckpointID(1), b"first")
    assert not stores.pointers.contains(CheckpointID(1), b"second")
    assert not stores.pointers.contains(CheckpointID(2), b"first")


def test_pointer_that_is_not_there_can_be_removed(stores: JobStores) -> None:
    """Removing twice is no error."""
    stores.pointers.add(CheckpointID(1), b"p")

    assert stores.pointers.remove(CheckpointID(1))
    assert stores.pointers.remove(CheckpointID(1))


def test_jobs_do_not_see_each_other(leader: HighAvailability, stores: JobStores) -> None:
    """Counters, pointers and statistics belong to one job."""
    stores.counter.get_and_increment()
    stores.pointers.add(CheckpointID(1), b"p")
    stores.statistics.write(b"s")

    other = leader.open_job(JobID("1" * 32))

    assert (other.counter.get(), list(other.pointers.load()), other.statistics.read()) == (1, [], None)


def test_statistics_are_replaced(place: Place, stores: JobStores) -> None:
    """The last ones are found."""
    assert stores.statistics.read() is None
    stores.statistics.write(b"one")
    stores.statistics.write(b"two")

    assert place.lead("second").open_job(JOB).statistics.read() == b"two"


def test_job_graphs_are_found_in_order(place: Place, leader: HighAvailability) -> None:
    """By submission; a graph that was put again keeps its place, a removed one is gone."""
    for name in ("c", "a", "b"):
        leader.job_graphs.put(graph(name))
    leader.job_graphs.put(graph("c"))
    leader.job_graphs.remove(graph("a").job_id)
    leader.job_graphs.remove(graph("a").job_id)

    assert list(place.lead("second").job_graphs.load().graphs) == [graph("c"), graph("b")]


def test_a_file_that_is_no_job_graph_keeps_no_job_from_starting(place: Place, leader: HighAvailability) -> None:
    """One is cut short, one holds the graph of another job: both are named, and stay where they are."""
    for name in ("a", "b", "c"):
        leader.job_graphs.put(graph(name))
    damaged = place.damage_job_graph(graph("b").job_id)

    found = place.lead("second").job_graphs.load()

    assert found.graphs == (graph("a"), graph("c"))
    assert sorted(each.name for each in found.set_aside) == damaged
    assert all("cut short" in each.reason or "holds job" in each.reason for each in found.set_aside)


def test_a_job_graph_larger_than_any_is_not_read(
    place: Place, leader: HighAvailability, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others start, and it is named with its size."""
    leader.job_graphs.put(graph("a"))
    large = replace(graph("b"), name="x" * 1000)
    leader.job_graphs.put(large)
    for module in (embedded, zookeeper_high_availability):
        monkeypatch.setattr(module, "MAX_GRAPH_BYTES", 800)

    found = place.lead("second").job_graphs.load()

    assert found.graphs == (graph("a"),)
    ((name, reason),) = [(each.name, each.reason) for each in found.set_aside]
    assert name == large.job_id and "what belongs there 800 at most" in reason


@pytest.mark.zookeeper
def test_a_node_that_names_no_file_of_ours_keeps_no_job_from_starting(
    tmp_path: Path, zookeeper_ensemble: ZooKeeperEnsemble
) -> None:
    """Whoever can write to the nodes may point anywhere: it is set aside with what it says."""
    place = ZooKeeperPlace(tmp_path, zookeeper_ensemble)
    try:
        leader = place.lead("first")
        leader.job_graphs.put(graph("a"))
        FencedNodes(leader._nodes._leadership).put("jobs/poison", b"12345678../../etc/passwd")

        found = place.lead("second").job_graphs.load()

        assert found.graphs == (graph("a"),)
        ((name, reason),) = [(each.name, each.reason) for each in found.set_aside]
        assert name == "poison" and "not a path below the storage's base: '../../etc'" in reason
    finally:
        place.close()


def test_job_graph_is_replaced_unless_it_was_removed(place: Place, leader: HighAvailability) -> None:
    """Its place in the order stays; a job that is over does not come back."""
    for name in ("a", "b", "c"):
        leader.job_graphs.put(graph(name))
    leader.job_graphs.remove(graph("b").job_id)
    rescaled = replace(graph("a"), name="rescaled")
    for each in (rescaled, graph("b")):
        leader.job_graphs.replace(each)

    assert list(place.lead("second").job_graphs.load().graphs) == [rescaled, graph("c")]


def test_a_job_whose_graph_is_written_late_does_not_come_back(
    place: Place, leader: HighAvailability, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A storage that stood still for longer than anybody waits wrote the graph behind the end of its job, and the next
    leader ran that once more."""
    begun, goes_on, put = threading.Event(), threading.Event(), leader.storage.put

    def put_late(path: str, data: bytes) -> None:
        begun.set()
        assert goes_on.wait(20)
        put(path, data)

    monkeypatch.setattr(leader.storage, "put", put_late)
    writes = threading.Thread(target=leader.job_graphs.put, args=[graph("a")])
    removes = threading.Thread(target=leader.job_graphs.remove, args=[graph("a").job_id])
    writes.start()
    assert begun.wait(20)
    removes.start()
    removes.join(0.2)  # it waits
    goes_on.set()
    writes.join()
    removes.join()

    assert place.lead("second").job_graphs.load().graphs == ()


def test_the_time_of_a_submission_is_known(leader: HighAvailability) -> None:
    """A replaced graph keeps it; a job that nobody submitted has none."""
    leader.job_graphs.put(replace(graph("a"), job_id=JOB))
    submitted_ms = leader.open_job(JOB).submitted_ms
    leader.job_graphs.replace(replace(graph("a"), job_id=JOB, name="rescaled"))

    assert submitted_ms is not None
    assert leader.open_job(JOB).submitted_ms == submitted_ms
    assert leader.open_job(JobID("1" * 32)).submitted_ms is None


def test_forgotten_job_leaves_nothing(place: Place, leader: HighAvailability, stores: JobStores) -> None:
    """Only its graph is removed apart."""
    stores.counter.get_and_increment()
    stores.pointers.add(CheckpointID(1), b"p")
    stores.statistics.write(b"s")
    leader.forget_job(JOB)

    after = place.lead("second").open_job(JOB)

    assert (after.counter.get(), list(after.pointers.load()), after.statistics.read()) == (1, [], None)


def test_statistics_that_come_after_the_end_of_their_job_leave_nothing(
    leader: HighAvailability, stores: JobStores
) -> None:
    """Slow work is not in order: the last ones may be written when the job has been forgotten."""
    stores.statistics.write(b"early")
    leader.forget_job(JOB)
    stores.statistics.write(b"late")

    assert stores.statistics.read() is None
    again = leader.open_job(JOB)
    again.statistics.write(b"of the next one")
    assert again.statistics.read() == b"of the next one"


def test_deposed_leader_writes_nothing(place: Place, leader: HighAvailability, stores: JobStores) -> None:
    """Once another one leads, nothing of the old one arrives; it can still let go."""
    stores.pointers.add(CheckpointID(1), b"p")
    successor = place.lead("second").open_job(JOB)

    for write in (
        lambda: stores.counter.get_and_increment(),
        lambda: stores.counter.set_count(CheckpointID(9)),
        lambda: stores.pointers.add(CheckpointID(2), b"q"),
        lambda: stores.pointers.remove(CheckpointID(1)),
        lambda: stores.statistics.write(b"s"),
        lambda: leader.job_graphs.put(graph("a")),
        lambda: leader.forget_job(JOB),
    ):
        with pytest.raises(LeadershipLost):
            write()
    assert list(successor.pointers.load()) == [b"p"]
    assert successor.counter.get_and_increment() == 1


OURS, THEIRS = Signer((b"ours",)), Signer((b"theirs",))


def test_what_another_key_wrote_is_not_taken_over(place: Place) -> None:
    """Whoever can write to the storage but has no key writes nothing that a coordinator would run or restore."""
    place.signer = THEIRS
    before = place.lead("first")
    before.job_graphs.put(graph("1"))
    before.open_job(JOB).pointers.add(CheckpointID(1), b"p1")
    place.signer = OURS
    leader = place.lead("second")

    (set_aside,) = leader.job_graphs.load().set_aside
    assert set_aside.name == "1" * 32
    assert "is signed with another key, or was changed" in set_aside.reason
    with pytest.raises(NotSigned, match=rf"pointers/{JOB} is signed with another key"):
        leader.open_job(JOB).pointers.load()


def test_keys_are_changed_by_naming_both(place: Place) -> None:
    """What the former key signed is read while that key is named, and what is written again has the new one."""
    place.signer = THEIRS
    before = place.lead("first")
    before.job_graphs.put(graph("1"))
    before.open_job(JOB).pointers.add(CheckpointID(1), b"p1")
    place.signer = Signer((*OURS.keys, *THEIRS.keys))
    between = place.lead("second")
    (found,) = between.job_graphs.load().graphs
    assert [b"p1"] == list(between.open_job(JOB).pointers.load())
    between.job_graphs.replace(found)
    place.signer = OURS

    assert (found,) == place.lead("third").job_graphs.load().graphs


def test_what_is_unsigned_is_adopted_when_that_is_said(place: Place) -> None:
    """A cluster that gets its first key is told what to do, and after that its jobs are there."""
    before = place.lead("first")
    before.job_graphs.put(graph("1"))
    before.open_job(JOB).pointers.add(CheckpointID(1), b"p1")
    place.signer = OURS
    (set_aside,) = place.lead("second").job_graphs.load().set_aside
    assert "start one coordinator with security.storage.adopt-unsigned: true" in set_aside.reason
    place.signer = Signer(OURS.keys, adopts_unsigned=True)
    leader = place.lead("third")

    assert (graph("1"),) == leader.job_graphs.load().graphs
    assert [b"p1"] == list(leader.open_job(JOB).pointers.load())


def test_a_signed_graph_is_true_for_its_job_only(place: Place) -> None:
    """A pointer of one job cannot be put in the place of another's, though the key is the same."""
    place.signer = OURS
    sealed = OURS.seal("pointers/another-job", b"p1")
    stores = place.lead("first").open_job(JOB)
    place.signer = UNSIGNED
    stores.pointers.release()
    place.lead("second").open_job(JOB).pointers.add(CheckpointID(1), sealed)
    place.signer = OURS

    with pytest.raises(NotSigned, match="another key, or was changed"):
        place.lead("third").open_job(JOB).pointers.load()
