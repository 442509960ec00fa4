"""Equal rows in whatever order: what a stream of several subtasks puts out has none.

Decides what a row is, for a comparison: its columns by name, with the values of Python. Two rows are one when these are
equal, a NaN included; how often a row comes counts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

import pyarrow as pa

SHOWN = 10
"""So many rows of each kind of difference are shown."""
_NAN = "nan"


def assert_same_rows(
    actual: Iterable[Mapping[str, Any]] | pa.Table | pa.RecordBatch,
    expected: Iterable[Mapping[str, Any]] | pa.Table | pa.RecordBatch,
) -> None:
    """Both hold the same rows equally often; their order, and that of the columns, does not matter.

    `actual`, `expected`: dictionaries, or a table or batch of Arrow. Raises AssertionError that lists what is missing
    and what is too much, with how often.

    >>> sl_testing.assert_same_rows([{"n": 2}, {"n": 1}], [{"n": 1}, {"n": 2}])
    >>> sl_testing.assert_same_rows([{"n": 1}, {"n": 1}], [{"n": 1}, {"n": 2}])
    Traceback (most recent call last):
    AssertionError: the rows differ: 1 missing, 1 too many (2 rows, 2 expected)
      missing:  {'n': 2}
      too many: {'n': 1}
    """
    found, wanted = _rows(actual), _rows(expected)
    shown = dict((*wanted, *found))
    counted, awaited = Counter(key for key, _ in found), Counter(key for key, _ in wanted)
    missing, surplus = awaited - counted, counted - awaited
    if missing or surplus:
        head = f"the rows differ: {missing.total()} missing, {surplus.total()} too many"
        lines = [f"{head} ({len(found)} rows, {len(wanted)} expected)"]
        raise AssertionError(
            "\n".join([*lines, *_said("missing: ", missing, shown), *_said("too many:", surplus, shown)])
        )


def _rows(given: Iterable[Mapping[str, Any]] | pa.Table | pa.RecordBatch) -> list[tuple[Any, Mapping[str, Any]]]:
    """Each row with what stands for it in a comparison."""
    rows = given.to_pylist() if isinstance(given, (pa.Table, pa.RecordBatch)) else list(given)
    return [(_key(row), row) for row in rows]


def _key(value: Any) -> Any:
    """A hashable value that is equal for equal values."""
    match value:
        case Mapping():
            return ("row", frozenset((name, _key(one)) for name, one in value.items()))
        case list() | tuple():
            return ("list", tuple(_key(one) for one in value))
        case set() | frozenset():
            return ("set", frozenset(_key(one) for one in value))
        case float() if value != value:  # noqa: PLR0124 - which only NaN is
            return (_NAN,)
    return value


def row_text(row: Mapping[str, Any]) -> str:
    """A text that is equal for equal rows; its columns are sorted by name."""
    return repr({name: row[name] for name in sorted(row)})


def row_texts(batch: pa.RecordBatch | pa.Table) -> list[str]:
    """The text of each row of a batch."""
    order = sorted(range(batch.num_columns), key=batch.schema.names.__getitem__)
    names = [batch.schema.names[index] for index in order]
    columns = [batch.column(index).to_pylist() for index in order]
    if not columns:
        return ["{}"] * batch.num_rows
    return [repr(dict(zip(names, values, strict=True))) for values in zip(*columns, strict=True)]


def _said(kind: str, rows: Counter[Any], shown: Mapping[Any, Mapping[str, Any]]) -> list[str]:
    lines = [
        f"  {kind} {dict(shown[key])}{f' ({count} times)' if count > 1 else ''}"
        for key, count in rows.most_common(SHOWN)
    ]
    return [*lines, *([f"  {kind} ... and {len(rows) - SHOWN} other rows"] if len(rows) > SHOWN else [])]
