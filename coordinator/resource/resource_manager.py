"""ResourceManager: who is there, and who gets which slot.

Takes registrations of TaskManagers and JobMasters, watches both by heartbeats, and lets the SlotManager match what jobs
declare with what TaskManagers have. Whatever cannot be met waits, and is declared to the pool that starts TaskManagers
(`DeclareWorkers`); when that pool says that it cannot give so much, the JobMasters concerned are told. A TaskManager
that had no slot in use for `resourcemanager.taskmanager-timeout` is released.

Built anew for each leadership; its session fences every message. A TaskManager that registers again replaces its old
entry, slots freed first; another process under the same resource id (a task that Spark started twice) is rejected, as
is a version whose minor number differs by more than one. Mirrors Flink's ResourceManager with its
DeclarativeSlotManager; unlike there, a connection that breaks counts at once, because it is how we are talked to.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from snapline.coordinator.execution.given_slots import GivenSlots
from snapline.coordinator.resource.effects import (
    DeclareWorkers,
    ReleaseWorker,
    ResourceManagerEffect,
    ThreadDumpArrived,
)
from snapline.coordinator.resource.events import (
    DrainRequested,
    ResourceManagerEvent,
    ResourceManagerStarted,
    ThreadDumpRequested,
    WorkerEnded,
    WorkerPoolClosed,
    WorkersUnavailable,
)
from snapline.coordinator.resource.process_history import ProcessHistory
from snapline.coordinator.resource.slot_manager import ManagedTaskManager, SlotManager
from snapline.dataflow.config import (
    RESOURCEMANAGER_TASKMANAGER_TIMEOUT,
    SLOTMANAGER_REQUIREMENT_CHECK_DELAY,
    Configuration,
)
from snapline.dataflow.ids import JobID, LeaderSessionID, ResourceID, SlotID
from snapline.dataflow.wire.messages import (
    DeclareRequiredSlots,
    Disconnect,
    Fenced,
    HeartbeatRequest,
    HeartbeatResponse,
    NotEnoughResources,
    NotifySlotAvailable,
    NotifyTaskManagerLost,
    RegisterJobMaster,
    RegisterTaskExecutor,
    RegistrationRejected,
    RegistrationSuccess,
    RequestSlot,
    ShutDownTaskExecutor,
    SlotReport,
    SlotRequestRejected,
    TaskManagerInfo,
    ThreadDump,
)
from snapline.runtime.cores.connections import CloseConnection, ConnectionID, ConnectionLost, MessageReceived, Send
from snapline.runtime.cores.heartbeat import UNSENT_HEARTBEAT, HeartbeatMonitor, HeartbeatSettings, HeartbeatTimer
from snapline.runtime.cores.machine import CancelTimer, CollectedEffects, StartTimer, TimerFired
from snapline.runtime.version import PROTOCOL_VERSION, UNDECLARED, understand_each_other


@dataclass(frozen=True, slots=True)
class ResourceManagerSettings:
    """What the ResourceManager can be told by configuration."""

    version: str
    """Version of this Snapline, as TaskManagers compare it with theirs."""
    heartbeat: HeartbeatSettings = field(default_factory=HeartbeatSettings)
    task_manager_timeout_ms: int = 30_000
    """An idle TaskManager is released after this; 0: never."""
    requirement_check_delay_ms: int = 50
    """A job that a slot came back from is given another one after this, or as soon as it declares again."""
    protocol_version: int = PROTOCOL_VERSION
    """Version of the protocol, as TaskManagers declare theirs."""

    @classmethod
    def from_configuration(cls, version: str, configuration: Configuration) -> ResourceManagerSettings:
        """Read the ResourceManager's settings. Raises ConfigurationError."""
        return cls(
            version,
            HeartbeatSettings.from_configuration(configuration),
            configuration.get_option(RESOURCEMANAGER_TASKMANAGER_TIMEOUT),
            configuration.get_option(SLOTMANAGER_REQUIREMENT_CHECK_DELAY),
        )


