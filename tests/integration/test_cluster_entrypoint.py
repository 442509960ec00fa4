"""A whole coordinator inside the test's process: what it serves besides streams, and that nothing of it stays."""

from __future__ import annotations

import io
import json
import subprocess
import sys
import threading
import urllib.request
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from snapline.client import ClusterClient, CoordinatorUnreachable, RequestRefused
from snapline.coordinator import cluster_entrypoint
from snapline.coordinator.__main__ import EXIT_REPLACED
from snapline.coordinator.actors.job_master_runner import JobMasterRunner
from snapline.coordinator.cluster_entrypoint import ClusterEntrypoint
from snapline.coordinator.coordinator_config import CoordinatorConfig
from snapline.coordinator.coordinator_process import CoordinatorProcess
from snapline.coordinator.dispatcher.effects import StoreJobGraph
from snapline.coordinator.dispatcher.events import DispatcherSuspended
from snapline.coordinator.ha.embedded import EmbeddedHighAvailability
from snapline.coordinator.ha.job_archive import JobArchive
from snapline.coordinator.io import TookTooLong
from snapline.dataflow.config import Configuration, ConfigurationError
from snapline.dataflow.graph.jobgraph import JobGraph, JobVertex, OperatorNode
from snapline.dataflow.ids import JobID, JobVertexID, LeaderSessionID, OperatorID
from snapline.dataflow.wire.codec import decode_job_status
from snapline.dataflow.wire.messages import JobStatus
from snapline.protos import client_pb2 as pb
from snapline.protos import job_pb2
from snapline.runtime.clock import SystemClock
from snapline.runtime.logs import make_logger
from snapline.runtime.rpc.security import Security
from snapline.runtime.storage.object_storage import open_storage
from snapline.runtime.storage.storage_port import StorageError
from tests.services.cluster import wait_until

ROOT = Path(__file__).resolve().parents[2]


def waiting_job(name: str = "waits", parallelism: int = 3) -> JobGraph:
    """It never runs: there are no TaskManagers."""
    operator = OperatorNode(OperatorID("o" * 32), "source", "source", b"", is_source=True)
    vertex = JobVertex(JobVertexID("v" * 32), "source", parallelism, 128, (operator,))
    return JobGraph(JobID(f"{name:a<32}"), name, (vertex,), ())


def entrypoint(log, settings, bind="127.0.0.1:0"):
    config = CoordinatorConfig(bind, Configuration(settings), metrics_port=0)
    return ClusterEntrypoint(config, make_logger("coordinator", stream=log), on_fatal=lambda: None)


class InProcess:
    def __init__(self, tmp_path, *, high_availability=False):
        self.log = io.StringIO()
        settings = {"execution.checkpointing.dir": str(tmp_path)}
        if high_availability:
            settings |= {"high-availability.type": "embedded", "high-availability.storageDir": str(tmp_path / "ha")}
        self.entrypoint = entrypoint(self.log, settings)
        self.client = ClusterClient(self.entrypoint.start(), Security())

    def said(self, message):
        lines = [json.loads(line) for line in self.log.getvalue().splitlines()]
        return next(line["context"] for line in lines if line["msg"] == message)

    def stop(self):
        self.client.close()
        self.entrypoint.stop()


@pytest.fixture
def cluster(tmp_path):
    cluster = InProcess(tmp_path)
    yield cluster
    cluster.stop()


def test_a_job_without_slots_says_what_is_missing(cluster):
    """Required and there, to clients and to Prometheus, under Flink's names."""
    job_id = cluster.client.submit(waiting_job())
    overview = cluster.client.get_job(job_id).overview
    assert decode_job_status(overview.status) is JobStatus.CREATED
    port = cluster.said("metrics are served")["port"]
    resources = cluster.client.required_resources()
    while resources.required_slots != 3:  # the JobMaster registers with the ResourceManager
        resources = cluster.client.required_resources()
    assert (resources.registered_slots, resources.registered_task_managers) == (0, 0)
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=20) as answer:
        text = answer.read().decode()
    assert "snapline_jobmanager_taskSlotsTotal 0.0" in text
    assert f'snapline_jobmanager_job_createdState{{job_id="{job_id}",job_name="waits"}} 1.0' in text
    assert "snapline_jobmanager_job_numberOfCompletedCheckpoints_total" in text


