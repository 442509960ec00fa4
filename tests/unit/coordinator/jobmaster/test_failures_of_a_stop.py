"""A job that fails while it is being stopped with a savepoint."""

from __future__ import annotations

import itertools

from snapline.coordinator.checkpoint.effects import CheckpointRequestCompleted, FailJob, StateRestored
from snapline.coordinator.checkpoint.events import (
    CheckpointRequestID,
    CheckpointStored,
    RestoreLatest,
    StopCheckpointScheduler,
    StopWithSavepointRequested,
)
from snapline.coordinator.jobmaster.operations import StopWithSavepoint
from snapline.coordinator.jobmaster.scheduler_effects import RestartDelayTimer
from snapline.dataflow.failures import CheckpointFailureReason, SerializedFailure
from snapline.dataflow.ids import CheckpointID
from snapline.dataflow.wire.messages import ExecutionState, JobStatus, SubmitTasks
from snapline.runtime.cores.machine import TimerFired
from tests.simulation.jobs import parallel_job
from tests.unit.coordinator.jobmaster.test_job_master import A, Story, attempt, messages, statuses

STOPPED = CheckpointRequestCompleted(CheckpointRequestID("client-r"), CheckpointID(5), "/sp/savepoint-job")
EVERYTHING = [(name, index) for index in (0, 1) for name in ("source", "sink")]


def two_regions(attempts: int = 10) -> Story:
    """Each source has a sink of its own, and all run."""
    story = Story(parallel_job(parallelism=2), attempts)
    story.start().task_manager(A, 0, 1)
    for name, index in EVERYTHING:
        story.enters("a", attempt(0, name, index), ExecutionState.RUNNING)
    return story


def fail_second_source(story: Story) -> None:
    story.enters("a", attempt(0, "source", 1), ExecutionState.FAILED, SerializedFailure("the commit raised"))
    story.enters("a", attempt(0, "sink", 1), ExecutionState.CANCELED)


def deployed(effects: list[object]) -> set[tuple[str, int, int]]:
    tasks = itertools.chain.from_iterable(submitted.tasks for submitted in messages(effects, SubmitTasks))
    attempts = [task.attempt_id for task in tasks]
    return {(each.vertex_id, each.subtask_index, each.attempt_number) for each in attempts}


def test_a_stop_that_is_lost_because_the_job_restarts_is_no_second_failure() -> None:
    """It used up another attempt of the restart strategy, and ended jobs that had one."""
    story = Story(attempts=1).run()
    story.enters("a", attempt(), ExecutionState.FAILED, SerializedFailure("raised"))
    story.checkpoints.answers[StopCheckpointScheduler] = [
        FailJob(CheckpointFailureReason.CHECKPOINT_COORDINATOR_SUSPEND, "Stop with savepoint failed")
    ]
    assert statuses(story.take(StopCheckpointScheduler())) == []
    assert story.core.status is JobStatus.RESTARTING


def test_a_job_of_which_a_part_has_stopped_starts_again_as_a_whole_when_another_fails() -> None:
    """What had stopped behind the savepoint stayed FINISHED, and the job ran on without it: its rows were never
    read."""
    story = two_regions()
    story.checkpoints.answers[StopWithSavepointRequested] = [STOPPED]
    story.operate(StopWithSavepoint("/sp"))
    for name in ("source", "sink"):
        story.enters("a", attempt(0, name, 0), ExecutionState.FINISHED)
    fail_second_source(story)

    effects = story.take(TimerFired(RestartDelayTimer()), 40)
    assert deployed(effects) == {(name, index, 1) for name, index in EVERYTHING}
    assert story.checkpoints.events[-1] == RestoreLatest(CheckpointRequestID("restore-2"), None, True)


def test_a_job_of_which_a_part_failed_while_its_savepoint_was_stored_starts_again_as_a_whole() -> None:
    """The savepoint counts, and tells the other part to stop."""
    story = two_regions()
    story.operate(StopWithSavepoint("/sp"))
    story.checkpoints.answers[RestoreLatest] = []
    fail_second_source(story)
    story.take(TimerFired(RestartDelayTimer()), 40)
    part = story.checkpoints.events[-1].request_id

    story.checkpoints.answers[CheckpointStored] = [STOPPED, StateRestored(part, CheckpointID(5))]
    del story.checkpoints.answers[RestoreLatest]
    effects = story.take(CheckpointStored(CheckpointID(5)))
    for name in ("source", "sink"):
        effects += story.enters("a", attempt(0, name, 0), ExecutionState.FINISHED)
    assert {(name, index) for name, index, _ in deployed(effects)} == set(EVERYTHING)


def test_a_stop_that_is_lost_with_a_part_of_the_job_is_one_failure() -> None:
    """The other parts stand still: each was to fail by itself, and so used up all attempts of the restart strategy."""
    story = two_regions(attempts=1)
    story.checkpoints.answers[StopCheckpointScheduler] = [
        FailJob(CheckpointFailureReason.CHECKPOINT_COORDINATOR_SUSPEND, "Stop with savepoint failed")
    ]
    fail_second_source(story)
    story.take(StopCheckpointScheduler())
    story.enters("a", attempt(0, "source", 0), ExecutionState.FAILED, SerializedFailure("the savepoint failed"))
    story.enters("a", attempt(0, "sink", 0), ExecutionState.CANCELED)

    assert deployed(story.take(TimerFired(RestartDelayTimer()), 40)) == {(name, index, 1) for name, index in EVERYTHING}


def test_a_stop_that_is_lost_while_the_job_runs_restarts_it() -> None:
    """The word of an earlier restart came when the job ran again, and its tasks stood still for good: nothing else
    failed that they could have restarted with."""
    story = Story(attempts=1).run()
    story.checkpoints.answers[StopCheckpointScheduler] = [
        FailJob(CheckpointFailureReason.CHECKPOINT_COORDINATOR_SUSPEND, "Stop with savepoint failed")
    ]
    assert statuses(story.take(StopCheckpointScheduler())) == [JobStatus.RESTARTING]
