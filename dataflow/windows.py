"""Windows and aggregates, as the user writes them.

Mirrors Flink's TumblingEventTimeWindows and AggregateFunction; aggregates are named functions over columns, so that the
engine can compute them on whole batches.
"""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

AGGREGATE_FUNCTIONS = ("count", "sum", "min", "max", "mean")


@dataclass(frozen=True, slots=True)
class Aggregate:
    """`function` over `column`, written to the output column `name`.

    Nulls are skipped, as in SQL; the sum, min, max and mean of no values is null, and `count` with an empty `column` counts
    rows. Sums of integers are int64, of floats float64; means are float64.
    """

    name: str
    function: str
    column: str = ""

    def __post_init__(self) -> None:
        """Raises ValueError for an unknown function or a missing column."""
        if self.function not in AGGREGATE_FUNCTIONS:
            raise ValueError(
                f"unknown aggregate {self.function!r} for {self.name!r}: one of {', '.join(AGGREGATE_FUNCTIONS)}"
            )
        if self.function != "count" and not self.column:
            raise ValueError(f"aggregate {self.function!r} for {self.name!r} needs a column")


def check_aggregate_type(aggregate: Aggregate, data_type: pa.DataType) -> None:
    """Raises TypeError when the aggregate cannot be taken over a column of this type."""
    numeric = pa.types.is_integer(data_type) or pa.types.is_floating(data_type)
    temporal = pa.types.is_temporal(data_type) and not pa.types.is_interval(data_type)
    by_order = aggregate.function in {"min", "max"}
    if aggregate.function == "count" or numeric or (by_order and (temporal or pa.types.is_boolean(data_type))):
        return
    raise TypeError(
        f"{aggregate.function}() as {aggregate.name!r}: column {aggregate.column!r} is {data_type}, which cannot be "
        f"{'ordered' if by_order else 'added up'} here; cast it to an integer or a float before"
    )


@dataclass(frozen=True, slots=True)
class TumblingEventTimeWindows:
    """Windows [n * size + offset, (n + 1) * size + offset) of event time, milliseconds."""

    size_ms: int
    offset_ms: int = 0

    def __post_init__(self) -> None:
        """Raises ValueError for a size that is not positive."""
        if self.size_ms <= 0:
            raise ValueError(f"a window needs a positive size, got {self.size_ms} ms")


WindowAssigner = TumblingEventTimeWindows