def metrics_of(cluster):
    """What Prometheus would see now."""
    port = cluster.said("metrics are served")["port"]
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=20) as answer:
        return answer.read().decode()


def test_a_job_that_has_ended_stays_in_the_metrics(cluster):
    """An alert on a job that has failed needs a figure to fire on."""
    job_id = cluster.client.submit(waiting_job())
    cluster.client.cancel(job_id)
    assert list(cluster.client.watch_job(job_id))
    text = metrics_of(cluster)
    assert f'snapline_jobmanager_job_canceledState{{job_id="{job_id}",job_name="waits"}} 1.0' in text
    assert f'snapline_jobmanager_job_runningState{{job_id="{job_id}",job_name="waits"}} 0.0' in text


def test_requests_are_in_the_log_with_who_asked(cluster):
    """One line for each: submission and cancellation, done or refused."""
    job_id = cluster.client.submit(waiting_job())
    cluster.client.cancel(job_id)
    with pytest.raises(RequestRefused):
        cluster.client.submit(waiting_job(parallelism=2))
    lines = [json.loads(line) for line in cluster.log.getvalue().splitlines()]
    requests = [line["context"] for line in lines if line["logger"] == "audit"]
    assert [(each["request"], each["outcome"].partition(":")[0]) for each in requests] == [
        ("submit", "done"),
        ("cancel job", "done"),
        ("submit", "refused"),
    ]
    assert all("@" in each["who"] and each["job_id"] == job_id for each in requests)


def test_jobs_are_listed_in_pages(cluster):
    """No page is larger than asked, and all of them together are all jobs, whatever ends meanwhile."""
    jobs = [
        cluster.client.submit(JobGraph(JobID(f"{n:032d}"), f"job {n}", waiting_job().vertices, ())) for n in range(5)
    ]
    pages, token = [], ""
    while True:
        page = cluster.client.list_page(page_size=2, page_token=token)
        pages.append([job.job_id for job in page.jobs])
        token = page.next_page_token
        if not token:
            break
    assert [len(page) for page in pages] == [2, 2, 1]
    assert sorted(job_id for page in pages for job_id in page) == jobs
    with pytest.raises(RequestRefused, match="page_token 'nonsense' is none of this service"):
        cluster.client.list_page(page_size=2, page_token="nonsense")


def test_a_savepoint_can_be_asked_for_afterwards(cluster):
    """Under the id that the client has chosen, whoever has waited for it."""
    job_id = cluster.client.submit(waiting_job())
    with pytest.raises(RequestRefused, match="no savepoint was asked for as 'mine'"):
        cluster.client.get_savepoint(job_id, "mine")
    trigger_id = cluster.client.begin_savepoint(job_id, "/nowhere", trigger_id="mine")
    operation = cluster.client.get_savepoint(job_id, trigger_id)
    while operation.status == pb.CHECKPOINT_STATUS_IN_PROGRESS:
        operation = cluster.client.get_savepoint(job_id, trigger_id)
    assert (trigger_id, operation.status) == ("mine", pb.CHECKPOINT_STATUS_FAILED)
    assert "Not all required tasks are currently running" in operation.result.failure.message


def test_a_job_that_waits_can_be_cancelled(cluster):
    """And is remembered with its last state."""
    job_id = cluster.client.submit(waiting_job())
    cluster.client.cancel(job_id)
    details = list(cluster.client.watch_job(job_id))[-1]
    assert decode_job_status(details.overview.status) is JobStatus.CANCELED
    assert [job.job_id for job in cluster.client.list_jobs()] == [job_id]
    assert cluster.client.overview().jobs_ended == 1


def test_a_job_whose_job_master_cannot_be_built_leaves_nothing_behind(cluster):
    """The coordinator kept its JobMaster, and waited five seconds for it when it stopped; and what the user has to mend
    was called a defect."""
    job_id = cluster.client.submit(replace(waiting_job(), master_hooks=(b"no pickle",)))
    failed = list(cluster.client.watch_job(job_id))[-1].overview
    assert decode_job_status(failed.status) is JobStatus.FAILED
    assert "cannot be unpickled in the coordinator" in failed.failure.summary
    assert failed.failure.blame == job_pb2.BLAME_USER
    wait_until(lambda: not cluster.entrypoint._runners, "the JobMaster is forgotten")
    assert cluster.entrypoint._no_runners.is_set()


