"""Running aggregates that hold values or accumulators: the state of all keys, and a result for every row.

Rows of different keys do not touch each other, so that the first rows of all keys in a batch are one step, the second
ones the next, and so on: a step is a few calls over columns, however many keys it has. A batch whose rows are all of
one key takes as many steps as it has rows. In a snapshot it is a struct with a field for each aggregate.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from snapline.dataflow.api.state import ValueStateDescriptor
from snapline.dataflow.columnar.arrow_columns import BoolArray, Int64Array, bitmap_of
from snapline.taskmanager.operators.aggregation.held_columns import HeldColumn
from snapline.taskmanager.state.adopted_state import AdoptedState
from snapline.taskmanager.state.columns import FrozenColumn
from snapline.taskmanager.state.index.slots import Slots, grown

HELD_STATE = "held-aggregates"


def held_fields(field: pa.Field) -> list[pa.Field]:
    """The columns of the state in a snapshot."""
    return [field.type.field(number) for number in range(field.type.num_fields)]


def _steps(slots: Slots) -> list[Int64Array]:
    """Rows by step, each of which has a key at most once, in the order of the rows of each key."""
    order = np.argsort(slots, kind="stable")
    ordered = slots[order]
    begins = np.ones(len(order), np.bool_)
    begins[1:] = ordered[1:] != ordered[:-1]
    starts = np.flatnonzero(begins)
    within = np.arange(len(order)) - np.repeat(starts, np.diff(np.append(starts, len(order))))
    by_step = np.argsort(within, kind="stable")
    bounds = np.searchsorted(within[by_step], np.arange(int(within.max(initial=-1)) + 2))
    return [order[by_step[begin:end]] for begin, end in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True)]


class HeldByKey(AdoptedState):
    """Columns of aggregates whose entries are the slots of keys."""

    def __init__(self, columns: Sequence[HeldColumn]) -> None:
        self.columns = tuple(columns)
        self.descriptor: ValueStateDescriptor = ValueStateDescriptor(
            HELD_STATE, pa.struct([column.field for column in columns])
        )
        self._present: BoolArray = np.zeros(64, np.bool_)
        """The keys that have had rows."""

    def fold_batch(self, slots: Slots, batch: pa.RecordBatch) -> list[pa.Array]:
        """Take the rows in, one after the other; for each aggregate its result after each row."""
        self._present[slots] = True
        found: list[list[pa.Array]] = [[] for _ in self.columns]
        steps = _steps(slots)
        for rows in steps:
            part, of_rows = batch.take(pa.array(rows)), np.ascontiguousarray(slots[rows])
            bounds = np.arange(len(rows) + 1)
            for column, results in zip(self.columns, found, strict=True):
                column.fold(of_rows, part)
                results.append(column.results(of_rows, bounds))
        back = np.empty(len(slots), np.int64)
        back[np.concatenate(steps) if steps else np.zeros(0, np.int64)] = np.arange(len(slots))
        places = pa.array(back)
        return [
            pa.concat_arrays(results).take(places) if results else pa.nulls(0, column.result_type)
            for column, results in zip(self.columns, found, strict=True)
        ]

    def grow(self, capacity: int) -> None:
        self._present = grown(self._present, capacity)
        for column in self.columns:
            column.grow(capacity)

    def occupied(self, high_water: int) -> BoolArray:
        return self._present[:high_water]

    def freeze(self, high_water: int) -> FrozenColumn:
        columns = [column.freeze(high_water) for column in self.columns]
        return _FrozenHeld(self.descriptor.storage_type, self._present[:high_water].copy(), columns)

    def restore(self, slots: Slots, values: pa.Array) -> None:
        if values.null_count:
            present = np.asarray(values.is_valid())
            slots, values = slots[present], values.drop_null()
        if not len(slots):
            return
        self._present[slots] = True
        for column, part in zip(self.columns, values.flatten(), strict=True):
            column.restore(slots, part)

    def get_batch(self, slots: Slots) -> pa.Array:
        return _struct_of(self.descriptor.storage_type, self._present[slots], [c.get(slots) for c in self.columns])

    def clear_batch(self, slots: Slots) -> None:
        distinct = np.unique(slots)
        self._present[distinct] = False
        for column in self.columns:
            column.clear(distinct)


class _FrozenHeld:
    """The state at one moment."""

    def __init__(self, data_type: pa.DataType, present: BoolArray, columns: Sequence[FrozenColumn]) -> None:
        self._type, self._present, self._columns = data_type, present, columns

    def get(self, slots: Slots) -> pa.Array:
        return _struct_of(self._type, self._present[slots], [column.get(slots) for column in self._columns])

    def occupied(self) -> BoolArray:
        return self._present


def _struct_of(data_type: Any, present: BoolArray, children: list[pa.Array]) -> pa.Array:
    return pa.Array.from_buffers(data_type, len(present), [bitmap_of(present)], children=children)
