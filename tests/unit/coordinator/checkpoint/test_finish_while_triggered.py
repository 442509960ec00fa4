"""A task finishes after a checkpoint was triggered and before it took part."""

from __future__ import annotations

from coordinator.checkpoint.effects import (
    CheckpointRequestCompleted,
    CheckpointRequestFailed,
    DrawCheckpointId,
    FailJob,
    SendNotifyCheckpointAborted,
    SendTriggerCheckpoint,
    StoreCompletedCheckpoint,
)
from coordinator.checkpoint.events import (
    CheckpointIdDrawn,
    CheckpointRequested,
    CheckpointRequestID,
    CheckpointStored,
    StartCheckpointScheduler,
    StopWithSavepointRequested,
)
from dataflow.elements import SnapshotType
from dataflow.ids import CheckpointID
from dataflow.messages import ExecutionState
from tests.unit.coordinator.checkpoint.small_job import Coordinator, running

WANTED = CheckpointRequestID("client-1")


def test_a_savepoint_begins_again_without_it() -> None:
    """The client gets it, in a directory of its own: that of the first attempt is being deleted."""
    job = Coordinator(interval_ms=100)
    first, second = job.sources
    job.tell(CheckpointRequested(WANTED, SnapshotType.SAVEPOINT, "/sp/one"))
    job.tell(CheckpointIdDrawn(WANTED, CheckpointID(1)))
    effects = job.tell(running(first, state=ExecutionState.FINISHED))
    assert [e for e in effects if isinstance(e, SendNotifyCheckpointAborted)]
    assert not [e for e in effects if isinstance(e, CheckpointRequestFailed | FailJob)]
    assert DrawCheckpointId(WANTED) in effects

    effects = job.tell(CheckpointIdDrawn(WANTED, CheckpointID(2)))
    assert [e.attempt_ids for e in effects if isinstance(e, SendTriggerCheckpoint)] == [(second,)]
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
