"""The slots of one TaskManager: whose they are, and which tasks run in them.

A slot is FREE; ALLOCATED to a job whose JobMaster has not accepted it yet; ACTIVE; or RELEASING, when it was taken away
while tasks still run in it. A released slot is free when its last task has ended. A table with rules; timeouts and
messages are the core's around it. Mirrors Flink's TaskSlotTableImpl and TaskSlot.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum

from snapline.dataflow.ids import AllocationID, ExecutionAttemptID, JobID, ResourceID
from snapline.dataflow.wire.messages import SlotOffer, SlotReport, SlotStatus
from snapline.runtime.cores.machine import check


class TaskSlotState(Enum):
    """Life of one assignment of a slot."""

    FREE = "free"
    ALLOCATED = "allocated"
    ACTIVE = "active"
    RELEASING = "releasing"


@dataclass(slots=True)
class TaskSlot:
    """One slot of this TaskManager and the tasks that run in it."""

    slot_number: int
    state: TaskSlotState = TaskSlotState.FREE
    job_id: JobID = JobID("")
    allocation_id: AllocationID = AllocationID("")
    tasks: dict[ExecutionAttemptID, None] = field(default_factory=dict)


class TaskSlotTable:
    """The slots of this TaskManager: who has them and for which job."""

    def __init__(self, resource_id: ResourceID, slots: int) -> None:
        """Begin with so many slots, all of which are free."""
        self._resource_id = resource_id
        self._slots = [TaskSlot(number) for number in range(slots)]
        self._by_allocation: dict[AllocationID, TaskSlot] = {}
        self._by_job: dict[JobID, dict[AllocationID, TaskSlot]] = {}

    # --- reading ------------------------------------------------------------------------------------------------------

    def __iter__(self) -> Iterator[TaskSlot]:
        """Iterate over the slots, ordered by their numbers."""
        return iter(self._slots)

    def find(self, allocation_id: AllocationID) -> TaskSlot | None:
        """The slot of this allocation, RELEASING ones too."""
        return self._by_allocation.get(allocation_id)

    def at(self, slot_number: int) -> TaskSlot | None:
        """The slot with this number, None when there is no such slot."""
        return self._slots[slot_number] if 0 <= slot_number < len(self._slots) else None

    def of_job(self, job_id: JobID) -> tuple[TaskSlot, ...]:
        """The slots of a job, RELEASING ones too."""
        return tuple(self._by_job.get(job_id, {}).values())

    def has_slots(self, job_id: JobID) -> bool:
        """Whether any slot is the job's."""
        return job_id in self._by_job

    def offers(self, job_id: JobID) -> tuple[SlotOffer, ...]:
        """What to offer to the JobMaster of the job: all that is not being released."""
        return tuple(
            SlotOffer(slot.allocation_id, slot.slot_number)
            for slot in self.of_job(job_id)
            if slot.state is not TaskSlotState.RELEASING
        )

    def report(self) -> SlotReport:
        """All slots. One that is being released still counts as its job's."""
        return SlotReport(
            self._resource_id,
            tuple(SlotStatus(slot.slot_number, slot.job_id, slot.allocation_id) for slot in self._slots),
        )

    def report_of(self, job_id: JobID) -> SlotReport:
        """The slots that the job can count on."""
        return SlotReport(
            self._resource_id,
            tuple(
                SlotStatus(slot.slot_number, slot.job_id, slot.allocation_id)
                for slot in self.of_job(job_id)
                if slot.state is not TaskSlotState.RELEASING
            ),
        )

    # --- moving -------------------------------------------------------------------------------------------------------

    def allocate(self, slot: TaskSlot, job_id: JobID, allocation_id: AllocationID) -> None:
        """A free slot goes to a job."""
        check(slot.state is TaskSlotState.FREE, f"slot {slot.slot_number} is {slot.state.value}")
        check(allocation_id not in self._by_allocation, f"allocation {allocation_id} has a slot already")
        slot.state, slot.job_id, slot.allocation_id = TaskSlotState.ALLOCATED, job_id, allocation_id
        self._by_allocation[allocation_id] = slot
        self._by_job.setdefault(job_id, {})[allocation_id] = slot

    def activate(self, slot: TaskSlot) -> None:
        """The JobMaster has accepted it."""
        if slot.state is TaskSlotState.ALLOCATED:
            slot.state = TaskSlotState.ACTIVE

    def deactivate(self, job_id: JobID) -> None:
        """The JobMaster is gone: whoever comes back has to accept the slots again."""
        for slot in self.of_job(job_id):
            if slot.state is TaskSlotState.ACTIVE:
                slot.state = TaskSlotState.ALLOCATED

    def release(self, slot: TaskSlot) -> bool:
        """Take the slot away from its job; True when it is free at once, False when its tasks must end first."""
        check(slot.state is not TaskSlotState.FREE, f"slot {slot.slot_number} is free already")
        slot.state = TaskSlotState.RELEASING
        return self._free_if_empty(slot)

    def add_task(self, slot: TaskSlot, attempt_id: ExecutionAttemptID) -> None:
        """A task starts in the slot."""
        check(slot.state is TaskSlotState.ACTIVE, f"slot {slot.slot_number} is {slot.state.value}")
        slot.tasks[attempt_id] = None

    def remove_task(self, slot: TaskSlot, attempt_id: ExecutionAttemptID) -> bool:
        """A task has ended; True when that freed the slot."""
        del slot.tasks[attempt_id]
        return slot.state is TaskSlotState.RELEASING and self._free_if_empty(slot)

    def _free_if_empty(self, slot: TaskSlot) -> bool:
        if slot.tasks:
            return False
        del self._by_allocation[slot.allocation_id]
        of_job = self._by_job[slot.job_id]
        del of_job[slot.allocation_id]
        if not of_job:
            del self._by_job[slot.job_id]
        slot.state, slot.job_id, slot.allocation_id = TaskSlotState.FREE, JobID(""), AllocationID("")
        return True
