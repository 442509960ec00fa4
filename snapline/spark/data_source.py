"""What a job has committed as a Spark DataFrame: `spark.read.format("snapline")` and `spark.readStream`.

Decides partitions (a file each; of a stream, those between two offsets), which filters are used to skip rows
(comparisons of columns that have no NaN; Spark asks every row again), and what a trigger takes. A stream's offset is
exact on both sides: what it is made of is in `snapline.spark.committed_rows`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyarrow import fs
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, Filter, InputPartition
from pyspark.sql.types import StructType

from snapline.committed_files import NOTHING, Offset
from snapline.connectors.delta.delta_source import DeltaSource
from snapline.connectors.files.filesystems import absolute, locate
from snapline.connectors.iceberg.iceberg_source import IcebergSource
from snapline.dataflow.errors import ConnectorError
from snapline.spark.committed_rows import (
    FORMAT,
    CommittedDirectory,
    CommittedRows,
    CommittedTable,
    Condition,
    Part,
    is_comparison,
)
from snapline.spark.frame_types import spark_schema_of

try:
    from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxFiles, SupportsTriggerAvailableNow
except ImportError:  # before PySpark 4.2, which neither limits a trigger nor tells a source when to end
    SupportsTriggerAvailableNow = object  # type: ignore[assignment,misc]

PUSHDOWN = "spark.sql.python.filterPushdown.enabled"


class CommittedRowsDataSource(DataSource):
    """Spark's data source of the format `snapline`: the directory of a sink that commits Parquet files."""

    @classmethod
    def name(cls) -> str:
        """Return the name that `format` takes."""
        return FORMAT

    def schema(self) -> StructType:
        """From the first file that is committed."""
        return spark_schema_of(self._committed().schema(), f'format("{FORMAT}")')

    def reader(self, schema: StructType) -> DataSourceReader:
        """Create the reader of one query."""
        return _CommittedReader(self._committed(), schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        """Create the reader of one streaming query."""
        return _CommittedStreamReader(self._committed(), schema, self._number("maxFilesPerTrigger"))

    def _committed(self) -> CommittedRows:
        path = self.options.get("path")
        if not path:
            raise ConnectorError(
                f'format("{FORMAT}") needs the directory of a sink, or its table: .load("/path/of/the/sink")'
            )
        columns = tuple(name.strip() for name in self.options.get("columns", "").split(",") if name.strip())
        catalog = {
            key.removeprefix("catalog."): value for key, value in self.options.items() if key.startswith("catalog.")
        }
        if catalog or "catalog" in self.options:
            named = self.options.get("catalog", "")
            return CommittedTable(IcebergSource(path, catalog=catalog or named, columns=columns or None))
        options, path = {key: value for key, value in self.options.items() if key.startswith("s3.")}, absolute(path)
        location = locate(path, options)
        log = location.filesystem.get_file_info(f"{location.path}/_delta_log")
        if log.type == fs.FileType.Directory:
            return CommittedTable(DeltaSource(path, columns=columns or None, storage_options=options))
        return CommittedDirectory(path, options, self.options.get("uid", ""), columns)

    def _number(self, name: str) -> int | None:
        asked = self.options.get(name, "")
        if asked and not (asked.isdigit() and int(asked)):
            raise ConnectorError(f'format("{FORMAT}"): {name} is a number above zero, not {asked!r}')
        return int(asked) if asked else None


class _CommittedReader(DataSourceReader):
    """Reads what is committed when the query is planned; it travels to the executors."""

    def __init__(self, rows: CommittedRows, schema: StructType) -> None:
        self._rows, self._schema = rows, schema
        self._conditions: list[Condition] = []

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 - Spark's name
        """Take over comparisons of whole columns with a constant; Spark asks again."""
        kinds = {each.name: each.dataType.typeName() for each in self._schema.fields}
        for one in filters:
            column: tuple[str, ...] = getattr(one, "attribute", ())
            if is_comparison(one) and len(column) == 1 and kinds.get(column[0]) not in (None, "float", "double"):
                self._conditions.append((type(one), column[0], one.value))  # type: ignore[attr-defined]
        return filters

    def partitions(self) -> Sequence[InputPartition]:
        """Return a partition for each committed file."""
        return self._rows.parts()

    def read(self, partition: Any) -> Iterator[pa.RecordBatch]:
        """Read one partition in an executor, as batches."""
        if not isinstance(partition, Part):  # Spark asks so when there are no partitions
            return iter(())
        return self._rows.read(partition, self._schema, self._conditions)


class _CommittedStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads what is committed between two offsets."""

    def __init__(self, rows: CommittedRows, schema: StructType, most_files: int | None) -> None:
        self._rows, self._schema, self._most = rows, schema, most_files
        self._end: Offset | None = None
        """What a query with `availableNow` reads, and nothing after it."""

    def initialOffset(self) -> Offset:  # noqa: N802 - Spark's name
        """Return the offset before the first checkpoint."""
        return NOTHING

    def getDefaultReadLimit(self) -> Any:  # noqa: N802 - Spark's name
        """As many files as the option says."""
        return ReadAllAvailable() if self._most is None else ReadMaxFiles(self._most)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """Note what is committed now, which the query reads in as many batches as its limit asks for. Of a source that
        cannot, Spark takes a single batch: the one that was planned before the query was stopped."""
        self._end = self._rows.newest()

    def latestOffset(self, start: Offset | None = None, limit: Any = None) -> Offset:  # noqa: N802 - Spark's name
        """As far as committed files, and the limit of the trigger, go."""
        return self._rows.advance(start or NOTHING, self._end, getattr(limit, "max_files", None))

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        """The files between two offsets: the same ones whenever Spark asks."""
        return self._rows.between(start, end)

    def read(self, partition: Any) -> Iterator[pa.RecordBatch]:
        """Read one partition in an executor, as batches."""
        if not isinstance(partition, Part):  # Spark asks so when there are no partitions
            return iter(())
        return self._rows.read(partition, self._schema, ())
