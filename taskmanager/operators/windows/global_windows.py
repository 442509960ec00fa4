"""Global windows that fire by the clock, by the watermark, or when no rows come; those of a CountTrigger are
`count_windows`.

A key has one window without an end, so that what its trigger has not fired never comes out. The window's contents say
which are ready; keys that are not in memory are loaded, some at a time, when the watermark makes theirs ready. Mirrors
Flink's WindowOperator with GlobalWindows.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from snapline.dataflow.columnar.arrow_columns import Int64Array
from snapline.dataflow.elements import MAX_WATERMARK_MS, MIN_WATERMARK_MS, Watermark
from snapline.runtime.cores.machine import check
from snapline.taskmanager.operators.base.event_time import event_times_ms
from snapline.taskmanager.operators.windows.count_windows import SINCE_FIRED, GlobalWindowState
from snapline.taskmanager.operators.windows.window_contents import SINCE_FIRED as ROWS_SINCE_FIRED
from snapline.taskmanager.operators.windows.window_contents import ContentsMaker, FiredWindows, WindowContents
from snapline.taskmanager.operators.windows.window_operator import KEYS_PER_LOAD, WindowOperator
from snapline.taskmanager.state.adopted_state import NEVER_DUE
from snapline.taskmanager.state.index.slots import Slots, grown

STATE_PREFIX = "global-windows-"
_NONE = -1


class _TriggeredWindowState(GlobalWindowState):
    """Windows whose trigger waits for no row."""

    def due_times(self, values: pa.StructArray) -> Int64Array:
        """Windows with rows since they fired are ready whenever the watermark passes the next multiple: they are due at
        any time. A snapshot of another trigger does not know, and then they may have some."""
        ready = np.asarray(values.is_valid())
        known = values.type.get_field_index(ROWS_SINCE_FIRED)
        if known >= 0:
            ready = ready & (values.field(known).fill_null(1).to_numpy() > 0)
        return np.where(ready, MIN_WATERMARK_MS, NEVER_DUE)


class GlobalWindowOperator(WindowOperator[GlobalWindowState]):
    """One window for each key."""

    def __init__(self, key_columns: tuple[str, ...], maker: ContentsMaker, time_column: str = "") -> None:
        """`time_column`: of event time, if the stream has it and the trigger asks for it."""
        super().__init__(key_columns, maker, STATE_PREFIX, "triggered")
        self._time_column = time_column
        self._slot_of: Slots = np.full(64, _NONE, np.int32)
        """The key of each entry, by what was seen since the start: others are looked up."""
        self._pending: Watermark | None = None
        """The watermark that has made windows ready of which some are not in memory."""

    def make_state(self, contents: WindowContents) -> GlobalWindowState:
        """Create empty state with one window for each key."""
        return _TriggeredWindowState(self._state_name, contents)

    def contents_fields(self, field: pa.Field) -> list[pa.Field]:
        """Return the fields of the contents, which are all but the count."""
        return [child for child in field.type if child.name != SINCE_FIRED]

    def refusal(self, windows: str) -> str:
        """Return why state of other windows cannot be taken over."""
        return f"the snapshot holds {windows} windows, and the job now asks for windows without an end: keep them"

    def open(self) -> None:
        """Goes on with what the watermark of the snapshot had made ready."""
        super().open()
        self.arm_early()
        if self.restored_at_work and self.watermark_ms > MIN_WATERMARK_MS and self._early is not None:
            self._pending = Watermark(self.watermark_ms)

    def process_batch(self, batch: pa.RecordBatch, input_index: int = 0) -> None:
        if not batch.num_rows:
            return
        slots = self.slots_of(batch)
        state = self.state_for(batch)
        distinct, inverse = np.unique(slots, return_inverse=True)
        entries = state.entry_of[distinct]
        missing = entries < 0
        if missing.any():
            entries[missing] = state.allocate(int(missing.sum()))
            state.entry_of[distinct] = entries
        if self.watermark_ms == MIN_WATERMARK_MS and self._time_column in batch.schema.names:
            timed = batch.filter(batch.column(self._time_column).is_valid())
            if timed.num_rows:
                self.note_first_rows(event_times_ms(timed, self._time_column))
        of_rows = entries[inverse].astype(np.int32)
        state.contents.fold(of_rows, batch)
        self.emit_ready_after(of_rows)

    def emit_early(self, entries: Slots) -> None:
        """Emit what is ready, and empty it if the trigger purges."""
        state = check(self._state, "there is no state, although windows are ready")
        backend = check(self.backend, "there is no backend, although windows are ready")
        slots = self._owners(state, entries)
        always = np.full(len(entries), MIN_WATERMARK_MS), np.full(len(entries), MAX_WATERMARK_MS)
        fired = FiredWindows(backend.key_fields, backend.keys(slots), *always, entries, timeless=True)
        state.contents.emit(fired, self.output)
        backend.touch(slots)
        if self.purges:
            state.entry_of[slots] = _NONE
            state.release(entries)

    def _owners(self, state: GlobalWindowState, entries: Slots) -> Slots:
        """The key of each entry."""
        known = np.flatnonzero(state.entry_of >= 0).astype(np.int32)
        self._slot_of = grown(self._slot_of, int(state.entry_of.max(initial=0)) + 1, _NONE)
        self._slot_of[state.entry_of[known]] = known
        return self._slot_of[entries]

    def advance(self, watermark: Watermark) -> None:
        early = self._early
        passes = early is not None and early.passes_multiple(watermark.timestamp_ms, self.first_ms)
        self.emit_ready_by_watermark()
        if passes and self.due_outside_now_ms() <= watermark.timestamp_ms:
            self._pending = watermark
        else:
            self.output.emit_watermark(watermark)

    @property
    def has_pending_work(self) -> bool:
        return self._pending is not None

    def continue_work(self) -> None:
        """Load some keys and emit theirs; when nothing is left, let the watermark go on."""
        watermark, backend, early = self._pending, self.backend, self._early
        if watermark is None or backend is None or early is None:
            return
        if self.due_outside_now_ms() <= watermark.timestamp_ms:
            backend.load_due(self._state_name, watermark.timestamp_ms, KEYS_PER_LOAD)
        self._emit_ready(early, early.with_new_rows())
        if self.due_outside_now_ms() > watermark.timestamp_ms:
            self._pending = None
            self.output.emit_watermark(watermark)
