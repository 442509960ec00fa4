"""LeaderConnection: registered, watched, given up, found again."""

from __future__ import annotations

import itertools

from snapline.dataflow.ids import LeaderSessionID
from snapline.dataflow.wire.messages import Fenced, HeartbeatRequest, RegistrationSuccess
from snapline.runtime.cores.connections import (
    CloseConnection,
    ConnectionID,
    ConnectionLost,
    ConnectionOpened,
    MessageReceived,
    OpenConnection,
    Peer,
    PeerKind,
    Send,
)
from snapline.runtime.cores.heartbeat import HeartbeatTimer
from snapline.runtime.cores.leader_connection import LEADER, LeaderConnection, LeaderSaid
from snapline.runtime.cores.machine import CancelTimer, StartTimer, TimerFired
from snapline.runtime.cores.registration import (
    Registered,
    RegistrationLost,
    RegistrationSettings,
    RegistrationTimer,
)

ONE, TWO = LeaderSessionID("one"), LeaderSessionID("two")
RM = Peer(PeerKind.RESOURCE_MANAGER, "host:1")
ATTEMPT, SILENCE = RegistrationTimer("rm", "attempt"), HeartbeatTimer("rm", LEADER)
SUCCESS = RegistrationSuccess(10, 50)


def dial(number: int) -> ConnectionID:
    return ConnectionID(f"dial-{number}")


def registered() -> LeaderConnection:
    numbers = itertools.count(1)
    core = LeaderConnection("rm", RegistrationSettings(100, 400), "me", lambda: dial(next(numbers)))
    core.leader_changed(RM, ONE, 0)
    core.handle(ConnectionOpened(dial(1)), 0)
    assert core.handle(MessageReceived(dial(1), Fenced(ONE, SUCCESS)), 0) == [
        CancelTimer(ATTEMPT),
        StartTimer(SILENCE, 50),
        Registered(dial(1), ONE, SUCCESS),
    ]
    return core


def test_messages_are_handed_on_and_prove_life() -> None:
    """Whatever the leader says moves the deadline."""
    core = registered()

    assert core.handle(MessageReceived(dial(1), Fenced(ONE, HeartbeatRequest())), 30) == [
        LeaderSaid(HeartbeatRequest())
    ]
    assert core.handle(TimerFired(SILENCE), 50) == [StartTimer(SILENCE, 80)]
    assert core.send("hello") == [Send(dial(1), Fenced(ONE, "hello"))]


def test_messages_of_another_session_are_dropped() -> None:
    """And prove nothing."""
    core = registered()

    assert core.handle(MessageReceived(dial(1), Fenced(TWO, HeartbeatRequest())), 30) == []
    assert core.handle(TimerFired(SILENCE), 50)[0] == RegistrationLost(dial(1), "no heartbeat for 50 ms", silent=True)


def test_a_silent_leader_is_given_up_and_dialled_again() -> None:
    """The owner hears that it was silence, not a broken connection."""
    core = registered()

    assert core.handle(TimerFired(SILENCE), 50) == [
        RegistrationLost(dial(1), "no heartbeat for 50 ms", silent=True),
        CloseConnection(dial(1)),
        OpenConnection(dial(2), RM),
        StartTimer(ATTEMPT, 150),
    ]
    assert core.send("hello") == []


def test_a_broken_connection_stops_the_heartbeats() -> None:
    """They begin again with the next registration."""
    core = registered()

    assert core.handle(ConnectionLost(dial(1), "reset"), 20) == [
        CancelTimer(SILENCE),
        RegistrationLost(dial(1), "reset"),
        OpenConnection(dial(2), RM),
        StartTimer(ATTEMPT, 120),
    ]


def test_another_leader_and_the_end_leave_no_timer() -> None:
    """Heartbeats of the old one are cancelled."""
    core = registered()

    assert core.leader_changed(RM, TWO, 20)[:2] == [CancelTimer(SILENCE), CloseConnection(dial(1))]
    assert core.stop() == [CancelTimer(ATTEMPT), CloseConnection(dial(2))]


def test_it_knows_its_own_events() -> None:
    """Among those of other connections of the same process."""
    core = registered()

    assert core.owns(TimerFired(SILENCE)) and core.owns(TimerFired(ATTEMPT)) and core.owns(ConnectionLost(dial(1), ""))
    assert not core.owns(TimerFired(HeartbeatTimer("jm", LEADER)))
    assert not core.owns(ConnectionLost(dial(2), ""))
    assert not core.owns(TimerFired("something else"))
