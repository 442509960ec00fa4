"""The executor for slow work: storage, stores, hooks. Each piece is an effect of a core, and is answered by exactly one
event.

A bounded number of daemon threads. Work of one owner, which is a job or the coordinator itself, waits in a lane of its
own: at most LANE_THREADS threads work for it, and at most LANE_QUEUE pieces wait. Work that has run for STUCK_MS does
not count among the threads that all share, so that a storage that never answers holds threads of its own job and nobody
else's. Work that hangs is given up after its limit: its answer is then the one for a failure, what it may still return
is dropped, and what was not begun by then never is. Work that raises what it did not announce is answered as failed
too: a core must never wait for an answer that does not come. Work that finds out that this coordinator does not lead
any more ends its leadership: no retry would ever succeed. Order between pieces is not kept; a core that needs order
waits for the answer.
"""

from __future__ import annotations

import threading
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from snapline.coordinator.ha.high_availability import LeadershipLost
from snapline.dataflow.failures import message_of
from snapline.runtime.clock import Clock
from snapline.runtime.logs import Logger
from snapline.runtime.timers import ScheduledTimer, TimerScheduler

DEFAULT_THREADS = 8
"""Threads that work at a time, those not counted whose work is stuck."""
LANE_THREADS = 4
LANE_QUEUE = 1_000
STUCK_MS = 1_000
DEFAULT_LIMIT_MS = 300_000


class IoLane(Protocol):
    """Performs slow work on another thread (implemented by IoExecutor and its lanes)."""

    def submit(
        self,
        name: str,
        work: Callable[[], Any],
        tell: Callable[[Any], object],
        failed: Callable[[BaseException], Any],
        limit_ms: int = DEFAULT_LIMIT_MS,
    ) -> None:
        """Run `work`; tell what it returns, or what `failed` makes of the exception (TookTooLong after the limit,
        TooMuchWaits at once when the lane is full). None is not told."""
        ...


@dataclass(eq=False)
class _Piece:
    """One piece of work and where its answer goes."""

    name: str
    work: Callable[[], Any]
    tell: Callable[[Any], object]
    failed: Callable[[BaseException], Any]
    started_ms: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)
    answered: bool = False
    limit: ScheduledTimer | None = None

    def answer(self, make: Callable[[], Any]) -> bool:
        """Tell the event that `make` returns, unless an answer was told before: then it is not made either. None: there
        is nothing to tell."""
        with self.lock:
            if self.answered:
                return False
            self.answered = True
        if self.limit is not None:
            self.limit.cancel()
        event = make()
        if event is not None:
            self.tell(event)
        return True

    def fail(self, error: BaseException) -> bool:
        """Tell what `failed` makes of the error, in the same way: what that does, such as trying again, is done
        once."""
        return self.answer(lambda: self.failed(error))


class TookTooLong(Exception):
    """Work was given up; what it did is not known."""


class TooMuchWaits(Exception):
    """Work was not begun, because too much of the same owner waits already."""


@dataclass(slots=True)
class _Lane:
    """The work of one owner."""

    waiting: deque[_Piece] = field(default_factory=deque)
    running: int = 0


