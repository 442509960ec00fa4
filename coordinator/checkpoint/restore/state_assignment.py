"""What each subtask of a job starts with, given the state of all operators in a snapshot.

Decides what maps, what would be dropped, what is new, and the handles of every new subtask; moves handles, never data,
and changes nothing. Does not know where the snapshot came from. Mirrors Flink's StateAssignmentOperation,
TaskStateAssignment and VertexFinishedStateChecker. Rules:

* State finds its operator by operator id. State without an operator is an error unless non-restored state is allowed;
  an operator without any state may be dropped silently.
* The max parallelism belongs to the state: a vertex that did not ask for one takes over that of the snapshot; one that
  asked for another, or has more subtasks than key groups, is refused.
* Keyed state: every handle whose key groups overlap with the subtask's. Handles may cover more; the task reads its
  ranges.
* Operator state: `operator_state_redistribution`. In-flight data: `snapline.dataflow.snapshot.channel_state`.
* A vertex whose operators had all finished is restored as finished. With unchanged parallelism so is a single finished
  subtask, unless it now reads from one that goes on, because its producers were rescaled.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

from snapline.coordinator.checkpoint.restore.operator_state_redistribution import redistribute_operator_state
from snapline.coordinator.execution.deployment import producers_of_consumer
from snapline.dataflow.graph.jobgraph import JobEdge, JobVertex, OperatorNode
from snapline.dataflow.ids import ExecutionVertexID, JobVertexID, OperatorID
from snapline.dataflow.key_groups import (
    compute_key_group_range_for_operator_index,
    compute_operator_index_for_key_group,
)
from snapline.dataflow.partitioning import Partitioning
from snapline.dataflow.snapshot.channel_state import (
    ChannelStateNotRescalable,
    EdgeRescaling,
    redistribute_input_channel_state,
    redistribute_output_channel_state,
)
from snapline.dataflow.snapshot.handles import (
    ChannelStateHandle,
    KeyedStateHandle,
    OperatorState,
    OperatorStateHandle,
    OperatorSubtaskState,
    TaskStateSnapshot,
)


@dataclass(frozen=True, slots=True)
class RestorePlan:
    """How the operators of a snapshot and of a job fit together (what `snapline plan` prints)."""

    mapped: tuple[tuple[OperatorState, JobVertex, OperatorNode], ...]
    """State that finds its operator."""
    dropped: tuple[OperatorState, ...]
    """State of the snapshot for which the job has no operator."""
    new: tuple[tuple[JobVertex, OperatorNode], ...]
    """Operators without an entry in the snapshot."""
    max_parallelism: Mapping[JobVertexID, int] = field(default_factory=dict)
    """Vertices that take over another max parallelism."""


@dataclass(frozen=True, slots=True)
class AssignmentRefused:
    """The snapshot does not fit the job; `detail` names the culprit and the way out."""

    detail: str


@dataclass(frozen=True, slots=True)
class StateAssignment:
    """What every subtask starts with."""

    plan: RestorePlan
    assignments: Mapping[ExecutionVertexID, TaskStateSnapshot]
    """Subtasks without state are left out."""
    restored_as_finished: frozenset[ExecutionVertexID]


def has_state(operator: OperatorState) -> bool:
    """Whether anything would be lost without this operator."""
    return any(_parts(state) for state in operator.subtasks.values())


def plan_restore(
    operators: Iterable[OperatorState], vertices: Sequence[JobVertex], *, allow_non_restored_state: bool
) -> RestorePlan | AssignmentRefused:
    """Match a snapshot with a job, without looking into the state."""
    nodes = {node.operator_id: (vertex, node) for vertex in vertices for node in vertex.operators}
    mapped: list[tuple[OperatorState, JobVertex, OperatorNode]] = []
    dropped: list[OperatorState] = []
    max_parallelism: dict[JobVertexID, int] = {}
    keyed: dict[JobVertexID, tuple[OperatorState, OperatorNode]] = {}
    found: set[OperatorID] = set()
    for operator in operators:
        target = nodes.get(operator.operator_id)
        if target is None:
            if has_state(operator):
                dropped.append(operator)
            continue
        vertex, node = target
        found.add(operator.operator_id)
        mapped.append((operator, vertex, node))
        refusal = _check_parallelism(operator, vertex, node)
        if refusal is not None:
            return refusal
        if any(state.managed_keyed for state in operator.subtasks.values()):
            first, first_node = keyed.setdefault(vertex.vertex_id, (operator, node))
            if first.max_parallelism != operator.max_parallelism:
                return AssignmentRefused(
                    f"operators {first_node.uid!r} and {node.uid!r} are one chain now ({vertex.name}), and their state was taken "
                    f"with max parallelism {first.max_parallelism} and {operator.max_parallelism}: call start_new_chain() on the second"
                )
        if operator.max_parallelism != vertex.max_parallelism:
            # State by key decides before any other; an operator without any is heard only when the vertex may choose,
            # and nothing else has decided.
            if has_state(operator):
                max_parallelism[vertex.vertex_id] = operator.max_parallelism
            elif not vertex.max_parallelism_explicit and operator.max_parallelism >= vertex.parallelism:
                max_parallelism.setdefault(vertex.vertex_id, operator.max_parallelism)
    if dropped and not allow_non_restored_state:
        names = ", ".join(_label(operator) for operator in dropped)
        return AssignmentRefused(
            f"the snapshot holds state of {names}, and the job has no operator with that uid: give the operator its old uid, "
            "or allow non-restored state (--allow-non-restored-state) to drop it"
        )
    for vertex in vertices:
        if vertex.vertex_id in max_parallelism and vertex.vertex_id in keyed:
            max_parallelism[vertex.vertex_id] = keyed[vertex.vertex_id][0].max_parallelism
    new = tuple((vertex, node) for operator_id, (vertex, node) in nodes.items() if operator_id not in found)
    return RestorePlan(tuple(mapped), tuple(dropped), new, max_parallelism)


def assign_states(
    operators: Sequence[OperatorState],
    vertices: Sequence[JobVertex],
    edges: Sequence[JobEdge],
    *,
    allow_non_restored_state: bool,
) -> StateAssignment | AssignmentRefused:
    """The whole assignment, or why there is none."""
    plan = plan_restore(operators, vertices, allow_non_restored_state=allow_non_restored_state)
    if isinstance(plan, AssignmentRefused):
        return plan
    by_operator = {operator.operator_id: operator for operator in operators}
    refusal = _check_finished(vertices, edges, by_operator) or _check_in_flight(vertices, edges, by_operator)
    if refusal is not None:
        return refusal
    assignments: dict[ExecutionVertexID, TaskStateSnapshot] = {}
    as_finished: set[ExecutionVertexID] = set()
    rescaling = _EdgeRescalings(vertices, edges, by_operator)
    for vertex in vertices:
        finished = _finished_subtasks(vertex, by_operator) - _fed_subtasks(vertex, vertices, edges, as_finished)
        states: list[dict[OperatorID, OperatorSubtaskState]] = [{} for _ in range(vertex.parallelism)]
        for node in vertex.operators:
            operator = by_operator.get(node.operator_id)
            if operator is None or operator.fully_finished:
                continue
            try:
                assigned = _operator_assignment(operator, vertex, rescaling)
            except ChannelStateNotRescalable as error:
                return AssignmentRefused(f"operator {node.uid!r} ({vertex.name}): {error}")
            for subtask, state in enumerate(assigned):
                if _parts(state):
                    states[subtask][node.operator_id] = state
        for subtask in range(vertex.parallelism):
            task = ExecutionVertexID(vertex.vertex_id, subtask)
            if subtask in finished:
                as_finished.add(task)
                assignments[task] = TaskStateSnapshot(is_task_finished=True)
            elif states[subtask]:
                assignments[task] = TaskStateSnapshot(states[subtask])
    return StateAssignment(plan, assignments, frozenset(as_finished))


# --- preconditions ----------------------------------------------------------------------------------------------------


def _check_parallelism(operator: OperatorState, vertex: JobVertex, node: OperatorNode) -> AssignmentRefused | None:
    if not has_state(operator):
        return None
    if operator.max_parallelism < vertex.parallelism:
        return AssignmentRefused(
            f"operator {node.uid!r} ({vertex.name}) has parallelism {vertex.parallelism}, and its state was taken with max "
            f"parallelism {operator.max_parallelism}: lower the parallelism to at most {operator.max_parallelism}"
        )
    if operator.max_parallelism != vertex.max_parallelism and vertex.max_parallelism_explicit:
        return AssignmentRefused(
            f"operator {node.uid!r} ({vertex.name}) was given max parallelism {vertex.max_parallelism}, and its state was "
            f"taken with {operator.max_parallelism}, which cannot change: set it to {operator.max_parallelism}, or leave it out"
        )
    return None


class _Ended(Enum):
    """How many subtasks had finished when the snapshot was taken."""

    NONE = "none"
    SOME = "some"
    ALL = "all"


def _ended_in(operator: OperatorState | None) -> _Ended:
    if operator is None:
        return _Ended.NONE
    if operator.fully_finished:
        return _Ended.ALL
    return _Ended.SOME if operator.finished_subtasks else _Ended.NONE


def _check_finished(
    vertices: Sequence[JobVertex], edges: Sequence[JobEdge], by_operator: Mapping[OperatorID, OperatorState]
) -> AssignmentRefused | None:
    """A chain has finished as a whole, and nothing that has finished reads from something that has not. So it is with
    single subtasks that have, because what they held is gone; but a rescale may put others before them."""
    ended: dict[JobVertexID, _Ended] = {}
    for vertex in vertices:
        found = {_ended_in(by_operator.get(node.operator_id)) for node in vertex.operators}
        if len(found) > 1:
            return AssignmentRefused(
                f"some operators of {vertex.name} had finished when the snapshot was taken and others had not (or are new): "
                "the chain has changed; start from a snapshot that was taken before they finished"
            )
        ended[vertex.vertex_id] = found.pop()
    for edge in edges:
        before, behind = ended[edge.source], ended[edge.target]
        goes_on = before is _Ended.NONE or (before is _Ended.SOME and edge.partitioning is Partitioning.HASH)
        if (behind is _Ended.ALL and before is not _Ended.ALL) or (behind is _Ended.SOME and goes_on):
            names = {vertex.vertex_id: vertex.name for vertex in vertices}
            whole = names[edge.target] if behind is _Ended.ALL else f"a part of {names[edge.target]}"
            return AssignmentRefused(
                f"{whole} had finished when the snapshot was taken, and now reads from {names[edge.source]}, "
                "which had not: start from a snapshot that was taken before it finished"
            )
    return None


def _finished_subtasks(vertex: JobVertex, by_operator: Mapping[OperatorID, OperatorState]) -> frozenset[int]:
    operators = [by_operator.get(node.operator_id) for node in vertex.operators]
    if any(operator is None for operator in operators):
        return frozenset()
    finished = frozenset(range(vertex.parallelism))
    for operator in operators:
        if operator is None or operator.fully_finished:
            continue
        if operator.parallelism != vertex.parallelism:
            return frozenset()
        finished &= frozenset(operator.finished_subtasks)
    return finished


def _fed_subtasks(
    vertex: JobVertex,
    vertices: Sequence[JobVertex],
    edges: Sequence[JobEdge],
    as_finished: Collection[ExecutionVertexID],
) -> frozenset[int]:
    """Subtasks that read from one that goes on. After a rescale of its producers that may be one that had finished,
    too: it must not drop what they send. Producers are decided before their consumers."""
    parallelism = {other.vertex_id: other.parallelism for other in vertices}
    fed: set[int] = set()
    for edge in edges:
        if edge.target != vertex.vertex_id:
            continue
        producers = parallelism[edge.source]
        for subtask in range(vertex.parallelism):
            read = (
                producers_of_consumer(subtask, producers, vertex.parallelism)
                if edge.partitioning.is_pointwise
                else range(producers)
            )
            if any(ExecutionVertexID(edge.source, producer) not in as_finished for producer in read):
                fed.add(subtask)
    return frozenset(fed)


def _check_in_flight(
    vertices: Sequence[JobVertex], edges: Sequence[JobEdge], by_operator: Mapping[OperatorID, OperatorState]
) -> AssignmentRefused | None:
    """Data in flight belongs to the inputs of a chain's head, or to the outputs of its tail; none may get lost, or come
    to another edge: these are known by their places."""
    heads = {vertex.vertex_id: vertex.operators[0].operator_id for vertex in vertices}
    for vertex in vertices:
        inputs = [edge.source_operator in by_operator for edge in edges if edge.target == vertex.vertex_id]
        outputs = [heads[edge.target] in by_operator for edge in edges if edge.source == vertex.vertex_id]
        for position, node in enumerate(vertex.operators):
            operator = by_operator.get(node.operator_id)
            states = () if operator is None else operator.subtasks.values()
            gates = {handle.gate_or_partition for state in states for handle in state.input_channel}
            partitions = {handle.gate_or_partition for state in states for handle in state.output_channel}
            is_head, is_tail = position == 0, position == len(vertex.operators) - 1
            if (gates and not (is_head and _has_its_place(gates, inputs))) or (
                partitions and not (is_tail and _has_its_place(partitions, outputs))
            ):
                return AssignmentRefused(
                    f"the snapshot holds data in flight at operator {node.uid!r} ({vertex.name}) for an input or output that "
                    "it does not have any more, or that has another place among them now: take a savepoint, which holds "
                    "none, before changing the shape of the job"
                )
    return None


def _has_its_place(parts: Collection[int], known: Sequence[bool]) -> bool:
    """Whether data in flight of these inputs or outputs is where it was. `known`: of all there are now, whether the
    snapshot knows their other end; one that it does not know has moved those behind it."""
    moved = known.index(False) if False in known and True in known[known.index(False) :] else len(known)
    return max(parts) < moved


# --- the parts of one operator ----------------------------------------------------------------------------------------


def _operator_assignment(
    operator: OperatorState, vertex: JobVertex, rescaling: _EdgeRescalings
) -> Sequence[OperatorSubtaskState]:
    empty = OperatorSubtaskState()
    parallelism = vertex.parallelism
    old = [operator.subtasks.get(subtask, empty) for subtask in range(operator.parallelism)]
    operator_states: Sequence[tuple[OperatorStateHandle, ...]] = [()] * parallelism
    if any(state.managed_operator for state in old):
        operator_states = redistribute_operator_state([state.managed_operator for state in old], parallelism)
    inputs: Sequence[tuple[ChannelStateHandle, ...]] = [()] * parallelism
    if any(state.input_channel for state in old):
        handles = {subtask: state.input_channel for subtask, state in enumerate(old)}
        inputs = redistribute_input_channel_state(handles, rescaling.of_gates(vertex.vertex_id), parallelism)
    outputs: Sequence[tuple[ChannelStateHandle, ...]] = [()] * parallelism
    if any(state.output_channel for state in old):
        handles = {subtask: state.output_channel for subtask, state in enumerate(old)}
        outputs = redistribute_output_channel_state(handles, rescaling.of_partitions(vertex.vertex_id), parallelism)
    unchanged = operator.parallelism == parallelism
    return [
        OperatorSubtaskState(
            managed_keyed=(
                old[subtask].managed_keyed
                if unchanged
                else _keyed_handles(old, operator.max_parallelism, parallelism, subtask)
            ),
            managed_operator=operator_states[subtask],
            input_channel=inputs[subtask],
            output_channel=outputs[subtask],
        )
        for subtask in range(parallelism)
    ]


def _keyed_handles(
    old: Sequence[OperatorSubtaskState], max_parallelism: int, parallelism: int, subtask: int
) -> tuple[KeyedStateHandle, ...]:
    own = compute_key_group_range_for_operator_index(max_parallelism, parallelism, subtask)
    first = compute_operator_index_for_key_group(max_parallelism, len(old), own.start)
    last = compute_operator_index_for_key_group(max_parallelism, len(old), own.end)
    return tuple(
        handle
        for state in old[first : last + 1]
        for handle in state.managed_keyed
        if len(handle.key_group_range.intersect(own))
    )


class _EdgeRescalings:
    """Both ends of every edge, in the snapshot and in the job; by position among a vertex's inputs or outputs."""

    def __init__(
        self, vertices: Sequence[JobVertex], edges: Sequence[JobEdge], by_operator: Mapping[OperatorID, OperatorState]
    ) -> None:
        new = {vertex.vertex_id: vertex.parallelism for vertex in vertices}
        heads = {vertex.vertex_id: _old_parallelism(vertex, vertex.operators, by_operator) for vertex in vertices}
        tails = {vertex.vertex_id: _old_parallelism(vertex, vertex.operators[::-1], by_operator) for vertex in vertices}
        self._gates: dict[JobVertexID, list[EdgeRescaling]] = {}
        self._partitions: dict[JobVertexID, list[EdgeRescaling]] = {}
        for edge in edges:
            source, target = edge.source, edge.target
            rescaling = EdgeRescaling(edge.partitioning, tails[source], new[source], heads[target], new[target])
            self._gates.setdefault(target, []).append(rescaling)
            self._partitions.setdefault(source, []).append(rescaling)

    def of_gates(self, vertex_id: JobVertexID) -> Sequence[EdgeRescaling]:
        return self._gates.get(vertex_id, ())

    def of_partitions(self, vertex_id: JobVertexID) -> Sequence[EdgeRescaling]:
        return self._partitions.get(vertex_id, ())


def _old_parallelism(
    vertex: JobVertex, nodes: Iterable[OperatorNode], by_operator: Mapping[OperatorID, OperatorState]
) -> int:
    """That of the first of these operators which the snapshot knows: operators of one chain may have been apart."""
    known = (by_operator[node.operator_id].parallelism for node in nodes if node.operator_id in by_operator)
    return next(known, vertex.parallelism)


def _parts(state: OperatorSubtaskState) -> bool:
    return bool(state.managed_keyed or state.managed_operator or state.input_channel or state.output_channel)


def _label(operator: OperatorState) -> str:
    return repr(operator.uid) if operator.uid else f"operator {operator.operator_id}"
