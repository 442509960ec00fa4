"""The golden job in one process: straight through on one thread and on several, through failures, and stopped and
restored at another parallelism. The rows are those of the clusters."""

from __future__ import annotations

import pytest

from snapline import StreamExecutionEnvironment
from snapline.coordinator.jobmaster.operations import SnapshotCompleted, StopWithSavepoint
from snapline.local.local_execution import open_local_job
from tests.golden.job import LEFT_ROWS, build
from tests.golden.reference import committed
from tests.golden.test_golden import BACKENDS, RATE, ROOM, SOME_LATE, check

pytestmark = pytest.mark.timeout(600)
RARE = pytest.mark.rare
WAYS = [
    pytest.param("hashmap", 1, marks=RARE),
    pytest.param("hashmap", 2, marks=RARE),
    pytest.param("rocksdb", 2, marks=RARE),
    pytest.param("rocksdb", 1, marks=RARE),
]


def environment_of(output, tmp_path, backend="hashmap", rate=None, parallelism=2, gate=None, **settings):
    """The golden job, to be run here."""
    environment = StreamExecutionEnvironment.get_execution_environment(
        {
            "parallelism.default": str(parallelism),
            "execution.checkpointing.interval": "1 s",
            "execution.checkpointing.dir": str(tmp_path / "checkpoints"),
            **BACKENDS[backend],
            **settings,
        }
    )
    return build(environment, str(output), rate, gate)


@pytest.mark.parametrize(("backend", "threads"), WAYS)
def test_straight_through(tmp_path, backend, threads):
    """On the thread that asks, and on a thread for each task."""
    environment = environment_of(tmp_path / "out", tmp_path, backend)
    assert environment.execute("golden", local=True, threads=threads).status == "FINISHED"
    check(tmp_path / "out")


@pytest.mark.parametrize("backend", ["hashmap", pytest.param("rocksdb", marks=RARE)])
def test_savepoint_and_other_parallelism(tmp_path, backend):
    """Stopped halfway at parallelism 2 on one thread, restored at 3 on two threads and on the other backend."""
    output = tmp_path / "out"
    with open_local_job(
        environment_of(output, tmp_path, backend, RATE, gate=tmp_path / "gate", **ROOM), "golden", 1
    ) as job:
        job.run(until=lambda: sum(committed(output, "running").values()) > LEFT_ROWS / 3)
        stopped = job.operate(StopWithSavepoint(str(tmp_path / "savepoints")))
    assert isinstance(stopped, SnapshotCompleted)
    assert sum(committed(output, "running").values()) < LEFT_ROWS
    other = "rocksdb" if backend == "hashmap" else "hashmap"
    resumed = environment_of(output, tmp_path, other, parallelism=3, **ROOM).restore_from(stopped.path)
    assert resumed.execute("golden", local=True, threads=2).status == "FINISHED"
    check(output, SOME_LATE)
