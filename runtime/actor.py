"""The actor shell: a pykka actor around one core.

Feeds the core one event at a time and performs its effects, in order. It has no `if` about what the core is for: what
an effect means is said by the table of performers that the composition root hands in. Rules that it keeps:

* Actors are only told. Nothing waits for an answer, except `Query`, for a gRPC handler or a test at the edge.
* An exception out of the core or out of a performer is a defect: the shell says so, drops everything that comes later,
  and stops itself; pykka alone would go on after an exception under `ask`. Only a failing `Query` is its asker's
  business.
* Slow or failing work is not done here: its performer hands it to an executor, whose answer is told as an event.
* What performers buffer (messages to connections) leaves in `after_events`, once per message of the inbox.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import pykka

from snapline.runtime.clock import Clock
from snapline.runtime.cores.connections import MessageReceived
from snapline.runtime.cores.inbox import Events, Inbox
from snapline.runtime.cores.machine import CancelTimer, InvariantViolation, Machine, StartTimer
from snapline.runtime.logs import Logger, logs_debug
from snapline.runtime.timers import TimerDue, TimerScheduler, TimerTable

ResultT = TypeVar("ResultT")
Performer = Callable[[Any], None]


class EventBatcher:
    """Collects events of many threads for one actor: what comes while the actor is busy is one message of its inbox."""

    def __init__(self, actor: pykka.ActorRef[Any]) -> None:
        self._actor = actor
        self._lock = threading.Lock()
        self._waiting: list[Any] = []

    def add(self, event: Any) -> None:
        """Tell the actor, soon and in order. Dropped when it has stopped."""
        with self._lock:
            self._waiting.append(event)
            first = len(self._waiting) == 1
        if first:
            tell_if_alive(self._actor, self)

    def take(self) -> list[Any]:
        """All that waits; for the actor."""
        with self._lock:
            waiting, self._waiting = self._waiting, []
        return waiting


@dataclass(frozen=True, slots=True)
class Query(Generic[ResultT]):
    """Read something off the core: `ask` returns what the function returns. It must not change anything."""

    read: Callable[[Any], ResultT]


@dataclass(frozen=True, slots=True)
class ActorCrashed:
    """What `on_crash` is told when an actor stops after an exception."""

    name: str
    event: str
    error: BaseException


class MachineActor(pykka.ThreadingActor):
    """One core with its shell."""

    use_daemon_thread = True

    def __init__(
        self,
        name: str,
        machine: Machine[Any, Any],
        performers: Mapping[type, Performer],
        timers: TimerScheduler,
        clock: Clock,
        logger: Logger,
        on_crash: Callable[[ActorCrashed], None],
        after_events: Callable[[], None] = lambda: None,
        taken_together: frozenset[type] = frozenset(),
    ) -> None:
        """`taken_together`: kinds of messages that the core takes as TogetherReceived."""
        super().__init__()
        self._name = name
        self._machine = machine
        self._performers = dict(performers)
        self._clock = clock
        self._logger = logger
        self._on_crash = on_crash
        self._after_events = after_events
        self._inbox = Inbox(taken_together)
        self._timers = TimerTable(timers, self._tell_timer)
        self._performers[StartTimer] = lambda effect: self._timers.start(effect.key, effect.at_ms)
        self._performers[CancelTimer] = lambda effect: self._timers.cancel(effect.key)

    @staticmethod
    def _create_actor_inbox() -> Any:
        """One lock in C: a message wakes its actor once, where pykka's wakes it to wait for the lock of the sender."""
        return queue.SimpleQueue()

    def on_receive(self, message: Any) -> Any:
        if type(message) is Query:
            return message.read(self._machine)
        try:
            self._receive(message)
            self._after_events()
        except BaseException as error:
            self._break_down(message, error)
        return None

    def on_stop(self) -> None:
        self._timers.close()

    def on_failure(self, *_exception: Any) -> None:
        self._timers.close()

    def _receive(self, message: Any) -> None:
        if type(message) is TimerDue:
            fired = self._timers.fired(message)
            if fired is not None:
                self._handle(fired)
            return
        told = Events(tuple(message.take())) if type(message) is EventBatcher else message
        for event in self._inbox.events(told):
            self._handle(event)

    def _handle(self, event: Any) -> None:
        now_ms = self._clock.now_ms()
        effects = self._machine.handle(event, now_ms)
        if logs_debug(self._logger):  # asked each time, because the level may change
            self._log(event, effects, now_ms)
        for effect in effects:
            performer = self._performers.get(type(effect))
            if performer is None:
                raise InvariantViolation(f"{self._name} cannot perform {type(effect).__name__}")
            performer(effect)

    def _log(self, event: Any, effects: Iterable[Any], now_ms: int) -> None:
        cause: dict[str, Any] = {"cause": describe(event)}
        if type(event) is MessageReceived:
            cause = {"cause": describe(event.envelope.message), "connection": event.connection}
        self._logger.debug("handled", now_ms=now_ms, effects=[describe(effect) for effect in effects], **cause)

    def _tell_timer(self, due: TimerDue) -> None:
        tell_if_alive(self.actor_ref, due)

    def _break_down(self, message: Any, error: BaseException) -> None:
        self._timers.close()
        crash = ActorCrashed(self._name, describe(message), error)
        self._logger.error("actor broke down", cause=crash.event, exc_info=error)
        self.actor_stopped.set()
        pykka.ActorRegistry.unregister(self.actor_ref)
        self._on_crash(crash)


MAX_DESCRIPTION = 400


def describe(value: Any) -> str:
    """A value in one line of bounded length, for logs."""
    text = repr(value)
    return text if len(text) <= MAX_DESCRIPTION else f"{text[: MAX_DESCRIPTION - 3]}..."


def tell_if_alive(actor: pykka.ActorRef[Any], message: Any) -> bool:
    """Tell, unless the actor has stopped; False: it has."""
    try:
        actor.tell(message)
    except pykka.ActorDeadError:
        return False
    return True
