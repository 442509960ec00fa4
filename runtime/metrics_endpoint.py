"""The HTTP server of `/metrics`, which anybody may reach.

Decides who is answered and how much one caller can take: a cluster's token or TLS is asked for as on its other ports, a
request has a few seconds, and so many connections are served at a time; one more is closed at once. What is shown is
decided by whoever makes the application.
"""

from __future__ import annotations

import contextlib
import io
import socket
import socketserver
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from snapline.runtime.cores.credentials import CredentialRefused, Role
from snapline.runtime.logs import Logger
from snapline.runtime.rpc.exposure import is_loopback, names_this_machine
from snapline.runtime.rpc.security import Security
from snapline.runtime.rpc.tcp_connections import family_of

MAX_CONNECTIONS = 16
"""Served at a time, each on a thread of its own; Prometheus needs one."""
REQUEST_SECONDS = 5.0
"""How long the handshake and the request of a connection may take."""
CONNECTION_SECONDS = 10.0
"""How long a connection may take from its handshake to the last byte of its answer; Prometheus waits no longer."""
MAX_OF_HOST = 8
"""Connections of one host at a time: the rest of all is for others."""
READERS = frozenset({Role.ADMINISTRATOR, Role.CLIENT})

Application = Callable[[dict[str, Any], Any], Iterable[bytes]]


class MetricsEndpoint(socketserver.ThreadingMixIn, WSGIServer):
    """Serves one application until `shutdown`."""

    daemon_threads = True
    request_queue_size = MAX_CONNECTIONS

    def __init__(self, host: str, port: int, application: Application, security: Security, logger: Logger) -> None:
        """Listen at once. Raises OSError. `application`: prometheus-client's. `logger` is told what it cannot write."""
        self._hosts: Counter[str] = Counter()
        """How many connections each host has at present."""
        self._hosts_lock = threading.Lock()
        self._waiting: dict[int, tuple[socket.socket, float]] = {}
        """Connections by the thread that serves them, and until when: first for the request, then for the answer."""
        self._security = security
        self._logger = logger
        self.address_family = family_of(host)
        super().__init__((host, port), _Handler)
        self.set_app(self._guarded(application))

    def server_bind(self) -> None:
        """Listen, and ask no server of names what the address is called: one that does not answer would hold up a
        coordinator that is to lead."""
        socketserver.TCPServer.server_bind(self)
        host, port = self.server_address[:2]
        self.server_name, self.server_port = str(host), int(port)
        self.setup_environ()

    def get_request(self) -> tuple[Any, Any]:
        """Accept a connection, whose handshake is the business of its own thread."""
        accepted, address = super().get_request()
        accepted.settimeout(REQUEST_SECONDS)
        return accepted, address

    def process_request(self, request: Any, client_address: Any) -> None:
        """Serve it on a thread, unless too many are served."""
        host = str(client_address[0])
        with self._hosts_lock:
            served = self._hosts.total() < MAX_CONNECTIONS and self._hosts[host] < MAX_OF_HOST
            if served:
                self._hosts[host] += 1
        if not served:
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except BaseException:  # no thread could be started
            self._forget(host)
            raise

    def _forget(self, host: str) -> None:
        with self._hosts_lock:
            self._hosts -= Counter([host])

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Serve one connection to its end."""
        thread, watched = threading.get_ident(), None
        try:
            watched = request.dup()
            self._waiting[thread] = watched, time.monotonic() + REQUEST_SECONDS
            security = self._security.current()
            if security.tls:
                request = security.server_context().wrap_socket(request, server_side=True)
            super().process_request_thread(request, client_address)
        except OSError:  # no file is left, or no handshake, or it took too long
            self.shutdown_request(request)
        finally:
            self._waiting.pop(thread, None)
            if watched is not None:
                watched.close()
            self._forget(str(client_address[0]))

    def request_has_come(self) -> None:
        """Give the calling thread, whose request is there, what is left of the time of its connection."""
        watched, until = self._waiting[threading.get_ident()]
        self._waiting[threading.get_ident()] = watched, until - REQUEST_SECONDS + CONNECTION_SECONDS

    def service_actions(self) -> None:
        """End what is waited for too long; the server's own thread comes here twice a second."""
        now = time.monotonic()
        for watched, until in list(self._waiting.values()):
            if now >= until:
                with contextlib.suppress(OSError):  # it has ended by itself
                    watched.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Somebody who goes away in the middle is no news."""

    def _guarded(self, application: Application) -> Application:
        from prometheus_client.exposition import choose_encoder

        is_private = not self._security.token and is_loopback(str(self.server_address[0]))

        def answer(environment: dict[str, Any], start: Any) -> Iterable[bytes]:
            given = str(environment.get("HTTP_AUTHORIZATION", "")).removeprefix("Bearer ")
            try:
                identity = self._security.identify_token(given)
            except CredentialRefused as error:
                return _line(start, "401 Unauthorized", f"{error}; send it as Authorization: Bearer TOKEN")
            if identity.role not in READERS or identity.job:
                return _line(start, "403 Forbidden", f"a {identity} may not read metrics")
            host = str(environment.get("HTTP_HOST", "127.0.0.1"))
            if is_private and not names_this_machine(host):  # a site whose name leads here reads them in a browser
                return _line(start, "403 Forbidden", "ask by an address or as localhost")
            try:
                choose_encoder(environment.get("HTTP_ACCEPT", ""))
            except Exception as error:  # prometheus-client breaks at some versions that a request may ask for
                return _line(start, "400 Bad Request", f"the request makes no sense: {type(error).__name__}")
            try:
                return application(environment, start)
            except Exception as error:  # a figure that cannot be written, which is no fault of who asks
                self._logger.warning("metrics could not be written", reason=f"{type(error).__name__}: {error}")
                return _line(start, "500 Internal Server Error", "the metrics could not be written; the log says why")

        return answer


def _line(start: Any, status: str, said: str) -> list[bytes]:
    start(status, [("Content-Type", "text/plain")])
    return [f"{said}\n".encode()]


class _Handler(WSGIRequestHandler):
    """One request, without a line in the log."""

    server: MetricsEndpoint

    def parse_request(self) -> bool:
        """Read the head of the request, after which the answer has its time."""
        came = super().parse_request()
        self.server.request_has_come()
        return came

    def get_stderr(self) -> Any:
        """Take the traceback that wsgiref writes about who reads no answer, and drop it."""
        return io.StringIO()

    def log_message(self, format: str, *arguments: Any) -> None:  # noqa: A002 - the name is the base class's
        """Write no line: a scrape is no news."""
