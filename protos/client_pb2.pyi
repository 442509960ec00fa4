from snapline.protos import checkpoint_pb2 as _checkpoint_pb2
from snapline.protos import cluster_pb2 as _cluster_pb2
from snapline.protos import declared_pb2 as _declared_pb2
from snapline.protos import job_pb2 as _job_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class CheckpointStatus(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    CHECKPOINT_STATUS_UNSPECIFIED: _ClassVar[CheckpointStatus]
    CHECKPOINT_STATUS_IN_PROGRESS: _ClassVar[CheckpointStatus]
    CHECKPOINT_STATUS_COMPLETED: _ClassVar[CheckpointStatus]
    CHECKPOINT_STATUS_FAILED: _ClassVar[CheckpointStatus]
CHECKPOINT_STATUS_UNSPECIFIED: CheckpointStatus
CHECKPOINT_STATUS_IN_PROGRESS: CheckpointStatus
CHECKPOINT_STATUS_COMPLETED: CheckpointStatus
CHECKPOINT_STATUS_FAILED: CheckpointStatus

class SubmitJobRequest(_message.Message):
    __slots__ = ("job_graph",)
    JOB_GRAPH_FIELD_NUMBER: _ClassVar[int]
    job_graph: _job_pb2.JobGraph
    def __init__(self, job_graph: _Optional[_Union[_job_pb2.JobGraph, _Mapping]] = ...) -> None: ...

class SubmitDeclaredJobRequest(_message.Message):
    __slots__ = ("job",)
    JOB_FIELD_NUMBER: _ClassVar[int]
    job: _declared_pb2.DeclaredJob
    def __init__(self, job: _Optional[_Union[_declared_pb2.DeclaredJob, _Mapping]] = ...) -> None: ...

class SubmitJobResponse(_message.Message):
    __slots__ = ("job_id",)
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    def __init__(self, job_id: _Optional[str] = ...) -> None: ...

class ListJobsRequest(_message.Message):
    __slots__ = ("page_size", "page_token")
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    page_size: int
    page_token: str
    def __init__(self, page_size: _Optional[int] = ..., page_token: _Optional[str] = ...) -> None: ...

class JobOverview(_message.Message):
    __slots__ = ("job_id", "name", "status", "start_time_ms", "end_time_ms", "restarts", "subtasks_by_state", "failure", "latest_completed_checkpoint_id", "status_detail")
    class SubtasksByStateEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    START_TIME_MS_FIELD_NUMBER: _ClassVar[int]
    END_TIME_MS_FIELD_NUMBER: _ClassVar[int]
    RESTARTS_FIELD_NUMBER: _ClassVar[int]
    SUBTASKS_BY_STATE_FIELD_NUMBER: _ClassVar[int]
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    LATEST_COMPLETED_CHECKPOINT_ID_FIELD_NUMBER: _ClassVar[int]
    STATUS_DETAIL_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    name: str
    status: _job_pb2.JobStatus
    start_time_ms: int
    end_time_ms: int
    restarts: int
    subtasks_by_state: _containers.ScalarMap[str, int]
    failure: _job_pb2.SerializedFailure
    latest_completed_checkpoint_id: int
    status_detail: str
    def __init__(self, job_id: _Optional[str] = ..., name: _Optional[str] = ..., status: _Optional[_Union[_job_pb2.JobStatus, str]] = ..., start_time_ms: _Optional[int] = ..., end_time_ms: _Optional[int] = ..., restarts: _Optional[int] = ..., subtasks_by_state: _Optional[_Mapping[str, int]] = ..., failure: _Optional[_Union[_job_pb2.SerializedFailure, _Mapping]] = ..., latest_completed_checkpoint_id: _Optional[int] = ..., status_detail: _Optional[str] = ...) -> None: ...

class ListJobsResponse(_message.Message):
    __slots__ = ("jobs", "next_page_token")
    JOBS_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    jobs: _containers.RepeatedCompositeFieldContainer[JobOverview]
    next_page_token: str
    def __init__(self, jobs: _Optional[_Iterable[_Union[JobOverview, _Mapping]]] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class GetJobRequest(_message.Message):
    __slots__ = ("job_id",)
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    def __init__(self, job_id: _Optional[str] = ...) -> None: ...

class GetJobGraphRequest(_message.Message):
    __slots__ = ("job_id",)
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    def __init__(self, job_id: _Optional[str] = ...) -> None: ...

class GetJobGraphResponse(_message.Message):
    __slots__ = ("job_graph",)
    JOB_GRAPH_FIELD_NUMBER: _ClassVar[int]
    job_graph: _job_pb2.JobGraph
    def __init__(self, job_graph: _Optional[_Union[_job_pb2.JobGraph, _Mapping]] = ...) -> None: ...

class SubtaskDetails(_message.Message):
    __slots__ = ("subtask_index", "attempt_number", "state", "resource_id", "host", "records_in", "records_out", "bytes_in", "bytes_out", "busy_ms", "backpressured_ms", "idle_ms", "watermark_ms", "failure", "state_timestamps_ms", "busy_ms_per_second", "backpressured_ms_per_second", "idle_ms_per_second", "records_in_per_second", "records_out_per_second", "step_ms", "input_queue", "output_queue", "awaits")
    class StateTimestampsMsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    SUBTASK_INDEX_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_NUMBER_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    RESOURCE_ID_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    RECORDS_IN_FIELD_NUMBER: _ClassVar[int]
    RECORDS_OUT_FIELD_NUMBER: _ClassVar[int]
    BYTES_IN_FIELD_NUMBER: _ClassVar[int]
    BYTES_OUT_FIELD_NUMBER: _ClassVar[int]
    BUSY_MS_FIELD_NUMBER: _ClassVar[int]
    BACKPRESSURED_MS_FIELD_NUMBER: _ClassVar[int]
    IDLE_MS_FIELD_NUMBER: _ClassVar[int]
    WATERMARK_MS_FIELD_NUMBER: _ClassVar[int]
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    STATE_TIMESTAMPS_MS_FIELD_NUMBER: _ClassVar[int]
    BUSY_MS_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    BACKPRESSURED_MS_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    IDLE_MS_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    RECORDS_IN_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    RECORDS_OUT_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    STEP_MS_FIELD_NUMBER: _ClassVar[int]
    INPUT_QUEUE_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_QUEUE_FIELD_NUMBER: _ClassVar[int]
    AWAITS_FIELD_NUMBER: _ClassVar[int]
    subtask_index: int
    attempt_number: int
    state: _job_pb2.ExecutionState
    resource_id: str
    host: str
    records_in: int
    records_out: int
    bytes_in: int
    bytes_out: int
    busy_ms: int
    backpressured_ms: int
    idle_ms: int
    watermark_ms: int
    failure: _job_pb2.SerializedFailure
    state_timestamps_ms: _containers.ScalarMap[str, int]
    busy_ms_per_second: int
    backpressured_ms_per_second: int
    idle_ms_per_second: int
    records_in_per_second: int
    records_out_per_second: int
    step_ms: int
    input_queue: _cluster_pb2.QueueFigures
    output_queue: _cluster_pb2.QueueFigures
    awaits: str
    def __init__(self, subtask_index: _Optional[int] = ..., attempt_number: _Optional[int] = ..., state: _Optional[_Union[_job_pb2.ExecutionState, str]] = ..., resource_id: _Optional[str] = ..., host: _Optional[str] = ..., records_in: _Optional[int] = ..., records_out: _Optional[int] = ..., bytes_in: _Optional[int] = ..., bytes_out: _Optional[int] = ..., busy_ms: _Optional[int] = ..., backpressured_ms: _Optional[int] = ..., idle_ms: _Optional[int] = ..., watermark_ms: _Optional[int] = ..., failure: _Optional[_Union[_job_pb2.SerializedFailure, _Mapping]] = ..., state_timestamps_ms: _Optional[_Mapping[str, int]] = ..., busy_ms_per_second: _Optional[int] = ..., backpressured_ms_per_second: _Optional[int] = ..., idle_ms_per_second: _Optional[int] = ..., records_in_per_second: _Optional[int] = ..., records_out_per_second: _Optional[int] = ..., step_ms: _Optional[int] = ..., input_queue: _Optional[_Union[_cluster_pb2.QueueFigures, _Mapping]] = ..., output_queue: _Optional[_Union[_cluster_pb2.QueueFigures, _Mapping]] = ..., awaits: _Optional[str] = ...) -> None: ...

class VertexDetails(_message.Message):
    __slots__ = ("vertex_id", "name", "parallelism", "max_parallelism", "operator_uids", "subtasks")
    VERTEX_ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    PARALLELISM_FIELD_NUMBER: _ClassVar[int]
    MAX_PARALLELISM_FIELD_NUMBER: _ClassVar[int]
    OPERATOR_UIDS_FIELD_NUMBER: _ClassVar[int]
    SUBTASKS_FIELD_NUMBER: _ClassVar[int]
    vertex_id: str
    name: str
    parallelism: int
    max_parallelism: int
    operator_uids: _containers.RepeatedScalarFieldContainer[str]
    subtasks: _containers.RepeatedCompositeFieldContainer[SubtaskDetails]
    def __init__(self, vertex_id: _Optional[str] = ..., name: _Optional[str] = ..., parallelism: _Optional[int] = ..., max_parallelism: _Optional[int] = ..., operator_uids: _Optional[_Iterable[str]] = ..., subtasks: _Optional[_Iterable[_Union[SubtaskDetails, _Mapping]]] = ...) -> None: ...

class FailureHistoryEntry(_message.Message):
    __slots__ = ("timestamp_ms", "failure", "task_name", "resource_id")
    TIMESTAMP_MS_FIELD_NUMBER: _ClassVar[int]
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    TASK_NAME_FIELD_NUMBER: _ClassVar[int]
    RESOURCE_ID_FIELD_NUMBER: _ClassVar[int]
    timestamp_ms: int
    failure: _job_pb2.SerializedFailure
    task_name: str
    resource_id: str
    def __init__(self, timestamp_ms: _Optional[int] = ..., failure: _Optional[_Union[_job_pb2.SerializedFailure, _Mapping]] = ..., task_name: _Optional[str] = ..., resource_id: _Optional[str] = ...) -> None: ...

class JobDetails(_message.Message):
    __slots__ = ("overview", "vertices", "edges", "configuration", "failures", "status_timestamps_ms", "checkpoint_counts", "accumulators", "metrics", "configuration_origins", "submission_digest", "operator_failures")
    class ConfigurationEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    class StatusTimestampsMsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    class ConfigurationOriginsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    class OperatorFailuresEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    OVERVIEW_FIELD_NUMBER: _ClassVar[int]
    VERTICES_FIELD_NUMBER: _ClassVar[int]
    EDGES_FIELD_NUMBER: _ClassVar[int]
    CONFIGURATION_FIELD_NUMBER: _ClassVar[int]
    FAILURES_FIELD_NUMBER: _ClassVar[int]
    STATUS_TIMESTAMPS_MS_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_COUNTS_FIELD_NUMBER: _ClassVar[int]
    ACCUMULATORS_FIELD_NUMBER: _ClassVar[int]
    METRICS_FIELD_NUMBER: _ClassVar[int]
    CONFIGURATION_ORIGINS_FIELD_NUMBER: _ClassVar[int]
    SUBMISSION_DIGEST_FIELD_NUMBER: _ClassVar[int]
    OPERATOR_FAILURES_FIELD_NUMBER: _ClassVar[int]
    overview: JobOverview
    vertices: _containers.RepeatedCompositeFieldContainer[VertexDetails]
    edges: _containers.RepeatedCompositeFieldContainer[_job_pb2.JobEdge]
    configuration: _containers.ScalarMap[str, str]
    failures: _containers.RepeatedCompositeFieldContainer[FailureHistoryEntry]
    status_timestamps_ms: _containers.ScalarMap[str, int]
    checkpoint_counts: CheckpointCounts
    accumulators: _containers.RepeatedCompositeFieldContainer[_job_pb2.AccumulatorValue]
    metrics: _containers.RepeatedCompositeFieldContainer[_job_pb2.MetricValue]
    configuration_origins: _containers.ScalarMap[str, str]
    submission_digest: str
    operator_failures: _containers.ScalarMap[str, int]
    def __init__(self, overview: _Optional[_Union[JobOverview, _Mapping]] = ..., vertices: _Optional[_Iterable[_Union[VertexDetails, _Mapping]]] = ..., edges: _Optional[_Iterable[_Union[_job_pb2.JobEdge, _Mapping]]] = ..., configuration: _Optional[_Mapping[str, str]] = ..., failures: _Optional[_Iterable[_Union[FailureHistoryEntry, _Mapping]]] = ..., status_timestamps_ms: _Optional[_Mapping[str, int]] = ..., checkpoint_counts: _Optional[_Union[CheckpointCounts, _Mapping]] = ..., accumulators: _Optional[_Iterable[_Union[_job_pb2.AccumulatorValue, _Mapping]]] = ..., metrics: _Optional[_Iterable[_Union[_job_pb2.MetricValue, _Mapping]]] = ..., configuration_origins: _Optional[_Mapping[str, str]] = ..., submission_digest: _Optional[str] = ..., operator_failures: _Optional[_Mapping[str, int]] = ...) -> None: ...

class TapOperatorRequest(_message.Message):
    __slots__ = ("job_id", "uid", "max_rows", "max_bytes", "of_input")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    UID_FIELD_NUMBER: _ClassVar[int]
    MAX_ROWS_FIELD_NUMBER: _ClassVar[int]
    MAX_BYTES_FIELD_NUMBER: _ClassVar[int]
    OF_INPUT_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    uid: str
    max_rows: int
    max_bytes: int
    of_input: bool
    def __init__(self, job_id: _Optional[str] = ..., uid: _Optional[str] = ..., max_rows: _Optional[int] = ..., max_bytes: _Optional[int] = ..., of_input: _Optional[bool] = ...) -> None: ...

class TappedRows(_message.Message):
    __slots__ = ("subtask_index", "rows", "rows_taken", "rows_seen")
    SUBTASK_INDEX_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    ROWS_TAKEN_FIELD_NUMBER: _ClassVar[int]
    ROWS_SEEN_FIELD_NUMBER: _ClassVar[int]
    subtask_index: int
    rows: bytes
    rows_taken: int
    rows_seen: int
    def __init__(self, subtask_index: _Optional[int] = ..., rows: _Optional[bytes] = ..., rows_taken: _Optional[int] = ..., rows_seen: _Optional[int] = ...) -> None: ...

class TapOperatorResponse(_message.Message):
    __slots__ = ("parts",)
    PARTS_FIELD_NUMBER: _ClassVar[int]
    parts: _containers.RepeatedCompositeFieldContainer[TappedRows]
    def __init__(self, parts: _Optional[_Iterable[_Union[TappedRows, _Mapping]]] = ...) -> None: ...

class CancelJobRequest(_message.Message):
    __slots__ = ("job_id",)
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    def __init__(self, job_id: _Optional[str] = ...) -> None: ...

class CancelJobResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class StopWithSavepointRequest(_message.Message):
    __slots__ = ("job_id", "target_directory", "drain", "trigger_id", "detached")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    TARGET_DIRECTORY_FIELD_NUMBER: _ClassVar[int]
    DRAIN_FIELD_NUMBER: _ClassVar[int]
    TRIGGER_ID_FIELD_NUMBER: _ClassVar[int]
    DETACHED_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    target_directory: str
    drain: bool
    trigger_id: str
    detached: bool
    def __init__(self, job_id: _Optional[str] = ..., target_directory: _Optional[str] = ..., drain: _Optional[bool] = ..., trigger_id: _Optional[str] = ..., detached: _Optional[bool] = ...) -> None: ...

class TriggerSavepointRequest(_message.Message):
    __slots__ = ("job_id", "target_directory", "trigger_id", "detached")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    TARGET_DIRECTORY_FIELD_NUMBER: _ClassVar[int]
    TRIGGER_ID_FIELD_NUMBER: _ClassVar[int]
    DETACHED_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    target_directory: str
    trigger_id: str
    detached: bool
    def __init__(self, job_id: _Optional[str] = ..., target_directory: _Optional[str] = ..., trigger_id: _Optional[str] = ..., detached: _Optional[bool] = ...) -> None: ...

class SavepointResponse(_message.Message):
    __slots__ = ("path", "checkpoint_id", "failure", "trigger_id")
    PATH_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_ID_FIELD_NUMBER: _ClassVar[int]
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    TRIGGER_ID_FIELD_NUMBER: _ClassVar[int]
    path: str
    checkpoint_id: int
    failure: CheckpointFailure
    trigger_id: str
    def __init__(self, path: _Optional[str] = ..., checkpoint_id: _Optional[int] = ..., failure: _Optional[_Union[CheckpointFailure, _Mapping]] = ..., trigger_id: _Optional[str] = ...) -> None: ...

class GetSavepointRequest(_message.Message):
    __slots__ = ("job_id", "trigger_id")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    TRIGGER_ID_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    trigger_id: str
    def __init__(self, job_id: _Optional[str] = ..., trigger_id: _Optional[str] = ...) -> None: ...

class SavepointOperation(_message.Message):
    __slots__ = ("trigger_id", "status", "result")
    TRIGGER_ID_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    RESULT_FIELD_NUMBER: _ClassVar[int]
    trigger_id: str
    status: CheckpointStatus
    result: SavepointResponse
    def __init__(self, trigger_id: _Optional[str] = ..., status: _Optional[_Union[CheckpointStatus, str]] = ..., result: _Optional[_Union[SavepointResponse, _Mapping]] = ...) -> None: ...

class TriggerCheckpointRequest(_message.Message):
    __slots__ = ("job_id", "full")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    FULL_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    full: bool
    def __init__(self, job_id: _Optional[str] = ..., full: _Optional[bool] = ...) -> None: ...

class TriggerCheckpointResponse(_message.Message):
    __slots__ = ("checkpoint_id", "path", "failure")
    CHECKPOINT_ID_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    checkpoint_id: int
    path: str
    failure: CheckpointFailure
    def __init__(self, checkpoint_id: _Optional[int] = ..., path: _Optional[str] = ..., failure: _Optional[_Union[CheckpointFailure, _Mapping]] = ...) -> None: ...

class CheckpointFailure(_message.Message):
    __slots__ = ("reason", "message")
    REASON_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    reason: _checkpoint_pb2.CheckpointFailureReason
    message: str
    def __init__(self, reason: _Optional[_Union[_checkpoint_pb2.CheckpointFailureReason, str]] = ..., message: _Optional[str] = ...) -> None: ...

class CheckpointCounts(_message.Message):
    __slots__ = ("triggered", "in_progress", "completed", "failed", "restored")
    TRIGGERED_FIELD_NUMBER: _ClassVar[int]
    IN_PROGRESS_FIELD_NUMBER: _ClassVar[int]
    COMPLETED_FIELD_NUMBER: _ClassVar[int]
    FAILED_FIELD_NUMBER: _ClassVar[int]
    RESTORED_FIELD_NUMBER: _ClassVar[int]
    triggered: int
    in_progress: int
    completed: int
    failed: int
    restored: int
    def __init__(self, triggered: _Optional[int] = ..., in_progress: _Optional[int] = ..., completed: _Optional[int] = ..., failed: _Optional[int] = ..., restored: _Optional[int] = ...) -> None: ...

class CheckpointOverview(_message.Message):
    __slots__ = ("job_id", "checkpoint_id", "status", "snapshot_type", "trigger_timestamp_ms", "end_to_end_duration_ms", "checkpointed_size_bytes", "state_size_bytes", "subtasks_total", "subtasks_acknowledged", "processed_data_bytes", "persisted_data_bytes", "path", "discarded", "failure")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_ID_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_TYPE_FIELD_NUMBER: _ClassVar[int]
    TRIGGER_TIMESTAMP_MS_FIELD_NUMBER: _ClassVar[int]
    END_TO_END_DURATION_MS_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINTED_SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    STATE_SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    SUBTASKS_TOTAL_FIELD_NUMBER: _ClassVar[int]
    SUBTASKS_ACKNOWLEDGED_FIELD_NUMBER: _ClassVar[int]
    PROCESSED_DATA_BYTES_FIELD_NUMBER: _ClassVar[int]
    PERSISTED_DATA_BYTES_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    DISCARDED_FIELD_NUMBER: _ClassVar[int]
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    checkpoint_id: int
    status: CheckpointStatus
    snapshot_type: _checkpoint_pb2.SnapshotType
    trigger_timestamp_ms: int
    end_to_end_duration_ms: int
    checkpointed_size_bytes: int
    state_size_bytes: int
    subtasks_total: int
    subtasks_acknowledged: int
    processed_data_bytes: int
    persisted_data_bytes: int
    path: str
    discarded: bool
    failure: CheckpointFailure
    def __init__(self, job_id: _Optional[str] = ..., checkpoint_id: _Optional[int] = ..., status: _Optional[_Union[CheckpointStatus, str]] = ..., snapshot_type: _Optional[_Union[_checkpoint_pb2.SnapshotType, str]] = ..., trigger_timestamp_ms: _Optional[int] = ..., end_to_end_duration_ms: _Optional[int] = ..., checkpointed_size_bytes: _Optional[int] = ..., state_size_bytes: _Optional[int] = ..., subtasks_total: _Optional[int] = ..., subtasks_acknowledged: _Optional[int] = ..., processed_data_bytes: _Optional[int] = ..., persisted_data_bytes: _Optional[int] = ..., path: _Optional[str] = ..., discarded: _Optional[bool] = ..., failure: _Optional[_Union[CheckpointFailure, _Mapping]] = ...) -> None: ...

class SummaryStatistics(_message.Message):
    __slots__ = ("count", "min", "max", "average", "p50", "p95", "p99")
    COUNT_FIELD_NUMBER: _ClassVar[int]
    MIN_FIELD_NUMBER: _ClassVar[int]
    MAX_FIELD_NUMBER: _ClassVar[int]
    AVERAGE_FIELD_NUMBER: _ClassVar[int]
    P50_FIELD_NUMBER: _ClassVar[int]
    P95_FIELD_NUMBER: _ClassVar[int]
    P99_FIELD_NUMBER: _ClassVar[int]
    count: int
    min: int
    max: int
    average: float
    p50: float
    p95: float
    p99: float
    def __init__(self, count: _Optional[int] = ..., min: _Optional[int] = ..., max: _Optional[int] = ..., average: _Optional[float] = ..., p50: _Optional[float] = ..., p95: _Optional[float] = ..., p99: _Optional[float] = ...) -> None: ...

class ListCheckpointsRequest(_message.Message):
    __slots__ = ("job_id",)
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    def __init__(self, job_id: _Optional[str] = ...) -> None: ...

class ListCheckpointsResponse(_message.Message):
    __slots__ = ("counts", "history", "end_to_end_duration_ms", "checkpointed_size_bytes", "state_size_bytes", "latest_completed", "latest_failed", "latest_savepoint", "restored_checkpoint_id", "restored_timestamp_ms", "restored_path", "refusal")
    COUNTS_FIELD_NUMBER: _ClassVar[int]
    HISTORY_FIELD_NUMBER: _ClassVar[int]
    END_TO_END_DURATION_MS_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINTED_SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    STATE_SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    LATEST_COMPLETED_FIELD_NUMBER: _ClassVar[int]
    LATEST_FAILED_FIELD_NUMBER: _ClassVar[int]
    LATEST_SAVEPOINT_FIELD_NUMBER: _ClassVar[int]
    RESTORED_CHECKPOINT_ID_FIELD_NUMBER: _ClassVar[int]
    RESTORED_TIMESTAMP_MS_FIELD_NUMBER: _ClassVar[int]
    RESTORED_PATH_FIELD_NUMBER: _ClassVar[int]
    REFUSAL_FIELD_NUMBER: _ClassVar[int]
    counts: CheckpointCounts
    history: _containers.RepeatedCompositeFieldContainer[CheckpointOverview]
    end_to_end_duration_ms: SummaryStatistics
    checkpointed_size_bytes: SummaryStatistics
    state_size_bytes: SummaryStatistics
    latest_completed: CheckpointOverview
    latest_failed: CheckpointOverview
    latest_savepoint: CheckpointOverview
    restored_checkpoint_id: int
    restored_timestamp_ms: int
    restored_path: str
    refusal: str
    def __init__(self, counts: _Optional[_Union[CheckpointCounts, _Mapping]] = ..., history: _Optional[_Iterable[_Union[CheckpointOverview, _Mapping]]] = ..., end_to_end_duration_ms: _Optional[_Union[SummaryStatistics, _Mapping]] = ..., checkpointed_size_bytes: _Optional[_Union[SummaryStatistics, _Mapping]] = ..., state_size_bytes: _Optional[_Union[SummaryStatistics, _Mapping]] = ..., latest_completed: _Optional[_Union[CheckpointOverview, _Mapping]] = ..., latest_failed: _Optional[_Union[CheckpointOverview, _Mapping]] = ..., latest_savepoint: _Optional[_Union[CheckpointOverview, _Mapping]] = ..., restored_checkpoint_id: _Optional[int] = ..., restored_timestamp_ms: _Optional[int] = ..., restored_path: _Optional[str] = ..., refusal: _Optional[str] = ...) -> None: ...

class GetCheckpointRequest(_message.Message):
    __slots__ = ("job_id", "checkpoint_id")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_ID_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    checkpoint_id: int
    def __init__(self, job_id: _Optional[str] = ..., checkpoint_id: _Optional[int] = ...) -> None: ...

class SubtaskCheckpointDetails(_message.Message):
    __slots__ = ("subtask_index", "acknowledge_timestamp_ms", "state_size_bytes", "metrics", "checkpointed_size_bytes")
    SUBTASK_INDEX_FIELD_NUMBER: _ClassVar[int]
    ACKNOWLEDGE_TIMESTAMP_MS_FIELD_NUMBER: _ClassVar[int]
    STATE_SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    METRICS_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINTED_SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    subtask_index: int
    acknowledge_timestamp_ms: int
    state_size_bytes: int
    metrics: _checkpoint_pb2.CheckpointMetrics
    checkpointed_size_bytes: int
    def __init__(self, subtask_index: _Optional[int] = ..., acknowledge_timestamp_ms: _Optional[int] = ..., state_size_bytes: _Optional[int] = ..., metrics: _Optional[_Union[_checkpoint_pb2.CheckpointMetrics, _Mapping]] = ..., checkpointed_size_bytes: _Optional[int] = ...) -> None: ...

class VertexCheckpointDetails(_message.Message):
    __slots__ = ("vertex_id", "name", "subtasks")
    VERTEX_ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    SUBTASKS_FIELD_NUMBER: _ClassVar[int]
    vertex_id: str
    name: str
    subtasks: _containers.RepeatedCompositeFieldContainer[SubtaskCheckpointDetails]
    def __init__(self, vertex_id: _Optional[str] = ..., name: _Optional[str] = ..., subtasks: _Optional[_Iterable[_Union[SubtaskCheckpointDetails, _Mapping]]] = ...) -> None: ...

class CheckpointDetails(_message.Message):
    __slots__ = ("overview", "vertices")
    OVERVIEW_FIELD_NUMBER: _ClassVar[int]
    VERTICES_FIELD_NUMBER: _ClassVar[int]
    overview: CheckpointOverview
    vertices: _containers.RepeatedCompositeFieldContainer[VertexCheckpointDetails]
    def __init__(self, overview: _Optional[_Union[CheckpointOverview, _Mapping]] = ..., vertices: _Optional[_Iterable[_Union[VertexCheckpointDetails, _Mapping]]] = ...) -> None: ...

class GetSnapshotStateRequest(_message.Message):
    __slots__ = ("job_id", "checkpoint_id")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_ID_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    checkpoint_id: int
    def __init__(self, job_id: _Optional[str] = ..., checkpoint_id: _Optional[int] = ...) -> None: ...

class StateOverview(_message.Message):
    __slots__ = ("name", "kind", "type")
    NAME_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    TYPE_FIELD_NUMBER: _ClassVar[int]
    name: str
    kind: str
    type: str
    def __init__(self, name: _Optional[str] = ..., kind: _Optional[str] = ..., type: _Optional[str] = ...) -> None: ...

class SubtaskStateOverview(_message.Message):
    __slots__ = ("subtask_index", "first_key_group", "last_key_group", "keys_at_most", "keyed_bytes", "elements", "element_bytes", "in_flight_bytes")
    SUBTASK_INDEX_FIELD_NUMBER: _ClassVar[int]
    FIRST_KEY_GROUP_FIELD_NUMBER: _ClassVar[int]
    LAST_KEY_GROUP_FIELD_NUMBER: _ClassVar[int]
    KEYS_AT_MOST_FIELD_NUMBER: _ClassVar[int]
    KEYED_BYTES_FIELD_NUMBER: _ClassVar[int]
    ELEMENTS_FIELD_NUMBER: _ClassVar[int]
    ELEMENT_BYTES_FIELD_NUMBER: _ClassVar[int]
    IN_FLIGHT_BYTES_FIELD_NUMBER: _ClassVar[int]
    subtask_index: int
    first_key_group: int
    last_key_group: int
    keys_at_most: int
    keyed_bytes: int
    elements: int
    element_bytes: int
    in_flight_bytes: int
    def __init__(self, subtask_index: _Optional[int] = ..., first_key_group: _Optional[int] = ..., last_key_group: _Optional[int] = ..., keys_at_most: _Optional[int] = ..., keyed_bytes: _Optional[int] = ..., elements: _Optional[int] = ..., element_bytes: _Optional[int] = ..., in_flight_bytes: _Optional[int] = ...) -> None: ...

class KeyGroupOverview(_message.Message):
    __slots__ = ("first_key_group", "last_key_group", "keys_at_most")
    FIRST_KEY_GROUP_FIELD_NUMBER: _ClassVar[int]
    LAST_KEY_GROUP_FIELD_NUMBER: _ClassVar[int]
    KEYS_AT_MOST_FIELD_NUMBER: _ClassVar[int]
    first_key_group: int
    last_key_group: int
    keys_at_most: int
    def __init__(self, first_key_group: _Optional[int] = ..., last_key_group: _Optional[int] = ..., keys_at_most: _Optional[int] = ...) -> None: ...

class OperatorStateOverview(_message.Message):
    __slots__ = ("uid", "name", "parallelism", "max_parallelism", "key", "states", "subtasks", "key_groups")
    UID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    PARALLELISM_FIELD_NUMBER: _ClassVar[int]
    MAX_PARALLELISM_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    STATES_FIELD_NUMBER: _ClassVar[int]
    SUBTASKS_FIELD_NUMBER: _ClassVar[int]
    KEY_GROUPS_FIELD_NUMBER: _ClassVar[int]
    uid: str
    name: str
    parallelism: int
    max_parallelism: int
    key: _containers.RepeatedCompositeFieldContainer[StateOverview]
    states: _containers.RepeatedCompositeFieldContainer[StateOverview]
    subtasks: _containers.RepeatedCompositeFieldContainer[SubtaskStateOverview]
    key_groups: _containers.RepeatedCompositeFieldContainer[KeyGroupOverview]
    def __init__(self, uid: _Optional[str] = ..., name: _Optional[str] = ..., parallelism: _Optional[int] = ..., max_parallelism: _Optional[int] = ..., key: _Optional[_Iterable[_Union[StateOverview, _Mapping]]] = ..., states: _Optional[_Iterable[_Union[StateOverview, _Mapping]]] = ..., subtasks: _Optional[_Iterable[_Union[SubtaskStateOverview, _Mapping]]] = ..., key_groups: _Optional[_Iterable[_Union[KeyGroupOverview, _Mapping]]] = ...) -> None: ...

class SnapshotState(_message.Message):
    __slots__ = ("checkpoint_id", "path", "snapshot_type", "timestamp_ms", "operators", "cut_short")
    CHECKPOINT_ID_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_TYPE_FIELD_NUMBER: _ClassVar[int]
    TIMESTAMP_MS_FIELD_NUMBER: _ClassVar[int]
    OPERATORS_FIELD_NUMBER: _ClassVar[int]
    CUT_SHORT_FIELD_NUMBER: _ClassVar[int]
    checkpoint_id: int
    path: str
    snapshot_type: _checkpoint_pb2.SnapshotType
    timestamp_ms: int
    operators: _containers.RepeatedCompositeFieldContainer[OperatorStateOverview]
    cut_short: str
    def __init__(self, checkpoint_id: _Optional[int] = ..., path: _Optional[str] = ..., snapshot_type: _Optional[_Union[_checkpoint_pb2.SnapshotType, str]] = ..., timestamp_ms: _Optional[int] = ..., operators: _Optional[_Iterable[_Union[OperatorStateOverview, _Mapping]]] = ..., cut_short: _Optional[str] = ...) -> None: ...

class RescaleRequest(_message.Message):
    __slots__ = ("job_id", "parallelism_by_vertex", "parallelism")
    class ParallelismByVertexEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    PARALLELISM_BY_VERTEX_FIELD_NUMBER: _ClassVar[int]
    PARALLELISM_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    parallelism_by_vertex: _containers.ScalarMap[str, int]
    parallelism: int
    def __init__(self, job_id: _Optional[str] = ..., parallelism_by_vertex: _Optional[_Mapping[str, int]] = ..., parallelism: _Optional[int] = ...) -> None: ...

class RescaleResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetRequiredResourcesRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class RequiredResources(_message.Message):
    __slots__ = ("required_slots", "registered_slots", "free_slots", "registered_task_managers", "releasable_task_managers")
    REQUIRED_SLOTS_FIELD_NUMBER: _ClassVar[int]
    REGISTERED_SLOTS_FIELD_NUMBER: _ClassVar[int]
    FREE_SLOTS_FIELD_NUMBER: _ClassVar[int]
    REGISTERED_TASK_MANAGERS_FIELD_NUMBER: _ClassVar[int]
    RELEASABLE_TASK_MANAGERS_FIELD_NUMBER: _ClassVar[int]
    required_slots: int
    registered_slots: int
    free_slots: int
    registered_task_managers: int
    releasable_task_managers: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, required_slots: _Optional[int] = ..., registered_slots: _Optional[int] = ..., free_slots: _Optional[int] = ..., registered_task_managers: _Optional[int] = ..., releasable_task_managers: _Optional[_Iterable[str]] = ...) -> None: ...

class DrainTaskManagerRequest(_message.Message):
    __slots__ = ("resource_id", "undo")
    RESOURCE_ID_FIELD_NUMBER: _ClassVar[int]
    UNDO_FIELD_NUMBER: _ClassVar[int]
    resource_id: str
    undo: bool
    def __init__(self, resource_id: _Optional[str] = ..., undo: _Optional[bool] = ...) -> None: ...

class DrainTaskManagerResponse(_message.Message):
    __slots__ = ("job_ids",)
    JOB_IDS_FIELD_NUMBER: _ClassVar[int]
    job_ids: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, job_ids: _Optional[_Iterable[str]] = ...) -> None: ...

class ListTaskManagersRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class TaskManagerDetails(_message.Message):
    __slots__ = ("resource_id", "host", "pid", "exchange_address", "executor_id", "log_url", "version", "slots", "free_slots", "registered_timestamp_ms", "last_heartbeat_timestamp_ms", "process", "memory_growth_bytes", "memory_growth_ms", "clock_offset_ms", "draining")
    RESOURCE_ID_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    EXCHANGE_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    EXECUTOR_ID_FIELD_NUMBER: _ClassVar[int]
    LOG_URL_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    SLOTS_FIELD_NUMBER: _ClassVar[int]
    FREE_SLOTS_FIELD_NUMBER: _ClassVar[int]
    REGISTERED_TIMESTAMP_MS_FIELD_NUMBER: _ClassVar[int]
    LAST_HEARTBEAT_TIMESTAMP_MS_FIELD_NUMBER: _ClassVar[int]
    PROCESS_FIELD_NUMBER: _ClassVar[int]
    MEMORY_GROWTH_BYTES_FIELD_NUMBER: _ClassVar[int]
    MEMORY_GROWTH_MS_FIELD_NUMBER: _ClassVar[int]
    CLOCK_OFFSET_MS_FIELD_NUMBER: _ClassVar[int]
    DRAINING_FIELD_NUMBER: _ClassVar[int]
    resource_id: str
    host: str
    pid: int
    exchange_address: str
    executor_id: str
    log_url: str
    version: str
    slots: int
    free_slots: int
    registered_timestamp_ms: int
    last_heartbeat_timestamp_ms: int
    process: _cluster_pb2.ProcessFigures
    memory_growth_bytes: int
    memory_growth_ms: int
    clock_offset_ms: int
    draining: bool
    def __init__(self, resource_id: _Optional[str] = ..., host: _Optional[str] = ..., pid: _Optional[int] = ..., exchange_address: _Optional[str] = ..., executor_id: _Optional[str] = ..., log_url: _Optional[str] = ..., version: _Optional[str] = ..., slots: _Optional[int] = ..., free_slots: _Optional[int] = ..., registered_timestamp_ms: _Optional[int] = ..., last_heartbeat_timestamp_ms: _Optional[int] = ..., process: _Optional[_Union[_cluster_pb2.ProcessFigures, _Mapping]] = ..., memory_growth_bytes: _Optional[int] = ..., memory_growth_ms: _Optional[int] = ..., clock_offset_ms: _Optional[int] = ..., draining: _Optional[bool] = ...) -> None: ...

