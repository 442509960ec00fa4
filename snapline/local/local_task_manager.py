"""The TaskManager of a local run: the TaskExecutor core, and its tasks on the loop or on threads of their own.

Plays `snapline.taskmanager.task_manager`: batches change hands in this process, snapshots are written by the loop. What
a user's function raised is kept as it is, so that whoever runs the job gets the exception itself.
"""

from __future__ import annotations

import bdb
import sys
import threading
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

from snapline.dataflow.config import (
    FILE_THRESHOLD,
    TASKMANAGER_QUEUE_BATCHES,
    TASKMANAGER_QUEUE_BYTES,
    Configuration,
)
from snapline.dataflow.failures import SerializedFailure
from snapline.dataflow.ids import ResourceID
from snapline.dataflow.wire.messages import ExecutionState, Fenced, TaskManagerInfo, TaskMetrics
from snapline.local.actors import LocalActor, LocalConnections
from snapline.local.event_loop import EventLoop, LoopTask, LoopWorkers
from snapline.runtime.cores.connections import Send
from snapline.runtime.cores.machine import InvariantViolation
from snapline.runtime.storage.state_storages import StateStorages
from snapline.runtime.version import VERSION
from snapline.taskmanager.actors.running_tasks import RunningTasks, TaskRunner
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
from snapline.taskmanager.executor.events import TaskEnteredState, TaskExecutorStarted
from snapline.taskmanager.executor.task_executor import TaskExecutor, TaskExecutorSettings
from snapline.taskmanager.network.channels.local_exchange import LocalExchange
from snapline.taskmanager.snapshots.uploader import SnapshotUploader
from snapline.taskmanager.threads.task_thread import TaskThread
from snapline.taskmanager.threads.turns import Turns

NAME = ResourceID("local")
STOP_SECONDS = 5.0


class LocalTaskManager:
    """All tasks of a local run."""

    def __init__(
        self,
        configuration: Configuration,
        slots: int,
        threads: int,
        storages: StateStorages,
        loop: EventLoop,
        connections: LocalConnections,
        logger: Any,
    ) -> None:
        """`threads`: 1: tasks have their turns on the loop; more: each has a thread, and at least so many work at a
        time."""
        self._loop = loop
        self._turns = Turns(threads, loop, loop.clock) if threads > 1 else None
        self.last_error: BaseException | None = None
        """What the last task that failed by itself has raised."""
        self.debugger_left = False
        """Somebody has left a debugger in a user's function."""
        exchange = LocalExchange(
            max_queued_batches=configuration.get_option(TASKMANAGER_QUEUE_BATCHES),
            max_queued_bytes=configuration.get_option(TASKMANAGER_QUEUE_BYTES),
            lock_factory=nullcontext if self._turns is None else threading.Lock,
        )
        self._uploader = SnapshotUploader(
            NAME,
            storages,
            memory_threshold_bytes=configuration.get_option(FILE_THRESHOLD),
            workers=LoopWorkers(loop),
        )
        self._tasks = RunningTasks(
            exchange,
            self._uploader,
            storages,
            None,
            is_local_by_default=False,
            make_runner=self._make_runner,
            clock=loop.clock,
            tell_executor=self._told,
            logger=logger,
        )
        info = TaskManagerInfo(NAME, "local:0", slots, VERSION, "localhost", 0)
        core = TaskExecutor(info, TaskExecutorSettings.from_configuration(configuration))
        self.actor = LocalActor("task-executor", core, loop)
        performers = connections.performers(self.actor)
        self._pass_on = performers[Send]
        self.actor.performs(
            {
                **performers,
                Send: self._send,
                SendHeartbeatResponse: self._send_heartbeat_response,
                StartTask: lambda effect: self._tasks.start(effect.descriptor),
                CancelTaskExecution: lambda effect: self._tasks.cancel(effect.attempt_id),
                FailTaskExecution: lambda effect: self._tasks.fail(effect.attempt_id, effect.failure),
                DeliverToTask: lambda effect: self._tasks.deliver(effect.attempt_id, effect.message),
                ReleaseSnapshots: lambda effect: self._tasks.release_snapshots(effect.attempt_id, effect.untold),
                ReleaseJobResources: lambda _: None,
                TerminateTaskManager: self._terminate,
            }
        )

    def start(self) -> None:
        """Look for the ResourceManager and register with it."""
        self.actor.tell(TaskExecutorStarted())

    def metrics(self) -> tuple[TaskMetrics, ...]:
        """Return the counters of all tasks that run."""
        return self._tasks.metrics(self._tasks.attempts)

    def fail_task(self, vertex_id: str, subtask_index: int, failure: SerializedFailure) -> None:
        """Fail the attempt of this subtask that runs now, if one does."""
        for attempt_id in self._tasks.attempts:
            if (attempt_id.vertex_id, attempt_id.subtask_index) == (vertex_id, subtask_index):
                self._tasks.fail(attempt_id, failure)

    def stop(self) -> list[str]:
        """End every task that still runs; names of those that are stuck in user code."""
        stuck = self._tasks.stop_all(STOP_SECONDS)
        self.actor.stop()
        return stuck

    def _make_runner(self, name: str) -> TaskRunner:
        if self._turns is None:
            return LoopTask(name, self._loop)
        return TaskThread(name, self._loop.clock, self._turns)

    def _told(self, event: Any) -> None:
        """What tasks tell; they do so while their exception is being handled."""
        error = sys.exception()
        if isinstance(event, TaskEnteredState) and event.state is ExecutionState.FAILED and error is not None:
            self.last_error = error
            seen: set[int] = set()  # causes may lead back to where they came from
            while error is not None and id(error) not in seen:
                seen.add(id(error))
                self.debugger_left = self.debugger_left or isinstance(error, bdb.BdbQuit)
                error = error.__cause__
            self._loop.ring()
        self.actor.tell(event)

    # --- performers ---------------------------------------------------------------------------------------------------

    def _terminate(self, effect: TerminateTaskManager) -> None:
        raise InvariantViolation(f"the TaskManager of a local run ends: {effect.reason}")

    def _send(self, effect: Send) -> None:
        envelope = Fenced(effect.envelope.leader_session_id, self._tasks.with_counters(effect.envelope.message))
        self._pass_on(Send(effect.connection, envelope))

    def _send_heartbeat_response(self, effect: SendHeartbeatResponse) -> None:
        response = replace(effect.response, metrics=self._tasks.metrics(effect.response.executions))
        self._pass_on(Send(effect.connection, Fenced(effect.session, response)))
