"""What the CheckpointCoordinator of one job asks for.

Three kinds: messages to tasks (`Send…`, batched over attempts; the JobMaster builds one message per attempt or
TaskManager), work that is answered by an event (named in each docstring), and work that is not answered. Effects
are to be started in order; those that are answered may take as long as they need and finish in any order.
Timers are `snapline.runtime.cores.machine.StartTimer` and `CancelTimer` with the two keys below.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from snapline.coordinator.checkpoint.completed_checkpoint import CompletedCheckpoint
from snapline.coordinator.checkpoint.events import CheckpointRequestID
from snapline.dataflow.failures import Blame, CheckpointFailureReason, SerializedFailure
from snapline.dataflow.ids import CheckpointID, ExecutionAttemptID, ExecutionVertexID, JobID, JobVertexID
from snapline.dataflow.snapshot.handles import MasterState, TaskStateSnapshot
from snapline.dataflow.wire.messages import CheckpointMessage, ForTasks, JobStatus
from snapline.runtime.cores.machine import CancelTimer, StartTimer


@dataclass(frozen=True, slots=True)
class PeriodicTriggerKey:
    """Timer key: the next periodic checkpoint is due."""

    job_id: JobID


@dataclass(frozen=True, slots=True)
class CheckpointTimeoutKey:
    """Timer key: the pending checkpoint has taken too long (Flink: CheckpointCanceller)."""

    job_id: JobID
    checkpoint_id: CheckpointID


# --- work that is answered by an event --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class DrawCheckpointId:
    """Take the next id from the job's CheckpointIDCounter -> CheckpointIdDrawn | CheckpointIdFailed.

    A savepoint has a `target_location`: whether it can be written to is found out before that, while no task has
    stopped for it (Flink: initializeLocationForSavepoint)."""

    request_id: CheckpointRequestID
    target_location: str = ""


@dataclass(frozen=True, slots=True)
class SetCheckpointIdCount:
    """Make `next_id` the next id of the counter -> CheckpointIdCountSet."""

    request_id: CheckpointRequestID
    next_id: CheckpointID


@dataclass(frozen=True, slots=True)
class TriggerMasterHook:
    """Ask a master hook for its state -> MasterHookAnswered | MasterHookFailed. The shell limits the time."""

    hook_id: str
    checkpoint_id: CheckpointID
    timestamp_ms: int


@dataclass(frozen=True, slots=True)
class StoreCompletedCheckpoint:
    """Make the checkpoint durable -> CheckpointStored | CheckpointStoreFailed.

    1. With `write_metadata`: `metadata.build_metadata` to `<location>/_metadata` by conditional create. Already there:
       somebody else finished this id; that is a failure.
    2. With `register`: the pointer, by conditional create, into the completed checkpoint store.
    A failure of the first step, or a certain failure of the second, leaves no pointer.
    """

    checkpoint: CompletedCheckpoint
    write_metadata: bool = True
    register: bool = True


@dataclass(frozen=True, slots=True)
class VerifyStoredCheckpoint:
    """Find out whether the pointer is there, trying until that is certain -> CheckpointStored |
    CheckpointStoreFailed, whose detail says `doubt`, which is why nobody knows."""

    checkpoint: CompletedCheckpoint
    doubt: str = ""


@dataclass(frozen=True, slots=True)
class RemoveCompletedCheckpoint:
    """Give up a completed checkpoint: remove its pointer, and if it is gone for everybody and `discard`, delete the
    files -> CompletedCheckpointRemoved.

    Files: everything below `checkpoint.location`. Without `discard` only the pointer goes. The pointer goes first, so
    that nobody finds a pointer to nothing. Shared files follow as DiscardState, once nobody can refer to them any more.
    """

    checkpoint: CompletedCheckpoint
    discard: bool


@dataclass(frozen=True, slots=True)
class RecoverCompletedCheckpoints:
    """Read all pointers of the job and the `_metadata` behind each ->
    CompletedCheckpointsRecovered | CompletedCheckpointsRecoveryFailed."""


# --- work that is not answered ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class DiscardCheckpoint:
    """A checkpoint will never complete: delete everything below its directory, and each of `paths` outside it."""

    checkpoint_id: CheckpointID
    location: str
    states: tuple[TaskStateSnapshot, ...]
    """What had been acknowledged; the files of these states are `paths` or lie in the directory."""
    paths: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class DiscardState:
    """State that belongs to nothing: delete the files in `paths`, and only those.

    Files that a live checkpoint may share with this state (one segment file holds all subtasks of a TaskManager) are
    not among `paths`; the core asks for them once that checkpoint is decided.
    """

    checkpoint_id: CheckpointID
    states: tuple[TaskStateSnapshot, ...]
    paths: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class DeleteLeftovers:
    """Look what lies in the job's directory, and delete what `leftovers` names: what tasks wrote that were killed
    before they said so."""

    kept_files: frozenset[str]
    kept_locations: frozenset[str]
    before: CheckpointID
    """Tasks may still write for this checkpoint and newer ones."""


@dataclass(frozen=True, slots=True)
class RestoreMasterHook:
    """Tell a master hook what the restored checkpoint holds for it, None for nothing -> MasterHookRestored |
    MasterHookFailed."""

    hook_id: str
    checkpoint_id: CheckpointID
    state: MasterState | None


@dataclass(frozen=True, slots=True)
class ResetMasterHook:
    """Tell a master hook that the job starts, and there is nothing to restore -> MasterHookRestored |
    MasterHookFailed."""

    hook_id: str


@dataclass(frozen=True, slots=True)
class CloseMasterHook:
    """The job is over, or another coordinator goes on with it. Nobody waits for it."""

    hook_id: str


@dataclass(frozen=True, slots=True)
class ReleaseCompletedCheckpoints:
    """Leadership is over: let go of the store and its locks, delete nothing."""


@dataclass(frozen=True, slots=True)
class ShutdownIdCounter:
    """The job is over with this status: a globally terminal one removes the counter, SUSPENDED keeps it."""

    status: JobStatus


@dataclass(frozen=True, slots=True)
class DeleteStagedRows:
    """The job is over and nothing can start from a snapshot of it: what was staged for it may go. Nobody waits for
    it."""


@dataclass(frozen=True, slots=True)
class PersistStatistics:
    """Statistics changed in a way worth keeping: `stats.to_bytes()` may be written, at the shell's own pace."""


