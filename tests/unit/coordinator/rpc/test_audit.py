"""What the log says of who has asked for what."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import structlog
from structlog.testing import capture_logs

from snapline.coordinator.jobmaster.operations import Acknowledged, Answer
from snapline.coordinator.rpc.audit import AuditLog
from snapline.coordinator.rpc.client_service import ClientService
from snapline.dataflow.graph.jobgraph import JobGraph
from snapline.dataflow.ids import JobID
from snapline.protos import client_pb2 as pb
from tests.unit.coordinator.rpc.test_submissions import Call


class Lines:
    """Stands for a logger: what it was told."""

    def __init__(self) -> None:
        self.said: list[dict[str, Any]] = []

    def bind(self, **_: str) -> Lines:
        return self

    def info(self, _message: str, **context: Any) -> None:
        self.said.append(context)


def test_refusals_of_one_host_are_told_once_a_second_and_what_was_done_is_told_always() -> None:
    """A flood of jobs that are refused leaves one line a second, which says how many it stands for."""
    now_s = 0.0
    lines = Lines()
    audit = AuditLog(cast(Any, lines), lambda: now_s)
    for port in range(3):
        audit.write("submit", f"mallory at ipv4:10.0.0.9:{port}", "refused: too many jobs")
    audit.write("submit", "alice at ipv4:10.0.0.1:7", "refused: too many jobs")
    audit.write("cancel job", "mallory at ipv4:10.0.0.9:3", "done", job_id="j")
    now_s = 1.0
    audit.write("submit", "ipv4:10.0.0.9:4", "refused: too many jobs")
    assert [(line["who"], line["outcome"], line.get("not_logged_before")) for line in lines.said] == [
        ("mallory at ipv4:10.0.0.9:0", "refused: too many jobs", None),
        ("alice at ipv4:10.0.0.1:7", "refused: too many jobs", None),
        ("mallory at ipv4:10.0.0.9:3", "done", None),
        ("ipv4:10.0.0.9:4", "refused: too many jobs", 2),
    ]


class Cluster:
    """Takes what is asked for, and answers when the test says so."""

    def __init__(self) -> None:
        self.asked: asyncio.Queue[asyncio.Future[Answer]] = asyncio.Queue()

    async def answer(self, *_asked: object) -> Answer:
        """Wait for the test's answer."""
        answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        await self.asked.put(answer)
        return await answer

    submit = operate = answer

    async def knows(self, job_id: str) -> bool:
        """Know every job."""
        return True

    async def leads(self) -> bool:
        """Lead."""
        return True

    async def list_task_managers(self) -> pb.ListTaskManagersResponse:
        """One."""
        return pb.ListTaskManagersResponse(task_managers=[pb.TaskManagerDetails(resource_id="tm-1")])

    async def set_draining(self, resource_id: str, *, draining: bool) -> None:
        """Do so."""

    async def jobs_with_slots_of(self, resource_id: str) -> frozenset[str]:
        """None has; and the test goes on."""
        return frozenset({str(await self.answer())})


def test_what_was_asked_for_is_told_although_its_client_has_gone() -> None:
    """A job was submitted, a checkpoint taken and a TaskManager drained without a line about who had wanted that, where
    the deadline of the client was over before the answer came."""

    async def story() -> None:
        cluster = Cluster()
        service = ClientService(cast(Any, cluster), structlog.get_logger())
        calls = [
            service._submit(JobGraph(JobID("job"), "a job", (), ()), Call()),
            service.TriggerCheckpoint(pb.TriggerCheckpointRequest(job_id="job"), Call()),
            service.DrainTaskManager(pb.DrainTaskManagerRequest(resource_id="tm-1"), Call()),
        ]
        for call in calls:
            told = asyncio.ensure_future(call)
            answer = await cluster.asked.get()
            told.cancel()
            assert isinstance((await asyncio.gather(told, return_exceptions=True))[0], asyncio.CancelledError)
            if not answer.done():
                answer.set_result(Acknowledged())
            await asyncio.sleep(0)
            await asyncio.sleep(0)

    with capture_logs() as lines:
        asyncio.run(story())
    assert [(line["request"], line["who"]) for line in lines] == [
        ("submit", "ipv4:127.0.0.1:1"),
        ("take checkpoint", "ipv4:127.0.0.1:1"),
        ("drain", "ipv4:127.0.0.1:1"),
    ]
