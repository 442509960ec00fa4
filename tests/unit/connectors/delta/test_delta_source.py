"""Delta tables as a source: which versions are read, once each, and what cannot be read."""

from __future__ import annotations

import datetime as dt
import json
import re
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import snapline as sl
from snapline.connectors import DeltaSource
from snapline.connectors.tables import table_discovery
from snapline.dataflow.api.connector_api import InputStatus, Source, SourceSplit
from snapline.dataflow.errors import ConnectorError
from tests.services.measured import figures_of
from tests.unit.connectors.parquet.places import Place

Rows = list[dict[str, Any]]


def add(path: Path, *values: int, **options: Any) -> None:
    """A version with these rows."""
    rows = pa.table({"n": pa.array(values, pa.int64()), "day": pa.array([f"a b/{n % 2}" for n in values])})
    deltalake.write_deltalake(path, rows, mode="append", **options)


class Job:
    """The enumerator and a reader of a source, and how far both are."""

    def __init__(self, source: Source, state: dict[str, Any] | None = None, splits: Sequence[SourceSplit] = ()) -> None:
        found = source.create_enumerator(source.enumerate_splits())
        assert found is not None
        self.enumerator = found
        self.state = state or {}
        self.finished = False
        self.place = Place()
        self.reader = source.create_reader(self.place)
        self.reader.add_splits(splits)

    def look(self) -> int:
        """One look for files. Returns how many there are."""
        found = self.enumerator.discover(self.state)
        self.state, self.finished = found.state, found.finished
        self.reader.add_splits(found.splits)
        return len(found.splits)

    def read(self, batches: int = 1_000) -> Rows:
        """What the reader has, at most so many batches."""
        rows: Rows = []
        while batches and (polled := self.reader.poll_next(0)).status is not InputStatus.NOTHING_AVAILABLE:
            if polled.batch is not None:
                batches -= 1
                rows += polled.batch.to_pylist()
        return rows

    def measured(self) -> dict[str, float]:
        """What the metrics of the reader hold."""
        return figures_of(self.place.metrics)

    def numbers(self) -> list[int]:
        """Of the rows that a look finds."""
        self.look()
        return sorted(row["n"] for row in self.read())


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """Versions 0, 1 and 2."""
    for version in range(3):
        add(tmp_path, 10 * version, 10 * version + 1, partition_by=["day"])
    return tmp_path


def test_the_rows_of_the_newest_version_and_what_comes_later(table):
    """Each row once, with the values of its partition; without follow the source ends."""
    job = Job(DeltaSource(table, follow=True))
    job.look()
    assert [(n, f"a b/{n % 2}") for n in (0, 1, 10, 11, 20, 21)] == sorted((row["n"], row["day"]) for row in job.read())
    assert not job.finished
    assert job.numbers() == []
    add(table, 30)
    add(table, 31, 32)
    assert job.numbers() == [30, 31, 32]
    whole = Job(DeltaSource(table, columns=["day", "n"]))
    assert whole.numbers() == [0, 1, 10, 11, 20, 21, 30, 31, 32]
    assert whole.finished
    sizes = deltalake.DeltaTable(table).get_add_actions()["size_bytes"].to_pylist()
    assert whole.measured() == {"bytes_read": sum(sizes), "files_read": len(sizes), "lag_ms": 0}


@pytest.mark.parametrize(
    ("start", "expected"),
    [({"starting_version": 1}, [10, 11, 20, 21]), ({"starting_version": "latest"}, []), ({"starting_version": 3}, [])],
)
def test_where_to_start(table, start, expected):
    """At what a version added, or behind the newest one."""
    job = Job(DeltaSource(table, follow=True, **start))
    assert expected == job.numbers()
    add(table, 30)
    assert job.numbers() == [30]


