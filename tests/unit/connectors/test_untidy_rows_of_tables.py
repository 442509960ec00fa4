"""Delta and Iceberg tables with rows that are less tidy: partitions, names, times, keys, columns that came later."""

from __future__ import annotations

import datetime as dt
import decimal
import itertools
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import deltalake
import polars as pl
import pyarrow as pa
import pytest
from pyiceberg import expressions
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.transforms import TruncateTransform
from pyiceberg.utils.concurrent import ExecutorFactory

from snapline.connectors import DeltaSink, DeltaSource, FileSink, IcebergSink, IcebergSource, PostgresSink
from snapline.dataflow.api.connector_api import GlobalCommittable
from snapline.dataflow.errors import ConnectorError
from tests.unit.connectors.parquet.places import Place

JOBS = itertools.count(1)
LATE = 253_402_300_800_000_000
"""The first microsecond of the year 10000."""
Tables = tuple[dict[str, str], Catalog]


@pytest.fixture
def iceberg(tmp_path) -> Iterator[Tables]:
    """A catalogue with a namespace."""
    where = {"type": "sql", "uri": f"sqlite:///{tmp_path}/catalog.db", "warehouse": f"file://{tmp_path}/warehouse"}
    (tmp_path / "warehouse").mkdir()
    catalog = load_catalog("default", **where)
    catalog.create_namespace("shop")
    yield where, catalog
    executor, ExecutorFactory._instance = ExecutorFactory._instance, None
    if executor is not None:
        executor.shutdown()  # the library keeps its threads


def test_one_column_may_be_named_without_a_list(tmp_path: Path) -> None:
    """Its letters were taken for columns, and refused one by one under names that nobody had given."""
    delta = DeltaSink(tmp_path, key="shop", partition_by="day")
    ice = IcebergSink("shop.orders", catalog={"type": "in-memory"}, key="shop", partition_by="day")
    assert [(each.key, each.partition_by) for each in (delta, ice)] == [(("shop",), ("day",))] * 2
    assert FileSink(tmp_path, partition_by="day").partition_by == ("day",)
    assert PostgresSink("orders", dsn="host=db", key="shop").key == ("shop",)


def write(sink: Any, columns: dict[str, Any]) -> None:
    """One checkpoint of a job of its own."""
    sink.validate()
    place = Place(job_id=f"job-{next(JOBS)}")
    writer = sink.create_writer(place, ())
    writer.write(pa.RecordBatch.from_pydict(columns))
    committables = writer.prepare_commit(1)
    writer.close()
    together = GlobalCommittable(place.job_id, place.operator_uid, 1, tuple(committables), False)
    sink.create_global_committer(place).commit(together)


def read(source: Any) -> list[dict[str, Any]]:
    """All rows of a source that ends."""
    source.enumerate_splits()
    reader = source.create_reader(Place())
    reader.add_splits(source.create_enumerator(()).discover({}).splits)
    found: list[dict[str, Any]] = []
    while (polled := reader.poll_next(0)).batch is not None or polled.finished_splits:
        found += [] if polled.batch is None else polled.batch.to_pylist()
    reader.close()
    return sorted(found, key=lambda row: row.get("n", 0))


def times(*values: int | None, zone: str | None = None) -> pa.Array:
    return pa.array(values, pa.timestamp("us", zone))


@pytest.mark.parametrize(
    "column",
    [
        times(0, None, 1_700_000_000_123_456, -1, zone="UTC"),
        times(0, None, 1_700_000_000_123_456),
        pa.array(["a b", None, "é/%2F", "x=y:z", "+@,#?", " ", "None", "null"]),
        pa.array([dt.date(1, 1, 1), None, dt.date(9999, 12, 31)]),
        pa.array([True, None, False]),
    ],
    ids=lambda column: str(column.type),
)
@pytest.mark.parametrize("start", [None, 0])
def test_partitions_of_delta_are_read_as_they_were_written(tmp_path, column, start):
    """By us and by polars; those of times with a zone could not be read, whoever had written them."""
    expected = [{"ü b": value, "n": number} for number, value in enumerate(column.to_pylist())]

    write(DeltaSink(tmp_path / "ours", partition_by=["ü b"]), {"ü b": column, "n": range(len(column))})
    rows = pa.table({"ü b": column, "n": range(len(column))})
    deltalake.write_deltalake(tmp_path / "theirs", rows, partition_by=["ü b"])

    for path in (tmp_path / "ours", tmp_path / "theirs"):
        assert expected == read(DeltaSource(path, columns=["ü b", "n"], starting_version=start))
    assert expected == pl.read_delta(str(tmp_path / "ours")).select("ü b", "n").sort("n").to_dicts()


