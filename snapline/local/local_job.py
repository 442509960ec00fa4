"""One job in this process: wires its coordinator and TaskManager to a loop, drives the loop, and takes all of it apart
again.

Whoever calls `run`, or waits for the answer to an operation, drives the loop on his own thread; `run_in_background`
gives it one. Ctrl-C reaches a user's function at once and the cores between two events only, so that the job can still
be cancelled in order. Mirrors Flink's MiniCluster with its LocalExecutor.
"""

from __future__ import annotations

import shutil
import signal
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

from snapline.client import RequestRefused
from snapline.coordinator.execution.slot_sharing import required_slots
from snapline.coordinator.jobmaster.operations import Answer, CancelJob, JobOperation, OperationFailed
from snapline.dataflow.config import (
    CHECKPOINTING_INTERVAL,
    CHECKPOINTS_DIRECTORY,
    HEARTBEAT_INTERVAL,
    HEARTBEAT_TIMEOUT,
    SCHEDULER_MODE,
    TASK_CANCELLATION_TIMEOUT,
    Configuration,
)
from snapline.dataflow.errors import JobDefinitionError
from snapline.dataflow.failures import SerializedFailure
from snapline.dataflow.graph.jobgraph import JobGraph
from snapline.dataflow.wire.messages import TaskMetrics
from snapline.local.actors import LocalConnections
from snapline.local.event_loop import EventLoop
from snapline.local.local_coordinator import ADDRESS, LocalCoordinator
from snapline.local.local_task_manager import LocalTaskManager
from snapline.protos import client_pb2 as pb
from snapline.runtime.clock import SystemClock
from snapline.runtime.cores.connections import ResourceManagerLeaderChanged
from snapline.runtime.storage.object_storage import open_storage
from snapline.runtime.storage.state_storages import StateStorages
from snapline.taskmanager.executor.events import JobMasterLeaderChanged
from snapline.taskmanager.task.task_failure import root_cause

LOCAL_SLOTS = 64
"""Slots cost nothing here; so many, at least, a job may be rescaled to."""
LOOK_MS = 200
"""How often somebody who watches the job looks at it."""
CANCEL_MS = 10_000
"""How long a job that was interrupted may take to end in order."""
NOBODY_IS_SILENT = {
    HEARTBEAT_INTERVAL.key: "1 s",
    HEARTBEAT_TIMEOUT.key: "36500 d",
    TASK_CANCELLATION_TIMEOUT.key: "0 s",
}
"""All live in one process, which may stand at a breakpoint for hours. Heartbeats carry the counters."""


