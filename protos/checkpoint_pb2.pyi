from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class SnapshotType(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    SNAPSHOT_TYPE_UNSPECIFIED: _ClassVar[SnapshotType]
    SNAPSHOT_TYPE_CHECKPOINT: _ClassVar[SnapshotType]
    SNAPSHOT_TYPE_FULL_CHECKPOINT: _ClassVar[SnapshotType]
    SNAPSHOT_TYPE_SAVEPOINT: _ClassVar[SnapshotType]
    SNAPSHOT_TYPE_SAVEPOINT_SUSPEND: _ClassVar[SnapshotType]
    SNAPSHOT_TYPE_SAVEPOINT_TERMINATE: _ClassVar[SnapshotType]

class AlignmentType(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ALIGNMENT_TYPE_UNSPECIFIED: _ClassVar[AlignmentType]
    ALIGNMENT_TYPE_AT_LEAST_ONCE: _ClassVar[AlignmentType]
    ALIGNMENT_TYPE_ALIGNED: _ClassVar[AlignmentType]
    ALIGNMENT_TYPE_UNALIGNED: _ClassVar[AlignmentType]
    ALIGNMENT_TYPE_FORCED_ALIGNED: _ClassVar[AlignmentType]

class CheckpointFailureReason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    CHECKPOINT_FAILURE_REASON_UNSPECIFIED: _ClassVar[CheckpointFailureReason]
    CHECKPOINT_FAILURE_REASON_PERIODIC_SCHEDULER_SHUTDOWN: _ClassVar[CheckpointFailureReason]
    CHECKPOINT_FAILURE_REASON_TOO_MANY_CHECKPOINT_REQUESTS: _ClassVar[CheckpointFailureReason]
    CHECKPOINT_FAILURE_REASON_MINIMUM_TIME_BETWEEN_CHECKPOINTS: _ClassVar[CheckpointFailureReason]
    CHECKPOINT_FAILURE_REASON_NOT_ALL_REQUIRED_TASKS_RUNNING: _ClassVar[CheckpointFailureReason]
    CHECKPOINT_FAILURE_REASON_IO_EXCEPTION: _ClassVar[CheckpointFailureReason]
    CHECKPOINT_FAILURE_REASON_BLOCKING_OUTPUT_EXIST: _ClassVar[CheckpointFailureReason]
    CHECKPOINT_FAILURE_REASON_CHANNEL_STATE_SHARED_STREAM_EXCEPTION: _ClassVar[CheckpointFailureReason]
    CHECKPOINT_FAILURE_REASON_CHECKPOINT_ASYNC_EXCEPTION: _ClassVar[CheckpointFailureReason]
    CHECKPOINT_FAILURE_REASON_CHECKPOINT_EXPIRED: _ClassVar[CheckpointFailureReason]
    CHECKPOINT_FAILURE_REASON_CHECKPOINT_SUBSUMED: _ClassVar[CheckpointFailureReason]
    CHECKPOINT_FAILURE_REASON_CHECKPOINT_DECLINED: _ClassVar[CheckpointFailureReason]
    CHECKPOINT_FAILURE_REASON_CHECKPOINT_DECLINED_TASK_NOT_READY: _ClassVar[CheckpointFailureReason]
    CHECKPOINT_FAILURE_REASON_CHECKPOINT_DECLINED_SUBSUMED: _ClassVar[CheckpointFailureReason]
    CHECKPOINT_FAILURE_REASON_CHECKPOINT_DECLINED_ON_CANCELLATION_BARRIER: _ClassVar[CheckpointFailureReason]
    CHECKPOINT_FAILURE_REASON_CHECKPOINT_DECLINED_INPUT_END_OF_STREAM: _ClassVar[CheckpointFailureReason]
    CHECKPOINT_FAILURE_REASON_CHECKPOINT_COORDINATOR_SHUTDOWN: _ClassVar[CheckpointFailureReason]
    CHECKPOINT_FAILURE_REASON_CHECKPOINT_COORDINATOR_SUSPEND: _ClassVar[CheckpointFailureReason]
    CHECKPOINT_FAILURE_REASON_JOB_FAILURE: _ClassVar[CheckpointFailureReason]
    CHECKPOINT_FAILURE_REASON_JOB_FAILOVER_REGION: _ClassVar[CheckpointFailureReason]
    CHECKPOINT_FAILURE_REASON_TASK_FAILURE: _ClassVar[CheckpointFailureReason]
    CHECKPOINT_FAILURE_REASON_TASK_CHECKPOINT_FAILURE: _ClassVar[CheckpointFailureReason]
    CHECKPOINT_FAILURE_REASON_UNKNOWN_TASK_CHECKPOINT_NOTIFICATION_FAILURE: _ClassVar[CheckpointFailureReason]
    CHECKPOINT_FAILURE_REASON_FINALIZE_CHECKPOINT_FAILURE: _ClassVar[CheckpointFailureReason]
    CHECKPOINT_FAILURE_REASON_TRIGGER_CHECKPOINT_FAILURE: _ClassVar[CheckpointFailureReason]
    CHECKPOINT_FAILURE_REASON_TOO_MANY_CONCURRENT_CHECKPOINTS: _ClassVar[CheckpointFailureReason]
    CHECKPOINT_FAILURE_REASON_CHECKPOINT_DECLINED_TASK_CLOSING: _ClassVar[CheckpointFailureReason]
    CHECKPOINT_FAILURE_REASON_CHECKPOINT_DECLINED_TASK_NOT_CHECKPOINTING: _ClassVar[CheckpointFailureReason]
    CHECKPOINT_FAILURE_REASON_CHECKPOINT_DECLINED_ALIGNMENT_LIMIT_EXCEEDED: _ClassVar[CheckpointFailureReason]
    CHECKPOINT_FAILURE_REASON_EXCEPTION: _ClassVar[CheckpointFailureReason]

class OperatorStateMode(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    OPERATOR_STATE_MODE_UNSPECIFIED: _ClassVar[OperatorStateMode]
    OPERATOR_STATE_MODE_SPLIT_DISTRIBUTE: _ClassVar[OperatorStateMode]
    OPERATOR_STATE_MODE_UNION: _ClassVar[OperatorStateMode]
    OPERATOR_STATE_MODE_BROADCAST: _ClassVar[OperatorStateMode]
SNAPSHOT_TYPE_UNSPECIFIED: SnapshotType
SNAPSHOT_TYPE_CHECKPOINT: SnapshotType
SNAPSHOT_TYPE_FULL_CHECKPOINT: SnapshotType
SNAPSHOT_TYPE_SAVEPOINT: SnapshotType
SNAPSHOT_TYPE_SAVEPOINT_SUSPEND: SnapshotType
SNAPSHOT_TYPE_SAVEPOINT_TERMINATE: SnapshotType
ALIGNMENT_TYPE_UNSPECIFIED: AlignmentType
ALIGNMENT_TYPE_AT_LEAST_ONCE: AlignmentType
ALIGNMENT_TYPE_ALIGNED: AlignmentType
ALIGNMENT_TYPE_UNALIGNED: AlignmentType
ALIGNMENT_TYPE_FORCED_ALIGNED: AlignmentType
CHECKPOINT_FAILURE_REASON_UNSPECIFIED: CheckpointFailureReason
CHECKPOINT_FAILURE_REASON_PERIODIC_SCHEDULER_SHUTDOWN: CheckpointFailureReason
CHECKPOINT_FAILURE_REASON_TOO_MANY_CHECKPOINT_REQUESTS: CheckpointFailureReason
CHECKPOINT_FAILURE_REASON_MINIMUM_TIME_BETWEEN_CHECKPOINTS: CheckpointFailureReason
CHECKPOINT_FAILURE_REASON_NOT_ALL_REQUIRED_TASKS_RUNNING: CheckpointFailureReason
CHECKPOINT_FAILURE_REASON_IO_EXCEPTION: CheckpointFailureReason
CHECKPOINT_FAILURE_REASON_BLOCKING_OUTPUT_EXIST: CheckpointFailureReason
CHECKPOINT_FAILURE_REASON_CHANNEL_STATE_SHARED_STREAM_EXCEPTION: CheckpointFailureReason
CHECKPOINT_FAILURE_REASON_CHECKPOINT_ASYNC_EXCEPTION: CheckpointFailureReason
CHECKPOINT_FAILURE_REASON_CHECKPOINT_EXPIRED: CheckpointFailureReason
CHECKPOINT_FAILURE_REASON_CHECKPOINT_SUBSUMED: CheckpointFailureReason
CHECKPOINT_FAILURE_REASON_CHECKPOINT_DECLINED: CheckpointFailureReason
CHECKPOINT_FAILURE_REASON_CHECKPOINT_DECLINED_TASK_NOT_READY: CheckpointFailureReason
CHECKPOINT_FAILURE_REASON_CHECKPOINT_DECLINED_SUBSUMED: CheckpointFailureReason
CHECKPOINT_FAILURE_REASON_CHECKPOINT_DECLINED_ON_CANCELLATION_BARRIER: CheckpointFailureReason
CHECKPOINT_FAILURE_REASON_CHECKPOINT_DECLINED_INPUT_END_OF_STREAM: CheckpointFailureReason
CHECKPOINT_FAILURE_REASON_CHECKPOINT_COORDINATOR_SHUTDOWN: CheckpointFailureReason
CHECKPOINT_FAILURE_REASON_CHECKPOINT_COORDINATOR_SUSPEND: CheckpointFailureReason
CHECKPOINT_FAILURE_REASON_JOB_FAILURE: CheckpointFailureReason
CHECKPOINT_FAILURE_REASON_JOB_FAILOVER_REGION: CheckpointFailureReason
CHECKPOINT_FAILURE_REASON_TASK_FAILURE: CheckpointFailureReason
CHECKPOINT_FAILURE_REASON_TASK_CHECKPOINT_FAILURE: CheckpointFailureReason
CHECKPOINT_FAILURE_REASON_UNKNOWN_TASK_CHECKPOINT_NOTIFICATION_FAILURE: CheckpointFailureReason
CHECKPOINT_FAILURE_REASON_FINALIZE_CHECKPOINT_FAILURE: CheckpointFailureReason
CHECKPOINT_FAILURE_REASON_TRIGGER_CHECKPOINT_FAILURE: CheckpointFailureReason
CHECKPOINT_FAILURE_REASON_TOO_MANY_CONCURRENT_CHECKPOINTS: CheckpointFailureReason
CHECKPOINT_FAILURE_REASON_CHECKPOINT_DECLINED_TASK_CLOSING: CheckpointFailureReason
CHECKPOINT_FAILURE_REASON_CHECKPOINT_DECLINED_TASK_NOT_CHECKPOINTING: CheckpointFailureReason
CHECKPOINT_FAILURE_REASON_CHECKPOINT_DECLINED_ALIGNMENT_LIMIT_EXCEEDED: CheckpointFailureReason
CHECKPOINT_FAILURE_REASON_EXCEPTION: CheckpointFailureReason
OPERATOR_STATE_MODE_UNSPECIFIED: OperatorStateMode
OPERATOR_STATE_MODE_SPLIT_DISTRIBUTE: OperatorStateMode
OPERATOR_STATE_MODE_UNION: OperatorStateMode
OPERATOR_STATE_MODE_BROADCAST: OperatorStateMode

class ExecutionAttemptID(_message.Message):
    __slots__ = ("execution_graph_id", "vertex_id", "subtask_index", "attempt_number")
    EXECUTION_GRAPH_ID_FIELD_NUMBER: _ClassVar[int]
    VERTEX_ID_FIELD_NUMBER: _ClassVar[int]
    SUBTASK_INDEX_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_NUMBER_FIELD_NUMBER: _ClassVar[int]
    execution_graph_id: str
    vertex_id: str
    subtask_index: int
    attempt_number: int
    def __init__(self, execution_graph_id: _Optional[str] = ..., vertex_id: _Optional[str] = ..., subtask_index: _Optional[int] = ..., attempt_number: _Optional[int] = ...) -> None: ...

class CheckpointOptions(_message.Message):
    __slots__ = ("snapshot_type", "alignment", "aligned_checkpoint_timeout_ms", "target_location")
    SNAPSHOT_TYPE_FIELD_NUMBER: _ClassVar[int]
    ALIGNMENT_FIELD_NUMBER: _ClassVar[int]
    ALIGNED_CHECKPOINT_TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    TARGET_LOCATION_FIELD_NUMBER: _ClassVar[int]
    snapshot_type: SnapshotType
    alignment: AlignmentType
    aligned_checkpoint_timeout_ms: int
    target_location: str
    def __init__(self, snapshot_type: _Optional[_Union[SnapshotType, str]] = ..., alignment: _Optional[_Union[AlignmentType, str]] = ..., aligned_checkpoint_timeout_ms: _Optional[int] = ..., target_location: _Optional[str] = ...) -> None: ...

class TriggerCheckpoint(_message.Message):
    __slots__ = ("job_id", "attempt_id", "checkpoint_id", "timestamp_ms", "options")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_ID_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_ID_FIELD_NUMBER: _ClassVar[int]
    TIMESTAMP_MS_FIELD_NUMBER: _ClassVar[int]
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    attempt_id: ExecutionAttemptID
    checkpoint_id: int
    timestamp_ms: int
    options: CheckpointOptions
    def __init__(self, job_id: _Optional[str] = ..., attempt_id: _Optional[_Union[ExecutionAttemptID, _Mapping]] = ..., checkpoint_id: _Optional[int] = ..., timestamp_ms: _Optional[int] = ..., options: _Optional[_Union[CheckpointOptions, _Mapping]] = ...) -> None: ...

class CheckpointMetrics(_message.Message):
    __slots__ = ("sync_duration_ms", "async_duration_ms", "alignment_duration_ms", "checkpoint_start_delay_ms", "bytes_processed_during_alignment", "bytes_persisted_during_alignment", "unaligned")
    SYNC_DURATION_MS_FIELD_NUMBER: _ClassVar[int]
    ASYNC_DURATION_MS_FIELD_NUMBER: _ClassVar[int]
    ALIGNMENT_DURATION_MS_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_START_DELAY_MS_FIELD_NUMBER: _ClassVar[int]
    BYTES_PROCESSED_DURING_ALIGNMENT_FIELD_NUMBER: _ClassVar[int]
    BYTES_PERSISTED_DURING_ALIGNMENT_FIELD_NUMBER: _ClassVar[int]
    UNALIGNED_FIELD_NUMBER: _ClassVar[int]
    sync_duration_ms: int
    async_duration_ms: int
    alignment_duration_ms: int
    checkpoint_start_delay_ms: int
    bytes_processed_during_alignment: int
    bytes_persisted_during_alignment: int
    unaligned: bool
    def __init__(self, sync_duration_ms: _Optional[int] = ..., async_duration_ms: _Optional[int] = ..., alignment_duration_ms: _Optional[int] = ..., checkpoint_start_delay_ms: _Optional[int] = ..., bytes_processed_during_alignment: _Optional[int] = ..., bytes_persisted_during_alignment: _Optional[int] = ..., unaligned: _Optional[bool] = ...) -> None: ...

class AcknowledgeCheckpoint(_message.Message):
    __slots__ = ("job_id", "attempt_id", "checkpoint_id", "metrics", "state", "state_size_bytes")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_ID_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_ID_FIELD_NUMBER: _ClassVar[int]
    METRICS_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    STATE_SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    attempt_id: ExecutionAttemptID
    checkpoint_id: int
    metrics: CheckpointMetrics
    state: TaskStateSnapshot
    state_size_bytes: int
    def __init__(self, job_id: _Optional[str] = ..., attempt_id: _Optional[_Union[ExecutionAttemptID, _Mapping]] = ..., checkpoint_id: _Optional[int] = ..., metrics: _Optional[_Union[CheckpointMetrics, _Mapping]] = ..., state: _Optional[_Union[TaskStateSnapshot, _Mapping]] = ..., state_size_bytes: _Optional[int] = ...) -> None: ...

class DeclineCheckpoint(_message.Message):
    __slots__ = ("job_id", "attempt_id", "checkpoint_id", "reason", "detail", "timestamp_ms")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_ID_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_ID_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    TIMESTAMP_MS_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    attempt_id: ExecutionAttemptID
    checkpoint_id: int
    reason: CheckpointFailureReason
    detail: str
    timestamp_ms: int
    def __init__(self, job_id: _Optional[str] = ..., attempt_id: _Optional[_Union[ExecutionAttemptID, _Mapping]] = ..., checkpoint_id: _Optional[int] = ..., reason: _Optional[_Union[CheckpointFailureReason, str]] = ..., detail: _Optional[str] = ..., timestamp_ms: _Optional[int] = ...) -> None: ...

class NotifyCheckpointComplete(_message.Message):
    __slots__ = ("job_id", "attempt_id", "checkpoint_id", "timestamp_ms", "last_subsumed_id")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_ID_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_ID_FIELD_NUMBER: _ClassVar[int]
    TIMESTAMP_MS_FIELD_NUMBER: _ClassVar[int]
    LAST_SUBSUMED_ID_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    attempt_id: ExecutionAttemptID
    checkpoint_id: int
    timestamp_ms: int
    last_subsumed_id: int
    def __init__(self, job_id: _Optional[str] = ..., attempt_id: _Optional[_Union[ExecutionAttemptID, _Mapping]] = ..., checkpoint_id: _Optional[int] = ..., timestamp_ms: _Optional[int] = ..., last_subsumed_id: _Optional[int] = ...) -> None: ...

class NotifyCheckpointAborted(_message.Message):
    __slots__ = ("job_id", "attempt_id", "checkpoint_id", "latest_completed_id", "timestamp_ms")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_ID_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_ID_FIELD_NUMBER: _ClassVar[int]
    LATEST_COMPLETED_ID_FIELD_NUMBER: _ClassVar[int]
    TIMESTAMP_MS_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    attempt_id: ExecutionAttemptID
    checkpoint_id: int
    latest_completed_id: int
    timestamp_ms: int
    def __init__(self, job_id: _Optional[str] = ..., attempt_id: _Optional[_Union[ExecutionAttemptID, _Mapping]] = ..., checkpoint_id: _Optional[int] = ..., latest_completed_id: _Optional[int] = ..., timestamp_ms: _Optional[int] = ...) -> None: ...

class ByteStreamStateHandle(_message.Message):
    __slots__ = ("data",)
    DATA_FIELD_NUMBER: _ClassVar[int]
    data: bytes
    def __init__(self, data: _Optional[bytes] = ...) -> None: ...

class SegmentStateHandle(_message.Message):
    __slots__ = ("path", "offset", "size", "checksum", "digests")
    PATH_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    CHECKSUM_FIELD_NUMBER: _ClassVar[int]
    DIGESTS_FIELD_NUMBER: _ClassVar[int]
    path: str
    offset: int
    size: int
    checksum: int
    digests: bytes
    def __init__(self, path: _Optional[str] = ..., offset: _Optional[int] = ..., size: _Optional[int] = ..., checksum: _Optional[int] = ..., digests: _Optional[bytes] = ...) -> None: ...

class StreamStateHandle(_message.Message):
    __slots__ = ("inline", "segment")
    INLINE_FIELD_NUMBER: _ClassVar[int]
    SEGMENT_FIELD_NUMBER: _ClassVar[int]
    inline: ByteStreamStateHandle
    segment: SegmentStateHandle
    def __init__(self, inline: _Optional[_Union[ByteStreamStateHandle, _Mapping]] = ..., segment: _Optional[_Union[SegmentStateHandle, _Mapping]] = ...) -> None: ...

class KeyGroupRange(_message.Message):
    __slots__ = ("start", "end")
    START_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    start: int
    end: int
    def __init__(self, start: _Optional[int] = ..., end: _Optional[int] = ...) -> None: ...

class KeyedStateHandle(_message.Message):
    __slots__ = ("key_group_range", "handle", "shared_key")
    KEY_GROUP_RANGE_FIELD_NUMBER: _ClassVar[int]
    HANDLE_FIELD_NUMBER: _ClassVar[int]
    SHARED_KEY_FIELD_NUMBER: _ClassVar[int]
    key_group_range: KeyGroupRange
    handle: StreamStateHandle
    shared_key: str
    def __init__(self, key_group_range: _Optional[_Union[KeyGroupRange, _Mapping]] = ..., handle: _Optional[_Union[StreamStateHandle, _Mapping]] = ..., shared_key: _Optional[str] = ...) -> None: ...

class ElementRange(_message.Message):
    __slots__ = ("offset", "size")
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    offset: int
    size: int
    def __init__(self, offset: _Optional[int] = ..., size: _Optional[int] = ...) -> None: ...

class OperatorStateEntry(_message.Message):
    __slots__ = ("name", "mode", "offsets")
    NAME_FIELD_NUMBER: _ClassVar[int]
    MODE_FIELD_NUMBER: _ClassVar[int]
    OFFSETS_FIELD_NUMBER: _ClassVar[int]
    name: str
    mode: OperatorStateMode
    offsets: _containers.RepeatedCompositeFieldContainer[ElementRange]
    def __init__(self, name: _Optional[str] = ..., mode: _Optional[_Union[OperatorStateMode, str]] = ..., offsets: _Optional[_Iterable[_Union[ElementRange, _Mapping]]] = ...) -> None: ...

class OperatorStateHandle(_message.Message):
    __slots__ = ("handle", "entries")
    HANDLE_FIELD_NUMBER: _ClassVar[int]
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    handle: StreamStateHandle
    entries: _containers.RepeatedCompositeFieldContainer[OperatorStateEntry]
    def __init__(self, handle: _Optional[_Union[StreamStateHandle, _Mapping]] = ..., entries: _Optional[_Iterable[_Union[OperatorStateEntry, _Mapping]]] = ...) -> None: ...

class ChannelStateHandle(_message.Message):
    __slots__ = ("gate_or_partition", "channel", "handle", "batch_count")
    GATE_OR_PARTITION_FIELD_NUMBER: _ClassVar[int]
    CHANNEL_FIELD_NUMBER: _ClassVar[int]
    HANDLE_FIELD_NUMBER: _ClassVar[int]
    BATCH_COUNT_FIELD_NUMBER: _ClassVar[int]
    gate_or_partition: int
    channel: int
    handle: StreamStateHandle
    batch_count: int
    def __init__(self, gate_or_partition: _Optional[int] = ..., channel: _Optional[int] = ..., handle: _Optional[_Union[StreamStateHandle, _Mapping]] = ..., batch_count: _Optional[int] = ...) -> None: ...

class OperatorSubtaskState(_message.Message):
    __slots__ = ("managed_keyed", "managed_operator", "input_channel", "output_channel")
    MANAGED_KEYED_FIELD_NUMBER: _ClassVar[int]
    MANAGED_OPERATOR_FIELD_NUMBER: _ClassVar[int]
    INPUT_CHANNEL_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_CHANNEL_FIELD_NUMBER: _ClassVar[int]
    managed_keyed: _containers.RepeatedCompositeFieldContainer[KeyedStateHandle]
    managed_operator: _containers.RepeatedCompositeFieldContainer[OperatorStateHandle]
    input_channel: _containers.RepeatedCompositeFieldContainer[ChannelStateHandle]
    output_channel: _containers.RepeatedCompositeFieldContainer[ChannelStateHandle]
    def __init__(self, managed_keyed: _Optional[_Iterable[_Union[KeyedStateHandle, _Mapping]]] = ..., managed_operator: _Optional[_Iterable[_Union[OperatorStateHandle, _Mapping]]] = ..., input_channel: _Optional[_Iterable[_Union[ChannelStateHandle, _Mapping]]] = ..., output_channel: _Optional[_Iterable[_Union[ChannelStateHandle, _Mapping]]] = ...) -> None: ...

class TaskStateSnapshot(_message.Message):
    __slots__ = ("operators", "is_task_finished")
    class Entry(_message.Message):
        __slots__ = ("operator_id", "state")
        OPERATOR_ID_FIELD_NUMBER: _ClassVar[int]
        STATE_FIELD_NUMBER: _ClassVar[int]
        operator_id: str
        state: OperatorSubtaskState
        def __init__(self, operator_id: _Optional[str] = ..., state: _Optional[_Union[OperatorSubtaskState, _Mapping]] = ...) -> None: ...
    OPERATORS_FIELD_NUMBER: _ClassVar[int]
    IS_TASK_FINISHED_FIELD_NUMBER: _ClassVar[int]
    operators: _containers.RepeatedCompositeFieldContainer[TaskStateSnapshot.Entry]
    is_task_finished: bool
    def __init__(self, operators: _Optional[_Iterable[_Union[TaskStateSnapshot.Entry, _Mapping]]] = ..., is_task_finished: _Optional[bool] = ...) -> None: ...
