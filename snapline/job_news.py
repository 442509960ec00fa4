"""What a person is told of a running job, line by line: what failed and is tried again, how far it is, how it ended.

JobNews decides which details are news; it prints nothing and has no clock. The failure that ends a job is not told
here: it is raised.
"""

from __future__ import annotations

import time

from snapline.client import describe_failure
from snapline.dataflow.failures import USER_TRACEBACK, SerializedFailure
from snapline.dataflow.wire.codec import decode, decode_job_status
from snapline.dataflow.wire.messages import JobStatus
from snapline.protos import client_pb2 as pb
from snapline.reporting import tell

PROGRESS_MS = 10_000
"""How often the progress is told where nobody sees a bar."""
SLOTS = "slots"
"""What a job says that it waits for, and a person can give it."""
MAX_REMEMBERED = 1_000
"""Failures whose traceback was shown; after so many others one may be shown again."""


class JobNews:
    """The finder of what is news of one job."""

    def __init__(self, *, is_quiet: bool, has_bar: bool) -> None:
        """`is_quiet`: failures only, as of a local run. `has_bar`: somebody sees the progress already."""
        self._is_quiet = is_quiet
        self._has_bar = has_bar
        self._status: JobStatus | None = None
        self._detail = ""
        self._told_failures: set[tuple[int, str]] = set()
        self._shown_tracebacks: set[str] = set()
        self._progress_ms: int | None = None

    def lines(self, details: pb.JobDetails, rows: int, now_ms: int) -> list[str]:
        """What is new since the last time; `rows` were read."""
        overview = details.overview
        status = decode_job_status(overview.status)
        found = [] if status in (JobStatus.FAILING, JobStatus.FAILED) else self._failures(details)
        if not self._is_quiet:
            name = f"job {overview.name!r}"
            if status is not self._status and status in (JobStatus.RUNNING, JobStatus.FINISHED, JobStatus.CANCELED):
                seconds = max(0, overview.end_time_ms - overview.start_time_ms) / 1000
                is_over = status.is_globally_terminal
                found.append(
                    f"{name} {status.value}{f' in {seconds:.1f} s: {self._figures(details, rows)}' if is_over else ''}"
                )
            waits = status in (JobStatus.CREATED, JobStatus.RESTARTING) and SLOTS in overview.status_detail
            if waits and overview.status_detail != self._detail:
                found.append(f"{name}: {overview.status_detail}")
            if self._progress_ms is None:
                self._progress_ms = now_ms
            if status is JobStatus.RUNNING and not self._has_bar and now_ms - self._progress_ms >= PROGRESS_MS:
                self._progress_ms = now_ms
                found.append(f"{name} {status.value}: {self._figures(details, rows)}")
        self._status, self._detail = status, overview.status_detail
        return found

    @staticmethod
    def _figures(details: pb.JobDetails, rows: int) -> str:
        again = " (those after a restart twice)" if details.overview.restarts else ""
        return f"{rows:,} rows read{again}, {details.checkpoint_counts.completed} checkpoints, {details.overview.restarts} restarts"

    def _failures(self, details: pb.JobDetails) -> list[str]:
        """The newest ones last; the traceback of a user's function with the first of its kind."""
        found = []
        for entry in reversed(details.failures):
            key = (entry.timestamp_ms, entry.failure.summary)
            if key in self._told_failures:
                continue
            if len(self._told_failures) >= MAX_REMEMBERED:
                self._told_failures.clear()
                self._shown_tracebacks.clear()
            self._told_failures.add(key)
            failure = decode(SerializedFailure, entry.failure)
            found.append(f"{describe_failure(details.overview.name, failure)}; it restarts")
            told = failure.traceback
            if told.startswith(USER_TRACEBACK) and told not in self._shown_tracebacks:
                self._shown_tracebacks.add(told)
                found.append(told.rstrip())
        return found


def print_news(news: JobNews, details: pb.JobDetails, rows: int) -> None:
    """On standard error: what the program prints itself is its own."""
    for line in news.lines(details, rows, time.monotonic_ns() // 1_000_000):
        tell(line if "\n" in line else f"snapline: {line}")
