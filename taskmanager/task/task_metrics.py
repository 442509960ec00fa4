"""Counters of one task: rows and bytes, and what its time went to.

Decides that the time between two steps counts as what the first of them answered. Time comes in with the steps, in
milliseconds; what is shorter adds up all the same, because only differences of the same clock are added. Rates are
those of the last ten seconds, as far as somebody looked: they are differences between two looks, and a step that has
not ended counts as work, so that a task that is stuck in a function of the user's shows as busy. Mirrors Flink's
TaskIOMetricGroup (busy, back-pressured and idle time, and their rates).
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, NamedTuple

from snapline.dataflow.elements import MIN_WATERMARK_MS
from snapline.dataflow.ids import ExecutionAttemptID
from snapline.dataflow.wire.messages import QueueFigures, TaskMetrics
from snapline.taskmanager.network.channels.queue_figures import together

if TYPE_CHECKING:
    from snapline.taskmanager.task.task_wiring import TaskParts


RATE_WINDOW_MS = 10_000


class Look(NamedTuple):
    """What the counters of a task were at one moment."""

    at_ms: int
    busy_ms: int = 0
    backpressured_ms: int = 0
    idle_ms: int = 0
    records_in: int = 0
    records_out: int = 0


class RateWindow:
    """The looks at a task of the last ten seconds, and the one before them."""

    def __init__(self) -> None:
        self._looks: deque[Look] = deque()

    def rates(self, look: Look) -> Look:
        """How much each counter has risen per second since about ten seconds ago; none of them falls below 0."""
        looks = self._looks
        while len(looks) > 1 and looks[1].at_ms <= look.at_ms - RATE_WINDOW_MS:
            looks.popleft()
        if not looks or look.at_ms > looks[-1].at_ms:
            looks.append(look)
        passed_ms = look.at_ms - looks[0].at_ms
        if passed_ms <= 0:
            return Look(look.at_ms)
        rises = (max(0, now - then) for now, then in zip(look[1:], looks[0][1:], strict=True))
        return Look(look.at_ms, *(round(1000 * rise / passed_ms) for rise in rises))


class TaskMeter:
    """Written by the task's thread, read by any."""

    def __init__(self, attempt_id: ExecutionAttemptID) -> None:
        self._attempt_id = attempt_id
        self._last_ms: int | None = None
        self._last_kind = "worked"
        self._in_step = False
        self._rates = RateWindow()
        self._spent_ms = {"worked": 0, "idle": 0, "held": 0, "backpressured": 0, "blocked": 0, "finished": 0}
        self.records_in = 0
        self.bytes_in = 0
        self.watermark_ms = MIN_WATERMARK_MS

    def step_begins(self, now_ms: int) -> None:
        """Time has passed since the last step."""
        if self._last_ms is None:
            self._rates.rates(Look(now_ms))
        elif now_ms > self._last_ms:
            self._spent_ms[self._last_kind] += now_ms - self._last_ms
        self._last_ms = now_ms
        self._in_step = True

    def step_ends(self, kind: str) -> None:
        """Note what kind of progress the step has made."""
        self._last_kind = kind
        self._in_step = False

    def batch_in(self, rows: int, size_bytes: int) -> None:
        """Count the rows and bytes of a batch that came in."""
        self.records_in += rows
        self.bytes_in += size_bytes

    def metrics(self, parts: TaskParts | None, now_ms: int | None = None) -> TaskMetrics:
        """All counters, and rates when `now_ms` says when somebody looks: one thread only looks. A source counts as
        records in what its head emitted, also one that is fed with splits."""
        writers = parts.writers if parts is not None else ()
        records_in = self.records_in
        if parts is not None and parts.chain is not None and parts.chain.source is not None:
            records_in = parts.chain.source_records
        records_out = sum(writer.records_out for writer in writers)
        spent = dict(self._spent_ms)
        rates, step_ms = Look(0), 0
        if now_ms is not None and self._last_ms is not None:
            is_in_step, since_ms = self._in_step, max(0, now_ms - self._last_ms)
            step_ms = since_ms if is_in_step else 0
            now = {**spent}
            now["worked" if is_in_step else self._last_kind] += since_ms
            busy_ms = now["worked"] + now["blocked"]
            idle_ms = now["idle"] + now["held"]
            look = Look(now_ms, busy_ms, now["backpressured"], idle_ms, records_in, records_out)
            rates = self._rates.rates(look)
        return TaskMetrics(
            attempt_id=self._attempt_id,
            records_in=records_in,
            records_out=records_out,
            bytes_in=self.bytes_in,
            bytes_out=sum(writer.bytes_out for writer in writers),
            busy_ms=spent["worked"] + spent["blocked"],
            backpressured_ms=spent["backpressured"],
            idle_ms=spent["idle"] + spent["held"],
            watermark_ms=self.watermark_ms,
            accumulators=parts.chain.accumulators if parts is not None and parts.chain is not None else (),
            user_metrics=parts.chain.user_metrics if parts is not None and parts.chain is not None else (),
            busy_ms_per_second=min(1000, rates.busy_ms),
            backpressured_ms_per_second=min(1000, rates.backpressured_ms),
            idle_ms_per_second=min(1000, rates.idle_ms),
            records_in_per_second=rates.records_in,
            records_out_per_second=rates.records_out,
            step_ms=step_ms,
            awaits=parts.chain.awaits if parts is not None and parts.chain is not None else "",
            input_queue=parts.input.union.queued if parts is not None and parts.input is not None else QueueFigures(),
            output_queue=together([output.queued for writer in writers for output in writer.subpartitions]),
        )
