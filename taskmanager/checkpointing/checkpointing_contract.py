"""What the checkpointing cores of a task say and are told: effects of the barrier handlers and of the subtask coordinator.

Who talks to whom, all on the task's thread: `CheckpointedInputGate` polls the gates, shows barriers to the barrier
handler, performs what concerns channels (`GateEffect`) itself and passes on the rest (`TaskEffect`). The task loop feeds
trigger and abort into `SubtaskCheckpointCoordinator` and performs its `SubtaskEffect`s in order. Mirrors the calls of
Flink's CheckpointBarrierHandler on CheckpointableInput and CheckpointableTask, and those of
SubtaskCheckpointCoordinatorImpl on OperatorChain, ChannelStateWriter and Environment; as values, so that order is testable.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import pyarrow as pa

from snapline.dataflow.elements import CheckpointBarrier
from snapline.dataflow.failures import CheckpointFailureReason
from snapline.dataflow.ids import CheckpointID
from snapline.dataflow.wire.messages import CheckpointMetrics
from snapline.runtime.cores.machine import CancelTimer, StartTimer
from snapline.taskmanager.network.channels.exchange_contract import InputChannelInfo, ResultSubpartitionInfo

# --- effects of barrier handlers on the input gates --------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class BlockConsumption:
    """The channel has delivered its aligned barrier; nothing that follows it is processed until ResumeConsumption."""

    channel: InputChannelInfo


@dataclass(frozen=True, slots=True)
class ResumeConsumption:
    """Poll this channel again; its producer, which stopped behind the aligned barrier, is told, too."""

    channel: InputChannelInfo


@dataclass(frozen=True, slots=True)
class HoldConsumption:
    """The channel has delivered a barrier that overtakes, before the task may take its snapshot: nothing of it is polled until
    ReleaseConsumption, not even what the barrier overtook. Its producer has not stopped."""

    channel: InputChannelInfo


@dataclass(frozen=True, slots=True)
class ReleaseConsumption:
    """Poll this held channel again."""

    channel: InputChannelInfo


@dataclass(frozen=True, slots=True)
class ConvertToPriority:
    """The announced barrier with this sequence number timed out: move it to the front of its channel."""

    channel: InputChannelInfo
    sequence_number: int


@dataclass(frozen=True, slots=True)
class CheckpointStarted:
    """Unaligned: from now on remember, per channel, the data that its barrier has not reached yet."""

    barrier: CheckpointBarrier


@dataclass(frozen=True, slots=True)
class CheckpointStopped:
    """All barriers came, or the checkpoint is over: stop remembering. `completed`: hand over what was remembered."""

    checkpoint_id: CheckpointID
    completed: bool


GateEffect = (
    BlockConsumption
    | ResumeConsumption
    | HoldConsumption
    | ReleaseConsumption
    | ConvertToPriority
    | CheckpointStarted
    | CheckpointStopped
)

# --- effects of barrier handlers on the task ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TriggerCheckpointOnBarrier:
    """Take the snapshot now: `SubtaskCheckpointCoordinator.checkpoint_state`.

    An aligned trigger carries its final metrics; an unaligned one is followed by AllBarriersReceived, with the rest."""

    barrier: CheckpointBarrier
    """Its options say whether the checkpoint is unaligned now, whatever it was when it set out."""
    metrics: CheckpointMetrics


@dataclass(frozen=True, slots=True)
class AllBarriersReceived:
    """The last barrier of a checkpoint that was triggered unaligned has come."""

    checkpoint_id: CheckpointID
    alignment_duration_ms: int
    bytes_processed_during_alignment: int


@dataclass(frozen=True, slots=True)
class AbortCheckpointOnBarrier:
    """The checkpoint is given up here: `SubtaskCheckpointCoordinator.abort_checkpoint_on_barrier`."""

    checkpoint_id: CheckpointID
    reason: CheckpointFailureReason | None
    """None: the JobMaster has given it up."""


@dataclass(frozen=True, slots=True)
class InputChannelStateCompleted:
    """What CheckpointedInputGate makes of CheckpointStopped(completed=True): the in-flight data of all its channels."""

    checkpoint_id: CheckpointID
    batches: Mapping[InputChannelInfo, tuple[pa.RecordBatch, ...]]
    """In channel order; channels without in-flight data are absent."""


@dataclass(frozen=True, slots=True)
class InputsRecovered:
    """EndOfChannelState has been polled on all channels, and what stands before it is processed: what the outputs get from now on is
    made of what was not so far when the snapshot was taken."""

    is_last: bool
    """It is new."""


TaskEffect = (
    TriggerCheckpointOnBarrier
    | AllBarriersReceived
    | AbortCheckpointOnBarrier
    | InputChannelStateCompleted
    | InputsRecovered
    | StartTimer
    | CancelTimer
)
BarrierHandlerEffect = GateEffect | TaskEffect

# --- effects of the subtask checkpoint coordinator ---------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class InitializeOperator:
    """`initialize_state` and `open` of the operator at this position of the chain."""

    operator_index: int


@dataclass(frozen=True, slots=True)
class PrepareSnapshotPreBarrier:
    """`prepare_snapshot_pre_barrier` of one operator; what it emits belongs to the checkpoint."""

    operator_index: int
    checkpoint_id: CheckpointID


@dataclass(frozen=True, slots=True)
class BroadcastBarrier:
    """Add the barrier to every subpartition of every output (`add(barrier, priority=is_priority)`).

    With priority, `add` returns what was overtaken: collect it, and hand it to `finish_output` at CaptureOutputState."""

    barrier: CheckpointBarrier
    is_priority: bool


@dataclass(frozen=True, slots=True)
class BroadcastCancelCheckpointMarker:
    """Add CancelCheckpointMarker(checkpoint_id) to every subpartition of every output."""

    checkpoint_id: CheckpointID


@dataclass(frozen=True, slots=True)
class CaptureOutputState:
    """Call `finish_output(checkpoint_id, batches)` with what BroadcastBarrier has overtaken (Flink: finishOutput)."""

    checkpoint_id: CheckpointID


@dataclass(frozen=True, slots=True)
class TimeOutBarrier:
    """The aligned timeout passed: `ResultSubpartition.time_out(barrier)` on every subpartition, then `finish_output`
    with the batches that it returned. The barrier is the one that BroadcastBarrier carried."""

    barrier: CheckpointBarrier


@dataclass(frozen=True, slots=True)
class SnapshotOperator:
    """`snapshot_state` of one operator; keep the result for StartAsyncSnapshot."""

    operator_index: int
    checkpoint_id: CheckpointID
    timestamp_ms: int


@dataclass(frozen=True, slots=True)
class ChannelState:
    """In-flight data of one subtask in one checkpoint."""

    inputs: Mapping[InputChannelInfo, tuple[pa.RecordBatch, ...]] = field(default_factory=dict)
    outputs: Mapping[ResultSubpartitionInfo, tuple[pa.RecordBatch, ...]] = field(default_factory=dict)

    @property
    def size_bytes(self) -> int:
        """Bytes persisted during alignment."""
        return sum(
            batch.nbytes for part in (self.inputs, self.outputs) for batches in part.values() for batch in batches
        )


EMPTY_CHANNEL_STATE = ChannelState()


@dataclass(frozen=True, slots=True)
class StartAsyncSnapshot:
    """Everything is frozen and all in-flight data is known: encode and upload the results of SnapshotOperator and the
    channel state in the background; answer with `async_part_completed` or `async_part_failed`."""

    checkpoint_id: CheckpointID
    target_location: str
    channel_state: ChannelState


@dataclass(frozen=True, slots=True)
class CancelAsyncSnapshot:
    """Abandon: release what SnapshotOperator froze; if the upload runs, stop it and delete what it wrote."""

    checkpoint_id: CheckpointID


@dataclass(frozen=True, slots=True)
class Acknowledge:
    """Send AcknowledgeCheckpoint with the state that `async_part_completed` was given."""

    checkpoint_id: CheckpointID
    metrics: CheckpointMetrics


@dataclass(frozen=True, slots=True)
class Decline:
    """Send DeclineCheckpoint."""

    checkpoint_id: CheckpointID
    reason: CheckpointFailureReason
    detail: str = ""


@dataclass(frozen=True, slots=True)
class NotifyOperatorComplete:
    """`notify_checkpoint_complete` of one operator."""

    operator_index: int
    checkpoint_id: CheckpointID


@dataclass(frozen=True, slots=True)
class NotifyOperatorAborted:
    """`notify_checkpoint_aborted` of one operator."""

    operator_index: int
    checkpoint_id: CheckpointID


@dataclass(frozen=True, slots=True)
class NotifyStateManager:
    """Tell whatever caches snapshots outside the operators (local recovery, backends' shared files); also when the task
    does not run. `completed` False: aborted."""

    checkpoint_id: CheckpointID
    completed: bool


SubtaskEffect = (
    InitializeOperator
    | PrepareSnapshotPreBarrier
    | BroadcastBarrier
    | BroadcastCancelCheckpointMarker
    | CaptureOutputState
    | TimeOutBarrier
    | SnapshotOperator
    | StartAsyncSnapshot
    | CancelAsyncSnapshot
    | Acknowledge
    | Decline
    | NotifyOperatorComplete
    | NotifyOperatorAborted
    | NotifyStateManager
    | StartTimer
    | CancelTimer
)
