"""A job that runs while the program goes on: `env.execute_async()`. Mirrors Flink's JobClient.

The handle is the same wherever the job runs: in this process, beside it in its Spark application, or at a service. What
was started for the job here (a coordinator, Spark, the local run) is stopped when the job has ended; a job at a service
goes on without its handle.
"""

from __future__ import annotations

import atexit
import os
import threading
import time
from collections.abc import Callable, Generator
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any

from snapline.client import ClusterClient, CoordinatorUnreachable, RequestRefused, job_status, raise_unless_finished
from snapline.dataflow.arguments import check_whole
from snapline.dataflow.errors import InvalidArgument
from snapline.dataflow.wire.statuses import JobStatus, encode_job_status
from snapline.interrupts import interrupt_only_raises
from snapline.job_metrics import JobMetrics, metrics_of
from snapline.job_result import JobExecutionResult, result_of
from snapline.pictures import Rates
from snapline.protos import client_pb2 as pb
from snapline.reporting import tell
from snapline.rows_read import RowsRead
from snapline.runtime.absolute_paths import absolute_path

if TYPE_CHECKING:
    import pyarrow as pa

    from snapline.local.local_client import LocalClient

CANCEL_SECONDS = 30.0
AWAKE_SECONDS = 0.2
CHECK_SECONDS = 0.5
NOTICED_SECONDS = 1.0


