"""What Prometheus is shown of jobs, whatever happens to them while it asks."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pykka
import pytest

from snapline.coordinator.coordinator_metrics import CoordinatorMetrics, down_since_ms
from snapline.coordinator.job_registry import EndedJob, JobRegistry, LiveJob
from snapline.dataflow.ids import JobID
from snapline.dataflow.wire.messages import JobStatus
from snapline.protos import client_pb2 as pb
from snapline.protos import job_pb2
from snapline.runtime.clock import ManualClock
from snapline.runtime.metrics import Sample

JOB = JobID("a" * 32)


def test_a_job_that_ends_while_its_actor_is_asked_is_shown_as_ended() -> None:
    """It was in neither half: no alert saw it in that look."""
    loop = asyncio.new_event_loop()
    loop.close()  # nobody watches
    registry = JobRegistry(loop, ManualClock(), 10)
    overview = pb.JobOverview(job_id=JOB, name="ends", status=job_pb2.JOB_STATUS_FAILED)
    view = EndedJob.from_archive(pb.ArchivedJob(details=pb.JobDetails(overview=overview)))

    def ask(*_question: Any, **_options: Any) -> Any:
        registry.ended(JOB, view)
        raise pykka.ActorDeadError

    master, actor = SimpleNamespace(job_id=JOB), SimpleNamespace(ask=ask)
    registry.started(cast(LiveJob, SimpleNamespace(master=master, actor=actor)))
    nobody = cast(Any, SimpleNamespace(ask=lambda *_question, **_options: []))

    found = list(CoordinatorMetrics(nobody, nobody, registry, ManualClock(), 0).samples())

    assert 1.0 in [each.value for each in found if "failedState" in each.name]


@pytest.mark.parametrize(
    ("status", "down_since"),
    [
        (JobStatus.RUNNING, 9_000),
        (JobStatus.CANCELLING, 9_000),
        (JobStatus.RESTARTING, 7_000),
        (JobStatus.FAILING, 7_000),
    ],
)
def test_a_job_is_down_since_the_failure_that_stopped_it(status: JobStatus, down_since: int) -> None:
    """One that was cancelled had been down since its last restart, however long it had run since."""
    since = {JobStatus.CREATED: 0, JobStatus.RESTARTING: 7_000, JobStatus.RUNNING: 5_000, JobStatus.FAILING: 8_000}
    if status in (JobStatus.RUNNING, JobStatus.CANCELLING):
        since = {JobStatus.CREATED: 0, JobStatus.RESTARTING: 3_000, JobStatus.RUNNING: 5_000, status: 8_000}
    assert down_since_ms(status, since, 9_000) == down_since


def test_a_job_is_down_though_the_clock_was_put_back() -> None:
    """Its failure lies before its last run then, and nothing was shown of the whole coordinator."""
    assert down_since_ms(JobStatus.FAILING, {JobStatus.RUNNING: 5_000, JobStatus.FAILING: 4_000}, 4_500) == 4_000


def test_a_job_that_does_not_answer_hides_nothing_else() -> None:
    """Nothing was shown of the whole coordinator, as if there were none that leads."""
    loop = asyncio.new_event_loop()
    loop.close()  # nobody watches
    registry = JobRegistry(loop, ManualClock(), 10)

    def hang(timeout: float) -> Any:
        raise pykka.Timeout

    answer = [Sample("jobmanager_job", "uptime", 7)]
    for job_id, get in (("a", hang), ("b", lambda timeout: answer)):
        actor = SimpleNamespace(
            ask=lambda *_, get=get, block=True, **_options: get(5) if block else SimpleNamespace(get=get)
        )
        master = SimpleNamespace(job_id=JobID(job_id * 32))
        registry.started(cast(LiveJob, SimpleNamespace(master=master, actor=actor)))
    nobody = cast(Any, SimpleNamespace(ask=lambda *_question, **_options: []))

    found = list(CoordinatorMetrics(nobody, nobody, registry, ManualClock(), 0).samples())

    assert answer[0] in found
    assert [1] == [each.value for each in found if each.name == "isLeader"]
