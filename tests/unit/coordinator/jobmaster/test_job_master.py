"""JobMaster: one job from its start to its end, message by message; whole effect lists."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import pytest

from snapline.coordinator.checkpoint.effects import (
    CheckpointRequestCompleted,
    CheckpointRequestFailed,
    FailJob,
    FailTask,
    RestoreFailed,
    StateRestored,
)
from snapline.coordinator.checkpoint.events import (
    AcknowledgesReceived,
    CheckpointRequested,
    CheckpointRequestID,
    CheckpointStored,
    EndOfDataReceived,
    RestoreLatest,
    RestoreSavepoint,
    Shutdown,
    StartCheckpointScheduler,
    StopWithSavepointRequested,
)
from snapline.coordinator.execution.restart_strategy import FixedDelayRestartStrategy, RestartStrategy
from snapline.coordinator.jobmaster.effects import (
    ForgetJobGraph,
    JobReachedTerminalState,
    LoadSavepoint,
    ReportJobStatus,
    UpdateJobGraph,
)
from snapline.coordinator.jobmaster.events import (
    JobGraphForgotten,
    JobGraphUpdated,
    JobMasterStarted,
    JobMasterSuspended,
    OperationRequested,
    SavepointLoaded,
    SavepointLoadFailed,
)
from snapline.coordinator.jobmaster.identity import JobMasterIdentity
from snapline.coordinator.jobmaster.job_master import JobMaster
from snapline.coordinator.jobmaster.job_master_settings import JobMasterSettings
from snapline.coordinator.jobmaster.operations import (
    Acknowledged,
    CancelJob,
    JobOperation,
    OperationFailed,
    Reply,
    RequestID,
    RescaleJob,
    SnapshotCompleted,
    StopWithSavepoint,
    TakeCheckpoint,
    TakeSavepoint,
)
from snapline.coordinator.jobmaster.scheduler_effects import CancellationTimer, RestartDelayTimer, SlotRequestTimer
from snapline.dataflow.elements import CheckpointOptions, SnapshotType
from snapline.dataflow.failures import Blame, CheckpointFailureReason, SerializedFailure
from snapline.dataflow.graph.jobgraph import JobGraph, SavepointRestoreSettings
from snapline.dataflow.ids import (
    AllocationID,
    CheckpointID,
    ExecutionAttemptID,
    JobVertexID,
    LeaderSessionID,
    ResourceID,
)
from snapline.dataflow.snapshot.handles import CheckpointMetadata
from snapline.dataflow.wire.messages import (
    AcknowledgeCheckpoint,
    AlignWatermarks,
    CancelTask,
    DeclareRequiredSlots,
    Disconnect,
    EndOfDataReached,
    ExecutionState,
    Fenced,
    ForTasks,
    HeartbeatRequest,
    HeartbeatResponse,
    JobStatus,
    NotEnoughResources,
    NotifyCheckpointComplete,
    NotifyTaskManagerLost,
    OfferSlots,
    RegisterJobMaster,
    RegisterTaskExecutorAtJobMaster,
    RegistrationRejected,
    RegistrationSuccess,
    ReportWatermark,
    SlotOffer,
    SlotOffersAnswered,
    SlotReport,
    SlotsHeld,
    SubmitTasks,
    TaskManagerInfo,
    TaskStateChanged,
    TriggerCheckpoint,
)
from snapline.runtime.cores.connections import (
    CloseConnection,
    ConnectionID,
    ConnectionLost,
    ConnectionOpened,
    MessageReceived,
    MessagesReceived,
    OpenConnection,
    Peer,
    PeerKind,
    ResourceManagerLeaderChanged,
    Send,
    SendToTasks,
    TogetherReceived,
)
from snapline.runtime.cores.heartbeat import UNSENT_HEARTBEAT, HeartbeatSettings, HeartbeatTimer
from snapline.runtime.cores.machine import CancelTimer, StartTimer, TimerFired
from snapline.runtime.cores.registration import RegistrationSettings
from tests.simulation.jobs import job, parallel_job, vertex
from tests.unit.coordinator.jobmaster.scripted_checkpoints import ScriptedCheckpointCoordinator

SESSION, STALE, RM_SESSION = LeaderSessionID("jm"), LeaderSessionID("jm-0"), LeaderSessionID("rm")
RM = ConnectionID("dial-1")
A, B = ResourceID("a"), ResourceID("b")
R = RequestID("r")
ONE = job("one", [vertex("source", 1, source=True)], [], {})
"""One task."""


class Story:
    """One JobMaster with a scripted checkpoint core."""

    def __init__(
        self,
        graph: JobGraph = ONE,
        attempts: int = 10,
        failure_threshold: int = 1,
        checkpoints: Any = None,
        restart_strategy: RestartStrategy | None = None,
        **settings: Any,
    ) -> None:
        self.graph = graph
        self.checkpoints = checkpoints or ScriptedCheckpointCoordinator()
        numbers = itertools.count(1)
        heartbeat = HeartbeatSettings(10, 50, failure_threshold)
        self.core = JobMaster(
            graph,
            JobMasterIdentity(SESSION, "jm:1", "g"),
            JobMasterSettings(heartbeat, RegistrationSettings(100, 400), 1_000, 500, 300, **settings),
            restart_strategy or FixedDelayRestartStrategy(attempts, 40),
            self.checkpoints,
            f"/base/{graph.job_id}",
            lambda: f"{next(numbers):032x}",
            0,
        )
        self.now_ms = 0
        self.graph_store_answers = True
        """At once."""

    def take(self, event: Any, at_ms: int | None = None) -> list[Any]:
        self.now_ms = self.now_ms if at_ms is None else at_ms
        effects = list(self.core.handle(event, self.now_ms))
        if self.graph_store_answers and any(isinstance(effect, UpdateJobGraph) for effect in effects):
            effects += self.take(JobGraphUpdated())
        if self.graph_store_answers and any(isinstance(effect, ForgetJobGraph) for effect in effects):
            effects += self.take(JobGraphForgotten())
        return effects

    def with_slow_graph_store(self) -> Story:
        self.graph_store_answers = False
        return self

    def hears(
        self, who: str, message: object, session: LeaderSessionID = SESSION, at_ms: int | None = None
    ) -> list[Any]:
        return self.take(MessageReceived(ConnectionID(f"tm-{who}"), Fenced(session, message)), at_ms)

    def start(self) -> Story:
        self.take(JobMasterStarted())
        return self

    def task_manager(self, who: ResourceID, *slots: int) -> list[Any]:
        """It registers and offers slots; what the offer led to."""
        info = TaskManagerInfo(who, f"{who}:9", 8, "0.1.0", "host", 1)
        self.hears(who, RegisterTaskExecutorAtJobMaster(self.graph.job_id, info))
        return self.hears(who, OfferSlots(self.graph.job_id, who, offers(who, *slots)))

    def enters(
        self, who: str, attempt: ExecutionAttemptID, state: ExecutionState, failure: SerializedFailure | None = None
    ) -> list[Any]:
        return self.hears(who, TaskStateChanged(self.graph.job_id, attempt, state, failure))

    def run(self) -> Story:
        """The one task of ONE runs on A."""
        self.start().task_manager(A, 0)
        self.enters("a", attempt(), ExecutionState.RUNNING)
        return self

    def operate(self, operation: Any) -> list[Any]:
        return self.take(OperationRequested(R, operation))


def attempt(number: int = 0, name: str = "source", subtask: int = 0) -> ExecutionAttemptID:
    return ExecutionAttemptID("g", JobVertexID(name), subtask, number)


def allocation(who: str, slot: int) -> AllocationID:
    return AllocationID(f"{who}{slot}")


def offers(who: str, *slots: int) -> tuple[SlotOffer, ...]:
    return tuple(SlotOffer(allocation(who, slot), slot) for slot in slots)


def send(who: str, message: object) -> Send:
    return Send(ConnectionID(f"tm-{who}"), Fenced(SESSION, message))


def statuses(effects: list[Any]) -> list[JobStatus]:
    return [effect.change.status for effect in effects if isinstance(effect, ReportJobStatus)]


def messages(effects: list[Any], kind: type) -> list[Any]:
    return [e.envelope.message for e in sends(effects) if isinstance(e.envelope.message, kind)]


def sends(effects: list[Any]) -> list[Send]:
    """Also those that are one effect for many tasks."""
    single = ((e,) if isinstance(e, Send) else e.sends() if isinstance(e, SendToTasks) else () for e in effects)
    return [send for several in single for send in several]


def answer(effects: list[Any]) -> Any:
    (reply,) = [effect.answer for effect in effects if isinstance(effect, Reply)]
    return reply


def test_it_starts_by_asking_what_to_start_from() -> None:
    """CREATED is reported, heartbeats begin, all attempts are told, slots are waited for."""
    story = Story()
    effects = story.take(JobMasterStarted())

    assert statuses(effects) == [JobStatus.CREATED]
    assert effects[1:] == [
        StartTimer(HeartbeatTimer("task-managers", None), 0),
        StartTimer(SlotRequestTimer(), 1_000),
    ]
    assert story.checkpoints.changes == [("g_source_0_0", "CREATED")]
    assert story.checkpoints.events == [RestoreLatest(CheckpointRequestID("restore-1"))]
    assert story.core.status_detail == "waiting for slots: 1 required, 0 available"


def test_it_registers_with_the_resource_manager_and_declares_what_it_needs() -> None:
    """And says again what it needs and holds whenever that changes."""
    story = Story().start()

    assert story.take(ResourceManagerLeaderChanged("rm:1", RM_SESSION))[0] == OpenConnection(
        RM, Peer(PeerKind.RESOURCE_MANAGER, "rm:1")
    )
    assert story.take(ConnectionOpened(RM)) == [
        Send(RM, Fenced(RM_SESSION, RegisterJobMaster(ONE.job_id, "one", "jm:1", SESSION)))
    ]
    effects = story.take(MessageReceived(RM, Fenced(RM_SESSION, RegistrationSuccess(10, 50))))
    assert effects[-1] == Send(RM, Fenced(RM_SESSION, DeclareRequiredSlots(ONE.job_id, 1)))
    assert story.take(MessageReceived(RM, Fenced(RM_SESSION, HeartbeatRequest()))) == [
        Send(RM, Fenced(RM_SESSION, HeartbeatResponse()))
    ]
    effects = story.task_manager(A, 0)
    assert Send(RM, Fenced(RM_SESSION, DeclareRequiredSlots(ONE.job_id, 1, (SlotsHeld(A, 1),)))) in effects


def test_a_task_manager_registers_offers_and_gets_tasks() -> None:
    """Accepted what is needed, rejected what is not, deployed when all slots are there."""
    story = Story().start()
    info = TaskManagerInfo(A, "a:9", 8, "0.1.0", "host", 1)

    assert story.hears("a", RegisterTaskExecutorAtJobMaster(ONE.job_id, info)) == [
        send("a", RegistrationSuccess(10, 50)),
        StartTimer(HeartbeatTimer("task-managers", A), 50),
    ]
    effects = story.hears("a", OfferSlots(ONE.job_id, A, offers("a", 0, 1)))
    assert effects[:2] == [
        send("a", SlotOffersAnswered(ONE.job_id, (allocation("a", 0),), (allocation("a", 1),))),
        CancelTimer(SlotRequestTimer()),
    ]
    (submitted,) = messages(effects, SubmitTasks)
    (task,) = submitted.tasks
    assert (task.attempt_id, task.allocation_id, task.checkpoint_directory) == (
        attempt(),
        allocation("a", 0),
        "/base/job-one",
    )
    assert story.checkpoints.changes[-2:] == [("g_source_0_0", "SCHEDULED"), ("g_source_0_0", "DEPLOYING")]


def test_it_is_running_when_every_task_runs() -> None:
    """Not before; the checkpoint core is told first."""
    story = Story(parallel_job(parallelism=2))
    story.start().task_manager(A, 0, 1)
    everything = [attempt(0, name, index) for name in ("source", "sink") for index in (0, 1)]

    for each in everything[:-1]:
        story.enters("a", each, ExecutionState.INITIALIZING)
        assert statuses(story.enters("a", each, ExecutionState.RUNNING)) == []
    assert statuses(story.enters("a", everything[-1], ExecutionState.RUNNING)) == [JobStatus.RUNNING]
    assert len([change for change in story.checkpoints.changes if change[1] == "RUNNING"]) == 4


def test_messages_of_tasks_reach_the_checkpoint_core_and_back() -> None:
    """Acknowledgements and ends of data go in; one message per attempt comes out."""
    story = Story().run()
    acknowledge = AcknowledgeCheckpoint(ONE.job_id, attempt(), CheckpointID(1))
    story.checkpoints.answers[EndOfDataReceived] = [
        ForTasks(
            TriggerCheckpoint(ONE.job_id, attempt(), CheckpointID(2), 77, CheckpointOptions()), (attempt(), attempt(9))
        )
    ]
    story.checkpoints.answers[AcknowledgesReceived] = [
        ForTasks(NotifyCheckpointComplete(ONE.job_id, attempt(), CheckpointID(1), 5), (attempt(),))
    ]

    (complete,) = messages(story.hears("a", acknowledge), object)
    assert (complete.attempt_id, complete.checkpoint_id) == (attempt(), 1)
    assert sends(story.hears("a", EndOfDataReached(ONE.job_id, attempt()))) == [
        send("a", TriggerCheckpoint(ONE.job_id, attempt(), CheckpointID(2), 77, CheckpointOptions()))
    ]
    assert story.checkpoints.events[-2:] == [AcknowledgesReceived((acknowledge,)), EndOfDataReceived((attempt(),))]


def test_a_source_that_says_how_far_it_is_learns_how_far_it_may_go() -> None:
    """The answer goes to the subtask that asked; attempts of the past are not heard."""
    story = Story().run()
    report = ReportWatermark(ONE.job_id, attempt(), "g", 100, 10)
    assert story.hears("a", report) == [send("a", AlignWatermarks(ONE.job_id, attempt(), 110))]
    of_the_past = replace(report, attempt_id=attempt(7), watermark_ms=5)
    assert story.hears("a", of_the_past) == []
    assert messages(story.hears("a", report, at_ms=1_000), AlignWatermarks) == [
        AlignWatermarks(ONE.job_id, attempt(), 110)
    ]


def test_acknowledgements_of_one_task_manager_are_taken_together() -> None:
    """One event for the checkpoint core; a stale session is dropped, a stranger's connection closed."""
    story = Story().run()
    acknowledges = tuple(AcknowledgeCheckpoint(ONE.job_id, attempt(), CheckpointID(n)) for n in (1, 2))
    before = len(story.checkpoints.events)

    assert story.take(TogetherReceived((MessagesReceived(ConnectionID("tm-a"), SESSION, acknowledges),))) == []
    assert story.checkpoints.events[before:] == [AcknowledgesReceived(acknowledges)]
    assert story.take(TogetherReceived((MessagesReceived(ConnectionID("tm-a"), STALE, acknowledges),))) == []
    stranger = ConnectionID("tm-stranger")
    assert story.take(TogetherReceived((MessagesReceived(stranger, SESSION, acknowledges),))) == [
        CloseConnection(stranger)
    ]
    assert len(story.checkpoints.events) == before + 1

    of_a = MessagesReceived(ConnectionID("tm-a"), SESSION, acknowledges)
    stale, strange = replace(of_a, session=STALE), replace(of_a, connection=stranger)
    assert story.take(TogetherReceived((of_a, stale, strange, of_a))) == [CloseConnection(stranger)]
    assert story.checkpoints.events[before + 1 :] == [AcknowledgesReceived(acknowledges * 2)]
    assert story.take(TogetherReceived((stale,))) == []
    assert len(story.checkpoints.events) == before + 2


