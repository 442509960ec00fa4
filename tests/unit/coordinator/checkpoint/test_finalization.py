"""From acknowledgements to operator states, with tasks that have finished."""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path

from snapline.coordinator.checkpoint.finalization import FinalizeRefused, operator_states_of
from snapline.dataflow.ids import ExecutionAttemptID, ExecutionVertexID, JobVertexID
from snapline.dataflow.key_groups import KeyGroupRange
from snapline.dataflow.snapshot.handles import (
    UNION_STATES_OF_THE_ENGINE,
    OperatorState,
    OperatorStateMode,
    OperatorSubtaskState,
    SegmentStateHandle,
    TaskStateSnapshot,
)
from snapline.taskmanager import operators
from snapline.taskmanager.operators.sources.source_operator import READERS_STATE
from tests.unit.coordinator.checkpoint.small_job import attempt, keyed, listed, snapshot, vertex

UNION = OperatorStateMode.UNION


def states_of(
    acknowledged: dict[ExecutionAttemptID, TaskStateSnapshot],
    finished: tuple[ExecutionAttemptID, ...] = (),
    final: dict[ExecutionAttemptID, TaskStateSnapshot] | None = None,
    restored: frozenset[ExecutionVertexID] = frozenset(),
) -> OperatorState | FinalizeRefused:
    result = operator_states_of([vertex("src", 2)], acknowledged, finished, final or {}, restored)
    return result if isinstance(result, FinalizeRefused) else result[0]


def test_operators_without_state_are_listed_too() -> None:
    """A restore can tell a stateless operator from one that is new."""
    result = states_of({attempt("src", 0): TaskStateSnapshot(), attempt("src", 1): TaskStateSnapshot()})

    assert isinstance(result, OperatorState)
    assert (result.parallelism, result.max_parallelism, dict(result.subtasks)) == (2, 8, {})


def test_state_by_subtask_in_order_of_the_index() -> None:
    """Whatever the order of the acknowledgements."""
    first, second = keyed("a", KeyGroupRange(0, 3)), keyed("b", KeyGroupRange(4, 7))

    result = states_of({attempt("src", 1): snapshot(src=second), attempt("src", 0): snapshot(src=first)})

    assert isinstance(result, OperatorState)
    assert list(result.subtasks.items()) == [(0, first), (1, second)]


def test_vertex_that_has_finished_is_fully_finished() -> None:
    """Nothing is stored but that."""
    result = states_of({}, (attempt("src", 0), attempt("src", 1)))

    assert isinstance(result, OperatorState)
    assert result.fully_finished
    assert result.finished_subtasks == ()


def test_finished_subtask_is_named() -> None:
    """The others' state is stored."""
    result = states_of({attempt("src", 1): snapshot(src=keyed("b"))}, (attempt("src", 0),))

    assert isinstance(result, OperatorState)
    assert not result.fully_finished
    assert result.finished_subtasks == (0,)
    assert set(result.subtasks) == {1}


def test_task_restored_as_finished_says_so_by_its_acknowledgement() -> None:
    """It runs only to end again, and counts as finished; a task that merely reached its end does not."""
    acknowledged = {
        attempt("src", 0): TaskStateSnapshot(is_task_finished=True),
        attempt("src", 1): TaskStateSnapshot(is_task_finished=True),
    }
    restored = frozenset({ExecutionVertexID(JobVertexID("src"), 0)})

    result = states_of(acknowledged, restored=restored)

    assert isinstance(result, OperatorState)
    assert result.finished_subtasks == (0,)


def test_union_state_of_a_finished_subtask_is_carried_over() -> None:
    """Its last acknowledged union state is the final one; other kinds of its state are not kept."""
    final = OperatorSubtaskState(
        managed_keyed=keyed("gone").managed_keyed,
        managed_operator=(
            *listed(UNION, b"x").managed_operator,
            *listed(OperatorStateMode.SPLIT_DISTRIBUTE, b"y", "s").managed_operator,
        ),
    )
    done = attempt("src", 0)

    result = states_of({attempt("src", 1): snapshot(src=listed(UNION, b"z"))}, (done,), {done: snapshot(src=final)})

    assert isinstance(result, OperatorState)
    assert result.subtasks[0] == listed(UNION, b"x")


def test_union_state_of_a_finished_subtask_in_a_file_is_refused() -> None:
    """The file goes with its checkpoint: refused by name, as Flink does."""
    in_file = OperatorSubtaskState(
        managed_operator=tuple(
            type(handle)(SegmentStateHandle("chk-1/f", 0, 1), handle.entries)
            for handle in listed(UNION, b"x").managed_operator
        )
    )
    done = attempt("src", 0)

    result = states_of({attempt("src", 1): snapshot(src=listed(UNION, b"z"))}, (done,), {done: snapshot(src=in_file)})

    assert isinstance(result, FinalizeRefused)
    assert "'src'" in result.detail


def test_a_subtask_with_union_state_in_a_file_does_not_finish_before_the_others() -> None:
    """Once it had ended, no checkpoint could complete, and the others would wait for their last one for ever."""
    in_file = OperatorSubtaskState(
        managed_operator=tuple(
            type(handle)(SegmentStateHandle("chk-1/f", 0, 1), handle.entries)
            for handle in listed(UNION, b"x").managed_operator
        )
    )
    ending = TaskStateSnapshot({**snapshot(src=in_file).operators}, is_task_finished=True)

    alone = states_of({attempt("src", 0): ending, attempt("src", 1): snapshot(src=in_file)})
    together = states_of({attempt("src", 0): ending, attempt("src", 1): ending})

    assert isinstance(alone, FinalizeRefused)
    assert isinstance(together, OperatorState)


def test_union_state_without_the_finished_part_is_refused() -> None:
    """The task ended without a last checkpoint: a restore would miss its part."""
    result = states_of({attempt("src", 1): snapshot(src=listed(UNION, b"z"))}, (attempt("src", 0),))

    assert isinstance(result, FinalizeRefused)


def test_what_sources_keep_for_themselves_does_not_need_the_finished_part() -> None:
    """Who takes no checkpoints could neither take a savepoint nor stop, once a subtask without splits had finished."""
    running = {attempt("src", 1): snapshot(src=listed(UNION, b"z", READERS_STATE))}

    result = states_of(running, (attempt("src", 0),))

    assert isinstance(result, OperatorState)
    assert (result.finished_subtasks, set(result.subtasks)) == ((0,), {1})


def test_union_states_that_operators_keep_for_themselves_are_known() -> None:
    """Their names are in the code of the tasks, which the coordinator does not load."""
    package = Path(operators.__file__).parent
    for path in package.rglob("*.py"):
        for name in re.findall(r"list_state\((\w+), OperatorStateMode.UNION\)", path.read_text()):
            module = import_module(".".join((operators.__name__, *path.relative_to(package).with_suffix("").parts)))
            assert getattr(module, name) in UNION_STATES_OF_THE_ENGINE, path