class LocalJob:
    """A job that runs here; a context manager."""

    def __init__(
        self,
        job_graph: JobGraph,
        threads: int,
        logger: Any,
        within: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        """Nothing runs yet. `within`: what it is driven in. Raises a SnaplineError that says why the job cannot run."""
        if threads < 1:
            raise JobDefinitionError(f"a local run needs at least one thread, got threads={threads}")
        configuration = Configuration({**job_graph.configuration, **NOBODY_IS_SILENT})
        self._directory: str | None = None
        if configuration.get_option(CHECKPOINTING_INTERVAL) and not configuration.get_option(CHECKPOINTS_DIRECTORY):
            self._directory = tempfile.mkdtemp(prefix="snapline-checkpoints-")
            configuration = configuration.with_values({CHECKPOINTS_DIRECTORY.key: self._directory})
        self.job_graph = job_graph = replace(job_graph, configuration=dict(configuration))
        self._within = within
        self._interrupted = False
        self._thread: threading.Thread | None = None
        self._driving = threading.Lock()
        self._is_closed = False
        self._look_ms = 0
        """When whoever wants to hear of changes is told next."""
        self.crash: BaseException | None = None
        """What has left the loop of a run in the background."""
        self._loop = EventLoop(SystemClock())
        connections = LocalConnections()
        storages = StateStorages(lambda url: open_storage(url, configuration))
        slots = required_slots(job_graph)
        if configuration.get_option(SCHEDULER_MODE) != "reactive":
            slots = max(slots, LOCAL_SLOTS)
        try:
            self._coordinator = LocalCoordinator(job_graph, configuration, storages, self._loop, connections, logger)
            self._task_manager = LocalTaskManager(
                configuration, slots, threads, storages, self._loop, connections, logger
            )
        except BaseException:
            self._remove_directory()
            raise
        self._threads = threads

    def __enter__(self) -> LocalJob:
        """Start: nothing has run when this returns."""
        coordinator, executor = self._coordinator, self._task_manager.actor
        coordinator.start()
        self._task_manager.start()
        executor.tell(ResourceManagerLeaderChanged(ADDRESS, coordinator.resource_manager_session))
        executor.tell(JobMasterLeaderChanged(self.job_graph.job_id, ADDRESS, coordinator.session))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Close the job at the end of the block."""
        self.close()

    # --- looking ------------------------------------------------------------------------------------------------------

    @property
    def has_ended(self) -> bool:
        """Whether the job is over."""
        return self._coordinator.has_ended or self.crash is not None

    @property
    def error(self) -> BaseException | None:
        """What a user's function, or whatever else in a task, has raised last."""
        error = self._task_manager.last_error
        return None if error is None else root_cause(error)

    def details(self) -> pb.JobDetails:
        """The job as it is now."""
        return self._on_loop(self._coordinator.details)

    def checkpoints(self) -> pb.ListCheckpointsResponse:
        """Return the checkpoints of the job as they are now."""
        return self._on_loop(self._coordinator.checkpoints)

    def task_metrics(self) -> tuple[TaskMetrics, ...]:
        """Counters of the tasks that run, as they are now and not as of the last heartbeat."""
        return self._on_loop(self._task_manager.metrics)

    # --- driving ------------------------------------------------------------------------------------------------------

    def run(
        self,
        until: Callable[[], bool] = lambda: False,
        on_change: Callable[[pb.JobDetails], None] | None = None,
        wait_ms: int | None = None,
    ) -> None:
        """Drive the job on this thread to its end, or until the condition holds, or for `wait_ms`. KeyboardInterrupt
        cancels it."""
        clock = self._loop.clock
        now_ms = clock.now_ms()
        end_ms = None if wait_ms is None else now_ms + wait_ms
        last: pb.JobDetails | None = None
        with self._driving, self._within(), self._interrupts():
            try:
                while not (self._coordinator.has_ended or until()):
                    now_ms = clock.now_ms()
                    if end_ms is not None and now_ms >= end_ms:
                        return
                    self._loop.turn(LOOK_MS if end_ms is None else min(LOOK_MS, end_ms - now_ms))
                    if self._interrupted or self._task_manager.debugger_left:
                        raise KeyboardInterrupt
                    if on_change is not None and clock.now_ms() >= self._look_ms:
                        self._look_ms = clock.now_ms() + LOOK_MS
                        details = self._coordinator.details()
                        if details != last:
                            on_change(details)
                            last = details
            except KeyboardInterrupt:
                self._cancel_at_once()
                raise KeyboardInterrupt(f"job {self.job_graph.name!r} was cancelled") from None
            if self._coordinator.has_ended:
                self._settle()
        if on_change is not None and self._coordinator.has_ended:
            on_change(self._coordinator.details())

    def run_in_background(
        self, on_end: Callable[[], None] = lambda: None, on_change: Callable[[pb.JobDetails], None] | None = None
    ) -> None:
        """Drive it on a thread of its own from now on."""

        def drive() -> None:
            try:
                self.run(on_change=on_change)
            except BaseException as error:  # whoever waits for the job is told
                self.crash = error
            finally:
                self._fail_waiting()
                on_end()

        self._thread = threading.Thread(target=drive, name=f"local-job {self.job_graph.name}", daemon=True)
        self._thread.start()

    def operate(self, operation: JobOperation) -> Answer:
        """Ask the JobMaster for something and wait for its answer. Raises RequestRefused."""
        future: Future[Answer] = Future()
        self._loop.call_soon(lambda: self._coordinator.operate(operation, future.set_result))
        answer = self._awaited(future)
        if isinstance(answer, OperationFailed):
            raise RequestRefused(answer.failure.summary)
        return answer

    def fail_task(self, vertex_id: str, subtask_index: int, failure: SerializedFailure) -> None:
        """Fail the attempt of this subtask that runs now, if one does."""
        self._loop.call_soon(lambda: self._task_manager.fail_task(vertex_id, subtask_index, failure))

    def close(self) -> None:
        """End it, as a crash would if it is not over; nothing of it is left in this process. Idempotent."""
        if self._is_closed:
            return
        self._is_closed = True
        if self._thread is not None and self._thread.is_alive():
            self._loop.call_soon(lambda: self._coordinator.operate(CancelJob(), lambda _: None))
            self._thread.join(CANCEL_MS / 1000)
        stuck = self._task_manager.stop()
        self._coordinator.stop()
        self._remove_directory()
        if stuck:
            sys.stderr.write(f"snapline: these tasks are still in a function of the user: {', '.join(stuck)}\n")

    # --- inner --------------------------------------------------------------------------------------------------------

    def _on_loop(self, read: Callable[[], Any]) -> Any:
        """What is read off the cores between two events."""
        if self._thread is None or not self._thread.is_alive():
            return read()
        future: Future[Any] = Future()
        self._loop.call_soon(lambda: future.set_result(read()))
        return self._awaited(future)

    def _awaited(self, future: Future[Any]) -> Any:
        while not future.done():
            if self._thread is None:
                self.run(until=future.done)
                if self._coordinator.has_ended and not future.done():
                    self._settle_alone()
            elif self._thread.is_alive():
                try:
                    return future.result(timeout=LOOK_MS / 1000)
                except TimeoutError:
                    continue
            else:
                self._settle_alone()
        return future.result()

    def _settle_alone(self) -> None:
        """Nobody drives the loop any more, and several may ask for something at once."""
        with self._driving:
            self._settle()

    def _settle(self) -> None:
        """The job is over: what it has asked for last, deletions say, is done."""
        while not self._loop.is_idle:
            self._loop.turn(0)

    def _fail_waiting(self) -> None:
        if self.crash is not None:
            self._coordinator.stop()

    def _cancel_at_once(self) -> None:
        """A task that was interrupted in the middle cannot go on; the others end in order."""
        interrupted, self._loop.stepped = self._loop.stepped, None
        self._interrupted, self._task_manager.debugger_left = False, False
        self._loop.call_soon(lambda: self._coordinator.operate(CancelJob(), lambda _: None))
        if interrupted is not None:
            self._loop.call_soon(lambda: interrupted.abandon(InterruptedError("interrupted")))
        end_ms = self._loop.clock.now_ms() + CANCEL_MS
        while not self._coordinator.has_ended and self._loop.clock.now_ms() < end_ms and not self._interrupted:
            self._loop.turn(LOOK_MS)
        self._settle()

    @contextmanager
    def _interrupts(self) -> Iterator[None]:
        """Within, Ctrl-C is raised in a task's code or while nothing runs; else after what is being done."""
        before = signal.getsignal(signal.SIGINT)
        is_main = threading.current_thread() is threading.main_thread()
        if not is_main or not callable(before):  # ignored, or left to the system
            yield
            return

        def handle(_number: int, _frame: FrameType | None) -> None:
            if self._loop.stepped is not None or self._loop.is_waiting:
                raise KeyboardInterrupt
            self._interrupted = True

        signal.signal(signal.SIGINT, handle)  # that of asyncio raises for the second one only
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, before)

    def _remove_directory(self) -> None:
        """Unless something lies in it that a job could start from."""
        if self._directory is not None and not any(Path(self._directory).glob("**/_metadata")):
            shutil.rmtree(self._directory, ignore_errors=True)