def test_stale_messages_are_dropped() -> None:
    """Another session, and a stranger that does not introduce itself."""
    story = Story().run()

    failed = TaskStateChanged(ONE.job_id, attempt(), ExecutionState.FAILED)
    assert story.hears("a", failed, STALE) == []
    assert story.hears("x", failed) == [CloseConnection(ConnectionID("tm-x"))]
    info = TaskManagerInfo(B, "b:9", 8, "0.1.0", "host", 1)
    assert story.hears("b", RegisterTaskExecutorAtJobMaster(ONE.job_id, info), STALE) == [
        CloseConnection(ConnectionID("tm-b"))
    ]
    other = RegisterTaskExecutorAtJobMaster(parallel_job().job_id, info)
    assert messages(story.hears("b", other), RegistrationRejected)[0].reason == "this is the JobMaster of job-one"


def test_a_failed_task_is_restarted_after_the_delay_from_the_latest_checkpoint() -> None:
    """RESTARTING, the delay, restore, deployed with the next attempt in the same slot, RUNNING."""
    story = Story().run()
    effects = story.enters("a", attempt(), ExecutionState.FAILED, SerializedFailure("raised"))

    assert statuses(effects) == [JobStatus.RESTARTING]
    assert effects[-1] == StartTimer(RestartDelayTimer(), 40)
    assert story.core.status_detail == "the restart delay, until 1970-01-01 00:00:00 UTC"
    effects = story.take(TimerFired(RestartDelayTimer()), 40)
    (submitted,) = messages(effects, SubmitTasks)
    assert submitted.tasks[0].attempt_id == attempt(1)
    assert submitted.tasks[0].allocation_id == allocation("a", 0)
    assert story.checkpoints.events[-1] == RestoreLatest(CheckpointRequestID("restore-2"), None, True)
    assert story.checkpoints.changes[-4:-2] == [("g_source_0_0", "FAILED"), ("g_source_0_1", "CREATED")]
    assert statuses(story.enters("a", attempt(1), ExecutionState.RUNNING)) == [JobStatus.RUNNING]


