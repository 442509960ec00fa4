"""Short names for aggregates: `aggregate(flights=sl.count(), delay=sl.mean("dep_delay"))`; the keyword is the output column."""

from __future__ import annotations

from snapline.dataflow.api.windows import Aggregate


def count(column: str = "") -> Aggregate:
    """Number of rows, or of values that are not null in `column`.

    >>> orders.key_by("shop").running_aggregate(orders=sl.count(), with_coupon=sl.count("coupon")).uid("orders").node.uid
    'orders'
    """
    return Aggregate("count", "count", column)


def sum(column: str) -> Aggregate:  # noqa: A001 - the name that users know
    """Sum of the values; int64 for integers, float64 for floats.

    >>> sl.sum("cents")
    Aggregate(name='sum', function='sum', column='cents')
    """
    return Aggregate("sum", "sum", column)


def min(column: str) -> Aggregate:  # noqa: A001 - the name that users know
    """Smallest value of a column of numbers, times or booleans, of the type of the column; nulls are skipped.

    >>> _ = orders.key_by("shop").running_aggregate(cheapest=sl.min("cents"))
    """
    return Aggregate("min", "min", column)


def max(column: str) -> Aggregate:  # noqa: A001 - the name that users know
    """Largest value of a column of numbers, times or booleans, of the type of the column; nulls are skipped.

    >>> _ = orders.key_by("shop").running_aggregate(dearest=sl.max("cents"))
    """
    return Aggregate("max", "max", column)


def mean(column: str) -> Aggregate:
    """Arithmetic mean of a column of numbers, float64; nulls are skipped.

    >>> _ = orders.key_by("shop").running_aggregate(average=sl.mean("cents"))
    """
    return Aggregate("mean", "mean", column)
