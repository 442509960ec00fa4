"""What the TaskExecutor core asks for.

Besides these: OpenConnection, CloseConnection and Send of `snapline.runtime.cores.connections`, StartTimer,
CancelTimer.
"""

from __future__ import annotations

from dataclasses import dataclass

from snapline.dataflow.failures import SerializedFailure
from snapline.dataflow.ids import CheckpointID, ExecutionAttemptID, JobID, LeaderSessionID
from snapline.dataflow.wire.messages import (
    HeartbeatResponse,
    RequestThreadDump,
    TaskDeploymentDescriptor,
    TaskMessage,
)
from snapline.runtime.cores.connections import CloseConnection, ConnectionID, OpenConnection, Send
from snapline.runtime.cores.machine import CancelTimer, StartTimer


@dataclass(frozen=True, slots=True)
class StartTask:
    """Build the task, restore it, run it on a thread of its own. Every state that it enters comes back as
    TaskEnteredState; a task that cannot even be built reports FAILED."""

    descriptor: TaskDeploymentDescriptor


@dataclass(frozen=True, slots=True)
class CancelTaskExecution:
    """Cancel the task and interrupt what can be interrupted. Repeated every `task.cancellation.interval` until the task
    is over. It reports CANCELED (FINISHED or FAILED when it was faster)."""

    attempt_id: ExecutionAttemptID


@dataclass(frozen=True, slots=True)
class FailTaskExecution:
    """As CancelTaskExecution, but the task reports FAILED with this failure (Flink: failExternally)."""

    attempt_id: ExecutionAttemptID
    failure: SerializedFailure


@dataclass(frozen=True, slots=True)
class DeliverToTask:
    """Put the message into the mailbox of the task."""

    attempt_id: ExecutionAttemptID
    message: TaskMessage


@dataclass(frozen=True, slots=True)
class ReleaseSnapshots:
    """The attempt has ended: what it acknowledged is not its TaskManager's any more, but for the checkpoints `untold`.
    Nobody was told, or will be, that it acknowledged those, so they cannot complete with it: delete what was written
    for them."""

    attempt_id: ExecutionAttemptID
    untold: tuple[CheckpointID, ...] = ()


@dataclass(frozen=True, slots=True)
class SendHeartbeatResponse:
    """Send this response in the session on the connection, after filling in the `metrics` of the tasks `executions`.
    Keeps its place among the `Send` effects for the same connection."""

    connection: ConnectionID
    session: LeaderSessionID
    response: HeartbeatResponse


@dataclass(frozen=True, slots=True)
class ReleaseJobResources:
    """No slot, task or connection of the job is left here: close what is kept per job (files, clients, modules)."""

    job_id: JobID


@dataclass(frozen=True, slots=True)
class DumpThreads:
    """Look what the threads of this process do, beside everything else; answered by ThreadsDumped, or not at all when
    too many look already."""

    request: RequestThreadDump


@dataclass(frozen=True, slots=True)
class TerminateTaskManager:
    """End the whole process at once, hard when it must be: nothing after this is performed."""

    reason: str
    exit_code: int
    """0: ended because it is not needed; 1: it cannot go on."""
    stuck: ExecutionAttemptID | None = None
    """The task because of which it cannot go on, if it is one."""


TaskExecutorEffect = (
    StartTask
    | CancelTaskExecution
    | FailTaskExecution
    | DeliverToTask
    | ReleaseSnapshots
    | SendHeartbeatResponse
    | ReleaseJobResources
    | DumpThreads
    | TerminateTaskManager
    | OpenConnection
    | CloseConnection
    | Send
    | StartTimer
    | CancelTimer
)
