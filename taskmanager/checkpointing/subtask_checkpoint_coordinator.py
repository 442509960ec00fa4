"""Checkpointing inside one task: what is done when a checkpoint is triggered, completes, or is given up, and in what
order.

The order, for each checkpoint: operators prepare (head to tail), the barrier goes out, what it overtook is captured,
the operators freeze their state (tail to head), the rest happens in the background, and the acknowledgement is last.
Ids only rise: what is not newer than the last one is not taken, and a checkpoint whose abort was announced before its
trigger is answered by a cancellation marker to the outputs. It does not know queues, files or messages: each step is a
call to an operator or to the task. An operator that fails to prepare or to freeze fails its task, after the decline.
Mirrors Flink's SubtaskCheckpointCoordinatorImpl and the part of ChannelStateWriter that waits for both sides; unlike
there the upload starts when the data in flight is known, not before.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field, replace

from snapline.dataflow.elements import CheckpointBarrier, CheckpointOptions
from snapline.dataflow.failures import CheckpointFailureReason, message_of
from snapline.dataflow.ids import CheckpointID
from snapline.dataflow.snapshot.handles import TaskStateSnapshot
from snapline.dataflow.wire.messages import CheckpointMetrics
from snapline.taskmanager.checkpointing.checkpointing_contract import (
    EMPTY_CHANNEL_STATE,
    ChannelState,
    CheckpointableTask,
    CheckpointedOperator,
    FrozenState,
    InputState,
    OutputState,
)
from snapline.taskmanager.operators.base.failure import OperatorFailure

DEFAULT_MAX_RECORD_ABORTED_CHECKPOINTS = 128
"""Aborts of checkpoints that this task has not seen the trigger of; the oldest is forgotten first."""


@dataclass(frozen=True, slots=True)
class OutputBarrierTimeout:
    """Key of the timer after which a barrier that waits in the outputs turns unaligned."""

    checkpoint_id: CheckpointID


@dataclass(slots=True)
class _PendingSnapshot:
    """One checkpoint between its trigger and its acknowledgement."""

    barrier: CheckpointBarrier
    """The barrier as it went out to the subtasks downstream."""
    metrics: CheckpointMetrics
    is_task_finished: bool
    """Whether the operators had finished when their state was frozen."""
    inputs: InputState | None
    """None: some channels still wait for their barrier."""
    outputs: OutputState | None
    """None: the barrier may still overtake."""
    timer: OutputBarrierTimeout | None = None
    frozen: list[FrozenState] = field(default_factory=list)
    """What the operators have frozen, until the upload takes it over."""
    sync_part_done: bool = False
    async_part_began_ms: int | None = None
    """None: the upload does not run."""
    channel_state: ChannelState = EMPTY_CHANNEL_STATE

    @property
    def checkpoint_id(self) -> CheckpointID:
        """Return the id of the checkpoint whose barrier went out."""
        return self.barrier.checkpoint_id


class SubtaskCheckpointCoordinator:
    """The checkpoints of one task. All calls on the task's thread."""

    def __init__(
        self,
        operators: Sequence[CheckpointedOperator],
        task: CheckpointableTask,
        *,
        has_outputs: bool = True,
        max_record_aborted_checkpoints: int = DEFAULT_MAX_RECORD_ABORTED_CHECKPOINTS,
    ) -> None:
        """`operators`: from head to tail."""
        self._operators = tuple(operators)
        self._task = task
        self._has_outputs = has_outputs
        self._max_aborted = max_record_aborted_checkpoints
        self._last_checkpoint_id = CheckpointID(-1)
        #: Aborted before they were triggered here, oldest notification first.
        self._aborted: dict[CheckpointID, None] = {}
        self._highest_aborted_id = CheckpointID(-1)
        self._pending: dict[CheckpointID, _PendingSnapshot] = {}

    # --- triggers -----------------------------------------------------------------------------------------------------

    def trigger_checkpoint(self, barrier: CheckpointBarrier, now_ms: int, *, is_running: bool = True) -> None:
        """The JobMaster wants a checkpoint of a source, or of a task whose inputs have all ended. Raises
        OperatorFailure."""
        if not is_running:
            reason = CheckpointFailureReason.CHECKPOINT_DECLINED_TASK_NOT_READY
            detail = "The task does not run yet, or not any more."
            self._task.decline(barrier.checkpoint_id, reason, detail, barrier.timestamp_ms)
            self._task.broadcast_cancel_checkpoint_marker(barrier.checkpoint_id)
            return
        delay_ms = max(0, now_ms - barrier.timestamp_ms)
        metrics = CheckpointMetrics(checkpoint_start_delay_ms=delay_ms, unaligned=barrier.options.is_unaligned)
        self._checkpoint_state(barrier, metrics, {}, now_ms)

    def trigger_checkpoint_on_barrier(
        self, barrier: CheckpointBarrier, metrics: CheckpointMetrics, now_ms: int, *, is_running: bool = True
    ) -> None:
        """The barrier handler says that the snapshot is to be taken now. Raises OperatorFailure."""
        if not is_running:
            self._task.broadcast_cancel_checkpoint_marker(barrier.checkpoint_id)
            return
        inputs: InputState | None = None if self.captures_channel_state(barrier.options) else {}
        self._checkpoint_state(barrier, metrics, inputs, now_ms)

    def captures_channel_state(self, options: CheckpointOptions) -> bool:
        """Whether input data in flight becomes part of a checkpoint with these options (Flink:
        initInputsCheckpoint)."""
        return options.is_unaligned and not options.snapshot_type.is_savepoint

    def _checkpoint_state(
        self, barrier: CheckpointBarrier, metrics: CheckpointMetrics, inputs: InputState | None, now_ms: int
    ) -> None:
        checkpoint_id = barrier.checkpoint_id
        if checkpoint_id <= self._last_checkpoint_id:
            self._check_and_clear_aborted_status(checkpoint_id)
            return
        self._last_checkpoint_id = checkpoint_id
        if self._check_and_clear_aborted_status(checkpoint_id):
            self._task.broadcast_cancel_checkpoint_marker(checkpoint_id)
            return
        options = barrier.options.with_unaligned_supported()
        if options.snapshot_type.is_savepoint:
            options = options.without_overtaking()
        outputs: OutputState | None = None if self._has_outputs and options.needs_channel_state else {}
        began_ms = self._task.clock_ms()
        is_task_finished = self._task.checkpoint_taken(barrier)
        pending = _PendingSnapshot(barrier.with_options(options), metrics, is_task_finished, inputs, outputs)
        self._pending[checkpoint_id] = pending
        try:
            self._take_sync_part(pending, now_ms)
        except OperatorFailure as failure:
            self._drop(checkpoint_id)
            reason = CheckpointFailureReason.TASK_CHECKPOINT_FAILURE
            self._task.decline(checkpoint_id, reason, str(failure), barrier.timestamp_ms)
            raise
        pending.sync_part_done = True
        duration_ms = max(0, self._task.clock_ms() - began_ms)
        pending.metrics = replace(pending.metrics, sync_duration_ms=duration_ms)
        self._start_async_part_if_known(pending)

    def _take_sync_part(self, pending: _PendingSnapshot, now_ms: int) -> None:
        barrier = pending.barrier
        options = barrier.options
        for operator in self._operators:
            operator.prepare_snapshot_pre_barrier(barrier.checkpoint_id)
        overtaken = self._task.broadcast_barrier(barrier, is_priority=options.is_unaligned)
        if pending.outputs is None and options.is_timeoutable:
            pending.timer = OutputBarrierTimeout(barrier.checkpoint_id)
            due_ms = max(now_ms, barrier.timestamp_ms + options.aligned_checkpoint_timeout_ms)
            self._task.start_timer(pending.timer, due_ms)
        else:
            self._finish_output(pending, overtaken)
        for operator in reversed(self._operators):
            pending.frozen.append(operator.snapshot_state(barrier, is_final=pending.is_task_finished))

    # --- what becomes of a triggered checkpoint -----------------------------------------------------------------------

    def all_barriers_received(
        self, checkpoint_id: CheckpointID, alignment_duration_ms: int, bytes_processed_during_alignment: int
    ) -> None:
        """The alignment of an unaligned checkpoint is over, and was this long."""
        pending = self._pending.get(checkpoint_id)
        if pending is not None:
            pending.metrics = replace(
                pending.metrics,
                alignment_duration_ms=alignment_duration_ms,
                bytes_processed_during_alignment=bytes_processed_during_alignment,
            )

    def finish_input(self, checkpoint_id: CheckpointID, batches: InputState) -> None:
        """The data in flight of all input channels is known."""
        pending = self._pending.get(checkpoint_id)
        if pending is not None and pending.inputs is None:
            pending.inputs = batches
            self._start_async_part_if_known(pending)

    def check_output_barriers(self) -> None:
        """A barrier that has left all outputs overtakes nothing any more: its checkpoint does not wait for the
        timeout."""
        if not self._pending:
            return
        waiting = [item for item in self._pending.values() if item.outputs is None and item.timer is not None]
        for pending in waiting:
            if not self._task.is_barrier_waiting(pending.checkpoint_id):
                self._finish_output(pending, {})

    def timer_fired(self, key: Hashable) -> None:
        """A timer is due; those of others are ignored."""
        if not isinstance(key, OutputBarrierTimeout):
            return
        pending = self._pending.get(key.checkpoint_id)
        if pending is not None and pending.timer == key and pending.outputs is None:
            pending.timer = None
            self._finish_output(pending, self._task.time_out_barrier(pending.barrier))

    def async_part_done(self, checkpoint_id: CheckpointID, result: TaskStateSnapshot | BaseException) -> None:
        """The upload answered, with handles or with why not. Silent for a checkpoint that was given up meanwhile."""
        pending = self._pending.get(checkpoint_id)
        if pending is None or pending.async_part_began_ms is None:
            return
        del self._pending[checkpoint_id]
        if isinstance(result, BaseException):
            self._task.cancel_async_snapshot(checkpoint_id)
            detail = f"{type(result).__name__}: {message_of(result)}"
            reason = CheckpointFailureReason.CHECKPOINT_ASYNC_EXCEPTION
            self._task.decline(checkpoint_id, reason, detail, pending.barrier.timestamp_ms)
            return
        metrics = replace(
            pending.metrics,
            async_duration_ms=max(0, self._task.clock_ms() - pending.async_part_began_ms),
            bytes_persisted_during_alignment=pending.channel_state.size_bytes,
        )
        state = replace(result, is_task_finished=pending.is_task_finished)
        self._task.acknowledge(checkpoint_id, metrics, state)

    # --- aborts and notifications -------------------------------------------------------------------------------------

    def abort_checkpoint_on_barrier(
        self,
        checkpoint_id: CheckpointID,
        reason: CheckpointFailureReason | None,
        detail: str = "",
        timestamp_ms: int = 0,
    ) -> None:
        """The barrier handler has given it up. Older ones that still wait for barriers never get them now, either.
        `reason`: None when it is the JobMaster who said so, and need not be told."""
        self._last_checkpoint_id = max(self._last_checkpoint_id, checkpoint_id)
        for aborted_id in [other for other in self._aborted if other < self._last_checkpoint_id]:
            del self._aborted[aborted_id]
        for pending_id in [other for other in self._pending if other <= checkpoint_id]:
            if pending_id == checkpoint_id or self._pending[pending_id].inputs is None:
                self._drop(pending_id)
        if reason is not None:
            self._task.decline(checkpoint_id, reason, detail, timestamp_ms)
        self._task.broadcast_cancel_checkpoint_marker(checkpoint_id)

    def decline_overtaken_checkpoint(self, checkpoint_id: CheckpointID, detail: str, timestamp_ms: int) -> None:
        """The cancellation of a newer checkpoint, whose abort follows, ends this one here, too: the JobMaster is told,
        which would otherwise wait until it times out."""
        self._task.decline(checkpoint_id, CheckpointFailureReason.CHECKPOINT_DECLINED_SUBSUMED, detail, timestamp_ms)

    def notify_checkpoint_complete(self, checkpoint_id: CheckpointID, *, is_running: bool = True) -> None:
        """The JobMaster says that the checkpoint is durable. Raises OperatorFailure."""
        if is_running:
            for operator in reversed(self._operators):
                operator.notify_checkpoint_complete(checkpoint_id)
        self._task.checkpoint_settled(checkpoint_id, completed=True)

    def notify_checkpoint_aborted(self, checkpoint_id: CheckpointID, *, is_running: bool = True) -> None:
        """The JobMaster says that the checkpoint will never complete; its trigger may still come. Raises
        OperatorFailure."""
        if is_running:
            if checkpoint_id in self._pending:
                self._drop(checkpoint_id)
            elif checkpoint_id > self._last_checkpoint_id:
                self._remember_aborted(checkpoint_id)
            for operator in reversed(self._operators):
                operator.notify_checkpoint_aborted(checkpoint_id)
        self._task.checkpoint_settled(checkpoint_id, completed=False)

    def close(self) -> None:
        """The task ends, well or badly: what runs in the background is abandoned."""
        for checkpoint_id in list(self._pending):
            self._drop(checkpoint_id)

    # --- what the barrier handler and the gates need of the task besides ----------------------------------------------

    def inputs_recovered(self, *, is_last: bool) -> None:
        """What was restored of the inputs has been processed: those behind the task are told."""
        self._task.broadcast_end_of_channel_state(is_last=is_last)

    def start_timer(self, key: Hashable, at_ms: int) -> None:
        """The barrier handler's `timer_fired(key)` is to be called at this time."""
        self._task.start_timer(key, at_ms)

    def cancel_timer(self, key: Hashable) -> None:
        """Forget the timer with this key."""
        self._task.cancel_timer(key)

    # --- what can be seen from outside --------------------------------------------------------------------------------

    @property
    def last_checkpoint_id(self) -> CheckpointID:
        """The highest checkpoint taken or given up, -1 before the first."""
        return self._last_checkpoint_id

    @property
    def pending_checkpoint_ids(self) -> tuple[CheckpointID, ...]:
        """Taken, and not yet acknowledged, declined or given up."""
        return tuple(self._pending)

    @property
    def remembered_aborts(self) -> int:
        """Number of aborts whose trigger has not come."""
        return len(self._aborted)

    # --- inside -------------------------------------------------------------------------------------------------------

    def _finish_output(self, pending: _PendingSnapshot, batches: OutputState) -> None:
        """What the barrier has overtaken in the outputs is known."""
        if pending.outputs is not None:
            return
        pending.outputs = batches
        if batches:
            pending.metrics = replace(pending.metrics, unaligned=True)
        self._stop_timer(pending)
        self._start_async_part_if_known(pending)

    def _start_async_part_if_known(self, pending: _PendingSnapshot) -> None:
        if not pending.sync_part_done or pending.inputs is None or pending.outputs is None:
            return
        if pending.async_part_began_ms is not None:
            return
        pending.async_part_began_ms = self._task.clock_ms()
        pending.channel_state = ChannelState(pending.inputs, pending.outputs)
        frozen, pending.frozen = pending.frozen, []
        target_location = pending.barrier.options.target_location
        self._task.start_async_snapshot(pending.checkpoint_id, target_location, frozen, pending.channel_state)

    def _drop(self, checkpoint_id: CheckpointID) -> None:
        """Release what is frozen; if the upload runs, stop it."""
        pending = self._pending.pop(checkpoint_id)
        self._stop_timer(pending)
        for _, snapshot in pending.frozen:
            for part in snapshot.keyed:
                part.release()
        if pending.async_part_began_ms is not None:
            self._task.cancel_async_snapshot(checkpoint_id)

    def _stop_timer(self, pending: _PendingSnapshot) -> None:
        timer, pending.timer = pending.timer, None
        if timer is not None:
            self._task.cancel_timer(timer)

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
