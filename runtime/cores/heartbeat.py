"""HeartbeatMonitor: who is still there, judged by silence and by sends that failed.

Two roles. A *receiver* watches targets and answers those that ask; a *sender* also asks every monitored target once per
interval. Any word from a target moves its deadline to now + timeout; a target that is silent until then is reported once,
and must be unmonitored before it can be watched again. A number of consecutive sends that could not be delivered makes a
target unreachable before its deadline (`heartbeat.rpc-failure-threshold`; -1 switches that off). The cores around a monitor
count the end of a target's connection as one failed send, and each heartbeat request that finds no connection as another.

Knows neither payloads nor connections: the core around it fills in what is sent and routes what comes. Mirrors Flink's
HeartbeatManagerImpl, HeartbeatManagerSenderImpl and DefaultHeartbeatMonitor; unlike there, a deadline that moves does not
touch its timer: when the timer fires early, it is armed again for the rest.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from enum import Enum
from typing import Generic, TypeVar

from snapline.dataflow.config import (
    HEARTBEAT_INTERVAL,
    HEARTBEAT_RPC_FAILURE_THRESHOLD,
    HEARTBEAT_TIMEOUT,
    Configuration,
    ConfigurationError,
)
from snapline.runtime.cores.machine import CancelTimer, StartTimer, TimerFired

TargetT = TypeVar("TargetT", bound=Hashable)

NO_HEARTBEAT = -1
"""`last_heartbeat_ms` of a target that is not monitored."""


UNSENT_HEARTBEAT = "its connection is broken and heartbeat requests found no other (heartbeat.rpc-failure-threshold)"
"""Why a target that became unreachable by a heartbeat round counts as lost."""


class HeartbeatRole(Enum):
    """Who asks."""

    SENDER = "sender"
    RECEIVER = "receiver"


@dataclass(frozen=True, slots=True)
class HeartbeatSettings:
    """`heartbeat.*`. Raises ValueError for values that cannot work."""

    interval_ms: int = 10_000
    timeout_ms: int = 50_000
    rpc_failure_threshold: int = 1
    """-1: failed sends never count."""

    def __post_init__(self) -> None:
        """Raises ValueError naming the setting."""
        if self.timeout_ms <= 0:
            raise ValueError(f"heartbeat.timeout must be positive, not {self.timeout_ms} ms")
        if self.interval_ms <= 0:
            raise ValueError(f"heartbeat.interval must be positive, not {self.interval_ms} ms")
        if self.rpc_failure_threshold < 1 and self.rpc_failure_threshold != -1:
            raise ValueError(
                f"heartbeat.rpc-failure-threshold must be at least 1, or -1 for never, not {self.rpc_failure_threshold}"
            )

    @classmethod
    def from_configuration(cls, configuration: Configuration) -> HeartbeatSettings:
        """Read `heartbeat.*`. Raises ConfigurationError, also when the rounds come less often than peers time out."""
        try:
            settings = cls(
                configuration.get_option(HEARTBEAT_INTERVAL),
                configuration.get_option(HEARTBEAT_TIMEOUT),
                configuration.get_option(HEARTBEAT_RPC_FAILURE_THRESHOLD),
            )
        except ValueError as error:
            raise ConfigurationError(str(error)) from None
        # Not in the constructor: a side that is asked has a timeout, and its interval means nothing (Flink checks this
        # in HeartbeatServices too).
        if settings.interval_ms > settings.timeout_ms:
            raise ConfigurationError(
                f"heartbeat.interval ({settings.interval_ms} ms) is longer than heartbeat.timeout "
                f"({settings.timeout_ms} ms): every peer would time out before it is asked again. "
                "Raise heartbeat.timeout or lower heartbeat.interval"
            )
        return settings

    @property
    def detects_failed_sends(self) -> bool:
        """Whether a dead connection counts before the timeout."""
        return self.rpc_failure_threshold != -1


# --- events -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class MonitorTarget(Generic[TargetT]):
    """Watch the target from now on. Already watched, or timed out and not unmonitored: nothing happens."""

    target: TargetT


@dataclass(frozen=True, slots=True)
class UnmonitorTarget(Generic[TargetT]):
    """Stop watching."""

    target: TargetT


@dataclass(frozen=True, slots=True)
class HeartbeatReceived(Generic[TargetT]):
    """A word of the target: an answer, or anything else that proves life."""

    target: TargetT


@dataclass(frozen=True, slots=True)
class HeartbeatRequested(Generic[TargetT]):
    """The target asked; counts as a word of it. Answered by AnswerHeartbeat when it is watched."""

    target: TargetT


@dataclass(frozen=True, slots=True)
class DeliverySucceeded(Generic[TargetT]):
    """A send to the target arrived."""

    target: TargetT


@dataclass(frozen=True, slots=True)
class DeliveryFailed(Generic[TargetT]):
    """A send to the target could not be delivered."""

    target: TargetT


@dataclass(frozen=True, slots=True)
class StartHeartbeatRounds:
    """A sender begins to ask, at once and then every interval."""


@dataclass(frozen=True, slots=True)
class StopHeartbeats:
    """Unmonitor everything, ask nobody any more, and take nothing in any more: a monitor is not started twice."""


HeartbeatEvent = (
    MonitorTarget[TargetT]
    | UnmonitorTarget[TargetT]
    | HeartbeatReceived[TargetT]
    | HeartbeatRequested[TargetT]
    | DeliverySucceeded[TargetT]
    | DeliveryFailed[TargetT]
    | StartHeartbeatRounds
    | StopHeartbeats
    | TimerFired
)


# --- effects ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RequestHeartbeat(Generic[TargetT]):
    """Send a heartbeat request to the target."""

    target: TargetT


@dataclass(frozen=True, slots=True)
class AnswerHeartbeat(Generic[TargetT]):
    """Answer the target's request."""

    target: TargetT


