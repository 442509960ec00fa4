"""A cluster of real processes whose job is stuck: what the coordinator says of it, and its log."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from click.testing import CliRunner

from snapline.cli import cli
from snapline.client import RequestRefused
from snapline.connectors import DiscardingSink
from snapline.connectors.builtin.generator import GeneratorSource
from snapline.coordinator.checkpoint.statistics.stats_persistence import decode_statistics
from snapline.dataflow.wire.messages import JobStatus
from tests.services.cluster import LocalCluster, wait_until


def stuck_until(path: Path):
    """A function that waits in the middle of its rows for a file that may never come."""
    release = str(path)

    def wait_for_file(row):
        while row["id"] == 5 and not Path(release).exists():
            time.sleep(0.01)
        return row

    return wait_for_file


def failing_until(path: Path):
    """A function that fails as long as a file is not there, which it makes."""
    mark = str(path)

    def fail_first(row):
        if not Path(mark).exists():
            Path(mark).touch()
            raise ValueError("the first time is always bad")
        return row

    return fail_first


@pytest.fixture
def cluster(tmp_path):
    """One coordinator, one TaskManager whose job must end within three seconds once it is cancelled."""
    settings = {"task.cancellation.timeout": "3 s", "task.cancellation.interval": "1 s"}
    with LocalCluster(tmp_path, slots=(2,), settings=settings) as running:
        yield running


def log_of(path: Path) -> list[dict]:
    """The lines of a process's log."""
    return [json.loads(line) for line in path.read_text().splitlines() if line.startswith("{")]


def messages(path: Path, message: str) -> list[dict]:
    """What the lines with this message say."""
    return [line.get("context", {}) for line in log_of(path) if line["msg"] == message]


def snapline(cluster, *arguments: str) -> str:
    """What the command prints."""
    result = CliRunner().invoke(cli, [*arguments, "-m", cluster.address])
    assert result.exit_code == 0, result.output
    return result.output


def test_a_job_that_is_stuck_in_user_code_is_explained(cluster, tmp_path):
    """Busy by its rate, named with the line of the user's function by `why`, `stack` and `profile`; its end is logged
    with its stack, and the coordinator's log says why the TaskManager has gone."""
    environment = cluster.environment(parallelism=1)
    rows = environment.from_collection([{"id": n} for n in range(10)], uid="rows")
    rows.map(stuck_until(tmp_path / "released"), uid="stuck").sink_to(DiscardingSink(), uid="nowhere")
    job_id = cluster.submit(environment, "stuck")
    cluster.wait_for(job_id, JobStatus.RUNNING)
    stuck = "has not come back from a call for"
    place = "wait_for_file (test_diagnosis.py:"

    def is_named() -> bool:  # before, imports are, and the rate of a call that is not old yet
        summary = cluster.client.explain_job(job_id).summary
        return stuck in summary and place in summary

    wait_until(is_named, "the finding")
    (finding, *_) = cluster.client.explain_job(job_id).findings
    assert finding.kind == "user code"
    assert any("wait_for_file" in frame for frame in finding.stack)
    hottest = max(
        (s for v in cluster.client.get_job(job_id).vertices for s in v.subtasks), key=lambda s: s.busy_ms_per_second
    )
    assert hottest.busy_ms_per_second > 500 and hottest.step_ms >= 2_000

    assert "wait_for_file (test_diagnosis.py:" in snapline(cluster, "why", "stuck", "--stacks")
    assert "wait_for_file" in snapline(cluster, "stack", "stuck")
    page = tmp_path / "profile.html"
    assert "looks at 1 TaskManagers" in snapline(cluster, "profile", "tm-1", "--seconds", "1", "--file", str(page))
    assert "wait_for_file" in page.read_text()
    assert json.loads(snapline(cluster, "status", "stuck", "-o", "json"))["overview"]["restarts"] == 0

    cluster.client.cancel(job_id)
    task_manager = cluster.task_managers[0]
    wait_until(lambda: task_manager.process.poll() is not None, "the TaskManager to end")
    (died,) = messages(task_manager.log, "TaskManager cannot go on")
    assert "did not end within 3000 ms" in died["reason"] and "wait_for_file" in died["stack"]
    log = cluster.logs / "coordinator.log"
    wait_until(lambda: bool(messages(log, "TaskManager lost")), "the loss in the coordinator's log")
    assert "did not end within 3000 ms" in messages(log, "TaskManager lost")[0]["reason"]
    assert [line["slots"] for line in messages(log, "TaskManager registered")] == [2]
    assert {line["request"] for line in messages(log, "request")} == {"submit", "cancel job"}


