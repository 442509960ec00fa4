"""Between a pool of TaskManagers and the coordinator they work for: what can be had goes there, what is needed comes
back.

A thread of the driver. The ResourceManager hears how many slots there can be and why not more, so that a job that needs
more says so instead of waiting in silence; it hears of each TaskManager whose Spark job has ended; and the pool hears
what is required and registered (declarative, as in Flink: totals, never single requests). A coordinator that does not
answer is asked again: a pool outlives leaders. Where jobs need more than there can be, the driver's log says it, too.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Mapping
from typing import Protocol

from snapline.dataflow.errors import SnaplineError
from snapline.runtime.logs import Logger
from snapline.spark import decommissioning
from snapline.spark.pool import Capacity

INTERVAL_S = 1.0
WARN_AFTER_S = 10.0
"""A shortage that is over before is not spoken of."""
REPEAT_S = 5.0
"""A new leader knows nothing of what the last one was told."""


class RequiredResources(Protocol):
    """How many slots all jobs together require, and how many there are."""

    required_slots: int
    registered_slots: int


class Coordinator(Protocol):
    """What is needed of a ClusterClient."""

    def report_workers(
        self, launcher_id: str, available_slots: int, reason: str, ended: Mapping[str, str], *, closed: bool = False
    ) -> None:
        """Say what can be started and which workers have ended. Raises SnaplineError."""
        ...

    def required_resources(self) -> RequiredResources:
        """Return how many slots are required and registered. Raises SnaplineError."""
        ...

    def drain_task_manager(self, resource_id: str) -> list[str]:
        """Move what runs there elsewhere; returns the jobs. Raises SnaplineError when one cannot leave."""
        ...

    def close(self) -> None:
        """Close the connection to the coordinator."""
        ...


class Pool(decommissioning.PoolWithExecutors, Protocol):
    """What is needed of a TaskManagerPool."""

    def capacity(self) -> Capacity: ...

    def take_ended(self) -> dict[str, str]: ...

    def put_back_ended(self, ended: Mapping[str, str]) -> None: ...

    def follow(self, required_slots: int, registered_slots: int) -> None: ...

    def wait_for_end(self, timeout_s: float) -> None: ...


class WorkerReports:
    """Starts with `start`; `stop` says that the pool brings nothing any more."""

    def __init__(self, pool: Pool, connect: Callable[[], Coordinator], logger: Logger) -> None:
        """`connect` may raise SnaplineError while nobody leads."""
        self._pool = pool
        self._connect = connect
        self._log = logger
        self._launcher_id = uuid.uuid4().hex
        self._stopping = threading.Event()
        self._coordinator: Coordinator | None = None
        self._said: Capacity | None = None
        self._said_s = 0.0
        self._short_since_s: float | None = None
        self._short: tuple[int, int] | None = None
        """Required and available, when that was logged."""
        self._thread = threading.Thread(target=self._run, name="worker-reports", daemon=True)
        self._decommissioning = decommissioning.Decommissioning(pool, connect, logger)

    def start(self) -> None:
        """Start the thread that reports; the call returns at once."""
        self._thread.start()
        self._decommissioning.start()

    def stop(self, timeout_s: float = 5.0) -> None:
        """The pool must have been told to stop before: it wakes us."""
        self._stopping.set()
        self._decommissioning.stop(timeout_s)
        if self._thread.is_alive():
            self._thread.join(timeout_s)

    def _run(self) -> None:
        while not self._stopping.is_set():
            self.turn(time.monotonic())
            self._pool.wait_for_end(INTERVAL_S)
        if self._coordinator is not None:
            try:
                self._coordinator.report_workers(self._launcher_id, 0, "", self._pool.take_ended(), closed=True)
            except SnaplineError as error:
                self._log.debug("the coordinator is gone before its TaskManagers", reason=str(error))
            self._coordinator.close()

    def turn(self, now_s: float) -> None:
        """Look at the pool, tell, ask."""
        capacity = self._pool.capacity()
        ended = self._pool.take_ended()
        try:
            if self._coordinator is None:
                self._coordinator = self._connect()
            if ended or capacity != self._said or now_s - self._said_s >= REPEAT_S:
                self._coordinator.report_workers(self._launcher_id, capacity.slots, capacity.reason, ended)
                self._said, self._said_s, ended = capacity, now_s, {}
            needed = self._coordinator.required_resources()
        except SnaplineError as error:
            self._pool.put_back_ended(ended)
            self._log.debug("no coordinator to report to", reason=str(error))
            return
        self._pool.follow(needed.required_slots, needed.registered_slots)
        self._warn(needed.required_slots, capacity, now_s)

    def _warn(self, required: int, capacity: Capacity, now_s: float) -> None:
        """Once for each shortage that lasts: executors of a slow cluster come one by one."""
        short = (required, capacity.slots) if required > capacity.slots else None
        if short is None:
            self._short_since_s = self._short = None
            return
        if self._short_since_s is None:
            self._short_since_s = now_s
        if short != self._short and now_s - self._short_since_s >= WARN_AFTER_S:
            self._short = short
            self._log.warning(
                "jobs need more slots than Spark gives",
                required=required,
                available=capacity.slots,
                reason=capacity.reason,
            )
