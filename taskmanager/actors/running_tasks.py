"""The tasks that run in one TaskManager: starts, cancels and feeds them, and reads their counters.

Performs the effects of the TaskExecutor that concern tasks. Each task has a runner, a thread of its own or its turns on
a loop; everything that goes to it is mail. A task that cannot even be built reports FAILED like one that failed later.
Thread-safe.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable
from dataclasses import replace
from functools import partial
from typing import Any, Protocol

from snapline.dataflow.config import LOCAL_RECOVERY
from snapline.dataflow.failures import SerializedFailure
from snapline.dataflow.graph.declared_payload import ALL_ALLOWED, LoadingRules
from snapline.dataflow.ids import CheckpointID, ExecutionAttemptID, JobID
from snapline.dataflow.wire.messages import (
    ExecutionState,
    ReportExecutions,
    TaskDeploymentDescriptor,
    TaskMessage,
    TaskMetrics,
    TaskStateChanged,
)
from snapline.runtime.clock import Clock
from snapline.runtime.logs import TASK_FAILED, Logger
from snapline.runtime.storage.state_storages import StateStorages
from snapline.taskmanager.actors.task_environment import TaskEnvironment
from snapline.taskmanager.executor.events import TaskEnteredState
from snapline.taskmanager.network.channels.exchange_contract import Exchange
from snapline.taskmanager.programs.program_place import OfferPlaceIn, offer_no_place
from snapline.taskmanager.snapshots.local_recovery import JobLocalRecovery, LocalRecovery
from snapline.taskmanager.snapshots.uploader import SnapshotUploader, TaskSnapshotSink
from snapline.taskmanager.task.stream_task import StreamTask
from snapline.taskmanager.task.task_failure import ChannelFailure, InputPosition, serialize_failure
from snapline.taskmanager.threads.gauge_reader import GaugeReader
from snapline.taskmanager.threads.thread_dumper import stack_of

INPUT_LOST = "task lost its input"
"""The message of a task whose producer or connection is gone; whether that is a failure is the JobMaster's to say."""
MAX_FINAL_METRICS = 10_000
"""An end that nobody can be told leaves its counters behind."""


GAUGES_SECONDS = 0.5
"""How long heartbeats wait for functions that tell gauges."""
LAST_GAUGES_SECONDS = 1.0
"""How long the end of a task waits for them."""


class TaskRunner(Protocol):
    """What calls `StreamTask.step`: a thread (`snapline.taskmanager.threads.task_thread`), or the loop of a local
    run."""

    name: str
    task: StreamTask | None

    def start(self, task: StreamTask) -> None:
        """Run the task to its end."""
        ...

    def wake_up(self) -> None:
        """Something has come; from any thread, and often."""
        ...

    def join(self, timeout_seconds: float) -> bool:
        """Wait for the end; whether it has come."""
        ...


