"""TaskExecutor: registration, slots, tasks, lost leaders; whole effect lists."""

from __future__ import annotations

from typing import Any

from snapline.dataflow.config import Configuration
from snapline.dataflow.elements import CheckpointOptions, SnapshotType
from snapline.dataflow.failures import Blame, CheckpointFailureReason, SerializedFailure
from snapline.dataflow.ids import (
    AllocationID,
    CheckpointID,
    ExecutionAttemptID,
    JobID,
    JobVertexID,
    LeaderSessionID,
    ResourceID,
)
from snapline.dataflow.wire.messages import (
    AcknowledgeCheckpoint,
    AlignWatermarks,
    CancelTask,
    DeclineCheckpoint,
    Disconnect,
    EndOfDataReached,
    ExecutionReport,
    ExecutionState,
    Fenced,
    FreeSlot,
    HeartbeatRequest,
    HeartbeatResponse,
    NotifyCheckpointAborted,
    NotifyCheckpointComplete,
    NotifySlotAvailable,
    OfferSlots,
    RegisterTaskExecutor,
    RegisterTaskExecutorAtJobMaster,
    RegistrationRejected,
    RegistrationSuccess,
    ReportExecutions,
    ReportWatermark,
    RequestSlot,
    ShutDownTaskExecutor,
    SlotOffer,
    SlotOffersAnswered,
    SlotReport,
    SlotRequestRejected,
    SlotStatus,
    SubmitTasks,
    TaskDeploymentDescriptor,
    TaskManagerInfo,
    TaskStateChanged,
    TriggerCheckpoint,
)
from snapline.runtime.cores.connections import (
    RELAY_TIMEOUT_MS,
    CloseConnection,
    ConnectionID,
    ConnectionLost,
    ConnectionOpened,
    MessageReceived,
    OpenConnection,
    Peer,
    PeerKind,
    ResourceManagerLeaderChanged,
    Send,
)
from snapline.runtime.cores.heartbeat import HeartbeatTimer
from snapline.runtime.cores.leader_connection import LEADER
from snapline.runtime.cores.machine import CancelTimer, StartTimer, TimerFired
from snapline.runtime.cores.registration import RegistrationSettings, RegistrationTimer
from snapline.taskmanager.executor.effects import (
    CancelTaskExecution,
    DeliverToTask,
    FailTaskExecution,
    ReleaseJobResources,
    ReleaseSnapshots,
    SendHeartbeatResponse,
    StartTask,
    TerminateTaskManager,
)
from snapline.taskmanager.executor.events import (
    JobMasterLeaderChanged,
    ShutDownRequested,
    TaskEnteredState,
    TaskExecutorStarted,
    TaskSaid,
)
from snapline.taskmanager.executor.task_executor import (
    CancellationInterval,
    CancellationTimeout,
    JobMasterTimeout,
    SlotTimeout,
    TaskExecutor,
    TaskExecutorSettings,
)

RM_SESSION, JM_SESSION, NEW_SESSION = LeaderSessionID("rm"), LeaderSessionID("jm"), LeaderSessionID("jm-2")
JOB = JobID("job")
TM = ResourceID("tm")
INFO = TaskManagerInfo(TM, "tm:1", 2, "0.1.0", "host", 1)
SUCCESS = RegistrationSuccess(10, 50)
A0 = AllocationID("alloc-0")
RM, JM = ConnectionID("dial-1"), ConnectionID("dial-2")
JM_PEER = Peer(PeerKind.JOB_MASTER, "jm:1", JOB)
RM_TOTAL, RM_ATTEMPT = RegistrationTimer("resource-manager", "total"), RegistrationTimer("resource-manager", "attempt")
JM_ATTEMPT = RegistrationTimer("job-master-job", "attempt")
JM_SILENCE = HeartbeatTimer("job-master-job", LEADER)
FREE = SlotReport(TM, (SlotStatus(0), SlotStatus(1)))
TAKEN = SlotReport(TM, (SlotStatus(0, JOB, A0), SlotStatus(1)))
OFFER = OfferSlots(JOB, TM, (SlotOffer(A0, 0),))


def attempt(number: int = 0) -> ExecutionAttemptID:
    return ExecutionAttemptID("graph", JobVertexID("vertex"), 0, number)


