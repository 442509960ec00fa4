"""A wide row with many partners: their texts together are more than one column has room for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

import snapline as sl
from snapline.taskmanager.operators.base.row_store import RowStore
from snapline.taskmanager.operators.joins import table_lookup
from snapline.taskmanager.operators.windows.whole_windows import GroupedRows
from snapline.testing import OperatorHarness

LEFT = pa.schema([("k", pa.int64()), ("at", pa.int64())])
RIGHT = pa.schema([("k", pa.int64()), ("at", pa.int64()), ("document", pa.string())])
ROOM = 3
JOINS: dict[str, Callable[[sl.DataStream, sl.DataStream], sl.DataStream]] = {
    "between": lambda left, right: left.key_by("k").join(right.key_by("k")).between(-100, 100),
    "unbounded": lambda left, right: left.key_by("k").join(right.key_by("k")).unbounded(),
    "as of": lambda left, right: left.key_by("k").join(right.key_by("k")).as_of(how="left"),
    "window": lambda left, right: left.key_by("k").join(right.key_by("k")).window(sl.TumblingEventTimeWindows(100)),
}


def with_little_room(take: Callable[..., Any], refusal: type[Exception] = pa.ArrowInvalid) -> Callable[..., Any]:
    """Take rows as Arrow does whose texts have no room in one column: there it needs 2 GiB."""

    def taken(*arguments: Any) -> Any:
        found = take(*arguments)
        if len(found) > ROOM:
            raise refusal("Take operation overflowed binary array capacity")
        return found

    return taken


def pairs_of(join: str) -> list[tuple[Any, ...]]:
    """Of nine rows, and one for the first eight of them."""
    harness = OperatorHarness(JOINS[join], LEFT, RIGHT, event_time="at")
    harness.push([{"k": 1, "at": 1, "document": "long"}], input=1)
    harness.push([{"k": 1 if number < 8 else 2, "at": 2 + number} for number in range(9)])
    return [tuple(row.values()) for row in harness.end_input().rows()]


@pytest.mark.parametrize("refusal", [pa.ArrowInvalid, pa.ArrowCapacityError, OverflowError])
@pytest.mark.parametrize("join", JOINS)
def test_pairs_with_a_wide_row_come_out_in_several_batches(
    join: str, refusal: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A join of a document of 150 kB with 16,000 rows failed, and failed again after each restart."""
    expected = pairs_of(join)
    for rows in (RowStore, GroupedRows):
        monkeypatch.setattr(rows, "take", with_little_room(rows.take, refusal))
    assert len(expected) >= 8
    assert pairs_of(join) == expected


@pytest.mark.parametrize("how", ["left", "inner"])
def test_rows_of_a_table_are_wide(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same with a static table."""
    monkeypatch.setattr(table_lookup, "_one_chunk", with_little_room(table_lookup._one_chunk))
    table = pa.table({"k": [1], "document": ["long"]})
    harness = OperatorHarness(lambda rows: rows.enrich(table, "k", how=how), LEFT)
    found = harness.push([{"k": 1 if number < 8 else 2, "at": number} for number in range(9)]).rows()
    documents = ["long"] * 8 + [None] * (how == "left")
    assert [(row["at"], row["document"]) for row in found] == list(enumerate(documents))
