"""An in-engine source of numbered events, for benchmarks and for trying things out.

Event i is (key = (i * 2654435761) % keys, value = i % 1000), both int64; split r of n makes the events i = q * n + r
for q = 0, 1, ...; the position of a split is its next q, so the stream is the same after a restore, at any parallelism
up to n. Whole columns are computed by adding a constant to the previous batch's, modulo keys: three passes of numpy and
no division. With a rate, event times are those of an ideal clock that ticks evenly, so that a late event counts as
late.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from snapline.connectors.builtin.rate_limit import RateLimiter, require_rate
from snapline.dataflow.api.connector_api import (
    InputStatus,
    Polled,
    Source,
    SourceContextInfo,
    SourceReader,
    SourceSplit,
)
from snapline.dataflow.arguments import check_whole
from snapline.dataflow.columnar.arrow_columns import fixed_array
from snapline.dataflow.errors import ConnectorError, InvalidArgument

MULTIPLIER = 2_654_435_761
"""Knuth's: spreads consecutive numbers over the keys."""
VALUES = 1000
_VALUES = np.uint64(VALUES)
KEYS_MAX = 1 << 31
DEFAULT_SPLITS = 16
EMIT_INTERVAL_MS = 5
SLOW_EMIT_INTERVAL_MS = 100
SLOW_ROWS_PER_SECOND = 2_500
"""A subtask with fewer rows emits them less often, because a portion of five rows costs as much as one of a hundred."""
ROWS_AHEAD = 1024
"""What is computed at once for portions that are smaller."""

UInt64Array = npt.NDArray[np.uint64]


class GeneratorSource(Source):
    """Numbered events, rate-limited or as fast as possible, without end or `rows` of them.

    >>> source = sl.GeneratorSource(keys=10, rows=1_000, rows_per_second=500, event_time_column="at")
    >>> env.from_source(source, sl.WatermarkStrategy.for_monotonous_timestamps("at"), uid="events").schema.names
    ['key', 'value', 'at']
    """

    def __init__(
        self,
        *,
        keys: int = 100_000,
        rows: int | None = None,
        rows_per_second: float | None = None,
        batch_rows: int = 16_384,
        splits: int = DEFAULT_SPLITS,
        created_at_column: str = "",
        emit_interval_ms: int = 0,
        event_time_column: str = "",
        event_interval_us: int = 10,
    ) -> None:
        """`rows_per_second` is for all subtasks together. `created_at_column`: add an int64 column with the time at
        which the event was due, in microseconds since the epoch. `event_time_column`: add a timestamp[us] column, event
        i at i times `event_interval_us` after the epoch; it is the same in every run. `emit_interval_ms`: least time
        between two portions of a subtask; 0: 5 ms, or 100 ms when a subtask has fewer than 2,500 rows a second."""
        require_rate("GeneratorSource", rows_per_second)
        for name, number, least, most in (
            ("keys", keys, 1, KEYS_MAX),
            ("rows", 0 if rows is None else rows, 0, None),
            ("batch_rows", batch_rows, 1, None),
            ("splits", splits, 1, None),
            ("event_interval_us", event_interval_us, 1, None),
            ("emit_interval_ms", emit_interval_ms, 0, None),
        ):
            try:
                check_whole(f"GeneratorSource: {name}", number, least, most)
            except InvalidArgument as error:
                raise ConnectorError(str(error)) from None
        self.keys = keys
        self.rows = rows
        self.rows_per_second = rows_per_second
        self.batch_rows = batch_rows
        self.splits = splits
        self.created_at_column = created_at_column
        self.emit_interval_ms = emit_interval_ms
        self.event_time_column = event_time_column
        self.event_interval_us = event_interval_us

    @property
    def bounded(self) -> bool:
        return self.rows is not None

    def schema(self) -> pa.Schema:
        fields = [pa.field("key", pa.int64()), pa.field("value", pa.int64())]
        if self.created_at_column:
            fields.append(pa.field(self.created_at_column, pa.int64()))
        if self.event_time_column:
            fields.append(pa.field(self.event_time_column, pa.timestamp("us")))
        return pa.schema(fields)

    def enumerate_splits(self) -> Sequence[SourceSplit]:
        return [SourceSplit(f"generator-{r}", {"residue": r, "of": self.splits}) for r in range(self.splits)]

    def create_reader(self, context: SourceContextInfo) -> SourceReader:
        return GeneratorReader(self)


