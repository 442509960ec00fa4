from snapline.protos import checkpoint_pb2 as _checkpoint_pb2
from snapline.protos import job_pb2 as _job_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class WatchLeadersRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class LeaderInformation(_message.Message):
    __slots__ = ("address", "leader_session_id")
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    LEADER_SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    address: str
    leader_session_id: str
    def __init__(self, address: _Optional[str] = ..., leader_session_id: _Optional[str] = ...) -> None: ...

class LeaderTable(_message.Message):
    __slots__ = ("resource_manager", "job_masters", "signature")
    class JobMastersEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: LeaderInformation
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[LeaderInformation, _Mapping]] = ...) -> None: ...
    RESOURCE_MANAGER_FIELD_NUMBER: _ClassVar[int]
    JOB_MASTERS_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    resource_manager: LeaderInformation
    job_masters: _containers.MessageMap[str, LeaderInformation]
    signature: bytes
    def __init__(self, resource_manager: _Optional[_Union[LeaderInformation, _Mapping]] = ..., job_masters: _Optional[_Mapping[str, LeaderInformation]] = ..., signature: _Optional[bytes] = ...) -> None: ...

class Envelope(_message.Message):
    __slots__ = ("leader_session_id", "messages")
    LEADER_SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    leader_session_id: str
    messages: _containers.RepeatedCompositeFieldContainer[ControlMessage]
    def __init__(self, leader_session_id: _Optional[str] = ..., messages: _Optional[_Iterable[_Union[ControlMessage, _Mapping]]] = ...) -> None: ...

