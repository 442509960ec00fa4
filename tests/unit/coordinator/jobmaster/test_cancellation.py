"""What becomes of a job that somebody cancels while it is ending, or when it was cancelled already."""

from __future__ import annotations

from snapline.coordinator.checkpoint.events import Shutdown
from snapline.coordinator.jobmaster.operations import Acknowledged, CancelJob
from snapline.dataflow.failures import SerializedFailure
from snapline.dataflow.wire.messages import CancelTask, ExecutionState, JobStatus
from tests.simulation.jobs import parallel_job
from tests.unit.coordinator.jobmaster.test_job_master import A, Story, answer, attempt, messages, statuses


def test_a_job_that_fails_can_still_be_cancelled() -> None:
    """While its tasks are being ended: who cancelled it was told that it will be, and found it FAILED. No task is told
    twice, and what failed stays known."""
    story = Story(parallel_job(parallelism=1), attempts=0)
    story.start().task_manager(A, 0)
    for name in ("source", "sink"):
        story.enters("a", attempt(0, name), ExecutionState.RUNNING)
    story.enters("a", attempt(0, "source"), ExecutionState.FAILED, SerializedFailure("raised"))

    effects = story.operate(CancelJob())
    assert statuses(effects) == [JobStatus.CANCELLING] and answer(effects) == Acknowledged()
    assert messages(effects, CancelTask) == []
    effects = story.enters("a", attempt(0, "sink"), ExecutionState.CANCELED)
    assert statuses(effects) == [JobStatus.CANCELED]
    assert story.checkpoints.events[-1] == Shutdown(JobStatus.CANCELED)
    assert story.core.scheduler.root_failure is not None
