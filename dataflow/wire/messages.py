"""Every control message between processes, as frozen values.

`snapline.dataflow.wire.codec` turns them into the protobuf messages of `protos/` and back; cores and the simulator only
know these. Each message to or from a JobMaster or ResourceManager travels in a `Fenced` envelope, so that one place
drops the stale ones. Names are Flink's (TaskExecutorGateway, JobMasterGateway, ResourceManagerGateway).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from snapline.dataflow.api.accumulators import AccumulatorValue
from snapline.dataflow.api.user_metrics import MetricValue
from snapline.dataflow.elements import CheckpointOptions
from snapline.dataflow.failures import CheckpointFailureReason, SerializedFailure
from snapline.dataflow.ids import (
    AllocationID,
    CheckpointID,
    ExecutionAttemptID,
    JobID,
    LeaderSessionID,
    OperatorID,
    ResourceID,
)
from snapline.dataflow.partitioning import Partitioning
from snapline.dataflow.snapshot.handles import EMPTY_TASK_STATE, TaskStateSnapshot
from snapline.dataflow.wire.statuses import ExecutionState as ExecutionState  # noqa: PLC0414 - they are of the messages
from snapline.dataflow.wire.statuses import JobStatus as JobStatus  # noqa: PLC0414

MessageT = TypeVar("MessageT")


@dataclass(frozen=True, slots=True)
class Fenced(Generic[MessageT]):
    """A message with the session of the leader that it is for, or comes from (Flink: FencedMessage)."""

    leader_session_id: LeaderSessionID
    message: MessageT


@dataclass(frozen=True, slots=True)
class ForTasks(Generic[MessageT]):
    """One message for each of several tasks on one TaskManager, all equal but for the task. On the wire they are those
    messages."""

    template: MessageT
    """One of the checkpoint messages; whose `attempt_id` it has does not matter."""
    attempt_ids: tuple[ExecutionAttemptID, ...]


# --- the five checkpoint messages -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TriggerCheckpoint:
    """JobMaster -> TaskManager: a source subtask is to record its position and emit the barrier."""

    job_id: JobID
    attempt_id: ExecutionAttemptID
    checkpoint_id: CheckpointID
    timestamp_ms: int
    options: CheckpointOptions


@dataclass(frozen=True, slots=True)
class CheckpointMetrics:
    """What one subtask measured (Flink: CheckpointMetrics)."""

    sync_duration_ms: int = 0
    async_duration_ms: int = 0
    alignment_duration_ms: int = 0
    checkpoint_start_delay_ms: int = 0
    bytes_processed_during_alignment: int = 0
    bytes_persisted_during_alignment: int = 0
    unaligned: bool = False


@dataclass(frozen=True, slots=True)
class AcknowledgeCheckpoint:
    """TaskManager -> JobMaster: the subtask's state for this checkpoint is durable (or empty)."""

    job_id: JobID
    attempt_id: ExecutionAttemptID
    checkpoint_id: CheckpointID
    metrics: CheckpointMetrics = CheckpointMetrics()
    state: TaskStateSnapshot = EMPTY_TASK_STATE


@dataclass(frozen=True, slots=True)
class DeclineCheckpoint:
    """TaskManager -> JobMaster: the subtask gave up this checkpoint."""

    job_id: JobID
    attempt_id: ExecutionAttemptID
    checkpoint_id: CheckpointID
    reason: CheckpointFailureReason
    detail: str = ""
    """What happened, in the task's own words."""
    timestamp_ms: int = 0
    """When the checkpoint was triggered; 0: the task has not seen its trigger, or a barrier of it."""


@dataclass(frozen=True, slots=True)
class NotifyCheckpointComplete:
    """JobMaster -> TaskManager: the checkpoint is durable; commit. `last_subsumed_id` is 0 when nothing was
    subsumed."""

    job_id: JobID
    attempt_id: ExecutionAttemptID
    checkpoint_id: CheckpointID
    timestamp_ms: int
    last_subsumed_id: CheckpointID = CheckpointID(0)


