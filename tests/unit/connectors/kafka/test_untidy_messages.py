"""Messages of Kafka that are less tidy: odd keys, times, headers and partitions, tombstones, texts that are none."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from kafka.partitioner.default import murmur2

from snapline.connectors import AvroFormat, JsonFormat, KafkaSink, RawFormat, RowFormat
from snapline.dataflow.errors import ConnectorError
from tests.services import kafka as services
from tests.services.kafka_broker import cluster
from tests.services.kafka_broker.records import stamped
from tests.unit.connectors.kafka.reading import Place, read_all, source_of

HEADERS = pa.list_(pa.struct([("name", pa.string()), ("value", pa.binary())]))
NUMBER = JsonFormat(pa.schema([("n", pa.int64())]))


@pytest.fixture(scope="module")
def broker(tmp_path_factory) -> Iterator[services.Kafka]:
    """One node for all of these."""
    running = services.start(tmp_path_factory.mktemp("kafka"), nodes=1)
    yield running
    services.stop(running)


def write(broker: services.Kafka, topic: str, columns: dict[str, Any], **options: Any) -> None:
    """One checkpoint of a sink without transactions."""
    sink = KafkaSink(topic, bootstrap_servers=broker.bootstrap, guarantee="at_least_once", **options)
    writer = sink.create_writer(Place(), ())
    try:
        writer.write(pa.RecordBatch.from_pydict(columns))
        writer.prepare_commit(1)
    finally:
        writer.close()


def read(broker: services.Kafka, topic: str, kind: RowFormat | None = None, **options: Any) -> list[dict[str, Any]]:
    return read_all(source_of(broker, topic, stop="latest", format=kind or RawFormat(), **options))


@pytest.mark.parametrize("more", [{}, {"h": pa.array([None] * 6, HEADERS)}], ids=["together", "one by one"])
def test_rows_go_to_the_partition_of_their_column(broker, more):
    """Rows that were sent together all went to partitions of the client's choice; null still does."""
    topic = broker.topic(3)
    places = [2, 1, 0, 2, None, 1]

    write(
        broker, topic, {"value": [b"a", b"b", b"c", b"d", b"e", b"f"], "p": places, **more},
        partition="p", headers="h" if more else None,
    )  # fmt: skip

    found = [(m.partition(), m.value()) for m in broker.read(topic) if m.value() != b"e"]
    assert [(0, b"c"), (1, b"b"), (1, b"f"), (2, b"a"), (2, b"d")] == sorted(found)


@pytest.mark.parametrize("more", [{}, {"h": pa.array([None] * 20, HEADERS)}], ids=["together", "one by one"])
def test_a_key_goes_to_the_partition_that_kafkas_own_producers_choose(broker: services.Kafka, more: Any) -> None:
    """Librdkafka counts otherwise, so that a key lay in two partitions of a topic that programs in Java write as well,
    and an empty key in any: a compacted topic kept both of its rows."""
    topic = broker.topic(5)
    keys = [b"", b"a", b"b", b"order-1", "\u00fcber".encode()] * 4

    write(broker, topic, {"value": keys, "k": keys, **more}, key="k", headers="h" if more else None)

    assert {(key, (murmur2(key) & 0x7FFFFFFF) % 5) for key in keys} == {
        (m.key(), m.partition()) for m in broker.read(topic)
    }


def test_a_message_without_a_time_has_none(broker):
    """Minus one was a millisecond before 1970."""
    topic = broker.topic()
    for time_ms in (-1, 1):
        broker.send(topic, [b"a"], timestamp=time_ms)

    times = [row["timestamp"] for row in read(broker, topic, metadata=["timestamp"])]

    assert [None, dt.datetime(1970, 1, 1, 0, 0, 0, 1000)] == times  # noqa: DTZ001 - as Arrow has it


@pytest.mark.parametrize(
    ("column", "expected"),
    [
        (pa.array([1_700_000_000_123_456], pa.timestamp("us")), 1_700_000_000_123),
        (pa.array([1_700_000_000_123_456_789], pa.timestamp("ns", "America/New_York")), 1_700_000_000_123),
        (pa.array([1_700_000_000], pa.timestamp("s")), 1_700_000_000_000),
        (pa.array([1_700_000_000_123]), 1_700_000_000_123),
    ],
)
def test_times_are_written_in_milliseconds(broker, column, expected):
    """Arrow refused to cut finer ones, and the job restarted for ever."""
    topic = broker.topic()

    write(broker, topic, {"value": [b"a"], "t": column}, timestamp="t")

    assert [expected] == [message.timestamp()[1] for message in broker.read(topic)]


