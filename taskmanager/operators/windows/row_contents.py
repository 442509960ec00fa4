"""Windows that hold rows: for functions over all rows of a window, and for rows reduced to one.

Decides how a user's window function is called (once per key and window: with rows as dicts, or with one batch) and what
its results may be. Rows come in the order of their arrival within a pane. Mirrors Flink's ProcessWindowFunction over
ListState and ReduceFunction over ReducingState.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from snapline.dataflow.api.function_contexts import Row
from snapline.dataflow.api.functions import ProcessWindowFunction, SideOutput
from snapline.dataflow.api.windows import TimeWindow
from snapline.dataflow.columnar.arrow_columns import Int64Array, narrow_type, with_null_parts
from snapline.dataflow.columnar.column_types import joined, kept_type, workable
from snapline.dataflow.columnar.python_values import column_values
from snapline.dataflow.errors import StateError
from snapline.dataflow.graph.operator_specs import WindowProcessSpec
from snapline.runtime.cores.machine import check
from snapline.taskmanager.operators.base.operator_contract import Output
from snapline.taskmanager.operators.base.row_store import RowStore
from snapline.taskmanager.operators.base.rows import SEQUENCES, RowBatcher, copy_of, rows_made, rows_of
from snapline.taskmanager.operators.base.stateless import conform, emit_side_output
from snapline.taskmanager.operators.windows.window_contents import (
    ContentsMaker,
    FiredWindows,
    RowsByEntry,
    WholeWindowContents,
    WindowContents,
    check_contents,
)
from snapline.taskmanager.state.columns import FrozenColumn
from snapline.taskmanager.state.index.slots import Slots
from snapline.taskmanager.state.kept_values import keeping_of

ROWS = "rows"
REDUCED = "reduced"
KEPT_METADATA = b"snapline.window.kept"
"""Which rows of a window a snapshot holds, in words, which must not change."""
ALL_ROWS = "all rows"
REDUCED_ROWS = "the row that all were reduced to"


def check_same_columns(stored: pa.Schema, schema: pa.Schema, operator_uid: str) -> None:
    """StateError that names the first column that is not what the state holds."""
    for field in stored:
        position = schema.get_field_index(field.name)
        found = kept_type(schema.field(position).type) if position >= 0 else None
        if found is None or narrow_type(found) != narrow_type(field.type):
            raise StateError(
                f"operator {operator_uid!r}: its state holds rows with a column {field.name!r} of {field.type}, and this batch "
                f"has {'none' if found is None else found}: keep the columns, or give the operator another uid to start without "
                "its state"
            )


class RowContents(WholeWindowContents):
    """All rows; `call` makes output of those of a fired window."""

    windows_per_slice = 1_000

    def __init__(self, schema: pa.Schema, call: Callable[[FiredWindows, RowsByEntry, Output], None]) -> None:
        self.store = RowStore(schema)
        self._call = call

    @property
    def fields(self) -> list[pa.Field]:
        return [pa.field(ROWS, self.store.type, metadata={KEPT_METADATA: ALL_ROWS.encode()})]

    def fold(self, entries: Slots, batch: pa.RecordBatch, input_index: int = 0) -> None:
        self.store.add(entries, batch)

    def merge(self, into: Slots, others: Slots) -> None:
        self.store.move(into, others)

    @property
    def sides(self) -> Sequence[RowStore]:
        return (self.store,)

    def without_rows(self) -> RowContents:
        return RowContents(self.store.schema, self._call)

    def rows_made(self, counts: Sequence[Int64Array]) -> Int64Array:
        return counts[0]

    def emit(self, fired: FiredWindows, output: Output) -> None:
        self._call(fired, self.store, output)

    def emit_rows(self, fired: FiredWindows, sides: Sequence[RowsByEntry], output: Output) -> None:
        self._call(fired, sides[0], output)

    def grow(self, capacity: int) -> None:
        self.store.grow_owners(capacity)

    def clear(self, entries: Slots) -> None:
        self.store.remove_owners(entries)

    def get(self, entries: Slots) -> list[pa.Array]:
        return [self.store.get(entries)]

    def freeze(self, high_water: int) -> list[FrozenColumn]:
        return [self.store.freeze(high_water)]

    def restore(self, entries: Slots, columns: Sequence[pa.Array]) -> None:
        self.store.restore(entries, columns[0])

    def check(self, schema: pa.Schema, operator_uid: str, input_index: int = 0) -> None:
        check_same_columns(self.store.schema, schema, operator_uid)


class ProcessWindowContext:
    """Handed to window functions; valid during the call."""

    def __init__(self, current_watermark: Callable[[], int]) -> None:
        self.window = TimeWindow(0, 0)
        self.side_rows: dict[str, list[Row]] = {}
        self._current_watermark = current_watermark

    @property
    def current_watermark(self) -> int:
        """Return the watermark of the operator, in milliseconds since the epoch."""
        return self._current_watermark()

    def output(self, tag: str, row: Row) -> None:
        """Emit to a side output."""
        self.side_rows.setdefault(tag, []).append(copy_of(row))


class RowWindowCall:
    """Calls a ProcessWindowFunction with rows."""

    def __init__(self, spec: WindowProcessSpec, current_watermark: Callable[[], int]) -> None:
        self._function: ProcessWindowFunction = spec.function
        self._context = ProcessWindowContext(current_watermark)
        self._batcher = RowBatcher(spec.output_schema)
        self._side = {tag: RowBatcher(schema) for tag, schema in spec.side_schemas}

    def __call__(self, fired: FiredWindows, store: RowsByEntry, output: Output) -> None:
        offsets, numbers = store.rows_of(fired.entries)
        rows = rows_of(store.take(numbers))
        bounds = offsets[fired.bounds()].tolist()
        context = self._context
        results: list[Row] = []
        for position, (key, start, end) in enumerate(
            zip(keys_of(fired), fired.starts.tolist(), fired.ends.tolist(), strict=True)
        ):
            context.window = TimeWindow(start, end)
            produced: Iterable[Any] | None = self._function.process(
                key, context, rows[bounds[position] : bounds[position + 1]]
            )
            if produced is not None:
                results.extend(produced if type(produced) in SEQUENCES else rows_made(produced))
        batch = self._batcher.batch_of(results)
        if batch is not None:
            output.emit_batch(batch)
        side_rows, context.side_rows = context.side_rows, {}
        for tag, of_tag in side_rows.items():
            side = self._side.setdefault(tag, RowBatcher()).batch_of(of_tag)
            if side is not None:
                output.emit_side(tag, side)


class BatchWindowCall:
    """Calls `function(key, window, batch)` with all rows of a window in one batch."""

    def __init__(self, function: Callable[[Any, TimeWindow, pa.RecordBatch], Any], schema: pa.Schema | None) -> None:
        self._function, self._schema = function, schema

    def __call__(self, fired: FiredWindows, store: RowsByEntry, output: Output) -> None:
        offsets, numbers = store.rows_of(fired.entries)
        batch = store.take(numbers)
        bounds = offsets[fired.bounds()].tolist()
        results: list[pa.RecordBatch] = []
        for position, (key, start, end) in enumerate(
            zip(keys_of(fired), fired.starts.tolist(), fired.ends.tolist(), strict=True)
        ):
            part = batch.slice(bounds[position], bounds[position + 1] - bounds[position])
            results += self._batches_of(self._function(key, TimeWindow(start, end), part), output)
        emit_together(results, output)

    def _batches_of(self, produced: Any, output: Output) -> Iterator[pa.RecordBatch]:
        """The batches that a call of the user's function has produced; what is for a side output is emitted at once."""
        if isinstance(produced, pa.RecordBatch):
            yield produced if self._schema is None else conform(produced, self._schema)
        elif isinstance(produced, SideOutput):
            emit_side_output(produced, output)
        elif isinstance(produced, (list, tuple)) or hasattr(produced, "__next__"):
            for part in produced:
                yield from self._batches_of(part, output)
        elif produced is not None:
            raise TypeError(
                f"a window function over batches must return a pyarrow.RecordBatch, an iterable of them, or None, not "
                f"{type(produced).__name__}"
            )