class ControlMessage(_message.Message):
    __slots__ = ("trigger_checkpoint", "acknowledge_checkpoint", "decline_checkpoint", "notify_checkpoint_complete", "notify_checkpoint_aborted", "register_task_executor", "registration_success", "registration_rejected", "slot_report", "request_slot", "slot_request_rejected", "notify_slot_available", "heartbeat_request", "heartbeat_response", "disconnect", "register_task_executor_at_job_master", "offer_slots", "slot_offers_answered", "free_slot", "submit_tasks", "cancel_task", "task_state_changed", "end_of_data_reached", "job_status_changed", "shut_down_task_executor", "register_job_master", "declare_required_slots", "not_enough_resources", "notify_task_manager_lost", "report_executions", "report_watermark", "align_watermarks", "tap_task", "task_tapped", "request_thread_dump", "thread_dump")
    TRIGGER_CHECKPOINT_FIELD_NUMBER: _ClassVar[int]
    ACKNOWLEDGE_CHECKPOINT_FIELD_NUMBER: _ClassVar[int]
    DECLINE_CHECKPOINT_FIELD_NUMBER: _ClassVar[int]
    NOTIFY_CHECKPOINT_COMPLETE_FIELD_NUMBER: _ClassVar[int]
    NOTIFY_CHECKPOINT_ABORTED_FIELD_NUMBER: _ClassVar[int]
    REGISTER_TASK_EXECUTOR_FIELD_NUMBER: _ClassVar[int]
    REGISTRATION_SUCCESS_FIELD_NUMBER: _ClassVar[int]
    REGISTRATION_REJECTED_FIELD_NUMBER: _ClassVar[int]
    SLOT_REPORT_FIELD_NUMBER: _ClassVar[int]
    REQUEST_SLOT_FIELD_NUMBER: _ClassVar[int]
    SLOT_REQUEST_REJECTED_FIELD_NUMBER: _ClassVar[int]
    NOTIFY_SLOT_AVAILABLE_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_REQUEST_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_RESPONSE_FIELD_NUMBER: _ClassVar[int]
    DISCONNECT_FIELD_NUMBER: _ClassVar[int]
    REGISTER_TASK_EXECUTOR_AT_JOB_MASTER_FIELD_NUMBER: _ClassVar[int]
    OFFER_SLOTS_FIELD_NUMBER: _ClassVar[int]
    SLOT_OFFERS_ANSWERED_FIELD_NUMBER: _ClassVar[int]
    FREE_SLOT_FIELD_NUMBER: _ClassVar[int]
    SUBMIT_TASKS_FIELD_NUMBER: _ClassVar[int]
    CANCEL_TASK_FIELD_NUMBER: _ClassVar[int]
    TASK_STATE_CHANGED_FIELD_NUMBER: _ClassVar[int]
    END_OF_DATA_REACHED_FIELD_NUMBER: _ClassVar[int]
    JOB_STATUS_CHANGED_FIELD_NUMBER: _ClassVar[int]
    SHUT_DOWN_TASK_EXECUTOR_FIELD_NUMBER: _ClassVar[int]
    REGISTER_JOB_MASTER_FIELD_NUMBER: _ClassVar[int]
    DECLARE_REQUIRED_SLOTS_FIELD_NUMBER: _ClassVar[int]
    NOT_ENOUGH_RESOURCES_FIELD_NUMBER: _ClassVar[int]
    NOTIFY_TASK_MANAGER_LOST_FIELD_NUMBER: _ClassVar[int]
    REPORT_EXECUTIONS_FIELD_NUMBER: _ClassVar[int]
    REPORT_WATERMARK_FIELD_NUMBER: _ClassVar[int]
    ALIGN_WATERMARKS_FIELD_NUMBER: _ClassVar[int]
    TAP_TASK_FIELD_NUMBER: _ClassVar[int]
    TASK_TAPPED_FIELD_NUMBER: _ClassVar[int]
    REQUEST_THREAD_DUMP_FIELD_NUMBER: _ClassVar[int]
    THREAD_DUMP_FIELD_NUMBER: _ClassVar[int]
    trigger_checkpoint: _checkpoint_pb2.TriggerCheckpoint
    acknowledge_checkpoint: _checkpoint_pb2.AcknowledgeCheckpoint
    decline_checkpoint: _checkpoint_pb2.DeclineCheckpoint
    notify_checkpoint_complete: _checkpoint_pb2.NotifyCheckpointComplete
    notify_checkpoint_aborted: _checkpoint_pb2.NotifyCheckpointAborted
    register_task_executor: RegisterTaskExecutor
    registration_success: RegistrationSuccess
    registration_rejected: RegistrationRejected
    slot_report: SlotReport
    request_slot: RequestSlot
    slot_request_rejected: SlotRequestRejected
    notify_slot_available: NotifySlotAvailable
    heartbeat_request: HeartbeatRequest
    heartbeat_response: HeartbeatResponse
    disconnect: Disconnect
    register_task_executor_at_job_master: RegisterTaskExecutorAtJobMaster
    offer_slots: OfferSlots
    slot_offers_answered: SlotOffersAnswered
    free_slot: FreeSlot
    submit_tasks: SubmitTasks
    cancel_task: CancelTask
    task_state_changed: TaskStateChanged
    end_of_data_reached: EndOfDataReached
    job_status_changed: _job_pb2.JobStatusChanged
    shut_down_task_executor: ShutDownTaskExecutor
    register_job_master: RegisterJobMaster
    declare_required_slots: DeclareRequiredSlots
    not_enough_resources: NotEnoughResources
    notify_task_manager_lost: NotifyTaskManagerLost
    report_executions: ReportExecutions
    report_watermark: ReportWatermark
    align_watermarks: AlignWatermarks
    tap_task: TapTask
    task_tapped: TaskTapped
    request_thread_dump: RequestThreadDump
    thread_dump: ThreadDump
    def __init__(self, trigger_checkpoint: _Optional[_Union[_checkpoint_pb2.TriggerCheckpoint, _Mapping]] = ..., acknowledge_checkpoint: _Optional[_Union[_checkpoint_pb2.AcknowledgeCheckpoint, _Mapping]] = ..., decline_checkpoint: _Optional[_Union[_checkpoint_pb2.DeclineCheckpoint, _Mapping]] = ..., notify_checkpoint_complete: _Optional[_Union[_checkpoint_pb2.NotifyCheckpointComplete, _Mapping]] = ..., notify_checkpoint_aborted: _Optional[_Union[_checkpoint_pb2.NotifyCheckpointAborted, _Mapping]] = ..., register_task_executor: _Optional[_Union[RegisterTaskExecutor, _Mapping]] = ..., registration_success: _Optional[_Union[RegistrationSuccess, _Mapping]] = ..., registration_rejected: _Optional[_Union[RegistrationRejected, _Mapping]] = ..., slot_report: _Optional[_Union[SlotReport, _Mapping]] = ..., request_slot: _Optional[_Union[RequestSlot, _Mapping]] = ..., slot_request_rejected: _Optional[_Union[SlotRequestRejected, _Mapping]] = ..., notify_slot_available: _Optional[_Union[NotifySlotAvailable, _Mapping]] = ..., heartbeat_request: _Optional[_Union[HeartbeatRequest, _Mapping]] = ..., heartbeat_response: _Optional[_Union[HeartbeatResponse, _Mapping]] = ..., disconnect: _Optional[_Union[Disconnect, _Mapping]] = ..., register_task_executor_at_job_master: _Optional[_Union[RegisterTaskExecutorAtJobMaster, _Mapping]] = ..., offer_slots: _Optional[_Union[OfferSlots, _Mapping]] = ..., slot_offers_answered: _Optional[_Union[SlotOffersAnswered, _Mapping]] = ..., free_slot: _Optional[_Union[FreeSlot, _Mapping]] = ..., submit_tasks: _Optional[_Union[SubmitTasks, _Mapping]] = ..., cancel_task: _Optional[_Union[CancelTask, _Mapping]] = ..., task_state_changed: _Optional[_Union[TaskStateChanged, _Mapping]] = ..., end_of_data_reached: _Optional[_Union[EndOfDataReached, _Mapping]] = ..., job_status_changed: _Optional[_Union[_job_pb2.JobStatusChanged, _Mapping]] = ..., shut_down_task_executor: _Optional[_Union[ShutDownTaskExecutor, _Mapping]] = ..., register_job_master: _Optional[_Union[RegisterJobMaster, _Mapping]] = ..., declare_required_slots: _Optional[_Union[DeclareRequiredSlots, _Mapping]] = ..., not_enough_resources: _Optional[_Union[NotEnoughResources, _Mapping]] = ..., notify_task_manager_lost: _Optional[_Union[NotifyTaskManagerLost, _Mapping]] = ..., report_executions: _Optional[_Union[ReportExecutions, _Mapping]] = ..., report_watermark: _Optional[_Union[ReportWatermark, _Mapping]] = ..., align_watermarks: _Optional[_Union[AlignWatermarks, _Mapping]] = ..., tap_task: _Optional[_Union[TapTask, _Mapping]] = ..., task_tapped: _Optional[_Union[TaskTapped, _Mapping]] = ..., request_thread_dump: _Optional[_Union[RequestThreadDump, _Mapping]] = ..., thread_dump: _Optional[_Union[ThreadDump, _Mapping]] = ...) -> None: ...

class TaskManagerInfo(_message.Message):
    __slots__ = ("resource_id", "exchange_address", "slots", "version", "host", "pid", "executor_id", "log_url", "incarnation", "stays_when_idle", "protocol_version")
    RESOURCE_ID_FIELD_NUMBER: _ClassVar[int]
    EXCHANGE_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    SLOTS_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    EXECUTOR_ID_FIELD_NUMBER: _ClassVar[int]
    LOG_URL_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    STAYS_WHEN_IDLE_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_VERSION_FIELD_NUMBER: _ClassVar[int]
    resource_id: str
    exchange_address: str
    slots: int
    version: str
    host: str
    pid: int
    executor_id: str
    log_url: str
    incarnation: str
    stays_when_idle: bool
    protocol_version: int
    def __init__(self, resource_id: _Optional[str] = ..., exchange_address: _Optional[str] = ..., slots: _Optional[int] = ..., version: _Optional[str] = ..., host: _Optional[str] = ..., pid: _Optional[int] = ..., executor_id: _Optional[str] = ..., log_url: _Optional[str] = ..., incarnation: _Optional[str] = ..., stays_when_idle: _Optional[bool] = ..., protocol_version: _Optional[int] = ...) -> None: ...

