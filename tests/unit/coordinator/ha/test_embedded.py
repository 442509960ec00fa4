"""Holders of pointers, and counters when several processes draw or one of them crashes."""

from __future__ import annotations

from coordinator.ha.embedded import EmbeddedCheckpointIDCounter, EmbeddedPointers, LeadershipFence
from dataflow.ids import CheckpointID, JobID
from runtime.memory_storage import MemoryStorage

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
    """Shows the counter as it was when the process fell asleep, once."""

    asleep = False
    seen: list[tuple[str, int]] | None = None

    def list(self, prefix: str) -> list[tuple[str, int]]:
        if self.asleep and self.seen is not None:
            self.asleep = False
            return self.seen
        return super().list(prefix)


def test_process_that_slept_draws_no_id_a_second_time() -> None:
    """Its file was created and deleted by others meanwhile, so that it can create it again: it notices, and tries again."""
    storage = ForgetfulStorage()
    sleeper, other = counter(storage), counter(storage)
    sleeper.start()
    storage.seen = storage.list("counters/job")
    drawn = [other.get_and_increment() for _ in range(50)]
    storage.asleep = True

    assert sleeper.get_and_increment() == drawn[-1] + 1
