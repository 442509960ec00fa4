"""What a function of a user finds in its TaskManager, and what that opens: nothing of other jobs."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import snapline as sl
from snapline.client import ClusterClient, RequestRefused
from snapline.dataflow.wire.messages import JobStatus
from snapline.protos import cluster_pb2, cluster_pb2_grpc
from snapline.runtime.cores.credentials import MARK, Identity, Role, sign_credential
from snapline.runtime.rpc.grpc_channels import open_channel
from snapline.runtime.rpc.security import Security
from tests.services.cluster import LocalCluster
from tests.simulation.jobs import keyed_job

JOB_GATEWAY, RESOURCES = "job-master", "resource-manager"


def secret() -> str:
    """The cluster's; no constant of this module, which is imported where functions run."""
    return "retsulc eht fo terces eht"[::-1].replace(" ", "-")


def look_around(_row: dict[str, Any]) -> dict[str, Any]:
    """Everything that this process lets a function read: its environment as it is and as it was at the start, and every
    text that the collector knows of."""
    looked = secret()
    at_start = Path("/proc/self/environ").read_text(errors="replace")
    texts = {text for held in gc.get_objects() for text in gc.get_referents(held) if type(text) is str}
    credentials = sorted({text for text in texts if text.startswith(MARK) and text != MARK})
    secret_is_there = looked in at_start or any(looked in value for value in os.environ.values())
    return {
        "secret": secret_is_there or any(looked in text and looked is not text for text in texts),
        "found": ",".join(credentials),
    }


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """One TaskManager that was started with the secret in its environment."""
    with LocalCluster(tmp_path_factory.mktemp("cluster"), slots=(1,), token=secret()) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def credential(cluster: LocalCluster) -> str:
    """What the function of a job has found there, and written away."""
    env = cluster.environment(parallelism=1)
    out = cluster.directory / "found"
    schema = pa.schema([("secret", pa.bool_()), ("found", pa.string())])
    env.from_collection([{"n": 1}]).map(look_around, schema=schema).sink_to(sl.ParquetSink(str(out)))
    cluster.wait_for(cluster.submit(env, "curious"), JobStatus.FINISHED)
    [row] = pq.read_table(out).to_pylist()
    assert row["secret"] is False, "the secret of the cluster can be read by functions"
    [found] = row["found"].split(",")
    assert found.startswith(MARK)
    return str(found)


def refusal(cluster: LocalCluster, token: str, gateway: str, message: dict[str, Any]) -> tuple[grpc.StatusCode, str]:
    """How the stream ends on which this is said."""
    security = Security(token)
    make = (
        cluster_pb2_grpc.JobMasterGatewayStub if gateway == JOB_GATEWAY else cluster_pb2_grpc.ResourceManagerGatewayStub
    )
    with open_channel(cluster.address, security) as channel:
        said = iter([cluster_pb2.Envelope(leader_session_id="s", messages=[cluster_pb2.ControlMessage(**message)])])
        with pytest.raises(grpc.RpcError) as raised:
            list(make(channel).Connect(said, metadata=security.metadata))
    error: Any = raised.value
    return error.code(), error.details()


def test_what_a_function_finds_submits_and_cancels_nothing(cluster: LocalCluster, credential: str) -> None:
    """It is the credential of its TaskManager, which may say who is there, and no more."""
    with ClusterClient(cluster.address, Security(credential)) as client:
        for attempt in (lambda: client.submit(keyed_job()), client.list_jobs, lambda: client.cancel("any")):
            with pytest.raises(RequestRefused, match="a taskmanager tm-1 may not call ClientService/"):
                attempt()
        assert client.state_of_task_manager("tm-1") == "registered"


@pytest.mark.parametrize(
    ("gateway", "message", "reason"),
    [
        (
            RESOURCES,
            {"register_task_executor": {"info": {"resource_id": "tm-9", "slots": 9}}},
            "a taskmanager tm-1 may not send RegisterTaskExecutor of tm-9",
        ),
        (
            RESOURCES,
            {"declare_required_slots": {"job_id": "other", "required": 3}},
            "a taskmanager tm-1 may not send DeclareRequiredSlots: JobMasters do",
        ),
        (
            JOB_GATEWAY,
            {"register_task_executor_at_job_master": {"job_id": "other", "info": {"resource_id": "tm-9", "slots": 1}}},
            "a taskmanager tm-1 may not send RegisterTaskExecutorAtJobMaster of tm-9",
        ),
    ],
)
def test_what_a_function_finds_is_no_other_process(
    cluster: LocalCluster, credential: str, gateway: str, message: dict[str, Any], reason: str
) -> None:
    """Its stream ends with one line; the cluster goes on."""
    assert (grpc.StatusCode.PERMISSION_DENIED, reason) == refusal(cluster, credential, gateway, message)


def test_a_client_for_one_job_sees_and_ends_only_that_one(cluster: LocalCluster) -> None:
    """Whoever submits gives others less than they have."""
    token = sign_credential(secret(), Identity(Role.CLIENT, job="job-1"))
    with ClusterClient(cluster.address, Security(token)) as client:
        with pytest.raises(RequestRefused, match="for job job-1 only"):
            client.cancel("job-2")
        with pytest.raises(RequestRefused, match="there is no job 'job-1'"):
            client.cancel("job-1")
