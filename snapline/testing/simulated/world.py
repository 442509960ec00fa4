"""What a simulated run happens in: one clock, one network, one disk, the processes on them, and the story of it all.

Decides how a process dies: `ProcessKilled` unwinds whatever the process is doing at that instant, and nothing that it
planned happens afterwards. Every random choice comes from a generator named after its purpose, drawn from the one seed,
so that a choice more in one place leaves the others as they were. Actors here are `snapline.runtime.actor.MachineActor`
without a thread.
"""

from __future__ import annotations

import hashlib
import random
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

import cloudpickle

from snapline.runtime.cores.machine import CancelTimer, InvariantViolation, StartTimer, TimerFired
from snapline.testing.simulated.network import SimulatedClock, SimulatedNetwork, SimulatedTimers


class ProcessKilled(BaseException):
    """SIGKILL in the middle of something. Not an Exception: no handler of the product may catch it."""


class Violation(BaseException):
    """An oracle was contradicted. Not an Exception: a task must not fail by it and be started again."""


class Defect(BaseException):
    """The product raised what nobody expects, and would have made a failure of a task or of an effect of it."""


class SimulatedStory:
    """What happened, in order; two runs of one seed tell the same."""

    def __init__(self, clock: SimulatedClock, *, keep: bool) -> None:
        self._clock = clock
        self._keep = keep
        self._digest = hashlib.blake2b(digest_size=12)
        self._begun_ms = clock.now_ms
        self.lines: list[str] = []

    def say(self, who: str, what: str) -> None:
        line = f"{self._clock.now_ms - self._begun_ms:>7} {who:<14} {what}"
        self._digest.update(line.encode())
        if self._keep:
            self.lines.append(line)

    @property
    def hash(self) -> str:
        return self._digest.hexdigest()


class World:
    """Shared by everything in one run."""

    def __init__(self, seed: int, *, max_delay_ms: int, keep_story: bool = False) -> None:
        self.seed = seed
        self.clock = SimulatedClock()
        self.network = SimulatedNetwork(self.clock, self.random("network"), max_delay_ms)
        self.story = SimulatedStory(self.clock, keep=keep_story)
        self.steps = 0
        self.current: Process | None = None
        """The process that does something at this moment."""
        self.skew_ms: Callable[[], int] = lambda: 0
        """How far the clock of the next process is off."""
        self.processes: list[Process] = []
        self.arrived: Callable[[bytes], Any] = cloudpickle.loads
        """Read a pickled specification, as the task does that it was sent to."""
        self.run_blocking: Callable[[Process, Callable[[], Any], int], object] = _run_at_once
        """Do work of a process after so long that may wait for others, and needs a thread of its own then."""
        self.check_error: Callable[[BaseException, str], None] = lambda *_: None
        """An oracle may raise for what slow work in a coordinator has raised, which its core is told."""
        self._numbers: dict[str, int] = {}

    def end_workers(self) -> None:
        """Unwind what is left of all processes, because the run is over."""
        for process in self.processes:
            process.alive = False
            for worker in list(process.workers):
                worker.abandon()

    def random(self, purpose: str) -> random.Random:
        """A generator of its own for each purpose."""
        return random.Random(f"{self.seed}/{purpose}")  # noqa: S311 - replayed from the seed

    def number(self, what: str) -> int:
        """1, 2, 3, ... by kind of thing."""
        self._numbers[what] = self._numbers.get(what, 0) + 1
        return self._numbers[what]


def _run_at_once(process: Process, work: Callable[[], Any], delay_ms: int) -> None:
    process.later(delay_ms, work)


