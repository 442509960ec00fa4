"""Global windows that fire by the clock, by the watermark, or when no rows come; those of a CountTrigger are
`count_windows`.

A key has one window without an end, so that what its trigger has not fired never comes out. The window's contents say
which are ready. Mirrors Flink's WindowOperator with GlobalWindows.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from snapline.dataflow.elements import MAX_WATERMARK_MS, MIN_WATERMARK_MS, Watermark
from snapline.runtime.cores.machine import check
from snapline.taskmanager.operators.windows.count_windows import SINCE_FIRED, GlobalWindowState
from snapline.taskmanager.operators.windows.window_contents import ContentsMaker, FiredWindows, WindowContents
from snapline.taskmanager.operators.windows.window_operator import WindowOperator
from snapline.taskmanager.state.index.slots import Slots, grown

STATE_PREFIX = "global-windows-"
_NONE = -1


class GlobalWindowOperator(WindowOperator[GlobalWindowState]):
    """One window for each key."""

    def __init__(self, key_columns: tuple[str, ...], maker: ContentsMaker) -> None:
        super().__init__(key_columns, maker, STATE_PREFIX, "triggered")
        self._slot_of: Slots = np.full(64, _NONE, np.int32)
        """The key of each entry, by what was seen since the start: others are looked up."""

    def make_state(self, contents: WindowContents) -> GlobalWindowState:
        """Create empty state with one window for each key."""
        return GlobalWindowState(self._state_name, contents)

    def contents_fields(self, field: pa.Field) -> list[pa.Field]:
        """Return the fields of the contents, which are all but the count."""
        return [child for child in field.type if child.name != SINCE_FIRED]

    def refusal(self, windows: str) -> str:
        """Return why state of other windows cannot be taken over."""
        return f"the snapshot holds {windows} windows, and the job now asks for windows without an end: keep them"

    def open(self) -> None:
        super().open()
        self.arm_early()

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
        self.emit_ready_by_watermark()
        self.output.emit_watermark(watermark)
