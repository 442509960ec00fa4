"""Statistics: what is remembered, and what survives a restart."""

from __future__ import annotations

import math

import pytest

from snapline.coordinator.checkpoint.statistics.stats import (
    CheckpointStatsCounts,
    CheckpointStatsStatus,
    CheckpointStatsTracker,
    RestoredCheckpointStats,
)
from snapline.coordinator.checkpoint.statistics.stats_persistence import (
    DETAILED_CHECKPOINTS,
    StatisticsUnreadable,
    decode_statistics,
    encode_statistics,
)
from snapline.coordinator.checkpoint.statistics.stats_summary import WINDOW_SIZE, StatsSummary
from snapline.dataflow.elements import SnapshotType
from snapline.dataflow.ids import CheckpointID, JobVertexID
from snapline.dataflow.wire.messages import CheckpointMetrics

VERTEX = JobVertexID("v")


def tracker_with_story() -> CheckpointStatsTracker:
    """Five checkpoints, a savepoint, a failure, a restore, one in progress."""
    tracker = CheckpointStatsTracker(10)
    for number in range(1, 6):
        stats = tracker.report_pending(CheckpointID(number), SnapshotType.CHECKPOINT, number * 1000, {VERTEX: 2})
        for subtask in range(2):
            metrics = CheckpointMetrics(
                sync_duration_ms=subtask, bytes_processed_during_alignment=5, bytes_persisted_during_alignment=7
            )
            stats.report_subtask(VERTEX, subtask, number * 1000 + 10 + subtask, number * 100, metrics)
        tracker.report_completed(CheckpointID(number), number * 1000 + 10 * number, f"chk-{number}")
    tracker.report_pending(CheckpointID(6), SnapshotType.SAVEPOINT, 6000, {VERTEX: 2})
    tracker.report_completed(CheckpointID(6), 6100, "file:///s")
    tracker.report_pending(CheckpointID(7), SnapshotType.CHECKPOINT, 7000, {VERTEX: 2})
    tracker.report_failed(CheckpointID(7), 7500, "CHECKPOINT_EXPIRED", "too slow")
    tracker.report_failed_without_in_progress("no id")
    tracker.report_restored(RestoredCheckpointStats(CheckpointID(5), SnapshotType.CHECKPOINT, 8000, "chk-5"))
    tracker.report_pending(CheckpointID(8), SnapshotType.CHECKPOINT, 9000, {VERTEX: 2})
    return tracker


def test_latest_by_kind() -> None:
    """A savepoint is not the latest checkpoint."""
    snapshot = tracker_with_story().create_snapshot()

    latest = (snapshot.latest_completed, snapshot.latest_savepoint, snapshot.latest_failed, snapshot.latest_restored)
    assert [stats.checkpoint_id for stats in latest if stats is not None] == [5, 6, 7, 5]


def test_why_none_was_triggered_is_known_until_one_is() -> None:
    """Such a checkpoint has no id, and so no place in the history."""
    tracker = tracker_with_story()
    assert tracker.create_snapshot().refusal == ""
    tracker.report_failed_without_in_progress("No checkpoint id could be drawn: the disk is full")
    assert tracker.create_snapshot().refusal == "No checkpoint id could be drawn: the disk is full"
    tracker.report_failed_without_in_progress("")  # somebody asked for a savepoint, and has got the answer
    assert tracker.create_snapshot().refusal == "No checkpoint id could be drawn: the disk is full"
    tracker.report_pending(CheckpointID(9), SnapshotType.CHECKPOINT, 9500, {VERTEX: 2})
    assert tracker.create_snapshot().refusal == ""


def test_details_of_one_checkpoint() -> None:
    """Totals and every subtask's own figures."""
    stats = tracker_with_story().create_snapshot().find(CheckpointID(5))

    assert stats is not None
    assert (stats.totals.state_size_bytes, stats.totals.processed_data_bytes, stats.totals.persisted_data_bytes) == (
        1000,
        10,
        14,
    )
    assert [report[1] for report in stats.reports] == [0, 1]
    assert stats.duration_ms(0) == 50


def test_snapshot_stays_the_same_until_something_changes() -> None:
    """Asking costs nothing."""
    tracker = tracker_with_story()
    before = tracker.create_snapshot()

    assert tracker.create_snapshot() is before
    tracker.report_failed(CheckpointID(8), 9500, "CHECKPOINT_DECLINED")
    assert tracker.create_snapshot() is not before


def test_history_is_bounded() -> None:
    """The oldest goes; the latest of a kind can still be found."""
    tracker = CheckpointStatsTracker(2)
    tracker.report_pending(CheckpointID(1), SnapshotType.SAVEPOINT, 0, {})
    tracker.report_completed(CheckpointID(1), 1, "s")
    for number in (2, 3):
        tracker.report_pending(CheckpointID(number), SnapshotType.CHECKPOINT, 0, {})
        tracker.report_completed(CheckpointID(number), 1, "c")

    snapshot = tracker.create_snapshot()

    assert [stats.checkpoint_id for stats in snapshot.history] == [3, 2]
    assert snapshot.find(CheckpointID(1)) is snapshot.latest_savepoint