def test_nothing_is_deployed_before_the_restore_is_answered() -> None:
    """A store in flight decides first what the latest checkpoint is."""
    story = Story().run()
    story.checkpoints.answers[RestoreLatest] = []
    story.enters("a", attempt(), ExecutionState.FAILED, SerializedFailure("raised"))

    assert messages(story.take(TimerFired(RestartDelayTimer()), 40), SubmitTasks) == []
    story.checkpoints.answers[StartCheckpointScheduler] = [
        StateRestored(CheckpointRequestID("restore-1"), CheckpointID(3)),
        StateRestored(CheckpointRequestID("restore-2"), CheckpointID(4)),
    ]
    (submitted,) = messages(story.take(StartCheckpointScheduler(1)), SubmitTasks)
    assert submitted.tasks[0].restore_checkpoint_id == 4, "the answer of an older round counts for nothing"


def test_a_region_waits_until_all_its_tasks_have_ended() -> None:
    """Cancelled ones that fail, finish or are lost have ended; their failures are not another restart."""
    story = Story(parallel_job(parallelism=2))
    story.start().task_manager(A, 0, 1)
    for name, index in itertools.product(("source", "sink"), (0, 1)):
        story.enters("a", attempt(0, name, index), ExecutionState.RUNNING)
    effects = story.enters("a", attempt(0, "source", 1), ExecutionState.FAILED, SerializedFailure("raised"))

    assert messages(effects, CancelTask) == [CancelTask(attempt(0, "sink", 1))]
    assert StartTimer(CancellationTimer(A), 300) in effects
    assert messages(story.take(TimerFired(RestartDelayTimer()), 40), SubmitTasks) == []
    effects = story.enters("a", attempt(0, "sink", 1), ExecutionState.FAILED, SerializedFailure("upstream is gone"))
    (submitted,) = messages(effects, SubmitTasks)
    assert [task.attempt_id for task in submitted.tasks] == [attempt(1, "source", 1), attempt(1, "sink", 1)]
    assert submitted.tasks[1].input_gates[0].channels[0].producer == attempt(1, "source", 1)
    assert (story.core.scheduler.restarts, story.core.scheduler.operator_failures) == (1, {})
    assert story.checkpoints.events[-1].vertices == (JobVertexID("source"), JobVertexID("sink"))


