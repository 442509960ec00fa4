"""Jobs in Flink's JSON: what their clients look at to find out how a job has ended."""

from __future__ import annotations

import pytest

from snapline.coordinator.web.flink_cluster import aggregated, job_figures
from snapline.coordinator.web.flink_jobs import distribution, execution_result, subtask_details
from snapline.protos import client_pb2 as pb
from snapline.protos import job_pb2


def ended(status: int, traceback: str = "") -> pb.JobDetails:
    """A job that a TaskManager was lost under, once."""
    overview = pb.JobOverview(job_id="a" * 32, status=status, start_time_ms=1, end_time_ms=9)  # type: ignore[arg-type]
    overview.failure.error_type, overview.failure.summary = "TaskManagerLost", "TaskManager a is lost"
    overview.failure.traceback = traceback
    return pb.JobDetails(overview=overview)


@pytest.mark.parametrize("status", [job_pb2.JOB_STATUS_FINISHED, job_pb2.JOB_STATUS_CANCELED])
def test_a_job_that_came_through_a_failure_has_no_cause(status: int) -> None:
    """It was restarted then; clients take a cause for the end of the job."""
    assert "failure-cause" not in execution_result(ended(status))["job-execution-result"]


@pytest.mark.parametrize("traceback", ["", "Traceback of it"])
def test_the_cause_of_a_failed_job_is_never_empty(traceback: str) -> None:
    """A failure that no code has raised has a line alone."""
    cause = execution_result(ended(job_pb2.JOB_STATUS_FAILED, traceback))["job-execution-result"]["failure-cause"]
    assert cause == {"class": "TaskManagerLost", "stack-trace": traceback or "TaskManager a is lost"}


def test_states_that_are_entered_at_the_same_time_last_in_their_order() -> None:
    """A task is scheduled and deployed in one millisecond, and had been SCHEDULED as long as it was deployed."""
    entered = {"CREATED": 5, "SCHEDULED": 100, "DEPLOYING": 100, "INITIALIZING": 150, "RUNNING": 150}
    subtask = pb.SubtaskDetails(state=job_pb2.EXECUTION_STATE_RUNNING, state_timestamps_ms=entered)
    lasted = subtask_details(subtask, now_ms=450)["status-duration"]
    assert lasted == {"CREATED": 95, "SCHEDULED": 0, "DEPLOYING": 50, "INITIALIZING": 0, "RUNNING": 300}


def test_quantiles_are_those_of_the_statistics_of_checkpoints() -> None:
    """Interpolated between neighbours, as Flink's are; of few values the extreme one."""
    quantiles = {"p50": 50.5, "p90": 90.9, "p95": 95.95, "p99": 99.99, "p999": 100.0}
    assert distribution(range(1, 101)) == pytest.approx({"min": 1, "max": 100, "avg": 50, **quantiles})


def test_skew_is_how_far_subtasks_are_from_their_mean() -> None:
    """None where all are equal or have done nothing; at most 100 percent, also where one has done everything."""
    for values, skew in (([5, 5, 5], 0.0), ([0, 0], 0.0), ([10, 20], 100 / 3), ([0, 0, 0, 0, 90], 100.0)):
        [found] = aggregated([{"numRecordsIn": value} for value in values], "numRecordsIn", None)
        assert found["skew"] == pytest.approx(skew)


def test_figures_of_checkpoints_are_there_before_the_first_one() -> None:
    """A client that asked for one of a job without a checkpoint was answered with nothing, and not with Flink's -1."""
    figures = job_figures(ended(job_pb2.JOB_STATUS_RUNNING), pb.ListCheckpointsResponse(), now_ms=9)
    assert {value for name, value in figures.items() if name.startswith("last")} == {-1, "n/a"}
    done = pb.ListCheckpointsResponse(restored_timestamp_ms=3)
    done.latest_completed.checkpoint_id = done.latest_completed.end_to_end_duration_ms = 7
    figures = job_figures(ended(job_pb2.JOB_STATUS_RUNNING), done, now_ms=9)
    names = ("lastCompletedCheckpointId", "lastCheckpointDuration", "lastCheckpointRestoreTimestamp")
    assert [figures[name] for name in names] == [7, 7, 3]
