"""Key columns of several types encoded into one byte string per row, and back.

A row is int64 words, then bytes: a word of null bits (bit i for column i), one word per fixed column (two for a
decimal), one word with the length for each binary-like column; then the bytes of the binary-like columns in order. A
null has zero words and no bytes, so equal keys have equal rows and different keys different ones. Private to a process:
snapshots hold columns.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from snapline.dataflow.columnar.arrow_columns import (
    BoolArray,
    BytesArray,
    Int64Array,
    binary_array,
    binary_buffers,
    bitmap_of,
    column_words,
    fixed_array,
    is_binary_like,
    is_decimal,
    is_fixed,
    plain_type,
    validity,
    words_to_values,
)
from snapline.dataflow.columnar.gather import gather_binary
from snapline.dataflow.columnar.kernel import (
    I64,
    VOID,
    I64s,
    RO_I64s,
    RO_U8s,
    U8s,
    copy_bytes,
    kernel,
    load_u64,
    store_u64,
)

MAX_COLUMNS = 63
_NO_WORDS: Int64Array = np.zeros(0, np.int64)
_NO_BYTES: BytesArray = np.zeros(0, np.uint8)


@kernel(VOID(RO_I64s, I64, RO_I64s, U8s))
def _place_words(words: Any, width: int, offsets: Any, target: Any) -> None:
    """`words`: `width` per row; row i goes to the start of its row in target."""
    for row in range(offsets.shape[0] - 1):
        position = offsets[row]
        for column in range(width):
            store_u64(target, position + 8 * column, np.uint64(words[row * width + column]))


@kernel(VOID(RO_I64s, RO_I64s, RO_U8s, I64s, U8s))
def _place_bytes(starts: Any, lengths: Any, data: Any, positions: Any, target: Any) -> None:
    """Copy one binary-like column's bytes to `positions`, and move these behind them."""
    for row in range(positions.shape[0]):
        copy_bytes(data, starts[row], target, positions[row], lengths[row])
        positions[row] += lengths[row]


@kernel(VOID(RO_U8s, RO_I64s, I64, I64s))
def _take_words(data: Any, offsets: Any, width: int, words: Any) -> None:
    """Copy words out of rows: the inverse of `_place_words`."""
    for row in range(offsets.shape[0] - 1):
        for column in range(width):
            words[row * width + column] = np.int64(load_u64(data, offsets[row] + 8 * column))


