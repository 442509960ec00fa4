"""A JobMaster that follows a lost one: what runs is adopted as it is, or ended and deployed anew."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

from snapline.coordinator.checkpoint.effects import StateRestored
from snapline.coordinator.checkpoint.events import (
    AcknowledgesReceived,
    CheckpointRequestID,
    EndOfDataReceived,
    JobHasStopped,
    RestoreLatest,
    StartCheckpointScheduler,
)
from snapline.coordinator.checkpoint.statistics.stats import CheckpointStatsTracker
from snapline.coordinator.execution.given_slots import GivenSlots
from snapline.coordinator.execution.restart_strategy import NoRestartStrategy
from snapline.coordinator.jobmaster.events import JobMasterStarted
from snapline.coordinator.jobmaster.identity import IdleSlotTimer, ReconciliationTimer
from snapline.coordinator.jobmaster.operations import CancelJob
from snapline.coordinator.jobmaster.reconciliation import Adoptable, AdoptionRefused, Reconciliation, Waiting
from snapline.coordinator.jobmaster.scheduler_effects import RestartDelayTimer
from snapline.coordinator.rpc.views import job_details
from snapline.dataflow.api.accumulators import AccumulatorValue
from snapline.dataflow.failures import SerializedFailure
from snapline.dataflow.ids import (
    AllocationID,
    CheckpointID,
    ExecutionAttemptID,
    ExecutionVertexID,
    JobVertexID,
    LeaderSessionID,
    ResourceID,
)
from snapline.dataflow.snapshot.handles import TaskStateSnapshot
from snapline.dataflow.wire.messages import (
    AcknowledgeCheckpoint,
    AlignWatermarks,
    CancelTask,
    DeclareRequiredSlots,
    ExecutionReport,
    ExecutionState,
    Fenced,
    FreeSlot,
    HeartbeatResponse,
    JobStatus,
    NotifyCheckpointAborted,
    NotifyCheckpointComplete,
    OfferSlots,
    RegisterTaskExecutorAtJobMaster,
    RegistrationSuccess,
    ReportExecutions,
    ReportWatermark,
    SlotsHeld,
    SubmitTasks,
    TaskManagerInfo,
    TaskMetrics,
    TaskStateChanged,
)
from snapline.runtime.cores.connections import (
    ConnectionID,
    ConnectionLost,
    ConnectionOpened,
    MessageReceived,
    ResourceManagerLeaderChanged,
    Send,
)
from snapline.runtime.cores.machine import CancelTimer, StartTimer, TimerFired
from snapline.runtime.signing import Signer
from tests.simulation.jobs import job, vertex
from tests.unit.coordinator.jobmaster.test_job_master import Story, messages, offers, statuses

A, B = ResourceID("a"), ResourceID("b")
OWN = "own"
LATEST = CheckpointID(5)
TWO = job("two", [vertex("source", 2, source=True)], [], {})
"""Two tasks without an edge between them."""
SUBTASKS = [ExecutionVertexID(JobVertexID("source"), index) for index in (0, 1)]


def old(subtask: int, number: int = 3, graph: str = "old") -> ExecutionAttemptID:
    return ExecutionAttemptID(graph, JobVertexID("source"), subtask, number)


def anybody(*_: object) -> bool:
    return True


def report(
    subtask: int,
    state: ExecutionState = ExecutionState.RUNNING,
    *,
    number: int = 3,
    graph: str = "old",
    seen: int = 0,
    unconfirmed: tuple[AcknowledgeCheckpoint, ...] = (),
    end_of_data: bool = False,
    failure: SerializedFailure | None = None,
) -> ExecutionReport:
    slot = AllocationID(f"{'ab'[subtask]}0")
    attempt = old(subtask, number, graph)
    return ExecutionReport(
        attempt,
        state,
        slot,
        CheckpointID(seen),
        unconfirmed,
        end_of_data,
        failure,
        False,
        confirmed_checkpoint_id=LATEST,
    )


def reconciliation(*reports: tuple[ResourceID, ExecutionReport]) -> Reconciliation:
    found = Reconciliation(SUBTASKS, lambda subtask: subtask, OWN, anybody, str)
    for resource in dict.fromkeys(resource for resource, _ in reports):
        found.report(resource, [each for owner, each in reports if owner == resource])
    return found


def decide(found: Reconciliation) -> Waiting | AdoptionRefused | Adoptable:
    return found.decide(lambda _resource, _slot: True, LATEST)


def test_every_subtask_must_be_reported() -> None:
    """And its slot offered."""
    found = reconciliation((A, report(0)))

    assert decide(found) == Waiting(1)
    found.report(B, [report(1, ExecutionState.INITIALIZING)])
    assert isinstance(decide(found), Adoptable)
    assert found.decide(lambda resource, _: resource == A, LATEST) == Waiting(1)


def test_a_task_manager_that_goes_takes_its_report_along() -> None:
    """It is waited for again."""
    found = reconciliation((A, report(0)), (B, report(1)))
    found.forget(B)

    assert decide(found) == Waiting(1)


def test_the_later_attempt_of_a_subtask_counts() -> None:
    """The earlier one, on a TaskManager that was cut off, is not wanted."""
    found = reconciliation((A, report(0)), (B, report(1)), (ResourceID("c"), report(1, number=2)))
    decision = decide(found)

    assert isinstance(decision, Adoptable)
    assert [each.report.attempt_id for each in decision.executions] == [old(0), old(1)]
    assert [each.report.attempt_id for each in decision.others] == [old(1, 2)]


def test_attempts_of_two_execution_graphs_do_not_mix() -> None:
    """What an even earlier leader deployed is no replacement."""
    found = reconciliation((A, report(0)), (B, report(1, graph="older")))

    assert decide(found) == Waiting(1)


def test_a_complete_set_is_adopted_though_something_older_has_failed() -> None:
    """An execution graph beyond adoption stands in nobody's way."""
    failed = report(1, ExecutionState.FAILED, graph="older")
    found = reconciliation((A, report(0)), (B, report(1)), (ResourceID("c"), failed))

    assert isinstance(decide(found), Adoptable)


