"""Counters of one task: rows and bytes, and what its time went to.

Decides that the time between two steps counts as what the first of them answered. Time comes in with the steps, in
milliseconds; what is shorter adds up all the same, because only differences of the same clock are added. Mirrors
Flink's TaskIOMetricGroup (busy, back-pressured and idle time).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from snapline.dataflow.elements import MIN_WATERMARK_MS
from snapline.dataflow.ids import ExecutionAttemptID
from snapline.dataflow.wire.messages import TaskMetrics

if TYPE_CHECKING:
    from snapline.taskmanager.task.task_wiring import TaskParts


class TaskMeter:
    """Written by the task's thread, read by any."""

    def __init__(self, attempt_id: ExecutionAttemptID) -> None:
        self._attempt_id = attempt_id
        self._last_ms: int | None = None
        self._last_kind = "worked"
        self._spent_ms = {"worked": 0, "idle": 0, "backpressured": 0, "blocked": 0, "finished": 0}
        self.records_in = 0
        self.bytes_in = 0
        self.watermark_ms = MIN_WATERMARK_MS

    def step_begins(self, now_ms: int) -> None:
        """Time has passed since the last step."""
        if self._last_ms is not None and now_ms > self._last_ms:
            self._spent_ms[self._last_kind] += now_ms - self._last_ms
        self._last_ms = now_ms

    def step_ends(self, kind: str) -> None:
        """Note what kind of progress the step has made."""
        self._last_kind = kind

    def batch_in(self, batch: pa.RecordBatch) -> None:
        """Count the rows and bytes of a batch that came in."""
        self.records_in += batch.num_rows
        self.bytes_in += batch.nbytes

    def metrics(self, parts: TaskParts | None) -> TaskMetrics:
        """All counters. A source counts as records in what its head emitted."""
        writers = parts.writers if parts is not None else ()
        records_in = self.records_in
        if parts is not None and parts.input is None and parts.chain is not None:
            records_in = parts.chain.source_records
        return TaskMetrics(
            attempt_id=self._attempt_id,
            records_in=records_in,
            records_out=sum(writer.records_out for writer in writers),
            bytes_in=self.bytes_in,
            bytes_out=sum(writer.bytes_out for writer in writers),
            busy_ms=self._spent_ms["worked"] + self._spent_ms["blocked"],
            backpressured_ms=self._spent_ms["backpressured"],
            idle_ms=self._spent_ms["idle"],
            watermark_ms=self.watermark_ms,
            accumulators=parts.chain.accumulators if parts is not None and parts.chain is not None else (),
        )
