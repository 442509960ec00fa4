"""What the console is told of a running job."""

from __future__ import annotations

import sys

import pytest

from snapline.dataflow.failures import USER_TRACEBACK, Blame, SerializedFailure
from snapline.dataflow.wire.codec import encode_into, encode_job_status
from snapline.dataflow.wire.messages import JobStatus
from snapline.job_news import PROGRESS_MS, JobNews, print_news
from snapline.protos import client_pb2 as pb

TRACEBACK = f"{USER_TRACEBACK}\n  File job.py, line 3, in f\nZeroDivisionError: division by zero\n"


def details(status, failures=(), detail="", restarts=0):
    """Of a job that ran for two seconds."""
    overview = pb.JobOverview(
        job_id="1",
        name="sums",
        status=encode_job_status(status),
        status_detail=detail,
        restarts=restarts,
        start_time_ms=1_000,
        end_time_ms=3_000 if status.is_globally_terminal else 0,
    )
    job = pb.JobDetails(overview=overview)
    for at_ms in sorted(failures, reverse=True):
        failure = SerializedFailure("division by zero", Blame.USER, traceback=TRACEBACK, position="row 5 of the batch")
        encode_into(failure, job.failures.add(timestamp_ms=at_ms, task_name="map").failure)
    return job


def test_a_failure_is_told_at_once_and_at_every_restart():
    """With the traceback of the function the first time; what was told is not told again."""
    news = JobNews(is_quiet=True, has_bar=False)
    line = "job 'sums' failed: division by zero, at row 5 of the batch; it restarts"
    assert news.lines(details(JobStatus.RESTARTING, [1]), 0, 0) == [line, TRACEBACK.rstrip()]
    assert news.lines(details(JobStatus.RUNNING, [1]), 0, 0) == []
    assert news.lines(details(JobStatus.RUNNING, [1, 2, 3]), 0, 0) == [line, line]


def test_the_failure_that_ends_the_job_is_raised_and_not_told():
    """Nobody reads it twice."""
    assert JobNews(is_quiet=True, has_bar=False).lines(details(JobStatus.FAILED, [1]), 0, 0) == []


def test_status_progress_and_end():
    """What is waited for, that it runs, how far it is every ten seconds, and how it ended."""
    news = JobNews(is_quiet=False, has_bar=False)
    waiting = details(JobStatus.CREATED, detail="needs 4 slots, has 2")
    assert news.lines(waiting, 0, 0) == ["job 'sums': needs 4 slots, has 2"]
    assert news.lines(waiting, 0, PROGRESS_MS) == []
    assert news.lines(details(JobStatus.RUNNING), 0, 1) == ["job 'sums' RUNNING"]
    figures = "1,500 rows read, 0 checkpoints, 0 restarts"
    assert news.lines(details(JobStatus.RUNNING), 1_500, PROGRESS_MS) == [f"job 'sums' RUNNING: {figures}"]
    assert news.lines(details(JobStatus.FINISHED), 1_500, PROGRESS_MS) == [f"job 'sums' FINISHED in 2.0 s: {figures}"]


def test_where_somebody_sees_a_bar_it_is_not_said_in_words_too():
    """The bar shows how far the job is."""
    news = JobNews(is_quiet=False, has_bar=True)
    news.lines(details(JobStatus.RUNNING), 0, 0)
    assert news.lines(details(JobStatus.RUNNING), 0, PROGRESS_MS) == []


class Unread:
    """Standard error, a pipe that nobody reads any more."""

    def write(self, text: str) -> None:
        """Fail as such a pipe does."""
        raise BrokenPipeError(f"{len(text)} characters")


def test_news_that_nobody_reads_do_not_end_the_job(monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread that watches the job ended with the pipe, and `execute` with an error of its own."""
    monkeypatch.setattr(sys, "stderr", Unread())
    print_news(JobNews(is_quiet=False, has_bar=False), details(JobStatus.RUNNING), 0)
