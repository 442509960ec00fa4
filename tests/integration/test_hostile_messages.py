"""What somebody with the token sends to a real coordinator: it ends their connection, and nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest

from snapline.client import RequestRefused
from snapline.dataflow.config import Configuration
from snapline.protos import cluster_pb2, cluster_pb2_grpc
from snapline.runtime.rpc.grpc_channels import open_channel
from snapline.runtime.rpc.security import Security
from tests.services.cluster import LocalCluster
from tests.simulation.jobs import keyed_job

TOKEN = "the-token"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """A coordinator with a durable directory and no TaskManager; a job graph there is cut short."""
    directory = tmp_path_factory.mktemp("cluster")
    stray = directory / "ha" / "jobs"
    stray.mkdir(parents=True)
    (stray / "cut-short").write_bytes(b"\0" * 9)
    settings = {"high-availability.type": "embedded"}
    with LocalCluster(directory, slots=(), settings=settings, token=TOKEN) as cluster:
        yield cluster


def refusal(cluster: LocalCluster, message: cluster_pb2.ControlMessage) -> tuple[grpc.StatusCode, str]:
    """How the stream ends on which this is said to the ResourceManager."""
    security = Security.from_configuration(Configuration({"security.auth.token": TOKEN}))
    with open_channel(cluster.address, security) as channel:
        stub = cluster_pb2_grpc.ResourceManagerGatewayStub(channel)
        said = iter([cluster_pb2.Envelope(leader_session_id="s", messages=[message])])
        answers = stub.Connect(said, metadata=security.metadata)
        with pytest.raises(grpc.RpcError) as raised:
            list(answers)
    error: Any = raised.value
    return error.code(), error.details()


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (
            {"declare_required_slots": {"job_id": "j", "required": -1}},
            "DeclareRequiredSlots.required has to lie between 0 and 1048576, not -1",
        ),
        (
            {"register_task_executor": {"info": {"resource_id": "tm", "slots": 20_000_000}}},
            "TaskManagerInfo.slots has to lie between 1 and 16384, not 20000000",
        ),
        ({"register_task_executor": {"info": {"slots": 1}}}, "TaskManagerInfo.resource_id is missing"),
    ],
)
def test_a_message_out_of_bounds_ends_its_connection(cluster: LocalCluster, message: dict, reason: str) -> None:
    """With one line; the coordinator answers others."""
    assert refusal(cluster, cluster_pb2.ControlMessage(**message)) == (grpc.StatusCode.INVALID_ARGUMENT, reason)
    assert cluster.client.list_jobs()


def test_an_envelope_of_more_messages_than_anybody_sends_is_refused(cluster: LocalCluster) -> None:
    """780,000 of two bytes each kept everybody else waiting while they were decoded."""
    security = Security(TOKEN)
    tiny = cluster_pb2.ControlMessage(heartbeat_request=cluster_pb2.HeartbeatRequest())
    envelope = cluster_pb2.Envelope(leader_session_id="s", messages=[tiny] * 2_000)
    with open_channel(cluster.address, security) as channel:
        stub = cluster_pb2_grpc.ResourceManagerGatewayStub(channel)
        with pytest.raises(grpc.RpcError, match="has 2000 messages, and 1000 is the most"):
            list(stub.Connect(iter([envelope]), metadata=security.metadata))
    assert cluster.client.list_jobs()


def test_a_job_of_five_million_subtasks_is_refused(cluster: LocalCluster) -> None:
    """Before it is stored, where it would wait for the next leader."""
    graph = keyed_job()
    vertex = replace(graph.vertices[0], parallelism=5_000_000, max_parallelism=5_000_000)

    with pytest.raises(RequestRefused, match=r"JobVertex\.parallelism has to lie between 1 and 32768, not 5000000"):
        cluster.client.submit(replace(graph, vertices=(vertex, *graph.vertices[1:])))

    assert [path.name for path in Path(cluster.directory, "ha", "jobs").iterdir()] == ["cut-short"]


def test_a_graph_that_cannot_be_read_is_listed_with_the_reason(cluster: LocalCluster) -> None:
    """The coordinator has started all the same."""
    (job,) = cluster.client.list_jobs()

    assert (job.job_id, job.name) == ("cut-short", "(set aside: its graph cannot be read)")
    assert "ha/jobs/cut-short is no job graph, or is cut short" in job.failure.summary