def test_a_lost_task_manager_is_one_failure_and_its_tasks_go_elsewhere() -> None:
    """The connection broke: its slots leave the pool, new ones are waited for."""
    story = Story(parallel_job(parallelism=2), attempts=1)
    story.start().task_manager(A, 0, 1)
    for name, index in itertools.product(("source", "sink"), (0, 1)):
        story.enters("a", attempt(0, name, index), ExecutionState.RUNNING)
    effects = story.take(ConnectionLost(ConnectionID("tm-a"), "reset"))

    assert statuses(effects) == [JobStatus.RESTARTING]
    assert story.core.scheduler.exceptions[-1].failure.summary == "TaskManager a is lost: the connection broke: reset"
    assert story.take(TimerFired(RestartDelayTimer()), 40)[-1] == StartTimer(SlotRequestTimer(), 1_040)
    (submitted,) = messages(story.task_manager(B, 0, 1), SubmitTasks)
    assert {task.attempt_id.attempt_number for task in submitted.tasks} == {1}
    assert {c.exchange_address for t in submitted.tasks for g in t.input_gates for c in g.channels} == {"b:9"}


def test_a_task_manager_without_a_connection_is_lost_at_the_threshold() -> None:
    """With heartbeat.rpc-failure-threshold at 2 the first heartbeat that finds no connection loses the TaskManager."""
    story = Story(failure_threshold=2).run()
    rounds = HeartbeatTimer("task-managers", None)

    assert story.take(ConnectionLost(ConnectionID("tm-a"), "reset")) == []
    assert statuses(story.take(TimerFired(rounds), 10)) == [JobStatus.RESTARTING]
    summary = f"TaskManager a is lost: {UNSENT_HEARTBEAT}"
    assert story.core.scheduler.exceptions[-1].failure.summary == summary


