"""State backends in real processes: a job on one, killed and recovered, stopped, and gone on with on the other."""

from __future__ import annotations

import pytest

from snapline.dataflow.wire.messages import JobStatus
from tests.integration.savepoint_job import assert_exactly_once, build
from tests.services.cluster import LocalCluster

ROWS = "200000"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    with LocalCluster(tmp_path_factory.mktemp("cluster"), slots=(2, 2)) as cluster:
        yield cluster


def start(cluster, output, name, backend, directory, *arguments, restore=""):
    settings = {
        "state__backend__type": backend,
        "state__backend__rocksdb__memory__fixed_per_slot": "1 kb",
        "state__backend__rocksdb__localdir": str(directory),
        "execution__checkpointing__incremental": True,
    }
    environment = build(cluster.environment(**settings), ["--output", str(output), *arguments])
    if restore:
        environment.restore_from(restore)
    return cluster.submit(environment, name)


@pytest.mark.parametrize(
    ("first", "second"), [("rocksdb", "hashmap"), pytest.param("hashmap", "rocksdb", marks=pytest.mark.rare)]
)
def test_a_savepoint_goes_from_one_backend_to_the_other(cluster, tmp_path, first, second):
    """With room for a few of the keys; incremental checkpoints, a task that fails over, another parallelism: each row
    counts once, and no file has a name."""
    output, directory = tmp_path / "out", tmp_path / "state"
    job_id = start(cluster, output, f"on {first}", first, directory, "--rows", ROWS, "--gate", str(tmp_path / "gate"))
    cluster.wait_for_checkpoints(job_id, 3)
    assert list(directory.glob("*")) == []
    path = cluster.client.stop_with_savepoint(job_id)
    arguments = ["--rows", ROWS, "--rate", "1e6", "--parallelism", "3"]
    job_id = start(cluster, output, f"on {second}", second, directory, *arguments, restore=path)
    cluster.wait_for(job_id, JobStatus.FINISHED)
    assert_exactly_once(output, int(ROWS))
    assert list(directory.glob("*")) == []


def test_recovery_reads_the_chain_of_an_incremental_checkpoint(tmp_path):
    """A TaskManager is killed with signal 9: each row counts once, and nothing stays on the disk."""
    output, directory, gate = tmp_path / "out", tmp_path / "state", tmp_path / "gate"
    with LocalCluster(tmp_path / "cluster", slots=(2, 2)) as cluster:
        job_id = start(cluster, output, "killed", "rocksdb", directory, "--rows", ROWS, "--gate", str(gate))
        cluster.wait_for_checkpoints(job_id, 3)
        vertex = next(v for v in cluster.client.get_job(job_id).vertices if "sums" in v.name)
        (victim,) = [one for one in cluster.task_managers if one.resource_id == vertex.subtasks[0].resource_id]
        completed = cluster.client.list_checkpoints(job_id).counts.completed
        victim.kill()
        cluster.wait_for_checkpoints(job_id, completed + 2)
        gate.touch()
        cluster.wait_for(job_id, JobStatus.FINISHED)
    assert_exactly_once(output, int(ROWS))
    assert list(directory.glob("*")) == []
