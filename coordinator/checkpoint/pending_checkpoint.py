"""One checkpoint from its id to its end: who has acknowledged, with what, and what that makes of it.

Decides the result of each acknowledgement, whether everybody has answered, and builds the completed checkpoint. Does
not know timers, messages, stores or other checkpoints. Mirrors Flink's PendingCheckpoint (and the finished-task
bookkeeping of its DefaultCheckpointPlan).

States: PENDING -> FINALIZED (everybody acknowledged, being made durable) -> COMPLETED; PENDING or FINALIZED -> ABORTED.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import Enum

from snapline.coordinator.checkpoint.checkpoint_plan import CheckpointPlan
from snapline.coordinator.checkpoint.completed_checkpoint import CompletedCheckpoint
from snapline.coordinator.checkpoint.finalization import FinalizeRefused, operator_states_of
from snapline.coordinator.checkpoint.properties import CheckpointProperties
from snapline.dataflow.failures import CheckpointFailureReason
from snapline.dataflow.graph.jobgraph import JobVertex
from snapline.dataflow.ids import CheckpointID, ExecutionAttemptID, ExecutionVertexID, JobID
from snapline.dataflow.snapshot.handles import MasterState, TaskStateSnapshot
from snapline.runtime.cores.machine import check


class TaskAcknowledgeResult(Enum):
    """What the acknowledgement of a task meant to its checkpoint."""

    SUCCESS = "success"
    DUPLICATE = "duplicate"
    """The task had acknowledged already."""
    UNKNOWN = "unknown"
    """The task is not waited for."""
    DISCARDED = "discarded"
    """The checkpoint is over, so the acknowledged state is of no use."""


class PendingCheckpointStatus(Enum):
    """Where a pending checkpoint stands between its trigger and its end."""

    PENDING = "pending"
    FINALIZED = "finalized"
    COMPLETED = "completed"
    ABORTED = "aborted"


PENDING_CHECKPOINT_TRANSITIONS: Mapping[PendingCheckpointStatus, Mapping[PendingCheckpointStatus, str]] = {
    PendingCheckpointStatus.PENDING: {
        PendingCheckpointStatus.FINALIZED: "all tasks have acknowledged; it is being stored",
        PendingCheckpointStatus.ABORTED: "declined, expired, subsumed, a task failed, or the job ends",
    },
    PendingCheckpointStatus.FINALIZED: {
        PendingCheckpointStatus.COMPLETED: "metadata and pointer are durable; tasks are told",
        PendingCheckpointStatus.ABORTED: "it could not be stored",
    },
    PendingCheckpointStatus.COMPLETED: {},
    PendingCheckpointStatus.ABORTED: {},
}
"""What may follow, and when."""


class PendingCheckpoint:
    """A checkpoint that is being taken."""

    def __init__(
        self,
        job_id: JobID,
        checkpoint_id: CheckpointID,
        timestamp_ms: int,
        properties: CheckpointProperties,
        location: str,
        plan: CheckpointPlan,
        master_hooks: Sequence[str] = (),
        tasks_restored_as_finished: frozenset[ExecutionVertexID] = frozenset(),
    ) -> None:
        """`tasks_restored_as_finished`: subtasks that run only to end again; their empty acknowledgement says so."""
        check(bool(plan.tasks_to_wait_for), "a checkpoint needs at least one task that acknowledges it")
        self.job_id = job_id
        self.checkpoint_id = checkpoint_id
        self.timestamp_ms = timestamp_ms
        self.properties = properties
        self.location = location
        self.plan = plan
        self.status = PendingCheckpointStatus.PENDING
        self.failure_reason: CheckpointFailureReason | None = None
        self._waiting: dict[ExecutionAttemptID, bool] = dict.fromkeys(plan.tasks_to_wait_for, True)
        self._acknowledged: dict[ExecutionAttemptID, TaskStateSnapshot] = {}
        self._waiting_hooks: dict[str, None] = dict.fromkeys(master_hooks)
        self._master_states: list[MasterState] = []
        self._restored_as_finished = tasks_restored_as_finished
        self._canceller_set = False

    # --- what is known

    @property
    def is_disposed(self) -> bool:
        """Whether it has ended, one way or the other."""
        return self.status in (PendingCheckpointStatus.COMPLETED, PendingCheckpointStatus.ABORTED)

    @property
    def can_be_subsumed(self) -> bool:
        """Whether a newer completed checkpoint ends this one."""
        return self.properties.can_be_subsumed

    @property
    def are_hooks_fully_acknowledged(self) -> bool:
        """All master hooks have answered."""
        return not self._waiting_hooks

    @property
    def is_fully_acknowledged(self) -> bool:
        """Whether all tasks and all master hooks have acknowledged, and the checkpoint is not over."""
        return not self._waiting and not self._waiting_hooks and not self.is_disposed

    @property
    def unacknowledged_tasks(self) -> tuple[ExecutionAttemptID, ...]:
        """Tasks that are still waited for, in order of the plan."""
        return tuple(self._waiting)

    @property
    def task_states(self) -> tuple[TaskStateSnapshot, ...]:
        """What was acknowledged with state in it."""
        return tuple(state for state in self._acknowledged.values() if state.operators)

    @property
    def master_states(self) -> tuple[MasterState, ...]:
        """What the hooks answered, those without state left out."""
        return tuple(self._master_states)

    def is_acknowledged_by(self, attempt_id: ExecutionAttemptID) -> bool:
        """Whether this attempt has nothing more to say (also when nobody waits for it)."""
        return attempt_id not in self._waiting

    # --- what happens

    def acknowledge_task(self, attempt_id: ExecutionAttemptID, state: TaskStateSnapshot) -> TaskAcknowledgeResult:
        """A task's state is durable."""
        if self.status is not PendingCheckpointStatus.PENDING:
            if self.status is PendingCheckpointStatus.FINALIZED and attempt_id in self._acknowledged:
                return TaskAcknowledgeResult.DUPLICATE
            return (
                TaskAcknowledgeResult.UNKNOWN
                if self.status is PendingCheckpointStatus.FINALIZED
                else TaskAcknowledgeResult.DISCARDED
            )
        if self._waiting.pop(attempt_id, False):
            self._acknowledged[attempt_id] = state
            return TaskAcknowledgeResult.SUCCESS
        if attempt_id in self._acknowledged:
            return TaskAcknowledgeResult.DUPLICATE
        return TaskAcknowledgeResult.UNKNOWN

    def acknowledge_master_state(self, hook_id: str, state: MasterState | None) -> TaskAcknowledgeResult:
        """A master hook has answered, possibly with nothing."""
        if self.is_disposed:
            return TaskAcknowledgeResult.DISCARDED
        if hook_id not in self._waiting_hooks:
            return TaskAcknowledgeResult.UNKNOWN
        del self._waiting_hooks[hook_id]
        if state is not None:
            self._master_states.append(state)
        return TaskAcknowledgeResult.SUCCESS

    def set_canceller(self) -> bool:
        """The timeout is armed; False when the checkpoint is over already, and the timer has to go. Only once."""
        if self.is_disposed:
            return False
        check(not self._canceller_set, f"the timeout of checkpoint {self.checkpoint_id} was set twice")
        self._canceller_set = True
        return True

    def abort(self, reason: CheckpointFailureReason) -> bool:
        """Note that the checkpoint will never complete; returns whether a timeout has to be cancelled. The caller
        discards `task_states`.

        Raises InvariantViolation, aborted all the same, when something that cannot be subsumed was.
        """
        check(not self.is_disposed, f"checkpoint {self.checkpoint_id} was aborted and is {self.status.value} already")
        self._become(PendingCheckpointStatus.ABORTED)
        self.failure_reason = reason
        had_canceller = self.release_canceller()
        check(
            self.can_be_subsumed or reason is not CheckpointFailureReason.CHECKPOINT_SUBSUMED,
            f"checkpoint {self.checkpoint_id} is a {self.properties.snapshot_type.value} and was subsumed",
        )
        return had_canceller

    def _become(self, status: PendingCheckpointStatus) -> None:
        check(
            status in PENDING_CHECKPOINT_TRANSITIONS[self.status],
            f"checkpoint {self.checkpoint_id} was to be {status.value} and is {self.status.value}",
        )
        self.status = status

    def finalize(
        self,
        job_name: str,
        vertices: Iterable[JobVertex],
        final_states: Mapping[ExecutionAttemptID, TaskStateSnapshot],
        left_states: Mapping[ExecutionVertexID, TaskStateSnapshot],
        now_ms: int,
    ) -> CompletedCheckpoint | FinalizeRefused:
        """Everybody has acknowledged: what the completed checkpoint is. The states: see `operator_states_of`."""
        check(
            self.status is PendingCheckpointStatus.PENDING and self.is_fully_acknowledged,
            f"checkpoint {self.checkpoint_id} was finalized, is {self.status.value} and waits for "
            f"{len(self._waiting)} tasks and {len(self._waiting_hooks)} master hooks",
        )
        operators = operator_states_of(
            vertices,
            self._acknowledged,
            self.plan.finished_tasks,
            final_states,
            self._restored_as_finished,
            left_states,
        )
        if isinstance(operators, FinalizeRefused):
            return operators
        self._become(PendingCheckpointStatus.FINALIZED)
        return CompletedCheckpoint(
            job_id=self.job_id,
            job_name=job_name,
            checkpoint_id=self.checkpoint_id,
            timestamp_ms=self.timestamp_ms,
            completion_timestamp_ms=now_ms,
            properties=self.properties,
            location=self.location,
            operators=operators,
            master_states=self.master_states,
        )

    def release_canceller(self) -> bool:
        """The timeout does not matter any more; returns whether there is one to cancel."""
        had_canceller, self._canceller_set = self._canceller_set, False
        return had_canceller

    def complete(self) -> None:
        """Note that metadata and pointer are durable: the checkpoint has completed."""
        check(
            self.status is PendingCheckpointStatus.FINALIZED,
            f"checkpoint {self.checkpoint_id} was completed and is {self.status.value}",
        )
        self._become(PendingCheckpointStatus.COMPLETED)

    def final_task_states(self) -> dict[ExecutionAttemptID, TaskStateSnapshot]:
        """States of the tasks whose operators had all finished when they acknowledged: nothing will change them. Those
        that were restored only to end again have left theirs in the checkpoint that they were restored from."""
        again = self._restored_as_finished
        return {
            attempt: state
            for attempt, state in self._acknowledged.items()
            if state.is_task_finished and not (again and attempt.execution_vertex_id in again)
        }
