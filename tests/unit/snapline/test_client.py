"""A client whose coordinator changes, against real servers."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from snapline.client import ClusterClient, CoordinatorUnreachable, JobFailed, job_status
from snapline.dataflow.config import COORDINATOR_ADDRESS, Configuration
from snapline.dataflow.failures import SerializedFailure
from snapline.protos import client_pb2 as pb
from snapline.protos import client_pb2_grpc
from snapline.runtime.logs import silent_logger
from snapline.runtime.rpc.rpc_server import RpcServer
from snapline.runtime.rpc.security import Security
from snapline.runtime.rpc.tcp_connections import reset_connections
from tests.services.certificates import LiveFiles, why_not

NOTHING = Security()


class Coordinator(client_pb2_grpc.ClientServiceServicer):
    """Says one status of every job to whoever watches, and nothing more; has no jobs."""

    def __init__(self, status: str, security: Security = NOTHING) -> None:
        self.status = status
        self.server = RpcServer(security, silent_logger())
        self.address = self.server.start("127.0.0.1:0", self._add)

    def _add(self, server: grpc.aio.Server) -> list[str]:
        client_pb2_grpc.add_ClientServiceServicer_to_server(self, server)
        return []

    async def WatchJob(self, request: pb.WatchJobRequest, context: Any) -> AsyncIterator[pb.JobDetails]:
        yield pb.JobDetails(overview={"status": f"JOB_STATUS_{self.status}"})
        await asyncio.Event().wait()

    async def ListJobs(self, request: pb.ListJobsRequest, context: Any) -> pb.ListJobsResponse:
        return pb.ListJobsResponse()

    async def GetJob(self, request: pb.GetJobRequest, context: Any) -> pb.JobDetails:
        await context.abort(grpc.StatusCode.UNAVAILABLE, "just ending")
        raise AssertionError


@pytest.fixture
def coordinators() -> Iterator[tuple[Coordinator, Coordinator]]:
    """The one that leads, and the next one."""
    both = Coordinator("RUNNING"), Coordinator("FINISHED")  # type: ignore[abstract]
    yield both
    for each in both:
        each.server.stop()


def test_who_watches_a_job_goes_where_another_call_has_found_the_leader(
    coordinators: tuple[Coordinator, Coordinator],
) -> None:
    """The call closed the connection of both when the leader changed, and a handle of a job that ran on was broken."""
    before, now = coordinators
    with ClusterClient(before.address, Security(), lambda: now.address) as client:
        watched = client.watch_job("job")
        assert job_status(next(watched)) == "RUNNING"
        with pytest.raises(CoordinatorUnreachable):
            client.get_job("job")

        assert [job_status(details) for details in watched] == ["FINISHED"]


@pytest.mark.skipif(bool(why_not()), reason=why_not())
def test_a_client_that_lives_longer_than_its_certificates_dials_with_new_ones(tmp_path: Path) -> None:
    """It was cut off for ever when its connection broke after they had been changed, as by a restart of the
    coordinator."""
    files = LiveFiles(tmp_path)
    coordinator = Coordinator("FINISHED", Security.from_configuration(files.configuration))  # type: ignore[abstract]
    settings = {**files.settings, COORDINATOR_ADDRESS.key: coordinator.address}
    try:
        with ClusterClient.from_configuration(Configuration(settings)) as client:
            assert client.list_jobs() == []
            for step in range(3):
                files.change(step)
            reset_connections(int(coordinator.address.rpartition(":")[2]))
            with pytest.raises(CoordinatorUnreachable):
                client.list_jobs()
            assert client.list_jobs() == []
    finally:
        coordinator.server.stop()


def test_why_a_job_failed_goes_from_one_process_to_another() -> None:
    """A pool of processes in which jobs run said that it is broken, or waited for ever, in the place of the failure."""
    failed = JobFailed("job 'flights' failed: no such row", SerializedFailure("no such row", operator_uid="parse"))
    again = pickle.loads(pickle.dumps(failed))
    assert (str(again), again.failure) == (str(failed), failed.failure)