def test_a_job_that_was_given_up_has_failed_for_alerts_and_for_the_next_leader(tmp_path):
    """No alert saw that a job had failed whose JobMaster could not be built, and the next leader knew of no such
    job."""
    cluster = InProcess(tmp_path, high_availability=True)
    try:
        job_id = cluster.client.submit(replace(waiting_job(), master_hooks=(b"no pickle",)))
        (*_, failed) = cluster.client.watch_job(job_id)
        figure = f'failedState{{job_id="{job_id}",job_name="waits"}} 1.0'
        wait_until(lambda: figure in metrics_of(cluster), "its figure")
        assert "snapline_jobmanager_failedJobs_total 1.0" in metrics_of(cluster)
        graphs = cluster.entrypoint._high_availability.job_graphs
        wait_until(lambda: not graphs.load().graphs, "its graph is gone")
    finally:
        cluster.stop()
    after = InProcess(tmp_path, high_availability=True)
    try:
        assert after.client.get_job(job_id) == failed
        assert [job.job_id for job in after.client.list_jobs()] == [job_id]
    finally:
        after.stop()


def test_what_cannot_be_accepted_is_refused_in_one_line(cluster):
    """A name that is taken, a graph that cannot run."""
    first = waiting_job()
    assert cluster.client.submit(first) == cluster.client.submit(first), "asked again, it is the same submission"
    second = waiting_job("waits", parallelism=2)
    for graph, error in (
        (JobGraph(JobID("b" * 32), "waits", second.vertices, ()), "a job named 'waits' is here already"),
        (second, "was submitted before, with another graph"),
        (JobGraph(JobID("c" * 32), "empty", (), ()), "job 'empty' has no vertices"),
    ):
        with pytest.raises(RequestRefused, match=error) as refused:
            cluster.client.submit(graph)
        assert "\n" not in str(refused.value)


def test_a_submission_that_was_given_up_stores_nothing_later(cluster, monkeypatch):
    """Its client was told so and submits it once more, under another id: a later leader would run both."""
    submitted = []

    class Lane:
        def submit(self, name, work, tell, failed):
            submitted.append((work, failed))

    monkeypatch.setattr(cluster.entrypoint._io, "lane", lambda _: Lane())
    cluster.entrypoint._store_job_graph(StoreJobGraph(waiting_job()))
    ((work, failed),) = submitted
    assert not failed(TookTooLong("its storage has not answered")).user_can_mend
    assert work() is None  # the storage answers after all
    assert cluster.entrypoint._high_availability.job_graphs.load().graphs == ()


def test_a_stopped_coordinator_leaves_nothing(tmp_path):
    """No thread, no actor, no port; again and again. (The fixture of all tests looks.)"""
    for _ in range(3):
        cluster = InProcess(tmp_path)
        cluster.client.submit(waiting_job())
        cluster.stop()
        assert cluster.entrypoint.fatal_error == ""


@pytest.mark.parametrize(
    ("where", "step", "patience_s"),
    [(ClusterEntrypoint, "_start_job_master", 60.0), (JobMasterRunner, "_build", 0.05)],
    ids=["starts", "builds"],
)
def test_a_coordinator_that_is_stopped_while_it_takes_its_jobs_over_breaks_nothing(
    tmp_path, monkeypatch, where, step, patience_s
):
    """Whether it has just begun with a job's JobMaster, or builds it and takes longer than the stop waits: no error is
    logged, and the next coordinator has the job."""
    monkeypatch.setattr(cluster_entrypoint, "SUSPEND_TIMEOUT_SECONDS", patience_s)
    settings = {"high-availability.type": "embedded", "high-availability.storageDir": str(tmp_path / "ha")}
    first = entrypoint(io.StringIO(), settings)
    with ClusterClient(first.start(), Security()) as client:
        job_id = client.submit(waiting_job())
    first.stop()

    began, goes_on, held = threading.Event(), threading.Event(), getattr(where, step)

    def hold(self, argument):
        began.set()
        goes_on.wait()
        held(self, argument)

    monkeypatch.setattr(where, step, hold)
    log = io.StringIO()
    second = entrypoint(log, settings)
    second.start()
    began.wait()
    stopping = threading.Thread(target=second.stop)
    stopping.start()
    inbox, loop = second._dispatcher.actor_inbox, second._server.loop
    wait_until(lambda: inbox.qsize() > 1 or second._io._closed or loop.is_closed(), "the stop to wait, or to go on")
    goes_on.set()
    stopping.join()
    monkeypatch.undo()
    assert [line["msg"] for line in map(json.loads, log.getvalue().splitlines()) if line["level"] == "ERROR"] == []

    third = entrypoint(io.StringIO(), settings)
    with ClusterClient(third.start(), Security()) as client:
        assert [job.job_id for job in client.list_jobs()] == [job_id]
    third.stop()


