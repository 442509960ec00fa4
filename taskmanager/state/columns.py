"""Columns of state values, one value per slot: gather and scatter of whole batches, growth by doubling, freezing.

Three shapes: NumpyColumn for what is one number (integers, floats, booleans, everything temporal), StructColumn for
structs (a column per field), ArrowColumn for all else (strings, binaries, decimals, lists, maps). No value and a null
are the same: nothing is stored. A column knows no keys, no key groups and no user objects. Nothing like it in Flink,
whose heap backend holds objects in a hash map (CopyOnWriteStateMap).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, Protocol, runtime_checkable

import numpy as np
import pyarrow as pa

from snapline.dataflow.columnar.arrow_columns import (
    BoolArray,
    Int64Array,
    bitmap_of,
    fixed_array,
    is_fixed,
    numpy_type,
    numpy_values,
    validity,
)
from snapline.dataflow.columnar.gather import gather_array, gather_values
from snapline.dataflow.columnar.kernel import (
    VOID,
    BOOLs,
    RO_BOOLs,
    RO_I32s,
    RO_U8s,
    RO_U16s,
    RO_U32s,
    RO_U64s,
    U8s,
    U16s,
    U32s,
    U64s,
    kernel,
)
from snapline.taskmanager.state.index.copy_on_write import CopyOnWrite, FrozenArrays
from snapline.taskmanager.state.index.slots import Slots, grow_in_place

_UNSIGNED = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}
_ALL: BoolArray = np.zeros(0, np.bool_)
_MERGE_FACTOR = 2
_COMPACT_ROWS = 1024
_PIECE_BYTES = 1 << 30
"""Pieces stay below this, because offsets of strings and lists are 32 bits wide."""


@kernel(
    VOID(RO_I32s, RO_U8s, RO_BOOLs, U8s, BOOLs),
    VOID(RO_I32s, RO_U16s, RO_BOOLs, U16s, BOOLs),
    VOID(RO_I32s, RO_U32s, RO_BOOLs, U32s, BOOLs),
    VOID(RO_I32s, RO_U64s, RO_BOOLs, U64s, BOOLs),
)
def _scatter(slots: Any, values: Any, valid: Any, target: Any, target_valid: Any) -> None:
    """`valid`: empty if every value is. A slot that occurs twice keeps the last."""
    if valid.shape[0] == 0:
        for row in range(slots.shape[0]):
            target[slots[row]] = values[row]
            target_valid[slots[row]] = True
    else:
        for row in range(slots.shape[0]):
            target[slots[row]] = values[row]
            target_valid[slots[row]] = valid[row]


class FrozenColumn(Protocol):
    """Values by slot at one moment."""

    def get(self, slots: Slots) -> pa.Array:
        """The values of these slots, null where there is none."""
        ...


@runtime_checkable
class FrozenState(FrozenColumn, Protocol):
    """A column that also knows which slots had a value."""

    def occupied(self) -> BoolArray:
        """For each slot that was frozen, whether it had a value."""
        ...


class Column(ABC):
    """Values of one Arrow type by slot."""

    data_type: pa.DataType

    @abstractmethod
    def grow(self, capacity: int) -> None:
        """Make room for slots below `capacity`; the owner calls it before it uses them."""

    @abstractmethod
    def get(self, slots: Slots) -> pa.Array:
        """The values of these slots, null where there is none."""

    @abstractmethod
    def put(self, slots: Slots, values: pa.Array) -> None:
        """Set values; a null removes. A slot that occurs twice keeps the last."""

    @abstractmethod
    def clear(self, slots: Slots) -> None:
        """Remove the values of these slots."""

    @abstractmethod
    def occupied(self, high_water: int) -> BoolArray:
        """For each slot below, whether it has a value. Not to be kept: it may change with the column."""

    @abstractmethod
    def freeze(self, high_water: int, *, stays: bool = False) -> FrozenColumn:
        """The values below `high_water` as they are now, unmoved by what comes later. `stays`: as for CopyOnWrite."""


class NumpyColumn(Column):
    """One number per slot. `values` and `valid` are open to kernels that work on them in place."""

    __slots__ = ("_guard", "data_type", "valid", "values")

    def __init__(self, data_type: pa.DataType, capacity: int = 64) -> None:
        self.data_type = data_type
        self.values: np.ndarray[Any, Any] = np.zeros(capacity, numpy_type(data_type))
        self.valid: BoolArray = np.zeros(capacity, np.bool_)
        self._guard = CopyOnWrite()

    def grow(self, capacity: int) -> None:
        grow_in_place(self, "values", capacity)
        grow_in_place(self, "valid", capacity)

    def get(self, slots: Slots) -> pa.Array:
        return fixed_array(self.get_values(slots), gather_values(self.valid, slots), self.data_type)

    def get_values(self, slots: Slots) -> np.ndarray[Any, Any]:
        """As numpy; what stands where there is no value is open."""
        return gather_values(self.values, slots)

    def put(self, slots: Slots, values: pa.Array) -> None:
        self.put_values(slots, numpy_values(values), validity(values))

    def put_values(self, slots: Slots, values: np.ndarray[Any, Any], valid: BoolArray | None = None) -> None:
        """Set values of the slots from numpy arrays, as `put` does from Arrow."""
        self._guard.before_write(slots)
        target = self.values
        unsigned = _UNSIGNED[target.dtype.itemsize]
        plain = np.ascontiguousarray(values, target.dtype)
        _scatter(slots, plain.view(unsigned), _ALL if valid is None else valid, target.view(unsigned), self.valid)

    def clear(self, slots: Slots) -> None:
        self._guard.before_write(slots)
        self.valid[slots] = False

    def occupied(self, high_water: int) -> BoolArray:
        return self.valid[:high_water]

    def freeze(self, high_water: int, *, stays: bool = False) -> FrozenColumn:
        return _FrozenNumbers(self._guard.freeze([self.values, self.valid], high_water, stays=stays), self.data_type)


class _FrozenNumbers:
    __slots__ = ("_frozen", "_type")

    def __init__(self, frozen: FrozenArrays, data_type: pa.DataType) -> None:
        self._frozen, self._type = frozen, data_type

    def get(self, slots: Slots) -> pa.Array:
        values, valid = self._frozen.at(slots)
        return fixed_array(values, valid, self._type)

    def occupied(self) -> BoolArray:
        return self._frozen.arrays()[1]


class StructColumn(Column):
    """A column of structs, kept as one column for each field."""

    __slots__ = ("_guard", "children", "data_type", "valid")

    def __init__(self, data_type: pa.StructType, capacity: int = 64) -> None:
        self.data_type = data_type
        self.children = [make_column(data_type.field(i).type, capacity) for i in range(data_type.num_fields)]
        self._guard = CopyOnWrite()
        self.valid: BoolArray = np.zeros(capacity, np.bool_)

    def grow(self, capacity: int) -> None:
        for child in self.children:
            child.grow(capacity)
        grow_in_place(self, "valid", capacity)

    def get(self, slots: Slots) -> pa.Array:
        valid = gather_values(self.valid, slots)
        return _struct_array(self.data_type, [child.get(slots) for child in self.children], valid)

    def put(self, slots: Slots, values: pa.Array) -> None:
        for child, column in zip(self.children, values.flatten(), strict=True):
            child.put(slots, column)
        valid = validity(values)
        self._guard.before_write(slots)
        self.valid[slots] = True if valid is None else valid

    def clear(self, slots: Slots) -> None:
        for child in self.children:
            child.clear(slots)
        self._guard.before_write(slots)
        self.valid[slots] = False

    def occupied(self, high_water: int) -> BoolArray:
        return self.valid[:high_water]

    def freeze(self, high_water: int, *, stays: bool = False) -> FrozenColumn:
        children = [child.freeze(high_water, stays=stays) for child in self.children]
        return _FrozenStruct(self.data_type, children, self._guard.freeze([self.valid], high_water, stays=stays))


class _FrozenStruct:
    __slots__ = ("_children", "_frozen", "_type")

    def __init__(self, data_type: pa.StructType, children: list[FrozenColumn], frozen: FrozenArrays) -> None:
        self._type, self._children, self._frozen = data_type, children, frozen

    def get(self, slots: Slots) -> pa.Array:
        valid = self._frozen.at(slots)[0]
        return _struct_array(self._type, [child.get(slots) for child in self._children], valid)

    def occupied(self) -> BoolArray:
        return self._frozen.arrays()[0]


class ArrowColumn(Column):
    """Values of any Arrow type, as a log: every `put` appends its array, slots point into the log.

    Arrow arrays never change, so freezing copies the pointers alone. Neighbouring pieces are merged when the older is
    not much larger, so there are few of them; when more than half of the log is out of use it is written anew. Both
    cost a constant per value, amortised.
    """

    __slots__ = ("_ends", "_guard", "_log", "_rewrite_at", "_starts", "data_type")

    def __init__(self, data_type: pa.DataType, capacity: int = 64) -> None:
        self.data_type = data_type
        self._log: list[pa.Array] = []
        self._rewrite_at = _COMPACT_ROWS
        """Rows in the log at which it is looked at again."""
        self._starts: list[int] = [0]  # of each piece, and of the next
        self._ends: Int64Array = np.zeros(capacity, np.int64)
        """The number of values in the log up to each slot's own; 0 for a slot that has none."""
        self._guard = CopyOnWrite()

    def grow(self, capacity: int) -> None:
        grow_in_place(self, "_ends", capacity)

    def get(self, slots: Slots) -> pa.Array:
        return _take(self._log, self._starts, self._ends[slots] - 1, self.data_type)

    def put(self, slots: Slots, values: pa.Array) -> None:
        if len(values) == 0:
            return
        first = self._starts[-1]
        ends = np.arange(first + 1, first + 1 + len(values), dtype=np.int64)
        valid = validity(values)
        if valid is not None:
            ends[~valid] = 0
        self._guard.before_write(slots)
        self._ends[slots] = ends
        self._append(_compact(values))
        if self._starts[-1] >= self._rewrite_at:
            self._rewrite()

    def clear(self, slots: Slots) -> None:
        self._guard.before_write(slots)
        self._ends[slots] = 0

    def occupied(self, high_water: int) -> BoolArray:
        return self._ends[:high_water] > 0

    def freeze(self, high_water: int, *, stays: bool = False) -> FrozenColumn:
        ends = self._guard.freeze([self._ends], high_water, stays=stays)
        return _FrozenLog(list(self._log), list(self._starts), ends, self.data_type)

    def _append(self, piece: pa.Array) -> None:
        self._log.append(piece)
        self._starts.append(self._starts[-1] + len(piece))
        log, starts = self._log, self._starts
        while len(log) > 1 and len(log[-2]) <= _MERGE_FACTOR * len(log[-1]):
            if log[-2].nbytes + log[-1].nbytes > _PIECE_BYTES:
                break
            log[-2:] = [pa.concat_arrays(log[-2:])]
            del starts[-2]

    def _rewrite(self) -> None:
        """Keep what slots point at, if that is less than half of the log."""
        used = np.flatnonzero(self._ends).astype(np.int32)
        self._rewrite_at = 2 * len(used) + _COMPACT_ROWS
        if self._starts[-1] < self._rewrite_at:
            return
        size_bytes = sum(piece.nbytes for piece in self._log)
        rows = max(1, self._starts[-1] * _PIECE_BYTES // max(1, 2 * size_bytes))
        old = self._ends[used] - 1
        parts = range(0, len(used), rows)
        self._log, log = [], self._log
        self._starts, starts = [0], self._starts
        for first in parts:
            self._log.append(_take(log, starts, old[first : first + rows], self.data_type))
            self._starts.append(self._starts[-1] + len(self._log[-1]))
        self._ends = self._ends.copy()  # the old one may be frozen
        self._ends[used] = np.arange(1, len(used) + 1, dtype=np.int64)


class _FrozenLog:
    __slots__ = ("_frozen", "_log", "_starts", "_type")

    def __init__(self, log: list[pa.Array], starts: list[int], frozen: FrozenArrays, data_type: pa.DataType) -> None:
        self._log, self._starts, self._frozen, self._type = log, starts, frozen, data_type

    def get(self, slots: Slots) -> pa.Array:
        return _take(self._log, self._starts, self._frozen.at(slots)[0] - 1, self._type)

    def occupied(self) -> BoolArray:
        occupied: BoolArray = self._frozen.arrays()[0] > 0
        return occupied


def make_column(data_type: pa.DataType, capacity: int = 64) -> Column:
    """The column for values of this type."""
    if is_fixed(data_type):
        return NumpyColumn(data_type, capacity)
    if pa.types.is_struct(data_type) and data_type.num_fields:
        return StructColumn(data_type, capacity)
    return ArrowColumn(data_type, capacity)


def _struct_array(data_type: pa.StructType, children: list[pa.Array], valid: BoolArray) -> pa.Array:
    return pa.Array.from_buffers(data_type, len(valid), [bitmap_of(valid)], children=children)


def _compact(values: pa.Array) -> pa.Array:
    """A slice would keep the whole batch that it was cut from alive: copy it, if it is one."""
    whole = values.nbytes >= values.get_total_buffer_size() // 2 and values.offset == 0
    return values if whole else pa.concat_arrays([values, values.slice(0, 0)])


def _take(log: list[pa.Array], starts: list[int], positions: Int64Array, data_type: pa.DataType) -> pa.Array:
    """The values at these positions of the log, null for -1; each piece is asked once, for its own rows only."""
    if not log or not len(positions):
        return pa.nulls(len(positions), data_type)
    missing = positions < 0
    if len(log) == 1:
        if missing.any():
            return log[0].take(pa.array(positions, mask=missing))
        return gather_array(log[0], positions.astype(np.int32))
    piece_of = np.searchsorted(np.asarray(starts[1:]), positions, side="right").astype(
        np.uint16
    )  # sorted by its digits
    piece_of[missing] = len(log)
    order = np.argsort(piece_of, kind="stable")
    bounds = np.searchsorted(piece_of[order], np.arange(len(log) + 1))
    parts = [
        gather_array(piece, (positions[order[bounds[number] : bounds[number + 1]]] - starts[number]).astype(np.int32))
        for number, piece in enumerate(log)
        if bounds[number] < bounds[number + 1]
    ]
    absent = len(positions) - int(bounds[-1])
    if absent:
        parts.append(pa.nulls(absent, data_type))
    if len(parts) == 1:
        return parts[0]
    back = np.empty(len(order), np.int32)
    back[order] = np.arange(len(order), dtype=np.int32)
    return gather_array(pa.concat_arrays(parts), back)
