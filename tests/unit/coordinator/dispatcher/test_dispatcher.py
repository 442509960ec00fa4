"""Dispatcher: submissions, refusals, operations, history."""

from __future__ import annotations

from dataclasses import replace

import pytest

from snapline.coordinator.dispatcher.dispatcher import (
    BROKE_TOGETHER_MS,
    JOB_MASTER_RESTARTS,
    Dispatcher,
    JobOverview,
)
from snapline.coordinator.dispatcher.effects import (
    ForwardToJobMaster,
    RemoveJobGraph,
    StartJobMaster,
    StoreJobGraph,
    SuspendJobMaster,
)
from snapline.coordinator.dispatcher.events import (
    DispatcherStarted,
    DispatcherSuspended,
    HeldJob,
    JobGraphChanged,
    JobGraphRemoved,
    JobGraphStored,
    JobGraphStoreFailed,
    JobMasterEnded,
    JobStatusReported,
    OperateJob,
    SubmitJob,
)
from snapline.coordinator.ha.stored_job_graphs import JobGraphSetAside
from snapline.coordinator.jobmaster.operations import (
    Acknowledged,
    CancelJob,
    JobSubmitted,
    OperationFailed,
    Reply,
    RequestID,
    TakeSavepoint,
)
from snapline.dataflow.failures import Blame, SerializedFailure
from snapline.dataflow.graph.jobgraph import DECLARED, JobGraph, SavepointRestoreSettings
from snapline.dataflow.ids import JobID
from snapline.dataflow.wire.messages import JobStatus, JobStatusChanged
from tests.simulation.jobs import job, keyed_job

R = RequestID("r")
GRAPH = keyed_job()
JOB = GRAPH.job_id


def started(history: int = 10) -> Dispatcher:
    core = Dispatcher(history)
    core.handle(DispatcherStarted(), 0)
    return core


def running() -> Dispatcher:
    core = started()
    core.handle(SubmitJob(R, GRAPH), 0)
    core.handle(JobGraphStored(JOB), 1)
    return core


def refusal(core: Dispatcher, graph: JobGraph) -> str:
    (reply,) = core.handle(SubmitJob(R, graph), 0)
    assert isinstance(reply, Reply) and isinstance(reply.answer, OperationFailed)
    return reply.answer.failure.summary


def test_a_job_is_acknowledged_when_it_is_durable() -> None:
    """Stored first, then started and answered."""
    core = started()

    assert core.handle(SubmitJob(R, GRAPH), 0) == [StoreJobGraph(GRAPH)]
    assert core.handle(JobGraphStored(JOB), 1) == [StartJobMaster(GRAPH, False), Reply(R, JobSubmitted(JOB))]
    assert core.handle(JobGraphStored(JOB), 2) == []


def test_a_job_starts_with_the_graph_that_was_stored() -> None:
    """The snapshot that it starts from may have fixed its max parallelism meanwhile."""
    core, stored = started(), replace(GRAPH, name="of its state")
    core.handle(SubmitJob(R, GRAPH), 0)
    core.handle(JobGraphChanged(stored), 1)

    assert core.handle(JobGraphStored(JOB), 1) == [StartJobMaster(stored, False), Reply(R, JobSubmitted(JOB))]


SECRETS = {
    "security.auth.token": "hunter2",
    "s3.access-key": "hunter2",
    "s3.secret-key": "hunter2",
    "high-availability.zookeeper.client.credentials": "me:hunter2",
}


def test_no_secret_of_a_submission_is_stored_or_run_with() -> None:
    """Whoever lists jobs, reads HA storage or writes a user function would have the cluster."""
    graph = replace(GRAPH, configuration={**SECRETS, "parallelism.default": "2"})
    kept = replace(GRAPH, configuration={"parallelism.default": "2"})
    core = started()

    assert core.handle(SubmitJob(R, graph), 0) == [StoreJobGraph(kept)]
    assert Dispatcher().handle(DispatcherStarted((graph,)), 0) == [StartJobMaster(kept, recovered=True)]


