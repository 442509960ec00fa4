"""HeartbeatMonitor beyond the conformance scenarios."""

from __future__ import annotations

import pytest

from snapline.dataflow.config import Configuration, ConfigurationError
from snapline.runtime.cores.heartbeat import (
    HeartbeatMonitor,
    HeartbeatsDue,
    HeartbeatSettings,
    HeartbeatTimer,
)
from snapline.runtime.cores.machine import CancelTimer, StartTimer

ROUND = HeartbeatTimer("tm", None)
DEADLINE = HeartbeatTimer("tm", "a")


def sender(threshold: int = 2) -> HeartbeatMonitor[str]:
    return HeartbeatMonitor("tm", HeartbeatSettings(10, 50, threshold))


def test_rounds_go_on_by_themselves() -> None:
    """The first round is due at once, each arms the next."""
    monitor = sender()
    monitor.monitor_target("a", 0)
    monitor.monitor_target("b", 0)

    assert monitor.start(5) == [StartTimer(ROUND, 5)]
    assert monitor.timer_fired(ROUND, 5) == HeartbeatsDue(ask=("a", "b"), timers=(StartTimer(ROUND, 15),))


def test_a_timer_that_comes_early_is_armed_for_the_rest() -> None:
    """Heartbeats move the deadline without touching the timer."""
    monitor = sender()
    assert monitor.monitor_target("a", 0) == [StartTimer(DEADLINE, 50)]

    assert monitor.receive_heartbeat("a", 30)
    assert monitor.timer_fired(DEADLINE, 50) == HeartbeatsDue(timers=(StartTimer(DEADLINE, 80),))
    assert monitor.timer_fired(DEADLINE, 80) == HeartbeatsDue(silent=("a",))
    assert monitor.timer_fired(DEADLINE, 90) == HeartbeatsDue()


def test_consecutive_failed_sends_make_a_target_unreachable_once() -> None:
    """A success in between starts the count again."""
    monitor = sender(threshold=2)
    monitor.monitor_target("a", 0)

    arrived = [False, True, False, False, False]
    assert [monitor.report_delivery("a", arrived=each) for each in arrived] == [False, False, False, True, False]


def test_a_target_that_was_given_up_stays_so_and_may_be_heard_of() -> None:
    """As in Flink: the time is kept, no timer begins again."""
    monitor = sender()
    monitor.monitor_target("a", 0)
    assert monitor.timer_fired(DEADLINE, 50) == HeartbeatsDue(silent=("a",))

    assert monitor.receive_heartbeat("a", 70)
    assert monitor.last_heartbeat_ms("a") == 70
    assert monitor.timer_fired(DEADLINE, 200) == HeartbeatsDue()


def test_stop_cancels_everything() -> None:
    """No timer is left."""
    monitor = sender()
    monitor.monitor_target("a", 0)

    assert monitor.stop() == [CancelTimer(ROUND), CancelTimer(DEADLINE)]
    assert not monitor.is_monitored("a")


def test_nothing_begins_after_the_stop() -> None:
    """What is still under way to a side that is gone neither starts a timer nor gets an answer."""
    monitor = sender()
    monitor.stop()

    assert monitor.monitor_target("a", 1) == []
    assert monitor.start(1) == []
    assert monitor.timer_fired(ROUND, 1) == HeartbeatsDue()
    assert not monitor.receive_heartbeat("a", 1)
    assert not monitor.is_monitored("a")
    assert monitor.stop() == []


def test_unmonitoring_the_unknown_is_nothing() -> None:
    """Two causes may report the same loss."""
    assert sender().unmonitor_target("x") == []


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
