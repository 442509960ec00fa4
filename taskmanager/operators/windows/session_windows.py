"""Session windows on whole batches, whatever they hold.

A batch becomes sessions of its own, by sorting, and these merge with those of the state that they touch. Decides what
is late: a row whose session, after all merging, is over including the lateness; whether a late row is saved by a
session depends on the order of rows, so that exactly the rows for which it could matter are taken one by one. With
allowed lateness a session stays after its result, and batches that change it emit it again. Keys that are not in memory
are loaded when a session of theirs is due, some at a time. Sessions of processing time are the same with the task's
clock for a watermark. Mirrors Flink's WindowOperator with EventTimeSessionWindows.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from snapline.dataflow.api.windows import BY_CLOCK, SessionAssigner
from snapline.dataflow.columnar.arrow_columns import BoolArray, Int64Array
from snapline.dataflow.elements import MAX_WATERMARK_MS, MIN_WATERMARK_MS, Watermark
from snapline.runtime.cores.machine import check
from snapline.taskmanager.operators.base.earliest_timer import EarliestTimer
from snapline.taskmanager.operators.base.event_time import event_times_ms, refuse_no_times
from snapline.taskmanager.operators.windows.session_state import END, FIRED, SessionState
from snapline.taskmanager.operators.windows.window_contents import ContentsMaker, FiredWindows, WindowContents
from snapline.taskmanager.operators.windows.window_operator import KEYS_PER_LOAD, WindowOperator
from snapline.taskmanager.state.adopted_state import NOTHING_DUE
from snapline.taskmanager.state.index.slots import Slots

STATE_PREFIX = "sessions-"
_NO_ENTRIES: Slots = np.zeros(0, np.int32)


class SessionWindowOperator(WindowOperator[SessionState]):
    """Assigns rows to sessions and merges those that a row joins."""

    def __init__(
        self,
        key_columns: tuple[str, ...],
        time_column: str,
        assigner: SessionAssigner,
        maker: ContentsMaker,
        allowed_lateness_ms: int = 0,
        late_output_tag: str = "",
    ) -> None:
        self._by_clock = isinstance(assigner, BY_CLOCK)
        super().__init__(key_columns, maker, STATE_PREFIX, f"{'clock,' if self._by_clock else ''}{assigner.gap_ms}")
        self._time_column = time_column
        self._gap_ms = assigner.gap_ms
        self._lateness_ms = allowed_lateness_ms
        self._late_output_tag = late_output_tag
        self._is_working = False
        """Whether sessions are being emitted."""
        self._pending: Watermark | None = None
        """The watermark that has made them due; None: the clock has."""
        self._due: Slots = _NO_ENTRIES
        self._clock_ms = MIN_WATERMARK_MS
        """With processing time: until when sessions were emitted."""
        self._timer = EarliestTimer(self._on_timer)

    # --- state --------------------------------------------------------------------------------------------------------

    def make_state(self, contents: WindowContents) -> SessionState:
        """Create empty state for sessions of this gap."""
        return SessionState(self._state_name, contents, self._gap_ms, self._lateness_ms)

    def contents_fields(self, field: pa.Field) -> list[pa.Field]:
        """All but the end, and whether it fired."""
        return [child for child in field.type.item_type if child.name not in (END, FIRED)]

    def refusal(self, windows: str) -> str:
        """Return why state of sessions with another gap cannot be taken over."""
        now = _spelled(self._state_name.removeprefix(STATE_PREFIX))
        return f"the snapshot holds sessions with a gap of {_spelled(windows)}, and the job now asks for {now}: keep the gap"

    def open(self) -> None:
        """Goes on with what the watermark of the snapshot had made due."""
        self.count_late_rows(0)
        super().open()
        self.arm_early()
        if self._by_clock:
            self._arm()
        elif self._may_be_due(self.watermark_ms):
            self._begin(Watermark(self.watermark_ms))

    @property
    def keeps_rows_for_ms(self) -> int | None:
        """The gap: a session may be longer, but has no end that is known before."""
        return None if self._by_clock else self._gap_ms

    # --- rows ---------------------------------------------------------------------------------------------------------

    def process_batch(self, batch: pa.RecordBatch, input_index: int = 0) -> None:
        if not batch.num_rows:
            return
        if self._by_clock:
            times = np.full(batch.num_rows, self.context.processing_time.now_ms(), np.int64)
        else:
            times = np.ascontiguousarray(event_times_ms(batch, self._time_column))
            refuse_no_times(batch, self._time_column, int(times.min()), int(times.max()))
            self.note_first_rows(times)
            self.note_event_time(batch, self._time_column)
        slots = self.slots_of(batch)
        sessions = self.state_for(batch)
        alone_late = times + self._gap_ms - 1 + self._lateness_ms <= self._time_ms
        if not alone_late.any():
            self._changed(sessions, self._add(sessions, batch, slots, times))
            return
        doubtful = alone_late & self._may_be_saved(sessions, slots, alone_late)
        late = alone_late & ~doubtful
        begin = 0
        changed = [_NO_ENTRIES]
        for row in [*np.flatnonzero(doubtful).tolist(), batch.num_rows]:
            part = np.flatnonzero(~late[begin:row]).astype(np.int32) + begin
            if len(part):
                changed.append(self._add(sessions, batch.take(pa.array(part)), slots[part], times[part]))
            if row < batch.num_rows:
                if self._joins_a_session(sessions, slots[row : row + 1], int(times[row])):
                    one = batch.slice(row, 1), slots[row : row + 1], times[row : row + 1]
                    changed.append(self._add(sessions, *one))
                else:
                    late[row] = True
            begin = row + 1
        self._changed(sessions, sessions.still_there(np.unique(np.concatenate(changed))))
        if late.any():
            self.count_late_rows(int(late.sum()))
        if late.any() and self._late_output_tag:
            self.output.emit_side(self._late_output_tag, batch.filter(pa.array(late)))

    def _may_be_saved(self, sessions: SessionState, slots: Slots, alone_late: BoolArray) -> BoolArray:
        """Rows whose key has a session, or a row of this batch that makes one."""
        distinct = np.unique(slots[alone_late])
        offsets, _ = sessions.sessions_of(distinct)
        with_session = np.union1d(distinct[np.diff(offsets) > 0], slots[~alone_late])
        return np.isin(slots, with_session)

    def _joins_a_session(self, sessions: SessionState, slot: Slots, time_ms: int) -> bool:
        _, entries = sessions.sessions_of(slot)
        overlaps = (sessions.starts[entries] < time_ms + self._gap_ms) & (sessions.ends[entries] > time_ms)
        return bool(overlaps.any())

    @staticmethod
    def _add(sessions: SessionState, batch: pa.RecordBatch, slots: Slots, times: Int64Array) -> Slots:
        """Returns the sessions that have changed, each once."""
        entries, changed = sessions.add_rows(slots, times)
        sessions.contents.fold(entries, batch)
        return changed

    def _changed(self, sessions: SessionState, changed: Slots) -> None:
        """Results that were out are out of date: they come again, once a batch. Sessions that are purged are over."""
        passed = sessions.ends[changed] - 1 <= self._time_ms
        sessions.set_fired(changed, passed)
        if passed.any():
            self._emit(sessions, changed[passed])
            if self.purges:
                sessions.remove(changed[passed])
                changed = changed[~passed]
        sessions.remind(changed)
        self.emit_ready_after(changed)
        if self._by_clock:
            self._arm()

    def emit_early(self, entries: Slots) -> None:
        """Emit the results so far of sessions that are not over. One that is purged is over: what comes begins
        another."""
        sessions = check(self._state, "there is no state, although sessions are ready")
        backend = check(self.backend, "there is no backend, although sessions are ready")
        entries = entries[sessions.ends[entries] - 1 > self._time_ms]
        if len(entries):
            self._emit(sessions, entries)
        backend.touch(sessions.slot_of[entries])
        if self.purges:
            sessions.remove(entries)

    # --- watermarks ---------------------------------------------------------------------------------------------------

    def advance(self, watermark: Watermark) -> None:
        self.emit_ready_by_watermark()
        if not self._by_clock and self._may_be_due(watermark.timestamp_ms):
            self._begin(watermark)
        else:
            self.output.emit_watermark(watermark)

    def _may_be_due(self, time_ms: int) -> bool:
        sessions = self._state
        return sessions is not None and (sessions.may_be_due(time_ms) or self.due_outside_now_ms() <= time_ms)

    @property
    def _time_ms(self) -> int:
        return self._clock_ms if self._by_clock else self.watermark_ms

    def finish(self) -> None:
        """Sessions of processing time that no clock will end any more come out now."""
        if self._by_clock:
            self._advance_clock(MAX_WATERMARK_MS)

    def _arm(self) -> None:
        """Ask for a timer when the first sessions are over."""
        sessions = self._state
        at_ms = self.due_outside_now_ms() + 1
        if sessions is not None:
            at_ms = min(at_ms, sessions.next_look_ms())
        if at_ms <= NOTHING_DUE:
            self._timer.arm(self.context.processing_time, max(at_ms, self.context.processing_time.now_ms() + 1))

    def _on_timer(self, at_ms: int) -> None:
        self._advance_clock(max(self.context.processing_time.now_ms(), at_ms) - 1)
        if not self._is_working:
            self._arm()

    def _advance_clock(self, time_ms: int) -> None:
        self._clock_ms = max(self._clock_ms, time_ms)
        if not self._is_working and self._may_be_due(self._clock_ms):
            self._begin(None)

    def _begin(self, watermark: Watermark | None) -> None:
        self._pending, self._is_working = watermark, True
        self._take_due()

    def _take_due(self) -> None:
        """What is over, of keys in memory: kept ones go, the others are to be emitted, in the order of their ends."""
        sessions, backend = self._state, self.backend
        sessions = check(sessions, "there is no sessions, although something is due")
        backend = check(backend, "there is no backend, although something is due")
        if self.due_outside_now_ms() <= self._time_ms:
            backend.load_due(self._state_name, self._time_ms, KEYS_PER_LOAD)
        due = sessions.due(min(self._time_ms, self.due_outside_now_ms()))
        gone = due[sessions.fired[due]]
        backend.touch(sessions.slot_of[gone])
        sessions.remove(gone)
        due = due[~sessions.fired[due]]
        self._due = due[np.lexsort((sessions.slot_of[due], sessions.ends[due]))]

    @property
    def has_pending_work(self) -> bool:
        return self._is_working

    def continue_work(self) -> None:
        """Emit one slice; when nothing is left, let the watermark go on."""
        sessions = self._state
        if not self._is_working or sessions is None:
            return
        part = self._due[: sessions.contents.windows_per_slice]
        part = part[: sessions.contents.windows_at_once(part)]
        self._due = self._due[len(part) :]
        if len(part):
            backend = check(self.backend, "there is no backend, although there are sessions")
            self._emit(sessions, part)
            backend.touch(sessions.slot_of[part])
            if self._lateness_ms and not self.purges:
                sessions.set_fired(part, np.ones(len(part), np.bool_))
                sessions.remind(part)
            else:
                sessions.remove(part)
        if not len(self._due):
            self._take_due()  # those that the lateness does not keep, and those that were not in memory
        if not len(self._due) and self.due_outside_now_ms() > self._time_ms:
            watermark, self._pending, self._is_working = self._pending, None, False
            if watermark is not None:
                self.output.emit_watermark(watermark)
            if self._by_clock:
                self._arm()

    def _emit(self, sessions: SessionState, entries: Slots) -> None:
        backend = self.backend
        backend = check(backend, "there is no backend, although there are entries")
        keys = backend.keys(sessions.slot_of[entries])
        starts, ends = sessions.starts[entries], sessions.ends[entries]
        fired = FiredWindows(backend.key_fields, keys, starts, ends, entries, time_type=self.time_type)
        sessions.contents.emit(fired, self.output)
        if self._early is not None:
            self._early.note_fired(entries)


def _spelled(windows: str) -> str:
    *domain, gap = windows.split(",")
    return f"{gap} ms{' of processing time' if domain else ''}"
