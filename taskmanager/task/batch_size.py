"""How many rows a task takes at once from one of its inputs: as many as it works through in `TARGET_MS`.

Between two batches a task looks at its mail and lets barriers pass; a function that takes a millisecond for every row
would otherwise keep an unaligned barrier waiting for seconds. Fast tasks are never limited. What a row costs is what it
cost in the cheapest of the last `LOOKED_AT` batches that were large enough to say so: a first slow batch sets the limit
at once, while a pause of the machine within one batch of many fast ones, which has nothing to do with its rows, does
not cut those that follow into pieces of a row. The limit doubles with every batch that needed less than half of the
time. Takes the role of Flink's BufferDebloater, on the consumer's side: there buffers shrink, here batches are cut.
"""

from __future__ import annotations

from collections import deque

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
        """Rows of the last batches, and how many rows of their cost fit into the target."""

    def batch_taken(self, rows: int, began_ms: int) -> None:
        """A step that began at this time takes a batch of so many rows."""
        self._taken, self._began_ms = rows, began_ms

    def step_ends(self, now_ms: int) -> bool:
        """The step that took the last batch has ended. Returns whether the limit changed."""
        rows, took_ms = self._taken, now_ms - self._began_ms
        fitting = rows * TARGET_MS // max(took_ms, 1)
        before = self.rows
        if took_ms > TARGET_MS:
            said = (others for of, others in self._before if of >= fitting)
            self.rows = min(before, max(1, fitting, *said))
        elif rows >= self.rows and took_ms * 2 < TARGET_MS:
            self.rows = min(UNLIMITED, self.rows * 2)
        self._before.append((rows, fitting))
        return self.rows != before
