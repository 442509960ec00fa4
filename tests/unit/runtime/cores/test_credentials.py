"""What a credential proves, and what each role may do with it."""

from __future__ import annotations

from typing import Any

import pytest

from snapline.dataflow.ids import CheckpointID, ExecutionAttemptID, JobID, JobVertexID, ResourceID
from snapline.dataflow.wire.messages import (
    AcknowledgeCheckpoint,
    DeclareRequiredSlots,
    RegisterTaskExecutor,
    RegisterTaskExecutorAtJobMaster,
    SlotReport,
    TaskManagerInfo,
)
from snapline.protos import client_pb2 as pb
from snapline.protos import cluster_pb2, external_pb2, relay_pb2
from snapline.runtime.cores.credentials import (
    ADMINISTRATOR,
    MARK,
    CredentialRefused,
    Identity,
    Role,
    exchange_secret,
    identify,
    is_credential,
    is_signed_by_leaders,
    leaders_public_key,
    sign_credential,
    sign_for_leaders,
    split_tokens,
)
from snapline.runtime.cores.message_permissions import refuse_messages
from snapline.runtime.cores.permissions import refuse_call, refuse_request
from snapline.taskmanager.__main__ import main as task_manager_main

SECRET = "the secret of the cluster"
SERVICES = [
    service
    for module in (pb, cluster_pb2, external_pb2, relay_pb2)
    for service in module.DESCRIPTOR.services_by_name.values()
]
CLIENT, LAUNCHER, ANY_WORKER = (Identity(role) for role in (Role.CLIENT, Role.LAUNCHER, Role.TASK_MANAGER))
OF_JOB = Identity(Role.CLIENT, job="job-1")
WORKER = Identity(Role.TASK_MANAGER, name="tm-1")


@pytest.mark.parametrize(
    "identity", [CLIENT, LAUNCHER, ANY_WORKER, OF_JOB, WORKER, Identity(Role.EXTERNAL, "job-1", "", 99)]
)
def test_a_credential_says_who_shows_it(identity: Identity) -> None:
    """To whoever has the secret that it was made from, among others; the secret itself is the administrator's."""
    credential = sign_credential(SECRET, identity)

    assert identity == identify(["new", SECRET], credential, now_s=98)
    assert ADMINISTRATOR == identify(["new", SECRET], SECRET, now_s=0)
    assert credential == sign_credential(credential, ADMINISTRATOR), "what is a credential cannot be made another one"
    assert SECRET not in credential


def test_nobody_can_change_a_credential_or_make_one_of_another_secret() -> None:
    """Each sign of what it says is changed in turn; one that has ended, or that was cut short, is none either."""
    credential = sign_credential(SECRET, Identity(Role.EXTERNAL, "job-1", expires_s=99))
    said = credential.index(":", len("snapline:2:external:job-1:0:")) + 64
    for at in range(said):
        changed = credential[:at] + ("b" if credential[at] != "b" else "c") + credential[at + 1 :]
        with pytest.raises(CredentialRefused):
            identify([SECRET], changed, now_s=0)
    for cut in range(said):
        with pytest.raises(CredentialRefused):
            identify([SECRET], credential[:cut], now_s=0)
    with pytest.raises(CredentialRefused, match="has expired"):
        identify([SECRET], credential, now_s=99)
    with pytest.raises(CredentialRefused, match="not made with this cluster"):
        identify(["another"], credential, now_s=0)
    with pytest.raises(CredentialRefused):
        identify([credential], credential, now_s=0)  # who has only a credential can check none


