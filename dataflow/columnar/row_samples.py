"""A few rows as an Arrow stream from a process that may be hostile: what they become in memory has a bound.

A stream of kilobytes can say that it is gigabytes: by compression, by columns that share their bytes, by runs, views
and dictionaries. Our TaskManagers write samples with none of these but dictionaries. So the header of each message is
read before Arrow opens the stream, and what dictionaries share is counted before anybody computes with it. Headers are
Flatbuffers, which Arrow has verified by then, and of which a few fields are read here by hand. Nothing in Flink.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc

from snapline.dataflow.columnar.column_types import workable_type
from snapline.dataflow.columnar.validated import read_batches

_ROWS, _BUFFERS, _COMPRESSION = 0, 2, 3
"""Fields of a RecordBatch in Arrow's `Message.fbs`, by their numbers there."""
_HEADER = 2
"""The field of a Message that has its header: here a RecordBatch or a DictionaryBatch."""
_DATA = 1
"""The field of a DictionaryBatch that has its values, as a RecordBatch."""


def read_sample(stream: bytes, most_rows: int, most_bytes: int) -> list[pa.RecordBatch]:
    """The batches of an Arrow stream, validated, which have no more rows and bytes together, when each value counts as
    often as it stands in a row. Raises what is in `validated.DAMAGE`.

    >>> rows = pa.record_batch({"n": [1, 2]})
    >>> sink = pa.BufferOutputStream()
    >>> with pa.ipc.new_stream(sink, rows.schema) as writer:
    ...     writer.write_batch(rows)
    >>> [batch.num_rows for batch in read_sample(sink.getvalue().to_pybytes(), 10, 1000)]
    [2]
    """
    rows = 0
    for message in pa.ipc.MessageReader.open_stream(pa.py_buffer(stream)):
        try:
            rows += _check_header(message)
        except struct.error as error:
            raise pa.ArrowInvalid(f"the header of a message is damaged: {error}") from None
        if rows > most_rows:
            raise pa.ArrowInvalid(f"{rows} rows, where {most_rows} are the most")
    batches = []
    for batch in read_batches(stream):
        for field in batch.schema:
            if workable_type(field.type) != field.type:
                raise pa.ArrowInvalid(f"column {field.name} is {field.type}, which no row of a job is")
        most_bytes -= sum(map(_count_bytes, batch.columns))
        if most_bytes < 0:
            raise pa.ArrowInvalid("the rows are too large")
        batches.append(batch)
    return batches


def _check_header(message: pa.ipc.Message) -> int:
    """How many rows the message says that it adds. Raises ArrowInvalid, and struct.error for a damaged header."""
    if message.type == "schema":
        return 0
    header = memoryview(message.metadata)
    table = _follow(header, 0)
    batch = _table_in(header, table, _HEADER)
    if message.type == "dictionary":
        batch = _table_in(header, batch, _DATA)
    if _find(header, batch, _COMPRESSION):
        raise pa.ArrowInvalid("the rows are compressed, which no sample is")
    if sum(_buffer_lengths(header, batch)) > message.body.size:
        raise pa.ArrowInvalid("columns share their bytes, or have more than there are")
    at = _find(header, batch, _ROWS)
    return struct.unpack_from("<q", header, at)[0] if at and message.type == "record batch" else 0


def _buffer_lengths(header: memoryview, batch: int) -> Iterator[int]:
    at = _find(header, batch, _BUFFERS)
    if at:
        vector = _follow(header, at)
        (count,) = struct.unpack_from("<I", header, vector)
        for number in range(count):
            offset, length = struct.unpack_from("<qq", header, vector + 4 + 16 * number)
            if offset < 0 or length < 0:
                raise pa.ArrowInvalid("a column has less than no bytes")
            yield length


def _follow(header: memoryview, at: int) -> int:
    """Where the offset that stands there points to."""
    return int(at + struct.unpack_from("<I", header, at)[0])


def _table_in(header: memoryview, table: int, field: int) -> int:
    at = _find(header, table, field)
    if not at:
        raise pa.ArrowInvalid("the header of a message has no rows")
    return _follow(header, at)


def _find(header: memoryview, table: int, field: int) -> int:
    """Where the field of the table stands; 0: it has none."""
    vtable = table - struct.unpack_from("<i", header, table)[0]
    (size,) = struct.unpack_from("<H", header, vtable)
    slot = 4 + 2 * field
    offset = struct.unpack_from("<H", header, vtable + slot)[0] if slot < size else 0
    return table + offset if offset else 0


def _count_bytes(array: pa.Array) -> int:
    """How many bytes the values have at most when each row has its own, eight for the smallest."""
    kind = array.type
    if isinstance(kind, pa.BaseExtensionType):
        return _count_bytes(array.storage)
    least = 8 * len(array)
    if pa.types.is_dictionary(kind):
        return least + _count_shared(array)
    if pa.types.is_struct(kind) or pa.types.is_union(kind):
        return least + sum(_count_bytes(array.field(number)) for number in range(kind.num_fields))
    if pa.types.is_nested(kind):
        return least + _count_bytes(array.values)
    return max(least, int(array.nbytes))


def _count_shared(array: pa.DictionaryArray) -> int:
    """The bytes of the values of a dictionary, each as often as there is an index of it."""
    values, kind = array.dictionary, array.type.value_type
    if kind.num_fields or isinstance(kind, (pa.DictionaryType, pa.BaseExtensionType)) or pa.types.is_null(kind):
        return len(array) * _count_bytes(values)
    try:
        return len(array) * (kind.bit_width // 8)
    except ValueError:  # texts, which are as long as they are
        lengths = pc.cast(pc.binary_length(values), pa.int64())
        return int(pc.sum(lengths.take(array.indices)).as_py() or 0)
