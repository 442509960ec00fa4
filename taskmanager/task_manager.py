"""The composition root of a TaskManager: builds everything, wires it, and takes it apart again.

Knows all shells and no rule: what happens is decided by the TaskExecutor core. Servers and threads start in `start` and
are gone after `stop`, except the threads of tasks that are stuck in user code, which `stop` names.
"""

from __future__ import annotations

import os
import secrets
import socket
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pykka

from snapline.dataflow.config import (
    FILE_THRESHOLD,
    HA_TYPE,
    LOCAL_RECOVERY,
    LOCAL_STATE_ROOTS,
    ROCKSDB_DIRECTORY,
    TASKMANAGER_PROCESSOR_SHARE,
    TASKMANAGER_RELAYS,
    TASKMANAGER_TURNS,
)
from snapline.dataflow.graph.declared_payload import LoadingRules
from snapline.dataflow.ids import JobID, ResourceID
from snapline.dataflow.wire.messages import Fenced, HeartbeatResponse, TaskManagerInfo
from snapline.runtime.actor import ActorCrashed, EventBatcher, MachineActor, Performer, tell_if_alive
from snapline.runtime.clock import SystemClock
from snapline.runtime.cores.connections import CloseConnection, OpenConnection, ResourceManagerLeaderChanged, Send
from snapline.runtime.cores.credentials import Identity, Role
from snapline.runtime.leaders.leader_retrieval import LeaderAddress, LeaderRetrieval, LeaderTable
from snapline.runtime.leaders.zookeeper_leader_retrieval import ZooKeeperLeaderRetrieval
from snapline.runtime.leaders.zookeeper_session import ZooKeeperSettings
from snapline.runtime.logs import Logger, change_level
from snapline.runtime.process_figures import ProcessWatch
from snapline.runtime.recent_output import RecentOutput
from snapline.runtime.rpc.dialing import Dialer, relay_for
from snapline.runtime.rpc.security import Security
from snapline.runtime.storage.object_storage import open_storage
from snapline.runtime.storage.state_storages import StateStorages
from snapline.runtime.timers import TimerScheduler
from snapline.runtime.version import PROTOCOL_VERSION, VERSION
from snapline.taskmanager.actors.running_tasks import RunningTasks
from snapline.taskmanager.executor.effects import (
    CancelTaskExecution,
    DeliverToTask,
    DumpThreads,
    FailTaskExecution,
    ReleaseJobResources,
    ReleaseSnapshots,
    SendHeartbeatResponse,
    StartTask,
    TerminateTaskManager,
)
from snapline.taskmanager.executor.events import (
    JobMasterLeaderChanged,
    ShutDownRequested,
    TaskExecutorStarted,
    ThreadsDumped,
)
from snapline.taskmanager.executor.task_executor import TaskExecutor, TaskExecutorSettings
from snapline.taskmanager.network.flight.flight_exchange import ExchangeSettings, FlightExchange
from snapline.taskmanager.snapshots.local_directories import LocalDirectories, default_root
from snapline.taskmanager.snapshots.local_recovery import LocalRecovery
from snapline.taskmanager.snapshots.uploader import SnapshotUploader
from snapline.taskmanager.task_manager_config import TaskManagerConfig, TaskManagerOutcome, host_towards
from snapline.taskmanager.threads.processor_share import LinuxHost, ProcessorShare
from snapline.taskmanager.threads.task_thread import TaskThread
from snapline.taskmanager.threads.thread_dumper import ThreadDumper
from snapline.taskmanager.threads.turns import Turns

STOP_TASKS_SECONDS = 5.0
"""How long tasks may take to end when their TaskManager does."""


