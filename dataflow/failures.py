"""Why things fail, as data: reasons of checkpoints, blame and retry hint of failures that cross processes.

Mirrors Flink's CheckpointFailureReason (all reasons, each with `pre_flight` and a message) and SerializedThrowable.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


def message_of(error: BaseException) -> str:
    """Return the message of what a user's code has raised, whose class may be unable to say it.

    >>> message_of(ValueError("no number"))
    'no number'
    """
    try:
        return str(error)
    except KeyboardInterrupt:
        raise
    except BaseException as failed:
        return f"(its message cannot be had: __str__ raises {type(failed).__name__})"


class CheckpointFailureReason(Enum):
    """Value: (pre_flight, message). Pre-flight: refused before a checkpoint id was drawn."""

    PERIODIC_SCHEDULER_SHUTDOWN = (True, "Periodic checkpoint scheduler is shut down.")
    TOO_MANY_CONCURRENT_CHECKPOINTS = (True, "The maximum number of concurrent checkpoints is exceeded.")
    TOO_MANY_CHECKPOINT_REQUESTS = (True, "The maximum number of queued checkpoint requests exceeded.")
    MINIMUM_TIME_BETWEEN_CHECKPOINTS = (True, "The minimum time between checkpoints is still pending.")
    NOT_ALL_REQUIRED_TASKS_RUNNING = (True, "Not all required tasks are currently running.")
    EXCEPTION = (True, "An exception occurred while triggering the checkpoint.")
    IO_EXCEPTION = (True, "An exception occurred while triggering the checkpoint: storage failed.")
    BLOCKING_OUTPUT_EXIST = (True, "Blocking output edge exists in running tasks.")
    CHANNEL_STATE_SHARED_STREAM_EXCEPTION = (
        False,
        "The checkpoint was aborted because channel state failed in another subtask.",
    )
    CHECKPOINT_ASYNC_EXCEPTION = (False, "Asynchronous task checkpoint failed.")
    CHECKPOINT_EXPIRED = (False, "Checkpoint expired before completing.")
    CHECKPOINT_SUBSUMED = (False, "Checkpoint has been subsumed.")
    CHECKPOINT_DECLINED = (False, "Checkpoint was declined.")
    CHECKPOINT_DECLINED_TASK_NOT_READY = (False, "Checkpoint was declined (tasks not ready).")
    CHECKPOINT_DECLINED_TASK_CLOSING = (False, "Checkpoint was declined (task's operators are partially closed).")
    CHECKPOINT_DECLINED_TASK_NOT_CHECKPOINTING = (False, "Task does not support checkpointing.")
    CHECKPOINT_DECLINED_ALIGNMENT_LIMIT_EXCEEDED = (False, "The alignment of the checkpoint exceeded its limit.")
    CHECKPOINT_DECLINED_SUBSUMED = (
        False,
        "Checkpoint was canceled because a barrier from a newer checkpoint was received.",
    )
    CHECKPOINT_DECLINED_ON_CANCELLATION_BARRIER = (False, "Task received cancellation from one of its inputs.")
    CHECKPOINT_DECLINED_INPUT_END_OF_STREAM = (False, "Checkpoint was declined because one input stream is finished.")
    CHECKPOINT_COORDINATOR_SHUTDOWN = (False, "CheckpointCoordinator shutdown.")
    CHECKPOINT_COORDINATOR_SUSPEND = (False, "Checkpoint Coordinator is suspending.")
    JOB_FAILURE = (False, "The job has failed.")
    JOB_FAILOVER_REGION = (False, "FailoverRegion is restarting.")
    TASK_FAILURE = (False, "Task has failed.")
    TASK_CHECKPOINT_FAILURE = (False, "Task local checkpoint failure.")
    UNKNOWN_TASK_CHECKPOINT_NOTIFICATION_FAILURE = (False, "Unknown task for the checkpoint to notify.")
    FINALIZE_CHECKPOINT_FAILURE = (False, "Failure to finalize checkpoint.")
    TRIGGER_CHECKPOINT_FAILURE = (False, "Trigger checkpoint failure.")

    @property
    def pre_flight(self) -> bool:
        """Whether the request was refused before a checkpoint id was drawn."""
        return self.value[0]

    @property
    def message(self) -> str:
        """One sentence for logs and users."""
        return self.value[1]


class Blame(Enum):
    """Who has to do something about a failure."""

    USER = "user"
    """The job: its code, its configuration, its data."""
    EXTERNAL = "external"
    """A service or machine that Snapline depends on."""
    INTERNAL = "internal"
    """A defect of Snapline, or a broken invariant."""


USER_TRACEBACK = "Traceback of the user's code (most recent call last):"


@dataclass(frozen=True, slots=True)
class SerializedFailure:
    """A failure that crossed a process boundary (Flink: SerializedThrowable)."""

    summary: str
    """One line that names the culprit and, where there is one, the way out."""
    blame: Blame = Blame.USER
    retryable: bool = True
    """False: no restart strategy may try again."""
    error_type: str = ""
    traceback: str = ""
    """Begins with USER_TRACEBACK when it holds the user's own code only, from its first frame on."""
    operator_uid: str = ""
    position: str = ""
    """Where in the input it happened, as precisely as the task knows: input, batch number, rows."""
    row: str = ""
    """The digest of the row whose function raised; empty: it was no row-wise function."""
