"""What a function of a user finds in its TaskManager, and what that opens: nothing of other jobs."""

from __future__ import annotations

import gc
import os
import queue
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import snapline as sl
from snapline.cli import main
from snapline.client import ClusterClient, RequestRefused
from snapline.dataflow.ids import AllocationID, JobID, LeaderSessionID, ResourceID
from snapline.dataflow.wire.codec import decode_envelope, encode_envelope
from snapline.dataflow.wire.messages import (
    JobStatus,
    OfferSlots,
    RegisterTaskExecutorAtJobMaster,
    SlotOffer,
    SlotOffersAnswered,
    TaskManagerInfo,
)
from snapline.protos import cluster_pb2, cluster_pb2_grpc, external_pb2, external_pb2_grpc
from snapline.runtime.cores.credentials import MARK, Identity, Role, sign_credential
from snapline.runtime.rpc.grpc_channels import open_channel
from snapline.runtime.rpc.security import Security
from snapline.runtime.version import VERSION
from tests.services.cluster import LocalCluster, wait_until
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
    with LocalCluster(tmp_path_factory.mktemp("cluster"), slots=(2,), token=secret()) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def credential(cluster: LocalCluster) -> str:
    """What the function of a job has found there, and written away."""
    return found_by_a_function(cluster)


def found_by_a_function(cluster: LocalCluster) -> str:
    """The only credential that it can read; the secret is nowhere."""
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


def test_a_function_does_not_find_what_its_task_manager_was_started_with(tmp_path: Path) -> None:
    """Whoever starts TaskManagers may drain them, and say that they have ended: with such a credential, which each was
    given and kept, a function ended those of other jobs."""
    started_with = sign_credential(secret(), Identity(Role.LAUNCHER))
    with LocalCluster(tmp_path, slots=(), token=secret()) as cluster:
        cluster.start_task_manager(1, token=started_with)
        found = found_by_a_function(cluster)
        with ClusterClient(cluster.address, Security(found)) as client:
            with pytest.raises(RequestRefused, match="a taskmanager tm-1 may not call ClientService/DrainTaskManager"):
                client.drain_task_manager("tm-1")
            with pytest.raises(RequestRefused, match="a taskmanager tm-1 may not call ClientService/ReportWorkers"):
                client.report_workers("another", 0, "", {"tm-1": "gone"})
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


def test_a_program_for_one_job_gets_no_ticket_of_another(cluster: LocalCluster) -> None:
    """Nor hears where its tasks are, or which it has: with a ticket a TaskManager lets it in as one of that job."""
    env = cluster.environment(parallelism=1)
    rows = env.from_external("numbers", pa.schema([("n", pa.int64())]), uid="numbers")
    rows.print()
    job_id = cluster.submit(env, "of others")
    try:
        cluster.follow(job_id, lambda details: any(each.resource_id for v in details.vertices for each in v.subtasks))
        answers: dict[tuple[str, str], Any] = {}
        for own, task in ((job_id, "numbers"), ("another", "numbers"), ("another", "no such task")):
            security = Security(sign_credential(secret(), Identity(Role.EXTERNAL, job=own)))
            register = external_pb2.Register(protocol_version=1, job="of others", task=task)
            with open_channel(cluster.address, security) as channel:
                said = iter([external_pb2.FromProgram(register=register)])
                stub = external_pb2_grpc.ExternalTasksStub(channel)
                try:
                    answers[own, task] = next(iter(stub.Participate(said, metadata=security.metadata))).rejected.reason
                except grpc.RpcError as error:
                    answers[own, task] = (error.code(), error.details())
    finally:
        cluster.cancel(job_id)
    refused = grpc.StatusCode.PERMISSION_DENIED, "a external for job another may not take part in job 'of others'"
    assert {
        (job_id, "numbers"): external_pb2.REJECTION_REASON_AT_TASK_MANAGER,
        ("another", "numbers"): refused,
        ("another", "no such task"): refused,
    } == answers


def test_what_a_function_finds_takes_part_in_no_job(cluster: LocalCluster, credential: str) -> None:
    """Programs outside call a service in a package of its own, in which roles were not looked at: as one of them the
    function could take part in a job of others."""
    security = Security(credential)
    register = external_pb2.Register(protocol_version=1, job="of others", task="numbers")
    with open_channel(cluster.address, security) as channel:
        said = iter([external_pb2.FromProgram(register=register)])
        stub = external_pb2_grpc.ExternalTasksStub(channel)
        with pytest.raises(grpc.RpcError, match="a taskmanager tm-1 may not call ExternalTasks/Participate"):
            list(stub.Participate(said, metadata=security.metadata))


