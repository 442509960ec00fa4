"""From Kafka through keyed windows to Kafka, exactly once: straight through, with kills, and stopped with a savepoint
and restored at other parallelisms. A read_committed reader sees every row and every window once, and no transaction
stays open."""

from __future__ import annotations

from collections import Counter
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import snapline as sl
from snapline import TumblingEventTimeWindows, WatermarkStrategy
from snapline.connectors.formats import JsonFormat
from snapline.connectors.kafka import KafkaSink, KafkaSource
from snapline.dataflow.wire.messages import JobStatus
from tests.services import kafka as services
from tests.services.cluster import LocalCluster, wait_until
from tests.services.kafka import PATIENCE_SECONDS

pytestmark = pytest.mark.timeout(600)
PARTITIONS, KEYS, ROWS = 4, 7, 3_000
STEP_MS, WINDOW_MS = 10, 1_000
END_MS = 10**9
END_KEY = -1
INPUT = pa.schema([("k", pa.int64()), ("v", pa.int64())])
SUMS = pa.schema([("k", pa.int64()), ("window_start", pa.int64()), ("n", pa.int64()), ("total", pa.int64())])
PATIENCE = 200


@pytest.fixture(scope="module")
def kafka(tmp_path_factory):
    running = services.start(tmp_path_factory.mktemp("kafka"), nodes=2)
    yield running
    services.stop(running)


class Topics:
    """Of one test, and what is in them."""

    def __init__(self, kafka):
        self.kafka = kafka
        self.input, self.rows, self.sums = kafka.topic(PARTITIONS), kafka.topic(PARTITIONS), kafka.topic(2)
        self.sent, self.partitions = 0, PARTITIONS

    def send(self, until):
        """Rows, a partition after the other, in the order of their times."""
        producer = self.kafka.producer()
        for n in range(self.sent, until):
            value = b'{"k": %d, "v": %d}' % (n % KEYS, n)
            producer.produce(self.input, value, partition=n % self.partitions, timestamp=1 + n * STEP_MS)
        assert producer.flush(PATIENCE_SECONDS) == 0
        self.sent = until

    def end(self):
        """A row in each partition that closes all windows but its own."""
        producer = self.kafka.producer()
        for partition in range(self.partitions):
            producer.produce(self.input, b'{"k": %d, "v": 0}' % END_KEY, partition=partition, timestamp=END_MS)
        assert producer.flush(PATIENCE_SECONDS) == 0

    def values(self):
        """That came out, committed."""
        rows, bad = JsonFormat(INPUT).decode(self.kafka.values(self.rows))
        assert not bad
        return [row["v"] for row in rows.to_pylist() if row["k"] != END_KEY]

    def windows(self):
        """By key and start."""
        rows, bad = JsonFormat(SUMS).decode(self.kafka.values(self.sums))
        assert not bad
        return Counter(tuple(row.values()) for row in rows.to_pylist() if row["k"] != END_KEY)

    def expected_windows(self):
        """From the rows alone."""
        found: dict[tuple[int, int], list[int]] = {}
        for n in range(self.sent):
            start = (1 + n * STEP_MS) // WINDOW_MS * WINDOW_MS
            found.setdefault((n % KEYS, start), []).append(n)
        return Counter((k, start, len(rows), sum(rows)) for (k, start), rows in found.items())

    def check(self, prefix):
        """Everything once, nothing open."""
        assert list(range(self.sent)) == sorted(self.values())
        assert self.expected_windows() == self.windows()
        assert [] == self.kafka.open_transactions(prefix)


def start_as_number(batch):
    """Times as JSON numbers."""
    starts = pc.divide(batch.column("window_start").cast(pa.timestamp("us")).cast(pa.int64()), 1000)
    columns = [batch.column("k"), starts, batch.column("n"), batch.column("total")]
    return pa.RecordBatch.from_arrays([c.cast(f.type) for c, f in zip(columns, SUMS, strict=True)], schema=SUMS)


def start(cluster, topics, prefix, *, parallelism=2, stop=None, restore="", discovery_ms=None):
    kafka = topics.kafka
    environment = cluster.environment(parallelism=parallelism, interval="300 ms")
    source = KafkaSource(
        topics.input, bootstrap_servers=kafka.bootstrap, format=JsonFormat(INPUT), metadata={"timestamp": "t"}, stop=stop,
        batch_rows=64, partition_discovery_ms=discovery_ms,
    )  # fmt: skip
    to_kafka = partial(
        KafkaSink,
        bootstrap_servers=kafka.bootstrap,
        transactional_id_prefix=prefix,
        settings={"reconnect.backoff.max.ms": 200},
    )
    stream = environment.from_source(source, WatermarkStrategy.for_monotonous_timestamps("t"), uid="in")
    stream.sink_to(to_kafka(topics.rows, format=JsonFormat(INPUT), key="k"), uid="rows")
    windows = stream.key_by("k").window(TumblingEventTimeWindows(WINDOW_MS))
    sums = windows.aggregate(uid="sums", n=sl.count(), total=sl.sum("v")).map_batches(
        start_as_number, uid="plain", schema=SUMS
    )
    sums.sink_to(to_kafka(topics.sums, format=JsonFormat(SUMS)), uid="sums-sink")
    if restore:
        environment.restore_from(restore)
    return cluster.submit(environment, "kafka")


