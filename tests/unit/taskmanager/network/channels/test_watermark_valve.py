"""The combined watermark of several channels."""

from __future__ import annotations

import random

import pytest

from snapline.dataflow.elements import MAX_WATERMARK_MS, MIN_WATERMARK_MS, Watermark, WatermarkStatus
from snapline.taskmanager.network.channels.watermark_valve import InputValves, StatusWatermarkValve

ACTIVE, IDLE = WatermarkStatus.ACTIVE, WatermarkStatus.IDLE


def test_minimum_over_the_channels_rises() -> None:
    """Only when the slowest one moves; lower watermarks are ignored."""
    valve = StatusWatermarkValve(2)

    assert valve.input_watermark(0, Watermark(10)) == []
    assert valve.input_watermark(1, Watermark(5)) == [Watermark(5)]
    assert valve.input_watermark(1, Watermark(3)) == []
    assert valve.input_watermark(1, Watermark(20)) == [Watermark(10)]


def test_idle_channel_holds_nobody_back() -> None:
    """Its leaving may let the watermark rise."""
    valve = StatusWatermarkValve(2)
    valve.input_watermark(0, Watermark(10))

    assert valve.input_status(1, IDLE) == [Watermark(10)]
    assert valve.input_watermark(1, Watermark(30)) == []
    assert valve.input_watermark(0, Watermark(11)) == [Watermark(11)]


def test_channel_that_becomes_active_behind_joins_when_it_has_caught_up() -> None:
    """The watermark never goes back."""
    valve = StatusWatermarkValve(2)
    valve.input_status(1, IDLE)
    valve.input_watermark(0, Watermark(10))

    assert valve.input_status(1, ACTIVE) == []
    assert valve.input_watermark(1, Watermark(7)) == []
    assert valve.input_watermark(0, Watermark(12)) == [Watermark(12)]
    assert valve.input_watermark(1, Watermark(13)) == []
    assert valve.input_watermark(0, Watermark(20)) == [Watermark(13)]


def test_input_is_idle_when_all_channels_are() -> None:
    """What the others had reached comes first, if the last one held it back."""
    valve = StatusWatermarkValve(2)
    valve.input_watermark(0, Watermark(10))
    valve.input_watermark(1, Watermark(5))

    assert valve.input_status(0, IDLE) == []
    assert valve.input_status(1, IDLE) == [Watermark(10), IDLE]
    assert valve.input_status(1, ACTIVE) == [ACTIVE]


def test_an_idle_input_has_reached_what_any_channel_had_though_the_last_one_was_behind() -> None:
    """That one had been idle, came back, and had not caught up: windows of the others stayed open."""
    valve = StatusWatermarkValve(3)
    for channel, reached_ms in enumerate((100, 50, 70)):
        valve.input_watermark(channel, Watermark(reached_ms))
    assert valve.input_status(1, IDLE) == [Watermark(70)]
    valve.input_status(1, ACTIVE)
    assert valve.input_watermark(1, Watermark(60)) == []
    assert valve.input_status(0, IDLE) == valve.input_status(2, IDLE) == []
    assert valve.input_status(1, IDLE) == [Watermark(100), IDLE]


def test_ended_channel_takes_part_no_longer() -> None:
    """When all have ended, nothing more is said."""
    valve = StatusWatermarkValve(2)
    valve.input_watermark(0, Watermark(10))

    assert valve.channel_ended(1) == [Watermark(10)]
    assert valve.input_watermark(1, Watermark(50)) == []
    assert valve.input_watermark(0, Watermark(MAX_WATERMARK_MS)) == [Watermark(MAX_WATERMARK_MS)]
    assert valve.channel_ended(0) == []
    assert valve.channel_ended(0) == []


def test_last_watermark_of_an_idle_channel_ends_the_input() -> None:
    """A source that has said that it is idle, and then ends, fires what is left."""
    valve = StatusWatermarkValve(2)
    valve.input_watermark(0, Watermark(10))
    valve.input_status(0, IDLE)
    valve.input_status(1, IDLE)

    assert valve.input_watermark(0, Watermark(MAX_WATERMARK_MS)) == []
    assert valve.input_watermark(1, Watermark(MAX_WATERMARK_MS)) == [Watermark(MAX_WATERMARK_MS)]
    assert valve.channel_ended(0) == valve.channel_ended(1) == []


def test_channel_that_is_over_does_not_end_the_input_of_an_idle_one() -> None:
    """Rows of the idle one are not late when it comes back, and its watermark counts again."""
    valve = StatusWatermarkValve(2)
    valve.input_watermark(0, Watermark(10))
    valve.input_watermark(1, Watermark(20))

    assert valve.input_status(0, IDLE) == [Watermark(20)]
    assert valve.input_watermark(1, Watermark(MAX_WATERMARK_MS)) == [IDLE]
    assert valve.channel_ended(1) == []
    assert valve.input_status(0, ACTIVE) == [ACTIVE]
    assert valve.input_watermark(0, Watermark(30)) == [Watermark(30)]
    assert valve.input_watermark(0, Watermark(MAX_WATERMARK_MS)) == [Watermark(MAX_WATERMARK_MS)]


