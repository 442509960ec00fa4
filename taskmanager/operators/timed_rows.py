"""Keyed state of rows with an event time each: what interval and temporal joins remember of one input.

Rows lie in columns, in a chain per key; a calendar of buckets knows which become old. In a snapshot: a list of structs per key.
It decides nothing about joins. Mirrors the buffers (MapState from time to rows) of Flink's IntervalJoinOperator and
TemporalRowTimeJoinOperator.
"""

from __future__ import annotations

import heapq

import numpy as np
import pyarrow as pa

from dataflow.arrow_columns import BoolArray, Int64Array
from dataflow.gather import gather_values
from dataflow.state import ListStateDescriptor
from taskmanager.operators.row_store import RowStore, stored_schema
from taskmanager.state.columns import FrozenColumn
from taskmanager.state.keyed_state import KeyedState
from taskmanager.state.slots import Slots, grown

TIME = "__time"
BUCKET_MS = 1_000


class TimedRows(KeyedState):
    """Rows by key, with times."""

    def __init__(self, name: str, schema: pa.Schema) -> None:
        self.schema = stored_schema(schema)
        self._store = RowStore(pa.schema([*self.schema, pa.field(TIME, pa.int64())]))
        self.descriptor: ListStateDescriptor = ListStateDescriptor(name, pa.struct(list(self._store.schema)))
        self.times: Int64Array = np.zeros(64, np.int64)
        """By row."""
        self._calendar: dict[int, list[Slots]] = {}
        self._buckets: list[int] = []

    def __len__(self) -> int:
        """Rows kept."""
        return len(self._store)

    def add(self, slots: Slots, times: Int64Array, batch: pa.RecordBatch) -> Slots:
        """Append rows to their keys'; returns their numbers."""
        columns = [batch.column(name) for name in self.schema.names]
        names = [*self.schema.names, TIME]
        rows = self._store.add(slots, pa.RecordBatch.from_arrays([*columns, pa.array(times)], names=names))
        self._note(rows, times)
        return rows

    def _note(self, rows: Slots, times: Int64Array) -> None:
        self.times = grown(self.times, self._store.capacity)
        self.times[rows] = times
        buckets = times // BUCKET_MS
        for bucket in np.unique(buckets).tolist():
            if bucket not in self._calendar:
                self._calendar[bucket] = []
                heapq.heappush(self._buckets, bucket)
            self._calendar[bucket].append(rows[buckets == bucket])

    def rows_of(self, slots: Slots) -> tuple[Int64Array, Slots]:
        """(offsets, rows) of keys, oldest arrival first."""
        return self._store.rows_of(slots)

    def slots_of(self, rows: Slots) -> Slots:
        """The key of each row."""
        return gather_values(self._store.owner_of, rows)

    def take(self, rows: Slots) -> pa.RecordBatch:
        """Rows, with the columns of the input."""
        return self._store.take(rows).select(self.schema.names)

    def earliest_ms(self) -> int | None:
        """No row is older than this; None without rows."""
        return self._buckets[0] * BUCKET_MS if self._buckets else None

    def up_to(self, time_ms: int) -> Slots:
        """Take the rows at or before a time out of the calendar; they stay until `remove`."""
        found: list[Slots] = []
        kept: list[tuple[int, Slots]] = []
        while self._buckets and self._buckets[0] <= time_ms // BUCKET_MS:
            bucket = heapq.heappop(self._buckets)
            rows = np.concatenate(self._calendar.pop(bucket))
            over = self.times[rows] <= time_ms
            found.append(rows[over])
            if not over.all():
                kept.append((bucket, rows[~over]))
        for bucket, rows in kept:
            self._calendar[bucket] = [rows]
            heapq.heappush(self._buckets, bucket)
        return np.concatenate(found) if found else np.zeros(0, np.int32)

    def remove(self, rows: Slots) -> None:
        """Forget rows that `up_to` has given out once, each named once."""
        self._store.remove(rows)

    # --- KeyedState -----------------------------------------------------------------------------------------------------

    def grow(self, capacity: int) -> None:
        self._store.grow_owners(capacity)

    def flush(self) -> None:
        """Nothing is done row by row."""

    def occupied(self, high_water: int) -> BoolArray:
        return self._store.occupied(high_water)

    def freeze(self, high_water: int) -> FrozenColumn:
        return self._store.freeze(high_water)

    def restore(self, slots: Slots, values: pa.Array) -> None:
        rows = self._store.restore(slots, values)
        if len(rows):
            self._note(rows, self._store.column(TIME, rows).to_numpy())

    def get_batch(self, slots: Slots) -> pa.Array:
        return self.freeze(int(slots.max(initial=-1)) + 1).get(slots)

    def clear_batch(self, slots: Slots) -> None:
        _, rows = self._store.rows_of(np.unique(slots))
        for bucket, parts in self._calendar.items():
            self._calendar[bucket] = [np.setdiff1d(np.concatenate(parts), rows)]
        self._store.remove(rows)
