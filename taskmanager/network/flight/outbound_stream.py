"""The serving end of one stream: the subpartitions that one peer reads of one edge, over Flight's DoExchange or by a
socket of the host.

Two threads while the stream lives: one that reads what the consumer asks for, and one that sends. A write of Flight
waits when the peer does not read, so that the sender's thread does them all; on a socket whoever has something to send
writes it, and that thread only what the peer did not take at once. A consumer in another process is to its producer
what a local one is: each channel is an input channel of the local exchange, read by this stream as credits allow. What
cannot be sent fails its channel with the reason, what breaks the protocol fails the stream. Mirrors Flink's
PartitionRequestServerHandler.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

import pyarrow as pa

from snapline.dataflow.columnar.batch_bytes import BatchBytes
from snapline.dataflow.elements import EndOfPartition
from snapline.runtime.cores.machine import InvariantViolation
from snapline.taskmanager.network.channels.exchange_contract import BufferAndBacklog, InputChannelListener
from snapline.taskmanager.network.flight import frames
from snapline.taskmanager.network.flight.partition_request_queue import ChannelTurn, PartitionRequestQueue


class ServedChannel(Protocol):
    """What the stream reads: a local input channel that can be told to give events only."""

    def poll(self, *, has_credit: bool = True) -> BufferAndBacklog | None:
        """The next element; without credit only if it is an event."""
        ...

    def resume_consumption(self) -> None:
        """The consumer has processed the aligned barrier."""
        ...

    def request(self, count: int) -> None:
        """The consumer asks for so many batches more."""
        ...

    def count_credits(self, credits_left: Callable[[], int]) -> None:
        """Tell the channel whom to ask how many batches its consumer may be sent."""
        ...

    def release(self) -> None:
        """Close the channel, because its consumer is gone."""
        ...


OpenServedChannel = Callable[[str, frames.OpenChannel, InputChannelListener], ServedChannel]
"""(edge, request, listener): find the subpartition, or wait for it; elements and failure are announced to the listener
under `channel_id`."""


MAX_CHANNELS = 131_072
"""How many channels a stream may have at a time, with what waits to be said of ended ones: those between 362 subtasks
on each side."""
HANG_UP_SECONDS = 1.0
"""How long the peer of a stream that has broken the protocol may take to read why, before its connection is reset."""
MOST_STEPS_FOR_OTHERS = 64
"""Whoever finds nobody writing writes what comes meanwhile, too, but no more than this in a row."""


class OutboundStream:
    """One stream. The listener of its channels, whose index is their number on the stream."""

    def __init__(
        self, edge_id: str, open_channel: OpenServedChannel, reset_connection: Callable[[], object] = lambda: None
    ) -> None:
        """`reset_connection`: lets a write fail that waits for the peer."""
        self._edge_id = edge_id
        self._reset_connection = reset_connection
        self._open_channel = open_channel
        self._changed = threading.Condition()
        self._queue = PartitionRequestQueue()
        self._notices: deque[bytes] = deque()
        self._channels: dict[int, ServedChannel] = {}
        self._stopping = False
        #: Where no write waits: the writer of the stream while it lives, and who may use it.
        self._writer_in_place: Any = None
        self._sending = threading.Lock()
        self._is_behind = False
        self._schema: pa.Schema | None = None
        self._bytes = BatchBytes()

    # --- from other threads -----------------------------------------------------------------------------------------

    def notify_channel_non_empty(self, channel_index: int, *, priority: bool) -> None:
        """The producer has something for this channel."""
        with self._changed:
            self._queue.notify_available(channel_index, priority=priority)
        self._go_on()

    def notify_channel_failed(self, channel_index: int, cause: str) -> None:
        """The producer is gone, or did not come."""
        with self._changed:
            self._queue.remove_reader(channel_index)
            self._notices.append(frames.channel_failed_frame(frames.ChannelFailed(channel_index, cause)))
        self._go_on()

    def shut_down(self, cause: str) -> None:
        """Tell the peer that nothing more comes. It ends the stream, if it still lives."""
        with self._changed:
            for channel_id in self._queue.channel_ids:
                self._queue.remove_reader(channel_id)
            self._notices.append(frames.exchange_closed_frame(frames.ExchangeClosed(cause)))
        self._go_on()

    def _go_on(self) -> None:
        """Something may be sent: by the sender's thread, or here and now where no write waits."""
        if self._writer_in_place is not None:
            self._send_in_place()
            return
        with self._changed:
            self._changed.notify()

    # --- the thread of the call -------------------------------------------------------------------------------------

    def serve(self, reader: Any, writer: Any, *, in_place: bool = False) -> None:
        """Until the peer ends the stream or its connection is lost. Must not return while somebody still writes.
        `in_place`: no write waits for the peer, as in a SocketWriter, so that whoever has something to send writes it,
        and the sender's thread only what the peer did not take."""
        sender = threading.Thread(
            target=self._send_rest if in_place else self._send,
            args=(writer,),
            name=f"exchange-send-{self._edge_id}"[:60],
            daemon=True,
        )
        sender.start()
        if in_place:
            self._writer_in_place = writer
            self._send_in_place()
        ending: float | None = None
        try:
            self._receive(reader)
        except frames.ProtocolError:
            ending = HANG_UP_SECONDS
            raise
        finally:
            with self._changed:
                self._stopping = True
                channels, self._channels = list(self._channels.values()), {}
                self._changed.notify()
            for channel in channels:
                channel.release()
            if in_place:
                reader.cancel()
            sender.join(ending)
            if sender.is_alive():
                self._reset_connection()
                sender.join()
            with self._sending:
                self._writer_in_place = None

    def _receive(self, reader: Any) -> None:
        from pyarrow import flight

        while True:
            try:
                chunk = reader.read_chunk()
            except (StopIteration, flight.FlightError, pa.ArrowException, OSError):
                return
            frame = frames.decode_upstream(chunk.app_metadata)
            if self._is_full:
                raise frames.ProtocolError(f"more than {MAX_CHANNELS} channels on one stream, open or to be told of")
            if isinstance(frame, frames.AddCredit):
                with self._changed:
                    self._queue.add_credit(frame.channel_id, frame.credits)
                self._go_on()
            elif isinstance(frame, frames.OpenChannel):
                self._open(frame)
            elif isinstance(frame, frames.RequestBatches):
                self._request(frame)
            elif isinstance(frame, frames.ReleaseChannel):
                self._release(frame.channel_id)
            else:
                self._resume(frame.channel_id)

    @property
    def _is_full(self) -> bool:
        return self._queue.size > MAX_CHANNELS or len(self._notices) > MAX_CHANNELS

    def _open(self, frame: frames.OpenChannel) -> None:
        with self._changed:
            self._queue.add_reader(frame.channel_id, frame.credits)
        try:
            channel = self._open_channel(self._edge_id, frame, self)
        except (InvariantViolation, IndexError, ValueError) as error:
            self.notify_channel_failed(frame.channel_id, f"the request was refused: {error}")
            return
        channel.count_credits(partial(self._queue.credits_of, frame.channel_id))
        with self._changed:
            self._channels[frame.channel_id] = channel
        # What was announced before the channel had its place went unheard.
        self.notify_channel_non_empty(frame.channel_id, priority=False)

    def _request(self, frame: frames.RequestBatches) -> None:
        with self._changed:
            channel = self._channels.get(frame.channel_id)
        if channel is not None:
            channel.request(frame.count)

    def _resume(self, channel_id: int) -> None:
        with self._changed:
            channel = self._channels.get(channel_id)
        if channel is None:
            return
        try:
            channel.resume_consumption()
        except InvariantViolation as error:
            self.notify_channel_failed(channel_id, str(error))

    def _release(self, channel_id: int) -> None:
        with self._changed:
            self._queue.remove_reader(channel_id)
            channel = self._channels.pop(channel_id, None)
        if channel is not None:
            channel.release()

    # --- the sender's thread ----------------------------------------------------------------------------------------

    def _send(self, writer: Any) -> None:
        from pyarrow import flight

        try:
            while (step := self._next_step()) is not None:
                if isinstance(step, bytes):
                    writer.write_metadata(step)
                else:
                    self._send_one(step, writer)
        except flight.FlightError:
            self._stop()
        except Exception as error:
            self._tell_defect(writer, error)
            raise

    def _tell_defect(self, writer: Any, error: Exception) -> None:
        """The peer ends the stream when it hears of it."""
        cause = f"serving edge {self._edge_id} failed: {type(error).__name__}: {error}"
        writer.write_metadata(frames.exchange_closed_frame(frames.ExchangeClosed(cause)))

    def _next_step(self) -> ChannelTurn | bytes | None:
        """Wait for the next thing to send; None when the stream is over."""
        with self._changed:
            while not self._stopping:
                if (step := self._take_step()) is not None:
                    return step
                self._changed.wait()
        return None

    def _take_step(self) -> ChannelTurn | bytes | None:
        return self._notices.popleft() if self._notices else self._queue.next_turn()

    # --- in place ---------------------------------------------------------------------------------------------------

    def _send_in_place(self) -> None:
        """Send what is to be sent, unless another thread does, which looks again when it has let go. What the peer does
        not take at once, and what would keep this thread for long, is left to the sender's thread."""
        while self._writer_in_place is not None and not self._is_behind and self._has_step:
            if not self._sending.acquire(blocking=False):
                return
            try:
                self._send_while_taken()
            finally:
                self._sending.release()

    def _send_while_taken(self) -> None:
        writer, steps = self._writer_in_place, 0
        while writer is not None and not self._is_behind:
            steps += 1
            with self._changed:
                step = None if self._stopping else self._take_step()
            if step is None:
                return
            try:
                if isinstance(step, bytes):
                    writer.write_metadata(step)
                else:
                    self._send_one(step, writer)
            except OSError:
                self._stop()
                return
            except Exception as error:
                self._tell_defect(writer, error)
                self._stop()
                raise
            if writer.is_behind or steps == MOST_STEPS_FOR_OTHERS:
                with self._changed:
                    self._is_behind = True
                    self._changed.notify()

    @property
    def _has_step(self) -> bool:
        with self._changed:
            return not self._stopping and (bool(self._notices) or self._queue.has_turn)

    def _send_rest(self, writer: Any) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._is_behind or self._stopping)
                if self._stopping:
                    return
            try:
                with self._sending:
                    writer.flush()
            except OSError:
                self._stop()
                return
            self._is_behind = False
            self._send_in_place()

    def _stop(self) -> None:
        """The peer is gone: the thread of the call learns it from its own end, and releases the channels."""
        with self._changed:
            self._stopping = True
            self._changed.notify()

    def _send_one(self, turn: ChannelTurn, writer: Any) -> None:
        channel_id = turn.channel_id
        channel = self._channels.get(channel_id)
        polled = channel.poll(has_credit=turn.has_credit) if channel is not None else None
        if channel is None or polled is None:
            return
        if isinstance(polled.element, pa.RecordBatch):
            with self._changed:
                self._queue.batch_sent(channel_id)
                if polled.more_available:
                    self._queue.notify_available(channel_id, priority=False)
            self._send_batch(channel_id, polled, polled.element, writer)
            return
        if polled.more_available:
            with self._changed:
                self._queue.notify_available(channel_id, priority=False)
        writer.write_metadata(frames.control_frame(channel_id, polled))
        if isinstance(polled.element, EndOfPartition):
            self._release(channel_id)

    def _send_batch(self, channel_id: int, polled: BufferAndBacklog, batch: pa.RecordBatch, writer: Any) -> None:
        try:
            if self._schema is None:
                writer.begin(batch.schema)
                self._schema = batch.schema
            if batch.schema.equals(self._schema, check_metadata=True):
                writer.write_with_metadata(batch, frames.data_header(channel_id, polled, self._bytes.of(batch)))
            else:
                writer.write_metadata(frames.foreign_data_frame(channel_id, polled, batch))
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError, pa.ArrowKeyError) as error:
            self._release(channel_id)
            self.notify_channel_failed(
                channel_id,
                f"a batch of edge {self._edge_id} with columns {_shown(batch.schema)} cannot be serialised: {error}",
            )


def _shown(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name}: {field.type}" for field in schema)[:500]