class ListTaskManagersResponse(_message.Message):
    __slots__ = ("task_managers", "lost")
    TASK_MANAGERS_FIELD_NUMBER: _ClassVar[int]
    LOST_FIELD_NUMBER: _ClassVar[int]
    task_managers: _containers.RepeatedCompositeFieldContainer[TaskManagerDetails]
    lost: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, task_managers: _Optional[_Iterable[_Union[TaskManagerDetails, _Mapping]]] = ..., lost: _Optional[_Iterable[str]] = ...) -> None: ...

class EndedWorker(_message.Message):
    __slots__ = ("resource_id", "reason")
    RESOURCE_ID_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    resource_id: str
    reason: str
    def __init__(self, resource_id: _Optional[str] = ..., reason: _Optional[str] = ...) -> None: ...

class ReportWorkersRequest(_message.Message):
    __slots__ = ("launcher_id", "available_slots", "reason", "ended", "closed")
    LAUNCHER_ID_FIELD_NUMBER: _ClassVar[int]
    AVAILABLE_SLOTS_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    ENDED_FIELD_NUMBER: _ClassVar[int]
    CLOSED_FIELD_NUMBER: _ClassVar[int]
    launcher_id: str
    available_slots: int
    reason: str
    ended: _containers.RepeatedCompositeFieldContainer[EndedWorker]
    closed: bool
    def __init__(self, launcher_id: _Optional[str] = ..., available_slots: _Optional[int] = ..., reason: _Optional[str] = ..., ended: _Optional[_Iterable[_Union[EndedWorker, _Mapping]]] = ..., closed: _Optional[bool] = ...) -> None: ...

class ReportWorkersResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class DumpThreadsRequest(_message.Message):
    __slots__ = ("job_id", "resource_id", "duration_ms", "interval_ms", "heap", "log_lines", "log_level")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    RESOURCE_ID_FIELD_NUMBER: _ClassVar[int]
    DURATION_MS_FIELD_NUMBER: _ClassVar[int]
    INTERVAL_MS_FIELD_NUMBER: _ClassVar[int]
    HEAP_FIELD_NUMBER: _ClassVar[int]
    LOG_LINES_FIELD_NUMBER: _ClassVar[int]
    LOG_LEVEL_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    resource_id: str
    duration_ms: int
    interval_ms: int
    heap: bool
    log_lines: int
    log_level: str
    def __init__(self, job_id: _Optional[str] = ..., resource_id: _Optional[str] = ..., duration_ms: _Optional[int] = ..., interval_ms: _Optional[int] = ..., heap: _Optional[bool] = ..., log_lines: _Optional[int] = ..., log_level: _Optional[str] = ...) -> None: ...

class ThreadDumps(_message.Message):
    __slots__ = ("dumps", "silent")
    DUMPS_FIELD_NUMBER: _ClassVar[int]
    SILENT_FIELD_NUMBER: _ClassVar[int]
    dumps: _containers.RepeatedCompositeFieldContainer[_cluster_pb2.ThreadDump]
    silent: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, dumps: _Optional[_Iterable[_Union[_cluster_pb2.ThreadDump, _Mapping]]] = ..., silent: _Optional[_Iterable[str]] = ...) -> None: ...

