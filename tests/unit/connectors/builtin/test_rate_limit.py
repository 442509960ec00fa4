"""Permits over time, told as it happens."""

from __future__ import annotations

import pytest

from snapline.connectors.builtin.rate_limit import RateLimiter


def test_permits_come_in_portions_of_the_interval() -> None:
    """1000 rows a second with 20 ms portions: nothing, then 20 rows."""
    limiter = RateLimiter(1000, interval_ms=20)

    assert limiter.permitted(5_000, 500) == 0
    assert limiter.wake_at_ms(5_000, 500) == 5_020
    assert limiter.permitted(5_019, 500) == 0
    assert limiter.permitted(5_020, 500) == 20
    assert limiter.permitted(5_020, 500) == 0
    assert limiter.wake_at_ms(5_020, 500) == 5_040


def test_the_end_of_a_batch_needs_no_whole_portion() -> None:
    """Three rows that are left go as soon as three are due."""
    limiter = RateLimiter(1000, interval_ms=20)
    limiter.permitted(0, 3)

    assert limiter.wake_at_ms(0, 3) == 3
    assert limiter.permitted(3, 3) == 3


def test_a_slow_rate_waits_for_whole_rows() -> None:
    """One row every two seconds."""
    limiter = RateLimiter(0.5, interval_ms=20)

    assert limiter.permitted(0, 10) == 0
    assert limiter.wake_at_ms(0, 10) == 2_000
    assert limiter.permitted(1_999, 10) == 0
    assert limiter.permitted(2_000, 10) == 1


@pytest.mark.parametrize("rate", [7, 333, 10_000, 1_234_567])
def test_waking_when_told_is_enough_and_keeps_the_rate(rate: int) -> None:
    """Whoever polls only at wake_at_ms gets exactly the rate."""
    limiter = RateLimiter(rate, interval_ms=20)
    now, rows = 1_000, limiter.permitted(1_000, 10_000_000)
    while now < 61_000:
        now = limiter.wake_at_ms(now, 10_000_000)
        granted = limiter.permitted(now, 10_000_000)
        assert granted > 0, "woken for nothing"
        rows += granted

    assert abs(rows - rate * (now - 1_000) / 1000) <= 1


def test_a_stall_is_caught_up_only_as_far_as_the_burst() -> None:
    """After an hour of back-pressure one second's rows come at once, then the rate goes on."""
    limiter = RateLimiter(1000, interval_ms=20, burst_ms=1000)
    limiter.permitted(0, 10_000)

    assert limiter.permitted(3_600_000, 10_000) == 1000
    assert limiter.permitted(3_600_000, 10_000) == 0
    assert limiter.permitted(3_600_020, 10_000) == 20


def test_without_burst_everything_due_is_caught_up() -> None:
    """A benchmark's clock does not stop for a slow sink."""
    limiter = RateLimiter(1000, interval_ms=5, burst_ms=None)
    limiter.permitted(0, 10_000_000)

    assert limiter.permitted(3_600_000, 10_000_000) == 3_600_000
