"""Turns: how many tasks of a process work at a time. The others wait until it is theirs, in order.

Python has one lock, and a task lets go of it at every call into Arrow or NumPy, dozens of times in a batch. With a few
tasks that have work, that is how they use several cores. With fifty, each such call ends with waiting for the lock
among fifty, all of which wake every 5 ms to ask for it, and a process spends its time in handing a lock around. So only
so many tasks have work in hand; the others sleep on a lock of their own and are woken once, when it is their turn.

How many is found out, because steps may wait for something else (a database, a disk, a `sleep` of the user's) for any
time: while the process has computed for less than most of one core and a thread that wants Python's lock gets it at
once, there are twice as many, every LOOK_MS; while it is busy, half as many, down to the least number. A turn is given
back after QUANTUM_MS when somebody waits. Whoever is in a single step for LONG_MS goes on without one, so that no task
stops the others, whatever its function does.

`TurnTable` decides, without threads and clock; `Turns` is the shell of the threads.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

from snapline.runtime.clock import Clock
from snapline.runtime.timers import TimerScheduler

QUANTUM_MS = 5
"""A few batches: calling another thread costs less than a hundredth of it."""
LOOK_MS = 20
"""How often somebody looks how busy the process is."""
LATE_MS = 5
"""Who looks later than this has waited for Python's lock, or for a core: more threads would not help."""
LONG_MS = 100
IDLE_SHARE, BUSY_SHARE = 0.75, 0.9
"""Shares of one core. A process that computes less leaves Python's lock unused for a while; one that computes more
needs all of it."""
PARALLEL_SHARE = 0.7
"""The share of a core for each task that works. So much is only possible outside Python's lock."""

W = TypeVar("W")


class TurnTable(Generic[W]):
    """Who has a turn, who waits for one, and how many there are."""

    def __init__(self, least: int, cores: int) -> None:
        """`least`: how many work at a time when all of them compute. `cores`: how many may when they compute outside
        Python's lock."""
        self._least = least
        self._cores = cores
        self._limit = least
        self._holders: dict[W, int] = {}
        """Since when, in this order."""
        self._waiting: deque[W] = deque()

    @property
    def limit(self) -> int:
        """How many have a turn at a time, for now."""
        return self._limit

    @property
    def holders(self) -> frozenset[W]:
        """Return who has a turn now."""
        return frozenset(self._holders)

    @property
    def somebody_waits(self) -> bool:
        """Whether a turn that is given back is wanted."""
        return bool(self._waiting)

    @property
    def needs_a_look(self) -> bool:
        """Whether there may be too few turns, or too many."""
        return bool(self._waiting) or len(self._holders) > self._least

    def ask(self, who: W, now_ms: int) -> bool:
        """True: it is their turn. False: they wait until they are named. Raises ValueError for one who has a turn or
        waits."""
        if who in self._holders or who in self._waiting:
            raise ValueError(f"{who} has a turn or waits for one already")
        if self._waiting or len(self._holders) >= self._limit:
            self._waiting.append(who)
            return False
        self._holders[who] = now_ms
        return True

    def give_back(self, who: W, now_ms: int) -> list[W]:
        """Take the turn of somebody who has done the work, or has gone; returns whose turn it is now. One who went on
        without has none to give back."""
        self._holders.pop(who, None)
        return self._call(now_ms) if self._waiting else []

    def leave(self, who: W, now_ms: int) -> list[W]:
        """Forget somebody who has gone, holding a turn or waiting; returns whose turn it is now."""
        if who in self._waiting:
            self._waiting.remove(who)
        return self.give_back(who, now_ms)

    def look(self, now_ms: int, process_share: float, late_ms: int) -> list[W]:
        """Find out how many can work, and let those go on without a turn who are in one step for too long; whose turn
        it is now. `process_share`: cores that the process has computed on since the last look; `late_ms`: how much
        later than wanted this one comes."""
        if process_share < IDLE_SHARE:
            if self._waiting and late_ms < LATE_MS:
                self._limit = min(2 * self._limit, max(self._limit, len(self._holders) + len(self._waiting)))
        elif self._limit > 1 and process_share >= PARALLEL_SHARE * self._limit:
            self._limit = max(self._limit, min(self._limit + 1, self._cores))
        elif process_share >= BUSY_SHARE:
            self._limit = max(self._limit // 2, self._least)
        if self._waiting:
            for who in [who for who, since_ms in self._holders.items() if now_ms - since_ms >= LONG_MS]:
                del self._holders[who]
        return self._call(now_ms)

    def _call(self, now_ms: int) -> list[W]:
        called = []
        while self._waiting and len(self._holders) < self._limit:
            who = self._waiting.popleft()
            self._holders[who] = now_ms
            called.append(who)
        return called


class Turn:
    """What one thread keeps for all its turns."""

    __slots__ = ("bell",)

    def __init__(self) -> None:
        self.bell = threading.Lock()
        """Locked but for the moment in which its thread is called."""
        self.bell.acquire()


class Turns:
    """The turns of a process. Methods may be called from any thread."""

    def __init__(
        self, least: int, timers: TimerScheduler, clock: Clock, cpu_seconds: Callable[[], float] = time.process_time
    ) -> None:
        """`least`: as TurnTable's. `cpu_seconds`: what the process has computed by now."""
        self._table: TurnTable[Turn] = TurnTable(least, os.cpu_count() or 1)
        self._timers = timers
        self._clock = clock
        self._cpu_seconds = cpu_seconds
        self._lock = threading.Lock()
        self._is_watched = False
        self._watched_since_ms = 0
        self._cpu_then = 0.0

    @property
    def somebody_waits(self) -> bool:
        """Whether whoever has a turn should think of its end."""
        return self._table.somebody_waits

    def begin(self, turn: Turn) -> None:
        """Wait until it is this one's turn."""
        with self._lock:
            its_turn = self._table.ask(turn, self._clock.now_ms())
            if self._table.needs_a_look:
                self._watch()
        if not its_turn:
            turn.bell.acquire()

    def end(self, turn: Turn) -> None:
        """Let the next one work."""
        with self._lock:
            called = self._table.give_back(turn, self._clock.now_ms())
        if called:
            _ring(called)

    def leave(self, turn: Turn) -> None:
        """Forget the turn of a thread that ends, whatever it was at."""
        with self._lock:
            called = self._table.leave(turn, self._clock.now_ms())
        _ring(called)

    def _watch(self) -> None:
        """Look in a moment, if there is a reason."""
        if self._is_watched or not self._table.needs_a_look:
            return
        self._watched_since_ms, self._cpu_then = self._clock.now_ms(), self._cpu_seconds()
        self._timers.schedule(self._watched_since_ms + LOOK_MS, self._look)
        self._is_watched = True

    def _look(self) -> None:
        with self._lock:
            now_ms = self._clock.now_ms()
            took_ms = max(now_ms - self._watched_since_ms, 1)
            process_share = 1000 * (self._cpu_seconds() - self._cpu_then) / took_ms
            called = self._table.look(now_ms, process_share, took_ms - LOOK_MS)
            self._is_watched = False
            self._watch()
        _ring(called)


def _ring(called: list[Turn]) -> None:
    for turn in called:
        turn.bell.release()