@dataclass(frozen=True, slots=True)
class NotifyCheckpointAborted:
    """JobMaster -> TaskManager: the checkpoint will never complete."""

    job_id: JobID
    attempt_id: ExecutionAttemptID
    checkpoint_id: CheckpointID
    latest_completed_id: CheckpointID
    """0 when none completed yet."""
    timestamp_ms: int


# --- TaskManager <-> ResourceManager ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TaskManagerInfo:
    """What a TaskManager says of itself when it registers anywhere."""

    resource_id: ResourceID
    exchange_address: str
    """host:port of its data server."""
    slots: int
    version: str
    """Snapline version; it decides where no protocol version is declared, and says who is who."""
    host: str
    pid: int
    executor_id: str = ""
    log_url: str = ""
    incarnation: str = field(default="", repr=False)
    """Drawn by the process, and told to nobody but the coordinators: who knows only the resource id is another
    process."""
    stays_when_idle: bool = False
    """Whoever started it wants it to be there also while no job needs it."""
    protocol_version: int = 0
    """Version of the protocol that it speaks; a ResourceManager whose version differs by more than one rejects it. 0:
    it declares none."""

    def is_same_process(self, other: TaskManagerInfo) -> bool:
        """Whether both come from one process."""
        mine = (self.host, self.pid, self.incarnation)
        return mine == (other.host, other.pid, other.incarnation)

    @property
    def why_not_again(self) -> str:
        """Why another process is refused under the resource id of this one."""
        return (
            f"TaskManager {self.resource_id} runs already as process {self.pid} on {self.host}; this is a second start of the same "
            "Spark task, or a process that claims to be that one"
        )


@dataclass(frozen=True, slots=True)
class SlotStatus:
    """One slot in a SlotReport; job and allocation are empty for a free slot."""

    slot_number: int
    job_id: JobID = JobID("")
    allocation_id: AllocationID = AllocationID("")


@dataclass(frozen=True, slots=True)
class SlotReport:
    """TaskManager -> ResourceManager: all slots; after registration, and as the payload of heartbeats."""

    resource_id: ResourceID
    slots: tuple[SlotStatus, ...]


@dataclass(frozen=True, slots=True)
class RegisterTaskExecutor:
    """TaskManager -> ResourceManager, first message on its stream."""

    info: TaskManagerInfo


@dataclass(frozen=True, slots=True)
class RegistrationSuccess:
    """The answer to a registration; heartbeats at this interval follow, silence for the timeout means dead."""

    heartbeat_interval_ms: int
    heartbeat_timeout_ms: int


@dataclass(frozen=True, slots=True)
class RegistrationRejected:
    """The answer to a registration that must not be repeated."""

    reason: str


@dataclass(frozen=True, slots=True)
class RequestSlot:
    """ResourceManager -> TaskManager: give this slot to that job and offer it to its JobMaster."""

    slot_number: int
    job_id: JobID
    allocation_id: AllocationID
    job_master_address: str
    job_master_session: LeaderSessionID


@dataclass(frozen=True, slots=True)
class SlotRequestRejected:
    """TaskManager -> ResourceManager: the slot is not free; here is what is."""

    allocation_id: AllocationID
    report: SlotReport


@dataclass(frozen=True, slots=True)
class NotifySlotAvailable:
    """TaskManager -> ResourceManager: the slot is free again."""

    slot_number: int
    allocation_id: AllocationID


@dataclass(frozen=True, slots=True)
class HeartbeatRequest:
    """ResourceManager or JobMaster -> TaskManager: are you there? `allocations` is what a JobMaster believes to own."""

    allocations: tuple[AllocationID, ...] = ()


@dataclass(frozen=True, slots=True)
class QueueFigures:
    """What waits in the queues of one channel, or of all channels on one side of a task."""

    batches: int = 0
    size_bytes: int = 0
    usage: float = 0.0
    """How full the fullest queue is, from 0 to 1."""
    credits: int = 0
    """Batches that may be on their way, between processes, beside those that wait; 0 within one process."""


