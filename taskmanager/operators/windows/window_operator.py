"""What window operators have in common: one adopted state, made for the columns of the input, and how it goes on from a
snapshot.

Decides what a snapshot may hold: windows that are the same, aggregates that may be others as far as `AggregatePlan`
lets them. Every subtask says in the snapshot which accumulators it has, and the type of its windows' times, also one
without a key, so that after a rescale all of them have the same. It does not know what windows are. Mirrors the state
handling of Flink's WindowOperator.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Generic, TypeVar

import pyarrow as pa

from snapline.dataflow.api.aggregate_types import WINDOW_TIME, window_time_of
from snapline.dataflow.columnar.arrow_columns import Int64Array
from snapline.dataflow.elements import MIN_WATERMARK_MS
from snapline.dataflow.errors import StateError
from snapline.dataflow.ids import CheckpointID
from snapline.dataflow.snapshot.handles import OperatorStateMode
from snapline.dataflow.snapshot.state_format import KeyedStateHeader
from snapline.runtime.cores.machine import check
from snapline.taskmanager.operators.aggregation.accumulator_shapes import keep_shapes, restored_shapes, start_from
from snapline.taskmanager.operators.base.earliest_timer import EarliestTimer
from snapline.taskmanager.operators.base.function_operator import FunctionRuntimeContext
from snapline.taskmanager.operators.base.incremental_operator import IncrementalKeyedOperator
from snapline.taskmanager.operators.base.keyed_operator import WATERMARK_STATE
from snapline.taskmanager.operators.base.operator_contract import OperatorSnapshot, RestoredState
from snapline.taskmanager.operators.windows.triggered_contents import TriggeredContents
from snapline.taskmanager.operators.windows.window_contents import (
    ContentsMaker,
    ContentsState,
    WindowContents,
)
from snapline.taskmanager.state.adopted_state import NOTHING_DUE
from snapline.taskmanager.state.index.slots import Slots
from snapline.taskmanager.state.keyed_backend import KeyedStateBackend

KEYS_PER_LOAD = 16_384
"""So many keys that are due come into memory between two looks at the control mail."""
WINDOW_TIME_STATE = "window-time"
"""A union list of operator state: unit and zone of the windows' times, of each subtask that has seen a row."""
StateT = TypeVar("StateT", bound=ContentsState)


