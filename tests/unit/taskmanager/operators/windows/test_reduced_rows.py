"""Rows that a window reduces to one: what the function is given, and what it may give, however the stream is cut."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

import snapline as sl
from snapline.testing import OperatorHarness

SCHEMA = pa.schema([("k", pa.int64()), ("at", pa.int64()), ("share", pa.float32()), ("note", pa.string())])
WINDOWS = [sl.TumblingEventTimeWindows(100), sl.SlidingEventTimeWindows(100, 50), sl.EventTimeSessionWindows(50)]


def added_up(one: sl.Row, other: sl.Row) -> sl.Row:
    """Without the note, which is null then."""
    notes = [row["note"] for row in (one, other) if row["note"] is not None]
    return {
        "k": one["k"],
        "at": other["at"],
        "share": one["share"] + other["share"],
        "note": notes[-1] if notes else None,
    }


def without_a_note(one: sl.Row, other: sl.Row) -> sl.Row:
    """A column that is left out is null, for whoever asks for it next, too."""
    assert "note" in one
    return {"k": one["k"], "at": other["at"], "share": one["share"] / 3 + other["share"]}


def harness(function: Callable[[sl.Row, sl.Row], Any], window: Any) -> OperatorHarness:
    return OperatorHarness(lambda rows: rows.key_by("k").window(window).reduce(function), SCHEMA, event_time="at")


def rows(count: int) -> list[dict[str, Any]]:
    return [{"k": number % 2, "at": 10 * number, "share": 0.1 * number, "note": None} for number in range(count)]


@pytest.mark.parametrize("function", [added_up, without_a_note])
@pytest.mark.parametrize("window", WINDOWS)
def test_results_do_not_depend_on_where_batches_end(window: Any, function: Callable[[sl.Row, sl.Row], Any]) -> None:
    """Within a batch the function was given its own result as it was, with more digits than a float32 has, and without
    the columns that it had left out."""
    whole, cut = harness(function, window).push(rows(9)), harness(function, window)
    for row in rows(9):
        cut.push([row])
    assert whole.end_input().rows() == cut.end_input().rows()


@pytest.mark.parametrize("count", [3, 1])
@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ({"k": 0, "at": 1, "share": 1.0, "note": None, "n": 2}, r"'n': 2"),
        (None, "None"),
    ],
)
def test_what_is_no_row_of_the_window_is_refused(given: Any, shown: str, count: int) -> None:
    """A column of its own, such as a count for a mean, was there for the rows of one batch and gone for the next, so
    that the mean was wrong; and where nothing was given, the rows before were forgotten."""
    operator = harness(lambda _one, _other: given, WINDOWS[0]).push([rows(1)[0]])
    with pytest.raises(TypeError, match=f"reduce: .* gives a row with the columns at, k, note, share, not .*{shown}"):
        operator.push([rows(1)[0]] * count)


@pytest.mark.parametrize("windowed", [True, False])
def test_rows_with_uuids_are_reduced_and_go_on_from_a_snapshot(windowed: bool) -> None:
    """A reduce over all rows of a key failed with its second row, since a record with a UUID could not be made."""
    schema = pa.schema({"k": pa.int64(), "v": pa.int64(), "at": pa.int64(), "id": pa.uuid()})

    def build(rows: sl.DataStream) -> sl.DataStream:
        def added_up(one: sl.Row, other: sl.Row) -> sl.Row:
            return {**other, "v": one["v"] + other["v"]}

        keyed = rows.key_by("k")
        window = sl.TumblingEventTimeWindows(1_000)
        return keyed.window(window).reduce(added_up, uid="op") if windowed else keyed.reduce(added_up, uid="op")

    three = [{"k": 1, "v": v, "at": v, "id": uuid.UUID(int=v)} for v in (4, 9, 1)]
    snapshot = OperatorHarness(build, schema, event_time="at").push(three[:2]).snapshot()
    last = OperatorHarness(build, schema, event_time="at", restore_from=snapshot).push(three[2:]).end_input().rows()[-1]
    assert (last["v"], last["id"]) == (14, uuid.UUID(int=1))
