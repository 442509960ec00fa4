"""Functions that change a row which they have yielded, and yield it again."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pyarrow as pa
import pytest

import snapline as sl
from snapline.testing import OperatorHarness

SCHEMA = pa.schema([("k", pa.int64()), ("at", pa.int64())])


def numbered(row: sl.Row) -> Iterator[sl.Row]:
    """Yield the row twice, with another number each time."""
    for number in range(2):
        row["number"] = number
        yield row


class Numbered(sl.ProcessFunction):
    """Does so without keys, and emits the row aside before it changes it."""

    def process_element(self, row: sl.Row, context: sl.ProcessContext) -> Iterator[sl.Row]:
        context.output("aside", row)
        yield from numbered(row)


class KeyedNumbered(sl.KeyedProcessFunction):
    """Does so with keys."""

    def process_element(self, row: sl.Row, context: sl.ProcessContext) -> Iterator[sl.Row]:
        context.output("aside", row)
        yield from numbered(row)


class AtTimer(sl.KeyedProcessFunction):
    """Does so when a timer fires."""

    def process_element(self, row: sl.Row, context: sl.ProcessContext) -> None:
        context.timer_service.register_event_time_timer(row["at"])

    def on_timer(self, timestamp_ms: int, context: sl.ProcessContext) -> Iterator[sl.Row]:
        yield from numbered({"k": context.current_key})


class OfAWindow(sl.ProcessWindowFunction):
    """Does so for the rows of a window."""

    def process(self, key: Any, context: sl.ProcessWindowContext, rows: Sequence[sl.Row]) -> Iterator[sl.Row]:
        for row in rows:
            context.output("aside", row)
            yield from numbered(row)


class Asked(sl.AsyncFunction):
    """Does so in the answer to a request."""

    async def async_invoke(self, row: sl.Row) -> Iterator[sl.Row]:
        return numbered(row)


CASES: dict[str, Callable[[sl.DataStream], Any]] = {
    "flat_map": lambda rows: rows.flat_map(numbered),
    "a chain of generators": lambda rows: rows.flat_map(lambda row: itertools.chain(numbered(row))),
    "request": lambda rows: rows.async_wait(Asked(), timeout_ms=60_000),
    "flat_map that goes on": lambda rows: rows.flat_map(numbered, on_error="drop"),
    "process": lambda rows: rows.process(Numbered()),
    "process that goes on": lambda rows: rows.process(Numbered(), on_error="drop"),
    "keyed process": lambda rows: rows.key_by("k").process(KeyedNumbered()),
    "timer": lambda rows: rows.key_by("k").process(AtTimer()),
    "window": lambda rows: rows.key_by("k").window(sl.TumblingEventTimeWindows(10)).process(OfAWindow()),
}


@pytest.mark.parametrize("case", CASES)
def test_a_row_is_taken_as_it_is_when_it_is_yielded_or_put_aside(case: str) -> None:
    """All rows of one dict were the last one that it had been, without a word."""
    with OperatorHarness(CASES[case], SCHEMA, event_time="at") as harness:
        harness.push([{"k": 1, "at": 3}, {"k": 2, "at": 4}]).end_input()
        rows = [(row["k"], row["number"]) for row in harness.rows()]
        aside = harness.side_rows("aside")

    assert rows == [(1, 0), (1, 1), (2, 0), (2, 1)]
    assert aside in ([], [{"k": 1, "at": 3}, {"k": 2, "at": 4}])
