"""Threads of simulated processes: code of the product that blocks runs on a real thread, but only ever one, and in
simulated time.

The simulator hands its turn to a worker and gets it back when the worker waits or ends, so that a run is decided by its
seed as if there were no threads. What a worker waits for (time, an event, a condition) wakes it through its process:
one that is killed never comes back, one that is frozen comes back later. `SimulatedThreading` stands in for the module
`threading` in the few modules of the product that make threads of their own.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from typing import Any

from snapline.runtime.cores.machine import InvariantViolation
from snapline.testing.simulated.world import Process, ProcessKilled, World

_idle: list[_Carrier] = []
"""Real threads without work, kept for the next worker."""


class _Carrier:
    """One real thread, which carries one worker after another."""

    def __init__(self) -> None:
        self.go = threading.Semaphore(0)
        self.back = threading.Semaphore(0)
        self.work: Callable[[], None] | None = None
        threading.Thread(target=self._run, name="simulated-thread", daemon=True).start()

    def _run(self) -> None:
        while True:
            self.go.acquire()
            if self.work is None:
                return
            self.work()
            self.back.release()


def end_idle_threads() -> None:
    """Of all runs so far."""
    while _idle:
        carrier = _idle.pop()
        carrier.work = None
        carrier.go.release()


class Worker:
    """Blocking work of one process."""

    running: Worker | None = None
    """Whose turn it is."""

    def __init__(self, process: Process, work: Callable[[], Any]) -> None:
        self._process = process
        self._work = work
        self._carrier: _Carrier | None = None
        self._numbers = itertools.count(1)
        self._waiting = 0
        """Number of the wait that it is in."""
        self._abandoned = False
        self._over = False
        self._error: BaseException | None = None
        process.workers[self] = None

    def start(self, delay_ms: int = 0) -> Worker:
        """Soon."""
        self._process.later(delay_ms, self._begin)
        return self

    def wait(self, delay_ms: int | None) -> Callable[[], None]:
        """Called by the worker itself before `park`: returns what wakes it. None: nothing but that does."""
        self._waiting = number = next(self._numbers)

        def wake() -> None:
            if self._waiting == number:
                self._waiting = 0
                self._resume()

        def soon() -> None:
            self._process.later(0, wake)

        if delay_ms is not None:
            self._process.later(delay_ms, wake)
        return soon

    def park(self) -> None:
        """Give the turn back, and go on when woken. Raises ProcessKilled."""
        carrier = self._carrier
        assert carrier is not None
        carrier.back.release()
        carrier.go.acquire()
        if self._abandoned:
            raise ProcessKilled(self._process.name)

    def sleep(self, delay_ms: int) -> None:
        """Nothing else wakes it."""
        self.wait(delay_ms)
        self.park()

    def abandon(self) -> None:
        """Its process is gone: unwind what is left of it. By anybody but itself."""
        if self._carrier is not None and not self._over and Worker.running is not self:
            self._abandoned = True
            self._turn()
            self._error = None

    def _begin(self) -> None:
        self._carrier = _idle.pop() if _idle else _Carrier()
        self._carrier.work = self._carry
        self._resume()

    def _carry(self) -> None:
        try:
            self._work()
        except BaseException as error:  # told to whoever gave it its turn
            self._error = error
        self._over = True

    def _resume(self) -> None:
        self._turn()
        error, self._error = self._error, None
        if error is not None:
            raise error

    def _turn(self) -> None:
        carrier, before = self._carrier, Worker.running
        assert carrier is not None
        Worker.running = self
        carrier.go.release()
        carrier.back.acquire()
        Worker.running = before
        if self._over and self._carrier is not None:
            self._carrier = None
            _idle.append(carrier)
            self._process.workers.pop(self, None)


def _running() -> Worker:
    worker = Worker.running
    if worker is None:
        raise InvariantViolation("something blocks that is no thread of its own")
    return worker


class SimulatedEvent:
    """threading.Event."""

    def __init__(self) -> None:
        self._is_set = False
        self._wakers: list[Callable[[], None]] = []

    def is_set(self) -> bool:
        return self._is_set

    def clear(self) -> None:
        self._is_set = False

    def set(self) -> None:
        self._is_set = True
        wakers, self._wakers = self._wakers, []
        for wake in wakers:
            wake()

    def wait(self, timeout: float | None = None) -> bool:
        if not self._is_set:
            worker = _running()
            self._wakers.append(worker.wait(None if timeout is None else round(timeout * 1000)))
            worker.park()
        return self._is_set


class SimulatedCondition:
    """threading.Condition, for one that waits. Nobody else has a turn meanwhile, so that the lock is none."""

    def __init__(self) -> None:
        self._wakers: list[Callable[[], None]] = []

    def __enter__(self) -> SimulatedCondition:
        return self

    def __exit__(self, *_: object) -> None: ...

    def notify(self) -> None:
        wakers, self._wakers = self._wakers, []
        for wake in wakers:
            wake()

    def wait_for(self, predicate: Callable[[], bool], timeout: float | None = None) -> bool:
        while not predicate():
            worker = _running()
            self._wakers.append(worker.wait(None if timeout is None else round(timeout * 1000)))
            worker.park()
            if timeout is not None:
                return predicate()
        return True


class SimulatedThreading:
    """Stands in for the module `threading`."""

    Lock = threading.Lock
    Event = SimulatedEvent
    Condition = SimulatedCondition

    def __init__(self, world: World) -> None:
        def thread(target: Callable[[], Any], name: str = "", daemon: bool = True, args: tuple[Any, ...] = ()) -> Any:
            return _Thread(world, target, args)

        def timer(seconds: float, function: Callable[..., Any], args: tuple[Any, ...] = ()) -> _Timer:
            return _Timer(world, seconds, function, args)

        self.Thread = thread
        self.Timer = timer


class _Thread:
    def __init__(self, world: World, target: Callable[..., Any], args: tuple[Any, ...]) -> None:
        assert world.current is not None
        self._worker = Worker(world.current, lambda: target(*args))

    def start(self) -> None:
        self._worker.start()

    def is_alive(self) -> bool:
        return False  # nobody waits for the end of a thread

    def join(self) -> None: ...


class _Timer:
    daemon = True

    def __init__(self, world: World, seconds: float, function: Callable[..., Any], args: tuple[Any, ...]) -> None:
        assert world.current is not None
        self._process = world.current
        self._seconds = seconds
        self._function: Callable[[], Any] | None = lambda: function(*args)

    def start(self) -> None:
        self._process.later(round(self._seconds * 1000), self._due)

    def cancel(self) -> None:
        self._function = None

    def _due(self) -> None:
        if self._function is not None:
            self._function()
