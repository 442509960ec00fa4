"""Short names for aggregates: `aggregate(flights=sl.count(), delay=sl.mean("dep_delay"))`; the keyword is the output
column.

What is aggregated is a column or an expression: `sl.sum(sl.col("price") * sl.col("pieces"))`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from snapline.dataflow.api.batch_aggregates import (
    AnyAggregate,
    BatchAggregateFunction,
    HeldAggregate,
    OwnAggregate,
    columns_of,
)
from snapline.dataflow.api.windows import Aggregate
from snapline.dataflow.errors import InvalidArgument
from snapline.expressions.expression import Expr

if TYPE_CHECKING:
    import pyarrow as pa


COMPUTED = "__of_{}"
"""Column of an aggregate over an expression, by the name of the result."""
_BEGIN_OF_COMPUTED = COMPUTED.format("")


@dataclass(frozen=True)
class AggregateOfExpression:
    """An aggregate over the values of expressions; they become columns before the keys are hashed."""

    build: Callable[..., AnyAggregate]
    """Makes the aggregate over columns of these names."""
    inputs: tuple[str | Expr, ...]


AggregateToDo: TypeAlias = Aggregate | HeldAggregate | OwnAggregate | AggregateOfExpression
"""What `aggregate` and `running_aggregate` take: an aggregate over columns, or over expressions."""


def count(column: str | Expr = "") -> Aggregate | AggregateOfExpression:
    """Number of rows, or of values that are not null in `column`.

    >>> orders.key_by("shop").running_aggregate(orders=sl.count(), with_coupon=sl.count("coupon")).uid("orders").node.uid
    'orders'
    """
    return _aggregate("count", column)


def sum(column: str | Expr) -> Aggregate | AggregateOfExpression:  # noqa: A001 - the name that users know
    """Sum of the values; int64 for integers, float64 for floats, and exact for decimals: a decimal of 38 digits, null
    for a sum with more.

    >>> sl.sum("cents")
    Aggregate(name='sum', function='sum', column='cents')
    """
    return _aggregate("sum", column)


def min(column: str | Expr) -> Aggregate | AggregateOfExpression:  # noqa: A001 - the name that users know
    """Smallest value of a column of numbers, times, booleans, texts or bytes (in the order of their bytes), of the type
    of the column; nulls are skipped.

    >>> _ = orders.key_by("shop").running_aggregate(cheapest=sl.min("cents"))
    """
    return _aggregate("min", column)


def max(column: str | Expr) -> Aggregate | AggregateOfExpression:  # noqa: A001 - the name that users know
    """Largest value of a column of numbers, times, booleans, texts or bytes (in the order of their bytes), of the type
    of the column; nulls are skipped.

    >>> _ = orders.key_by("shop").running_aggregate(dearest=sl.max("cents"))
    """
    return _aggregate("max", column)


def mean(column: str | Expr) -> Aggregate | AggregateOfExpression:
    """Arithmetic mean of a column of numbers, float64; nulls are skipped.

    >>> _ = orders.key_by("shop").running_aggregate(average=sl.mean("cents"))
    """
    return _aggregate("mean", column)


def count_distinct(column: str | Expr) -> AggregateToDo:
    """Number of different values that are not null, exactly: each of them is kept once. `approx_count_distinct` needs
    less room.

    >>> minutes = orders.key_by("shop").window(sl.TumblingEventTimeWindows(60_000))
    >>> minutes.aggregate(uid="customers", customers=sl.count_distinct("customer")).schema.names
    ['shop', 'window_start', 'window_end', 'customers']
    """
    return _held("count_distinct", column)


def approx_count_distinct(column: str | Expr) -> AggregateToDo:
    """Number of different values that are not null, from a sketch (HyperLogLog of `datasketches`) of about 4 KB: the
    relative error is below 3.3 % in 95 of 100 cases, and none to speak of up to some hundred values. Needs the extra
    `sketches`.

    >>> minutes = orders.key_by("shop").window(sl.TumblingEventTimeWindows(60_000))
    >>> _ = minutes.aggregate(uid="customers", customers=sl.approx_count_distinct("customer"))
    """
    return _held("approx_count_distinct", column)


def quantile(column: str | Expr, quantile: float) -> AggregateToDo:
    """The value below which so much of the numbers lies (0.5: the median), between two neighbours in proportion,
    float64. Exact: all values are kept until the window is over. Raises InvalidArgument for less than 0 or more than 1.

    >>> minutes = orders.key_by("shop").window(sl.TumblingEventTimeWindows(60_000))
    >>> _ = minutes.aggregate(uid="prices", median=sl.quantile("cents", 0.5), dear=sl.quantile("cents", 0.99))
    """
    return _held("quantile", column, parameter=quantile)


def median(column: str | Expr) -> AggregateToDo:
    """The middle of the numbers, float64: `quantile(column, 0.5)`.

    >>> _ = orders.key_by("shop").window(sl.TumblingEventTimeWindows(60_000)).aggregate(uid="w", price=sl.median("cents"))
    """
    return _held("quantile", column, parameter=0.5)


def approx_quantile(column: str | Expr, quantile: float) -> AggregateToDo:
    """A quantile from a sketch (KLL of `datasketches`) of a few KB: one of the values, whose rank is off by at most
    1.4 % in 99 of 100 cases, and exact up to some hundred values. The sketch draws random numbers, so that beyond that
    two runs may differ. Needs the extra `sketches`.

    >>> minutes = orders.key_by("shop").window(sl.TumblingEventTimeWindows(60_000))
    >>> _ = minutes.aggregate(uid="prices", dear=sl.approx_quantile("cents", 0.99))
    """
    return _held("approx_quantile", column, parameter=quantile)


def first(column: str | Expr, by: str | Expr = "") -> AggregateToDo:
    """The first value that is not null: in the order of arrival, or, with `by`, the one with the least value there.
    With `by` it is the same in every run, however rows of several splits mix.

    >>> minutes = orders.key_by("shop").window(sl.TumblingEventTimeWindows(60_000))
    >>> _ = minutes.aggregate(uid="opening", opening=sl.first("cents", by="at"))
    """
    return _held("first", column, by)


def last(column: str | Expr, by: str | Expr = "") -> AggregateToDo:
    """The last value that is not null: in the order of arrival, or, with `by`, the one with the greatest value there.

    >>> minutes = orders.key_by("shop").window(sl.TumblingEventTimeWindows(60_000))
    >>> _ = minutes.aggregate(uid="closing", closing=sl.last("cents", by="at"))
    """
    return _held("last", column, by)


def top_n(column: str | Expr, n: int, by: str | Expr = "") -> AggregateToDo:
    """A list of the `n` greatest values, greatest first; with `by` the values of the rows with the greatest values
    there. Of equal ones those that came first stay. Raises InvalidArgument for less than one.

    >>> minutes = orders.key_by("shop").window(sl.TumblingEventTimeWindows(60_000))
    >>> _ = minutes.aggregate(uid="best", dearest=sl.top_n("cents", 3), buyers=sl.top_n("customer", 3, by="cents"))
    """
    return _held("top_n", column, by, n)


def collect_list(column: str | Expr) -> AggregateToDo:
    """A list of all values that are not null, in the order of arrival.

    >>> minutes = orders.key_by("shop").window(sl.TumblingEventTimeWindows(60_000))
    >>> minutes.aggregate(uid="baskets", cents=sl.collect_list("cents")).schema.field("cents").type
    ListType(list<item: int64>)
    """
    return _held("collect_list", column)


def batch_aggregate(function: BatchAggregateFunction, *columns: str | Expr) -> AggregateToDo:
    """An aggregate of your own over whole columns: see BatchAggregateFunction, which has an example.

    >>> sl.batch_aggregate("sum", "cents")
    Traceback (most recent call last):
    snapline.dataflow.errors.InvalidArgument: batch_aggregate takes a BatchAggregateFunction, got 'sum'
    """

    def build(*names: str) -> OwnAggregate:
        return OwnAggregate(type(function).__name__, function, names)

    build(*(column if isinstance(column, str) else "computed" for column in columns))  # says what is wrong at once
    return _over(build, columns)


def _held(function: str, column: str | Expr, by: str | Expr = "", parameter: float = 0) -> AggregateToDo:
    def build(*names: str) -> HeldAggregate:
        return HeldAggregate(function, function, names[0], names[1] if len(names) > 1 else "", parameter)

    inputs = (column,) if isinstance(by, str) and not by else (column, by)
    build(*(one if isinstance(one, str) else "computed" for one in inputs))
    return _over(build, inputs)


def _aggregate(function: str, of: str | Expr) -> Aggregate | AggregateOfExpression:
    return _over(lambda *names: Aggregate(function, function, *names), (of,))  # type: ignore[return-value]


def _over(build: Callable[..., AnyAggregate], inputs: tuple[str | Expr, ...]) -> AggregateToDo:
    """The aggregate itself when all that it reads are columns."""
    named = tuple(one.name if isinstance(one, Expr) and one.operation == "col" else one for one in inputs)
    for one in named:
        if not isinstance(one, (str, Expr)):
            raise InvalidArgument(f"an aggregate is over the name of a column or an expression, not over {one!r}")
    return AggregateOfExpression(build, named) if any(isinstance(one, Expr) for one in named) else build(*named)


def with_computed(aggregates: Mapping[str, object]) -> tuple[dict[str, Expr], dict[str, Any]]:
    """A column for each expression that is aggregated, and all aggregates over columns."""
    computed: dict[str, Expr] = {}
    plain: dict[str, Any] = {}
    for name, aggregate in aggregates.items():
        if isinstance(aggregate, AggregateOfExpression):
            columns = []
            for number, one in enumerate(aggregate.inputs):
                column = one if isinstance(one, str) else COMPUTED.format(f"{name}_{number}" if number else name)
                if isinstance(one, Expr):
                    while column in computed:
                        column += "_"
                    computed[column] = one
                columns.append(column)
            plain[name] = aggregate.build(*columns)
        else:
            plain[name] = aggregate
    return computed, plain


@dataclass(frozen=True)
class WithoutComputed:
    """Takes the columns that were computed for aggregates off rows that were not aggregated; a function for
    `map_batches`."""

    columns: tuple[str, ...]

    @classmethod
    def of(cls, aggregates: Iterable[AnyAggregate]) -> WithoutComputed:
        """The columns among what these aggregates read."""
        read = (column for one in aggregates for column in columns_of(one))
        return cls(tuple(dict.fromkeys(column for column in read if column.startswith(_BEGIN_OF_COMPUTED))))

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The rows as they came to the aggregates' stream."""
        return batch.select(self.left_of(batch.schema.names))

    def left_of(self, names: Iterable[str]) -> list[str]:
        """Names of columns without those that were computed."""
        return [name for name in names if name not in self.columns]
