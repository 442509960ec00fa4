"""Arrow columns seen as numpy arrays: what kernels over keys and state need, and nothing of what they do with it.

Two shapes are enough. A *fixed* column is one int64 word per row (two for decimals): integers and booleans by value,
floats by the bits of the double with -0.0 and NaN made canonical, everything temporal by its count. A *binary-like*
column is offsets and bytes. Anything else (lists, structs, maps) is refused by name.
"""

from __future__ import annotations

import difflib
from typing import Any

import numpy as np
import pyarrow as pa

Int64Array = np.ndarray[Any, np.dtype[np.int64]]
BytesArray = np.ndarray[Any, np.dtype[np.uint8]]
BoolArray = np.ndarray[Any, np.dtype[np.bool_]]

_DTYPES: dict[int, np.dtype[Any]] = {
    data_type.id: np.dtype(dtype)
    for data_type, dtype in (
        (pa.int8(), np.int8),
        (pa.int16(), np.int16),
        (pa.int32(), np.int32),
        (pa.int64(), np.int64),
        (pa.uint8(), np.uint8),
        (pa.uint16(), np.uint16),
        (pa.uint32(), np.uint32),
        (pa.uint64(), np.uint64),
        (pa.float16(), np.float16),
        (pa.float32(), np.float32),
        (pa.float64(), np.float64),
        (pa.bool_(), np.bool_),
        (pa.date32(), np.int32),
        (pa.date64(), np.int64),
        (pa.time32("s"), np.int32),
        (pa.time64("us"), np.int64),
        (pa.timestamp("us"), np.int64),
        (pa.duration("us"), np.int64),
    )
}
"""What the values of fixed columns are in numpy, by the number of their type; the hash of a type is that of its name,
which costs more than all else that happens to a small column."""
_UNITS = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}
_EMPTY_BYTES: BytesArray = np.zeros(0, np.uint8)


def is_binary_like(data_type: pa.DataType) -> bool:
    """Strings and binaries of every kind of offset, fixed-size binaries among them."""
    return bool(
        pa.types.is_string(data_type)
        or pa.types.is_large_string(data_type)
        or pa.types.is_binary(data_type)
        or pa.types.is_large_binary(data_type)
        or pa.types.is_fixed_size_binary(data_type)
    )


def is_decimal(data_type: pa.DataType) -> bool:
    """The one decimal that `plain_array` leaves over."""
    return bool(pa.types.is_decimal128(data_type))


def is_temporal_with_unit(data_type: pa.DataType) -> bool:
    """Timestamps, times of day and durations."""
    return bool(pa.types.is_timestamp(data_type) or pa.types.is_time(data_type) or pa.types.is_duration(data_type))


def is_fixed(data_type: pa.DataType) -> bool:
    """Whether a value is one int64 word (see `column_words`)."""
    return data_type.id in _DTYPES


def units_per_second(data_type: pa.DataType) -> int:
    """1, 1,000, 1,000,000 or 1,000,000,000."""
    return _UNITS[data_type.unit]


def plain_type(data_type: pa.DataType) -> pa.DataType:
    """The type of `plain_array(array)` for arrays of this type; TypeError, by name, if it cannot be part of a key."""
    if isinstance(data_type, pa.BaseExtensionType):
        return plain_type(data_type.storage_type)
    if pa.types.is_dictionary(data_type) or pa.types.is_run_end_encoded(data_type):
        return plain_type(data_type.value_type)
    if data_type == pa.string_view():
        return pa.large_string()
    if data_type == pa.binary_view():
        return pa.large_binary()
    if pa.types.is_decimal32(data_type) or pa.types.is_decimal64(data_type):
        return pa.decimal128(data_type.precision, data_type.scale)
    if is_fixed(data_type) or is_binary_like(data_type) or is_decimal(data_type) or pa.types.is_null(data_type):
        return data_type
    raise TypeError(
        f"a value of type {data_type} cannot be (part of) a key: use its fields, or a number, string, binary, boolean, "
        "date, time, timestamp or decimal128"
    )


def can_be_key(data_type: pa.DataType) -> bool:
    """Whether equal values of this type are found to be equal."""
    try:
        plain_type(data_type)
    except TypeError:
        return False
    return True