class ExplainJobRequest(_message.Message):
    __slots__ = ("job_id", "without_stacks")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    WITHOUT_STACKS_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    without_stacks: bool
    def __init__(self, job_id: _Optional[str] = ..., without_stacks: _Optional[bool] = ...) -> None: ...

class JobFinding(_message.Message):
    __slots__ = ("kind", "summary", "vertex_id", "vertex_name", "subtask_index", "resource_id", "stack")
    KIND_FIELD_NUMBER: _ClassVar[int]
    SUMMARY_FIELD_NUMBER: _ClassVar[int]
    VERTEX_ID_FIELD_NUMBER: _ClassVar[int]
    VERTEX_NAME_FIELD_NUMBER: _ClassVar[int]
    SUBTASK_INDEX_FIELD_NUMBER: _ClassVar[int]
    RESOURCE_ID_FIELD_NUMBER: _ClassVar[int]
    STACK_FIELD_NUMBER: _ClassVar[int]
    kind: str
    summary: str
    vertex_id: str
    vertex_name: str
    subtask_index: int
    resource_id: str
    stack: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, kind: _Optional[str] = ..., summary: _Optional[str] = ..., vertex_id: _Optional[str] = ..., vertex_name: _Optional[str] = ..., subtask_index: _Optional[int] = ..., resource_id: _Optional[str] = ..., stack: _Optional[_Iterable[str]] = ...) -> None: ...

