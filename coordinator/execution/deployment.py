"""What a TaskManager gets to run one attempt: gates, channels, partitions, operators, state.

Decides which producer feeds which consumer. All-to-all edges (hash, rebalance, broadcast) have one subpartition per
consumer. Pointwise edges follow Flink's rescale pattern: with n producers and m consumers, n >= m, consumer j reads
producers floor(j*n/m) up to floor((j+1)*n/m) - 1, each with one subpartition; with n < m, producer i feeds consumers
ceil(i*m/n) up to ceil((i+1)*m/n) - 1. Mirrors Flink's TaskDeploymentDescriptorFactory and EdgeManagerBuildUtil.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from snapline.coordinator.execution.execution_graph import Execution, ExecutionGraph, subtasks_of
from snapline.dataflow.graph.jobgraph import JobEdge, JobVertex
from snapline.dataflow.ids import CheckpointID, ExecutionAttemptID, ExecutionVertexID, JobVertexID, ResourceID
from snapline.dataflow.snapshot.handles import (
    EMPTY_TASK_STATE,
    ByteStreamStateHandle,
    StreamStateHandle,
    TaskStateSnapshot,
)
from snapline.dataflow.wire.messages import (
    InputGateDescriptor,
    OperatorDescriptor,
    ResultPartitionDescriptor,
    ShuffleDescriptor,
    SubmitTasks,
    TaskDeploymentDescriptor,
)

Producer = tuple[ExecutionAttemptID, ResourceID, str]
"""Attempt, TaskManager, address of its data server."""


BYTES_OF_A_MESSAGE = 32 << 20
"""The tasks of one message have no more, about, unless a single one has: of what is larger by far no stream carries
it."""
BYTES_OF_A_CHANNEL = 256


def producers_of_consumer(consumer: int, producers: int, consumers: int) -> range:
    """Pointwise: the producers that the consumer reads."""
    if producers >= consumers:
        return range(consumer * producers // consumers, (consumer + 1) * producers // consumers)
    producer = consumer * producers // consumers
    return range(producer, producer + 1)


def consumers_of_producer(producer: int, producers: int, consumers: int) -> range:
    """Pointwise: the consumers that the producer feeds, in the order of its subpartitions."""
    if producers >= consumers:
        consumer = ((producer + 1) * consumers - 1) // producers
        return range(consumer, consumer + 1)
    return range(-(-producer * consumers // producers), -(-(producer + 1) * consumers // producers))


@dataclass(frozen=True, slots=True)
class RestoredTasks:
    """What the tasks of one deployment start from."""

    checkpoint_id: CheckpointID = CheckpointID(0)
    """The checkpoint that the tasks are restored from; 0 when there is nothing to restore."""
    states: Mapping[ExecutionVertexID, TaskStateSnapshot] | None = None


NOTHING_RESTORED = RestoredTasks()


def in_messages(tasks: Iterable[TaskDeploymentDescriptor]) -> Iterator[SubmitTasks]:
    """The tasks of one TaskManager, as many in a message as it has room for: each of them brings the functions of its
    operators, with all that these hold."""
    together: list[TaskDeploymentDescriptor] = []
    room = BYTES_OF_A_MESSAGE
    for task in tasks:
        size = _size_of(task)
        if together and size > room:
            yield SubmitTasks(tuple(together))
            together, room = [], BYTES_OF_A_MESSAGE
        together.append(task)
        room -= size
    if together:
        yield SubmitTasks(tuple(together))


def _size_of(task: TaskDeploymentDescriptor) -> int:
    """About how many bytes the task has on the wire."""
    restored: list[StreamStateHandle] = []
    for state in task.restore_state.operators.values():
        restored += [keyed.handle for keyed in state.managed_keyed]
        restored += [operator.handle for operator in state.managed_operator]
        restored += [channel.handle for channel in (*state.input_channel, *state.output_channel)]
    return (
        sum(len(operator.payload) for operator in task.operators)
        + sum(len(gate.channels) for gate in task.input_gates) * BYTES_OF_A_CHANNEL
        + sum(len(handle.data) for handle in restored if isinstance(handle, ByteStreamStateHandle))
    )


class TaskDeploymentDescriptorFactory:
    """Builds descriptors for one graph; what all subtasks of a vertex share is built once."""

    def __init__(self, graph: ExecutionGraph, checkpoint_directory: str = "") -> None:
        """Index the edges of the graph."""
        self._graph = graph
        self._checkpoint_directory = checkpoint_directory
        self._inputs: dict[JobVertexID, list[JobEdge]] = {vertex: [] for vertex in graph.job_vertices}
        self._outputs: dict[JobVertexID, list[JobEdge]] = {vertex: [] for vertex in graph.job_vertices}
        for edge in graph.job_graph.edges:
            self._inputs[edge.target].append(edge)
            self._outputs[edge.source].append(edge)
        self._operators = {vertex.vertex_id: _operators(vertex) for vertex in graph.job_graph.vertices}

    def create(
        self,
        executions: Iterable[Execution],
        restored: RestoredTasks,
        exchange_address_of: Callable[[ResourceID], str],
    ) -> Iterator[TaskDeploymentDescriptor]:
        """The descriptors of these attempts, in order; they and their producers must have been given their slots
        before."""

        def producer(subtask: ExecutionVertexID) -> Producer:
            attempt = self._graph.current(subtask)
            return attempt.attempt_id, attempt.resource_id, exchange_address_of(attempt.resource_id)

        all_to_all: dict[str, list[Producer]] = {}  # looked up once per edge, not once per channel
        for execution in executions:
            subtask_index = execution.attempt_id.subtask_index
            gates = []
            for edge in self._inputs[execution.attempt_id.vertex_id]:
                if edge.partitioning.is_pointwise:
                    channels = self._pointwise_channels(edge, subtask_index, producer)
                else:
                    if edge.edge_id not in all_to_all:
                        subtasks = subtasks_of(self._graph.job_vertices[edge.source])
                        all_to_all[edge.edge_id] = [producer(subtask) for subtask in subtasks]
                    channels = tuple(ShuffleDescriptor(*each, subtask_index) for each in all_to_all[edge.edge_id])
                gates.append(self._gate(edge, channels))
            yield self._descriptor(execution, restored, tuple(gates))

    def _pointwise_channels(
        self, edge: JobEdge, consumer: int, producer: Callable[[ExecutionVertexID], Producer]
    ) -> tuple[ShuffleDescriptor, ...]:
        """Only the producers of this consumer are looked at: others may be in regions that do not restart."""
        producers = self._graph.job_vertices[edge.source].parallelism
        consumers = self._graph.job_vertices[edge.target].parallelism
        return tuple(
            ShuffleDescriptor(
                *producer(ExecutionVertexID(edge.source, index)),
                consumer - consumers_of_producer(index, producers, consumers).start,
            )
            for index in producers_of_consumer(consumer, producers, consumers)
        )

    def _descriptor(
        self, execution: Execution, restored: RestoredTasks, input_gates: tuple[InputGateDescriptor, ...]
    ) -> TaskDeploymentDescriptor:
        vertex = execution.vertex
        job_vertex = self._graph.job_vertices[vertex.vertex_id]
        job_graph = self._graph.job_graph
        return TaskDeploymentDescriptor(
            job_id=job_graph.job_id,
            job_name=job_graph.name,
            attempt_id=execution.attempt_id,
            allocation_id=execution.allocation_id,
            task_name=self._graph.task_name(vertex),
            parallelism=job_vertex.parallelism,
            max_parallelism=job_vertex.max_parallelism,
            operators=self._operators[vertex.vertex_id],
            input_gates=input_gates,
            result_partitions=tuple(
                self._partition(edge, vertex.subtask_index) for edge in self._outputs[vertex.vertex_id]
            ),
            configuration=job_graph.configuration,
            restore_checkpoint_id=restored.checkpoint_id,
            restore_state=(restored.states or {}).get(vertex, EMPTY_TASK_STATE),
            checkpoint_directory=self._checkpoint_directory,
        )

    def _gate(self, edge: JobEdge, channels: tuple[ShuffleDescriptor, ...]) -> InputGateDescriptor:
        return InputGateDescriptor(
            edge.edge_id,
            edge.target_input,
            edge.partitioning,
            channels,
            edge.key_columns,
            self._graph.job_vertices[edge.source].name,
            edge.row_wise,
        )

    def _partition(self, edge: JobEdge, producer: int) -> ResultPartitionDescriptor:
        producers = self._graph.job_vertices[edge.source].parallelism
        target = self._graph.job_vertices[edge.target]
        if edge.partitioning.is_pointwise:
            subpartitions = len(consumers_of_producer(producer, producers, target.parallelism))
        else:
            subpartitions = target.parallelism
        return ResultPartitionDescriptor(
            edge_id=edge.edge_id,
            source_operator=edge.source_operator,
            side_output_tag=edge.side_output_tag,
            partitioning=edge.partitioning,
            subpartitions=subpartitions,
            target_parallelism=target.parallelism,
            key_columns=edge.key_columns,
            target_max_parallelism=target.max_parallelism,
            combiner=edge.combiner,
            row_wise=edge.row_wise,
            columns=edge.columns,
        )


def _operators(vertex: JobVertex) -> tuple[OperatorDescriptor, ...]:
    return tuple(
        OperatorDescriptor(
            operator_id=operator.operator_id,
            uid=operator.uid,
            name=operator.name,
            payload=operator.payload,
            chained_input=operator.chained_input,
            chained_side_output_tag=operator.chained_side_output_tag,
            chained_input_index=operator.chained_input_index,
        )
        for operator in vertex.operators
    )
