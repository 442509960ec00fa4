"""Event time of rows and the generation of watermarks from it.

Decides how a column is read as event time (timestamps of any unit as UTC, integers as milliseconds), what is refused,
and which watermark follows from the rows seen: the maximum minus the allowed disorder minus one, per split where splits
are known, then the minimum over those that are not finished; a split that waits counts with its least time, where the
source knows it. It does not know when watermarks are due: that is the operator's clock. Mirrors Flink's
BoundedOutOfOrdernessWatermarks, WatermarkOutputMultiplexer; a generator of the user's takes the place of the first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from snapline.dataflow.api.function_contexts import RuntimeContext
from snapline.dataflow.api.watermark_generators import WatermarkGenerator
from snapline.dataflow.api.watermarks import WatermarkStrategy
from snapline.dataflow.arguments import MOST_MS
from snapline.dataflow.elements import MAX_WATERMARK_MS, MIN_WATERMARK_MS

_PER_MS = {"s": (1000, 1), "ms": (1, 1), "us": (1, 1_000), "ns": (1, 1_000_000)}
"""Unit to (multiplier, divisor) that make milliseconds."""


def event_time_column(batch: pa.RecordBatch, column: str) -> pa.Array:
    """The column, if it can be event time. Raises KeyError or TypeError that names it."""
    position = batch.schema.get_field_index(column)
    if position < 0:
        raise KeyError(
            f"no event time column {column!r}: the columns are {', '.join(map(repr, batch.schema.names))}; if that is its name, keep it in the function "
            "that leaves it out, or give that one schema=, which ends event time there"
        )
    array = batch.column(position)
    if not (pa.types.is_timestamp(array.type) or pa.types.is_int64(array.type)):
        raise TypeError(
            f"event time column {column!r} is {array.type}: it must be a timestamp, or int64 milliseconds since the epoch"
        )
    return array


def event_times_ms(batch: pa.RecordBatch, column: str) -> npt.NDArray[np.int64]:
    """Event time of each row in milliseconds, finer units rounded down. Raises ValueError for a null, naming the
    row."""
    array = event_time_column(batch, column)
    if array.null_count:
        row = pc.index(array.is_null(), pa.scalar(True)).as_py()
        raise ValueError(
            f"event time column {column!r} is null in row {row}: filter such rows out before, or fill them"
        )
    values: npt.NDArray[np.int64] = array.view(pa.int64()).to_numpy()
    if pa.types.is_timestamp(array.type):
        multiplier, divisor = _PER_MS[array.type.unit]
        if divisor > 1:
            return np.floor_divide(values, divisor)
        if multiplier > 1:
            max_event_time_ms(
                batch, column
            )  # what is no time may become one when it is multiplied, as NaT becomes 1970
            return values * multiplier
    return values


def max_event_time_ms(batch: pa.RecordBatch, column: str) -> int | None:
    """The greatest event time, nulls aside; None when there is none. Raises ValueError for what is no time of this
    world: windows and watermarks are computed in 64 bits, and nothing that follows would come out."""
    array = event_time_column(batch, column)
    if array.null_count:
        array = array.drop_null()
    if not len(array):
        return None
    values = array.view(pa.int64()).to_numpy()
    greatest, least = int(values.max()), int(values.min())
    multiplier, divisor = _PER_MS[array.type.unit] if pa.types.is_timestamp(array.type) else _PER_MS["ms"]
    for value in (greatest, least):
        if abs(value * multiplier // divisor) > MOST_MS:
            raise _no_time(column, array.type, value)
    return greatest * multiplier // divisor


def refuse_no_times(batch: pa.RecordBatch, column: str, first_ms: int, last_ms: int) -> None:
    """Raise ValueError as `max_event_time_ms` does, if the rows of the batch, which lie between these times, are that
    far off: the column may have been changed since watermarks were made of it."""
    if first_ms < -MOST_MS or last_ms > MOST_MS:
        max_event_time_ms(batch, column)


def _no_time(column: str, data_type: pa.DataType, value: int) -> ValueError:
    missing = "if it stands for one that is missing, as NaT does, filter such rows out before, or fill them"
    if pa.types.is_timestamp(data_type):
        return ValueError(
            f"event time column {column!r} is {data_type} and holds {value}, which is no time up to the year 9999: if "
            f"it was made of numbers of another unit, make it a timestamp of that unit; {missing}"
        )
    if value > 0:
        return ValueError(
            f"event time column {column!r} holds {value}, which as milliseconds since the epoch lies beyond the year 9999: if it "
            "is microseconds or nanoseconds, make it a timestamp of that unit, or divide it"
        )
    return ValueError(
        f"event time column {column!r} holds {value}, which is no time in milliseconds since the epoch: {missing}"
    )


class WatermarkTracker:
    """The watermark that follows from the rows seen so far."""

    def __init__(self, strategy: WatermarkStrategy) -> None:
        self._strategy = strategy
        self._greatest_ms: int | None = None
        self._splits: dict[str, int | None] = {}
        """Greatest event time per unfinished split."""
        self._active_ms: dict[str, int] = {}
        """When each of them had rows last, on the clock of activity; only with an idle timeout."""
        self._least_ms: dict[str, int] = {}
        """Per unfinished split, where known: no row of it is earlier."""
        self._emitted_ms = MIN_WATERMARK_MS
        self.waits_for_unread = False
        """Whether a split without a row so far waits to be read, as in a source with an end, and is not idle."""
        self._held: set[str] = set()
        """Splits that are never idle before their first row, whatever the source is."""

    @property
    def column(self) -> str:
        """Return the name of the event time column."""
        return self._strategy.column

    @property
    def greatest_ms(self) -> int | None:
        """Return the greatest event time seen, in milliseconds since the epoch; None before the first row."""
        return self._greatest_ms

    def add_splits(
        self,
        splits: Mapping[str, int | None],
        greatest_ms: int | None = None,
        least_ms: Mapping[str, int] | None = None,
    ) -> None:
        """Splits that will be read, with what was seen of them before a restore, and the least time of those where it
        is known without reading."""
        if self._strategy.per_split:
            self._splits.update(splits)
            self._least_ms.update(
                {split_id: int(ms) for split_id, ms in (least_ms or {}).items() if split_id in splits}
            )
        if greatest_ms is not None:
            self._greatest_ms = greatest_ms if self._greatest_ms is None else max(self._greatest_ms, greatest_ms)

    def greatest_of(self, split_id: str) -> int | None:
        """Greatest event time seen in an unfinished split; of all rows when splits are not told apart."""
        return self._splits.get(split_id) if self._splits else self._greatest_ms

    def on_batch(self, batch: pa.RecordBatch, split_id: str = "", activity_ms: int | None = None) -> None:
        """Rows were emitted. Without a split id, they count for all. `activity_ms`: see ProcessingTimeService."""
        if activity_ms is not None and split_id in self._splits:
            self._active_ms[split_id] = activity_ms
        self._note(split_id, self._reached_by(batch, split_id))

    def _reached_by(self, batch: pa.RecordBatch, split_id: str) -> int | None:
        """How far the rows of a batch have come."""
        return max_event_time_ms(batch, self._strategy.column)

    def open(self, context: RuntimeContext) -> None:
        """Called before the first rows, with what a user's generators may ask."""

    @property
    def is_periodic(self) -> bool:
        """Whether `on_periodic` is to be called also while no rows come."""
        return False

    def on_periodic(self) -> None:
        """The interval has passed, with or without rows."""

    def _note(self, split_id: str, greatest: int | None) -> None:
        if greatest is None:
            return
        if self._greatest_ms is None or greatest > self._greatest_ms:
            self._greatest_ms = greatest
        if split_id in self._splits:
            known = self._splits[split_id]
            if known is None or greatest > known:
                self._splits[split_id] = greatest
        elif not split_id and self._splits:
            self._splits.clear()  # the reader does not tell its splits apart

    def finish_split(self, split_id: str) -> None:
        """The split holds the watermark back no longer."""
        self._splits.pop(split_id, None)
        self._active_ms.pop(split_id, None)
        self._least_ms.pop(split_id, None)

    def _reached(self, split_id: str, seen: int | None) -> int | None:
        """Up to where the split lets the watermark rise, the allowed disorder not yet taken off; None: nowhere."""
        least = self._least_ms.get(split_id)
        if least is None:
            return seen
        least += (
            self._strategy.max_out_of_orderness_ms
        )  # all its rows are at or after its least time, however disordered
        return least if seen is None else max(seen, least)

    def _taking_part(self, activity_ms: int | None) -> list[int | None]:
        """What the splits that are not idle have reached; when all are, what the furthest has by its rows, whichever of
        them became idle first."""
        timeout_ms = self._strategy.idle_timeout_ms
        reached = self._splits
        if self._least_ms:
            reached = {split_id: self._reached(split_id, seen) for split_id, seen in reached.items()}
        if not timeout_ms or activity_ms is None:
            return list(reached.values())
        active = [
            reached[split_id]
            for split_id in self._splits
            if activity_ms < self._active_ms.setdefault(split_id, activity_ms) + timeout_ms or self._waits(split_id)
        ]
        return active or [max((seen for seen in self._splits.values() if seen is not None), default=None)]

    def _waits(self, split_id: str) -> bool:
        return self._splits[split_id] is None and (self.waits_for_unread or split_id in self._held)

    @property
    def has_waiting(self) -> bool:
        """Whether a split has no row so far because nobody has come to it yet, so that the whole is not idle."""
        return any(map(self._waits, self._splits))

    def next_idle_ms(self, activity_ms: int) -> int | None:
        """When a split that holds the watermark back will count as idle, on the clock of activity, if it has no rows
        until then; None: none will, or there is no other split."""
        timeout_ms = self._strategy.idle_timeout_ms
        if not timeout_ms or len(self._splits) < 2:
            return None
        ends = [
            self._active_ms.setdefault(split_id, activity_ms) + timeout_ms
            for split_id in self._splits
            if not self._waits(split_id)
        ]
        return min((end_ms for end_ms in ends if end_ms > activity_ms), default=None)

    def next_watermark_ms(self, activity_ms: int | None = None) -> int | None:
        """A watermark higher than the last one that was asked for here, or None. A split without rows for the idle
        timeout leaves it to the others, and is late when it comes back behind them."""
        watermark_ms = self.reached_ms(activity_ms)
        if watermark_ms <= self._emitted_ms:
            return None
        self._emitted_ms = watermark_ms
        return watermark_ms

    def reached_ms(self, activity_ms: int | None = None) -> int:
        """The watermark as it could be emitted now; the lowest before there can be one."""
        greatest = self._greatest_ms
        if self._splits:
            least = MIN_WATERMARK_MS
            for seen in self._taking_part(activity_ms):
                if seen is None:
                    return MIN_WATERMARK_MS
                least = seen if least == MIN_WATERMARK_MS else min(least, seen)
            greatest = least
        return self._watermark_of(greatest)

    def splits_beyond(self, watermark_ms: int) -> tuple[str, ...]:
        """Unfinished splits that are further than this."""
        return tuple(split_id for split_id, seen in self._splits.items() if self._watermark_of(seen) > watermark_ms)

    def hold_back(self, split_id: str) -> None:
        """Let the split count for as long as it is there and has no row: nobody has read it yet."""
        self._held.add(split_id)

    def keep_active(self, activity_ms: int, split_ids: Iterable[str]) -> None:
        """These splits have no rows because they may not: they are not idle."""
        self._active_ms.update(dict.fromkeys(split_ids, activity_ms))

    @property
    def unfinished(self) -> tuple[str, ...]:
        """Splits that are told apart."""
        return tuple(self._splits)

    def _watermark_of(self, greatest_ms: int | None) -> int:
        if greatest_ms is None:
            return MIN_WATERMARK_MS
        return max(greatest_ms - self._strategy.max_out_of_orderness_ms - 1, MIN_WATERMARK_MS)


