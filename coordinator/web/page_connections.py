"""What one connection to the page may do: a handshake and a request come within some seconds, or the connection goes.

uvicorn waits for the rest of a request as long as the other side likes, so a few thousand half requests would take the
coordinator's files, with all of its jobs. How many connections one host may have is the business of `sender_limits`.
What the application breaks at is one line as well. Requests are read by h11, which holds 64 KiB of a head at most; the
parser that uvicorn would take where it is installed holds all that comes.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from snapline.runtime.rpc.sender_limits import RefusalLog

REASON_LENGTH_MAX = 300
MAX_CONNECTIONS = 256
"""How many connections one host may have to the page."""
REQUEST_SECONDS = 10.0
"""Within which the head of a request has to be there, and before that a handshake."""

MAX_HANDSHAKES_OF_HOST = 64
"""Handshakes of one host at a time; who comes meanwhile is closed at once."""
MAX_HANDSHAKES = 256
"""So many of all hosts there are at a time."""
MAX_WAITING_BYTES = 64 << 10
"""What may have come of further requests before the answer to one; browsers send none so early."""
ANSWER_SECONDS = 30.0
"""Within which an answer has to be read that does not go out at once."""
MAX_UNREAD_BYTES = 64 << 20
"""What answers of all connections may have together that is not read yet."""

_SELECTOR_LOOP: Any = asyncio.SelectorEventLoop
Application = Callable[[Any, Any, Any], Awaitable[None]]


class PageLoop(_SELECTOR_LOOP):  # type: ignore[misc]
    """A loop whose servers wait for a handshake as long as for a request, where asyncio waits for a minute, and for a
    few at a time, because asyncio takes 300 KB for each before it knows who comes."""

    handshake_s = REQUEST_SECONDS

    def __init__(self) -> None:
        super().__init__()
        self._handshakes: Counter[str] = Counter()

    async def create_server(self, *arguments: Any, **named: Any) -> Any:
        """Listen, with that limit where there is TLS."""
        if named.get("ssl") is not None:
            named["ssl_handshake_timeout"] = self.handshake_s
        return await super().create_server(*arguments, **named)

    def _make_ssl_transport(self, rawsock: Any, protocol: Any, sslcontext: Any, waiter: Any, **named: Any) -> Any:
        """Begin a handshake; asyncio calls this for each connection, and drops those for which it raises an error."""
        try:
            host = str(rawsock.getpeername()[0])
            if self._handshakes[host] >= MAX_HANDSHAKES_OF_HOST or self._handshakes.total() >= MAX_HANDSHAKES:
                raise ConnectionAbortedError("too many handshakes at a time")
        except OSError:
            rawsock.close()
            raise
        self._handshakes[host] += 1
        waiter.add_done_callback(partial(self._end_handshake, host))
        return super()._make_ssl_transport(rawsock, protocol, sslcontext, waiter, **named)

    def _end_handshake(self, host: str, waiter: asyncio.Future[None]) -> None:
        """Count one less. The error of one that failed holds the frame that waits for it, and that one the error, with
        the buffers of the connection, in Pythons before 3.12.2: so it forgets the frame when that has heard of it."""
        self._handshakes[host] -= 1
        if not self._handshakes[host]:
            del self._handshakes[host]
        error = None if waiter.cancelled() else waiter.exception()
        if error is not None:
            self.call_soon(error.with_traceback, None)


def told_once(application: Application, refusals: RefusalLog | None) -> Application:
    """Return the application with one line, about each sender once a second, for a request that breaks it; the answer
    that says so, without a reason, has been sent by then. `refusals`: who is told; None: nobody."""

    async def answer(scope: Any, receive: Any, send: Any) -> None:
        try:
            await application(scope, receive, send)
        except Exception as error:
            if scope["type"] != "http":
                raise
            if refusals is not None:
                client = scope.get("client") or ("",)
                reason = f"the page breaks at it: {type(error).__name__}: {error}"
                refusals.write(client[0], reason[:REASON_LENGTH_MAX], path=scope["path"][:REASON_LENGTH_MAX])

    return answer


def timed_protocol(refusals: RefusalLog | None, request_s: float = REQUEST_SECONDS) -> type[asyncio.Protocol]:
    """Return uvicorn's protocol with that limit. `refusals`: who is told of what is no HTTP; None: nobody."""
    base: Any = H11Protocol
    unread: set[Any] = set()
    """The connections whose answers do not go out at once."""

    class TimedProtocol(base):  # type: ignore[misc]
        """A connection of which something has to come in time."""

        def connection_made(self, transport: asyncio.Transport) -> None:
            super().connection_made(transport)
            self._answered: Any = None
            self._look = self.loop.call_later(request_s, self._close_if_silent)
            self._unread: Any = None

        def connection_lost(self, exc: Exception | None) -> None:
            self._look.cancel()
            self._end_wait()
            super().connection_lost(exc)

        def _close_if_silent(self) -> None:
            """Close it, unless a request is being answered, or was begun since the last look."""
            cycle = self.cycle
            if cycle is None or (cycle is self._answered and cycle.response_complete):
                self.transport.abort()
                return
            self._answered = cycle
            self._look = self.loop.call_later(request_s, self._close_if_silent)

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            if len(self.conn.trailing_data[0]) > MAX_WAITING_BYTES and not self.transport.is_closing():
                self._tell("too many requests wait that came before the answer to another one")
                self.transport.abort()

        def send_400_response(self, msg: str) -> None:
            self._tell("what came to the page is no HTTP")
            try:
                super().send_400_response(msg)
            except h11.LocalProtocolError:  # an answer has begun, or may have no text
                self.transport.close()

        def pause_writing(self) -> None:
            super().pause_writing()
            self._unread = self.loop.call_later(ANSWER_SECONDS, self.drop, "an answer was not read in time")
            unread.add(self)
            while sum(each.unread_bytes for each in unread) > MAX_UNREAD_BYTES:
                by_host: Counter[str] = Counter()
                for each in unread:
                    by_host[each.host] += each.unread_bytes
                most = by_host.most_common(1)[0][0]
                largest = max((each for each in unread if each.host == most), key=lambda each: each.unread_bytes)
                largest.drop("too much is not read of answers")

        def resume_writing(self) -> None:
            self._end_wait()
            super().resume_writing()

        def _end_wait(self) -> None:
            unread.discard(self)
            if self._unread is not None:
                self._unread.cancel()
                self._unread = None

        @property
        def host(self) -> str:
            """Who reads the answer, or does not."""
            return self.client[0] if self.client else ""

        @property
        def unread_bytes(self) -> int:
            """What has not gone out yet."""
            return int(self.transport.get_write_buffer_size())

        def drop(self, reason: str) -> None:
            """Close the connection at once, and forget what was to be sent."""
            self._end_wait()
            self._tell(reason)
            self.transport.abort()

        def _tell(self, reason: str) -> None:
            if refusals is not None:
                refusals.write(self.host, reason)

    return TimedProtocol
