"""Rows kept by owner: what windows and joins remember of a stream, in columns, until the operator lets go of them.

An owner is a small number (a key's slot, a window's entry) with a chain of rows; a row is a small number with its
values in columns. Adding, reading and removing cost the rows they touch. It does not know time. In a snapshot the rows
of an owner are a list of structs. Mirrors Flink's ListState and MapState in join and window operators.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from snapline.dataflow.columnar.arrow_columns import BoolArray, Int64Array, bitmap_of
from snapline.dataflow.columnar.column_types import kept_schema
from snapline.runtime.cores.machine import check
from snapline.taskmanager.operators.base.stateless import conform
from snapline.taskmanager.state.adopted_state import elements_of
from snapline.taskmanager.state.columns import FrozenColumn, NumpyColumn, make_column
from snapline.taskmanager.state.index.chains import Chains, FrozenChains
from snapline.taskmanager.state.index.slots import SlotAllocator, Slots, grow_in_place


def rows_type(schema: pa.Schema) -> pa.DataType:
    """An owner's rows in a snapshot."""
    return pa.large_list(pa.struct(list(schema)))


class RowStore:
    """Rows of one schema in columns, each chained to its owner."""

    def __init__(self, schema: pa.Schema) -> None:
        self.schema = kept_schema(schema)
        self.type = rows_type(self.schema)
        self._columns = [make_column(field.type) for field in self.schema]
        self._held = [column for column in self._columns if not isinstance(column, NumpyColumn)]
        """Columns that keep memory for a row until they are told that it is gone."""
        self._allocator = SlotAllocator()
        self._chains = Chains()
        self.owner_of: Slots = np.zeros(64, np.int32)
        """The owner of each row, by the row's number."""

    def __len__(self) -> int:
        """Return how many rows are kept."""
        return len(self._allocator)

    @property
    def capacity(self) -> int:
        """Row numbers are below this."""
        return self._allocator.capacity

    def grow_owners(self, capacity: int) -> None:
        """Make room for owners below."""
        self._chains.grow_slots(capacity)

    def add(self, owners: Slots, batch: pa.RecordBatch) -> Slots:
        """Append each row to its owner's; returns their numbers."""
        batch = conform(batch, self.schema)
        rows = self._allocator.allocate(len(owners))
        self._make_room()
        for column, values in zip(self._columns, batch.columns, strict=True):
            column.put(rows, values)
        self.owner_of[rows] = owners
        self._chains.append(owners, rows)
        return rows

    def _make_room(self) -> None:
        capacity = self._allocator.capacity
        if capacity > len(self.owner_of):
            self._chains.grow_entries(capacity)
            grow_in_place(self, "owner_of", capacity)
            for column in self._columns:
                column.grow(capacity)

    def rows_of(self, owners: Slots) -> tuple[Int64Array, Slots]:
        """(offsets, rows): owners[i] has rows[offsets[i]:offsets[i + 1]], oldest first."""
        return self._chains.entries(owners)

    def counts(self, owners: Slots) -> Slots:
        """Return how many rows each owner has."""
        return self._chains.counts[owners]

    def find(self, owners: Slots, lows: Int64Array, highs: Int64Array, values: Int64Array) -> tuple[Slots, Slots]:
        """(positions, rows): for each owner, in order, its rows whose value, by the row's number, lies between the
        owner's bounds; all of its rows when there are no bounds."""
        return self._chains.find(owners, lows, highs, values)

    def take(self, rows: Slots, schema: pa.Schema | None = None) -> pa.RecordBatch:
        """The rows of these numbers. `schema`: of the first columns, when not all of them are wanted."""
        schema = schema or self.schema
        columns = self._columns[: len(schema)]
        return pa.RecordBatch.from_arrays([column.get(rows) for column in columns], schema=schema)

    def get(self, owners: Slots) -> pa.Array:
        """The rows of each owner, a column of `type`."""
        offsets, rows = self._chains.entries(owners)
        return _make_lists(self.type, offsets, [column.get(rows) for column in self._columns])

    def column(self, name: str, rows: Slots) -> pa.Array:
        """Return one column of the rows with these numbers."""
        return self._columns[self.schema.get_field_index(name)].get(rows)

    def numbers(self, name: str) -> np.ndarray[Any, Any]:
        """The values of a column of numbers by the row's number, valid until the next change."""
        column = self._columns[self.schema.get_field_index(name)]
        check(isinstance(column, NumpyColumn), f"{name} is not a column of numbers")
        return column.values

    def remove(self, rows: Slots) -> None:
        """Forget rows, each named once."""
        if len(rows):
            self._chains.unlink(self.owner_of[rows], rows)
            self._release(rows)

    def remove_owners(self, owners: Slots) -> None:
        """Forget all rows of these owners."""
        if len(owners):
            self._release(self._chains.cut(owners))

    def _release(self, rows: Slots) -> None:
        for column in self._held:
            column.clear(rows)
        self._allocator.release(rows)

    def move(self, into: Slots, others: Slots) -> None:
        """The rows of others[i] go to the end of those of into[i]."""
        offsets, rows = self._chains.entries(others)
        self._chains.unlink(self.owner_of[rows], rows)
        owners = np.repeat(into, np.diff(offsets)).astype(np.int32)
        self._chains.append(owners, rows)
        self.owner_of[rows] = owners

    def occupied(self, high_water: int) -> BoolArray:
        """For each owner below, whether it has rows."""
        return self._chains.occupied(high_water)

    def freeze(self, high_water: int) -> FrozenColumn:
        """As it is now, a column of `type` by owner."""
        used = self._allocator.high_water
        columns = [column.freeze(used, stays=True) for column in self._columns]
        return _FrozenRows(self._chains.freeze(high_water, used), columns, self.type)

    def restore(self, owners: Slots, values: pa.Array) -> Slots:
        """Take over a column of `type`; returns the numbers of the rows."""
        offsets = values.offsets.to_numpy()
        structs = elements_of(values)[1]
        batch = pa.RecordBatch.from_arrays(structs.flatten(), schema=self.schema)
        return self.add(np.repeat(owners, np.diff(offsets)).astype(np.int32), batch)


class _FrozenRows:
    """Rows by owner at one moment."""

    def __init__(self, chains: FrozenChains, columns: Sequence[FrozenColumn], data_type: pa.DataType) -> None:
        self._chains, self._columns, self._type = chains, columns, data_type

    def get(self, slots: Slots) -> pa.Array:
        offsets, rows = self._chains.entries(slots)
        return _make_lists(self._type, offsets, [column.get(rows) for column in self._columns])

    def occupied(self) -> BoolArray:
        return self._chains.occupied()


def _make_lists(data_type: pa.DataType, offsets: Int64Array, columns: Sequence[pa.Array]) -> pa.Array:
    structs = pa.StructArray.from_arrays(list(columns), fields=list(data_type.value_type))
    buffers = [bitmap_of(np.diff(offsets) > 0), pa.py_buffer(offsets)]
    return pa.Array.from_buffers(data_type, len(offsets) - 1, buffers, children=[structs])
