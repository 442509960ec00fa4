"""What is said of checkpoints when a job is taken over as it runs: to its tasks, and to its checkpoint coordinator.

Decides that what is complete is confirmed to the tasks, that what they have heard of beyond it was pending under a
leader that is gone, and is aborted, and that acknowledgements of it are handed in, so that their files go. Which tasks
are taken over is decided in `reconciliation`. Goes beyond Flink, where a new JobMaster always restarts the job.
"""

from __future__ import annotations

from snapline.coordinator.checkpoint.events import (
    AcknowledgesReceived,
    CheckpointCoordinatorEvent,
    EndOfDataReceived,
    JobHasStopped,
)
from snapline.coordinator.jobmaster.reconciliation import Adoptable
from snapline.dataflow.ids import CheckpointID, JobID
from snapline.dataflow.wire.messages import (
    CheckpointMessage,
    ForTasks,
    NotifyCheckpointAborted,
    NotifyCheckpointComplete,
)


def news_for_tasks(
    adopted: Adoptable, job_id: JobID, latest_id: CheckpointID, now_ms: int
) -> list[ForTasks[CheckpointMessage]]:
    """What the tasks that go on are told; `latest_id`: the latest completed checkpoint, 0 for none."""
    running = adopted.running
    if not running:
        return []
    said: list[ForTasks[CheckpointMessage]] = []
    if latest_id:
        said.append(ForTasks(NotifyCheckpointComplete(job_id, running[0], latest_id, now_ms), running))
    said += [
        ForTasks(NotifyCheckpointAborted(job_id, running[0], aborted_id, latest_id, now_ms), running)
        for aborted_id in adopted.seen_after(latest_id)
    ]
    return said


def news_for_checkpoints(adopted: Adoptable, latest_id: CheckpointID) -> list[CheckpointCoordinatorEvent]:
    """What the checkpoint coordinator is told once it knows the tasks."""
    said: list[CheckpointCoordinatorEvent] = []
    if any(each.report.stopping for each in adopted.executions):
        said.append(JobHasStopped())
    if pending := tuple(message for message in adopted.unconfirmed if message.checkpoint_id > latest_id):
        said.append(AcknowledgesReceived(pending))
    if ended := tuple(each.report.attempt_id for each in adopted.executions if each.report.end_of_data):
        said.append(EndOfDataReceived(ended))
    return said
