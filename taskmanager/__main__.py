"""`python -m snapline.taskmanager --coordinator HOST:PORT --slots 2`: a TaskManager as a process of its own, without
Spark.

Ends on SIGTERM and SIGINT, when the coordinator releases it, and when it cannot go on (exit code 1). The shared secret
comes from the settings (`SNAPLINE_CONF_security__auth__token`), not from the command line.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import os
import signal
import sys
import threading
import uuid
from collections.abc import Sequence
from pathlib import Path

from snapline.dataflow.columnar.compiler_pages import give_compiler_pages_back
from snapline.dataflow.columnar.kernel import compile_kernels_at_once
from snapline.dataflow.config import COORDINATOR_ADDRESS, LOG_LEVEL, SECURITY_TOKEN, TASKMANAGER_SLOTS, Configuration
from snapline.dataflow.errors import SnaplineError
from snapline.runtime.logs import capture_standard_logging, make_logger
from snapline.runtime.open_files import raise_file_limit
from snapline.runtime.recent_output import RecentOutput
from snapline.runtime.rpc.grpc_polling import import_grpc_with_few_wake_ups
from snapline.runtime.rpc.security import task_manager_token
from snapline.runtime.settings import Setting, command_line_layers, resolve, restart_without_secrets
from snapline.taskmanager.task_manager_config import TaskManagerConfig

PRELOADED = (
    "snapline.taskmanager.operators.factory",
    "snapline.dataflow.columnar.key_partition",
    "snapline.taskmanager.state.keyed_backend",
)
"""What stateful tasks need, compiled kernels included: they are there before the first task, which would wait a second
for them."""


def preload() -> None:
    """Import it. What cannot be imported fails again in the task, which has somebody to tell."""
    compile_kernels_at_once()
    for module in PRELOADED:
        with contextlib.suppress(Exception):
            importlib.import_module(module)
    give_compiler_pages_back()


def main(arguments: Sequence[str] | None = None, secrets: dict[str, str] | None = None) -> int:
    """Run a TaskManager until it is told to stop; returns the exit code. `secrets`: variables that were taken out of
    the environment; it is emptied."""
    parser = argparse.ArgumentParser(prog="python -m snapline.taskmanager", description="Run one TaskManager.")
    parser.add_argument("--coordinator", metavar="HOST:PORT", help="default: jobmanager.rpc.address")
    parser.add_argument("--slots", type=int, help="default: taskmanager.numberOfTaskSlots")
    parser.add_argument("--resource-id", default="", help="default: drawn")
    parser.add_argument("--bind-host", default="", help="default: the address from which the coordinator is reached")
    parser.add_argument("--config", metavar="FILE", type=Path, help="TOML file with settings")
    parser.add_argument("-D", dest="settings", metavar="KEY=VALUE", action="append", default=[], help="one setting")
    given = parser.parse_args(arguments)
    try:
        config = _configure(given, secrets or {})
    except SnaplineError as error:
        print(f"taskmanager: {error}", file=sys.stderr)
        return 1
    raise_file_limit()
    with RecentOutput() as recent:
        return _run(config, recent)


def _run(config: TaskManagerConfig, recent: RecentOutput) -> int:
    import_grpc_with_few_wake_ups()
    from snapline.taskmanager.task_manager_process import run_task_manager

    level = Configuration(config.settings).get_option(LOG_LEVEL)
    capture_standard_logging(make_logger("taskmanager", level))
    stopping = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        # the handler runs on the thread that waits for the event, maybe while it holds the event's lock
        signal.signal(number, lambda *_: threading.Thread(target=stopping.set, name="stop").start())
    threading.Thread(target=preload, name="preload", daemon=True).start()
    outcome = run_task_manager(config, stopping.is_set, bell=stopping, recent=recent)
    if not outcome.clean:
        print(f"taskmanager: {outcome.detail}", file=sys.stderr)
    return 0 if outcome.clean else 1


def _configure(given: argparse.Namespace, secrets: dict[str, str]) -> TaskManagerConfig:
    """What the settings say. The cluster's secret is forgotten: functions of users can read all memory of this
    process. Raises SnaplineError."""
    layers = command_line_layers({**os.environ, **secrets}, given.config, given.settings)
    secrets.clear()
    if given.coordinator:
        layers.append({COORDINATOR_ADDRESS.key: Setting(given.coordinator, "--coordinator")})
    configuration = resolve(*layers)
    resource_id = given.resource_id or f"tm-{uuid.uuid4().hex[:12]}"
    token = configuration.get_option(SECURITY_TOKEN)
    return TaskManagerConfig(
        resource_id=resource_id,
        coordinator_address=configuration.get_option(COORDINATOR_ADDRESS),
        slots=given.slots or configuration.get_option(TASKMANAGER_SLOTS),
        token=task_manager_token(token, resource_id) if token else "",
        settings={key: value for key, value in configuration.items() if key != SECURITY_TOKEN.key},
        bind_host=given.bind_host,
    )


if __name__ == "__main__":
    sys.exit(main(secrets=restart_without_secrets(os.environ)))