@pytest.mark.parametrize("role", [Role.LAUNCHER, Role.TASK_MANAGER])
def test_who_starts_task_managers_gives_each_a_credential_for_itself_alone(role: Role) -> None:
    """A launcher for one job handed its own on, with which a function of that job drained TaskManagers of other jobs,
    and said that they had ended. A credential for a name is made of it without the secret; no way leads back."""
    wide = sign_credential(SECRET, Identity(role, job="job-1", expires_s=99))
    worker = sign_credential(wide, WORKER)

    assert Identity(Role.TASK_MANAGER, "job-1", "tm-1", 99) == identify(["new", SECRET], worker, now_s=98)
    assert exchange_secret(worker) == exchange_secret(wide) == exchange_secret(SECRET)
    assert leaders_public_key(worker) == leaders_public_key(wide)
    assert worker == sign_credential(worker, Identity(Role.TASK_MANAGER, name="tm-2")), "it has a name"
    for changed in (
        worker.replace("tm-1", "tm-2"),
        worker.replace("tm-1", ""),
        worker.replace("job-1", "job-2"),
        worker.replace("job-1", ""),
        worker.replace(":99:", ":0:"),
        worker.replace("taskmanager", "client"),
        worker.replace("taskmanager", "launcher"),
        wide.replace("job-1", ""),
        wide.replace(role.value, "client"),
    ):
        with pytest.raises(CredentialRefused):
            identify([SECRET], changed, now_s=0)
    with pytest.raises(CredentialRefused, match="has expired"):
        identify([SECRET], worker, now_s=99)
    with pytest.raises(ValueError, match="no job or name"):
        sign_credential(wide, Identity(Role.TASK_MANAGER, name="a:b"))
    for other in (CLIENT, Identity(Role.EXTERNAL, "job-1")):
        credential = sign_credential(SECRET, other)
        assert credential == sign_credential(credential, WORKER)


def test_a_job_cannot_be_named_so_that_a_credential_says_something_else() -> None:
    """The signs between the parts are refused in them, and so is a credential of the administrator."""
    for job in ("a:b", "a,b", "a\nb", "ä"):
        with pytest.raises(ValueError, match="no job or name"):
            sign_credential(SECRET, Identity(Role.CLIENT, job))
    with pytest.raises(ValueError, match="the secret itself"):
        sign_credential(SECRET, ADMINISTRATOR)


def test_what_processes_share_follows_from_the_secret_and_from_credentials() -> None:
    """TaskManagers with a credential and those that were given the secret understand each other; a client's credential
    opens no exchange."""
    worker, client = sign_credential(SECRET, WORKER), sign_credential(SECRET, CLIENT)

    assert leaders_public_key(SECRET) == leaders_public_key(worker) == leaders_public_key(client)
    assert exchange_secret(SECRET) == exchange_secret(worker)
    assert exchange_secret(client) == ""
    assert ("new", "old") == split_tokens("new\nold\n") == split_tokens("new, old")


def test_a_credential_proves_who_leads_and_signs_nothing() -> None:
    """Each one had the key that the table of leaders is signed with, an expired one of a program outside as well: who
    could also write to ZooKeeper was shown the secret by the next client."""
    credential = sign_credential(SECRET, Identity(Role.EXTERNAL, "job", expires_s=1))
    signature = sign_for_leaders(SECRET, b"table")

    assert is_signed_by_leaders(leaders_public_key(credential), b"table", signature)
    assert not is_signed_by_leaders(leaders_public_key(credential), b"tablf", signature)
    assert not is_signed_by_leaders(leaders_public_key("another"), b"table", signature)
    for forged in (b"", b"short", b"x" * 64, sign_for_leaders(leaders_public_key(credential).hex(), b"table")):
        assert not is_signed_by_leaders(leaders_public_key(SECRET), b"table", forged)
    with pytest.raises(ValueError, match="signs no table of leaders"):
        sign_for_leaders(credential, b"table")


def test_a_credential_of_an_earlier_snapline_is_refused_in_one_line() -> None:
    """It is no secret, whatever it has in its fields."""
    earlier = sign_credential(SECRET, CLIENT).replace(MARK, "snapline:1:")

    assert is_credential(earlier)
    with pytest.raises(
        CredentialRefused, match=r"in security\.auth\.token was made by an earlier Snapline: make another"
    ):
        identify([SECRET], earlier, now_s=0)
    for read in (leaders_public_key, exchange_secret):
        with pytest.raises(ValueError, match="made by an earlier Snapline"):
            read(earlier)