@pytest.mark.parametrize(
    ("value", "says"), [("__HIVE_DEFAULT_PARTITION__", "which a directory cannot say"), ("a" * 300, "shorten it")]
)
def test_partitions_of_delta_that_a_path_cannot_say_are_refused(tmp_path, value, says):
    """The text that stands for null became null, or null it, whichever came first; polars reads them from the path."""
    with pytest.raises(ConnectorError, match=rf"partition_by: .*{says}"):
        write(DeltaSink(tmp_path / "table", partition_by=["p"]), {"p": [value], "n": [1]})


def test_null_and_the_text_none_are_two_partitions_of_iceberg(iceberg):
    """They shared a file, whose partition was said to be the text: who asked for nulls found none."""
    where, catalog = iceberg
    values = [None, "None", "__HIVE_DEFAULT_PARTITION__", "a" * 300, "b" * 300, ""]

    write(IcebergSink("shop.t", catalog=where, partition_by=["p"]), {"p": values, "n": range(len(values))})

    table = catalog.load_table("shop.t")
    built: Any = expressions  # the library's types say less than its constructors take
    asked = [built.IsNull("p"), *(built.EqualTo("p", value) for value in values[1:])]
    assert [[number] for number in range(len(values))] == [
        table.scan(row_filter=expression).to_arrow().column("n").to_pylist() for expression in asked
    ]
    assert values == [row["p"] for row in read(IcebergSource("shop.t", catalog=where))]


@pytest.mark.parametrize("name", ["a.b", 'a"b', "a`b", "a b", "select", "Ü"])
def test_keys_may_have_any_name(tmp_path, iceberg, name):
    """Delta's library took a dot for the name of a table, and the job tried for ever."""
    where, catalog = iceberg
    for values in (["x"], ["x", "y"]):
        columns = {name: values, "n": range(len(values))}
        write(DeltaSink(tmp_path / "table", key=[name]), columns)
        write(IcebergSink("shop.t", catalog=where, key=[name]), columns)

    expected = [{name: "x", "n": 0}, {name: "y", "n": 1}]
    assert expected == pl.read_delta(str(tmp_path / "table")).sort("n").to_dicts()
    assert expected == catalog.load_table("shop.t").scan().to_arrow().sort_by("n").to_pylist()


def test_a_key_that_is_not_a_number(tmp_path, iceberg):
    """Delta finds it; Iceberg's library does not, and the job tried for ever and said to look at the network."""
    nan = float("nan")
    for number in (1, 2):
        write(DeltaSink(tmp_path / "table", key=["k"]), {"k": [nan], "n": [number]})

    assert [2] == deltalake.DeltaTable(tmp_path / "table").to_pyarrow_table().column("n").to_pylist()
    with pytest.raises(ConnectorError, match="'k' is not-a-number in a row, by which no row can be found"):
        write(IcebergSink("shop.t", catalog=iceberg[0], key=["k"]), {"k": [nan], "n": [1]})


def test_a_zero_replaces_the_other_one_in_iceberg(iceberg):
    """Among several keys only the zero with the same sign was found, and the table had both."""
    where, catalog = iceberg
    sink = IcebergSink("shop.t", catalog=where, key=["k"])
    write(sink, {"k": [0.0, 2.0], "n": [1, 2]})
    write(sink, {"k": [1.0, -0.0], "n": [3, 4]})

    found = catalog.load_table("shop.t").scan().to_arrow().sort_by("n").to_pylist()
    assert [{"k": 2.0, "n": 2}, {"k": 1.0, "n": 3}, {"k": 0.0, "n": 4}] == found


def test_a_key_of_a_float32_that_is_infinite_is_refused_by_iceberg(iceberg):
    """The library finds no such row, so that each checkpoint added it once more."""
    infinite = pa.array([float("inf")], pa.float32())

    with pytest.raises(ConnectorError, match="'k' is infinite in a row, and no row can be found by a float32 that is"):
        write(IcebergSink("shop.t", catalog=iceberg[0], key=["k"]), {"k": infinite, "n": [1]})
    for number in (1, 2):
        write(IcebergSink("shop.doubles", catalog=iceberg[0], key=["k"]), {"k": [float("inf")], "n": [number]})
    assert [2] == iceberg[1].load_table("shop.doubles").scan().to_arrow().column("n").to_pylist()


