"""The control plane of a cluster on one clock: Dispatcher, ResourceManager, JobMasters and TaskExecutors, all real
cores.

What stands in for the world: connections (`network`), tasks that walk through their states by themselves
(`SimulatedTasks`; a subclass of Cluster makes others), a pool that starts TaskManagers as the ResourceManager declares,
stores that answer after a while. The simulator of whole jobs puts real tasks in place of the simulated ones.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any, Protocol

from snapline.coordinator.checkpoint.checkpoint_coordinator import CheckpointCoordinator
from snapline.coordinator.checkpoint.configuration import CheckpointCoordinatorConfiguration
from snapline.coordinator.checkpoint.events import StartCheckpointScheduler, StopCheckpointScheduler
from snapline.coordinator.dispatcher.dispatcher import Dispatcher
from snapline.coordinator.dispatcher.effects import (
    DispatcherEffect,
    ForwardToJobMaster,
    RemoveJobGraph,
    StartJobMaster,
    StoreJobGraph,
    SuspendJobMaster,
)
from snapline.coordinator.dispatcher.events import (
    DispatcherEvent,
    DispatcherStarted,
    JobGraphRemoved,
    JobGraphStored,
    JobMasterEnded,
    JobStatusReported,
    OperateJob,
    SubmitJob,
)
from snapline.coordinator.execution.given_slots import GivenSlots
from snapline.coordinator.execution.restart_strategy import restart_strategy_of
from snapline.coordinator.jobmaster.effects import (
    ForgetJobGraph,
    JobMasterEffect,
    JobReachedTerminalState,
    ReportJobStatus,
    UpdateJobGraph,
)
from snapline.coordinator.jobmaster.events import (
    JobGraphForgotten,
    JobGraphUpdated,
    JobMasterEvent,
    JobMasterStarted,
    JobMasterSuspended,
    OperationRequested,
)
from snapline.coordinator.jobmaster.identity import JobMasterIdentity
from snapline.coordinator.jobmaster.job_master import CheckpointCoordinatorCore, JobMaster
from snapline.coordinator.jobmaster.job_master_settings import JobMasterSettings
from snapline.coordinator.jobmaster.operations import Answer, JobOperation, Reply, RequestID
from snapline.coordinator.resource.effects import DeclareWorkers, ReleaseWorker, ResourceManagerEffect
from snapline.coordinator.resource.events import ResourceManagerEvent, ResourceManagerStarted
from snapline.coordinator.resource.resource_manager import ResourceManager, ResourceManagerSettings
from snapline.dataflow.config import Configuration
from snapline.dataflow.failures import Blame, SerializedFailure
from snapline.dataflow.graph.jobgraph import JobGraph
from snapline.dataflow.ids import AllocationID, CheckpointID, ExecutionAttemptID, JobID, LeaderSessionID, ResourceID
from snapline.dataflow.wire.messages import (
    AcknowledgeCheckpoint,
    EndOfDataReached,
    ExecutionState,
    Fenced,
    JobStatus,
    NotifyCheckpointComplete,
    TaskDeploymentDescriptor,
    TaskManagerInfo,
    TriggerCheckpoint,
)
from snapline.runtime.cores.connections import (
    CloseConnection,
    ConnectionID,
    ConnectionLost,
    ConnectionOpened,
    MessageReceived,
    OpenConnection,
    PeerKind,
    ResourceManagerLeaderChanged,
    Send,
    SendToTasks,
)
from snapline.runtime.cores.heartbeat import HeartbeatSettings
from snapline.runtime.cores.machine import CancelTimer, StartTimer, TimerFired
from snapline.runtime.cores.registration import RegistrationSettings
from snapline.taskmanager.executor.effects import (
    CancelTaskExecution,
    DeliverToTask,
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
    TaskEnteredState,
    TaskExecutorEvent,
    TaskExecutorStarted,
    TaskSaid,
)
from snapline.taskmanager.executor.task_executor import TaskExecutor, TaskExecutorSettings
from snapline.testing.simulated.coordinator_process import SIGNER
from snapline.testing.simulated.network import Endpoint, SimulatedClock, SimulatedNetwork, SimulatedTimers
from tests.simulation.checkpoint_world import Barriers, CheckpointStore

COORDINATOR = "coordinator"
"""Name of the process that holds Dispatcher, ResourceManager and JobMasters."""

VERSION = "0.1.0"


@dataclass(frozen=True, slots=True)
class ClusterSettings:
    """How patient everybody is. Short, so that stories are."""

    heartbeat: HeartbeatSettings = field(default_factory=lambda: HeartbeatSettings(1_000, 5_000, 1))
    registration: RegistrationSettings = field(
        default_factory=lambda: RegistrationSettings(100, 2_000, 200, 500, total_timeout_ms=60_000)
    )
    slot_timeout_ms: int = 2_000
    slot_request_timeout_ms: int = 60_000
    task_manager_timeout_ms: int = 0
    slots_per_task_manager: int = 2
    max_task_managers: int = 8
    start_delay_ms: int = 300
    max_delay_ms: int = 5
    cancellation_timeout_ms: int = 10_000


class TaskRunner(Protocol):
    """What runs tasks in one TaskManager process."""

    def start(self, descriptor: TaskDeploymentDescriptor) -> None: ...

    def end(self, attempt_id: ExecutionAttemptID, effect: CancelTaskExecution | FailTaskExecution) -> None: ...

    def deliver(self, attempt_id: ExecutionAttemptID, message: Any) -> None: ...

    def stop(self) -> None: ...


@dataclass(slots=True)
class TaskBehaviour:
    """How simulated tasks behave."""

    run_ms: int | None = None
    """Until the end of their data; None: they run until they are cancelled."""
    final_checkpoint: bool = True
    """At the end of its data a task waits for a checkpoint to complete that it acknowledged after it."""
    stops: bool = False
    """They end when a synchronous savepoint completes; otherwise they do not know what that is."""
    max_delay_ms: int = 20
    stuck: set[str] = field(default_factory=set)
    """Names of tasks that never end when they are cancelled."""


class SimulatedTasks:
    """Tasks that only have a state."""

    def __init__(
        self,
        clock: SimulatedClock,
        rng: random.Random,
        behaviour: TaskBehaviour,
        barriers: Barriers,
        report: Callable[[Any], None],
    ) -> None:
        self._barriers = barriers
        self._at_end: dict[ExecutionAttemptID, list[CheckpointID]] = {}
        """Tasks that have processed all their data, with what they acknowledged since."""
        self._clock = clock
        self._rng = rng
        self._behaviour = behaviour
        self._report = report
        self.running: dict[ExecutionAttemptID, TaskDeploymentDescriptor] = {}
        self._ending: set[ExecutionAttemptID] = set()
        self._stopped = False

    def start(self, descriptor: TaskDeploymentDescriptor) -> None:
        self.running[descriptor.attempt_id] = descriptor
        first = self._delay()
        second = first + self._delay()
        self._enter_after(first, descriptor.attempt_id, ExecutionState.INITIALIZING)
        self._enter_after(second, descriptor.attempt_id, ExecutionState.RUNNING)
        self._barriers.task_started(descriptor, lambda checkpoint_id: self._acknowledge(descriptor, checkpoint_id))
        if self._behaviour.run_ms is not None:
            self._clock.after(second + self._behaviour.run_ms, lambda: self._end_of_data(descriptor))

    def end(self, attempt_id: ExecutionAttemptID, effect: CancelTaskExecution | FailTaskExecution) -> None:
        descriptor = self.running.get(attempt_id)
        if descriptor is None or attempt_id in self._ending or descriptor.task_name in self._behaviour.stuck:
            return
        self._ending.add(attempt_id)
        state = ExecutionState.CANCELED if isinstance(effect, CancelTaskExecution) else ExecutionState.FAILED
        self._enter_after(self._delay(), attempt_id, state, getattr(effect, "failure", None))

    def fail(self, attempt_id: ExecutionAttemptID, failure: Any) -> None:
        """User code raises, now."""
        self._enter_after(0, attempt_id, ExecutionState.FAILED, failure)

    def deliver(self, attempt_id: ExecutionAttemptID, message: Any) -> None:
        match message:
            case TriggerCheckpoint(_, _, checkpoint_id, _, options):
                if options.snapshot_type.is_synchronous and self._behaviour.stops:
                    self._barriers.last_one = checkpoint_id
                self._barriers.barrier_at(attempt_id, checkpoint_id)
            case NotifyCheckpointComplete(_, _, checkpoint_id):
                if checkpoint_id in self._at_end.get(attempt_id, ()) or checkpoint_id == self._barriers.last_one:
                    self._enter_after(0, attempt_id, ExecutionState.FINISHED)

    def stop(self) -> None:
        self._stopped = True
        for attempt_id in list(self.running):
            self._ended(attempt_id)

    def _ended(self, attempt_id: ExecutionAttemptID) -> None:
        del self.running[attempt_id]
        self._ending.discard(attempt_id)
        self._at_end.pop(attempt_id, None)
        self._barriers.task_ended(attempt_id)

    def _end_of_data(self, descriptor: TaskDeploymentDescriptor) -> None:
        attempt_id = descriptor.attempt_id
        if attempt_id not in self.running or attempt_id in self._ending:
            return
        if self._behaviour.final_checkpoint:
            self._at_end[attempt_id] = []
            self._report(TaskSaid(EndOfDataReached(descriptor.job_id, attempt_id)))
        else:
            self._enter_after(0, attempt_id, ExecutionState.FINISHED)

    def _acknowledge(self, descriptor: TaskDeploymentDescriptor, checkpoint_id: CheckpointID) -> None:
        attempt_id = descriptor.attempt_id
        if attempt_id in self._at_end:
            self._at_end[attempt_id].append(checkpoint_id)
        self._report(TaskSaid(AcknowledgeCheckpoint(descriptor.job_id, attempt_id, checkpoint_id)))

    def _enter_after(
        self, delay_ms: int, attempt_id: ExecutionAttemptID, state: ExecutionState, failure: Any = None
    ) -> None:
        def enter() -> None:
            if self._stopped or attempt_id not in self.running:
                return
            if not state.is_terminal and attempt_id in self._ending:
                return
            if state.is_terminal:
                self._ended(attempt_id)
            self._report(TaskEnteredState(attempt_id, state, failure))

        self._clock.after(delay_ms, enter)

    def _delay(self) -> int:
        return self._rng.randint(0, self._behaviour.max_delay_ms)


class SimulatedTaskManager:
    """One process with a TaskExecutor."""

    def __init__(self, cluster: Cluster, name: str) -> None:
        self.name = name
        self.cluster = cluster
        settings = cluster.settings
        slots = settings.slots_per_task_manager
        info = TaskManagerInfo(ResourceID(name), f"{name}:7000", slots, VERSION, name, 1, executor_id="0")
        self.core = TaskExecutor(
            info,
            TaskExecutorSettings(
                settings.registration,
                settings.slot_timeout_ms,
                settings.heartbeat.timeout_ms,
                1_000,
                settings.cancellation_timeout_ms,
            ),
        )
        self.tasks: Any = cluster.make_tasks(self.feed)
        self._timers = SimulatedTimers(cluster.clock, lambda key: self.feed(TimerFired(key)))
        self.alive = True
        self.terminated: TerminateTaskManager | None = None

    def feed(self, event: TaskExecutorEvent) -> None:
        if not self.alive:
            return
        for effect in self.core.handle(event, self.cluster.clock.now_ms):
            self._perform(effect)

    def _perform(self, effect: TaskExecutorEffect) -> None:
        network = self.cluster.network
        match effect:
            case OpenConnection():
                self.cluster.dial(self.name, effect, self.feed)
            case CloseConnection(connection):
                network.close(self.name, connection)
            case Send(connection, envelope):
                network.send(self.name, connection, envelope)
            case SendHeartbeatResponse(connection, session, response):
                network.send(self.name, connection, Fenced(session, response))
            case StartTimer(key, at_ms):
                self._timers.start(key, at_ms)
            case CancelTimer(key):
                self._timers.cancel(key)
            case StartTask(descriptor):
                self.tasks.start(descriptor)
            case CancelTaskExecution(attempt_id) | FailTaskExecution(attempt_id):
                self.tasks.end(attempt_id, effect)
            case DeliverToTask(attempt_id, message):
                self.tasks.deliver(attempt_id, message)
            case ReleaseJobResources() | ReleaseSnapshots():
                pass
            case TerminateTaskManager():
                self.terminated = effect
                self.crash()

    def crash(self) -> None:
        """SIGKILL."""
        if self.alive:
            self.alive = False
            self._timers.clear()
            self.tasks.stop()
            self.cluster.network.crash(self.name)
            self.cluster.process_ended(self.name)


class JobMasterShell:
    """One JobMaster with its timers and connections."""

    def __init__(self, cluster: Cluster, graph: JobGraph, *, recovered: bool) -> None:
        self.cluster = cluster
        self.graph = graph
        settings = cluster.settings
        session = LeaderSessionID(f"jm-{cluster.draw()}")
        self.session = session
        configuration = Configuration(graph.configuration)
        self.core = JobMaster(
            graph,
            JobMasterIdentity(session, f"{COORDINATOR}:6123", f"graph{cluster.draw()}"),
            JobMasterSettings(
                settings.heartbeat,
                settings.registration,
                settings.slot_request_timeout_ms,
                50_000,
                settings.cancellation_timeout_ms + 5_000,
                "/savepoints",
            ),
            restart_strategy_of(configuration, cluster.rng.random),
            cluster.make_checkpoint_coordinator(graph),
            f"/checkpoints/{graph.job_id}",
            cluster.draw,
            cluster.clock.now_ms,
            given=cluster.given,
        )
        self._timers = SimulatedTimers(cluster.clock, lambda key: self.feed(TimerFired(key)))
        self.connections: dict[ConnectionID, None] = {}
        self.ended = False
        self.feed(JobMasterStarted(recovered))
        self.feed(ResourceManagerLeaderChanged(f"{COORDINATOR}:6123", cluster.resource_manager.session))

    def feed(self, event: JobMasterEvent) -> None:
        if self.ended:
            return
        for effect in self.core.handle(event, self.cluster.clock.now_ms):
            self._perform(effect)

    def _perform(self, effect: JobMasterEffect) -> None:
        cluster, network = self.cluster, self.cluster.network
        match effect:
            case OpenConnection():
                own = ConnectionID(f"{self.graph.job_id}/{effect.connection}")
                cluster.dial(COORDINATOR, OpenConnection(own, effect.peer), self._of_dialled)
            case CloseConnection(connection):
                network.close(COORDINATOR, self._own(connection))
            case Send(connection, envelope):
                network.send(COORDINATOR, self._own(connection), envelope)
            case SendToTasks():
                for send in effect.sends():
                    self._perform(send)
            case StartTimer(key, at_ms):
                self._timers.start(key, at_ms)
            case CancelTimer(key):
                self._timers.cancel(key)
            case ReportJobStatus(change):
                cluster.statuses.setdefault(change.job_id, []).append(change.status)
                cluster.to_dispatcher(JobStatusReported(change))
                running = change.status is JobStatus.RUNNING  # what the CheckpointCoordinatorDeActivator does
                rule = StartCheckpointScheduler(10) if running else StopCheckpointScheduler()
                cluster.clock.after(0, lambda: self.feed(rule))
            case Reply():
                cluster.answers[effect.request_id] = effect.answer
            case UpdateJobGraph(graph):
                cluster.job_graphs[graph.job_id] = graph
                cluster.clock.after(network.delay_ms(), lambda: self.feed(JobGraphUpdated()))
            case ForgetJobGraph(job_id):
                cluster.job_graphs.pop(job_id, None)
                cluster.clock.after(0, lambda: self.feed(JobGraphForgotten()))
            case JobReachedTerminalState(job_id, status, failure):
                self.ended = True
                cluster.to_dispatcher(JobMasterEnded(job_id, status, failure))
                cluster.timers_left_behind += [(job_id, key) for key in self._timers.armed]
            case _:
                cluster.store_of(self.graph.job_id).perform(effect, self.feed)

    def crash(self, reason: str) -> None:
        """A core raised: the actor stops, its connections break, the Dispatcher hears of it."""
        self.ended = True
        self._timers.clear()
        for connection in self.cluster.network.connections_of(COORDINATOR):
            if connection.startswith((f"{self.session}/", f"{self.graph.job_id}/")):
                self.cluster.network.close(COORDINATOR, connection, reason)
        failure = SerializedFailure(reason, Blame.INTERNAL)
        self.cluster.to_dispatcher(JobMasterEnded(self.graph.job_id, self.core.status, failure))

    def _own(self, connection: ConnectionID) -> ConnectionID:
        """Connections of several JobMasters live in one process: those that they dial are kept apart."""
        return ConnectionID(f"{self.graph.job_id}/{connection}") if connection.startswith("dial-") else connection

    def _of_dialled(self, event: ConnectionOpened | ConnectionLost | MessageReceived) -> None:
        core_id = ConnectionID(event.connection.removeprefix(f"{self.graph.job_id}/"))
        match event:
            case ConnectionOpened():
                self.feed(ConnectionOpened(core_id))
            case ConnectionLost(_, reason):
                self.feed(ConnectionLost(core_id, reason))
            case MessageReceived(_, envelope):
                self.feed(MessageReceived(core_id, envelope))


class Cluster:
    """One coordinator and as many TaskManagers as it wants."""

    def __init__(
        self,
        settings: ClusterSettings | None = None,
        seed: int = 0,
        behaviour: TaskBehaviour | None = None,
    ) -> None:
        self.settings = settings or ClusterSettings()
        self.rng = random.Random(seed)
        self.clock = SimulatedClock()
        self.network = SimulatedNetwork(self.clock, self.rng, self.settings.max_delay_ms)
        self.behaviour = behaviour or TaskBehaviour()
        self.barriers = Barriers(self.clock, self.rng)
        self.checkpoint_stores: dict[JobID, CheckpointStore] = {}
        self._numbers = itertools.count(1)
        self.task_managers: dict[str, SimulatedTaskManager] = {}
        self.job_masters: dict[JobID, JobMasterShell] = {}
        self.statuses: dict[JobID, list[JobStatus]] = {}
        self.answers: dict[RequestID, Answer] = {}
        self.job_graphs: dict[JobID, JobGraph] = {}
        self.declared: DeclareWorkers | None = None
        self.starting = 0
        self.broken_job_masters = 0
        self.once_registered: dict[ResourceID, None] = {}
        self.timers_left_behind: list[tuple[JobID, Hashable]] = []
        self.dispatcher = Dispatcher()
        self.given = GivenSlots(lambda: f"alloc-{self.draw()}", lambda: SIGNER)
        self.resource_manager = self._new_resource_manager()
        self._resource_manager_timers = self._timers_of_resource_manager()
        self.to_dispatcher(DispatcherStarted())
        self.to_resource_manager(ResourceManagerStarted())

    # --- what tests do ------------------------------------------------------------------------------------------------

    def submit(self, graph: JobGraph) -> RequestID:
        request_id = RequestID(f"request-{self.draw()}")
        self.to_dispatcher(SubmitJob(request_id, graph))
        return request_id

    def operate(self, job_id: JobID, operation: JobOperation) -> RequestID:
        request_id = RequestID(f"request-{self.draw()}")
        self.to_dispatcher(OperateJob(request_id, job_id, operation))
        return request_id

    def run(self, duration_ms: int, stop: Callable[[], bool] = lambda: False) -> bool:
        return self.clock.run_until(self.clock.now_ms + duration_ms, stop)

    def run_until_status(self, job_id: JobID, status: JobStatus, within_ms: int = 120_000) -> bool:
        return self.run(within_ms, lambda: self.status(job_id) is status)

    def status(self, job_id: JobID) -> JobStatus | None:
        overview = self.dispatcher.find(job_id)
        return None if overview is None else overview.status

    def start_task_manager(self) -> SimulatedTaskManager:
        process = SimulatedTaskManager(self, f"tm-{self.draw()}")
        self.task_managers[process.name] = process
        process.feed(TaskExecutorStarted())
        process.feed(ResourceManagerLeaderChanged(f"{COORDINATOR}:6123", self.resource_manager.session))
        return process

    def alive(self) -> list[SimulatedTaskManager]:
        return [process for process in self.task_managers.values() if process.alive]

    def restart_resource_manager(self) -> None:
        """Another leader session of the ResourceManager; everybody finds it by leader retrieval."""
        session = self.resource_manager.session
        for connection in self.network.connections_of(COORDINATOR):
            if connection.startswith("rm-"):
                self.network.close(COORDINATOR, connection, f"{session} is not leader any more")
        self._resource_manager_timers.clear()
        self.resource_manager = self._new_resource_manager()
        self._resource_manager_timers = self._timers_of_resource_manager()
        self.to_resource_manager(ResourceManagerStarted())
        for follower in (*self.alive(), *self.job_masters.values()):
            self.clock.after(self.network.delay_ms(), lambda f=follower: self._tell_leader(f))  # type: ignore[misc]

    def _tell_leader(self, follower: SimulatedTaskManager | JobMasterShell) -> None:
        """Leader retrieval tells who is leader now, not who was when somebody became it."""
        follower.feed(ResourceManagerLeaderChanged(f"{COORDINATOR}:6123", self.resource_manager.session))

    def _tell_job_leader(self, process: SimulatedTaskManager, job_id: JobID) -> None:
        job_master = self.job_masters.get(job_id)
        if job_master is not None:
            process.feed(JobMasterLeaderChanged(job_id, f"{COORDINATOR}:6123", job_master.session))

    def suspend_job_master(self, job_id: JobID) -> None:
        """Leadership of one job is lost: its core lets go; nothing is told to anybody but by broken connections."""
        job_master = self.job_masters.pop(job_id)
        job_master.feed(JobMasterSuspended("the test says so"))

    # --- what the shells use ------------------------------------------------------------------------------------------

    def draw(self) -> str:
        return f"{next(self._numbers):08x}"

    def make_tasks(self, report: Callable[[Any], None]) -> SimulatedTasks:
        return SimulatedTasks(self.clock, self.rng, self.behaviour, self.barriers, report)

    def dial(self, process: str, effect: OpenConnection, feed: Callable[[Any], None]) -> None:
        """Connect a process with the ResourceManager or a JobMaster, or fail, after a while."""

        def connect() -> None:
            if self.network.is_cut(process, COORDINATOR) or self.network.is_cut(COORDINATOR, process):
                return  # a lost handshake is silence
            server = self._server_for(effect)
            if server is None:
                feed(ConnectionLost(effect.connection, "connection refused"))
                return
            dialler = Endpoint(
                process,
                effect.connection,
                lambda connection, envelope: feed(MessageReceived(connection, envelope)),
                lambda connection, reason: feed(ConnectionLost(connection, reason)),
            )
            if process == COORDINATOR or self.task_managers[process].alive:
                self.network.connect(dialler, server)
                feed(ConnectionOpened(effect.connection))

        self.clock.after(self.network.delay_ms(), connect)

    def _server_for(self, effect: OpenConnection) -> Endpoint | None:
        if effect.peer.kind is PeerKind.RESOURCE_MANAGER:
            manager = self.resource_manager
            own = ConnectionID(f"rm-{self.draw()}")

            def to_manager(event: ResourceManagerEvent) -> None:
                if manager is self.resource_manager:
                    self.to_resource_manager(event)

            return Endpoint(
                COORDINATOR,
                own,
                lambda connection, envelope: to_manager(MessageReceived(connection, envelope)),
                lambda connection, reason: to_manager(ConnectionLost(connection, reason)),
            )
        job_master = self.job_masters.get(effect.peer.job_id)
        if job_master is None or job_master.ended:
            return None
        own = ConnectionID(f"{job_master.session}/{self.draw()}")
        return Endpoint(
            COORDINATOR,
            own,
            lambda connection, envelope: job_master.feed(MessageReceived(connection, envelope)),
            lambda connection, reason: job_master.feed(ConnectionLost(connection, reason)),
        )

    def to_dispatcher(self, event: DispatcherEvent) -> None:
        self.clock.after(0, lambda: self._feed_dispatcher(event))

    def _feed_dispatcher(self, event: DispatcherEvent) -> None:
        for effect in self.dispatcher.handle(event, self.clock.now_ms):
            self._perform_dispatcher(effect)

    def _perform_dispatcher(self, effect: DispatcherEffect) -> None:
        match effect:
            case StoreJobGraph(graph):
                self.job_graphs[graph.job_id] = graph
                self.clock.after(self.network.delay_ms(), lambda: self._feed_dispatcher(JobGraphStored(graph.job_id)))
            case RemoveJobGraph(job_id):
                self.job_graphs.pop(job_id, None)
                self.job_masters.pop(job_id, None)
                self._feed_dispatcher(JobGraphRemoved(job_id))
            case StartJobMaster(graph, recovered):
                self.job_masters[graph.job_id] = JobMasterShell(self, graph, recovered=recovered)
                for process in self.alive():
                    self.clock.after(self.network.delay_ms(), lambda p=process: self._tell_job_leader(p, graph.job_id))  # type: ignore[misc]
            case SuspendJobMaster(job_id):
                self.job_masters[job_id].feed(JobMasterSuspended("leadership lost"))
            case ForwardToJobMaster(request_id, job_id, operation):
                self.job_masters[job_id].feed(OperationRequested(request_id, operation))
            case Reply(request_id, answer):
                self.answers[request_id] = answer

    def to_resource_manager(self, event: ResourceManagerEvent) -> None:
        for effect in self.resource_manager.handle(event, self.clock.now_ms):
            self._perform_resource_manager(effect)

    def _perform_resource_manager(self, effect: ResourceManagerEffect) -> None:
        match effect:
            case Send(connection, envelope):
                self.network.send(COORDINATOR, connection, envelope)
            case CloseConnection(connection):
                self.network.close(COORDINATOR, connection)
            case StartTimer(key, at_ms):
                self._resource_manager_timers.start(key, at_ms)
            case CancelTimer(key):
                self._resource_manager_timers.cancel(key)
            case DeclareWorkers():
                self.declared = effect
                self._start_workers()
            case ReleaseWorker():
                pass

    def _start_workers(self) -> None:
        """The pool: as many TaskManagers as the declared slots need, within bounds."""
        if self.declared is None:
            return
        self.once_registered.update(dict.fromkeys(self.declared.registered))
        coming = [p for p in self.alive() if p.core.info.resource_id not in self.once_registered]
        there = len(self.declared.registered) + len(coming)
        needed = -(-self.declared.required_slots // self.settings.slots_per_task_manager)
        while there + self.starting < needed and len(self.alive()) + self.starting < self.settings.max_task_managers:
            self.starting += 1
            self.clock.after(self.settings.start_delay_ms, self._worker_started)

    def _worker_started(self) -> None:
        self.starting -= 1
        self.start_task_manager()

    def process_ended(self, name: str) -> None:
        """A TaskManager process is gone; the pool replaces it when it is needed."""
        self.clock.after(1, self._start_workers)

    def store_of(self, job_id: JobID) -> CheckpointStore:
        """The durable checkpoints of a job."""
        if job_id not in self.checkpoint_stores:
            self.checkpoint_stores[job_id] = CheckpointStore(self.clock, self.rng)
        return self.checkpoint_stores[job_id]

    def make_checkpoint_coordinator(self, graph: JobGraph) -> CheckpointCoordinatorCore:
        return CheckpointCoordinator(
            graph.job_id,
            graph.name,
            CheckpointCoordinatorConfiguration.from_configuration(Configuration(graph.configuration)),
            graph.vertices,
            graph.edges,
            store_survives_suspension=True,
        )

    def _new_resource_manager(self) -> ResourceManager:
        settings = ResourceManagerSettings(VERSION, self.settings.heartbeat, self.settings.task_manager_timeout_ms)
        session = LeaderSessionID(f"rm-{self.draw()}")
        return ResourceManager(settings, session, self.given)

    def _timers_of_resource_manager(self) -> SimulatedTimers:
        return SimulatedTimers(self.clock, lambda key: self.to_resource_manager(TimerFired(key)))

    # --- invariants ---------------------------------------------------------------------------------------------------

    def check_invariants(self) -> None:
        """No slot has two owners, and nobody's books contradict themselves."""
        owners: dict[AllocationID, JobID] = {}
        for job_id, job_master in self.job_masters.items():
            for slot in job_master.core.scheduler.pool:
                other = owners.setdefault(slot.allocation_id, job_id)
                assert other == job_id, f"{slot.allocation_id} belongs to {other} and {job_id}"
        for process in self.alive():
            seen: dict[int, JobID] = {}
            for task_slot in process.core.slots:
                if task_slot.allocation_id:
                    assert task_slot.slot_number not in seen
                    seen[task_slot.slot_number] = task_slot.job_id
                    owner = owners.get(task_slot.allocation_id)
                    assert owner in (None, task_slot.job_id), (
                        f"{task_slot.allocation_id} is {task_slot.job_id}'s, not {owner}'s"
                    )
                for attempt_id in task_slot.tasks:
                    assert attempt_id in process.core.tasks_of(task_slot.job_id)
