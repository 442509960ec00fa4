"""The job's graph in the job graph store, and whether it is the one that is about to run.

A new leader adopts what runs only when it fits the graph that it finds, so another parallelism is stored before any
attempt runs with it. Decides what has to be stored next; one write is outstanding at a time, so that an older graph
never replaces a newer one. Does not know when a job is rescaled. Takes the role of
JobGraphWriter.putJobResourceRequirements of Flink.
"""

from __future__ import annotations

from collections.abc import Mapping

from snapline.coordinator.jobmaster.effects import UpdateJobGraph
from snapline.dataflow.graph.jobgraph import JobGraph
from snapline.dataflow.ids import JobVertexID
from snapline.runtime.cores.machine import check


class DurableJobGraph:
    """The graph of one job as it is stored, and what has to be stored next."""

    def __init__(self, job_graph: JobGraph) -> None:
        """`job_graph` is in the store."""
        self._stored = _parallelism_of(job_graph)
        self._storing: JobGraph | None = None
        self._next: JobGraph | None = None

    @property
    def is_storing(self) -> bool:
        """Whether a write is outstanding."""
        return self._storing is not None

    def holds(self, job_graph: JobGraph) -> bool:
        """Whether the next leader would find it with this parallelism, and will go on finding it."""
        return self._storing is None and self._stored == _parallelism_of(job_graph)

    def want(self, job_graph: JobGraph) -> list[UpdateJobGraph]:
        """Make the graph durable before the job runs with it."""
        if self._storing is not None:
            self._next = job_graph
            return []
        if self.holds(job_graph):
            return []
        self._storing = job_graph
        return [UpdateJobGraph(job_graph)]

    def stored(self) -> list[UpdateJobGraph]:
        """Take the answer to UpdateJobGraph, and store the next graph when there is one."""
        check(self._storing is not None, "a job graph was stored, and nobody wanted that")
        if self._storing is not None:
            self._stored, self._storing = _parallelism_of(self._storing), None
        following, self._next = self._next, None
        return [] if following is None else self.want(following)

    def store_no_more(self) -> None:
        """The job is over: what is outstanding is the last."""
        self._next = None


def _parallelism_of(job_graph: JobGraph) -> Mapping[JobVertexID, int]:
    return {vertex.vertex_id: vertex.parallelism for vertex in job_graph.vertices}
