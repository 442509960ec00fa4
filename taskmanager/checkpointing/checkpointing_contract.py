"""What the checkpointing cores of a task call: the gates, the subtask coordinator, the operators and the task.

Who talks to whom, all on the task's thread: `CheckpointedInputGate` shows barriers to the barrier handler, which calls
the gates (`CheckpointableInput`) and the `SubtaskCheckpointCoordinator` (`BarrierListener`), to which the task loop
also says what the JobMaster wants. The coordinator calls its `CheckpointedOperator`s and its `CheckpointableTask`.
Every call is done when it returns; tests record them, in order. Mirrors the calls of Flink's CheckpointBarrierHandler
on CheckpointableInput and CheckpointableTask, and those of SubtaskCheckpointCoordinatorImpl on OperatorChain,
ChannelStateWriter and Environment.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import pyarrow as pa

from snapline.dataflow.elements import CheckpointBarrier
from snapline.dataflow.failures import CheckpointFailureReason
from snapline.dataflow.ids import CheckpointID, OperatorID
from snapline.dataflow.snapshot.handles import TaskStateSnapshot
from snapline.dataflow.wire.messages import CheckpointMetrics
from snapline.taskmanager.network.channels.exchange_contract import InputChannelInfo, ResultSubpartitionInfo
from snapline.taskmanager.operators.base.operator_contract import OperatorSnapshot

InputState = Mapping[InputChannelInfo, tuple[pa.RecordBatch, ...]]
"""In-flight data of the inputs of one subtask: channels without any are absent."""
OutputState = Mapping[ResultSubpartitionInfo, tuple[pa.RecordBatch, ...]]
"""In-flight data of its outputs, which a barrier has overtaken: subpartitions without any are absent."""
FrozenState = tuple[OperatorID, OperatorSnapshot]
"""What one operator froze, and which."""

# --- what a barrier handler works with --------------------------------------------------------------------------------


class CheckpointableInput(Protocol):
    """What a barrier handler asks of the input gates of its task (Flink: CheckpointableInput)."""

    @property
    def channel_infos(self) -> tuple[InputChannelInfo, ...]:
        """All channels of all gates."""
        ...

    def block_consumption(self, channel: InputChannelInfo) -> None:
        """The channel has delivered its aligned barrier; nothing that follows it is processed until
        `resume_consumption`."""
        ...

    def resume_consumption(self, channel: InputChannelInfo) -> None:
        """Poll this channel again; its producer, which stopped behind the aligned barrier, is told, too."""
        ...

    def hold_consumption(self, channel: InputChannelInfo) -> None:
        """The channel has delivered a barrier that overtakes, before the task may take its snapshot: nothing of it is
        polled until `release_consumption`, not even what the barrier overtook. Its producer has not stopped."""
        ...

    def release_consumption(self, channel: InputChannelInfo) -> None:
        """Poll this held channel again."""
        ...

    def convert_to_priority(self, channel: InputChannelInfo, sequence_number: int) -> None:
        """The announced barrier with this sequence number timed out: move it to the front of its channel."""
        ...

    def checkpoint_started(self, barrier: CheckpointBarrier) -> None:
        """Unaligned: from now on remember, per channel, the data that its barrier has not reached yet."""
        ...

    def checkpoint_stopped(self, checkpoint_id: CheckpointID) -> InputState:
        """All barriers came, or the checkpoint is over: stop remembering, and return what was remembered."""
        ...


class BarrierListener(Protocol):
    """What a barrier handler, and the gate that shows it the barriers, tell the SubtaskCheckpointCoordinator."""

    def trigger_checkpoint_on_barrier(
        self, barrier: CheckpointBarrier, metrics: CheckpointMetrics, now_ms: int
    ) -> None:
        """Take the snapshot now. The barrier's options say whether the checkpoint is unaligned now, whatever it was
        when it set out. An aligned trigger carries its final metrics; an unaligned one is followed by
        `all_barriers_received`, with the rest. Raises OperatorFailure."""
        ...

    def all_barriers_received(
        self, checkpoint_id: CheckpointID, alignment_duration_ms: int, bytes_processed_during_alignment: int
    ) -> None:
        """The last barrier of a checkpoint that was triggered unaligned has come."""
        ...

    def finish_input(self, checkpoint_id: CheckpointID, batches: InputState) -> None:
        """The data in flight of all input channels is known."""
        ...

    def abort_checkpoint_on_barrier(
        self,
        checkpoint_id: CheckpointID,
        reason: CheckpointFailureReason | None,
        detail: str = "",
        timestamp_ms: int = 0,
    ) -> None:
        """The checkpoint is given up here. `reason`: None when the JobMaster has given it up; `detail`: what happened
        here, in words for people; `timestamp_ms`: when it was triggered, 0 when no barrier of it was here."""
        ...

    def decline_overtaken_checkpoint(self, checkpoint_id: CheckpointID, detail: str, timestamp_ms: int) -> None:
        """The cancellation of a newer checkpoint came while this one still waited for barriers, and the call of
        `abort_checkpoint_on_barrier` that follows ends this one here, too: the JobMaster is told."""
        ...

    def inputs_recovered(self, *, is_last: bool) -> None:
        """EndOfChannelState has been polled on all channels, and what stands before it is processed: what the outputs
        get from now on is made of what was not so far when the snapshot was taken. `is_last`: whether everything that
        follows on the channels is new."""
        ...

    def start_timer(self, key: Hashable, at_ms: int) -> None:
        """Call the handler's `timer_fired(key)` at this time."""
        ...

    def cancel_timer(self, key: Hashable) -> None:
        """Forget the timer with this key."""
        ...


