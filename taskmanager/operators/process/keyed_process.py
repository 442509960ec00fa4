"""Row by row over keyed state and timers: the user's KeyedProcessFunction.

Decides in which order a key's timers fire (by time; one that is deleted before its turn does not fire, one that is
registered meanwhile takes its place among those that are left), that a watermark goes on only after all that it makes
due has fired, in slices, and how rows that come back become batches. The function's `open` is called when the types of
the key are known: at once after a restore with state, else before the first row; one that takes part in checkpoints is
opened at once in any case. It does not know how state is kept.
Mirrors Flink's KeyedProcessOperator and InternalTimerServiceImpl; the loop over rows is the only one that runs in
Python.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pyarrow as pa

from snapline.dataflow.api.function_contexts import Row
from snapline.dataflow.api.functions import KeyedProcessFunction
from snapline.dataflow.api.state import (
    AggregatingState,
    AggregatingStateDescriptor,
    ListState,
    ListStateDescriptor,
    MapState,
    MapStateDescriptor,
    ReducingState,
    ReducingStateDescriptor,
    ValueState,
    ValueStateDescriptor,
)
from snapline.dataflow.elements import Watermark
from snapline.dataflow.graph.operator_specs import KeyedProcessSpec
from snapline.dataflow.snapshot.state_format import KeyedStateHeader
from snapline.runtime.cores.machine import check
from snapline.taskmanager.operators.base.earliest_timer import EarliestTimer
from snapline.taskmanager.operators.base.event_time import event_times_ms
from snapline.taskmanager.operators.base.failure import failed_read
from snapline.taskmanager.operators.base.function_operator import FunctionRuntimeContext
from snapline.taskmanager.operators.base.incremental_operator import IncrementalKeyedOperator
from snapline.taskmanager.operators.base.rows import SEQUENCES, RowBatcher, copy_of, rows_made, rows_of
from snapline.taskmanager.operators.process.states_to_come import ContextBeforeKeys, StateToCome
from snapline.taskmanager.state.keyed_backend import KeyedStateBackend
from snapline.taskmanager.state.keyed_timers import EVENT_TIME, PROCESSING_TIME, KeyedTimers, TimeDomain
from snapline.taskmanager.state.timer_queue import TimerQueue

TIMERS_PER_SLICE = 1_000
HOOKS_OF_CHECKPOINTS = ("snapshot_state", "notify_checkpoint_complete", "notify_checkpoint_aborted")


class KeyedRuntimeContext(FunctionRuntimeContext):
    """A RuntimeContext that gives keyed state to a function."""

    def __init__(self, operator: KeyedProcessOperator, backend: KeyedStateBackend) -> None:
        super().__init__(operator.context)
        self._backend = backend

    def get_state(self, descriptor: ValueStateDescriptor) -> ValueState:
        """Value state of the current key."""
        return self._backend.get_state(descriptor)

    def get_list_state(self, descriptor: ListStateDescriptor) -> ListState:
        """List state of the current key."""
        return self._backend.get_list_state(descriptor)

    def get_map_state(self, descriptor: MapStateDescriptor) -> MapState:
        """Map state of the current key."""
        return self._backend.get_map_state(descriptor)

    def get_reducing_state(self, descriptor: ReducingStateDescriptor) -> ReducingState:
        """Reducing state of the current key."""
        return self._backend.get_reducing_state(descriptor)

    def get_aggregating_state(self, descriptor: AggregatingStateDescriptor) -> AggregatingState:
        """Aggregating state of the current key."""
        return self._backend.get_aggregating_state(descriptor)


class KeyedTimerService:
    """Timers of the current key (TimerService)."""

    def __init__(self, operator: KeyedProcessOperator, backend: KeyedStateBackend, timers: KeyedTimers) -> None:
        self._operator = operator
        self._scope = backend.scope
        self._timers = timers
        self.firing: TimeDomain | None = None
        """The time domain whose timers are firing."""
        self.fires_until = 0
        self.overtaken: set[int] = set()
        """Numbers of keys that have registered a timer, due in this slice's time, while timers of theirs were to
        fire."""
        self.deleted: set[tuple[int, int]] = set()

    def begin(self, domain: TimeDomain, until: int) -> None:
        """A slice of timers is about to fire."""
        self.firing, self.fires_until = domain, until
        self.overtaken.clear()
        self.deleted.clear()

    def current_processing_time(self) -> int:
        """Return the clock of the task, in milliseconds since the epoch."""
        return self._operator.context.processing_time.now_ms()

    def current_watermark(self) -> int:
        """Return the watermark of the operator, in milliseconds since the epoch."""
        return self._operator.watermark_ms

    def register_event_time_timer(self, timestamp_ms: int) -> None:
        """Fire for the current key once the watermark reaches the time."""
        self._timers.register_event_time_timer(timestamp_ms)
        if self.firing == EVENT_TIME:
            self._registered(timestamp_ms)

    def register_processing_time_timer(self, timestamp_ms: int) -> None:
        """Fire for the current key once the clock reaches the time."""
        self._timers.register_processing_time_timer(timestamp_ms)
        if self.firing == PROCESSING_TIME:
            self._registered(timestamp_ms)

    def _registered(self, timestamp_ms: int) -> None:
        index = self._scope.index
        self.deleted.discard((index, timestamp_ms))
        if timestamp_ms <= self.fires_until:
            self.overtaken.add(index)

    def delete_event_time_timer(self, timestamp_ms: int) -> None:
        """Forget the timer, if there is one."""
        self._timers.delete_event_time_timer(timestamp_ms)
        if self.firing == EVENT_TIME:
            self.deleted.add((self._scope.index, timestamp_ms))

    def delete_processing_time_timer(self, timestamp_ms: int) -> None:
        """Forget the timer, if there is one."""
        self._timers.delete_processing_time_timer(timestamp_ms)
        if self.firing == PROCESSING_TIME:
            self.deleted.add((self._scope.index, timestamp_ms))


class KeyedProcessContext:
    """One object for all rows (ProcessContext); valid during the call that it is handed to."""

    def __init__(self, backend: KeyedStateBackend, timer_service: KeyedTimerService) -> None:
        self.timer_service = timer_service
        self.timestamp_ms: int | None = None
        """Event time of the row, or the time of the timer."""
        self.side_rows: dict[str, list[Row]] = {}
        self._backend = backend

    @property
    def time_domain(self) -> TimeDomain | None:
        """Which time the timer was registered for that fires; None for a row."""
        return self.timer_service.firing

    @property
    def current_key(self) -> Any:
        """The key: a value for one key column, a tuple for several."""
        return self._backend.current_key

    def output(self, tag: str, row: Row) -> None:
        """Emit to a side output."""
        self.side_rows.setdefault(tag, []).append(copy_of(row))


class KeyedProcessOperator(IncrementalKeyedOperator):
    """Runs the function for every row and every timer that is due."""

    asks_later = True

    def __init__(self, spec: KeyedProcessSpec) -> None:
        super().__init__(spec.key_columns)
        self.function: KeyedProcessFunction = spec.function
        self._time_column = spec.event_time_column
        self._process = getattr(spec.function, "process_element", None)
        self._batcher = RowBatcher(spec.output_schema)
        self._side_batchers = {tag: RowBatcher(schema) for tag, schema in spec.side_schemas}
        self._context: KeyedProcessContext | None = None
        self._timers: KeyedTimers | None = None
        self._service: KeyedTimerService | None = None
        self._opened = False
        self._to_come: list[StateToCome] = []
        """States that the function was given before there was a backend."""
        self._due: Watermark | None = None
        """The watermark whose timers are firing."""
        self._timer = EarliestTimer(self._on_processing_time)

    # --- life ---------------------------------------------------------------------------------------------------------

    @property
    def hooked_function(self) -> Any:
        return self.function

    def backend_created(
        self, backend: KeyedStateBackend, header: KeyedStateHeader | None, batch: pa.RecordBatch | None
    ) -> None:
        if batch is not None:
            self._open_function(backend)

    def open(self) -> None:
        if self.backend is not None:
            self._open_function(self.backend)
            self._arm()
            if self.restored_at_work and self._timers is not None and self._timers.event.has_due(self.watermark_ms):
                self._due = Watermark(self.watermark_ms)
        elif any(hasattr(self.function, name) for name in HOOKS_OF_CHECKPOINTS):
            self.open_before_keys()  # checkpoints come without rows, too

    def _open_function(self, backend: KeyedStateBackend) -> None:
        self._timers = backend.get_timers()
        self._service = KeyedTimerService(self, backend, self._timers)
        self._context = KeyedProcessContext(backend, self._service)
        if not self._opened:
            self.call_open(self.runtime_context(backend))
        for awaited in self._to_come:
            awaited.come(backend)
            for name, value in list(getattr(self.function, "__dict__", {}).items()):
                if value is awaited:
                    setattr(self.function, name, awaited.state)
        self._to_come.clear()
        if backend.asked_for:
            self.refuse_foreign(backend.asked_for, backend.restored_states)

    def open_before_keys(self) -> None:
        """Open the function, unless it is, although the types of the key are not known."""
        if not self._opened:
            before_keys = ContextBeforeKeys(self.context)
            self.call_open(before_keys)
            self._to_come = before_keys.to_come

    def call_open(self, context: FunctionRuntimeContext) -> None:
        """Call the function's `open`, if it has one."""
        self._opened = True
        opener = getattr(self.function, "open", None)
        if callable(opener):
            opener(context)

    def runtime_context(self, backend: KeyedStateBackend) -> KeyedRuntimeContext:
        """What the function's `open` gets."""
        return KeyedRuntimeContext(self, backend)

    def close(self) -> None:
        closer = getattr(self.function, "close", None)
        try:
            if self._opened and callable(closer):
                self._opened = False
                closer()
        finally:
            super().close()

    # --- rows ---------------------------------------------------------------------------------------------------------

    def process_batch(self, batch: pa.RecordBatch, input_index: int = 0) -> None:
        process = check(self._process, "there is no process, although the function of one input has it")
        self.process_rows(batch, self.key_columns, self._time_column, process)

    def process_rows(
        self,
        batch: pa.RecordBatch,
        key_columns: Sequence[str],
        time_column: str,
        process: Callable[[Row, Any], Iterable[Row] | None],
    ) -> None:
        """Call `process` for every row of a batch."""
        slots = self.slots_of(batch, key_columns)
        backend, context = self.backend, self._context
        backend = check(backend, "there is no backend, although slots_of has made it")
        context = check(context, "there is no context, although slots_of has made it")
        times = event_times_ms(batch, time_column).tolist() if time_column else None
        rows = rows_of(batch)
        numbers = backend.begin_batch(slots)
        scope = backend.scope
        results: list[Row] = []
        iterator = iter(rows)
        context.timestamp_ms = None
        try:
            if times is None:
                for row, number in zip(iterator, numbers, strict=True):
                    scope.index = number
                    produced = process(row, context)
                    if produced is not None:
                        results.extend(produced if type(produced) in SEQUENCES else rows_made(produced))
            else:
                for row, number, time in zip(iterator, numbers, times, strict=True):
                    scope.index = number
                    context.timestamp_ms = time
                    produced = process(row, context)
                    if produced is not None:
                        results.extend(produced if type(produced) in SEQUENCES else rows_made(produced))
        except Exception as error:
            raise failed_read(rows, iterator, error) from error
        backend.end_batch()
        self._emit(results, context.side_rows)
        self._arm()

    def _emit(self, rows: Sequence[Row], side_rows: dict[str, list[Row]]) -> None:
        """Send off; `side_rows` is empty afterwards."""
        batch = self._batcher.batch_of(rows)
        if batch is not None:
            self.output.emit_batch(batch)
        if side_rows:
            for tag, of_tag in side_rows.items():
                side = self._side_batchers.setdefault(tag, RowBatcher()).batch_of(of_tag)
                if side is not None:
                    self.output.emit_side(tag, side)
            side_rows.clear()

    # --- timers -------------------------------------------------------------------------------------------------------

    def advance(self, watermark: Watermark) -> None:
        if self._timers is not None and self._timers.event.has_due(watermark.timestamp_ms):
            self._due = watermark
        else:
            self.output.emit_watermark(watermark)

    @property
    def has_pending_work(self) -> bool:
        return self._due is not None

    def continue_work(self) -> None:
        """Fire one slice of event-time timers; when none is left, let the watermark go on."""
        due, timers = self._due, self._timers
        if due is None or timers is None:
            return
        self._fire(timers.event, EVENT_TIME, due.timestamp_ms)
        self._arm()
        if not timers.event.has_due(due.timestamp_ms):
            self._due = None
            self.output.emit_watermark(due)

    def _fire(self, queue: TimerQueue, domain: TimeDomain, until: int) -> None:
        backend, context, service = self.backend, self._context, self._service
        backend = check(backend, "there is no backend, although there are timers")
        context = check(context, "there is no context, although there are timers")
        service = check(service, "there is no service, although there are timers")
        slots, _, timestamps = queue.advance(until, TIMERS_PER_SLICE)
        if not len(slots):
            return
        numbers = backend.begin_batch(slots)
        scope, on_timer = backend.scope, self.function.on_timer
        results: list[Row] = []
        put_back: list[int] = []
        service.begin(domain, until)
        try:
            for position, (number, timestamp) in enumerate(zip(numbers, timestamps.tolist(), strict=True)):
                if service.deleted and (number, timestamp) in service.deleted:
                    continue
                if number in service.overtaken:
                    put_back.append(position)
                    continue
                scope.index = number
                context.timestamp_ms = timestamp
                produced: Iterable[Any] | None = on_timer(timestamp, context)
                if produced is not None:
                    results.extend(produced if type(produced) in SEQUENCES else rows_made(produced))
        finally:
            service.firing = None
        backend.end_batch()
        if put_back:
            queue.register(slots[put_back], timestamps[put_back])
        self._emit(results, context.side_rows)

    def _arm(self) -> None:
        """Ask for a processing-time timer of the task when the earliest of all keys is due."""
        if self._timers is not None:
            self._timer.arm(self.context.processing_time, self._timers.processing.next_timestamp())

    def _on_processing_time(self, at_ms: int) -> None:
        if self._timers is not None:
            self._fire(self._timers.processing, PROCESSING_TIME, self.context.processing_time.now_ms())
            self._arm()
