"""A job in one process, one thread and no time: real tasks over the local exchange, a coordinator of a few lines.

Built from a StreamGraph by the real translation; restored through the real state assignment. Tests drive it by hand:
`run` until nothing moves, `trigger`, `complete`, `advance`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import cloudpickle
import pyarrow as pa

from snapline.coordinator.checkpoint.restore.state_assignment import StateAssignment, assign_states
from snapline.coordinator.execution.deployment import consumers_of_producer, producers_of_consumer
from snapline.dataflow.api.connector_api import (
    Committable,
    Committer,
    InputStatus,
    Polled,
    Sink,
    SinkWriter,
    Source,
    SourceReader,
    SourceSplit,
)
from snapline.dataflow.config import Configuration
from snapline.dataflow.elements import AlignmentType, CheckpointOptions, SnapshotType
from snapline.dataflow.graph.jobgraph import JobEdge, JobGraph, JobVertex
from snapline.dataflow.graph.operator_specs import OperatorSpec
from snapline.dataflow.graph.stream_graph import StreamEdge, StreamGraph
from snapline.dataflow.graph.translation import translate
from snapline.dataflow.ids import AllocationID, CheckpointID, ExecutionAttemptID, ExecutionVertexID, JobID, ResourceID
from snapline.dataflow.partitioning import Partitioning
from snapline.dataflow.snapshot.handles import (
    EMPTY_TASK_STATE,
    ByteStreamStateHandle,
    OperatorState,
    OperatorSubtaskState,
    TaskStateSnapshot,
)
from snapline.dataflow.wire.messages import (
    AcknowledgeCheckpoint,
    DeclineCheckpoint,
    EndOfDataReached,
    ExecutionState,
    InputGateDescriptor,
    NotifyCheckpointAborted,
    NotifyCheckpointComplete,
    OperatorDescriptor,
    ReportWatermark,
    ResultPartitionDescriptor,
    ShuffleDescriptor,
    TaskDeploymentDescriptor,
    TaskStateChanged,
    TaskTapped,
    TriggerCheckpoint,
)
from snapline.taskmanager.network.channels.local_exchange import LocalExchange
from snapline.taskmanager.programs.program_place import offer_no_place
from snapline.taskmanager.snapshots.blobs import assemble, plan_blobs
from snapline.taskmanager.state.outside.segment_space import MemorySegmentSpace
from snapline.taskmanager.task.stream_task import ProgressKind, StreamTask
from snapline.taskmanager.threads.push_source_threads import TurnTakingPushSource

JOB = JobID("0" * 32)


class Blob:
    """Restored bytes."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.size = len(data)

    def read_range(self, offset: int, size: int) -> bytes:
        return self.data[offset : offset + size]


class InlineSnapshotSink:
    """Encodes at once, in memory; with `hold`, when told."""

    def __init__(self) -> None:
        self.hold = False
        self.held: list[Callable[[], None]] = []
        self.cancelled: list[int] = []
        self.failing = False
        self.final: list[bool] = []
        """Of the snapshots of operators, in the order in which they came."""

    def start(self, checkpoint_id, target_location, snapshots, channel_state, on_done) -> None:
        self.final += [snapshot.is_final for _, snapshot in snapshots]

        def perform() -> None:
            if self.failing:
                on_done(OSError("no space left"))
                return
            plans = plan_blobs(snapshots, channel_state)
            handles = []
            for plan in plans:
                handles.append(ByteStreamStateHandle(bytes(plan.encode())))
                plan.release()
            on_done(assemble(plans, handles))

        if self.hold:
            self.held.append(perform)
        else:
            perform()

    def cancel(self, checkpoint_id: CheckpointID) -> None:
        self.cancelled.append(checkpoint_id)

    def acknowledged(self, checkpoint_id: CheckpointID, state: TaskStateSnapshot) -> None: ...

    def settled(self, checkpoint_id: CheckpointID, *, completed: bool) -> None: ...

    def release_held(self) -> None:
        held, self.held = self.held, []
        for perform in held:
            perform()


