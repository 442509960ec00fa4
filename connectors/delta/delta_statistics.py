"""Statistics of a data file as Delta's log has them, from the footer of the Parquet file.

Decides which columns have bounds: numbers, days, times, truth values and the beginnings of texts, of the first columns.
Bounds let readers skip files, so a file has them for all of these columns or, where one is not known for sure, for
none: the deltalake library finds no row by a column that lacks them beside others.
"""

from __future__ import annotations

import datetime as dt
import decimal
import json
import math
from collections.abc import Collection
from typing import Any

import pyarrow.parquet as pq

INDEXED_COLUMNS = 32
STRING_LENGTH_MAX = 32
LAST_LETTER = "\U0010ffff"
DECIMAL_DIGITS = 15
"""A float has so many digits of a decimal for sure, and readers take bounds for floats."""


def statistics_of(footer: pq.FileMetaData, with_nan: Collection[str] = ()) -> str:
    """The JSON text of one file's statistics. `with_nan`: columns that may have not-a-number, which a footer does not
    say."""
    least: dict[str, Any] = {}
    greatest: dict[str, Any] = {}
    nulls: dict[str, int] = {}
    is_bounded = True
    whole: set[str] = set()
    for index in range(footer.num_columns):
        column = footer.schema.column(index)
        whole.add(column.path.partition(".")[0])  # readers count maps and lists once, whatever is inside of them
        if len(whole) > INDEXED_COLUMNS:
            break
        if column.path != column.name:
            continue  # a part of a nested column
        parts = [footer.row_group(group).column(index).statistics for group in range(footer.num_row_groups)]
        if all(part is not None and part.has_null_count for part in parts):
            nulls[column.name] = sum(part.null_count for part in parts)
        if _is_bytes(column):
            continue
        low, high = (None, None) if column.name in with_nan else _bounds(parts)
        if low is not None and high is not None:
            least[column.name], greatest[column.name] = low, high
        else:
            is_bounded &= nulls.get(column.name) == footer.num_rows
    bounds = {"minValues": least, "maxValues": greatest} if is_bounded else {}
    said = {"numRecords": footer.num_rows, **bounds, "nullCount": nulls}
    return json.dumps(said, ensure_ascii=False)  # the library makes other letters of some that are escaped


def _is_bytes(column: pq.ColumnSchema) -> bool:
    """Whether no reader asks for bounds of the column."""
    return bool(column.physical_type == "BYTE_ARRAY" and column.logical_type.type == "NONE")


def _bounds(parts: list[Any]) -> tuple[Any, Any]:
    """Values that are not greater and not less than those of all row groups, as JSON; None where there are none."""
    bounded = [part for part in parts if part is None or part.num_values]
    if not bounded or not all(part is not None and part.has_min_max for part in bounded):
        return None, None
    try:
        return _lower(min(part.min for part in bounded)), _upper(max(part.max for part in bounded))
    except OverflowError:
        return None, None  # a year that Python's times have not


def _lower(value: Any) -> Any:
    """A value that is not greater, as JSON; None where there is no such bound."""
    if isinstance(value, dt.datetime):
        return _milliseconds(value.replace(microsecond=value.microsecond // 1000 * 1000))
    return value[:STRING_LENGTH_MAX] if isinstance(value, str) else _plain(value)


def _upper(value: Any) -> Any:
    """A value that is not less, as JSON; None where there is no such bound."""
    if isinstance(value, dt.datetime):
        try:
            return _milliseconds(value + dt.timedelta(microseconds=-value.microsecond % 1000))
        except OverflowError:
            return None
    if isinstance(value, str):
        begin, rest = value[:STRING_LENGTH_MAX], value[STRING_LENGTH_MAX:]
        return None if rest.startswith(LAST_LETTER) else begin + LAST_LETTER if rest else begin
    return _plain(value)


def _plain(value: Any) -> Any:
    if isinstance(value, dt.date):
        return value.isoformat()
    if isinstance(value, decimal.Decimal):
        is_sure = len(value.as_tuple().digits) <= DECIMAL_DIGITS and "e" not in repr(float(value))
        return float(value) if is_sure else None
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if isinstance(value, int) else None


def _milliseconds(value: dt.datetime) -> str:
    return value.isoformat(timespec="milliseconds").replace("+00:00", "Z")
