from snapline.protos import checkpoint_pb2 as _checkpoint_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class CheckpointStatsStatus(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    CHECKPOINT_STATS_STATUS_UNSPECIFIED: _ClassVar[CheckpointStatsStatus]
    CHECKPOINT_STATS_STATUS_IN_PROGRESS: _ClassVar[CheckpointStatsStatus]
    CHECKPOINT_STATS_STATUS_COMPLETED: _ClassVar[CheckpointStatsStatus]
    CHECKPOINT_STATS_STATUS_FAILED: _ClassVar[CheckpointStatsStatus]
CHECKPOINT_STATS_STATUS_UNSPECIFIED: CheckpointStatsStatus
CHECKPOINT_STATS_STATUS_IN_PROGRESS: CheckpointStatsStatus
CHECKPOINT_STATS_STATUS_COMPLETED: CheckpointStatsStatus
CHECKPOINT_STATS_STATUS_FAILED: CheckpointStatsStatus

class CheckpointMetadata(_message.Message):
    __slots__ = ("job_id", "job_name", "checkpoint_id", "timestamp_ms", "snapshot_type", "operators", "master_states")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    JOB_NAME_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_ID_FIELD_NUMBER: _ClassVar[int]
    TIMESTAMP_MS_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_TYPE_FIELD_NUMBER: _ClassVar[int]
    OPERATORS_FIELD_NUMBER: _ClassVar[int]
    MASTER_STATES_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    job_name: str
    checkpoint_id: int
    timestamp_ms: int
    snapshot_type: _checkpoint_pb2.SnapshotType
    operators: _containers.RepeatedCompositeFieldContainer[OperatorMetadata]
    master_states: _containers.RepeatedCompositeFieldContainer[MasterStateMetadata]
    def __init__(self, job_id: _Optional[str] = ..., job_name: _Optional[str] = ..., checkpoint_id: _Optional[int] = ..., timestamp_ms: _Optional[int] = ..., snapshot_type: _Optional[_Union[_checkpoint_pb2.SnapshotType, str]] = ..., operators: _Optional[_Iterable[_Union[OperatorMetadata, _Mapping]]] = ..., master_states: _Optional[_Iterable[_Union[MasterStateMetadata, _Mapping]]] = ...) -> None: ...

class OperatorMetadata(_message.Message):
    __slots__ = ("operator_id", "uid", "name", "parallelism", "max_parallelism", "subtasks", "fully_finished", "finished_subtasks")
    OPERATOR_ID_FIELD_NUMBER: _ClassVar[int]
    UID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    PARALLELISM_FIELD_NUMBER: _ClassVar[int]
    MAX_PARALLELISM_FIELD_NUMBER: _ClassVar[int]
    SUBTASKS_FIELD_NUMBER: _ClassVar[int]
    FULLY_FINISHED_FIELD_NUMBER: _ClassVar[int]
    FINISHED_SUBTASKS_FIELD_NUMBER: _ClassVar[int]
    operator_id: str
    uid: str
    name: str
    parallelism: int
    max_parallelism: int
    subtasks: _containers.RepeatedCompositeFieldContainer[SubtaskMetadata]
    fully_finished: bool
    finished_subtasks: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, operator_id: _Optional[str] = ..., uid: _Optional[str] = ..., name: _Optional[str] = ..., parallelism: _Optional[int] = ..., max_parallelism: _Optional[int] = ..., subtasks: _Optional[_Iterable[_Union[SubtaskMetadata, _Mapping]]] = ..., fully_finished: _Optional[bool] = ..., finished_subtasks: _Optional[_Iterable[int]] = ...) -> None: ...

class SubtaskMetadata(_message.Message):
    __slots__ = ("subtask_index", "state")
    SUBTASK_INDEX_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    subtask_index: int
    state: _checkpoint_pb2.OperatorSubtaskState
    def __init__(self, subtask_index: _Optional[int] = ..., state: _Optional[_Union[_checkpoint_pb2.OperatorSubtaskState, _Mapping]] = ...) -> None: ...

