"""`snapline update`: another version of a running job takes its place, or the old one goes on."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

import pytest

from snapline.dataflow.wire.messages import JobStatus
from tests.integration import savepoint_job
from tests.integration.savepoint_job import assert_exactly_once, build
from tests.integration.test_snapshot_commands import ROOT, command
from tests.services.cluster import LocalCluster

BROKEN = """
import snapline as sl
import tests.integration.savepoint_job as job

class Broken(job.GeneratorSource):
    def create_reader(self, context):
        raise RuntimeError("the new version knows no broker")

job.GeneratorSource = Broken
import sys
job.build(sl.StreamExecutionEnvironment.get_execution_environment(), sys.argv[1:]).execute("orders")
"""


@pytest.fixture
def cluster(tmp_path):
    settings = {"restart-strategy.fixed-delay.attempts": "1", "execution.checkpointing.interval": "200 ms"}
    with LocalCluster(tmp_path / "cluster", slots=(1,), settings=settings) as cluster:
        yield cluster


NAMED = """
import sys
import snapline as sl
import tests.integration.savepoint_job as job

job.build(sl.StreamExecutionEnvironment.get_execution_environment(), sys.argv[1:]).execute("orders " * 2_000)
"""


NO_CHECKPOINT = {"SNAPLINE_CONF_execution__checkpointing__interval": "1 h"}
"""The new version cannot show that it works before the signal comes, however busy the machine is."""


@pytest.fixture
def interruptible():
    """Programs that are started listen to Ctrl-C: a shell starts what is in its background with SIGINT ignored, and so
    do its children."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.timeout(400)
@pytest.mark.usefixtures("interruptible")
def test_a_version_that_is_refused_or_interrupted_leaves_the_old_one(cluster, tmp_path, monkeypatch):
    """A name that the coordinator refuses, after the old job has stopped, and Ctrl-C right then: nothing ran any more
    where the old job goes on now, and nothing is lost or twice."""
    monkeypatch.setenv("SNAPLINE_CONF_execution__checkpointing__interval", "200 ms")
    options = ["--output", str(tmp_path / "out"), "--rate", "2000", "--parallelism", "1"]
    first = cluster.submit(build(cluster.environment(parallelism=1), options), "orders")
    cluster.wait_for_checkpoints(first, 1)

    named = tmp_path / "named.py"
    named.write_text(NAMED)
    said = command("update", first, named, "--", *options, coordinator=cluster.address, limit_s=300)
    assert said.returncode == 1 and "or more than 10000: lists and logs" in said.stderr, said.stderr
    second = said.stderr.rpartition("goes on as job ")[2].partition(" ")[0]
    cluster.wait_for_checkpoints(second, 1)

    environment = {**os.environ, "PYTHONPATH": str(ROOT), "SNAPLINE_CONF_jobmanager__rpc__address": cluster.address}
    arguments = [sys.executable, "-m", "snapline.cli", "update", second, savepoint_job.__file__, "--", *options]
    with subprocess.Popen(
        arguments, env={**environment, **NO_CHECKPOINT}, stderr=subprocess.PIPE, text=True
    ) as updating:
        assert updating.stderr is not None
        for line in updating.stderr:
            if "has stopped with savepoint" in line:
                updating.send_signal(signal.SIGINT)
                break
        line = updating.stderr.read()
        assert updating.wait() == 1 and "the new version was interrupted; the old one goes on as job" in line, line
    third = line.rpartition("goes on as job ")[2].partition(" ")[0]
    cluster.wait_for_checkpoints(third, 1)
    cluster.cancel(third)
    assert assert_exactly_once(tmp_path / "out") > 0


