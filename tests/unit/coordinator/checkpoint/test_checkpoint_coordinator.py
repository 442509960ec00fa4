"""The coordinator's order of things: what is asked for, when, and what a broken world changes about it."""

from __future__ import annotations

import pytest

from snapline.coordinator.checkpoint.checkpoint_coordinator import CheckpointCoordinator
from snapline.coordinator.checkpoint.effects import (
    CheckpointRequestCompleted,
    CheckpointRequestFailed,
    CheckpointTimeoutKey,
    CoordinatorShutDown,
    DeleteLeftovers,
    DeleteStagedRows,
    DiscardCheckpoint,
    DrawCheckpointId,
    FailJob,
    MessageRefused,
    PeriodicTriggerKey,
    RecoverCompletedCheckpoints,
    ReleaseCompletedCheckpoints,
    RemoveCompletedCheckpoint,
    RestoreFailed,
    SetCheckpointIdCount,
    ShutdownIdCounter,
    StateRestored,
    StoreCompletedCheckpoint,
    VerifyStoredCheckpoint,
)
from snapline.coordinator.checkpoint.events import (
    CheckpointIdCountSet,
    CheckpointIdDrawn,
    CheckpointIdFailed,
    CheckpointRequested,
    CheckpointRequestID,
    CheckpointStored,
    CheckpointStoreFailed,
    CompletedCheckpointRemoved,
    CompletedCheckpointsRecovered,
    DeclineReceived,
    JobHasStopped,
    RestoreLatest,
    RestoreSavepoint,
    Shutdown,
    StartCheckpointScheduler,
    StopCheckpointScheduler,
    StopWithSavepointRequested,
    TopologyChanged,
)
from snapline.coordinator.checkpoint.properties import CheckpointRetentionPolicy
from snapline.coordinator.checkpoint.publication import NO_LIMIT
from snapline.dataflow.elements import AlignmentType, CheckpointOptions, SnapshotType
from snapline.dataflow.failures import CheckpointFailureReason
from snapline.dataflow.ids import CheckpointID, JobID
from snapline.dataflow.snapshot.handles import CheckpointMetadata
from snapline.dataflow.wire.messages import (
    DeclineCheckpoint,
    ExecutionState,
    ForTasks,
    JobStatus,
    NotifyCheckpointAborted,
    NotifyCheckpointComplete,
    TriggerCheckpoint,
)
from snapline.runtime.cores.machine import CancelTimer, InvariantViolation, StartTimer, TimerFired
from tests.unit.coordinator.checkpoint.small_job import (
    JOB,
    Coordinator,
    attempt,
    edge,
    keyed,
    running,
    snapshot,
    vertex,
)

A, B = CheckpointRequestID("a"), CheckpointRequestID("b")
ONE, TWO, THREE = CheckpointID(1), CheckpointID(2), CheckpointID(3)


def successor_of(job: Coordinator) -> CheckpointCoordinator:
    """Another leader's, of the same job: it has not read the store yet."""
    return CheckpointCoordinator(
        JOB,
        "job",
        job.core.configuration,
        job.core.executions.vertices,
        job.core.executions.edges,
        store_survives_suspension=True,
    )


def test_checkpoint_from_request_to_notification() -> None:
    """The tasks hear of the completion only after the store has answered."""
    job = Coordinator(timeout_ms=5_000)
    timeout = CheckpointTimeoutKey(JOB, ONE)
    options = CheckpointOptions(target_location="chk-1")

    assert job.trigger("a", 1) == [
        DrawCheckpointId(A),
        StartTimer(timeout, 1_005_000),
        ForTasks(TriggerCheckpoint(JOB, job.sources[0], ONE, 1_000_000, options), job.sources),
    ]
    assert job.acknowledge(1, *job.sources) == []
    cancel, store = job.acknowledge(1, job.tasks[2])
    assert cancel == CancelTimer(timeout)
    assert isinstance(store, StoreCompletedCheckpoint)
    assert store.checkpoint.location == "chk-1"
    assert job.tell(CheckpointStored(ONE)) == [
        CheckpointRequestCompleted(A, ONE, "chk-1"),
        ForTasks(NotifyCheckpointComplete(JOB, job.tasks[0], ONE, 1_000_000), job.tasks),
    ]


