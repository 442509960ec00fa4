"""A Kafka for tests: our own broker, or the cluster that `SNAPLINE_KAFKA_BROKERS` names (`make kafka-check
BROKERS=host:port`).

Topics and transactional ids have names of their own, so that a real cluster can be used again and again.
"""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewPartitions, NewTopic

from tests.services.kafka_broker import KafkaBroker

BROKERS_VARIABLE = "SNAPLINE_KAFKA_BROKERS"
REAL_BROKERS = os.environ.get(BROKERS_VARIABLE, "")
QUIET = {"log_level": 0}
PATIENCE_SECONDS = 30
needs_faults = pytest.mark.skipif(bool(REAL_BROKERS), reason="a real cluster cannot be crashed from here")


@dataclass
class Kafka:
    """Where it is."""

    bootstrap: str
    own: KafkaBroker | None
    """None: it is a real cluster."""

    @property
    def broker(self) -> KafkaBroker:
        """Our own."""
        assert self.own is not None
        return self.own

    def topic(self, partitions: int = 1, **config: str) -> str:
        """A new one."""
        name = f"topic-{uuid.uuid4().hex[:12]}"
        admin = AdminClient({"bootstrap.servers": self.bootstrap, **QUIET})
        for made in admin.create_topics([NewTopic(name, partitions, config=config)]).values():
            made.result(PATIENCE_SECONDS)
        return name

    def add_partitions(self, topic: str, partitions: int) -> None:
        """So many there are then."""
        admin = AdminClient({"bootstrap.servers": self.bootstrap, **QUIET})
        for made in admin.create_partitions([NewPartitions(topic, partitions)]).values():
            made.result(PATIENCE_SECONDS)

    def producer(self, **configuration: Any) -> confluent_kafka.Producer:
        """Keywords with underscores for dots."""
        given = {key.replace("_", "."): value for key, value in configuration.items()}
        return confluent_kafka.Producer({"bootstrap.servers": self.bootstrap, **QUIET, **given})

    def transactional(self, transactional_id: str = "", **configuration: Any) -> confluent_kafka.Producer:
        """With a transaction begun."""
        made = self.producer(transactional_id=transactional_id or f"id-{uuid.uuid4().hex[:12]}", **configuration)
        made.init_transactions(PATIENCE_SECONDS)
        made.begin_transaction()
        return made

    def send(self, topic: str, values: Iterable[bytes], **more: Any) -> None:
        """And wait until all are there."""
        producer = self.producer()
        for value in values:
            producer.produce(topic, value, **more)
        assert producer.flush(PATIENCE_SECONDS) == 0

    def read(self, topic: str, *, isolation: str = "read_committed") -> list[Any]:
        """All messages up to the end of every partition, in the order of each."""
        consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": self.bootstrap, "group.id": f"reader-{uuid.uuid4().hex}", "enable.partition.eof": True,
                "isolation.level": isolation, "enable.auto.commit": False, "auto.offset.reset": "earliest",
                "fetch.wait.max.ms": 10, **QUIET,
            }
        )  # fmt: skip
        try:
            partitions = consumer.list_topics(topic, PATIENCE_SECONDS).topics[topic].partitions
            left = set(partitions)
            consumer.assign([confluent_kafka.TopicPartition(topic, number, 0) for number in partitions])
            found = []
            deadline = time.monotonic() + PATIENCE_SECONDS
            while left:
                assert time.monotonic() < deadline, f"the end of partitions {left} of {topic} was not reached"
                if (each := consumer.poll(1.0)) is None:  # `consume` waits for its whole time when there are fewer
                    continue
                error = each.error()
                if error is None:
                    found.append(each)
                elif error.code() == confluent_kafka.KafkaError._PARTITION_EOF:
                    left.discard(each.partition())
                else:
                    raise confluent_kafka.KafkaException(error)
            return found
        finally:
            consumer.close()

    def values(self, topic: str, *, isolation: str = "read_committed") -> list[bytes]:
        """Sorted."""
        return sorted(each.value() for each in self.read(topic, isolation=isolation))

    def open_transactions(self, prefix: str = "") -> Sequence[str]:
        """Transactional ids that begin so and have an open transaction."""
        from kafka import KafkaAdminClient

        admin = KafkaAdminClient(bootstrap_servers=self.bootstrap.split(","))
        try:
            open_states = ["Ongoing", "PrepareCommit", "PrepareAbort"]
            listed = admin.list_transactions(state_filters=open_states)
            return sorted(
                one.transactional_id
                for node in _rows(listed)
                for one in node
                if one.transactional_id.startswith(prefix)
            )
        finally:
            admin.close()


def _rows(listed: Any) -> list[list[Any]]:
    """By node, or all of them."""
    return [list(rows) for rows in listed.values()] if isinstance(listed, dict) else [list(listed)]


def start(directory: Path, **options: Any) -> Kafka:
    """The real cluster when there is one, else ours; stop it with `stop`."""
    if REAL_BROKERS:
        return Kafka(REAL_BROKERS, None)
    broker = KafkaBroker(directory, **options)
    return Kafka(broker.bootstrap, broker)


def stop(kafka: Kafka) -> None:
    """Ours only."""
    if kafka.own is not None:
        kafka.own.close()