def test_who_took_no_part_in_the_latest_checkpoint_counts_for_nothing() -> None:
    """A leader in between ran the job without it: it would write once more what is committed. An acknowledgement is
    enough."""
    cut_off = replace(report(1), confirmed_checkpoint_id=CheckpointID(4))
    found = reconciliation((A, report(0)), (B, cut_off))
    assert decide(found) == Waiting(1)

    acknowledged = AcknowledgeCheckpoint(TWO.job_id, old(1), LATEST)
    found.report(B, [replace(cut_off, unconfirmed=(acknowledged,))])
    assert isinstance(decide(found), Adoptable)


def test_what_ends_or_has_ended_cannot_be_adopted() -> None:
    """Known at once, whoever else reports."""
    for state in (ExecutionState.CANCELING, ExecutionState.CANCELED, ExecutionState.FAILED):
        decision = decide(reconciliation((A, report(0)), (B, report(1, state))))
        assert decision == AdoptionRefused(f"{old(1)} is {state.value}")


def test_a_job_that_was_being_stopped_cannot_be_adopted() -> None:
    """Its tasks stand still after the savepoint, and nobody knows any more whether it will be complete."""
    found = reconciliation((A, replace(report(0), stopping=True)), (B, report(1)))

    assert decide(found) == AdoptionRefused(f"{old(0)} was being stopped with a savepoint")


def test_another_parallelism_cannot_be_adopted() -> None:
    """A rescale that the job's graph does not know of."""
    found = Reconciliation(SUBTASKS[:1], lambda subtask: subtask, OWN, anybody, str)
    found.report(A, [report(0), report(1)])

    assert decide(found) == AdoptionRefused(f"{old(1)} is no subtask of the job: it ran with another parallelism")


