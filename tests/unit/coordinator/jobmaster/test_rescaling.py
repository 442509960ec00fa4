"""A job that is rescaled: by its user, with slots, a checkpoint and a graph that are waited for; and by itself, in
reactive mode."""

from __future__ import annotations

from typing import Any

import pytest

from snapline.coordinator.checkpoint.effects import (
    CheckpointRequestCompleted,
    CheckpointRequestFailed,
    StateRestored,
)
from snapline.coordinator.checkpoint.events import (
    CheckpointRequested,
    CheckpointRequestID,
    CheckpointStored,
    RestoreLatest,
    StartCheckpointScheduler,
)
from snapline.coordinator.jobmaster.effects import (
    ForgetJobGraph,
    UpdateJobGraph,
)
from snapline.coordinator.jobmaster.events import (
    JobGraphUpdated,
    OperationRequested,
)
from snapline.coordinator.jobmaster.identity import IdleSlotTimer
from snapline.coordinator.jobmaster.operations import (
    Acknowledged,
    CancelJob,
    OperationFailed,
    Reply,
    RequestID,
    RescaleJob,
    StopWithSavepoint,
)
from snapline.coordinator.jobmaster.rescaling import RescaleTimer
from snapline.coordinator.jobmaster.scheduler_effects import RestartDelayTimer
from snapline.dataflow.failures import Blame, CheckpointFailureReason, SerializedFailure
from snapline.dataflow.ids import (
    CheckpointID,
    JobVertexID,
)
from snapline.dataflow.wire.messages import (
    CancelTask,
    Disconnect,
    ExecutionState,
    FreeSlot,
    HeartbeatResponse,
    JobStatus,
    OfferSlots,
    SubmitTasks,
    TaskMetrics,
)
from snapline.runtime.cores.connections import (
    ConnectionID,
    ConnectionLost,
)
from snapline.runtime.cores.machine import CancelTimer, StartTimer, TimerFired
from tests.simulation.jobs import job, vertex
from tests.unit.coordinator.jobmaster.test_job_master import (
    ONE,
    A,
    B,
    R,
    Story,
    answer,
    attempt,
    messages,
    offers,
    statuses,
)


def test_a_rescale_waits_for_its_checkpoint_and_answers_when_the_job_runs() -> None:
    """Slots, checkpoint, cancel, deploy with attempts that never were."""
    story = Story().run()
    key = CheckpointRequestID("client-r")
    story.checkpoints.answers[CheckpointRequested] = [CheckpointRequestCompleted(key, CheckpointID(6), "chk-6")]
    assert StartTimer(RescaleTimer(), 1_000) in story.operate(RescaleJob({JobVertexID("source"): 2}))
    assert story.core.scheduler.pool.required == 2  # and the job runs
    effects = story.hears("a", OfferSlots(ONE.job_id, A, offers("a", 1)))
    assert statuses(effects) == [JobStatus.RESTARTING] and messages(effects, CancelTask) == [CancelTask(attempt())]

    (submitted,) = messages(story.enters("a", attempt(), ExecutionState.CANCELED), SubmitTasks)
    assert [task.attempt_id for task in submitted.tasks] == [attempt(1), attempt(1, subtask=1)]
    story.enters("a", attempt(1), ExecutionState.RUNNING)
    effects = story.enters("a", attempt(1, subtask=1), ExecutionState.RUNNING)
    assert statuses(effects) == [JobStatus.RUNNING] and answer(effects) == Acknowledged()


