"""Aggregates per key and event-time window, computed on whole batches.

Decides which window a row belongs to, which rows are late (their window's end plus the allowed lateness lies at or before
the watermark: to the side output, or dropped), and what a watermark makes due: each window whose end it has passed, in the
order of their starts, in slices, so that a barrier does not wait behind a million keys. With allowed lateness a window stays
after its result, and every batch that changes it emits the changed results again. Without rows for it, a window does not
exist. Mirrors Flink's WindowOperator with TumblingEventTimeWindows and EventTimeTrigger; a window's cost is that of its rows
and of its entries once, never of the keys held.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from dataflow.arrow_columns import Int64Array
from dataflow.elements import MIN_WATERMARK_MS, Watermark
from dataflow.operator_specs import WindowAggregateSpec
from dataflow.state import StateError
from dataflow.state_format import KeyedStateHeader
from taskmanager.operators.aggregates import Accumulator, AggregatePlan
from taskmanager.operators.event_time import event_times_ms
from taskmanager.operators.keyed_operator import KeyedOperator
from taskmanager.operators.window_state import WindowState, accumulators_of, window_starts
from taskmanager.state.keyed_backend import KeyedStateBackend
from taskmanager.state.slots import Slots

STATE_PREFIX = "windows-"
ROWS_PER_SLICE = 16_384
WINDOWS_PER_SLICE = 1_024
_WINDOW_TIME = pa.timestamp("ms")


class WindowAggregateOperator(KeyedOperator):
    """Tumbling windows."""

    def __init__(self, spec: WindowAggregateSpec) -> None:
        super().__init__(spec.key_columns)
        self._time_column = spec.event_time_column
        self._size_ms = spec.assigner.size_ms
        self._offset_ms = spec.assigner.offset_ms
        self._lateness_ms = spec.allowed_lateness_ms
        self._late_output_tag = spec.late_output_tag
        self._plan = AggregatePlan(spec.aggregates)
        self._state_name = f"{STATE_PREFIX}{self._size_ms}-{self._offset_ms}"
        self._windows: WindowState | None = None
        self._checked_schema: pa.Schema | None = None
        self._to_fire: list[int] = []
        """Heap of the starts of windows whose result is not out."""
        self._to_drop: list[int] = []
        """Heap of the starts of windows that are kept for late rows."""
        self._known: set[int] = set()
        """Starts in one of the two."""
        self._work: _Work | None = None
        self._output_schema: pa.Schema | None = None
        self.late_rows_dropped = 0

    # --- state ----------------------------------------------------------------------------------------------------------

    def backend_created(
        self, backend: KeyedStateBackend, header: KeyedStateHeader | None, batch: pa.RecordBatch | None
    ) -> None:
        if header is not None:
            field = self._restored_field(header)
            accumulators = accumulators_of(field) if field is not None else None
        else:
            assert batch is not None  # noqa: S101 - one of the two is given
            accumulators = self._plan.accumulators(batch.schema)
        if accumulators is not None:
            self._windows = WindowState(self._state_name, accumulators)
            backend.adopt_state(self._windows)
            self._know_output(backend)

    def _restored_field(self, header: KeyedStateHeader) -> pa.Field | None:
        fields = [field for field in header.state_fields if field.name.startswith(STATE_PREFIX)]
        others = [field.name for field in fields if field.name != self._state_name]
        if others:
            size, offset = others[0].removeprefix(STATE_PREFIX).rsplit("-", 1)
            raise StateError(
                f"operator {self.context.operator_uid!r}: the snapshot holds windows of {size} ms with offset {offset} ms, and "
                f"the job now asks for {self._size_ms} ms with offset {self._offset_ms} ms: keep the size, or give the operator "
                "another uid to start without its state"
            )
        return fields[0] if fields else None

    def _know_output(self, backend: KeyedStateBackend) -> None:
        assert self._windows is not None  # noqa: S101 - just made
        self._output_schema = pa.schema(
            [
                *backend.key_fields,
                pa.field("window_start", _WINDOW_TIME),
                pa.field("window_end", _WINDOW_TIME),
                *self._plan.result_fields(self._windows.accumulators),
            ]
        )

    def backend_restored(self, backend: KeyedStateBackend) -> None:
        if self._windows is None:
            return
        for start_ms in self._windows.window_starts:
            entries = self._windows.entries_of_windows([start_ms])
            fired = self._windows.fired[entries]
            if not self._lateness_ms:  # there may have been some when the snapshot was taken
                self._windows.remove(entries[fired])
            if not fired.all():
                self._note_window(start_ms)
            elif self._lateness_ms:
                heapq.heappush(self._to_drop, start_ms)
                self._known.add(start_ms)
            else:
                self._windows.drop_windows([start_ms])

    def open(self) -> None:
        """Goes on with what the watermark of the snapshot had made due."""
        if self._is_due(self.watermark_ms):
            self._begin_work(Watermark(self.watermark_ms))

    # --- rows -----------------------------------------------------------------------------------------------------------

    def process_batch(self, batch: pa.RecordBatch, input_index: int = 0) -> None:
        if not batch.num_rows:
            return
        times = event_times_ms(batch, self._time_column)
        starts, first, last = window_starts(times, self._size_ms, self._offset_ms)
        if first <= self._last_gone_start():
            batch, starts = self._without_late_rows(batch, starts)
            if not len(starts):
                return
            first, last = int(starts.min()), int(starts.max())
        slots = self.slots_of(batch)
        windows = self._state_for(batch)
        numbers = windows.number_rows(starts, first, last, self._size_ms)
        entries = windows.entries_of_rows(slots, numbers)
        windows.fold(entries, {a.name: a.numbers(batch) for a in windows.accumulators})
        if windows.window_count > len(self._known):
            for start_ms in windows.window_starts:
                if start_ms not in self._known:
                    self._note_window(start_ms)
        if self._lateness_ms and self.watermark_ms > MIN_WATERMARK_MS:
            self._emit_late_updates(windows, entries, starts)

    def _note_window(self, start_ms: int) -> None:
        self._known.add(start_ms)
        heapq.heappush(self._to_fire, start_ms)

    def _state_for(self, batch: pa.RecordBatch) -> WindowState:
        """The state, once it is clear that the batch's columns are what it was made for."""
        windows = self._windows
        if windows is None:  # restored from a snapshot that held none
            backend = self.backend
            assert backend is not None  # noqa: S101 - slots_of made it
            self.backend_created(backend, None, batch)
            windows = self._windows
            assert windows is not None  # noqa: S101 - just made
        if self._checked_schema is None or not self._checked_schema.equals(batch.schema):
            needed = self._plan.accumulators(batch.schema)
            if sorted(needed, key=_name_of) != sorted(windows.accumulators, key=_name_of):
                raise StateError(
                    f"operator {self.context.operator_uid!r}: the aggregates, or the types of their columns, are not those that "
                    "its state was made for: keep them, or give the operator another uid to start without its state"
                )
            self._checked_schema = batch.schema
        return windows

    def _last_gone_start(self) -> int:
        """A window is gone once its last millisecond plus the allowed lateness is not beyond the watermark."""
        return max(self._last_due_start(self.watermark_ms) - self._lateness_ms, MIN_WATERMARK_MS)

    def _without_late_rows(self, batch: pa.RecordBatch, starts: Int64Array) -> tuple[pa.RecordBatch, Int64Array]:
        late = starts <= self._last_gone_start()
        late_batch = batch.filter(pa.array(late))
        if self._late_output_tag:
            self.output.emit_side(self._late_output_tag, late_batch)
        else:
            self.late_rows_dropped += late_batch.num_rows
        return batch.filter(pa.array(~late)), starts[~late]

    def _emit_late_updates(self, windows: WindowState, entries: Slots, starts: Int64Array) -> None:
        """Windows whose result is out already: the changed ones again."""
        passed = starts <= self._last_due_start(self.watermark_ms)
        if passed.any():
            _, rows = np.unique(entries[passed], return_index=True)
            changed = entries[passed][np.sort(rows)]
            self._emit(windows, changed)
            windows.fired[changed] = True

    # --- watermarks -----------------------------------------------------------------------------------------------------

    def _last_due_start(self, watermark_ms: int) -> int:
        return watermark_ms - self._size_ms + 1

    def _is_due(self, watermark_ms: int) -> bool:
        last_due = self._last_due_start(watermark_ms)
        return bool(
            (self._to_fire and self._to_fire[0] <= last_due)
            or (self._to_drop and self._to_drop[0] <= last_due - self._lateness_ms)
        )

    def process_watermark(self, watermark: Watermark) -> None:
        if watermark.timestamp_ms <= self.watermark_ms:
            return
        self.watermark_ms = watermark.timestamp_ms
        if self._is_due(watermark.timestamp_ms):
            self._begin_work(watermark)
        else:
            self.output.emit_watermark(watermark)

    def _begin_work(self, watermark: Watermark) -> None:
        self._work = _Work(watermark)

    @property
    def has_pending_work(self) -> bool:
        return self._work is not None

    def continue_work(self) -> None:
        """Emit one slice; when nothing is left, let the watermark go on."""
        work, windows = self._work, self._windows
        if work is None:
            return
        if windows is not None:
            if work.position == len(work.entries) and not self._next_windows(work, windows):
                self._drop_passed(windows)
                self._finish_work(work)
                return
            part = work.entries[work.position : work.position + ROWS_PER_SLICE]
            work.position += len(part)
            self._emit(windows, part)
            if self._lateness_ms:
                windows.fired[part] = True
            else:
                windows.remove(part)
            if work.position < len(work.entries):
                return
            self._windows_done(work, windows)
            if self._is_due(self.watermark_ms):
                return
        self._finish_work(work)

    def _next_windows(self, work: _Work, windows: WindowState) -> bool:
        """Take the next due windows. False when there are none."""
        last_due = self._last_due_start(self.watermark_ms)
        while self._to_fire and self._to_fire[0] <= last_due:
            starts: list[int] = []
            while self._to_fire and self._to_fire[0] <= last_due and len(starts) < WINDOWS_PER_SLICE:
                starts.append(heapq.heappop(self._to_fire))
            entries = windows.entries_of_windows(starts)
            if self._lateness_ms:
                entries = entries[~windows.fired[entries]]
            work.starts, work.entries, work.position = starts, entries, 0
            if len(entries):
                return True
            self._windows_done(work, windows)
        return False

    def _windows_done(self, work: _Work, windows: WindowState) -> None:
        """The results of these windows are out."""
        self._known.difference_update(work.starts)
        if self._lateness_ms:
            for start_ms in work.starts:
                heapq.heappush(self._to_drop, start_ms)
            self._known.update(work.starts)
        else:
            windows.drop_windows(work.starts)
        work.starts, work.entries, work.position = (), _NO_ENTRIES, 0

    def _drop_passed(self, windows: WindowState) -> None:
        """Forget windows that were kept for late rows, and for which none can come any more."""
        last_gone = self._last_gone_start()
        gone: list[int] = []
        while self._to_drop and self._to_drop[0] <= last_gone:
            gone.append(heapq.heappop(self._to_drop))
        if gone:
            windows.remove(windows.entries_of_windows(gone))
            windows.drop_windows(gone)
            self._known.difference_update(gone)

    def _finish_work(self, work: _Work) -> None:
        self._work = None
        self.output.emit_watermark(work.watermark)

    def _emit(self, windows: WindowState, entries: Slots) -> None:
        backend = self.backend
        assert backend is not None  # noqa: S101 - there are entries
        starts = windows.starts_of(entries)
        columns = [
            *backend.keys(windows.slots_of(entries)),
            pa.array(starts).view(_WINDOW_TIME),
            pa.array(starts + self._size_ms).view(_WINDOW_TIME),
            *self._plan.results(
                windows.accumulators,
                lambda name: windows.counts(name, entries),
                lambda name, total: windows.totals(name, total, entries),
            ),
        ]
        self.output.emit_batch(pa.RecordBatch.from_arrays(columns, schema=self._output_schema))


def _name_of(accumulator: Accumulator) -> str:
    return accumulator.name


_NO_ENTRIES: Slots = np.zeros(0, np.int32)


class _Work:
    """What a watermark has made due, and how far it has got."""

    def __init__(self, watermark: Watermark) -> None:
        self.watermark = watermark
        self.starts: Sequence[int] = ()
        self.entries: Slots = _NO_ENTRIES
        self.position = 0
