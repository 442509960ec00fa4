"""Master hooks in the core: tasks start behind them, and whatever they answer, and whenever, is used once."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from snapline.coordinator.checkpoint.checkpoint_coordinator import CheckpointCoordinator
from snapline.coordinator.checkpoint.completed_checkpoint import CompletedCheckpoint
from snapline.coordinator.checkpoint.configuration import CheckpointCoordinatorConfiguration
from snapline.coordinator.checkpoint.effects import (
    CheckpointRequestFailed,
    CloseMasterHook,
    PeriodicTriggerKey,
    PersistStatistics,
    ResetMasterHook,
    RestoreFailed,
    RestoreMasterHook,
    StateRestored,
    TriggerMasterHook,
)
from snapline.coordinator.checkpoint.events import (
    CheckpointIdCountSet,
    CheckpointIdDrawn,
    CheckpointRequested,
    CheckpointRequestID,
    CheckpointStored,
    CompletedCheckpointsRecovered,
    MasterHookAnswered,
    MasterHookFailed,
    MasterHookRestored,
    RestoreLatest,
    RestoreSavepoint,
    Shutdown,
    StartCheckpointScheduler,
    StopWithSavepointRequested,
)
from snapline.coordinator.checkpoint.properties import CheckpointProperties, CheckpointRetentionPolicy
from snapline.coordinator.checkpoint.registered_hooks import MasterHooks
from snapline.dataflow.elements import SnapshotType
from snapline.dataflow.failures import CheckpointFailureReason
from snapline.dataflow.ids import CheckpointID, JobID, JobVertexID
from snapline.dataflow.snapshot.handles import CheckpointMetadata, MasterState
from snapline.dataflow.wire.messages import ForTasks, JobStatus
from snapline.runtime.cores.machine import StartTimer
from tests.unit.coordinator.checkpoint.small_job import JOB, attempt, edge, running, vertex

FIRST, AGAIN = CheckpointRequestID("first"), CheckpointRequestID("again")
SEVEN = CheckpointID(7)
KEPT = MasterState("a", 3, b"kept")
COMPLETED = CompletedCheckpoint(
    JOB,
    "",
    SEVEN,
    0,
    0,
    CheckpointProperties.for_checkpoint(CheckpointRetentionPolicy.NEVER_RETAIN_AFTER_TERMINATION),
    "chk-7",
    (),
    (KEPT,),
)


class Job:
    """One vertex, and the hooks a and b."""

    def __init__(self) -> None:
        hooks = MasterHooks()
        hooks.add("a")
        hooks.add("b")
        self.core = CheckpointCoordinator(
            JOB,
            "job",
            CheckpointCoordinatorConfiguration(),
            (vertex("src"), vertex("sink")),
            (edge("src", "sink"),),
            store_survives_suspension=True,
            master_hooks=hooks,
        )

    def tell(self, event: Any) -> list[Any]:
        return [effect for effect in self.core.handle(event, 0) if not isinstance(effect, PersistStatistics)]

    def restore(self, *completed: CompletedCheckpoint) -> list[Any]:
        self.tell(RestoreLatest(FIRST))
        return self.tell(CompletedCheckpointsRecovered(completed))

    def run(self) -> None:
        self.restore()
        self.tell(MasterHookRestored("a"))
        self.tell(MasterHookRestored("b"))
        self.tell(running(attempt("src"), attempt("sink")))

    def trigger(self) -> list[Any]:
        self.tell(CheckpointRequested(FIRST))
        return self.tell(CheckpointIdDrawn(FIRST, CheckpointID(1)))


def test_hooks_are_reset_before_the_first_tasks() -> None:
    """There is nothing to restore; the answer comes behind the last hook."""
    job = Job()
    assert job.restore() == [ResetMasterHook("a"), ResetMasterHook("b")]
    assert job.tell(MasterHookRestored("b")) == []
    assert job.tell(MasterHookRestored("a")) == [StateRestored(FIRST, CheckpointID(0))]


def test_hooks_get_their_state_before_the_tasks() -> None:
    """One whose state the checkpoint does not hold is told so."""
    job = Job()
    assert job.restore(COMPLETED) == [RestoreMasterHook("a", SEVEN, KEPT), RestoreMasterHook("b", SEVEN, None)]
    assert job.tell(MasterHookRestored("a")) == []
    (answer,) = job.tell(MasterHookRestored("b"))
    assert isinstance(answer, StateRestored) and answer.checkpoint_id == SEVEN


@pytest.mark.parametrize("completed", [(), (COMPLETED,)])
def test_a_new_leader_leaves_hooks_alone_whose_tasks_go_on(completed: tuple[CompletedCheckpoint, ...]) -> None:
    """What a hook keeps outside was reset below tasks that ran, when there was no checkpoint yet."""
    job = Job()
    job.tell(RestoreLatest(FIRST, for_running_tasks=True))
    (answer,) = job.tell(CompletedCheckpointsRecovered(completed))
    assert isinstance(answer, StateRestored)


def test_a_hook_that_cannot_restore_fails_the_restore() -> None:
    """Once all have answered; another attempt calls all of them again."""
    job = Job()
    job.restore(COMPLETED)
    assert job.tell(MasterHookFailed("a", None, "no such topic")) == []
    (failed,) = job.tell(MasterHookRestored("b"))
    assert failed == RestoreFailed(FIRST, "master hook 'a' failed: no such topic", retryable=True)
    assert job.tell(RestoreLatest(AGAIN)) == [
        RestoreMasterHook("a", SEVEN, KEPT),
        RestoreMasterHook("b", SEVEN, None),
    ]


def test_a_claimed_snapshot_is_adopted_once_however_often_its_hooks_fail() -> None:
    """Registered a second time, it was pushed out by itself, and its files were deleted before the tasks had read
    them."""
    job = Job()
    metadata = CheckpointMetadata(JobID("old"), "", SEVEN, 0, SnapshotType.SAVEPOINT, (), (KEPT,))
    job.tell(RestoreSavepoint(FIRST, metadata, "file:///sp", claim=True))
    job.tell(CheckpointIdCountSet(FIRST))
    calls = job.tell(CheckpointStored(SEVEN))
    assert calls == [RestoreMasterHook("a", SEVEN, KEPT), RestoreMasterHook("b", SEVEN, None)]
    job.tell(MasterHookFailed("a", None, "no such topic"))
    (failed,) = job.tell(MasterHookRestored("b"))
    assert isinstance(failed, RestoreFailed) and failed.retryable

    assert job.tell(RestoreSavepoint(AGAIN, metadata, "file:///sp", claim=True)) == calls
    job.tell(MasterHookRestored("a"))
    (answer,) = job.tell(MasterHookRestored("b"))
    assert isinstance(answer, StateRestored) and answer.request_id == AGAIN
    assert [each.location for each in job.core.completed_store.checkpoints] == ["file:///sp"]


def test_hooks_are_not_restored_after_they_were_closed() -> None:
    """The job was cancelled while the snapshot that it starts from was being registered."""
    job = Job()
    metadata = CheckpointMetadata(JobID("old"), "", SEVEN, 0, SnapshotType.SAVEPOINT, (), (KEPT,))
    job.tell(RestoreSavepoint(FIRST, metadata, "file:///sp", claim=True))
    job.tell(CheckpointIdCountSet(FIRST))
    assert job.tell(Shutdown(JobStatus.CANCELED))[-2:] == [CloseMasterHook("a"), CloseMasterHook("b")]

    effects = job.tell(CheckpointStored(SEVEN))
    assert not any(isinstance(effect, RestoreMasterHook | StateRestored) for effect in effects)
    assert FIRST in [effect.request_id for effect in effects if isinstance(effect, RestoreFailed)]


def test_some_tasks_restart_whatever_hooks_the_job_has() -> None:
    """State of a hook that is gone was judged when the job started; a failing task does not end the job for it."""
    job = Job()
    gone = replace(COMPLETED, master_states=(KEPT, MasterState("gone", 1, b"state")))
    (refused,) = job.restore(gone)
    assert isinstance(refused, RestoreFailed) and "'gone'" in refused.detail
    assert job.tell(RestoreLatest(AGAIN, vertices=(JobVertexID("sink"),))) == [
        RestoreMasterHook("a", SEVEN, KEPT),
        RestoreMasterHook("b", SEVEN, None),
    ]


def test_a_second_restore_waits_for_the_hooks_of_the_first() -> None:
    """They are not called twice at the same time."""
    job = Job()
    job.restore(COMPLETED)
    assert job.tell(RestoreLatest(AGAIN)) == []
    job.tell(MasterHookRestored("a"))
    answer, *calls = job.tell(MasterHookRestored("b"))
    assert answer.request_id == FIRST
    assert [type(call) for call in calls] == [RestoreMasterHook, RestoreMasterHook]


def test_shutdown_refuses_the_held_answer_and_closes_the_hooks() -> None:
    """What they answer afterwards is nobody's business."""
    job = Job()
    job.restore(COMPLETED)
    effects = job.tell(Shutdown(JobStatus.SUSPENDED))
    assert RestoreFailed(FIRST, "the checkpoint coordinator was shut down") in effects
    assert [effect for effect in effects if isinstance(effect, CloseMasterHook)] == [
        CloseMasterHook("a"),
        CloseMasterHook("b"),
    ]
    assert job.tell(MasterHookRestored("a")) == []
    assert job.tell(MasterHookFailed("b", None, "late")) == []