def test_a_subtask_that_is_no_more_leaves_no_figures() -> None:
    """They stood still, but for the lag of its watermark, which grew as long as the job ran."""
    story = Story().run()
    key = CheckpointRequestID("client-r")
    story.checkpoints.answers[CheckpointRequested] = [CheckpointRequestCompleted(key, CheckpointID(6), "chk-6")]
    story.operate(RescaleJob({JobVertexID("source"): 2}))
    story.hears("a", OfferSlots(ONE.job_id, A, offers("a", 1)))
    story.enters("a", attempt(), ExecutionState.CANCELED)
    tasks = attempt(1), attempt(1, subtask=1)
    for task in tasks:
        story.enters("a", task, ExecutionState.RUNNING)
    story.hears("a", HeartbeatResponse(metrics=tuple(map(TaskMetrics, tasks)), executions=tasks))
    assert [subtask.subtask_index for subtask in story.core.metrics] == [0, 1]

    story.operate(RescaleJob({JobVertexID("source"): 1}))
    for task in tasks:
        story.enters("a", task, ExecutionState.CANCELED)
    assert [subtask.subtask_index for subtask in story.core.metrics] == [0]


def rescaling() -> tuple[Story, list[Any]]:
    """ONE, on its way to two subtasks: the slots and the checkpoint are there, and its graph is being stored."""
    story = Story().run()
    story.graph_store_answers = False
    key = CheckpointRequestID("client-r")
    story.checkpoints.answers[CheckpointRequested] = [CheckpointRequestCompleted(key, CheckpointID(6), "chk-6")]
    story.operate(RescaleJob({JobVertexID("source"): 2}))
    return story, story.hears("a", OfferSlots(ONE.job_id, A, offers("a", 1)))


def test_a_rescaled_job_is_deployed_when_the_next_leader_would_find_it() -> None:
    """Its graph goes into the store while the old tasks end; they may be faster."""
    story, effects = rescaling()
    (stored,) = [effect.job_graph for effect in effects if isinstance(effect, UpdateJobGraph)]
    assert [(v.parallelism, v.submitted_parallelism) for v in stored.vertices] == [(2, 1)]
    assert messages(story.enters("a", attempt(), ExecutionState.CANCELED), SubmitTasks) == []

    (submitted,) = messages(story.take(JobGraphUpdated()), SubmitTasks)
    assert [task.attempt_id for task in submitted.tasks] == [attempt(1), attempt(1, subtask=1)]


def test_slots_that_came_while_the_graph_was_being_stored_are_used() -> None:
    """They are reserved then, and none of them is free any more (seed 171)."""
    story, _ = rescaling()
    story.take(ConnectionLost(ConnectionID("tm-a"), "reset"))
    assert messages(story.task_manager(B, 0, 1), SubmitTasks) == []

    (submitted,) = messages(story.take(JobGraphUpdated()), SubmitTasks)
    assert [task.attempt_id for task in submitted.tasks] == [attempt(1), attempt(1, subtask=1)]


def test_a_job_is_not_forgotten_before_its_graph_is_stored() -> None:
    """It would come back, and the next leader run it again."""
    story, _ = rescaling()
    story.operate(CancelJob())
    effects = story.enters("a", attempt(), ExecutionState.CANCELED)
    assert ForgetJobGraph(ONE.job_id) not in effects

    assert ForgetJobGraph(ONE.job_id) in story.take(JobGraphUpdated())


def test_a_rescale_whose_slots_do_not_come_leaves_the_job_alone() -> None:
    """It says what it waits for, is refused with the numbers, and may be asked for again."""
    story = Story().run()
    story.operate(RescaleJob({JobVertexID("source"): 3}))
    waits = "runs as it was, to be rescaled: waiting for slots: 3 required, 1 available; for at most 1000 ms (slot.request.timeout)"
    assert story.core.status_detail == waits
    effects = story.take(TimerFired(RescaleTimer()), 1_000)
    assert (
        "not enough slots for this parallelism after 1000 ms: 3 required, 1 available; it goes on"
        in answer(effects).failure.summary
    )
    assert statuses(effects) == [] and story.core.scheduler.pool.required == 1 and story.core.status_detail == ""
    assert CheckpointRequested not in map(type, story.checkpoints.events)
    assert StartTimer(RescaleTimer(), 2_000) in story.operate(RescaleJob({JobVertexID("source"): 2}))
    failed = story.enters("a", attempt(), ExecutionState.FAILED, SerializedFailure("x", Blame.USER))
    assert "the job is RESTARTING; it was not rescaled" in answer(failed).failure.summary


