"""A source that keeps step with others: it says how far it is, and stops where its group lets it go no further.

Decides when the source's watermark is reported (every update interval, at once when it begins), and whether the source,
or one of its splits, is ahead of what the JobMaster has allowed. An idle source, and one that has ended, hold nobody
back. It does not know who else is in the group. Mirrors the part of Flink's SourceOperator that deals with
WatermarkAlignmentEvents.
"""

from __future__ import annotations

from collections.abc import Callable

from snapline.dataflow.api.watermarks import WatermarkAlignmentParams
from snapline.dataflow.elements import MAX_WATERMARK_MS, MIN_WATERMARK_MS

ReportWatermarkCallback = Callable[[str, int, int], None]
"""(group, watermark, how far ahead of the group this source may be)"""


class WatermarkAligner:
    """Keeps one source subtask in step with its group's watermarks."""

    def __init__(self, params: WatermarkAlignmentParams, report: ReportWatermarkCallback) -> None:
        self._params = params
        self._report = report
        self._next_ms: int | None = None
        self.max_watermark_ms = MIN_WATERMARK_MS
        """Up to here the source may go; before the JobMaster has answered, it reads only so far that it has a
        watermark."""

    def on_time(self, now_ms: int, watermark_ms: int, *, is_idle: bool) -> None:
        """Report, if it is time."""
        if self._next_ms is None or now_ms >= self._next_ms:
            self._next_ms = now_ms + self._params.update_interval_ms
            self._say(MAX_WATERMARK_MS if is_idle else watermark_ms)

    def end(self) -> None:
        """Report that the source has ended, so that nobody waits for it."""
        self._say(MAX_WATERMARK_MS)

    def _say(self, watermark_ms: int) -> None:
        self._report(self._params.group, watermark_ms, self._params.max_drift_ms)

    def is_ahead(self, watermark_ms: int) -> bool:
        """Whether the source (or split) with this watermark has to wait."""
        return watermark_ms > self.max_watermark_ms

    @property
    def wake_at_ms(self) -> int:
        """When the next report is due."""
        return self._next_ms or 0
