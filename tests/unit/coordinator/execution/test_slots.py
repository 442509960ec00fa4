"""SlotPool and SlotSharing: what is needed, taken, shared and given back."""

from __future__ import annotations

import pytest

from snapline.coordinator.execution.slot_pool import MAX_GIVEN_BACK, AllocatedSlot, OffersAnswered, SlotPool
from snapline.coordinator.execution.slot_sharing import SlotSharing, required_slots
from snapline.dataflow.ids import AllocationID, ExecutionVertexID, JobVertexID, ResourceID
from snapline.dataflow.wire.messages import SlotOffer
from snapline.runtime.cores.machine import InvariantViolation
from tests.simulation.jobs import job, keyed_job, vertex

TM, OTHER = ResourceID("tm"), ResourceID("other")


def a(number: int) -> AllocationID:
    return AllocationID(f"a{number}")


def offers(*numbers: int) -> list[SlotOffer]:
    return [SlotOffer(a(number), number) for number in numbers]


def pool(required: int, *offered: int) -> SlotPool:
    slots = SlotPool(idle_timeout_ms=100, is_given=lambda *_: True)
    slots.set_required(required)
    slots.offer_slots(TM, offers(*offered), 0)
    return slots


def test_offers_are_taken_while_something_is_missing() -> None:
    """The rest goes back."""
    slots = pool(2)

    assert slots.offer_slots(TM, offers(1, 2, 3), 0) == OffersAnswered((a(1), a(2)), (a(3),))
    assert slots.missing == 0


def test_a_repeated_offer_is_accepted_again() -> None:
    """The answer may have been lost; another TaskManager with the same allocation is not believed."""
    slots = pool(1, 1)

    assert slots.offer_slots(TM, offers(1), 5) == OffersAnswered((a(1),), ())
    assert slots.offer_slots(OTHER, offers(1), 5) == OffersAnswered((), (a(1),))
    assert len(slots) == 1


def test_a_lost_task_manager_takes_its_slots_along() -> None:
    """Reserved or free."""
    slots = pool(3, 1, 2)
    slots.offer_slots(OTHER, offers(3), 0)
    slots.reserve(a(1))

    assert slots.release_task_manager(TM) == (AllocatedSlot(a(1), TM, 1), AllocatedSlot(a(2), TM, 2))
    assert slots.missing == 2 and [slot.allocation_id for slot in slots] == [a(3)]
    assert slots.release_task_manager(TM) == ()


def test_only_slots_beyond_the_need_become_idle() -> None:
    """After the timeout, longest free first; what is needed stays."""
    slots = pool(3, 1, 2, 3)
    assert slots.next_idle_release_ms() is None
    slots.set_required(1)

    assert slots.next_idle_release_ms() == 100
    assert slots.release_idle(99) == ()
    assert [slot.allocation_id for slot in slots.release_idle(100)] == [a(1), a(2)]
    assert slots.next_idle_release_ms() is None


def test_what_was_given_back_is_not_taken_again() -> None:
    """The TaskManager lost its connection before it heard of it, and offers the slot once more: a job that was said to
    have left it had tasks there again, and the operator ended it. Other slots of it are taken."""
    slots = pool(2, 1)
    assert slots.give_back(slots.allocations_of(TM)) == (AllocatedSlot(a(1), TM, 1),)
    assert slots.offer_slots(TM, offers(1, 2), 5) == OffersAnswered((a(2),), (a(1),))

    lost = pool(2, 3)
    lost.leave(TM)
    assert lost.offer_slots(TM, offers(3), 5) == OffersAnswered((a(3),), ()), "it is here until then"
    lost.release_task_manager(TM)
    assert lost.offer_slots(TM, offers(3), 6) == OffersAnswered((), (a(3),)), "it was lost while it was left"

    idle = pool(1, 1)
    idle.set_required(0)
    assert idle.release_idle(100) != ()
    idle.set_required(1)
    assert idle.offer_slots(TM, offers(1), 200) == OffersAnswered((), (a(1),))


def test_what_was_given_back_is_remembered_up_to_a_bound() -> None:
    """A job may run for years."""
    slots = pool(1)
    for number in range(MAX_GIVEN_BACK + 10):
        slots.offer_slots(TM, offers(number), 0)
        slots.give_back([a(number)])

    assert len(slots._given_back) == MAX_GIVEN_BACK


def test_a_slot_is_not_reserved_twice() -> None:
    """That would be two owners."""
    slots = pool(1, 1)
    slots.reserve(a(1))

    with pytest.raises(InvariantViolation, match="a1 is not free"):
        slots.reserve(a(1))


def test_a_job_needs_the_widest_vertex_of_each_group() -> None:
    """Sharing groups add up."""
    graph = job("g", [vertex("a", 2), vertex("b", 5), vertex("c", 3, group="other")], [])

    assert required_slots(graph) == 8


def test_subtask_i_of_every_vertex_shares_a_slot() -> None:
    """All or nothing is assigned, and it stays assigned."""
    slots = pool(2, 1)
    sharing = SlotSharing(keyed_job(parallelism=2), slots)
    everything = [ExecutionVertexID(JobVertexID(name), i) for name in ("source", "window", "sink") for i in (0, 1)]
    assert sharing.assign(everything) == 1
    assert slots.free != []
    slots.offer_slots(OTHER, offers(2), 0)

    assert sharing.assign(everything) == 0
    assert {sharing.allocation_of(v) for v in everything if v.subtask_index == 1} == {a(2)}
    assert slots.free == []
    assert sharing.assign(everything) == 0


def test_places_go_back_to_where_their_state_may_lie() -> None:
    """To the same TaskManager, then to the same host; what is nearer to another place is left to it."""
    hosts = {"tm": "one", "other": "two", "new-on-two": "two", "new-on-one": "one", "elsewhere": "three"}
    slots = pool(4, 1, 2)
    slots.offer_slots(OTHER, offers(3, 4), 0)
    sharing = SlotSharing(keyed_job(parallelism=4), slots, lambda resource_id: hosts[resource_id])
    everything = [ExecutionVertexID(JobVertexID("sink"), i) for i in range(4)]
    assert sharing.assign(everything) == 0
    for lost in (1, 3, 4):
        slots.remove(a(lost))
        sharing.slot_lost(a(lost))
    for resource_id, number in (("elsewhere", 5), ("new-on-two", 6), ("tm", 7)):
        slots.offer_slots(ResourceID(resource_id), offers(number), 0)

    assert sharing.assign(everything) == 0
    assert [sharing.allocation_of(v) for v in everything] == [a(7), a(2), a(6), a(5)]


def test_a_lost_slot_leaves_its_place_to_another() -> None:
    """The other places keep theirs."""
    slots = pool(2, 1, 2)
    sharing = SlotSharing(keyed_job(parallelism=2), slots)
    everything = [ExecutionVertexID(JobVertexID("sink"), i) for i in (0, 1)]
    sharing.assign(everything)
    slots.remove(a(1))
    sharing.slot_lost(a(1))
    slots.offer_slots(OTHER, offers(9), 0)

    assert sharing.assign(everything) == 0
    assert [sharing.allocation_of(v) for v in everything] == [a(9), a(2)]
