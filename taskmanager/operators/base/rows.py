"""Batches to rows and back, for user functions that work row by row.

Decides how a row looks (a dict of Python values, timestamps as datetime, as `pyarrow` has them) and which schema rows
that come back get: the declared one, else the one inferred from the first rows, which then holds for the life of the
operator. Timestamps keep their zone, and nanoseconds; seconds and milliseconds become microseconds, for a function
may return any of Python's times, and a type found in the first rows must not cut the later ones. It does not know
what the functions do. Flink has serializers here.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Sequence
from typing import Any

import pyarrow as pa

from snapline.dataflow.api.function_contexts import Row
from snapline.dataflow.columnar.python_values import (
    UNFIT,
    array_of,
    check_levels,
    column_values,
    misspelled,
    row_maker,
)
from snapline.runtime.cores.machine import check

_OF_WHOLE_COLUMNS = frozenset({"pyarrow", "pandas", "polars", "numpy"})
"""Packages whose values are tables and columns."""
_LONGEST = 200
"""Characters of a value that a message shows."""


def rows_of(batch: pa.RecordBatch) -> list[Row]:
    """The rows of a batch."""
    names = tuple(batch.schema.names)
    if not names:
        return [{} for _ in range(batch.num_rows)]
    if len(set(names)) != len(names):
        raise ValueError(f"a row cannot have two columns of one name: {', '.join(names)}")
    return row_maker(names)(*map(column_values, batch.columns))


SEQUENCES = frozenset((list, tuple))
"""What functions mostly put rows out in. It is looked at before `rows_made` is called, which costs 65 ns a row."""


def rows_made(produced: Iterable[Row]) -> Sequence[Row]:
    """The rows of a list or tuple as they are; what a generator yields, or anything else, each row copied before it
    goes on: it may change the row and yield it again. Raises TypeError for what is no iterable."""
    if isinstance(produced, (list, tuple)):
        return produced
    try:
        rows = iter(produced)
    except TypeError as error:
        raise TypeError(
            f"{error}: flat_map, process_element, on_timer, async_invoke and the process of a window return an iterable of "
            "rows, or None"
        ) from None
    return [copy_of(row) for row in rows]


def copy_of(row: Row) -> Row:
    """The row as it is now, whatever becomes of it. What is no row is left to those who refuse it."""
    return row.copy() if isinstance(row, dict) else row


def _type_of(values: Sequence[Any]) -> pa.DataType:
    """The type that holds values without loss. pyarrow infers microseconds, also for what `rows_of` made of
    nanoseconds: values of pandas, since Python's own have none."""
    check_levels(values)
    found = pa.array(values).type
    if pa.types.is_date(found) and any(isinstance(value, dt.datetime) for value in values):
        raise ValueError("dates, and times of day, which a date would lose")
    if pa.types.is_timestamp(found) and any(hasattr(value, "nanosecond") for value in values):
        return pa.timestamp("ns", found.tz)
    return found


