"""Puts one task together from its deployment: writers, operators, gates, barrier handler, checkpoint execution.

Decides which settings of the job go where, and what of the restored data in flight belongs to this subtask. Everything
is built in the INITIALIZING step, on the task's thread. It does not run anything. Mirrors the constructor and
`restoreInternal` of Flink's StreamTask, and StreamInputProcessorFactory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from snapline.dataflow.api.user_metrics import MetricGroup, MetricLimit
from snapline.dataflow.config import (
    BATCH_TARGET_ROWS,
    BUFFER_DEBLOAT,
    BUFFER_DEBLOAT_TARGET,
    BUFFER_TIMEOUT,
    CHECKPOINTING_AFTER_TASKS_FINISH,
    CHECKPOINTING_MODE,
    CHECKPOINTING_UNALIGNED,
    TOLERATED_LEAD,
    Configuration,
)
from snapline.dataflow.elements import CheckpointBarrier, EndOfChannelState
from snapline.dataflow.key_groups import compute_key_group_range_for_operator_index
from snapline.dataflow.partitioning import Partitioning
from snapline.dataflow.snapshot.channel_state import supports_unaligned, without_origin
from snapline.dataflow.wire.messages import (
    InputGateDescriptor,
    OperatorDescriptor,
    ReportWatermark,
    TaskDeploymentDescriptor,
)
from snapline.protos import external_pb2 as pb
from snapline.runtime.cores.machine import check
from snapline.taskmanager.checkpointing.checkpointed_input_gate import CheckpointedInputGate
from snapline.taskmanager.checkpointing.handler_factory import create_barrier_handler
from snapline.taskmanager.checkpointing.subtask_checkpoint_coordinator import SubtaskCheckpointCoordinator
from snapline.taskmanager.network.channels.exchange_contract import InputChannel
from snapline.taskmanager.network.channels.input_gate import InputGate, UnionInputGate
from snapline.taskmanager.network.channels.watermark_valve import InputValves, StatusWatermarkValve
from snapline.taskmanager.operators.base.operator_contract import OperatorContext, no_demand
from snapline.taskmanager.operators.factory import create_combiner, create_operator, load_spec
from snapline.taskmanager.programs.program_place import PlaceForProgram
from snapline.taskmanager.task.checkpoint_execution import CheckpointExecution
from snapline.taskmanager.task.environment_contract import Environment
from snapline.taskmanager.task.mailbox import ChannelFailedMail, ChannelNonEmptyMail, Mail
from snapline.taskmanager.task.operator_chain import OperatorChain
from snapline.taskmanager.task.processing_time import TaskProcessingTime
from snapline.taskmanager.task.record_writer import RecordWriter
from snapline.taskmanager.task.task_restore import TaskRestore
from snapline.taskmanager.task.task_timers import TaskTimers


@dataclass(slots=True)
class TaskInput:
    """The gates of a task."""

    gate: CheckpointedInputGate
    valve: StatusWatermarkValve | InputValves
    descriptors: tuple[InputGateDescriptor, ...]
    first_channel: tuple[int, ...]
    """The position of the first channel of each gate among all channels of the task."""
    union: UnionInputGate = field(init=False)
    """The gates as one, without barriers being handled."""

    def __post_init__(self) -> None:
        self.union = self.gate.gate

    def channel_number(self, gate_index: int, channel_index: int) -> int:
        """Position among all channels of the task."""
        return self.first_channel[gate_index] + channel_index


@dataclass(slots=True)
class TaskParts:
    """Everything that a running task consists of."""

    writers: tuple[RecordWriter, ...]
    chain: OperatorChain | None
    """None: the task had finished in the snapshot."""
    input: TaskInput | None
    """The gates of the task; None for a source."""
    checkpoints: SubtaskCheckpointCoordinator
    timers: TaskTimers


class GateListener:
    """Turns what channels say, on any thread, into mail (InputChannelListener)."""

    def __init__(self, gate_index: int, put_mail: Callable[[Mail], None]) -> None:
        self._gate_index = gate_index
        self._put_mail = put_mail

    def notify_channel_non_empty(self, channel_index: int, *, priority: bool) -> None:
        """Tell the task's thread that something can be polled from the channel."""
        self._put_mail(ChannelNonEmptyMail(self._gate_index, channel_index, priority))

    def notify_channel_failed(self, channel_index: int, cause: str) -> None:
        """The producer or the connection is lost."""
        self._put_mail(ChannelFailedMail(self._gate_index, channel_index, cause))