@dataclass(frozen=True, slots=True)
class TaskMetrics:
    """Counters of one running subtask, cumulative since its start."""

    attempt_id: ExecutionAttemptID
    records_in: int = 0
    records_out: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    busy_ms: int = 0
    backpressured_ms: int = 0
    idle_ms: int = 0
    watermark_ms: int = -(2**63)
    accumulators: tuple[AccumulatorValue, ...] = ()
    """What this attempt's functions have counted."""
    user_metrics: tuple[MetricValue, ...] = ()
    """The metrics of this attempt's functions, and the latencies that it has measured."""
    busy_ms_per_second: int = 0
    """How busy the task was in the last ten seconds, as are the fields below."""
    backpressured_ms_per_second: int = 0
    idle_ms_per_second: int = 0
    records_in_per_second: int = 0
    records_out_per_second: int = 0
    step_ms: int = 0
    """How long the present step has lasted; 0: the task is between two steps."""
    awaits: str = ""
    """What the task waits for outside of it, in words, such as the answers to requests; empty: nothing."""
    input_queue: QueueFigures = QueueFigures()
    output_queue: QueueFigures = QueueFigures()


@dataclass(frozen=True, slots=True)
class ProcessFigures:
    """What one process uses, as its operating system says; 0: not known here."""

    resident_bytes: int = 0
    cpu_ms_per_second: int = 0
    """Since the figures before; more than 1,000 when several cores work."""
    threads: int = 0
    open_files: int = 0
    clock_ms: int = 0
    """The wall clock of its host."""
    clock_leap_ms: int = 0
    """How far that clock has leapt since the process began, forward or back."""


@dataclass(frozen=True, slots=True)
class HeartbeatResponse:
    """TaskManager -> asker. To a ResourceManager with a slot report, to a JobMaster with metrics of its tasks."""

    report: SlotReport | None = None
    metrics: tuple[TaskMetrics, ...] = ()
    executions: tuple[ExecutionAttemptID, ...] = ()
    """Attempts of the asking job that this TaskManager runs; the JobMaster reconciles with what it deployed."""
    process: ProcessFigures | None = None
    """To a ResourceManager: what the process of the TaskManager uses."""


@dataclass(frozen=True, slots=True)
class Disconnect:
    """Either side: forget me, and why. A TaskManager that is disconnected registers again if it still lives."""

    reason: str


@dataclass(frozen=True, slots=True)
class RequestThreadDump:
    """ResourceManager -> TaskManager: say what your threads do, once or over some time. Answered by ThreadDump."""

    request_id: str
    duration_ms: int = 0
    interval_ms: int = 0
    heap: bool = False
    """Say also what memory is used for, and which containers have grown meanwhile."""
    log_lines: int = 0
    """Not 0: say only the last lines that the process has written, at most so many."""
    log_level: str = ""
    """Not empty: write lines of this level and above from now on."""


@dataclass(frozen=True, slots=True)
class HeapType:
    """Objects of one type in the memory of a process."""

    name: str
    count: int
    bytes: int


@dataclass(frozen=True, slots=True)
class AllocationSite:
    """A container that has grown while it was looked at: by how many elements, and about how many bytes."""

    frames: tuple[str, ...]
    """Who holds it, as `name (file:line)`."""
    count: int
    bytes: int


@dataclass(frozen=True, slots=True)
class ThreadStack:
    """One stack of one thread, and how often it was seen."""

    thread_name: str
    task_name: str = ""
    attempt_id: ExecutionAttemptID | None = None
    frames: tuple[str, ...] = ()
    """Outermost first, each `function (file:line)`."""
    count: int = 1
    waits_for: str = ""
    """`lock`, `answer`, or nothing: the thread works, or sleeps."""


@dataclass(frozen=True, slots=True)
class ThreadDump:
    """TaskManager -> ResourceManager: what its threads do."""

    request_id: str
    resource_id: ResourceID
    stacks: tuple[ThreadStack, ...] = ()
    samples: int = 1
    types: tuple[HeapType, ...] = ()
    """When asked for the heap: those whose objects take most."""
    sites: tuple[AllocationSite, ...] = ()
    log: tuple[str, ...] = ()
    """When asked for the log: its last lines, the oldest first."""


