"""What one sender may take of a server, and how often its mistakes are told.

Decides that a sender has so many streams at a time, that what it sends and is refused is one line a second in the log,
with the number of those that were not told, and which connections of one host are closed when there are too many. A
sender is a host, with the name in its credential where it shows one. Everything here has a bound, because senders
choose their names. Knows no clock. Flink has no counterpart.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Collection, Mapping

MAX_STREAMS = 4_096
"""Streams of one sender at a time: a host with many TaskManagers and jobs has hundreds."""
MAX_CALLS_OF_A_CONNECTION = 64
"""Calls of one connection at a time, streams among them; who begins more waits. gRPC looks at what was reset only when
it has begun, so that this bounds what a connection that opens and resets them all the time leaves to be done."""
MAX_CONNECTIONS = 2_048
"""Connections of one host at a time."""
MAX_SENDERS = 1_000
"""Senders whose last refusal is remembered."""
PAUSE_S = 1.0
"""Between two lines about one sender."""
NEWS_AT_ONCE = 100
"""Lines about streams of one sender that come and go before there is a pause: a TaskManager has some for each job."""


def host_of(peer: str) -> str:
    """The host in what gRPC calls a peer, such as `ipv4:127.0.0.1:4711`."""
    kind, separator, address = peer.partition(":")
    return address.rpartition(":")[0] if separator and kind in ("ipv4", "ipv6") else peer


class RefusedSenders:
    """Whose refusals were told when."""

    def __init__(self, at_once: int = 1) -> None:
        """`at_once`: so many are told before there is a pause after each."""
        self._lead_s = (at_once - 1) * PAUSE_S
        self._told: OrderedDict[str, tuple[float, int]] = OrderedDict()
        """When a sender's next refusal would be told if none were told at once, and how many were not since the last
        one."""

    def note(self, sender: str, now_s: float) -> int | None:
        """A refusal: how many of this sender were not told since the last one; None: this one is not told either."""
        next_s, untold = self._told.get(sender, (now_s, 0))
        if now_s < next_s - self._lead_s:
            self._told[sender] = (next_s, untold + 1)
            return None
        self._told[sender] = (max(next_s, now_s) + PAUSE_S, 0)
        self._told.move_to_end(sender)
        while len(self._told) > MAX_SENDERS:
            self._told.popitem(last=False)
        return untold


class StreamsBySender:
    """How many streams each sender has."""

    def __init__(self) -> None:
        self._open: Counter[str] = Counter()

    def open(self, sender: str) -> bool:
        """Count one more; False: that would be too many, and it is not counted."""
        if self._open[sender] >= MAX_STREAMS:
            return False
        self._open[sender] += 1
        return True

    def close(self, sender: str) -> None:
        """Count one stream of the sender less, because it has ended."""
        self._open[sender] -= 1
        if self._open[sender] <= 0:
            del self._open[sender]


def surplus_connections(hosts: Mapping[int, str], known: Collection[int], most: int) -> list[int]:
    """Which connections, by a number of each with the host that it comes from, are to be closed so that each host has
    `most` at most: those that were not `known` before first."""
    by_host: dict[str, list[int]] = {}
    for number, host in hosts.items():
        by_host.setdefault(host, []).append(number)
    surplus: list[int] = []
    for numbers in by_host.values():
        surplus += sorted(numbers, key=lambda number: (number not in known, number))[most:]
    return surplus
