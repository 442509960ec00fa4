"""One timer of an operator, at the earliest time that was asked for since it fired last.

Operators that want to be called when the first of many things is due ask again after every batch. Decides that only one
of their timers is ever waited for: whatever was asked for before is cancelled, or else each that fires would ask for
the next, and they would multiply.
"""

from __future__ import annotations

from collections.abc import Callable

from snapline.taskmanager.operators.base.operator_contract import ProcessingTimeService


class EarliestTimer:
    """The one timer of a callback, which asks again if there is more to come."""

    def __init__(self, callback: Callable[[int], None]) -> None:
        self._callback = callback
        self._at_ms: int | None = None
        self._token: object = None

    def arm(self, time: ProcessingTimeService, at_ms: int | None) -> None:
        """Call back at this time, unless that is to happen earlier anyway; None: no wish."""
        if at_ms is None or (self._at_ms is not None and self._at_ms <= at_ms):
            return
        if self._at_ms is not None:
            time.cancel_timer(self._token)
        self._at_ms = at_ms
        self._token = time.register_timer(at_ms, self._fire)

    def _fire(self, at_ms: int) -> None:
        self._at_ms = self._token = None
        self._callback(at_ms)
