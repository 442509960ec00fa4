"""One input channel whose producer runs in another TaskManager.

The receive queue and its credit are cores; this puts one lock around both, because the stream's thread fills and the
task's thread empties them, and says to the producer what the task's polling means: credit for consumed batches (several
in one message, at half of the window), consumption resumed, channel released. Writing credit takes as long as a small
batch takes to be processed, so it is the stream's thread that does it, behind the next batch; the task's thread only
when the producer has no credit left, for then no batch comes. Mirrors Flink's RemoteInputChannel.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

import pyarrow as pa

from snapline.dataflow.elements import CheckpointBarrier, EndOfPartition
from snapline.dataflow.ids import CheckpointID
from snapline.dataflow.wire.messages import QueueFigures
from snapline.taskmanager.network.channels.credit import ReceiverCredit
from snapline.taskmanager.network.channels.exchange_contract import BufferAndBacklog, ElementFrame, InputChannelListener
from snapline.taskmanager.network.channels.input_channel import InputChannelCore
from snapline.taskmanager.network.flight.frames import (
    AddCredit,
    OpenChannel,
    ReleaseChannel,
    RequestBatches,
    ResumeChannel,
    UpstreamFrame,
)

Send = Callable[[UpstreamFrame], None]


class RemoteInputChannel:
    """InputChannel over a stream. `poll` and what follows it are the task's, `on_…` the stream's."""

    def __init__(
        self,
        channel_id: int,
        channel_index: int,
        listener: InputChannelListener,
        credits_per_channel: int,
        send: Send,
        *,
        gathered_rows: int = 0,
    ) -> None:
        """`gathered_rows`: batches are handed out together with those behind them, up to so many rows."""
        self.channel_id = channel_id
        self._channel_index = channel_index
        self._listener = listener
        self._send = send
        self._lock = threading.Lock()
        self._core = InputChannelCore(gathered_rows=gathered_rows)
        self._credit = ReceiverCredit(exclusive=credits_per_channel, maximum=credits_per_channel)
        self._announce_at = max(1, credits_per_channel // 2)
        self._unannounced = 0
        #: Nothing more is expected: the partition ended, the channel failed, or the task released it.
        self._over = False

    def open(self, producer: str, subpartition_index: int, consumer: str) -> None:
        """Ask the producer's process for the subpartition."""
        self._send(OpenChannel(self.channel_id, subpartition_index, self._credit.open(), producer, consumer))

    # --- the stream's thread ----------------------------------------------------------------------------------------

    def on_element(self, arrived: ElementFrame) -> bool:
        """An element arrived. Returns False when the channel is over by it."""
        element = arrived.element
        with self._lock:
            failure = self._credit.on_batch(arrived.backlog) if isinstance(element, pa.RecordBatch) else ""
            received = self._core.on_element(arrived)
            failure = failure or received.failure
            if isinstance(element, EndOfPartition) and not failure:
                self._over = True
            announced = self._take_unannounced()
        if failure:
            self.on_failed(failure)
            return False
        if received.notify_priority:
            self._listener.notify_channel_non_empty(self._channel_index, priority=True)
        elif received.notify:
            self._listener.notify_channel_non_empty(self._channel_index, priority=False)
        if announced:
            self._send(AddCredit(self.channel_id, announced))
        return not isinstance(element, EndOfPartition)

    def on_failed(self, cause: str) -> None:
        """Nothing more comes. Not an error when the partition has ended or the task is gone."""
        with self._lock:
            if self._over:
                return
            self._over = True
        self._listener.notify_channel_failed(self._channel_index, cause)

    # --- the task's thread ------------------------------------------------------------------------------------------

    def poll(self) -> BufferAndBacklog | None:
        """The next element, None when there is none."""
        announced = 0
        with self._lock:
            waiting = self._core.queued_batches
            polled = self._core.poll()
            if polled is not None and isinstance(polled.element, pa.RecordBatch):
                for _ in range(waiting - self._core.queued_batches):
                    self._unannounced += self._credit.on_consumed()
                if self._credit.outstanding == self._unannounced:
                    announced = self._take_unannounced()
        if announced:
            self._send(AddCredit(self.channel_id, announced))
        return polled

    def _take_unannounced(self) -> int:
        """Credits that are to be announced now, 0 while there are few."""
        if self._unannounced < self._announce_at or self._over:
            return 0
        announced, self._unannounced = self._unannounced, 0
        return announced

    def resume_consumption(self) -> None:
        """The barrier behind which the producer stopped has been processed."""
        with self._lock:
            self._core.resume_consumption()
        self._send(ResumeChannel(self.channel_id))

    def request(self, count: int) -> None:
        """Ask the producer for so many batches more. The channel was opened when it was made."""
        self._send(RequestBatches(self.channel_id, count))

    @property
    def queued(self) -> QueueFigures:
        """What has arrived and the task has not polled, and what the producer may still send; from any thread."""
        with self._lock:
            core, credit = self._core, self._credit
            return QueueFigures(core.queued_batches, core.queued_bytes, credit.usage, credit.outstanding)

    def gather_at_most(self, rows: int) -> None:
        """Batches that are handed out together have no more rows from now on."""
        with self._lock:
            self._core.gather_at_most(rows)

    def checkpoint_started(self, barrier: CheckpointBarrier) -> None:
        """Nothing: the core knows the last polled barrier."""

    def checkpoint_stopped(self, checkpoint_id: CheckpointID) -> None:
        """Do nothing, because the channel keeps nothing of a checkpoint beyond its last barrier."""

    def inflight_batches(self) -> Sequence[pa.RecordBatch]:
        """What has arrived and the last polled barrier has overtaken."""
        with self._lock:
            return self._core.inflight_batches()

    def convert_to_priority(self, sequence_number: int) -> None:
        """The announced barrier timed out: the next poll returns it."""
        with self._lock:
            self._core.convert_to_priority(sequence_number)

    def release(self) -> None:
        """Close the channel, because its task is gone."""
        with self._lock:
            self._over = True
            self._core.release()
        self._send(ReleaseChannel(self.channel_id))