def test_a_silent_task_manager_is_disconnected() -> None:
    """heartbeat.timeout; what the ResourceManager knows for certain is believed at once."""
    story = Story().run()
    effects = story.take(TimerFired(HeartbeatTimer("task-managers", A)), 50)

    assert effects[:2] == [
        send("a", Disconnect("no heartbeat for 50 ms (heartbeat.timeout)")),
        CloseConnection(ConnectionID("tm-a")),
    ]
    story = Story().run()
    story.take(ResourceManagerLeaderChanged("rm:1", RM_SESSION))
    story.take(ConnectionOpened(RM))
    story.take(MessageReceived(RM, Fenced(RM_SESSION, RegistrationSuccess(10, 50))))
    maybe = MessageReceived(RM, Fenced(RM_SESSION, NotifyTaskManagerLost(A, "silent")))
    assert story.take(maybe) == []
    silent = NotifyTaskManagerLost(A, "no heartbeat for 50 ms", heartbeat_timed_out=True)
    effects = story.take(MessageReceived(RM, Fenced(RM_SESSION, silent)))
    assert JobStatus.RESTARTING in statuses(effects)
    assert effects[:2] == [
        send("a", Disconnect("the ResourceManager says: no heartbeat for 50 ms")),
        CloseConnection(ConnectionID("tm-a")),
    ]
    story = Story().run()
    story.take(ResourceManagerLeaderChanged("rm:1", RM_SESSION))
    story.take(ConnectionOpened(RM))
    story.take(MessageReceived(RM, Fenced(RM_SESSION, RegistrationSuccess(10, 50))))
    certain = MessageReceived(RM, Fenced(RM_SESSION, NotifyTaskManagerLost(A, "killed", terminated=True)))
    assert JobStatus.RESTARTING in statuses(story.take(certain))


def test_heartbeats_reconcile_what_runs() -> None:
    """Unknown attempts are cancelled; missing ones have failed, once the TaskManager had spoken of them."""
    story = Story().start()
    story.task_manager(A, 0)
    report = SlotReport(A, ())

    assert story.hears("a", HeartbeatResponse(executions=(attempt(7),))) == [send("a", CancelTask(attempt(7)))]
    story.enters("a", attempt(), ExecutionState.RUNNING)
    assert story.hears("a", HeartbeatResponse(executions=(attempt(),))) == []
    assert statuses(story.hears("a", HeartbeatResponse())) == [JobStatus.RESTARTING]
    effects = story.hears("a", HeartbeatResponse(report=report))
    assert len(story.core.scheduler.pool) == 0 and effects == []


def test_a_failure_that_must_not_be_retried_fails_the_job() -> None:
    """Whatever the strategy would say; everything is cancelled first."""
    story = Story(parallel_job(parallelism=1))
    story.start().task_manager(A, 0)
    for name in ("source", "sink"):
        story.enters("a", attempt(0, name), ExecutionState.RUNNING)
    failure = SerializedFailure("column 'fare' is missing", retryable=False)
    effects = story.enters("a", attempt(0, "source"), ExecutionState.FAILED, failure)

    assert statuses(effects) == [JobStatus.FAILING]
    assert messages(effects, CancelTask) == [CancelTask(attempt(0, "sink"))]
    effects = story.enters("a", attempt(0, "sink"), ExecutionState.CANCELED)
    assert statuses(effects) == [JobStatus.FAILED]
    assert story.checkpoints.events[-1] == Shutdown(JobStatus.FAILED)
    (end,) = [effect for effect in effects if isinstance(effect, JobReachedTerminalState)]
    assert end.failure is not None
    assert end.failure.summary == "column 'fare' is missing (not restarted: it must not be retried)"


