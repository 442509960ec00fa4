"""What the JobMaster core of one job is told.

Besides these:

* `runtime.connections`: ResourceManagerLeaderChanged; MessageReceived, ConnectionLost for the TaskManagers that dial in; ConnectionOpened, ConnectionLost
  and MessageReceived for the connection to the ResourceManager, which the core dials (`OpenConnection`).
* `TimerFired`.
* Every event of `coordinator.checkpoint.events` that answers an effect of `coordinator.checkpoint.effects` (a checkpoint
  id was drawn, metadata is stored, ...): handed in as it is, the core passes it on to its CheckpointCoordinator.
"""

from __future__ import annotations

from dataclasses import dataclass

from coordinator.jobmaster.operations import JobOperation, RequestID
from runtime.connections import ResourceManagerLeaderChanged


@dataclass(frozen=True, slots=True)
class JobMasterStarted:
    """First event, once: the gateway serves the job. Registers with the ResourceManager, restores, deploys."""

    recovered: bool = False
    """True: another leader ran this job before; start from its latest completed checkpoint."""


@dataclass(frozen=True, slots=True)
class OperationRequested:
    """A client wants something of this job; answered by one Reply with this id."""

    request_id: RequestID
    operation: JobOperation


@dataclass(frozen=True, slots=True)
class JobMasterSuspended:
    """Leadership is lost: let go of everything, touch nothing durable; status SUSPENDED, the last event."""

    reason: str


JobMasterOwnEvent = JobMasterStarted | ResourceManagerLeaderChanged | OperationRequested | JobMasterSuspended
