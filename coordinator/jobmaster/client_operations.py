"""What clients ask of a running job: cancel, checkpoints, savepoints, stop, rescale; and the rescales that a job
decides on itself.

Decides what an operation begins with, and joins its two halves: what the checkpoint core answers goes to whoever waits
for it, a rescale whose checkpoint is complete restarts the job. Who waits is kept by PendingOperations, when a rescale
takes its next step is decided by Rescaling. It does not know how a job restarts, nor how checkpoints are taken. Takes
the role of the operations in Flink's SchedulerBase (triggerSavepoint, stopWithSavepoint, triggerCheckpoint) and of its
AdaptiveScheduler.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from snapline.coordinator.checkpoint.effects import CheckpointRequestCompleted, CheckpointRequestFailed
from snapline.coordinator.checkpoint.events import CheckpointRequested, CheckpointRequestID, StopWithSavepointRequested
from snapline.coordinator.jobmaster.job_master_settings import JobMasterSettings
from snapline.coordinator.jobmaster.operations import (
    Acknowledged,
    CancelJob,
    JobOperation,
    Reply,
    RequestID,
    RescaleJob,
    StopWithSavepoint,
    TakeCheckpoint,
    TakeSavepoint,
    TapOperator,
)
from snapline.coordinator.jobmaster.pending_operations import PendingOperations, refused
from snapline.coordinator.jobmaster.rescaling import Rescaling, RescalingEffect, TakeRescaleCheckpoint, is_own
from snapline.coordinator.jobmaster.scheduler import Scheduler
from snapline.coordinator.jobmaster.scheduler_effects import SchedulerEffect
from snapline.coordinator.jobmaster.taps import Taps, TapTimer
from snapline.dataflow.elements import SnapshotType
from snapline.dataflow.ids import JobVertexID, ResourceID
from snapline.dataflow.wire.messages import JobStatus, TapTask, TaskTapped
from snapline.runtime.cores.machine import CancelTimer, CollectedEffects, StartTimer

STOPPING = "the job is being stopped with a savepoint: ask again if that fails"


@dataclass(frozen=True, slots=True)
class AskForSnapshot:
    """The checkpoint core is to take one."""

    event: CheckpointRequested | StopWithSavepointRequested


@dataclass(frozen=True, slots=True)
class Scheduled:
    """The scheduler was told something, and wants this."""

    effects: tuple[SchedulerEffect, ...]


ClientOperationsEffect = AskForSnapshot | Scheduled | TapTask | Reply | StartTimer | CancelTimer


class ClientOperations:
    """What clients have asked of one job and how far each request is."""

    def __init__(
        self,
        scheduler: Scheduler,
        settings: JobMasterSettings,
        draw_id: Callable[[], str],
        url_of: Callable[[str], str],
        note: Callable[[], str],
    ) -> None:
        """`url_of`: where a checkpoint lies; `note`: what the ResourceManager said last about slots that it cannot
        give."""
        self._scheduler = scheduler
        self._settings = settings
        self._draw_id = draw_id
        self._url_of = url_of
        self._pending = PendingOperations()
        self._rescaling = Rescaling(scheduler, settings, note)
        self._taps = Taps()
        self._out: CollectedEffects[ClientOperationsEffect] = CollectedEffects()

    @property
    def detail(self) -> str:
        """What a job that runs waits for, one line; empty when it waits for nothing."""
        return self._rescaling.detail

    @property
    def _task_managers(self) -> list[ResourceID]:
        """Those that the job has slots of."""
        return [each.resource_id for each in self._scheduler.pool.held]

    # --- what clients ask for -----------------------------------------------------------------------------------------

    def operate(self, request_id: RequestID, operation: JobOperation, now_ms: int) -> list[ClientOperationsEffect]:
        """A client wants something of the job, which is not over."""
        if self._pending.is_stopping and not isinstance(operation, CancelJob):
            # Its sources may have ended for good: what is taken now is nothing to go on from when the savepoint fails.
            self._out.append(refused(request_id, STOPPING, retryable=True))
            return self._out.take()
        match operation:
            case CancelJob():
                self._out += [Scheduled(tuple(self._scheduler.cancel(now_ms))), Reply(request_id, Acknowledged())]
            case TakeCheckpoint(full):
                snapshot_type = SnapshotType.FULL_CHECKPOINT if full else SnapshotType.CHECKPOINT
                self._ask(CheckpointRequested(self._pending.snapshot(request_id), snapshot_type))
            case TakeSavepoint(directory):
                if (target := self._savepoint_target(request_id, directory)) is not None:
                    key = self._pending.snapshot(request_id)
                    self._ask(CheckpointRequested(key, SnapshotType.SAVEPOINT, target))
            case StopWithSavepoint(directory, drain):
                if (target := self._savepoint_target(request_id, directory)) is not None:
                    self._ask(StopWithSavepointRequested(self._pending.stop(request_id), target, drain))
            case RescaleJob():
                self._request_rescale(request_id, operation, now_ms)
            case TapOperator():
                self._out += self._taps.request(request_id, operation, self._scheduler.graph, now_ms)
        return self._out.take()

    def _savepoint_target(self, request_id: RequestID, directory: str) -> str | None:
        """A directory that never was, `savepoint-<job>-<random>` as in Flink."""
        base = directory or self._settings.savepoint_directory
        if not base:
            summary = "no directory for the savepoint: name one, or set execution.checkpointing.savepoint-dir"
            self._out.append(refused(request_id, summary))
            return None
        if "://" in base and "://" not in base.rstrip("/"):
            self._out.append(
                refused(request_id, f"{base!r} names no directory for the savepoint, only a kind of storage")
            )
            return None
        job_id = self._scheduler.graph.job_graph.job_id
        return f"{base.rstrip('/')}/savepoint-{job_id[:6]}-{self._draw_id()[:12]}"

    def _request_rescale(self, request_id: RequestID, wanted: RescaleJob, now_ms: int) -> None:
        graph = self._scheduler.graph.job_graph
        refusal = self._pending.refusal_of_rescale(request_id, self._scheduler.status, graph, wanted.parallelism)
        if refusal is not None:
            self._out.append(refusal)
            return
        self._rescale(self._rescaling.request(request_id, wanted.parallelism, now_ms, wanted.leave))

    # --- what follows -------------------------------------------------------------------------------------------------

    def advance(self, now_ms: int) -> list[ClientOperationsEffect]:
        """Something of the job has changed: a rescale takes its next step, if it can."""
        self._rescale(self._rescaling.advance(now_ms))
        return self._out.take()

    def rescale_timer_fired(self, now_ms: int) -> list[ClientOperationsEffect]:
        """Go on with the rescale whose RescaleTimer has fired."""
        self._rescale(self._rescaling.timer_fired(now_ms))
        return self._out.take()

    def rows_tapped(self, message: TaskTapped) -> list[ClientOperationsEffect]:
        """A subtask shows some of its rows."""
        return [*self._taps.tapped(message)]

    def tap_timer_fired(self, key: TapTimer) -> list[ClientOperationsEffect]:
        """Whoever waits for rows has waited long enough."""
        return [*self._taps.timer_fired(key)]

    def snapshot_completed(self, snapshot: CheckpointRequestCompleted, now_ms: int) -> list[ClientOperationsEffect]:
        """One that was asked for."""
        if is_own(snapshot.request_id):
            self._begin_rescale(snapshot.request_id, self._rescaling.parallelism, now_ms)
        else:
            url = self._url_of(snapshot.location)
            had_savepoint = self._pending.has_savepoint_to_stop_with
            replies, parallelism = self._pending.completed(snapshot.request_id, snapshot.checkpoint_id, url)
            self._out += replies
            if self._pending.has_savepoint_to_stop_with and not had_savepoint:
                self._out.append(Scheduled(tuple(self._scheduler.stopped_with_savepoint(now_ms))))
            if parallelism is not None:
                self._begin_rescale(snapshot.request_id, parallelism, now_ms)
            if self._scheduler.is_over:  # it was being stored when the job ended: no other status will follow
                self._out += self._pending.job_status_changed(self._scheduler.status, self._task_managers)
        return self._out.take()

    def snapshot_failed(self, failed: CheckpointRequestFailed) -> list[ClientOperationsEffect]:
        """One that was asked for."""
        if is_own(failed.request_id):
            self._rescale(self._rescaling.own_checkpoint_failed())
        else:
            self._out += self._pending.failed(failed.request_id, f"{failed.reason.message} {failed.detail}".strip())
            if not self._pending.rescale_in_progress:
                self._rescale(self._rescaling.checkpoint_failed())
        return self._out.take()

    def job_status_changed(self, status: JobStatus) -> list[ClientOperationsEffect]:
        """Which may be what a client waits for."""
        taps = self._taps.job_is_over() if status.is_globally_terminal or status is JobStatus.SUSPENDED else []
        return [*self._pending.job_status_changed(status, self._task_managers), *taps]

    def job_is_forgotten(self) -> list[ClientOperationsEffect]:
        """No leader will start the job again."""
        return [*self._pending.job_is_forgotten()]

    def _begin_rescale(
        self, request_id: CheckpointRequestID, parallelism: Mapping[JobVertexID, int], now_ms: int
    ) -> None:
        missing, leave = self._rescaling.slots_missing, self._rescaling.leave
        self._rescale(self._rescaling.end())
        if self._pending.is_stopping:  # the checkpoint was being stored when that began
            self._out += self._pending.failed(request_id, STOPPING)
            return
        status = self._scheduler.status
        if status is not JobStatus.RUNNING:
            self._out += self._pending.failed(request_id, f"the job is {status.value}; it was not rescaled")
            return
        if missing:
            lost = f"{missing} of the slots for it were lost again while its checkpoint was taken"
            self._out += self._pending.failed(request_id, f"{lost}; the job goes on as it is")
            return
        self._out.append(Scheduled(tuple(self._scheduler.rescale(parallelism, now_ms, leave))))

    def _rescale(self, effects: list[RescalingEffect]) -> None:
        for effect in effects:
            match effect:
                case TakeRescaleCheckpoint(asked_by, _) if self._pending.is_stopping:
                    if asked_by is not None:
                        self._out.append(refused(asked_by, STOPPING, retryable=True))
                    self._rescale(self._rescaling.end())
                case TakeRescaleCheckpoint(asked_by, parallelism):
                    key = (
                        self._rescaling.own_checkpoint()
                        if asked_by is None
                        else self._pending.rescale(asked_by, parallelism, self._rescaling.leave)
                    )
                    self._ask(CheckpointRequested(key))
                case _:
                    self._out.append(effect)

    def _ask(self, event: CheckpointRequested | StopWithSavepointRequested) -> None:
        self._out.append(AskForSnapshot(event))
