"""How the five checkpoint messages travel, written by hand: a checkpoint of ten thousand subtasks is ten thousand
acknowledgements and twenty thousand messages back. The rest goes through `wire_reflection`.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from snapline.dataflow.elements import AlignmentType, CheckpointOptions, SnapshotType
from snapline.dataflow.failures import CheckpointFailureReason
from snapline.dataflow.ids import CheckpointID, ExecutionAttemptID, JobID
from snapline.dataflow.snapshot.handles import EMPTY_TASK_STATE
from snapline.dataflow.wire.messages import (
    AcknowledgeCheckpoint,
    CheckpointMetrics,
    DeclineCheckpoint,
    NotifyCheckpointAborted,
    NotifyCheckpointComplete,
    TriggerCheckpoint,
)
from snapline.dataflow.wire.number_bounds import check_number
from snapline.dataflow.wire.protobuf_fields import enum_tables, refuse_enum
from snapline.dataflow.wire.reflection_codec import Codec
from snapline.dataflow.wire.state_codec import decode_task_state, encode_task_state
from snapline.dataflow.wire.text_bounds import MAX_ID, MAX_SAID, too_long
from snapline.dataflow.wire.wire_errors import WireError
from snapline.protos import checkpoint_pb2 as pb

_OPTIONS = pb.CheckpointOptions.DESCRIPTOR.fields_by_name
_TYPE_TO_NUMBER, _TYPE_FROM_NUMBER = enum_tables(SnapshotType, _OPTIONS["snapshot_type"])
_ALIGNMENT_TO_NUMBER, _ALIGNMENT_FROM_NUMBER = enum_tables(AlignmentType, _OPTIONS["alignment"])
_REASON_TO_NUMBER, _REASON_FROM_NUMBER = enum_tables(
    CheckpointFailureReason, pb.DeclineCheckpoint.DESCRIPTOR.fields_by_name["reason"]
)
_NO_METRICS = CheckpointMetrics()

REMEMBERED_ATTEMPTS = 1 << 17


def encode_attempt_id(value: ExecutionAttemptID, message: Any) -> None:
    """One attempt of one subtask."""
    message.execution_graph_id, message.vertex_id, message.subtask_index, message.attempt_number = value


@lru_cache(REMEMBERED_ATTEMPTS)
def _attempt_of(data: bytes) -> ExecutionAttemptID:
    """A task that speaks of one checkpoint speaks of the next, and to parse its id takes longer than to find it
    again."""
    return decode_attempt_id(pb.ExecutionAttemptID.FromString(data))


def decode_attempt_id(message: Any) -> ExecutionAttemptID:
    """One attempt of one subtask."""
    graph, vertex = message.execution_graph_id, message.vertex_id
    if not graph or not vertex:
        raise WireError(f"ExecutionAttemptID.{'vertex_id' if graph else 'execution_graph_id'} is missing")
    if len(graph) + len(vertex) > MAX_ID:  # attempts are remembered
        raise too_long("ExecutionAttemptID", graph + vertex, MAX_ID)
    index = check_number("ExecutionAttemptID.subtask_index", message.subtask_index)
    number = check_number("ExecutionAttemptID.attempt_number", message.attempt_number)
    return ExecutionAttemptID(graph, vertex, index, number)


def _addressed(message: Any) -> tuple[JobID, ExecutionAttemptID, CheckpointID]:
    """What all five begin with."""
    job_id, checkpoint_id = message.job_id, message.checkpoint_id
    attempt = message.attempt_id.SerializeToString()
    if not job_id or (not attempt and not message.HasField("attempt_id")):
        raise WireError(f"{message.DESCRIPTOR.name}.{'attempt_id' if job_id else 'job_id'} is missing")
    if len(job_id) > MAX_ID:
        raise too_long(f"{message.DESCRIPTOR.name}.job_id", job_id, MAX_ID)
    if checkpoint_id <= 0:
        raise WireError(f"{message.DESCRIPTOR.name}.checkpoint_id has to be positive, got {checkpoint_id}")
    return job_id, _attempt_of(attempt), checkpoint_id


def _address(value: Any, message: Any) -> None:
    message.job_id = value.job_id
    attempt = message.attempt_id
    attempt.execution_graph_id, attempt.vertex_id, attempt.subtask_index, attempt.attempt_number = value.attempt_id
    message.checkpoint_id = value.checkpoint_id


def encode_options(value: CheckpointOptions, message: Any) -> None:
    """What a trigger and a barrier carry."""
    message.snapshot_type = _TYPE_TO_NUMBER[value.snapshot_type]
    message.alignment = _ALIGNMENT_TO_NUMBER[value.alignment]
    message.aligned_checkpoint_timeout_ms = value.aligned_checkpoint_timeout_ms
    message.target_location = value.target_location


def decode_options(message: Any) -> CheckpointOptions:
    """What a trigger and a barrier carry."""
    snapshot_type: Any = _TYPE_FROM_NUMBER.get(message.snapshot_type)
    if snapshot_type is None:
        raise refuse_enum("CheckpointOptions.snapshot_type", message.snapshot_type)
    alignment: Any = _ALIGNMENT_FROM_NUMBER.get(message.alignment)
    if alignment is None:
        raise refuse_enum("CheckpointOptions.alignment", message.alignment)
    return CheckpointOptions(snapshot_type, alignment, message.aligned_checkpoint_timeout_ms, message.target_location)


def encode_metrics(value: CheckpointMetrics, message: Any) -> None:
    """Encode what one subtask measured during a checkpoint."""
    message.sync_duration_ms = value.sync_duration_ms
    message.async_duration_ms = value.async_duration_ms
    message.alignment_duration_ms = value.alignment_duration_ms
    message.checkpoint_start_delay_ms = value.checkpoint_start_delay_ms
    message.bytes_processed_during_alignment = value.bytes_processed_during_alignment
    message.bytes_persisted_during_alignment = value.bytes_persisted_during_alignment
    message.unaligned = value.unaligned


def decode_metrics(message: Any) -> CheckpointMetrics:
    """Decode what one subtask measured during a checkpoint."""
    return CheckpointMetrics(
        message.sync_duration_ms,
        message.async_duration_ms,
        message.alignment_duration_ms,
        message.checkpoint_start_delay_ms,
        message.bytes_processed_during_alignment,
        message.bytes_persisted_during_alignment,
        message.unaligned,
    )


def encode_trigger(value: TriggerCheckpoint, message: Any) -> None:
    """Encode a message from the JobMaster to a TaskManager: take a checkpoint."""
    _address(value, message)
    message.timestamp_ms = value.timestamp_ms
    encode_options(value.options, message.options)


def decode_trigger(message: Any) -> TriggerCheckpoint:
    """Decode a message from the JobMaster to a TaskManager: take a checkpoint."""
    if not message.HasField("options"):
        raise WireError("TriggerCheckpoint.options is missing")
    return TriggerCheckpoint(*_addressed(message), message.timestamp_ms, decode_options(message.options))


def encode_acknowledge(value: AcknowledgeCheckpoint, message: Any) -> None:
    """TaskManager -> JobMaster. Metrics and state that say nothing are left out."""
    _address(value, message)
    if value.metrics is not _NO_METRICS and value.metrics != _NO_METRICS:
        encode_metrics(value.metrics, message.metrics)
    state = value.state
    if state.operators or state.is_task_finished:
        message.state_size_bytes = encode_task_state(state, message.state)


def decode_acknowledge(message: Any) -> AcknowledgeCheckpoint:
    """Decode a message from a TaskManager to the JobMaster: a subtask's state is durable."""
    job_id, attempt_id, checkpoint_id = _addressed(message)
    metrics = decode_metrics(message.metrics) if message.HasField("metrics") else _NO_METRICS
    state = decode_task_state(message.state) if message.HasField("state") else EMPTY_TASK_STATE
    return AcknowledgeCheckpoint(job_id, attempt_id, checkpoint_id, metrics, state)