def test_a_coordinator_that_stops_is_not_believed_to_have_no_jobs(cluster):
    """An update whose old version had just stopped was refused its new one for good, and ended with neither running;
    and a TaskManager seemed to be drained, because no job was listed."""
    cluster.client.submit(waiting_job())
    cluster.entrypoint._dispatcher.tell(DispatcherSuspended("it stops"))
    for ask in (cluster.client.list_jobs, cluster.client.overview, lambda: cluster.client.submit(waiting_job("new"))):
        with pytest.raises(CoordinatorUnreachable, match="this coordinator stands by"):
            ask()


def test_who_watches_a_job_goes_on_watching_when_the_leader_stops_and_the_next_one_begins(tmp_path):
    """A program that waits for its job ended with "there is no job" in a rolling upgrade, while the job went on."""
    settings = {"high-availability.type": "embedded", "high-availability.storageDir": str(tmp_path / "ha")}
    first = entrypoint(io.StringIO(), settings)
    address = first.start()
    seen: list[Any] = []
    with ClusterClient(address, Security()) as client:
        job_id = client.submit(waiting_job())

        def watch():
            try:
                seen.extend(details.overview.status for details in client.watch_job(job_id))
            except (RequestRefused, CoordinatorUnreachable) as error:
                seen.append(error)

        watcher = threading.Thread(target=watch)
        watcher.start()
        wait_until(lambda: bool(seen), "the watcher sees the job")
        first.stop()
        second = entrypoint(io.StringIO(), settings, address)
        second.start()
        with ClusterClient(address, Security()) as other:
            other.cancel(job_id)
        watcher.join()
    second.stop()
    assert seen[-1] == job_pb2.JOB_STATUS_CANCELED


def test_the_resource_manager_of_another_coordinator_is_not_our_own(tmp_path):
    """A coordinator that is told to use its own ResourceManager as another one's would wait for itself."""
    before = InProcess(tmp_path)
    address = before.client.address
    before.stop()
    ours = entrypoint(io.StringIO(), {"resourcemanager.rpc.address": address}, address)
    try:
        with pytest.raises(ConfigurationError, match="names this coordinator itself"):
            ours.start()
    finally:
        ours.stop()


def test_a_coordinator_that_was_replaced_in_its_directory_ends(tmp_path):
    """As soon as it is to write, with an exit code of its own: whoever supervises it must not start it again."""
    settings = {"high-availability.type": "embedded", "high-availability.storageDir": str(tmp_path / "ha")}
    options = [argument for key, value in settings.items() for argument in ("-D", f"{key}={value}")]
    command = [sys.executable, "-m", "snapline.coordinator", "--bind", "127.0.0.1:0", *options]
    first = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=ROOT, text=True)
    assert first.stdout is not None
    address = first.stdout.readline().split()[-1]
    second = CoordinatorProcess.start(settings=settings)
    client = ClusterClient(address, Security())
    try:
        with pytest.raises((RequestRefused, CoordinatorUnreachable)):  # it may end before it answers
            client.submit(waiting_job())
        _, errors = first.communicate(timeout=60)
    finally:
        client.close()
        second.stop()
    assert first.returncode == EXIT_REPLACED
    assert errors.splitlines()[-1].startswith("coordinator: another coordinator (session ")


