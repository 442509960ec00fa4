"""Lists of jobs in pages, with causes cut short, so that a list fits into one message whatever jobs failed of.

A page's token names its last job; jobs that have come or gone meanwhile move no other job to a page that was read.
"""

from __future__ import annotations

from collections.abc import Mapping

from snapline.dataflow.ids import JobID
from snapline.protos import client_pb2 as pb

MAX_CAUSE = 500
"""Characters of a failure's summary in a list."""


DIGITS_MAX = 18
"""A time in a token that this service gave out has fewer digits."""


class BadPageToken(ValueError):
    """The token was not given out by this service."""


def page_of_jobs(start_times_ms: Mapping[JobID, int], page_size: int, page_token: str) -> tuple[list[JobID], str]:
    """The jobs after the one that the token names, newest first, at most `page_size` (0: all of them), and the token of
    the next page; empty: there is none. Raises BadPageToken."""
    ordered = sorted((-start_time_ms, job_id) for job_id, start_time_ms in start_times_ms.items())
    if page_token:
        after = _read_token(page_token)
        ordered = [place for place in ordered if place > after]
    shown = ordered[:page_size] if page_size > 0 else ordered
    next_page_token = f"{-shown[-1][0]}-{shown[-1][1]}" if len(shown) < len(ordered) else ""
    return [job_id for _, job_id in shown], next_page_token


def shorten_causes(job: pb.JobOverview) -> pb.JobOverview:
    """A copy of the job's line without its traceback and with a summary of bounded length."""
    shown = pb.JobOverview()
    shown.CopyFrom(job)
    if shown.HasField("failure"):
        shown.failure.traceback = ""
        if len(shown.failure.summary) > MAX_CAUSE:
            shown.failure.summary = f"{shown.failure.summary[: MAX_CAUSE - 3]}..."
    return shown


def _read_token(token: str) -> tuple[int, JobID]:
    start, separator, job_id = token.partition("-")
    if not separator or not (start.isascii() and start.isdecimal()) or len(start) > DIGITS_MAX:
        raise BadPageToken(f"page_token {token[:100]!r} is none of this service: leave it out for the first page")
    return -int(start), JobID(job_id)
