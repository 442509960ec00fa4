"""Iceberg tables as a source: which snapshots are read, once each, and what cannot be read."""

from __future__ import annotations

import contextlib
import datetime as dt
import json
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog import load_catalog
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.table import Table
from pyiceberg.typedef import Record
from pyiceberg.types import DateType, LongType, StringType, TimestampType
from pyiceberg.utils.concurrent import ExecutorFactory

from snapline.connectors import IcebergSource
from snapline.connectors.iceberg.iceberg_sink import committed
from snapline.connectors.tables import table_discovery
from snapline.dataflow.api.connector_api import SourceSplit
from snapline.dataflow.errors import ConnectorError
from tests.unit.connectors.delta.test_delta_source import Job

naive = dt.datetime
NAME = "web.clicks"
COLUMNS = pa.schema([("n", pa.int64()), ("day", pa.string())])


@pytest.fixture(autouse=True)
def _no_threads() -> Iterator[None]:
    """The library keeps its threads for the whole process; tests look for such."""
    yield
    executor, ExecutorFactory._instance = ExecutorFactory._instance, None
    if executor is not None:
        executor.shutdown()


class Web:
    """A table in a catalogue of its own."""

    def __init__(self, directory: Path) -> None:
        uri, warehouse = f"sqlite:///{directory}/catalog.db", f"file://{directory}/warehouse"
        self.catalog = {"type": "sql", "uri": uri, "warehouse": warehouse}
        load_catalog("default", **self.catalog).create_namespace("web")
        made = load_catalog("default", **self.catalog).create_table(NAME, COLUMNS)
        with made.update_spec() as spec:
            spec.add_identity("day")

    @property
    def table(self) -> Table:
        """As it is now."""
        return load_catalog("default", **self.catalog).load_table(NAME)

    def add(self, *values: int) -> int:
        """A snapshot with these rows. Returns its id."""
        rows = {"n": list(values), "day": [f"a b/{n % 2}" for n in values]}
        table = self.table
        table.append(pa.table(rows, COLUMNS))
        snapshot = table.current_snapshot()
        assert snapshot is not None
        return snapshot.snapshot_id

    def source(self, **options: Any) -> IcebergSource:
        return IcebergSource(NAME, catalog=self.catalog, **options)


@pytest.fixture
def web(tmp_path: Path) -> Web:
    return Web(tmp_path)


def test_the_rows_of_the_newest_snapshot_and_what_comes_later(web):
    """Each row once; a table without rows is waited for; without follow the source ends."""
    job = Job(web.source(follow=True))
    assert job.numbers() == []
    web.add(0, 1)
    web.add(10)
    assert job.numbers() == [0, 1, 10]
    whole = Job(web.source(columns=["day", "n"]))
    whole.look()
    assert [{"day": f"a b/{n % 2}", "n": n} for n in (0, 1, 10)] == sorted(whole.read(), key=lambda row: row["n"])
    assert whole.finished
    sizes = [task.file.file_size_in_bytes for task in web.table.scan().plan_files()]
    assert whole.measured() == {"bytes_read": sum(sizes), "files_read": len(sizes), "lag_ms": 0}
    assert Job(web.source(), whole.state).numbers() == []


def test_a_source_of_a_job_from_before_an_upgrade_reads_on(web):
    """It had no defaults, and other names for what it had, and new TaskManagers under running jobs ended its tasks."""
    web.add(0)
    source = web.source()
    assert source.schema().names == ["n", "day"]
    before = {name: value for name, value in vars(source).items() if name not in ("named", "_defaults", "_parts")}
    made = IcebergSource.__new__(IcebergSource)
    made.__setstate__({**before, "_named": source.named})

    assert Job(made).numbers() == [0]
    assert made.names_in_file(pa.schema([("n", pa.int64())]), {}) == {"n": "n"}
    assert made.absent(pa.field("more", pa.int64()), 1).to_pylist() == [None]


def test_snapshots_that_expire_before_the_first_look_at_them(web):
    """What they had added to a table that was empty when the job began was lost, and nobody said so."""
    job = Job(web.source(follow=True))
    assert job.numbers() == []
    first = web.add(0)
    web.add(1)
    web.table.maintenance.expire_snapshots().by_id(first).commit()

    assert job.numbers() == [0, 1]
    web.add(2)
    assert job.numbers() == [2]


