"""Watermark strategies: which column is event time, and how far behind its maximum the watermark runs.

Mirrors Flink's WatermarkStrategy; the timestamp assigner is the name of a column, because rows travel in batches.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import pyarrow as pa

from snapline.dataflow.api.watermark_generators import WatermarkGenerator
from snapline.dataflow.arguments import check_milliseconds
from snapline.dataflow.errors import InvalidArgument, JobDefinitionError


@dataclass(frozen=True, slots=True)
class WatermarkAlignmentParams:
    """Which sources keep step, and how closely (Flink: same name).

    >>> sl.WatermarkStrategy("at").with_watermark_alignment("orders", 60_000).alignment
    WatermarkAlignmentParams(group='orders', max_drift_ms=60000, update_interval_ms=1000)
    """

    group: str
    max_drift_ms: int
    update_interval_ms: int

    def __post_init__(self) -> None:
        """Raises InvalidArgument for an empty name, a negative drift, or an interval that is not positive."""
        if not self.group or not isinstance(self.group, str):
            raise InvalidArgument(f"watermark alignment needs the name of a group, got {self.group!r}")
        check_milliseconds("watermark alignment: max_drift_ms", self.max_drift_ms, least=0)
        check_milliseconds("watermark alignment: update_interval_ms", self.update_interval_ms)


@dataclass(frozen=True, slots=True)
class WatermarkStrategy:
    """Event time lies in `column`: timestamp of any unit (read as UTC) or int64 milliseconds since the epoch.

    >>> sl.WatermarkStrategy.for_monotonous_timestamps("at")
    WatermarkStrategy(column='at', max_out_of_orderness_ms=0, idle_timeout_ms=0, per_split=True, alignment=None)
    >>> late = sl.WatermarkStrategy.for_bounded_out_of_orderness("at", 5_000).with_idleness(60_000)
    >>> late.with_watermark_alignment("orders", 60_000).idle_timeout_ms
    60000
    >>> class Half(sl.WatermarkGenerator):
    ...     def on_batch(self, batch, times_ms, output):
    ...         output.emit_watermark(int(np.median(times_ms)))
    >>> sl.WatermarkStrategy.for_generator("at", Half).column
    'at'
    """

    column: str
    max_out_of_orderness_ms: int = 0
    idle_timeout_ms: int = 0
    """0: never idle. Otherwise a source without rows for this long leaves the watermark to the others."""
    per_split: bool = True
    """Track the maximum per source split, and take the minimum over the unfinished splits."""
    alignment: WatermarkAlignmentParams | None = None
    generator: Callable[[], WatermarkGenerator] | None = field(default=None, repr=False)
    """Makes a generator of the user's, where the watermark is not the greatest event time less a bound."""

    def __post_init__(self) -> None:
        """Raises InvalidArgument for a column that is no name, numbers that are no milliseconds, an alignment that is
        none, and what makes no generator."""
        if not isinstance(self.column, str):
            raise InvalidArgument(f"a watermark strategy takes the name of a column, got {self.column!r}")
        check_milliseconds("max_out_of_orderness_ms", self.max_out_of_orderness_ms, least=0)
        check_milliseconds("idle_timeout_ms", self.idle_timeout_ms, least=0)
        if self.alignment is not None and not isinstance(self.alignment, WatermarkAlignmentParams):
            raise InvalidArgument(
                f"alignment is a WatermarkAlignmentParams, not {self.alignment!r}; say with_watermark_alignment(group, max_drift_ms)"
            )
        if self.generator is not None:
            _check_generator(self.generator)

    @classmethod
    def for_monotonous_timestamps(cls, column: str) -> WatermarkStrategy:
        """Event time never goes back within a split."""
        return cls(column)

    @classmethod
    def for_bounded_out_of_orderness(cls, column: str, max_out_of_orderness_ms: int) -> WatermarkStrategy:
        """Rows are at most this late. Raises InvalidArgument for a negative bound."""
        return cls(column, max_out_of_orderness_ms)

    @classmethod
    def for_generator(cls, column: str, generator: Callable[[], WatermarkGenerator]) -> WatermarkStrategy:
        """Watermarks of your own: `generator()` is called in the task, once for each split, and makes a
        WatermarkGenerator (Flink: WatermarkStrategy.forGenerator). Raises InvalidArgument for what makes none."""
        _check_generator(generator)
        return cls(column, generator=generator)

    def with_idleness(self, idle_timeout_ms: int) -> WatermarkStrategy:
        """Declare a source idle after this long without rows. Raises InvalidArgument unless positive."""
        check_milliseconds("idle_timeout_ms", idle_timeout_ms)
        return replace(self, idle_timeout_ms=idle_timeout_ms)

    def with_watermark_alignment(
        self, group: str, max_drift_ms: int, update_interval_ms: int = 1_000
    ) -> WatermarkStrategy:
        """All sources of the group, and their subtasks, wait for the slowest when they are this far ahead of it, so
        that what joins them need not keep what the fast one has read. For sources only. Raises InvalidArgument for an
        empty name, a negative drift, or an interval that is not positive."""
        return replace(self, alignment=WatermarkAlignmentParams(group, max_drift_ms, update_interval_ms))


def _check_generator(given: object) -> None:
    """InvalidArgument unless it can make a generator for each split."""
    if isinstance(given, WatermarkGenerator) or not callable(given):
        raise InvalidArgument(
            f"for_generator takes a WatermarkGenerator class, or a function that makes one, not {given!r}: each split needs its own"
        )


def check_strategy(given: object, where: str) -> None:
    """InvalidArgument unless it is a watermark strategy. `where`: which operator it is for."""
    if not isinstance(given, WatermarkStrategy):
        meant = f"; write WatermarkStrategy.for_monotonous_timestamps({given!r})" if isinstance(given, str) else ""
        raise InvalidArgument(f"watermark strategy of {where!r}: {given!r} is no WatermarkStrategy{meant}")


def event_time_in(schema: pa.Schema | None, column: str) -> str:
    """The column of event time, as long as it is there and can tell it, where that is known; else none."""
    if schema is None:
        return column
    position = schema.get_field_index(column)
    return column if position >= 0 and _tells_event_time(schema.field(position).type) else ""


def _tells_event_time(data_type: pa.DataType) -> bool:
    return bool(pa.types.is_timestamp(data_type) or pa.types.is_int64(data_type))


def check_event_time_type(data_type: pa.DataType, column: str, where: str) -> None:
    """Raise JobDefinitionError unless a column of this type can tell event time."""
    if not _tells_event_time(data_type):
        raise JobDefinitionError(
            f"{where}: column {column!r} is {data_type}: it must be a timestamp, or int64 milliseconds since the epoch"
        )