@pytest.mark.parametrize(
    ("option", "column", "says"),
    [
        ("timestamp", pa.array([0], pa.timestamp("ms")), "has 0 ms since 1970, which Kafka's clients take for no time"),
        ("timestamp", pa.array([1], pa.date32()), r"is date32\[day\]; give times"),
        ("key", pa.array([{"a": 1}]), "is struct<a: int64>, which is no key"),
        ("headers", pa.array([[{"name": None, "value": b""}]], HEADERS), "has a header None with b''"),
        ("headers", pa.array([[{"key": "x"}]]), "give a list of records of name and value, or a map"),
        ("headers", pa.array(["x"]), "is string; give a list of records"),
        ("headers", pa.array([[{"name": "x", "value": 5}]]), "has a header 'x' with 5"),
        ("partition", pa.array([7]), "a row is for a partition that the topic has not"),
        ("partition", pa.array([-1]), "has -1, which is no partition; null leaves the choice"),
        ("partition", pa.array([1.0]), "is double; give integers"),
        ("partition", pa.array([1 << 31]), "has 2147483648, which is no partition; null leaves the choice"),
        ("timestamp", pa.array([1 << 62], pa.timestamp("s")), "has a time of more milliseconds than Kafka counts"),
        ("timestamp", pa.array([1 << 63], pa.uint64()), "has a time of more milliseconds than Kafka counts"),
    ],
)
def test_what_is_no_key_time_header_or_partition_is_named(broker, option, column, says):
    """Some were written as another value in silence (now, 'None', another partition), others were a traceback."""
    with pytest.raises(ConnectorError, match=says):
        write(broker, broker.topic(), {"value": [b"a"], "c": column}, **{option: "c"})


def test_keys_and_headers_are_read_as_they_were_written(broker):
    """Null, empty and other bytes; a header may come twice, and be null; a map has headers, too."""
    topic = broker.topic()
    keys = [None, b"", b"\xff\x00", b"k"]
    headers = [None, [], [{"name": "a", "value": None}, {"name": "a", "value": b"1"}], [{"name": "b", "value": b""}]]

    write(
        broker, topic, {"value": [b"1", None, b"", b"4"], "k": pa.array(keys, pa.binary()), "h": pa.array(headers, HEADERS)},
        key="k", headers="h",
    )  # fmt: skip
    pairs = pa.array([[("x", b"1")]], pa.map_(pa.string(), pa.binary()))
    write(broker, topic, {"value": [b"5"], "h": pairs}, headers="h")

    rows = read(broker, topic, metadata=["key", "headers"])
    assert [b"1", None, b"", b"4", b"5"] == [row["value"] for row in rows]
    assert [*keys, None] == [row["key"] for row in rows]
    assert [None, None, *headers[2:], [{"name": "x", "value": b"1"}]] == [row["headers"] for row in rows]


@pytest.mark.parametrize("option", ["key", "timestamp", "headers", "partition"])
def test_a_column_that_is_null_in_all_rows(broker: services.Kafka, option: str) -> None:
    """Its type is that of null, with which headers were an error of Python's, and times were refused."""
    topic = broker.topic()
    write(broker, topic, {"value": [b"a", b"b"], "c": pa.nulls(2)}, **{option: "c"})

    assert [b"a", b"b"] == [message.value() for message in broker.read(topic)]


def test_headers_are_not_cut_at_a_nul(broker):
    """The client took what stands before it for the whole text; bytes were whole. Of a name it takes no more."""
    topic = broker.topic()
    for kind, value in ((pa.string(), "v\0w"), (pa.binary(), b"v\0w")):
        write(
            broker, topic, {"value": [b"a"], "h": pa.array([[("x", value)]], pa.map_(pa.string(), kind))}, headers="h"
        )

    assert [[("x", b"v\0w")]] * 2 == [message.headers() for message in broker.read(topic)]
    with pytest.raises(ConnectorError, match=r"has a header 'a\\x00b', whose name Kafka's client would cut"):
        headers = pa.array([[("a\0b", b"")]], pa.map_(pa.string(), pa.binary()))
        write(broker, topic, {"value": [b"a"], "h": headers}, headers="h")


@pytest.mark.parametrize(("on_error", "expected"), [("drop", [b"2"]), ("keep", [*[b"1"] * 20, b"2"])])
@services.needs_faults
def test_a_header_whose_name_is_no_text_is_a_bad_row(broker, monkeypatch, on_error, expected):
    """It was a SystemError of the client, whatever on_error said, and behind some other messages the end of the
    process."""
    topic = broker.topic()
    monkeypatch.setattr(cluster, "stamped", lambda data, offset: stamped(data.replace(b"name", b"na\xffe"), offset))
    broker.send(topic, [b"1"] * 20, headers=[("name", b"a")])
    broker.send(topic, [b"2"], headers=[("other", b"b")])

    rows = read(broker, topic, metadata=["headers"], on_error=on_error)
    with pytest.raises(ConnectorError, match=r"offset 0 .*a name among its headers is not UTF-8"):
        read(broker, topic, metadata=["headers"])

    assert expected == [row["value"] for row in rows]
    assert [[{"name": "other", "value": b"b"}]] == [row["headers"] for row in rows if row["headers"] is not None]