def test_a_rescale_whose_slots_are_lost_while_its_checkpoint_is_taken_leaves_the_job_alone() -> None:
    """Else it would stand still until there are others."""
    story = Story().run()
    story.operate(RescaleJob({JobVertexID("source"): 2}))
    story.task_manager(B, 0)
    story.hears("b", Disconnect("spark takes it back"))
    key = CheckpointRequestID("client-r")
    story.checkpoints.answers[StartCheckpointScheduler] = [CheckpointRequestCompleted(key, CheckpointID(6), "chk-6")]
    effects = story.take(StartCheckpointScheduler(0))
    lost = "1 of the slots for it were lost again while its checkpoint was taken"
    assert answer(effects).failure.summary == f"{lost}; the job goes on as it is"
    assert statuses(effects) == [] and story.core.scheduler.pool.required == 1


def replies(effects: list[Any]) -> list[Reply]:
    """To all clients."""
    return [effect for effect in effects if isinstance(effect, Reply)]


def test_a_rescale_that_waits_for_slots_is_taken_back_with_the_parallelism_of_before() -> None:
    """Both clients are answered, the job asks for no more than it has, and no timer runs on."""
    story = Story().run()
    story.operate(RescaleJob({JobVertexID("source"): 3}))
    effects = story.take(OperationRequested(RequestID("back"), RescaleJob({JobVertexID("source"): 1})))
    first, second = replies(effects)
    assert isinstance(first.answer, OperationFailed) and "another rescale was asked for" in first.answer.failure.summary
    assert (first.request_id, second) == (R, Reply(RequestID("back"), Acknowledged()))
    assert CancelTimer(RescaleTimer()) in effects and statuses(effects) == []
    assert story.core.scheduler.pool.required == 1 and story.core.status_detail == ""
    assert CheckpointRequested not in map(type, story.checkpoints.events)


def test_the_latest_rescale_counts_while_slots_are_waited_for() -> None:
    """Too many were asked for: fewer can be asked for at once, with a time of their own, and are what the job gets."""
    story = Story().run()
    story.operate(RescaleJob({JobVertexID("source"): 3}))
    key = CheckpointRequestID("client-fewer")
    story.checkpoints.answers[CheckpointRequested] = [CheckpointRequestCompleted(key, CheckpointID(6), "chk-6")]
    effects = story.take(OperationRequested(RequestID("fewer"), RescaleJob({JobVertexID("source"): 2})), 500)
    assert [reply.request_id for reply in replies(effects)] == [R]
    assert StartTimer(RescaleTimer(), 1_500) in effects and story.core.scheduler.pool.required == 2
    assert statuses(story.hears("a", OfferSlots(ONE.job_id, A, offers("a", 1)))) == [JobStatus.RESTARTING]


def test_a_rescale_that_takes_its_checkpoint_is_not_overtaken() -> None:
    """The next one is refused, and may be asked for when this one is done."""
    story = Story().run()
    story.operate(RescaleJob({JobVertexID("source"): 2}))
    story.hears("a", OfferSlots(ONE.job_id, A, offers("a", 1)))
    assert story.core.status_detail == "being rescaled: waiting for its checkpoint"
    again = story.take(OperationRequested(RequestID("again"), RescaleJob({JobVertexID("source"): 1})))
    assert "it is being rescaled" in answer(again).failure.summary


def test_a_job_that_is_being_stopped_is_not_rescaled_any_more() -> None:
    """The checkpoint of the rescale was being stored when the stop began: the restart would fail the savepoint, and the
    job with it where it is not restarted."""
    story = Story().run()
    story.operate(RescaleJob({JobVertexID("source"): 2}))
    story.hears("a", OfferSlots(ONE.job_id, A, offers("a", 1)))
    story.take(OperationRequested(RequestID("stop"), StopWithSavepoint("/sp")))
    completed = CheckpointRequestCompleted(CheckpointRequestID("client-r"), CheckpointID(6), "chk-6")
    story.checkpoints.answers[CheckpointStored] = [completed]

    refused = answer(story.take(CheckpointStored(CheckpointID(6))))
    assert "being stopped with a savepoint" in refused.failure.summary
    assert story.core.status is JobStatus.RUNNING


