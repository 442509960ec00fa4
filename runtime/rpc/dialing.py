"""The dialing side of connections: one gRPC stream per connection, on two threads of its own.

Performs OpenConnection, Send and CloseConnection of `snapline.runtime.cores.connections` and answers with
ConnectionOpened, ConnectionLost and `Incoming`, told to the owner of the connection. Decides nothing about retries:
that is the core's registration. A TaskManager has a handful of connections, so threads are simpler here than an event
loop; the serving side, with thousands, is in `coordinator.rpc`.

What is sent while the stream is busy waits in a queue and leaves as one envelope. A queue that grows past its bound
means that the other side does not read any more: the connection counts as lost.

Through a relay (`snapline.runtime.relay.relay_server`) it is the same stream, opened there with the coordinator's
address in its metadata. When a relay does not open it, for whatever reason, the coordinator is dialed directly: a relay
saves the coordinator work, and nobody depends on one. One that does not even answer is left alone for a while.
"""

from __future__ import annotations

import threading
import zlib
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import grpc

from snapline.dataflow.ids import ResourceID
from snapline.dataflow.wire.codec import WireError, decode_envelope, encode_envelope
from snapline.dataflow.wire.messages import Fenced, ForTasks, SubmitTasks
from snapline.protos import cluster_pb2, cluster_pb2_grpc
from snapline.runtime.clock import Clock
from snapline.runtime.cores.connections import (
    RELAY_TIMEOUT_MS,
    ConnectionID,
    ConnectionLost,
    ConnectionOpened,
    Peer,
    PeerKind,
)
from snapline.runtime.cores.inbox import Incoming
from snapline.runtime.logs import Logger
from snapline.runtime.rpc.grpc_channels import COORDINATOR_METADATA_KEY, STREAM_IS_OPEN, reason_of, shared_channel
from snapline.runtime.rpc.security import Security
from snapline.runtime.timers import TimerScheduler

MAX_QUEUED_MESSAGES = 200_000
MAX_MESSAGES_PER_ENVELOPE = 1_000
LARGE_ENVELOPE_BYTES = 64 << 20
"""What has more is sent in parts, as far as it has several messages: gRPC refuses one of 256 MiB, and ends the
stream."""
RELAY_REST_MS = 60_000
"""How long a relay that did not answer is not asked again."""
CLOSE_TIMEOUT_MS = 5_000
"""How long a closed connection may take to send its last messages and to see the other side's end."""

Tell = Callable[[Any], object]


def relay_for(resource_id: ResourceID, addresses: str) -> str:
    """Which of the relays, separated by commas, this TaskManager takes: about as many take each. Empty: there are
    none."""
    relays = [address.strip() for address in addresses.split(",") if address.strip()]
    return relays[zlib.crc32(resource_id.encode()) % len(relays)] if relays else ""


class OutgoingQueue:
    """Messages that wait to be sent, taken out as envelopes: what has one session and stands together leaves
    together."""

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._waiting: deque[Fenced[Any]] = deque()
        self._closed = False

    def put(self, message: Fenced[Any]) -> bool:
        """False: the queue is full, or closed."""
        with self._condition:
            if self._closed or len(self._waiting) >= MAX_QUEUED_MESSAGES:
                return False
            self._waiting.append(message)
            self._condition.notify()
            return True

    def close(self) -> None:
        """Nothing more comes; what waits still leaves."""
        with self._condition:
            self._closed = True
            self._condition.notify()

    def abandon(self, attempt: threading.Event) -> None:
        """Whoever takes envelopes for this attempt takes no more, not even the one that it waits for."""
        with self._condition:
            attempt.set()
            self._condition.notify_all()

    def envelopes(self, attempt: threading.Event) -> Iterator[cluster_pb2.Envelope]:
        """Until the queue is closed and empty, or the attempt is abandoned; waits for more in between."""
        while True:
            with self._condition:
                while not self._waiting and not self._closed and not attempt.is_set():
                    self._condition.wait()
                if not self._waiting or attempt.is_set():
                    return
                session, messages = take_envelope(self._waiting)
            yield from _in_parts(session, messages)


