"""Running jobs that get another parallelism: by command, and by themselves when TaskManagers come and go."""

from __future__ import annotations

import json

import pytest

from snapline.dataflow.wire.codec import decode_job_status
from snapline.dataflow.wire.messages import JobStatus
from tests.integration.savepoint_job import assert_exactly_once, build
from tests.integration.test_snapshot_commands import command
from tests.services.cluster import LocalCluster, wait_until


@pytest.fixture
def cluster(tmp_path):
    with LocalCluster(tmp_path / "cluster", slots=(1,)) as cluster:
        yield cluster


def start(cluster, output, **settings):
    """A job without an end: what a slow machine does with it in time does not matter."""
    arguments = ["--output", str(output), "--rate", "5000", "--parallelism", "1"]
    return cluster.submit(build(cluster.environment(parallelism=1, **settings), arguments), "to rescale")


def parallelism_of(cluster, job_id):
    """Of all vertices, once the job runs; the number of tasks that run fits."""
    details = cluster.client.get_job(job_id)
    running = decode_job_status(details.overview.status) is JobStatus.RUNNING
    numbers = {vertex.parallelism for vertex in details.vertices}
    return numbers.pop() if running and len(numbers) == 1 else None


def goes_on(cluster, job_id, output):
    """Checkpoints complete, and nothing that was committed by now is lost or twice."""
    cluster.wait_for_checkpoints(job_id, cluster.client.list_checkpoints(job_id).counts.completed + 2)
    cluster.cancel(job_id)
    assert assert_exactly_once(output) > 0


def test_the_command_waits_for_slots_while_the_job_runs(cluster, tmp_path):
    """Without enough of them the job goes on untouched, and the command says how many there are; with them it is
    rescaled, back again too, and nothing is lost or twice."""
    wait_until(cluster.client.list_task_managers, "a TaskManager, which a job with this timeout may not wait long for")
    job_id = start(cluster, tmp_path / "out", slot__request__timeout="3 s")
    cluster.wait_for_checkpoints(job_id, 1)
    refused = command("rescale", "to rescale", "-p", "2", coordinator=cluster.address)
    assert refused.returncode == 1
    assert "not enough slots for this parallelism after 3000 ms: 2 required, 1 available" in refused.stderr
    assert "it goes on as it is" in refused.stderr
    assert cluster.client.get_job(job_id).overview.restarts == 0
    assert "RESTARTING" not in cluster.client.get_job(job_id).status_timestamps_ms

    cluster.start_task_manager(1)
    wait_until(lambda: len(cluster.client.list_task_managers()) == 2, "the second TaskManager")
    done = command("rescale", "to rescale", "-p", "2", "-o", "json", coordinator=cluster.address)
    assert (done.returncode, json.loads(done.stdout)) == (0, {"job_id": job_id, "parallelism": 2}), done.stderr
    assert parallelism_of(cluster, job_id) == 2
    cluster.client.rescale(job_id, 1)
    assert parallelism_of(cluster, job_id) == 1
    goes_on(cluster, job_id, tmp_path / "out")


def test_a_task_manager_is_drained_before_it_is_stopped(cluster, tmp_path):
    """Its tasks go on elsewhere, without a failure; one that holds the only slots is refused and has tasks again."""
    wait_until(cluster.client.list_task_managers, "a TaskManager, which a job with this timeout may not wait long for")
    job_id = start(cluster, tmp_path / "out", slot__request__timeout="3 s")
    cluster.wait_for_checkpoints(job_id, 1)
    refused = command("taskmanagers", "drain", "tm-1", coordinator=cluster.address)
    assert (refused.returncode, "cannot leave tm-1, which gets tasks again" in refused.stderr) == (1, True)

    cluster.start_task_manager(1)
    wait_until(lambda: len(cluster.client.list_task_managers()) == 2, "the second TaskManager")
    done = command("taskmanagers", "drain", "tm-1", "-o", "json", coordinator=cluster.address)
    assert json.loads(done.stdout) == {"taskmanager": "tm-1", "draining": True, "jobs": [job_id]}, done.stderr
    details = cluster.client.get_job(job_id)
    assert {s.resource_id for vertex in details.vertices for s in vertex.subtasks} == {"tm-2"}
    cluster.on("tm-1").stop()
    goes_on(cluster, job_id, tmp_path / "out")
    details = cluster.client.get_job(job_id)
    assert (details.overview.restarts, list(details.failures)) == (0, [])


def test_a_reactive_job_follows_its_task_managers(cluster, tmp_path):
    """One more: it has a subtask more. One is killed: it goes on with those that are left."""
    job_id = start(
        cluster,
        tmp_path / "out",
        scheduler_mode="reactive",
        **{"jobmanager.adaptive-scheduler.resource-stabilization-timeout": "300 ms"},
    )
    wait_until(lambda: parallelism_of(cluster, job_id) == 1, "one subtask")
    second = cluster.start_task_manager(1)
    wait_until(lambda: parallelism_of(cluster, job_id) == 2, "two subtasks")
    cluster.wait_for_checkpoints(job_id, 1)
    second.kill()
    wait_until(lambda: parallelism_of(cluster, job_id) == 1, "one subtask again")
    goes_on(cluster, job_id, tmp_path / "out")