@pytest.mark.parametrize("value", [b'{"s": "\xff"}', b'{"s": "a\nb"}'], ids=["bytes", "line break"])
def test_json_that_is_none_is_a_bad_row(broker, value):
    """Bytes that are no UTF-8 became a text that ended the task later on, and a line break a space."""
    topic = broker.topic()
    broker.send(topic, [b'{"s":\n"a"}', value, '{"s": "é"}'.encode()])
    kind = JsonFormat(pa.schema([("s", pa.string())]))

    rows = read(broker, topic, kind, on_error="keep")

    assert [("a", None), (None, value), ("é", None)] == [(row["s"], row["bad_value"]) for row in rows]


@pytest.mark.parametrize(
    "kind",
    [NUMBER, AvroFormat({"type": "record", "name": "r", "fields": [{"name": "n", "type": "long"}]}), RawFormat("n")],
)
def test_a_column_that_the_format_writes_and_the_rows_lack_is_named(broker, kind):
    """It was Arrow's KeyError while the job ran; what the stream is known to have is looked at before."""

    class Stream:
        schema = pa.schema([("m", pa.int64())])

    sink = KafkaSink("nowhere", bootstrap_servers="127.0.0.1:1", format=kind)
    with pytest.raises(ConnectorError, match="the rows have no column 'n', which the format writes, but m"):
        sink.before_writing(Stream())
    with pytest.raises(ConnectorError, match="the rows have no column 'n', which the format writes, but m"):
        write(broker, broker.topic(), {"m": [1]}, format=kind)


@pytest.mark.parametrize("column", [pa.array(["a"]).dictionary_encode(), pa.array([b"a"], pa.binary(1))])
def test_raw_values_may_be_categories_or_of_one_size(broker, column):
    """They were refused, as numbers are."""
    topic = broker.topic()

    write(broker, topic, {"value": column})

    assert [b"a"] == broker.values(topic)


@pytest.mark.parametrize(
    "kind", [NUMBER, AvroFormat({"type": "record", "name": "r", "fields": [{"name": "n", "type": "long"}]})]
)
@pytest.mark.parametrize("more", [{}, {"h": pa.array([None] * 6, HEADERS)}], ids=["together", "one by one"])
def test_changes_become_the_last_rows_of_keys_and_tombstones(broker, kind, more):
    """As Flink's upsert-kafka has it; a deleted row has its key and nulls, which the format need not take."""
    topic = broker.topic()
    changes = {
        "k": ["a", "b", "a", "a", "b", ""],
        "n": [1, 2, 1, 3, None, 4],
        "row_kind": ["+I", "+I", "-U", "+U", "-D", "+I"],
        **more,
    }

    write(broker, topic, changes, format=kind, key="k", delete="row_kind", headers="h" if more else None)

    rows = read(broker, topic, kind, metadata=["key"])
    assert [(b"a", 1), (b"b", 2), (b"a", 3), (b"b", None), (b"", 4)] == [(row["key"], row["n"]) for row in rows]
    assert [message.key() for message in broker.read(topic) if message.value() is None] == [b"b"]


def test_changes_need_keys(broker):
    """A tombstone without a key deletes nothing."""
    with pytest.raises(ConnectorError, match="KafkaSink: delete= needs key="):
        KafkaSink("t", bootstrap_servers="127.0.0.1:1", delete="gone")
    with pytest.raises(ConnectorError, match="a row has no key: 'k' is null, and rows with delete= need one"):
        write(
            broker, broker.topic(), {"k": pa.array([None], pa.string()), "n": [1], "gone": [True]},
            format=NUMBER, key="k", delete="gone",
        )  # fmt: skip


def test_a_checkpoint_of_rows_before_updates_alone(broker):
    """It has no row for Kafka, which cannot commit a transaction without one; the rows of the next one are
    committed."""
    topic = broker.topic()
    sink = KafkaSink(topic, bootstrap_servers=broker.bootstrap, format=NUMBER, key="n", delete="row_kind")
    writer, committer = sink.create_writer(Place(), ()), sink.create_committer(Place())
    assert committer is not None
    try:
        for number, kind in enumerate(("-U", "+U", "-U"), 1):
            writer.write(pa.RecordBatch.from_pydict({"n": [number], "row_kind": [kind]}))
            committer.commit(writer.prepare_commit(number))
    finally:
        writer.close()
        committer.close()

    assert [b'{"n": 2}'] == broker.values(topic)
