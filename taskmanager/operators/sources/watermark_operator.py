"""Event time and watermarks assigned in the middle of a stream.

Decides that watermarks from upstream are ignored, but for the last one, and when own ones are due: `pipeline.
auto-watermark-interval` after the one before, by a timer when no rows come, or `ROWS_BETWEEN` rows after it, so that a
stream of many rows does not fill windows that are over. With an idle timeout, a stream without rows
leaves the watermark to others, once the task has found nothing to read: rows may have come while it was busy. The
greatest event time lies in the snapshot, so that a restored job does not let late rows in that were late before; it
says its watermark again, also when no rows come, because the one before may have come behind the snapshot.
Mirrors Flink's TimestampsAndWatermarksOperator.
"""

from __future__ import annotations

import pyarrow as pa

from snapline.dataflow.config import WATERMARK_INTERVAL
from snapline.dataflow.elements import MAX_WATERMARK_MS, Watermark, WatermarkStatus
from snapline.dataflow.graph.operator_specs import WatermarkSpec
from snapline.dataflow.ids import CheckpointID
from snapline.dataflow.snapshot.handles import OperatorStateMode
from snapline.taskmanager.operators.base.earliest_timer import EarliestTimer
from snapline.taskmanager.operators.base.event_time import WatermarkTracker, create_tracker
from snapline.taskmanager.operators.base.function_operator import FunctionRuntimeContext
from snapline.taskmanager.operators.base.operator_contract import (
    OperatorContext,
    OperatorSnapshot,
    Output,
    ProcessingTimeService,
    RestoredState,
    StreamOperator,
)
from snapline.taskmanager.operators.base.operator_state import OperatorStateBackend

EARLY_PARTS = 10
"""A tenth of the interval before it is due, a watermark goes with the rows that go then."""
ROWS_BETWEEN = 16_384
"""So many rows after a watermark the next one is due: it costs little beside them, and what waits for it is rows."""
STATE_NAME = "watermark-greatest-event-time"


class WatermarkCadence:
    """When a generator's watermark may be emitted, and when a stream counts as idle: rows that could not be taken in
    for want of room are no sign of idleness (Flink: FLIP-471)."""

    def __init__(
        self, generator: WatermarkTracker, time: ProcessingTimeService, interval_ms: int, idle_timeout_ms: int
    ) -> None:
        self._generator = generator
        self._time = time
        self._interval_ms = interval_ms
        self._idle_timeout_ms = idle_timeout_ms
        self._dirty = generator.greatest_ms is not None
        """Whether a watermark may be due: also after a restore, when what it had to say was behind the snapshot."""
        self._next_ms = time.now_ms() + interval_ms if self._dirty else None
        self._rows = 0
        """So many rows since the last watermark."""
        self._active_ms: int | None = None
        self._idle = False
        self._quiet_since: tuple[int, int] | None = None
        """(when, dry looks by then): the idle timeout was over, and there may have been rows that nobody had looked
        for."""
        self._left_alone = False
        """The last watermark went without rows."""
        self._split_idle_ms: int | None = None
        """When the next split may have become idle, on the clock of activity."""

    def before_batch(self, output: Output) -> None:
        """Rows are about to go out: the stream takes part in the watermark again."""
        self.keep_active()
        if self._idle:
            self._idle = False
            output.emit_watermark_status(WatermarkStatus.ACTIVE)

    def after_batch(self, output: Output, rows: int) -> None:
        """So many rows went out; emit a watermark if one is due, or nearly: it leaves with these rows then, and wakes
        nobody once more a moment later. If the last one went alone, the next one goes with these rows: where rows come
        at regular times, all that follow do."""
        self._dirty = True
        self._rows += rows
        are_many = self._rows >= ROWS_BETWEEN and not self._generator.is_periodic
        early_ms = self._interval_ms if self._left_alone or are_many else self._interval_ms // EARLY_PARTS
        self.on_time(output, with_rows=True, early_ms=early_ms)

    def on_time(self, output: Output, *, looked: bool = True, with_rows: bool = False, early_ms: int = 0) -> None:
        """Emit what is due. `looked`: there are no rows now; else there may be some that came while the task was
        busy. `with_rows`: rows have just gone. `early_ms`: a watermark is due so much earlier."""
        if not (self._dirty or self._idle_timeout_ms or self._is_periodic):
            return
        now_ms, activity_ms = self._time.now_ms(), self._time.activity_ms()
        if self._split_idle_ms is not None and activity_ms >= self._split_idle_ms:
            self._split_idle_ms, self._dirty = None, True  # the watermark may rise without rows
        is_due = self._next_ms is None or now_ms >= self._next_ms - early_ms
        if is_due and (self._dirty or self._is_periodic):
            self._say(output, with_rows=with_rows)
        if self._idle_timeout_ms:
            if self._active_ms is None:
                self._active_ms = activity_ms
            elif self._idle or activity_ms < self._active_ms + self._idle_timeout_ms:
                pass
            elif self._generator.has_waiting:
                self.keep_active()
            elif (split_idle_ms := self._generator.next_idle_ms(activity_ms)) is not None:
                self._active_ms = split_idle_ms - self._idle_timeout_ms  # what that lets rise has to be heard
            elif looked or self._is_certain(activity_ms):
                self._idle = True
                self.before_idle(output)
                output.emit_watermark_status(WatermarkStatus.IDLE)
            else:
                self._quiet_since = self._quiet_since or (activity_ms, self._time.empty_polls)
                self._active_ms = activity_ms - self._idle_timeout_ms + max(1, self._interval_ms)  # look again then

    def before_idle(self, output: Output) -> None:
        """Emit what is not due yet: nobody listens to who is idle, and there may be no rows any more."""
        if self._dirty:
            self._say(output, with_rows=False)

    def _say(self, output: Output, *, with_rows: bool) -> None:
        self._dirty = False
        self._rows = 0
        self._left_alone = not with_rows
        self._next_ms = self._time.now_ms() + self._interval_ms
        activity_ms = self._time.activity_ms()
        self._generator.on_periodic()
        watermark_ms = self._generator.next_watermark_ms(activity_ms)
        if watermark_ms is not None:
            output.emit_watermark(Watermark(watermark_ms))
        self._split_idle_ms = self._generator.next_idle_ms(activity_ms)

    def _is_certain(self, activity_ms: int) -> bool:
        """Since the doubt began the task has once found nothing to take in, or has taken in for as long again what
        others dropped."""
        if self._quiet_since is None:
            return False
        since_ms, empty_polls = self._quiet_since
        return self._time.empty_polls > empty_polls or activity_ms - since_ms >= self._idle_timeout_ms

    @property
    def _is_periodic(self) -> bool:
        """Whether the generator is asked by the clock, too: without an interval it would be due all the time."""
        return self._interval_ms > 0 and self._generator.is_periodic

    def keep_active(self) -> None:
        """There are rows, or there are none because the source may not read: that is not idle."""
        self._active_ms = self._time.activity_ms()
        self._quiet_since = None

    @property
    def is_idle(self) -> bool:
        """Whether the stream leaves the watermark to others."""
        return self._idle

    def split_finished(self) -> None:
        """The watermark may rise without rows."""
        self._dirty = True

    @property
    def wake_at_ms(self) -> int | None:
        """When `on_time` has something to do, if no rows come before."""
        times = []
        if self._next_ms is not None and (self._dirty or self._is_periodic):
            times.append(self._next_ms)
        idle_ms = [] if self._split_idle_ms is None else [self._split_idle_ms]
        if self._idle_timeout_ms and not self._idle and self._active_ms is not None:
            idle_ms.append(self._active_ms + self._idle_timeout_ms)
        if idle_ms:
            times.append(self._time.now_ms() + max(0, min(idle_ms) - self._time.activity_ms()))
        return min(times, default=None)


