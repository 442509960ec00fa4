"""Aggregates that keep values: lists, exact numbers of different values and quantiles, first, last and best ones.

Values lie in a RowStore, so that a row costs itself and never what its key has already. Decides which values stay: all
(`collect_list`, `quantile`), each different one once (`count_distinct`), or only the best (`first`, `last`, `top_n`,
`min`, `max`), whose others go within the batch in which they are beaten. Nulls are left out, and so is what has no
order where order decides (NaN). It does not know windows.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from snapline.dataflow.api.aggregate_types import is_compared
from snapline.dataflow.api.batch_aggregates import HeldAggregate
from snapline.dataflow.columnar.arrow_columns import BoolArray, Int64Array, bitmap_of, numpy_values
from snapline.dataflow.columnar.column_types import kept_schema
from snapline.taskmanager.operators.aggregation.held_columns import HeldColumn
from snapline.taskmanager.operators.base.row_store import RowStore, rows_type
from snapline.taskmanager.operators.base.stateless import conform
from snapline.taskmanager.state.adopted_state import elements_of
from snapline.taskmanager.state.columns import FrozenColumn
from snapline.taskmanager.state.index.key_index import KeyIndex
from snapline.taskmanager.state.index.slots import Slots, grown

Numbers = np.ndarray[Any, Any]
_NONE = -1


def ordered_numbers(column: pa.Array) -> Numbers:
    """Values that have an order as int64 or float64, which have the same. Those of texts, bytes and decimals can be
    compared with others of the same column only."""
    if is_compared(column.type):
        return np.asarray(pc.rank(_comparable(column), sort_keys="ascending", tiebreaker="dense")).astype(np.int64)
    if pa.types.is_boolean(column.type):
        column = column.cast(pa.int8())
    if pa.types.is_uint64(column.type):  # the upper half comes after the lower one
        return (numpy_values(column) ^ np.uint64(1 << 63)).view(np.int64)
    kind = np.float64 if pa.types.is_floating(column.type) else np.int64
    return np.ascontiguousarray(numpy_values(column).astype(kind, copy=False))


def _comparable(column: pa.Array) -> pa.Array:
    """The same values as a type that Arrow puts in order: small decimals are none."""
    small = pa.types.is_decimal(column.type) and column.type.bit_width < 128
    return column.cast(pa.decimal128(column.type.precision, column.type.scale)) if small else column


def _owners(offsets: Int64Array) -> Int64Array:
    """For each of the rows that the offsets cut, which part it belongs to."""
    return np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))


def _lists(data_type: pa.DataType, counts: Int64Array, values: pa.Array) -> pa.Array:
    """Lists of so many values each."""
    offsets = np.zeros(len(counts) + 1, np.int32)
    np.cumsum(counts, out=offsets[1:])
    return pa.Array.from_buffers(data_type, len(counts), [None, pa.py_buffer(offsets)], children=[values])


class HeldValues(HeldColumn):
    """All values of each entry, in the order of their arrival: `collect_list`."""

    _by_value = False
    """Whether the order of values decides, and not that of their arrival."""

    def __init__(self, aggregate: HeldAggregate, schema: pa.Schema) -> None:
        super().__init__(aggregate, schema)
        self._column, self._by = aggregate.column, aggregate.by
        self._decides = aggregate.by or aggregate.column
        self._schema = kept_schema(self.inputs)
        self._store = RowStore(self.inputs)

    @property
    def storage_type(self) -> pa.DataType:
        return rows_type(kept_schema(self.inputs))

    def fold(self, entries: Slots, batch: pa.RecordBatch) -> None:
        batch = conform(batch, self._schema)
        present = self._present(batch)
        if present is not None:
            entries, batch = entries[present], batch.filter(pa.array(present))
        if len(entries):
            self._add(entries, batch)

    def _present(self, batch: pa.RecordBatch) -> BoolArray | None:
        """Which rows have what is asked for; None: all."""
        present: BoolArray | None = None
        for column in batch.columns:
            if column.null_count:
                valid = np.asarray(column.is_valid())
                present = valid if present is None else present & valid
        if self._by_value and pa.types.is_floating(batch.schema.field(self._decides).type):
            numbers = ~np.isnan(batch.column(self._decides).to_numpy(zero_copy_only=False))
            present = numbers if present is None else present & numbers
        return present

    def _add(self, entries: Slots, batch: pa.RecordBatch) -> None:
        self._store.add(entries, batch)

    def merge(self, into: Slots, others: Slots) -> None:
        self._store.move(into, others)

    def _rows(self, entries: Slots, offsets: Int64Array) -> tuple[Slots, Int64Array]:
        """The rows of each result, and where they begin."""
        bounds, rows = self._store.rows_of(entries)
        return rows, bounds[offsets]

    def results(self, entries: Slots, offsets: Int64Array) -> pa.Array:
        rows, bounds = self._rows(entries, offsets)
        return _lists(self.result_type, np.diff(bounds), self._store.column(self._column, rows))

    def grow(self, capacity: int) -> None:
        self._store.grow_owners(capacity)

    def clear(self, entries: Slots) -> None:
        self._store.remove_owners(entries)

    def get(self, entries: Slots) -> pa.Array:
        return self._store.get(entries)

    def freeze(self, high_water: int) -> FrozenColumn:
        return self._store.freeze(high_water)

    def restore(self, entries: Slots, values: pa.Array) -> None:
        self._store.restore(entries, values)


class QuantileValues(HeldValues):
    """The value below which so much of all others lies, between two neighbours in proportion."""

    _by_value = True

    def results(self, entries: Slots, offsets: Int64Array) -> pa.Array:
        rows, bounds = self._rows(entries, offsets)
        values = numpy_values(self._store.column(self._column, rows)).astype(np.float64, copy=False)
        values = values[np.lexsort((values, _owners(bounds)))]
        counts = np.diff(bounds)
        some = counts > 0
        place = (counts[some] - 1) * float(self.aggregate.parameter)  # type: ignore[union-attr]
        below = np.floor(place).astype(np.int64)
        part = place - below
        low = values[bounds[:-1][some] + below]
        high = values[bounds[:-1][some] + np.minimum(below + 1, counts[some] - 1)]
        found = np.zeros(len(counts), np.float64)
        found[some] = low
        between = part > 0
        chosen = np.flatnonzero(some)[between]
        low, high, part = low[between], high[between], part[between]
        with np.errstate(over="ignore", invalid="ignore"):
            distance = high - low
            # An infinity, or more than a float holds, has no part: what is equal stays, else both are weighed.
            weighed = np.where(low == high, low, low * (1 - part) + high * part)
            found[chosen] = np.where(np.isfinite(distance), low + distance * part, weighed)
        return pa.Array.from_buffers(pa.float64(), len(counts), [bitmap_of(some), pa.py_buffer(found)])


class BestValues(HeldValues):
    """The first, the last, the least, the greatest or the `n` greatest values; all others are let go as soon as they
    are beaten."""

    def __init__(self, aggregate: HeldAggregate, schema: pa.Schema) -> None:
        super().__init__(aggregate, schema)
        self._function = aggregate.function
        self._count = int(aggregate.parameter) if aggregate.function == "top_n" else 1
        self._by_value = bool(aggregate.by) or aggregate.function in {"top_n", "min", "max"}
        self._kept = self._count if self._count == 1 else 2 * self._count
        """An entry with more is cut down, so that one with many rows is not looked at for each of them."""

    def _add(self, entries: Slots, batch: pa.RecordBatch) -> None:
        super()._add(entries, batch)
        self._cut(np.unique(entries))

    def merge(self, into: Slots, others: Slots) -> None:
        super().merge(into, others)
        self._cut(np.unique(into))

    def _cut(self, entries: Slots) -> None:
        many = entries[self._store.counts(entries) > self._kept]
        if len(many):
            offsets, rows = self._store.rows_of(many)
            chosen = self._best(rows, offsets)[0]
            beaten = np.ones(len(rows), np.bool_)
            beaten[chosen] = False
            self._store.remove(rows[beaten])

    def _best(self, rows: Slots, offsets: Int64Array) -> tuple[Int64Array, Int64Array]:
        """Positions among the rows of those that stay, best first for each part; and how many each part has."""
        owners, arrival = _owners(offsets), np.arange(len(rows))
        values = ordered_numbers(self._store.column(self._decides, rows)) if self._by_value else arrival
        # Of equal ones, the earliest is the best, except for the last one that is asked for.
        ties = -arrival if self._function == "top_n" else arrival
        order = np.lexsort((ties, values, owners))
        counts = np.diff(offsets)
        taken = np.minimum(counts, self._count)
        starts = np.cumsum(taken) - taken
        within = np.arange(int(taken.sum())) - np.repeat(starts, taken)
        if self._function in {"first", "min"}:
            positions = np.repeat(offsets[:-1] - offsets[0], taken) + within
        else:
            positions = np.repeat(offsets[1:] - offsets[0], taken) - 1 - within
        return order[positions], taken

    def results(self, entries: Slots, offsets: Int64Array) -> pa.Array:
        rows, bounds = self._rows(entries, offsets)
        chosen, counts = self._best(rows, bounds)
        values = self._store.column(self._column, rows[chosen])
        if self._function == "top_n":
            return _lists(self.result_type, counts, values)
        found = np.cumsum(counts) - 1
        return values.take(pa.array(found, mask=counts == 0))


class DistinctValues(HeldValues):
    """Each different value of an entry once."""

    def __init__(self, aggregate: HeldAggregate, schema: pa.Schema) -> None:
        super().__init__(aggregate, schema)
        self._index = KeyIndex([pa.field("entry", pa.int64()), self._schema.field(0)])
        self._row_of: Slots = np.full(64, _NONE, np.int32)
        """The row of each pair in the index, by the pair's slot."""
        self._pair_of: Slots = np.zeros(64, np.int32)
        """The inverse: the pair's slot, by row."""

    def _add(self, entries: Slots, batch: pa.RecordBatch) -> None:
        pairs = self._index.lookup_or_insert([pa.array(entries.astype(np.int64)), batch.column(0)])
        if self._index.capacity > len(self._row_of):
            self._row_of = grown(self._row_of, self._index.capacity, _NONE)
        distinct, positions = np.unique(pairs, return_index=True)
        new = self._row_of[distinct] == _NONE
        if not new.any():
            return
        chosen, added = np.sort(positions[new]), pairs[np.sort(positions[new])]
        rows = self._store.add(entries[chosen], batch.take(pa.array(chosen)))
        if self._store.capacity > len(self._pair_of):
            self._pair_of = grown(self._pair_of, self._store.capacity)
        self._row_of[added] = rows
        self._pair_of[rows] = added

    def merge(self, into: Slots, others: Slots) -> None:
        offsets, rows = self._store.rows_of(others)
        batch = self._store.take(rows)
        self.clear(np.unique(others))
        if len(rows):
            self._add(np.repeat(into, np.diff(offsets)).astype(np.int32), batch)

    def clear(self, entries: Slots) -> None:
        _, rows = self._store.rows_of(entries)
        pairs = self._pair_of[rows]
        self._row_of[pairs] = _NONE
        self._index.remove(pairs)
        super().clear(entries)

    def restore(self, entries: Slots, values: pa.Array) -> None:
        counts = np.diff(values.offsets.to_numpy())
        structs = elements_of(values)[1]
        if len(structs):
            batch = pa.RecordBatch.from_arrays(structs.flatten(), schema=self._schema)
            self._add(np.repeat(entries, counts).astype(np.int32), batch)

    def results(self, entries: Slots, offsets: Int64Array) -> pa.Array:
        if len(offsets) - 1 == len(entries):
            return pa.array(self._store.counts(entries).astype(np.int64))
        rows, bounds = self._rows(entries, offsets)
        codes = KeyIndex([self._schema.field(0)]).lookup_or_insert([self._store.column(self._column, rows)])
        pairs = np.unique((_owners(bounds) << 32) | codes.astype(np.int64))
        return pa.array(np.bincount(pairs >> 32, minlength=len(bounds) - 1).astype(np.int64))
