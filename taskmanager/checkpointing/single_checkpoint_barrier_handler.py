"""Follows one checkpoint at a time: aligner, unaligner and the alternating handler, which differ in their states only.

Decides which barrier is new, current or obsolete, when all have come (the end of a channel stands for its barrier,
unless checkpoints after the end of tasks are switched off), and what a newer barrier or a cancellation does to the
current checkpoint. What a barrier means for its channel is decided by the state (`barrier_states`). It does not know
data, queues or the snapshot. Mirrors Flink's SingleCheckpointBarrierHandler, with five differences: a cancellation also
ends a checkpoint that is only known by an announcement (there it waits for the next one), and declines the one that it
overtakes, as a newer barrier does (there nobody hears of that one until it times out); an unaligned snapshot waits for
channels that nothing may overtake; a second barrier of one checkpoint on a channel is an error, as it was in Flink's
first handlers; and a checkpoint that the JobMaster has given up blocks nothing any more.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable
from dataclasses import dataclass

from snapline.dataflow.elements import AlignmentType, CancelCheckpointMarker, CheckpointBarrier
from snapline.dataflow.failures import CheckpointFailureReason
from snapline.dataflow.ids import CheckpointID
from snapline.runtime.cores.machine import check
from snapline.taskmanager.checkpointing.barrier_handler import NO_CHECKPOINT, CheckpointBarrierHandler
from snapline.taskmanager.checkpointing.barrier_states import STATES, TRANSITIONS, BarrierEvent, BarrierState
from snapline.taskmanager.checkpointing.checkpointing_contract import BarrierListener, CheckpointableInput
from snapline.taskmanager.network.channels.exchange_contract import InputChannelInfo

MAX_GIVEN_UP = 128
"""As many aborted checkpoints as Flink's SubtaskCheckpointCoordinator remembers."""


@dataclass(frozen=True, slots=True)
class AlignedCheckpointTimeout:
    """Key of the timer after which an alignment turns unaligned."""

    checkpoint_id: CheckpointID


