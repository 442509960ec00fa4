"""`execute()`: run one job to its end, here or on a coordinator that is running already.

Shows progress on a terminal, checks that the job still has what it needs while it waits, and turns the end into a
JobExecutionResult or a JobFailed.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from snapline.client import ClusterClient, CoordinatorUnreachable, RequestRefused, raise_unless_finished
from snapline.dataflow.config import COORDINATOR_ADDRESS, HA_TYPE, LOG_LEVEL, Configuration
from snapline.dataflow.errors import JobDefinitionError
from snapline.dataflow.graph.jobgraph import JobGraph
from snapline.dataflow.ids import JobID
from snapline.dataflow.wire.codec import decode_job_status
from snapline.interrupts import interrupt_only_raises
from snapline.job_handle import JobHandle
from snapline.job_news import JobNews, print_news
from snapline.job_result import JobExecutionResult, result_of
from snapline.protos import client_pb2 as pb
from snapline.rows_read import RowsRead
from snapline.runtime.cores.machine import check

if TYPE_CHECKING:
    from snapline.dataflow.graph.translation import Translation
    from snapline.environment import StreamExecutionEnvironment
    from snapline.session import EmbeddedCluster

CHECK_INTERVAL_S = 0.5
DETACHED_VARIABLE = "SNAPLINE_DETACHED"
"""Set by `snapline run --detached`: `execute` returns once the job is accepted."""


class ProgramAborted(BaseException):
    """`execute` was called where only the translation is wanted. No Exception, so that a program that catches those
    ends."""


@dataclass
class _Interception:
    """What `execute` does in this process. It belongs to the process and not to a context, because a script may execute
    on a thread of its own."""

    translations: list[Translation] | None = None
    """Where `execute` puts translations instead of running them; None: it runs them."""
    thread: threading.Thread | None = None
    """The thread that is within `translating_only`."""
    threads_of_scripts: WeakSet[threading.Thread] = field(default_factory=WeakSet)
    """Threads that scripts which were only translated have left behind: what they execute never runs."""


_INTERCEPTION = _Interception()


@contextmanager
def translating_only() -> Iterator[list[Translation]]:
    """Within, `execute` on any thread of the process puts the translation into the list and raises ProgramAborted (on
    other threads SystemExit, which ends them silently); nothing is started anywhere. A thread that was started within
    and goes on after it can start nothing either. Only one thread may be within."""
    before = set(threading.enumerate())
    check(_INTERCEPTION.translations is None, "one script at a time is translated in a process")
    collected: list[Translation] = []
    _INTERCEPTION.translations, _INTERCEPTION.thread = collected, threading.current_thread()
    try:
        yield collected
    finally:
        _INTERCEPTION.threads_of_scripts.update(set(threading.enumerate()) - before)
        _INTERCEPTION.translations = _INTERCEPTION.thread = None


def translates_only() -> bool:
    """Whether this runs within `translating_only`, where nothing is computed for a job."""
    return _INTERCEPTION.translations is not None or threading.current_thread() in _INTERCEPTION.threads_of_scripts


def hand_over_translation(environment: StreamExecutionEnvironment, job_name: str) -> None:
    """Within `translating_only`, nothing is executed: raises ProgramAborted, on a thread of the script SystemExit."""
    collected, thread = _INTERCEPTION.translations, threading.current_thread()
    if collected is not None:
        collected.append(environment.translate(job_name, configuration=environment.configuration))
        raise ProgramAborted if thread is _INTERCEPTION.thread else SystemExit
    if thread in _INTERCEPTION.threads_of_scripts:
        raise SystemExit


def execute(environment: StreamExecutionEnvironment, job_name: str) -> JobExecutionResult:
    """Run the environment's job. Raises JobFailed, or what stopped it from starting."""
    hand_over_translation(environment, job_name)
    from snapline.engine_state import check_engine_state
    from snapline.session import EmbeddedCluster, open_spark, slots_required, stop_spark

    configuration = environment.configuration
    if COORDINATOR_ADDRESS.key in configuration or configuration.get_option(HA_TYPE) == "zookeeper":
        environment.job_files.refuse_service()
        translation = environment.translate(job_name, configuration=configuration)
        logger = _logger(configuration, translation.warnings)
        with ClusterClient.from_configuration(configuration) as client:
            check_engine_state(translation.job_graph)
            if os.environ.get(DETACHED_VARIABLE):
                _refuse_queries(environment)
                job_id = client.submit(translation.job_graph)
                print(job_id)  # noqa: T201 - the answer of `snapline run --detached`, for whoever cancels it later
                return JobExecutionResult(JobID(job_id), job_name, "CREATED", 0, 0, 0, 0)
            with queries_of(environment, translation.job_graph.job_id):
                job_id = client.submit(translation.job_graph)
                logger.info("job submitted", job_id=job_id, job=job_name)
                return _follow(client, translation.job_graph, lambda: None)
    environment.translate(
        job_name, configuration=configuration
    )  # what is wrong with the job is said before Spark starts
    spark = open_spark(job_name, for_cluster=True)
    try:
        configuration = environment.configuration_with(spark.settings)
        translation = environment.translate(job_name, configuration=configuration)
        logger = _logger(configuration, translation.warnings)
        packages = environment.job_files.hand_to_spark(spark.host)
        slots = slots_required(translation.job_graph)
        cluster = EmbeddedCluster(spark, configuration, slots, logger, packages=packages, failures_are_told=True)
    except BaseException:
        if spark.ours:
            stop_spark(spark)
        raise
    with cluster:
        return run_in(cluster, translation.job_graph, queries=lambda job_id: queries_of(environment, job_id))


