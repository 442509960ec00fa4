"""Tumbling and sliding windows on whole batches, whatever they hold.

A row is folded into one pane; a window is its panes taken together, when it fires. Decides which pane a row belongs to,
which rows are late (the end of their last window plus the allowed lateness lies at or before the watermark: to the side
output, or dropped), and what a watermark makes due: each window whose end it has passed, in the order of their starts,
in slices, so that a barrier does not wait behind a million keys. With allowed lateness panes stay after the results,
and every batch that changes a window whose result is out emits the changed results again. Without rows for it, a window
does not exist. Windows of processing time are the same with the task's clock for a watermark. Keys that are not in
memory are loaded when their first window is due, some at a time. Rows of tumbling windows that are kept as rows wait
until their window fires, and come into the state only if that is asked for before (`whole_windows`). Mirrors Flink's
WindowOperator with EventTimeTrigger; a batch costs its rows, however many windows overlap, and a window the entries of
its panes.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from functools import cached_property

import numpy as np
import pyarrow as pa

from snapline.dataflow.api.windows import BY_CLOCK, PaneAssigner, PaneGeometry
from snapline.dataflow.columnar.arrow_columns import Int64Array
from snapline.dataflow.config import STATE_BACKEND
from snapline.dataflow.elements import MAX_WATERMARK_MS, MIN_WATERMARK_MS, Watermark
from snapline.dataflow.ids import CheckpointID
from snapline.runtime.cores.machine import check
from snapline.taskmanager.operators.base.earliest_timer import EarliestTimer
from snapline.taskmanager.operators.base.event_time import event_times_ms, refuse_no_times
from snapline.taskmanager.operators.base.operator_contract import KeyedSnapshotPart
from snapline.taskmanager.operators.windows.waiting_snapshot import WaitingSnapshot, let_out, take_in
from snapline.taskmanager.operators.windows.whole_windows import MAX_WAITING_ROWS, WaitedRows, WaitingRows, WholeWindow
from snapline.taskmanager.operators.windows.window_contents import (
    ContentsMaker,
    FiredWindows,
    WholeWindowContents,
    WindowContents,
)
from snapline.taskmanager.operators.windows.window_operator import KEYS_PER_LOAD, WindowOperator
from snapline.taskmanager.operators.windows.window_state import FIRED, NEVER_FIRED, WindowState, window_starts
from snapline.taskmanager.state.adopted_state import NOTHING_DUE
from snapline.taskmanager.state.index.slots import Slots
from snapline.taskmanager.state.keyed_backend import KeyedStateBackend

STATE_PREFIX = "windows-"
WINDOWS_PER_SLICE = 1_024
WHOLE_WINDOW_ROWS = 1_024
"""From here on a window is worth a table of its own; the rows of smaller ones come into the state together."""


class PaneWindowOperator(WindowOperator[WindowState]):
    """One or two inputs, one state."""

    def __init__(
        self,
        inputs: Sequence[tuple[tuple[str, ...], str]],
        assigner: PaneAssigner,
        maker: ContentsMaker,
        allowed_lateness_ms: int = 0,
        late_output_tag: str = "",
    ) -> None:
        """`inputs`: key columns and event time column of each."""
        geometry = PaneGeometry.of(assigner)
        self._by_clock = isinstance(assigner, BY_CLOCK)
        domain = "clock," if self._by_clock else ""
        windows = f"{domain}{geometry.size_ms},{geometry.slide_ms},{geometry.offset_ms}"
        super().__init__(inputs[0][0], maker, STATE_PREFIX, windows)
        self._inputs = tuple(inputs)
        self._key_columns = [key_columns for key_columns, _ in inputs]
        self._geometry = geometry
        self._lateness_ms = allowed_lateness_ms
        self._late_output_tag = late_output_tag
        self._to_fire: list[int] = []
        """Heap of the starts of windows whose result may not be out."""
        self._known_windows: set[int] = set()
        """The starts of the windows that are in the heap."""
        self._to_drop: list[tuple[int, int]] = []
        """Heap of panes: start of the last window, start of the pane."""
        self._known_panes: set[int] = set()
        self._work: _Work | None = None
        self._waiting = WaitingRows(len(inputs))
        self._whole: WholeWindow | None = None
        """The window that is emitted whole, as far as it has got."""
        self._clock_ms = MIN_WATERMARK_MS
        """With processing time: until when windows were fired."""
        self._timer = EarliestTimer(self._on_timer)

    # --- state --------------------------------------------------------------------------------------------------------

    def make_state(self, contents: WindowContents) -> WindowState:
        """Create empty state for windows of this geometry."""
        return WindowState(self._state_name, contents, self._geometry, self._due_of)

    def contents_fields(self, field: pa.Field) -> list[pa.Field]:
        """All but the last window that fired."""
        return [child for child in field.type.item_type if child.name != FIRED]

    def refusal(self, windows: str) -> str:
        """Return why state of other windows cannot be taken over."""
        now = _spelled(self._state_name.removeprefix(STATE_PREFIX))
        return f"the snapshot holds windows of {_spelled(windows)}, and the job now asks for {now}: keep them"

    def _due_of(self, panes: Int64Array, fired: Int64Array) -> Int64Array:
        """When the next window that holds the pane is due, or, when all were emitted, when the pane goes."""
        geometry = self._geometry
        last = geometry.last_windows(panes)
        following = geometry.last_windows(np.clip(fired, panes - geometry.size_ms, last)) + geometry.slide_ms
        lasting_ms = np.where(following <= last, 0, self._lateness_ms)
        return np.minimum(following, last) + geometry.size_ms - 1 + lasting_ms

    def backend_restored(self, backend: KeyedStateBackend) -> None:
        windows = self._state
        if windows is None:
            return
        self._note_panes(windows, NEVER_FIRED)
        last_due, probe = self._last_due_start(self._time_ms), _Work(None)
        passed = [start for start in self._to_fire if start <= last_due]
        for start in passed:  # most of them were emitted before the snapshot
            self._take_window(probe, windows, start)
            if not probe.size:
                self._to_fire.remove(start)
                self._known_windows.discard(start)
        heapq.heapify(self._to_fire)
        self._drop_passed(windows)
        contents = windows.contents
        if (
            isinstance(contents, WholeWindowContents)
            and self._leaves_the_state
            and contents.row_count <= MAX_WAITING_ROWS
        ):
            let_out(windows, contents, self._key_columns, self._waiting)

    def open(self) -> None:
        """Goes on with what the watermark of the snapshot had made due."""
        self.count_late_rows(0)
        super().open()
        self.arm_early()
        if self._by_clock:
            self._arm()
        elif self._is_due(self.watermark_ms):
            self._work = _Work(Watermark(self.watermark_ms))

    @property
    def keeps_rows_for_ms(self) -> int | None:
        """The length of a window."""
        return None if self._by_clock else self._geometry.size_ms

    # --- rows ---------------------------------------------------------------------------------------------------------

    def process_batch(self, batch: pa.RecordBatch, input_index: int = 0) -> None:
        if not batch.num_rows:
            return
        key_columns, time_column = self._inputs[input_index]
        geometry = self._geometry
        if self._by_clock:
            times = np.full(batch.num_rows, self.context.processing_time.now_ms(), np.int64)
        else:
            times = event_times_ms(batch, time_column)
            self.note_event_time(batch, time_column)
        panes, first, last = window_starts(times, geometry.pane_ms, geometry.offset_ms)
        if not self._by_clock:
            refuse_no_times(batch, time_column, first, last)
            self.note_first_rows(times)
        if geometry.has_gaps or geometry.last_window(first) <= self._last_gone_start():
            batch, panes = self._without_late_rows(batch, panes, input_index)
            if not len(panes):
                return
            first, last = int(panes.min()), int(panes.max())
        if self._may_wait(batch, input_index) and self._let_wait(batch, panes, first, last, input_index):
            return
        slots = self.slots_of(batch, key_columns)
        windows = self.state_for(batch, input_index)
        numbers = windows.number_rows(panes, first, last, geometry.pane_ms)
        last_due = self._last_due_start(self._time_ms)
        entries = windows.entries_of_rows(slots, numbers, max(last_due, NEVER_FIRED))
        windows.contents.fold(entries, batch, input_index)
        if windows.window_count != len(self._known_panes):
            self._note_panes(windows, self._last_gone_start())
        if self._lateness_ms and first - geometry.size_ms < last_due:
            self._emit_late_updates(windows, entries, slots, panes)
        self.emit_ready_after(entries)
        if self._by_clock:
            self._arm()

    # --- rows that wait -----------------------------------------------------------------------------------------------

    @cached_property
    def _fires_whole(self) -> bool:
        """Whether a window fires once, of one pane, with contents that need no entries; and all keys are in memory."""
        geometry = self._geometry
        return (
            geometry.panes_per_window == 1
            and not geometry.has_gaps
            and not self._lateness_ms
            and self.setting(STATE_BACKEND) != "rocksdb"
        )

    @property
    def _leaves_the_state(self) -> bool:
        """Whether rows that wait are in no state when a snapshot is taken: an incremental one wants changes of it."""
        return self._fires_whole and self._chain is None

    def _may_wait(self, batch: pa.RecordBatch, input_index: int) -> bool:
        """Whether rows of this schema may wait: the first batch of a schema never does, so that what does not fit is
        told by it. Before a batch of another schema, those that wait come into the state."""
        windows = self._state
        if windows is None or not isinstance(windows.contents, WholeWindowContents) or not self._fires_whole:
            return False
        if self._has_checked(batch.schema, input_index):
            return True
        self._take_in_waiting()
        return False

    def _let_wait(self, batch: pa.RecordBatch, panes: Int64Array, first: int, last: int, input_index: int) -> bool:
        windows = check(self._state, "there is no state, although rows may wait")
        starts = self._waiting.add(panes, first, last, batch, input_index)
        if starts is None:  # rows of these windows that came before go into the state before them
            self._take_in([(start, self._waiting.take(start)) for start in np.unique(panes).tolist()])
            return False
        for start in starts:
            windows.window_number(start)
        if windows.window_count != len(self._known_panes):
            self._note_panes(windows, self._last_gone_start())
        if self._waiting.is_full(taken_in=self._chain is not None):
            self._take_in_waiting()
        if self._by_clock:
            self._arm()
        return True

    def _take_in_waiting(self) -> None:
        """All rows that wait come into the state, as if they came now."""
        whole, self._whole = self._whole, None
        if whole is not None:
            self._note_windows([whole.start])
            self._take_in([(whole.start, whole.remaining())])
        self._take_in([(start, self._waiting.take(start)) for start in self._waiting.starts])

    def _take_in(self, waited: WaitedRows) -> None:
        """Rows of these windows come into the state."""
        if waited:
            windows = check(self._state, "there is no state, although rows wait")
            take_in(windows, check(self.backend, "there is no backend, although rows wait"), self._key_columns, waited)

    def snapshot_keyed(self, checkpoint_id: CheckpointID) -> tuple[KeyedSnapshotPart, ...]:
        """Rows that wait are made into the file of the state by an upload thread, where nothing else is in it."""
        windows, backend, whole = self._state, self.backend, self._whole
        if windows is None or backend is None or not (self._waiting.rows or whole is not None):
            return super().snapshot_keyed(checkpoint_id)
        if not self._empty_the_state(windows, backend):
            self._take_in_waiting()
            return super().snapshot_keyed(checkpoint_id)
        waited = self._waiting.waited
        if whole is not None:
            waited = [(whole.start, whole.remaining()), *waited]
        key_schema, name, contents = pa.schema(backend.key_fields), self._state_name, self._contents_of_rows(windows)
        key_group_range, max_parallelism = backend.key_group_range, backend.max_parallelism
        geometry, due_of = self._geometry, self._due_of
        empty = contents.without_rows()

        def make_state() -> tuple[KeyedStateBackend, WindowState]:
            of_file, state = (
                KeyedStateBackend(key_schema, key_group_range, max_parallelism),
                WindowState(name, empty, geometry, due_of),
            )
            of_file.adopt_state(state)
            return of_file, state

        return (WaitingSnapshot(key_group_range, make_state, self._key_columns, waited),)

    def _empty_the_state(self, windows: WindowState, backend: KeyedStateBackend) -> bool:
        """Whether the state is empty, or becomes so because its rows, which are the fewer, wait with the others."""
        work = self._work
        return (
            self._leaves_the_state
            and backend.state_names == [self._state_name]
            and (work is None or work.position == work.size)
            and self._contents_of_rows(windows).row_count <= self._waiting.rows
            and let_out(windows, self._contents_of_rows(windows), self._key_columns, self._waiting)
        )

    # --- time ---------------------------------------------------------------------------------------------------------

    @property
    def _time_ms(self) -> int:
        return self._clock_ms if self._by_clock else self.watermark_ms

    def _note_panes(self, windows: WindowState, last_gone: int) -> None:
        """Windows of panes that are new will fire, unless they are over; panes go with their last window."""
        for pane in windows.window_starts:
            if pane in self._known_panes:
                continue
            self._known_panes.add(pane)
            heapq.heappush(self._to_drop, (self._geometry.last_window(pane), pane))
            self._note_windows(start for start in self._geometry.windows_of(pane) if start > last_gone)

    def _note_windows(self, starts: Iterable[int]) -> None:
        for start in starts:
            if start not in self._known_windows:
                self._known_windows.add(start)
                heapq.heappush(self._to_fire, start)

    def _load_due(self, windows: WindowState) -> None:
        """Keys that are due come into memory, those that are due first. Windows of their panes may have fired for other
        keys."""
        backend = check(self.backend, "there is no backend, although there are windows")
        geometry, first = self._geometry, self._last_due_start(self.due_outside_now_ms())
        backend.load_due(self._state_name, self._time_ms, KEYS_PER_LOAD)
        self._note_panes(windows, first - 1)
        last = geometry.last_window(self._last_due_start(self._time_ms))
        for pane in windows.window_starts:
            begin, end = min(geometry.last_window(pane), last), max(pane - geometry.size_ms, first - 1)
            self._note_windows(range(begin, end, -geometry.slide_ms))

    def _last_gone_start(self) -> int:
        """A window is gone once its last millisecond plus the allowed lateness is not beyond the watermark."""
        return max(self._last_due_start(self._time_ms) - self._lateness_ms, MIN_WATERMARK_MS)

    def late_rows(self, batch: pa.RecordBatch, input_index: int) -> pa.RecordBatch:
        """What goes to the side output of late rows."""
        return batch

    def _without_late_rows(
        self, batch: pa.RecordBatch, panes: Int64Array, input_index: int
    ) -> tuple[pa.RecordBatch, Int64Array]:
        geometry = self._geometry
        last_windows = geometry.last_windows(panes)
        if geometry.has_gaps:
            inside = panes < last_windows + geometry.size_ms
            batch, panes, last_windows = batch.filter(pa.array(inside)), panes[inside], last_windows[inside]
        late = last_windows <= self._last_gone_start()
        if not late.any():
            return batch, panes
        self.count_late_rows(int(late.sum()))
        if self._late_output_tag:
            rows = self.late_rows(batch.filter(pa.array(late)), input_index)
            self.output.emit_side(self._late_output_tag, rows)
        return batch.filter(pa.array(~late)), panes[~late]

    def _emit_late_updates(self, windows: WindowState, entries: Slots, slots: Slots, panes: Int64Array) -> None:
        """Windows whose result is out already: the changed ones again, or what is new in them where they are purged."""
        geometry = self._geometry
        last_due, last_gone = self._last_due_start(self._time_ms), self._last_gone_start()
        if geometry.panes_per_window == 1 and geometry.slide_ms == geometry.size_ms:
            passed = panes <= last_due
            if passed.any():
                _, rows = np.unique(entries[passed], return_index=True)
                changed = entries[passed][np.sort(rows)]
                self._emit(windows, changed, None, windows.starts_of(changed))
                if self.purges:
                    self._touch(windows, changed)
                    windows.remove(changed)
                else:
                    windows.set_fired(changed, windows.starts_of(changed))
            return
        last_windows = geometry.last_windows(panes)
        changed_slots: dict[int, list[Slots]] = {}
        for back in range(-(-geometry.size_ms // geometry.slide_ms)):
            starts = last_windows - back * geometry.slide_ms
            chosen = (starts <= last_due) & (starts > last_gone) & (starts > panes - geometry.size_ms)
            for start in np.unique(starts[chosen]).tolist():
                changed_slots.setdefault(start, []).append(slots[chosen & (starts == start)])
        for start in sorted(changed_slots):
            found = windows.entries_of_windows(self._panes_present(start))
            found = found[np.isin(windows.slots_of(found), np.concatenate(changed_slots[start]))]
            grouped, offsets = _grouped(found, windows.slots_of(found))
            self._emit(windows, grouped, offsets, np.full(len(offsets) - 1, start, np.int64))
            windows.set_fired(grouped, np.maximum(windows.fired[grouped], start))

    def emit_early(self, entries: Slots) -> None:
        """Emit the results so far of windows that are not over; the others have their turn by the watermark."""
        windows = check(self._state, "there is no state, although windows are ready")
        entries = entries[windows.starts_of(entries) > self._last_due_start(self._time_ms)]
        self._emit(windows, entries, None, windows.starts_of(entries))
        self._touch(windows, entries)
        if self.purges:
            windows.remove(entries)

    # --- watermarks ---------------------------------------------------------------------------------------------------

    def _last_due_start(self, watermark_ms: int) -> int:
        return watermark_ms - self._geometry.size_ms + 1

    def _is_due(self, watermark_ms: int) -> bool:
        last_due = self._last_due_start(watermark_ms)
        return bool(
            (self._to_fire and self._to_fire[0] <= last_due)
            or (self._to_drop and self._to_drop[0][0] <= last_due - self._lateness_ms)
            or self.due_outside_now_ms() <= watermark_ms
        )

    def advance(self, watermark: Watermark) -> None:
        self.emit_ready_by_watermark()
        if not self._by_clock and self._is_due(watermark.timestamp_ms):
            self._work = _Work(watermark)
        else:
            self.pass_on(watermark)

    def finish(self) -> None:
        """Windows of processing time that no clock will fire any more come out now."""
        if self._by_clock:
            self._advance_clock(MAX_WATERMARK_MS)

    def _arm(self) -> None:
        """Ask for a timer when the first window ends."""
        at_ms = self.due_outside_now_ms() + 1
        if self._to_fire:
            at_ms = min(at_ms, self._to_fire[0] + self._geometry.size_ms)
        if at_ms <= NOTHING_DUE:
            self._timer.arm(self.context.processing_time, at_ms)

    def _on_timer(self, at_ms: int) -> None:
        self._advance_clock(max(self.context.processing_time.now_ms(), at_ms) - 1)

    def _advance_clock(self, time_ms: int) -> None:
        self._clock_ms = max(self._clock_ms, time_ms)
        if self._work is None and self._is_due(self._clock_ms):
            self._work = _Work(None)

    @property
    def has_pending_work(self) -> bool:
        return self._work is not None

    def continue_work(self) -> None:
        """Emit one slice; when nothing is left, let the watermark go on."""
        work, windows = self._work, self._state
        if work is None:
            return
        if windows is not None:
            if self._whole is not None or work.position < work.size or self._next_windows(work, windows):
                self._emit_slice(work, windows)
            if self._whole is not None or work.position < work.size:
                return
            self._drop_passed(windows)
            if self._is_due(self._time_ms):
                return
        self._finish_work(work)

    def _emit_slice(self, work: _Work, windows: WindowState) -> None:
        if self._whole is not None:
            self._emit_whole(self._whole, windows)
            return
        first = work.position
        last = min(first + windows.contents.windows_per_slice, work.size)
        last = first + windows.contents.windows_at_once(*work.windows(first, last))
        work.position = last
        entries, offsets = work.windows(first, last)
        starts = work.starts[first:last]
        self._emit(windows, entries, offsets, starts)
        self._touch(windows, entries)
        if (self._lateness_ms and not self.purges) or offsets is not None:
            windows.set_fired(entries, starts if offsets is None else np.repeat(starts, np.diff(offsets)))
        else:
            windows.remove(entries)

    def _next_windows(self, work: _Work, windows: WindowState) -> bool:
        """Take the next due windows, of keys that are in memory. False when there are none, for now."""
        if self.due_outside_now_ms() <= self._time_ms and not self._goes_before_outside():
            self._load_due(windows)
        last_due = self._last_due_start(min(self._time_ms, self.due_outside_now_ms()))
        one_pane = self._geometry.panes_per_window == 1 and not self._geometry.has_gaps
        at_most = WINDOWS_PER_SLICE if one_pane else 1
        while self._to_fire and self._to_fire[0] <= last_due:
            starts: list[int] = []
            while self._to_fire and self._to_fire[0] <= last_due and len(starts) < at_most:
                if self._is_worth_whole(windows, self._to_fire[0]):
                    break
                starts.append(heapq.heappop(self._to_fire))
            if not starts:
                self._begin_whole(windows, heapq.heappop(self._to_fire))
                return True
            self._known_windows.difference_update(starts)
            if one_pane:
                self._take_in([(start, self._waiting.take(start)) for start in starts if self._waiting.rows_of(start)])
                entries = windows.entries_of_windows([start for start in starts if start in self._known_panes])
                of_entry = windows.starts_of(entries)
                fresh = windows.fired[entries] < of_entry
                work.take(entries[fresh], None, of_entry[fresh])
            else:
                self._take_window(work, windows, starts[0])
            if work.size:
                return True
        return False

    def _is_worth_whole(self, windows: WindowState, start: int) -> bool:
        """Whether all rows of the window wait, and are enough for a table of their own."""
        return self._waiting.rows_of(start) >= WHOLE_WINDOW_ROWS and not len(windows.entries_of_windows([start]))

    def _begin_whole(self, windows: WindowState, start: int) -> None:
        backend = check(self.backend, "there is no backend, although rows wait")
        self._known_windows.discard(start)
        self._whole = WholeWindow(
            start,
            self._waiting.take(start),
            self._contents_of_rows(windows).row_schemas,
            backend.key_fields,
            self._key_columns,
        )

    @staticmethod
    def _contents_of_rows(windows: WindowState) -> WholeWindowContents:
        contents = windows.contents
        return check(contents if isinstance(contents, WholeWindowContents) else None, "rows wait for other contents")

    def _emit_whole(self, whole: WholeWindow, windows: WindowState) -> None:
        """Emit a slice of it."""
        backend = check(self.backend, "there is no backend, although there is a window")
        contents = self._contents_of_rows(windows)
        entries = whole.entries[whole.position : whole.position + contents.windows_per_slice]
        entries = entries[: contents.windows_of_rows_at_once(whole.sides, entries)]
        starts = np.full(len(entries), whole.start, np.int64)
        ends = starts + self._geometry.size_ms
        fired = FiredWindows(backend.key_fields, whole.keys(entries), starts, ends, entries, time_type=self.time_type)
        contents.emit_rows(fired, whole.sides, self.output)
        whole.position += len(entries)
        if whole.position == len(whole.entries):
            self._whole = None

    def _goes_before_outside(self) -> bool:
        """Whether a window in memory is due before all that is not."""
        return bool(self._to_fire) and self._to_fire[0] <= self._last_due_start(self.due_outside_now_ms() - 1)

    def _take_window(self, work: _Work, windows: WindowState, start: int) -> None:
        """The entries of all panes of a window, key by key, of keys whose result is not out."""
        entries = windows.entries_of_windows(self._panes_present(start))
        entries, offsets = _grouped(entries, windows.slots_of(entries))
        if len(entries):
            fresh = np.maximum.reduceat(windows.fired[entries], offsets[:-1]) < start
            if not fresh.all():
                lengths = np.diff(offsets)
                of_fresh = np.repeat(fresh, lengths)
                self._skip(windows, entries[~of_fresh], start)
                entries = entries[of_fresh]
                offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths[fresh])])
        work.take(entries, offsets, np.full(len(offsets) - 1, start, np.int64))

    def _skip(self, windows: WindowState, entries: Slots, start: int) -> None:
        """The window's result is out for the keys of these entries, of which some may not say so."""
        behind = entries[windows.fired[entries] < start]
        if len(behind):
            self._touch(windows, behind)
            windows.set_fired(behind, np.full(len(behind), start))

    def _panes_present(self, start: int) -> list[int]:
        panes = self._geometry.panes_of(start)
        if len(panes) <= len(self._known_panes):
            return [pane for pane in panes if pane in self._known_panes]
        return sorted(pane for pane in self._known_panes if pane in panes)

    def _drop_passed(self, windows: WindowState) -> None:
        """Forget panes whose windows are all over."""
        last_gone = self._last_gone_start()
        if self._to_fire:
            last_gone = min(last_gone, self._to_fire[0] - 1)
        gone: list[int] = []
        while self._to_drop and self._to_drop[0][0] <= last_gone:
            gone.append(heapq.heappop(self._to_drop)[1])
        if gone:
            entries = windows.entries_of_windows(gone)
            self._touch(windows, entries)
            windows.remove(entries)
            windows.drop_windows(gone)
            self._known_panes.difference_update(gone)

    def _touch(self, windows: WindowState, entries: Slots) -> None:
        """The state of these entries' keys changes."""
        backend = check(self.backend, "there is no backend, although there are windows")
        backend.touch(windows.slots_of(entries))

    def _finish_work(self, work: _Work) -> None:
        self._work = None
        if work.watermark is not None:
            self.pass_on(work.watermark)
        if self._by_clock:
            self._arm()

    def _emit(self, windows: WindowState, entries: Slots, offsets: Int64Array | None, starts: Int64Array) -> None:
        backend = self.backend
        backend = check(backend, "there is no backend, although there are entries")
        if not len(entries):
            return
        owners = windows.slots_of(entries if offsets is None else entries[offsets[:-1]])
        ends = starts + self._geometry.size_ms
        keys = backend.keys(owners)
        fired = FiredWindows(backend.key_fields, keys, starts, ends, entries, offsets, time_type=self.time_type)
        windows.contents.emit(fired, self.output)


