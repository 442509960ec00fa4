"""What happened to the checkpoints of a job: counts, the last ones in detail, summaries, the latest of each kind.

Decides what is remembered and for how long; never influences a checkpoint. Mirrors Flink's
DefaultCheckpointStatsTracker, CheckpointStatsCounts, CheckpointStatsHistory and StatsSummary. Unlike Flink's it can be
written down and read again (`stats_persistence`), so that it survives the coordinator's process; a checkpoint that was
in progress then is failed.

The hot path is `CheckpointStats.report_subtask`: one tuple appended per acknowledgement.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum

from snapline.coordinator.checkpoint.statistics.stats_summary import StatsSummary, StatsSummarySnapshot, with_room
from snapline.dataflow.elements import SnapshotType
from snapline.dataflow.ids import CheckpointID, JobVertexID
from snapline.dataflow.wire.messages import CheckpointMetrics

MAX_REMEMBERED_IN_PROGRESS = 10_000
"""Bound of checkpoints in progress that are tracked beyond the history; far above any limit of concurrent ones."""


class CheckpointStatsStatus(Enum):
    """How far a checkpoint got."""

    IN_PROGRESS = "IN_PROGRESS"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"


SubtaskReport = tuple[JobVertexID, int, int, int, int, CheckpointMetrics]
"""(vertex, subtask index, time of the acknowledgement, state size in bytes, what of it was written for this checkpoint,
what the task measured)."""


@dataclass(frozen=True, slots=True)
class CheckpointTotals:
    """Sums of a checkpoint's figures over all subtasks."""

    number_of_subtasks: int
    number_of_acknowledged_subtasks: int
    state_size_bytes: int
    processed_data_bytes: int
    """Bytes processed while barriers were awaited."""
    persisted_data_bytes: int
    """In-flight bytes that became part of the checkpoint."""
    checkpointed_size_bytes: int
    """What of the state was written for this checkpoint; the rest lies in files of earlier ones."""


@dataclass(frozen=True, slots=True)
class CheckpointStats:
    """One checkpoint. Everything but the list of reports is fixed; an end makes a new object."""

    checkpoint_id: CheckpointID
    snapshot_type: SnapshotType
    trigger_timestamp_ms: int
    subtasks_by_vertex: Mapping[JobVertexID, int]
    """Subtasks that have to acknowledge."""
    status: CheckpointStatsStatus = CheckpointStatsStatus.IN_PROGRESS
    end_timestamp_ms: int = 0
    location: str = ""
    failure_reason: str = ""
    failure_detail: str = ""
    reports: list[SubtaskReport] = field(default_factory=list)
    """In order of the acknowledgements; grows while in progress. Empty where only totals were kept."""
    final_totals: CheckpointTotals | None = None
    """The sums, fixed when the checkpoint ends; None until then."""
    finished: frozenset[tuple[JobVertexID, int]] = frozenset()
    """Subtasks that had finished, and take no part. Not kept beyond this process."""

    def subtasks_that_take_part(self) -> dict[JobVertexID, list[int]]:
        """The subtasks that have to acknowledge, and those that did, of each vertex. Where it is not known who had
        finished, whoever has not acknowledged may be another one."""
        acknowledged: dict[JobVertexID, set[int]] = {}
        for vertex_id, index, *_ in self.reports:
            acknowledged.setdefault(vertex_id, set()).add(index)
        found = {}
        for vertex_id, number in self.subtasks_by_vertex.items():
            done = acknowledged.get(vertex_id, set())
            others = (n for n in itertools.count() if n not in done and (vertex_id, n) not in self.finished)
            found[vertex_id] = sorted([*done, *itertools.islice(others, max(0, number - len(done)))])
        return found

    def report_subtask(
        self,
        vertex_id: JobVertexID,
        subtask_index: int,
        ack_ms: int,
        size_bytes: int,
        metrics: CheckpointMetrics,
        written_bytes: int | None = None,
    ) -> None:
        """Take the figures of one subtask, whose acknowledgement has come. `written_bytes`: what of its state was
        written for this checkpoint; None: all."""
        written_bytes = size_bytes if written_bytes is None else written_bytes
        self.reports.append((vertex_id, subtask_index, ack_ms, size_bytes, written_bytes, metrics))

    @property
    def totals(self) -> CheckpointTotals:
        """Sums over all subtasks, so far or at the end."""
        if self.final_totals is not None:
            return self.final_totals
        return CheckpointTotals(
            number_of_subtasks=sum(self.subtasks_by_vertex.values()),
            number_of_acknowledged_subtasks=len(self.reports),
            state_size_bytes=with_room(sum(report[3] for report in self.reports)),
            processed_data_bytes=with_room(sum(report[5].bytes_processed_during_alignment for report in self.reports)),
            persisted_data_bytes=with_room(sum(report[5].bytes_persisted_during_alignment for report in self.reports)),
            checkpointed_size_bytes=with_room(sum(report[4] for report in self.reports)),
        )

    def duration_ms(self, now_ms: int) -> int:
        """From the trigger to the end, or to now."""
        return max(0, (self.end_timestamp_ms or now_ms) - self.trigger_timestamp_ms)