def test_a_coordinator_leads_and_ends_although_the_disk_below_its_output_is_full(tmp_path):
    """A full disk below its log kept it from starting, and a standby from taking over."""
    with Path("/dev/full").open("w") as full:
        command = [sys.executable, "-m", "snapline.coordinator", "--bind=127.0.0.1:0", "-Dweb.port=-1"]
        command += [f"--checkpoint-dir={tmp_path}", f"--address-file={tmp_path / 'address'}"]
        coordinator = subprocess.Popen(command, stdout=full, stderr=full, cwd=ROOT)
        try:
            wait_until((tmp_path / "address").exists, what="the coordinator listens")
            with ClusterClient((tmp_path / "address").read_text().strip(), Security()) as client:
                assert client.list_jobs() == []
        finally:
            coordinator.terminate()
            coordinator.wait()
        assert coordinator.returncode == 0


def test_a_coordinator_ends_whichever_of_its_threads_the_signal_comes_to(tmp_path):
    """Its main thread waited for an end without looking up, and now and then led on although it had been told to end:
    on another thread, or on its own one in the moment before the wait."""
    program = f"""
import signal, sys, threading
from pathlib import Path
from snapline.coordinator.__main__ import main
from tests.services.cluster import wait_until

def end():
    frames, leader = sys._current_frames, threading.main_thread().ident
    wait_until(Path({str(tmp_path / "address")!r}).exists, "it listens")
    wait_until(lambda: frames()[leader].f_code.co_filename == threading.__file__, "it waits")
    signal.pthread_kill(threading.get_ident(), signal.SIGTERM)

threading.Thread(target=end).start()
sys.exit(main(["--bind=127.0.0.1:0", "-Dweb.port=-1", "--address-file={tmp_path / "address"}"]))
"""
    subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=True, timeout=60)


def test_a_job_that_runs_again_is_not_shown_as_it_ended(tmp_path, monkeypatch):
    """Its leader died after the job was archived, and before its graph was gone; the next one opens its stores late."""
    storage = open_storage(str(tmp_path / "ha"), Configuration({}))
    graph, other = waiting_job(), waiting_job("other")
    EmbeddedHighAvailability(storage, LeaderSessionID("first"), durable=True).job_graphs.put(graph)
    for each in (graph, other):
        overview = pb.JobOverview(job_id=each.job_id, name=each.name, status=job_pb2.JOB_STATUS_FINISHED)
        archived = pb.ArchivedJob(details=pb.JobDetails(overview=overview))
        JobArchive(storage, 10, 0).put(archived, SystemClock().now_ms())

    def away(*_):
        raise StorageError("away")

    monkeypatch.setattr(EmbeddedHighAvailability, "open_job", away)
    settings = {"high-availability.type": "embedded", "high-availability.storageDir": str(tmp_path / "ha")}
    coordinator = entrypoint(io.StringIO(), settings)
    try:
        with ClusterClient(coordinator.start(), Security()) as client:
            wait_until(lambda: any(job.job_id == other.job_id for job in client.list_page(page_size=9).jobs), "archive")
            assert decode_job_status(client.get_job(graph.job_id).overview.status) is JobStatus.CREATED
    finally:
        coordinator.stop()


@pytest.mark.parametrize("bind_host", ["127.0.0.1", "*"])
def test_metrics_are_served_where_the_coordinator_listens(bind_host):
    """Where its address is not one of its machine, as behind mapped ports, it did not start with metrics."""
    log = io.StringIO()
    coordinator = entrypoint(
        log, {"jobmanager.bind-host": bind_host, "security.auth.token": "0123456789abcdef"}, "192.0.2.7:0"
    )
    try:
        coordinator.start()
        port = next(
            json.loads(line)["context"]["port"] for line in log.getvalue().splitlines() if "metrics are" in line
        )
        asked = urllib.request.Request(
            f"http://127.0.0.1:{port}/metrics", headers={"Authorization": "Bearer 0123456789abcdef"}
        )
        with urllib.request.urlopen(asked, timeout=20) as answer:
            assert b"snapline_jobmanager_isLeader 1.0" in answer.read()
    finally:
        coordinator.stop()