def queries_of(environment: StreamExecutionEnvironment, job_id: str) -> AbstractContextManager[None]:
    """Run the queries of the environment's streaming DataFrames within, for this job."""
    if not environment.streamed_frames:
        return nullcontext()
    from snapline.spark.streaming_frames import running_queries

    return running_queries(environment.streamed_frames, job_id)


def _refuse_queries(environment: StreamExecutionEnvironment) -> None:
    for streamed in environment.streamed_frames:
        raise JobDefinitionError(f"{streamed.what}: its query runs in this program, so it cannot run detached")


def start(environment: StreamExecutionEnvironment, job_name: str) -> JobHandle:
    """Start the environment's job, and go on; one that was left behind goes on instead, as in `run_in`. Raises what
    stops it from starting."""
    hand_over_translation(environment, job_name)
    from snapline.engine_state import check_engine_state
    from snapline.session import EmbeddedCluster, open_spark, slots_required, stop_spark

    configuration = environment.configuration
    if COORDINATOR_ADDRESS.key in configuration or configuration.get_option(HA_TYPE) == "zookeeper":
        environment.job_files.refuse_service()
        translation = environment.translate(job_name, configuration=configuration)
        _logger(configuration, translation.warnings)
        client = ClusterClient.from_configuration(configuration)
        kept = ExitStack()
        try:
            kept.callback(client.close)
            check_engine_state(translation.job_graph)
            kept.enter_context(queries_of(environment, translation.job_graph.job_id))
            job_id = client.submit(translation.job_graph)
            ends_with_program = bool(environment.streamed_frames)
            return JobHandle(job_id, job_name, client, kept.close, ends_with_program=ends_with_program)
        except BaseException:
            kept.close()
            raise
    environment.translate(job_name, configuration=configuration)
    spark = open_spark(job_name, for_cluster=True)
    cluster, kept = None, ExitStack()
    try:
        configuration = environment.configuration_with(spark.settings)
        translation = environment.translate(job_name, configuration=configuration)
        logger = _logger(configuration, translation.warnings)
        packages = environment.job_files.hand_to_spark(spark.host)
        slots = slots_required(translation.job_graph)
        cluster = EmbeddedCluster(spark, configuration, slots, logger, packages=packages)
        cluster.__enter__()
        if cluster.client is None:
            raise RuntimeError("the cluster was not entered")
        left = _left_behind(cluster, translation.job_graph) if environment.goes_on else ""
        job_id = left or translation.job_graph.job_id
        kept.callback(cluster.close)
        if not left:
            check_engine_state(translation.job_graph)
        kept.enter_context(queries_of(environment, job_id))
        if not left:
            cluster.client.submit(translation.job_graph)
        return JobHandle(job_id, job_name, cluster.client, kept.close, check=cluster.check, ends_with_program=True)
    except BaseException:
        kept.close()
        if cluster is not None:
            cluster.close()
        elif spark.ours:
            stop_spark(spark)
        raise