def test_a_job_leaves_a_task_manager_by_a_rescale() -> None:
    """It runs on until there is a slot elsewhere; the slot that it had is given back, and nothing has failed."""
    story = Story().run()
    key = CheckpointRequestID("client-r")
    story.checkpoints.answers[CheckpointRequested] = [CheckpointRequestCompleted(key, CheckpointID(6), "chk-6")]
    story.operate(RescaleJob({}, leave=(A,)))
    assert story.core.scheduler.pool.required == 2 and "2 required, 1 available" in story.core.status_detail
    assert statuses(story.task_manager(B, 0)) == [JobStatus.RESTARTING]

    effects = story.enters("a", attempt(), ExecutionState.CANCELED)
    assert [freed.reason for freed in messages(effects, FreeSlot)] == ["the job has left this TaskManager"]
    (submitted,) = messages(effects, SubmitTasks)
    assert len(submitted.tasks) == 1 and story.core.scheduler.pool.required == 1
    moved = submitted.tasks[0].attempt_id
    assert story.core.scheduler.deployed_on(B).keys() == {moved}
    assert answer(story.enters("b", moved, ExecutionState.RUNNING)) == Acknowledged()
    assert story.core.scheduler.restarts == 0 and not story.core.scheduler.exceptions


@pytest.mark.parametrize("is_reactive", [False, True])
def test_a_job_whose_slots_elsewhere_are_lost_while_it_leaves_a_task_manager_stays_there(is_reactive: bool) -> None:
    """It waited for others beside the slot that it had; in reactive mode for ever, also where the TaskManager was not
    drained any more."""
    story = Story(is_reactive=is_reactive).start()
    story.task_manager(A, 0)
    if is_reactive:
        story.take(TimerFired(RestartDelayTimer()), 1_000)
    first = next(iter(story.core.scheduler.deployed_on(A)))
    story.enters("a", first, ExecutionState.RUNNING)
    story.task_manager(B, 0)
    key = CheckpointRequestID("client-r")
    story.checkpoints.answers[CheckpointRequested] = [CheckpointRequestCompleted(key, CheckpointID(6), "chk-6")]
    story.operate(RescaleJob({}, leave=(A,)))
    if not is_reactive:
        assert story.core.status is JobStatus.RUNNING
        story.hears("b", OfferSlots(ONE.job_id, B, offers("b", 0)))
    assert story.core.status is JobStatus.RESTARTING
    story.take(ConnectionLost(ConnectionID("tm-b"), "reset"))

    (submitted,) = messages(story.enters("a", first, ExecutionState.CANCELED), SubmitTasks)
    (again,) = (task.attempt_id for task in submitted.tasks)
    assert story.core.scheduler.deployed_on(A).keys() == {again}
    refusal = answer(story.enters("a", again, ExecutionState.RUNNING)).failure
    assert (refusal.summary, refusal.retryable) == (
        "the slots that it had elsewhere were lost, so that it stays on a",
        True,
    )


def test_a_job_that_has_nothing_on_a_task_manager_has_left_it() -> None:
    """Nothing is restarted for that."""
    story = Story().run()
    assert answer(story.operate(RescaleJob({}, leave=(B,)))) == Acknowledged()
    assert story.core.status is JobStatus.RUNNING


REACTIVE: dict[str, Any] = {"is_reactive": True, "resource_stabilization_ms": 100}


def test_a_reactive_job_starts_with_the_slots_that_there_are() -> None:
    """Once their number has been the same for a while; it asks for all that it could use."""
    story = Story(**REACTIVE).start()
    assert story.core.scheduler.pool.required == 128
    assert messages(story.task_manager(A, 0, 1), SubmitTasks) == []
    (submitted,) = messages(story.take(TimerFired(RestartDelayTimer()), 100), SubmitTasks)
    assert [task.attempt_id.subtask_index for task in submitted.tasks] == [0, 1]
    assert {task.parallelism for task in submitted.tasks} == {2}


