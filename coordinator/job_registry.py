"""What clients can see of jobs: the live ones through their actor, ended ones as they were last seen. Bounded.

Decides nothing about jobs. Views are made on the thread of the actor that owns the core, so that nobody sees half a
transition; they are awaited on the server's loop through a small pool of threads, because pykka's answers block.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import pykka

from snapline.coordinator.checkpoint.statistics.stats import CheckpointStatsSnapshot
from snapline.coordinator.external.places import PlaceOfAttempt, places_of
from snapline.coordinator.jobmaster.job_master import JobMaster
from snapline.coordinator.rpc import views
from snapline.dataflow.ids import CheckpointID, JobID
from snapline.dataflow.wire.messages import JobStatus
from snapline.dataflow.wire.statuses import encode_job_status
from snapline.protos import client_pb2 as pb
from snapline.protos import external_pb2, job_pb2
from snapline.runtime.actor import Query
from snapline.runtime.clock import Clock

QUERY_TIMEOUT_SECONDS = 15.0

ResultT = TypeVar("ResultT")


@dataclass(frozen=True)
class EndedJob:
    """The last view of a job."""

    details: pb.JobDetails
    checkpoints: pb.ListCheckpointsResponse = field(default_factory=pb.ListCheckpointsResponse)
    by_id: Mapping[int, pb.CheckpointDetails] = field(default_factory=dict)

    def to_archive(self) -> pb.ArchivedJob:
        """Return the form in which the job outlives its leader."""
        archived = pb.ArchivedJob(details=self.details, checkpoints=self.checkpoints)
        archived.checkpoint_details.extend(self.by_id.values())
        return archived

    @classmethod
    def from_archive(cls, job: pb.ArchivedJob) -> EndedJob:
        """The last view of a job of a former leader."""
        by_id = {each.overview.checkpoint_id: each for each in job.checkpoint_details}
        return cls(job.details, job.checkpoints, by_id)


@dataclass(frozen=True)
class LiveJob:
    """A job with its JobMaster. Everything but the actor is read on the actor's thread only."""

    actor: pykka.ActorRef[Any]
    master: JobMaster
    statistics: Callable[[], CheckpointStatsSnapshot]
    retained: Callable[[], frozenset[CheckpointID]]
    """Completed checkpoints whose files are there."""
    start_time_ms: int
    """When the job was submitted; it never changes."""
    name: str = ""
    external_tasks: frozenset[str] = frozenset()
    """Names of the job's external tasks without rows; they never change."""
    tasks_with_rows: frozenset[str] = frozenset()
    """Names of those whose programs go to TaskManagers."""

    def last_view(self, now_ms: int, outcome: JobStatus | None = None) -> EndedJob:
        """Everything about the job that will be shown after its end. `outcome`: how it has ended, although nobody has
        heard of it."""
        snapshot, retained = self.statistics(), self.retained()
        details = views.job_details(self.master, snapshot)
        if outcome is not None:
            overview, graph = details.overview, self.master.scheduler.graph
            overview.status, overview.end_time_ms = encode_job_status(outcome), graph.status_since_ms[outcome]
            overview.status_detail = ""
        return EndedJob(
            details=details,
            checkpoints=views.list_checkpoints(self.master, snapshot, now_ms, retained),
            by_id={
                s.checkpoint_id: views.checkpoint_details(self.master, s, now_ms, retained) for s in snapshot.history
            },
        )


async def read_actor(actor: pykka.ActorRef[Any], read: Callable[[Any], ResultT]) -> ResultT:
    """What `read` returns for the actor's core. Raises pykka.ActorDeadError or pykka.Timeout."""
    answer: Any = await asyncio.to_thread(lambda: actor.ask(Query(read), timeout=QUERY_TIMEOUT_SECONDS))
    return answer


ARCHIVE_SECONDS = 10.0
"""How long a client waits for the archive of a new leader, which tells whether a job has ended already."""


