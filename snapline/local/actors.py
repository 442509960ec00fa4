"""Cores on the loop of a local run, and the connections between them: what one sends is told to the other in a later
turn.

Plays `snapline.runtime.actor` and the switchboard without threads and bytes. An exception out of a core is a defect of
ours: it leaves the loop, and ends the run.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from typing import Any

from snapline.dataflow.ids import JobID
from snapline.local.event_loop import EventLoop
from snapline.runtime.cores.connections import (
    CloseConnection,
    ConnectionID,
    ConnectionLost,
    ConnectionOpened,
    MessageReceived,
    OpenConnection,
    PeerKind,
    Send,
    SendToTasks,
)
from snapline.runtime.cores.machine import CancelTimer, InvariantViolation, Machine, StartTimer
from snapline.runtime.timers import TimerDue, TimerTable


class LocalActor:
    """Runs one core and performs its effects, on the thread of the event loop."""

    def __init__(self, name: str, core: Machine[Any, Any], loop: EventLoop) -> None:
        """`performs` says what its effects mean, before anything is told."""
        self.name = name
        self.core = core
        self._loop = loop
        self._is_alive = True
        self._timers = TimerTable(loop, self._timer_due)
        self._performers: dict[type, Callable[[Any], object]] = {
            StartTimer: lambda effect: self._timers.start(effect.key, effect.at_ms),
            CancelTimer: lambda effect: self._timers.cancel(effect.key),
        }

    def performs(self, performers: Mapping[type, Callable[[Any], object]]) -> None:
        """Add what performs further kinds of effects."""
        self._performers.update(performers)

    def tell(self, event: Any) -> bool:
        """Hand it over, in order; False: it has stopped."""
        if self._is_alive:
            self._loop.call_soon(lambda: self._take(event))
        return self._is_alive

    def stop(self) -> None:
        """Stop the actor, which hears nothing any more."""
        self._is_alive = False
        self._timers.close()

    def _timer_due(self, due: TimerDue) -> None:
        fired = self._timers.fired(due)
        if fired is not None:
            self._take(fired)

    def _take(self, event: Any) -> None:
        if not self._is_alive:
            return
        for effect in self.core.handle(event, self._loop.clock.now_ms()):
            performer = self._performers.get(type(effect))
            if performer is None:
                raise InvariantViolation(f"{self.name} cannot perform {type(effect).__name__}")
            performer(effect)


_End = tuple[LocalActor, ConnectionID]


class LocalConnections:
    """Who is connected with whom in this process."""

    def __init__(self) -> None:
        self._servers: dict[tuple[PeerKind, JobID], LocalActor] = {}
        self._others: dict[tuple[str, ConnectionID], _End] = {}
        self._numbers = itertools.count(1)

    def serve(self, kind: PeerKind, actor: LocalActor, job_id: JobID = JobID("")) -> None:
        """Whoever dials this kind of peer is connected with the actor from now on."""
        self._servers[kind, job_id] = actor

    def performers(self, actor: LocalActor) -> dict[type, Callable[[Any], object]]:
        """What the actor does to its connections."""
        return {
            OpenConnection: lambda effect: self._open(actor, effect),
            CloseConnection: lambda effect: self._close(actor, effect.connection),
            Send: lambda effect: self._send(actor, effect),
            SendToTasks: lambda effect: self._send_all(actor, effect),
        }

    def drop(self, actor: LocalActor) -> None:
        """Drop an actor that has stopped: its connections are lost for the other ends."""
        self._servers = {peer: server for peer, server in self._servers.items() if server is not actor}
        for name, connection in list(self._others):
            if name == actor.name:
                self._close(actor, connection)

    def _open(self, actor: LocalActor, effect: OpenConnection) -> None:
        peer = effect.peer
        job_id = peer.job_id if peer.kind is PeerKind.JOB_MASTER else JobID("")
        server = self._servers.get((peer.kind, job_id))
        if server is None:
            actor.tell(ConnectionLost(effect.connection, f"no {peer.kind.value} is here"))
            return
        served = ConnectionID(f"local-{next(self._numbers)}")
        self._others[actor.name, effect.connection] = (server, served)
        self._others[server.name, served] = (actor, effect.connection)
        actor.tell(ConnectionOpened(effect.connection))

    def _send(self, actor: LocalActor, effect: Send) -> None:
        other = self._others.get((actor.name, effect.connection))
        if other is not None:
            other[0].tell(MessageReceived(other[1], effect.envelope))

    def _send_all(self, actor: LocalActor, effect: SendToTasks) -> None:
        for one in effect.sends():
            self._send(actor, one)

    def _close(self, actor: LocalActor, connection: ConnectionID) -> None:
        other = self._others.pop((actor.name, connection), None)
        if other is not None:
            self._others.pop((other[0].name, other[1]), None)
            other[0].tell(ConnectionLost(other[1], "closed by the other side"))