def test_a_reactive_job_that_has_all_slots_that_it_can_use_does_not_wait_for_more() -> None:
    """Their number could not rise any further, and the job stood still, or ran with too few, until it had settled."""
    graph = job("two", [vertex("source", 1, source=True, max_parallelism=2)], [], {})
    story = Story(graph, **REACTIVE).start()
    assert messages(story.task_manager(A, 0), SubmitTasks) == []
    effects = story.task_manager(B, 0)
    submitted = [task.attempt_id for each in messages(effects, SubmitTasks) for task in each.tasks]
    assert CancelTimer(RestartDelayTimer()) in effects and len(submitted) == 2

    grows = Story(graph, **REACTIVE).start()
    grows.task_manager(A, 0)
    grows.take(TimerFired(RestartDelayTimer()), 100)
    grows.enters("a", attempt(), ExecutionState.RUNNING)
    assert StartTimer(RescaleTimer(), 100) in grows.task_manager(B, 0)


def test_a_reactive_job_without_slots_says_that_it_waits_for_some() -> None:
    """It said that it waited for a restart delay, which was over."""
    story = Story(**REACTIVE).start()
    story.take(TimerFired(RestartDelayTimer()), 100)
    assert story.core.status_detail == "waiting for slots"


def test_a_reactive_job_that_waited_for_slots_begins_once_their_number_has_settled() -> None:
    """It began with the very first one, and was rescaled for those that came right behind it."""
    story = Story(**REACTIVE).start()
    story.take(TimerFired(RestartDelayTimer()), 100)
    story.now_ms = 5_000
    effects = story.task_manager(A, 0)
    assert messages(effects, SubmitTasks) == [] and StartTimer(RestartDelayTimer(), 5_100) in effects
    assert story.core.status_detail.startswith("the restart delay, until ")
    story.now_ms = 5_050
    assert messages(story.task_manager(B, 0), SubmitTasks) == []

    effects = story.take(TimerFired(RestartDelayTimer()), 5_100)
    assert {task.parallelism for each in messages(effects, SubmitTasks) for task in each.tasks} == {2}


def test_a_reactive_job_follows_its_slots_up_and_down() -> None:
    """More: a checkpoint, then a restart. Fewer: a restart with those that are left."""
    story = Story(**REACTIVE).start()
    story.task_manager(A, 0)
    (submitted,) = messages(story.take(TimerFired(RestartDelayTimer()), 100), SubmitTasks)
    first = submitted.tasks[0].attempt_id
    story.enters("a", first, ExecutionState.RUNNING)
    assert StartTimer(RescaleTimer(), 200) in story.task_manager(B, 0)
    key = CheckpointRequestID("reactive-1")
    story.checkpoints.answers[CheckpointRequested] = [CheckpointRequestCompleted(key, CheckpointID(6), "chk-6")]
    effects = story.take(TimerFired(RescaleTimer()), 200)
    assert statuses(effects) == [JobStatus.RESTARTING]
    tasks = [t for each in messages(story.enters("a", first, ExecutionState.CANCELED), SubmitTasks) for t in each.tasks]
    assert sorted(task.attempt_id.subtask_index for task in tasks) == [0, 1]
    a, b = (next(e for e in story.core.scheduler.graph.executions if e.resource_id == who) for who in (A, B))
    story.enters("a", a.attempt_id, ExecutionState.RUNNING)
    assert statuses(story.enters("b", b.attempt_id, ExecutionState.RUNNING)) == [JobStatus.RUNNING]

    assert statuses(story.hears("b", Disconnect("spark takes it back"))) == [JobStatus.RESTARTING]
    story.enters("a", a.attempt_id, ExecutionState.CANCELED)
    (submitted,) = messages(story.take(TimerFired(RestartDelayTimer()), 400), SubmitTasks)
    assert {task.parallelism for task in submitted.tasks} == {1}
    refusal = answer(story.operate(RescaleJob({JobVertexID("source"): 2}))).failure.summary
    assert "only a running job" in refusal


