"""The coordinator of a local run: the ResourceManager core, the JobMaster core with its CheckpointCoordinator, and
their effects.

Plays `snapline.coordinator.cluster_entrypoint` and `job_master_runner` for one job. Durable is what lies in the
checkpoint directory; who has died takes the rest along, as with `high-availability.type: NONE`.
"""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable
from typing import Any

from snapline.coordinator.actors.checkpoint_io import CheckpointIo
from snapline.coordinator.actors.master_hook_runner import MasterHookRunner
from snapline.coordinator.checkpoint.checkpoint_coordinator import CheckpointCoordinator
from snapline.coordinator.checkpoint.configuration import CheckpointCoordinatorConfiguration
from snapline.coordinator.checkpoint.events import StartCheckpointScheduler, StopCheckpointScheduler
from snapline.coordinator.execution.execution_graph import check_job_graph
from snapline.coordinator.execution.given_slots import GivenSlots
from snapline.coordinator.execution.restart_strategy import restart_strategy_of
from snapline.coordinator.ha.embedded import EmbeddedHighAvailability
from snapline.coordinator.jobmaster.effects import (
    ForgetJobGraph,
    JobReachedTerminalState,
    ReportJobStatus,
    UpdateJobGraph,
)
from snapline.coordinator.jobmaster.events import (
    JobGraphForgotten,
    JobGraphUpdated,
    JobMasterStarted,
    OperationRequested,
)
from snapline.coordinator.jobmaster.identity import JobMasterIdentity
from snapline.coordinator.jobmaster.job_master import JobMaster
from snapline.coordinator.jobmaster.job_master_settings import JobMasterSettings
from snapline.coordinator.jobmaster.operations import Answer, JobOperation, OperationFailed, Reply, RequestID
from snapline.coordinator.resource.effects import DeclareWorkers, ReleaseWorker
from snapline.coordinator.resource.events import ResourceManagerStarted
from snapline.coordinator.resource.resource_manager import ResourceManager, ResourceManagerSettings
from snapline.coordinator.restorable import check_restorable
from snapline.coordinator.rpc import views
from snapline.coordinator.snapshots import read_snapshot
from snapline.dataflow.api.master_hooks import create_hooks
from snapline.dataflow.config import CHECKPOINTS_DIRECTORY, Configuration
from snapline.dataflow.errors import JobDefinitionError
from snapline.dataflow.failures import Blame, SerializedFailure
from snapline.dataflow.graph.jobgraph import JobGraph
from snapline.dataflow.ids import LeaderSessionID
from snapline.dataflow.wire.messages import JobStatus
from snapline.local.actors import LocalActor, LocalConnections
from snapline.local.event_loop import EventLoop, LoopIo
from snapline.protos import client_pb2 as pb
from snapline.runtime.cores.connections import PeerKind, ResourceManagerLeaderChanged
from snapline.runtime.storage.memory_storage import MemoryStorage
from snapline.runtime.storage.state_storages import StateStorages
from snapline.runtime.storage.storage_probe import probe_storage
from snapline.runtime.version import VERSION

ADDRESS = "local"
"""The address at which everybody is found within the process."""