MAX_LOST_REMEMBERED = 1000
"""TaskManagers of which it is known that they were registered."""
MAX_REJECTED_HOSTS = 100
"""Hosts of which it is known that a TaskManager of theirs was rejected."""
MAX_POOLS = 100
"""Pools of TaskManagers whose limits are kept; of more, the one that came first is forgotten."""
MAX_NEWS = 1000
"""What became of the latest registrations."""


@dataclass(frozen=True, slots=True)
class IdleTaskManagerTimer:
    """Timer key: look for TaskManagers that have been idle for too long."""


@dataclass(frozen=True, slots=True)
class RequirementCheckTimer:
    """Timer key: a job that a slot came back from may be given another one."""


@dataclass(slots=True)
class JobMasterRegistration:
    """One JobMaster that is registered, and what it was told."""

    registration: RegisterJobMaster
    connection: ConnectionID
    told: NotEnoughResources | None = None
    """What it was told last."""


class RegistrationOutcome(Enum):
    """What became of a TaskManager's registration."""

    REGISTERED = "TaskManager registered"
    REJECTED = "TaskManager rejected"
    LOST = "TaskManager lost"


@dataclass(frozen=True, slots=True)
class RegistrationNews:
    """One registration that began, was rejected or has ended; numbers rise by one."""

    number: int
    outcome: RegistrationOutcome
    info: TaskManagerInfo
    reason: str = ""


def _why_not_understood(info: TaskManagerInfo, settings: ResourceManagerSettings) -> str:
    """What is said to a TaskManager that speaks another protocol, with the way out."""
    who = f"TaskManager {info.resource_id} has Snapline {info.version}"
    if info.protocol_version == UNDECLARED:
        return f"{who}, the coordinator {settings.version}: install versions on both whose minor numbers differ by one at most"
    return (
        f"{who}, which speaks protocol {info.protocol_version}, the coordinator {settings.version}, which speaks "
        f"{settings.protocol_version}: install versions on both whose protocols differ by one at most"
    )


