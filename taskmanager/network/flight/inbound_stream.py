"""The consuming end of one stream: the input channels of this TaskManager that read one peer on one edge, by a socket
of the host where the peer is there, else over Flight's DoExchange.

One thread while the stream lives: it connects, receives, and sorts what it receives into channels. What consumers say
is written at once, credit mostly by the receiving thread; messages are small and their number is bounded by credit, so
that a write does not wait for the peer. A stream connects once, with patience only until it is up: after a
loss something may be missing, so all channels fail, and the tasks with them. Mirrors Flink's
NettyPartitionRequestClient and CreditBasedPartitionRequestClientHandler.
"""

from __future__ import annotations

import contextlib
import ssl
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from snapline.runtime.rpc.tcp_connections import connect_error, notice_lost_hosts
from snapline.taskmanager.network.channels.exchange_contract import ElementFrame, InputChannelListener
from snapline.taskmanager.network.flight import frames
from snapline.taskmanager.network.flight.exchange_security import ExchangeSecurity
from snapline.taskmanager.network.flight.remote_input_channel import RemoteInputChannel
from snapline.taskmanager.network.flight.upstream_messages import UpstreamMessages
from snapline.taskmanager.network.host.host_server import connect_on_host
from snapline.taskmanager.network.host.socket_messages import SocketReader

CONNECT_TIMEOUT_MS = 1500
"""How long one attempt waits for the peer's greeting; closing waits for it, too."""
FIRST_RETRY_SECONDS = 0.1
LONGEST_RETRY_SECONDS = 1.0
PATIENCE_ON_HOST = 1 / 3
"""The part of a stream's patience in which it is tried by the socket of the host, and afterwards over Flight: whoever
listens under the peer's name there, or lets it serve nobody, does not keep rows from coming."""
_LONGEST_CAUSE = 300


@dataclass(frozen=True, slots=True)
class ExchangePeer:
    """Where to connect and how."""

    address: str
    """Where the producer's server listens, as host:port."""
    edge_id: str
    security: ExchangeSecurity
    request_backoff_max_ms: int
    by_host_sockets: bool = False
    """Whether a peer on this host is read by a socket of the host."""

    @property
    def host_and_port(self) -> tuple[str, int]:
        """Raises ValueError when the address is none."""
        host, _, port = self.address.rpartition(":")
        if not host:
            raise ValueError(f"not an exchange address: {self.address!r} (expected host:port)")
        return host.strip("[]"), int(port)


