"""`execute(local=True)` and `snapline run --local`: whether a job runs here, and running it to its end.

What belongs to clusters is left aside: addresses of coordinators, high availability, numbers of TaskManagers. Settings
of the job count. This module loads nothing of the engine before a job runs here.
"""

from __future__ import annotations

import atexit
import gc
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

from snapline.dataflow.errors import JobDefinitionError
from snapline.reporting import tell
from snapline.runtime.logs import TASK_FAILED

if TYPE_CHECKING:
    from snapline.environment import StreamExecutionEnvironment
    from snapline.job_handle import JobHandle
    from snapline.job_result import JobExecutionResult
    from snapline.local.local_job import LocalJob
    from snapline.protos import client_pb2 as pb

LOCAL_VARIABLE = "SNAPLINE_LOCAL"
"""Set by `snapline run --local`, to the number of threads: jobs that do not say where they run do so here."""


def is_local(asked: bool | None, threads: int | None) -> bool:
    """Whether a job runs in this process. Raises JobDefinitionError for threads of one that does not."""
    here = bool(os.environ.get(LOCAL_VARIABLE)) if asked is None else asked
    if threads is not None and not here:
        raise JobDefinitionError(f"threads={threads} is for local runs: give local=True, too, or leave it out")
    return here


def threads_of(asked: int | None) -> int:
    """How many threads a local run has. Raises JobDefinitionError."""
    if asked is None:
        variable = os.environ.get(LOCAL_VARIABLE) or "1"
        if not variable.isdecimal():
            raise JobDefinitionError(f"{LOCAL_VARIABLE} is the number of threads of a local run, got {variable!r}")
        asked = int(variable)
    if not isinstance(asked, int) or asked < 1:
        raise JobDefinitionError(f"a local run needs a whole number of threads, at least 1, got threads={asked!r}")
    return asked


@contextmanager
def _loading() -> Iterator[None]:
    """Within, modules are loaded, of which nothing is garbage: the collector does not look for it, and not again when
    the process ends, which was a tenth of the run of a small job."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _keep_until_the_process_ends() -> None:
    """Collect what is garbage, and leave everything else to the end of the process."""
    gc.collect()
    gc.freeze()


def open_local_job(environment: StreamExecutionEnvironment, job_name: str, threads: int) -> LocalJob:
    """The environment's job, about to run here. Raises a SnaplineError that says why it cannot."""
    if "snapline.local.local_job" not in sys.modules:
        atexit.register(_keep_until_the_process_ends)
    with _loading():
        from snapline.execution import hand_over_translation
        from snapline.local.local_job import LocalJob

    hand_over_translation(environment, job_name)
    translation = environment.translate(job_name, configuration=environment.configuration)
    if translation.job_graph.savepoint_restore.path:
        from snapline.engine_state import check_engine_state

        check_engine_state(translation.job_graph)
    environment.job_files.take_here()
    logger = ConsoleLogger()
    for warning in translation.warnings:
        logger.warning(warning)
    return LocalJob(translation.job_graph, threads, logger, environment.job_files.in_use)


def teller_of(rows: Any) -> Callable[[pb.JobDetails], None]:
    """What notes the rows that a job here has read, and tells what has failed in it and is tried again."""
    from snapline.job_news import JobNews, print_news

    news = JobNews(is_quiet=True, has_bar=False)

    def note(details: pb.JobDetails) -> None:
        rows.note(details)
        print_news(news, details, rows.total)

    return note


def execute_locally(environment: StreamExecutionEnvironment, job_name: str, threads: int) -> JobExecutionResult:
    """Run the environment's job to its end on this thread. Raises JobFailed, whose cause is what a user's function has
    raised."""
    from snapline.execution import queries_of
    from snapline.rows_read import RowsRead

    rows = RowsRead()
    with open_local_job(environment, job_name, threads) as job, queries_of(environment, job.job_graph.job_id):
        job.run(on_change=teller_of(rows))
        return result_of_local(job, rows)


def start_locally(environment: StreamExecutionEnvironment, job_name: str, threads: int) -> JobHandle:
    """Run the environment's job here while the program goes on, on threads of its own."""
    from snapline.execution import queries_of
    from snapline.job_handle import JobHandle
    from snapline.local.local_client import LocalClient
    from snapline.rows_read import RowsRead

    job = open_local_job(environment, job_name, threads)
    job_id = job.job_graph.job_id
    with ExitStack() as stack:
        job.__enter__()
        client = LocalClient(job)
        stack.callback(client.close)
        stack.enter_context(queries_of(environment, job_id))
        job.run_in_background(on_change=teller_of(RowsRead()))
        close = stack.pop_all().close
    return JobHandle(job_id, job_name, client, close, error=lambda: job.error, ends_with_program=True)


def result_of_local(job: LocalJob, rows: Any) -> JobExecutionResult:
    """How a job went that has ended. Raises JobFailed unless it is FINISHED."""
    from snapline.client import raise_unless_finished
    from snapline.job_result import result_of

    details = job.details()
    raise_unless_finished(details, job.error)
    return result_of(details, rows.total)


class ConsoleLogger:
    """What a local run has to say besides its results: warnings, in a line each, on standard error."""

    def warning(self, event: str, **context: Any) -> None:
        """Print the event and its context; why a task fails is told as news of the job."""
        if event == TASK_FAILED:
            return
        said = "".join(f"  {key}={value}" for key, value in context.items())
        tell(f"snapline: {event}{said}")

    error = warning

    def info(self, event: str, **context: Any) -> None:
        """Print nothing, because nobody looks at a console for this."""

    debug = info