def test_a_time_to_start_at(table):
    """The first version at or after it; none yet is no error."""
    at = dt.datetime.fromtimestamp(deltalake.DeltaTable(table).history()[1]["timestamp"] / 1000, dt.UTC)
    rows = Job(DeltaSource(table, follow=True, starting_timestamp=at)).numbers()
    assert rows[-2:] == [20, 21]
    assert 10 in rows
    newest = dt.datetime.fromtimestamp(deltalake.DeltaTable(table).history()[0]["timestamp"] / 1000, dt.UTC)
    assert Job(DeltaSource(table, starting_timestamp=newest)).numbers() != []
    assert Job(DeltaSource(table, starting_timestamp=newest + dt.timedelta(microseconds=1))).numbers() == []
    assert Job(DeltaSource(table, starting_timestamp=dt.datetime.now(dt.UTC) + dt.timedelta(hours=1))).numbers() == []


def test_a_job_goes_on_where_it_was(table, monkeypatch):
    """In the middle of a file, of a version and of the log, from the state of the enumerator and of readers."""
    monkeypatch.setattr(table_discovery, "FILES_AT_ONCE", 3)
    source = DeltaSource(table, follow=True, batch_rows=1)
    add(table, *range(100, 106))
    rows: Rows = []
    state: dict[str, Any] | None = None
    splits: Sequence[SourceSplit] = ()
    for _ in range(12):
        job = Job(source, state, splits)
        assert job.look() <= 3
        rows += job.read(batches=2)
        state, splits = job.state, job.reader.snapshot_splits(1)
    assert [0, 1, 10, 11, 20, 21, *range(100, 106)] == sorted(row["n"] for row in rows)


def test_a_source_that_ended_follows_when_its_job_goes_on_so(table):
    """The snapshot of a job that read what was there is no bound for one that follows."""
    ended = Job(DeltaSource(table))
    assert ended.numbers() == [0, 1, 10, 11, 20, 21]
    add(table, 30)
    assert Job(DeltaSource(table, follow=True), ended.state).numbers() == [30]


def test_commits_that_change_rows(table):
    """They end the job with the way out, or are left out; rows that only move into other files do not come again."""
    job = Job(DeltaSource(table, follow=True))
    skipping = Job(DeltaSource(table, follow=True, skip_change_commits=True))
    assert job.numbers() == skipping.numbers() == [0, 1, 10, 11, 20, 21]
    deltalake.DeltaTable(table).optimize.compact()
    assert job.numbers() == []
    deltalake.DeltaTable(table).delete("n = 1")
    add(table, 40)
    with pytest.raises(ConnectorError, match=r"version 4 deletes or changes rows .*starting_version=5"):
        job.look()
    assert skipping.numbers() == [40]
    with pytest.raises(ConnectorError, match="version 4 deletes or changes rows"):
        DeltaSource(table, starting_version=4).enumerate_splits()


def test_columns_that_come_and_go(table):
    """Files from before a column have null; a new one is left out; one that changes its type ends the job."""
    job = Job(DeltaSource(table, follow=True))
    job.numbers()
    rows = pa.table({"n": [50], "day": ["a b/0"], "more": ["x"]})
    deltalake.write_deltalake(table, rows, mode="append", schema_mode="merge")
    job.look()
    assert [{"n": 50, "day": "a b/0"}] == job.read()
    anew = Job(DeltaSource(table, columns=["more", "n"]))
    anew.look()
    assert {(row["n"], row["more"]) for row in anew.read()} >= {(50, "x"), (0, None)}
    changed = pa.table({"n": ["text"], "day": ["a b/0"]})
    deltalake.write_deltalake(table, changed, mode="overwrite", schema_mode="overwrite")
    with pytest.raises(ConnectorError, match="column 'n', which was int64, is string"):
        Job(DeltaSource(table, follow=True, skip_change_commits=True, starting_version=4), job.state).look()
        job.look()


