"""Every operator three ways: straight through (in the long form, because the others come to their end as well), with
checkpoints and kills, and stopped with a savepoint and restored at another parallelism; on both backends. The output is
what dictionaries and loops say, every row as often."""

from __future__ import annotations

from collections import Counter
from functools import cache, partial
from pathlib import Path

import pytest

from snapline.dataflow.wire.codec import decode_job_status
from snapline.dataflow.wire.messages import JobStatus
from tests.golden.job import LEFT_ROWS, build, left_source
from tests.golden.reference import committed, committed_rows, expected, per_key, retimed_windows, rows_of
from tests.golden.verbs import check_verbs
from tests.services.cluster import LocalCluster, wait_until

pytestmark = pytest.mark.timeout(600)
RATE = 300.0
"""Rows per second: a pace at which rows come late, and so that the job is in its middle when something is done to it.
Its end waits for a gate."""
PATIENCE = 400
"""Seconds; on a busy machine that is more than the usual."""
SOME_LATE = 50
"""Rows that come at this pace are late for their windows: of each ten, one is, if a watermark went before it. A third
of them, because rows on a busy machine come in large batches, and few watermarks go between them."""
BACKENDS = {
    "hashmap": {},
    "rocksdb": {
        "state.backend.type": "rocksdb",
        "state.backend.rocksdb.memory.fixed-per-slot": "32 kb",
        "execution.checkpointing.incremental": "true",
    },
}
"""The second with room for a few keys in memory, and with incremental checkpoints."""
ROOM = {"state.backend.rocksdb.memory.fixed-per-slot": "128 kb"}
"""Most keys stay in memory: a job that is stopped does part of its work again, and to write and read keys is most of
it."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    with LocalCluster(tmp_path_factory.mktemp("cluster"), slots=(2, 2)) as cluster:
        cluster.wait_for_task_managers()
        yield cluster


@cache
def reference():
    """Computed once."""
    return expected()


def start(cluster, output, backend, name, parallelism=2, rate=None, restore="", interval="1 s", gate=None, **settings):
    environment = cluster.environment(parallelism=parallelism, interval=interval, **BACKENDS[backend] | settings)
    build(environment, str(output), rate, gate)
    if restore:
        environment.restore_from(restore)
    return cluster.submit(environment, f"golden {name} {backend}")


def finish(cluster, job_id):
    """Wait for the end."""

    def over():
        details = cluster.client.get_job(job_id)
        status = decode_job_status(details.overview.status)
        assert status not in (JobStatus.FAILED, JobStatus.CANCELED), details.overview.failure.summary
        return status is JobStatus.FINISHED

    wait_until(over, "the job to finish", seconds=PATIENCE)


def restarted(cluster, job_id, before):
    return cluster.client.get_job(job_id).overview.restarts > before


def check(output: Path, late_rows: int = 0) -> None:
    """Branch by branch; where the clock cuts, or it is open which rows are late, counts are added up. `late_rows`: at
    least so many are."""
    wrong = {}
    for name, rows in reference().items():
        found = committed(output, name)
        if found != rows:
            wrong[name] = {"missing": dict((rows - found).most_common(3)), "extra": dict((found - rows).most_common(3))}
    assert wrong == {}
    counted = committed(output, "clock-windows")
    assert sum(row[1] * times for row, times in counted.items()) == LEFT_ROWS
    assert counts_of(output, "clock-timers") == per_key()
    late = Counter(row["k"] for row in committed_rows(output, "late-rows"))
    assert counts_of(output, "late") + late == per_key()
    assert late.total() >= late_rows
    latest: dict[tuple[int, int], int] = {}
    for row in committed_rows(output, "lateness"):
        window = (row["k"], row["window_start"])
        latest[window] = max(latest.get(window, 0), row["n"])
    assert latest == retimed_windows()
    check_verbs(partial(committed_rows, output), rows_of(left_source()))


def counts_of(output: Path, name: str) -> Counter[int]:
    """By key, all that were put out."""
    counted: Counter[int] = Counter()
    for row in committed_rows(output, name):
        counted[row["k"]] += row["n"]
    return counted


@pytest.mark.rare
@pytest.mark.parametrize("backend", BACKENDS)
def test_straight_through(cluster, tmp_path, backend):
    """Nothing happens to it."""
    job_id = start(cluster, tmp_path, backend, "straight")
    finish(cluster, job_id)
    check(tmp_path)


@pytest.mark.parametrize(
    ("backend", "kills"), [("rocksdb", 1), *(pytest.param(each, 2, marks=pytest.mark.rare) for each in BACKENDS)]
)
def test_with_checkpoints_and_kills(tmp_path, backend, kills):
    """A TaskManager that runs tasks dies by signal 9, in the long form twice; each time after a checkpoint."""
    output, gate = tmp_path / "out", tmp_path / "gate"
    with LocalCluster(tmp_path / "cluster", slots=(2, 2, 2)) as cluster:
        cluster.wait_for_task_managers()
        job_id = start(cluster, output, backend, "killed", rate=RATE, gate=gate, **ROOM)
        for kill in range(kills):
            wait_until(lambda: cluster.status(job_id) is JobStatus.RUNNING, "the job to run")
            completed = cluster.client.list_checkpoints(job_id).counts.completed
            cluster.wait_for_checkpoints(job_id, completed + 1, PATIENCE)
            details = cluster.client.get_job(job_id)
            busy = {s.resource_id for vertex in details.vertices for s in vertex.subtasks if s.resource_id}
            next(one for one in cluster.task_managers if one.resource_id in busy).kill()
            wait_until(partial(restarted, cluster, job_id, kill), "the restart")
        gate.touch()
        finish(cluster, job_id)
    check(output, SOME_LATE)


@pytest.mark.parametrize("backend", ["rocksdb", pytest.param("hashmap", marks=pytest.mark.rare)])
def test_savepoint_and_other_parallelism(cluster, tmp_path, backend):
    """Stopped halfway at parallelism 2, restored at 3; on the other backend, too, because a savepoint is of none."""
    job_id = start(cluster, tmp_path, backend, "stopped", rate=RATE, gate=tmp_path / "gate", **ROOM)
    cluster.wait_for_checkpoints(job_id, 2, PATIENCE)  # after the first one the source of the rules ends
    enough = LEFT_ROWS / 3
    wait_until(lambda: sum(committed(tmp_path, "running").values()) > enough, "rows that are late", seconds=PATIENCE)
    path = cluster.client.stop_with_savepoint(job_id)
    assert sum(committed(tmp_path, "running").values()) < LEFT_ROWS
    other = "rocksdb" if backend == "hashmap" else "hashmap"
    job_id = start(cluster, tmp_path, other, "resumed", parallelism=3, restore=path, **ROOM)
    finish(cluster, job_id)
    check(tmp_path, SOME_LATE)
