"""Reconciliation: what still runs of a job whose JobMaster was lost, and whether it can be taken over as it is.

TaskManagers report every attempt that they run. The job can be adopted when one set of attempts, of one execution graph, covers
every subtask with an attempt that is deployed, initializing or running, in a slot that this JobMaster has. It cannot be adopted, at
once, when the newest attempt of a subtask has ended or is ending, was being stopped with a savepoint, or when the job ran with another
parallelism. Everything else is
waited for. Of two attempts of one subtask the later one counts; the other is cancelled by whoever adopts.

A complete set is always consistent: the tasks of a region are only deployed after all their earlier attempts have ended, so no
subtask of an older deployment can stand beside one of a newer. Knows no messages, timers or checkpoints. Goes beyond Flink, where
a new JobMaster always restarts the job.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from dataflow.failures import SerializedFailure
from dataflow.ids import AllocationID, CheckpointID, ExecutionAttemptID, ExecutionVertexID, ResourceID
from dataflow.messages import AcknowledgeCheckpoint, ExecutionReport, ExecutionState

ADOPTABLE = frozenset({ExecutionState.DEPLOYING, ExecutionState.INITIALIZING, ExecutionState.RUNNING})


@dataclass(frozen=True, slots=True)
class ReportedExecution:
    """One attempt and where it is."""

    resource_id: ResourceID
    report: ExecutionReport


@dataclass(frozen=True, slots=True)
class Waiting:
    """Not everything is accounted for."""

    missing: int
    """Subtasks that nobody reports, or whose slot was not offered yet."""


@dataclass(frozen=True, slots=True)
class Refused:
    """What runs cannot be taken over."""

    reason: str
    failure: SerializedFailure | None = None
    """Of the task that failed, if that is the reason."""


@dataclass(frozen=True, slots=True)
class Adoptable:
    """One attempt for each subtask."""

    executions: tuple[ReportedExecution, ...]
    """In the order of the job's subtasks."""
    others: tuple[ReportedExecution, ...]
    """Reported besides, not wanted."""

    @property
    def unconfirmed(self) -> tuple[AcknowledgeCheckpoint, ...]:
        """Acknowledgements that nobody has answered."""
        return tuple(message for each in self.executions for message in each.report.unconfirmed)

    def seen_after(self, checkpoint_id: CheckpointID) -> tuple[CheckpointID, ...]:
        """Checkpoints beyond this one that tasks have heard of, rising."""
        seen = {each.report.last_checkpoint_id for each in self.executions}
        seen.update(message.checkpoint_id for message in self.unconfirmed)
        return tuple(sorted(seen_id for seen_id in seen if seen_id > checkpoint_id))


class Reconciliation:
    """What was reported so far."""

    def __init__(self, subtasks: Iterable[ExecutionVertexID]) -> None:
        """Nothing. `subtasks`: all of the job."""
        self._subtasks = dict.fromkeys(subtasks)
        self._reported: dict[ExecutionAttemptID, ReportedExecution] = {}

    def report(self, resource_id: ResourceID, reports: Iterable[ExecutionReport]) -> None:
        """A TaskManager says what it runs: all of it."""
        self.forget(resource_id)
        for report in reports:
            self._reported[report.attempt_id] = ReportedExecution(resource_id, report)

    def state_changed(
        self, attempt_id: ExecutionAttemptID, state: ExecutionState, failure: SerializedFailure | None
    ) -> None:
        """An attempt that was reported has entered another state."""
        known = self._reported.get(attempt_id)
        if known is not None:
            report = replace(known.report, state=state, failure=failure)
            self._reported[attempt_id] = replace(known, report=report)

    def end_of_data(self, attempt_id: ExecutionAttemptID) -> None:
        """An attempt that was reported has no more data."""
        known = self._reported.get(attempt_id)
        if known is not None:
            self._reported[attempt_id] = replace(known, report=replace(known.report, end_of_data=True))

    def forget(self, resource_id: ResourceID) -> None:
        """The TaskManager is gone, or will say it again."""
        self._reported = {k: v for k, v in self._reported.items() if v.resource_id != resource_id}

    def live(self) -> tuple[ReportedExecution, ...]:
        """Everything that runs, wanted or not."""
        return tuple(each for each in self._reported.values() if not each.report.state.is_terminal)

    def decide(self, has_slot: Callable[[ResourceID, AllocationID], bool]) -> Waiting | Refused | Adoptable:
        """What to do now. `has_slot`: the slot was offered to us by this TaskManager."""
        graphs = dict.fromkeys(attempt_id.execution_graph_id for attempt_id in self._reported)
        fewest_missing = len(self._subtasks)
        refusal: Refused | None = None
        complete: list[Adoptable] = []
        for graph_id in graphs:
            newest = self._newest_of(graph_id)
            why = self._why_not(newest)
            if why is not None:
                refusal = why
                continue
            missing = sum(
                1
                for subtask in self._subtasks
                if (found := newest.get(subtask)) is None or not has_slot(found.resource_id, found.report.allocation_id)
            )
            fewest_missing = min(fewest_missing, missing)
            if missing == 0:
                chosen = tuple(newest[subtask] for subtask in self._subtasks)
                wanted = {each.report.attempt_id for each in chosen}
                others = tuple(each for each in self.live() if each.report.attempt_id not in wanted)
                complete.append(Adoptable(chosen, others))
        if len(complete) == 1:
            return complete[0]
        if complete:
            return Refused("the job runs twice")
        # an execution graph that is beyond adoption does not matter while another one may still become complete
        if refusal is not None and fewest_missing == len(self._subtasks):
            return refusal
        return Waiting(fewest_missing)

    def _newest_of(self, graph_id: str) -> dict[ExecutionVertexID, ReportedExecution]:
        newest: dict[ExecutionVertexID, ReportedExecution] = {}
        for attempt_id, reported in self._reported.items():
            if attempt_id.execution_graph_id != graph_id:
                continue
            subtask = attempt_id.execution_vertex_id
            known = newest.get(subtask)
            if known is None or known.report.attempt_id.attempt_number < attempt_id.attempt_number:
                newest[subtask] = reported
        return newest

    def _why_not(self, newest: dict[ExecutionVertexID, ReportedExecution]) -> Refused | None:
        for subtask, reported in newest.items():
            report = reported.report
            if subtask not in self._subtasks:
                return Refused(f"{report.attempt_id} is no subtask of the job: it ran with another parallelism")
            if report.stopping:
                return Refused(f"{report.attempt_id} was being stopped with a savepoint")
            if report.state not in ADOPTABLE:
                return Refused(f"{report.attempt_id} is {report.state.value}", report.failure)
        return None
