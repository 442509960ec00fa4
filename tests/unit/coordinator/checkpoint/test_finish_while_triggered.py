"""A task finishes after a checkpoint was triggered and before it took part."""

from __future__ import annotations

from snapline.coordinator.checkpoint.effects import (
    CheckpointRequestCompleted,
    CheckpointRequestFailed,
    CheckpointTimeoutKey,
    DrawCheckpointId,
    FailJob,
    StoreCompletedCheckpoint,
)
from snapline.coordinator.checkpoint.events import (
    CheckpointIdDrawn,
    CheckpointRequested,
    CheckpointRequestID,
    CheckpointStored,
    DeclineReceived,
    StartCheckpointScheduler,
    StopWithSavepointRequested,
)
from snapline.dataflow.elements import SnapshotType
from snapline.dataflow.failures import CheckpointFailureReason
from snapline.dataflow.ids import CheckpointID
from snapline.dataflow.wire.messages import (
    DeclineCheckpoint,
    ExecutionState,
    ForTasks,
    NotifyCheckpointAborted,
    TriggerCheckpoint,
)
from snapline.runtime.cores.machine import TimerFired
from tests.unit.coordinator.checkpoint.small_job import JOB, Coordinator, running

WANTED = CheckpointRequestID("client-1")


def test_a_savepoint_begins_again_without_it() -> None:
    """The client gets it, in a directory of its own: that of the first attempt is being deleted."""
    job = Coordinator(interval_ms=100)
    first, second = job.sources
    job.tell(CheckpointRequested(WANTED, SnapshotType.SAVEPOINT, "/sp/one"))
    job.tell(CheckpointIdDrawn(WANTED, CheckpointID(1)))
    effects = job.tell(running(first, state=ExecutionState.FINISHED))
    assert [e for e in effects if isinstance(e, ForTasks) and isinstance(e.template, NotifyCheckpointAborted)]
    assert not [e for e in effects if isinstance(e, CheckpointRequestFailed | FailJob)]
    assert DrawCheckpointId(WANTED, "/sp/one-2") in effects

    effects = job.tell(CheckpointIdDrawn(WANTED, CheckpointID(2)))
    assert [
        e.attempt_ids for e in effects if isinstance(e, ForTasks) and isinstance(e.template, TriggerCheckpoint)
    ] == [(second,)]
    (stored,) = [e for e in job.acknowledge(2, *job.tasks[1:]) if isinstance(e, StoreCompletedCheckpoint)]
    assert stored.checkpoint.location == "/sp/one-2"
    completed = CheckpointRequestCompleted(WANTED, CheckpointID(2), "/sp/one-2")
    assert completed in job.tell(CheckpointStored(CheckpointID(2)))


def test_a_periodic_checkpoint_does_not() -> None:
    """The next one comes by itself."""
    job = Coordinator(interval_ms=100)
    job.tell(StartCheckpointScheduler(100))
    job.tell(CheckpointRequested(WANTED, is_periodic=True))
    job.tell(CheckpointIdDrawn(WANTED, CheckpointID(1)))
    effects = job.tell(running(job.sources[0], state=ExecutionState.FINISHED))

    assert [e.request_id for e in effects if isinstance(e, CheckpointRequestFailed)] == [WANTED]
    assert DrawCheckpointId(WANTED) not in effects


def test_nor_does_one_that_has_stopped_the_others() -> None:
    """They stand still: the job restarts, and the client is told."""
    job = Coordinator(interval_ms=100)
    job.tell(StopWithSavepointRequested(WANTED, "/sp/one", drain=False))
    job.tell(CheckpointIdDrawn(WANTED, CheckpointID(1)))
    effects = job.tell(running(job.sources[0], state=ExecutionState.FINISHED))

    assert [e.request_id for e in effects if isinstance(e, CheckpointRequestFailed)] == [WANTED]
    assert [e for e in effects if isinstance(e, FailJob)]


def test_when_all_have_finished_there_is_nothing_to_begin() -> None:
    """The client is told."""
    job = Coordinator(interval_ms=100)
    job.tell(CheckpointRequested(WANTED, SnapshotType.SAVEPOINT, "/sp/one"))
    job.tell(CheckpointIdDrawn(WANTED, CheckpointID(1)))
    effects = job.tell(running(*job.tasks, state=ExecutionState.FINISHED))

    (failed,) = [e for e in effects if isinstance(e, CheckpointRequestFailed)]
    assert failed.detail == "no task is left that could take part: all have finished"


def test_a_request_that_finds_all_finished_is_no_failed_checkpoint() -> None:
    """The one in flight failed; the periodic one that had waited behind it is only refused."""
    job = Coordinator(interval_ms=100)
    job.tell(StartCheckpointScheduler(100))
    job.tell(CheckpointRequested(WANTED, is_periodic=True))
    job.tell(CheckpointIdDrawn(WANTED, CheckpointID(1)))
    queued = CheckpointRequestID("queued")
    job.tell(CheckpointRequested(queued, is_periodic=True))
    effects = job.tell(running(*job.tasks, state=ExecutionState.FINISHED))

    assert [e.request_id for e in effects if isinstance(e, CheckpointRequestFailed)] == [WANTED, queued]
    counts = job.core.stats.counts
    assert (counts.total, counts.failed, counts.in_progress) == (1, 1, 0)


def test_a_savepoint_does_not_begin_again_behind_one_that_the_job_has_stopped_with() -> None:
    """It had tasks as finished that had only stopped: who started from it lost their rows."""
    job = Coordinator(interval_ms=100)
    stop = CheckpointRequestID("client-2")
    job.tell(CheckpointRequested(WANTED, SnapshotType.SAVEPOINT, "/sp/one"))
    job.tell(StopWithSavepointRequested(stop, "/sp/two", drain=False))
    job.tell(CheckpointIdDrawn(WANTED, CheckpointID(1)))
    job.tell(CheckpointIdDrawn(stop, CheckpointID(2)))
    job.acknowledge(2)
    job.tell(CheckpointStored(CheckpointID(2)))
    effects = job.tell(running(job.sources[0], state=ExecutionState.FINISHED))

    assert [e.request_id for e in effects if isinstance(e, CheckpointRequestFailed)] == [WANTED]
    assert not [e for e in effects if isinstance(e, DrawCheckpointId)]


def test_why_names_the_task_as_people_do() -> None:
    """Operator, subtask and attempt, not the id of the attempt."""
    job = Coordinator(interval_ms=100, tolerable_failures=9)
    first, second = job.sources
    declined = CheckpointFailureReason.CHECKPOINT_DECLINED
    ends = (
        DeclineReceived(DeclineCheckpoint(JOB, first, CheckpointID(1), declined, "disk full")),
        DeclineReceived(DeclineCheckpoint(JOB, second, CheckpointID(2), declined)),
        TimerFired(CheckpointTimeoutKey(JOB, CheckpointID(3))),
        running(second, state=ExecutionState.FAILED),
    )
    details = []
    for checkpoint_id, end in enumerate(ends, start=1):
        job.trigger(f"client-{checkpoint_id}", checkpoint_id)
        details += [e.detail for e in job.tell(end) if isinstance(e, CheckpointRequestFailed)]

    assert details == [
        "src (1/2), attempt 0: disk full",
        "src (2/2), attempt 0.",
        "3 tasks did not acknowledge, the first of them src (1/2), attempt 0.",
        "src (2/2), attempt 0 is gone.",
    ]
