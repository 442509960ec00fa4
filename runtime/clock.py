"""The clock of shells: milliseconds since the epoch that never go back.

The monotonic clock moves it, and it follows the wall clock slowly: at twice its pace where that is ahead, at half of it
where that is behind. So a clock that an administrator sets, or that leaps, neither fires all timeouts at once nor stops
them; and a process on a machine that slept for an hour, or whose wall clock is set right again and again, does not tell
the wrong time for as long as it lives. Cores never see a clock: they get `now_ms` as an argument.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Protocol

LOOK_NS = 100_000_000
"""A look at the wall clock is so long after the one before it, or longer."""
IGNORED_NS = 5_000_000
"""So much less or more is no reason to follow."""
STEP_NS = 1_000_000
"""The clock may go on by so much, before it stands still, where threads read it while it is moved."""


class Clock(Protocol):
    """Where a shell takes `now_ms` from."""

    def now_ms(self) -> int:
        """Milliseconds since the epoch; never less than before."""
        ...

    def seconds_until(self, at_ms: int) -> float:
        """How long it is until `now_ms` is `at_ms`, to less than a millisecond; negative when it has been."""
        ...


class SystemClock:
    """Monotonic time, moved to where the wall clock is. Methods may be called from any thread."""

    def __init__(
        self, wall_ns: Callable[[], int] = time.time_ns, monotonic_ns: Callable[[], int] = time.monotonic_ns
    ) -> None:
        """`wall_ns`, `monotonic_ns`: the two clocks, in nanoseconds."""
        self._wall_ns, self._monotonic_ns = wall_ns, monotonic_ns
        self._lock = threading.Lock()
        self._looked_ns = monotonic_ns()
        self._offset_ns = wall_ns() - self._looked_ns
        self._least_ns = 0
        """The time does not go back behind this."""

    def now_ms(self) -> int:
        return self._now_ns() // 1_000_000

    def seconds_until(self, at_ms: int) -> float:
        return (at_ms * 1_000_000 - self._now_ns()) / 1e9

    def _now_ns(self) -> int:
        if self._monotonic_ns() - self._looked_ns >= LOOK_NS:
            self._follow()
        return max(self._monotonic_ns() + self._offset_ns, self._least_ns)

    def _follow(self) -> None:
        with self._lock:
            monotonic_ns = self._monotonic_ns()
            passed_ns = monotonic_ns - self._looked_ns
            if passed_ns < LOOK_NS:  # another thread has looked
                return
            self._looked_ns = monotonic_ns
            behind_ns = self._wall_ns() - monotonic_ns - self._offset_ns
            if behind_ns > IGNORED_NS:
                self._offset_ns += min(behind_ns, passed_ns)
            elif behind_ns < -IGNORED_NS:
                self._least_ns = max(self._least_ns, monotonic_ns + self._offset_ns + STEP_NS)
                self._offset_ns -= min(-behind_ns, passed_ns // 2)


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