@dataclass(frozen=True, slots=True)
class RestoredCheckpointStats:
    """One restore of the job from a checkpoint or savepoint."""

    checkpoint_id: CheckpointID
    snapshot_type: SnapshotType
    restore_timestamp_ms: int
    location: str


@dataclass(frozen=True, slots=True)
class CheckpointStatsCounts:
    """How many checkpoints have ended in each way since the job was submitted."""

    restored: int = 0
    total: int = 0
    in_progress: int = 0
    completed: int = 0
    failed: int = 0


@dataclass(frozen=True, slots=True)
class CheckpointStatsSnapshot:
    """Everything, as of one moment; entries in progress go on growing."""

    counts: CheckpointStatsCounts
    history: tuple[CheckpointStats, ...]
    """The latest checkpoints, the newest one first."""
    latest_completed: CheckpointStats | None
    """The latest completed checkpoint that is not a savepoint."""
    latest_savepoint: CheckpointStats | None
    latest_failed: CheckpointStats | None
    latest_restored: RestoredCheckpointStats | None
    refusal: str
    """Why no checkpoint could be triggered since the latest one that was; empty: none was refused."""
    duration: StatsSummarySnapshot
    state_size: StatsSummarySnapshot
    checkpointed_size: StatsSummarySnapshot
    processed_data: StatsSummarySnapshot
    persisted_data: StatsSummarySnapshot

    def find(self, checkpoint_id: CheckpointID) -> CheckpointStats | None:
        """Details of one checkpoint, while it is in the history or the latest of its kind."""
        latest = (self.latest_completed, self.latest_savepoint, self.latest_failed)
        for stats in (*self.history, *latest):
            if stats is not None and stats.checkpoint_id == checkpoint_id:
                return stats
        return None


