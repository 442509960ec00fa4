"""HeartbeatMonitor beyond the conformance scenarios."""

from __future__ import annotations

import pytest

from snapline.dataflow.config import Configuration, ConfigurationError
from snapline.runtime.cores.heartbeat import (
    DeliveryFailed,
    DeliverySucceeded,
    HeartbeatMonitor,
    HeartbeatReceived,
    HeartbeatRole,
    HeartbeatSettings,
    HeartbeatTimedOut,
    HeartbeatTimer,
    MonitorTarget,
    RequestHeartbeat,
    StartHeartbeatRounds,
    StopHeartbeats,
    TargetUnreachable,
    UnmonitorTarget,
)
from snapline.runtime.cores.machine import CancelTimer, StartTimer, TimerFired


def sender(threshold: int = 2) -> HeartbeatMonitor[str]:
    return HeartbeatMonitor("tm", HeartbeatRole.SENDER, HeartbeatSettings(10, 50, threshold))


def test_rounds_go_on_by_themselves() -> None:
    """The first round is due at once, each arms the next."""
    monitor = sender()
    monitor.handle(MonitorTarget("a"), 0)
    monitor.handle(MonitorTarget("b"), 0)

    assert monitor.handle(StartHeartbeatRounds(), 5) == [StartTimer(HeartbeatTimer("tm", None), 5)]
    assert monitor.handle(TimerFired(HeartbeatTimer("tm", None)), 5) == [
        RequestHeartbeat("a"),
        RequestHeartbeat("b"),
        StartTimer(HeartbeatTimer("tm", None), 15),
    ]


def test_a_timer_that_comes_early_is_armed_for_the_rest() -> None:
    """Heartbeats move the deadline without touching the timer."""
    monitor = sender()
    monitor.handle(MonitorTarget("a"), 0)

    assert monitor.handle(HeartbeatReceived("a"), 30) == []
    assert monitor.handle(TimerFired(HeartbeatTimer("tm", "a")), 50) == [StartTimer(HeartbeatTimer("tm", "a"), 80)]
    assert monitor.handle(TimerFired(HeartbeatTimer("tm", "a")), 80) == [HeartbeatTimedOut("a")]
    assert monitor.handle(TimerFired(HeartbeatTimer("tm", "a")), 90) == []


def test_consecutive_failed_sends_make_a_target_unreachable_once() -> None:
    """A success in between starts the count again."""
    monitor = sender(threshold=2)
    monitor.handle(MonitorTarget("a"), 0)

    assert monitor.handle(DeliveryFailed("a"), 1) == []
    assert monitor.handle(DeliverySucceeded("a"), 2) == []
    assert monitor.handle(DeliveryFailed("a"), 3) == []
    assert monitor.handle(DeliveryFailed("a"), 4) == [CancelTimer(HeartbeatTimer("tm", "a")), TargetUnreachable("a")]
    assert monitor.handle(DeliveryFailed("a"), 5) == []


def test_a_target_that_was_given_up_stays_so_and_may_be_heard_of() -> None:
    """As in Flink: the time is kept, no timer begins again."""
    monitor = sender()
    monitor.handle(MonitorTarget("a"), 0)
    assert monitor.handle(TimerFired(HeartbeatTimer("tm", "a")), 50) == [HeartbeatTimedOut("a")]

    assert monitor.handle(HeartbeatReceived("a"), 70) == []
    assert monitor.last_heartbeat_ms("a") == 70
    assert monitor.handle(TimerFired(HeartbeatTimer("tm", "a")), 200) == []


def test_stop_cancels_everything() -> None:
    """No timer is left."""
    monitor = sender()
    monitor.handle(MonitorTarget("a"), 0)

    assert monitor.handle(StopHeartbeats(), 1) == [
        CancelTimer(HeartbeatTimer("tm", None)),
        CancelTimer(HeartbeatTimer("tm", "a")),
    ]
    assert not monitor.is_monitored("a")


def test_nothing_begins_after_the_stop() -> None:
    """What is still under way to a side that is gone neither starts a timer nor gets an answer."""
    monitor = sender()
    monitor.handle(StopHeartbeats(), 0)

    assert monitor.handle(MonitorTarget("a"), 1) == []
    assert monitor.handle(StartHeartbeatRounds(), 1) == []
    assert monitor.handle(HeartbeatReceived("a"), 1) == []
    assert not monitor.is_monitored("a")


def test_unmonitoring_the_unknown_is_nothing() -> None:
    """Two causes may report the same loss."""
    assert sender().handle(UnmonitorTarget("x"), 0) == []


@pytest.mark.parametrize(
    ("settings", "key"), [((0, 5, 2), "interval"), ((5, 0, 2), "timeout"), ((5, 5, 0), "rpc-failure-threshold")]
)
def test_senseless_settings_are_named(settings: tuple[int, int, int], key: str) -> None:
    """The error names the key."""
    with pytest.raises(ValueError, match=f"heartbeat.{key}"):
        HeartbeatSettings(*settings)


def test_rounds_that_come_less_often_than_peers_time_out_are_refused() -> None:
    """Both keys are named; the same length is allowed, as in Flink's HeartbeatServices."""
    HeartbeatSettings.from_configuration(Configuration({"heartbeat.interval": "5 s", "heartbeat.timeout": "5 s"}))
    with pytest.raises(ConfigurationError, match=r"heartbeat.interval .5001 ms.*heartbeat.timeout .5000 ms"):
        HeartbeatSettings.from_configuration(
            Configuration({"heartbeat.interval": "5001 ms", "heartbeat.timeout": "5 s"})
        )
