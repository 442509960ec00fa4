"""The exchange between simulated TaskManagers: the real cores of both ends, with the simulated network between them.

What is local is `LocalExchange` itself. A remote channel is the product's `RemoteInputChannel` (receive queue and
credit), its producer's end the product's `PartitionRequestQueue` over a channel of the local exchange; this file plays
the two threads of a stream: frames in order, any delay, and a connection that can break. Mirrors FlightExchange,
InboundStream, OutboundStream.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from snapline.dataflow.elements import EndOfPartition
from snapline.dataflow.ids import LeaderSessionID
from snapline.dataflow.wire.messages import Fenced
from snapline.runtime.cores.connections import ConnectionID
from snapline.runtime.cores.machine import InvariantViolation
from snapline.taskmanager.network.channels.credit import credits_of_channel
from snapline.taskmanager.network.channels.exchange_contract import ElementFrame, InputChannel, InputChannelListener
from snapline.taskmanager.network.channels.gathering import GATHERED_ROWS
from snapline.taskmanager.network.channels.local_exchange import LocalExchange, LocalInputChannel, LocalSubpartition
from snapline.taskmanager.network.flight.frames import (
    AddCredit,
    ChannelFailed,
    OpenChannel,
    ReleaseChannel,
    RequestBatches,
)
from snapline.taskmanager.network.flight.partition_request_queue import PartitionRequestQueue
from snapline.taskmanager.network.flight.remote_input_channel import RemoteInputChannel
from snapline.testing.simulated.network import Endpoint
from snapline.testing.simulated.world import Process

if TYPE_CHECKING:
    from collections.abc import Callable

NO_SESSION = LeaderSessionID("")
FIRST_RETRY_MS = 100
LONGEST_RETRY_MS = 1_000


class SimulatedExchange:
    """The exchange of one TaskManager process (Exchange)."""

    def __init__(
        self,
        process: Process,
        address: str,
        find: Callable[[str], SimulatedExchange | None],
        *,
        credits_per_channel: int,
        max_queued_batches: int,
        request_backoff_max_ms: int,
    ) -> None:
        """`find`: the exchange at an address, None when nobody listens there."""
        self.process = process
        self.address = address
        self._find = find
        self._credits = credits_per_channel
        self._backoff_ms = request_backoff_max_ms
        self.local = LocalExchange(max_queued_batches=max_queued_batches, gathered_rows=GATHERED_ROWS)
        self._streams: dict[tuple[str, str, str], ConsumerStream] = {}
        self._released: set[tuple[str, str]] = set()

    # --- producers --------------------------------------------------------------------------------------------------

    def create_result_partition(self, producer: str, edge_id: str, subpartitions: int) -> Sequence[LocalSubpartition]:
        return self.local.create_result_partition(producer, edge_id, subpartitions)

    def release_result_partition(self, producer: str, edge_id: str) -> None:
        self._released.add((producer, edge_id))
        self.local.release_result_partition(producer, edge_id)

    def release_unread(self, execution_graph: str) -> None:
        self.local.release_unread(execution_graph)

    # --- consumers --------------------------------------------------------------------------------------------------

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
        if exchange_address == self.address:
            return self.open_local(consumer, producer, edge_id, subpartition_index, channel_index, listener)
        key = (exchange_address, edge_id, producer.rsplit("_", 3)[0])
        stream = self._streams.get(key)
        if stream is None or stream.closed:
            stream = self._streams[key] = ConsumerStream(self, exchange_address, edge_id)
            stream.connect(self._find, self.process.world.clock.now_ms + self._backoff_ms, FIRST_RETRY_MS)
        granted = credits_of_channel(self._credits, row_wise=row_wise)
        return stream.open_channel(consumer, producer, subpartition_index, channel_index, granted, listener)

    def open_local(
        self,
        consumer: str,
        producer: str,
        edge_id: str,
        subpartition_index: int,
        channel_index: int,
        listener: InputChannelListener,
    ) -> LocalInputChannel:
        channel = self.local.create_input_channel(
            consumer=consumer,
            producer=producer,
            edge_id=edge_id,
            subpartition_index=subpartition_index,
            exchange_address=self.address,
            channel_index=channel_index,
            listener=listener,
        )
        if channel.is_connected:
            return channel
        if (producer, edge_id) in self._released:
            channel.fail(f"producer {producer} of edge {edge_id} is gone")
        else:
            self.process.later(self._backoff_ms, lambda: _give_up(channel, f"{producer} did not appear"))
        return channel

    def break_a_stream(self, choose: Callable[[list[Any]], Any]) -> str | None:
        """One of the streams that this process reads breaks; None: there is none."""
        streams = [stream for stream in self._streams.values() if stream.is_open]
        if not streams:
            return None
        stream = choose(streams)
        self.process.world.network.break_link(self.process.name, stream.connection)
        return f"{stream.address} -> {self.address}"


def _give_up(channel: LocalInputChannel, cause: str) -> None:
    if not channel.is_connected:
        channel.fail(cause)
        channel.release()


class ConsumerStream:
    """The consuming end of one stream."""

    def __init__(self, exchange: SimulatedExchange, address: str, edge_id: str) -> None:
        self._exchange = exchange
        self._process = exchange.process
        self.address = address
        self.edge_id = edge_id
        self.connection = ConnectionID(f"data-{self._process.world.number('data connection')}")
        self.is_open = False
        self.closed = False
        self._channels: dict[int, RemoteInputChannel] = {}
        self._next_id = 0
        self._unsent: list[Any] = []

    def connect(self, find: Callable[[str], SimulatedExchange | None], deadline_ms: int, pause_ms: int) -> None:
        """Try to connect until the deadline has passed."""
        world = self._process.world

        def attempt() -> None:
            if self.closed:
                return
            peer = find(self.address)
            cut = peer is not None and world.network.is_cut(self._process.name, peer.process.name)
            if peer is None or cut or not peer.process.alive:
                if world.clock.now_ms + pause_ms >= deadline_ms:
                    self._fail(f"cannot connect to {self.address}")
                else:
                    self.connect(find, deadline_ms, min(2 * pause_ms, LONGEST_RETRY_MS))
                return
            server = ProducerStream(peer, self.edge_id)
            world.network.connect(
                Endpoint(self._process.name, self.connection, self._receive, self._lost),
                Endpoint(peer.process.name, server.connection, server.receive, server.lost),
            )
            self.is_open = True
            for frame in self._unsent:
                self._transmit(frame)
            self._unsent = []

        self._process.later(world.network.delay_ms() if pause_ms == FIRST_RETRY_MS else pause_ms, attempt)

    def open_channel(
        self,
        consumer: str,
        producer: str,
        subpartition_index: int,
        channel_index: int,
        credits_per_channel: int,
        listener: InputChannelListener,
    ) -> RemoteInputChannel:
        channel_id = self._next_id
        self._next_id += 1
        channel = RemoteInputChannel(
            channel_id, channel_index, listener, credits_per_channel, self._send, gathered_rows=GATHERED_ROWS
        )
        self._channels[channel_id] = channel
        channel.open(producer, subpartition_index, consumer)
        return channel

    def _send(self, frame: Any) -> None:
        if isinstance(frame, ReleaseChannel):
            known = self._channels.pop(frame.channel_id, None)
            if known is not None and not self._channels and not self.closed:
                self.closed = True
                if self.is_open:
                    self.is_open = False
                    self._process.world.network.close(
                        self._process.name, self.connection, "no channel is read any more"
                    )
                return
            if known is None:
                return
        if self.is_open:
            self._transmit(frame)
        elif not self.closed:
            self._unsent.append(frame)

    def _transmit(self, frame: Any) -> None:
        self._process.world.network.send(self._process.name, self.connection, Fenced(NO_SESSION, frame))

    def _receive(self, _: ConnectionID, envelope: Fenced[Any]) -> None:
        self._process.run(lambda: self._take(envelope.message))

    def _take(self, frame: Any) -> None:
        channel = self._channels.get(frame.channel_id)
        if channel is None:
            return
        if isinstance(frame, ElementFrame):
            channel.on_element(frame)
        else:
            channel.on_failed(frame.cause)

    def _lost(self, _: ConnectionID, reason: str) -> None:
        self._process.run(lambda: self._fail(f"connection to {self.address} lost: {reason}"))

    def _fail(self, cause: str) -> None:
        self.closed, self.is_open = True, False
        channels, self._channels = list(self._channels.values()), {}
        for channel in channels:
            channel.on_failed(cause)


class ProducerStream:
    """The serving end of one stream; the listener of its channels (InputChannelListener)."""

    def __init__(self, exchange: SimulatedExchange, edge_id: str) -> None:
        self._exchange = exchange
        self._process = exchange.process
        self._edge_id = edge_id
        self.connection = ConnectionID(f"data-{self._process.world.number('data connection')}")
        self._queue = PartitionRequestQueue()
        self._channels: dict[int, LocalInputChannel] = {}
        self._over = False
        self._scheduled = False

    # --- from tasks ---------------------------------------------------------------------------------------------------

    def notify_channel_non_empty(self, channel_index: int, *, priority: bool) -> None:
        self._queue.notify_available(channel_index, priority=priority)
        self._wake()

    def notify_channel_failed(self, channel_index: int, cause: str) -> None:
        self._queue.remove_reader(channel_index)
        self._transmit(ChannelFailed(channel_index, cause))

    # --- from the network ---------------------------------------------------------------------------------------------

    def receive(self, _: ConnectionID, envelope: Fenced[Any]) -> None:
        self._process.run(lambda: self._take(envelope.message))

    def lost(self, _: ConnectionID, reason: str) -> None:
        self._process.run(self._end)

    def _end(self) -> None:
        self._over = True
        channels, self._channels = list(self._channels.values()), {}
        for channel in channels:
            channel.release()

    def _take(self, frame: Any) -> None:
        match frame:
            case OpenChannel():
                self._open(frame)
            case AddCredit(channel_id, credits):
                self._queue.add_credit(channel_id, credits)
                self._wake()
            case ReleaseChannel(channel_id):
                self._release(channel_id)
            case RequestBatches(channel_id, count):
                if (asked := self._channels.get(channel_id)) is not None:
                    asked.request(count)
            case _:
                channel = self._channels.get(frame.channel_id)
                if channel is not None:
                    channel.resume_consumption()

    def _open(self, frame: OpenChannel) -> None:
        self._queue.add_reader(frame.channel_id, frame.credits)
        try:
            channel = self._exchange.open_local(
                frame.consumer, frame.producer, self._edge_id, frame.subpartition_index, frame.channel_id, self
            )
        except InvariantViolation as error:
            self.notify_channel_failed(frame.channel_id, f"the request was refused: {error}")
            return
        channel.count_credits(partial(self._queue.credits_of, frame.channel_id))
        self._channels[frame.channel_id] = channel
        self.notify_channel_non_empty(frame.channel_id, priority=False)

    def _release(self, channel_id: int) -> None:
        self._queue.remove_reader(channel_id)
        channel = self._channels.pop(channel_id, None)
        if channel is not None:
            channel.release()

    # --- the sender ---------------------------------------------------------------------------------------------------

    def _wake(self) -> None:
        if not self._scheduled and not self._over:
            self._scheduled = True
            self._process.later(0, self._send_all)

    def _send_all(self) -> None:
        self._scheduled = False
        while not self._over and (turn := self._queue.next_turn()) is not None:
            channel = self._channels.get(turn.channel_id)
            polled = channel.poll(has_credit=turn.has_credit) if channel is not None else None
            if polled is None:
                continue
            if isinstance(polled.element, pa.RecordBatch):
                self._queue.batch_sent(turn.channel_id)
            if polled.more_available:
                self._queue.notify_available(turn.channel_id, priority=False)
            self._transmit(
                ElementFrame(
                    turn.channel_id, polled.element, polled.sequence_number, polled.backlog, polled.is_priority
                )
            )
            if isinstance(polled.element, EndOfPartition):
                self._release(turn.channel_id)

    def _transmit(self, frame: Any) -> None:
        if not self._over:
            self._process.world.network.send(self._process.name, self.connection, Fenced(NO_SESSION, frame))
