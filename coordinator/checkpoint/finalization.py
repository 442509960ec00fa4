"""From the acknowledgements of all tasks to the state of all operators.

Decides what stands in a completed checkpoint for each operator, finished tasks included, and refuses acknowledgements
that make none. Knows nothing of when or why. Mirrors PendingCheckpoint.updateOperatorState and
DefaultCheckpointPlan.fulfillFinishedTaskStatus of Flink.

Finished tasks: a vertex whose subtasks have all finished is stored as fully finished, and is only ended again on
restore. Of a vertex of which some have finished, the others' state is stored and the finished ones are named. Union
list state of such a vertex would lack the part of the finished ones; Flink refuses that checkpoint. Here a finished
task's union state is carried over from the checkpoint that it finished with, and from there on through every later one,
also across restores of all tasks or of one region: it lies in the acknowledgement itself, whatever the threshold,
unless it is very large. Then the checkpoint is refused that it would finish with while others go on: once it had ended,
no checkpoint could complete, and those that wait for their last one would wait for ever. Where no checkpoints are
taken by themselves tasks finish with none: a savepoint is refused then, but only for union states of functions.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from snapline.dataflow.failures import CheckpointFailureReason
from snapline.dataflow.graph.jobgraph import JobVertex
from snapline.dataflow.ids import ExecutionAttemptID, ExecutionVertexID, JobVertexID, OperatorID
from snapline.dataflow.snapshot.handles import (
    UNION_STATES_OF_THE_ENGINE,
    ByteStreamStateHandle,
    OperatorState,
    OperatorStateHandle,
    OperatorStateMode,
    OperatorSubtaskState,
    TaskStateSnapshot,
)


@dataclass(frozen=True, slots=True)
class FinalizeRefused:
    """Everybody acknowledged, and yet this cannot be a checkpoint."""

    detail: str
    reason: CheckpointFailureReason = CheckpointFailureReason.FINALIZE_CHECKPOINT_FAILURE


def operator_states_of(
    vertices: Iterable[JobVertex],
    acknowledged: Mapping[ExecutionAttemptID, TaskStateSnapshot],
    finished_tasks: Iterable[ExecutionAttemptID],
    final_states: Mapping[ExecutionAttemptID, TaskStateSnapshot],
    restored_as_finished: frozenset[ExecutionVertexID],
    left_states: Mapping[ExecutionVertexID, TaskStateSnapshot] = MappingProxyType({}),
) -> tuple[OperatorState, ...] | FinalizeRefused:
    """The state of every operator of the job, in topological order.

    `final_states`: what finished tasks acknowledged last, in a completed checkpoint. `restored_as_finished`: subtasks
    that had finished before the restore; an acknowledgement of theirs that says so stands for a finished task.
    `left_states`: see `left_states_of`; it speaks where `final_states` is silent.
    """
    by_vertex: dict[JobVertexID, dict[int, TaskStateSnapshot]] = {}
    finished: dict[JobVertexID, dict[int, ExecutionAttemptID]] = {}
    for attempt, snapshot in acknowledged.items():
        if restored_as_finished and snapshot.is_task_finished and attempt.execution_vertex_id in restored_as_finished:
            finished.setdefault(attempt.vertex_id, {})[attempt.subtask_index] = attempt
        elif snapshot.operators:
            by_vertex.setdefault(attempt.vertex_id, {})[attempt.subtask_index] = snapshot
    for attempt in finished_tasks:
        finished.setdefault(attempt.vertex_id, {})[attempt.subtask_index] = attempt
    operators: list[OperatorState] = []
    for vertex in vertices:
        ended = finished.get(vertex.vertex_id, {})
        final = {
            subtask: final_states.get(attempt, left_states.get(attempt.execution_vertex_id))
            for subtask, attempt in ended.items()
        }
        built = _vertex_states(vertex, by_vertex.get(vertex.vertex_id, {}), final)
        if isinstance(built, FinalizeRefused):
            return built
        operators.extend(built)
    return tuple(operators)


def left_states_of(
    operators: Iterable[OperatorState], vertices: Iterable[JobVertex], tasks: Container[ExecutionVertexID]
) -> dict[ExecutionVertexID, TaskStateSnapshot]:
    """What the subtasks `tasks` left behind in a completed checkpoint: all that there will ever be of those that had
    finished in it, or have finished with it. Nothing of a vertex that had another parallelism."""
    by_operator = {operator.operator_id: operator for operator in operators}
    left: dict[ExecutionVertexID, TaskStateSnapshot] = {}
    for vertex in vertices:
        known = [by_operator[node.operator_id] for node in vertex.operators if node.operator_id in by_operator]
        if any(operator.parallelism != vertex.parallelism for operator in known):
            continue
        for subtask in range(vertex.parallelism):
            task = ExecutionVertexID(vertex.vertex_id, subtask)
            if task in tasks:
                left[task] = TaskStateSnapshot(
                    {one.operator_id: one.subtasks[subtask] for one in known if subtask in one.subtasks}
                )
    return left


def _vertex_states(
    vertex: JobVertex,
    snapshots: Mapping[int, TaskStateSnapshot],
    finished: Mapping[int, TaskStateSnapshot | None],
) -> list[OperatorState] | FinalizeRefused:
    """`finished`: subtasks that have ended, with their final state as far as it is at hand."""
    known = {node.operator_id for node in vertex.operators}
    for subtask, snapshot in snapshots.items():
        if not known.issuperset(snapshot.operators):
            stranger = next(operator for operator in snapshot.operators if operator not in known)
            return FinalizeRefused(
                f"{vertex.name} ({subtask + 1}/{vertex.parallelism}) acknowledged state of operator {stranger}, which is "
                "not part of its chain"
            )
    states = []
    for node in vertex.operators:
        operator_id = node.operator_id
        subtasks = {
            subtask: snapshot.operators[operator_id]
            for subtask, snapshot in sorted(snapshots.items())
            if operator_id in snapshot.operators
        }
        stays = _subtask_that_must_stay(operator_id, vertex, snapshots, finished)
        if stays is not None:
            return FinalizeRefused(
                f"operator {node.uid!r} ({vertex.name}) uses union list state, of which that of subtask {stays}, which has "
                "finished, is too large to be carried over: checkpoints go on when all of its subtasks have finished; raise "
                "execution.checkpointing.data-inline-threshold, or use list state that is split"
            )
        if finished and len(finished) < vertex.parallelism:
            carried = _carried_union_state(operator_id, subtasks.values(), finished)
            if carried is None:
                return FinalizeRefused(
                    f"operator {node.uid!r} ({vertex.name}) uses union list state, and of its subtasks "
                    f"{sorted(finished)} have finished with union state that is not at hand any more: checkpoints go on "
                    "when all of them have finished; list state that is split works at any time"
                )
            subtasks |= carried
        states.append(
            OperatorState(
                operator_id=operator_id,
                uid=node.uid,
                name=node.name,
                parallelism=vertex.parallelism,
                max_parallelism=vertex.max_parallelism,
                subtasks=subtasks,
                fully_finished=len(finished) == vertex.parallelism,
                finished_subtasks=tuple(sorted(finished)) if len(finished) < vertex.parallelism else (),
            )
        )
    return states


def _subtask_that_must_stay(
    operator_id: OperatorID,
    vertex: JobVertex,
    snapshots: Mapping[int, TaskStateSnapshot],
    finished: Mapping[int, TaskStateSnapshot | None],
) -> int | None:
    """A subtask that would end with this checkpoint, before others, with union state that cannot be carried over."""
    ending = [subtask for subtask, snapshot in sorted(snapshots.items()) if snapshot.is_task_finished]
    if len(ending) + len(finished) >= vertex.parallelism:
        return None
    for subtask in ending:
        state = snapshots[subtask].operators.get(operator_id, OperatorSubtaskState())
        parts = (_union_part(handle) for handle in state.managed_operator)
        if any(part is not None and not isinstance(part.handle, ByteStreamStateHandle) for part in parts):
            return subtask
    return None


def _carried_union_state(
    operator_id: OperatorID,
    running: Iterable[OperatorSubtaskState],
    finished: Mapping[int, TaskStateSnapshot | None],
) -> dict[int, OperatorSubtaskState] | None:
    """Union state of finished subtasks; None when some is needed and not at hand."""
    uses_union = any(
        entry.mode is OperatorStateMode.UNION and entry.name not in UNION_STATES_OF_THE_ENGINE
        for state in running
        for handle in state.managed_operator
        for entry in handle.entries
    )
    carried: dict[int, OperatorSubtaskState] = {}
    for subtask, final in finished.items():
        if final is None:
            if uses_union:
                return None
            continue
        state = final.operators.get(operator_id, OperatorSubtaskState())
        parts = tuple(part for handle in state.managed_operator if (part := _union_part(handle)) is not None)
        if any(not isinstance(part.handle, ByteStreamStateHandle) for part in parts):
            return None
        if parts:
            carried[subtask] = OperatorSubtaskState(managed_operator=parts)
    return carried


def _union_part(handle: OperatorStateHandle) -> OperatorStateHandle | None:
    entries = tuple(entry for entry in handle.entries if entry.mode is OperatorStateMode.UNION)
    return OperatorStateHandle(handle.handle, entries) if entries else None