class TaskWorld:
    """Environment of one attempt."""

    def __init__(self, exchange: LocalExchange) -> None:
        self.exchange = exchange
        self.snapshot_sink = InlineSnapshotSink()
        self.awake = True
        self.states: list[TaskStateChanged] = []
        self.acknowledged: list[AcknowledgeCheckpoint] = []
        self.declined: list[DeclineCheckpoint] = []
        self.ended: list[EndOfDataReached] = []
        self.reported: list[ReportWatermark] = []
        self.tapped: list[TaskTapped] = []

    def open_state(self, handle: ByteStreamStateHandle) -> Blob:
        return Blob(handle.data)

    def unpickle(self, payload: bytes) -> Any:
        return cloudpickle.loads(payload)

    offer_place = staticmethod(offer_no_place)

    def create_push_source_runner(self) -> TurnTakingPushSource:
        return TurnTakingPushSource("push-source")

    def open_segment_space(self, directory: str) -> MemorySegmentSpace:
        return MemorySegmentSpace()

    def clock_ms(self) -> int:
        return 0

    def wake_up(self) -> None:
        self.awake = True

    def task_state_changed(self, change: TaskStateChanged) -> None:
        self.states.append(change)

    def acknowledge_checkpoint(self, message: AcknowledgeCheckpoint) -> None:
        self.acknowledged.append(message)

    def decline_checkpoint(self, message: DeclineCheckpoint) -> None:
        self.declined.append(message)

    def end_of_data_reached(self, message: EndOfDataReached) -> None:
        self.ended.append(message)

    def report_watermark(self, message: ReportWatermark) -> None:
        self.reported.append(message)

    def rows_tapped(self, message: TaskTapped) -> None:
        self.tapped.append(message)


@dataclass
class Running:
    """One task."""

    descriptor: TaskDeploymentDescriptor
    world: TaskWorld
    task: Any
    wake_at_ms: int | None = None
    paused: bool = False

    @property
    def name(self) -> str:
        return f"{self.descriptor.task_name}#{self.descriptor.subtask_index}"

    @property
    def state(self) -> ExecutionState:
        return self.task.state

    @property
    def failure(self):
        return self.world.states[-1].failure

    def notify_complete(self, checkpoint_id: int) -> None:
        """As its JobMaster would."""
        job_id, attempt_id = self.descriptor.job_id, self.descriptor.attempt_id
        self.task.deliver(NotifyCheckpointComplete(job_id, attempt_id, CheckpointID(checkpoint_id), 0))

    def notify_aborted(self, checkpoint_id: int, latest_completed_id: int) -> None:
        """As its JobMaster would."""
        job_id, attempt_id = self.descriptor.job_id, self.descriptor.attempt_id
        latest_id = CheckpointID(latest_completed_id)
        self.task.deliver(NotifyCheckpointAborted(job_id, attempt_id, CheckpointID(checkpoint_id), latest_id, 0))


@dataclass
class Completed:
    """A completed checkpoint."""

    checkpoint_id: CheckpointID
    operators: tuple[OperatorState, ...]


@dataclass
class Operator:
    """One node of the test's graph."""

    name: str
    spec: OperatorSpec
    inputs: Sequence[tuple[int, Partitioning | None, tuple[str, ...], str]] = ()
    """(node, partitioning, key columns, side output tag)."""
    parallelism: int = 1


def edge(node: int, partitioning: Partitioning | None = None, keys: Sequence[str] = (), tag: str = ""):
    return (node, partitioning, tuple(keys), tag)


def job_graph(operators: Sequence[Operator], configuration: dict[str, str] | None = None) -> JobGraph:
    graph = StreamGraph()
    for item in operators:
        node = graph.add(
            item.name,
            item.spec,
            tuple(StreamEdge(source, how, keys, tag) for source, how, keys, tag in item.inputs),
            parallelism=item.parallelism,
        )
        node.uid = item.name
    settings = {"execution.buffer-timeout": "0 ms", "pipeline.auto-watermark-interval": "0 ms", **(configuration or {})}
    return translate(graph, job_id=JOB, name="test", configuration=Configuration(settings)).job_graph