def descriptor(number: int = 0, configuration: dict[str, str] | None = None) -> TaskDeploymentDescriptor:
    return TaskDeploymentDescriptor(
        JOB, "name", attempt(number), A0, "vertex (1/1)", 1, 128, (), (), (), configuration or {}
    )


def from_rm(message: object) -> MessageReceived:
    return MessageReceived(RM, Fenced(RM_SESSION, message))


def from_jm(message: object, session: LeaderSessionID = JM_SESSION, connection: ConnectionID = JM) -> MessageReceived:
    return MessageReceived(connection, Fenced(session, message))


def to_rm(message: object) -> Send:
    return Send(RM, Fenced(RM_SESSION, message))


def to_jm(message: object, session: LeaderSessionID = JM_SESSION, connection: ConnectionID = JM) -> Send:
    return Send(connection, Fenced(session, message))


def fresh() -> TaskExecutor:
    settings = TaskExecutorSettings(RegistrationSettings(100, 400, 20, 30, 5_000), 200, 1_000, 30, 300)
    return TaskExecutor(INFO, settings)


NO_JOB_MASTER = JobMasterLeaderChanged(JOB, "", LeaderSessionID(""))


def registered() -> TaskExecutor:
    core = fresh()
    core.handle(TaskExecutorStarted(), 0)
    core.handle(ResourceManagerLeaderChanged("rm:1", RM_SESSION), 0)
    core.handle(ConnectionOpened(RM), 0)
    core.handle(from_rm(SUCCESS), 0)
    return core


REQUEST = RequestSlot(0, JOB, A0, "jm:1", JM_SESSION)


def with_slot() -> TaskExecutor:
    """Slot 0 is ACTIVE for the job, the JobMaster is registered with."""
    core = registered()
    core.handle(from_rm(REQUEST), 0)
    core.handle(ConnectionOpened(JM), 0)
    core.handle(from_jm(SUCCESS), 0)
    core.handle(from_jm(SlotOffersAnswered(JOB, (A0,), ())), 0)
    return core


def with_task() -> TaskExecutor:
    core = with_slot()
    core.handle(from_jm(SubmitTasks((descriptor(),))), 0)
    core.handle(TaskEnteredState(attempt(), ExecutionState.RUNNING), 0)
    return core


def test_a_relay_gets_its_time_before_patience_with_the_coordinator_begins() -> None:
    """An attempt is not given up while a relay may still turn out to hang: the next one would ask the same relay."""
    settings = {"cluster.registration.max-timeout": "1 s", "taskmanager.registration.timeout": "1 min"}
    behind_a_relay = {**settings, "taskmanager.relay.addresses": "127.0.0.1:6125"}

    made = [TaskExecutorSettings.from_configuration(Configuration(given)) for given in (settings, behind_a_relay)]

    assert [each.registration for each in made] == [
        RegistrationSettings(100, 1_000, total_timeout_ms=60_000),
        RegistrationSettings(100 + RELAY_TIMEOUT_MS, 1_000 + RELAY_TIMEOUT_MS, total_timeout_ms=60_000),
    ]


def test_it_registers_and_reports_its_slots() -> None:
    """The clock of taskmanager.registration.timeout runs from the start until then."""
    core = fresh()

    assert core.handle(TaskExecutorStarted(), 0) == [StartTimer(RM_TOTAL, 5_000)]
    assert core.handle(ResourceManagerLeaderChanged("rm:1", RM_SESSION), 1) == [
        OpenConnection(RM, Peer(PeerKind.RESOURCE_MANAGER, "rm:1")),
        StartTimer(RM_ATTEMPT, 101),
    ]
    assert core.handle(ConnectionOpened(RM), 2) == [to_rm(RegisterTaskExecutor(INFO))]
    assert core.handle(from_rm(SUCCESS), 3) == [
        CancelTimer(RM_ATTEMPT),
        CancelTimer(RM_TOTAL),
        StartTimer(HeartbeatTimer("resource-manager", LEADER), 53),
        to_rm(FREE),
    ]