class SlotStatus(_message.Message):
    __slots__ = ("slot_number", "job_id", "allocation_id")
    SLOT_NUMBER_FIELD_NUMBER: _ClassVar[int]
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    ALLOCATION_ID_FIELD_NUMBER: _ClassVar[int]
    slot_number: int
    job_id: str
    allocation_id: str
    def __init__(self, slot_number: _Optional[int] = ..., job_id: _Optional[str] = ..., allocation_id: _Optional[str] = ...) -> None: ...

class SlotReport(_message.Message):
    __slots__ = ("resource_id", "slots")
    RESOURCE_ID_FIELD_NUMBER: _ClassVar[int]
    SLOTS_FIELD_NUMBER: _ClassVar[int]
    resource_id: str
    slots: _containers.RepeatedCompositeFieldContainer[SlotStatus]
    def __init__(self, resource_id: _Optional[str] = ..., slots: _Optional[_Iterable[_Union[SlotStatus, _Mapping]]] = ...) -> None: ...

class RegisterTaskExecutor(_message.Message):
    __slots__ = ("info",)
    INFO_FIELD_NUMBER: _ClassVar[int]
    info: TaskManagerInfo
    def __init__(self, info: _Optional[_Union[TaskManagerInfo, _Mapping]] = ...) -> None: ...

class RegistrationSuccess(_message.Message):
    __slots__ = ("heartbeat_interval_ms", "heartbeat_timeout_ms")
    HEARTBEAT_INTERVAL_MS_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    heartbeat_interval_ms: int
    heartbeat_timeout_ms: int
    def __init__(self, heartbeat_interval_ms: _Optional[int] = ..., heartbeat_timeout_ms: _Optional[int] = ...) -> None: ...

class RegistrationRejected(_message.Message):
    __slots__ = ("reason",)
    REASON_FIELD_NUMBER: _ClassVar[int]
    reason: str
    def __init__(self, reason: _Optional[str] = ...) -> None: ...

class RequestSlot(_message.Message):
    __slots__ = ("slot_number", "job_id", "allocation_id", "job_master_address", "job_master_session")
    SLOT_NUMBER_FIELD_NUMBER: _ClassVar[int]
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    ALLOCATION_ID_FIELD_NUMBER: _ClassVar[int]
    JOB_MASTER_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    JOB_MASTER_SESSION_FIELD_NUMBER: _ClassVar[int]
    slot_number: int
    job_id: str
    allocation_id: str
    job_master_address: str
    job_master_session: str
    def __init__(self, slot_number: _Optional[int] = ..., job_id: _Optional[str] = ..., allocation_id: _Optional[str] = ..., job_master_address: _Optional[str] = ..., job_master_session: _Optional[str] = ...) -> None: ...

class SlotRequestRejected(_message.Message):
    __slots__ = ("allocation_id", "report")
    ALLOCATION_ID_FIELD_NUMBER: _ClassVar[int]
    REPORT_FIELD_NUMBER: _ClassVar[int]
    allocation_id: str
    report: SlotReport
    def __init__(self, allocation_id: _Optional[str] = ..., report: _Optional[_Union[SlotReport, _Mapping]] = ...) -> None: ...

class NotifySlotAvailable(_message.Message):
    __slots__ = ("slot_number", "allocation_id")
    SLOT_NUMBER_FIELD_NUMBER: _ClassVar[int]
    ALLOCATION_ID_FIELD_NUMBER: _ClassVar[int]
    slot_number: int
    allocation_id: str
    def __init__(self, slot_number: _Optional[int] = ..., allocation_id: _Optional[str] = ...) -> None: ...

class HeartbeatRequest(_message.Message):
    __slots__ = ("allocations",)
    ALLOCATIONS_FIELD_NUMBER: _ClassVar[int]
    allocations: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, allocations: _Optional[_Iterable[str]] = ...) -> None: ...

class QueueFigures(_message.Message):
    __slots__ = ("batches", "size_bytes", "usage", "credits")
    BATCHES_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    USAGE_FIELD_NUMBER: _ClassVar[int]
    CREDITS_FIELD_NUMBER: _ClassVar[int]
    batches: int
    size_bytes: int
    usage: float
    credits: int
    def __init__(self, batches: _Optional[int] = ..., size_bytes: _Optional[int] = ..., usage: _Optional[float] = ..., credits: _Optional[int] = ...) -> None: ...

