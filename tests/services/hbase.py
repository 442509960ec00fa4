"""A Thrift server with HBase's interface, which keeps rows in memory: the wire is real, and what is behind it is not
HBase. As there, a put is hidden behind a delete of its row in the same millisecond."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import happybase  # noqa: F401 - makes the module of HBase's interface known
import Hbase_thrift
from thriftpy2.protocol import TBinaryProtocol
from thriftpy2.thrift import TApplicationException, TProcessor
from thriftpy2.transport import TBufferedTransport, TSocket, TTransportException


class Memory:
    """What HBase's Thrift server does, as far as the sink asks for it."""

    def __init__(self) -> None:
        self.rows: dict[bytes, dict[bytes, bytes]] = {}
        self.batches: list[int] = []
        self.refuses = False
        self.now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000
        self._deleted_ms: dict[bytes, int] = {}
        self.connections: list[socket.socket] = []

    def hang_up(self) -> None:
        """End all connections, as HBase does with those that were idle for a minute."""
        for connection in self.connections:
            with suppress(OSError):  # it is closed already
                connection.shutdown(socket.SHUT_RDWR)

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
                    self._deleted_ms[each.row] = self.now_ms()
                elif self.now_ms() > self._deleted_ms.get(each.row, -1):
                    self.rows.setdefault(each.row, {})[mutation.column] = mutation.value


@contextmanager
def running_hbase() -> Iterator[tuple[Memory, int]]:
    """What is in memory, and the port at which it is served."""
    memory = Memory()
    listening = socket.create_server(("127.0.0.1", 0))
    processor = TProcessor(Hbase_thrift.Hbase, memory)

    threads: list[threading.Thread] = []

    def answer(connection: socket.socket) -> None:
        client = TSocket()
        client.set_handle(connection)
        transport = TBufferedTransport(client)
        protocol = TBinaryProtocol(transport, decode_response=False)
        try:
            while True:
                processor.process(protocol, protocol)
        except (TTransportException, TApplicationException, OSError):
            transport.close()

    def serve() -> None:
        while True:
            try:
                connection, _ = listening.accept()
            except OSError:
                return
            memory.connections.append(connection)
            threads.append(threading.Thread(target=answer, args=(connection,)))
            threads[-1].start()

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield memory, listening.getsockname()[1]
    finally:
        listening.shutdown(socket.SHUT_RDWR)
        listening.close()
        thread.join(10)
        memory.hang_up()
        for each in threads:
            each.join(10)