def test_exhausted_restarts_fail_the_job_with_the_last_failure() -> None:
    """The message names the setting."""
    story = Story(attempts=0).run()
    effects = story.enters("a", attempt(), ExecutionState.FAILED, SerializedFailure("raised"))

    assert statuses(effects) == [JobStatus.FAILING, JobStatus.FAILED]
    failure = story.core.scheduler.root_failure
    assert failure is not None and "all 0 restarts of restart-strategy.fixed-delay.attempts" in failure.summary


def test_a_finished_job_is_forgotten_then_its_checkpoints_go() -> None:
    """The order matters: a coordinator that comes after must not run it again, and before that nobody hears of the end.
    Then nothing is left."""
    story = Story().run().with_slow_graph_store()
    effects = story.enters("a", attempt(), ExecutionState.FINISHED)

    assert statuses(effects) == []
    assert [effect for effect in effects if not isinstance(effect, CancelTimer)] == [
        send("a", Disconnect("the job is FINISHED")),
        CloseConnection(ConnectionID("tm-a")),
        ForgetJobGraph(ONE.job_id),
    ]
    assert Shutdown(JobStatus.FINISHED) not in story.checkpoints.events
    waits = "FINISHED as soon as the job graph is removed from the job graph store"
    assert (story.core.status, story.core.status_detail) == (JobStatus.RUNNING, waits)  # clients see what was reported
    effects = story.take(JobGraphForgotten())
    assert statuses(effects) == [JobStatus.FINISHED]
    assert (story.core.status, story.core.status_detail) == (JobStatus.FINISHED, "")
    assert effects[-1] == JobReachedTerminalState(ONE.job_id, JobStatus.FINISHED)
    assert story.take(MessageReceived(ConnectionID("late"), Fenced(SESSION, "x"))) == [
        CloseConnection(ConnectionID("late"))
    ]


def test_cancel_waits_for_the_tasks() -> None:
    """Acknowledged at once, CANCELED when the last one has ended; a task that finished meanwhile counts as
    cancelled."""
    story = Story().run().with_slow_graph_store()
    effects = story.operate(CancelJob())

    assert statuses(effects) == [JobStatus.CANCELLING] and answer(effects) == Acknowledged()
    assert messages(effects, CancelTask) == [CancelTask(attempt())]
    assert ForgetJobGraph(ONE.job_id) in story.enters("a", attempt(), ExecutionState.FINISHED)
    failed = answer(story.operate(CancelJob()))
    assert isinstance(failed, OperationFailed) and failed.failure.summary == "the job is CANCELED"
    assert statuses(story.take(JobGraphForgotten())) == [JobStatus.CANCELED]


@pytest.mark.parametrize("ends", [JobStatus.CANCELED, JobStatus.FAILED])
def test_a_job_that_ends_when_nothing_runs_ends_once(ends: JobStatus) -> None:
    """CANCELLING or FAILING is no end: the checkpoint core has nothing to shut down with, and the graph is forgotten
    first."""
    story = Story(attempts=0 if ends is JobStatus.FAILED else 10).run().with_slow_graph_store()
    effects = story.enters("a", attempt(), ExecutionState.FAILED, SerializedFailure("raised"))
    if ends is JobStatus.CANCELED:
        effects = story.operate(CancelJob())
    assert effects.count(ForgetJobGraph(ONE.job_id)) == 1
    assert not any(isinstance(event, Shutdown) for event in story.checkpoints.events)
    assert statuses(effects) == [JobStatus.CANCELLING if ends is JobStatus.CANCELED else JobStatus.FAILING]

    assert statuses(story.take(JobGraphForgotten())) == [ends]
    assert [event for event in story.checkpoints.events if isinstance(event, Shutdown)] == [Shutdown(ends)]


def test_cancel_before_anything_runs_is_immediate() -> None:
    """Nothing to wait for; the slot request timer goes."""
    story = Story().start()
    effects = story.operate(CancelJob())

    assert statuses(effects) == [JobStatus.CANCELLING, JobStatus.CANCELED]
    assert CancelTimer(SlotRequestTimer()) in effects


def test_a_task_manager_that_does_not_cancel_is_given_up() -> None:
    """Longer than task.cancellation.timeout and a grace: disconnected and lost, so that the job can go on."""
    story = Story().run()
    story.operate(CancelJob())
    effects = story.take(TimerFired(CancellationTimer(A)), 300)

    assert effects[0] == send("a", Disconnect("a task was not cancelled within 300 ms"))
    assert statuses(effects) == [JobStatus.CANCELED]


