"""Connects the actors of a coordinator with whoever is at the other end of their connections.

Three kinds of connections look alike to a core: *served* (a TaskManager or a remote JobMaster dialed in; its stream
lives on the server's loop), *dialed* (a JobMaster of this process registers with a ResourceManager elsewhere) and
*local* (both ends are actors of this process: no bytes, no loop). An `Outbox` collects what one actor does to its
connections while it handles a message of its inbox; `flush` hands all of it over at once, so that a checkpoint of ten
thousand tasks costs the loop one call and each stream one envelope. Order per connection is kept.

Does not know what messages mean, except the first of a stream to a JobMaster, which says for which job it is.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any, Protocol

from snapline.dataflow.ids import JobID
from snapline.dataflow.wire.messages import Fenced
from snapline.runtime.actor import Performer
from snapline.runtime.cores.connections import (
    CloseConnection,
    ConnectionID,
    ConnectionLost,
    ConnectionOpened,
    OpenConnection,
    Peer,
    PeerKind,
    Send,
    SendToTasks,
)
from snapline.runtime.cores.inbox import Incoming
from snapline.runtime.rpc.dialing import Dialer

Tell = Callable[[Any], bool]
"""Tell an actor; False: it has stopped."""

Operation = Send | SendToTasks | CloseConnection


class Streams(Protocol):
    """The streams that this process serves (see `snapline.coordinator.rpc.gateways`)."""

    def apply(self, operations: list[Operation]) -> None:
        """Perform on the loop, in order; from any thread."""
        ...


class _LocalEnd:
    """One end of a connection inside this process."""

    __slots__ = ("connection", "key", "other", "tell")

    def __init__(self, key: ConnectionID, connection: ConnectionID, tell: Tell) -> None:
        self.key = key
        """Identity of this end, which is unique in the process."""
        self.connection = connection
        """As its actor knows it."""
        self.tell = tell
        self.other: _LocalEnd = self


class Switchboard:
    """All connections of one coordinator. Thread-safe."""

    def __init__(self, dialer: Dialer) -> None:
        self._dialer = dialer
        self._lock = threading.Lock()
        self._streams: Streams | None = None
        self._own_addresses: frozenset[str] = frozenset()
        self._resource_manager: Tell | None = None
        self._job_masters: dict[JobID, Tell] = {}
        self._local: dict[ConnectionID, _LocalEnd] = {}
        self._numbers = itertools.count(1)

    # --- who is there -------------------------------------------------------------------------------------------------

    def serve_with(self, streams: Streams, addresses: Iterable[str]) -> None:
        """The server is up; `addresses` are its own."""
        self._streams = streams
        self._own_addresses = frozenset(addresses)

    def set_resource_manager(self, tell: Tell | None) -> None:
        """The ResourceManager of this process, while it leads."""
        with self._lock:
            self._resource_manager = tell

    def add_job_master(self, job_id: JobID, tell: Tell) -> None:
        """Streams of this job go there from now on."""
        with self._lock:
            self._job_masters[job_id] = tell

    def remove_job_master(self, job_id: JobID, tell: Tell) -> None:
        """The JobMaster has stopped; its successor stays."""
        with self._lock:
            if self._job_masters.get(job_id) == tell:
                del self._job_masters[job_id]

    def owner_of(self, kind: PeerKind, job_id: JobID) -> Tell | None:
        """Who serves a connection of this kind."""
        with self._lock:
            return self._resource_manager if kind is PeerKind.RESOURCE_MANAGER else self._job_masters.get(job_id)

    def draw_served_id(self) -> ConnectionID:
        """An id for a stream that somebody dialed in."""
        return ConnectionID(f"serve-{next(self._numbers)}")

    # --- what actors do -----------------------------------------------------------------------------------------------

    def outbox(self, tell: Tell) -> Outbox:
        """For the actor behind `tell`."""
        return Outbox(self, tell, f"{next(self._numbers)}/")

    def open(self, connection: ConnectionID, peer: Peer, tell: Tell, scope: str = "") -> None:
        """Dial, inside the process when the address is our own. `scope` tells apart equal ids of different actors."""
        key = ConnectionID(scope + connection)
        if peer.address not in self._own_addresses:
            self._dialer.open(key, peer, lambda event: tell(replace(event, connection=connection)))
            return
        owner = self.owner_of(peer.kind, peer.job_id)
        if owner is None:
            tell(ConnectionLost(connection, f"no {peer.kind.value} at {peer.address}"))
            return
        answer_id = ConnectionID(f"local-{next(self._numbers)}")
        near, far = _LocalEnd(key, connection, tell), _LocalEnd(answer_id, answer_id, owner)
        near.other, far.other = far, near
        with self._lock:
            self._local[near.key] = near
            self._local[far.key] = far
        tell(ConnectionOpened(connection))

    def apply(self, operations: list[Operation], scope: str = "") -> None:
        """Send and close, in order. Connections that are gone are skipped."""
        served: list[Operation] = []
        for operation in _one_by_one(operations):
            if isinstance(operation, SendToTasks):
                served.append(operation)
                continue
            connection = operation.connection
            if connection.startswith("serve-"):
                served.append(operation)
                continue
            key = connection if connection.startswith("local-") else ConnectionID(scope + connection)
            end = self._local.get(key)
            if end is not None:
                if type(operation) is Send:
                    self._tell_local(end, operation.envelope)
                else:
                    self.close_local(end, "closed by the other side")
            elif type(operation) is Send:
                self._dialer.send(key, operation.envelope)
            else:
                self._dialer.close(key)
        if served and self._streams is not None:
            self._streams.apply(served)

    def _tell_local(self, end: _LocalEnd, envelope: Fenced[Any]) -> None:
        """To the other end, which is an actor of this process."""
        incoming = Incoming(end.other.connection, envelope.leader_session_id, [envelope.message])
        if not end.other.tell(incoming):
            self.close_local(end.other, "the other side has stopped")

    def close_local(self, end: _LocalEnd, reason: str) -> None:
        """End a local connection; the end that did not ask for it is told."""
        with self._lock:
            if self._local.pop(end.key, None) is None:
                return
            self._local.pop(end.other.key, None)
        end.other.tell(ConnectionLost(end.other.connection, reason))

    def drop_actor(self, tell: Tell) -> None:
        """The actor has stopped: its local connections are lost for the other ends."""
        for end in [end for end in list(self._local.values()) if end.tell == tell]:
            self.close_local(end, "the other side has stopped")


def _one_by_one(operations: Iterable[Operation]) -> Iterator[Operation]:
    """Only served streams take what is for many tasks as one thing; TaskManagers dial in, and theirs are served."""
    for operation in operations:
        if type(operation) is SendToTasks and not all(c.startswith("serve-") for c, _ in operation.to):
            yield from operation.sends()
        else:
            yield operation


class Outbox:
    """What one actor does to its connections while it handles one message. Used on the actor's thread only."""

    def __init__(self, switchboard: Switchboard, tell: Tell, scope: str) -> None:
        self._switchboard = switchboard
        self._tell = tell
        self._scope = scope
        self._operations: list[Operation] = []

    def performers(self) -> dict[type, Performer]:
        """Return what performs Send effects, for the table of the actor."""
        add = self._operations.append
        return {Send: add, SendToTasks: add, CloseConnection: add, OpenConnection: self._open}

    def _open(self, effect: OpenConnection) -> None:
        self._switchboard.open(effect.connection, effect.peer, self._tell, self._scope)

    def flush(self) -> None:
        """Hand all collected messages to their streams."""
        if self._operations:
            operations = self._operations.copy()
            self._operations.clear()
            self._switchboard.apply(operations, self._scope)
