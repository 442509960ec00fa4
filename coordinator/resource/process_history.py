"""What the process of one TaskManager has used lately, and whether its memory grows without a break.

Memory grows when the least of each part of the last minute is well above that of the part before: what is freed again
between two looks is no growth, and neither is what a process takes once, when it warms up. A bounded number of looks is
kept, a few seconds apart. No clock is read here. Flink leaves this to the JVM's own tools; Python's memory has no bound
that would show a leak by itself.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from itertools import pairwise

from snapline.dataflow.wire.messages import ProcessFigures

WINDOW_MS = 60_000
MIN_WINDOW_MS = 16_000
"""Less says nothing: a job that has just begun loads libraries and fills caches."""
PARTS = 4
"""The parts of the window; the memory has to be larger in each than in the one before."""
SPACING_MS = 1_000
"""Looks that are closer to each other replace each other."""
MIN_GROWTH_BYTES = 48 << 20
MIN_STEP_SHARE = 0.10
"""The share of the growth that each step from one part to the next has: a process that warms up grows less and
less."""
MIN_GROWTH_SHARE = 0.10
"""The share of the memory at the beginning of the window that it has to grow by: a process of ten gigabytes moves by
hundreds of megabytes."""


@dataclass(frozen=True, slots=True)
class MemoryGrowth:
    """How much more memory a process has than at the begin of the window."""

    grown_bytes: int = 0
    """0: it does not grow."""
    over_ms: int = 0


class ProcessHistory:
    """The latest looks at one process."""

    def __init__(self) -> None:
        """Begin without having looked at the process."""
        self.latest = ProcessFigures()
        self.clock_offset_ms = 0
        """How far the clock of its host is ahead of ours."""
        self._looks: deque[tuple[int, int]] = deque(maxlen=2 * WINDOW_MS // SPACING_MS)
        """When, and how much memory."""

    def add(self, figures: ProcessFigures, now_ms: int) -> None:
        """Take the figures of one heartbeat."""
        self.latest = figures
        self.clock_offset_ms = figures.clock_ms - now_ms if figures.clock_ms else 0
        if len(self._looks) > 1 and now_ms - self._looks[-2][0] < SPACING_MS:
            self._looks.pop()
        self._looks.append((now_ms, figures.resident_bytes))
        while self._looks[0][0] < now_ms - WINDOW_MS:
            self._looks.popleft()

    @property
    def growth(self) -> MemoryGrowth:
        """How much the memory has grown without a break, up to the latest look."""
        if not self._looks:
            return MemoryGrowth()
        (begin_ms, before), (end_ms, now) = self._looks[0], self._looks[-1]
        over_ms = end_ms - begin_ms
        least: list[list[int]] = [[] for _ in range(PARTS)]
        for at_ms, resident in self._looks:
            least[min(PARTS - 1, PARTS * (at_ms - begin_ms) // max(1, over_ms))].append(resident)
        if over_ms < MIN_WINDOW_MS or not all(least):
            return MemoryGrowth()
        lows = [min(part) for part in least]
        grown = now - before
        rises = all(high - low >= grown * MIN_STEP_SHARE for low, high in pairwise(lows))
        if not rises or grown < max(MIN_GROWTH_BYTES, MIN_GROWTH_SHARE * before):
            return MemoryGrowth()
        return MemoryGrowth(grown, over_ms)
