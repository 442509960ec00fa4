"""A coordinator beside this process and TaskManagers in a Spark application: the sidecar and the embedded mode.

The order matters: SparkContext first, gRPC after (PySpark forks to start Java); on the way down the other way round.
With a session of Spark that was there already, nothing of it is changed or stopped.
"""

from __future__ import annotations

import importlib.util
import itertools
import os
import re
import secrets
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from snapline.beside_drivers import announce
from snapline.client import ClusterClient
from snapline.dataflow.config import (
    CHECKPOINTS_DIRECTORY,
    HA_STORAGE_DIR,
    HA_TYPE,
    HEARTBEAT_INTERVAL,
    LOG_LEVEL,
    RESOURCEMANAGER_ADDRESS,
    TASKMANAGER_INSTANCES,
    TASKMANAGER_REGISTRATION_TIMEOUT,
    TASKMANAGER_SLOTS,
    Configuration,
)
from snapline.dataflow.errors import SnaplineError
from snapline.dataflow.graph.jobgraph import JobGraph
from snapline.interrupts import interrupt_waits
from snapline.runtime.rpc.security import TOKEN_SETTINGS, Security, configured_token, settings_of_token
from snapline.runtime.settings import Setting, from_spark
from snapline.spark.daemon import MODULE as PRELOADING_DAEMON
from snapline.spark.executor import derive_token
from snapline.spark.head_start import HeadStart
from snapline.spark.java import NoJavaError, ensure_java
from snapline.spark.java_archive import start_options
from snapline.spark.pool import PoolSettings, TaskManagerPool, TaskManagersUnavailable
from snapline.spark.spark_hosts import (
    LOOPBACK_MASTERS,
    ContextHost,
    NoSpark,
    SparkHost,
    answers,
    host_of,
    is_stopped,
    runs_in_driver,
)
from snapline.spark.worker_reports import WorkerReports

if TYPE_CHECKING:
    from pyspark import SparkConf
    from pyspark.sql import SparkSession

    from snapline.coordinator.coordinator_process import CoordinatorProcess

QUIET_LOGS = Path(__file__).parent / "spark" / "log4j2.properties"
"""For the Java of sessions that we open."""
CONNECT_PORT = 15002
"""Where a Connect server listens unless it is told."""
HEARTBEAT_INTERVAL_MS = 1000
"""Unless it is set; progress is as fresh as the heartbeats that carry the counters."""
_leading: dict[str, CoordinatorProcess] = {}
"""Coordinators of this process by where they lead with high availability."""
_leading_lock = threading.Lock()
LEAVES_SECONDS = 10.0
"""A coordinator whose job is over, or was cancelled, takes a moment to end."""


def _require_place(place: str) -> None:
    """Raise SnaplineError where another job of this program is led there: its coordinator would end, and its job be
    taken over."""
    other, until = _leading.get(place), time.monotonic() + LEAVES_SECONDS
    while other is not None and other.is_alive:
        if time.monotonic() >= until:
            raise SnaplineError(
                f"another job of this program runs with {HA_STORAGE_DIR.key} = {place}: wait for its end, or give each a directory of "
                "its own"
            )
        time.sleep(0.05)


@dataclass(frozen=True, slots=True)
class SparkHandle:
    """The Spark session that TaskManagers will run in."""

    session: SparkSession
    ours: bool
    """Whether we made it, and stop it."""
    directory: str = ""
    """Where Spark keeps its blocks, if we made that for it; executors that were killed leave theirs there."""
    head_start: HeadStart | None = None
    """What was started beside a session that is ours."""
    use: int = 0
    """Number of this use of a session that is ours, which may serve several jobs at once."""

    @property
    def host(self) -> SparkHost:
        """Return what runs TaskManagers in the session.

        >>> handle.host.conf()  # doctest: +SKIP
        """
        return host_of(self.session)

    @property
    def settings(self) -> dict[str, Setting]:
        """Return the settings that Spark conf has under `spark.snapline.`."""
        return from_spark(self.host.conf().items())


