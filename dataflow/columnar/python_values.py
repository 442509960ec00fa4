"""Columns as Python values, and rows as dictionaries: the quickest way that gives what `to_pylist` gives."""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa

from snapline.dataflow.columnar.column_types import workable, workable_schema

RowMaker = Callable[..., list[dict[str, Any]]]
UNFIT = (ValueError, TypeError, OverflowError, pa.ArrowNotImplementedError, pa.ArrowCapacityError)
"""Raised for values that do not fit a column: ArrowInvalid is a ValueError, and ArrowTypeError a TypeError. Memory that
runs out says nothing of values."""

_MAKERS: dict[tuple[str, ...], RowMaker] = {}
_MAKERS_KEPT = 256
_NUMPY_TYPES = frozenset(
    {
        pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64(),
        pa.float32(), pa.float64(),
    }
)  # fmt: skip


_INT64 = pa.int64()
_WHOLE = {int, bool, type(None)}
_WITH_FRACTIONS = (float, np.floating, Decimal)
_MICROSECONDS = {"s": 1_000_000, "ms": 1_000}
"""How many of them are one of these units, which are less fine than Python's times."""
_PYTHON_TIMES = ("0001-01-01T00:00:00", "9999-12-31T23:59:59.999999")
_LISTS = (list, tuple, np.ndarray, set, frozenset)
_NESTED = (dict, list, tuple, set, frozenset)
MOST_LEVELS = 100
"""Levels of lists and dictionaries in one another for which a type is looked for."""
_CUT_NOTHING = frozenset(
    data_type.id
    for data_type in (
        pa.null(), pa.bool_(), pa.float16(), pa.float32(), pa.float64(), pa.string(), pa.large_string(), pa.binary(),
        pa.large_binary(), pa.binary(1), pa.decimal128(1), pa.decimal256(1),
    )
)  # fmt: skip


def column_values(column: pa.Array) -> list[Any]:
    """A column as Python values. By way of numpy where that gives the same values, for it is faster: 30 times for
    timestamps, several times for numbers before pyarrow 20. Raises ValueError for times that Python's own cannot hold:
    beyond its years, and nanoseconds, where pandas is not installed."""
    data_type = column.type
    is_plain_time = _is_plain_time(data_type)
    if (column.null_count == 0 and data_type in _NUMPY_TYPES) or is_plain_time:
        values: np.ndarray[Any, Any] = column.to_numpy(zero_copy_only=False)
        if is_plain_time and _beyond_python(values) > column.null_count:
            raise _out_of_years(data_type)
        return values.tolist()
    try:
        return column.to_pylist()
    except OverflowError as error:
        raise _out_of_years(data_type) from error
    except ValueError as error:
        if "pandas" not in str(error) and "microseconds" not in str(error):
            raise
        raise ValueError(
            f"a {data_type} has nanoseconds, which Python's own times cannot hold: install pandas, or cast the column to "
            "microseconds"
        ) from error


def shown_values(column: pa.Array) -> list[Any]:
    """The same for people who look at them: as Arrow's text where Python has no such values.

    >>> shown_values(pa.array([2**59, None], pa.timestamp("us")))
    ['20237-04-25 10:45:03.423488', None]
    """
    try:
        return column_values(column)
    except ValueError:
        if column.type.num_fields:  # Arrow has no text for lists and records
            raise
        return column.cast(pa.string()).to_pylist()


def _beyond_python(times: np.ndarray[Any, Any]) -> int:
    """How many of these times are before the year 1 or after 9999, of which numpy makes numbers, or none at all; what
    stands for a null is one of them."""
    least, most = np.array(_PYTHON_TIMES, "datetime64[us]").astype(times.dtype).view(np.int64)
    counts = times.view(np.int64)
    return int(np.count_nonzero((counts < least) | (counts > most)))


def _out_of_years(data_type: pa.DataType) -> ValueError:
    return ValueError(
        f"a {data_type} lies beyond Python's own times (years 1 to 9999, durations of less than a billion days): leave such "
        "rows out before, or cast the column to whole numbers"
    )


