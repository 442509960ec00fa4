"""What runs inside a Spark executor: the body of the one task of the Spark job that carries one TaskManager.

Everything is imported inside the body, in the executor's Python worker: gRPC and Flight must not exist before Spark's
daemon has forked. The body refuses a second start under the same resource id (Spark's retry or speculation), because a
TaskManager incarnation is never repeated; the pool on the driver starts a new one instead, and a copy that speculation
starts waits for the end of the original. It returns, and thereby ends the Spark job, when the TaskManager ends: also
when the process that started the worker is gone, because then nobody is left who could kill it.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

SPARK_SECRET_VARIABLE = "_SPARK_AUTH_SECRET"  # noqa: S105 - the name of a variable, not a secret
"""Spark puts `spark.authenticate.secret` into the environment of every Python worker under this name."""


def derive_token(spark_secret: str) -> str:
    """The cluster's token, derived from Spark's secret on both sides, so that it never travels (HKDF-like, one
    block)."""
    return hmac.new(b"snapline/security.auth.token/v1", spark_secret.encode(), hashlib.sha256).hexdigest()


DAEMONS = frozenset({"pyspark.daemon", "snapline.spark.daemon"})
"""Programs that fork Python workers for Spark, and lead their process group."""
SECOND_START_POLL_S = 1.0
EXIT_ORPHAN = 71
"""Exit code of a worker that Spark could not kill any more, and must not use again."""


@dataclass(frozen=True)
class TaskManagerLaunch:
    """Everything that the body needs; pickled into the Spark job."""

    resource_id: str
    coordinator_address: str
    slots: int
    python_version: tuple[int, int]
    """The Python of the driver; the executor's must be equal, because functions travel as pickled byte code."""
    settings: Mapping[str, str] = field(default_factory=dict)
    token: str = ""
    """The credential of this TaskManager; empty when it comes from Spark (`token_from_spark`)."""
    token_from_spark: bool = False
    packages: tuple[str, ...] = ()
    """Names of archives of the application with Python packages."""
    stays_when_idle: bool = False
    """Whether the TaskManager stays while no job needs it."""
    failures_are_told: bool = False
    """Whether the driver says why tasks fail, on the console that the TaskManager writes to."""

    @property
    def description(self) -> str:
        """What Spark's own page says of the job, which counts one task there that does not end."""
        return (
            f"Snapline TaskManager {self.resource_id} with {self.slots} slots, for as long as it runs: its rows and "
            f"checkpoints are on the page of the coordinator, and in snapline list -m {self.coordinator_address}"
        )


@dataclass(frozen=True)
class TaskManagerExit:
    """How a TaskManager ended, as the driver sees it."""

    resource_id: str
    kind: str
    """`stopped` (was told to), `refused` (second start of the same resource id), `unusable` (this Python cannot run
    TaskManagers, and no other here will), `failed`."""
    detail: str = ""


def run(launch: TaskManagerLaunch) -> Iterator[TaskManagerExit]:
    """The body: yields one TaskManagerExit when the TaskManager has ended."""
    yield _run(launch)


