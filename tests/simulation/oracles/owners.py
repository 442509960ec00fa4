"""No slot has two owners, and nobody's books contradict themselves."""

from __future__ import annotations

from snapline.dataflow.ids import AllocationID, JobID
from snapline.testing.simulated.world import Violation
from tests.simulation.electing_cluster import ElectingCluster


def check_owners(cluster: ElectingCluster) -> None:
    """Raises Violation. May be called between any two events."""
    owners: dict[AllocationID, JobID] = {}
    coordinator = cluster.coordinator
    if coordinator is not None and coordinator.alive:
        for job_id, runner in coordinator.runners.items():
            core = runner.core
            if core is None:
                continue
            for slot in core.scheduler.pool:
                other = owners.setdefault(slot.allocation_id, job_id)
                if other != job_id:
                    raise Violation(f"{slot.allocation_id} belongs to {other} and {job_id}")
    for process in cluster.alive():
        seen: set[AllocationID] = set()
        running = set(process.tasks)
        in_slots = set()
        for task_slot in process.core.slots:
            if task_slot.allocation_id:
                if task_slot.allocation_id in seen:
                    raise Violation(f"{process.name}: {task_slot.allocation_id} has two slots")
                seen.add(task_slot.allocation_id)
                owner = owners.get(task_slot.allocation_id)
                if owner not in (None, task_slot.job_id):
                    raise Violation(f"{process.name}: {task_slot.allocation_id} is {task_slot.job_id}'s, not {owner}'s")
            in_slots |= set(task_slot.tasks)
        if running - in_slots:
            raise Violation(f"{process.name}: {sorted(map(str, running - in_slots))} run in no slot")
