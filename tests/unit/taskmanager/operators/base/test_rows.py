"""Batches to rows and back."""

from __future__ import annotations

import datetime as dt
import subprocess
import sys
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from snapline.dataflow.columnar.python_values import column_values, table_of
from snapline.taskmanager.operators.base.rows import RowBatcher, rows_of


def naive(*parts: int) -> dt.datetime:
    """A timestamp without a zone."""
    return dt.datetime(*parts)  # type: ignore[arg-type]  # noqa: DTZ001 - the columns have none


VALUES = {
    pa.int8(): [1, None, -3],
    pa.uint64(): [2**64 - 1, 0],
    pa.float32(): [1.5, None],
    pa.string(): ["a", None, ""],
    pa.bool_(): [True, None, False],
    pa.timestamp("s"): [naive(2020, 1, 2), None],
    pa.timestamp("ms"): [naive(1969, 12, 31, 23, 59, 59, 999000), None],
    pa.timestamp("us"): [naive(2020, 1, 2, 3, 4, 5, 6)],
    pa.timestamp("ms", "UTC"): [dt.datetime(2020, 1, 2, tzinfo=dt.UTC)],
    pa.date32(): [dt.date(1920, 5, 6), None],
    pa.list_(pa.int64()): [[1, 2], None, []],
    pa.struct([("x", pa.int64())]): [{"x": 1}, None],
    pa.binary(): [b"\x00", None],
}


@pytest.mark.parametrize("data_type", VALUES, ids=str)
def test_values_are_those_of_pyarrow(data_type: pa.DataType) -> None:
    """The fast ways around its own conversion change nothing."""
    array = pa.array(VALUES[data_type], data_type)

    assert column_values(array) == array.to_pylist() == VALUES[data_type]


@given(st.lists(st.fixed_dictionaries({"a b": st.integers(-5, 5), "'": st.text(max_size=2)}), min_size=1, max_size=5))
def test_rows_go_there_and_back(rows: list) -> None:
    """Names need not be identifiers."""
    batch = RowBatcher().batch_of(rows)

    assert rows_of(batch) == rows


@pytest.mark.parametrize("zone", [None, "UTC", "Europe/Berlin"])
@pytest.mark.parametrize(("unit", "expected"), [("ns", "ns"), ("us", "us"), ("ms", "us"), ("s", "us")])
def test_timestamps_keep_their_zone_and_lose_no_digit(unit: str, expected: str, zone: str | None) -> None:
    """Coarse units become microseconds, which hold whatever a function returns."""
    if unit == "ns":
        pytest.importorskip("pandas", reason="Python's own times have no nanoseconds")
    batch = pa.record_batch({"t": pa.array([None, 1_000_001], pa.timestamp(unit, zone))})

    back = RowBatcher().batch_of(rows_of(batch))

    assert back == batch.cast(pa.schema([("t", pa.timestamp(expected, zone))]))


def test_nanoseconds_without_pandas_are_named() -> None:
    """With the way out; what pyarrow says does not name the type."""
    program = """
import sys

class WithoutPandas:
    @staticmethod
    def find_spec(name, *_):
        if name == "pandas":
            raise ImportError(name)

sys.meta_path.insert(0, WithoutPandas)
import pyarrow as pa
from snapline.dataflow.columnar.python_values import column_values, table_of
print(column_values(pa.array([1_000], pa.timestamp("ns"))))
column_values(pa.array([1_001], pa.timestamp("ns")))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60)
    assert done.stdout == "[datetime.datetime(1970, 1, 1, 0, 0, 0, 1)]\n"
    assert done.stderr.splitlines()[-1] == (
        "ValueError: a timestamp[ns] has nanoseconds, which Python's own times cannot hold: install pandas, or cast the column "
        "to microseconds"
    )


def test_two_columns_of_one_name_are_no_row() -> None:
    """One would hide the other."""
    batch = pa.RecordBatch.from_arrays([pa.array([1]), pa.array([2])], names=["a", "a"])
    with pytest.raises(ValueError, match="two columns of one name: a, a"):
        rows_of(batch)


def test_the_first_rows_decide_on_the_types() -> None:
    """A column that was null only is open until it has values; what does not fit later is named."""
    batcher: Any = RowBatcher()

    assert batcher.batch_of([]) is None
    assert batcher.batch_of([{"a": 1, "b": None}]).schema.types == [pa.int64(), pa.null()]
    assert batcher.batch_of([{"a": 2, "b": "x"}]).schema.types == [pa.int64(), pa.string()]
    with pytest.raises(TypeError, match=r"output row 1: 'no' in column 'a' is no int64 \(inferred from earlier rows"):
        batcher.batch_of([{"a": 2, "b": "x"}, {"a": "no", "b": "x"}])


def test_a_declared_schema_holds() -> None:
    """Missing keys are null, values are converted where that is safe, others are refused."""
    batcher: Any = RowBatcher(pa.schema([("a", pa.int16()), ("b", pa.string())]))

    assert batcher.batch_of([{"a": 1}, {"b": "x", "a": None}]).to_pylist() == [
        {"a": 1, "b": None},
        {"a": None, "b": "x"},
    ]
    with pytest.raises(TypeError, match="70000 in column 'a' is no int16 \\(declared in schema=\\)"):
        batcher.batch_of([{"a": 70000, "b": ""}])


def test_a_time_of_numpy_in_another_unit_is_named() -> None:
    """Arrow's error named neither row nor column, and failed also the jobs that leave bad rows out."""
    batcher = RowBatcher(pa.schema([("at", pa.timestamp("ms"))]))
    with pytest.raises(TypeError, match=r"output row 1: .*2020-01-01T00:00:00.000001.* in column 'at' is no timestamp"):
        batcher.batch_of([{"at": None}, {"at": np.datetime64("2020-01-01T00:00:00.000001")}])
    with pytest.raises(ValueError, match=r"column 'at': Expected np\.datetime64"):
        table_of([{"at": np.datetime64("2020-01-01T00:00:00.000001")}], pa.schema([("at", pa.timestamp("ms"))]))


