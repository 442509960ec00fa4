"""A running job gets another parallelism, with as short a pause as can be: slots first, then a checkpoint, then the
restart.

Decides when the next step may come. The job runs until all slots are there and the checkpoint is complete, so neither
is part of the pause; a rescale whose slots do not come in time, or whose checkpoint fails, leaves the job as it is.
While slots are waited for, the latest request counts: to the parallelism that the job has, it only ends the waiting. In
reactive mode it decides by itself, when the slots have been another number than the job has use for long enough. It
does not know how slots are asked for, nor how the job restarts. Takes the role of Flink's AdaptiveScheduler states
Executing and CreatingExecutionGraph.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum

from snapline.coordinator.checkpoint.events import CheckpointRequestID
from snapline.coordinator.execution.execution_graph import with_parallelism
from snapline.coordinator.execution.slot_sharing import required_programs, required_slots
from snapline.coordinator.jobmaster.job_master_settings import JobMasterSettings
from snapline.coordinator.jobmaster.operations import Acknowledged, Reply, RequestID
from snapline.coordinator.jobmaster.pending_operations import refused
from snapline.coordinator.jobmaster.scheduler import Scheduler
from snapline.dataflow.ids import JobVertexID, ResourceID
from snapline.dataflow.wire.messages import JobStatus
from snapline.runtime.cores.machine import CancelTimer, CollectedEffects, StartTimer, check

MAX_DOUBLINGS = 8
MAX_WAIT_MS = 60_000
"""The wait after checkpoints that failed becomes no longer than this, unless one without failures is."""
OWN_PREFIX = "reactive-"
"""What the ids of checkpoints that nobody asked for begin with."""


@dataclass(frozen=True, slots=True)
class RescaleTimer:
    """Timer key: slots did not come in time; or, in reactive mode, the slots have been as they are for long enough."""


class RescalePhase(Enum):
    """Where a rescale stands between its request and its end."""

    NONE = "none"
    WAITING_FOR_SLOTS = "waiting for slots"
    CHECKPOINTING = "waiting for its checkpoint"


@dataclass(frozen=True, slots=True)
class TakeRescaleCheckpoint:
    """All slots are there: take the checkpoint that the job restarts from."""

    request_id: RequestID | None
    """The client that waits; None: the job's own decision, and the checkpoint is asked for as `own_checkpoint`."""
    parallelism: Mapping[JobVertexID, int]


RescalingEffect = TakeRescaleCheckpoint | Reply | StartTimer | CancelTimer
"""A Reply says that the job goes on as it is."""


