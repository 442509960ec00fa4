"""The exchange of one TaskManager: result partitions of its tasks, and input channels wherever their producer runs.

Decides which way data goes: inside this process the batch itself changes hands, from elsewhere it comes over the one
stream per peer, edge and job, which is opened with its first channel and ended with its last. Also decides when a
producer that does not come is given up. A new attempt has new ids on both ends, so that channels of different attempts
never mix, and a stream belongs to one job's execution graph, so that two jobs never share a schema.

Threads, all daemons, all gone after `close`: two per stream that a peer reads here (a reader and a sender), one per
stream that is read from a peer, one while consumers wait for producers; one that lets in TaskManagers of this host, and
Flight's own, of a fixed number. Mirrors Flink's NettyShuffleEnvironment and ConnectionManager.
"""

from __future__ import annotations

import atexit
import os
import threading
import time
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field

from snapline.dataflow import config
from snapline.runtime.logs import Logger
from snapline.taskmanager.network.channels.credit import credits_of_channel
from snapline.taskmanager.network.channels.exchange_contract import InputChannel, InputChannelListener
from snapline.taskmanager.network.channels.gathering import GATHERED_ROWS
from snapline.taskmanager.network.channels.local_exchange import LocalExchange, LocalInputChannel, LocalSubpartition
from snapline.taskmanager.network.flight.exchange_security import ExchangeSecurity
from snapline.taskmanager.network.flight.flight_server import ExchangeError, ExchangeServer
from snapline.taskmanager.network.flight.frames import OpenChannel
from snapline.taskmanager.network.flight.inbound_stream import ExchangePeer, InboundStream
from snapline.taskmanager.network.flight.pending_requests import PendingRequests
from snapline.taskmanager.programs.offered_places import OfferedPlaces, PlaceSettings

CLOSE_SECONDS = 2.0
MAX_RELEASED_REMEMBERED = 4096
"""Result partitions of which it is known that they will not come (back)."""
_ANY_HOST = frozenset({"0.0.0.0", "::", "*", ""})  # noqa: S104 (refused as an address to tell others)


@dataclass(frozen=True, slots=True)
class ExchangeSettings:
    """How an exchange listens and how much it lets wait."""

    bind_host: str = "127.0.0.1"
    port: int = 0
    """Port of the server; 0 takes any that is free."""
    advertised_host: str = ""
    """Under which other TaskManagers find this one; empty: the bind host."""
    security: ExchangeSecurity = field(default_factory=ExchangeSecurity)
    credits_per_channel: int = 8
    max_queued_batches: int = 8
    max_queued_bytes: int = 16 << 20
    gathered_rows: int = 0
    """Batches are handed out together with those behind them, up to so many rows; 0: one by one."""
    request_backoff_max_ms: int = 10_000
    programs: PlaceSettings = field(default_factory=PlaceSettings)
    local_shortcut: bool = True
    """Whether channels inside this process avoid the network. Only tests and benchmarks say no."""
    by_host_sockets: bool = True
    """Whether TaskManagers of one host read each other by its sockets."""

    @classmethod
    def from_configuration(
        cls, configuration: config.Configuration, *, bind_host: str, advertised_host: str = ""
    ) -> ExchangeSettings:
        """As the user has set it."""
        return cls(
            bind_host=bind_host,
            advertised_host=advertised_host,
            security=ExchangeSecurity.from_configuration(configuration),
            by_host_sockets=configuration.get_option(config.NETWORK_HOST_SOCKETS),
            credits_per_channel=configuration.get_option(config.TASKMANAGER_MEMORY_NETWORK_BATCHES),
            max_queued_batches=configuration.get_option(config.TASKMANAGER_QUEUE_BATCHES),
            max_queued_bytes=configuration.get_option(config.TASKMANAGER_QUEUE_BYTES),
            gathered_rows=GATHERED_ROWS,
            request_backoff_max_ms=configuration.get_option(config.NETWORK_REQUEST_BACKOFF_MAX),
            programs=PlaceSettings.from_configuration(configuration),
        )


@dataclass(frozen=True, slots=True)
class _StreamKey:
    address: str
    edge_id: str
    execution_graph: str


