"""Does what the SubtaskCheckpointCoordinator says: barriers out, operators frozen, uploads begun, messages sent.

Decides nothing about checkpoints but three things that only this side knows: which edges let a barrier overtake (on others
in-flight rows could not be redistributed), whether the chain was finished when it was frozen, and that an operator that fails
to prepare or freeze fails its task, after the decline. Mirrors the executing half of Flink's SubtaskCheckpointCoordinatorImpl
and RecordWriterOutput.broadcastEvent.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

import pyarrow as pa

from snapline.dataflow.elements import CancelCheckpointMarker, CheckpointBarrier, EndOfChannelState, SnapshotType
from snapline.dataflow.ids import CheckpointID, OperatorID
from snapline.dataflow.snapshot.channel_state import supports_unaligned
from snapline.dataflow.snapshot.handles import EMPTY_TASK_STATE, TaskStateSnapshot
from snapline.dataflow.wire.messages import AcknowledgeCheckpoint, DeclineCheckpoint, TaskDeploymentDescriptor
from snapline.runtime.cores.machine import CancelTimer, StartTimer
from snapline.taskmanager.checkpointing.checkpointing_contract import (
    AbortCheckpointOnBarrier,
    Acknowledge,
    AllBarriersReceived,
    BroadcastBarrier,
    BroadcastCancelCheckpointMarker,
    CancelAsyncSnapshot,
    CaptureOutputState,
    Decline,
    InitializeOperator,
    InputChannelStateCompleted,
    InputsRecovered,
    NotifyOperatorAborted,
    NotifyOperatorComplete,
    NotifyStateManager,
    PrepareSnapshotPreBarrier,
    SnapshotOperator,
    StartAsyncSnapshot,
    SubtaskEffect,
    TaskEffect,
    TimeOutBarrier,
    TriggerCheckpointOnBarrier,
)
from snapline.taskmanager.checkpointing.subtask_checkpoint_coordinator import SubtaskCheckpointCoordinator
from snapline.taskmanager.network.channels.exchange_contract import ResultSubpartitionInfo
from snapline.taskmanager.operators.base.failure import OperatorFailure
from snapline.taskmanager.operators.base.operator_contract import OperatorSnapshot
from snapline.taskmanager.task.environment import Environment
from snapline.taskmanager.task.mailbox import AsyncSnapshotMail, Mail
from snapline.taskmanager.task.operator_chain import ChainedOperator
from snapline.taskmanager.task.record_writer import RecordWriter
from snapline.taskmanager.task.task_timers import TaskTimers

Overtaken = dict[ResultSubpartitionInfo, tuple[pa.RecordBatch, ...]]


class CheckpointExecution:
    """The checkpoints of one task. All calls on the task's thread."""

    def __init__(
        self,
        descriptor: TaskDeploymentDescriptor,
        coordinator: SubtaskCheckpointCoordinator,
        operators: Sequence[ChainedOperator],
        writers: Sequence[RecordWriter],
        environment: Environment,
        timers: TaskTimers,
        put_mail: Callable[[Mail], None],
        on_taken: Callable[[CheckpointBarrier], bool],
    ) -> None:
        """`on_taken` is told of every checkpoint that is frozen here, and answers whether the task was finished then."""
        self._descriptor = descriptor
        self._coordinator = coordinator
        self._operators = tuple(operators)
        self._writers = tuple(writers)
        self._environment = environment
        self._timers = timers
        self._put_mail = put_mail
        self._on_taken = on_taken
        self._snapshots: dict[CheckpointID, list[tuple[OperatorID, OperatorSnapshot]]] = {}
        self._started: dict[CheckpointID, int] = {}
        """Uploads that run, and when they began."""
        self._finished: dict[CheckpointID, bool] = {}
        self._overtaken: dict[CheckpointID, Overtaken] = {}
        self._durable: dict[CheckpointID, TaskStateSnapshot] = {}
        self._snapshot_type = SnapshotType.CHECKPOINT
        """Of the snapshot whose synchronous part runs."""

    # --- what happens to the task -------------------------------------------------------------------------------------

    def trigger(self, barrier: CheckpointBarrier, now_ms: int, *, is_running: bool) -> None:
        """The JobMaster wants a checkpoint of a task without (open) inputs."""
        self._take(barrier, self._coordinator.trigger_checkpoint(barrier, now_ms, is_running=is_running))

    def input_effects(self, effects: Iterable[TaskEffect], now_ms: int, *, is_running: bool) -> None:
        """What the barrier handler made of an element."""
        for effect in effects:
            match effect:
                case TriggerCheckpointOnBarrier(barrier):
                    taken = self._coordinator.trigger_checkpoint_on_barrier(effect, now_ms, is_running=is_running)
                    self._take(barrier, taken)
                case AllBarriersReceived():
                    self._perform(self._coordinator.all_barriers_received(effect))
                case AbortCheckpointOnBarrier(checkpoint_id, reason):
                    self._perform(self._coordinator.abort_checkpoint_on_barrier(checkpoint_id, reason))
                case InputChannelStateCompleted(checkpoint_id, batches):
                    self._perform(self._coordinator.finish_input(checkpoint_id, batches))
                case InputsRecovered(is_last):
                    for writer in self._writers:
                        writer.broadcast(EndOfChannelState(is_last))
                case StartTimer(key, at_ms):
                    self._timers.start(key, at_ms)
                case CancelTimer(key):
                    self._timers.cancel(key)

    def async_part_done(self, mail: AsyncSnapshotMail) -> None:
        """The upload answered."""
        checkpoint_id = mail.checkpoint_id
        began_ms = self._started.pop(checkpoint_id, None)
        if began_ms is None:
            return  # it was cancelled, and answered all the same
        finished = self._finished.pop(checkpoint_id, False)
        if isinstance(mail.result, BaseException):
            self._environment.snapshot_sink.cancel(checkpoint_id)
            detail = f"{type(mail.result).__name__}: {mail.result}"
            self._perform(self._coordinator.async_part_failed(checkpoint_id, detail))
            return
        self._durable[checkpoint_id] = replace(mail.result, is_task_finished=finished)
        duration_ms = max(0, self._environment.clock_ms() - began_ms)
        self._perform(self._coordinator.async_part_completed(checkpoint_id, duration_ms))
        self._durable.pop(checkpoint_id, None)
        self._environment.snapshot_sink.cancel(checkpoint_id)  # if nobody was told of it

    def notify_complete(self, checkpoint_id: CheckpointID, *, is_running: bool) -> None:
        """The checkpoint is durable."""
        self._perform(self._coordinator.notify_checkpoint_complete(checkpoint_id, is_running=is_running))

    def notify_aborted(self, checkpoint_id: CheckpointID, *, is_running: bool) -> None:
        """The checkpoint will never complete."""
        self._perform(self._coordinator.notify_checkpoint_aborted(checkpoint_id, is_running=is_running))

    def timer_fired(self, key: object, now_ms: int) -> None:
        """A timer is due."""
        self._perform(self._coordinator.timer_fired(key, now_ms))

    def check_output_barriers(self) -> None:
        """Checkpoints whose barrier has left all outputs wait for their timeout no longer."""
        for checkpoint_id in self._coordinator.awaited_output_barriers:
            waiting = any(
                subpartition.is_barrier_waiting(checkpoint_id)
                for writer in self._overtakable()
                for subpartition in writer.subpartitions
            )
            if not waiting:
                self._perform(self._coordinator.output_barriers_sent(checkpoint_id))

    def close(self) -> None:
        """The task ends: abandon what runs."""
        self._perform(self._coordinator.close())

    # --- effects ------------------------------------------------------------------------------------------------------

    def _take(self, barrier: CheckpointBarrier, effects: list[SubtaskEffect]) -> None:
        """The synchronous part."""
        checkpoint_id = barrier.checkpoint_id
        self._snapshot_type = barrier.options.snapshot_type
        began_ms = self._environment.clock_ms()
        if any(isinstance(effect, BroadcastBarrier) for effect in effects):
            self._finished[checkpoint_id] = self._on_taken(barrier)
            self._snapshots[checkpoint_id] = []
        try:
            self._perform(effects)
        except OperatorFailure as failure:
            self._perform(self._coordinator.sync_part_failed(checkpoint_id, str(failure)))
            raise
        duration_ms = max(0, self._environment.clock_ms() - began_ms)
        self._perform(self._coordinator.sync_part_completed(checkpoint_id, duration_ms))

    def _perform(self, effects: Iterable[SubtaskEffect]) -> None:
        """In order; what an effect leads to comes after what was there."""
        queue = deque(effects)
        while queue:
            queue.extend(self._perform_one(queue.popleft()))

    def _perform_one(self, effect: SubtaskEffect) -> Sequence[SubtaskEffect]:
        match effect:
            case PrepareSnapshotPreBarrier(index, checkpoint_id):
                item = self._operators[index]
                item.run(
                    "prepare_snapshot_pre_barrier", lambda: item.operator.prepare_snapshot_pre_barrier(checkpoint_id)
                )
            case BroadcastBarrier(barrier, is_priority):
                self._broadcast_barrier(barrier, is_priority=is_priority)
            case BroadcastCancelCheckpointMarker(checkpoint_id):
                for writer in self._writers:
                    writer.broadcast(CancelCheckpointMarker(checkpoint_id))
            case CaptureOutputState(checkpoint_id):
                return self._coordinator.finish_output(checkpoint_id, self._overtaken.pop(checkpoint_id, {}))
            case TimeOutBarrier(barrier):
                return self._coordinator.finish_output(barrier.checkpoint_id, self._time_out(barrier))
            case SnapshotOperator(index, checkpoint_id, timestamp_ms):
                self._snapshot_operator(index, checkpoint_id, timestamp_ms)
            case StartAsyncSnapshot(checkpoint_id, target_location, channel_state):
                self._started[checkpoint_id] = self._environment.clock_ms()
                self._environment.snapshot_sink.start(
                    checkpoint_id,
                    target_location,
                    self._snapshots.pop(checkpoint_id, []),
                    channel_state,
                    lambda result: self._put_mail(AsyncSnapshotMail(checkpoint_id, result)),
                )
            case CancelAsyncSnapshot(checkpoint_id):
                self._abandon(checkpoint_id)
            case Acknowledge(checkpoint_id, metrics):
                state: TaskStateSnapshot = self._durable.get(checkpoint_id, EMPTY_TASK_STATE)
                self._environment.snapshot_sink.acknowledged(checkpoint_id, state)
                job_id, attempt_id = self._descriptor.job_id, self._descriptor.attempt_id
                message = AcknowledgeCheckpoint(job_id, attempt_id, checkpoint_id, metrics, state)
                self._environment.acknowledge_checkpoint(message)
            case Decline(checkpoint_id, reason, detail):
                job_id, attempt_id = self._descriptor.job_id, self._descriptor.attempt_id
                self._environment.decline_checkpoint(
                    DeclineCheckpoint(job_id, attempt_id, checkpoint_id, reason, detail)
                )
            case NotifyOperatorComplete(index, checkpoint_id):
                item = self._operators[index]
                item.run("notify_checkpoint_complete", lambda: item.operator.notify_checkpoint_complete(checkpoint_id))
            case NotifyOperatorAborted(index, checkpoint_id):
                item = self._operators[index]
                item.run("notify_checkpoint_aborted", lambda: item.operator.notify_checkpoint_aborted(checkpoint_id))
            case StartTimer(key, at_ms):
                self._timers.start(key, at_ms)
            case CancelTimer(key):
                self._timers.cancel(key)
            case NotifyStateManager(checkpoint_id, completed):
                self._environment.snapshot_sink.settled(checkpoint_id, completed=completed)
            case InitializeOperator():
                pass  # the chain does
        return ()

    def _broadcast_barrier(self, barrier: CheckpointBarrier, *, is_priority: bool) -> None:
        held_back = barrier.with_options(barrier.options.with_unaligned_unsupported())
        overtaken: Overtaken = {}
        for partition_index, writer in enumerate(self._writers):
            if not _lets_overtake(writer):
                writer.broadcast(held_back)
                continue
            for subpartition_index, batches in writer.broadcast(barrier, priority=is_priority):
                if batches:
                    overtaken[ResultSubpartitionInfo(partition_index, subpartition_index)] = tuple(batches)
        if is_priority:
            self._overtaken[barrier.checkpoint_id] = overtaken

    def _time_out(self, barrier: CheckpointBarrier) -> Mapping[ResultSubpartitionInfo, tuple[pa.RecordBatch, ...]]:
        overtaken: Overtaken = {}
        for partition_index, writer in enumerate(self._writers):
            if _lets_overtake(writer):
                for subpartition_index, batches in writer.time_out(barrier):
                    if batches:
                        overtaken[ResultSubpartitionInfo(partition_index, subpartition_index)] = tuple(batches)
        return overtaken

    def _overtakable(self) -> list[RecordWriter]:
        return [writer for writer in self._writers if _lets_overtake(writer)]

    def _snapshot_operator(self, index: int, checkpoint_id: CheckpointID, timestamp_ms: int) -> None:
        item = self._operators[index]
        taken: list[OperatorSnapshot] = []
        item.operator.announce_snapshot(self._snapshot_type)
        item.run("snapshot_state", lambda: taken.append(item.operator.snapshot_state(checkpoint_id, timestamp_ms)))
        is_final = self._finished[checkpoint_id]
        snapshot = replace(taken[0], is_final=True) if is_final else taken[0]
        self._snapshots[checkpoint_id].append((item.descriptor.operator_id, snapshot))

    def _abandon(self, checkpoint_id: CheckpointID) -> None:
        self._finished.pop(checkpoint_id, None)
        self._overtaken.pop(checkpoint_id, None)
        for _, snapshot in self._snapshots.pop(checkpoint_id, ()):
            for part in snapshot.keyed:
                part.release()
        if self._started.pop(checkpoint_id, None) is not None:
            self._environment.snapshot_sink.cancel(checkpoint_id)


def _lets_overtake(writer: RecordWriter) -> bool:
    return supports_unaligned(writer.descriptor.partitioning)
