"""The machine contract: how a core and its shell talk.

A core is a class with one mutating entry point, `handle(event, now_ms) -> list[effect]`. It checks, then mutates: a
refused event leaves it unchanged and yields a refusal among the effects. Time comes in as an argument; timers are
effects (`StartTimer`) that the shell answers with `TimerFired`. Only a broken invariant raises, and then the shell
stops. `handle` dispatches by `match`. A part of a core returns its effects; a core whose effects come from many methods
keeps them in `CollectedEffects`, which its entry point hands over. Nothing fills a list that somebody else passed in.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Protocol, TypeVar

T = TypeVar("T")
EventT = TypeVar("EventT", contravariant=True)
EffectT = TypeVar("EffectT")


class InvariantViolation(Exception):
    """A core found itself in a state that its own rules exclude. A defect of ours: the shell must stop."""


def check(condition: T | None, why: str) -> T:
    """Raise InvariantViolation(why) when the condition is False or None; returns it otherwise, so that a value that
    must be there is narrowed: `backend = check(self.backend, "open was called")`. An empty collection and 0 are values.
    Never stripped, unlike assert."""
    if condition is None or condition is False:
        raise InvariantViolation(why)
    return condition


class CollectedEffects(list[T]):
    """The effects that a core has decided on since its entry point was called, in order."""

    def take(self) -> list[T]:
        """Hand over all effects, and begin anew."""
        effects = list(self)
        self.clear()
        return effects


@dataclass(frozen=True, slots=True)
class StartTimer:
    """Effect: answer with TimerFired(key) at `at_ms`. A second StartTimer with an equal key replaces the first."""

    key: Hashable
    at_ms: int


@dataclass(frozen=True, slots=True)
class CancelTimer:
    """Effect: forget the timer with this key, if there is one."""

    key: Hashable


@dataclass(frozen=True, slots=True)
class TimerFired:
    """Event: the timer with this key is due. The shell drops firings of cancelled or replaced timers."""

    key: Hashable


class Machine(Protocol[EventT, EffectT]):
    """What every core on the control path looks like to its shell."""

    def handle(self, event: EventT, now_ms: int) -> list[EffectT]:
        """Take one event at the time `now_ms` (milliseconds since the epoch, never going back) and say what to do."""
        ...
