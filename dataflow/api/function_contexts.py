"""What a user's functions are handed: contexts, stores of operator state, timers, and the keyed state of a batch.

A function gets them as arguments of its methods (`snapline.dataflow.api.functions`), and never makes one; the task
implements them. Mirrors Flink's RuntimeContext, FunctionInitializationContext, SourceContext, TimerService and the
contexts of its process functions.
"""

from __future__ import annotations

from collections.abc import MutableMapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Literal, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from snapline.dataflow.api.accumulators import AccumulatorT, JobAccumulator
from snapline.dataflow.api.state import (
    AggregatingState,
    AggregatingStateDescriptor,
    ListState,
    ListStateDescriptor,
    MapState,
    MapStateDescriptor,
    ReducingState,
    ReducingStateDescriptor,
    StateDescriptor,
    ValueState,
    ValueStateDescriptor,
)
from snapline.dataflow.api.user_metrics import MetricGroup
from snapline.dataflow.api.windows import TimeWindow

Row = dict[str, Any]
"""One row, column name to Python value; what row-wise functions take and return."""


class RuntimeContext(Protocol):
    """What a function may ask about the subtask that it runs in (Flink: RuntimeContext).

    >>> class Where(sl.KeyedProcessFunction):
    ...     def open(self, context: sl.RuntimeContext):
    ...         self.place = f"{context.task_name} {context.subtask_index + 1}/{context.parallelism}"
    ...         self.attempt = context.attempt_number
    ...         self.value = context.get_state(sl.ValueStateDescriptor("value", pa.int64()))
    ...         self.list = context.get_list_state(sl.ListStateDescriptor("list", pa.int64()))
    ...         self.map = context.get_map_state(sl.MapStateDescriptor("map", pa.string(), pa.int64()))
    ...         self.most = context.get_reducing_state(sl.ReducingStateDescriptor("most", max, pa.int64()))
    ...         # context.get_aggregating_state(sl.AggregatingStateDescriptor(...)) likewise
    ...         context.add_accumulator("rows", sl.LongCounter())
    ...         self.rows = context.get_accumulator("rows")
    ...         self.seen = context.metrics.counter("seen")
    ...     def process_element(self, row, context):
    ...         self.rows.add(1)
    ...         yield {"place": self.place}
    >>> _ = orders.key_by("shop").process(Where(), uid="where")
    """

    @property
    def task_name(self) -> str:
        """Name of the task, for logs."""
        ...

    @property
    def subtask_index(self) -> int:
        """0 .. parallelism - 1."""
        ...

    @property
    def parallelism(self) -> int:
        """Return the number of subtasks of the operator."""
        ...

    @property
    def attempt_number(self) -> int:
        """0 for the first attempt; rises with every restart."""
        ...

    def add_accumulator(self, name: str, accumulator: AccumulatorT) -> AccumulatorT:
        """Return the accumulator, whose sum over all subtasks is in the result of `execute()`.

        It is a LongCounter, a DoubleCounter or a Histogram, and starts empty with each attempt. Raises
        JobDefinitionError for a name that is taken.
        """
        ...

    def get_accumulator(self, name: str) -> JobAccumulator:
        """One that was added. Raises JobDefinitionError for a name that is not known."""
        ...

    @property
    def metrics(self) -> MetricGroup:
        """Return what makes counters, gauges and histograms, which `/metrics` and `job.metrics()` show while the job
        runs."""
        ...

    def get_state(self, descriptor: ValueStateDescriptor) -> ValueState:
        """Keyed value state of the current key. Raises StateError outside of a keyed operator."""
        ...

    def get_list_state(self, descriptor: ListStateDescriptor) -> ListState:
        """Keyed list state of the current key."""
        ...

    def get_map_state(self, descriptor: MapStateDescriptor) -> MapState:
        """Keyed map state of the current key."""
        ...

    def get_reducing_state(self, descriptor: ReducingStateDescriptor) -> ReducingState:
        """Keyed reducing state of the current key."""
        ...

    def get_aggregating_state(self, descriptor: AggregatingStateDescriptor) -> AggregatingState:
        """Keyed aggregating state of the current key."""
        ...


class OperatorListState(Protocol):
    """A named list of bytes-serialisable elements that is redistributed element by element (Flink: ListState).

    >>> class Buffered(sl.SinkFunction):
    ...     def initialize_state(self, context: sl.FunctionInitializationContext):
    ...         self.state: sl.OperatorListState = context.operator_state_store.get_list_state("buffer")
    ...         self.buffer = list(self.state.get())
    ...     def snapshot_state(self, context):
    ...         self.state.update(self.buffer[:-1])
    ...         self.state.add(self.buffer[-1])
    ...     def invoke(self, value):
    ...         self.buffer += value.to_pylist()
    >>> _ = orders.add_sink(Buffered(), uid="buffered")
    """

    def get(self) -> list[Any]:
        """All elements that this subtask holds."""
        ...

    def update(self, values: Sequence[Any]) -> None:
        """Replace all elements of the list by these."""
        ...

    def add(self, value: Any) -> None:
        """Append one element to the list."""
        ...


