"""HeartbeatMonitor: who is still there, judged by silence and by sends that failed.

Two roles. A *receiver* watches targets and answers those that ask; a *sender*, which is one that was started, also asks
every monitored target once per interval. Any word from a target moves its deadline to now + timeout; a target that is
silent until then is reported once, and must be unmonitored before it can be watched again. A number of consecutive
sends that could not be delivered makes a target unreachable before its deadline (`heartbeat.rpc-failure-threshold`; -1
switches that off). The cores around a monitor count the end of a target's connection as one failed send, and each
heartbeat request that finds no connection as another.

Knows neither payloads nor connections: the core around it fills in what is sent and routes what comes. Mirrors Flink's
HeartbeatManagerImpl, HeartbeatManagerSenderImpl and DefaultHeartbeatMonitor; unlike there, a deadline that moves does
not touch its timer: when the timer fires early, it is armed again for the rest.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Generic, TypeGuard, TypeVar

from snapline.dataflow.config import (
    HEARTBEAT_INTERVAL,
    HEARTBEAT_RPC_FAILURE_THRESHOLD,
    HEARTBEAT_TIMEOUT,
    Configuration,
    ConfigurationError,
)
from snapline.runtime.cores.machine import CancelTimer, StartTimer

TargetT = TypeVar("TargetT", bound=Hashable)

NO_HEARTBEAT = -1
"""`last_heartbeat_ms` of a target that is not monitored."""


UNSENT_HEARTBEAT = "its connection is broken and heartbeat requests found no other (heartbeat.rpc-failure-threshold)"
"""Why a target that became unreachable by a heartbeat round counts as lost."""


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


@dataclass(frozen=True, slots=True)
class HeartbeatTimer:
    """Key of the monitor's timers: one per target, and one (target None) for the sender's rounds."""

    monitor: str
    target: Hashable | None


@dataclass(frozen=True, slots=True)
class HeartbeatsDue(Generic[TargetT]):
    """What a timer of the monitor brings."""

    ask: tuple[TargetT, ...] = ()
    """Send each a heartbeat request."""
    silent: tuple[TargetT, ...] = ()
    """These were silent for the whole timeout. Said once."""
    timers: tuple[StartTimer, ...] = ()
    """Timers of the monitor that have to be started again."""


@dataclass(slots=True)
class _Monitored:
    """What is known of one target that is watched."""

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
    settings: HeartbeatSettings
    _targets: dict[TargetT, _Monitored] = field(default_factory=dict)
    is_stopped: bool = False
    """After `stop`; nothing has an effect any more."""

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

    def owns(self, key: Hashable) -> TypeGuard[HeartbeatTimer]:
        """Whether a timer is this monitor's."""
        return isinstance(key, HeartbeatTimer) and key.monitor == self.name

    def start(self, now_ms: int) -> list[StartTimer]:
        """A sender begins to ask, at once and then every interval."""
        return [] if self.is_stopped else [StartTimer(HeartbeatTimer(self.name, None), now_ms)]

    def stop(self) -> list[CancelTimer]:
        """Watch nothing and ask nobody any more, and take nothing in any more: a monitor is not started twice."""
        if self.is_stopped:
            return []
        timers = [CancelTimer(HeartbeatTimer(self.name, target)) for target in self._targets]
        self._targets.clear()
        self.is_stopped = True
        return [CancelTimer(HeartbeatTimer(self.name, None)), *timers]

    def monitor_target(self, target: TargetT, now_ms: int) -> list[StartTimer]:
        """Watch the target from now on. Already watched, or given up and not unmonitored: nothing happens."""
        if self.is_stopped or target in self._targets:
            return []
        self._targets[target] = _Monitored(now_ms)
        return [StartTimer(HeartbeatTimer(self.name, target), now_ms + self.settings.timeout_ms)]

    def unmonitor_target(self, target: TargetT) -> list[CancelTimer]:
        """Stop watching the target; returns the timers that are not needed any more."""
        if self._targets.pop(target, None) is None:
            return []
        return [CancelTimer(HeartbeatTimer(self.name, target))]

    def receive_heartbeat(self, target: TargetT, now_ms: int) -> bool:
        """The target answered, asked, or proved in another way that it lives. Returns whether it is watched: only then
        is a request answered."""
        monitored = self._targets.get(target)
        if monitored is None:
            return False
        # Also one that was given up: it stays so, but when it was heard of is the truth.
        monitored.alive_at_ms = max(monitored.alive_at_ms, now_ms)
        monitored.was_heard = True
        return True

    def report_delivery(self, target: TargetT, *, arrived: bool) -> bool:
        """A send to the target arrived, or could not be delivered. Returns whether the target counts as unreachable
        now, because too many in a row were not delivered. Said once."""
        monitored = self._targets.get(target)
        if monitored is None:
            return False
        if arrived:
            monitored.failed_deliveries = 0
            return False
        if monitored.given_up or not self.settings.detects_failed_sends:
            return False
        monitored.failed_deliveries += 1
        monitored.given_up = monitored.failed_deliveries >= self.settings.rpc_failure_threshold
        return monitored.given_up

    def timer_fired(self, key: HeartbeatTimer, now_ms: int) -> HeartbeatsDue[TargetT]:
        """A timer that this owns is due: the next round of requests, or the deadline of one target."""
        if self.is_stopped:
            return HeartbeatsDue()
        if key.target is None:
            again = StartTimer(key, now_ms + self.settings.interval_ms)
            return HeartbeatsDue(ask=tuple(self._targets), timers=(again,))
        for target, monitored in self._targets.items():
            if target == key.target and not monitored.given_up:
                deadline_ms = monitored.alive_at_ms + self.settings.timeout_ms
                if now_ms < deadline_ms:
                    return HeartbeatsDue(timers=(StartTimer(key, deadline_ms),))
                monitored.given_up = True
                return HeartbeatsDue(silent=(target,))
        return HeartbeatsDue()
