"""The page of a cluster that has had more jobs than one answer lists."""

from __future__ import annotations

import json
from typing import Any

import pytest

pytest.importorskip("starlette")
from snapline.coordinator.rpc.coordinator_stub import CoordinatorAnswer, CoordinatorStub
from snapline.protos import client_pb2 as pb
from tests.services.cluster import wait_until
from tests.unit.coordinator.web.test_page_connections import asked, serving

OLD = pb.JobOverview(job_id="old", start_time_ms=1)
ENDED = [pb.JobOverview(job_id=f"{n}", start_time_ms=n, end_time_ms=n + 1) for n in range(400, 100, -1)]


def jobs_of(port: int) -> Any:
    """What the page lists."""
    return json.loads(asked(port, b"GET /api/jobs").partition(b"\r\n\r\n")[2])["jobs"]


def test_a_job_that_runs_is_shown_however_many_have_ended_since(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stream that was started before 200 short jobs was on the page no more. Of those that have ended the latest are
    shown."""

    async def call(_stub: Any, method: str, request: Any, *_arguments: Any) -> Any:
        jobs = [*ENDED, OLD]
        return pb.ListJobsResponse(jobs=jobs[: request.page_size or len(jobs)] if method == "ListJobs" else [])

    monkeypatch.setattr(CoordinatorStub, "call", call)
    with serving(monkeypatch, 10) as (port, _):
        shown = [job["job_id"] for job in jobs_of(port)]
    assert [*(job.job_id for job in ENDED[:200]), "old"] == shown


def test_a_job_that_does_not_answer_takes_no_plot_from_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """The figures of those behind it were not taken either, in each round."""

    async def call(_stub: Any, method: str, request: Any, *_arguments: Any) -> Any:
        if method == "ListJobs":
            return pb.ListJobsResponse(jobs=[pb.JobOverview(job_id="slow"), OLD])
        if request.job_id == "slow":
            raise CoordinatorAnswer(504, "it takes too long")
        return pb.JobDetails(overview=OLD) if method == "GetJob" else pb.ListCheckpointsResponse()

    monkeypatch.setattr(CoordinatorStub, "call", call)
    with serving(monkeypatch, 10) as (port, _):
        path = b"GET /api/jobs/old/figures"
        wait_until(lambda: len(json.loads(asked(port, path).partition(b"\r\n\r\n")[2])["time"]) > 0, "a point")