class OperatorStateStore(Protocol):
    """Operator state by name (Flink: OperatorStateStore). Elements are JSON-like values or bytes; a named serializer
    registered with `snapline.register_serializer` admits others.

    >>> class Rules(sl.SinkFunction):
    ...     def initialize_state(self, context):
    ...         store: sl.OperatorStateStore = context.operator_state_store
    ...         self.own = store.get_list_state("own")
    ...         self.all_subtasks = store.get_union_list_state("rules")
    ...     def snapshot_state(self, context):
    ...         self.own.update([1])
    ...     def invoke(self, value):
    ...         pass
    >>> _ = orders.add_sink(Rules(), uid="rules")
    """

    def get_list_state(self, name: str, serializer: str = "json") -> OperatorListState:
        """Split evenly over the subtasks on a rescale. JobDefinitionError, with which the job ends, for a name under
        which operators keep something of their own."""
        ...

    def get_union_list_state(self, name: str, serializer: str = "json") -> OperatorListState:
        """Every subtask gets all elements on restore. JobDefinitionError as for `get_list_state`."""
        ...


class FunctionInitializationContext(Protocol):
    """Handed to `initialize_state` (Flink: FunctionInitializationContext).

    >>> class Numbered(sl.SinkFunction):
    ...     def initialize_state(self, context: sl.FunctionInitializationContext):
    ...         self.state = context.operator_state_store.get_list_state("next")
    ...         self.next = max(self.state.get(), default=0) if context.is_restored else 0
    ...         self.from_checkpoint = context.restored_checkpoint_id
    ...     def snapshot_state(self, context):
    ...         self.state.update([self.next])
    ...     def invoke(self, value):
    ...         self.next += value.num_rows
    >>> _ = orders.add_sink(Numbered(), uid="numbered")
    """

    @property
    def is_restored(self) -> bool:
        """Whether the job starts from a snapshot."""
        ...

    @property
    def restored_checkpoint_id(self) -> int:
        """0 when nothing is restored."""
        ...

    @property
    def operator_state_store(self) -> OperatorStateStore:
        """Where the function's list states live."""
        ...


class FunctionSnapshotContext(Protocol):
    """Handed to `snapshot_state` (Flink: FunctionSnapshotContext).

    >>> class Marked(sl.SinkFunction):
    ...     def initialize_state(self, context):
    ...         self.state = context.operator_state_store.get_list_state("marks")
    ...     def snapshot_state(self, context: sl.FunctionSnapshotContext):
    ...         self.state.update([[context.checkpoint_id, context.checkpoint_timestamp_ms]])
    ...     def invoke(self, value):
    ...         pass
    >>> _ = orders.add_sink(Marked(), uid="marked")
    """

    @property
    def checkpoint_id(self) -> int:
        """Id of the checkpoint being taken."""
        ...

    @property
    def checkpoint_timestamp_ms(self) -> int:
        """When the coordinator triggered it."""
        ...


class SourceContext(Protocol):
    """How a push-style SourceFunction emits (Flink: SourceFunction.SourceContext).

    >>> class Numbers(sl.SourceFunction):
    ...     def run(self, context: sl.SourceContext):
    ...         with context.get_checkpoint_lock():
    ...             context.collect({"n": 1})
    ...             context.collect_batch(pa.RecordBatch.from_pylist([{"n": 2}]))
    ...         context.emit_watermark(2)
    ...         context.mark_as_temporarily_idle()
    ...     def cancel(self):
    ...         pass
    >>> _ = env.add_source(Numbers(), uid="numbers", schema=pa.schema([("n", pa.int64())]))
    """

    def collect(self, row: Row) -> None:
        """Emit one row; rows are gathered into batches."""
        ...

    def collect_batch(self, batch: pa.RecordBatch) -> None:
        """Emit one batch of rows to the operators downstream."""
        ...

    def emit_watermark(self, timestamp_ms: int) -> None:
        """Promise that no row at or before this event time follows, for `add_source(..., event_time=column)`. A source
        with a watermark strategy has those of the strategy alone, and of these only the one that ends event time."""
        ...

    def mark_as_temporarily_idle(self) -> None:
        """Take this subtask out of the watermark until it emits again."""
        ...

    def get_checkpoint_lock(self) -> AbstractContextManager[Any]:
        """Emit and update your position together while you hold it; snapshots are taken while nobody does."""
        ...


