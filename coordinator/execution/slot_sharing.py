"""Slot sharing: subtask i of every vertex of a slot sharing group runs in one slot.

Decides how many slots a job needs (the sum over its groups of the largest parallelism) and which slot serves which shared
place. A place keeps its slot through restarts, until the slot is lost. Mirrors Flink's
LocalInputPreferredSlotSharingStrategy for the plain case, and its SharedSlot.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from coordinator.execution.slot_pool import SlotPool
from dataflow.ids import AllocationID, ExecutionVertexID, JobVertexID
from dataflow.jobgraph import JobGraph
from runtime.machine import check


class SharedSlotKey(NamedTuple):
    """A place that needs one slot (Flink: ExecutionSlotSharingGroup)."""

    slot_sharing_group: str
    place: int


class SlotSharing:
    """Which place has which slot of the pool."""

    def __init__(self, job_graph: JobGraph, pool: SlotPool) -> None:
        """Nothing is assigned."""
        self._pool = pool
        self._group: dict[JobVertexID, str] = {v.vertex_id: v.slot_sharing_group for v in job_graph.vertices}
        self._assigned: dict[SharedSlotKey, AllocationID] = {}
        self._place_of: dict[AllocationID, SharedSlotKey] = {}

    def key_of(self, vertex: ExecutionVertexID) -> SharedSlotKey:
        """The place of a subtask."""
        return SharedSlotKey(self._group[vertex.vertex_id], vertex.subtask_index)

    def allocation_of(self, vertex: ExecutionVertexID) -> AllocationID | None:
        """The slot of a subtask's place, None while it has none."""
        return self._assigned.get(self.key_of(vertex))

    def assign(self, vertices: Iterable[ExecutionVertexID]) -> int:
        """Give every place of these subtasks a slot, all or none. Returns how many slots are missing: 0 when done."""
        keys = dict.fromkeys(self.key_of(vertex) for vertex in vertices)
        places = [key for key in keys if key not in self._assigned]
        free = self._pool.free
        if len(free) < len(places):
            return len(places) - len(free)
        for key, slot in zip(places, free, strict=False):
            self._pool.reserve(slot.allocation_id)
            self._assigned[key] = slot.allocation_id
            self._place_of[slot.allocation_id] = key
        return 0

    def adopt(self, vertex: ExecutionVertexID, allocation_id: AllocationID) -> None:
        """The subtask runs in this slot already."""
        key = self.key_of(vertex)
        if self._assigned.get(key) == allocation_id:
            return
        check(key not in self._assigned, f"{key} has another slot")
        self._pool.reserve(allocation_id)
        self._assigned[key] = allocation_id
        self._place_of[allocation_id] = key

    def slot_lost(self, allocation_id: AllocationID) -> None:
        """The slot does not exist any more; its place needs another."""
        place = self._place_of.pop(allocation_id, None)
        if place is not None:
            del self._assigned[place]

    def release_all(self, now_ms: int) -> None:
        """Nothing runs any more: all slots are free."""
        for allocation_id in self._place_of:
            self._pool.free_reserved(allocation_id, now_ms)
        self._place_of.clear()
        self._assigned.clear()


def required_slots(job_graph: JobGraph) -> int:
    """How many slots the job needs to run as a whole."""
    largest: dict[str, int] = {}
    for vertex in job_graph.vertices:
        largest[vertex.slot_sharing_group] = max(largest.get(vertex.slot_sharing_group, 0), vertex.parallelism)
    return sum(largest.values())
