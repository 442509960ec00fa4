"""The sink into HBase, over the real wire, against a server of our own."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from snapline.connectors import HBaseSink
from snapline.connectors.hbase import hbase_sink
from snapline.dataflow.errors import ConnectorError
from tests.services.answering import answering
from tests.services.hbase import Memory, running_hbase
from tests.unit.connectors.parquet.places import Place


@pytest.fixture
def server() -> Iterator[tuple[Memory, int]]:
    with running_hbase() as running:
        yield running


def sink_at(port: int, **options: Any) -> HBaseSink:
    return HBaseSink("totals", **{"host": "127.0.0.1", "port": port, "row_key": "k", "family": "d", "timeout_ms": 5_000, **options})  # fmt: skip


def rows(*keys: str, **columns: Any) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"k": list(keys), **columns})


def write_to(sink: HBaseSink, batch: pa.RecordBatch) -> None:
    writer = sink.create_writer(Place(), ())
    try:
        writer.write(batch)
    finally:
        writer.close()


def test_rows_are_puts_and_are_there_when_the_barrier_has_passed(server):
    """Texts, numbers and bytes become cells, null becomes none; a batch is sent when it is full, too."""
    memory, port = server
    sink = sink_at(port, batch_rows=3)
    sink.validate()
    writer = sink.create_writer(Place(), ())
    writer.write(rows("a", "b", n=[1, None], raw=[b"\x00\xff", b"y"]))
    assert memory.rows == {}
    writer.write(rows("c", "d", n=[3, 4], raw=[None, None]))
    assert memory.batches == [3]
    assert list(writer.prepare_commit(1)) == []
    writer.close()
    assert memory.batches == [3, 1]
    assert memory.rows == {
        b"a": {b"d:n": b"1", b"d:raw": b"\x00\xff"},
        b"b": {b"d:raw": b"y"},
        b"c": {b"d:n": b"3"},
        b"d": {b"d:n": b"4"},
    }


def test_puts_and_deletes_of_a_row_keep_their_order(server):
    """In batches of their own where both kinds come; cells of several puts add up."""
    memory, port = server
    writer = sink_at(port, delete="gone").create_writer(Place(), ())
    writer.write(rows("a", "b", "b", n=[1, 1, None], m=[1, None, 2], gone=[False, False, None]))
    writer.write(rows("a", "b", n=[1, 3], m=[1, 3], gone=[True, False]))
    writer.write(rows("a", n=[9], m=[None], gone=[False]))
    writer.write(rows("c", "c", n=[1, 1], m=[1, 1], gone=[False, True]))
    writer.prepare_commit(1)
    writer.close()
    assert memory.rows == {b"a": {b"d:n": b"9"}, b"b": {b"d:n": b"3", b"d:m": b"3"}}
    assert len(memory.batches) == 4


@pytest.mark.parametrize("is_between", ["batches", "barriers"])
def test_a_put_waits_for_the_millisecond_after_a_delete_of_the_batch_before(server, monkeypatch, is_between):
    """The server's clock stands still but for that: HBase would have hidden the put for good."""
    memory, port = server
    slept: list[float] = []
    memory.now_ms = lambda: 5 + len(slept)
    monkeypatch.setattr(hbase_sink, "time", SimpleNamespace(sleep=slept.append, monotonic=lambda: 0.0))
    writer = sink_at(port, delete="gone", batch_rows=1 if is_between == "batches" else 1_000).create_writer(Place(), ())
    for n, gone in ((1, False), (2, True), (3, False)):
        writer.write(rows("a", n=[n], m=[None], gone=[gone]))
        writer.prepare_commit(n)
    writer.close()
    assert memory.rows == {b"a": {b"d:n": b"3"}}
    assert slept == [hbase_sink.PAUSE_SECONDS]


def test_a_put_waits_for_the_millisecond_after_a_delete_of_any_batch(server, monkeypatch):
    """It was hidden when a batch with other rows came between the two within the millisecond."""
    memory, port = server
    slept: list[float] = []
    seconds = [0.0]
    memory.now_ms = lambda: 5 + len(slept)
    monkeypatch.setattr(hbase_sink, "time", SimpleNamespace(sleep=slept.append, monotonic=lambda: seconds[0]))
    writer = sink_at(port, delete="gone", batch_rows=1).create_writer(Place(), ())
    for key, gone in (("a", True), ("b", False), ("a", False), ("b", True), ("c", True)):
        writer.write(rows(key, n=[1], gone=[gone]))
    assert memory.rows == {b"a": {b"d:n": b"1"}}
    assert slept == [hbase_sink.PAUSE_SECONDS]
    seconds[0] += hbase_sink.PAUSE_SECONDS  # long enough without a pause
    slept.append(0.0)
    writer.write(rows("b", "c", n=[2, 2], gone=[False, False]))
    writer.close()
    assert memory.rows == {key: {b"d:n": b"1" if key == b"a" else b"2"} for key in (b"a", b"b", b"c")}
    assert len(slept) == 2