def _grouped(entries: Slots, slots: Slots) -> tuple[Slots, Int64Array]:
    """Entries of one key next to each other, in their order; and where each key begins."""
    order = np.argsort(slots, kind="stable")
    slots = slots[order]
    changes = np.flatnonzero(slots[1:] != slots[:-1]) + 1
    ends = [len(slots)] if len(slots) else []
    return entries[order], np.concatenate([np.zeros(1, np.int64), changes, np.array(ends, np.int64)])


def _spelled(windows: str) -> str:
    *domain, size, slide, offset = windows.split(",")
    every = f" every {slide} ms" if slide != size else ""
    return f"{size} ms{every} with offset {offset} ms{' of processing time' if domain else ''}"


_NO_ENTRIES: Slots = np.zeros(0, np.int32)
_NO_STARTS: Int64Array = np.zeros(0, np.int64)


class _Work:
    """What a watermark (None: the clock) has made due, and how far it has got."""

    def __init__(self, watermark: Watermark | None) -> None:
        self.watermark = watermark
        self.take(_NO_ENTRIES, None, _NO_STARTS)

    def take(self, entries: Slots, offsets: Int64Array | None, starts: Int64Array) -> None:
        """Windows to emit: one per start."""
        self.entries, self.offsets, self.starts = entries, offsets, starts
        self.position = 0

    def windows(self, first: int, last: int) -> tuple[Slots, Int64Array | None]:
        """The entries of these windows, and where those of each begin."""
        if self.offsets is None:
            return self.entries[first:last], None
        bounds = self.offsets[first : last + 1]
        return self.entries[bounds[0] : bounds[-1]], bounds - bounds[0]

    @property
    def size(self) -> int:
        """Return how many windows of keys are worked on."""
        return len(self.starts)