def test_a_channel_that_comes_back_ahead_of_all_others_counts_at_once() -> None:
    """The only active one was behind, and nothing rose until the next watermark of the one that was back."""
    valve = StatusWatermarkValve(3)
    valve.input_watermark(0, Watermark(10))
    valve.input_watermark(1, Watermark(7))
    assert valve.input_status(2, IDLE) == [Watermark(7)]
    assert valve.input_status(2, ACTIVE) == []
    assert valve.input_status(0, IDLE) == valve.input_status(1, IDLE) == []

    assert valve.input_status(0, ACTIVE) == [Watermark(10)]
    assert valve.input_status(2, IDLE) == []


def test_an_input_that_comes_back_holds_the_watermark_of_a_join_back() -> None:
    """Its rows were late: what the other one reached after them counted until its own watermark had caught up."""
    valves = InputValves([0, 0, 1])
    valves.input_status(2, IDLE)
    valves.input_watermark(0, Watermark(30))
    assert valves.input_watermark(1, Watermark(10)) == [Watermark(10)]

    assert valves.input_status(2, ACTIVE) == []
    assert valves.input_watermark(1, Watermark(20)) == []
    assert valves.input_watermark(2, Watermark(15)) == [Watermark(15)]
    assert valves.input_watermark(2, Watermark(40)) == [Watermark(20)]


@pytest.mark.parametrize("first", [0, 1])
def test_a_join_whose_inputs_are_both_idle_has_reached_what_either_had(first: int) -> None:
    """It does not matter which of them became idle first."""
    valves = InputValves([0, 1])
    valves.input_watermark(0, Watermark(10))
    assert valves.input_watermark(1, Watermark(5)) == [Watermark(5)]

    said = [*valves.input_status(first, IDLE), *valves.input_status(1 - first, IDLE)]
    assert said == [Watermark(10), IDLE]
    assert valves.input_status(1, ACTIVE) == [ACTIVE]
    assert valves.input_watermark(1, Watermark(20)) == [Watermark(20)]


def test_the_last_watermark_of_a_join_comes_when_both_inputs_are_over() -> None:
    """An input that is over holds nobody back, and does not end the other one, which is idle."""
    valves = InputValves([0, 1])
    valves.input_watermark(0, Watermark(10))
    assert valves.input_watermark(1, Watermark(MAX_WATERMARK_MS)) == [Watermark(10)]

    assert valves.input_status(0, IDLE) == [IDLE]
    assert valves.channel_ended(1) == []
    assert valves.input_watermark(0, Watermark(MAX_WATERMARK_MS)) == [Watermark(MAX_WATERMARK_MS)]
    assert valves.channel_ended(0) == []


@pytest.mark.parametrize("seed", range(30))
def test_never_back_never_beyond_an_active_channel_and_as_far_as_that(seed: int) -> None:
    """Random statuses and watermarks, against the three rules."""
    draw, count = random.Random(seed), 4
    valve = StatusWatermarkValve(count)
    reached = [MIN_WATERMARK_MS] * count
    active = [True] * count
    joined = [True] * count
    last = MIN_WATERMARK_MS
    for _ in range(300):
        channel = draw.randrange(count)
        if draw.random() < 0.2:
            status = draw.choice((ACTIVE, IDLE))
            outputs = valve.input_status(channel, status)
            if active[channel] != (status is ACTIVE):
                active[channel] = status is ACTIVE
                joined[channel] = active[channel] and reached[channel] >= last
        else:
            mark = draw.randrange(1_000)
            outputs = valve.input_watermark(channel, Watermark(mark))
            rises = active[channel] and mark > reached[channel]
            if active[channel]:
                reached[channel] = max(reached[channel], mark)
                joined[channel] = joined[channel] or reached[channel] >= last
            risen = [reached[n] for n in range(count) if joined[n] and active[n]]
            said = max([output.timestamp_ms for output in outputs if isinstance(output, Watermark)], default=last)
            assert not rises or not risen or said >= min(risen)
        for output in outputs:
            if isinstance(output, Watermark):
                assert output.timestamp_ms > last
                last = output.timestamp_ms
                assert all(reached[n] >= last for n in range(count) if joined[n] and active[n])


def test_an_input_that_comes_back_behind_holds_the_other_up_until_it_has_caught_up() -> None:
    """Else its rows would be late for as long as the other one goes on faster than it catches up."""
    valves = InputValves([0, 1])
    valves.input_watermark(0, Watermark(100))
    valves.input_watermark(1, Watermark(5))

    assert valves.input_status(1, IDLE) == [Watermark(100)]
    assert valves.input_status(1, ACTIVE) == []
    assert valves.input_watermark(0, Watermark(150)) == []
    assert valves.input_watermark(1, Watermark(60)) == []
    assert valves.input_watermark(1, Watermark(120)) == [Watermark(120)]


def test_inputs_end_when_all_have() -> None:
    """The one that is idle may come back, and is not ended by the other."""
    valves = InputValves([0, 1])
    valves.input_watermark(0, Watermark(100))
    valves.input_watermark(1, Watermark(5))

    assert valves.input_status(1, IDLE) == [Watermark(100)]
    assert valves.input_watermark(0, Watermark(MAX_WATERMARK_MS)) == [IDLE]
    assert valves.channel_ended(0) == []
    assert valves.input_status(1, ACTIVE) == [ACTIVE]
    assert valves.input_watermark(1, Watermark(120)) == [Watermark(120)]
    assert valves.input_watermark(1, Watermark(MAX_WATERMARK_MS)) == [Watermark(MAX_WATERMARK_MS)]
    assert valves.channel_ended(1) == []
