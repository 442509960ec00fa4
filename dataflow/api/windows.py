"""Windows and aggregates, as the user writes them.

Mirrors Flink's TumblingEventTimeWindows, SlidingEventTimeWindows, EventTimeSessionWindows,
their forms of processing time, GlobalWindows with CountTrigger, and AggregateFunction; aggregates are named functions
over columns, so that the engine can compute them on whole batches. All times are whole milliseconds.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from snapline.dataflow.api.triggers import (
    EARLY_TRIGGERS,
    EarlyTrigger,
    PurgingTrigger,
)
from snapline.dataflow.api.triggers import CountTrigger as CountTrigger  # noqa: PLC0414 - jobs of before look for it here
from snapline.dataflow.arguments import check_milliseconds
from snapline.dataflow.columnar.arrow_columns import Int64Array
from snapline.dataflow.errors import InvalidArgument

AGGREGATE_FUNCTIONS = ("count", "sum", "min", "max", "mean")


@dataclass(frozen=True, slots=True)
class Aggregate:
    """`function` over `column`, written to the output column `name`.

    Nulls are skipped, as in SQL; the sum, min, max and mean of no values is null, and `count` with an empty `column`
    counts rows. Sums of integers are int64, of floats float64; means are float64.

    >>> sl.Aggregate("total", "sum", "cents") == sl.Aggregate("total", "sum", column="cents")
    True
    >>> sl.Aggregate("total", "median", "cents")
    Traceback (most recent call last):
    snapline.dataflow.errors.InvalidArgument: unknown aggregate 'median' for 'total': one of count, sum, min, max, mean
    """

    name: str
    function: str
    column: str = ""

    def __post_init__(self) -> None:
        """Raises InvalidArgument for an unknown function or a missing column."""
        if self.function not in AGGREGATE_FUNCTIONS:
            raise InvalidArgument(
                f"unknown aggregate {self.function!r} for {self.name!r}: one of {', '.join(AGGREGATE_FUNCTIONS)}"
            )
        if self.function != "count" and not self.column:
            raise InvalidArgument(f"aggregate {self.function!r} for {self.name!r} needs a column")


@dataclass(frozen=True, slots=True)
class RowsBy:
    """Which rows of a window stay: those with the greatest (or least) value of a column, and which of equal ones."""

    column: str
    largest: bool
    ties: str = "first"
    """`first` and `last` keep one row, `all` keeps every row with that value."""

    def __post_init__(self) -> None:
        """Raises InvalidArgument for another word than first, last or all, and for no name of a column."""
        if not isinstance(self.column, str):
            raise InvalidArgument(f"rows are chosen by the name of a column, got {self.column!r}")
        if self.ties not in ("first", "last", "all"):
            raise InvalidArgument(f"ties are 'first', 'last' or 'all', not {self.ties!r}")


@dataclass(frozen=True, slots=True)
class TumblingEventTimeWindows:
    """Windows [n * size + offset, (n + 1) * size + offset) of event time, milliseconds. Raises InvalidArgument for a
    size that is not positive.

    >>> sl.TumblingEventTimeWindows(86_400_000)  # a day, of UTC
    TumblingEventTimeWindows(size_ms=86400000, offset_ms=0)
    """

    size_ms: int
    offset_ms: int = 0

    def __post_init__(self) -> None:
        """Raises InvalidArgument for a size that is not positive or no integer."""
        check_milliseconds("a window's size", self.size_ms)
        check_milliseconds("a window's offset", self.offset_ms, least=None)


@dataclass(frozen=True, slots=True)
class SlidingEventTimeWindows:
    """Windows [n * slide + offset, n * slide + offset + size) of event time; a row belongs to size / slide of them.
    Rows are folded into panes of the greatest common divisor of size and slide, once each.

    >>> _ = orders.key_by("shop").window(sl.SlidingEventTimeWindows(60_000, 10_000)).aggregate(uid="w", n=sl.count())
    """

    size_ms: int
    slide_ms: int
    offset_ms: int = 0

    def __post_init__(self) -> None:
        """Raises InvalidArgument for a size or slide that is not positive or no integer."""
        check_milliseconds("a window's size", self.size_ms)
        check_milliseconds("a window's slide", self.slide_ms)
        check_milliseconds("a window's offset", self.offset_ms, least=None)


@dataclass(frozen=True, slots=True)
class TumblingProcessingTimeWindows:
    """Windows of the task's clock: a row belongs to the one in which it arrives. Fired by the clock, and at the end of
    the input; results depend on when rows come.

    >>> _ = orders.key_by("shop").window(sl.TumblingProcessingTimeWindows(1_000)).aggregate(uid="w", n=sl.count())
    """

    size_ms: int
    offset_ms: int = 0

    def __post_init__(self) -> None:
        """Raises InvalidArgument for a size that is not positive or no integer."""
        check_milliseconds("a window's size", self.size_ms)
        check_milliseconds("a window's offset", self.offset_ms, least=None)


@dataclass(frozen=True, slots=True)
class SlidingProcessingTimeWindows:
    """Windows [n * slide + offset, n * slide + offset + size) of the task's clock; a row belongs to all in which it
    arrives. Fired by the clock, and at the end of the input. Raises InvalidArgument for a size or slide that is not
    positive.

    >>> windows = orders.key_by("shop").window(sl.SlidingProcessingTimeWindows(10_000, 1_000))
    >>> _ = windows.aggregate(uid="w", n=sl.count())
    """

    size_ms: int
    slide_ms: int
    offset_ms: int = 0

    def __post_init__(self) -> None:
        """Raises InvalidArgument for a size or slide that is not positive or no integer."""
        check_milliseconds("a window's size", self.size_ms)
        check_milliseconds("a window's slide", self.slide_ms)
        check_milliseconds("a window's offset", self.offset_ms, least=None)


@dataclass(frozen=True, slots=True)
class EventTimeSessionWindows:
    """A key's rows until `gap_ms` of event time pass without one. A row that closes the gap between two makes them one.

    Rows that are just the gap apart belong to two sessions. In Flink, windows that touch are merged if the first has
    not fired when the second begins, so that such a result depends on where watermarks fall between rows.

    >>> sessions = orders.key_by("customer").window(sl.EventTimeSessionWindows(30 * 60_000))
    >>> _ = sessions.aggregate(uid="visits", n=sl.count())
    """

    gap_ms: int

    def __post_init__(self) -> None:
        """Raises InvalidArgument for a gap that is not positive, InvalidArgument for what is no integer."""
        check_milliseconds("a session's gap", self.gap_ms)


@dataclass(frozen=True, slots=True)
class ProcessingTimeSessionWindows:
    """A key's rows until `gap_ms` of the task's clock pass without one. Fired by the clock, and at the end of the
    input. Raises InvalidArgument for a gap that is not positive.

    >>> sessions = orders.key_by("customer").window(sl.ProcessingTimeSessionWindows(30_000))
    >>> _ = sessions.aggregate(uid="visits", n=sl.count())
    """

    gap_ms: int

    def __post_init__(self) -> None:
        """Raises InvalidArgument for a gap that is not positive or no integer."""
        check_milliseconds("a session's gap", self.gap_ms)


@dataclass(frozen=True, slots=True)
class GlobalWindows:
    """One window per key, without an end: it fires by its trigger only, and its rest never comes out. A PurgingTrigger
    around a CountTrigger is the same as `CountTrigger(n, purge=True)`.

    >>> _ = orders.key_by("shop").window(sl.GlobalWindows(sl.CountTrigger(100))).aggregate(uid="w", n=sl.count())
    """

    trigger: EarlyTrigger

    def __post_init__(self) -> None:
        """Raises InvalidArgument without a trigger."""
        if isinstance(self.trigger, PurgingTrigger) and isinstance(self.trigger.trigger, CountTrigger):
            object.__setattr__(self, "trigger", CountTrigger(self.trigger.trigger.count, purge=True))
        if not isinstance(self.trigger, (*EARLY_TRIGGERS, PurgingTrigger)):
            raise InvalidArgument(
                f"a global window never fires without a trigger: CountTrigger(n), got {self.trigger!r}"
            )


@dataclass(frozen=True, slots=True)
class TimeWindow:
    """[start_ms, end_ms) in milliseconds since the epoch, as window functions see it.

    >>> sl.TimeWindow(0, 60_000).end_ms
    60000
    """

    start_ms: int
    end_ms: int


PaneAssigner = (
    TumblingEventTimeWindows | SlidingEventTimeWindows | TumblingProcessingTimeWindows | SlidingProcessingTimeWindows
)
SessionAssigner = EventTimeSessionWindows | ProcessingTimeSessionWindows
WindowAssigner = PaneAssigner | SessionAssigner | GlobalWindows
BY_CLOCK = (TumblingProcessingTimeWindows, SlidingProcessingTimeWindows, ProcessingTimeSessionWindows)
"""Windows of the task's clock, which need no event time."""


