"""Dispatcher: which jobs there are, from submission to history.

A submission is checked, made durable, and only then acknowledged and started. Refused are: a job id that is known, a
name that a job which is not over has, a graph or configuration that cannot run. Operations go to the job's JobMaster. A
job that is over leaves the job graph store and enters a bounded history. A JobMaster that breaks is started again from
what is durable, a few times; then its job is FAILED. A stored job that this Snapline cannot start is held: it counts as
FAILED, with a line that says how to go on, and what is stored of it stays until it is cancelled or a job of its name
starts from a snapshot.

Does not know slots, tasks or checkpoints. Mirrors Flink's Dispatcher with its JobGraphWriter and
MemoryExecutionGraphInfoStore.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum

from snapline.coordinator.checkpoint.configuration import CheckpointCoordinatorConfiguration
from snapline.coordinator.dispatcher.effects import (
    DispatcherEffect,
    ForwardToJobMaster,
    RemoveJobGraph,
    StartJobMaster,
    StoreJobGraph,
    SuspendJobMaster,
)
from snapline.coordinator.dispatcher.events import (
    DispatcherEvent,
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
from snapline.coordinator.dispatcher.held_jobs import former_module
from snapline.coordinator.execution.execution_graph import check_job_graph
from snapline.coordinator.execution.restart_strategy import restart_strategy_of
from snapline.coordinator.ha.stored_job_graphs import JobGraphSetAside
from snapline.coordinator.jobmaster.operations import (
    Acknowledged,
    CancelJob,
    JobOperation,
    JobSubmitted,
    OperationFailed,
    Reply,
    RequestID,
)
from snapline.dataflow.config import Configuration
from snapline.dataflow.errors import SnaplineError
from snapline.dataflow.failures import Blame, SerializedFailure
from snapline.dataflow.graph.jobgraph import JobGraph
from snapline.dataflow.ids import JobID
from snapline.dataflow.wire.messages import JobStatus, JobStatusChanged

JOB_MASTER_RESTARTS = 3
"""How often a JobMaster that broke is started again before its job is given up."""
BROKE_TOGETHER_MS = 3_600_000
"""One that broke longer ago than this before the next one does not count any more."""


class JobPhase(Enum):
    """Where a job that is not over stands with the Dispatcher."""

    STORING = "being submitted"
    TAKING_BACK = "being refused"
    """The job could not be stored, or perhaps it was: whatever is there must go before the client hears that it
    failed."""
    RUNNING = "with its JobMaster"
    HELD = "not started"
    """The job was found in the store, and this Snapline cannot start it; see `held_jobs.py`."""


@dataclass(slots=True)
class _Job:
    graph: JobGraph
    phase: JobPhase
    status: JobStatus
    submitted_ms: int
    submitters: list[RequestID] = field(default_factory=list)
    """Whoever has submitted the job and is not answered yet: several when a submission came again."""
    status_since_ms: dict[JobStatus, int] = field(default_factory=dict)
    failure: SerializedFailure | None = None
    broken: int = 0
    """How often its JobMaster broke, each time soon after the one before."""
    broke_at_ms: int = 0
    """When its JobMaster broke last."""


@dataclass(frozen=True, slots=True)
class JobOverview:
    """One job in a list."""

    job_id: JobID
    name: str
    status: JobStatus
    start_time_ms: int
    end_time_ms: int = 0
    """0 while it is not over."""
    failure: SerializedFailure | None = None
    submission_digest: str = ""


class Dispatcher:
    """The core, for one leadership."""

    def __init__(self, history_capacity: int = 1000, jobs_max: int = 300, *, takes_pickles: bool = True) -> None:
        """`history_capacity` is how many ended jobs are remembered (jobstore.max-capacity), `jobs_max` how many jobs
        are taken at a time (jobmanager.max-jobs), `takes_pickles` whether those are that were not declared
        (security.pickled-jobs.allowed)."""
        self._takes_pickles = takes_pickles
        self._jobs_max = jobs_max
        self._history_capacity = history_capacity
        self._jobs: dict[JobID, _Job] = {}
        self._history: dict[JobID, JobOverview] = {}
        """Jobs that are over, oldest first."""
        self._set_aside: tuple[JobOverview, ...] = ()
        """Jobs that this leader cannot start."""
        self.is_leader = False
        """Whether the jobs that are here are all that there are: not before the start, nor after the end."""

    # --- reading ------------------------------------------------------------------------------------------------------

    def jobs(self) -> tuple[JobOverview, ...]:
        """Jobs that are not over, then those that are, newest first."""
        running = tuple(_overview(job) for job in self._jobs.values())
        return (*running, *self._set_aside, *reversed(self._history.values()))

    def find(self, job_id: JobID) -> JobOverview | None:
        """One job, over or not."""
        job = self._jobs.get(job_id)
        set_aside = {each.job_id: each for each in self._set_aside}
        return _overview(job) if job is not None else self._history.get(job_id) or set_aside.get(job_id)

    # --- the one entry point ------------------------------------------------------------------------------------------

    def handle(self, event: DispatcherEvent, now_ms: int) -> list[DispatcherEffect]:
        """Take one event at `now_ms`, and return what is to be done."""
        match event:
            case DispatcherStarted(recovered, held, set_aside):
                self.is_leader = True
                self._set_aside = tuple(_overview_of_set_aside(each, now_ms) for each in set_aside)
                graphs = [graph.without_secrets() for graph in recovered]  # an older version stored them
                started = [graph for graph in graphs if not self._pickled(graph)]
                for graph in started:
                    self._jobs[graph.job_id] = _Job(graph, JobPhase.RUNNING, JobStatus.CREATED, now_ms)
                not_run = [HeldJob(graph, why) for graph in graphs if (why := self._pickled(graph))]
                for job in (*held, *not_run):
                    failure = SerializedFailure(job.reason, Blame.USER, retryable=False)
                    graph = job.job_graph.without_secrets()
                    self._jobs[graph.job_id] = _Job(graph, JobPhase.HELD, JobStatus.FAILED, now_ms, failure=failure)
                return [StartJobMaster(graph, recovered=True) for graph in started]
            case DispatcherSuspended(reason):
                return self._suspend(reason)
            case SubmitJob(request_id, graph):
                return self._submit(request_id, graph.without_secrets(), now_ms)
            case JobGraphStored(job_id):
                return self._stored(job_id)
            case JobGraphChanged(graph):
                if graph.job_id in self._jobs:
                    self._jobs[graph.job_id].graph = graph
                return []
            case JobGraphStoreFailed():
                return self._store_failed(event)
            case OperateJob(request_id, job_id, operation):
                return self._operate(request_id, job_id, operation, now_ms)
            case JobStatusReported(change):
                self._status_reported(change)
                return []
            case JobMasterEnded():
                return self._job_master_ended(event, now_ms)
            case JobGraphRemoved(job_id):
                return self._removed(job_id)

    def _submit(self, request_id: RequestID, graph: JobGraph, now_ms: int) -> list[DispatcherEffect]:
        if self.is_leader and graph.submission_digest and graph.submission_digest == self._digest_of(graph.job_id):
            known = self._jobs.get(graph.job_id)
            if known is None or known.phase is JobPhase.RUNNING:
                return [Reply(request_id, JobSubmitted(graph.job_id))]
            if known.phase is JobPhase.HELD and known.failure is not None:
                return [_refuse(known.failure.summary)(request_id)]
            known.submitters.append(request_id)  # it hears what the first one hears
            return []
        problem = self._why_not(graph)
        if problem is not None:
            return [problem(request_id)]
        self._jobs[graph.job_id] = _Job(graph, JobPhase.STORING, JobStatus.CREATED, now_ms, [request_id])
        return [StoreJobGraph(graph)]

    def _digest_of(self, job_id: JobID) -> str:
        """The digest of the submission that brought the job, over or not; empty: there is none, or it is not known."""
        job, over = self._jobs.get(job_id), self._history.get(job_id)
        return job.graph.submission_digest if job is not None else over.submission_digest if over is not None else ""

    def _why_not(self, graph: JobGraph) -> Callable[[RequestID], Reply] | None:
        """Why the job cannot be taken, as an answer; None: it can."""
        if not self.is_leader:
            return _refuse("this coordinator is not the leader; ask again", Blame.EXTERNAL, retryable=True)
        set_aside = [job.job_id for job in self._set_aside]
        if graph.job_id in self._jobs or graph.job_id in self._history or graph.job_id in set_aside:
            return _refuse(
                f"job {graph.job_id} was submitted before, with another graph; a submission needs an id of its own"
            )
        if len(self._jobs) >= self._jobs_max:
            return _refuse(
                f"{len(self._jobs)} jobs are here already, which is as many as jobmanager.max-jobs allows: cancel one first, or "
                "raise it",
                retryable=True,
            )
        if pickled := self._pickled(graph):
            return _refuse(pickled)
        module = former_module(graph)
        if module:
            return _refuse(
                f"the job is pickled under names that are gone ({module}): the program that submits it has an earlier Snapline; give it this one"
            )
        for job in self._jobs.values():
            if job.graph.name != graph.name:
                continue
            if job.phase is JobPhase.HELD and not graph.savepoint_restore.path and job.failure is not None:
                return _refuse(job.failure.summary)
            if not job.status.is_globally_terminal:
                return _refuse(
                    f"a job named {graph.name!r} is here already ({job.graph.job_id}, {job.status.value}): cancel it first, "
                    "or give this one another name"
                )
        try:
            check_job_graph(graph)
            restart_strategy_of(Configuration(graph.configuration), lambda: 0.0)
            CheckpointCoordinatorConfiguration.from_configuration(Configuration(graph.configuration))
        except (ValueError, SnaplineError) as error:
            return _refuse(str(error))
        return None

    def _pickled(self, graph: JobGraph) -> str:
        """Why the job's pickles are not run here; empty: it has none, or they may be."""
        if self._takes_pickles:
            return ""
        found = [f"operator {uid!r}" for vertex in graph.vertices for uid in vertex.pickled_operators]
        found += [f"the combiner of edge {edge.edge_id!r}" for edge in graph.edges if edge.combiner]
        found += ["a master hook"] if graph.master_hooks else []
        if not found:
            return ""
        return (
            f"job {graph.name!r} is not run here: {found[0]} is a pickle, and security.pickled-jobs.allowed is false; declare the job "
            "(SubmitDeclaredJob, `snapline submit`), or allow pickles in the coordinator's settings"
        )

    def _stored(self, job_id: JobID) -> list[DispatcherEffect]:
        job = self._jobs.get(job_id)
        if job is None or job.phase is not JobPhase.STORING or not self.is_leader:
            return []
        job.phase = JobPhase.RUNNING
        effects: list[DispatcherEffect] = [StartJobMaster(job.graph, recovered=False)]
        effects += [Reply(submitter, JobSubmitted(job_id)) for submitter in job.submitters]
        job.submitters = []
        held = [
            each for each in self._jobs.values() if each.phase is JobPhase.HELD and each.graph.name == job.graph.name
        ]
        return [*effects, *(self._let_go(each, JobStatus.CANCELED, job.submitted_ms) for each in held)]

    def _let_go(self, held: _Job, status: JobStatus, now_ms: int) -> DispatcherEffect:
        """Nobody needs what is stored of a held job any more; the files of its checkpoints are whoever's who starts
        from them."""
        held.status = status
        self._move_to_history(held, now_ms)
        return RemoveJobGraph(held.graph.job_id, is_unseen=True)

    def _move_to_history(self, job: _Job, now_ms: int) -> None:
        """Into the history, which forgets its oldest."""
        del self._jobs[job.graph.job_id]
        self._history[job.graph.job_id] = _overview(job, now_ms)
        while len(self._history) > self._history_capacity:
            del self._history[next(iter(self._history))]

    def _store_failed(self, event: JobGraphStoreFailed) -> list[DispatcherEffect]:
        job_id = event.job_id
        job = self._jobs.get(job_id)
        if job is None or job.phase is not JobPhase.STORING:
            return []
        if event.user_can_mend:
            del self._jobs[job_id]
            return [_refuse(event.reason)(submitter) for submitter in job.submitters]
        job.phase = JobPhase.TAKING_BACK
        job.failure = SerializedFailure(f"the job could not be stored: {event.reason}", Blame.EXTERNAL, retryable=True)
        return [RemoveJobGraph(job_id, is_over=False)]

    def _removed(self, job_id: JobID) -> list[DispatcherEffect]:
        """A graph is gone, or could not be removed; the latter is all that could be done."""
        job = self._jobs.get(job_id)
        if job is None or job.phase is not JobPhase.TAKING_BACK:
            return []
        del self._jobs[job_id]
        failed = OperationFailed(job.failure) if job.failure is not None else None
        return [Reply(submitter, failed) for submitter in job.submitters] if failed is not None else []

    def _operate(
        self, request_id: RequestID, job_id: JobID, operation: JobOperation, now_ms: int
    ) -> list[DispatcherEffect]:
        job = self._jobs.get(job_id)
        if job is None:
            listed = self.find(job_id)
            if listed is None:
                return [_refuse(f"no job {job_id} is known here")(request_id)]
            why = listed.failure if listed.status is JobStatus.SUSPENDED else None  # what is wrong with its graph
            what = listed.status.value if why is None else why.summary
            return [_refuse(f"job {job_id} is {what}")(request_id)]
        if job.phase is JobPhase.HELD and job.failure is not None:
            if not isinstance(operation, CancelJob):
                return [_refuse(job.failure.summary)(request_id)]
            return [self._let_go(job, JobStatus.CANCELED, now_ms), Reply(request_id, Acknowledged())]
        if job.phase is not JobPhase.RUNNING:
            return [_refuse(f"job {job_id} is still being submitted; ask again", retryable=True)(request_id)]
        return [ForwardToJobMaster(request_id, job_id, operation)]

    def _status_reported(self, change: JobStatusChanged) -> None:
        job = self._jobs.get(change.job_id)
        if job is not None:
            job.status = change.status
            job.status_since_ms[change.status] = change.timestamp_ms
            job.failure = change.failure

    def _job_master_ended(self, event: JobMasterEnded, now_ms: int) -> list[DispatcherEffect]:
        job = self._jobs.get(event.job_id)
        if job is None:
            return []
        status, failure = event.status, event.failure
        if not status.is_globally_terminal:
            if status is JobStatus.SUSPENDED or not self.is_leader:
                del self._jobs[event.job_id]
                return []
            is_near = now_ms - job.broke_at_ms <= BROKE_TOGETHER_MS
            job.broken, job.broke_at_ms = job.broken + 1 if is_near else 1, now_ms
            if job.broken <= JOB_MASTER_RESTARTS:
                job.status = JobStatus.CREATED
                return [StartJobMaster(job.graph, recovered=True)]
            why = "" if failure is None else f": {failure.summary}"
            summary = f"its JobMaster broke {job.broken} times{why}"
            blame = Blame.INTERNAL if failure is None else failure.blame
            status, failure = JobStatus.FAILED, SerializedFailure(summary, blame, retryable=False)
        job.status, job.failure = status, failure
        self._move_to_history(job, now_ms)
        return [RemoveJobGraph(event.job_id, is_unseen=not event.status.is_globally_terminal)]

    def _suspend(self, reason: str) -> list[DispatcherEffect]:
        self.is_leader = False
        effects: list[DispatcherEffect] = []
        for job_id, job in list(self._jobs.items()):
            if job.phase is JobPhase.RUNNING:
                effects.append(SuspendJobMaster(job_id))
                continue
            del self._jobs[job_id]
            answer = _refuse(
                f"leadership was lost during the submission ({reason}): submit it again, under the same id"
            )
            effects += [answer(submitter) for submitter in job.submitters]
        return effects


def _overview(job: _Job, end_time_ms: int = 0) -> JobOverview:
    graph = job.graph
    return JobOverview(
        graph.job_id, graph.name, job.status, job.submitted_ms, end_time_ms, job.failure, graph.submission_digest
    )


def _overview_of_set_aside(job: JobGraphSetAside, now_ms: int) -> JobOverview:
    """SUSPENDED: no leader runs it, and one may yet."""
    failure = SerializedFailure(f"set aside: {job.reason}", Blame.EXTERNAL, retryable=False)
    return JobOverview(
        JobID(job.name), "(set aside: its graph cannot be read)", JobStatus.SUSPENDED, now_ms, 0, failure
    )


def _refuse(summary: str, blame: Blame = Blame.USER, *, retryable: bool = False) -> Callable[[RequestID], Reply]:
    return lambda request_id: Reply(request_id, OperationFailed(SerializedFailure(summary, blame, retryable=retryable)))
