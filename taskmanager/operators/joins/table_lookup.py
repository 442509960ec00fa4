"""A stream enriched from a table that every subtask holds: columns of the row whose key is that of the stream's row.

Decides what a table must be (a key at most once, key columns of the stream's types) and what happens without a match:
nulls, or no row. The table is loaded when the operator opens, also after a restart, and never changes meanwhile.
Mirrors Flink's lookup join with a full cache.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from snapline.dataflow.columnar.arrow_columns import column_named
from snapline.dataflow.columnar.column_types import workable, workable_schema
from snapline.dataflow.columnar.gather import gather_array, gather_values
from snapline.dataflow.columnar.python_values import table_in_arrow
from snapline.dataflow.errors import JobDefinitionError
from snapline.dataflow.graph.operator_specs import TableLookupSpec
from snapline.runtime.cores.machine import check
from snapline.taskmanager.operators.base.operator_contract import StreamOperator
from snapline.taskmanager.operators.joins.timed_rows import emit_in_parts
from snapline.taskmanager.state.index.key_index import KeyIndex
from snapline.taskmanager.state.index.slots import Slots


class TableLookupOperator(StreamOperator):
    """Looks the rows of a batch up in a table, all at once."""

    def __init__(self, spec: TableLookupSpec) -> None:
        self._spec = spec
        self._index: KeyIndex | None = None
        self._row_of: Slots = np.zeros(0, np.int32)
        self._values: list[pa.Array | pa.ChunkedArray] = []
        self._fields: list[pa.Field] = []
        self._keys: list[pa.Field] = []

    def open(self) -> None:
        spec, uid = self._spec, self.context.operator_uid
        loaded: object = spec.load()
        if not hasattr(loaded, "__arrow_c_stream__"):
            raise JobDefinitionError(
                f"operator {uid!r}: the function that loads the table returned a {type(loaded).__name__}: return a pyarrow.Table"
            )
        table = table_in_arrow(loaded)
        missing = [name for name in spec.table_columns if name not in table.column_names]
        if missing:
            raise JobDefinitionError(
                f"operator {uid!r}: the table to look up in has no column {missing[0]!r}: it has {', '.join(table.column_names)}"
            )
        batches = [workable(batch) for batch in table.combine_chunks().to_batches()]
        table = pa.Table.from_batches(batches, workable_schema(table.schema))
        self._keys = [table.schema.field(name) for name in spec.table_columns]
        self._index = KeyIndex(self._keys)
        keys = [_one_chunk(table.column(name)) for name in spec.table_columns]
        slots = self._index.lookup_or_insert(keys)
        if len(self._index) < table.num_rows:
            _, first = np.unique(slots, return_index=True)
            row = int(np.setdiff1d(np.arange(len(slots)), first)[0])
            key = ", ".join(
                f"{name}={column[row].as_py()!r}" for name, column in zip(spec.table_columns, keys, strict=True)
            )
            raise JobDefinitionError(
                f"operator {uid!r}: the table to look up in has several rows for {key}: give it one row per key"
            )
        self._row_of = np.zeros(self._index.capacity, np.int32)
        self._row_of[slots] = np.arange(len(slots), dtype=np.int32)
        values = table.drop_columns(list(spec.table_columns))
        self._fields = [field.with_nullable(True) for field in values.schema]
        self._values = [_one_chunk(column) for column in values.columns]

    def process_batch(self, batch: pa.RecordBatch, input_index: int = 0) -> None:
        spec, index = self._spec, self._index
        index = check(index, "there is no index, although open was called")
        taken = [field.name for field in self._fields if field.name in batch.schema.names]
        if taken:
            raise JobDefinitionError(
                f"operator {self.context.operator_uid!r}: both the stream and the table have a column {taken[0]!r}: rename one"
            )
        keys = [column_named(batch, name, "column to look up") for name in spec.columns]
        try:
            slots = index.lookup(keys)
        except TypeError:
            raise self._other_types(batch.schema) from None
        found = slots >= 0
        everything = bool(found.all())
        if spec.how == "inner" and not everything:
            batch, slots, everything = batch.filter(pa.array(found)), slots[found], True
        rows = gather_values(self._row_of, np.maximum(slots, 0))
        missing = None if everything else ~found
        schema = pa.schema([*batch.schema, *self._fields])

        def make(part: slice) -> pa.RecordBatch:
            without = None if missing is None else missing[part]
            columns = [_taken(column, rows[part], without) for column in self._values]
            return pa.RecordBatch.from_arrays([*(column[part] for column in batch.columns), *columns], schema=schema)

        emit_in_parts(make, 0, batch.num_rows, self.output)

    def _other_types(self, schema: pa.Schema) -> JobDefinitionError:
        """The line for keys of the stream that have not the types of the table's."""
        differences = [
            f"column {own!r} is {schema.field(own).type} and the table's {key.name!r} is {key.type}"
            for own, key in zip(self._spec.columns, self._keys, strict=True)
            if schema.field(own).type != key.type
        ]
        return JobDefinitionError(f"operator {self.context.operator_uid!r}: {', '.join(differences)}: cast one of them")

    def close(self) -> None:
        self._index, self._values = None, []


def _taken(column: pa.Array | pa.ChunkedArray, rows: Slots, without: npt.NDArray[np.bool_] | None) -> pa.Array:
    """The rows of a column; `without` says where there is none."""
    if without is None and isinstance(column, pa.Array):
        return gather_array(column, rows)
    return _one_chunk(column.take(pa.array(rows, mask=without)))


def _one_chunk(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    if isinstance(column, pa.Array):
        return column
    combined = column.combine_chunks()
    return combined.chunk(0) if isinstance(combined, pa.ChunkedArray) else combined