@pytest.mark.timeout(400)
def test_a_version_that_does_not_work_gives_way_to_the_old_one(cluster, tmp_path, monkeypatch):
    """One that does not fit is refused while the job runs on; one that fails is given up, and the old job goes on from
    the same savepoint; one that works takes its place. Nothing is lost or twice."""
    monkeypatch.setenv("SNAPLINE_CONF_execution__checkpointing__interval", "200 ms")
    options = ["--output", str(tmp_path / "out"), "--rate", "2000", "--parallelism", "1"]
    first = cluster.submit(build(cluster.environment(parallelism=1), options), "orders")
    cluster.wait_for_checkpoints(first, 1)

    def update(script, *more, job="orders", timeout_s=120):
        said = command(
            *("update", job, script, "--timeout", str(timeout_s), "-o", "json", "--", *options, *more),
            coordinator=cluster.address,
            limit_s=300,
        )
        return said.returncode, said.stdout, said.stderr

    code, _, line = update(savepoint_job.__file__, "--uid", "others")
    assert code == 1 and "runs on as it was: the new version cannot start from it" in line, line
    assert cluster.status(first) is JobStatus.RUNNING and cluster.client.get_job(first).overview.restarts == 0

    broken = tmp_path / "broken.py"
    broken.write_text(BROKEN)
    code, _, line = update(broken, timeout_s=30)  # it fails at every start, and is started again for as long
    assert code == 1 and "the new version knows no broker" in line and "the old one goes on as job " in line, line
    assert cluster.status(first) is JobStatus.FINISHED
    second = line.rpartition("goes on as job ")[2].partition(" ")[0]
    cluster.wait_for_checkpoints(second, 1)

    code, answer, line = update(savepoint_job.__file__, "--smallest", job=second)
    assert code == 0, line
    third = json.loads(answer)["job_id"]
    assert cluster.status(second) is JobStatus.FINISHED and third not in (first, second)
    cluster.wait_for_checkpoints(third, 2)
    cluster.cancel(third)
    assert assert_exactly_once(tmp_path / "out") > 0


@pytest.mark.timeout(400)
def test_the_death_of_the_coordinator_while_the_old_version_stops_and_a_termination(cluster, tmp_path, monkeypatch):
    """The old version runs again with the next leader, or had stopped and nobody heard of it: the new one comes in both
    cases. One that is terminated has the old one go on, and a savepoint that cannot be written leaves it alone."""
    monkeypatch.setenv("SNAPLINE_CONF_execution__checkpointing__interval", "200 ms")
    options = ["--output", str(tmp_path / "out"), "--rate", "2000", "--parallelism", "1"]
    first = cluster.submit(build(cluster.environment(parallelism=1), options), "orders")
    cluster.wait_for_checkpoints(first, 1)
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "SNAPLINE_CONF_jobmanager__rpc__address": cluster.address}

    def update(job, say, act, more=()):
        arguments = [sys.executable, "-m", "snapline.cli", "update", job, savepoint_job.__file__]
        arguments += ["-p", str(cluster.savepoints), "--", *options]
        with subprocess.Popen(
            arguments, env={**environment, **dict(more)}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as updating:
            assert updating.stderr is not None and updating.stdout is not None
            lines = ""
            for line in updating.stderr:
                lines += line
                if say in line:
                    act(updating)
            return lines, updating.stdout.read().strip(), updating.wait()

    (tmp_path / "file").write_text("no directory")
    said = command(
        *("update", first, savepoint_job.__file__, "-p", tmp_path / "file" / "below", "--", *options),
        coordinator=cluster.address,
        limit_s=300,
    )
    assert said.returncode == 1 and f"job {first} runs on as it was: no savepoint" in said.stderr, said.stderr
    assert cluster.status(first) is JobStatus.RUNNING

    def lose_the_coordinator(_):
        cluster.kill_coordinator()
        cluster.start_coordinator()

    lines, second, code = update(first, "is compared with", lose_the_coordinator)
    assert code == 0, lines
    cluster.wait_for_checkpoints(second, 1)

    lines, _, code = update(second, "has stopped with savepoint", lambda updating: updating.terminate(), NO_CHECKPOINT)
    assert code == 1 and "the new version was interrupted; the old one goes on as job" in lines, lines
    third = lines.rpartition("goes on as job ")[2].partition(" ")[0]
    cluster.wait_for_checkpoints(third, 1)
    cluster.cancel(third)
    assert assert_exactly_once(tmp_path / "out") > 0
