"""Adapter: scenarios of kind `stats` against snapline.coordinator.checkpoint.statistics.stats."""

from __future__ import annotations

from typing import Any

from snapline.coordinator.checkpoint.statistics.stats import (
    CheckpointStats,
    CheckpointStatsTracker,
    RestoredCheckpointStats,
)
from snapline.coordinator.checkpoint.statistics.stats_summary import StatsSummary
from snapline.dataflow.elements import SnapshotType
from snapline.dataflow.ids import CheckpointID
from tests.conformance.replay import ANY, difference

UNKNOWN = 987_654_321
TYPES = {
    "checkpoint": SnapshotType.CHECKPOINT,
    "savepoint": SnapshotType.SAVEPOINT,
    "sync_savepoint": SnapshotType.SAVEPOINT_SUSPEND,
}


class Harness:
    def __init__(self, config: dict[str, Any]) -> None:
        self.tracker = CheckpointStatsTracker(config.get("history", 10))
        self.samples = StatsSummary()
        self.snapshots: dict[str, Any] = {}

    def play(self, step: dict[str, Any]) -> dict[str, Any]:
        same: dict[str, bool] = {}
        match step:
            case {"pending": number}:
                self.tracker.report_pending(number, TYPES[step.get("type", "checkpoint")], 1, {})
            case {"complete": number}:
                self.tracker.report_completed(number, 2, "")
            case {"fail": number}:
                self.tracker.report_failed(number, 2, "CHECKPOINT_DECLINED")
            case {"restored": number}:
                self.tracker.report_restored(RestoredCheckpointStats(number, SnapshotType.CHECKPOINT, 1, ""))
            case {"complete_unknown": number}:
                self.tracker.report_completed(_unknown(number), 2, "")
            case {"fail_unknown": number}:
                self.tracker.report_failed(_unknown(number), 2, "CHECKPOINT_DECLINED")
            case {"sample": value}:
                for one in value if isinstance(value, list) else [value]:
                    self.samples.add(one)
            case {"snapshot": name}:
                snapshot = self.tracker.create_snapshot()
                same = {other: snapshot is kept for other, kept in self.snapshots.items()}
                self.snapshots[name] = snapshot
            case _:
                raise NotImplementedError(f"step {sorted(step)}")
        return self.observed() | {"same_as": same}

    def observed(self) -> dict[str, Any]:
        snapshot = self.tracker.create_snapshot()
        counts = snapshot.counts
        figures = self.samples.snapshot()
        return {
            "counts": {
                "restored": counts.restored,
                "total": counts.total,
                "in_progress": counts.in_progress,
                "completed": counts.completed,
                "failed": counts.failed,
            },
            "history": snapshot.history,
            "latest_completed": _id(snapshot.latest_completed),
            "latest_savepoint": _id(snapshot.latest_savepoint),
            "latest_failed": _id(snapshot.latest_failed),
            "latest_restored": _id(snapshot.latest_restored),
            "summary_count": snapshot.duration.count,
            "summary": {
                "count": figures.count,
                "sum": figures.sum,
                "min": figures.minimum,
                "minimum": figures.minimum,
                "max": figures.maximum,
                "maximum": figures.maximum,
                "avg": figures.average,
                "average": figures.average,
                **{f"p{share}": figures.quantile(share / 100) for share in (50, 90, 95, 99)},
                "median": figures.quantile(0.5),
            },
            "in_progress_at_least": counts.in_progress,
        }


def _unknown(number: Any) -> CheckpointID:
    return CheckpointID(UNKNOWN if isinstance(number, bool) else number)


def _id(stats: Any) -> int | None:
    return None if stats is None else stats.checkpoint_id


def _history_matches(expected: list[Any], history: tuple[CheckpointStats, ...]) -> bool:
    """Entries are ids, or {id, status}, or {id: status}, or [id, status]."""
    if len(expected) != len(history):
        return False
    for entry, stats in zip(expected, history, strict=True):
        number, status = entry, None
        if isinstance(entry, dict) and len(entry) == 1 and isinstance(next(iter(entry)), int):
            ((number, status),) = entry.items()
        elif isinstance(entry, dict):
            number, status = entry.get("id", entry.get("cp")), entry.get("status", entry.get("state"))
        elif isinstance(entry, list):
            number, status = entry
        if number != stats.checkpoint_id:
            return False
        if status is not None and str(status).upper().replace("-", "_").replace(" ", "_") != stats.status.value:
            return False
    return True


def replay(scenario: dict[str, Any]) -> list[str]:
    """Omitted keys are unchecked, also inside counts and summary."""
    harness = Harness(scenario.get("config", {}))
    failures = []
    for number, step in enumerate(scenario["steps"]):
        got = harness.play(step)
        for key, expected in step.get("expect", {}).items():
            value: Any = got.get(key)
            if expected == ANY:
                continue
            if key == "history":
                right = _history_matches(expected, value)
            elif isinstance(expected, dict):
                right = all(value.get(name) == wanted for name, wanted in expected.items())
            elif key == "in_progress_at_least":
                right = value >= expected
            else:
                right = value == expected
            if not right:
                failures.append(difference(number, key, expected, value))
    return failures
