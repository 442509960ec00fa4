"""Which spans a job has: one story a test."""

from __future__ import annotations

from dataclasses import replace

from snapline.coordinator.checkpoint.statistics.stats import CheckpointStats, CheckpointStatsTracker
from snapline.coordinator.diagnosis.job_spans import JobSpans, Span
from snapline.coordinator.jobmaster.job_past import RootException
from snapline.dataflow.elements import SnapshotType
from snapline.dataflow.failures import SerializedFailure
from snapline.dataflow.ids import CheckpointID, JobVertexID, ResourceID
from snapline.dataflow.wire.messages import JobStatus

DIVIDED = RootException(SerializedFailure("division by zero"), 90, "map (1/2)", ResourceID("tm-1"), number=1)


def running(parallelism: tuple[int, ...] = (2, 2)) -> JobSpans:
    """A job that was submitted at 10 and runs since 30."""
    spans = JobSpans(10, ())
    assert spans.status_seen(JobStatus.CREATED, parallelism, (), 20) == []
    begun = spans.status_seen(JobStatus.RUNNING, parallelism, (), 30)
    assert [Span("JobInitialization", 10, 30, {"status": "RUNNING"})] == begun
    return spans


def test_a_job_that_runs_has_no_more_spans() -> None:
    """Neither while it runs, nor when it finishes or is cancelled."""
    spans = running()
    for status in (JobStatus.RUNNING, JobStatus.CANCELLING, JobStatus.CANCELED):
        assert spans.status_seen(status, (2, 2), (), 50) == []


def test_a_restart_lasts_from_its_first_failure_until_all_runs_and_names_the_cause() -> None:
    """A failure on the way is counted, and the next restart begins anew."""
    spans = running()
    second = replace(DIVIDED, timestamp_ms=95, number=2)
    assert spans.status_seen(JobStatus.RESTARTING, (2, 2), (DIVIDED,), 92) == []
    assert spans.status_seen(JobStatus.RESTARTING, (2, 2), (DIVIDED, second), 96) == []
    cause = {"cause": "division by zero", "task": "map (1/2)", "taskManager": "tm-1"}
    expected = Span("JobRestart", 90, 120, {"status": "RUNNING", **cause, "failures": 2})
    assert [expected] == spans.status_seen(JobStatus.RUNNING, (2, 2), (DIVIDED, second), 120)
    third = replace(DIVIDED, timestamp_ms=200, number=3)
    spans.status_seen(JobStatus.RESTARTING, (2, 2), (DIVIDED, second, third), 200)
    (again,) = spans.status_seen(JobStatus.RUNNING, (2, 2), (DIVIDED, second, third), 210)
    assert (200, 1) == (again.begin_ms, again.attributes["failures"])


def test_a_rescale_says_from_how_many_subtasks_to_how_many() -> None:
    """Nothing has failed, and the job runs with others than before."""
    spans = running()
    spans.status_seen(JobStatus.RESTARTING, (2, 2), (), 40)
    expected = Span("JobRescale", 40, 60, {"status": "RUNNING", "from": 4, "to": 5})
    assert [expected] == spans.status_seen(JobStatus.RUNNING, (2, 3), (), 60)


def test_a_job_that_fails_for_good_ends_its_restart_with_an_error() -> None:
    """The span says how the job ended."""
    spans = running()
    spans.status_seen(JobStatus.RESTARTING, (2, 2), (DIVIDED,), 92)
    spans.status_seen(JobStatus.FAILING, (2, 2), (DIVIDED,), 93)
    (ended,) = spans.status_seen(JobStatus.FAILED, (2, 2), (DIVIDED,), 94)
    assert ("JobRestart", "the job is FAILED", "FAILED") == (ended.name, ended.error, ended.attributes["status"])


def test_a_job_of_a_former_leader_has_not_begun_here() -> None:
    """It runs already; what ends under this leader counts."""
    spans = JobSpans(None, ())
    assert spans.status_seen(JobStatus.RECONCILING, (1,), (), 5) == []
    assert spans.status_seen(JobStatus.RUNNING, (1,), (), 9) == []
    spans.status_seen(JobStatus.RESTARTING, (1,), (DIVIDED,), 95)
    (restart,) = spans.status_seen(JobStatus.RUNNING, (1,), (DIVIDED,), 99)
    assert "JobRestart" == restart.name


def checkpoint(tracker: CheckpointStatsTracker, number: int, at_ms: int) -> CheckpointStats:
    """A checkpoint of two subtasks has begun."""
    return tracker.report_pending(CheckpointID(number), SnapshotType.CHECKPOINT, at_ms, {JobVertexID("v"): 2})


def test_each_checkpoint_that_ends_is_a_span_once() -> None:
    """Completed or failed; one of a former leader is not told again."""
    tracker = CheckpointStatsTracker(3)
    checkpoint(tracker, 1, 100)
    tracker.report_completed(CheckpointID(1), 110, "file:///1")
    spans = JobSpans(None, tracker.history)
    checkpoint(tracker, 2, 200)
    assert spans.checkpoints_seen(tracker.history) == []
    tracker.report_completed(CheckpointID(2), 230, "file:///2")
    (completed,) = spans.checkpoints_seen(tracker.history)
    assert ("Checkpoint", 200, 230, "") == (completed.name, completed.begin_ms, completed.end_ms, completed.error)
    assert (2, "COMPLETED", 2) == tuple(
        completed.attributes[name] for name in ("checkpointId", "checkpointStatus", "subtasks")
    )
    checkpoint(tracker, 3, 300)
    tracker.report_failed(CheckpointID(3), 390, "expired", "map (1/2) did not answer")
    (failed,) = spans.checkpoints_seen(tracker.history)
    assert "expired: map (1/2) did not answer" == failed.error
    assert spans.checkpoints_seen(tracker.history) == []