def test_too_few_slots_are_a_failure_with_the_numbers() -> None:
    """What the ResourceManager said is part of it."""
    story = Story(attempts=0).start()
    story.take(ResourceManagerLeaderChanged("rm:1", RM_SESSION))
    story.take(ConnectionOpened(RM))
    story.take(MessageReceived(RM, Fenced(RM_SESSION, RegistrationSuccess(10, 50))))
    story.take(
        MessageReceived(RM, Fenced(RM_SESSION, NotEnoughResources(ONE.job_id, 1, 0, "the cluster has no cores")))
    )

    assert statuses(story.take(TimerFired(SlotRequestTimer()), 1_000))[:1] == [JobStatus.FAILING]
    failure = story.core.scheduler.root_failure
    assert failure is not None and failure.blame is Blame.EXTERNAL
    assert failure.summary.startswith(
        "the job needs 1 slots and got 0 within 1000 ms (slot.request.timeout); the ResourceManager can give 0 of 1: "
        "the cluster has no cores"
    )


def test_checkpoint_failures_beyond_the_tolerable_restart_the_job() -> None:
    """FailJob is global, FailTask is about one attempt; one of the past is nothing."""
    story = Story().run()
    story.checkpoints.answers[StartCheckpointScheduler] = [
        FailTask(attempt(5), CheckpointFailureReason.TASK_CHECKPOINT_FAILURE, "old")
    ]
    assert story.take(StartCheckpointScheduler(1)) == []
    story.checkpoints.answers[StartCheckpointScheduler] = [
        FailJob(CheckpointFailureReason.CHECKPOINT_EXPIRED, "too slow")
    ]
    effects = story.take(StartCheckpointScheduler(1))

    assert statuses(effects) == [JobStatus.RESTARTING]
    assert messages(effects, CancelTask) == [CancelTask(attempt())]
    assert story.core.scheduler.exceptions[-1].failure.summary == "Checkpoint expired before completing. too slow"


def test_a_job_starts_from_the_savepoint_that_its_user_named() -> None:
    """Loaded by the shell, restored by the checkpoint core with the user's settings."""
    settings = SavepointRestoreSettings("/sp", allow_non_restored_state=True, claim=True)
    story = Story(replace(ONE, savepoint_restore=settings))

    assert story.take(JobMasterStarted())[-1] == LoadSavepoint("/sp")
    metadata = CheckpointMetadata(ONE.job_id, "one", CheckpointID(9), 1, SnapshotType.SAVEPOINT, ())
    story.take(SavepointLoaded(metadata, "file:///sp"))
    assert story.checkpoints.events == [
        RestoreSavepoint(CheckpointRequestID("restore-1"), metadata, "file:///sp", True, True)
    ]


def test_a_savepoint_that_cannot_be_read_fails_the_job() -> None:
    """The user's path, the user's blame; storage that is away for a moment is tried again."""
    graph = replace(ONE, savepoint_restore=SavepointRestoreSettings("/sp"))
    story = Story(graph)
    story.take(JobMasterStarted())
    effects = story.take(SavepointLoadFailed("/sp is no savepoint: it has no _metadata"))
    assert statuses(effects) == [JobStatus.FAILING, JobStatus.FAILED]
    failure = story.core.scheduler.root_failure
    assert failure is not None and failure.blame is Blame.USER

    story = Story(graph)
    story.take(JobMasterStarted())
    assert statuses(story.take(SavepointLoadFailed("no route to storage", retryable=True))) == [JobStatus.RESTARTING]
    assert story.take(TimerFired(RestartDelayTimer()), 40)[-1] == LoadSavepoint("/sp")


def test_a_recovered_job_prefers_its_own_checkpoint_to_the_savepoint() -> None:
    """Only when the leader before had no checkpoint yet, it starts as that one did."""
    story = Story(replace(ONE, savepoint_restore=SavepointRestoreSettings("/sp")))

    assert story.take(JobMasterStarted(recovered=True))[-1] == LoadSavepoint("/sp")
    assert isinstance(story.checkpoints.events[0], RestoreLatest)
    story = Story(replace(ONE, savepoint_restore=SavepointRestoreSettings("/sp")))
    story.checkpoints.answers[RestoreLatest] = [StateRestored(CheckpointRequestID("restore-1"), CheckpointID(4))]
    assert LoadSavepoint("/sp") not in story.take(JobMasterStarted(recovered=True))


def test_state_that_does_not_fit_fails_the_job() -> None:
    """The detail names the culprit."""
    story = Story()
    story.checkpoints.answers[RestoreLatest] = [
        RestoreFailed(CheckpointRequestID("restore-1"), "operator 'w' is not in the job")
    ]

    assert statuses(story.take(JobMasterStarted())) == [JobStatus.CREATED, JobStatus.FAILING, JobStatus.FAILED]


