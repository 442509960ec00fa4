"""Messages of an exchange stream on a socket of this machine, read and written as Flight's reader and writer would.

A message is its kind, the lengths of its two parts, its metadata, and the bytes that Arrow makes of its batch. The
schema goes ahead of the first batch; a batch with a dictionary travels as an Arrow stream of its own, because it needs
one. Both ends run the same version, which the greeting names. Small messages are read many at a time, and what is long
is received where it stays. It does not know streams, channels or credits.
"""

from __future__ import annotations

import contextlib
import select
import socket
import struct
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from snapline.dataflow.columnar.validated import DAMAGE, check_names
from snapline.taskmanager.network.flight.frames import ProtocolError

_PREFIX = struct.Struct("<BIQ")
_METADATA, _SCHEMA, _BATCH, _STREAM = 1, 2, 3, 4
READ_BYTES = 1 << 16
"""What is longer is received into memory of its own."""
MAX_BYTES = 1 << 31
"""No message is longer: batches are cut to a few MB before they get here, but for single rows that are larger."""
JOIN_BYTES = 1 << 13
"""Parts of a message that is not longer are copied together, which is cheaper than to hand the kernel a list."""


@dataclass(frozen=True, slots=True)
class SocketChunk:
    """One message, with the names that Flight's have."""

    app_metadata: bytes | pa.Buffer
    data: pa.RecordBatch | None


def metadata_message(metadata: bytes) -> bytes:
    """A message without a batch, as it is sent."""
    return _PREFIX.pack(_METADATA, len(metadata), 0) + metadata


