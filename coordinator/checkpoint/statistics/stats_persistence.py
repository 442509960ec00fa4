"""Checkpoint statistics as bytes, so that a coordinator that restarts, or its successor, goes on counting.

Decides the form (`CheckpointStatistics` of `protos/metadata.proto`) and how much detail is kept: totals for all,
details by subtask for the newest checkpoints of the history, as long as these are not too many to be written on the way
of every checkpoint.
"""

from __future__ import annotations

from operator import attrgetter

from snapline.coordinator.checkpoint.statistics.stats import (
    CheckpointStats,
    CheckpointStatsCounts,
    CheckpointStatsStatus,
    CheckpointStatsTracker,
    CheckpointTotals,
    RestoredCheckpointStats,
)
from snapline.coordinator.checkpoint.statistics.stats_summary import StatsSummary
from snapline.dataflow.elements import SnapshotType
from snapline.dataflow.errors import SnaplineError
from snapline.dataflow.ids import CheckpointID, JobVertexID
from snapline.dataflow.wire.messages import CheckpointMetrics
from snapline.dataflow.wire.protobuf_fields import enum_tables
from snapline.protos import checkpoint_pb2
from snapline.protos import metadata_pb2 as pb

DETAILED_CHECKPOINTS = 3
"""Nobody looks further back across a restart."""
DETAILED_SUBTASKS = 1_000
"""Over all checkpoints: about 10 ms of work and 30 kB each time. Larger jobs keep totals alone."""

_TYPE_TO_NUMBER, _TYPE_FROM_NUMBER = enum_tables(
    SnapshotType, pb.CheckpointStats.DESCRIPTOR.fields_by_name["snapshot_type"]
)
_STATUS_TO_NUMBER, _STATUS_FROM_NUMBER = enum_tables(
    CheckpointStatsStatus, pb.CheckpointStats.DESCRIPTOR.fields_by_name["status"]
)
_METRIC_FIELDS = tuple(field.name for field in checkpoint_pb2.CheckpointMetrics.DESCRIPTOR.fields)
_metric_values = attrgetter(*_METRIC_FIELDS)


class StatisticsUnreadable(SnaplineError):
    """What was written down cannot be read; statistics start anew, checkpoints are not concerned."""


def encode_statistics(tracker: CheckpointStatsTracker) -> bytes:
    """Everything that the tracker knows."""
    message = pb.CheckpointStatistics(
        total=tracker.counts.total,
        completed=tracker.counts.completed,
        failed=tracker.counts.failed,
        restored=tracker.counts.restored,
        job_restarts=tracker.job_restarts,
        operator_failures=tracker.operator_failures,
    )
    detailed: set[CheckpointID] = set()
    subtasks = 0
    for stats in reversed(tracker.history[-DETAILED_CHECKPOINTS:]):
        subtasks += len(stats.reports)
        if subtasks <= DETAILED_SUBTASKS:
            detailed.add(stats.checkpoint_id)
    for stats in tracker.history:
        _encode_stats(stats, message.history.add(), detailed=stats.checkpoint_id in detailed)
    for latest, target in (
        (tracker.latest_completed, message.latest_completed),
        (tracker.latest_savepoint, message.latest_savepoint),
        (tracker.latest_failed, message.latest_failed),
    ):
        if latest is not None:
            _encode_stats(latest, target, detailed=False)
    restored = tracker.latest_restored
    if restored is not None:
        message.latest_restored.checkpoint_id = restored.checkpoint_id
        message.latest_restored.snapshot_type = _TYPE_TO_NUMBER[restored.snapshot_type]  # type: ignore[assignment]
        message.latest_restored.restore_timestamp_ms = restored.restore_timestamp_ms
        message.latest_restored.location = restored.location
    _encode_summary(tracker.duration, message.duration)
    _encode_summary(tracker.state_size, message.state_size)
    _encode_summary(tracker.checkpointed_size, message.checkpointed_size)
    _encode_summary(tracker.processed_data, message.processed_data)
    _encode_summary(tracker.persisted_data, message.persisted_data)
    return message.SerializeToString()


def decode_statistics(data: bytes, history_size: int) -> CheckpointStatsTracker:
    """A tracker that goes on where the written one stopped. Raises StatisticsUnreadable."""
    try:
        message = pb.CheckpointStatistics.FromString(data)
        return _decode(message, history_size)
    except Exception as error:
        raise StatisticsUnreadable(f"checkpoint statistics cannot be read ({error}); they start anew") from error


def _decode(message: pb.CheckpointStatistics, history_size: int) -> CheckpointStatsTracker:
    tracker = CheckpointStatsTracker(history_size)
    tracker.job_restarts = message.job_restarts
    tracker.operator_failures = dict(message.operator_failures)
    interrupted = message.total - message.completed - message.failed
    tracker.counts = CheckpointStatsCounts(
        restored=message.restored,
        total=message.total,
        completed=message.completed,
        failed=message.failed + max(0, interrupted),
    )
    tracker.resume([_decode_stats(entry) for entry in message.history])
    if message.HasField("latest_completed"):
        tracker.latest_completed = _decode_stats(message.latest_completed)
    if message.HasField("latest_savepoint"):
        tracker.latest_savepoint = _decode_stats(message.latest_savepoint)
    if message.HasField("latest_failed"):
        tracker.latest_failed = _decode_stats(message.latest_failed)
    if message.HasField("latest_restored"):
        tracker.latest_restored = RestoredCheckpointStats(
            CheckpointID(message.latest_restored.checkpoint_id),
            _snapshot_type(message.latest_restored.snapshot_type),
            message.latest_restored.restore_timestamp_ms,
            message.latest_restored.location,
        )
    tracker.duration = _decode_summary(message.duration)
    tracker.state_size = _decode_summary(message.state_size)
    is_told = message.HasField("checkpointed_size")
    tracker.checkpointed_size = _decode_summary(message.checkpointed_size if is_told else message.state_size)
    tracker.processed_data = _decode_summary(message.processed_data)
    tracker.persisted_data = _decode_summary(message.persisted_data)
    return tracker


