"""Checkpoints and savepoints as Flink's REST API shows them; a pure translation like that of jobs.

Flink keeps one summary over all completed checkpoints that it remembers; ours is over those in the history that the
coordinator gives.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from snapline.coordinator.web.flink_jobs import Json, distribution, throwable
from snapline.dataflow import config
from snapline.dataflow.config import Configuration
from snapline.protos import checkpoint_pb2
from snapline.protos import client_pb2 as pb

NO_INTERVAL = 9_223_372_036_854_775_807
"""What Flink says for a job without periodic checkpoints."""

STATUSES = {
    pb.CHECKPOINT_STATUS_IN_PROGRESS: "IN_PROGRESS",
    pb.CHECKPOINT_STATUS_COMPLETED: "COMPLETED",
    pb.CHECKPOINT_STATUS_FAILED: "FAILED",
}
SAVEPOINTS = {
    checkpoint_pb2.SNAPSHOT_TYPE_SAVEPOINT: "SAVEPOINT",
    checkpoint_pb2.SNAPSHOT_TYPE_SAVEPOINT_SUSPEND: "SYNC_SAVEPOINT",
    checkpoint_pb2.SNAPSHOT_TYPE_SAVEPOINT_TERMINATE: "SYNC_SAVEPOINT",
}


def checkpointing_statistics(found: pb.ListCheckpointsResponse) -> Json:
    """`/jobs/:jobid/checkpoints`: counts, summary, the latest of each kind, history."""
    counts = found.counts
    return {
        "counts": {
            "restored": counts.restored,
            "total": counts.triggered,
            "in_progress": counts.in_progress,
            "completed": counts.completed,
            "failed": counts.failed,
        },
        "summary": _summary(found.history),
        "latest": {
            "completed": checkpoint_statistics(found.latest_completed) if found.HasField("latest_completed") else None,
            "savepoint": checkpoint_statistics(found.latest_savepoint) if found.HasField("latest_savepoint") else None,
            "failed": checkpoint_statistics(found.latest_failed) if found.HasField("latest_failed") else None,
            "restored": _restored(found),
        },
        "history": [checkpoint_statistics(each) for each in found.history],
    }


def _summary(history: Iterable[pb.CheckpointOverview]) -> Json:
    completed = [each for each in history if each.status == pb.CHECKPOINT_STATUS_COMPLETED]
    return {
        "checkpointed_size": distribution(each.checkpointed_size_bytes for each in completed),
        "state_size": distribution(each.state_size_bytes for each in completed),
        "end_to_end_duration": distribution(each.end_to_end_duration_ms for each in completed),
        "alignment_buffered": distribution(0 for _ in completed),
        "processed_data": distribution(each.processed_data_bytes for each in completed),
        "persisted_data": distribution(each.persisted_data_bytes for each in completed),
    }


def _restored(found: pb.ListCheckpointsResponse) -> Json | None:
    if not found.restored_timestamp_ms:
        return None
    directory = found.restored_path.removesuffix("/_metadata").rpartition("/")[2]
    return {
        "id": found.restored_checkpoint_id,
        "restore_timestamp": found.restored_timestamp_ms,
        "is_savepoint": not directory.startswith("chk-"),
        "external_path": found.restored_path,
    }


def checkpoint_statistics(overview: pb.CheckpointOverview, details: pb.CheckpointDetails | None = None) -> Json:
    """One checkpoint; with `details` also its tasks, as `/jobs/:jobid/checkpoints/details/:checkpointid` has them."""
    status = STATUSES[overview.status]
    savepoint = SAVEPOINTS.get(overview.snapshot_type)
    acknowledged_ms = overview.trigger_timestamp_ms + overview.end_to_end_duration_ms
    found: Json = {
        "className": status.lower(),
        "id": overview.checkpoint_id,
        "status": status,
        "is_savepoint": savepoint is not None,
        "savepointFormat": "CANONICAL" if savepoint is not None else None,
        "trigger_timestamp": overview.trigger_timestamp_ms,
        "latest_ack_timestamp": acknowledged_ms if overview.subtasks_acknowledged else -1,
        "checkpointed_size": overview.checkpointed_size_bytes,
        "state_size": overview.state_size_bytes,
        "end_to_end_duration": overview.end_to_end_duration_ms,
        "alignment_buffered": 0,
        "processed_data": overview.processed_data_bytes,
        "persisted_data": overview.persisted_data_bytes,
        "num_subtasks": overview.subtasks_total,
        "num_acknowledged_subtasks": overview.subtasks_acknowledged,
        "checkpoint_type": savepoint or "CHECKPOINT",
        "tasks": {} if details is None else {each.vertex_id: _task(overview, each) for each in details.vertices},
    }
    if status == "COMPLETED":
        found |= {"external_path": overview.path, "discarded": overview.discarded}
    if status == "FAILED":
        message = overview.failure.message or None
        found |= {"failure_timestamp": acknowledged_ms, "failure_message": message}
    return found


def task_statistics(details: pb.CheckpointDetails, vertex: pb.VertexCheckpointDetails) -> Json:
    """`/jobs/:jobid/checkpoints/details/:checkpointid/subtasks/:vertexid`: what each subtask did for a checkpoint."""
    overview = details.overview
    done = [subtask for subtask in vertex.subtasks if subtask.acknowledge_timestamp_ms]
    measured = [subtask.metrics for subtask in done]
    summary = {
        "checkpointed_size": distribution(_written(subtask) for subtask in done),
        "state_size": distribution(subtask.state_size_bytes for subtask in done),
        "end_to_end_duration": distribution(_end_to_end(overview, subtask) for subtask in done),
        "checkpoint_duration": {
            "sync": distribution(each.sync_duration_ms for each in measured),
            "async": distribution(each.async_duration_ms for each in measured),
        },
        "alignment": {
            "buffered": distribution(0 for _ in measured),
            "processed": distribution(each.bytes_processed_during_alignment for each in measured),
            "persisted": distribution(each.bytes_persisted_during_alignment for each in measured),
            "duration": distribution(each.alignment_duration_ms for each in measured),
        },
        "start_delay": distribution(each.checkpoint_start_delay_ms for each in measured),
    }
    subtasks = [_subtask(overview, subtask) for subtask in vertex.subtasks]
    return {**_task(overview, vertex), "summary": summary, "subtasks": subtasks}


def _task(overview: pb.CheckpointOverview, vertex: pb.VertexCheckpointDetails) -> Json:
    done = [subtask for subtask in vertex.subtasks if subtask.acknowledge_timestamp_ms]
    return {
        "id": overview.checkpoint_id,
        "status": STATUSES[overview.status],
        "latest_ack_timestamp": max((subtask.acknowledge_timestamp_ms for subtask in done), default=-1),
        "checkpointed_size": sum(_written(subtask) for subtask in done),
        "state_size": sum(subtask.state_size_bytes for subtask in done),
        "end_to_end_duration": max((_end_to_end(overview, subtask) for subtask in done), default=-1),
        "alignment_buffered": 0,
        "processed_data": sum(subtask.metrics.bytes_processed_during_alignment for subtask in done),
        "persisted_data": sum(subtask.metrics.bytes_persisted_during_alignment for subtask in done),
        "num_subtasks": len(vertex.subtasks),
        "num_acknowledged_subtasks": len(done),
    }


def _subtask(overview: pb.CheckpointOverview, subtask: pb.SubtaskCheckpointDetails) -> Json:
    if not subtask.acknowledge_timestamp_ms:
        return {"className": "pending", "index": subtask.subtask_index, "status": "pending_or_failed"}
    measured = subtask.metrics
    return {
        "className": "completed",
        "index": subtask.subtask_index,
        "status": "completed",
        "ack_timestamp": subtask.acknowledge_timestamp_ms,
        "end_to_end_duration": _end_to_end(overview, subtask),
        "checkpointed_size": _written(subtask),
        "state_size": subtask.state_size_bytes,
        "checkpoint": {"sync": measured.sync_duration_ms, "async": measured.async_duration_ms},
        "alignment": {
            "buffered": 0,
            "processed": measured.bytes_processed_during_alignment,
            "persisted": measured.bytes_persisted_during_alignment,
            "duration": measured.alignment_duration_ms,
        },
        "start_delay": measured.checkpoint_start_delay_ms,
        "unaligned_checkpoint": measured.unaligned,
        "aborted": False,
    }


def _written(subtask: pb.SubtaskCheckpointDetails) -> int:
    """What was written for this checkpoint; a coordinator of an earlier version does not say it."""
    told = subtask.HasField("checkpointed_size_bytes")
    return subtask.checkpointed_size_bytes if told else subtask.state_size_bytes


def _end_to_end(overview: pb.CheckpointOverview, subtask: pb.SubtaskCheckpointDetails) -> int:
    return subtask.acknowledge_timestamp_ms - overview.trigger_timestamp_ms


def _is_known(setting: tuple[str, str]) -> bool:
    """Whether this version has the setting, which another one may have stored with a job that has ended."""
    try:
        Configuration([setting])
    except config.ConfigurationError:
        return False
    return True


def checkpoint_config(details: pb.JobDetails) -> Json:
    """`/jobs/:jobid/checkpoints/config`: the settings of the job's checkpoints."""
    settings = Configuration(dict(filter(_is_known, details.configuration.items())))
    retention = settings.get_option(config.CHECKPOINTING_RETENTION)
    return {
        "mode": settings.get_option(config.CHECKPOINTING_MODE).lower(),
        "interval": settings.get_option(config.CHECKPOINTING_INTERVAL) or NO_INTERVAL,
        "timeout": settings.get_option(config.CHECKPOINTING_TIMEOUT),
        "min_pause": settings.get_option(config.CHECKPOINTING_MIN_PAUSE),
        "max_concurrent": settings.get_option(config.CHECKPOINTING_MAX_CONCURRENT),
        "externalization": {
            "enabled": retention != "NO_EXTERNALIZED_CHECKPOINTS",
            "delete_on_cancellation": retention == "DELETE_ON_CANCELLATION",
        },
        "state_backend": settings.get_option(config.STATE_BACKEND),
        "checkpoint_storage": settings.get_option(config.CHECKPOINTS_DIRECTORY),
        "unaligned_checkpoints": settings.get_option(config.CHECKPOINTING_UNALIGNED),
        "tolerable_failed_checkpoints": settings.get_option(config.CHECKPOINTING_TOLERABLE_FAILURES),
        "aligned_checkpoint_timeout": settings.get_option(config.CHECKPOINTING_ALIGNED_TIMEOUT),
        "checkpoints_after_tasks_finish": settings.get_option(config.CHECKPOINTING_AFTER_TASKS_FINISH),
        "state_changelog_enabled": False,
        "changelog_periodic_materialization_interval": 0,
        "changelog_storage": "",
    }


def savepoint_status(operation: pb.SavepointOperation) -> Json:
    """`/jobs/:jobid/savepoints/:triggerid`: how far a savepoint is, and where it lies or why there is none."""
    if operation.status == pb.CHECKPOINT_STATUS_IN_PROGRESS:
        return {"status": {"id": "IN_PROGRESS"}, "operation": None}
    result = operation.result
    if result.HasField("failure"):
        cause = throwable("CheckpointException", result.failure.message)
        return {"status": {"id": "COMPLETED"}, "operation": {"failure-cause": cause}}
    return {"status": {"id": "COMPLETED"}, "operation": {"location": result.path}}


def history_vertex(details: pb.CheckpointDetails, vertex_id: str) -> pb.VertexCheckpointDetails | None:
    """The vertex of a checkpoint; None: the checkpoint has none of this id."""
    found: Sequence[pb.VertexCheckpointDetails] = [each for each in details.vertices if each.vertex_id == vertex_id]
    return found[0] if found else None
