"""Starts and stops the JobMaster of one job: core, actor, DeActivator, checkpoint effects, connections.

Flink: JobMasterServiceLeadershipRunner, without the election. Opening the job's durable stores is slow work, so a
runner is `start`ed at once and begins when they are open; what is told before waits for that. Whatever goes wrong ends
in one JobMasterEnded for the Dispatcher.
"""

from __future__ import annotations

import random
import threading
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pykka

from snapline.coordinator.actors.checkpoint_coordinator_deactivator import CheckpointCoordinatorDeActivator
from snapline.coordinator.actors.checkpoint_io import CheckpointIo
from snapline.coordinator.actors.master_hook_runner import MasterHookRunner
from snapline.coordinator.checkpoint.checkpoint_coordinator import CheckpointCoordinator
from snapline.coordinator.checkpoint.configuration import CheckpointCoordinatorConfiguration
from snapline.coordinator.checkpoint.statistics.stats_persistence import StatisticsUnreadable, decode_statistics
from snapline.coordinator.diagnosis.job_spans import JobSpans
from snapline.coordinator.dispatcher.events import JobGraphChanged, JobMasterEnded, JobStatusReported
from snapline.coordinator.event_logs import JOB_STATUS, JobLog
from snapline.coordinator.execution.given_slots import GivenSlots
from snapline.coordinator.execution.restart_strategy import restart_strategy_of
from snapline.coordinator.external.places import tasks_with_rows
from snapline.coordinator.ha.high_availability import HighAvailability, JobStores
from snapline.coordinator.ha.job_archive import JobArchive
from snapline.coordinator.ha.start_marks import StartMarks
from snapline.coordinator.io import IoExecutor
from snapline.coordinator.job_registry import EndedJob, JobRegistry, LiveJob
from snapline.coordinator.jobmaster.effects import (
    ForgetJobGraph,
    JobReachedTerminalState,
    ReportJobStatus,
    UpdateJobGraph,
)
from snapline.coordinator.jobmaster.events import (
    TAKEN_TOGETHER,
    JobGraphForgotten,
    JobGraphUpdated,
    JobMasterStarted,
    JobMasterSuspended,
)
from snapline.coordinator.jobmaster.identity import JobMasterIdentity
from snapline.coordinator.jobmaster.job_master import JobMaster
from snapline.coordinator.jobmaster.job_master_settings import JobMasterSettings
from snapline.coordinator.jobmaster.job_past import JobPast
from snapline.coordinator.jobmaster.operations import Reply
from snapline.coordinator.rpc.leaders import LeaderPublisher
from snapline.coordinator.rpc.pending_replies import PendingReplies
from snapline.coordinator.rpc.switchboard import Outbox, Switchboard
from snapline.coordinator.trace_reporter import TraceReporter
from snapline.dataflow.api.master_hooks import create_hooks
from snapline.dataflow.config import CHECKPOINTS_DIRECTORY, Configuration
from snapline.dataflow.failures import Blame, SerializedFailure
from snapline.dataflow.graph.jobgraph import JobGraph
from snapline.dataflow.ids import LeaderSessionID
from snapline.dataflow.wire.messages import JobStatus
from snapline.runtime.actor import ActorCrashed, MachineActor, tell_if_alive
from snapline.runtime.clock import Clock
from snapline.runtime.cores.connections import ResourceManagerLeaderChanged
from snapline.runtime.cores.inbox import Events
from snapline.runtime.leaders.leader_retrieval import LeaderAddress
from snapline.runtime.logs import Logger
from snapline.runtime.signing import Signer
from snapline.runtime.storage.state_storages import StateStorages
from snapline.runtime.storage.storage_port import StorageError
from snapline.runtime.timers import TimerScheduler

STORE_RETRY_MS = 1_000
"""Pause before durable stores that do not answer are asked again."""
TURN_LIMIT_MS = 60_000
"""So long jobs that may have ended a former leader wait for one of them that is being started."""


