"""Windows that say something before they are over: which of them a trigger makes ready, around whatever they hold.

Counts by entry the rows since the window fired, and knows when the last one came. Decides, per trigger, which entries
are ready: after a batch (CountTrigger), when the clock has reached a multiple of the interval or a window has been
silent for the timeout, or when the watermark has passed a multiple. It does not know windows: the operator emits what
is ready, unless it is over. The count lies in the snapshot, unless windows fire by the clock; those of a snapshot
without it are taken to have new rows, so that a trigger may be added to a job and changed. Mirrors the per-window
trigger state of Flink's ContinuousProcessingTimeTrigger, ProcessingTimeoutTrigger and CountTrigger.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pyarrow as pa

from snapline.dataflow.api.function_contexts import RuntimeContext
from snapline.dataflow.api.triggers import (
    ContinuousEventTimeTrigger,
    ContinuousProcessingTimeTrigger,
    CountTrigger,
    EarlyTrigger,
    ProcessingTimeoutTrigger,
    PurgingTrigger,
)
from snapline.dataflow.columnar.arrow_columns import Int64Array
from snapline.dataflow.elements import MIN_WATERMARK_MS
from snapline.taskmanager.operators.aggregation.aggregate_plan import Shape
from snapline.taskmanager.operators.base.operator_contract import Output
from snapline.taskmanager.operators.windows.window_contents import (
    SINCE_FIRED,
    ContentsMaker,
    FiredWindows,
    WindowContents,
)
from snapline.taskmanager.state.columns import FrozenColumn, NumpyColumn
from snapline.taskmanager.state.index.slots import Slots, grown

_NO_ENTRIES: Slots = np.zeros(0, np.int32)


class TriggeredContents(WindowContents):
    """Other contents, with the rows of each entry since it fired."""

    def __init__(self, contents: WindowContents, trigger: EarlyTrigger) -> None:
        self.inner = contents
        self.purges = isinstance(trigger, PurgingTrigger) or (isinstance(trigger, CountTrigger) and trigger.purge)
        self._trigger = trigger.trigger if isinstance(trigger, PurgingTrigger) else trigger
        self._counts = isinstance(self._trigger, (CountTrigger, ContinuousEventTimeTrigger))
        self._since = NumpyColumn(pa.int64())
        self._last_ms: Int64Array = np.zeros(64, np.int64)
        self._next_ms: int | None = None
        """When the clock makes the next entries ready, for an interval."""
        self._multiple: int | None = None
        """Multiple of the interval that the watermark had passed last; None: there was no watermark."""
        self._now_ms: Callable[[], int] = lambda: 0

    @property
    def windows_per_slice(self) -> int:  # type: ignore[override]
        """Return that of the contents inside."""
        return self.inner.windows_per_slice

    # --- what is ready ------------------------------------------------------------------------------------------------

    def ready_after_rows(self, entries: Slots) -> Slots:
        """The entries, among those that rows were folded into, that have enough of them."""
        if not isinstance(self._trigger, CountTrigger):
            return _NO_ENTRIES
        distinct = np.unique(entries)
        return distinct[self._since.values[distinct] >= self._trigger.count]

    def ready_by_clock(self, now_ms: int) -> Slots:
        """Entries with new rows whose interval or timeout is over."""
        match self._trigger:
            case ContinuousProcessingTimeTrigger():
                if self._next_ms is None or now_ms < self._next_ms:
                    return _NO_ENTRIES
                self._next_ms = None
                return self.with_new_rows()
            case ProcessingTimeoutTrigger(timeout_ms):
                changed = self.with_new_rows()
                return changed[self._last_ms[changed] + timeout_ms <= now_ms]
        return _NO_ENTRIES

    def ready_by_watermark(self, watermark_ms: int, first_ms: int) -> Slots:
        """Entries with new rows, when the watermark has passed a multiple of the interval."""
        passes = self.passes_multiple(watermark_ms, first_ms)
        self._note_watermark(watermark_ms)
        return self.with_new_rows() if passes else _NO_ENTRIES

    def passes_multiple(self, watermark_ms: int, first_ms: int) -> bool:
        """Whether `ready_by_watermark` would make entries ready. `first_ms`: the least time of the rows before the
        first watermark, from which on it passes multiples."""
        trigger = self._trigger
        if not isinstance(trigger, ContinuousEventTimeTrigger):
            return False
        before = first_ms // trigger.interval_ms if self._multiple is None else self._multiple
        return (watermark_ms + 1) // trigger.interval_ms > before

    def start(self, now_ms: Callable[[], int], watermark_ms: int) -> None:
        """The operator has begun, with this clock and watermark."""
        self._now_ms = now_ms
        self._note_watermark(watermark_ms)

    def _note_watermark(self, watermark_ms: int) -> None:
        if isinstance(self._trigger, ContinuousEventTimeTrigger) and watermark_ms > MIN_WATERMARK_MS:
            self._multiple = (watermark_ms + 1) // self._trigger.interval_ms

    def next_by_clock_ms(self, now_ms: int) -> int | None:
        """When `ready_by_clock` is to be asked again; None: when there are new rows."""
        match self._trigger:
            case ContinuousProcessingTimeTrigger(interval_ms):
                if self._next_ms is None and len(self.with_new_rows()):
                    self._next_ms = (now_ms // interval_ms + 1) * interval_ms
                return self._next_ms
            case ProcessingTimeoutTrigger(timeout_ms):
                changed = self.with_new_rows()
                return max(int(self._last_ms[changed].min()) + timeout_ms, now_ms + 1) if len(changed) else None
        return None

    def note_fired(self, entries: Slots) -> None:
        """The results of these entries are out."""
        self._since.put_values(entries, np.zeros(len(entries), np.int64))

    def with_new_rows(self) -> Slots:
        """The entries that rows were folded into since they fired."""
        return np.flatnonzero(self._since.values > 0).astype(np.int32)

    # --- WindowContents -----------------------------------------------------------------------------------------------

    @property
    def fields(self) -> list[pa.Field]:
        return [*self.inner.fields, *([pa.field(SINCE_FIRED, pa.int64())] if self._counts else [])]

    def fold(self, entries: Slots, batch: pa.RecordBatch, input_index: int = 0) -> None:
        self.inner.fold(entries, batch, input_index)
        distinct, counts = np.unique(entries, return_counts=True)
        self._since.put_values(distinct, self._since.values[distinct] + counts)
        self._last_ms[distinct] = self._now_ms()

    def merge(self, into: Slots, others: Slots) -> None:
        self.inner.merge(into, others)
        distinct, groups = np.unique(into, return_inverse=True)
        more = np.bincount(groups, self._since.values[others], len(distinct)).astype(np.int64)
        self._since.put_values(distinct, self._since.values[distinct] + more)
        np.maximum.at(self._last_ms, into, self._last_ms[others])

    def windows_at_once(self, entries: Slots, offsets: Int64Array | None = None) -> int:
        return self.inner.windows_at_once(entries, offsets)

    def emit(self, fired: FiredWindows, output: Output) -> None:
        self.inner.emit(fired, output)

    def grow(self, capacity: int) -> None:
        self.inner.grow(capacity)
        self._since.grow(capacity)
        self._last_ms = grown(self._last_ms, capacity)

    def clear(self, entries: Slots) -> None:
        self.inner.clear(entries)
        self.note_fired(entries)

    def get(self, entries: Slots) -> list[pa.Array]:
        return [*self.inner.get(entries), *([self._since.get(entries)] if self._counts else [])]

    def freeze(self, high_water: int) -> list[FrozenColumn]:
        return [*self.inner.freeze(high_water), *([self._since.freeze(high_water)] if self._counts else [])]

    def restore(self, entries: Slots, columns: Sequence[pa.Array]) -> None:
        inner = columns[:-1] if self._counts else columns
        self.inner.restore(entries, inner)
        since = np.ones(len(entries), np.int64)
        if self._counts:
            unknown = 0 if isinstance(self._trigger, CountTrigger) else 1
            since = columns[-1].fill_null(unknown).to_numpy()
        self._since.put_values(entries, since)
        self._last_ms[entries] = self._now_ms()

    def check(self, schema: pa.Schema, operator_uid: str, input_index: int = 0) -> None:
        self.inner.check(schema, operator_uid, input_index)


class TriggeredMaker(ContentsMaker):
    """Makes contents that fire early around those of another maker."""

    def __init__(self, maker: ContentsMaker, trigger: EarlyTrigger) -> None:
        self._maker, self._trigger = maker, trigger

    def open(self, context: RuntimeContext) -> None:
        self._maker.open(context)

    @property
    def shapes(self) -> tuple[Shape, ...]:
        return self._maker.shapes

    def start_from(self, known: Sequence[Shape], *, drop: bool) -> None:
        self._maker.start_from(known, drop=drop)

    def shapes_of(self, fields: Sequence[pa.Field]) -> list[Shape]:
        return self._maker.shapes_of(_without_since(fields))

    def of_batch(self, schema: pa.Schema, current_watermark: Callable[[], int]) -> WindowContents:
        return TriggeredContents(self._maker.of_batch(schema, current_watermark), self._trigger)

    def of_snapshot(self, fields: Sequence[pa.Field], current_watermark: Callable[[], int]) -> WindowContents:
        return TriggeredContents(self._maker.of_snapshot(_without_since(fields), current_watermark), self._trigger)


def _without_since(fields: Sequence[pa.Field]) -> list[pa.Field]:
    return [field for field in fields if field.name != SINCE_FIRED]
