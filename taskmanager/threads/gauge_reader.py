"""Asks the functions that tell gauges, each task's on a thread of its own: a function of a user's may wait for long.

Decides that who asks waits for a moment only; what is not told by then travels as it was told before. Mirrors Flink's
MetricQueryService, which reads metrics beside the main thread of the TaskExecutor.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Mapping, Sequence

from snapline.dataflow.api.user_metrics import Gauge
from snapline.dataflow.ids import ExecutionAttemptID


class GaugeReader:
    """For all tasks of one TaskManager. Thread-safe."""

    def __init__(self) -> None:
        self._threads: dict[ExecutionAttemptID, threading.Thread] = {}

    def read(self, told: Mapping[ExecutionAttemptID, Sequence[Gauge]], seconds: float, *, joins: bool = False) -> None:
        """Ask the functions of these gauges, and wait for so long. `joins`: wait also where one is still being
        asked."""
        begun = []
        for attempt_id, gauges in told.items():
            before = self._threads.get(attempt_id)
            if not gauges or (before is not None and before.is_alive()):
                begun += [before] if joins and before is not None else []
                continue
            thread = threading.Thread(target=_ask, args=(gauges,), name="gauges", daemon=True)
            with contextlib.suppress(RuntimeError):  # the host has no thread left
                thread.start()
                self._threads[attempt_id] = thread
                begun.append(thread)
        end = time.monotonic() + seconds
        for thread in begun:
            thread.join(max(0.0, end - time.monotonic()))

    def forget(self, attempt_id: ExecutionAttemptID) -> None:
        """Note that the task has ended."""
        self._threads.pop(attempt_id, None)


def _ask(gauges: Sequence[Gauge]) -> None:
    for gauge in gauges:
        _ = gauge.value
