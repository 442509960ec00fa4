"""A job of two vertices, its messages, and a coordinator whose effects are answered by hand."""

from __future__ import annotations

from typing import Any

from snapline.coordinator.checkpoint.checkpoint_coordinator import CheckpointCoordinator
from snapline.coordinator.checkpoint.configuration import CheckpointCoordinatorConfiguration
from snapline.coordinator.checkpoint.effects import CheckpointCoordinatorEffect, PersistStatistics, ReportCheckpoint
from snapline.coordinator.checkpoint.events import (
    AcknowledgesReceived,
    CheckpointIdDrawn,
    CheckpointRequested,
    CheckpointRequestID,
    CompletedCheckpointsRecovered,
    ExecutionChange,
    ExecutionsChanged,
    RestoreLatest,
)
from snapline.dataflow.graph.jobgraph import JobEdge, JobVertex, OperatorNode
from snapline.dataflow.ids import CheckpointID, ExecutionAttemptID, JobID, JobVertexID, OperatorID
from snapline.dataflow.key_groups import KeyGroupRange, compute_key_group_range_for_operator_index
from snapline.dataflow.partitioning import Partitioning
from snapline.dataflow.snapshot.handles import (
    ByteStreamStateHandle,
    KeyedStateHandle,
    OperatorState,
    OperatorStateEntry,
    OperatorStateHandle,
    OperatorStateMode,
    OperatorSubtaskState,
    SegmentStateHandle,
    TaskStateSnapshot,
)
from snapline.dataflow.wire.messages import AcknowledgeCheckpoint, ExecutionState

JOB = JobID("job")
SOURCE, SINK = JobVertexID("src"), JobVertexID("sink")


def vertex(
    name: str, parallelism: int = 1, max_parallelism: int = 8, *operators: str, explicit: bool = False
) -> JobVertex:
    nodes = tuple(OperatorNode(OperatorID(uid), uid, uid, b"") for uid in operators or (name,))
    return JobVertex(JobVertexID(name), name, parallelism, max_parallelism, nodes, max_parallelism_explicit=explicit)


def edge(source: str, target: str, partitioning: Partitioning = Partitioning.HASH) -> JobEdge:
    return JobEdge(f"{source}-{target}", JobVertexID(source), OperatorID(source), JobVertexID(target), 0, partitioning)


def attempt(name: str, subtask: int = 0, number: int = 0) -> ExecutionAttemptID:
    return ExecutionAttemptID("graph", JobVertexID(name), subtask, number)


def running(*attempts: ExecutionAttemptID, state: ExecutionState = ExecutionState.RUNNING) -> ExecutionsChanged:
    return ExecutionsChanged(tuple(ExecutionChange(one, state) for one in attempts))


def keyed(path: str, keys: KeyGroupRange = KeyGroupRange(0, 7), shared_key: str = "") -> OperatorSubtaskState:  # noqa: B008
    return OperatorSubtaskState(managed_keyed=(KeyedStateHandle(keys, SegmentStateHandle(path, 0, 10), shared_key),))


def listed(mode: OperatorStateMode, data: bytes, name: str = "list") -> OperatorSubtaskState:
    """List state of one element per byte."""
    entry = OperatorStateEntry(name, mode, tuple((offset, 1) for offset in range(len(data))))
    return OperatorSubtaskState(managed_operator=(OperatorStateHandle(ByteStreamStateHandle(data), (entry,)),))


def snapshot(**operators: OperatorSubtaskState) -> TaskStateSnapshot:
    return TaskStateSnapshot({OperatorID(uid): state for uid, state in operators.items()})


def keyed_operator(uid: str, parallelism: int, max_parallelism: int = 8) -> OperatorState:
    states = {
        subtask: keyed(
            f"{uid}-{subtask}", compute_key_group_range_for_operator_index(max_parallelism, parallelism, subtask)
        )
        for subtask in range(parallelism)
    }
    return OperatorState(OperatorID(uid), uid, uid, parallelism, max_parallelism, states)


class Coordinator:
    """A coordinator of `src` (2 subtasks) and `sink` (1), started with an empty store, all tasks running. Statistics
    and lines for the log are left out of what it answers."""

    def __init__(self, *, has_directory: bool = True, **settings: Any) -> None:
        self.core = CheckpointCoordinator(
            JOB,
            "job",
            CheckpointCoordinatorConfiguration(**settings),
            (vertex("src", 2), vertex("sink")),
            (edge("src", "sink"),),
            store_survives_suspension=True,
            has_directory=has_directory,
        )
        self.now_ms = 1_000_000
        self.sources = (attempt("src", 0), attempt("src", 1))
        self.tasks = (*self.sources, attempt("sink"))
        self.tell(RestoreLatest(CheckpointRequestID("first")))
        self.tell(CompletedCheckpointsRecovered(()))
        self.tell(running(*self.tasks))

    def tell(self, event: Any) -> list[CheckpointCoordinatorEffect]:
        effects = self.core.handle(event, self.now_ms)
        return [effect for effect in effects if not isinstance(effect, PersistStatistics | ReportCheckpoint)]

    def trigger(self, name: str, checkpoint_id: int) -> list[CheckpointCoordinatorEffect]:
        effects = self.tell(CheckpointRequested(CheckpointRequestID(name)))
        return effects + self.tell(CheckpointIdDrawn(CheckpointRequestID(name), CheckpointID(checkpoint_id)))

    def acknowledge(
        self, checkpoint_id: int, *attempts: ExecutionAttemptID, state: TaskStateSnapshot | None = None
    ) -> list[CheckpointCoordinatorEffect]:
        return self.tell(
            AcknowledgesReceived(
                tuple(
                    AcknowledgeCheckpoint(JOB, one, CheckpointID(checkpoint_id), state=state or TaskStateSnapshot())
                    for one in attempts or self.tasks
                )
            )
        )