def test_checkpoints_and_savepoints_are_answered_when_they_are_complete() -> None:
    """Paths below the job's directory; a savepoint gets a directory that never was."""
    story = Story().run()
    key = CheckpointRequestID("client-r")
    story.checkpoints.answers[CheckpointRequested] = [CheckpointRequestCompleted(key, CheckpointID(6), "chk-6")]

    assert answer(story.operate(TakeCheckpoint())) == SnapshotCompleted(CheckpointID(6), "/base/job-one/chk-6")
    story.operate(TakeSavepoint("/sp/"))
    assert story.checkpoints.events[-1] == CheckpointRequested(
        key, SnapshotType.SAVEPOINT, "/sp/savepoint-job-on-000000000000"
    )
    refused = answer(story.operate(TakeSavepoint()))
    assert isinstance(refused, OperationFailed) and "execution.checkpointing.savepoint-dir" in refused.failure.summary
    refused = answer(story.operate(TakeSavepoint("s3://")))
    assert "'s3://' names no directory for the savepoint" in refused.failure.summary
    story.checkpoints.answers[CheckpointRequested] = [
        CheckpointRequestFailed(key, CheckpointFailureReason.NOT_ALL_REQUIRED_TASKS_RUNNING)
    ]
    failed = answer(story.operate(TakeCheckpoint()))
    assert failed.failure.summary == "Not all required tasks are currently running."


def test_stop_with_savepoint_is_answered_at_the_end() -> None:
    """Not when the savepoint is complete, but when the job is FINISHED and no new leader would start it again, beside
    the one that the user starts from the savepoint (seed 5202); a failure in between says where it lies."""
    key = CheckpointRequestID("client-r")
    completed = CheckpointRequestCompleted(key, CheckpointID(6), "file:///sp/x")
    story = Story().run().with_slow_graph_store()
    story.checkpoints.answers[StopWithSavepointRequested] = [completed]
    assert not any(isinstance(effect, Reply) for effect in story.operate(StopWithSavepoint("/sp")))
    effects = story.enters("a", attempt(), ExecutionState.FINISHED)
    assert ForgetJobGraph(ONE.job_id) in effects and not any(isinstance(effect, Reply) for effect in effects)
    assert answer(story.take(JobGraphForgotten())) == SnapshotCompleted(CheckpointID(6), "file:///sp/x")

    story = Story().run()
    story.checkpoints.answers[StopWithSavepointRequested] = [completed]
    story.operate(StopWithSavepoint("/sp"))
    failed = answer(story.enters("a", attempt(), ExecutionState.FAILED, SerializedFailure("raised")))
    assert (
        failed.failure.summary == "the savepoint file:///sp/x is complete, but the job did not stop: it is RESTARTING"
    )


@pytest.mark.parametrize("restarts", [False, True])
def test_a_savepoint_that_is_complete_after_the_end_is_named(restarts: bool) -> None:
    """It was being stored when the job was cancelled, and stays: whoever wanted to stop with it hears where it lies."""
    story = Story().run().with_slow_graph_store()
    story.operate(StopWithSavepoint("/sp"))
    if restarts:
        story.enters("a", attempt(), ExecutionState.FAILED, SerializedFailure("raised"))
    story.take(OperationRequested(RequestID("another"), CancelJob()))
    if not restarts:
        story.enters("a", attempt(), ExecutionState.CANCELED)
    completed = CheckpointRequestCompleted(CheckpointRequestID("client-r"), CheckpointID(6), "file:///sp/x")
    story.checkpoints.answers[CheckpointStored] = [completed]
    failed = answer(story.take(CheckpointStored(CheckpointID(6))))
    assert failed.failure.summary == "the savepoint file:///sp/x is complete, but the job did not stop: it is CANCELED"


@pytest.mark.parametrize(
    "operation", [TakeCheckpoint(), TakeSavepoint("/sp"), StopWithSavepoint("/sp"), RescaleJob({})]
)
def test_a_job_that_is_being_stopped_takes_nothing_else(operation: JobOperation) -> None:
    """Its sources may be drained already: if the savepoint fails, nothing that was taken since may be what it goes on
    from."""
    story = Story().run()
    story.operate(StopWithSavepoint("/sp"))
    asked = len(story.checkpoints.events)

    refused = answer(story.operate(operation))
    assert isinstance(refused, OperationFailed) and "being stopped with a savepoint" in refused.failure.summary
    assert len(story.checkpoints.events) == asked


def test_a_cancelled_job_takes_no_snapshot_over() -> None:
    """The one that it was to start from was being read: claimed after the end, it would go as the job's own checkpoints
    do."""
    claimed = SavepointRestoreSettings("/sp/x", claim=True)
    graph = replace(ONE, savepoint_restore=claimed)
    story = Story(graph).start().with_slow_graph_store()
    story.operate(CancelJob())
    metadata = CheckpointMetadata(ONE.job_id, "one", CheckpointID(9), 1, SnapshotType.CHECKPOINT, ())
    story.take(SavepointLoaded(metadata, "file:///sp/x"))
    assert not any(isinstance(event, RestoreSavepoint) for event in story.checkpoints.events)


def test_a_suspended_job_touches_nothing() -> None:
    """No task is cancelled, nobody is told; connections close, the checkpoint core lets go."""
    story = Story().run()
    effects = story.take(JobMasterSuspended("leadership lost"))

    assert statuses(effects) == [JobStatus.SUSPENDED]
    assert messages(effects, object) == []
    assert CloseConnection(ConnectionID("tm-a")) in effects
    assert effects[-1] == JobReachedTerminalState(ONE.job_id, JobStatus.SUSPENDED)
    assert story.checkpoints.events[-1] == Shutdown(JobStatus.SUSPENDED)