class JobExplanation(_message.Message):
    __slots__ = ("summary", "findings")
    SUMMARY_FIELD_NUMBER: _ClassVar[int]
    FINDINGS_FIELD_NUMBER: _ClassVar[int]
    summary: str
    findings: _containers.RepeatedCompositeFieldContainer[JobFinding]
    def __init__(self, summary: _Optional[str] = ..., findings: _Optional[_Iterable[_Union[JobFinding, _Mapping]]] = ...) -> None: ...

class GetConfigurationRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class SettingOverview(_message.Message):
    __slots__ = ("key", "value", "origin", "description")
    KEY_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    ORIGIN_FIELD_NUMBER: _ClassVar[int]
    DESCRIPTION_FIELD_NUMBER: _ClassVar[int]
    key: str
    value: str
    origin: str
    description: str
    def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ..., origin: _Optional[str] = ..., description: _Optional[str] = ...) -> None: ...

class ClusterConfiguration(_message.Message):
    __slots__ = ("settings",)
    SETTINGS_FIELD_NUMBER: _ClassVar[int]
    settings: _containers.RepeatedCompositeFieldContainer[SettingOverview]
    def __init__(self, settings: _Optional[_Iterable[_Union[SettingOverview, _Mapping]]] = ...) -> None: ...

class GetClusterOverviewRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ClusterOverview(_message.Message):
    __slots__ = ("version", "leader_session_id", "start_time_ms", "task_managers", "slots", "free_slots", "jobs_running", "jobs_ended", "process", "protocol_version")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    LEADER_SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    START_TIME_MS_FIELD_NUMBER: _ClassVar[int]
    TASK_MANAGERS_FIELD_NUMBER: _ClassVar[int]
    SLOTS_FIELD_NUMBER: _ClassVar[int]
    FREE_SLOTS_FIELD_NUMBER: _ClassVar[int]
    JOBS_RUNNING_FIELD_NUMBER: _ClassVar[int]
    JOBS_ENDED_FIELD_NUMBER: _ClassVar[int]
    PROCESS_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_VERSION_FIELD_NUMBER: _ClassVar[int]
    version: str
    leader_session_id: str
    start_time_ms: int
    task_managers: int
    slots: int
    free_slots: int
    jobs_running: int
    jobs_ended: int
    process: _cluster_pb2.ProcessFigures
    protocol_version: int
    def __init__(self, version: _Optional[str] = ..., leader_session_id: _Optional[str] = ..., start_time_ms: _Optional[int] = ..., task_managers: _Optional[int] = ..., slots: _Optional[int] = ..., free_slots: _Optional[int] = ..., jobs_running: _Optional[int] = ..., jobs_ended: _Optional[int] = ..., process: _Optional[_Union[_cluster_pb2.ProcessFigures, _Mapping]] = ..., protocol_version: _Optional[int] = ...) -> None: ...

class ArchivedJob(_message.Message):
    __slots__ = ("details", "checkpoints", "checkpoint_details")
    DETAILS_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINTS_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_DETAILS_FIELD_NUMBER: _ClassVar[int]
    details: JobDetails
    checkpoints: ListCheckpointsResponse
    checkpoint_details: _containers.RepeatedCompositeFieldContainer[CheckpointDetails]
    def __init__(self, details: _Optional[_Union[JobDetails, _Mapping]] = ..., checkpoints: _Optional[_Union[ListCheckpointsResponse, _Mapping]] = ..., checkpoint_details: _Optional[_Iterable[_Union[CheckpointDetails, _Mapping]]] = ...) -> None: ...

class WatchJobRequest(_message.Message):
    __slots__ = ("job_id",)
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    def __init__(self, job_id: _Optional[str] = ...) -> None: ...

class WatchCheckpointsRequest(_message.Message):
    __slots__ = ("job_id",)
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    def __init__(self, job_id: _Optional[str] = ...) -> None: ...

class WatchRequiredResourcesRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...
