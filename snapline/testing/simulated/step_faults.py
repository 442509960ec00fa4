"""Faults at the steps of a connector: the process dies, the call fails, or the leader dies, at one call of one method.

Decides when a fault is due: at the n-th call of its method since the fault before it has come, just before the call or
just after it, when what it has done is done and nobody has heard of it. Counts the calls of all methods, so that a
run without faults says which steps there are.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from snapline.testing.simulated.world import World

KILL, FAIL, LEADER, RESCALED = "kill", "fail", "leader", "rescale"
BEFORE, AFTER = "before", "after"
_MOMENTS = ((KILL, BEFORE), (KILL, AFTER), (FAIL, BEFORE), (FAIL, AFTER), (LEADER, AFTER), (RESCALED, AFTER))
_AFTER_RESTART = ((KILL, BEFORE), (KILL, AFTER), (FAIL, AFTER))
_SAID = {
    KILL: "the process is killed",
    FAIL: "an exception is raised",
    LEADER: "the coordinator is killed, and another leader adopts the job,",
    RESCALED: "the job is rescaled",
}


class SimulatedStepFailure(RuntimeError):
    """A call of a connector fails because the simulator says so."""


@dataclass(frozen=True)
class StepFault:
    """One fault at one call."""

    step: str
    """Name of a method of the connector, such as `prepare_commit`."""
    number: int
    """Which call of it, from 1, since the fault before this one."""
    kind: str
    moment: str

    def __str__(self) -> str:
        return f"{_SAID[self.kind]} {self.moment} call {self.number} of {self.step}"


class StepFaults:
    """The faults of one run, which come one after the other."""

    def __init__(self, world: World, faults: Sequence[StepFault], others: Mapping[str, Callable[[], object]]) -> None:
        """`others`: how to do what is done to others than the process that calls, by kind."""
        self._world = world
        self._left = list(faults)
        self._others = others
        self._since: Counter[str] = Counter()
        self.calls: Counter[str] = Counter()
        """How often each method was called."""
        self.come = 0
        """How many of the faults have come."""

    def at(self, step: str, moment: str) -> None:
        """A method is about to be called, or has returned. Raises what kills the process, or fails the call."""
        if moment == BEFORE:
            self.calls[step] += 1
            self._since[step] += 1
        fault = self._left[0] if self._left else None
        if fault is None or (fault.step, fault.moment) != (step, moment) or self._since[step] != fault.number:
            return
        del self._left[0]
        self._since.clear()
        self.come += 1
        self._world.story.say("faults", str(fault))
        process = self._world.current
        if fault.kind in self._others:
            self._others[fault.kind]()
        elif fault.kind == KILL and process is not None:
            process.kill_here()
        else:
            raise SimulatedStepFailure(f"{step} fails {moment} it was done (simulated)")


def faults_at_every_step(calls: Counter[str], rng: random.Random) -> list[tuple[StepFault, ...]]:
    """One sequence of faults for each run: at the first, a middle and the last call of each method, in all ways; and,
    after a process was killed in the middle, at the first call of each method in the attempt that follows."""
    first: list[tuple[StepFault, ...]] = []
    for step, count in sorted(calls.items()):
        numbers = sorted({1, count, rng.randint(1, count)})
        first += [(StepFault(step, number, kind, moment),) for number in numbers for kind, moment in _MOMENTS]
    begun = [step for step in ("prepare_commit", "snapshot_splits") if step in calls]
    again: list[tuple[StepFault, ...]] = []
    for earlier in begun:
        kill = StepFault(earlier, (calls[earlier] + 1) // 2, KILL, AFTER)
        again += [(kill, StepFault(step, 1, kind, moment)) for step in sorted(calls) for kind, moment in _AFTER_RESTART]
    return first + again


def faults_while_rescaled() -> list[tuple[StepFault, ...]]:
    """Rescale, and kill before the commit of the snapshot that this takes: then a restored subtask commits what another
    one has written."""
    rescaled = StepFault("prepare_commit", 1, RESCALED, AFTER)
    return [(rescaled, StepFault("commit", number, KILL, BEFORE)) for number in range(3, 8)]
