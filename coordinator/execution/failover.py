"""Pipelined regions: which subtasks must restart together.

All edges are pipelined, so two subtasks between which data flows, directly or not, are in one region: when one fails
the other has seen or lost data that will be sent again. Subtasks that are not connected are never touched. Built once
per job in time linear in subtasks plus pointwise connections; an all-to-all edge joins both sides without looking at
pairs. Programs outside may say to one another whatever they like, and nobody here knows: all external tasks of a job
are one region. Mirrors Flink's RestartPipelinedRegionFailoverStrategy and PipelinedRegionComputeUtil.
"""

from __future__ import annotations

from collections.abc import Iterable

from snapline.coordinator.execution.deployment import producers_of_consumer
from snapline.coordinator.execution.execution_graph import subtasks_of
from snapline.dataflow.graph.jobgraph import JobGraph, JobVertex
from snapline.dataflow.ids import ExecutionVertexID, JobVertexID


class FailoverRegions:
    """The connected components of the execution graph."""

    def __init__(self, job_graph: JobGraph) -> None:
        """Compute them for the parallelism in the graph."""
        self._parent: dict[ExecutionVertexID, ExecutionVertexID] = {}
        vertices: dict[JobVertexID, JobVertex] = {vertex.vertex_id: vertex for vertex in job_graph.vertices}
        for vertex in job_graph.vertices:
            for subtask in subtasks_of(vertex):
                self._parent[subtask] = subtask
        for edge in job_graph.edges:
            source, target = vertices[edge.source], vertices[edge.target]
            if edge.partitioning.is_pointwise:
                for consumer in range(target.parallelism):
                    for producer in producers_of_consumer(consumer, source.parallelism, target.parallelism):
                        self._join(
                            ExecutionVertexID(source.vertex_id, producer), ExecutionVertexID(target.vertex_id, consumer)
                        )
            else:
                hub = ExecutionVertexID(source.vertex_id, 0)
                for subtask in (*subtasks_of(source), *subtasks_of(target)):
                    self._join(hub, subtask)
        outside = [subtask for vertex in job_graph.vertices if vertex.is_external for subtask in subtasks_of(vertex)]
        for subtask in outside:
            self._join(outside[0], subtask)
        self._members: dict[ExecutionVertexID, list[ExecutionVertexID]] = {}
        for subtask in self._parent:
            self._members.setdefault(self._find(subtask), []).append(subtask)

    def __len__(self) -> int:
        """Return the number of regions of the job."""
        return len(self._members)

    def region_of(self, subtask: ExecutionVertexID) -> ExecutionVertexID:
        """A subtask that stands for the whole region; equal for all its members."""
        return self._find(subtask)

    def members(self, region: ExecutionVertexID) -> list[ExecutionVertexID]:
        """All subtasks of a region, in topological order."""
        return self._members[region]

    def tasks_needing_restart(self, failed: Iterable[ExecutionVertexID]) -> dict[ExecutionVertexID, None]:
        """All subtasks of all regions with a failed one (Flink: getTasksNeedingRestart), each once, in a fixed
        order."""
        regions = dict.fromkeys(self._find(subtask) for subtask in failed)
        return {subtask: None for region in regions for subtask in self._members[region]}

    def _find(self, subtask: ExecutionVertexID) -> ExecutionVertexID:
        root = subtask
        while self._parent[root] != root:
            root = self._parent[root]
        while self._parent[subtask] != root:
            self._parent[subtask], subtask = root, self._parent[subtask]
        return root

    def _join(self, one: ExecutionVertexID, other: ExecutionVertexID) -> None:
        root, added = self._find(one), self._find(other)
        if root != added:
            self._parent[added] = root
