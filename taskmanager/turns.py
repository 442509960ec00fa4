"""Turns: how many tasks of a process work at a time. The others wait until it is theirs, in order.

Python has one lock, and a task lets go of it at every call into Arrow or NumPy, dozens of times in a batch. With a few tasks that have work,
that is how they use several cores. With fifty, each such call ends with waiting for the lock among fifty, all of which wake every 5 ms to
ask for it, and a process spends its time in handing a lock around. So no more than `limit` tasks have work in hand; the others sleep on a
lock of their own and are woken once, when it is their turn.

A turn is given back after QUANTUM_MS when somebody waits. Whoever keeps one and does not compute waits for something else, a database, a
disk, a `sleep` of the user's: the turn is lent to the next one, and whoever kept it goes without turns for FREE_MS, because such a function
will wait again. Not to compute is not enough: who waits for Python's lock does not compute either.

`TurnTable` decides, without threads and clock; `Turns` is the shell of the threads.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

from runtime.clock import Clock
from runtime.timers import TimerService

QUANTUM_MS = 5
"""As long as Python lets a thread run on while another one waits for its lock (`sys.getswitchinterval`)."""
LOOK_MS = 20
"""How often somebody looks who keeps a turn, while others wait."""
LONG_MS = 100
"""Whoever has computed for less than a twentieth of this while they had a turn waits for something else, however busy the process is."""
FREE_MS = 1_000
BUSY_PROCESS = 0.5
"""Of one core. A process that computes less than this leaves Python's lock free most of the time: nobody waits for it."""
BUSY_THREAD = 0.05

W = TypeVar("W")


def default_limit() -> int:
    """Enough for what lets go of Python's lock, few enough for what does not."""
    return min(max(os.cpu_count() or 1, 2), 4)


def waits_for_something_else(kept_ms: int, process_share: float, thread_share: float) -> bool:
    """Whether one who has kept a turn for so long needs none. Shares are cores: of the process since somebody looked, of the thread since its
    turn began."""
    if kept_ms < LOOK_MS:
        return False
    return process_share < BUSY_PROCESS or (kept_ms >= LONG_MS and thread_share < BUSY_THREAD)


class TurnTable(Generic[W]):
    """Who has a turn, and who waits for one."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._holders: dict[W, int] = {}
        """Since when, in this order."""
        self._waiting: deque[W] = deque()
        self._free_until_ms: dict[W, int] = {}

    @property
    def holders(self) -> frozenset[W]:
        """Who has one."""
        return frozenset(self._holders)

    @property
    def somebody_waits(self) -> bool:
        """Whether a turn that is given back goes to somebody."""
        return bool(self._waiting)

    def ask(self, who: W, now_ms: int) -> bool:
        """True: go on. False: wait until `give_back` or `lend` names them. Raises ValueError for one who has a turn or waits."""
        if who in self._holders or who in self._waiting:
            raise ValueError(f"{who} has a turn or waits for one already")
        if (free_until_ms := self._free_until_ms.get(who)) is not None:
            if now_ms < free_until_ms:
                return True
            del self._free_until_ms[who]
        if len(self._holders) < self._limit:
            self._holders[who] = now_ms
            return True
        self._waiting.append(who)
        return False

    def give_back(self, who: W, now_ms: int) -> W | None:
        """They have done their work; whose turn it is now. One who went without, or whose turn was lent, has none to give back."""
        if self._holders.pop(who, None) is None:
            return None
        return self._next(now_ms)

    def lend(self, now_ms: int, process_share: float, thread_share: Callable[[W], float]) -> list[W]:
        """Take the turns of those who wait for something else, as far as others wait for turns; whose they are now."""
        lent = []
        for who, since_ms in list(self._holders.items()):
            if not self._waiting:
                break
            if waits_for_something_else(now_ms - since_ms, process_share, thread_share(who)):
                del self._holders[who]
                self._free_until_ms[who] = now_ms + FREE_MS
                now_theirs = self._next(now_ms)
                lent += [now_theirs] if now_theirs is not None else []
        return lent

    def forget(self, who: W) -> None:
        """They will not come again, and have no turn."""
        self._free_until_ms.pop(who, None)

    def _next(self, now_ms: int) -> W | None:
        if not self._waiting:
            return None
        who = self._waiting.popleft()
        self._holders[who] = now_ms
        return who


class Turn:
    """What one thread keeps for all its turns. Made by that thread."""

    __slots__ = ("began_at", "bell", "cpu_clock", "cpu_then")

    def __init__(self) -> None:
        self.bell = threading.Lock()
        """Locked but for the moment in which its thread is called."""
        self.bell.acquire()
        self.cpu_clock = time.pthread_getcpuclockid(threading.get_ident())
        self.cpu_then = self.began_at = 0.0
        """CPU time and time at the begin of the turn, seconds."""

    def begins(self) -> None:
        """Its thread goes to work."""
        self.cpu_then, self.began_at = time.thread_time(), time.monotonic()

    def share(self) -> float:
        """How much of its turn it has computed; asked by others while it has one, so that its thread is alive."""
        return (time.clock_gettime(self.cpu_clock) - self.cpu_then) / max(time.monotonic() - self.began_at, 1e-3)


class Turns:
    """The turns of a process. Methods may be called from any thread."""

    def __init__(self, limit: int, timers: TimerService, clock: Clock) -> None:
        """`limit`: how many have one at a time."""
        self._table: TurnTable[Turn] = TurnTable(limit)
        self._timers = timers
        self._clock = clock
        self._lock = threading.Lock()
        self._is_watched = False
        self._looked_at = self._process_then = 0.0

    @property
    def somebody_waits(self) -> bool:
        """Whether whoever has a turn should think of its end."""
        return self._table.somebody_waits

    def begin(self, turn: Turn) -> None:
        """Wait until it is this one's turn."""
        with self._lock:
            goes_on = self._table.ask(turn, self._clock.now_ms())
            if not goes_on and not self._is_watched:
                self._watch()
        if not goes_on:
            turn.bell.acquire()
        turn.begins()

    def end(self, turn: Turn) -> None:
        """Let the next one work."""
        with self._lock:
            next_one = self._table.give_back(turn, self._clock.now_ms())
        if next_one is not None:
            next_one.bell.release()

    def forget(self, turn: Turn) -> None:
        """Its thread ends."""
        with self._lock:
            self._table.forget(turn)

    def _watch(self) -> None:
        """Look in a moment, because somebody waits."""
        self._is_watched = True
        self._looked_at, self._process_then = time.monotonic(), time.process_time()
        self._timers.schedule(self._clock.now_ms() + LOOK_MS, self._look)

    def _look(self) -> None:
        with self._lock:
            computed = time.process_time() - self._process_then
            process_share = computed / max(time.monotonic() - self._looked_at, 1e-3)
            now_theirs = self._table.lend(self._clock.now_ms(), process_share, Turn.share)
            self._is_watched = False
            if self._table.somebody_waits:
                self._watch()
        for turn in now_theirs:
            turn.bell.release()
