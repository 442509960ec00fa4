"""What sinks have committed, as Spark asks for it, without Spark."""

from __future__ import annotations

import datetime as dt
import decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.orc as orc
import pyarrow.parquet as pq
import pytest
from pyspark.sql.datasource import GreaterThan, In, LessThan

from snapline.spark.committed_rows import CommittedDirectory
from snapline.spark.frame_types import spark_schema_of

NAME = "part-sink-0000-000001-0-0-0000.parquet"


@pytest.mark.parametrize("kind", [pa.time32("ms"), pa.time64("us"), pa.time64("ns")])
def test_times_of_day_are_compared_by_spark_alone(tmp_path: Path, kind: pa.DataType) -> None:
    """Spark has numbers for them, which no file compares with a time: a query with a filter ended in an error, though
    it did not without one."""
    table = pa.table({"n": [1, 2], "at": pa.array([5, 7], kind)})
    pq.write_table(table, tmp_path / NAME)
    rows = CommittedDirectory(str(tmp_path))
    [part] = rows.parts()
    schema = spark_schema_of(table.schema, "a test")

    [batch] = rows.read(part, schema, [(GreaterThan, "at", 5), (GreaterThan, "n", 1)])

    assert batch.to_pydict() == {"n": [2], "at": [7]}


SECOND = dt.datetime(1970, 1, 1, 0, 0, 1, tzinfo=dt.UTC)
EVER = dt.datetime(9999, 12, 31, tzinfo=dt.UTC)


@pytest.mark.parametrize("zone", [None, "UTC", "Europe/Berlin"])
@pytest.mark.parametrize("unit", ["ms", "us", "ns"])
def test_times_of_any_unit_and_zone_are_compared(tmp_path: Path, unit: str, zone: str | None) -> None:
    """A query with a filter on milliseconds or nanoseconds of Berlin, or with the last day of the year 9999 beside
    nanoseconds, ended in an error of Arrow's."""
    kind = pa.timestamp(unit, zone)
    table = pa.table({"at": pa.array([1, 2], pa.timestamp("s")).cast(kind)})
    pq.write_table(table, tmp_path / NAME)
    rows = CommittedDirectory(str(tmp_path))
    [part] = rows.parts()
    schema = spark_schema_of(table.schema, "a test")
    second, ever = (each if zone else each.replace(tzinfo=None) for each in (SECOND, EVER))

    [later] = rows.read(part, schema, [(GreaterThan, "at", second)])
    [all_of_them] = rows.read(part, schema, [(LessThan, "at", ever)])
    some = list(rows.read(part, schema, [(In, "at", (second, ever, None))]))  # Spark asks each row again

    assert (later.num_rows, all_of_them.num_rows, some[0]["at"][0].value) == (1, 2, 1_000_000)


def test_times_of_an_orc_file_are_compared_with_days_beyond_its_nanoseconds(tmp_path: Path) -> None:
    """Arrow reads each time of ORC as nanoseconds, of which a day of the year 9999 has none."""
    table = pa.table({"at": pa.array([1], pa.timestamp("s"))})
    orc.write_table(table, tmp_path / NAME.replace(".parquet", ".orc"))
    rows = CommittedDirectory(str(tmp_path))
    [part] = rows.parts()

    [batch] = rows.read(part, spark_schema_of(table.schema, "a test"), [(LessThan, "at", EVER.replace(tzinfo=None))])

    assert batch.to_pydict() == {"at": [SECOND.replace(tzinfo=None)]}


@pytest.mark.parametrize(
    ("kind", "values"), [(pa.uint64(), (1, -1)), (pa.decimal32(5, 1), (1, 3)), (pa.uint8(), (1, 300))], ids=str
)
def test_numbers_that_arrow_does_not_look_up_are_compared_by_spark_alone(
    tmp_path: Path, kind: pa.DataType, values: tuple[int, ...]
) -> None:
    """A query for some numbers, of which one was none of the column's, ended in an error of Arrow's."""
    table = pa.table({"n": pa.array([1, 2], kind)})
    pq.write_table(table, tmp_path / NAME)
    rows = CommittedDirectory(str(tmp_path))
    [part] = rows.parts()
    schema = spark_schema_of(table.schema, "a test")

    found = list(rows.read(part, schema, [(In, "n", tuple(map(decimal.Decimal, values)))]))

    assert decimal.Decimal(1) in found[0].column("n").to_pylist()


@pytest.mark.parametrize(("kind", "text"), [("jsonl", '{"n": 1}\n{"n": 2}\n'), ("csv", "n\n1\n2\n")])
def test_only_the_partition_of_lines_is_asked_for(tmp_path: Path, kind: str, text: str) -> None:
    """Without a column from the file, a batch of JSON had no rows, and all of them were lost."""
    (tmp_path / "day=a").mkdir()
    (tmp_path / "day=a" / NAME.replace("parquet", kind)).write_text(text)
    rows = CommittedDirectory(str(tmp_path), columns=("day",))
    [part] = rows.parts()

    [batch] = rows.read(part, spark_schema_of(rows.schema(), "a test"), [])

    assert batch.to_pydict() == {"day": ["a", "a"]}
