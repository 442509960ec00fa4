"""TaskExecutor: the slots, tasks and connections of one TaskManager.

Registers with the ResourceManager and, for as long as it has slots of a job, with the job's JobMaster; offers slots,
starts and cancels tasks, carries messages between tasks and their JobMaster. What it decides: whose a slot is, what
becomes of a job whose JobMaster is lost, and when the process must end.

* A slot that no JobMaster accepts within `taskmanager.slot.timeout` is free again, unless tasks run in it and their
  JobMaster is looked for.
* A JobMaster that breaks off is looked for as long as `heartbeat.timeout`; then, or at once when it was silent for that
  long, the job's tasks fail and its slots are free. A JobMaster that says Disconnect or rejects us: at once. That none
  leads the job any more, as leader retrieval found, is no reason to hang up.
* After a reconnection everything that runs is reported first, with what it knows of checkpoints: a JobMaster that
  follows a lost one adopts it, any other cancels what it does not want.
* Files of a snapshot that was acknowledged to nobody, because the task ended before a JobMaster was found, are deleted:
  the coordinator, which deletes what it does not need, may have gone with its job.
* A task that does not end within `task.cancellation.timeout` takes the process down, as does a ResourceManager that
  cannot be registered with for `taskmanager.registration.timeout`, or that rejects us.

Stale messages, of another leader session than the one registered with, are dropped by LeaderConnection. Mirrors Flink's
TaskExecutor with its JobTable, JobLeaderService and the watchdog of Task.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from snapline.dataflow.config import (
    HEARTBEAT_TIMEOUT,
    TASK_CANCELLATION_INTERVAL,
    TASK_CANCELLATION_TIMEOUT,
    TASKMANAGER_REGISTRATION_TIMEOUT,
    TASKMANAGER_RELAYS,
    TASKMANAGER_SLOT_TIMEOUT,
    ConfigOption,
    Configuration,
)
from snapline.dataflow.failures import Blame, CheckpointFailureReason, SerializedFailure
from snapline.dataflow.ids import (
    AllocationID,
    CheckpointID,
    ExecutionAttemptID,
    ExecutionVertexID,
    JobID,
    LeaderSessionID,
)
from snapline.dataflow.wire.messages import (
    AcknowledgeCheckpoint,
    AlignWatermarks,
    CancelTask,
    CheckpointMessage,
    DeclineCheckpoint,
    Disconnect,
    EndOfDataReached,
    ExecutionReport,
    ExecutionState,
    FreeSlot,
    HeartbeatRequest,
    HeartbeatResponse,
    NotifyCheckpointAborted,
    NotifyCheckpointComplete,
    NotifySlotAvailable,
    OfferSlots,
    RegisterTaskExecutor,
    RegisterTaskExecutorAtJobMaster,
    ReportExecutions,
    ReportWatermark,
    RequestSlot,
    RequestThreadDump,
    ShutDownTaskExecutor,
    SlotOffersAnswered,
    SlotRequestRejected,
    SubmitTasks,
    TapTask,
    TaskDeploymentDescriptor,
    TaskManagerInfo,
    TaskStateChanged,
    TaskTapped,
    TriggerCheckpoint,
)
from snapline.runtime.cores.connections import (
    RELAY_TIMEOUT_MS,
    CloseConnection,
    ConnectionID,
    ConnectionLost,
    ConnectionOpened,
    MessageReceived,
    OpenConnection,
    Peer,
    PeerKind,
    ResourceManagerLeaderChanged,
    Send,
)
from snapline.runtime.cores.leader_connection import LeaderConnection, LeaderConnectionEffect, LeaderSaid
from snapline.runtime.cores.machine import CancelTimer, CollectedEffects, StartTimer, TimerFired
from snapline.runtime.cores.registration import (
    NO_LEADER,
    Registered,
    RegistrationFailed,
    RegistrationLost,
    RegistrationSettings,
    RegistrationTimedOut,
)
from snapline.taskmanager.executor.effects import (
    CancelTaskExecution,
    DeliverToTask,
    DumpThreads,
    FailTaskExecution,
    ReleaseJobResources,
    ReleaseSnapshots,
    SendHeartbeatResponse,
    StartTask,
    TaskExecutorEffect,
    TerminateTaskManager,
)
from snapline.taskmanager.executor.events import (
    JobMasterLeaderChanged,
    ShutDownRequested,
    TaskEnteredState,
    TaskExecutorEvent,
    TaskExecutorStarted,
    TaskSaid,
    ThreadsDumped,
)
from snapline.taskmanager.executor.slot_table import TaskSlot, TaskSlotState, TaskSlotTable

NO_CHECKPOINT = CheckpointID(0)
NOT_NEEDED = 0
CANNOT_GO_ON = 1
MAX_ENDED_REMEMBERED = 1000
"""Attempts of which it is known that they have run and ended."""


@dataclass(frozen=True, slots=True)
class TaskExecutorSettings:
    """What a TaskExecutor can be told by configuration."""

    registration: RegistrationSettings = field(default_factory=RegistrationSettings)
    """At the ResourceManager; its total timeout is `taskmanager.registration.timeout`."""
    slot_timeout_ms: int = 10_000
    job_master_timeout_ms: int = 50_000
    """How long a lost JobMaster is looked for: `heartbeat.timeout`."""
    cancellation_interval_ms: int = 30_000
    cancellation_timeout_ms: int = 180_000
    """The timeout of tasks whose job does not say one; 0: never."""

    @classmethod
    def from_configuration(cls, configuration: Configuration) -> TaskExecutorSettings:
        """Read the settings of a TaskManager. Raises ConfigurationError."""
        total_ms = configuration.get_option(TASKMANAGER_REGISTRATION_TIMEOUT)
        registration = RegistrationSettings.from_configuration(configuration, total_ms)
        if configuration.get_option(TASKMANAGER_RELAYS):
            registration = registration.with_dialing(RELAY_TIMEOUT_MS)
        return cls(
            registration=registration,
            slot_timeout_ms=configuration.get_option(TASKMANAGER_SLOT_TIMEOUT),
            job_master_timeout_ms=configuration.get_option(HEARTBEAT_TIMEOUT),
            cancellation_interval_ms=configuration.get_option(TASK_CANCELLATION_INTERVAL),
            cancellation_timeout_ms=configuration.get_option(TASK_CANCELLATION_TIMEOUT),
        )

    @property
    def job_registration(self) -> RegistrationSettings:
        """At JobMasters: without end, because other timeouts decide."""
        settings = self.registration
        return RegistrationSettings(
            settings.initial_timeout_ms, settings.max_timeout_ms, settings.error_delay_ms, settings.refused_delay_ms
        )


# --- timer keys -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SlotTimeout:
    """No JobMaster accepted the slot."""

    allocation_id: AllocationID


@dataclass(frozen=True, slots=True)
class JobMasterTimeout:
    """The JobMaster was not found again."""

    job_id: JobID


@dataclass(frozen=True, slots=True)
class CancellationInterval:
    """Cancel the task once more."""

    attempt_id: ExecutionAttemptID


@dataclass(frozen=True, slots=True)
class CancellationTimeout:
    """The task does not end."""

    attempt_id: ExecutionAttemptID


@dataclass(slots=True)
class RunningTask:
    """One task that was started and has not ended."""

    descriptor: TaskDeploymentDescriptor
    slot: TaskSlot
    ending: CancelTaskExecution | FailTaskExecution | None = None
    """How it was told to end, if it was."""
    watched: bool = False
    """Whether a CancellationTimeout runs for the task."""
    state: ExecutionState = ExecutionState.DEPLOYING
    """The state that the task has reported last."""
    last_checkpoint_id: CheckpointID = NO_CHECKPOINT
    """The greatest that it was told of or acknowledged."""
    unconfirmed: dict[CheckpointID, AcknowledgeCheckpoint] = field(default_factory=dict)
    """Acknowledged, and neither completed nor aborted as far as is known here."""
    untold: dict[CheckpointID, None] = field(default_factory=dict)
    """Acknowledged while there was no JobMaster to tell, and not reported to one since."""
    confirmed_id: CheckpointID = NO_CHECKPOINT
    """The greatest of which it was told that it is complete."""
    end_of_data: bool = False
    stops_with: CheckpointID = NO_CHECKPOINT
    """The savepoint of a stop-with-savepoint that was triggered: it stands still after that."""

    def note_delivered(self, message: CheckpointMessage) -> None:
        """Note what the task is told of a checkpoint; one that is complete settles all before it."""
        self.last_checkpoint_id = max(self.last_checkpoint_id, message.checkpoint_id)
        match message:
            case NotifyCheckpointComplete(checkpoint_id=checkpoint_id):
                for older in [known for known in self.unconfirmed if known <= checkpoint_id]:
                    del self.unconfirmed[older]
                self.confirmed_id = max(self.confirmed_id, checkpoint_id)
            case NotifyCheckpointAborted(checkpoint_id=checkpoint_id):
                self.unconfirmed.pop(checkpoint_id, None)
            case TriggerCheckpoint(options=options) if options.snapshot_type.is_synchronous:
                self.stops_with = message.checkpoint_id

    @property
    def report(self) -> ExecutionReport:
        """For a JobMaster that does not know it."""
        return ExecutionReport(
            self.descriptor.attempt_id,
            self.state if self.ending is None else ExecutionState.CANCELING,
            self.slot.allocation_id,
            self.last_checkpoint_id,
            tuple(self.unconfirmed.values()),
            self.end_of_data,
            stopping=self.stops_with != NO_CHECKPOINT,
            confirmed_checkpoint_id=max(self.confirmed_id, self.descriptor.restore_checkpoint_id),
        )


@dataclass(slots=True)
class JobEntry:
    """What is kept for one job."""

    connection: LeaderConnection
    tasks: dict[ExecutionAttemptID, None] = field(default_factory=dict)
    ended: dict[ExecutionVertexID, ExecutionReport] = field(default_factory=dict)
    """Subtasks whose last attempt here has finished, or ended otherwise while there was no JobMaster to tell."""
    timeout_runs: bool = False
    """Whether the timer JobMasterTimeout runs for the job."""


class TaskExecutor:
    """The core of one TaskManager."""

    def __init__(self, info: TaskManagerInfo, settings: TaskExecutorSettings) -> None:
        """Nobody is known, all slots are free."""
        self.info = info
        self._settings = settings
        self.slots = TaskSlotTable(info.resource_id, info.slots)
        self._tasks: dict[ExecutionAttemptID, RunningTask] = {}
        self._ended: dict[ExecutionAttemptID, None] = {}
        """Attempts that have run here, the latest ones."""
        self._jobs: dict[JobID, JobEntry] = {}
        self._dialled = 0
        self._resource_manager = LeaderConnection(
            "resource-manager", settings.registration, RegisterTaskExecutor(info), self._draw_connection
        )
        self._is_terminated = False
        self._now_ms = 0
        self._out: CollectedEffects[TaskExecutorEffect] = CollectedEffects()

    # --- reading ------------------------------------------------------------------------------------------------------

    @property
    def is_registered(self) -> bool:
        """Return whether the TaskManager is registered with the ResourceManager."""
        return self._resource_manager.is_registered

    @property
    def jobs(self) -> tuple[JobID, ...]:
        """Jobs that have slots, tasks or a connection here."""
        return tuple(self._jobs)

    def tasks_of(self, job_id: JobID) -> tuple[ExecutionAttemptID, ...]:
        """Attempts of the job that have not ended."""
        entry = self._jobs.get(job_id)
        return () if entry is None else tuple(entry.tasks)

    # --- the one entry point ------------------------------------------------------------------------------------------

    def handle(self, event: TaskExecutorEvent, now_ms: int) -> list[TaskExecutorEffect]:
        """Take one event. After TerminateTaskManager nothing follows."""
        if self._is_terminated:
            return []
        self._now_ms = now_ms
        self._take(event)
        return self._out.take()

    def _take(self, event: TaskExecutorEvent) -> None:
        match event:
            case TaskExecutorStarted():
                self._follow_resource_manager("", NO_LEADER)
            case ResourceManagerLeaderChanged(address, session):
                self._follow_resource_manager(address, session)
            case JobMasterLeaderChanged(job_id, address, session):
                if job_id in self._jobs:
                    self._follow_job_master(job_id, address, session)
            case TaskEnteredState():
                self._task_entered_state(event)
            case TaskSaid(message):
                self._task_said(message)
            case ThreadsDumped(dump):
                self._tell_resource_manager(dump)
            case ShutDownRequested(reason):
                self._shut_down(reason)
            case TimerFired(SlotTimeout(allocation_id)):
                slot = self.slots.find(allocation_id)
                if slot is None or slot.state is not TaskSlotState.ALLOCATED:
                    return
                if not slot.tasks or not self._jobs[slot.job_id].timeout_runs:
                    self._free_slot(slot, "no JobMaster accepted it within taskmanager.slot.timeout")
            case TimerFired(JobMasterTimeout(job_id)):
                if job_id in self._jobs:
                    self._jobs[job_id].timeout_runs = False
                    lost_ms = self._settings.job_master_timeout_ms
                    self._release_job(
                        job_id, f"its JobMaster did not come back within {lost_ms} ms (heartbeat.timeout)"
                    )
            case TimerFired(CancellationInterval(attempt_id)):
                self._cancel_again(attempt_id)
            case TimerFired(CancellationTimeout(attempt_id)):
                self._cancellation_timed_out(attempt_id)
            case ConnectionOpened() | ConnectionLost() | MessageReceived() | TimerFired():
                self._route(event)

    def _route(self, event: ConnectionOpened | ConnectionLost | MessageReceived | TimerFired) -> None:
        if self._resource_manager.owns(event):
            self._perform_at_resource_manager(self._resource_manager.handle(event, self._now_ms))
            return
        for job_id, entry in self._jobs.items():
            if entry.connection.owns(event):
                self._perform_at_job_master(job_id, entry.connection.handle(event, self._now_ms))
                return

    # --- ResourceManager ----------------------------------------------------------------------------------------------

    def _follow_resource_manager(self, address: str, session: LeaderSessionID) -> None:
        """Register with the one that leads now; an empty address says that none does."""
        peer = Peer(PeerKind.RESOURCE_MANAGER, address)
        self._perform_at_resource_manager(self._resource_manager.leader_changed(peer, session, self._now_ms))

    def _perform_at_resource_manager(self, effects: list[LeaderConnectionEffect]) -> None:
        self._out += _outward(effects)
        for effect in effects:
            match effect:
                case Registered():
                    self._tell_resource_manager(self.slots.report())
                case LeaderSaid(message):
                    self._handle_resource_manager(message)
                case RegistrationFailed(reason):
                    self._terminate(f"the ResourceManager rejected this TaskManager: {reason}", CANNOT_GO_ON)
                case RegistrationTimedOut(reason):
                    total_ms = self._settings.registration.total_timeout_ms
                    self._terminate(
                        f"no ResourceManager took this TaskManager within {total_ms} ms "
                        f"(taskmanager.registration.timeout): {reason}",
                        CANNOT_GO_ON,
                    )
                case _:
                    pass  # also RegistrationLost: tasks go on, the connection is being made again

    def _handle_resource_manager(self, message: Any) -> None:
        match message:
            case HeartbeatRequest():
                self._tell_resource_manager(HeartbeatResponse(report=self.slots.report()))
            case RequestSlot():
                self._request_slot(message)
            case FreeSlot(allocation_id, reason):
                slot = self.slots.find(allocation_id)
                if slot is not None:
                    self._free_slot(slot, reason)
            case RequestThreadDump():
                self._out.append(DumpThreads(message))
            case ShutDownTaskExecutor(reason):
                self._shut_down(reason)
            case Disconnect():
                self._perform_at_resource_manager(self._resource_manager.reregister(self._now_ms))

    def _tell_resource_manager(self, message: Any) -> None:
        self._out += self._resource_manager.send(message)

    # --- slots --------------------------------------------------------------------------------------------------------

    def _request_slot(self, request: RequestSlot) -> None:
        slot = self.slots.find(request.allocation_id)
        if slot is None:
            slot = self.slots.at(request.slot_number)
            if slot is None or slot.state is not TaskSlotState.FREE:
                self._tell_resource_manager(SlotRequestRejected(request.allocation_id, self.slots.report()))
                return
            self.slots.allocate(slot, request.job_id, request.allocation_id)
            due_ms = self._now_ms + self._settings.slot_timeout_ms
            self._out.append(StartTimer(SlotTimeout(request.allocation_id), due_ms))
        self._tell_resource_manager(self.slots.report())
        entry = self._jobs.get(request.job_id)
        if entry is None:
            entry = self._jobs[request.job_id] = JobEntry(self._connection_for(request.job_id))
        if entry.connection.is_registered and entry.connection.session == request.job_master_session:
            self._offer_slots(request.job_id)
        else:
            self._follow_job_master(request.job_id, request.job_master_address, request.job_master_session)

    def _offer_slots(self, job_id: JobID) -> None:
        offers = self.slots.offers(job_id)
        if offers:
            self._tell_job_master(job_id, OfferSlots(job_id, self.info.resource_id, offers))

    def _free_slot(self, slot: TaskSlot, reason: str) -> None:
        """Take the slot away from its job. Tasks in it fail first."""
        if slot.state is TaskSlotState.RELEASING:
            return
        if slot.state is TaskSlotState.ALLOCATED:
            self._out.append(CancelTimer(SlotTimeout(slot.allocation_id)))
        job_id, allocation_id = slot.job_id, slot.allocation_id
        tasks = tuple(slot.tasks)
        if self.slots.release(slot):
            self._slot_is_free(slot.slot_number, job_id, allocation_id)
        failure = SerializedFailure(f"slot {slot.slot_number} was freed: {reason}", Blame.EXTERNAL)
        for attempt_id in tasks:
            self._end_task(attempt_id, FailTaskExecution(attempt_id, failure))

    def _slot_is_free(self, slot_number: int, job_id: JobID, allocation_id: AllocationID) -> None:
        self._tell_resource_manager(NotifySlotAvailable(slot_number, allocation_id))
        self._forget_if_unused(job_id)

    # --- JobMasters ---------------------------------------------------------------------------------------------------

    def _connection_for(self, job_id: JobID) -> LeaderConnection:
        register = RegisterTaskExecutorAtJobMaster(job_id, self.info)
        return LeaderConnection(
            f"job-master-{job_id}", self._settings.job_registration, register, self._draw_connection
        )

    def _follow_job_master(self, job_id: JobID, address: str, session: LeaderSessionID) -> None:
        """Register where the JobMaster is now. One that we are registered with says itself when its job is over, and a
        table of leaders without it may be faster than that: hung up on, its last word would be lost, and the job's
        slots with it."""
        was_registered = self._jobs[job_id].connection.is_registered
        if was_registered and not address:
            return
        peer = Peer(PeerKind.JOB_MASTER, address, job_id)
        effects = self._jobs[job_id].connection.leader_changed(peer, session, self._now_ms)
        self._perform_at_job_master(job_id, effects)
        if was_registered and job_id in self._jobs and not self._jobs[job_id].connection.is_registered:
            self._watch_for_job_master(job_id)

    def _perform_at_job_master(self, job_id: JobID, effects: list[LeaderConnectionEffect]) -> None:
        entry = self._jobs[job_id]
        self._out += _outward(effects)
        for effect in effects:
            match effect:
                case Registered():
                    self._registered_at_job_master(job_id, entry)
                case LeaderSaid(message):
                    self._handle_job_master(job_id, message)
                case RegistrationLost(_, reason, silent):
                    if silent:
                        self._release_job(job_id, f"its JobMaster is lost: {reason}")
                    else:
                        self._watch_for_job_master(job_id)
                case RegistrationFailed(reason):
                    self._release_job(job_id, f"its JobMaster rejected this TaskManager: {reason}")
                case _:
                    pass

    def _registered_at_job_master(self, job_id: JobID, entry: JobEntry) -> None:
        if entry.timeout_runs:
            entry.timeout_runs = False
            self._out.append(CancelTimer(JobMasterTimeout(job_id)))
        for slot in self.slots.of_job(job_id):
            if slot.state is TaskSlotState.ALLOCATED:
                due_ms = self._now_ms + self._settings.slot_timeout_ms
                self._out.append(StartTimer(SlotTimeout(slot.allocation_id), due_ms))
        reports = (*entry.ended.values(), *(self._tasks[attempt_id].report for attempt_id in entry.tasks))
        if reports:
            self._tell_job_master(job_id, ReportExecutions(job_id, self.info.resource_id, reports))
            for attempt_id in entry.tasks:
                self._tasks[attempt_id].untold.clear()
            entry.ended = {v: report for v, report in entry.ended.items() if report.state is ExecutionState.FINISHED}
        if entry.tasks:
            self._answer_heartbeat(job_id, entry)
        self._offer_slots(job_id)

    def _watch_for_job_master(self, job_id: JobID) -> None:
        entry = self._jobs[job_id]
        self.slots.deactivate(job_id)
        if not entry.timeout_runs:
            entry.timeout_runs = True
            due_ms = self._now_ms + self._settings.job_master_timeout_ms
            self._out.append(StartTimer(JobMasterTimeout(job_id), due_ms))

    def _handle_job_master(self, job_id: JobID, message: Any) -> None:
        match message:
            case HeartbeatRequest(allocations):
                self._reconcile_slots(job_id, allocations)
                if job_id in self._jobs:
                    self._answer_heartbeat(job_id, self._jobs[job_id])
            case SlotOffersAnswered(_, accepted, rejected):
                self._offers_answered(job_id, accepted, rejected)
            case SubmitTasks(tasks):
                for descriptor in tasks:
                    self._submit_task(job_id, descriptor)
            case CancelTask(attempt_id):
                if attempt_id in self._tasks:
                    self._end_task(attempt_id, CancelTaskExecution(attempt_id))
                else:
                    self._tell_job_master(job_id, TaskStateChanged(job_id, attempt_id, ExecutionState.CANCELED))
            case TriggerCheckpoint() | NotifyCheckpointComplete() | NotifyCheckpointAborted():
                self._deliver(job_id, message)
            case AlignWatermarks(_, attempt_id) | TapTask(_, attempt_id):
                if attempt_id in self._tasks:
                    self._out.append(DeliverToTask(attempt_id, message))
            case FreeSlot(allocation_id, reason):
                slot = self.slots.find(allocation_id)
                if slot is not None and slot.job_id == job_id:
                    self._free_slot(slot, reason)
            case Disconnect(reason):
                self._release_job(job_id, f"its JobMaster disconnected: {reason}")

    def _answer_heartbeat(self, job_id: JobID, entry: JobEntry) -> None:
        connection = entry.connection.connection
        if connection is not None and entry.connection.is_registered:
            response = HeartbeatResponse(report=self.slots.report_of(job_id), executions=tuple(entry.tasks))
            self._out.append(SendHeartbeatResponse(connection, entry.connection.session, response))

    def _reconcile_slots(self, job_id: JobID, allocations: Iterable[AllocationID]) -> None:
        """The JobMaster says what it believes to own; what it once accepted and does not own any more is free."""
        owned = dict.fromkeys(allocations)
        for slot in self.slots.of_job(job_id):
            if slot.state is TaskSlotState.ACTIVE and slot.allocation_id not in owned:
                self._free_slot(slot, "its JobMaster does not know it")

    def _offers_answered(
        self, job_id: JobID, accepted: Iterable[AllocationID], rejected: Iterable[AllocationID]
    ) -> None:
        for allocation_id in accepted:
            slot = self.slots.find(allocation_id)
            if slot is None or slot.job_id != job_id or slot.state is TaskSlotState.RELEASING:
                if job_id in self._jobs:  # freed while the answer was on its way: say so at once
                    self._answer_heartbeat(job_id, self._jobs[job_id])
            elif slot.state is TaskSlotState.ALLOCATED:
                self._out.append(CancelTimer(SlotTimeout(allocation_id)))
                self.slots.activate(slot)
        for allocation_id in rejected:
            slot = self.slots.find(allocation_id)
            if slot is not None:
                self._free_slot(slot, "its JobMaster does not need it")

    def _tell_job_master(self, job_id: JobID, message: Any) -> None:
        entry = self._jobs.get(job_id)
        if entry is not None:
            self._out += entry.connection.send(message)

    def _release_job(self, job_id: JobID, reason: str) -> None:
        """The job has no JobMaster: its tasks fail, its slots are free, nobody is dialled any more."""
        entry = self._jobs[job_id]
        self._perform_at_job_master(job_id, entry.connection.stop())
        if entry.timeout_runs:
            entry.timeout_runs = False
            self._out.append(CancelTimer(JobMasterTimeout(job_id)))
        for slot in self.slots.of_job(job_id):
            self._free_slot(slot, reason)
        self._forget_if_unused(job_id)

    def _forget_if_unused(self, job_id: JobID) -> None:
        """The last slot and the last task are gone."""
        entry = self._jobs.get(job_id)
        if entry is None or entry.tasks or self.slots.has_slots(job_id):
            return
        del self._jobs[job_id]
        if entry.timeout_runs:
            self._out.append(CancelTimer(JobMasterTimeout(job_id)))
        self._out += entry.connection.send(Disconnect("no slot of the job is left here"))
        self._out += _outward(entry.connection.stop())
        self._out.append(ReleaseJobResources(job_id))

    # --- tasks --------------------------------------------------------------------------------------------------------

    def _submit_task(self, job_id: JobID, descriptor: TaskDeploymentDescriptor) -> None:
        attempt_id = descriptor.attempt_id
        if attempt_id in self._tasks or attempt_id in self._ended:
            return  # an attempt runs once, however often it is submitted
        slot = self.slots.find(descriptor.allocation_id)
        if slot is None or slot.job_id != job_id or slot.state is TaskSlotState.RELEASING:
            summary = f"TaskManager {self.info.resource_id} has no slot of this job for the task any more"
            failure = SerializedFailure(summary, Blame.EXTERNAL, error_type="TaskSubmissionException")
            self._tell_job_master(job_id, TaskStateChanged(job_id, attempt_id, ExecutionState.FAILED, failure))
            return
        self._offers_answered(job_id, (descriptor.allocation_id,), ())
        self.slots.add_task(slot, attempt_id)
        self._tasks[attempt_id] = RunningTask(descriptor, slot)
        self._jobs[job_id].tasks[attempt_id] = None
        self._jobs[job_id].ended.pop(attempt_id.execution_vertex_id, None)
        self._out.append(StartTask(descriptor))

    def _deliver(self, job_id: JobID, message: CheckpointMessage) -> None:
        attempt_id = message.attempt_id
        task = self._tasks.get(attempt_id)
        if task is not None:
            task.note_delivered(message)
            self._out.append(DeliverToTask(attempt_id, message))
        elif isinstance(message, TriggerCheckpoint):
            reason = CheckpointFailureReason.CHECKPOINT_DECLINED_TASK_NOT_READY
            detail = f"TaskManager {self.info.resource_id} does not run {attempt_id}"
            self._tell_job_master(job_id, DeclineCheckpoint(job_id, attempt_id, message.checkpoint_id, reason, detail))

    def _task_said(
        self, message: AcknowledgeCheckpoint | DeclineCheckpoint | EndOfDataReached | ReportWatermark | TaskTapped
    ) -> None:
        """Remembered besides, because nobody may be there to hear it."""
        task = self._tasks.get(message.attempt_id)
        if task is not None:
            match message:
                case AcknowledgeCheckpoint():
                    task.unconfirmed[message.checkpoint_id] = message
                    if not self._jobs[message.job_id].connection.is_registered:
                        task.untold[message.checkpoint_id] = None
                    task.last_checkpoint_id = max(task.last_checkpoint_id, message.checkpoint_id)
                case EndOfDataReached():
                    task.end_of_data = True
        self._tell_job_master(message.job_id, message)

    def _task_entered_state(self, event: TaskEnteredState) -> None:
        attempt_id, state = event.attempt_id, event.state
        task = self._tasks.get(attempt_id)
        if task is None:
            return
        job_id = task.descriptor.job_id
        changed = TaskStateChanged(job_id, attempt_id, state, event.failure, event.metrics)
        self._tell_job_master(job_id, changed)
        task.state = state
        if not state.is_terminal:
            return
        entry = self._jobs[job_id]
        if state is ExecutionState.FINISHED or not entry.connection.is_registered:
            entry.ended[attempt_id.execution_vertex_id] = ExecutionReport(
                attempt_id,
                state,
                task.slot.allocation_id,
                failure=event.failure,
                stopping=NO_CHECKPOINT < task.stops_with <= task.confirmed_id,
                confirmed_checkpoint_id=max(NO_CHECKPOINT, task.report.confirmed_checkpoint_id, *task.unconfirmed),
            )
        del self._tasks[attempt_id]
        del self._jobs[job_id].tasks[attempt_id]
        self._out.append(ReleaseSnapshots(attempt_id, tuple(task.untold)))
        self._ended[attempt_id] = None
        if len(self._ended) > MAX_ENDED_REMEMBERED:
            del self._ended[next(iter(self._ended))]
        if task.ending is not None:
            self._out.append(CancelTimer(CancellationInterval(attempt_id)))
        if task.watched:
            self._out.append(CancelTimer(CancellationTimeout(attempt_id)))
        slot, allocation_id = task.slot, task.slot.allocation_id
        if self.slots.remove_task(slot, attempt_id):
            self._slot_is_free(slot.slot_number, job_id, allocation_id)

    def _end_task(self, attempt_id: ExecutionAttemptID, how: CancelTaskExecution | FailTaskExecution) -> None:
        """Tell the task to end, once, and watch that it does."""
        task = self._tasks[attempt_id]
        if task.ending is not None:
            return
        task.ending = how
        self._out.append(how)
        interval_ms = self._task_option(task, TASK_CANCELLATION_INTERVAL, self._settings.cancellation_interval_ms)
        timeout_ms = self._task_option(task, TASK_CANCELLATION_TIMEOUT, self._settings.cancellation_timeout_ms)
        if interval_ms:
            self._out.append(StartTimer(CancellationInterval(attempt_id), self._now_ms + interval_ms))
        if timeout_ms:
            task.watched = True
            self._out.append(StartTimer(CancellationTimeout(attempt_id), self._now_ms + timeout_ms))

    def _cancel_again(self, attempt_id: ExecutionAttemptID) -> None:
        task = self._tasks.get(attempt_id)
        if task is None or task.ending is None:
            return
        interval_ms = self._task_option(task, TASK_CANCELLATION_INTERVAL, self._settings.cancellation_interval_ms)
        self._out += [task.ending, StartTimer(CancellationInterval(attempt_id), self._now_ms + interval_ms)]

    def _cancellation_timed_out(self, attempt_id: ExecutionAttemptID) -> None:
        task = self._tasks.get(attempt_id)
        if task is not None:
            timeout_ms = self._task_option(task, TASK_CANCELLATION_TIMEOUT, self._settings.cancellation_timeout_ms)
            reason = (
                f"task {task.descriptor.task_name} did not end within {timeout_ms} ms after it was cancelled "
                "(task.cancellation.timeout): it is stuck in user code"
            )
            self._disconnect_from_everybody(reason)
            self._terminate(reason, CANNOT_GO_ON, attempt_id)

    def _task_option(self, task: RunningTask, option: ConfigOption[int], default: int) -> int:
        """The job's word, else the TaskManager's."""
        text = task.descriptor.configuration.get(option.key)
        return default if text is None else option.read(text)

    # --- the end ------------------------------------------------------------------------------------------------------

    def _shut_down(self, reason: str) -> None:
        self._disconnect_from_everybody(reason)
        self._terminate(reason, NOT_NEEDED)

    def _disconnect_from_everybody(self, reason: str) -> None:
        """Whoever works with this process hears why it goes, and logs it."""
        for entry in self._jobs.values():
            self._out += entry.connection.send(Disconnect(reason))
        self._tell_resource_manager(Disconnect(reason))

    def _terminate(self, reason: str, exit_code: int, stuck: ExecutionAttemptID | None = None) -> None:
        self._is_terminated = True
        self._out.append(TerminateTaskManager(reason, exit_code, stuck))

    def _draw_connection(self) -> ConnectionID:
        self._dialled += 1
        return ConnectionID(f"dial-{self._dialled}")


def _outward(effects: list[LeaderConnectionEffect]) -> list[TaskExecutorEffect]:
    """What a connection asks of the shell; the rest is for this core, and is taken after it."""
    asks = (OpenConnection, CloseConnection, Send, StartTimer, CancelTimer)
    return [effect for effect in effects if isinstance(effect, asks)]
