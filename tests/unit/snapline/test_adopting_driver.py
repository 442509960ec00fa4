"""A driver that is started again, and finds the job that the one before has left behind."""

from __future__ import annotations

from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from snapline import execution
from snapline.dataflow.config import Configuration
from snapline.dataflow.graph.jobgraph import JobGraph
from snapline.dataflow.ids import JobID
from snapline.protos import job_pb2
from snapline.runtime.logs import make_logger

LEFT, NEW = "a" * 32, "b" * 32


@pytest.fixture
def followed(monkeypatch):
    """The job that is followed to its end."""
    jobs: list[str] = []
    monkeypatch.setattr(execution, "_follow", lambda client, graph, *_: jobs.append(graph.job_id))
    monkeypatch.setattr("snapline.engine_state.check_engine_state", lambda graph: None)
    return jobs


def run(tmp_path, status):
    """Run a job whose rows were staged by this driver; what it submitted, and for which job its queries ran."""
    submitted: list[str] = []
    queries: list[str] = []
    staged = tmp_path / "snapline-frame-new"
    staged.mkdir()
    (staged / "rows.parquet").write_bytes(b"rows")
    (tmp_path / "snapline-frame-old").mkdir()
    (tmp_path / "snapline-frame-old" / "rows.parquet").write_bytes(b"rows")
    client = SimpleNamespace(
        list_jobs=lambda: [SimpleNamespace(name="job", job_id=LEFT, status=status)],
        submit=lambda graph: submitted.append(graph.job_id),
    )
    cluster: Any = SimpleNamespace(
        client=client,
        recovers_jobs=True,
        logger=make_logger("test", "ERROR"),
        configuration=Configuration({}),
        check=lambda: None,
    )

    @contextmanager
    def query(job_id):
        queries.append(job_id)
        yield

    graph = JobGraph(JobID(NEW), "job", (), (), staged_directories=(str(staged),))
    execution.run_in(cluster, graph, queries=query)
    return submitted, queries, sorted(path.parent.name for path in tmp_path.glob("*/rows.parquet"))


def test_the_job_that_was_left_goes_on_and_what_was_staged_for_the_new_one_is_deleted(tmp_path, followed):
    """The driver has computed its frame again, for a job that is never submitted; the old job keeps its own rows."""
    submitted, queries, staged = run(tmp_path, job_pb2.JOB_STATUS_RUNNING)

    assert ([], [LEFT], ["snapline-frame-old"], [LEFT]) == (submitted, queries, staged, followed)


def test_a_job_that_has_ended_is_no_job_to_go_on_with(tmp_path, followed):
    """The new one is submitted, with its rows."""
    submitted, queries, staged = run(tmp_path, job_pb2.JOB_STATUS_FINISHED)

    assert ([NEW], [NEW], ["snapline-frame-new", "snapline-frame-old"], [NEW]) == (submitted, queries, staged, followed)