def test_without_a_resource_manager_it_ends_itself() -> None:
    """After the registration timeout, and at once when it is rejected."""
    core = fresh()
    core.handle(TaskExecutorStarted(), 0)

    (end,) = core.handle(TimerFired(RM_TOTAL), 5_000)
    assert isinstance(end, TerminateTaskManager) and end.exit_code == 1
    assert "taskmanager.registration.timeout" in end.reason
    assert core.handle(TaskExecutorStarted(), 5_001) == []

    core = fresh()
    core.handle(ResourceManagerLeaderChanged("rm:1", RM_SESSION), 0)
    core.handle(ConnectionOpened(RM), 0)
    effects = core.handle(from_rm(RegistrationRejected("another version")), 1)
    assert effects[-1] == TerminateTaskManager("the ResourceManager rejected this TaskManager: another version", 1)


def test_a_requested_slot_is_offered_to_its_job_master() -> None:
    """Reported to the ResourceManager, dialled, registered, offered, accepted."""
    core = registered()

    assert core.handle(from_rm(REQUEST), 10) == [
        StartTimer(SlotTimeout(A0), 210),
        to_rm(TAKEN),
        OpenConnection(JM, JM_PEER),
        StartTimer(JM_ATTEMPT, 110),
    ]
    assert core.handle(ConnectionOpened(JM), 11) == [to_jm(RegisterTaskExecutorAtJobMaster(JOB, INFO))]
    assert core.handle(from_jm(SUCCESS), 12) == [
        CancelTimer(JM_ATTEMPT),
        StartTimer(JM_SILENCE, 62),
        StartTimer(SlotTimeout(A0), 212),
        to_jm(OFFER),
    ]
    assert core.handle(from_jm(SlotOffersAnswered(JOB, (A0,), ())), 13) == [CancelTimer(SlotTimeout(A0))]


def test_a_repeated_request_is_answered_again() -> None:
    """Duplicates do no harm; another allocation for the same slot is rejected with what is true."""
    core = with_slot()

    assert core.handle(from_rm(REQUEST), 10) == [to_rm(TAKEN), to_jm(OFFER)]
    other = RequestSlot(0, JobID("other"), AllocationID("alloc-9"), "jm:2", JM_SESSION)
    assert core.handle(from_rm(other), 11) == [to_rm(SlotRequestRejected(AllocationID("alloc-9"), TAKEN))]


def test_a_slot_that_nobody_accepts_is_free_again() -> None:
    """taskmanager.slot.timeout; the connection to the job is given up as well."""
    core = registered()
    core.handle(from_rm(REQUEST), 0)

    assert core.handle(TimerFired(SlotTimeout(A0)), 200) == [
        CancelTimer(SlotTimeout(A0)),
        to_rm(NotifySlotAvailable(0, A0)),
        CancelTimer(JM_ATTEMPT),
        CloseConnection(JM),
        ReleaseJobResources(JOB),
    ]
    assert core.jobs == ()


def test_a_rejected_offer_is_free_again() -> None:
    """The JobMaster does not need it."""
    core = registered()
    core.handle(from_rm(REQUEST), 0)
    core.handle(ConnectionOpened(JM), 0)
    core.handle(from_jm(SUCCESS), 0)

    assert core.handle(from_jm(SlotOffersAnswered(JOB, (), (A0,))), 5) == [
        CancelTimer(SlotTimeout(A0)),
        to_rm(NotifySlotAvailable(0, A0)),
        to_jm(Disconnect("no slot of the job is left here")),
        CancelTimer(JM_SILENCE),
        CloseConnection(JM),
        ReleaseJobResources(JOB),
    ]


def test_tasks_start_once_and_their_states_are_forwarded() -> None:
    """A duplicate of SubmitTasks changes nothing."""
    core = with_slot()

    assert core.handle(from_jm(SubmitTasks((descriptor(),))), 1) == [StartTask(descriptor())]
    assert core.handle(from_jm(SubmitTasks((descriptor(),))), 2) == []
    assert core.handle(TaskEnteredState(attempt(), ExecutionState.RUNNING), 3) == [
        to_jm(TaskStateChanged(JOB, attempt(), ExecutionState.RUNNING))
    ]
    assert core.handle(TaskEnteredState(attempt(), ExecutionState.FINISHED), 4) == [
        to_jm(TaskStateChanged(JOB, attempt(), ExecutionState.FINISHED)),
        ReleaseSnapshots(attempt()),
    ]
    assert core.tasks_of(JOB) == ()


