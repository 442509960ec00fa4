"""The contract between the task loop and the operators of a chain, and between operators and their snapshots.

An operator is driven by one thread (or the simulator): batches, watermarks and control calls come in order. It emits
into an `Output`. A snapshot has two parts: `snapshot_state` (synchronous, cheap: freeze) returns `SnapshotPart`s, whose
`encode` runs later in an upload thread. Mirrors Flink's StreamOperator, Output, OperatorSnapshotFutures.
"""

from __future__ import annotations

from abc import ABC
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import pyarrow as pa

from snapline.dataflow.api.accumulators import Accumulators
from snapline.dataflow.api.connector_api import InputStatus
from snapline.dataflow.api.user_metrics import MetricGroup
from snapline.dataflow.elements import SnapshotType, Watermark, WatermarkStatus
from snapline.dataflow.errors import StateError
from snapline.dataflow.ids import CheckpointID, JobID, OperatorID
from snapline.dataflow.key_groups import KeyGroupRange
from snapline.dataflow.snapshot.handles import (
    KeyedStateHandle,
    OperatorStateHandle,
    OperatorStateMode,
    StreamStateHandle,
    TaskStateSnapshot,
)
from snapline.taskmanager.programs.program_place import OfferPlace, offer_no_place
from snapline.taskmanager.state.outside.segment_space import SegmentSpace


class Output(Protocol):
    """Where an operator emits: the next operators of the chain, and the edges that leave the task."""

    def emit_batch(self, batch: pa.RecordBatch) -> None:
        """To the main output. Empty batches are dropped."""
        ...

    def emit_side(self, tag: str, batch: pa.RecordBatch) -> None:
        """To the side output `tag`; dropped when nobody reads it."""
        ...

    def emit_watermark(self, watermark: Watermark) -> None:
        """Send a watermark to all outputs of the operator."""
        ...

    def emit_watermark_status(self, status: WatermarkStatus) -> None:
        """Send a watermark status to all outputs of the operator."""
        ...


class ProcessingTimeService(Protocol):
    """Clock and timers of the task; callbacks run on the task's thread, between batches."""

    def now_ms(self) -> int:
        """Milliseconds since the epoch; the time of the current step."""
        ...

    def activity_ms(self) -> int:
        """A clock for who is idle: it runs with `now_ms`, and stands still while the task can take no rows, because an
        output has no room or an operator is blocked."""
        ...

    @property
    def empty_polls(self) -> int:
        """How often the task has looked for rows and found none."""
        ...

    def register_timer(self, at_ms: int, callback: Callable[[int], None]) -> object:
        """Call `callback(at_ms)` once the clock reaches `at_ms`. Returns a token for `cancel_timer`."""
        ...

    def cancel_timer(self, token: object) -> None:
        """Forget the timer that the token stands for."""
        ...


def no_report(group: str, watermark_ms: int, max_drift_ms: int) -> None:
    """Where there is no JobMaster."""


def no_demand() -> Sequence[int | None]:
    """Where no edge is one on which consumers ask."""
    return ()


def no_request(count: int) -> None:
    """Where nobody hands out splits."""


@dataclass(frozen=True, slots=True)
class OperatorContext:
    """What an operator knows of its place. Also serves as `SourceContextInfo` and part of `RuntimeContext`."""

    job_id: JobID
    operator_id: OperatorID
    operator_uid: str
    operator_name: str
    task_name: str
    subtask_index: int
    parallelism: int
    max_parallelism: int
    attempt_number: int
    execution_attempt: str
    key_group_range: KeyGroupRange
    processing_time: ProcessingTimeService
    configuration: Mapping[str, str]
    wake_up: Callable[[], None]
    """Thread-safe: makes the task loop run again soon (used by push-style sources)."""
    open_segment_space: Callable[[str], SegmentSpace]
    """(directory) -> where keyed state lies that memory has no room for."""
    offer_place: OfferPlace = offer_no_place
    """For an external task: (what the program is told, key groups of its rows, wake-up) -> its place."""
    report_watermark: Callable[[str, int, int], None] = no_report
    """Tell the JobMaster how far a source of an alignment group is, and how far ahead it may be."""
    split_demand: Callable[[], Sequence[int | None]] = no_demand
    """For an enumerator: how many splits each reader asks for; None for one that has not spoken yet."""
    request_splits: Callable[[int], None] = no_request
    """For a reader: ask the enumerator for so many splits more."""
    accumulators: Accumulators = field(default_factory=Accumulators)
    """What the operator's functions count is kept here."""
    metrics: MetricGroup = field(default_factory=lambda: MetricGroup(""))
    """What measures the operator's functions."""