def test_tasks_are_asked_for_again_after_the_id_came() -> None:
    """A task that failed while the id was drawn is not triggered, and no checkpoint is left behind."""
    job = Coordinator()
    job.tell(CheckpointRequested(A))
    job.tell(running(job.sources[1], state=ExecutionState.FAILED))

    effects = job.tell(CheckpointIdDrawn(A, ONE))

    assert effects == [
        CheckpointRequestFailed(A, CheckpointFailureReason.NOT_ALL_REQUIRED_TASKS_RUNNING, "src (2/2) is FAILED")
    ]
    assert job.core.pending_checkpoints == ()


def test_id_that_nobody_waits_for_any_more_is_ignored() -> None:
    """The job was restored while the id was drawn: the id is skipped, nothing is triggered with it."""
    job = Coordinator()
    job.tell(CheckpointRequested(A))
    job.tell(RestoreLatest(CheckpointRequestID("r")))

    assert job.tell(CheckpointIdDrawn(A, ONE)) == []
    assert not job.core.is_triggering


def test_what_killed_tasks_left_goes_once_their_successors_have_completed_a_checkpoint() -> None:
    """Before that its number may be drawn again by nobody, but the tasks that are gone may still be writing."""
    job = Coordinator()
    job.trigger("a", 1)
    job.acknowledge(1, state=None)
    job.tell(CheckpointStored(ONE))
    job.trigger("b", 2)
    job.tell(RestoreLatest(CheckpointRequestID("r")))
    job.trigger("c", 3)
    job.acknowledge(3, state=None)

    effects = job.tell(CheckpointStored(THREE))

    assert effects[-1] == DeleteLeftovers(frozenset(), frozenset({"chk-3"}), THREE)
    job.trigger("d", 4)
    job.acknowledge(4, state=None)
    assert not any(isinstance(effect, DeleteLeftovers) for effect in job.tell(CheckpointStored(CheckpointID(4))))


def test_new_attempt_is_triggered_when_it_came_before_the_id() -> None:
    """The plan is made anew when attempts changed while the id was drawn."""
    job = Coordinator()
    job.tell(CheckpointRequested(A))
    replacement = attempt("src", 1, number=1)
    job.tell(running(replacement))

    effects = job.tell(CheckpointIdDrawn(A, ONE))

    (trigger,) = [effect for effect in effects if isinstance(effect, ForTasks)]
    assert trigger.attempt_ids == (job.sources[0], replacement)


def test_older_checkpoint_is_not_stored_behind_the_back_of_a_newer_one() -> None:
    """While 2 is being stored 1 becomes complete too; it waits, and is subsumed when 2 counts."""
    job = Coordinator(max_concurrent_checkpoints=2)
    job.trigger("a", 1)
    job.trigger("b", 2)
    job.acknowledge(2)

    assert job.acknowledge(1) == []
    effects = job.tell(CheckpointStored(TWO))

    failed = [effect for effect in effects if isinstance(effect, CheckpointRequestFailed)]
    assert failed == [CheckpointRequestFailed(A, CheckpointFailureReason.CHECKPOINT_SUBSUMED, "", ONE)]
    assert not any(isinstance(effect, StoreCompletedCheckpoint) for effect in effects)


def test_older_checkpoint_is_stored_when_the_newer_one_failed() -> None:
    """The one that waited has its turn."""
    job = Coordinator(max_concurrent_checkpoints=2)
    job.trigger("a", 1)
    job.trigger("b", 2)
    job.acknowledge(2)
    job.acknowledge(1)

    effects = job.tell(CheckpointStoreFailed(TWO, "disk full"))

    (store,) = [effect for effect in effects if isinstance(effect, StoreCompletedCheckpoint)]
    assert store.checkpoint.checkpoint_id == ONE


def test_restore_waits_for_the_store_and_for_certainty() -> None:
    """Unknown outcome, then success: the checkpoint counts, and only then the restore is answered, from it."""
    job = Coordinator()
    job.trigger("a", 1)
    job.acknowledge(1, state=None)
    job.tell(running(*job.tasks, state=ExecutionState.CANCELED))
    assert job.tell(RestoreLatest(CheckpointRequestID("r"))) == []

    (verify,) = job.tell(CheckpointStoreFailed(ONE, "connection lost", outcome_unknown=True))
    effects = job.tell(CheckpointStored(ONE))

    assert isinstance(verify, VerifyStoredCheckpoint)
    assert verify.doubt == "connection lost"
    assert effects[-1] == StateRestored(CheckpointRequestID("r"), ONE)


