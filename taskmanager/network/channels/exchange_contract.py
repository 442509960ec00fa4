"""The contract between the task loop and the exchange, on both ends of an edge.

The producing task adds elements to subpartitions (`ResultSubpartition`); each is read through one `SubpartitionView` by
its consumer: directly when both run in one process, else through Flight with credits. The consuming task sees only
`InputChannel`s. Implementations that are shared between threads lock inside; the pure cores below them do not. Mirrors
Flink's ResultSubpartition, PipelinedSubpartitionView, InputChannel, PartitionRequestServerHandler.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import pyarrow as pa

from snapline.dataflow.elements import CheckpointBarrier, StreamElement
from snapline.dataflow.ids import CheckpointID
from snapline.dataflow.wire.messages import QueueFigures
from snapline.taskmanager.network.channels.buffer_debloater import Consumption


class InputChannelInfo(NamedTuple):
    """Names one input channel of a task (Flink: InputChannelInfo)."""

    gate_index: int
    channel_index: int


class ResultSubpartitionInfo(NamedTuple):
    """Names one subpartition of a task's outputs (Flink: ResultSubpartitionInfo)."""

    partition_index: int
    subpartition_index: int


@dataclass(frozen=True, slots=True)
class BufferAndBacklog:
    """One polled element, and what is known of those behind it."""

    element: StreamElement
    sequence_number: int
    backlog: int
    """Data batches still queued behind it."""
    is_priority: bool = False
    more_available: bool = False
    more_priority: bool = False
    """The next element has priority, too."""


@dataclass(frozen=True, slots=True)
class ElementFrame:
    """Producer -> consumer: one element of one channel, on its way and in the receive queue."""

    channel_id: int
    element: StreamElement
    sequence_number: int
    backlog: int
    priority: bool = False


class SubpartitionView(Protocol):
    """The consumer's end of one subpartition."""

    def poll(self) -> BufferAndBacklog | None:
        """The next element, None when there is none or consumption is blocked by an aligned barrier."""
        ...

    def set_listener(self, listener: Callable[[bool], None]) -> None:
        """`listener(has_priority)` is called, from any thread, when something became available."""
        ...

    def resume_consumption(self) -> None:
        """After an aligned barrier that blocked the consumer has been processed."""
        ...

    def request(self, count: int) -> None:
        """The consumer asks for so many batches more."""
        ...

    def release(self) -> None:
        """The consumer is gone; drop everything, and drop later elements too."""
        ...


class ResultSubpartition(Protocol):
    """The producer's end of one subpartition."""

    def add(self, element: StreamElement, *, priority: bool = False) -> Sequence[pa.RecordBatch]:
        """Queue an element. Returns the data batches that a priority barrier overtook (its output channel state), in
        order, else nothing."""
        ...

    @property
    def is_available(self) -> bool:
        """Whether the queue is below its bound; the task does not process data while a subpartition is not."""
        ...

    def set_availability_listener(self, listener: Callable[[], None]) -> None:
        """Called, from any thread, when the queue falls below its bound again."""
        ...

    def time_out(self, barrier: CheckpointBarrier) -> Sequence[pa.RecordBatch] | None:
        """The aligned timeout of `barrier` passed while it is still queued here: make it an unaligned priority
        element, and return the batches that it overtakes; None when it has left already."""
        ...

    def is_barrier_waiting(self, checkpoint_id: CheckpointID) -> bool:
        """Whether the aligned barrier of this checkpoint is still queued here. While a timeoutable checkpoint waits for
        that, the availability listener is called when its barrier leaves, too."""
        ...

    def create_view(self) -> SubpartitionView:
        """The one view; a second call after `release` of the first serves a reconnecting consumer."""
        ...

    @property
    def queued_bytes(self) -> int:
        """Size of the queued batches."""
        ...

    @property
    def queued(self) -> QueueFigures:
        """What waits for the consumer; asked for from any thread."""
        ...

    @property
    def consumption(self) -> Consumption:
        """What the consumer has taken, and whether it was waited for."""
        ...

    @property
    def demand(self) -> int | None:
        """How many more batches the consumer has asked for, on an edge where it asks; None before it has said
        anything. The availability listener is called when it rises."""
        ...

    def limit_bytes(self, max_queued_bytes: int) -> None:
        """The bound in bytes from now on, never more than the one that it was made with."""
        ...


class InputChannel(Protocol):
    """One channel of an input gate, as the consuming task sees it."""

    def poll(self) -> BufferAndBacklog | None:
        """The next element, None when there is none. Only called from the task's thread."""
        ...

    def resume_consumption(self) -> None:
        """The channel was blocked by a barrier and is to deliver again."""
        ...

    def request(self, count: int) -> None:
        """Ask the producer for so many batches more, on an edge of `Partitioning.DEMAND`."""
        ...

    @property
    def queued(self) -> QueueFigures:
        """What waits for the task, in a local channel on the producer's side; asked for from any thread."""
        ...

    def gather_at_most(self, rows: int) -> None:
        """Small batches that wait behind each other, and are handed out as one, have no more rows together from now
        on."""
        ...

    def checkpoint_started(self, barrier: CheckpointBarrier) -> None:
        """An unaligned checkpoint was triggered. The gate remembers what it polls before the barrier; a remote channel
        needs to know which barrier `inflight_batches` is about, a local one nothing (what its barrier overtook is
        output channel state of the producer)."""
        ...

    def checkpoint_stopped(self, checkpoint_id: CheckpointID) -> None:
        """Forget the checkpoint, because it has ended here."""
        ...

    def inflight_batches(self) -> Sequence[pa.RecordBatch]:
        """Data batches received and not yet polled that stood before the last polled barrier, which overtook them; does
        not remove. Empty for a local channel."""
        ...

    def convert_to_priority(self, sequence_number: int) -> None:
        """A queued, announced barrier timed out: move it to the front."""
        ...

    def release(self) -> None:
        """Close the channel, because its task is gone."""
        ...


class InputChannelListener(Protocol):
    """How channels wake the task; every method may be called from any thread."""

    def notify_channel_non_empty(self, channel_index: int, *, priority: bool) -> None:
        """Something can be polled from this channel."""
        ...

    def notify_channel_failed(self, channel_index: int, cause: str) -> None:
        """The producer or the connection is lost: the task fails (the JobMaster will have noticed, too)."""
        ...


class Exchange(Protocol):
    """What a TaskManager offers its tasks: result partitions to write, input channels to read."""

    def create_result_partition(self, producer: str, edge_id: str, subpartitions: int) -> Sequence[ResultSubpartition]:
        """The subpartitions of the edge `edge_id` of the attempt `producer` (str of ExecutionAttemptID)."""
        ...

    def release_result_partition(self, producer: str, edge_id: str) -> None:
        """The attempt is gone; consumers that still read get an error."""
        ...

    def release_unread(self, execution_graph: str) -> None:
        """Nothing of the job is left here: what finished attempts of this execution graph have left to consumers that
        never came is not read any more."""
        ...

    def create_input_channel(
        self,
        *,
        consumer: str,
        producer: str,
        edge_id: str,
        subpartition_index: int,
        exchange_address: str,
        channel_index: int,
        listener: InputChannelListener,
        row_wise: bool = False,
    ) -> InputChannel:
        """Local when the address is this process's own, else remote. The producer may register later: the channel
        retries for `taskmanager.network.request-backoff.max`. `row_wise`: the consumer works row by row, so that no
        more batches are on their way to it than keep it busy."""
        ...