class RunningTasks:
    """The running tasks of this TaskManager, by execution attempt."""

    def __init__(
        self,
        exchange: Exchange,
        uploader: SnapshotUploader,
        storages: StateStorages,
        local: LocalRecovery | None,
        is_local_by_default: bool,
        make_runner: Callable[[str], TaskRunner],
        clock: Clock,
        tell_executor: Callable[[Any], None],
        logger: Logger,
        offer_place: OfferPlaceIn = lambda _, *told: offer_no_place(*told),
        rules: LoadingRules = ALL_ALLOWED,
        segment_directory: str = "",
    ) -> None:
        """`local`: None: there is no local recovery here. `is_local_by_default`: whether jobs that do not say so have
        it. `make_runner`: for the task of this name. `rules`: of what jobs bring or name. `segment_directory`: for
        state outside of memory, where a job names none."""
        self._exchange = exchange
        self._uploader = uploader
        self._storages = storages
        self._local = local
        self._is_local_by_default = is_local_by_default
        self._make_runner = make_runner
        self._clock = clock
        self._tell = tell_executor
        self._logger = logger
        self._offer_place = offer_place
        self._rules = rules
        self._segment_directory = segment_directory
        self._gauges = GaugeReader()
        self._lock = threading.Lock()
        self._running: dict[ExecutionAttemptID, TaskRunner] = {}
        self._cancelled: set[ExecutionAttemptID] = set()
        """Those that run and were told to end."""
        self._sinks: dict[ExecutionAttemptID, TaskSnapshotSink] = {}
        """The sinks of tasks that run, or that have ended and whose snapshots are not released yet."""
        self._graphs: dict[JobID, set[str]] = {}
        """The execution graphs of each job that has or had tasks here: one for each of its leaders."""
        self._final: OrderedDict[ExecutionAttemptID, TaskMetrics] = OrderedDict()
        """Counters of tasks that have ended: with their end, and for a JobMaster that follows a lost one."""

    def start(self, descriptor: TaskDeploymentDescriptor) -> None:
        """Build the task and run it."""
        attempt_id = descriptor.attempt_id
        thread = self._make_runner(descriptor.task_name)
        try:
            environment = TaskEnvironment(
                descriptor,
                self._exchange,
                self._uploader,
                self._storages,
                self._clock,
                thread.wake_up,
                lambda event: self._note(descriptor.job_id, descriptor.task_name, environment, event),
                lambda: self._ended(attempt_id),
                self._logger,
                local_recovery_of(descriptor, self._local, is_default=self._is_local_by_default),
                partial(self._offer_place, descriptor.allocation_id),
                self._rules,
                self._segment_directory,
            )
            task = StreamTask(descriptor, environment)
        except Exception as error:
            self._logger.warning("task cannot be built", task=descriptor.task_name, reason=str(error))
            failure = serialize_failure(error, InputPosition())
            self._tell(TaskEnteredState(attempt_id, ExecutionState.FAILED, failure))
            return
        with self._lock:
            self._running[attempt_id] = thread
            self._sinks[attempt_id] = environment.snapshot_sink
            self._graphs.setdefault(descriptor.job_id, set()).add(attempt_id.execution_graph_id)
        self._logger.info("task started", task=descriptor.task_name, attempt=str(attempt_id))
        try:
            thread.start(task)
        except RuntimeError as error:  # the host has no thread left
            task.abandon(error)

    def _note(self, job_id: JobID, task_name: str, environment: TaskEnvironment, event: Any) -> None:
        """What a task tells; its failure is logged here, too, where its host's log is read. That it lost its input is
        no warning here: the producer may have heard before it that the job is cancelled, and the JobMaster, which
        knows, warns of every other loss."""
        read = environment.bytes_read
        if (
            (read.local or read.remote)
            and isinstance(event, TaskEnteredState)
            and event.state is ExecutionState.RUNNING
        ):
            self._logger.info("state restored", task=task_name, local_bytes=read.local, remote_bytes=read.remote)
        if isinstance(event, TaskEnteredState) and event.state is ExecutionState.FAILED and event.failure is not None:
            failure, attempt = event.failure, event.attempt_id.attempt_number
            what = {"job_id": job_id, "task": task_name, "attempt": attempt, "reason": failure.summary}
            where = {"operator": failure.operator_uid, "position": failure.position, "traceback": failure.traceback}
            if failure.error_type == ChannelFailure.__name__:
                self._logger.info(INPUT_LOST, **what)
            else:
                self._logger.warning(TASK_FAILED, **what, **{name: value for name, value in where.items() if value})
        self._tell(event)

    def cancel(self, attempt_id: ExecutionAttemptID) -> None:
        """Cancel the task, which ends as CANCELED. Asked again, because it has not ended, say where it is."""
        task = self._find(attempt_id)
        if task is None:
            return
        if attempt_id in self._cancelled:
            self._logger.warning(
                "task does not end, although it was cancelled",
                task=task.descriptor.task_name,
                attempt=str(attempt_id),
                stack=self.stack_of(attempt_id),
            )
        self._cancelled.add(attempt_id)
        task.cancel()

    def stack_of(self, attempt_id: ExecutionAttemptID) -> str:
        """Where the task's thread is, innermost frame last; empty: it has no thread of its own."""
        with self._lock:
            runner = self._running.get(attempt_id)
        return "\n".join(stack_of(getattr(runner, "thread_id", None)))

    def fail(self, attempt_id: ExecutionAttemptID, failure: SerializedFailure) -> None:
        """Fail the task, which ends as FAILED with this failure."""
        task = self._find(attempt_id)
        if task is not None:
            task.fail_externally(failure)

    def deliver(self, attempt_id: ExecutionAttemptID, message: TaskMessage) -> None:
        """Put a message of the JobMaster into the task's mailbox."""
        task = self._find(attempt_id)
        if task is not None:
            task.deliver(message)

    def release_snapshots(self, attempt_id: ExecutionAttemptID, untold: Collection[CheckpointID]) -> None:
        """Delete what a task that has ended wrote for these checkpoints, and give the rest away."""
        with self._lock:
            sink = self._sinks.pop(attempt_id, None)
        if sink is not None:  # else it could not even be built
            sink.release(untold)

    def release_job(self, job_id: JobID) -> None:
        """Nothing of the job is left here, and nobody will come for what its tasks have put out."""
        with self._lock:
            graphs = self._graphs.pop(job_id, set())
        for execution_graph in graphs:
            self._exchange.release_unread(execution_graph)

    def metrics(self, attempts: Iterable[ExecutionAttemptID]) -> tuple[TaskMetrics, ...]:
        """Counters of those that run."""
        found = {attempt_id: self._find(attempt_id) for attempt_id in attempts}
        tasks = {attempt_id: task for attempt_id, task in found.items() if task is not None}
        told = {attempt_id: task.told_gauges for attempt_id, task in tasks.items()}
        self._gauges.read(told, GAUGES_SECONDS)
        now_ms = self._clock.now_ms()
        return tuple(task.metrics(now_ms) for task in tasks.values())

    def threads(self) -> dict[int, tuple[str, ExecutionAttemptID]]:
        """Return the name and the attempt of the task that each thread works for."""
        with self._lock:
            runners = list(self._running.items())
        ids = ((getattr(runner, "thread_id", None), runner.name, attempt_id) for attempt_id, runner in runners)
        return {thread_id: (name, attempt_id) for thread_id, name, attempt_id in ids if thread_id is not None}

    def with_counters(self, message: Any) -> Any:
        """The message, with the counters of the tasks that it is about where it has room for them."""
        if type(message) is TaskStateChanged and message.state.is_terminal:
            return replace(message, metrics=self._counters_of(message.attempt_id))
        if type(message) is ReportExecutions:
            reports = (replace(report, metrics=self._counters_of(report.attempt_id)) for report in message.executions)
            return replace(message, executions=tuple(reports))
        return message

    def _counters_of(self, attempt_id: ExecutionAttemptID) -> TaskMetrics | None:
        """Those of one that runs, or the last ones."""
        task = self._find(attempt_id)
        if task is not None:
            return task.metrics()
        with self._lock:
            return self._final.get(attempt_id)

    @property
    def attempts(self) -> list[ExecutionAttemptID]:
        """Return the attempts that have not ended."""
        with self._lock:
            return list(self._running)

    @property
    def are_running(self) -> bool:
        """Return whether any task has not ended."""
        with self._lock:
            return bool(self._running)

    def stop_all(self, timeout_seconds: float) -> list[str]:
        """Cancel everything and wait; names of the tasks that do not end in time."""
        with self._lock:
            threads = list(self._running.values())
        for thread in threads:
            if thread.task is not None:
                thread.task.cancel()
        deadline_ms = self._clock.now_ms() + round(timeout_seconds * 1000)
        return [thread.name for thread in threads if not thread.join(max(0, deadline_ms - self._clock.now_ms()) / 1000)]

    def _find(self, attempt_id: ExecutionAttemptID) -> StreamTask | None:
        with self._lock:
            thread = self._running.get(attempt_id)
        return None if thread is None else thread.task

    def _ended(self, attempt_id: ExecutionAttemptID) -> None:
        """On the task's thread, before its end is reported."""
        task = self._find(attempt_id)
        if task is not None:
            self._gauges.read({attempt_id: task.told_gauges}, LAST_GAUGES_SECONDS, joins=True)
        with self._lock:
            self._running.pop(attempt_id, None)
            self._cancelled.discard(attempt_id)
            if task is not None:
                self._final[attempt_id] = task.metrics()
                if len(self._final) > MAX_FINAL_METRICS:
                    self._final.popitem(last=False)
        self._gauges.forget(attempt_id)


def local_recovery_of(
    descriptor: TaskDeploymentDescriptor, local: LocalRecovery | None, *, is_default: bool
) -> JobLocalRecovery | None:
    """What the task's job says, else its TaskManager."""
    text = descriptor.configuration.get(LOCAL_RECOVERY.key)
    is_on = is_default if text is None else LOCAL_RECOVERY.read(text)
    return local.of_job(descriptor.job_id) if is_on and local is not None else None
