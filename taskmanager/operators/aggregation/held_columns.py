"""What an aggregate holds by entry when it is more than a count and a number: the contract, and a user's own
accumulators.

An entry is a small number (a key's slot, a window's pane). Each such aggregate has a column of its own in the state, in
which a snapshot has what was accumulated. Decides how a BatchAggregateFunction is called (once a batch, with one
accumulator for each entry), and what it may give back. Values that are kept are in `held_values`, Snapline's sketches
in `sketches`. Mirrors Flink's AggregatingState, a column at a time.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from snapline.dataflow.api.aggregate_types import result_type
from snapline.dataflow.api.batch_aggregates import (
    AnyAggregate,
    BatchAggregateFunction,
    Groups,
    HeldAggregate,
    columns_of,
)
from snapline.dataflow.columnar.arrow_columns import Int64Array, narrow_type
from snapline.dataflow.columnar.column_types import kept_type
from snapline.dataflow.errors import StateError
from snapline.taskmanager.operators.base.stateless import conform
from snapline.taskmanager.state.columns import Column, FrozenColumn, make_column
from snapline.taskmanager.state.index.slots import Slots

HELD_PREFIX = "held:"
"""Names of the columns of state begin so; those of counts and numbers do not."""
HELD_TYPES_METADATA = b"snapline.held.input"
HELD_FUNCTION_METADATA = b"snapline.held.function"
"""What an aggregate of ours is: its function, column, by and parameter."""


class HeldColumn(ABC):
    """What one aggregate has accumulated, by entry."""

    def __init__(self, aggregate: AnyAggregate, schema: pa.Schema) -> None:
        """`schema`: of the columns that are read, at least. Raises TypeError for types that the aggregate does not
        take."""
        self.aggregate = aggregate
        self.inputs = pa.schema(
            [schema.field(column).remove_metadata() for column in dict.fromkeys(columns_of(aggregate))]
        )
        self.result_type = result_type(aggregate, self.inputs)

    @property
    @abstractmethod
    def storage_type(self) -> pa.DataType:
        """The type of its column in a snapshot."""

    @abstractmethod
    def fold(self, entries: Slots, batch: pa.RecordBatch) -> None:
        """Take the rows in; `entries` has one per row."""

    @abstractmethod
    def merge(self, into: Slots, others: Slots) -> None:
        """others[i] becomes part of into[i], in order; the caller clears the others."""

    @abstractmethod
    def results(self, entries: Slots, offsets: Int64Array) -> pa.Array:
        """Result i is over entries[offsets[i]:offsets[i + 1]] together."""

    @abstractmethod
    def grow(self, capacity: int) -> None:
        """Make room for entries below."""

    @abstractmethod
    def clear(self, entries: Slots) -> None:
        """Forget entries, each of which is named once."""

    @abstractmethod
    def get(self, entries: Slots) -> pa.Array:
        """What is held as a column of `storage_type`."""

    @abstractmethod
    def freeze(self, high_water: int) -> FrozenColumn:
        """The same for later, of the entries below."""

    @abstractmethod
    def restore(self, entries: Slots, values: pa.Array) -> None:
        """Take over what `freeze` gave; the entries are new."""

    @property
    def field(self) -> pa.Field:
        """The column of state, which also says what it was made for."""
        metadata = {HELD_TYPES_METADATA: self.inputs.serialize().to_pybytes()}
        if isinstance(self.aggregate, HeldAggregate):
            one = self.aggregate
            metadata[HELD_FUNCTION_METADATA] = json.dumps([one.function, one.column, one.by, one.parameter]).encode()
        return pa.field(f"{HELD_PREFIX}{self.aggregate.name}", self.storage_type, metadata=metadata)

    def check(self, schema: pa.Schema, operator_uid: str) -> None:
        """Raise KeyError or StateError unless batches of this schema fit."""
        for known in self.inputs:
            position = schema.get_field_index(known.name)
            if position < 0:
                raise KeyError(
                    f"no column {known.name!r} for {self.aggregate.name!r}: the columns are {', '.join(map(repr, schema.names))}"
                )
            found = schema.field(position).type
            if narrow_type(kept_type(found)) != narrow_type(kept_type(known.type)):
                raise StateError(
                    f"operator {operator_uid!r}: column {known.name!r} is {found}, and the state of {self.aggregate.name!r} was made for "
                    f"{known.type}: cast it, or give the operator another uid to start without its state"
                )


class AccumulatedColumn(HeldColumn):
    """The accumulators of a BatchAggregateFunction."""

    def __init__(self, aggregate: AnyAggregate, function: BatchAggregateFunction, schema: pa.Schema) -> None:
        super().__init__(aggregate, schema)
        self._function = function
        self._column: Column = make_column(self.storage_type)

    @property
    def storage_type(self) -> pa.DataType:
        return pa.struct(list(self._accumulator_schema))

    @property
    def _accumulator_schema(self) -> pa.Schema:
        return self._function.accumulator.remove_metadata()

    def fold(self, entries: Slots, batch: pa.RecordBatch) -> None:
        distinct, groups = np.unique(entries, return_inverse=True)
        batch = conform(batch, self.inputs)
        columns = [batch.column(column) for column in columns_of(self.aggregate)]
        known = self._accumulators(distinct)
        self._put(distinct, self._function.add(known, groups.astype(np.int32), *columns), "add")

    def merge(self, into: Slots, others: Slots) -> None:
        distinct, groups = np.unique(into, return_inverse=True)
        merged = self._function.merge(self._accumulators(distinct), groups.astype(np.int32), self._accumulators(others))
        self._put(distinct, merged, "merge")

    def results(self, entries: Slots, offsets: Int64Array) -> pa.Array:
        count = len(offsets) - 1
        accumulators = self._accumulators(entries)
        if count != len(entries):
            groups: Groups = np.repeat(np.arange(count, dtype=np.int32), np.diff(offsets))
            nothing = pa.RecordBatch.from_arrays(
                [pa.nulls(count, field.type) for field in self._accumulator_schema], schema=self._accumulator_schema
            )
            accumulators = self._checked(self._function.merge(nothing, groups, accumulators), count, "merge")
        found = self._function.result(accumulators)
        if isinstance(found, pa.ChunkedArray):
            found = found.combine_chunks()
        if not isinstance(found, pa.Array) or len(found) != count:
            raise TypeError(f"{self._name}.result() returns an Arrow array of {count} results, not {_shown(found)}")
        if found.type == self.result_type:
            return found
        try:
            return found.cast(self.result_type)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise TypeError(
                f"{self._name}.result() returns {self.result_type}, as its result_type says, not {found.type}: {error}"
            ) from None

    def _accumulators(self, entries: Slots) -> pa.RecordBatch:
        values = self._column.get(entries)
        return pa.RecordBatch.from_arrays(values.flatten(), schema=self._accumulator_schema)

    def _put(self, entries: Slots, accumulators: object, method: str) -> None:
        checked = self._checked(accumulators, len(entries), method)
        self._column.put(entries, pa.StructArray.from_arrays(checked.columns, fields=list(checked.schema)))

    def _checked(self, accumulators: object, count: int, method: str) -> pa.RecordBatch:
        """What the function has given back, in the columns of its accumulator. Raises TypeError that says what is
        wrong."""
        schema = self._accumulator_schema
        where = f"{self._name}.{method}() returns a pyarrow.RecordBatch of {count} accumulators"
        if not isinstance(accumulators, pa.RecordBatch) or accumulators.num_rows != count:
            raise TypeError(f"{where}, not {_shown(accumulators)}")
        if set(accumulators.schema.names) != set(schema.names):
            raise TypeError(
                f"{where} with the columns {', '.join(schema.names)}, not {', '.join(accumulators.schema.names)}"
            )
        columns = []
        for field in schema:
            column = accumulators.column(field.name)
            try:
                columns.append(column if column.type == field.type else column.cast(field.type))
            except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
                raise TypeError(
                    f"{where}, whose column {field.name!r} is {field.type}, not {column.type}: {error}"
                ) from None
        return pa.RecordBatch.from_arrays(columns, schema=schema)

    @property
    def _name(self) -> str:
        return type(self._function).__name__

    def grow(self, capacity: int) -> None:
        self._column.grow(capacity)

    def clear(self, entries: Slots) -> None:
        self._column.clear(entries)

    def get(self, entries: Slots) -> pa.Array:
        return self._column.get(entries)

    def freeze(self, high_water: int) -> FrozenColumn:
        return self._column.freeze(high_water)

    def restore(self, entries: Slots, values: pa.Array) -> None:
        self._column.put(entries, values)


def _shown(value: object) -> str:
    """How a wrong result is told."""
    if isinstance(value, (pa.RecordBatch, pa.Array)):
        return f"a {type(value).__name__} of {len(value)}"
    return f"a {type(value).__name__}"


def combined_results(
    aggregates: Sequence[AnyAggregate],
    plain: Sequence[pa.Array],
    held: Sequence[HeldColumn],
    results: Sequence[pa.Array],
) -> list[pa.Array]:
    """The columns of all aggregates in the order in which they were asked for; `plain` are those of counts and
    numbers."""
    of_held = {one.aggregate.name: column for one, column in zip(held, results, strict=True)}
    rest = iter(plain)
    return [of_held[one.name] if one.name in of_held else next(rest) for one in aggregates]
