"""Batch by batch over keyed state and timers in columns: the user's KeyedBatchProcessFunction, of one or two inputs.

Decides how a batch's keys are numbered (each once, in the order of their appearance) and when timers fire: in slices,
by time; a watermark goes on when nothing that it makes due is left. State is only read and written in columns, so the
cost of Python is per batch. There is no such operator in Flink.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from snapline.dataflow.api.state import (
    AggregatingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    StateDescriptor,
    ValueStateDescriptor,
)
from snapline.dataflow.config import DROP_STATE_COLUMNS
from snapline.dataflow.elements import Watermark
from snapline.dataflow.errors import StateError
from snapline.dataflow.snapshot.declared_states import declared_names, declared_states
from snapline.dataflow.snapshot.state_format import KeyedStateHeader
from snapline.runtime.cores.machine import check
from snapline.taskmanager.operators.base.event_time import event_times_ms
from snapline.taskmanager.operators.base.function_operator import FunctionRuntimeContext
from snapline.taskmanager.operators.base.incremental_operator import IncrementalKeyedOperator
from snapline.taskmanager.operators.process.function_results import emit_result
from snapline.taskmanager.state.batch_scope import number_slots
from snapline.taskmanager.state.index.slots import Slots, grown
from snapline.taskmanager.state.keyed_backend import KeyedStateBackend
from snapline.taskmanager.state.keyed_timers import timer_times

TIMERS_PER_SLICE = 16_384
_NO_TIMES: npt.NDArray[np.int64] = np.zeros(0, np.int64)


class _Keys:
    """The distinct keys of a batch (implements BatchKeys)."""

    def __init__(self, backend: KeyedStateBackend, distinct: Slots, rows: Slots) -> None:
        self._backend, self._distinct = backend, distinct
        self.rows = rows
        self._columns: pa.RecordBatch | None = None

    @property
    def columns(self) -> pa.RecordBatch:
        if self._columns is None:
            arrays = self._backend.keys(self._distinct)
            self._columns = pa.RecordBatch.from_arrays(arrays, schema=pa.schema(self._backend.key_fields))
        return self._columns

    def __len__(self) -> int:
        return len(self._distinct)


class _State:
    """The keyed state of a batch (implements BatchState)."""

    def __init__(self, operator: KeyedBatchesOperator, backend: KeyedStateBackend) -> None:
        self._operator, self._backend = operator, backend
        self._timers = backend.get_timers().event
        self._known: dict[str, tuple[StateDescriptor, Any]] = {}
        """The descriptor that asked last for the state of a name: to compare it takes as long as to read a short
        column."""
        self.slots: Slots = np.zeros(0, np.int32)
        """Slots of the batch's distinct keys, in their order."""
        self.row_slots: Slots = np.zeros(0, np.int32)
        self.event_times_ms: npt.NDArray[np.int64] = _NO_TIMES

    @property
    def watermark_ms(self) -> int:
        return self._operator.watermark_ms

    def of(self, descriptor: StateDescriptor) -> Any:
        """Return the backend's state with this descriptor. StateError for one with a time-to-live, which whole columns
        know nothing of."""
        known = self._known.get(descriptor.name) if isinstance(descriptor, StateDescriptor) else None
        if known is None or known[0] is not descriptor:
            state = self._state_of(descriptor)
            known = self._known[descriptor.name] = (descriptor, state)
        return known[1]

    def _state_of(self, descriptor: StateDescriptor) -> Any:
        if getattr(descriptor, "ttl", None) is not None:
            raise StateError(
                f"state {descriptor.name!r} has a time-to-live, which a function over batches cannot have: clear what is old by an "
                "event-time timer, or take process"
            )
        match descriptor:
            case ValueStateDescriptor():
                return self._backend.get_state(descriptor)
            case ListStateDescriptor():
                return self._backend.get_list_state(descriptor)
            case MapStateDescriptor():
                return self._backend.get_map_state(descriptor)
            case ReducingStateDescriptor():
                return self._backend.get_reducing_state(descriptor)
            case AggregatingStateDescriptor():
                return self._backend.get_aggregating_state(descriptor)
        raise StateError(f"{descriptor!r} is no state that a function over batches can have")

    def get(self, descriptor: StateDescriptor) -> pa.Array:
        return self.of(descriptor).get_batch(self.slots)

    def put(self, descriptor: ValueStateDescriptor, values: pa.Array) -> None:
        if isinstance(values, np.ndarray):
            values = pa.array(values)
        if len(values) != len(self.slots):
            raise StateError(
                f"state {descriptor.name!r}: {len(values)} values for {len(self.slots)} keys: put one per distinct key, in the "
                "order of keys.columns"
            )
        self.of(descriptor).put_batch(self.slots, values)

    @staticmethod
    def _check_length(descriptor: StateDescriptor, slots: Slots, *columns: pa.Array) -> None:
        """StateError unless there is one of each column for each row: kernels would read beyond those that are
        missing."""
        for column in columns:
            if len(column) != len(slots):
                raise StateError(
                    f"state {descriptor.name!r}: {len(column)} values for {len(slots)} rows: give one per row, in their order"
                )

    def append(
        self, descriptor: ListStateDescriptor, values: pa.Array, rows: npt.NDArray[np.int64] | None = None
    ) -> None:
        slots = self.row_slots if rows is None else self.row_slots[rows]
        self._check_length(descriptor, slots, values)
        self.of(descriptor).add_batch(slots, values)

    def lookup(self, descriptor: MapStateDescriptor, map_keys: pa.Array) -> pa.Array:
        self._check_length(descriptor, self.row_slots, map_keys)
        return self.of(descriptor).lookup_batch(self.row_slots, map_keys)

    def put_entries(self, descriptor: MapStateDescriptor, map_keys: pa.Array, values: pa.Array) -> None:
        self._check_length(descriptor, self.row_slots, map_keys, values)
        self.of(descriptor).put_batch(self.row_slots, map_keys, values)

    def clear(self, descriptor: StateDescriptor, keys: npt.NDArray[np.bool_] | None = None) -> None:
        self.of(descriptor).clear_batch(self.slots if keys is None else self.slots[np.asarray(keys)])

    def register_event_time_timers(self, times_ms: npt.NDArray[np.int64], keys: npt.NDArray[np.int32]) -> None:
        self._timers.register(self.slots[np.asarray(keys)], timer_times(times_ms))

    def delete_event_time_timers(self, times_ms: npt.NDArray[np.int64], keys: npt.NDArray[np.int32]) -> None:
        self._timers.delete(self.slots[np.asarray(keys)], timer_times(times_ms))


