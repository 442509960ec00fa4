"""The pool of TaskManagers over a Spark that a test plays: who is replaced, who waits until needed, what there can
be."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from snapline.dataflow.config import Configuration
from snapline.runtime.cores.credentials import Identity, Role, identify
from snapline.runtime.logs import silent_logger
from snapline.runtime.rpc.security import Security
from snapline.spark import pool as pool_module
from snapline.spark.executor import TaskManagerExit, TaskManagerLaunch
from snapline.spark.pool import PoolSettings, TaskManagerPool
from snapline.spark.spark_hosts import ContextHost

PATIENCE_S = 30.0


class PlayedSpark:
    """A SparkContext whose jobs last until the test ends them; only those in `begun` have got a core."""

    pythonExec = "python"

    def __init__(self) -> None:
        self.submitted: queue.Queue[str] = queue.Queue()
        self.ends: dict[str, queue.Queue[Any]] = {}
        self.begun: set[str] = set()
        self._group: dict[int, str] = {}
        self.descriptions: dict[str, str] = {}
        self.executors: dict[str, str] = {}
        self.going: set[str] = set()
        self.conf = {"spark.decommission.enabled": "true"}
        self._jsc = SimpleNamespace(sc=lambda: SimpleNamespace(taskScheduler=lambda: self, statusStore=lambda: self))

    def setJobGroup(self, group: str, description: str, interruptOnCancel: bool) -> None:
        self._group[threading.get_ident()] = group
        self.descriptions[group] = description

    def parallelize(self, rows: list[int], partitions: int) -> PlayedSpark:
        return self

    def mapPartitions(self, body: Any) -> PlayedSpark:
        return self

    def collect(self) -> list[TaskManagerExit]:
        group = self._group[threading.get_ident()]
        self.ends[group] = queue.Queue()
        self.submitted.put(group)
        end = self.ends[group].get()
        if isinstance(end, Exception):
            raise end
        return [TaskManagerExit(group.removeprefix("snapline-"), end, "told")]

    def cancelJobGroup(self, group: str) -> None:
        self.ends[group].put(RuntimeError("cancelled"))

    def statusTracker(self) -> Any:
        return SimpleNamespace(
            getJobIdsForGroup=lambda group: [group],
            getJobInfo=lambda group: SimpleNamespace(stageIds=[group]),
            getStageInfo=lambda group: SimpleNamespace(numActiveTasks=int(group in self.begun)),
        )

    def getConf(self) -> Any:
        return SimpleNamespace(getAll=self.conf.items)

    def taskList(self, group: str, attempt: int, most: int) -> Any:
        """Of Spark's store of figures: a task that failed, and one that runs."""
        tasks = [("FAILED", "9"), ("RUNNING", self.executors[group])] if group in self.executors else []
        shown = [SimpleNamespace(status=lambda s=s: s, executorId=lambda e=e: e) for s, e in tasks]
        return SimpleNamespace(size=lambda: len(shown), apply=shown.__getitem__)

    def getExecutorDecommissionState(self, executor: str) -> Any:
        """Of Spark's scheduler: an Option."""
        return SimpleNamespace(isDefined=lambda: executor in self.going)

    def next(self) -> str:
        """The group of the next job that is submitted."""
        return self.submitted.get(timeout=PATIENCE_S)


@pytest.fixture
def spark(monkeypatch: pytest.MonkeyPatch) -> PlayedSpark:
    """Threads of the pool belong to this one, also where a real one was up before in the same process."""
    monkeypatch.setattr("pyspark.SparkContext._gateway", None)
    return PlayedSpark()


@pytest.fixture
def pool(spark: PlayedSpark) -> Iterator[TaskManagerPool]:
    made = TaskManagerPool(ContextHost(spark), PoolSettings("127.0.0.1:1", 2, 3), silent_logger())  # type: ignore[arg-type]
    made.start()
    yield made
    made.stop()


def ended(pool: TaskManagerPool) -> dict[str, str]:
    deadline = time.monotonic() + PATIENCE_S
    while not (found := pool.take_ended()):
        assert time.monotonic() < deadline
        pool.wait_for_end(0.1)
    return found


def test_a_killed_task_manager_is_replaced_under_a_new_id(spark, pool):
    """And its end is there for the coordinator, once."""
    first, second = spark.next(), spark.next()
    spark.ends[first].put(RuntimeError("Python worker exited unexpectedly (crashed)"))
    third = spark.next()

    assert ended(pool) == {first.removeprefix("snapline-"): "Python worker exited unexpectedly (crashed)"}
    assert len({first, second, third}) == 3
    assert pool.take_ended() == {}


def test_sparks_page_says_what_its_endless_jobs_are_and_who_has_their_figures(spark, pool):
    """Spark counts its one task alone, which ends with the TaskManager."""
    group = spark.next()

    assert spark.descriptions[group] == (
        f"Snapline TaskManager {group.removeprefix('snapline-')} with 3 slots, for as long as it runs: its rows and "
        "checkpoints are on the page of the coordinator, and in snapline list -m 127.0.0.1:1"
    )


def test_one_that_nobody_needed_is_replaced_when_somebody_does(spark, pool):
    """Totals decide; the coordinator's idle timeout does not start it anew."""
    first, second = spark.next(), spark.next()
    pool.follow(0, 6)
    for group in (first, second):
        spark.ends[group].put("stopped")
        ended(pool)
    pool.follow(0, 0)
    assert spark.submitted.empty()

    pool.follow(2, 0)

    assert spark.next() not in {first, second}
    pool.follow(2, 0)  # it has only just been submitted
    assert spark.submitted.empty()


