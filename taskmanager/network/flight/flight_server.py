"""The serving end of the exchange: one Flight server and one socket of the host per TaskManager, one stream per peer
and edge, and one for each program outside that takes part in a task with rows.

Decides who may connect (with the cluster's token, and with its certificates, when there are such; a program with the
ticket that the coordinator gave it, which opens nothing else) and how the server
ends: streams say goodbye, whoever does not hang up is cut off, so that ending takes a bounded time whatever the peers
do. It decides nothing about data. Flight is imported when a server starts, never before: the process may still fork.
"""

from __future__ import annotations

import hmac
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from snapline.dataflow.errors import SnaplineError
from snapline.runtime.cores.senders import host_of
from snapline.runtime.logs import Logger, silent_logger
from snapline.runtime.rpc.sender_limits import RefusalLog
from snapline.runtime.rpc.tcp_connections import (
    is_free,
    notice_lost_hosts,
    reset_connections,
    stop_listening,
)
from snapline.taskmanager.network.flight.exchange_newcomers import ExchangeNewcomers
from snapline.taskmanager.network.flight.exchange_security import ExchangeSecurity
from snapline.taskmanager.network.flight.frames import ProtocolError, edge_of_descriptor
from snapline.taskmanager.network.flight.outbound_stream import OpenServedChannel, OutboundStream
from snapline.taskmanager.network.flight.program_stream import COMMAND, ProgramStream
from snapline.taskmanager.network.host.host_server import HostServer
from snapline.taskmanager.network.host.socket_messages import SocketReader, SocketWriter
from snapline.taskmanager.programs.offered_places import TICKET_OPENS_NOTHING, OfferedPlaces

TICKET = "Ticket "
"""How the header `authorization` of a program begins; its ticket follows."""
GOODBYE_SECONDS = 0.5
"""How long peers have to hang up."""
SHUTDOWN_SECONDS = 1.0
_CALLER = "a caller of Flight"
"""Flight does not say who it is before it is let in."""
MAX_STREAMS = 4096
"""Streams of all peers and programs together have this bound: each takes a thread or two. A TaskManager of a job has
one for each edge and each TaskManager that reads it."""
RENEW_SECONDS = 5.0
"""How often is looked for new certificates."""


class ExchangeError(SnaplineError):
    """The exchange of a TaskManager cannot start."""


