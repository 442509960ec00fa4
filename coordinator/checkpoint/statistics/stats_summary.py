"""Least, greatest, mean and percentiles of one figure over all completed checkpoints.

Count, sum, minimum and maximum are over everything; percentiles over a window of the last values. Negative values mean
"not measured" and are left out. Mirrors Flink's StatsSummary (MinMaxAvgStats before 1.15) with its histogram.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

WINDOW_SIZE = 1_000
"""Values that percentiles are computed from."""
_MOST = (1 << 63) - 1


def with_room(figure: int) -> int:
    """The figure, or the nearest one that 64 bits have room for, in which it is written down and shown: what
    TaskManagers say comes to anything.

    >>> with_room(7), with_room(1 << 64) == (1 << 63) - 1
    (7, True)
    """
    return max(-_MOST, min(_MOST, figure))


def quantile(ordered: Sequence[float], share: float) -> float:
    """The value that `share` (0 to 1) of these does not exceed, interpolated between neighbours; of few values the
    extreme one. NaN for none.

    >>> quantile([1, 2, 3, 4], 0.5), quantile([1, 2, 3, 4], 0.9)
    (2.5, 4.0)
    """
    if not ordered:
        return float("nan")
    position = min(max(share * (len(ordered) + 1) - 1, 0), len(ordered) - 1)
    below = int(position)
    above = min(below + 1, len(ordered) - 1)
    return float(ordered[below] + (ordered[above] - ordered[below]) * (position - below))


@dataclass(frozen=True, slots=True)
class StatsSummarySnapshot:
    """The figures, as of one moment."""

    count: int
    sum: int
    minimum: int
    maximum: int
    window: tuple[int, ...] = ()
    """The last values in ascending order, from which quantiles are read."""

    @property
    def average(self) -> int:
        """Rounded down; 0 without values."""
        return self.sum // self.count if self.count else 0

    def quantile(self, share: float) -> float:
        """The value that `share` (0 to 1) of the window does not exceed. NaN if empty."""
        return quantile(self.window, share)


class StatsSummary:
    """Collects values of one figure."""

    def __init__(
        self, count: int = 0, total: int = 0, minimum: int = 0, maximum: int = 0, window: Iterable[int] = ()
    ) -> None:
        """Empty, or as it was when it was written down."""
        self._count = count
        self._sum = total
        self._minimum = minimum
        self._maximum = maximum
        self._window: deque[int] = deque(window, maxlen=WINDOW_SIZE)

    @property
    def window(self) -> tuple[int, ...]:
        """The last values, oldest first."""
        return tuple(self._window)

    def add(self, value: int) -> None:
        """One more value; a negative one is left out."""
        if value < 0:
            return
        self._minimum = value if self._count == 0 else min(self._minimum, value)
        self._maximum = max(self._maximum, value)
        self._count += 1
        self._sum = with_room(self._sum + value)
        self._window.append(value)

    def snapshot(self) -> StatsSummarySnapshot:
        """Return the figures as they are now, which later values do not change."""
        return StatsSummarySnapshot(self._count, self._sum, self._minimum, self._maximum, tuple(sorted(self._window)))
