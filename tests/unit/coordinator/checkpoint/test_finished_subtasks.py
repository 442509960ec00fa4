"""Union state of subtasks that have finished while others go on, from one checkpoint to the next, over restores and
leaders."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from snapline.coordinator.checkpoint.completed_checkpoint import CompletedCheckpoint
from snapline.coordinator.checkpoint.effects import RemoveCompletedCheckpoint, StoreCompletedCheckpoint
from snapline.coordinator.checkpoint.events import (
    CheckpointRequestID,
    CheckpointStored,
    CompletedCheckpointRemoved,
    CompletedCheckpointsRecovered,
    RestoreLatest,
)
from snapline.coordinator.checkpoint.statistics.stats_persistence import decode_statistics, encode_statistics
from snapline.coordinator.rpc.views import checkpoint_details
from snapline.dataflow.ids import CheckpointID, ExecutionAttemptID
from snapline.dataflow.snapshot.handles import OperatorState, OperatorStateMode, TaskStateSnapshot
from snapline.dataflow.wire.messages import ExecutionState
from tests.unit.coordinator.checkpoint.small_job import Coordinator, attempt, listed, running, snapshot

UNION = OperatorStateMode.UNION
ENDED = TaskStateSnapshot(is_task_finished=True)
"""Of a subtask that runs only to end again."""

SAYS_SO_LATER = pytest.mark.parametrize("later", [False, True])


def ending(data: bytes) -> TaskStateSnapshot:
    return TaskStateSnapshot(snapshot(src=listed(UNION, data)).operators, is_task_finished=True)


def take(
    job: Coordinator, number: int, states: Mapping[ExecutionAttemptID, TaskStateSnapshot]
) -> CompletedCheckpoint | None:
    """A checkpoint that these tasks acknowledge; None: it was refused."""
    job.trigger(f"checkpoint {number}", number)
    effects = [effect for task, state in states.items() for effect in job.acknowledge(number, task, state=state)]
    stores = [effect for effect in effects if isinstance(effect, StoreCompletedCheckpoint)]
    if not stores:
        return None
    for effect in job.tell(CheckpointStored(CheckpointID(number))):
        if isinstance(effect, RemoveCompletedCheckpoint):
            job.tell(CompletedCheckpointRemoved(effect.checkpoint.checkpoint_id))
    return stores[0].checkpoint


def source(checkpoint: CompletedCheckpoint | None) -> OperatorState:
    assert checkpoint is not None
    return next(operator for operator in checkpoint.operators if operator.uid == "src")


def with_one_ended() -> tuple[Coordinator, CompletedCheckpoint]:
    """Subtask 0 of `src` has ended with checkpoint 1; 1 went on, and completed checkpoint 2."""
    job = Coordinator(interval_ms=100)
    first, second = job.sources
    sink = job.tasks[2]
    take(job, 1, {first: ending(b"x"), second: snapshot(src=listed(UNION, b"y")), sink: TaskStateSnapshot()})
    job.tell(running(first, state=ExecutionState.FINISHED))
    completed = take(job, 2, {second: snapshot(src=listed(UNION, b"z")), sink: TaskStateSnapshot()})
    assert completed is not None
    return job, completed


def adopted(*, has_ended: bool = True) -> Coordinator:
    """A former leader completed checkpoint 1, with which subtask 0 of `src` ends; this one hears that it has, if it
    `has_ended`."""
    before = Coordinator(interval_ms=100)
    first, second, sink = before.tasks
    last = take(before, 1, {first: ending(b"x"), second: snapshot(src=listed(UNION, b"y")), sink: TaskStateSnapshot()})
    assert last is not None
    job = Coordinator(interval_ms=100)
    job.core.publication.recover((last,))
    job.tell(RestoreLatest(CheckpointRequestID("adopt"), None, allow_non_restored_state=True, for_running_tasks=True))
    if has_ended:
        job.tell(running(first, state=ExecutionState.FINISHED))
    return job


def restore_the_second(job: Coordinator, *, later: bool) -> None:
    """Subtask 1 of `src` fails and is restored alone; 0 has finished before that, or says so after it."""
    first, second = job.sources
    if not later:
        job.tell(running(first, state=ExecutionState.FINISHED))
    job.tell(running(second, state=ExecutionState.FAILED))
    job.tell(RestoreLatest(CheckpointRequestID("region"), vertices=(second.vertex_id,)))
    job.tell(running(attempt("src", 1, 1)))
    if later:
        job.tell(running(first, state=ExecutionState.FINISHED))


def test_carried_on_by_the_coordinator_that_saw_it_end() -> None:
    """Its part and that of the one that goes on."""
    _, completed = with_one_ended()

    state = source(completed)
    assert state.finished_subtasks == (0,)
    assert dict(state.subtasks) == {0: listed(UNION, b"x"), 1: listed(UNION, b"z")}


def test_carried_on_after_a_restore_and_by_every_checkpoint_after_it() -> None:
    """The subtask runs only to end again, and has nothing to say: what it left stands in the restored checkpoint."""
    job, _ = with_one_ended()
    job.tell(RestoreLatest(CheckpointRequestID("again")))
    first, second, sink = attempt("src", 0, 1), attempt("src", 1, 1), attempt("sink", 0, 1)
    job.tell(running(first, second, sink))

    still_there = take(job, 3, {first: ENDED, second: snapshot(src=listed(UNION, b"v")), sink: TaskStateSnapshot()})
    job.tell(running(first, state=ExecutionState.FINISHED))
    gone = take(job, 4, {second: snapshot(src=listed(UNION, b"w")), sink: TaskStateSnapshot()})

    assert dict(source(still_there).subtasks) == {0: listed(UNION, b"x"), 1: listed(UNION, b"v")}
    assert dict(source(gone).subtasks) == {0: listed(UNION, b"x"), 1: listed(UNION, b"w")}
    assert source(gone).finished_subtasks == (0,)


@SAYS_SO_LATER
def test_carried_on_when_only_another_subtask_of_its_vertex_starts_again(*, later: bool) -> None:
    """A region of one subtask fails and is restored: the one that has finished stays finished, and no checkpoint
    without its part could complete, for which the others would wait at their end for ever. So does one that has taken
    its last checkpoint, and says only later that it has finished."""
    job = Coordinator(interval_ms=100)
    first, second = job.sources
    sink = job.tasks[2]
    take(job, 1, {first: ending(b"x"), second: snapshot(src=listed(UNION, b"y")), sink: TaskStateSnapshot()})
    restore_the_second(job, later=later)
    again = attempt("src", 1, 1)

    completed = take(job, 2, {again: snapshot(src=listed(UNION, b"z")), sink: TaskStateSnapshot()})

    assert source(completed).finished_subtasks == (0,)
    assert dict(source(completed).subtasks) == {0: listed(UNION, b"x"), 1: listed(UNION, b"z")}


def test_carried_on_by_the_next_coordinator() -> None:
    """It knows only what is in the store."""
    _, completed = with_one_ended()
    job = Coordinator(interval_ms=100)
    job.core.publication.recover((completed,))
    job.tell(RestoreLatest(CheckpointRequestID("again")))
    job.tell(CompletedCheckpointsRecovered((completed,)))
    first, second, sink = attempt("src", 0, 1), attempt("src", 1, 1), attempt("sink", 0, 1)
    job.tell(running(first, second, sink))

    third = take(job, 3, {first: ENDED, second: snapshot(src=listed(UNION, b"v")), sink: TaskStateSnapshot()})

    assert dict(source(third).subtasks) == {0: listed(UNION, b"x"), 1: listed(UNION, b"v")}


def test_carried_on_of_a_task_that_was_adopted_and_ends() -> None:
    """The former leader completed its last checkpoint; it hears of that from us, and takes no other."""
    job = adopted()
    _, second, sink = job.tasks

    second_checkpoint = take(job, 2, {second: snapshot(src=listed(UNION, b"z")), sink: TaskStateSnapshot()})

    assert dict(source(second_checkpoint).subtasks) == {0: listed(UNION, b"x"), 1: listed(UNION, b"z")}


@SAYS_SO_LATER
def test_carried_on_of_an_adopted_task_when_another_subtask_starts_again(*, later: bool) -> None:
    """What the former leader heard last of it is still all that there will be."""
    job = adopted(has_ended=False)
    _, _, sink = job.tasks
    restore_the_second(job, later=later)
    again = attempt("src", 1, 1)

    completed = take(job, 2, {again: snapshot(src=listed(UNION, b"z")), sink: TaskStateSnapshot()})

    assert dict(source(completed).subtasks) == {0: listed(UNION, b"x"), 1: listed(UNION, b"z")}


def test_nothing_is_made_up_for_tasks_that_wait_for_no_last_checkpoint() -> None:
    """Without an interval a task ends when it wants: what it had in the last savepoint is not what it ended with."""
    before = Coordinator(interval_ms=0)
    first, second = before.sources
    sink = before.tasks[2]
    union = snapshot(src=listed(UNION, b"y"))
    last = take(before, 1, {first: union, second: union, sink: TaskStateSnapshot()})
    assert last is not None
    job = Coordinator(interval_ms=0)
    job.core.publication.recover((last,))
    job.tell(RestoreLatest(CheckpointRequestID("adopt"), None, allow_non_restored_state=True, for_running_tasks=True))
    job.tell(running(first, state=ExecutionState.FINISHED))

    assert take(job, 2, {second: union, sink: TaskStateSnapshot()}) is None


def test_who_has_finished_is_no_subtask_that_a_checkpoint_waits_for() -> None:
    """It was shown as the one that is waited for, in the place of the one that is, whose figures nobody saw."""
    job, completed = with_one_ended()
    _, second = job.sources
    job.trigger("checkpoint 3", 3)
    scheduler = SimpleNamespace(graph=SimpleNamespace(job_vertices={}))
    master: Any = SimpleNamespace(job_id="a", scheduler=scheduler, url_of=lambda location: location)

    def shown(number: int) -> list[tuple[int, bool]]:
        (stats,) = (each for each in job.core.stats.history if each.checkpoint_id == number)
        details = checkpoint_details(master, stats, 10_000, frozenset([completed.checkpoint_id]))
        (vertex,) = (each for each in details.vertices if each.vertex_id == second.vertex_id)
        return [(each.subtask_index, bool(each.acknowledge_timestamp_ms)) for each in vertex.subtasks]

    assert [shown(1), shown(2), shown(3)] == [[(0, True), (1, True)], [(1, True)], [(1, False)]]
    again = decode_statistics(encode_statistics(job.core.stats), 10)
    assert again.history[1].subtasks_that_take_part()[second.vertex_id] == [1]
