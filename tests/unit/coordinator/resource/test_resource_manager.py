"""ResourceManager: registrations, slots, losses, idleness; whole effect lists."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from snapline.coordinator.execution.given_slots import GivenSlots
from snapline.coordinator.resource import slot_manager
from snapline.coordinator.resource.effects import DeclareWorkers, ReleaseWorker
from snapline.coordinator.resource.events import (
    DrainRequested,
    ResourceManagerStarted,
    WorkerEnded,
    WorkerPoolClosed,
    WorkersUnavailable,
)
from snapline.coordinator.resource.resource_manager import (
    MAX_POOLS,
    IdleTaskManagerTimer,
    RegistrationOutcome,
    RequirementCheckTimer,
    ResourceManager,
    ResourceManagerSettings,
)
from snapline.coordinator.rpc import views
from snapline.dataflow.ids import AllocationID, JobID, LeaderSessionID, ResourceID
from snapline.dataflow.wire.messages import (
    DeclareRequiredSlots,
    Disconnect,
    Fenced,
    HeartbeatRequest,
    HeartbeatResponse,
    NotEnoughResources,
    NotifySlotAvailable,
    NotifyTaskManagerLost,
    RegisterJobMaster,
    RegisterTaskExecutor,
    RegistrationRejected,
    RegistrationSuccess,
    RequestSlot,
    ShutDownTaskExecutor,
    SlotReport,
    SlotRequestRejected,
    SlotsHeld,
    SlotStatus,
    TaskManagerInfo,
)
from snapline.runtime.cores.connections import CloseConnection, ConnectionID, ConnectionLost, MessageReceived, Send
from snapline.runtime.cores.heartbeat import HeartbeatSettings, HeartbeatTimer
from snapline.runtime.cores.machine import CancelTimer, StartTimer, TimerFired

SESSION, STALE = LeaderSessionID("rm-1"), LeaderSessionID("rm-0")
JOB, OTHER_JOB = JobID("job"), JobID("other")
SUCCESS = RegistrationSuccess(10, 50)
A, B = ResourceID("a"), ResourceID("b")


def info(resource_id: ResourceID, slots: int = 2) -> TaskManagerInfo:
    return TaskManagerInfo(resource_id, f"{resource_id}:1", slots, "0.1.4", "host", 100, executor_id="0")


def manager(idle_timeout_ms: int = 0, failure_threshold: int = 1) -> ResourceManager:
    numbers = itertools.count(1)
    settings = ResourceManagerSettings("0.1.0", HeartbeatSettings(10, 50, failure_threshold), idle_timeout_ms)
    return ResourceManager(settings, SESSION, GivenSlots(lambda: f"alloc-{next(numbers)}"))


def c(name: str) -> ConnectionID:
    return ConnectionID(name)


def said(connection: str, message: object, session: LeaderSessionID = SESSION) -> MessageReceived:
    return MessageReceived(c(connection), Fenced(session, message))


def send(connection: str, message: object) -> Send:
    return Send(c(connection), Fenced(SESSION, message))


def report(resource_id: ResourceID, *allocations: str, job: JobID = JOB) -> SlotReport:
    """One entry per slot; "" is free."""
    return SlotReport(
        resource_id,
        tuple(SlotStatus(n, job if a else JobID(""), AllocationID(a)) for n, a in enumerate(allocations)),
    )


def with_task_manager(core: ResourceManager, resource_id: ResourceID, slots: int = 2) -> None:
    core.handle(said(f"tm-{resource_id}", RegisterTaskExecutor(info(resource_id, slots))), 0)
    core.handle(said(f"tm-{resource_id}", report(resource_id, *[""] * slots)), 0)


def with_job(core: ResourceManager, required: int, job: JobID = JOB, least: int = 0) -> list[object]:
    register = RegisterJobMaster(job, "name", "jm:1", LeaderSessionID(f"jm-{job}"))
    core.handle(said(f"job-{job}", register), 0)
    return list(core.handle(said(f"job-{job}", DeclareRequiredSlots(job, required, least=least)), 0))


def request(slot: int, allocation: int, job: JobID = JOB) -> RequestSlot:
    return RequestSlot(slot, job, AllocationID(f"alloc-{allocation}"), "jm:1", LeaderSessionID(f"jm-{job}"))


def test_both_heartbeat_rounds_begin_with_leadership() -> None:
    """It asks TaskManagers and JobMasters."""
    assert manager().handle(ResourceManagerStarted(), 7) == [
        StartTimer(HeartbeatTimer("task-executors", None), 7),
        StartTimer(HeartbeatTimer("job-masters", None), 7),
    ]


def test_a_task_manager_registers_and_its_slots_count() -> None:
    """The pool hears of it at once; slots are given away after the report."""
    core = manager()

    assert core.handle(said("tm-a", RegisterTaskExecutor(info(A))), 5) == [
        send("tm-a", SUCCESS),
        StartTimer(HeartbeatTimer("task-executors", A), 55),
        DeclareWorkers(0, 2, 0, (A,)),
    ]
    assert core.handle(said("tm-a", report(A, "", "")), 6) == [DeclareWorkers(0, 2, 2, (A,))]


def test_clients_see_since_when_a_task_manager_is_registered_and_when_it_was_heard_of() -> None:
    """The page of a cluster, Flink's REST API and JSON have these times; a moment after the registration it was heard
    of then."""
    core = manager()
    core.handle(said("tm-a", RegisterTaskExecutor(info(A))), 5)
    seen = [views.task_managers(core)[0]]
    core.handle(said("tm-a", report(A, "", "")), 6)
    core.handle(said("tm-a", HeartbeatResponse(report(A, "", ""))), 17)
    seen += views.task_managers(core)
    assert [(each.registered_timestamp_ms, each.last_heartbeat_timestamp_ms) for each in seen] == [(5, 5), (5, 17)]


def test_requests_wait_until_task_managers_come() -> None:
    """Declared first, served as soon as somebody has reported free slots."""
    core = manager()

    assert with_job(core, 2) == [DeclareWorkers(2, 0, 0)]
    core.handle(said("tm-a", RegisterTaskExecutor(info(A))), 0)
    core.handle(said("tm-b", RegisterTaskExecutor(info(B))), 0)
    assert core.handle(said("tm-a", report(A, "", "")), 1) == [
        send("tm-a", request(0, 1)),
        send("tm-a", request(1, 2)),
    ]


def test_a_job_that_runs_and_could_use_more_slots_waits_for_those_that_do_not_run() -> None:
    """One that follows its slots took each that came, and another that had lost one stood still for ever. What is left
    then is given in the order in which jobs began to need."""
    core = manager()
    with_job(core, 128, least=1)
    with_job(core, 2, OTHER_JOB)
    with_job(core, 64, JobID("third"), least=1)
    core.handle(said("tm-a", RegisterTaskExecutor(info(A, 6))), 0)

    effects = core.handle(said("tm-a", report(A, "", "", "", "", "", "")), 1)
    assert [effect for effect in effects if isinstance(effect, Send)] == [
        send("tm-a", request(0, 1)),
        send("tm-a", request(1, 2, OTHER_JOB)),
        send("tm-a", request(2, 3, OTHER_JOB)),
        send("tm-a", request(3, 4, JobID("third"))),
        send("tm-a", request(4, 5)),
        send("tm-a", request(5, 6)),
    ]


def test_slots_are_spread_over_task_managers() -> None:
    """One from each, whoever has the smallest share in use."""
    core = manager()
    with_task_manager(core, A)
    with_task_manager(core, B)

    assert with_job(core, 3) == [
        send("tm-a", request(0, 1)),
        send("tm-b", request(0, 2)),
        send("tm-a", request(1, 3)),
        DeclareWorkers(3, 4, 1, (A, B)),
    ]


def test_a_rejected_request_is_made_elsewhere() -> None:
    """The report that comes with it is what counts."""
    core = manager()
    with_task_manager(core, A, slots=1)
    with_job(core, 1)
    with_task_manager(core, B, slots=1)
    rejected = SlotRequestRejected(AllocationID("alloc-1"), report(A, "foreign", job=OTHER_JOB))

    assert core.handle(said("tm-a", rejected), 1) == [
        send("tm-b", request(0, 2)),
        DeclareWorkers(1, 2, 0, (A, B)),
    ]


def test_a_report_from_before_the_request_frees_nothing() -> None:
    """PENDING stays; the slot is not given away twice."""
    core = manager()
    with_task_manager(core, A, slots=1)
    with_job(core, 1)

    assert core.handle(said("tm-a", HeartbeatResponse(report=report(A, ""))), 1) == []
    assert core.slot_manager.held_by(JOB) == 1
    assert core.handle(said("tm-a", report(A, "alloc-1")), 2) == []
    core.handle(said("job-job", DeclareRequiredSlots(JOB, 0)), 3)
    assert core.handle(said("tm-a", HeartbeatResponse(report=report(A, ""))), 4) == [DeclareWorkers(0, 1, 1, (A,))]


def test_a_freed_slot_serves_the_job_that_waits() -> None:
    """NotifySlotAvailable of an old allocation is ignored."""
    core = manager()
    with_task_manager(core, A, slots=1)
    with_job(core, 1)
    core.handle(said("tm-a", report(A, "alloc-1")), 0)
    with_job(core, 1, OTHER_JOB)
    core.handle(said("job-job", DeclareRequiredSlots(JOB, 0)), 0)

    assert core.handle(said("tm-a", NotifySlotAvailable(0, AllocationID("alloc-0"))), 1) == []
    assert core.handle(said("tm-a", NotifySlotAvailable(0, AllocationID("alloc-1"))), 1) == [
        send("tm-a", request(0, 2, OTHER_JOB))
    ]


def test_a_job_that_a_slot_came_back_from_waits_a_moment_or_declares_again() -> None:
    """That it needs none any more may be on its way: the two would send each other away without end (seed 368)."""
    core = manager()
    with_task_manager(core, A, slots=1)
    with_job(core, 1)
    came_back = said("tm-a", NotifySlotAvailable(0, AllocationID("alloc-1")))

    assert core.handle(came_back, 1) == [
        DeclareWorkers(1, 1, 1, (A,)),
        StartTimer(RequirementCheckTimer(), 51),
    ]
    assert core.handle(TimerFired(RequirementCheckTimer()), 51) == [
        send("tm-a", request(0, 2)),
        DeclareWorkers(1, 1, 0, (A,)),
    ]

    core.handle(said("tm-a", NotifySlotAvailable(0, AllocationID("alloc-2"))), 60)
    assert core.handle(said("job-job", DeclareRequiredSlots(JOB, 1)), 61) == [
        send("tm-a", request(0, 3)),
        DeclareWorkers(1, 1, 0, (A,)),
        CancelTimer(RequirementCheckTimer()),
    ]


def test_a_broken_connection_loses_the_task_manager_at_once() -> None:
    """The job is told, its slot is looked for elsewhere, the pool hears what is missing."""
    core = manager()
    with_task_manager(core, A, slots=1)
    with_job(core, 1)

    timer = HeartbeatTimer("task-executors", A)
    assert core.handle(ConnectionLost(c("tm-a"), "reset"), 9) == [
        CancelTimer(timer),
        send("job-job", NotifyTaskManagerLost(A, "the connection broke: reset")),
        DeclareWorkers(1, 0, 0),
    ]


def test_the_broken_connection_and_each_unsent_heartbeat_count_towards_the_threshold() -> None:
    """With heartbeat.rpc-failure-threshold at 3 a TaskManager is lost in the second round after its connection
    broke."""
    core = manager(failure_threshold=3)
    core.handle(ResourceManagerStarted(), 0)
    with_task_manager(core, A, slots=1)
    rounds, deadline = HeartbeatTimer("task-executors", None), HeartbeatTimer("task-executors", A)

    assert core.handle(ConnectionLost(c("tm-a"), "reset"), 9) == []
    assert core.handle(TimerFired(rounds), 10) == [StartTimer(rounds, 20)]
    assert core.handle(TimerFired(rounds), 20) == [
        CancelTimer(deadline),
        StartTimer(rounds, 30),
        DeclareWorkers(0, 0, 0),
    ]
    assert core.lost_task_managers == (A,)


def test_without_a_threshold_only_the_heartbeat_timeout_loses_a_task_manager() -> None:
    """With heartbeat.rpc-failure-threshold at -1 a broken connection and unsent heartbeats count for nothing."""
    core = manager(failure_threshold=-1)
    core.handle(ResourceManagerStarted(), 0)
    with_task_manager(core, A, slots=1)
    core.handle(ConnectionLost(c("tm-a"), "reset"), 1)
    for now_ms in (10, 20, 30, 40):
        core.handle(TimerFired(HeartbeatTimer("task-executors", None)), now_ms)
    lost = [core.lost_task_managers]
    core.handle(TimerFired(HeartbeatTimer("task-executors", A)), 50)

    assert [*lost, core.lost_task_managers] == [(), (A,)]


def test_a_lost_task_manager_is_told_from_one_that_was_never_there() -> None:
    """A copy of it that Spark has started must know; one that is back is not lost."""
    core = manager()
    with_task_manager(core, A)
    lost = [core.lost_task_managers]
    core.handle(ConnectionLost(c("tm-a"), "reset"), 1)
    core.handle(WorkerEnded(B, "it never came"), 1)
    lost.append(core.lost_task_managers)
    with_task_manager(core, A)
    assert [*lost, core.lost_task_managers] == [(), (A,), ()]


def test_jobs_are_told_that_a_task_manager_was_silent() -> None:
    """So that they need not wait for their own timeout."""
    core = manager()
    with_task_manager(core, A, slots=1)
    with_job(core, 1)

    lost = NotifyTaskManagerLost(A, "no heartbeat for 50 ms (heartbeat.timeout)", heartbeat_timed_out=True)
    assert send("job-job", lost) in core.handle(TimerFired(HeartbeatTimer("task-executors", A)), 70)


def test_a_silent_task_manager_is_told_to_forget_us() -> None:
    """It registers again if it still lives."""
    core = manager()
    with_task_manager(core, A, slots=1)
    core.handle(said("tm-a", HeartbeatResponse()), 20)
    timer = HeartbeatTimer("task-executors", A)

    assert core.handle(TimerFired(timer), 50) == [StartTimer(timer, 70)]
    reason = "no heartbeat for 50 ms (heartbeat.timeout)"
    assert core.handle(TimerFired(timer), 70) == [
        send("tm-a", Disconnect(reason)),
        CloseConnection(c("tm-a")),
        CancelTimer(timer),
        DeclareWorkers(0, 0, 0),
    ]


def test_registering_again_frees_the_old_slots_first() -> None:
    """The old connection is closed; a late word about it hurts nobody."""
    core = manager()
    with_task_manager(core, A, slots=1)

    assert core.handle(said("tm-a2", RegisterTaskExecutor(info(A, 1))), 3) == [
        CloseConnection(c("tm-a")),
        CancelTimer(HeartbeatTimer("task-executors", A)),
        send("tm-a2", SUCCESS),
        StartTimer(HeartbeatTimer("task-executors", A), 53),
        DeclareWorkers(0, 1, 0, (A,)),
    ]
    assert core.handle(ConnectionLost(c("tm-a"), "late"), 4) == []


def test_who_only_knows_the_name_of_a_task_manager_does_not_replace_it() -> None:
    """Resource id, host and process number are shown to clients; what the process drew for itself is not."""
    core = manager()
    core.handle(said("tm-a", RegisterTaskExecutor(replace(info(A), incarnation="drawn"))), 5)

    effects = core.handle(said("tm-x", RegisterTaskExecutor(info(A))), 6)

    assert [type(effect) for effect in effects] == [Send, CloseConnection]
    assert [manager.info.incarnation for manager in core.task_managers] == ["drawn"]


def test_a_second_start_of_the_same_spark_task_is_rejected() -> None:
    """Another process under the same resource id; the first one stays."""
    core = manager()
    with_task_manager(core, A, slots=1)
    second = replace(info(A, 1), pid=101)

    effects = core.handle(said("tm-x", RegisterTaskExecutor(second)), 3)

    assert isinstance(effects[0], Send) and isinstance(effects[0].envelope.message, RegistrationRejected)
    assert "runs already as process 100 on host" in effects[0].envelope.message.reason
    assert effects[1:] == [CloseConnection(c("tm-x"))]


def test_versions_that_differ_by_one_minor_number_work_together() -> None:
    """So a cluster is upgraded one process after the other; what is further away is rejected, with the way out."""
    core = manager()
    next_minor = replace(info(A), version="0.2.7")
    effects = core.handle(said("tm-a", RegisterTaskExecutor(next_minor)), 0)
    assert isinstance(effects[0], Send) and isinstance(effects[0].envelope.message, RegistrationSuccess)

    too_new = replace(info(B), version="0.3.0")
    effects = core.handle(said("tm-b", RegisterTaskExecutor(too_new)), 1)
    reason = (
        "TaskManager b has Snapline 0.3.0, the coordinator 0.1.0: install versions on both whose minor numbers differ by "
        "one at most"
    )
    assert effects[0] == send("tm-b", RegistrationRejected(reason))
    assert B not in core.slot_manager
    assert [(news.outcome, news.info.resource_id, news.reason) for news in core.news] == [
        (RegistrationOutcome.REGISTERED, A, ""),
        (RegistrationOutcome.REJECTED, B, reason),
    ]


@pytest.mark.parametrize(
    ("version", "protocol", "is_taken"), [("0.9.0", 2, True), ("0.1.0", 4, False), ("0.3.0", 0, False)]
)
def test_a_declared_protocol_decides_and_the_release_only_where_none_is(
    version: str, protocol: int, *, is_taken: bool
) -> None:
    """A release may change nothing of what is spoken; one of before the declaration is judged by its minor version."""
    core = manager()
    declared = replace(info(A), version=version, protocol_version=protocol)
    (first, *_) = core.handle(said("tm-a", RegisterTaskExecutor(declared)), 0)
    assert isinstance(first, Send)
    assert isinstance(first.envelope.message, RegistrationSuccess if is_taken else RegistrationRejected)
    if protocol == 4:
        assert first == send(
            "tm-a",
            RegistrationRejected(
                "TaskManager a has Snapline 0.1.0, which speaks protocol 4, the coordinator 0.1.0, which speaks 1: install "
                "versions on both whose protocols differ by one at most"
            ),
        )


def test_a_job_that_waits_is_told_of_rejected_task_managers() -> None:
    """Its status says why slots do not come, not only that they do not."""
    core = manager()
    with_job(core, 2)
    too_new = replace(info(B), version="0.3.0")
    effects = core.handle(said("tm-b", RegisterTaskExecutor(too_new)), 1)
    told = [
        e.envelope.message
        for e in effects
        if isinstance(e, Send) and isinstance(e.envelope.message, NotEnoughResources)
    ]
    assert [note.reason.partition(":")[0] for note in told] == [
        "TaskManager b has Snapline 0.3.0, the coordinator 0.1.0"
    ]


def test_a_stale_session_gets_nothing() -> None:
    """A registration closes the connection, so that the other side looks for the leader; a message is dropped."""
    core = manager()

    assert core.handle(said("tm-a", RegisterTaskExecutor(info(A)), STALE), 0) == [CloseConnection(c("tm-a"))]
    with_task_manager(core, A)
    assert core.handle(said("tm-a", report(A, "x", "y"), STALE), 0) == []
    assert core.slot_manager.free_slots == 2


def test_a_job_master_that_breaks_off_needs_nothing_until_it_comes_back() -> None:
    """Its slots stay its own; its declaration is repeated by itself."""
    core = manager()
    with_task_manager(core, A, slots=1)
    with_job(core, 1)
    core.handle(said("tm-a", report(A, "alloc-1")), 0)

    assert core.handle(ConnectionLost(c("job-job"), "reset"), 1) == [
        CancelTimer(HeartbeatTimer("job-masters", JOB)),
        DeclareWorkers(0, 1, 0, (A,)),
    ]
    assert core.slot_manager.held_by(JOB) == 1
    assert with_job(core, 1) == [DeclareWorkers(1, 1, 0, (A,))]


def test_slots_on_task_managers_that_only_the_job_sees_count() -> None:
    """A ResourceManager that lost a TaskManager must not feed a job that still has it."""
    core = manager()
    with_task_manager(core, A, slots=2)
    with_job(core, 0)
    declared = DeclareRequiredSlots(JOB, 2, (SlotsHeld(B, 1),))

    assert core.handle(said("job-job", declared), 1) == [
        send("tm-a", request(0, 1)),
        DeclareWorkers(2, 2, 1, (A,)),
    ]


def test_what_spark_cannot_give_is_said_with_the_numbers() -> None:
    """Once per change, to the jobs that wait."""
    core = manager()
    with_task_manager(core, A, slots=1)
    with_job(core, 3)

    assert core.handle(WorkersUnavailable(1, "the cluster has 1 core"), 5) == [
        send("job-job", NotEnoughResources(JOB, 3, 1, "the cluster has 1 core"))
    ]
    assert core.handle(said("tm-a", HeartbeatResponse()), 6) == []
    assert core.handle(WorkersUnavailable(3, ""), 7) == []


def test_pools_of_task_managers_count_together_until_they_close() -> None:
    """Two Spark applications bring TaskManagers to one coordinator."""
    core = manager()
    with_task_manager(core, A, slots=1)
    with_job(core, 3)

    assert core.handle(WorkersUnavailable(1, "one core", "p"), 5) == [
        send("job-job", NotEnoughResources(JOB, 3, 1, "one core"))
    ]
    assert core.handle(WorkersUnavailable(2, "two cores", "q"), 6) == []
    assert core.handle(WorkerPoolClosed("q"), 7) == [send("job-job", NotEnoughResources(JOB, 3, 1, "one core"))]
    assert core.handle(WorkerPoolClosed("p"), 8) == []


def test_a_launcher_of_a_thousand_names_is_not_kept_a_thousand_times() -> None:
    """The limits of the pools that came last are known."""
    core = manager()
    with_job(core, 3)
    said_last: tuple[object, ...] = ()
    for number in range(1_000):
        said_last = tuple(core.handle(WorkersUnavailable(0, f"reason {number}", f"pool {number}"), 5))
    (note,) = said_last
    assert str(note).count("reason ") == MAX_POOLS


def test_an_ended_process_is_lost_for_certain() -> None:
    """The pool saw it before any connection did."""
    core = manager()
    with_task_manager(core, A, slots=1)
    with_job(core, 1)

    assert core.handle(WorkerEnded(A, "exit code 137"), 1) == [
        CloseConnection(c("tm-a")),
        CancelTimer(HeartbeatTimer("task-executors", A)),
        send("job-job", NotifyTaskManagerLost(A, "its process ended: exit code 137", terminated=True)),
        DeclareWorkers(1, 0, 0),
    ]


def test_an_idle_task_manager_is_released() -> None:
    """After the timeout without any slot in use; a busy one is not."""
    core = manager(idle_timeout_ms=100)
    with_task_manager(core, A, slots=1)
    with_task_manager(core, B, slots=1)
    core.handle(said("tm-a", HeartbeatResponse()), 40)

    assert with_job(core, 1)[-1] == DeclareWorkers(1, 2, 1, (A, B))
    reason = "idle for 100 ms (resourcemanager.taskmanager-timeout)"
    assert core.handle(TimerFired(IdleTaskManagerTimer()), 100) == [
        send("tm-b", ShutDownTaskExecutor(reason)),
        CloseConnection(c("tm-b")),
        CancelTimer(HeartbeatTimer("task-executors", B)),
        ReleaseWorker(B, reason),
        DeclareWorkers(1, 1, 0, (A,)),
    ]


def test_a_task_manager_that_was_started_by_hand_stays() -> None:
    """Nobody would start it again for the next job."""
    core = manager(idle_timeout_ms=100)
    by_hand = replace(info(A, 1), executor_id="")
    core.handle(said("tm-a", RegisterTaskExecutor(by_hand)), 0)
    core.handle(said("tm-a", report(A, "")), 0)

    assert core.handle(TimerFired(IdleTaskManagerTimer()), 1_000) == []


def test_a_task_manager_that_is_to_stay_is_not_released() -> None:
    """`snapline taskmanagers --instances` keeps as many as it was told, whether or not a job needs them."""
    core = manager(idle_timeout_ms=100)
    core.handle(said("tm-a", RegisterTaskExecutor(replace(info(A, 1), stays_when_idle=True))), 0)
    core.handle(said("tm-a", report(A, "")), 0)

    assert core.handle(TimerFired(IdleTaskManagerTimer()), 1_000) == []


def test_heartbeat_requests_go_to_everybody() -> None:
    """One round, one request each."""
    core = manager()
    with_task_manager(core, A)
    with_task_manager(core, B)
    with_job(core, 0)
    timer = HeartbeatTimer("task-executors", None)

    assert core.handle(TimerFired(timer), 30) == [
        send("tm-a", HeartbeatRequest()),
        send("tm-b", HeartbeatRequest()),
        StartTimer(timer, 40),
    ]


def test_slots_of_a_task_manager_that_is_drained_are_given_to_nobody() -> None:
    """What is in use stays in use and comes back to nobody; undone, they are given away again."""
    core = manager()
    with_task_manager(core, A)
    assert send("tm-a", request(0, 1)) in with_job(core, 1)
    core.handle(DrainRequested(A, draining=True), 1)
    assert core.slot_manager.free_slots == 0
    core.handle(said("job-job", DeclareRequiredSlots(JOB, 2)), 1)
    core.handle(said("tm-a", NotifySlotAvailable(0, AllocationID("alloc-1"))), 2)
    assert core.slot_manager.free_slots == 0 and [each.in_use for each in core.task_managers] == [0]

    asked = core.handle(DrainRequested(A, draining=False), 1_000)
    assert core.slot_manager.free_slots == 0  # both are promised at once
    assert [effect.envelope.message.slot_number for effect in asked if isinstance(effect, Send)] == [0, 1]


def test_a_task_manager_that_is_drained_stays_so_when_it_registers_again() -> None:
    """A relay that stands still for too long must not bring tasks back to what an operator is about to end."""
    core = manager()
    with_task_manager(core, A)
    core.handle(DrainRequested(A, draining=True), 1)
    core.handle(ConnectionLost(c("tm-a"), "reset"), 2)
    with_task_manager(core, A)
    assert [each.draining for each in core.task_managers] == [True] and core.slot_manager.free_slots == 0
    core.handle(DrainRequested(A, draining=False), 3)
    assert core.slot_manager.free_slots == 2


def test_what_is_remembered_of_drained_task_managers_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The one that was drained longest ago is forgotten, and what is not registered is not noted."""
    monkeypatch.setattr(slot_manager, "MAX_DRAINED_REMEMBERED", 1)
    core = manager()
    for each in (A, B):
        with_task_manager(core, each)
        core.handle(DrainRequested(each, draining=True), 1)
    core.handle(DrainRequested(ResourceID("nobody"), draining=True), 1)
    for connection in ("tm-a", "tm-b"):
        core.handle(ConnectionLost(c(connection), "reset"), 2)
    for each in (A, B):
        with_task_manager(core, each)
    assert [each.draining for each in core.task_managers] == [False, True]
