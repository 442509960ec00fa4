"""What a checkpoint does to its task: barriers go out, uploads begin, messages are sent, timers run.

Decides nothing about checkpoints but which edges let a barrier overtake: on others in-flight rows could not be
redistributed. Mirrors the executing half of Flink's SubtaskCheckpointCoordinatorImpl and
RecordWriterOutput.broadcastEvent.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence

import pyarrow as pa

from snapline.dataflow.elements import CancelCheckpointMarker, CheckpointBarrier, EndOfChannelState
from snapline.dataflow.failures import CheckpointFailureReason
from snapline.dataflow.ids import CheckpointID
from snapline.dataflow.partitioning import Partitioning
from snapline.dataflow.snapshot.channel_state import supports_unaligned, with_origin
from snapline.dataflow.snapshot.handles import TaskStateSnapshot
from snapline.dataflow.wire.messages import (
    AcknowledgeCheckpoint,
    CheckpointMetrics,
    DeclineCheckpoint,
    TaskDeploymentDescriptor,
)
from snapline.taskmanager.checkpointing.checkpointing_contract import ChannelState, FrozenState
from snapline.taskmanager.network.channels.exchange_contract import ResultSubpartitionInfo
from snapline.taskmanager.task.environment_contract import Environment
from snapline.taskmanager.task.mailbox import AsyncSnapshotMail, Mail
from snapline.taskmanager.task.record_writer import RecordWriter
from snapline.taskmanager.task.task_failure import MAX_SUMMARY, shortened
from snapline.taskmanager.task.task_timers import TaskTimers

Overtaken = dict[ResultSubpartitionInfo, tuple[pa.RecordBatch, ...]]


class CheckpointExecution:
    """A task as its SubtaskCheckpointCoordinator sees it (CheckpointableTask). All calls on the task's thread."""

    def __init__(
        self,
        descriptor: TaskDeploymentDescriptor,
        writers: Sequence[RecordWriter],
        environment: Environment,
        timers: TaskTimers,
        put_mail: Callable[[Mail], None],
        on_taken: Callable[[CheckpointBarrier], bool],
    ) -> None:
        """`on_taken` is told of every checkpoint that is frozen here, and answers whether the task was finished
        then."""
        self._descriptor = descriptor
        self._writers = tuple(writers)
        self._environment = environment
        self._timers = timers
        self._put_mail = put_mail
        self._on_taken = on_taken

    def clock_ms(self) -> int:
        """The clock of the process."""
        return self._environment.clock_ms()

    def checkpoint_taken(self, barrier: CheckpointBarrier) -> bool:
        """The task loop knows what it has finished, and waits for some checkpoints before it ends."""
        return self._on_taken(barrier)

    def start_timer(self, key: Hashable, at_ms: int) -> None:
        """The task loop asks for what is due."""
        self._timers.start(key, at_ms)

    def cancel_timer(self, key: Hashable) -> None:
        """Forget a timer, which is not due any more."""
        self._timers.cancel(key)

    # --- outputs ------------------------------------------------------------------------------------------------------

    def broadcast_barrier(self, barrier: CheckpointBarrier, *, is_priority: bool) -> Overtaken:
        """On edges that nothing overtakes, the barrier says so."""
        held_back = barrier.with_options(barrier.options.with_unaligned_unsupported())
        overtaken: Overtaken = {}
        for partition_index, writer in enumerate(self._writers):
            if _lets_overtake(writer):
                overtaken |= _overtaken_in(partition_index, writer.broadcast(barrier, priority=is_priority))
            else:
                writer.broadcast(held_back)
        return overtaken

    def time_out_barrier(self, barrier: CheckpointBarrier) -> Overtaken:
        """On the edges on which it may overtake."""
        overtaken: Overtaken = {}
        for partition_index, writer in enumerate(self._writers):
            if _lets_overtake(writer):
                overtaken |= _overtaken_in(partition_index, writer.time_out(barrier))
        return overtaken

    def is_barrier_waiting(self, checkpoint_id: CheckpointID) -> bool:
        """In an output in which it may overtake."""
        return any(
            subpartition.is_barrier_waiting(checkpoint_id)
            for writer in self._writers
            if _lets_overtake(writer)
            for subpartition in writer.subpartitions
        )

    def broadcast_cancel_checkpoint_marker(self, checkpoint_id: CheckpointID) -> None:
        """Put a CancelCheckpointMarker into all outputs of the task."""
        for writer in self._writers:
            writer.broadcast(CancelCheckpointMarker(checkpoint_id))

    def broadcast_end_of_channel_state(self, *, is_last: bool) -> None:
        """Put an EndOfChannelState into all outputs of the task."""
        for writer in self._writers:
            writer.broadcast(EndOfChannelState(is_last))

    # --- the background -----------------------------------------------------------------------------------------------

    def start_async_snapshot(
        self,
        checkpoint_id: CheckpointID,
        target_location: str,
        frozen: Sequence[FrozenState],
        channel_state: ChannelState,
    ) -> None:
        """The answer comes as mail."""
        self._environment.snapshot_sink.start(
            checkpoint_id,
            target_location,
            frozen,
            self._with_origin(channel_state),
            lambda result: self._put_mail(AsyncSnapshotMail(checkpoint_id, result)),
        )

    def _with_origin(self, channel_state: ChannelState) -> ChannelState:
        """Whose rows the inputs are follows from the key, unless one subtask has all of them."""
        gates, partitions = self._descriptor.input_gates, self._descriptor.result_partitions
        is_alone = self._descriptor.parallelism == 1
        keys = [
            None if is_alone else gate.key_columns if gate.partitioning is Partitioning.HASH else () for gate in gates
        ]
        inputs = {
            channel: with_origin(batches, gates[channel.gate_index].edge_id, keys[channel.gate_index])
            for channel, batches in channel_state.inputs.items()
        }
        outputs = {
            part: with_origin(batches, partitions[part.partition_index].edge_id)
            for part, batches in channel_state.outputs.items()
        }
        return ChannelState(inputs, outputs)

    def cancel_async_snapshot(self, checkpoint_id: CheckpointID) -> None:
        """No answer is waited for any more."""
        self._environment.snapshot_sink.cancel(checkpoint_id)

    def checkpoint_settled(self, checkpoint_id: CheckpointID, *, completed: bool) -> None:
        """The snapshot sink keeps local copies, and what was acknowledged."""
        self._environment.snapshot_sink.settled(checkpoint_id, completed=completed)

    # --- the JobMaster ------------------------------------------------------------------------------------------------

    def acknowledge(self, checkpoint_id: CheckpointID, metrics: CheckpointMetrics, state: TaskStateSnapshot) -> None:
        """What was written belongs to the checkpoint from now on."""
        self._environment.snapshot_sink.acknowledged(checkpoint_id, state)
        job_id, attempt_id = self._descriptor.job_id, self._descriptor.attempt_id
        message = AcknowledgeCheckpoint(job_id, attempt_id, checkpoint_id, metrics, state)
        self._environment.acknowledge_checkpoint(message)

    def decline(
        self, checkpoint_id: CheckpointID, reason: CheckpointFailureReason, detail: str = "", timestamp_ms: int = 0
    ) -> None:
        """With the detail that the user gets to see, which may be what a function has raised."""
        job_id, attempt_id = self._descriptor.job_id, self._descriptor.attempt_id
        detail = shortened(detail, MAX_SUMMARY)
        message = DeclineCheckpoint(job_id, attempt_id, checkpoint_id, reason, detail, timestamp_ms)
        self._environment.decline_checkpoint(message)


def _overtaken_in(partition_index: int, results: Iterable[tuple[int, Sequence[pa.RecordBatch] | None]]) -> Overtaken:
    """What the barrier overtook in one output, by subpartition."""
    return {
        ResultSubpartitionInfo(partition_index, subpartition_index): tuple(batches)
        for subpartition_index, batches in results
        if batches
    }


def _lets_overtake(writer: RecordWriter) -> bool:
    return supports_unaligned(writer.descriptor.partitioning)
