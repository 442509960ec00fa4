"""Coordinator and TaskManagers as real processes over real gRPC: jobs run, survive kills, stop and start again."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pyarrow.parquet as pq
import pytest

import snapline as sl
from snapline.client import ClusterClient, CoordinatorUnreachable, JobFailed, RequestRefused
from snapline.connectors.builtin.generator import GeneratorSource
from snapline.connectors.builtin.sinks import DiscardingSink
from snapline.connectors.parquet.parquet_sink import ParquetSink
from snapline.coordinator.coordinator_process import CoordinatorProcess, CoordinatorStartError
from snapline.dataflow.wire.codec import decode_job_status
from snapline.dataflow.wire.messages import JobStatus
from snapline.runtime.rpc.security import Security
from tests.services.cluster import LocalCluster
from tests.services.gate import GatedGenerator

ROOT = Path(__file__).resolve().parents[2]
KEYS = 50
RATE = 20_000.0


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    with LocalCluster(tmp_path_factory.mktemp("cluster"), slots=(2, 2)) as cluster:
        yield cluster


def sums(cluster, output, *, rows, gate=None, parallelism=2, sink=None, **settings):
    """Sum and count per key after every row, to Parquet. With a gate the job cannot end before it is open."""
    environment = cluster.environment(parallelism, **settings)
    source = GeneratorSource(keys=KEYS, rows=rows, batch_rows=500, splits=8)
    if gate is not None:
        source = GatedGenerator(gate, keys=KEYS, rows=rows, rows_per_second=RATE, batch_rows=500, splits=8)
    stream = environment.from_source(source, uid="generator").key_by("key")
    result = stream.running_aggregate(uid="sums", total=sl.sum("value"), n=sl.count())
    result.sink_to(sink or ParquetSink(str(output)), uid="sink")
    return environment


def status_of(details):
    return decode_job_status(details.overview.status)


def assert_exactly_once(output: Path, rows: int):
    """Every key has counted 1, 2, 3, ... without a hole or a repetition."""
    found = pq.read_table(output).to_pylist()
    assert len(found) == rows
    counted = Counter((row["key"], row["n"]) for row in found)
    assert set(counted.values()) == {1}
    highest = Counter(row["key"] for row in found)
    assert {row["key"]: row["n"] for row in sorted(found, key=lambda row: row["n"])} == dict(highest)


def test_a_bounded_job_runs_to_its_end(cluster, tmp_path):
    """Output complete, and the last counters are there although their tasks are gone."""
    job_id = cluster.submit(sums(cluster, tmp_path / "out", rows=20_000), "bounded")
    details = cluster.client.wait(job_id)
    assert_exactly_once(tmp_path / "out", 20_000)
    read = sum(subtask.records_out for subtask in details.vertices[0].subtasks)
    assert read == 20_000
    assert details.overview.restarts == 0
    assert dict(details.overview.subtasks_by_state) == {"FINISHED": 4}


def test_a_breakpoint_on_a_cluster_is_one_line_that_says_where_it_works(cluster):
    """The job ends at the first one, although failures are restarted: no terminal will be there the next time."""

    def looked_at(row):
        breakpoint()  # noqa: T100 - what is tested
        return row

    environment = cluster.environment(1)
    environment.from_collection([{"n": 1}]).map(looked_at).sink_to(DiscardingSink(), uid="sink")
    details = cluster.wait_for(cluster.submit(environment, "breakpoint"), JobStatus.FAILED)
    assert "breakpoint() was reached in a TaskManager, which has no terminal" in details.overview.failure.summary
    assert details.overview.restarts == 0


@pytest.mark.slow
@pytest.mark.parametrize("which", [pytest.param(0, marks=pytest.mark.rare), 1])
def test_a_killed_task_manager_costs_nothing(tmp_path, which):
    """Kill -9 of the process that runs a subtask of the source, or of the sink, between two checkpoints."""
    with LocalCluster(tmp_path / "cluster", slots=(2, 2)) as cluster:
        gate = tmp_path / "gate"
        environment = sums(cluster, tmp_path / "out", rows=60_000, gate=gate, parallelism=3)
        job_id = cluster.submit(environment, f"killed {which}")
        cluster.wait_for_checkpoints(job_id, 2)
        details = cluster.client.get_job(job_id)
        cluster.on(details.vertices[which].subtasks[0].resource_id).kill()
        cluster.start_task_manager()
        cluster.follow(job_id, lambda details: details.checkpoint_counts.restored >= 1)
        gate.touch()
        details = cluster.client.wait(job_id)
        assert details.overview.restarts >= 1
        assert details.checkpoint_counts.restored >= 1
        assert_exactly_once(tmp_path / "out", 60_000)


@pytest.mark.slow
def test_stop_with_savepoint_and_go_on_at_another_parallelism(cluster, tmp_path):
    """Nothing lost, nothing twice, over the stop and the start."""
    output = tmp_path / "out"
    gate = tmp_path / "gate"
    job_id = cluster.submit(sums(cluster, output, rows=40_000, gate=gate), "to be stopped")
    cluster.wait_for_checkpoints(job_id, 1)
    path = cluster.client.stop_with_savepoint(job_id, str(tmp_path / "savepoints"))
    assert status_of(cluster.client.get_job(job_id)) is JobStatus.FINISHED
    before = pq.read_table(output).num_rows
    assert 0 < before < 40_000
    environment = sums(cluster, output, rows=40_000, gate=gate, parallelism=3)
    environment.restore_from(path)
    gate.touch()
    second = cluster.submit(environment, "started again")
    details = cluster.client.wait(second)
    assert details.checkpoint_counts.restored == 1
    assert_exactly_once(output, 40_000)


def test_checkpoints_savepoints_and_figures_of_a_running_job(cluster, tmp_path):
    """What a client may ask of a job, and what it sees of it."""
    client = cluster.client
    job_id = cluster.submit(sums(cluster, "", rows=None, sink=DiscardingSink()), "endless")
    cluster.wait_for_checkpoints(job_id, 2)
    taken = client.trigger_checkpoint(job_id)
    assert taken.path.startswith(str(cluster.checkpoints)) or taken.path.startswith("file://")
    savepoint = client.trigger_savepoint(job_id, str(tmp_path / "savepoints"))
    assert list((tmp_path / "savepoints").glob("*/_metadata")) == [
        Path(savepoint.removeprefix("file://")) / "_metadata"
    ]
    found = client.list_checkpoints(job_id)
    assert found.latest_savepoint.subtasks_acknowledged == 4
    assert found.counts.completed >= 4
    details = client.get_checkpoint(job_id, found.latest_completed.checkpoint_id)
    assert [len(vertex.subtasks) for vertex in details.vertices] == [2, 2]
    assert all(subtask.acknowledge_timestamp_ms for vertex in details.vertices for subtask in vertex.subtasks)
    assert client.resolve_job("endless") == job_id
    resources = client.required_resources()
    assert (resources.required_slots, resources.registered_slots) == (2, 2 * len(client.list_task_managers()))
    assert client.overview().jobs_running == 1
    client.cancel(job_id)
    with pytest.raises(JobFailed, match="was cancelled"):
        client.wait(job_id)
    assert status_of(client.get_job(job_id)) is JobStatus.CANCELED


def fail_on_late_rows(batch):
    if batch.column("value").to_numpy().sum() >= 0:
        raise ValueError("this row is not to my liking")
    return batch


def test_an_exception_of_the_user_reaches_the_client(cluster):
    """With its traceback, the operator's uid, and where in the input it happened."""
    environment = cluster.environment(1, **{"restart-strategy__type": "none"})
    stream = environment.from_source(GeneratorSource(keys=5, rows=1_000, splits=1), uid="generator")
    stream.map_batches(fail_on_late_rows, uid="picky").sink_to(DiscardingSink(), uid="sink")
    job_id = cluster.submit(environment, "picky")
    with pytest.raises(JobFailed, match="this row is not to my liking") as failed:
        cluster.client.wait(job_id)
    failure = failed.value.failure
    assert failure is not None
    assert failure.operator_uid == "picky"
    assert "fail_on_late_rows" in failure.traceback
    assert failure.position