@dataclass(frozen=True, slots=True)
class HeartbeatTimedOut(Generic[TargetT]):
    """The target was silent for the whole timeout. Said once."""

    target: TargetT


@dataclass(frozen=True, slots=True)
class TargetUnreachable(Generic[TargetT]):
    """Too many sends to the target in a row failed. Said once."""

    target: TargetT


HeartbeatEffect = (
    RequestHeartbeat[TargetT]
    | AnswerHeartbeat[TargetT]
    | HeartbeatTimedOut[TargetT]
    | TargetUnreachable[TargetT]
    | StartTimer
    | CancelTimer
)


@dataclass(frozen=True, slots=True)
class HeartbeatTimer:
    """Key of the monitor's timers: one per target, and one (target None) for the sender's rounds."""

    monitor: str
    target: Hashable | None


@dataclass(slots=True)
class _Monitored:
    """One target."""

    alive_at_ms: int
    """Last heard of, or first watched."""
    was_heard: bool = False
    failed_deliveries: int = 0
    given_up: bool = False
    """Reported as timed out or unreachable; silent until unmonitored."""


@dataclass(slots=True)
class HeartbeatMonitor(Generic[TargetT]):
    """The targets of one side of one kind of pair. `name` keeps its timers apart from others of the same core."""

    name: str
    role: HeartbeatRole
    settings: HeartbeatSettings
    _targets: dict[TargetT, _Monitored] = field(default_factory=dict)
    is_stopped: bool = False
    """After StopHeartbeats; events have no effect any more."""

    def last_heartbeat_ms(self, target: TargetT) -> int:
        """When the target was last heard of, 0 before that; NO_HEARTBEAT for a target not watched."""
        monitored = self._targets.get(target)
        if monitored is None:
            return NO_HEARTBEAT
        return monitored.alive_at_ms if monitored.was_heard else 0

    def silent_since_ms(self, target: TargetT) -> int:
        """When the target was last heard of, or began to be watched. Raises KeyError for a target not watched."""
        return self._targets[target].alive_at_ms

    def is_monitored(self, target: TargetT) -> bool:
        """Whether the target is watched (also when it was given up and not unmonitored yet)."""
        return target in self._targets

    def owns(self, key: Hashable) -> bool:
        """Whether a timer is this monitor's."""
        return isinstance(key, HeartbeatTimer) and key.monitor == self.name

    def handle(self, event: HeartbeatEvent[TargetT], now_ms: int) -> list[HeartbeatEffect[TargetT]]:
        """Take one event."""
        if self.is_stopped:
            return []
        match event:
            case MonitorTarget(target):
                return self._monitor(target, now_ms)
            case UnmonitorTarget(target):
                return self._unmonitor(target)
            case HeartbeatReceived(target):
                self._touch(target, now_ms)
                return []
            case HeartbeatRequested(target):
                if target not in self._targets:
                    return []
                self._touch(target, now_ms)
                return [AnswerHeartbeat(target)]
            case DeliverySucceeded(target):
                if target in self._targets:
                    self._targets[target].failed_deliveries = 0
                return []
            case DeliveryFailed(target):
                return self._delivery_failed(target)
            case StartHeartbeatRounds():
                return [StartTimer(HeartbeatTimer(self.name, None), now_ms)]
            case StopHeartbeats():
                timers = [CancelTimer(HeartbeatTimer(self.name, target)) for target in self._targets]
                self._targets.clear()
                self.is_stopped = True
                return [CancelTimer(HeartbeatTimer(self.name, None)), *timers]
            case TimerFired(HeartbeatTimer(_, None)):
                return self._round(now_ms)
            case TimerFired(HeartbeatTimer(_, target)):
                return self._deadline(target, now_ms)  # type: ignore[arg-type]
        return []

    def _monitor(self, target: TargetT, now_ms: int) -> list[HeartbeatEffect[TargetT]]:
        if target in self._targets:
            return []
        self._targets[target] = _Monitored(now_ms)
        return [StartTimer(HeartbeatTimer(self.name, target), now_ms + self.settings.timeout_ms)]

    def _unmonitor(self, target: TargetT) -> list[HeartbeatEffect[TargetT]]:
        if self._targets.pop(target, None) is None:
            return []
        return [CancelTimer(HeartbeatTimer(self.name, target))]

    def _touch(self, target: TargetT, now_ms: int) -> None:
        monitored = self._targets.get(target)
        if monitored is not None:  # also one that was given up: it stays so, but when it was heard of is the truth
            monitored.alive_at_ms = max(monitored.alive_at_ms, now_ms)
            monitored.was_heard = True

    def _delivery_failed(self, target: TargetT) -> list[HeartbeatEffect[TargetT]]:
        monitored = self._targets.get(target)
        if monitored is None or monitored.given_up or not self.settings.detects_failed_sends:
            return []
        monitored.failed_deliveries += 1
        if monitored.failed_deliveries < self.settings.rpc_failure_threshold:
            return []
        monitored.given_up = True
        return [CancelTimer(HeartbeatTimer(self.name, target)), TargetUnreachable(target)]

    def _round(self, now_ms: int) -> list[HeartbeatEffect[TargetT]]:
        requests = [RequestHeartbeat(target) for target in self._targets]
        return [*requests, StartTimer(HeartbeatTimer(self.name, None), now_ms + self.settings.interval_ms)]

    def _deadline(self, target: TargetT, now_ms: int) -> list[HeartbeatEffect[TargetT]]:
        monitored = self._targets.get(target)
        if monitored is None or monitored.given_up:
            return []
        deadline_ms = monitored.alive_at_ms + self.settings.timeout_ms
        if now_ms < deadline_ms:
            return [StartTimer(HeartbeatTimer(self.name, target), deadline_ms)]
        monitored.given_up = True
        return [HeartbeatTimedOut(target)]
