"""Operators without state of their own: whole batches through a function, filters, and row-wise maps.

Decides how results of user functions become batches, and what is refused: a result of the wrong kind, a schema other
than the declared one. User functions with operator state or listeners are honoured here as everywhere
(`FunctionOperator`). Mirrors Flink's StreamMap, StreamFlatMap, StreamFilter.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from snapline.dataflow.api.function_contexts import Row
from snapline.dataflow.api.functions import SideOutput
from snapline.dataflow.columnar.column_types import converted, workable
from snapline.dataflow.graph.operator_specs import (
    FilterRowsSpec,
    FilterSpec,
    FlatMapRowsSpec,
    MapBatchesSpec,
    MapRowsSpec,
)
from snapline.taskmanager.operators.base.failure import failed_read
from snapline.taskmanager.operators.base.function_operator import FunctionOperator
from snapline.taskmanager.operators.base.row_wise import RowWiseOperator, listed, try_rows
from snapline.taskmanager.operators.base.rows import SEQUENCES, RowBatcher, rows_made, rows_of


def conform(batch: pa.RecordBatch, schema: pa.Schema | None) -> pa.RecordBatch:
    """The batch in the declared schema: columns picked by name, cast where that loses nothing. Without one it is free
    of views and runs. Raises TypeError."""
    if schema is None:
        return workable(batch)
    if batch.schema.equals(schema):
        return batch
    missing = [name for name in schema.names if batch.schema.get_field_index(name) < 0]
    if missing:
        raise TypeError(
            f"the function returned columns {', '.join(batch.schema.names)}, but schema= declares "
            f"{', '.join(schema.names)}: {', '.join(missing)} missing"
        )
    columns = []
    for field in schema:
        column = batch.column(field.name)
        try:
            columns.append(converted(column, field.type))
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise TypeError(
                f"the function returned column {field.name!r} as {column.type}, but schema= declares {field.type}: {error}"
            ) from None
    return pa.RecordBatch.from_arrays(columns, schema=schema)


class MapBatchesOperator(FunctionOperator):
    """Batch in; batch, batches, table or nothing out."""

    def __init__(self, spec: MapBatchesSpec) -> None:
        super().__init__(spec.function)
        self._call = spec.function
        self._schema = spec.output_schema

    def process_batch(self, batch: pa.RecordBatch, input_index: int = 0) -> None:
        self._emit(self._call(batch))

    def _emit(self, result: Any) -> None:
        if isinstance(result, pa.RecordBatch):
            self.output.emit_batch(conform(result, self._schema))
        elif isinstance(result, pa.Table):
            for part in result.to_batches():
                self.output.emit_batch(conform(part, self._schema))
        elif isinstance(result, Iterable) and not (isinstance(result, (str, bytes, dict)) or is_frame(result)):
            for part in result:
                if not isinstance(part, (pa.RecordBatch, pa.Table, SideOutput)):
                    raise _no_batch(part)
                self._emit(part)
        elif isinstance(result, SideOutput):
            emit_side_output(result, self.output)
        elif result is not None:
            raise _no_batch(result)


def emit_side_output(side: SideOutput, output: Any) -> None:
    """Emit the rows of a side output: of a batch, or of a table, as of the main one."""
    parts = side.batch.to_batches() if isinstance(side.batch, pa.Table) else [side.batch]
    for part in parts:
        output.emit_side(side.tag, workable(part))


def is_frame(result: Any) -> bool:
    """Whether this is a frame of pandas or polars, or a column, whose elements are no batches."""
    return isinstance(result, (pa.Array, pa.ChunkedArray)) or hasattr(result, "columns")


def _no_batch(result: Any) -> TypeError:
    kind = f"{type(result).__module__.partition('.')[0]}.{type(result).__name__}"
    way_out = {
        "pandas.DataFrame": "; pa.RecordBatch.from_pandas(frame, preserve_index=False) is one",
        "polars.DataFrame": "; frame.to_arrow() is a table, which will do",
    }.get(kind, "")
    return TypeError(
        f"a map_batches function must return a pyarrow.RecordBatch, an iterable of them, or None, not {kind.removeprefix('builtins.')}{way_out}"
    )


ONCE_A_BATCH = (
    "filter calls its function once for a batch: filter_rows calls it for each row, and an expression such as "
    "sl.col('cents') > 50 is quicker than both"
)


class FilterOperator(FunctionOperator):
    """Keeps the rows whose place in the boolean array is true."""

    def __init__(self, spec: FilterSpec) -> None:
        super().__init__(spec.predicate)
        self._predicate = spec.predicate

    def process_batch(self, batch: pa.RecordBatch, input_index: int = 0) -> None:
        try:
            mask = self._predicate(batch)
        except TypeError as error:
            if "pyarrow.lib." in str(error):  # what was written for a row was given the columns of many
                error.args = (f"{error}; {ONCE_A_BATCH}",)
            raise
        if isinstance(mask, (bool, np.bool_)) or mask is None:
            raise TypeError(f"a filter must return one boolean per row ({batch.num_rows}), not {mask}; {ONCE_A_BATCH}")
        if not isinstance(mask, (pa.Array, pa.ChunkedArray)):
            mask = pa.array(mask)
        if not pa.types.is_boolean(mask.type) or len(mask) != batch.num_rows:
            raise TypeError(
                f"a filter must return one boolean per row ({batch.num_rows}), not {len(mask)} values of {mask.type}"
            )
        kept = pc.sum(mask).as_py() or 0
        if kept == batch.num_rows:
            self.output.emit_batch(batch)
        elif kept:
            self.output.emit_batch(batch.filter(mask))


class MapRowsOperator(RowWiseOperator):
    """Calls a function that turns one row into one row."""

    def __init__(self, spec: MapRowsSpec) -> None:
        super().__init__(spec.function, spec.on_error)
        self._call = spec.function
        self._batcher = RowBatcher(spec.output_schema)

    def process_batch(self, batch: pa.RecordBatch, input_index: int = 0) -> None:
        call = self._call
        if self.goes_on:
            self.emit_good(batch, lambda row: [call(row)], self._batcher)
            return
        rows = rows_of(batch)
        iterator = iter(rows)
        try:
            results = [call(row) for row in iterator]
        except Exception as error:
            raise failed_read(rows, iterator, error) from error
        _emit_rows(self, self._batcher, results)


class FlatMapRowsOperator(RowWiseOperator):
    """Row in, any number of rows out."""

    def __init__(self, spec: FlatMapRowsSpec) -> None:
        super().__init__(spec.function, spec.on_error)
        self._call = spec.function
        self._batcher = RowBatcher(spec.output_schema)

    def process_batch(self, batch: pa.RecordBatch, input_index: int = 0) -> None:
        call = self._call
        if self.goes_on:
            self.emit_good(batch, lambda row: listed(call(row)), self._batcher)
            return
        rows = rows_of(batch)
        iterator = iter(rows)
        results: list[Row] = []
        try:
            for row in iterator:
                produced = call(row)
                if produced is not None:
                    results.extend(produced if type(produced) in SEQUENCES else rows_made(produced))
        except Exception as error:
            raise failed_read(rows, iterator, error) from error
        _emit_rows(self, self._batcher, results)


class FilterRowsOperator(RowWiseOperator):
    """Keeps the rows for which the function is true; the batch itself is not rebuilt."""

    def __init__(self, spec: FilterRowsSpec) -> None:
        super().__init__(spec.predicate, spec.on_error)
        self._predicate = spec.predicate

    def process_batch(self, batch: pa.RecordBatch, input_index: int = 0) -> None:
        predicate = self._predicate
        rows = rows_of(batch)
        if self.goes_on:
            kept, errors = try_rows(rows, lambda row: bool(predicate(row)))
            self._emit(batch, [kept.get(index, False) for index in range(len(rows))])
            self.set_aside(batch, errors)
            return
        iterator = iter(rows)
        try:
            mask = [bool(predicate(row)) for row in iterator]
        except Exception as error:
            raise failed_read(rows, iterator, error) from error
        self._emit(batch, mask)

    def _emit(self, batch: pa.RecordBatch, mask: Sequence[bool]) -> None:
        if all(mask):
            self.output.emit_batch(batch)
        elif any(mask):
            self.output.emit_batch(batch.filter(pa.array(mask, pa.bool_())))


def _emit_rows(operator: FunctionOperator, batcher: RowBatcher, rows: Sequence[Row]) -> None:
    batch = batcher.batch_of(rows)
    if batch is not None:
        operator.output.emit_batch(batch)
