"""The streams of programs outside over real gRPC on loopback, where the coordinator cannot say what becomes of one."""

from __future__ import annotations

import asyncio
import queue
from types import SimpleNamespace
from typing import Any

import grpc
import pykka
import pytest

from snapline.coordinator.execution.given_slots import GivenSlots
from snapline.coordinator.job_registry import EndedJob, JobRegistry, LiveJob
from snapline.coordinator.rpc.external_gateway import ExternalGateway
from snapline.dataflow.ids import JobID
from snapline.protos import client_pb2, external_pb2_grpc
from snapline.protos import external_pb2 as pb
from snapline.runtime.clock import ManualClock
from snapline.runtime.cores.credentials import Identity, Role
from snapline.runtime.leaders.leader_retrieval import LeaderAddress
from snapline.runtime.logs import silent_logger
from snapline.runtime.rpc.grpc_channels import open_channel
from tests.unit.coordinator.rpc.test_connections import JOB, SESSION, Cluster

REGISTER = pb.FromProgram(register=pb.Register(protocol_version=1, job="rows", task="totals"))


class Hanging:
    """Stands where the registry does: the actor of the job's JobMaster does not answer."""

    def find_for_program(self, job: str, task: str, own: str) -> Any:
        return JOB

    async def places_for_program(self, job_id: str, task: str) -> Any:
        raise pykka.Timeout("15 s")


class WithPrograms(Cluster):
    """A server that serves programs as well."""

    def add(self, server):
        async def is_accepted(job: str) -> bool:
            return True

        registry: Any = Hanging()
        gateway = ExternalGateway(
            self.streams, registry, self.leaders, is_accepted, GivenSlots(lambda: "slot"), 1000, silent_logger()
        )
        external_pb2_grpc.add_ExternalTasksServicer_to_server(gateway, server)
        return [*super().add(server), "snapline.external.v1.ExternalTasks"]


@pytest.fixture
def cluster():
    cluster = WithPrograms()
    cluster.leaders.set_job_master(JOB, LeaderAddress(cluster.address, SESSION))
    yield cluster
    cluster.stop()


def test_a_program_whose_job_master_does_not_answer_is_told_to_come_again(cluster):
    """It heard nothing for ever: nobody looked at what the question for its place had ended with."""
    said: queue.SimpleQueue[pb.FromProgram | None] = queue.SimpleQueue()
    said.put(REGISTER)
    with open_channel(cluster.address, cluster.security) as channel:
        answered = external_pb2_grpc.ExternalTasksStub(channel).Participate(iter(said.get, None), timeout=20)
        with pytest.raises(grpc.RpcError) as raised:
            list(answered)
        said.put(None)
    assert raised.value.code() is grpc.StatusCode.UNAVAILABLE
    assert raised.value.details() == "the job's leader does not answer (Timeout: 15 s): connect again"


def test_a_program_for_one_job_is_sent_to_that_one_whatever_others_are_called() -> None:
    """Somebody had submitted another job of the same name: the program was refused for good when it came again, also
    after a change of leader, and when its own job had ended it was not told so."""
    own, other = JobID("a" * 32), JobID("b" * 32)
    identity = Identity(Role.EXTERNAL, job=own)
    accepted = {"fleet", own, other}
    led: dict[JobID, Any] = {}

    async def is_accepted(job: str) -> bool:
        return job in accepted

    async def found() -> list[Any]:
        registry = JobRegistry(asyncio.get_running_loop(), ManualClock(), 10)
        leaders: Any = SimpleNamespace(job_master=led.get)
        given = GivenSlots(lambda: "slot")
        gateway = ExternalGateway(SimpleNamespace(), registry, leaders, is_accepted, given, 1000, silent_logger())  # type: ignore[arg-type]
        answers: list[Any] = []
        for job_id in (other, own, JobID("c" * 32)):
            master: Any = SimpleNamespace(job_id=job_id)
            registry.started(
                LiveJob(master, master, master, master, 0, name="fleet", external_tasks=frozenset(["orders"]))
            )
            led[job_id] = SimpleNamespace(session=f"of {job_id}")
            answers.append(await gateway._find(identity, "fleet", "orders"))
        overview = client_pb2.JobOverview(job_id=own, name="fleet", status="JOB_STATUS_FINISHED")
        registry.ended(own, EndedJob(client_pb2.JobDetails(overview=overview)))
        accepted.discard(own)
        return [*answers, await gateway._find(identity, "fleet", "orders")]

    begins, before, still, after = asyncio.run(found())
    assert (pb.REJECTION_REASON_UNKNOWN_JOB, True) == (begins.reason, begins.try_again)
    assert (own, f"of {own}") == before == still
    assert (pb.REJECTION_REASON_JOB_IS_OVER, f"job 'fleet' ({own}) is FINISHED") == (after.reason, after.detail)
