"""A user's own watermarks: what a WatermarkGenerator is asked, and how it answers.

Mirrors Flink's WatermarkGenerator and WatermarkOutput. Each split of a source has a generator of its own, where splits
are told apart; the stream's watermark is the least of theirs. A generator is no state: one that starts again says
nothing until it is asked, and operators behind it keep their watermark.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from snapline.dataflow.api.function_contexts import RuntimeContext


class WatermarkOutput(Protocol):
    """Handed to a WatermarkGenerator (Flink: WatermarkOutput).

    >>> class Exact(sl.WatermarkGenerator):
    ...     def on_batch(self, batch, times_ms, output: sl.WatermarkOutput):
    ...         output.emit_watermark(int(times_ms.max()))
    >>> sl.WatermarkStrategy.for_generator("at", Exact).column
    'at'
    """

    def emit_watermark(self, timestamp_ms: int) -> None:
        """Promise that no row at or before this event time follows; less than what was promised changes nothing."""
        ...


class WatermarkGenerator:
    """Says how far event time has come; `sl.WatermarkStrategy.for_generator(column, Class)` uses it.

    Override `on_batch`, or `on_event`, which is called for each row, or `on_periodic_emit`, or some of them.

    >>> class Marked(sl.WatermarkGenerator):
    ...     def open(self, context):
    ...         self.days = context.metrics.counter("days")
    ...     def on_event(self, row, timestamp_ms, output):
    ...         if row["coupon"] == "end of day":
    ...             output.emit_watermark(timestamp_ms)
    >>> class Median(sl.WatermarkGenerator):
    ...     median = None
    ...     def on_batch(self, batch, times_ms, output):
    ...         self.median = int(np.median(times_ms))
    ...     def on_periodic_emit(self, output):
    ...         if self.median is not None:
    ...             output.emit_watermark(self.median)
    >>> strategy = sl.WatermarkStrategy.for_generator("at", Marked)
    >>> orders.assign_timestamps_and_watermarks(strategy, uid="marked").event_time_column
    'at'
    """

    def open(self, context: RuntimeContext) -> None:
        """Called once for each generator, before its first rows; `context.metrics` has counters, gauges and
        histograms."""

    def on_batch(self, batch: pa.RecordBatch, times_ms: npt.NDArray[np.int64], output: WatermarkOutput) -> None:
        """Rows have gone out; `times_ms` has the event time of each. Here: `on_event` for each of them."""
        if type(self).on_event is not WatermarkGenerator.on_event:
            for row, time_ms in zip(batch.to_pylist(), times_ms.tolist(), strict=True):
                self.on_event(row, time_ms, output)

    def on_event(self, row: dict[str, object], timestamp_ms: int, output: WatermarkOutput) -> None:
        """One row has gone out."""

    def on_periodic_emit(self, output: WatermarkOutput) -> None:
        """`pipeline.auto-watermark-interval` has passed, with or without rows."""
