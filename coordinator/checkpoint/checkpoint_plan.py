"""Who takes part in a checkpoint: whom to trigger, for whom to wait, whom to tell, who has finished.

Decides from the job's shape and the state of each current attempt; refuses when a task that would be needed is not
running. Knows nothing of ids or time. Mirrors Flink's DefaultCheckpointPlanCalculator and DefaultCheckpointPlan. The
plan is the same until an execution changes, so it is kept: a checkpoint of ten thousand running subtasks costs nothing
here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from snapline.coordinator.checkpoint.executions import ExecutionTracker
from snapline.dataflow.graph.jobgraph import JobEdge
from snapline.dataflow.ids import ExecutionAttemptID, JobVertexID
from snapline.dataflow.wire.messages import ExecutionState


@dataclass(frozen=True, slots=True)
class CheckpointPlan:
    """The parts of all tasks in one checkpoint."""

    tasks_to_trigger: tuple[ExecutionAttemptID, ...]
    """Running tasks without a running predecessor; usually the sources."""
    tasks_to_wait_for: tuple[ExecutionAttemptID, ...]
    tasks_to_commit_to: tuple[ExecutionAttemptID, ...]
    finished_tasks: tuple[ExecutionAttemptID, ...] = ()
    fully_finished_vertices: frozenset[JobVertexID] = frozenset()


@dataclass(frozen=True, slots=True)
class PlanRefused:
    """No checkpoint can be taken now (NOT_ALL_REQUIRED_TASKS_RUNNING)."""

    detail: str
    is_over: bool = False
    """All tasks have finished: who asked came too late, which is no failed checkpoint."""


class CheckpointPlanCalculator(Protocol):
    """How a coordinator finds out who takes part."""

    def calculate(self, executions: ExecutionTracker) -> CheckpointPlan | PlanRefused:
        """The plan for a checkpoint that starts now."""
        ...


def predecessors(consumer_index: int, producers: int, consumers: int) -> range:
    """The producers that a consumer of a pointwise edge reads (Flink: EdgeManagerBuildUtil)."""
    if producers >= consumers:
        return range(consumer_index * producers // consumers, (consumer_index + 1) * producers // consumers)
    first = consumer_index * producers // consumers
    return range(first, first + 1)


class DefaultCheckpointPlanCalculator:
    """Sources are triggered, everybody else waits for barriers; finished tasks are left out, their successors
    triggered."""

    def __init__(self, *, checkpoints_after_tasks_finish: bool = True) -> None:
        """With `checkpoints_after_tasks_finish` off, one finished task ends checkpointing."""
        self._after_finish = checkpoints_after_tasks_finish
        self._kept: tuple[int, CheckpointPlan | PlanRefused] | None = None

    def calculate(self, executions: ExecutionTracker) -> CheckpointPlan | PlanRefused:
        """Return the plan of a checkpoint that starts now; it is kept until `executions.version` moves."""
        if self._kept is None or self._kept[0] != executions.version:
            self._kept = (executions.version, self._calculate(executions))
        return self._kept[1]

    def _calculate(self, executions: ExecutionTracker) -> CheckpointPlan | PlanRefused:
        running: dict[JobVertexID, list[bool]] = {}
        finished_count = 0
        for vertex in executions.vertices:
            flags = []
            for subtask, (attempt, state) in enumerate(executions.subtasks(vertex.vertex_id)):
                if attempt is None:
                    return PlanRefused(f"{vertex.name} ({subtask + 1}/{vertex.parallelism}) is not being executed")
                if state is not ExecutionState.RUNNING and state is not ExecutionState.FINISHED:
                    return PlanRefused(f"{vertex.name} ({subtask + 1}/{vertex.parallelism}) is {state.value}")
                flags.append(state is ExecutionState.RUNNING)
            finished_count += len(flags) - sum(flags)
            running[vertex.vertex_id] = flags
        if finished_count and not self._after_finish:
            return PlanRefused(
                f"{finished_count} tasks have finished and execution.checkpointing.checkpoints-after-tasks-finish is off"
            )
        return self._with_finished(executions, running)

    def _with_finished(
        self, executions: ExecutionTracker, running: Mapping[JobVertexID, Sequence[bool]]
    ) -> CheckpointPlan:
        trigger: list[ExecutionAttemptID] = []
        wait: list[ExecutionAttemptID] = []
        finished: list[ExecutionAttemptID] = []
        fully_finished: list[JobVertexID] = []
        for vertex in executions.vertices:
            flags = running[vertex.vertex_id]
            if not any(flags):
                fully_finished.append(vertex.vertex_id)
            edges = executions.input_edges(vertex.vertex_id)
            may_trigger = not any(self._feeds_everybody(edge, running[edge.source]) for edge in edges)
            for subtask, (attempt, _) in enumerate(executions.subtasks(vertex.vertex_id)):
                if attempt is None:
                    continue  # excluded by the caller
                if not flags[subtask]:
                    finished.append(attempt)
                    continue
                wait.append(attempt)
                if may_trigger and not self._has_running_predecessor(edges, running, subtask, len(flags)):
                    trigger.append(attempt)
        tasks = tuple(wait)
        return CheckpointPlan(tuple(trigger), tasks, tasks, tuple(finished), frozenset(fully_finished))

    @staticmethod
    def _feeds_everybody(edge: JobEdge, upstream: Sequence[bool]) -> bool:
        return all(upstream) if edge.partitioning.is_pointwise else any(upstream)

    @staticmethod
    def _has_running_predecessor(
        edges: Sequence[JobEdge], running: Mapping[JobVertexID, Sequence[bool]], subtask: int, parallelism: int
    ) -> bool:
        return any(
            running[edge.source][producer]
            for edge in edges
            if edge.partitioning.is_pointwise
            for producer in predecessors(subtask, len(running[edge.source]), parallelism)
        )
