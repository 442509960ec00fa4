"""What Prometheus is shown of jobs, whatever happens to them while it asks."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pykka
import pytest

from snapline.coordinator.checkpoint.statistics.stats import CheckpointStatsTracker
from snapline.coordinator.coordinator_metrics import CoordinatorMetrics, _job_figures, _task_figures, down_since_ms
from snapline.coordinator.job_registry import EndedJob, JobRegistry, LiveJob
from snapline.coordinator.jobmaster.operations import CancelJob
from snapline.coordinator.jobmaster.scheduler_effects import RestartDelayTimer
from snapline.coordinator.rpc.views import job_details
from snapline.coordinator.user_metric_samples import user_values_of
from snapline.dataflow.api.user_metrics import MetricValue
from snapline.dataflow.ids import JobID
from snapline.dataflow.wire.messages import HeartbeatResponse, JobStatus, TaskMetrics
from snapline.protos import client_pb2 as pb
from snapline.protos import job_pb2
from snapline.runtime.clock import ManualClock
from snapline.runtime.cores.connections import ConnectionID, ConnectionLost
from snapline.runtime.cores.machine import TimerFired
from snapline.runtime.metrics import Sample
from tests.unit.coordinator.jobmaster.test_job_master import Story, attempt

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


def test_a_task_that_was_lost_with_its_task_manager_has_no_figures() -> None:
    """The rows a second and the stuck call of its last heartbeat were shown for as long as the job waited for slots, so
    that a job that stood still looked busy, and an alert sent people to a TaskManager without a name."""
    story = Story().run()
    measured = (MetricValue("parse", "rows", "counter", 5.0),)
    said = TaskMetrics(attempt(), records_in_per_second=700, step_ms=90_000, user_metrics=measured)
    story.hears("a", HeartbeatResponse(metrics=(said,), executions=(attempt(),)))
    live = cast(
        LiveJob,
        SimpleNamespace(master=story.core, statistics=lambda: CheckpointStatsTracker(1).create_snapshot()),
    )

    def figures() -> list[float]:
        shown = [each.value for each in _task_figures(live, 0) if each.name == "numRecordsInPerSecond"]
        return shown + [value.value for _, value in user_values_of(story.core)]

    while_it_runs = figures()
    story.take(ConnectionLost(ConnectionID("tm-a"), "gone"))
    after_its_loss = figures()
    story.take(TimerFired(RestartDelayTimer()), 40)
    assert story.core.status is JobStatus.RESTARTING
    assert (while_it_runs, after_its_loss, figures()) == ([700, 5.0], [], [])


def test_a_job_that_failed_with_its_task_manager_is_not_shown_as_busy() -> None:
    """The rates of its last heartbeat were shown, and archived, for ever."""
    story = Story(attempts=0).run()
    said = TaskMetrics(attempt(), records_in=9, busy_ms_per_second=990, step_ms=90_000)
    story.hears("a", HeartbeatResponse(metrics=(said,), executions=(attempt(),)))
    story.take(ConnectionLost(ConnectionID("tm-a"), "gone"))
    assert story.core.status is JobStatus.FAILED
    shown = job_details(story.core, CheckpointStatsTracker(1).create_snapshot()).vertices[0].subtasks[0]
    assert (shown.records_in, shown.busy_ms_per_second, shown.step_ms) == (9, 0, 0)


def test_how_long_a_job_has_been_in_its_status_is_shown() -> None:
    """Only the time of a restart was: an alert on a job that does not end, although it was cancelled or has failed, had
    nothing to look at."""
    story = Story().run()
    live = cast(
        LiveJob,
        SimpleNamespace(master=story.core, statistics=lambda: CheckpointStatsTracker(1).create_snapshot()),
    )

    def lasting(now_ms: int) -> dict[str, float]:
        return {
            each.name: each.value for each in _job_figures(live, now_ms) if each.name.endswith("Time") and each.value
        }

    assert lasting(700) == {"runningTime": 700}
    story.now_ms = 1_000
    story.operate(CancelJob())
    assert lasting(1_200) == {"cancellingTime": 200}