def test_a_job_whose_graph_cannot_be_read_is_listed() -> None:
    """With what is wrong; the others start, and nobody takes its place."""
    core = Dispatcher()
    set_aside = JobGraphSetAside("other", "/ha/jobs/other is cut short; put it back")

    assert core.handle(DispatcherStarted((GRAPH,), set_aside=(set_aside,)), 5) == [
        StartJobMaster(GRAPH, recovered=True)
    ]
    failure = SerializedFailure("set aside: /ha/jobs/other is cut short; put it back", Blame.EXTERNAL, retryable=False)
    name, status = "(set aside: its graph cannot be read)", JobStatus.SUSPENDED
    assert core.jobs()[1:] == (JobOverview(JobID("other"), name, status, 5, 0, failure),)
    assert "was submitted before" in refusal(core, replace(GRAPH, job_id=JobID("other")))
    assert core.handle(OperateJob(R, JobID("other"), CancelJob()), 6) == [
        Reply(R, OperationFailed(SerializedFailure(f"job other is {failure.summary}", Blame.USER, retryable=False)))
    ]


SUBMITTED = replace(GRAPH, submission_digest="d1")
AGAIN = RequestID("again")


def test_a_submission_that_comes_again_is_answered_as_the_first_one() -> None:
    """While the graph is being stored, while the job runs in another parallelism, and when it is over."""
    core = started()
    assert core.handle(SubmitJob(R, SUBMITTED), 0) == [StoreJobGraph(SUBMITTED)]
    assert core.handle(SubmitJob(AGAIN, SUBMITTED), 1) == []
    submitted = JobSubmitted(JOB)
    assert core.handle(JobGraphStored(JOB), 2) == [
        StartJobMaster(SUBMITTED, False),
        Reply(R, submitted),
        Reply(AGAIN, submitted),
    ]
    core.handle(JobGraphChanged(replace(SUBMITTED, name="rescaled")), 3)
    assert core.handle(SubmitJob(AGAIN, SUBMITTED), 4) == [Reply(AGAIN, submitted)]
    core.handle(JobMasterEnded(JOB, JobStatus.FINISHED), 5)
    assert core.handle(SubmitJob(AGAIN, SUBMITTED), 6) == [Reply(AGAIN, submitted)]
    assert "with another graph" in refusal(core, replace(GRAPH, submission_digest="d2"))

    successor = Dispatcher()
    successor.handle(DispatcherStarted((SUBMITTED,)), 0)
    assert successor.handle(SubmitJob(AGAIN, SUBMITTED), 1) == [Reply(AGAIN, submitted)]
    assert "with another graph" in refusal(successor, replace(GRAPH, submission_digest="d2"))


def test_all_who_have_submitted_a_job_hear_that_it_could_not_be_stored() -> None:
    """Also whoever came again meanwhile."""
    core = started()
    core.handle(SubmitJob(R, SUBMITTED), 0)
    core.handle(SubmitJob(AGAIN, SUBMITTED), 1)
    core.handle(JobGraphStoreFailed(JOB, "disk full"), 2)
    failed = OperationFailed(SerializedFailure("the job could not be stored: disk full", Blame.EXTERNAL))
    assert core.handle(JobGraphRemoved(JOB), 3) == [Reply(R, failed), Reply(AGAIN, failed)]


def test_a_store_that_fails_leaves_nothing() -> None:
    """Whatever may be there goes before the client hears of it; the job may be submitted again."""
    core = started()
    core.handle(SubmitJob(R, GRAPH), 0)

    assert core.handle(JobGraphStoreFailed(JOB, "disk full"), 1) == [RemoveJobGraph(JOB, is_over=False)]
    (reply,) = core.handle(JobGraphRemoved(JOB), 2)
    assert isinstance(reply, Reply) and isinstance(reply.answer, OperationFailed)
    assert reply.answer.failure == SerializedFailure("the job could not be stored: disk full", Blame.EXTERNAL)
    assert core.handle(SubmitJob(R, GRAPH), 3) == [StoreJobGraph(GRAPH)]


def test_one_id_and_one_name_are_one_job() -> None:
    """Both are refused, naming the job that is there."""
    core = running()

    assert "was submitted before" in refusal(core, GRAPH)
    again = JobGraph(JobID("another"), GRAPH.name, GRAPH.vertices, GRAPH.edges)
    assert f"a job named 'keyed' is here already ({JOB}" in refusal(core, again)


