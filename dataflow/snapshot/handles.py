"""Where snapshotted state lies, and whose it is: handles, from one blob up to a whole checkpoint.

Handles are values: they travel in acknowledgements, lie in `_metadata`, and never open anything by themselves. Mirrors
Flink's StreamStateHandle, KeyedStateHandle, OperatorStateHandle, OperatorSubtaskState, TaskStateSnapshot,
OperatorState. All paths are relative to the checkpoint base directory of the job unless they are absolute URLs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum

from snapline.dataflow.elements import SnapshotType
from snapline.dataflow.ids import CheckpointID, JobID, OperatorID
from snapline.dataflow.key_groups import KeyGroupRange


@dataclass(frozen=True, slots=True)
class ByteStreamStateHandle:
    """State small enough to travel inside the acknowledgement."""

    data: bytes

    @property
    def state_size_bytes(self) -> int:
        """Return the length of the blob in bytes."""
        return len(self.data)


@dataclass(frozen=True, slots=True)
class SegmentStateHandle:
    """`size` bytes at `offset` of the file `path` (all subtasks of a TaskManager share one segment file per
    checkpoint)."""

    path: str
    offset: int
    size: int
    checksum: int = 0
    """xxHash64 of the bytes; 0: none was taken, because the blob has checksums of its own, or by an older release."""
    digests: bytes = field(default=b"", repr=False)
    """What `snapline.dataflow.snapshot.digests` says of the bytes; empty: an older release took none."""

    @property
    def state_size_bytes(self) -> int:
        """Return the length of the blob in bytes."""
        return self.size


StreamStateHandle = ByteStreamStateHandle | SegmentStateHandle


@dataclass(frozen=True, slots=True)
class KeyedStateHandle:
    """Keyed state of one subtask: a file in the format of `snapline.dataflow.snapshot.state_format`, which holds its
    own offsets."""

    key_group_range: KeyGroupRange
    handle: StreamStateHandle
    shared_key: str = ""
    """Non-empty: a part shared between incremental checkpoints, counted by the SharedStateRegistry under this key."""


class OperatorStateMode(Enum):
    """How a named list state is redistributed (Flink: OperatorStateHandle.Mode)."""

    SPLIT_DISTRIBUTE = "split"
    UNION = "union"
    BROADCAST = "broadcast"


UNION_STATES_OF_THE_ENGINE = frozenset(
    {
        "accumulators",
        "kind-of-join",
        "operator-watermark",
        "rows-counted-by",
        "source-greatest-event-time",
        "source-readers",
        "watermark-greatest-event-time",
        "window-time",
    }
)
"""Union list states that operators keep for themselves. The part of a subtask that has finished says nothing that those
of the others do not: of what it has read nothing comes any more."""


@dataclass(frozen=True, slots=True)
class OperatorStateEntry:
    """One named list state inside an OperatorStateHandle: where each element lies, relative to the blob."""

    name: str
    mode: OperatorStateMode
    offsets: tuple[tuple[int, int], ...]
    """Where each element lies in the blob, as (offset, size)."""


@dataclass(frozen=True, slots=True)
class OperatorStateHandle:
    """Operator (non-keyed) state of one subtask."""

    handle: StreamStateHandle
    entries: tuple[OperatorStateEntry, ...]


@dataclass(frozen=True, slots=True)
class ChannelStateHandle:
    """In-flight data of one channel, Arrow IPC stream messages in order (Flink:
    Input/ResultSubpartitionStateHandle)."""

    gate_or_partition: int
    """Input gate index of the task for input state, output edge index for output state."""
    channel: int
    """Input channel index or subpartition index."""
    handle: StreamStateHandle
    batch_count: int


@dataclass(frozen=True, slots=True)
class OperatorSubtaskState:
    """All state of one operator in one subtask."""

    managed_keyed: tuple[KeyedStateHandle, ...] = ()
    managed_operator: tuple[OperatorStateHandle, ...] = ()
    input_channel: tuple[ChannelStateHandle, ...] = ()
    output_channel: tuple[ChannelStateHandle, ...] = ()

    @property
    def stream_handles(self) -> tuple[StreamStateHandle, ...]:
        """Every blob that this state refers to."""
        keyed = tuple(part.handle for part in self.managed_keyed)
        operator = tuple(part.handle for part in self.managed_operator)
        channel = tuple(part.handle for part in (*self.input_channel, *self.output_channel))
        return keyed + operator + channel

    def with_handles(self, change: Callable[[StreamStateHandle], StreamStateHandle]) -> OperatorSubtaskState:
        """Return the same state with every handle changed."""
        return OperatorSubtaskState(
            tuple(replace(part, handle=change(part.handle)) for part in self.managed_keyed),
            tuple(replace(part, handle=change(part.handle)) for part in self.managed_operator),
            tuple(replace(part, handle=change(part.handle)) for part in self.input_channel),
            tuple(replace(part, handle=change(part.handle)) for part in self.output_channel),
        )

    @property
    def state_size_bytes(self) -> int:
        """Return the size of all blobs of the subtask, in bytes."""
        total = 0  # plain loops: this is asked once per acknowledgement
        for keyed in self.managed_keyed:
            total += keyed.handle.state_size_bytes
        for operator in self.managed_operator:
            total += operator.handle.state_size_bytes
        for input_data in self.input_channel:
            total += input_data.handle.state_size_bytes
        for output_data in self.output_channel:
            total += output_data.handle.state_size_bytes
        return total


@dataclass(frozen=True, slots=True)
class TaskStateSnapshot:
    """What one subtask acknowledges: the state of each operator of its chain."""

    operators: Mapping[OperatorID, OperatorSubtaskState] = field(default_factory=dict)
    is_task_finished: bool = False
    """All operators of the chain had finished when the snapshot was taken."""

    @property
    def state_size_bytes(self) -> int:
        """Return the size of all operators' state, in bytes."""
        return sum(state.state_size_bytes for state in self.operators.values())


EMPTY_TASK_STATE = TaskStateSnapshot()


@dataclass(frozen=True, slots=True)
class OperatorState:
    """State of one operator over all its subtasks, as it stands in a completed checkpoint."""

    operator_id: OperatorID
    uid: str
    name: str
    parallelism: int
    max_parallelism: int
    subtasks: Mapping[int, OperatorSubtaskState] = field(default_factory=dict)
    fully_finished: bool = False
    finished_subtasks: tuple[int, ...] = ()
    """Subtasks that had finished when the checkpoint was taken, of an operator that is not fully finished."""


@dataclass(frozen=True, slots=True)
class MasterState:
    """State of a master hook, by hook id."""

    hook_id: str
    version: int
    data: bytes


@dataclass(frozen=True, slots=True)
class CheckpointMetadata:
    """The content of `_metadata`, from which a job can be restored with nothing else known."""

    job_id: JobID
    job_name: str
    checkpoint_id: CheckpointID
    timestamp_ms: int
    snapshot_type: SnapshotType
    operators: tuple[OperatorState, ...]
    master_states: tuple[MasterState, ...] = ()
