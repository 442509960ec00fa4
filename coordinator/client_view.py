"""The coordinator as the client service sees it: submissions and operations go to the Dispatcher, figures come from
actors.

Implements `snapline.coordinator.rpc.client_service.Cluster`; everything here runs on the server's loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from typing import Any

import pykka

from snapline.coordinator.dispatcher.dispatcher import Dispatcher, JobOverview
from snapline.coordinator.dispatcher.events import OperateJob, SubmitJob
from snapline.coordinator.job_registry import JobRegistry, read_actor
from snapline.coordinator.jobmaster.operations import Answer, JobOperation, JobSubmitted, OperationFailed
from snapline.coordinator.resource.events import (
    DrainRequested,
    ThreadDumpRequested,
    WorkerEnded,
    WorkerPoolClosed,
    WorkersUnavailable,
)
from snapline.coordinator.resource.resource_manager import ResourceManager
from snapline.coordinator.rpc import views
from snapline.coordinator.rpc.job_pages import page_of_jobs, shorten_causes
from snapline.coordinator.rpc.pending_replies import PendingReplies
from snapline.coordinator.rpc.pending_thread_dumps import PendingThreadDumps
from snapline.coordinator.snapshot_state import SnapshotStates
from snapline.dataflow.config import Configuration
from snapline.dataflow.failures import Blame, SerializedFailure
from snapline.dataflow.graph.jobgraph import JobGraph
from snapline.dataflow.ids import ExecutionAttemptID, JobID, LeaderSessionID, ResourceID
from snapline.dataflow.wire.codec import decode_job_status, encode_into
from snapline.dataflow.wire.messages import JobStatus, RequestThreadDump, ThreadDump
from snapline.protos import client_pb2 as pb
from snapline.runtime.actor import tell_if_alive
from snapline.runtime.cores.machine import check
from snapline.runtime.logs import Logger, change_level
from snapline.runtime.process_figures import ProcessWatch
from snapline.runtime.version import PROTOCOL_VERSION

DUMP_TIMEOUT_SECONDS = 5.0
"""How long after the end of its sampling a TaskManager may take to say what it has seen."""
HEAP_TIMEOUT_SECONDS = 15.0
"""Likewise, when it also has to look through its memory."""


class ClientView:
    """What the coordinator of one leadership shows to clients."""

    def __init__(
        self,
        dispatcher: pykka.ActorRef[Any],
        resource_manager: pykka.ActorRef[Any],
        registry: JobRegistry,
        replies: PendingReplies,
        thread_dumps: PendingThreadDumps,
        snapshots: SnapshotStates,
        configuration: Configuration,
        logger: Logger,
        version: str,
        session: LeaderSessionID,
        start_time_ms: int,
    ) -> None:
        self._dispatcher = dispatcher
        self._resource_manager = resource_manager
        self._registry = registry
        self._replies = replies
        self._thread_dumps = thread_dumps
        self._snapshots = snapshots
        self._configuration = configuration
        self._logger = logger
        self._version = version
        self._session = session
        self._start_time_ms = start_time_ms
        self._process = ProcessWatch()

    async def submit(self, job_graph: JobGraph) -> Answer:
        known = await self._registry.submission_digest(job_graph.job_id)
        if known is not None and known == job_graph.submission_digest:
            return JobSubmitted(job_graph.job_id)
        if known is not None:
            line = (
                f"job {job_graph.job_id} was submitted before, with another graph; a submission needs an id of its own"
            )
            return OperationFailed(SerializedFailure(line, Blame.USER, retryable=False))
        request_id, answer = self._replies.draw(job_graph.job_id)
        return await self._told(SubmitJob(request_id, job_graph), answer)

    async def operate(self, job_id: JobID, operation: JobOperation) -> Answer:
        request_id, answer = self._replies.draw(job_id)
        return await self._told(OperateJob(request_id, job_id, operation), answer)

    async def _told(self, event: Any, answer: asyncio.Future[Answer]) -> Answer:
        if not tell_if_alive(self._dispatcher, event):
            answer.cancel()
            return OperationFailed(SerializedFailure("the coordinator is shutting down", Blame.EXTERNAL))
        return await answer

    async def list_jobs(self, page_size: int = 0, page_token: str = "") -> pb.ListJobsResponse:
        known = self._registry.start_times()
        dispatched = {job.job_id: job for job in await self._ask_dispatcher()}
        times = {job_id: job.start_time_ms for job_id, job in dispatched.items()} | known
        shown, next_page_token = page_of_jobs(times, page_size, page_token)
        found = await self._registry.overviews(shown)
        found |= {
            each: minimal_details(dispatched[each]).overview
            for each in shown
            if each not in found and each in dispatched
        }
        jobs = [shorten_causes(found[job_id]) for job_id in shown if job_id in found]
        return pb.ListJobsResponse(jobs=jobs, next_page_token=next_page_token)

    async def job_graph(self, job_id: JobID) -> JobGraph | None:
        job = next((job for job in self._registry.live() if job.master.job_id == job_id), None)

        def read(_core: Any) -> JobGraph:
            return check(job, "it was found").master.scheduler.graph.job_graph

        return None if job is None else await read_actor(job.actor, read)

    async def attempts_of(self, job_id: JobID) -> frozenset[ExecutionAttemptID]:
        job = next((job for job in self._registry.live() if job.master.job_id == job_id), None)

        def read(_core: Any) -> frozenset[ExecutionAttemptID]:
            graph = check(job, "it was found").master.scheduler.graph
            return frozenset(execution.attempt_id for execution in graph.executions)

        return frozenset() if job is None else await read_actor(job.actor, read)

    async def knows(self, job_id: JobID) -> bool:
        return job_id in self._registry or any(job.job_id == job_id for job in await self._ask_dispatcher())

    async def leads(self) -> bool:
        def read(dispatcher: Dispatcher) -> bool:
            return dispatcher.is_leader

        try:
            return await read_actor(self._dispatcher, read)
        except pykka.ActorDeadError:
            return False

    async def is_none(self, job_id: JobID) -> bool:
        def read(dispatcher: Dispatcher) -> bool:
            return dispatcher.is_leader and dispatcher.find(job_id) is None

        await self._registry.archive_read()
        return job_id not in self._registry and await read_actor(self._dispatcher, read)

    async def has_started(self, job_id: JobID) -> bool:
        return job_id in self._registry

    async def is_accepted(self, job: str) -> bool:
        """Whether a job with this id or name is here that has not ended; its JobMaster may not have begun. True as well
        while the Dispatcher does not answer, which alone knows, or does not lead, and so has no jobs."""

        def read(dispatcher: Dispatcher) -> bool:
            jobs = [each for each in dispatcher.jobs() if not each.status.is_globally_terminal]
            return not dispatcher.is_leader or any(job in (each.job_id, each.name) for each in jobs)

        try:
            return await read_actor(self._dispatcher, read)
        except (pykka.ActorDeadError, pykka.Timeout):
            return True

    async def job_details(self, job_id: JobID) -> pb.JobDetails | None:
        details = await self._registry.details(job_id)
        if details is not None:
            return details
        jobs = {job.job_id: job for job in await self._ask_dispatcher()}
        # the Dispatcher has answered, so a JobMaster that it was about to start is there now
        details = await self._registry.details(job_id)
        return details if details is not None or job_id not in jobs else minimal_details(jobs[job_id])

    async def list_checkpoints(self, job_id: JobID) -> pb.ListCheckpointsResponse | None:
        found = await self._registry.checkpoints(job_id)
        if found is None and await self.knows(job_id):
            # accepted, and its JobMaster has only now begun, or never did
            found = await self._registry.checkpoints(job_id) or pb.ListCheckpointsResponse(counts=pb.CheckpointCounts())
        return found

    async def checkpoint_details(self, job_id: JobID, checkpoint_id: int) -> pb.CheckpointDetails | None:
        return await self._registry.checkpoint(job_id, checkpoint_id)

    async def snapshot_state(self, path: str) -> pb.SnapshotState:
        return await self._snapshots.read(path)

    async def configuration(self) -> pb.ClusterConfiguration:
        return views.cluster_configuration(self._configuration)

    async def required_resources(self) -> pb.RequiredResources:
        def read(manager: ResourceManager) -> pb.RequiredResources:
            return views.required_resources(manager)

        return await read_actor(self._resource_manager, read)

    async def list_task_managers(self) -> pb.ListTaskManagersResponse:
        def read(manager: ResourceManager) -> pb.ListTaskManagersResponse:
            return pb.ListTaskManagersResponse(
                task_managers=views.task_managers(manager), lost=manager.lost_task_managers
            )

        return await read_actor(self._resource_manager, read)

    async def jobs_with_slots_of(self, resource_id: ResourceID) -> frozenset[JobID] | None:
        def read(manager: ResourceManager) -> frozenset[JobID] | None:
            slots = manager.slot_manager
            return frozenset(slots.jobs_on(resource_id)) if slots.knows_slots_of(resource_id) else None

        return await read_actor(self._resource_manager, read)

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
        request_id, answer = self._thread_dumps.draw(resource_ids)
        request = RequestThreadDump(request_id, duration_ms, interval_ms, heap, log_lines, log_level)
        asked = tuple(ResourceID(resource_id) for resource_id in resource_ids)
        tell_if_alive(self._resource_manager, ThreadDumpRequested(request, asked))
        return await answer(duration_ms / 1000 + (HEAP_TIMEOUT_SECONDS if heap else DUMP_TIMEOUT_SECONDS))

    async def change_log_level(self, level: str) -> None:
        change_level(self._logger, level)

    async def set_draining(self, resource_id: str, *, draining: bool) -> None:
        tell_if_alive(self._resource_manager, DrainRequested(ResourceID(resource_id), draining))

    async def now_ms(self) -> int:
        return self._registry.now_ms

    async def leads_since_ms(self) -> int:
        return self._start_time_ms

    async def report_workers(self, report: pb.ReportWorkersRequest) -> None:
        for worker in report.ended:
            tell_if_alive(self._resource_manager, WorkerEnded(ResourceID(worker.resource_id), worker.reason))
        limit = WorkersUnavailable(report.available_slots, report.reason, report.launcher_id)
        tell_if_alive(self._resource_manager, WorkerPoolClosed(report.launcher_id) if report.closed else limit)

    async def overview(self) -> pb.ClusterOverview:
        resources = await self.required_resources()
        statuses = [decode_job_status(job.status) for job in (await self.list_jobs()).jobs]
        running = sum(not (status.is_globally_terminal or status is JobStatus.SUSPENDED) for status in statuses)
        overview = pb.ClusterOverview(
            version=self._version,
            protocol_version=PROTOCOL_VERSION,
            leader_session_id=self._session,
            start_time_ms=self._start_time_ms,
            task_managers=resources.registered_task_managers,
            slots=resources.registered_slots,
            free_slots=resources.free_slots,
            jobs_running=running,
            jobs_ended=len(statuses) - running,
        )
        encode_into(self._process.read(), overview.process)
        return overview

    async def changed(self, job_id: JobID | None, timeout_seconds: float) -> None:
        await self._registry.changed(job_id, timeout_seconds)

    async def _ask_dispatcher(self) -> tuple[JobOverview, ...]:
        def read(dispatcher: Dispatcher) -> tuple[JobOverview, ...]:
            return dispatcher.jobs()

        return await read_actor(self._dispatcher, read)


def minimal_details(job: JobOverview) -> pb.JobDetails:
    """What the Dispatcher alone knows."""
    details = views.job_that_never_ran(
        job.job_id, job.name, job.status, job.start_time_ms, job.end_time_ms, job.failure
    )
    details.submission_digest = job.submission_digest
    return details
