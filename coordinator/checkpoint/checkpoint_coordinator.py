"""The checkpoints of one job: when one is taken, and in what order everything about it happens.

Decides, with its parts, everything about the checkpoints of one job; does not know processes, connections, storage or
clocks. A checkpoint's way:

    requested -> (request_decider) -> triggering: plan, id, master hooks -> in flight: tasks triggered, acknowledgements
    counted -> being stored: metadata and pointer -> completed: older ones subsumed, tasks notified and from each of
    these but the last -> failed or aborted: state discarded, tasks notified

Mirrors Flink's CheckpointCoordinator of 1.14 to 1.20. Differences: slow work is an effect and its answer an event, so
"notify only after durable" can be read off `in_flight.stored`; after the id came back the tasks are asked for again,
not only the scheduler; a checkpoint whose store is outstanding cannot be aborted, and a restore waits for that answer,
so that it either counts or is gone.

Parts: request_decider, periodic_trigger, executions, plan, in_flight (pending_checkpoint, finalization,
failure_manager, recent_checkpoints), publication (completed_store, shared_state_registry), restoration
(state_assignment), master_hooks, stats.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from snapline.coordinator.checkpoint.checkpoint_plan import (
    CheckpointPlan,
    CheckpointPlanCalculator,
    DefaultCheckpointPlanCalculator,
    PlanRefused,
)
from snapline.coordinator.checkpoint.completed_store import CompletedCheckpointStore
from snapline.coordinator.checkpoint.configuration import CheckpointCoordinatorConfiguration
from snapline.coordinator.checkpoint.effects import (
    CheckpointCoordinatorEffect,
    CheckpointRequestFailed,
    CheckpointTimeoutKey,
    CloseMasterHook,
    CoordinatorShutDown,
    DeleteStagedRows,
    DrawCheckpointId,
    MessageRefused,
    PeriodicTriggerKey,
    PersistStatistics,
    RestoreFailed,
    ShutdownIdCounter,
    TriggerMasterHook,
)
from snapline.coordinator.checkpoint.events import (
    AbortPendingCheckpoints,
    AcknowledgesReceived,
    CheckpointCoordinatorEvent,
    CheckpointIdCountSet,
    CheckpointIdDrawn,
    CheckpointIdFailed,
    CheckpointRequested,
    CheckpointRequestID,
    CheckpointStored,
    CheckpointStoreFailed,
    CompletedCheckpointRemoved,
    CompletedCheckpointsRecovered,
    CompletedCheckpointsRecoveryFailed,
    DeclineReceived,
    EndOfDataReceived,
    ExecutionsChanged,
    JobHasStopped,
    MasterHookAnswered,
    MasterHookFailed,
    MasterHookRestored,
    RestoreLatest,
    RestoreSavepoint,
    Shutdown,
    StartCheckpointScheduler,
    StopCheckpointScheduler,
    StopWithSavepointRequested,
    TaskFailed,
    TopologyChanged,
)
from snapline.coordinator.checkpoint.executions import ExecutionTracker
from snapline.coordinator.checkpoint.failure_manager import CheckpointFailureManager
from snapline.coordinator.checkpoint.in_flight import CheckpointsInFlight, failure_effect
from snapline.coordinator.checkpoint.metadata import checkpoint_location
from snapline.coordinator.checkpoint.pending_checkpoint import PendingCheckpoint
from snapline.coordinator.checkpoint.periodic_trigger import PeriodicTrigger
from snapline.coordinator.checkpoint.publication import CheckpointPublication
from snapline.coordinator.checkpoint.registered_hooks import MasterHooks
from snapline.coordinator.checkpoint.reports import CheckpointReports
from snapline.coordinator.checkpoint.request_decider import (
    CheckpointRequestDecider,
    CheckpointTriggerRequest,
    DeciderInputs,
    Decision,
)
from snapline.coordinator.checkpoint.restore.restoration import Restoration
from snapline.coordinator.checkpoint.statistics.stats import CheckpointStatsTracker
from snapline.dataflow.config import CHECKPOINTS_DIRECTORY
from snapline.dataflow.elements import SnapshotType
from snapline.dataflow.failures import CheckpointFailureReason
from snapline.dataflow.graph.jobgraph import JobEdge, JobVertex
from snapline.dataflow.ids import CheckpointID, ExecutionAttemptID, JobID
from snapline.dataflow.wire.messages import (
    AcknowledgeCheckpoint,
    DeclineCheckpoint,
    ForTasks,
    JobStatus,
    TriggerCheckpoint,
)
from snapline.runtime.cores.machine import CollectedEffects, InvariantViolation, StartTimer, TimerFired, check


@dataclass(slots=True)
class Triggering:
    """The request between its start and its message to the tasks; at most one (Flink: isTriggering)."""

    request: CheckpointTriggerRequest
    timestamp_ms: int
    plan: CheckpointPlan
    executions_version: int
    pending: PendingCheckpoint | None = None
    """Set once the id is there; from then on only master hooks are waited for."""


class CheckpointCoordinator:
    """See the module. One per job and leader session."""

    def __init__(
        self,
        job_id: JobID,
        job_name: str,
        configuration: CheckpointCoordinatorConfiguration,
        vertices: Sequence[JobVertex],
        edges: Sequence[JobEdge],
        *,
        store_survives_suspension: bool,
        master_hooks: MasterHooks | None = None,
        has_staged_rows: bool = False,
        has_directory: bool = True,
        plan_calculator: CheckpointPlanCalculator | None = None,
        stats: CheckpointStatsTracker | None = None,
    ) -> None:
        """`store_survives_suspension`: pointers to completed checkpoints are durable (high availability). `stats`:
        those of a former coordinator of the job, to go on with. `plan_calculator`: for tasks that are no dataflow of
        ours. `has_staged_rows`: something was computed for this job alone, and goes with it. `has_directory`: there
        is a place for checkpoints, besides those of savepoints."""
        self.job_id = job_id
        self.configuration = configuration
        self.executions = ExecutionTracker(vertices, edges)
        self._has_staged_rows = has_staged_rows
        self._has_directory = has_directory
        self.hooks = master_hooks if master_hooks is not None else MasterHooks()
        self.stats = stats if stats is not None else CheckpointStatsTracker(configuration.history_size)
        store = CompletedCheckpointStore(
            configuration.max_retained_checkpoints, survives_suspension=store_survives_suspension
        )
        self.publication = CheckpointPublication(store)
        self._store_survives_suspension = store_survives_suspension
        self._failures = CheckpointFailureManager(configuration.tolerable_failures)
        self._reports = CheckpointReports()
        self._in_flight = CheckpointsInFlight(
            job_id, job_name, self.publication, self._failures, self.stats, self._reports, self._task_name
        )
        self._restoration = Restoration(job_id, configuration, self.publication, self.hooks, self.stats)
        self._given_plan_calculator = plan_calculator
        self._plans = self._plan_calculator()
        self._decider = CheckpointRequestDecider(
            configuration.max_concurrent_checkpoints,
            configuration.min_pause_ms,
            configuration.max_queued_requests,
            configuration.max_queued_periodic_requests,
        )
        self._periodic = PeriodicTrigger(job_id, configuration.effective_interval_ms)
        self._is_periodic_wanted = False
        """Whether the periodic trigger is on, or a stop-with-savepoint has taken over from it."""
        self._has_stopped = False
        """The savepoint that the job stops with is complete, and no task was restored since."""
        self._triggering: Triggering | None = None
        self._ask_decider = False
        """Something ended: ask the decider again at the end of this event."""
        self._sequence = 0
        """Counts requests, so that each of them gets an id of its own."""
        self._shutdown_status: JobStatus | None = None
        self._store_is_shut_down = False
        self._is_over = False
        self._now_ms = 0
        self._out: CollectedEffects[CheckpointCoordinatorEffect] = CollectedEffects()

    # --- what can be read ---------------------------------------------------------------------------------------------

    @property
    def pending_checkpoints(self) -> tuple[PendingCheckpoint, ...]:
        """Checkpoints in flight, one that is being stored included, in order of their ids."""
        return self._in_flight.pending_checkpoints

    @property
    def completed_store(self) -> CompletedCheckpointStore:
        """Return the store of the retained checkpoints."""
        return self.publication.store

    @property
    def queued_request_count(self) -> int:
        """Requests that wait for their turn."""
        return self._decider.queued_count

    @property
    def is_triggering(self) -> bool:
        """Whether a request is between its start and its message to the tasks."""
        return self._triggering is not None

    @property
    def is_periodic_checkpointing_started(self) -> bool:
        """Whether the periodic trigger is on."""
        return self._periodic.is_started

    # --- the one entry point ------------------------------------------------------------------------------------------

    def handle(self, event: CheckpointCoordinatorEvent, now_ms: int) -> list[CheckpointCoordinatorEffect]:
        """Take one event at the time `now_ms` and say what to do."""
        self._now_ms = now_ms
        self._take(event)
        in_flight = self._in_flight
        if (
            self._ask_decider
            or in_flight.something_ended
            or in_flight.has_acknowledged
            or self._restoration.can_proceed
            or self._shutdown_status is not None
        ):
            self._settle()
        return self._out.take()

    def _take(self, event: CheckpointCoordinatorEvent) -> None:
        match event:
            case AcknowledgesReceived():
                self._acknowledges_received(event)
            case DeclineReceived():
                self._decline_received(event)
            case ExecutionsChanged():
                self._executions_changed(event)
            case TimerFired():
                self._timer_fired(event)
            case CheckpointRequested():
                self._requested(event)
            case StopWithSavepointRequested():
                self._stop_with_savepoint(event)
            case StartCheckpointScheduler():
                self._start_scheduler(event)
            case StopCheckpointScheduler():
                self._stop_scheduler(event)
            case JobHasStopped():
                self._has_stopped = True
            case AbortPendingCheckpoints():
                self._abort_all(event)
            case EndOfDataReceived():
                self._end_of_data(event)
            case TaskFailed():
                self._task_failed(event)
            case TopologyChanged():
                self._topology_changed(event)
            case CheckpointIdDrawn():
                self._id_drawn(event)
            case CheckpointIdFailed():
                self._id_failed(event)
            case MasterHookAnswered():
                self._hook_answered(event)
            case MasterHookFailed():
                self._hook_failed(event)
            case MasterHookRestored():
                self._hook_restored(event)
            case CheckpointStored():
                self._checkpoint_stored(event)
            case CheckpointStoreFailed():
                self._store_failed(event)
            case CompletedCheckpointRemoved():
                self._removed(event)
            case CompletedCheckpointsRecovered():
                self._recovered(event)
            case CompletedCheckpointsRecoveryFailed():
                self._recovery_failed(event)
            case CheckpointIdCountSet():
                self._id_count_set(event)
            case RestoreLatest() | RestoreSavepoint():
                self._restore_requested(event)
            case Shutdown():
                self._shutdown(event)
            case _:
                raise InvariantViolation(f"{type(event).__name__} is no event of a checkpoint coordinator")

    def _settle(self) -> None:
        """Begin what could not begin before, until nothing more can."""
        in_flight = self._in_flight
        while True:
            if in_flight.something_ended:
                in_flight.something_ended = False
                self._ask_decider = True
            if in_flight.has_acknowledged and self.publication.storing is None:
                left_states = self._restoration.left_states
                self._out += in_flight.store_next(self.executions.vertices, left_states, self._now_ms)
            elif self._ask_decider and self._shutdown_status is None:
                self._ask_decider = False
                self._decided(self._decider.poll(self._inputs()))
            elif self._restoration.can_proceed and not in_flight.is_deciding:
                self._has_stopped = False
                self._out += self._restoration.proceed(self.executions, self._now_ms)
                in_flight.forget_final_states(self.executions)
            else:
                break
        if self._shutdown_status is not None:
            self._finish_shutdown(self._shutdown_status)

    # --- scheduling and requests --------------------------------------------------------------------------------------

    def _start_scheduler(self, event: StartCheckpointScheduler) -> None:
        check(
            self._shutdown_status is None,
            "the checkpoint scheduler was to be started, and the checkpoint coordinator is shut down",
        )
        if self.configuration.is_periodic:
            if self._periodic.is_started:
                self._stop_scheduler(None)
            self._is_periodic_wanted = True
            if not self._is_stopping:
                self._out.append(self._periodic.start(self._now_ms, event.initial_delay_ms))

    def _stop_scheduler(self, _: StopCheckpointScheduler | None) -> None:
        if self._shutdown_status is None:
            self._is_periodic_wanted = False
            self._reports.stopped()
            self._out += self._periodic.stop()
            self._abort_queued_and_pending(CheckpointFailureReason.CHECKPOINT_COORDINATOR_SUSPEND)

    def _requested(self, event: CheckpointRequested) -> None:
        self._request(event.request_id, event.snapshot_type, event.target_location, is_periodic=event.is_periodic)

    def _stop_with_savepoint(self, event: StopWithSavepointRequested) -> None:
        was_wanted = self._is_periodic_wanted
        self._stop_scheduler(None)
        self._is_periodic_wanted = was_wanted
        kind = SnapshotType.SAVEPOINT_TERMINATE if event.drain else SnapshotType.SAVEPOINT_SUSPEND
        self._request(event.request_id, kind, event.target_location)

    @property
    def _is_stopping(self) -> bool:
        """Whether a savepoint that the job stops with is wanted, under way, or complete."""
        triggering = self._triggering
        return (
            self._has_stopped
            or self._decider.has_synchronous
            or (triggering is not None and not triggering.pending and triggering.request.properties.is_synchronous)
            or any(pending.properties.is_synchronous for pending in self._in_flight.pending_checkpoints)
        )

    def _end_of_data(self, event: EndOfDataReceived) -> None:
        # A savepoint that the job stops with is the last thing that tasks wait for; when it fails, the job starts
        # again.
        if self.executions.end_of_data(event.attempt_ids) and self.configuration.is_periodic and not self._is_stopping:
            self._request(self._own_request_id("end-of-data"), SnapshotType.CHECKPOINT)

    def _periodic_trigger_fired(self) -> None:
        next_timer = self._periodic.fired(self._now_ms)
        if next_timer is not None:
            self._out.append(next_timer)
            self._request(self._own_request_id("periodic"), SnapshotType.CHECKPOINT, is_periodic=True)

    def _own_request_id(self, kind: str) -> CheckpointRequestID:
        return CheckpointRequestID(f"{kind}-{self._sequence + 1}")

    def _request(
        self,
        request_id: CheckpointRequestID,
        snapshot_type: SnapshotType,
        target_location: str = "",
        *,
        is_periodic: bool = False,
    ) -> None:
        self._sequence += 1
        request = CheckpointTriggerRequest(
            request_id=request_id,
            properties=self.configuration.properties_of(snapshot_type),
            target_location=target_location,
            is_periodic=is_periodic,
            timestamp_ms=self._now_ms,
            sequence=self._sequence,
        )
        if self._shutdown_status is not None:
            self._refuse(request, CheckpointFailureReason.CHECKPOINT_COORDINATOR_SHUTDOWN)
        elif not target_location and (snapshot_type.is_savepoint or not self._has_directory):
            detail = "A savepoint needs a directory to be written to."
            if not snapshot_type.is_savepoint:
                detail = f"There is no place for checkpoints: set {CHECKPOINTS_DIRECTORY.key}."
            self._refuse(request, CheckpointFailureReason.TRIGGER_CHECKPOINT_FAILURE, detail)
        else:
            self._decided(self._decider.submit(request, self._inputs()))

    def _inputs(self) -> DeciderInputs:
        return DeciderInputs(
            is_triggering=self._triggering is not None,
            pending_count=self._in_flight.count,
            cleaning_count=self.publication.cleaning_count,
            last_completion_ms=self._in_flight.last_completion_ms,
            now_ms=self._now_ms,
        )

    def _decided(self, decision: Decision) -> None:
        for request, reason in decision.dropped:
            self._refuse(request, reason)
        if decision.reschedule_ms is not None:
            self._out += self._periodic.reschedule(self._now_ms, decision.reschedule_ms)
        if decision.chosen is not None:
            self._start_triggering(decision.chosen)

    def _refuse(self, request: CheckpointTriggerRequest, reason: CheckpointFailureReason, detail: str = "") -> None:
        """The request ends before it has a checkpoint id."""
        self._out.append(CheckpointRequestFailed(request.request_id, reason, detail))
        self._out += self._reports.refused(request, reason, detail, self._now_ms)
        resumes = request.properties.is_synchronous and self._is_periodic_wanted and not self._has_stopped
        if resumes and not self._periodic.is_started and self._shutdown_status is None:
            self._out.append(self._periodic.start(self._now_ms, self.configuration.effective_interval_ms))

    # --- triggering ---------------------------------------------------------------------------------------------------

    def _refusal(self, request: CheckpointTriggerRequest) -> CheckpointFailureReason | None:
        if self._shutdown_status is not None:
            return CheckpointFailureReason.CHECKPOINT_COORDINATOR_SHUTDOWN
        if request.is_periodic and not self._periodic.is_started:
            return CheckpointFailureReason.PERIODIC_SCHEDULER_SHUTDOWN
        return None

    def _start_triggering(self, request: CheckpointTriggerRequest) -> None:
        check(self._triggering is None, f"{request.request_id} was started while another request is being triggered")
        reason = self._refusal(request)
        if reason is not None:
            self._trigger_failed(request, reason)
            return
        plan = self._plan()
        if isinstance(plan, PlanRefused):
            self._plan_refused(request, plan)
            return
        self._triggering = Triggering(request, self._now_ms, plan, self.executions.version)
        self._out.append(DrawCheckpointId(request.request_id, _target_of(request)))

    def _plan(self) -> CheckpointPlan | PlanRefused:
        plan = self._plans.calculate(self.executions)
        if isinstance(plan, CheckpointPlan) and not plan.tasks_to_wait_for:
            return PlanRefused("no task is left that could take part: all have finished", is_over=True)
        if isinstance(plan, CheckpointPlan) and plan.finished_tasks and self._has_stopped:
            # what has only stopped would count as a task that has read everything
            return PlanRefused("the job has stopped with a savepoint", is_over=True)
        return plan

    def _plan_refused(self, request: CheckpointTriggerRequest, refused: PlanRefused) -> None:
        reason = CheckpointFailureReason.NOT_ALL_REQUIRED_TASKS_RUNNING
        if not refused.is_over:
            self._trigger_failed(request, reason, refused.detail)
            return
        self._end_triggering()
        self._refuse(request, reason, refused.detail)

    def _trigger_failed(
        self, request: CheckpointTriggerRequest, reason: CheckpointFailureReason, detail: str = ""
    ) -> None:
        """The request fails before it has a checkpoint id."""
        self._end_triggering()
        self._refuse(request, reason, detail)
        self.stats.report_failed_without_in_progress(
            f"{reason.message} {detail}".strip() if request.is_periodic else ""
        )
        verdict = self._failures.handle_failure(None, request.properties, reason, None, detail)
        if verdict is not None:
            self._out.append(failure_effect(verdict, reason))

    def _end_triggering(self) -> None:
        self._triggering = None
        self._ask_decider = True

    def _drawing(self, request_id: CheckpointRequestID) -> Triggering | None:
        """What waits for this id; None when it was given up meanwhile."""
        triggering = self._triggering
        if triggering is None or triggering.pending is not None or triggering.request.request_id != request_id:
            return None
        return triggering

    def _id_failed(self, event: CheckpointIdFailed) -> None:
        triggering = self._drawing(event.request_id)
        if triggering is not None:
            reason = CheckpointFailureReason.TRIGGER_CHECKPOINT_FAILURE
            what = "The savepoint cannot be written" if event.cannot_write else "No checkpoint id could be drawn"
            self._trigger_failed(triggering.request, reason, f"{what}: {event.detail}")

    def _id_drawn(self, event: CheckpointIdDrawn) -> None:
        triggering = self._drawing(event.request_id)
        if triggering is None:
            return
        # The world went on while the id was drawn: ask everything again.
        reason = self._refusal(triggering.request)
        if reason is not None:
            self._trigger_failed(triggering.request, reason)
            return
        if triggering.executions_version != self.executions.version:
            plan = self._plan()
            if isinstance(plan, PlanRefused):
                self._plan_refused(triggering.request, plan)
                return
            triggering.plan = plan
        self._begin_checkpoint(triggering, event.checkpoint_id)

    def _begin_checkpoint(self, triggering: Triggering, checkpoint_id: CheckpointID) -> None:
        request = triggering.request
        properties = request.properties
        if self._restoration.force_full_snapshot and not properties.is_savepoint:
            properties = replace(properties, snapshot_type=SnapshotType.FULL_CHECKPOINT)
        pending = PendingCheckpoint(
            job_id=self.job_id,
            checkpoint_id=checkpoint_id,
            timestamp_ms=triggering.timestamp_ms,
            properties=properties,
            location=_target_of(request) or checkpoint_location(checkpoint_id),
            plan=triggering.plan,
            master_hooks=self.hooks.hook_ids,
            tasks_restored_as_finished=self._restoration.tasks_as_finished,
        )
        self._in_flight.begin(pending, request)
        self._out += self._reports.begun(request, self._now_ms)
        pending.set_canceller()
        timeout_at_ms = self._now_ms + self.configuration.timeout_ms
        self._out.append(StartTimer(CheckpointTimeoutKey(self.job_id, checkpoint_id), timeout_at_ms))
        triggering.pending = pending
        for hook_id in self.hooks.hook_ids:
            self._out.append(TriggerMasterHook(hook_id, checkpoint_id, pending.timestamp_ms))
        if pending.are_hooks_fully_acknowledged:
            self._trigger_tasks(pending)

    def _trigger_tasks(self, pending: PendingCheckpoint) -> None:
        self._end_triggering()
        options = self.configuration.options_of(pending.properties.snapshot_type, pending.location)
        self.publication.may_have_leftovers = True
        tasks = pending.plan.tasks_to_trigger
        if tasks:
            checkpoint_id, timestamp_ms = pending.checkpoint_id, pending.timestamp_ms
            trigger = TriggerCheckpoint(self.job_id, tasks[0], checkpoint_id, timestamp_ms, options)
            self._out.append(ForTasks(trigger, tasks))
        self._in_flight.check_acknowledged(pending.checkpoint_id)

    def _asking_hooks(self, checkpoint_id: CheckpointID) -> PendingCheckpoint | None:
        pending = None if self._triggering is None else self._triggering.pending
        return pending if pending is not None and pending.checkpoint_id == checkpoint_id else None

    def _hook_answered(self, event: MasterHookAnswered) -> None:
        pending = self._asking_hooks(event.checkpoint_id)
        if pending is None:
            return
        if pending.is_disposed:  # expired or aborted meanwhile; the tasks never hear of it
            self._end_triggering()
            return
        pending.acknowledge_master_state(event.hook_id, event.state)
        if pending.are_hooks_fully_acknowledged:
            self._trigger_tasks(pending)

    def _hook_failed(self, event: MasterHookFailed) -> None:
        if event.checkpoint_id is None:
            self._hook_restored(event)
            return
        pending = self._asking_hooks(event.checkpoint_id)
        if pending is None:
            return
        self._end_triggering()
        if not pending.is_disposed:
            reason = CheckpointFailureReason.TRIGGER_CHECKPOINT_FAILURE
            detail = f"Master hook {event.hook_id!r} failed: {event.detail}"
            self._out += self._in_flight.abort(pending, reason, self._now_ms, detail=detail)

    def _hook_restored(self, event: MasterHookRestored | MasterHookFailed) -> None:
        self._out += self._restoration.hook_answered(event)

    # --- messages of tasks --------------------------------------------------------------------------------------------

    def _acknowledges_received(self, event: AcknowledgesReceived) -> None:
        if self._shutdown_status is None:
            self._out += self._in_flight.acknowledge(event.messages, self._now_ms)
            return
        self._out += [self._too_late(message) for message in event.messages]

    def _decline_received(self, event: DeclineReceived) -> None:
        if self._shutdown_status is None:
            self._out += self._in_flight.decline(event.message, self._now_ms)
        else:
            self._out.append(self._too_late(event.message))

    def _too_late(self, message: AcknowledgeCheckpoint | DeclineCheckpoint) -> MessageRefused:
        detail = f"the checkpoint coordinator of job {self.job_id} is shut down"
        return MessageRefused(message.checkpoint_id, message.attempt_id, detail)

    # --- tasks come and go --------------------------------------------------------------------------------------------

    def _executions_changed(self, event: ExecutionsChanged) -> None:
        failed, finished = self.executions.apply(event.changes)
        if self._in_flight.count == 0:
            return
        abort = self._in_flight.abort_unacknowledged
        for attempt in failed:
            detail = f"{self._task_name(attempt)} is gone."
            self._out += abort(attempt, CheckpointFailureReason.TASK_FAILURE, detail, self._now_ms)
        again: list[CheckpointTriggerRequest] = []
        for attempt in finished:
            requests, effects = self._in_flight.task_finished(attempt, self._now_ms)
            again += requests
            self._out += effects
        for request in again:
            self._begin_again(request)

    def _task_name(self, attempt: ExecutionAttemptID) -> str:
        return self.executions.task_name(attempt)

    def _begin_again(self, request: CheckpointTriggerRequest) -> None:
        """Without the tasks that have finished meanwhile."""
        if self._triggering is not None and self._triggering.request.request_id == request.request_id:
            self._end_triggering()
        self._sequence += 1
        repeated = replace(
            request, timestamp_ms=self._now_ms, sequence=self._sequence, repetition=request.repetition + 1
        )
        self._decided(self._decider.submit(repeated, self._inputs()))

    def _task_failed(self, event: TaskFailed) -> None:
        reason = CheckpointFailureReason.TASK_FAILURE
        self._out += self._in_flight.abort_unacknowledged(event.attempt_id, reason, event.detail, self._now_ms)

    def _topology_changed(self, event: TopologyChanged) -> None:
        self._replace_tasks("The job is being rescaled.")
        self.executions = ExecutionTracker(self._restoration.with_max_parallelism(event.vertices), event.edges)
        self._plans = self._plan_calculator()
        self._in_flight.forget_final_states(self.executions)

    def _plan_calculator(self) -> CheckpointPlanCalculator:
        if self._given_plan_calculator is not None:
            return self._given_plan_calculator
        after_finish = self.configuration.checkpoints_after_tasks_finish
        return DefaultCheckpointPlanCalculator(checkpoints_after_tasks_finish=after_finish)

    def _replace_tasks(self, detail: str) -> None:
        """Nothing that the present tasks do counts any more, but for a checkpoint that is being stored."""
        reason = CheckpointFailureReason.JOB_FAILOVER_REGION
        self._out += self._in_flight.abort_pending(reason, self._now_ms, detail=detail)
        triggering = self._triggering
        if triggering is not None and triggering.pending is None:  # it would trigger the old tasks
            reason = CheckpointFailureReason.NOT_ALL_REQUIRED_TASKS_RUNNING
            self._trigger_failed(triggering.request, reason, detail)

    # --- aborting -----------------------------------------------------------------------------------------------------

    def _timer_fired(self, event: TimerFired) -> None:
        match event.key:
            case PeriodicTriggerKey(job_id) if job_id == self.job_id:
                self._periodic_trigger_fired()
            case CheckpointTimeoutKey(job_id, checkpoint_id) if job_id == self.job_id:
                self._out += self._in_flight.expire(checkpoint_id, self._now_ms)

    def _abort_all(self, event: AbortPendingCheckpoints) -> None:
        self._out += self._in_flight.abort_pending(event.reason, self._now_ms, detail=event.detail)

    def _abort_queued_and_pending(self, reason: CheckpointFailureReason) -> None:
        for request in self._decider.abort_all():
            self._refuse(request, reason)
        self._out += self._in_flight.abort_pending(reason, self._now_ms)

    # --- storing ------------------------------------------------------------------------------------------------------

    def _checkpoint_stored(self, event: CheckpointStored) -> None:
        self._check_storing(event.checkpoint_id)
        pending, effects = self._in_flight.stored(self._now_ms)
        self._out += effects
        if pending is None and self._shutdown_status is not None:  # its hooks are closed
            self._out += self._restoration.adoption_failed("the checkpoint coordinator was shut down")
        elif pending is None:
            self._out += self._restoration.adopted(self.executions, self._now_ms)
        elif pending.properties.is_synchronous:
            self._has_stopped = True
        elif not pending.properties.is_savepoint:
            self._restoration.force_full_snapshot = False
            if self._restoration.sweeps_next:
                self._restoration.sweeps_next = False
                self._out += self.publication.leftovers_before(pending.checkpoint_id)

    def _store_failed(self, event: CheckpointStoreFailed) -> None:
        self._check_storing(event.checkpoint_id)
        is_adoption_failed, effects = self._in_flight.store_failed(event, self._now_ms)
        self._out += effects
        if is_adoption_failed:
            self._out += self._restoration.adoption_failed(event.detail)

    def _check_storing(self, checkpoint_id: CheckpointID) -> None:
        check(self.publication.is_storing(checkpoint_id), f"checkpoint {checkpoint_id} was not being stored")

    def _removed(self, event: CompletedCheckpointRemoved) -> None:
        self.publication.removed(event.checkpoint_id)
        self._ask_decider = True

    # --- restoring ----------------------------------------------------------------------------------------------------

    def _restore_requested(self, event: RestoreLatest | RestoreSavepoint) -> None:
        if self._shutdown_status is not None:
            self._out.append(RestoreFailed(event.request_id, "the checkpoint coordinator is shut down"))
            return
        self._replace_tasks("Tasks are being restored.")
        self._out += self._restoration.request(event)

    def _recovered(self, event: CompletedCheckpointsRecovered) -> None:
        if not self._store_is_shut_down:
            self._restoration.recovered(event)

    def _recovery_failed(self, event: CompletedCheckpointsRecoveryFailed) -> None:
        self._out += self._restoration.recovery_failed(event)
        if self._shutdown_status is not None:
            self._restoration.is_store_read = True  # what cannot be read now stays for its user

    def _id_count_set(self, event: CheckpointIdCountSet) -> None:
        if self._shutdown_status is None:
            self._out += self._restoration.id_count_set(event)
        else:
            self._out += self._restoration.adoption_failed("the checkpoint coordinator was shut down")

    # --- the end ------------------------------------------------------------------------------------------------------

    def _shutdown(self, event: Shutdown) -> None:
        if self._shutdown_status is not None:
            return
        self._shutdown_status = event.status
        self._out += self._periodic.stop()
        self._abort_queued_and_pending(CheckpointFailureReason.CHECKPOINT_COORDINATOR_SHUTDOWN)
        self._out += self._restoration.shut_down()
        self._out += [CloseMasterHook(hook_id) for hook_id in self.hooks.hook_ids]

    def _finish_shutdown(self, status: JobStatus) -> None:
        """What is being stored is decided first; then completed checkpoints stay or go as their retention says, those
        of former leaders too."""
        if not self._store_is_shut_down and not self._in_flight.is_deciding:
            if self._store_survives_suspension and status.is_globally_terminal and not self._restoration.is_store_read:
                self._out += self._restoration.read_store()
                return
            self._store_is_shut_down = True
            self._out += self.publication.shutdown(status)
            self._out += [ShutdownIdCounter(status), PersistStatistics()]
            if self._has_staged_rows and status.is_globally_terminal and not self._is_snapshot_kept:
                self._out.append(DeleteStagedRows())
        is_drawing = self._triggering is not None and self._triggering.pending is None
        uses_id_counter = is_drawing or self._restoration.is_setting_id
        is_cleaning = self.publication.cleaning_count > 0
        if self._store_is_shut_down and not uses_id_counter and not is_cleaning and not self._is_over:
            self._is_over = True
            self._out += self.publication.close()
            self._out.append(CoordinatorShutDown(status))

    @property
    def _is_snapshot_kept(self) -> bool:
        """Whether another job can start from a snapshot of this one."""
        return self.publication.has_kept or self.stats.latest_savepoint is not None


def _target_of(request: CheckpointTriggerRequest) -> str:
    """Another one for each repetition: the files of the one before are being deleted."""
    target = request.target_location
    return f"{target}-{request.repetition + 1}" if target and request.repetition else target
