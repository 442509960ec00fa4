"""Messages of Arrow lie in a file as `RecordBatch.serialize` has them, at aligned positions, and nothing else does."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from snapline.dataflow.columnar.message_buffer import MessageBuffer

SCHEMA = pa.schema([("number", pa.int64()), ("text", pa.string()), ("list", pa.large_list(pa.int32()))])
HEADER = b"h" * 999


def rows(count: int, text: str) -> pa.RecordBatch:
    """Rows, some of them null."""
    return pa.RecordBatch.from_arrays(
        [
            pa.array([None if row % 3 == 1 else row for row in range(count)], pa.int64()),
            pa.array([text * (row % 5) for row in range(count)]),
            pa.array([[row] * (row % 4) for row in range(count)], pa.large_list(pa.int32())),
        ],
        schema=SCHEMA,
    )


@pytest.mark.parametrize("guessed", [0, 5, 100_000])
@given(st.lists(st.tuples(st.integers(0, 60), st.integers(0, 300), st.integers(0, 40)), max_size=8))
def test_each_message_lies_where_it_is_said_to(guessed: int, batches: list[tuple[int, int, int]]) -> None:
    """Whatever was guessed of the rows to come, and slices of batches too; what lies between is zero."""
    buffer = MessageBuffer(len(HEADER), SCHEMA, 64)
    written = []
    for count, length, first in batches:
        batch = rows(count, "x" * length).slice(first)
        position, message = buffer.append(batch, guessed)
        assert position % 64 == 0 and bytes(message) == batch.serialize().to_pybytes()
        written.append((position, bytes(message)))
    file = buffer.finished(HEADER)

    expected = bytearray(HEADER)
    for position, bytes_of_it in written:
        expected += bytes(position - len(expected)) + bytes_of_it
    assert bytes(file) == bytes(expected) and file.readonly


def test_a_header_that_is_as_long_as_the_schema() -> None:
    """There is just room for what Arrow writes there at first."""
    header = bytes(SCHEMA.serialize().size)
    buffer = MessageBuffer(len(header), SCHEMA, 8)
    position, message = buffer.append(rows(3, "a"))

    assert position == len(header)
    assert pa.ipc.read_record_batch(pa.py_buffer(bytes(message)), SCHEMA) == rows(3, "a")
    assert bytes(buffer.finished(header))[:position] == header