def said_watermark_ms(said: Any) -> int:
    """The watermark that a user's code has said, in whole milliseconds. Raises ValueError for what is no time of 64
    bits: neither a channel nor a heartbeat could carry it."""
    try:
        given = int(said)
    except (TypeError, ValueError, OverflowError):
        given = MAX_WATERMARK_MS + 1
    if not MIN_WATERMARK_MS <= given <= MAX_WATERMARK_MS:
        raise ValueError(f"a watermark is whole milliseconds since the epoch, in 64 bits, got {said!r}")
    return given


class _GeneratedOutput:
    """What one generator has said last."""

    def __init__(self) -> None:
        self.watermark_ms: int | None = None

    def emit_watermark(self, timestamp_ms: int) -> None:
        """Keep the greatest of what was said."""
        given = said_watermark_ms(timestamp_ms)
        if self.watermark_ms is None or given > self.watermark_ms:
            self.watermark_ms = given


class GeneratedWatermarks(WatermarkTracker):
    """The watermarks of a user's generators: a split counts as having come one millisecond beyond what its generator
    has said."""

    def __init__(self, strategy: WatermarkStrategy, create: Callable[[], WatermarkGenerator]) -> None:
        super().__init__(strategy)
        self._create = create
        self._generators: dict[str, tuple[WatermarkGenerator, _GeneratedOutput]] = {}
        self._needs_time = False
        self._context: RuntimeContext | None = None

    def open(self, context: RuntimeContext) -> None:
        self._context = context

    @property
    def is_periodic(self) -> bool:
        return self._needs_time

    def _of_split(self, split_id: str) -> tuple[WatermarkGenerator, _GeneratedOutput]:
        known = self._generators.get(split_id)
        if known is None:
            generator = self._create()
            if not isinstance(generator, WatermarkGenerator):
                raise TypeError(f"the generator of a WatermarkStrategy makes a WatermarkGenerator, not {generator!r}")
            if self._context is not None:
                generator.open(self._context)
            self._needs_time |= type(generator).on_periodic_emit is not WatermarkGenerator.on_periodic_emit
            known = self._generators[split_id] = generator, _GeneratedOutput()
        return known

    def _reached_by(self, batch: pa.RecordBatch, split_id: str) -> int | None:
        generator, output = self._of_split(split_id)
        max_event_time_ms(batch, self.column)
        generator.on_batch(batch, event_times_ms(batch, self.column), output)
        return None if output.watermark_ms is None else output.watermark_ms + 1

    def on_periodic(self) -> None:
        for split_id, (generator, output) in self._generators.items():
            generator.on_periodic_emit(output)
            if output.watermark_ms is not None:
                self._note(split_id, output.watermark_ms + 1)

    def finish_split(self, split_id: str) -> None:
        super().finish_split(split_id)
        self._generators.pop(split_id, None)


def create_tracker(strategy: WatermarkStrategy) -> WatermarkTracker:
    """The one that a strategy asks for."""
    if strategy.generator is None:
        return WatermarkTracker(strategy)
    return GeneratedWatermarks(strategy, strategy.generator)
