"""Holders of pointers, and counters when several processes draw or one of them crashes."""

from __future__ import annotations

import pytest

from snapline.coordinator.checkpoint.id_counter import CheckpointIDCounterError
from snapline.coordinator.ha import embedded
from snapline.coordinator.ha.embedded import (
    EmbeddedCheckpointIDCounter,
    EmbeddedJobGraphs,
    EmbeddedPointers,
    EmbeddedStatistics,
    LeadershipFence,
)
from snapline.coordinator.ha.high_availability import LeadershipLost
from snapline.dataflow.ids import CheckpointID, JobID, LeaderSessionID
from snapline.runtime.signing import UNSIGNED
from snapline.runtime.storage.memory_storage import MemoryStorage
from snapline.runtime.storage.storage_port import StorageAlreadyExists, StorageError

JOB = JobID("job")
ONE = CheckpointID(1)


def pointers(storage: MemoryStorage, owner: str) -> EmbeddedPointers:
    return EmbeddedPointers(storage, JOB, LeadershipFence(storage, None), owner)


def counter(storage: MemoryStorage) -> EmbeddedCheckpointIDCounter:
    return EmbeddedCheckpointIDCounter(storage, JOB, LeadershipFence(storage, None))


def test_pointer_stays_while_somebody_else_holds_it() -> None:
    """The last one to let go may delete the files."""
    storage = MemoryStorage()
    first, second = pointers(storage, "first"), pointers(storage, "second")
    first.add(ONE, b"p")
    second.load()

    assert not first.remove(ONE)
    assert list(second.load()) == [b"p"]
    assert second.remove(ONE)
    assert second.checkpoint_ids == []


def test_released_pointers_do_not_block_anybody() -> None:
    """Who has let go is not asked."""
    storage = MemoryStorage()
    first, second = pointers(storage, "first"), pointers(storage, "second")
    first.add(ONE, b"p")
    second.load()
    first.release()

    assert second.remove(ONE)


def test_holder_without_pointer_is_no_checkpoint() -> None:
    """A crash between the two writes of `add` leaves nothing that a successor would see."""
    storage = MemoryStorage()
    storage.put("pointers/job/00000000000000000001/held-by-leader", b"")

    assert list(pointers(storage, "leader").load()) == []


def test_counters_of_two_processes_share_the_ids() -> None:
    """Each is drawn by one of them."""
    storage = MemoryStorage()
    first, second = counter(storage), counter(storage)

    drawn = [one.get_and_increment() for one in (first, second, second, first, second)]

    assert drawn == [1, 2, 3, 4, 5]


def test_counter_keeps_a_bounded_number_of_files() -> None:
    """Long runs leave no trail."""
    storage = MemoryStorage()
    one = counter(storage)
    for _ in range(100):
        one.get_and_increment()

    assert len(storage.list("counters/job")) <= 17


class ForgetfulStorage(MemoryStorage):
    """Shows a directory as it was when the process fell asleep, once."""

    asleep = False
    seen: list[tuple[str, int]] | None = None

    def list(self, prefix: str) -> list[tuple[str, int]]:
        if self.asleep and self.seen is not None:
            self.asleep = False
            return self.seen
        return super().list(prefix)


def test_process_that_slept_draws_no_id_a_second_time() -> None:
    """Its file was created and deleted by others meanwhile, so that it can create it again: it notices, and tries
    again."""
    storage = ForgetfulStorage()
    sleeper, other = counter(storage), counter(storage)
    sleeper.start()
    storage.seen = storage.list("counters/job")
    drawn = [other.get_and_increment() for _ in range(50)]
    storage.asleep = True

    assert sleeper.get_and_increment() == drawn[-1] + 1


class BlockedStorage(MemoryStorage):
    """A storage in which a directory stands where the second number goes."""

    def create(self, path: str, data: bytes) -> None:
        if path.endswith("2"):
            raise StorageAlreadyExists(path)
        super().create(path, data)


class EndingStorage(MemoryStorage):
    """A storage whose job ends as soon as a file of its counter was created."""

    def create(self, path: str, data: bytes) -> None:
        super().create(path, data)
        self.delete_prefix("counters/job")


