"""Aggregates that keep more than a count and a number: values, sketches, and what a user's own function accumulates.

`HeldAggregate` names one of Snapline's; `OwnAggregate` carries a `BatchAggregateFunction`, which folds whole columns.
Flink's AggregateFunction (snapline.dataflow.api.state) is called row by row; this one is called once a batch, with one
accumulator for each key and window of it. `snapline.aggregates` has the short names.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from snapline.dataflow.api.function_contexts import RuntimeContext
from snapline.dataflow.api.windows import Aggregate
from snapline.dataflow.errors import InvalidArgument

HELD_FUNCTIONS = ("collect_list", "count_distinct", "quantile", "first", "last", "top_n", "min", "max", "sum", "mean")
"""Functions that keep values: all of them, the different ones, or the best (`min` and `max` where no number can stand
for them); `sum` and `mean` are those of decimals."""
SKETCH_FUNCTIONS = ("approx_count_distinct", "approx_quantile")
"""Functions that keep a sketch of `datasketches`, whose size is bounded whatever comes."""

Groups: TypeAlias = npt.NDArray[np.int32]


class BatchAggregateFunction(ABC):
    """An aggregate of your own over whole batches; `sl.batch_aggregate(function, *columns)` uses it.

    `accumulator` says the columns of an accumulator. What nothing was added to yet has null in all of them. Both `add`
    and `merge` get the accumulators of all keys and windows that a batch has rows of, one row each, and for each row of
    the batch (or other accumulator) the number of its own; they return as many accumulators in the same order. State of
    your own does not belong into the object: only accumulators are in checkpoints.

    >>> class Weighted(sl.BatchAggregateFunction):
    ...     accumulator = pa.schema([("total", pa.float64()), ("weight", pa.float64())])
    ...     def open(self, context):
    ...         self.results = context.metrics.counter("results")
    ...     def result_type(self, *types):
    ...         return pa.float64()
    ...     def add(self, accumulators, groups, values, weights):
    ...         sums = np.bincount(groups, np.multiply(values, weights), len(accumulators))
    ...         ours = pa.array(np.bincount(groups, weights, len(accumulators)))
    ...         new = pa.RecordBatch.from_arrays([pa.array(sums), ours], schema=self.accumulator)
    ...         return self.merge(accumulators, np.arange(len(new), dtype=np.int32), new)
    ...     def merge(self, accumulators, groups, others):
    ...         def both(name):
    ...             more = np.bincount(groups, others[name].fill_null(0), len(accumulators))
    ...             return pc.add(accumulators[name].fill_null(0), pa.array(more))
    ...         return pa.RecordBatch.from_arrays([both("total"), both("weight")], schema=self.accumulator)
    ...     def result(self, accumulators):
    ...         return pc.divide(accumulators["total"], accumulators["weight"])
    >>> minutes = orders.key_by("shop").window(sl.TumblingEventTimeWindows(60_000))
    >>> minutes.aggregate(uid="w", price=sl.batch_aggregate(Weighted(), "cents", "at")).schema.field("price").type
    DataType(double)
    """

    accumulator: pa.Schema

    def open(self, context: RuntimeContext) -> None:
        """Called once in each subtask before anything else; `context.metrics` has counters, gauges and histograms."""

    @abstractmethod
    def result_type(self, *input_types: pa.DataType) -> pa.DataType:
        """The type of the result over columns of these types. Raises TypeError for types that it does not take."""

    @abstractmethod
    def add(self, accumulators: pa.RecordBatch, groups: Groups, *columns: pa.Array) -> pa.RecordBatch:
        """Fold the rows of the columns in; row i belongs to accumulator groups[i]."""

    @abstractmethod
    def merge(self, accumulators: pa.RecordBatch, groups: Groups, others: pa.RecordBatch) -> pa.RecordBatch:
        """Fold other accumulators in; others[i] belongs to accumulator groups[i]."""

    @abstractmethod
    def result(self, accumulators: pa.RecordBatch) -> pa.Array:
        """Return one result for each accumulator."""


@dataclass(frozen=True, slots=True)
class HeldAggregate:
    """One of Snapline's aggregates that keep values or a sketch, under the name of its result."""

    name: str
    function: str
    column: str
    by: str = ""
    """What decides which values stay; empty: the order of arrival, and for `top_n` the values themselves."""
    parameter: float = 0
    """Which quantile, or how many values."""

    def __post_init__(self) -> None:
        """Raises InvalidArgument for a function that is not known, and a quantile or a number that there cannot be."""
        if self.function not in (*HELD_FUNCTIONS, *SKETCH_FUNCTIONS):
            raise InvalidArgument(f"unknown aggregate {self.function!r} for {self.name!r}")
        if not isinstance(self.column, str) or not self.column:
            raise InvalidArgument(f"{self.function}() needs the name of a column, got {self.column!r}")
        if self.function.endswith("quantile") and not (_is_number(self.parameter) and 0 <= self.parameter <= 1):
            raise InvalidArgument(
                f"{self.function}({self.column!r}) takes a quantile from 0 to 1, got {self.parameter!r}"
            )
        if self.function == "top_n" and not (_is_number(self.parameter) and self.parameter == int(self.parameter) >= 1):
            raise InvalidArgument(
                f"top_n({self.column!r}) takes how many values it keeps, at least 1, got {self.parameter!r}"
            )

    @property
    def columns(self) -> tuple[str, ...]:
        """Return the columns that are read."""
        return (self.column, self.by) if self.by else (self.column,)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


@dataclass(frozen=True, slots=True)
class OwnAggregate:
    """A user's own function over columns, under the name of its result."""

    name: str
    function: BatchAggregateFunction
    columns: tuple[str, ...]

    def __post_init__(self) -> None:
        """Raises InvalidArgument for what is no function over batches, or has no accumulator."""
        if not isinstance(self.function, BatchAggregateFunction):
            raise InvalidArgument(f"batch_aggregate takes a BatchAggregateFunction, got {self.function!r}")
        accumulator = getattr(self.function, "accumulator", None)
        if not isinstance(accumulator, pa.Schema) or not len(accumulator):
            raise InvalidArgument(
                f"{type(self.function).__name__}.accumulator is a pyarrow schema with the columns of an accumulator, got {accumulator!r}"
            )
        if not self.columns:
            raise InvalidArgument(f"batch_aggregate({type(self.function).__name__}()) needs at least one column")


AnyAggregate = Aggregate | HeldAggregate | OwnAggregate


def columns_of(aggregate: AnyAggregate) -> tuple[str, ...]:
    """The columns that an aggregate reads; none for a count of rows."""
    if isinstance(aggregate, Aggregate):
        return (aggregate.column,) if aggregate.column else ()
    return aggregate.columns
