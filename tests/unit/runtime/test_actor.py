"""The actor shell: events in, effects performed in order, and what happens when the core breaks."""

from __future__ import annotations

import queue
import threading
from dataclasses import dataclass

import pykka
import pytest

from snapline.dataflow.ids import LeaderSessionID
from snapline.dataflow.wire.messages import Disconnect, Fenced, ShutDownTaskExecutor
from snapline.runtime.actor import (
    ActorCrashed,
    EventBatcher,
    MachineActor,
    Query,
    describe,
    tell_if_alive,
)
from snapline.runtime.clock import ManualClock, SystemClock
from snapline.runtime.cores.connections import ConnectionID, MessageReceived, MessagesReceived, TogetherReceived
from snapline.runtime.cores.inbox import Events, Incoming
from snapline.runtime.cores.machine import CancelTimer, InvariantViolation, StartTimer, TimerFired
from snapline.runtime.logs import silent_logger
from snapline.runtime.timers import TimerScheduler


@dataclass(frozen=True)
class Say:
    text: str


class Parrot:
    """A core that does what the event says."""

    def __init__(self):
        self.events = []

    def handle(self, event, now_ms):
        self.events.append(event)
        if isinstance(event, Exception):
            raise event
        return event if isinstance(event, list) else []


class Cage:
    def __init__(self, clock=None):
        self.core = Parrot()
        self.said: queue.Queue[str] = queue.Queue()
        self.crashes: list[ActorCrashed] = []
        self.clock = clock or SystemClock()
        self.timers = TimerScheduler(self.clock)
        self.actor = MachineActor.start(
            "parrot", self.core, {Say: lambda effect: self.said.put(effect.text)}, self.timers, self.clock,
            silent_logger(), self.crashes.append, lambda: self.said.put("flush"),
        )  # fmt: skip

    def next(self, n):
        return [self.said.get(timeout=10) for _ in range(n)]


@pytest.fixture
def cage():
    cage = Cage()
    yield cage
    cage.timers.close()
    tell_if_alive(cage.actor, None)
    cage.actor.actor_stopped.wait(0)
    if cage.actor.is_alive():
        cage.actor.stop()


def test_effects_are_performed_in_order_and_leave_together(cage):
    """What performers buffer leaves once per message of the inbox, not once per effect."""
    cage.actor.tell([Say("a"), Say("b")])
    cage.actor.tell(Events(([Say("c")], [Say("d")])))
    assert cage.next(6) == ["a", "b", "flush", "c", "d", "flush"]


def test_messages_that_the_core_takes_together_are_one_event(cage):
    """As long as they stand together; what is between them keeps its place."""
    cage.actor.stop()
    cage.actor = MachineActor.start(
        "parrot", cage.core, {}, cage.timers, cage.clock, silent_logger(), cage.crashes.append,
        lambda: cage.said.put("flush"), frozenset({ShutDownTaskExecutor}),
    )  # fmt: skip
    connection, session = ConnectionID("c"), LeaderSessionID("s")
    many = [ShutDownTaskExecutor("one"), ShutDownTaskExecutor("two")]
    word = Disconnect("in between")
    cage.actor.tell(Incoming(connection, session, [*many, word, many[0]]))
    cage.next(1)
    assert cage.core.events == [
        TogetherReceived((MessagesReceived(connection, session, tuple(many)),)),
        MessageReceived(connection, Fenced(session, word)),
        TogetherReceived((MessagesReceived(connection, session, (many[0],)),)),
    ]
    cage.core.events.clear()
    other = ConnectionID("d")
    envelopes = [Incoming(connection, session, many), Incoming(other, session, [many[1], word]), []]
    cage.actor.tell(Events((*envelopes[:1], Events(tuple(envelopes[1:])), Incoming(other, session, [many[0]]))))
    cage.next(1)
    assert cage.core.events == [
        TogetherReceived(
            (MessagesReceived(connection, session, tuple(many)), MessagesReceived(other, session, (many[1],)))
        ),
        MessageReceived(other, Fenced(session, word)),
        [],
        TogetherReceived((MessagesReceived(other, session, (many[0],)),)),
    ]


