"""Windows that keep the rows with the greatest (or least) value of a column, and forget all others as soon as they
come.

Decides which rows of a batch can still be in the result: those whose value is not beaten by what the window has seen,
and of equal ones the first, the last, or all, as asked. Rows without a value (null, NaN) are never kept. So a window
holds few rows, however many come, and its snapshot is as small as its result. Mirrors the `maxBy` and `minBy` of
Flink's WindowedStream, which keep one row.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from snapline.dataflow.api.aggregate_types import has_order, is_compared
from snapline.dataflow.api.windows import RowsBy
from snapline.dataflow.columnar.arrow_columns import BoolArray, validity
from snapline.dataflow.columnar.column_types import converted
from snapline.dataflow.columnar.kernel import I64, VOID, BOOLs, F64s, I64s, RO_BOOLs, RO_F64s, RO_I32s, RO_I64s, kernel
from snapline.taskmanager.operators.aggregation.held_values import ordered_numbers
from snapline.taskmanager.operators.base.operator_contract import Output
from snapline.taskmanager.operators.base.row_store import RowStore
from snapline.taskmanager.operators.base.stateless import conform
from snapline.taskmanager.operators.windows.row_contents import KEPT_METADATA, ROWS, check_same_columns
from snapline.taskmanager.operators.windows.window_contents import FiredWindows, WindowContents
from snapline.taskmanager.state.columns import FrozenColumn
from snapline.taskmanager.state.index.slots import Slots

_UNKNOWN, _KNOWN, _IMPROVED = 0, 1, 2
_TIES = {"all": 0, "first": 1, "last": 2}


@kernel(
    VOID(RO_I32s, RO_I64s, RO_BOOLs, I64, I64, I64s, I64s, I64s, BOOLs),
    VOID(RO_I32s, RO_F64s, RO_BOOLs, I64, I64, F64s, I64s, I64s, BOOLs),
)
def _choose(
    owners: Any, values: Any, valid: Any, largest: int, ties: int, best: Any, state: Any, chosen: Any, keep: Any
) -> None:
    """Which rows stay. `state` by owner: unknown, known, or improved by this batch; `chosen`: the row that stays, with
    ties."""
    for row in range(owners.shape[0]):
        keep[row] = False
        if valid.shape[0] != 0 and not valid[row]:
            continue
        owner, value = owners[row], values[row]
        if np.isnan(value):  # NaN has no order
            continue
        if state[owner] == _UNKNOWN or (value > best[owner] if largest else value < best[owner]):
            best[owner] = value
            state[owner] = _IMPROVED
            chosen[owner] = row
        elif value == best[owner] and ties == 2:
            chosen[owner] = row
            state[owner] = _IMPROVED
    for row in range(owners.shape[0]):
        owner = owners[row]
        if valid.shape[0] != 0 and not valid[row]:
            continue
        if ties == 0:
            keep[row] = values[row] == best[owner]
        else:
            keep[row] = state[owner] == _IMPROVED and chosen[owner] == row


class BestValueOfOwner:
    """The best value of each owner so far."""

    def __init__(self, kind: Any, capacity: int = 64) -> None:
        self._values = np.zeros(capacity, kind)
        self._state = np.zeros(capacity, np.int64)
        self._chosen = np.zeros(capacity, np.int64)

    def grow(self, capacity: int) -> None:
        for name in ("_values", "_state", "_chosen"):
            array = getattr(self, name)
            if capacity > len(array):
                grown = np.zeros(capacity, array.dtype)
                grown[: len(array)] = array
                setattr(self, name, grown)

    def clear(self, owners: Slots) -> None:
        self._state[owners] = _UNKNOWN

    def choose(self, owners: Slots, values: Any, valid: BoolArray, by: RowsBy) -> tuple[BoolArray, Slots]:
        """(rows to keep, owners whose earlier rows are beaten)."""
        keep = np.zeros(len(owners), np.bool_)
        arguments = (by.largest, _TIES[by.ties], self._values, self._state, self._chosen)
        _choose(owners, values, valid, *arguments, keep)
        candidates = np.unique(owners[keep])
        beaten: Slots = candidates[self._state[candidates] == _IMPROVED]
        self._state[beaten] = _KNOWN
        return keep, beaten


_ALL_VALID: BoolArray = np.zeros(0, np.bool_)


def ordered_values(column: pa.Array) -> tuple[Any, BoolArray]:
    """The values as int64 or float64, and which are there (empty: all)."""
    valid = _ALL_VALID if column.null_count == 0 else validity(column)
    return ordered_numbers(column), _ALL_VALID if valid is None else valid


def kept_by(by: RowsBy) -> str:
    """Which rows these are, in the words of `KEPT_METADATA`."""
    which = {"first": "the first row", "last": "the last row", "all": "all rows"}[by.ties]
    return f"{which} with the {'greatest' if by.largest else 'least'} {by.column!r}"


class ExtremeRows(WindowContents):
    """The rows of each entry whose value nothing beats."""

    windows_per_slice = 4_096

    def __init__(self, schema: pa.Schema, by: RowsBy) -> None:
        """Raises TypeError for a column whose values have no order."""
        self._store = RowStore(schema)
        self._by = by
        self._decides = decides = self._store.schema.field(by.column).type
        self._kind = np.float64 if pa.types.is_floating(decides) else np.int64
        self._best = BestValueOfOwner(self._kind)
        self._compared = is_compared(decides)
        if not (self._compared or has_order(decides)):
            raise TypeError(
                f"column {by.column!r} is {decides}, which has no greatest value here; order by another column"
            )

    @property
    def fields(self) -> list[pa.Field]:
        return [pa.field(ROWS, self._store.type, metadata={KEPT_METADATA: kept_by(self._by).encode()})]

    def fold(self, entries: Slots, batch: pa.RecordBatch, input_index: int = 0) -> None:
        if self._compared:
            self._fold_compared(entries, batch)
            return
        values = converted(batch.column(self._by.column), self._decides)  # categories are numbered as they came
        keep, beaten = self._best.choose(entries, *ordered_values(values), self._by)
        self._store.remove_owners(beaten)
        if keep.any():
            rows = np.flatnonzero(keep)
            self._store.add(entries[rows], batch.take(pa.array(rows)))

    def _fold_compared(self, entries: Slots, batch: pa.RecordBatch) -> None:
        """No number stands for a text, bytes or a decimal, so that new ones are compared with the rows that are
        held."""
        owners = np.unique(entries)
        offsets, rows = self._store.rows_of(owners)
        both = pa.concat_batches([self._store.take(rows), conform(batch, self._store.schema)])
        owner_of = np.concatenate(
            [np.repeat(np.arange(len(owners)), np.diff(offsets)), np.searchsorted(owners, entries)]
        )
        values = both.column(self._by.column)
        keep, _ = BestValueOfOwner(self._kind, len(owners)).choose(
            owner_of.astype(np.int32), *ordered_values(values), self._by
        )
        if keep[len(rows) :].any():
            self._store.remove_owners(owners)
            self._store.add(owners[owner_of[keep]], both.filter(pa.array(keep)))

    def merge(self, into: Slots, others: Slots) -> None:
        offsets, rows = self._store.rows_of(others)
        batch = self._store.take(rows)
        self.clear(np.unique(others))
        if len(rows):
            self.fold(np.repeat(into, np.diff(offsets)).astype(np.int32), batch)

    def emit(self, fired: FiredWindows, output: Output) -> None:
        offsets, rows = self._store.rows_of(fired.entries)
        windows = np.repeat(np.arange(len(fired.starts), dtype=np.int32), np.diff(offsets[fired.bounds()]))
        if fired.offsets is not None and len(rows):  # a window of several panes: the best of their best
            values = self._store.column(self._by.column, rows)
            keep, _ = BestValueOfOwner(self._kind, len(fired.starts)).choose(windows, *ordered_values(values), self._by)
            rows, windows = rows[keep], windows[keep]
        if not len(rows):
            return
        batch, at = self._store.take(rows), pa.array(windows)
        for field, column in zip(fired.window_fields(), fired.window_columns(), strict=True):
            if batch.schema.get_field_index(field.name) < 0:
                batch = batch.append_column(field, column.take(at))
        output.emit_batch(batch)

    def grow(self, capacity: int) -> None:
        self._store.grow_owners(capacity)
        self._best.grow(capacity)

    def clear(self, entries: Slots) -> None:
        self._store.remove_owners(entries)
        self._best.clear(entries)

    def get(self, entries: Slots) -> list[pa.Array]:
        return [self._store.get(entries)]

    def freeze(self, high_water: int) -> list[FrozenColumn]:
        return [self._store.freeze(high_water)]

    def restore(self, entries: Slots, columns: Sequence[pa.Array]) -> None:
        rows = self._store.restore(entries, columns[0])
        if self._compared:
            return
        values = self._store.column(self._by.column, rows)
        self._best.choose(self._store.owner_of[rows], *ordered_values(values), self._by)

    def check(self, schema: pa.Schema, operator_uid: str, input_index: int = 0) -> None:
        check_same_columns(self._store.schema, schema, operator_uid)
