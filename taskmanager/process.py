"""One TaskManager as a process body: what runs inside the one task of a Spark job, or as `python -m snapline.taskmanager`.

`run_task_manager` returns when the TaskManager has ended, and leaves nothing behind: no server, no thread, no connection, because
Spark uses the process again. When a task is stuck in user code that cannot be interrupted, the process itself is ended, hard.
Heavy libraries are imported when the first task needs them: an idle TaskManager is small.
"""

from __future__ import annotations

import os
import socket
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from snapline.dataflow.config import LOG_LEVEL, SECURITY_TOKEN, Configuration
from snapline.dataflow.errors import SnaplineError
from snapline.runtime.logs import make_logger
from snapline.runtime.version import VERSION

if TYPE_CHECKING:
    from snapline.taskmanager.task_manager import TaskManager

EXIT_STUCK = 70
"""Exit code of a process that had to be ended hard."""
POLL_SECONDS = 0.2


@dataclass(frozen=True)
class TaskManagerConfig:
    """What one TaskManager is started with."""

    resource_id: str
    """One incarnation; never used twice."""
    coordinator_address: str
    """host:port; several, separated by commas, where several coordinators stand by."""
    slots: int
    token: str = ""
    settings: Mapping[str, str] = field(default_factory=dict)
    executor_id: str = ""
    log_url: str = ""
    bind_host: str = ""
    """Where the data server listens; empty: the address from which the coordinator is reached."""

    @property
    def configuration(self) -> Configuration:
        """Settings with the token. Raises ConfigurationError."""
        configuration = Configuration(self.settings)
        return configuration.with_values({SECURITY_TOKEN.key: self.token}) if self.token else configuration

    @property
    def addresses(self) -> tuple[str, ...]:
        """Of all coordinators."""
        return tuple(address.strip() for address in self.coordinator_address.split(",") if address.strip())


@dataclass(frozen=True)
class TaskManagerOutcome:
    """How a TaskManager ended."""

    clean: bool
    """Told to, or not needed; False: it could not go on."""
    detail: str


def run_task_manager(
    config: TaskManagerConfig,
    should_stop: Callable[[], bool] = lambda: False,
    exit_hard: Callable[[int], None] = os._exit,
) -> TaskManagerOutcome:
    """Run until the coordinator does not need it any more, `should_stop` says so, or it cannot go on."""
    from snapline.taskmanager.task_manager import TaskManager

    logger = make_logger("taskmanager", Configuration(config.settings).get_option(LOG_LEVEL)).bind(
        resource_id=config.resource_id
    )
    ended = threading.Event()
    try:
        manager = TaskManager(config, logger, on_ended=ended.set)
    except SnaplineError as error:
        return TaskManagerOutcome(clean=False, detail=str(error))
    try:
        manager.start()
        while not ended.wait(POLL_SECONDS):
            if should_stop():
                manager.request_shutdown("the host ends it")
                ended.wait(POLL_SECONDS * 10)
                break
    finally:
        _stop(manager, exit_hard)
    outcome = manager.outcome
    logger.info("TaskManager ended", clean=outcome.clean, detail=outcome.detail)
    return outcome


def _stop(manager: TaskManager, exit_hard: Callable[[int], None]) -> None:
    stuck = manager.stop()
    if stuck:
        print(f"taskmanager: tasks do not end, ending the process: {', '.join(stuck)}", file=sys.stderr, flush=True)  # noqa: T201
        exit_hard(EXIT_STUCK)


def host_towards(address: str) -> str:
    """The address of this machine from which packets to `address` leave; no packet is sent. Raises SnaplineError."""
    host, _, port = address.rpartition(":")
    try:
        family, _, _, _, target = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect(target)
            return str(probe.getsockname()[0])
    except (OSError, ValueError) as error:
        raise SnaplineError(f"not the address of a coordinator: {address!r} ({error})") from error


__all__ = ["VERSION", "TaskManagerConfig", "TaskManagerOutcome", "host_towards", "run_task_manager"]