class MasterStateMetadata(_message.Message):
    __slots__ = ("hook_id", "version", "data")
    HOOK_ID_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    hook_id: str
    version: int
    data: bytes
    def __init__(self, hook_id: _Optional[str] = ..., version: _Optional[int] = ..., data: _Optional[bytes] = ...) -> None: ...

class CompletedCheckpointPointer(_message.Message):
    __slots__ = ("checkpoint_id", "location", "completion_timestamp_ms", "snapshot_type", "discard_on_subsumed", "discard_on_finished", "discard_on_canceled", "discard_on_failed", "discard_on_suspended", "is_unclaimed")
    CHECKPOINT_ID_FIELD_NUMBER: _ClassVar[int]
    LOCATION_FIELD_NUMBER: _ClassVar[int]
    COMPLETION_TIMESTAMP_MS_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_TYPE_FIELD_NUMBER: _ClassVar[int]
    DISCARD_ON_SUBSUMED_FIELD_NUMBER: _ClassVar[int]
    DISCARD_ON_FINISHED_FIELD_NUMBER: _ClassVar[int]
    DISCARD_ON_CANCELED_FIELD_NUMBER: _ClassVar[int]
    DISCARD_ON_FAILED_FIELD_NUMBER: _ClassVar[int]
    DISCARD_ON_SUSPENDED_FIELD_NUMBER: _ClassVar[int]
    IS_UNCLAIMED_FIELD_NUMBER: _ClassVar[int]
    checkpoint_id: int
    location: str
    completion_timestamp_ms: int
    snapshot_type: _checkpoint_pb2.SnapshotType
    discard_on_subsumed: bool
    discard_on_finished: bool
    discard_on_canceled: bool
    discard_on_failed: bool
    discard_on_suspended: bool
    is_unclaimed: bool
    def __init__(self, checkpoint_id: _Optional[int] = ..., location: _Optional[str] = ..., completion_timestamp_ms: _Optional[int] = ..., snapshot_type: _Optional[_Union[_checkpoint_pb2.SnapshotType, str]] = ..., discard_on_subsumed: _Optional[bool] = ..., discard_on_finished: _Optional[bool] = ..., discard_on_canceled: _Optional[bool] = ..., discard_on_failed: _Optional[bool] = ..., discard_on_suspended: _Optional[bool] = ..., is_unclaimed: _Optional[bool] = ...) -> None: ...

class SubtaskStats(_message.Message):
    __slots__ = ("subtask_index", "ack_timestamp_ms", "state_size_bytes", "metrics", "checkpointed_size_bytes")
    SUBTASK_INDEX_FIELD_NUMBER: _ClassVar[int]
    ACK_TIMESTAMP_MS_FIELD_NUMBER: _ClassVar[int]
    STATE_SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    METRICS_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINTED_SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    subtask_index: int
    ack_timestamp_ms: int
    state_size_bytes: int
    metrics: _checkpoint_pb2.CheckpointMetrics
    checkpointed_size_bytes: int
    def __init__(self, subtask_index: _Optional[int] = ..., ack_timestamp_ms: _Optional[int] = ..., state_size_bytes: _Optional[int] = ..., metrics: _Optional[_Union[_checkpoint_pb2.CheckpointMetrics, _Mapping]] = ..., checkpointed_size_bytes: _Optional[int] = ...) -> None: ...

class TaskStats(_message.Message):
    __slots__ = ("vertex_id", "number_of_subtasks", "subtasks")
    VERTEX_ID_FIELD_NUMBER: _ClassVar[int]
    NUMBER_OF_SUBTASKS_FIELD_NUMBER: _ClassVar[int]
    SUBTASKS_FIELD_NUMBER: _ClassVar[int]
    vertex_id: str
    number_of_subtasks: int
    subtasks: _containers.RepeatedCompositeFieldContainer[SubtaskStats]
    def __init__(self, vertex_id: _Optional[str] = ..., number_of_subtasks: _Optional[int] = ..., subtasks: _Optional[_Iterable[_Union[SubtaskStats, _Mapping]]] = ...) -> None: ...

