"""How many rows a task takes from its input at once: as many as it works through in `TARGET_MS`.

Between two batches a task looks at its mail and lets barriers pass; a function that takes a millisecond for every row
would otherwise keep an unaligned barrier waiting for seconds. Fast tasks are never limited. The limit falls at once to
what the last batch says, and doubles with every batch that needed less than half of the time, so that a pause of the
machine is forgotten soon. Takes the role of Flink's BufferDebloater, on the consumer's side: there buffers shrink, here
batches are cut.
"""

from __future__ import annotations

TARGET_MS = 8
"""With a few hops and the upload, an unaligned checkpoint takes less than 50 ms."""
UNLIMITED = 1 << 62


class BatchSizeLimit:
    """Decides how many rows the batches of one task may have."""

    def __init__(self) -> None:
        self.rows = UNLIMITED
        """Rows to be taken at once, at most."""
        self._taken = 0
        """Rows of the batch that the last step took; 0: it took none."""
        self._began_ms = 0

    def batch_taken(self, rows: int) -> None:
        """The step that began last takes a batch of so many rows."""
        self._taken = rows

    def step_begins(self, now_ms: int) -> bool:
        """The step before has ended. Returns whether the limit changed."""
        rows, took_ms = self._taken, now_ms - self._began_ms
        self._taken, self._began_ms = 0, now_ms
        if not rows:
            return False
        before = self.rows
        if took_ms > TARGET_MS:
            self.rows = max(1, rows * TARGET_MS // took_ms)
        elif rows >= self.rows and took_ms * 2 < TARGET_MS:
            self.rows = min(UNLIMITED, self.rows * 2)
        return self.rows != before
