"""The Kafka source on a broker: where it starts and ends, positions, columns, published offsets, alignment, and what is
wrong outside."""

from __future__ import annotations

import datetime as dt
import pickle
import threading
import uuid
from dataclasses import replace
from typing import Any

import confluent_kafka
import pyarrow as pa
import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.cimpl import NewTopic

from snapline.connectors.formats import JsonFormat
from snapline.connectors.kafka import KafkaSource, connection, kafka_reader, partition_discovery
from snapline.connectors.kafka.connection import Metadata
from snapline.connectors.kafka.kafka_reader import TOPIC_CHECK_MS
from snapline.connectors.kafka.partition_discovery import PartitionEnumerator
from snapline.dataflow.api.bad_rows import BadRow
from snapline.dataflow.api.connector_api import InputStatus
from snapline.dataflow.errors import ConnectorError
from tests.services import kafka as services
from tests.services.kafka import PATIENCE_SECONDS, QUIET, needs_faults
from tests.services.kafka_broker import KafkaBroker
from tests.services.kafka_broker.requests import Requests
from tests.services.measured import figures_of
from tests.unit.connectors.kafka.reading import Place, at_least, open_reader, polls, read_all, rows_of, source_of

NUMBERS = JsonFormat(pa.schema([("n", pa.int64())]))
START = dt.datetime(2020, 1, 1)  # noqa: DTZ001 - as Arrow gives it back
START_MS = 1_577_836_800_000


def send_numbers(kafka, topic, *bounds, partitions=1):
    """N goes to partition n modulo partitions, a second apart."""
    producer = kafka.producer()
    for n in range(*bounds):
        producer.produce(topic, b'{"n": %d}' % n, partition=n % partitions, timestamp=START_MS + n * 1000)
    assert producer.flush(PATIENCE_SECONDS) == 0


def numbers(rows):
    return sorted(row["n"] for row in rows)


def published(kafka, group, topic, partitions=1):
    consumer = confluent_kafka.Consumer({"bootstrap.servers": kafka.bootstrap, "group.id": group, **QUIET})
    asked = [TopicPartition(topic, number) for number in range(partitions)]
    offsets = [one.offset for one in consumer.committed(asked, PATIENCE_SECONDS)]
    consumer.close()
    return offsets


@pytest.mark.parametrize(
    ("start", "stop", "expected"),
    [
        ("earliest", "latest", range(20)),
        (START + dt.timedelta(seconds=5), "latest", range(5, 20)),
        ("earliest", START + dt.timedelta(seconds=7, milliseconds=1), range(8)),
        (START + dt.timedelta(seconds=5, microseconds=1), START + dt.timedelta(seconds=7, microseconds=1), range(6, 8)),
        (dt.datetime(1969, 12, 31, 23, 59, 59, 999_000, dt.UTC), "latest", range(20)),
        ("latest", "latest", []),
        (START + dt.timedelta(days=1), "latest", []),
    ],
)
def test_a_bounded_source_reads_from_its_start_to_its_stop(kafka, start, stop, expected):
    """Each row once, nothing that is written after submission."""
    topic = kafka.topic(3)
    send_numbers(kafka, topic, 20, partitions=3)
    source = pickle.loads(pickle.dumps(source_of(kafka, topic, format=NUMBERS, start=start, stop=stop)))
    splits = source.enumerate_splits()
    send_numbers(kafka, topic, 20, 30, partitions=3)

    assert list(expected) == numbers(read_all(source, splits))


