"""What the JobMaster core of one job asks for.

Besides these:

* `snapline.runtime.cores.connections`: OpenConnection (to the ResourceManager), Send, SendToTasks, CloseConnection.
* `StartTimer`, `CancelTimer`. Timers of the checkpoint core come out as they are too; keys do not collide.
* `snapline.coordinator.jobmaster.operations.Reply`.
* Every effect of `snapline.coordinator.checkpoint.effects` that needs the outside (draw an id, store metadata, discard
  state, ...): handed out as it is; the shell answers with the event named there. `ForTasks` never comes out: the
  JobMaster, which knows where tasks run, has turned it into `SendToTasks`.
"""

from __future__ import annotations

from dataclasses import dataclass

from snapline.coordinator.checkpoint.effects import CheckpointCoordinatorEffect
from snapline.coordinator.jobmaster.operations import Reply
from snapline.dataflow.failures import SerializedFailure
from snapline.dataflow.graph.jobgraph import JobGraph
from snapline.dataflow.ids import JobID
from snapline.dataflow.wire.messages import JobStatus, JobStatusChanged
from snapline.runtime.cores.connections import ConnectionEffect
from snapline.runtime.cores.machine import CancelTimer, StartTimer


@dataclass(frozen=True, slots=True)
class ReportJobStatus:
    """The status changed: tell the Dispatcher, the CheckpointCoordinatorDeActivator and clients that watch.

    The DeActivator's answer (start or stop the periodic trigger) comes back as an event of the checkpoint core.
    """

    change: JobStatusChanged


@dataclass(frozen=True, slots=True)
class LoadSavepoint:
    """The job is to start from this snapshot: find and parse its `_metadata` -> SavepointLoaded |
    SavepointLoadFailed."""

    path: str
    """Directory or `_metadata` file, as the user wrote it."""


@dataclass(frozen=True, slots=True)
class UpdateJobGraph:
    """The job was rescaled: replace its graph in the job graph store, trying until it is there -> JobGraphUpdated. Tell
    the Dispatcher, too: a JobMaster that breaks is started again with it. Never one that was removed."""

    job_graph: JobGraph


@dataclass(frozen=True, slots=True)
class ForgetJobGraph:
    """The job is over for good: remove its graph from the job graph store, trying until it is certain that it is gone
    -> JobGraphForgotten. Before anything that the job could start from is removed: a coordinator that comes after would
    run it again from the beginning otherwise."""

    job_id: JobID


@dataclass(frozen=True, slots=True)
class JobReachedTerminalState:
    """Last effect of a job: FINISHED, CANCELED, FAILED (globally terminal) or SUSPENDED. Tasks are gone, slots given
    back, the checkpoint core is shut down. The shell tells the Dispatcher and stops."""

    job_id: JobID
    status: JobStatus
    failure: SerializedFailure | None = None


JobMasterEffect = (
    ReportJobStatus
    | LoadSavepoint
    | UpdateJobGraph
    | ForgetJobGraph
    | JobReachedTerminalState
    | Reply
    | ConnectionEffect
    | CheckpointCoordinatorEffect
    | StartTimer
    | CancelTimer
)
