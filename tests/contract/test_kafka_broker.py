"""Kafka's promises as foreign clients see them (librdkafka and kafka-python): our test broker keeps them, and so does a
real cluster (`make kafka-check BROKERS=host:port` runs this file against one)."""

from __future__ import annotations

import socket
import uuid
from pathlib import Path

import confluent_kafka
import kafka as kafka_python
import pytest
from confluent_kafka import KafkaException, TopicPartition

from tests.services import kafka as services
from tests.services.kafka import PATIENCE_SECONDS, QUIET, needs_faults
from tests.services.kafka_broker import KafkaBroker

ABORTED = b"aborted"


@pytest.fixture
def kafka(tmp_path):
    running = services.start(tmp_path, nodes=2)
    yield running
    services.stop(running)


def numbers(*bounds):
    return [b"%d" % number for number in range(*bounds)]


def error_of(failing):
    with pytest.raises(KafkaException) as raised:
        failing()
    return raised.value.args[0]


def test_only_committed_rows_are_read(kafka):
    """A read_committed reader sees what was committed, and neither what was aborted nor what is open; a
    read_uncommitted one sees all."""
    topic = kafka.topic(3)
    producer = kafka.transactional()
    for value in numbers(10):
        producer.produce(topic, value, value)
    producer.commit_transaction(PATIENCE_SECONDS)
    producer.begin_transaction()
    for value in numbers(10):
        producer.produce(topic, ABORTED, value)
    producer.flush(PATIENCE_SECONDS)
    producer.abort_transaction(PATIENCE_SECONDS)
    producer.begin_transaction()
    producer.produce(topic, b"open")
    producer.flush(PATIENCE_SECONDS)

    assert numbers(10) == kafka.values(topic)
    assert sorted([*numbers(10), *[ABORTED] * 10, b"open"]) == kafka.values(topic, isolation="read_uncommitted")
    producer.abort_transaction(PATIENCE_SECONDS)


def test_nothing_behind_an_open_transaction_is_read(kafka):
    """The last stable offset stands at the first open transaction, also for what others committed behind it."""
    topic = kafka.topic()
    waiting = kafka.transactional()
    waiting.produce(topic, b"first")
    waiting.flush(PATIENCE_SECONDS)
    other = kafka.transactional()
    other.produce(topic, b"second")
    other.commit_transaction(PATIENCE_SECONDS)

    before = kafka.values(topic)
    waiting.commit_transaction(PATIENCE_SECONDS)

    assert ([], [b"first", b"second"]) == (before, kafka.values(topic))


def test_a_zombie_is_fenced(kafka):
    """A second producer with the same transactional id aborts the first one's transaction, and the first cannot go
    on."""
    topic, name = kafka.topic(), f"id-{uuid.uuid4().hex}"
    zombie = kafka.transactional(name)
    zombie.produce(topic, ABORTED)
    zombie.flush(PATIENCE_SECONDS)
    successor = kafka.transactional(name)
    successor.produce(topic, b"new")

    error = error_of(lambda: zombie.commit_transaction(PATIENCE_SECONDS))
    successor.commit_transaction(PATIENCE_SECONDS)

    assert confluent_kafka.KafkaError._FENCED == error.code()
    assert [b"new"] == kafka.values(topic)


def test_offsets_of_a_transaction_are_there_with_its_rows(kafka):
    """Offsets that were sent into a transaction are the group's when it is committed, not before, and not when it is
    aborted."""
    topic, group = kafka.topic(), f"group-{uuid.uuid4().hex}"
    consumer = confluent_kafka.Consumer({"bootstrap.servers": kafka.bootstrap, "group.id": group, **QUIET})

    def committed():
        return consumer.committed([TopicPartition(topic, 0)], PATIENCE_SECONDS)[0].offset

    producer = kafka.transactional()
    seen = []
    for offset, end in ((3, producer.abort_transaction), (5, producer.commit_transaction)):
        if offset == 5:
            producer.begin_transaction()
        producer.produce(topic, b"row")
        sent = [TopicPartition(topic, 0, offset)]
        producer.send_offsets_to_transaction(sent, consumer.consumer_group_metadata(), PATIENCE_SECONDS)
        end(PATIENCE_SECONDS)
        seen.append(committed())
    consumer.close()

    assert [confluent_kafka.OFFSET_INVALID, 5] == seen