class RowEncoding:
    """The encoding for columns of these types; TypeError for a type that cannot be part of a key."""

    __slots__ = ("_types", "is_fixed", "width")

    def __init__(self, types: Sequence[pa.DataType]) -> None:
        if not 1 <= len(types) <= MAX_COLUMNS:
            raise ValueError(f"a key has between 1 and {MAX_COLUMNS} columns, not {len(types)}")
        self._types = [plain_type(data_type) for data_type in types]
        #: How many words each row begins with.
        self.width = 1 + sum(2 if is_decimal(data_type) else 1 for data_type in self._types)
        #: Whether nothing follows them.
        self.is_fixed = not any(is_binary_like(data_type) for data_type in self._types)

    def encode(self, columns: Sequence[pa.Array]) -> tuple[Int64Array, BytesArray]:
        """Offsets and bytes of the rows; the columns are plain and of the types given, one of them binary-like."""
        width = self.width
        words, texts = self._encoded(columns)
        row_offsets = np.zeros(len(words) + 1, np.int64)
        np.cumsum(sum(lengths for _, lengths, _ in texts) + 8 * width, out=row_offsets[1:])
        target = np.empty(int(row_offsets[-1]), np.uint8)
        _place_words(words.reshape(-1), width, row_offsets, target)
        positions = row_offsets[:-1] + 8 * width
        for starts, lengths, data in texts:
            _place_bytes(starts, lengths, data, positions, target)
        return row_offsets, target

    def encode_words(self, columns: Sequence[pa.Array]) -> Int64Array:
        """The words of the rows, one row after the other, where rows have nothing else."""
        return self._encoded(columns)[0].reshape(-1)

    def _encoded(
        self, columns: Sequence[pa.Array]
    ) -> tuple[Int64Array, list[tuple[Int64Array, Int64Array, BytesArray]]]:
        """The words of each row, and where the bytes of each binary-like column are: begin, length, data."""
        words = np.zeros((len(columns[0]), self.width), np.int64)
        texts: list[tuple[Int64Array, Int64Array, BytesArray]] = []
        place = 1
        for number, (array, data_type) in enumerate(zip(columns, self._types, strict=True)):
            valid = validity(array)
            if valid is not None:
                words[~valid, 0] |= 1 << number
            if is_binary_like(data_type):
                offsets, data = binary_buffers(array)
                lengths = np.diff(offsets)
                texts.append((offsets[:-1], lengths if valid is None else lengths * valid, data))
                words[:, place] = texts[-1][1]
            elif is_decimal(data_type):
                words[:, place : place + 2] = _masked(column_words(array).reshape(-1, 2), valid)
                place += 1
            elif not pa.types.is_null(data_type):
                words[:, place] = _masked(column_words(array), valid)
            place += 1
        return words, texts

    def encode_one(self, values: Sequence[Any]) -> bytes | None:
        """The row of these Python values, without detours; None unless all are plain integers, strings or bytes."""
        words, texts = [0], []
        for value, data_type in zip(values, self._types, strict=True):
            kind = type(value)
            if kind is int and pa.types.is_integer(data_type):
                words.append(value)
            elif (kind is str and _is_text(data_type)) or (kind is bytes and _is_bytes(data_type)):
                texts.append(value.encode() if kind is str else value)
                words.append(len(texts[-1]))
            else:
                return None
        try:
            return struct.pack(f"<{len(words)}q", *words) + b"".join(texts)
        except struct.error:
            return None

    def decode(self, offsets: Int64Array, data: BytesArray) -> list[pa.Array]:
        """The columns of these rows."""
        words = np.empty((len(offsets) - 1) * self.width, np.int64)
        _take_words(data, offsets, self.width, words)
        return self.decode_words(words, offsets[:-1] + 8 * self.width, data)

    def decode_words(
        self, words: Int64Array, position: Int64Array = _NO_WORDS, data: BytesArray = _NO_BYTES
    ) -> list[pa.Array]:
        """The columns of rows with these words. `position`, `data`: where the bytes of each row begin, if rows have
        any."""
        table = words.reshape(-1, self.width)
        length = len(table)
        rows = np.arange(length, dtype=np.int32)
        columns: list[pa.Array] = []
        place = 1
        for number, data_type in enumerate(self._types):
            null = (table[:, 0] >> number) & 1
            valid = null == 0 if null.any() else None
            if is_binary_like(data_type):
                end = position + table[:, place]
                columns.append(binary_array(*gather_binary(position, end, data, rows), valid, data_type))
                position = end
            elif is_decimal(data_type):
                unscaled = np.ascontiguousarray(table[:, place : place + 2])
                buffers = [bitmap_of(valid), pa.py_buffer(unscaled)]
                columns.append(pa.Array.from_buffers(data_type, length, buffers))
                place += 1
            elif is_fixed(data_type):
                values = words_to_values(np.ascontiguousarray(table[:, place]), data_type)
                columns.append(fixed_array(values, valid, data_type))
            else:
                columns.append(pa.nulls(length, data_type))
            place += 1
        return columns


def _is_text(data_type: pa.DataType) -> bool:
    return bool(pa.types.is_string(data_type) or pa.types.is_large_string(data_type))


def _is_bytes(data_type: pa.DataType) -> bool:
    return bool(pa.types.is_binary(data_type) or pa.types.is_large_binary(data_type))


def _masked(words: Int64Array, valid: BoolArray | None) -> Int64Array:
    if valid is None:
        return words
    return np.where(valid if words.ndim == 1 else valid[:, None], words, 0)
