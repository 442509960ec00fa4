"""SlotManager: a TaskManager that has registered and not reported yet."""

from __future__ import annotations

from snapline.coordinator.execution.given_slots import ForgedSlot, GivenSlots
from snapline.coordinator.resource.slot_manager import SlotManager
from snapline.dataflow.ids import AllocationID, JobID, ResourceID, SlotID
from snapline.dataflow.wire.messages import SlotReport, SlotsHeld, SlotStatus, TaskManagerInfo
from snapline.runtime.signing import Signer

JOB = JobID("job")
A, B = ResourceID("a"), ResourceID("b")


def test_slots_that_a_job_says_it_has_count_until_their_task_manager_reports() -> None:
    """Else the job is given another slot, rejects it, and is given it again, until the report comes (a new
    ResourceManager, and a JobMaster that has adopted what runs)."""
    slots = SlotManager(GivenSlots(lambda: "new"))
    slots.set_required(JOB, 1, (SlotsHeld(A, 1),))
    for resource in (A, B):
        slots.register_task_manager(TaskManagerInfo(resource, f"{resource}:1", 1, "0.1.0", "host", 1), 0)
    slots.report_slot_status(SlotReport(B, (SlotStatus(0),)), 0)

    assert slots.allocate(lambda _: True) == []
    slots.report_slot_status(SlotReport(A, (SlotStatus(0),)), 0)
    assert [decision.job_id for decision in slots.allocate(lambda _: True)] == [JOB]


def test_slots_that_nobody_gave_are_not_free_and_feed_no_job() -> None:
    """A stranger with a thousand slots reported them all as the job's, which then waited beside free ones for ever."""
    given = GivenSlots(lambda: "new", lambda: Signer((b"key",)))
    slots = SlotManager(given)
    slots.set_required(JOB, 1, ())
    for resource in (A, B):
        slots.register_task_manager(TaskManagerInfo(resource, "a:1", 1, "0.1.0", "h", 1), 0)
    slots.report_slot_status(SlotReport(A, (SlotStatus(0, JOB, AllocationID("made-up")),)), 0)
    slots.report_slot_status(SlotReport(B, (SlotStatus(0),)), 0)

    assert slots.last_forged == ForgedSlot(1, A)
    assert [each.slot_id for each in slots.allocate(lambda _: True)] == [SlotID(B, 0)]
    assert slots.free_slots == 0
    slots.report_slot_status(SlotReport(A, (SlotStatus(0),)), 1)
    assert slots.free_slots == 1
