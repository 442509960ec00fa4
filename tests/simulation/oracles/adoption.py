"""A killed leader restarts no task, when all TaskManagers live and nothing else went wrong.

Watches what JobMasters report: one that follows another goes from RECONCILING to RUNNING, not to RESTARTING, when the
job was RUNNING before and no task has been ended since. Stopping with a savepoint excuses: its tasks stand still, and
the job may have to start again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from snapline.coordinator.jobmaster.effects import ForgetJobGraph, ReportJobStatus
from snapline.coordinator.jobmaster.events import OperationRequested
from snapline.coordinator.jobmaster.operations import CancelJob, StopWithSavepoint
from snapline.dataflow.ids import JobID
from snapline.dataflow.wire.messages import ExecutionState, JobStatus
from snapline.taskmanager.executor.effects import CancelTaskExecution, FailTaskExecution
from snapline.taskmanager.executor.events import TaskEnteredState
from snapline.testing.simulated.world import Violation
from tests.simulation.liars import LIES
from tests.simulation.options import Options

HARMLESS = frozenset(
    {
        "kill coordinator",
        "expire session",
        "lose answers of zookeeper",
        "slow storage",
        "user exception",
        "slow task",
        "failing commit",
        "duplicate messages",
        LIES,
    }
)
"""Faults that break no connection of a TaskManager with a leader that lives, or end a task visibly."""


@dataclass
class _Job:
    """What is known of one job."""

    is_running: bool = False
    """As the last leader said that moved it."""
    task_managers: frozenset[str] = frozenset()
    """That were there then."""
    statuses: dict[str, JobStatus] = field(default_factory=dict)
    """Last one of each JobMaster."""


class AdoptionOracle:
    """Watches JobMasters and TaskExecutors."""

    def __init__(self, options: Options, alive: Callable[[], frozenset[str]]) -> None:
        """`alive`: names of the TaskManagers that are there."""
        self._applies = options.faults.enabled <= HARMLESS
        self._alive = alive
        self._jobs: dict[JobID, _Job] = {}
        self.adoptions = 0
        """Leaders that took a running job over as it was."""

    def observe(self, name: str, event: Any, effects: list[Any]) -> None:
        """What a core was told and wants. Raises Violation."""
        if not self._applies:
            return
        if _ends_tasks(event, effects):
            for job in self._jobs.values():
                job.is_running = False
        for effect in effects:
            if type(effect) is ForgetJobGraph:  # it is over: who finds it all the same starts it again
                self._jobs.setdefault(effect.job_id, _Job()).is_running = False
            elif type(effect) is ReportJobStatus:
                self._status(name, effect.change.job_id, effect.change.status)

    def _status(self, name: str, job_id: JobID, status: JobStatus) -> None:
        job = self._jobs.setdefault(job_id, _Job())
        before, job.statuses[name] = job.statuses.get(name), status
        if status is JobStatus.RUNNING:
            self.adoptions += before is JobStatus.RECONCILING
            job.is_running, job.task_managers = True, self._alive()
        elif status in (JobStatus.CREATED, JobStatus.RECONCILING, JobStatus.SUSPENDED):
            return  # says nothing about the tasks
        else:
            if before is JobStatus.RECONCILING and job.is_running and job.task_managers <= self._alive():
                raise Violation(f"{name} restarts {job_id}, which was running when its leader was lost: {status.value}")
            job.is_running = False


def _ends_tasks(event: Any, effects: list[Any]) -> bool:
    if type(event) is TaskEnteredState:
        return event.state in (ExecutionState.FAILED, ExecutionState.CANCELED)
    if type(event) is OperationRequested:
        return isinstance(event.operation, StopWithSavepoint | CancelJob)
    return any(isinstance(effect, CancelTaskExecution | FailTaskExecution) for effect in effects)
