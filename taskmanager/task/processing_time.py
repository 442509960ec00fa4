"""Processing time of one task: the time of the current step, and timers that fall due between steps.

Decides the order in which due timers fire: by time, then by registration. It does not know a clock: the task tells it
the time. Mirrors Flink's ProcessingTimeService and PausableRelativeClock; callbacks run on the task's thread and never
in the middle of a batch.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from snapline.dataflow.elements import MAX_WATERMARK_MS, MIN_WATERMARK_MS


@dataclass(slots=True, eq=False)
class TimerToken:
    """One timer that an operator has registered."""

    at_ms: int
    callback: Callable[[int], None]
    is_cancelled: bool = False


class TaskProcessingTime:
    """Timers of all operators of one task."""

    def __init__(self) -> None:
        self._now_ms = 0
        self._hindered_ms = 0
        self._empty_polls = 0
        self._heap: list[tuple[int, int, TimerToken]] = []
        self._registered = 0
        self._turn: deque[TimerToken] | None = None
        self._last_ms = MAX_WATERMARK_MS
        """No timer fires that is due later."""

    def now_ms(self) -> int:
        """Time of the current step."""
        return self._now_ms

    def activity_ms(self) -> int:
        """Return `now_ms` less the time in which no row could be taken in: back-pressure does not count as idleness."""
        return self._now_ms - self._hindered_ms

    @property
    def empty_polls(self) -> int:
        """Return how often the task has looked for rows and found none."""
        return self._empty_polls

    def found_nothing(self) -> None:
        """Note that the task has looked for rows and found none."""
        self._empty_polls += 1

    def advance(self, now_ms: int, *, hindered: bool = False) -> None:
        """A step begins. Time that goes back stands still here. `hindered`: the step before took no row, for want of
        room in an output or because an operator was blocked."""
        if hindered:
            self._hindered_ms += max(0, now_ms - self._now_ms)
        self._now_ms = max(self._now_ms, now_ms)

    def register_timer(self, at_ms: int, callback: Callable[[int], None]) -> TimerToken:
        """Call `callback(at_ms)` at or after that time."""
        token = TimerToken(at_ms, callback)
        self._registered += 1
        if at_ms <= self._last_ms:
            heapq.heappush(self._heap, (at_ms, self._registered, token))
        return token

    def cancel_timer(self, token: object) -> None:
        """Forget the timer that the token stands for."""
        if isinstance(token, TimerToken):
            token.is_cancelled = True

    def end(self) -> None:
        """The input has ended: what is due already still fires, and nothing else, whoever has registered it or will. A
        timer that is due again whenever it has fired would keep the task from its end."""
        self._last_ms = self._now_ms
        self._heap = [entry for entry in self._heap if entry[0] <= self._last_ms]
        heapq.heapify(self._heap)

    def stop(self) -> None:
        """The data has ended: no timer fires any more, whoever has registered it or will."""
        self._last_ms = MIN_WATERMARK_MS
        self._heap.clear()
        self._turn = None

    def take_due(self) -> TimerToken | None:
        """The next timer that is due now, taken off."""
        return self.take_of_turn() or self.take_of_turn()

    def take_of_turn(self) -> TimerToken | None:
        """The next of the timers that were due when their turn began, taken off. None ends the turn, so that rows have
        theirs, and the next call begins another: what timers register does not keep rows waiting, however early it is
        due."""
        if self._turn is None:
            if not self._heap or self._heap[0][0] > self._now_ms:
                return None
            self._turn = deque()
            while self._heap and self._heap[0][0] <= self._now_ms:
                self._turn.append(heapq.heappop(self._heap)[2])
        while self._turn:
            token = self._turn.popleft()
            if not token.is_cancelled:
                return token
        self._turn = None
        return None

    @property
    def next_at_ms(self) -> int | None:
        """When the next timer is due."""
        if self._turn:
            return self._now_ms
        while self._heap and self._heap[0][2].is_cancelled:
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None