def narrow_type(data_type: pa.DataType) -> pa.DataType:
    """The type with 32-bit offsets, and parts that may be null, also inside of structs, lists and maps. Some writers of
    Parquet say large_string and others string, of the same texts, and some that a part is never null: two types are one
    for people if their narrow types are equal."""
    kinds = pa.types
    if kinds.is_struct(data_type):
        return pa.struct([field.with_type(narrow_type(field.type)).with_nullable(True) for field in data_type.fields])
    if kinds.is_list(data_type) or kinds.is_large_list(data_type):
        return pa.list_(data_type.value_field.with_type(narrow_type(data_type.value_type)))
    if kinds.is_map(data_type):
        return pa.map_(narrow_type(data_type.key_type), narrow_type(data_type.item_type), data_type.keys_sorted)
    if kinds.is_large_string(data_type) or kinds.is_string_view(data_type):
        return pa.string()
    return pa.binary() if kinds.is_large_binary(data_type) or kinds.is_binary_view(data_type) else data_type


def differ_in_offsets_only(schema: pa.Schema, other: pa.Schema) -> bool:
    """Whether both have the same columns in the same order, and types that are one for people."""
    return schema.names == other.names and all(
        mine == theirs or narrow_type(mine) == narrow_type(theirs)
        for mine, theirs in zip(schema.types, other.types, strict=True)
    )


def with_null_parts(data_type: pa.DataType) -> pa.DataType:
    """The type, where each part of a record may be null, as it is where the record is."""
    kinds = pa.types
    if kinds.is_struct(data_type):
        fields = [field.with_type(with_null_parts(field.type)).with_nullable(True) for field in data_type.fields]
        return pa.struct(fields)
    if kinds.is_list(data_type):
        return pa.list_(data_type.value_field.with_type(with_null_parts(data_type.value_type)))
    if kinds.is_large_list(data_type):
        return pa.large_list(data_type.value_field.with_type(with_null_parts(data_type.value_type)))
    if kinds.is_map(data_type):
        key, item = (
            field.with_type(with_null_parts(field.type)) for field in (data_type.key_field, data_type.item_field)
        )
        return pa.map_(key, item, data_type.keys_sorted)
    return data_type