class CheckpointStats(_message.Message):
    __slots__ = ("checkpoint_id", "snapshot_type", "status", "trigger_timestamp_ms", "end_timestamp_ms", "location", "failure_reason", "failure_detail", "tasks", "state_size_bytes", "processed_data_bytes", "persisted_data_bytes", "number_of_subtasks", "number_of_acknowledged_subtasks", "checkpointed_size_bytes")
    CHECKPOINT_ID_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_TYPE_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    TRIGGER_TIMESTAMP_MS_FIELD_NUMBER: _ClassVar[int]
    END_TIMESTAMP_MS_FIELD_NUMBER: _ClassVar[int]
    LOCATION_FIELD_NUMBER: _ClassVar[int]
    FAILURE_REASON_FIELD_NUMBER: _ClassVar[int]
    FAILURE_DETAIL_FIELD_NUMBER: _ClassVar[int]
    TASKS_FIELD_NUMBER: _ClassVar[int]
    STATE_SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    PROCESSED_DATA_BYTES_FIELD_NUMBER: _ClassVar[int]
    PERSISTED_DATA_BYTES_FIELD_NUMBER: _ClassVar[int]
    NUMBER_OF_SUBTASKS_FIELD_NUMBER: _ClassVar[int]
    NUMBER_OF_ACKNOWLEDGED_SUBTASKS_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINTED_SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    checkpoint_id: int
    snapshot_type: _checkpoint_pb2.SnapshotType
    status: CheckpointStatsStatus
    trigger_timestamp_ms: int
    end_timestamp_ms: int
    location: str
    failure_reason: str
    failure_detail: str
    tasks: _containers.RepeatedCompositeFieldContainer[TaskStats]
    state_size_bytes: int
    processed_data_bytes: int
    persisted_data_bytes: int
    number_of_subtasks: int
    number_of_acknowledged_subtasks: int
    checkpointed_size_bytes: int
    def __init__(self, checkpoint_id: _Optional[int] = ..., snapshot_type: _Optional[_Union[_checkpoint_pb2.SnapshotType, str]] = ..., status: _Optional[_Union[CheckpointStatsStatus, str]] = ..., trigger_timestamp_ms: _Optional[int] = ..., end_timestamp_ms: _Optional[int] = ..., location: _Optional[str] = ..., failure_reason: _Optional[str] = ..., failure_detail: _Optional[str] = ..., tasks: _Optional[_Iterable[_Union[TaskStats, _Mapping]]] = ..., state_size_bytes: _Optional[int] = ..., processed_data_bytes: _Optional[int] = ..., persisted_data_bytes: _Optional[int] = ..., number_of_subtasks: _Optional[int] = ..., number_of_acknowledged_subtasks: _Optional[int] = ..., checkpointed_size_bytes: _Optional[int] = ...) -> None: ...

class RestoredCheckpointStats(_message.Message):
    __slots__ = ("checkpoint_id", "snapshot_type", "restore_timestamp_ms", "location")
    CHECKPOINT_ID_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_TYPE_FIELD_NUMBER: _ClassVar[int]
    RESTORE_TIMESTAMP_MS_FIELD_NUMBER: _ClassVar[int]
    LOCATION_FIELD_NUMBER: _ClassVar[int]
    checkpoint_id: int
    snapshot_type: _checkpoint_pb2.SnapshotType
    restore_timestamp_ms: int
    location: str
    def __init__(self, checkpoint_id: _Optional[int] = ..., snapshot_type: _Optional[_Union[_checkpoint_pb2.SnapshotType, str]] = ..., restore_timestamp_ms: _Optional[int] = ..., location: _Optional[str] = ...) -> None: ...

