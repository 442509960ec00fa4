"""ClientService: what any program may ask of a coordinator.

Translates requests into the operations of the cores and answers into messages; decides only which gRPC status a refusal
is. Everything it knows of jobs comes from `Cluster`, which the composition root implements; what changes is watched by
looking again: at once when the status of a job changed, else a few times a second while something happens.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from typing import Any, NoReturn, Protocol, TypeVar

import grpc
import grpc.aio

from snapline.coordinator.diagnosis.explanation import explain, suspected_task_managers, task_managers_of
from snapline.coordinator.diagnosis.memory_growth import growing_task_managers
from snapline.coordinator.diagnosis.stack_reading import of_attempts
from snapline.coordinator.jobmaster.operations import (
    Answer,
    CancelJob,
    JobOperation,
    OperationFailed,
    RescaleJob,
    RowsTapped,
    SnapshotCompleted,
    StopWithSavepoint,
    TakeCheckpoint,
    TakeSavepoint,
    TapOperator,
)
from snapline.coordinator.rpc import views
from snapline.coordinator.rpc.audit import AuditLog, client_of
from snapline.coordinator.rpc.job_pages import BadPageToken
from snapline.coordinator.rpc.savepoint_operations import BadTriggerId, SavepointOperations
from snapline.coordinator.snapshot_state import TooManyReaders
from snapline.dataflow.errors import SnaplineError
from snapline.dataflow.failures import Blame
from snapline.dataflow.graph.declared_payload import ALL_ALLOWED, LoadingRules, translate_declared
from snapline.dataflow.graph.jobgraph import JobGraph
from snapline.dataflow.ids import ExecutionAttemptID, JobID, JobVertexID, ResourceID
from snapline.dataflow.wire.codec import WireError, decode_job_graph, decode_job_status, encode_into, encode_job_graph
from snapline.dataflow.wire.messages import JobStatus, ThreadDump
from snapline.dataflow.wire.submission_digest import with_submission_digest
from snapline.protos import checkpoint_pb2, client_pb2_grpc
from snapline.protos import client_pb2 as pb
from snapline.runtime.logs import LEVELS, Logger
from snapline.runtime.recent_output import MAX_CHARACTERS, MAX_LINES, last_lines
from snapline.runtime.rpc.grpc_channels import STANDS_BY, caller

MAX_PROFILE_MS = 600_000
STACKS_MS, STACKS_INTERVAL_MS = 300, 20
"""How long threads are looked at to explain what a job does: a call that is stuck is there every time."""
HEAP_MS = 2_000
"""How long lies between two looks at the containers of a TaskManager whose memory grows."""
WATCH_INTERVAL_SECONDS = 0.2
"""How often a watcher looks when nobody tells it that something changed."""
MAX_REFUSAL = 4000
"""Characters of the line that says why a request is refused, because it repeats what a client has sent."""
LEADS_NO_MORE = f"{STANDS_BY}, because another one may lead: ask again"

ResponseT = TypeVar("ResponseT")


class Cluster(Protocol):
    """What the service needs of the coordinator around it. Called on the server's loop."""

    async def submit(self, job_graph: JobGraph) -> Answer:
        """Hand the job to the Dispatcher."""
        ...

    async def operate(self, job_id: JobID, operation: JobOperation) -> Answer:
        """Hand the operation to the job's JobMaster."""
        ...

    async def list_jobs(self, page_size: int = 0, page_token: str = "") -> pb.ListJobsResponse:
        """Those after the one that the token names, newest first; 0: all of them. Raises BadPageToken."""
        ...

    async def job_graph(self, job_id: JobID) -> JobGraph | None:
        """Return the graph of a job that has a JobMaster."""
        ...

    async def knows(self, job_id: JobID) -> bool:
        """Whether there is, or was, such a job."""
        ...

    async def leads(self) -> bool:
        """Whether it has all jobs: not before a new leader has those of former ones, nor when it ends."""
        ...

    async def is_none(self, job_id: JobID) -> bool:
        """Whether there neither is nor was such a job; False while nobody here can know that."""
        ...

    async def has_started(self, job_id: JobID) -> bool:
        """Whether there is, or was, such a job that was stored and started; one that is being stored may yet fail."""
        ...

    async def job_details(self, job_id: JobID) -> pb.JobDetails | None:
        """Return what is known of one job; None when it is unknown."""
        ...

    async def list_checkpoints(self, job_id: JobID) -> pb.ListCheckpointsResponse | None:
        """Return the checkpoints of one job; None when the job is unknown."""
        ...

    async def checkpoint_details(self, job_id: JobID, checkpoint_id: int) -> pb.CheckpointDetails | None:
        """Return one checkpoint by subtask; None when it is unknown."""
        ...

    async def snapshot_state(self, path: str) -> pb.SnapshotState:
        """Return what the snapshot in this directory holds. Raises SnaplineError when it cannot be read, and
        TooManyReaders."""
        ...

    async def configuration(self) -> pb.ClusterConfiguration:
        """Return the settings of the coordinator, secrets masked."""
        ...

    async def required_resources(self) -> pb.RequiredResources:
        """Return how many slots are needed and how many are there."""
        ...

    async def list_task_managers(self) -> pb.ListTaskManagersResponse:
        """Registered ones, and lost ones."""
        ...

    async def jobs_with_slots_of(self, resource_id: ResourceID) -> frozenset[JobID] | None:
        """Jobs that have slots of this TaskManager, or will; other coordinators may lead them. None: it has not said
        yet."""
        ...

    async def dump_threads(
        self,
        resource_ids: Collection[str],
        duration_ms: int = 0,
        interval_ms: int = 0,
        *,
        heap: bool = False,
        log_lines: int = 0,
        log_level: str = "",
    ) -> Sequence[ThreadDump]:
        """What the threads of these TaskManagers do, and what their memory is used for, or the last lines that they
        have written; those that do not answer in time are missing. With `log_level` they write from there on."""
        ...

    async def attempts_of(self, job_id: JobID) -> frozenset[ExecutionAttemptID]:
        """The present attempts of the job's subtasks; none when it does not run."""
        ...

    async def change_log_level(self, level: str) -> None:
        """Let the coordinator write log lines from this level on."""
        ...

    async def set_draining(self, resource_id: str, *, draining: bool) -> None:
        """Let nobody have slots of the TaskManager any more, or again."""
        ...

    async def now_ms(self) -> int:
        """Return the time of the coordinator's clock."""
        ...

    async def leads_since_ms(self) -> int:
        """Return when the coordinator began to lead."""
        ...

    async def report_workers(self, report: pb.ReportWorkersRequest) -> None:
        """Hand it to the ResourceManager."""
        ...

    async def overview(self) -> pb.ClusterOverview:
        """Return what the coordinator says about itself."""
        ...

    async def changed(self, job_id: JobID | None, timeout_seconds: float) -> None:
        """Wait until the status of the job (None: the resources) changed, at most so long."""
        ...


