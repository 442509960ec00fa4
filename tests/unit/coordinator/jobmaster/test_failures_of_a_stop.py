"""A job that fails while it is being stopped with a savepoint."""

from __future__ import annotations

from snapline.coordinator.checkpoint.effects import FailJob
from snapline.coordinator.checkpoint.events import StopCheckpointScheduler
from snapline.dataflow.failures import CheckpointFailureReason, SerializedFailure
from snapline.dataflow.wire.messages import ExecutionState, JobStatus
from tests.unit.coordinator.jobmaster.test_job_master import Story, attempt, statuses


def test_a_stop_that_is_lost_because_the_job_restarts_is_no_second_failure() -> None:
    """It used up another attempt of the restart strategy, and ended jobs that had one."""
    story = Story(attempts=1).run()
    story.enters("a", attempt(), ExecutionState.FAILED, SerializedFailure("raised"))
    story.checkpoints.answers[StopCheckpointScheduler] = [
        FailJob(CheckpointFailureReason.CHECKPOINT_COORDINATOR_SUSPEND, "Stop with savepoint failed")
    ]
    assert statuses(story.take(StopCheckpointScheduler())) == []
    assert story.core.status is JobStatus.RESTARTING
