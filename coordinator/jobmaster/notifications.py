"""What tasks are told of a checkpoint: one message for all of them, made from one decision.

With acknowledgements the hot path of a large job: a message for each is made when it is written, of pieces (`snapline.dataflow.wire.envelope_bytes`).
"""

from __future__ import annotations

from snapline.coordinator.checkpoint.effects import (
    SendNotifyCheckpointAborted,
    SendNotifyCheckpointComplete,
    SendTriggerCheckpoint,
)
from snapline.dataflow.ids import JobID
from snapline.dataflow.wire.messages import NotifyCheckpointAborted, NotifyCheckpointComplete, TriggerCheckpoint

Notification = SendTriggerCheckpoint | SendNotifyCheckpointComplete | SendNotifyCheckpointAborted
Message = TriggerCheckpoint | NotifyCheckpointComplete | NotifyCheckpointAborted


def message_for_tasks(job_id: JobID, notification: Notification) -> Message:
    """The message for the first task that is named; those for the others differ in `attempt_id` alone."""
    first = notification.attempt_ids[0]
    match notification:
        case SendTriggerCheckpoint(_, checkpoint_id, timestamp_ms, options):
            return TriggerCheckpoint(job_id, first, checkpoint_id, timestamp_ms, options)
        case SendNotifyCheckpointComplete(_, checkpoint_id, timestamp_ms, subsumed_id):
            return NotifyCheckpointComplete(job_id, first, checkpoint_id, timestamp_ms, subsumed_id)
        case SendNotifyCheckpointAborted(_, checkpoint_id, latest_id, timestamp_ms):
            return NotifyCheckpointAborted(job_id, first, checkpoint_id, latest_id, timestamp_ms)