class LocalCoordinator:
    """The coordinator's part of one job that runs in this process."""

    def __init__(
        self,
        graph: JobGraph,
        configuration: Configuration,
        storages: StateStorages,
        loop: EventLoop,
        connections: LocalConnections,
        logger: Any,
    ) -> None:
        """Raises JobDefinitionError, ConfigurationError, NoSnapshot or StorageError for a job that cannot run."""
        self.graph = graph
        self._loop = loop
        self._connections = connections
        self._answers: dict[RequestID, Callable[[Answer], None]] = {}
        self._ended_view: tuple[pb.JobDetails, pb.ListCheckpointsResponse] | None = None
        self.has_ended = False
        job = Configuration(graph.configuration)
        try:
            check_job_graph(graph)
        except ValueError as error:
            raise JobDefinitionError(str(error)) from None
        if graph.savepoint_restore.path:
            check_restorable(storages, read_snapshot(storages, graph.savepoint_restore.path), graph)
        self._checkpointing = CheckpointCoordinatorConfiguration.from_configuration(job)
        self._session = LeaderSessionID(uuid.uuid4().hex)
        manager_session = LeaderSessionID(uuid.uuid4().hex)
        self.resource_manager_session = manager_session
        settings = ResourceManagerSettings.from_configuration(VERSION, configuration)
        manager = ResourceManager(settings, manager_session, GivenSlots(lambda: uuid.uuid4().hex))
        self._manager = LocalActor("resource-manager", manager, loop)
        self._manager.performs(
            {
                **connections.performers(self._manager),
                DeclareWorkers: lambda _: None,
                ReleaseWorker: lambda _: None,
            }
        )
        stores = EmbeddedHighAvailability(MemoryStorage("jobs"), None, durable=False).open_job(graph.job_id)
        base = job.get_option(CHECKPOINTS_DIRECTORY)
        if base and self._checkpointing.is_periodic:
            probe_storage(storages.at(base))
        directory = f"{storages.at(base).url.rstrip('/')}/{graph.job_id}" if base else ""
        io: Any = LoopIo(loop)  # the part of IoExecutor that is used
        self._hooks = MasterHookRunner(
            create_hooks(graph.master_hooks), self._checkpointing.timeout_ms, io, self._tell_master
        )
        self._checkpoints = CheckpointCoordinator(
            graph.job_id,
            graph.name,
            self._checkpointing,
            graph.vertices,
            graph.edges,
            store_survives_suspension=stores.survives_suspension,
            master_hooks=self._hooks.registered(),
            has_staged_rows=bool(graph.staged_directories),
            has_directory=bool(directory),
        )
        self._core = JobMaster(
            graph,
            JobMasterIdentity(self._session, ADDRESS, uuid.uuid4().hex),
            JobMasterSettings.from_configuration(configuration, job),
            restart_strategy_of(job, random.random),
            self._checkpoints,
            directory,
            lambda: uuid.uuid4().hex,
            loop.clock.now_ms(),
        )
        self._master = LocalActor("job-master", self._core, loop)
        checkpoint_io = CheckpointIo(
            graph.job_id,
            directory,
            storages,
            stores,
            io,
            loop,
            loop.clock,
            self._master.tell,
            logger,
            graph.staged_directories,
        )
        self._master.performs(
            {
                **connections.performers(self._master),
                **checkpoint_io.performers(self._checkpoints.stats),
                **self._hooks.performers(),
                Reply: lambda effect: self._answer(effect.request_id, effect.answer),
                ReportJobStatus: self._status_changed,
                UpdateJobGraph: lambda _: self._master.tell(JobGraphUpdated()),
                ForgetJobGraph: lambda _: self._master.tell(JobGraphForgotten()),
                JobReachedTerminalState: lambda _: self._end(),
            }
        )

    @property
    def session(self) -> LeaderSessionID:
        """Return the leader session of the job's JobMaster."""
        return self._session

    def start(self) -> None:
        """Start the JobMaster of the job."""
        self._connections.serve(PeerKind.RESOURCE_MANAGER, self._manager)
        self._connections.serve(PeerKind.JOB_MASTER, self._master, self.graph.job_id)
        self._manager.tell(ResourceManagerStarted())
        self._master.tell(JobMasterStarted(recovered=False))
        self._master.tell(ResourceManagerLeaderChanged(ADDRESS, self.resource_manager_session))

    def _tell_master(self, event: Any) -> bool:
        """The hooks are there before their actor."""
        return self._master.tell(event)

    def operate(self, operation: JobOperation, on_answer: Callable[[Answer], None]) -> None:
        """Ask the JobMaster for something. On the loop's thread."""
        request_id = RequestID(uuid.uuid4().hex)
        self._answers[request_id] = on_answer
        if self.has_ended or not self._master.tell(OperationRequested(request_id, operation)):
            self._answer(request_id, self._over())

    def details(self) -> pb.JobDetails:
        """The job as it is now, or was at its end."""
        if self._ended_view is not None:
            return self._ended_view[0]
        return views.job_details(self._core, self._checkpoints.stats.create_snapshot())

    def checkpoints(self) -> pb.ListCheckpointsResponse:
        """Return the counts, the history and the summary of the job's checkpoints."""
        if self._ended_view is not None:
            return self._ended_view[1]
        retained = self._checkpoints.publication.retained_ids
        snapshot = self._checkpoints.stats.create_snapshot()
        return views.list_checkpoints(self._core, snapshot, self._loop.clock.now_ms(), retained)

    def stop(self) -> None:
        """Stop the coordinator, which hears nothing any more."""
        self._hooks.close()
        self._master.stop()
        self._manager.stop()
        for request_id in list(self._answers):
            self._answer(request_id, self._over())

    def _answer(self, request_id: RequestID, answer: Answer) -> None:
        on_answer = self._answers.pop(request_id, None)
        if on_answer is not None:
            on_answer(answer)

    def _over(self) -> OperationFailed:
        return OperationFailed(SerializedFailure(f"job {self.graph.name!r} is {self._core.status.value}", Blame.USER))

    def _status_changed(self, effect: ReportJobStatus) -> None:
        """Start or stop periodic checkpoints, as the CheckpointCoordinatorDeActivator does."""
        if effect.change.status is JobStatus.RUNNING:
            least, most = self._checkpointing.min_pause_ms, self._checkpointing.effective_interval_ms
            delay_ms = random.randint(min(least, most), most)  # noqa: S311 - as above
            self._master.tell(StartCheckpointScheduler(delay_ms))
        else:
            self._master.tell(StopCheckpointScheduler())

    def _end(self) -> None:
        self._ended_view = (self.details(), self.checkpoints())
        self.has_ended = True
        self._connections.drop(self._master)
        self._master.stop()
        for request_id in list(self._answers):
            self._answer(request_id, self._over())