def reactive_beside_slots(settle_ms: int) -> tuple[Story, int]:
    """A job on A that could use the slot of B, too; and when it tries to."""
    story = Story(**{**REACTIVE, "resource_stabilization_ms": settle_ms}).start()
    story.task_manager(A, 0)
    (submitted,) = messages(story.take(TimerFired(RestartDelayTimer()), settle_ms), SubmitTasks)
    story.enters("a", submitted.tasks[0].attempt_id, ExecutionState.RUNNING)
    (begun,) = [effect for effect in story.task_manager(B, 0) if isinstance(effect, StartTimer)]
    return story, begun.at_ms


def waits_after_failures(story: Story, at_ms: int) -> list[int]:
    """How long it waits each time after three of its checkpoints in a row have failed."""
    waits: list[int] = []
    for number in range(1, 4):
        failed = CheckpointRequestFailed(
            CheckpointRequestID(f"reactive-{number}"), CheckpointFailureReason.IO_EXCEPTION
        )
        story.checkpoints.answers[CheckpointRequested] = [failed]
        effects = story.take(TimerFired(RescaleTimer()), at_ms)
        (again,) = [each for each in effects if isinstance(each, StartTimer) and each.key == RescaleTimer()]
        waits.append(again.at_ms - at_ms)
        at_ms = again.at_ms
    return waits


@pytest.mark.parametrize(
    ("settle_ms", "waits"),
    [(100, [200, 400, 800]), (20_000, [40_000, 60_000, 60_000]), (90_000, [90_000] * 3)],
)
def test_a_reactive_job_whose_checkpoints_fail_tries_to_rescale_less_and_less_often(
    settle_ms: int, waits: list[int]
) -> None:
    """It took one after each pause for slots, so that a minute without storage used up many tolerated failures; and
    once it took fewer, it waited for hours for slots that were there after its storage was back."""
    assert waits_after_failures(*reactive_beside_slots(settle_ms)) == waits


def test_a_reactive_job_waits_no_longer_for_new_slots_because_of_those_before() -> None:
    """It waited as if the checkpoints that had failed had been for these."""
    story, at_ms = reactive_beside_slots(100)
    waits_after_failures(story, at_ms)
    assert StartTimer(RescaleTimer(), 5_100) in story.hears("b", OfferSlots(ONE.job_id, B, offers("b", 1)), at_ms=5_000)


def test_a_reactive_job_leaves_a_task_manager_for_the_slots_that_it_has_elsewhere() -> None:
    """By a checkpoint and a rescale down; it was refused, and lost its tasks with the executor. Where it has nothing
    else it stays."""
    story = Story(**REACTIVE).start()
    story.task_manager(A, 0)
    (submitted,) = messages(story.take(TimerFired(RestartDelayTimer()), 100), SubmitTasks)
    first = submitted.tasks[0].attempt_id
    story.enters("a", first, ExecutionState.RUNNING)
    refusal = answer(story.operate(RescaleJob({}, leave=(A,)))).failure
    assert (refusal.summary, refusal.retryable) == (
        "its 0 slots elsewhere are too few for anything to run: start more TaskManagers",
        True,
    )

    story.task_manager(B, 0)
    key = CheckpointRequestID("client-r")
    story.checkpoints.answers[CheckpointRequested] = [CheckpointRequestCompleted(key, CheckpointID(6), "chk-6")]
    assert statuses(story.operate(RescaleJob({}, leave=(A,)))) == [JobStatus.RESTARTING]
    effects = story.enters("a", first, ExecutionState.CANCELED)
    assert [freed.reason for freed in messages(effects, FreeSlot)] == ["the job has left this TaskManager"]
    (submitted,) = messages(effects, SubmitTasks)
    (moved,) = (task.attempt_id for task in submitted.tasks)
    assert story.core.scheduler.deployed_on(B).keys() == {moved}
    assert answer(story.enters("b", moved, ExecutionState.RUNNING)) == Acknowledged()
    assert story.core.scheduler.restarts == 0 and not story.core.scheduler.exceptions