def test_what_has_finished_is_accounted_for() -> None:
    """Without a slot: it may have been given back."""
    found = reconciliation((A, report(0, ExecutionState.FINISHED)), (B, report(1)))
    decision = found.decide(lambda resource, _: resource == B, LATEST)

    assert isinstance(decision, Adoptable)
    assert [each.report.attempt_id for each in decision.executions] == [old(0), old(1)]
    assert decision.running == (old(1),)


def test_a_checkpoint_knows_who_has_finished_when_nobody_reports_it() -> None:
    """Its TaskManager is gone; the attempt is one that never was."""
    decision = reconciliation((B, report(1))).decide(lambda *_: True, LATEST, SUBTASKS[:1])

    assert isinstance(decision, Adoptable)
    assert [each.report.attempt_id for each in decision.executions] == [old(0, 0, OWN), old(1)]


def test_what_runs_again_has_not_finished() -> None:
    """Another execution graph has it, whatever the checkpoint says."""
    found = reconciliation((A, report(0, graph="older")), (B, report(1)))

    assert found.decide(lambda *_: True, LATEST, SUBTASKS[:1]) == Waiting(1)


def one_region(*reports: tuple[ResourceID, ExecutionReport]) -> Reconciliation:
    found = Reconciliation(SUBTASKS, lambda _: SUBTASKS[0], OWN, anybody, str)
    for resource, each in reports:
        found.report(resource, [each])
    return found


def test_an_attempt_older_than_its_region_counts_for_nothing() -> None:
    """It had finished, and then the region was restarted; its successor is missing."""
    found = one_region((A, report(0, ExecutionState.FINISHED)), (B, report(1, number=4)))

    assert decide(found) == Waiting(1)
    found.report(ResourceID("c"), [report(0, number=4)])
    assert isinstance(decide(found), Adoptable)


def test_a_finished_subtask_has_the_number_of_its_region() -> None:
    """So that the region is of one number for the next leader, too."""
    decision = one_region((B, report(1, number=4))).decide(lambda *_: True, LATEST, SUBTASKS[:1])

    assert isinstance(decision, Adoptable)
    assert [each.report.attempt_id for each in decision.executions] == [old(0, 4), old(1, 4)]


def test_what_ended_before_a_rescale_is_in_nobodys_way() -> None:
    """A TaskManager remembers subtasks that the job has not any more."""
    found = Reconciliation(SUBTASKS[:1], lambda subtask: subtask, OWN, anybody, str)
    found.report(A, [report(0), report(1, ExecutionState.FINISHED, number=2)])

    assert isinstance(decide(found), Adoptable)


def test_what_finished_before_a_rescale_does_not_stand_for_the_subtask_that_has_its_number_now() -> None:
    """That one was cancelled when it was reported, and the job ended without its rows."""
    before = replace(report(0, ExecutionState.FINISHED, number=1), confirmed_checkpoint_id=CheckpointID(4))
    found = Reconciliation(SUBTASKS, lambda subtask: subtask, OWN, anybody, str)
    found.report(A, [before, report(1)])
    assert decide(found) == Waiting(1)
    assert isinstance(found.decide(lambda *_: True, LATEST, SUBTASKS[:1]), Adoptable)

    found.report(B, [report(0)])
    decision = decide(found)
    assert isinstance(decision, Adoptable)
    assert decision.running == (old(0), old(1))


def test_states_that_change_while_others_are_waited_for_count() -> None:
    """A task fails before the decision."""
    found = reconciliation((A, report(0)))
    failure = SerializedFailure("it broke")
    found.state_changed(A, old(0), ExecutionState.FAILED, failure)

    assert decide(found) == AdoptionRefused(f"{old(0)} is FAILED", failure)


