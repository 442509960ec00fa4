"""What every barrier handler answers, and the measuring that all of them share.

A handler sees the barriers, announcements, cancellation markers and ends of partition of all channels of a task, in the
order in which the task polls them, and calls when to snapshot, what to block and what to give up: the gates
(`CheckpointableInput`) and whoever takes the snapshots (`BarrierListener`). It does not know data, queues or operators;
time comes in with each call. One of `create_barrier_handler`'s results per task; all calls come from the task's thread.
Mirrors Flink's CheckpointBarrierHandler.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable

from snapline.dataflow.elements import CancelCheckpointMarker, CheckpointBarrier
from snapline.dataflow.failures import CheckpointFailureReason
from snapline.dataflow.ids import CheckpointID
from snapline.dataflow.wire.messages import CheckpointMetrics
from snapline.taskmanager.checkpointing.checkpointing_contract import BarrierListener, CheckpointableInput
from snapline.taskmanager.network.channels.exchange_contract import InputChannelInfo

NO_CHECKPOINT = CheckpointID(-1)
"""`latest_checkpoint_id` before the first barrier."""


class CheckpointBarrierHandler(ABC):
    """Base of all handlers. What a `process_…` wants done is done when it returns."""

    def __init__(self, inputs: CheckpointableInput, listener: BarrierListener) -> None:
        self._inputs = inputs
        self._listener = listener
        self._open = dict.fromkeys(inputs.channel_infos)
        """Channels that have not ended."""
        self._alignment = AlignmentMeter()

    @abstractmethod
    def process_barrier(self, barrier: CheckpointBarrier, channel: InputChannelInfo, now_ms: int) -> None:
        """The task polled this barrier from the channel."""

    @abstractmethod
    def process_barrier_announcement(
        self, barrier: CheckpointBarrier, sequence_number: int, channel: InputChannelInfo, now_ms: int
    ) -> None:
        """The task polled the priority notice that this barrier waits in the channel at `sequence_number`."""

    @abstractmethod
    def process_cancellation_barrier(
        self, marker: CancelCheckpointMarker, channel: InputChannelInfo, now_ms: int
    ) -> None:
        """The task polled a cancellation marker from the channel."""

    @abstractmethod
    def process_end_of_partition(self, channel: InputChannelInfo, now_ms: int) -> None:
        """The channel has ended; nothing more comes from it."""

    def process_abort_notification(self, checkpoint_id: CheckpointID, now_ms: int) -> None:
        """The JobMaster has given this checkpoint up: nothing waits for its barriers any more."""

    def timer_fired(self, key: Hashable, now_ms: int) -> None:
        """A timer that this handler started is due. Keys of others, and outdated ones, are ignored."""

    def add_processed_bytes(self, size_bytes: int) -> None:
        """The task processes a batch of this size (counts while an alignment runs)."""
        self._alignment.add_processed_bytes(size_bytes)

    @property
    @abstractmethod
    def latest_checkpoint_id(self) -> CheckpointID:
        """The highest checkpoint seen, NO_CHECKPOINT before the first."""

    @property
    @abstractmethod
    def is_checkpoint_pending(self) -> bool:
        """Whether barriers of some checkpoint are being collected."""

    @property
    def open_channels(self) -> int:
        """Channels that have not ended."""
        return len(self._open)

    def _trigger(self, barrier: CheckpointBarrier, now_ms: int) -> None:
        meter = self._alignment
        metrics = CheckpointMetrics(
            alignment_duration_ms=meter.duration_ms,
            checkpoint_start_delay_ms=meter.start_delay_ms,
            bytes_processed_during_alignment=meter.bytes_processed,
            unaligned=barrier.options.is_unaligned,
        )
        self._listener.trigger_checkpoint_on_barrier(barrier, metrics, now_ms)

    def _abort(
        self,
        checkpoint_id: CheckpointID,
        reason: CheckpointFailureReason | None,
        detail: str = "",
        barrier: CheckpointBarrier | None = None,
    ) -> None:
        if checkpoint_id >= self._alignment.checkpoint_id:
            self._alignment.reset()
        timestamp_ms = 0 if barrier is None else barrier.timestamp_ms
        self._listener.abort_checkpoint_on_barrier(checkpoint_id, reason, detail, timestamp_ms)


class AlignmentMeter:
    """Start delay, duration and processed bytes of one alignment at a time."""

    def __init__(self) -> None:
        self.checkpoint_id = NO_CHECKPOINT
        self.duration_ms = 0
        self.start_delay_ms = 0
        self.bytes_processed = 0
        self._started_at_ms: int | None = None

    def start(self, barrier: CheckpointBarrier, now_ms: int) -> None:
        """The first sign that this checkpoint is under way."""
        self.checkpoint_id = barrier.checkpoint_id
        self.duration_ms = 0
        self.start_delay_ms = max(0, now_ms - barrier.timestamp_ms)
        self.bytes_processed = 0
        self._started_at_ms = now_ms

    def end(self, now_ms: int) -> None:
        """All barriers came. Without a start: nothing was aligned."""
        if self._started_at_ms is not None:
            self.duration_ms = max(0, now_ms - self._started_at_ms)
            self._started_at_ms = None

    def reset(self) -> None:
        """The alignment is given up."""
        self.checkpoint_id = NO_CHECKPOINT
        self.duration_ms = self.start_delay_ms = self.bytes_processed = 0
        self._started_at_ms = None

    def add_processed_bytes(self, size_bytes: int) -> None:
        """Counts only while an alignment runs."""
        if self._started_at_ms is not None:
            self.bytes_processed += size_bytes