def test_kafka_python_reads_and_writes_too(kafka):
    """Another client, written from nothing, agrees: its transactions are read by librdkafka, and it reads committed
    rows only."""
    topic = kafka.topic()
    producer = kafka_python.KafkaProducer(
        bootstrap_servers=kafka.bootstrap.split(","), transactional_id=f"id-{uuid.uuid4().hex}"
    )
    producer.init_transactions()
    for value, end in ((b"one", producer.commit_transaction), (ABORTED, producer.abort_transaction)):
        producer.begin_transaction()
        producer.send(topic, value).get(PATIENCE_SECONDS)
        end()
    producer.close()
    consumer = kafka_python.KafkaConsumer(
        bootstrap_servers=kafka.bootstrap.split(","), isolation_level="read_committed", auto_offset_reset="earliest"
    )
    consumer.assign([kafka_python.TopicPartition(topic, 0)])
    end = consumer.end_offsets([kafka_python.TopicPartition(topic, 0)])
    found = []
    while consumer.position(kafka_python.TopicPartition(topic, 0)) < min(end.values()):
        found += [one.value for batch in consumer.poll(200).values() for one in batch]
    consumer.close()

    assert ([b"one"], [b"one"]) == (found, kafka.values(topic))


def test_a_group_shares_its_partitions(kafka):
    """Two members have all partitions together; one that leaves gives its own back; committed offsets are kept."""
    topic, group = kafka.topic(4), f"group-{uuid.uuid4().hex}"
    kafka.send(topic, numbers(40))
    settings = {
        "bootstrap.servers": kafka.bootstrap, "group.id": group, "auto.offset.reset": "earliest", "enable.auto.commit": False,
        "session.timeout.ms": 6000, "heartbeat.interval.ms": 200, **QUIET,
    }  # fmt: skip
    consumers = [confluent_kafka.Consumer(settings) for _ in range(2)]
    for consumer in consumers:
        consumer.subscribe([topic])

    def poll_until(condition):
        for _ in range(600):
            for consumer in consumers:
                consumer.poll(0.05)
            if condition():
                return
        raise AssertionError([consumer.assignment() for consumer in consumers])

    poll_until(lambda: [2, 2] == [len(consumer.assignment()) for consumer in consumers])
    leaving = consumers.pop()
    leaving.close()
    poll_until(lambda: [4] == [len(consumer.assignment()) for consumer in consumers])
    ends = [TopicPartition(topic, number, 7) for number in range(4)]
    consumers[0].commit(offsets=ends, asynchronous=False)
    kept = [one.offset for one in consumers[0].committed(ends, PATIENCE_SECONDS)]
    consumers[0].close()

    assert [7] * 4 == kept


def test_the_first_row_after_a_time_is_found(kafka):
    """Offsets are looked up by time."""
    topic = kafka.topic()
    producer = kafka.producer()
    for number in range(10):
        producer.produce(topic, b"x", timestamp=1_000_000 + number * 1000)
    producer.flush(PATIENCE_SECONDS)
    consumer = confluent_kafka.Consumer({"bootstrap.servers": kafka.bootstrap, "group.id": "times", **QUIET})
    asked = [TopicPartition(topic, 0, time_ms) for time_ms in (0, 1_003_500, 1_009_000, 9_999_999)]
    found = [consumer.offsets_for_times([one], PATIENCE_SECONDS)[0].offset for one in asked]
    consumer.close()

    assert [0, 4, 9, confluent_kafka.OFFSET_END] == found


def test_a_row_that_is_too_large_is_refused(kafka):
    """The topic says how large a batch may be."""
    topic = kafka.topic(1, **{"max.message.bytes": "1000"})
    failed = []
    producer = kafka.producer()
    producer.produce(topic, b"x" * 5000, on_delivery=lambda error, _: failed.append(error.code()))
    producer.flush(PATIENCE_SECONDS)

    assert [confluent_kafka.KafkaError.MSG_SIZE_TOO_LARGE] == failed
    assert [] == kafka.values(topic)


