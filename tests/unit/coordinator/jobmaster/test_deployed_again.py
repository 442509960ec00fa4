"""A job that has no restart strategy, and whose TaskManager is lost before anything was read."""

from __future__ import annotations

import pytest

from snapline.coordinator.execution.restart_strategy import DEPLOYED_AGAIN_MAX, NoRestartStrategy
from snapline.coordinator.jobmaster.scheduler_effects import RestartDelayTimer
from snapline.dataflow.ids import ResourceID
from snapline.dataflow.wire.messages import ExecutionState, JobStatus, SubmitTasks
from snapline.runtime.cores.connections import ConnectionID, ConnectionLost
from snapline.runtime.cores.machine import TimerFired
from tests.unit.coordinator.jobmaster.test_job_master import A, B, Story, attempt, messages, statuses


@pytest.mark.parametrize(
    ("state", "chosen", "then"),
    [
        (ExecutionState.INITIALIZING, False, JobStatus.RESTARTING),
        (ExecutionState.RUNNING, False, JobStatus.FAILED),
        (ExecutionState.INITIALIZING, True, JobStatus.FAILED),
    ],
)
def test_a_job_without_restarts_is_deployed_again_when_nothing_was_read(
    state: ExecutionState, chosen: bool, then: JobStatus
) -> None:
    """Where its tasks have not run yet, and nobody has said that it must not be restarted."""
    story = Story(restart_strategy=NoRestartStrategy(chosen=chosen))
    story.start().task_manager(A, 0)
    story.enters("a", attempt(), state)
    effects = story.take(ConnectionLost(ConnectionID("tm-a"), "reset"))

    assert statuses(effects)[-1] == then
    if then is JobStatus.RESTARTING:
        story.take(TimerFired(RestartDelayTimer()), 0)
        (submitted,) = messages(story.task_manager(B, 0), SubmitTasks)
        assert [task.attempt_id for task in submitted.tasks] == [attempt(1)]


def test_a_job_whose_tasks_never_come_to_run_is_not_deployed_for_ever() -> None:
    """After some times its failure says that there is no restart strategy."""
    story = Story(restart_strategy=NoRestartStrategy(chosen=False)).start()
    seen = []
    for number in range(DEPLOYED_AGAIN_MAX + 1):
        who = ResourceID("abcd"[number])
        story.task_manager(who, 0)
        story.enters(who, attempt(number), ExecutionState.INITIALIZING)
        seen += statuses(story.take(ConnectionLost(ConnectionID(f"tm-{who}"), "reset")))
        story.take(TimerFired(RestartDelayTimer()))

    assert (seen[0], seen[-1]) == (JobStatus.RESTARTING, JobStatus.FAILED)
    failure = story.core.scheduler.root_failure
    assert failure is not None
    summary = failure.summary
    assert "without execution.checkpointing.interval there is none" in summary
