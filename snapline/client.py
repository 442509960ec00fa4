"""The client of a coordinator: submit jobs, control and watch them, look at checkpoints and the cluster.

A thin layer over the gRPC ClientService: values of `dataflow` go in, the published protobuf messages come out, and
every failure is a SnaplineError of one line. Watching survives a coordinator that is away for a while.
"""

from __future__ import annotations

import contextlib
import getpass
import os
import re
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from snapline.dataflow.errors import SnaplineError
from snapline.dataflow.failures import SerializedFailure
from snapline.dataflow.wire.statuses import JobStatus, decode_job_status
from snapline.protos import client_pb2 as pb
from snapline.protos import declared_pb2

if TYPE_CHECKING:
    import grpc

    from snapline.dataflow.config import Configuration
    from snapline.dataflow.graph.jobgraph import JobGraph
    from snapline.runtime.rpc.security import Security

__all__ = ["ClusterClient", "CoordinatorUnreachable", "JobDetails", "JobFailed", "RequestRefused", "job_status"]

T = TypeVar("T")
WHOLE_ID = re.compile("[0-9a-f]{32}")
CLIENT_HEADER = "snapline-client"
"""Says to the coordinator's log who asks: user and host."""
JobDetails = pb.JobDetails
"""What `get_job` and `watch_job` give: the message of `protos/client.proto`."""

CALL_TIMEOUT_S = 30.0
SAVEPOINT_TIMEOUT_S = 3600.0
JOBS_PER_PAGE = 200
MAX_REASON = 4000
"""Characters that a launcher tells of why it has no more TaskManagers, or why one has ended."""
RECONNECT_PAUSE_S = 0.2


class CoordinatorUnreachable(SnaplineError):
    """No coordinator answers at the address.

    >>> from snapline.client import ClusterClient
    >>> env = env.configure("jobmanager.rpc.address", "127.0.0.1:1")
    >>> with ClusterClient.from_configuration(env.configuration) as nobody:
    ...     nobody.list_jobs()
    Traceback (most recent call last):
    snapline.client.CoordinatorUnreachable: no coordinator answers at 127.0.0.1:1 ...
    """


class RequestRefused(SnaplineError):
    """The coordinator refused; the message says why and what to do.

    >>> client.resolve_job("flights")
    Traceback (most recent call last):
    snapline.client.RequestRefused: there is no job with 'flights'; jobs here: ...
    """

    retryable = False
    """Whether the same request may be granted later, because it is for now that it was refused."""


class JobFailed(SnaplineError):
    """The job ended other than FINISHED. `failure` holds the traceback of the task, operator uid and position.

    >>> try:
    ...     raise sl.JobFailed("job 'flights' (0f3a) was cancelled", None)
    ... except sl.JobFailed as error:
    ...     print(error, error.failure)
    job 'flights' (0f3a) was cancelled None
    """

    def __init__(self, message: str, failure: SerializedFailure | None) -> None:
        """`failure` is None for a cancelled job."""
        super().__init__(message)
        self.failure = failure

    def __reduce__(self) -> tuple[type[JobFailed], tuple[str, SerializedFailure | None]]:
        """Pickle with both arguments: a program may run its jobs in processes of a pool."""
        return type(self), (str(self), self.failure)