class TimerService(Protocol):
    """Timers of the current key (Flink: TimerService). Times are milliseconds since the epoch.

    >>> class Reminder(sl.KeyedProcessFunction):
    ...     def process_element(self, row, context):
    ...         timers: sl.TimerService = context.timer_service
    ...         timers.delete_event_time_timer(row["at"] + 60_000)
    ...         timers.register_event_time_timer(row["at"] + 60_000)
    ...         timers.delete_processing_time_timer(0)
    ...         timers.register_processing_time_timer(timers.current_processing_time() + 1_000)
    ...     def on_timer(self, timestamp_ms, context):
    ...         if timestamp_ms <= context.timer_service.current_watermark():
    ...             yield {"customer": context.current_key, "silent_since": timestamp_ms - 60_000}
    >>> _ = orders.key_by("customer").process(Reminder(), uid="reminder")
    """

    def current_processing_time(self) -> int:
        """Return the clock of the task, in milliseconds since the epoch."""
        ...

    def current_watermark(self) -> int:
        """The operator's watermark; -2**63 before the first."""
        ...

    def register_event_time_timer(self, timestamp_ms: int) -> None:
        """`on_timer` is called for the current key once the watermark reaches the time. Equal timers are one."""
        ...

    def register_processing_time_timer(self, timestamp_ms: int) -> None:
        """`on_timer` is called for the current key once the clock reaches the time."""
        ...

    def delete_event_time_timer(self, timestamp_ms: int) -> None:
        """Forget the timer, if there is one."""
        ...

    def delete_processing_time_timer(self, timestamp_ms: int) -> None:
        """Forget the timer, if there is one."""
        ...


class ProcessContext(Protocol):
    """Handed to KeyedProcessFunction (Flink: KeyedProcessFunction.Context).

    >>> class Checked(sl.KeyedProcessFunction):
    ...     def process_element(self, row, context: sl.ProcessContext):
    ...         if row["cents"] < 0:
    ...             context.output("negative", {"customer": context.current_key, "at": context.timestamp_ms})
    ...         else:
    ...             context.timer_service.register_event_time_timer(context.timestamp_ms + 1_000)
    ...             yield row
    ...     def on_timer(self, timestamp_ms, context):
    ...         if context.time_domain == "event":
    ...             context.output("over", {"customer": context.current_key})
    >>> negative = orders.key_by("customer").process(Checked(), uid="checked").get_side_output("negative")
    """

    @property
    def timestamp_ms(self) -> int | None:
        """Event time of the row, or the time of the timer; None for streams without event time."""
        ...

    @property
    def time_domain(self) -> Literal["event", "processing"] | None:
        """Which time the timer was registered for that fires; None for a row."""
        ...

    @property
    def current_key(self) -> Any:
        """The key: a value for one key column, a tuple for several."""
        ...

    @property
    def timer_service(self) -> TimerService:
        """Timers of the current key."""
        ...

    def output(self, tag: str, row: Row) -> None:
        """Emit to a side output."""
        ...


class WindowContext(Protocol):
    """Handed to ProcessWindowFunction (Flink: ProcessWindowFunction.Context).

    >>> class Counted(sl.ProcessWindowFunction):
    ...     def process(self, key, context: sl.WindowContext, rows):
    ...         if context.current_watermark > context.window.end_ms + 60_000:
    ...             context.output("late", {"shop": key, "start": context.window.start_ms})
    ...         yield {"shop": key, "n": len(rows)}
    >>> _ = orders.key_by("shop").window(sl.TumblingEventTimeWindows(60_000)).process(Counted(), uid="counted")
    """

    @property
    def window(self) -> TimeWindow:
        """Return the window that has fired."""
        ...

    @property
    def current_watermark(self) -> int:
        """Return the watermark of the operator, in milliseconds since the epoch."""
        ...

    def output(self, tag: str, row: Row) -> None:
        """Emit to a side output."""
        ...


class BatchKeys(Protocol):
    """Handed to KeyedBatchProcessFunction: the keys of a batch, each once; its length is the number of distinct keys.

    >>> class Counts(sl.KeyedBatchProcessFunction):
    ...     def process_batch(self, keys: sl.BatchKeys, batch, state):
    ...         counts = pa.array(np.bincount(keys.rows, minlength=len(keys)))
    ...         return keys.columns.append_column("n", counts)
    >>> _ = orders.key_by("shop").process_batches(Counts(), uid="counts")
    """

    @property
    def columns(self) -> pa.RecordBatch:
        """The key columns, one row per distinct key."""
        ...

    @property
    def rows(self) -> npt.NDArray[np.int32]:
        """For each row of the batch, the number of its key in `columns`; for timers, of the timer's key."""
        ...

    def __len__(self) -> int:
        """Return the number of distinct keys in the batch."""
        ...


