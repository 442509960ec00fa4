"""Connectors beside what the bare library does in a loop: rows a second of processor time, in this process.

Kafka in: `KafkaSource`'s reader, which makes Arrow batches, and a loop over `Consumer.consume` that makes the same
values in Python. Kafka out: `KafkaSink`'s writer with a pre-commit and commit at the end, and a loop of
`Producer.produce` that ends in a flush. The broker is a process of its own, and is not Apache Kafka: so processor time
of the client is measured, librdkafka's threads included, and not how long it took. Pairs are interleaved; the figures
are medians.

    python -m benchmarks.connectors --rows 200000
    python -m benchmarks.connectors --brokers localhost:9092
"""

from __future__ import annotations

import argparse
import io
import json
import statistics
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import confluent_kafka
import fastavro
import pyarrow as pa
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from snapline.connectors.formats import AvroFormat, JsonFormat, RawFormat, RowFormat
from snapline.connectors.kafka import KafkaSink, KafkaSource
from snapline.dataflow.api.connector_api import InputStatus
from snapline.dataflow.api.user_metrics import MetricGroup

PARTITIONS = 4
SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string()), ("price", pa.float64()), ("paid", pa.bool_())])
AVRO = {
    "type": "record", "name": "order", "fields": [
        {"name": "id", "type": "long"}, {"name": "name", "type": "string"}, {"name": "price", "type": "double"},
        {"name": "paid", "type": "boolean"},
    ],
}  # fmt: skip
PARSED = fastavro.parse_schema(dict(AVRO))
QUIET = {"log_level": 0}


@dataclass(frozen=True)
class Place:
    """What a reader and a writer are told."""

    subtask_index: int = 0
    parallelism: int = 1
    attempt_number: int = 0
    job_id: str = "benchmark"
    operator_uid: str = "kafka"
    execution_attempt: str = "attempt"
    metrics: MetricGroup = field(default_factory=lambda: MetricGroup("kafka"), compare=False)


def avro_value(row: dict[str, Any]) -> bytes:
    """Of one row, by the bare library."""
    data = io.BytesIO()
    fastavro.schemaless_writer(data, PARSED, row)
    return data.getvalue()


FORMATS: dict[str, tuple[RowFormat, Callable[[bytes], Any], Callable[[dict[str, Any]], bytes]]] = {
    "raw": (RawFormat(), lambda value: value, lambda row: row["value"]),
    "json": (JsonFormat(SCHEMA), json.loads, lambda row: json.dumps(row).encode()),
    "avro": (AvroFormat(AVRO), lambda value: fastavro.schemaless_reader(io.BytesIO(value), PARSED, None), avro_value),
}
"""Ours, and what a loop does with a value and with a row."""


