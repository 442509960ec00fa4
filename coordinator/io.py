"""The executor for slow work: storage, stores, hooks. Each piece is an effect of a core, and is answered by exactly one
event.

A bounded number of daemon threads. Work that hangs is given up after its limit: its answer is then the one for a
failure, and what it may still return is dropped. Work that raises what it did not announce is answered as failed too: a
core must never wait for an answer that does not come. Work that finds out that this coordinator does not lead any more
ends its leadership: no retry would ever succeed. Order between pieces is not kept; a core that needs order waits for
the answer.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from snapline.coordinator.ha.high_availability import LeadershipLost
from snapline.runtime.clock import Clock
from snapline.runtime.logs import Logger
from snapline.runtime.timers import ScheduledTimer, TimerScheduler

DEFAULT_THREADS = 8
DEFAULT_LIMIT_MS = 300_000


@dataclass(eq=False)
class _Piece:
    """One piece of work and where its answer goes."""

    name: str
    work: Callable[[], Any]
    tell: Callable[[Any], object]
    failed: Callable[[BaseException], Any]
    lock: threading.Lock = field(default_factory=threading.Lock)
    answered: bool = False
    limit: ScheduledTimer | None = None

    def answer(self, event: Any) -> bool:
        """Tell the event, unless an answer was told before. None: there is nothing to tell."""
        with self.lock:
            if self.answered:
                return False
            self.answered = True
        if self.limit is not None:
            self.limit.cancel()
        if event is not None:
            self.tell(event)
        return True


class TookTooLong(Exception):
    """Work was given up; what it did is not known."""


class IoExecutor:
    """Runs slow work on threads that are started as they are needed."""

    def __init__(
        self,
        timers: TimerScheduler,
        clock: Clock,
        logger: Logger,
        threads: int = DEFAULT_THREADS,
        on_leadership_lost: Callable[[LeadershipLost], None] = lambda _: None,
    ) -> None:
        """`on_leadership_lost` is called from any thread, perhaps several times."""
        self._on_leadership_lost = on_leadership_lost
        self._timers = timers
        self._clock = clock
        self._logger = logger
        self._limit = threads
        self._queue: queue.SimpleQueue[_Piece | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._threads: list[threading.Thread] = []
        self._outstanding = 0
        """How many pieces of work were submitted and have not ended."""
        self._closed = False

    def submit(
        self,
        name: str,
        work: Callable[[], Any],
        tell: Callable[[Any], object],
        failed: Callable[[BaseException], Any],
        limit_ms: int = DEFAULT_LIMIT_MS,
    ) -> None:
        """Run `work`; tell what it returns, or what `failed` makes of the exception (TookTooLong after the limit). None
        is not told."""
        piece = _Piece(name, work, tell, failed)
        with self._lock:
            if self._closed:
                return
            self._outstanding += 1
            if self._outstanding > len(self._threads) and len(self._threads) < self._limit:
                thread = threading.Thread(target=self._run, name=f"snapline-io-{len(self._threads)}", daemon=True)
                self._threads.append(thread)
                thread.start()
        piece.limit = self._timers.schedule(self._clock.now_ms() + limit_ms, lambda: self._give_up(piece, limit_ms))
        self._queue.put(piece)

    def close(self, timeout_seconds: float = 10.0) -> None:
        """Finish what was submitted, as far as that takes no longer than `timeout_seconds`. Idempotent."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            threads = list(self._threads)
        for _ in threads:
            self._queue.put(None)
        deadline = self._clock.now_ms() + round(timeout_seconds * 1000)
        for thread in threads:
            thread.join(max(0, deadline - self._clock.now_ms()) / 1000)

    def _run(self) -> None:
        while True:
            piece = self._queue.get()
            if piece is None:
                return
            self._perform(piece)
            with self._lock:
                self._outstanding -= 1

    def _perform(self, piece: _Piece) -> None:
        try:
            event = piece.work()
        except Exception as error:
            self._logger.warning("slow work failed", work=piece.name, reason=f"{type(error).__name__}: {error}")
            piece.answer(piece.failed(error))
            if isinstance(error, LeadershipLost):
                self._on_leadership_lost(error)
        else:
            piece.answer(event)

    def _give_up(self, piece: _Piece, limit_ms: int) -> None:
        error = TookTooLong(f"{piece.name} took longer than {limit_ms} ms")
        if piece.answer(piece.failed(error)):
            self._logger.error("slow work given up", work=piece.name, limit_ms=limit_ms)
