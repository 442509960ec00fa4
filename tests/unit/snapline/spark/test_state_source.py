"""The data source of keyed state, without a Spark session: what its partitions read."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.datasource import EqualTo

from snapline.spark.state_source import StateDataSource
from snapline.state_writer import SavepointWriter

SEEN = dt.datetime(2024, 5, 1, 12, 30, 0, 250, tzinfo=dt.UTC)


@pytest.mark.parametrize("zone", ["UTC", "Europe/Berlin"])
def test_timestamps_with_a_zone_are_read_as_the_same_instants(tmp_path: Path, zone: str) -> None:
    """A session of Spark shows them in its own zone."""
    rows = pa.table({"user": [1], "seen": pa.array([SEEN], pa.timestamp("us", zone))})
    writer = SavepointWriter.new_savepoint().with_operator("last", rows, key="user", parallelism=1)
    source = StateDataSource({"snapshot": writer.write(str(tmp_path / "savepoint")), "uid": "last"})
    reader = source.reader(source.schema())

    batches: list[Any] = [batch for partition in reader.partitions() for batch in reader.read(partition)]

    assert [row for batch in batches for row in batch.to_pylist()] == [{"user": 1, "seen": SEEN}]


def test_a_relative_path_is_that_of_who_asks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An executor, which is in a directory of its own, looked for the snapshot there."""
    (tmp_path / "executor").mkdir()
    monkeypatch.chdir(tmp_path)
    rows = pa.table({"user": [1], "n": [2]})
    SavepointWriter.new_savepoint().with_operator("last", rows, key="user").write("savepoint")
    source = StateDataSource({"snapshot": "savepoint", "uid": "last"})
    reader = source.reader(source.schema())
    monkeypatch.chdir(tmp_path / "executor")
    batches: list[Any] = [batch for partition in reader.partitions() for batch in reader.read(partition)]
    assert [row for batch in batches for row in batch.to_pylist()] == [{"user": 1, "n": 2}]


def test_a_filter_that_no_key_can_pass_finds_no_rows(tmp_path: Path) -> None:
    """Unsigned keys are signed numbers to Spark: a query for a negative one failed."""
    rows = pa.table({"user": pa.array([5, 6], pa.uint32()), "n": [1, 2]})
    writer = SavepointWriter.new_savepoint().with_operator("last", rows, key="user")
    source = StateDataSource({"snapshot": writer.write(tmp_path / "savepoint"), "uid": "last"})
    for wanted, found in ((-5, []), (5, [{"user": 5, "n": 1}])):
        reader: Any = source.reader(source.schema())
        reader.pushFilters([EqualTo(("user",), wanted)])
        batches: list[Any] = [batch for partition in reader.partitions() for batch in reader.read(partition)]
        assert [row for batch in batches for row in batch.to_pylist()] == found