class FlightExchange:
    """A running exchange (Exchange); may be used from any thread. Create it after the last fork, close it once."""

    def __init__(self, settings: ExchangeSettings | None = None, logger: Logger | None = None) -> None:
        """`logger` is told who was not let in."""
        self._settings = settings = settings or ExchangeSettings()
        host = settings.advertised_host or settings.bind_host
        if host in _ANY_HOST:
            raise ExchangeError(
                f"the exchange listens on {settings.bind_host!r}: say under which host name others find it (advertised host)"
            )
        self._local = LocalExchange(
            max_queued_batches=settings.max_queued_batches,
            max_queued_bytes=settings.max_queued_bytes,
            gathered_rows=settings.gathered_rows,
            lock_factory=threading.Lock,
        )
        self._requests = PendingRequests(settings.request_backoff_max_ms)
        self._lock = threading.Lock()
        self._closed = False
        self._process_id = os.getpid()
        #: Streams that take new channels.
        self._streams: dict[_StreamKey, InboundStream] = {}
        #: All streams whose thread may run, or has until lately.
        self._running: list[InboundStream] = []
        self._released: OrderedDict[tuple[str, str], None] = OrderedDict()
        self.programs = OfferedPlaces(settings.programs)
        """The places for programs outside, which come to the same server."""
        self._server = ExchangeServer(
            settings.bind_host,
            settings.port,
            settings.security,
            self._serve_channel,
            self.programs,
            advertised_host=host,
            by_host_sockets=settings.by_host_sockets,
            logger=logger,
        )
        # A thread that comes back from Flight while the interpreter ends would abort the process.
        atexit.register(self.close)
        self.address = self._server.address

    # --- producers ----------------------------------------------------------------------------------------------------

    def create_result_partition(self, producer: str, edge_id: str, subpartitions: int) -> Sequence[LocalSubpartition]:
        """The subpartitions of one outgoing edge of one attempt; consumers may be waiting. Forgotten when all consumers
        are done with them."""
        self._check_open()
        return self._local.create_result_partition(producer, edge_id, subpartitions)

    def release_result_partition(self, producer: str, edge_id: str) -> None:
        """The attempt failed or was cancelled: consumers that still read get an error. A finished attempt's partition
        needs no release unless its consumers are gone, too: it ends with its last consumer."""
        with self._lock:
            self._released[producer, edge_id] = None
            if len(self._released) > MAX_RELEASED_REMEMBERED:
                self._released.popitem(last=False)
        self._local.release_result_partition(producer, edge_id)

    def release_unread(self, execution_graph: str) -> None:
        """Nothing of the job is left here; consumers elsewhere that have begun to read go on."""
        self._local.release_unread(execution_graph)

    # --- consumers ----------------------------------------------------------------------------------------------------

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
        """See Exchange. Returns at once; what goes wrong later is told to the listener."""
        self._check_open()
        if exchange_address == self.address and self._settings.local_shortcut:
            return self._open_local(consumer, producer, edge_id, subpartition_index, channel_index, listener)
        key = _StreamKey(exchange_address, edge_id, producer.rsplit("_", 3)[0])
        while True:
            stream = self._stream(key)
            channel = stream.open_channel(
                consumer=consumer,
                producer=producer,
                subpartition_index=subpartition_index,
                channel_index=channel_index,
                credits_per_channel=credits_of_channel(self._settings.credits_per_channel, row_wise=row_wise),
                gathered_rows=self._settings.gathered_rows,
                listener=listener,
            )
            if channel is not None:
                stream.ensure_started()
                return channel

    def _stream(self, key: _StreamKey) -> InboundStream:
        with self._lock:
            self._check_open()
            stream = self._streams.get(key)
            if stream is None or stream.is_closing:
                peer = ExchangePeer(
                    key.address,
                    key.edge_id,
                    self._settings.security,
                    self._settings.request_backoff_max_ms,
                    self._settings.by_host_sockets,
                )
                stream = self._streams[key] = InboundStream(peer, lambda ended: self._stream_ended(key, ended))
                self._running = [other for other in self._running if not other.has_ended]
                self._running.append(stream)
            return stream

    def _stream_ended(self, key: _StreamKey, stream: InboundStream) -> None:
        with self._lock:
            if self._streams.get(key) is stream:
                del self._streams[key]

    def _open_local(
        self,
        consumer: str,
        producer: str,
        edge_id: str,
        subpartition_index: int,
        channel_index: int,
        listener: InputChannelListener,
    ) -> LocalInputChannel:
        channel = self._local.create_input_channel(
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
        with self._lock:
            released = (producer, edge_id) in self._released
        if released:
            channel.fail(f"producer {producer} of edge {edge_id} is gone")
        else:
            waited_ms = self._settings.request_backoff_max_ms
            cause = (
                f"producer {producer} of edge {edge_id} did not appear on TaskManager {self.address} within {waited_ms} ms: "
                "it failed, or taskmanager.network.request-backoff.max is too short"
            )
            self._requests.expire_later(lambda: _give_up(channel, cause))
        return channel

    def _serve_channel(self, edge_id: str, request: OpenChannel, listener: InputChannelListener) -> LocalInputChannel:
        """A consumer in another process is a local one that a stream reads."""
        return self._open_local(
            request.consumer, request.producer, edge_id, request.subpartition_index, request.channel_id, listener
        )

    # --- the whole ----------------------------------------------------------------------------------------------------

    @property
    def number_of_streams(self) -> tuple[int, int]:
        """Streams read from peers, and streams that peers read here."""
        with self._lock:
            inbound = sum(not stream.has_ended for stream in self._running)
        return inbound, self._server.number_of_streams

    def close(self) -> bool:
        """End everything within about two seconds, whatever the peers do. Returns whether all threads have ended.
        Channels that are still read fail; a second call does nothing."""
        deadline = time.monotonic() + CLOSE_SECONDS
        if os.getpid() != self._process_id:
            return True  # a forked child has the objects, but none of the threads
        with self._lock:
            if self._closed:
                return True
            self._closed = True
            running = self._running
        atexit.unregister(self.close)
        self._requests.close()
        cause = f"TaskManager {self.address} has closed its exchange"
        for stream in running:
            stream.close(cause)
        ended = self._server.close(cause)
        joined = [stream.join(deadline - time.monotonic()) for stream in running]
        return ended and all(joined)

    def __enter__(self) -> FlightExchange:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _check_open(self) -> None:
        if self._closed:
            raise ExchangeError(f"the exchange of TaskManager {self.address} is closed")


def _give_up(channel: LocalInputChannel, cause: str) -> None:
    if not channel.is_connected:
        channel.fail(cause)
        channel.release()