def test_who_has_no_slot_of_the_job_reports_nothing() -> None:
    """A stranger said that tasks had finished, or failed, and the next leader believed the first that said so."""
    given = GivenSlots(lambda: "a1", lambda: Signer((b"key",)))
    slot = given.give(TWO.job_id, A)
    found = Reconciliation(SUBTASKS, lambda subtask: subtask, OWN, partial(given.is_given, TWO.job_id), str)
    lies = [
        replace(report(index, ExecutionState.FINISHED), allocation_id=lie)
        for index, lie in enumerate((slot, AllocationID("x")))
    ]
    truth = [replace(report(index), allocation_id=slot) for index in (0, 1)]

    assert found.report(B, lies) == []
    assert found.report(A, truth) == truth
    assert [each.resource_id for each in found.live()] == [A, A]


def test_one_slot_is_not_two_places() -> None:
    """A TaskManager with one slot reported two subtasks in it, and the JobMaster broke until the job had failed."""
    found = Reconciliation(SUBTASKS, lambda subtask: subtask, OWN, anybody, str)
    slot = AllocationID("a0")
    found.report(A, [replace(report(index), allocation_id=slot) for index in (0, 1)])

    assert decide(found) == AdoptionRefused("a slot is said to be two places")


# --- the JobMaster around it ------------------------------------------------------------------------------------------


def recovering(latest: int = 5, **settings: Any) -> Story:
    story = Story(TWO, reconciliation_timeout_ms=700, **settings)
    story.checkpoints.answers[RestoreLatest] = [StateRestored(CheckpointRequestID("restore-0"), CheckpointID(latest))]
    story.take(JobMasterStarted(recovered=True))
    return story


def reports(story: Story, who: ResourceID, *executions: ExecutionReport) -> list[Any]:
    """It registers, reports, answers as to a heartbeat, and offers its slot, as a TaskExecutor does."""
    story.hears(who, RegisterTaskExecutorAtJobMaster(TWO.job_id, TaskManagerInfo(who, f"{who}:9", 8, "0.1.0", "h", 1)))
    effects = story.hears(who, ReportExecutions(TWO.job_id, who, executions))
    running = tuple(each.attempt_id for each in executions if not each.state.is_terminal)
    effects += story.hears(who, HeartbeatResponse(executions=running))
    return effects + story.hears(who, OfferSlots(TWO.job_id, who, offers(who, 0)))


def test_it_asks_what_was_completed_and_waits() -> None:
    """RECONCILING; nothing is restored or deployed, and no slot asked for."""
    story = Story(TWO, reconciliation_timeout_ms=700)
    effects = story.take(JobMasterStarted(recovered=True))

    assert statuses(effects) == [JobStatus.CREATED, JobStatus.RECONCILING]
    assert StartTimer(ReconciliationTimer(), 700) in effects
    assert story.checkpoints.events == [
        RestoreLatest(CheckpointRequestID("restore-0"), None, allow_non_restored_state=True, for_running_tasks=True)
    ]
    story.take(ResourceManagerLeaderChanged("rm:1", LeaderSessionID("rm")))
    story.take(ConnectionOpened(ConnectionID("dial-1")))
    assert messages(registered_at_resource_manager(story), DeclareRequiredSlots) == []


def registered_at_resource_manager(story: Story) -> list[Any]:
    message = Fenced(LeaderSessionID("rm"), RegistrationSuccess(10, 50))
    return story.take(MessageReceived(ConnectionID("dial-1"), message))