class ResourceManager:
    """The core, for one leadership."""

    def __init__(
        self,
        settings: ResourceManagerSettings,
        session: LeaderSessionID,
        given: GivenSlots,
    ) -> None:
        """`given` draws the ids of allocations, which never repeat, and knows them again."""
        self.session = session
        self._settings = settings
        self.slot_manager = SlotManager(given)
        self._connection_of_task_manager: dict[ResourceID, ConnectionID] = {}
        self._task_manager_on: dict[ConnectionID, ResourceID] = {}
        self._lost: dict[ResourceID, None] = {}
        """Were registered, and are not; the latest ones."""
        self.news: deque[RegistrationNews] = deque(maxlen=MAX_NEWS)
        """What became of the latest registrations, for logs."""
        self._news_count = 0
        self.rejections = 0
        self.losses = 0
        self._rejected: dict[str, str] = {}
        """Why a TaskManager was rejected for its version, by host, if none came from there since; a job that waits is
        told."""
        self._job_masters: dict[JobID, JobMasterRegistration] = {}
        self._job_on: dict[ConnectionID, JobID] = {}
        heartbeat = settings.heartbeat
        self._task_manager_heartbeats: HeartbeatMonitor[ResourceID] = HeartbeatMonitor("task-executors", heartbeat)
        self._job_master_heartbeats: HeartbeatMonitor[JobID] = HeartbeatMonitor("job-masters", heartbeat)
        self._processes: dict[ResourceID, ProcessHistory] = {}
        """What the processes of registered TaskManagers use, of those that have said so."""
        self._declared: DeclareWorkers | None = None
        self._limits: dict[str, WorkersUnavailable] = {}
        """How many slots can still be had, by pool of TaskManagers."""
        self._idle_timer_ms: int | None = None
        self._not_before_ms: dict[JobID, int] = {}
        """Jobs that a slot came back from, and when they are given another one."""
        self._check_timer_ms: int | None = None
        self._now_ms = 0
        self._out: CollectedEffects[ResourceManagerEffect] = CollectedEffects()

    # --- reading ------------------------------------------------------------------------------------------------------

    @property
    def task_managers(self) -> Iterator[ManagedTaskManager]:
        """All that are registered, with their slots."""
        return iter(self.slot_manager)

    @property
    def lost_task_managers(self) -> tuple[ResourceID, ...]:
        """Those that were registered and are not any more, the latest last. A leader knows of its own time only."""
        return tuple(self._lost)

    def process_of(self, resource_id: ResourceID) -> ProcessHistory | None:
        """What the process of a registered TaskManager uses; None: it has not said."""
        return self._processes.get(resource_id)

    def last_heard_of_ms(self, managed: ManagedTaskManager) -> int:
        """When a registered TaskManager has sent something the last time."""
        heard_ms = self._task_manager_heartbeats.last_heartbeat_ms(managed.info.resource_id)
        return max(managed.registered_at_ms, heard_ms)

    @property
    def registered_jobs(self) -> tuple[JobID, ...]:
        """Jobs whose JobMaster is registered."""
        return tuple(self._job_masters)

    # --- the one entry point ------------------------------------------------------------------------------------------

    def handle(self, event: ResourceManagerEvent, now_ms: int) -> list[ResourceManagerEffect]:
        """Take one event at `now_ms`, and return what is to be done."""
        self._now_ms = now_ms
        match event:
            case ResourceManagerStarted():
                self._out += self._task_manager_heartbeats.start(now_ms)
                self._out += self._job_master_heartbeats.start(now_ms)
            case MessageReceived(connection, envelope):
                self._message_received(connection, envelope)
            case ConnectionLost(connection, reason):
                self._connection_lost(connection, reason)
            case WorkersUnavailable(pool=pool):
                self._limits[pool] = event
                while len(self._limits) > MAX_POOLS:
                    del self._limits[next(iter(self._limits))]
            case WorkerPoolClosed(pool):
                self._limits.pop(pool, None)
            case WorkerEnded(resource_id, reason):
                self._task_manager_lost(resource_id, f"its process ended: {reason}", terminated=True)
            case ThreadDumpRequested(request, resource_ids):
                for resource_id in resource_ids:
                    self._send_task_manager(resource_id, request)
            case DrainRequested(resource_id, draining):
                self.slot_manager.set_draining(resource_id, draining=draining)
            case TimerFired(IdleTaskManagerTimer()):
                self._idle_timer_ms = None
                self._release_idle_task_managers()
            case TimerFired(RequirementCheckTimer()):
                self._check_timer_ms = None
            case TimerFired(key):
                if self._task_manager_heartbeats.owns(key):
                    self._task_manager_heartbeats_due(key)
                elif self._job_master_heartbeats.owns(key):
                    self._job_master_heartbeats_due(key)
        self._settle()
        return self._out.take()

    def _settle(self) -> None:
        """Whatever happened: give away what is free, and say what is missing."""
        for decision in self.slot_manager.allocate(self._is_eligible):
            registration = self._job_masters[decision.job_id].registration
            request = RequestSlot(
                decision.slot_id.slot_number,
                decision.job_id,
                decision.allocation_id,
                registration.address,
                registration.job_master_session,
            )
            self._send_task_manager(decision.slot_id.resource_id, request)
        slots = self.slot_manager
        registered = tuple(task_manager.info.resource_id for task_manager in slots)
        declared = DeclareWorkers(slots.required_slots, slots.registered_slots, slots.free_slots, registered)
        if declared != (self._declared or DeclareWorkers(0, 0, 0)):
            self._declared = declared
            self._out.append(declared)
        self._tell_not_enough()
        self._watch_idle()
        self._watch_requirements()

    def _is_eligible(self, job_id: JobID) -> bool:
        """Whether the job can be given slots now."""
        return job_id in self._job_masters and self._not_before_ms.get(job_id, 0) <= self._now_ms

    def _watch_requirements(self) -> None:
        """Keep one timer for the first job that may be given slots again."""
        unfulfilled = self.slot_manager.unfulfilled
        self._not_before_ms = {
            job_id: at_ms
            for job_id, at_ms in self._not_before_ms.items()
            if at_ms > self._now_ms and job_id in unfulfilled
        }
        due_ms = min(self._not_before_ms.values(), default=None)
        if due_ms == self._check_timer_ms:
            return
        self._check_timer_ms = due_ms
        key = RequirementCheckTimer()
        self._out.append(CancelTimer(key) if due_ms is None else StartTimer(key, due_ms))

    def _tell_not_enough(self) -> None:
        unfulfilled = self.slot_manager.unfulfilled
        available = sum(limit.available_slots for limit in self._limits.values())
        limited = bool(self._limits) and available < self.slot_manager.required_slots
        limited = limited or bool(self._rejected)
        reasons = [*(limit.reason for limit in self._limits.values()), *list(self._rejected.values())[-1:]]
        reason = "; ".join(dict.fromkeys(reasons))
        for job_id, job_master in self._job_masters.items():
            required = unfulfilled.get(job_id)
            if required is None or not limited:
                job_master.told = None
                continue
            note = NotEnoughResources(job_id, required, self.slot_manager.held_by(job_id), reason)
            if note != job_master.told:
                job_master.told = note
                self._send_job_master(job_id, note)

    # --- messages -----------------------------------------------------------------------------------------------------

    def _message_received(self, connection: ConnectionID, envelope: Fenced[Any]) -> None:
        message = envelope.message
        stale = envelope.leader_session_id != self.session
        if connection in self._task_manager_on:
            if not stale:
                self._handle_task_manager(self._task_manager_on[connection], message)
            return
        if connection in self._job_on:
            if not stale:
                self._handle_job_master(self._job_on[connection], message)
            return
        match message:
            case RegisterTaskExecutor() if not stale:
                self._register_task_manager(connection, message)
            case RegisterJobMaster() if not stale:
                self._register_job_master(connection, message)
            case _:
                self._out.append(CloseConnection(connection))

    def _handle_task_manager(self, resource_id: ResourceID, message: Any) -> None:
        self._task_manager_heartbeats.receive_heartbeat(resource_id, self._now_ms)
        match message:
            case SlotReport():
                self._take_report(resource_id, message)
            case HeartbeatResponse(report, process=process):
                if report is not None:
                    self._take_report(resource_id, report)
                if process is not None:
                    self._processes.setdefault(resource_id, ProcessHistory()).add(process, self._now_ms)
            case SlotRequestRejected(allocation_id, report):
                self.slot_manager.reject_allocation(resource_id, allocation_id, self._now_ms)
                self._take_report(resource_id, report)
            case NotifySlotAvailable(slot_number, allocation_id):
                job_id = self.slot_manager.free_slot(SlotID(resource_id, slot_number), allocation_id, self._now_ms)
                # Perhaps its JobMaster does not want it: that it needs less may still be on its way. Given the slot
                # again at once, TaskManager and JobMaster would send each other away as fast as messages go.
                if job_id is not None:
                    self._not_before_ms[job_id] = self._now_ms + self._settings.requirement_check_delay_ms
            case ThreadDump():
                if message.resource_id == resource_id:
                    self._out.append(ThreadDumpArrived(message))
            case Disconnect(reason):
                self._task_manager_lost(resource_id, f"it disconnected: {reason}", close=True)

    def _take_report(self, resource_id: ResourceID, report: SlotReport) -> None:
        if report.resource_id == resource_id:
            self.slot_manager.report_slot_status(report, self._now_ms)

    def _handle_job_master(self, job_id: JobID, message: Any) -> None:
        self._job_master_heartbeats.receive_heartbeat(job_id, self._now_ms)
        match message:
            case DeclareRequiredSlots(_, required, held, least):
                self._not_before_ms.pop(job_id, None)
                self.slot_manager.set_required(job_id, required, held, least)
            case Disconnect():
                self._job_master_lost(job_id, close=True)

    # --- registrations ------------------------------------------------------------------------------------------------

    def _register_task_manager(self, connection: ConnectionID, message: RegisterTaskExecutor) -> None:
        info = message.info
        settings = self._settings
        if not understand_each_other(info.version, info.protocol_version, settings.version, settings.protocol_version):
            why_not = _why_not_understood(info, settings)
            self._rejected.pop(info.host, None)
            self._rejected[info.host] = why_not
            if len(self._rejected) > MAX_REJECTED_HOSTS:
                del self._rejected[next(iter(self._rejected))]
            self._reject(connection, info, why_not)
            return
        known = self.slot_manager.get(info.resource_id)
        if known is not None:
            if not info.is_same_process(known.info):
                self._reject(connection, info, known.info.why_not_again)
                return
            self._task_manager_lost(info.resource_id, "it registered again", close=True)
        self.slot_manager.register_task_manager(info, self._now_ms)
        self._lost.pop(info.resource_id, None)
        self._rejected.pop(info.host, None)
        self._note(RegistrationOutcome.REGISTERED, info)
        self._connection_of_task_manager[info.resource_id] = connection
        self._task_manager_on[connection] = info.resource_id
        self._send_task_manager(info.resource_id, self._success())
        self._out += self._task_manager_heartbeats.monitor_target(info.resource_id, self._now_ms)

    def _register_job_master(self, connection: ConnectionID, message: RegisterJobMaster) -> None:
        if message.job_id in self._job_masters:
            self._job_master_lost(message.job_id, close=True)
        self._job_masters[message.job_id] = JobMasterRegistration(message, connection)
        self._job_on[connection] = message.job_id
        self._send_job_master(message.job_id, self._success())
        self._out += self._job_master_heartbeats.monitor_target(message.job_id, self._now_ms)

    def _success(self) -> RegistrationSuccess:
        return RegistrationSuccess(self._settings.heartbeat.interval_ms, self._settings.heartbeat.timeout_ms)

    def _note(self, outcome: RegistrationOutcome, info: TaskManagerInfo, reason: str = "") -> None:
        self._news_count += 1
        self.news.append(RegistrationNews(self._news_count, outcome, info, reason))

    def _reject(self, connection: ConnectionID, info: TaskManagerInfo, reason: str) -> None:
        self.rejections += 1
        self._note(RegistrationOutcome.REJECTED, info, reason)
        rejected = Fenced(self.session, RegistrationRejected(reason))
        self._out += [Send(connection, rejected), CloseConnection(connection)]

    # --- losses -------------------------------------------------------------------------------------------------------

    def _connection_lost(self, connection: ConnectionID, reason: str) -> None:
        resource_id = self._task_manager_on.pop(connection, None)
        if resource_id is not None:
            del self._connection_of_task_manager[resource_id]
            if self._task_manager_heartbeats.report_delivery(resource_id, arrived=False):
                self._task_manager_lost(resource_id, f"the connection broke: {reason}")
            return
        job_id = self._job_on.get(connection)
        if job_id is not None:
            self._job_master_lost(job_id)

    def _task_manager_lost(
        self,
        resource_id: ResourceID,
        reason: str,
        *,
        close: bool = False,
        terminated: bool = False,
        timed_out: bool = False,
    ) -> None:
        """Forget the slots of a lost TaskManager, and tell the jobs that had some."""
        managed = self.slot_manager.get(resource_id)
        if managed is None:
            return
        self.losses += 1
        self._processes.pop(resource_id, None)
        self._note(RegistrationOutcome.LOST, managed.info, reason)
        self._lost[resource_id] = None
        if len(self._lost) > MAX_LOST_REMEMBERED:
            del self._lost[next(iter(self._lost))]
        connection = self._connection_of_task_manager.pop(resource_id, None)
        if connection is not None:
            del self._task_manager_on[connection]
            if close or terminated:
                self._out.append(CloseConnection(connection))
        self._out += self._task_manager_heartbeats.unmonitor_target(resource_id)
        for job_id in self.slot_manager.unregister_task_manager(resource_id):
            self._send_job_master(job_id, NotifyTaskManagerLost(resource_id, reason, terminated, timed_out))

    def _job_master_lost(self, job_id: JobID, *, close: bool = False) -> None:
        """Note that a lost JobMaster needs nothing until it registers again; the slots that it has stay its own as long
        as TaskManagers say so."""
        job_master = self._job_masters.pop(job_id)
        del self._job_on[job_master.connection]
        if close:
            self._out.append(CloseConnection(job_master.connection))
        self._out += self._job_master_heartbeats.unmonitor_target(job_id)
        self.slot_manager.set_required(job_id, 0)

    # --- heartbeats and idleness --------------------------------------------------------------------------------------

    def _task_manager_heartbeats_due(self, key: HeartbeatTimer) -> None:
        due = self._task_manager_heartbeats.timer_fired(key, self._now_ms)
        for resource_id in due.ask:
            is_connected = resource_id in self._connection_of_task_manager
            self._send_task_manager(resource_id, HeartbeatRequest())
            if self._task_manager_heartbeats.report_delivery(resource_id, arrived=is_connected):
                self._task_manager_lost(resource_id, UNSENT_HEARTBEAT)
        for resource_id in due.silent:
            reason = f"no heartbeat for {self._settings.heartbeat.timeout_ms} ms (heartbeat.timeout)"
            self._send_task_manager(resource_id, Disconnect(reason))
            self._task_manager_lost(resource_id, reason, close=True, timed_out=True)
        self._out += due.timers

    def _job_master_heartbeats_due(self, key: HeartbeatTimer) -> None:
        due = self._job_master_heartbeats.timer_fired(key, self._now_ms)
        for job_id in due.ask:
            self._send_job_master(job_id, HeartbeatRequest())
        for job_id in due.silent:
            reason = f"no heartbeat for {self._settings.heartbeat.timeout_ms} ms (heartbeat.timeout)"
            self._send_job_master(job_id, Disconnect(reason))
            self._job_master_lost(job_id, close=True)
        self._out += due.timers

    def _release_idle_task_managers(self) -> None:
        timeout_ms = self._settings.task_manager_timeout_ms
        for since_ms, resource_id in list(self.slot_manager.idle_task_managers()):
            if self._now_ms - since_ms >= timeout_ms:
                reason = f"idle for {timeout_ms} ms (resourcemanager.taskmanager-timeout)"
                self._send_task_manager(resource_id, ShutDownTaskExecutor(reason))
                self._task_manager_lost(resource_id, reason, close=True)
                self._out.append(ReleaseWorker(resource_id, reason))

    def _watch_idle(self) -> None:
        """Keep one timer for the TaskManager that has been idle for longest."""
        timeout_ms = self._settings.task_manager_timeout_ms
        since = [since_ms for since_ms, _ in self.slot_manager.idle_task_managers()] if timeout_ms else []
        due_ms = min(since) + timeout_ms if since else None
        if due_ms == self._idle_timer_ms:
            return
        self._idle_timer_ms = due_ms
        key = IdleTaskManagerTimer()
        self._out.append(CancelTimer(key) if due_ms is None else StartTimer(key, due_ms))

    # --- sending ------------------------------------------------------------------------------------------------------

    def _send_task_manager(self, resource_id: ResourceID, message: Any) -> None:
        connection = self._connection_of_task_manager.get(resource_id)
        if connection is not None:
            self._out.append(Send(connection, Fenced(self.session, message)))

    def _send_job_master(self, job_id: JobID, message: Any) -> None:
        job_master = self._job_masters.get(job_id)
        if job_master is not None:
            self._out.append(Send(job_master.connection, Fenced(self.session, message)))