def array_of(values: list[Any], data_type: pa.DataType) -> pa.Array:
    """Python values as a column. Raises what pyarrow raises where one does not fit, and ArrowInvalid for a number with
    a fraction where integers are, or a time with one of its unit, also in lists, structs and maps: pyarrow would cut
    it; and for a record with a misspelled field, which would become null."""
    if data_type == _INT64:
        with contextlib.suppress(struct.error):  # a null, a fraction or what is no number: looked at below
            packed = np.frombuffer(struct.pack(f"{len(values)}q", *values), np.int64)  # 2.5 times as fast as pyarrow
            if (packed >> 1).all() or bool not in set(map(type, values)):  # a bool would be 0 or 1
                return pa.array(packed)
        if not set(map(type, values)) <= _WHOLE:
            _refuse_fractions(values, data_type)
    elif _may_cut(data_type):
        _refuse_fractions(values, data_type)
    if pa.types.is_struct(data_type) and any(_has_extension(field.type) for field in data_type):
        return _records_of(values, data_type)
    return pa.array(values, data_type, from_pandas=False)


def _has_extension(data_type: pa.DataType) -> bool:
    """Whether it is one, or has one in records of it: pyarrow makes UUIDs of values, but no records that have some."""
    if pa.types.is_struct(data_type):
        return any(_has_extension(field.type) for field in data_type)
    return isinstance(data_type, pa.BaseExtensionType)


def _records_of(values: list[Any], data_type: pa.StructType) -> pa.Array:
    """The records, of which each field is made as a column is."""
    for value in values:
        if value is not None and (not isinstance(value, Mapping) or bytes in set(map(type, value))):
            raise pa.ArrowTypeError(f"{value!r} is no record of {data_type}")
    fields = [
        array_of([None if one is None else one.get(field.name) for one in values], field.type) for field in data_type
    ]
    return pa.StructArray.from_arrays(
        fields, fields=list(data_type), mask=pa.array([one is None for one in values], pa.bool_())
    )


def misspelled(rows: Iterable[Mapping[str, Any]], names: Sequence[str], kind: str = "column") -> tuple[int, str] | None:
    """The first row with a column that there is not and without one that there is, and what is wrong with it; None
    where there is none. What a row leaves out is null, and it may have more. A record's columns are of the kind
    "field".

    >>> misspelled([{"n": 1}, {"m": 1}], ["n"])
    (1, "has 'm', which is no column, and no 'n': the columns are 'n'")
    """
    known = frozenset(names)
    for index, row in enumerate(rows):
        if not row.keys() <= known and not known <= row.keys():
            unknown = next(name for name in row if name not in known)
            missing = next(name for name in names if name not in row)
            known_ones = ", ".join(map(repr, names))
            return index, f"has {unknown!r}, which is no {kind}, and no {missing!r}: the {kind}s are {known_ones}"
    return None


def table_of(rows: Sequence[Mapping[str, Any]], schema: pa.Schema) -> pa.Table:
    """Rows as a table; what a row leaves out is null. Raises ValueError, which names the column, where a value does not
    fit or would be cut.

    >>> table_of([{"n": 1}, {}], pa.schema([("n", pa.int64())])).to_pydict()
    {'n': [1, None]}
    """
    columns = []
    for field in schema:
        try:
            columns.append(array_of([row.get(field.name) for row in rows], field.type))
        except UNFIT as error:
            raise ValueError(f"column {field.name!r}: {error}") from error
    return pa.Table.from_arrays(columns, schema=schema)


def table_in_arrow(table: Any, schema: pa.Schema | None = None) -> pa.Table:
    """What Arrow can read as a table. Where pandas numbers rows because nobody has named an index, that is no column,
    as in Polars and Spark. Raises what pyarrow raises.

    >>> table_in_arrow(pa.table({"n": [1, 2]})).column_names
    ['n']
    """
    if names := getattr(getattr(table, "index", None), "names", ()):
        keep = False if all(name is None for name in names) else None
        return pa.Table.from_pandas(table, schema=schema, preserve_index=keep)
    found = pa.table(table)
    if schema is None or found.schema.equals(schema):
        return found
    batches = [workable(batch) for batch in found.to_batches()]  # Arrow casts no category of a view
    return pa.Table.from_batches(batches, workable_schema(found.schema)).cast(schema)