def test_stop_does_not_abort_what_is_being_stored() -> None:
    """Its outcome is decided by the answer alone."""
    job = Coordinator()
    job.tell(StartCheckpointScheduler(10_000))
    job.trigger("a", 1)
    job.acknowledge(1)

    assert job.tell(StopCheckpointScheduler()) == [CancelTimer(PeriodicTriggerKey(JOB))]
    assert CheckpointRequestCompleted(A, ONE, "chk-1") in job.tell(CheckpointStored(ONE))


def test_shutdown_waits_for_store_and_deletions() -> None:
    """The last effect comes when nothing is outstanding."""
    job = Coordinator()
    job.trigger("a", 1)
    job.acknowledge(1)
    assert job.tell(Shutdown(JobStatus.FINISHED)) == []

    effects = job.tell(CheckpointStored(ONE))

    assert [type(effect) for effect in effects[-3:]] == [
        RemoveCompletedCheckpoint,
        ReleaseCompletedCheckpoints,
        ShutdownIdCounter,
    ]
    assert job.tell(CompletedCheckpointRemoved(ONE)) == [
        DeleteLeftovers(frozenset(), frozenset(), NO_LIMIT),
        CoordinatorShutDown(JobStatus.FINISHED),
    ]


def test_job_that_ends_before_it_was_restored_cleans_up_after_former_leaders() -> None:
    """What they completed is read first, so that it goes as its retention says."""
    job = Coordinator()
    job.trigger("a", 1)
    job.acknowledge(1)
    job.tell(CheckpointStored(ONE))
    (completed,) = job.core.completed_store.checkpoints
    successor = successor_of(job)

    assert RecoverCompletedCheckpoints() in successor.handle(Shutdown(JobStatus.CANCELED), 0)
    effects = successor.handle(CompletedCheckpointsRecovered((completed,)), 0)

    assert RemoveCompletedCheckpoint(completed, discard=True) in effects


@pytest.mark.parametrize(
    ("retention", "stay"),
    [
        (CheckpointRetentionPolicy.RETAIN_ON_CANCELLATION, {ONE}),
        (CheckpointRetentionPolicy.NEVER_RETAIN_AFTER_TERMINATION, set()),
    ],
)
def test_what_stays_for_the_user_is_still_said_to_be_there(
    retention: CheckpointRetentionPolicy, stay: set[CheckpointID]
) -> None:
    """In the last view of a job that was cancelled it was said to be deleted."""
    job = Coordinator(retention=retention)
    job.trigger("a", 1)
    job.acknowledge(1)
    job.tell(CheckpointStored(ONE))
    assert job.core.publication.retained_ids == {ONE}
    job.tell(Shutdown(JobStatus.CANCELED))
    job.tell(CompletedCheckpointRemoved(ONE))
    assert job.core.publication.retained_ids == stay


def test_suspension_keeps_everything() -> None:
    """Another leader goes on: no pointer and no file is touched."""
    job = Coordinator()
    job.trigger("a", 1)
    job.acknowledge(1)
    job.tell(CheckpointStored(ONE))

    assert job.tell(Shutdown(JobStatus.SUSPENDED)) == [
        ReleaseCompletedCheckpoints(),
        ShutdownIdCounter(JobStatus.SUSPENDED),
        CoordinatorShutDown(JobStatus.SUSPENDED),
    ]


def test_after_shutdown_everything_is_refused() -> None:
    """Requests and restores are answered, messages of tasks are not for anything any more."""
    job = Coordinator()
    job.tell(Shutdown(JobStatus.SUSPENDED))
    reason = CheckpointFailureReason.CHECKPOINT_COORDINATOR_SHUTDOWN

    assert job.tell(CheckpointRequested(A)) == [CheckpointRequestFailed(A, reason)]
    assert isinstance(job.tell(RestoreLatest(A))[0], RestoreFailed)
    with pytest.raises(InvariantViolation, match="to be started, and the checkpoint coordinator is shut down"):
        job.tell(StartCheckpointScheduler(1))
    assert job.tell(DeclineReceived(DeclineCheckpoint(JOB, job.tasks[0], ONE, reason))) == [
        MessageRefused(ONE, job.tasks[0], f"the checkpoint coordinator of job {JOB} is shut down")
    ]


