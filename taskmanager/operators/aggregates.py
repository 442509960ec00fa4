"""Aggregates over columns: which accumulators they need, and their results from these.

Decides how the named functions of `dataflow.windows.Aggregate` map to accumulators (one set of count, sum, min, max per
input column, shared by all aggregates over it; one count of rows), which types are refused, and the types of the results. It
does not know where accumulators lie. Nulls as in SQL: they are skipped, and what has seen no value is null (a count is 0).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from dataflow.aggregate_types import check_aggregate_type
from dataflow.arrow_columns import bitmap_of
from dataflow.state import RunningAggregateDescriptor, StateError
from dataflow.windows import Aggregate

Numbers = np.ndarray[Any, Any]
ROWS = "rows"
"""Name of the accumulator that counts rows. Those of columns are `column:<name>`."""


@dataclass(frozen=True, slots=True)
class Accumulator:
    """One set of count, and as asked sum, min and max, over one input column (or over the rows)."""

    name: str
    column: str
    """Empty: rows are counted."""
    column_type: pa.DataType
    aggregates: tuple[str, ...]
    """Of sum, min, max."""

    @property
    def number_type(self) -> pa.DataType:
        """What the column is folded as."""
        return pa.float64() if pa.types.is_floating(self.column_type) else pa.int64()

    def descriptor(self) -> RunningAggregateDescriptor:
        """As keyed state."""
        return RunningAggregateDescriptor(self.name, self.number_type, self.aggregates)

    def numbers(self, batch: pa.RecordBatch) -> pa.Array | Numbers:
        """What is folded for each row of the batch."""
        if not self.column:
            return np.zeros(batch.num_rows, np.int64)
        array = batch.column(self.column)
        if not self.aggregates:  # only counted: any type will do
            zeros = np.zeros(batch.num_rows, np.int64)
            return zeros if array.null_count == 0 else pa.array(zeros, mask=np.asarray(array.is_null()))
        if array.type != self.column_type:
            raise TypeError(
                f"column {self.column!r} changed its type from {self.column_type} to {array.type}: cast it to one of them before"
            )
        return _as_numbers(array)


def _is_temporal(data_type: pa.DataType) -> bool:
    return bool(pa.types.is_temporal(data_type) and not pa.types.is_interval(data_type))


def _as_numbers(array: pa.Array) -> pa.Array:
    data_type = array.type
    if _is_temporal(data_type):
        return array.view(pa.int64() if data_type.bit_width == 64 else pa.int32())
    if pa.types.is_boolean(data_type):
        return array.cast(pa.int8())
    return array


def name_of_accumulator(column: str) -> str:
    """Of a column's, or of the rows'."""
    return f"column:{column}" if column else ROWS


class AggregatePlan:
    """All aggregates of one operator."""

    def __init__(self, aggregates: Sequence[Aggregate]) -> None:
        self.aggregates = tuple(aggregates)
        names = [aggregate.name for aggregate in aggregates]
        if len(set(names)) != len(names):
            raise ValueError(f"two aggregates have one name: {', '.join(names)}")

    def accumulators(self, schema: pa.Schema) -> tuple[Accumulator, ...]:
        """What is needed for input of this schema. Raises KeyError or TypeError that names the column."""
        for aggregate in self.aggregates:
            if aggregate.column:
                _check_type(aggregate, schema)
        return tuple(
            Accumulator(
                name_of_accumulator(column),
                column,
                schema.field(column).type if column and functions else pa.int64(),
                functions,
            )
            for column, functions in self._needed().items()
        )

    def _needed(self) -> dict[str, tuple[str, ...]]:
        """Of sum, min, max, by column."""
        needed: dict[str, set[str]] = {}
        for aggregate in self.aggregates:
            own = needed.setdefault(aggregate.column, set())
            if aggregate.function in ("sum", "mean"):
                own.add("sum")
            elif aggregate.function in ("min", "max"):
                own.add(aggregate.function)
        return {
            column: tuple(name for name in ("sum", "min", "max") if name in functions)
            for column, functions in needed.items()
        }

    def check_restored(self, restored: Mapping[str, Sequence[str]], *, complete: bool) -> None:
        """Hold the accumulators of a snapshot (sum, min, max by name) against those that are needed. StateError, by column: what
        came before is not known to an aggregate that is new. `complete`: one that is missing there is new, too."""
        for column, functions in self._needed().items():
            name = name_of_accumulator(column)
            if name in restored:
                new = [function for function in functions if function not in restored[name]]
                gone = [function for function in restored[name] if function not in functions]
            elif not complete or not column:
                continue
            else:
                new, gone = list(functions) or ["count"], []
            if new or gone:
                said = f"{', '.join(new)} of it is new" if new else f"{', '.join(gone)} of it is gone"
                raise StateError(
                    f"column {column!r}: {said}, and what came before is not known to another aggregate: keep the aggregates of the "
                    "snapshot, or give the operator another uid to start it without state"
                )

    def results(
        self,
        accumulators: Sequence[Accumulator],
        counts_of: Callable[[str], Numbers],
        totals_of: Callable[[str, str], Numbers],
    ) -> list[pa.Array]:
        """A column per aggregate. `counts_of(accumulator)` and `totals_of(accumulator, 'sum')` give one value per output row."""
        by_column = {accumulator.column: accumulator for accumulator in accumulators}
        valid: dict[str, pa.Buffer | None] = {}
        columns = []
        for aggregate in self.aggregates:
            accumulator = by_column[aggregate.column]
            counts = counts_of(accumulator.name)
            if aggregate.function == "count":
                columns.append(pa.array(counts))
                continue
            if accumulator.name not in valid:
                some = counts > 0
                valid[accumulator.name] = None if some.all() else bitmap_of(some)
            columns.append(_result(aggregate.function, accumulator, counts, totals_of, valid[accumulator.name]))
        return columns

    def result_fields(self, accumulators: Sequence[Accumulator]) -> list[pa.Field]:
        """Names and types of the results."""
        by_column = {accumulator.column: accumulator for accumulator in accumulators}
        return [pa.field(a.name, _result_type(a.function, by_column[a.column])) for a in self.aggregates]


def _check_type(aggregate: Aggregate, schema: pa.Schema) -> None:
    position = schema.get_field_index(aggregate.column)
    if position < 0:
        raise KeyError(
            f"no column {aggregate.column!r} for {aggregate.function}() as {aggregate.name!r}: the columns are "
            f"{', '.join(map(repr, schema.names))}"
        )
    check_aggregate_type(aggregate, schema.field(position).type)


def _result_type(function: str, accumulator: Accumulator) -> pa.DataType:
    if function == "count":
        return pa.int64()
    if function == "mean":
        return pa.float64()
    return accumulator.number_type if function == "sum" else accumulator.column_type


def _result(
    function: str,
    accumulator: Accumulator,
    counts: Numbers,
    totals_of: Callable[[str, str], Numbers],
    bitmap: pa.Buffer | None,
) -> pa.Array:
    if function == "mean":
        sums = totals_of(accumulator.name, "sum")
        values = sums / np.maximum(counts, 1)
    else:
        values = totals_of(accumulator.name, function)
    wanted = _result_type(function, accumulator)
    plain = pa.float64() if values.dtype == np.float64 else pa.int64()
    array = pa.Array.from_buffers(plain, len(values), [bitmap, pa.py_buffer(np.ascontiguousarray(values))])
    if wanted == plain:
        return array
    if _is_temporal(wanted):
        return array.view(wanted) if wanted.bit_width == 64 else array.cast(pa.int32()).view(wanted)
    # Where there was no value stands what is neutral, which need not fit.
    return array.cast(wanted, safe=False)


def counts_and_totals(
    columns: Mapping[str, Mapping[str, Numbers]],
) -> tuple[Callable[[str], Numbers], Callable[[str, str], Numbers]]:
    """For `results`, from {accumulator: {'count': ..., 'sum': ...}}."""
    return lambda name: columns[name]["count"], lambda name, total: columns[name][total]