def test_tasks_are_triggered_behind_the_last_hook() -> None:
    """In any order."""
    job = Job()
    job.run()
    assert [type(e) for e in job.trigger() if isinstance(e, (TriggerMasterHook, ForTasks))] == [
        TriggerMasterHook,
        TriggerMasterHook,
    ]
    assert job.tell(MasterHookAnswered("b", CheckpointID(1))) == []
    (trigger,) = job.tell(MasterHookAnswered("a", CheckpointID(1), KEPT))
    assert isinstance(trigger, ForTasks)


def test_a_hook_that_fails_fails_the_checkpoint_once() -> None:
    """What the other one answers comes too late."""
    job = Job()
    job.run()
    job.trigger()
    effects = job.tell(MasterHookFailed("a", CheckpointID(1), "told to"))
    (failed,) = [effect for effect in effects if isinstance(effect, CheckpointRequestFailed)]
    assert failed.reason is CheckpointFailureReason.TRIGGER_CHECKPOINT_FAILURE
    assert "Master hook 'a' failed: told to" in failed.detail
    assert job.tell(MasterHookAnswered("b", CheckpointID(1))) == []
    assert job.tell(MasterHookFailed("b", CheckpointID(1), "too")) == []


def test_a_hook_that_has_not_answered_a_stop_that_was_lost_does_not_keep_the_periodic_trigger_off() -> None:
    """The job restarted meanwhile, and runs on with its checkpoints."""
    job = Job()
    job.run()
    job.tell(StopWithSavepointRequested(FIRST, "file:///b"))
    assert TriggerMasterHook("a", SEVEN, 0) in job.tell(CheckpointIdDrawn(FIRST, SEVEN))
    job.restore()
    assert StartTimer(PeriodicTriggerKey(JOB), 10) in job.tell(StartCheckpointScheduler(10))