def test_shutdown_while_the_id_is_drawn() -> None:
    """The request is refused when the id comes, and then the coordinator is over."""
    job = Coordinator()
    job.tell(CheckpointRequested(A))
    assert CoordinatorShutDown(JobStatus.FAILED) not in job.tell(Shutdown(JobStatus.FAILED))

    effects = job.tell(CheckpointIdDrawn(A, ONE))

    assert effects == [
        CheckpointRequestFailed(A, CheckpointFailureReason.CHECKPOINT_COORDINATOR_SHUTDOWN),
        CoordinatorShutDown(JobStatus.FAILED),
    ]


def test_shutdown_while_the_id_is_set() -> None:
    """A snapshot was about to be taken over: it is not any more, and nobody forgets the counter before it is written
    for the last time."""
    core = successor_of(Coordinator())
    metadata = CheckpointMetadata(JOB, "job", CheckpointID(7), 0, SnapshotType.CHECKPOINT, ())
    assert core.handle(RestoreSavepoint(A, metadata, "file:///sp", claim=True), 0) == [
        SetCheckpointIdCount(A, CheckpointID(8))
    ]
    assert CoordinatorShutDown(JobStatus.CANCELED) not in core.handle(Shutdown(JobStatus.CANCELED), 0)

    assert core.handle(CheckpointIdCountSet(A), 0) == [
        RestoreFailed(A, "the checkpoint coordinator was shut down", retryable=True),
        CoordinatorShutDown(JobStatus.CANCELED),
    ]


def test_a_snapshot_that_the_job_does_not_own_is_kept_until_its_own_checkpoint_is_there() -> None:
    """With two or more checkpoints retained, a job that was told not to claim its savepoint still counted it among
    them: its user deleted it, as one may then, and no later leader could read what there was to start from."""
    job = Coordinator(max_retained_checkpoints=3)
    metadata = CheckpointMetadata(JOB, "job", CheckpointID(7), 0, SnapshotType.SAVEPOINT, ())
    job.tell(RestoreSavepoint(A, metadata, "file:///sp", claim=False))
    job.tell(CheckpointIdCountSet(A))
    job.tell(CheckpointStored(CheckpointID(7)))

    removed = []
    for number in (8, 9):
        job.trigger(str(number), number)
        job.acknowledge(number)
        effects = job.tell(CheckpointStored(CheckpointID(number)))
        removed += [
            (each.checkpoint.location, each.discard) for each in effects if isinstance(each, RemoveCompletedCheckpoint)
        ]

    assert removed == [("file:///sp", False)]
    assert [each.checkpoint_id for each in job.core.publication.store.checkpoints] == [8, 9]


def test_finished_task_that_did_not_acknowledge_ends_the_checkpoint() -> None:
    """Nobody waits for the timeout of a task that cannot answer any more, and it counts against no tolerance."""
    job = Coordinator(tolerable_failures=0, interval_ms=100)
    job.tell(StartCheckpointScheduler(100))
    job.tell(CheckpointRequested(CheckpointRequestID("a"), is_periodic=True))
    job.tell(CheckpointIdDrawn(CheckpointRequestID("a"), CheckpointID(1)))

    effects = job.tell(running(job.sources[0], state=ExecutionState.FINISHED))

    (failed,) = [effect for effect in effects if isinstance(effect, CheckpointRequestFailed)]
    assert failed.reason is CheckpointFailureReason.CHECKPOINT_DECLINED_TASK_NOT_READY
    assert not any(isinstance(effect, FailJob) for effect in effects)


def test_checkpoint_of_state_that_no_operator_owns_is_refused() -> None:
    """State would be lost silently: the checkpoint fails and says whose it is."""
    job = Coordinator()
    job.trigger("a", 1)
    job.acknowledge(1, job.tasks[2], job.sources[0])

    effects = job.acknowledge(1, job.sources[1], state=snapshot(stranger=keyed("chk-1/f")))

    (failed,) = [effect for effect in effects if isinstance(effect, CheckpointRequestFailed)]
    assert failed.reason is CheckpointFailureReason.FINALIZE_CHECKPOINT_FAILURE
    assert "src (2/2)" in failed.detail
    assert "stranger" in failed.detail


