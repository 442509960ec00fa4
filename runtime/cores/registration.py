"""RetryingRegistration: get and stay registered with one leader, however often it takes.

Decides when to dial, how long to wait for an answer and when to try again. An attempt dials, sends the registration
when the connection is open, and waits; no answer in time: again at once with twice the patience, up to a bound;
connection lost: again after `error_delay`; the other side said Disconnect: again after `refused_delay`;
RegistrationRejected: never again until there is another leader. A peer that cannot be registered with for
`total_timeout` is reported once.

States: IDLE (no leader known) -> DIALING -> ASKING -> REGISTERED, with PAUSING between attempts and REJECTED as an end.
Does not know what is registered nor what for. Mirrors Flink's RetryingRegistration and RegisteredRpcConnection; unlike
there the connection is part of it, because ours can break.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any

from snapline.dataflow.config import (
    REGISTRATION_ERROR_DELAY,
    REGISTRATION_INITIAL_TIMEOUT,
    REGISTRATION_MAX_TIMEOUT,
    REGISTRATION_REFUSED_DELAY,
    Configuration,
    ConfigurationError,
)
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
    Send,
)
from snapline.runtime.cores.machine import CancelTimer, InvariantViolation, StartTimer, TimerFired, check

NO_LEADER = LeaderSessionID("")


@dataclass(frozen=True, slots=True)
class RegistrationSettings:
    """How long registration waits and pauses (`cluster.registration.*`)."""

    initial_timeout_ms: int = 100
    max_timeout_ms: int = 30_000
    error_delay_ms: int = 1_000
    refused_delay_ms: int = 30_000
    total_timeout_ms: int = 0
    """Without success for so long: RegistrationTimedOut. 0: never."""

    def __post_init__(self) -> None:
        """Raises ValueError naming the setting."""
        if self.initial_timeout_ms <= 0 or self.max_timeout_ms < self.initial_timeout_ms:
            raise ValueError(
                "cluster.registration.initial-timeout must be positive and not above cluster.registration.max-timeout, "
                f"not {self.initial_timeout_ms} ms and {self.max_timeout_ms} ms"
            )
        if self.error_delay_ms < 0 or self.refused_delay_ms < 0:
            raise ValueError("cluster.registration.error-delay and refused-registration-delay must not be negative")

    @classmethod
    def from_configuration(cls, configuration: Configuration, total_timeout_ms: int = 0) -> RegistrationSettings:
        """Read the settings `cluster.registration.*`. Raises ConfigurationError."""
        try:
            return cls(
                configuration.get_option(REGISTRATION_INITIAL_TIMEOUT),
                configuration.get_option(REGISTRATION_MAX_TIMEOUT),
                configuration.get_option(REGISTRATION_ERROR_DELAY),
                configuration.get_option(REGISTRATION_REFUSED_DELAY),
                total_timeout_ms,
            )
        except ValueError as error:
            raise ConfigurationError(str(error)) from None

    def with_dialing(self, dialing_ms: int) -> RegistrationSettings:
        """The same patience where dialing alone may take so long: it begins when that is over."""
        return replace(
            self,
            initial_timeout_ms=self.initial_timeout_ms + dialing_ms,
            max_timeout_ms=self.max_timeout_ms + dialing_ms,
        )


class RegistrationState(Enum):
    """Where the registration stands between its first attempt and its end."""

    IDLE = "idle"
    DIALING = "dialing"
    ASKING = "asking"
    PAUSING = "pausing"
    REGISTERED = "registered"
    REJECTED = "rejected"


RegistrationEvent = ConnectionOpened | ConnectionLost | MessageReceived | TimerFired


# --- effects ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Registered:
    """The leader took us in; messages may flow on the connection."""

    connection: ConnectionID
    session: LeaderSessionID
    answer: RegistrationSuccess


@dataclass(frozen=True, slots=True)
class RegistrationLost:
    """We were registered and are not any more. The registration tries again by itself."""

    connection: ConnectionID
    reason: str
    silent: bool = False
    """False: the connection broke. True: the leader was silent for the whole heartbeat timeout."""


@dataclass(frozen=True, slots=True)
class RegistrationFailed:
    """The leader rejected us for good."""

    reason: str


@dataclass(frozen=True, slots=True)
class RegistrationTimedOut:
    """No success for the total timeout."""

    reason: str


RegistrationEffect = (
    Registered
    | RegistrationLost
    | RegistrationFailed
    | RegistrationTimedOut
    | OpenConnection
    | CloseConnection
    | Send
    | StartTimer
    | CancelTimer
)


@dataclass(frozen=True, slots=True)
class RegistrationTimer:
    """Key of the timers: `attempt` (patience, or the pause before the next) and `total`."""

    registration: str
    what: str


@dataclass(slots=True)
class RetryingRegistration:
    """One registration with one kind of leader. `name` keeps its timers apart from others of the same core."""

    name: str
    settings: RegistrationSettings
    registration: Any
    """The message that asks the leader for registration."""
    draw_connection: Callable[[], ConnectionID]
    """Gives a connection id that the process never used before."""
    state: RegistrationState = RegistrationState.IDLE
    peer: Peer | None = None
    session: LeaderSessionID = NO_LEADER
    connection: ConnectionID | None = None
    """The connection of the current attempt, or the one that we are registered on."""
    _timeout_ms: int = 0
    _attempts: int = 0
    _last_error: str = ""
    _total_timer_runs: bool = field(default=False)

    @property
    def is_registered(self) -> bool:
        """Return whether the leader has accepted the registration, so that messages may flow."""
        return self.state is RegistrationState.REGISTERED

    def owns(self, event: object) -> bool:
        """Whether an event about a connection or timer is this registration's. For a message: only until registered."""
        match event:
            case TimerFired(RegistrationTimer(name, _)):
                return name == self.name
            case ConnectionOpened(connection) | ConnectionLost(connection, _):
                return connection == self.connection
            case MessageReceived(connection, _):
                return connection == self.connection and not self.is_registered
        return False

    def register_at(self, peer: Peer, session: LeaderSessionID, now_ms: int) -> list[RegistrationEffect]:
        """Register with this leader. Another one than before: what was built up with the old one is closed. The same
        one while trying or registered: nothing happens."""
        if (peer, session) == (self.peer, self.session) and self.state is not RegistrationState.IDLE:
            return []
        effects = self._drop_attempt()
        self.peer, self.session = peer, session
        return [*effects, *self._run_total_timer(now_ms), *self._begin(now_ms)]

    def leader_gone(self, now_ms: int) -> list[RegistrationEffect]:
        """There is no leader at the moment; the clock of the total timeout runs."""
        effects = self._drop_attempt()
        self.peer, self.session, self.state = None, NO_LEADER, RegistrationState.IDLE
        self._last_error = "no leader is known"
        return [*effects, *self._run_total_timer(now_ms)]

    def reregister(self, now_ms: int) -> list[RegistrationEffect]:
        """The owner gave the connection up (silence, Disconnect): close it and begin again with the same leader."""
        if self.peer is None:
            return []
        effects = self._drop_attempt()
        return [*effects, *self._run_total_timer(now_ms), *self._begin(now_ms)]

    def stop(self) -> list[RegistrationEffect]:
        """End the registration: no further attempt is made."""
        effects = self._drop_attempt()
        self.peer, self.session, self.state = None, NO_LEADER, RegistrationState.IDLE
        return [*effects, *self._stop_total_timer()]

    def handle(self, event: RegistrationEvent, now_ms: int) -> list[RegistrationEffect]:
        """Take what happened to the connection, what it brought, or a timer."""
        match event:
            case ConnectionOpened(connection) if connection == self.connection:
                check(self.state is RegistrationState.DIALING, f"{connection} opened while {self.state.value}")
                self.state = RegistrationState.ASKING
                return [Send(connection, Fenced(self.session, self.registration))]
            case ConnectionLost(connection, reason) if connection == self.connection:
                return self._connection_lost(connection, reason, now_ms)
            case MessageReceived(connection, envelope) if connection == self.connection:
                return self._answer(connection, envelope, now_ms)
            case TimerFired(RegistrationTimer(_, "attempt")):
                return self._attempt_timer(now_ms)
            case TimerFired(RegistrationTimer(_, "total")):
                self._total_timer_runs = False
                if self.is_registered:
                    return []
                return [RegistrationTimedOut(f"not registered after {self._attempts} attempts: {self._last_error}")]
        return []

    def _begin(self, now_ms: int) -> list[RegistrationEffect]:
        """First attempt with this leader."""
        self._timeout_ms = self.settings.initial_timeout_ms
        self._attempts = 0
        return self._dial(now_ms)

    def _dial(self, now_ms: int) -> list[RegistrationEffect]:
        if self.peer is None:
            raise InvariantViolation("dialing nobody")
        self.connection = self.draw_connection()
        self.state = RegistrationState.DIALING
        self._attempts += 1
        return [OpenConnection(self.connection, self.peer), self._attempt_at(now_ms + self._timeout_ms)]

    def _attempt_at(self, at_ms: int) -> StartTimer:
        return StartTimer(RegistrationTimer(self.name, "attempt"), at_ms)

    def _attempt_timer(self, now_ms: int) -> list[RegistrationEffect]:
        if self.state is RegistrationState.PAUSING:
            return self._dial(now_ms)
        if self.state not in (RegistrationState.DIALING, RegistrationState.ASKING):
            return []
        effects: list[RegistrationEffect] = []
        if self.connection is not None:
            effects.append(CloseConnection(self.connection))
        self._last_error = f"no answer within {self._timeout_ms} ms"
        self._timeout_ms = min(2 * self._timeout_ms, self.settings.max_timeout_ms)
        return [*effects, *self._dial(now_ms)]

    def _connection_lost(self, connection: ConnectionID, reason: str, now_ms: int) -> list[RegistrationEffect]:
        was_registered = self.is_registered
        self.connection = None
        self._last_error = reason
        if was_registered:
            return [RegistrationLost(connection, reason), *self._run_total_timer(now_ms), *self._begin(now_ms)]
        return self._pause(self.settings.error_delay_ms, now_ms)

    def _pause(self, delay_ms: int, now_ms: int) -> list[RegistrationEffect]:
        self.connection = None
        self.state = RegistrationState.PAUSING
        return [self._attempt_at(now_ms + delay_ms)]

    def _answer(self, connection: ConnectionID, envelope: Fenced[Any], now_ms: int) -> list[RegistrationEffect]:
        if self.state is not RegistrationState.ASKING or envelope.leader_session_id != self.session:
            return []
        cancel = CancelTimer(RegistrationTimer(self.name, "attempt"))
        match envelope.message:
            case RegistrationSuccess() as answer:
                self.state = RegistrationState.REGISTERED
                return [cancel, *self._stop_total_timer(), Registered(connection, self.session, answer)]
            case RegistrationRejected(reason):
                self.state, self.connection = RegistrationState.REJECTED, None
                return [cancel, *self._stop_total_timer(), CloseConnection(connection), RegistrationFailed(reason)]
            case Disconnect(reason):
                self._last_error = reason
                return [CloseConnection(connection), *self._pause(self.settings.refused_delay_ms, now_ms)]
        return []

    def _drop_attempt(self) -> list[RegistrationEffect]:
        """Close what is open and stop the attempt's timer, if it runs."""
        effects: list[RegistrationEffect] = []
        if self.state in (RegistrationState.DIALING, RegistrationState.ASKING, RegistrationState.PAUSING):
            effects.append(CancelTimer(RegistrationTimer(self.name, "attempt")))
        if self.connection is not None:
            effects.append(CloseConnection(self.connection))
        self.connection = None
        return effects

    def _run_total_timer(self, now_ms: int) -> list[RegistrationEffect]:
        if self._total_timer_runs or self.settings.total_timeout_ms <= 0:
            return []
        self._total_timer_runs = True
        return [StartTimer(RegistrationTimer(self.name, "total"), now_ms + self.settings.total_timeout_ms)]

    def _stop_total_timer(self) -> list[RegistrationEffect]:
        if not self._total_timer_runs:
            return []
        self._total_timer_runs = False
        return [CancelTimer(RegistrationTimer(self.name, "total"))]
