"""Restart strategies: pauses, and when to give up."""

from __future__ import annotations

import pytest

from snapline.coordinator.execution.restart_strategy import (
    ExponentialDelayRestartStrategy,
    FailureRateRestartStrategy,
    FixedDelayRestartStrategy,
    NoRestartStrategy,
    restart_strategy_of,
)
from snapline.dataflow.config import Configuration, ConfigurationError


def exponential(attempts: int = -1, jitter: float = 0.5, factor: float = 0.0) -> ExponentialDelayRestartStrategy:
    return ExponentialDelayRestartStrategy(100, 1_000, 2.0, factor, 10_000, attempts, lambda: jitter)


def test_none_gives_up_at_once() -> None:
    """And says which setting that is, and whether somebody has chosen it."""
    chosen = restart_strategy_of(Configuration({"restart-strategy.type": "none"}), lambda: 0.5)
    default = restart_strategy_of(Configuration({}), lambda: 0.5)

    assert [chosen.notify_failure(0), default.notify_failure(0)] == [None, None]
    assert chosen.why_not == "restart-strategy.type is none"
    assert "execution.checkpointing.interval" in default.why_not


def test_fixed_delay_counts_its_attempts() -> None:
    """Two restarts, then none."""
    strategy = FixedDelayRestartStrategy(2, 50)

    assert [strategy.notify_failure(now) for now in (0, 10_000, 20_000)] == [50, 50, None]


def test_failure_rate_forgets_what_is_older_than_the_interval() -> None:
    """At most two failures within a second."""
    strategy = FailureRateRestartStrategy(2, 1_000, 30)

    assert [strategy.notify_failure(now) for now in (0, 500, 1_001)] == [30, 30, 30]
    assert strategy.notify_failure(1_400) is None


def test_exponential_delay_doubles_up_to_its_bound() -> None:
    """A failure after each restart."""
    strategy = exponential()
    now_ms, pauses = 0, []
    for _ in range(6):
        pause = strategy.notify_failure(now_ms)
        assert pause is not None
        pauses.append(pause)
        now_ms += pause + 10

    assert pauses == [100, 200, 400, 800, 1_000, 1_000]


def test_failures_during_the_pause_are_one_attempt() -> None:
    """The restart does not move."""
    strategy = exponential(attempts=1)

    assert (strategy.notify_failure(0), strategy.begins_attempt) == (100, True)
    assert (strategy.notify_failure(40), strategy.begins_attempt) == (60, False)
    assert strategy.notify_failure(101) is None


def test_peace_resets_the_pause_and_the_attempts() -> None:
    """reset-backoff-threshold after the last restart."""
    strategy = exponential(attempts=2)
    strategy.notify_failure(0)
    assert strategy.notify_failure(200) == 200

    assert strategy.notify_failure(400 + 10_000) == 100


@pytest.mark.parametrize(("jitter", "pause"), [(0.0, 180), (0.5, 200), (0.999999, 220)])
def test_jitter_moves_the_pause_both_ways(jitter: float, pause: int) -> None:
    """By at most the factor, never below the initial backoff."""
    strategy = exponential(jitter=jitter, factor=0.1)
    assert (strategy.notify_failure(0) or 0) >= 100

    assert strategy.notify_failure(5_000) == pause


def test_jitter_takes_nothing_of_a_pause_that_would_be_far_beyond_the_bound() -> None:
    """The longest pause was cut by the jitter, however often the job had failed before: what is bounded is the pause
    with its jitter."""
    strategy = exponential(jitter=0.0, factor=0.25)
    now_ms, pauses = 0, []
    for _ in range(6):
        pauses.append(strategy.notify_failure(now_ms))
        now_ms += 2_000

    assert pauses == [100, 150, 300, 600, 1_000, 1_000]


def test_very_many_restarts_do_not_overflow() -> None:
    """The pause stays at its bound."""
    strategy = exponential()
    now_ms = 0
    for _ in range(3_000):
        now_ms += (strategy.notify_failure(now_ms) or 0) + 1

    assert strategy.notify_failure(now_ms) == 1_000


@pytest.mark.parametrize(
    ("settings", "kind"),
    [
        ({}, NoRestartStrategy),
        ({"execution.checkpointing.interval": "1 s"}, ExponentialDelayRestartStrategy),
        ({"restart-strategy.type": "exponential-delay"}, ExponentialDelayRestartStrategy),
        ({"restart-strategy.type": "fixed-delay"}, FixedDelayRestartStrategy),
        ({"restart-strategy.type": "failure-rate"}, FailureRateRestartStrategy),
        ({"restart-strategy.type": "none", "execution.checkpointing.interval": "1 s"}, NoRestartStrategy),
    ],
)
def test_the_configuration_chooses(settings: dict[str, str], kind: type) -> None:
    """Without checkpoints and without a word about restarts there are none, as in Flink."""
    assert type(restart_strategy_of(Configuration(settings), lambda: 0.5)) is kind


@pytest.mark.parametrize(
    ("key", "value"),
    [("backoff-multiplier", "0.5"), ("max-backoff", "1 ms"), ("jitter-factor", "1.5")],
)
def test_senseless_settings_are_named(key: str, value: str) -> None:
    """The error names the key."""
    settings = {"restart-strategy.type": "exponential-delay", f"restart-strategy.exponential-delay.{key}": value}

    with pytest.raises(ConfigurationError, match=key):
        restart_strategy_of(Configuration(settings), lambda: 0.5)
