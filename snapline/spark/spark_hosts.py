"""What a session of Spark gives to those who run TaskManagers in it: the classic one through its SparkContext, and one
of Spark Connect, which has none, through what such a session offers.

Decides how one TaskManager becomes one Spark job of one task: `mapPartitions` in a job group, or `mapInArrow` under a
tag. It does not know when TaskManagers are started or replaced. On Connect nobody says which Spark jobs wait for a
core, and Spark's secret is not told: the token of the cluster travels with the Spark job there.
"""

from __future__ import annotations

import hashlib
import os
import re
import socket
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol
from weakref import WeakKeyDictionary

import pyarrow as pa

from snapline.dataflow.errors import SnaplineError
from snapline.spark.executor import TaskManagerExit, TaskManagerLaunch, run

if TYPE_CHECKING:
    from pyspark import SparkContext

LOOPBACK = "127.0.0.1"
ANSWER_S = 10.0
MAX_ATTEMPTS = 16
"""Attempts of one Spark task that are looked at."""
_PARENT = os.getppid()
_GIVEN: WeakKeyDictionary[Any, dict[str, str]] = WeakKeyDictionary()
"""Digests of what the executors of a session were given, by name."""
UNTIL_EXECUTORS_COME = 2
"""As many tasks at once as Spark itself expects of executors that have not come yet."""
LOOPBACK_MASTERS = ("local", "spark://127.0.0.1", "spark://localhost")
_LOCAL_CORES = re.compile(r"local\[(\d+)")
_LOCAL_CLUSTER = re.compile(r"local-cluster\[\s*(\d+)\s*,\s*(\d+)")


def runs_in_driver(master: str) -> bool:
    """Whether tasks run in the driver's own Java, and Python workers are its children.

    >>> runs_in_driver("local[2]"), runs_in_driver("local-cluster[2,1,1024]"), runs_in_driver("yarn")
    (True, False, False)
    """
    return master.startswith("local") and not master.startswith("local-cluster")


class NoSpark(SnaplineError):
    """PySpark, Java or a usable Spark session is missing."""


class SparkHost(Protocol):
    """A session of Spark, as far as TaskManagers need it."""

    @property
    def python(self) -> str:
        """Return the Python program of the executors, as far as it is known here."""
        ...

    @property
    def master(self) -> str:
        """Return what Spark runs on."""
        ...

    @property
    def cores(self) -> int | None:
        """Return how many tasks run at once; None when Spark does not say."""
        ...

    def conf(self) -> Mapping[str, str]:
        """Return the settings of the application."""
        ...

    def is_alive(self) -> bool:
        """Whether Spark's process is there, as far as that is seen here."""
        ...

    def secret(self) -> str:
        """Return Spark's secret, which executors have too; empty where it is not told. Raises NoSpark."""
        ...

    def coordinator_host(self) -> str:
        """Return the address of this machine that executors reach."""
        ...

    def start_thread(self, target: Callable[[int], None], index: int, name: str) -> threading.Thread:
        """Start a thread that runs Spark jobs."""
        ...

    def run_task_manager(self, launch: TaskManagerLaunch, group: str) -> list[TaskManagerExit]:
        """Run one TaskManager to its end, as a Spark job that `cancel` ends. Raises what Spark raises."""
        ...

    def cancel(self, group: str) -> None:
        """End the Spark job. Raises what Spark raises."""
        ...

    def has_begun(self, group: str) -> bool:
        """Whether the task of the Spark job runs. Raises what Spark raises."""
        ...

    def leaving(self, groups: Collection[str]) -> set[str]:
        """Return those of the Spark jobs, each of one task, whose executor Spark has told to go. Raises what Spark
        raises."""
        ...

    def add_file(self, path: Path) -> None:
        """Give a file to every executor. Raises NoSpark when they have another one of that name."""
        ...

    def add_archive(self, path: Path, name: str) -> None:
        """Give an archive to every executor, which is unpacked there as a directory of that name. Raises NoSpark when
        they have another one of that name."""
        ...