class LocalJob:
    """All tasks of one attempt of a job."""

    def __init__(
        self,
        operators: Sequence[Operator] | JobGraph,
        configuration: dict[str, str] | None = None,
        *,
        restored: Completed | None = None,
        attempt: int = 0,
        max_queued_batches: int = 8,
        now_ms: int = 1_000_000,
    ) -> None:
        self.graph = operators if isinstance(operators, JobGraph) else job_graph(operators, configuration)
        self.exchange = LocalExchange(max_queued_batches=max_queued_batches)
        self.now_ms = now_ms
        self.completed: list[Completed] = []
        states: dict[ExecutionVertexID, TaskStateSnapshot] = {}
        if restored is not None:
            assignment = assign_states(
                restored.operators, self.graph.vertices, self.graph.edges, allow_non_restored_state=False
            )
            assert isinstance(assignment, StateAssignment), assignment
            states = dict(assignment.assignments)
        self.tasks: list[Running] = []
        for vertex in self.graph.vertices:
            for index in range(vertex.parallelism):
                descriptor = self._descriptor(vertex, index, attempt)
                state = states.get(ExecutionVertexID(vertex.vertex_id, index), EMPTY_TASK_STATE)
                if restored is not None:
                    descriptor = replace(descriptor, restore_checkpoint_id=restored.checkpoint_id, restore_state=state)
                world: Any = TaskWorld(self.exchange)
                self.tasks.append(Running(descriptor, world, StreamTask(descriptor, world)))
        self.next_checkpoint_id = (restored.checkpoint_id if restored else 0) + 1

    # --- descriptors ------------------------------------------------------------------------------------------------

    def _attempt(self, vertex: JobVertex, index: int, attempt: int) -> ExecutionAttemptID:
        return ExecutionAttemptID("g", vertex.vertex_id, index, attempt)

    def _descriptor(self, vertex: JobVertex, index: int, attempt: int) -> TaskDeploymentDescriptor:
        by_id = {v.vertex_id: v for v in self.graph.vertices}
        return TaskDeploymentDescriptor(
            job_id=JOB,
            job_name="test",
            attempt_id=self._attempt(vertex, index, attempt),
            allocation_id=AllocationID("a"),
            task_name=vertex.name,
            parallelism=vertex.parallelism,
            max_parallelism=vertex.max_parallelism,
            operators=tuple(
                OperatorDescriptor(
                    o.operator_id,
                    o.uid,
                    o.name,
                    o.payload,
                    o.chained_input,
                    o.chained_side_output_tag,
                    o.chained_input_index,
                )
                for o in vertex.operators
            ),
            input_gates=tuple(
                self._gate(e, by_id[e.source], vertex, index, attempt)
                for e in self.graph.edges
                if e.target == vertex.vertex_id
            ),
            result_partitions=tuple(
                self._partition(e, vertex, by_id[e.target], index)
                for e in self.graph.edges
                if e.source == vertex.vertex_id
            ),
            configuration=self.graph.configuration,
        )

    def _gate(self, e: JobEdge, source: JobVertex, target: JobVertex, index: int, attempt: int) -> InputGateDescriptor:
        pointwise = e.partitioning.is_pointwise
        producers = (
            producers_of_consumer(index, source.parallelism, target.parallelism)
            if pointwise
            else range(source.parallelism)
        )
        return InputGateDescriptor(
            e.edge_id,
            e.target_input,
            e.partitioning,
            tuple(
                ShuffleDescriptor(
                    self._attempt(source, producer, attempt),
                    ResourceID("tm"),
                    "local",
                    index
                    - (
                        consumers_of_producer(producer, source.parallelism, target.parallelism).start
                        if pointwise
                        else 0
                    ),
                )
                for producer in producers
            ),
            e.key_columns,
        )

    def _partition(self, e: JobEdge, source: JobVertex, target: JobVertex, index: int) -> ResultPartitionDescriptor:
        count = (
            len(consumers_of_producer(index, source.parallelism, target.parallelism))
            if e.partitioning.is_pointwise
            else target.parallelism
        )
        return ResultPartitionDescriptor(
            e.edge_id,
            e.source_operator,
            e.side_output_tag,
            e.partitioning,
            count,
            target.parallelism,
            e.key_columns,
            target.max_parallelism,
        )

    # --- driving ----------------------------------------------------------------------------------------------------

    def find(self, operator: str, index: int = 0) -> Running:
        """The subtask whose chain holds the operator."""
        return next(
            r
            for r in self.tasks
            if r.descriptor.subtask_index == index and any(o.name == operator for o in r.descriptor.operators)
        )

    def step(self, running: Running) -> ProgressKind:
        running.world.awake = False
        progress = running.task.step(self.now_ms)
        running.wake_at_ms = progress.wake_at_ms
        if progress.kind is ProgressKind.WORKED:
            running.world.awake = True
        return progress.kind

    def run(self, *, rounds: int = 100_000) -> LocalJob:
        """Step every task in turn until none has anything to do at this time."""
        for _ in range(rounds):
            moved = False
            for running in self.tasks:
                due = running.wake_at_ms is not None and running.wake_at_ms <= self.now_ms
                if running.paused or running.state.is_terminal or not (running.world.awake or due):
                    continue
                moved = True
                self.step(running)
            if not moved:
                return self
        raise AssertionError("the job does not come to rest")

    def advance(self, ms: int) -> LocalJob:
        """Time passes."""
        self.now_ms += ms
        return self.run()

    def run_to_end(self, *, checkpoints: bool = False) -> LocalJob:
        """Until all tasks are over; with checkpoints, take them when the job waits for one."""
        for _ in range(1000):
            self.run()
            if all(r.state.is_terminal for r in self.tasks):
                self.raise_failures()
                return self
            if checkpoints:
                self.checkpoint()
            else:
                wakes = [r.wake_at_ms for r in self.tasks if r.wake_at_ms is not None and not r.state.is_terminal]
                assert wakes, f"stuck: {[(r.name, r.state) for r in self.tasks]}"
                self.now_ms = max(self.now_ms + 1, min(wakes))
        raise AssertionError("the job does not end")

    def raise_failures(self) -> None:
        for running in self.tasks:
            if running.state is ExecutionState.FAILED:
                raise AssertionError(f"{running.name} failed: {running.failure.summary}\n{running.failure.traceback}")

    # --- checkpoints ------------------------------------------------------------------------------------------------

    def trigger(
        self,
        snapshot_type: SnapshotType = SnapshotType.CHECKPOINT,
        alignment: AlignmentType = AlignmentType.ALIGNED,
        aligned_timeout_ms: int = -1,
    ) -> CheckpointID:
        """Tell the sources (and tasks whose producers have all finished)."""
        checkpoint_id = CheckpointID(self.next_checkpoint_id)
        self.next_checkpoint_id += 1
        options = CheckpointOptions(snapshot_type, alignment, aligned_timeout_ms)
        over = {r.descriptor.attempt_id for r in self.tasks if r.state is ExecutionState.FINISHED}
        for running in self.tasks:
            producers = [c.producer for gate in running.descriptor.input_gates for c in gate.channels]
            if not running.state.is_terminal and all(producer in over for producer in producers):
                job_id, attempt_id = running.descriptor.job_id, running.descriptor.attempt_id
                running.task.deliver(TriggerCheckpoint(job_id, attempt_id, checkpoint_id, self.now_ms, options))
        return checkpoint_id

    def complete(self, checkpoint_id: CheckpointID, *, notify: bool = True) -> Completed:
        """All have acknowledged: gather, and tell everybody."""
        subtasks: dict[str, dict[int, OperatorSubtaskState]] = {}
        finished: dict[str, set[int]] = {}
        for running in self.tasks:
            index = running.descriptor.subtask_index
            if running.state is ExecutionState.FINISHED:
                for operator in running.descriptor.operators:
                    finished.setdefault(operator.operator_id, set()).add(index)
                continue
            acks = [a for a in running.world.acknowledged if a.checkpoint_id == checkpoint_id]
            assert len(acks) == 1, f"{running.name} has not acknowledged {checkpoint_id}: {running.world.declined}"
            for operator_id, state in acks[0].state.operators.items():
                subtasks.setdefault(operator_id, {})[index] = state
        operators = tuple(
            OperatorState(
                o.operator_id,
                o.uid,
                o.name,
                vertex.parallelism,
                vertex.max_parallelism,
                subtasks.get(o.operator_id, {}),
                fully_finished=len(finished.get(o.operator_id, ())) == vertex.parallelism,
                finished_subtasks=tuple(sorted(finished.get(o.operator_id, ()))),
            )
            for vertex in self.graph.vertices
            for o in vertex.operators
        )
        done = Completed(checkpoint_id, operators)
        self.completed.append(done)
        if notify:
            for running in self.tasks:
                running.notify_complete(checkpoint_id)
            self.run()
        return done

    def checkpoint(self, *, notify: bool = True, **options: Any) -> Completed:
        """Trigger, run, complete."""
        checkpoint_id = self.trigger(**options)
        self.run()
        self.raise_failures()
        return self.complete(checkpoint_id, notify=notify)

    def trigger_and_run(self) -> CheckpointID:
        """Trigger, and run until nothing moves."""
        checkpoint_id = self.trigger()
        self.run()
        return checkpoint_id

    def crash(self) -> None:
        """Everything is lost; threads of push sources end."""
        for running in self.tasks:
            running.task.cancel()
        for _ in range(100):
            for running in self.tasks:
                if not running.state.is_terminal:
                    self.step(running)