class IoExecutor:
    """Runs slow work on threads that are started as they are needed."""

    def __init__(
        self,
        timers: TimerScheduler,
        clock: Clock,
        logger: Logger,
        threads: int = DEFAULT_THREADS,
        on_leadership_lost: Callable[[LeadershipLost], None] = lambda _: None,
        lane_threads: int = LANE_THREADS,
        stuck_ms: int = STUCK_MS,
    ) -> None:
        """`on_leadership_lost` is called from any thread, perhaps several times."""
        self._on_leadership_lost = on_leadership_lost
        self._timers = timers
        self._clock = clock
        self._logger = logger
        self._limit = threads
        self._lane_threads = lane_threads
        self._stuck_ms = stuck_ms
        self._changed = threading.Condition()
        self._lanes: OrderedDict[str, _Lane] = OrderedDict()
        """Lanes that have work, the one that has waited longest first."""
        self._running: set[_Piece] = set()
        self._threads: list[threading.Thread] = []
        self._idle = 0
        self._looks_again = False
        self._closed = False

    def lane(self, owner: str) -> IoLane:
        """Return what performs the work of this owner."""
        return _OneLane(self, owner)

    def submit(
        self,
        name: str,
        work: Callable[[], Any],
        tell: Callable[[Any], object],
        failed: Callable[[BaseException], Any],
        limit_ms: int = DEFAULT_LIMIT_MS,
        owner: str = "",
    ) -> None:
        """Run `work` in the lane of its owner, as IoLane says."""
        piece = _Piece(name, work, tell, failed)
        with self._changed:
            if self._closed:
                return
            lane = self._lanes.setdefault(owner, _Lane())
            is_full = len(lane.waiting) >= LANE_QUEUE
            if not is_full:
                piece.limit = self._timers.schedule(
                    self._clock.now_ms() + limit_ms, lambda: self._give_up(piece, limit_ms)
                )
                lane.waiting.append(piece)
                self._find_threads()
        if is_full:
            self._logger.error("slow work refused", work=name, waiting=LANE_QUEUE)
            piece.fail(TooMuchWaits(f"{name}: {LANE_QUEUE} pieces of work of the same job wait already"))

    def _find_threads(self) -> None:
        """With the lock: wake or start threads for what can be run now, or look again when some may be stuck."""
        runnable = sum(min(len(lane.waiting), self._lane_threads - lane.running) for lane in self._lanes.values())
        self._changed.notify(runnable)
        wanted, free = runnable - self._idle, self._limit - self._count_working()
        for _ in range(min(wanted, free)):
            thread = threading.Thread(target=self._run, name=f"snapline-io-{len(self._threads)}", daemon=True)
            self._threads.append(thread)
            thread.start()
        if wanted > free and not self._looks_again and not self._closed:
            self._looks_again = True
            self._timers.schedule(self._clock.now_ms() + self._stuck_ms, self._look_again)

    def _count_working(self) -> int:
        """With the lock: the threads that are not stuck."""
        stuck_since_ms = self._clock.now_ms() - self._stuck_ms
        return len(self._threads) - sum(piece.started_ms <= stuck_since_ms for piece in self._running)

    def _look_again(self) -> None:
        with self._changed:
            self._looks_again = False
            self._find_threads()

    def close(self, timeout_seconds: float = 10.0) -> None:
        """Finish what was submitted, as far as that takes no longer than `timeout_seconds`. Idempotent."""
        with self._changed:
            if self._closed:
                return
            self._closed = True
            threads = list(self._threads)
            self._changed.notify_all()
        deadline = self._clock.now_ms() + round(timeout_seconds * 1000)
        for thread in threads:
            thread.join(max(0, deadline - self._clock.now_ms()) / 1000)

    def _run(self) -> None:
        while True:
            with self._changed:
                found = self._next()
            if found is None:
                return
            owner, piece = found
            self._perform(piece)
            with self._changed:
                self._running.discard(piece)
                lane = self._lanes[owner]
                lane.running -= 1
                if not lane.running and not lane.waiting:
                    del self._lanes[owner]

    def _next(self) -> tuple[str, _Piece] | None:
        """With the lock: the next piece; None: this thread ends, because all do, or because others were stuck when it
        was started, and are not any more."""
        while True:
            surplus = self._count_working() > self._limit
            for owner, lane in () if surplus else self._lanes.items():
                if lane.waiting and lane.running < self._lane_threads:
                    lane.running += 1
                    self._lanes.move_to_end(owner)
                    piece = lane.waiting.popleft()
                    piece.started_ms = self._clock.now_ms()
                    self._running.add(piece)
                    return owner, piece
            if surplus or self._closed:
                self._threads.remove(threading.current_thread())
                return None
            self._idle += 1
            self._changed.wait()
            self._idle -= 1

    def _perform(self, piece: _Piece) -> None:
        if piece.answered:  # given up while it waited: whoever asked goes on without it
            return
        try:
            event = piece.work()
        except BaseException as error:  # a user's hook may raise anything: the thread is needed for the next piece
            reason = f"{type(error).__name__}: {message_of(error)}"
            self._logger.warning("slow work failed", work=piece.name, reason=reason)
            piece.fail(error)
            if isinstance(error, LeadershipLost):
                self._on_leadership_lost(error)
        else:
            piece.answer(lambda: event)

    def _give_up(self, piece: _Piece, limit_ms: int) -> None:
        error = TookTooLong(f"{piece.name} took longer than {limit_ms} ms")
        if piece.fail(error):
            self._logger.error("slow work given up", work=piece.name, limit_ms=limit_ms)


@dataclass(frozen=True, slots=True)
class _OneLane:
    """The work of one owner of an executor."""

    io: IoExecutor
    owner: str

    def submit(
        self,
        name: str,
        work: Callable[[], Any],
        tell: Callable[[Any], object],
        failed: Callable[[BaseException], Any],
        limit_ms: int = DEFAULT_LIMIT_MS,
    ) -> None:
        self.io.submit(name, work, tell, failed, limit_ms, self.owner)
