"""How many rows a source may emit by now, as arithmetic: no clock, no sleep.

Decides the permits of one subtask from its share of the rate and the time that it is told; permits are granted in
portions of at least `interval_ms`, so that a slow stream is steady and a fast one not cut into crumbs. After a stall,
at most `burst_ms` of rows are caught up. Mirrors Flink's RateLimiterStrategy.perSecond.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from snapline.dataflow.errors import ConnectorError


def require_rate(described: str, rows_per_second: float | None) -> None:
    """Raise ConnectorError for a rate that is no positive number; None is none.

    >>> require_rate("ParquetSource", "fast")
    Traceback (most recent call last):
    snapline.dataflow.errors.ConnectorError: ParquetSource: rows_per_second must be a positive number, got 'fast'
    """
    if rows_per_second is None:
        return
    is_number = isinstance(rows_per_second, int | float) and not isinstance(rows_per_second, bool)
    if not is_number or not 0 < rows_per_second < math.inf:
        raise ConnectorError(f"{described}: rows_per_second must be a positive number, got {rows_per_second!r}")


@dataclass(slots=True)
class RateLimiter:
    """Permits of one subtask. The first call starts the count.

    >>> limiter = sl_connectors.RateLimiter(rows_per_second=1_000)
    >>> limiter.permitted(now_ms=0, wanted=100), limiter.permitted(now_ms=50, wanted=100)
    (0, 50)
    >>> limiter.wake_at_ms(now_ms=50, wanted=100)
    70
    """

    rows_per_second: float
    interval_ms: int = 20
    burst_ms: int | None = 1000
    """None: everything that was due is caught up, however long the stall."""
    start_ms: int | None = None
    taken: int = 0
    _portion: int = field(init=False, repr=False)
    """The rows of an interval, one at least."""

    def __post_init__(self) -> None:
        self._portion = max(1, self._rows_in(self.interval_ms))

    def permitted(self, now_ms: int, wanted: int) -> int:
        """How many of `wanted` rows may be emitted now; 0 unless at least a portion is due. What is returned is
        taken."""
        if self.start_ms is None:
            self.start_ms = now_ms
        due = self._rows_in(now_ms - self.start_ms)
        if self.burst_ms is not None and due - self.taken > (most := max(1, self._rows_in(self.burst_ms))):
            self.start_ms, self.taken = now_ms, 0  # a stall: the past is forgiven, up to the burst
            return min(wanted, most)
        available = due - self.taken
        if available < wanted and available < self._portion:
            return 0
        granted = min(wanted, available)
        self.taken += granted
        return granted

    def wake_at_ms(self, now_ms: int, wanted: int) -> int:
        """When `permitted` will grant something next."""
        start_ms = now_ms if self.start_ms is None else self.start_ms
        rows = self.taken + min(wanted, self._portion)
        return max(now_ms + 1, start_ms + math.ceil(rows * 1000 / self.rows_per_second))

    def _rows_in(self, duration_ms: int) -> int:
        return int(duration_ms * self.rows_per_second / 1000)