class TaskMetrics(_message.Message):
    __slots__ = ("attempt_id", "records_in", "records_out", "bytes_in", "bytes_out", "busy_ms", "backpressured_ms", "idle_ms", "watermark_ms", "accumulators", "user_metrics", "busy_ms_per_second", "backpressured_ms_per_second", "idle_ms_per_second", "records_in_per_second", "records_out_per_second", "step_ms", "input_queue", "output_queue", "awaits")
    ATTEMPT_ID_FIELD_NUMBER: _ClassVar[int]
    RECORDS_IN_FIELD_NUMBER: _ClassVar[int]
    RECORDS_OUT_FIELD_NUMBER: _ClassVar[int]
    BYTES_IN_FIELD_NUMBER: _ClassVar[int]
    BYTES_OUT_FIELD_NUMBER: _ClassVar[int]
    BUSY_MS_FIELD_NUMBER: _ClassVar[int]
    BACKPRESSURED_MS_FIELD_NUMBER: _ClassVar[int]
    IDLE_MS_FIELD_NUMBER: _ClassVar[int]
    WATERMARK_MS_FIELD_NUMBER: _ClassVar[int]
    ACCUMULATORS_FIELD_NUMBER: _ClassVar[int]
    USER_METRICS_FIELD_NUMBER: _ClassVar[int]
    BUSY_MS_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    BACKPRESSURED_MS_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    IDLE_MS_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    RECORDS_IN_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    RECORDS_OUT_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    STEP_MS_FIELD_NUMBER: _ClassVar[int]
    INPUT_QUEUE_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_QUEUE_FIELD_NUMBER: _ClassVar[int]
    AWAITS_FIELD_NUMBER: _ClassVar[int]
    attempt_id: _checkpoint_pb2.ExecutionAttemptID
    records_in: int
    records_out: int
    bytes_in: int
    bytes_out: int
    busy_ms: int
    backpressured_ms: int
    idle_ms: int
    watermark_ms: int
    accumulators: _containers.RepeatedCompositeFieldContainer[_job_pb2.AccumulatorValue]
    user_metrics: _containers.RepeatedCompositeFieldContainer[_job_pb2.MetricValue]
    busy_ms_per_second: int
    backpressured_ms_per_second: int
    idle_ms_per_second: int
    records_in_per_second: int
    records_out_per_second: int
    step_ms: int
    input_queue: QueueFigures
    output_queue: QueueFigures
    awaits: str
    def __init__(self, attempt_id: _Optional[_Union[_checkpoint_pb2.ExecutionAttemptID, _Mapping]] = ..., records_in: _Optional[int] = ..., records_out: _Optional[int] = ..., bytes_in: _Optional[int] = ..., bytes_out: _Optional[int] = ..., busy_ms: _Optional[int] = ..., backpressured_ms: _Optional[int] = ..., idle_ms: _Optional[int] = ..., watermark_ms: _Optional[int] = ..., accumulators: _Optional[_Iterable[_Union[_job_pb2.AccumulatorValue, _Mapping]]] = ..., user_metrics: _Optional[_Iterable[_Union[_job_pb2.MetricValue, _Mapping]]] = ..., busy_ms_per_second: _Optional[int] = ..., backpressured_ms_per_second: _Optional[int] = ..., idle_ms_per_second: _Optional[int] = ..., records_in_per_second: _Optional[int] = ..., records_out_per_second: _Optional[int] = ..., step_ms: _Optional[int] = ..., input_queue: _Optional[_Union[QueueFigures, _Mapping]] = ..., output_queue: _Optional[_Union[QueueFigures, _Mapping]] = ..., awaits: _Optional[str] = ...) -> None: ...

class HeartbeatResponse(_message.Message):
    __slots__ = ("report", "metrics", "executions", "process")
    REPORT_FIELD_NUMBER: _ClassVar[int]
    METRICS_FIELD_NUMBER: _ClassVar[int]
    EXECUTIONS_FIELD_NUMBER: _ClassVar[int]
    PROCESS_FIELD_NUMBER: _ClassVar[int]
    report: SlotReport
    metrics: _containers.RepeatedCompositeFieldContainer[TaskMetrics]
    executions: _containers.RepeatedCompositeFieldContainer[_checkpoint_pb2.ExecutionAttemptID]
    process: ProcessFigures
    def __init__(self, report: _Optional[_Union[SlotReport, _Mapping]] = ..., metrics: _Optional[_Iterable[_Union[TaskMetrics, _Mapping]]] = ..., executions: _Optional[_Iterable[_Union[_checkpoint_pb2.ExecutionAttemptID, _Mapping]]] = ..., process: _Optional[_Union[ProcessFigures, _Mapping]] = ...) -> None: ...

class ProcessFigures(_message.Message):
    __slots__ = ("resident_bytes", "cpu_ms_per_second", "threads", "open_files", "clock_ms", "clock_leap_ms")
    RESIDENT_BYTES_FIELD_NUMBER: _ClassVar[int]
    CPU_MS_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    THREADS_FIELD_NUMBER: _ClassVar[int]
    OPEN_FILES_FIELD_NUMBER: _ClassVar[int]
    CLOCK_MS_FIELD_NUMBER: _ClassVar[int]
    CLOCK_LEAP_MS_FIELD_NUMBER: _ClassVar[int]
    resident_bytes: int
    cpu_ms_per_second: int
    threads: int
    open_files: int
    clock_ms: int
    clock_leap_ms: int
    def __init__(self, resident_bytes: _Optional[int] = ..., cpu_ms_per_second: _Optional[int] = ..., threads: _Optional[int] = ..., open_files: _Optional[int] = ..., clock_ms: _Optional[int] = ..., clock_leap_ms: _Optional[int] = ...) -> None: ...

class Disconnect(_message.Message):
    __slots__ = ("reason",)
    REASON_FIELD_NUMBER: _ClassVar[int]
    reason: str
    def __init__(self, reason: _Optional[str] = ...) -> None: ...

class RequestThreadDump(_message.Message):
    __slots__ = ("request_id", "duration_ms", "interval_ms", "heap", "log_lines", "log_level")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    DURATION_MS_FIELD_NUMBER: _ClassVar[int]
    INTERVAL_MS_FIELD_NUMBER: _ClassVar[int]
    HEAP_FIELD_NUMBER: _ClassVar[int]
    LOG_LINES_FIELD_NUMBER: _ClassVar[int]
    LOG_LEVEL_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    duration_ms: int
    interval_ms: int
    heap: bool
    log_lines: int
    log_level: str
    def __init__(self, request_id: _Optional[str] = ..., duration_ms: _Optional[int] = ..., interval_ms: _Optional[int] = ..., heap: _Optional[bool] = ..., log_lines: _Optional[int] = ..., log_level: _Optional[str] = ...) -> None: ...