class JobRegistry:
    """All jobs that clients can ask about, by job id. The methods that are not coroutines may be called from any
    thread."""

    def __init__(self, loop: asyncio.AbstractEventLoop, clock: Clock, capacity: int) -> None:
        self._loop = loop
        self._clock = clock
        self._capacity = capacity
        self._live: dict[JobID, LiveJob] = {}
        self._ended: OrderedDict[JobID, EndedJob] = OrderedDict()
        self.failed_jobs = 0
        """How many jobs have ended as FAILED under this leader."""
        self._changed: dict[JobID | None, asyncio.Event] = {}
        self._archive_is_read = asyncio.Event()

    @property
    def now_ms(self) -> int:
        """Return the time of this coordinator's clock."""
        return self._clock.now_ms()

    def started(self, job: LiveJob) -> None:
        """The job has a JobMaster."""
        self._live[job.master.job_id] = job
        self._ended.pop(job.master.job_id, None)  # it was archived by a leader that died before its graph was gone
        self.touch(job.master.job_id)

    def ended(self, job_id: JobID, view: EndedJob | None) -> None:
        """Note that the JobMaster of the job is gone; None: it broke, and nothing could be read. At no moment does
        another thread find the job nowhere."""
        if view is not None:
            self.failed_jobs += view.details.overview.status == job_pb2.JOB_STATUS_FAILED
            self._ended[job_id] = view
            while len(self._ended) > self._capacity:
                self._ended.popitem(last=False)
        self._live.pop(job_id, None)
        self.touch(job_id)

    def remember(self, jobs: Iterable[pb.ArchivedJob]) -> None:
        """Jobs that have ended under former leaders, the earliest first; they stand before those of this one."""
        former = {JobID(job.details.overview.job_id): EndedJob.from_archive(job) for job in jobs}
        for job_id, view in reversed(former.items()):
            if job_id not in self._ended and job_id not in self._live:
                self._ended[job_id] = view
                self._ended.move_to_end(job_id, last=False)
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody submits
            self._loop.call_soon_threadsafe(self._archive_is_read.set)

    async def submission_digest(self, job_id: JobID) -> str | None:
        """Return the digest of the submission that brought a job which has ended, also under former leaders; None:
        there was no such job. Waits for the archive, as far as that can be read in a while."""
        await self.archive_read()
        view = self._ended.get(job_id)
        return None if view is None else view.details.submission_digest

    async def archive_read(self) -> None:
        """Wait until it is known which jobs have ended under former leaders, as far as that can be read in a while."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._archive_is_read.wait(), ARCHIVE_SECONDS)

    def touch(self, job_id: JobID | None) -> None:
        """Something changed that watchers want to see at once; None: the resources."""
        try:
            self._loop.call_soon_threadsafe(self._wake, job_id)
        except RuntimeError:  # the loop is closed: nobody watches
            return

    def _wake(self, job_id: JobID | None) -> None:
        waiting = self._changed.pop(job_id, None)
        if waiting is not None:
            waiting.set()

    async def changed(self, job_id: JobID | None, timeout_seconds: float) -> None:
        """Wait until `touch`, at most so long."""
        waiting = self._changed.setdefault(job_id, asyncio.Event())
        try:
            await asyncio.wait_for(waiting.wait(), timeout_seconds)
        except TimeoutError:
            return

    def find_for_program(self, job: str, task: str, own: str = "") -> JobID | external_pb2.Rejected:
        """The job with this id or name that a program outside can take part in as this task; or why there is none. Of
        jobs of one name the newest one that has not ended is meant. `own`: the only job that the program acts for, so
        that it is told nothing of another, and no other one of that name is meant; empty: any."""
        named = [each for each in reversed(list(self._live.values())) if each.name == job]
        meant = (each for each in named if own in ("", each.master.job_id))
        found = self._live.get(JobID(job)) or next(meant, None)
        if found is None:
            ended = [each.details.overview for each in list(self._ended.values())]
            for overview in reversed(ended):
                if job in (overview.job_id, overview.name) and own in ("", overview.job_id):
                    status = job_pb2.JobStatus.Name(overview.status).removeprefix("JOB_STATUS_")
                    detail = f"job {overview.name!r} ({overview.job_id}) is {status}"
                    return external_pb2.Rejected(reason=external_pb2.REJECTION_REASON_JOB_IS_OVER, detail=detail)
            if named:
                return named[0].master.job_id
            detail = f"no job {job!r} runs here: submit it (snapline external submit), or look at snapline list"
            reason = external_pb2.REJECTION_REASON_UNKNOWN_JOB
            return external_pb2.Rejected(reason=reason, detail=detail, try_again=True)
        if task not in found.external_tasks | found.tasks_with_rows and own in ("", found.master.job_id):
            names = sorted(found.external_tasks | found.tasks_with_rows)
            known = ", ".join(repr(name) for name in names) or "none"
            detail = f"job {found.name!r} has no external task {task!r}; it has {known}"
            return external_pb2.Rejected(reason=external_pb2.REJECTION_REASON_NO_PLACE, detail=detail)
        return found.master.job_id

    async def places_for_program(self, job_id: JobID, task: str) -> Sequence[PlaceOfAttempt] | None:
        """Where the programs of an external task with rows go; None: it has no rows, or the job is gone."""
        job = self._live.get(job_id)
        if job is None or task not in job.tasks_with_rows:
            return None

        def read(_: object) -> Sequence[PlaceOfAttempt]:
            managed = {each.info.resource_id: each.info.exchange_address for each in job.master.task_managers}
            return places_of(job.master.scheduler.graph, task, managed)

        try:
            return await read_actor(job.actor, read)
        except pykka.ActorDeadError:
            return None

    def live(self) -> list[LiveJob]:
        """Return the jobs that have a JobMaster here."""
        return list(self._live.values())

    def ended_jobs(self, most: int) -> list[pb.JobDetails]:
        """Return the last views of the jobs that ended last, the newest first."""
        return [job.details for job in list(self._ended.values())[::-1][:most]]

    def __contains__(self, job_id: JobID) -> bool:
        """Whether the job has a JobMaster, or had one."""
        return job_id in self._live or job_id in self._ended

    async def details(self, job_id: JobID) -> pb.JobDetails | None:
        """One job; None: not known here."""
        return await self._read(
            job_id, lambda job: views.job_details(job.master, job.statistics()), lambda ended: ended.details
        )

    def start_times(self) -> dict[JobID, int]:
        """When each job that this coordinator knows was submitted; no actor is asked."""
        # copied at once, because jobs begin and end on other threads
        ended = {job_id: job.details.overview.start_time_ms for job_id, job in list(self._ended.items())}
        return {**ended, **{job_id: job.start_time_ms for job_id, job in list(self._live.items())}}

    async def overviews(self, job_ids: Collection[JobID]) -> dict[JobID, pb.JobOverview]:
        """Those of the jobs that are known, in a line each."""
        return await self._read_all(
            job_ids, lambda job: views.job_overview(job.master, job.statistics()), lambda ended: ended.details.overview
        )

    async def checkpoints(self, job_id: JobID) -> pb.ListCheckpointsResponse | None:
        """Return the job's checkpoints; None when the job is not known."""
        now_ms = self._clock.now_ms()
        return await self._read(
            job_id,
            lambda job: views.list_checkpoints(job.master, job.statistics(), now_ms, job.retained()),
            lambda ended: ended.checkpoints,
        )

    async def checkpoint(self, job_id: JobID, checkpoint_id: int) -> pb.CheckpointDetails | None:
        """Return one checkpoint by subtask; None when it is not known."""
        now_ms = self._clock.now_ms()

        def read(job: LiveJob) -> pb.CheckpointDetails | None:
            found = job.statistics().find(CheckpointID(checkpoint_id))
            return None if found is None else views.checkpoint_details(job.master, found, now_ms, job.retained())

        return await self._read(job_id, read, lambda ended: ended.by_id.get(checkpoint_id))

    async def _read(
        self, job_id: JobID, live: Callable[[LiveJob], ResultT], ended: Callable[[EndedJob], ResultT]
    ) -> ResultT | None:
        return (await self._read_all((job_id,), live, ended)).get(job_id)

    async def _read_all(
        self, job_ids: Collection[JobID], live: Callable[[LiveJob], ResultT], ended: Callable[[EndedJob], ResultT]
    ) -> dict[JobID, ResultT]:
        """What is read of each job that is known. All actors are asked before the first answer is awaited: one after
        the other, each would wait for its turn on a busy loop."""
        jobs = {job_id: job for job_id in job_ids if (job := self._live.get(job_id)) is not None}

        def asked_of(job: LiveJob) -> Any:
            return job.actor.ask(Query(lambda _: live(job)), block=False)

        def ask() -> dict[JobID, ResultT]:
            asked = {job_id: asked_of(job) for job_id, job in jobs.items()}
            answers = {}
            for job_id, answer in asked.items():
                with contextlib.suppress(pykka.ActorDeadError):  # the job ended meanwhile
                    answers[job_id] = answer.get(timeout=QUERY_TIMEOUT_SECONDS)
            return answers

        found = await asyncio.to_thread(ask) if jobs else {}
        for job_id in job_ids:
            if job_id not in found and (view := self._ended.get(job_id)) is not None:
                found[job_id] = ended(view)
        return found
