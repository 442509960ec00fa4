"""Two operators drain one TaskManager, or one does so twice: what one of them fails at does not undo the other's."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import pytest
import structlog

from snapline.coordinator.jobmaster.operations import Acknowledged, Answer, OperationFailed
from snapline.coordinator.rpc.client_service import ClientService
from snapline.dataflow.failures import SerializedFailure
from snapline.dataflow.wire.statuses import ExecutionState, encode_state
from snapline.protos import client_pb2 as pb
from snapline.protos import job_pb2

FAILED = OperationFailed(SerializedFailure("another rescale was asked for"))


class Aborted(Exception):
    """What the client is told."""


class Call:
    """A call as the server sees it."""

    def invocation_metadata(self) -> tuple[tuple[str, str], ...]:
        """None."""
        return ()

    def peer(self) -> str:
        """Where the client is."""
        return "ipv4:127.0.0.1:1"

    async def abort(self, code: grpc.StatusCode, text: str) -> None:
        """Say no."""
        raise Aborted(text)


class Cluster:
    """One job on one TaskManager; rescales are answered when the test says so."""

    def __init__(self) -> None:
        self.draining: list[bool] = []
        self.asked: asyncio.Queue[asyncio.Future[Answer]] = asyncio.Queue()

    async def leads(self) -> bool:
        """Lead."""
        return True

    async def list_task_managers(self) -> pb.ListTaskManagersResponse:
        """The one."""
        return pb.ListTaskManagersResponse(task_managers=[pb.TaskManagerDetails(resource_id="tm-1")])

    async def jobs_with_slots_of(self, resource_id: str) -> frozenset[str] | None:
        """The one."""
        return frozenset({"job"})

    async def list_jobs(self) -> pb.ListJobsResponse:
        """The one."""
        return pb.ListJobsResponse(jobs=[pb.JobOverview(job_id="job", name="a job")])

    async def job_details(self, job_id: str) -> pb.JobDetails:
        """It has a task there."""
        task = pb.SubtaskDetails(resource_id="tm-1", state=encode_state(ExecutionState.RUNNING))
        overview = pb.JobOverview(status=job_pb2.JOB_STATUS_RUNNING)
        return pb.JobDetails(overview=overview, vertices=[pb.VertexDetails(subtasks=[task])])

    async def set_draining(self, resource_id: str, *, draining: bool) -> None:
        """Note it."""
        self.draining.append(draining)

    async def operate(self, job_id: str, operation: object) -> Answer:
        """Wait for the test's answer."""
        answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        await self.asked.put(answer)
        return await answer


@pytest.mark.parametrize("second", [Acknowledged(), FAILED])
def test_only_the_last_one_that_fails_brings_tasks_back(second: Answer) -> None:
    """The first to fail leaves it drained, because the other still works on it."""

    async def story() -> tuple[list[bool], list[object]]:
        cluster = Cluster()
        service = ClientService(cluster, structlog.get_logger())  # type: ignore[arg-type]
        request = pb.DrainTaskManagerRequest(resource_id="tm-1")
        calls: list[asyncio.Task[Any]] = [
            asyncio.ensure_future(service.DrainTaskManager(request, Call())) for _ in range(2)
        ]
        answers = [await cluster.asked.get() for _ in calls]
        told: list[object] = []
        for call, answer, said in zip(calls, answers, (FAILED, second), strict=True):
            answer.set_result(said)
            told += await asyncio.gather(call, return_exceptions=True)
        assert not service._drains
        return cluster.draining, told

    draining, told = asyncio.run(story())
    assert "cannot leave tm-1, which is drained by somebody else, too: another rescale" in str(told[0])
    if isinstance(second, Acknowledged):
        assert draining == [True, True] and list(told[1].job_ids) == ["job"]  # type: ignore[attr-defined]
    else:
        assert draining == [True, True, False] and "which gets tasks again" in str(told[1])


class Unknowing(Cluster):
    """Nobody knows where the tasks of the job are; `there`: what has slots of the TaskManager."""

    def __init__(self, details: pb.JobDetails, *there: str) -> None:
        super().__init__()
        self.details, self.there = details, there

    async def jobs_with_slots_of(self, resource_id: str) -> frozenset[str]:
        """As the test says."""
        return frozenset(self.there)

    async def job_details(self, job_id: str) -> pb.JobDetails:
        """As the test says."""
        return self.details

    async def operate(self, job_id: str, operation: object) -> Answer:
        """Fail: a JobMaster that has not begun would never answer."""
        raise AssertionError("it was asked")


UNKNOWN = pytest.mark.parametrize(
    "unknown",
    [
        pb.JobDetails(overview=pb.JobOverview(status=job_pb2.JOB_STATUS_CREATED)),
        pb.JobDetails(overview=pb.JobOverview(status=job_pb2.JOB_STATUS_RECONCILING), vertices=[pb.VertexDetails()]),
    ],
    ids=["its JobMaster begins", "its JobMaster asks"],
)


