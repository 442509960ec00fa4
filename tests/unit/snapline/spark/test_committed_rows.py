"""What sinks have committed, as Spark asks for it, without Spark."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql.datasource import GreaterThan

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