def test_abort_messages_name_the_latest_completed_checkpoint() -> None:
    """Tasks learn what is durable from every abort."""
    job = Coordinator()
    job.trigger("a", 1)
    job.acknowledge(1)
    job.tell(CheckpointStored(ONE))
    job.trigger("b", 2)

    decline = DeclineCheckpoint(JOB, job.tasks[0], TWO, CheckpointFailureReason.CHECKPOINT_DECLINED)
    effects = job.tell(DeclineReceived(decline))

    aborted = NotifyCheckpointAborted(JOB, job.tasks[0], TWO, ONE, job.now_ms)
    assert effects[-1] == ForTasks(aborted, job.tasks)


def test_unaligned_with_timeout_starts_aligned() -> None:
    """The options of the trigger say so; savepoints stay aligned without a timeout."""
    job = Coordinator(unaligned=True, aligned_checkpoint_timeout_ms=300)

    (trigger,) = [effect for effect in job.trigger("a", 1) if isinstance(effect, ForTasks)]

    assert isinstance(trigger.template, TriggerCheckpoint)
    assert trigger.template.options.alignment is AlignmentType.ALIGNED
    assert trigger.template.options.is_timeoutable
    assert not job.core.configuration.options_of(SnapshotType.SAVEPOINT, "x").is_timeoutable


def test_missed_ticks_are_left_out() -> None:
    """The process slept for a minute: one checkpoint follows, and the rhythm goes on."""
    job = Coordinator(interval_ms=10_000)
    job.tell(StartCheckpointScheduler(10_000))
    job.now_ms += 65_000

    effects = job.tell(TimerFired(PeriodicTriggerKey(JOB)))

    assert effects[0] == StartTimer(PeriodicTriggerKey(JOB), 1_070_000)
    assert [type(effect) for effect in effects[1:]] == [DrawCheckpointId]


def test_timers_of_other_jobs_are_not_ours() -> None:
    """Several coordinators may share a timer service."""
    job = Coordinator()
    job.trigger("a", 1)

    assert job.tell(TimerFired(CheckpointTimeoutKey(JobID("other"), ONE))) == []
    assert job.tell(TimerFired("something else")) == []


def test_rescaling_replaces_the_tasks() -> None:
    """What the old tasks had begun is aborted; the new shape counts from then on."""
    job = Coordinator()
    job.trigger("a", 1)

    effects = job.tell(TopologyChanged((vertex("src", 1), vertex("sink", 3)), (edge("src", "sink"),)))
    tasks = (attempt("src"), *(attempt("sink", subtask) for subtask in range(3)))
    job.tell(running(*tasks))
    (trigger,) = [effect for effect in job.trigger("b", 2) if isinstance(effect, ForTasks)]

    assert (
        CheckpointRequestFailed(A, CheckpointFailureReason.JOB_FAILOVER_REGION, "The job is being rescaled.", ONE)
        in effects
    )
    assert trigger.attempt_ids == (tasks[0],)
    assert len(job.core.pending_checkpoints[0].unacknowledged_tasks) == 4


def test_aborted_checkpoint_of_two_coordinators_leaves_the_directory() -> None:
    """Somebody else published this id: only our own files go."""
    job = Coordinator()
    job.trigger("a", 1)
    job.acknowledge(1, *job.sources, state=snapshot(src=keyed("chk-1/mine")))
    job.acknowledge(1, job.tasks[2])

    effects = job.tell(CheckpointStoreFailed(ONE, "taken", published_by_other=True))

    (discard,) = [effect for effect in effects if isinstance(effect, DiscardCheckpoint)]
    assert (discard.location, discard.paths) == ("", ("chk-1/mine",))


def test_drawing_an_id_twice_is_a_defect() -> None:
    """A counter that hands out an id of a pending checkpoint stops the coordinator."""
    job = Coordinator(max_concurrent_checkpoints=2)
    job.trigger("a", 1)

    with pytest.raises(InvariantViolation, match="drawn twice"):
        job.trigger("b", 1)


def test_answers_that_nobody_asked_for_are_defects() -> None:
    """A store that answers twice stops the coordinator."""
    with pytest.raises(InvariantViolation, match="not being stored"):
        Coordinator().tell(CheckpointStored(THREE))


def test_unknown_events_are_defects() -> None:
    """An event of another machine stops the coordinator."""
    with pytest.raises(InvariantViolation, match="no event"):
        Coordinator().tell(object())


