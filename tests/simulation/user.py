"""What the user of a simulated job does while it runs: checkpoints and savepoints on demand, rescaling, stop and go on,
TaskManagers that are drained and then ended.

Decides when to ask and what to do with the answer. An operation that is refused or fails is the user's bad luck, and
nothing more: the job has to go on as if nobody had asked. A job that was stopped with a savepoint is submitted again
from it, under another id and at another parallelism.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from snapline.coordinator.checkpoint.metadata import parse_metadata
from snapline.coordinator.jobmaster.job_master import JobMaster
from snapline.coordinator.jobmaster.operations import (
    Acknowledged,
    Answer,
    CancelJob,
    JobOperation,
    OperationFailed,
    RequestID,
    RescaleJob,
    SnapshotCompleted,
    StopWithSavepoint,
    TakeCheckpoint,
    TakeSavepoint,
)
from snapline.coordinator.resource.events import DrainRequested
from snapline.dataflow.elements import SnapshotType
from snapline.dataflow.graph.jobgraph import JobGraph, SavepointRestoreSettings
from snapline.dataflow.ids import JobID, ResourceID
from snapline.dataflow.partitioning import Partitioning
from snapline.testing.simulated.coordinator_process import SimulatedCoordinator
from snapline.testing.simulated.rescaling import draw_rescaled
from snapline.testing.simulated.task_manager_process import SimulatedTaskManager
from snapline.testing.simulated.world import Violation, World
from tests.simulation.electing_cluster import ElectingCluster
from tests.simulation.options import Options
from tests.simulation.strangers import STRANGER, name_precious_files

SAVEPOINTS = "/savepoints"
CHECKPOINTS = "checkpoints"
ENDS_WITH_SAVEPOINT = ("stop", "drain")
NOWHERE = "the beginning"
ASK_AGAIN_MS = 50
LARGEST_PARALLELISM = 4
COORDINATOR_DIES = frozenset({"kill coordinator", "kill at storage", "replace coordinator"})


class User:
    """One user with one job."""

    def __init__(self, world: World, cluster: ElectingCluster, options: Options, graph: JobGraph) -> None:
        self._world = world
        self._cluster = cluster
        self._options = options
        self._rng = world.random("user")
        self.graph = graph
        """The job that runs now."""
        self.stopped_at: str | None = None
        """Where to go on from, once the job has finished."""
        self.drained_with: int | None = None
        """The savepoint that was the last thing the job did, as far as the user knows."""
        self.gave_up = False
        """The job was cancelled, and nothing of it was to be kept."""
        self.retained = 0
        """The checkpoint of the cancelled job that the user goes on from."""
        self.owned: list[str] = []
        """Files that belong to the user."""
        self.precious: dict[str, bytes] = {}
        """Files of somebody else that a snapshot named which the job claimed."""
        self.may_have_drained_with: list[int] = []
        """Savepoints of which the user does not know whether they were the last thing the job did."""
        self._stop_is_unclear = False
        """The job was to stop, and whoever was asked died before the answer, or did not lead any more when it gave
        it."""
        self._waiting: list[tuple[SimulatedCoordinator, str, RequestID]] = []
        self._drained: dict[RequestID, SimulatedTaskManager] = {}
        """TaskManagers that the job is asked to leave."""
        self._may_rescale = all(stage.partitioning is not Partitioning.BROADCAST for stage in options.job.stages)

    def start(self) -> None:
        for at_ms, kind in self._options.operations:
            self._world.clock.after(at_ms, self._asking(kind))

    def finds_job_cancelled(self, latest_checkpoint: int) -> None:
        """Its last checkpoint was retained; without one there is nothing to go on from."""
        self.retained = latest_checkpoint
        self.stopped_at = (
            f"/{CHECKPOINTS}/{self.graph.job_id}/chk-{latest_checkpoint}" if latest_checkpoint else NOWHERE
        )
        self._world.story.say("user", f"finds that the job was cancelled, with checkpoint {latest_checkpoint}")

    def gives_up(self) -> None:
        """The job was cancelled for good."""
        self.gave_up = True
        self._world.story.say("user", "finds that the job was cancelled, and leaves it at that")

    def go_on(self) -> JobGraph:
        """The job once more, from the snapshot that it was stopped with."""
        path, self.stopped_at = self.stopped_at, None
        assert path is not None
        graph = self.rescaled(self.graph) if self._may_rescale and self._rng.random() < 0.6 else self.graph
        claim = self._rng.random() < 0.5
        if path != NOWHERE and self.retained:
            directory = f"{CHECKPOINTS}/{self.graph.job_id}/"
            claimed = f"{directory}chk-{self.retained}/"
            files = [file for file, _ in self._cluster.disk.files.list(directory.rstrip("/"))]
            self.owned += [file for file in files if not (claim and file.startswith(claimed))]
        if claim and path != NOWHERE and STRANGER in self._options.faults.enabled:
            self.precious |= name_precious_files(self._cluster.disk.files, path)
            self.owned += self.precious
        self.graph = replace(
            graph,
            job_id=JobID(f"6{self.graph.job_id[1:]}"),
            savepoint_restore=SavepointRestoreSettings("" if path == NOWHERE else path, claim=claim),
        )
        self._world.story.say("user", f"starts the job again from {path}, parallelism {_shape(self.graph)}")
        return self.graph

    def rescaled(self, graph: JobGraph) -> JobGraph:
        """The same job with other parallelism; what is connected by a forward edge keeps it equal."""
        options = self._cluster.options
        others = options.another_job.slots if options.another_job else 0
        most = min(LARGEST_PARALLELISM, options.task_managers * options.slots - others)
        return draw_rescaled(graph, self._rng, most)

    # --- asking -------------------------------------------------------------------------------------------------------

    def _asking(self, kind: str) -> Callable[[], None]:
        return lambda: self._ask(kind)

    def _ask(self, kind: str) -> None:
        coordinator = self._cluster.coordinator
        if coordinator is None or not coordinator.alive or self.graph.job_id not in coordinator.runners:
            self._world.story.say("user", f"wants {kind}: nobody is there")
            return
        if kind == "rescale" and not self._may_rescale:
            return
        if self._is_stopping and self._answers_may_be_lost:
            self._world.story.say("user", f"does not ask for {kind}: the job is being stopped")
            return
        if kind == "leave":
            request_id = self._drain_a_task_manager(coordinator)
            if request_id is None:
                return
        else:
            request_id = coordinator.operate(self.graph.job_id, self._operation(kind))
            self._world.story.say("user", f"wants {kind}")
        self._waiting.append((coordinator, kind, request_id))
        self._world.clock.after(ASK_AGAIN_MS, self._look_again)

    def _drain_a_task_manager(self, coordinator: SimulatedCoordinator) -> RequestID | None:
        """One that the job has slots of gets no new tasks, and the job is to leave it; None: there is none."""
        core = coordinator.runners[self.graph.job_id].core
        alive = self._cluster.alive()
        there = [] if core is None else [each for each in alive if _slots_of(core, each)]
        if not there:
            self._world.story.say("user", "finds no TaskManager of the job to drain")
            return None
        chosen = self._rng.choice(there)
        self._world.story.say("user", f"drains {chosen.name}")
        coordinator.resource_manager.tell(DrainRequested(ResourceID(chosen.name), True))
        request_id = coordinator.operate(self.graph.job_id, RescaleJob({}, (ResourceID(chosen.name),)))
        self._drained[request_id] = chosen
        return request_id

    def _drained_or_not(self, coordinator: SimulatedCoordinator, request_id: RequestID, answer: Answer | None) -> None:
        """What the job has left is ended, for another one to come; where it cannot, there are tasks again."""
        drained = self._drained.pop(request_id, None)
        if drained is None:
            return
        if not isinstance(answer, Acknowledged):
            if coordinator.alive and drained not in self._drained.values():  # who asked once more still waits
                coordinator.resource_manager.tell(DrainRequested(ResourceID(drained.name), False))
            return
        runner = coordinator.runners.get(self.graph.job_id)
        leads = coordinator.alive and coordinator is self._cluster.coordinator
        if leads and runner is not None and runner.core is not None and _slots_of(runner.core, drained):
            raise Violation(f"the job was to leave {drained.name}, which was said to be done, and has slots of it")
        drained.kill()
        if leads:  # the one that comes has the same name here, where a real one has another
            coordinator.resource_manager.tell(DrainRequested(ResourceID(drained.name), False))

    @property
    def _is_stopping(self) -> bool:
        return self._stop_is_unclear or any(kind in ENDS_WITH_SAVEPOINT for _, kind, _ in self._waiting)

    @property
    def _answers_may_be_lost(self) -> bool:
        """Then a checkpoint after the savepoint would look as if the job had not been stopped."""
        return self._options.has_zookeeper or bool(self._options.faults.enabled & COORDINATOR_DIES)

    def _operation(self, kind: str) -> JobOperation:
        match kind:
            case "savepoint":
                return TakeSavepoint(SAVEPOINTS)
            case "checkpoint":
                return TakeCheckpoint(full=self._rng.random() < 0.5)
            case "cancel":
                return CancelJob()
            case "stop" | "drain":
                return StopWithSavepoint(SAVEPOINTS, drain=kind == "drain")
            case _:
                rescaled = self.rescaled(self.graph)
                return RescaleJob({vertex.vertex_id: vertex.parallelism for vertex in rescaled.vertices})

    def _look_again(self) -> None:
        if self.settled():
            return
        self._world.clock.after(ASK_AGAIN_MS, self._look_again)

    def settled(self) -> bool:
        """Take the answers that have come; whether nothing is waited for."""
        waiting, self._waiting = self._waiting, []
        for coordinator, kind, request_id in waiting:
            answer = coordinator.answers.get(request_id)
            if answer is not None:
                self._drained_or_not(coordinator, request_id, answer)
                self._answered(kind, answer)
                is_refusal = isinstance(answer, OperationFailed) and kind in ENDS_WITH_SAVEPOINT
                if is_refusal and coordinator is not self._cluster.coordinator:
                    self._stop_is_unclear = True
            elif coordinator.alive and self.graph.job_id in coordinator.runners:
                self._waiting.append((coordinator, kind, request_id))
            elif kind in ENDS_WITH_SAVEPOINT:
                self._stop_is_unclear = True
            else:
                self._drained_or_not(coordinator, request_id, None)
        return not self._waiting

    def finds_job_finished(self, latest_checkpoint: int) -> None:
        """Whether it was stopped, when nobody said: a savepoint later than its last checkpoint is the last thing that
        it did."""
        if not self._stop_is_unclear:
            return
        self._stop_is_unclear = False
        found = [
            (metadata.checkpoint_id, metadata.snapshot_type, f"/{path.removesuffix('/_metadata')}")
            for path, _ in self._cluster.disk.files.list(SAVEPOINTS.strip("/"))
            if path.endswith("/_metadata")
            and (metadata := parse_metadata(self._cluster.disk.files.get(path), path)).job_id == self.graph.job_id
            and metadata.snapshot_type.is_synchronous
        ]
        self.may_have_drained_with = [
            checkpoint_id for checkpoint_id, kind, _ in found if kind is SnapshotType.SAVEPOINT_TERMINATE
        ]
        newest, kind, path = max(found, key=lambda one: one[0], default=(0, SnapshotType.SAVEPOINT, ""))
        if newest > latest_checkpoint and kind is not SnapshotType.SAVEPOINT_TERMINATE:
            self._world.story.say("user", f"finds that the job has stopped with savepoint {newest}")
            self.stopped_at = path

    def _answered(self, kind: str, answer: Answer) -> None:
        match answer:
            case SnapshotCompleted(checkpoint_id, path):
                self._world.story.say("user", f"{kind}: {checkpoint_id} in {path}")
                if kind == "drain":
                    self.drained_with = checkpoint_id
                elif kind == "stop":
                    self.stopped_at = path
            case OperationFailed(failure) if kind == "drain":
                self._world.story.say("user", f"drain failed: {failure.summary}")
                self._stop_is_unclear = True
            case OperationFailed(failure):
                self._world.story.say("user", f"{kind} failed: {failure.summary}")
            case Acknowledged():
                self._world.story.say("user", f"{kind}: done")


def _shape(graph: JobGraph) -> str:
    return "/".join(str(vertex.parallelism) for vertex in graph.vertices)


def _slots_of(job: JobMaster, process: SimulatedTaskManager) -> bool:
    """Whether the job has slots of this TaskManager."""
    return bool(job.scheduler.pool.allocations_of(ResourceID(process.name)))
