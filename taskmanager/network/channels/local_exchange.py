"""The exchange inside one process: batches change hands without being copied or serialised.

Decides how producers and consumers find each other, whichever comes first, and when a result partition is forgotten:
once every consumer has released its end, or the producer is gone, which consumers that still read are told; and what
nobody has begun to read, once another attempt of its producer comes or its job has left. It does not know tasks or
connections. Pure but for the lock that a shell may hand in: with `threading.Lock` as the factory, all of it may be
called from any thread; listeners are always called outside of the lock. Mirrors Flink's ResultPartitionManager,
LocalInputChannel and PipelinedSubpartitionView.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pyarrow as pa

from snapline.dataflow.elements import CheckpointBarrier, EndOfPartition, StreamElement
from snapline.dataflow.ids import CheckpointID
from snapline.dataflow.wire.messages import QueueFigures
from snapline.runtime.cores.machine import check
from snapline.taskmanager.network.channels.buffer_debloater import Consumption
from snapline.taskmanager.network.channels.exchange_contract import BufferAndBacklog, InputChannelListener
from snapline.taskmanager.network.channels.pipelined_subpartition import PipelinedSubpartition

LockFactory = Callable[[], AbstractContextManager[Any]]


def _no_credits() -> int:
    return 0


class LocalSubpartition:
    """A subpartition with its listeners: ResultSubpartition for the producer, SubpartitionView for the consumer."""

    def __init__(
        self, core: PipelinedSubpartition, lock: AbstractContextManager[Any], on_release: Callable[[], None]
    ) -> None:
        self._core = core
        self._lock = lock
        self._on_release = on_release
        self._on_data: Callable[[bool], None] | None = None
        self._on_room: Callable[[], None] | None = None
        self._awaited_barrier: CheckpointID | None = None
        self._viewed = False
        self._credits: Callable[[], int] = _no_credits

    # --- the producer's end -----------------------------------------------------------------------------------------

    def add(self, element: StreamElement, *, priority: bool = False) -> Sequence[pa.RecordBatch]:
        """Queue an element; see ResultSubpartition."""
        with self._lock:
            outcome = self._core.add(element, priority=priority)
            listener = self._on_data if outcome.notify_consumer else None
        if listener is not None:
            listener(priority)
        return outcome.overtaken

    @property
    def is_available(self) -> bool:
        """Whether the queue is below its bound."""
        return self._core.is_available

    def set_availability_listener(self, listener: Callable[[], None]) -> None:
        """Called when the queue falls below its bound again, and when an awaited barrier leaves."""
        self._on_room = listener

    def time_out(self, barrier: CheckpointBarrier) -> Sequence[pa.RecordBatch] | None:
        """The aligned timeout of the barrier passed; see ResultSubpartition."""
        with self._lock:
            overtaken = self._core.time_out(barrier)
            listener = self._on_data if overtaken is not None and self._core.has_priority_element else None
        if listener is not None:
            listener(True)
        return overtaken

    def is_barrier_waiting(self, checkpoint_id: CheckpointID) -> bool:
        """Whether the aligned barrier is still queued; if so, the availability listener is called when it leaves."""
        with self._lock:
            waiting = self._core.is_barrier_waiting(checkpoint_id)
            if waiting:
                self._awaited_barrier = checkpoint_id
            return waiting

    def create_view(self) -> LocalSubpartition:
        """Return the consumer's end; it is asked for once."""
        with self._lock:
            # What the first consumer took is gone: a second one would miss it without noticing.
            check(not self._viewed, "a subpartition has one consumer, which cannot come back")
            self._viewed = True
        return self

    @property
    def is_viewed(self) -> bool:
        """Whether its consumer has come."""
        return self._viewed

    @property
    def queued_bytes(self) -> int:
        """Size of the queued batches."""
        return self._core.queued_bytes

    @property
    def queued(self) -> QueueFigures:
        """What waits here, and how many batches a consumer in another process may be sent at once."""
        core = self._core
        return QueueFigures(core.backlog, core.queued_bytes, core.usage, self._credits())

    @property
    def consumption(self) -> Consumption:
        """What the consumer has taken, and whether it was waited for."""
        with self._lock:
            return self._core.consumption

    @property
    def demand(self) -> int | None:
        """How many more batches the consumer has asked for; see ResultSubpartition."""
        with self._lock:
            return self._core.demand

    def limit_bytes(self, max_queued_bytes: int) -> None:
        """The bound in bytes from now on."""
        with self._lock:
            had_room = self._core.is_available
            self._core.limit_bytes(max_queued_bytes)
            listener = self._on_room if not had_room and self._core.is_available else None
        if listener is not None:
            listener()

    # --- the consumer's end -----------------------------------------------------------------------------------------

    def poll(self, *, has_credit: bool = True) -> BufferAndBacklog | None:
        """The next element, None when there is none or consumption is blocked; without credit only an event."""
        with self._lock:
            if not has_credit and self._core.is_data_next:
                return None
            had_room = self._core.is_available
            polled = self._core.poll()
            listener = None
            if polled is not None:
                barrier_left = (
                    self._awaited_barrier is not None
                    and isinstance(polled.element, CheckpointBarrier)
                    and polled.element.checkpoint_id == self._awaited_barrier
                )
                if barrier_left:
                    self._awaited_barrier = None
                if barrier_left or (not had_room and self._core.is_available):
                    listener = self._on_room
        if listener is not None:
            listener()
        return polled

    def gather_at_most(self, rows: int) -> None:
        """Batches that are handed out together have no more rows from now on."""
        with self._lock:
            self._core.gather_at_most(rows)

    def set_listener(self, listener: Callable[[bool], None]) -> None:
        """Called with `has_priority` when something became available; at once when something is."""
        with self._lock:
            self._on_data = listener
            available, priority = self._core.has_available_element, self._core.has_priority_element
        if available:
            listener(priority)

    def resume_consumption(self) -> None:
        """The aligned barrier that blocked the consumer has been processed."""
        with self._lock:
            self._core.resume_consumption()
            available, priority = self._core.has_available_element, self._core.has_priority_element
            listener = self._on_data if available else None
        if listener is not None:
            listener(priority)

    def count_credits(self, credits_left: Callable[[], int]) -> None:
        """Whoever sends to a consumer in another process tells how many batches may go there at once."""
        self._credits = credits_left

    def request(self, count: int) -> None:
        """The consumer asks for so many batches more."""
        with self._lock:
            self._core.request(count)
            listener = self._on_room
        if listener is not None:
            listener()

    def release(self) -> None:
        """Close the subpartition, because its consumer is gone."""
        with self._lock:
            if self._core.is_released:
                return
            self._core.release()
            self._on_data = None
            self._credits = _no_credits
            listener = self._on_room
        self._on_release()
        if listener is not None:
            listener()


