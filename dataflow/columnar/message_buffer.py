"""Arrow's messages of record batches, written one after the other where they are to lie in a file.

`RecordBatch.serialize` gives each message memory of its own, from which it is then copied to its place: of a large
snapshot there were two copies at a time, and fresh memory costs the system several times what is then written there.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pyarrow as pa

from snapline.dataflow.columnar.arrow_columns import BytesArray
from snapline.dataflow.columnar.large_arrays import empty_array

_SLACK = 2
"""Memory for so many times what the rows so far let expect. What is not touched costs nothing."""


class _Stream(NamedTuple):
    begins_at: int
    file: pa.NativeFile
    writer: pa.RecordBatchStreamWriter


class MessageBuffer:
    """The bytes of a file that begins with a header of a known size.

    Arrow writes messages only after that of their schema, which is not wanted: it is written over what stands before
    the first message, and that is put back."""

    def __init__(self, header_bytes: int, schema: pa.Schema, alignment: int) -> None:
        """`header_bytes`: at least those of the schema's message. `alignment`: of each message, a multiple of 8
        bytes."""
        self._schema, self._alignment = schema, alignment
        self._schema_bytes = schema.serialize().size
        self._end = header_bytes
        self._memory: BytesArray = np.zeros(header_bytes, np.uint8)
        self._stream: _Stream | None = None

    def append(self, batch: pa.RecordBatch, rows_to_come: int = 0) -> tuple[int, memoryview]:
        """Write the batch; returns its position, and its message. `rows_to_come`: of later calls, a guess."""
        position = self._end + -self._end % self._alignment
        size = pa.ipc.get_record_batch_size(batch)
        stream = self._stream
        if stream is None or position + size > len(self._memory):
            stream = self._move(position, size + _SLACK * size * rows_to_come // max(1, batch.num_rows))
            before = self._memory[stream.begins_at : position].copy()
            stream.writer.write_batch(batch)
            self._memory[stream.begins_at : position] = before
        else:
            stream.file.write(bytes(position - self._end))
            stream.writer.write_batch(batch)
        self._end = stream.begins_at + stream.file.tell()
        return position, self._memory[position : self._end].data

    def finished(self, header: bytes) -> memoryview:
        """The whole file, which does not change any more."""
        self._memory[: len(header)] = np.frombuffer(header, np.uint8)
        return self._memory[: self._end].data.toreadonly()

    def _move(self, position: int, size: int) -> _Stream:
        """Go on in memory with room for so many bytes after this position."""
        memory = empty_array(position + size, np.uint8)
        memory[: self._end] = self._memory[: self._end]
        memory[self._end : position] = 0
        self._memory = memory
        begins_at = position - self._schema_bytes
        file = pa.FixedSizeBufferWriter(pa.py_buffer(memory[begins_at:]))
        self._stream = _Stream(begins_at, file, pa.ipc.new_stream(file, self._schema))
        return self._stream