def test_a_task_for_a_slot_that_is_gone_fails() -> None:
    """The failure is the cluster's, not the user's."""
    core = with_slot()
    core.handle(from_jm(FreeSlot(A0, "not needed")), 0)
    core = with_slot()
    wrong = TaskDeploymentDescriptor(JOB, "n", attempt(), AllocationID("alloc-7"), "t", 1, 1, (), (), ())

    (sent,) = core.handle(from_jm(SubmitTasks((wrong,))), 1)

    assert isinstance(sent, Send)
    changed = sent.envelope.message
    assert changed.state is ExecutionState.FAILED and changed.failure.blame is Blame.EXTERNAL
    assert "has no slot of this job for the task any more" in changed.failure.summary


def test_a_cancelled_task_is_watched_until_it_ends() -> None:
    """Cancelled again every interval; both timers go with its end."""
    core = with_task()

    assert core.handle(from_jm(CancelTask(attempt())), 10) == [
        CancelTaskExecution(attempt()),
        StartTimer(CancellationInterval(attempt()), 40),
        StartTimer(CancellationTimeout(attempt()), 310),
    ]
    assert core.handle(from_jm(CancelTask(attempt())), 11) == []
    assert core.handle(TimerFired(CancellationInterval(attempt())), 40) == [
        CancelTaskExecution(attempt()),
        StartTimer(CancellationInterval(attempt()), 70),
    ]
    assert core.handle(TaskEnteredState(attempt(), ExecutionState.CANCELED), 50) == [
        to_jm(TaskStateChanged(JOB, attempt(), ExecutionState.CANCELED)),
        ReleaseSnapshots(attempt()),
        CancelTimer(CancellationInterval(attempt())),
        CancelTimer(CancellationTimeout(attempt())),
    ]


def test_a_task_stuck_in_user_code_takes_the_process_down() -> None:
    """The job's own timeout counts; the message names the task."""
    core = with_slot()
    core.handle(from_jm(SubmitTasks((descriptor(0, {"task.cancellation.timeout": "70 ms"}),))), 0)

    assert StartTimer(CancellationTimeout(attempt()), 80) in core.handle(from_jm(CancelTask(attempt())), 10)
    why = "task vertex (1/1) did not end within 70 ms after it was cancelled (task.cancellation.timeout): it is stuck in user code"
    assert core.handle(TimerFired(CancellationTimeout(attempt())), 80) == [
        to_jm(Disconnect(why)),
        to_rm(Disconnect(why)),
        TerminateTaskManager(why, 1, attempt()),
    ]


def test_a_job_whose_cancellation_interval_is_nothing_cancels_once() -> None:
    """It kept the TaskManager of other jobs busy with cancelling, and its log with the stack of the task."""
    core = with_slot()
    core.handle(from_jm(SubmitTasks((descriptor(0, {"task.cancellation.interval": "0 ms"}),))), 0)

    effects = core.handle(from_jm(CancelTask(attempt())), 10)
    assert [type(effect) for effect in effects] == [CancelTaskExecution, StartTimer]
    assert effects[1] == StartTimer(CancellationTimeout(attempt()), 310)


def test_cancelling_what_does_not_run_is_answered() -> None:
    """The JobMaster must not wait for it."""
    core = with_slot()

    assert core.handle(from_jm(CancelTask(attempt(5))), 1) == [
        to_jm(TaskStateChanged(JOB, attempt(5), ExecutionState.CANCELED))
    ]


def test_checkpoint_messages_go_to_the_task_and_back() -> None:
    """An unknown attempt declines a trigger, and ignores notifications."""
    core = with_task()
    trigger = TriggerCheckpoint(JOB, attempt(), CheckpointID(3), 99, CheckpointOptions())
    complete = NotifyCheckpointComplete(JOB, attempt(9), CheckpointID(3), 99)

    assert core.handle(from_jm(trigger), 1) == [DeliverToTask(attempt(), trigger)]
    acknowledge = AcknowledgeCheckpoint(JOB, attempt(), CheckpointID(3))
    assert core.handle(TaskSaid(acknowledge), 2) == [to_jm(acknowledge)]
    assert core.handle(from_jm(complete), 3) == []
    unknown = TriggerCheckpoint(JOB, attempt(9), CheckpointID(4), 99, CheckpointOptions())
    (sent,) = core.handle(from_jm(unknown), 4)
    assert isinstance(sent, Send) and isinstance(sent.envelope.message, DeclineCheckpoint)
    assert sent.envelope.message.reason is CheckpointFailureReason.CHECKPOINT_DECLINED_TASK_NOT_READY


