"""The file of keyed state: ranges, blocks, damage, other versions."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from snapline.dataflow.api.state import ValueStateDescriptor
from snapline.dataflow.key_groups import EMPTY_KEY_GROUP_RANGE, KeyGroupRange
from snapline.dataflow.snapshot.state_format import (
    BLOCK_ROWS,
    KEY_COLUMN,
    STATE_COLUMN,
    KeyGroupRangeOffsets,
    StateFormatError,
    block_bounds,
    decode_keyed_state,
    encode_keyed_state,
    read_header,
    with_role,
)

SCHEMA = pa.schema(
    [
        with_role(pa.field("k", pa.int64()), KEY_COLUMN),
        with_role(ValueStateDescriptor("v", pa.string()).to_field(), STATE_COLUMN),
    ]
)


def file_of(sizes: list[int], start: int = 3, most_rows: int | None = None) -> bytes:
    """Key group `start + i` has `sizes[i]` rows; the rows are numbered. `most_rows`: more do not fit into a batch."""
    groups = KeyGroupRange(start, start + len(sizes) - 1) if sizes else EMPTY_KEY_GROUP_RANGE

    def read_rows(first: int, end: int) -> pa.RecordBatch:
        if most_rows is not None and end - first > most_rows:
            raise pa.ArrowInvalid("offset overflow while concatenating arrays")
        numbers = range(first, end)
        return pa.RecordBatch.from_arrays([pa.array(numbers), pa.array([f"v{n}" for n in numbers])], schema=SCHEMA)

    return bytes(encode_keyed_state(SCHEMA, groups, 128, np.cumsum([0, *sizes]), read_rows))


def rows_of(data: bytes, groups: KeyGroupRange) -> list[int]:
    _, batches = decode_keyed_state(lambda offset, size: data[offset : offset + size], groups)
    rows = [row for batch in batches for row in batch.to_pylist()]
    assert all(row["v"] == f"v{row['k']}" for row in rows)
    return [row["k"] for row in rows]


@given(st.lists(st.integers(0, 40), max_size=12), st.integers(0, 16), st.integers(-1, 16))
def test_a_range_reads_its_rows(sizes: list[int], first: int, length: int) -> None:
    """Exactly the rows of the key groups asked for, in order, whatever lies outside of the file."""
    wanted = KeyGroupRange(first, first + length)
    bounds = np.cumsum([0, *sizes]).tolist()
    expected = [n for i in range(len(sizes)) if 3 + i in wanted for n in range(bounds[i], bounds[i + 1])]

    assert rows_of(file_of(sizes), wanted) == expected


def test_many_small_key_groups_share_a_block_and_a_large_one_has_several() -> None:
    """So that a file has neither a message per key group nor one that cannot be read in parts."""
    offsets = np.cumsum([0, *[10] * 100, 3 * BLOCK_ROWS, 5])
    bounds = block_bounds(offsets)

    assert [first for first, _ in bounds[1:]] == [end for _, end in bounds[:-1]]
    assert (bounds[0][0], bounds[-1][1]) == (0, int(offsets[-1]))
    assert len(bounds) == 4
    assert max(end - first for first, end in bounds) == BLOCK_ROWS


@pytest.mark.parametrize("most_rows", [300, 20, 1])
def test_rows_of_which_few_fit_into_one_batch_have_smaller_blocks(most_rows: int) -> None:
    """Text of more than 2 GiB does not: whoever had so much of it in a few thousand rows had no checkpoint any more."""
    sizes = [7, 0, 500, 1, 1, 90]
    data = file_of(sizes, most_rows=most_rows)
    header = read_header(lambda offset, size: data[offset : offset + size])

    assert max(block.rows for block in header.blocks) <= most_rows
    assert rows_of(data, KeyGroupRange(3, 8)) == list(range(599))
    assert rows_of(data, KeyGroupRange(6, 7)) == [507, 508]


def test_a_row_that_does_not_fit_into_a_batch_is_said_to() -> None:
    """There is no smaller block."""
    with pytest.raises(pa.ArrowInvalid, match="offset overflow"):
        file_of([3], most_rows=0)


def test_the_header_tells_everything() -> None:
    """Columns, states, key groups and sizes, without the job's code."""
    data = file_of([2, 0, 5])
    header = read_header(lambda offset, size: data[offset : offset + size])

    assert header.schema.equals(SCHEMA, check_metadata=True)
    assert [field.name for field in header.key_fields] == ["k"]
    assert [field.name for field in header.state_fields] == ["v"]
    assert header.timer_fields == []
    assert (header.max_parallelism, header.row_count) == (128, 7)
    assert header.key_group_offsets.key_group_range == KeyGroupRange(3, 5)
    assert header.key_group_offsets.offsets == (0, 2, 2, 7)


def test_any_flipped_byte_that_is_read_is_noticed() -> None:
    """In the prefix, the header or a block; padding is nobody's."""
    data = file_of([3, 4])
    header = read_header(lambda offset, size: data[offset : offset + size])
    padding = {
        position
        for block, previous_end in zip(
            header.blocks, [_header_end(data), *(b.position + b.length for b in header.blocks)], strict=False
        )
        for position in range(previous_end, block.position)
    }
    for position in range(len(data)):
        damaged = bytearray(data)
        damaged[position] ^= 0x40
        if position in padding:
            assert rows_of(bytes(damaged), KeyGroupRange(0, 127)) == list(range(7))
            continue
        with pytest.raises(StateFormatError):
            rows_of(bytes(damaged), KeyGroupRange(0, 127))


def _header_end(data: bytes) -> int:
    return 24 + int.from_bytes(data[12:16], "little")


def test_every_cut_off_end_is_noticed() -> None:
    """A file that lost its tail is not read as a shorter one."""
    data = file_of([3, 4])
    for length in range(len(data)):
        with pytest.raises(StateFormatError):
            rows_of(data[:length], KeyGroupRange(0, 127))


def test_errors_name_what_is_wrong() -> None:
    """Not a state file, a newer one, a damaged one."""
    data = file_of([3])
    newer = data[:8] + (9).to_bytes(4, "little") + data[12:]

    with pytest.raises(StateFormatError, match="not a file of keyed state"):
        rows_of(b"PAR1 and so on, long enough for a prefix", KeyGroupRange(0, 1))
    with pytest.raises(
        StateFormatError, match="format version 9, and this Snapline reads up to 1: use the version that wrote it"
    ):
        rows_of(newer, KeyGroupRange(0, 1))
    with pytest.raises(StateFormatError, match=r"checksum of its rows 0 to 2 .* differs; restore an older checkpoint"):
        rows_of(data[:-1] + b"\xff", KeyGroupRange(0, 9))


def test_offsets_fit_their_key_groups() -> None:
    """One for each key group and one for the end, or it is no index at all."""
    with pytest.raises(ValueError, match="10 key groups need 11 offsets, not 3"):
        KeyGroupRangeOffsets(KeyGroupRange(0, 9), (0, 1, 2))


def test_blocks_are_read_together() -> None:
    """Neighbouring blocks cost one request, not one each."""
    reads: list[tuple[int, int]] = []
    data = file_of([BLOCK_ROWS // 4] * 6)

    def read_range(offset: int, size: int) -> bytes:
        reads.append((offset, size))
        return data[offset : offset + size]

    header, batches = decode_keyed_state(read_range, KeyGroupRange(4, 6))
    assert len(header.blocks) == 6
    assert [batch.num_rows for batch in batches] == [BLOCK_ROWS // 4] * 3
    assert len(reads) == 3
