"""Files first, then a topic of Kafka, exactly once: TaskManagers are killed while files are read and behind the switch,
and the job goes on from a savepoint at another parallelism. Every row of both comes out once."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pyarrow as pa
import pyarrow.dataset as ds
import pytest

from snapline.connectors import FileSink, FileSource, HybridSource, JsonFormat, KafkaSource
from snapline.dataflow.wire.messages import JobStatus
from tests.services import kafka as services
from tests.services.cluster import LocalCluster, wait_until
from tests.services.kafka import Kafka

pytestmark = [pytest.mark.rare, pytest.mark.timeout(600)]
SCHEMA = pa.schema([("n", pa.int64())])
FILES, ROWS, MESSAGES, PARTITIONS = 8, 400, 300, 3
PATIENCE = 200


def committed(output: Path) -> Counter[int]:
    """What readers of the output see."""
    files = [str(path) for path in output.glob("*.parquet")]
    return Counter(ds.dataset(files).to_table()["n"].to_pylist() if files else ())


def start(cluster: LocalCluster, tmp_path: Path, kafka: Kafka, topic: str, parallelism: int, restore: str = "") -> str:
    environment = cluster.environment(parallelism=parallelism, interval="150 ms")
    files = FileSource(tmp_path / "in", JsonFormat(SCHEMA), batch_rows=20)
    topics = KafkaSource(
        topic, bootstrap_servers=kafka.bootstrap, format=JsonFormat(SCHEMA), batch_rows=20, partition_discovery_ms=100
    )
    stream = environment.from_source(HybridSource(files, topics), uid="in")
    stream.sink_to(FileSink(tmp_path / "out"), uid="out")
    if restore:
        environment.restore_from(restore)
    return cluster.submit(environment, "hybrid")


def kill_one(cluster: LocalCluster, job_id: str, restarts: int) -> None:
    details = cluster.client.get_job(job_id)
    busy = {s.resource_id for vertex in details.vertices for s in vertex.subtasks if s.resource_id}
    next(one for one in cluster.task_managers if one.resource_id in busy).kill()
    wait_until(lambda: cluster.client.get_job(job_id).overview.restarts > restarts, "the restart", seconds=PATIENCE)
    wait_until(lambda: cluster.status(job_id) is JobStatus.RUNNING, "the job to run", seconds=PATIENCE)


def test_files_then_a_topic_with_kills_and_another_parallelism(tmp_path: Path) -> None:
    """What is in the topic from the start on is read behind the files, and what is sent later as well."""
    (tmp_path / "in").mkdir()
    for file in range(FILES):
        lines = "".join(f'{{"n": {file * ROWS + n}}}\n' for n in range(ROWS))
        (tmp_path / "in" / f"{file}.json").write_text(lines)
    kafka = services.start(tmp_path, nodes=1)
    try:
        topic = kafka.topic(PARTITIONS)

        def send(portion: int) -> int:
            first = FILES * ROWS + portion * MESSAGES
            for partition in range(PARTITIONS):
                values = [b'{"n": %d}' % n for n in range(first + partition, first + MESSAGES, PARTITIONS)]
                kafka.send(topic, values, partition=partition)
            return first + MESSAGES

        def wait_for_rows(least: int) -> None:
            wait_until(
                lambda: committed(tmp_path / "out").total() >= least, f"{least} committed rows", seconds=PATIENCE
            )

        send(0)
        with LocalCluster(tmp_path / "cluster", slots=(2, 2, 2, 2)) as cluster:
            cluster.wait_for_task_managers()
            job_id = start(cluster, tmp_path, kafka, topic, 2)
            wait_for_rows(1)
            kill_one(cluster, job_id, 0)
            wait_for_rows(FILES * ROWS + 1)
            end = send(1)
            kill_one(cluster, job_id, 1)
            wait_for_rows(end)
            path = cluster.client.stop_with_savepoint(job_id)
            end = send(2)
            job_id = start(cluster, tmp_path, kafka, topic, 3, path)
            wait_for_rows(end)
            cluster.client.stop_with_savepoint(job_id)
    finally:
        services.stop(kafka)
    assert Counter(range(end)) == committed(tmp_path / "out")