class ContextHost:
    """A classic session, by its SparkContext."""

    def __init__(self, context: SparkContext) -> None:
        self._context = context
        self._executors: dict[str, str] = {}
        """The executor of each group that was asked for, once it is known."""
        self._decommissions: bool | None = None

    @property
    def python(self) -> str:
        return str(self._context.pythonExec)

    @property
    def master(self) -> str:
        return str(self._context.master)

    @property
    def cores(self) -> int | None:
        """Return what Spark's scheduler says, which knows `spark.task.cpus`; until an executor is there, two."""
        scheduler = self._context._jsc.sc()  # noqa: SLF001 - Spark has no other door to it
        profile = scheduler.resourceProfileManager().defaultResourceProfile()
        return int(scheduler.maxNumConcurrentTasks(profile)) or UNTIL_EXECUTORS_COME

    def conf(self) -> Mapping[str, str]:
        return dict(self._context.getConf().getAll())

    def is_alive(self) -> bool:
        """Whether the Java process is there: a child of this one, or under spark-submit its parent."""
        process = getattr(self._context._gateway, "proc", None)  # noqa: SLF001 - PySpark keeps it there
        if process is not None:
            return process.poll() is None
        return "PYSPARK_GATEWAY_PORT" not in os.environ or os.getppid() == _PARENT

    def secret(self) -> str:
        """Return what is configured, or what the cluster manager (YARN, Kubernetes) has made."""
        configured = self.conf().get("spark.authenticate.secret", "")
        if configured:
            return configured
        try:
            return str(self._context._jvm.org.apache.spark.SparkEnv.get().securityManager().getSecretKey() or "")  # type: ignore[union-attr] # noqa: SLF001 - Spark has no other door to it
        except Exception as error:
            raise NoSpark(f"spark.authenticate is on, but this driver cannot read the secret: {error}") from None

    def coordinator_host(self) -> str:
        return LOOPBACK if self.master.startswith(LOOPBACK_MASTERS) else self.conf().get("spark.driver.host", LOOPBACK)

    def start_thread(self, target: Callable[[int], None], index: int, name: str) -> threading.Thread:
        """Start it so that a job group is that of its thread in Java, too."""
        from pyspark import InheritableThread

        thread = InheritableThread(target=target, args=(index,), name=name)
        thread.daemon = True
        thread.start()
        return thread

    def run_task_manager(self, launch: TaskManagerLaunch, group: str) -> list[TaskManagerExit]:
        self._context.setJobGroup(group, launch.description, interruptOnCancel=True)
        return self._context.parallelize([0], 1).mapPartitions(_partition_body(launch)).collect()

    def cancel(self, group: str) -> None:
        self._context.cancelJobGroup(group)

    def has_begun(self, group: str) -> bool:
        tracker = self._context.statusTracker()
        jobs = [tracker.getJobInfo(job_id) for job_id in tracker.getJobIdsForGroup(group)]
        stages = [tracker.getStageInfo(stage_id) for job in jobs if job for stage_id in job.stageIds]
        return any(stage is not None and stage.numActiveTasks for stage in stages)

    def leaving(self, groups: Collection[str]) -> set[str]:
        if self._decommissions is None:
            self._decommissions = self.conf().get("spark.decommission.enabled", "").lower() == "true"
        if not self._decommissions:
            return set()
        known = {group: self._executors.get(group) or self._executor_of(group) for group in groups}
        self._executors = {group: executor for group, executor in known.items() if executor}
        scheduler = self._context._jsc.sc().taskScheduler()  # noqa: SLF001 - Spark has no other door to it
        going = {
            executor: bool(scheduler.getExecutorDecommissionState(executor).isDefined())
            for executor in set(self._executors.values())
        }
        return {group for group, executor in self._executors.items() if going[executor]}

    def _executor_of(self, group: str) -> str:
        """Where the task of the job runs; empty: nowhere yet."""
        tracker, store = self._context.statusTracker(), self._context._jsc.sc().statusStore()  # noqa: SLF001 - as above
        jobs = [tracker.getJobInfo(job_id) for job_id in tracker.getJobIdsForGroup(group)]
        for stage in (stage for job in jobs if job for stage in job.stageIds):
            tasks = store.taskList(stage, 0, MAX_ATTEMPTS)
            for number in range(tasks.size()):
                if str(tasks.apply(number).status()) == "RUNNING":
                    return str(tasks.apply(number).executorId())
        return ""

    def add_file(self, path: Path) -> None:
        _require_same(self._context, path, path.name)
        self._context.addFile(str(path))

    def add_archive(self, path: Path, name: str) -> None:
        _require_same(self._context, path, name)
        self._context.addArchive(f"{path}#{name}")