class KeyedStateInput(Protocol):
    """One keyed state file to restore from."""

    @property
    def key_group_range(self) -> KeyGroupRange:
        """Key groups in the file; read only the intersection with your own."""
        ...

    def read_range(self, offset: int, size: int) -> bytes:
        """Read these bytes of the file."""
        ...

    @property
    def size(self) -> int:
        """Length of the file in bytes."""
        ...


@dataclass(frozen=True, slots=True)
class RestoredState:
    """What an operator gets back after a restore; empty for a fresh start."""

    checkpoint_id: CheckpointID = CheckpointID(0)
    keyed: tuple[KeyedStateInput, ...] = ()
    operator_lists: Mapping[str, tuple[bytes, ...]] | None = None
    """List state name to elements, already redistributed; None when nothing is restored."""
    kept_modes: Mapping[str, OperatorStateMode] = field(default_factory=dict)
    """The lists that this subtask writes again as long as nobody asks for them. Union lists are the business of the
    first subtask: all have all of their elements."""

    @property
    def is_restored(self) -> bool:
        """Whether the job starts from a snapshot (even if this operator has no state in it)."""
        return self.checkpoint_id > 0


def kept_modes(handles: Sequence[OperatorStateHandle], subtask_index: int) -> dict[str, OperatorStateMode]:
    """`RestoredState.kept_modes` of a subtask that these handles were given to."""
    return {
        entry.name: entry.mode
        for handle in handles
        for entry in handle.entries
        if entry.mode is not OperatorStateMode.UNION or subtask_index == 0
    }


class KeyedSnapshotPart(Protocol):
    """Keyed state that is frozen and can be encoded on another thread."""

    @property
    def key_group_range(self) -> KeyGroupRange:
        """Return the key groups that the part covers."""
        ...

    def encode(self) -> bytes | memoryview:
        """The file, in the format of `snapline.dataflow.snapshot.state_format`. Runs once, in an upload
        thread, or in the task's own when its snapshots are small."""
        ...

    def release(self) -> None:
        """The snapshot is over (written or abandoned); copies on write can end. Called exactly once."""
        ...


@runtime_checkable
class SharedKeyedSnapshotPart(KeyedSnapshotPart, Protocol):
    """Frozen keyed state of an incremental checkpoint: later checkpoints will refer to it."""

    @property
    def shared_key(self) -> str:
        """What the SharedStateRegistry counts it under; unique to the job."""
        ...

    @property
    def references(self) -> tuple[KeyedStateHandle, ...]:
        """Parts of earlier checkpoints that this one builds on; they go before it."""
        ...

    def stored(self, handle: StreamStateHandle) -> KeyedStateHandle:
        """Note where the part is durable now. Called from an upload thread."""
        ...


@dataclass(frozen=True, slots=True)
class OperatorListSnapshot:
    """One named list state, frozen."""

    name: str
    mode: OperatorStateMode
    elements: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class OperatorSnapshot:
    """Result of the synchronous part for one operator."""

    keyed: tuple[KeyedSnapshotPart, ...] = ()
    operator_lists: tuple[OperatorListSnapshot, ...] = ()
    is_final: bool = False
    """The operator has finished: nothing will follow this, and later checkpoints may have to carry it on."""


EMPTY_OPERATOR_SNAPSHOT = OperatorSnapshot()