def test_draw_that_is_overtaken_by_the_end_of_its_job_leaves_nothing() -> None:
    """The directory of the counter goes between the two looks at it."""
    storage = EndingStorage()

    assert EmbeddedCheckpointIDCounter(storage, JOB, LeadershipFence(storage, None), lambda: True).get_and_increment()
    assert [] == storage.list("counters/job")


def fence(storage: MemoryStorage, session: str) -> LeadershipFence:
    return LeadershipFence(storage, LeaderSessionID(session))


def test_whoever_takes_over_last_leads() -> None:
    """And who led before is told by whom it was replaced, at its next write."""
    storage = MemoryStorage()
    first, second = fence(storage, "first"), fence(storage, "second")
    first.take_over()
    first.check()
    second.take_over()

    second.check()
    with pytest.raises(LeadershipLost, match="session second"):
        first.check()


@pytest.mark.parametrize("successors", [1, 2, 40])
def test_coordinator_that_slept_while_it_took_over_does_not_lead(successors: int) -> None:
    """However many came meanwhile, and although the file that it would create may be gone again."""
    storage = ForgetfulStorage()
    fence(storage, "before").take_over()
    sleeper = fence(storage, "sleeper")
    storage.seen = storage.list("leaders")
    for number in range(successors):
        newest = fence(storage, f"successor-{number}")
        newest.take_over()
    storage.asleep = True

    with pytest.raises(LeadershipLost):
        sleeper.take_over()
        sleeper.check()
    newest.check()


def test_epochs_leave_a_bounded_number_of_files() -> None:
    """A directory that was started on a hundred times."""
    storage = MemoryStorage()
    for number in range(100):
        fence(storage, f"{number}").take_over()

    assert len(storage.list("leaders")) <= 17


def test_deposed_coordinator_holds_nothing_any_more() -> None:
    """It cannot restore a job either: what it would mark as held may be gone, and the mark would stay."""
    storage = MemoryStorage()
    first = fence(storage, "first")
    first.take_over()
    fence(storage, "second").take_over()

    with pytest.raises(LeadershipLost):
        EmbeddedPointers(storage, JOB, first).load()
    with pytest.raises(LeadershipLost):
        EmbeddedCheckpointIDCounter(storage, JOB, first).start()


def test_a_job_graph_that_is_larger_than_any_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file of gigabytes with nothing in it takes no memory, and keeps no other job from starting."""
    storage = MemoryStorage()
    storage.put("jobs/large", bytes(100))
    monkeypatch.setattr(embedded, "MAX_GRAPH_BYTES", 99)
    read = storage.get_range
    monkeypatch.setattr(
        storage, "get_range", lambda path, *of: pytest.fail(f"{path} is read") if path[0] == "j" else read(path, *of)
    )
    (set_aside,) = EmbeddedJobGraphs(storage, LeadershipFence(storage, None), UNSIGNED).load().set_aside
    assert "large" == set_aside.name
    assert "jobs/large has 100 bytes, and what belongs there 99 at most" in set_aside.reason


def test_a_storage_that_is_away_sets_nothing_aside(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next start may read everything."""
    storage = MemoryStorage()
    storage.put("jobs/a", bytes(100))

    def away(*_: object) -> bytes:
        raise StorageError("it does not answer")

    monkeypatch.setattr(storage, "get_range", away)
    with pytest.raises(StorageError, match="does not answer"):
        EmbeddedJobGraphs(storage, LeadershipFence(storage, None), UNSIGNED).load()


def test_a_counter_whose_way_is_blocked_says_so() -> None:
    """A directory stands where the next number goes: one line, where it waited for ever for who was faster."""
    storage = BlockedStorage()
    with pytest.raises(
        CheckpointIDCounterError, match="what is called 00000000000000000002 there is no file; remove it"
    ):
        counter(storage).get_and_increment()


def test_planted_pointers_and_statistics_of_gigabytes_are_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each has a bound of its own."""
    storage = MemoryStorage()
    pointers(storage, "first").add(ONE, b"p" * ((1 << 16) + 1))
    with pytest.raises(StorageError, match="what belongs there 65536 at most"):
        pointers(storage, "second").load()
    monkeypatch.setattr(embedded, "MAX_STATISTICS_BYTES", 9)
    storage.put("statistics/job", bytes(10))
    with pytest.raises(StorageError, match="what belongs there 9 at most"):
        EmbeddedStatistics(storage, JOB, LeadershipFence(storage, None)).read()