def test_requests_that_make_no_sense_are_refused_by_name(cluster):
    """One line each, with the way out."""
    client = cluster.client
    for call, error in (
        (lambda: client.get_job("nonsense"), "there is no job 'nonsense' here"),
        (lambda: client.cancel("nonsense"), "there is no job 'nonsense' here"),
        (lambda: client.get_checkpoint("nonsense", 5), "there is no job"),
        (lambda: client.resolve_job("nonsense"), "there is no job with 'nonsense'"),
    ):
        with pytest.raises(RequestRefused, match=error):
            call()


def test_a_checkpoint_directory_that_cannot_be_written_is_refused_at_submission(cluster, tmp_path):
    """Before anything runs, naming the place."""
    taken = tmp_path / "a-file"
    taken.write_text("in the way")
    settings = {"execution__checkpointing__dir": str(taken / "below")}
    with pytest.raises(RequestRefused, match="a-file"):
        cluster.submit(sums(cluster, "", rows=10, sink=DiscardingSink(), **settings), "nowhere to write")


@pytest.mark.slow
def test_a_daemon_that_is_killed_goes_on_with_its_jobs(tmp_path):
    """Kill -9 of the coordinator; its successor finds the jobs, and adopts what still runs; counts in the statistics
    may lag, ids rise."""
    with LocalCluster(tmp_path / "cluster", slots=(2, 2)) as cluster:
        gate = tmp_path / "gate"
        environment = sums(cluster, tmp_path / "out", rows=30_000, gate=gate)
        job_id = cluster.submit(environment, "survivor")
        cluster.wait_for_checkpoints(job_id, 2)
        before = cluster.client.list_checkpoints(job_id).latest_completed.checkpoint_id
        cluster.kill_coordinator()
        cluster.start_coordinator()
        gate.touch()
        cluster.client.wait(job_id)
        assert cluster.client.list_checkpoints(job_id).latest_completed.checkpoint_id > before
        assert_exactly_once(tmp_path / "out", 30_000)


