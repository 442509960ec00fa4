from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Partitioning(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    PARTITIONING_UNSPECIFIED: _ClassVar[Partitioning]
    PARTITIONING_FORWARD: _ClassVar[Partitioning]
    PARTITIONING_HASH: _ClassVar[Partitioning]
    PARTITIONING_REBALANCE: _ClassVar[Partitioning]
    PARTITIONING_RESCALE: _ClassVar[Partitioning]
    PARTITIONING_BROADCAST: _ClassVar[Partitioning]
    PARTITIONING_DEMAND: _ClassVar[Partitioning]

class JobStatus(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    JOB_STATUS_UNSPECIFIED: _ClassVar[JobStatus]
    JOB_STATUS_CREATED: _ClassVar[JobStatus]
    JOB_STATUS_RUNNING: _ClassVar[JobStatus]
    JOB_STATUS_RESTARTING: _ClassVar[JobStatus]
    JOB_STATUS_FAILING: _ClassVar[JobStatus]
    JOB_STATUS_FAILED: _ClassVar[JobStatus]
    JOB_STATUS_CANCELLING: _ClassVar[JobStatus]
    JOB_STATUS_CANCELED: _ClassVar[JobStatus]
    JOB_STATUS_FINISHED: _ClassVar[JobStatus]
    JOB_STATUS_SUSPENDED: _ClassVar[JobStatus]
    JOB_STATUS_RECONCILING: _ClassVar[JobStatus]

class ExecutionState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    EXECUTION_STATE_UNSPECIFIED: _ClassVar[ExecutionState]
    EXECUTION_STATE_CREATED: _ClassVar[ExecutionState]
    EXECUTION_STATE_SCHEDULED: _ClassVar[ExecutionState]
    EXECUTION_STATE_DEPLOYING: _ClassVar[ExecutionState]
    EXECUTION_STATE_INITIALIZING: _ClassVar[ExecutionState]
    EXECUTION_STATE_RUNNING: _ClassVar[ExecutionState]
    EXECUTION_STATE_FINISHED: _ClassVar[ExecutionState]
    EXECUTION_STATE_CANCELING: _ClassVar[ExecutionState]
    EXECUTION_STATE_CANCELED: _ClassVar[ExecutionState]
    EXECUTION_STATE_FAILED: _ClassVar[ExecutionState]

class Blame(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    BLAME_UNSPECIFIED: _ClassVar[Blame]
    BLAME_USER: _ClassVar[Blame]
    BLAME_EXTERNAL: _ClassVar[Blame]
    BLAME_INTERNAL: _ClassVar[Blame]
PARTITIONING_UNSPECIFIED: Partitioning
PARTITIONING_FORWARD: Partitioning
PARTITIONING_HASH: Partitioning
PARTITIONING_REBALANCE: Partitioning
PARTITIONING_RESCALE: Partitioning
PARTITIONING_BROADCAST: Partitioning
PARTITIONING_DEMAND: Partitioning
JOB_STATUS_UNSPECIFIED: JobStatus
JOB_STATUS_CREATED: JobStatus
JOB_STATUS_RUNNING: JobStatus
JOB_STATUS_RESTARTING: JobStatus
JOB_STATUS_FAILING: JobStatus
JOB_STATUS_FAILED: JobStatus
JOB_STATUS_CANCELLING: JobStatus
JOB_STATUS_CANCELED: JobStatus
JOB_STATUS_FINISHED: JobStatus
JOB_STATUS_SUSPENDED: JobStatus
JOB_STATUS_RECONCILING: JobStatus
EXECUTION_STATE_UNSPECIFIED: ExecutionState
EXECUTION_STATE_CREATED: ExecutionState
EXECUTION_STATE_SCHEDULED: ExecutionState
EXECUTION_STATE_DEPLOYING: ExecutionState
EXECUTION_STATE_INITIALIZING: ExecutionState
EXECUTION_STATE_RUNNING: ExecutionState
EXECUTION_STATE_FINISHED: ExecutionState
EXECUTION_STATE_CANCELING: ExecutionState
EXECUTION_STATE_CANCELED: ExecutionState
EXECUTION_STATE_FAILED: ExecutionState
BLAME_UNSPECIFIED: Blame
BLAME_USER: Blame
BLAME_EXTERNAL: Blame
BLAME_INTERNAL: Blame

class OperatorNode(_message.Message):
    __slots__ = ("operator_id", "uid", "name", "payload", "stateful", "is_source", "commits", "chained_input", "chained_side_output_tag", "chained_input_index", "uid_given", "state_schema", "external_task")
    OPERATOR_ID_FIELD_NUMBER: _ClassVar[int]
    UID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    STATEFUL_FIELD_NUMBER: _ClassVar[int]
    IS_SOURCE_FIELD_NUMBER: _ClassVar[int]
    COMMITS_FIELD_NUMBER: _ClassVar[int]
    CHAINED_INPUT_FIELD_NUMBER: _ClassVar[int]
    CHAINED_SIDE_OUTPUT_TAG_FIELD_NUMBER: _ClassVar[int]
    CHAINED_INPUT_INDEX_FIELD_NUMBER: _ClassVar[int]
    UID_GIVEN_FIELD_NUMBER: _ClassVar[int]
    STATE_SCHEMA_FIELD_NUMBER: _ClassVar[int]
    EXTERNAL_TASK_FIELD_NUMBER: _ClassVar[int]
    operator_id: str
    uid: str
    name: str
    payload: bytes
    stateful: bool
    is_source: bool
    commits: bool
    chained_input: int
    chained_side_output_tag: str
    chained_input_index: int
    uid_given: bool
    state_schema: bytes
    external_task: str
    def __init__(self, operator_id: _Optional[str] = ..., uid: _Optional[str] = ..., name: _Optional[str] = ..., payload: _Optional[bytes] = ..., stateful: _Optional[bool] = ..., is_source: _Optional[bool] = ..., commits: _Optional[bool] = ..., chained_input: _Optional[int] = ..., chained_side_output_tag: _Optional[str] = ..., chained_input_index: _Optional[int] = ..., uid_given: _Optional[bool] = ..., state_schema: _Optional[bytes] = ..., external_task: _Optional[str] = ...) -> None: ...

class JobVertex(_message.Message):
    __slots__ = ("vertex_id", "name", "parallelism", "max_parallelism", "operators", "slot_sharing_group", "max_parallelism_explicit", "submitted_parallelism", "is_external")
    VERTEX_ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    PARALLELISM_FIELD_NUMBER: _ClassVar[int]
    MAX_PARALLELISM_FIELD_NUMBER: _ClassVar[int]
    OPERATORS_FIELD_NUMBER: _ClassVar[int]
    SLOT_SHARING_GROUP_FIELD_NUMBER: _ClassVar[int]
    MAX_PARALLELISM_EXPLICIT_FIELD_NUMBER: _ClassVar[int]
    SUBMITTED_PARALLELISM_FIELD_NUMBER: _ClassVar[int]
    IS_EXTERNAL_FIELD_NUMBER: _ClassVar[int]
    vertex_id: str
    name: str
    parallelism: int
    max_parallelism: int
    operators: _containers.RepeatedCompositeFieldContainer[OperatorNode]
    slot_sharing_group: str
    max_parallelism_explicit: bool
    submitted_parallelism: int
    is_external: bool
    def __init__(self, vertex_id: _Optional[str] = ..., name: _Optional[str] = ..., parallelism: _Optional[int] = ..., max_parallelism: _Optional[int] = ..., operators: _Optional[_Iterable[_Union[OperatorNode, _Mapping]]] = ..., slot_sharing_group: _Optional[str] = ..., max_parallelism_explicit: _Optional[bool] = ..., submitted_parallelism: _Optional[int] = ..., is_external: _Optional[bool] = ...) -> None: ...

class JobEdge(_message.Message):
    __slots__ = ("edge_id", "source", "source_operator", "target", "target_input", "partitioning", "key_columns", "side_output_tag", "combiner", "row_wise", "columns")
    EDGE_ID_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    SOURCE_OPERATOR_FIELD_NUMBER: _ClassVar[int]
    TARGET_FIELD_NUMBER: _ClassVar[int]
    TARGET_INPUT_FIELD_NUMBER: _ClassVar[int]
    PARTITIONING_FIELD_NUMBER: _ClassVar[int]
    KEY_COLUMNS_FIELD_NUMBER: _ClassVar[int]
    SIDE_OUTPUT_TAG_FIELD_NUMBER: _ClassVar[int]
    COMBINER_FIELD_NUMBER: _ClassVar[int]
    ROW_WISE_FIELD_NUMBER: _ClassVar[int]
    COLUMNS_FIELD_NUMBER: _ClassVar[int]
    edge_id: str
    source: str
    source_operator: str
    target: str
    target_input: int
    partitioning: Partitioning
    key_columns: _containers.RepeatedScalarFieldContainer[str]
    side_output_tag: str
    combiner: bytes
    row_wise: bool
    columns: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, edge_id: _Optional[str] = ..., source: _Optional[str] = ..., source_operator: _Optional[str] = ..., target: _Optional[str] = ..., target_input: _Optional[int] = ..., partitioning: _Optional[_Union[Partitioning, str]] = ..., key_columns: _Optional[_Iterable[str]] = ..., side_output_tag: _Optional[str] = ..., combiner: _Optional[bytes] = ..., row_wise: _Optional[bool] = ..., columns: _Optional[_Iterable[str]] = ...) -> None: ...

class SavepointRestoreSettings(_message.Message):
    __slots__ = ("path", "allow_non_restored_state", "claim")
    PATH_FIELD_NUMBER: _ClassVar[int]
    ALLOW_NON_RESTORED_STATE_FIELD_NUMBER: _ClassVar[int]
    CLAIM_FIELD_NUMBER: _ClassVar[int]
    path: str
    allow_non_restored_state: bool
    claim: bool
    def __init__(self, path: _Optional[str] = ..., allow_non_restored_state: _Optional[bool] = ..., claim: _Optional[bool] = ...) -> None: ...

class JobGraph(_message.Message):
    __slots__ = ("job_id", "name", "vertices", "edges", "configuration", "savepoint_restore", "modules", "master_hooks", "staged_directories", "configuration_origins", "submission_digest")
    class ConfigurationEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    class ModulesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: bytes
        def __init__(self, key: _Optional[str] = ..., value: _Optional[bytes] = ...) -> None: ...
    class ConfigurationOriginsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    VERTICES_FIELD_NUMBER: _ClassVar[int]
    EDGES_FIELD_NUMBER: _ClassVar[int]
    CONFIGURATION_FIELD_NUMBER: _ClassVar[int]
    SAVEPOINT_RESTORE_FIELD_NUMBER: _ClassVar[int]
    MODULES_FIELD_NUMBER: _ClassVar[int]
    MASTER_HOOKS_FIELD_NUMBER: _ClassVar[int]
    STAGED_DIRECTORIES_FIELD_NUMBER: _ClassVar[int]
    CONFIGURATION_ORIGINS_FIELD_NUMBER: _ClassVar[int]
    SUBMISSION_DIGEST_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    name: str
    vertices: _containers.RepeatedCompositeFieldContainer[JobVertex]
    edges: _containers.RepeatedCompositeFieldContainer[JobEdge]
    configuration: _containers.ScalarMap[str, str]
    savepoint_restore: SavepointRestoreSettings
    modules: _containers.ScalarMap[str, bytes]
    master_hooks: _containers.RepeatedScalarFieldContainer[bytes]
    staged_directories: _containers.RepeatedScalarFieldContainer[str]
    configuration_origins: _containers.ScalarMap[str, str]
    submission_digest: str
    def __init__(self, job_id: _Optional[str] = ..., name: _Optional[str] = ..., vertices: _Optional[_Iterable[_Union[JobVertex, _Mapping]]] = ..., edges: _Optional[_Iterable[_Union[JobEdge, _Mapping]]] = ..., configuration: _Optional[_Mapping[str, str]] = ..., savepoint_restore: _Optional[_Union[SavepointRestoreSettings, _Mapping]] = ..., modules: _Optional[_Mapping[str, bytes]] = ..., master_hooks: _Optional[_Iterable[bytes]] = ..., staged_directories: _Optional[_Iterable[str]] = ..., configuration_origins: _Optional[_Mapping[str, str]] = ..., submission_digest: _Optional[str] = ...) -> None: ...

class SerializedFailure(_message.Message):
    __slots__ = ("summary", "blame", "retryable", "error_type", "traceback", "operator_uid", "position", "row")
    SUMMARY_FIELD_NUMBER: _ClassVar[int]
    BLAME_FIELD_NUMBER: _ClassVar[int]
    RETRYABLE_FIELD_NUMBER: _ClassVar[int]
    ERROR_TYPE_FIELD_NUMBER: _ClassVar[int]
    TRACEBACK_FIELD_NUMBER: _ClassVar[int]
    OPERATOR_UID_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    ROW_FIELD_NUMBER: _ClassVar[int]
    summary: str
    blame: Blame
    retryable: bool
    error_type: str
    traceback: str
    operator_uid: str
    position: str
    row: str
    def __init__(self, summary: _Optional[str] = ..., blame: _Optional[_Union[Blame, str]] = ..., retryable: _Optional[bool] = ..., error_type: _Optional[str] = ..., traceback: _Optional[str] = ..., operator_uid: _Optional[str] = ..., position: _Optional[str] = ..., row: _Optional[str] = ...) -> None: ...

class JobStatusChanged(_message.Message):
    __slots__ = ("job_id", "status", "timestamp_ms", "failure", "leader_session_id")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    TIMESTAMP_MS_FIELD_NUMBER: _ClassVar[int]
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    LEADER_SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    status: JobStatus
    timestamp_ms: int
    failure: SerializedFailure
    leader_session_id: str
    def __init__(self, job_id: _Optional[str] = ..., status: _Optional[_Union[JobStatus, str]] = ..., timestamp_ms: _Optional[int] = ..., failure: _Optional[_Union[SerializedFailure, _Mapping]] = ..., leader_session_id: _Optional[str] = ...) -> None: ...

class HistogramCount(_message.Message):
    __slots__ = ("value", "count")
    VALUE_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    value: int
    count: int
    def __init__(self, value: _Optional[int] = ..., count: _Optional[int] = ...) -> None: ...

class AccumulatorValue(_message.Message):
    __slots__ = ("name", "kind", "whole", "real", "counts")
    NAME_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    WHOLE_FIELD_NUMBER: _ClassVar[int]
    REAL_FIELD_NUMBER: _ClassVar[int]
    COUNTS_FIELD_NUMBER: _ClassVar[int]
    name: str
    kind: str
    whole: int
    real: float
    counts: _containers.RepeatedCompositeFieldContainer[HistogramCount]
    def __init__(self, name: _Optional[str] = ..., kind: _Optional[str] = ..., whole: _Optional[int] = ..., real: _Optional[float] = ..., counts: _Optional[_Iterable[_Union[HistogramCount, _Mapping]]] = ...) -> None: ...

class MetricValue(_message.Message):
    __slots__ = ("operator_uid", "name", "kind", "value", "bounds", "counts", "source_uid")
    OPERATOR_UID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    BOUNDS_FIELD_NUMBER: _ClassVar[int]
    COUNTS_FIELD_NUMBER: _ClassVar[int]
    SOURCE_UID_FIELD_NUMBER: _ClassVar[int]
    operator_uid: str
    name: str
    kind: str
    value: float
    bounds: _containers.RepeatedScalarFieldContainer[float]
    counts: _containers.RepeatedScalarFieldContainer[int]
    source_uid: str
    def __init__(self, operator_uid: _Optional[str] = ..., name: _Optional[str] = ..., kind: _Optional[str] = ..., value: _Optional[float] = ..., bounds: _Optional[_Iterable[float]] = ..., counts: _Optional[_Iterable[int]] = ..., source_uid: _Optional[str] = ...) -> None: ...
