"""Keeps TaskManagers alive in a Spark application: one Spark job of one task for each, a new one for each that is gone.

One job each, because one lost executor fails its whole job, and must never take another TaskManager with it. Each job
is submitted from an InheritableThread with its own job group, so that it can be cancelled alone. A TaskManager that
ends without being told to is replaced under a new resource id, after a pause that grows while replacements end quickly;
one that was told to, because nobody needed it, when jobs need more slots than there are. What Spark can give is seen,
not computed: a Spark job whose task has not begun after a while waits for a core. What no replacement can mend (the
executors' Python lacks Snapline, or is of another version) stops the pool and is reported once. Spark never kills
Python with anything but signal 9, so nothing here relies on clean-up code in the executor.
"""

from __future__ import annotations

import re
import sys
import threading
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from snapline.dataflow.errors import SnaplineError
from snapline.runtime.rpc.security import Security, task_manager_token
from snapline.spark.executor import TaskManagerExit, TaskManagerLaunch
from snapline.spark.spark_hosts import SparkHost

QUICK_END_S = 5.0
"""A TaskManager that lives shorter than this ended quickly."""
PAUSE_MIN_S = 0.05
PAUSE_MAX_S = 5.0
STARTING_S = 10.0
"""A TaskManager that was submitted less long ago than this may only be starting: it counts as one that will come."""
CANCEL_AGAIN_S = 0.5
"""Spark knows nothing to cancel of a job that is just being submitted, and is asked again."""
QUICK_ENDS_MAX = 8
"""So many quick ends in a row, without one TaskManager that lived longer, and the pool gives up."""


class TaskManagersUnavailable(SnaplineError):
    """Spark cannot run TaskManagers; the message says why and what to change."""


@dataclass(frozen=True)
class PoolSettings:
    """What the pool starts: how many TaskManagers, with which slots and settings."""

    coordinator_address: str
    task_managers: int
    slots: int
    security: Security = Security()  # noqa: RUF009 - it is immutable
    """What the credentials of TaskManagers are made from, as of the moment when each of them starts."""
    token_from_spark: bool = False
    settings: Mapping[str, str] = field(default_factory=dict)
    packages: tuple[str, ...] = ()
    """Names of archives of the application from which TaskManagers import."""
    stay_when_idle: bool = False
    """Whether the TaskManagers stay while no job needs them."""
    failures_are_told: bool = False
    """Whether the driver says why tasks fail, on the console that TaskManagers write to."""


@dataclass(frozen=True)
class Capacity:
    """Slots that a pool has and will have."""

    slots: int
    reason: str
    """What bounds them, and how to change that."""


