"""Connectors measure what they read and write, under names that all of them share."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from snapline.connectors import (
    AvroFormat,
    CsvFormat,
    DeltaSink,
    FileSink,
    FileSource,
    HBaseSink,
    JsonFormat,
    ParquetSource,
)
from snapline.dataflow.api.connector_api import GlobalCommittable, InputStatus, Source, SplitEnumerator
from tests.services.hbase import running_hbase
from tests.services.measured import figures_of
from tests.unit.connectors.parquet.places import Place

SCHEMA = pa.schema([("n", pa.int64())])
AVRO = {"type": "record", "name": "N", "fields": [{"name": "n", "type": "long"}]}
ROWS = pa.RecordBatch.from_pydict({"n": list(range(50))}, SCHEMA)


def measured(place: Place) -> Mapping[str, float]:
    """What the metrics of a subtask hold."""
    return figures_of(place.metrics)


def read(source: Source, place: Place, now_ms: int = 0) -> None:
    """Read all that a source finds at once."""
    reader = source.create_reader(place)
    splits = source.enumerate_splits()
    enumerator = source.create_enumerator(splits)
    reader.add_splits(enumerator.discover({}).splits if isinstance(enumerator, SplitEnumerator) else splits)
    while True:
        polled = reader.poll_next(now_ms)
        if polled.status is InputStatus.END_OF_INPUT or (polled.finished_splits and enumerator is not None):
            break
    reader.close()


def test_files_count_their_bytes_and_how_old_they_are(tmp_path: Path) -> None:
    """As they lie on the disk, once a file was read to its end."""
    path = tmp_path / "a.json"
    path.write_text("".join(json.dumps(row) + "\n" for row in ROWS.to_pylist()))
    place = Place()
    read(FileSource(path, JsonFormat(SCHEMA)), place, now_ms=path.stat().st_mtime_ns // 1_000_000 + 5_000)

    assert {"bytes_read": path.stat().st_size, "lag_ms": 5_000} == measured(place)


def test_a_sink_of_files_and_a_source_of_parquet_count_the_same_bytes(tmp_path: Path) -> None:
    """The column chunks are what a file has besides its footer."""
    writing, reading = Place(), Place()
    sink = FileSink(tmp_path)
    writer = sink.create_writer(writing, ())
    writer.write(ROWS)
    sink.create_committer(writing).commit(writer.prepare_commit(1))
    writer.close()
    (path,) = tmp_path.glob("*.parquet")
    read(ParquetSource(str(path)), reading)

    assert {"bytes_written": path.stat().st_size, "files_written": 1} == measured(writing)
    assert 0 < measured(reading)["bytes_read"] < path.stat().st_size


@pytest.mark.parametrize(
    ("form", "compression"),
    [
        ("parquet", "gzip"),
        ("orc", "zlib"),
        (AvroFormat(AVRO), "gzip"),
        (CsvFormat(SCHEMA), None),
        (CsvFormat(SCHEMA, header=True), "gzip"),
        (JsonFormat(SCHEMA), "zstd"),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_every_format_of_a_sink_counts_what_lies_on_the_disk(
    form: Any, compression: str | None, tmp_path: Path
) -> None:
    """Compressed or not; what the committer is told decides which files are put together."""
    place = Place()
    sink = FileSink(tmp_path, form, compression=compression)
    writer = sink.create_writer(place, ())
    writer.write(ROWS)
    committables = writer.prepare_commit(1)
    writer.close()
    (staged,) = tmp_path.rglob("*.staged")

    size = staged.stat().st_size
    assert [size] == [each.data["bytes"] for each in committables if "bytes" in each.data]
    assert {"bytes_written": size, "files_written": 1} == measured(place)


def test_parquet_says_how_many_row_groups_still_wait(tmp_path: Path) -> None:
    """Beside the one that is read; their least times hold the watermark back."""
    pq.write_table(pa.table({"n": range(30)}), tmp_path / "a.parquet", row_group_size=10)
    source, place = ParquetSource(tmp_path / "a.parquet"), Place()
    reader = source.create_reader(place)
    reader.add_splits(source.enumerate_splits())
    waiting = [measured(place)["waiting_splits"]]
    while reader.poll_next(0).status is not InputStatus.END_OF_INPUT:
        waiting.append(measured(place)["waiting_splits"])
    reader.close()

    assert waiting == [2, 1, 0, 0]


def test_a_table_counts_commits_that_are_made_again(tmp_path: Path) -> None:
    """The first one finds no table, makes it, and looks again."""
    writing, committing = Place(), Place()
    sink = DeltaSink(tmp_path)
    writer = sink.create_writer(writing, ())
    writer.write(ROWS)
    committables = tuple(writer.prepare_commit(1))
    sink.create_global_committer(committing).commit(GlobalCommittable("job", "uid", 1, committables))

    assert measured(writing)["files_written"] == 1
    assert {"commit_retries": 1} == measured(committing)


def test_hbase_counts_cells() -> None:
    """Names of columns and values, once they were sent."""
    with running_hbase() as (_, port):
        place = Place()
        sink = HBaseSink("totals", host="127.0.0.1", port=port, row_key="k", family="d")
        writer = sink.create_writer(place, ())
        writer.write(pa.RecordBatch.from_pydict({"k": ["a"], "n": [12]}))
        assert {"bytes_written": 0} == measured(place)
        writer.prepare_commit(1)
        writer.close()

    assert {"bytes_written": len("d:n12")} == measured(place)
