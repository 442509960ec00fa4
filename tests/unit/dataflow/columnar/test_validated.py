"""What comes as Arrow from a peer or a file is refused when it is damaged; it never ends the process."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pytest
import xxhash

from snapline.dataflow.api.state import ValueStateDescriptor
from snapline.dataflow.key_groups import KeyGroupRange
from snapline.dataflow.snapshot.state_format import (
    KEY_COLUMN,
    STATE_COLUMN,
    StateFormatError,
    decode_keyed_state,
    encode_keyed_state,
    read_header,
    with_role,
)
from snapline.taskmanager.network.channels.exchange_contract import BufferAndBacklog, ElementFrame
from snapline.taskmanager.network.flight import frames
from snapline.taskmanager.task.task_restore import decode_channel_state

ROWS = 300
MUTATIONS = 400
BATCH = pa.record_batch(
    {
        "n": pa.array(range(ROWS)),
        "s": pa.array([f"text {n}" if n % 7 else None for n in range(ROWS)]),
        "l": pa.array([[{"a": n, "b": "x" * (n % 5)}] * (n % 3) for n in range(ROWS)]),
        "d": pa.array([f"colour {n % 4}" for n in range(ROWS)]).dictionary_encode(),
    }
)


def mutated(data: bytes, seed: int) -> bytes:
    """One to three bytes changed, often to an extreme."""
    chance = random.Random(seed)
    changed = bytearray(data)
    for _ in range(chance.randint(1, 3)):
        position = chance.randrange(len(changed))
        changed[position] = chance.choice((0, 1, 0x7F, 0x80, 0xFF, changed[position] ^ (1 << chance.randrange(8))))
    return bytes(changed)


def use(batch: pa.RecordBatch) -> None:
    """Look at every value, as an operator would: this is what reads outside of the memory."""
    batch.take(pa.array(range(batch.num_rows))).to_pylist()


def outcomes(read: Callable[[bytes], list[pa.RecordBatch]], data: bytes, refusal: type[Exception]) -> dict[str, int]:
    """How many damaged copies are refused, and how many are other rows but sound ones."""
    counted = {"refused": 0, "read": 0}
    for seed in range(MUTATIONS):
        try:
            batches = read(mutated(data, seed))
        except refusal:
            counted["refused"] += 1
            continue
        for batch in batches:
            use(batch)
        counted["read"] += 1
    return counted


def test_damaged_batches_from_a_peer() -> None:
    """With the schema in the same message."""
    polled = BufferAndBacklog(BATCH, 1, 0, is_priority=False)

    def read(frame: bytes) -> list[pa.RecordBatch]:
        decoded = frames.decode_downstream(frame, None)
        element = decoded.element if isinstance(decoded, ElementFrame) else None
        return [element] if isinstance(element, pa.RecordBatch) else []

    counted = outcomes(read, frames.foreign_data_frame(1, polled, BATCH), frames.ProtocolError)
    assert counted["refused"] > MUTATIONS // 10


def test_offsets_of_a_batch_that_flight_has_read() -> None:
    """A text that begins before the column and ends behind it."""
    offsets = np.array([0, 1 << 30, 3], dtype=np.int32)
    texts = pa.StringArray.from_buffers(2, pa.py_buffer(offsets), pa.py_buffer(b"abc"))
    batch = pa.record_batch({"s": texts})
    polled = BufferAndBacklog(batch, 1, 0, is_priority=False)
    with pytest.raises(frames.ProtocolError, match=r"column s.*offset"):
        frames.decode_downstream(frames.data_header(1, polled, 100), batch)


def test_damaged_data_in_flight() -> None:
    """As an unaligned checkpoint keeps it."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, BATCH.schema) as writer:
        writer.write_batch(BATCH)
    counted = outcomes(decode_channel_state, sink.getvalue().to_pybytes(), StateFormatError)
    assert counted["refused"] > MUTATIONS // 10


def test_damaged_keyed_state_whose_checksums_were_made_right() -> None:
    """By somebody who can write to the storage."""
    schema = pa.schema(
        [
            with_role(pa.field("k", pa.int64()), KEY_COLUMN),
            with_role(ValueStateDescriptor("v", pa.list_(pa.string())).to_field(), STATE_COLUMN),
        ]
    )

    def rows(first: int, end: int) -> pa.RecordBatch:
        numbers = range(first, end)
        return pa.RecordBatch.from_arrays([pa.array(numbers), pa.array([[f"v{n}"] for n in numbers])], schema=schema)

    sizes = np.cumsum([0, 100, 200])
    file = bytes(encode_keyed_state(schema, KeyGroupRange(3, 4), 128, sizes, rows))
    prefix, (length,) = 8 + 4, struct.unpack_from("<I", file, 8 + 4)
    whole = read_header(lambda offset, size: file[offset : offset + size])
    blocks = [(block.position, block.length, struct.pack("<Q", block.checksum)) for block in whole.blocks]

    def made_right(data: bytes) -> bytes:
        """With the checksums of what it says now."""
        changed = bytearray(data)
        changed[: prefix + 4] = file[: prefix + 4]
        for position, size, checksum in blocks:
            place = file.index(checksum)
            changed[place : place + 8] = struct.pack(
                "<Q", xxhash.xxh64_intdigest(bytes(changed[position : position + size]))
            )
        start = prefix + 4 + 8
        changed[start - 8 : start] = struct.pack("<Q", xxhash.xxh64_intdigest(bytes(changed[start : start + length])))
        return bytes(changed)

    assert made_right(file) == file

    def read(data: bytes) -> list[pa.RecordBatch]:
        right = made_right(data)
        _, batches = decode_keyed_state(lambda offset, size: right[offset : offset + size], KeyGroupRange(3, 4))
        return list(batches)

    counted = outcomes(read, file, StateFormatError)
    assert counted["refused"] > 0