@dataclass(frozen=True, slots=True)
class ReportCheckpoint:
    """One line for the log, at INFO, or as a warning."""

    said: str
    details: tuple[tuple[str, object], ...] = ()
    is_warning: bool = False


# --- answers to whoever asked -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class CheckpointRequestCompleted:
    """The request's checkpoint is durable."""

    request_id: CheckpointRequestID
    checkpoint_id: CheckpointID
    location: str
    """Directory of its `_metadata`: relative to the job's checkpoint directory, or the savepoint's URL."""


@dataclass(frozen=True, slots=True)
class CheckpointRequestFailed:
    """The request was refused (`checkpoint_id` 0) or its checkpoint was aborted."""

    request_id: CheckpointRequestID
    reason: CheckpointFailureReason
    detail: str = ""
    checkpoint_id: CheckpointID = CheckpointID(0)


@dataclass(frozen=True, slots=True)
class StateRestored:
    """What each subtask starts with. `checkpoint_id` 0: there is no checkpoint, start empty."""

    request_id: CheckpointRequestID
    checkpoint_id: CheckpointID
    assignments: Mapping[ExecutionVertexID, TaskStateSnapshot] = field(default_factory=dict)
    """For `restore_state` of the deployment descriptors; subtasks that are missing start empty, but restored.
    `is_task_finished`: the subtask had finished; deploy it so that it only ends again."""
    max_parallelism: Mapping[JobVertexID, int] = field(default_factory=dict)
    """Vertices whose max parallelism the snapshot fixes; use it from now on, in vertex and incoming edges."""
    skipped_operators: tuple[str, ...] = ()
    """uids (or ids) of operators whose state the job does not restore."""


@dataclass(frozen=True, slots=True)
class RestoreFailed:
    """Nothing was restored; `detail` names the culprit and the way out. `retryable`: the store could not be read
    now."""

    request_id: CheckpointRequestID
    detail: str
    retryable: bool = False


def _failure_for(reason: CheckpointFailureReason, detail: str) -> SerializedFailure:
    return SerializedFailure(f"{reason.message} {detail}".strip(), Blame.EXTERNAL, error_type=reason.name)


@dataclass(frozen=True, slots=True)
class FailJob:
    """Fail the whole job: tolerable failures exceeded, or a synchronous savepoint was lost in flight."""

    reason: CheckpointFailureReason
    detail: str

    @property
    def is_under_way(self) -> bool:
        """The savepoint was lost because a part of the job is failing over, or all of it, or it is ending: that is no
        other failure, and what stands still of the job starts again with the rest."""
        return self.reason in (
            CheckpointFailureReason.TASK_FAILURE,
            CheckpointFailureReason.JOB_FAILOVER_REGION,
            CheckpointFailureReason.CHECKPOINT_COORDINATOR_SUSPEND,
            CheckpointFailureReason.CHECKPOINT_COORDINATOR_SHUTDOWN,
        )

    @property
    def failure(self) -> SerializedFailure:
        """Return what the job fails with."""
        return _failure_for(self.reason, self.detail)


@dataclass(frozen=True, slots=True)
class FailTask:
    """Fail the job because of this attempt, unless it is not current any more (Flink: failJobDueToTaskFailure)."""

    attempt_id: ExecutionAttemptID
    reason: CheckpointFailureReason
    detail: str

    @property
    def failure(self) -> SerializedFailure:
        """Return what the attempt fails with."""
        return _failure_for(self.reason, self.detail)


@dataclass(frozen=True, slots=True)
class MessageRefused:
    """A message was not for a checkpoint of this coordinator; for the log. `known`: it came late, which is normal."""

    checkpoint_id: CheckpointID
    attempt_id: ExecutionAttemptID
    detail: str
    known: bool = False
    sender: str = ""
    """The TaskManager that has spoken for what is not its own; empty: it was allowed to speak."""


@dataclass(frozen=True, slots=True)
class CoordinatorShutDown:
    """Last effect: nothing is outstanding, the coordinator can be dropped."""

    status: JobStatus


CheckpointCoordinatorEffect = (
    ForTasks[CheckpointMessage]
    | DrawCheckpointId
    | SetCheckpointIdCount
    | TriggerMasterHook
    | StoreCompletedCheckpoint
    | VerifyStoredCheckpoint
    | RemoveCompletedCheckpoint
    | RecoverCompletedCheckpoints
    | DiscardCheckpoint
    | DiscardState
    | DeleteLeftovers
    | RestoreMasterHook
    | ResetMasterHook
    | CloseMasterHook
    | ReleaseCompletedCheckpoints
    | ShutdownIdCounter
    | DeleteStagedRows
    | PersistStatistics
    | ReportCheckpoint
    | CheckpointRequestCompleted
    | CheckpointRequestFailed
    | StateRestored
    | RestoreFailed
    | FailJob
    | FailTask
    | MessageRefused
    | CoordinatorShutDown
    | StartTimer
    | CancelTimer
)
