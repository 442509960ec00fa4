"""What the Scheduler asks of the JobMaster around it. None of these but UpdateJobGraph leaves the JobMaster as it
is."""

from __future__ import annotations

from dataclasses import dataclass

from snapline.coordinator.checkpoint.events import ExecutionChange
from snapline.coordinator.jobmaster.effects import UpdateJobGraph
from snapline.dataflow.failures import SerializedFailure
from snapline.dataflow.graph.jobgraph import JobGraph
from snapline.dataflow.ids import AllocationID, ExecutionAttemptID, JobVertexID, ResourceID
from snapline.dataflow.wire.messages import JobStatus, SubmitTasks
from snapline.runtime.cores.machine import CancelTimer, StartTimer


@dataclass(frozen=True, slots=True)
class SubmitTo:
    """Deploy these tasks to that TaskManager."""

    resource_id: ResourceID
    tasks: SubmitTasks


@dataclass(frozen=True, slots=True)
class CancelAt:
    """Tell that TaskManager to cancel the attempt."""

    resource_id: ResourceID
    attempt_id: ExecutionAttemptID


@dataclass(frozen=True, slots=True)
class GiveUpTaskManager:
    """The TaskManager does not do as it is told: disconnect it, then treat it as lost."""

    resource_id: ResourceID
    reason: str


@dataclass(frozen=True, slots=True)
class TellExecutions:
    """These attempts are current now, and in these states; for the checkpoint core, in this order."""

    changes: tuple[ExecutionChange, ...]


@dataclass(frozen=True, slots=True)
class TellTopology:
    """The job was rescaled: its graph, with new parallelism; the number of slots that it needs may have changed."""

    job_graph: JobGraph


@dataclass(frozen=True, slots=True)
class RestoreTasks:
    """Find out what these vertices (None: all) start from; answered by `Scheduler.state_restored` or
    `restore_failed`."""

    round_number: int
    vertices: tuple[JobVertexID, ...] | None
    initial: bool
    """The first deployment under this leader: a named savepoint counts."""


@dataclass(frozen=True, slots=True)
class JobStatusReached:
    """The job has a new status."""

    status: JobStatus
    failure: SerializedFailure | None = None


@dataclass(frozen=True, slots=True)
class GiveSlotsBack:
    """The job has left the TaskManager, and does not need its slots any more."""

    resource_id: ResourceID
    allocations: tuple[AllocationID, ...]


@dataclass(frozen=True, slots=True)
class SlotRequestTimer:
    """Timer key: slots did not come in time."""


@dataclass(frozen=True, slots=True)
class RestartDelayTimer:
    """Timer key: the pause before a restart is over."""


@dataclass(frozen=True, slots=True)
class CancellationTimer:
    """Timer key: look whether a TaskManager has ended what it was told to cancel."""

    resource_id: ResourceID


SchedulerEffect = (
    SubmitTo
    | CancelAt
    | GiveUpTaskManager
    | GiveSlotsBack
    | TellExecutions
    | TellTopology
    | RestoreTasks
    | UpdateJobGraph
    | JobStatusReached
    | StartTimer
    | CancelTimer
)
