"""What somebody with the token sends to a real coordinator: it ends their connection, and nothing else."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest

from snapline.client import RequestRefused
from snapline.dataflow.config import Configuration
from snapline.dataflow.graph.jobgraph import SavepointRestoreSettings
from snapline.dataflow.ids import JobID
from snapline.protos import client_pb2, client_pb2_grpc, cluster_pb2, cluster_pb2_grpc
from snapline.runtime.cores.credentials import Identity, Role, sign_credential
from snapline.runtime.cores.request_bounds import refuse_size
from snapline.runtime.rpc.grpc_channels import open_channel
from snapline.runtime.rpc.security import Security
from tests.services.cluster import LocalCluster
from tests.simulation.jobs import keyed_job

TOKEN = "the-token"


@pytest.fixture(scope="module")
def silence() -> Iterator[socket.socket]:
    """A server that takes connections and never says a word."""
    with socket.create_server(("127.0.0.1", 0), backlog=64) as server:
        yield server


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory, silence: socket.socket) -> Iterator[LocalCluster]:
    """A coordinator with a durable directory, an object store that never answers, and no TaskManager; a job graph is
    cut short."""
    directory = tmp_path_factory.mktemp("cluster")
    stray = directory / "ha" / "jobs"
    stray.mkdir(parents=True)
    (stray / "cut-short").write_bytes(b"\0" * 9)
    endpoint = f"http://127.0.0.1:{silence.getsockname()[1]}"
    settings = {"high-availability.type": "embedded", "s3.endpoint": endpoint, "s3.allow-http": "true"}
    settings |= {"s3.access-key": "k", "s3.secret-key": "s"}
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
        (
            {"heartbeat_response": {"process": {"clock_ms": -1 << 63}}},
            f"ProcessFigures.clock_ms has to lie between {-1 << 62} and {1 << 62}, not {-1 << 63}",
        ),
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


def test_a_message_of_two_million_empty_ones_is_not_parsed(cluster: LocalCluster) -> None:
    """Each has two bytes and takes 170 in memory: as many as one message may have would have taken 20 GB."""
    security = Security(TOKEN)
    tasks = cluster_pb2.SubmitTasks(tasks=[{}] * 2_000_000)
    envelope = cluster_pb2.Envelope(leader_session_id="s", messages=[{"submit_tasks": tasks}])
    job = client_pb2.SubmitJobRequest(job_graph={"vertices": [{}] * 2_000_000})
    with open_channel(cluster.address, security) as channel:
        stub = cluster_pb2_grpc.ResourceManagerGatewayStub(channel)
        with pytest.raises(grpc.RpcError, match="Envelope has more than 1048576 fields, and that is the most"):
            list(stub.Connect(iter([envelope]), metadata=security.metadata))
        with pytest.raises(grpc.RpcError, match="SubmitJobRequest has more than 1048576 fields, and that is the most"):
            client_pb2_grpc.ClientServiceStub(channel).SubmitJob(job, metadata=security.metadata)
    assert cluster.client.list_jobs()


def test_a_request_says_a_page_of_text_at_most(cluster: LocalCluster) -> None:
    """A text of 80 MB was repeated in answer and log, took gigabytes, and in a tap the JobMaster's time: now each is
    refused in one short line, streams too, and only one that brings a job may be larger."""
    security = Security.from_configuration(Configuration({"security.auth.token": TOKEN}))
    long = "x" * 9000
    before = (cluster.logs / "coordinator.log").stat().st_size
    with open_channel(cluster.address, security) as channel:
        stub = client_pb2_grpc.ClientServiceStub(channel)
        for ask in (
            lambda: stub.TapOperator(client_pb2.TapOperatorRequest(uid=long), metadata=security.metadata),
            lambda: stub.GetJob(client_pb2.GetJobRequest(job_id=long), metadata=security.metadata),
            lambda: list(stub.WatchJob(client_pb2.WatchJobRequest(job_id=long), metadata=security.metadata)),
            lambda: stub.Rescale(
                client_pb2.RescaleRequest(parallelism_by_vertex={"x" * (2 << 20): 1}), metadata=security.metadata
            ),
        ):
            with pytest.raises(grpc.RpcError) as raised:
                ask()
            error: Any = raised.value
            assert grpc.StatusCode.INVALID_ARGUMENT is error.code()
            assert "are the most that" in error.details() and len(error.details()) < 200
    assert (cluster.logs / "coordinator.log").stat().st_size - before < 9000
    assert "has 9000 characters" in refuse_size(client_pb2.GetJobRequest(job_id=long))
    assert "" == refuse_size(client_pb2.SubmitJobRequest(job_graph={"name": "x" * (2 << 20)}))


@pytest.mark.parametrize(
    "method",
    [
        "snapline.v1.ClientService/GetJob",
        "snapline.v1.ClientService/WatchJob",
        "snapline.v1.ResourceManagerGateway/Connect",
        "snapline.v1.RelayGateway/Carry",
        "grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
    ],
)
def test_bytes_that_are_no_message_are_one_line(cluster: LocalCluster, method: str) -> None:
    """To whoever sent them, and in the log, where each was a traceback of gRPC's: two megabytes of them in a minute."""
    security = Security.from_configuration(Configuration({"security.auth.token": TOKEN}))
    log = cluster.logs / "coordinator.log"
    before = len(log.read_text())
    with open_channel(cluster.address, security) as channel:
        for _ in range(20):
            path, is_stream = f"/{method}", "ClientService" not in method
            kind: Any = channel.unary_unary if method.endswith("GetJob") else channel.unary_stream
            kind = channel.stream_stream if is_stream else kind
            data: Any = iter([b"\xff\xff"]) if is_stream else b"\xff\xff"
            with pytest.raises(grpc.RpcError, match="what was sent is no message"):
                answer: Any = kind(path, bytes, bytes)(data, metadata=security.metadata, timeout=20)
                list(answer)
    assert "Traceback" not in log.read_text()[before:]