def create_writers(
    descriptor: TaskDeploymentDescriptor, environment: Environment, configuration: Configuration
) -> tuple[RecordWriter, ...]:
    """Create one writer for each outgoing edge."""
    debloat_target_ms = (
        configuration.get_option(BUFFER_DEBLOAT_TARGET) // 2 if configuration.get_option(BUFFER_DEBLOAT) else None
    )
    attempt = str(descriptor.attempt_id)
    # all of them first: to make a writer may load a compiler, and consumers do not wait for long
    created = [
        environment.exchange.create_result_partition(attempt, partition.edge_id, partition.subpartitions)
        for partition in descriptor.result_partitions
    ]
    return tuple(
        RecordWriter(
            partition,
            subpartitions,
            subtask_index=descriptor.subtask_index,
            buffer_timeout_ms=configuration.get_option(BUFFER_TIMEOUT),
            target_rows=configuration.get_option(BATCH_TARGET_ROWS),
            debloat_target_ms=debloat_target_ms,
            combiner=create_combiner(partition, environment.unpickle) if partition.combiner else None,
        )
        for partition, subpartitions in zip(descriptor.result_partitions, created, strict=True)
    )


def create_chain(
    descriptor: TaskDeploymentDescriptor,
    environment: Environment,
    writers: Sequence[RecordWriter],
    processing_time: TaskProcessingTime,
    channels: Sequence[InputChannel],
) -> OperatorChain:
    """The operators, not yet initialised."""
    key_groups = compute_key_group_range_for_operator_index(
        descriptor.max_parallelism, descriptor.parallelism, descriptor.subtask_index
    )

    def report_watermark(group: str, watermark_ms: int, max_drift_ms: int) -> None:
        message = ReportWatermark(descriptor.job_id, descriptor.attempt_id, group, watermark_ms, max_drift_ms)
        environment.report_watermark(message)

    def request_splits(count: int) -> None:
        channels[0].request(count)  # there are none yet when the chain is made

    def offer_place(run: pb.RunTask, key_groups: range, wake_up: Callable[[], None]) -> PlaceForProgram:
        run.job_name = descriptor.job_name
        return environment.offer_place(run, key_groups, wake_up)

    metric_limit = MetricLimit()

    def context_of(operator: OperatorDescriptor) -> OperatorContext:
        return OperatorContext(
            job_id=descriptor.job_id,
            operator_id=operator.operator_id,
            operator_uid=operator.uid,
            operator_name=operator.name,
            task_name=f"{descriptor.task_name} ({descriptor.subtask_index + 1}/{descriptor.parallelism})",
            subtask_index=descriptor.subtask_index,
            parallelism=descriptor.parallelism,
            max_parallelism=descriptor.max_parallelism,
            attempt_number=descriptor.attempt_id.attempt_number,
            execution_attempt=str(descriptor.attempt_id),
            key_group_range=key_groups,
            processing_time=processing_time,
            configuration=descriptor.configuration,
            wake_up=environment.wake_up,
            open_segment_space=environment.open_segment_space,
            offer_place=offer_place,
            report_watermark=report_watermark,
            split_demand=writers[0].demand if writers else no_demand,
            request_splits=request_splits,
            metrics=MetricGroup(operator.uid, metric_limit),
        )

    operators = []
    for operator in descriptor.operators:
        spec = load_spec(operator.payload, operator.uid, environment.unpickle)
        operators.append((operator, create_operator(spec, environment.create_push_source_runner)))
    return OperatorChain(operators, writers, context_of, processing_time)


def create_input(
    descriptor: TaskDeploymentDescriptor,
    environment: Environment,
    configuration: Configuration,
    put_mail: Callable[[Mail], None],
    created: list[InputChannel],
    checkpoints: SubtaskCheckpointCoordinator,
    tolerated_lead_ms: int | None,
    restore: TaskRestore,
) -> TaskInput | None:
    """The gates with the data in flight that was restored. Channels are noted in `created` as soon as they exist.
    `tolerated_lead_ms`: as the gates'."""
    if not descriptor.input_gates:
        return None
    restored = restore.input_channels()
    gates: list[InputGate] = []
    first_channel: list[int] = []
    channels_before = 0
    for gate_index, gate in enumerate(descriptor.input_gates):
        listener = GateListener(gate_index, put_mail)
        channels: list[InputChannel] = []
        for channel_index, shuffle in enumerate(gate.channels):
            channel = environment.exchange.create_input_channel(
                consumer=str(descriptor.attempt_id),
                producer=str(shuffle.producer),
                edge_id=gate.edge_id,
                subpartition_index=shuffle.subpartition_index,
                exchange_address=shuffle.exchange_address,
                channel_index=channel_index,
                listener=listener,
                row_wise=gate.row_wise,
            )
            created.append(channel)
            channels.append(channel)
        input_gate = InputGate(gate_index, channels, tolerated_lead_ms)
        for (restored_gate, channel_index), batches in restored.items():
            if restored_gate == gate_index:
                check(channel_index < len(channels), "restored data in flight belongs to a channel of the task")
                input_gate.restore(channel_index, own_batches(descriptor, gate, batches))
        gates.append(input_gate)
        first_channel.append(channels_before)
        channels_before += len(channels)
    union = UnionInputGate(gates)
    handler = create_barrier_handler(
        configuration.get_option(CHECKPOINTING_MODE),
        union,
        checkpoints,
        unaligned_enabled=configuration.get_option(CHECKPOINTING_UNALIGNED),
        checkpoints_after_tasks_finish=configuration.get_option(CHECKPOINTING_AFTER_TASKS_FINISH),
        never_overtaken=[
            channel
            for channel in union.channel_infos
            if not supports_unaligned(descriptor.input_gates[channel.gate_index].partitioning)
        ],
    )
    inputs = [gate.input_index for gate in descriptor.input_gates for _ in gate.channels]
    return TaskInput(
        CheckpointedInputGate(union, handler, checkpoints),
        InputValves(inputs) if len(set(inputs)) > 1 else StatusWatermarkValve(channels_before),
        descriptor.input_gates,
        tuple(first_channel),
    )


