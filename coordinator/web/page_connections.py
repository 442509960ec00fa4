"""What one connection to the page may do: a request comes within some seconds, or the connection goes.

uvicorn waits for the rest of a request as long as the other side likes, so a few thousand half requests would take the
coordinator's files, with all of its jobs. How many connections one host may have is the business of `sender_limits`.
"""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.auto import AutoHTTPProtocol

from snapline.runtime.rpc.sender_limits import RefusalLog

MAX_CONNECTIONS = 256
"""How many connections one host may have to the page."""
REQUEST_SECONDS = 10.0
"""Within which the head of a request has to be there."""


def timed_protocol(refusals: RefusalLog | None, request_s: float = REQUEST_SECONDS) -> type[asyncio.Protocol]:
    """Return uvicorn's protocol with that limit. `refusals`: who is told of what is no HTTP; None: nobody."""
    base: Any = AutoHTTPProtocol

    class TimedProtocol(base):  # type: ignore[misc]
        """A connection of which something has to come in time."""

        def connection_made(self, transport: asyncio.Transport) -> None:
            super().connection_made(transport)
            self._answered: Any = None
            self._look = self.loop.call_later(request_s, self._close_if_silent)

        def connection_lost(self, exc: Exception | None) -> None:
            self._look.cancel()
            super().connection_lost(exc)

        def _close_if_silent(self) -> None:
            """Close it, unless a request is being answered, or was begun since the last look."""
            cycle = self.cycle
            if cycle is None or (cycle is self._answered and cycle.response_complete):
                self.transport.abort()
                return
            self._answered = cycle
            self._look = self.loop.call_later(request_s, self._close_if_silent)

        def send_400_response(self, msg: str) -> None:
            if refusals is not None:
                refusals.write(self.client[0] if self.client else "", "what came to the page is no HTTP")
            super().send_400_response(msg)

    return TimedProtocol