@dataclass(frozen=True)
class JobServices:
    """What the JobMasters of one coordinator share."""

    address: str
    """Address of the gateways on which TaskManagers find the JobMaster, as host:port."""
    resource_manager: Callable[[], LeaderAddress]
    """Where it is now. When it moves, every JobMaster is told."""
    configuration: Configuration
    """The cluster's settings, over which the job's settings lie."""
    checkpoint_base: str
    """Absolute path or URL that the directories of jobs go below; empty: this coordinator takes no checkpoints."""
    storages: StateStorages
    high_availability: HighAvailability
    io: IoExecutor
    timers: TimerScheduler
    clock: Clock
    switchboard: Switchboard
    leaders: LeaderPublisher
    registry: JobRegistry
    archive: JobArchive
    start_marks: StartMarks
    given: GivenSlots
    replies: PendingReplies
    logger: Logger
    traces: TraceReporter | None = None
    """Where the spans of jobs go; None: nowhere."""


class JobMasterRunner:
    """One JobMaster of one job."""

    def __init__(
        self, job_graph: JobGraph, services: JobServices, tell_dispatcher: Callable[[Any], object], *, recovered: bool
    ) -> None:
        self._job_graph = job_graph
        self._services = services
        self._tell_dispatcher = tell_dispatcher
        self._recovered = recovered
        self._logger = services.logger.bind(job_id=job_graph.job_id, job=job_graph.name)
        self._io = services.io.lane(job_graph.job_id)
        self._lock = threading.Lock()
        self._actor: pykka.ActorRef[Any] | None = None
        self._deactivator: pykka.ActorRef[Any] | None = None
        self._live: LiveJob | None = None
        self._status = JobStatus.CREATED
        self._outcome: JobStatus | None = None
        """How the job has ended, whether or not anybody has heard of it."""
        self._early: list[Any] | None = []
        """What was told before the actor was there; None: it is there, or never will be."""
        self._ended = False
        self._is_marked = False
        """Whether it is marked as being started, which counts once, however often the stores are tried."""
        self._outbox: Outbox | None = None
        self._hooks: MasterHookRunner | None = None

    @property
    def job_directory(self) -> str:
        """Return the directory of the job's checkpoints (see the function `job_directory`). Raises StorageError."""
        return job_directory(self._job_graph, self._services.storages, self._services.checkpoint_base)

    def start(self) -> None:
        """Open the stores, then begin; of jobs that may have ended a former leader one begins after the other."""
        self._services.start_marks.start_in_turn(self._job_graph.job_id, self._start_now)

    def _start_now(self) -> None:
        if self._recovered:  # its stores, or a user's hook, may never answer
            services, job_id = self._services, self._job_graph.job_id
            services.timers.schedule(
                services.clock.now_ms() + TURN_LIMIT_MS, lambda: services.start_marks.end_turn(job_id, started=False)
            )
        self._io.submit(
            f"open the stores of job {self._job_graph.job_id}",
            self._open,
            self._begin,
            self._retry_opening,
        )

    def _open(self) -> JobStores:
        """One that a former leader has had is marked until its JobMaster is there: it may have ended that leader."""
        stores = self._services.high_availability.open_job(self._job_graph.job_id)
        if self._recovered and not self._is_marked:
            try:
                self._services.start_marks.begin(self._job_graph.job_id)
                self._is_marked = True
            except StorageError as error:
                self._logger.warning("the job is started without its mark", reason=str(error))
        return stores

    def tell(self, event: Any) -> bool:
        """Tell the JobMaster; False: it is gone."""
        with self._lock:
            if self._early is not None:
                self._early.append(event)
                return True
            actor = self._actor
        return actor is not None and tell_if_alive(actor, event)

    def suspend(self, reason: str) -> None:
        """End the JobMaster because its coordinator has lost leadership; the job itself goes on."""
        self.tell(JobMasterSuspended(reason))

    def stop(self) -> None:
        """End without ceremony: the process ends."""
        self._ended = True
        self._take_down()

    # --- beginning ----------------------------------------------------------------------------------------------------

    def _retry_opening(self, error: BaseException) -> None:
        """An outage of the storage must not end a job."""
        self._logger.warning("the job's durable state cannot be opened, trying on", reason=str(error))
        self._services.start_marks.end_turn(self._job_graph.job_id, started=False)
        self._retry_later(self.start)

    def _begin(self, stores: JobStores) -> None:
        if self._ended:
            return
        try:
            self._build(stores)
        except Exception as error:
            self._logger.error("JobMaster cannot be built", exc_info=error)
            failure = SerializedFailure(str(error), Blame.USER, retryable=False, error_type=type(error).__name__)
            self._end(JobStatus.CREATED, failure)
        if self._recovered:
            self._unmark()

    def _unmark(self) -> None:
        """The job has ended nobody; another one that may have is started now."""
        job_id, marks = self._job_graph.job_id, self._services.start_marks

        def work() -> None:
            marks.end(job_id)
            marks.end_turn(job_id, started=True)

        def failed(error: BaseException) -> None:
            self._logger.warning("the job stays marked as being started", reason=str(error))
            marks.end_turn(job_id, started=True)

        self._io.submit(f"unmark job {job_id}", work, lambda _: None, failed)

    def _build(self, stores: JobStores) -> None:
        services, graph = self._services, self._job_graph
        job_id = graph.job_id
        configuration = Configuration(graph.configuration)
        checkpointing = CheckpointCoordinatorConfiguration.from_configuration(configuration)
        hook_runner = self._hooks = MasterHookRunner(
            create_hooks(graph.master_hooks),
            checkpointing.timeout_ms,
            IoExecutor(services.timers, services.clock, self._logger, threads=1, lane_threads=1),
            self.tell,
        )
        checkpoints = CheckpointCoordinator(
            job_id,
            graph.name,
            checkpointing,
            graph.vertices,
            graph.edges,
            store_survives_suspension=stores.survives_suspension,
            master_hooks=hook_runner.registered(),
            has_staged_rows=bool(graph.staged_directories),
            has_directory=bool(self.job_directory),
            stats=self._restored_statistics(stores, checkpointing.history_size),
        )
        session = LeaderSessionID(uuid.uuid4().hex)
        master = JobMaster(
            graph,
            JobMasterIdentity(session, services.address, uuid.uuid4().hex),
            JobMasterSettings.from_configuration(services.configuration, configuration),
            restart_strategy_of(configuration, random.SystemRandom().random),
            checkpoints,
            self.job_directory,
            lambda: uuid.uuid4().hex,
            services.clock.now_ms(),
            JobPast(stores.submitted_ms, checkpoints.stats.job_restarts, checkpoints.stats.operator_failures),
            services.given,
        )
        checkpoint_io = CheckpointIo(
            job_id,
            self.job_directory,
            services.storages,
            stores,
            self._io,
            services.timers,
            services.clock,
            self.tell,
            self._logger,
            graph.staged_directories,
            Signer.of_storage(services.configuration),
        )
        outbox = self._outbox = services.switchboard.outbox(self.tell)
        log = JobLog(master, self._logger)
        began_ms = None if self._recovered else services.clock.now_ms()
        spans = JobSpans(began_ms, checkpoints.stats.history)

        def after_events() -> None:
            outbox.flush()
            if checkpoints.stats.note_failures(master.scheduler.restarts, master.scheduler.operator_failures):
                checkpoint_io.write_statistics(checkpoints.stats)
            checkpoint_io.write_late_statistics(checkpoints.stats)
            log.write()
            if services.traces is not None:
                scheduler = master.scheduler
                parallelism = [vertex.parallelism for vertex in scheduler.graph.job_graph.vertices]
                found = spans.status_seen(scheduler.status, parallelism, scheduler.exceptions, services.clock.now_ms())
                found += spans.checkpoints_seen(checkpoints.stats.history)
                services.traces.report(job_id, graph.name, found)

        actor = MachineActor.start(
            f"job-master-{job_id}",
            master,
            {
                **outbox.performers(),
                **checkpoint_io.performers(checkpoints.stats),
                **hook_runner.performers(),
                Reply: services.replies.perform,
                ReportJobStatus: self._report_status,
                UpdateJobGraph: self._update_graph,
                ForgetJobGraph: lambda _: self._job_is_over(master.scheduler.status),
                JobReachedTerminalState: self._reached_terminal_state,
            },
            services.timers,
            services.clock,
            self._logger.bind(actor="job-master"),
            self._crashed,
            after_events,
            TAKEN_TOGETHER,
        )
        self._deactivator = CheckpointCoordinatorDeActivator.start(
            job_id, session, self.tell, lambda: _draw_delay(checkpointing)
        )
        self._live = LiveJob(
            actor,
            master,
            checkpoints.stats.create_snapshot,
            lambda: checkpoints.publication.retained_ids,
            master.scheduler.graph.status_since_ms[JobStatus.CREATED],
            graph.name,
            frozenset(vertex.name for vertex in graph.vertices if vertex.is_external),
            tasks_with_rows(graph),
        )
        resource_manager = services.resource_manager()
        first = [
            JobMasterStarted(self._recovered),
            ResourceManagerLeaderChanged(resource_manager.address, resource_manager.session),
        ]
        services.switchboard.add_job_master(job_id, self.tell)
        services.leaders.set_job_master(job_id, LeaderAddress(services.address, session))
        services.registry.started(self._live)
        with self._lock:
            self._actor = actor
            early, self._early = self._early or [], None
            actor.tell(Events((*first, *early)))
        if self._ended:  # meanwhile, when there was nothing to take down yet
            self._take_down()

    def _restored_statistics(self, stores: JobStores, history_size: int) -> Any:
        try:
            data = stores.statistics.read()
            return None if data is None else decode_statistics(data, history_size)
        except (StatisticsUnreadable, StorageError) as error:
            self._logger.warning("checkpoint statistics start anew", reason=str(error))
            return None

    # --- performers: on the actor -------------------------------------------------------------------------------------

    def _report_status(self, effect: ReportJobStatus) -> None:
        self._status = effect.change.status
        self._log_status(effect.change.status, effect.change.failure)
        self._tell_dispatcher(JobStatusReported(effect.change))
        if self._deactivator is not None:
            tell_if_alive(self._deactivator, effect.change)
        self._services.registry.touch(effect.change.job_id)

    def _log_status(self, status: JobStatus, failure: SerializedFailure | None) -> None:
        """A job that has FAILED is an error; its cause and those of restarts are logged by JobLog, with their task."""
        if status is JobStatus.FAILED:
            self._logger.error(JOB_STATUS, status=status.value, failure=_summary(failure))
        else:
            self._logger.info(JOB_STATUS, status=status.value)

    def _update_graph(self, effect: UpdateJobGraph) -> None:
        """Until it is there, however long that takes."""
        graphs, graph = self._services.high_availability.job_graphs, effect.job_graph

        def work() -> JobGraphUpdated:
            graphs.replace(graph)
            return JobGraphUpdated()

        def updated(event: JobGraphUpdated) -> None:
            self._tell_dispatcher(JobGraphChanged(graph))
            self.tell(event)

        self._io.submit(
            f"store the rescaled job {graph.job_id}",
            work,
            updated,
            lambda _: self._retry_later(lambda: self._update_graph(effect)),
        )

    def _job_is_over(self, outcome: JobStatus) -> None:
        """From now on it must not be run again, whatever becomes of the JobMaster: no new leader would find it."""
        self._outcome = outcome
        self._forget_graph(self._last_view(outcome))

    def _forget_graph(self, view: EndedJob | None) -> None:
        """Until it is gone, however long that takes. How the job has ended is archived before: if this leader died in
        between, nobody would know that there was such a job."""
        graphs, job_id = self._services.high_availability.job_graphs, self._job_graph.job_id

        def work() -> JobGraphForgotten:
            if view is not None:
                try:
                    self._services.archive.put(view.to_archive(), self._services.clock.now_ms())
                except StorageError as error:
                    self._not_archived(error)
            graphs.remove(job_id)
            return JobGraphForgotten()

        self._io.submit(
            f"forget job {job_id}", work, self.tell, lambda _: self._retry_later(lambda: self._forget_graph(view))
        )

    def _retry_later(self, action: Callable[[], None]) -> None:
        """The durable stores do not answer now: try again, unless the process ends meanwhile."""
        services = self._services
        services.timers.schedule(services.clock.now_ms() + STORE_RETRY_MS, lambda: None if self._ended else action())

    def _reached_terminal_state(self, effect: JobReachedTerminalState) -> None:
        if self._outbox is not None:
            self._outbox.flush()  # the last words, before the connections go
        self._end(effect.status, effect.failure)

    def _crashed(self, crash: ActorCrashed) -> None:
        summary = f"defect in the JobMaster, while handling {crash.event}: {crash.error!r}"
        failure = SerializedFailure(summary, Blame.INTERNAL, error_type=type(crash.error).__name__)
        self._end(self._outcome or self._status, failure)

    # --- the end ------------------------------------------------------------------------------------------------------

    def _end(self, status: JobStatus, failure: SerializedFailure | None) -> None:
        """Once; on the actor, if there is one."""
        if self._ended:
            return
        self._ended = True
        view = self._last_view()
        self._take_down()
        shows_end = self._live is not None and self._live.master.status is status and status.is_globally_terminal
        self._services.registry.ended(self._job_graph.job_id, view if shows_end else None)
        if view is not None and shows_end:
            self._archive(view)
        blame = Blame.USER if status.is_globally_terminal else Blame.INTERNAL  # as of a request that comes later
        self._services.replies.job_master_gone(
            self._job_graph.job_id, SerializedFailure(f"the job is {status.value}", blame, retryable=False)
        )
        self._tell_dispatcher(JobMasterEnded(self._job_graph.job_id, status, failure))

    def _last_view(self, outcome: JobStatus | None = None) -> EndedJob | None:
        """What will be shown of the job; `outcome`: how it has ended, although nobody has heard of it."""
        if self._live is None:
            return None
        try:
            return self._live.last_view(self._services.clock.now_ms(), outcome)
        except Exception as error:  # a core that broke may not be readable any more
            self._logger.warning("the job's last state cannot be shown", reason=repr(error))
            return None

    def _archive(self, view: EndedJob) -> None:
        """Keep the rest of what is known of the job, such as which checkpoints stay; its end does not wait for that."""
        archive, now_ms = self._services.archive, self._services.clock.now_ms()
        self._io.submit(
            f"archive job {self._job_graph.job_id}",
            lambda: archive.put(view.to_archive(), now_ms),
            lambda _: None,
            self._not_archived,
        )

    def _not_archived(self, error: BaseException) -> None:
        self._logger.warning("the job cannot be archived", reason=str(error))

    def _take_down(self) -> None:
        services, job_id = self._services, self._job_graph.job_id
        with self._lock:
            self._early = None
            actor, self._actor = self._actor, None  # what it is told now it would never answer
        services.switchboard.remove_job_master(job_id, self.tell)
        services.switchboard.drop_actor(self.tell)
        services.leaders.set_job_master(job_id, None)
        for each in (self._deactivator, actor):
            if each is not None and each.is_alive():
                each.stop(block=False)
        if self._hooks is not None:
            self._hooks.close()


def _draw_delay(configuration: CheckpointCoordinatorConfiguration) -> int:
    """Between the least pause and the interval, so that the checkpoints of many jobs do not begin together."""
    least, most = configuration.min_pause_ms, configuration.effective_interval_ms
    return random.SystemRandom().randint(min(least, most), most)


def _summary(failure: SerializedFailure | None) -> str:
    return "" if failure is None else failure.summary


def job_directory(job_graph: JobGraph, storages: StateStorages, coordinator_base: str) -> str:
    """The job's checkpoint directory, `<base>/<job>`; the job's own base goes before the coordinator's. Raises
    StorageError."""
    own = Configuration(job_graph.configuration).get_option(CHECKPOINTS_DIRECTORY)
    base = storages.at(own).url if own else coordinator_base
    return f"{base.rstrip('/')}/{job_graph.job_id}" if base else ""
