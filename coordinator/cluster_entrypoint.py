"""The composition root of a coordinator: builds everything, wires it, and takes it apart again.

Knows all shells and no rule. Order up: settings and storage are checked, the server listens, then ResourceManager and
Dispatcher start (which recovers jobs), then leaders are published. Order down: JobMasters are suspended (nothing
durable is touched: the next coordinator goes on), slow work ends, then the server, the rest after. The ResourceManager
that jobs get their slots from may be another coordinator's (`resourcemanager.rpc.address`): its leaders are followed
then, and published with our own. Mirrors Flink's ClusterEntrypoint.
"""

from __future__ import annotations

import contextlib
import threading
import uuid
from collections.abc import Callable, Iterable
from typing import Any

import grpc.aio
import pykka

from snapline.coordinator.actors.job_master_runner import JobMasterRunner, JobServices, job_directory
from snapline.coordinator.checkpoint.id_counter import CheckpointIDCounterError
from snapline.coordinator.checkpoint.metadata import MetadataError, pointer_location
from snapline.coordinator.client_view import ClientView, minimal_details
from snapline.coordinator.coordinator_config import CoordinatorConfig
from snapline.coordinator.coordinator_metrics import CoordinatorMetrics
from snapline.coordinator.deletions import Deletions
from snapline.coordinator.dispatcher import effects as dispatching
from snapline.coordinator.dispatcher.dispatcher import Dispatcher, JobOverview
from snapline.coordinator.dispatcher.events import (
    DispatcherStarted,
    DispatcherSuspended,
    HeldJob,
    JobGraphChanged,
    JobGraphRemoved,
    JobGraphStored,
    JobGraphStoreFailed,
    JobMasterEnded,
)
from snapline.coordinator.dispatcher.held_jobs import former_module, hold
from snapline.coordinator.event_logs import RegistrationLog
from snapline.coordinator.execution.given_slots import GivenSlots
from snapline.coordinator.ha.embedded import EmbeddedHighAvailability
from snapline.coordinator.ha.high_availability import HighAvailability, LeadershipLost
from snapline.coordinator.ha.job_archive import ArchivedJobs, JobArchive
from snapline.coordinator.ha.leader_table_writer import LeaderTableWriter
from snapline.coordinator.ha.start_marks import StartMarks
from snapline.coordinator.ha.stored_job_graphs import JobGraphSetAside
from snapline.coordinator.ha.zookeeper_high_availability import ZooKeeperHighAvailability
from snapline.coordinator.io import IoExecutor
from snapline.coordinator.job_registry import EndedJob, JobRegistry
from snapline.coordinator.jobmaster.events import OperationRequested
from snapline.coordinator.jobmaster.operations import OperationFailed, Reply
from snapline.coordinator.resource.effects import DeclareWorkers, ReleaseWorker, ThreadDumpArrived
from snapline.coordinator.resource.events import ResourceManagerStarted
from snapline.coordinator.resource.resource_manager import ResourceManager, ResourceManagerSettings
from snapline.coordinator.rpc.client_service import ClientService
from snapline.coordinator.rpc.external_gateway import ExternalGateway
from snapline.coordinator.rpc.gateways import ServedStreams, add_gateways
from snapline.coordinator.rpc.leaders import LeaderPublisher
from snapline.coordinator.rpc.pending_replies import PendingReplies
from snapline.coordinator.rpc.pending_thread_dumps import PendingThreadDumps
from snapline.coordinator.rpc.refused_calls import SERVICES
from snapline.coordinator.rpc.relays import RelayGateway
from snapline.coordinator.rpc.switchboard import Switchboard
from snapline.coordinator.snapshot_state import LANE, SnapshotStates
from snapline.coordinator.snapshots import NoSnapshot, read_snapshot
from snapline.coordinator.trace_reporter import TraceReporter, open_trace_reporter
from snapline.dataflow.config import (
    CHECKPOINTING_INTERVAL,
    CHECKPOINTS_DIRECTORY,
    COORDINATOR_BIND_HOST,
    EXTERNAL_STATE_MAX_BYTES,
    HA_STORAGE_DIR,
    HA_TYPE,
    JOB_HISTORY_EXPIRATION,
    JOB_HISTORY_SIZE,
    MAX_JOBS,
    RESOURCEMANAGER_ADDRESS,
    SECURITY_MASTER_HOOKS,
    SECURITY_PICKLED_JOBS,
    Configuration,
    ConfigurationError,
)
from snapline.dataflow.errors import SnaplineError
from snapline.dataflow.failures import Blame, SerializedFailure
from snapline.dataflow.graph.declared_payload import LoadingRules
from snapline.dataflow.graph.jobgraph import JobGraph
from snapline.dataflow.ids import JobID, LeaderSessionID
from snapline.dataflow.urls import is_absolute
from snapline.dataflow.wire.messages import JobStatus
from snapline.protos import client_pb2_grpc, cluster_pb2_grpc, external_pb2_grpc, relay_pb2_grpc
from snapline.runtime.actor import ActorCrashed, MachineActor, Performer, Query, tell_if_alive
from snapline.runtime.clock import SystemClock
from snapline.runtime.cores.connections import ResourceManagerLeaderChanged
from snapline.runtime.cores.credentials import Identity, Role
from snapline.runtime.leaders.leader_election import Leadership
from snapline.runtime.leaders.leader_retrieval import LeaderAddress, LeaderRetrieval, LeaderTable
from snapline.runtime.logs import Logger
from snapline.runtime.metrics import MetricsServer
from snapline.runtime.rpc.dialing import Dialer
from snapline.runtime.rpc.rpc_server import RpcServer
from snapline.runtime.rpc.security import Security, check_secret
from snapline.runtime.signing import NotSigned, Signer
from snapline.runtime.storage.memory_storage import MemoryStorage
from snapline.runtime.storage.object_storage import open_storage
from snapline.runtime.storage.state_storages import StateStorages
from snapline.runtime.storage.storage_port import Storage, StorageError
from snapline.runtime.storage.storage_probe import probe_storage
from snapline.runtime.timers import TimerScheduler
from snapline.runtime.version import VERSION

