"""Deadlines of consumers whose producer has not registered yet.

One thread per exchange, started when the first consumer has to wait. It knows only what to call, and when; whether the
producer came meanwhile is the callee's to find out.
"""

from __future__ import annotations

import heapq
import threading
import time
from collections.abc import Callable


class PendingRequests:
    """Calls back after a delay, unless closed before."""

    def __init__(self, delay_ms: int) -> None:
        self._delay_seconds = delay_ms / 1000
        self._changed = threading.Condition()
        #: (deadline, tie breaker, callback)
        self._waiting: list[tuple[float, int, Callable[[], None]]] = []
        self._count = 0
        self._thread: threading.Thread | None = None
        self._closed = False

    def expire_later(self, callback: Callable[[], None]) -> None:
        """Have `callback` called on the thread of this object when the delay has passed."""
        with self._changed:
            if self._closed:
                return
            self._count += 1
            heapq.heappush(self._waiting, (time.monotonic() + self._delay_seconds, self._count, callback))
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="exchange-requests", daemon=True)
                self._thread.start()
            self._changed.notify()

    def close(self) -> None:
        """Forget all requests; none of them is called any more."""
        with self._changed:
            self._closed = True
            self._waiting.clear()
            self._changed.notify()
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._closed and (not self._waiting or self._waiting[0][0] > time.monotonic()):
                    self._changed.wait(self._waiting[0][0] - time.monotonic() if self._waiting else None)
                if self._closed:
                    return
                _, _, callback = heapq.heappop(self._waiting)
            callback()