def test_messages_of_two_types_are_not_taken_for_one(cage):
    """Each type that the core takes together is an event of its own, also where envelopes stand side by side."""
    cage.actor.stop()
    cage.actor = MachineActor.start(
        "parrot", cage.core, {}, cage.timers, cage.clock, silent_logger(), cage.crashes.append,
        lambda: cage.said.put("flush"), frozenset({ShutDownTaskExecutor, Disconnect}),
    )  # fmt: skip
    connection, session = ConnectionID("c"), LeaderSessionID("s")
    one, two = ShutDownTaskExecutor("one"), Disconnect("two")
    told = [Incoming(connection, session, said) for said in ([one], [two], [], [two, one], [one])]
    cage.actor.tell(Events(tuple(told)))
    cage.next(1)
    assert cage.core.events == [
        TogetherReceived((MessagesReceived(connection, session, (one,)),)),
        TogetherReceived(
            (MessagesReceived(connection, session, (two,)), MessagesReceived(connection, session, (two,)))
        ),
        TogetherReceived(
            (MessagesReceived(connection, session, (one,)), MessagesReceived(connection, session, (one,)))
        ),
    ]


def test_an_envelope_is_one_event_per_message(cage):
    """In order, each with the session of the envelope."""
    said = [Disconnect("one"), Disconnect("two")]
    cage.actor.tell(Incoming(ConnectionID("c"), LeaderSessionID("s"), said))
    cage.next(1)
    each = [MessageReceived(ConnectionID("c"), Fenced(LeaderSessionID("s"), word)) for word in said]
    assert cage.core.events == each
    cage.actor.tell(
        Events((Incoming(ConnectionID("c"), LeaderSessionID("s"), said),))
    )  # also what came before the actor was there
    cage.next(1)
    assert cage.core.events == each + each


def test_events_of_many_threads_arrive_together_and_in_order(cage):
    """What was added while the actor was busy is handled in one go."""
    batcher = EventBatcher(cage.actor)
    busy = threading.Event()
    cage.actor.tell(Query(lambda core: busy.wait(10)))
    for word in "abc":
        batcher.add([Say(word)])
    busy.set()
    assert cage.next(4) == ["a", "b", "c", "flush"]


def test_timers_of_the_core_come_back_as_events(cage):
    """Except the cancelled one."""
    cage.actor.tell([StartTimer("kept", 0), StartTimer("dropped", 10**15), CancelTimer("dropped")])
    cage.next(2)  # the message, and the timer
    assert cage.actor.ask(Query(lambda core: core.events[-1])) == TimerFired("kept")


def test_a_query_reads_the_core(cage):
    """After everything that was told before it."""
    cage.actor.tell([])
    assert cage.actor.ask(Query(lambda core: len(core.events))) == 1
    assert cage.core.events == [[]]


def test_a_query_that_fails_is_its_askers_business(cage):
    """The actor goes on."""
    with pytest.raises(ZeroDivisionError):
        cage.actor.ask(Query(lambda core: 1 / 0))
    cage.actor.tell([Say("still here")])
    assert cage.next(2) == ["still here", "flush"]


@pytest.mark.parametrize("how", ["tell", "ask"])
def test_a_core_that_raises_stops_its_actor(cage, how):
    """Under ask too, where pykka alone would go on; nothing that comes later is handled."""
    broken = InvariantViolation("two pending checkpoints with one id")
    if how == "ask":
        cage.actor.ask(broken)
    else:
        cage.actor.tell(broken)
    assert cage.actor.actor_stopped.wait(10)
    with pytest.raises(pykka.ActorDeadError):
        cage.actor.tell([Say("too late")])
    assert [(crash.name, crash.error) for crash in cage.crashes] == [("parrot", broken)]
    assert cage.said.empty()


def test_an_effect_that_nobody_performs_stops_the_actor(cage):
    """A composition that forgot one must not look as if it worked."""
    cage.actor.tell([Say("a"), 42])
    assert cage.actor.actor_stopped.wait(10)
    assert "parrot cannot perform int" in str(cage.crashes[0].error)


def test_telling_a_stopped_actor_says_so(cage):
    """The one who tells is often a timer or a stream, and only wants to know."""
    cage.actor.stop()
    assert not tell_if_alive(cage.actor, [])


def test_descriptions_are_bounded():
    """A log line must not hold a job's payload."""
    assert len(describe("x" * 10_000)) == 400
    assert describe(Fenced(LeaderSessionID("s"), 1)) == "Fenced(leader_session_id='s', message=1)"


def test_the_core_gets_the_time_of_the_clock():
    """And nothing else reads a clock."""
    seen = []

    class Watch:
        def handle(self, event, now_ms):
            seen.append(now_ms)
            return []

    clock = ManualClock(1234)
    timers = TimerScheduler(clock)
    actor = MachineActor.start("watch", Watch(), {}, timers, clock, silent_logger(), seen.append)
    actor.ask("event")
    actor.stop()
    assert seen == [1234]