@pytest.mark.parametrize("status", [JobStatus.FINISHED, JobStatus.CANCELED, JobStatus.FAILED])
def test_the_name_of_a_job_is_free_as_soon_as_it_is_shown_as_over(status: JobStatus) -> None:
    """Its JobMaster may still be deleting checkpoints: whoever waited for the end starts the next one at once."""
    core = running()
    core.handle(JobStatusReported(JobStatusChanged(JOB, status, 5)), 5)

    again = JobGraph(JobID("another"), GRAPH.name, GRAPH.vertices, GRAPH.edges)
    assert core.handle(SubmitJob(R, again), 6) == [StoreJobGraph(again)]


@pytest.mark.parametrize(
    ("graph", "message"),
    [
        (job("empty", [], []), "has no vertices"),
        (keyed_job(configuration={"restart-strategy.typ": "none"}), "restart-strategy.type"),
        (keyed_job(configuration={"restart-strategy.type": "sometimes"}), "one of none, fixed-delay"),
    ],
)
def test_what_cannot_run_is_refused_at_once(graph: JobGraph, message: str) -> None:
    """Before anything is stored."""
    assert message in refusal(started(), graph)


def test_so_many_jobs_are_taken_and_no_more() -> None:
    """A client that submits without end takes no threads from the jobs that are there; who cancels one has room."""
    core = Dispatcher(10, jobs_max=2)
    core.handle(DispatcherStarted(), 0)
    for name in ("a", "b"):
        (effect,) = core.handle(SubmitJob(R, keyed_job(name)), 0)
        assert isinstance(effect, StoreJobGraph)
    assert refusal(core, keyed_job("c")) == (
        "2 jobs are here already, which is as many as jobmanager.max-jobs allows: cancel one first, or raise it"
    )
    core.handle(JobGraphStoreFailed(keyed_job("a").job_id, "the disk is full", user_can_mend=True), 1)
    (effect,) = core.handle(SubmitJob(R, keyed_job("c")), 0)
    assert isinstance(effect, StoreJobGraph)


def test_pickled_jobs_are_refused_where_they_are_not_allowed() -> None:
    """Submitted or found in the store: the first is refused, the second held, and neither runs."""
    pickled = keyed_job("pickled")
    core = Dispatcher(10, takes_pickles=False)

    effects = core.handle(DispatcherStarted((pickled,)), 0)

    why = (
        "job 'pickled' is not run here: operator 'source' is a pickle, and security.pickled-jobs.allowed is false; declare the job "
        "(SubmitDeclaredJob, `snapline submit`), or allow pickles in the coordinator's settings"
    )
    assert [] == effects
    assert [(JobStatus.FAILED, why)] == [(job.status, job.failure.summary) for job in core.jobs() if job.failure]
    assert why.replace("'pickled'", "'another'") == refusal(core, keyed_job("another"))


def test_a_pickle_beside_declared_operators_is_one() -> None:
    """What keeps rows back before an edge is unpickled by TaskManagers as operators are."""
    graph = keyed_job("declared")
    vertices = [
        replace(vertex, operators=tuple(replace(each, payload=DECLARED) for each in vertex.operators))
        for vertex in graph.vertices
    ]
    declared = replace(graph, vertices=tuple(vertices))
    combined = replace(declared, edges=(replace(graph.edges[0], combiner=b"a pickle"), *graph.edges[1:]))

    core = Dispatcher(10, takes_pickles=False)
    core.handle(DispatcherStarted(()), 0)
    assert f"the combiner of edge {graph.edges[0].edge_id!r} is a pickle" in refusal(core, combined)
    assert [StoreJobGraph(declared)] == core.handle(SubmitJob(R, declared), 1)


def test_without_leadership_nothing_is_taken() -> None:
    """The client asks another coordinator."""
    assert "not the leader" in refusal(Dispatcher(), GRAPH)


