"""Incremental checkpoints of tasks that a new leader has adopted: what they may refer to, and what is swept behind
them."""

from __future__ import annotations

from snapline.coordinator.checkpoint.abandoned_files import leftovers
from snapline.coordinator.checkpoint.effects import (
    CheckpointRequestFailed,
    DeleteLeftovers,
    DiscardState,
    FailJob,
    StoreCompletedCheckpoint,
)
from snapline.coordinator.checkpoint.events import (
    CheckpointRequestID,
    CheckpointStored,
    CompletedCheckpointRemoved,
    RestoreLatest,
)
from snapline.coordinator.checkpoint.statistics.stats_persistence import decode_statistics, encode_statistics
from snapline.dataflow.failures import CheckpointFailureReason
from snapline.dataflow.ids import CheckpointID
from snapline.dataflow.key_groups import KeyGroupRange
from snapline.dataflow.snapshot.handles import (
    KeyedStateHandle,
    OperatorSubtaskState,
    SegmentStateHandle,
    TaskStateSnapshot,
)
from tests.unit.coordinator.checkpoint.small_job import Coordinator, snapshot


def chain(*checkpoints: int) -> TaskStateSnapshot:
    """Parts that the first source wrote for these checkpoints."""
    parts = tuple(
        KeyedStateHandle(KeyGroupRange(0, 3), SegmentStateHandle(f"shared/segment-tm-{n}-0", 0, 10), f"src-{n}")
        for n in checkpoints
    )
    return snapshot(src=OperatorSubtaskState(managed_keyed=parts))


def acknowledged(job: Coordinator, number: int, state: TaskStateSnapshot) -> list[object]:
    """A checkpoint that all tasks acknowledge, the first source with this state."""
    job.trigger(f"checkpoint {number}", number)
    first, *others = job.tasks
    job.acknowledge(number, *others)
    return list(job.acknowledge(number, first, state=state))


def adopted() -> Coordinator:
    """By a leader that found checkpoint 3, which builds on 2; the former one had deleted what 1 had."""
    before = Coordinator()
    (stored,) = [e for e in acknowledged(before, 3, chain(2, 3)) if isinstance(e, StoreCompletedCheckpoint)]
    job = Coordinator(tolerable_failures=0)
    job.core.publication.recover((stored.checkpoint,))
    job.tell(RestoreLatest(CheckpointRequestID("adopt"), None, allow_non_restored_state=True, for_running_tasks=True))
    return job


def test_what_builds_on_a_retained_checkpoint_is_stored() -> None:
    """Then what nobody refers to is swept: the former leader may have died before it deleted it."""
    job = adopted()
    effects = acknowledged(job, 5, chain(2, 3, 5))
    assert [type(effect) for effect in effects if isinstance(effect, StoreCompletedCheckpoint)]

    swept = [e for e in job.tell(CheckpointStored(CheckpointID(5))) if isinstance(e, DeleteLeftovers)]
    kept = frozenset(f"shared/segment-tm-{number}-0" for number in (2, 3, 5))
    assert swept == [DeleteLeftovers(kept, frozenset({"chk-5"}), CheckpointID(5))]


def test_what_builds_on_an_older_one_is_given_up_and_does_not_count_as_a_failure() -> None:
    """The task hears of checkpoint 3 only now; the next one builds on it."""
    job = adopted()
    effects = acknowledged(job, 5, chain(1, 5))
    assert not [effect for effect in effects if isinstance(effect, StoreCompletedCheckpoint | FailJob)]
    (failed,) = [effect for effect in effects if isinstance(effect, CheckpointRequestFailed)]
    assert failed.reason is CheckpointFailureReason.CHECKPOINT_DECLINED_TASK_NOT_READY
    assert failed.detail.startswith("shared/segment-tm-1-0 is not shared any more")

    effects = acknowledged(job, 6, chain(2, 3, 6))
    assert [effect for effect in effects if isinstance(effect, StoreCompletedCheckpoint)]


def test_what_was_uploaded_for_a_checkpoint_of_the_former_leader_is_swept() -> None:
    """The task reports an acknowledgement that nobody answered. Who says that may be wrong, and the checkpoint yet be
    taken, so that nothing goes before a later one is complete."""
    job = adopted()
    effects = job.acknowledge(4, job.tasks[0], state=chain(2, 3, 4))
    assert [e.paths for e in effects if isinstance(e, DiscardState)] == [()]

    acknowledged(job, 5, chain(2, 3, 5))
    (swept,) = [e for e in job.tell(CheckpointStored(CheckpointID(5))) if isinstance(e, DeleteLeftovers)]
    file = "shared/segment-tm-4-0"
    assert [file] == leftovers([file], swept.kept_files, swept.kept_locations, swept.before)


def test_what_an_incremental_checkpoint_wrote_is_told_from_all_that_it_refers_to() -> None:
    """Both were the size of the whole state, so that nobody saw what each checkpoint costs; the figures outlive their
    leader."""
    job = Coordinator()
    for number in (1, 2, 3):
        acknowledged(job, number, chain(*range(1, number + 1)))
        job.tell(CheckpointStored(CheckpointID(number)))
        if number > 1:
            job.tell(CompletedCheckpointRemoved(CheckpointID(number - 1)))
    for stats in (job.core.stats, decode_statistics(encode_statistics(job.core.stats), 10)):
        totals = [each.totals for each in stats.history]
        assert [(each.checkpointed_size_bytes, each.state_size_bytes) for each in totals] == [
            (10, 10),
            (10, 20),
            (10, 30),
        ]
        assert (stats.checkpointed_size.snapshot().sum, stats.state_size.snapshot().sum) == (30, 60)
        assert [report[3:5] for report in stats.history[-1].reports if report[3]] == [(30, 10)]