class LocalInputChannel:
    """One channel whose producer lives, or will live, in this process (InputChannel)."""

    def __init__(
        self,
        channel_index: int,
        listener: InputChannelListener,
        lock: AbstractContextManager[Any],
        on_release: Callable[[LocalInputChannel], None],
    ) -> None:
        self.channel_index = channel_index
        self._listener = listener
        #: Producer and consumer may come and go at the same time.
        self._lock = lock
        self._on_release = on_release
        self._view: LocalSubpartition | None = None
        self._released = False
        #: Batches that were asked for before the producer came; None: nothing was said.
        self._early_demand: int | None = None
        #: Rows that batches may have together, told before the producer came; None: nothing was said.
        self._most_rows: int | None = None
        self._credits: Callable[[], int] = _no_credits
        #: Nothing more is expected: EndOfPartition was polled, or the failure told.
        self._over = False

    def connect(self, view: LocalSubpartition) -> None:
        """Connect the channel to its producer, which is there now."""
        with self._lock:
            released, demand, most_rows = self._released, self._early_demand, self._most_rows
            if not released:
                self._view = view
        if released:
            view.release()
            return
        if demand is not None:
            view.request(demand)
        if most_rows is not None:
            view.gather_at_most(most_rows)
        view.count_credits(self._credits)
        index, listener = self.channel_index, self._listener
        view.set_listener(lambda priority: listener.notify_channel_non_empty(index, priority=priority))

    def fail(self, cause: str) -> None:
        """The producer is gone. No failure of a channel that is read to its end or released."""
        with self._lock:
            if self._released or self._over:
                return
            self._over = True
        self._listener.notify_channel_failed(self.channel_index, cause)

    @property
    def is_connected(self) -> bool:
        """Whether the producer has come."""
        return self._view is not None

    def poll(self, *, has_credit: bool = True) -> BufferAndBacklog | None:
        """The next element, None when there is none. Whoever serves a remote consumer may ask for events only."""
        view = self._view
        polled = view.poll(has_credit=has_credit) if view is not None else None
        if polled is not None and isinstance(polled.element, EndOfPartition):
            self._over = True
        return polled

    def resume_consumption(self) -> None:
        """Let the producer deliver again after an aligned barrier."""
        if self._view is not None:
            self._view.resume_consumption()

    def request(self, count: int) -> None:
        """Ask the producer for so many batches more, now or when it comes."""
        with self._lock:
            view = self._view
            if view is None:
                self._early_demand = (self._early_demand or 0) + count
        if view is not None:
            view.request(count)

    def gather_at_most(self, rows: int) -> None:
        """Batches that are handed out together have no more rows from now on."""
        with self._lock:
            self._most_rows, view = rows, self._view
        if view is not None:
            view.gather_at_most(rows)

    @property
    def queued(self) -> QueueFigures:
        """What waits on the producer's side."""
        view = self._view
        return QueueFigures() if view is None else view.queued

    def count_credits(self, credits_left: Callable[[], int]) -> None:
        """Whoever reads for a consumer in another process tells how many batches may go there at once."""
        with self._lock:
            self._credits, view = credits_left, self._view
        if view is not None:
            view.count_credits(credits_left)

    def checkpoint_started(self, barrier: CheckpointBarrier) -> None:
        """Nothing: what a barrier overtakes here is output channel state of the producer."""

    def checkpoint_stopped(self, checkpoint_id: CheckpointID) -> None:
        """Do nothing, because a channel within the process keeps nothing of a checkpoint."""

    def inflight_batches(self) -> Sequence[pa.RecordBatch]:
        """None ever: nothing has been received that is not polled."""
        return ()

    def convert_to_priority(self, sequence_number: int) -> None:
        """Never asked for: local channels announce no barriers, the producer's timeout moves them."""
        check(condition=False, why="a local channel has no announced barriers")

    def release(self) -> None:
        """Close the channel, because its task is gone."""
        with self._lock:
            if self._released:
                return
            self._released = True
            view = self._view
        if view is not None:
            view.release()
        else:
            self._on_release(self)


