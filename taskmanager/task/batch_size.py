"""How many rows a task takes at once from one of its inputs: as many as it works through in `TARGET_MS`.

Between two batches a task looks at its mail and lets barriers pass; a function that takes a millisecond for every row
would otherwise keep an unaligned barrier waiting for seconds. Fast tasks are never limited. What a row costs is what it
cost in the cheapest of the last `LOOKED_AT` batches that were large enough to say so: a first slow batch sets the limit
at once, while a pause of the machine within one batch of many fast ones, which has nothing to do with its rows, does
not cut those that follow into pieces of a row. The limit doubles with every batch that needed less than half of the
time. What a batch costs whatever its rows, a request to a model or a database, is told from batches of other sizes: cut
into rows, it would be paid for each of them, so rows may take as long again as it does. Takes the role of Flink's
BufferDebloater, on the consumer's side: there buffers shrink, here batches are cut.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

TARGET_MS = 8
"""With a few hops and the upload, an unaligned checkpoint takes less than 50 ms."""
UNLIMITED = 1 << 62
LOOKED_AT = 4
"""So many slow batches in a row are no pause of the machine, but the rows."""


class BatchSizeLimit:
    """Decides how many rows the batches of one input of a task may have."""

    def __init__(self) -> None:
        self.rows = UNLIMITED
        """Rows to be taken at once, at most."""
        self._taken = 0
        self._began_ms = 0
        self._before: deque[tuple[int, int]] = deque(maxlen=LOOKED_AT - 1)
        """Rows of the last batches, and how long each took."""
        self._fixed_ms = 0
        """What a batch costs whatever its rows, if that is much."""

    def batch_taken(self, rows: int, began_ms: int) -> None:
        """A step that began at this time takes a batch of so many rows."""
        self._taken, self._began_ms = rows, began_ms

    def step_ends(self, now_ms: int) -> bool:
        """The step that took the last batch has ended. Returns whether the limit changed."""
        rows, took_ms = self._taken, now_ms - self._began_ms
        self._fixed_ms = self._without_rows([*self._before, (rows, took_ms)])
        target_ms = max(TARGET_MS, self._fixed_ms)
        fitting = self._fitting(rows, took_ms)
        before = self.rows
        if took_ms - self._fixed_ms > target_ms:
            said = (self._fitting(of, of_ms) for of, of_ms in self._before if of >= fitting)
            least = 2 if rows == 1 else 1  # one row alone does not say whether it was the row
            self.rows = min(before, max(least, fitting, *said))
        elif rows >= self.rows and (took_ms - self._fixed_ms) * 2 < target_ms:
            self.rows = min(UNLIMITED, self.rows * 2)
        self._before.append((rows, took_ms))
        return self.rows != before

    def _fitting(self, rows: int, took_ms: int) -> int:
        """How many rows fit into the target, at the cost of a row in this batch."""
        return rows * max(TARGET_MS, self._fixed_ms) // max(took_ms - self._fixed_ms, 1)

    def _without_rows(self, batches: Sequence[tuple[int, int]]) -> int:
        """What a batch without rows would have cost, by the smallest and the largest of these; known from before, where
        all are about as large. Each has cost as much at least. Less than half of the target counts as the rows'."""
        (few, few_ms), (many, many_ms) = min(batches), max(batches)
        fixed_ms = self._fixed_ms
        if many >= 2 * few:
            fixed_ms = few_ms - max(0, many_ms - few_ms) * few // (many - few)
        fixed_ms = min(fixed_ms, *(took_ms for _, took_ms in batches))
        return fixed_ms if fixed_ms * 2 > TARGET_MS else 0