class ClientService(client_pb2_grpc.ClientServiceServicer):
    """One call after the other; each is a coroutine on the server's loop."""

    def __init__(
        self,
        cluster: Cluster,
        logger: Logger,
        rules: LoadingRules = ALL_ALLOWED,
        leads: Callable[[], bool] = lambda: True,
    ) -> None:
        """`rules`: of what declared jobs may name. `leads`: whether this coordinator leads now; it may take long."""
        self._cluster = cluster
        self._rules = rules
        self._leads = leads
        self._audit = AuditLog(logger)
        self._savepoints = SavepointOperations()
        self._drains: Counter[str] = Counter()
        """Drains that are under way, by TaskManager."""

    # --- jobs ---------------------------------------------------------------------------------------------------------

    async def SubmitJob(self, request: pb.SubmitJobRequest, context: Any) -> pb.SubmitJobResponse:  # noqa: N802
        try:
            job_graph = decode_job_graph(request.job_graph)
        except WireError as error:
            await _abort(context, grpc.StatusCode.INVALID_ARGUMENT, str(error))
        if declared := job_graph.declared_operators:
            text = f"operator {declared[0]!r} is declared, and nobody has looked at the declaration: submit it with SubmitDeclaredJob"
            await _abort(context, grpc.StatusCode.INVALID_ARGUMENT, text)
        return await self._submit(job_graph, context)

    async def SubmitDeclaredJob(  # noqa: N802
        self, request: pb.SubmitDeclaredJobRequest, context: Any
    ) -> pb.SubmitJobResponse:
        job = request.job
        if job.job_id and await self._cluster.has_started(JobID(job.job_id)):
            return pb.SubmitJobResponse(job_id=job.job_id)
        try:
            job_graph = await asyncio.to_thread(translate_declared, job, self._rules)
            job_graph = decode_job_graph(encode_job_graph(job_graph))  # with the bounds of what clients send
        except (SnaplineError, WireError) as error:
            await _abort(context, grpc.StatusCode.INVALID_ARGUMENT, str(error))
        except RecursionError:
            text = "the job is nested more deeply than can be: write it with fewer levels"
            await _abort(context, grpc.StatusCode.INVALID_ARGUMENT, text)
        return await self._submit(job_graph, context)

    async def _submit(self, job_graph: JobGraph, context: Any) -> pb.SubmitJobResponse:
        job_graph = await asyncio.to_thread(with_submission_digest, job_graph)
        who = client_of(context)

        async def submit() -> Answer:
            answer = await self._cluster.submit(job_graph)
            self._audit.write("submit", who, _outcome(answer), job_id=job_graph.job_id, job=job_graph.name)
            return answer

        answer = await asyncio.shield(submit())  # it is logged, too, when nobody waits for the answer any more
        if isinstance(answer, OperationFailed):
            await self._check_leads(context)
            await _refuse(context, answer)
        return pb.SubmitJobResponse(job_id=job_graph.job_id)

    async def ListJobs(self, request: pb.ListJobsRequest, context: Any) -> pb.ListJobsResponse:  # noqa: N802
        try:
            return await self._leading(lambda: self._cluster.list_jobs(request.page_size, request.page_token), context)
        except BadPageToken as error:
            await _abort(context, grpc.StatusCode.INVALID_ARGUMENT, str(error))

    async def GetJob(self, request: pb.GetJobRequest, context: Any) -> pb.JobDetails:  # noqa: N802
        return await self._details(request.job_id, context)

    async def GetJobGraph(self, request: pb.GetJobGraphRequest, context: Any) -> pb.GetJobGraphResponse:  # noqa: N802
        job_graph = await self._cluster.job_graph(JobID(request.job_id))
        if job_graph is None:
            await self._details(request.job_id, context)
            text = f"job {request.job_id} does not run, and its graph is kept no longer than it does"
            await _abort(context, grpc.StatusCode.FAILED_PRECONDITION, text)
        return pb.GetJobGraphResponse(job_graph=encode_job_graph(job_graph))

    async def CancelJob(self, request: pb.CancelJobRequest, context: Any) -> pb.CancelJobResponse:  # noqa: N802
        if not await asyncio.to_thread(self._leads):  # a cancellation writes nothing that would be refused
            self._audit.write("cancel job", client_of(context), f"refused: {LEADS_NO_MORE}", job_id=request.job_id)
            await _abort(context, grpc.StatusCode.UNAVAILABLE, LEADS_NO_MORE)
        await self._operate(request.job_id, CancelJob(), context)
        return pb.CancelJobResponse()

    async def TapOperator(self, request: pb.TapOperatorRequest, context: Any) -> pb.TapOperatorResponse:  # noqa: N802
        if request.max_rows < 1 or request.max_bytes < 1:
            await _abort(context, grpc.StatusCode.INVALID_ARGUMENT, "max_rows and max_bytes must be at least 1")
        operation = TapOperator(request.uid, request.max_rows, request.max_bytes, request.of_input)
        answer = await self._operate(request.job_id, operation, context)
        return views.tapped_rows(answer.parts if isinstance(answer, RowsTapped) else ())

    async def Rescale(self, request: pb.RescaleRequest, context: Any) -> pb.RescaleResponse:  # noqa: N802
        details = await self._details(request.job_id, context)
        known = {vertex.vertex_id for vertex in details.vertices}
        unknown = sorted(set(request.parallelism_by_vertex) - known)
        if unknown:
            await _abort(context, grpc.StatusCode.INVALID_ARGUMENT, f"the job has no vertex {unknown[0][:80]!r}")
        if not known:  # its JobMaster is starting
            status = decode_job_status(details.overview.status).value
            line = f"only a running job can be rescaled; it is {status}"
            await _abort(context, grpc.StatusCode.FAILED_PRECONDITION, line)
        wanted: Mapping[str, int] = request.parallelism_by_vertex
        if request.parallelism:
            alone = {vertex.vertex_id for vertex in details.vertices if vertex.max_parallelism == 1}  # and so for good
            for_all = {vertex_id: 1 if vertex_id in alone else request.parallelism for vertex_id in sorted(known)}
            wanted = {**for_all, **wanted}
        parallelism = {JobVertexID(vertex): int(number) for vertex, number in wanted.items()}
        if not parallelism:
            await _abort(context, grpc.StatusCode.INVALID_ARGUMENT, "no parallelism was given")
        await self._operate(request.job_id, RescaleJob(parallelism), context)
        return pb.RescaleResponse()

    async def WatchJob(self, request: pb.WatchJobRequest, context: Any) -> AsyncIterator[pb.JobDetails]:  # noqa: N802
        job_id = JobID(request.job_id)
        last: pb.JobDetails | None = None
        while True:
            details = await self._details(job_id, context)
            if details != last:
                yield details
                last = details
            if decode_job_status(details.overview.status).is_globally_terminal:
                return
            await self._cluster.changed(job_id, WATCH_INTERVAL_SECONDS)

    # --- snapshots ----------------------------------------------------------------------------------------------------

    async def TriggerCheckpoint(  # noqa: N802
        self, request: pb.TriggerCheckpointRequest, context: Any
    ) -> pb.TriggerCheckpointResponse:
        answer = await self._operate(request.job_id, TakeCheckpoint(request.full), context, snapshot=True)
        if isinstance(answer, SnapshotCompleted):
            return pb.TriggerCheckpointResponse(checkpoint_id=answer.checkpoint_id, path=answer.path)
        return pb.TriggerCheckpointResponse(failure=_failure(answer))

    async def TriggerSavepoint(self, request: pb.TriggerSavepointRequest, context: Any) -> pb.SavepointResponse:  # noqa: N802
        return await self._take_savepoint(request, TakeSavepoint(request.target_directory), context)

    async def StopWithSavepoint(self, request: pb.StopWithSavepointRequest, context: Any) -> pb.SavepointResponse:  # noqa: N802
        return await self._take_savepoint(request, StopWithSavepoint(request.target_directory, request.drain), context)

    async def GetSavepoint(self, request: pb.GetSavepointRequest, context: Any) -> pb.SavepointOperation:  # noqa: N802
        found = self._savepoints.find(request.job_id, request.trigger_id)
        if found is None:
            text = (
                f"no savepoint was asked for as {request.trigger_id!r} of job {request.job_id!r} under this leader, or it is long ago: "
                "ListCheckpoints shows the latest savepoint"
            )
            await _abort(context, grpc.StatusCode.NOT_FOUND, text)
        return found

    async def _take_savepoint(
        self,
        request: pb.TriggerSavepointRequest | pb.StopWithSavepointRequest,
        operation: JobOperation,
        context: Any,
    ) -> pb.SavepointResponse:
        if not await self._cluster.knows(JobID(request.job_id)):
            await self._no_such_job(context, request.job_id)
        if "\0" in request.target_directory:
            text = f"{request.target_directory[:80]!r} is no directory: it has a character NUL in it, which no file system takes"
            await _abort(context, grpc.StatusCode.INVALID_ARGUMENT, text)

        who = client_of(context)  # the call may be over before the savepoint is, and gRPC lets nobody ask it then

        async def take() -> pb.SavepointResponse:
            return _savepoint(await self._run(request.job_id, operation, who))

        try:
            return await self._savepoints.run(request.job_id, request.trigger_id, take, detached=request.detached)
        except BadTriggerId as error:
            await _abort(context, grpc.StatusCode.INVALID_ARGUMENT, str(error))

    async def ListCheckpoints(  # noqa: N802
        self, request: pb.ListCheckpointsRequest, context: Any
    ) -> pb.ListCheckpointsResponse:
        found = await self._cluster.list_checkpoints(JobID(request.job_id))
        if found is None:
            await self._no_such_job(context, request.job_id)
        return found

    async def GetCheckpoint(self, request: pb.GetCheckpointRequest, context: Any) -> pb.CheckpointDetails:  # noqa: N802
        if not await self._cluster.knows(JobID(request.job_id)):
            await self._no_such_job(context, request.job_id)
        found = await self._cluster.checkpoint_details(JobID(request.job_id), request.checkpoint_id)
        if found is None:
            text = f"checkpoint {request.checkpoint_id} of job {request.job_id} is not known, or not any more"
            await _abort(context, grpc.StatusCode.NOT_FOUND, text)
        return found

    async def GetSnapshotState(self, request: pb.GetSnapshotStateRequest, context: Any) -> pb.SnapshotState:  # noqa: N802
        wanted = pb.GetCheckpointRequest(job_id=request.job_id, checkpoint_id=request.checkpoint_id)
        found = (await self.GetCheckpoint(wanted, context)).overview
        which = f"checkpoint {request.checkpoint_id} of job {request.job_id}"
        if found.status != pb.CHECKPOINT_STATUS_COMPLETED or found.discarded:
            why = (
                "its files were deleted, because newer ones have subsumed it"
                if found.discarded
                else "it is not complete"
            )
            await _abort(context, grpc.StatusCode.FAILED_PRECONDITION, f"{which} cannot be looked into: {why}")
        try:
            return await self._cluster.snapshot_state(found.path)
        except TooManyReaders as error:
            await _abort(context, grpc.StatusCode.RESOURCE_EXHAUSTED, str(error))
        except SnaplineError as error:
            await _abort(context, grpc.StatusCode.FAILED_PRECONDITION, f"{which} cannot be looked into: {error}")

    async def WatchCheckpoints(  # noqa: N802
        self, request: pb.WatchCheckpointsRequest, context: Any
    ) -> AsyncIterator[pb.CheckpointOverview]:
        seen: dict[int, pb.CheckpointOverview] = {}
        while True:
            details = await self._details(request.job_id, context)
            found = await self.ListCheckpoints(pb.ListCheckpointsRequest(job_id=request.job_id), context)
            history = {overview.checkpoint_id: overview for overview in reversed(found.history)}
            for checkpoint_id, overview in history.items():
                if seen.get(checkpoint_id) != overview:
                    yield overview
            seen = history
            if decode_job_status(details.overview.status).is_globally_terminal:
                return
            await self._cluster.changed(JobID(request.job_id), WATCH_INTERVAL_SECONDS)

    # --- cluster ------------------------------------------------------------------------------------------------------

    async def GetRequiredResources(  # noqa: N802
        self, request: pb.GetRequiredResourcesRequest, context: Any
    ) -> pb.RequiredResources:
        return await self._cluster.required_resources()

    async def WatchRequiredResources(  # noqa: N802
        self, request: pb.WatchRequiredResourcesRequest, context: Any
    ) -> AsyncIterator[pb.RequiredResources]:
        last: pb.RequiredResources | None = None
        while True:
            now = await self._cluster.required_resources()
            if now != last:
                yield now
                last = now
            await self._cluster.changed(None, WATCH_INTERVAL_SECONDS)

    async def ListTaskManagers(  # noqa: N802
        self, request: pb.ListTaskManagersRequest, context: Any
    ) -> pb.ListTaskManagersResponse:
        return await self._cluster.list_task_managers()

    async def DrainTaskManager(self, request: pb.DrainTaskManagerRequest, context: Any) -> pb.DrainTaskManagerResponse:  # noqa: N802
        resource_id = request.resource_id
        if all(each.resource_id != resource_id for each in (await self._cluster.list_task_managers()).task_managers):
            text = f"there is no TaskManager {resource_id!r} here; `snapline cluster` shows all"
            await _abort(context, grpc.StatusCode.NOT_FOUND, text)
        await self._check_leads(context)
        who = client_of(context)
        await self._cluster.set_draining(resource_id, draining=not request.undo)
        self._drains[resource_id] += 1
        try:
            moved: list[str] = []
            if not request.undo:
                moved = await self._move_jobs(resource_id, context)
                await self._check_leads(context)
        except asyncio.CancelledError:
            self._audit.write("drain", who, "begun: its client has gone before all jobs had", resource_id=resource_id)
            raise
        finally:
            self._drains[resource_id] -= 1
            if not self._drains[resource_id]:
                del self._drains[resource_id]
        self._audit.write("drain", who, "undone" if request.undo else "done", resource_id=resource_id)
        return pb.DrainTaskManagerResponse(job_ids=moved)

    async def _move_jobs(self, resource_id: str, context: Any) -> list[str]:
        """All jobs leave the TaskManager; returns their ids. Where one cannot, it gets tasks again, unless somebody
        else drains it as well: then that decides."""
        moved: list[str] = []
        there = await self._cluster.jobs_with_slots_of(ResourceID(resource_id))
        if there is None:
            why = "it has not said yet what its slots are used for: drain again in a moment"
            await self._refuse_drain(resource_id, "jobs", why, context)
        jobs = (await self._cluster.list_jobs()).jobs
        for job_id in sorted(there - {job.job_id for job in jobs}):
            why = "another coordinator leads it, and has its slots from this one: stop it there, or wait for its end"
            await self._refuse_drain(resource_id, f"job {job_id}", why, context)
        for job in jobs:
            details = None if job.end_time_ms else await self._cluster.job_details(JobID(job.job_id))
            if details is None:
                continue
            if job.job_id in there and _may_be_anywhere(details):
                why = "it is not known yet which of its tasks run there: drain again in a moment"
                await self._refuse_drain(resource_id, f"job {job.name} ({job.job_id})", why, context)
            restarts = job.job_id in there and decode_job_status(details.overview.status) is JobStatus.RESTARTING
            if (
                resource_id not in task_managers_of(details) and not restarts
            ):  # else it will have tasks there in a moment
                continue
            answer = await self._run(job.job_id, RescaleJob({}, (ResourceID(resource_id),)), client_of(context))
            if isinstance(answer, OperationFailed):
                await self._refuse_drain(resource_id, f"job {job.name} ({job.job_id})", answer.failure.summary, context)
            moved.append(job.job_id)
        return moved

    async def _refuse_drain(self, resource_id: str, job: str, why: str, context: Any) -> NoReturn:
        then = "is drained by somebody else, too"
        if self._drains[resource_id] == 1:
            then = "gets tasks again"
            await self._cluster.set_draining(resource_id, draining=False)
        await self._check_leads(context)
        line = f"{job} cannot leave {resource_id}, which {then}: {why}"
        self._audit.write("drain", client_of(context), f"refused: {line}", resource_id=resource_id)
        await _abort(context, grpc.StatusCode.FAILED_PRECONDITION, line)

    async def ReportWorkers(self, request: pb.ReportWorkersRequest, context: Any) -> pb.ReportWorkersResponse:  # noqa: N802
        if not request.launcher_id:
            await _abort(context, grpc.StatusCode.INVALID_ARGUMENT, "the report has no launcher_id")
        await self._cluster.report_workers(request)
        return pb.ReportWorkersResponse()

    async def DumpThreads(self, request: pb.DumpThreadsRequest, context: Any) -> pb.ThreadDumps:  # noqa: N802
        if not 0 <= request.duration_ms <= MAX_PROFILE_MS or not 0 <= request.interval_ms <= MAX_PROFILE_MS:
            text = f"duration_ms and interval_ms lie between 0 and {MAX_PROFILE_MS}"
            await _abort(context, grpc.StatusCode.INVALID_ARGUMENT, text)
        if not 0 <= request.log_lines <= MAX_LINES:
            await _abort(context, grpc.StatusCode.INVALID_ARGUMENT, f"log_lines lies between 0 and {MAX_LINES}")
        if request.log_level and request.log_level.lower() not in LEVELS:
            text = f"log_level {request.log_level!r} is none: one of {', '.join(LEVELS)}"
            await _abort(context, grpc.StatusCode.INVALID_ARGUMENT, text)
        registered = {each.resource_id for each in (await self._cluster.list_task_managers()).task_managers}
        if request.log_level and not request.job_id and not request.resource_id:
            await self._cluster.change_log_level(request.log_level)
            self._audit.write("log level", client_of(context), "done", level=request.log_level, of="coordinator")
            return pb.ThreadDumps()
        if request.job_id:
            details = await self._details(request.job_id, context)
            wanted = task_managers_of(details) & registered
        else:
            wanted = {request.resource_id} & registered
            if not wanted:
                text = f"there is no TaskManager {request.resource_id!r} here; `snapline cluster` shows all"
                await _abort(context, grpc.StatusCode.NOT_FOUND, text)
        if request.log_level:
            of = ", ".join(sorted(wanted))
            self._audit.write("log level", client_of(context), "done", level=request.log_level, of=of)
        found = await self._cluster.dump_threads(
            sorted(wanted),
            request.duration_ms,
            request.interval_ms,
            heap=request.heap,
            log_lines=request.log_lines,
            log_level=request.log_level,
        )
        if caller().job:
            attempts = await self._cluster.attempts_of(JobID(request.job_id))
            found = of_attempts(found, attempts, with_process=False)
        answer = pb.ThreadDumps(silent=sorted(wanted - {str(dump.resource_id) for dump in found}))
        for dump in found:
            encode_into(
                dataclasses.replace(dump, log=last_lines(dump.log, MAX_CHARACTERS // len(found))), answer.dumps.add()
            )
        return answer

    async def ExplainJob(self, request: pb.ExplainJobRequest, context: Any) -> pb.JobExplanation:  # noqa: N802
        details = await self._details(request.job_id, context)
        checkpoints = await self.ListCheckpoints(pb.ListCheckpointsRequest(job_id=request.job_id), context)
        pending = [each for each in checkpoints.history if each.status == pb.CHECKPOINT_STATUS_IN_PROGRESS]
        waiting = None
        if pending:
            waiting = await self._cluster.checkpoint_details(JobID(request.job_id), pending[-1].checkpoint_id)
        dumps: Sequence[ThreadDump] = ()
        registered = (await self._cluster.list_task_managers()).task_managers
        suspects = sorted(suspected_task_managers(details, waiting))
        growing = sorted(growing_task_managers(details, registered))
        if not request.without_stacks:
            looks = [self._cluster.dump_threads(suspects, STACKS_MS, STACKS_INTERVAL_MS)] if suspects else []
            if growing and not caller().job:
                looks.append(self._cluster.dump_threads(growing, HEAP_MS, STACKS_INTERVAL_MS, heap=True))
            seen = [dump for found in await asyncio.gather(*looks) for dump in found]
            attempts = await self._cluster.attempts_of(JobID(request.job_id))
            dumps = of_attempts(seen, attempts, with_process=not caller().job)
        now_ms, since_ms = await self._cluster.now_ms(), await self._cluster.leads_since_ms()
        return explain(details, checkpoints, waiting, dumps, now_ms, registered, since_ms)

    async def GetConfiguration(self, request: pb.GetConfigurationRequest, context: Any) -> pb.ClusterConfiguration:  # noqa: N802
        return await self._cluster.configuration()

    async def GetClusterOverview(self, request: pb.GetClusterOverviewRequest, context: Any) -> pb.ClusterOverview:  # noqa: N802
        return await self._leading(self._cluster.overview, context)

    # --- inner --------------------------------------------------------------------------------------------------------

    async def _details(self, job_id: str, context: Any) -> pb.JobDetails:
        details = await self._cluster.job_details(JobID(job_id))
        if details is None:
            await self._no_such_job(context, job_id)
        return details

    async def _leading(self, ask: Callable[[], Awaitable[ResponseT]], context: Any) -> ResponseT:
        """Ask for what only a leader that has all its jobs can say, while it is one."""
        led = await self._cluster.leads()
        found = await ask()
        await self._check_leads(context, led=led)
        return found

    async def _check_leads(self, context: Any, *, led: bool = True) -> None:
        if not (led and await self._cluster.leads()):
            await _abort(context, grpc.StatusCode.UNAVAILABLE, LEADS_NO_MORE)

    async def _no_such_job(self, context: Any, job_id: str) -> NoReturn:
        if not await self._cluster.is_none(JobID(job_id)):
            await _abort(context, grpc.StatusCode.UNAVAILABLE, LEADS_NO_MORE)
        await _abort(context, grpc.StatusCode.NOT_FOUND, f"there is no job {job_id!r} here; `snapline list` shows all")

    async def _operate(self, job_id: str, operation: JobOperation, context: Any, *, snapshot: bool = False) -> Answer:
        """A snapshot that failed is an answer; anything else that was refused is a status."""
        if not await self._cluster.knows(JobID(job_id)):
            await self._no_such_job(context, job_id)
        answer = await self._run(job_id, operation, client_of(context))
        if isinstance(answer, OperationFailed) and not snapshot:
            await _refuse(context, answer)
        return answer

    async def _run(self, job_id: str, operation: JobOperation, who: str) -> Answer:
        """Hand it to the job, and log who has asked for it, also when nobody waits for the answer any more."""

        async def run() -> Answer:
            answer = await self._cluster.operate(JobID(job_id), operation)
            details = {field.name: getattr(operation, field.name) for field in dataclasses.fields(operation)}
            self._audit.write(_words(type(operation).__name__), who, _outcome(answer), job_id=job_id, **details)
            return answer

        return await asyncio.shield(run())


async def _abort(context: Any, code: grpc.StatusCode, text: str) -> NoReturn:
    shown = text if len(text) <= MAX_REFUSAL else f"{text[:MAX_REFUSAL]}..."
    await context.abort(code, shown)
    raise RuntimeError("abort returned")


def _may_be_anywhere(details: pb.JobDetails) -> bool:
    """Whether its JobMaster has not begun, or does not know yet which tasks of the job a former leader has left."""
    status = decode_job_status(details.overview.status)
    return status is JobStatus.RECONCILING or (status is JobStatus.CREATED and not details.vertices)


async def _refuse(context: Any, answer: OperationFailed) -> NoReturn:
    failure = answer.failure
    code = grpc.StatusCode.INTERNAL
    if failure.blame is Blame.USER:
        code = grpc.StatusCode.FAILED_PRECONDITION if failure.retryable else grpc.StatusCode.INVALID_ARGUMENT
    elif failure.blame is Blame.EXTERNAL:
        code = grpc.StatusCode.FAILED_PRECONDITION
    await _abort(context, code, failure.summary)


def _outcome(answer: Answer) -> str:
    return f"refused: {answer.failure.summary}" if isinstance(answer, OperationFailed) else "done"


def _words(name: str) -> str:
    """A class name as words: `StopWithSavepoint` is `stop with savepoint`."""
    return "".join(f" {letter.lower()}" if letter.isupper() else letter for letter in name).strip()


def _savepoint(answer: Answer) -> pb.SavepointResponse:
    if isinstance(answer, SnapshotCompleted):
        return pb.SavepointResponse(path=answer.path, checkpoint_id=answer.checkpoint_id)
    return pb.SavepointResponse(failure=_failure(answer))


def _failure(answer: Answer) -> pb.CheckpointFailure:
    summary = answer.failure.summary if isinstance(answer, OperationFailed) else f"unexpected answer {answer}"
    reason = checkpoint_pb2.CHECKPOINT_FAILURE_REASON_TRIGGER_CHECKPOINT_FAILURE
    return pb.CheckpointFailure(reason=reason, message=summary)
