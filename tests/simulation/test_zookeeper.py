"""The product's sessions and election on the simulated ensemble: connections that break, sessions that expire, leaders
in turn."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from snapline.runtime.leaders.leader_election import CANDIDATES, LeaderElection, Leadership
from snapline.runtime.leaders.zookeeper_session import SessionOver, ZooKeeperError, ZooKeeperSession
from snapline.runtime.logs import silent_logger
from snapline.testing.simulated.world import Process, World
from tests.simulation.coordinator_host import SETTINGS, zookeeper_in
from tests.simulation.threads import SimulatedEvent, Worker
from tests.simulation.zookeeper import ENSEMBLE, SimulatedEnsemble

BASE = SETTINGS.base


class Place:
    """An ensemble and processes beside it."""

    def __init__(self) -> None:
        self.world = World(1, max_delay_ms=3)
        self.ensemble = SimulatedEnsemble(self.world)
        self.ensemble.start()

    def process(self, name: str) -> Process:
        return Process(self.world, name)

    def during(self, process: Process, work: Callable[[], object], run_ms: int = 5_000) -> list[object]:
        """What the work returned; it has so much time."""
        returned: list[object] = []
        Worker(process, lambda: returned.append(work())).start()
        self.world.clock.run_until(self.world.clock.now_ms + run_ms)
        return returned


@pytest.fixture
def place() -> Iterator[Place]:
    place = Place()
    with zookeeper_in(place.world, place.ensemble):
        yield place


def opened() -> ZooKeeperSession:
    session = ZooKeeperSession(SETTINGS, silent_logger())
    session.open()
    return session


def test_connection_that_breaks_while_a_session_is_opened_is_used_again(place: Place) -> None:
    """What was asked is asked again; the process does not die of it, and a TaskManager goes on to follow its
    leaders."""
    answers_lost = iter([True] * 4)
    place.ensemble.lose_answer = lambda: next(answers_lost, False)

    [session] = place.during(place.process("one"), opened)

    assert isinstance(session, ZooKeeperSession)
    assert not session.is_over
    assert BASE in place.ensemble.nodes


def test_nobody_there_is_said_within_the_connection_timeout(place: Place) -> None:
    """One line that names the setting."""

    def work() -> str:
        with pytest.raises(
            ZooKeeperError, match=r"no ZooKeeper server answers at zookeeper:2181 within 2 s"
        ) as refused:
            opened()
        return str(refused.value)

    place.world.network.cut("one", ENSEMBLE)

    assert place.during(place.process("one"), work)


def test_short_interruption_pauses_and_a_long_one_ends_the_session(place: Place) -> None:
    """The client finds that out by itself, and knows it before another one can lead."""
    process = place.process("one")

    def work() -> list[bool]:
        worker = Worker.running
        assert worker is not None
        session, seen = opened(), []
        for cut_ms in (400, 3_000):
            place.world.network.cut("one", ENSEMBLE)
            place.world.clock.after(cut_ms, place.world.network.heal)
            try:
                session.ensure_path(f"{BASE}/a")
            except SessionOver:
                seen.append(False)
            else:
                seen.append(True)
        return seen

    assert place.during(process, work, 10_000) == [[True, False]]
    assert f"{BASE}/a" in place.ensemble.nodes


def test_leaders_come_one_after_another(place: Place) -> None:
    """The first one dies without a word: the second leads when that session has expired, and not before."""
    led: list[tuple[str, int]] = []

    def contend(process: Process) -> None:
        LeaderElection(opened(), process.name, silent_logger()).contend(SimulatedEvent())  # type: ignore[arg-type]
        led.append((process.name, place.world.clock.now_ms))
        SimulatedEvent().wait()

    first, second = place.process("first"), place.process("second")
    place.during(first, lambda: contend(first), 500)
    place.during(second, lambda: contend(second), 500)
    killed_ms = place.world.clock.now_ms
    first.kill()
    place.world.clock.run_until(killed_ms + 5_000)

    assert [name for name, _ in led] == ["first", "second"]
    assert led[1][1] - killed_ms > SETTINGS.session_timeout_ms * 2 // 3


def candidates(place: Place) -> list[str]:
    """Names of all of their nodes."""
    return sorted(path.rpartition("/")[2] for path in place.ensemble.nodes if path.startswith(f"{BASE}/{CANDIDATES}/"))


def test_candidate_whose_answer_got_lost_has_one_node(place: Place) -> None:
    """Its creation is sent again, and what the first one made is not left behind: it would be a candidate that nobody
    is."""
    lost: list[None] = []

    def lose_that_of_the_candidate() -> bool:
        if candidates(place) and not lost:
            lost.append(None)
            return True
        return False

    def contend() -> Leadership | None:
        return LeaderElection(opened(), "one", silent_logger()).contend(SimulatedEvent())  # type: ignore[arg-type]

    place.ensemble.lose_answer = lose_that_of_the_candidate
    [leadership] = place.during(place.process("one"), contend)

    assert isinstance(leadership, Leadership)
    assert len(candidates(place)) == 1


def test_leader_whose_candidate_is_removed_ends_its_session(place: Place) -> None:
    """Also while it has nothing to write: nobody leads in a session that has no candidate."""
    led: list[ZooKeeperSession] = []

    def contend() -> bool:
        leadership = LeaderElection(opened(), "one", silent_logger()).contend(SimulatedEvent())  # type: ignore[arg-type]
        assert leadership is not None
        leadership.end_with_candidate()
        led.append(leadership.session)
        over = SimulatedEvent()
        leadership.session.on_over(lambda _: over.set())
        return over.wait(3)

    def remove() -> None:
        for name in candidates(place):
            place.ensemble.remove(f"{BASE}/{CANDIDATES}/{name}")

    place.world.clock.after(500, remove)
    ended = place.during(place.process("one"), contend)

    assert ended == [True]
    assert led[0].reason == "its candidate node is gone"
    assert place.ensemble.sessions == {}


def test_what_is_sent_in_a_session_that_is_over_changes_nothing(place: Place) -> None:
    """Whatever its client believes."""
    process = place.process("one")

    def work() -> bool:
        session = opened()
        for number in list(place.ensemble.sessions):
            place.ensemble.end_session(number)
        with pytest.raises(SessionOver):
            session.ensure_path(f"{BASE}/late")
        return session.is_over

    assert place.during(process, work) == [True]
    assert f"{BASE}/late" not in place.ensemble.nodes


def test_threads_of_a_process_that_was_killed_are_unwound(place: Place) -> None:
    """And none of what they would have done happens."""
    process = place.process("one")
    done: list[str] = []

    def work() -> None:
        try:
            SimulatedEvent().wait(1.0)
            done.append("worked")
        finally:
            done.append("unwound")

    Worker(process, work).start()
    place.world.clock.run_until(place.world.clock.now_ms + 100)
    process.kill()
    place.world.clock.run_until(place.world.clock.now_ms + 5_000)

    assert done == ["unwound"]
    assert not process.workers