def test_watermarks_of_aligned_sources_go_to_the_job_master_and_the_answer_to_the_task() -> None:
    """An answer for an attempt that is over is dropped."""
    core = with_task()
    report = ReportWatermark(JOB, attempt(), "g", 5, 10)
    answer = AlignWatermarks(JOB, attempt(), 15)
    assert core.handle(TaskSaid(report), 1) == [to_jm(report)]
    assert core.handle(from_jm(answer), 2) == [DeliverToTask(attempt(), answer)]
    assert core.handle(from_jm(AlignWatermarks(JOB, attempt(9), 15)), 3) == []


def test_heartbeats_are_answered_with_what_each_asker_needs() -> None:
    """All slots to the ResourceManager; its own slots and attempts to the JobMaster, metrics filled in by the shell."""
    core = with_task()

    assert core.handle(from_rm(HeartbeatRequest()), 1) == [to_rm(HeartbeatResponse(report=TAKEN))]
    own = SlotReport(TM, (SlotStatus(0, JOB, A0),))
    assert core.handle(from_jm(HeartbeatRequest((A0,))), 2) == [
        SendHeartbeatResponse(JM, JM_SESSION, HeartbeatResponse(report=own, executions=(attempt(),)))
    ]


def test_a_slot_that_the_job_master_does_not_know_is_freed() -> None:
    """Its tasks fail first; the slot is free when they have ended."""
    core = with_task()
    failure = SerializedFailure("slot 0 was freed: its JobMaster does not know it", Blame.EXTERNAL)

    assert core.handle(from_jm(HeartbeatRequest(())), 10) == [
        FailTaskExecution(attempt(), failure),
        StartTimer(CancellationInterval(attempt()), 40),
        StartTimer(CancellationTimeout(attempt()), 310),
        SendHeartbeatResponse(JM, JM_SESSION, HeartbeatResponse(report=SlotReport(TM, ()), executions=(attempt(),))),
    ]
    effects = core.handle(TaskEnteredState(attempt(), ExecutionState.FAILED, failure), 20)
    assert effects[0] == to_jm(TaskStateChanged(JOB, attempt(), ExecutionState.FAILED, failure))
    assert to_rm(NotifySlotAvailable(0, A0)) in effects and ReleaseJobResources(JOB) in effects


def test_a_job_master_that_breaks_off_is_looked_for_while_tasks_go_on() -> None:
    """Found again: what runs is reported before slots are offered, so that unwanted attempts are cancelled first."""
    core = with_task()
    again = ConnectionID("dial-3")

    assert core.handle(ConnectionLost(JM, "reset"), 100) == [
        CancelTimer(JM_SILENCE),
        OpenConnection(again, JM_PEER),
        StartTimer(JM_ATTEMPT, 200),
        StartTimer(JobMasterTimeout(JOB), 1_100),
    ]
    core.handle(ConnectionOpened(again), 101)
    own = SlotReport(TM, (SlotStatus(0, JOB, A0),))
    assert core.handle(from_jm(SUCCESS, connection=again), 102) == [
        CancelTimer(JM_ATTEMPT),
        StartTimer(JM_SILENCE, 152),
        CancelTimer(JobMasterTimeout(JOB)),
        StartTimer(SlotTimeout(A0), 302),
        to_jm(reported(), connection=again),
        SendHeartbeatResponse(again, JM_SESSION, HeartbeatResponse(report=own, executions=(attempt(),))),
        to_jm(OFFER, connection=again),
    ]


