"""The clock of shells: milliseconds since the epoch that never go back.

The wall clock is read once; from then on the monotonic clock moves it. So a clock that an administrator sets, or that
leaps, neither fires all timeouts at once nor stops them. Cores never see a clock: they get `now_ms` as an argument.
"""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Where a shell takes `now_ms` from."""

    def now_ms(self) -> int:
        """Milliseconds since the epoch; never less than before."""
        ...

    def seconds_until(self, at_ms: int) -> float:
        """How long it is until `now_ms` is `at_ms`, to less than a millisecond; negative when it has been."""
        ...


class SystemClock:
    """Wall clock at construction plus monotonic time since."""

    def __init__(self) -> None:
        self._offset_ns = time.time_ns() - time.monotonic_ns()

    def now_ms(self) -> int:
        return (time.monotonic_ns() + self._offset_ns) // 1_000_000

    def seconds_until(self, at_ms: int) -> float:
        return (at_ms * 1_000_000 - time.monotonic_ns() - self._offset_ns) / 1e9


class ManualClock:
    """A clock that moves when it is told to, for tests."""

    def __init__(self, now_ms: int = 0) -> None:
        self._now_ms = now_ms

    def now_ms(self) -> int:
        return self._now_ms

    def seconds_until(self, at_ms: int) -> float:
        return (at_ms - self._now_ms) / 1000

    def advance(self, by_ms: int) -> None:
        """Move forward. Raises ValueError for a step back."""
        if by_ms < 0:
            raise ValueError(f"a clock does not go back, not even by {by_ms} ms")
        self._now_ms += by_ms
