"""Bad rows of files, of a topic and of a function, set aside exactly once: TaskManagers are killed while files are read
and while the topic is, and the job goes on from a savepoint at another parallelism."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pyarrow.dataset as ds
import pytest

import snapline as sl
from snapline.connectors import FileSink, FileSource, HybridSource, JsonFormat, KafkaSource
from snapline.dataflow.wire.messages import JobStatus
from tests.services import kafka as services
from tests.services.cluster import LocalCluster, wait_until
from tests.services.kafka import Kafka

pytestmark = pytest.mark.timeout(600)
SCHEMA = pa.schema([("n", pa.int64())])
FILES, ROWS, MESSAGES, PARTITIONS = 8, 400, 300, 3
UNREADABLE, REFUSED = 7, 11
"""One row of so many cannot be read; the function raises for one of so many others."""
PATIENCE = 200


def line(n: int) -> str:
    """The row as it is sent."""
    return f"no row {n}" if n % UNREADABLE == 0 else f'{{"n": {n}}}'


def doubled(row: sl.Row) -> sl.Row:
    """Twice the number, unless it is refused."""
    if row["n"] % REFUSED == 0:
        raise ValueError(f"{row['n']} is refused")
    return {"n": 2 * row["n"]}


def seen(output: Path) -> list[dict[str, object]]:
    """What readers of the output see."""
    files = [str(path) for path in output.glob("*.parquet")]
    return ds.dataset(files).to_table().to_pylist() if files else []


class Run:
    """A job over a directory and a topic, and all that was put into them, with its place."""

    def __init__(self, tmp_path: Path, kafka: Kafka) -> None:
        self.tmp_path, self.kafka = tmp_path, kafka
        self.topic = kafka.topic(PARTITIONS)
        self.places: dict[int, tuple[str, int]] = {}
        """Of each number."""
        self.offsets = [0] * PARTITIONS

    def write_files(self) -> None:
        """Numbers in order, a file after the other."""
        (self.tmp_path / "in").mkdir()
        for file in range(FILES):
            path = self.tmp_path / "in" / f"{file}.json"
            numbers = range(file * ROWS, (file + 1) * ROWS)
            path.write_text("".join(f"{line(n)}\n" for n in numbers))
            self.places.update({n: (str(path), place + 1) for place, n in enumerate(numbers)})

    def send(self, portion: int) -> None:
        """More numbers, spread over the partitions."""
        first = FILES * ROWS + portion * MESSAGES
        for partition in range(PARTITIONS):
            numbers = range(first + partition, first + MESSAGES, PARTITIONS)
            self.kafka.send(self.topic, [line(n).encode() for n in numbers], partition=partition)
            for n in numbers:
                self.places[n] = (f"{self.topic}-{partition}", self.offsets[partition])
                self.offsets[partition] += 1

    def start(self, cluster: LocalCluster, parallelism: int, restore: str = "") -> str:
        """Submit the job."""
        environment = cluster.environment(parallelism=parallelism, interval="150 ms")
        files = FileSource(self.tmp_path / "in", JsonFormat(SCHEMA), batch_rows=20, on_error="side_output")
        topic = KafkaSource(
            self.topic, bootstrap_servers=self.kafka.bootstrap, format=JsonFormat(SCHEMA), batch_rows=20,
            partition_discovery_ms=100, on_error="side_output",
        )  # fmt: skip
        rows = environment.from_source(HybridSource(files, topic), uid="in")
        twice = rows.map(doubled, uid="twice", schema=SCHEMA, on_error="side_output")
        twice.sink_to(FileSink(self.tmp_path / "good"), uid="good")
        rows.bad_rows().union(twice.bad_rows()).sink_to(FileSink(self.tmp_path / "bad"), uid="bad")
        if restore:
            environment.restore_from(restore)
        return cluster.submit(environment, "bad-rows")

    def rows_out(self) -> int:
        """How many rows were committed, good and bad."""
        return len(seen(self.tmp_path / "good")) + len(seen(self.tmp_path / "bad"))

    def check(self) -> None:
        """Every row came out once, where it belongs, and bad ones with their place."""
        good, unread, refused = Counter[int](), Counter[tuple[object, ...]](), Counter[tuple[object, ...]]()
        for n, place in self.places.items():
            if n % UNREADABLE == 0:
                unread["in", *place, line(n).encode(), "not a JSON object"] += 1
            elif n % REFUSED == 0:
                refused["twice", None, None, json.dumps({"n": n}).encode(), f"ValueError: {n} is refused"] += 1
            else:
                good[2 * n] += 1
        assert good == Counter(row["n"] for row in seen(self.tmp_path / "good"))
        assert unread + refused == Counter(tuple(row.values()) for row in seen(self.tmp_path / "bad"))


def kill_one(cluster: LocalCluster, job_id: str, restarts: int) -> None:
    details = cluster.client.get_job(job_id)
    busy = {s.resource_id for vertex in details.vertices for s in vertex.subtasks if s.resource_id}
    next(one for one in cluster.task_managers if one.resource_id in busy).kill()
    wait_until(lambda: cluster.client.get_job(job_id).overview.restarts > restarts, "the restart", seconds=PATIENCE)
    wait_until(lambda: cluster.status(job_id) is JobStatus.RUNNING, "the job to run", seconds=PATIENCE)


def test_bad_rows_come_out_once_through_kills_and_another_parallelism(tmp_path: Path) -> None:
    """Both before and behind the kills there are bad rows that are committed and others that are not."""
    kafka = services.start(tmp_path, nodes=1)
    try:
        run = Run(tmp_path, kafka)
        run.write_files()
        run.send(0)
        with LocalCluster(tmp_path / "cluster", slots=(2, 2, 2, 2)) as cluster:

            def wait_for_rows(least: int) -> None:
                wait_until(lambda: run.rows_out() >= least, f"{least} rows", seconds=PATIENCE)

            cluster.wait_for_task_managers()
            job_id = run.start(cluster, 2)
            wait_for_rows(1)
            kill_one(cluster, job_id, 0)
            wait_for_rows(FILES * ROWS + 1)
            run.send(1)
            kill_one(cluster, job_id, 1)
            wait_for_rows(FILES * ROWS + MESSAGES + 1)
            path = cluster.client.stop_with_savepoint(job_id)
            run.send(2)
            job_id = run.start(cluster, 3, path)
            wait_for_rows(len(run.places))
            cluster.client.stop_with_savepoint(job_id)
        run.check()
    finally:
        services.stop(kafka)
