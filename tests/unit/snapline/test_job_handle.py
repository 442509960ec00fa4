"""A job that goes on while the program does, and what becomes of it when Spark is gone."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import snapline as sl
from snapline.client import ClusterClient, CoordinatorUnreachable, RequestRefused
from snapline.dataflow.config import Configuration
from snapline.dataflow.errors import InvalidArgument, SnaplineError
from snapline.dataflow.wire.messages import JobStatus
from snapline.dataflow.wire.statuses import encode_job_status
from snapline.execution import _follow
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


class EndedClient(DeafClient):
    """Its job ends in the moment in which it is to be cancelled."""

    def cancel(self, job_id: str) -> None:
        """Refuse, as a coordinator does for a job that has ended."""
        self.closed.set()
        raise RequestRefused("job 'orders' is FINISHED")


def test_ctrl_c_just_when_a_job_ends_is_an_interrupt() -> None:
    """It came out as a request that was refused, with exit code 1."""
    graph: Any = SimpleNamespace(name="orders", job_id="0", vertices=())

    def interrupted() -> None:
        raise KeyboardInterrupt

    client: Any = EndedClient()
    with pytest.raises(KeyboardInterrupt, match="had just ended"):
        _follow(client, graph, interrupted)


class CutOffClient(DeafClient):
    """Its job ends while the coordinator is asked to cancel it."""

    def __init__(self) -> None:
        super().__init__()
        self.ended = threading.Event()

    def cancel(self, job_id: str) -> None:
        """Be cut off: whoever hears of the end closes the connection."""
        self.closed.set()
        self.ended.wait()
        raise CoordinatorUnreachable("the connection to the coordinator at a:1 was closed")


def test_a_job_that_ends_while_it_is_cancelled_is_over() -> None:
    """A program that had shown the rows it wanted ended with 'the connection to the coordinator was closed'."""
    client: Any = CutOffClient()
    job = JobHandle("0", "orders", client, client.ended.set, ends_with_program=True)
    job.cancel()
    assert job.has_ended


class AwayClient(DeafClient):
    """Its coordinator is away."""

    def cancel(self, job_id: str) -> None:
        """Reach nobody."""
        self.closed.set()
        raise CoordinatorUnreachable("no coordinator answers at a:1")


def test_ctrl_c_while_the_coordinator_is_away_is_an_interrupt() -> None:
    """It came out as an error of exit code 1, which did not say what becomes of the job."""
    graph: Any = SimpleNamespace(name="orders", job_id="0", vertices=())

    def interrupted() -> None:
        raise KeyboardInterrupt

    client: Any = AwayClient()
    with pytest.raises(KeyboardInterrupt, match="goes on, if it runs: no coordinator answers at a:1"):
        _follow(client, graph, interrupted)


class ChangingClient(DeafClient):
    """Its coordinator is gone when it has taken the job, and the next one sees the end of that."""

    def get_job(self, job_id: str) -> pb.JobDetails:
        """Reach nobody."""
        raise CoordinatorUnreachable("no coordinator answers")

    def list_checkpoints(self, job_id: str) -> Any:
        """Reach nobody."""
        raise CoordinatorUnreachable("no coordinator answers")

    def watch_job(self, job_id: str) -> Iterator[pb.JobDetails]:
        """Find the next coordinator."""
        self.closed.wait()
        yield pb.JobDetails(overview=pb.JobOverview(status=encode_job_status(JobStatus.FINISHED)))


def test_a_job_has_its_handle_when_the_leader_changes_just_after_it_was_taken() -> None:
    """The program was told that nobody answers, and the job ran: who started it once more had two."""
    client: Any = ChangingClient()
    job = JobHandle("0", "orders", client, client.closed.set, ends_with_program=False)
    assert (job.status, list(job.checkpoints)) == ("CREATED", [])
    client.closed.set()
    assert job.wait().status == "FINISHED"


def test_who_is_cancelled_while_it_awaits_a_job_that_just_ends_is_cancelled() -> None:
    """Whoever cancels it waits for that, and would take another error for one of the task."""

    async def awaits() -> bool:
        client: Any = EndedClient()
        task = asyncio.ensure_future(
            JobHandle("0", "orders", client, client.closed.set, ends_with_program=True)._awaited()
        )
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return task.cancelled()

    assert asyncio.run(awaits())


class LeaderlessClient(DeafClient):
    """Nobody leads, once it has told of a checkpoint."""

    def __init__(self) -> None:
        super().__init__()
        self.answers = [pb.ListCheckpointsResponse(history=[pb.CheckpointOverview(checkpoint_id=7)])]

    def list_checkpoints(self, job_id: str) -> pb.ListCheckpointsResponse:
        """Answer once."""
        if not self.answers:
            raise CoordinatorUnreachable("no coordinator answers")
        return self.answers.pop()

    def watch_job(self, job_id: str) -> Iterator[pb.JobDetails]:
        """Tell that the job has come to its end."""
        self.closed.wait()
        yield pb.JobDetails(overview=pb.JobOverview(status=encode_job_status(JobStatus.FINISHED)))


def test_checkpoints_are_those_known_last_while_nobody_leads() -> None:
    """A program that looked at them now and then, or waited for its job, ended with the leader."""
    client: Any = LeaderlessClient()
    job = JobHandle("0", "orders", client, client.closed.set, ends_with_program=True)

    assert [each.checkpoint_id for each in job.checkpoints] == [7]
    client.closed.set()
    assert job.wait().status == "FINISHED"
    assert [each.checkpoint_id for each in job.checkpoints] == [7]


class NotingClient(DeafClient):
    """Notes where savepoints are asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[str] = []

    def trigger_savepoint(self, job_id: str, directory: str) -> str:
        """Note the directory."""
        self.asked.append(directory)
        return directory

    def stop_with_savepoint(self, job_id: str, directory: str, *, drain: bool) -> str:
        """Note the directory."""
        return self.trigger_savepoint(job_id, directory)


