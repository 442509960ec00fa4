"""What return types of functions over rows say of the columns, and which of them say nothing."""

from __future__ import annotations

import typing
from collections.abc import Callable, Iterator
from typing import Annotated, Any, TypedDict

import pyarrow as pa
import pytest

import snapline as sl
from snapline.row_hints import schema_by_hints


class Sold(TypedDict):
    """One kind of row."""

    cents: int


class Returned(TypedDict):
    """Another kind of row."""

    reason: str


class AnyList(TypedDict):
    """A row with a list of whatever there is."""

    tags: typing.List  # noqa: UP006 - programs have it


class Marked(TypedDict):
    """A row with a note that has no hash."""

    cents: Annotated[int, ["in euros"]]


def one_of_two(row: sl.Row) -> Sold | Returned:
    return {"cents": 3} if row["n"] % 2 else {"reason": "broken"}


def either_way(row: sl.Row) -> Iterator[Sold] | list[Sold] | None:
    return [{"cents": row["n"]}]


def one_or_any(row: sl.Row) -> Sold | dict[str, object]:
    return {"cents": row["n"]}


def any_list(row: sl.Row) -> AnyList:
    return {"tags": [row["n"]]}


def marked(row: sl.Row) -> Marked:
    return {"cents": row["n"]}


@pytest.mark.parametrize(
    ("function", "schema"),
    [
        (one_of_two, None),
        (one_or_any, None),
        (either_way, pa.schema([("cents", pa.int64())])),
        (any_list, None),
        (marked, pa.schema([("cents", pa.int64())])),
    ],
)
def test_a_return_type_says_one_kind_of_row_or_nothing(function: Callable[..., Any], schema: pa.Schema | None) -> None:
    """Of several kinds none is the schema, and types that are left open are found out when rows come."""
    assert schema_by_hints(function) == schema
