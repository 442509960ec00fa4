"""Aggregates over columns: which accumulators they need, and their results from these.

Decides how the named functions of `snapline.dataflow.api.windows.Aggregate` map to accumulators (one set of count, sum,
min, max per input column, shared by all aggregates over it; one count of rows), which types are refused, and the types
of the results. Decides, too, how they go on from those of a snapshot: an aggregate that is new gets an accumulator of
its own, which starts empty; one that is gone takes its accumulator with it, with leave. It does not know where
accumulators lie. Nulls as in SQL: they are skipped, and what has seen no value is null (a count is 0).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from snapline.dataflow.api.aggregate_types import check_aggregate_type
from snapline.dataflow.api.state import RunningAggregateDescriptor
from snapline.dataflow.api.windows import Aggregate
from snapline.dataflow.columnar.arrow_columns import bitmap_of, column_named, fixed_array
from snapline.dataflow.config import DROP_STATE_COLUMNS
from snapline.dataflow.errors import StateError
from snapline.dataflow.snapshot.state_evolution import widens

Numbers = np.ndarray[Any, Any]
_COUNT = pa.int64()
ROWS = "rows"
"""Name of the accumulator that counts rows. Those of columns are `column:<name>`; of aggregates that were added later
`added-<n>:<name>`."""


class Shape(NamedTuple):
    """An accumulator, but for its type."""

    name: str
    aggregates: tuple[str, ...]
    """Which of sum, min and max are kept."""

    @property
    def column(self) -> str:
        """Return the column that is aggregated; empty when rows are counted."""
        return self.name.partition(":")[2]


@dataclass(frozen=True, slots=True)
class Accumulator:
    """One set of count, and as asked sum, min and max, over one input column (or over the rows)."""

    name: str
    column: str
    """Column that is aggregated; empty when rows are counted."""
    column_type: pa.DataType
    aggregates: tuple[str, ...]
    """Which of sum, min and max are kept."""

    @property
    def shape(self) -> Shape:
        """Return the shape of the accumulator, which leaves out its type."""
        return Shape(self.name, self.aggregates)

    @property
    def number_type(self) -> pa.DataType:
        """What the column is folded as."""
        return pa.float64() if pa.types.is_floating(self.column_type) else pa.int64()

    def descriptor(self) -> RunningAggregateDescriptor:
        """Return the descriptor of the accumulator as keyed state."""
        return RunningAggregateDescriptor(self.name, self.number_type, self.aggregates)

    def numbers(self, batch: pa.RecordBatch) -> pa.Array | Numbers:
        """What is folded for each row of the batch."""
        if not self.column:
            return np.zeros(batch.num_rows, np.int64)
        array = column_named(batch, self.column)
        if pa.types.is_dictionary(array.type) and array.dictionary.null_count:
            array = array.dictionary_decode()  # a null of the dictionary is none of the column, and no value either
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
    """The name of a column's accumulator, or of that which counts rows."""
    return f"column:{column}" if column else ROWS


