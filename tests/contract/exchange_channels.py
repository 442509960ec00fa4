"""What the tests of the exchange read and write with: a listener that waits, batches that can be told apart."""

from __future__ import annotations

import threading
import time

import pyarrow as pa

from snapline.dataflow.elements import StreamElement
from snapline.taskmanager.network.channels.exchange_contract import (
    BufferAndBacklog,
    Exchange,
    InputChannel,
    ResultSubpartition,
)

PATIENCE_SECONDS = 20.0
PRODUCER, CONSUMER, EDGE = "graph_source_0_0", "graph_sink_0_0", "source -> sink"


def batch(number: int, rows: int = 4) -> pa.RecordBatch:
    """A batch that carries its number."""
    return pa.record_batch({"number": pa.array([number] * rows, pa.int64()), "text": pa.array([str(number)] * rows)})


def number_of(element: StreamElement) -> object:
    """The number of a batch, any other element as it is."""
    return element.column(0)[0].as_py() if isinstance(element, pa.RecordBatch) else element


class TaskSide:
    """One consuming task: its channels and what they told it."""

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange
        self._changed = threading.Condition()
        self.notified: list[tuple[int, bool]] = []
        self.failures: list[tuple[int, str]] = []
        self.channels: list[InputChannel] = []

    def notify_channel_non_empty(self, channel_index: int, *, priority: bool) -> None:
        with self._changed:
            self.notified.append((channel_index, priority))
            self._changed.notify_all()

    def notify_channel_failed(self, channel_index: int, cause: str) -> None:
        with self._changed:
            self.failures.append((channel_index, cause))
            self._changed.notify_all()

    def open(
        self,
        address: str,
        *,
        producer: str = PRODUCER,
        edge_id: str = EDGE,
        index: int = 0,
        consumer: str = CONSUMER,
        row_wise: bool = False,
    ) -> InputChannel:
        channel = self._exchange.create_input_channel(
            consumer=consumer,
            producer=producer,
            edge_id=edge_id,
            subpartition_index=index,
            exchange_address=address,
            channel_index=len(self.channels),
            listener=self,
            row_wise=row_wise,
        )
        self.channels.append(channel)
        return channel

    def poll(self, channel: InputChannel) -> BufferAndBacklog:
        """The next element, whenever it comes. Fails when the channel did."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while True:
            with self._changed:
                seen = len(self.notified)
            polled = channel.poll()
            if polled is not None:
                return polled
            with self._changed:
                if self.failures:
                    raise AssertionError(f"channel failed: {self.failures}")
                if len(self.notified) == seen and not self._changed.wait(deadline - time.monotonic()):
                    raise AssertionError("nothing came")

    def read(self, channel: InputChannel, count: int) -> list[object]:
        """So many elements, batches by their number."""
        return [number_of(self.poll(channel).element) for _ in range(count)]

    def failure(self) -> tuple[int, str]:
        """The first failure, whenever it comes."""
        with self._changed:
            assert self._changed.wait_for(lambda: bool(self.failures), PATIENCE_SECONDS), "no failure came"
            return self.failures[0]

    def wait_for_priority(self) -> None:
        """Until a channel announced a priority element."""
        with self._changed:
            assert self._changed.wait_for(lambda: any(p for _, p in self.notified), PATIENCE_SECONDS), "nothing came"

    def release(self) -> None:
        for channel in self.channels:
            channel.release()


class Room:
    """A producer that waits for room."""

    def __init__(self, subpartition: ResultSubpartition) -> None:
        self._subpartition = subpartition
        self._changed = threading.Event()
        subpartition.set_availability_listener(self._changed.set)

    def fill(self, first: int, batches: int) -> None:
        """So many batches, as fast as they are taken."""
        for number in range(first, first + batches):
            self.wait()
            self._subpartition.add(batch(number))

    def wait(self) -> None:
        """Until there is room."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not self._subpartition.is_available:
            self._changed.clear()
            if not self._subpartition.is_available and not self._changed.wait(deadline - time.monotonic()):
                raise AssertionError("no room came")

    def fill_until_stuck(self, expected: int, settle_seconds: float = 0.2) -> int:
        """Batches until nothing moves any more, which is not before `expected`: how many were taken."""
        count = 0
        while True:
            while self._subpartition.is_available:
                self._subpartition.add(batch(count))
                count += 1
            self._changed.clear()
            patience = settle_seconds if count >= expected else PATIENCE_SECONDS
            if not self._subpartition.is_available and not self._changed.wait(patience):
                return count
