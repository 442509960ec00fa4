"""Short names for aggregates: `aggregate(flights=sl.count(), delay=sl.mean("dep_delay"))`; the keyword is the output
column.

What is aggregated is a column or an expression: `sl.sum(sl.col("price") * sl.col("pieces"))`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from snapline.dataflow.api.windows import Aggregate
from snapline.expressions.expression import Expr

if TYPE_CHECKING:
    from snapline.stream import KeyedStream

COMPUTED = "__of_{}"
"""Column of an aggregate over an expression, by the name of the result."""


@dataclass(frozen=True)
class AggregateOfExpression:
    """A function over the values of an expression; they become a column before the keys are hashed."""

    function: str
    expression: Expr


def count(column: str | Expr = "") -> Aggregate | AggregateOfExpression:
    """Number of rows, or of values that are not null in `column`.

    >>> orders.key_by("shop").running_aggregate(orders=sl.count(), with_coupon=sl.count("coupon")).uid("orders").node.uid
    'orders'
    """
    return _aggregate("count", column)


def sum(column: str | Expr) -> Aggregate | AggregateOfExpression:  # noqa: A001 - the name that users know
    """Sum of the values; int64 for integers, float64 for floats.

    >>> sl.sum("cents")
    Aggregate(name='sum', function='sum', column='cents')
    """
    return _aggregate("sum", column)


def min(column: str | Expr) -> Aggregate | AggregateOfExpression:  # noqa: A001 - the name that users know
    """Smallest value of a column of numbers, times or booleans, of the type of the column; nulls are skipped.

    >>> _ = orders.key_by("shop").running_aggregate(cheapest=sl.min("cents"))
    """
    return _aggregate("min", column)


def max(column: str | Expr) -> Aggregate | AggregateOfExpression:  # noqa: A001 - the name that users know
    """Largest value of a column of numbers, times or booleans, of the type of the column; nulls are skipped.

    >>> _ = orders.key_by("shop").running_aggregate(dearest=sl.max("cents"))
    """
    return _aggregate("max", column)


def mean(column: str | Expr) -> Aggregate | AggregateOfExpression:
    """Arithmetic mean of a column of numbers, float64; nulls are skipped.

    >>> _ = orders.key_by("shop").running_aggregate(average=sl.mean("cents"))
    """
    return _aggregate("mean", column)


def _aggregate(function: str, of: str | Expr) -> Aggregate | AggregateOfExpression:
    if isinstance(of, Expr):
        return Aggregate(function, function, of.name) if of.operation == "col" else AggregateOfExpression(function, of)
    return Aggregate(function, function, of)


def with_computed(keyed: KeyedStream, aggregates: Mapping[str, object]) -> tuple[KeyedStream, dict[str, object]]:
    """A stream with a column for each aggregate over an expression (itself where there is none), and all aggregates
    over columns."""
    computed: dict[str, object] = {}
    plain: dict[str, object] = {}
    for name, aggregate in aggregates.items():
        if isinstance(aggregate, AggregateOfExpression):
            column = COMPUTED.format(name)
            computed[column] = aggregate.expression
            plain[name] = Aggregate(name, aggregate.function, column)
        else:
            plain[name] = aggregate
    return (replace(keyed, stream=keyed.stream.with_columns(**computed)) if computed else keyed), plain