def test_what_waits_for_a_core_is_not_counted(spark, pool, monkeypatch: pytest.MonkeyPatch):
    """A Spark job whose task has not begun after a while will perhaps never begin; until then it may be starting."""
    first, second = spark.next(), spark.next()
    spark.begun.add(first)
    assert (pool.capacity().slots, "taskmanager.instances" in pool.capacity().reason) == (6, True)
    monkeypatch.setattr(pool_module, "STARTING_S", 0.0)

    short = pool.capacity()
    spark.begun.add(second)

    assert (short.slots, short.reason) == (
        3,
        "Spark runs 1 of 2 TaskManagers and has no free core for the others: give the application more cores or executors",
    )
    assert pool.capacity().slots == 6


def test_a_python_that_will_never_do_ends_the_pool(spark, pool):
    """Nothing is started again, and the reason is kept."""
    first, _ = spark.next(), spark.next()
    spark.ends[first].put("unusable")
    ended(pool)

    assert pool.fatal_error == "told"
    assert spark.submitted.empty()


def test_the_end_of_another_one_does_not_cut_a_pause_short(spark: PlayedSpark, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where many ended quickly, each end started all the others at once, and the pool gave up within moments."""
    monkeypatch.setattr(pool_module, "PAUSE_MIN_S", 3_600.0)
    monkeypatch.setattr(pool_module, "PAUSE_MAX_S", 3_600.0)
    host: Any = ContextHost(spark)  # type: ignore[arg-type]
    pool = TaskManagerPool(host, PoolSettings("127.0.0.1:1", 2, 3), silent_logger())
    pool.start()
    for group in (spark.next(), spark.next()):
        spark.ends[group].put(RuntimeError("Python worker exited unexpectedly (crashed)"))
        ended(pool)

    with pytest.raises(queue.Empty):
        spark.submitted.get(timeout=0.2)
    pool.stop()


def test_who_leaves_with_an_executor_is_replaced_at_once_and_not_again(spark, pool):
    """Another one is started in its stead while it still runs, and nothing for it when it ends; meanwhile there is one
    more than were asked for."""
    first, second = spark.next(), spark.next()
    spark.begun |= {first, second}
    spark.executors |= {first: "1", second: "2"}
    assert pool.leaving() == []
    spark.going.add("1")
    leaves = first.removeprefix("snapline-")
    assert pool.leaving() == [leaves]

    pool.replace(leaves)
    pool.replace(leaves)
    third = spark.next()
    assert third not in (first, second)
    spark.begun.add(third)
    assert pool.capacity().slots == 9
    pool.end(leaves)
    assert list(ended(pool)) == [leaves]
    assert (pool.capacity().slots, pool.leaving()) == (6, [])
    assert spark.submitted.empty()

    spark.executors[third] = "3"
    spark.ends[third].put(RuntimeError("crashed"))
    assert spark.next()


def test_where_spark_decommissions_nothing_it_is_not_asked(spark, pool):
    """Without the setting; and a session that is gone says nothing."""
    first, _ = spark.next(), spark.next()
    spark.executors[first] = "1"
    spark.going.add("1")
    spark.conf.clear()
    assert pool.leaving() == []
    spark.getConf = None
    assert pool.leaving() == []


@pytest.mark.timeout(60)
def test_a_spark_job_that_is_submitted_while_the_pool_stops_is_cancelled_as_well(
    spark: PlayedSpark, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark does nothing for a job group without jobs: the TaskManager came after the cancel, and kept its core and the
    program, which waited for it, for as long as it looked for a coordinator."""
    submits, may_submit = threading.Event(), threading.Event()
    collect = spark.collect

    def late() -> list[TaskManagerExit]:
        submits.set()
        may_submit.wait(PATIENCE_S)
        return collect()

    def cancel(group: str) -> None:
        if group in spark.ends:
            PlayedSpark.cancelJobGroup(spark, group)
        may_submit.set()

    monkeypatch.setattr(spark, "collect", late)
    monkeypatch.setattr(spark, "cancelJobGroup", cancel)
    pool = TaskManagerPool(ContextHost(spark), PoolSettings("127.0.0.1:1", 1, 1), silent_logger())  # type: ignore[arg-type]
    pool.start()
    assert submits.wait(PATIENCE_S)

    pool.stop(timeout_s=PATIENCE_S)

    assert len(pool.take_ended()) == 1


def test_each_task_manager_has_its_credential_from_the_secret_of_the_moment(tmp_path: Path) -> None:
    """Those that an application of many days started in place of others showed the secret that had been forgotten
    meanwhile, were let in nowhere, and the jobs waited for slots until the application was started anew."""
    (tmp_path / "token").write_text("the secret of before")
    security = Security.from_configuration(Configuration({"security.auth.file": str(tmp_path / "token")}))
    launched: queue.Queue[TaskManagerLaunch] = queue.Queue()

    def run_task_manager(launch: TaskManagerLaunch, _group: str) -> list[TaskManagerExit]:
        launched.put(launch)
        (tmp_path / "token").write_text("the secret of now")
        return [TaskManagerExit(launch.resource_id, "failed")]

    def start_thread(run: Any, index: int, name: str) -> threading.Thread:
        thread = threading.Thread(target=run, args=(index,), name=name)
        thread.start()
        return thread

    host: Any = SimpleNamespace(run_task_manager=run_task_manager, start_thread=start_thread, python="python")
    pool = TaskManagerPool(host, PoolSettings("127.0.0.1:1", 1, 1, security), silent_logger())
    pool.start()
    first, second = (launched.get(timeout=PATIENCE_S) for _ in range(2))
    pool.stop()
    for launch, secret in ((first, "the secret of before"), (second, "the secret of now")):
        assert identify([secret], launch.token, 0.0) == Identity(Role.TASK_MANAGER, name=launch.resource_id)