def test_a_row_that_comes_while_times_are_looked_up_is_read(
    kafka: services.Kafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No row is so late yet when Kafka is asked; the end of the topic, asked for afterwards, lay behind one."""
    topic = kafka.topic()
    send_numbers(kafka, topic, 5)

    class RowsMeanwhile(Metadata):
        def ask(self, question: Any) -> Any:
            found = super().ask(question)
            if isinstance(found, list):  # the offsets for times
                send_numbers(kafka, topic, 5, 7)
            return found

    monkeypatch.setattr(partition_discovery, "Metadata", RowsMeanwhile)
    source = source_of(kafka, topic, format=NUMBERS, start=START + dt.timedelta(seconds=5), stop="latest")
    assert [5, 6] == numbers(read_all(source, source.enumerate_splits()))


def test_aborted_rows_are_not_read_and_hold_nothing_up(kafka):
    """A bounded source ends although the last offsets of its partition are those of an aborted transaction."""
    topic = kafka.topic()
    send_numbers(kafka, topic, 5)
    producer = kafka.transactional()
    producer.produce(topic, b'{"n": 99}')
    producer.flush(PATIENCE_SECONDS)
    producer.abort_transaction(PATIENCE_SECONDS)

    assert list(range(5)) == numbers(read_all(source_of(kafka, topic, format=NUMBERS, stop="latest")))


def test_a_restored_reader_goes_on_where_the_snapshot_stood(kafka):
    """Positions lie behind the rows that were handed out, not behind those that were fetched."""
    topic = kafka.topic(4)
    send_numbers(kafka, topic, 4000, partitions=4)
    source = source_of(kafka, topic, format=NUMBERS, stop="latest", batch_rows=500)
    reader = open_reader(source)
    before = rows_of(polls(reader, until=lambda found: len(found) >= 3))
    splits = reader.snapshot_splits(1)
    polls(reader, until=lambda found: len(found) >= 2)
    reader.close()

    after = read_all(source, splits)

    assert list(range(4000)) == numbers(before + after)
    assert [] == read_all(source, [*finished(source, splits)])


def test_a_topic_that_is_named_no_more_keeps_its_positions_apart(kafka):
    """A snapshot holds its splits, and a poll brings messages of several topics."""
    kept, left = kafka.topic(), kafka.topic()
    send_numbers(kafka, kept, 10)
    both = source_of(kafka, [kept, left], format=NUMBERS)
    splits = both.enumerate_splits()
    send_numbers(kafka, left, 100, 103)
    reader = open_reader(source_of(kafka, kept, format=NUMBERS), splits)

    found = rows_of(polls(reader, until=at_least(13)))

    assert [*range(10), 100, 101, 102] == numbers(found)
    assert {f"{kept}#0": 10, f"{left}#0": 3} == {
        split.split_id: split.position["offset"] for split in reader.snapshot_splits(1)
    }
    reader.close()


@pytest.mark.parametrize(
    ("before", "after", "says"),
    [(None, "latest", "has no end in the snapshot, and the source has stop="), ("latest", None, "ends at offset 5 in")],
)
def test_a_snapshot_of_a_source_with_another_kind_of_end_is_refused(kafka, before, after, says):
    """The job would never end, or end without the rows that came since, and say nothing."""
    topic = kafka.topic()
    send_numbers(kafka, topic, 5)
    splits = source_of(kafka, topic, format=NUMBERS, stop=before).enumerate_splits()
    with pytest.raises(ConnectorError, match=f"{topic}#0 {says}.* Give stop= as it was"):
        open_reader(source_of(kafka, topic, format=NUMBERS, stop=after), splits)


def finished(source, splits):
    """The splits as a reader leaves them that has read all."""
    reader = open_reader(source, splits)
    polls(reader, until=lambda _: False)
    ended = reader.snapshot_splits(2)
    reader.close()
    assert all(split.finished for split in ended)
    return ended


def test_what_kafka_knows_of_a_message_are_columns(kafka):
    """Key, topic, partition, offset, time, headers; under other names if wanted."""
    topic = kafka.topic()
    producer = kafka.producer()
    producer.produce(topic, b"v", b"k", timestamp=START_MS, headers=[("h", b"1"), ("h", None)])
    producer.produce(topic, None, None, timestamp=START_MS + 1)
    producer.flush(PATIENCE_SECONDS)
    names = ("key", "topic", "partition", "offset", "timestamp", "headers")
    source = source_of(kafka, topic, metadata={name: f"kafka_{name}" for name in names}, stop="latest")
    reader = open_reader(source)
    found = polls(reader, until=at_least(2))
    reader.close()

    assert all(polled.batch.schema == source.schema() for polled in found if polled.batch is not None)
    headers = [{"name": "h", "value": b"1"}, {"name": "h", "value": None}]
    assert [
        (b"v", b"k", topic, 0, 0, START, headers),
        (None, None, topic, 0, 1, START + dt.timedelta(milliseconds=1), None),
    ] == [tuple(row.values()) for row in rows_of(found)]


def test_a_batch_is_of_one_partition(kafka):
    """So that each partition has a watermark of its own; rows of a partition keep their order; ends are said once,
    after the rows."""
    topic = kafka.topic(3)
    send_numbers(kafka, topic, 300, partitions=3)
    source = source_of(kafka, topic, format=NUMBERS, metadata=["partition"], stop="latest")
    reader = open_reader(source)
    found = polls(reader, until=lambda _: False)
    reader.close()

    by_split: dict[str, list[int]] = {}
    for polled in found:
        rows = rows_of([polled])
        assert {row["partition"] for row in rows} <= {int(polled.split_id[-1] or -1)} if rows else True
        by_split.setdefault(polled.split_id, []).extend(row["n"] for row in rows)
    expected = {f"{topic}#{number}": list(range(number, 300, 3)) for number in range(3)}
    assert expected == {split: rows for split, rows in by_split.items() if rows}
    assert sorted(expected) == sorted(split for polled in found for split in polled.finished_splits)


def test_offsets_are_published_when_their_checkpoint_is_complete(kafka):
    """Not before, not those of a later one, and a reader with this group starts there."""
    topic, group = kafka.topic(), f"group-{uuid.uuid4().hex}"
    send_numbers(kafka, topic, 10)
    source = source_of(kafka, topic, format=NUMBERS, group_id=group)
    reader = open_reader(source)
    polls(reader, until=at_least(10))
    reader.snapshot_splits(1)
    send_numbers(kafka, topic, 10, 15)
    polls(reader, until=at_least(5))
    reader.snapshot_splits(2)
    seen = [published(kafka, group, topic)]
    reader.notify_checkpoint_complete(1)
    reader.close()
    seen.append(published(kafka, group, topic))

    assert [[confluent_kafka.OFFSET_INVALID], [10]] == seen
    resumed = source_of(kafka, topic, format=NUMBERS, group_id=group, start="group", stop="latest")
    assert list(range(10, 15)) == numbers(read_all(resumed))


def test_what_was_read_and_what_waits_is_measured(kafka):
    """Bytes of values, and the rows that the brokers have beyond the position; nothing waits at the end."""
    topic = kafka.topic()
    kafka.send(topic, [b"one", b"three", b"seven"])
    place = Place()
    source = source_of(kafka, topic, stop="latest", batch_rows=1)
    reader = source.create_reader(place)
    reader.add_splits(source.enumerate_splits())
    polls(reader, until=at_least(1))
    pending = figures_of(place.metrics)["pending_rows"]
    polls(reader, until=lambda _: False)
    measured = figures_of(place.metrics)
    reader.close()

    assert pending == 2
    assert measured == {"bytes_read": 13, "pending_rows": 0, "connection_errors": 0}


@pytest.mark.parametrize(("mode", "expected"), [("periodic", [10]), ("disabled", [confluent_kafka.OFFSET_INVALID])])
def test_the_other_offset_modes(kafka, mode, expected):
    """Every few seconds and at the end, for jobs without checkpoints; or never."""
    topic, group = kafka.topic(), f"group-{uuid.uuid4().hex}"
    send_numbers(kafka, topic, 10)
    reader = open_reader(source_of(kafka, topic, format=NUMBERS, group_id=group, commit_offsets=mode))
    polls(reader, until=at_least(10))
    reader.snapshot_splits(1)
    reader.notify_checkpoint_complete(1)
    reader.close()

    assert expected == published(kafka, group, topic)


def test_a_partition_that_is_ahead_waits(kafka):
    """Alignment: rows of paused partitions are not handed out, those that were fetched already neither; later all of
    them are."""
    topic = kafka.topic(2)
    send_numbers(kafka, topic, 100, partitions=2)
    source = source_of(kafka, topic, format=NUMBERS, stop="latest", batch_rows=40)
    reader = open_reader(source)
    first = polls(reader, until=lambda found: len(found) >= 1)
    ahead = first[0].split_id
    reader.pause_splits([ahead])
    others = polls(reader, until=at_least(50 if ahead else 0))
    idle = [reader.poll_next(0).status for _ in range(3)]
    reader.pause_splits([])
    rest = polls(reader, until=lambda _: False)
    reader.close()

    assert {ahead} == {polled.split_id for polled in first}
    assert ahead not in {polled.split_id for polled in others}
    assert idle[-1] is InputStatus.NOTHING_AVAILABLE
    assert list(range(100)) == numbers(rows_of(first + others + rest))


def test_partitions_that_are_added_are_found_and_read_from_their_first_row(kafka):
    """Also by a source that starts behind the latest row; the state is a number for each topic, and a restored
    enumerator finds no partition twice."""
    topic = kafka.topic(2)
    send_numbers(kafka, topic, 10, partitions=2)
    source = source_of(kafka, topic, format=NUMBERS, start="latest", partition_discovery_ms=10)
    splits = source.enumerate_splits()
    reader = open_reader(source, splits)
    assert [] == list(PartitionEnumerator(source, splits).discover({}).splits)
    kafka.add_partitions(topic, 4)
    send_numbers(kafka, topic, 20, 40, partitions=4)

    found = PartitionEnumerator(source, splits).discover({})
    first = polls(reader, until=at_least(3))
    reader.add_splits(found.splits)
    rest = polls(reader, until=lambda seen: len(rows_of(first + seen)) == 20)
    reader.close()

    assert [f"{topic}#2", f"{topic}#3"] == [split.split_id for split in found.splits]
    assert list(range(20, 40)) == numbers(rows_of(first + rest))
    assert {"partitions": {topic: 4}} == found.state
    assert [] == list(PartitionEnumerator(source, splits).discover(found.state).splits)


def test_a_cluster_that_is_away_for_a_moment_is_asked_again_for_partitions(kafka):
    """The job goes on with the partitions that it knows, until the cluster is given up."""
    away = KafkaSource(
        "t", bootstrap_servers="127.0.0.1:1", partition_discovery_ms=10, settings={"socket.timeout.ms": 10}
    )
    enumerator = PartitionEnumerator(away, ())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(partition_discovery, "METADATA_SECONDS", 0.1)
        patch.setattr(connection, "METADATA_SECONDS", 0.1)
        state = {"partitions": {"t": 3}}
        found = enumerator.discover(state)
        assert (0, state) == (len(found.splits), found.state)
        away.give_up_after_ms = 0
        with pytest.raises(ConnectorError, match=r"no Kafka broker answers at 127\.0\.0\.1:1"):
            enumerator.discover(state)


def test_bad_rows_fail_are_dropped_kept_or_set_aside(kafka):
    """The error names the place of the value; the reader counts what it drops; what is kept or set aside has the bytes
    and the reason."""
    topic = kafka.topic()
    kafka.send(topic, [b'{"n": 1}', b"?", b'{"n": 2}'])
    common = {"format": NUMBERS, "stop": "latest", "metadata": ["offset"]}

    with pytest.raises(
        ConnectorError, match=f"the value at topic '{topic}', partition 0, offset 1 is no row: not a JSON object; "
    ):
        read_all(source_of(kafka, topic, **common))
    dropped = read_all(source_of(kafka, topic, on_error="drop", **common))
    kept = read_all(source_of(kafka, topic, on_error="keep", **common))
    aside: list[BadRow] = []
    good_ones = read_all(source_of(kafka, topic, on_error="side_output", **common), bad=aside)

    assert [{"n": 1, "offset": 0}, {"n": 2, "offset": 2}] == dropped == good_ones
    assert [BadRow(f"{topic}-0", 1, b"?", "not a JSON object")] == aside
    good = {"bad_value": None, "bad_reason": None}
    assert [
        {"n": 1, "offset": 0, **good},
        {"n": None, "offset": 1, "bad_value": b"?", "bad_reason": "not a JSON object"},
        {"n": 2, "offset": 2, **good},
    ] == kept


# --- wrong input ------------------------------------------------------------------------------------------------------


def test_a_topic_that_is_not_there(kafka):
    """Said at submission."""
    with pytest.raises(
        ConnectorError, match=r"topic 'nowhere' cannot be read: .*; create it first, or correct its name"
    ):
        source_of(kafka, "nowhere").enumerate_splits()


@needs_faults
def test_an_offset_of_a_group_that_cannot_be_read_is_not_taken_for_none(
    kafka: services.Kafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The topic was read from its first row in silence, as for a group that has published nothing."""
    topic = kafka.topic()
    send_numbers(kafka, topic, 5)
    fetch = Requests._OffsetFetch

    def failing(requests: Requests, request: Any, version: int, response: Any) -> Any:
        answer = fetch(requests, request, version, response)
        answer.topics[0].partitions[0].error_code = 56
        return answer

    monkeypatch.setattr(Requests, "_OffsetFetch", failing)
    with pytest.raises(
        ConnectorError, match=rf"group 'g' has published for topic '{topic}', partition 0 cannot be read"
    ):
        source_of(kafka, topic, start="group", group_id="g").enumerate_splits()


def test_no_broker_at_submission(monkeypatch):
    """One line with the address."""
    monkeypatch.setattr("snapline.connectors.kafka.connection.METADATA_SECONDS", 1.0)
    with pytest.raises(ConnectorError, match=r"no Kafka broker answers at 127.0.0.1:1 \(.*\); check the address"):
        KafkaSource("t", bootstrap_servers="127.0.0.1:1").enumerate_splits()


def test_wrong_credentials(tmp_path, monkeypatch):
    """Said at submission, and by a reader whose password has changed; the password is in no message."""
    monkeypatch.setattr("snapline.connectors.kafka.connection.METADATA_SECONDS", 3.0)
    with KafkaBroker(tmp_path, users={"ann": "secret"}) as broker:
        broker.create_topic("t")

        def source(password):
            login = {"sasl.mechanism": "PLAIN", "sasl.username": "ann", "sasl.password": password}
            return KafkaSource(
                "t", bootstrap_servers=broker.bootstrap, settings={"security.protocol": "SASL_PLAINTEXT", **login}
            )

        splits = source("secret").enumerate_splits()
        with pytest.raises(ConnectorError, match=r"refuses the credentials .*; check sasl.mechanism") as raised:
            source("hunter2").enumerate_splits()
        assert "hunter2" not in str(raised.value)
        reader = open_reader(source("hunter2"), splits)
        with pytest.raises(ConnectorError, match="refuses the credentials"):
            polls(reader, until=lambda _: False)
        reader.close()


def test_offsets_that_are_gone(kafka):
    """Retention was faster than the job: the loss has a number. A log that was cut is said, too."""
    topic = kafka.topic()
    send_numbers(kafka, topic, 10)
    source = source_of(kafka, topic, format=NUMBERS)
    split = source.enumerate_splits()[0]
    admin = confluent_kafka.admin.AdminClient({"bootstrap.servers": kafka.bootstrap, **QUIET})
    for done in admin.delete_records([TopicPartition(topic, 0, 6)]).values():
        done.result(PATIENCE_SECONDS)
    for offset, why in (
        (2, "4 rows were deleted .retention. before they were read"),
        (50, "the topic was created again"),
    ):
        moved = type(split)(split.split_id, split.description, {"offset": offset})
        reader = open_reader(source, [moved])
        with pytest.raises(
            ConnectorError, match=f"offset {offset} of topic '{topic}', partition 0 is not there .*: {why}"
        ):
            polls(reader, until=lambda _: False)
        reader.close()


def test_a_group_that_is_behind_retention_is_told_what_helps(kafka: Any) -> None:
    """A new job would begin at the very offset that is gone, and was all that the line advised."""
    topic = kafka.topic()
    send_numbers(kafka, topic, 10)
    group = f"group-{uuid.uuid4()}"
    consumer = confluent_kafka.Consumer({"bootstrap.servers": kafka.bootstrap, "group.id": group, **QUIET})
    consumer.commit(offsets=[TopicPartition(topic, 0, 2)], asynchronous=False)
    consumer.close()
    source = source_of(kafka, topic, format=NUMBERS, group_id=group, start="group")
    splits = source.enumerate_splits()
    admin = confluent_kafka.admin.AdminClient({"bootstrap.servers": kafka.bootstrap, **QUIET})
    for done in admin.delete_records([TopicPartition(topic, 0, 6)]).values():
        done.result(PATIENCE_SECONDS)
    reader = open_reader(source, splits)

    with pytest.raises(ConnectorError, match=r"4 rows were .*Start a new job with start='earliest' or a time: group"):
        polls(reader, until=lambda _: False)
    reader.close()


@pytest.mark.parametrize("stop", [None, "latest"])
def test_the_earliest_row_may_be_another_one_when_the_reader_begins(kafka: Any, stop: Any) -> None:
    """Retention had deleted the one of submission meanwhile, which failed every attempt of a job that wants whatever is
    there, also after a checkpoint at which nothing of the partition was read."""
    topic = kafka.topic(2)
    send_numbers(kafka, topic, 20, partitions=2)
    source = source_of(kafka, topic, format=NUMBERS, stop=stop)
    splits = source.enumerate_splits()
    admin = confluent_kafka.admin.AdminClient({"bootstrap.servers": kafka.bootstrap, **QUIET})
    for done in admin.delete_records([TopicPartition(topic, 0, 6)]).values():
        done.result(PATIENCE_SECONDS)
    first = open_reader(source, splits)
    unread = first.snapshot_splits(1)
    first.close()
    reader = open_reader(source, unread)
    found = polls(reader, until=at_least(14))
    after = {split.split_id: split.position["offset"] for split in reader.snapshot_splits(1)}
    reader.close()

    assert [*range(1, 12, 2), *range(12, 20)] == numbers(rows_of(found))
    assert {f"{topic}#0": 10, f"{topic}#1": 10} == after


def test_the_end_of_a_transaction_that_retention_has_deleted(kafka):
    """It is no row, so that none is lost: a job goes on from its position when nothing has come for so long."""
    topic = kafka.topic()
    producer = kafka.transactional()
    producer.produce(topic, b'{"n": 7}')
    producer.commit_transaction(PATIENCE_SECONDS)
    source = source_of(kafka, topic, format=NUMBERS)
    reader = open_reader(source)
    end = {"offset": 2}
    found = polls(reader, until=lambda _: reader.snapshot_splits(1)[0].position == end)
    splits = reader.snapshot_splits(2)
    reader.close()
    admin = confluent_kafka.admin.AdminClient({"bootstrap.servers": kafka.bootstrap, **QUIET})
    for done in admin.delete_records([TopicPartition(topic, 0, 2)]).values():
        done.result(PATIENCE_SECONDS)
    send_numbers(kafka, topic, 8, 9)
    reader = open_reader(source, splits)
    found += polls(reader, until=at_least(1))
    reader.close()

    assert [7, 8] == numbers(rows_of(found))


def test_a_topic_that_is_deleted_while_it_is_read(kafka):
    """The reader says so, once librdkafka is sure."""
    quick = {"topic.metadata.refresh.interval.ms": 200, "topic.metadata.propagation.max.ms": 200}
    topic = kafka.topic()
    send_numbers(kafka, topic, 3)
    source = source_of(kafka, topic, format=NUMBERS, settings=quick)
    reader = open_reader(source)
    polls(reader, until=at_least(3))
    admin = confluent_kafka.admin.AdminClient({"bootstrap.servers": kafka.bootstrap, **QUIET})
    for done in admin.delete_topics([topic]).values():
        done.result(PATIENCE_SECONDS)
    with pytest.raises(ConnectorError, match="is gone; it was deleted while the job reads it"):
        polls(reader, until=lambda _: False)
    reader.close()


@pytest.mark.parametrize("count", [2, 20])
def test_a_topic_that_is_created_again_before_a_restore(kafka, count):
    """With fewer rows than the position, and with more, where offsets alone would show nothing; rows were lost."""
    topic = kafka.topic()
    send_numbers(kafka, topic, 5)
    source = source_of(kafka, topic, format=NUMBERS)
    reader = open_reader(source)
    polls(reader, until=at_least(5))
    splits = reader.snapshot_splits(1)
    reader.close()
    send_numbers(kafka, topic, 5, 10)
    assert list(range(5, 10)) == numbers(
        read_all(source_of(kafka, topic, format=NUMBERS, stop="latest"), stopped(splits, 10))
    )

    admin = confluent_kafka.admin.AdminClient({"bootstrap.servers": kafka.bootstrap, **QUIET})
    for done in admin.delete_topics([topic]).values():
        done.result(PATIENCE_SECONDS)
    for done in admin.create_topics([NewTopic(topic, 1)]).values():
        done.result(PATIENCE_SECONDS)
    send_numbers(kafka, topic, count)
    reader = open_reader(source, splits)
    with pytest.raises(ConnectorError, match=f"topic '{topic}'.* created again") as raised:
        polls(reader, until=lambda found: bool(rows_of(found)))
    reader.close()
    assert "\n" not in str(raised.value)


@needs_faults
def test_a_topic_that_is_created_again_while_it_is_read(kafka):
    """With more rows than the position, where offsets show nothing; at once, so that nobody sees it gone."""
    topic = kafka.topic()
    send_numbers(kafka, topic, 5)
    reader = open_reader(source_of(kafka, topic, format=NUMBERS))
    polls(reader, until=at_least(5), now_ms=0)
    kafka.broker.call(lambda: kafka.broker.cluster.record("topic", topic, uuid.uuid4(), 2, {}))
    send_numbers(kafka, topic, 20)
    first, _ = source_of(kafka, topic, format=NUMBERS).enumerate_splits()
    reader.add_splits([type(first)(f"{topic}#1", {**first.description, "partition": 1}, {})])  # found by discovery
    polls(reader, until=at_least(1), now_ms=0)
    with pytest.raises(ConnectorError, match=f"topic '{topic}' was deleted and created again"):
        polls(reader, until=lambda _: False, now_ms=TOPIC_CHECK_MS)
    reader.close()


@needs_faults
def test_a_partition_of_a_topic_that_was_created_again_comes_before_those_that_it_had(kafka: Any) -> None:
    """Discovery had found it, and a restore at another parallelism gave it to the reader first, so that what the topic
    is called now counted as what it was called before, and rows were lost without a word."""
    topic = kafka.topic()
    send_numbers(kafka, topic, 5)
    source = source_of(kafka, topic, format=NUMBERS)
    reader = open_reader(source)
    polls(reader, until=at_least(5))
    splits = reader.snapshot_splits(1)
    reader.close()
    kafka.broker.call(lambda: kafka.broker.cluster.record("topic", topic, uuid.uuid4(), 2, {}))
    send_numbers(kafka, topic, 20)
    _, found = source.enumerate_splits()
    reader = open_reader(source, [replace(found, position={"offset": 0}), *splits])
    with pytest.raises(ConnectorError, match=f"topic '{topic}' was deleted and created again"):
        polls(reader, until=at_least(1))
    reader.close()


def stopped(splits, stop):
    """The same partitions, up to an offset."""
    return [type(each)(each.split_id, {**each.description, "stop": stop}, each.position) for each in splits]


@needs_faults
def test_brokers_that_go_and_come_back(kafka):
    """A reader waits for them, loses nothing, and gives up after the time that it was told, by its own clock."""
    topic = kafka.topic()
    send_numbers(kafka, topic, 5)
    quick = {"reconnect.backoff.max.ms": 200, "topic.metadata.refresh.interval.ms": 500}
    source = source_of(kafka, topic, format=NUMBERS, settings=quick, give_up_after_ms=60_000)
    reader = open_reader(source)
    found = polls(reader, until=at_least(5))
    kafka.broker.crash()
    for _ in range(20):
        assert reader.poll_next(0).status is InputStatus.NOTHING_AVAILABLE
    kafka.broker.restart()
    send_numbers(kafka, topic, 5, 8)
    found += polls(reader, until=at_least(3))
    assert list(range(8)) == numbers(rows_of(found))
    kafka.broker.crash()
    clock = iter(range(0, 10**9, 1000))
    with pytest.raises(ConnectorError, match=r"no Kafka broker answers at .* \(for 60000 ms; "):
        while True:
            reader.poll_next(next(clock) if reader._health.down else 0)
    reader.close()


@needs_faults
@pytest.mark.parametrize("mode", ["on_checkpoints", "periodic"])
def test_a_source_that_ends_while_no_broker_is_there_does_not_wait_for_one(kafka, monkeypatch, mode):
    """Its client waited for session.timeout.ms, 45 seconds, until somebody would take its last offsets, before the job
    could restart."""
    monkeypatch.setattr(kafka_reader, "CLOSE_SECONDS", 0.1)
    topic = kafka.topic()
    send_numbers(kafka, topic, 5)
    reader = open_reader(source_of(kafka, topic, format=NUMBERS, group_id="g", commit_offsets=mode))
    polls(reader, until=at_least(5))
    reader.snapshot_splits(1)
    kafka.broker.crash()
    reader.notify_checkpoint_complete(1)
    reader.close()
    (closing,) = [each for each in threading.enumerate() if each.name == "kafka-close"]
    kafka.broker.restart()
    closing.join(60)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"topics": []}, "no topic given"),
        ({"start": "now"}, "start is earliest, latest, group or a datetime, not 'now'"),
        ({"start": "group"}, "start='group' needs group_id="),
        ({"commit_offsets": "periodic"}, "commit_offsets='periodic' needs group_id="),
        ({"stop": "never"}, "stop is None, latest or a datetime"),
        ({"metadata": ["colour"]}, "unknown metadata 'colour'; there are key, topic"),
        ({"metadata": {"key": "value"}}, "two columns have one name"),
        ({"partition_discovery_ms": 0}, "partition_discovery_ms must be at least 1, got 0"),
        ({"partition_discovery_ms": 1, "stop": "latest"}, "is for sources that read for ever; leave out stop="),
        ({"on_error": "shrug"}, "on_error is one of fail, drop, side_output, keep, not 'shrug'"),
        ({"batch_rows": 0}, "batch_rows must be at least 1"),
        (
            {"settings": {"enable.auto.commit": True}},
            "enable.auto.commit is not to be set; say commit_offsets='periodic'",
        ),
    ],
)
def test_arguments_that_cannot_be(options, message):
    """Said where they are given."""
    with pytest.raises(ConnectorError, match=message):
        KafkaSource(**{"topics": "t", "bootstrap_servers": "localhost:9092", **options})


def test_settings_that_librdkafka_does_not_know(kafka):
    """One line."""
    with pytest.raises(ConnectorError, match=r'KafkaSource: No such configuration property: "no.such"|Kafka: No such'):
        source_of(kafka, kafka.topic(), settings={"no.such": 1}).create_reader(Place())
