"""One TaskManager as a process body: what runs inside the one task of a Spark job, or as `python -m
snapline.taskmanager`.

`run_task_manager` returns when the TaskManager has ended, and leaves nothing behind: no server, no thread, no
connection, because Spark uses the process again. When a task is stuck in user code that cannot be interrupted, the
process itself is ended, hard. Heavy libraries are imported when the first task needs them: an idle TaskManager is
small.
"""

from __future__ import annotations

import gc
import os
import sys
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from snapline.dataflow.columnar.kernel import compile_kernels_at_once
from snapline.dataflow.config import LOG_LEVEL, Configuration
from snapline.dataflow.errors import JobDefinitionError, SnaplineError
from snapline.runtime.logs import TASK_FAILED, make_logger
from snapline.runtime.recent_output import RecentOutput
from snapline.taskmanager.task_manager_config import TaskManagerConfig, TaskManagerOutcome

if TYPE_CHECKING:
    from snapline.taskmanager.task_manager import TaskManager

EXIT_STUCK = 70
"""Exit code of a process that had to be ended hard."""
POLL_SECONDS = 1.0
"""How often `should_stop` is asked when nobody says that it has changed."""
SHUTDOWN_SECONDS = 2.0
SWITCH_SECONDS = 0.001
"""After this time a thread that computes in Python lets another one go on that waits for Python's lock. With Python's
own 5 ms a task whose batch has come waits so long for each thread that encodes a snapshot or speaks to the
coordinator."""

GC_THRESHOLDS = (50_000, 10, 10)
"""Rows, requests and lists are containers in no cycles. With Python's own 700 a TaskManager looks for some so often
that a request under way takes a quarter more of CPU, and a row that is added to a list 6 % more."""


def refuse_breakpoint(*_arguments: object, **_options: object) -> None:
    """Fail the job once and for all, because a debugger in this process would wait for a terminal that it has not."""
    raise JobDefinitionError(
        "breakpoint() was reached in a TaskManager, which has no terminal: run the job with `snapline run --local` or "
        "env.execute(name, local=True), where it works, or take it out"
    )


def run_task_manager(
    config: TaskManagerConfig,
    should_stop: Callable[[], bool] = lambda: False,
    exit_hard: Callable[[int], None] = os._exit,
    bell: threading.Event | None = None,
    recent: RecentOutput | None = None,
) -> TaskManagerOutcome:
    """Run until the coordinator does not need it any more, `should_stop` says so, or it cannot go on. Whoever makes
    `should_stop` say so may ring the `bell`, and is heard at once. `recent` is what the process writes."""
    from snapline.taskmanager.task_manager import TaskManager

    compile_kernels_at_once()
    level = Configuration(config.settings).get_option(LOG_LEVEL)
    without = (TASK_FAILED,) if config.failures_are_told else ()
    logger = make_logger("taskmanager", level, without=without).bind(resource_id=config.resource_id)
    ended, bell = threading.Event(), bell or threading.Event()

    def on_ended() -> None:
        ended.set()
        bell.set()

    sys.breakpointhook = refuse_breakpoint
    try:
        manager = TaskManager(config, logger, recent or RecentOutput(), on_ended=on_ended)
    except SnaplineError as error:
        return TaskManagerOutcome(clean=False, detail=str(error))
    switch_seconds, thresholds = sys.getswitchinterval(), gc.get_threshold()
    sys.setswitchinterval(SWITCH_SECONDS)
    gc.set_threshold(*GC_THRESHOLDS)
    try:
        manager.start()
        while not ended.is_set():
            bell.wait(POLL_SECONDS)
            if should_stop():
                manager.request_shutdown("the host ends it")
                ended.wait(SHUTDOWN_SECONDS)
                break
    finally:
        sys.setswitchinterval(switch_seconds)  # Spark uses the process again
        gc.set_threshold(*thresholds)
        _stop(manager, exit_hard)
    outcome = manager.outcome
    logger.info("TaskManager ended", clean=outcome.clean, detail=outcome.detail)
    return outcome


def _stop(manager: TaskManager, exit_hard: Callable[[int], None]) -> None:
    stuck = manager.stop()
    if stuck:
        print(f"taskmanager: tasks do not end, ending the process: {', '.join(stuck)}", file=sys.stderr, flush=True)  # noqa: T201
        exit_hard(EXIT_STUCK)
