"""A whole job within a test: checkpoints, failures, savepoints and another parallelism happen where the test says.

The job is that of `env.execute(local=True)`: coordinator and tasks in this process, on the test's own thread. It goes
on only while the test waits for something, so nothing happens between two lines of a test. Decides what is set for
tests: checkpoints come when they are asked for, and restarts at once, ten at most. Mirrors Flink's
MiniClusterWithClientResource.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any

from snapline.client import RequestRefused, job_status
from snapline.connectors.builtin.collection import CollectSink
from snapline.dataflow.config import CHECKPOINTING_INTERVAL, CHECKPOINTS_DIRECTORY, SAVEPOINT_DIRECTORY
from snapline.dataflow.errors import JobDefinitionError
from snapline.dataflow.failures import Blame, SerializedFailure
from snapline.environment import StreamExecutionEnvironment
from snapline.job_result import JobExecutionResult
from snapline.local.local_client import LocalClient
from snapline.local.local_execution import open_local_job, result_of_local
from snapline.protos import client_pb2 as pb
from snapline.protos import job_pb2
from snapline.rows_read import RowsRead

if TYPE_CHECKING:
    from snapline.local.local_job import LocalJob

Build = Callable[[StreamExecutionEnvironment], object]
FOR_TESTS = {
    CHECKPOINTING_INTERVAL.key: "1 d",
    "restart-strategy.type": "fixed-delay",
    "restart-strategy.fixed-delay.attempts": "10",
    "restart-strategy.fixed-delay.delay": "0 ms",
}
"""What holds unless the cluster or the job says otherwise."""
_RUNNING, _FINISHED = job_pb2.EXECUTION_STATE_RUNNING, job_pb2.EXECUTION_STATE_FINISHED


class MiniCluster:
    """Runs jobs within a test, and ends them with it: at the end of a `with` block, or by `close`.

    >>> with sl_testing.MiniCluster() as cluster:
    ...     def build(env):
    ...         numbers = env.from_collection([{"n": 1}, {"n": 2}], uid="numbers")
    ...         numbers.map(lambda row: {"m": row["n"] * 10}, uid="tens").sink_to(cluster.sink("tens"), uid="sink")
    ...     cluster.run(build).status
    ...     sl_testing.assert_same_rows(cluster.rows("tens"), [{"m": 20}, {"m": 10}])
    'FINISHED'
    >>> cluster.close()  # again does no harm
    """

    def __init__(self, settings: Mapping[str, Any] | None = None, *, threads: int = 1) -> None:
        """`settings`: of all its jobs, such as `execution.checkpointing.interval`. `threads`: 1: tasks have turns on
        the test's thread; more: each task has a thread of its own, and works on between two lines of the test."""
        self._directory = tempfile.mkdtemp(prefix="snapline-mini-cluster-")
        self._settings = {
            **FOR_TESTS,
            CHECKPOINTS_DIRECTORY.key: f"{self._directory}/checkpoints",
            SAVEPOINT_DIRECTORY.key: f"{self._directory}/savepoints",
            **(settings or {}),
        }
        self._threads = threads
        self._jobs: list[MiniJob] = []
        self._sinks: set[str] = set()

    def sink(self, name: str = "out") -> CollectSink:
        """A sink whose committed rows `rows(name)` gives; exactly once, as sinks of files are."""
        self._sinks.add(name)
        return CollectSink(self._name_of(name))

    def rows(self, name: str = "out") -> list[dict[str, Any]]:
        """What jobs of this cluster have committed to the sink of this name, through restarts, in order of commit."""
        return CollectSink.rows(self._name_of(name))

    def start(self, build: Build, *, parallelism: int = 1, restore_from: str = "") -> MiniJob:
        """A job whose tasks all run, and that goes on while the test waits for something.

        `build`: adds sources, operators and sinks to the environment that it is given; it must not execute.
        `restore_from`: the path of a savepoint or checkpoint. Raises a SnaplineError that says why the job cannot run,
        and JobFailed when it has failed before all of its tasks ran.

        >>> cluster = sl_testing.MiniCluster()
        >>> job = cluster.start(lambda env: env.from_collection([{"n": 1}], uid="n").sink_to(cluster.sink(), uid="sink"))
        >>> job.finish().status, cluster.rows()
        ('FINISHED', [{'n': 1}])
        >>> cluster.close()
        """
        environment = StreamExecutionEnvironment.get_execution_environment(self._settings).set_parallelism(parallelism)
        if restore_from:
            environment.restore_from(restore_from)
        build(environment)
        local = open_local_job(environment, getattr(build, "__name__", "job"), self._threads)
        job = MiniJob(local.__enter__())
        self._jobs.append(job)
        local.run(until=lambda: job.is_deployed)
        if job.status == "FAILED":
            job.finish()  # which says why
        return job

    def run(self, build: Build, *, parallelism: int = 1, restore_from: str = "") -> JobExecutionResult:
        """Start a job and wait for its end. Raises JobFailed, whose cause is what a user's function has raised."""
        return self.start(build, parallelism=parallelism, restore_from=restore_from).finish()

    def close(self) -> None:
        """End all jobs that still run, and delete their checkpoints and savepoints."""
        for job in self._jobs:
            job.close()
        for name in self._sinks:
            CollectSink.clear(self._name_of(name))
        shutil.rmtree(self._directory, ignore_errors=True)

    def _name_of(self, sink: str) -> str:
        """The name of a sink among those of all clusters of this process."""
        return f"{self._directory}/{sink}"

    def __enter__(self) -> MiniCluster:
        """Return the cluster itself, which is closed at the end of the block."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Close the cluster at the end of the block."""
        self.close()


