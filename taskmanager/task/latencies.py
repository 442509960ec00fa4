"""How long markers were on their way from a source to each operator of this task.

Decides that an operator has one histogram for each source, of so many sources at most, and counts by milliseconds.
Times are those of the steps in which a marker left its source and came in here: on several machines, their clocks
count, as in Flink. Mirrors Flink's LatencyStats, at the granularity `operator`.
"""

from __future__ import annotations

from snapline.dataflow.api.user_metrics import LATENCY, BucketHistogram, MetricValue, value_of
from snapline.dataflow.elements import LatencyMarker

LATENCY_BUCKETS_MS = tuple(digit * 10.0**power for power in range(6) for digit in (1, 2, 5))
"""Upper bounds: 1, 2, 5, 10, ... 500,000 ms."""
MOST_SOURCES = 100
"""Markers of so many pairs of source and operator are measured in one task, and no more."""


class Latencies:
    """Written by the task's thread, read by any."""

    def __init__(self) -> None:
        self._histograms: dict[tuple[str, str], BucketHistogram] = {}

    def note(self, operator_uid: str, marker: LatencyMarker, now_ms: int) -> None:
        """A marker has come to this operator."""
        key = (operator_uid, marker.source_uid)
        histogram = self._histograms.get(key)
        if histogram is None:
            if len(self._histograms) >= MOST_SOURCES:
                return
            histogram = self._histograms[key] = BucketHistogram(LATENCY_BUCKETS_MS)
        histogram.update(max(0, now_ms - marker.marked_ms))

    def travelling(self) -> tuple[MetricValue, ...]:
        """What was measured up to now. From any thread."""
        return tuple(
            value_of(operator, LATENCY, histogram, source)
            for (operator, source), histogram in list(self._histograms.items())
        )
