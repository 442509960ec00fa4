"""ExecutionGraph: the subtasks of a job, the attempts to run them, and which states may follow which.

Decides only what is legal: an attempt and the job move along two tables, and everything that can be asked about a whole
set of attempts is counted while they move, so that no question walks over all subtasks. Who moves them, and why, is
decided by the scheduler of `coordinator.jobmaster`. Mirrors Flink's DefaultExecutionGraph, ExecutionVertex and
Execution; there, an Execution talks to its TaskManager itself, here nothing talks.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from snapline.dataflow.failures import SerializedFailure
from snapline.dataflow.graph.jobgraph import JobGraph, JobVertex
from snapline.dataflow.ids import AllocationID, ExecutionAttemptID, ExecutionVertexID, JobVertexID, ResourceID
from snapline.dataflow.key_groups import check_parallelism
from snapline.dataflow.partitioning import Partitioning
from snapline.dataflow.wire.messages import ExecutionState, JobStatus
from snapline.runtime.cores.machine import InvariantViolation, check

MAX_SUBTASKS = 1 << 17
MAX_NAME = 10_000
"""Bounds of one job: an execution of each subtask takes a kilobyte, in this coordinator and in every one that
follows."""

_TERMINAL = frozenset(state for state in ExecutionState if state.is_terminal)

EXECUTION_TRANSITIONS: Mapping[ExecutionState, frozenset[ExecutionState]] = {
    ExecutionState.CREATED: frozenset({ExecutionState.SCHEDULED, ExecutionState.CANCELED, ExecutionState.FAILED}),
    ExecutionState.SCHEDULED: frozenset({ExecutionState.DEPLOYING, ExecutionState.CANCELED, ExecutionState.FAILED}),
    ExecutionState.DEPLOYING: frozenset(
        {
            ExecutionState.INITIALIZING,
            ExecutionState.RUNNING,
            ExecutionState.FINISHED,
            ExecutionState.CANCELING,
            ExecutionState.FAILED,
        }
    ),
    ExecutionState.INITIALIZING: frozenset(
        {ExecutionState.RUNNING, ExecutionState.FINISHED, ExecutionState.CANCELING, ExecutionState.FAILED}
    ),
    ExecutionState.RUNNING: frozenset({ExecutionState.FINISHED, ExecutionState.CANCELING, ExecutionState.FAILED}),
    ExecutionState.CANCELING: frozenset({ExecutionState.CANCELED}),
    ExecutionState.FINISHED: frozenset(),
    ExecutionState.CANCELED: frozenset(),
    ExecutionState.FAILED: frozenset(),
}
"""Life of an attempt. Nothing follows a terminal state; an attempt that is being cancelled ends CANCELED, however it
ends."""

JOB_STATUS_TRANSITIONS: Mapping[JobStatus, frozenset[JobStatus]] = {
    JobStatus.CREATED: frozenset(
        {
            JobStatus.RUNNING,
            JobStatus.RESTARTING,
            JobStatus.RECONCILING,
            JobStatus.FAILING,
            JobStatus.CANCELLING,
            JobStatus.SUSPENDED,
        }
    ),
    JobStatus.RECONCILING: frozenset(
        {JobStatus.RUNNING, JobStatus.RESTARTING, JobStatus.FAILING, JobStatus.CANCELLING, JobStatus.SUSPENDED}
    ),
    JobStatus.RUNNING: frozenset(
        {JobStatus.RESTARTING, JobStatus.FAILING, JobStatus.CANCELLING, JobStatus.FINISHED, JobStatus.SUSPENDED}
    ),
    JobStatus.RESTARTING: frozenset({JobStatus.RUNNING, JobStatus.FAILING, JobStatus.CANCELLING, JobStatus.SUSPENDED}),
    JobStatus.FAILING: frozenset({JobStatus.FAILED, JobStatus.CANCELLING, JobStatus.SUSPENDED}),
    JobStatus.CANCELLING: frozenset({JobStatus.CANCELED, JobStatus.SUSPENDED}),
    JobStatus.FAILED: frozenset(),
    JobStatus.CANCELED: frozenset(),
    JobStatus.FINISHED: frozenset(),
    JobStatus.SUSPENDED: frozenset(),
}
"""Life of a job under one leader. RUNNING means: every subtask runs or has finished; until then the job is CREATED or
RESTARTING (Flink says RUNNING as soon as it begins to look for slots)."""


@dataclass(slots=True)
class Execution:
    """One attempt to run one subtask."""

    attempt_id: ExecutionAttemptID
    state: ExecutionState
    state_since_ms: int
    allocation_id: AllocationID = AllocationID("")
    """The slot of the attempt; empty until it is deployed."""
    resource_id: ResourceID = ResourceID("")
    """The TaskManager it was deployed to; empty until then."""
    confirmed: bool = False
    """The TaskManager has spoken about it, so it must show up in every heartbeat from now on."""
    failure: SerializedFailure | None = None
    timestamps_ms: dict[ExecutionState, int] = field(default_factory=dict)
    """When it entered each state."""

    @property
    def vertex(self) -> ExecutionVertexID:
        """Return the subtask that this is an execution of."""
        return self.attempt_id.execution_vertex_id


class ExecutionGraph:
    """All subtasks of one job with their current attempts, and the status of the job."""

    def __init__(self, job_graph: JobGraph, execution_graph_id: str, now_ms: int, first_attempt: int = 0) -> None:
        """Every subtask begins with its first attempt, CREATED. Raises ValueError for a graph that cannot be run."""
        check_job_graph(job_graph)
        self.job_graph = job_graph
        self.execution_graph_id = execution_graph_id
        self.status = JobStatus.CREATED
        self.status_since_ms: dict[JobStatus, int] = {JobStatus.CREATED: now_ms}
        """When each status was entered last."""
        self.job_vertices: dict[JobVertexID, JobVertex] = {vertex.vertex_id: vertex for vertex in job_graph.vertices}
        self._current: dict[ExecutionVertexID, Execution] = {}
        self._by_attempt: dict[ExecutionAttemptID, Execution] = {}
        self._count = dict.fromkeys(ExecutionState, 0)
        for vertex in job_graph.vertices:
            for index in range(vertex.parallelism):
                subtask = ExecutionVertexID(vertex.vertex_id, index)
                self._begin_attempt(subtask, execution_graph_id, first_attempt, now_ms)

    def _begin_attempt(self, vertex: ExecutionVertexID, graph_id: str, attempt_number: int, now_ms: int) -> None:
        attempt_id = ExecutionAttemptID(graph_id, vertex.vertex_id, vertex.subtask_index, attempt_number)
        execution = Execution(attempt_id, ExecutionState.CREATED, now_ms)
        execution.timestamps_ms[ExecutionState.CREATED] = now_ms
        self._current[vertex] = execution
        self._by_attempt[attempt_id] = execution
        self._count[ExecutionState.CREATED] += 1

    # --- reading ------------------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        """Return the number of subtasks of the job."""
        return len(self._current)

    @property
    def vertices(self) -> Iterable[ExecutionVertexID]:
        """All subtasks, in topological order of their vertices."""
        return self._current.keys()

    @property
    def executions(self) -> Iterable[Execution]:
        """The current attempt of every subtask."""
        return self._current.values()

    def current(self, vertex: ExecutionVertexID) -> Execution:
        """The current attempt of a subtask."""
        return self._current[vertex]

    def find(self, attempt_id: ExecutionAttemptID) -> Execution | None:
        """The current attempt with this id; None for one of the past or of another leader."""
        return self._by_attempt.get(attempt_id)

    def count(self, *states: ExecutionState) -> int:
        """How many current attempts are in one of the states."""
        return sum(self._count[state] for state in states)

    @property
    def all_finished(self) -> bool:
        """Return whether every subtask of the job has finished."""
        return self._count[ExecutionState.FINISHED] == len(self._current)

    @property
    def all_terminal(self) -> bool:
        """No attempt is or will be on a TaskManager."""
        return self.count(*_TERMINAL) == len(self._current)

    @property
    def all_running_or_finished(self) -> bool:
        """What makes the job RUNNING."""
        return self.count(ExecutionState.RUNNING, ExecutionState.FINISHED) == len(self._current)

    def task_name(self, vertex: ExecutionVertexID) -> str:
        """`name (1/4)`, as Flink prints it."""
        job_vertex = self.job_vertices[vertex.vertex_id]
        return f"{job_vertex.name} ({vertex.subtask_index + 1}/{job_vertex.parallelism})"

    # --- moving -------------------------------------------------------------------------------------------------------

    def use_max_parallelism(self, max_parallelism: Mapping[JobVertexID, int]) -> None:
        """A restored snapshot fixes the number of key groups of these vertices."""
        if not max_parallelism:
            return
        vertices = tuple(
            replace(vertex, max_parallelism=max_parallelism.get(vertex.vertex_id, vertex.max_parallelism))
            for vertex in self.job_graph.vertices
        )
        self.job_graph = replace(self.job_graph, vertices=vertices)
        self.job_vertices = {vertex.vertex_id: vertex for vertex in vertices}

    def rescaled(self, parallelism: Mapping[JobVertexID, int], now_ms: int) -> ExecutionGraph:
        """The same job with another parallelism of these vertices, in the same status; every attempt of this graph must
        be over, and no attempt id comes again. Raises ValueError when the job cannot run so."""
        check(self.count(*_TERMINAL, ExecutionState.CREATED) == len(self._current), "an attempt is not over")
        next_attempt = 1 + max(execution.attempt_id.attempt_number for execution in self.executions)
        graph = ExecutionGraph(
            with_parallelism(self.job_graph, parallelism), self.execution_graph_id, now_ms, next_attempt
        )
        graph.status = self.status
        graph.status_since_ms = dict(self.status_since_ms)
        return graph

    def transition_job(self, status: JobStatus, now_ms: int) -> None:
        """Move the job along its table."""
        check(
            status in JOB_STATUS_TRANSITIONS[self.status],
            f"job {self.job_graph.job_id} cannot go from {self.status.value} to {status.value}",
        )
        self.status = status
        self.status_since_ms[status] = now_ms

    def transition(self, execution: Execution, state: ExecutionState, now_ms: int) -> None:
        """Move a current attempt along its table."""
        if (
            self._by_attempt.get(execution.attempt_id) is not execution
        ):  # not check(): its text would be built every time
            raise InvariantViolation(f"{execution.attempt_id} is not current")
        if state not in EXECUTION_TRANSITIONS[execution.state]:
            raise InvariantViolation(
                f"attempt {execution.attempt_id} cannot go from {execution.state.value} to {state.value}"
            )
        self._count[execution.state] -= 1
        self._count[state] += 1
        execution.state = state
        execution.state_since_ms = execution.timestamps_ms[state] = now_ms

    def adopt(
        self,
        attempt_id: ExecutionAttemptID,
        state: ExecutionState,
        allocation_id: AllocationID,
        resource_id: ResourceID,
        now_ms: int,
    ) -> Execution:
        """An attempt that another leader deployed is the current one of its subtask, instead of one that never was
        deployed. Attempts of the subtask that follow belong to its execution graph, so that no attempt id comes
        again."""
        vertex = attempt_id.execution_vertex_id
        old = self._current[vertex]
        check(old.state is ExecutionState.CREATED, f"{old.attempt_id} is {old.state.value}, and was to be replaced")
        del self._by_attempt[old.attempt_id]
        self._count[old.state] -= 1
        execution = Execution(attempt_id, state, now_ms, allocation_id, resource_id, confirmed=True)
        execution.timestamps_ms[state] = now_ms
        self._current[vertex] = execution
        self._by_attempt[attempt_id] = execution
        self._count[state] += 1
        return execution

    def reset_for_new_execution(self, vertices: Iterable[ExecutionVertexID], now_ms: int) -> None:
        """Begin a new attempt of each of these subtasks, whose attempts are over (Flink: same name)."""
        for vertex in vertices:
            old = self._current[vertex]
            if not old.state.is_terminal:
                raise InvariantViolation(f"{old.attempt_id} is still {old.state.value}")
            self._count[old.state] -= 1
            del self._by_attempt[old.attempt_id]
            graph_id, number = old.attempt_id.execution_graph_id, old.attempt_id.attempt_number
            self._begin_attempt(vertex, graph_id, number + 1, now_ms)


def check_job_graph(job_graph: JobGraph) -> None:
    """Raise ValueError, naming vertex or edge, when the graph cannot be expanded."""
    if not job_graph.vertices:
        raise ValueError(f"job {job_graph.name!r} has no vertices: define a source and a sink before you execute")
    names = [job_graph.name, *(vertex.name for vertex in job_graph.vertices)]
    names += [operator.uid for vertex in job_graph.vertices for operator in vertex.operators]
    for name in names:
        if not name.isprintable() or len(name) > MAX_NAME:
            raise ValueError(
                f"the name {name[:100]!r} has characters that cannot be printed, or more than {MAX_NAME}: lists and logs show "
                "names as they are"
            )
    seen: dict[JobVertexID, JobVertex] = {}
    for vertex in job_graph.vertices:
        if vertex.vertex_id in seen:
            raise ValueError(f"job {job_graph.name!r}: two vertices have the id {vertex.vertex_id}")
        try:
            check_parallelism(vertex.max_parallelism, vertex.parallelism)
        except ValueError as error:
            raise ValueError(f"vertex {vertex.name!r}: {error}") from error
        seen[vertex.vertex_id] = vertex
    subtasks = sum(vertex.parallelism for vertex in job_graph.vertices)
    if subtasks > MAX_SUBTASKS:
        raise ValueError(
            f"job {job_graph.name!r} has {subtasks} subtasks, and a coordinator takes {MAX_SUBTASKS} at most: lower the parallelism"
        )
    position = {vertex_id: index for index, vertex_id in enumerate(seen)}
    edge_ids: set[str] = set()
    for edge in job_graph.edges:
        if edge.edge_id in edge_ids:
            raise ValueError(f"job {job_graph.name!r}: two edges have the id {edge.edge_id!r}")
        edge_ids.add(edge.edge_id)
        if edge.source not in seen or edge.target not in seen:
            raise ValueError(f"edge {edge.edge_id!r} connects a vertex that is not in the job")
        if position[edge.source] >= position[edge.target]:
            raise ValueError(f"edge {edge.edge_id!r} goes backwards: vertices must stand in topological order")
        _check_forward(edge.edge_id, edge.partitioning.value, seen[edge.source], seen[edge.target])


def _check_forward(edge_id: str, partitioning: str, source: JobVertex, target: JobVertex) -> None:
    if partitioning == "forward" and source.parallelism != target.parallelism:
        raise ValueError(
            f"edge {edge_id!r} is forward, but {source.name!r} has parallelism {source.parallelism} and "
            f"{target.name!r} {target.parallelism}: give both the same, or rebalance"
        )


def with_parallelism(job_graph: JobGraph, parallelism: Mapping[JobVertexID, int]) -> JobGraph:
    """The job with another parallelism of these vertices; what hands out splits stays one task. Raises ValueError when
    it cannot run so."""
    unknown = parallelism.keys() - {vertex.vertex_id for vertex in job_graph.vertices}
    if unknown:
        raise ValueError(f"job {job_graph.name!r} has no vertex {min(unknown)}")
    alone = {edge.source for edge in job_graph.edges if edge.partitioning is Partitioning.DEMAND}
    rescaled = replace(
        job_graph,
        vertices=tuple(
            replace(
                vertex,
                parallelism=1 if vertex.vertex_id in alone else parallelism.get(vertex.vertex_id, vertex.parallelism),
                submitted_parallelism=vertex.submitted_parallelism or vertex.parallelism,
            )
            for vertex in job_graph.vertices
        ),
    )
    check_job_graph(rescaled)
    return rescaled


def subtasks_of(job_vertex: JobVertex) -> Iterator[ExecutionVertexID]:
    """The subtasks of one vertex."""
    return (ExecutionVertexID(job_vertex.vertex_id, index) for index in range(job_vertex.parallelism))