ENDED = (JobStatus.FINISHED, JobStatus.CANCELED, JobStatus.FAILED, JobStatus.SUSPENDED)
"""With these, a JobMaster is not started again."""

SUSPEND_TIMEOUT_SECONDS = 5.0
"""How long JobMasters may take to let go when the coordinator stops."""


class ClusterEntrypoint:
    """One coordinator, leading from its start to its stop."""

    def __init__(
        self,
        config: CoordinatorConfig,
        logger: Logger,
        on_fatal: Callable[[], None],
        leadership: Leadership | None = None,
    ) -> None:
        """`on_fatal`: ResourceManager or Dispatcher broke, and `fatal_error` says why; or another coordinator leads, as
        `leadership_lost` says. This has to be stopped then. `leadership`: won in ZooKeeper; whoever calls stops this
        when it is over."""
        self._leadership = leadership
        self._table_writer: LeaderTableWriter | None = None
        self._config = config
        self._logger = logger
        self._on_fatal = on_fatal
        self.fatal_error = ""
        self.leadership_lost = ""
        configuration = config.configuration
        security = self._security = Security.from_configuration(configuration)
        self._given = GivenSlots(lambda: uuid.uuid4().hex, lambda: security.slot_signer)
        check_secret(security)
        dialing = security.acting_as(Identity(Role.JOB_MASTER))
        self._clock = SystemClock()
        self._timers = TimerScheduler(self._clock)
        self._io = IoExecutor(self._timers, self._clock, logger, on_leadership_lost=self._stop_leading)
        self._deletions = Deletions(self._io, self._timers, self._clock)
        self._dialer = Dialer(dialing, self._timers, self._clock, logger)
        self._switchboard = Switchboard(self._dialer)
        self._server = RpcServer(security, logger)
        self._streams = ServedStreams(self._switchboard, self._server.loop, security, self._server.refusals)
        self._leaders = LeaderPublisher(self._server.loop, self._leaders_changed)
        self._replies = PendingReplies(self._server.loop)
        self._thread_dumps = PendingThreadDumps(self._server.loop)
        self._registry = JobRegistry(self._server.loop, self._clock, configuration.get_option(JOB_HISTORY_SIZE))
        self._storages = StateStorages(lambda url: open_storage(url, configuration))
        self._session = LeaderSessionID(uuid.uuid4().hex)
        elsewhere = _addresses_of_resource_manager(configuration)
        self._elsewhere = (
            LeaderRetrieval(elsewhere, dialing, self._follow_leaders_elsewhere, logger) if elsewhere else None
        )
        self._resource_manager_leader = LeaderAddress()
        self._runners: dict[JobID, JobMasterRunner] = {}
        self._no_runners = threading.Event()
        self._no_runners.set()
        self._actors: list[pykka.ActorRef[Any]] = []
        self._metrics: MetricsServer | None = None
        self._traces: TraceReporter | None = None

    # --- up and down --------------------------------------------------------------------------------------------------

    def start(self) -> str:
        """Start everything; returns host:port. Raises SnaplineError with one line when that is not possible."""
        configuration = self._config.configuration
        base = configuration.get_option(CHECKPOINTS_DIRECTORY)
        if base:
            base = self._checked_directory(base)
        self._traces = open_trace_reporter(configuration)
        self._high_availability = self._open_high_availability()
        self._start_marks = StartMarks(self._high_availability.storage)
        recovered, held, set_aside = self._stored_jobs(base)
        start_time_ms = self._clock.now_ms()
        self._resource_manager = self._start_resource_manager()
        self._dispatcher = self._start_dispatcher()
        view = ClientView(
            self._dispatcher,
            self._resource_manager,
            self._registry,
            self._replies,
            self._thread_dumps,
            SnapshotStates(self._storages, Signer.of_storage(configuration), self._io.lane(LANE)),
            configuration,
            self._logger,
            VERSION,
            self._session,
            start_time_ms,
        )
        self._switchboard.set_resource_manager(self._tell_resource_manager)
        bind_host = configuration.get_option(COORDINATOR_BIND_HOST)
        address = self._server.start(self._config.bind, lambda server: self._add_servicers(server, view), bind_host)
        self._switchboard.serve_with(self._streams, [address])
        leader = LeaderAddress(address, self._session)
        if self._elsewhere is None:
            self._resource_manager_leader = leader
        elif address in _addresses_of_resource_manager(configuration):
            raise ConfigurationError(
                f"{RESOURCEMANAGER_ADDRESS.key} names this coordinator itself ({address}): leave it out to use its own ResourceManager"
            )
        archive = JobArchive(
            self._high_availability.storage,
            configuration.get_option(JOB_HISTORY_SIZE),
            configuration.get_option(JOB_HISTORY_EXPIRATION),
        )
        self._services = JobServices(
            address=address,
            resource_manager=lambda: self._resource_manager_leader,
            configuration=configuration,
            checkpoint_base=base,
            storages=self._storages,
            high_availability=self._high_availability,
            io=self._io,
            timers=self._timers,
            clock=self._clock,
            switchboard=self._switchboard,
            leaders=self._leaders,
            registry=self._registry,
            archive=archive,
            start_marks=self._start_marks,
            given=self._given,
            replies=self._replies,
            logger=self._logger,
            traces=self._traces,
        )
        self._start_metrics(address)
        self._read_archive(archive, (*recovered, *(each.job_graph for each in held)))
        self._resource_manager.tell(ResourceManagerStarted())
        self._dispatcher.tell(DispatcherStarted(recovered, held, set_aside))
        if self._elsewhere is None:
            self._leaders.set_resource_manager(leader)
        else:
            self._elsewhere.start()
        self._logger.info(
            "coordinator listens", address=address, session=self._session, version=VERSION, recovered=len(recovered)
        )
        return address

    def _stored_jobs(self, base: str) -> tuple[tuple[JobGraph, ...], tuple[HeldJob, ...], tuple[JobGraphSetAside, ...]]:
        """Those to start, those that an earlier Snapline has stored under names that are gone, and those that cannot be
        read."""
        recovered, held = [], []
        stored = self._high_availability.job_graphs.load()
        for unreadable in stored.set_aside:
            self._logger.error("job graph set aside", job_id=unreadable.name, reason=unreadable.reason)
        for graph in stored.graphs:
            reason = self._start_marks.why_parked(graph.job_id, graph.name) or self._hooks_problem(graph)
            if reason:
                held.append(HeldJob(graph, reason))
                self._logger.error(reason)
                continue
            module = former_module(graph)
            if not module:
                recovered.append(graph)
                continue
            try:
                held.append(hold(graph, module, self._latest_checkpoint(graph, base)))
            except LeadershipLost:
                raise
            except (
                SnaplineError,
                CheckpointIDCounterError,
            ) as error:  # the job is not started, whatever its checkpoint is
                held.append(hold(graph, module, "", str(error)))
            self._logger.error(held[-1].reason)
        return tuple(recovered), tuple(held), stored.set_aside

    def _latest_checkpoint(self, graph: JobGraph, base: str) -> str:
        """Return the directory of the latest checkpoint of a job; empty: there is none. Raises SnaplineError."""
        pointers = self._high_availability.open_job(graph.job_id).pointers
        found = pointers.load()
        pointers.release()
        latest = pointer_location(found[-1]) if found else ""
        return latest if not latest or is_absolute(latest) else f"{job_directory(graph, self._storages, base)}/{latest}"

    def stop(self) -> None:
        """Stop everything; jobs are suspended, not cancelled. Idempotent, and possible after a failed start."""
        if self._actors:
            tell_if_alive(self._dispatcher, DispatcherSuspended("the coordinator stops"))
            with contextlib.suppress(pykka.ActorDeadError, pykka.Timeout):  # it may be starting JobMasters just now
                self._dispatcher.ask(Query(lambda _: None), timeout=SUSPEND_TIMEOUT_SECONDS)
            self._no_runners.wait(SUSPEND_TIMEOUT_SECONDS)
        for runner in list(self._runners.values()):
            runner.stop()
        if self._elsewhere is not None:
            self._elsewhere.stop()
        if self._metrics is not None:
            self._metrics.stop()
        if self._table_writer is not None:
            self._table_writer.stop()
        self._io.close()  # its answers go to the server's loop
        self._server.stop()
        for actor in self._actors:
            if actor.is_alive():
                actor.stop()
        self._dialer.shutdown()
        self._timers.close()
        if self._traces is not None:
            self._traces.close()

    def _open_high_availability(self) -> HighAvailability:
        configuration = self._config.configuration
        if self._leadership is None:
            return open_high_availability(configuration, self._session)
        stores = ZooKeeperHighAvailability(
            self._leadership, open_ha_storage(configuration), Signer.of_storage(configuration)
        )
        self._table_writer = LeaderTableWriter(
            stores.published_leaders, stores.publish_leaders, lambda: self._security.signer, self._logger
        )
        return stores

    def _leaders_changed(self, table: LeaderTable) -> None:
        if self._table_writer is not None:
            self._table_writer.publish(table)

    def _follow_leaders_elsewhere(self, table: LeaderTable) -> None:
        """On the thread of leader retrieval. A JobMaster that is just being built asks for the leader, or is told here,
        or both."""
        self._leaders.set_elsewhere(table)
        leader = table.resource_manager
        if leader == self._resource_manager_leader:
            return
        self._resource_manager_leader = leader
        self._logger.info("jobs get their slots elsewhere", resource_manager=leader.address)
        for runner in list(self._runners.values()):
            runner.tell(ResourceManagerLeaderChanged(leader.address, leader.session))

    def _checked_directory(self, directory: str) -> str:
        """The directory as an absolute URL, after a file was written there and read again."""
        storage = self._storages.at(directory)
        probe_storage(storage)
        return storage.url

    def _start_resource_manager(self) -> pykka.ActorRef[Any]:
        settings = ResourceManagerSettings.from_configuration(VERSION, self._config.configuration)
        core = ResourceManager(settings, self._session, self._given)
        outbox = self._switchboard.outbox(self._tell_resource_manager)
        log = RegistrationLog(core, self._logger)

        def after_events() -> None:
            outbox.flush()
            log.write()

        performers = {
            **outbox.performers(),
            ThreadDumpArrived: lambda effect: self._thread_dumps.arrived(effect.dump),
            DeclareWorkers: lambda _: self._registry.touch(None),
            ReleaseWorker: lambda effect: self._logger.info(
                "TaskManager released", resource_id=effect.resource_id, reason=effect.reason
            ),
        }
        return self._start_actor("resource-manager", core, performers, after_events)

    def _start_dispatcher(self) -> pykka.ActorRef[Any]:
        settings = self._config.configuration
        core = Dispatcher(
            settings.get_option(JOB_HISTORY_SIZE),
            settings.get_option(MAX_JOBS),
            takes_pickles=settings.get_option(SECURITY_PICKLED_JOBS),
        )
        performers: dict[type, Performer] = {
            dispatching.StoreJobGraph: self._store_job_graph,
            dispatching.RemoveJobGraph: lambda effect: self._remove_job_graph(effect, core.find(effect.job_id)),
            dispatching.StartJobMaster: self._start_job_master,
            dispatching.SuspendJobMaster: self._suspend_job_master,
            dispatching.ForwardToJobMaster: self._forward,
            Reply: self._replies.perform,
        }
        return self._start_actor("dispatcher", core, performers, lambda: None)

    def _start_actor(
        self, name: str, core: Any, performers: dict[type, Performer], after_events: Callable[[], None]
    ) -> pykka.ActorRef[Any]:
        actor = MachineActor.start(
            name,
            core,
            performers,
            self._timers,
            self._clock,
            self._logger.bind(actor=name),
            self._crashed,
            after_events,
        )
        self._actors.append(actor)
        return actor

    def _add_servicers(self, server: grpc.aio.Server, view: ClientView) -> list[str]:
        add_gateways(server, self._streams, self._logger)
        relay_pb2_grpc.add_RelayGatewayServicer_to_server(RelayGateway(self._streams, self._logger), server)
        cluster_pb2_grpc.add_LeaderRetrievalServicer_to_server(self._leaders, server)
        rules = LoadingRules.from_configuration(self._config.configuration)
        clients = ClientService(view, self._logger, rules, self._leads)
        client_pb2_grpc.add_ClientServiceServicer_to_server(clients, server)
        limit = self._config.configuration.get_option(EXTERNAL_STATE_MAX_BYTES)
        external = ExternalGateway(
            self._streams, self._registry, self._leaders, view.is_accepted, self._given, limit, self._logger
        )
        external_pb2_grpc.add_ExternalTasksServicer_to_server(external, server)
        return list(SERVICES)

    def _tell_resource_manager(self, event: Any) -> bool:
        return tell_if_alive(self._resource_manager, event)

    def _tell_dispatcher(self, event: Any) -> bool:
        return tell_if_alive(self._dispatcher, event)

    def _crashed(self, crash: ActorCrashed) -> None:
        self.fatal_error = f"defect in the {crash.name}, while handling {crash.event}: {crash.error!r}"
        self._on_fatal()

    def _leads(self) -> bool:
        """Ask ZooKeeper, where it decides: a leader that has slept does not know yet that another one leads."""
        try:
            return self._leadership is None or self._leadership.holds()
        except SnaplineError:
            return False

    def _stop_leading(self, error: LeadershipLost) -> None:
        self.leadership_lost = str(error)
        self._on_fatal()

    # --- performers of the Dispatcher ---------------------------------------------------------------------------------

    def _store_job_graph(self, effect: dispatching.StoreJobGraph) -> None:
        graph = effect.job_graph
        given_up = threading.Event()

        def work() -> JobGraphStored | None:
            stored = graph
            problem = self._hooks_problem(graph)
            if problem:
                raise ConfigurationError(problem)
            job = Configuration(graph.configuration)
            own = job.get_option(CHECKPOINTS_DIRECTORY)
            if own:
                self._checked_directory(own)
            elif job.get_option(CHECKPOINTING_INTERVAL) and not self._config.configuration.get_option(
                CHECKPOINTS_DIRECTORY
            ):
                raise ConfigurationError(
                    f"{CHECKPOINTING_INTERVAL.key} is set, and there is no place for checkpoints: set "
                    f"{CHECKPOINTS_DIRECTORY.key} for the job or the coordinator to a directory or URL that the coordinator and "
                    "all executors reach"
                )
            if graph.savepoint_restore.path:
                from snapline.coordinator.restorable import check_restorable

                snapshot = read_snapshot(
                    self._storages, graph.savepoint_restore.path, Signer.of_storage(self._config.configuration)
                )
                stored = check_restorable(self._storages, snapshot, graph)
            if given_up.is_set():  # its client was told so: a later leader must not find it
                return None
            if stored is not graph:
                self._tell_dispatcher(JobGraphChanged(stored))
            self._high_availability.job_graphs.put(stored)
            return JobGraphStored(graph.job_id)

        def failed(error: BaseException) -> JobGraphStoreFailed:
            given_up.set()
            user_can_mend = isinstance(error, (NoSnapshot, NotSigned, MetadataError, ConfigurationError))
            return JobGraphStoreFailed(graph.job_id, str(error), user_can_mend)

        self._io.lane(graph.job_id).submit(f"store job {graph.job_id}", work, self._tell_dispatcher, failed)

    def _hooks_problem(self, graph: JobGraph) -> str:
        """Why the job, whose code would run here, is not started; empty: it has none, or that is allowed."""
        if not graph.master_hooks or self._config.configuration.get_option(SECURITY_MASTER_HOOKS):
            return ""
        return (
            f"job {graph.name!r} has master hooks, which are code that runs inside of the coordinator, and "
            f"{SECURITY_MASTER_HOOKS.key} is false there: take them out, or let a sink commit"
        )

    def _remove_job_graph(self, effect: dispatching.RemoveJobGraph, job: JobOverview | None) -> None:
        job_id = effect.job_id
        self._forget_runner(job_id)  # one that broke too often has not said that the job has ended
        view = EndedJob(minimal_details(job)) if job is not None and effect.is_unseen else None
        if view is not None:
            self._registry.ended(job_id, view)

        def remove() -> None:
            if view is not None:
                self._archive_unseen(view)
            self._high_availability.job_graphs.remove(job_id)
            self._high_availability.forget_job(job_id)
            self._start_marks.end(job_id)

        def work() -> JobGraphRemoved:
            remove()
            return JobGraphRemoved(job_id)

        def failed(error: BaseException) -> JobGraphRemoved:
            """The client does not wait for a storage that is away."""
            if effect.is_over:
                self._deletions.retry_later(f"remove job {job_id}", remove, error)
            return JobGraphRemoved(job_id, str(error))

        self._io.lane(job_id).submit(f"remove job {job_id}", work, self._tell_dispatcher, failed)

    def _archive_unseen(self, view: EndedJob) -> None:
        """Keep what is known of the job for later leaders, before its graph is gone; its end does not wait for that."""
        try:
            self._services.archive.put(view.to_archive(), self._clock.now_ms())
        except StorageError as error:
            self._logger.warning("the job cannot be archived", reason=str(error))

    def _start_job_master(self, effect: dispatching.StartJobMaster) -> None:
        job_id = effect.job_graph.job_id
        runner = JobMasterRunner(
            effect.job_graph, self._services, self._forward_to_dispatcher, recovered=effect.recovered
        )
        self._no_runners.clear()
        self._runners[job_id] = runner
        runner.start()

    def _suspend_job_master(self, effect: dispatching.SuspendJobMaster) -> None:
        runner = self._runners.get(effect.job_id)
        if runner is not None:
            runner.suspend("the coordinator stops")

    def _forward_to_dispatcher(self, event: Any) -> None:
        """Tell the Dispatcher what a JobMaster says, and forget the JobMaster when its job has ended."""
        self._tell_dispatcher(event)
        if isinstance(event, JobMasterEnded) and event.status in ENDED:
            self._forget_runner(event.job_id)

    def _forget_runner(self, job_id: JobID) -> None:
        self._runners.pop(job_id, None)
        if not self._runners:
            self._no_runners.set()

    def _forward(self, effect: dispatching.ForwardToJobMaster) -> None:
        runner = self._runners.get(effect.job_id)
        if runner is None or not runner.tell(OperationRequested(effect.request_id, effect.operation)):
            failure = SerializedFailure(f"job {effect.job_id} has no JobMaster right now", Blame.INTERNAL)
            self._replies.perform(Reply(effect.request_id, OperationFailed(failure)))

    def _read_archive(self, archive: JobArchive, stored: Iterable[JobGraph]) -> None:
        """Remember the jobs that have ended under former leaders, but for those that are `stored` and so have not;
        nobody waits for that."""
        not_over = {graph.job_id for graph in stored}

        def read(found: ArchivedJobs) -> None:
            for reason in found.unreadable:
                self._logger.warning("archived job cannot be read", reason=reason)
            self._registry.remember(job for job in found.jobs if job.details.overview.job_id not in not_over)

        def failed(error: object) -> None:
            self._logger.warning("the archive of jobs cannot be read", reason=str(error))
            self._registry.remember(())

        self._io.submit("read the archive of jobs", lambda: archive.load(self._clock.now_ms()), read, failed)

    # --- metrics ------------------------------------------------------------------------------------------------------

    def _start_metrics(self, address: str) -> None:
        if self._config.metrics_port < 0:
            return
        source = CoordinatorMetrics(
            self._resource_manager, self._dispatcher, self._registry, self._clock, self._clock.now_ms()
        )
        self._metrics = MetricsServer(source.samples, self._logger, source.user_families, self._security)
        host = self._config.configuration.get_option(COORDINATOR_BIND_HOST) or address.rpartition(":")[0]
        port = self._metrics.start(host, self._config.metrics_port)
        self._logger.info("metrics are served", port=port)


