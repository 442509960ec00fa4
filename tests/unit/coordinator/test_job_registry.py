"""What clients read of jobs: who is asked for it, and when."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pykka
import pytest

from snapline.coordinator import job_registry
from snapline.coordinator.checkpoint.statistics.stats import CheckpointStatsTracker, RestoredCheckpointStats
from snapline.coordinator.client_view import ClientView
from snapline.coordinator.dispatcher.dispatcher import JobOverview
from snapline.coordinator.job_registry import EndedJob, JobRegistry, LiveJob
from snapline.coordinator.jobmaster.operations import JobSubmitted
from snapline.coordinator.rpc import views
from snapline.dataflow.elements import SnapshotType
from snapline.dataflow.graph.jobgraph import JobGraph
from snapline.dataflow.ids import CheckpointID, JobID, LeaderSessionID
from snapline.dataflow.wire.messages import JobStatus
from snapline.dataflow.wire.submission_digest import with_submission_digest
from snapline.protos import client_pb2 as pb
from snapline.runtime.actor import Query
from snapline.runtime.clock import ManualClock
from tests.unit.coordinator.jobmaster.test_job_master import Story


class Answering:
    """Stands for the actors of all jobs; answers when the last of them that are meant to be asked was."""

    def __init__(self, at_once: int) -> None:
        self.asked: list[JobID] = []
        self._at_once = at_once
        self._waiting: list[tuple[Query, Any]] = []

    def of(self, job_id: JobID) -> Any:
        """What the registry takes for the actor of the job."""

        def ask(query: Query, *, block: bool) -> pykka.Future[Any]:
            assert not block
            self.asked.append(job_id)
            answer: pykka.Future[Any] = pykka.ThreadingFuture()
            self._waiting.append((query, answer))
            if len(self._waiting) == self._at_once:
                for each, to in self._waiting:
                    to.set(each.read(None))
            return answer

        return SimpleNamespace(ask=ask)


def test_a_submission_whose_job_has_ended_under_a_former_leader_runs_nothing_again() -> None:
    """The archive is waited for, because whoever submits again has just seen the leader change."""
    graph = with_submission_digest(JobGraph(JobID("a" * 32), "a", (), ()))
    details = pb.JobDetails(overview=pb.JobOverview(job_id=graph.job_id), submission_digest=graph.submission_digest)

    async def submitted() -> list[Any]:
        registry = JobRegistry(asyncio.get_running_loop(), ManualClock(), 10)
        view = ClientView(*cast(Any, (None, None, registry, None, None, None, None, None, "", LeaderSessionID("s"), 0)))
        again, other = (
            asyncio.ensure_future(view.submit(each)) for each in (graph, replace(graph, submission_digest=""))
        )
        await asyncio.sleep(0)
        assert not again.done()
        registry.remember([pb.ArchivedJob(details=details)])
        return [await again, await other]

    same, refused = asyncio.run(submitted())
    assert same == JobSubmitted(graph.job_id)
    assert "with another graph" in refused.failure.summary


def test_a_job_that_runs_again_is_not_among_those_that_have_ended() -> None:
    """Its leader died when it had archived the job, and before the graph was gone: the next one runs it again."""
    job_id = JobID("a" * 32)
    archived = pb.ArchivedJob(details=pb.JobDetails(overview=pb.JobOverview(job_id=job_id)))
    master = cast(Any, SimpleNamespace(job_id=job_id))
    live = LiveJob(cast(Any, None), master, cast(Any, lambda: None), frozenset, 0)

    async def ended_jobs(*, archive_is_read_first: bool) -> list[pb.JobDetails]:
        registry = JobRegistry(asyncio.get_running_loop(), ManualClock(), 10)
        if archive_is_read_first:
            registry.remember([archived])
            assert registry.ended_jobs(10) == [archived.details]
        registry.started(live)
        registry.remember([archived])
        return registry.ended_jobs(10)

    assert asyncio.run(ended_jobs(archive_is_read_first=True)) == []
    assert asyncio.run(ended_jobs(archive_is_read_first=False)) == []


def test_a_job_that_ends_while_all_are_listed_breaks_no_list() -> None:
    """Jobs end on other threads: who listed them in that moment got an error of Python's in place of the list."""
    first, second, third = (
        EndedJob(pb.JobDetails(overview=pb.JobOverview(job_id=each * 32, start_time_ms=5))) for each in "abc"
    )

    class Interrupted:
        """A job at which another thread has its turn, in which a third job ends, while it is looked at."""

        @property
        def details(self) -> pb.JobDetails:
            registry.ended(JobID("c" * 32), third)
            return first.details

    loop = asyncio.new_event_loop()
    registry = JobRegistry(loop, ManualClock(), 10)
    registry._ended[JobID("a" * 32)] = cast(Any, Interrupted())
    registry.ended(JobID("b" * 32), second)

    assert registry.start_times() == {JobID("a" * 32): 5, JobID("b" * 32): 5}
    loop.close()