# --- connectors in memory ---------------------------------------------------------------------------------------------


@dataclass
class ListSource(Source):
    """Each split is a list of batches; `pause_after` batches nothing comes until `released`."""

    splits: Sequence[Sequence[pa.RecordBatch]]
    pauses: dict[str, int] = field(default_factory=dict)
    """Split id to the number of batches after which it waits for `Gate.opened`."""
    told: list[tuple[str, int]] = field(default_factory=list)

    def enumerate_splits(self) -> Sequence[SourceSplit]:
        return [SourceSplit(f"s{i}") for i in range(len(self.splits))]

    def create_reader(self, context) -> SourceReader:
        return ListReader(self)

    def spec_splits(self) -> tuple[SourceSplit, ...]:
        return tuple(self.enumerate_splits())


class Gates:
    """Which paused splits may go on. Process-wide: specs are pickled, so a test cannot reach the reader."""

    opened: ClassVar[set[str]] = set()


class ListReader(SourceReader):
    """One split after the other."""

    def __init__(self, source: ListSource) -> None:
        self.source = source
        self.splits: list[SourceSplit] = []
        self.positions: dict[str, int] = {}
        self.finished: set[str] = set()

    def add_splits(self, splits: Sequence[SourceSplit]) -> None:
        self.splits = list(splits)
        for split in splits:
            self.positions[split.split_id] = split.position.get("batch", 0)
            if split.finished:
                self.finished.add(split.split_id)

    def poll_next(self, now_ms: int) -> Polled:
        waiting = False
        for split in self.splits:
            name = split.split_id
            if name in self.finished:
                continue
            position = self.positions[name]
            batches = self.source.splits[int(name[1:])]
            if position == self.source.pauses.get(name) and name not in Gates.opened:
                waiting = True
                continue
            if position == len(batches):
                self.finished.add(name)
                return Polled(InputStatus.MORE_AVAILABLE, None, None, name, (name,))
            self.positions[name] = position + 1
            return Polled(InputStatus.MORE_AVAILABLE, batches[position], None, name)
        if waiting:
            return Polled(InputStatus.NOTHING_AVAILABLE, wake_at_ms=now_ms + 1_000_000_000)
        return Polled(InputStatus.END_OF_INPUT)

    def snapshot_splits(self, checkpoint_id: int) -> Sequence[SourceSplit]:
        return [
            SourceSplit(s.split_id, {}, {"batch": self.positions[s.split_id]}, s.split_id in self.finished)
            for s in self.splits
        ]


