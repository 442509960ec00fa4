"""What the ResourceManager core asks for.

Besides these: `Send` and `CloseConnection` of `snapline.runtime.cores.connections`, `StartTimer` and `CancelTimer`.
"""

from __future__ import annotations

from dataclasses import dataclass

from snapline.dataflow.ids import ResourceID
from snapline.dataflow.wire.messages import ThreadDump
from snapline.runtime.cores.connections import CloseConnection, Send
from snapline.runtime.cores.machine import CancelTimer, StartTimer


@dataclass(frozen=True, slots=True)
class DeclareWorkers:
    """Tell the pool that starts TaskManagers what is needed in all and what is there (Flink: declareResourceNeeded).

    Comes whenever something of it changed; totals, so that the newest replaces all before. A pool starts TaskManagers
    while `registered_slots` plus the slots of those that it has started and that never were registered stay below
    `required_slots`, within its own bounds. One that was registered and is not any more does not count, whether its
    process lives or not: it is cut off. After a change of the leader everybody registers again; a pool waits a moment
    before it believes that all are gone.
    """

    required_slots: int
    """Sum over all jobs of what they declared."""
    registered_slots: int
    """Slots of all TaskManagers that are registered, free or not."""
    free_slots: int
    registered: tuple[ResourceID, ...] = ()
    """The TaskManagers that are registered."""


@dataclass(frozen=True, slots=True)
class ReleaseWorker:
    """The TaskManager is not needed any more (idle for `resourcemanager.taskmanager-timeout`) or must not live on: the
    pool ends it and does not replace it. The TaskManager itself was told by ShutDownTaskExecutor."""

    resource_id: ResourceID
    reason: str


@dataclass(frozen=True, slots=True)
class ThreadDumpArrived:
    """A TaskManager has said what its threads do: tell whoever asked for it."""

    dump: ThreadDump


ResourceManagerEffect = (
    DeclareWorkers | ReleaseWorker | ThreadDumpArrived | Send | CloseConnection | StartTimer | CancelTimer
)