def test_what_runs_is_adopted_as_it_is() -> None:
    """RUNNING without a deployment or a cancellation; completed is confirmed, pending aborted, and its files handed
    in."""
    story = recovering(latest=5)
    acknowledged = tuple(AcknowledgeCheckpoint(TWO.job_id, old(0), CheckpointID(number)) for number in (5, 6))
    first = reports(story, A, report(0, seen=6, unconfirmed=acknowledged))
    assert statuses(first) == []
    assert messages(first, CancelTask) == []
    assert story.core.status_detail == "waiting for reports of 1 of 2 subtasks"
    effects = reports(story, B, report(1, seen=7, end_of_data=True))

    assert statuses(effects) == [JobStatus.RUNNING]
    assert messages(effects, CancelTask) == messages(effects, SubmitTasks) == []
    assert [(m.attempt_id, m.checkpoint_id) for m in messages(effects, NotifyCheckpointComplete)] == [
        (old(0), 5),
        (old(1), 5),
    ]
    assert [(m.attempt_id, m.checkpoint_id) for m in messages(effects, NotifyCheckpointAborted)] == [
        (old(0), 6),
        (old(1), 6),
        (old(0), 7),
        (old(1), 7),
    ]
    assert story.checkpoints.events[1:] == [AcknowledgesReceived(acknowledged[1:]), EndOfDataReceived((old(1),))]
    assert story.checkpoints.changes == [(str(old(0)), "RUNNING"), (str(old(1)), "RUNNING")]
    assert CancelTimer(ReconciliationTimer()) in effects
    assert story.core.scheduler.pool.held == (SlotsHeld(A, 1), SlotsHeld(B, 1))


def test_sources_keep_step_with_those_that_are_not_adopted_yet() -> None:
    """However long that takes: one that cannot report again soon must not be forgotten (simulator seed 9401987)."""
    story = recovering()
    reports(story, A, report(0))
    story.hears(A, ReportWatermark(TWO.job_id, old(0), "g", 5, 10))

    ahead = ReportWatermark(TWO.job_id, old(1), "g", 100, 10)
    assert messages(story.hears(A, ahead, at_ms=1_000), AlignWatermarks) == [AlignWatermarks(TWO.job_id, old(1), 15)]


def test_the_first_checkpoint_after_an_adoption_begins_at_once() -> None:
    """Its barriers release tasks that still wait for those of the one that is gone. Only the first."""
    story = recovering()
    reports(story, A, report(0))
    reports(story, B, report(1))
    story.take(StartCheckpointScheduler(900))
    story.take(StartCheckpointScheduler(900))

    assert story.checkpoints.events[-2:] == [StartCheckpointScheduler(0), StartCheckpointScheduler(900)]


def test_a_failure_after_the_adoption_restarts_with_the_next_attempt() -> None:
    """In the adopted execution graph: no attempt id comes again."""
    story = recovering()
    reports(story, A, report(0))
    reports(story, B, report(1))
    effects = story.enters(A, old(0), ExecutionState.FAILED, SerializedFailure("it broke"))

    assert statuses(effects) == [JobStatus.RESTARTING]
    story.checkpoints.answers[RestoreLatest] = [StateRestored(CheckpointRequestID("restore-1"), CheckpointID(5))]
    story.hears(B, HeartbeatResponse(executions=(old(1),)))
    submitted = messages(story.take(TimerFired(RestartDelayTimer()), 40), SubmitTasks)
    assert [task.attempt_id for message in submitted for task in message.tasks] == [old(0, 4)]


def test_a_job_that_has_stopped_in_part_is_adopted_and_starts_again_as_a_whole_when_the_rest_fails() -> None:
    """What had stopped behind the savepoint stayed FINISHED, and under the next leader the job ran on without it."""
    story = recovering()
    reports(story, A, replace(report(0, ExecutionState.FINISHED), stopping=True))
    assert statuses(reports(story, B, report(1))) == [JobStatus.RUNNING]
    assert story.checkpoints.events[-1] == JobHasStopped()
    story.enters(B, old(1), ExecutionState.FAILED, SerializedFailure("the commit raised"))
    story.take(TimerFired(RestartDelayTimer()), 40)

    assert story.checkpoints.events[-1] == RestoreLatest(CheckpointRequestID("restore-1"), None, True)