@UNKNOWN
def test_a_job_that_a_new_leader_does_not_know_yet_may_be_anywhere(unknown: pb.JobDetails) -> None:
    """The TaskManager was said to have nothing on it right after a change of the leader, and was stopped under the job,
    which the new leader had not found again."""
    cluster = Unknowing(unknown, "job")
    service = ClientService(cluster, structlog.get_logger())  # type: ignore[arg-type]
    with pytest.raises(Aborted, match="cannot leave tm-1, which gets tasks again: it is not known yet which"):
        asyncio.run(service.DrainTaskManager(pb.DrainTaskManagerRequest(resource_id="tm-1"), Call()))
    assert cluster.draining == [True, False]


@UNKNOWN
def test_a_job_without_slots_of_a_task_manager_does_not_keep_it_from_being_drained(unknown: pb.JobDetails) -> None:
    """A job that could not begin, because its storage was away, was asked to leave it and never answered; and each
    drain was refused while any job was submitted or was found again elsewhere."""
    cluster = Unknowing(unknown)
    service = ClientService(cluster, structlog.get_logger())  # type: ignore[arg-type]
    answer = asyncio.run(service.DrainTaskManager(pb.DrainTaskManagerRequest(resource_id="tm-1"), Call()))
    assert (list(answer.job_ids), cluster.draining) == ([], [True])


def test_a_job_that_restarts_has_not_left_a_task_manager_that_it_has_slots_of() -> None:
    """The TaskManager was said to have nothing on it, got the job's tasks when the restart delay was over, and was
    stopped under them."""

    class Restarting(Cluster):
        async def job_details(self, job_id: str) -> pb.JobDetails:
            """Its task has failed there."""
            task = pb.SubtaskDetails(resource_id="tm-1", state=encode_state(ExecutionState.FAILED))
            overview = pb.JobOverview(status=job_pb2.JOB_STATUS_RESTARTING)
            return pb.JobDetails(overview=overview, vertices=[pb.VertexDetails(subtasks=[task])])

        async def operate(self, job_id: str, operation: object) -> Answer:
            """As its JobMaster does."""
            return OperationFailed(SerializedFailure("only a running job can be rescaled"))

    cluster = Restarting()
    service = ClientService(cluster, structlog.get_logger())  # type: ignore[arg-type]
    with pytest.raises(Aborted, match="cannot leave tm-1, which gets tasks again: only a running job can be rescaled"):
        asyncio.run(service.DrainTaskManager(pb.DrainTaskManagerRequest(resource_id="tm-1"), Call()))
    assert cluster.draining == [True, False]


def test_a_task_manager_is_not_drained_while_it_works_for_a_job_beside_its_driver() -> None:
    """Its slots were lent to another coordinator's job, of which nobody was told, and it was stopped under that."""

    class Lending(Cluster):
        async def jobs_with_slots_of(self, resource_id: str) -> frozenset[str]:
            """Its own, and another one."""
            return frozenset({"job", "lent"})

    cluster = Lending()
    service = ClientService(cluster, structlog.get_logger())  # type: ignore[arg-type]
    with pytest.raises(Aborted, match="job lent cannot leave tm-1, which gets tasks again: another coordinator leads"):
        asyncio.run(service.DrainTaskManager(pb.DrainTaskManagerRequest(resource_id="tm-1"), Call()))
    assert cluster.draining == [True, False]
    assert cluster.asked.empty()


class Stopping(Cluster):
    """Its own job is gone, while the ResourceManager still has its slots; `leads`: for how many looks it is leader."""

    def __init__(self, leads: int) -> None:
        super().__init__()
        self.looks = leads

    async def leads(self) -> bool:
        """So long."""
        self.looks -= 1
        return self.looks >= 0

    async def list_jobs(self) -> pb.ListJobsResponse:
        """None."""
        return pb.ListJobsResponse()


@pytest.mark.parametrize(("leads", "draining"), [(0, []), (1, [True, False])], ids=["before", "meanwhile"])
def test_a_coordinator_that_stops_does_not_call_its_own_job_another_ones(leads: int, draining: list[bool]) -> None:
    """Who drained a TaskManager was told to stop a job of this very coordinator, which was about to stop."""
    cluster = Stopping(leads)
    service = ClientService(cluster, structlog.get_logger())  # type: ignore[arg-type]
    with pytest.raises(Aborted, match="this coordinator stands by"):
        asyncio.run(service.DrainTaskManager(pb.DrainTaskManagerRequest(resource_id="tm-1"), Call()))
    assert cluster.draining == draining


def test_a_task_manager_that_has_not_reported_yet_is_not_drained() -> None:
    """It counted as one that has nothing on it, right after it had registered again, and was stopped under its job."""

    class Silent(Cluster):
        async def jobs_with_slots_of(self, resource_id: str) -> frozenset[str] | None:
            """It has not said."""
            return None

    cluster = Silent()
    service = ClientService(cluster, structlog.get_logger())  # type: ignore[arg-type]
    with pytest.raises(Aborted, match="cannot leave tm-1, which gets tasks again: it has not said yet what its slots"):
        asyncio.run(service.DrainTaskManager(pb.DrainTaskManagerRequest(resource_id="tm-1"), Call()))
    assert cluster.draining == [True, False]