def test_restart_goes_on_counting() -> None:
    """A checkpoint that was in progress has failed with its coordinator; everything else is as it was."""
    before = tracker_with_story()
    assert before.note_failures(2, {"out": 1}) and not before.note_failures(2, {"out": 1})

    after = decode_statistics(encode_statistics(before), 10)

    old, new = before.create_snapshot(), after.create_snapshot()
    assert new.counts == CheckpointStatsCounts(restored=1, total=9, in_progress=0, completed=6, failed=3)
    assert [stats.checkpoint_id for stats in new.history] == [stats.checkpoint_id for stats in old.history]
    assert new.history[0].status is CheckpointStatsStatus.FAILED
    assert new.latest_restored == old.latest_restored
    assert (new.duration, new.state_size) == (old.duration, old.state_size)
    assert new.latest_completed is not None
    assert old.latest_completed is not None
    assert new.latest_completed.totals == old.latest_completed.totals
    assert (after.job_restarts, after.operator_failures) == (2, {"out": 1})


def test_figures_that_come_to_more_than_is_written_down_are_cut() -> None:
    """Two TaskManagers that say the greatest number, or one in two checkpoints, broke the JobMaster, four times in all,
    and the job failed."""
    tracker = CheckpointStatsTracker(10)
    most = (1 << 63) - 1
    for number, said in ((1, most), (2, most), (3, -1 - most)):
        stats = tracker.report_pending(CheckpointID(number), SnapshotType.CHECKPOINT, 1000, {VERTEX: 2})
        for subtask in range(2):
            metrics = CheckpointMetrics(
                bytes_processed_during_alignment=said, bytes_persisted_during_alignment=said, sync_duration_ms=said
            )
            stats.report_subtask(VERTEX, subtask, 1010, most, metrics)
        tracker.report_completed(CheckpointID(number), 1020, f"chk-{number}")

    read = decode_statistics(encode_statistics(tracker), 10).create_snapshot()

    totals = [stats.totals for stats in reversed(read.history)]
    assert [each.state_size_bytes for each in totals] == [most] * 3
    assert [each.processed_data_bytes for each in totals] == [most, most, -most]
    assert (read.state_size.sum, read.persisted_data.sum, read.persisted_data.count) == (most, most, 2)


def test_only_the_newest_keep_their_details() -> None:
    """Statistics of a large job stay small on disk."""
    before = tracker_with_story()
    stats = before.report_pending(CheckpointID(9), SnapshotType.CHECKPOINT, 9500, {VERTEX: 3})
    measured = (
        CheckpointMetrics(),
        CheckpointMetrics(1, 0, 3, 0, 5, 0, unaligned=True),
        CheckpointMetrics(0, 2, 0, 4, 0, 6),
    )
    for subtask, metrics in enumerate(measured):
        stats.report_subtask(VERTEX, subtask, 9600, 0, metrics)

    after = decode_statistics(encode_statistics(before), 10)

    assert [report[-1] for report in after.history[-1].reports] == list(measured)
    detailed = [stats.checkpoint_id for stats in after.history if stats.subtasks_by_vertex]
    assert detailed == [stats.checkpoint_id for stats in before.history[-DETAILED_CHECKPOINTS:]]


def test_unreadable_statistics_are_told_apart() -> None:
    """The caller starts anew."""
    with pytest.raises(StatisticsUnreadable, match="start anew"):
        decode_statistics(b"\xff\xff\xff", 10)


def test_summary_figures() -> None:
    """Negative values mean that nothing was measured."""
    summary = StatsSummary()
    for value in (10, -1, 20, 30):
        summary.add(value)
    figures = summary.snapshot()

    assert (figures.count, figures.sum, figures.minimum, figures.maximum, figures.average) == (3, 60, 10, 30, 20)
    assert (figures.quantile(0.0), figures.quantile(0.5), figures.quantile(1.0)) == (10, 20, 30)
    assert (figures.quantile(0.25), figures.quantile(0.625), figures.quantile(0.75)) == (10, 25, 30)


def test_summary_of_nothing() -> None:
    """No division by zero."""
    figures = StatsSummary().snapshot()

    assert (figures.count, figures.average) == (0, 0)
    assert math.isnan(figures.quantile(0.5))


def test_percentiles_of_a_hundred_values_are_within_one_of_them() -> None:
    """As in Flink: the least percentile was two, and the greatest of ten values was none of the slowest."""
    summary = StatsSummary()
    for value in range(1, 101):
        summary.add(value)
    of_hundred = summary.snapshot()
    of_ten = StatsSummary(window=range(1, 11)).snapshot()

    assert [of_hundred.quantile(share) for share in (0.01, 0.5, 0.99)] == pytest.approx([1.01, 50.5, 99.99])
    assert [of_ten.quantile(share) for share in (0.05, 0.95)] == [1, 10]


def test_percentiles_are_over_a_window() -> None:
    """Old values leave it; count and extremes stay."""
    summary = StatsSummary()
    for value in range(WINDOW_SIZE + 10):
        summary.add(value)
    figures = summary.snapshot()

    assert figures.count == WINDOW_SIZE + 10
    assert figures.minimum == 0
    assert figures.quantile(0.0) == 10