def test_reports_that_stay_away_restart_the_job() -> None:
    """After jobmanager.reconciliation.timeout; what was reported is cancelled, and everything deployed anew."""
    story = recovering()
    reports(story, A, report(0))
    story.checkpoints.answers[RestoreLatest] = [StateRestored(CheckpointRequestID("restore-1"), CheckpointID(5))]
    effects = story.take(TimerFired(ReconciliationTimer()), 700)

    assert statuses(effects) == [JobStatus.RESTARTING]
    assert messages(effects, CancelTask) == [CancelTask(old(0))]
    deployed = messages(story.task_manager(B, 0), SubmitTasks)
    assert [task.attempt_id for message in deployed for task in message.tasks] == [
        ExecutionAttemptID("g", JobVertexID("source"), subtask, 0) for subtask in (0, 1)
    ]


def test_a_reactive_job_that_a_new_leader_deploys_anew_waits_until_its_slots_have_settled() -> None:
    """It began with the first slot that was offered, and had to be rescaled for those that came right behind."""
    story = recovering(is_reactive=True, resource_stabilization_ms=100)
    story.checkpoints.answers[RestoreLatest] = [StateRestored(CheckpointRequestID("restore-1"), CheckpointID(5))]
    story.take(TimerFired(ReconciliationTimer()), 700)

    assert messages(story.task_manager(A, 0), SubmitTasks) == messages(story.task_manager(B, 0), SubmitTasks) == []
    deployed = messages(story.take(TimerFired(RestartDelayTimer()), 800), SubmitTasks)
    assert {task.parallelism for message in deployed for task in message.tasks} == {2}


def test_a_task_that_failed_without_a_leader_restarts_the_job_at_once() -> None:
    """Nobody waits for the others."""
    story = recovering()
    story.checkpoints.answers[RestoreLatest] = [StateRestored(CheckpointRequestID("restore-1"), CheckpointID(5))]
    effects = reports(story, A, report(0, ExecutionState.FAILED, failure=SerializedFailure("it broke")))

    assert statuses(effects) == [JobStatus.RESTARTING]


def test_a_job_that_is_cancelled_while_it_reconciles_ends() -> None:
    """What runs hears it from its TaskManager, which is disconnected."""
    story = recovering()
    reports(story, A, report(0))
    effects = story.operate(CancelJob())

    assert statuses(effects) == [JobStatus.CANCELLING, JobStatus.CANCELED]
    assert CancelTimer(ReconciliationTimer()) in effects


def test_a_new_job_does_not_wait() -> None:
    """Only one that another leader ran."""
    story = Story(TWO, reconciliation_timeout_ms=700)

    assert statuses(story.take(JobMasterStarted())) == [JobStatus.CREATED]


def test_a_job_with_finished_subtasks_is_adopted() -> None:
    """One is reported; nothing is sent to it, and its next attempt has an id that never was."""
    story = recovering()
    reports(story, A, report(0))
    effects = reports(story, B, report(1, ExecutionState.FINISHED))

    assert statuses(effects) == [JobStatus.RUNNING]
    assert messages(effects, CancelTask) == messages(effects, SubmitTasks) == []
    assert [m.attempt_id for m in messages(effects, NotifyCheckpointComplete)] == [old(0)]
    assert story.checkpoints.changes == [(str(old(0)), "RUNNING"), (str(old(1)), "FINISHED")]
    assert statuses(story.enters(A, old(0), ExecutionState.FINISHED)) == [JobStatus.FINISHED]


def test_a_subtask_that_had_finished_in_the_checkpoint_needs_no_report() -> None:
    """Its TaskManager ended with it."""
    story = Story(TWO, reconciliation_timeout_ms=700)
    ended = {SUBTASKS[1]: TaskStateSnapshot(is_task_finished=True)}
    story.checkpoints.answers[RestoreLatest] = [
        StateRestored(CheckpointRequestID("restore-0"), CheckpointID(5), assignments=ended)
    ]
    story.take(JobMasterStarted(recovered=True))
    effects = reports(story, A, report(0))

    assert statuses(effects) == [JobStatus.RUNNING]
    assert [str(e.attempt_id) for e in story.core.scheduler.graph.executions] == ["old_source_0_3", "g_source_1_0"]


