"""RetryingRegistration: patience that doubles, pauses by cause, and one word when it is hopeless."""

from __future__ import annotations

import itertools

import pytest

from snapline.dataflow.ids import LeaderSessionID
from snapline.dataflow.wire.messages import Disconnect, Fenced, RegistrationRejected, RegistrationSuccess
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
from snapline.runtime.cores.machine import CancelTimer, StartTimer, TimerFired
from snapline.runtime.cores.registration import (
    Registered,
    RegistrationFailed,
    RegistrationLost,
    RegistrationSettings,
    RegistrationState,
    RegistrationTimedOut,
    RegistrationTimer,
    RetryingRegistration,
)

ATTEMPT = RegistrationTimer("rm", "attempt")
TOTAL = RegistrationTimer("rm", "total")
ONE, TWO = LeaderSessionID("one"), LeaderSessionID("two")
RM = Peer(PeerKind.RESOURCE_MANAGER, "host:1")
OTHER = Peer(PeerKind.RESOURCE_MANAGER, "host:2")
SUCCESS = RegistrationSuccess(10_000, 50_000)


def dial(number: int) -> ConnectionID:
    return ConnectionID(f"dial-{number}")


def registration(total_timeout_ms: int = 5_000) -> RetryingRegistration:
    numbers = itertools.count(1)
    settings = RegistrationSettings(100, 300, error_delay_ms=50, refused_delay_ms=70, total_timeout_ms=total_timeout_ms)
    return RetryingRegistration("rm", settings, "register me", lambda: dial(next(numbers)))


def registered() -> RetryingRegistration:
    core = registration()
    core.register_at(RM, ONE, 0)
    core.handle(ConnectionOpened(dial(1)), 1)
    core.handle(MessageReceived(dial(1), Fenced(ONE, SUCCESS)), 2)
    assert core.is_registered
    return core


def test_registers_when_the_connection_opens_and_the_leader_agrees() -> None:
    """The straight way: dial, ask, registered, both timers gone."""
    core = registration()

    assert core.register_at(RM, ONE, 0) == [
        StartTimer(TOTAL, 5_000),
        OpenConnection(dial(1), RM),
        StartTimer(ATTEMPT, 100),
    ]
    assert core.handle(ConnectionOpened(dial(1)), 10) == [Send(dial(1), Fenced(ONE, "register me"))]
    assert core.handle(MessageReceived(dial(1), Fenced(ONE, SUCCESS)), 20) == [
        CancelTimer(ATTEMPT),
        CancelTimer(TOTAL),
        Registered(dial(1), ONE, SUCCESS),
    ]


def test_patience_doubles_up_to_its_bound() -> None:
    """No answer: a new connection at once, with twice the time, at most 300 ms."""
    core = registration()
    core.register_at(RM, ONE, 0)

    waits = []
    now_ms = 0
    for number in range(1, 5):
        now_ms += 100
        effects = core.handle(TimerFired(ATTEMPT), now_ms)
        assert effects[:2] == [CloseConnection(dial(number)), OpenConnection(dial(number + 1), RM)]
        timer = effects[2]
        assert isinstance(timer, StartTimer)
        waits.append(timer.at_ms - now_ms)

    assert waits == [200, 300, 300, 300]


def test_a_lost_attempt_pauses_by_the_error_delay() -> None:
    """Nobody listens there: wait a moment, then dial again."""
    core = registration()
    core.register_at(RM, ONE, 0)

    assert core.handle(ConnectionLost(dial(1), "refused"), 5) == [StartTimer(ATTEMPT, 55)]
    assert core.handle(TimerFired(ATTEMPT), 55) == [OpenConnection(dial(2), RM), StartTimer(ATTEMPT, 155)]


def test_a_disconnect_as_answer_pauses_by_the_refused_delay() -> None:
    """The leader does not want us now."""
    core = registration()
    core.register_at(RM, ONE, 0)
    core.handle(ConnectionOpened(dial(1)), 1)

    assert core.handle(MessageReceived(dial(1), Fenced(ONE, Disconnect("busy"))), 5) == [
        CloseConnection(dial(1)),
        StartTimer(ATTEMPT, 75),
    ]