@pytest.mark.parametrize("column", [times(0, LATE), pa.array([0, 3_000_000], pa.date32())])
def test_years_beyond_9999(tmp_path, iceberg, column):
    """Python's times end there, and so did the job, with a traceback; Iceberg's library cannot read them back."""
    write(DeltaSink(tmp_path / "table"), {"at": column})

    assert column.equals(deltalake.DeltaTable(tmp_path / "table").to_pyarrow_table().column("at").combine_chunks())
    with pytest.raises(ConnectorError, match="column 'at' has a time in a year before 1 or after 9999"):
        write(IcebergSink("shop.t", catalog=iceberg[0]), {"at": column})


def test_a_column_that_came_later_is_null_before(tmp_path):
    """A table that had got a column could not be read from its first version on."""
    for columns in ({"n": [1]}, {"n": [2], "later": ["a"]}):
        deltalake.write_deltalake(tmp_path / "table", pa.table(columns), mode="append", schema_mode="merge")

    rows = read(DeltaSource(tmp_path / "table", starting_version=0))

    assert [{"n": 1, "later": None}, {"n": 2, "later": "a"}] == rows


def test_partitions_that_change_between_the_rows_and_their_commit(iceberg):
    """The files fit no partition of the table any more: the commit failed for ever, and said to look at the network."""
    where, catalog = iceberg
    table = catalog.create_table("shop.t", pa.schema([("n", pa.int64()), ("p", pa.string())]))
    sink = IcebergSink("shop.t", catalog=where)
    writer = sink.create_writer(Place(), ())
    writer.write(pa.RecordBatch.from_pydict({"n": [1, 2], "p": ["a", None]}))
    together = GlobalCommittable("job", "uid", 1, tuple(writer.prepare_commit(1)), False)
    writer.close()
    with table.update_spec() as spec:
        spec.add_identity("p")

    for _ in range(2):
        sink.create_global_committer(Place()).commit(together)

    built: Any = expressions  # the library's types say less than its constructors take
    scan = catalog.load_table("shop.t").scan(row_filter=built.IsNull("p"))
    assert [2] == scan.to_arrow().column("n").to_pylist()
    assert [{"n": 1, "p": "a"}, {"n": 2, "p": None}] == read(IcebergSource("shop.t", catalog=where))


@pytest.mark.parametrize("kind", [pa.uuid(), pa.binary(16)], ids=str)
@pytest.mark.parametrize("options", [{}, {"key": "n"}, {"partition_by": "id"}], ids=str)
def test_columns_of_uuids_in_iceberg(iceberg, kind, options):
    """Their type became None: who read or wrote them got an error of Python's, or the process ended."""
    where, catalog = iceberg
    table = catalog.create_table("shop.t", pa.schema([("id", pa.uuid()), ("n", pa.int64())]))
    if "partition_by" in options:
        with table.update_spec() as spec:
            spec.add_identity("id")
    ids = [uuid.UUID(int=number) for number in (7, 2**128 - 1)]
    sink = IcebergSink("shop.t", catalog=where, **options)
    write(sink, {"id": pa.array([each.bytes for each in ids], kind), "n": [0, 1]})

    expected = [{"id": each, "n": number} for number, each in enumerate(ids)]
    assert expected == read(IcebergSource("shop.t", catalog=where))
    assert expected == catalog.load_table("shop.t").scan().to_arrow().sort_by("n").to_pylist()