@pytest.mark.parametrize("take", [JobHandle.savepoint, JobHandle.stop])
def test_savepoints_go_where_this_process_means(
    take: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A Path broke the loop of a local run, and a relative directory was one within that of the checkpoints."""
    monkeypatch.chdir(tmp_path)
    client: Any = NotingClient()
    job = JobHandle("0", "orders", client, client.closed.set, ends_with_program=True)

    for directory in ("", tmp_path / "a", "b", Path("c"), "s3://bucket/d"):
        take(job, directory)

    assert client.asked == ["", *(str(tmp_path / name) for name in "abc"), "s3://bucket/d"]
    client.closed.set()


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        (lambda job: job.savepoint(1), "the directory of a savepoint is a path or a URL, got 1"),
        (lambda job: job.stop(b"x"), "the directory of a savepoint is a path or a URL, got b'x'"),
        (lambda job: job.tap(1), "tap takes the uid of an operator, which is a text, got 1"),
        (lambda job: job.tap("orders", "2"), "tap: rows must be a whole number, at least 1, got '2'"),
    ],
)
def test_what_is_asked_for_wrongly_does_not_reach_the_job(ask: Callable[[JobHandle], object], message: str) -> None:
    """Arguments of a wrong type broke the loop of a local run, and with it the job."""
    client: Any = NotingClient()
    job = JobHandle("0", "orders", client, client.closed.set, ends_with_program=True)

    with pytest.raises(InvalidArgument) as raised:
        ask(job)

    assert str(raised.value) == message
    client.closed.set()


class LateClient(DeafClient):
    """Says of a job that it runs, when it has just finished."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = threading.Event()
        self._is_first = True

    def get_job(self, job_id: str) -> pb.JobDetails:
        """Answer at once the first time, and then only when everything is over."""
        if not self._is_first:
            self.asked.set()
            self.closed.wait()
        self._is_first = False
        return pb.JobDetails(overview=pb.JobOverview(status=encode_job_status(JobStatus.RUNNING)))

    def watch_job(self, job_id: str) -> Iterator[pb.JobDetails]:
        """Say the end while somebody waits for an answer from before it."""
        self.asked.wait()
        yield pb.JobDetails(overview=pb.JobOverview(status=encode_job_status(JobStatus.FINISHED)))


@pytest.mark.timeout(60)
def test_an_answer_from_before_the_end_is_not_how_it_ended() -> None:
    """Whoever looked at a job while it finished made its end that of one that runs, and `wait` said it failed."""
    client: Any = LateClient()
    job = JobHandle("0", "orders", client, client.closed.set, ends_with_program=True)
    assert job.status == "FINISHED"
    assert job.wait().status == "FINISHED"


@pytest.mark.parametrize(
    "ask",
    [JobHandle.savepoint, JobHandle.stop, lambda job: job.rescale(2), lambda job: job.tap("orders")],
)
def test_a_job_that_has_ended_says_so_when_it_is_asked_for_something(ask: Callable[[JobHandle], object]) -> None:
    """A local one did; that of a cluster spoke of a closed channel, in words of gRPC."""
    client: Any = DeafClient()
    details = pb.JobDetails(overview=pb.JobOverview(status="JOB_STATUS_FINISHED"))
    client.watch_job = lambda _: iter([details])
    job = JobHandle("0", "orders", client, client.closed.set, ends_with_program=True)
    job.wait(30)

    with pytest.raises(RequestRefused, match="job 'orders' is FINISHED"):
        ask(job)


def test_a_connection_that_was_closed_is_called_so() -> None:
    """Whoever asks while another thread closes it, as at the end of a job, got a ValueError of gRPC."""
    client = ClusterClient.from_configuration(Configuration({"jobmanager.rpc.address": "127.0.0.1:1"}))
    client.close()
    with pytest.raises(CoordinatorUnreachable, match=r"the connection to the coordinator at 127\.0\.0\.1:1 was closed"):
        client.get_job("0")


class Cluster:
    """A coordinator, with or without a Spark application, that takes jobs and says nothing of them afterwards."""

    recovers_jobs = False

    def __init__(self, does: list[str], *, answers: bool) -> None:
        self.does, self.answers, self.client = does, answers, self

    def submit(self, job_graph: Any) -> str:
        """Take a job."""
        return str(job_graph.job_id)

    def get_job(self, job_id: str) -> pb.JobDetails:
        """Answer, or be gone."""
        if not self.answers:
            raise CoordinatorUnreachable("gone")
        return pb.JobDetails(overview=pb.JobOverview(status="JOB_STATUS_FINISHED"))

    def list_checkpoints(self, job_id: str) -> Any:
        """Return no checkpoint."""
        return pb.ListCheckpointsResponse()

    def watch_job(self, job_id: str) -> Iterator[pb.JobDetails]:
        """See the end of the job."""
        yield self.get_job(job_id)

    def check(self) -> None:
        """All is there."""

    def __enter__(self) -> Cluster:
        """Start."""
        return self

    def close(self) -> None:
        """Note that everything is stopped."""
        self.does.append("cluster")


@pytest.mark.parametrize("answers", [True, False])
@pytest.mark.parametrize("at_service", [True, False])
def test_queries_end_before_what_they_run_in(monkeypatch: pytest.MonkeyPatch, at_service: bool, answers: bool) -> None:
    """They ran on when the coordinator was gone right after it had taken the job; and Spark, if it was ours, was
    stopped before them, so that they were said to have failed."""
    does: list[str] = []
    cluster: Any = Cluster(does, answers=answers)
    spark = SimpleNamespace(settings={}, host=None, ours=False)

    @contextmanager
    def queries(*_: object) -> Iterator[None]:
        try:
            yield
        finally:
            does.append("queries")

    monkeypatch.setattr("snapline.execution.queries_of", queries)
    monkeypatch.setattr("snapline.session.open_spark", lambda *_, **__: spark)
    monkeypatch.setattr("snapline.session.EmbeddedCluster", lambda *_, **__: cluster)
    monkeypatch.setattr(ClusterClient, "from_configuration", lambda *_: cluster)
    conf = {"jobmanager.rpc.address": "127.0.0.1:1"} if at_service else {}
    env = sl.StreamExecutionEnvironment.get_execution_environment(conf)
    env.from_collection([{"n": 1}]).print()
    if answers:
        env.execute_async("orders", local=False).wait(30)
    else:
        with pytest.raises(CoordinatorUnreachable):
            env.execute_async("orders", local=False).wait(30)
    assert list(dict.fromkeys(does)) == ["queries", "cluster"]