# --- what the subtask checkpoint coordinator works with ---------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ChannelState:
    """In-flight data of one subtask in one checkpoint."""

    inputs: InputState = field(default_factory=dict)
    outputs: OutputState = field(default_factory=dict)

    @property
    def size_bytes(self) -> int:
        """Return the bytes that were persisted during alignment."""
        return sum(
            batch.nbytes for part in (self.inputs, self.outputs) for batches in part.values() for batch in batches
        )


EMPTY_CHANNEL_STATE = ChannelState()


class CheckpointedOperator(Protocol):
    """One operator of the chain. Each method raises OperatorFailure when the operator does not manage it."""

    def prepare_snapshot_pre_barrier(self, checkpoint_id: CheckpointID) -> None:
        """Emit what still belongs to the checkpoint: its barrier follows."""
        ...

    def snapshot_state(self, barrier: CheckpointBarrier, *, is_final: bool) -> FrozenState:
        """Freeze the operator's state. `is_final`: the operators of the task have finished."""
        ...

    def notify_checkpoint_complete(self, checkpoint_id: CheckpointID) -> None:
        """Tell the operator that the checkpoint is durable."""
        ...

    def notify_checkpoint_aborted(self, checkpoint_id: CheckpointID) -> None:
        """The checkpoint will never complete."""
        ...


class CheckpointableTask(Protocol):
    """What SubtaskCheckpointCoordinator asks of its task; everything is done before the call returns."""

    def clock_ms(self) -> int:
        """A clock for the durations in CheckpointMetrics; nothing else depends on it."""
        ...

    def checkpoint_taken(self, barrier: CheckpointBarrier) -> bool:
        """A snapshot begins. Returns whether the operators have finished, so that this is the last of their state."""
        ...

    def broadcast_barrier(self, barrier: CheckpointBarrier, *, is_priority: bool) -> OutputState:
        """Add the barrier to every subpartition of every output. Returns what a barrier with priority has overtaken."""
        ...

    def time_out_barrier(self, barrier: CheckpointBarrier) -> OutputState:
        """The aligned timeout of a barrier that was broadcast has passed: it overtakes now what stands before it in the
        outputs, which is returned."""
        ...

    def is_barrier_waiting(self, checkpoint_id: CheckpointID) -> bool:
        """Whether some output still holds a barrier of this checkpoint that may time out."""
        ...

    def broadcast_cancel_checkpoint_marker(self, checkpoint_id: CheckpointID) -> None:
        """Add CancelCheckpointMarker to every subpartition of every output."""
        ...

    def broadcast_end_of_channel_state(self, *, is_last: bool) -> None:
        """Add EndOfChannelState to every subpartition of every output."""
        ...

    def start_async_snapshot(
        self,
        checkpoint_id: CheckpointID,
        target_location: str,
        frozen: Sequence[FrozenState],
        channel_state: ChannelState,
    ) -> None:
        """Encode and upload in the background; the answer comes to `async_part_done`."""
        ...

    def cancel_async_snapshot(self, checkpoint_id: CheckpointID) -> None:
        """Stop the upload, and delete what it wrote, unless that was acknowledged."""
        ...

    def acknowledge(self, checkpoint_id: CheckpointID, metrics: CheckpointMetrics, state: TaskStateSnapshot) -> None:
        """Send AcknowledgeCheckpoint with this state to the JobMaster."""
        ...

    def decline(
        self, checkpoint_id: CheckpointID, reason: CheckpointFailureReason, detail: str = "", timestamp_ms: int = 0
    ) -> None:
        """Send DeclineCheckpoint with this reason to the JobMaster."""
        ...

    def checkpoint_settled(self, checkpoint_id: CheckpointID, *, completed: bool) -> None:
        """Tell whatever caches snapshots outside the operators (local recovery, shared files of backends) what became
        of the checkpoint: it is durable, or aborted."""
        ...

    def start_timer(self, key: Hashable, at_ms: int) -> None:
        """Call `timer_fired(key)` at this time."""
        ...

    def cancel_timer(self, key: Hashable) -> None:
        """Forget the timer with this key."""
        ...
