from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class RejectionReason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    REJECTION_REASON_UNSPECIFIED: _ClassVar[RejectionReason]
    REJECTION_REASON_OTHER_VERSION: _ClassVar[RejectionReason]
    REJECTION_REASON_UNKNOWN_JOB: _ClassVar[RejectionReason]
    REJECTION_REASON_JOB_IS_OVER: _ClassVar[RejectionReason]
    REJECTION_REASON_NO_PLACE: _ClassVar[RejectionReason]
    REJECTION_REASON_ELSEWHERE: _ClassVar[RejectionReason]
    REJECTION_REASON_AT_TASK_MANAGER: _ClassVar[RejectionReason]

class Redistribution(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    REDISTRIBUTION_SPLIT: _ClassVar[Redistribution]
    REDISTRIBUTION_UNION: _ClassVar[Redistribution]
    REDISTRIBUTION_BROADCAST: _ClassVar[Redistribution]
    REDISTRIBUTION_BY_KEY: _ClassVar[Redistribution]

class TaskShape(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    TASK_SHAPE_ALONE: _ClassVar[TaskShape]
    TASK_SHAPE_SOURCE: _ClassVar[TaskShape]
    TASK_SHAPE_OPERATOR: _ClassVar[TaskShape]
    TASK_SHAPE_SINK: _ClassVar[TaskShape]

class SnapshotKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    SNAPSHOT_KIND_UNSPECIFIED: _ClassVar[SnapshotKind]
    SNAPSHOT_KIND_CHECKPOINT: _ClassVar[SnapshotKind]
    SNAPSHOT_KIND_SAVEPOINT: _ClassVar[SnapshotKind]
    SNAPSHOT_KIND_STOP: _ClassVar[SnapshotKind]
REJECTION_REASON_UNSPECIFIED: RejectionReason
REJECTION_REASON_OTHER_VERSION: RejectionReason
REJECTION_REASON_UNKNOWN_JOB: RejectionReason
REJECTION_REASON_JOB_IS_OVER: RejectionReason
REJECTION_REASON_NO_PLACE: RejectionReason
REJECTION_REASON_ELSEWHERE: RejectionReason
REJECTION_REASON_AT_TASK_MANAGER: RejectionReason
REDISTRIBUTION_SPLIT: Redistribution
REDISTRIBUTION_UNION: Redistribution
REDISTRIBUTION_BROADCAST: Redistribution
REDISTRIBUTION_BY_KEY: Redistribution
TASK_SHAPE_ALONE: TaskShape
TASK_SHAPE_SOURCE: TaskShape
TASK_SHAPE_OPERATOR: TaskShape
TASK_SHAPE_SINK: TaskShape
SNAPSHOT_KIND_UNSPECIFIED: SnapshotKind
SNAPSHOT_KIND_CHECKPOINT: SnapshotKind
SNAPSHOT_KIND_SAVEPOINT: SnapshotKind
SNAPSHOT_KIND_STOP: SnapshotKind

class FromProgram(_message.Message):
    __slots__ = ("register", "heartbeat", "task_running", "acknowledge_checkpoint", "decline_checkpoint", "task_finished", "task_failed", "task_canceled", "rows", "rows_processed", "watermark", "end_of_input", "notification_handled")
    REGISTER_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_FIELD_NUMBER: _ClassVar[int]
    TASK_RUNNING_FIELD_NUMBER: _ClassVar[int]
    ACKNOWLEDGE_CHECKPOINT_FIELD_NUMBER: _ClassVar[int]
    DECLINE_CHECKPOINT_FIELD_NUMBER: _ClassVar[int]
    TASK_FINISHED_FIELD_NUMBER: _ClassVar[int]
    TASK_FAILED_FIELD_NUMBER: _ClassVar[int]
    TASK_CANCELED_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    ROWS_PROCESSED_FIELD_NUMBER: _ClassVar[int]
    WATERMARK_FIELD_NUMBER: _ClassVar[int]
    END_OF_INPUT_FIELD_NUMBER: _ClassVar[int]
    NOTIFICATION_HANDLED_FIELD_NUMBER: _ClassVar[int]
    register: Register
    heartbeat: Heartbeat
    task_running: TaskRunning
    acknowledge_checkpoint: AcknowledgeCheckpoint
    decline_checkpoint: DeclineCheckpoint
    task_finished: TaskFinished
    task_failed: TaskFailed
    task_canceled: TaskCanceled
    rows: Rows
    rows_processed: RowsProcessed
    watermark: Watermark
    end_of_input: EndOfInput
    notification_handled: NotificationHandled
    def __init__(self, register: _Optional[_Union[Register, _Mapping]] = ..., heartbeat: _Optional[_Union[Heartbeat, _Mapping]] = ..., task_running: _Optional[_Union[TaskRunning, _Mapping]] = ..., acknowledge_checkpoint: _Optional[_Union[AcknowledgeCheckpoint, _Mapping]] = ..., decline_checkpoint: _Optional[_Union[DeclineCheckpoint, _Mapping]] = ..., task_finished: _Optional[_Union[TaskFinished, _Mapping]] = ..., task_failed: _Optional[_Union[TaskFailed, _Mapping]] = ..., task_canceled: _Optional[_Union[TaskCanceled, _Mapping]] = ..., rows: _Optional[_Union[Rows, _Mapping]] = ..., rows_processed: _Optional[_Union[RowsProcessed, _Mapping]] = ..., watermark: _Optional[_Union[Watermark, _Mapping]] = ..., end_of_input: _Optional[_Union[EndOfInput, _Mapping]] = ..., notification_handled: _Optional[_Union[NotificationHandled, _Mapping]] = ...) -> None: ...

class ToProgram(_message.Message):
    __slots__ = ("registered", "rejected", "run_task", "cancel_task", "heartbeat", "trigger_checkpoint", "notify_checkpoint_complete", "notify_checkpoint_aborted", "complaint", "goodbye", "rows", "watermark", "end_of_input")
    REGISTERED_FIELD_NUMBER: _ClassVar[int]
    REJECTED_FIELD_NUMBER: _ClassVar[int]
    RUN_TASK_FIELD_NUMBER: _ClassVar[int]
    CANCEL_TASK_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_FIELD_NUMBER: _ClassVar[int]
    TRIGGER_CHECKPOINT_FIELD_NUMBER: _ClassVar[int]
    NOTIFY_CHECKPOINT_COMPLETE_FIELD_NUMBER: _ClassVar[int]
    NOTIFY_CHECKPOINT_ABORTED_FIELD_NUMBER: _ClassVar[int]
    COMPLAINT_FIELD_NUMBER: _ClassVar[int]
    GOODBYE_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    WATERMARK_FIELD_NUMBER: _ClassVar[int]
    END_OF_INPUT_FIELD_NUMBER: _ClassVar[int]
    registered: Registered
    rejected: Rejected
    run_task: RunTask
    cancel_task: CancelTask
    heartbeat: Heartbeat
    trigger_checkpoint: TriggerCheckpoint
    notify_checkpoint_complete: NotifyCheckpointComplete
    notify_checkpoint_aborted: NotifyCheckpointAborted
    complaint: Complaint
    goodbye: Goodbye
    rows: Rows
    watermark: Watermark
    end_of_input: EndOfInput
    def __init__(self, registered: _Optional[_Union[Registered, _Mapping]] = ..., rejected: _Optional[_Union[Rejected, _Mapping]] = ..., run_task: _Optional[_Union[RunTask, _Mapping]] = ..., cancel_task: _Optional[_Union[CancelTask, _Mapping]] = ..., heartbeat: _Optional[_Union[Heartbeat, _Mapping]] = ..., trigger_checkpoint: _Optional[_Union[TriggerCheckpoint, _Mapping]] = ..., notify_checkpoint_complete: _Optional[_Union[NotifyCheckpointComplete, _Mapping]] = ..., notify_checkpoint_aborted: _Optional[_Union[NotifyCheckpointAborted, _Mapping]] = ..., complaint: _Optional[_Union[Complaint, _Mapping]] = ..., goodbye: _Optional[_Union[Goodbye, _Mapping]] = ..., rows: _Optional[_Union[Rows, _Mapping]] = ..., watermark: _Optional[_Union[Watermark, _Mapping]] = ..., end_of_input: _Optional[_Union[EndOfInput, _Mapping]] = ...) -> None: ...

class Register(_message.Message):
    __slots__ = ("protocol_version", "job", "task", "program", "host", "pid", "ticket")
    PROTOCOL_VERSION_FIELD_NUMBER: _ClassVar[int]
    JOB_FIELD_NUMBER: _ClassVar[int]
    TASK_FIELD_NUMBER: _ClassVar[int]
    PROGRAM_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    TICKET_FIELD_NUMBER: _ClassVar[int]
    protocol_version: int
    job: str
    task: str
    program: str
    host: str
    pid: int
    ticket: str
    def __init__(self, protocol_version: _Optional[int] = ..., job: _Optional[str] = ..., task: _Optional[str] = ..., program: _Optional[str] = ..., host: _Optional[str] = ..., pid: _Optional[int] = ..., ticket: _Optional[str] = ...) -> None: ...

class Registered(_message.Message):
    __slots__ = ("protocol_version", "job_id", "resource_id", "heartbeat_interval_ms", "heartbeat_timeout_ms", "max_state_bytes")
    PROTOCOL_VERSION_FIELD_NUMBER: _ClassVar[int]
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    RESOURCE_ID_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_INTERVAL_MS_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    MAX_STATE_BYTES_FIELD_NUMBER: _ClassVar[int]
    protocol_version: int
    job_id: str
    resource_id: str
    heartbeat_interval_ms: int
    heartbeat_timeout_ms: int
    max_state_bytes: int
    def __init__(self, protocol_version: _Optional[int] = ..., job_id: _Optional[str] = ..., resource_id: _Optional[str] = ..., heartbeat_interval_ms: _Optional[int] = ..., heartbeat_timeout_ms: _Optional[int] = ..., max_state_bytes: _Optional[int] = ...) -> None: ...

class Rejected(_message.Message):
    __slots__ = ("reason", "detail", "try_again", "address", "ticket")
    REASON_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    TRY_AGAIN_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    TICKET_FIELD_NUMBER: _ClassVar[int]
    reason: RejectionReason
    detail: str
    try_again: bool
    address: str
    ticket: str
    def __init__(self, reason: _Optional[_Union[RejectionReason, str]] = ..., detail: _Optional[str] = ..., try_again: _Optional[bool] = ..., address: _Optional[str] = ..., ticket: _Optional[str] = ...) -> None: ...

class NamedState(_message.Message):
    __slots__ = ("name", "elements", "redistribution", "key_groups", "uploaded")
    NAME_FIELD_NUMBER: _ClassVar[int]
    ELEMENTS_FIELD_NUMBER: _ClassVar[int]
    REDISTRIBUTION_FIELD_NUMBER: _ClassVar[int]
    KEY_GROUPS_FIELD_NUMBER: _ClassVar[int]
    UPLOADED_FIELD_NUMBER: _ClassVar[int]
    name: str
    elements: _containers.RepeatedScalarFieldContainer[bytes]
    redistribution: Redistribution
    key_groups: _containers.RepeatedScalarFieldContainer[int]
    uploaded: _containers.RepeatedCompositeFieldContainer[UploadedElement]
    def __init__(self, name: _Optional[str] = ..., elements: _Optional[_Iterable[bytes]] = ..., redistribution: _Optional[_Union[Redistribution, str]] = ..., key_groups: _Optional[_Iterable[int]] = ..., uploaded: _Optional[_Iterable[_Union[UploadedElement, _Mapping]]] = ...) -> None: ...

class UploadedElement(_message.Message):
    __slots__ = ("file", "offset", "size", "digests")
    FILE_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    DIGESTS_FIELD_NUMBER: _ClassVar[int]
    file: str
    offset: int
    size: int
    digests: bytes
    def __init__(self, file: _Optional[str] = ..., offset: _Optional[int] = ..., size: _Optional[int] = ..., digests: _Optional[bytes] = ...) -> None: ...

class RunTask(_message.Message):
    __slots__ = ("attempt_id", "subtask_index", "parallelism", "attempt_number", "job_id", "job_name", "task", "restored_checkpoint_id", "state", "configuration", "shape", "input_schema", "output_schema")
    class ConfigurationEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    ATTEMPT_ID_FIELD_NUMBER: _ClassVar[int]
    SUBTASK_INDEX_FIELD_NUMBER: _ClassVar[int]
    PARALLELISM_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_NUMBER_FIELD_NUMBER: _ClassVar[int]
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    JOB_NAME_FIELD_NUMBER: _ClassVar[int]
    TASK_FIELD_NUMBER: _ClassVar[int]
    RESTORED_CHECKPOINT_ID_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    CONFIGURATION_FIELD_NUMBER: _ClassVar[int]
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    INPUT_SCHEMA_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_SCHEMA_FIELD_NUMBER: _ClassVar[int]
    attempt_id: str
    subtask_index: int
    parallelism: int
    attempt_number: int
    job_id: str
    job_name: str
    task: str
    restored_checkpoint_id: int
    state: _containers.RepeatedCompositeFieldContainer[NamedState]
    configuration: _containers.ScalarMap[str, str]
    shape: TaskShape
    input_schema: bytes
    output_schema: bytes
    def __init__(self, attempt_id: _Optional[str] = ..., subtask_index: _Optional[int] = ..., parallelism: _Optional[int] = ..., attempt_number: _Optional[int] = ..., job_id: _Optional[str] = ..., job_name: _Optional[str] = ..., task: _Optional[str] = ..., restored_checkpoint_id: _Optional[int] = ..., state: _Optional[_Iterable[_Union[NamedState, _Mapping]]] = ..., configuration: _Optional[_Mapping[str, str]] = ..., shape: _Optional[_Union[TaskShape, str]] = ..., input_schema: _Optional[bytes] = ..., output_schema: _Optional[bytes] = ...) -> None: ...

class TaskRunning(_message.Message):
    __slots__ = ("attempt_id",)
    ATTEMPT_ID_FIELD_NUMBER: _ClassVar[int]
    attempt_id: str
    def __init__(self, attempt_id: _Optional[str] = ...) -> None: ...

class TaskFinished(_message.Message):
    __slots__ = ("attempt_id",)
    ATTEMPT_ID_FIELD_NUMBER: _ClassVar[int]
    attempt_id: str
    def __init__(self, attempt_id: _Optional[str] = ...) -> None: ...

class TaskFailed(_message.Message):
    __slots__ = ("attempt_id", "reason", "details", "is_final")
    ATTEMPT_ID_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    DETAILS_FIELD_NUMBER: _ClassVar[int]
    IS_FINAL_FIELD_NUMBER: _ClassVar[int]
    attempt_id: str
    reason: str
    details: str
    is_final: bool
    def __init__(self, attempt_id: _Optional[str] = ..., reason: _Optional[str] = ..., details: _Optional[str] = ..., is_final: _Optional[bool] = ...) -> None: ...

class CancelTask(_message.Message):
    __slots__ = ("attempt_id", "reason")
    ATTEMPT_ID_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    attempt_id: str
    reason: str
    def __init__(self, attempt_id: _Optional[str] = ..., reason: _Optional[str] = ...) -> None: ...

class TaskCanceled(_message.Message):
    __slots__ = ("attempt_id",)
    ATTEMPT_ID_FIELD_NUMBER: _ClassVar[int]
    attempt_id: str
    def __init__(self, attempt_id: _Optional[str] = ...) -> None: ...

class Rows(_message.Message):
    __slots__ = ("attempt_id", "number", "arrow", "key_groups")
    ATTEMPT_ID_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    ARROW_FIELD_NUMBER: _ClassVar[int]
    KEY_GROUPS_FIELD_NUMBER: _ClassVar[int]
    attempt_id: str
    number: int
    arrow: bytes
    key_groups: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, attempt_id: _Optional[str] = ..., number: _Optional[int] = ..., arrow: _Optional[bytes] = ..., key_groups: _Optional[_Iterable[int]] = ...) -> None: ...

class RowsProcessed(_message.Message):
    __slots__ = ("attempt_id", "number")
    ATTEMPT_ID_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    attempt_id: str
    number: int
    def __init__(self, attempt_id: _Optional[str] = ..., number: _Optional[int] = ...) -> None: ...

class Watermark(_message.Message):
    __slots__ = ("attempt_id", "timestamp_ms", "is_idle")
    ATTEMPT_ID_FIELD_NUMBER: _ClassVar[int]
    TIMESTAMP_MS_FIELD_NUMBER: _ClassVar[int]
    IS_IDLE_FIELD_NUMBER: _ClassVar[int]
    attempt_id: str
    timestamp_ms: int
    is_idle: bool
    def __init__(self, attempt_id: _Optional[str] = ..., timestamp_ms: _Optional[int] = ..., is_idle: _Optional[bool] = ...) -> None: ...

class EndOfInput(_message.Message):
    __slots__ = ("attempt_id",)
    ATTEMPT_ID_FIELD_NUMBER: _ClassVar[int]
    attempt_id: str
    def __init__(self, attempt_id: _Optional[str] = ...) -> None: ...

class FlightFrame(_message.Message):
    __slots__ = ("flight_descriptor", "app_metadata")
    FLIGHT_DESCRIPTOR_FIELD_NUMBER: _ClassVar[int]
    APP_METADATA_FIELD_NUMBER: _ClassVar[int]
    flight_descriptor: FlightTarget
    app_metadata: bytes
    def __init__(self, flight_descriptor: _Optional[_Union[FlightTarget, _Mapping]] = ..., app_metadata: _Optional[bytes] = ...) -> None: ...

class FlightTarget(_message.Message):
    __slots__ = ("type", "cmd")
    TYPE_FIELD_NUMBER: _ClassVar[int]
    CMD_FIELD_NUMBER: _ClassVar[int]
    type: int
    cmd: bytes
    def __init__(self, type: _Optional[int] = ..., cmd: _Optional[bytes] = ...) -> None: ...

class TriggerCheckpoint(_message.Message):
    __slots__ = ("attempt_id", "checkpoint_id", "timestamp_ms", "kind", "upload_location")
    ATTEMPT_ID_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_ID_FIELD_NUMBER: _ClassVar[int]
    TIMESTAMP_MS_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    UPLOAD_LOCATION_FIELD_NUMBER: _ClassVar[int]
    attempt_id: str
    checkpoint_id: int
    timestamp_ms: int
    kind: SnapshotKind
    upload_location: str
    def __init__(self, attempt_id: _Optional[str] = ..., checkpoint_id: _Optional[int] = ..., timestamp_ms: _Optional[int] = ..., kind: _Optional[_Union[SnapshotKind, str]] = ..., upload_location: _Optional[str] = ...) -> None: ...

class AcknowledgeCheckpoint(_message.Message):
    __slots__ = ("attempt_id", "checkpoint_id", "state")
    ATTEMPT_ID_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_ID_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    attempt_id: str
    checkpoint_id: int
    state: _containers.RepeatedCompositeFieldContainer[NamedState]
    def __init__(self, attempt_id: _Optional[str] = ..., checkpoint_id: _Optional[int] = ..., state: _Optional[_Iterable[_Union[NamedState, _Mapping]]] = ...) -> None: ...

class DeclineCheckpoint(_message.Message):
    __slots__ = ("attempt_id", "checkpoint_id", "reason")
    ATTEMPT_ID_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_ID_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    attempt_id: str
    checkpoint_id: int
    reason: str
    def __init__(self, attempt_id: _Optional[str] = ..., checkpoint_id: _Optional[int] = ..., reason: _Optional[str] = ...) -> None: ...

class NotifyCheckpointComplete(_message.Message):
    __slots__ = ("attempt_id", "checkpoint_id")
    ATTEMPT_ID_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_ID_FIELD_NUMBER: _ClassVar[int]
    attempt_id: str
    checkpoint_id: int
    def __init__(self, attempt_id: _Optional[str] = ..., checkpoint_id: _Optional[int] = ...) -> None: ...

class NotificationHandled(_message.Message):
    __slots__ = ("attempt_id", "checkpoint_id")
    ATTEMPT_ID_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_ID_FIELD_NUMBER: _ClassVar[int]
    attempt_id: str
    checkpoint_id: int
    def __init__(self, attempt_id: _Optional[str] = ..., checkpoint_id: _Optional[int] = ...) -> None: ...

class NotifyCheckpointAborted(_message.Message):
    __slots__ = ("attempt_id", "checkpoint_id", "latest_completed_id")
    ATTEMPT_ID_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_ID_FIELD_NUMBER: _ClassVar[int]
    LATEST_COMPLETED_ID_FIELD_NUMBER: _ClassVar[int]
    attempt_id: str
    checkpoint_id: int
    latest_completed_id: int
    def __init__(self, attempt_id: _Optional[str] = ..., checkpoint_id: _Optional[int] = ..., latest_completed_id: _Optional[int] = ...) -> None: ...

class Heartbeat(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Complaint(_message.Message):
    __slots__ = ("detail",)
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    detail: str
    def __init__(self, detail: _Optional[str] = ...) -> None: ...

class Goodbye(_message.Message):
    __slots__ = ("reason",)
    REASON_FIELD_NUMBER: _ClassVar[int]
    reason: str
    def __init__(self, reason: _Optional[str] = ...) -> None: ...