@needs_faults
def test_a_transaction_that_takes_too_long_is_aborted(kafka):
    """The coordinator aborts it and fences its producer."""
    topic = kafka.topic()
    slow = kafka.transactional(transaction_timeout_ms=60_000)
    slow.produce(topic, ABORTED)
    slow.flush(PATIENCE_SECONDS)
    kafka.broker.advance(61_000)

    error = error_of(lambda: slow.commit_transaction(PATIENCE_SECONDS))

    assert confluent_kafka.KafkaError._FENCED == error.code()
    assert ([], []) == (kafka.values(topic), kafka.broker.open_transactions())


@needs_faults
def test_answers_that_are_lost_make_no_row_twice(kafka):
    """An idempotent producer sends its batch again when the connection breaks after the write; it is in the log
    once."""
    topic = kafka.topic()
    kafka.broker.fail("Produce", "disconnect", when="after", count=3)
    producer = kafka.producer(enable_idempotence=True, reconnect_backoff_max_ms=200)
    for value in numbers(5):
        producer.produce(topic, value)
        assert producer.flush(PATIENCE_SECONDS) == 0

    assert numbers(5) == kafka.values(topic)


@needs_faults
@pytest.mark.parametrize(
    "fact", [("transaction", 1), ("append", 1), ("append", 2), ("end_offsets", 1), ("transaction", 2)]
)
def test_a_commit_is_whole_wherever_the_cluster_dies(kafka, fact):
    """Once the decision is in the journal, all markers are written, after a restart if need be; before, nothing is
    visible."""
    topic = kafka.topic(3)
    producer = kafka.transactional(reconnect_backoff_max_ms=200)
    for value in numbers(30):
        producer.produce(topic, value, value)
    producer.flush(PATIENCE_SECONDS)
    kafka.broker.crash_after(*fact)
    producer.commit_transaction(PATIENCE_SECONDS)

    assert sorted(numbers(30)) == kafka.values(topic)
    assert [] == kafka.broker.open_transactions()


@needs_faults
def test_what_was_written_outlives_a_crash(kafka):
    """Rows, offsets of groups and open transactions are there again, and the open transaction can be committed."""
    topic = kafka.topic(2)
    kafka.send(topic, numbers(10))
    producer = kafka.transactional(reconnect_backoff_max_ms=200)
    producer.produce(topic, b"open")
    producer.flush(PATIENCE_SECONDS)
    kafka.broker.crash()
    kafka.broker.restart()
    still_open = len(kafka.broker.open_transactions())
    producer.commit_transaction(PATIENCE_SECONDS)

    assert (1, sorted([*numbers(10), b"open"])) == (still_open, kafka.values(topic))


@needs_faults
def test_partitions_move_when_a_node_dies(kafka):
    """Another node leads them, and clients find it."""
    topic = kafka.topic(4)
    kafka.send(topic, numbers(20))
    kafka.broker.stop_node(0)
    kafka.send(topic, numbers(20, 30))

    assert sorted(numbers(30)) == kafka.values(topic)


def test_who_has_no_password_is_refused(tmp_path):
    """SASL PLAIN: the wrong password is an error of authentication, the right one works."""
    running = KafkaBroker(tmp_path, users={"ann": "secret"})
    found = []
    for password in ("wrong", "secret"):
        errors: list[int] = []
        settings = {
            "bootstrap.servers": running.bootstrap, "security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN",
            "sasl.username": "ann", "sasl.password": password, "error_cb": lambda error, to=errors: to.append(error.code()), **QUIET,
        }  # fmt: skip
        producer = confluent_kafka.Producer(settings)
        try:
            found.append(len(producer.list_topics(timeout=3).brokers))
        except KafkaException:
            producer.poll(0)
            found.append(confluent_kafka.KafkaError._AUTHENTICATION in errors)
    running.close()

    assert [True, 1] == found


def test_the_port_of_a_broker_that_is_down_stays_its_own(tmp_path: Path) -> None:
    """Another process of a busy machine got it, and the broker could not start."""
    with KafkaBroker(tmp_path) as broker:
        broker.crash()
        with socket.socket() as another, pytest.raises(OSError, match="in use"):
            another.bind(("127.0.0.1", broker.ports[0]))
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", broker.ports[0]))
        broker.restart()
        socket.create_connection(("127.0.0.1", broker.ports[0])).close()
