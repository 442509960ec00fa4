"""A whole job in a test: checkpoints, kills, savepoints and another parallelism, where the test says."""

from __future__ import annotations

import threading
from pathlib import Path

import pyarrow as pa
import pytest

import snapline as sl
from snapline.testing import Abort, AwaitCheckpoint, MiniCluster, MiniJob, ScriptedSource, Stall, assert_same_rows

KEYS = ["a", "b", "c", "d", "e"]


class Running(sl.KeyedProcessFunction):
    """Says the sum of its key so far."""

    def open(self, context):
        self.total = context.get_state(sl.ValueStateDescriptor("total", pa.int64()))

    def process_element(self, row, context):
        if row["n"] < 0:
            raise ValueError("negative")
        self.total.update((self.total.value() or 0) + row["n"])
        yield {"k": row["k"], "total": self.total.value()}


def batch(n):
    """One row for each key."""
    return pa.RecordBatch.from_pylist([{"k": key, "n": n} for key in KEYS])


def sums(cluster, *script):
    """What builds a job over the script."""

    def build(env):
        rows = env.from_source(ScriptedSource(script, schema=batch(0).schema), uid="rows")
        rows.key_by("k").process(Running(), uid="sum").sink_to(cluster.sink(), uid="sink")

    return build


def said(*totals):
    """Every key with each of these sums."""
    return [{"k": key, "total": total} for total in totals for key in KEYS]


@pytest.fixture(params=[1, 2])
def cluster(request):
    """On one thread, and on several."""
    with MiniCluster(threads=request.param) as one:
        yield one


@pytest.mark.parametrize("parallelism", [1, 2])
def test_a_job_runs_to_its_end(cluster, parallelism):
    """Its rows are those of the sink, whatever the parallelism."""
    result = cluster.run(sums(cluster, batch(1), batch(2)), parallelism=parallelism)
    assert ("FINISHED", 0) == (result.status, result.restarts)
    assert_same_rows(cluster.rows(), said(1, 3))


@pytest.mark.parametrize(("operator", "subtask"), [("rows", 0), ("sum", 1)])
def test_a_killed_task_goes_on_from_the_checkpoint(cluster, operator, subtask):
    """What came after the checkpoint is read again, and every row is committed once."""
    job = cluster.start(
        sums(cluster, batch(1), AwaitCheckpoint(), batch(2), AwaitCheckpoint(), batch(4)), parallelism=2
    )
    job.run_until(lambda: job.rows_in("sum") == 5)
    job.checkpoint()
    job.run_until(lambda: job.rows_in("sum") == 10)
    job.kill(operator, subtask)
    job.run_until(lambda: job.rows_in("sum") == 5)
    job.checkpoint()
    assert ("FINISHED", 1) == (job.finish().status, job.restarts)
    assert_same_rows(cluster.rows(), said(1, 3, 7))


def test_a_savepoint_goes_on_at_another_parallelism(cluster):
    """The job is stopped with a savepoint, and the one that starts from it has the state and the position."""
    build = sums(cluster, batch(1), AwaitCheckpoint(), batch(2), Stall())
    job = cluster.start(build, parallelism=3)
    job.run_until(lambda: job.rows_in("sum") == 5)
    path = job.stop()
    assert "FINISHED" == job.status
    assert_same_rows(cluster.rows(), said(1))
    again = cluster.start(sums(cluster, batch(1), AwaitCheckpoint(), batch(2)), parallelism=2, restore_from=path)
    again.finish()
    assert_same_rows(cluster.rows(), said(1, 3))


def test_a_savepoint_does_not_stop_the_job(cluster):
    """It lies where a job can be started from, and the job goes on."""
    job = cluster.start(sums(cluster, batch(1), AwaitCheckpoint(), batch(2)))
    job.run_until(lambda: job.rows_in("sum") == 5)
    assert (Path(job.savepoint()) / "_metadata").exists()
    job.run_until(lambda: job.rows_in("sum") == 5)
    job.checkpoint()
    assert "FINISHED" == job.finish().status