class HeapType(_message.Message):
    __slots__ = ("name", "count", "bytes")
    NAME_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    name: str
    count: int
    bytes: int
    def __init__(self, name: _Optional[str] = ..., count: _Optional[int] = ..., bytes: _Optional[int] = ...) -> None: ...

class AllocationSite(_message.Message):
    __slots__ = ("frames", "count", "bytes")
    FRAMES_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    frames: _containers.RepeatedScalarFieldContainer[str]
    count: int
    bytes: int
    def __init__(self, frames: _Optional[_Iterable[str]] = ..., count: _Optional[int] = ..., bytes: _Optional[int] = ...) -> None: ...

class ThreadStack(_message.Message):
    __slots__ = ("thread_name", "task_name", "attempt_id", "frames", "count", "waits_for")
    THREAD_NAME_FIELD_NUMBER: _ClassVar[int]
    TASK_NAME_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_ID_FIELD_NUMBER: _ClassVar[int]
    FRAMES_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    WAITS_FOR_FIELD_NUMBER: _ClassVar[int]
    thread_name: str
    task_name: str
    attempt_id: _checkpoint_pb2.ExecutionAttemptID
    frames: _containers.RepeatedScalarFieldContainer[str]
    count: int
    waits_for: str
    def __init__(self, thread_name: _Optional[str] = ..., task_name: _Optional[str] = ..., attempt_id: _Optional[_Union[_checkpoint_pb2.ExecutionAttemptID, _Mapping]] = ..., frames: _Optional[_Iterable[str]] = ..., count: _Optional[int] = ..., waits_for: _Optional[str] = ...) -> None: ...

class ThreadDump(_message.Message):
    __slots__ = ("request_id", "resource_id", "stacks", "samples", "types", "sites", "log")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    RESOURCE_ID_FIELD_NUMBER: _ClassVar[int]
    STACKS_FIELD_NUMBER: _ClassVar[int]
    SAMPLES_FIELD_NUMBER: _ClassVar[int]
    TYPES_FIELD_NUMBER: _ClassVar[int]
    SITES_FIELD_NUMBER: _ClassVar[int]
    LOG_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    resource_id: str
    stacks: _containers.RepeatedCompositeFieldContainer[ThreadStack]
    samples: int
    types: _containers.RepeatedCompositeFieldContainer[HeapType]
    sites: _containers.RepeatedCompositeFieldContainer[AllocationSite]
    log: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, request_id: _Optional[str] = ..., resource_id: _Optional[str] = ..., stacks: _Optional[_Iterable[_Union[ThreadStack, _Mapping]]] = ..., samples: _Optional[int] = ..., types: _Optional[_Iterable[_Union[HeapType, _Mapping]]] = ..., sites: _Optional[_Iterable[_Union[AllocationSite, _Mapping]]] = ..., log: _Optional[_Iterable[str]] = ...) -> None: ...

class ShutDownTaskExecutor(_message.Message):
    __slots__ = ("reason",)
    REASON_FIELD_NUMBER: _ClassVar[int]
    reason: str
    def __init__(self, reason: _Optional[str] = ...) -> None: ...

class RegisterJobMaster(_message.Message):
    __slots__ = ("job_id", "job_name", "address", "job_master_session")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    JOB_NAME_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    JOB_MASTER_SESSION_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    job_name: str
    address: str
    job_master_session: str
    def __init__(self, job_id: _Optional[str] = ..., job_name: _Optional[str] = ..., address: _Optional[str] = ..., job_master_session: _Optional[str] = ...) -> None: ...

class SlotsHeld(_message.Message):
    __slots__ = ("resource_id", "slots")
    RESOURCE_ID_FIELD_NUMBER: _ClassVar[int]
    SLOTS_FIELD_NUMBER: _ClassVar[int]
    resource_id: str
    slots: int
    def __init__(self, resource_id: _Optional[str] = ..., slots: _Optional[int] = ...) -> None: ...

class DeclareRequiredSlots(_message.Message):
    __slots__ = ("job_id", "required", "held", "least")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    REQUIRED_FIELD_NUMBER: _ClassVar[int]
    HELD_FIELD_NUMBER: _ClassVar[int]
    LEAST_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    required: int
    held: _containers.RepeatedCompositeFieldContainer[SlotsHeld]
    least: int
    def __init__(self, job_id: _Optional[str] = ..., required: _Optional[int] = ..., held: _Optional[_Iterable[_Union[SlotsHeld, _Mapping]]] = ..., least: _Optional[int] = ...) -> None: ...

class NotEnoughResources(_message.Message):
    __slots__ = ("job_id", "required", "available", "reason")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    REQUIRED_FIELD_NUMBER: _ClassVar[int]
    AVAILABLE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    required: int
    available: int
    reason: str
    def __init__(self, job_id: _Optional[str] = ..., required: _Optional[int] = ..., available: _Optional[int] = ..., reason: _Optional[str] = ...) -> None: ...

class NotifyTaskManagerLost(_message.Message):
    __slots__ = ("resource_id", "reason", "terminated", "heartbeat_timed_out")
    RESOURCE_ID_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    TERMINATED_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_TIMED_OUT_FIELD_NUMBER: _ClassVar[int]
    resource_id: str
    reason: str
    terminated: bool
    heartbeat_timed_out: bool
    def __init__(self, resource_id: _Optional[str] = ..., reason: _Optional[str] = ..., terminated: _Optional[bool] = ..., heartbeat_timed_out: _Optional[bool] = ...) -> None: ...

class RegisterTaskExecutorAtJobMaster(_message.Message):
    __slots__ = ("job_id", "info")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    INFO_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    info: TaskManagerInfo
    def __init__(self, job_id: _Optional[str] = ..., info: _Optional[_Union[TaskManagerInfo, _Mapping]] = ...) -> None: ...