def test_refused_event_leaves_the_coordinator_as_it_was() -> None:
    """Check, then change: a refusal costs no id, no timer, no state."""
    job = Coordinator()
    job.tell(running(job.sources[0], state=ExecutionState.CANCELED))

    (refused,) = job.tell(CheckpointRequested(A))

    assert isinstance(refused, CheckpointRequestFailed)
    assert (job.core.is_triggering, job.core.queued_request_count, job.core.pending_checkpoints) == (False, 0, ())


@pytest.mark.parametrize("is_drawing", [False, True])
def test_a_stop_that_comes_to_nothing_while_the_job_restarts_leaves_the_trigger_off(is_drawing: bool) -> None:
    """The stop had taken over from the periodic trigger, which goes on with the job, not before."""
    job = Coordinator(interval_ms=100)
    job.tell(StartCheckpointScheduler(100))
    if not is_drawing:
        job.tell(CheckpointRequested(A, SnapshotType.SAVEPOINT, "file:///a"))  # the stop waits for its turn
    job.tell(StopWithSavepointRequested(B, "file:///b"))
    job.tell(running(job.sources[0], state=ExecutionState.FAILED))
    effects = job.tell(StopCheckpointScheduler())
    effects += job.tell(CheckpointIdDrawn(B if is_drawing else A, CheckpointID(1)))

    assert B in [effect.request_id for effect in effects if isinstance(effect, CheckpointRequestFailed)]
    assert not job.core.is_periodic_checkpointing_started


def test_a_savepoint_that_is_asked_for_as_soon_as_the_job_runs_goes_on_when_the_periodic_trigger_starts() -> None:
    """Whoever stopped a job that had just begun to run restarted it, because the trigger starts a moment later."""
    job = Coordinator(interval_ms=100)
    job.tell(CheckpointRequested(A, SnapshotType.SAVEPOINT, "file:///a"))
    job.tell(CheckpointIdDrawn(A, ONE))
    assert job.tell(StartCheckpointScheduler(10)) == [StartTimer(PeriodicTriggerKey(JOB), job.now_ms + 10)]
    assert [pending.checkpoint_id for pending in job.core.pending_checkpoints] == [ONE]

    job = Coordinator(interval_ms=100)
    job.tell(StopWithSavepointRequested(B, "file:///b"))
    assert job.tell(StartCheckpointScheduler(10)) == []
    job.tell(CheckpointIdDrawn(B, ONE))
    assert job.tell(StartCheckpointScheduler(10)) == []
    assert [pending.checkpoint_id for pending in job.core.pending_checkpoints] == [ONE]


def test_the_periodic_trigger_that_waited_for_a_stop_starts_when_that_is_refused() -> None:
    """The job runs on, with its checkpoints."""
    job = Coordinator(interval_ms=100)
    job.tell(StopWithSavepointRequested(B, "file:///b"))
    job.tell(StartCheckpointScheduler(10))
    effects = job.tell(CheckpointIdFailed(B, "ZooKeeper is away"))
    assert StartTimer(PeriodicTriggerKey(JOB), job.now_ms + 100) in effects


def test_the_periodic_trigger_that_starts_behind_a_stop_waits_until_tasks_are_restored() -> None:
    """A checkpoint of tasks that have only stopped has them as finished: who went on from there lost their rows."""
    job = Coordinator(interval_ms=100)
    job.tell(StopWithSavepointRequested(B, "file:///b"))
    job.tell(CheckpointIdDrawn(B, ONE))
    job.acknowledge(1)
    job.tell(CheckpointStored(ONE))
    assert job.tell(StartCheckpointScheduler(10)) == []

    job.tell(RestoreLatest(CheckpointRequestID("r")))
    assert job.tell(StartCheckpointScheduler(10)) == [StartTimer(PeriodicTriggerKey(JOB), job.now_ms + 10)]


def test_nothing_is_taken_of_a_job_that_had_stopped_under_another_leader_until_it_is_restored() -> None:
    """Who went on from there lost the rows of what had only stopped."""
    job = Coordinator(interval_ms=100)
    job.tell(running(job.sources[0], state=ExecutionState.FINISHED))
    job.tell(JobHasStopped())
    assert job.tell(StartCheckpointScheduler(0)) == []
    for request in (CheckpointRequested(A), StopWithSavepointRequested(B, "file:///b")):
        (failed,) = job.tell(request)
        assert isinstance(failed, CheckpointRequestFailed)
        assert "the job has stopped with a savepoint" in failed.detail

    job.tell(RestoreLatest(CheckpointRequestID("r")))
    assert DrawCheckpointId(A) in job.tell(CheckpointRequested(A))


