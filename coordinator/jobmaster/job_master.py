"""JobMaster: one job, from its submission to its end.

Composes the Scheduler (what runs where), the CheckpointCoordinator (what of it is durable), heartbeats to the
TaskManagers, and the registration with the ResourceManager; carries messages between them and the connections. What it
decides itself: who is registered, which messages are stale, when a TaskManager counts as lost, what a client is told,
and that nothing of the job is left when it is over.

Stale first: an envelope of another leader session is dropped, a message of a TaskManager that is not registered on that
connection closes the connection, and what one says of an attempt that another one runs is refused. Deployed executions
are reconciled with every heartbeat: what the TaskManager runs and nobody wants is cancelled, what it should run and
does not has failed. Mirrors Flink's JobMaster with DefaultExecutionDeploymentReconciler; there are no main-thread
futures here, because what must wait is an effect.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from snapline.coordinator.checkpoint.effects import (
    CheckpointCoordinatorEffect,
    CheckpointRequestCompleted,
    CheckpointRequestFailed,
    CoordinatorShutDown,
    FailJob,
    FailTask,
    RestoreFailed,
    StateRestored,
)
from snapline.coordinator.checkpoint.events import (
    AcknowledgesReceived,
    CheckpointCoordinatorEvent,
    CheckpointRequestID,
    DeclineReceived,
    EndOfDataReceived,
    ExecutionsChanged,
    RestoreLatest,
    RestoreSavepoint,
    Shutdown,
    StartCheckpointScheduler,
    TopologyChanged,
)
from snapline.coordinator.execution.deployment import RestoredTasks
from snapline.coordinator.execution.given_slots import ANYTHING_IS_GIVEN, GivenSlots
from snapline.coordinator.execution.restart_strategy import RestartStrategy
from snapline.coordinator.jobmaster.adoption import news_for_checkpoints, news_for_tasks
from snapline.coordinator.jobmaster.client_operations import (
    AskForSnapshot,
    ClientOperations,
    ClientOperationsEffect,
    Scheduled,
)
from snapline.coordinator.jobmaster.closed_job_master import answer_when_closed
from snapline.coordinator.jobmaster.effects import (
    ForgetJobGraph,
    JobMasterEffect,
    JobReachedTerminalState,
    LoadSavepoint,
    ReportJobStatus,
)
from snapline.coordinator.jobmaster.events import (
    JobGraphForgotten,
    JobGraphUpdated,
    JobMasterEvent,
    JobMasterStarted,
    JobMasterSuspended,
    OperationRequested,
    SavepointLoaded,
    SavepointLoadFailed,
)
from snapline.coordinator.jobmaster.identity import (
    RECONCILING_ROUND,
    RESTORE_PREFIX,
    IdleSlotTimer,
    JobMasterIdentity,
    ReconciliationTimer,
    round_of,
)
from snapline.coordinator.jobmaster.job_master_settings import JobMasterSettings
from snapline.coordinator.jobmaster.job_past import NO_PAST, JobPast
from snapline.coordinator.jobmaster.pending_operations import refused
from snapline.coordinator.jobmaster.reconciliation import Adoptable, AdoptionRefused, Reconciliation, Waiting
from snapline.coordinator.jobmaster.rescaling import RescaleTimer
from snapline.coordinator.jobmaster.resource_manager_connection import (
    ResourceManagerConnection,
    ResourceManagerConnectionEffect,
)
from snapline.coordinator.jobmaster.scheduler import Scheduler
from snapline.coordinator.jobmaster.scheduler_effects import (
    CancelAt,
    CancellationTimer,
    GiveSlotsBack,
    GiveUpTaskManager,
    JobStatusReached,
    RestartDelayTimer,
    RestoreTasks,
    SchedulerEffect,
    SlotRequestTimer,
    SubmitTo,
    TellExecutions,
    TellTopology,
)
from snapline.coordinator.jobmaster.speakers import Speakers
from snapline.coordinator.jobmaster.taps import TapTimer
from snapline.coordinator.jobmaster.task_managers import TaskManagerTable
from snapline.coordinator.jobmaster.watermark_alignment import WatermarkAlignment
from snapline.dataflow.failures import Blame, SerializedFailure
from snapline.dataflow.graph.jobgraph import JobGraph
from snapline.dataflow.ids import CheckpointID, ExecutionAttemptID, ExecutionVertexID, ResourceID
from snapline.dataflow.snapshot.handles import CheckpointMetadata
from snapline.dataflow.urls import is_absolute
from snapline.dataflow.wire.messages import (
    AcknowledgeCheckpoint,
    CancelTask,
    CheckpointMessage,
    DeclineCheckpoint,
    Disconnect,
    EndOfDataReached,
    Fenced,
    ForTasks,
    FreeSlot,
    HeartbeatRequest,
    HeartbeatResponse,
    JobStatus,
    JobStatusChanged,
    NotifyTaskManagerLost,
    OfferSlots,
    RegisterJobMaster,
    RegisterTaskExecutorAtJobMaster,
    RegistrationRejected,
    RegistrationSuccess,
    ReportExecutions,
    ReportWatermark,
    SlotOffer,
    SlotOffersAnswered,
    TapTask,
    TaskMetrics,
    TaskStateChanged,
    TaskTapped,
)
from snapline.runtime.cores.connections import (
    CloseConnection,
    ConnectionID,
    ConnectionLost,
    ConnectionOpened,
    MessageReceived,
    MessagesReceived,
    ResourceManagerLeaderChanged,
    Send,
    SendToTasks,
    TogetherReceived,
)
from snapline.runtime.cores.heartbeat import UNSENT_HEARTBEAT, HeartbeatMonitor, HeartbeatTimer
from snapline.runtime.cores.machine import CancelTimer, CollectedEffects, Machine, StartTimer, TimerFired, check

CheckpointCoordinatorCore = Machine[CheckpointCoordinatorEvent, CheckpointCoordinatorEffect]


class JobMaster:
    """The core of one job under one leader."""

    def __init__(
        self,
        job_graph: JobGraph,
        identity: JobMasterIdentity,
        settings: JobMasterSettings,
        restart_strategy: RestartStrategy,
        checkpoint_coordinator: CheckpointCoordinatorCore,
        checkpoint_directory: str,
        draw_id: Callable[[], str],
        now_ms: int,
        past: JobPast = NO_PAST,
        given: GivenSlots = ANYTHING_IS_GIVEN,
    ) -> None:
        """`checkpoint_directory` is `<base>/<job>`; `draw_id` gives hexadecimal strings that never repeat.
        `past` is what former leaders have left; `given` knows which slots coordinators have given. Raises
        ValueError for a graph that cannot run."""
        self.job_id = job_graph.job_id
        self.identity = identity
        self._settings = settings
        self._checkpoint_coordinator = checkpoint_coordinator
        self._checkpoint_directory = checkpoint_directory
        self._now_ms = now_ms
        self.task_managers = TaskManagerTable()
        self.metrics: dict[ExecutionVertexID, TaskMetrics] = {}
        """The last counters of every subtask, of whichever attempt; for reading only."""
        self.scheduler = Scheduler(
            job_graph,
            identity.execution_graph_id,
            settings,
            restart_strategy,
            self.task_managers.exchange_address_of,
            checkpoint_directory,
            now_ms,
            self.task_managers.host_of,
            given,
        )
        self.scheduler.go_on_from(past)
        self._heartbeats: HeartbeatMonitor[ResourceID] = HeartbeatMonitor("task-managers", settings.heartbeat)
        register = RegisterJobMaster(self.job_id, job_graph.name, identity.address, identity.session)
        self._resource_manager = ResourceManagerConnection(register, settings.registration)
        self._speakers = Speakers(lambda: self.scheduler.graph)
        self._alignment = WatermarkAlignment(self._may_be_live)
        self._clients = ClientOperations(
            self.scheduler, settings, draw_id, self.url_of, lambda: self._resource_manager.note
        )
        self._recovered = False
        self._reconciliation: Reconciliation | None = None
        """Not None: a former leader's tasks are waited for."""
        self._reconciling_note = ""
        self._latest_completed: CheckpointID | None = None
        """The latest checkpoint that the leaders before completed, 0 for none; None while that is not known."""
        self._had_finished: frozenset[ExecutionVertexID] = frozenset()
        """The subtasks that had finished in the checkpoint that the job started from."""
        self._has_adopted = False
        """Just now: the next checkpoint begins at once."""
        self._loading_round = 0
        """The round that waits for a savepoint to be read."""
        self._idle_timer_ms: int | None = None
        self._is_closed = False
        self._is_ended = False
        self._shown_status = JobStatus.CREATED
        self._queue: deque[SchedulerEffect | CheckpointCoordinatorEffect] = deque()
        self._out: CollectedEffects[JobMasterEffect] = CollectedEffects()

    # --- reading ------------------------------------------------------------------------------------------------------

    @property
    def status(self) -> JobStatus:
        """The status of the job, as everybody may know it: the one that was reported last."""
        return self._shown_status

    @property
    def status_detail(self) -> str:
        """What the job waits for, one line, empty when it waits for nothing."""
        if self._reconciling_note:
            return self._reconciling_note
        if self._is_closed and self.status is not self.scheduler.status:
            return f"{self.scheduler.status.value} as soon as the job graph is removed from the job graph store"
        if self.scheduler.slots_missing:
            pool = self.scheduler.pool
            shortage = pool.shortage(pool.required, pool.programs_required, self._resource_manager.note)
            return f"waiting for slots: {shortage}"
        current = self.scheduler.round
        return self._clients.detail if current is None else current.waits_for

    def url_of(self, location: str) -> str:
        """Where a checkpoint lies: locations are relative to the job's directory, or absolute."""
        return location if is_absolute(location) else f"{self._checkpoint_directory.rstrip('/')}/{location}"

    # --- the one entry point ------------------------------------------------------------------------------------------

    def handle(self, event: JobMasterEvent, now_ms: int) -> list[JobMasterEffect]:
        """Take one event at `now_ms`, and return what is to be done."""
        if self._is_ended:
            return answer_when_closed(event)
        self._now_ms = now_ms
        self._take(event)
        self._perform_queue()
        self._reconcile()
        self._perform_client_effects(self._clients.advance(self._now_ms))
        self._perform_queue()
        self._declare_required_slots()
        self._watch_idle_slots()
        return self._out.take()

    def _perform_queue(self) -> None:
        while self._queue:
            self._perform(self._queue.popleft())

    def _take(self, event: JobMasterEvent) -> None:
        match event:
            case JobMasterStarted(recovered):
                self._recovered = recovered
                self._report(JobStatus.CREATED, None)
                self._out += self._heartbeats.start(self._now_ms)
                if recovered and self._settings.reconciliation_timeout_ms:
                    self._start_reconciling()
                else:
                    self._schedule(self.scheduler.start(self._now_ms))
            case JobMasterSuspended():
                self._schedule(self.scheduler.suspend(self._now_ms))
            case ResourceManagerLeaderChanged(address, session):
                if self._is_closed:
                    return
                self._perform_registration_effects(
                    self._resource_manager.leader_changed(address, session, self._now_ms)
                )
            case OperationRequested(request_id, operation):
                if self._is_closed:
                    self._out.append(refused(request_id, f"the job is {self.scheduler.status.value}"))
                else:
                    self._perform_client_effects(self._clients.operate(request_id, operation, self._now_ms))
            case SavepointLoaded(metadata, location):
                self._savepoint_loaded(metadata, location)
            case JobGraphUpdated():
                self._schedule(self.scheduler.graph_stored(self._now_ms))
                self._forget_job_graph()
            case JobGraphForgotten():
                self._report(self.scheduler.status, self.scheduler.root_failure)
                self._perform_client_effects(self._clients.job_is_forgotten())
                self._checkpoint(Shutdown(self.scheduler.status))
            case SavepointLoadFailed(detail, retryable):
                self._restore_failed(self._loading_round, detail, retryable=retryable)
            case StartCheckpointScheduler() if self._is_closed:
                pass  # the job ran a moment ago, when the DeActivator heard of it
            case StartCheckpointScheduler() if self._has_adopted:
                self._has_adopted = False
                self._checkpoint(StartCheckpointScheduler(0))  # alignments of what was pending wait for its barriers
            case TimerFired(key):
                self._timer_fired(event, key)
            case TogetherReceived(parts):
                self._acknowledges_received(parts)
            case ConnectionOpened() | ConnectionLost() | MessageReceived():
                if self._resource_manager.owns(event):
                    self._perform_registration_effects(self._resource_manager.handle(event, self._now_ms))
                elif isinstance(event, MessageReceived):
                    self._message_received(event.connection, event.envelope)
                elif isinstance(event, ConnectionLost):
                    self._connection_lost(event.connection, event.reason)
            case _:
                self._checkpoint(event)

    def _timer_fired(self, event: TimerFired, key: object) -> None:
        match key:
            case RestartDelayTimer():
                self._schedule(self.scheduler.restart_delay_over(self._now_ms))
            case SlotRequestTimer():
                self._schedule(self.scheduler.slot_request_timed_out(self._resource_manager.note, self._now_ms))
            case CancellationTimer(resource_id):
                self._schedule(self.scheduler.cancellation_timer_fired(resource_id, self._now_ms))
            case RescaleTimer():
                self._perform_client_effects(self._clients.rescale_timer_fired(self._now_ms))
            case TapTimer():
                self._perform_client_effects(self._clients.tap_timer_fired(key))
            case IdleSlotTimer():
                self._release_idle_slots()
            case ReconciliationTimer():
                self._give_up_reconciling("")
            case _ if self._heartbeats.owns(key):
                self._heartbeats_due(key)
            case _ if self._resource_manager.owns(event):
                self._perform_registration_effects(self._resource_manager.handle(event, self._now_ms))
            case _:
                self._checkpoint(event)

    # --- between the parts --------------------------------------------------------------------------------------------

    def _schedule(self, effects: list[SchedulerEffect]) -> None:
        self._queue.extend(effects)

    def _checkpoint(self, event: CheckpointCoordinatorEvent) -> None:
        self._queue.extend(self._checkpoint_coordinator.handle(event, self._now_ms))

    def _perform(self, effect: SchedulerEffect | CheckpointCoordinatorEffect) -> None:
        match effect:
            case SubmitTo(resource_id, tasks):
                self._send(resource_id, tasks)
            case CancelAt(resource_id, attempt_id):
                self._send(resource_id, CancelTask(attempt_id))
            case GiveSlotsBack(resource_id, allocations):
                for allocation_id in allocations:
                    self._send(resource_id, FreeSlot(allocation_id, "the job has left this TaskManager"))
            case GiveUpTaskManager(resource_id, reason):
                self._disconnect_task_manager(resource_id, reason)
            case TellExecutions(changes):
                self._checkpoint(ExecutionsChanged(changes))
            case TellTopology(job_graph):
                subtasks = self.scheduler.graph.vertices
                self.metrics = {subtask: last for subtask, last in self.metrics.items() if subtask in subtasks}
                self._checkpoint(TopologyChanged(job_graph.vertices, job_graph.edges))
            case RestoreTasks():
                self._restore(effect)
            case JobStatusReached(status, failure):
                self._job_status_reached(status, failure)
            case ForTasks():
                self._tell_tasks(effect)
            case CheckpointRequestCompleted():
                self._perform_client_effects(self._clients.snapshot_completed(effect, self._now_ms))
            case CheckpointRequestFailed():
                self._perform_client_effects(self._clients.snapshot_failed(effect))
            case StateRestored():
                self._state_restored(effect)
            case RestoreFailed(request_id, detail, retryable):
                self._restore_failed(round_of(request_id), detail, retryable=retryable)
            case FailJob(is_under_way=True) if self.scheduler.status is not JobStatus.RUNNING:
                self._schedule(self.scheduler.restart_as_a_whole(self._now_ms))
            case FailJob():
                self._schedule(self.scheduler.fail_global(effect.failure, self._now_ms))
            case FailTask(attempt_id):
                self._schedule(self.scheduler.fail_execution(attempt_id, effect.failure, self._now_ms))
            case CoordinatorShutDown():
                self._is_ended = True
                self._out.append(
                    JobReachedTerminalState(self.job_id, self.scheduler.status, self.scheduler.root_failure)
                )
            case _:
                self._out.append(effect)

    def _perform_client_effects(self, effects: list[ClientOperationsEffect]) -> None:
        for effect in effects:
            match effect:
                case AskForSnapshot(event):
                    self._checkpoint(event)
                case Scheduled(wanted):
                    self._queue.extend(wanted)
                case TapTask(_, attempt_id):
                    execution = check(self.scheduler.graph.find(attempt_id), "an attempt that was just seen is there")
                    self._send(execution.resource_id, effect)
                case _:
                    self._out.append(effect)

    def _job_status_reached(self, status: JobStatus, failure: SerializedFailure | None) -> None:
        # Nobody hears that the job has ended before no new leader would run it again (`JobGraphForgotten`): whoever
        # waits for that goes on from its last checkpoint, or takes its output.
        if not status.is_globally_terminal:
            self._report(status, failure)
        self._perform_client_effects(self._clients.job_status_changed(status))
        if status.is_globally_terminal or status is JobStatus.SUSPENDED:
            self._close(status)

    def _report(self, status: JobStatus, failure: SerializedFailure | None) -> None:
        self._shown_status = status
        session = self.identity.session
        self._out.append(ReportJobStatus(JobStatusChanged(self.job_id, status, self._now_ms, failure, session)))

    def _close(self, status: JobStatus) -> None:
        """The job is over: nobody keeps anything for it."""
        self._is_closed = True
        self._out += self._heartbeats.stop()
        for registered in list(self.task_managers):
            if registered.connection is not None:
                if status is not JobStatus.SUSPENDED:
                    self._send(registered.info.resource_id, Disconnect(f"the job is {status.value}"))
                self._out.append(CloseConnection(registered.connection))
            self.task_managers.remove(registered.info.resource_id)
        self.scheduler.pool.set_required(0)
        self._declare_required_slots()
        self._out += self._resource_manager.send(Disconnect(f"the job is {status.value}"))
        self._perform_registration_effects(self._resource_manager.stop(self._now_ms))
        if status.is_globally_terminal:
            self._forget_job_graph()
        else:
            self._checkpoint(Shutdown(status))

    def _forget_job_graph(self) -> None:
        """Forget the graph of a job that is over, once none is being stored: such a graph would come back."""
        if self._is_closed and self.scheduler.status.is_globally_terminal and not self.scheduler.is_storing_graph:
            self._out.append(ForgetJobGraph(self.job_id))

    # --- restoring ----------------------------------------------------------------------------------------------------

    def _restore(self, effect: RestoreTasks) -> None:
        savepoint = self.scheduler.graph.job_graph.savepoint_restore
        if effect.initial and savepoint.path and not self._recovered:
            self._loading_round = effect.round_number
            self._out.append(LoadSavepoint(savepoint.path))
            return
        allow = savepoint.allow_non_restored_state or not effect.initial
        request_id = CheckpointRequestID(f"{RESTORE_PREFIX}{effect.round_number}")
        self._checkpoint(RestoreLatest(request_id, effect.vertices, allow))

    def _savepoint_loaded(self, metadata: CheckpointMetadata, location: str) -> None:
        if self._is_closed:  # claimed now, it would be deleted with the checkpoints of a job that never had it
            return
        savepoint = self.scheduler.graph.job_graph.savepoint_restore
        request_id = CheckpointRequestID(f"{RESTORE_PREFIX}{self._loading_round}")
        allow = savepoint.allow_non_restored_state
        self._checkpoint(RestoreSavepoint(request_id, metadata, location, savepoint.claim, allow))

    def _state_restored(self, effect: StateRestored) -> None:
        if round_of(effect.request_id) == RECONCILING_ROUND:
            self.scheduler.use_max_parallelism(effect.max_parallelism)
            self._latest_completed = effect.checkpoint_id
            self._had_finished = frozenset(t for t, state in effect.assignments.items() if state.is_task_finished)
            return
        savepoint = self.scheduler.graph.job_graph.savepoint_restore
        if self._recovered and effect.checkpoint_id == 0 and savepoint.path:
            self._recovered = False  # the leader before us never got as far as a checkpoint: start as it did
            self._loading_round = round_of(effect.request_id)
            self._out.append(LoadSavepoint(savepoint.path))
            return
        self.scheduler.use_max_parallelism(effect.max_parallelism)
        restored = RestoredTasks(effect.checkpoint_id, effect.assignments)
        self._schedule(self.scheduler.state_restored(round_of(effect.request_id), restored, self._now_ms))

    def _restore_failed(self, round_number: int, detail: str, *, retryable: bool) -> None:
        if round_number == RECONCILING_ROUND:
            self._give_up_reconciling(f"what was completed cannot be read: {detail}")
            return
        blame = Blame.EXTERNAL if retryable else Blame.USER
        failure = SerializedFailure(detail, blame, retryable=retryable, error_type="RestoreFailed")
        self._schedule(self.scheduler.restore_failed(round_number, failure, self._now_ms))

    # --- what a former leader left ------------------------------------------------------------------------------------

    def _start_reconciling(self) -> None:
        """Find out what runs and what was completed. Nothing is declared to the ResourceManager before that: slots that
        TaskManagers hold for the job must not be asked for a second time."""
        self._reconciliation = self.scheduler.nothing_reported()
        due_ms = self._now_ms + self._settings.reconciliation_timeout_ms
        self._out.append(StartTimer(ReconciliationTimer(), due_ms))
        self._schedule(self.scheduler.start_reconciling(self._now_ms))
        request_id = CheckpointRequestID(f"{RESTORE_PREFIX}{RECONCILING_ROUND}")
        self._checkpoint(RestoreLatest(request_id, None, allow_non_restored_state=True, for_running_tasks=True))

    def _reconcile(self) -> None:
        """Adopt what runs as soon as all of it is known, or restart as soon as it is known that it cannot be
        adopted."""
        reconciliation = self._reconciliation
        if reconciliation is None:
            return
        if not self.scheduler.is_reconciling:  # cancelled, suspended or failed meanwhile
            self._end_reconciling()
            return
        latest_id = self._latest_completed
        if latest_id is None:
            return
        match reconciliation.decide(self.scheduler.pool.has_slot, latest_id, self._had_finished):
            case Waiting(missing):
                self._reconciling_note = f"waiting for reports of {missing} of {len(self.scheduler.graph)} subtasks"
            case AdoptionRefused(reason):
                self._give_up_reconciling(reason)
            case Adoptable() as adoptable:
                self._adopt(adoptable, latest_id)

    def _adopt(self, adoptable: Adoptable, latest_id: CheckpointID) -> None:
        """The tasks that were found go on under this leader."""
        self._end_reconciling()
        self._has_adopted = True
        for other in adoptable.others:
            self._send(other.resource_id, CancelTask(other.report.attempt_id))
        self._schedule(self.scheduler.adopt(adoptable.executions, self._now_ms))
        self._perform_queue()
        for message in news_for_tasks(adoptable, self.job_id, latest_id, self._now_ms):
            self._tell_tasks(message)
        for event in news_for_checkpoints(adoptable, latest_id):
            self._checkpoint(event)
        self._perform_queue()

    def _give_up_reconciling(self, reason: str) -> None:
        """Restart the job: all that was reported ends."""
        reconciliation = self._reconciliation
        if reconciliation is None or not self.scheduler.is_reconciling:
            return
        self._end_reconciling()
        self._resource_manager.note = f"; restarted: {reason}" if reason else ""
        for each in reconciliation.live():
            self._send(each.resource_id, CancelTask(each.report.attempt_id))
        self._schedule(self.scheduler.restart_after_reconciling(self._now_ms))
        self._perform_queue()

    def _end_reconciling(self) -> None:
        self._reconciliation = None
        self._reconciling_note = ""
        self._out.append(CancelTimer(ReconciliationTimer()))

    # --- TaskManagers -------------------------------------------------------------------------------------------------

    def _send(self, resource_id: ResourceID, message: Any) -> None:
        connection = self.task_managers.connection_of(resource_id)
        if connection is not None:
            self._out.append(Send(connection, Fenced(self.identity.session, message)))

    def _tell_tasks(self, message: ForTasks[CheckpointMessage]) -> None:
        """A message for each of the tasks that are connected."""
        find, connection_of = self.scheduler.graph.find, self.task_managers.connection_of
        to: dict[ConnectionID, list[ExecutionAttemptID]] = {}
        for attempt_id in message.attempt_ids:
            execution = find(attempt_id)
            connection = connection_of(execution.resource_id) if execution is not None else None
            if connection is None:
                continue
            tasks = to.get(connection)
            if tasks is None:
                to[connection] = [attempt_id]
            else:
                tasks.append(attempt_id)
        if to:
            everybody = tuple((connection, tuple(tasks)) for connection, tasks in to.items())
            self._out.append(SendToTasks(self.identity.session, message.template, everybody))

    def _acknowledges_received(self, parts: tuple[MessagesReceived, ...]) -> None:
        """Many at once, each part of one TaskManager."""
        acknowledged: list[AcknowledgeCheckpoint] = []
        for part in parts:
            resource_id = self.task_managers.resource_of(part.connection)
            if resource_id is None:
                self._out.append(CloseConnection(part.connection))
            elif part.session == self.identity.session:
                self._heartbeats.receive_heartbeat(resource_id, self._now_ms)
                accepted, refusals = self._speakers.sift(resource_id, part.messages)
                self._out += refusals
                acknowledged += accepted
        if acknowledged:
            self._checkpoint(AcknowledgesReceived(tuple(acknowledged)))

    def _message_received(self, connection: ConnectionID, envelope: Fenced[Any]) -> None:
        resource_id = self.task_managers.resource_of(connection)
        stale = envelope.leader_session_id != self.identity.session
        message = envelope.message
        if resource_id is None:
            if stale or not isinstance(message, RegisterTaskExecutorAtJobMaster):
                self._out.append(CloseConnection(connection))
            else:
                self._register_task_manager(connection, message)
            return
        if stale:
            return
        self._heartbeats.receive_heartbeat(resource_id, self._now_ms)
        match message:
            case OfferSlots(_, _, offers):
                self._slots_offered(resource_id, offers)
            case ReportExecutions(_, _, executions):
                if self._reconciliation is not None:
                    for report in self._reconciliation.report(resource_id, executions):
                        self._note_counters(report.metrics)
            case TaskStateChanged(_, attempt_id, state, failure, metrics) if self._reconciliation is not None:
                self._note_counters(metrics)
                self._reconciliation.state_changed(resource_id, attempt_id, state, failure)
            case EndOfDataReached(_, attempt_id) if self._reconciliation is not None:
                self._reconciliation.end_of_data(resource_id, attempt_id)
            case TaskStateChanged(_, attempt_id, state, failure, metrics):
                if metrics is not None and self._speakers.runs_on(resource_id, attempt_id):
                    self.metrics[attempt_id.execution_vertex_id] = metrics
                self._schedule(self.scheduler.task_state_changed(resource_id, attempt_id, state, failure, self._now_ms))
            case AcknowledgeCheckpoint():
                if not self._is_refused(resource_id, message):
                    self._checkpoint(AcknowledgesReceived((message,)))
            case DeclineCheckpoint():
                if not self._is_refused(resource_id, message):
                    self._checkpoint(DeclineReceived(message))
            case EndOfDataReached(_, attempt_id):
                if self._speakers.runs_on(resource_id, attempt_id):
                    self._checkpoint(EndOfDataReceived((attempt_id,)))
            case HeartbeatResponse():
                self._heartbeat_response(resource_id, message)
            case ReportWatermark():
                if self._may_run(resource_id, message.attempt_id):
                    self._send(resource_id, self._alignment.report(message, self._now_ms))
            case TaskTapped():
                if self._speakers.runs_on(resource_id, message.attempt_id):
                    self._perform_client_effects(self._clients.rows_tapped(message))
            case Disconnect(reason):
                self._task_manager_lost(resource_id, f"it disconnected: {reason}", close=True)

    def _register_task_manager(self, connection: ConnectionID, message: RegisterTaskExecutorAtJobMaster) -> None:
        info = message.info
        known = self.task_managers.get(info.resource_id)
        why_not = ""
        if self._is_closed:
            why_not = f"the job is {self.scheduler.status.value}"
        elif message.job_id != self.job_id:
            why_not = f"this is the JobMaster of {self.job_id}"
        elif known is not None and not info.is_same_process(known.info):
            why_not = known.info.why_not_again
        if why_not:
            rejected = Fenced(self.identity.session, RegistrationRejected(why_not))
            self._out += [Send(connection, rejected), CloseConnection(connection)]
            return
        if known is not None:
            self._task_manager_lost(info.resource_id, "it registered again", close=True)
        self.task_managers.add(info, connection)
        heartbeat = self._settings.heartbeat
        self._send(info.resource_id, RegistrationSuccess(heartbeat.interval_ms, heartbeat.timeout_ms))
        self._out += self._heartbeats.monitor_target(info.resource_id, self._now_ms)

    def _is_refused(self, resource_id: ResourceID, message: AcknowledgeCheckpoint | DeclineCheckpoint) -> bool:
        """Whether the TaskManager speaks for an attempt that is not its own; then that is logged."""
        refusal = self._speakers.refusal(resource_id, message)
        if refusal is not None:
            self._out.append(refusal)
        return refusal is not None

    def _slots_offered(self, resource_id: ResourceID, offers: tuple[SlotOffer, ...]) -> None:
        in_use = () if self._reconciliation is None else self._reconciliation.slots_in_use(resource_id)
        answer = self.scheduler.pool.offer_slots(resource_id, offers, self._now_ms, in_use)
        self._send(resource_id, SlotOffersAnswered(self.job_id, answer.accepted, answer.rejected))
        self._schedule(self.scheduler.slots_offered(self._now_ms))

    def _may_run(self, resource_id: ResourceID, attempt_id: ExecutionAttemptID) -> bool:
        return self._speakers.may_run(resource_id, attempt_id, reconciling=self._reconciliation is not None)

    def _may_be_live(self, attempt_id: ExecutionAttemptID) -> bool:
        """What a former leader left may be, until it is adopted or ended."""
        if self._reconciliation is not None:
            return True
        execution = self.scheduler.graph.find(attempt_id)
        return execution is not None and not execution.state.is_terminal

    def _heartbeat_response(self, resource_id: ResourceID, response: HeartbeatResponse) -> None:
        """Reconcile what the TaskManager has with what it should have."""
        graph = self.scheduler.graph
        for counters in response.metrics:
            subtask = counters.attempt_id.execution_vertex_id
            if subtask in graph.vertices and self._may_run(resource_id, counters.attempt_id):
                self.metrics[subtask] = counters
        deployed = self.scheduler.deployed_on(resource_id)
        running = dict.fromkeys(response.executions)
        for attempt_id in running if self._reconciliation is None else ():
            if attempt_id not in deployed:
                self._send(resource_id, CancelTask(attempt_id))
        missing = [a for a, execution in deployed.items() if execution.confirmed and a not in running]
        if missing:
            self._schedule(self.scheduler.executions_missing(resource_id, missing, self._now_ms))
        if response.report is not None:
            there = {slot.allocation_id for slot in response.report.slots if slot.job_id == graph.job_graph.job_id}
            gone = [a for a in self.scheduler.pool.allocations_of(resource_id) if a not in there]
            if gone:
                reason = "it gave slots of the job away"
                self._schedule(self.scheduler.slots_lost(resource_id, gone, reason, self._now_ms))

    def _connection_lost(self, connection: ConnectionID, reason: str) -> None:
        resource_id = self.task_managers.resource_of(connection)
        if resource_id is None:
            return
        self.task_managers.connection_broken(connection)
        if self._heartbeats.report_delivery(resource_id, arrived=False):
            self._task_manager_lost(resource_id, f"the connection broke: {reason}", close=False)

    def _disconnect_task_manager(self, resource_id: ResourceID, reason: str) -> None:
        """We do not want it any more; it may live."""
        self._send(resource_id, Disconnect(reason))
        self._task_manager_lost(resource_id, reason, close=True)

    def _task_manager_lost(self, resource_id: ResourceID, reason: str, *, close: bool) -> None:
        registered = self.task_managers.remove(resource_id)
        if registered is None:
            return
        if close and registered.connection is not None:
            self._out.append(CloseConnection(registered.connection))
        self._out += self._heartbeats.unmonitor_target(resource_id)
        if self._reconciliation is not None:
            self._reconciliation.forget(resource_id)
        self._schedule(self.scheduler.task_manager_lost(resource_id, reason, self._now_ms))

    def _heartbeats_due(self, key: HeartbeatTimer) -> None:
        due = self._heartbeats.timer_fired(key, self._now_ms)
        for resource_id in due.ask:
            is_connected = self.task_managers.connection_of(resource_id) is not None
            self._send(resource_id, HeartbeatRequest(self.scheduler.pool.allocations_of(resource_id)))
            if self._heartbeats.report_delivery(resource_id, arrived=is_connected):
                self._task_manager_lost(resource_id, UNSENT_HEARTBEAT, close=False)
        for resource_id in due.silent:
            reason = f"no heartbeat for {self._settings.heartbeat.timeout_ms} ms (heartbeat.timeout)"
            self._disconnect_task_manager(resource_id, reason)
        self._out += due.timers

    # --- slots and the ResourceManager --------------------------------------------------------------------------------

    def _perform_registration_effects(self, effects: list[ResourceManagerConnectionEffect]) -> None:
        for effect in effects:
            match effect:
                case NotifyTaskManagerLost(resource_id, reason, terminated):
                    if resource_id not in self.task_managers:
                        continue
                    if terminated:
                        self._task_manager_lost(resource_id, reason, close=True)
                    else:
                        self._disconnect_task_manager(resource_id, f"the ResourceManager says: {reason}")
                case _:
                    self._out.append(effect)

    def _note_counters(self, metrics: TaskMetrics | None) -> None:
        """What a task of a former leader has counted; of two attempts of a subtask the later one counts."""
        if metrics is not None and metrics.attempt_id.execution_vertex_id in self.scheduler.graph.vertices:
            attempt_id = metrics.attempt_id
            known = self.metrics.get(attempt_id.execution_vertex_id)
            if known is None or known.attempt_id.attempt_number <= attempt_id.attempt_number:
                self.metrics[attempt_id.execution_vertex_id] = metrics

    def _declare_required_slots(self) -> None:
        """Say what is needed and held, unless the ResourceManager knows."""
        if self._reconciliation is None:
            self._out += self._resource_manager.declare(self.scheduler.pool)

    def _release_idle_slots(self) -> None:
        self._idle_timer_ms = None
        for slot in self.scheduler.pool.release_idle(self._now_ms):
            self._send(slot.resource_id, FreeSlot(slot.allocation_id, "the job does not need it any more"))

    def _watch_idle_slots(self) -> None:
        due_ms = None if self._is_closed or self._reconciliation else self.scheduler.pool.next_idle_release_ms()
        if due_ms == self._idle_timer_ms:
            return
        self._idle_timer_ms = due_ms
        self._out.append(CancelTimer(IdleSlotTimer()) if due_ms is None else StartTimer(IdleSlotTimer(), due_ms))