def open_spark(app_name: str, conf: Mapping[str, str] | None = None, *, for_cluster: bool = False) -> SparkHandle:
    """The active Spark session, or a new one: `local[*]` unless spark-submit or spark-defaults say otherwise. One that
    is ours is stopped when everybody who has opened it has called `stop_spark`. `for_cluster`: an EmbeddedCluster comes
    next, whose coordinator can start beside Java.

    Raises NoSpark with one line that says what is missing.
    """
    with _OPENING:
        shared = _shared[-1] if _shared else None
        if shared is None or not _is_open(shared):
            _shared.clear()
            shared = _open_spark(app_name, conf, for_cluster=for_cluster)
            try:
                _refuse_idle_kill(shared)
            except NoSpark:
                if shared.ours:
                    stop_spark(shared)
                raise
        if not shared.ours:
            return shared
        opened = replace(shared, use=next(_uses))
        _shared.append(opened)
        return opened


_OPENING = threading.RLock()
"""Nobody opens a session while another one opens or stops it."""
_shared: list[SparkHandle] = []
"""All uses of the session that is ours."""
_uses = itertools.count(1)
_GONE = "Spark's process is gone, and TaskManagers with it: start the program again"


def _is_open(spark: SparkHandle) -> bool:
    """Whether nobody has stopped the session."""
    return spark.host.is_alive() and not is_stopped(spark.session)


