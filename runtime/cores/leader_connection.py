"""LeaderConnection: stay registered with a leader, and notice when it falls silent.

Composes RetryingRegistration with the receiving side of the heartbeats, as every process needs it that registers
somewhere: a TaskExecutor at the ResourceManager and at JobMasters, a JobMaster at the ResourceManager. The leader's
interval and timeout come with its answer. A leader that is silent for the timeout is given up like one whose connection
broke, and dialled again. Messages of another session than the one registered with are dropped here. Mirrors Flink's
EstablishedResourceManagerConnection together with its heartbeat manager.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from snapline.dataflow.ids import LeaderSessionID
from snapline.dataflow.wire.messages import Fenced
from snapline.runtime.cores.connections import (
    CloseConnection,
    ConnectionID,
    MessageReceived,
    OpenConnection,
    Peer,
    Send,
)
from snapline.runtime.cores.heartbeat import HeartbeatMonitor, HeartbeatSettings, HeartbeatTimer
from snapline.runtime.cores.machine import CancelTimer, StartTimer, TimerFired
from snapline.runtime.cores.registration import (
    Registered,
    RegistrationEffect,
    RegistrationEvent,
    RegistrationFailed,
    RegistrationLost,
    RegistrationSettings,
    RegistrationTimedOut,
    RetryingRegistration,
)

LEADER = "leader"
"""The one target of the heartbeat monitor."""


@dataclass(frozen=True, slots=True)
class LeaderSaid:
    """Effect: a message of the leader that we are registered with, heartbeat requests and Disconnect too."""

    message: Any


LeaderConnectionEffect = (
    LeaderSaid
    | Registered
    | RegistrationLost
    | RegistrationFailed
    | RegistrationTimedOut
    | OpenConnection
    | CloseConnection
    | Send
    | StartTimer
    | CancelTimer
)


class LeaderConnection:
    """One leader at a time, whoever that is."""

    def __init__(
        self,
        name: str,
        settings: RegistrationSettings,
        registration: Any,
        draw_connection: Callable[[], ConnectionID],
    ) -> None:
        """`name` keeps the timers apart from others of the same core; `registration` is the message that registers."""
        self._name = name
        self._registration = RetryingRegistration(name, settings, registration, draw_connection)
        self._heartbeats: HeartbeatMonitor[str] | None = None

    @property
    def is_registered(self) -> bool:
        """Return whether the leader has accepted the registration, so that messages may flow."""
        return self._registration.is_registered

    @property
    def session(self) -> LeaderSessionID:
        """The session of the leader that is tried or registered with; empty when there is none."""
        return self._registration.session

    @property
    def peer(self) -> Peer | None:
        """The leader that is tried or registered with."""
        return self._registration.peer

    @property
    def connection(self) -> ConnectionID | None:
        """The connection of the current attempt, or the one that we are registered on."""
        return self._registration.connection

    def owns(self, event: object) -> bool:
        """Whether an event about a connection or timer is for this."""
        match event:
            case TimerFired(HeartbeatTimer(monitor, _)):
                return monitor == self._name
            case MessageReceived(connection, _):
                return connection == self._registration.connection
        return self._registration.owns(event)

    def send(self, message: Any) -> list[Send]:
        """Nothing, when we are not registered."""
        connection = self._registration.connection
        if connection is None or not self.is_registered:
            return []
        return [Send(connection, Fenced(self.session, message))]

    def leader_changed(self, peer: Peer, session: LeaderSessionID, now_ms: int) -> list[LeaderConnectionEffect]:
        """Register with the leader that is there now; with an empty address there is none at the moment. What was built
        up with another one is closed."""
        if not peer.address:
            return self._give_up(lambda: self._registration.leader_gone(now_ms))
        return self._give_up(lambda: self._registration.register_at(peer, session, now_ms))

    def reregister(self, now_ms: int) -> list[LeaderConnectionEffect]:
        """Close the connection and begin again with the same leader."""
        return self._give_up(lambda: self._registration.reregister(now_ms))

    def stop(self) -> list[LeaderConnectionEffect]:
        """End the connection and all its timers; it does not register again."""
        return self._give_up(self._registration.stop)

    def handle(self, event: RegistrationEvent, now_ms: int) -> list[LeaderConnectionEffect]:
        """Take one event that this owns."""
        match event:
            case TimerFired(HeartbeatTimer() as key):
                return self._heartbeat_timer(key, now_ms)
            case MessageReceived(_, envelope) if self.is_registered:
                if envelope.leader_session_id != self.session or self._heartbeats is None:
                    return []
                self._heartbeats.receive_heartbeat(LEADER, now_ms)
                return [LeaderSaid(envelope.message)]
        return self._translate(self._registration.handle(event, now_ms), now_ms)

    def _give_up(self, change: Callable[[], list[RegistrationEffect]]) -> list[LeaderConnectionEffect]:
        """Heartbeats end with the connection that the change closes."""
        before = self._registration.connection if self.is_registered else None
        effects = change()
        if before is not None and self._registration.connection != before:
            return [*self._stop_heartbeats(), *effects]
        return list(effects)

    def _translate(self, effects: list[RegistrationEffect], now_ms: int) -> list[LeaderConnectionEffect]:
        """Heartbeats begin with the registration and end with it."""
        translated: list[LeaderConnectionEffect] = []
        for effect in effects:
            match effect:
                case Registered(answer=answer):
                    settings = HeartbeatSettings(answer.heartbeat_interval_ms, answer.heartbeat_timeout_ms, -1)
                    self._heartbeats = HeartbeatMonitor(self._name, settings)
                    translated += self._heartbeats.monitor_target(LEADER, now_ms)
                case RegistrationLost():
                    translated += self._stop_heartbeats()
            translated.append(effect)
        return translated

    def _heartbeat_timer(self, key: HeartbeatTimer, now_ms: int) -> list[LeaderConnectionEffect]:
        if self._heartbeats is None:
            return []
        due = self._heartbeats.timer_fired(key, now_ms)
        if not due.silent:
            return list(due.timers)
        connection = self._registration.connection
        silent_ms = now_ms - self._heartbeats.silent_since_ms(LEADER)
        self._heartbeats = None
        if connection is None:
            return []
        lost = RegistrationLost(connection, f"no heartbeat for {silent_ms} ms", silent=True)
        return [lost, *self._registration.reregister(now_ms)]

    def _stop_heartbeats(self) -> list[CancelTimer]:
        heartbeats, self._heartbeats = self._heartbeats, None
        return [] if heartbeats is None else heartbeats.unmonitor_target(LEADER)
