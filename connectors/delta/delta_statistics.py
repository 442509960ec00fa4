"""Statistics of a data file as Delta's log has them, from the footer of the Parquet file.

Decides which columns have bounds: whole numbers, days, times and short strings of the first columns. Bounds let readers
skip files, so a column whose bounds are not known for sure has none: floating numbers may be NaN, and long strings
would have to be cut.
"""

from __future__ import annotations

import datetime as dt
import json
from typing import Any

import pyarrow.parquet as pq

INDEXED_COLUMNS = 32
STRING_LENGTH_MAX = 32


def statistics_of(footer: pq.FileMetaData) -> str:
    """The JSON text of one file's statistics."""
    least: dict[str, Any] = {}
    greatest: dict[str, Any] = {}
    nulls: dict[str, int] = {}
    for index in range(min(footer.num_columns, INDEXED_COLUMNS)):
        column = footer.schema.column(index)
        if column.path != column.name:
            continue  # a part of a nested column
        parts = [footer.row_group(group).column(index).statistics for group in range(footer.num_row_groups)]
        if any(part is None or not part.has_null_count for part in parts):
            continue
        nulls[column.name] = sum(part.null_count for part in parts)
        bounded = [part for part in parts if part.num_values]
        if not bounded or not all(part.has_min_max for part in bounded):
            continue
        try:
            low = _lower(min(part.min for part in bounded))
            high = _upper(max(part.max for part in bounded))
        except OverflowError:
            continue  # a year that Python's times have not
        if low is not None and high is not None:
            least[column.name], greatest[column.name] = low, high
    return json.dumps({"numRecords": footer.num_rows, "minValues": least, "maxValues": greatest, "nullCount": nulls})


def _lower(value: Any) -> Any:
    """A value that is not greater, as JSON; None where there is no such bound."""
    if isinstance(value, dt.datetime):
        return _milliseconds(value.replace(microsecond=value.microsecond // 1000 * 1000))
    return _plain(value)


def _upper(value: Any) -> Any:
    """A value that is not less, as JSON; None where there is no such bound."""
    if isinstance(value, dt.datetime):
        try:
            return _milliseconds(value + dt.timedelta(microseconds=-value.microsecond % 1000))
        except OverflowError:
            return None
    return _plain(value)


def _plain(value: Any) -> Any:
    if isinstance(value, dt.date):
        return value.isoformat()
    if isinstance(value, str):
        return value if len(value) <= STRING_LENGTH_MAX else None
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _milliseconds(value: dt.datetime) -> str:
    return value.isoformat(timespec="milliseconds").replace("+00:00", "Z")
