"""How the rows of an edge are handed to the subtasks behind it. Mirrors Flink's StreamPartitioner classes, by name."""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum

from snapline.protos.job_pb2 import JobEdge
from snapline.protos.job_pb2 import Partitioning as WirePartitioning


class Partitioning(Enum):
    """How rows are spread over the consumers of an edge (Flink: StreamPartitioner and its subclasses)."""

    FORWARD = "forward"
    """Subtask i to subtask i; equal parallelism."""
    HASH = "hash"
    """Each row goes to the subtask of the key group of its key columns."""
    REBALANCE = "rebalance"
    """Whole batches round robin over all consumers."""
    RESCALE = "rescale"
    """Round robin over the consumers of this producer's block (pointwise)."""
    BROADCAST = "broadcast"
    """Every batch to every consumer."""
    DEMAND = "demand"
    """Each batch to the consumer that has asked for most; Flink has none, since its enumerator is no task."""

    @property
    def is_pointwise(self) -> bool:
        """Whether a producer is connected to some consumers only."""
        return self in (Partitioning.FORWARD, Partitioning.RESCALE)


def behind_sources(edges: Iterable[JobEdge]) -> frozenset[str]:
    """Vertices that do not count where rows enter a job: those with an input of rows, and those that hand out splits.

    >>> demand = JobEdge(source="splits", target="readers", partitioning=WirePartitioning.PARTITIONING_DEMAND)
    >>> sorted(behind_sources([demand, JobEdge(source="readers", target="sink")]))
    ['sink', 'splits']
    """
    demand = WirePartitioning.PARTITIONING_DEMAND
    return frozenset(edge.source if edge.partitioning == demand else edge.target for edge in edges)