def test_operations_go_to_the_job_master() -> None:
    """Of a job that runs; others are refused with what is known."""
    core = running()

    assert core.handle(OperateJob(R, JOB, CancelJob()), 2) == [ForwardToJobMaster(R, JOB, CancelJob())]
    (reply,) = core.handle(OperateJob(R, JobID("nobody"), CancelJob()), 2)
    assert isinstance(reply, Reply) and isinstance(reply.answer, OperationFailed)
    assert reply.answer.failure.summary == "no job nobody is known here"


def test_a_job_that_is_over_enters_the_history() -> None:
    """Its graph is removed, its name is free, its status stays known; the history is bounded."""
    core = started(history=2)
    for number in range(3):
        graph = keyed_job(f"job-{number}")
        core.handle(SubmitJob(R, graph), number)
        core.handle(JobGraphStored(graph.job_id), number)
        assert core.handle(JobMasterEnded(graph.job_id, JobStatus.FINISHED), 10 + number) == [
            RemoveJobGraph(graph.job_id)
        ]

    assert [(overview.name, overview.status, overview.end_time_ms) for overview in core.jobs()] == [
        ("job-2", JobStatus.FINISHED, 12),
        ("job-1", JobStatus.FINISHED, 11),
    ]
    (reply,) = core.handle(OperateJob(R, JobID("job-job-2"), CancelJob()), 20)
    assert isinstance(reply, Reply) and isinstance(reply.answer, OperationFailed)
    assert reply.answer.failure.summary == "job job-job-2 is FINISHED"


def test_statuses_are_remembered() -> None:
    """With the failure."""
    core = running()
    failure = SerializedFailure("x")
    core.handle(JobStatusReported(JobStatusChanged(JOB, JobStatus.FAILING, 9, failure)), 9)

    overview = core.find(JOB)
    assert overview is not None
    assert (overview.status, overview.failure) == (JobStatus.FAILING, failure)


def test_a_broken_job_master_is_started_again_a_few_times() -> None:
    """From what is durable; then the job is given up."""
    core = running()
    broken = JobMasterEnded(JOB, JobStatus.RUNNING, SerializedFailure("invariant", Blame.INTERNAL))

    for _ in range(JOB_MASTER_RESTARTS):
        assert core.handle(broken, 5) == [StartJobMaster(GRAPH, True)]
    assert core.handle(broken, 6) == [RemoveJobGraph(JOB, is_unseen=True)]
    overview = core.find(JOB)
    assert overview is not None and overview.failure is not None
    assert (overview.status, overview.failure.summary) == (
        JobStatus.FAILED,
        "its JobMaster broke 4 times: invariant",
    )


def test_a_job_whose_job_master_breaks_once_in_a_while_goes_on() -> None:
    """It was given up when that had happened four times under one leader, in however many months."""
    core = running()
    broken = JobMasterEnded(JOB, JobStatus.RUNNING, SerializedFailure("invariant", Blame.INTERNAL))

    for times in range(1, 3 * JOB_MASTER_RESTARTS):
        assert core.handle(broken, 2 * times * BROKE_TOGETHER_MS) == [StartJobMaster(GRAPH, True)]


def test_a_new_leader_goes_on_with_what_it_finds() -> None:
    """Recovered jobs start from their latest checkpoint, unasked."""
    core = Dispatcher()

    assert core.handle(DispatcherStarted((GRAPH,)), 0) == [StartJobMaster(GRAPH, True)]
    assert "was submitted before" in refusal(core, GRAPH)


def test_lost_leadership_suspends_and_removes_nothing() -> None:
    """The next leader needs the graphs."""
    core = running()

    assert core.handle(DispatcherSuspended("session expired"), 5) == [SuspendJobMaster(JOB)]
    assert core.handle(JobMasterEnded(JOB, JobStatus.SUSPENDED), 6) == []
    assert core.jobs() == ()


def test_what_is_left_of_a_job_that_is_over_goes_when_the_coordinator_stops_meanwhile() -> None:
    """Its graph is gone, so that no later leader would ever come to remove the rest."""
    core = running()
    core.handle(DispatcherSuspended("the coordinator stops"), 5)

    assert core.handle(JobMasterEnded(JOB, JobStatus.CANCELED), 6) == [RemoveJobGraph(JOB)]