def emit_together(results: list[pa.RecordBatch], output: Output) -> None:
    """Small batches of one schema as one."""
    if len(results) > 1 and all(result.schema.equals(results[0].schema) for result in results[1:]):
        whole = joined(results)
        results = results if whole is None else [whole]
    for result in results:
        output.emit_batch(workable(result))


def keys_of(fired: FiredWindows) -> list[Any]:
    """A key per window: a value for one key column, a tuple for several."""
    columns = [column_values(column) for column in fired.keys]
    return columns[0] if len(columns) == 1 else list(zip(*columns, strict=True))


class ReducedContents(WindowContents):
    """One row: the rows so far, combined two by two."""

    windows_per_slice = 1_000

    def __init__(self, schema: pa.Schema, function: Callable[[Row, Row], Row], keys: Iterable[str]) -> None:
        self._store = RowStore(schema)
        self._function = function
        self._keys = frozenset(keys)
        self._names = frozenset(self._store.schema.names)
        self._as_kept = check(keeping_of(pa.struct(list(self._store.schema)), copies=False), "rows are structs")
        self._batcher = RowBatcher(self._store.schema)

    @property
    def fields(self) -> list[pa.Field]:
        return [pa.field(REDUCED, self._store.type)]

    def fold(self, entries: Slots, batch: pa.RecordBatch, input_index: int = 0) -> None:
        reduced = self._load(np.unique(entries))
        combined = self._combined
        for entry, row in zip(entries.tolist(), rows_of(conform(batch, self._store.schema)), strict=True):
            known = reduced.get(entry)
            reduced[entry] = row if known is None else combined(known, row)
        self._store_reduced(reduced)

    def _combined(self, one: Row, other: Row) -> Row:
        """What the function makes of two rows, as the state keeps it: else it would depend on where batches end what
        the function is given next."""
        row: object = self._function(one, other)
        if not isinstance(row, dict) or not self._names.issuperset(row):
            raise TypeError(
                f"reduce: {getattr(self._function, '__name__', self._function)!s} gives a row with the columns "
                f"{', '.join(sorted(self._names))}, not {row!r}"
            )
        if not row.keys() >= self._keys:
            lacking = ", ".join(sorted(self._keys.difference(row)))
            raise TypeError(f"reduce: a row without its key {lacking} is none of the key's: {row!r}")
        kept: Row = self._as_kept(row)
        return kept

    def _load(self, entries: Slots) -> dict[int, Row]:
        _, numbers = self._store.rows_of(entries)
        owners = self._store.owner_of[numbers].tolist()
        return dict(zip(owners, rows_of(self._store.take(numbers)), strict=True))

    def _store_reduced(self, reduced: dict[int, Row]) -> None:
        entries = np.fromiter(reduced, np.int32, len(reduced))
        batch = self._batcher.batch_of(list(reduced.values()))
        self._store.remove_owners(entries)
        if batch is not None:
            self._store.add(entries, batch)

    def merge(self, into: Slots, others: Slots) -> None:
        reduced = self._load(np.unique(np.concatenate([into, others])))
        merged: dict[int, Row] = {}
        for target, other in zip(into.tolist(), others.tolist(), strict=True):
            known = merged.get(target, reduced.get(target))
            merged[target] = reduced[other] if known is None else self._combined(known, reduced[other])
        self._store_reduced(merged)

    def emit(self, fired: FiredWindows, output: Output) -> None:
        offsets, numbers = self._store.rows_of(fired.entries)
        rows = rows_of(self._store.take(numbers))
        bounds = offsets[fired.bounds()].tolist()
        results: list[Row] = []
        for position in range(len(fired.starts)):
            row, *others = rows[bounds[position] : bounds[position + 1]]
            for other in others:
                row = self._combined(row, other)
            results.append(row)
        batch = self._batcher.batch_of(results)
        if batch is None:
            return
        times = dict(zip(fired.window_fields(), fired.window_columns(), strict=True))
        added = {field: column for field, column in times.items() if batch.schema.get_field_index(field.name) < 0}
        schema = pa.schema([*batch.schema, *added])
        output.emit_batch(pa.RecordBatch.from_arrays([*batch.columns, *added.values()], schema=schema))

    def grow(self, capacity: int) -> None:
        self._store.grow_owners(capacity)

    def clear(self, entries: Slots) -> None:
        self._store.remove_owners(entries)

    def get(self, entries: Slots) -> list[pa.Array]:
        return [self._store.get(entries)]

    def freeze(self, high_water: int) -> list[FrozenColumn]:
        return [self._store.freeze(high_water)]

    def restore(self, entries: Slots, columns: Sequence[pa.Array]) -> None:
        self._store.restore(entries, columns[0])

    def check(self, schema: pa.Schema, operator_uid: str, input_index: int = 0) -> None:
        check_same_columns(self._store.schema, schema, operator_uid)