class StatsSummary(_message.Message):
    __slots__ = ("count", "sum", "minimum", "maximum", "window")
    COUNT_FIELD_NUMBER: _ClassVar[int]
    SUM_FIELD_NUMBER: _ClassVar[int]
    MINIMUM_FIELD_NUMBER: _ClassVar[int]
    MAXIMUM_FIELD_NUMBER: _ClassVar[int]
    WINDOW_FIELD_NUMBER: _ClassVar[int]
    count: int
    sum: int
    minimum: int
    maximum: int
    window: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, count: _Optional[int] = ..., sum: _Optional[int] = ..., minimum: _Optional[int] = ..., maximum: _Optional[int] = ..., window: _Optional[_Iterable[int]] = ...) -> None: ...

class CheckpointStatistics(_message.Message):
    __slots__ = ("total", "completed", "failed", "restored", "history", "latest_completed", "latest_savepoint", "latest_failed", "latest_restored", "duration", "state_size", "processed_data", "persisted_data", "job_restarts", "operator_failures", "checkpointed_size")
    class OperatorFailuresEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    TOTAL_FIELD_NUMBER: _ClassVar[int]
    COMPLETED_FIELD_NUMBER: _ClassVar[int]
    FAILED_FIELD_NUMBER: _ClassVar[int]
    RESTORED_FIELD_NUMBER: _ClassVar[int]
    HISTORY_FIELD_NUMBER: _ClassVar[int]
    LATEST_COMPLETED_FIELD_NUMBER: _ClassVar[int]
    LATEST_SAVEPOINT_FIELD_NUMBER: _ClassVar[int]
    LATEST_FAILED_FIELD_NUMBER: _ClassVar[int]
    LATEST_RESTORED_FIELD_NUMBER: _ClassVar[int]
    DURATION_FIELD_NUMBER: _ClassVar[int]
    STATE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PROCESSED_DATA_FIELD_NUMBER: _ClassVar[int]
    PERSISTED_DATA_FIELD_NUMBER: _ClassVar[int]
    JOB_RESTARTS_FIELD_NUMBER: _ClassVar[int]
    OPERATOR_FAILURES_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINTED_SIZE_FIELD_NUMBER: _ClassVar[int]
    total: int
    completed: int
    failed: int
    restored: int
    history: _containers.RepeatedCompositeFieldContainer[CheckpointStats]
    latest_completed: CheckpointStats
    latest_savepoint: CheckpointStats
    latest_failed: CheckpointStats
    latest_restored: RestoredCheckpointStats
    duration: StatsSummary
    state_size: StatsSummary
    processed_data: StatsSummary
    persisted_data: StatsSummary
    job_restarts: int
    operator_failures: _containers.ScalarMap[str, int]
    checkpointed_size: StatsSummary
    def __init__(self, total: _Optional[int] = ..., completed: _Optional[int] = ..., failed: _Optional[int] = ..., restored: _Optional[int] = ..., history: _Optional[_Iterable[_Union[CheckpointStats, _Mapping]]] = ..., latest_completed: _Optional[_Union[CheckpointStats, _Mapping]] = ..., latest_savepoint: _Optional[_Union[CheckpointStats, _Mapping]] = ..., latest_failed: _Optional[_Union[CheckpointStats, _Mapping]] = ..., latest_restored: _Optional[_Union[RestoredCheckpointStats, _Mapping]] = ..., duration: _Optional[_Union[StatsSummary, _Mapping]] = ..., state_size: _Optional[_Union[StatsSummary, _Mapping]] = ..., processed_data: _Optional[_Union[StatsSummary, _Mapping]] = ..., persisted_data: _Optional[_Union[StatsSummary, _Mapping]] = ..., job_restarts: _Optional[int] = ..., operator_failures: _Optional[_Mapping[str, int]] = ..., checkpointed_size: _Optional[_Union[StatsSummary, _Mapping]] = ...) -> None: ...