def test_a_rejection_is_final_until_there_is_another_leader() -> None:
    """Rejected means: do not ask this one again."""
    core = registration()
    core.register_at(RM, ONE, 0)
    core.handle(ConnectionOpened(dial(1)), 1)

    assert core.handle(MessageReceived(dial(1), Fenced(ONE, RegistrationRejected("version"))), 5) == [
        CancelTimer(ATTEMPT),
        CancelTimer(TOTAL),
        CloseConnection(dial(1)),
        RegistrationFailed("version"),
    ]
    assert core.register_at(RM, ONE, 6) == []
    assert core.register_at(OTHER, TWO, 7)[1:] == [OpenConnection(dial(2), OTHER), StartTimer(ATTEMPT, 107)]


def test_a_broken_registration_begins_again_at_once() -> None:
    """Registered and the stream broke: say so, then dial with the first patience."""
    core = registered()

    assert core.handle(ConnectionLost(dial(1), "reset"), 500) == [
        RegistrationLost(dial(1), "reset"),
        StartTimer(TOTAL, 5_500),
        OpenConnection(dial(2), RM),
        StartTimer(ATTEMPT, 600),
    ]


def test_another_leader_replaces_the_old_one() -> None:
    """The old connection is closed and the new leader is asked."""
    core = registered()

    assert core.register_at(OTHER, TWO, 500) == [
        CloseConnection(dial(1)),
        StartTimer(TOTAL, 5_500),
        OpenConnection(dial(2), OTHER),
        StartTimer(ATTEMPT, 600),
    ]
    assert core.handle(ConnectionLost(dial(1), "late"), 501) == []


def test_the_same_leader_again_changes_nothing() -> None:
    """Leader retrieval may repeat itself."""
    core = registered()

    assert core.register_at(RM, ONE, 500) == []


def test_an_answer_of_another_session_is_stale() -> None:
    """The leader of before may still be talking."""
    core = registration()
    core.register_at(RM, TWO, 0)
    core.handle(ConnectionOpened(dial(1)), 1)

    assert core.handle(MessageReceived(dial(1), Fenced(ONE, SUCCESS)), 2) == []
    assert core.state is RegistrationState.ASKING


def test_hopeless_is_said_once_with_the_last_error() -> None:
    """The total timeout runs from the first attempt over all of them."""
    core = registration()
    core.register_at(RM, ONE, 0)
    core.handle(ConnectionLost(dial(1), "connection refused"), 5)

    assert core.handle(TimerFired(TOTAL), 5_000) == [
        RegistrationTimedOut("not registered after 1 attempts: connection refused")
    ]


def test_without_a_leader_the_total_timeout_runs_too() -> None:
    """A TaskManager that never finds a leader ends itself."""
    core = registration()

    assert core.leader_gone(0) == [StartTimer(TOTAL, 5_000)]
    assert core.leader_gone(10) == []


def test_reregister_gives_up_a_silent_leader() -> None:
    """The owner noticed a heartbeat timeout."""
    core = registered()

    assert core.reregister(900) == [
        CloseConnection(dial(1)),
        StartTimer(TOTAL, 5_900),
        OpenConnection(dial(2), RM),
        StartTimer(ATTEMPT, 1_000),
    ]


def test_stop_leaves_no_timer_behind() -> None:
    """Whatever ran is cancelled."""
    core = registration()
    core.register_at(RM, ONE, 0)

    assert core.stop() == [CancelTimer(ATTEMPT), CloseConnection(dial(1)), CancelTimer(TOTAL)]


@pytest.mark.parametrize(("initial", "maximum"), [(0, 10), (20, 10)])
def test_senseless_settings_are_named(initial: int, maximum: int) -> None:
    """The error names the keys."""
    with pytest.raises(ValueError, match=r"cluster\.registration\.initial-timeout"):
        RegistrationSettings(initial, maximum)
