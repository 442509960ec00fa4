"""Which of many channels has the lowest watermark, at a cost that hardly grows with their number.

A heap whose entries may be of a time that has passed: they are dropped when they come to its top, or are the more. It
does not know which channels take part: whoever uses it says so. Mirrors the heap of aligned channels in Flink's
StatusWatermarkValve.
"""

from __future__ import annotations

import heapq

SPARE_ENTRIES = 64
"""So many entries of a time that has passed stay, besides one for each channel."""


class LowestWatermark:
    """The watermarks of channels by their number. Not thread-safe."""

    def __init__(self) -> None:
        self._reached_ms: dict[int, int] = {}
        self._heap: list[tuple[int, int]] = []

    def set(self, channel: int, watermark_ms: int) -> None:
        """Take a channel in, or let one that takes part rise."""
        self._reached_ms[channel] = watermark_ms
        heapq.heappush(self._heap, (watermark_ms, channel))
        if len(self._heap) > 2 * len(self._reached_ms) + SPARE_ENTRIES:
            self._heap = [(reached_ms, known) for known, reached_ms in self._reached_ms.items()]
            heapq.heapify(self._heap)

    def remove(self, channel: int) -> None:
        """Leave a channel out from now on, if it takes part."""
        self._reached_ms.pop(channel, None)

    @property
    def lowest(self) -> tuple[int, int] | None:
        """The lowest watermark, in milliseconds, and its channel; None when no channel takes part."""
        heap, reached_ms = self._heap, self._reached_ms
        while heap and reached_ms.get(heap[0][1]) != heap[0][0]:
            heapq.heappop(heap)
        return heap[0] if heap else None