def test_a_slot_that_nobody_gave_brings_no_tasks(cluster: LocalCluster) -> None:
    """A function offers one to the JobMaster of others, which lacks a third: it was sent their tasks, with the secrets
    that stand in them."""
    env = cluster.environment(parallelism=3)
    env.from_collection([{"n": 1}]).rebalance().map(dict, uid="of others").print()
    job_id = cluster.submit(env, "of others")
    security = Security(sign_credential(secret(), Identity(Role.TASK_MANAGER, name="tm-9")))
    info = TaskManagerInfo(ResourceID("tm-9"), "127.0.0.1:1", 1, VERSION, "h", 1)
    allocation = AllocationID("made-up")
    said: queue.Queue[Any] = queue.Queue()
    try:
        cluster.follow(job_id, lambda details: "2 available" in details.overview.status_detail)
        with open_channel(cluster.address, security) as channel:
            leaders = cluster_pb2_grpc.LeaderRetrievalStub(channel).Watch(
                cluster_pb2.WatchLeadersRequest(), metadata=security.metadata
            )
            session = LeaderSessionID(next(iter(leaders)).job_masters[job_id].leader_session_id)
            leaders.cancel()
            said.put(RegisterTaskExecutorAtJobMaster(JobID(job_id), info))
            said.put(OfferSlots(JobID(job_id), info.resource_id, (SlotOffer(allocation, 0),)))
            stub = cluster_pb2_grpc.JobMasterGatewayStub(channel)
            envelopes = (encode_envelope(session, [message]) for message in iter(said.get, None))
            told: list[Any] = []
            for envelope in stub.Connect(envelopes, metadata=security.metadata):
                told += decode_envelope(envelope)[1]
                if len(told) > 1:
                    break
            said.put(None)
        assert told[1:] == [SlotOffersAnswered(JobID(job_id), (), (allocation,))]
        log, line = cluster.logs / "coordinator.log", "it names a slot that no coordinator has given to the job on it"
        wait_until(lambda: line in log.read_text(), "the line about it, which comes behind the answer")
    finally:
        cluster.cancel(job_id)


def idle_until(mark: Path) -> Any:
    """A function that does not come back before the file is there."""
    name = str(mark)

    def wait_there(row: dict[str, Any]) -> dict[str, Any]:
        while not Path(name).exists():
            time.sleep(0.01)
        return row

    return wait_there


def test_a_client_for_one_job_sees_no_thread_and_no_line_of_another(cluster: LocalCluster, tmp_path: Path) -> None:
    """Two jobs of the same program share a TaskManager: of its threads only those of the tasks of the one are shown, as
    well to explain that one; and of what the process writes and keeps, which is everybody's, nothing."""
    jobs = []
    for name in ("mine", "theirs"):
        env = cluster.environment(parallelism=1)
        env.from_collection([{"n": 1}]).map(idle_until(tmp_path / "over"), uid="waits").print()
        jobs.append(cluster.submit(env, name))
    mine, theirs = jobs

    def threads_of(client: ClusterClient, job_id: str) -> set[tuple[int, bool]]:
        stacks = [stack for dump in client.dump_threads(job_id=job_id).dumps for stack in dump.stacks]
        at_work = [any("wait_there" in frame for frame in stack.frames) for stack in stacks]
        return {(sum(at_work), all(stack.HasField("attempt_id") for stack in stacks))}

    try:
        for job_id in jobs:
            cluster.wait_for(job_id, JobStatus.RUNNING)
        wait_until(lambda: threads_of(cluster.client, mine) == {(2, False)}, "both jobs to be in their function")
        token = sign_credential(secret(), Identity(Role.CLIENT, job=mine))
        with ClusterClient(cluster.address, Security(token)) as client:
            assert threads_of(client, mine) == {(1, True)}
            wait_until(lambda: "wait_there" in client.explain_job(mine).summary, "an explanation")
            for shared in ({"log_lines": 10}, {"heap": True}):
                with pytest.raises(RequestRefused, match=f"for job {mine} only, and .* those of other jobs"):
                    client.dump_threads(job_id=mine, **shared)
            with pytest.raises(RequestRefused, match=f"for job {mine} only"):
                client.dump_threads(job_id=theirs)
        for command in ("status", "why", "checkpoints", "stack"):
            for job_id, code in ((mine, 0), (theirs, 1)):
                with pytest.raises(SystemExit) as ended:
                    main([command, job_id, "-m", cluster.address, "--token", token])
                assert (command, code) == (command, ended.value.code)
    finally:
        (tmp_path / "over").touch()
    for job_id in jobs:
        cluster.wait_for(job_id, JobStatus.FINISHED)
