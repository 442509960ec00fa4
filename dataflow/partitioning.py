"""How the rows of an edge are handed to the subtasks behind it. Mirrors Flink's StreamPartitioner classes, by name."""

from __future__ import annotations

from enum import Enum


class Partitioning(Enum):
    """How rows are spread over the consumers of an edge (Flink: StreamPartitioner and its subclasses)."""

    FORWARD = "forward"
    """Subtask i to subtask i; equal parallelism."""
    HASH = "hash"
    """By key group of the key columns."""
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
