"""Pages of jobs, with causes cut short."""

from __future__ import annotations

from typing import Any

import pytest

from snapline.coordinator.rpc.job_pages import MAX_CAUSE, BadPageToken, page_of_jobs
from snapline.protos import client_pb2 as pb
from snapline.protos import job_pb2

FOUR_MEBIBYTES = 4 << 20


def jobs(count: int, **failure: Any) -> list[pb.JobOverview]:
    cause = job_pb2.SerializedFailure(**failure)
    return [pb.JobOverview(job_id=f"job{n}", start_time_ms=1000 + n, failure=cause) for n in range(count)]


def test_the_pages_together_are_all_jobs_the_newest_first() -> None:
    """A job that comes between two pages moves no other."""
    first = page_of_jobs(jobs(5), 2, "")
    second = page_of_jobs(jobs(6), 2, first.next_page_token)
    third = page_of_jobs(jobs(6), 2, second.next_page_token)
    shown = [[job.job_id for job in page.jobs] for page in (first, second, third)]
    assert shown == [["job4", "job3"], ["job2", "job1"], ["job0"]]
    assert third.next_page_token == ""


def test_sixty_failed_jobs_fit_into_a_standard_message() -> None:
    """Tracebacks are left out and summaries are cut, in a copy: GetJob still has them."""
    failed = jobs(60, summary="s" * 50_000, traceback="t" * 60_000)
    page = page_of_jobs(failed, 0, "")
    assert page.ByteSize() < FOUR_MEBIBYTES
    assert {(len(job.failure.summary), job.failure.traceback) for job in page.jobs} == {(MAX_CAUSE, "")}
    assert len(failed[0].failure.summary) == 50_000


@pytest.mark.parametrize("token", ["nonsense", "x-job1", "-"])
def test_a_token_of_somebody_else_is_refused(token: str) -> None:
    """With the way out."""
    with pytest.raises(BadPageToken, match="leave it out for the first page"):
        page_of_jobs(jobs(1), 1, token)
