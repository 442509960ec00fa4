"""The contracts that a user's functions implement.

Functions are constructed on the driver, cloudpickled, and opened in the task; state and connections belong into `open` or
`initialize_state`, never into `__init__`. Mirrors Flink's RichFunction, CheckpointedFunction, CheckpointListener,
SourceFunction and KeyedProcessFunction.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, MutableMapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias, runtime_checkable

import numpy as np
import numpy.typing as npt
import pyarrow as pa

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
from snapline.dataflow.api.windows import TimeWindow

Row = dict[str, Any]
"""One row, column name to Python value; what row-wise functions take and return."""


class RuntimeContext(Protocol):
    """What a function may ask about the subtask that it runs in (Flink: RuntimeContext)."""

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
        """Number of subtasks."""
        ...

    @property
    def attempt_number(self) -> int:
        """0 for the first attempt; rises with every restart."""
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


class Function:
    """Optional life cycle of every user function. Subclassing is optional too: a plain callable is a function."""

    def open(self, context: RuntimeContext) -> None:
        """Called once in the task, after state was restored and before the first row."""

    def close(self) -> None:
        """Called once when the task ends, also after a failure."""


class OperatorListState(Protocol):
    """A named list of bytes-serialisable elements that is redistributed element by element (Flink: ListState)."""

    def get(self) -> list[Any]:
        """All elements that this subtask holds."""
        ...

    def update(self, values: Sequence[Any]) -> None:
        """Replace all elements."""
        ...

    def add(self, value: Any) -> None:
        """Append one element."""
        ...


class OperatorStateStore(Protocol):
    """Operator state by name (Flink: OperatorStateStore). Elements are JSON-like values or bytes; a named serializer
    registered with `snapline.register_serializer` admits others."""

    def get_list_state(self, name: str, serializer: str = "json") -> OperatorListState:
        """Split evenly over the subtasks on a rescale."""
        ...

    def get_union_list_state(self, name: str, serializer: str = "json") -> OperatorListState:
        """Every subtask gets all elements on restore."""
        ...


class FunctionInitializationContext(Protocol):
    """Handed to `initialize_state` (Flink: FunctionInitializationContext)."""

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
    """Handed to `snapshot_state` (Flink: FunctionSnapshotContext)."""

    @property
    def checkpoint_id(self) -> int:
        """Id of the checkpoint being taken."""
        ...

    @property
    def checkpoint_timestamp_ms(self) -> int:
        """When the coordinator triggered it."""
        ...


@runtime_checkable
class CheckpointedFunction(Protocol):
    """A function with operator state of its own (Flink: CheckpointedFunction)."""

    def snapshot_state(self, context: FunctionSnapshotContext) -> None:
        """Bring the list states up to date; they are written after this returns."""
        ...

    def initialize_state(self, context: FunctionInitializationContext) -> None:
        """Create the list states, and take over what they hold when `context.is_restored`."""
        ...


@runtime_checkable
class CheckpointListener(Protocol):
    """A function that is told of the fate of checkpoints (Flink: CheckpointListener).

    Notifications can be lost, when a process dies, and are never repeated; the next one covers all earlier ones.
    """

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        """The checkpoint is durable: everything up to it can be made visible."""
        ...

    def notify_checkpoint_aborted(self, checkpoint_id: int) -> None:
        """The checkpoint will never complete; its work belongs to the next one."""
        ...


class SourceContext(Protocol):
    """How a push-style SourceFunction emits (Flink: SourceFunction.SourceContext)."""

    def collect(self, row: Row) -> None:
        """Emit one row; rows are gathered into batches."""
        ...

    def collect_batch(self, batch: pa.RecordBatch) -> None:
        """Emit a batch."""
        ...

    def emit_watermark(self, timestamp_ms: int) -> None:
        """Promise that no row at or before this event time follows."""
        ...

    def mark_as_temporarily_idle(self) -> None:
        """Take this subtask out of the watermark until it emits again."""
        ...

    def get_checkpoint_lock(self) -> AbstractContextManager[Any]:
        """Emit and update your position together while you hold it; snapshots are taken while nobody does."""
        ...


class SourceFunction(Function, ABC):
    """A source with a loop of its own, run on its own thread (Flink: SourceFunction, the legacy push style)."""

    @abstractmethod
    def run(self, context: SourceContext) -> None:
        """Emit until done or until `cancel` was called. Returning means end of input."""

    @abstractmethod
    def cancel(self) -> None:
        """Make `run` return soon. Called from another thread."""


class TimerService(Protocol):
    """Timers of the current key (Flink: TimerService). Times are milliseconds since the epoch."""

    def current_processing_time(self) -> int:
        """The task's clock."""
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
    """Handed to KeyedProcessFunction (Flink: KeyedProcessFunction.Context)."""

    @property
    def timestamp_ms(self) -> int | None:
        """Event time of the row, or the time of the timer; None for streams without event time."""
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


class KeyedProcessFunction(Function, ABC):
    """Row by row over keyed state and timers (Flink: KeyedProcessFunction)."""

    @abstractmethod
    def process_element(self, row: Row, context: ProcessContext) -> Iterable[Row] | None:
        """Return or yield the rows to emit."""

    def on_timer(self, timestamp_ms: int, context: ProcessContext) -> Iterable[Row] | None:
        """Return or yield the rows to emit when a timer of the current key fires."""
        return None


