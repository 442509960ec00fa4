"""Programs outside as slots of their own kind: what a job needs, what is offered, assigned and refused."""

from __future__ import annotations

from dataclasses import replace

import pytest

from snapline.coordinator.execution.failover import FailoverRegions
from snapline.coordinator.execution.slot_pool import SlotPool
from snapline.coordinator.execution.slot_sharing import (
    SlotSharing,
    check_external_tasks,
    required_programs,
    required_slots,
)
from snapline.dataflow.errors import SnaplineError
from snapline.dataflow.graph.external_tasks import external_job
from snapline.dataflow.graph.jobgraph import JobEdge
from snapline.dataflow.ids import AllocationID, ExecutionVertexID, JobID, OperatorID, ResourceID
from snapline.dataflow.partitioning import Partitioning
from snapline.dataflow.wire.messages import SlotOffer, SlotsHeld
from tests.simulation.jobs import job, vertex

FLEET = external_job(JobID("f" * 32), "fleet", {"orders": 2, "payments": 1}, {})
ROWS = job("rows", [vertex("source", 2, source=True)], [], {})
BOTH = replace(FLEET, vertices=(*ROWS.vertices, *FLEET.vertices))
"""A job with rows, and programs beside them."""


def pool_of(graph):
    """A pool that needs what the job does."""
    pool = SlotPool(100, lambda *_: True)
    pool.set_required(required_slots(graph), required_programs(graph))
    return pool


def offer(pool, name, task="", now_ms=0):
    """One slot of a resource of its own; whether it was taken."""
    offers = [SlotOffer(AllocationID(name), 0, task)]
    return bool(pool.offer_slots(ResourceID(f"on-{name}"), offers, now_ms).accepted)


def test_a_job_needs_slots_and_programs_apart():
    """Programs are no slots that Spark could give."""
    assert (required_slots(FLEET), required_programs(FLEET)) == (0, {"orders": 2, "payments": 1})
    assert (required_slots(BOTH), required_programs(BOTH)) == (2, {"orders": 2, "payments": 1})


def test_an_offer_is_taken_by_what_needs_its_kind():
    """Not more of a kind than needed, and none of a kind that nothing needs; the ResourceManager hears of slots."""
    pool = pool_of(BOTH)
    assert pool.missing == 5
    taken = [offer(pool, name, task) for name, task in (("a", "orders"), ("b", "orders"), ("c", "orders"), ("d", "x"))]
    assert taken == [True, True, False, False]
    assert [offer(pool, name) for name in "efg"] == [True, True, False]
    assert pool.missing == 1
    assert pool.shortage(pool.required, pool.programs_required) == "external task 'payments' has 0 of 1 programs"
    assert pool.held == (SlotsHeld(ResourceID("on-e"), 1), SlotsHeld(ResourceID("on-f"), 1))
    pool.release_task_manager(ResourceID("on-a"))
    assert offer(pool, "c", "orders")


def test_a_place_gets_a_slot_of_its_kind():
    """All or none: free slots of TaskManagers are of no use to a program's place."""
    pool, places = (
        pool_of(BOTH),
        [ExecutionVertexID(v.vertex_id, i) for v in BOTH.vertices for i in range(v.parallelism)],
    )
    sharing = SlotSharing(BOTH, pool)
    for name, task in (("a", ""), ("b", ""), ("c", "orders"), ("d", "payments")):
        offer(pool, name, task)
    assert sharing.assign(places) == 1
    assert pool.free_count == 4
    offer(pool, "e", "orders")
    assert sharing.assign(places) == 0
    assert [sharing.allocation_of(place) for place in places] == ["a", "b", "c", "e", "d"]


def test_a_program_that_is_not_needed_any_more_is_let_go():
    """After a rescale, its kind has one too many, and it has been free for long enough; the others stay."""
    pool = pool_of(BOTH)
    for name, task in (("a", ""), ("b", "orders"), ("c", "orders")):
        offer(pool, name, task)
    assert pool.next_idle_release_ms() is None
    pool.set_required(2, {"orders": 1, "payments": 1})
    assert pool.next_idle_release_ms() == 100
    assert pool.release_idle(99) == ()
    assert [slot.allocation_id for slot in pool.release_idle(100)] == ["b"]
    assert pool.next_idle_release_ms() is None


def test_all_programs_of_a_job_restart_together():
    """Whatever they say to one another, they go back to one cut; what has rows is a region for itself."""
    regions = FailoverRegions(BOTH)
    places = [ExecutionVertexID(v.vertex_id, i) for v in FLEET.vertices for i in range(v.parallelism)]
    assert list(regions.tasks_needing_restart(places[2:])) == places
    assert len(regions) == 3


def test_external_tasks_that_no_program_could_run_are_refused():
    """A name twice, an edge, a slot that is shared; and a job without tasks, or with none of one."""
    orders, payments = FLEET.vertices
    check_external_tasks(BOTH)
    edge = JobEdge("e", orders.vertex_id, OperatorID(""), payments.vertex_id, 0, Partitioning.HASH)
    for graph, why in (
        (replace(FLEET, vertices=(orders, replace(payments, name="orders"))), "one of its own"),
        (replace(FLEET, edges=(edge,)), "no rows go to or from a program"),
        (replace(FLEET, vertices=(orders, replace(payments, slot_sharing_group=orders.slot_sharing_group))), "shares"),
    ):
        with pytest.raises(ValueError, match=why):
            check_external_tasks(graph)
    for tasks in ({}, {"orders": 0}, {" ": 1}):
        with pytest.raises(SnaplineError, match="name"):
            external_job(JobID("f" * 32), "fleet", tasks, {})