@pytest.mark.parametrize(
    ("given", "why"),
    [
        (MARK + "taskmanager:abc", "was it cut short"),
        ("snapline:1:taskmanager:abc", "made by an earlier Snapline"),
        (sign_credential(SECRET, Identity(Role.TASK_MANAGER)), "no job or name of a credential: 'host:8080'"),
    ],
)
def test_a_task_manager_that_can_have_no_credential_says_so(
    given: str, why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """It ended in a traceback of what makes a credential for its name."""
    arguments = ["--coordinator", "jm:1", "--resource-id", "host:8080", "-D", f"security.auth.token={given}"]

    assert task_manager_main(arguments) == 1
    assert why in capsys.readouterr().err


@pytest.mark.parametrize("key", ["", "zz" * 32, "00" * 31, "00" * 33, "é"])
def test_a_credential_whose_key_is_none_was_cut_short(key: str) -> None:
    """It is told so where it is read, and not when somebody leads."""
    parts = sign_credential(SECRET, CLIENT).split(":")
    parts[-2] = key

    with pytest.raises(ValueError, match="begins like a credential and is none"):
        leaders_public_key(":".join(parts))


@pytest.mark.parametrize(
    ("identity", "allowed", "refused"),
    [
        (ADMINISTRATOR, "ClientService/SubmitJob", ""),
        (CLIENT, "ClientService/SubmitJob", "ResourceManagerGateway/Connect"),
        (CLIENT, "ExternalTasks/Participate", "RelayGateway/Carry"),
        (WORKER, "LeaderRetrieval/Watch", "ExternalTasks/Participate"),
        (LAUNCHER, "LeaderRetrieval/Watch", "ExternalTasks/Participate"),
        (WORKER, "ResourceManagerGateway/Connect", "ClientService/SubmitJob"),
        (WORKER, "ClientService/ListTaskManagers", "ClientService/ReportWorkers"),
        (WORKER, "JobMasterGateway/Connect", "RelayGateway/Carry"),
        (ANY_WORKER, "ClientService/ListTaskManagers", "ClientService/ReportWorkers"),
        (ANY_WORKER, "ResourceManagerGateway/Connect", "ClientService/DrainTaskManager"),
        (LAUNCHER, "ClientService/ReportWorkers", "ClientService/CancelJob"),
        (LAUNCHER, "ClientService/DrainTaskManager", "ClientService/Rescale"),
        (LAUNCHER, "ClientService/ListTaskManagers", "ResourceManagerGateway/Connect"),
        (WORKER, "ClientService/ListTaskManagers", "ClientService/DrainTaskManager"),
        (Identity(Role.RELAY), "RelayGateway/Carry", "JobMasterGateway/Connect"),
        (Identity(Role.JOB_MASTER), "ResourceManagerGateway/Connect", "JobMasterGateway/Connect"),
        (Identity(Role.EXTERNAL), "ExternalTasks/Participate", "ClientService/ListJobs"),
    ],
)
def test_a_role_calls_what_it_needs_and_nothing_else(identity: Identity, allowed: str, refused: str) -> None:
    """Looked up by the method, before a request is read."""
    assert "" == refuse_call(identity, path_of(allowed))
    if refused:
        assert f"may not call {refused}" in refuse_call(identity, path_of(refused))


def path_of(called: str) -> str:
    """The path of a method (`Service/Method`), with the package that its service is declared in."""
    service, _, method = called.partition("/")
    [declared] = (each for each in SERVICES if each.name == service)
    return f"/{declared.full_name}/{declared.methods_by_name[method].name}"


def test_who_is_refused_hears_who_may() -> None:
    """A launcher that was given a TaskManager's credential is told which one it needs."""
    refusal = refuse_call(ANY_WORKER, path_of("ClientService/ReportWorkers"))

    assert refusal.endswith("a client's credential or a launcher's credential or the token of the administrator may")


def test_every_service_is_somebodys() -> None:
    """A service that no role may call would be the administrator's alone, and one that is new is closed, in whichever
    package: each role took part in jobs as a program outside, whose service is in another package than all others."""
    for service in SERVICES:
        path = f"/{service.full_name}/{service.methods[0].name}"
        may = [role for role in Role if role is not Role.ADMINISTRATOR and not refuse_call(Identity(role), path)]
        assert 1 <= len(may) < 5, path
    assert refuse_call(CLIENT, "/snapline.v1.NewService/Do")
    assert refuse_call(CLIENT, "/snapline.new.v1.NewService/Do")
    assert "" == refuse_call(CLIENT, "/grpc.health.v1.Health/Check")


def test_who_acts_for_one_job_asks_about_no_other() -> None:
    """Nor about all of them."""
    assert "" == refuse_request(OF_JOB, pb.CancelJobRequest(job_id="job-1"))
    assert "for job job-1 only" in refuse_request(OF_JOB, pb.CancelJobRequest(job_id="job-2"))
    assert "about all jobs" in refuse_request(OF_JOB, pb.ListJobsRequest())
    assert "about all jobs" in refuse_request(OF_JOB, pb.SubmitJobRequest())
    assert "serve others as well" in refuse_request(OF_JOB, pb.DumpThreadsRequest(job_id="job-1", log_level="debug"))
    for shared in ({"log_lines": 10}, {"heap": True}):
        assert "those of other jobs" in refuse_request(OF_JOB, pb.DumpThreadsRequest(job_id="job-1", **shared))
        assert "" == refuse_request(CLIENT, pb.DumpThreadsRequest(job_id="job-1", **shared))
    assert "" == refuse_request(OF_JOB, pb.DumpThreadsRequest(job_id="job-1"))
    assert "" == refuse_request(CLIENT, pb.ListJobsRequest())


def _refused(identity: Identity, message: Any) -> str:
    return refuse_messages(identity, [message])


def test_a_task_manager_speaks_for_itself() -> None:
    """Not for another resource id, not as a JobMaster, and for one job only where its credential says so."""
    other = TaskManagerInfo(ResourceID("tm-2"), "", 1, "", "", 1)

    assert "of tm-2" in _refused(WORKER, RegisterTaskExecutor(other))
    assert "of tm-2" in _refused(WORKER, SlotReport(ResourceID("tm-2"), ()))
    assert "" == _refused(WORKER, SlotReport(ResourceID("tm-1"), ()))
    assert "" == _refused(ANY_WORKER, RegisterTaskExecutor(other))
    assert "JobMasters do" in _refused(ANY_WORKER, DeclareRequiredSlots(JobID("job-2"), 1))
    assert "" == _refused(Identity(Role.JOB_MASTER), DeclareRequiredSlots(JobID("job-2"), 1))
    for role in (Role.JOB_MASTER, Role.LAUNCHER):
        assert "may not register" in _refused(Identity(role), RegisterTaskExecutor(other))
    at_job_master = RegisterTaskExecutorAtJobMaster(JobID("job-2"), other)
    assert "of job job-2" in _refused(Identity(Role.TASK_MANAGER, "job-1", "tm-2"), at_job_master)
    assert "of job job-2" in _refused(Identity(Role.EXTERNAL, "job-1"), at_job_master)


def test_every_message_of_an_envelope_is_looked_at() -> None:
    """The one that lies is found behind those that do not, and so is an acknowledgement of another job."""
    attempt = ExecutionAttemptID("graph", JobVertexID("a" * 32), 0, 0)
    of_job_1, of_job_2 = (AcknowledgeCheckpoint(JobID(f"job-{n}"), attempt, CheckpointID(1)) for n in (1, 2))
    worker = Identity(Role.TASK_MANAGER, "job-1", "tm-1")

    assert "" == refuse_messages(worker, [of_job_1, SlotReport(ResourceID("tm-1"), ()), of_job_1])
    assert "of job job-2" in refuse_messages(worker, [of_job_1, of_job_2])
    assert "of tm-2" in refuse_messages(WORKER, [of_job_1, of_job_2, SlotReport(ResourceID("tm-2"), ())])
    assert "" == refuse_messages(ADMINISTRATOR, [of_job_1, of_job_2, SlotReport(ResourceID("tm-2"), ())])
