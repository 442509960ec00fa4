"""Windows and aggregates, as the user writes them.

Mirrors Flink's TumblingEventTimeWindows and AggregateFunction; aggregates are named functions over columns, so that the
engine can compute them on whole batches.
"""

from __future__ import annotations

from dataclasses import dataclass

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