def sleep_for_ever(batch):
    while True:
        time.sleep(1)


@pytest.mark.slow
def test_a_task_that_is_stuck_takes_its_task_manager_down(tmp_path):
    """task.cancellation.timeout: the process ends, hard, and says which task it was."""
    with LocalCluster(tmp_path) as cluster:
        environment = cluster.environment(1, task__cancellation__timeout="500 ms")
        stream = environment.from_source(GeneratorSource(keys=5, splits=1), uid="generator")
        stream.map_batches(sleep_for_ever, uid="stuck").sink_to(DiscardingSink(), uid="sink")
        job_id = cluster.submit(environment, "stuck")
        cluster.follow(job_id, lambda details: status_of(details) is JobStatus.RUNNING)
        cluster.client.cancel(job_id)
        (stuck,) = cluster.task_managers
        assert stuck.process.wait(30) == 70
        assert "do not end, ending the process" in stuck.log.read_text()
        assert status_of(cluster.follow(job_id, lambda d: status_of(d) is JobStatus.CANCELED)) is JobStatus.CANCELED


def test_a_cluster_with_a_secret(tmp_path):
    """TaskManagers and clients that have it work; others are refused by name."""
    with LocalCluster(tmp_path / "cluster", token="open sesame") as cluster:
        job_id = cluster.submit(sums(cluster, tmp_path / "out", rows=1_000, parallelism=1), "secret")
        cluster.client.wait(job_id)
        stranger = ClusterClient(cluster.address, Security())
        with stranger, pytest.raises(RequestRefused, match="does not accept the token"):
            stranger.list_jobs()
        assert all("open sesame" not in log.read_text() for log in cluster.logs.iterdir())


IN_A_WORKER = """
import gc, os, signal, sys
from snapline.spark.daemon import preload
preload(), gc.collect(), gc.freeze()
worker = os.fork()
if worker:
    signal.signal(signal.SIGTERM, lambda *_: os.kill(worker, signal.SIGTERM))
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(worker, 0)[1]))
from snapline.taskmanager.__main__ import main
sys.exit(main())
"""


def test_an_idle_task_manager_is_small(tmp_path):
    """Under 200 MiB resident in a worker of Spark's daemon, which has loaded everything before it forks."""
    with LocalCluster(tmp_path, slots=()) as cluster:
        cluster.start_task_manager(program=("-c", IN_A_WORKER))
        while not (found := cluster.client.list_task_managers()):
            pass
        status = Path(f"/proc/{found[0].pid}/status").read_text()
        resident_kib = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS"))
        assert resident_kib < 200 * 1024


# --- the coordinator as a process -------------------------------------------------------------------------------------


def test_a_sidecar_ends_with_its_parent(tmp_path):
    """Even when the parent is killed."""
    program = (
        "import sys; from snapline.coordinator.coordinator_process import CoordinatorProcess\n"
        "c = CoordinatorProcess.start()\nprint(c.pid, flush=True)\nsys.stdin.read()"
    )
    parent = subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT)
    with parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        assert _runs(pid)
        parent.kill()
    deadline = time.monotonic() + 20
    while _runs(pid) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not _runs(pid)


def test_a_sidecar_is_of_its_parents_session_and_no_key_of_the_terminal_reaches_it():
    """A session of its own would be a scheduling group of its own, which Linux lets wait beside busy TaskManagers."""
    sidecar = CoordinatorProcess.start()
    try:
        assert os.getsid(sidecar.pid) == os.getsid(0)
        assert os.getpgid(sidecar.pid) == sidecar.pid
    finally:
        sidecar.stop()


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def test_why_a_coordinator_does_not_start_is_one_line(tmp_path):
    """Port in use, unknown setting, unwritable directory: to whoever started it."""
    running = CoordinatorProcess.start()
    try:
        with pytest.raises(CoordinatorStartError, match="address already in use"):
            CoordinatorProcess.start(bind=running.address)
    finally:
        running.stop()
    with pytest.raises(CoordinatorStartError, match=r"unknown setting 'heartbeat.intervall'; did you mean"):
        CoordinatorProcess.start(settings={"heartbeat.intervall": "1 s"})
    (tmp_path / "file").write_text("")
    with pytest.raises(CoordinatorStartError, match="file"):
        CoordinatorProcess.start(settings={"execution.checkpointing.dir": str(tmp_path / "file" / "below")})
    with pytest.raises(CoordinatorStartError, match=r"security.auth.file: cannot read .*none: No such file"):
        CoordinatorProcess.start(settings={"security.auth.file": str(tmp_path / "none")})


