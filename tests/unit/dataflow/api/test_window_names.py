"""What operators over windows are called."""

from __future__ import annotations

import pytest

import snapline as sl
from snapline.dataflow.api.window_names import describe_windows
from snapline.dataflow.config import Configuration

NAMES = {
    "tumbling window 1 d": sl.TumblingEventTimeWindows(86_400_000),
    "tumbling window 90 s": sl.TumblingEventTimeWindows(90_000),
    "tumbling window 250 ms of processing time": sl.TumblingProcessingTimeWindows(250),
    "sliding window 1 h every 1 min": sl.SlidingEventTimeWindows(3_600_000, 60_000),
    "session window 30 min": sl.EventTimeSessionWindows(1_800_000),
    "count window 100": sl.GlobalWindows(sl.CountTrigger(100)),
}


@pytest.mark.parametrize("name", NAMES)
def test_windows_are_named_by_kind_and_size(name: str) -> None:
    """In the largest unit that divides the size."""
    assert describe_windows(NAMES[name]) == name


def test_an_operator_has_the_name_of_its_windows_unless_it_was_given_one() -> None:
    """So that plans, graphs and metrics tell two of them apart."""
    env = sl.StreamExecutionEnvironment(Configuration({}))
    strategy = sl.WatermarkStrategy.for_monotonous_timestamps("at")
    rows = env.from_collection([{"shop": "a", "at": 0}]).assign_timestamps_and_watermarks(strategy)
    windows = rows.key_by("shop").window(sl.TumblingEventTimeWindows(60_000))
    assert windows.aggregate(uid="one", n=sl.count()).node.name == "tumbling window 1 min"
    assert windows.aggregate(uid="two", name="minutes", n=sl.count()).node.name == "minutes"
