"""Reconciliation: what still runs of a job whose JobMaster was lost, and whether it can be taken over as it is.

TaskManagers report every attempt that they run, and those that have finished. The job can be adopted when one set of
attempts, of one execution graph, accounts for every subtask: by an attempt that is deployed, initializing or running in
a slot that this JobMaster has; by one that has finished; or by the latest completed checkpoint, which says that the
subtask had finished, when nobody runs it (its TaskManager may be gone, or have given its last slot of the job back). It
cannot be adopted, at once, when the newest attempt of a subtask has failed or is ending, was being stopped with a
savepoint, or when the job ran with another parallelism. Everything else is waited for. Of two attempts of one subtask
the later one counts; the other is cancelled by whoever adopts. Who reports an attempt in a slot that no coordinator
has given it is not heard.

A complete set is consistent: a region is only deployed after all its earlier attempts have ended, and as a whole, so
that the attempts of a region have one number. An attempt with a lower one, such as one that finished before the region
was restarted, counts for nothing; nor does one that took no part in the latest completed checkpoint, unless that says
that the subtask had finished: it was cut off, and a leader in between ran the job without it, or it finished before the
job was rescaled, and another attempt has its number now. Knows no messages, timers or checkpoints. Goes beyond Flink,
where a new JobMaster always restarts the job.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace

from snapline.coordinator.execution.given_slots import IsGiven
from snapline.dataflow.failures import SerializedFailure
from snapline.dataflow.ids import AllocationID, CheckpointID, ExecutionAttemptID, ExecutionVertexID, ResourceID
from snapline.dataflow.wire.messages import AcknowledgeCheckpoint, ExecutionReport, ExecutionState

ADOPTABLE = frozenset(
    {ExecutionState.DEPLOYING, ExecutionState.INITIALIZING, ExecutionState.RUNNING, ExecutionState.FINISHED}
)


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
class AdoptionRefused:
    """What runs cannot be taken over."""

    reason: str
    failure: SerializedFailure | None = None
    """The failure of the task that failed, if that is the reason."""


@dataclass(frozen=True, slots=True)
class Adoptable:
    """One attempt for each subtask."""

    executions: tuple[ReportedExecution, ...]
    """In the order of the job's subtasks."""
    others: tuple[ReportedExecution, ...]
    """Executions that were reported and that the stored graph does not want."""

    @property
    def running(self) -> tuple[ExecutionAttemptID, ...]:
        """Return the attempts that go on under this leader."""
        return tuple(each.report.attempt_id for each in self.executions if not each.report.state.is_terminal)

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

    def __init__(
        self,
        subtasks: Iterable[ExecutionVertexID],
        region_of: Callable[[ExecutionVertexID], ExecutionVertexID],
        own_graph_id: str,
        is_given: IsGiven,
        place_of: Callable[[ExecutionVertexID], object],
    ) -> None:
        """Nothing. `subtasks`: all of the job. `region_of`: what stands for the failover region of a subtask.
        `own_graph_id`: an execution graph of which there is no attempt yet. `is_given`: whether a coordinator has given
        the job this slot on this TaskManager. `place_of`: what has a slot of its own, for all subtasks
        that share it."""
        self._subtasks = dict.fromkeys(subtasks)
        self._region_of = region_of
        self._own_graph_id = own_graph_id
        self._is_given = is_given
        self._place_of = place_of
        self._reported: dict[ExecutionAttemptID, ReportedExecution] = {}

    def report(self, resource_id: ResourceID, reports: Sequence[ExecutionReport]) -> list[ExecutionReport]:
        """A TaskManager says what it runs: all of it; returns what is believed. An attempt runs where it was reported
        first."""
        self.forget(resource_id)
        slots = dict.fromkeys(report.allocation_id for report in reports)
        given = {allocation_id for allocation_id in slots if self._is_given(resource_id, allocation_id, "")}
        believed = [
            report for report in reports if report.allocation_id in given and report.attempt_id not in self._reported
        ]
        self._reported.update((report.attempt_id, ReportedExecution(resource_id, report)) for report in believed)
        return believed

    def state_changed(
        self,
        resource_id: ResourceID,
        attempt_id: ExecutionAttemptID,
        state: ExecutionState,
        failure: SerializedFailure | None,
    ) -> None:
        """An attempt that this TaskManager reported has entered another state."""
        known = self._reported.get(attempt_id)
        if known is not None and known.resource_id == resource_id:
            report = replace(known.report, state=state, failure=failure)
            self._reported[attempt_id] = replace(known, report=report)

    def end_of_data(self, resource_id: ResourceID, attempt_id: ExecutionAttemptID) -> None:
        """An attempt that this TaskManager reported has no more data."""
        known = self._reported.get(attempt_id)
        if known is not None and known.resource_id == resource_id:
            self._reported[attempt_id] = replace(known, report=replace(known.report, end_of_data=True))

    def forget(self, resource_id: ResourceID) -> None:
        """The TaskManager is gone, or will say it again."""
        self._reported = {k: v for k, v in self._reported.items() if v.resource_id != resource_id}

    def slots_in_use(self, resource_id: ResourceID) -> frozenset[AllocationID]:
        """The slots of this TaskManager in which something runs."""
        return frozenset(each.report.allocation_id for each in self.live() if each.resource_id == resource_id)

    def live(self) -> tuple[ReportedExecution, ...]:
        """Everything that runs, wanted or not."""
        return tuple(each for each in self._reported.values() if not each.report.state.is_terminal)

    def decide(
        self,
        has_slot: Callable[[ResourceID, AllocationID], bool],
        latest_id: CheckpointID,
        finished: Collection[ExecutionVertexID] = (),
    ) -> Waiting | AdoptionRefused | Adoptable:
        """What to do now. `has_slot`: the slot was offered to us by this TaskManager. `latest_id`: the latest completed
        checkpoint, 0 for none. `finished`: subtasks that had finished in it."""
        graphs = dict.fromkeys(attempt_id.execution_graph_id for attempt_id in self._reported)
        fewest_missing = len(self._subtasks)
        refusal: AdoptionRefused | None = None
        complete: list[Adoptable] = []
        for graph_id in graphs:
            newest = self._newest_of(graph_id, latest_id, finished)
            why = self._why_not(newest)
            if why is not None:
                refusal = why
                continue
            chosen = self._accounted_for(graph_id, newest, has_slot, self._known_to_have_finished(finished))
            fewest_missing = min(fewest_missing, len(self._subtasks) - len(chosen))
            if len(chosen) == len(self._subtasks):
                wanted = {each.report.attempt_id for each in chosen}
                others = tuple(each for each in self.live() if each.report.attempt_id not in wanted)
                complete.append(Adoptable(chosen, others))
        if len(complete) == 1:
            return complete[0] if self._is_possible(complete[0]) else AdoptionRefused("a slot is said to be two places")
        if complete:
            return AdoptionRefused("the job runs twice")
        # an execution graph that is beyond adoption does not matter while another one may still become complete
        if refusal is not None and fewest_missing == len(self._subtasks):
            return refusal
        return Waiting(fewest_missing)

    def _is_possible(self, adoptable: Adoptable) -> bool:
        """Whether each place has one slot, and each slot is one place: a TaskManager may say anything."""
        live = [each.report for each in adoptable.executions if not each.report.state.is_terminal]
        pairs = {(self._place_of(each.attempt_id.execution_vertex_id), each.allocation_id) for each in live}
        return len(pairs) == len({place for place, _ in pairs}) == len({slot for _, slot in pairs})

    def _newest_of(
        self, graph_id: str, latest_id: CheckpointID, finished: Collection[ExecutionVertexID]
    ) -> dict[ExecutionVertexID, ReportedExecution]:
        """The newest attempt of each subtask in one execution graph, without those that are older than their region,
        and those that run, or have finished, and do not go on from the latest checkpoint."""
        newest: dict[ExecutionVertexID, ReportedExecution] = {}
        of_region: dict[ExecutionVertexID, int] = {}
        for attempt_id, reported in self._reported.items():
            report, subtask = reported.report, attempt_id.execution_vertex_id
            is_over, number = report.state.is_terminal, attempt_id.attempt_number
            has_failed = is_over and report.state is not ExecutionState.FINISHED
            is_known = has_failed or (is_over and subtask in finished) or report.goes_on_from(latest_id)
            if attempt_id.execution_graph_id != graph_id or not is_known:
                continue
            if subtask not in self._subtasks:
                if not is_over:
                    newest[subtask] = reported
                continue  # it ended before the job was rescaled
            region = self._region_of(subtask)
            of_region[region] = max(number, of_region.get(region, number))
            known = newest.get(subtask)
            if known is None or known.report.attempt_id.attempt_number < number:
                newest[subtask] = reported
        return {
            subtask: reported
            for subtask, reported in newest.items()
            if subtask not in self._subtasks
            or reported.report.attempt_id.attempt_number == of_region[self._region_of(subtask)]
        }

    def _why_not(self, newest: dict[ExecutionVertexID, ReportedExecution]) -> AdoptionRefused | None:
        for subtask, reported in newest.items():
            report = reported.report
            if subtask not in self._subtasks:
                return AdoptionRefused(f"{report.attempt_id} is no subtask of the job: it ran with another parallelism")
            if report.stopping and not report.state.is_terminal:
                return AdoptionRefused(f"{report.attempt_id} was being stopped with a savepoint")
            if report.state not in ADOPTABLE:
                return AdoptionRefused(f"{report.attempt_id} is {report.state.value}", report.failure)
        return None

    def _known_to_have_finished(self, finished: Collection[ExecutionVertexID]) -> frozenset[ExecutionVertexID]:
        """The finished subtasks of the checkpoint that nobody runs (again), in whatever execution graph."""
        run = {
            attempt_id.execution_vertex_id
            for attempt_id, reported in self._reported.items()
            if reported.report.state is not ExecutionState.FINISHED
        }
        return frozenset(finished) - run

    def _accounted_for(
        self,
        graph_id: str,
        newest: dict[ExecutionVertexID, ReportedExecution],
        has_slot: Callable[[ResourceID, AllocationID], bool],
        finished: frozenset[ExecutionVertexID],
    ) -> tuple[ReportedExecution, ...]:
        """In the order of the job's subtasks."""
        number_of = {self._region_of(s): each.report.attempt_id.attempt_number for s, each in newest.items()}
        chosen = []
        for subtask in self._subtasks:
            found = newest.get(subtask)
            if found is None and subtask in finished:
                number = number_of.get(self._region_of(subtask))
                graph = (graph_id, number) if number is not None else (self._own_graph_id, 0)
                attempt_id = ExecutionAttemptID(graph[0], subtask.vertex_id, subtask.subtask_index, graph[1])
                ended = ExecutionReport(attempt_id, ExecutionState.FINISHED, AllocationID(""))
                chosen.append(ReportedExecution(ResourceID(""), ended))
            elif found is not None and (
                found.report.state is ExecutionState.FINISHED or has_slot(found.resource_id, found.report.allocation_id)
            ):
                chosen.append(found)
        return tuple(chosen)