def test_a_reactive_job_that_loses_a_slot_while_a_region_restarts_begins_again_as_a_whole() -> None:
    """With the slots that are left. The other region ran on, and the JobMaster broke when it was to be replaced."""
    story = Story(**REACTIVE).start()
    story.task_manager(A, 0)
    story.task_manager(B, 0)
    story.take(TimerFired(RestartDelayTimer()), 100)
    executions = {execution.resource_id: execution.attempt_id for execution in story.core.scheduler.graph.executions}
    for who, each in executions.items():
        story.enters(who, each, ExecutionState.RUNNING)
    failed = story.enters(B, executions[B], ExecutionState.FAILED, SerializedFailure("it broke"))
    assert statuses(failed) == [JobStatus.RESTARTING] and messages(failed, CancelTask) == []
    story.take(ConnectionLost(ConnectionID("tm-b"), "reset"))

    effects = story.take(TimerFired(RestartDelayTimer()), 140)
    assert messages(effects, CancelTask) == [CancelTask(executions[A])]
    story.enters(A, executions[A], ExecutionState.CANCELED)
    (submitted,) = messages(story.take(TimerFired(RestartDelayTimer()), 240), SubmitTasks)
    assert {task.parallelism for task in submitted.tasks} == {1}


def test_a_reactive_job_spreads_no_further_than_its_state() -> None:
    """A snapshot has fixed its key groups: with more slots than those, each JobMaster broke, and the job failed."""
    source = JobVertexID("source")
    story = Story(**REACTIVE)
    story.checkpoints.answers[RestoreLatest] = [
        StateRestored(CheckpointRequestID("restore-1"), CheckpointID(5), max_parallelism={source: 2})
    ]
    story.start().task_manager(A, 0)
    (submitted,) = messages(story.take(TimerFired(RestartDelayTimer()), 100), SubmitTasks)
    first = submitted.tasks[0].attempt_id
    del story.checkpoints.answers[RestoreLatest]
    story.enters("a", first, ExecutionState.RUNNING)
    story.task_manager(B, 0, 1)
    key = CheckpointRequestID("reactive-1")
    story.checkpoints.answers[CheckpointRequested] = [CheckpointRequestCompleted(key, CheckpointID(6), "chk-6")]
    assert statuses(story.take(TimerFired(RescaleTimer()), 200)) == [JobStatus.RESTARTING]

    tasks = [t for each in messages(story.enters("a", first, ExecutionState.CANCELED), SubmitTasks) for t in each.tasks]
    assert [(task.parallelism, task.max_parallelism) for task in tasks] == [(2, 2), (2, 2)]
    assert story.core.scheduler.pool.required == 2


def test_slots_that_a_rescale_has_waited_for_are_not_given_back_while_its_tasks_end() -> None:
    """Those that came first had been idle for long, and went: the job stood still until there were others."""
    story = Story().run()
    key = CheckpointRequestID("client-r")
    story.checkpoints.answers[CheckpointRequested] = [CheckpointRequestCompleted(key, CheckpointID(6), "chk-6")]
    story.operate(RescaleJob({JobVertexID("source"): 3}))
    story.hears("a", OfferSlots(ONE.job_id, A, offers("a", 1)))
    effects = story.hears("a", OfferSlots(ONE.job_id, A, offers("a", 2)), at_ms=600)
    assert statuses(effects) == [JobStatus.RESTARTING]

    assert messages(story.take(TimerFired(IdleSlotTimer())), FreeSlot) == []
    (submitted,) = messages(story.enters("a", attempt(), ExecutionState.CANCELED), SubmitTasks)
    assert len(submitted.tasks) == story.core.scheduler.pool.required == 3