class Process:
    """Something that can be killed."""

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self.alive = True
        self.frozen_until_ms = 0
        self.workers: dict[Any, None] = {}
        """The threads of the process that have not ended (`tests.simulation.threads.Worker`)."""
        self.on_jump: list[Callable[[], object]] = []
        """Called when its clock has jumped."""
        self._clock_offset_ms = world.skew_ms()
        world.processes.append(self)

    @property
    def now_ms(self) -> int:
        """What its own clock says: it never goes back, and differs from those of others."""
        return self.world.clock.now_ms + self._clock_offset_ms

    def jump(self, by_ms: int) -> None:
        """Let the clock of the process leap forward, and everything that waits for a time with it."""
        self._clock_offset_ms += by_ms
        for rearm in self.on_jump:
            rearm()

    def freeze(self, duration_ms: int) -> None:
        """Let the process do nothing for a while without knowing it (SIGSTOP, a machine that swaps); others see
        silence."""
        self.frozen_until_ms = self.world.clock.now_ms + duration_ms

    def later(self, delay_ms: int, action: Callable[[], object]) -> None:
        """Do it in this process, if it still lives by then."""
        self.world.clock.after(delay_ms, lambda: self.run(action))

    def run(self, action: Callable[[], object]) -> None:
        """Do it now, in this process."""
        if not self.alive:
            return
        if self.world.clock.now_ms < self.frozen_until_ms:
            self.world.clock.at(self.frozen_until_ms, lambda: self.run(action))
            return
        before, self.world.current = self.world.current, self
        try:
            action()
        except ProcessKilled:
            self.ended()
        finally:
            self.world.current = before

    def kill(self) -> None:
        """From outside, between two things that it does."""
        if self.alive:
            self.ended()

    def kill_here(self) -> None:
        """In the middle of what it does."""
        self.alive = False
        raise ProcessKilled(self.name)

    def ended(self) -> None:
        """The process is gone; what others see of it."""
        self.alive = False
        self.world.network.crash(self.name)
        for worker in list(self.workers):
            worker.abandon()


class SimulatedActor:
    """One core with its shell: events in order, one at a time, effects performed before the next."""

    def __init__(
        self,
        process: Process,
        name: str,
        core: Any,
        performers: Mapping[type, Callable[[Any], None]],
        observe: Callable[[str, Any, list[Any]], None] = lambda *_: None,
    ) -> None:
        self.name = name
        self.core = core
        self.stopped = False
        self._process = process
        self._performers = dict(performers)
        self._observe = observe
        self._inbox: deque[Any] = deque()
        self._timers = SimulatedTimers(
            process.world.clock, lambda key: self.tell(TimerFired(key)), lambda: process.now_ms
        )
        process.on_jump.append(self._timers.rearm)
        self._performers[StartTimer] = lambda effect: self._timers.start(effect.key, effect.at_ms)
        self._performers[CancelTimer] = lambda effect: self._timers.cancel(effect.key)
        self._scheduled = False

    def tell(self, event: Any) -> bool:
        """Handled soon, after everything told before; False: it has stopped."""
        if self.stopped or not self._process.alive:
            return False
        self._inbox.append(event)
        if not self._scheduled:
            self._scheduled = True
            self._process.later(0, self._drain)
        return True

    def stop(self) -> None:
        self.stopped = True
        self._timers.clear()

    def _drain(self) -> None:
        self._scheduled = False
        while self._inbox and not self.stopped:
            event = self._inbox.popleft()
            effects = self.core.handle(event, self._process.now_ms)
            self._observe(self.name, event, effects)
            for effect in effects:
                performer = self._performers.get(type(effect))
                if performer is None:
                    raise InvariantViolation(f"{self.name} cannot perform {type(effect).__name__}")
                performer(effect)


class SilentLogger:
    """What shells log goes nowhere."""

    def bind(self, **_: Any) -> SilentLogger:
        return self

    def debug(self, *_: Any, **__: Any) -> None: ...

    info = warning = error = debug


class SimulatedTime:
    """Stands in for the module `time` where a store writes down when a job was submitted."""

    def __init__(self, world: World) -> None:
        self._world = world

    def time_ns(self) -> int:
        return self._world.clock.now_ms * 1_000_000


class WorldClock:
    """`snapline.runtime.clock.Clock` and the part of `TimerScheduler` that shells use, on simulated time."""

    def __init__(self, process: Process) -> None:
        self._process = process

    def now_ms(self) -> int:
        return self._process.now_ms

    def seconds_until(self, at_ms: int) -> float:
        return (at_ms - self.now_ms()) / 1000

    def schedule(self, at_ms: int, action: Callable[[], None]) -> None:
        self._process.later(max(0, at_ms - self.now_ms()), action)