def test_what_is_gone(table):
    """A file that VACUUM removed before it was read, a version that the log has no longer, and the table."""
    job = Job(DeltaSource(table, follow=True))
    patient = Job(DeltaSource(table, follow=True, ignore_missing=True))
    job.look()
    patient.look()
    next(table.glob("day=*/*.parquet")).unlink()
    with pytest.raises(ConnectorError, match=r"is gone before it was read; .*VACUUM.*ignore_missing"):
        job.read()
    assert len(patient.read()) == 5
    deltalake.DeltaTable(table).create_checkpoint()
    for version in range(2):  # as the clean-up of the log does
        (table / "_delta_log" / f"{version:020d}.json").unlink()
    with pytest.raises(ConnectorError, match=r"version 1 is gone from the table's log"):
        Job(DeltaSource(table, follow=True, starting_version="latest"), {"at": 0, "files": 0, "done": True}).look()


@pytest.mark.parametrize("versions", [1, 2])
@pytest.mark.parametrize("is_read", [True, False])
def test_a_table_that_is_created_again_with_fewer_versions(table, is_read, versions):
    """Its first versions would never be read, while the job waits for later ones than it has come to."""
    job = Job(DeltaSource(table, follow=True))
    assert job.numbers() == [0, 1, 10, 11, 20, 21]
    shutil.rmtree(table)
    for version in range(versions):
        add(table, 100 + version)
    if not is_read:
        job = Job(DeltaSource(table, follow=True), job.state)
    with pytest.raises(
        ConnectorError, match=rf"come to version 2, and .* is {versions - 1}: the table was deleted and created again"
    ):
        job.look()


def rewritten(table: Path, change: Callable[[dict[str, Any]], Any]) -> str:
    """The log of the newest version, whose added files say something else, and nothing about who added them."""
    lines = (table / "_delta_log" / f"{2:020d}.json").read_text().splitlines()
    return "\n".join(json.dumps(change(action)) for action in map(json.loads, lines) if "add" in action)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda action: {"add": {**action["add"], "path": 7}}, "TypeError: argument of type 'int'"),
        (lambda action: {"add": {**action["add"], "partitionValues": {"day": 7}}}, "{'day': 7} are no texts"),
        (lambda action: {"commitInfo": {"timestamp": "noon"}}, "ValueError: invalid literal for int"),
    ],
    ids=["a path", "a value of a partition", "a time"],
)
def test_a_log_that_makes_no_sense_is_one_line(table, change, said):
    """The library takes less notice of a commit than who reads its rows: such a version ended in a traceback."""
    (table / "_delta_log" / f"{2:020d}.json").write_text(rewritten(table, change))
    with pytest.raises(ConnectorError, match=f"version 2 makes no sense .*{re.escape(said)}.* starting_version=3"):
        Job(DeltaSource(table, starting_version=2)).look()


def test_a_table_whose_columns_are_mapped_while_it_is_followed(tmp_path: Path) -> None:
    """Files had other names from there on, and all that came from them was null."""
    deltalake.write_deltalake(tmp_path, pa.table({"n": [0]}))
    job = Job(DeltaSource(tmp_path, follow=True, skip_change_commits=True))
    assert job.numbers() == [0]
    log = tmp_path / "_delta_log"
    [metadata] = [
        action
        for line in (log / f"{0:020d}.json").read_text().splitlines()
        if "metaData" in (action := json.loads(line))
    ]
    schema = json.loads(metadata["metaData"]["schemaString"])
    [field] = schema["fields"]
    field["metadata"] = {"delta.columnMapping.id": 1, "delta.columnMapping.physicalName": "col-1"}
    metadata["metaData"]["schemaString"] = json.dumps(schema)
    metadata["metaData"]["configuration"] = {
        "delta.columnMapping.mode": "name",
        "delta.columnMapping.maxColumnId": "1",
    }
    protocol = {"protocol": {"minReaderVersion": 2, "minWriterVersion": 5}}
    pq.write_table(pa.table({"col-1": [1]}), tmp_path / "mapped.parquet")
    said = {"path": "mapped.parquet", "size": (tmp_path / "mapped.parquet").stat().st_size, "partitionValues": {}}
    add = {"add": {**said, "modificationTime": 0, "dataChange": True}}
    (log / f"{1:020d}.json").write_text("\n".join(map(json.dumps, (protocol, metadata, add))))
    with pytest.raises(
        ConnectorError, match="the table maps its columns to other names, which DeltaSource cannot read"
    ):
        job.numbers()


