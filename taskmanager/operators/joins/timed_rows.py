"""Keyed state of rows with an event time each: what interval and temporal joins remember of one input.

Rows lie in columns, in a chain per key; a calendar knows which become old. In a snapshot: a list of structs per key.
It decides nothing about joins. Mirrors the buffers (MapState from time to rows) of Flink's IntervalJoinOperator and
TemporalRowTimeJoinOperator.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pyarrow as pa

from snapline.dataflow.api.state import ListStateDescriptor
from snapline.dataflow.columnar.arrow_columns import BoolArray, Int64Array
from snapline.dataflow.columnar.column_types import kept_schema
from snapline.dataflow.columnar.gather import gather_values
from snapline.dataflow.columnar.large_arrays import TOO_LARGE
from snapline.runtime.cores.machine import check
from snapline.taskmanager.operators.base.deadline_buckets import Calendar
from snapline.taskmanager.operators.base.operator_contract import Output
from snapline.taskmanager.operators.base.row_store import RowStore
from snapline.taskmanager.state.adopted_state import AdoptedState, elements_of
from snapline.taskmanager.state.columns import FrozenColumn
from snapline.taskmanager.state.index.slots import Slots

TIME = "__time"
BUCKET_MS = 1_000


def as_pairs(batch: pa.RecordBatch, side: int, schema: pa.Schema) -> pa.RecordBatch:
    """Rows of one side in the columns of pairs, which are the left side's and then the right one's."""
    columns = [pa.nulls(batch.num_rows, field.type) for field in schema]
    first = side * (len(schema) - batch.num_columns)
    columns[first : first + batch.num_columns] = batch.columns
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def emit_in_parts(make: Callable[[slice], pa.RecordBatch], begin: int, end: int, output: Output) -> None:
    """Emit the pairs with these numbers, in several batches where their texts are more than a column has room for: a
    wide row may have many partners."""
    try:
        batch = make(slice(begin, end))
    except TOO_LARGE:
        if end - begin < 2:
            raise
        middle = (begin + end) // 2
        emit_in_parts(make, begin, middle, output)
        emit_in_parts(make, middle, end, output)
        return
    output.emit_batch(batch)


class TimedRows(AdoptedState):
    """Rows by key, with times."""

    def __init__(
        self,
        name: str,
        schema: pa.Schema,
        due_of: Callable[[pa.Array, Int64Array], Int64Array] | None = None,
        *,
        has_calendar: bool = True,
    ) -> None:
        """`due_of`: when keys are due, from their lists and the times of all elements; not given: never.
        `has_calendar`: whether anybody asks for rows by their time."""
        self._due_of = due_of
        self.schema = kept_schema(schema)
        self._store = RowStore(pa.schema([*self.schema, pa.field(TIME, pa.int64())]))
        self.descriptor: ListStateDescriptor = ListStateDescriptor(name, pa.struct(list(self._store.schema)))
        self._calendar = Calendar(BUCKET_MS) if has_calendar else None

    def __len__(self) -> int:
        """Return how many rows are kept."""
        return len(self._store)

    @property
    def times(self) -> Int64Array:
        """Event time of each row, by the row's number, valid until the next change."""
        return self._store.numbers(TIME)

    def add(self, slots: Slots, times: Int64Array, batch: pa.RecordBatch) -> Slots:
        """Append rows to their keys'; returns their numbers."""
        columns = [batch.column(name) for name in self.schema.names]
        names = [*self.schema.names, TIME]
        rows = self._store.add(slots, pa.RecordBatch.from_arrays([*columns, pa.array(times)], names=names))
        self._note(rows, times)
        return rows

    def _note(self, rows: Slots, times: Int64Array) -> None:
        if self._calendar is not None:
            self._calendar.grow(self._store.capacity)
            self._calendar.remind(rows, times)

    def rows_of(self, slots: Slots) -> tuple[Int64Array, Slots]:
        """(offsets, rows) of keys, oldest arrival first."""
        return self._store.rows_of(slots)

    def slots_of(self, rows: Slots) -> Slots:
        """The key of each row."""
        return gather_values(self._store.owner_of, rows)

    def take(self, rows: Slots) -> pa.RecordBatch:
        """Rows, with the columns of the input."""
        return self._store.take(rows, self.schema)

    def find(self, slots: Slots, lows: Int64Array, highs: Int64Array) -> tuple[Slots, Slots]:
        """(positions, rows): for each key, in order, its rows with a time between the key's bounds; all of its rows
        when there are no bounds."""
        return self._store.find(slots, lows, highs, self.times)

    def earliest_ms(self) -> int | None:
        """No row in the calendar is older than this; None without rows."""
        return self._calendar.earliest_ms() if self._calendar is not None else None

    def up_to(self, time_ms: int) -> Slots:
        """Take the rows at or before a time out of the calendar; they stay until `remove`."""
        calendar = check(self._calendar, "these rows were to be kept whatever the time")
        return calendar.take(time_ms, lambda rows: self.times[rows] <= time_ms)

    def remove(self, rows: Slots) -> None:
        """Forget rows, each named once."""
        if self._calendar is not None:
            self._calendar.forget(rows)
        self._store.remove(rows)

    # --- AdoptedState -------------------------------------------------------------------------------------------------

    def due_times(self, values: pa.Array) -> Int64Array:
        if self._due_of is None:
            return super().due_times(values)
        return self._due_of(values, elements_of(values)[1].field(TIME).to_numpy())

    def grow(self, capacity: int) -> None:
        self._store.grow_owners(capacity)

    def occupied(self, high_water: int) -> BoolArray:
        return self._store.occupied(high_water)

    def freeze(self, high_water: int) -> FrozenColumn:
        return self._store.freeze(high_water)

    def restore(self, slots: Slots, values: pa.Array) -> None:
        rows = self._store.restore(slots, values)
        if len(rows):
            self._note(rows, self._store.column(TIME, rows).to_numpy())

    def get_batch(self, slots: Slots) -> pa.Array:
        return self._store.get(slots)

    def clear_batch(self, slots: Slots) -> None:
        self.remove(self._store.rows_of(np.unique(slots))[1])