def _encode_stats(stats: CheckpointStats, message: pb.CheckpointStats, *, detailed: bool) -> None:
    message.checkpoint_id = stats.checkpoint_id
    message.snapshot_type = _TYPE_TO_NUMBER[stats.snapshot_type]  # type: ignore[assignment]
    message.status = _STATUS_TO_NUMBER[stats.status]  # type: ignore[assignment]
    message.trigger_timestamp_ms = stats.trigger_timestamp_ms
    message.end_timestamp_ms = stats.end_timestamp_ms
    message.location = stats.location
    message.failure_reason = stats.failure_reason
    message.failure_detail = stats.failure_detail
    totals = stats.totals
    message.state_size_bytes = totals.state_size_bytes
    message.processed_data_bytes = totals.processed_data_bytes
    message.persisted_data_bytes = totals.persisted_data_bytes
    message.number_of_subtasks = totals.number_of_subtasks
    message.number_of_acknowledged_subtasks = totals.number_of_acknowledged_subtasks
    message.checkpointed_size_bytes = totals.checkpointed_size_bytes
    if not detailed:
        return
    tasks = {
        vertex_id: message.tasks.add(vertex_id=vertex_id, number_of_subtasks=count)
        for vertex_id, count in stats.subtasks_by_vertex.items()
    }
    for vertex_id, subtask_index, ack_ms, size_bytes, written_bytes, metrics in stats.reports:
        if vertex_id not in tasks:
            continue
        subtask = tasks[vertex_id].subtasks.add(
            subtask_index=subtask_index,
            ack_timestamp_ms=ack_ms,
            state_size_bytes=size_bytes,
            checkpointed_size_bytes=written_bytes,
        )
        for name, value in zip(_METRIC_FIELDS, _metric_values(metrics), strict=True):
            if value:  # as nothing is read, so nothing need be written: most figures of most subtasks are 0
                setattr(subtask.metrics, name, value)


def _decode_stats(message: pb.CheckpointStats) -> CheckpointStats:
    status = CheckpointStatsStatus(_STATUS_FROM_NUMBER[message.status].value)
    reason, detail = message.failure_reason, message.failure_detail
    if status is CheckpointStatsStatus.IN_PROGRESS:
        status = CheckpointStatsStatus.FAILED
        reason, detail = "CHECKPOINT_COORDINATOR_SHUTDOWN", "The coordinator was restarted."
    stats = CheckpointStats(
        checkpoint_id=CheckpointID(message.checkpoint_id),
        snapshot_type=_snapshot_type(message.snapshot_type),
        trigger_timestamp_ms=message.trigger_timestamp_ms,
        subtasks_by_vertex={JobVertexID(task.vertex_id): task.number_of_subtasks for task in message.tasks},
        status=status,
        end_timestamp_ms=message.end_timestamp_ms or message.trigger_timestamp_ms,
        location=message.location,
        failure_reason=reason,
        failure_detail=detail,
        final_totals=CheckpointTotals(
            message.number_of_subtasks,
            message.number_of_acknowledged_subtasks,
            message.state_size_bytes,
            message.processed_data_bytes,
            message.persisted_data_bytes,
            _written(message),
        ),
    )
    for task in message.tasks:
        for subtask in task.subtasks:
            metrics = CheckpointMetrics(**{name: getattr(subtask.metrics, name) for name in _METRIC_FIELDS})
            stats.report_subtask(
                JobVertexID(task.vertex_id),
                subtask.subtask_index,
                subtask.ack_timestamp_ms,
                subtask.state_size_bytes,
                metrics,
                _written(subtask),
            )
    return stats


def _written(message: pb.CheckpointStats | pb.SubtaskStats) -> int:
    """Return what of the state was written for that checkpoint; an older release did not tell it."""
    told = message.HasField("checkpointed_size_bytes")
    return message.checkpointed_size_bytes if told else message.state_size_bytes


def _snapshot_type(number: int) -> SnapshotType:
    kind = _TYPE_FROM_NUMBER[number]
    if not isinstance(kind, SnapshotType):
        raise ValueError(f"there is no snapshot type {number}")  # noqa: TRY004 - the value is wrong, not its type
    return kind


def _encode_summary(summary: StatsSummary, message: pb.StatsSummary) -> None:
    figures = summary.snapshot()
    message.count, message.sum = figures.count, figures.sum
    message.minimum, message.maximum = figures.minimum, figures.maximum
    message.window.extend(summary.window)


def _decode_summary(message: pb.StatsSummary) -> StatsSummary:
    return StatsSummary(message.count, message.sum, message.minimum, message.maximum, message.window)
