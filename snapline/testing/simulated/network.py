"""A clock that jumps from event to event, and connections that keep order, take their time, break and hang.

Everything that happens is a function on one heap, ordered by time and then by the order of scheduling, so that a run is
decided by its seed alone.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, field
from typing import Any

from snapline.dataflow.wire.messages import Fenced
from snapline.runtime.cores.connections import ConnectionID

MOST_EVENTS = 10_000_000
"""The most events of a run; the longest have half a million."""
MOST_EVENTS_AT_ONE_INSTANT = 100_000


class Livelock(Exception):
    """Events happen without end, so the run was given up."""


class SimulatedClock:
    """The heap of everything that will happen."""

    def __init__(self, start_ms: int = 1_000_000) -> None:
        self.now_ms = start_ms
        self.events = 0
        """How many events have happened so far."""
        self._events_before = 0
        """How many had happened before this instant."""
        self._heap: list[tuple[int, int, Callable[[], None]]] = []
        self._numbers = itertools.count()

    def at(self, at_ms: int, action: Callable[[], None]) -> None:
        heapq.heappush(self._heap, (max(at_ms, self.now_ms), next(self._numbers), action))

    def after(self, delay_ms: int, action: Callable[[], None]) -> None:
        self.at(self.now_ms + delay_ms, action)

    def step(self) -> bool:
        """The next thing happens; False when there is none. Raises Livelock."""
        if not self._heap:
            return False
        at_ms, _, action = heapq.heappop(self._heap)
        if at_ms != self.now_ms:
            self.now_ms, self._events_before = at_ms, self.events
        self.events += 1
        if self.events > MOST_EVENTS or self.events - self._events_before > MOST_EVENTS_AT_ONE_INSTANT:
            raise Livelock(f"{self.events} events, {self.events - self._events_before} of them at {at_ms} ms")
        action()
        return True

    def run_until(self, at_ms: int, stop: Callable[[], bool] = lambda: False) -> bool:
        """Everything up to an instant, or until `stop`; says whether it stopped."""
        while self._heap and self._heap[0][0] <= at_ms:
            self.step()
            if stop():
                return True
        self.now_ms = max(self.now_ms, at_ms)
        return stop()


class SimulatedTimers:
    """The timers of one core: keys to instants, replaced and cancelled as `snapline.runtime.cores.machine` says."""

    def __init__(
        self, clock: SimulatedClock, fire: Callable[[Hashable], object], now_ms: Callable[[], int] | None = None
    ) -> None:
        """`now_ms`: by the clock of whoever arms them."""
        self._clock = clock
        self._fire = fire
        self._now_ms = now_ms or (lambda: clock.now_ms)
        self._armed: dict[Hashable, tuple[int, int]] = {}
        """Which time it was armed, and until when."""
        self._numbers = itertools.count()

    def start(self, key: Hashable, at_ms: int) -> None:
        armed = self._armed[key] = next(self._numbers), at_ms

        def due() -> None:
            if self._armed.get(key) == armed:
                del self._armed[key]
                self._fire(key)

        self._clock.after(at_ms - self._now_ms(), due)

    def rearm(self) -> None:
        """Arm all timers anew, because the clock has jumped."""
        for key, (_, at_ms) in list(self._armed.items()):
            self.start(key, at_ms)

    def cancel(self, key: Hashable) -> None:
        self._armed.pop(key, None)

    def clear(self) -> None:
        self._armed.clear()

    @property
    def armed(self) -> tuple[Hashable, ...]:
        return tuple(self._armed)


Side = tuple[str, ConnectionID]
"""One end of a connection: process and the id that it has there."""


@dataclass(slots=True)
class Endpoint:
    """One side of a connection: who gets what comes out there."""

    process: str
    connection: ConnectionID
    receive: Callable[[ConnectionID, Fenced[Any]], object]
    lost: Callable[[ConnectionID, str], object]

    @property
    def side(self) -> Side:
        """Both ends may be in one process."""
        return self.process, self.connection


@dataclass(slots=True)
class Link:
    """One connection between two processes."""

    dialler: Endpoint
    server: Endpoint
    closed: set[Side] = field(default_factory=set)
    """Sides that are closed or gone."""
    next_free_ms: dict[Side, int] = field(default_factory=dict)
    """When the next message may arrive, by receiver: nothing arrives before what was sent earlier."""
    held: dict[Side, list[Callable[[], None]]] = field(default_factory=dict)
    """What waits for the end of a partition, by receiver."""


class SimulatedNetwork:
    """All connections between processes. Processes are names."""

    def __init__(self, clock: SimulatedClock, rng: random.Random, max_delay_ms: int = 5) -> None:
        self._clock = clock
        self._rng = rng
        self.max_delay_ms = max_delay_ms
        self._links: dict[Side, Link] = {}
        """The links, once under each of their ends."""
        self._cut: set[tuple[str, str]] = set()
        """(from, to) pairs between which nothing arrives, and nobody is told."""
        self.delivered = 0
        self.hosts: dict[str, str] = {}
        """Where a process is, if that has another name: what cuts off the host cuts off the process."""

    def delay_ms(self) -> int:
        return self._rng.randint(0, self.max_delay_ms)

    def connect(self, dialler: Endpoint, server: Endpoint) -> None:
        """The connection is open on both sides from now on."""
        link = Link(dialler, server)
        self._links[dialler.side] = link
        self._links[server.side] = link

    def send(self, process: str, connection: ConnectionID, envelope: Fenced[Any]) -> None:
        link = self._links.get((process, connection))
        if link is None:
            return
        target = self._other(link, (process, connection))

        def deliver() -> None:
            if target.side not in link.closed:
                self.delivered += 1
                target.receive(target.connection, envelope)

        self._pass(link, process, target, deliver)

    def close(self, process: str, connection: ConnectionID, reason: str = "closed by the other side") -> None:
        """The own side is done at once; the other hears of it after everything sent before."""
        link = self._links.pop((process, connection), None)
        if link is None:
            return
        link.closed.add((process, connection))
        target = self._other(link, (process, connection))

        def tell() -> None:
            if self._links.pop(target.side, None) is not None:
                link.closed.add(target.side)
                target.lost(target.connection, reason)

        self._pass(link, process, target, tell)

    def crash(self, process: str) -> None:
        """The process is gone with all its sides; the others hear of it, unless they are cut off."""
        for owner, connection in [key for key in self._links if key[0] == process]:
            self.close(owner, connection, "connection reset")

    def break_link(self, process: str, connection: ConnectionID) -> None:
        """The connection breaks under two living processes."""
        link = self._links.get((process, connection))
        if link is None:
            return
        for side in (link.dialler, link.server):
            if self._links.pop(side.side, None) is not None:
                link.closed.add(side.side)
                self._clock.after(self.delay_ms(), _telling(side, "connection broken"))

    def connections_of(self, process: str) -> list[ConnectionID]:
        return [connection for owner, connection in self._links if owner == process]

    def cut(self, one: str, other: str, *, both_ways: bool = True) -> None:
        self._cut.add((one, other))
        if both_ways:
            self._cut.add((other, one))

    def heal(self, pairs: Iterable[tuple[str, str]] | None = None) -> None:
        """What was held back between these (None: everywhere) arrives now, in order."""
        self._cut = set() if pairs is None else self._cut - set(pairs)
        unique = {link.dialler.side: link for link in self._links.values()}
        for link in unique.values():
            for receiver in list(link.held):
                sender = link.server if receiver == link.dialler.side else link.dialler
                if not self.is_cut(sender.process, receiver[0]):
                    for action in link.held.pop(receiver):
                        self._in_order(link, receiver, action)

    def is_cut(self, one: str, other: str) -> bool:
        return (self.hosts.get(one, one), self.hosts.get(other, other)) in self._cut

    def _pass(self, link: Link, sender: str, target: Endpoint, action: Callable[[], None]) -> None:
        if self.is_cut(sender, target.process):
            link.held.setdefault(target.side, []).append(action)
        else:
            self._in_order(link, target.side, action)

    def _in_order(self, link: Link, receiver: Side, action: Callable[[], None]) -> None:
        at_ms = max(self._clock.now_ms + self.delay_ms(), link.next_free_ms.get(receiver, 0))
        link.next_free_ms[receiver] = at_ms
        self._clock.at(at_ms, action)

    def _other(self, link: Link, side: Side) -> Endpoint:
        return link.server if link.dialler.side == side else link.dialler


def _telling(side: Endpoint, reason: str) -> Callable[[], None]:
    def tell() -> None:
        side.lost(side.connection, reason)

    return tell
