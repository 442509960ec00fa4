"""Running aggregates per slot: count, sum, min, max of a column, after every row and on whole batches.

One kernel call per aggregate and batch; rows of the same key see each other in order. It is what `keyed_sum` measures,
and what vectorised windows fold into. Nulls change nothing; a slot that has seen no value has a count of 0 and no
aggregates.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from snapline.dataflow.api.state import RunningAggregateDescriptor
from snapline.dataflow.columnar.arrow_columns import BoolArray, Int64Array, bitmap_of, numpy_values, validity
from snapline.dataflow.columnar.gather import gather_values
from snapline.dataflow.columnar.kernel import VOID, F64s, I64s, RO_BOOLs, RO_F64s, RO_I32s, RO_I64s, kernel
from snapline.taskmanager.state.columns import Column, FrozenColumn
from snapline.taskmanager.state.index.copy_on_write import CopyOnWrite, FrozenArrays
from snapline.taskmanager.state.index.slots import Slots, grow_in_place, grown

Numbers = np.ndarray[Any, Any]
_ALL: BoolArray = np.zeros(0, np.bool_)
_NO_OUTPUT: Int64Array = np.zeros(0, np.int64)
_NO_FLOATS: np.ndarray[Any, np.dtype[np.float64]] = np.zeros(0, np.float64)


@kernel(
    VOID(RO_I32s, RO_I64s, RO_BOOLs, I64s, I64s, I64s, I64s), VOID(RO_I32s, RO_F64s, RO_BOOLs, I64s, F64s, I64s, F64s)
)
def _sum_and_count(
    slots: Any, values: Any, valid: Any, counts: Any, sums: Any, running_counts: Any, running_sums: Any
) -> None:
    """`valid` empty: all rows; `running_...` empty: nobody wants what came out after each row."""
    everything, report = valid.shape[0] == 0, running_counts.shape[0] > 0
    for row in range(slots.shape[0]):
        slot = slots[row]
        if everything or valid[row]:
            counts[slot] += 1
            sums[slot] += values[row]
        if report:
            running_counts[row] = counts[slot]
            running_sums[row] = sums[slot]


@kernel(VOID(RO_I32s, RO_BOOLs, I64s, I64s))
def _count(slots: Any, valid: Any, counts: Any, running: Any) -> None:
    everything, report = valid.shape[0] == 0, running.shape[0] > 0
    for row in range(slots.shape[0]):
        slot = slots[row]
        if everything or valid[row]:
            counts[slot] += 1
        if report:
            running[row] = counts[slot]


@kernel(VOID(RO_I32s, RO_I64s, RO_BOOLs, I64s, I64s), VOID(RO_I32s, RO_F64s, RO_BOOLs, F64s, F64s))
def _min(slots: Any, values: Any, valid: Any, lowest: Any, running: Any) -> None:
    everything, report = valid.shape[0] == 0, running.shape[0] > 0
    for row in range(slots.shape[0]):
        slot = slots[row]
        if (everything or valid[row]) and (values[row] < lowest[slot] or lowest[slot] != lowest[slot]):
            lowest[slot] = values[row]
        if report:
            running[row] = lowest[slot]


@kernel(VOID(RO_I32s, RO_I64s, RO_BOOLs, I64s, I64s), VOID(RO_I32s, RO_F64s, RO_BOOLs, F64s, F64s))
def _max(slots: Any, values: Any, valid: Any, highest: Any, running: Any) -> None:
    everything, report = valid.shape[0] == 0, running.shape[0] > 0
    for row in range(slots.shape[0]):
        slot = slots[row]
        if (everything or valid[row]) and (values[row] > highest[slot] or highest[slot] != highest[slot]):
            highest[slot] = values[row]
        if report:
            running[row] = highest[slot]


class AggregateColumn(Column):
    """Accumulators by slot, as one column of structs (see RunningAggregateDescriptor.storage_type)."""

    __slots__ = ("_floating", "_guard", "_names", "counts", "data_type", "totals")

    def __init__(self, descriptor: RunningAggregateDescriptor, capacity: int = 64) -> None:
        self.data_type = descriptor.storage_type
        self._names = descriptor.aggregates
        self._floating = pa.types.is_floating(descriptor.accumulator_type)
        self.counts: Int64Array = np.zeros(capacity, np.int64)
        self._guard = CopyOnWrite()
        self.totals: dict[str, Numbers] = {
            name: np.full(capacity, self._nothing(name), np.float64 if self._floating else np.int64)
            for name in self._names
        }

    def fold(self, slots: Slots, values: pa.Array | Numbers, *, running: bool = True) -> dict[str, Numbers]:
        """Fold the rows in, in order. With `running`: for each row `count` and every aggregate as they stand after it;
        where the count is 0 the aggregates mean nothing."""
        numbers, valid = self._numbers(values)
        self._guard.before_write(slots)
        floats = self._floating
        empty: Numbers = _NO_FLOATS if floats else _NO_OUTPUT
        counts = np.empty(len(slots), np.int64) if running else _NO_OUTPUT
        results: dict[str, Numbers] = {"count": counts}
        for name in self._names:
            results[name] = np.empty(len(slots), np.float64 if floats else np.int64) if running else empty
        if "sum" in self.totals:
            _sum_and_count(slots, numbers, valid, self.counts, self.totals["sum"], counts, results["sum"])
        else:
            _count(slots, valid, self.counts, counts)
        if "min" in self.totals:
            _min(slots, numbers, valid, self.totals["min"], results["min"])
        if "max" in self.totals:
            _max(slots, numbers, valid, self.totals["max"], results["max"])
        return results

    def grow(self, capacity: int) -> None:
        grow_in_place(self, "counts", capacity)
        for name in self._names:
            if self._nothing(name) == 0:
                grow_in_place(self.totals, name, capacity)
            else:
                self.totals[name] = grown(self.totals[name], capacity, self._nothing(name))

    def get(self, slots: Slots) -> pa.Array:
        counts = gather_values(self.counts, slots)
        return _struct(self.data_type, counts, [gather_values(self.totals[name], slots) for name in self._names])

    def put(self, slots: Slots, values: pa.Array) -> None:
        valid = validity(values)
        self._guard.before_write(slots)
        count, *others = values.flatten()
        counts = numpy_values(count)
        self.counts[slots] = counts if valid is None else np.where(valid, counts, 0)
        for name, column in zip(self._names, others, strict=True):
            present = validity(column)
            numbers = numpy_values(column)
            self.totals[name][slots] = numbers if present is None else np.where(present, numbers, self._nothing(name))

    def before_write(self, slots: Slots) -> None:
        """Somebody is about to change `counts` or `totals` of these slots directly."""
        self._guard.before_write(slots)

    def clear(self, slots: Slots) -> None:
        self._guard.before_write(slots)
        self.counts[slots] = 0
        for name in self._names:
            self.totals[name][slots] = self._nothing(name)

    def occupied(self, high_water: int) -> BoolArray:
        return self.counts[:high_water] > 0

    def freeze(self, high_water: int, *, stays: bool = False) -> FrozenColumn:
        totals = [self.totals[name] for name in self._names]
        return _FrozenAggregates(self.data_type, self._guard.freeze([self.counts, *totals], high_water, stays=stays))

    def _nothing(self, name: str) -> float | int:
        """What leaves the other operand as it is."""
        if name == "sum":
            return 0
        if self._floating:
            return float("nan")
        bounds = np.iinfo(np.int64)
        return int(bounds.max if name == "min" else bounds.min)

    def _numbers(self, values: pa.Array | Numbers) -> tuple[Numbers, BoolArray]:
        valid = None
        if not isinstance(values, np.ndarray):
            valid = validity(values)
            values = numpy_values(values)
        wanted = np.float64 if self._floating else np.int64
        return np.ascontiguousarray(values, wanted), _ALL if valid is None else valid


class _FrozenAggregates:
    __slots__ = ("_frozen", "_type")

    def __init__(self, data_type: pa.StructType, frozen: FrozenArrays) -> None:
        self._type, self._frozen = data_type, frozen

    def get(self, slots: Slots) -> pa.Array:
        counts, *totals = (gather_values(array, slots) for array in self._frozen.arrays())
        return _struct(self._type, counts, totals)

    def occupied(self) -> BoolArray:
        occupied: BoolArray = self._frozen.arrays()[0] > 0
        return occupied


def _struct(data_type: pa.StructType, counts: Int64Array, totals: Sequence[Numbers]) -> pa.Array:
    bitmap = bitmap_of(counts > 0)
    children = [pa.array(counts)]
    for number, total in enumerate(totals, 1):
        children.append(pa.Array.from_buffers(data_type.field(number).type, len(counts), [bitmap, pa.py_buffer(total)]))
    return pa.Array.from_buffers(data_type, len(counts), [bitmap], children=children)