def watermark_interval_ms(context: OperatorContext) -> int:
    """Return the job's `pipeline.auto-watermark-interval`, in milliseconds."""
    return WATERMARK_INTERVAL.read(context.configuration.get(WATERMARK_INTERVAL.key, WATERMARK_INTERVAL.default))


class WatermarkOperator(StreamOperator):
    """Passes batches on, and says what their event time promises."""

    def __init__(self, spec: WatermarkSpec) -> None:
        self._strategy = spec.strategy
        self._generator = create_tracker(spec.strategy)
        self._timer = EarliestTimer(self._on_timer)
        self._is_over = False
        """The last watermark is out; none is behind it."""

    def initialize_state(self, restored: RestoredState) -> None:
        self._state = OperatorStateBackend(restored.operator_lists)
        elements = self._state.list_state(STATE_NAME, OperatorStateMode.UNION).get()
        known = [ms for ms in elements if ms is not None]
        if known and len(known) == len(elements):
            self._generator.add_splits({}, min(known))

    def open(self) -> None:
        self._generator.open(FunctionRuntimeContext(self.context))
        self._cadence = WatermarkCadence(
            self._generator,
            self.context.processing_time,
            watermark_interval_ms(self.context),
            self._strategy.idle_timeout_ms,
        )
        if self._strategy.idle_timeout_ms:
            self._on_timer(self.context.processing_time.now_ms())
        self._arm()

    def process_batch(self, batch: pa.RecordBatch, input_index: int = 0) -> None:
        self._cadence.before_batch(self.output)
        self.output.emit_batch(batch)
        self._generator.on_batch(batch)
        self._cadence.after_batch(self.output, batch.num_rows)
        self._arm()

    def process_watermark(self, watermark: Watermark) -> None:
        if watermark.timestamp_ms == MAX_WATERMARK_MS:
            self._is_over = True
            self.output.emit_watermark(watermark)

    def process_watermark_status(self, status: WatermarkStatus) -> None:
        """Not passed on: this operator decides itself who is idle, unless it has no timeout."""
        if not self._strategy.idle_timeout_ms:
            if status is WatermarkStatus.IDLE and not self._is_over:
                self._cadence.before_idle(self.output)
            self.output.emit_watermark_status(status)

    def snapshot_state(self, checkpoint_id: CheckpointID, timestamp_ms: int) -> OperatorSnapshot:
        self._state.list_state(STATE_NAME, OperatorStateMode.UNION).update([self._generator.greatest_ms])
        return OperatorSnapshot(operator_lists=self._state.snapshot())

    def _arm(self) -> None:
        self._timer.arm(self.context.processing_time, self._cadence.wake_at_ms)

    def _on_timer(self, at_ms: int) -> None:
        if self._is_over:
            return
        self._cadence.on_time(self.output, looked=False)
        self._arm()
