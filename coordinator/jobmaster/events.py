"""What the JobMaster core of one job is told.

Besides these:

* `snapline.runtime.cores.connections`: ResourceManagerLeaderChanged; MessageReceived and ConnectionLost for the
  TaskManagers that dial in; ConnectionOpened, ConnectionLost and MessageReceived for the connection to the
  ResourceManager, which the core dials.
* `TimerFired`.
* Every event of `snapline.coordinator.checkpoint.events` that answers an effect of
  `snapline.coordinator.checkpoint.effects` (a checkpoint id was drawn, metadata is stored, ...), and
  StartCheckpointScheduler and StopCheckpointScheduler of the DeActivator: handed in as they are, the core passes them
  on to its CheckpointCoordinator.
"""

from __future__ import annotations

from dataclasses import dataclass

from snapline.coordinator.checkpoint.events import CheckpointCoordinatorEvent
from snapline.coordinator.jobmaster.operations import JobOperation, RequestID
from snapline.dataflow.snapshot.handles import CheckpointMetadata
from snapline.dataflow.wire.messages import AcknowledgeCheckpoint
from snapline.runtime.cores.connections import ConnectionEvent, ResourceManagerLeaderChanged
from snapline.runtime.cores.machine import TimerFired


@dataclass(frozen=True, slots=True)
class JobMasterStarted:
    """First event, once: the gateway serves the job. Registers with the ResourceManager, restores, deploys."""

    recovered: bool = False
    """True: another leader ran this job before; start from its latest completed checkpoint."""


@dataclass(frozen=True, slots=True)
class SavepointLoaded:
    """Answers LoadSavepoint: `_metadata` was read and parsed."""

    metadata: CheckpointMetadata
    location: str
    """URL of the directory that holds `_metadata`."""


@dataclass(frozen=True, slots=True)
class SavepointLoadFailed:
    """Answers LoadSavepoint. `detail` names the path and the way out. `retryable`: storage could not be reached now."""

    detail: str
    retryable: bool = False


@dataclass(frozen=True, slots=True)
class JobGraphUpdated:
    """Answers UpdateJobGraph: the next leader finds that graph."""


@dataclass(frozen=True, slots=True)
class JobGraphForgotten:
    """Answers ForgetJobGraph: nobody will find the graph any more."""


@dataclass(frozen=True, slots=True)
class OperationRequested:
    """A client wants something of this job; answered by one Reply with this id."""

    request_id: RequestID
    operation: JobOperation


@dataclass(frozen=True, slots=True)
class JobMasterSuspended:
    """Leadership is lost: let go of everything, touch nothing durable; status SUSPENDED, the last event."""

    reason: str


JobMasterEvent = (
    JobMasterStarted
    | SavepointLoaded
    | SavepointLoadFailed
    | JobGraphUpdated
    | JobGraphForgotten
    | OperationRequested
    | JobMasterSuspended
    | ResourceManagerLeaderChanged
    | ConnectionEvent
    | CheckpointCoordinatorEvent
    | TimerFired
)

TAKEN_TOGETHER = frozenset({AcknowledgeCheckpoint})
"""Messages that come as `TogetherReceived`."""
