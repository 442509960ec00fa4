"""A plan calculator whose tasks have the roles that a scenario gives them, as in Flink 1.11's
CheckpointCoordinatorTest.

Flink's older tests name the tasks to trigger, to wait for and to commit to; the product derives them from the job's
shape.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from snapline.coordinator.checkpoint.checkpoint_plan import CheckpointPlan, PlanRefused
from snapline.coordinator.checkpoint.executions import ExecutionTracker
from snapline.dataflow.ids import ExecutionAttemptID, ExecutionVertexID
from snapline.dataflow.wire.messages import ExecutionState


@dataclass(frozen=True, slots=True)
class TaskRoles:
    """What a task takes part in (Flink 1.11: tasksToTrigger, tasksToWaitFor, tasksToCommitTo)."""

    trigger: bool = True
    acknowledge: bool = True
    commit: bool = True


class ExplicitRolesPlanCalculator:
    """Who does what is given for each task, not derived.

    Tasks to trigger must be running; tasks to wait for need a current attempt; nobody counts as finished.
    """

    def __init__(self, roles: Mapping[ExecutionVertexID, TaskRoles]) -> None:
        """In the order in which messages are sent."""
        self._roles = dict(roles)

    def calculate(self, executions: ExecutionTracker) -> CheckpointPlan | PlanRefused:
        """Refused naming the first task that is missing."""
        trigger: list[ExecutionAttemptID] = []
        wait: list[ExecutionAttemptID] = []
        commit: list[ExecutionAttemptID] = []
        for task, roles in self._roles.items():
            attempt, state = executions.current(task)
            if roles.trigger and (attempt is None or state is not ExecutionState.RUNNING):
                return PlanRefused(f"{task.vertex_id} ({task.subtask_index}) has to be triggered and is not running")
            if attempt is None:
                if roles.acknowledge:
                    return PlanRefused(f"{task.vertex_id} ({task.subtask_index}) is not being executed")
                continue
            if roles.trigger:
                trigger.append(attempt)
            if roles.acknowledge:
                wait.append(attempt)
            if roles.commit:
                commit.append(attempt)
        return CheckpointPlan(tuple(trigger), tuple(wait), tuple(commit))
