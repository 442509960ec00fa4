"""What the coordinator knows of the running job: its shape, the current attempt of each subtask, and that attempt's
state.

Decides nothing; fed by ExecutionsChanged and EndOfDataReceived. Mirrors the slice of Flink's ExecutionGraph that the
CheckpointCoordinator reads (CheckpointPlanCalculatorContext, VertexEndOfDataListener).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from snapline.coordinator.checkpoint.events import ExecutionChange
from snapline.dataflow.graph.jobgraph import JobEdge, JobVertex
from snapline.dataflow.ids import ExecutionAttemptID, ExecutionVertexID, JobVertexID
from snapline.dataflow.wire.messages import ExecutionState

ENDED_WITHOUT_RESULT = (ExecutionState.FAILED, ExecutionState.CANCELED)
"""States of a task that has to start again, or whose job is over."""


class ExecutionTracker:
    """Current attempts by vertex and subtask."""

    def __init__(self, vertices: Sequence[JobVertex], edges: Sequence[JobEdge]) -> None:
        """Vertices in topological order; edges between them."""
        self.vertices = tuple(vertices)
        self.edges = tuple(edges)
        self.version = 0
        """Rises whenever an attempt or state changes."""
        self._by_id = {vertex.vertex_id: vertex for vertex in self.vertices}
        self._inputs: dict[JobVertexID, list[JobEdge]] = {vertex.vertex_id: [] for vertex in self.vertices}
        for edge in self.edges:
            self._inputs[edge.target].append(edge)
        self._subtasks: dict[JobVertexID, list[tuple[ExecutionAttemptID | None, ExecutionState]]] = {
            vertex.vertex_id: [(None, ExecutionState.CREATED)] * vertex.parallelism for vertex in self.vertices
        }
        self._total = sum(vertex.parallelism for vertex in self.vertices)
        self._end_of_data: set[ExecutionAttemptID] = set()
        """Current attempts that have reached the end of their data or have finished."""

    def vertex(self, vertex_id: JobVertexID) -> JobVertex:
        """The vertex; KeyError when the job has none of this id."""
        return self._by_id[vertex_id]

    def use_max_parallelism(self, max_parallelism: Mapping[JobVertexID, int]) -> None:
        """State that was restored fixes the max parallelism of these vertices."""
        self.vertices = tuple(
            replace(vertex, max_parallelism=max_parallelism.get(vertex.vertex_id, vertex.max_parallelism))
            for vertex in self.vertices
        )
        self._by_id = {vertex.vertex_id: vertex for vertex in self.vertices}

    def input_edges(self, vertex_id: JobVertexID) -> Sequence[JobEdge]:
        """Edges into the vertex, in the order of the JobGraph."""
        return self._inputs[vertex_id]

    def subtasks(self, vertex_id: JobVertexID) -> Sequence[tuple[ExecutionAttemptID | None, ExecutionState]]:
        """(current attempt, its state) by subtask index."""
        return self._subtasks[vertex_id]

    def current(self, task: ExecutionVertexID) -> tuple[ExecutionAttemptID | None, ExecutionState]:
        """Current attempt of a subtask and its state; (None, CREATED) for a subtask that the job does not have."""
        subtasks = self._subtasks.get(task.vertex_id, [])
        if 0 <= task.subtask_index < len(subtasks):
            return subtasks[task.subtask_index]
        return None, ExecutionState.CREATED

    def task_name(self, attempt_id: ExecutionAttemptID) -> str:
        """For people: operator, subtask and attempt; the id itself for a task that the job does not have."""
        vertex = self._by_id.get(attempt_id.vertex_id)
        if vertex is None or not 0 <= attempt_id.subtask_index < vertex.parallelism:
            return str(attempt_id)
        return (
            f"{vertex.name} ({attempt_id.subtask_index + 1}/{vertex.parallelism}), attempt {attempt_id.attempt_number}"
        )

    def is_current(self, attempt_id: ExecutionAttemptID) -> bool:
        """Whether this is the attempt that counts."""
        return self.current(attempt_id.execution_vertex_id)[0] == attempt_id

    def apply(self, changes: Iterable[ExecutionChange]) -> tuple[list[ExecutionAttemptID], list[ExecutionAttemptID]]:
        """Take over changes; returns the attempts that (failed or were canceled, finished) by them.

        A replaced attempt counts as failed. Changes of subtasks that the job does not have are dropped: they are left
        over from before a rescale.
        """
        failed: list[ExecutionAttemptID] = []
        finished: list[ExecutionAttemptID] = []
        for change in changes:
            attempt, state = change.attempt_id, change.state
            subtasks = self._subtasks.get(attempt.vertex_id)
            if subtasks is None or not 0 <= attempt.subtask_index < len(subtasks):
                continue
            known, known_state = subtasks[attempt.subtask_index]
            if known == attempt and known_state is state:
                continue
            if known is not None and known != attempt:
                self._end_of_data.discard(known)
                failed.append(known)
            subtasks[attempt.subtask_index] = (attempt, state)
            self.version += 1
            if state in ENDED_WITHOUT_RESULT:
                self._end_of_data.discard(attempt)
                failed.append(attempt)
            elif state is ExecutionState.FINISHED:
                self._end_of_data.add(attempt)
                finished.append(attempt)
        return failed, finished

    def end_of_data(self, attempt_ids: Iterable[ExecutionAttemptID]) -> bool:
        """These attempts have no more data; returns whether that completes the set of all subtasks just now."""
        before = len(self._end_of_data)
        self._end_of_data.update(attempt for attempt in attempt_ids if self.is_current(attempt))
        return before < self._total == len(self._end_of_data)
