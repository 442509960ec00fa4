"""What is refused before a job hears of it: a coordinator that has slept takes itself for the leader until ZooKeeper
tells it, and a directory may be none."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import pytest
import structlog
from structlog.testing import capture_logs

from snapline.coordinator.jobmaster.operations import CancelJob
from snapline.coordinator.rpc.client_service import ClientService
from snapline.protos import client_pb2 as pb


class Cluster:
    """Takes all operations of the job that it knows."""

    def __init__(self) -> None:
        self.operations: list[Any] = []

    async def knows(self, job_id: str) -> bool:
        """Know every job."""
        return True

    async def operate(self, job_id: str, operation: Any) -> None:
        """Note what is asked for."""
        self.operations.append(operation)


class Call:
    """The context of a call, which an abort ends."""

    def invocation_metadata(self) -> tuple[()]:
        """Return no header."""
        return ()

    def peer(self) -> str:
        """Return where the client is."""
        return "ipv4:127.0.0.1:1"

    async def abort(self, code: grpc.StatusCode, text: str) -> None:
        """End the call."""
        raise RuntimeError(code, text)


def test_a_leader_that_was_replaced_while_it_slept_cancels_nothing() -> None:
    """It said that the job was cancelled, which went on under the next leader."""
    cluster: Any = Cluster()
    with capture_logs() as lines, pytest.raises(RuntimeError) as raised:
        service = ClientService(cluster, structlog.get_logger(), leads=lambda: False)
        asyncio.run(service.CancelJob(pb.CancelJobRequest(job_id="a"), Call()))

    line = "this coordinator stands by, because another one may lead: ask again"
    assert (grpc.StatusCode.UNAVAILABLE, line) == raised.value.args
    assert ([f"refused: {line}"], []) == ([each["outcome"] for each in lines], cluster.operations)


def test_a_leader_cancels_jobs() -> None:
    """And is asked first whether it leads."""
    cluster: Any = Cluster()
    answers = [True]
    service = ClientService(cluster, structlog.get_logger(), leads=answers.pop)
    asyncio.run(service.CancelJob(pb.CancelJobRequest(job_id="a"), Call()))
    assert ([], [CancelJob()]) == (answers, cluster.operations)


@pytest.mark.parametrize(("is_none", "code"), [(False, grpc.StatusCode.UNAVAILABLE), (True, grpc.StatusCode.NOT_FOUND)])
def test_only_a_leader_that_has_its_jobs_says_that_there_is_no_such_job(is_none: bool, code: grpc.StatusCode) -> None:
    """Whoever waits for a job asks again then, and does not take a leader that begins or ends for the job's end."""

    class Nowhere(Cluster):
        async def job_details(self, job_id: str) -> None:
            """Find no job."""

        async def is_none(self, job_id: str) -> bool:
            """Know, or not, that there is none."""
            return is_none

    cluster: Any = Nowhere()
    with pytest.raises(RuntimeError) as raised:
        asyncio.run(ClientService(cluster, structlog.get_logger()).GetJob(pb.GetJobRequest(job_id="a"), Call()))
    assert raised.value.args[0] is code


def test_a_directory_that_no_file_system_takes_costs_no_checkpoint() -> None:
    """The checkpoint was taken, and could not be stored: "embedded null byte"."""
    cluster: Any = Cluster()
    service = ClientService(cluster, structlog.get_logger())
    requests = pb.TriggerSavepointRequest(job_id="a", target_directory="a\0b")
    with pytest.raises(RuntimeError) as raised:
        asyncio.run(service.TriggerSavepoint(requests, Call()))

    assert raised.value.args[0] is grpc.StatusCode.INVALID_ARGUMENT
    assert "'a\\x00b' is no directory" in raised.value.args[1]
    assert not cluster.operations
