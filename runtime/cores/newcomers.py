"""Which connections to a server are closed because nobody on them has been let in.

For servers that know who calls only when they are called, and read before that whatever comes: Flight's. Decides how
long a connection may say nothing that lets it in, how much it may say, and how many such ones a host and all together
may have. Whoever was let in stays until its connection ends. Knows no sockets and no clock. Flink has no counterpart.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from snapline.runtime.cores.senders import surplus_connections

SECONDS = 10.0
"""Within which a call has to be let in."""
MAX_BYTES = 1 << 20
"""What a connection may have sent before: a handshake and the head of a call are some thousand bytes."""
MAX_OF_HOST = 128
"""How many newcomers one host may have at a time."""
MAX_OF_ALL = 512
"""How many newcomers there may be at a time."""


@dataclass(frozen=True, slots=True)
class SeenConnection:
    """A connection as the process sees it."""

    host: str
    port: int
    """The port of its other end."""
    received: int
    """Bytes that came on it; 0 where the system does not say."""


class Newcomers:
    """The connections of one server. What is given a number is a connection; numbers come again after it ended."""

    def __init__(self) -> None:
        self._welcome: set[tuple[str, int]] = set()
        self._since: dict[int, float] = {}

    def let_in(self, host: str, port: int) -> None:
        """Note that a call from there was let in."""
        self._welcome.add((host, port))

    @property
    def number(self) -> int:
        """How many there were at the last look."""
        return len(self._since)

    def unwelcome(self, seen: Mapping[int, SeenConnection], now_s: float) -> list[int]:
        """All connections that there are now, by number: those that are to be closed, in order of their numbers."""
        self._welcome &= {(each.host, each.port) for each in seen.values()}
        strangers = {n: each for n, each in seen.items() if (each.host, each.port) not in self._welcome}
        self._since = {number: self._since.get(number, now_s) for number in strangers}
        known = [number for number, since in self._since.items() if since < now_s]
        closed = {
            number
            for number, each in strangers.items()
            if each.received > MAX_BYTES or now_s - self._since[number] >= SECONDS
        }
        left = {number: each.host for number, each in strangers.items() if number not in closed}
        closed.update(surplus_connections(left, known, MAX_OF_HOST))
        left = {number: "" for number in left if number not in closed}
        closed.update(surplus_connections(left, known, MAX_OF_ALL))
        return sorted(closed)