@dataclass(frozen=True, slots=True)
class ShutDownTaskExecutor:
    """ResourceManager -> TaskManager: nobody needs you any more; end your process (idle for too long, or not
    wanted)."""

    reason: str


# --- JobMaster <-> ResourceManager ------------------------------------------------------------------------------------
# A JobMaster dials out like a TaskManager. It sends RegisterJobMaster, DeclareRequiredSlots, HeartbeatResponse (empty)
# and Disconnect; it gets RegistrationSuccess, RegistrationRejected, HeartbeatRequest, NotEnoughResources,
# NotifyTaskManagerLost and Disconnect.


@dataclass(frozen=True, slots=True)
class RegisterJobMaster:
    """JobMaster -> ResourceManager, first message on its stream. Replaces an older registration of the job."""

    job_id: JobID
    job_name: str
    address: str
    """host:port of the JobMasterGateway, handed to TaskManagers in RequestSlot."""
    job_master_session: LeaderSessionID


@dataclass(frozen=True, slots=True)
class SlotsHeld:
    """So many slots of that TaskManager belong to the job, as its JobMaster sees it."""

    resource_id: ResourceID
    slots: int


@dataclass(frozen=True, slots=True)
class DeclareRequiredSlots:
    """JobMaster -> ResourceManager: how many slots the job needs in all (Flink: ResourceRequirements), and which it
    has. Not changes but totals, so that they can be repeated; 0 when the job is over."""

    job_id: JobID
    required: int
    held: tuple[SlotsHeld, ...] = ()
    """Counts for TaskManagers that the ResourceManager does not see at the moment; otherwise it would give the job
    slots that the job does not need, again and again."""
    least: int = 0
    """With how many it runs, where it can use more, as in reactive mode: others that do not run come before the rest.
    0: it needs all."""


@dataclass(frozen=True, slots=True)
class NotEnoughResources:
    """ResourceManager -> JobMaster: what was declared cannot be had now (Flink: notifyNotEnoughResourcesAvailable)."""

    job_id: JobID
    required: int
    available: int
    """Slots that the job has or is being given."""
    reason: str = ""


@dataclass(frozen=True, slots=True)
class NotifyTaskManagerLost:
    """ResourceManager -> JobMaster: a TaskManager is gone for the ResourceManager."""

    resource_id: ResourceID
    reason: str
    terminated: bool = False
    """True: its process has certainly ended, so that nobody needs to wait for a timeout."""
    heartbeat_timed_out: bool = False
    """True: it was silent for `heartbeat.timeout`; the JobMaster gives it up, too, and does not wait for its own
    timeout."""


# --- TaskManager <-> JobMaster ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RegisterTaskExecutorAtJobMaster:
    """TaskManager -> JobMaster, first message on its stream."""

    job_id: JobID
    info: TaskManagerInfo


@dataclass(frozen=True, slots=True)
class SlotOffer:
    """One slot that the TaskManager offers."""

    allocation_id: AllocationID
    slot_number: int
    external_task: str = ""
    """The name of the external vertex for which a program outside registered. Empty: the slot is a TaskManager's."""


@dataclass(frozen=True, slots=True)
class OfferSlots:
    """TaskManager -> JobMaster: slots that the ResourceManager gave to this job."""

    job_id: JobID
    resource_id: ResourceID
    offers: tuple[SlotOffer, ...]


@dataclass(frozen=True, slots=True)
class SlotOffersAnswered:
    """JobMaster -> TaskManager: offers not accepted are free again."""

    job_id: JobID
    accepted: tuple[AllocationID, ...]
    rejected: tuple[AllocationID, ...]


@dataclass(frozen=True, slots=True)
class FreeSlot:
    """JobMaster or ResourceManager -> TaskManager: the job does not need the slot any more."""

    allocation_id: AllocationID
    reason: str


@dataclass(frozen=True, slots=True)
class ShuffleDescriptor:
    """Where one input channel gets its data: subpartition `subpartition_index` of the producer's edge `edge_id`."""

    producer: ExecutionAttemptID
    resource_id: ResourceID
    exchange_address: str
    subpartition_index: int


