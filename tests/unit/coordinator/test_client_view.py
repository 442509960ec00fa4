"""What the coordinator says of itself to clients."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from snapline.coordinator.client_view import ClientView
from snapline.coordinator.dispatcher.dispatcher import Dispatcher
from snapline.coordinator.dispatcher.events import DispatcherStarted, DispatcherSuspended
from snapline.coordinator.execution.given_slots import GivenSlots
from snapline.coordinator.resource.slot_manager import SlotManager
from snapline.dataflow.ids import AllocationID, JobID, LeaderSessionID, ResourceID
from snapline.dataflow.wire.messages import JobStatus, SlotReport, SlotStatus, TaskManagerInfo
from snapline.dataflow.wire.statuses import encode_job_status
from snapline.protos import client_pb2 as pb


def test_a_job_that_a_new_leader_has_not_adopted_yet_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was counted among those that have ended; every job of the cluster was, when its leader had just changed."""
    view = ClientView(*cast(Any, (*(None,) * 8, "", LeaderSessionID("s"), 0)))

    async def resources() -> pb.RequiredResources:
        return pb.RequiredResources()

    async def jobs() -> pb.ListJobsResponse:
        return pb.ListJobsResponse(jobs=[pb.JobOverview(status=encode_job_status(status)) for status in JobStatus])

    monkeypatch.setattr(view, "required_resources", resources)
    monkeypatch.setattr(view, "list_jobs", jobs)
    overview = asyncio.run(view.overview())
    ended = sum(status.is_globally_terminal or status is JobStatus.SUSPENDED for status in JobStatus)
    assert (overview.jobs_running, overview.jobs_ended) == (len(JobStatus) - ended, ended)


def test_only_a_leader_says_that_no_job_of_a_name_goes_on() -> None:
    """A program outside whose leader stopped, or whose next one began, was told that its job is over, where an earlier
    one of its name was: it ended for good, and the job waited for it."""
    core = Dispatcher()
    actor = SimpleNamespace(ask=lambda query, timeout: query.read(core))
    view = ClientView(*cast(Any, (actor, *(None,) * 7, "", LeaderSessionID("s"), 0)))
    begins = asyncio.run(view.is_accepted("rows"))
    core.handle(DispatcherStarted(), 0)
    leads = asyncio.run(view.is_accepted("rows"))
    core.handle(DispatcherSuspended("the coordinator stops"), 1)
    assert (begins, leads, asyncio.run(view.is_accepted("rows"))) == (True, False, True)


def test_nobody_knows_whose_the_slots_of_a_task_manager_are_before_it_has_reported() -> None:
    """All of them seemed to be free, and a TaskManager could be drained that had jobs of former leaders."""
    slots, who = SlotManager(GivenSlots(lambda: "new")), ResourceID("tm")
    actor = SimpleNamespace(ask=lambda query, timeout: query.read(SimpleNamespace(slot_manager=slots)))
    view = ClientView(*cast(Any, (None, actor, *(None,) * 6, "", LeaderSessionID("s"), 0)))
    slots.register_task_manager(TaskManagerInfo(who, "tm:1", 1, "0.1.0", "host", 1), 0)
    before = asyncio.run(view.jobs_with_slots_of(who))
    slots.report_slot_status(SlotReport(who, (SlotStatus(0, JobID("job"), AllocationID("a")),)), 0)
    assert before is None
    assert asyncio.run(view.jobs_with_slots_of(who)) == frozenset({JobID("job")})