def test_times_that_spark_writes_may_have_any_year(tmp_path: Path) -> None:
    """A table with the last day of 9999, which stands for no end, could not be read: it is no number of nanoseconds."""
    moments = [dt.datetime(9999, 12, 31, 23, tzinfo=dt.UTC), dt.datetime(1, 1, 1, tzinfo=dt.UTC)]
    rows = pa.table({"at": pa.array(moments, pa.timestamp("us", "UTC"))})
    deltalake.DeltaTable.create(tmp_path, schema=deltalake.Schema.from_arrow(rows.schema))
    file = tmp_path / "part-0.parquet"
    pq.write_table(rows, file, use_deprecated_int96_timestamps=True)
    said = {"path": file.name, "size": file.stat().st_size, "partitionValues": {}, "modificationTime": 0}
    log = tmp_path / "_delta_log" / f"{1:020d}.json"
    log.write_text(json.dumps({"add": {**said, "dataChange": True}}))

    job = Job(DeltaSource(tmp_path))
    job.look()
    assert [row["at"] for row in job.read()] == moments


def test_actions_need_no_lines_of_their_own(table):
    """The library reads them behind each other; ours took it for damage. What is null is not there."""
    with (table / "_delta_log" / f"{2:020d}.json").open("a") as log:
        log.write('{"remove": null}{"commitInfo": null}')
    assert [20, 21] == Job(DeltaSource(table, starting_version=2)).numbers()


def test_wrong_input(table, tmp_path_factory):
    """Each in one line, at submission."""
    for source, says in (
        (lambda: DeltaSource(tmp_path_factory.mktemp("empty")), "there is no Delta table"),
        (lambda: DeltaSource(table, columns=["m"]), "there is no column 'm' in the table, but n, day"),
        (lambda: DeltaSource(table, starting_version=-1), "starting_version is 0 or more"),
        (lambda: DeltaSource(table, starting_version="1"), "starting_version is a number or 'latest', not '1'"),  # type: ignore[arg-type]
        (lambda: DeltaSource(table, starting_version=True), "starting_version is a number or 'latest', not True"),
        (lambda: DeltaSource(table, starting_timestamp=dt.date(2026, 1, 1)), "is a datetime, not datetime.date"),  # type: ignore[arg-type]
        (lambda: DeltaSource(table, starting_version=9), "starting_version is 9, and the table's newest version is 2"),
        (lambda: DeltaSource(table, starting_version=1, starting_timestamp=dt.datetime.now(dt.UTC)), "not both"),
        (lambda: DeltaSource(table, batch_rows=0), "batch_rows must be at least 1"),
    ):
        with pytest.raises(ConnectorError, match=says) as raised:
            source().enumerate_splits()
        assert "\n" not in str(raised.value)


@pytest.mark.parametrize("start", [None, 0])
def test_bytes_that_a_table_is_partitioned_by_are_read(tmp_path, start):
    """The log has them as escaped signs, which came as they are, or as Python writes them."""
    deltalake.write_deltalake(tmp_path, pa.table({"p": [b"ab", None, b"\xff\x00"], "n": [1, 2, 3]}), partition_by=["p"])
    env = sl.StreamExecutionEnvironment.get_execution_environment()
    source = env.from_source(DeltaSource(tmp_path, starting_version=start), uid="table")
    found = {row["n"]: row["p"] for row in source.execute_and_collect(local=True)}

    assert found == {1: b"ab", 2: None, 3: b"\xff\x00"}
