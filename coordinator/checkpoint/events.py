"""What the CheckpointCoordinator of one job is told.

Besides these, `snapline.runtime.cores.machine.TimerFired` with a key of `snapline.coordinator.checkpoint.effects`
(PeriodicTriggerKey, CheckpointTimeoutKey). Requests carry an id that their caller draws; each is answered by exactly
one effect with that id. Events that answer an effect name it in their docstring; the shell answers every such effect
exactly once, however slow or broken the world is (a store or a hook that hangs is answered with its failure after a
time limit of the shell).

Messages are expected to be fenced already (job master session); the core itself drops those of another job.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NewType

from snapline.coordinator.checkpoint.completed_checkpoint import CompletedCheckpoint
from snapline.dataflow.elements import SnapshotType
from snapline.dataflow.failures import CheckpointFailureReason
from snapline.dataflow.graph.jobgraph import JobEdge, JobVertex
from snapline.dataflow.ids import CheckpointID, ExecutionAttemptID, JobVertexID
from snapline.dataflow.snapshot.handles import CheckpointMetadata, MasterState
from snapline.dataflow.wire.messages import AcknowledgeCheckpoint, DeclineCheckpoint, ExecutionState, JobStatus
from snapline.runtime.cores.machine import TimerFired

CheckpointRequestID = NewType("CheckpointRequestID", str)
"""Names a request for a checkpoint, a savepoint or a restore; unique within one coordinator. The core's own requests
(periodic, end of data) start with `periodic-` and `end-of-data-`."""


# --- what runs --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TopologyChanged:
    """The job was rescaled: these vertices and edges from now on. Only while nothing is pending; drops what the core
    knew about executions. The first topology is an argument of the coordinator."""

    vertices: tuple[JobVertex, ...]
    edges: tuple[JobEdge, ...]


@dataclass(frozen=True, slots=True)
class ExecutionChange:
    """One attempt is now the current one of its subtask and in this state."""

    attempt_id: ExecutionAttemptID
    state: ExecutionState


@dataclass(frozen=True, slots=True)
class ExecutionsChanged:
    """Some attempts changed. An attempt with another number than the known one replaces it as the current attempt.

    FAILED, CANCELED and FINISHED abort the pending checkpoints that the attempt has not acknowledged. Batch them: one
    event for all tasks that one message or one transition of the ExecutionGraph concerned.
    """

    changes: tuple[ExecutionChange, ...]


@dataclass(frozen=True, slots=True)
class TaskFailed:
    """Abort the pending checkpoints that this attempt has not acknowledged (TASK_FAILURE); its state stays as it was.

    Only for callers that do not report FAILED by ExecutionsChanged (Flink: failUnacknowledgedPendingCheckpointsFor).
    """

    attempt_id: ExecutionAttemptID
    detail: str = ""


@dataclass(frozen=True, slots=True)
class EndOfDataReceived:
    """These attempts have processed all their data. When every subtask of the job has (or has finished), a checkpoint
    is triggered at once, so that what was written last gets committed (Flink: notifyEndOfData)."""

    attempt_ids: tuple[ExecutionAttemptID, ...]


# --- scheduling and requests ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class StartCheckpointScheduler:
    """Trigger periodically from now on, first after `initial_delay_ms` (the shell draws it between the minimum pause
    and the interval, as Flink does). Started already: aborts what is pending and starts again, with one timer. While
    the job is being stopped with a savepoint: once that was refused. After Shutdown it is an error: nobody would ever
    stop what it starts."""

    initial_delay_ms: int


@dataclass(frozen=True, slots=True)
class StopCheckpointScheduler:
    """No periodic checkpoints any more; pending and queued ones are aborted (CHECKPOINT_COORDINATOR_SUSPEND)."""


@dataclass(frozen=True, slots=True)
class CheckpointRequested:
    """Somebody wants a checkpoint (CHECKPOINT, FULL_CHECKPOINT) or savepoint (SAVEPOINT) now. Answered by
    CheckpointRequestCompleted or CheckpointRequestFailed."""

    request_id: CheckpointRequestID
    snapshot_type: SnapshotType = SnapshotType.CHECKPOINT
    target_location: str = ""
    """Savepoints: the URL of the directory to write, complete and unique, drawn by the shell. Empty otherwise."""
    is_periodic: bool = False


@dataclass(frozen=True, slots=True)
class StopWithSavepointRequested:
    """Stop the job with a synchronous savepoint: stops the periodic trigger, aborts what is pending, triggers.

    Completed: the tasks end by themselves after NotifyCheckpointComplete. Failed before it reached the tasks: the
    periodic trigger goes on if it was on. Failed after: FailJob as well, because the tasks stand still.
    """

    request_id: CheckpointRequestID
    target_location: str
    drain: bool = False


@dataclass(frozen=True, slots=True)
class JobHasStopped:
    """The tasks, which are taken over from another leader, have stopped with a savepoint, and some of them have
    FINISHED so: nothing is taken of the job until they are restored, because these would count as tasks that read
    everything."""


@dataclass(frozen=True, slots=True)
class AbortPendingCheckpoints:
    """Abort everything pending; the periodic trigger goes on."""

    reason: CheckpointFailureReason
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Shutdown:
    """The job reached this status, or leadership is lost (SUSPENDED). Aborts, lets go of completed checkpoints as their
    retention says. Last event that does anything; answered by CoordinatorShutDown once no store is outstanding."""

    status: JobStatus


# --- messages of tasks ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class AcknowledgesReceived:
    """Acknowledgements, in the order received; batch whatever arrived together."""

    messages: tuple[AcknowledgeCheckpoint, ...]


@dataclass(frozen=True, slots=True)
class DeclineReceived:
    """A task gave up a checkpoint."""

    message: DeclineCheckpoint


# --- answers to effects -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class CheckpointIdDrawn:
    """The id of a new checkpoint is there: the answer to DrawCheckpointId."""

    request_id: CheckpointRequestID
    checkpoint_id: CheckpointID


@dataclass(frozen=True, slots=True)
class CheckpointIdFailed:
    """Answers DrawCheckpointId: the counter could not be moved, or it is not known whether it was. The request fails,
    and says nothing about whether checkpoints can succeed: it is not counted against tolerable failures (as in
    Flink)."""

    request_id: CheckpointRequestID
    detail: str
    cannot_write: bool = False
    """The place of the savepoint is the reason, and not the counter."""


@dataclass(frozen=True, slots=True)
class MasterHookAnswered:
    """Answers TriggerMasterHook; no state means that the hook has nothing to store."""

    hook_id: str
    checkpoint_id: CheckpointID
    state: MasterState | None = None


@dataclass(frozen=True, slots=True)
class MasterHookRestored:
    """A master hook has its state back: the answer to RestoreMasterHook and ResetMasterHook."""

    hook_id: str


@dataclass(frozen=True, slots=True)
class MasterHookFailed:
    """Answers TriggerMasterHook; or, with checkpoint id None, RestoreMasterHook or ResetMasterHook."""

    hook_id: str
    checkpoint_id: CheckpointID | None
    detail: str


@dataclass(frozen=True, slots=True)
class CheckpointStored:
    """Answers StoreCompletedCheckpoint or VerifyStoredCheckpoint: metadata and (where asked for) pointer are
    durable."""

    checkpoint_id: CheckpointID


@dataclass(frozen=True, slots=True)
class CheckpointStoreFailed:
    """Answers StoreCompletedCheckpoint or VerifyStoredCheckpoint: there is no pointer to this checkpoint."""

    checkpoint_id: CheckpointID
    detail: str
    outcome_unknown: bool = False
    """True: the pointer may or may not have been written (connection lost). Answered by VerifyStoredCheckpoint; nothing
    is restored or discarded until that is answered."""
    published_by_other: bool = False
    """True: `_metadata` was there already. Another coordinator finished this id; its directory is left alone."""
    reason: CheckpointFailureReason = CheckpointFailureReason.FINALIZE_CHECKPOINT_FAILURE


@dataclass(frozen=True, slots=True)
class CompletedCheckpointRemoved:
    """Answers RemoveCompletedCheckpoint, also when deleting failed (which only the shell's log says)."""

    checkpoint_id: CheckpointID


@dataclass(frozen=True, slots=True)
class CompletedCheckpointsRecovered:
    """Answers RecoverCompletedCheckpoints: what the store holds, in any order, read from pointers and `_metadata`."""

    checkpoints: tuple[CompletedCheckpoint, ...]


@dataclass(frozen=True, slots=True)
class CompletedCheckpointsRecoveryFailed:
    """Answers RecoverCompletedCheckpoints: the store, or one checkpoint in it, cannot be read."""

    detail: str


@dataclass(frozen=True, slots=True)
class CheckpointIdCountSet:
    """Answers SetCheckpointIdCount; `error` is empty when it worked."""

    request_id: CheckpointRequestID
    error: str = ""


# --- restore ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RestoreLatest:
    """Give the tasks their state from the latest completed checkpoint; answered by StateRestored or RestoreFailed, as
    soon as no store is outstanding (its checkpoint then counts, or is gone). Deploy nothing before the answer."""

    request_id: CheckpointRequestID
    vertices: tuple[JobVertexID, ...] | None = None
    """None: all. Otherwise only these (a region restarts), and state of other operators is no error."""
    allow_non_restored_state: bool = False
    error_if_no_checkpoint: bool = False
    for_running_tasks: bool = False
    """The tasks run already, under a former leader, and go on: nothing is restored, but it is known from now on what
    was completed."""


@dataclass(frozen=True, slots=True)
class RestoreSavepoint:
    """Start the job from a snapshot that its user named; answered like RestoreLatest. The snapshot enters the completed
    store and the id counter continues behind it. The shell has read and parsed `_metadata`."""

    request_id: CheckpointRequestID
    metadata: CheckpointMetadata
    location: str
    """URL of the directory that holds `_metadata`."""
    claim: bool = False
    allow_non_restored_state: bool = False


CheckpointCoordinatorEvent = (
    TopologyChanged
    | ExecutionsChanged
    | TaskFailed
    | EndOfDataReceived
    | StartCheckpointScheduler
    | StopCheckpointScheduler
    | CheckpointRequested
    | StopWithSavepointRequested
    | JobHasStopped
    | AbortPendingCheckpoints
    | Shutdown
    | AcknowledgesReceived
    | DeclineReceived
    | CheckpointIdDrawn
    | CheckpointIdFailed
    | MasterHookAnswered
    | MasterHookFailed
    | MasterHookRestored
    | CheckpointStored
    | CheckpointStoreFailed
    | CompletedCheckpointRemoved
    | CompletedCheckpointsRecovered
    | CompletedCheckpointsRecoveryFailed
    | CheckpointIdCountSet
    | RestoreLatest
    | RestoreSavepoint
    | TimerFired
)