class AggregatePlan:
    """All aggregates of one operator."""

    def __init__(self, aggregates: Sequence[Aggregate]) -> None:
        self.aggregates = tuple(aggregates)
        names = [aggregate.name for aggregate in aggregates]
        if len(set(names)) != len(names):
            raise ValueError(f"two aggregates have one name: {', '.join(names)}")
        self.shapes: tuple[Shape, ...] = tuple(
            Shape(name_of_accumulator(column), functions) for column, functions in self._needed().items()
        )
        self._sources: tuple[Sequence[Accumulator], list[Accumulator]] | None = None
        """The accumulators that results were last made of, and each aggregate's among them."""

    def accumulators(self, schema: pa.Schema) -> tuple[Accumulator, ...]:
        """What is needed for input of this schema. Raises KeyError or TypeError that names the column."""
        for aggregate in self.aggregates:
            if aggregate.column:
                _check_type(aggregate, schema)
        return tuple(
            Accumulator(
                shape.name,
                shape.column,
                schema.field(shape.column).type if shape.column and shape.aggregates else pa.int64(),
                shape.aggregates,
            )
            for shape in self.shapes
        )

    def _needed(self) -> dict[str, tuple[str, ...]]:
        """Which of sum, min and max are needed, by column."""
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

    def start_from(self, known: Sequence[Shape], *, drop: bool) -> None:
        """Go on with the accumulators of a snapshot: what is not among them starts empty, beside them. StateError, by
        column, for what is gone, unless it may be dropped."""
        shapes: list[Shape] = []
        for column, functions in self._needed().items():
            of_column = [shape for shape in known if shape.column == column]
            counted = any(a.function == "count" and a.column == column for a in self.aggregates)
            kept = [Shape(one.name, tuple(f for f in one.aggregates if f in functions)) for one in of_column]
            kept = [one for number, one in enumerate(kept) if one.aggregates or (counted and not number)]
            held = {function for one in kept for function in one.aggregates}
            missing = tuple(function for function in functions if function not in held)
            shapes += kept
            if missing or not kept:
                taken = {one.name for one in known}
                name = name_of_accumulator(column)
                number = 0
                while name in taken:
                    number += 1
                    name = f"added-{number}:{column}"
                shapes.append(Shape(name, missing))
        if not drop:
            self._check_nothing_is_gone(known, shapes)
        self.shapes = tuple(shapes)
        self._sources = None

    def _check_nothing_is_gone(self, known: Iterable[Shape], shapes: Iterable[Shape]) -> None:
        kept = {one.name: one.aggregates for one in shapes}
        for one in known:
            gone = [function for function in one.aggregates if function not in kept.get(one.name, ())]
            if one.name not in kept and not gone:
                gone = ["count"]
            if gone:
                of = f"column {one.column!r}: {', '.join(gone)} of it is" if one.column else "the count of rows is"
                raise StateError(
                    f"{of} in the snapshot and not in the job any more: ask for it again, or allow that it is dropped "
                    f"({DROP_STATE_COLUMNS.key} = true, --drop-state-columns)"
                )

    def where(self, aggregate: Aggregate) -> str:
        """The accumulator that an aggregate's result comes from."""
        needed = "sum" if aggregate.function == "mean" else aggregate.function
        of_column = (shape for shape in self.shapes if shape.column == aggregate.column)
        return next(shape.name for shape in of_column if needed == "count" or needed in shape.aggregates)

    def results(
        self,
        accumulators: Sequence[Accumulator],
        counts_of: Callable[[str], Numbers],
        totals_of: Callable[[str, str], Numbers],
    ) -> list[pa.Array]:
        """A column per aggregate. `counts_of(accumulator)` and `totals_of(accumulator, 'sum')` give one value per
        output row."""
        if self._sources is None or self._sources[0] is not accumulators:
            by_name = {accumulator.name: accumulator for accumulator in accumulators}
            self._sources = accumulators, [by_name[self.where(aggregate)] for aggregate in self.aggregates]
        valid: dict[str, pa.Buffer | None] = {}
        columns = []
        for aggregate, accumulator in zip(self.aggregates, self._sources[1], strict=True):
            counts = counts_of(accumulator.name)
            if aggregate.function == "count":
                columns.append(fixed_array(counts, None, _COUNT))
                continue
            if accumulator.name not in valid:
                has_none = np.count_nonzero(counts) < len(counts)
                valid[accumulator.name] = bitmap_of(counts > 0) if has_none else None
            columns.append(_result(aggregate.function, accumulator, counts, totals_of, valid[accumulator.name]))
        return columns

    def result_fields(self, accumulators: Sequence[Accumulator]) -> list[pa.Field]:
        """Names and types of the results."""
        by_name = {accumulator.name: accumulator for accumulator in accumulators}
        return [pa.field(a.name, _result_type(a.function, by_name[self.where(a)])) for a in self.aggregates]


def check_widens(column: str, written: pa.DataType, declared: pa.DataType) -> None:
    """StateError unless accumulators over a column of the one type go on over the other: all integers are folded as
    int64, all floats as float64; what is temporal keeps its unit."""
    if written == declared:
        return
    numbers = [pa.types.is_integer, pa.types.is_floating]
    if not any(alike(written) and alike(declared) for alike in numbers) or not widens(written, declared):
        raise StateError(
            f"column {column!r} is {written} in the snapshot and {declared} in the job, which what was accumulated does not become: cast "
            "it to what it was before it is aggregated, or give the operator another uid to start it without state"
        )


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
