"""Lists of jobs in pages, with causes cut short, so that a list fits into one message whatever jobs failed of.

A page's token names its last job; jobs that have come or gone meanwhile move no other job to a page that was read.
"""

from __future__ import annotations

from collections.abc import Sequence

from snapline.protos import client_pb2 as pb

MAX_CAUSE = 500
"""Characters of a failure's summary in a list."""


class BadPageToken(ValueError):
    """The token was not given out by this service."""


def page_of_jobs(jobs: Sequence[pb.JobOverview], page_size: int, page_token: str) -> pb.ListJobsResponse:
    """The jobs after the one that the token names, newest first. Raises BadPageToken."""
    ordered = sorted(jobs, key=_place)
    if page_token:
        after = _read_token(page_token)
        ordered = [job for job in ordered if _place(job) > after]
    shown = ordered[:page_size] if page_size > 0 else ordered
    response = pb.ListJobsResponse(jobs=[shorten_causes(job) for job in shown])
    if len(shown) < len(ordered):
        last = shown[-1]
        response.next_page_token = f"{last.start_time_ms}-{last.job_id}"
    return response


def shorten_causes(job: pb.JobOverview) -> pb.JobOverview:
    """A copy of the job's line without its traceback and with a summary of bounded length."""
    shown = pb.JobOverview()
    shown.CopyFrom(job)
    if shown.HasField("failure"):
        shown.failure.traceback = ""
        if len(shown.failure.summary) > MAX_CAUSE:
            shown.failure.summary = f"{shown.failure.summary[: MAX_CAUSE - 3]}..."
    return shown


def _place(job: pb.JobOverview) -> tuple[int, str]:
    return -job.start_time_ms, job.job_id


def _read_token(token: str) -> tuple[int, str]:
    start, separator, job_id = token.partition("-")
    if not separator or not start.isdigit():
        raise BadPageToken(f"page_token {token!r} is none of this service: leave it out for the first page")
    return -int(start), job_id
