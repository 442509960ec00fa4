"""What tasks are told of a checkpoint: the message of each, made from one decision for many.

With acknowledgements the hot path of a large job: what is equal for all tasks is taken apart once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from coordinator.checkpoint.effects import (
    SendNotifyCheckpointAborted,
    SendNotifyCheckpointComplete,
    SendTriggerCheckpoint,
)
from dataflow.ids import ExecutionAttemptID, JobID
from dataflow.messages import NotifyCheckpointAborted, NotifyCheckpointComplete, TriggerCheckpoint

Notification = SendTriggerCheckpoint | SendNotifyCheckpointComplete | SendNotifyCheckpointAborted


def messages_of(job_id: JobID, notification: Notification) -> Callable[[ExecutionAttemptID], Any]:
    """The message for a task, by its attempt."""
    match notification:
        case SendTriggerCheckpoint(_, checkpoint_id, timestamp_ms, options):
            return lambda attempt: TriggerCheckpoint(job_id, attempt, checkpoint_id, timestamp_ms, options)
        case SendNotifyCheckpointComplete(_, checkpoint_id, timestamp_ms, subsumed_id):
            return lambda attempt: NotifyCheckpointComplete(job_id, attempt, checkpoint_id, timestamp_ms, subsumed_id)
        case SendNotifyCheckpointAborted(_, checkpoint_id, latest_id, timestamp_ms):
            return lambda attempt: NotifyCheckpointAborted(job_id, attempt, checkpoint_id, latest_id, timestamp_ms)