class WindowOperator(IncrementalKeyedOperator, Generic[StateT]):
    """Base of the operators over windows."""

    def __init__(self, key_columns: Sequence[str], maker: ContentsMaker, state_prefix: str, windows: str) -> None:
        """`windows`: which ones, as part of the state's name: state of others is refused."""
        super().__init__(key_columns)
        self._maker = maker
        self._state_prefix = state_prefix
        self._state_name = state_prefix + windows
        self._state: StateT | None = None
        self._checked: dict[int, pa.Schema] = {}
        self._time_type: pa.DataType | None = None
        self._early: TriggeredContents | None = None
        """With a trigger: what says which windows fire before they are over."""
        self._early_timer = EarliestTimer(self._on_early_timer)
        self._first_ms: int | None = None
        """The least time of the rows that came before the first watermark."""

    # --- for subclasses -----------------------------------------------------------------------------------------------

    @abstractmethod
    def make_state(self, contents: WindowContents) -> StateT:
        """Create the operator's state without any window."""

    @abstractmethod
    def contents_fields(self, field: pa.Field) -> list[pa.Field]:
        """The fields of the contents, in the state's column of a snapshot."""

    @abstractmethod
    def refusal(self, windows: str) -> str:
        """That a snapshot holds other windows than the job asks for; `windows` as in the name of the state."""

    def emit_early(self, entries: Slots) -> None:
        """Emit the results so far of these windows, of which some may be over, and forget them if they are purged."""
        raise NotImplementedError(f"{type(self).__name__} takes no trigger")

    # --- results before the end ---------------------------------------------------------------------------------------

    @property
    def purges(self) -> bool:
        """Whether a window that fires early is emptied."""
        return self._early is not None and self._early.purges

    def emit_ready_after(self, entries: Slots) -> None:
        """Rows were folded into these: emit what that makes ready."""
        if self._early is not None:
            self._emit_ready(self._early, self._early.ready_after_rows(entries))
            self.arm_early()

    def emit_ready_by_watermark(self) -> None:
        """The watermark has risen: emit what that makes ready."""
        if self._early is not None:
            self._emit_ready(self._early, self._early.ready_by_watermark(self.watermark_ms, self.first_ms))

    def note_first_rows(self, times: Int64Array) -> None:
        """Rows with these times have come, of which there is at least one."""
        if self.watermark_ms == MIN_WATERMARK_MS:
            first_ms = int(times.min())
            self._first_ms = first_ms if self._first_ms is None else min(self._first_ms, first_ms)

    @property
    def first_ms(self) -> int:
        """The least time of the rows before the first watermark; the least of all where it is not known."""
        return MIN_WATERMARK_MS if self._first_ms is None else self._first_ms

    def arm_early(self) -> None:
        """Ask to be called when the clock makes windows ready."""
        if self._early is not None:
            time = self.context.processing_time
            self._early_timer.arm(time, self._early.next_by_clock_ms(time.now_ms()))

    def _on_early_timer(self, at_ms: int) -> None:
        if self._early is not None:
            self._emit_ready(self._early, self._early.ready_by_clock(max(self.context.processing_time.now_ms(), at_ms)))
            self.arm_early()

    def _emit_ready(self, early: TriggeredContents, entries: Slots) -> None:
        if len(entries):
            self.emit_early(entries)
            early.note_fired(entries)

    # --- state --------------------------------------------------------------------------------------------------------

    def initialize_state(self, restored: RestoredState) -> None:
        self._maker.open(FunctionRuntimeContext(self.context, self.why_no_state))
        super().initialize_state(restored)
        self._first_ms = MIN_WATERMARK_MS if restored.is_restored else None
        self._restore_time_type(restored)
        if self._state is None:  # a subtask without keys goes on with the accumulators of the others
            start_from(restored_shapes(self.operator_state), self._maker, self)

    def _restore_time_type(self, restored: RestoredState) -> None:
        """Times of windows go on as they were: what comes after has keys and state of this type. Snapshots that do not
        know it held naive milliseconds."""
        known = self.operator_state.list_state(WINDOW_TIME_STATE, OperatorStateMode.UNION).get()
        described = next((one for one in known if one), None)
        if described is not None:
            self._time_type = pa.timestamp(described["unit"], described["zone"])
        elif WATERMARK_STATE in (restored.operator_lists or {}) and not known:
            self._time_type = WINDOW_TIME

    @property
    def time_type(self) -> pa.DataType:
        """The type of `window_start` and `window_end`."""
        return WINDOW_TIME if self._time_type is None else self._time_type

    def note_event_time(self, batch: pa.RecordBatch, column: str) -> None:
        """The first batch ever decides on the type of the windows' times."""
        if self._time_type is None:
            self._time_type = window_time_of(batch.schema.field(column).type)

    def backend_created(
        self, backend: KeyedStateBackend, header: KeyedStateHeader | None, batch: pa.RecordBatch | None
    ) -> None:
        field = None if header is None else self._restored_field(header)
        if field is not None:
            fields = self.contents_fields(field)
            shapes = restored_shapes(self.operator_state) or self._maker.shapes_of(fields)
            start_from(shapes, self._maker, self)
            contents = self._maker.of_snapshot(fields, self.current_watermark)
        elif batch is not None:
            contents = self._maker.of_batch(batch.schema, self.current_watermark)
        else:
            return
        if isinstance(contents, TriggeredContents):
            contents.start(self.context.processing_time.now_ms, self.watermark_ms)
            self._early = contents
        self._state = self.make_state(contents)
        backend.adopt_state(self._state)

    def _restored_field(self, header: KeyedStateHeader) -> pa.Field | None:
        fields = [field for field in header.state_fields if field.name.startswith(self._state_prefix)]
        others = [field.name for field in fields if field.name != self._state_name]
        if others:
            raise StateError(
                f"operator {self.context.operator_uid!r}: {self.refusal(others[0].removeprefix(self._state_prefix))}, or give the "
                "operator another uid to start without its state"
            )
        return fields[0] if fields else None

    def state_for(self, batch: pa.RecordBatch, input_index: int = 0) -> StateT:
        """The state, once it is clear that the batch's columns are what it was made for. After `slots_of`."""
        if self._state is None:  # restored from a snapshot that held none
            backend = check(self.backend, "there is no backend, although slots_of made it")
            self.backend_created(backend, None, batch)
        state = self._state
        state = check(state, "there is no state, although it was just made")
        if not self._has_checked(batch.schema, input_index):
            state.contents.check(batch.schema, self.context.operator_uid, input_index)
            state.describe()
            self._checked[input_index] = batch.schema
        return state

    def _has_checked(self, schema: pa.Schema, input_index: int) -> bool:
        """Whether a batch of this schema was the last that was taken in by this input."""
        checked = self._checked.get(input_index)
        return checked is not None and checked.equals(schema)

    def due_outside_now_ms(self) -> int:
        """When the first key that is not in memory is due."""
        return NOTHING_DUE if self._state is None else self.due_outside_ms(self._state_name)

    def snapshot_state(self, checkpoint_id: CheckpointID, timestamp_ms: int) -> OperatorSnapshot:
        keep_shapes(self.operator_state, self._maker.shapes)
        known = self._time_type
        self.operator_state.list_state(WINDOW_TIME_STATE, OperatorStateMode.UNION).update(
            [{} if known is None else {"unit": known.unit, "zone": known.tz}]
        )
        return super().snapshot_state(checkpoint_id, timestamp_ms)
