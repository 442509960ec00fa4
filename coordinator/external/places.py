"""Where the programs of an external task with rows go: to the TaskManagers that its attempts were deployed on.

Decides which attempts count, those that are not over, and in which order programs try their TaskManagers: one after the
other, so that all find a place wherever those are that are free. It does not know who is let in there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from snapline.coordinator.execution.execution_graph import ExecutionGraph
from snapline.dataflow.graph.jobgraph import JobGraph
from snapline.dataflow.ids import AllocationID, ExecutionAttemptID, JobID, ResourceID


def tasks_with_rows(job_graph: JobGraph) -> frozenset[str]:
    """Names of the external tasks that are operators of the job."""
    return frozenset(each.external_task for vertex in job_graph.vertices for each in vertex.operators) - {""}


@dataclass(frozen=True, slots=True)
class PlaceOfAttempt:
    """Where an attempt of an external task with rows was deployed."""

    address: str
    """Where its TaskManager listens, as host:port."""
    attempt_id: ExecutionAttemptID
    allocation_id: AllocationID
    """The id of its slot's allocation, with which tickets for the place are signed."""


def places_of(graph: ExecutionGraph, task: str, addresses: Mapping[ResourceID, str]) -> Sequence[PlaceOfAttempt]:
    """Where the attempts of the task are that are not over; `addresses`: those of the TaskManagers."""
    vertices = {
        vertex.vertex_id
        for vertex in graph.job_graph.vertices
        if any(each.external_task == task for each in vertex.operators)
    }
    return [
        PlaceOfAttempt(addresses[execution.resource_id], execution.attempt_id, execution.allocation_id)
        for execution in graph.executions
        if execution.attempt_id.vertex_id in vertices
        and not execution.state.is_terminal
        and execution.resource_id in addresses
    ]


class ProgramTurns:
    """Whose turn it is among the attempts of each task."""

    def __init__(self) -> None:
        self._sent: Counter[tuple[JobID, str]] = Counter()

    def next_of(self, job_id: JobID, task: str, places: Sequence[PlaceOfAttempt]) -> PlaceOfAttempt | None:
        """One of the places; None: there is none."""
        if not places:
            return None
        self._sent[job_id, task] += 1
        return places[self._sent[job_id, task] % len(places)]
