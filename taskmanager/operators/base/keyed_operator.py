"""What operators over keyed state have in common: the backend, made when the types of the key are known, and the
watermark.

Decides when the backend comes into being: on restore, from the snapshot's own description of the key, else with the
first batch. The operator's watermark lies in the snapshot (union, the lowest counts), so that a row that was late is
late again after a restore. The last one of all does not count: it comes again, and whoever is behind the operator may
not have had it, because a barrier has overtaken it. It does not know what the state is for. Mirrors the keyed part of
Flink's AbstractStreamOperator.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, TypeVar

import pyarrow as pa

from snapline.dataflow.api.functions import CheckpointedFunction
from snapline.dataflow.config import DROP_STATE_COLUMNS, ConfigOption
from snapline.dataflow.elements import MAX_WATERMARK_MS, MIN_WATERMARK_MS, Watermark
from snapline.dataflow.errors import StateError
from snapline.dataflow.ids import CheckpointID
from snapline.dataflow.snapshot.handles import OperatorStateMode
from snapline.dataflow.snapshot.state_evolution import key_columns_problem
from snapline.dataflow.snapshot.state_format import KeyedStateHeader, read_header, refusing_unfit
from snapline.taskmanager.operators.base.function_operator import (
    FunctionRuntimeContext,
    InitializationContext,
    SnapshotContext,
    tell_listener,
)
from snapline.taskmanager.operators.base.operator_contract import (
    KeyedSnapshotPart,
    OperatorSnapshot,
    RestoredState,
    StreamOperator,
)
from snapline.taskmanager.operators.base.operator_state import OperatorStateBackend
from snapline.taskmanager.state.index.slots import Slots
from snapline.taskmanager.state.keyed_backend import KeyedStateBackend

T = TypeVar("T")
WATERMARK_STATE = "operator-watermark"


class KeyedOperator(StreamOperator):
    """Base of the operators over keyed state."""

    why_no_state = "functions of windows have none beside the rows of their window: use key_by(...).process(...)"
    """What a user's function is told that asks for state when it is opened."""
    asks_later = False
    """Whether states are asked for by a function, and not by the operator when it is restored."""

    def __init__(self, key_columns: Sequence[str]) -> None:
        self.key_columns = tuple(key_columns)
        self.backend: KeyedStateBackend | None = None
        self.operator_state = OperatorStateBackend()
        self.watermark_ms = MIN_WATERMARK_MS
        """The last watermark that came in, also while what it makes due is still being worked off."""
        self._may_be_unheard = False
        """Who is behind the operator may not have had its restored watermark."""
        self.restored_at_work = False
        """The snapshot was taken before all that the watermark makes due had been worked off."""
        self.user_function: Any = None
        """A user's function with `open` and `close`, if the operator calls one."""
        self._function_opened = False

    @property
    def hooked_function(self) -> Any:
        """The user's function that may be a CheckpointedFunction or a CheckpointListener."""
        return self.user_function

    # --- for subclasses -----------------------------------------------------------------------------------------------

    def backend_created(
        self, backend: KeyedStateBackend, header: KeyedStateHeader | None, batch: pa.RecordBatch | None
    ) -> None:
        """Declare states. Either `header` (a restore; the state follows) or `batch` (the first one) is given."""

    def backend_restored(self, backend: KeyedStateBackend) -> None:
        """All of the state is there again."""

    # --- life ---------------------------------------------------------------------------------------------------------

    def initialize_state(self, restored: RestoredState) -> None:
        self.operator_state = OperatorStateBackend(restored.operator_lists, restored.kept_modes)
        watermarks = self.operator_state.list_state(WATERMARK_STATE, OperatorStateMode.UNION).get()
        reached_ms = min((watermark["ms"] for watermark in watermarks), default=MIN_WATERMARK_MS)
        self.watermark_ms = MIN_WATERMARK_MS if reached_ms == MAX_WATERMARK_MS else reached_ms
        self._may_be_unheard = self.watermark_ms > MIN_WATERMARK_MS
        self.restored_at_work = any(watermark["at_work"] for watermark in watermarks)
        if restored.keyed:
            headers = [read_header(part.read_range) for part in reversed(restored.keyed)]
            header = max(headers, key=lambda one: len(one.state_fields))  # the newest delta, of who has had most states
            problem = key_columns_problem(header.key_fields, self.key_columns)
            if problem:
                raise StateError(problem)
            with refusing_unfit():
                backend = self._create(pa.schema(header.key_fields))
                self.backend_created(backend, header, None)
            backend.restore(restored.keyed)
            self.backend_restored(backend)
            if not self.asks_later:
                self.refuse_foreign(backend.asked_for, backend.restored_states)
        if isinstance(self.hooked_function, CheckpointedFunction):
            self.hooked_function.initialize_state(
                InitializationContext(restored.is_restored, restored.checkpoint_id, self.operator_state)
            )

    def refuse_foreign(self, own: Collection[str], found: AbstractSet[str]) -> None:
        """Raise StateError where the snapshot has states for this operator, `found`, of which none is its `own`: it was
        written by another one, and its rows would never come out."""
        if found and found.isdisjoint(own):
            held, asked = (", ".join(map(repr, sorted(names))) for names in (found, own))
            raise StateError(
                f"operator {self.context.operator_uid!r}: the snapshot holds {held} for it, and it asks for {asked or 'none of them'}, so "
                "that it would begin without state: keep the operator and the names of its states, or give it another uid"
            )

    def _create(self, key_schema: pa.Schema) -> KeyedStateBackend:
        backend = self.backend = self.make_backend(key_schema)
        backend.drop_columns = self.setting(DROP_STATE_COLUMNS)
        return backend

    def make_backend(self, key_schema: pa.Schema) -> KeyedStateBackend:
        """In memory, for operators with state of their own making."""
        return KeyedStateBackend(key_schema, self.context.key_group_range, self.context.max_parallelism)

    def setting(self, option: ConfigOption[T]) -> T:
        """What the job is configured with."""
        text = self.context.configuration.get(option.key, option.default)
        return option.read(text)

    def process_watermark(self, watermark: Watermark) -> None:
        """Advance, or say once more what the snapshot holds: the barrier of an unaligned checkpoint may have overtaken
        that watermark, so that who is behind the operator has not had it."""
        if watermark.timestamp_ms > self.watermark_ms:
            self.watermark_ms = watermark.timestamp_ms
            self._may_be_unheard = False
            self.advance(watermark)
        elif self._may_be_unheard and not self.has_pending_work:
            self._may_be_unheard = False
            self.pass_on(Watermark(self.watermark_ms))

    def advance(self, watermark: Watermark) -> None:
        """The watermark rose. Default: pass it on."""
        self.pass_on(watermark)

    def pass_on(self, watermark: Watermark) -> None:
        """Say the watermark, or one behind which all rows are that may still go out."""
        self.output.emit_watermark(watermark)

    def slots_of(self, batch: pa.RecordBatch, key_columns: Sequence[str] = ()) -> Slots:
        """The slot of each row's key. The first batch ever decides on the types of the key. `key_columns`: under which
        names this input has the key, if not those of the operator."""
        schema = batch.schema
        columns = []
        for name in key_columns or self.key_columns:
            position = schema.get_field_index(name)
            if position < 0:
                raise KeyError(f"no key column {name!r}: the columns are {', '.join(map(repr, schema.names))}")
            columns.append(batch.column(position))
        backend = self.backend
        if backend is None:
            fields = [pa.field(name, column.type) for name, column in zip(self.key_columns, columns, strict=True)]
            untyped = next((field.name for field in fields if pa.types.is_null(field.type)), None)
            if untyped is not None:
                raise TypeError(
                    f"key column {untyped!r} is of type null in the first batch, so the type of the key is not known: cast it, "
                    "or declare the schema of the operator before key_by"
                )
            backend = self._create(pa.schema(fields))
            self.backend_created(backend, None, batch)
        try:
            return backend.slots(columns)
        except TypeError as refusal:
            if not key_columns or tuple(key_columns) == self.key_columns:
                raise
            raise TypeError(f"{refusal} (this input calls it {', '.join(map(repr, key_columns))})") from None

    def snapshot_state(self, checkpoint_id: CheckpointID, timestamp_ms: int) -> OperatorSnapshot:
        if isinstance(self.hooked_function, CheckpointedFunction):
            self.hooked_function.snapshot_state(SnapshotContext(checkpoint_id, timestamp_ms))
        self.operator_state.list_state(WATERMARK_STATE, OperatorStateMode.UNION).update(
            [{"ms": self.watermark_ms, "at_work": self.has_pending_work}]
        )
        return OperatorSnapshot(self.snapshot_keyed(checkpoint_id), self.operator_state.snapshot())

    def snapshot_keyed(self, checkpoint_id: CheckpointID) -> tuple[KeyedSnapshotPart, ...]:
        """The synchronous part of the keyed state."""
        return self.backend.snapshot_parts() if self.backend is not None else ()

    def notify_checkpoint_complete(self, checkpoint_id: CheckpointID) -> None:
        tell_listener(self.hooked_function, "notify_checkpoint_complete", checkpoint_id)

    def notify_checkpoint_aborted(self, checkpoint_id: CheckpointID) -> None:
        tell_listener(self.hooked_function, "notify_checkpoint_aborted", checkpoint_id)

    def current_watermark(self) -> int:
        """Event time of the operator, in milliseconds since the epoch."""
        return self.watermark_ms

    def open(self) -> None:
        opener = getattr(self.user_function, "open", None)
        self._function_opened = True
        if callable(opener):
            opener(FunctionRuntimeContext(self.context, self.why_no_state))

    def close(self) -> None:
        closer = getattr(self.user_function, "close", None)
        backend, self.backend = self.backend, None
        try:
            if self._function_opened and callable(closer):
                self._function_opened = False
                closer()
        finally:
            if backend is not None:
                backend.close()