def test_memory_that_runs_out_is_no_bad_row(monkeypatch: pytest.MonkeyPatch) -> None:
    """A row for which no memory was left was taken for one that does not fit its columns, and left out."""
    coming: list[type[Exception]] = []

    def refuse(*_: Any) -> None:
        raise coming.pop(0)("malloc of size 64 failed")

    schema = pa.schema([("a", pa.int64())])
    for place in ("taskmanager.operators.base.rows", "dataflow.columnar.python_values"):
        monkeypatch.setattr(f"snapline.{place}.array_of", refuse)
    monkeypatch.setattr("snapline.taskmanager.operators.base.rows.check_levels", refuse)
    for batcher, errors in (
        (RowBatcher(schema), [pa.ArrowMemoryError]),
        (RowBatcher(schema), [pa.ArrowInvalid, pa.ArrowMemoryError]),
        (RowBatcher(), [pa.ArrowMemoryError]),
    ):
        coming += errors
        with pytest.raises(pa.ArrowMemoryError):
            batcher.batch_of([{"a": 1}])
    coming.append(pa.ArrowMemoryError)
    with pytest.raises(pa.ArrowMemoryError):
        table_of([{"a": 1}], schema)


@pytest.mark.parametrize("schema", [None, pa.schema([("a", pa.int64())])])
def test_what_is_no_row_is_shown(schema: pa.Schema | None) -> None:
    """A function that returns a value instead of a dict, or a dict instead of a list of dicts."""
    with pytest.raises(TypeError, match="'a' is no row"):
        RowBatcher(schema).batch_of(["a", "b"])  # type: ignore[list-item]


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        (
            [pa.table({"a": [1]})],
            r"a pyarrow\.lib\.Table is no row; a function that returns whole columns is one for map_b",
        ),
        ([pa.array([1])], r"a pyarrow\.lib\.Int64Array is no row; a function that returns whole columns"),
        ([["x" * 1000]], r"\['x{198}\.\.\. is no row: map returns a dict"),
        (
            [{}, {"a": 1}],
            r"output row 0 has no columns, and no schema= says which there are: to leave a row out is filter",
        ),
        ([{1: 2}], r"output row 0 has 1 as the name of a column: names are texts"),
        ([{None: 2}], r"output row 0 has None as the name of a column: names are texts"),
        ([{"a": 1}, None], r"None is no row: map returns a dict"),
        ([{"a": 1}, "b"], r"'b' is no row; if it is a column's name, the function returned one row alone"),
        ([{"a": 1}, {"a": 2**70}], r"cannot find one type for column 'a' of the rows .*too large"),
        ([{"a": "\ud800"}], r"cannot find one type for column 'a' of the rows .*surrogates not allowed"),
        ([{"a": np.datetime64("NaT")}], r"cannot find one type for column 'a' of the rows .*datetime64"),
    ],
    ids=["table", "column", "long", "no columns", "names", "no name", "none", "text", "large", "surrogate", "no unit"],
)
def test_what_makes_no_columns_is_told_in_a_line(rows: list[Any], said: str) -> None:
    """A table was shown by the first of its lines, a number as a name by an error of Arrow's that named nothing, rows
    without columns were lost without a word, and what was no row behind one that was had no attribute 'get'."""
    with pytest.raises(TypeError, match=rf"\A{said}[^\n]*\Z"):
        RowBatcher().batch_of(rows)