def check_levels(values: Iterable[Any]) -> None:
    """Raises ValueError for lists and dictionaries in one another that have no end, or too many levels: pyarrow, which
    is to find a type for them, goes down until the process has no stack left."""
    level = {id(value): value for value in values if isinstance(value, _NESTED)}
    for _ in range(MOST_LEVELS):
        if not level:
            return
        inner = (one for each in level.values() for one in (each.values() if isinstance(each, dict) else each))
        level = {id(value): value for value in inner if isinstance(value, _NESTED)}
    if level:
        raise ValueError(f"a list or dictionary contains itself, or has more than {MOST_LEVELS} levels")


def _may_cut(data_type: pa.DataType) -> bool:
    """Whether pyarrow would keep a part of some value where this type is."""
    return data_type.id not in _CUT_NOTHING and getattr(data_type, "unit", "s") in _MICROSECONDS


def _refuse_fractions(values: Collection[Any], data_type: pa.DataType) -> None:
    if pa.types.is_integer(data_type):
        if not set(map(type, values)) <= _WHOLE:
            for value in values:
                if isinstance(value, _WITH_FRACTIONS) and value != int(value):
                    raise pa.ArrowInvalid(f"{value!r} is no whole number")
    elif pa.types.is_date(data_type):
        for value in values:
            if value != value:  # noqa: PLR0124 - NaT, of which pyarrow would make the first day of the year 1
                raise pa.ArrowInvalid(f"{value!r} is no date: take None where there is none")
    elif step := _MICROSECONDS.get(getattr(data_type, "unit", "")):
        below_seconds = "microseconds" if pa.types.is_duration(data_type) else "microsecond"
        for value in values:
            if getattr(value, below_seconds, 0) % step:
                raise pa.ArrowInvalid(f"{value!r} is finer than {data_type}: round it, or take microseconds there")
    elif pa.types.is_struct(data_type):
        structs = [value for value in values if isinstance(value, dict)]
        names = [field.name for field in data_type]
        if found := misspelled(structs, names, "field"):
            named = [struct for struct in structs if bytes not in set(map(type, struct))]  # pyarrow takes these, too
            if found := misspelled(named, names, "field"):
                raise pa.ArrowInvalid(f"the record {named[found[0]]!r} {found[1]}")
        for field in data_type:
            _refuse_fractions([struct.get(field.name) for struct in structs], field.type)
    elif pa.types.is_map(data_type):
        maps = [value.items() if isinstance(value, dict) else value for value in values if value is not None]
        pairs = [pair for entries in maps for pair in entries if len(pair) == 2]
        _refuse_fractions([key for key, _ in pairs], data_type.key_type)
        _refuse_fractions([item for _, item in pairs], data_type.item_type)
    elif pa.types.is_nested(data_type) and _may_cut(getattr(data_type, "value_type", pa.null())):
        lists = [value for value in values if isinstance(value, _LISTS)]
        _refuse_fractions([item for each in lists for item in each], data_type.value_type)


def _is_plain_time(data_type: pa.DataType) -> bool:
    """Times whose numpy form turns into `datetime` or `date`, nulls into None."""
    if pa.types.is_timestamp(data_type):
        return data_type.tz is None and data_type.unit != "ns"
    return bool(pa.types.is_date32(data_type))


def row_maker(names: tuple[str, ...]) -> RowMaker:
    """A function of one list per column that returns the rows. Generated, so that each row is one dict display."""
    maker = _MAKERS.get(names)
    if maker is None:
        arguments = [f"c{i}" for i in range(len(names))]
        values = [f"v{i}" for i in range(len(names))]
        display = ", ".join(f"{name!r}: {value}" for name, value in zip(names, values, strict=True))
        source = (
            f"lambda {', '.join(arguments)}: [{{{display}}} for {', '.join(values)}, in zip({', '.join(arguments)})]"
        )
        maker = eval(source, {"zip": zip})  # noqa: S307 - built from quoted column names only
        if len(_MAKERS) >= _MAKERS_KEPT:
            _MAKERS.clear()
        _MAKERS[names] = maker
    return maker
