"""A job that goes on while the program does, and what becomes of it when Spark is gone."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from snapline.dataflow.errors import SnaplineError
from snapline.job_handle import JobHandle
from snapline.protos import client_pb2 as pb


class DeafClient:
    """Its coordinator hears of nothing, until it is closed."""

    def __init__(self) -> None:
        self.closed = threading.Event()

    def get_job(self, job_id: str) -> pb.JobDetails:
        """Return a job of which nothing is known."""
        return pb.JobDetails()

    def list_checkpoints(self, job_id: str) -> Any:
        """Return no checkpoint."""
        return pb.ListCheckpointsResponse()

    def watch_job(self, job_id: str) -> Iterator[pb.JobDetails]:
        """Wait for news that never come."""
        self.closed.wait()
        return iter(())


@pytest.mark.timeout(60)
def test_who_waits_is_told_that_spark_is_gone() -> None:
    """Nobody looked, so that `wait` and `execute_and_collect` went on for ever beside a session that was stopped."""
    client: Any = DeafClient()

    def check() -> None:
        raise SnaplineError("the session of Spark was stopped")

    ended = threading.Event()
    job = JobHandle("0", "orders", client, client.closed.set, check=check, ends_with_program=True)
    job.call_at_end(ended.set)

    with pytest.raises(SnaplineError, match="the session of Spark was stopped"):
        job.wait()
    assert ended.wait(30)
    assert client.closed.is_set()