class SlotOffer(_message.Message):
    __slots__ = ("allocation_id", "slot_number", "external_task")
    ALLOCATION_ID_FIELD_NUMBER: _ClassVar[int]
    SLOT_NUMBER_FIELD_NUMBER: _ClassVar[int]
    EXTERNAL_TASK_FIELD_NUMBER: _ClassVar[int]
    allocation_id: str
    slot_number: int
    external_task: str
    def __init__(self, allocation_id: _Optional[str] = ..., slot_number: _Optional[int] = ..., external_task: _Optional[str] = ...) -> None: ...

class OfferSlots(_message.Message):
    __slots__ = ("job_id", "resource_id", "offers")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    RESOURCE_ID_FIELD_NUMBER: _ClassVar[int]
    OFFERS_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    resource_id: str
    offers: _containers.RepeatedCompositeFieldContainer[SlotOffer]
    def __init__(self, job_id: _Optional[str] = ..., resource_id: _Optional[str] = ..., offers: _Optional[_Iterable[_Union[SlotOffer, _Mapping]]] = ...) -> None: ...

class SlotOffersAnswered(_message.Message):
    __slots__ = ("job_id", "accepted", "rejected")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    REJECTED_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    accepted: _containers.RepeatedScalarFieldContainer[str]
    rejected: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, job_id: _Optional[str] = ..., accepted: _Optional[_Iterable[str]] = ..., rejected: _Optional[_Iterable[str]] = ...) -> None: ...

class FreeSlot(_message.Message):
    __slots__ = ("allocation_id", "reason")
    ALLOCATION_ID_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    allocation_id: str
    reason: str
    def __init__(self, allocation_id: _Optional[str] = ..., reason: _Optional[str] = ...) -> None: ...

class ShuffleDescriptor(_message.Message):
    __slots__ = ("producer", "resource_id", "exchange_address", "subpartition_index")
    PRODUCER_FIELD_NUMBER: _ClassVar[int]
    RESOURCE_ID_FIELD_NUMBER: _ClassVar[int]
    EXCHANGE_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    SUBPARTITION_INDEX_FIELD_NUMBER: _ClassVar[int]
    producer: _checkpoint_pb2.ExecutionAttemptID
    resource_id: str
    exchange_address: str
    subpartition_index: int
    def __init__(self, producer: _Optional[_Union[_checkpoint_pb2.ExecutionAttemptID, _Mapping]] = ..., resource_id: _Optional[str] = ..., exchange_address: _Optional[str] = ..., subpartition_index: _Optional[int] = ...) -> None: ...

class InputGateDescriptor(_message.Message):
    __slots__ = ("edge_id", "input_index", "partitioning", "channels", "key_columns", "producer_name", "row_wise")
    EDGE_ID_FIELD_NUMBER: _ClassVar[int]
    INPUT_INDEX_FIELD_NUMBER: _ClassVar[int]
    PARTITIONING_FIELD_NUMBER: _ClassVar[int]
    CHANNELS_FIELD_NUMBER: _ClassVar[int]
    KEY_COLUMNS_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_NAME_FIELD_NUMBER: _ClassVar[int]
    ROW_WISE_FIELD_NUMBER: _ClassVar[int]
    edge_id: str
    input_index: int
    partitioning: _job_pb2.Partitioning
    channels: _containers.RepeatedCompositeFieldContainer[ShuffleDescriptor]
    key_columns: _containers.RepeatedScalarFieldContainer[str]
    producer_name: str
    row_wise: bool
    def __init__(self, edge_id: _Optional[str] = ..., input_index: _Optional[int] = ..., partitioning: _Optional[_Union[_job_pb2.Partitioning, str]] = ..., channels: _Optional[_Iterable[_Union[ShuffleDescriptor, _Mapping]]] = ..., key_columns: _Optional[_Iterable[str]] = ..., producer_name: _Optional[str] = ..., row_wise: _Optional[bool] = ...) -> None: ...

class ResultPartitionDescriptor(_message.Message):
    __slots__ = ("edge_id", "source_operator", "side_output_tag", "partitioning", "subpartitions", "target_parallelism", "key_columns", "target_max_parallelism", "combiner", "row_wise", "columns")
    EDGE_ID_FIELD_NUMBER: _ClassVar[int]
    SOURCE_OPERATOR_FIELD_NUMBER: _ClassVar[int]
    SIDE_OUTPUT_TAG_FIELD_NUMBER: _ClassVar[int]
    PARTITIONING_FIELD_NUMBER: _ClassVar[int]
    SUBPARTITIONS_FIELD_NUMBER: _ClassVar[int]
    TARGET_PARALLELISM_FIELD_NUMBER: _ClassVar[int]
    KEY_COLUMNS_FIELD_NUMBER: _ClassVar[int]
    TARGET_MAX_PARALLELISM_FIELD_NUMBER: _ClassVar[int]
    COMBINER_FIELD_NUMBER: _ClassVar[int]
    ROW_WISE_FIELD_NUMBER: _ClassVar[int]
    COLUMNS_FIELD_NUMBER: _ClassVar[int]
    edge_id: str
    source_operator: str
    side_output_tag: str
    partitioning: _job_pb2.Partitioning
    subpartitions: int
    target_parallelism: int
    key_columns: _containers.RepeatedScalarFieldContainer[str]
    target_max_parallelism: int
    combiner: bytes
    row_wise: bool
    columns: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, edge_id: _Optional[str] = ..., source_operator: _Optional[str] = ..., side_output_tag: _Optional[str] = ..., partitioning: _Optional[_Union[_job_pb2.Partitioning, str]] = ..., subpartitions: _Optional[int] = ..., target_parallelism: _Optional[int] = ..., key_columns: _Optional[_Iterable[str]] = ..., target_max_parallelism: _Optional[int] = ..., combiner: _Optional[bytes] = ..., row_wise: _Optional[bool] = ..., columns: _Optional[_Iterable[str]] = ...) -> None: ...

