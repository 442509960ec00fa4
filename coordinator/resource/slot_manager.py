"""SlotManager: every slot of every TaskManager, what jobs need, and who gets what.

Declarative: each job says how many slots it needs in all; what it has or is being given counts against that. A slot is
FREE, PENDING (a TaskManager was asked to give it to a job and has not confirmed) or ALLOCATED. Free slots go to the
jobs in the order in which they began to need, one by one from the TaskManager that has the smallest share in use; what
a job can use beyond what it runs with, as one that follows its slots, it gets behind all others that do not run.
Reports of TaskManagers win over what is believed here, with one exception: a report that shows a PENDING slot as free
was sent before the TaskManager knew (messages of one connection keep their order), and says nothing.

Does not know connections, heartbeats or time, except when a TaskManager began to be idle. Mirrors Flink's
DeclarativeSlotManager with DefaultResourceTracker, DefaultSlotTracker and `cluster.evenly-spread-out-slots`.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum

from snapline.coordinator.execution.given_slots import ForgedSlot, GivenSlots
from snapline.dataflow.ids import AllocationID, JobID, ResourceID, SlotID
from snapline.dataflow.wire.messages import SlotReport, SlotsHeld, TaskManagerInfo
from snapline.runtime.cores.machine import check

MAX_DRAINED_REMEMBERED = 1_000
"""TaskManagers of which it is known that they are drained, whether they are registered or not."""


class SlotState(Enum):
    """Whether a slot is free, promised to a job, or its own."""

    FREE = "free"
    PENDING = "pending"
    ALLOCATED = "allocated"


@dataclass(slots=True)
class ManagedSlot:
    """One slot of a TaskManager and the job that has it."""

    slot_id: SlotID
    state: SlotState = SlotState.FREE
    job_id: JobID = JobID("")
    allocation_id: AllocationID = AllocationID("")


@dataclass(slots=True)
class ManagedTaskManager:
    """One TaskManager and its slots."""

    info: TaskManagerInfo
    slots: dict[int, ManagedSlot]
    in_use: int = 0
    """Slots that are not FREE."""
    reported: bool = False
    """Whether its first report is here; before that nothing is known to be free."""
    idle_since_ms: int | None = None
    draining: bool = False
    """Whether its slots are not given away any more; what is in use stays so until its job gives it back."""
    registered_at_ms: int = 0

    @property
    def free(self) -> int:
        """Slots that can be given away."""
        return len(self.slots) - self.in_use if self.reported and not self.draining else 0


@dataclass(frozen=True, slots=True)
class SlotAllocation:
    """Decision: ask the TaskManager to give this slot to the job."""

    slot_id: SlotID
    job_id: JobID
    allocation_id: AllocationID


@dataclass(slots=True)
class _JobNeeds:
    required: int = 0
    least: int = 0
    """With how many it runs, where it can use more; 0: it needs all."""
    held: dict[AllocationID, SlotID] = field(default_factory=dict)
    """The slots of the job that are PENDING or ALLOCATED, by allocation."""
    declared: tuple[SlotsHeld, ...] = ()
    """What the JobMaster says that it has; counts for TaskManagers that have not reported (yet)."""


class SlotManager:
    """The slots of a cluster."""

    def __init__(self, given: GivenSlots) -> None:
        """Begin with no TaskManager registered and no job in need. `given` draws allocations, and knows those that were
        given to jobs."""
        self._given = given
        self.last_forged: ForgedSlot | None = None
        self._task_managers: dict[ResourceID, ManagedTaskManager] = {}
        self._jobs: dict[JobID, _JobNeeds] = {}
        self._drained: dict[ResourceID, None] = {}
        """Those that are drained stay so when they lose the connection and register again; the latest ones."""
        self._free_slots = 0
        self._registered_slots = 0

    # --- reading ------------------------------------------------------------------------------------------------------

    def __contains__(self, resource_id: ResourceID) -> bool:
        """Whether the TaskManager is registered."""
        return resource_id in self._task_managers

    def __iter__(self) -> Iterator[ManagedTaskManager]:
        """All TaskManagers, longest registered first."""
        return iter(self._task_managers.values())

    def get(self, resource_id: ResourceID) -> ManagedTaskManager | None:
        """One TaskManager, if it is registered."""
        return self._task_managers.get(resource_id)

    @property
    def registered_slots(self) -> int:
        """Return the number of slots of all TaskManagers."""
        return self._registered_slots

    @property
    def free_slots(self) -> int:
        """Return the number of slots that no job has."""
        return self._free_slots

    @property
    def required_slots(self) -> int:
        """Return how many slots all jobs together require."""
        return sum(needs.required for needs in self._jobs.values())

    def held_by(self, job_id: JobID) -> int:
        """Slots that the job has or is being given."""
        needs = self._jobs.get(job_id)
        return 0 if needs is None else len(needs.held)

    def _missing(self, needs: _JobNeeds, required: int) -> int:
        """How many slots the job lacks of these, beyond what it has here and on TaskManagers that have not said what
        they have."""
        missing = required - len(needs.held)
        if missing > 0:
            missing -= sum(held.slots for held in needs.declared if not self.knows_slots_of(held.resource_id))
        return max(0, missing)

    def knows_slots_of(self, resource_id: ResourceID) -> bool:
        """Whether the TaskManager is registered and has reported."""
        task_manager = self._task_managers.get(resource_id)
        return task_manager is not None and task_manager.reported

    @property
    def unfulfilled(self) -> Mapping[JobID, int]:
        """Jobs that need more slots than they have, and how many they need in all."""
        return {job: needs.required for job, needs in self._jobs.items() if self._missing(needs, needs.required)}

    def jobs_on(self, resource_id: ResourceID) -> tuple[JobID, ...]:
        """Jobs that have or are being given slots of this TaskManager."""
        slots = self._task_managers[resource_id].slots.values()
        return tuple(dict.fromkeys(slot.job_id for slot in slots if slot.state is not SlotState.FREE))

    def idle_task_managers(self) -> Iterable[tuple[int, ResourceID]]:
        """(since when, which) for TaskManagers without any slot in use that a pool started for jobs.

        One that somebody started by hand stays: nobody would start it again (Flink's standalone ResourceManager). So
        does one of a pool that is to keep as many as it was told.
        """
        return [
            (task_manager.idle_since_ms, resource_id)
            for resource_id, task_manager in self._task_managers.items()
            if task_manager.idle_since_ms is not None
            and task_manager.info.executor_id
            and not task_manager.info.stays_when_idle
        ]

    # --- TaskManagers -------------------------------------------------------------------------------------------------

    def register_task_manager(self, info: TaskManagerInfo, now_ms: int) -> None:
        """Add a TaskManager; its slots can be given away after its first report."""
        check(info.resource_id not in self._task_managers, f"{info.resource_id} is registered already")
        slots = {number: ManagedSlot(SlotID(info.resource_id, number)) for number in range(info.slots)}
        draining = info.resource_id in self._drained
        self._task_managers[info.resource_id] = ManagedTaskManager(
            info, slots, draining=draining, registered_at_ms=now_ms
        )
        self._registered_slots += info.slots

    def set_draining(self, resource_id: ResourceID, *, draining: bool) -> None:
        """Give no slot of the TaskManager away from now on, or give them away again. One that is not registered, and
        was not drained, is left as it is."""
        task_manager = self._task_managers.get(resource_id)
        if not draining:
            self._drained.pop(resource_id, None)
        elif task_manager is not None:
            self._drained[resource_id] = None
            if len(self._drained) > MAX_DRAINED_REMEMBERED:
                del self._drained[next(iter(self._drained))]
        if task_manager is not None:
            self._free_slots -= task_manager.free
            task_manager.draining = draining
            self._free_slots += task_manager.free

    def unregister_task_manager(self, resource_id: ResourceID) -> tuple[JobID, ...]:
        """Remove a TaskManager with all its slots; returns the jobs that had some."""
        jobs = self.jobs_on(resource_id)
        task_manager = self._task_managers[resource_id]
        for slot in task_manager.slots.values():
            self._set_free(task_manager, slot)
        self._free_slots -= task_manager.free
        self._registered_slots -= len(task_manager.slots)
        del self._task_managers[resource_id]
        return jobs

    def report_slot_status(self, report: SlotReport, now_ms: int) -> None:
        """What a TaskManager says of its slots. Slots that it never announced are ignored; those that nobody has given
        to a job are not free, and count for no job."""
        task_manager = self._task_managers.get(report.resource_id)
        if task_manager is None:
            return
        if not task_manager.reported:
            task_manager.reported = True
            self._free_slots += task_manager.free
        for status in report.slots:
            slot = task_manager.slots.get(status.slot_number)
            if slot is None:
                continue
            if status.allocation_id:
                if slot.allocation_id != status.allocation_id:
                    self._take(task_manager, slot, status.job_id, status.allocation_id)
                slot.state = SlotState.ALLOCATED
            elif slot.state is SlotState.ALLOCATED:
                self._set_free(task_manager, slot)
        self._note_idle(task_manager, now_ms)

    def free_slot(self, slot_id: SlotID, allocation_id: AllocationID, now_ms: int) -> JobID | None:
        """The TaskManager has the slot back; returns the job it comes from. None: the slot has been given to somebody
        else since, and stays theirs."""
        task_manager = self._task_managers.get(slot_id.resource_id)
        slot = None if task_manager is None else task_manager.slots.get(slot_id.slot_number)
        if task_manager is None or slot is None or slot.allocation_id != allocation_id:
            return None
        job_id = slot.job_id
        self._set_free(task_manager, slot)
        self._note_idle(task_manager, now_ms)
        return job_id

    def reject_allocation(self, resource_id: ResourceID, allocation_id: AllocationID, now_ms: int) -> None:
        """The TaskManager did not give the slot away; its report says what is true."""
        task_manager = self._task_managers.get(resource_id)
        if task_manager is None:
            return
        for slot in task_manager.slots.values():
            if slot.allocation_id == allocation_id and slot.state is SlotState.PENDING:
                self._set_free(task_manager, slot)
        self._note_idle(task_manager, now_ms)

    # --- jobs ---------------------------------------------------------------------------------------------------------

    def set_required(self, job_id: JobID, required: int, declared: tuple[SlotsHeld, ...] = (), least: int = 0) -> None:
        """The job needs so many slots in all, and says which it has. 0: it needs none, and is forgotten when it has
        none. `least`: with how many it runs, where it can use more."""
        check(required >= 0, "a job cannot need a negative number of slots")
        needs = self._jobs.setdefault(job_id, _JobNeeds())
        needs.required, needs.declared, needs.least = required, declared, least
        self._forget_if_done(job_id)

    def allocate(self, eligible: Callable[[JobID], bool]) -> list[SlotAllocation]:
        """Give free slots to jobs that need them and are `eligible` (their JobMaster is there)."""
        wanting = [(job_id, needs) for job_id, needs in self._jobs.items() if self._missing(needs, needs.required)]
        if not wanting or not self._free_slots:
            return []
        to_run = [(job_id, needs, needs.least or needs.required) for job_id, needs in wanting]
        to_grow = [(job_id, needs, needs.required) for job_id, needs in wanting if needs.least]
        heap = [
            (task_manager.in_use / len(task_manager.slots), order, task_manager)
            for order, task_manager in enumerate(self._task_managers.values())
            if task_manager.free
        ]
        heapq.heapify(heap)
        decisions: list[SlotAllocation] = []
        for job_id, needs, required in [*to_run, *to_grow]:
            if not eligible(job_id):
                continue
            for _ in range(self._missing(needs, required)):
                if not heap:
                    break
                _, order, task_manager = heapq.heappop(heap)
                slot = next(slot for slot in task_manager.slots.values() if slot.state is SlotState.FREE)
                allocation_id = self._given.give(job_id, slot.slot_id.resource_id)
                self._take(task_manager, slot, job_id, allocation_id)
                task_manager.idle_since_ms = None
                decisions.append(SlotAllocation(slot.slot_id, job_id, allocation_id))
                if task_manager.free:
                    heapq.heappush(heap, (task_manager.in_use / len(task_manager.slots), order, task_manager))
        return decisions

    # --- changing -----------------------------------------------------------------------------------------------------

    def _take(
        self, task_manager: ManagedTaskManager, slot: ManagedSlot, job_id: JobID, allocation_id: AllocationID
    ) -> None:
        """The slot is the job's from now on, if a coordinator has given it; else it is nobody's, and not free."""
        self._set_free(task_manager, slot)
        self._free_slots -= task_manager.free
        task_manager.in_use += 1
        self._free_slots += task_manager.free
        slot.state, slot.job_id, slot.allocation_id = SlotState.PENDING, job_id, allocation_id
        if self._given.is_given(job_id, slot.slot_id.resource_id, allocation_id):
            self._jobs.setdefault(job_id, _JobNeeds()).held[allocation_id] = slot.slot_id
        else:
            self.last_forged = ForgedSlot.after(self.last_forged, slot.slot_id.resource_id)

    def _set_free(self, task_manager: ManagedTaskManager, slot: ManagedSlot) -> None:
        if slot.state is SlotState.FREE:
            return
        job_id = slot.job_id
        needs = self._jobs.get(job_id)
        if (
            needs is not None and needs.held.get(slot.allocation_id) == slot.slot_id
        ):  # two slots may claim one allocation
            del needs.held[slot.allocation_id]
        slot.state, slot.job_id, slot.allocation_id = SlotState.FREE, JobID(""), AllocationID("")
        self._free_slots -= task_manager.free
        task_manager.in_use -= 1
        self._free_slots += task_manager.free
        self._forget_if_done(job_id)

    def _note_idle(self, task_manager: ManagedTaskManager, now_ms: int) -> None:
        if task_manager.in_use:
            task_manager.idle_since_ms = None
        elif task_manager.reported and task_manager.idle_since_ms is None:
            task_manager.idle_since_ms = now_ms

    def _forget_if_done(self, job_id: JobID) -> None:
        needs = self._jobs.get(job_id)
        if needs is not None and not needs.required and not needs.held:
            del self._jobs[job_id]