@dataclass(frozen=True, slots=True)
class PaneGeometry:
    """Windows that begin every `slide_ms`, cut into panes that all of them are made of."""

    size_ms: int
    slide_ms: int
    offset_ms: int
    pane_ms: int

    @classmethod
    def of(cls, assigner: PaneAssigner) -> PaneGeometry:
        """The geometry of an assigner."""
        slide_ms = assigner.size_ms
        if isinstance(assigner, (SlidingEventTimeWindows, SlidingProcessingTimeWindows)):
            slide_ms = assigner.slide_ms
        pane_ms = math.gcd(assigner.size_ms, slide_ms)
        return cls(assigner.size_ms, slide_ms, assigner.offset_ms, pane_ms)

    @property
    def panes_per_window(self) -> int:
        """Return how many panes a window has; at least one."""
        return self.size_ms // self.pane_ms

    @property
    def has_gaps(self) -> bool:
        """Some times belong to no window."""
        return self.slide_ms > self.size_ms

    def last_window(self, pane_start_ms: int) -> int:
        """Start of the last window that begins at or before the pane."""
        return pane_start_ms - (pane_start_ms - self.offset_ms) % self.slide_ms

    def last_windows(self, times_ms: Int64Array) -> Int64Array:
        """The same for many panes, or any other times."""
        return times_ms - (times_ms - self.offset_ms) % self.slide_ms

    def windows_of(self, pane_start_ms: int) -> range:
        """Starts of the windows that hold the pane, last first."""
        return range(self.last_window(pane_start_ms), pane_start_ms - self.size_ms, -self.slide_ms)

    def panes_of(self, window_start_ms: int) -> range:
        """Starts of the panes of a window."""
        return range(window_start_ms, window_start_ms + self.size_ms, self.pane_ms)