class ExchangeServer:
    """The Flight server of one process while it runs."""

    def __init__(
        self,
        host: str,
        port: int,
        security: ExchangeSecurity,
        open_channel: OpenServedChannel,
        programs: OfferedPlaces | None = None,
        *,
        advertised_host: str = "",
        by_host_sockets: bool = False,
        logger: Logger | None = None,
    ) -> None:
        """`by_host_sockets`: TaskManagers of this host may read by its sockets, under the advertised address. `logger`
        is told who was not let in."""
        self._refusals = RefusalLog(logger or silent_logger())
        self._refusing = threading.Lock()
        self._open_channel = open_channel
        self._programs = programs or OfferedPlaces()
        self._security = security
        self._changed = threading.Condition()
        self._streams: set[OutboundStream | ProgramStream] = set()
        self._closing = ""
        if port and not is_free(host, port):
            raise ExchangeError(f"cannot listen on {host}:{port}: the port is in use; free it or configure another one")
        self._host = host
        self._security = security.current()
        self._server = _start_server(self, security.location(host, port), security)
        self.port: int = self._server.port
        self._newcomers = ExchangeNewcomers(self.port)
        self._newcomers.start()
        self.address = _address(advertised_host or host, self.port)
        self._on_host: HostServer | None = None
        if by_host_sockets:
            self._on_host = HostServer(self.address, security, self.serve_on_host, self.refused)
        self._renewing: threading.Thread | None = None
        if security.ca and security.source is not None:
            self._renewing = threading.Thread(target=self._renew, name="exchange-certificates", daemon=True)
            self._renewing.start()

    def is_opened_by(self, ticket: str) -> bool:
        """Whether a program with this ticket may try a place here. Called from any thread."""
        return bool(self._programs.opened_by(ticket))

    def refused(self, who: str, reason: str) -> None:
        """Log that somebody was not let in. Called from any thread."""
        with self._refusing:
            self._refusals.write(who, reason)

    def _renew(self) -> None:
        """Show new certificates when there are some. Flight cannot change those of a server, so that another one
        listens on the port instead, and the one before serves its streams to their end. Who connects between the two
        tries again, as it does while a TaskManager starts."""
        while True:
            with self._changed:
                self._changed.wait_for(lambda: bool(self._closing), RENEW_SECONDS)
                if self._closing:
                    return
                now = self._security.current()
                if (now.ca, now.certificate, now.key) == (
                    self._security.ca,
                    self._security.certificate,
                    self._security.key,
                ):
                    continue
                stop_listening(self.port)
                try:
                    before, self._server = self._server, _start_server(self, now.location(self._host, self.port), now)
                except ExchangeError:  # the next look finds the same
                    continue
                self._security = now
            threading.Thread(target=before.shutdown, name="exchange-shutdown", daemon=True).start()

    def serve(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
        """One stream, on Flight's thread for it."""
        from pyarrow import flight

        peer_port = context.peer().rpartition(":")[2]
        stream: OutboundStream | ProgramStream
        if descriptor.command == COMMAND:
            stream = self._stream_of_program(int(peer_port) if peer_port.isdecimal() else 0)
        elif shows_ticket(context):
            raise flight.FlightUnauthorizedError("a ticket opens the stream of its program alone")
        else:
            try:
                edge_id = edge_of_descriptor(descriptor.command)
                stream = OutboundStream(edge_id, self._open_channel, partial(self._reset, peer_port))
            except ProtocolError as error:
                raise flight.FlightServerError(str(error)) from None
        try:
            with self._counted(stream):
                self._newcomers.let_in(context.peer())  # who is refused stays one, and its connection ends
                if peer_port.isdecimal():
                    notice_lost_hosts(self.port, int(peer_port))
                stream.serve(reader, writer)
        except ProtocolError as error:
            self.refused(host_of(context.peer()), f"its stream was ended: {error}")
            raise flight.FlightServerError(str(error)) from None

    def serve_on_host(self, edge_id: str, reader: SocketReader, writer: SocketWriter) -> None:
        """One stream by a socket of this host, on its thread."""
        stream = OutboundStream(edge_id, self._open_channel)
        with self._counted(stream):
            stream.serve(reader, writer, in_place=True)

    @contextmanager
    def _counted(self, stream: OutboundStream | ProgramStream) -> Iterator[None]:
        """The stream is told when the server ends. Raises ProtocolError where there are too many."""
        with self._changed:
            if len(self._streams) >= MAX_STREAMS:
                raise ProtocolError(f"{MAX_STREAMS} streams are served already, and no more at a time")
            self._streams.add(stream)
            closing = self._closing
        if closing:
            stream.shut_down(closing)
        try:
            yield
        finally:
            with self._changed:
                self._streams.discard(stream)
                self._changed.notify_all()

    def _stream_of_program(self, peer_port: int) -> ProgramStream:
        return ProgramStream(self._programs, lambda: reset_connections(self.port, peer_port) if peer_port else 0)

    def _reset(self, peer_port: str) -> None:
        if peer_port.isdecimal():
            reset_connections(self.port, int(peer_port))

    @property
    def number_of_streams(self) -> int:
        """Streams that peers read at present."""
        with self._changed:
            return len(self._streams)

    def close(self, cause: str) -> bool:
        """End all streams and the server. Returns whether everything has ended."""
        with self._changed:
            self._closing = cause
            self._changed.notify_all()
            streams = list(self._streams)
        self._newcomers.stop()
        if self._on_host is not None:
            self._on_host.stop_listening()
        for stream in streams:
            stream.shut_down(cause)
        if not self._wait_for_streams(GOODBYE_SECONDS):
            reset_connections(self.port)
            if self._on_host is not None:
                self._on_host.close()
            self._wait_for_streams(SHUTDOWN_SECONDS)
        if self._on_host is not None:
            self._on_host.close()
        if self._renewing is not None:
            self._renewing.join()
        ending = threading.Thread(target=self._server.shutdown, name="exchange-shutdown", daemon=True)
        ending.start()
        ending.join(SHUTDOWN_SECONDS / 2)
        if ending.is_alive():  # somebody connected between the goodbye and now
            reset_connections(self.port)
            ending.join(SHUTDOWN_SECONDS / 2)
        return not ending.is_alive()

    def _wait_for_streams(self, seconds: float) -> bool:
        deadline = time.monotonic() + seconds
        with self._changed:
            while self._streams and (left := deadline - time.monotonic()) > 0:
                self._changed.wait(left)
            return not self._streams


def _address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def shows_ticket(context: Any) -> bool:
    """Whether the caller was let in with a ticket, and not with the cluster's token."""
    middleware = context.get_middleware("token")
    return middleware is not None and middleware.is_program


def _start_server(exchange: ExchangeServer, location: str, security: ExchangeSecurity) -> Any:
    from pyarrow import flight

    class NoMiddleware(flight.ServerMiddleware):  # type: ignore[misc]
        """Middleware of Flight that adds nothing to answers, and knows who calls."""

        def __init__(self, *, is_program: bool) -> None:
            self.is_program = is_program

    class TokenCheck(flight.ServerMiddlewareFactory):  # type: ignore[misc]
        """Looks at the headers of a call before anything else happens."""

        def start_call(self, info: Any, headers: Any) -> Any:
            given = next(iter(headers.get("authorization", ())), "")
            if isinstance(given, bytes):
                given = given.decode(errors="replace")
            if given.startswith(TICKET):
                if not exchange.is_opened_by(given.removeprefix(TICKET)):
                    exchange.refused(_CALLER, TICKET_OPENS_NOTHING)
                    raise flight.FlightUnavailableError(TICKET_OPENS_NOTHING)  # the program asks its coordinator again
                return NoMiddleware(is_program=True)
            accepted = [f"Bearer {token}".encode() for token in security.current().tokens]
            if not any(hmac.compare_digest(given.encode(), each) for each in accepted):
                exchange.refused(_CALLER, "wrong or missing token")
                raise flight.FlightUnauthenticatedError("wrong or missing token: see security.auth.token")
            return NoMiddleware(is_program=False)

    class Server(flight.FlightServerBase):  # type: ignore[misc]
        """Only streams; every other Flight call is not implemented."""

        def do_exchange(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
            exchange.serve(context, descriptor, reader, writer)

    try:
        return Server(
            location, middleware={"token": TokenCheck()} if security.tokens else None, **security.server_options
        )
    except Exception as error:
        raise ExchangeError(f"the data exchange cannot listen on {location.partition('://')[2]}: {error}") from error
