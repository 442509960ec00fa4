"""The contracts that a user's functions implement.

Functions are constructed on the driver, cloudpickled, and opened in the task; state and connections belong into `open`
or `initialize_state`, never into `__init__`. Mirrors Flink's RichFunction, CheckpointedFunction, CheckpointListener,
SourceFunction and KeyedProcessFunction.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias, runtime_checkable

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from snapline.dataflow.api.function_contexts import (
    BatchKeys,
    BatchState,
    BroadcastContext,
    FunctionInitializationContext,
    FunctionSnapshotContext,
    ProcessContext,
    Row,
    RuntimeContext,
    SourceContext,
    WindowContext,
)


class Function:
    """Optional life cycle of every user function. Subclassing is optional too: a plain callable is a function.

    >>> class Connected(sl.Function):
    ...     def open(self, context):
    ...         self.connection = {"a": 1}
    ...     def __call__(self, batch):
    ...         return batch
    ...     def close(self):
    ...         self.connection.clear()
    >>> _ = orders.map_batches(Connected(), uid="connected")
    """

    def open(self, context: RuntimeContext) -> None:
        """Called once in the task, after state was restored and before the first row."""

    def close(self) -> None:
        """Called once when the task ends, also after a failure."""


@runtime_checkable
class CheckpointedFunction(Protocol):
    """A function with operator state of its own (Flink: CheckpointedFunction).

    >>> class Counted:
    ...     def initialize_state(self, context):
    ...         self.state = context.operator_state_store.get_list_state("rows")
    ...         self.rows = sum(self.state.get())
    ...     def snapshot_state(self, context):
    ...         self.state.update([self.rows])
    ...     def __call__(self, batch):
    ...         self.rows += batch.num_rows
    ...         return batch
    >>> isinstance(Counted(), sl.CheckpointedFunction)
    True
    >>> _ = orders.map_batches(Counted(), uid="counted")
    """

    def snapshot_state(self, context: FunctionSnapshotContext) -> None:
        """Bring the list states up to date; they are written after this returns."""
        ...

    def initialize_state(self, context: FunctionInitializationContext) -> None:
        """Create the list states, and take over what they hold when `context.is_restored`."""
        ...


@runtime_checkable
class CheckpointListener(Protocol):
    """A function that is told of the fate of checkpoints (Flink: CheckpointListener).

    Notifications can be lost, when a process dies, and are never repeated; the next one covers all earlier ones. A
    function may have one of the two methods alone.

    >>> class Published(sl.SinkFunction):
    ...     def notify_checkpoint_complete(self, checkpoint_id):
    ...         print("durable:", checkpoint_id)
    ...     def notify_checkpoint_aborted(self, checkpoint_id):
    ...         pass
    ...     def invoke(self, value):
    ...         pass
    >>> isinstance(Published(), sl.CheckpointListener)
    True
    """

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        """The checkpoint is durable: everything up to it can be made visible."""
        ...

    def notify_checkpoint_aborted(self, checkpoint_id: int) -> None:
        """The checkpoint will never complete; its work belongs to the next one."""
        ...


class SourceFunction(Function, ABC):
    """A source with a loop of its own, run on its own thread (Flink: SourceFunction, the legacy push style).

    >>> class Counter(sl.SourceFunction):
    ...     def initialize_state(self, context):
    ...         self.state = context.operator_state_store.get_list_state("next")
    ...         self.next, self.running = max(self.state.get(), default=0), True
    ...     def snapshot_state(self, context):
    ...         self.state.update([self.next])
    ...     def run(self, context):
    ...         while self.running and self.next < 1_000:
    ...             with context.get_checkpoint_lock():
    ...                 context.collect({"n": self.next})
    ...                 self.next += 1
    ...     def cancel(self):
    ...         self.running = False
    >>> _ = env.add_source(Counter(), uid="counter", schema=pa.schema([("n", pa.int64())])).set_parallelism(1)
    """

    @abstractmethod
    def run(self, context: SourceContext) -> None:
        """Emit until done or until `cancel` was called. Returning means end of input."""

    @abstractmethod
    def cancel(self) -> None:
        """Make `run` return soon. Called from another thread."""


class KeyedProcessFunction(Function, ABC):
    """Row by row over keyed state and timers (Flink: KeyedProcessFunction).

    State is asked for in `open`, and is always that of the row's (or the timer's) key.

    >>> class Silent(sl.KeyedProcessFunction):
    ...     def open(self, context):
    ...         self.last = context.get_state(sl.ValueStateDescriptor("last", pa.int64()))
    ...     def process_element(self, row, context):
    ...         self.last.update(row["at"])
    ...         context.timer_service.register_event_time_timer(row["at"] + 60_000)
    ...     def on_timer(self, timestamp_ms, context):
    ...         if timestamp_ms == self.last.value() + 60_000:
    ...             yield {"customer": context.current_key, "since": self.last.value()}
    >>> silent = pa.schema([("customer", pa.string()), ("since", pa.int64())])
    >>> _ = orders.key_by("customer").process(Silent(), uid="silent", schema=silent)
    """

    @abstractmethod
    def process_element(self, row: Row, context: ProcessContext) -> Iterable[Mapping[str, object]] | None:
        """Return or yield the rows to emit."""

    def on_timer(self, timestamp_ms: int, context: ProcessContext) -> Iterable[Mapping[str, object]] | None:
        """Return or yield the rows to emit when a timer of the current key fires."""
        return None


@dataclass(frozen=True, slots=True)
class SideOutput:
    """What a function over batches returns (or yields) beside its batches: rows for the side output `tag`.

    >>> def split(batch):
    ...     cheap = pc.less(batch["cents"], 100)
    ...     yield batch.filter(pc.invert(cheap))
    ...     yield sl.SideOutput("cheap", batch.filter(cheap))
    >>> cheap = orders.map_batches(split, schema=orders.schema).get_side_output("cheap", orders.schema)
    """

    tag: str
    batch: pa.RecordBatch


class ProcessWindowFunction(Function, ABC):
    """All rows of a key's window at once, when it fires (Flink: ProcessWindowFunction).

    >>> class Median(sl.ProcessWindowFunction):
    ...     def process(self, key, context, rows):
    ...         cents = sorted(row["cents"] for row in rows)
    ...         yield {"shop": key, "median": cents[len(cents) // 2]}
    >>> _ = orders.key_by("shop").window(sl.TumblingEventTimeWindows(60_000)).process(Median(), uid="median")
    """

    @abstractmethod
    def process(self, key: Any, context: WindowContext, rows: Sequence[Row]) -> Iterable[Mapping[str, object]] | None:
        """Return or yield the rows to emit. `key` is a value for one key column, a tuple for several."""


BatchResult: TypeAlias = pa.RecordBatch | SideOutput | Iterable["pa.RecordBatch | SideOutput"] | None


class KeyedBatchProcessFunction(Function, ABC):
    """Batch by batch over keyed state in columns; the fast form of KeyedProcessFunction. No counterpart in Flink.

    >>> class First(sl.KeyedBatchProcessFunction):
    ...     first = sl.ValueStateDescriptor("first", pa.int64())
    ...     def process_batch(self, keys, batch, state):
    ...         new = np.full(len(keys), np.iinfo(np.int64).max)
    ...         np.minimum.at(new, keys.rows, batch["at"].to_numpy())
    ...         state.put(self.first, pc.min_element_wise(state.get(self.first), pa.array(new)))
    ...         state.register_event_time_timers(new + 60_000, np.arange(len(keys), dtype=np.int32))
    ...     def on_timers(self, keys, times_ms, state):
    ...         return keys.columns.append_column("first", state.get(self.first))
    >>> _ = orders.key_by("customer").process_batches(First(), uid="first")
    """

    @abstractmethod
    def process_batch(self, keys: BatchKeys, batch: pa.RecordBatch, state: BatchState) -> BatchResult:
        """Return or yield batches, and SideOutput of batches. Several rows may have one key: see `keys.rows`."""

    def on_timers(self, keys: BatchKeys, times_ms: npt.NDArray[np.int64], state: BatchState) -> BatchResult:
        """A slice of timers is due, in the order of their times; `keys.rows[i]` is the key of times_ms[i]."""
        return None


class KeyedCoProcessFunction(Function, ABC):
    """Two keyed inputs, row by row, over one state and its timers (Flink: KeyedCoProcessFunction).

    >>> class Owed(sl.KeyedCoProcessFunction):
    ...     def open(self, context):
    ...         self.owed = context.get_state(sl.ValueStateDescriptor("owed", pa.int64()))
    ...     def process_element1(self, row, context):
    ...         self.owed.update((self.owed.value() or 0) + row["cents"])
    ...         context.timer_service.register_event_time_timer(row["at"] + 60_000)
    ...     def process_element2(self, row, context):
    ...         self.owed.update((self.owed.value() or 0) - row["paid"])
    ...     def on_timer(self, timestamp_ms, context):
    ...         if self.owed.value():
    ...             yield {"customer": context.current_key, "owed": self.owed.value()}
    >>> payments = env.from_collection([{"customer": "x", "paid": 120}], uid="payments")
    >>> _ = orders.key_by("customer").connect(payments.key_by("customer")).process(Owed(), uid="owed")
    """

    @abstractmethod
    def process_element1(self, row: Row, context: ProcessContext) -> Iterable[Mapping[str, object]] | None:
        """A row of the first input."""

    @abstractmethod
    def process_element2(self, row: Row, context: ProcessContext) -> Iterable[Mapping[str, object]] | None:
        """A row of the second input."""

    def on_timer(self, timestamp_ms: int, context: ProcessContext) -> Iterable[Mapping[str, object]] | None:
        """Return or yield the rows to emit when a timer of the current key fires."""
        return None


class KeyedCoBatchProcessFunction(Function, ABC):
    """Two keyed inputs, batch by batch, over one state in columns.

    >>> class Rows(sl.KeyedCoBatchProcessFunction):
    ...     rows = sl.ValueStateDescriptor("rows", pa.int64())
    ...     def process_batch1(self, keys, batch, state):
    ...         counts = pa.array(np.bincount(keys.rows, minlength=len(keys)))
    ...         state.put(self.rows, pc.add(state.get(self.rows).fill_null(0), counts))
    ...     def process_batch2(self, keys, batch, state):
    ...         return self.process_batch1(keys, batch, state)
    ...     def on_timers(self, keys, times_ms, state):
    ...         return keys.columns.append_column("rows", state.get(self.rows))
    >>> payments = env.from_collection([{"customer": "x", "paid": 120}], uid="payments")
    >>> _ = orders.connect(payments).key_by("customer", "customer").process_batches(Rows(), uid="rows")
    """

    @abstractmethod
    def process_batch1(self, keys: BatchKeys, batch: pa.RecordBatch, state: BatchState) -> BatchResult:
        """A batch of the first input."""

    @abstractmethod
    def process_batch2(self, keys: BatchKeys, batch: pa.RecordBatch, state: BatchState) -> BatchResult:
        """A batch of the second input."""

    def on_timers(self, keys: BatchKeys, times_ms: npt.NDArray[np.int64], state: BatchState) -> BatchResult:
        """A slice of timers is due."""
        return None


class CoProcessFunction(Function, ABC):
    """Two inputs that are not keyed, batch by batch.

    >>> class Both(sl.CoProcessFunction):
    ...     def process_batch1(self, batch):
    ...         return batch.select(["customer"])
    ...     def process_batch2(self, batch):
    ...         return batch.select(["customer"])
    >>> payments = env.from_collection([{"customer": "x", "paid": 120}], uid="payments")
    >>> _ = orders.connect(payments).process(Both(), schema=pa.schema([("customer", pa.string())]))
    """

    @abstractmethod
    def process_batch1(self, batch: pa.RecordBatch) -> BatchResult:
        """A batch of the first input."""

    @abstractmethod
    def process_batch2(self, batch: pa.RecordBatch) -> BatchResult:
        """A batch of the second input."""


class KeyedBroadcastProcessFunction(Function, ABC):
    """A keyed input, and rules that reach all subtasks (Flink: same name).

    >>> BLOCKED = sl.MapStateDescriptor("blocked", pa.string(), pa.bool_())
    >>> class Unblocked(sl.KeyedBroadcastProcessFunction):
    ...     def process_element(self, row, context):
    ...         context.timer_service.register_event_time_timer(row["at"] + 1_000)
    ...         if not context.get_broadcast_state(BLOCKED).get(row["shop"]):
    ...             yield row
    ...     def process_broadcast_element(self, row, context):
    ...         context.get_broadcast_state(BLOCKED)[row["shop"]] = True
    ...     def on_timer(self, timestamp_ms, context):
    ...         return None
    >>> blocked = env.from_collection([{"shop": "a"}], uid="blocked").broadcast_state(BLOCKED)
    >>> _ = orders.key_by("customer").connect(blocked).process(Unblocked(), uid="unblocked")
    """

    @abstractmethod
    def process_element(self, row: Row, context: BroadcastContext) -> Iterable[Mapping[str, object]] | None:
        """A row of the keyed input; the broadcast state can be read."""

    @abstractmethod
    def process_broadcast_element(self, row: Row, context: BroadcastContext) -> Iterable[Mapping[str, object]] | None:
        """A row of the broadcast input. It must do the same in all subtasks."""

    def on_timer(self, timestamp_ms: int, context: BroadcastContext) -> Iterable[Mapping[str, object]] | None:
        """A timer of the current key fires."""
        return None


class BroadcastProcessFunction(Function, ABC):
    """Rows without keys, and rules that reach all subtasks (Flink: same name).

    >>> BLOCKED = sl.MapStateDescriptor("blocked", pa.string(), pa.bool_())
    >>> class Unblocked(sl.BroadcastProcessFunction):
    ...     def process_element(self, row, context):
    ...         if not context.get_broadcast_state(BLOCKED).get(row["shop"]):
    ...             yield row
    ...     def process_broadcast_element(self, row, context):
    ...         context.get_broadcast_state(BLOCKED)[row["shop"]] = True
    >>> blocked = env.from_collection([{"shop": "a"}], uid="blocked").broadcast_state(BLOCKED)
    >>> _ = orders.connect(blocked).process(Unblocked(), uid="unblocked")
    """

    @abstractmethod
    def process_element(self, row: Row, context: BroadcastContext) -> Iterable[Mapping[str, object]] | None:
        """A row of the first input; the broadcast state can be read."""

    @abstractmethod
    def process_broadcast_element(self, row: Row, context: BroadcastContext) -> Iterable[Mapping[str, object]] | None:
        """A row of the broadcast input. It must do the same in all subtasks."""


class AsyncFunction(Function, ABC):
    """Ask something outside for each row without waiting for one before the next (Flink: AsyncFunction).

    >>> class Lookup(sl.AsyncFunction):
    ...     async def async_invoke(self, row):
    ...         return [{**row, "town": "Aachen"}]
    ...     def timeout(self, row):
    ...         return [{**row, "town": None}]
    ...     def result_schema(self, schema):
    ...         return pa.schema([*schema, ("town", pa.string())])
    >>> orders.async_wait(Lookup(), capacity=50, timeout_ms=2_000, uid="towns").schema.names[-1]
    'town'
    """

    @abstractmethod
    async def async_invoke(self, row: Row) -> Iterable[Mapping[str, object]] | None:
        """The rows to emit for this one. Runs on an event loop of its own thread: never touch state here."""

    def result_schema(self, schema: pa.Schema | None) -> pa.Schema | None:
        """Return the schema of the results for rows of this one (None: not known), asked when the job is defined
        without `schema=`. Default: not known."""
        return None

    def timeout(self, row: Row) -> Iterable[Mapping[str, object]] | None:
        """What to emit for a row whose request took too long. Default: fail the job."""
        raise TimeoutError(f"the request for {row!r} timed out")


SerializedConfiguration = Mapping[str, str]