def test_the_adopted_tasks_are_sent_to_under_the_new_session() -> None:
    """Every message carries it."""
    story = recovering()
    reports(story, A, report(0))
    effects = reports(story, B, report(1))

    assert {e.envelope.leader_session_id for e in effects if isinstance(e, Send)} == {story.core.identity.session}


def counted(attempt: ExecutionAttemptID, rows: int) -> TaskMetrics:
    return TaskMetrics(attempt, accumulators=(AccumulatorValue("rows", "LongCounter", whole=rows),))


def test_new_job_master_has_the_accumulators_of_what_it_adopts() -> None:
    """Of the tasks that run and of those that had finished; of a subtask that is not there any more nothing counts."""
    story = recovering()
    gone = replace(report(0, ExecutionState.FINISHED, number=2), attempt_id=old(2, 2), metrics=counted(old(2, 2), 100))
    reports(story, A, replace(report(0, ExecutionState.FINISHED), metrics=counted(old(0), 5)), gone)
    reports(story, B, replace(report(1), metrics=counted(old(1), 7)))

    shown = job_details(story.core, CheckpointStatsTracker(1).create_snapshot())

    assert story.core.status is JobStatus.RUNNING
    assert [(value.name, value.whole) for value in shown.accumulators] == [("rows", 5), ("rows", 7)]


def test_accumulators_of_an_attempt_that_was_replaced_do_not_count() -> None:
    """Its successor begins at nothing, and has not been heard of yet."""
    story = recovering()
    reports(story, A, replace(report(0), metrics=counted(old(0), 5)))
    reports(story, B, replace(report(1), metrics=counted(old(1, 2), 100)))

    shown = job_details(story.core, CheckpointStatsTracker(1).create_snapshot())

    assert story.core.status is JobStatus.RUNNING
    assert [(value.name, value.whole) for value in shown.accumulators] == [("rows", 5)]


def test_an_adopted_job_that_is_not_restarted_fails_when_its_tasks_are_lost() -> None:
    """They had run under the leader before: deployed again, the job began anew, and its rows came a second time."""
    story = recovering(restart_strategy=NoRestartStrategy(chosen=False))
    reports(story, A, report(0))
    reports(story, B, report(1))
    effects = story.take(ConnectionLost(ConnectionID("tm-b"), "reset"))

    assert statuses(effects) == [JobStatus.FAILING]
    assert statuses(story.enters(A, old(0), ExecutionState.CANCELED)) == [JobStatus.FAILED]


def test_slots_in_which_tasks_run_are_taken_whoever_comes_first() -> None:
    """The job had more than it needs: those of the TaskManager that came last were refused, and their tasks ended."""
    story = recovering()
    reports(story, ResourceID("c"))
    reports(story, A, report(0))
    effects = reports(story, B, report(1))
    assert statuses(effects) == [JobStatus.RUNNING]

    assert [freed.allocation_id for freed in messages(story.take(TimerFired(IdleSlotTimer()), 500), FreeSlot)] == ["c0"]


def test_counters_of_subtasks_that_there_are_not_are_not_kept_while_it_reconciles() -> None:
    """Any attempt might be one of the former leader's, and a stranger's counters of invented ones stayed for good."""
    story = recovering()
    reports(story, A, report(0))
    invented = [ExecutionAttemptID("graph", JobVertexID(f"v-{number}"), 0, 0) for number in range(100)]

    story.hears("a", HeartbeatResponse(metrics=(counted(old(0), 5), *(counted(each, 7) for each in invented))))
    story.hears("a", TaskStateChanged(TWO.job_id, invented[0], ExecutionState.RUNNING, metrics=counted(invented[0], 7)))

    assert {SUBTASKS[0]: counted(old(0), 5)} == story.core.metrics