@dataclass(frozen=True, slots=True)
class InputGateDescriptor:
    """One input of the task: its channels, in the order of the producers' subtask index."""

    edge_id: str
    input_index: int
    """Which logical input of the head operator this is (0, or 1 for the second input of a two-input operator)."""
    partitioning: Partitioning
    channels: tuple[ShuffleDescriptor, ...]
    key_columns: tuple[str, ...] = ()
    """The key columns of a hash edge: restored data in flight is filtered by them after a rescale."""
    producer_name: str = ""
    """The name of the producing vertex, for messages to people."""
    row_wise: bool = False
    """Whether the task works row by row, as a JobEdge says it."""


@dataclass(frozen=True, slots=True)
class ResultPartitionDescriptor:
    """One outgoing edge of the task: how rows are spread over its subpartitions."""

    edge_id: str
    source_operator: OperatorID
    side_output_tag: str
    """Empty for the main output."""
    partitioning: Partitioning
    subpartitions: int
    """Number of subpartitions that this subtask produces."""
    target_parallelism: int
    key_columns: tuple[str, ...] = ()
    target_max_parallelism: int = 128
    combiner: bytes = b""
    """What combines rows before they are sent, as a JobEdge says it."""
    row_wise: bool = False
    """Whether the consumer works row by row, as a JobEdge says it."""
    columns: tuple[str, ...] = ()
    """What the consumer reads, as a JobEdge says it."""


@dataclass(frozen=True, slots=True)
class OperatorDescriptor:
    """One operator of the chain, head first."""

    operator_id: OperatorID
    uid: str
    name: str
    payload: bytes
    """cloudpickled factory: a callable without arguments that returns a `taskmanager` StreamOperator or SourceOperator
    description (see `snapline.dataflow.graph.jobgraph.OperatorNode`)."""
    chained_input: int = -1
    """Position in the chain of the operator whose output this one reads; -1 for the head, which reads the gates."""
    chained_side_output_tag: str = ""
    """Empty: it reads the main output of `chained_input`."""
    chained_input_index: int = 0


@dataclass(frozen=True, slots=True)
class TaskDeploymentDescriptor:
    """Everything that a TaskManager needs to run one attempt of one subtask (Flink: same name)."""

    job_id: JobID
    job_name: str
    attempt_id: ExecutionAttemptID
    allocation_id: AllocationID
    task_name: str
    parallelism: int
    max_parallelism: int
    operators: tuple[OperatorDescriptor, ...]
    input_gates: tuple[InputGateDescriptor, ...]
    result_partitions: tuple[ResultPartitionDescriptor, ...]
    configuration: Mapping[str, str] = field(default_factory=dict)
    """Job configuration, keys and spelling of `snapline.dataflow.config`."""
    restore_checkpoint_id: CheckpointID = CheckpointID(0)
    """The checkpoint that the task is restored from; 0 when there is nothing to restore."""
    restore_state: TaskStateSnapshot = EMPTY_TASK_STATE
    """Already redistributed for this subtask; keyed handles may cover more key groups than the subtask's own."""
    checkpoint_directory: str = ""
    """`<base>/<job>` that this job's snapshot files go below."""

    @property
    def subtask_index(self) -> int:
        """0 .. parallelism - 1."""
        return self.attempt_id.subtask_index


@dataclass(frozen=True, slots=True)
class SubmitTasks:
    """JobMaster -> TaskManager: run these, all in slots that the job owns there."""

    tasks: tuple[TaskDeploymentDescriptor, ...]


@dataclass(frozen=True, slots=True)
class CancelTask:
    """JobMaster -> TaskManager: cancel; answered by TaskStateChanged to CANCELED, or the TaskManager goes down."""

    attempt_id: ExecutionAttemptID


@dataclass(frozen=True, slots=True)
class TaskStateChanged:
    """TaskManager -> JobMaster: the attempt entered this state; FAILED carries the failure."""

    job_id: JobID
    attempt_id: ExecutionAttemptID
    state: ExecutionState
    failure: SerializedFailure | None = None
    metrics: TaskMetrics | None = None
    """With a terminal state: the last counters of the attempt (Flink: IOMetrics)."""


