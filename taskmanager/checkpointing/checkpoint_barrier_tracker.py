"""At-least-once: counts the barriers of several checkpoints at a time and never blocks a channel.

Decides that a checkpoint is to be triggered when its last barrier came, and that older ones are subsumed by it. A
marker or the end of a channel can abort or complete what is pending. At most MAX_CHECKPOINTS_TO_TRACK checkpoints are
followed; the oldest is forgotten first, silently. Mirrors Flink's CheckpointBarrierTracker; it has no states besides
its counts, and the alignment is measured for the newest pending checkpoint only.
"""

from __future__ import annotations

from collections import deque

from snapline.dataflow.elements import CancelCheckpointMarker, CheckpointBarrier
from snapline.dataflow.failures import CheckpointFailureReason
from snapline.dataflow.ids import CheckpointID
from snapline.dataflow.wire.messages import CheckpointMetrics
from snapline.runtime.cores.machine import check
from snapline.taskmanager.checkpointing.barrier_handler import NO_CHECKPOINT, CheckpointBarrierHandler
from snapline.taskmanager.checkpointing.checkpointing_contract import BarrierListener, CheckpointableInput
from snapline.taskmanager.network.channels.exchange_contract import InputChannelInfo

MAX_CHECKPOINTS_TO_TRACK = 50


class _BarrierCount:
    """One checkpoint and the channels whose barrier came."""

    def __init__(
        self, checkpoint_id: CheckpointID, barrier: CheckpointBarrier | None, channel: InputChannelInfo, target: int
    ) -> None:
        self.checkpoint_id = checkpoint_id
        #: None: the first sign was a cancellation marker.
        self.barrier = barrier
        self.target = target
        self.is_aborted = barrier is None
        self._channels = {channel}

    def has(self, channel: InputChannelInfo) -> bool:
        """Whether the channel was counted."""
        return channel in self._channels

    def mark_channel_aligned(self, channel: InputChannelInfo) -> bool:
        """Count the channel; whether all have come."""
        self._channels.add(channel)
        return len(self._channels) == self.target

    def mark_aborted(self) -> bool:
        """Whether this is the first abort of the checkpoint."""
        first, self.is_aborted = not self.is_aborted, True
        return first


