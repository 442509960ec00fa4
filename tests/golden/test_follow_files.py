"""A source that follows a directory, exactly once: files appear while the job runs, TaskManagers are killed, and the
job is stopped with a savepoint and goes on at another parallelism. Every row of every file comes out once."""

from __future__ import annotations

import gzip
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pyarrow.dataset as ds
import pytest

from snapline.connectors import FileSink, FileSource, JsonFormat
from snapline.dataflow.wire.messages import JobStatus
from tests.services.cluster import LocalCluster, wait_until

pytestmark = pytest.mark.timeout(600)
SCHEMA = pa.schema([("n", pa.int64())])
FILES, ROWS = 12, 200
"""In each portion, and in each file."""
PATIENCE = 200


def add_portion(directory: Path, number: int) -> None:
    """Files that appear whole, some of them compressed; the first one is longer than all others."""
    for file in range(FILES):
        start = (number * FILES + file) * 10 * ROWS
        count = 10 * ROWS if file == 0 else ROWS
        text = "".join(f'{{"n": {n}}}\n' for n in range(start, start + count)).encode()
        hidden = directory / f"_{number}-{file}"
        hidden.write_bytes(gzip.compress(text) if file % 2 else text)
        hidden.rename(directory / f"{number}-{file}.json")


def expected(portions: int) -> Counter[int]:
    """Every row of these portions, once."""
    found: Counter[int] = Counter()
    for number in range(portions * FILES):
        count = 10 * ROWS if number % FILES == 0 else ROWS
        found.update(range(number * 10 * ROWS, number * 10 * ROWS + count))
    return found


def committed(output: Path) -> Counter[int]:
    """What readers of the output see."""
    files = [str(path) for path in output.glob("*.parquet")]
    return Counter(ds.dataset(files).to_table()["n"].to_pylist() if files else ())


def start(cluster: LocalCluster, tmp_path: Path, parallelism: int, restore: str = "") -> str:
    environment = cluster.environment(parallelism=parallelism, interval="200 ms")
    source = FileSource(
        tmp_path / "in", JsonFormat(SCHEMA), follow=True, discovery_interval_ms=50, remember=5, batch_rows=50
    )
    environment.from_source(source, uid="in").sink_to(FileSink(tmp_path / "out"), uid="out")
    if restore:
        environment.restore_from(restore)
    return cluster.submit(environment, "follow")


def wait_for_rows(tmp_path: Path, least: int) -> None:
    wait_until(lambda: committed(tmp_path / "out").total() >= least, f"{least} committed rows", seconds=PATIENCE)


def test_files_that_appear_kills_and_another_parallelism(tmp_path: Path) -> None:
    """Each portion of files is partly committed when a TaskManager dies; the last one comes after a savepoint."""
    (tmp_path / "in").mkdir()
    with LocalCluster(tmp_path / "cluster", slots=(2, 2, 2, 2)) as cluster:
        cluster.wait_for_task_managers()
        job_id = start(cluster, tmp_path, 2)
        for kill in range(2):
            add_portion(tmp_path / "in", kill)
            wait_for_rows(tmp_path, expected(kill).total() + 1)
            details = cluster.client.get_job(job_id)
            busy = {s.resource_id for vertex in details.vertices for s in vertex.subtasks if s.resource_id}
            next(one for one in cluster.task_managers if one.resource_id in busy).kill()
            wait_until(lambda: cluster.client.get_job(job_id).overview.restarts > kill, "the restart", seconds=PATIENCE)  # noqa: B023
            wait_until(lambda: cluster.status(job_id) is JobStatus.RUNNING, "the job to run", seconds=PATIENCE)
        path = cluster.client.stop_with_savepoint(job_id)
        add_portion(tmp_path / "in", 2)
        job_id = start(cluster, tmp_path, 3, path)
        wait_for_rows(tmp_path, expected(3).total())
        cluster.client.stop_with_savepoint(job_id)
    assert expected(3) == committed(tmp_path / "out")
