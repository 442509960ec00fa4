"""The dialing side of connections: one gRPC stream per connection, on two threads of its own.

Performs OpenConnection, Send and CloseConnection of `runtime.connections` and answers with ConnectionOpened, ConnectionLost
and `Incoming`, told to the owner of the connection. Decides nothing about retries: that is the core's registration. A
TaskManager has a handful of connections, so threads are simpler here than an event loop; the serving side, with
thousands, is in `coordinator.rpc`.

What is sent while the stream is busy waits in a queue and leaves as one envelope. A queue that grows past its bound means
that the other side does not read any more: the connection counts as lost.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import grpc

from dataflow.messages import Fenced
from dataflow.wire import WireError, decode_envelope, encode_envelope
from protos import cluster_pb2, cluster_pb2_grpc
from runtime.actor import Incoming
from runtime.clock import Clock
from runtime.connections import ConnectionID, ConnectionLost, ConnectionOpened, Peer, PeerKind
from runtime.grpc_channels import STREAM_IS_OPEN, Security, open_channel, reason_of
from runtime.logs import Logger
from runtime.timers import TimerService

MAX_QUEUED_MESSAGES = 200_000
MAX_MESSAGES_PER_ENVELOPE = 1_000
CLOSE_TIMEOUT_MS = 5_000
"""How long a closed connection may take to send its last messages and to see the other side's end."""

Tell = Callable[[Any], object]


class OutgoingQueue:
    """Messages that wait to be sent, taken out as envelopes: what has one session and stands together leaves together."""

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

    def __iter__(self) -> Iterator[cluster_pb2.Envelope]:
        """Envelopes until the queue is closed and empty; waits for more in between."""
        while True:
            with self._condition:
                while not self._waiting and not self._closed:
                    self._condition.wait()
                if not self._waiting:
                    return
                session, messages = take_envelope(self._waiting)
            yield encode_envelope(session, messages)


def take_envelope(waiting: deque[Fenced[Any]]) -> tuple[Any, list[Any]]:
    """Take the messages of one session from the front, at most as many as one envelope may hold."""
    session = waiting[0].leader_session_id
    messages: list[Any] = []
    while waiting and len(messages) < MAX_MESSAGES_PER_ENVELOPE and waiting[0].leader_session_id == session:
        messages.append(waiting.popleft().message)
    return session, messages


class _Connection:
    """One dialed stream."""

    def __init__(self, connection: ConnectionID, peer: Peer, security: Security, tell: Tell, logger: Logger) -> None:
        self.connection = connection
        self.queue = OutgoingQueue()
        self._peer = peer
        self._security = security
        self._tell = tell
        self._logger = logger
        self._lock = threading.Lock()
        self._silent = False
        self._call: Any = None
        self._lost_because = ""
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
        """End the stream now."""
        self.queue.close()
        call = self._call
        if call is not None:
            call.cancel()

    def _say(self, event: Any) -> None:
        with self._lock:
            if not self._silent:
                self._tell(event)

    def _run(self) -> None:
        channel = open_channel(self._peer.address, self._security)
        try:
            reason = self._stream(channel)
        except (grpc.RpcError, WireError, ValueError) as error:
            reason = reason_of(error)
        except Exception as error:  # an answer is owed, whatever it was
            self._logger.error("connection broke down", connection=self.connection, exc_info=error)
            reason = reason_of(error)
        finally:
            self.queue.close()
            channel.close()
        self._say(ConnectionLost(self.connection, self._lost_because or reason))

    def _stream(self, channel: grpc.Channel) -> str:
        stub: Any
        if self._peer.kind is PeerKind.RESOURCE_MANAGER:
            stub = cluster_pb2_grpc.ResourceManagerGatewayStub(channel)
        else:
            stub = cluster_pb2_grpc.JobMasterGatewayStub(channel)
        call = self._call = stub.Connect(iter(self.queue), metadata=self._security.metadata)
        opened = {(str(key), str(value)) for key, value in call.initial_metadata() or ()}
        if opened.issuperset(STREAM_IS_OPEN):
            self._say(ConnectionOpened(self.connection))
        for envelope in call:
            session, messages = decode_envelope(envelope)
            self._say(Incoming(self.connection, session, messages))
        return "closed by the other side"


class Dialer:
    """All connections that a process dialed. Methods may be called from any thread and never wait."""

    def __init__(self, security: Security, timers: TimerService, clock: Clock, logger: Logger) -> None:
        self._security = security
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

        dialed = _Connection(connection, peer, self._security, told, self._logger)
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