class TaskManager:
    """A TaskManager while it runs: its actors, servers and threads."""

    def __init__(
        self, config: TaskManagerConfig, logger: Logger, recent: RecentOutput, on_ended: Callable[[], None]
    ) -> None:
        """Starts the data server, registers nowhere yet. `recent` is what this process has written. Raises
        SnaplineError for settings that cannot work."""
        configuration = config.configuration
        self._logger = logger
        self._on_ended = on_ended
        self._lock = threading.Lock()
        self._outcome: TaskManagerOutcome | None = None
        self._leaders: LeaderTable = LeaderTable()
        identity = Identity(Role.TASK_MANAGER, name=config.resource_id)
        security = Security.from_configuration(configuration).acting_as(identity)
        settings = TaskExecutorSettings.from_configuration(configuration)
        zookeeper = (
            ZooKeeperSettings.from_configuration(configuration)
            if configuration.get_option(HA_TYPE) == "zookeeper"
            else None
        )
        host = config.bind_host or host_towards(config.addresses if zookeeper is None else zookeeper.servers)
        self._exchange = FlightExchange(ExchangeSettings.from_configuration(configuration, bind_host=host), logger)
        self._clock = SystemClock()
        self._process = ProcessWatch()
        self._timers = TimerScheduler(self._clock)
        self._storages = StateStorages(lambda url: open_storage(url, configuration))
        roots = [root.strip() for root in configuration.get_option(LOCAL_STATE_ROOTS).split(",") if root.strip()]
        self._local = LocalRecovery(
            lambda: LocalDirectories(roots or [default_root()], ResourceID(config.resource_id)),
            lambda delay_ms, action: self._timers.schedule(self._clock.now_ms() + delay_ms, action),
            logger,
        )
        self._uploader = SnapshotUploader(
            ResourceID(config.resource_id),
            self._storages,
            memory_threshold_bytes=configuration.get_option(FILE_THRESHOLD),
            local=self._local,
        )
        relay = relay_for(ResourceID(config.resource_id), configuration.get_option(TASKMANAGER_RELAYS))
        self._dialer = Dialer(security, self._timers, self._clock, logger, relay)
        info = TaskManagerInfo(
            resource_id=ResourceID(config.resource_id),
            exchange_address=self._exchange.address,
            slots=config.slots,
            version=VERSION,
            host=socket.gethostname(),
            pid=os.getpid(),
            executor_id=config.executor_id,
            log_url=config.log_url,
            incarnation=secrets.token_hex(16),
            stays_when_idle=config.stays_when_idle,
            protocol_version=PROTOCOL_VERSION,
        )
        performers: dict[type, Performer] = {
            OpenConnection: lambda effect: self._dialer.open(effect.connection, effect.peer, self._tell),
            CloseConnection: lambda effect: self._dialer.close(effect.connection),
            Send: self._send,
            SendHeartbeatResponse: self._send_heartbeat_response,
            StartTask: self._start_task,
            CancelTaskExecution: lambda effect: self._tasks.cancel(effect.attempt_id),
            FailTaskExecution: lambda effect: self._tasks.fail(effect.attempt_id, effect.failure),
            DeliverToTask: lambda effect: self._tasks.deliver(effect.attempt_id, effect.message),
            ReleaseSnapshots: lambda effect: self._tasks.release_snapshots(effect.attempt_id, effect.untold),
            ReleaseJobResources: lambda effect: self._release_job(effect.job_id),
            DumpThreads: lambda effect: self._dumper.dump(effect.request),
            TerminateTaskManager: self._terminate,
        }
        self._actor: pykka.ActorRef[Any] = MachineActor.start(
            "task-executor",
            TaskExecutor(info, settings),
            performers,
            self._timers,
            self._clock,
            logger.bind(actor="task-executor"),
            self._crashed,
        )
        events = EventBatcher(self._actor)
        turns = Turns(configuration.get_option(TASKMANAGER_TURNS), self._timers, self._clock)
        self._tasks = RunningTasks(
            self._exchange,
            self._uploader,
            self._storages,
            self._local,
            configuration.get_option(LOCAL_RECOVERY),
            lambda name: TaskThread(name, self._clock, turns),
            self._clock,
            events.add,
            logger,
            self._exchange.programs.offer,
            LoadingRules.from_configuration(configuration),
            configuration.get_option(ROCKSDB_DIRECTORY),
        )
        self._has_processor_share = configuration.get_option(TASKMANAGER_PROCESSOR_SHARE)
        self._processors = ProcessorShare(
            config.slots, self._timers, self._clock, lambda: self._tasks.are_running, logger, LinuxHost()
        )
        self._dumper = ThreadDumper(
            ResourceID(config.resource_id),
            self._tasks.threads,
            recent,
            lambda dump: self._tell(ThreadsDumped(dump)),
            lambda level: change_level(logger, level),
        )
        self._retrieval: LeaderRetrieval | ZooKeeperLeaderRetrieval
        if zookeeper is None:
            self._retrieval = LeaderRetrieval(config.addresses, security, self._leaders_changed, logger)
        else:
            self._retrieval = ZooKeeperLeaderRetrieval(zookeeper, security, self._leaders_changed, logger)

    @property
    def outcome(self) -> TaskManagerOutcome:
        """How it ended, or that it did not end by itself."""
        return self._outcome or TaskManagerOutcome(clean=True, detail="ended by its host")

    @property
    def exchange_address(self) -> str:
        """host:port of the data server."""
        return self._exchange.address

    def start(self) -> None:
        """Look for the ResourceManager and register."""
        self._logger.info("TaskManager starts", exchange=self._exchange.address, pid=os.getpid())
        self._tell(TaskExecutorStarted())
        self._retrieval.start()

    def request_shutdown(self, reason: str) -> None:
        """End in order: tell everybody. `on_ended` is called."""
        self._tell(ShutDownRequested(reason))

    def stop(self) -> list[str]:
        """Stop everything; names of the tasks that are stuck. Idempotent."""
        self._retrieval.stop()
        self._dumper.close()
        in_the_middle = self._tasks.are_running
        stuck = self._tasks.stop_all(STOP_TASKS_SECONDS)
        if self._actor.is_alive():
            self._actor.stop()
        self._dialer.shutdown()
        self._exchange.close()
        self._uploader.close()
        self._timers.close()
        self._processors.close()
        self._local.close(keep=in_the_middle)
        return stuck

    # --- performers ---------------------------------------------------------------------------------------------------

    def _start_task(self, effect: StartTask) -> None:
        self._tasks.start(effect.descriptor)
        if self._has_processor_share:
            self._processors.work()

    def _release_job(self, job_id: JobID) -> None:
        self._logger.info("nothing of the job is left here", job_id=job_id)
        self._tasks.release_job(job_id)
        self._local.release_job(job_id)

    def _tell(self, event: Any) -> bool:
        return tell_if_alive(self._actor, event)

    def _send(self, effect: Send) -> None:
        message = self._tasks.with_counters(effect.envelope.message)
        if (
            type(message) is HeartbeatResponse
        ):  # to the ResourceManager; those to JobMasters have an effect of their own
            message = replace(message, process=self._process.read())
        envelope = Fenced(effect.envelope.leader_session_id, message)
        self._dialer.send(effect.connection, envelope)

    def _send_heartbeat_response(self, effect: SendHeartbeatResponse) -> None:
        counters = self._tasks.metrics(effect.response.executions)
        self._dialer.send(effect.connection, Fenced(effect.session, replace(effect.response, metrics=counters)))

    def _terminate(self, effect: TerminateTaskManager) -> None:
        """End the process, hard when a task is stuck: the log says before where that task is."""
        if effect.exit_code:
            stack = {"stack": self._tasks.stack_of(effect.stuck)} if effect.stuck is not None else {}
            self._logger.error("TaskManager cannot go on", reason=effect.reason, **stack)
        self._end(effect.reason, clean=effect.exit_code == 0)

    def _end(self, reason: str, *, clean: bool) -> None:
        with self._lock:
            if self._outcome is None:
                self._outcome = TaskManagerOutcome(clean, reason)
        self._on_ended()

    def _crashed(self, crash: ActorCrashed) -> None:
        self._end(f"defect in {crash.name}, while handling {crash.event}: {crash.error!r}", clean=False)

    def _leaders_changed(self, table: LeaderTable) -> None:
        """On the retrieval's thread: say what differs from the table before."""
        before, self._leaders = self._leaders, table
        if table.resource_manager != before.resource_manager:
            leader = table.resource_manager
            self._tell(ResourceManagerLeaderChanged(leader.address, leader.session))
        for job_id in before.job_masters.keys() | table.job_masters.keys():
            leader = table.job_masters.get(job_id, LeaderAddress())
            if leader != before.job_masters.get(job_id):
                self._tell(JobMasterLeaderChanged(job_id, leader.address, leader.session))