class ConnectHost:
    """A session of Spark Connect."""

    def __init__(self, session: Any) -> None:
        """`session` is a session of the package `pyspark.sql.connect`."""
        self._session = session

    @property
    def python(self) -> str:
        return "python3"  # the server knows which; it says so when it cannot be started

    @property
    def master(self) -> str:
        return self._get("spark.master")

    @property
    def cores(self) -> int | None:
        """Return what the settings say; a cluster that grows and shrinks says nothing."""
        if self.master == "local":
            return 1
        if (here := _LOCAL_CORES.match(self.master)) is not None:
            return int(here[1])
        if (cluster := _LOCAL_CLUSTER.match(self.master)) is not None:
            return int(cluster[1]) * int(cluster[2])
        executors, each = self._get("spark.executor.instances"), self._get("spark.executor.cores")
        if executors.isdigit() and self._get("spark.dynamicAllocation.enabled") != "true":
            return int(executors) * int(each or 1)
        return None

    def conf(self) -> Mapping[str, str]:
        return dict(self._session.conf.getAll)

    def is_alive(self) -> bool:
        return answers(str(self._session.client._builder.endpoint))  # noqa: SLF001 - PySpark keeps it there

    def secret(self) -> str:
        return ""

    def coordinator_host(self) -> str:
        server = str(self._session.client.host)
        if self.master.startswith(LOOPBACK_MASTERS) and _is_loopback(server):
            return LOOPBACK
        if _is_loopback(server):
            return self._get("spark.driver.host") or LOOPBACK
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as way:
            way.connect((server, 1))  # nothing is sent: the system says which address it would be sent from
            return str(way.getsockname()[0])

    def start_thread(self, target: Callable[[int], None], index: int, name: str) -> threading.Thread:
        thread = threading.Thread(target=target, args=(index,), name=name, daemon=True)
        thread.start()
        return thread

    def run_task_manager(self, launch: TaskManagerLaunch, group: str) -> list[TaskManagerExit]:
        self._session.addTag(group)  # of this thread alone
        try:
            one = self._session.range(0, 1, 1, 1).mapInArrow(_arrow_body(launch), _EXIT_COLUMNS)
            return [TaskManagerExit(row.resource_id, row.kind, row.detail) for row in one.collect()]
        finally:
            self._session.removeTag(group)

    def cancel(self, group: str) -> None:
        self._session.interruptTag(group)

    def has_begun(self, group: str) -> bool:
        return True  # nobody says

    def leaving(self, groups: Collection[str]) -> set[str]:
        return set()  # nobody says

    def add_file(self, path: Path) -> None:
        _require_same(self._session, path, path.name)
        self._session.addArtifacts(str(path), file=True)

    def add_archive(self, path: Path, name: str) -> None:
        _require_same(self._session, path, name)
        self._session.addArtifacts(f"{path}#{name}", archive=True)

    def _get(self, key: str) -> str:
        return str(self._session.conf.get(key, "") or "")


_EXIT_COLUMNS = "resource_id string, kind string, detail string"


def host_of(session: Any) -> SparkHost:
    """What a session is to TaskManagers, of either kind."""
    return ConnectHost(session) if is_connect(session) else ContextHost(session.sparkContext)


def is_connect(session: Any) -> bool:
    """Whether a session is one of Spark Connect, which has no SparkContext."""
    return type(session).__module__.startswith("pyspark.sql.connect.")


def is_stopped(session: Any) -> bool:
    """Whether somebody has stopped the session."""
    if hasattr(session, "is_stopped"):  # one of Spark Connect
        return bool(session.is_stopped)
    from pyspark import SparkContext

    return SparkContext._active_spark_context is not session.sparkContext  # noqa: SLF001 - PySpark has no public question for it


def answers(endpoint: str) -> bool:
    """Whether a server listens there, `host:port`. PySpark asks one that is gone again and again, for ten minutes."""
    host, _, port = endpoint.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), ANSWER_S).close()
    except (OSError, ValueError):
        return False
    return True


def _require_same(session: Any, path: Path, name: str) -> None:
    """Raise NoSpark when the executors of a session have been given something else of that name: Spark would leave it
    to them, without a word where the path is the same."""
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "blake2b").hexdigest()
    if _GIVEN.setdefault(session, {}).setdefault(name, digest) != digest:
        raise NoSpark(
            f"{path} was added to the job as {name!r}, and an earlier job has given another {name!r} to the executors of this "
            "session, which keep it: give this one another name, or stop the session and open another one"
        )


def _is_loopback(host: str) -> bool:
    return host in {"localhost", "::1"} or host.startswith("127.")


def _partition_body(launch: TaskManagerLaunch) -> Callable[[Any], Any]:
    def task_manager(rows: Any) -> Any:
        list(rows)  # a worker whose input was not read to its end is not used again by Spark
        return run(launch)

    return task_manager


def _arrow_body(launch: TaskManagerLaunch) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def task_manager(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        list(batches)
        for end in run(launch):
            yield pa.RecordBatch.from_pylist([asdict(end)])

    return task_manager