class InboundStream:
    """One stream. All public methods may be called from any thread."""

    def __init__(self, peer: ExchangePeer, on_ended: Callable[[InboundStream], None]) -> None:
        self._peer = peer
        self._on_ended = on_ended
        self._lock = threading.Lock()
        self._channels: dict[int, RemoteInputChannel] = {}
        self._next_channel_id = 0
        #: Not empty: why the stream is over, or about to be.
        self._closing = ""
        self._started = False
        self._wake_up = threading.Event()
        self._reader: Any = None
        self._said = UpstreamMessages()
        self._thread = threading.Thread(target=self._run, name=f"exchange-receive-{peer.edge_id}"[:60], daemon=True)

    def ensure_started(self) -> None:
        """Connect and receive. Called after the first channel was opened, so that nothing fails unheard."""
        with self._lock:
            if not self._started:
                self._thread.start()
                self._started = True

    # --- channels ---------------------------------------------------------------------------------------------------

    def open_channel(
        self,
        *,
        consumer: str,
        producer: str,
        subpartition_index: int,
        channel_index: int,
        credits_per_channel: int,
        gathered_rows: int,
        listener: InputChannelListener,
    ) -> RemoteInputChannel | None:
        """A new channel, None when the stream is ending: open another stream."""
        with self._lock:
            if self._closing:
                return None
            channel_id = self._next_channel_id
            self._next_channel_id += 1

            def send(frame: frames.UpstreamFrame) -> None:
                self._send(channel_id, frame)

            channel = RemoteInputChannel(
                channel_id, channel_index, listener, credits_per_channel, send, gathered_rows=gathered_rows
            )
            self._channels[channel_id] = channel
        channel.open(producer, subpartition_index, consumer)
        return channel

    def _send(self, channel_id: int, frame: frames.UpstreamFrame) -> None:
        if isinstance(frame, frames.ReleaseChannel):
            with self._lock:
                known = self._channels.pop(channel_id, None) is not None
                is_last = known and not self._channels and not self._closing
                if is_last:
                    self._closing = "no channel is read any more"
            if is_last:
                self._cancel()
                return
            if not known:
                return
        self._said.say(frames.encode_upstream(frame))

    @property
    def is_closing(self) -> bool:
        """Whether it takes no more channels."""
        return bool(self._closing)

    # --- the end ----------------------------------------------------------------------------------------------------

    def close(self, cause: str) -> None:
        """End the stream soon, whatever the peer does; its channels fail with this cause."""
        with self._lock:
            self._closing = self._closing or cause
        self._cancel()
        self.ensure_started()

    @property
    def has_ended(self) -> bool:
        """Whether its thread is gone."""
        return self._started and not self._thread.is_alive()

    def join(self, timeout_seconds: float) -> bool:
        """Wait for the thread. False when it still runs."""
        self._thread.join(max(0.0, timeout_seconds))
        return not self._thread.is_alive()

    def _cancel(self) -> None:
        self._wake_up.set()
        with self._lock:
            reader = self._reader
        if reader is not None:
            reader.cancel()

    # --- the thread -------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        client = None
        try:
            client = self._connect()
            cause = self._receive() if client is not None else ""
        except Exception as error:
            cause = self._explain(error)
        with self._lock:
            cause = self._closing = self._closing or cause
            channels, self._channels = list(self._channels.values()), {}
        self._on_ended(self)
        for channel in channels:
            channel.on_failed(cause)
        self._close_writer(client)

    def _connect(self) -> Any:
        """The client once the stream is up; None when it was closed before. Raises the last error when patience
        ends."""
        from pyarrow import flight

        host, port = self._peer.host_and_port
        patience = self._peer.request_backoff_max_ms / 1000
        deadline = time.monotonic() + patience
        on_host_until = time.monotonic() + PATIENCE_ON_HOST * patience
        pause = FIRST_RETRY_SECONDS
        while not self._closing:
            try:
                client = self._open_on_host(on_host_until)
                error = "" if client else connect_error(host, port, deadline, lambda: bool(self._closing))
                if not error:
                    return client or self._open_stream(host, port)
            except ssl.SSLError as refusal:
                error = f"one side does not accept the certificate of the other: {refusal}"
            except (flight.FlightUnavailableError, TimeoutError, ConnectionError, StopIteration):
                error = "connections are accepted, but not answered"
            if time.monotonic() + pause >= deadline:
                raise ConnectionError(f"cannot connect: {error}")
            self._wake_up.wait(pause)
            pause = min(2 * pause, LONGEST_RETRY_SECONDS)
        return None

    def _open_on_host(self, until: float) -> SocketReader | None:
        """The reader of a stream by a socket of this host, when the peer is there; None: ask over Flight, which says
        why not where that is so. Raises TimeoutError, ConnectionError or StopIteration before that time."""
        if not self._peer.by_host_sockets or time.monotonic() > until:
            return None
        try:
            opened = connect_on_host(self._peer.address, self._peer.edge_id, self._peer.security.current())
        except (ssl.SSLError, PermissionError, frames.ProtocolError):
            return None
        except (TimeoutError, ConnectionError, StopIteration):
            if time.monotonic() > until:
                return None
            raise
        if opened is None:
            return None
        reader, writer = opened
        self._begin(reader, writer)
        return reader

    def _begin(self, reader: Any, writer: Any) -> None:
        with self._lock:
            self._reader = reader
            closing = self._closing
        if closing:
            reader.cancel()
        self._said.begin(writer)

    def _open_stream(self, host: str, port: int) -> Any:
        from pyarrow import flight

        security = self._peer.security.current()
        client = flight.FlightClient(
            security.location(host, port),
            generic_options=[
                ("grpc.enable_http_proxy", 0),
                ("grpc.min_reconnect_backoff_ms", CONNECT_TIMEOUT_MS),
                ("grpc.use_local_subchannel_pool", 1),
            ],
            **security.client_options,
        )
        headers = [(b"authorization", f"Bearer {token}".encode()) for token in security.tokens[:1]]
        options = flight.FlightCallOptions(headers=headers, read_options=frames.aligned_read_options())
        descriptor = flight.FlightDescriptor.for_command(frames.stream_descriptor(self._peer.edge_id))
        writer, reader = client.do_exchange(descriptor, options)
        self._begin(reader, writer)  # which has asked for a channel, so that Flight has connected
        with contextlib.suppress(OSError):  # there is no file left to look at the others with
            notice_lost_hosts(0, port)
        return client

    def _receive(self) -> str:
        """Until the stream ends: why it did."""
        reader = self._reader
        while True:
            try:
                chunk = reader.read_chunk()
            except StopIteration:
                return self._lost("the peer ended the stream")
            frame = frames.decode_downstream(chunk.app_metadata, chunk.data)
            if isinstance(frame, ElementFrame):
                channel = self._channels.get(frame.channel_id)
                if channel is not None:
                    channel.on_element(frame)
            elif isinstance(frame, frames.ChannelFailed):
                channel = self._channels.get(frame.channel_id)
                if channel is not None:
                    channel.on_failed(f"TaskManager {self._peer.address}: {frame.cause}")
            else:
                return f"TaskManager {self._peer.address}: {frame.cause}"

    def _lost(self, why: str) -> str:
        return f"connection to {self._peer.address} lost: {why}"

    def _explain(self, error: Exception) -> str:
        from pyarrow import flight

        if isinstance(error, (flight.FlightUnauthenticatedError, PermissionError)):
            return (
                f"TaskManager {self._peer.address} refused this one's token: security.auth.token must be the same "
                "for all TaskManagers of a cluster"
            )
        if isinstance(error, (frames.ProtocolError, ValueError)):
            return f"edge {self._peer.edge_id} from TaskManager {self._peer.address}: {error}"
        if isinstance(error, flight.FlightUnavailableError):
            return self._lost("the other side is gone")
        text = str(error).split(". gRPC client debug context")[0].split(". Client context")[0]
        return self._lost(text[:_LONGEST_CAUSE])

    def _close_writer(self, client: Any) -> None:
        with self._lock:
            reader = self._reader
        if reader is not None:
            reader.cancel()
        writer = self._said.end()
        if writer is not None:
            try:
                writer.close()
            except Exception:  # noqa: S110 (how a cancelled call ended says nothing)
                pass
        if client is not None:
            client.close()