def _in_parts(session: Any, messages: list[Any]) -> Iterator[cluster_pb2.Envelope]:
    """The messages as one envelope, or as several where that one would be large."""
    envelope = encode_envelope(session, messages)
    half = len(messages) // 2
    if half and envelope.ByteSize() > LARGE_ENVELOPE_BYTES:
        yield from _in_parts(session, messages[:half])
        yield from _in_parts(session, messages[half:])
    else:
        yield envelope


def take_envelope(waiting: deque[Fenced[Any]]) -> tuple[Any, list[Any]]:
    """Take the messages of one session from the front, about as many as one envelope should hold; what is for many
    tasks stays together, and tasks to be run, which may be as much as one can hold, end it."""
    session = waiting[0].leader_session_id
    messages: list[Any] = []
    room = MAX_MESSAGES_PER_ENVELOPE
    while waiting and room > 0 and waiting[0].leader_session_id == session:
        message = waiting.popleft().message
        messages.append(message)
        room -= len(message.attempt_ids) if type(message) is ForTasks else 1
        if type(message) is SubmitTasks:
            break
    return session, messages


class _RelayInUse:
    """The relay of a process, if it has one."""

    def __init__(self, address: str, timers: TimerScheduler, clock: Clock) -> None:
        self._address = address
        self._timers = timers
        self._clock = clock
        self._rests_until_ms = 0

    def pick(self) -> str:
        """Where to dial; empty: not through a relay."""
        return self._address if self._clock.now_ms() >= self._rests_until_ms else ""

    def expect_answer(self, is_there: Callable[[], bool], give_up: Callable[[], object]) -> None:
        """Call `give_up` when there is no answer in time, and let the relay rest."""

        def due() -> None:
            if not is_there():
                self._rests_until_ms = self._clock.now_ms() + RELAY_REST_MS
                give_up()

        self._timers.schedule(self._clock.now_ms() + RELAY_TIMEOUT_MS, due)


class _Connection:
    """One stream that this process has dialed, from its first attempt to its end."""

    def __init__(
        self, connection: ConnectionID, peer: Peer, relay: _RelayInUse, security: Security, tell: Tell, logger: Logger
    ) -> None:
        self.connection = connection
        self.queue = OutgoingQueue()
        self._peer = peer
        self._relay = relay
        self._security = security
        self._tell = tell
        self._logger = logger
        self._lock = threading.Lock()
        self._silent = False
        self._is_open = False
        self._call: Any = None
        self._lost_because = ""
        self._given_up = False
        """The relay, because it was silent."""
        self.thread = threading.Thread(target=self._run, name=f"snapline-{connection}", daemon=True)

    def lose(self, reason: str) -> None:
        """Break the stream; the owner is told ConnectionLost with this reason."""
        self._lost_because = reason
        self.cancel()

    def silence(self) -> None:
        """Tell the owner nothing any more."""
        with self._lock:
            self._silent = True

    def cancel(self) -> None:
        """End the stream now, whatever waits to be sent."""
        self.queue.close()
        call = self._call
        if call is not None:
            call.cancel()

    def _say(self, event: Any) -> None:
        with self._lock:
            if not self._silent:
                self._tell(event)

    def _run(self) -> None:
        relay = self._relay.pick()
        reason = self._dial(relay)
        if relay and not self._is_open and not self._silent:
            if not self._given_up:
                self._say_without(relay, reason)
            reason = self._dial("")
        self.queue.close()
        self._say(ConnectionLost(self.connection, self._lost_because or reason))

    def _give_up(self, relay: str, call: grpc.Call) -> None:
        self._given_up = True
        # said here and not after the call: the owner may have closed this connection by then, and the next one goes
        # around the relay
        self._say_without(relay, f"no answer within {RELAY_TIMEOUT_MS} ms")
        call.cancel()

    def _say_without(self, relay: str, reason: str) -> None:
        self._logger.warning("dialing without the relay", relay=relay, reason=reason)

    def _dial(self, relay: str) -> str:
        """Open the stream and read it until it is over; why it is."""
        attempt = threading.Event()
        try:
            with shared_channel(relay or self._peer.address, self._security) as channel:
                try:
                    return self._stream(channel, relay, attempt)
                finally:
                    if self._call is not None:
                        self._call.cancel()  # other streams use the channel
        except (grpc.RpcError, WireError, ValueError) as error:
            return reason_of(error)
        except Exception as error:  # an answer is owed, whatever it was
            self._logger.error("connection broke down", connection=self.connection, exc_info=error)
            return reason_of(error)
        finally:
            # gRPC's thread that waits for the next envelope must not take it from another attempt
            self.queue.abandon(attempt)

    def _stream(self, channel: grpc.Channel, relay: str, attempt: threading.Event) -> str:
        stub: Any
        if self._peer.kind is PeerKind.RESOURCE_MANAGER:
            stub = cluster_pb2_grpc.ResourceManagerGatewayStub(channel)
        else:
            stub = cluster_pb2_grpc.JobMasterGatewayStub(channel)
        metadata = self._security.metadata
        if relay:
            metadata = (*metadata, (COORDINATOR_METADATA_KEY, self._peer.address))
        call = self._call = stub.Connect(self.queue.envelopes(attempt), metadata=metadata)
        if relay:
            self._relay.expect_answer(lambda: self._is_open or attempt.is_set(), lambda: self._give_up(relay, call))
        opened = {(str(key), str(value)) for key, value in call.initial_metadata() or ()}
        if opened.issuperset(STREAM_IS_OPEN):
            self._is_open = True
            self._say(ConnectionOpened(self.connection))
        for envelope in call:
            session, messages = decode_envelope(envelope)
            self._say(Incoming(self.connection, session, messages))
        return "closed by the other side"


