"""Slot sharing: subtask i of every vertex of a slot sharing group runs in one slot.

Decides how many slots a job needs (the sum over its groups of the largest parallelism) and which slot serves which
shared place. A place keeps its slot through restarts, until the slot is lost; then it prefers another slot of the same
TaskManager, then one on the same host, where copies of its state may lie. Mirrors Flink's
LocalInputPreferredSlotSharingStrategy for the plain case, its SharedSlot, and PreviousAllocationSlotSelectionStrategy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from snapline.coordinator.execution.slot_pool import AllocatedSlot, SlotPool
from snapline.dataflow.graph.jobgraph import JobGraph
from snapline.dataflow.ids import AllocationID, ExecutionVertexID, JobVertexID, ResourceID
from snapline.runtime.cores.machine import InvariantViolation, check


class SharedSlotKey(NamedTuple):
    """A place that needs one slot (Flink: ExecutionSlotSharingGroup)."""

    slot_sharing_group: str
    place: int


class _Where(NamedTuple):
    resource_id: ResourceID
    host: str


_NEARNESS: tuple[Callable[[_Where], object], ...] = (lambda where: where, lambda where: where.host)
"""The same TaskManager, then the same host."""


class SlotSharing:
    """Which place has which slot of the pool."""

    def __init__(
        self, job_graph: JobGraph, pool: SlotPool, host_of: Callable[[ResourceID], str] = lambda _: ""
    ) -> None:
        """Nothing is assigned. `host_of`: the machine of a TaskManager that offers slots, empty if nobody knows."""
        self._pool = pool
        self._host_of = host_of
        self._previous: dict[SharedSlotKey, _Where] = {}
        """Where places are, or were last."""
        self._group: dict[JobVertexID, str] = {v.vertex_id: v.slot_sharing_group for v in job_graph.vertices}
        self._external = {v.slot_sharing_group: v.name for v in job_graph.vertices if v.is_external}
        """The external task of a group whose slots are programs."""
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
        matched: list[tuple[SharedSlotKey, AllocatedSlot]] = []
        missing = 0
        for task in dict.fromkeys(self._external.get(key.slot_sharing_group, "") for key in places):
            of_task = [key for key in places if self._external.get(key.slot_sharing_group, "") == task]
            free = [slot for slot in self._pool.free if slot.external_task == task]
            missing += max(0, len(of_task) - len(free))
            matched += self._matched(of_task, free)
        if missing == 0:
            for key, slot in matched:
                self._give(key, slot)
        return missing

    def _matched(
        self, places: Iterable[SharedSlotKey], free: Iterable[AllocatedSlot]
    ) -> list[tuple[SharedSlotKey, AllocatedSlot]]:
        """A slot for each place: the nearest matches first, so that no place takes what is nearer to another."""
        matched: list[tuple[SharedSlotKey, AllocatedSlot]] = []
        waiting, left = list(places), list(free)
        for nearness in _NEARNESS if self._previous else ():
            slots: dict[object, list[AllocatedSlot]] = {}
            for slot in reversed(left):
                slots.setdefault(nearness(self._where(slot)), []).append(slot)
            asking, waiting = waiting, []
            for key in asking:
                previous = self._previous.get(key)
                near = slots.get(nearness(previous)) if previous is not None and previous.host else None
                if near:
                    matched.append((key, near.pop()))
                else:
                    waiting.append(key)
            taken = {slot.allocation_id for _, slot in matched}
            left = [slot for slot in left if slot.allocation_id not in taken]
        return [*matched, *zip(waiting, left, strict=False)]

    def _where(self, slot: AllocatedSlot) -> _Where:
        return _Where(slot.resource_id, self._host_of(slot.resource_id))

    def _give(self, key: SharedSlotKey, slot: AllocatedSlot) -> None:
        self._pool.reserve(slot.allocation_id)
        self._assigned[key] = slot.allocation_id
        self._place_of[slot.allocation_id] = key
        self._previous[key] = self._where(slot)

    def adopt(self, vertex: ExecutionVertexID, allocation_id: AllocationID) -> None:
        """The subtask runs in this slot already."""
        key = self.key_of(vertex)
        if self._assigned.get(key) == allocation_id:
            return
        check(key not in self._assigned, f"{key} has another slot")
        slot = self._pool.get(allocation_id)
        if slot is None:
            raise InvariantViolation(f"slot {allocation_id[:8]} is not in the pool")
        self._give(key, slot)

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
    """How many slots of TaskManagers the job needs to run as a whole."""
    largest: dict[str, int] = {}
    for vertex in job_graph.vertices:
        if vertex.is_external:
            continue
        largest[vertex.slot_sharing_group] = max(largest.get(vertex.slot_sharing_group, 0), vertex.parallelism)
    return sum(largest.values())


def required_programs(job_graph: JobGraph) -> dict[str, int]:
    """How many programs outside the job needs, by external task."""
    return {vertex.name: vertex.parallelism for vertex in job_graph.vertices if vertex.is_external}


def check_external_tasks(job_graph: JobGraph) -> None:
    """Raises ValueError for external tasks that no program could run."""
    names = [vertex.name for vertex in job_graph.vertices if vertex.is_external]
    for vertex in job_graph.vertices:
        if not vertex.is_external:
            continue
        what = f"external task {vertex.name!r} of job {job_graph.name!r}"
        if not vertex.name or names.count(vertex.name) > 1:
            raise ValueError(f"{what}: programs register by its name, so that it has to have one of its own")
        if any(vertex.vertex_id in (edge.source, edge.target) for edge in job_graph.edges):
            raise ValueError(f"{what} has an edge: no rows go to or from a program outside")
        if any(
            other.slot_sharing_group == vertex.slot_sharing_group for other in job_graph.vertices if other != vertex
        ):
            raise ValueError(f"{what} shares slots with another task: give it a slot_sharing_group of its own")
