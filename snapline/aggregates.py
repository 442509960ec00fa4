"""Short names for aggregates: `aggregate(flights=sl.count(), delay=sl.mean("dep_delay"))`; the keyword is the output column."""

from __future__ import annotations

from snapline.dataflow.api.windows import Aggregate


def count(column: str = "") -> Aggregate:
    """Number of rows, or of values that are not null in `column`."""
    return Aggregate("count", "count", column)


def sum(column: str) -> Aggregate:  # noqa: A001 - the name that users know
    """Sum of the values; int64 for integers, float64 for floats."""
    return Aggregate("sum", "sum", column)


def min(column: str) -> Aggregate:  # noqa: A001 - the name that users know
    """Smallest value."""
    return Aggregate("min", "min", column)


def max(column: str) -> Aggregate:  # noqa: A001 - the name that users know
    """Largest value."""
    return Aggregate("max", "max", column)


def mean(column: str) -> Aggregate:
    """Arithmetic mean, float64."""
    return Aggregate("mean", "mean", column)