@pytest.mark.parametrize("parallelism", [1, 2, 3])
def test_a_job_without_checkpoints_is_stopped_when_a_part_of_its_source_has_finished(parallelism: int) -> None:
    """Its second reader has no split and finishes at once; from then on each savepoint was refused."""
    with MiniCluster({"execution.checkpointing.interval": "0"}) as one:
        job = one.start(sums(one, batch(1), Stall()), parallelism=2)
        job.run_until(lambda: job.rows_in("sum") == 5)
        job.savepoint()
        path = job.stop()
        one.run(sums(one, batch(1), batch(2)), parallelism=parallelism, restore_from=path)
        assert_same_rows(one.rows(), said(1, 3))


def test_a_script_fails_its_job_as_often_as_it_says(cluster):
    """Without a checkpoint the job begins anew, and nothing was committed before."""
    result = cluster.run(sums(cluster, batch(1), Abort(), batch(2), Abort(), batch(4)))
    assert ("FINISHED", 2) == (result.status, result.restarts)
    assert_same_rows(cluster.rows(), said(1, 3, 7))


def test_a_job_that_fails_raises_what_its_function_raised():
    """After the restarts that are allowed; whatever the test waits for."""
    with MiniCluster({"restart-strategy.type": "none"}) as one:
        with pytest.raises(sl.JobFailed, match="negative") as caught:
            one.run(sums(one, batch(1), batch(-1)))
        assert isinstance(caught.value.__cause__, ValueError)
        job = one.start(sums(one, batch(-1), Stall()))
        with pytest.raises(sl.JobFailed, match="negative"):
            job.run_until(lambda: False)


@pytest.mark.parametrize("ask", [MiniJob.checkpoint, MiniJob.savepoint, MiniJob.stop])
def test_whatever_is_asked_of_a_job_that_fails_says_why(ask):
    """A checkpoint or savepoint of such a job said only that the job is FAILED."""
    with MiniCluster({"restart-strategy.type": "none"}) as one:
        job = one.start(sums(one, batch(-1), Stall()))
        with pytest.raises(sl.JobFailed, match="negative"):
            job.run_until(lambda: False)
        with pytest.raises(sl.JobFailed, match="negative") as caught:
            ask(job)
        assert isinstance(caught.value.__cause__, ValueError)


def test_a_job_that_never_runs_is_not_started(cluster):
    """A job whose function cannot be opened was handed out as if it ran, and only said that it is FAILED."""

    class Unready(sl.ProcessFunction):
        def open(self, context):
            raise RuntimeError("there is no model")

        def process_element(self, row, context):
            yield row

    def build(env):
        rows = env.from_source(ScriptedSource([batch(1)], schema=batch(0).schema), uid="rows")
        rows.process(Unready(), uid="scores").sink_to(cluster.sink(), uid="sink")

    with pytest.raises(sl.JobFailed, match="there is no model"):
        cluster.start(build)


def test_what_is_not_there_is_named(cluster):
    """An operator, a subtask, and a condition that never held."""
    job = cluster.start(sums(cluster, batch(1)))
    with pytest.raises(sl.JobDefinitionError, match="no operator 'summ', only 'rows', 'sum', 'sink'"):
        job.kill("summ")
    with pytest.raises(sl.JobDefinitionError, match="'sum' has no subtask 1, only 0 to 0"):
        job.kill("sum", 1)
    with pytest.raises(sl.JobDefinitionError, match="the job has ended, and the condition of run_until never held"):
        job.run_until(lambda: False)


def test_nothing_is_left_behind(tmp_path, monkeypatch):
    """A job that is left in the middle is gone with its cluster: threads, files and rows."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    before = set(threading.enumerate())
    with MiniCluster(threads=2) as one:
        job = one.start(sums(one, batch(1), Stall()))
        job.run_until(lambda: job.rows_in("sum") == 5)
        job.checkpoint()
        job.run_until(lambda: len(one.rows()) == 5)
    assert ([], []) == (one.rows(), list(tmp_path.iterdir()))
    assert set() == {thread for thread in threading.enumerate() if not thread.daemon} - before
