"""Requests to give the tasks their state, from the moment they come to their answer.

Decides what a restore answers and when. Two kinds: from the latest completed checkpoint (the store has to be read once,
and no store may be outstanding), and from a snapshot that a user named (checked first; then the id counter is moved
behind it, then it is registered as a completed checkpoint, and only then answered). Master hooks get their state, or
are reset when there is nothing to restore, before the answer: tasks start behind them. Does not know pending
checkpoints. Mirrors CheckpointCoordinator.restoreLatestCheckpointedStateInternal and restoreSavepoint of Flink.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from snapline.coordinator.checkpoint.completed_checkpoint import CompletedCheckpoint
from snapline.coordinator.checkpoint.configuration import CheckpointCoordinatorConfiguration
from snapline.coordinator.checkpoint.effects import (
    CheckpointCoordinatorEffect,
    PersistStatistics,
    RecoverCompletedCheckpoints,
    ResetMasterHook,
    RestoreFailed,
    RestoreMasterHook,
    SetCheckpointIdCount,
    StateRestored,
)
from snapline.coordinator.checkpoint.events import (
    CheckpointIdCountSet,
    CheckpointRequestID,
    CompletedCheckpointsRecovered,
    CompletedCheckpointsRecoveryFailed,
    MasterHookFailed,
    MasterHookRestored,
    RestoreLatest,
    RestoreSavepoint,
)
from snapline.coordinator.checkpoint.executions import ENDED_WITHOUT_RESULT, ExecutionTracker
from snapline.coordinator.checkpoint.finalization import left_states_of
from snapline.coordinator.checkpoint.properties import CheckpointProperties
from snapline.coordinator.checkpoint.publication import CheckpointPublication
from snapline.coordinator.checkpoint.registered_hooks import HookStateMismatch, MasterHooks
from snapline.coordinator.checkpoint.restore.state_assignment import AssignmentRefused, StateAssignment, assign_states
from snapline.coordinator.checkpoint.statistics.stats import CheckpointStatsTracker, RestoredCheckpointStats
from snapline.dataflow.elements import SnapshotType
from snapline.dataflow.graph.jobgraph import JobVertex
from snapline.dataflow.ids import CheckpointID, ExecutionVertexID, JobID, JobVertexID
from snapline.dataflow.snapshot.handles import TaskStateSnapshot
from snapline.runtime.cores.machine import check

Effects = list[CheckpointCoordinatorEffect]


@dataclass(frozen=True, slots=True)
class _Prepared:
    """A restore that can be answered."""

    checkpoint: CompletedCheckpoint
    assignment: StateAssignment
    vertices: frozenset[JobVertexID] | None
    hook_calls: tuple[RestoreMasterHook, ...]
    answer: StateRestored


@dataclass(slots=True)
class _HeldAnswer:
    """Waits until every master hook has said that it is done."""

    answer: StateRestored
    waiting: dict[str, None]
    failure: str = ""


@dataclass(frozen=True, slots=True)
class _Adoption:
    """A snapshot that a user named, on its way into the store."""

    event: RestoreSavepoint
    prepared: _Prepared


class Restoration:
    """Restores of one job. Methods return what has to be done."""

    def __init__(
        self,
        job_id: JobID,
        configuration: CheckpointCoordinatorConfiguration,
        publication: CheckpointPublication,
        hooks: MasterHooks,
        stats: CheckpointStatsTracker,
    ) -> None:
        self._job_id = job_id
        self._configuration = configuration
        self._publication = publication
        self._hooks = hooks
        self._stats = stats
        self._waiting: list[RestoreLatest | RestoreSavepoint] = []
        self.is_store_read = False
        """Whether it is known what former leaders completed."""
        self._is_reading_store = False
        self._adoption: _Adoption | None = None
        self._held: _HeldAnswer | None = None
        self._max_parallelism: dict[JobVertexID, int] = {}
        """Taken over from snapshots; stays when the job is rescaled."""
        self.tasks_as_finished: frozenset[ExecutionVertexID] = frozenset()
        """Subtasks that were restored only to end again."""
        self.left_states: Mapping[ExecutionVertexID, TaskStateSnapshot] = {}
        """What subtasks that end without another checkpoint have left in the one that the job goes on from."""
        self._has_started = False
        self.sweeps_next = False
        """Every task was replaced since the last completed checkpoint, or the leader was: what the former one wrote and
        never said is nobody's once another one completes, with what tasks still build on."""
        self.force_full_snapshot = False
        """The job started from a snapshot that it does not own: the next checkpoint must not refer to it."""

    @property
    def can_proceed(self) -> bool:
        """Whether the first waiting request can be served, as far as this file knows."""
        return bool(self._waiting) and self.is_store_read and self._adoption is None and self._held is None

    @property
    def is_setting_id(self) -> bool:
        """Whether the id counter is being moved behind a snapshot that a user named."""
        return self._adoption is not None and self._publication.storing is None

    def request(self, event: RestoreLatest | RestoreSavepoint) -> Effects:
        """Somebody wants state. The store is read before the first restore; a job that starts from a snapshot is new,
        and has nothing in the store."""
        self._waiting.append(event)
        if isinstance(event, RestoreSavepoint):
            self.is_store_read = True
        elif not self.is_store_read:
            return self.read_store()
        return []

    def read_store(self) -> Effects:
        """Find out what former leaders completed, unless that is being done already."""
        if self._is_reading_store:
            return []
        self._is_reading_store = True
        return [RecoverCompletedCheckpoints()]

    def recovered(self, event: CompletedCheckpointsRecovered) -> None:
        """Take the retained checkpoints that were read from the store of a former leader."""
        self._is_reading_store, self.is_store_read = False, True
        self._publication.recover(event.checkpoints)

    def recovery_failed(self, event: CompletedCheckpointsRecoveryFailed) -> Effects:
        """The store cannot be read now; the next request tries again."""
        self._is_reading_store = False
        return self._refuse_all(event.detail, retryable=True)

    def shut_down(self) -> Effects:
        """End all restores, because the coordinator shuts down."""
        why = "the checkpoint coordinator was shut down"
        held, self._held = self._held, None
        refused: Effects = [] if held is None else [RestoreFailed(held.answer.request_id, why)]
        return [*refused, *self._refuse_all(why, retryable=False)]

    def proceed(self, executions: ExecutionTracker, now_ms: int) -> Effects:
        """Serve the first waiting request."""
        event = self._waiting.pop(0)
        if isinstance(event, RestoreSavepoint):
            return self._adopt(event, executions, now_ms)
        latest = self._publication.store.latest(prefer_checkpoint=self._configuration.prefer_checkpoint_for_recovery)
        if latest is None:
            self.tasks_as_finished, self.left_states = frozenset(), {}
            answer = _nothing_to_restore(event)
            effects: Effects = [answer]
            if isinstance(answer, StateRestored) and not event.for_running_tasks:
                effects = self._answer_behind([ResetMasterHook(hook_id) for hook_id in self._hooks.hook_ids], answer)
        else:
            prepared = self._prepare(
                event.request_id, latest, executions, event.vertices, allow=event.allow_non_restored_state
            )
            effects = self._answer(prepared, executions, now_ms, restored=not event.for_running_tasks)
        if event.vertices is None:
            is_first_start, self._has_started = latest is None and not self._has_started, True
            if not is_first_start:
                self.sweeps_next = True
        return effects

    # --- from a snapshot that a user named

    def _adopt(self, event: RestoreSavepoint, executions: ExecutionTracker, now_ms: int) -> Effects:
        checkpoint = self._completed_checkpoint_of(event)
        prepared = self._prepare(event.request_id, checkpoint, executions, None, allow=event.allow_non_restored_state)
        if isinstance(prepared, RestoreFailed):
            return [prepared]
        registered = self._publication.store.find(checkpoint.checkpoint_id)
        if registered is not None and registered.location == checkpoint.location:
            return self._answer(prepared, executions, now_ms)  # a master hook failed the attempt before, behind that
        self._adoption = _Adoption(event, prepared)
        return [SetCheckpointIdCount(event.request_id, CheckpointID(checkpoint.checkpoint_id + 1))]

    def _completed_checkpoint_of(self, event: RestoreSavepoint) -> CompletedCheckpoint:
        """CLAIM: the job owns it, like one of its own checkpoints."""
        metadata = event.metadata
        if event.claim:
            properties = self._configuration.properties_of(SnapshotType.CHECKPOINT)
        else:
            properties = CheckpointProperties.for_unclaimed_snapshot(metadata.snapshot_type)
        checkpoint = CompletedCheckpoint.from_metadata(metadata, properties, event.location)
        return replace(checkpoint, job_id=self._job_id)

    def id_count_set(self, event: CheckpointIdCountSet) -> Effects:
        """The id counter stands behind the snapshot, or could not be moved."""
        adoption = self._adoption
        if adoption is None or adoption.event.request_id != event.request_id:
            return []
        if event.error:
            return self.adoption_failed(event.error)
        return [self._publication.begin_adoption(adoption.prepared.checkpoint)]

    def adopted(self, executions: ExecutionTracker, now_ms: int) -> Effects:
        """Register the state of the snapshot that running tasks were adopted with."""
        adoption, self._adoption = self._adoption, None
        check(adoption is not None, "a snapshot was registered, and nobody restores from it")
        return [] if adoption is None else self._answer(adoption.prepared, executions, now_ms)

    def adoption_failed(self, detail: str) -> Effects:
        """The snapshot could not be registered."""
        adoption, self._adoption = self._adoption, None
        return [] if adoption is None else [RestoreFailed(adoption.event.request_id, detail, retryable=True)]

    # --- what is answered

    def _prepare(
        self,
        request_id: CheckpointRequestID,
        checkpoint: CompletedCheckpoint,
        executions: ExecutionTracker,
        vertices: tuple[JobVertexID, ...] | None,
        *,
        allow: bool,
    ) -> _Prepared | RestoreFailed:
        """What the tasks start with, from this checkpoint. Changes nothing."""
        assignment = assign_states(
            checkpoint.operators,
            executions.vertices,
            executions.edges,
            allow_non_restored_state=allow or vertices is not None,
        )
        if isinstance(assignment, AssignmentRefused):
            return RestoreFailed(request_id, f"cannot start from {checkpoint.location}: {assignment.detail}")
        matched = self._hooks.match(checkpoint.master_states, allow_unmatched=allow or vertices is not None)
        if isinstance(matched, HookStateMismatch):
            names = ", ".join(repr(hook_id) for hook_id in matched.hook_ids)
            return RestoreFailed(
                request_id,
                f"cannot start from {checkpoint.location}: it holds state of the master hooks {names}, which the job does "
                "not have: register them, or allow non-restored state (--allow-non-restored-state)",
            )
        wanted = None if vertices is None else frozenset(vertices)
        answer = StateRestored(
            request_id=request_id,
            checkpoint_id=checkpoint.checkpoint_id,
            assignments={
                task: state
                for task, state in assignment.assignments.items()
                if wanted is None or task.vertex_id in wanted
            },
            max_parallelism=assignment.plan.max_parallelism,
            skipped_operators=tuple(operator.uid or operator.operator_id for operator in assignment.plan.dropped),
        )
        calls = tuple(RestoreMasterHook(hook_id, checkpoint.checkpoint_id, state) for hook_id, state in matched)
        return _Prepared(checkpoint, assignment, wanted, calls, answer)

    # --- master hooks

    def _answer_behind(self, calls: Sequence[RestoreMasterHook | ResetMasterHook], answer: StateRestored) -> Effects:
        """The answer, once all hooks have done what they are called for."""
        if not calls:
            return [answer]
        self._held = _HeldAnswer(answer, {call.hook_id: None for call in calls})
        return list(calls)

    def hook_answered(self, event: MasterHookRestored | MasterHookFailed) -> Effects:
        """A hook is done, or cannot do it: then nobody starts, and the next attempt calls all of them again."""
        held = self._held
        if held is None or event.hook_id not in held.waiting:
            return []
        del held.waiting[event.hook_id]
        if isinstance(event, MasterHookFailed):
            held.failure = held.failure or f"master hook {event.hook_id!r} failed: {event.detail}"
        if held.waiting:
            return []
        self._held = None
        return [RestoreFailed(held.answer.request_id, held.failure, retryable=True) if held.failure else held.answer]

    def _answer(
        self,
        prepared: _Prepared | RestoreFailed,
        executions: ExecutionTracker,
        now_ms: int,
        *,
        restored: bool = True,
    ) -> Effects:
        """`restored` False: the tasks do not start from it."""
        if isinstance(prepared, RestoreFailed):
            return [prepared]
        checkpoint, assignment, replaced = prepared.checkpoint, prepared.assignment, prepared.vertices
        self.tasks_as_finished = frozenset(
            task
            for tasks, is_new in ((self.tasks_as_finished, False), (assignment.restored_as_finished, True))
            for task in tasks
            if is_new == (replaced is None or task.vertex_id in replaced)
        )
        may_end = assignment.restored_as_finished if restored else self._tasks_that_may_end(executions)
        may_end = frozenset(task for task in may_end if replaced is None or task.vertex_id in replaced)
        kept = {
            task: state
            for task, state in self.left_states.items()
            if replaced is not None
            and (task.vertex_id not in replaced or executions.current(task)[1] not in ENDED_WITHOUT_RESULT)
        }
        self.left_states = kept | left_states_of(checkpoint.operators, executions.vertices, may_end)
        if assignment.plan.max_parallelism:
            self._max_parallelism.update(assignment.plan.max_parallelism)
            executions.use_max_parallelism(assignment.plan.max_parallelism)
        self.force_full_snapshot = checkpoint.properties.is_unclaimed
        if not restored:
            return [prepared.answer]
        kind = checkpoint.properties.snapshot_type
        self._stats.report_restored(
            RestoredCheckpointStats(checkpoint.checkpoint_id, kind, now_ms, checkpoint.location)
        )
        return [PersistStatistics(), *self._answer_behind(prepared.hook_calls, prepared.answer)]

    def _tasks_that_may_end(self, executions: ExecutionTracker) -> frozenset[ExecutionVertexID]:
        """The tasks that run already and may end: one that ends without having taken another checkpoint has ended with
        one that a former leader completed, and is to know nothing newer. Only if tasks wait for such a checkpoint at
        all."""
        if not (self._configuration.is_periodic and self._configuration.checkpoints_after_tasks_finish):
            return frozenset()
        return frozenset(
            ExecutionVertexID(vertex.vertex_id, subtask)
            for vertex in executions.vertices
            for subtask in range(vertex.parallelism)
        )

    def with_max_parallelism(self, vertices: Sequence[JobVertex]) -> tuple[JobVertex, ...]:
        """Vertices of a rescaled job, with the max parallelism that their state has fixed."""
        known: Mapping[JobVertexID, int] = self._max_parallelism
        return tuple(
            replace(vertex, max_parallelism=known.get(vertex.vertex_id, vertex.max_parallelism)) for vertex in vertices
        )

    def _refuse_all(self, detail: str, *, retryable: bool) -> Effects:
        waiting, self._waiting = self._waiting, []
        return [RestoreFailed(event.request_id, detail, retryable=retryable) for event in waiting]


def _nothing_to_restore(event: RestoreLatest) -> StateRestored | RestoreFailed:
    """There is no completed checkpoint."""
    if event.error_if_no_checkpoint:
        return RestoreFailed(event.request_id, "there is no completed checkpoint to start from")
    return StateRestored(event.request_id, CheckpointID(0))
