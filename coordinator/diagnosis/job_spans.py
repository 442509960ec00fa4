"""Spans of a job for traces: each checkpoint, the time until it first ran, each restart and each rescale.

Decides from what JobMaster and checkpoint statistics say after each batch of events; it does not know who exports the
spans. Names and attributes are those of Flink's trace reporters where it has them (Checkpoint, JobInitialization);
JobRestart and JobRescale last from the end of RUNNING to the next RUNNING.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from snapline.coordinator.checkpoint.statistics.stats import CheckpointStats, CheckpointStatsStatus
from snapline.coordinator.jobmaster.job_past import RootException
from snapline.dataflow.ids import CheckpointID
from snapline.dataflow.wire.messages import JobStatus


@dataclass(frozen=True, slots=True)
class Span:
    """Something that took from one moment to another, in milliseconds since the epoch."""

    name: str
    begin_ms: int
    end_ms: int
    attributes: Mapping[str, str | int] = field(default_factory=dict)
    error: str = ""
    """Why it ended badly; empty: it did not."""


class JobSpans:
    """The spans of one job under one leader."""

    def __init__(self, submitted_ms: int | None, history: Sequence[CheckpointStats]) -> None:
        """`submitted_ms`: None for a job of a former leader, which may run already. Checkpoints that have ended in
        `history` belong to that one."""
        self._began_ms = submitted_ms
        """When the job began to wait for RUNNING; None: it does not wait."""
        self._has_run = submitted_ms is None
        self._parallelism: tuple[int, ...] = ()
        """Subtasks of each vertex when the job ran last."""
        self._last_failure = 0
        self._ended = _ended(history)

    def status_seen(
        self,
        status: JobStatus,
        parallelism: Sequence[int],
        failures: Sequence[RootException],
        now_ms: int,
    ) -> list[Span]:
        """What has ended by now, given the job's status, the subtasks of each vertex, and its failures, the latest
        last."""
        if status is JobStatus.RESTARTING and self._began_ms is None:
            self._began_ms = now_ms
        has_settled = status in (JobStatus.RUNNING, JobStatus.SUSPENDED) or status.is_globally_terminal
        if self._began_ms is None or not has_settled:
            if status is JobStatus.RUNNING:
                self._parallelism = tuple(parallelism)
            return []
        new = [each for each in failures if each.number > self._last_failure]
        self._last_failure = max((each.number for each in failures), default=self._last_failure)
        span = self._waited(status, tuple(parallelism), new, self._began_ms, now_ms)
        self._began_ms = None
        self._parallelism = tuple(parallelism)
        self._has_run = True
        return [span]

    def checkpoints_seen(self, history: Sequence[CheckpointStats]) -> list[Span]:
        """The checkpoints that have ended since the last call."""
        before, self._ended = self._ended, _ended(history)
        new = self._ended - before
        return [_checkpoint(stats) for stats in history if stats.checkpoint_id in new] if new else []

    def _waited(
        self,
        status: JobStatus,
        parallelism: tuple[int, ...],
        failures: Sequence[RootException],
        began_ms: int,
        now_ms: int,
    ) -> Span:
        attributes: dict[str, str | int] = {"status": status.value}
        if failures:
            cause = failures[0]
            found = {"cause": cause.failure.summary, "task": cause.task_name, "taskManager": cause.resource_id}
            attributes |= {name: value for name, value in found.items() if value}
            attributes["failures"] = len(failures)
            began_ms = min(began_ms, cause.timestamp_ms) if self._has_run else began_ms
        if not self._has_run:
            name = "JobInitialization"
        elif not failures and self._parallelism and parallelism != self._parallelism:
            name = "JobRescale"
            attributes |= {"from": sum(self._parallelism), "to": sum(parallelism)}
        else:
            name = "JobRestart"
        return Span(
            name, began_ms, now_ms, attributes, "" if status is JobStatus.RUNNING else f"the job is {status.value}"
        )


def _ended(history: Sequence[CheckpointStats]) -> frozenset[CheckpointID]:
    return frozenset(each.checkpoint_id for each in history if each.status is not CheckpointStatsStatus.IN_PROGRESS)


def _checkpoint(stats: CheckpointStats) -> Span:
    totals = stats.totals
    attributes: dict[str, str | int] = {
        "checkpointId": stats.checkpoint_id,
        "checkpointType": stats.snapshot_type.name,
        "checkpointStatus": stats.status.value,
        "checkpointedSize": totals.checkpointed_size_bytes,
        "inFlightSize": totals.persisted_data_bytes,
        "subtasks": totals.number_of_subtasks,
        "acknowledgedSubtasks": totals.number_of_acknowledged_subtasks,
    }
    error = ""
    if stats.status is CheckpointStatsStatus.FAILED:
        error = ": ".join(each for each in (stats.failure_reason, stats.failure_detail) if each)
    return Span("Checkpoint", stats.trigger_timestamp_ms, stats.end_timestamp_ms, attributes, error)
