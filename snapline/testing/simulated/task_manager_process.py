"""One simulated TaskManager: the real TaskExecutor, real tasks stepped on the simulated clock, the real snapshot
uploader.

Plays what `snapline.taskmanager.task_manager`, `running_tasks` and `task_thread` do in production, without threads: a
task is stepped while it says that it worked, for a few steps at a time, then when it is woken or its time has come.
Threads of the uploader are delays. Decides nothing that the cores decide.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import replace
from typing import Any, Protocol

from snapline.dataflow.config import FILE_THRESHOLD, Configuration
from snapline.dataflow.ids import CheckpointID, ExecutionAttemptID, JobID, ResourceID
from snapline.dataflow.snapshot.handles import StreamStateHandle
from snapline.dataflow.wire.messages import (
    ExecutionState,
    Fenced,
    ReportExecutions,
    TaskDeploymentDescriptor,
    TaskManagerInfo,
    TaskMetrics,
    TaskStateChanged,
)
from snapline.runtime.cores.connections import (
    CloseConnection,
    ConnectionID,
    OpenConnection,
    ResourceManagerLeaderChanged,
    Send,
)
from snapline.runtime.cores.machine import InvariantViolation
from snapline.runtime.leaders.leader_retrieval import LeaderAddress, LeaderTable
from snapline.runtime.storage.state_storages import StateStorages
from snapline.runtime.version import VERSION
from snapline.taskmanager.actors.running_tasks import local_recovery_of
from snapline.taskmanager.actors.task_environment import TaskEnvironment
from snapline.taskmanager.executor.effects import (
    CancelTaskExecution,
    DeliverToTask,
    FailTaskExecution,
    ReleaseJobResources,
    ReleaseSnapshots,
    SendHeartbeatResponse,
    StartTask,
    TerminateTaskManager,
)
from snapline.taskmanager.executor.events import JobMasterLeaderChanged, TaskEnteredState, TaskExecutorStarted
from snapline.taskmanager.executor.task_executor import TaskExecutor, TaskExecutorSettings
from snapline.taskmanager.programs.program_place import offer_no_place
from snapline.taskmanager.snapshots.local_recovery import LocalRecovery
from snapline.taskmanager.snapshots.restore import InlineBlob, SegmentBlob
from snapline.taskmanager.snapshots.uploader import SnapshotUploader, TaskSnapshotSink
from snapline.taskmanager.state.outside.segment_space import MemorySegmentSpace
from snapline.taskmanager.task.stream_task import ProgressKind, StreamTask
from snapline.taskmanager.task.task_failure import InputPosition, serialize_failure
from snapline.taskmanager.threads.push_source_threads import TurnTakingPushSource
from snapline.testing.simulated.disk import Disk, ProcessStorage
from snapline.testing.simulated.exchange import SimulatedExchange
from snapline.testing.simulated.machines import CheckedBlob, DiskOfMachine, SimulatedMachine
from snapline.testing.simulated.world import Process, SilentLogger, SimulatedActor, World, WorldClock

STEPS_AT_ONCE = 6
INHERITED_MS = 5_000
"""Less than what a run goes on after its end."""


class ClusterNetwork(Protocol):
    """How a TaskManager finds others."""

    def dial(self, process: Process, effect: OpenConnection, tell: Callable[[Any], object]) -> None: ...

    def find_exchange(self, address: str) -> SimulatedExchange | None: ...

    def send(self, process: str, connection: ConnectionID, envelope: Fenced[Any]) -> None: ...


class DelayedWorkers:
    """Threads of the uploader: each piece of work takes a while, and they overtake each other."""

    def __init__(self, process: Process, slowness_ms: Callable[[], int]) -> None:
        self._process = process
        self._rng = process.world.random(f"uploads of {process.name}")
        self._slowness_ms = slowness_ms

    def submit(self, _job_id: JobID, work: Callable[[], None]) -> None:
        self._process.later(self._rng.randint(0, 2 + self._slowness_ms()), work)

    def close(self) -> None: ...


class SimulatedTaskThread:
    """Steps one task on the simulated clock."""

    def __init__(self, process: SimulatedTaskManager, name: str) -> None:
        self.name = name
        self.task: StreamTask | None = None
        self._process = process
        self._bell = False
        self._scheduled = False
        self._wake_number = 0

    def start(self, task: StreamTask) -> None:
        self.task = task
        self._schedule()

    def wake_up(self) -> None:
        self._bell = True
        if self.task is not None:
            self._schedule()

    def _schedule(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            process = self._process
            process.later(process.rng.randint(0, 1) + process.stall_ms(self.name), self._run)

    def _run(self) -> None:
        task, world = self.task, self._process.world
        if task is None:
            return
        self._wake_number += 1
        self._bell = False
        for _ in range(1 if self._process.is_slow(self.name) else self._process.rng.randint(1, STEPS_AT_ONCE)):
            world.steps += 1
            progress = task.step(self._process.now_ms)
            if progress.kind is ProgressKind.FINISHED:
                return
            if progress.kind is not ProgressKind.WORKED:
                break
        self._scheduled = False
        if progress.kind is ProgressKind.WORKED or self._bell:
            self._schedule()
        elif progress.wake_at_ms is not None:
            number = self._wake_number
            delay_ms = max(0, progress.wake_at_ms - self._process.now_ms)

            def due() -> None:
                if number == self._wake_number and not self._scheduled:
                    self._schedule()

            self._process.later(delay_ms, due)


class SimulatedTaskEnvironment(TaskEnvironment):
    """The production environment, but push-style sources take turns, what memory has no room for stays there, too, and
    an oracle looks at what is restored."""

    disk: Disk
    machine: SimulatedMachine
    world: World
    workers: dict[Any, None]

    def open_state(self, handle: StreamStateHandle) -> CheckedBlob:
        blob = super().open_state(handle)
        if not isinstance(blob, InlineBlob | SegmentBlob):
            raise InvariantViolation(f"state is read as a {type(blob).__name__}")
        return CheckedBlob(blob, self.disk, self.machine)

    def open_segment_space(self, directory: str) -> MemorySegmentSpace:
        del directory
        return MemorySegmentSpace()

    def unpickle(self, payload: bytes) -> Any:
        return self.world.arrived(payload)

    offer_place = staticmethod(offer_no_place)

    def create_push_source_runner(self) -> TurnTakingPushSource:
        source = AbandonedSource("push source")
        self.workers[source] = None
        return source


class AbandonedSource(TurnTakingPushSource):
    """Ends with its process, and not only with its task."""

    def abandon(self) -> None:
        self.stop()
        self.join()


class SimulatedTaskManager(Process):
    """One TaskManager with its tasks."""

    def __init__(
        self,
        world: World,
        cluster: ClusterNetwork,
        disk: Disk,
        name: str,
        slots: int,
        configuration: Configuration,
        upload_slowness_ms: Callable[[], int],
        stall_ms: Callable[[str], int],
        is_slow: Callable[[str], bool],
        observe: Callable[[str, Any, list[Any]], None],
        machine: SimulatedMachine,
    ) -> None:
        super().__init__(world, name)
        self.machine = machine
        self._disk = disk
        self.rng = world.random(f"tasks of {name}")
        self.stall_ms = stall_ms
        self.is_slow = is_slow
        """Tasks that do one thing at a time."""
        self._cluster = cluster
        self._clock = WorldClock(self)
        self.on_jump.append(self._wake_tasks)
        self.exchange = SimulatedExchange(
            self,
            f"{name}:7000",
            cluster.find_exchange,
            credits_per_channel=int(configuration["taskmanager.network.credits-per-channel"]),
            max_queued_batches=int(configuration["taskmanager.network.max-queued-batches"]),
            request_backoff_max_ms=5_000,
        )
        self._storages = StateStorages(lambda url: ProcessStorage(disk, self, url))
        self._local = LocalRecovery(
            lambda: DiskOfMachine(machine, self),
            self.later,
            SilentLogger(),  # type: ignore[arg-type]
            INHERITED_MS,
        )
        self._uploader = SnapshotUploader(
            ResourceID(name),
            self._storages,
            memory_threshold_bytes=configuration.get_option(FILE_THRESHOLD),
            workers=DelayedWorkers(self, upload_slowness_ms),
            local=self._local,
        )
        self.tasks: dict[ExecutionAttemptID, SimulatedTaskThread] = {}
        self._sinks: dict[ExecutionAttemptID, TaskSnapshotSink] = {}
        self._final: dict[ExecutionAttemptID, TaskMetrics] = {}
        self._leaders = LeaderTable()
        info = TaskManagerInfo(ResourceID(name), self.exchange.address, slots, VERSION, machine.name, 1)
        self.actor = SimulatedActor(
            self,
            name,
            TaskExecutor(info, TaskExecutorSettings.from_configuration(configuration)),
            {
                OpenConnection: lambda effect: cluster.dial(self, effect, self.actor.tell),
                CloseConnection: lambda effect: world.network.close(self.name, effect.connection),
                Send: self._send,
                SendHeartbeatResponse: self._send_heartbeat_response,
                StartTask: lambda effect: self._start(effect.descriptor),
                CancelTaskExecution: lambda effect: self._with(effect.attempt_id, lambda task: task.cancel()),
                FailTaskExecution: lambda effect: self._with(
                    effect.attempt_id, lambda task: task.fail_externally(effect.failure)
                ),
                DeliverToTask: lambda effect: self._with(effect.attempt_id, lambda task: task.deliver(effect.message)),
                ReleaseSnapshots: lambda effect: self._release_snapshots(effect.attempt_id, effect.untold),
                ReleaseJobResources: lambda effect: self._local.release_job(effect.job_id),
                TerminateTaskManager: self._terminate,
            },
            observe,
        )
        self.actor.tell(TaskExecutorStarted())

    @property
    def core(self) -> TaskExecutor:
        core: TaskExecutor = self.actor.core
        return core

    def leaders_changed(self, table: LeaderTable) -> None:
        """What leader retrieval found differs from the table before."""
        before, self._leaders = self._leaders, table
        if table.resource_manager != before.resource_manager:
            leader = table.resource_manager
            self.actor.tell(ResourceManagerLeaderChanged(leader.address, leader.session))
        for job_id in dict.fromkeys((*before.job_masters, *table.job_masters)):
            leader = table.job_masters.get(job_id, LeaderAddress())
            if leader != before.job_masters.get(job_id):
                self.actor.tell(JobMasterLeaderChanged(job_id, leader.address, leader.session))

    def ended(self) -> None:
        super().ended()
        self.actor.stop()
        self.world.story.say(self.name, "is gone")

    def _wake_tasks(self) -> None:
        for thread in self.tasks.values():
            thread.wake_up()

    # --- performers -------------------------------------------------------------------------------------------------

    def _terminate(self, effect: TerminateTaskManager) -> None:
        self.world.story.say(self.name, f"ends itself: {effect.reason}")
        self.kill_here()

    def _send(self, effect: Send) -> None:
        envelope = effect.envelope
        message = envelope.message
        if type(message) is TaskStateChanged and message.state.is_terminal:
            metrics = self._final.get(message.attempt_id)
            envelope = Fenced(envelope.leader_session_id, replace(message, metrics=metrics))
        elif type(message) is ReportExecutions:
            reports = tuple(
                replace(report, metrics=self._counters_of(report.attempt_id)) for report in message.executions
            )
            envelope = Fenced(envelope.leader_session_id, replace(message, executions=reports))
        self._cluster.send(self.name, effect.connection, envelope)

    def _send_heartbeat_response(self, effect: SendHeartbeatResponse) -> None:
        response = replace(effect.response, metrics=self._metrics(effect.response.executions))
        self._cluster.send(self.name, effect.connection, Fenced(effect.session, response))

    def _counters_of(self, attempt_id: ExecutionAttemptID) -> TaskMetrics | None:
        return next(iter(self._metrics((attempt_id,))), self._final.get(attempt_id))

    def _metrics(self, attempts: Iterable[ExecutionAttemptID]) -> tuple[TaskMetrics, ...]:
        threads = [self.tasks.get(attempt_id) for attempt_id in attempts]
        return tuple(thread.task.metrics() for thread in threads if thread is not None and thread.task is not None)

    def _start(self, descriptor: TaskDeploymentDescriptor) -> None:
        attempt_id = descriptor.attempt_id
        thread = SimulatedTaskThread(self, f"{descriptor.task_name}#{descriptor.subtask_index}")
        environment = SimulatedTaskEnvironment(
            descriptor,
            self.exchange,
            self._uploader,
            self._storages,
            self._clock,
            thread.wake_up,
            self._tell,
            lambda: self._ended_task(attempt_id),
            SilentLogger(),  # type: ignore[arg-type]
            local_recovery_of(descriptor, self._local, is_default=False),
        )
        environment.disk, environment.machine, environment.workers = self._disk, self.machine, self.workers
        environment.world = self.world
        try:
            task = StreamTask(descriptor, environment)
        except Exception as error:  # as in production: whatever the user's objects raise
            failure = serialize_failure(error, InputPosition())
            self.actor.tell(TaskEnteredState(attempt_id, ExecutionState.FAILED, failure))
            return
        self.tasks[attempt_id] = thread
        self._sinks[attempt_id] = environment.snapshot_sink
        thread.start(task)

    def _tell(self, event: Any) -> None:
        self.actor.tell(event)

    def _ended_task(self, attempt_id: ExecutionAttemptID) -> None:
        thread = self.tasks.pop(attempt_id, None)
        if thread is not None and thread.task is not None:
            self._final[attempt_id] = thread.task.metrics()

    def _release_snapshots(self, attempt_id: ExecutionAttemptID, untold: Collection[CheckpointID]) -> None:
        sink = self._sinks.pop(attempt_id, None)
        if sink is not None:
            sink.release(untold)

    def _with(self, attempt_id: ExecutionAttemptID, action: Callable[[StreamTask], None]) -> None:
        thread = self.tasks.get(attempt_id)
        if thread is not None and thread.task is not None:
            action(thread.task)
