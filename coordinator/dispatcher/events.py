"""What the Dispatcher core is told.

Requests carry a `request_id` drawn by the shell; each is answered by exactly one `Reply` with that id, sooner or later.
"""

from __future__ import annotations

from dataclasses import dataclass

from snapline.coordinator.ha.stored_job_graphs import JobGraphSetAside
from snapline.coordinator.jobmaster.operations import JobOperation, RequestID
from snapline.dataflow.failures import SerializedFailure
from snapline.dataflow.graph.jobgraph import JobGraph
from snapline.dataflow.ids import JobID
from snapline.dataflow.wire.messages import JobStatus, JobStatusChanged


@dataclass(frozen=True, slots=True)
class HeldJob:
    """A job that was found in the store and cannot be started by this Snapline (see `held_jobs.py`)."""

    job_graph: JobGraph
    reason: str
    """One line: what it is, and how to go on."""


@dataclass(frozen=True, slots=True)
class DispatcherStarted:
    """First event, once: leadership is granted and these job graphs were found in the store."""

    recovered: tuple[JobGraph, ...] = ()
    held: tuple[HeldJob, ...] = ()
    """Found as well, and not started: what is stored of them stays until somebody cancels or succeeds them."""
    set_aside: tuple[JobGraphSetAside, ...] = ()
    """Jobs whose graph cannot be read."""


@dataclass(frozen=True, slots=True)
class DispatcherSuspended:
    """Leadership is lost: every JobMaster is suspended, nothing durable is touched. Last event that does anything."""

    reason: str


@dataclass(frozen=True, slots=True)
class SubmitJob:
    """A client submits a job. Answered by `JobSubmitted` after the graph is durable, or `OperationFailed`."""

    request_id: RequestID
    job_graph: JobGraph


@dataclass(frozen=True, slots=True)
class JobGraphStored:
    """The job graph is durable: the answer to `StoreJobGraph`."""

    job_id: JobID


@dataclass(frozen=True, slots=True)
class JobGraphChanged:
    """The graph of a job is this one now: its JobMaster has rescaled it, or the snapshot that it starts from has fixed
    its max parallelism."""

    job_graph: JobGraph


@dataclass(frozen=True, slots=True)
class JobGraphStoreFailed:
    """Answer to `StoreJobGraph`: not stored; the submission fails."""

    job_id: JobID
    reason: str
    user_can_mend: bool = False
    """The job itself cannot be taken: asking again does not help, changing it does."""


@dataclass(frozen=True, slots=True)
class JobGraphRemoved:
    """Answer to `RemoveJobGraph`: nothing of the job is left in the store (or it could not be removed: say why)."""

    job_id: JobID
    error: str = ""


@dataclass(frozen=True, slots=True)
class OperateJob:
    """A client wants something of a job: cancel, savepoint, stop, checkpoint, rescale. Goes to its JobMaster."""

    request_id: RequestID
    job_id: JobID
    operation: JobOperation


@dataclass(frozen=True, slots=True)
class JobStatusReported:
    """The JobMaster of a job has reported a new status with `ReportJobStatus`."""

    change: JobStatusChanged


@dataclass(frozen=True, slots=True)
class JobMasterEnded:
    """A JobMaster is gone: after `JobReachedTerminalState` with that status and failure, or it broke (a core raised):
    then `status` is the last that it reported, not a terminal one, and `failure` says why."""

    job_id: JobID
    status: JobStatus
    failure: SerializedFailure | None = None


DispatcherEvent = (
    DispatcherStarted
    | DispatcherSuspended
    | SubmitJob
    | JobGraphStored
    | JobGraphChanged
    | JobGraphStoreFailed
    | JobGraphRemoved
    | OperateJob
    | JobStatusReported
    | JobMasterEnded
)