def test_a_job_master_that_breaks_when_the_coordinator_stops_is_not_started_again() -> None:
    """Nor is anything of its job removed."""
    core = running()
    core.handle(DispatcherSuspended("the coordinator stops"), 5)

    for _ in range(JOB_MASTER_RESTARTS + 1):
        assert core.handle(JobMasterEnded(JOB, JobStatus.RUNNING), 6) == []


def holding(*others: JobGraph) -> Dispatcher:
    """A new leader that has found a job which it cannot start, and others."""
    core = Dispatcher(10)
    core.handle(DispatcherStarted(others, (HeldJob(GRAPH, "from an earlier Snapline"),)), 0)
    return core


def test_a_job_that_cannot_be_started_is_held_and_the_others_start() -> None:
    """It counts as FAILED, with the line that says how to go on; nothing that is stored of it is touched."""
    other = keyed_job("other")
    core = Dispatcher(10)
    held = HeldJob(GRAPH, "from an earlier Snapline")
    assert core.handle(DispatcherStarted((other,), (held,)), 0) == [StartJobMaster(other, recovered=True)]
    found = core.find(JOB)
    assert found is not None and found.failure is not None
    assert (JobStatus.FAILED, "from an earlier Snapline") == (found.status, found.failure.summary)
    assert core.handle(DispatcherSuspended("lost"), 1) == [SuspendJobMaster(other.job_id)]


def test_a_held_job_is_cancelled_and_nothing_else() -> None:
    """What is stored of it goes then; any other operation is answered with the line."""
    core = holding()
    (reply,) = core.handle(OperateJob(R, JOB, TakeSavepoint()), 1)
    assert isinstance(reply, Reply) and isinstance(reply.answer, OperationFailed)
    assert reply.answer.failure.summary == "from an earlier Snapline"
    assert core.handle(OperateJob(R, JOB, CancelJob()), 2) == [
        RemoveJobGraph(JOB, is_unseen=True),
        Reply(R, Acknowledged()),
    ]
    assert [job.status for job in core.jobs()] == [JobStatus.CANCELED]


def test_a_held_job_keeps_its_name_until_one_starts_from_a_snapshot() -> None:
    """A program that is only run again would start without its state; the one that goes on replaces what is held."""
    core = holding()
    again = replace(keyed_job(), job_id=JobID("again"))
    assert refusal(core, again) == "from an earlier Snapline"
    goes_on = replace(again, savepoint_restore=SavepointRestoreSettings("/checkpoints/chk-7"))
    assert core.handle(SubmitJob(R, goes_on), 1) == [StoreJobGraph(goes_on)]
    assert core.handle(JobGraphStored(goes_on.job_id), 2) == [
        StartJobMaster(goes_on, recovered=False),
        Reply(R, JobSubmitted(goes_on.job_id)),
        RemoveJobGraph(JOB, is_unseen=True),
    ]
    assert {job.job_id: job.status for job in core.jobs()} == {
        goes_on.job_id: JobStatus.CREATED,
        JOB: JobStatus.CANCELED,
    }


def test_a_submission_that_comes_again_while_it_is_taken_back_hears_why() -> None:
    """Its client was told that the same graph was another one, and that asking again does not help."""
    core = started()
    core.handle(SubmitJob(R, SUBMITTED), 0)
    core.handle(JobGraphStoreFailed(JOB, "disk full"), 1)

    assert core.handle(SubmitJob(AGAIN, SUBMITTED), 2) == []
    failed = OperationFailed(SerializedFailure("the job could not be stored: disk full", Blame.EXTERNAL))
    assert core.handle(JobGraphRemoved(JOB), 3) == [Reply(R, failed), Reply(AGAIN, failed)]


def test_a_submission_that_comes_again_to_a_leader_that_holds_its_job_hears_why() -> None:
    """The leader before had stored it; the next one may not start it, whatever the reason is."""
    core = Dispatcher()
    core.handle(DispatcherStarted((), (HeldJob(SUBMITTED, "it has master hooks: take them out"),)), 0)

    assert refusal(core, SUBMITTED) == "it has master hooks: take them out"
    assert "with another graph" in refusal(core, replace(GRAPH, submission_digest="d2"))