def test_a_restore_that_waits_for_the_savepoint_of_a_stop_ends_the_stop() -> None:
    """The job runs on, with its checkpoints."""
    job = Coordinator(interval_ms=100)
    job.tell(StopWithSavepointRequested(B, "file:///b"))
    job.tell(CheckpointIdDrawn(B, ONE))
    job.acknowledge(1)
    job.tell(RestoreLatest(CheckpointRequestID("r")))
    job.tell(CheckpointStored(ONE))
    assert job.tell(StartCheckpointScheduler(10)) == [StartTimer(PeriodicTriggerKey(JOB), job.now_ms + 10)]


def test_without_interval_nothing_is_periodic() -> None:
    """Checkpointing off: no timer, but a savepoint is still possible."""
    core = Coordinator(interval_ms=0)

    assert core.tell(StartCheckpointScheduler(1)) == []
    request = CheckpointRequested(A, SnapshotType.SAVEPOINT, "file:///s")
    assert core.tell(request) == [DrawCheckpointId(A, "file:///s")]


def test_savepoint_without_directory_is_refused() -> None:
    """The shell has to say where to."""
    (refused,) = Coordinator().tell(CheckpointRequested(A, SnapshotType.SAVEPOINT))

    assert isinstance(refused, CheckpointRequestFailed)
    assert "directory" in refused.detail


def test_a_stop_whose_savepoint_cannot_be_written_leaves_the_job_alone() -> None:
    """Its sources stopped, and the job started again, for a slip in the name of a directory."""
    job = Coordinator(interval_ms=100, tolerable_failures=0)
    job.tell(StartCheckpointScheduler(10))
    assert DrawCheckpointId(B, "file:///b") in job.tell(StopWithSavepointRequested(B, "file:///b"))

    effects = job.tell(CheckpointIdFailed(B, "the disk is read-only", cannot_write=True))

    detail = "The savepoint cannot be written: the disk is read-only"
    assert effects == [
        CheckpointRequestFailed(B, CheckpointFailureReason.TRIGGER_CHECKPOINT_FAILURE, detail),
        StartTimer(PeriodicTriggerKey(JOB), job.now_ms + 100),
    ]


def test_checkpoint_that_would_have_no_place_is_refused() -> None:
    """It failed when all tasks had acknowledged, and the job with it."""
    job = Coordinator(has_directory=False, tolerable_failures=0)

    (refused,) = job.tell(CheckpointRequested(A))

    assert isinstance(refused, CheckpointRequestFailed)
    assert "execution.checkpointing.dir" in refused.detail
    assert DrawCheckpointId(B, "file:///b") in job.tell(CheckpointRequested(B, SnapshotType.SAVEPOINT, "file:///b"))


def test_coordinator_is_quiet_about_duplicates() -> None:
    """A message that is delivered twice while the checkpoint is pending or being stored changes nothing."""
    job = Coordinator()
    job.trigger("a", 1)
    job.acknowledge(1, *job.sources, state=snapshot(src=keyed("chk-1/f")))

    assert job.acknowledge(1, *job.sources, state=snapshot(src=keyed("chk-1/f"))) == []
    job.acknowledge(1, job.tasks[2])
    assert job.acknowledge(1, *job.sources, state=snapshot(src=keyed("chk-1/f"))) == []
    assert isinstance(job.core, CheckpointCoordinator)


@pytest.mark.parametrize(
    ("status", "savepoint", "deletes"),
    [
        (JobStatus.FINISHED, False, True),
        (JobStatus.CANCELED, False, True),
        (JobStatus.FINISHED, True, False),
        (JobStatus.SUSPENDED, False, False),
    ],
)
def test_staged_rows_go_with_the_job_unless_something_can_start_from_a_snapshot(
    status: JobStatus, savepoint: bool, deletes: bool
) -> None:
    """A savepoint belongs to its user, and a suspended job goes on elsewhere."""
    job = Coordinator()
    job.core._has_staged_rows = True
    if savepoint:
        job.core.stats.latest_savepoint = object()  # type: ignore[assignment]  # whichever it is
    assert deletes == (DeleteStagedRows() in job.tell(Shutdown(status)))