def test_a_token_that_is_handed_over_counts_whatever_file_the_settings_of_the_machine_name(tmp_path, monkeypatch):
    """A driver reads the token's file itself, and starts its coordinator with what it says."""
    (tmp_path / "token").write_text("of the machine\n")
    settings = tmp_path / "snapline.toml"
    settings.write_text(f'"security.auth.file" = "{tmp_path / "token"}"\n')
    monkeypatch.setenv("SNAPLINE_CONFIG", str(settings))
    coordinator = CoordinatorProcess.start(token="handed over")
    try:
        with ClusterClient(coordinator.address, Security("handed over")) as client:
            assert client.list_jobs() == []
    finally:
        coordinator.stop()


def test_the_daemon_writes_its_address_and_stops_on_sigterm(tmp_path):
    """For launchers that chose port 0; the file is gone afterwards."""
    file = tmp_path / "address"
    command = [sys.executable, "-m", "snapline.coordinator", "--bind", "127.0.0.1:0", "--address-file", str(file)]
    daemon = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=ROOT, text=True)
    assert daemon.stdout is not None
    line = daemon.stdout.readline()
    assert line.strip() == f"Coordinator listens at {file.read_text().strip()}"
    daemon.send_signal(signal.SIGTERM)
    _, errors = daemon.communicate(timeout=30)
    assert daemon.returncode == 0
    assert not file.exists()
    assert all(json.loads(line)["level"] != "ERROR" for line in errors.splitlines())


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["--bind", "nowhere"], "jobmanager.rpc.address = 'nowhere': expected host:port"),
        (
            ["--bind", "127.0.0.1:0", "-D", "jobmanager.bind-host=0.0.0.0"],
            "whoever reaches 0.0.0.0:0 can run code in this coordinator: run `snapline certificates DIR --host 127.0.0.1`",
        ),
        (["-D", "heartbeat.interval"], "give KEY=VALUE"),
        (["-D", "heartbeat.interval=soon"], "heartbeat.interval"),
        (["--config", "missing.toml"], "cannot read missing.toml"),
        (["-D", "high-availability.type=embedded"], "high-availability.storageDir is not set"),
        (
            ["--bind", "127.0.0.1:0", "--log-level", "WARNING", "--address-file", "nowhere/at/all"],
            "--address-file: cannot write nowhere/at/all",
        ),
    ],
)
def test_a_wrong_command_line_is_one_line_and_exit_code_1(arguments, error):
    """Never a traceback."""
    done = subprocess.run(
        [sys.executable, "-m", "snapline.coordinator", *arguments], capture_output=True, text=True, cwd=ROOT, timeout=60
    )
    assert done.returncode == 1
    assert done.stderr.startswith("coordinator: ") and error in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_client_without_coordinator_is_told_so():
    """The address, and what to start."""
    client = ClusterClient("127.0.0.1:1", Security())
    with client, pytest.raises(CoordinatorUnreachable, match=r"no coordinator answers at 127\.0\.0\.1:1"):
        client.list_jobs()


def test_what_spark_cannot_give_is_in_the_status_of_the_job(cluster, tmp_path):
    """Both numbers, and what bounds them as the pool of TaskManagers reported it; nothing is waited for in silence."""
    job_id = cluster.submit(sums(cluster, tmp_path / "out", rows=10, parallelism=50), "too wide")
    try:
        cluster.client.report_workers("a pool", 4, "Spark runs 2 of 3 TaskManagers", {"tm-of-before": "killed"})
        waiting = cluster.follow(job_id, lambda details: "Spark runs" in details.overview.status_detail)
    finally:
        cluster.client.report_workers("a pool", 0, "", {}, closed=True)
        cluster.client.cancel(job_id)
        cluster.follow(job_id, lambda details: status_of(details) is JobStatus.CANCELED)

    said = waiting.overview.status_detail
    assert said.startswith("waiting for slots: 50 required, "), said
    assert said.endswith(" of 50: Spark runs 2 of 3 TaskManagers"), said