def run_in(
    cluster: EmbeddedCluster,
    job_graph: JobGraph,
    on_change: Callable[[pb.JobDetails], None] | None = None,
    *,
    queries: Callable[[str], AbstractContextManager[None]] = lambda _: nullcontext(),
) -> JobExecutionResult:
    """Run a job on an embedded cluster that was started. With high availability, a job of that name which a driver that
    died has left behind goes on from its latest checkpoint instead, as it was submitted then (Flink: application
    mode). `queries`: what has to run while the job does, by the id of the job."""
    client = cluster.client
    if client is None:
        raise RuntimeError("the cluster was not entered")
    if left := _left_behind(cluster, job_graph):
        with queries(left):
            return _follow(client, replace(job_graph, job_id=JobID(left)), cluster.check, on_change)
    from snapline.engine_state import check_engine_state

    check_engine_state(job_graph)
    with queries(job_graph.job_id):
        client.submit(job_graph)
        return _follow(client, job_graph, cluster.check, on_change)


def _left_behind(cluster: EmbeddedCluster, job_graph: JobGraph) -> str:
    """The job of this name that a driver which died has left behind, and that goes on: what was computed for the new
    one is deleted. Empty: there is none."""
    if cluster.client is None or not cluster.recovers_jobs:
        return ""
    named = (job for job in cluster.client.list_jobs() if job.name == job_graph.name)
    left = [job for job in named if not decode_job_status(job.status).is_globally_terminal]
    if not left:
        return ""
    said = "goes on with the job that was left behind, as it was submitted then"
    cluster.logger.warning(said, job_id=left[0].job_id, job=job_graph.name)
    _remove_staged(job_graph, cluster.configuration)
    return left[0].job_id


def _remove_staged(job_graph: JobGraph, configuration: Configuration) -> None:
    """Delete what was computed for a job that is never submitted, because the one before it goes on with its own."""
    from snapline.dataflow.errors import SnaplineError
    from snapline.runtime.storage.object_storage import open_storage

    for directory in job_graph.staged_directories:
        parent, _, name = directory.rstrip("/").rpartition("/")
        with suppress(SnaplineError):  # it costs space, and nothing else
            open_storage(parent or "/", configuration).delete_prefix(name)


def _follow(
    client: ClusterClient,
    job_graph: JobGraph,
    check: Callable[[], None],
    on_change: Callable[[pb.JobDetails], None] | None = None,
) -> JobExecutionResult:
    from snapline.progress import ProgressDisplay, rows_expected

    latest: list[pb.JobDetails] = []
    failure: list[BaseException] = []
    rows = RowsRead()
    ended = threading.Event()
    news = JobNews(is_quiet=False, has_bar=sys.stderr.isatty())

    def watch() -> None:
        try:
            for details in client.watch_job(job_graph.job_id):
                latest[:] = [details]
                rows.note(details)
                if on_change:
                    on_change(details)
                display.show(details, rows.total)
                print_news(news, details, rows.total)
        except BaseException as error:
            failure.append(error)
        finally:
            ended.set()

    with ProgressDisplay(job_graph.name, rows_expected(job_graph), sys.stderr) as display:
        watcher = threading.Thread(target=watch, name="job-watch", daemon=True)
        watcher.start()
        try:
            with interrupt_only_raises():
                while not ended.wait(CHECK_INTERVAL_S):
                    check()
        except KeyboardInterrupt:
            became = "was cancelled"
            try:
                client.cancel(job_graph.job_id)
                ended.wait(30)
            except RequestRefused:
                became = "had just ended"
                ended.wait(30)
            except CoordinatorUnreachable as error:
                became = f"goes on, if it runs: {error}"
            raise KeyboardInterrupt(f"job {job_graph.name!r} ({job_graph.job_id}) {became}") from None
    if failure:
        raise failure[0]
    raise_unless_finished(latest[0])
    return result_of(latest[0], rows.total)


def _logger(configuration: Configuration, warnings: tuple[str, ...]) -> Any:
    """To standard error, from WARNING up unless `log.level` is set: what a user's program prints is its own."""
    from snapline.runtime.logs import make_logger

    level = configuration.get_option(LOG_LEVEL) if LOG_LEVEL.key in configuration else "WARNING"
    logger = make_logger("snapline", level)
    for warning in warnings:
        logger.warning(warning)
    return logger