class LocalExchange:
    """All result partitions of one process, and the channels that read them here (Exchange)."""

    def __init__(
        self,
        *,
        max_queued_batches: int = 8,
        max_queued_bytes: int = 16 << 20,
        gathered_rows: int = 0,
        lock_factory: LockFactory = nullcontext,
    ) -> None:
        """`gathered_rows`: batches are handed out together with those behind them, up to so many rows."""
        self._max_queued_batches = max_queued_batches
        self._max_queued_bytes = max_queued_bytes
        self._gathered_rows = gathered_rows
        self._lock_factory = lock_factory
        self._lock = lock_factory()
        self._partitions: dict[tuple[str, str], tuple[LocalSubpartition, ...]] = {}
        self._unreleased: dict[tuple[str, str], set[int]] = {}
        self._latest: dict[tuple[str, str], str] = {}
        """The latest producer of each subtask and edge, for as long as its partition is here."""
        self._channels: dict[tuple[str, str], dict[int, LocalInputChannel]] = {}
        """Channels by what they read, connected or waiting for their producer."""

    def create_result_partition(self, producer: str, edge_id: str, subpartitions: int) -> Sequence[LocalSubpartition]:
        """The subpartitions of one outgoing edge; see Exchange."""
        key = (producer, edge_id)
        created = tuple(
            LocalSubpartition(
                PipelinedSubpartition(
                    max_queued_batches=self._max_queued_batches,
                    max_queued_bytes=self._max_queued_bytes,
                    gathered_rows=self._gathered_rows,
                ),
                self._lock_factory(),
                lambda index=index: self._subpartition_released(key, index),  # type: ignore[misc]
            )
            for index in range(subpartitions)
        )
        with self._lock:
            check(key not in self._partitions, f"result partition {key} exists already")
            self._partitions[key] = created
            self._unreleased[key] = set(range(subpartitions))
            waiting = list(self._channels.get(key, {}).items())
            earlier = self._partitions.get((self._latest.get(_subtask(key), ""), edge_id), ())
            self._latest[_subtask(key)] = producer
        for subpartition in earlier:
            if not subpartition.is_viewed:  # its consumer was lost before it came
                subpartition.release()
        for index, channel in waiting:
            _connect(channel, key, created, index)
        return created

    def subpartition(self, producer: str, edge_id: str, index: int) -> LocalSubpartition | None:
        """For whoever serves remote consumers; None while (or after) there is none."""
        with self._lock:
            found = self._partitions.get((producer, edge_id))
        return found[index] if found is not None else None

    def release_result_partition(self, producer: str, edge_id: str) -> None:
        """The attempt is gone; consumers that still read get an error."""
        key = (producer, edge_id)
        with self._lock:
            partition = self._remove(key)
            channels = list(self._channels.pop(key, {}).values())
        for channel in channels:
            channel.fail(f"producer {producer} of {edge_id} is gone")
        for subpartition in partition:
            subpartition.release()

    def release_unread(self, execution_graph: str) -> None:
        """Nothing of the job is left here: what its producers have left to consumers that never came goes, too."""
        with self._lock:
            left = [
                subpartition
                for (producer, _), partition in self._partitions.items()
                if producer.rsplit("_", 3)[0] == execution_graph
                for subpartition in partition
            ]
        for subpartition in left:
            if not subpartition.is_viewed:
                subpartition.release()

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
    ) -> LocalInputChannel:
        """The channel that reads one subpartition, now or when its producer comes; see Exchange."""
        key = (producer, edge_id)
        channel = LocalInputChannel(
            channel_index,
            listener,
            self._lock_factory(),
            lambda released: self._forget(key, subpartition_index, released),
        )
        with self._lock:
            readers = self._channels.setdefault(key, {})
            earlier = readers.get(subpartition_index)
            check(
                earlier is None or not earlier.is_connected,
                f"subpartition {subpartition_index} of {edge_id} of {producer} has a consumer, and no second one",
            )
            readers[subpartition_index] = channel
            partition = self._partitions.get(key)
        if partition is not None:
            _connect(channel, key, partition, subpartition_index)
        return channel

    def _forget(self, key: tuple[str, str], index: int, released: LocalInputChannel) -> None:
        """A channel gave up before its producer came."""
        with self._lock:
            waiting = self._channels.get(key, {})
            if waiting.get(index) is released:
                del waiting[index]
            if not waiting:
                self._channels.pop(key, None)

    def _subpartition_released(self, key: tuple[str, str], index: int) -> None:
        with self._lock:
            left = self._unreleased.get(key)
            if left is None:
                return
            left.discard(index)
            if not left:
                self._remove(key)
                self._channels.pop(key, None)

    def _remove(self, key: tuple[str, str]) -> Sequence[LocalSubpartition]:
        self._unreleased.pop(key, None)
        if self._latest.get(_subtask(key)) == key[0]:
            del self._latest[_subtask(key)]
        return self._partitions.pop(key, ())


def _subtask(key: tuple[str, str]) -> tuple[str, str]:
    """The producer's subtask, whichever attempt it is, and the edge."""
    producer, edge_id = key
    return producer.rpartition("_")[0] or producer, edge_id


def _connect(
    channel: LocalInputChannel, key: tuple[str, str], partition: Sequence[LocalSubpartition], index: int
) -> None:
    if index < len(partition):
        channel.connect(partition[index].create_view())
    else:
        channel.fail(f"{key[1]} of {key[0]} has {len(partition)} subpartitions, none with index {index}")
