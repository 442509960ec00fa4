"""Whatever goes wrong once the old job has stopped, one of both versions runs afterwards."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from snapline import job_update
from snapline.client import CoordinatorUnreachable, RequestRefused
from snapline.dataflow.wire.messages import JobStatus
from snapline.dataflow.wire.statuses import encode_job_status
from snapline.job_update import UpdateFailed, update_job


class Cluster:
    """A coordinator of which calls can be made to fail; jobs are their names."""

    def __init__(self) -> None:
        self.running = {"old": "the first version"}
        self.known = dict(self.running)
        self.completes = True
        self.before: dict[str, list[BaseException]] = {}
        self.after: dict[str, list[BaseException]] = {}

    def __getattr__(self, call: str) -> Callable[..., Any]:
        if f"answer_{call}" not in vars(type(self)):
            raise AttributeError(call)

        def answer(*arguments: Any) -> Any:
            if self.before.get(call):
                raise self.before[call].pop(0)
            result = getattr(self, f"answer_{call}")(*arguments)
            if self.after.get(call):
                raise self.after[call].pop(0)
            return result

        return answer

    def answer_get_job_graph(self, job_id: str) -> Any:
        return SimpleNamespace(job_graph="the first version")

    def answer_trigger_savepoint(self, *_: str) -> str:
        return "/savepoint"

    def answer_stop_with_savepoint(self, job_id: str, _: str) -> str:
        del self.running[job_id]
        return "/savepoint"

    def answer_submit(self, graph: Any) -> None:
        if graph.job_id in self.known:
            raise RequestRefused("there is such a job")
        self.running[graph.job_id] = self.known[graph.job_id] = graph.version

    def answer_list_jobs(self) -> list[Any]:
        return [SimpleNamespace(job_id=job_id) for job_id in self.known]

    def answer_cancel(self, job_id: str) -> None:
        del self.running[job_id]

    def answer_get_job(self, job_id: str) -> Any:
        status = JobStatus.RUNNING if job_id in self.running else JobStatus.CANCELED
        return SimpleNamespace(overview=SimpleNamespace(status=encode_job_status(status)))

    def answer_list_checkpoints(self, job_id: str) -> Any:
        return SimpleNamespace(counts=SimpleNamespace(completed=int(self.completes)))

    def answer_explain_job(self, job_id: str) -> Any:
        return SimpleNamespace(summary="slow")


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    """The update asks this one."""
    monkeypatch.setattr(job_update, "LOOK_SECONDS", 0.0)
    monkeypatch.setattr(job_update, "decode_job_graph", lambda version: version)
    monkeypatch.setattr(job_update, "snapshot_at_hand", lambda _: None)
    monkeypatch.setattr(job_update, "plan_job", lambda *_, **__: SimpleNamespace(would_start=True))
    monkeypatch.setattr(
        job_update, "replace", lambda version, job_id, **_: SimpleNamespace(version=version, job_id=job_id)
    )
    return Cluster()


def update(cluster: Cluster, **options: Any) -> Any:
    program: Any = SimpleNamespace(job_graph="the second version")
    asked: Any = cluster
    return update_job(asked, "old", program, **options)


GONE = CoordinatorUnreachable("no coordinator answers")


def test_a_new_version_that_is_refused_gives_way_to_the_old_one(cluster: Cluster) -> None:
    """The old one had stopped by then, and nothing ran any more."""
    cluster.before["submit"] = [RequestRefused("its name cannot be printed")]

    with pytest.raises(UpdateFailed, match="its name cannot be printed; the old one goes on as job"):
        update(cluster)
    assert list(cluster.running.values()) == ["the first version"]


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("call", ["submit", "get_job", "list_checkpoints", "list_jobs"])
def test_a_coordinator_that_is_away_for_a_while_is_asked_again(cluster: Cluster, call: str, when: str) -> None:
    """Also when it has accepted the new version and did not come to say so: there are not two of it."""
    getattr(cluster, when)[call] = [GONE, GONE]

    done = update(cluster)
    assert cluster.running == {done.job_id: "the second version"}


def test_lines_that_nobody_reads_do_not_stop_an_update(cluster: Cluster) -> None:
    """The reader of a pipe may have gone when the old job has stopped."""

    def say(line: str) -> None:
        if "is compared" not in line:
            raise BrokenPipeError

    done = update(cluster, say=say)
    assert cluster.running == {done.job_id: "the second version"}


@pytest.mark.parametrize(("completes", "runs"), [(True, "the second version"), (False, "the first version")])
def test_an_interrupt_leaves_one_of_both(cluster: Cluster, completes: bool, runs: str) -> None:
    """The new one, when it has completed a checkpoint meanwhile, and else the old one again."""
    cluster.completes = completes
    cluster.before["get_job"] = [KeyboardInterrupt()]
    if completes:
        update(cluster)
    else:
        with pytest.raises(UpdateFailed, match="was interrupted; the old one goes on as job"):
            update(cluster)
    assert list(cluster.running.values()) == [runs]


def test_who_interrupts_twice_is_told_where_to_start_from(cluster: Cluster) -> None:
    """Nothing may run then, which is what was asked for."""
    cluster.completes = False
    cluster.before["get_job"] = [KeyboardInterrupt(), KeyboardInterrupt()]

    with pytest.raises(KeyboardInterrupt, match="start one of them from /savepoint"):
        update(cluster)


def test_an_old_version_that_cannot_start_either_is_told(cluster: Cluster) -> None:
    """With the savepoint, from which one of both can be started."""
    cluster.before["submit"] = [RequestRefused("no"), RequestRefused("too many jobs")]

    with pytest.raises(UpdateFailed, match=r"cannot start: too many jobs: .* start one of them from /savepoint"):
        update(cluster)