def test_what_the_server_refuses_fails_the_task_in_a_line(server):
    """At the barrier at the latest, and again until it is sent."""
    memory, port = server
    writer = sink_at(port).create_writer(Place(), ())
    writer.write(rows("a", n=[1]))
    memory.refuses = True
    said = []
    for _ in range(2):
        with pytest.raises(ConnectorError) as refusal:
            writer.prepare_commit(1)
        said.append(str(refusal.value))
    writer.close()
    assert said == ["HBaseSink totals: HBase refuses what was sent: NoSuchColumnFamilyException: x"] * 2


def test_a_connection_that_the_server_has_ended_is_made_anew(server):
    """HBase ends those that were idle for a minute, so that a job whose rows come more rarely restarted with each."""
    memory, port = server
    writer = sink_at(port, delete="gone").create_writer(Place(), ())
    for n, gone in ((1, False), (2, True), (3, False)):
        writer.write(rows("a", n=[n], gone=[gone]))
        writer.prepare_commit(n)
        memory.hang_up()
    writer.close()
    assert memory.rows == {b"a": {b"d:n": b"3"}}
    assert memory.batches == [1, 1, 1]


def test_a_server_that_goes_away_fails_the_task_in_a_line():
    """Once the connection was made again and nobody answered; what waits is sent by the next attempt of the task."""
    with running_hbase() as (_, port):
        writer = sink_at(port).create_writer(Place(), ())
        writer.write(rows("a", n=[1]))
        writer.prepare_commit(1)
        writer.write(rows("b", n=[1]))
    with pytest.raises(ConnectorError, match=f"no Thrift server of HBase answers at 127.0.0.1:{port}") as refusal:
        writer.prepare_commit(2)
    writer.close()
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda port: sink_at(port, batch_rows=0), "HBaseSink: batch_rows must be at least 1, got 0"),
        (lambda port: sink_at(9).validate(), "no Thrift server of HBase answers at 127.0.0.1:9"),
        (lambda port: sink_at(port, family="x").validate(), "there is no column family 'x' but d; add it, or name one"),
        (lambda port: HBaseSink("no", host="127.0.0.1", port=port, row_key="k", family="d").validate(), "there is no such table"),
        (lambda port: write_to(sink_at(port, row_key="x"), rows("a")), "the rows have no column 'x' but k"),
        (lambda port: write_to(sink_at(port), rows("")), "a row has no row key: 'k' is null or empty"),
        (lambda port: write_to(sink_at(port), rows("a", x=[[1]])), "column 'x' is list<item: int64>"),
        (lambda port: write_to(sink_at(port), rows("a", x=pa.array([1 << 62], pa.timestamp("us")))), "which is no year"),
    ],
)  # fmt: skip
def test_what_cannot_work_is_said_in_a_line(server, make, says):
    """The line names the culprit and the way out."""
    with pytest.raises(ConnectorError) as refusal:
        make(server[1])
    assert says in str(refusal.value) and "\n" not in str(refusal.value)


def test_row_kinds_delete_at_minus_d_alone(server):
    """Every row was deleted, because a text that is not empty is true."""
    memory, port = server
    kinds = ["+I", "+I", "-U", "+U", "-D"]
    write_to(
        sink_at(port, delete="row_kind", batch_rows=1), rows("a", "b", "a", "a", "b", n=[1, 2, 1, 3, 2], row_kind=kinds)
    )

    assert {b"a": {b"d:n": b"3"}} == memory.rows
    with pytest.raises(ConnectorError, match="delete= names 'n', which is int64; give truth values or row kinds"):
        write_to(sink_at(port, delete="n"), rows("a", n=[1]))


def test_keys_of_any_bytes_and_their_length(server):
    """What separates is no other letter, an empty value is a cell; HBase's own limit is said here."""
    memory, port = server
    keys = [b"\xff\x00:", "é\n".encode(), b"a" * 32_767]
    batch = pa.RecordBatch.from_pydict({"k": keys, "v": [b"", b"\x00", b"x" * 1_000_000]})
    sink = sink_at(port)
    writer = sink.create_writer(Place(), ())
    writer.write(batch)
    writer.prepare_commit(1)
    writer.close()

    assert dict(zip(keys, [b"", b"\x00", b"x" * 1_000_000], strict=True)) == {
        key: cells[b"d:v"] for key, cells in memory.rows.items()
    }
    with pytest.raises(ConnectorError, match=r"a row key of 32768 bytes, which begins with b'aaa.*; HBase takes 32767"):
        write_to(sink, rows("a" * 32_768, n=[1]))


@pytest.mark.parametrize(
    "answer", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"\x80\x01\x00\x02\xff\xff\xff\xff" + bytes(40)]
)
def test_what_is_no_thrift_server_is_one_line(answer):
    """Each was another error of the library."""

    def say(connection: socket.socket) -> None:
        connection.recv(1_000)
        connection.sendall(answer)

    with answering(say) as port, pytest.raises(ConnectorError, match="no Thrift server of HBase answers"):
        HBaseSink("t", host="127.0.0.1", port=port, row_key="k", family="f").validate()