@dataclass(frozen=True, slots=True)
class SideOutput:
    """What a function over batches returns (or yields) beside its batches: rows for the side output `tag`."""

    tag: str
    batch: pa.RecordBatch


class WindowContext(Protocol):
    """Handed to ProcessWindowFunction (Flink: ProcessWindowFunction.Context)."""

    @property
    def window(self) -> TimeWindow:
        """The window."""
        ...

    @property
    def current_watermark(self) -> int:
        """The operator's watermark."""
        ...

    def output(self, tag: str, row: Row) -> None:
        """Emit to a side output."""
        ...


class ProcessWindowFunction(Function, ABC):
    """All rows of a key's window at once, when it fires (Flink: ProcessWindowFunction)."""

    @abstractmethod
    def process(self, key: Any, context: WindowContext, rows: Sequence[Row]) -> Iterable[Row] | None:
        """Return or yield the rows to emit. `key` is a value for one key column, a tuple for several."""


class BatchKeys(Protocol):
    """Handed to KeyedBatchProcessFunction: the keys of a batch, each once."""

    @property
    def columns(self) -> pa.RecordBatch:
        """The key columns, one row per distinct key."""
        ...

    @property
    def rows(self) -> npt.NDArray[np.int32]:
        """For each row of the batch, the number of its key in `columns`; for timers, of the timer's key."""
        ...

    def __len__(self) -> int:
        """Number of distinct keys."""
        ...


class BatchState(Protocol):
    """Handed to KeyedBatchProcessFunction: state of the batch's keys, in columns; one value per distinct key, in the order of
    `keys.columns`, unless said otherwise. A state is named by its descriptor."""

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


BatchResult: TypeAlias = pa.RecordBatch | SideOutput | Iterable["pa.RecordBatch | SideOutput"] | None


class KeyedBatchProcessFunction(Function, ABC):
    """Batch by batch over keyed state in columns; the fast form of KeyedProcessFunction. No counterpart in Flink."""

    @abstractmethod
    def process_batch(self, keys: BatchKeys, batch: pa.RecordBatch, state: BatchState) -> BatchResult:
        """Return or yield batches, and SideOutput of batches. Several rows may have one key: see `keys.rows`."""

    def on_timers(self, keys: BatchKeys, times_ms: npt.NDArray[np.int64], state: BatchState) -> BatchResult:
        """A slice of timers is due, in the order of their times; `keys.rows[i]` is the key of times_ms[i]."""
        return None


class KeyedCoProcessFunction(Function, ABC):
    """Two keyed inputs, row by row, over one state and its timers (Flink: KeyedCoProcessFunction)."""

    @abstractmethod
    def process_element1(self, row: Row, context: ProcessContext) -> Iterable[Row] | None:
        """A row of the first input."""

    @abstractmethod
    def process_element2(self, row: Row, context: ProcessContext) -> Iterable[Row] | None:
        """A row of the second input."""

    def on_timer(self, timestamp_ms: int, context: ProcessContext) -> Iterable[Row] | None:
        """Return or yield the rows to emit when a timer of the current key fires."""
        return None


class KeyedCoBatchProcessFunction(Function, ABC):
    """Two keyed inputs, batch by batch, over one state in columns."""

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
    """Two inputs that are not keyed, batch by batch."""

    @abstractmethod
    def process_batch1(self, batch: pa.RecordBatch) -> BatchResult:
        """A batch of the first input."""

    @abstractmethod
    def process_batch2(self, batch: pa.RecordBatch) -> BatchResult:
        """A batch of the second input."""


class BroadcastContext(ProcessContext, Protocol):
    """Handed to KeyedBroadcastProcessFunction. There is no current key, no timer and no event time in
    `process_broadcast_element`."""

    def get_broadcast_state(self, descriptor: MapStateDescriptor) -> MutableMapping[Any, Any]:
        """The broadcast state, the same in all subtasks; only `process_broadcast_element` may change it."""
        ...


class KeyedBroadcastProcessFunction(Function, ABC):
    """A keyed input, and rules that reach all subtasks (Flink: same name)."""

    @abstractmethod
    def process_element(self, row: Row, context: BroadcastContext) -> Iterable[Row] | None:
        """A row of the keyed input; the broadcast state can be read."""

    @abstractmethod
    def process_broadcast_element(self, row: Row, context: BroadcastContext) -> Iterable[Row] | None:
        """A row of the broadcast input. It must do the same in all subtasks."""

    def on_timer(self, timestamp_ms: int, context: BroadcastContext) -> Iterable[Row] | None:
        """A timer of the current key fires."""
        return None


class AsyncFunction(Function, ABC):
    """Ask something outside for each row without waiting for one before the next (Flink: AsyncFunction)."""

    @abstractmethod
    async def async_invoke(self, row: Row) -> Iterable[Row] | None:
        """The rows to emit for this one. Runs on an event loop of its own thread: never touch state here."""

    def timeout(self, row: Row) -> Iterable[Row] | None:
        """What to emit for a row whose request took too long. Default: fail the job."""
        raise TimeoutError(f"the request for {row!r} timed out")


SerializedConfiguration = Mapping[str, str]
