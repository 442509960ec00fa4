"""Taking rows of Arrow columns by position, faster than `take` for what streams mostly consist of.

Columns of 1, 2, 4 or 8 bytes without nulls go through a kernel; all others through Arrow's `take`, which is twice as
fast as a kernel of ours for texts.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from snapline.dataflow.columnar.arrow_columns import (
    BytesArray,
    Int64Array,
    is_fixed,
    numpy_values,
)
from snapline.dataflow.columnar.kernel import (
    VOID,
    I64s,
    RO_I32s,
    RO_I64s,
    RO_U8s,
    RO_U16s,
    RO_U32s,
    RO_U64s,
    U8s,
    U16s,
    U32s,
    U64s,
    copy_bytes,
    kernel,
)
from snapline.dataflow.columnar.large_arrays import empty_array

_BOOLEAN = pa.bool_().id
_UNSIGNED = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}


@kernel(
    VOID(RO_U8s, RO_I32s, U8s), VOID(RO_U16s, RO_I32s, U16s), VOID(RO_U32s, RO_I32s, U32s), VOID(RO_U64s, RO_I32s, U64s)
)
def _gather_fixed(source: Any, rows: Any, target: Any) -> None:
    for position in range(rows.shape[0]):
        target[position] = source[rows[position]]


@kernel(VOID(RO_I64s, RO_I64s, RO_I32s, I64s))
def _gather_offsets(starts: Any, ends: Any, rows: Any, target: Any) -> None:
    total = 0
    target[0] = 0
    for position in range(rows.shape[0]):
        row = rows[position]
        total += ends[row] - starts[row]
        target[position + 1] = total


@kernel(VOID(RO_I64s, RO_U8s, RO_I32s, RO_I64s, U8s))
def _gather_bytes(starts: Any, data: Any, rows: Any, offsets: Any, target: Any) -> None:
    for position in range(rows.shape[0]):
        start = offsets[position]
        copy_bytes(data, starts[rows[position]], target, start, offsets[position + 1] - start)


def gather_values(values: np.ndarray[Any, Any], rows: np.ndarray[Any, np.dtype[np.int32]]) -> np.ndarray[Any, Any]:
    """values[rows] for a contiguous array of a fixed width up to eight bytes."""
    width = values.dtype.itemsize
    target = empty_array(len(rows), values.dtype)
    unsigned = _UNSIGNED[width]
    _gather_fixed(values.view(unsigned), rows, target.view(unsigned))
    return target


def gather_binary(
    starts: Int64Array, ends: Int64Array, data: BytesArray, rows: np.ndarray[Any, np.dtype[np.int32]]
) -> tuple[Int64Array, BytesArray]:
    """Offsets and bytes of the strings data[starts[row]:ends[row]], one per entry of rows."""
    offsets = np.empty(len(rows) + 1, np.int64)
    _gather_offsets(starts, ends, rows, offsets)
    target = np.empty(int(offsets[-1]), np.uint8)
    _gather_bytes(starts, data, rows, offsets, target)
    return offsets, target


def gather_array(array: pa.Array, rows: np.ndarray[Any, np.dtype[np.int32]]) -> pa.Array:
    """Return `array.take(rows)`, twice as fast for columns of a fixed width without nulls."""
    data_type = array.type
    if array.null_count == 0 and is_fixed(data_type) and data_type.id != _BOOLEAN:
        values = gather_values(numpy_values(array), rows)
        return pa.Array.from_buffers(data_type, len(rows), [None, pa.py_buffer(values)])
    return array.take(pa.array(rows))
