"""Failures that come together have one restart, and are counted as one."""

from __future__ import annotations

import itertools

from snapline.coordinator.execution.restart_strategy import ExponentialDelayRestartStrategy
from snapline.coordinator.jobmaster.scheduler_effects import RestartDelayTimer
from snapline.dataflow.failures import SerializedFailure
from snapline.dataflow.wire.messages import ExecutionState, SubmitTasks
from snapline.runtime.cores.machine import TimerFired
from tests.simulation.jobs import parallel_job
from tests.unit.coordinator.jobmaster.test_job_master import A, Story, attempt, messages

WIDE = 20
"""Subtasks; more than the failures that are remembered."""


def test_failures_of_several_regions_during_one_pause_are_one_restart() -> None:
    """A service was away, and each subtask of a wide job failed by itself: a job that had restarted once was shown with
    as many restarts as it has subtasks. Each failure stays known."""
    strategy = ExponentialDelayRestartStrategy(100, 1_000, 2.0, 0.0, 10_000, -1, lambda: 0.5)
    story = Story(parallel_job(parallelism=3), restart_strategy=strategy)
    story.start().task_manager(A, 0, 1, 2)
    for name, index in itertools.product(("source", "sink"), (0, 1, 2)):
        story.enters("a", attempt(0, name, index), ExecutionState.RUNNING)
    for index in (0, 1, 2):
        story.enters("a", attempt(0, "source", index), ExecutionState.FAILED, SerializedFailure("it is away"))
        story.enters("a", attempt(0, "sink", index), ExecutionState.CANCELED)

    (submitted,) = messages(story.take(TimerFired(RestartDelayTimer()), 100), SubmitTasks)
    assert {task.attempt_id.attempt_number for task in submitted.tasks} == {1}
    assert (story.core.scheduler.restarts, len(story.core.scheduler.exceptions)) == (1, 3)

    story.take(TimerFired(RestartDelayTimer()), 500)
    story.enters("a", attempt(1, "source", 0), ExecutionState.FAILED, SerializedFailure("it is away"))
    assert story.core.scheduler.restarts == 2


def test_what_began_a_restart_is_remembered_though_many_failures_follow() -> None:
    """The history of a wide job held the last ones alone, all of one moment: neither the first failure of that restart,
    nor those of the restarts before, could be looked up."""
    strategy = ExponentialDelayRestartStrategy(100, 1_000, 2.0, 0.0, 10_000, -1, lambda: 0.5)
    story = Story(parallel_job(parallelism=WIDE), restart_strategy=strategy)
    story.start().task_manager(A, *range(WIDE))
    for number in (0, 1):
        for name, index in itertools.product(("source", "sink"), range(WIDE)):
            story.enters("a", attempt(number, name, index), ExecutionState.RUNNING)
        for index in range(WIDE):
            failure = SerializedFailure(f"failure {index} of attempt {number}")
            story.enters("a", attempt(number, "source", index), ExecutionState.FAILED, failure)
            story.enters("a", attempt(number, "sink", index), ExecutionState.CANCELED)
        story.take(TimerFired(RestartDelayTimer()), 1_000 * (number + 1))

    remembered = [each.failure.summary for each in story.core.scheduler.exceptions]
    assert len(remembered) == 16 and remembered[-1] == "failure 19 of attempt 1"
    assert {"failure 0 of attempt 0", "failure 0 of attempt 1"} <= set(remembered)