class SingleCheckpointBarrierHandler(CheckpointBarrierHandler):
    """One of the four handlers; `initial` says which."""

    def __init__(
        self,
        inputs: CheckpointableInput,
        listener: BarrierListener,
        initial: BarrierState,
        *,
        checkpoints_after_tasks_finish: bool = True,
        never_overtaken: Collection[InputChannelInfo] = (),
    ) -> None:
        """`never_overtaken`: channels whose barriers are always aligned; an unaligned snapshot waits for them."""
        super().__init__(inputs, listener)
        self._never_overtaken = frozenset(never_overtaken)
        self._state = initial
        self._alternating = initial is BarrierState.ALTERNATING_WAITING_FOR_FIRST_BARRIER
        self._checkpoints_after_tasks_finish = checkpoints_after_tasks_finish
        self._current_id = NO_CHECKPOINT
        self._last_cancelled_or_completed_id = NO_CHECKPOINT
        self._last_completed_id = NO_CHECKPOINT
        self._pending_barrier: CheckpointBarrier | None = None
        #: Channels whose barrier of the current checkpoint has come, or that ended meanwhile.
        self._aligned: dict[InputChannelInfo, None] = {}
        self._target_count = 0
        self._timer: AlignedCheckpointTimeout | None = None
        self._timed_id = NO_CHECKPOINT
        self._announced: dict[InputChannelInfo, int] = {}
        self._blocked: dict[InputChannelInfo, None] = {}
        self._held: dict[InputChannelInfo, None] = {}
        #: The checkpoint whose data in flight the channels remember.
        self._started_id = NO_CHECKPOINT
        #: Given up by the JobMaster before their first barrier was here, the oldest first.
        self._given_up: dict[CheckpointID, None] = {}
        self._now_ms = 0

    # --- events -------------------------------------------------------------------------------------------------------

    def process_barrier(self, barrier: CheckpointBarrier, channel: InputChannelInfo, now_ms: int) -> None:
        self._now_ms = now_ms
        if self._is_obsolete(barrier.checkpoint_id):
            if barrier.options.needs_alignment:
                self._inputs.resume_consumption(channel)
            return
        self._check_new_checkpoint(barrier, channel)
        if barrier.checkpoint_id in self._given_up:
            self._abort_internal(barrier.checkpoint_id, None)
            if barrier.options.needs_alignment:
                self._inputs.resume_consumption(channel)
            return
        check(
            channel not in self._aligned,
            f"stream corrupt: a second barrier of checkpoint {barrier.checkpoint_id} on {channel}",
        )
        self._time_alignment(barrier)
        self._mark_channel_aligned(channel, barrier, BarrierEvent.BARRIER)

    def process_barrier_announcement(
        self, barrier: CheckpointBarrier, sequence_number: int, channel: InputChannelInfo, now_ms: int
    ) -> None:
        self._now_ms = now_ms
        if not self._is_obsolete(barrier.checkpoint_id) and barrier.checkpoint_id not in self._given_up:
            self._check_new_checkpoint(barrier, channel)
            self._time_alignment(barrier)
            state = STATES[self._state]
            self._go(BarrierEvent.ANNOUNCEMENT, state.announcement_received(self, channel, sequence_number))

    def process_cancellation_barrier(
        self, marker: CancelCheckpointMarker, channel: InputChannelInfo, now_ms: int
    ) -> None:
        self._now_ms = now_ms
        cancelled_id = marker.checkpoint_id
        if cancelled_id > self._current_id or (cancelled_id == self._current_id and self.is_checkpoint_pending):
            if cancelled_id > self._current_id and self.is_checkpoint_pending:
                overtaken = self.pending_barrier
                detail = self._newer_came(f"the cancellation of checkpoint {cancelled_id}", channel)
                self._listener.decline_overtaken_checkpoint(overtaken.checkpoint_id, detail, overtaken.timestamp_ms)
            reason = CheckpointFailureReason.CHECKPOINT_DECLINED_ON_CANCELLATION_BARRIER
            self._abort_internal(
                cancelled_id, reason, f"input {channel.gate_index}/{channel.channel_index} brought its cancellation."
            )

    def process_abort_notification(self, checkpoint_id: CheckpointID, now_ms: int) -> None:
        """In Flink channels stay blocked until the barriers come, or those of a newer checkpoint. Either may never
        happen: behind an edge that nothing overtakes a barrier waits for room, which there may be only when a blocked
        channel is read again."""
        self._now_ms = now_ms
        if checkpoint_id > self._current_id:
            self._given_up[checkpoint_id] = None
            if len(self._given_up) > MAX_GIVEN_UP:
                del self._given_up[next(iter(self._given_up))]
        elif checkpoint_id == self._current_id and self.is_checkpoint_pending:
            self._abort_internal(checkpoint_id, None)

    def process_end_of_partition(self, channel: InputChannelInfo, now_ms: int) -> None:
        self._now_ms = now_ms
        check(channel in self._open, f"{channel} has ended twice")
        del self._open[channel]
        if self.is_checkpoint_pending:
            if self._checkpoints_after_tasks_finish:
                self._mark_channel_aligned(channel, self.pending_barrier, BarrierEvent.END_OF_PARTITION)
            else:
                reason = CheckpointFailureReason.CHECKPOINT_DECLINED_INPUT_END_OF_STREAM
                self._abort_internal(
                    self._current_id, reason, f"Input {channel.gate_index}/{channel.channel_index} ended."
                )

    def timer_fired(self, key: Hashable, now_ms: int) -> None:
        self._now_ms = now_ms
        if key == self._timer and self.is_checkpoint_pending:
            self._timer = None
            state = STATES[self._state]
            self._go(BarrierEvent.TIMEOUT, state.aligned_checkpoint_timeout(self, self.pending_barrier))

    # --- what can be seen from outside --------------------------------------------------------------------------------

    @property
    def latest_checkpoint_id(self) -> CheckpointID:
        return self._current_id

    @property
    def is_checkpoint_pending(self) -> bool:
        return self._current_id not in (self._last_cancelled_or_completed_id, NO_CHECKPOINT)

    @property
    def has_completed_latest(self) -> bool:
        """Whether the latest checkpoint is over because all its barriers came."""
        return self._current_id != NO_CHECKPOINT and self._current_id == self._last_completed_id

    @property
    def state(self) -> BarrierState:
        """Return the state that the handler is in."""
        return self._state

    # --- what states may ask for (barrier_states.Controller) ----------------------------------------------------------

    @property
    def all_barriers_received(self) -> bool:
        """Also counts the channel that is being processed."""
        return len(self._aligned) == self._target_count

    @property
    def may_overtake(self) -> bool:
        """Also counts the channel that is being processed."""
        return all(channel in self._aligned for channel in self._never_overtaken if channel in self._open)

    @property
    def pending_barrier(self) -> CheckpointBarrier:
        """The first barrier or announcement of the current checkpoint."""
        check(self._pending_barrier is not None, "a pending checkpoint has a first barrier")
        return self._pending_barrier  # type: ignore[return-value]

    def is_timed_out(self, barrier: CheckpointBarrier) -> bool:
        """Later than the aligned timeout after the checkpoint was triggered."""
        options = barrier.options
        return options.is_timeoutable and options.aligned_checkpoint_timeout_ms < self._now_ms - barrier.timestamp_ms

    def trigger_global_checkpoint(self, barrier: CheckpointBarrier) -> None:
        self._trigger(barrier, self._now_ms)

    def start_inputs_checkpoint(self, barrier: CheckpointBarrier) -> None:
        self._started_id = barrier.checkpoint_id
        self._inputs.checkpoint_started(barrier)

    def stop_inputs_checkpoint(self, checkpoint_id: CheckpointID, *, completed: bool) -> None:
        """Whatever checkpoint is given up, what stops is the one that was started."""
        check(not completed or checkpoint_id == self._started_id, "only the started checkpoint can complete")
        if completed:
            meter = self._alignment
            self._listener.all_barriers_received(checkpoint_id, meter.duration_ms, meter.bytes_processed)
        if self._started_id != NO_CHECKPOINT:
            in_flight = self._inputs.checkpoint_stopped(self._started_id)
            if completed:
                self._listener.finish_input(self._started_id, in_flight)
        self._started_id = NO_CHECKPOINT

    def block_channel(self, channel: InputChannelInfo) -> None:
        self._blocked[channel] = None
        self._inputs.block_consumption(channel)

    def unblock_all_channels(self) -> None:
        for channel in self._blocked:
            self._inputs.resume_consumption(channel)
        self._blocked.clear()

    def hold_channel(self, channel: InputChannelInfo) -> None:
        self._held[channel] = None
        self._inputs.hold_consumption(channel)

    def release_held_channels(self) -> None:
        for channel in self._held:
            self._inputs.release_consumption(channel)
        self._held.clear()

    def add_seen_announcement(self, channel: InputChannelInfo, sequence_number: int) -> None:
        self._announced[channel] = sequence_number

    def remove_seen_announcement(self, channel: InputChannelInfo) -> None:
        self._announced.pop(channel, None)

    def prioritize_all_announcements(self) -> None:
        for channel, sequence_number in self._announced.items():
            self._inputs.convert_to_priority(channel, sequence_number)
        self._announced.clear()

    def convert_to_priority_event(self, channel: InputChannelInfo, sequence_number: int) -> None:
        self._inputs.convert_to_priority(channel, sequence_number)

    def channel_finished(self, channel: InputChannelInfo) -> None:
        self._announced.pop(channel, None)
        self._blocked.pop(channel, None)

    def reset_channels(self) -> None:
        self._announced.clear()
        self._blocked.clear()

    # --- inside -------------------------------------------------------------------------------------------------------

    def _is_obsolete(self, checkpoint_id: CheckpointID) -> bool:
        return self._current_id > checkpoint_id or (
            self._current_id == checkpoint_id and not self.is_checkpoint_pending
        )

    def _check_new_checkpoint(self, barrier: CheckpointBarrier, channel: InputChannelInfo) -> None:
        if self._current_id >= barrier.checkpoint_id:
            return
        if self.is_checkpoint_pending:
            detail = self._newer_came(f"checkpoint {barrier.checkpoint_id}", channel)
            self._abort_internal(self._current_id, CheckpointFailureReason.CHECKPOINT_DECLINED_SUBSUMED, detail)
        self._current_id = barrier.checkpoint_id
        self._pending_barrier = barrier
        self._aligned.clear()
        self._target_count = len(self._open)

    def _newer_came(self, newer: str, channel: InputChannelInfo) -> str:
        """Why the current checkpoint will not get its last barriers."""
        return f"input {channel.gate_index}/{channel.channel_index} brought {newer} when {len(self._aligned)} of {self._target_count} inputs had brought this one."

    def _time_alignment(self, barrier: CheckpointBarrier) -> None:
        """The first barrier of a checkpoint says whether it has a timeout; one that is FORCED_ALIGNED does not know,
        the next one does."""
        first = self.pending_barrier
        if barrier is not first and first.options.alignment is not AlignmentType.FORCED_ALIGNED:
            return
        if self._alternating and barrier.options.is_timeoutable and self._timed_id < barrier.checkpoint_id:
            self._timed_id = barrier.checkpoint_id
            self._timer = AlignedCheckpointTimeout(barrier.checkpoint_id)
            at_ms = max(self._now_ms, barrier.timestamp_ms + barrier.options.aligned_checkpoint_timeout_ms)
            self._listener.start_timer(self._timer, at_ms)

    def _mark_channel_aligned(self, channel: InputChannelInfo, barrier: CheckpointBarrier, event: BarrierEvent) -> None:
        if not self._aligned:
            self._alignment.start(barrier, self._now_ms)
        self._aligned[channel] = None
        if self.all_barriers_received:
            self._alignment.end(self._now_ms)
        state = STATES[self._state]
        if event is BarrierEvent.BARRIER:
            self._go(event, state.barrier_received(self, channel, barrier))
        else:
            self._go(event, state.end_of_partition_received(self, channel))
        if self.all_barriers_received:
            self._aligned.clear()
            self._target_count = 0
            self._last_cancelled_or_completed_id = self._last_completed_id = self._current_id
            self._pending_barrier = None
            self._reset_timer()

    def _abort_internal(
        self, cancelled_id: CheckpointID, reason: CheckpointFailureReason | None, detail: str = ""
    ) -> None:
        """`reason`: None when the JobMaster knows."""
        barrier = self._pending_barrier
        seen = barrier if barrier is not None and barrier.checkpoint_id == cancelled_id else None
        self._current_id = max(cancelled_id, self._current_id)
        self._last_cancelled_or_completed_id = max(self._last_cancelled_or_completed_id, cancelled_id)
        self._pending_barrier = None
        self._aligned.clear()
        self._target_count = 0
        self._reset_timer()
        self._go(BarrierEvent.ABORT, STATES[self._state].abort(self, cancelled_id))
        self._abort(cancelled_id, reason, detail, seen)
        self._given_up = {known: None for known in self._given_up if known > self._current_id}

    def _reset_timer(self) -> None:
        if self._timer is not None:
            self._listener.cancel_timer(self._timer)
            self._timer = None

    def _go(self, event: BarrierEvent, state: BarrierState) -> None:
        check(
            state in TRANSITIONS.get((self._state, event), ()),
            f"no transition from {self._state.name} on {event.name} to {state.name}",
        )
        self._state = state
