"""What every barrier handler answers, and the measuring that all of them share.

A handler sees the barriers, announcements, cancellation markers and ends of partition of all channels of a task, in the
order in which the task polls them, and says when to snapshot, what to block and what to give up. It does not know data,
queues or operators; time comes in with each call. One of `create_barrier_handler`'s results per task; all calls come
from the task's thread. Mirrors Flink's CheckpointBarrierHandler.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable

from snapline.dataflow.elements import CancelCheckpointMarker, CheckpointBarrier
from snapline.dataflow.failures import CheckpointFailureReason
from snapline.dataflow.ids import CheckpointID
from snapline.dataflow.wire.messages import CheckpointMetrics
from snapline.taskmanager.checkpointing.checkpointing_contract import (
    AbortCheckpointOnBarrier,
    BarrierHandlerEffect,
    TriggerCheckpointOnBarrier,
)
from snapline.taskmanager.network.channels.exchange_contract import InputChannelInfo

NO_CHECKPOINT = CheckpointID(-1)
"""`latest_checkpoint_id` before the first barrier."""


class CheckpointBarrierHandler(ABC):
    """Base of all handlers. Every `process_…` returns what is to be done, in order."""

    def __init__(self) -> None:
        self._alignment = AlignmentMeter()

    @abstractmethod
    def process_barrier(
        self, barrier: CheckpointBarrier, channel: InputChannelInfo, now_ms: int
    ) -> list[BarrierHandlerEffect]:
        """The task polled this barrier from the channel."""

    @abstractmethod
    def process_barrier_announcement(
        self, barrier: CheckpointBarrier, sequence_number: int, channel: InputChannelInfo, now_ms: int
    ) -> list[BarrierHandlerEffect]:
        """The task polled the priority notice that this barrier waits in the channel at `sequence_number`."""

    @abstractmethod
    def process_cancellation_barrier(
        self, marker: CancelCheckpointMarker, channel: InputChannelInfo, now_ms: int
    ) -> list[BarrierHandlerEffect]:
        """The task polled a cancellation marker from the channel."""

    @abstractmethod
    def process_end_of_partition(self, channel: InputChannelInfo, now_ms: int) -> list[BarrierHandlerEffect]:
        """The channel has ended; nothing more comes from it."""

    def process_abort_notification(self, checkpoint_id: CheckpointID, now_ms: int) -> list[BarrierHandlerEffect]:
        """The JobMaster has given this checkpoint up: nothing waits for its barriers any more."""
        return []

    def timer_fired(self, key: Hashable, now_ms: int) -> list[BarrierHandlerEffect]:
        """A timer that this handler started is due. Keys of others, and outdated ones, are ignored."""
        return []

    def add_processed_bytes(self, size_bytes: int) -> None:
        """The task processes a batch of this size (counts while an alignment runs)."""
        self._alignment.add_processed_bytes(size_bytes)

    def close(self) -> list[BarrierHandlerEffect]:
        """The task ends: forget timers and what is remembered."""
        return []

    @property
    @abstractmethod
    def latest_checkpoint_id(self) -> CheckpointID:
        """The highest checkpoint seen, NO_CHECKPOINT before the first."""

    @property
    @abstractmethod
    def is_checkpoint_pending(self) -> bool:
        """Whether barriers of some checkpoint are being collected."""

    @property
    @abstractmethod
    def open_channels(self) -> int:
        """Channels that have not ended."""

    def _trigger(self, barrier: CheckpointBarrier) -> TriggerCheckpointOnBarrier:
        meter = self._alignment
        return TriggerCheckpointOnBarrier(
            barrier,
            CheckpointMetrics(
                alignment_duration_ms=meter.duration_ms,
                checkpoint_start_delay_ms=meter.start_delay_ms,
                bytes_processed_during_alignment=meter.bytes_processed,
                unaligned=barrier.options.is_unaligned,
            ),
        )

    def _abort(
        self,
        checkpoint_id: CheckpointID,
        reason: CheckpointFailureReason | None,
        detail: str = "",
        barrier: CheckpointBarrier | None = None,
    ) -> AbortCheckpointOnBarrier:
        if checkpoint_id >= self._alignment.checkpoint_id:
            self._alignment.reset()
        timestamp_ms = 0 if barrier is None else barrier.timestamp_ms
        return AbortCheckpointOnBarrier(checkpoint_id, reason, detail, timestamp_ms)


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