def _open_spark(app_name: str, conf: Mapping[str, str] | None, *, for_cluster: bool) -> SparkHandle:
    if importlib.util.find_spec("pyspark") is None:
        raise NoSpark("PySpark is not installed: pip install 'snapline[spark]'")
    if (connected := _connected(app_name)) is not None:
        return connected
    directory = java_options = ""
    under_submit = "PYSPARK_GATEWAY_PORT" in os.environ
    if not under_submit:
        try:
            java_options = start_options(ensure_java(), os.environ)
        except NoJavaError as error:
            raise NoSpark(str(error)) from None
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    from pyspark import SparkConf, SparkContext
    from pyspark.sql import SparkSession

    context = SparkContext._active_spark_context  # noqa: SLF001 - PySpark has no public question for it
    if context is not None:
        if not ContextHost(context).is_alive():
            raise NoSpark(_GONE)
        return SparkHandle(SparkSession.builder.getOrCreate(), ours=False)
    builder = SparkSession.builder.appName(app_name)
    wanted = {"spark.speculation": "false", "spark.python.worker.faulthandler.enabled": "true", **(conf or {})}
    if not under_submit:
        defaults = _spark_defaults()
        master = wanted.get("spark.master") or os.environ.get("MASTER") or defaults.get("spark.master", "local[*]")
        logs = f"-Dlog4j2.configurationFile={QUIET_LOGS.as_uri()}"
        chosen = {"spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false"}
        chosen["spark.driver.extraJavaOptions"] = f"{java_options} {logs}"
        if master.startswith(LOOPBACK_MASTERS):
            chosen |= {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
            os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        wanted = {"spark.master": master, **{k: v for k, v in chosen.items() if k not in defaults}, **wanted}
        sys.stderr.write(f"snapline: starting Spark ({master}) ...\n")
    head_start = HeadStart()
    session: SparkSession | None = None
    try:
        with interrupt_waits():  # and SparkContext's own handler, which cancels TaskManagers, does not stay
            if not under_submit and (master := wanted["spark.master"]).startswith(LOOPBACK_MASTERS):
                head_start.begin(
                    with_coordinator=for_cluster,
                    starts_java=SparkContext._gateway is None,  # noqa: SLF001 - PySpark has no public question for it
                    with_daemon=runs_in_driver(master),
                )
            SparkContext._ensure_initialized(conf=SparkConf(loadDefaults=False).setAll([*wanted.items()]))  # noqa: SLF001 - starts Java
            found = SparkConf()  # which knows spark-defaults.conf, now that Java runs
            is_here = wanted.get("spark.driver.host") == "127.0.0.1" and "SPARK_LOCAL_DIRS" not in os.environ
            if is_here and not found.contains("spark.local.dir"):
                directory = tempfile.mkdtemp(prefix="snapline-spark-")
                wanted.setdefault("spark.local.dir", directory)
            wanted = {**_unless_configured(found), **wanted}
            daemon = wanted.get("spark.python.daemon.module", found.get("spark.python.daemon.module"))
            head_start.java_is_there(needs_daemon=daemon == PRELOADING_DAEMON)
            for key, value in wanted.items():
                builder = builder.config(key, value)
            session = builder.getOrCreate()
    except BaseException as error:
        if session is not None:  # an interrupt has waited until it was there
            session.stop()
        head_start.close()
        if directory:
            shutil.rmtree(directory, ignore_errors=True)
        if not isinstance(error, Exception):
            raise
        raise NoSpark(f"Spark does not start: {_reason(error)}") from None
    if not under_submit:
        session.sparkContext.setLogLevel("OFF")
    return SparkHandle(session, ours=True, directory=directory, head_start=head_start)


def _spark_defaults() -> dict[str, str]:
    """What spark-defaults.conf says: Spark reads it itself, and takes it for less than anything that is said to it."""
    from pyspark.find_spark_home import _find_spark_home

    directory = os.environ.get("SPARK_CONF_DIR") or f"{_find_spark_home()}/conf"
    try:
        text = Path(directory, "spark-defaults.conf").read_text(errors="replace")
    except OSError:
        return {}
    return dict(re.findall(r"^[ \t]*([^\s#!:=]+)[ \t]*[:= \t][ \t]*(.*?)[ \t]*$", text, re.MULTILINE))


def _connected(app_name: str) -> SparkHandle | None:
    """The session of Spark Connect that is there, or that SPARK_REMOTE names; None: this program has a Java of its
    own. Raises NoSpark when the server does not answer."""
    if not {"SPARK_CONNECT_MODE_ENABLED", "SPARK_REMOTE"} & os.environ.keys():
        return None
    from pyspark.sql import SparkSession

    remote = os.environ.get("SPARK_REMOTE", "")
    endpoint = re.match(r"sc://([^/;]+)", remote)
    if endpoint is not None:
        address = endpoint[1] if ":" in endpoint[1] else f"{endpoint[1]}:{CONNECT_PORT}"
        if not answers(address):
            raise NoSpark(
                f"no server of Spark Connect answers at {address} (SPARK_REMOTE={remote}): start it, or say another"
            )
    try:
        active = SparkSession.getActiveSession()
        if active is not None:
            return SparkHandle(active, ours=False)
        return SparkHandle(SparkSession.builder.appName(app_name).getOrCreate(), ours=True)
    except Exception as error:
        raise NoSpark(f"no session of Spark Connect at {remote}: {_reason(error)}") from None


def stop_spark(spark: SparkHandle) -> None:
    """Stop a session that is ours and that nobody else uses, and remove what it leaves on this machine."""
    with _OPENING:
        if spark in _shared:
            _shared.remove(spark)
        if any(other.session is spark.session for other in _shared):
            return
        if _is_open(spark):  # who stops one again takes the session from whoever has opened another one since
            spark.session.stop()
        if spark.head_start is not None:
            spark.head_start.close()
        if spark.directory:
            shutil.rmtree(spark.directory, ignore_errors=True)


def _unless_configured(conf: SparkConf) -> dict[str, str]:
    """What suits an application that carries TaskManagers, where spark-submit or spark-defaults say nothing else: a
    TaskManager that was lost is replaced by the pool, so Spark need not start its task a second time; workers come
    preloaded."""
    chosen = {"spark.task.maxFailures": "1"}
    if not conf.get("spark.submit.pyFiles", ""):  # the daemon would not find Snapline among them
        chosen["spark.python.daemon.module"] = PRELOADING_DAEMON
    return {key: value for key, value in chosen.items() if not conf.contains(key)}


def _reason(error: Exception) -> str:
    """What Java said, in one line: Py4J's own first line only says that something was called."""
    java = getattr(error, "java_exception", None)
    lines = [line.strip() for line in str(java.toString() if java is not None else error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__


def _refuse_idle_kill(spark: SparkHandle) -> None:
    conf = spark.host.conf()
    if conf.get("spark.python.worker.killOnIdleTimeout", "false") == "true" and conf.get(
        "spark.python.worker.idleTimeoutSeconds", "0"
    ) not in {"0", "0s"}:
        raise NoSpark(
            "spark.python.worker.killOnIdleTimeout would kill TaskManagers, whose Spark task emits nothing for days: "
            "set it to false"
        )


def slots_required(job_graph: JobGraph) -> int:
    """Slots that the job takes: per slot sharing group, the highest parallelism.

    >>> from snapline.sidecar import slots_required
    >>> _ = orders.sink_to(sl_connectors.DiscardingSink(), uid="nowhere")
    >>> slots_required(env.set_parallelism(3).translate("example").job_graph)
    3
    """
    groups: dict[str, int] = {}
    for vertex in job_graph.vertices:
        groups[vertex.slot_sharing_group] = max(groups.get(vertex.slot_sharing_group, 0), vertex.parallelism)
    return sum(groups.values())


class EmbeddedCluster:
    """Coordinator process and TaskManager pool of one Spark application; a context manager."""

    def __init__(
        self,
        spark: SparkHandle,
        configuration: Configuration,
        slots: int,
        logger: Any,
        *,
        packages: Sequence[str] = (),
        failures_are_told: bool = False,
    ) -> None:
        """Nothing is started yet. `slots` is what the jobs will need; TaskManagers are started to fit. `packages`:
        archives of the application from which they import. `failures_are_told`: by who runs the jobs, on the console
        that the coordinator would log to."""
        self._failures_are_told = failures_are_told
        self._packages = tuple(packages)
        self.spark = spark
        self.logger = logger
        host = spark.host
        secret = host.secret() if host.conf().get("spark.authenticate", "false") == "true" else ""
        token = configured_token(configuration)
        given = bool(token)
        self._resource_manager = configuration.get_option(RESOURCEMANAGER_ADDRESS).strip()
        """Where it is, when it is not our coordinator's: TaskManagers of others work for us, and the secret is that
        cluster's."""
        if not token and secret:
            token = derive_token(secret)
        elif not token and not self._resource_manager:
            token = secrets.token_hex(32)
        self._token_from_spark = bool(secret and not given)
        self.token = token
        master = host.master
        self.host = host.coordinator_host()
        instances = configuration.get_option(TASKMANAGER_INSTANCES)
        if not instances:
            per_manager = configuration.get_option(TASKMANAGER_SLOTS)
            wanted = max(1, -(-slots // per_manager))
            instances = min(host.cores or wanted, wanted)
        self.instances = instances
        self.slots_each: int = max(configuration.get_option(TASKMANAGER_SLOTS), -(-slots // instances))
        if CHECKPOINTS_DIRECTORY.key not in configuration:
            self._directory: str | None = tempfile.mkdtemp(prefix="snapline-checkpoints-")
            configuration = configuration.with_values({CHECKPOINTS_DIRECTORY.key: self._directory})
        else:
            self._directory = None
        if HEARTBEAT_INTERVAL.key not in configuration:  # all on one network, and somebody watches
            configuration = configuration.with_values({HEARTBEAT_INTERVAL.key: f"{HEARTBEAT_INTERVAL_MS} ms"})
        self.configuration = configuration
        self._task_manager_settings = {k: v for k, v in configuration.items() if k not in TOKEN_SETTINGS}
        self._task_manager_settings.setdefault(
            TASKMANAGER_REGISTRATION_TIMEOUT.key, "30 s"
        )  # this coordinator never comes back
        self._task_managers_write_here = runs_in_driver(master)
        if self._task_managers_write_here:
            self._task_manager_settings.setdefault(
                LOG_LEVEL.key, "WARNING"
            )  # they write to the terminal of this process
        self._coordinator: CoordinatorProcess | None = None
        self.pool: TaskManagerPool | None = None
        self.client: ClusterClient | None = None
        self._reports: WorkerReports | None = None
        self._take_back: Callable[[], None] = lambda: None

    def __enter__(self) -> EmbeddedCluster:
        """Start the coordinator, and then the TaskManagers."""
        from snapline.coordinator.coordinator_process import CoordinatorProcess

        failures_are_told = self._failures_are_told and LOG_LEVEL.key not in self.configuration
        try:
            place = self.configuration.get_option(HA_STORAGE_DIR) if self.recovers_jobs else ""
            begun = self.spark.head_start.take_coordinator() if self.spark.head_start is not None else None
            with _leading_lock:
                _require_place(place)
                self._coordinator = begun or CoordinatorProcess.begin()
                if place:
                    _leading[place] = self._coordinator
            self._coordinator.serve(
                bind=f"{self.host}:0",
                settings={k: v for k, v in self.configuration.items() if k not in TOKEN_SETTINGS},
                token=self.token,
                failures_are_told=failures_are_told,
            )
            self.client = self._open_client()
            self._take_back = announce(self._coordinator.address, self.token)
            self.pool = TaskManagerPool(
                self.spark.host,
                PoolSettings(
                    coordinator_address=self._coordinator.address,
                    task_managers=self.instances,
                    slots=self.slots_each,
                    security=Security(self.token),
                    token_from_spark=self._token_from_spark,
                    settings=self._task_manager_settings,
                    packages=self._packages,
                    failures_are_told=failures_are_told and self._task_managers_write_here,
                ),
                self.logger,
            )
            self.pool.start()
            self._reports = WorkerReports(self.pool, lambda: self._open_client(self._resource_manager), self.logger)
            self._reports.start()
        except BaseException:
            self.close()
            raise
        return self

    def _open_client(self, addresses: str = "") -> ClusterClient:
        """Open a client of our coordinator, or of the one that leads of those at these addresses."""
        if self._coordinator is None:
            raise SnaplineError("the coordinator was not started")
        with_token = self.configuration.with_values(settings_of_token(self.token))
        security = Security.from_configuration(with_token)
        if addresses:
            return ClusterClient(addresses, security, lambda: addresses)
        return ClusterClient(self._coordinator.address, security)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Stop everything that was started."""
        self.close()

    @property
    def recovers_jobs(self) -> bool:
        """Whether the coordinator may have found jobs of one before it."""
        return self.configuration.get_option(HA_TYPE) != "NONE"

    def check(self) -> None:
        """Raise when Spark is gone or cannot give TaskManagers, or the coordinator is gone."""
        if not self.spark.host.is_alive():
            raise NoSpark(_GONE)
        if is_stopped(self.spark.session):
            raise NoSpark("the session of Spark was stopped, and TaskManagers with it: start the job in another one")
        if self.pool is not None and self.pool.fatal_error:
            raise TaskManagersUnavailable(self.pool.fatal_error)
        if self._coordinator is not None and not self._coordinator.is_alive:
            raise SnaplineError(f"the coordinator has ended: {self._coordinator.last_words}")

    def close(self) -> None:
        """TaskManagers, client, coordinator; Spark too, if it is ours."""
        self._take_back()
        if self.client is not None:
            self.client.close()
        if self._coordinator is not None:
            self._coordinator.stop()
        if self.pool is not None:
            self.pool.stop()
        if self._reports is not None:
            self._reports.stop()
        if self._directory is not None and not any(Path(self._directory).glob("**/_metadata")):
            shutil.rmtree(self._directory, ignore_errors=True)  # nothing is in there that a job could start from
        if self.spark.ours:
            stop_spark(self.spark)
