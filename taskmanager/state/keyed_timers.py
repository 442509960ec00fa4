"""The timers of one operator, by time domain: row by row for the current key, and in slices when they are due.

Row by row, registrations and deletions are gathered (the last word on a timer counts) and carried out when the batch
ends. Mirrors Flink's InternalTimerService, without the clock: the operator asks for what is due.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any, Final, Literal, TypeAlias

import numpy as np

from snapline.dataflow.columnar.arrow_columns import Int64Array
from snapline.dataflow.errors import StateError
from snapline.taskmanager.state.batch_scope import BatchScope
from snapline.taskmanager.state.timer_queue import VOID_NAMESPACE, TimerQueue

EVENT_TIME: Final = "event"
PROCESSING_TIME: Final = "processing"
TimeDomain: TypeAlias = Literal["event", "processing"]


class KeyedTimers:
    """Event-time and processing-time timers of all keys. `event` and `processing` are the queues, for whole batches."""

    __slots__ = ("_noted", "_pending", "_scope", "event", "name", "processing")

    def __init__(
        self, name: str, scope: BatchScope, capacity: int, make_queue: Callable[[str], TimerQueue] | None = None
    ) -> None:
        """`make_queue`: the queue of a time domain, if not one that holds all timers."""
        self.name = name
        self.event = make_queue(EVENT_TIME) if make_queue else TimerQueue()
        self.processing = make_queue(PROCESSING_TIME) if make_queue else TimerQueue()
        self._scope = scope
        self._pending: dict[tuple[str, int, int, int], bool] = {}
        """What rows have asked for, in an order that counts: a timer may be deleted and registered by one batch."""
        self._noted: dict[str, tuple[list[int], list[int]]] = {EVENT_TIME: ([], []), PROCESSING_TIME: ([], [])}
        """Numbers of keys and times, as long as rows have only registered timers."""
        self.grow(capacity)

    def register_event_time_timer(self, timestamp: int, namespace: int = VOID_NAMESPACE) -> None:
        """Fire for the current key once the watermark reaches the time."""
        self._note(EVENT_TIME, timestamp, namespace, register=True)

    def register_processing_time_timer(self, timestamp: int, namespace: int = VOID_NAMESPACE) -> None:
        """Fire for the current key once the clock reaches the time."""
        self._note(PROCESSING_TIME, timestamp, namespace, register=True)

    def delete_event_time_timer(self, timestamp: int, namespace: int = VOID_NAMESPACE) -> None:
        """Forget the timer of the current key, if there is one."""
        self._note(EVENT_TIME, timestamp, namespace, register=False)

    def delete_processing_time_timer(self, timestamp: int, namespace: int = VOID_NAMESPACE) -> None:
        """Forget the timer of the current key, if there is one."""
        self._note(PROCESSING_TIME, timestamp, namespace, register=False)

    def flush(self) -> None:
        """Carry out what rows have asked for."""
        if not self._pending:
            for domain, queue in self.queues():
                numbers, noted = self._noted[domain]
                if numbers:
                    self._noted[domain] = ([], [])
                    slots = self._scope.slots[np.array(numbers, np.int32)]
                    queue.register(slots, _as_int64(noted))
            return
        pending, self._pending = self._pending, {}
        for domain, queue in self.queues():
            for register in (False, True):
                chosen = [timer for timer, wanted in pending.items() if timer[0] == domain and wanted is register]
                if not chosen:
                    continue
                slots = self._scope.slots[np.array([number for _, number, _, _ in chosen], np.int32)]
                times = _as_int64([timestamp for _, _, timestamp, _ in chosen])
                namespaces = np.array([namespace for _, _, _, namespace in chosen], np.int64)
                (queue.register if register else queue.delete)(slots, times, namespaces)

    def queues(self) -> tuple[tuple[str, TimerQueue], tuple[str, TimerQueue]]:
        """Return both timer queues with the names of their time domains."""
        return (EVENT_TIME, self.event), (PROCESSING_TIME, self.processing)

    def grow(self, capacity: int) -> None:
        """Make room for slots below `capacity`."""
        self.event.grow(capacity)
        self.processing.grow(capacity)

    def _note(self, domain: str, timestamp: int, namespace: int, *, register: bool) -> None:
        scope = self._scope
        if type(timestamp) is not int:
            timestamp = _whole_milliseconds(timestamp)
        if not scope.is_open:
            scope.check_open(f"timers of {self.name}")
        if register and namespace == VOID_NAMESPACE and not self._pending:
            numbers, times = self._noted[domain]
            numbers.append(scope.index)
            times.append(timestamp)
            return
        if not self._pending:
            self._keep_order()
        self._pending[domain, scope.index, timestamp, namespace] = register

    def _keep_order(self) -> None:
        """What was noted so far comes before what rows ask for from here on."""
        for domain, (numbers, times) in self._noted.items():
            for number, timestamp in zip(numbers, times, strict=True):
                self._pending[domain, number, timestamp, VOID_NAMESPACE] = True
            numbers.clear()
            times.clear()


def _whole_milliseconds(timestamp: Any) -> int:
    """A number of another type. Raises StateError for what is none."""
    if isinstance(timestamp, np.integer):
        return int(timestamp)
    way_out = "int(...) makes one of it"
    if isinstance(timestamp, datetime):
        way_out = "take context.timestamp_ms, or int(time.replace(tzinfo=datetime.UTC).timestamp() * 1000)"
    raise StateError(
        f"a timer's time is whole milliseconds since the epoch, got {timestamp!r}, a {type(timestamp).__name__}: {way_out}"
    )


def _as_int64(times_ms: list[int]) -> Int64Array:
    """The times that rows have asked for. Raises StateError for one that is no int64, which is looked for here and not
    at each row."""
    try:
        return np.array(times_ms, np.int64)
    except OverflowError:
        beyond = next(time_ms for time_ms in times_ms if not -(2**63) <= time_ms < 2**63)
        raise StateError(f"a timer's time is int64 milliseconds since the epoch, which {beyond} is not") from None


def timer_times(times_ms: Any) -> Int64Array:
    """The times of many timers. Raises StateError unless they are integers."""
    times = np.asarray(times_ms)
    if times.dtype.kind not in "iu" and len(times):
        raise StateError(
            f"the times of timers are int64 milliseconds since the epoch, got {times.dtype}: take state.event_times_ms, or "
            "times.astype('datetime64[ms]').astype('int64')"
        )
    return np.ascontiguousarray(times, np.int64)