@contextmanager
def brokers(given: str) -> Iterator[str]:
    """Those that were given, or ours in a process of its own."""
    if given:
        yield given
        return
    command = [sys.executable, "-m", "tests.services.kafka_broker"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None  # noqa: S101 - asked for above
            yield process.stdout.readline().strip()
        finally:
            process.terminate()


def topic_of(bootstrap: str) -> str:
    """Create a topic with a name of its own, and return the name."""
    name = f"benchmark-{uuid.uuid4().hex[:8]}"
    admin = AdminClient({"bootstrap.servers": bootstrap, **QUIET})
    for made in admin.create_topics([NewTopic(name, PARTITIONS)]).values():
        made.result(30)
    return name


def rows_of(kind: str, count: int) -> pa.RecordBatch:
    """The rows of a run; raw ones are the bytes of the JSON ones."""
    columns = {"id": range(count), "name": [f"customer {n % 1000}" for n in range(count)]}
    values = {**columns, "price": [n / 4 for n in range(count)], "paid": [n % 3 == 0 for n in range(count)]}
    batch = pa.RecordBatch.from_pydict(values, SCHEMA)
    if kind != "raw":
        return batch
    return pa.RecordBatch.from_pydict({"value": pa.array(JsonFormat(SCHEMA).encode(batch), pa.binary())})


def read_with_us(bootstrap: str, topic: str, kind: str) -> int:
    """Read the topic through KafkaSource, and return the number of rows."""
    source = KafkaSource(topic, bootstrap_servers=bootstrap, format=FORMATS[kind][0], stop="latest")
    reader = source.create_reader(Place())
    reader.add_splits(source.enumerate_splits())
    rows = 0
    while (polled := reader.poll_next(int(time.time() * 1000))).status is not InputStatus.END_OF_INPUT:
        if polled.status is InputStatus.NOTHING_AVAILABLE:
            time.sleep(0.01)  # as a task does
        elif polled.batch is not None:
            rows += polled.batch.num_rows
    reader.close()
    return rows


def read_in_a_loop(bootstrap: str, topic: str, kind: str, count: int) -> int:
    """Read the topic with the bare library in a loop, and return the number of rows."""
    decode = FORMATS[kind][1]
    settings = {"bootstrap.servers": bootstrap, "group.id": "loop", "auto.offset.reset": "earliest", **QUIET}
    consumer = confluent_kafka.Consumer({**settings, "enable.auto.commit": False})
    consumer.assign([confluent_kafka.TopicPartition(topic, number, 0) for number in range(PARTITIONS)])
    rows = 0
    while rows < count:
        messages = consumer.consume(8192, 0.1)
        found = [decode(message.value() or b"") for message in messages if message.error() is None]
        rows += len(found)
    consumer.close()
    return rows


def write_with_us(bootstrap: str, topic: str, kind: str, batch: pa.RecordBatch, guarantee: Any) -> None:
    """As a task does between two checkpoints."""
    place = Place(execution_attempt=uuid.uuid4().hex)
    sink = KafkaSink(topic, bootstrap_servers=bootstrap, format=FORMATS[kind][0], guarantee=guarantee)
    writer, committer = sink.create_writer(place, []), sink.create_committer(place)
    for start in range(0, batch.num_rows, 8192):
        writer.write(batch.slice(start, 8192))
    committables = writer.prepare_commit(1)
    if committer is not None:
        committer.commit(committables)
        committer.close()
    writer.close()


def write_in_a_loop(bootstrap: str, topic: str, kind: str, batch: pa.RecordBatch) -> None:
    """With an idempotent producer, a row at a time."""
    encode = FORMATS[kind][2]
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": bootstrap, "enable.idempotence": True, "queue.buffering.max.messages": 1_000_000, **QUIET}
    )
    for start in range(0, batch.num_rows, 8192):
        for row in batch.slice(start, 8192).to_pylist():
            producer.produce(topic, encode(row))
        producer.poll(0)
    producer.flush()


def measured(run: Callable[[], Any]) -> float:
    """Seconds of processor time, of all threads."""
    before = time.process_time()
    run()
    return time.process_time() - before


def main() -> int:
    """Print a line for each."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--brokers", default="", help="a real cluster; default is the test broker")
    options = parser.parse_args()
    print(
        f"Python {sys.version.split()[0]}, pyarrow {pa.__version__}, librdkafka {confluent_kafka.libversion()[0]}, {options.rows} rows"
    )
    print(f"{'':28}{'ours, rows/CPU s':>18}{'loop, rows/CPU s':>18}{'ratio':>8}{'from':>7}{'to':>7}")
    with brokers(options.brokers) as bootstrap:
        for kind in FORMATS:
            batch = rows_of(kind, options.rows)
            topic = topic_of(bootstrap)
            write_with_us(bootstrap, topic, kind, batch, "at_least_once")
            compare(
                f"Kafka in, {kind}", options, partial(read_with_us, bootstrap, topic, kind),
                partial(read_in_a_loop, bootstrap, topic, kind, options.rows),
            )  # fmt: skip
            for guarantee in ("at_least_once", "exactly_once"):
                target = topic_of(bootstrap)
                compare(
                    f"Kafka out, {kind}, {guarantee}", options, partial(write_with_us, bootstrap, target, kind, batch, guarantee),
                    partial(write_in_a_loop, bootstrap, target, kind, batch),
                )  # fmt: skip
    return 0


def compare(name: str, options: argparse.Namespace, ours: Callable[[], Any], loop: Callable[[], Any]) -> None:
    """Measure both ways in pairs, and print one line with their ratio."""
    pairs = [(measured(ours), measured(loop)) for _ in range(options.pairs)]
    mine, theirs = (options.rows / statistics.median(seconds) for seconds in zip(*pairs, strict=True))
    ratios = sorted(second / first for first, second in pairs)
    middle = statistics.median(ratios)
    print(f"{name:34}{mine:12,.0f}{theirs:18,.0f}{middle:8.2f}{ratios[0]:7.2f}{ratios[-1]:7.2f}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