@pytest.mark.parametrize("is_there", [True, False])
def test_uuids_are_no_key_in_iceberg(iceberg, is_there):
    """The first commit worked, and each that met a row in the table failed, for ever, and called the table damaged."""
    where, catalog = iceberg
    if is_there:
        catalog.create_table("shop.t", pa.schema([("id", pa.uuid()), ("n", pa.int64())]))
    sink = IcebergSink("shop.t", catalog=where, key=["n", "id"])
    with pytest.raises(ConnectorError, match="key= names 'id', which is a UUID, and pyiceberg finds no rows by one"):
        write(sink, {"id": pa.array([uuid.UUID(int=7).bytes], pa.uuid()), "n": [0]})


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (pa.struct([pa.field("a", pa.int64(), nullable=False)]), {"a": 1}),
        (pa.list_(pa.field("element", pa.int64(), nullable=False)), [1]),
        (pa.map_(pa.string(), pa.field("value", pa.int64(), nullable=False)), [("a", 1)]),
        (pa.list_(pa.struct([pa.field("a", pa.int64(), nullable=False)])), [{"a": 1}]),
    ],
    ids=str,
)
def test_parts_that_must_not_be_null_are_refused_by_the_sink_into_iceberg(iceberg, kind, value):
    """The library takes no files for them, so that the job tried for ever and said to look at the network."""
    where, catalog = iceberg
    catalog.create_table("shop.t", pa.schema([("n", pa.int64()), ("p", kind)]))
    sink = IcebergSink("shop.t", catalog=where)

    with pytest.raises(ConnectorError, match="column 'p' of the table has parts that must not be null"):
        write(sink, {"n": [2], "p": pa.array([value], kind)})
    write(sink, {"n": [2]})

    assert [{"n": 2, "p": None}] == read(IcebergSource("shop.t", catalog=where))


CENTS = pa.decimal128(9, 2)


def truncated(catalog: Catalog, kind: pa.DataType) -> None:
    """A table that is partitioned by truncated values."""
    table = catalog.create_table("shop.t", pa.schema([("p", kind), ("n", pa.int64())]))
    with table.update_spec() as spec:
        spec.add_field("p", TruncateTransform(10), "part")


@pytest.mark.parametrize(
    "column",
    [
        pa.array([-15, -5, 5, 15, None, -10, -11]),
        pa.array([decimal.Decimal(text) for text in ("12.34", "12.49", "-0.05", "0.05", "-12.34")], CENTS),
        pa.array([decimal.Decimal("9" * 38), decimal.Decimal("-" + "9" * 37), None], pa.decimal128(38, 0)),
    ],
    ids=lambda column: str(column.type),
)
def test_truncated_numbers_on_both_sides_of_zero(iceberg, column):
    """Numbers shared a file that the table puts into two partitions, and their checkpoint could never be committed."""
    where, catalog = iceberg
    truncated(catalog, column.type)
    write(IcebergSink("shop.t", catalog=where), {"p": column, "n": range(len(column))})

    assert column.to_pylist() == [row["p"] for row in read(IcebergSource("shop.t", catalog=where))]
    built: Any = expressions  # the library's types say less than its constructors take
    for number, value in enumerate(column.to_pylist()):
        asked = built.IsNull("p") if value is None else built.EqualTo("p", value)
        assert [number] == catalog.load_table("shop.t").scan(row_filter=asked).to_arrow().column("n").to_pylist()


@pytest.mark.parametrize(
    ("value", "says"),
    [
        (pa.array([-(2**63)]), "has -9223372036854775808, which int64 has no room for when it is truncated"),
        (pa.array([decimal.Decimal("-9999999.99")], CENTS), "has -9999999.99, which decimal"),
        (pa.array(["ab" * 2049]), "has a text of more than 4096 bytes, of which Parquet's statistics say nothing"),
    ],
    ids=lambda value: str(value.type) if isinstance(value, pa.Array) else "",
)
def test_values_whose_partition_the_library_cannot_say(iceberg, value, says):
    """Numbers were errors of Python's at the commit, and rows with long texts were found by no filter."""
    where, catalog = iceberg
    truncated(catalog, value.type)

    with pytest.raises(ConnectorError, match=f"'p', by whose truncate.10. the table is partitioned, {says}"):
        write(IcebergSink("shop.t", catalog=where), {"p": value, "n": [1]})


@pytest.mark.parametrize(
    ("there", "given"),
    [(pa.array([1], pa.int32()), [2**40]), (times(0), pa.array([1], pa.timestamp("ns")))],
    ids=["integers", "nanoseconds"],
)
def test_a_value_that_does_not_fit_is_said_with_its_column(
    tmp_path: Path, there: pa.Array, given: Sequence[Any]
) -> None:
    """Among a hundred columns that is what one wants to know."""
    deltalake.write_deltalake(tmp_path / "table", pa.table({"v": there}))

    with pytest.raises(ConnectorError, match="a batch does not fit the schema: column 'v': "):
        write(DeltaSink(tmp_path / "table"), {"v": given})
