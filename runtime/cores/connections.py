"""The vocabulary of connections between processes, shared by the cores on both ends and the shells between them.

A connection carries `Fenced` messages in both directions, first-in-first-out, until it is lost for both. The side that
dials draws its id and asks for it (`OpenConnection`); the side that serves gets an id from its shell with the first
message. An id is never used twice, so a late word about an old connection cannot hurt a newer one. Cores keep who is
behind which id; a shell only keeps a table from id to stream. Mirrors what Flink hides in RpcService and RpcGateway.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, NewType

from snapline.dataflow.ids import ExecutionAttemptID, JobID, LeaderSessionID
from snapline.dataflow.wire.messages import Fenced

ConnectionID = NewType("ConnectionID", str)
"""Unique within one process. Ids drawn by a core start with `dial-`; a shell must not draw such ids for streams it
serves."""


RELAY_TIMEOUT_MS = 2_000
"""How long a relay may take to open a connection; after that the shell dials without it."""


class PeerKind(Enum):
    """Which service of a coordinator is meant."""

    RESOURCE_MANAGER = "resource-manager"
    JOB_MASTER = "job-master"


@dataclass(frozen=True, slots=True)
class Peer:
    """Whom to dial: the kind of process, its address, and the job."""

    kind: PeerKind
    address: str
    """Where the peer listens, as host:port."""
    job_id: JobID = JobID("")
    """For a JobMaster: of which job."""


# --- events -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ConnectionOpened:
    """Event: an OpenConnection succeeded; the core sends its registration now."""

    connection: ConnectionID


@dataclass(frozen=True, slots=True)
class ConnectionLost:
    """Event: an OpenConnection failed, or the connection broke or was closed by the other side. Comes exactly once per
    connection, unless the core itself said CloseConnection: then it does not come at all."""

    connection: ConnectionID
    reason: str


@dataclass(frozen=True, slots=True)
class MessageReceived:
    """Event: a message came in. For a served connection the first one introduces it; there is no other announcement."""

    connection: ConnectionID
    envelope: Fenced[Any]


@dataclass(frozen=True, slots=True)
class MessagesReceived:
    """Messages of one kind that came in on one connection, one right after the other; part of TogetherReceived."""

    connection: ConnectionID
    session: LeaderSessionID
    messages: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class TogetherReceived:
    """Event: messages of one kind that the core takes together, of one or several connections, in the order in which
    they came."""

    parts: tuple[MessagesReceived, ...]


@dataclass(frozen=True, slots=True)
class ResourceManagerLeaderChanged:
    """Event for whoever registers there: leader retrieval found the ResourceManager here; an empty address: there is
    none at the moment."""

    address: str
    session: LeaderSessionID


# --- effects ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class OpenConnection:
    """Effect: dial; answered by ConnectionOpened or ConnectionLost."""

    connection: ConnectionID
    peer: Peer


@dataclass(frozen=True, slots=True)
class CloseConnection:
    """Effect: close after everything sent before has left. Nothing of this connection is reported after that. Unknown
    ids are no error: the other side may have been faster."""

    connection: ConnectionID


@dataclass(frozen=True, slots=True)
class Send:
    """Effect: put the message on the connection. Dropped when the connection is gone; ConnectionLost tells."""

    connection: ConnectionID
    envelope: Fenced[Any]


@dataclass(frozen=True, slots=True)
class SendToTasks:
    """Effect: the same message but for its task to many tasks, as a `Send` to each; what is equal stays one thing on
    its way out."""

    session: LeaderSessionID
    template: Any
    """One of the checkpoint messages; whose `attempt_id` it has does not matter."""
    to: tuple[tuple[ConnectionID, tuple[ExecutionAttemptID, ...]], ...]
    """Each connection once, with the tasks behind it."""

    def sends(self) -> Iterator[Send]:
        """Return the same messages as one Send for each connection."""
        for connection, attempt_ids in self.to:
            for attempt_id in attempt_ids:
                yield Send(connection, Fenced(self.session, replace(self.template, attempt_id=attempt_id)))


ConnectionEvent = ConnectionOpened | ConnectionLost | MessageReceived | TogetherReceived
ConnectionEffect = OpenConnection | CloseConnection | Send | SendToTasks