def _run(launch: TaskManagerLaunch) -> TaskManagerExit:
    here = sys.version_info[:2]
    if here != launch.python_version:
        return TaskManagerExit(
            launch.resource_id,
            "unusable",
            f"executors run Python {here[0]}.{here[1]} ({sys.executable}), the driver runs "
            f"{launch.python_version[0]}.{launch.python_version[1]}: set spark.pyspark.python or PYSPARK_PYTHON",
        )
    from pyspark import TaskContext

    context = TaskContext.get()
    attempt = context.attemptNumber() if context is not None else 0
    token = launch.token
    if launch.token_from_spark:
        secret = os.environ.get(SPARK_SECRET_VARIABLE, "")
        if not secret:
            return TaskManagerExit(
                launch.resource_id, "unusable", f"spark.authenticate is on, but {SPARK_SECRET_VARIABLE} is not set"
            )
        from snapline.runtime.rpc.security import task_manager_token

        token = task_manager_token(derive_token(secret), launch.resource_id)
    host = os.getppid()
    if attempt > 0:
        wait_for_the_original(launch, token, lambda: os.getppid() != host)
        return TaskManagerExit(launch.resource_id, "refused", f"attempt {attempt} of a TaskManager that was lost")
    try:
        from snapline.runtime.recent_output import RecentOutput
        from snapline.runtime.rpc.grpc_polling import import_grpc_with_few_wake_ups
        from snapline.runtime.settings import take_secrets
        from snapline.taskmanager.task_manager_config import TaskManagerConfig

        import_grpc_with_few_wake_ups()
        from snapline.taskmanager.task_manager_process import run_task_manager
    except ImportError as error:
        return TaskManagerExit(
            launch.resource_id,
            "unusable",
            f"{sys.executable} on the executors cannot import Snapline ({error}): install it there, or ship an "
            "environment with --archives and spark.pyspark.python",
        )
    take_secrets(os.environ)
    if is_orphan():
        os._exit(EXIT_ORPHAN)
    if context is not None:
        _use_job_files(launch.packages)
    config = TaskManagerConfig(
        resource_id=launch.resource_id,
        coordinator_address=launch.coordinator_address,
        slots=launch.slots,
        token=token,
        settings=dict(launch.settings),
        executor_id=executor_id(os.environ),
        log_url=os.environ.get("SPARK_LOG_URL_STDERR", ""),
        stays_when_idle=launch.stays_when_idle,
        failures_are_told=launch.failures_are_told,
    )
    with RecentOutput() as recent:
        # nobody else could end us once Spark's daemon is gone
        reason = run_task_manager(config, should_stop=lambda: os.getppid() != host, recent=recent)
    if os.getppid() != host:
        os._exit(EXIT_ORPHAN)
    return TaskManagerExit(launch.resource_id, "stopped" if reason.clean else "failed", reason.detail)


def _use_job_files(packages: Sequence[str]) -> None:
    """Let functions find what came with the application, and import from its archives."""
    from pyspark import SparkFiles

    from snapline.job_files import ROOT_VARIABLE

    root = SparkFiles.getRootDirectory()
    os.environ[ROOT_VARIABLE] = root
    for name in packages:
        if (path := f"{root}/{name}") not in sys.path:
            sys.path.append(path)


def wait_for_the_original(launch: TaskManagerLaunch, token: str, host_is_gone: Callable[[], bool]) -> None:
    """A second start that comes while the first one lives is Spark's speculation, and the first of both to return wins:
    the other one is killed. So this one does not return before the first is known to be gone. After a loss, that is at
    once. One that nobody knows may only be starting, or its coordinator is: it ends itself when it cannot register, and
    is waited for as long."""
    from snapline.client import ClusterClient
    from snapline.dataflow.config import (
        COORDINATOR_ADDRESS,
        RESOURCEMANAGER_ADDRESS,
        SECURITY_TOKEN,
        TASKMANAGER_REGISTRATION_TIMEOUT,
        Configuration,
    )
    from snapline.dataflow.errors import SnaplineError

    values = {**launch.settings, **({SECURITY_TOKEN.key: token} if token else {})}
    values[COORDINATOR_ADDRESS.key] = launch.settings.get(RESOURCEMANAGER_ADDRESS.key) or launch.coordinator_address
    configuration = Configuration(values)
    patience_s = configuration.get_option(TASKMANAGER_REGISTRATION_TIMEOUT) / 1000
    unknown_since_s = time.monotonic()
    while not host_is_gone():
        state = "unknown"
        with suppress(SnaplineError), ClusterClient.from_configuration(configuration) as client:
            state = client.state_of_task_manager(launch.resource_id)
        if state == "registered":
            unknown_since_s = time.monotonic()
        elif state == "lost" or time.monotonic() - unknown_since_s >= patience_s:
            return
        time.sleep(SECOND_START_POLL_S)


def is_orphan() -> bool:
    """Whether Spark's daemon, which leads the process group of its workers, is gone: Spark would go on to use this
    worker, and could not kill it any more."""
    main = getattr(sys.modules.get("__main__"), "__spec__", None)
    return main is not None and main.name in DAEMONS and os.getppid() != os.getpgrp()


def executor_id(environ: Mapping[str, str]) -> str:
    """What tells this executor from others, never empty: by Kubernetes' variable, YARN's, or the last of the
    directories that a standalone Worker made for it; the driver itself in local mode, as Spark calls it."""
    directory = environ.get("SPARK_EXECUTOR_DIRS", "").rsplit("/", 1)[-1]
    return environ.get("SPARK_EXECUTOR_ID") or environ.get("CONTAINER_ID") or directory or "driver"
