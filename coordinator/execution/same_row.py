"""Poison rows: a user's function that fails the same way at the same row again will not be mended by a restart.

The core here counts failures in a row that are equal in operator, message, traceback and row. A row is known by its
digest, since after a restart it lies elsewhere; where a failure has none, by its position in the input. Only
the function of a user is meant, not a service that is away. There is no counterpart in Flink, where such a job restarts
for ever.
"""

from __future__ import annotations

from snapline.dataflow.failures import Blame, SerializedFailure

ROW = "row "
"""What the position of a failure in a row-wise function says."""


class SameRowFailures:
    """The counter of the failures of one job that one row has caused."""

    def __init__(self, limit: int) -> None:
        """`limit`: of equal failures; 0: none."""
        self._limit = limit
        self._last: tuple[str, str, str, str] | None = None
        self._count = 0

    def is_poison(self, failure: SerializedFailure) -> bool:
        """Take one failure; whether the job is not to be restarted because of it."""
        if failure.blame is not Blame.USER or ROW not in failure.position:
            self._last, self._count = None, 0
            return False
        row = failure.row or failure.position
        kind = (failure.operator_uid, failure.summary, failure.traceback, row)
        self._count = self._count + 1 if kind == self._last else 1
        self._last = kind
        return 0 < self._limit <= self._count

    @property
    def why_not(self) -> str:
        """For the failure of the job."""
        return (
            f"the same row has failed the same way {self._count} times, so a restart does not help: mend the function or filter the "
            "row; restart-strategy.same-row.max-failures = 0 tries for ever"
        )
