"""What the log says of a job's checkpoints: one line for each that completed, failed, or was refused.

Decides when there is a line, and what is in it. A periodic trigger that is refused over and over says so once, and once
more when a periodic checkpoint is under way again; one that is only put off until the minimum pause is over is not
refused. Knows no log. Flink writes such lines where things happen (CheckpointCoordinator, CheckpointRequestDecider),
one for each periodic request that is dropped.
"""

from __future__ import annotations

from snapline.coordinator.checkpoint.effects import CheckpointCoordinatorEffect, ReportCheckpoint
from snapline.coordinator.checkpoint.request_decider import CheckpointTriggerRequest
from snapline.coordinator.checkpoint.statistics.stats import CheckpointStats
from snapline.dataflow.failures import CheckpointFailureReason

_EXPECTED = frozenset(
    {
        CheckpointFailureReason.MINIMUM_TIME_BETWEEN_CHECKPOINTS,
        CheckpointFailureReason.PERIODIC_SCHEDULER_SHUTDOWN,
        CheckpointFailureReason.CHECKPOINT_COORDINATOR_SUSPEND,
        CheckpointFailureReason.CHECKPOINT_COORDINATOR_SHUTDOWN,
    }
)
"""Why a periodic request ends without anything to say: it comes later, or is not wanted any more."""


class CheckpointReports:
    """The lines of one job."""

    def __init__(self) -> None:
        self._refused = 0
        """Periodic requests in a row."""
        self._refused_since_ms = 0
        self._has_warned = False

    def completed(self, stats: CheckpointStats, now_ms: int) -> ReportCheckpoint:
        """A checkpoint is durable. Durations are from its trigger until now."""
        return ReportCheckpoint(
            "checkpoint completed",
            (
                ("checkpoint_id", stats.checkpoint_id),
                ("kind", stats.snapshot_type.value),
                ("duration_ms", stats.duration_ms(now_ms)),
                ("state_size_bytes", stats.totals.state_size_bytes),
            ),
        )

    def failed(
        self, stats: CheckpointStats, reason: CheckpointFailureReason, detail: str, now_ms: int
    ) -> ReportCheckpoint:
        """A checkpoint that had its id will never complete."""
        return ReportCheckpoint(
            "checkpoint failed",
            (
                ("checkpoint_id", stats.checkpoint_id),
                ("kind", stats.snapshot_type.value),
                ("duration_ms", stats.duration_ms(now_ms)),
                ("reason", reason.name),
                ("detail", detail),
            ),
        )

    def refused(
        self, request: CheckpointTriggerRequest, reason: CheckpointFailureReason, detail: str, now_ms: int
    ) -> list[CheckpointCoordinatorEffect]:
        """A request ended before it had an id. That no id could be drawn is a warning: a service is away."""
        said, is_warning = "checkpoint refused", reason is CheckpointFailureReason.TRIGGER_CHECKPOINT_FAILURE
        if request.is_periodic:
            if reason in _EXPECTED:
                return []
            said = "periodic checkpoints are refused"
            if self._refused == 0:
                self._refused_since_ms = now_ms
            self._refused += 1
            if self._refused > 1 and (self._has_warned or not is_warning):
                return []
            self._has_warned = is_warning
        details = (("kind", request.properties.snapshot_type.value), ("reason", reason.name), ("detail", detail))
        return [ReportCheckpoint(said, details, is_warning=is_warning)]

    def begun(self, request: CheckpointTriggerRequest, now_ms: int) -> list[CheckpointCoordinatorEffect]:
        """A request has its id."""
        if not request.is_periodic or self._refused == 0:
            return []
        details = (("refused", self._refused), ("duration_ms", now_ms - self._refused_since_ms))
        self._refused = 0
        return [ReportCheckpoint("periodic checkpoints go on", details)]

    def stopped(self) -> None:
        """No periodic request is expected any more."""
        self._refused = 0