class OperatorDescriptor(_message.Message):
    __slots__ = ("operator_id", "uid", "name", "payload", "chained_input", "chained_side_output_tag", "chained_input_index")
    OPERATOR_ID_FIELD_NUMBER: _ClassVar[int]
    UID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    CHAINED_INPUT_FIELD_NUMBER: _ClassVar[int]
    CHAINED_SIDE_OUTPUT_TAG_FIELD_NUMBER: _ClassVar[int]
    CHAINED_INPUT_INDEX_FIELD_NUMBER: _ClassVar[int]
    operator_id: str
    uid: str
    name: str
    payload: bytes
    chained_input: int
    chained_side_output_tag: str
    chained_input_index: int
    def __init__(self, operator_id: _Optional[str] = ..., uid: _Optional[str] = ..., name: _Optional[str] = ..., payload: _Optional[bytes] = ..., chained_input: _Optional[int] = ..., chained_side_output_tag: _Optional[str] = ..., chained_input_index: _Optional[int] = ...) -> None: ...

class TaskDeploymentDescriptor(_message.Message):
    __slots__ = ("job_id", "job_name", "attempt_id", "allocation_id", "task_name", "parallelism", "max_parallelism", "operators", "input_gates", "result_partitions", "configuration", "restore_checkpoint_id", "restore_state", "checkpoint_directory")
    class ConfigurationEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    JOB_NAME_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_ID_FIELD_NUMBER: _ClassVar[int]
    ALLOCATION_ID_FIELD_NUMBER: _ClassVar[int]
    TASK_NAME_FIELD_NUMBER: _ClassVar[int]
    PARALLELISM_FIELD_NUMBER: _ClassVar[int]
    MAX_PARALLELISM_FIELD_NUMBER: _ClassVar[int]
    OPERATORS_FIELD_NUMBER: _ClassVar[int]
    INPUT_GATES_FIELD_NUMBER: _ClassVar[int]
    RESULT_PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    CONFIGURATION_FIELD_NUMBER: _ClassVar[int]
    RESTORE_CHECKPOINT_ID_FIELD_NUMBER: _ClassVar[int]
    RESTORE_STATE_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_DIRECTORY_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    job_name: str
    attempt_id: _checkpoint_pb2.ExecutionAttemptID
    allocation_id: str
    task_name: str
    parallelism: int
    max_parallelism: int
    operators: _containers.RepeatedCompositeFieldContainer[OperatorDescriptor]
    input_gates: _containers.RepeatedCompositeFieldContainer[InputGateDescriptor]
    result_partitions: _containers.RepeatedCompositeFieldContainer[ResultPartitionDescriptor]
    configuration: _containers.ScalarMap[str, str]
    restore_checkpoint_id: int
    restore_state: _checkpoint_pb2.TaskStateSnapshot
    checkpoint_directory: str
    def __init__(self, job_id: _Optional[str] = ..., job_name: _Optional[str] = ..., attempt_id: _Optional[_Union[_checkpoint_pb2.ExecutionAttemptID, _Mapping]] = ..., allocation_id: _Optional[str] = ..., task_name: _Optional[str] = ..., parallelism: _Optional[int] = ..., max_parallelism: _Optional[int] = ..., operators: _Optional[_Iterable[_Union[OperatorDescriptor, _Mapping]]] = ..., input_gates: _Optional[_Iterable[_Union[InputGateDescriptor, _Mapping]]] = ..., result_partitions: _Optional[_Iterable[_Union[ResultPartitionDescriptor, _Mapping]]] = ..., configuration: _Optional[_Mapping[str, str]] = ..., restore_checkpoint_id: _Optional[int] = ..., restore_state: _Optional[_Union[_checkpoint_pb2.TaskStateSnapshot, _Mapping]] = ..., checkpoint_directory: _Optional[str] = ...) -> None: ...

class SubmitTasks(_message.Message):
    __slots__ = ("tasks",)
    TASKS_FIELD_NUMBER: _ClassVar[int]
    tasks: _containers.RepeatedCompositeFieldContainer[TaskDeploymentDescriptor]
    def __init__(self, tasks: _Optional[_Iterable[_Union[TaskDeploymentDescriptor, _Mapping]]] = ...) -> None: ...

class CancelTask(_message.Message):
    __slots__ = ("attempt_id",)
    ATTEMPT_ID_FIELD_NUMBER: _ClassVar[int]
    attempt_id: _checkpoint_pb2.ExecutionAttemptID
    def __init__(self, attempt_id: _Optional[_Union[_checkpoint_pb2.ExecutionAttemptID, _Mapping]] = ...) -> None: ...

class TaskStateChanged(_message.Message):
    __slots__ = ("job_id", "attempt_id", "state", "failure", "metrics")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_ID_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    METRICS_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    attempt_id: _checkpoint_pb2.ExecutionAttemptID
    state: _job_pb2.ExecutionState
    failure: _job_pb2.SerializedFailure
    metrics: TaskMetrics
    def __init__(self, job_id: _Optional[str] = ..., attempt_id: _Optional[_Union[_checkpoint_pb2.ExecutionAttemptID, _Mapping]] = ..., state: _Optional[_Union[_job_pb2.ExecutionState, str]] = ..., failure: _Optional[_Union[_job_pb2.SerializedFailure, _Mapping]] = ..., metrics: _Optional[_Union[TaskMetrics, _Mapping]] = ...) -> None: ...

class EndOfDataReached(_message.Message):
    __slots__ = ("job_id", "attempt_id")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_ID_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    attempt_id: _checkpoint_pb2.ExecutionAttemptID
    def __init__(self, job_id: _Optional[str] = ..., attempt_id: _Optional[_Union[_checkpoint_pb2.ExecutionAttemptID, _Mapping]] = ...) -> None: ...