class SocketReader:
    """Reads one socket, on one thread.

    >>> ours, theirs = socket.socketpair()
    >>> writer = SocketWriter(theirs)
    >>> batch = pa.record_batch({"n": [1, 2]})
    >>> writer.begin(batch.schema)
    >>> writer.write_with_metadata(batch, b"header")
    >>> chunk = SocketReader(ours).read_chunk()
    >>> bytes(chunk.app_metadata), chunk.data.num_rows
    (b'header', 2)
    >>> ours.close(), theirs.close()
    (None, None)
    """

    def __init__(self, connection: socket.socket, max_bytes: int = MAX_BYTES, *, takes_batches: bool = True) -> None:
        """`max_bytes`: neither the metadata nor the batch of a message has more. `takes_batches`: else one is refused
        by its first bytes, because a few of it can become gigabytes."""
        self.connection = connection
        self.max_bytes = max_bytes
        self.takes_batches = takes_batches
        #: When what is read has to be there, by the monotonic clock, however slowly it comes; None: whenever it comes.
        self.deadline: float | None = None
        self._staged = memoryview(bytearray(READ_BYTES))
        self._at = self._end = 0
        self._schema: pa.Schema | None = None
        #: The socket is not ended after it was closed, when its number may be another file's.
        self._ending = threading.Lock()

    def read_chunk(self) -> SocketChunk:
        """The next message. Raises StopIteration at the end, OSError when the connection is lost, ProtocolError for
        what nobody writes."""
        while True:
            kind, metadata_bytes, body_bytes = _PREFIX.unpack(self._take(_PREFIX.size))
            if max(metadata_bytes, body_bytes) > self.max_bytes:
                raise ProtocolError(f"a message of {metadata_bytes + body_bytes} bytes, {self.max_bytes} are the most")
            if kind != _METADATA and not self.takes_batches:
                raise ProtocolError("a batch where none is taken")
            metadata = self._take(metadata_bytes)
            body = self._take(body_bytes)
            if kind == _METADATA:
                return SocketChunk(metadata, None)
            try:
                batch = self._decoded(kind, pa.py_buffer(body))
            except (*DAMAGE, StopIteration) as error:
                raise ProtocolError(f"a message that cannot be read: {error}") from error
            if batch is not None:
                return SocketChunk(metadata, batch)

    def _decoded(self, kind: int, body: pa.Buffer) -> pa.RecordBatch | None:
        """The batch, None for the schema of those that follow."""
        if kind == _SCHEMA:
            self._schema = pa.ipc.read_schema(body)
            check_names(self._schema)
            return None
        if kind == _BATCH and self._schema is not None:
            return pa.ipc.read_record_batch(body, self._schema)
        if kind == _STREAM:
            with pa.ipc.open_stream(body) as stream:
                check_names(stream.schema)
                return stream.read_next_batch()
        raise ValueError(f"kind {kind} is none")

    def cancel(self) -> None:
        """End the connection, from any thread: whoever reads or writes it, here or there, finds that out."""
        with self._ending, contextlib.suppress(OSError):  # it has ended
            self.connection.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the socket, which nobody reads or writes any more."""
        with self._ending:
            self.connection.close()

    def replace_connection(self, another: Callable[[socket.socket], socket.socket]) -> None:
        """Go on with what this makes of the connection, such as one with TLS, or one without it again."""
        with self._ending:
            self.connection = another(self.connection)

    def _take(self, count: int) -> bytes | pa.Buffer:
        """So many bytes, aligned as Arrow needs them."""
        staged = self._end - self._at
        if count > READ_BYTES:
            buffer = pa.allocate_buffer(count)
            target = memoryview(buffer).cast("B")
            target[:staged] = self._staged[self._at : self._end]
            self._at = self._end = 0
            while staged < count:
                staged += self._receive(target[staged:])
            return buffer
        if staged < count:
            if self._at + count > READ_BYTES:
                self._staged[:staged] = self._staged[self._at : self._end]
                self._at, self._end = 0, staged
            while self._end - self._at < count:
                self._end += self._receive(self._staged[self._end :])
        taken = bytes(self._staged[self._at : self._at + count])
        self._at += count
        if self._at == self._end:
            self._at = self._end = 0
        return taken

    def _receive(self, target: memoryview) -> int:
        if self.deadline is not None:
            self.connection.settimeout(max(0.001, self.deadline - time.monotonic()))
        received = self.connection.recv_into(target)
        if not received:
            raise StopIteration
        return received


class SocketWriter:
    """Writes one socket, by one thread at a time, and never waits for the peer: what it does not take is kept, to be
    written by `flush`, which waits. Raises OSError when the connection is lost."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._kept: deque[memoryview] = deque()
        self._has_dictionary = False

    @property
    def is_behind(self) -> bool:
        """Whether the peer has not taken everything yet."""
        return bool(self._kept)

    def begin(self, schema: pa.Schema) -> None:
        """The schema of the batches that follow."""
        self._has_dictionary = any(_has_dictionary(data_type) for data_type in schema.types)
        if not self._has_dictionary:
            self._write(_SCHEMA, b"", schema.serialize())

    def write_metadata(self, message: bytes) -> None:
        """Write a message without a batch."""
        self._write(_METADATA, message, None)

    def write_with_metadata(self, batch: pa.RecordBatch, header: bytes) -> None:
        """Write a batch of the schema that was begun. Raises pyarrow.ArrowException for one that Arrow cannot
        write."""
        if not self._has_dictionary:
            self._write(_BATCH, header, batch.serialize())
            return
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, batch.schema) as stream:
            stream.write_batch(batch)
        self._write(_STREAM, header, sink.getvalue())

    def flush(self) -> None:
        """Write what is kept, as the peer takes it."""
        ready = select.poll()
        ready.register(self._socket, select.POLLOUT)
        while self._kept:
            ready.poll()
            self._send(list(self._kept))

    def close(self) -> None:
        """Say that nothing more is written."""
        self._socket.shutdown(socket.SHUT_WR)

    def _write(self, kind: int, metadata: bytes, body: Any) -> None:
        length = 0 if body is None else body.size
        head = _PREFIX.pack(kind, len(metadata), length) + metadata
        if length and length <= JOIN_BYTES:
            parts = [memoryview(head + memoryview(body))]
        else:
            parts = [memoryview(head), memoryview(body)] if length else [memoryview(head)]
        if self._kept:
            self._kept.extend(parts)
        else:
            self._kept = deque(parts)
            self._send(parts)

    def _send(self, parts: list[memoryview]) -> None:
        """Write of what is kept as much as the peer takes now."""
        flags = socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL
        try:
            if len(parts) == 1:
                sent = self._socket.send(parts[0], flags)
            else:
                sent = self._socket.sendmsg(parts[:2], (), flags)
        except BlockingIOError:
            return
        while self._kept and sent >= len(self._kept[0]):
            sent -= len(self._kept.popleft())
        if sent:
            self._kept[0] = self._kept[0][sent:]


class PatientWriter(SocketWriter):
    """The writer of a consumer, which waits until the peer takes what it says: a few bytes, bounded by credit."""

    def write_metadata(self, message: bytes) -> None:
        """Write a message without a batch."""
        super().write_metadata(message)
        if self.is_behind:
            self.flush()


def _has_dictionary(data_type: pa.DataType) -> bool:
    if isinstance(data_type, pa.BaseExtensionType):
        return _has_dictionary(data_type.storage_type)
    if pa.types.is_dictionary(data_type):
        return True
    return any(_has_dictionary(data_type.field(index).type) for index in range(data_type.num_fields))
