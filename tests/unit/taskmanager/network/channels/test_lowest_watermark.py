"""The lowest watermark of many channels."""

from __future__ import annotations

import random

import pytest

from snapline.taskmanager.network.channels.lowest_watermark import SPARE_ENTRIES, LowestWatermark


@pytest.mark.parametrize("seed", range(20))
def test_the_lowest_is_that_of_all_who_take_part(seed: int) -> None:
    """Channels rise, leave and come back at random, beside a plain dictionary."""
    draw, lowest, reached = random.Random(seed), LowestWatermark(), dict[int, int]()
    for _ in range(500):
        channel = draw.randrange(6)
        if draw.random() < 0.2:
            lowest.remove(channel)
            reached.pop(channel, None)
        else:
            reached[channel] = reached.get(channel, 0) + draw.randrange(50)
            lowest.set(channel, reached[channel])
        expected = min(((ms, known) for known, ms in reached.items()), default=None)
        assert lowest.lowest == expected


def test_a_channel_that_never_rises_does_not_fill_memory() -> None:
    """What the others said before is behind it in the heap for ever."""
    lowest = LowestWatermark()
    lowest.set(0, 0)
    for watermark_ms in range(1, 10_000):
        lowest.set(1, watermark_ms)
    assert lowest.lowest == (0, 0)
    assert len(lowest._heap) <= 2 * 2 + SPARE_ENTRIES