def test_a_name_with_a_line_break_is_one_short_line(cluster: LocalCluster) -> None:
    """Of vertices that the job has not, a megabyte was repeated, as it was."""
    job_id = cluster.client.submit(replace(keyed_job("named"), job_id=JobID("e" * 32)))
    cluster.follow(job_id, lambda details: len(details.vertices) > 0)
    secrets = (TOKEN, sign_credential(TOKEN, Identity(Role.CLIENT, job=job_id)))
    answers = []
    for secret, request in zip(
        secrets,
        (
            client_pb2.RescaleRequest(job_id=job_id, parallelism_by_vertex={"a\nb" + "x" * 500_000: 1}),
            client_pb2.RescaleRequest(job_id="a\nb", parallelism=1),
        ),
        strict=True,
    ):
        security = Security(secret)
        with open_channel(cluster.address, security) as channel, pytest.raises(grpc.RpcError) as raised:
            client_pb2_grpc.ClientServiceStub(channel).Rescale(request, metadata=security.metadata)
        error: Any = raised.value
        answers.append(error.details())
    cluster.client.cancel(job_id)
    line = f"this credential is for job {job_id} only, and the call is about 'a\\nb'"
    assert [f"the job has no vertex {'a' + chr(10) + 'b' + 'x' * 77!r}", line] == answers


def test_a_job_of_five_million_subtasks_is_refused(cluster: LocalCluster) -> None:
    """Before it is stored, where it would wait for the next leader."""
    graph = keyed_job()
    vertex = replace(graph.vertices[0], parallelism=5_000_000, max_parallelism=5_000_000)

    with pytest.raises(RequestRefused, match=r"JobVertex\.parallelism has to lie between 1 and 32768, not 5000000"):
        cluster.client.submit(replace(graph, vertices=(vertex, *graph.vertices[1:])))

    assert graph.job_id not in [path.name for path in Path(cluster.directory, "ha", "jobs").iterdir()]


def test_storage_that_never_answers_stops_no_other_submission(cluster: LocalCluster, silence: socket.socket) -> None:
    """Eight reads of savepoints that hang held all threads for slow work, and with them every job's checkpoints."""
    hanging = replace(keyed_job(), savepoint_restore=SavepointRestoreSettings("s3://never/answers"))
    with ThreadPoolExecutor(8) as pool:
        for number in range(8):
            pool.submit(cluster.client.submit, replace(hanging, job_id=JobID(f"{number:032x}"), name=f"hangs-{number}"))
        silence.settimeout(20)
        connections = [silence.accept()[0] for _ in range(8)]

        other = cluster.client.submit(replace(keyed_job("other"), job_id=JobID("f" * 32)))
        assert other in [job.job_id for job in cluster.client.list_jobs()]
        cluster.client.cancel(other)
        silence.close()
        for connection in connections:
            connection.close()


def test_a_graph_that_cannot_be_read_is_listed_with_the_reason(cluster: LocalCluster) -> None:
    """The coordinator has started all the same."""
    (job,) = (job for job in cluster.client.list_jobs() if job.name.startswith("(set aside"))

    assert (job.job_id, job.name) == ("cut-short", "(set aside: its graph cannot be read)")
    assert "ha/jobs/cut-short is no job graph, or is cut short" in job.failure.summary
