"""A Spark DataFrame is written once, as the rows that a job reads: Parquet files with row groups of a good size.

Decides what counts: the files of those task attempts that Spark has committed, named in a manifest that is written
last, because Spark commits in another process than the caller's. What attempts that failed have left goes with the
directory. A data source of ours and not Spark's own Parquet, so that an object store needs nothing but pyarrow, and
times stay what they are.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark import TaskContext
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql.datasource import DataSource, DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from snapline.connectors.files.filesystems import locate
from snapline.connectors.files.output_files import failures, open_output
from snapline.dataflow.errors import ConnectorError
from snapline.dataflow.staged import STAGED_MANIFEST
from snapline.runtime.cores.machine import check
from snapline.spark.frame_types import arrow_schema_of_frame

FORMAT = "snapline_staging"
ROW_GROUP_ROWS = 131_072
ROW_GROUP_BYTES = 64 << 20
_ENCODING = {"use_dictionary": False, "compression": "lz4"}
"""Rows that are read once: dictionaries of columns with many values cost more time than they save, to write and to
read, and LZ4 finds what is the same as well."""
_PATH, _OPTIONS, _NAME, _MANIFEST = "path", "storage", "frame", "manifest"
_REFUSAL = re.compile(r"(?:ConnectorError|JobDefinitionError): (.+)")
"""What a task says, in the traceback that Spark brings."""


@dataclass(frozen=True)
class StagedFiles:
    """What was written of one frame."""

    files: tuple[str, ...]
    rows: int
    row_groups: tuple[tuple[str, tuple[int, ...]], ...]
    """How many rows each row group of a file has, with the name of the file."""


def stage_frame(
    frame: DataFrame,
    directory: str,
    storage_options: Mapping[str, str],
    what: str,
    *,
    manifest: str = STAGED_MANIFEST,
    is_registered: bool = False,
) -> StagedFiles:
    """Compute the frame and write its rows. `manifest`: the name of the file that says what was written, of which a
    directory that several frames are written into needs several. `is_registered`: the session knows the data source.
    Raises ConnectorError when they cannot be written, and what Spark raises when they cannot be computed."""
    if not is_registered:
        frame.sparkSession.dataSource.register(FrameStaging)
    writer = frame.write.format(FORMAT).mode("append").option(_PATH, directory).option(_NAME, what)
    writer = writer.option(_MANIFEST, manifest)
    try:
        writer.option(_OPTIONS, json.dumps(dict(storage_options))).save()
    except PySparkException as failure:
        refusal = _REFUSAL.search(str(failure))
        if refusal is None:
            raise
        raise ConnectorError(f"{what}: {refusal[1]}") from None
    location = locate(directory, storage_options)
    with (
        failures("read", directory),
        location.filesystem.open_input_stream(f"{location.path}/{manifest}") as file,
    ):
        written = json.loads(file.read())
    if manifest != STAGED_MANIFEST:
        location.filesystem.delete_file(f"{location.path}/{manifest}")
    groups = tuple((name, tuple(rows)) for name, rows in zip(written["files"], written["groups"], strict=True))
    return StagedFiles(
        tuple(f"{directory}/{name}" for name in written["files"]), sum(sum(rows) for _, rows in groups), groups
    )


@dataclass
class _StagedPart(WriterCommitMessage):
    name: str
    groups: tuple[int, ...]
    """Rows of each row group."""


class FrameStaging(DataSource):
    """Spark's data source that `stage_frame` writes rows with."""

    @classmethod
    def name(cls) -> str:
        """Return the name that `format` takes."""
        return FORMAT

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        """Create the writer of one DataFrame."""
        options = json.loads(self.options[_OPTIONS])
        columns = arrow_schema_of_frame(schema, self.options[_NAME])
        return _StagingWriter(self.options[_PATH], options, columns, self.options[_MANIFEST])


class _StagingWriter(DataSourceArrowWriter):
    """Writes partitions into files; it travels to the executors."""

    def __init__(self, directory: str, storage_options: Mapping[str, str], schema: pa.Schema, manifest: str) -> None:
        self._directory, self._options, self._schema = directory, dict(storage_options), schema
        self._manifest = manifest

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """In an executor: one attempt at one partition."""
        context = check(TaskContext.get(), "a partition is written outside of a Spark task")
        files, location = open_output(self._directory, self._options)
        name = f"part-{context.partitionId():05d}-{uuid.uuid4().hex}.parquet"
        path = f"{location.path}/{name}"
        in_progress = f"{path}.inprogress" if location.is_local else path
        groups: list[int] = []
        stream = files.open(in_progress)
        with failures("write", location.url), stream, pq.ParquetWriter(stream, self._schema, **_ENCODING) as writer:
            for group in _row_groups(iterator, self._schema):
                writer.write_table(group, row_group_size=group.num_rows)
                groups.append(group.num_rows)
        files.seal(in_progress, path)
        return _StagedPart(name, tuple(groups))

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Note on the driver which files count."""
        parts = sorted(
            (part for part in messages if isinstance(part, _StagedPart) and part.groups), key=lambda part: part.name
        )
        files, location = open_output(self._directory, self._options)
        written = {"files": [part.name for part in parts], "groups": [part.groups for part in parts]}
        path = f"{location.path}/{self._manifest}"
        with failures("write", location.url), files.open(path) as stream:
            stream.write(json.dumps(written).encode())


def _row_groups(batches: Iterator[pa.RecordBatch], schema: pa.Schema) -> Iterator[pa.Table]:
    """Batches of Spark's size are gathered, and times put into UTC."""
    gathered: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        columns = [
            column if column.type == field.type else column.cast(field.type)
            for column, field in zip(batch.columns, schema, strict=True)
        ]
        gathered.append(pa.RecordBatch.from_arrays(columns, schema=schema))
        rows, size = rows + batch.num_rows, size + batch.nbytes
        if rows >= ROW_GROUP_ROWS or size >= ROW_GROUP_BYTES:
            yield pa.Table.from_batches(gathered, schema)
            gathered, rows, size = [], 0, 0
    if gathered:
        yield pa.Table.from_batches(gathered, schema)
