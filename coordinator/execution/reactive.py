"""Reactive mode: the parallelism that a job has with the slots that there are.

Decides which vertices follow the slots: those that have the job's greatest parallelism when it is submitted. Others (a
sink with one subtask, say) keep theirs, as far as the slots go. No vertex goes beyond its max parallelism, which so
bounds what the job asks for, nor beyond that of one that a forward edge ties it to. Mirrors Flink's
SlotSharingSlotAllocator of the AdaptiveScheduler in reactive mode; unlike there, parallelism that was set lower on
purpose stays.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from snapline.coordinator.execution.execution_graph import MAX_SUBTASKS, with_parallelism
from snapline.coordinator.execution.slot_sharing import required_slots
from snapline.dataflow.graph.jobgraph import JobGraph, JobVertex
from snapline.dataflow.ids import JobVertexID
from snapline.dataflow.partitioning import Partitioning


@dataclass(frozen=True, slots=True)
class ReactiveParallelism:
    """The parallelism of one job that follows its slots; made from the graph that was submitted, or one that a leader
    rescaled."""

    job_graph: JobGraph

    @property
    def most(self) -> int:
        """The greatest parallelism of the vertices that follow."""
        vertices = self.job_graph.vertices
        greatest = max(_submitted(vertex) for vertex in vertices)
        bounds = self._bounds
        found = [bounds[vertex.vertex_id] for vertex in vertices if _submitted(vertex) == greatest]
        least = min((bound for bound in found if bound > 1), default=1)  # an enumerator is alone, and hinders nobody
        return min(least, max(1, MAX_SUBTASKS // len(vertices)))

    @property
    def _bounds(self) -> Mapping[JobVertexID, int]:
        """The greatest parallelism of each vertex; the two sides of a forward edge have one."""
        bounds = {vertex.vertex_id: vertex.max_parallelism for vertex in self.job_graph.vertices}
        forward = [edge for edge in self.job_graph.edges if edge.partitioning is Partitioning.FORWARD]
        while any(bounds[edge.source] != bounds[edge.target] for edge in forward):
            for edge in forward:
                bounds[edge.source] = bounds[edge.target] = min(bounds[edge.source], bounds[edge.target])
        return bounds

    @property
    def slots_wanted(self) -> int:
        """More than these are of no use."""
        return self._slots_for(self.most)

    @property
    def slots_needed(self) -> int:
        """With fewer than these nothing runs."""
        return self._slots_for(1)

    def of(self, slots: int) -> Mapping[JobVertexID, int] | None:
        """The parallelism of all vertices with so many slots; None: they are too few for anything to run."""
        low, high = 0, min(self.most, slots)
        while low < high:  # the greatest that fits
            middle = (low + high + 1) // 2
            low, high = (middle, high) if self._slots_for(middle) <= slots else (low, middle - 1)
        return self._with(low) if low else None

    def _with(self, parallelism: int) -> Mapping[JobVertexID, int]:
        vertices = self.job_graph.vertices
        greatest, bounds = max(map(_submitted, vertices)), self._bounds
        return {
            vertex.vertex_id: min(
                parallelism if _submitted(vertex) == greatest else min(_submitted(vertex), parallelism),
                bounds[vertex.vertex_id],
            )
            for vertex in vertices
        }

    def _slots_for(self, parallelism: int) -> int:
        return required_slots(with_parallelism(self.job_graph, self._with(parallelism)))


def _submitted(vertex: JobVertex) -> int:
    return vertex.submitted_parallelism or vertex.parallelism