class BatchState(Protocol):
    """Handed to KeyedBatchProcessFunction: state of the batch's keys, in columns; one value per distinct key, in the
    order of `keys.columns`, unless said otherwise. A state is named by its descriptor.

    >>> TOTAL = sl.ValueStateDescriptor("total", pa.int64())
    >>> LAST = sl.ListStateDescriptor("last", pa.int64())
    >>> PRICES = sl.MapStateDescriptor("prices", pa.string(), pa.int64())
    >>> class Many(sl.KeyedBatchProcessFunction):
    ...     def process_batch(self, keys, batch, state: sl.BatchState):
    ...         sums = np.bincount(keys.rows, weights=batch["cents"], minlength=len(keys)).astype(np.int64)
    ...         state.put(TOTAL, pc.add(state.get(TOTAL).fill_null(0), pa.array(sums)))
    ...         state.append(LAST, batch["cents"])
    ...         known = state.lookup(PRICES, batch["shop"]).fill_null(0)
    ...         state.put_entries(PRICES, batch["shop"], pc.max_element_wise(known, batch["cents"]))
    ...         late = state.event_times_ms < state.watermark_ms
    ...         state.delete_event_time_timers(state.event_times_ms[late], keys.rows[late])
    ...         state.register_event_time_timers(state.event_times_ms + 60_000, keys.rows)
    ...     def on_timers(self, keys, times_ms, state):
    ...         state.clear(LAST)
    ...         return keys.columns
    >>> _ = orders.key_by("customer").process_batches(Many(), uid="many")
    """

    @property
    def watermark_ms(self) -> int:
        """The operator's watermark; -2**63 before the first."""
        ...

    @property
    def event_times_ms(self) -> npt.NDArray[np.int64]:
        """Event time of each row, or of each timer."""
        ...

    def get(self, descriptor: StateDescriptor) -> pa.Array:
        """Value states: the values, null where there is none. List and map states: whole lists or maps."""
        ...

    def put(self, descriptor: ValueStateDescriptor, values: pa.Array) -> None:
        """Set the values; a null removes."""
        ...

    def append(
        self, descriptor: ListStateDescriptor, values: pa.Array, rows: npt.NDArray[np.int64] | None = None
    ) -> None:
        """Append one element per row of the batch (of those chosen by `rows`) to its key's list."""
        ...

    def lookup(self, descriptor: MapStateDescriptor, map_keys: pa.Array) -> pa.Array:
        """The value under each row's map key (one per row of the batch), null where there is none."""
        ...

    def put_entries(self, descriptor: MapStateDescriptor, map_keys: pa.Array, values: pa.Array) -> None:
        """Set the value under each row's map key (one per row of the batch)."""
        ...

    def clear(self, descriptor: StateDescriptor, keys: npt.NDArray[np.bool_] | None = None) -> None:
        """Remove the state of all keys of the batch, or of those that are true in the mask."""
        ...

    def register_event_time_timers(self, times_ms: npt.NDArray[np.int64], keys: npt.NDArray[np.int32]) -> None:
        """`on_timers` is called for key number keys[i] once the watermark reaches times_ms[i]."""
        ...

    def delete_event_time_timers(self, times_ms: npt.NDArray[np.int64], keys: npt.NDArray[np.int32]) -> None:
        """Forget timers, where they are."""
        ...


class BroadcastContext(ProcessContext, Protocol):
    """Handed to KeyedBroadcastProcessFunction and BroadcastProcessFunction. There is no current key in
    `process_broadcast_element`, and timers are refused there.

    >>> LIMITS = sl.MapStateDescriptor("limits", pa.string(), pa.int64())
    >>> class Limited(sl.KeyedBroadcastProcessFunction):
    ...     def process_element(self, row, context: sl.BroadcastContext):
    ...         if row["cents"] <= context.get_broadcast_state(LIMITS).get(row["shop"], 0):
    ...             yield row
    ...     def process_broadcast_element(self, row, context):
    ...         context.get_broadcast_state(LIMITS)[row["shop"]] = row["limit"]
    >>> limits = env.from_collection([{"shop": "a", "limit": 2}], uid="limits").broadcast_state(LIMITS)
    >>> _ = orders.key_by("shop").connect(limits).process(Limited(), uid="limited")
    """

    def get_broadcast_state(self, descriptor: MapStateDescriptor) -> MutableMapping[Any, Any]:
        """The broadcast state, the same in all subtasks; only `process_broadcast_element` may change it."""
        ...