class ClusterClient:
    """One connection to a coordinator. Use as a context manager, or `close` it.

    Answers are the messages of `protos/client.proto`. Methods raise CoordinatorUnreachable when nobody answers, and
    RequestRefused with the coordinator's reason. A job is named by its id; `resolve_job` finds the id by name.

    >>> from snapline.client import ClusterClient
    >>> with ClusterClient.from_configuration(client_configuration) as client:
    ...     _ = orders.sink_to(sl_connectors.DiscardingSink(), uid="nowhere")
    ...     job_id = client.submit(env.translate("example").job_graph)
    ...     assert client.resolve_job("example") == job_id
    ...     print([job.name for job in client.list_jobs()], client.get_job(job_id).overview.name)
    ...     print(len(client.list_task_managers()), client.overview().slots, client.required_resources().free_slots)
    ...     print(client.list_checkpoints(job_id).counts.completed)
    ...     first = next(client.watch_job(job_id))
    ...     client.cancel(job_id)
    ...     try:
    ...         client.wait(job_id)
    ...     except sl.JobFailed as error:
    ...         print("cancelled" in str(error))
    ['example'] example
    0 0 0
    0
    True
    """

    def __init__(self, address: str, security: Security, find_leader: Callable[[], str] | None = None) -> None:
        """Does not connect yet. `address` is host:port. `find_leader` says where the coordinator is now; it is asked
        when nobody answers."""
        self._security = security
        self._find_leader = find_leader
        self._who = (CLIENT_HEADER, who_asks())
        self._open(address)

    @classmethod
    def from_configuration(cls, configuration: Configuration) -> ClusterClient:
        """A client of the coordinator that leads: at `jobmanager.rpc.address`, or where ZooKeeper says. Raises
        SnaplineError."""
        from snapline.runtime.leaders.coordinator_address import coordinator_address
        from snapline.runtime.rpc.security import Security

        security = Security.from_configuration(configuration)
        return cls(coordinator_address(configuration), security, lambda: coordinator_address(configuration))

    @property
    def _metadata(self) -> tuple[tuple[str, str], ...]:
        return (*self._security.metadata, self._who)

    def _open(self, address: str) -> None:
        from snapline.protos.client_pb2_grpc import ClientServiceStub
        from snapline.runtime.rpc.grpc_channels import open_channel

        self.address = address
        self._dialed_with = self._security.current()
        self._channel: grpc.Channel = open_channel(address, self._security)
        self._stub = ClientServiceStub(self._channel)

    def _go_where_told(self, error: Any) -> bool:
        """Whether a coordinator that stands by has said who leads; the next call goes there."""
        from snapline.runtime.rpc.grpc_channels import LEADER_METADATA_KEY

        for key, value in error.trailing_metadata() or ():
            if key == LEADER_METADATA_KEY and value != self.address:
                self._move(value)
                return True
        return False

    def _follow_leader(self) -> None:
        """Nobody answers: the next call goes to whoever leads by then, with the certificates of then."""
        address = self.address
        with contextlib.suppress(SnaplineError):
            address = self._find_leader() if self._find_leader is not None else address
        # another one of several may listen by now
        if address != self.address or "," in address or self._security.current() != self._dialed_with:
            self._move(address)

    def _move(self, address: str) -> None:
        """Go there. The connection before is closed when there is another one: whoever watches on it sees that."""
        before = self._channel
        self._open(address)
        before.close()

    def __enter__(self) -> ClusterClient:
        """Return the client itself, which the end of the block closes."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Close the connection at the end of the block."""
        self.close()

    def close(self) -> None:
        """Close the connection; the end of a `with` block does it.

        >>> client.close()
        """
        self._channel.close()

    # --- jobs ---------------------------------------------------------------------------------------------------------

    def submit(self, job_graph: JobGraph) -> str:
        """Submit; returns the job id once the coordinator has accepted the job."""
        from snapline.dataflow.wire.codec import encode_job_graph  # loads all messages

        request = pb.SubmitJobRequest(job_graph=encode_job_graph(job_graph))
        return self._call(self._stub.SubmitJob, request).job_id

    def submit_declared(self, job: declared_pb2.DeclaredJob) -> str:
        """Submit a job that is declared (protos/declared.proto); returns its id once the coordinator has accepted it.
        Raises RequestRefused with the operator that cannot be
        built.

        >>> from snapline.protos.declared_pb2 import DeclaredJob
        >>> client.submit_declared(DeclaredJob(name="empty"))  # doctest: +SKIP
        """
        return self._call(self._stub.SubmitDeclaredJob, pb.SubmitDeclaredJobRequest(job=job)).job_id

    def list_jobs(self) -> list[pb.JobOverview]:
        """Return an overview of all jobs, the newest first."""
        jobs: list[pb.JobOverview] = []
        token = ""
        while True:
            page = self.list_page(page_size=JOBS_PER_PAGE, page_token=token)
            jobs += page.jobs
            token = page.next_page_token
            if not token:
                return jobs

    def list_page(self, page_size: int, page_token: str = "") -> pb.ListJobsResponse:
        """Return so many jobs, the newest first; `next_page_token` of the answer gives the next ones, and is empty when
        there are none.

        >>> client.list_page(page_size=10).next_page_token
        ''
        """
        return self._call(self._stub.ListJobs, pb.ListJobsRequest(page_size=page_size, page_token=page_token))

    def get_job(self, job_id: str) -> pb.JobDetails:
        """Return the job's vertices, subtasks, failures and counts."""
        return self._call(self._stub.GetJob, pb.GetJobRequest(job_id=job_id))

    def resolve_job(self, text: str) -> str:
        """The id of the job with this id, unique beginning of an id, or name (the newest). Raises RequestRefused.

        A whole id is asked for alone: who has a credential for one job may not list the others."""
        if WHOLE_ID.fullmatch(text):
            with contextlib.suppress(RequestRefused):
                return self.get_job(text).overview.job_id
        jobs = self.list_jobs()
        called = [job.job_id for job in jobs if job.job_id == text] or [job.job_id for job in jobs if job.name == text]
        if called:
            return called[0]
        matches = [job.job_id for job in jobs if text and job.job_id.startswith(text)]
        if len(matches) == 1:
            return matches[0]
        known = ", ".join(f"{job.name} ({job.job_id[:8]})" for job in jobs[:5]) or "none"
        which = "more than one job begins" if matches else "there is no job"
        raise RequestRefused(f"{which} with {text!r}; jobs here: {known}")

    def get_job_graph(self, job_id: str) -> pb.GetJobGraphResponse:
        """Return the graph of a job that runs, as it would be submitted again. Raises RequestRefused for one that has
        ended.

        >>> client.get_job_graph("no such job")
        Traceback (most recent call last):
        snapline.client.RequestRefused: ...
        """
        return self._call(self._stub.GetJobGraph, pb.GetJobGraphRequest(job_id=job_id))

    def cancel(self, job_id: str) -> None:
        """Begin to cancel the job; it ends as CANCELED."""
        self._call(self._stub.CancelJob, pb.CancelJobRequest(job_id=job_id))

    def stop_with_savepoint(
        self, job_id: str, directory: str = "", *, drain: bool = False, trigger_id: str = ""
    ) -> str:
        """Take a savepoint, stop the job, and return the path of the savepoint. `drain`: fire all windows and timers
        first; the job cannot go on from it then. The same `trigger_id` again joins the same request. Raises
        RequestRefused when it failed; the job goes on in that case.

        >>> client.stop_with_savepoint("no such job", "/savepoints")
        Traceback (most recent call last):
        snapline.client.RequestRefused: ...
        """
        request = pb.StopWithSavepointRequest(
            job_id=job_id, target_directory=directory, drain=drain, trigger_id=trigger_id
        )
        return self._savepoint(self._call(self._stub.StopWithSavepoint, request, SAVEPOINT_TIMEOUT_S))

    def trigger_savepoint(self, job_id: str, directory: str = "") -> str:
        """Take a savepoint and return its path; the job goes on. Raises RequestRefused when it failed.

        >>> client.trigger_savepoint("no such job")
        Traceback (most recent call last):
        snapline.client.RequestRefused: ...
        """
        request = pb.TriggerSavepointRequest(job_id=job_id, target_directory=directory)
        return self._savepoint(self._call(self._stub.TriggerSavepoint, request, SAVEPOINT_TIMEOUT_S))

    def begin_savepoint(self, job_id: str, directory: str = "", *, trigger_id: str = "") -> str:
        """Ask for a savepoint and return at once: the id to give to `get_savepoint`, `trigger_id` if there is one. The
        same id again asks for the same savepoint. Raises RequestRefused for a job that is not known.

        >>> client.begin_savepoint("no such job")
        Traceback (most recent call last):
        snapline.client.RequestRefused: ...
        """
        request = pb.TriggerSavepointRequest(
            job_id=job_id, target_directory=directory, trigger_id=trigger_id, detached=True
        )
        return self._call(self._stub.TriggerSavepoint, request).trigger_id

    def get_savepoint(self, job_id: str, trigger_id: str) -> pb.SavepointOperation:
        """What became of a savepoint that was asked for. Raises RequestRefused when nobody asked for it.

        >>> client.get_savepoint("no such job", "mine")
        Traceback (most recent call last):
        snapline.client.RequestRefused: ...
        """
        request = pb.GetSavepointRequest(job_id=job_id, trigger_id=trigger_id)
        return self._call(self._stub.GetSavepoint, request)

    def trigger_checkpoint(
        self, job_id: str, *, full: bool = False, timeout_s: float = SAVEPOINT_TIMEOUT_S
    ) -> pb.TriggerCheckpointResponse:
        """Take a checkpoint now; its id and path. `full`: without relying on earlier ones. Raises RequestRefused when
        it failed, and CoordinatorUnreachable when it takes longer than `timeout_s`.

        >>> client.trigger_checkpoint("no such job")
        Traceback (most recent call last):
        snapline.client.RequestRefused: ...
        """
        request = pb.TriggerCheckpointRequest(job_id=job_id, full=full)
        response = self._call(self._stub.TriggerCheckpoint, request, timeout_s)
        if response.HasField("failure"):
            raise RequestRefused(response.failure.message)
        return response

    def rescale(self, job_id: str, parallelism: int) -> None:
        """Change the parallelism of all vertices, in place; the job runs on until it has the slots. Raises
        RequestRefused when it does not get them.

        >>> client.rescale("no such job", 4)
        Traceback (most recent call last):
        snapline.client.RequestRefused: ...
        """
        self._call(self._stub.Rescale, pb.RescaleRequest(job_id=job_id, parallelism=parallelism), SAVEPOINT_TIMEOUT_S)

    def tap(
        self, job_id: str, uid: str, *, rows: int = 10, max_bytes: int = 65_536, of_input: bool = False
    ) -> list[pb.TappedRows]:
        """Some of the rows that an operator puts out (or takes in, with `of_input`) next, of each of its subtasks where
        any flow within a second, as Arrow streams. `rows` and `max_bytes` bound what it costs the job. Raises
        RequestRefused.

        >>> client.tap("no such job", "orders")
        Traceback (most recent call last):
        snapline.client.RequestRefused: ...
        """
        request = pb.TapOperatorRequest(job_id=job_id, uid=uid, max_rows=rows, max_bytes=max_bytes, of_input=of_input)
        return list(self._call(self._stub.TapOperator, request).parts)

    # --- checkpoints and cluster --------------------------------------------------------------------------------------

    def list_checkpoints(self, job_id: str) -> pb.ListCheckpointsResponse:
        """Return the counts, the history and the summary of the job's checkpoints."""
        return self._call(self._stub.ListCheckpoints, pb.ListCheckpointsRequest(job_id=job_id))

    def get_checkpoint(self, job_id: str, checkpoint_id: int) -> pb.CheckpointDetails:
        """One checkpoint of a job, by subtask.

        >>> client.get_checkpoint("no such job", 7)
        Traceback (most recent call last):
        snapline.client.RequestRefused: ...
        """
        request = pb.GetCheckpointRequest(job_id=job_id, checkpoint_id=checkpoint_id)
        return self._call(self._stub.GetCheckpoint, request)

    def snapshot_state(self, job_id: str, checkpoint_id: int) -> pb.SnapshotState:
        """What a completed checkpoint or savepoint of a job holds: operators, their states, keys and bytes by subtask.

        >>> client.snapshot_state("no such job", 7)
        Traceback (most recent call last):
        snapline.client.RequestRefused: ...
        """
        request = pb.GetSnapshotStateRequest(job_id=job_id, checkpoint_id=checkpoint_id)
        return self._call(self._stub.GetSnapshotState, request, SAVEPOINT_TIMEOUT_S)

    def cluster_configuration(self) -> list[pb.SettingOverview]:
        """All settings, as the coordinator has them, secrets masked, each with where it is from.

        >>> [each.origin for each in client.cluster_configuration() if each.key == "parallelism.default"]
        ['default']
        """
        return list(self._call(self._stub.GetConfiguration, pb.GetConfigurationRequest()).settings)

    def list_task_managers(self) -> list[pb.TaskManagerDetails]:
        """Return the TaskManagers that are registered with the cluster."""
        return list(self._call(self._stub.ListTaskManagers, pb.ListTaskManagersRequest()).task_managers)

    def state_of_task_manager(self, resource_id: str) -> Literal["registered", "lost", "unknown"]:
        """Lost: it was registered with the leader of now, and is not any more."""
        answer = self._call(self._stub.ListTaskManagers, pb.ListTaskManagersRequest())
        if any(manager.resource_id == resource_id for manager in answer.task_managers):
            return "registered"
        return "lost" if resource_id in answer.lost else "unknown"

    def dump_threads(
        self,
        job_id: str = "",
        resource_id: str = "",
        duration_ms: int = 0,
        *,
        heap: bool = False,
        log_lines: int = 0,
        log_level: str = "",
    ) -> pb.ThreadDumps:
        """What the threads of a job's TaskManagers do, or of one TaskManager: now, or which stacks are seen how often
        while `duration_ms` pass. With `heap` also the types that take most of their memory, and the containers that
        have grown most meanwhile. With `log_lines` only so many of the last lines that they have written. With
        `log_level` they write lines of this level and above from now on; of no job and no TaskManager, the coordinator
        does. Raises RequestRefused for what is not known.

        >>> client.dump_threads(resource_id="nobody")
        Traceback (most recent call last):
        snapline.client.RequestRefused: ...
        """
        request = pb.DumpThreadsRequest(
            job_id=job_id,
            resource_id=resource_id,
            duration_ms=duration_ms,
            heap=heap,
            log_lines=log_lines,
            log_level=log_level,
        )
        return self._call(self._stub.DumpThreads, request, CALL_TIMEOUT_S + duration_ms / 1000)

    def drain_task_manager(self, resource_id: str, *, undo: bool = False) -> list[str]:
        """Let no job have slots of the TaskManager any more, and move what runs there to others by a rescale; returns
        the jobs that were moved, when nothing runs there. `undo`: give its slots away again. Raises RequestRefused when
        a job cannot leave; then all is as before.

        >>> client.drain_task_manager("nobody")
        Traceback (most recent call last):
        snapline.client.RequestRefused: ...
        """
        request = pb.DrainTaskManagerRequest(resource_id=resource_id, undo=undo)
        return list(self._call(self._stub.DrainTaskManager, request, SAVEPOINT_TIMEOUT_S).job_ids)

    def explain_job(self, job_id: str, *, without_stacks: bool = False) -> pb.JobExplanation:
        """What holds the job up: which subtask, what it does, and which checkpoint waits for whom.

        >>> client.explain_job("no such job")
        Traceback (most recent call last):
        snapline.client.RequestRefused: ...
        """
        request = pb.ExplainJobRequest(job_id=job_id, without_stacks=without_stacks)
        return self._call(self._stub.ExplainJob, request)

    def required_resources(self) -> pb.RequiredResources:
        """Slots that jobs need, and that there are."""
        return self._call(self._stub.GetRequiredResources, pb.GetRequiredResourcesRequest())

    def report_workers(
        self, launcher_id: str, available_slots: int, reason: str, ended: Mapping[str, str], *, closed: bool = False
    ) -> None:
        """For launchers of TaskManagers: what can be had at most and why, and who has ended of what."""
        gone = [pb.EndedWorker(resource_id=resource_id, reason=why[:MAX_REASON]) for resource_id, why in ended.items()]
        request = pb.ReportWorkersRequest(
            launcher_id=launcher_id,
            available_slots=available_slots,
            reason=reason[:MAX_REASON],
            ended=gone,
            closed=closed,
        )
        self._call(self._stub.ReportWorkers, request)

    def overview(self) -> pb.ClusterOverview:
        """Return what the coordinator says about itself."""
        return self._call(self._stub.GetClusterOverview, pb.GetClusterOverviewRequest())

    # --- waiting ------------------------------------------------------------------------------------------------------

    def watch_job(
        self, job_id: str, patience_s: float = 60.0, timeout_s: float | None = None
    ) -> Iterator[pb.JobDetails]:
        """Details now and after each change, until the job has ended or `timeout_s` have passed.

        A coordinator that is away is waited for, at most `patience_s`.
        """
        import grpc

        away_since: float | None = None
        until = None if timeout_s is None else time.monotonic() + timeout_s
        while until is None or time.monotonic() < until:
            remaining = None if until is None else max(until - time.monotonic(), 0.0)
            stub = self._stub
            try:
                for details in stub.WatchJob(
                    pb.WatchJobRequest(job_id=job_id), metadata=self._metadata, timeout=remaining
                ):
                    away_since = None
                    yield details
                    if decode_job_status(details.overview.status).is_globally_terminal:
                        return
            except (grpc.RpcError, ValueError) as error:
                if self._stub is not stub:  # a call of another thread has gone to another coordinator
                    continue
                if isinstance(error, ValueError):
                    raise
                if until is not None and error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
                    return
                if error.code() is not grpc.StatusCode.UNAVAILABLE:
                    raise self._error(error) from None
                if not self._go_where_told(error):
                    self._follow_leader()
                now = time.monotonic()
                away_since = away_since or now
                if now - away_since > patience_s:
                    raise self._error(error) from None
            time.sleep(RECONNECT_PAUSE_S)

    def wait(self, job_id: str, on_change: Callable[[pb.JobDetails], None] | None = None) -> pb.JobDetails:
        """Wait for the end of the job. Raises JobFailed unless it is FINISHED."""
        last: pb.JobDetails | None = None
        for last in self.watch_job(job_id):
            if on_change:
                on_change(last)
        if last is None:
            raise RequestRefused(f"job {job_id} is not known at {self.address}")
        raise_unless_finished(last)
        return last

    # --- inner --------------------------------------------------------------------------------------------------------

    @staticmethod
    def _savepoint(response: pb.SavepointResponse) -> str:
        if response.HasField("failure"):
            raise RequestRefused(f"no savepoint: {response.failure.message}")
        return response.path

    def _call(self, method: Callable[..., T], request: Any, timeout_s: float = CALL_TIMEOUT_S) -> T:
        import grpc

        try:
            try:
                return method(request, timeout=timeout_s, metadata=self._metadata)
            except grpc.RpcError as error:
                if not self._go_where_told(error):
                    raise
            # all methods are called after their requests
            again = getattr(self._stub, request.DESCRIPTOR.name.removesuffix("Request"))
            answer: T = again(request, timeout=timeout_s, metadata=self._metadata)
            return answer
        except grpc.RpcError as error:
            failure = self._error(error)
            if isinstance(failure, CoordinatorUnreachable):
                self._follow_leader()
            raise failure from None
        except ValueError as error:
            if "closed" not in str(error):
                raise
            raise CoordinatorUnreachable(f"the connection to the coordinator at {self.address} was closed") from None

    def _error(self, error: Any) -> SnaplineError:
        import grpc

        from snapline.runtime.rpc.grpc_channels import OLDER_COORDINATOR, STANDS_BY

        code, details = error.code(), error.details() or ""
        if code is grpc.StatusCode.UNAVAILABLE and details.startswith(STANDS_BY):
            return CoordinatorUnreachable(f"{self.address}: {details}")
        if code is grpc.StatusCode.UNAVAILABLE:
            return CoordinatorUnreachable(
                f"no coordinator answers at {self.address} ({details}): is `snapline coordinator` running there?"
            )
        if code is grpc.StatusCode.UNIMPLEMENTED:
            return RequestRefused(f"{self.address}: {OLDER_COORDINATOR}")
        if code is grpc.StatusCode.CANCELLED:
            return CoordinatorUnreachable(f"the connection to the coordinator at {self.address} was closed")
        if code is grpc.StatusCode.DEADLINE_EXCEEDED:
            return CoordinatorUnreachable(f"the coordinator at {self.address} did not answer in time")
        if code is grpc.StatusCode.UNAUTHENTICATED:
            return RequestRefused(f"the coordinator at {self.address} does not accept the token: {details}")
        refusal = RequestRefused(details or code.name)
        refusal.retryable = code is grpc.StatusCode.FAILED_PRECONDITION
        return refusal