def _addresses_of_resource_manager(configuration: Configuration) -> list[str]:
    """Where another coordinator's ResourceManager may be found; none: our own is used."""
    addresses = configuration.get_option(RESOURCEMANAGER_ADDRESS).split(",")
    return [address.strip() for address in addresses if address.strip()]


def open_high_availability(configuration: Configuration, session: LeaderSessionID) -> HighAvailability:
    """As `high-availability.type` asks. Raises SnaplineError when the place is missing or cannot be written."""
    kind = configuration.get_option(HA_TYPE)
    if kind == "NONE":
        return EmbeddedHighAvailability(MemoryStorage("jobs"), None, durable=False)
    signer = Signer.of_storage(configuration)
    return EmbeddedHighAvailability(open_ha_storage(configuration), session, durable=True, signer=signer)


def open_ha_storage(configuration: Configuration) -> Storage:
    """`high-availability.storageDir`, after it was written to and read. Raises SnaplineError."""
    directory = configuration.get_option(HA_STORAGE_DIR)
    if not directory:
        kind = configuration.get_option(HA_TYPE)
        raise SnaplineError(f"{HA_TYPE.key} is {kind}, and {HA_STORAGE_DIR.key} is not set: name a directory or URL")
    storage = open_storage(directory, configuration)
    probe_storage(storage)
    return storage
