"""What the Dispatcher core asks for."""

from __future__ import annotations

from dataclasses import dataclass

from snapline.coordinator.jobmaster.operations import JobOperation, Reply, RequestID
from snapline.dataflow.graph.jobgraph import JobGraph
from snapline.dataflow.ids import JobID


@dataclass(frozen=True, slots=True)
class StoreJobGraph:
    """Write the graph to the job graph store; answered by JobGraphStored or JobGraphStoreFailed."""

    job_graph: JobGraph


@dataclass(frozen=True, slots=True)
class RemoveJobGraph:
    """Remove what is stored of a job; answered by JobGraphRemoved."""

    job_id: JobID
    is_over: bool = True
    """For good: its id never comes again, so that what cannot be removed now may be removed later. False: a submission
    that failed."""
    is_unseen: bool = False
    """No JobMaster has shown how the job ended: what the Dispatcher knows of it is all that can be kept."""


@dataclass(frozen=True, slots=True)
class StartJobMaster:
    """Start a JobMaster for the job; its statuses come back as JobStatusReported, its end as JobMasterEnded."""

    job_graph: JobGraph
    recovered: bool
    """True: found in the store by a new leader; it starts from the job's latest completed checkpoint."""


@dataclass(frozen=True, slots=True)
class SuspendJobMaster:
    """Leadership is lost: hand `JobMasterSuspended` to the JobMaster of the job; it ends with JobMasterEnded
    SUSPENDED."""

    job_id: JobID


@dataclass(frozen=True, slots=True)
class ForwardToJobMaster:
    """Hand the operation to the JobMaster of the job, as `OperationRequested`; that one replies."""

    request_id: RequestID
    job_id: JobID
    operation: JobOperation


DispatcherEffect = StoreJobGraph | RemoveJobGraph | StartJobMaster | SuspendJobMaster | ForwardToJobMaster | Reply
