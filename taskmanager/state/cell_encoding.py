"""Columns of any Arrow types as one byte string per row, and back: what storage outside of memory keeps of a key.

Whole batches at a time: a row is a sequence of cells, one per column, and a cell is itself columnar. A cell of n values
is n bytes of validity, and then, by type: the n values of a fixed width; n lengths and the bytes (strings); n lengths
and one cell with all elements (lists, maps); a cell per field (structs). So both directions cost a few passes per
column, however nested it is. Private to a process: types are not in the bytes, the reader knows them. Nothing like it
in Flink, whose serializers write one object at a time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
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
    fixed_array,
    is_binary_like,
    is_fixed,
    numpy_type,
    numpy_values,
    validity,
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
from snapline.dataflow.errors import StateError

_Piece = tuple[Int64Array | int, BytesArray]
"""How many bytes of the array belong to each row, one row after the other; one number if it is the same for all."""


@kernel(VOID(RO_I64s, RO_U8s, I64s, U8s))
def _place(lengths: Any, data: Any, positions: Any, target: Any) -> None:
    """Copy one piece to `positions`, and move these behind it."""
    start = 0
    for row in range(positions.shape[0]):
        copy_bytes(data, start, target, positions[row], lengths[row])
        start += lengths[row]
        positions[row] += lengths[row]


@kernel(VOID(I64, RO_U8s, I64s, U8s))
def _place_each(width: int, data: Any, positions: Any, target: Any) -> None:
    """As `_place`, with the same length for all rows."""
    if width == 8:
        for row in range(positions.shape[0]):
            store_u64(target, positions[row], load_u64(data, 8 * row))
            positions[row] += 8
    elif width == 1:
        for row in range(positions.shape[0]):
            target[positions[row]] = data[row]
            positions[row] += 1
    else:
        for row in range(positions.shape[0]):
            copy_bytes(data, width * row, target, positions[row], width)
            positions[row] += width


@kernel(VOID(I64, RO_U8s, I64s, U8s))
def _take_each(width: int, data: Any, positions: Any, target: Any) -> None:
    """Copy so many bytes from each of `positions`, and move these behind them."""
    if width == 8:
        for row in range(positions.shape[0]):
            store_u64(target, 8 * row, load_u64(data, positions[row]))
            positions[row] += 8
    elif width == 1:
        for row in range(positions.shape[0]):
            target[row] = data[positions[row]]
            positions[row] += 1
    else:
        for row in range(positions.shape[0]):
            copy_bytes(data, positions[row], target, width * row, width)
            positions[row] += width


def check_encodable(name: str, data_type: pa.DataType) -> None:
    """StateError, by name, for a type that has no cells."""
    if not _is_encodable(data_type):
        raise StateError(
            f"state {name!r} of type {data_type} cannot be kept outside of memory: use a plain type, or "
            "state.backend.type: hashmap"
        )


def encode_rows(columns: Sequence[pa.Array]) -> tuple[Int64Array, BytesArray]:
    """Offsets and bytes of the rows."""
    return join_pieces(encode_cells(columns), len(columns[0]))


def encode_cells(columns: Sequence[pa.Array]) -> list[_Piece]:
    """The pieces of the cells of these columns, in their order."""
    return [piece for column in columns for piece in _encode(column, None)]


def join_pieces(pieces: Sequence[_Piece], length: int) -> tuple[Int64Array, BytesArray]:
    """Rows of all pieces, one behind the other."""
    offsets = np.zeros(length + 1, np.int64)
    np.cumsum(row_lengths(pieces, length), out=offsets[1:])
    target = np.empty(int(offsets[-1]), np.uint8)
    positions = offsets[:-1].copy()
    for lengths, data in pieces:
        if isinstance(lengths, int):
            _place_each(lengths, data, positions, target)
        else:
            _place(lengths, data, positions, target)
    return offsets, target


def row_lengths(pieces: Sequence[_Piece], length: int) -> Int64Array:
    """How long the rows of these pieces are."""
    lengths = np.full(length, sum(width for width, _ in pieces if isinstance(width, int)))
    for some, _ in pieces:
        if not isinstance(some, int):
            lengths += some
    return lengths


def decode_rows(types: Sequence[pa.DataType], data: BytesArray, starts: Int64Array) -> list[pa.Array]:
    """The columns of the rows that begin at `starts`."""
    reader = _Reader(data, starts.astype(np.int64))
    return [reader.read(data_type, None) for data_type in types]


def skip_cells(types: Sequence[pa.DataType], data: BytesArray, starts: Int64Array) -> Int64Array:
    """Where the cells end that columns of these types have from `starts` on."""
    reader = _Reader(data, starts.astype(np.int64))
    for data_type in types:
        if is_fixed(data_type):
            reader.skip(1 + numpy_type(data_type).itemsize)
        elif _fixed_bytes(data_type):
            reader.skip(1 + data_type.bit_width // 8)
        else:
            reader.read(data_type, None)
    return reader.positions


def _encode(array: pa.Array, bounds: Int64Array | None) -> Iterator[_Piece]:
    """The pieces of one column, whose cell i holds array[bounds[i]:bounds[i + 1]]; without bounds it holds array[i]."""
    data_type = array.type
    counts: Int64Array | int = 1
    if bounds is not None:
        if bounds[0] or bounds[-1] != len(array):
            array = array.slice(int(bounds[0]), int(bounds[-1] - bounds[0]))
            bounds = bounds - bounds[0]
        counts = np.diff(bounds)
    valid = validity(array)
    yield counts, np.ones(len(array), np.uint8) if valid is None else valid.view(np.uint8)
    if is_fixed(data_type):
        values = np.ascontiguousarray(numpy_values(array))
        yield counts * values.itemsize, values.view(np.uint8)
    elif _fixed_bytes(data_type):
        width = data_type.bit_width // 8
        buffer = array.buffers()[1]
        plain = np.zeros(len(array) * width, np.uint8)
        if buffer is not None:
            plain = np.frombuffer(buffer, np.uint8, len(array) * width, array.offset * width)
        yield counts * width, plain
    elif is_binary_like(data_type):
        offsets, data = binary_buffers(array)
        lengths = np.diff(offsets).astype(np.uint32)
        yield counts * 4, lengths.view(np.uint8)
        yield np.diff(offsets if bounds is None else offsets[bounds]), data[offsets[0] : offsets[-1]]
    elif pa.types.is_struct(data_type):
        for field in array.flatten():
            yield from _encode(field, bounds)
    elif not pa.types.is_null(data_type):
        offsets, elements = _elements(array)
        yield counts * 4, np.diff(offsets).astype(np.uint32).view(np.uint8)
        yield from _encode(elements, offsets if bounds is None else offsets[bounds])


def _elements(array: pa.Array) -> tuple[Int64Array, pa.Array]:
    """Return where the elements of each list or map are, and all elements."""
    data_type = array.type
    offsets = np.asarray(array.offsets).astype(np.int64)
    if not pa.types.is_map(data_type):
        return offsets, array.values
    pairs = pa.StructArray.from_arrays([array.keys, array.items], fields=[data_type.key_field, data_type.item_field])
    return offsets, pairs


class _Reader:
    """Where the next cell of each row begins."""

    __slots__ = ("_data", "_rows", "positions")

    def __init__(self, data: BytesArray, positions: Int64Array) -> None:
        self._data, self.positions = data, positions
        self._rows = np.arange(len(positions), dtype=np.int32)

    def read(self, data_type: pa.DataType, counts: Int64Array | None) -> pa.Array:
        """One cell of each row, with so many values, joined; without counts it has one."""
        valid: BoolArray | None = self._values(counts, 1).view(np.bool_)
        total = len(valid)  # type: ignore[arg-type]
        if valid is not None and valid.all():
            valid = None
        if is_fixed(data_type):
            dtype = numpy_type(data_type)
            return fixed_array(self._values(counts, dtype.itemsize).view(dtype), valid, data_type)
        if _fixed_bytes(data_type):
            plain = self._values(counts, data_type.bit_width // 8)
            return pa.Array.from_buffers(data_type, total, [bitmap_of(valid), pa.py_buffer(plain)])
        if is_binary_like(data_type):
            offsets, sizes = self._lengths(counts)
            return binary_array(offsets, self._take(sizes), valid, data_type)
        if pa.types.is_struct(data_type):
            children = [self.read(field.type, counts) for field in data_type]
            return pa.Array.from_buffers(data_type, total, [bitmap_of(valid)], children=children)
        if pa.types.is_null(data_type):
            return pa.nulls(total)
        offsets, sizes = self._lengths(counts)
        if pa.types.is_map(data_type):
            pairs = self.read(pa.struct([data_type.key_field, data_type.item_field]), sizes)
            buffers = [bitmap_of(valid), pa.py_buffer(offsets.astype(np.int32))]
            return pa.Array.from_buffers(data_type, total, buffers, children=[pairs])
        shaped = offsets if pa.types.is_large_list(data_type) else offsets.astype(np.int32)
        elements = self.read(data_type.value_type, sizes)
        return pa.Array.from_buffers(data_type, total, [bitmap_of(valid), pa.py_buffer(shaped)], children=[elements])

    def skip(self, length: int) -> None:
        """Leave out the next bytes of each row."""
        self.positions += length

    def _take(self, lengths: Int64Array) -> BytesArray:
        """The next bytes of each row."""
        ends = self.positions + lengths
        _, taken = gather_binary(self.positions, ends, self._data, self._rows)
        self.positions = ends
        return taken

    def _values(self, counts: Int64Array | None, width: int) -> BytesArray:
        """The next values of each row, of this width."""
        if counts is not None:
            return self._take(counts * width)
        target = np.empty(len(self._rows) * width, np.uint8)
        _take_each(width, self._data, self.positions, target)
        return target

    def _lengths(self, counts: Int64Array | None) -> tuple[Int64Array, Int64Array]:
        """Offsets from the lengths that come next, and their sum per row."""
        lengths = self._values(counts, 4).view(np.uint32)
        offsets = np.zeros(len(lengths) + 1, np.int64)
        np.cumsum(lengths, out=offsets[1:])
        if counts is None:
            return offsets, np.diff(offsets)
        bounds = np.zeros(len(counts) + 1, np.int64)
        np.cumsum(counts, out=bounds[1:])
        return offsets, np.diff(offsets[bounds])


def _fixed_bytes(data_type: pa.DataType) -> bool:
    return bool(pa.types.is_decimal(data_type) or pa.types.is_fixed_size_binary(data_type))


def _is_encodable(data_type: pa.DataType) -> bool:
    if pa.types.is_struct(data_type):
        return all(_is_encodable(field.type) for field in data_type)
    if pa.types.is_map(data_type):
        return _is_encodable(data_type.key_type) and _is_encodable(data_type.item_type)
    if pa.types.is_list(data_type) or pa.types.is_large_list(data_type):
        return _is_encodable(data_type.value_type)
    plain = is_fixed(data_type) or is_binary_like(data_type) or _fixed_bytes(data_type)
    return bool(plain or pa.types.is_null(data_type))