class GeneratedSplit:
    """The events i = q * of + residue from a position on."""

    def __init__(self, source: GeneratorSource, split: SourceSplit) -> None:
        self.split_id = split.split_id
        self.description = split.description
        self.position = int(split.position.get("next", 0))
        residue, of = int(split.description["residue"]), int(split.description["of"])
        self._residue, self._of = residue, of
        self._modulus, self._multiplier = np.uint64(source.keys), np.uint64(MULTIPLIER % source.keys)
        rows = source.rows
        self.end: int | None = None if rows is None else max(0, -(-(rows - residue) // of))
        self._full = source.batch_rows
        self._ready_for = -1
        """The position that `_key` and `_value` are one full batch before."""
        self._key: UInt64Array = np.empty(0, np.uint64)
        self._value: UInt64Array = np.empty(0, np.uint64)
        self._ahead: list[pa.Array] = []
        """The columns of the events from `_ahead_from` on, which were made ahead."""
        self._ahead_from = self._ahead_end = 0
        self._has_times = bool(source.event_time_column)
        self._event_interval_us = source.event_interval_us
        self._offsets_us: npt.NDArray[np.int64] = np.empty(0, np.int64)
        """Event times of a full batch, relative to its first."""
        self._key_step = np.uint64(source.batch_rows * of * MULTIPLIER % source.keys)
        self._value_step = np.uint64(source.batch_rows * of % VALUES)

    @property
    def remaining(self) -> int | None:
        """Events left; None without end."""
        return None if self.end is None else self.end - self.position

    def columns(self, count: int, scratch: UInt64Array) -> list[pa.Array]:
        """Keys and values of the next `count` events, and their event times if they have any."""
        if count != self._full:
            return self._portion(count)
        if self._ready_for == self.position:
            key = _advance(self._key, self._key_step, self._modulus, scratch)
            value = _advance(self._value, self._value_step, _VALUES, scratch)
        else:
            key, value = self._computed(count)
        columns = self._made(self.position, key, value)
        self.position += count
        self._key, self._value, self._ready_for = key, value, self.position
        return columns

    def _portion(self, count: int) -> list[pa.Array]:
        """A few events of those that were made ahead: to make five rows costs as much as to make a thousand."""
        if not self._ahead_from <= self.position <= self._ahead_end - count:
            rows = max(count, ROWS_AHEAD)
            self._ahead = self._made(self.position, *self._computed(rows))
            self._ahead_from, self._ahead_end = self.position, self.position + rows
        start = self.position - self._ahead_from
        self.position += count
        return [column.slice(start, count) for column in self._ahead]

    def _made(self, position: int, key: UInt64Array, value: UInt64Array) -> list[pa.Array]:
        columns = [fixed_array(column.view(np.int64), None, pa.int64()) for column in (key, value)]
        return [*columns, self._event_times(position, len(key))] if self._has_times else columns

    def _computed(self, count: int) -> tuple[UInt64Array, UInt64Array]:
        first = self.position * self._of + self._residue
        index = np.arange(first, first + count * self._of, self._of, dtype=np.uint64)
        return index % self._modulus * self._multiplier % self._modulus, index % _VALUES

    def _event_times(self, position: int, count: int) -> pa.Array:
        """The times of the `count` events from the position on."""
        step_us = self._of * self._event_interval_us
        if len(self._offsets_us) < count:
            self._offsets_us = np.arange(count, dtype=np.int64) * step_us
        first_us = position * step_us + self._residue * self._event_interval_us
        return fixed_array(self._offsets_us[:count] + first_us, None, pa.timestamp("us"))

    def snapshot(self) -> SourceSplit:
        """The split with its position."""
        finished = self.end is not None and self.position >= self.end
        return SourceSplit(self.split_id, self.description, {"next": self.position}, finished)


def _advance(previous: UInt64Array, step: np.uint64, modulus: np.uint64, scratch: UInt64Array) -> UInt64Array:
    """(previous + step) % modulus, where both are below it: what wraps around below zero is the greater one,
    unsigned."""
    following = previous + step
    np.subtract(following, modulus, out=scratch)
    np.minimum(following, scratch, out=following)
    return following


class GeneratorReader(SourceReader):
    """One batch from each split in turn."""

    def __init__(self, source: GeneratorSource) -> None:
        self._source = source
        self._schema = source.schema()
        self._scratch: UInt64Array = np.empty(source.batch_rows, np.uint64)
        self._unfinished: list[GeneratedSplit] = []
        self._all: list[GeneratedSplit] = []
        self._empty: tuple[str, ...] = ()
        """Splits without events, whose end is to be told."""
        self._turn = 0
        self._paused: frozenset[str] = frozenset()
        self._limiter: RateLimiter | None = None
        self._due_us: npt.NDArray[np.int64] = np.empty(0, np.int64)
        """Ideal times of the events from `_due_from` on, counted since the limiter `_due_by` began."""
        self._due_by: RateLimiter | None = None
        self._due_from = 0

    def add_splits(self, splits: Sequence[SourceSplit]) -> None:
        added = [GeneratedSplit(self._source, split) for split in splits]
        self._all += added
        self._unfinished += [split for split in added if split.remaining != 0]
        ended = {split.split_id for split in splits if split.finished}
        self._empty += tuple(s.split_id for s in added if s.remaining == 0 and s.split_id not in ended)
        rate = self._source.rows_per_second
        if rate is not None and self._unfinished:
            share = rate * len(self._unfinished) / int(self._unfinished[0].description["of"])
            self._limiter = RateLimiter(share, self._source.emit_interval_ms or _emit_interval_ms(share), burst_ms=None)

    def poll_next(self, now_ms: int) -> Polled:
        finished, self._empty = self._empty, ()
        if not self._unfinished:
            return Polled(InputStatus.END_OF_INPUT, finished_splits=finished)
        split = self._next_split()
        if split is None:
            return Polled(InputStatus.NOTHING_AVAILABLE, finished_splits=finished)
        count, remaining = self._source.batch_rows, split.remaining
        if remaining is not None and remaining < count:
            count = remaining
        limiter = self._limiter
        if limiter is not None:
            granted = limiter.permitted(now_ms, count)
            if not granted:
                wake_at_ms = limiter.wake_at_ms(now_ms, count)
                return Polled(InputStatus.NOTHING_AVAILABLE, wake_at_ms=wake_at_ms, finished_splits=finished)
            count = granted
        columns = split.columns(count, self._scratch)
        if self._source.created_at_column:
            columns.insert(2, self._created_at(now_ms, count))
        if count == remaining:
            self._unfinished.remove(split)
            finished = (*finished, split.split_id)
        else:
            self._turn += 1
        batch = pa.RecordBatch.from_arrays(columns, schema=self._schema)
        status = InputStatus.MORE_AVAILABLE if self._unfinished else InputStatus.END_OF_INPUT
        return Polled(status, batch, split_id=split.split_id, finished_splits=finished)

    def pause_splits(self, split_ids: Sequence[str]) -> None:
        self._paused = frozenset(split_ids)

    def _next_split(self) -> GeneratedSplit | None:
        """The next one in turn that need not wait."""
        if not self._paused:
            return self._unfinished[self._turn % len(self._unfinished)]
        for _ in self._unfinished:
            split = self._unfinished[self._turn % len(self._unfinished)]
            if split.split_id not in self._paused:
                return split
            self._turn += 1
        return None

    def _created_at(self, now_ms: int, count: int) -> pa.Array:
        limiter = self._limiter
        if limiter is None or limiter.start_ms is None:
            return pa.array(np.full(count, now_ms * 1000, dtype=np.int64))
        before = limiter.taken - count
        start = before - self._due_from
        if self._due_by is not limiter or not 0 <= start <= len(self._due_us) - count:
            ticks: Any = np.arange(before + 1, before + 1 + max(count, ROWS_AHEAD), dtype=np.float64)
            self._due_us = (ticks * (1e6 / limiter.rows_per_second)).astype(np.int64) + limiter.start_ms * 1000
            self._due_by, self._due_from, start = limiter, before, 0
        return fixed_array(self._due_us[start : start + count], None, pa.int64())

    def snapshot_splits(self, checkpoint_id: int) -> Sequence[SourceSplit]:
        return [split.snapshot() for split in self._all]


def _emit_interval_ms(rows_per_second: float) -> int:
    return SLOW_EMIT_INTERVAL_MS if rows_per_second < SLOW_ROWS_PER_SECOND else EMIT_INTERVAL_MS