def committed(topics, least):
    wait_until(lambda: len(topics.values()) >= least, f"{least} committed rows", seconds=PATIENCE)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    with LocalCluster(tmp_path_factory.mktemp("cluster"), slots=(2, 2)) as cluster:
        cluster.wait_for_task_managers()
        yield cluster


def test_straight_through(kafka, cluster):
    """A bounded job."""
    topics = Topics(kafka)
    topics.send(ROWS)
    topics.end()
    job_id = start(cluster, topics, topics.rows, stop="latest")
    cluster.wait_for(job_id, JobStatus.FINISHED)
    topics.check(topics.rows)


@pytest.mark.rare
def test_with_kills(kafka, tmp_path):
    """TaskManagers that run tasks die by signal 9, three times, each time with rows that are committed and rows that
    are not."""
    topics = Topics(kafka)
    with LocalCluster(tmp_path / "cluster", slots=(2, 2, 2, 2)) as cluster:
        cluster.wait_for_task_managers()
        job_id = start(cluster, topics, topics.rows)
        for kill in range(3):
            topics.send((kill + 1) * ROWS // 4)
            committed(topics, kill * ROWS // 4 + 1)
            details = cluster.client.get_job(job_id)
            busy = {s.resource_id for vertex in details.vertices for s in vertex.subtasks if s.resource_id}
            next(one for one in cluster.task_managers if one.resource_id in busy).kill()
            wait_until(lambda: cluster.client.get_job(job_id).overview.restarts > kill, "the restart", seconds=PATIENCE)  # noqa: B023
            wait_until(lambda: cluster.status(job_id) is JobStatus.RUNNING, "the job to run", seconds=PATIENCE)
        topics.send(ROWS)
        topics.end()
        committed(topics, ROWS)
        wait_until(lambda: topics.windows() == topics.expected_windows(), "all windows", seconds=PATIENCE)
        cluster.client.stop_with_savepoint(job_id)
    topics.check(topics.rows)


def test_savepoints_and_other_parallelisms(kafka, cluster):
    """At 2, then 3, then 1; each time in the middle of windows, and more subtasks than some have partitions."""
    topics = Topics(kafka)
    path = ""
    for number, parallelism in enumerate((2, 3, 1)):
        job_id = start(cluster, topics, topics.rows, parallelism=parallelism, restore=path)
        topics.send((number + 1) * ROWS // 3)
        if number == 2:
            topics.end()
        committed(topics, number * ROWS // 3 + 1)
        if number == 2:
            wait_until(lambda: topics.windows() == topics.expected_windows(), "all windows", seconds=PATIENCE)
        path = cluster.client.stop_with_savepoint(job_id)
    topics.check(topics.rows)


def test_partitions_that_are_added_a_kill_and_a_savepoint(kafka, tmp_path):
    """Partitions come while the job runs, while it restarts, and while it is stopped; rows of each come out once.
    Which of them are late for their windows depends on when a partition is found."""
    topics = Topics(kafka)

    def grow(part):
        topics.partitions = PARTITIONS + 2 * part
        kafka.add_partitions(topics.input, topics.partitions)
        topics.send(part * ROWS // 6)

    with LocalCluster(tmp_path / "cluster", slots=(2, 2, 2)) as cluster:
        cluster.wait_for_task_managers()
        topics.send(ROWS // 12)
        job_id = start(cluster, topics, topics.rows, discovery_ms=50)
        committed(topics, 1)
        grow(1)
        committed(topics, ROWS // 6)
        details = cluster.client.get_job(job_id)
        busy = {s.resource_id for vertex in details.vertices for s in vertex.subtasks if s.resource_id}
        next(one for one in cluster.task_managers if one.resource_id in busy).kill()
        grow(2)
        committed(topics, ROWS // 3)
        path = cluster.client.stop_with_savepoint(job_id)
        grow(3)
        job_id = start(cluster, topics, topics.rows, parallelism=3, restore=path, discovery_ms=50)
        committed(topics, ROWS // 2)
        cluster.client.stop_with_savepoint(job_id)
    assert list(range(topics.sent)) == sorted(topics.values())
    assert [] == kafka.open_transactions(topics.rows)
