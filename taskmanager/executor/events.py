"""What the TaskExecutor core of one TaskManager is told.

Besides these: ResourceManagerLeaderChanged, ConnectionOpened, ConnectionLost and MessageReceived of
`snapline.runtime.cores.connections` (the TaskManager dials all its connections), and `TimerFired`.
"""

from __future__ import annotations

from dataclasses import dataclass

from snapline.dataflow.failures import SerializedFailure
from snapline.dataflow.ids import ExecutionAttemptID, JobID, LeaderSessionID
from snapline.dataflow.wire.messages import (
    AcknowledgeCheckpoint,
    DeclineCheckpoint,
    EndOfDataReached,
    ExecutionState,
    ReportWatermark,
    TaskMetrics,
    TaskTapped,
    ThreadDump,
)
from snapline.runtime.cores.connections import (
    ConnectionLost,
    ConnectionOpened,
    MessageReceived,
    ResourceManagerLeaderChanged,
)
from snapline.runtime.cores.machine import TimerFired


@dataclass(frozen=True, slots=True)
class TaskExecutorStarted:
    """First event, once: the data server listens. Starts the clock of `taskmanager.registration.timeout`."""


@dataclass(frozen=True, slots=True)
class JobMasterLeaderChanged:
    """Leader retrieval found the JobMaster of a job that this TaskManager works for; empty address: none now."""

    job_id: JobID
    address: str
    session: LeaderSessionID


@dataclass(frozen=True, slots=True)
class TaskEnteredState:
    """A task that was started reports INITIALIZING, RUNNING, FINISHED, CANCELED or FAILED (with its failure). A
    terminal state is reported once and last, when its thread has ended and what it held is released."""

    attempt_id: ExecutionAttemptID
    state: ExecutionState
    failure: SerializedFailure | None = None
    metrics: TaskMetrics | None = None
    """With a terminal state: its last counters."""


@dataclass(frozen=True, slots=True)
class TaskSaid:
    """A running task has something for its JobMaster."""

    message: AcknowledgeCheckpoint | DeclineCheckpoint | EndOfDataReached | ReportWatermark | TaskTapped


@dataclass(frozen=True, slots=True)
class ThreadsDumped:
    """The answer to DumpThreads, for the ResourceManager."""

    dump: ThreadDump


@dataclass(frozen=True, slots=True)
class ShutDownRequested:
    """The host wants the TaskManager to end in order (Spark ends the task body): disconnect from everybody."""

    reason: str


TaskExecutorEvent = (
    TaskExecutorStarted
    | ResourceManagerLeaderChanged
    | JobMasterLeaderChanged
    | TaskEnteredState
    | TaskSaid
    | ThreadsDumped
    | ShutDownRequested
    | ConnectionOpened
    | ConnectionLost
    | MessageReceived
    | TimerFired
)