def test_a_snapshot_that_expires_while_its_last_files_are_handed_out(web, monkeypatch):
    """A source that ends there failed at each restart, although it had what it wanted and needs no later one."""
    monkeypatch.setattr(table_discovery, "FILES_AT_ONCE", 1)
    web.add(0)
    last = web.add(1)
    job = Job(web.source())
    assert len(job.numbers()) == 1
    web.add(2)
    web.table.maintenance.expire_snapshots().by_id(last).commit()
    assert len(job.numbers()) == 1
    assert job.finished


def test_where_to_start(web):
    """At what a snapshot added, by its id or by a time."""
    web.add(0)
    second = web.add(10, 11)
    at = dt.datetime.fromtimestamp(web.table.snapshot_by_id(second).timestamp_ms / 1000, dt.UTC)
    for start in ({"starting_snapshot": second}, {"starting_timestamp": at}):
        job = Job(web.source(follow=True, **start))
        assert {10, 11} <= set(job.numbers())
        assert job.numbers() == []
    later = Job(web.source(follow=True, starting_timestamp=at + dt.timedelta(hours=1)))
    assert later.numbers() == []
    web.add(20)
    assert later.numbers() == [20]


def test_a_job_goes_on_where_it_was(web):
    """In the middle of a file and of the snapshots, from the state of the enumerator and of readers."""
    for start in (0, 100):
        web.add(*range(start, start + 6))
    source = web.source(follow=True, batch_rows=1)
    rows: list[Any] = []
    state: dict[str, Any] | None = None
    splits: Sequence[SourceSplit] = ()
    for _ in range(8):
        job = Job(source, state, splits)
        job.look()
        rows += job.read(batches=2)
        state, splits = job.state, job.reader.snapshot_splits(1)
    assert [*range(6), *range(100, 106)] == sorted(row["n"] for row in rows)


def test_snapshots_that_change_rows(web):
    """They end the job with the way out, or are left out."""
    web.add(0, 1, 2, 3)
    job = Job(web.source(follow=True))
    skipping = Job(web.source(follow=True, skip_change_commits=True))
    assert job.numbers() == skipping.numbers() == [0, 1, 2, 3]
    web.table.delete("n = 2")
    after = web.add(40)
    with pytest.raises(ConnectorError, match=rf"deletes or changes rows \(overwrite\).*starting_snapshot={after}"):
        job.look()
    assert skipping.numbers() == [40]


def test_columns_that_come_go_and_are_renamed(web):
    """A column is known by its id, under the name that it had when the job was defined; a dropped one ends the job."""
    web.add(0)
    job = Job(web.source(follow=True))
    assert job.numbers() == [0]
    with web.table.update_schema() as update:
        update.rename_column("n", "number")
        update.add_column("more", StringType())
    web.table.append(pa.table({"number": [1], "day": ["x"], "more": ["y"]}))
    assert job.numbers() == [1]
    anew = Job(web.source(columns=["more", "number"]))
    anew.look()
    assert [(0, None), (1, "y")] == sorted((row["number"], row["more"]) for row in anew.read())
    with web.table.update_schema() as update:
        update.delete_column("number")
    with pytest.raises(ConnectorError, match="column 'n' of the table, which was int64, is gone"):
        job.look()


def test_files_without_ids_that_come_after_a_column_was_renamed(web, tmp_path):
    """IcebergSink and other programs add such files; a source that followed read nulls for the column."""
    job = Job(web.source(follow=True))
    for number, name in enumerate(("n", "number", "how many")):
        path = tmp_path / f"{number}.parquet"
        pq.write_table(pa.table({name: [number], "day": ["monday"]}), path)
        if number:
            with web.table.update_schema() as update:
                update.rename_column(web.table.schema().fields[0].name, name)
        web.table.add_files([f"file://{path}"])
        if number != 1:
            job.look()

    assert [{"n": number, "day": "monday"} for number in range(3)] == sorted(job.read(), key=lambda row: row["n"])