def test_a_job_whose_job_master_has_not_begun_has_no_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Just after its submission it was CREATED and had ended when it began; one that never ran has its own end."""
    waiting = JobOverview(JobID("a" * 32), "a", JobStatus.CREATED, 5)
    broken = JobOverview(JobID("b" * 32), "b", JobStatus.FAILED, 6, 9)

    async def dispatched() -> tuple[JobOverview, ...]:
        return waiting, broken

    async def shown() -> list[pb.JobOverview]:
        registry = JobRegistry(asyncio.get_running_loop(), ManualClock(), 10)
        registry.remember([])
        view = ClientView(*cast(Any, (None, None, registry, None, None, None, None, None, "", LeaderSessionID("s"), 0)))
        monkeypatch.setattr(view, "_ask_dispatcher", dispatched)
        found = [await view.job_details(job.job_id) for job in (waiting, broken)]
        return [*(each.overview for each in found if each is not None), *(await view.list_jobs()).jobs]

    times = [(job.name, job.start_time_ms, job.end_time_ms) for job in asyncio.run(shown())]
    assert times == [("a", 5, 0), ("b", 6, 9), ("b", 6, 9), ("a", 5, 0)]


def test_of_three_hundred_jobs_only_those_of_the_page_are_asked_and_all_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On a coordinator that is flooded with jobs, a list of ten that asked each job in turn took 350 ms."""

    def overview(master: Any, _: object) -> pb.JobOverview:
        return pb.JobOverview(job_id=master.job_id)

    monkeypatch.setattr(views, "job_overview", overview)
    monkeypatch.setattr(job_registry, "QUERY_TIMEOUT_SECONDS", 0.0)  # an answer that is not there will not come
    actors = Answering(at_once=10)

    async def listed() -> pb.ListJobsResponse:
        registry = JobRegistry(asyncio.get_running_loop(), ManualClock(), 10)
        for n in range(300):
            master = cast(Any, SimpleNamespace(job_id=JobID(f"job{n}")))
            registry.started(LiveJob(actors.of(master.job_id), master, cast(Any, lambda: None), frozenset, n))
        view = ClientView(*cast(Any, (None, None, registry, None, None, None, None, None, "", LeaderSessionID("s"), 0)))
        monkeypatch.setattr(view, "_ask_dispatcher", nobody)
        return await view.list_jobs(page_size=10)

    async def nobody() -> tuple[()]:
        return ()

    page = asyncio.run(listed())
    newest = [f"job{n}" for n in range(299, 289, -1)]
    assert actors.asked == newest
    assert [job.job_id for job in page.jobs] == newest
    assert page.next_page_token == "290-job290"


def test_what_a_job_was_restored_from_is_shown_with_its_whole_path() -> None:
    """Of a checkpoint of its own clients, and those of the REST API, got the last part alone."""
    statistics = CheckpointStatsTracker(1)
    statistics.report_restored(RestoredCheckpointStats(CheckpointID(5), SnapshotType.CHECKPOINT, 7, "chk-5"))
    shown = views.list_checkpoints(Story().core, statistics.create_snapshot(), 9, frozenset())
    assert shown.restored_path == "/base/job-one/chk-5"
