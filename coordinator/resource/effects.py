"""What the ResourceManager core asks for.

Besides these: `Send` and `CloseConnection` of `runtime.connections`, `StartTimer` and `CancelTimer`.
"""

from __future__ import annotations

from dataclasses import dataclass

from dataflow.ids import ResourceID
from runtime.connections import CloseConnection, Send
from runtime.machine import CancelTimer, StartTimer


@dataclass(frozen=True, slots=True)
class DeclareWorkers:
    """Tell the pool that starts TaskManagers what is needed in all and what is there (Flink: declareResourceNeeded).

    Comes whenever one of the numbers changed; totals, so that the newest replaces all before. A pool starts TaskManagers
    while `registered_slots` plus what it is starting (or has started, but is not registered now) stays below
    `required_slots`, within its own bounds.
    """

    required_slots: int
    """Sum over all jobs of what they declared."""
    registered_slots: int
    """Slots of all TaskManagers that are registered, free or not."""
    free_slots: int


@dataclass(frozen=True, slots=True)
class ReleaseWorker:
    """The TaskManager is not needed any more (idle for `resourcemanager.taskmanager-timeout`) or must not live on: the
    pool ends it and does not replace it. The TaskManager itself was told by ShutDownTaskExecutor."""

    resource_id: ResourceID
    reason: str


ResourceManagerEffect = DeclareWorkers | ReleaseWorker | Send | CloseConnection | StartTimer | CancelTimer