@dataclass(frozen=True, slots=True)
class EndOfDataReached:
    """TaskManager -> JobMaster: the subtask has processed all its data and waits for a final checkpoint."""

    job_id: JobID
    attempt_id: ExecutionAttemptID


@dataclass(frozen=True, slots=True)
class ReportWatermark:
    """TaskManager -> JobMaster: how far a source subtask of an alignment group is (Flink: ReportedWatermarkEvent)."""

    job_id: JobID
    attempt_id: ExecutionAttemptID
    group: str
    watermark_ms: int
    """The greatest watermark: it holds nobody back."""
    max_drift_ms: int
    """How far ahead of the slowest it may be."""


@dataclass(frozen=True, slots=True)
class AlignWatermarks:
    """JobMaster -> TaskManager, answer to ReportWatermark: how far the subtask may go (Flink:
    WatermarkAlignmentEvent)."""

    job_id: JobID
    attempt_id: ExecutionAttemptID
    max_watermark_ms: int


@dataclass(frozen=True, slots=True)
class TapTask:
    """JobMaster -> TaskManager: show some rows of the next batch that the operator puts out or takes in, once."""

    job_id: JobID
    attempt_id: ExecutionAttemptID
    tap_id: str
    """Which request of a client this is for."""
    operator_id: OperatorID
    max_rows: int
    max_bytes: int
    of_input: bool = False
    """Show what the operator takes in."""


@dataclass(frozen=True, slots=True)
class TaskTapped:
    """TaskManager -> JobMaster, answer to TapTask: rows as an Arrow stream."""

    job_id: JobID
    attempt_id: ExecutionAttemptID
    tap_id: str
    rows: bytes
    rows_taken: int
    rows_seen: int
    """How many rows flowed past, of which these are the first ones."""


CheckpointMessage = TriggerCheckpoint | NotifyCheckpointComplete | NotifyCheckpointAborted
"""What the JobMaster tells many tasks at once of one checkpoint."""
TaskMessage = CheckpointMessage | AlignWatermarks | TapTask
"""What a task gets into its mailbox as it came over the wire."""


@dataclass(frozen=True, slots=True)
class ExecutionReport:
    """One attempt that a TaskManager runs, or that ended since it last had a JobMaster."""

    attempt_id: ExecutionAttemptID
    state: ExecutionState
    allocation_id: AllocationID
    last_checkpoint_id: CheckpointID = CheckpointID(0)
    """The greatest that it heard of or acknowledged."""
    unconfirmed: tuple[AcknowledgeCheckpoint, ...] = ()
    """Acknowledgements that neither a completion nor an abortion has answered."""
    end_of_data: bool = False
    failure: SerializedFailure | None = None
    stopping: bool = False
    """Whether the task was told to stop with a savepoint: it stands still until that is complete, or for good."""
    confirmed_checkpoint_id: CheckpointID = CheckpointID(0)
    """The greatest completed checkpoint that it knows of, or the one that it was restored from; of one that has ended,
    the greatest that it acknowledged."""
    metrics: TaskMetrics | None = None
    """The counters and accumulators of the attempt: a JobMaster that follows a lost one has not heard them."""

    def goes_on_from(self, checkpoint_id: CheckpointID) -> bool:
        """Whether it took part in this completed checkpoint or was restored from it, as the latest that there is."""
        acknowledged = any(message.checkpoint_id == checkpoint_id for message in self.unconfirmed)
        return acknowledged or self.confirmed_checkpoint_id >= checkpoint_id


@dataclass(frozen=True, slots=True)
class ReportExecutions:
    """TaskManager -> JobMaster: what runs here, right after the registration. A JobMaster that follows a lost one
    adopts it."""

    job_id: JobID
    resource_id: ResourceID
    executions: tuple[ExecutionReport, ...]


# --- job control ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class JobStatusChanged:
    """JobMaster -> whoever listens (the CheckpointCoordinatorDeActivator, clients that watch)."""

    job_id: JobID
    status: JobStatus
    timestamp_ms: int
    failure: SerializedFailure | None = None
    leader_session_id: LeaderSessionID = LeaderSessionID("")
    """The session of the JobMaster that says so: a status of one that was replaced is not the job's."""
