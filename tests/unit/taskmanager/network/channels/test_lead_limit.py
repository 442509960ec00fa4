"""When a channel that is ahead in event time waits for the one that is behind, and when it does not."""

from __future__ import annotations

from snapline.dataflow.elements import MAX_WATERMARK_MS
from snapline.taskmanager.network.channels.lead_limit import LOOK_MS, LOOKS, MOST_MS, LeadLimit

TOLERATED_MS = 20_000


def limit_of(*reached_ms: int) -> LeadLimit:
    limit = LeadLimit(len(reached_ms), TOLERATED_MS)
    for channel, watermark_ms in enumerate(reached_ms):
        limit.rises(channel, watermark_ms)
    return limit


def waits(limit: LeadLimit, channel: int, now_ms: int) -> bool:
    return limit.wait_until([channel], [channel], now_ms) is not None


def test_a_channel_that_is_too_far_ahead_waits_until_the_other_is_there() -> None:
    """The one behind comes nearer with each look."""
    limit = limit_of(100_000, 10_000)
    now_ms, looks = 1_000, 0
    while (until_ms := limit.wait_until([0], [0], now_ms)) is not None:
        assert until_ms == now_ms + LOOK_MS
        looks, now_ms = looks + 1, until_ms
        limit.rises(1, 10_000 + 20_000 * looks)

    assert looks == 4, "at 80,000 it is as near as it has to be"
    assert not waits(limit, 0, now_ms)


def test_nobody_waits_for_a_channel_that_has_something() -> None:
    """It is read itself; nor does a channel wait that is ahead by no more than is tolerated."""
    assert limit_of(100_000, 10_000).wait_until([0], [0, 1], 0) is None
    assert not waits(limit_of(30_000, 10_000), 0, 0)
    assert waits(limit_of(30_001, 10_000), 0, 0)


def test_a_channel_of_another_time_is_given_up_at_the_first_look() -> None:
    """Its rows come one by one, an hour behind: whoever waited for it again and again would fall behind himself."""
    limit = limit_of(3_600_000, 10_000)
    assert waits(limit, 0, 0)
    limit.rises(1, 10_050)
    assert not waits(limit, 0, LOOK_MS)

    for minute in range(1, 60):
        limit.rises(0, 3_600_000 + 60_000 * minute)
        limit.rises(1, 10_000 + 60_000 * minute)
        assert not waits(limit, 0, 60_000 * minute), "the lead stays what it was found to be"


def test_a_lead_that_grows_costs_a_look_each_time_that_it_doubles() -> None:
    """A source that is slower for good holds nobody back by more than that."""
    limit = limit_of(0, 0)
    lost_ms = now_ms = 0
    for second in range(1, 100_000):
        limit.rises(0, 1_000 * second)
        limit.rises(1, second)
        now_ms += 1
        while (until_ms := limit.wait_until([0], [0], now_ms)) is not None:
            lost_ms, now_ms = lost_ms + until_ms - now_ms, until_ms

    assert lost_ms == 13 * LOOK_MS, "20 seconds double thirteen times within 100,000"


def test_what_was_tolerated_once_is_forgotten_when_the_lead_was_less() -> None:
    """The one behind has come there after all, and falls behind anew."""
    limit = limit_of(1_000_000, 10_000)
    assert waits(limit, 0, 0)
    assert not waits(limit, 0, LOOK_MS)
    limit.rises(1, 1_000_000)
    limit.rises(0, 1_020_001)

    assert waits(limit, 0, 2 * LOOK_MS)


def test_no_wait_is_longer_than_its_looks() -> None:
    """Whatever the one behind does: it cannot come nearer and nearer without arriving."""
    limit = limit_of(1_000_000, 0)
    now_ms = 0
    for step in range(1, 1_000):
        until_ms = limit.wait_until([0], [0], now_ms)
        if until_ms is None:
            break
        now_ms = until_ms
        limit.rises(1, 98_000 * step)

    assert now_ms <= (LOOKS + 1) * LOOK_MS


def test_a_source_at_half_the_pace_takes_a_fifth_of_the_others_time_at_most() -> None:
    """The one behind catches up at each look, so that the other would wait for half of the time, for good."""
    limit, reached, waited_ms = limit_of(21_000, 1_000), [21_000, 1_000], 0
    for now_ms in range(0, 60_000, 10):
        held = limit.wait_until([0], [0], now_ms) is not None
        waited_ms += 10 * held
        for channel, pace_ms in ((0, 0 if held else 4_000), (1, 2_000)):
            reached[channel] += pace_ms
            limit.rises(channel, reached[channel])

    assert 0 < waited_ms <= 60_000 // 5 + MOST_MS


def test_channels_that_are_idle_over_or_unknown_are_not_waited_for() -> None:
    """Nothing is known of when they go on."""
    idle, ended, unknown = limit_of(100_000, 10_000), limit_of(100_000, 10_000), LeadLimit(2, TOLERATED_MS)
    idle.leaves(1)
    ended.rises(1, MAX_WATERMARK_MS)
    unknown.rises(0, 100_000)
    for limit in (idle, ended, unknown):
        assert not waits(limit, 0, 0)

    idle.returns(1)
    assert waits(idle, 0, 0)


def test_whoever_has_ended_does_not_wait() -> None:
    """What is left of it are its last events, not rows."""
    assert not waits(limit_of(MAX_WATERMARK_MS, 10_000), 0, 0)


def test_without_a_limit_nobody_waits() -> None:
    """Most operators keep no rows for a time of the stream."""
    limit = LeadLimit(2, None)
    limit.rises(0, 10**12)
    limit.rises(1, 0)

    assert not waits(limit, 0, 0)