class JobHandle:
    """A job that was started with `execute_async`.

    >>> job = env.execute_async("example", local=True)  # doctest: +SKIP
    >>> job.status, job.wait().status  # doctest: +SKIP
    ('RUNNING', 'FINISHED')
    """

    def __init__(
        self,
        job_id: str,
        name: str,
        client: ClusterClient | LocalClient,
        close: Callable[[], None],
        *,
        error: Callable[[], BaseException | None] = lambda: None,
        check: Callable[[], None] | None = None,
        ends_with_program: bool,
    ) -> None:
        """`close`: stops what was started for the job. `error`: what a task of this process has raised. `check`: raises
        when what was started for the job is gone, and the job with it, whether or not its coordinator knows.
        `ends_with_program`: it cannot go on without this process."""
        self.job_id = job_id
        self.name = name
        self._client = client
        self._close = close
        self._error = error
        self._ends_with_program = ends_with_program
        self._rows = RowsRead()
        self._latest = self._first_details()
        self._checkpoints = pb.ListCheckpointsResponse()
        self._look_at_checkpoints()
        self._broke: BaseException | None = None
        self._ended = threading.Event()
        self._closed = threading.Event()
        self._lock = threading.Lock()
        self._on_end: list[Callable[[], object]] = []
        self._rates = Rates()
        if ends_with_program:
            atexit.register(self._say_that_it_ends)
        threading.Thread(target=self._watch, name=f"job-handle {name}", daemon=True).start()
        if check is not None:
            threading.Thread(target=self._look_after, args=(check,), name=f"job-check {name}", daemon=True).start()

    def _first_details(self) -> pb.JobDetails:
        """What is known of a job that a coordinator has just taken: while another one takes over, that alone."""
        try:
            return self._client.get_job(self.job_id)
        except CoordinatorUnreachable:  # who watches the job waits for the next one, or tells that there is none
            status = encode_job_status(JobStatus.CREATED)
            return pb.JobDetails(overview=pb.JobOverview(job_id=self.job_id, name=self.name, status=status))

    # --- looking ------------------------------------------------------------------------------------------------------

    @property
    def status(self) -> str:
        """CREATED, RUNNING, RESTARTING, FAILING, FAILED, CANCELLING, CANCELED, FINISHED, ..."""
        return job_status(self.details)

    @property
    def has_ended(self) -> bool:
        """Whether the job is over, or could not be followed any more."""
        return self._ended.is_set()

    @property
    def details(self) -> pb.JobDetails:
        """Everything about the job: vertices, subtasks, failures; as it is now, or was at its end."""
        if not self._ended.is_set():
            try:
                latest = self._client.get_job(self.job_id)
            except CoordinatorUnreachable:  # it is being stopped, or another one takes over
                return self._latest
            with self._lock:
                if not self._ended.is_set():  # else this answer is from before its end
                    self._latest = latest
        return self._latest

    def metrics(self) -> JobMetrics:
        """Figures of its tasks, metrics of its functions, and latencies, as they are now or were at its end."""
        return metrics_of(self.details)

    @property
    def checkpoints(self) -> list[pb.CheckpointOverview]:
        """The latest ones, newest first; while no coordinator answers, those that were known last."""
        if not self._ended.is_set():
            self._look_at_checkpoints()
        return list(self._checkpoints.history)

    def _look_at_checkpoints(self) -> None:
        with suppress(CoordinatorUnreachable):  # it is being stopped, or another one takes over
            self._checkpoints = self._client.list_checkpoints(self.job_id)

    def tap(self, uid: str, rows: int = 10, *, max_bytes: int = 65_536) -> pa.Table:
        """Some of the rows that the operator with this uid puts out next, or takes in where nothing goes out: the first
        ones of one batch of each subtask, none if none flow within a second. Raises RequestRefused, also for a job that
        does not run."""
        from snapline.coordinator.leading_keys import table_of

        if not isinstance(uid, str):
            raise InvalidArgument(f"tap takes the uid of an operator, which is a text, got {uid!r}")
        check_whole("tap: rows", rows, 1)
        check_whole("tap: max_bytes", max_bytes, 1)
        return table_of(self._asked.tap(self.job_id, uid, rows=rows, max_bytes=max_bytes), rows)

    # --- control ------------------------------------------------------------------------------------------------------

    def cancel(self) -> None:
        """Cancel the job and wait for its end; none if it has ended."""
        if not self._ended.is_set():
            try:
                self._client.cancel(self.job_id)
            except RequestRefused:  # it has just ended, and is heard of in a moment
                if not self._ended.wait(CANCEL_SECONDS):
                    raise
            except CoordinatorUnreachable:  # the connection ends with the job
                if not self._ended.is_set():
                    raise
            self._ended.wait(CANCEL_SECONDS)

    def savepoint(self, directory: str | os.PathLike[str] = "") -> str:
        """Take a savepoint; its path. A relative directory is one of this process's. Raises RequestRefused when that
        fails."""
        return self._asked.trigger_savepoint(self.job_id, _place_of(directory))

    def stop(self, directory: str | os.PathLike[str] = "", *, drain: bool = False) -> str:
        """Stop the job with a savepoint; its path. `drain`: fire all windows and timers first. A relative directory is
        one of this process's."""
        return self._asked.stop_with_savepoint(self.job_id, _place_of(directory), drain=drain)

    def rescale(self, parallelism: int) -> None:
        """Give all tasks another parallelism; returns when they run again. Raises RequestRefused."""
        self._asked.rescale(self.job_id, parallelism)

    def wait(self, timeout_s: float | None = None) -> JobExecutionResult:
        """Wait for the end of the job. Raises JobFailed unless it is FINISHED, TimeoutError after `timeout_s` seconds;
        Ctrl-C cancels the job, if it cannot go on without this program."""
        try:
            with interrupt_only_raises():
                if not self._ended.wait(timeout_s):
                    raise TimeoutError(f"job {self.name!r} is {self.status} after {timeout_s} s")
        except KeyboardInterrupt:
            if not self._ends_with_program:
                raise
            self.cancel()
            self._closed.wait(CANCEL_SECONDS)  # until what was started for the job is stopped
            raise KeyboardInterrupt(f"job {self.name!r} ({self.job_id}) was cancelled") from None
        self._closed.wait()
        if self._broke is not None:
            raise self._broke
        raise_unless_finished(self._latest, self._error())
        return result_of(self._latest, self._rows.total)

    def __await__(self) -> Generator[Any, None, JobExecutionResult]:
        """`await job`: as `wait`, without holding up the event loop. Who cancels what awaits it, Ctrl-C in a notebook
        say, cancels the job, if it cannot go on without this program."""
        return self._awaited().__await__()

    async def _awaited(self) -> JobExecutionResult:
        import asyncio

        loop = asyncio.get_running_loop()
        ended = asyncio.Event()
        self.call_at_end(lambda: loop.call_soon_threadsafe(ended.set))
        try:
            while not ended.is_set():  # an event loop that sleeps does not notice Ctrl-C
                with suppress(TimeoutError):
                    await asyncio.wait_for(ended.wait(), AWAKE_SECONDS)
        except asyncio.CancelledError:
            if self._ends_with_program and not self._ended.is_set():
                with suppress(RequestRefused, CoordinatorUnreachable):  # it has just ended
                    self._client.cancel(self.job_id)
            raise
        return self.wait()

    def call_at_end(self, function: Callable[[], object]) -> None:
        """Call it once the job has ended, on a thread of the handle; at once, if it has."""
        with self._lock:
            if not self._ended.is_set():
                self._on_end.append(function)
                return
        function()

    def __enter__(self) -> JobHandle:
        """Cancel it at the end of the block, if it still runs."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Cancel the job at the end of the block, and wait for its end."""
        self.cancel()
        self._closed.wait(CANCEL_SECONDS)

    def __repr__(self) -> str:
        """Show the job with its name, its id and its status."""
        return f"<job {self.name!r} ({self.job_id}) {self.status}>"

    def _repr_html_(self) -> str:
        """Draw the job as it is now: its graph with rows a second and back-pressure, and its checkpoints."""
        from snapline.pictures import picture_of_job

        details = self.details
        self._rates.note(details, time.monotonic())
        if not self._ended.is_set():
            self._look_at_checkpoints()
        return picture_of_job(details, self._checkpoints, self._rates)

    def _ipython_display_(self) -> None:
        """Show a picture in a notebook that follows the job until its end."""
        from snapline.notebook import follow

        follow(self)

    @property
    def _asked(self) -> ClusterClient | LocalClient:
        """What asks the job, whose connection ends with it. Raises RequestRefused, or what has broken it."""
        if self._ended.is_set():
            raise self._broke or RequestRefused(f"job {self.name!r} is {self.status}")
        return self._client

    def _watch(self) -> None:
        broke: BaseException | None = None
        last: pb.JobDetails | None = None
        try:
            for last in self._client.watch_job(self.job_id):
                self._latest = last
                self._rows.note(last)
            self._look_at_checkpoints()
        except BaseException as error:  # whoever waits is told
            broke = error
        self._end(broke, last)

    def _look_after(self, check: Callable[[], None]) -> None:
        while not self._ended.wait(CHECK_SECONDS):
            try:
                check()
            except BaseException as error:  # whoever waits is told
                self._end(error)

    def _say_that_it_ends(self) -> None:
        """The program ends, and nobody has waited for the job; one that has just ended is noticed in a moment."""
        if self._ended.wait(NOTICED_SECONDS):
            return
        tell(
            f"snapline: job {self.name!r} ({self.job_id}) ends here, unfinished, with the program: job.wait() waits for it"
        )

    def _end(self, broke: BaseException | None, last: pb.JobDetails | None = None) -> None:
        """Who comes first says how it was. `last`: what was said of the job when it had ended."""
        with self._lock:
            if self._ended.is_set():
                return
            self._broke = broke
            self._latest = self._latest if last is None else last
            self._ended.set()
        atexit.unregister(self._say_that_it_ends)
        try:
            self._close()
        finally:
            self._closed.set()
            for function in self._on_end:
                with suppress(Exception):  # an event loop that was closed meanwhile waits for nothing
                    function()


def _place_of(directory: str | os.PathLike[str] | None) -> str:
    """Where a savepoint goes, as every process understands it; nothing: where the settings say."""
    place = os.fspath(directory) if isinstance(directory, os.PathLike) else "" if directory is None else directory
    if not isinstance(place, str):
        raise InvalidArgument(f"the directory of a savepoint is a path or a URL, got {directory!r}")
    return str(absolute_path(place)) if place and "://" not in place else place