def test_a_job_master_that_breaks_off_before_it_takes_its_slots_back_is_looked_for_as_well() -> None:
    """Of two leaders that die one after the other the second one ended tasks after `taskmanager.slot.timeout`."""
    core = with_task()
    core.handle(ConnectionLost(JM, "reset"), 100)
    core.handle(ConnectionOpened(ConnectionID("dial-3")), 101)
    core.handle(from_jm(SUCCESS, connection=ConnectionID("dial-3")), 102)
    lost = core.handle(ConnectionLost(ConnectionID("dial-3"), "reset"), 103)

    assert StartTimer(JobMasterTimeout(JOB), 1_103) in lost
    assert core.handle(TimerFired(SlotTimeout(A0)), 302) == []
    assert core.tasks_of(JOB) == (attempt(),)
    ended = core.handle(TimerFired(JobMasterTimeout(JOB)), 1_103)
    assert [attempt()] == [effect.attempt_id for effect in ended if isinstance(effect, FailTaskExecution)]


def reported(**known: Any) -> ReportExecutions:
    return ReportExecutions(JOB, TM, (ExecutionReport(attempt(), ExecutionState.RUNNING, A0, **known),))


def reports_to_another_leader(core: TaskExecutor) -> list[Any]:
    """The next session; what is reported to it."""
    effects = core.handle(JobMasterLeaderChanged(JOB, "jm:2", NEW_SESSION), 101)
    (dialled,) = [effect.connection for effect in effects if isinstance(effect, OpenConnection)]
    core.handle(ConnectionOpened(dialled), 102)
    effects = core.handle(MessageReceived(dialled, Fenced(NEW_SESSION, SUCCESS)), 103)
    sent = [e.envelope.message for e in effects if isinstance(e, Send)]
    return [message for message in sent if isinstance(message, ReportExecutions)]


def lose_job_master(core: TaskExecutor) -> None:
    """Its connection breaks, and leader retrieval finds none."""
    core.handle(ConnectionLost(JM, "reset"), 5)
    core.handle(NO_JOB_MASTER, 5)


def test_another_leader_is_told_what_is_known_of_checkpoints() -> None:
    """The last one heard of, acknowledgements that nobody answered, and the end of the data; also what was said to
    nobody."""
    core = with_task()
    acknowledged = [AcknowledgeCheckpoint(JOB, attempt(), CheckpointID(number)) for number in (3, 4, 5, 6)]
    for message in acknowledged[:3]:
        core.handle(TaskSaid(message), 1)
    core.handle(from_jm(NotifyCheckpointComplete(JOB, attempt(), CheckpointID(4), 99)), 2)
    core.handle(from_jm(NotifyCheckpointAborted(JOB, attempt(), CheckpointID(5), CheckpointID(4), 99)), 3)
    core.handle(from_jm(TriggerCheckpoint(JOB, attempt(), CheckpointID(7), 99, CheckpointOptions())), 4)
    lose_job_master(core)
    assert core.handle(TaskSaid(acknowledged[3]), 6) == []
    assert core.handle(TaskSaid(EndOfDataReached(JOB, attempt())), 7) == []

    expected = reported(
        last_checkpoint_id=CheckpointID(7),
        unconfirmed=(acknowledged[3],),
        end_of_data=True,
        confirmed_checkpoint_id=CheckpointID(4),
    )
    assert reports_to_another_leader(core) == [expected]


def test_another_leader_is_told_that_a_job_was_being_stopped() -> None:
    """Tasks stand still after the savepoint that stops them."""
    core = with_task()
    options = CheckpointOptions(SnapshotType.SAVEPOINT_SUSPEND)
    core.handle(from_jm(TriggerCheckpoint(JOB, attempt(), CheckpointID(3), 99, options)), 1)

    assert reports_to_another_leader(core) == [reported(last_checkpoint_id=CheckpointID(3), stopping=True)]


def test_another_leader_is_told_of_what_has_only_stopped() -> None:
    """It is FINISHED, and starts again with the job if another task fails."""
    core = with_task()
    options = CheckpointOptions(SnapshotType.SAVEPOINT_SUSPEND)
    core.handle(from_jm(TriggerCheckpoint(JOB, attempt(), CheckpointID(3), 99, options)), 1)
    core.handle(from_jm(NotifyCheckpointComplete(JOB, attempt(), CheckpointID(3), 99)), 2)
    core.handle(TaskEnteredState(attempt(), ExecutionState.FINISHED, None), 6)
    lose_job_master(core)

    stopped = ExecutionReport(
        attempt(), ExecutionState.FINISHED, A0, stopping=True, confirmed_checkpoint_id=CheckpointID(3)
    )
    assert reports_to_another_leader(core) == [ReportExecutions(JOB, TM, (stopped,))]