def test_a_new_leader_remembers_what_happened(cluster, tmp_path):
    """Ended jobs with their cause, the restarts and the start of running ones; the log names job, task and attempt."""
    environment = cluster.environment(parallelism=1, restart_strategy__fixed_delay__attempts="0")
    rows = environment.from_collection([{"id": 1}], uid="rows")
    rows.map(failing_until(tmp_path / "never" / "x"), uid="bad").sink_to(DiscardingSink(), uid="nowhere")
    failed = cluster.submit(environment, "fails")
    cluster.wait_for(failed, JobStatus.FAILED)

    environment = cluster.environment(parallelism=1)
    rows = environment.from_collection([{"id": n} for n in range(10)], uid="rows")
    rows = rows.map(failing_until(tmp_path / "once"), uid="once")
    rows.map(stuck_until(tmp_path / "released"), uid="stuck").sink_to(DiscardingSink(), uid="nowhere")
    running = cluster.submit(environment, "goes on")
    before = cluster.follow(running, lambda details: details.overview.restarts == 1)
    (failure, *_) = messages(cluster.logs / "coordinator.log", "task failed")
    assert failure["job"] == "fails" and failure["operator"] == "bad" and "No such file" in failure["reason"]
    lines = [line for each in cluster.task_managers for line in each.log.read_text().splitlines()]
    (told, *_) = [json.loads(line) for line in lines if '"msg":"task failed"' in line and failed in line]
    assert (told["level"], told["context"]["attempt"], told["context"]["task"]) == (
        *("WARN", 0),
        "CollectionSource -> map -> DiscardingSink (1/1)",
    )

    wait_until(lambda: any((tmp_path / "ha" / "archive").glob("*")), "the archive")
    written = tmp_path / "ha" / "statistics" / running
    wait_until(
        lambda: written.exists() and decode_statistics(written.read_bytes(), 10).job_restarts == 1,
        "the restart to be written down",
    )
    cluster.kill_coordinator()
    cluster.start_coordinator()
    after = cluster.wait_for(running, JobStatus.RUNNING)
    assert (after.overview.start_time_ms, after.overview.restarts) == (before.overview.start_time_ms, 1)
    assert dict(after.operator_failures) == {"once": 1}
    assert "failures by operator: once 1\n" in snapline(cluster, "status", "goes on")
    wait_until(lambda: len(cluster.client.list_jobs()) == 2, "the ended job")
    old = cluster.client.get_job(failed)
    assert dict(old.operator_failures) == {"bad": 1}
    assert "No such file" in old.overview.failure.summary and old.failures[0].task_name.startswith("CollectionSource")
    assert "fails" in snapline(cluster, "history")
    (tmp_path / "released").touch()
    cluster.wait_for(running, JobStatus.FINISHED)


def test_what_a_function_prints_is_read_through_the_coordinator(cluster, tmp_path):
    """With the log of its TaskManager, by job or by TaskManager; from an executor nobody reads files."""

    def say(row):
        print("row", row["id"], "is here")
        return row

    environment = cluster.environment(parallelism=1)
    environment.from_collection([{"id": 7}], uid="rows").map(say, uid="said").sink_to(DiscardingSink(), uid="sink")
    job_id = cluster.submit(environment, "says")
    cluster.wait_for(job_id, JobStatus.FINISHED)
    shown = CliRunner().invoke(cli, ["logs", "-m", cluster.address, "tm-1"])
    assert shown.exit_code == 0, shown.output
    assert "row 7 is here\n" in shown.stdout
    assert '"msg":"TaskManager starts"' in shown.stdout
    few = CliRunner().invoke(cli, ["logs", "-m", cluster.address, "tm-1", "--lines", "1", "-o", "json"])
    assert len(json.loads(few.stdout)["tm-1"]) == 1
    wrong = CliRunner().invoke(cli, ["logs", "-m", cluster.address, "tm-1", "--lines", "-1"])
    assert "-1 is not in the range 0<=x<=2000" in wrong.output


def test_log_levels_change_while_processes_run(cluster):
    """Of the TaskManagers of a job, and of the coordinator; who asked is in the audit, and nonsense is refused."""
    environment = cluster.environment(parallelism=1)
    environment.from_source(GeneratorSource(keys=3, rows_per_second=100), uid="rows").sink_to(
        DiscardingSink(), uid="out"
    )
    job_id = cluster.submit(environment, "steady")
    cluster.wait_for_checkpoints(job_id, 1)

    def details_of(name: str) -> int:
        return (cluster.logs / name).read_text().count('"level":"DEBUG"')

    assert "TaskManager starts" in snapline(cluster, "logs", "steady", "--level", "debug")
    assert details_of("coordinator.log") == 0
    wait_until(lambda: details_of("tm-1.log") > 0, "details of the TaskManager")
    assert snapline(cluster, "logs", "coordinator", "--level", "DEBUG") == ""
    wait_until(lambda: details_of("coordinator.log") > 0, "details of the coordinator")
    with pytest.raises(RequestRefused, match="log_level 'loud' is none: one of debug, info, warning, error"):
        cluster.client.dump_threads(job_id, log_level="loud")
    asked = [line for line in messages(cluster.logs / "coordinator.log", "request") if line["request"] == "log level"]
    assert [(line["level"], line["of"]) for line in asked] == [("debug", "tm-1"), ("DEBUG", "coordinator")]