class RowBatcher:
    """Makes batches of rows that a user's function returned."""

    def __init__(self, output_schema: pa.Schema | None = None) -> None:
        self._declared = output_schema is not None
        self._schema = output_schema
        self._open_columns: frozenset[str] = frozenset()
        """Columns that were null only so far: their type is not known yet."""

    @property
    def schema(self) -> pa.Schema | None:
        """The declared schema, or the one inferred so far."""
        return self._schema

    def batch_of(self, rows: Sequence[Row]) -> pa.RecordBatch | None:
        """A batch of the rows, None when there are none. Raises TypeError that names the column and the row."""
        if not rows:
            return None
        if self._schema is None or self._open_columns:
            self._infer(rows)
        schema = self._schema
        schema = check(schema, "there is no schema")
        try:
            columns = [[row[name] for row in rows] for name in schema.names]
        except KeyError:
            self._refuse_misspelled(rows, schema.names)
            columns = [[row.get(name) for row in rows] for name in schema.names]
        except (TypeError, IndexError):
            raise self._not_rows(rows) from None
        arrays = [self._column(values, field) for values, field in zip(columns, schema, strict=True)]
        return pa.RecordBatch.from_arrays(arrays, schema=schema)

    def _column(self, values: list[Any], field: pa.Field) -> pa.Array:
        if not self._declared and pa.types.is_date(field.type):
            for index, value in enumerate(values):
                if isinstance(value, dt.datetime):
                    raise self._misfit_at(index, value, field)
        try:
            return array_of(values, field.type)
        except UNFIT:
            raise self._misfit(values, field) from None

    def _refuse_misspelled(self, rows: Sequence[Row], names: Sequence[str]) -> None:
        """A row may leave a column out, or have more than there are; one that does both has a wrong name in it."""
        if not all(isinstance(row, dict) for row in rows):
            raise self._not_rows(rows)
        if found := misspelled(rows, names):
            raise TypeError(f"output row {found[0]} {found[1]} ({self._origin})")

    @property
    def _origin(self) -> str:
        return "declared in schema=" if self._declared else "inferred from earlier rows; declare schema="

    def _infer(self, rows: Sequence[Row]) -> None:
        """Take names from the first row ever, and types from the first values that are not null."""
        first = rows[0]
        if not isinstance(first, dict):
            raise self._not_rows(rows)
        known = self._schema
        if known is None:
            _require_columns(first)
        fields = []
        for name in known.names if known is not None else first:
            field = known.field(name) if known is not None else None
            if field is not None and name not in self._open_columns:
                fields.append(field)
                continue
            try:
                values = [row.get(name) for row in rows]
            except AttributeError:
                raise self._not_rows(rows) from None
            try:
                fields.append(pa.field(name, _type_of(values)))
            except UNFIT as error:
                raise TypeError(
                    f"cannot find one type for column {name!r} of the rows that the function returned ({error}): declare "
                    "schema="
                ) from None
        self._schema = pa.schema(fields)
        self._open_columns = frozenset(f.name for f in fields if pa.types.is_null(f.type))

    def _misfit(self, values: Sequence[Any], field: pa.Field) -> TypeError:
        """Find the first value that does not fit, and say so."""
        for index, value in enumerate(values):
            try:
                array_of([value], field.type)
            except UNFIT:
                return self._misfit_at(index, value, field)
        return TypeError(f"the values of column {field.name!r} do not fit {field.type} ({self._origin})")

    def _misfit_at(self, index: int, value: Any, field: pa.Field) -> TypeError:
        return TypeError(
            f"output row {index}: {_shown(value)} in column {field.name!r} is no {field.type} ({self._origin})"
        )

    @staticmethod
    def _not_rows(rows: Sequence[Any]) -> TypeError:
        culprit = next((row for row in rows if not isinstance(row, dict)), None)
        hint = ""
        if isinstance(culprit, str):
            hint = "; if it is a column's name, the function returned one row alone: put it into a list, or use map"
        elif type(culprit).__module__.partition(".")[0] in _OF_WHOLE_COLUMNS:
            hint = "; a function that returns whole columns is one for map_batches"
        return TypeError(
            f"{_shown(culprit)} is no row{hint}: map returns a dict of column name to value; flat_map, process_element and on_timer an "
            "iterable of such dicts, or None"
        )


def _shown(value: Any) -> str:
    """The value in one short line: what it is, where it would take several."""
    try:
        text = repr(value)
    except RecursionError:
        text = "\n"
    if "\n" in text:
        return f"a {type(value).__module__}.{type(value).__qualname__}"
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."


def _require_columns(first: Row) -> None:
    """Raise TypeError for a first row from which no columns can be taken."""
    if not first:
        raise TypeError(
            "output row 0 has no columns, and no schema= says which there are: to leave a row out is filter, or flat_map with no rows"
        )
    odd = [name for name in first if not isinstance(name, str)]
    if odd:
        raise TypeError(f"output row 0 has {_shown(odd[0])} as the name of a column: names are texts")
