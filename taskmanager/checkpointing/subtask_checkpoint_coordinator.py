"""Checkpointing inside one task: what is done when a checkpoint is triggered, completes, or is given up, and in what order.

The order, for each checkpoint: operators prepare (head to tail), the barrier goes out, what it overtook is captured, the
operators freeze their state (tail to head), the rest happens in the background, and the acknowledgement is last. Ids only
rise: what is not newer than the last one is not taken, and a checkpoint whose abort was announced before its trigger is
answered by a cancellation marker to the outputs. It does not know operators, files or messages: each step is an effect, and
what the shell finds out comes back through a method. Mirrors Flink's SubtaskCheckpointCoordinatorImpl and the part of
ChannelStateWriter that waits for both sides; unlike there the upload starts when the data in flight is known, not before.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field, replace

import pyarrow as pa

from snapline.dataflow.elements import CheckpointBarrier, CheckpointOptions
from snapline.dataflow.failures import CheckpointFailureReason
from snapline.dataflow.ids import CheckpointID
from snapline.dataflow.wire.messages import CheckpointMetrics
from snapline.runtime.cores.machine import CancelTimer, StartTimer
from snapline.taskmanager.checkpointing.checkpointing_contract import (
    Acknowledge,
    AllBarriersReceived,
    BroadcastBarrier,
    BroadcastCancelCheckpointMarker,
    CancelAsyncSnapshot,
    CaptureOutputState,
    ChannelState,
    Decline,
    InitializeOperator,
    NotifyOperatorAborted,
    NotifyOperatorComplete,
    NotifyStateManager,
    PrepareSnapshotPreBarrier,
    SnapshotOperator,
    StartAsyncSnapshot,
    SubtaskEffect,
    TimeOutBarrier,
    TriggerCheckpointOnBarrier,
)
from snapline.taskmanager.network.channels.exchange_contract import InputChannelInfo, ResultSubpartitionInfo

DEFAULT_MAX_RECORD_ABORTED_CHECKPOINTS = 128
"""Aborts of checkpoints that this task has not seen the trigger of; the oldest is forgotten first."""

InputState = Mapping[InputChannelInfo, tuple[pa.RecordBatch, ...]]
OutputState = Mapping[ResultSubpartitionInfo, tuple[pa.RecordBatch, ...]]


@dataclass(frozen=True, slots=True)
class OutputBarrierTimeout:
    """Key of the timer after which a barrier that waits in the outputs turns unaligned."""

    checkpoint_id: CheckpointID


@dataclass(slots=True)
class _PendingSnapshot:
    """One checkpoint between its trigger and its acknowledgement."""

    barrier: CheckpointBarrier
    """As it went out."""
    metrics: CheckpointMetrics
    inputs: InputState | None
    """None: some channels still wait for their barrier."""
    outputs: OutputState | None
    """None: the barrier may still overtake."""
    timer: OutputBarrierTimeout | None = None
    sync_part_done: bool = False
    async_part_started: bool = False
    channel_state: ChannelState = field(default_factory=ChannelState)


class SubtaskCheckpointCoordinator:
    """One per task; all calls from the task's thread."""

    def __init__(
        self,
        operators: int,
        *,
        has_outputs: bool = True,
        max_record_aborted_checkpoints: int = DEFAULT_MAX_RECORD_ABORTED_CHECKPOINTS,
    ) -> None:
        self._operators = operators
        self._has_outputs = has_outputs
        self._max_aborted = max_record_aborted_checkpoints
        self._last_checkpoint_id = CheckpointID(-1)
        #: Aborted before they were triggered here, oldest notification first.
        self._aborted: dict[CheckpointID, None] = {}
        self._highest_aborted_id = CheckpointID(-1)
        self._pending: dict[CheckpointID, _PendingSnapshot] = {}

    def initialize(self) -> list[SubtaskEffect]:
        """The task starts: operators from tail to head, so that each finds its outputs open."""
        return [InitializeOperator(index) for index in reversed(range(self._operators))]

    # --- triggers ---------------------------------------------------------------------------------------------------------

    def trigger_checkpoint_on_barrier(
        self, trigger: TriggerCheckpointOnBarrier, now_ms: int, *, is_running: bool
    ) -> list[SubtaskEffect]:
        """The barrier handler says so. Perform the effects, then call `sync_part_completed`, or `sync_part_failed`."""
        if not is_running:
            return [BroadcastCancelCheckpointMarker(trigger.barrier.checkpoint_id)]
        inputs: InputState | None = None if self.captures_channel_state(trigger.barrier.options) else {}
        return self._checkpoint_state(trigger.barrier, trigger.metrics, inputs, now_ms)

    def trigger_checkpoint(self, barrier: CheckpointBarrier, now_ms: int, *, is_running: bool) -> list[SubtaskEffect]:
        """The JobMaster says so: a source, or a task whose inputs have all ended. Perform the effects, then as above."""
        if not is_running:
            return [
                Decline(barrier.checkpoint_id, CheckpointFailureReason.CHECKPOINT_DECLINED_TASK_NOT_READY),
                BroadcastCancelCheckpointMarker(barrier.checkpoint_id),
            ]
        delay_ms = max(0, now_ms - barrier.timestamp_ms)
        metrics = CheckpointMetrics(checkpoint_start_delay_ms=delay_ms, unaligned=barrier.options.is_unaligned)
        return self._checkpoint_state(barrier, metrics, {}, now_ms)

    def captures_channel_state(self, options: CheckpointOptions) -> bool:
        """Whether input data in flight becomes part of a checkpoint with these options (Flink: initInputsCheckpoint)."""
        return options.is_unaligned and not options.snapshot_type.is_savepoint

    def _checkpoint_state(
        self, barrier: CheckpointBarrier, metrics: CheckpointMetrics, inputs: InputState | None, now_ms: int
    ) -> list[SubtaskEffect]:
        checkpoint_id = barrier.checkpoint_id
        if checkpoint_id <= self._last_checkpoint_id:
            self._check_and_clear_aborted_status(checkpoint_id)
            return []
        self._last_checkpoint_id = checkpoint_id
        if self._check_and_clear_aborted_status(checkpoint_id):
            return [BroadcastCancelCheckpointMarker(checkpoint_id)]
        options = barrier.options.with_unaligned_supported()
        if options.snapshot_type.is_savepoint:
            options = options.without_overtaking()
        outgoing = barrier.with_options(options)
        may_overtake = self._has_outputs and options.needs_channel_state
        pending = _PendingSnapshot(outgoing, metrics, inputs, None if may_overtake else {})
        self._pending[checkpoint_id] = pending
        effects: list[SubtaskEffect] = [
            PrepareSnapshotPreBarrier(index, checkpoint_id) for index in range(self._operators)
        ]
        effects.append(BroadcastBarrier(outgoing, options.is_unaligned))
        if may_overtake and options.is_timeoutable:
            pending.timer = OutputBarrierTimeout(checkpoint_id)
            due_ms = max(now_ms, barrier.timestamp_ms + options.aligned_checkpoint_timeout_ms)
            effects.append(StartTimer(pending.timer, due_ms))
        elif may_overtake or inputs is None:
            effects.append(CaptureOutputState(checkpoint_id))
        effects.extend(
            SnapshotOperator(index, checkpoint_id, barrier.timestamp_ms) for index in reversed(range(self._operators))
        )
        return effects

    # --- what becomes of a triggered checkpoint -----------------------------------------------------------------------------

    def sync_part_completed(self, checkpoint_id: CheckpointID, sync_duration_ms: int) -> list[SubtaskEffect]:
        """All effects of the trigger have been performed. Does nothing for one that was not taken."""
        pending = self._pending.get(checkpoint_id)
        if pending is None:
            return []
        pending.sync_part_done = True
        pending.metrics = replace(pending.metrics, sync_duration_ms=sync_duration_ms)
        return self._start_async_part_if_known(checkpoint_id, pending)

    def sync_part_failed(self, checkpoint_id: CheckpointID, detail: str) -> list[SubtaskEffect]:
        """An operator raised while the effects of the trigger were performed; the others of the list were skipped."""
        if checkpoint_id not in self._pending:
            return []
        return [
            *self._drop(checkpoint_id),
            Decline(checkpoint_id, CheckpointFailureReason.TASK_CHECKPOINT_FAILURE, detail),
        ]

    def all_barriers_received(self, received: AllBarriersReceived) -> list[SubtaskEffect]:
        """The alignment of an unaligned checkpoint is over, and was this long."""
        pending = self._pending.get(received.checkpoint_id)
        if pending is not None:
            pending.metrics = replace(
                pending.metrics,
                alignment_duration_ms=received.alignment_duration_ms,
                bytes_processed_during_alignment=received.bytes_processed_during_alignment,
            )
        return []

    def finish_input(self, checkpoint_id: CheckpointID, batches: InputState) -> list[SubtaskEffect]:
        """The data in flight of all input channels is known."""
        pending = self._pending.get(checkpoint_id)
        if pending is None or pending.inputs is not None:
            return []
        pending.inputs = batches
        return self._start_async_part_if_known(checkpoint_id, pending)

    def finish_output(self, checkpoint_id: CheckpointID, batches: OutputState) -> list[SubtaskEffect]:
        """What the barrier overtook in the outputs: at CaptureOutputState, or after TimeOutBarrier."""
        pending = self._pending.get(checkpoint_id)
        if pending is None or pending.outputs is not None:
            return []
        pending.outputs = batches
        if batches:
            pending.metrics = replace(pending.metrics, unaligned=True)
        return [*self._stop_timer(pending), *self._start_async_part_if_known(checkpoint_id, pending)]

    def output_barriers_sent(self, checkpoint_id: CheckpointID) -> list[SubtaskEffect]:
        """The barrier of this timeoutable checkpoint has left all outputs: it overtakes nothing any more."""
        return self.finish_output(checkpoint_id, {})

    def timer_fired(self, key: Hashable, now_ms: int) -> list[SubtaskEffect]:
        """A timer is due; those of others are ignored."""
        if not isinstance(key, OutputBarrierTimeout):
            return []
        pending = self._pending.get(key.checkpoint_id)
        if pending is None or pending.timer != key or pending.outputs is not None:
            return []
        pending.timer = None
        return [TimeOutBarrier(pending.barrier)]

    def async_part_completed(self, checkpoint_id: CheckpointID, async_duration_ms: int) -> list[SubtaskEffect]:
        """Everything is durable. Silent for a checkpoint that was given up meanwhile."""
        pending = self._pending.pop(checkpoint_id, None)
        if pending is None:
            return []
        metrics = replace(
            pending.metrics,
            async_duration_ms=async_duration_ms,
            bytes_persisted_during_alignment=pending.channel_state.size_bytes,
        )
        return [Acknowledge(checkpoint_id, metrics)]

    def async_part_failed(self, checkpoint_id: CheckpointID, detail: str) -> list[SubtaskEffect]:
        """Nothing is durable, and what had been written is gone again."""
        if self._pending.pop(checkpoint_id, None) is None:
            return []
        return [Decline(checkpoint_id, CheckpointFailureReason.CHECKPOINT_ASYNC_EXCEPTION, detail)]

    # --- aborts and notifications -------------------------------------------------------------------------------------------

    def abort_checkpoint_on_barrier(
        self, checkpoint_id: CheckpointID, reason: CheckpointFailureReason | None
    ) -> list[SubtaskEffect]:
        """The barrier handler has given it up. Older ones that still wait for barriers never get them now, either. `reason`: None
        when it is the JobMaster who said so, and need not be told."""
        self._last_checkpoint_id = max(self._last_checkpoint_id, checkpoint_id)
        for aborted_id in [other for other in self._aborted if other < self._last_checkpoint_id]:
            del self._aborted[aborted_id]
        effects: list[SubtaskEffect] = []
        for pending_id in [other for other in self._pending if other <= checkpoint_id]:
            if pending_id == checkpoint_id or self._pending[pending_id].inputs is None:
                effects.extend(self._drop(pending_id))
        if reason is not None:
            effects.append(Decline(checkpoint_id, reason))
        return [*effects, BroadcastCancelCheckpointMarker(checkpoint_id)]

    def notify_checkpoint_complete(self, checkpoint_id: CheckpointID, *, is_running: bool) -> list[SubtaskEffect]:
        """The JobMaster says that the checkpoint is durable."""
        effects: list[SubtaskEffect] = []
        if is_running:
            effects.extend(NotifyOperatorComplete(index, checkpoint_id) for index in reversed(range(self._operators)))
        return [*effects, NotifyStateManager(checkpoint_id, completed=True)]

    def notify_checkpoint_aborted(self, checkpoint_id: CheckpointID, *, is_running: bool) -> list[SubtaskEffect]:
        """The JobMaster says that the checkpoint will never complete; its trigger may still come."""
        effects: list[SubtaskEffect] = []
        if is_running:
            if checkpoint_id in self._pending:
                effects.extend(self._drop(checkpoint_id))
            elif checkpoint_id > self._last_checkpoint_id:
                self._remember_aborted(checkpoint_id)
            effects.extend(NotifyOperatorAborted(index, checkpoint_id) for index in reversed(range(self._operators)))
        return [*effects, NotifyStateManager(checkpoint_id, completed=False)]

    def close(self) -> list[SubtaskEffect]:
        """The task ends, well or badly: what runs in the background is abandoned."""
        return [effect for checkpoint_id in list(self._pending) for effect in self._drop(checkpoint_id)]

    # --- what can be seen from outside ----------------------------------------------------------------------------------------

    @property
    def last_checkpoint_id(self) -> CheckpointID:
        """The highest checkpoint taken or given up, -1 before the first."""
        return self._last_checkpoint_id

    @property
    def pending_checkpoint_ids(self) -> tuple[CheckpointID, ...]:
        """Taken, and not yet acknowledged, declined or given up."""
        return tuple(self._pending)

    @property
    def awaited_output_barriers(self) -> tuple[CheckpointID, ...]:
        """Checkpoints whose barrier may still time out in the outputs: call `output_barriers_sent` once
        `is_barrier_waiting` is false in every subpartition."""
        return tuple(
            checkpoint_id
            for checkpoint_id, pending in self._pending.items()
            if pending.outputs is None and pending.timer is not None
        )

    @property
    def remembered_aborts(self) -> int:
        """Number of aborts whose trigger has not come."""
        return len(self._aborted)

    # --- inside -----------------------------------------------------------------------------------------------------------------

    def _start_async_part_if_known(self, checkpoint_id: CheckpointID, pending: _PendingSnapshot) -> list[SubtaskEffect]:
        if not pending.sync_part_done or pending.inputs is None or pending.outputs is None:
            return []
        if pending.async_part_started:
            return []
        pending.async_part_started = True
        pending.channel_state = ChannelState(pending.inputs, pending.outputs)
        return [StartAsyncSnapshot(checkpoint_id, pending.barrier.options.target_location, pending.channel_state)]

    def _drop(self, checkpoint_id: CheckpointID) -> list[SubtaskEffect]:
        pending = self._pending.pop(checkpoint_id)
        return [*self._stop_timer(pending), CancelAsyncSnapshot(checkpoint_id)]

    @staticmethod
    def _stop_timer(pending: _PendingSnapshot) -> list[SubtaskEffect]:
        timer, pending.timer = pending.timer, None
        return [] if timer is None else [CancelTimer(timer)]

    def _remember_aborted(self, checkpoint_id: CheckpointID) -> None:
        self._aborted.pop(checkpoint_id, None)
        self._aborted[checkpoint_id] = None
        self._highest_aborted_id = max(self._highest_aborted_id, checkpoint_id)
        if len(self._aborted) > self._max_aborted:
            del self._aborted[next(iter(self._aborted))]

    def _check_and_clear_aborted_status(self, checkpoint_id: CheckpointID) -> bool:
        """Whether an abort came before the trigger; also for those that are too old to be remembered."""
        was_remembered = checkpoint_id in self._aborted
        self._aborted.pop(checkpoint_id, None)
        return was_remembered or checkpoint_id + self._max_aborted < self._highest_aborted_id
