"""Some of the rows that flow past one operator, for somebody who looks on.

Decides what a tap costs: it takes the first rows of the next batch, once, no more of them than it was allowed, and no
more bytes, and then it is gone. So nothing is left in a task when whoever looked has died. What an operator takes in is
shown instead of what it puts out where that is asked for, or nothing goes out. Nothing in Flink.
"""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa

from snapline.dataflow.wire.messages import TapTask

MOST_OPEN = 16
"""So many taps may wait for rows at one operator; the oldest of more is forgotten."""


TapAnswer = Callable[[TapTask, bytes, int, int], None]
"""Told the tap, rows as an Arrow stream, how many rows these are, and how many the batch has."""


class RowTaps:
    """The taps that wait for rows at one operator."""

    def __init__(self) -> None:
        self._waiting: list[tuple[TapTask, TapAnswer]] = []

    @property
    def wait(self) -> bool:
        """Return whether somebody waits for rows."""
        return bool(self._waiting)

    def add(self, tap: TapTask, answer: TapAnswer) -> None:
        """Somebody wants to see rows."""
        del self._waiting[: max(0, len(self._waiting) + 1 - MOST_OPEN)]
        self._waiting.append((tap, answer))

    def show(self, batch: pa.RecordBatch) -> None:
        """A batch flows past; all that waited have their answer with it."""
        waiting, self._waiting = self._waiting, []
        for tap, answer in waiting:
            answer(tap, *first_rows(batch, tap.max_rows, tap.max_bytes), batch.num_rows)


def first_rows(batch: pa.RecordBatch, max_rows: int, max_bytes: int) -> tuple[bytes, int]:
    """An Arrow stream with as many of the first rows as are allowed, and how many they are: none, but the schema, where
    a single one has too many bytes."""
    rows = min(batch.num_rows, max(0, max_rows))
    while True:
        written = _written(batch.slice(0, rows))
        if len(written) <= max_bytes or rows == 0:
            return written, rows
        rows = min(rows // 2, max(1, rows * max_bytes // len(written)))


def _written(batch: pa.RecordBatch) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return bytes(sink.getvalue().to_pybytes())