class MiniJob:
    """A job of a MiniCluster. It moves only within these methods; each raises JobFailed when the job fails.

    >>> cluster = sl_testing.MiniCluster()
    >>> def build(env):
    ...     script = [{"n": 1}, sl_testing.AwaitCheckpoint(), {"n": 2}, sl_testing.Stall()]
    ...     source = env.from_source(sl_testing.ScriptedSource(script), uid="numbers")
    ...     source.rebalance().sink_to(cluster.sink(), uid="sink")
    >>> job = cluster.start(build)
    >>> job.run_until(lambda: job.rows_in("numbers") == 1).status
    'RUNNING'
    >>> path = job.checkpoint()
    >>> job.run_until(lambda: job.rows_in("numbers") == 2).kill("numbers").restarts
    1
    >>> job.restarts, job.status
    (1, 'RUNNING')
    >>> savepoint = job.run_until(lambda: job.rows_in("numbers") == 1).savepoint()
    >>> path = job.stop()
    >>> job.status, cluster.rows()
    ('FINISHED', [{'n': 1}, {'n': 2}])
    >>> again = cluster.start(build, parallelism=2, restore_from=path)
    >>> again.is_deployed
    True
    >>> again.close()
    >>> cluster.start(lambda env: env.from_collection([{"n": 1}], uid="n").sink_to(cluster.sink())).finish().status
    'FINISHED'
    >>> cluster.close()
    """

    def __init__(self, job: LocalJob) -> None:
        """The constructor is called by `MiniCluster.start` alone."""
        self._job = job
        self._client = LocalClient(job)
        self._rows = RowsRead()
        self._result: JobExecutionResult | None = None

    @property
    def status(self) -> str:
        """CREATED, RUNNING, RESTARTING, FAILED, CANCELED, FINISHED, ..."""
        return job_status(self._job.details())

    @property
    def restarts(self) -> int:
        """How often the job was restarted."""
        return self._job.details().overview.restarts

    @property
    def is_deployed(self) -> bool:
        """Whether each of its tasks runs or has finished; it can take a checkpoint then."""
        states = {subtask.state for vertex in self._job.details().vertices for subtask in vertex.subtasks}
        return self.status == "RUNNING" and states <= {_RUNNING, _FINISHED}

    def rows_in(self, operator: str) -> int:
        """Rows that have come into the task of this operator since it was deployed last, or were read by it if it is a
        source; over all subtasks. `operator`: its uid, or the name of its task. Raises JobDefinitionError."""
        vertex_id = self._vertex(operator).vertex_id
        return sum(task.records_in for task in self._job.task_metrics() if task.attempt_id.vertex_id == vertex_id)

    def run_until(self, condition: Callable[[], bool]) -> MiniJob:
        """Go on until the condition holds, which is asked between two steps of the job. Raises JobDefinitionError when
        the job ends before, and JobFailed."""
        self._job.run(until=condition)
        if self._job.has_ended and not condition():
            self._raise_if_failed()
            raise JobDefinitionError("the job has ended, and the condition of run_until never held")
        return self

    def checkpoint(self) -> str:
        """Take a checkpoint now; its path. Raises RequestRefused when it fails."""
        return self._asked(lambda: self._client.trigger_checkpoint("").path)

    def savepoint(self) -> str:
        """Take a savepoint; its path, good until the cluster is closed. Raises RequestRefused when it fails."""
        return self._asked(lambda: self._client.trigger_savepoint(""))

    def stop(self) -> str:
        """Stop the job with a savepoint; its path, for `start(..., restore_from=...)`. Raises RequestRefused."""
        path = self._asked(lambda: self._client.stop_with_savepoint(""))
        self._job.run()
        return path

    def kill(self, operator: str, subtask: int = 0) -> MiniJob:
        """Fail a subtask of the task that runs this operator, given by its uid or the name of its task; wait until it
        runs again, from the latest checkpoint. Raises JobDefinitionError when there is no such task, and JobFailed when
        the job does not restart."""
        vertex = self._vertex(operator)
        if not 0 <= subtask < vertex.parallelism:
            raise JobDefinitionError(f"{operator!r} has no subtask {subtask}, only 0 to {vertex.parallelism - 1}")
        self.run_until(lambda: self._state(operator, subtask) in (_RUNNING, _FINISHED))
        if self._state(operator, subtask) == _FINISHED:
            raise JobDefinitionError(f"subtask {subtask} of {operator!r} has finished, and cannot be killed any more")
        restarts = self.restarts
        failure = SerializedFailure(f"subtask {subtask} of {operator!r} was killed by the test", Blame.EXTERNAL)
        self._job.fail_task(vertex.vertex_id, subtask, failure)
        return self.run_until(lambda: self.restarts > restarts and self.is_deployed)

    def finish(self) -> JobExecutionResult:
        """Go on to the end of the job. Raises JobFailed unless it has FINISHED."""
        self._job.run(on_change=self._rows.note)
        return result_of_local(self._job, self._rows)

    def close(self) -> None:
        """End the job as a crash of the whole cluster would: nothing more is committed. Idempotent."""
        self._job.close()

    def _asked(self, ask: Callable[[], str]) -> str:
        """The answer of the job. Raises RequestRefused, and JobFailed when the job has failed."""
        try:
            return ask()
        except RequestRefused:
            self._raise_if_failed()
            raise

    def _vertex(self, operator: str) -> pb.VertexDetails:
        vertices = self._job.details().vertices
        for vertex in vertices:
            if operator in (vertex.name, *vertex.operator_uids):
                return vertex
        known = ", ".join(repr(uid) for vertex in vertices for uid in vertex.operator_uids)
        raise JobDefinitionError(f"the job has no operator {operator!r}, only {known}")

    def _state(self, operator: str, subtask: int) -> int:
        return self._vertex(operator).subtasks[subtask].state

    def _raise_if_failed(self) -> None:
        if self.status == "FAILED":
            result_of_local(self._job, self._rows)
