"""The server of the page: uvicorn on a thread of its own, in a coordinator or as `snapline ui`.

TLS is on when the cluster has it: then browsers show a certificate of the cluster's authority, as all others do.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from snapline.dataflow.config import (
    WEB_BIND_ADDRESS,
    WEB_PORT,
    Configuration,
)
from snapline.dataflow.errors import SnaplineError
from snapline.runtime.logs import Logger
from snapline.runtime.rpc.security import Security
from snapline.runtime.rpc.sender_limits import ConnectionLimits, RefusalLog
from snapline.runtime.rpc.tcp_connections import family_of

if TYPE_CHECKING:
    import uvicorn

STOP_SECONDS = 5.0
LOOPBACK = ("127.0.0.1", "::1", "localhost")


class _CurrentContext(ssl.SSLContext):
    """What each connection is shown and asked for: the certificates that lie in the files when it comes."""

    _security: Security
    _made: tuple[Security, ssl.SSLContext]

    def __new__(cls, security: Security) -> _CurrentContext:
        context = super().__new__(cls, ssl.PROTOCOL_TLS_SERVER)
        context._security = security
        context._made = (security, security.server_context())
        return context

    def wrap_bio(self, *arguments: Any, **named: Any) -> ssl.SSLObject:
        """Begin a connection, as asyncio asks of its context."""
        now = self._security.current()
        if now != self._made[0]:
            self._made = (now, now.server_context())
        return self._made[1].wrap_bio(*arguments, **named)


class PageServer:
    """One server; `start` it, and `stop` it."""

    def __init__(
        self, configuration: Configuration, find_leader: Callable[[], str], logger: Logger | None = None
    ) -> None:
        """`find_leader`: host:port of the coordinator that leads. `logger`: hears of what is refused. Raises
        SnaplineError for files that cannot be read, and where the libraries are missing."""
        try:
            import uvicorn

            from snapline.coordinator.rpc.coordinator_stub import CoordinatorStub
            from snapline.coordinator.web.page_app import PageApp
            from snapline.coordinator.web.page_connections import MAX_CONNECTIONS, PageLoop, timed_protocol, told_once
        except ImportError as error:
            raise SnaplineError(f"the page needs the extra web ({error}): pip install 'snapline[web]'") from None
        security = Security.from_configuration(configuration)
        app = PageApp(CoordinatorStub(find_leader, security), security, configuration)
        refusals = RefusalLog(logger) if logger else None
        application, http = told_once(app.application, refusals), timed_protocol(refusals)
        config = uvicorn.Config(application, http=http, log_config=None, access_log=False, lifespan="on", ws="none")
        logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)  # it names no sender, and knows no measure
        config.timeout_graceful_shutdown = 1
        if security.tls:
            config.load()
            config.ssl = _CurrentContext(security)
        self._scheme = "https" if security.tls else "http"
        self._server: uvicorn.Server = uvicorn.Server(config)
        self._make_loop = PageLoop
        self._thread: threading.Thread | None = None
        self._socket: socket.socket | None = None
        self._logger, self._most = logger, MAX_CONNECTIONS
        self._limits: ConnectionLimits | None = None

    def start(self, host: str, port: int) -> str:
        """Listen, and return the address of the page. Raises SnaplineError when the port is taken."""
        listening = socket.socket(family_of(host), socket.SOCK_STREAM)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listening.bind((host, port))
            listening.listen(128)
        except OSError as error:
            listening.close()
            reason = (error.strerror or str(error)).lower()
            raise SnaplineError(f"cannot serve the page on {host}:{port}: {reason}; choose another web.port") from None
        self._socket = listening
        self._thread = threading.Thread(target=self._run, args=(listening,), name="snapline-page", daemon=True)
        self._thread.start()
        taken = listening.getsockname()[1]
        if self._logger is not None:
            self._limits = ConnectionLimits(taken, self._logger, self._most)
            self._limits.start()
        return f"{self._scheme}://{host}:{taken}"

    def _run(self, listening: socket.socket) -> None:
        with asyncio.Runner(loop_factory=self._make_loop) as runner:
            runner.run(self._server.serve([listening]))

    def stop(self) -> None:
        """Stop the server and its thread. Idempotent."""
        self._server.should_exit = True
        if self._limits is not None:
            self._limits.stop()
            self._limits = None
        if self._thread is not None:
            self._thread.join(STOP_SECONDS)
        if self._socket is not None:
            self._socket.close()


def start_page(configuration: Configuration, find_leader: Callable[[], str], logger: Logger) -> PageServer | None:
    """Serve the page of a coordinator as the settings say. One that nobody has asked for by `web.port` gives way: to a
    port that is taken, and to libraries that are missing; the log says so. Raises SnaplineError otherwise."""
    port, host = configuration.get_option(WEB_PORT), configuration.get_option(WEB_BIND_ADDRESS)
    if port < 0:
        return None
    check_exposure(configuration, host)
    try:
        server = PageServer(configuration, find_leader, logger)
        address = server.start(host, port)
    except SnaplineError as error:
        if WEB_PORT.key in configuration:
            raise
        logger.warning("no page is served", reason=str(error))
        return None
    logger.info("the page is served", address=address)
    return server


def check_exposure(configuration: Configuration, host: str) -> None:
    """Raises SnaplineError for a page that everybody could use."""
    security = Security.from_configuration(configuration)
    if host not in LOOPBACK and not security.token and not security.tls:
        raise SnaplineError(
            f"web.bind-address = {host} shows the page to everybody who reaches it, and lets them cancel jobs: set security.auth.token or "
            "TLS, or leave it at 127.0.0.1"
        )