def plain_array(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    """One array without dictionary, run-end encoding, views or extension type."""
    array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    data_type = array.type
    if is_fixed(data_type) or is_binary_like(data_type):
        return array
    target = plain_type(data_type)
    if isinstance(array, pa.ExtensionArray):
        return plain_array(array.storage)
    if pa.types.is_dictionary(data_type):
        return plain_array(array.dictionary_decode())
    return array if target == data_type else array.cast(target)


def validity(array: pa.Array) -> BoolArray | None:
    """True where there is a value; None when that is everywhere."""
    if array.null_count == 0:
        return None
    bitmap = array.buffers()[0]
    if bitmap is None:
        return np.zeros(len(array), np.bool_)
    return _unpack_bits(bitmap, array.offset, len(array))


def bitmap_of(valid: BoolArray | None) -> pa.Buffer | None:
    """The inverse of `validity`: a buffer for `pa.Array.from_buffers`."""
    return None if valid is None or valid.all() else pa.py_buffer(np.packbits(valid, bitorder="little"))


def numpy_values(array: pa.Array) -> np.ndarray[Any, Any]:
    """The values of a plain fixed column in their own width, without a copy (booleans unpacked); what a null holds is
    open."""
    data_type, offset, length = array.type, array.offset, len(array)
    buffer = array.buffers()[1]
    dtype = numpy_type(data_type)
    if buffer is None or length == 0:
        return np.zeros(length, dtype)
    if dtype == np.bool_:
        return _unpack_bits(buffer, offset, length)
    return np.frombuffer(buffer, dtype, length, offset * dtype.itemsize)


def numpy_type(data_type: pa.DataType) -> np.dtype[Any]:
    """What a plain fixed column's values are in numpy; temporal types are the integers that count their unit."""
    known = _DTYPES.get(data_type.id)
    return np.dtype(np.int32 if data_type.bit_width == 32 else np.int64) if known is None else known


def column_named(batch: pa.RecordBatch, name: str, role: str = "column") -> pa.Array:
    """The column of this name. Raises KeyError, which names the nearest and those that there are. `role`: what the
    column is there for."""
    position = batch.schema.get_field_index(name)
    if position < 0:
        near = difflib.get_close_matches(name, batch.schema.names, n=1, cutoff=0.5)
        hint = f" (did you mean {near[0]!r}?)" if near else ""
        raise KeyError(
            f"no {role} {name!r} in the batch{hint}: its columns are {', '.join(map(repr, batch.schema.names))}"
        )
    return batch.column(position)


def column_words(array: pa.Array) -> Int64Array:
    """A plain fixed column as int64 words; two words per row for a decimal128. What stands for a null is open."""
    if is_decimal(array.type):
        buffer = array.buffers()[1]
        return (
            np.frombuffer(buffer, np.int64, 2 * len(array), 16 * array.offset) if len(array) else np.zeros(0, np.int64)
        )
    values = numpy_values(array)
    if values.dtype == np.int64:
        return values
    if values.dtype.kind == "f":
        doubles = values.astype(np.float64) + 0.0
        doubles[np.isnan(doubles)] = np.nan
        return doubles.view(np.int64)
    if values.dtype == np.uint64:
        return values.view(np.int64)
    return values.astype(np.int64)


def words_to_values(words: Int64Array, data_type: pa.DataType) -> np.ndarray[Any, Any]:
    """The inverse of `column_words` for a fixed column (not decimals): values in their own width."""
    dtype = numpy_type(data_type)
    if dtype.kind == "f":
        return words.view(np.float64).astype(dtype)
    return words.view(np.uint64) if dtype == np.uint64 else words.astype(dtype, copy=False)


def fixed_array(values: np.ndarray[Any, Any], valid: BoolArray | None, data_type: pa.DataType) -> pa.Array:
    """An Arrow array over numpy values of `numpy_type(data_type)`, without a copy (booleans are packed)."""
    if values.dtype == np.bool_:
        buffer = pa.py_buffer(np.packbits(values, bitorder="little"))
    else:
        buffer = pa.py_buffer(np.ascontiguousarray(values))
    return pa.Array.from_buffers(data_type, len(values), [bitmap_of(valid), buffer])


def binary_buffers(array: pa.Array) -> tuple[Int64Array, BytesArray]:
    """Offsets (one more than rows, the first need not be 0) and bytes of a binary-like column."""
    length, offset = len(array), array.offset
    if pa.types.is_fixed_size_binary(array.type):
        width = array.type.byte_width
        data = array.buffers()[1]
        offsets = np.arange(offset, offset + length + 1, dtype=np.int64) * width
        return offsets, _EMPTY_BYTES if data is None else np.frombuffer(data, np.uint8)
    large = pa.types.is_large_string(array.type) or pa.types.is_large_binary(array.type)
    _, offset_buffer, data = array.buffers()
    if offset_buffer is None or length == 0:
        return np.zeros(length + 1, np.int64), _EMPTY_BYTES
    if large:
        offsets = np.frombuffer(offset_buffer, np.int64, length + 1, offset * 8)
    else:
        offsets = np.frombuffer(offset_buffer, np.int32, length + 1, offset * 4).astype(np.int64)
    return offsets, _EMPTY_BYTES if data is None else np.frombuffer(data, np.uint8)


def binary_array(offsets: Int64Array, data: BytesArray, valid: BoolArray | None, data_type: pa.DataType) -> pa.Array:
    """The inverse of `binary_buffers`; offsets start at 0."""
    length = len(offsets) - 1
    if pa.types.is_fixed_size_binary(data_type):
        width = data_type.byte_width
        if valid is not None and not valid.all():  # nulls of a fixed width have bytes, too
            padded = np.zeros((length, width), np.uint8)
            padded[valid] = data[: offsets[-1]].reshape(-1, width)
            data = padded.reshape(-1)
        return pa.Array.from_buffers(data_type, length, [bitmap_of(valid), pa.py_buffer(data)])
    large = pa.types.is_large_string(data_type) or pa.types.is_large_binary(data_type)
    if not large and offsets[-1] > 2**31 - 1:
        raise OverflowError(f"{offsets[-1]} bytes do not fit into one array of type {data_type}: use large_{data_type}")
    shaped = offsets if large else offsets.astype(np.int32)
    return pa.Array.from_buffers(data_type, length, [bitmap_of(valid), pa.py_buffer(shaped), pa.py_buffer(data)])


def _unpack_bits(buffer: pa.Buffer, offset: int, length: int) -> BoolArray:
    first = offset // 8
    packed = np.frombuffer(buffer, np.uint8, (offset + length + 7) // 8 - first, first)
    start = offset - first * 8
    return np.unpackbits(packed, count=start + length, bitorder="little")[start:].view(np.bool_)