class Dialer:
    """All connections that a process dialed. Methods may be called from any thread and never wait."""

    def __init__(
        self, security: Security, timers: TimerScheduler, clock: Clock, logger: Logger, relay: str = ""
    ) -> None:
        """`relay`: host:port of the one that connections are dialed through while it is there; empty: none."""
        self._security = security
        self._relay = _RelayInUse(relay, timers, clock)
        self._timers = timers
        self._clock = clock
        self._logger = logger
        self._lock = threading.Lock()
        self._open: dict[ConnectionID, _Connection] = {}
        self._closing: set[_Connection] = set()

    def open(self, connection: ConnectionID, peer: Peer, tell: Tell) -> None:
        """Dial; `tell` gets ConnectionOpened or ConnectionLost, then Incoming."""

        def told(event: Any) -> None:
            if type(event) is ConnectionLost:
                with self._lock:
                    self._open.pop(connection, None)
            tell(event)

        dialed = _Connection(connection, peer, self._relay, self._security, told, self._logger)
        with self._lock:
            self._open[connection] = dialed
        dialed.thread.start()

    def send(self, connection: ConnectionID, message: Fenced[Any]) -> None:
        """Put a message on its way. Dropped when the connection is gone."""
        dialed = self._open.get(connection)
        if dialed is not None and not dialed.queue.put(message):
            dialed.lose(f"more than {MAX_QUEUED_MESSAGES} messages wait to be sent: the other side does not read")

    def close(self, connection: ConnectionID) -> None:
        """Close after everything sent before has left; nothing is told any more."""
        with self._lock:
            dialed = self._open.pop(connection, None)
            if dialed is None:
                return
            self._closing = {other for other in self._closing if other.thread.is_alive()} | {dialed}
        dialed.silence()
        dialed.queue.close()
        self._timers.schedule(self._clock.now_ms() + CLOSE_TIMEOUT_MS, dialed.cancel)

    def shutdown(self) -> None:
        """Close everything and wait until all threads have ended."""
        with self._lock:
            everything = [*self._open.values(), *self._closing]
            self._open.clear()
        for dialed in everything:
            dialed.silence()
            dialed.queue.close()
        for dialed in everything:
            dialed.thread.join(CLOSE_TIMEOUT_MS / 2000)
        for dialed in everything:
            dialed.cancel()
            dialed.thread.join(CLOSE_TIMEOUT_MS / 1000)