def encode_decline(value: DeclineCheckpoint, message: Any) -> None:
    """Encode a message from a TaskManager to the JobMaster: a subtask takes no part."""
    _address(value, message)
    message.reason = _REASON_TO_NUMBER[value.reason]
    message.detail = value.detail
    message.timestamp_ms = value.timestamp_ms


def decode_decline(message: Any) -> DeclineCheckpoint:
    """Decode a message from a TaskManager to the JobMaster: a subtask takes no part."""
    reason: Any = _REASON_FROM_NUMBER.get(message.reason)
    if reason is None:
        raise refuse_enum("DeclineCheckpoint.reason", message.reason)
    return DeclineCheckpoint(*_addressed(message), reason, message.detail[:MAX_SAID], message.timestamp_ms)


def encode_complete(value: NotifyCheckpointComplete, message: Any) -> None:
    """Encode a message from the JobMaster to a TaskManager: a checkpoint is complete."""
    _address(value, message)
    message.timestamp_ms = value.timestamp_ms
    message.last_subsumed_id = value.last_subsumed_id


def decode_complete(message: Any) -> NotifyCheckpointComplete:
    """Decode a message from the JobMaster to a TaskManager: a checkpoint is complete."""
    return NotifyCheckpointComplete(*_addressed(message), message.timestamp_ms, message.last_subsumed_id)


def encode_aborted(value: NotifyCheckpointAborted, message: Any) -> None:
    """Encode a message from the JobMaster to a TaskManager: a checkpoint was aborted."""
    _address(value, message)
    message.latest_completed_id = value.latest_completed_id
    message.timestamp_ms = value.timestamp_ms


def decode_aborted(message: Any) -> NotifyCheckpointAborted:
    """Decode a message from the JobMaster to a TaskManager: a checkpoint was aborted."""
    return NotifyCheckpointAborted(*_addressed(message), message.latest_completed_id, message.timestamp_ms)


CHECKPOINT_CODECS: dict[Any, Codec] = {
    ExecutionAttemptID: Codec(encode_attempt_id, decode_attempt_id),
    CheckpointOptions: Codec(encode_options, decode_options),
    CheckpointMetrics: Codec(encode_metrics, decode_metrics),
    TriggerCheckpoint: Codec(encode_trigger, decode_trigger),
    AcknowledgeCheckpoint: Codec(encode_acknowledge, decode_acknowledge),
    DeclineCheckpoint: Codec(encode_decline, decode_decline),
    NotifyCheckpointComplete: Codec(encode_complete, decode_complete),
    NotifyCheckpointAborted: Codec(encode_aborted, decode_aborted),
}
