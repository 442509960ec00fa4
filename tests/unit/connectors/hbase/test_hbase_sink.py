"""The sink into HBase, over the real wire: a Thrift server of our own with HBase's interface, which keeps rows in
memory."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from typing import Any

import happybase  # noqa: F401 - makes the module of HBase's interface known
import Hbase_thrift
import pyarrow as pa
import pytest
from thriftpy2.protocol import TBinaryProtocol
from thriftpy2.thrift import TApplicationException, TProcessor
from thriftpy2.transport import TBufferedTransport, TSocket, TTransportException

from snapline.connectors import HBaseSink
from snapline.dataflow.errors import ConnectorError
from tests.unit.connectors.parquet.places import Place


class Memory:
    """What HBase's Thrift server does, as far as the sink asks for it."""

    def __init__(self) -> None:
        self.rows: dict[bytes, dict[bytes, bytes]] = {}
        self.batches: list[int] = []
        self.refuses = False

    def getTableNames(self) -> list[bytes]:
        return [b"totals"]

    def getColumnDescriptors(self, tableName: bytes) -> dict[bytes, Any]:
        return {b"d:": Hbase_thrift.ColumnDescriptor(name=b"d:")}

    def mutateRows(self, tableName: bytes, rowBatches: list[Any], attributes: Any) -> None:
        if self.refuses:
            raise Hbase_thrift.IOError(message="NoSuchColumnFamilyException: x\n at a.b.c")
        self.batches.append(len(rowBatches))
        for each in rowBatches:
            for mutation in each.mutations:
                if mutation.isDelete:
                    self.rows.pop(each.row, None)
                else:
                    self.rows.setdefault(each.row, {})[mutation.column] = mutation.value


@pytest.fixture
def server() -> Iterator[tuple[Memory, int]]:
    memory = Memory()
    listening = socket.create_server(("127.0.0.1", 0))
    processor = TProcessor(Hbase_thrift.Hbase, memory)

    def serve() -> None:
        while True:
            try:
                accepted, _ = listening.accept()
            except OSError:
                return
            client = TSocket()
            client.set_handle(accepted)
            transport = TBufferedTransport(client)
            protocol = TBinaryProtocol(transport, decode_response=False)
            try:
                while True:
                    processor.process(protocol, protocol)
            except (TTransportException, TApplicationException, OSError):
                transport.close()

    thread = threading.Thread(target=serve)
    thread.start()
    yield memory, listening.getsockname()[1]
    listening.shutdown(socket.SHUT_RDWR)
    listening.close()
    thread.join(10)


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


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda port: sink_at(port, batch_rows=0), "batch_rows and timeout_ms must be positive"),
        (lambda port: sink_at(9).validate(), "no Thrift server of HBase answers at 127.0.0.1:9"),
        (lambda port: sink_at(port, family="x").validate(), "there is no column family 'x' but d; add it, or name one"),
        (lambda port: HBaseSink("no", host="127.0.0.1", port=port, row_key="k", family="d").validate(), "there is no such table"),
        (lambda port: write_to(sink_at(port, row_key="x"), rows("a")), "the rows have no column 'x' but k"),
        (lambda port: write_to(sink_at(port), rows("")), "a row has no row key: 'k' is null or empty"),
        (lambda port: write_to(sink_at(port), rows("a", x=[[1]])), "column 'x' is list<item: int64>"),
    ],
)  # fmt: skip
def test_what_cannot_work_is_said_in_a_line(server, make, says):
    """The line names the culprit and the way out."""
    with pytest.raises(ConnectorError) as refusal:
        make(server[1])
    assert says in str(refusal.value) and "\n" not in str(refusal.value)