def who_asks() -> str:
    """`user@host`, in letters that a header may have."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = f"uid {os.getuid()}"
    return f"{user}@{socket.gethostname()}".encode("ascii", "replace").decode()


def job_status(details: pb.JobDetails) -> str:
    """The name of a job's status: CREATED, RUNNING, RESTARTING, FAILING, FAILED, CANCELLING, CANCELED, FINISHED,
    SUSPENDED or RECONCILING.

    >>> from snapline.client import JobDetails, job_status
    >>> job_status(JobDetails(overview={"status": "JOB_STATUS_RUNNING"}))
    'RUNNING'
    """
    return decode_job_status(details.overview.status).value


def raise_unless_finished(details: pb.JobDetails, cause: BaseException | None = None) -> None:
    """Raise JobFailed for a job that ended otherwise; `cause`: what a task of this process has raised."""
    overview = details.overview
    status = decode_job_status(overview.status)
    if status is JobStatus.FINISHED:
        return
    if status is JobStatus.CANCELED:
        raise JobFailed(f"job {overview.name!r} ({overview.job_id}) was cancelled", None)
    from snapline.dataflow.wire.codec import decode  # loads all messages

    failure = decode(SerializedFailure, overview.failure) if overview.HasField("failure") else None
    raise JobFailed(describe_failure(overview.name, failure), failure) from cause


def describe_failure(job_name: str, failure: SerializedFailure | None) -> str:
    """One line: what failed, where, on which rows."""
    if failure is None:
        return f"job {job_name!r} failed"
    named = not failure.operator_uid or repr(failure.operator_uid) in failure.summary
    where = "" if named else f" in operator {failure.operator_uid!r}"
    position = f", at {failure.position}" if failure.position else ""
    return f"job {job_name!r} failed{where}: {failure.summary}{position}"
