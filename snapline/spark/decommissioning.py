"""Drains TaskManagers whose executor Spark has told to go (`spark.decommission.enabled`), so that their tasks move by a
rescale and not by a failure.

A thread of the driver. Each of them gets another one in its stead at once, which begins when Spark has a core for it;
then the coordinator is asked to drain it, which waits for slots elsewhere; then its Spark job ends, so that the
executor has nothing left to wait for. What cannot be drained in time (no free core, no coordinator) is lost with its
executor, and its tasks go on from the latest checkpoint, as after any loss. It does not know how Spark says which
executors go; that is the host's to know.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import Protocol

from snapline.dataflow.errors import SnaplineError
from snapline.runtime.logs import Logger

INTERVAL_S = 1.0
AGAIN_S = 5.0
"""A TaskManager that cannot be drained is tried again after this."""


class Drains(Protocol):
    """What is needed of a ClusterClient."""

    def drain_task_manager(self, resource_id: str) -> list[str]:
        """Move what runs there elsewhere; returns the jobs. Raises SnaplineError when one cannot leave."""
        ...

    def close(self) -> None:
        """Close the connection, which ends a call."""
        ...


class PoolWithExecutors(Protocol):
    """What is needed of a TaskManagerPool."""

    def leaving(self) -> list[str]: ...

    def replace(self, resource_id: str) -> None: ...

    def end(self, resource_id: str) -> None: ...


class Decommissioning:
    """Starts with `start`, ends with `stop`."""

    def __init__(self, pool: PoolWithExecutors, connect: Callable[[], Drains], logger: Logger) -> None:
        """`connect` may raise SnaplineError while nobody leads."""
        self._pool = pool
        self._connect = connect
        self._log = logger
        self._stopping = threading.Event()
        self._coordinator: Drains | None = None
        self._refused: dict[str, str] = {}
        """Why those are still there whose drain was asked for, by resource id."""
        self._thread = threading.Thread(target=self._run, name="decommissioning", daemon=True)

    def start(self) -> None:
        """Start the thread; the call returns at once."""
        self._thread.start()

    def stop(self, timeout_s: float = 5.0) -> None:
        """End a drain that waits, and the thread."""
        self._stopping.set()
        coordinator = self._coordinator
        if coordinator is not None:
            coordinator.close()
        if self._thread.is_alive():
            self._thread.join(timeout_s)

    def _run(self) -> None:
        while not self._stopping.wait(AGAIN_S if self._refused else INTERVAL_S):
            self.turn()

    def turn(self) -> None:
        """Look which have to go; replace all of them, and drain one after the other."""
        leaving = self._replace_all()
        self._refused = {resource_id: why for resource_id, why in self._refused.items() if resource_id in leaving}
        for resource_id in leaving:
            if not self._stopping.is_set():
                self._drain(resource_id)

    def _replace_all(self) -> list[str]:
        leaving = self._pool.leaving()
        for resource_id in leaving:
            self._pool.replace(resource_id)
        return leaving

    def _drain(self, resource_id: str) -> None:
        try:
            coordinator = self._coordinator = self._connect()
            try:
                moved = self._wait_for_drain(coordinator, resource_id)
            finally:
                self._coordinator = None
                coordinator.close()
        except SnaplineError as error:
            if self._refused.get(resource_id) != str(error) and not self._stopping.is_set():
                self._log.warning(
                    "Spark decommissions the executor of a TaskManager that cannot be drained yet",
                    resource_id=resource_id,
                    reason=str(error),
                )
            self._refused[resource_id] = str(error)
            return
        self._refused.pop(resource_id, None)
        self._log.info("TaskManager has left an executor that Spark decommissions", resource_id=resource_id, jobs=moved)
        self._pool.end(resource_id)

    def _wait_for_drain(self, coordinator: Drains, resource_id: str) -> list[str]:
        """Return the jobs that have moved. Others that are told to go meanwhile are replaced at once."""
        moved: Future[list[str]] = Future()

        def ask() -> None:
            try:
                moved.set_result(coordinator.drain_task_manager(resource_id))
            except BaseException as error:  # it is raised again below
                moved.set_exception(error)

        threading.Thread(target=ask, name="drain", daemon=True).start()
        while not wait([moved], INTERVAL_S).done:
            self._replace_all()
        return moved.result()
