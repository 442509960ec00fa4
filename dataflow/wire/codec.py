"""The codec: control messages of `snapline.dataflow.wire.messages` and the JobGraph <-> the protobuf of `protos/`.

Decides which field of ControlMessage belongs to which message, and that a whole envelope is decoded or refused at once.
It knows nothing of streams and sessions: `runtime` moves bytes, cores see values only. Codecs of rarely sent messages
are put together at first use (`wire_reflection`), those of checkpoints and state are written by hand.

    envelope = encode_envelope(session, [AcknowledgeCheckpoint(...), ...])
    session, messages = decode_envelope(Envelope.FromString(data))
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from google.protobuf.message import Message

from snapline.dataflow.api.accumulators import AccumulatorValue
from snapline.dataflow.api.user_metrics import MetricValue
from snapline.dataflow.failures import SerializedFailure
from snapline.dataflow.graph.jobgraph import JobEdge, JobGraph
from snapline.dataflow.ids import LeaderSessionID
from snapline.dataflow.snapshot.handles import OperatorSubtaskState, TaskStateSnapshot
from snapline.dataflow.wire import messages as m
from snapline.dataflow.wire.checkpoint_codec import CHECKPOINT_CODECS
from snapline.dataflow.wire.reflection_codec import Codec, Compiler, Decode, Encode
from snapline.dataflow.wire.state_codec import (
    decode_operator_subtask_state,
    decode_task_state,
    encode_operator_subtask_state,
    encode_task_state,
)
from snapline.dataflow.wire.statuses import decode_job_status, decode_state, encode_job_status, encode_state
from snapline.dataflow.wire.wire_errors import WireError
from snapline.protos import checkpoint_pb2, cluster_pb2, job_pb2

__all__ = [
    "CONTROL_MESSAGES",
    "WireError",
    "decode",
    "decode_control_message",
    "decode_envelope",
    "decode_job_graph",
    "decode_job_status",
    "decode_state",
    "encode_control_message",
    "encode_envelope",
    "encode_into",
    "encode_job_graph",
    "encode_job_status",
    "encode_state",
]

ValueT = TypeVar("ValueT")

_JOB_ID = re.compile(r"(?!\.\.?\Z)[0-9A-Za-z_.-]{1,64}")
"""What may stand in paths, logs and terminals. Ids that are drawn are 32 hexadecimal digits."""

CONTROL_MESSAGES: dict[str, type] = {
    "trigger_checkpoint": m.TriggerCheckpoint,
    "acknowledge_checkpoint": m.AcknowledgeCheckpoint,
    "decline_checkpoint": m.DeclineCheckpoint,
    "notify_checkpoint_complete": m.NotifyCheckpointComplete,
    "notify_checkpoint_aborted": m.NotifyCheckpointAborted,
    "register_task_executor": m.RegisterTaskExecutor,
    "registration_success": m.RegistrationSuccess,
    "registration_rejected": m.RegistrationRejected,
    "slot_report": m.SlotReport,
    "request_slot": m.RequestSlot,
    "slot_request_rejected": m.SlotRequestRejected,
    "notify_slot_available": m.NotifySlotAvailable,
    "heartbeat_request": m.HeartbeatRequest,
    "heartbeat_response": m.HeartbeatResponse,
    "disconnect": m.Disconnect,
    "register_task_executor_at_job_master": m.RegisterTaskExecutorAtJobMaster,
    "offer_slots": m.OfferSlots,
    "slot_offers_answered": m.SlotOffersAnswered,
    "free_slot": m.FreeSlot,
    "submit_tasks": m.SubmitTasks,
    "cancel_task": m.CancelTask,
    "task_state_changed": m.TaskStateChanged,
    "end_of_data_reached": m.EndOfDataReached,
    "job_status_changed": m.JobStatusChanged,
    "shut_down_task_executor": m.ShutDownTaskExecutor,
    "register_job_master": m.RegisterJobMaster,
    "declare_required_slots": m.DeclareRequiredSlots,
    "not_enough_resources": m.NotEnoughResources,
    "notify_task_manager_lost": m.NotifyTaskManagerLost,
    "report_executions": m.ReportExecutions,
    "report_watermark": m.ReportWatermark,
    "align_watermarks": m.AlignWatermarks,
    "tap_task": m.TapTask,
    "task_tapped": m.TaskTapped,
    "request_thread_dump": m.RequestThreadDump,
    "thread_dump": m.ThreadDump,
}
"""Field of ControlMessage -> message. What is not here cannot be sent over a stream."""

_OTHER_MESSAGES: dict[type, type[Message]] = {
    JobGraph: job_pb2.JobGraph,
    JobEdge: job_pb2.JobEdge,
    SerializedFailure: job_pb2.SerializedFailure,
    m.TaskMetrics: cluster_pb2.TaskMetrics,
    m.QueueFigures: cluster_pb2.QueueFigures,
    AccumulatorValue: job_pb2.AccumulatorValue,
    MetricValue: job_pb2.MetricValue,
    m.TaskManagerInfo: cluster_pb2.TaskManagerInfo,
    m.ProcessFigures: cluster_pb2.ProcessFigures,
    m.TaskDeploymentDescriptor: cluster_pb2.TaskDeploymentDescriptor,
    m.CheckpointMetrics: checkpoint_pb2.CheckpointMetrics,
}

_COMPILER = Compiler(
    {
        **CHECKPOINT_CODECS,
        OperatorSubtaskState: Codec(encode_operator_subtask_state, decode_operator_subtask_state),  # type: ignore[arg-type]
        TaskStateSnapshot: Codec(encode_task_state, decode_task_state),  # type: ignore[arg-type]
    }
)

_FIELD_OF: dict[type, str] = {message_type: field for field, message_type in CONTROL_MESSAGES.items()}


_codecs: dict[Any, Codec] = {}


def _codec(python_type: Any) -> Codec:
    codec = _codecs.get(python_type)
    if codec is None:
        codec = _codecs[python_type] = _COMPILER.compile(python_type, _message_type(python_type))
    return codec


def _message_type(python_type: Any) -> type[Message]:
    if python_type in _FIELD_OF:
        return type(getattr(cluster_pb2.ControlMessage(), _FIELD_OF[python_type]))
    if python_type in _OTHER_MESSAGES:
        return _OTHER_MESSAGES[python_type]
    raise WireError(f"{python_type.__name__} is no message: nothing on the wire stands for it")


_encoders: dict[type, tuple[str, Encode]] = {}
_decoders: dict[str, Decode] = {}


def encode_control_message(value: Any, message: cluster_pb2.ControlMessage) -> None:
    """Fill `message`, which is empty. Raises WireError for a value that cannot travel."""
    entry = _encoders.get(type(value))
    if entry is None:
        field = _FIELD_OF.get(type(value))
        if field is None:
            raise WireError(f"{type(value).__name__} is no control message: nothing on the wire stands for it")
        entry = _encoders[type(value)] = (field, _codec(type(value)).encode)
    nested = getattr(message, entry[0])
    nested.SetInParent()
    try:
        entry[1](value, nested)
    except (TypeError, ValueError, KeyError, AttributeError) as error:
        raise WireError(f"{type(value).__name__} cannot be sent: {error}") from error


def decode_control_message(message: cluster_pb2.ControlMessage) -> Any:
    """The message inside. Raises WireError when there is none that this version knows."""
    field = message.WhichOneof("message")
    if field is None:
        raise WireError("ControlMessage.message is missing, or of a kind that this version does not know")
    return _decode_field(field, message)


def _decode_field(field: str, message: cluster_pb2.ControlMessage) -> Any:
    decoder = _decoders.get(field)
    if decoder is None:
        decoder = _decoders[field] = _codec(CONTROL_MESSAGES[field]).decode
    try:
        return decoder(getattr(message, field))
    except (ValueError, TypeError, KeyError) as error:  # a value refused its own content
        raise WireError(f"{field} makes no sense: {error}") from error


def encode_envelope(leader_session_id: LeaderSessionID, messages: Iterable[Any]) -> cluster_pb2.Envelope:
    """One envelope with these messages, in order."""
    envelope = cluster_pb2.Envelope(leader_session_id=leader_session_id)
    add = envelope.messages.add
    for value in messages:
        encode_control_message(value, add())
    return envelope


def decode_envelope(envelope: cluster_pb2.Envelope) -> tuple[LeaderSessionID, list[Any]]:
    """Session and messages, without those of a kind that only a newer version knows: it does not count on an answer.
    Raises WireError if one of them is refused: then none was delivered."""
    messages = []
    for item in envelope.messages[:]:
        field = item.WhichOneof("message")
        if field is not None:
            messages.append(_decode_field(field, item))
        elif not item.ByteSize():
            raise WireError("ControlMessage.message is missing")
    return LeaderSessionID(envelope.leader_session_id), messages


def encode_into(value: Any, message: Message) -> None:
    """Fill an empty message of the same name with a value that has one."""
    codec = _codec(type(value))
    try:
        codec.encode(value, message)
    except (TypeError, ValueError, KeyError, AttributeError) as error:
        raise WireError(f"{type(value).__name__} cannot be sent: {error}") from error


def decode(python_type: Callable[..., ValueT], message: Message) -> ValueT:
    """The value of a message; `python_type` is one of the declared types."""
    return _codec(python_type).decode(message)


def encode_job_graph(value: JobGraph) -> job_pb2.JobGraph:
    """A job, ready to submit."""
    message = job_pb2.JobGraph()
    encode_into(value, message)
    return message


def decode_job_graph(message: job_pb2.JobGraph) -> JobGraph:
    """A job as it was submitted. Raises WireError, also for an id that cannot be a name of a file; says nothing about
    whether the job makes sense."""
    if not _JOB_ID.fullmatch(message.job_id):
        shown = message.job_id[:80]
        raise WireError(
            f"{shown!r} is no id of a job: it has up to 64 letters, digits, '-', '_' and '.', drawn as 32 hexadecimal digits"
        )
    try:
        return decode(JobGraph, message)
    except (ValueError, TypeError, KeyError) as error:
        raise WireError(f"JobGraph makes no sense: {error}") from error
