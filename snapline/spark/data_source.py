"""What a job has committed as a Spark DataFrame: `spark.read.format("snapline")` and `spark.readStream`.

Decides partitions (a committed file each; of a stream, those between two offsets), which filters are used to skip row
groups (comparisons of columns that have no NaN; Spark asks every row again), and what a trigger takes. A stream's
offset is exact on both sides: what it is made of is `snapline.committed_files`. The directory is listed twice, and the
second list is cut at the first: no list sees a file and misses an older one of its subtask then.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq
from pyarrow import fs
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    InputPartition,
    LessThan,
    LessThanOrEqual,
)
from pyspark.sql.types import StructType

from snapline.committed_files import NOTHING, CommittedFile, Offset, advance, between, committed, missing
from snapline.connectors.files.filesystems import Location, absolute, advice, first_line, locate
from snapline.dataflow.errors import ConnectorError
from snapline.spark.frame_types import arrow_schema_for_spark, conform_to_spark, spark_schema_of

try:
    from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxFiles, SupportsTriggerAvailableNow
except ImportError:  # before PySpark 4.2, which neither limits a trigger nor tells a source when to end
    SupportsTriggerAvailableNow = object  # type: ignore[assignment,misc]

FORMAT = "snapline"
PUSHDOWN = "spark.sql.python.filterPushdown.enabled"
_BATCH_ROWS = 65_536
_COMPARISONS = {
    EqualTo: pc.equal,
    GreaterThan: pc.greater,
    GreaterThanOrEqual: pc.greater_equal,
    LessThan: pc.less,
    LessThanOrEqual: pc.less_equal,
}


@dataclass(frozen=True)
class _Directory:
    """The directory of a sink, and what of it is wanted."""

    path: str
    storage_options: Mapping[str, str] = field(default_factory=dict)
    uid: str = ""
    columns: tuple[str, ...] = ()

    @property
    def location(self) -> Location:
        """Return where it lies; it is looked up in every process."""
        return locate(self.path, self.storage_options)

    def files(self) -> list[CommittedFile]:
        """What is committed now; complete for each subtask up to its last file."""
        seen = advance(NOTHING, self._list())
        return [file for file in self._list() if not file.is_after(seen)]

    def _list(self) -> list[CommittedFile]:
        location = self.location
        try:
            infos = location.filesystem.get_file_info(fs.FileSelector(location.path))
        except FileNotFoundError:
            raise ConnectorError(
                f'format("{FORMAT}"): there is no directory {self.path}; the sink of a job makes it, and every machine has to '
                "reach it"
            ) from None
        except OSError as error:
            raise ConnectorError(
                f'format("{FORMAT}"): cannot read {self.path}: {first_line(error)}; {advice(error)}'
            ) from None
        found = committed(info.base_name for info in infos if info.type == fs.FileType.File)
        return [file for file in found if not self.uid or file.uid == self.uid]

    def schema(self) -> pa.Schema:
        """The schema of the first file. Raises ConnectorError while there is none."""
        files = self.files()
        if not files:
            raise ConnectorError(
                f'format("{FORMAT}"): nothing is committed in {self.path} yet, so its columns are not known; give .schema(...)'
            )
        location = self.location
        schema = pq.read_schema(f"{location.path}/{files[0].name}", filesystem=location.filesystem)
        unknown = [name for name in self.columns if name not in schema.names]
        if unknown:
            raise ConnectorError(
                f'format("{FORMAT}"): there is no column {unknown[0]!r} in {self.path}; columns: {", ".join(schema.names)}'
            )
        return pa.schema([schema.field(name) for name in self.columns or schema.names])

    def read(self, name: str, schema: StructType, condition: ds.Expression | None) -> Iterator[pa.RecordBatch]:
        """The rows of one file, as Spark wants them."""
        location, target = self.location, arrow_schema_for_spark(schema)
        try:
            data = ds.dataset(f"{location.path}/{name}", filesystem=location.filesystem, format="parquet")
            lacking = [field.name for field in target if field.name not in data.schema.names]
            if lacking:
                raise ConnectorError(f'format("{FORMAT}"): {self.path}/{name} has no column {lacking[0]!r}')
            for batch in data.to_batches(columns=target.names, filter=condition, batch_size=_BATCH_ROWS):
                if batch.num_rows:
                    yield conform_to_spark(batch, target)
        except (OSError, pa.ArrowException) as error:
            raise ConnectorError(f'format("{FORMAT}"): cannot read {self.path}/{name}: {first_line(error)}') from error


class CommittedRowsDataSource(DataSource):
    """Spark's data source of the format `snapline`: the directory of a sink that commits Parquet files."""

    @classmethod
    def name(cls) -> str:
        """Return the name that `format` takes."""
        return FORMAT

    def schema(self) -> StructType:
        """From the first file that is committed."""
        return spark_schema_of(self._directory().schema(), f'format("{FORMAT}")')

    def reader(self, schema: StructType) -> DataSourceReader:
        """Create the reader of one query."""
        return _CommittedReader(self._directory(), schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        """Create the reader of one streaming query."""
        return _CommittedStreamReader(self._directory(), schema, self._number("maxFilesPerTrigger"))

    def _directory(self) -> _Directory:
        path = self.options.get("path")
        if not path:
            raise ConnectorError(f'format("{FORMAT}") needs the directory of a sink: .load("/path/of/the/sink")')
        options = {key: value for key, value in self.options.items() if key.startswith("s3.")}
        columns = tuple(name.strip() for name in self.options.get("columns", "").split(",") if name.strip())
        return _Directory(absolute(path), options, self.options.get("uid", ""), columns)

    def _number(self, name: str) -> int | None:
        asked = self.options.get(name, "")
        if asked and not (asked.isdigit() and int(asked)):
            raise ConnectorError(f'format("{FORMAT}"): {name} is a number above zero, not {asked!r}')
        return int(asked) if asked else None


@dataclass(frozen=True)
class _File(InputPartition):
    name: str


class _CommittedReader(DataSourceReader):
    """Reads what is committed when the query is planned; it travels to the executors."""

    def __init__(self, directory: _Directory, schema: StructType) -> None:
        self._directory, self._schema = directory, schema
        self._conditions: list[tuple[type[Filter], str, Any]] = []

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 - Spark's name
        """Take over comparisons of whole columns with a constant; Spark asks again."""
        kinds = {each.name: each.dataType.typeName() for each in self._schema.fields}
        for one in filters:
            usable = type(one) in _COMPARISONS or isinstance(one, In)
            if usable and len(one.attribute) == 1 and kinds.get(one.attribute[0]) not in (None, "float", "double"):  # type: ignore[attr-defined]
                self._conditions.append((type(one), one.attribute[0], one.value))  # type: ignore[attr-defined]
        return filters

    def partitions(self) -> Sequence[InputPartition]:
        """Return a partition for each committed file."""
        return [_File(file.name) for file in self._directory.files()]

    def read(self, partition: Any) -> Iterator[pa.RecordBatch]:
        """Read one partition in an executor, as batches."""
        if not isinstance(partition, _File):  # Spark asks so when there are no partitions
            return iter(())
        return self._directory.read(partition.name, self._schema, self._condition())

    def _condition(self) -> ds.Expression | None:
        whole: ds.Expression | None = None
        for kind, column, value in self._conditions:
            if kind is In:
                one = ds.field(column).isin([each for each in value if each is not None])
            else:
                one = _COMPARISONS[kind](ds.field(column), ds.scalar(value))
            whole = one if whole is None else whole & one
        return whole


class _CommittedStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads what is committed between two offsets."""

    def __init__(self, directory: _Directory, schema: StructType, most_files: int | None) -> None:
        self._directory, self._schema, self._most = directory, schema, most_files
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
        self._end = advance(NOTHING, self._directory.files())

    def latestOffset(self, start: Offset | None = None, limit: Any = None) -> Offset:  # noqa: N802 - Spark's name
        """As far as committed files, and the limit of the trigger, go."""
        files = self._directory.files()
        if self._end is not None:
            files = [file for file in files if not file.is_after(self._end)]
        return advance(start or NOTHING, files, getattr(limit, "max_files", None))

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        """The files between two offsets: the same ones whenever Spark asks."""
        files = self._directory.files()
        gone = missing(files, end, start)
        if gone:
            raise ConnectorError(
                f'format("{FORMAT}"): files of {gone[0]} that the query has to read are gone from {self._directory.path}; put '
                "them back, or start the query with another checkpointLocation"
            )
        return [_File(file.name) for file in between(files, start, end)]

    def read(self, partition: Any) -> Iterator[pa.RecordBatch]:
        """Read one partition in an executor, as batches."""
        if not isinstance(partition, _File):  # Spark asks so when there are no partitions
            return iter(())
        return self._directory.read(partition.name, self._schema, None)