def test_another_leader_is_told_in_which_checkpoint_took_part_what_has_finished() -> None:
    """It tells it from what finished before the job was rescaled."""
    core = with_task()
    core.handle(from_jm(NotifyCheckpointComplete(JOB, attempt(), CheckpointID(3), 99)), 1)
    core.handle(TaskSaid(AcknowledgeCheckpoint(JOB, attempt(), CheckpointID(4))), 2)
    core.handle(TaskEnteredState(attempt(), ExecutionState.FINISHED, None), 6)
    lose_job_master(core)

    ended = ExecutionReport(attempt(), ExecutionState.FINISHED, A0, confirmed_checkpoint_id=CheckpointID(4))
    assert reports_to_another_leader(core) == [ReportExecutions(JOB, TM, (ended,))]


def test_another_leader_is_told_what_ended_without_one() -> None:
    """Once; its slot is offered all the same."""
    core = with_task()
    lose_job_master(core)
    failure = SerializedFailure("it broke")
    core.handle(TaskEnteredState(attempt(), ExecutionState.FAILED, failure), 6)

    ended = ExecutionReport(attempt(), ExecutionState.FAILED, A0, failure=failure)
    assert reports_to_another_leader(core) == [ReportExecutions(JOB, TM, (ended,))]
    core.handle(JobMasterLeaderChanged(JOB, "jm:3", LeaderSessionID("session-of-jm-3")), 200)
    assert reports_to_another_leader(core) == []


def acknowledge(core: TaskExecutor, number: int) -> list[Any]:
    return core.handle(TaskSaid(AcknowledgeCheckpoint(JOB, attempt(), CheckpointID(number))), 6)


def test_what_was_acknowledged_to_nobody_is_deleted_with_the_end_of_its_task() -> None:
    """The job went on without it, and is over: nobody else knows of those files (simulator seed 7100536). What a
    JobMaster was told is the coordinator's, whatever became of the JobMaster."""
    core = with_task()
    acknowledge(core, 3)
    lose_job_master(core)
    assert acknowledge(core, 4) == [] and acknowledge(core, 5) == []
    core.handle(TimerFired(JobMasterTimeout(JOB)), 1_100)

    effects = core.handle(TaskEnteredState(attempt(), ExecutionState.FAILED, SerializedFailure("lost")), 1_110)
    assert ReleaseSnapshots(attempt(), (CheckpointID(4), CheckpointID(5))) in effects


def test_what_another_leader_was_told_is_the_coordinators() -> None:
    """It may count with the acknowledgement, or hands it to its coordinator, which deletes the files."""
    core = with_task()
    lose_job_master(core)
    acknowledge(core, 4)
    assert [report.executions[0].unconfirmed for report in reports_to_another_leader(core)] != [()]

    effects = core.handle(TaskEnteredState(attempt(), ExecutionState.FINISHED), 200)
    assert ReleaseSnapshots(attempt()) in effects


def test_a_job_master_that_stays_away_fails_its_tasks() -> None:
    """After heartbeat.timeout; slots are free when the tasks have ended."""
    core = with_task()
    core.handle(ConnectionLost(JM, "reset"), 100)
    effects = core.handle(TimerFired(JobMasterTimeout(JOB)), 1_100)

    assert effects[:2] == [CancelTimer(JM_ATTEMPT), CloseConnection(ConnectionID("dial-3"))]
    (failed,) = [effect for effect in effects if isinstance(effect, FailTaskExecution)]
    assert "did not come back within 1000 ms (heartbeat.timeout)" in failed.failure.summary
    ended = core.handle(TaskEnteredState(attempt(), ExecutionState.FAILED, failed.failure), 1_110)
    assert ended[-2:] == [to_rm(NotifySlotAvailable(0, A0)), ReleaseJobResources(JOB)]
    assert core.jobs == ()


def test_a_silent_job_master_is_lost_without_further_waiting() -> None:
    """It had its heartbeat timeout."""
    core = with_task()
    effects = core.handle(TimerFired(JM_SILENCE), 50)

    assert any(isinstance(effect, FailTaskExecution) for effect in effects)
    opened = [e.connection for e in effects if isinstance(e, OpenConnection)]
    closed = [e.connection for e in effects if isinstance(e, CloseConnection)]
    assert set(opened) < set(closed), "nothing that was dialled is left open"


