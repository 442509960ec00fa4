"""How many messages one connection may send, or all that show the credential of one TaskManager.

Decides that it may send as many at once as a TaskManager with all of its slots has to say of one checkpoint,
and after that so many a second: who sends more is read more slowly, and others are not. Knows no clock. Flink has no
counterpart.
"""

from __future__ import annotations

BURST = 20_000
"""Messages at once; a TaskManager has at most 16,384 slots."""
PER_SECOND = 20_000


class MessageBudget:
    """The budget of one connection, or of several together."""

    def __init__(self, now_s: float) -> None:
        self._left = float(BURST)
        self._as_of_s = now_s

    def spend(self, messages: int, now_s: float) -> float:
        """Count messages that have come, and return for how many seconds no more should be read; 0: read on."""
        self._left = min(BURST, self._left + (now_s - self._as_of_s) * PER_SECOND) - messages
        self._as_of_s = now_s
        return max(0.0, -self._left / PER_SECOND)