def test_a_column_with_a_default_has_it_in_files_that_are_older(web):
    """It was null, and other readers of the table saw the default."""
    web.add(0)
    day, at = dt.date(2026, 11, 29), naive(2026, 11, 29, 1, 2, 3, 4)
    with web.table.update_schema() as update:
        update.add_column("more", StringType(), default_value="x").add_column("many", LongType(), default_value=7)
        update.add_column("date", DateType(), default_value=day).add_column("at", TimestampType(), default_value=at)
    web.table.append(pa.table({"n": [1], "day": ["x"], "more": pa.nulls(1, pa.string())}))

    job = Job(web.source(columns=["n", "more", "many", "date", "at"]))
    job.look()

    expected = [
        {"n": 0, "more": "x", "many": 7, "date": day, "at": at},
        {"n": 1, "more": None, "many": None, "date": None, "at": None},
    ]
    assert expected == sorted(job.read(), key=lambda row: row["n"])
    assert expected == web.table.scan().to_arrow().drop_columns(["day"]).sort_by("n").to_pylist()


def test_parts_of_records_are_known_by_their_ids(web):
    """What a part had before it was renamed was null, and a new part got what a dropped one of its name had held."""
    inner = pa.struct([("x", pa.int64()), ("z", pa.int64())])
    columns = pa.schema([("s", inner), ("l", pa.list_(inner)), ("m", pa.map_(pa.string(), inner))])
    table = load_catalog("default", **web.catalog).create_table("web.records", columns)
    was = {"x": 1, "z": 2}
    table.append(pa.table({"s": [was], "l": [[was]], "m": [[("k", was)]]}, columns))
    for place in (("s",), ("l", "element"), ("m", "value")):
        with table.update_schema() as update:
            update.rename_column((*place, "x"), "y").delete_column((*place, "z"))
        with table.update_schema() as update:
            update.add_column((*place, "z"), LongType())

    job = Job(IcebergSource("web.records", catalog=web.catalog))
    job.look()

    is_now = {"y": 1, "z": None}
    assert [{"s": is_now, "l": [is_now], "m": [("k", is_now)]}] == job.read()


def test_parts_of_records_are_known_in_files_without_ids(web, tmp_path):
    """IcebergSink adds such files; a part that was renamed was null in all that were written before."""
    inner = pa.struct([("x", pa.int64()), ("z", pa.int64())])
    columns = pa.schema([("s", inner), ("l", pa.list_(inner)), ("m", pa.map_(pa.string(), inner))])
    table = load_catalog("default", **web.catalog).create_table("web.records", columns)
    was = {"x": 1, "z": 2}
    pq.write_table(pa.table({"s": [was], "l": [[was]], "m": [[("k", was)]]}, columns), tmp_path / "file.parquet")
    table.add_files([f"file://{tmp_path}/file.parquet"])
    for place in (("s",), ("l", "element"), ("m", "value")):
        with table.update_schema() as update:
            update.rename_column((*place, "x"), "y").delete_column((*place, "z"))

    job = Job(IcebergSource("web.records", catalog=web.catalog))
    job.look()

    assert [{"s": {"y": 1}, "l": [{"y": 1}], "m": [("k", {"y": 1})]}] == job.read()


def add_file(web: Web, path: str) -> int:
    """A snapshot with a file of another program, for the day `monday`. Returns its id."""
    file = DataFile.from_args(
        content=DataFileContent.DATA, file_path=path, file_format=FileFormat.PARQUET, partition=Record("monday"), record_count=1,
        file_size_in_bytes=1, spec_id=web.table.spec().spec_id,
    )  # fmt: skip
    with web.table.transaction() as transaction, transaction.update_snapshot().fast_append() as adding:
        adding.append_data_file(file)
    return web.table.metadata.current_snapshot_id or 0


def test_a_file_without_the_column_of_its_partition(web, tmp_path):
    """Tables that were Hive's have such files; the column was null, and the table says a value."""
    path = tmp_path / "of_hive.parquet"
    pq.write_table(pa.table({"n": [1]}), path)
    job = Job(web.source(follow=True, columns=["day"]))
    add_file(web, f"file://{path}")
    whole = Job(web.source())

    for each in (job, whole):
        each.look()
    assert [[{"day": "monday"}], [{"n": 1, "day": "monday"}]] == [job.read(), whole.read()]


def test_files_that_other_programs_have_added_wrongly(web, tmp_path):
    """Each was another error of Python."""
    path = tmp_path / "twice.parquet"
    pq.write_table(pa.table([pa.array([1]), pa.array([2])], names=["n", "n"]), path)
    for place, says in (
        (str(path), "twice.parquet has two columns 'n'; write the file anew without one of them"),
        ("http://[x/y", "cannot use http://"),
        ("a\0b", "cannot be read as Parquet: Embedded NUL"),
    ):
        job = Job(web.source(starting_snapshot=add_file(web, place)))
        job.look()
        with pytest.raises(ConnectorError, match=says):
            job.read()