class Rescaling:
    """The rescale of one job, from the request to the restart."""

    def __init__(self, scheduler: Scheduler, settings: JobMasterSettings, note: Callable[[], str]) -> None:
        """`note`: what the ResourceManager said last about slots that it cannot give."""
        self._scheduler = scheduler
        self._settings = settings
        self._note = note
        self._phase = RescalePhase.NONE
        self._request_id: RequestID | None = None
        self.parallelism: Mapping[JobVertexID, int] = {}
        """That the job is to have."""
        self.leave: tuple[ResourceID, ...] = ()
        """TaskManagers that the job is to have no slots of any more."""
        self._slots = 0
        self._programs: Mapping[str, int] = {}
        """Programs outside, by external task."""
        self._timer_runs = False
        self._own_requests = 0
        self._watched_slots = -1
        """In reactive mode: the number of slots that is being watched, until it has been the same for long enough."""
        self._own_failures = 0
        """In reactive mode: how many checkpoints for the present slots have failed; each doubles the wait."""
        self._failed_slots = -1
        """In reactive mode: the number of slots that the checkpoint which failed last was for."""
        self._out: CollectedEffects[RescalingEffect] = CollectedEffects()

    def request(
        self,
        request_id: RequestID,
        parallelism: Mapping[JobVertexID, int],
        now_ms: int,
        leave: tuple[ResourceID, ...] = (),
    ) -> list[RescalingEffect]:
        """A client wants another parallelism, which the job can run with, or that it leaves TaskManagers: as many slots
        elsewhere are waited for as it has there, but in reactive mode, where it leaves with those that are there. A
        request that still waits for slots gives way."""
        if self._scheduler.reactive is not None and not leave:
            summary = "the job follows its slots (scheduler-mode is reactive): start or stop TaskManagers instead"
            return [refused(request_id, summary)]
        if self._phase is RescalePhase.CHECKPOINTING:
            summary = "only a running job can be rescaled; it is being rescaled, and waits for its checkpoint"
            return [refused(request_id, summary, retryable=True)]
        if self._phase is RescalePhase.WAITING_FOR_SLOTS:
            self._refuse("another rescale was asked for before the slots of this one were there; it was not rescaled")
        has = self._has()
        to_leave = sum(len(self._scheduler.pool.allocations_of(resource_id)) for resource_id in leave)
        if has == {**has, **parallelism} and not to_leave:
            self._out.append(Reply(request_id, Acknowledged()))
            return self._out.take()
        if self._scheduler.reactive is not None:
            return self._leave_for_what_is_there(request_id, leave, to_leave)
        wanted = with_parallelism(self._scheduler.graph.job_graph, parallelism)
        self._slots, self._programs = required_slots(wanted) + to_leave, required_programs(wanted)
        self._phase, self._request_id, self.leave = RescalePhase.WAITING_FOR_SLOTS, request_id, leave
        self.parallelism = {**has, **parallelism} if leave else parallelism
        self._scheduler.require_slots(self._slots, self._programs)
        self._start_timer(now_ms + self._settings.slot_request_timeout_ms)
        return self._out.take()

    def _leave_for_what_is_there(
        self, request_id: RequestID, leave: tuple[ResourceID, ...], to_leave: int
    ) -> list[RescalingEffect]:
        """In reactive mode: the job gets the parallelism that its slots elsewhere allow, and nothing is waited for."""
        scheduler = self._scheduler
        if scheduler.status is not JobStatus.RUNNING:
            return [refused(request_id, f"the job is {scheduler.status.value}; it was not rescaled", retryable=True)]
        elsewhere = len(scheduler.pool) - to_leave
        wanted = check(scheduler.reactive, "only a job in reactive mode takes what there is").of(elsewhere)
        if wanted is None:
            summary = f"its {elsewhere} slots elsewhere are too few for anything to run: start more TaskManagers"
            return [refused(request_id, summary, retryable=True)]
        self._stop_timer()
        self._phase, self._request_id, self.leave = RescalePhase.CHECKPOINTING, request_id, leave
        self.parallelism, self._slots, self._programs = wanted, 0, {}
        self._out.append(TakeRescaleCheckpoint(request_id, wanted))
        return self._out.take()

    @property
    def slots_missing(self) -> int:
        """How many of those that a client's rescale has waited for are gone again."""
        return self._scheduler.pool.lacks(self._slots, self._programs)

    @property
    def detail(self) -> str:
        """What a rescale waits for, one line; empty when there is none."""
        match self._phase:
            case RescalePhase.NONE:
                return ""
            case RescalePhase.CHECKPOINTING:
                return f"being rescaled: {self._phase.value}"
            case RescalePhase.WAITING_FOR_SLOTS:
                waited_for = self._scheduler.pool.shortage(self._slots, self._programs, self._note())
                limit = f"for at most {self._settings.slot_request_timeout_ms} ms (slot.request.timeout)"
                return f"runs as it was, to be rescaled: {self._phase.value}: {waited_for}; {limit}"

    def own_checkpoint(self) -> CheckpointRequestID:
        """An id for the checkpoint of a rescale that no client waits for."""
        self._own_requests += 1
        return CheckpointRequestID(f"{OWN_PREFIX}{self._own_requests}")

    def advance(self, now_ms: int) -> list[RescalingEffect]:
        """Take the next step, if what it waits for is there. In reactive mode, look whether the job can use other
        slots."""
        if self._phase is RescalePhase.WAITING_FOR_SLOTS:
            if self._scheduler.status is not JobStatus.RUNNING:
                self._refuse(f"the job is {self._scheduler.status.value}; it was not rescaled")
            elif not self.slots_missing:
                self._stop_timer()
                self._phase = RescalePhase.CHECKPOINTING
                self._out.append(TakeRescaleCheckpoint(self._request_id, self.parallelism))
        elif self._phase is RescalePhase.NONE and self._scheduler.reactive is not None:
            slots = len(self._scheduler.pool)
            if self._wanted() is None:
                self._watched_slots, self._own_failures = -1, 0
                self._stop_timer()
            elif self._watched_slots != slots:
                self._watched_slots = slots
                if self._failed_slots != slots:
                    self._own_failures = 0
                settle_ms = self._settings.resource_stabilization_ms
                wait_ms = settle_ms << min(self._own_failures, MAX_DOUBLINGS)
                if self._scheduler.has_all_slots and not self._own_failures:
                    wait_ms = 0
                self._start_timer(now_ms + min(wait_ms, max(settle_ms, MAX_WAIT_MS)))
        return self._out.take()

    def timer_fired(self, now_ms: int) -> list[RescalingEffect]:
        """Go on because RescaleTimer has fired: slots have not come in time, or have settled."""
        self._timer_runs = False
        if self._phase is RescalePhase.WAITING_FOR_SLOTS:
            self._refuse(
                f"there are not enough slots for this parallelism after {self._settings.slot_request_timeout_ms} ms: "
                f"{self._scheduler.pool.shortage(self._slots, self._programs, self._note())}; it goes on as it is: start more "
                "TaskManagers or programs, or choose a lower parallelism"
            )
        elif self._phase is RescalePhase.NONE and (wanted := self._wanted()) is not None:
            self._phase, self._request_id, self.parallelism = RescalePhase.WAITING_FOR_SLOTS, None, wanted
            self._slots, self._programs = 0, {}  # those that are there
        return self._out.take() + self.advance(now_ms)

    def checkpoint_failed(self) -> list[RescalingEffect]:
        """A client's checkpoint failed: that of a rescale, if one waits for it."""
        return self.end() if self._phase is RescalePhase.CHECKPOINTING and self._request_id is not None else []

    def own_checkpoint_failed(self) -> list[RescalingEffect]:
        """In reactive mode: the job goes on as it is, and tries again, less and less often."""
        self._own_failures, self._failed_slots = self._own_failures + 1, self._watched_slots
        return self.end()

    def end(self) -> list[RescalingEffect]:
        """The restart begins, or the rescale is given up."""
        self._reset()
        return self._out.take()

    def _reset(self) -> None:
        self._phase, self._request_id, self._watched_slots = RescalePhase.NONE, None, -1
        self.leave = ()
        self._stop_timer()
        if not self._scheduler.is_over:
            self._scheduler.require_slots()

    def _wanted(self) -> Mapping[JobVertexID, int] | None:
        """In reactive mode: the parallelism that a running job should have instead of its own."""
        scheduler = self._scheduler
        if scheduler.reactive is None or scheduler.status is not JobStatus.RUNNING:
            return None
        wanted = scheduler.reactive.of(len(scheduler.pool))
        return None if wanted == self._has() else wanted

    def _has(self) -> Mapping[JobVertexID, int]:
        """The parallelism of the job, as it is."""
        return {vertex.vertex_id: vertex.parallelism for vertex in self._scheduler.graph.job_graph.vertices}

    def _refuse(self, why: str) -> None:
        if self._request_id is not None:
            self._out.append(refused(self._request_id, why, retryable=True))
        self._reset()

    def _start_timer(self, at_ms: int) -> None:
        self._timer_runs = True
        self._out.append(StartTimer(RescaleTimer(), at_ms))

    def _stop_timer(self) -> None:
        if self._timer_runs:
            self._timer_runs = False
            self._out.append(CancelTimer(RescaleTimer()))


def is_own(request_id: CheckpointRequestID) -> bool:
    """Whether no client waits for it."""
    return request_id.startswith(OWN_PREFIX)
