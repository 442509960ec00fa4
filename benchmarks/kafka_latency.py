"""Latency from Kafka to Kafka: from the moment at which a row was due in one topic until a consumer of another has it.

A coordinator and a TaskManager, as processes of their own, run Kafka -> map -> Kafka; the broker is a third, and is not
Apache Kafka. Rows carry the time at which they were due by an even clock, so that a producer that falls behind counts
as latency. Who reads is a consumer with `read_committed`. Exactly once a row is seen when its checkpoint is complete:
it waits half an interval on average, and a whole one at the worst, before it can be committed. Each subtask needs a new
transaction for each checkpoint, and to prepare one takes a tenth of a second: intervals that are shorter gain nothing.

    python -m benchmarks.kafka_latency --rate 1000 --seconds 20 --intervals 250ms 1s
    python -m benchmarks.kafka_latency --brokers localhost:9092
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import confluent_kafka
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from benchmarks.cluster import fail, versions
from benchmarks.connectors import PARTITIONS, QUIET, brokers, topic_of
from snapline.connectors.formats import JsonFormat
from snapline.connectors.kafka import KafkaSink, KafkaSource
from snapline.dataflow.errors import SnaplineError
from tests.services.cluster import LocalCluster, wait_until

SCHEMA = pa.schema([("due_us", pa.int64()), ("value", pa.int64())])
PATIENCE_S = 60.0
SHARES = {"p50": 0.5, "p99": 0.99, "p999": 0.999}


def doubled(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The function of the job."""
    return batch.set_column(1, SCHEMA.field(1), pc.multiply(batch.column("value"), 2))


class Sender(threading.Thread):
    """Sends rows at an even rate until it is told to stop."""

    def __init__(self, bootstrap: str, topic: str, rate: int) -> None:
        super().__init__(name="sender")
        self._producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap, "linger.ms": 0, **QUIET})
        self._topic = topic
        self._rate = rate
        self._stopped = threading.Event()

    def run(self) -> None:
        """Send what is due, and wait until the next row is."""
        begin, sent = time.time(), 0
        while not self._stopped.wait(max(0.0, begin + sent / self._rate - time.time())):
            while begin + sent / self._rate <= time.time():
                due_us = int((begin + sent / self._rate) * 1e6)
                self._producer.produce(self._topic, json.dumps({"due_us": due_us, "value": sent}).encode())
                sent += 1
            self._producer.poll(0)
        self._producer.flush()

    def stop(self) -> None:
        """End it, and wait until it has."""
        self._stopped.set()
        self.join()


@contextmanager
def running_job(
    cluster: LocalCluster, bootstrap: str, topics: tuple[str, str], guarantee: Any, interval: str
) -> Iterator[None]:
    """A job that runs, and has completed a checkpoint; it is cancelled in the end."""
    environment = cluster.environment(parallelism=2, interval=interval)
    form = JsonFormat(SCHEMA)
    source = KafkaSource(topics[0], bootstrap_servers=bootstrap, format=form)
    stream = environment.from_source(source, uid="in").map_batches(doubled, uid="map", schema=SCHEMA)
    stream.sink_to(KafkaSink(topics[1], bootstrap_servers=bootstrap, format=form, guarantee=guarantee), uid="out")
    job_id = cluster.submit(environment, "latency")
    cluster.wait_for_checkpoints(job_id, 1)
    yield
    cluster.cancel(job_id)


def latencies_us(bootstrap: str, topic: str, warm_up_s: float, seconds: float) -> list[int]:
    """How old the rows are that come in so many seconds, after a while that nobody counts."""
    settings = {"bootstrap.servers": bootstrap, "group.id": "latency", "isolation.level": "read_committed", **QUIET}
    consumer = confluent_kafka.Consumer({**settings, "enable.auto.commit": False, "fetch.wait.max.ms": 20})
    consumer.assign([confluent_kafka.TopicPartition(topic, number, 0) for number in range(PARTITIONS)])
    found: list[int] = []
    begin: float | None = None

    def came() -> bool:
        nonlocal begin
        first = consumer.poll(0.02)
        came_first = [] if first is None else [first]
        messages = [each for each in (*came_first, *consumer.consume(1000, 0)) if each.error() is None]
        now = time.time()
        if messages and begin is None:
            begin = now + warm_up_s
        if begin is not None and now >= begin:
            found.extend(int(now * 1e6) - json.loads(each.value() or b"")["due_us"] for each in messages)
        return begin is not None and now >= begin + seconds

    try:
        wait_until(came, "rows that came through the job", PATIENCE_S + warm_up_s + seconds, lambda: len(found))
    finally:
        consumer.close()
    return found


def measure(
    cluster: LocalCluster, bootstrap: str, guarantee: Any, interval: str, options: argparse.Namespace
) -> dict[str, Any]:
    """Run the job with this guarantee and interval of checkpoints, and return percentiles of its latency in
    milliseconds."""
    topics = (topic_of(bootstrap), topic_of(bootstrap))
    with running_job(cluster, bootstrap, topics, guarantee, interval):
        sender = Sender(bootstrap, topics[0], options.rate)
        sender.start()
        try:
            found = latencies_us(bootstrap, topics[1], options.warm_up, options.seconds)
        finally:
            sender.stop()
    figures = {name: round(float(np.quantile(found, share)) / 1000, 1) for name, share in SHARES.items()}
    return {"guarantee": guarantee, "interval": interval, **figures, "max": max(found) / 1000, "rows": len(found)}


def main(arguments: list[str] | None = None) -> int:
    """Print a line for each guarantee and interval of checkpoints."""
    cli = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    cli.add_argument("--rate", type=int, default=1000, help="rows per second")
    cli.add_argument("--seconds", type=float, default=20)
    cli.add_argument("--warm-up", type=float, default=5)
    cli.add_argument("--intervals", nargs="+", default=["250ms", "1s"], help="of checkpoints, exactly once")
    cli.add_argument("--brokers", default="", help="a real cluster; default is the test broker")
    options = cli.parse_args(arguments)
    directory = Path(tempfile.mkdtemp(prefix="snapline-kafka-latency-"))
    cases = [("at_least_once", "1s"), *(("exactly_once", interval) for interval in options.intervals)]
    print(f"Kafka to Kafka at {options.rate:,} rows/s, {versions()}")
    print(
        f"{'':16}{'checkpoints':>12}" + "".join(f"{name + ', ms':>12}" for name in (*SHARES, "max")) + f"{'rows':>10}"
    )
    try:
        with brokers(options.brokers) as bootstrap, LocalCluster(directory, slots=(2,)) as cluster:
            cluster.wait_for_task_managers()
            for guarantee, interval in cases:
                found = measure(cluster, bootstrap, guarantee, interval, options)
                shown = "".join(f"{found[name]:12,.1f}" for name in (*SHARES, "max"))
                print(f"{guarantee:16}{interval:>12}{shown}{found['rows']:10,}", flush=True)
    except (SnaplineError, RuntimeError, AssertionError) as error:
        return fail(error)
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
