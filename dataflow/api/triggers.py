"""Triggers: when a window says something before it is over, as the user writes them.

A time window always says its result when it ends (Flink's EventTimeTrigger or ProcessingTimeTrigger); a trigger adds
results before that. In Flink `trigger(...)` takes the place of the one at the end, and who wants both writes a class.
Mirrors Flink's CountTrigger, ContinuousEventTimeTrigger, ContinuousProcessingTimeTrigger, ProcessingTimeoutTrigger and
PurgingTrigger. What a window's rows have changed since it fired decides, so that a window without new rows is silent.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from snapline.dataflow.arguments import check_milliseconds
from snapline.dataflow.errors import InvalidArgument

MOST_ROWS = (1 << 63) - 1
"""Rows since a trigger fired are counted in 64 bits."""


@dataclass(frozen=True, slots=True)
class CountTrigger:
    """Fire whenever a key's window has got `count` more rows; with `purge` the window is emptied then.

    A time window looks after each batch, and fires once however many rows came in it; count windows and GlobalWindows
    fire at exactly every `count`-th row.

    >>> sl.CountTrigger(100, purge=True)
    CountTrigger(count=100, purge=True)
    """

    count: int
    purge: bool = False

    def __post_init__(self) -> None:
        """Raises InvalidArgument for a count below 1, or one that no column of counts has room for."""
        if not isinstance(self.count, int) or isinstance(self.count, bool) or self.count < 1:
            raise InvalidArgument(f"a count trigger fires after at least 1 row, got {self.count!r}")
        if self.count > MOST_ROWS:
            raise InvalidArgument(f"a count trigger fires after at most {MOST_ROWS} rows, got {self.count}")


@dataclass(frozen=True, slots=True)
class ContinuousProcessingTimeTrigger:
    """Fire windows that have new rows every `interval_ms` of the task's clock, at whole multiples of it. Raises
    InvalidArgument for an interval that is not positive.

    >>> hours = orders.key_by("shop").window(sl.TumblingEventTimeWindows(3_600_000))
    >>> _ = hours.trigger(sl.ContinuousProcessingTimeTrigger(1_000)).aggregate(uid="hours", n=sl.count())
    """

    interval_ms: int

    def __post_init__(self) -> None:
        """Raises InvalidArgument unless the interval is positive."""
        check_milliseconds("a trigger's interval", self.interval_ms)


@dataclass(frozen=True, slots=True)
class ContinuousEventTimeTrigger:
    """Fire windows that have new rows whenever the watermark passes a multiple of `interval_ms`. Raises InvalidArgument
    for an interval that is not positive.

    >>> days = orders.key_by("shop").window(sl.TumblingEventTimeWindows(86_400_000))
    >>> _ = days.trigger(sl.ContinuousEventTimeTrigger(3_600_000)).aggregate(uid="days", n=sl.count())
    """

    interval_ms: int

    def __post_init__(self) -> None:
        """Raises InvalidArgument unless the interval is positive."""
        check_milliseconds("a trigger's interval", self.interval_ms)


@dataclass(frozen=True, slots=True)
class ProcessingTimeoutTrigger:
    """Fire a window that has new rows when none has come for `timeout_ms` of the task's clock. Raises InvalidArgument
    for a timeout that is not positive.

    >>> days = orders.key_by("shop").window(sl.TumblingEventTimeWindows(86_400_000))
    >>> _ = days.trigger(sl.ProcessingTimeoutTrigger(5_000)).aggregate(uid="days", n=sl.count())
    """

    timeout_ms: int

    def __post_init__(self) -> None:
        """Raises InvalidArgument unless the timeout is positive."""
        check_milliseconds("a trigger's timeout", self.timeout_ms)


@dataclass(frozen=True, slots=True)
class PurgingTrigger:
    """Fire when another trigger does, and empty the window then, so that each row is in one result only. Raises
    InvalidArgument for what is no trigger.

    >>> days = orders.key_by("shop").window(sl.TumblingEventTimeWindows(86_400_000))
    >>> parts = days.trigger(sl.PurgingTrigger(sl.ProcessingTimeoutTrigger(5_000)))
    >>> _ = parts.aggregate(uid="days", n=sl.count())
    """

    trigger: Any

    def __post_init__(self) -> None:
        """Raises InvalidArgument unless there is a trigger inside."""
        if not isinstance(self.trigger, EARLY_TRIGGERS):
            known = ", ".join(kind.__name__ for kind in EARLY_TRIGGERS)
            raise InvalidArgument(f"a PurgingTrigger takes a trigger, one of {known}, got {self.trigger!r}")


EARLY_TRIGGERS = (
    CountTrigger,
    ContinuousProcessingTimeTrigger,
    ContinuousEventTimeTrigger,
    ProcessingTimeoutTrigger,
)
EarlyTrigger = (
    CountTrigger
    | ContinuousProcessingTimeTrigger
    | ContinuousEventTimeTrigger
    | ProcessingTimeoutTrigger
    | PurgingTrigger
)
"""All kinds of triggers that `WindowedStream.trigger` takes."""
