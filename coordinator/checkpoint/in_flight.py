"""Checkpoints between their id and their end: acknowledged, declined, expired, aborted, stored, completed.

Decides what each message of a task, each timeout and each answer of the store means for the checkpoints in flight. Does
not know how they come about (`checkpoint_coordinator`), nor who takes part (`checkpoint_plan`). A checkpoint whose
store is outstanding cannot be aborted any more: whether it counts is decided by the answer. Mirrors
receiveAcknowledgeMessage, receiveDeclineMessage, abortPendingCheckpoint and completePendingCheckpoint of Flink's
CheckpointCoordinator.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from snapline.coordinator.checkpoint.effects import (
    CheckpointCoordinatorEffect,
    CheckpointRequestCompleted,
    CheckpointRequestFailed,
    CheckpointTimeoutKey,
    DiscardCheckpoint,
    DiscardState,
    FailJob,
    FailTask,
    MessageRefused,
    PersistStatistics,
)
from snapline.coordinator.checkpoint.events import CheckpointStoreFailed
from snapline.coordinator.checkpoint.executions import ExecutionTracker
from snapline.coordinator.checkpoint.failure_manager import CheckpointFailureManager, FailureVerdict
from snapline.coordinator.checkpoint.finalization import FinalizeRefused
from snapline.coordinator.checkpoint.pending_checkpoint import (
    PendingCheckpoint,
    PendingCheckpointStatus,
    TaskAcknowledgeResult,
)
from snapline.coordinator.checkpoint.publication import CheckpointPublication
from snapline.coordinator.checkpoint.reports import CheckpointReports
from snapline.coordinator.checkpoint.request_decider import CheckpointTriggerRequest
from snapline.coordinator.checkpoint.statistics.recent_checkpoints import CheckpointOutcome, RecentCheckpoints
from snapline.coordinator.checkpoint.statistics.stats import CheckpointStats, CheckpointStatsTracker
from snapline.coordinator.checkpoint.statistics.stats_summary import with_room
from snapline.dataflow.failures import CheckpointFailureReason
from snapline.dataflow.graph.jobgraph import JobVertex
from snapline.dataflow.ids import CheckpointID, ExecutionAttemptID, ExecutionVertexID, JobID, JobVertexID
from snapline.dataflow.snapshot.handles import TaskStateSnapshot
from snapline.dataflow.wire.messages import (
    AcknowledgeCheckpoint,
    DeclineCheckpoint,
    ForTasks,
    NotifyCheckpointAborted,
    NotifyCheckpointComplete,
)
from snapline.runtime.cores.machine import CancelTimer, check

Effects = list[CheckpointCoordinatorEffect]


@dataclass(slots=True)
class InFlight:
    """A pending checkpoint with what is kept beside it."""

    pending: PendingCheckpoint
    request: CheckpointTriggerRequest
    stats: CheckpointStats


class CheckpointsInFlight:
    """All pending checkpoints of one job. Methods return what has to be done, in order."""

    def __init__(
        self,
        job_id: JobID,
        job_name: str,
        publication: CheckpointPublication,
        failures: CheckpointFailureManager,
        stats: CheckpointStatsTracker,
        reports: CheckpointReports,
        task_name: Callable[[ExecutionAttemptID], str],
    ) -> None:
        """`task_name`: what people call a task."""
        self._job_id = job_id
        self._job_name = job_name
        self._publication = publication
        self._failures = failures
        self._stats = stats
        self._reports = reports
        self._task_name = task_name
        self._recent = RecentCheckpoints()
        self._entries: dict[CheckpointID, InFlight] = {}
        """In order of their ids."""
        self._acknowledged: list[InFlight] = []
        """Fully acknowledged, waiting to be stored; first come, first stored."""
        self._newest = CheckpointID(0)
        """The last one that was begun here."""
        self._final_states: dict[ExecutionAttemptID, TaskStateSnapshot] = {}
        """What finished tasks acknowledged in the completed checkpoint that they ended with."""
        self.last_completion_ms = 0
        self.something_ended = False
        """A checkpoint completed or was aborted: a queued request may have its turn. Reset by the reader."""

    @property
    def count(self) -> int:
        """Checkpoints in flight, being stored included."""
        return len(self._entries)

    @property
    def pending_checkpoints(self) -> tuple[PendingCheckpoint, ...]:
        """All of them, in order of their ids."""
        return tuple(entry.pending for entry in self._entries.values())

    @property
    def has_acknowledged(self) -> bool:
        """Whether a fully acknowledged checkpoint waits to be stored."""
        return bool(self._acknowledged)

    @property
    def is_deciding(self) -> bool:
        """Whether a checkpoint is being stored, or about to be."""
        return bool(self._acknowledged) or self._publication.storing is not None

    def begin(self, pending: PendingCheckpoint, request: CheckpointTriggerRequest) -> None:
        """A checkpoint has its id."""
        checkpoint_id = pending.checkpoint_id
        check(checkpoint_id not in self._entries, f"checkpoint id {checkpoint_id} was drawn twice")
        by_vertex: dict[JobVertexID, int] = {}
        for attempt in pending.plan.tasks_to_wait_for:
            by_vertex[attempt.vertex_id] = by_vertex.get(attempt.vertex_id, 0) + 1
        self._newest = max(self._newest, checkpoint_id)
        kind = pending.properties.snapshot_type
        finished = frozenset((each.vertex_id, each.subtask_index) for each in pending.plan.finished_tasks)
        stats = self._stats.report_pending(checkpoint_id, kind, pending.timestamp_ms, by_vertex, finished)
        self._entries[checkpoint_id] = InFlight(pending, request, stats)

    def contains(self, checkpoint_id: CheckpointID) -> bool:
        """Whether this checkpoint is in flight."""
        return checkpoint_id in self._entries

    # --- messages of tasks

    def acknowledge(self, messages: Iterable[AcknowledgeCheckpoint], now_ms: int) -> Effects:
        """Tasks acknowledged. The hot path of a large job: a few microseconds each."""
        effects: Effects = []
        entries, job_id = self._entries, self._job_id
        for message in messages:
            entry = entries.get(message.checkpoint_id)
            if entry is None or message.job_id != job_id:
                effects += self._refuse_late_acknowledge(message)
                continue
            attempt, state = message.attempt_id, message.state
            result = entry.pending.acknowledge_task(attempt, state)
            if result is TaskAcknowledgeResult.SUCCESS:
                size_bytes = with_room(state.state_size_bytes) if state.operators else 0
                written_bytes = with_room(size_bytes - self._publication.shared_bytes(state)) if size_bytes else 0
                entry.stats.reports.append(
                    (attempt.vertex_id, attempt.subtask_index, now_ms, size_bytes, written_bytes, message.metrics)
                )
                if entry.pending.is_fully_acknowledged:
                    self._acknowledged.append(entry)
            elif result is not TaskAcknowledgeResult.DUPLICATE:
                effects += self._refuse_stray_acknowledge(message)
        return effects

    def check_acknowledged(self, checkpoint_id: CheckpointID) -> None:
        """The tasks were triggered; there may be none to wait for."""
        entry = self._entries[checkpoint_id]
        if entry.pending.is_fully_acknowledged:
            self._acknowledged.append(entry)

    def decline(self, message: DeclineCheckpoint, now_ms: int) -> Effects:
        """A task gave up. It is not asked whether the checkpoint waits for that task (as in Flink)."""
        checkpoint_id, attempt = message.checkpoint_id, message.attempt_id
        if message.job_id != self._job_id:
            detail = f"declined for job {message.job_id}, this is {self._job_id}"
            return [MessageRefused(checkpoint_id, attempt, detail)]
        entry = self._entries.get(checkpoint_id)
        if entry is None:
            known = self._recent.outcome_of(checkpoint_id) is not None
            detail = f"declined too late: {message.reason.message} {message.detail}".strip()
            return [MessageRefused(checkpoint_id, attempt, detail, known=known)]
        if entry.pending.status is not PendingCheckpointStatus.PENDING:
            return []
        detail = f"{self._task_name(attempt)}: {message.detail}" if message.detail else f"{self._task_name(attempt)}."
        return self.abort(entry.pending, message.reason, now_ms, attempt=attempt, detail=detail)

    def _refuse_stray_acknowledge(self, message: AcknowledgeCheckpoint) -> Effects:
        """The checkpoint is pending, and does not wait for this task."""
        checkpoint_id = message.checkpoint_id
        detail = "acknowledged by a task that the checkpoint does not wait for"
        refused = MessageRefused(checkpoint_id, message.attempt_id, detail, known=True)
        if not message.state.operators:
            return [refused]
        self._publication.remember_stray(checkpoint_id, message.state)
        return [refused, DiscardState(checkpoint_id, (message.state,), ())]

    def _refuse_late_acknowledge(self, message: AcknowledgeCheckpoint) -> Effects:
        """The checkpoint is over, or never was."""
        checkpoint_id, attempt = message.checkpoint_id, message.attempt_id
        if message.job_id != self._job_id:
            return [MessageRefused(checkpoint_id, attempt, f"the message is for job {message.job_id}")]
        outcome = self._recent.outcome_of(checkpoint_id)
        detail = "the checkpoint is unknown" if outcome is None else f"the checkpoint is {outcome.value} already"
        refused = MessageRefused(checkpoint_id, attempt, detail, known=outcome is not None)
        if not message.state.operators:
            return [refused]
        if checkpoint_id > self._newest:  # it may yet be taken, and then others have its files; what is left is swept
            self._publication.may_have_leftovers = True
            return [refused, DiscardState(checkpoint_id, (message.state,), ())]
        location = self._recent.location_of(checkpoint_id)
        paths = self._publication.paths_of_late_state(checkpoint_id, outcome, location, message.state)
        return [refused, DiscardState(checkpoint_id, (message.state,), paths)]

    # --- aborting

    def expire(self, checkpoint_id: CheckpointID, now_ms: int) -> Effects:
        """The checkpoint has taken too long."""
        entry = self._entries.get(checkpoint_id)
        if entry is None or entry.pending.status is not PendingCheckpointStatus.PENDING:
            return []
        missing = entry.pending.unacknowledged_tasks
        detail = ""
        if missing:
            detail = f"{len(missing)} tasks did not acknowledge, the first of them {self._task_name(missing[0])}."
        return self.abort(entry.pending, CheckpointFailureReason.CHECKPOINT_EXPIRED, now_ms, detail=detail)

    def abort_unacknowledged(
        self, attempt: ExecutionAttemptID, reason: CheckpointFailureReason, detail: str, now_ms: int
    ) -> Effects:
        """Nothing more will come of this attempt."""
        effects: Effects = []
        for entry in tuple(self._entries.values()):
            if not entry.pending.is_acknowledged_by(attempt):
                effects += self.abort(entry.pending, reason, now_ms, detail=detail)
        return effects

    def task_finished(self, attempt: ExecutionAttemptID, now_ms: int) -> tuple[list[CheckpointTriggerRequest], Effects]:
        """The task ended while checkpoints waited for it, which therefore end, too. Returns, first, the requests that
        can be met without it: all that somebody waits for, but those that have stopped the other tasks."""
        reason, detail = (
            CheckpointFailureReason.CHECKPOINT_DECLINED_TASK_NOT_READY,
            f"{self._task_name(attempt)} finished without acknowledging.",
        )
        again: list[CheckpointTriggerRequest] = []
        effects: Effects = []
        for entry in tuple(self._entries.values()):
            if entry.pending.is_acknowledged_by(attempt):
                continue
            is_wanted = not entry.request.is_periodic and not entry.pending.properties.is_synchronous
            effects += self.abort(entry.pending, reason, now_ms, detail=detail, begins_again=is_wanted)
            if is_wanted:
                again.append(entry.request)
        return again, effects

    def abort_pending(
        self,
        reason: CheckpointFailureReason,
        now_ms: int,
        *,
        detail: str = "",
        subsumed_by: CheckpointID | None = None,
    ) -> Effects:
        """Abort all of them, or those that a completed checkpoint makes pointless; the one being stored stays."""
        effects: Effects = []
        for checkpoint_id, entry in tuple(self._entries.items()):
            pending = entry.pending
            if pending.status is not PendingCheckpointStatus.PENDING:
                continue
            if subsumed_by is None or (checkpoint_id < subsumed_by and pending.can_be_subsumed):
                effects += self.abort(pending, reason, now_ms, detail=detail)
        return effects

    def abort(
        self,
        pending: PendingCheckpoint,
        reason: CheckpointFailureReason,
        now_ms: int,
        *,
        attempt: ExecutionAttemptID | None = None,
        detail: str = "",
        owns_directory: bool = True,
        begins_again: bool = False,
    ) -> Effects:
        """The checkpoint will never complete. `begins_again`: who asked for it will get another one."""
        effects: Effects = []
        checkpoint_id = pending.checkpoint_id
        entry = self._entries.pop(checkpoint_id)
        if entry in self._acknowledged:
            self._acknowledged.remove(entry)
        if pending.abort(reason):
            effects.append(CancelTimer(CheckpointTimeoutKey(self._job_id, checkpoint_id)))
        self._recent.remember(checkpoint_id, CheckpointOutcome.ABORTED, pending.location)
        self._publication.forget_strays(checkpoint_id)
        self.something_ended = True
        location = pending.location if owns_directory else ""
        states = pending.task_states
        paths = self._publication.paths_of_aborted(pending, states, owns_directory=owns_directory)
        effects.append(DiscardCheckpoint(checkpoint_id, location, states, paths))
        if not begins_again:
            effects.append(CheckpointRequestFailed(entry.request.request_id, reason, detail, checkpoint_id))
        self._stats.report_failed(checkpoint_id, now_ms, reason.name, detail)
        effects.append(self._reports.failed(entry.stats, reason, detail, now_ms))
        effects.append(PersistStatistics())
        verdict = self._failures.handle_failure(checkpoint_id, pending.properties, reason, attempt, detail)
        if verdict is not None:
            effects.append(failure_effect(verdict, reason))
        tasks = pending.plan.tasks_to_commit_to
        latest_id = self._publication.store.latest_id
        if tasks:
            timestamp_ms = pending.timestamp_ms
            aborted = NotifyCheckpointAborted(self._job_id, tasks[0], checkpoint_id, latest_id, timestamp_ms)
            effects.append(ForTasks(aborted, tasks))
        return effects

    # --- completing

    def store_next(
        self,
        vertices: Sequence[JobVertex],
        left_states: Mapping[ExecutionVertexID, TaskStateSnapshot],
        now_ms: int,
    ) -> Effects:
        """Make the first of the fully acknowledged checkpoints durable. Nothing else may be being stored.
        `left_states`: see `finalization`."""
        pending = self._acknowledged.pop(0).pending
        completed = pending.finalize(self._job_name, vertices, self._final_states, left_states, now_ms)
        begun = completed if isinstance(completed, FinalizeRefused) else self._publication.begin(completed, pending)
        if isinstance(begun, FinalizeRefused):
            return self.abort(pending, begun.reason, now_ms, detail=begun.detail)
        if pending.release_canceller():
            return [CancelTimer(CheckpointTimeoutKey(self._job_id, pending.checkpoint_id)), begun]
        return [begun]

    def stored(self, now_ms: int) -> tuple[PendingCheckpoint | None, Effects]:
        """The checkpoint is durable: count it, drop what is older, tell the tasks. Returns it, first; None for a
        snapshot that was adopted."""
        effects: Effects = []
        storing, last_subsumed_id, removals = self._publication.succeeded()
        pending, checkpoint = storing.pending, storing.checkpoint
        if pending is not None:
            checkpoint_id, properties = pending.checkpoint_id, pending.properties
            pending.complete()
            entry = self._entries.pop(checkpoint_id)
            self._recent.remember(checkpoint_id, CheckpointOutcome.COMPLETED, checkpoint.location)
            self.something_ended = True
            self.last_completion_ms = now_ms
            self._failures.handle_success(checkpoint_id)
            self._stats.report_completed(checkpoint_id, now_ms, checkpoint.location)
            effects.append(self._reports.completed(entry.stats, now_ms))
            self._final_states.update(pending.final_task_states())
            effects.append(PersistStatistics())
            effects.append(CheckpointRequestCompleted(entry.request.request_id, checkpoint_id, checkpoint.location))
            if not properties.is_savepoint or properties.is_synchronous:
                reason = CheckpointFailureReason.CHECKPOINT_SUBSUMED
                effects += self.abort_pending(reason, now_ms, subsumed_by=checkpoint_id)
                tasks = pending.plan.tasks_to_commit_to
                if tasks:
                    timestamp_ms = pending.timestamp_ms
                    complete = NotifyCheckpointComplete(
                        self._job_id, tasks[0], checkpoint_id, timestamp_ms, last_subsumed_id
                    )
                    effects.append(ForTasks(complete, tasks))
        effects += removals
        return pending, effects

    def store_failed(self, event: CheckpointStoreFailed, now_ms: int) -> tuple[bool, Effects]:
        """The checkpoint is not durable, or nobody knows. Returns, first, whether it was a snapshot to be adopted that
        surely failed."""
        if event.outcome_unknown:
            return False, [self._publication.verify(event.detail)]
        pending = self._publication.failed().pending
        if pending is None:
            return True, []
        owns_directory = not event.published_by_other
        return False, self.abort(pending, event.reason, now_ms, detail=event.detail, owns_directory=owns_directory)

    def forget_final_states(self, executions: ExecutionTracker) -> None:
        """Tasks start anew, except those whose attempt is still the current one of `executions`: they have finished, or
        will with what they acknowledged, while the region of another subtask of their vertex starts again."""
        final_states = self._final_states.items()
        self._final_states = {attempt: state for attempt, state in final_states if executions.is_current(attempt)}


def failure_effect(verdict: FailureVerdict, reason: CheckpointFailureReason) -> FailJob | FailTask:
    """What a verdict of the failure manager asks for."""
    if verdict.attempt_id is None:
        return FailJob(reason, verdict.detail)
    return FailTask(verdict.attempt_id, reason, verdict.detail)
