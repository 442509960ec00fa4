"""A driver that is started again, and finds the job that the one before has left behind."""

from __future__ import annotations

from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

import snapline as sl
from snapline import execution
from snapline.dataflow.config import Configuration
from snapline.dataflow.graph.jobgraph import JobGraph
from snapline.dataflow.ids import JobID
from snapline.protos import client_pb2 as pb
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


@pytest.mark.parametrize("goes_on", [True, False])
def test_a_job_that_is_not_waited_for_is_not_started_beside_the_one_that_was_left(
    monkeypatch: pytest.MonkeyPatch, goes_on: bool
) -> None:
    """Both ran, and each row was committed by either of them. Rows that are collected are those of the new one."""
    submitted: list[str] = []
    ended = pb.JobDetails(overview=pb.JobOverview(status="JOB_STATUS_FINISHED"))
    client = SimpleNamespace(
        list_jobs=lambda: [SimpleNamespace(name="job", job_id=LEFT, status=job_pb2.JOB_STATUS_RUNNING)],
        submit=lambda graph: submitted.append(graph.job_id),
        get_job=lambda _: ended,
        list_checkpoints=lambda _: pb.ListCheckpointsResponse(),
        watch_job=lambda _: iter([ended]),
    )
    cluster = SimpleNamespace(
        client=client,
        recovers_jobs=True,
        logger=make_logger("test", "ERROR"),
        configuration=Configuration({}),
        check=lambda: None,
        close=lambda: None,
        __enter__=lambda: None,
    )
    spark = SimpleNamespace(settings={}, host=None, ours=False)
    monkeypatch.setattr("snapline.session.open_spark", lambda *_, **__: spark)
    monkeypatch.setattr("snapline.session.EmbeddedCluster", lambda *_, **__: cluster)
    env = sl.StreamExecutionEnvironment.get_execution_environment()
    env.goes_on = goes_on
    env.from_collection([{"n": 1}]).print()

    job = env.execute_async("job", local=False)

    assert (job.job_id == LEFT, len(submitted)) == (goes_on, 0 if goes_on else 1)