class ReportWatermark(_message.Message):
    __slots__ = ("job_id", "attempt_id", "group", "watermark_ms", "max_drift_ms")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_ID_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    WATERMARK_MS_FIELD_NUMBER: _ClassVar[int]
    MAX_DRIFT_MS_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    attempt_id: _checkpoint_pb2.ExecutionAttemptID
    group: str
    watermark_ms: int
    max_drift_ms: int
    def __init__(self, job_id: _Optional[str] = ..., attempt_id: _Optional[_Union[_checkpoint_pb2.ExecutionAttemptID, _Mapping]] = ..., group: _Optional[str] = ..., watermark_ms: _Optional[int] = ..., max_drift_ms: _Optional[int] = ...) -> None: ...

class AlignWatermarks(_message.Message):
    __slots__ = ("job_id", "attempt_id", "max_watermark_ms")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_ID_FIELD_NUMBER: _ClassVar[int]
    MAX_WATERMARK_MS_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    attempt_id: _checkpoint_pb2.ExecutionAttemptID
    max_watermark_ms: int
    def __init__(self, job_id: _Optional[str] = ..., attempt_id: _Optional[_Union[_checkpoint_pb2.ExecutionAttemptID, _Mapping]] = ..., max_watermark_ms: _Optional[int] = ...) -> None: ...

class TapTask(_message.Message):
    __slots__ = ("job_id", "attempt_id", "tap_id", "operator_id", "max_rows", "max_bytes", "of_input")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_ID_FIELD_NUMBER: _ClassVar[int]
    TAP_ID_FIELD_NUMBER: _ClassVar[int]
    OPERATOR_ID_FIELD_NUMBER: _ClassVar[int]
    MAX_ROWS_FIELD_NUMBER: _ClassVar[int]
    MAX_BYTES_FIELD_NUMBER: _ClassVar[int]
    OF_INPUT_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    attempt_id: _checkpoint_pb2.ExecutionAttemptID
    tap_id: str
    operator_id: str
    max_rows: int
    max_bytes: int
    of_input: bool
    def __init__(self, job_id: _Optional[str] = ..., attempt_id: _Optional[_Union[_checkpoint_pb2.ExecutionAttemptID, _Mapping]] = ..., tap_id: _Optional[str] = ..., operator_id: _Optional[str] = ..., max_rows: _Optional[int] = ..., max_bytes: _Optional[int] = ..., of_input: _Optional[bool] = ...) -> None: ...

class TaskTapped(_message.Message):
    __slots__ = ("job_id", "attempt_id", "tap_id", "rows", "rows_taken", "rows_seen")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_ID_FIELD_NUMBER: _ClassVar[int]
    TAP_ID_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    ROWS_TAKEN_FIELD_NUMBER: _ClassVar[int]
    ROWS_SEEN_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    attempt_id: _checkpoint_pb2.ExecutionAttemptID
    tap_id: str
    rows: bytes
    rows_taken: int
    rows_seen: int
    def __init__(self, job_id: _Optional[str] = ..., attempt_id: _Optional[_Union[_checkpoint_pb2.ExecutionAttemptID, _Mapping]] = ..., tap_id: _Optional[str] = ..., rows: _Optional[bytes] = ..., rows_taken: _Optional[int] = ..., rows_seen: _Optional[int] = ...) -> None: ...

class ExecutionReport(_message.Message):
    __slots__ = ("attempt_id", "state", "allocation_id", "last_checkpoint_id", "unconfirmed", "end_of_data", "failure", "stopping", "confirmed_checkpoint_id", "metrics")
    ATTEMPT_ID_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    ALLOCATION_ID_FIELD_NUMBER: _ClassVar[int]
    LAST_CHECKPOINT_ID_FIELD_NUMBER: _ClassVar[int]
    UNCONFIRMED_FIELD_NUMBER: _ClassVar[int]
    END_OF_DATA_FIELD_NUMBER: _ClassVar[int]
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    STOPPING_FIELD_NUMBER: _ClassVar[int]
    CONFIRMED_CHECKPOINT_ID_FIELD_NUMBER: _ClassVar[int]
    METRICS_FIELD_NUMBER: _ClassVar[int]
    attempt_id: _checkpoint_pb2.ExecutionAttemptID
    state: _job_pb2.ExecutionState
    allocation_id: str
    last_checkpoint_id: int
    unconfirmed: _containers.RepeatedCompositeFieldContainer[_checkpoint_pb2.AcknowledgeCheckpoint]
    end_of_data: bool
    failure: _job_pb2.SerializedFailure
    stopping: bool
    confirmed_checkpoint_id: int
    metrics: TaskMetrics
    def __init__(self, attempt_id: _Optional[_Union[_checkpoint_pb2.ExecutionAttemptID, _Mapping]] = ..., state: _Optional[_Union[_job_pb2.ExecutionState, str]] = ..., allocation_id: _Optional[str] = ..., last_checkpoint_id: _Optional[int] = ..., unconfirmed: _Optional[_Iterable[_Union[_checkpoint_pb2.AcknowledgeCheckpoint, _Mapping]]] = ..., end_of_data: _Optional[bool] = ..., failure: _Optional[_Union[_job_pb2.SerializedFailure, _Mapping]] = ..., stopping: _Optional[bool] = ..., confirmed_checkpoint_id: _Optional[int] = ..., metrics: _Optional[_Union[TaskMetrics, _Mapping]] = ...) -> None: ...

class ReportExecutions(_message.Message):
    __slots__ = ("job_id", "resource_id", "executions")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    RESOURCE_ID_FIELD_NUMBER: _ClassVar[int]
    EXECUTIONS_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    resource_id: str
    executions: _containers.RepeatedCompositeFieldContainer[ExecutionReport]
    def __init__(self, job_id: _Optional[str] = ..., resource_id: _Optional[str] = ..., executions: _Optional[_Iterable[_Union[ExecutionReport, _Mapping]]] = ...) -> None: ...
