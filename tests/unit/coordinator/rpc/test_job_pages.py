"""Pages of jobs, with causes cut short."""

from __future__ import annotations

import pytest

from snapline.coordinator.rpc.job_pages import MAX_CAUSE, BadPageToken, page_of_jobs, shorten_causes
from snapline.dataflow.ids import JobID
from snapline.protos import client_pb2 as pb
from snapline.protos import job_pb2

FOUR_MEBIBYTES = 4 << 20


def times(count: int) -> dict[JobID, int]:
    return {JobID(f"job{n}"): 1000 + n for n in range(count)}


def test_the_pages_together_are_all_jobs_the_newest_first() -> None:
    """A job that comes between two pages moves no other."""
    first, token = page_of_jobs(times(5), 2, "")
    second, token = page_of_jobs(times(6), 2, token)
    third, token = page_of_jobs(times(6), 2, token)
    assert [first, second, third] == [["job4", "job3"], ["job2", "job1"], ["job0"]]
    assert token == ""


def test_sixty_failed_jobs_fit_into_a_standard_message() -> None:
    """Tracebacks are left out and summaries are cut, in a copy: GetJob still has them."""
    cause = job_pb2.SerializedFailure(summary="s" * 50_000, traceback="t" * 60_000)
    failed = [pb.JobOverview(job_id=f"job{n}", failure=cause) for n in range(60)]
    page = pb.ListJobsResponse(jobs=[shorten_causes(job) for job in failed])
    assert page.ByteSize() < FOUR_MEBIBYTES
    assert {(len(job.failure.summary), job.failure.traceback) for job in page.jobs} == {(MAX_CAUSE, "")}
    assert len(failed[0].failure.summary) == 50_000


@pytest.mark.parametrize("token", ["nonsense", "x-job1", "-", "\u00b2-job1", f"{'9' * 5000}-job1"])
def test_a_token_of_somebody_else_is_refused(token: str) -> None:
    """With the way out."""
    with pytest.raises(BadPageToken, match="leave it out for the first page"):
        page_of_jobs(times(1), 1, token)
