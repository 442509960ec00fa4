"""How far the sources of an alignment group may go: the least of their watermarks, and what each may be ahead of it.

Decides that every report is answered, to its sender, with what the group allows just then; so there is no timer, and a
subtask that does not report learns nothing. Reports of attempts that are over count no longer, at the latest after a
while. A source that has not seen a row holds the others back, one that is idle or has ended does not. Mirrors Flink's
SourceCoordinator with its CoordinatorStore of watermark groups.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from snapline.dataflow.elements import MAX_WATERMARK_MS, MIN_WATERMARK_MS
from snapline.dataflow.ids import ExecutionAttemptID
from snapline.dataflow.wire.messages import AlignWatermarks, ReportWatermark

LOOK_AGAIN_MS = 200
"""All reports of a group are looked through at the latest after this, and whenever the least one rises."""


MAX_GROUPS = 1_000
"""Groups of a job that are kept; a source of one more goes on alone."""


@dataclass(slots=True)
class _Group:
    watermarks: dict[ExecutionAttemptID, int] = field(default_factory=dict)
    least_ms: int = MAX_WATERMARK_MS
    computed_at_ms: int = MIN_WATERMARK_MS


class WatermarkAlignment:
    """All groups of one job."""

    def __init__(self, is_live: Callable[[ExecutionAttemptID], bool]) -> None:
        """`is_live`: whether an attempt is a current one that is not over."""
        self._is_live = is_live
        self._groups: dict[str, _Group] = {}

    def report(self, message: ReportWatermark, now_ms: int) -> AlignWatermarks:
        """A source subtask says how far it is; the answer goes back to it."""
        group = self._groups.get(message.group) or _Group()
        if len(self._groups) < MAX_GROUPS:
            self._groups[message.group] = group
        before = group.watermarks.get(message.attempt_id)
        group.watermarks[message.attempt_id] = message.watermark_ms
        if before == group.least_ms or now_ms >= group.computed_at_ms + LOOK_AGAIN_MS:
            group.watermarks = {
                attempt_id: watermark_ms
                for attempt_id, watermark_ms in group.watermarks.items()
                if attempt_id == message.attempt_id or self._is_live(attempt_id)
            }
            group.least_ms = min(group.watermarks.values())
            group.computed_at_ms = now_ms
        group.least_ms = min(group.least_ms, message.watermark_ms)
        allowed_ms = min(group.least_ms + message.max_drift_ms, MAX_WATERMARK_MS)
        return AlignWatermarks(message.job_id, message.attempt_id, allowed_ms)