class CheckpointStatsTracker:
    """Statistics of one job's checkpoints."""

    def __init__(self, history_size: int) -> None:
        """Remembers `history_size` checkpoints in detail, none with 0; the latest of each kind always."""
        if history_size < 0:
            raise ValueError(f"the checkpoint history needs 0 or more entries, not {history_size}")
        self.history_size = history_size
        self.counts = CheckpointStatsCounts()
        self.latest_completed: CheckpointStats | None = None
        self.latest_savepoint: CheckpointStats | None = None
        self.latest_failed: CheckpointStats | None = None
        self.latest_restored: RestoredCheckpointStats | None = None
        self.refusal = ""
        self.duration = StatsSummary()
        self.state_size = StatsSummary()
        self.checkpointed_size = StatsSummary()
        self.processed_data = StatsSummary()
        self.persisted_data = StatsSummary()
        self.job_restarts = 0
        """How often the job was restarted, under all leaders; written down with the statistics."""
        self.operator_failures: dict[str, int] = {}
        """How often each operator failed its task, by its uid, under all leaders; written down likewise."""
        self._history: deque[CheckpointStats] = deque(maxlen=history_size or None)
        """Oldest first; unused with a history of 0."""
        self._in_progress: dict[CheckpointID, CheckpointStats] = {}
        self._snapshot: CheckpointStatsSnapshot | None = None

    @property
    def history(self) -> Sequence[CheckpointStats]:
        """The last checkpoints, oldest first."""
        return tuple(self._history) if self.history_size else ()

    def report_pending(
        self,
        checkpoint_id: CheckpointID,
        snapshot_type: SnapshotType,
        trigger_timestamp_ms: int,
        subtasks_by_vertex: Mapping[JobVertexID, int],
        finished: frozenset[tuple[JobVertexID, int]] = frozenset(),
    ) -> CheckpointStats:
        """A checkpoint has its id; the returned object takes the acknowledgements."""
        stats = CheckpointStats(
            checkpoint_id, snapshot_type, trigger_timestamp_ms, subtasks_by_vertex, finished=finished
        )
        self.counts = replace(self.counts, total=self.counts.total + 1, in_progress=self.counts.in_progress + 1)
        self._in_progress[checkpoint_id] = stats
        self.refusal = ""
        if len(self._in_progress) > MAX_REMEMBERED_IN_PROGRESS:
            del self._in_progress[next(iter(self._in_progress))]
        if self.history_size:
            self._history.append(stats)
        self._snapshot = None
        return stats

    def report_completed(self, checkpoint_id: CheckpointID, end_timestamp_ms: int, location: str) -> None:
        """Note that a checkpoint has completed, when, and where it lies."""
        self._count_end(completed=1)
        pending = self._in_progress.pop(checkpoint_id, None)
        if pending is None:
            return
        totals = pending.totals
        stats = replace(
            pending,
            status=CheckpointStatsStatus.COMPLETED,
            end_timestamp_ms=end_timestamp_ms,
            location=location,
            final_totals=totals,
        )
        self.duration.add(stats.duration_ms(end_timestamp_ms))
        self.state_size.add(totals.state_size_bytes)
        self.checkpointed_size.add(totals.checkpointed_size_bytes)
        self.processed_data.add(totals.processed_data_bytes)
        self.persisted_data.add(totals.persisted_data_bytes)
        if stats.snapshot_type.is_savepoint:
            self.latest_savepoint = _newer(self.latest_savepoint, stats)
        else:
            self.latest_completed = _newer(self.latest_completed, stats)
        self._replace(stats)

    def report_failed(
        self, checkpoint_id: CheckpointID, end_timestamp_ms: int, failure_reason: str, failure_detail: str = ""
    ) -> None:
        """Note that a checkpoint was aborted, when, and why."""
        self._count_end(failed=1)
        pending = self._in_progress.pop(checkpoint_id, None)
        if pending is None:
            return
        stats = replace(
            pending,
            status=CheckpointStatsStatus.FAILED,
            end_timestamp_ms=end_timestamp_ms,
            failure_reason=failure_reason,
            failure_detail=failure_detail,
            final_totals=pending.totals,
        )
        self.latest_failed = _newer(self.latest_failed, stats)
        self._replace(stats)

    def report_failed_without_in_progress(self, why: str) -> None:
        """A checkpoint failed before it had an id. `why`: empty where whoever asked for it is told."""
        self.refusal = why or self.refusal
        self.counts = replace(self.counts, total=self.counts.total + 1, failed=self.counts.failed + 1)
        self._snapshot = None

    def report_restored(self, restored: RestoredCheckpointStats) -> None:
        """The job started from a checkpoint."""
        self.counts = replace(self.counts, restored=self.counts.restored + 1)
        self.latest_restored = restored
        self._snapshot = None

    def note_failures(self, job_restarts: int, operator_failures: Mapping[str, int]) -> bool:
        """Keep how often the job was restarted and its operators failed; whether that is new."""
        if self.job_restarts == job_restarts and self.operator_failures == operator_failures:
            return False
        self.job_restarts, self.operator_failures = job_restarts, dict(operator_failures)
        return True

    def create_snapshot(self) -> CheckpointStatsSnapshot:
        """Everything; the same object until something changes."""
        if self._snapshot is None:
            self._snapshot = CheckpointStatsSnapshot(
                counts=self.counts,
                history=tuple(reversed(self.history)),
                latest_completed=self.latest_completed,
                latest_savepoint=self.latest_savepoint,
                latest_failed=self.latest_failed,
                latest_restored=self.latest_restored,
                refusal=self.refusal,
                duration=self.duration.snapshot(),
                state_size=self.state_size.snapshot(),
                checkpointed_size=self.checkpointed_size.snapshot(),
                processed_data=self.processed_data.snapshot(),
                persisted_data=self.persisted_data.snapshot(),
            )
        return self._snapshot

    def resume(self, history: Sequence[CheckpointStats]) -> None:
        """Take over a history that was written down; what was in progress then has failed."""
        for stats in history:
            if self.history_size:
                self._history.append(stats)
        self._snapshot = None

    def _count_end(self, *, completed: int = 0, failed: int = 0) -> None:
        self.counts = replace(
            self.counts,
            in_progress=max(0, self.counts.in_progress - 1),
            completed=self.counts.completed + completed,
            failed=self.counts.failed + failed,
        )
        self._snapshot = None

    def _replace(self, stats: CheckpointStats) -> None:
        if self.history_size:
            for position in range(len(self._history) - 1, -1, -1):
                if self._history[position].checkpoint_id == stats.checkpoint_id:
                    self._history[position] = stats
                    return


def _newer(known: CheckpointStats | None, stats: CheckpointStats) -> CheckpointStats:
    return stats if known is None or stats.checkpoint_id > known.checkpoint_id else known
