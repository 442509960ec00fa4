"""Rows that replace or delete those of an Iceberg table by a key, in one commit of the table.

Decides that the rows of the keys that came are deleted, file by file as the library does it (copy on write), and the
new ones appended; a column that the rows lack becomes null. The commit has up to three snapshots, each of which names
the checkpoint: readers of the table see all of them or none, since the table changes once. It does not know when a
commit is tried again.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from snapline.connectors.tables.keyed_rows import GONE


def merge_rows(
    transaction: Any, rows: pa.Table, key: Sequence[str], required: Sequence[str], summary: Mapping[str, str]
) -> None:
    """Take the rows in. `transaction`: of the table, to be committed by the caller. `rows`: one of each key, as they
    waited. `required`: the table's columns without nulls. `summary`: of all snapshots. Raises what pyiceberg raises."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Delete operation did not match any records")
        transaction.delete(rows_of_keys(rows.select(list(key))), summary)
    rows = rows.filter(pc.invert(rows[GONE])).drop_columns([GONE])
    fields = [field.with_nullable(field.name not in required) for field in rows.schema]
    transaction.append(rows.cast(pa.schema(fields)), summary)


def rows_of_keys(keys: pa.Table) -> Any:
    """The expression that is true for rows with one of the keys. Where a key has several columns, keys are gathered by
    their first ones, so that there are fewer alternatives than keys."""
    from pyiceberg import expressions

    built: Any = expressions  # the library's types say less than its constructors take
    if not keys.num_rows:
        return expressions.AlwaysFalse()
    *first, last = keys.column_names
    if not first:
        return _is_one_of(last, keys[last].to_pylist())
    gathered = keys.group_by(first).aggregate([(last, "list")]).to_pylist()
    alternatives = [
        built.And(*(built.EqualTo(name, row[name]) for name in first), _is_one_of(last, row[f"{last}_list"]))
        for row in gathered
    ]
    return balanced(built.Or, alternatives)


def _is_one_of(name: str, values: Sequence[Any]) -> Any:
    """The expression for a column that has one of the values. The zeros are equal, and among others the library finds
    only the one that is given."""
    from pyiceberg import expressions

    built: Any = expressions
    zeros = [value for value in values if isinstance(value, float) and not value]
    if not zeros or len(zeros) == len(values):
        return built.In(name, values)
    return built.Or(built.EqualTo(name, 0.0), built.In(name, [value for value in values if value not in zeros]))


def balanced(join: Any, expressions: Sequence[Any]) -> Any:
    """Join the expressions in a tree of little depth, because the library goes through it recursively."""
    if len(expressions) == 1:
        return expressions[0]
    middle = len(expressions) // 2
    return join(balanced(join, expressions[:middle]), balanced(join, expressions[middle:]))