def rewrite_metadata(web: Web, change: Callable[[dict[str, Any]], object]) -> None:
    """Change what the table's newest metadata file says."""
    path = Path(web.table.metadata_location.removeprefix("file://"))
    said = json.loads(path.read_text())
    change(said)
    path.write_text(json.dumps(said))


def test_a_snapshot_that_is_its_own_ancestor(web):
    """It was looked for without end, and took all memory; a sink looks at the same snapshots."""
    first, second = web.add(0), web.add(1)
    rewrite_metadata(web, lambda said: said["snapshots"][0].update({"parent-snapshot-id": second}))

    with pytest.raises(ConnectorError, match=f"snapshot {second} is said to be its own ancestor"):
        web.source().enumerate_splits()
    with pytest.raises(ConnectorError, match="is said to be its own ancestor"):
        committed(web.table, "job", "sink")
    assert first != second


@pytest.mark.parametrize(
    "change",
    [{"properties": "text"}, {"schemas": [{"type": "struct", "schema-id": 0, "fields": [{"id": 1, "name": "n", "type": "unknown", "required": False}]}]}],
    ids=["properties", "unknown type"],
)  # fmt: skip
def test_metadata_that_the_library_cannot_read_is_one_line(web, change):
    """Each was another error of Python."""
    web.add(0)
    rewrite_metadata(
        web,
        lambda said: said.update({"partition-specs": [{"spec-id": 0, "fields": []}], "default-spec-id": 0, **change}),
    )

    with pytest.raises(ConnectorError, match=r"Iceberg table web.clicks: its metadata or a manifest cannot be read"):
        web.source().enumerate_splits()


def test_a_damaged_manifest_is_one_line(web):
    """What was compressed in it was zlib's error, and a short one EOFError."""
    web.add(0)
    (manifest,) = Path(web.table.location().removeprefix("file://")).rglob("*-m0.avro")
    data = manifest.read_bytes()
    for place in range(len(data) - 300, len(data), 10):
        manifest.write_bytes(data[:place] + bytes([data[place] ^ 0x55]) + data[place + 1 :])
        with contextlib.suppress(ConnectorError):
            web.source().enumerate_splits()


def test_what_is_gone(web):
    """A file that was removed, a snapshot that the table rests on no longer, and the table itself."""
    first = web.add(0)
    web.add(1)
    job = Job(web.source(follow=True))
    job.look()
    for file in web.table.inspect.files()["file_path"].to_pylist():
        Path(file.removeprefix("file://")).unlink()
    with pytest.raises(ConnectorError, match="is gone before it was read"):
        job.read()
    web.table.manage_snapshots().rollback_to_snapshot(first).commit()
    with pytest.raises(ConnectorError, match="none of those that the table rests on"):
        job.look()
    load_catalog("default", **web.catalog).drop_table(NAME)
    with pytest.raises(ConnectorError, match="there is no such table"):
        job.look()


def test_wrong_input(web):
    """Each in one line, at submission."""
    for options, says in (
        ({"columns": ["m"]}, "there is no column 'm' in the table, but n, day"),
        ({"starting_snapshot": 7}, "snapshot 7 is none of those that the table rests on"),
        ({"starting_snapshot": 7, "starting_timestamp": dt.datetime.now(dt.UTC)}, "not both"),
        ({"batch_rows": 0}, "batch_rows must be at least 1"),
        ({"columns": ["n", "n"]}, "columns= names each column once, and at least one, not ['n', 'n']"),
        ({"columns": []}, "columns= names each column once, and at least one, not []"),
        ({"columns": "m"}, "there is no column 'm' in the table"),
        ({"starting_timestamp": "2026-11-29"}, "starting_timestamp is a datetime, not '2026-11-29'"),
    ):
        with pytest.raises(ConnectorError, match=re.escape(says)) as raised:
            web.source(**options).enumerate_splits()
        assert "\n" not in str(raised.value)
    assert web.source(columns="day").schema().names == ["day"]
    with pytest.raises(ConnectorError, match="there is no such table"):
        IcebergSource("web.none", catalog=web.catalog).enumerate_splits()