class StreamOperator(ABC):
    """Base of all runtime operators. The loop calls, in order: setup, initialize_state, open, (process..., snapshots),
    finish, close. `close` is also called after a failure, and must not raise for what was never opened."""

    context: OperatorContext
    output: Output
    orders_statuses = False
    """Whether it takes a watermark status while it has pending work; else that waits until the work is done."""

    def setup(self, context: OperatorContext, output: Output) -> None:
        """Take the place in the chain."""
        self.context = context
        self.output = output

    def initialize_state(self, restored: RestoredState) -> None:
        """Create state, and take over what was restored. StateError for keyed state, which an operator without keys
        would lose."""
        if restored.keyed:
            raise StateError(
                f"operator {self.context.operator_uid!r}: the snapshot holds keyed state for it, and it keeps none, so that it would "
                "begin without state: keep the operator, or give it another uid"
            )

    def open(self) -> None:
        """Ready to process after this. Tail to head, so that outputs are open before inputs."""

    @property
    def is_ready(self) -> bool:
        """Whether the task may begin. Until then it is INITIALIZING; whoever ends that calls `context.wake_up`."""
        return True

    def process_batch(self, batch: pa.RecordBatch, input_index: int = 0) -> None:
        """Process one batch of the input with this index."""
        raise TypeError(f"{type(self).__name__} takes no batches")

    def process_watermark(self, watermark: Watermark) -> None:
        """The minimum over all inputs rose to this. Default: pass it on."""
        self.output.emit_watermark(watermark)

    def process_watermark_status(self, status: WatermarkStatus) -> None:
        """All inputs became idle, or one active again. Default: pass it on."""
        self.output.emit_watermark_status(status)

    @property
    def keeps_rows_for_ms(self) -> int | None:
        """For how long of event time a row stays at least, until the watermark lets it go; None: for good, or not at
        all. What a channel is further ahead of the others only fills memory."""
        return None

    @property
    def has_pending_work(self) -> bool:
        """Whether `continue_work` has more to do (timers or windows fired in slices)."""
        return False

    def continue_work(self) -> None:
        """Do one bounded slice of the work begun by a watermark. The loop calls it between control mails while
        `has_pending_work`; the operator emits the watermark itself when done."""

    @property
    def is_blocked(self) -> bool:
        """Whether nothing more may come in for now: until `has_pending_work`, the task reads no input and nothing
        upstream in the chain goes on. Whoever ends that calls `context.wake_up`, or it is `wake_at_ms`."""
        return False

    @property
    def awaits(self) -> str:
        """What a blocked operator waits for outside of its task, in words; asked for from any thread."""
        return ""

    @property
    def wake_at_ms(self) -> int | None:
        """When there will be pending work by time alone (processing time)."""
        return None

    def end_input(self, input_index: int = 0) -> None:
        """The input with this index has ended."""

    def finish(self) -> None:
        """All inputs have ended (and the job drains): flush. More rows may be emitted here, for the last time."""

    def prepare_snapshot_pre_barrier(self, checkpoint_id: CheckpointID) -> None:
        """The barrier is about to leave; what is emitted here still belongs to the checkpoint. Head to tail."""

    def announce_snapshot(self, snapshot_type: SnapshotType) -> None:
        """What the next `snapshot_state` is for; only a plain checkpoint may be incremental."""

    def snapshot_state(self, checkpoint_id: CheckpointID, timestamp_ms: int) -> OperatorSnapshot:
        """Freeze. Tail to head, right after the barrier has left."""
        return EMPTY_OPERATOR_SNAPSHOT

    def notify_checkpoint_complete(self, checkpoint_id: CheckpointID) -> None:
        """The checkpoint is durable. Tail to head."""

    def notify_checkpoint_aborted(self, checkpoint_id: CheckpointID) -> None:
        """The checkpoint will never complete. Tail to head."""

    def cancel(self) -> None:
        """The task is cancelled; stop threads soon, and wait for nobody. Called from any thread."""

    def close(self) -> None:
        """Release what the operator holds; nothing is called afterwards."""


class SourceOperatorContract(StreamOperator):
    """Head of a source task: emits when asked."""

    def emit_next(self) -> InputStatus:
        """Emit at most about one batch into `output`. NOTHING_AVAILABLE: ask again at `wake_at_ms`, or after
        `wake_up`."""
        raise NotImplementedError

    @property
    def wake_at_ms(self) -> int | None:
        """With NOTHING_AVAILABLE: when to ask again at the latest; None: only after `context.wake_up`."""
        return None

    def stop_emitting(self, checkpoint_id: CheckpointID, *, drain: bool) -> None:
        """The job stops with a savepoint: emit now what the position already covers; nothing is emitted after this.
        `drain`: nor ever again in this job, whatever it is restarted from."""

    def align_watermarks(self, max_watermark_ms: int) -> None:
        """The JobMaster lets the watermark rise up to here, because of other sources; only a source that reports hears
        of it."""


class SnapshotSink(Protocol):
    """Where the asynchronous part goes: uploads what the task froze and answers with handles, or an error, as mail."""

    def start(
        self,
        checkpoint_id: CheckpointID,
        target_location: str,
        snapshots: Sequence[tuple[OperatorID, OperatorSnapshot]],
        channel_state: Any,
        on_done: Callable[[Any], None],
    ) -> None:
        """Encode and store in the background; `on_done` is called from any thread with a TaskStateSnapshot or an
        exception, unless `cancel` came first."""
        ...

    def cancel(self, checkpoint_id: CheckpointID) -> None:
        """Abandon; delete what was written, also when it was answered, unless it was acknowledged."""
        ...

    def acknowledged(self, checkpoint_id: CheckpointID, state: TaskStateSnapshot) -> None:
        """The coordinator is being told of what was answered: it is not the task's any more."""
        ...

    def settled(self, checkpoint_id: CheckpointID, *, completed: bool) -> None:
        """The coordinator says what became of the checkpoint: it is durable, or aborted."""
        ...
