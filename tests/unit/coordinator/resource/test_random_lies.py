"""ResourceManager: whatever a process with the token says, in whatever order, it goes on."""

from __future__ import annotations

import itertools
import random
from typing import Any

import pytest

from snapline.coordinator.execution.given_slots import GivenSlots
from snapline.coordinator.resource.events import ResourceManagerStarted
from snapline.coordinator.resource.resource_manager import ResourceManager, ResourceManagerSettings
from snapline.dataflow.ids import AllocationID, JobID, LeaderSessionID, ResourceID
from snapline.dataflow.wire.messages import (
    DeclareRequiredSlots,
    Disconnect,
    Fenced,
    HeartbeatResponse,
    NotifySlotAvailable,
    RegisterJobMaster,
    RegisterTaskExecutor,
    SlotReport,
    SlotRequestRejected,
    SlotsHeld,
    SlotStatus,
    TaskManagerInfo,
)
from snapline.runtime.cores.connections import ConnectionID, ConnectionLost, MessageReceived

SESSION = LeaderSessionID("rm")
STEPS = 150
TASK_MANAGERS, JOBS, ALLOCATIONS = ("a", "b", "c"), ("j", "k"), ("alloc-1", "alloc-2", "lie", "")


def draw_report(rng: random.Random) -> SlotReport:
    slots = [
        SlotStatus(rng.randrange(4), JobID(rng.choice((*JOBS, ""))), AllocationID(rng.choice(ALLOCATIONS)))
        for _ in range(rng.randrange(5))
    ]
    return SlotReport(ResourceID(rng.choice(TASK_MANAGERS)), tuple(slots))


def draw_message(rng: random.Random) -> Any:
    """Anything that can be decoded, with any field."""
    name, job = ResourceID(rng.choice(TASK_MANAGERS)), JobID(rng.choice(JOBS))
    allocation = AllocationID(rng.choice(ALLOCATIONS))
    return rng.choice(
        [
            RegisterTaskExecutor(TaskManagerInfo(name, "x:1", rng.randint(1, 3), "0.1.0", "host", rng.randint(1, 2))),
            RegisterJobMaster(job, "job", "jm:1", LeaderSessionID("jm")),
            DeclareRequiredSlots(job, rng.randint(0, 5), (SlotsHeld(name, rng.randint(0, 9)),)),
            draw_report(rng),
            HeartbeatResponse(draw_report(rng)),
            SlotRequestRejected(allocation, draw_report(rng)),
            NotifySlotAvailable(rng.randrange(4), allocation),
            Disconnect("bye"),
        ]
    )


def new_manager() -> ResourceManager:
    numbers = itertools.count(1)
    return ResourceManager(ResourceManagerSettings("0.1.0"), SESSION, GivenSlots(lambda: f"alloc-{next(numbers)}"))


@pytest.mark.parametrize("block", range(4))
def test_no_message_ends_the_resource_manager(block: int) -> None:
    """Every message of every kind on every connection, with ids that belong to others; a failure names its seed."""
    for seed in range(block * 50, block * 50 + 50):
        rng = random.Random(seed)
        core = new_manager()
        core.handle(ResourceManagerStarted(), 0)
        try:
            for now_ms in range(STEPS):
                connection = ConnectionID(f"c-{rng.randrange(6)}")
                event: Any = MessageReceived(connection, Fenced(SESSION, draw_message(rng)))
                if rng.random() < 0.1:
                    event = ConnectionLost(connection, "gone")
                core.handle(event, now_ms)
                slots = core.slot_manager
                in_use = sum(manager.in_use for manager in slots)
                assert 0 <= slots.free_slots <= slots.registered_slots - in_use
        except Exception as error:
            raise AssertionError(f"seed {seed}: {type(error).__name__}: {error}") from error