def test_a_value_of_many_lines_is_told_by_its_type() -> None:
    """It was shown by the first of its lines."""
    with pytest.raises(TypeError, match=r"output row 0: a pyarrow\.lib\.Int64Array in column 'a' is no int64"):
        RowBatcher(pa.schema([("a", pa.int64())])).batch_of([{"a": pa.array([1])}])


def endless(kind: type) -> Any:
    """A list, or a dictionary, that contains itself twice."""
    value: Any = kind()
    for key in ("x", "y"):
        value.update({key: [value]}) if isinstance(value, dict) else value.append(value)
    return value


def deep(levels: int) -> Any:
    """So many lists in one another."""
    value: list[Any] = []
    for _ in range(levels - 1):
        value = [value]
    return value


@pytest.mark.parametrize(
    "value", [endless(list), endless(dict), deep(101), deep(200_000)], ids=["list", "dict", "101", "many"]
)
def test_lists_in_one_another_without_end(value: Any) -> None:
    """Arrow went down into them until the process had no stack left, and died."""
    with pytest.raises(
        TypeError, match=r"column 'a' .*contains itself, or has more than 100 levels.*: declare schema="
    ):
        RowBatcher().batch_of([{"a": None}, {"a": value}])
    with pytest.raises(TypeError, match=r"output row 0: .* in column 'a' is no list<item: int64>"):
        RowBatcher(pa.schema([("a", pa.list_(pa.int64()))])).batch_of([{"a": value}])
    same = [1, [2]]
    assert rows_of(RowBatcher().batch_of([{"a": deep(90), "b": [same[1], same[1]]}]))[0]["b"] == [[2], [2]]


@pytest.mark.parametrize("schema", [pa.schema([("x", pa.int64())]), None])
def test_a_part_of_a_number_is_not_cut_off(schema: pa.Schema | None) -> None:
    """A float in a column of integers is what Arrow keeps the whole part of; one that is whole is an integer."""
    batcher = RowBatcher(schema)

    assert rows_of(batcher.batch_of([{"x": 1}, {"x": None}])) == [{"x": 1}, {"x": None}]
    assert rows_of(batcher.batch_of([{"x": 2.0}, {"x": None}, {"x": np.int32(3)}])) == [{"x": 2}, {"x": None}, {"x": 3}]
    with pytest.raises(TypeError, match=r"output row 1: 1\.5 in column 'x' is no int64"):
        batcher.batch_of([{"x": 2}, {"x": 1.5}])
    with pytest.raises(TypeError, match=r"output row 0: .*0\.5.* in column 'x' is no int64"):
        batcher.batch_of([{"x": np.float64(0.5)}])


@pytest.mark.parametrize("declared", [True, False])
def test_a_misspelled_column_is_told(declared: bool) -> None:
    """It was null in all rows. A row may have too few columns, or too many."""
    batcher = RowBatcher(pa.schema([("shop", pa.string()), ("total", pa.int64())]) if declared else None)
    batcher.batch_of([{"shop": "a", "total": 1}])

    assert rows_of(batcher.batch_of([{"shop": "a"}])) == [{"shop": "a", "total": None}]
    assert rows_of(batcher.batch_of([{"shop": "a", "total": 2, "more": 3}])) == [{"shop": "a", "total": 2}]
    with pytest.raises(
        TypeError, match=r"output row 1 has 'totl', which is no column, and no 'total': the columns are"
    ):
        batcher.batch_of([{"shop": "a", "total": 1}, {"shop": "a", "totl": 1}])


def test_a_time_of_day_is_no_date() -> None:
    """A function that gave dates first, and times later, lost the hours of these without a word, and what pandas has
    for a missing time became the first day of the year 1."""
    day, hour = dt.date(2026, 1, 2), dt.datetime(2026, 1, 2, 5, tzinfo=dt.UTC)
    with pytest.raises(TypeError, match=r"one type for column 'a' .*dates, and times of day, which a date would lose"):
        RowBatcher().batch_of([{"a": day}, {"a": hour}])
    batcher = RowBatcher()
    assert batcher.batch_of([{"a": day}, {"a": None}]) is not None
    with pytest.raises(
        TypeError, match=r"output row 1: datetime.*5.* in column 'a' is no date32\[day\] \(inferred from"
    ):
        batcher.batch_of([{"a": day}, {"a": hour}])
    missing = pa.array([None], pa.timestamp("us")).to_pandas()[0]
    with pytest.raises(TypeError, match=r"output row 0: NaT in column 'a' is no date32\[day\] \(declared in schema=\)"):
        RowBatcher(pa.schema([("a", pa.date32())])).batch_of([{"a": missing}])