class CheckpointBarrierTracker(CheckpointBarrierHandler):
    """The barrier handler of at-least-once: counts barriers and blocks no channel."""

    def __init__(
        self, inputs: CheckpointableInput, listener: BarrierListener, *, checkpoints_after_tasks_finish: bool = True
    ) -> None:
        super().__init__(inputs, listener)
        self._checkpoints_after_tasks_finish = checkpoints_after_tasks_finish
        #: In the order of their first sign, which is the order of their ids.
        self._pending: deque[_BarrierCount] = deque()
        self._latest_id = NO_CHECKPOINT

    def process_barrier(self, barrier: CheckpointBarrier, channel: InputChannelInfo, now_ms: int) -> None:
        if barrier.options.needs_alignment:
            self._inputs.resume_consumption(channel)
        is_new = barrier.checkpoint_id > self._latest_id
        if is_new:
            self._latest_id = barrier.checkpoint_id
            self._alignment.start(barrier, now_ms)
            if len(self._open) == 1:
                self._alignment.end(now_ms)
                self._pending.clear()
                self._trigger(barrier, now_ms)
                return
            self._pending.append(_BarrierCount(barrier.checkpoint_id, barrier, channel, len(self._open)))
            if len(self._pending) > MAX_CHECKPOINTS_TO_TRACK:
                self._pending.popleft()
            return
        position = self._position(barrier.checkpoint_id)
        if position is not None:
            count = self._pending[position]
            check(
                not count.has(channel),
                f"stream corrupt: a second barrier of checkpoint {count.checkpoint_id} on {channel}",
            )
            if count.mark_channel_aligned(channel):
                self._complete(position, now_ms)

    def process_barrier_announcement(
        self, barrier: CheckpointBarrier, sequence_number: int, channel: InputChannelInfo, now_ms: int
    ) -> None:
        """Nothing overtakes here, so an announced barrier is of no interest before it comes."""

    def process_cancellation_barrier(
        self, marker: CancelCheckpointMarker, channel: InputChannelInfo, now_ms: int
    ) -> None:
        cancelled_id = marker.checkpoint_id
        reason = CheckpointFailureReason.CHECKPOINT_DECLINED_ON_CANCELLATION_BARRIER
        detail = f"{channel} brought its cancellation."
        overtaken = f"{channel} brought the cancellation of checkpoint {cancelled_id}."
        if cancelled_id > self._latest_id and len(self._open) == 1:
            self._abort_pending_below(cancelled_id, reason, overtaken)
            self._latest_id = cancelled_id
            self._abort(cancelled_id, reason, detail)
            return
        self._abort_pending_below(cancelled_id, reason, overtaken)
        first = self._pending[0] if self._pending else None
        if first is not None and first.checkpoint_id == cancelled_id:
            if first.mark_aborted():
                self._abort(cancelled_id, reason, detail, first.barrier)
            if first.mark_channel_aligned(channel):
                self._pending.popleft()
        elif cancelled_id > self._latest_id:
            self._latest_id = cancelled_id
            self._abort(cancelled_id, reason, detail)
            # everything older has just been removed; kept to swallow the barriers that still come
            self._pending.append(_BarrierCount(cancelled_id, None, channel, len(self._open)))

    def process_end_of_partition(self, channel: InputChannelInfo, now_ms: int) -> None:
        check(channel in self._open, f"{channel} has ended twice")
        del self._open[channel]
        if not self._checkpoints_after_tasks_finish:
            reason = CheckpointFailureReason.CHECKPOINT_DECLINED_INPUT_END_OF_STREAM
            aborted = [count for count in self._pending if count.mark_aborted()]
            self._pending.clear()
            for count in aborted:
                self._abort(count.checkpoint_id, reason, f"{channel} ended.", count.barrier)
            return
        # Counted for all; the newest that waited for this channel only is triggered and subsumes the older ones.
        complete = [position for position, count in enumerate(self._pending) if count.mark_channel_aligned(channel)]
        if complete:
            self._complete(complete[-1], now_ms)

    @property
    def latest_checkpoint_id(self) -> CheckpointID:
        return self._latest_id

    @property
    def is_checkpoint_pending(self) -> bool:
        return bool(self._pending)

    @property
    def pending_checkpoint_ids(self) -> tuple[CheckpointID, ...]:
        """Followed checkpoints, oldest first; aborted ones whose barriers have not all come are among them."""
        return tuple(count.checkpoint_id for count in self._pending)

    def _position(self, checkpoint_id: CheckpointID) -> int | None:
        return next((n for n, count in enumerate(self._pending) if count.checkpoint_id == checkpoint_id), None)

    def _complete(self, position: int, now_ms: int) -> None:
        """All barriers of the checkpoint at this position have come; it and the older ones are done with."""
        count = self._pending[position]
        for _ in range(position + 1):
            self._pending.popleft()
        if count.is_aborted or count.barrier is None:
            return
        if count.checkpoint_id == self._alignment.checkpoint_id:
            self._alignment.end(now_ms)
            self._trigger(count.barrier, now_ms)
        else:
            self._listener.trigger_checkpoint_on_barrier(count.barrier, CheckpointMetrics(), now_ms)

    def _abort_pending_below(self, checkpoint_id: CheckpointID, reason: CheckpointFailureReason, detail: str) -> None:
        while self._pending and self._pending[0].checkpoint_id < checkpoint_id:
            count = self._pending.popleft()
            if count.mark_aborted():
                self._abort(count.checkpoint_id, reason, detail, count.barrier)