def own_batches(
    descriptor: TaskDeploymentDescriptor, gate: InputGateDescriptor, batches: Sequence[pa.RecordBatch]
) -> Sequence[pa.RecordBatch]:
    """On a hash edge several subtasks may read the same data in flight after a rescale: each keeps its own rows."""
    edge_ids = [each.edge_id for each in descriptor.input_gates]
    if gate.partitioning is not Partitioning.HASH or not gate.key_columns or descriptor.parallelism == 1:
        return without_origin(batches, gate.edge_id, edge_ids)
    batches = without_origin(batches, gate.edge_id, edge_ids, gate.key_columns)
    key_groups = compute_key_group_range_for_operator_index(
        descriptor.max_parallelism, descriptor.parallelism, descriptor.subtask_index
    )
    from snapline.taskmanager.checkpointing import channel_state_filter  # its kernels load numba

    return channel_state_filter.own_batches(batches, gate.key_columns, descriptor.max_parallelism, key_groups)


def replay_output(writer: RecordWriter, subpartition: int, batches: Sequence[pa.RecordBatch]) -> None:
    """Put restored output data in flight back. After a rescale its subpartition on a hash edge means nothing: the keys
    say where it goes."""
    descriptor = writer.descriptor
    if descriptor.partitioning is not Partitioning.HASH or len(writer.subpartitions) == 1:
        writer.replay(subpartition, batches)
        return
    from snapline.taskmanager.checkpointing import channel_state_filter  # its kernels load numba

    parts = channel_state_filter.spread_by_key(
        batches, descriptor.key_columns, descriptor.target_max_parallelism, descriptor.target_parallelism
    )
    for index, part in enumerate(parts):
        writer.replay(index, part)


def wire(
    descriptor: TaskDeploymentDescriptor,
    environment: Environment,
    configuration: Configuration,
    processing_time: TaskProcessingTime,
    put_mail: Callable[[Mail], None],
    created: list[InputChannel],
    on_taken: Callable[[CheckpointBarrier], bool],
    restore: TaskRestore,
) -> TaskParts:
    """Build everything, and restore it. What has to be released later is noted in `created` and in the exchange."""
    restored_as_finished = descriptor.restore_state.is_task_finished
    writers = create_writers(descriptor, environment, configuration)
    edge_ids = [partition.edge_id for partition in descriptor.result_partitions]
    for (index, subpartition), batches in restore.output_channels().items():
        replay_output(writers[index], subpartition, without_origin(batches, edge_ids[index], edge_ids))
    if descriptor.restore_checkpoint_id > 0:
        for writer in writers:
            writer.broadcast(EndOfChannelState(is_last=not descriptor.input_gates))
    chain = None if restored_as_finished else create_chain(descriptor, environment, writers, processing_time, created)
    timers = TaskTimers()
    execution = CheckpointExecution(descriptor, writers, environment, timers, put_mail, on_taken)
    operators = chain.operators if chain else ()
    checkpoints = SubtaskCheckpointCoordinator(operators, execution, has_outputs=bool(writers))
    keeps_rows_for_ms = chain.head.operator.keeps_rows_for_ms if chain is not None else None
    tolerated_lead_ms = (
        None if keeps_rows_for_ms is None else max(2 * keeps_rows_for_ms, configuration.get_option(TOLERATED_LEAD))
    )
    task_input = create_input(
        descriptor, environment, configuration, put_mail, created, checkpoints, tolerated_lead_ms, restore
    )
    for writer in writers:
        for output in writer.subpartitions:
            output.set_availability_listener(environment.wake_up)
    return TaskParts(writers, chain, task_input, checkpoints, timers)
