"""One simulated coordinator: the real Dispatcher, ResourceManager and JobMasters, and the real stores behind their
effects.

Plays `snapline.coordinator.cluster_entrypoint` and `snapline.coordinator.actors.job_master_runner` without threads and
sockets: what they do with each effect is done here the same way, with the same `CheckpointIo`,
`EmbeddedHighAvailability` and pointer codec on the simulated disk. A successor finds what was durable, and nothing
else.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

from snapline.coordinator.actors.checkpoint_io import CheckpointIo
from snapline.coordinator.actors.job_master_runner import STORE_RETRY_MS
from snapline.coordinator.actors.master_hook_runner import MasterHookRunner
from snapline.coordinator.checkpoint.checkpoint_coordinator import CheckpointCoordinator
from snapline.coordinator.checkpoint.configuration import CheckpointCoordinatorConfiguration
from snapline.coordinator.checkpoint.events import StartCheckpointScheduler, StopCheckpointScheduler
from snapline.coordinator.cluster_entrypoint import SUSPEND_TIMEOUT_SECONDS
from snapline.coordinator.deletions import Deletions
from snapline.coordinator.dispatcher import effects as dispatching
from snapline.coordinator.dispatcher.dispatcher import Dispatcher
from snapline.coordinator.dispatcher.events import (
    DispatcherStarted,
    DispatcherSuspended,
    JobGraphChanged,
    JobGraphRemoved,
    JobGraphStored,
    JobGraphStoreFailed,
    JobMasterEnded,
    JobStatusReported,
    SubmitJob,
)
from snapline.coordinator.execution.given_slots import GivenSlots
from snapline.coordinator.execution.restart_strategy import restart_strategy_of
from snapline.coordinator.ha.embedded import EmbeddedHighAvailability
from snapline.coordinator.ha.high_availability import HighAvailability, JobStores, LeadershipLost
from snapline.coordinator.ha.leader_table_writer import LeaderTableWriter
from snapline.coordinator.ha.zookeeper_high_availability import ZooKeeperHighAvailability
from snapline.coordinator.jobmaster.effects import (
    ForgetJobGraph,
    JobReachedTerminalState,
    ReportJobStatus,
    UpdateJobGraph,
)
from snapline.coordinator.jobmaster.events import (
    JobGraphForgotten,
    JobGraphUpdated,
    JobMasterStarted,
    JobMasterSuspended,
    OperationRequested,
)
from snapline.coordinator.jobmaster.identity import JobMasterIdentity
from snapline.coordinator.jobmaster.job_master import JobMaster
from snapline.coordinator.jobmaster.job_master_settings import JobMasterSettings
from snapline.coordinator.jobmaster.operations import Answer, JobOperation, Reply, RequestID
from snapline.coordinator.resource.effects import DeclareWorkers, ReleaseWorker
from snapline.coordinator.resource.events import ResourceManagerStarted
from snapline.coordinator.resource.resource_manager import ResourceManager, ResourceManagerSettings
from snapline.dataflow.api.master_hooks import create_hooks
from snapline.dataflow.config import Configuration
from snapline.dataflow.failures import SerializedFailure
from snapline.dataflow.graph.jobgraph import JobGraph
from snapline.dataflow.ids import JobID, LeaderSessionID
from snapline.dataflow.wire.messages import Fenced, ForTasks, JobStatus
from snapline.runtime.cores.connections import (
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
    SendToTasks,
)
from snapline.runtime.leaders.leader_election import Leadership
from snapline.runtime.leaders.leader_retrieval import LeaderAddress, LeaderTable
from snapline.runtime.signing import LeaderSigner, Signer
from snapline.runtime.storage.state_storages import StateStorages
from snapline.runtime.version import VERSION
from snapline.testing.simulated.disk import Disk, ProcessStorage
from snapline.testing.simulated.network import Endpoint
from snapline.testing.simulated.world import Process, SilentLogger, SimulatedActor, Violation, World, WorldClock

COORDINATOR_ADDRESS = "coordinator:6123"
CHECKPOINTS = "/checkpoints"
HIGH_AVAILABILITY = "/ha"
SIGNER = Signer((b"key of the simulated cluster",))
ENDED = (JobStatus.FINISHED, JobStatus.CANCELED, JobStatus.FAILED, JobStatus.SUSPENDED)

Observe = Callable[[str, Any, list[Any]], None]


class CoordinatorNetwork(Protocol):
    """What a coordinator needs of the cluster."""

    def dial(self, process: Process, effect: OpenConnection, tell: Callable[[Any], object]) -> None: ...

    def send(self, process: str, connection: ConnectionID, envelope: Any) -> None: ...
    def send_to_tasks(self, process: str, connection: ConnectionID, envelope: Any) -> None: ...

    def publish_leaders(self, process: Process, table: LeaderTable) -> None: ...

    def job_master_began(self, job_id: JobID, session: LeaderSessionID) -> None: ...

    def job_began(self, job_id: JobID) -> None: ...

    def forgets_job(self, job_id: JobID, status: JobStatus, failure: SerializedFailure | None) -> None: ...

    def job_ended(self, job_id: JobID, status: JobStatus, failure: SerializedFailure | None) -> None: ...

    def is_stored(self, job_id: JobID) -> bool: ...


class DelayedIo:
    """The executor for slow work: done after a while, answered after another, in any order (IoExecutor)."""

    def __init__(self, process: Process, slowness_ms: Callable[[], int]) -> None:
        self._process = process
        self._rng = process.world.random(f"io of {process.name}")
        self._slowness_ms = slowness_ms
        self.may_block = False
        """Work waits for others, and needs a thread of its own."""
        self.on_leadership_lost: Callable[[], None] = process.kill_here

    def submit(
        self,
        name: str,
        work: Callable[[], Any],
        tell: Callable[[Any], object],
        failed: Callable[[BaseException], Any],
        limit_ms: int = 0,
    ) -> None:
        def perform() -> None:
            try:
                answer = work()
            except LeadershipLost as error:
                self._process.world.story.say(self._process.name, f"does not lead any more: {error}")
                answer = failed(error)
                self.on_leadership_lost()
            except Exception as error:  # as in production: a core must never wait for an answer that does not come
                self._process.world.check_error(error, name)
                answer = failed(error)
            if answer is not None:
                self._process.later(self._rng.randint(0, 2), lambda: tell(answer))

        delay_ms = self._rng.randint(0, 3) + self._slowness_ms()
        if self.may_block:
            self._process.world.run_blocking(self._process, perform, delay_ms)
        else:
            self._process.later(delay_ms, perform)


class OneAtATime:
    """The executor for master hooks: one thread, in the order of asking (IoExecutor)."""

    def __init__(self, io: DelayedIo) -> None:
        self._io = io
        self._waiting: deque[tuple[Any, ...]] = deque()
        self._is_busy = False

    def submit(
        self,
        name: str,
        work: Callable[[], Any],
        tell: Callable[[Any], object],
        failed: Callable[[BaseException], Any],
        limit_ms: int = 0,
    ) -> None:
        self._waiting.append((name, work, tell, failed))
        if not self._is_busy:
            self._next()

    def _next(self) -> None:
        self._is_busy = bool(self._waiting)
        if not self._waiting:
            return
        name, work, tell, failed = self._waiting.popleft()

        def perform() -> Any:
            try:
                return work()
            finally:
                self._next()

        self._io.submit(name, perform, tell, failed)

    def close(self, timeout_seconds: float = 0.0) -> None: ...


class SimulatedCoordinator(Process):
    """One incarnation; with ZooKeeper, one leadership."""

    def __init__(
        self,
        world: World,
        cluster: CoordinatorNetwork,
        disk: Disk,
        name: str,
        configuration: Configuration,
        io_slowness_ms: Callable[[], int],
        observe: Observe,
        leadership: Leadership | None = None,
        address: str = COORDINATOR_ADDRESS,
        on_leadership_lost: Callable[[], None] | None = None,
    ) -> None:
        """`leadership`: won in ZooKeeper, and over when `on_leadership_lost` is called."""
        super().__init__(world, name)
        self.address = address
        self.on_death: Callable[[], None] = lambda: None
        self._leadership = leadership
        self._table_writer: LeaderTableWriter | None = None
        self._retired = False
        self.cluster = cluster
        self.configuration = configuration
        self.observe = observe
        self.rng = world.random(f"ids of {name}")
        self.clock = WorldClock(self)
        self.storages = StateStorages(lambda url: ProcessStorage(disk, self, url))
        self._durable = ProcessStorage(disk, self, HIGH_AVAILABILITY)
        self.io = DelayedIo(self, io_slowness_ms)
        if on_leadership_lost is not None:
            self.io.may_block, self.io.on_leadership_lost = True, on_leadership_lost
        self.session = LeaderSessionID(f"rm-{self.draw()}")
        self.given = GivenSlots(lambda: f"alloc-{self.draw()}", lambda: SIGNER)
        self.runners: dict[JobID, SimulatedJobMaster] = {}
        self.answers: dict[RequestID, Answer] = {}
        self._leaders: dict[JobID, LeaderAddress] = {}
        self.resource_manager = SimulatedActor(
            self,
            f"{name}/rm",
            ResourceManager(
                ResourceManagerSettings.from_configuration(VERSION, configuration),
                self.session,
                self.given,
            ),
            {
                Send: lambda effect: cluster.send(self.name, effect.connection, effect.envelope),
                CloseConnection: lambda effect: world.network.close(self.name, effect.connection),
                DeclareWorkers: lambda _: None,
                ReleaseWorker: lambda _: None,
            },
            observe,
        )
        self.dispatcher = SimulatedActor(
            self,
            f"{name}/dispatcher",
            Dispatcher(),
            {
                dispatching.StoreJobGraph: self._store_job_graph,
                dispatching.RemoveJobGraph: self._remove_job_graph,
                dispatching.StartJobMaster: self._start_job_master,
                dispatching.SuspendJobMaster: self._suspend_job_master,
                dispatching.ForwardToJobMaster: self._forward,
                Reply: lambda effect: self.answers.__setitem__(effect.request_id, effect.answer),
            },
            observe,
        )
        self.ready = False
        if leadership is None:
            self.later(world.network.delay_ms(), self._start)
        else:
            world.run_blocking(self, self._start, world.network.delay_ms())

    def draw(self) -> str:
        return f"{self.rng.getrandbits(64):016x}"

    def submit(self, graph: JobGraph) -> RequestID:
        request_id = RequestID(self.draw())
        self.dispatcher.tell(SubmitJob(request_id, graph))
        return request_id

    def operate(self, job_id: JobID, operation: JobOperation) -> RequestID:
        request_id = RequestID(self.draw())
        runner = self.runners.get(job_id)
        if runner is not None:
            runner.tell(OperationRequested(request_id, operation))
        return request_id

    def _start(self) -> None:
        """Read the job graphs; a coordinator that cannot read them ends, and is started again."""
        try:
            self.high_availability = self._open_high_availability()
            recovered = self.high_availability.job_graphs.load().graphs
        except LeadershipLost as error:
            self.world.story.say(self.name, f"cannot start: {error}")
            self.io.on_leadership_lost()
            return
        except Exception as error:  # what the storage raises
            self.world.story.say(self.name, f"cannot start: {error}")
            self.kill_here()
        self.world.story.say(self.name, f"leads, recovers {len(recovered)} jobs")
        self.resource_manager.tell(ResourceManagerStarted())
        self.dispatcher.tell(DispatcherStarted(recovered))
        self.ready = True
        self.publish()

    def _open_high_availability(self) -> HighAvailability:
        if self._leadership is None:
            return EmbeddedHighAvailability(self._durable, self.session, durable=True)
        stores = ZooKeeperHighAvailability(self._leadership, self._durable)
        self._table_writer = LeaderTableWriter(
            stores.published_leaders,
            stores.publish_leaders,
            LeaderSigner,
            SilentLogger(),  # type: ignore[arg-type]
        )
        return stores

    def retire(self) -> None:
        """End a coordinator that leads no more: JobMasters are suspended, then it ends, and its host goes on."""
        if self._retired:
            return
        self._retired, self.ready = True, False
        self.dispatcher.tell(DispatcherSuspended("the coordinator stops"))
        deadline_ms = self.now_ms + round(1000 * SUSPEND_TIMEOUT_SECONDS)

        def look() -> None:
            if self.runners and self.now_ms < deadline_ms:
                self.later(20, look)
            else:
                self.kill()

        self.later(20, look)

    def ended(self) -> None:
        super().ended()
        for actor in (self.resource_manager, self.dispatcher):
            actor.stop()
        for runner in self.runners.values():
            runner.stop()
        self.world.story.say(self.name, "has retired" if self._retired else "is gone")
        if not self._retired:
            self.on_death()

    # --- leaders ------------------------------------------------------------------------------------------------------

    def publish(self) -> None:
        if not self.ready:
            return
        table = LeaderTable(LeaderAddress(self.address, self.session), dict(self._leaders))
        if self._table_writer is not None:
            self._table_writer.publish(table)
        else:
            self.cluster.publish_leaders(self, table)

    def set_job_master(self, job_id: JobID, leader: LeaderAddress | None) -> None:
        if leader is None:
            self._leaders.pop(job_id, None)
        else:
            self._leaders[job_id] = leader
        self.publish()

    def serve(self, peer: Peer) -> Endpoint | None:
        """The serving end of a connection that somebody dials."""
        if peer.kind is PeerKind.RESOURCE_MANAGER:
            tell: Callable[[Any], object] = self.resource_manager.tell
        else:
            runner = self.runners.get(peer.job_id)
            if runner is None or runner.actor is None:
                return None
            tell = runner.tell
        connection = ConnectionID(f"serve-{self.world.number('served connection')}")
        return Endpoint(
            self.name,
            connection,
            lambda own, envelope: tell(MessageReceived(own, envelope)),
            lambda own, reason: tell(ConnectionLost(own, reason)),
        )

    # --- performers of the Dispatcher ---------------------------------------------------------------------------------

    def _store_job_graph(self, effect: dispatching.StoreJobGraph) -> None:
        graph = effect.job_graph

        def work() -> JobGraphStored:
            self.high_availability.job_graphs.put(graph)
            return JobGraphStored(graph.job_id)

        self.io.submit(
            "store job", work, self.dispatcher.tell, lambda error: JobGraphStoreFailed(graph.job_id, str(error))
        )

    def _remove_job_graph(self, effect: dispatching.RemoveJobGraph) -> None:
        job_id = effect.job_id

        def remove() -> None:
            self.high_availability.job_graphs.remove(job_id)
            self.high_availability.forget_job(job_id)

        def work() -> JobGraphRemoved:
            remove()
            return JobGraphRemoved(job_id)

        def failed(error: BaseException) -> JobGraphRemoved:
            if effect.is_over:
                Deletions(self.io, self.clock, self.clock).retry_later("remove job", remove, error)
            return JobGraphRemoved(job_id, str(error))

        self.io.submit("remove job", work, self.dispatcher.tell, failed)

    def _start_job_master(self, effect: dispatching.StartJobMaster) -> None:
        runner = SimulatedJobMaster(self, effect.job_graph, recovered=effect.recovered)
        self.runners[effect.job_graph.job_id] = runner
        runner.start()

    def _suspend_job_master(self, effect: dispatching.SuspendJobMaster) -> None:
        runner = self.runners.get(effect.job_id)
        if runner is not None:
            runner.tell(JobMasterSuspended("the coordinator stops"))

    def _forward(self, effect: dispatching.ForwardToJobMaster) -> None:
        runner = self.runners.get(effect.job_id)
        if runner is not None:
            runner.tell(OperationRequested(effect.request_id, effect.operation))

    def of_job_master(self, event: Any) -> None:
        self.dispatcher.tell(event)
        if isinstance(event, JobMasterEnded) and event.status in ENDED:
            self.runners.pop(event.job_id, None)


class SimulatedJobMaster:
    """One JobMaster of one job: JobMasterRunner."""

    def __init__(self, process: SimulatedCoordinator, graph: JobGraph, *, recovered: bool) -> None:
        self._process = process
        self.graph = graph
        self._recovered = recovered
        self._early: list[Any] = []
        self.actor: SimulatedActor | None = None
        self.checkpoints: CheckpointCoordinator | None = None
        self.session = LeaderSessionID("")
        self._status = JobStatus.CREATED
        self._ended = False

    def _send_to_tasks(self, effect: SendToTasks, scope: str) -> None:
        for connection, attempt_ids in effect.to:
            envelope = Fenced(effect.session, ForTasks(effect.template, attempt_ids))
            self._process.cluster.send_to_tasks(self._process.name, _scoped(connection, scope), envelope)

    @property
    def core(self) -> JobMaster | None:
        return None if self.actor is None else self.actor.core

    def start(self) -> None:
        process = self._process
        process.io.submit(
            "open the stores",
            lambda: process.high_availability.open_job(self.graph.job_id),
            self._begin,
            lambda _: process.later(STORE_RETRY_MS, self.start),
        )

    def tell(self, event: Any) -> bool:
        if self.actor is None:
            self._early.append(event)
            return True
        return self.actor.tell(event)

    def stop(self) -> None:
        self._ended = True
        if self.actor is not None:
            self.actor.stop()

    def _update_graph(self, effect: UpdateJobGraph) -> None:
        process, graph = self._process, effect.job_graph

        def work() -> JobGraphUpdated:
            process.high_availability.job_graphs.replace(graph)
            return JobGraphUpdated()

        def updated(event: JobGraphUpdated) -> None:
            process.of_job_master(JobGraphChanged(graph))
            self.tell(event)

        process.io.submit(
            "store the graph",
            work,
            updated,
            lambda _: process.later(STORE_RETRY_MS, lambda: self._update_graph(effect)),
        )

    def _forget_graph(self) -> None:
        process, core = self._process, self.core

        def work() -> JobGraphForgotten:
            if core is not None:
                process.cluster.forgets_job(self.graph.job_id, core.scheduler.status, core.scheduler.root_failure)
            process.high_availability.job_graphs.remove(self.graph.job_id)
            return JobGraphForgotten()

        process.io.submit(
            "forget the graph", work, self.tell, lambda _: process.later(STORE_RETRY_MS, self._forget_graph)
        )

    def _begin(self, stores: JobStores) -> None:
        process, graph = self._process, self.graph
        job_id, world = graph.job_id, process.world
        configuration = Configuration(graph.configuration)
        checkpointing = CheckpointCoordinatorConfiguration.from_configuration(configuration)
        hooks = MasterHookRunner(
            create_hooks(graph.master_hooks),
            checkpointing.timeout_ms,
            OneAtATime(process.io),  # type: ignore[arg-type]  # the part of IoExecutor that is used
            self.tell,
        )
        self.checkpoints = CheckpointCoordinator(
            job_id,
            graph.name,
            checkpointing,
            graph.vertices,
            graph.edges,
            store_survives_suspension=stores.survives_suspension,
            master_hooks=hooks.registered(),
        )
        self.session = LeaderSessionID(f"jm-{process.draw()}")
        directory = f"{CHECKPOINTS}/{job_id}"
        master = JobMaster(
            graph,
            JobMasterIdentity(self.session, process.address, process.draw()),
            JobMasterSettings.from_configuration(process.configuration, configuration),
            restart_strategy_of(configuration, process.rng.random),
            self.checkpoints,
            directory,
            process.draw,
            process.now_ms,
            given=process.given,
        )
        checkpoint_io = CheckpointIo(
            job_id,
            directory,
            process.storages,
            stores,
            process.io,
            process.clock,  # type: ignore[arg-type]
            process.clock,
            self.tell,
            SilentLogger(),  # type: ignore[arg-type]
        )
        scope = f"{self.session}/"
        self.actor = SimulatedActor(
            process,
            f"{process.name}/jm",
            master,
            {
                OpenConnection: lambda effect: process.cluster.dial(
                    process,
                    OpenConnection(ConnectionID(scope + effect.connection), effect.peer),
                    lambda event: self.tell(_unscoped(event, scope)),
                ),
                Send: lambda effect: process.cluster.send(
                    process.name, _scoped(effect.connection, scope), effect.envelope
                ),
                SendToTasks: lambda effect: self._send_to_tasks(effect, scope),
                CloseConnection: lambda effect: world.network.close(process.name, _scoped(effect.connection, scope)),
                **checkpoint_io.performers(self.checkpoints.stats),
                **hooks.performers(),
                Reply: lambda effect: process.answers.__setitem__(effect.request_id, effect.answer),
                ReportJobStatus: lambda effect: self._report_status(effect, checkpointing),
                UpdateJobGraph: self._update_graph,
                ForgetJobGraph: lambda _: self._forget_graph(),
                JobReachedTerminalState: lambda effect: self._end(effect.status, effect.failure),
            },
            process.observe,
        )
        process.cluster.job_master_began(job_id, self.session)
        process.set_job_master(job_id, LeaderAddress(process.address, self.session))
        leader = ResourceManagerLeaderChanged(process.address, process.session)
        for event in (JobMasterStarted(self._recovered), leader, *self._early):
            self.actor.tell(event)

    def _report_status(self, effect: ReportJobStatus, checkpointing: CheckpointCoordinatorConfiguration) -> None:
        process, change = self._process, effect.change
        self._status = change.status
        if change.status.is_globally_terminal and process.cluster.is_stored(change.job_id):
            raise Violation(f"{change.job_id} is {change.status.value}, and the next leader would run it again")
        why = f": {change.failure.summary}" if change.failure else ""
        process.world.story.say(process.name, f"job {change.status.value}{why}")
        process.cluster.job_began(change.job_id)
        process.of_job_master(JobStatusReported(change))
        if change.status is JobStatus.RUNNING:  # what the CheckpointCoordinatorDeActivator does
            least, most = checkpointing.min_pause_ms, checkpointing.effective_interval_ms
            rule: Any = StartCheckpointScheduler(process.rng.randint(min(least, most), most))
        else:
            rule = StopCheckpointScheduler()
        process.later(0, lambda: self.tell(rule))

    def _end(self, status: JobStatus, failure: SerializedFailure | None) -> None:
        if self._ended:
            return
        process = self._process
        self.stop()
        process.set_job_master(self.graph.job_id, None)
        for connection in process.world.network.connections_of(process.name):
            if connection.startswith(f"{self.session}/"):
                process.world.network.close(process.name, connection, "the JobMaster has stopped")
        process.cluster.job_ended(self.graph.job_id, status, failure)
        process.of_job_master(JobMasterEnded(self.graph.job_id, status, failure))


def _scoped(connection: ConnectionID, scope: str) -> ConnectionID:
    """Connections that a core dialled are its own; those that it serves have names of the process."""
    return connection if connection.startswith("serve-") else ConnectionID(scope + connection)


def _unscoped(event: Any, scope: str) -> Any:
    own = ConnectionID(event.connection.removeprefix(scope))
    match event:
        case ConnectionOpened():
            return ConnectionOpened(own)
        case ConnectionLost(_, reason):
            return ConnectionLost(own, reason)
        case MessageReceived(_, envelope):
            return MessageReceived(own, envelope)
    return event
