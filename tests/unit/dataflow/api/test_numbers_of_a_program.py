"""A number that is none is refused where it is given, with what would do, and not in a task."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

import snapline as sl

MINUTES = sl.TumblingEventTimeWindows(60_000)
STRATEGY = sl.WatermarkStrategy.for_monotonous_timestamps("at")


class Echo(sl.AsyncFunction):
    """Answers with the row."""

    async def async_invoke(self, row):
        return [row]


def keyed():
    """A stream of one row with an event time, by its key."""
    environment = sl.StreamExecutionEnvironment.get_execution_environment()
    rows = environment.from_collection([{"k": "a", "at": 1, "v": 2}], uid="rows")
    return rows.assign_timestamps_and_watermarks(STRATEGY).key_by("k")


def joined():
    """The stream with itself."""
    stream = keyed()
    return stream.join(stream)


DURATIONS: dict[str, Callable[[Any], object]] = {
    "a window's size": sl.TumblingEventTimeWindows,
    "a window's slide": lambda given: sl.SlidingEventTimeWindows(10, given),
    "a session's gap": sl.EventTimeSessionWindows,
    "allowed lateness": lambda given: keyed().window(MINUTES).allowed_lateness(given),
    "'window_join': allowed lateness": lambda given: joined().window(MINUTES, allowed_lateness_ms=given),
    "'interval_join': the lower bound": lambda given: joined().between(given, 10),
    "'interval_join': the upper bound": lambda given: joined().between(-10, given),
    "max_out_of_orderness_ms": lambda given: sl.WatermarkStrategy.for_bounded_out_of_orderness("at", given),
    "idle_timeout_ms": STRATEGY.with_idleness,
    "watermark alignment: max_drift_ms": lambda given: STRATEGY.with_watermark_alignment("all", given),
    "watermark alignment: update_interval_ms": lambda given: STRATEGY.with_watermark_alignment("all", 5, given),
    "a trigger's interval": sl.ContinuousEventTimeTrigger,
    "a trigger's timeout": sl.ProcessingTimeoutTrigger,
    "operator 'async_wait': timeout_ms": lambda given: keyed().stream.async_wait(Echo(), timeout_ms=given),
}
COUNTS: dict[str, Callable[[Any], object]] = {
    "operator 'watermarks': parallelism": lambda given: keyed().stream.set_parallelism(given),
    "operator 'watermarks': max parallelism": lambda given: keyed().stream.set_max_parallelism(given),
    "operator 'async_wait': capacity": lambda given: keyed().stream.async_wait(Echo(), capacity=given),
    "GeneratorSource: rows": lambda given: sl.GeneratorSource(rows=given),
    "GeneratorSource: keys": lambda given: sl.GeneratorSource(keys=given),
}


@pytest.mark.parametrize("what", DURATIONS)
@pytest.mark.parametrize(
    ("given", "hint"),
    [
        ("10 s", ": write 10000"),
        (timedelta(seconds=2), ": write 2000"),
        (1.5, ""),
        (True, ""),
        (None, ""),
        ("soon", ""),
    ],
)
def test_a_duration_is_whole_milliseconds(what, given, hint):
    """Text and timedeltas, as other engines take them, are answered with the number that they mean."""
    with pytest.raises(sl.InvalidArgument) as refused:
        DURATIONS[what](given)

    assert str(refused.value) == f"{what} is whole milliseconds, got {given!r}{hint}"


@pytest.mark.parametrize("what", DURATIONS)
def test_a_duration_is_no_longer_than_time(what):
    """Added to an event time, Java's longest duration goes round: sessions were lost, and windows ended before 1970."""
    with pytest.raises(sl.InvalidArgument) as refused:
        DURATIONS[what](2**63 - 1)

    assert str(refused.value).startswith(f"{what} must be at most 253402300799999 ms, which is 8,000 years, got ")


@pytest.mark.parametrize("what", COUNTS)
@pytest.mark.parametrize("given", ["2", 1.5, True, timedelta(1), -1])
def test_a_count_is_a_whole_number(what, given):
    """Of at least one, or nought where that means something."""
    with pytest.raises(
        (sl.InvalidArgument, sl.ConnectorError), match=r"must be a whole number, (at least [01]|1 to \d+), got "
    ) as refused:
        COUNTS[what](given)

    assert str(refused.value).startswith(what)


@pytest.mark.parametrize("given", ["2", True, timedelta(1), 0])
def test_a_rate_is_a_positive_number(given):
    """It need not be whole."""
    with pytest.raises(sl.ConnectorError, match="rows_per_second must be a positive number, got "):
        sl.GeneratorSource(rows_per_second=given)


def test_rows_are_chosen_by_the_name_of_a_column():
    """A list of columns is none."""
    with pytest.raises(sl.InvalidArgument, match=r"by the name of a column, got 5"):
        keyed().window(MINUTES).max_by(5)


@pytest.mark.parametrize(
    ("make", "given", "says"),
    [
        (
            lambda x: sl.WatermarkStrategy("at", alignment=x),
            "g",
            "alignment is a WatermarkAlignmentParams, not 'g'; say",
        ),
        (
            lambda x: sl.WatermarkStrategy("at", generator=x),
            5,
            "for_generator takes a WatermarkGenerator class, or a fun",
        ),
        (lambda x: sl.WatermarkStrategy.for_generator("at", x), None, "for_generator takes a WatermarkGenerator class"),
        (lambda x: sl.WatermarkAlignmentParams(x, 5, 5), "", "watermark alignment needs the name of a group, got ''"),
        (
            lambda x: sl.WatermarkAlignmentParams("g", x, 5),
            "5 s",
            "watermark alignment: max_drift_ms is whole millisec",
        ),
    ],
)
def test_a_strategy_is_checked_however_it_is_made(make: Callable[[Any], object], given: object, says: str) -> None:
    """Its fields went unchecked to the task, where they were an AttributeError of the engine."""
    with pytest.raises(sl.InvalidArgument) as refused:
        make(given)

    assert str(refused.value).startswith(says)