class KeyedBatchesOperator(IncrementalKeyedOperator):
    """One function, one or two inputs."""

    why_no_state = "functions over batches ask for it with each batch: state.get(descriptor) in process_batch"
    asks_later = True

    def __init__(
        self,
        inputs: Sequence[tuple[tuple[str, ...], str]],
        methods: Sequence[Callable[[Any, pa.RecordBatch, Any], Any]],
        function: Any,
        output_schema: pa.Schema | None,
    ) -> None:
        """`inputs`: key columns and event time column of each."""
        super().__init__(inputs[0][0])
        self._inputs, self._methods, self._function, self._schema = inputs, methods, function, output_schema
        self._numbers: Slots = np.zeros(64, np.int32)
        self._state: _State | None = None
        self._due: Watermark | None = None

    # --- life ---------------------------------------------------------------------------------------------------------

    @property
    def hooked_function(self) -> Any:
        return self._function

    def backend_created(
        self, backend: KeyedStateBackend, header: KeyedStateHeader | None, batch: pa.RecordBatch | None
    ) -> None:
        self._state = _State(self, backend)

    def backend_restored(self, backend: KeyedStateBackend) -> None:
        """States that are declared otherwise now become so before anything is written, as far as they are known."""
        state = self._state
        state = check(state, "there is no state, although backend_created has made it")
        for descriptor in declared_states(self._function):
            if backend.has_state(descriptor.name):
                state.of(descriptor)
        if backend.get_timers().processing.next_timestamp() is not None and not backend.drop_columns:
            raise StateError(
                f"operator {self.context.operator_uid!r}: the snapshot holds timers of processing time, which a function over batches has "
                f"not, so that they would never fire: go on with process, or leave them unfired by {DROP_STATE_COLUMNS.key} = true"
            )
        if names := declared_names(self._function):
            self.refuse_foreign(names, backend.restored_states)

    def open(self) -> None:
        opener = getattr(self._function, "open", None)
        if callable(opener):
            self.user_function = self._function
            self._function_opened = True
            opener(FunctionRuntimeContext(self.context, self.why_no_state))
        backend = self.backend
        if self.restored_at_work and backend is not None and backend.get_timers().event.has_due(self.watermark_ms):
            self._due = Watermark(self.watermark_ms)

    # --- rows ---------------------------------------------------------------------------------------------------------

    def process_batch(self, batch: pa.RecordBatch, input_index: int = 0) -> None:
        if not batch.num_rows:
            return
        key_columns, time_column = self._inputs[input_index]
        times = event_times_ms(batch, time_column) if time_column else _NO_TIMES
        keys, state = self._numbered(self.slots_of(batch, key_columns), times)
        emit_result(self._methods[input_index](keys, batch, state), self._schema, self.output)

    def _numbered(self, slots: Slots, times: npt.NDArray[np.int64]) -> tuple[_Keys, _State]:
        backend, state = self.backend, self._state
        backend = check(backend, "there is no backend, although slots_of has made it")
        state = check(state, "there is no state, although slots_of has made it")
        self._numbers = grown(self._numbers, int(slots.max()) + 1)
        distinct, rows = np.empty(len(slots), np.int32), np.empty(len(slots), np.int32)
        count = number_slots(slots, self._numbers, distinct, rows)
        state.slots, state.row_slots, state.event_times_ms = distinct[:count], slots, times
        return _Keys(backend, distinct[:count], rows), state

    # --- timers -------------------------------------------------------------------------------------------------------

    def advance(self, watermark: Watermark) -> None:
        if self.backend is not None and self.backend.get_timers().event.has_due(watermark.timestamp_ms):
            self._due = watermark
        else:
            self.output.emit_watermark(watermark)

    @property
    def has_pending_work(self) -> bool:
        return self._due is not None

    def continue_work(self) -> None:
        """Fire one slice of timers; when none is left, let the watermark go on."""
        due, backend = self._due, self.backend
        if due is None or backend is None:
            return
        queue = backend.get_timers().event
        slots, _, times = queue.advance(due.timestamp_ms, TIMERS_PER_SLICE)
        if len(slots):
            backend.touch(slots)
            keys, state = self._numbered(slots, times)
            emit_result(self._function.on_timers(keys, times, state), self._schema, self.output)
        if not queue.has_due(due.timestamp_ms):
            self._due = None
            self.output.emit_watermark(due)