class Outside:
    """What sinks have written, by sink name; survives crashes and pickling."""

    committed: ClassVar[dict[str, list[pa.RecordBatch]]] = {}
    staged: ClassVar[dict[str, pa.RecordBatch]] = {}
    commits: ClassVar[list[str]] = []
    cleaned: ClassVar[list[tuple[str, ...]]] = []
    restored_from: ClassVar[list[tuple[int, int]]] = []
    """Checkpoints that committers were told to go on from, and how many commits there were before."""

    @classmethod
    def reset(cls) -> None:
        cls.committed, cls.staged, cls.commits, cls.cleaned, cls.restored_from = {}, {}, [], [], []
        Gates.opened = set()

    @classmethod
    def rows(cls, name: str) -> list[dict[str, Any]]:
        return [row for batch in cls.committed.get(name, ()) for row in batch.to_pylist()]


@dataclass
class StagingSink(Sink):
    """Two phases: staged under a name, visible after commit."""

    name: str

    def create_writer(self, context, restored) -> SinkWriter:
        return StagingWriter(self.name, context)

    def create_committer(self, context) -> Committer:
        return StagingCommitter(self.name)


class StagingWriter(SinkWriter):
    def __init__(self, name: str, context) -> None:
        self.name, self.context, self.count = name, context, 0
        self.batches: list[pa.RecordBatch] = []

    def write(self, batch: pa.RecordBatch) -> None:
        self.batches.append(batch)

    def prepare_commit(self, checkpoint_id: int) -> Sequence[Committable]:
        prepared = []
        for batch in self.batches:
            key = f"{self.name}/{self.context.execution_attempt}/{checkpoint_id}/{self.count}"
            self.count += 1
            Outside.staged[key] = batch
            prepared.append(Committable({"key": key}))
        self.batches = []
        return prepared


class StagingCommitter(Committer):
    def __init__(self, name: str) -> None:
        self.name = name

    def commit(self, committables: Sequence[Committable]) -> None:
        for committable in committables:
            key = committable.data["key"]
            if key not in Outside.commits:
                Outside.commits.append(key)
                Outside.committed.setdefault(self.name, []).append(Outside.staged[key])

    def restored_from(self, checkpoint_id: int) -> None:
        Outside.restored_from.append((checkpoint_id, len(Outside.commits)))

    def clean_up(self, committed_and_pending: Sequence[Committable]) -> None:
        Outside.cleaned.append(tuple(c.data["key"] for c in committed_and_pending))


def batch(**columns: Any) -> pa.RecordBatch:
    """A batch from lists or arrays."""
    return pa.record_batch(
        {name: values if isinstance(values, pa.Array) else pa.array(values) for name, values in columns.items()}
    )
