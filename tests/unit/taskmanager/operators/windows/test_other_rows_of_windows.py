"""A snapshot of windows that keep some of their rows, and a job that wants others: its results would be made of what
the one before has left."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa
import pytest

import snapline as sl
from snapline.dataflow.errors import StateError
from snapline.testing import OperatorHarness

SCHEMA = pa.schema({"k": pa.int64(), "v": pa.int64(), "at": pa.int64()})
ROWS = [{"k": 1, "v": v, "at": 0} for v in (4, 9, 1)]


class All(sl.ProcessWindowFunction):
    """The rows of a window as they are."""

    def process(self, key: object, context: sl.ProcessWindowContext, elements: Sequence[dict[str, Any]]):
        return [dict(row) for row in elements]


FORMS: dict[str, Callable[[sl.WindowedStream], sl.DataStream]] = {
    "the first row with the greatest 'v'": lambda windows: windows.max_by("v", uid="op"),
    "the last row with the greatest 'v'": lambda windows: windows.max_by("v", ties="last", uid="op"),
    "the first row with the greatest 'k'": lambda windows: windows.max_by("k", uid="op"),
    "the first row with the least 'v'": lambda windows: windows.min_by("v", uid="op"),
    "the row that all were reduced to": lambda windows: windows.reduce(lambda one, other: other, uid="op"),
    "all rows": lambda windows: windows.process(All(), uid="op"),
}


def harness(form: str, **options: object) -> OperatorHarness:
    def build(rows: sl.DataStream) -> sl.DataStream:
        return FORMS[form](rows.key_by("k").window(sl.TumblingEventTimeWindows(1_000)))

    return OperatorHarness(build, SCHEMA, event_time="at", **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("now", FORMS)
@pytest.mark.parametrize("was", FORMS)
def test_windows_go_on_with_the_rows_that_they_kept_and_with_no_others(was: str, now: str) -> None:
    """The least row came out as the greatest, since the snapshot had no other."""
    snapshot = harness(was).push(ROWS).snapshot()
    if was != now:
        with pytest.raises(StateError, match=f"in the snapshot hold {was}, and those of the job now {now}: keep"):
            harness(now, restore_from=snapshot)
        return
    again = harness(now, restore_from=snapshot).push([{"k": 1, "v": 5, "at": 1}]).end_input()
    assert again.rows() == harness(now).push([*ROWS, {"k": 1, "v": 5, "at": 1}]).end_input().rows()


@pytest.mark.parametrize("windowed", [True, False])
def test_rows_that_are_reduced_to_one_without_a_key_are_refused(windowed: bool) -> None:
    """A function that gives the sum alone had rows come out whose key was null."""

    def total(one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
        return {"v": one["v"] + other["v"]}

    def build(rows: sl.DataStream) -> sl.DataStream:
        keyed = rows.key_by("k")
        return keyed.window(sl.TumblingEventTimeWindows(1_000)).reduce(total) if windowed else keyed.reduce(total)

    operator = OperatorHarness(build, SCHEMA, event_time="at")
    row = {"k": 1, "v": 5, "at": 1}
    operator.push([row])
    with pytest.raises(TypeError, match=r"reduce: a row without its key k is none of the key's: \{'v': 10\}"):
        operator.push([row])