def test_a_job_master_that_disconnects_gets_everything_back() -> None:
    """The job is over: nobody is dialled any more."""
    core = with_slot()

    assert core.handle(from_jm(Disconnect("the job is FINISHED")), 5) == [
        CancelTimer(JM_SILENCE),
        CloseConnection(JM),
        to_rm(NotifySlotAvailable(0, A0)),
        ReleaseJobResources(JOB),
    ]


def test_a_job_master_that_is_not_in_the_table_any_more_is_heard_to_its_end() -> None:
    """The table of leaders came before its Disconnect: slots are free when that comes, not after heartbeat.timeout."""
    core = with_slot()
    assert core.handle(NO_JOB_MASTER, 4) == []

    effects = core.handle(from_jm(Disconnect("the job is FINISHED")), 5)
    assert effects[-2:] == [to_rm(NotifySlotAvailable(0, A0)), ReleaseJobResources(JOB)]
    assert core.jobs == ()


def test_a_job_master_that_is_not_in_the_table_any_more_may_break_off() -> None:
    """Without a word, as when its coordinator stops: it, or the next one, is waited for."""
    core = with_task()
    assert core.handle(NO_JOB_MASTER, 4) == []

    effects = core.handle(ConnectionLost(JM, "reset"), 5)
    assert effects[-1] == StartTimer(JobMasterTimeout(JOB), 1_005)
    assert reports_to_another_leader(core) == [reported()]


def test_another_job_master_leader_is_followed() -> None:
    """Another session: registered with anew; messages of the old one are stale."""
    core = with_task()
    effects = core.handle(JobMasterLeaderChanged(JOB, "jm:2", NEW_SESSION), 10)

    new = ConnectionID("dial-3")
    assert effects == [
        CancelTimer(JM_SILENCE),
        CloseConnection(JM),
        OpenConnection(new, Peer(PeerKind.JOB_MASTER, "jm:2", JOB)),
        StartTimer(JM_ATTEMPT, 110),
        StartTimer(JobMasterTimeout(JOB), 1_010),
    ]
    core.handle(ConnectionOpened(new), 11)
    core.handle(from_jm(SUCCESS, NEW_SESSION, new), 12)
    assert core.handle(from_jm(CancelTask(attempt()), JM_SESSION, new), 13) == []
    assert core.handle(from_jm(CancelTask(attempt()), NEW_SESSION, new), 14)[0] == CancelTaskExecution(attempt())


def test_an_accepted_slot_that_is_gone_is_reported_at_once() -> None:
    """The JobMaster must not deploy into it."""
    core = with_slot()
    effects = core.handle(from_jm(SlotOffersAnswered(JOB, (AllocationID("alloc-8"),), ())), 5)

    own = SlotReport(TM, (SlotStatus(0, JOB, A0),))
    assert effects == [SendHeartbeatResponse(JM, JM_SESSION, HeartbeatResponse(report=own))]


def test_a_lost_resource_manager_does_not_touch_tasks() -> None:
    """It is dialled again; the registration clock runs."""
    core = with_task()

    assert core.handle(ConnectionLost(RM, "reset"), 10) == [
        CancelTimer(HeartbeatTimer("resource-manager", LEADER)),
        StartTimer(RM_TOTAL, 5_010),
        OpenConnection(ConnectionID("dial-3"), Peer(PeerKind.RESOURCE_MANAGER, "rm:1")),
        StartTimer(RM_ATTEMPT, 110),
    ]
    assert core.tasks_of(JOB) == (attempt(),)


def test_it_says_goodbye_when_it_is_shut_down() -> None:
    """By its host or the ResourceManager; exit code 0."""
    core = with_slot()
    assert core.handle(ShutDownRequested("the Spark task ends"), 1) == [
        to_jm(Disconnect("the Spark task ends")),
        to_rm(Disconnect("the Spark task ends")),
        TerminateTaskManager("the Spark task ends", 0),
    ]
    core = registered()
    assert core.handle(from_rm(ShutDownTaskExecutor("idle")), 1)[-1] == TerminateTaskManager("idle", 0)