class RowMaker(ContentsMaker):
    """Makes the contents of windows that keep their rows, or some of them."""

    def __init__(self, create: Callable[[pa.Schema, Callable[[], int]], WindowContents], kept: str) -> None:
        """`kept`: which ones, in words."""
        self._create = create
        self._kept = kept

    def of_batch(self, schema: pa.Schema, current_watermark: Callable[[], int]) -> WindowContents:
        return self._create(schema, current_watermark)

    def of_snapshot(self, fields: Sequence[pa.Field], current_watermark: Callable[[], int]) -> WindowContents:
        check_contents(fields, are_rows=True)
        self._check_kept(fields[0])
        kept = [field.with_type(with_null_parts(field.type)) for field in fields[0].type.value_type]
        return self._create(pa.schema(kept), current_watermark)

    def _check_kept(self, field: pa.Field) -> None:
        """StateError where the snapshot holds other rows. Older ones do not say which, but for those that were
        reduced."""
        unknown = ALL_ROWS if self._kept == REDUCED_ROWS else self._kept
        said = (field.metadata or {}).get(KEPT_METADATA, b"").decode(errors="replace")
        kept = REDUCED_ROWS if field.name == REDUCED else said or unknown
        if kept != self._kept:
            raise StateError(
                f"the windows in the snapshot hold {kept[:200]}, and those of the job now {self._kept}: keep what is done with them, or give "
                "the operator another uid to start without its state"
            )