class TaskManagerPool:
    """Starts `task_managers` Spark jobs and replaces the ones that end, until `stop`."""

    def __init__(self, host: SparkHost, settings: PoolSettings, logger: Any) -> None:
        """`logger` is a bound structlog logger."""
        self._host = host
        self._settings = settings
        self._log = logger
        self._condition = threading.Condition()
        self._stopping = False
        self._fatal: str = ""
        self._quick_ends = 0
        self._groups: dict[int, str] = {}
        self._submitted_s: dict[int, float] = {}
        """Per place in the pool with a Spark job: when it was submitted."""
        self._running: set[int] = set()
        """Those of which the Spark task has begun."""
        self._resting = 0
        """Places whose TaskManager was told to end."""
        self._wanted = 0
        """How many of them are to start one again."""
        self._ended_workers: dict[str, str] = {}
        self._places = settings.task_managers
        self._replaced: set[int] = set()
        """Places whose TaskManager has another one in its stead already, because its executor goes."""
        self._declarative = False
        self._threads: list[threading.Thread] = []
        self._started = 0
        self._ended = 0

    def start(self) -> None:
        """Submit the Spark jobs; returns at once."""
        for index in range(self._settings.task_managers):
            self._threads.append(self._host.start_thread(self._keep_alive, index, f"task-manager-pool-{index}"))

    @property
    def fatal_error(self) -> str:
        """Why the pool gave up; empty while it has not."""
        with self._condition:
            return self._fatal

    @property
    def started(self) -> int:
        """TaskManagers started since the beginning, replacements included."""
        with self._condition:
            return self._started

    # --- what the coordinator is told, and says -----------------------------------------------------------------------

    def capacity(self) -> Capacity:
        """What there can be, as far as Spark shows it now. Asks Spark."""
        with self._condition:
            unseen = {index: self._groups[index] for index in self._submitted_s.keys() - self._running}
        begun = {index for index, group in unseen.items() if self._has_begun(group)}
        slots = self._settings.slots
        with self._condition:
            total = self._settings.task_managers + len(self._replaced)
            self._running |= begun & self._submitted_s.keys()
            late = time.monotonic() - STARTING_S
            waiting = sum(index not in self._running and at_s < late for index, at_s in self._submitted_s.items())
        if not waiting:
            bound = f"{total} TaskManagers with {slots} slots each are all that this Spark application starts"
            return Capacity(total * slots, f"{bound} (taskmanager.instances, taskmanager.numberOfTaskSlots)")
        reason = (
            f"Spark runs {total - waiting} of {total} TaskManagers and has no free core for the others: give the application more "
            "cores or executors"
        )
        return Capacity((total - waiting) * slots, reason)

    def take_ended(self) -> dict[str, str]:
        """TaskManagers whose Spark job has ended since the last call, and why."""
        with self._condition:
            ended, self._ended_workers = self._ended_workers, {}
            return ended

    def put_back_ended(self, ended: Mapping[str, str]) -> None:
        """Take the ended workers back, because the coordinator could not be told."""
        with self._condition:
            self._ended_workers = {**ended, **self._ended_workers}

    def follow(self, required_slots: int, registered_slots: int) -> None:
        """What jobs need and what there is. From the first call on, a TaskManager that was told to end is not replaced
        before."""
        with self._condition:
            self._declarative = True
            young = time.monotonic() - STARTING_S
            starting = sum(at_s > young for at_s in self._submitted_s.values())
            missing = -(-max(0, required_slots - registered_slots) // self._settings.slots)
            self._wanted = max(0, missing - starting)
            if self._wanted and self._resting:
                self._condition.notify_all()

    def wait_for_end(self, timeout_s: float) -> None:
        """Until a TaskManager has ended, the pool stops, or the time is over."""
        with self._condition:
            if not self._ended_workers and not self._stopping:
                self._condition.wait(timeout_s)

    def _has_begun(self, group: str) -> bool:
        try:
            return self._host.has_begun(group)
        except Exception as error:  # the session may be gone already
            self._log.debug("Spark does not say what runs", group=group, error=str(error))
            return False

    # --- executors that go --------------------------------------------------------------------------------------------

    def leaving(self) -> list[str]:
        """TaskManagers whose executor Spark has told to go. Asks Spark."""
        with self._condition:
            groups = {self._groups[index] for index in self._submitted_s}
        try:
            return sorted(group.removeprefix("snapline-") for group in self._host.leaving(groups))
        except Exception as error:  # the session may be gone already
            self._log.debug("Spark does not say which executors go", error=str(error))
            return []

    def replace(self, resource_id: str) -> None:
        """Start another TaskManager in the stead of this one, once; when it ends, nothing more is started for it."""
        with self._condition:
            index = next((i for i in self._submitted_s if self._groups[i] == f"snapline-{resource_id}"), None)
            if index is None or index in self._replaced or self._stopping or self._fatal:
                return
            self._replaced.add(index)
            place, self._places = self._places, self._places + 1
        self._log.info("Spark decommissions the executor of a TaskManager", resource_id=resource_id)
        try:
            self._threads.append(self._host.start_thread(self._keep_alive, place, f"task-manager-pool-{place}"))
        except Exception as error:  # the session may be gone already
            self._log.debug("a TaskManager is not replaced", resource_id=resource_id, error=str(error))

    def end(self, resource_id: str) -> None:
        """Cancel the Spark job of this TaskManager."""
        try:
            self._host.cancel(f"snapline-{resource_id}")
        except Exception as error:  # it may have ended meanwhile
            self._log.debug("cancel of a TaskManager's Spark job failed", resource_id=resource_id, error=str(error))

    # --- up and down --------------------------------------------------------------------------------------------------

    def stop(self, timeout_s: float = 15.0) -> None:
        """Cancel all Spark jobs of the pool and wait for their threads."""
        deadline = time.monotonic() + timeout_s
        with self._condition:
            self._stopping = True
            self._condition.notify_all()
        while True:
            with self._condition:
                groups = [self._groups[index] for index in self._submitted_s]
            for group in groups:
                try:
                    self._host.cancel(group)
                except Exception as error:  # the session may be gone already, and its jobs with it
                    self._log.debug("cancel of a TaskManager's Spark job failed", group=group, error=str(error))
            again = min(deadline, time.monotonic() + CANCEL_AGAIN_S)
            for thread in self._threads:
                thread.join(max(0.0, again - time.monotonic()))
            if again == deadline or not any(thread.is_alive() for thread in self._threads):
                return

    def _keep_alive(self, index: int) -> None:
        pause_s = PAUSE_MIN_S
        while True:
            resource_id = f"tm-{index}-{uuid.uuid4().hex[:12]}"
            with self._condition:
                if self._stopping or self._fatal:
                    return
                self._started += 1
                self._groups[index] = f"snapline-{resource_id}"
                self._submitted_s[index] = time.monotonic()
            begun = time.monotonic()
            outcome = self._run_one(index, resource_id)
            lived_s = time.monotonic() - begun
            with self._condition:
                self._ended += 1
                del self._submitted_s[index]
                self._running.discard(index)
                self._ended_workers[resource_id] = outcome.detail
                self._condition.notify_all()
                if self._is_stopping():
                    return
                if index in self._replaced:
                    self._replaced.discard(index)
                    return
                if outcome.kind == "unusable":
                    self._give_up(outcome.detail)
                    return
                if outcome.kind == "stopped" and self._declarative:
                    self._log.info("TaskManager is not needed", resource_id=resource_id, detail=outcome.detail)
                    self._rest()
                    continue
                self._quick_ends = self._quick_ends + 1 if lived_s < QUICK_END_S else 0
                if self._quick_ends >= QUICK_ENDS_MAX * self._settings.task_managers:
                    self._give_up(f"TaskManagers keep ending right after their start; the last: {outcome.detail}")
                    return
                pause_s = min(pause_s * 2, PAUSE_MAX_S) if lived_s < QUICK_END_S else PAUSE_MIN_S
                self._log.warning(
                    "TaskManager ended, starting another",
                    resource_id=resource_id,
                    outcome=outcome.kind,
                    detail=outcome.detail,
                    lived_s=round(lived_s, 1),
                )
                # the end of another one ends no pause
                self._condition.wait_for(lambda: self._stopping or self._fatal, pause_s)

    def _rest(self) -> None:
        """Until one more TaskManager is wanted, or the pool stops. With the condition held."""
        self._resting += 1
        while not self._wanted and not self._stopping and not self._fatal:
            self._condition.wait()
        self._wanted = max(0, self._wanted - 1)
        self._resting -= 1

    def _is_stopping(self) -> bool:
        return self._stopping

    def _give_up(self, why: str) -> None:
        self._fatal = self._fatal or why
        self._condition.notify_all()

    def _run_one(self, index: int, resource_id: str) -> TaskManagerExit:
        token = "" if self._settings.token_from_spark else self._settings.security.current().token
        launch = TaskManagerLaunch(
            resource_id=resource_id,
            coordinator_address=self._settings.coordinator_address,
            slots=self._settings.slots,
            python_version=(sys.version_info[0], sys.version_info[1]),
            settings=self._settings.settings,
            token=task_manager_token(token, resource_id),
            token_from_spark=self._settings.token_from_spark,
            packages=self._settings.packages,
            stays_when_idle=self._settings.stay_when_idle,
            failures_are_told=self._settings.failures_are_told,
        )
        try:
            results = self._host.run_task_manager(launch, f"snapline-{resource_id}")
        except (
            Exception
        ) as error:  # Spark reports a killed worker, a lost executor and a cancelled job all the same way
            return TaskManagerExit(resource_id, *_judge(error, self._host.python))
        return results[0] if results else TaskManagerExit(resource_id, "failed", "the task returned nothing")


def _judge(error: Exception, python: str) -> tuple[str, str]:
    """What an exception of the Spark job means: kind and detail of a TaskManagerExit."""
    text = str(error)
    if "No module named 'snapline" in text:
        return "unusable", (
            f"the executors' Python {python!r} cannot import Snapline: install it there, or ship an environment with --archives "
            "and set spark.pyspark.python to its Python"
        )
    if (refused := re.search(r'Cannot run program "([^"]+)"[^\n]*', text)) is not None:
        return "unusable", (
            f"the executors cannot start their Python: {refused[0][:200]}: set spark.pyspark.python to one that is there"
        )
    if "PYTHON_VERSION_MISMATCH" in text:
        return "unusable", (
            f"the executors' Python {python!r} is of another version than the driver's {sys.version_info[0]}."
            f"{sys.version_info[1]} ({sys.executable}): set PYSPARK_PYTHON or spark.pyspark.python to one of the same version"
        )
    return "failed", _first_line(error)


def _first_line(error: Exception) -> str:
    text = str(error)
    for line in text.splitlines():
        if "ModuleNotFoundError" in line or "exit code" in line or "crashed" in line:
            return line.strip()[:300]
    return f"{type(error).__name__}: {text.splitlines()[0] if text else ''}"[:300]


__all__ = ["PoolSettings", "TaskManagerPool", "TaskManagersUnavailable"]
