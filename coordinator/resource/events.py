"""What the ResourceManager core is told.

Besides these: `MessageReceived` and `ConnectionLost` of `snapline.runtime.cores.connections` (it only serves,
TaskManagers and JobMasters dial), and `TimerFired`. The core is built anew for each grant of leadership, with that
session; when leadership ends the shell drops it and closes its connections.
"""

from __future__ import annotations

from dataclasses import dataclass

from snapline.dataflow.ids import ResourceID
from snapline.dataflow.wire.messages import RequestThreadDump
from snapline.runtime.cores.connections import ConnectionLost, MessageReceived
from snapline.runtime.cores.machine import TimerFired


@dataclass(frozen=True, slots=True)
class ResourceManagerStarted:
    """First event, once: leadership is granted, the gateway serves. Starts the heartbeat rounds."""


@dataclass(frozen=True, slots=True)
class WorkersUnavailable:
    """A pool that starts TaskManagers cannot give more slots than this. The newest of each pool counts, and all pools
    together are what there can be."""

    available_slots: int
    """Slots that the pool has or can start at most."""
    reason: str
    pool: str = ""


@dataclass(frozen=True, slots=True)
class WorkerPoolClosed:
    """The pool has stopped: what it said counts no longer."""

    pool: str


@dataclass(frozen=True, slots=True)
class WorkerEnded:
    """The pool saw a TaskManager's process end, perhaps before any connection told so."""

    resource_id: ResourceID
    reason: str


@dataclass(frozen=True, slots=True)
class ThreadDumpRequested:
    """Somebody wants to know what the threads of these TaskManagers do."""

    request: RequestThreadDump
    resource_ids: tuple[ResourceID, ...]


@dataclass(frozen=True, slots=True)
class DrainRequested:
    """Somebody is about to stop the TaskManager: give none of its slots away from now on, or do so again."""

    resource_id: ResourceID
    draining: bool


ResourceManagerEvent = (
    ResourceManagerStarted
    | WorkersUnavailable
    | WorkerPoolClosed
    | WorkerEnded
    | ThreadDumpRequested
    | DrainRequested
    | MessageReceived
    | ConnectionLost
    | TimerFired
)
