"""Parquet files as a source: one split per row group, in the order of files and row groups, or that of event time.

Decides which files a path, directory or glob means, that their columns agree, and where a reader stands: the position
is the number of rows of the row group that were emitted, so that a restore at any parallelism goes on with the next
row. Files must not change while a job reads them; that is checked as far as the footer shows. It does not know Hive
partitions (their columns are not in the files) and refuses them. Mirrors Flink's FileSource with a bulk format.
"""

from __future__ import annotations

import difflib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs

from snapline.connectors.builtin.rate_limit import RateLimiter, require_rate
from snapline.connectors.connector_metrics import BYTES_READ, WAITING_SPLITS
from snapline.connectors.files.filesystems import Location, PathLike, absolute, advice, first_line, locate
from snapline.connectors.files.listing import files_below, files_matching, glob_base
from snapline.connectors.formats.file_format import written_type
from snapline.connectors.formats.file_reading import int96_unit_of
from snapline.connectors.formats.row_format import require_names_differ
from snapline.connectors.parquet.footer_check import require_sound
from snapline.connectors.whole_numbers import require_positive
from snapline.dataflow.api.connector_api import (
    InputStatus,
    Polled,
    Source,
    SourceContextInfo,
    SourceReader,
    SourceSplit,
)
from snapline.dataflow.columnar.arrow_columns import narrow_type
from snapline.dataflow.errors import ConnectorError

BATCH_ROWS = 16_384
SUFFIXES = (".parquet", ".parq", ".pq")
FOOTER_THREADS = 8
EMIT_INTERVAL_MS = 20


class ParquetSource(Source):
    """Reads Parquet files on a local disk, in an object store or in HDFS.

    >>> import pyarrow.parquet as pq
    >>> pq.write_table(pa.table({"n": [1, 2, 3], "word": ["a", "b", "c"]}), f"{tmp}/words.parquet")
    >>> source = sl.ParquetSource(f"{tmp}/*.parquet", columns=["word"], rows_per_second=10)
    >>> source.schema().names, len(source.enumerate_splits())
    (['word'], 1)
    """

    def __init__(
        self,
        paths: PathLike | Sequence[PathLike],
        *,
        columns: Sequence[str] | None = None,
        batch_rows: int = BATCH_ROWS,
        rows_per_second: float | None = None,
        storage_options: Mapping[str, str] | None = None,
    ) -> None:
        """`paths`: a file, a directory, a glob (`*`, `?`, `[...]`, `**`) or several of them; URLs too. `columns`: only
        these, in this order. `rows_per_second` is for all subtasks together. `storage_options`: `s3.endpoint` and so
        on, where the environment does not say it."""
        given = [paths] if isinstance(paths, (str, os.PathLike)) else list(paths)
        if not given:
            raise ConnectorError("ParquetSource: no path given")
        require_positive("ParquetSource", batch_rows=batch_rows)
        require_rate("ParquetSource", rows_per_second)
        if columns is not None and len(set(columns)) != len(columns):
            raise ConnectorError(f"ParquetSource: a column is asked for twice in {list(columns)}")
        self.paths: tuple[str, ...] = tuple(absolute(path) for path in given)
        self.columns: tuple[str, ...] | None = tuple(columns) if columns is not None else None
        self.batch_rows = batch_rows
        self.rows_per_second = rows_per_second
        self.storage_options: dict[str, str] = dict(storage_options or {})
        self._schema: pa.Schema | None = None

    def schema(self) -> pa.Schema:
        """The schema of the batches, as the first file's footer says it. Reads the footers when `enumerate_splits` has
        not yet."""
        if self._schema is None:
            self.enumerate_splits()
        return self._schema

    def enumerate_splits(self) -> Sequence[SourceSplit]:
        files = self._files()
        with ThreadPoolExecutor(
            max_workers=min(FOOTER_THREADS, len(files)), thread_name_prefix="parquet-footer"
        ) as pool:
            schemas, footers = zip(*pool.map(_read_footer, files), strict=True)
        first = schemas[0]
        for file, schema in zip(files, schemas, strict=True):
            _require_same_columns(files[0].url, first, file.url, schema, self.columns)
        self._schema = _selected(first, self.columns, files[0].url)
        require_sound([file.url for file in files], lambda number: _row_groups(footers[number], self.columns))
        groups = [
            (file.url, number, group)
            for file, footer in zip(files, footers, strict=True)
            for number, group in enumerate(_readable_row_groups(file.url, footer, self.columns))
            if group.rows
        ]
        return [
            SourceSplit(
                f"{url}#{number}",
                {
                    "path": url,
                    "row_group": number,
                    "rows": group.rows,
                    "bytes": group.compressed_bytes,
                    "index": index,
                    "of": len(groups),
                },
                least_times_ms=group.least_times_ms,
            )
            for index, (url, number, group) in enumerate(groups)
        ]

    def create_reader(self, context: SourceContextInfo) -> SourceReader:
        return ParquetReader(self, context, self._schema)

    def _files(self) -> list[Location]:
        """All files that the paths mean, each once, in order."""
        found: dict[str, Location] = {}
        for path in self.paths:
            location = locate(path, self.storage_options)
            try:
                for file in _expand(location):
                    found.setdefault(file.url, file)
            except OSError as error:
                raise ConnectorError(f"cannot read {path}: {first_line(error)}; {advice(error)}") from error
        return list(found.values())


class ParquetReader(SourceReader):
    """Reads the row groups of one subtask one after the other, in bounded memory."""

    def __init__(self, source: ParquetSource, context: SourceContextInfo, schema: pa.Schema | None = None) -> None:
        self._source = source
        self._schema = schema
        self._parallelism = context.parallelism
        self._bytes_read = context.metrics.counter(BYTES_READ)
        self._splits: list[SourceSplit] = []
        self._emitted: dict[str, int] = {}
        self._finished: set[str] = set()
        self._waiting_splits = context.metrics.gauge(WAITING_SPLITS)
        self._current = 0
        self._batches: Iterator[pa.RecordBatch] | None = None
        self._rest: pa.RecordBatch | None = None
        self._file: tuple[str, pq.ParquetFile] | None = None
        self._limiter: RateLimiter | None = None

    def add_splits(self, splits: Sequence[SourceSplit]) -> None:
        self._splits.extend(splits)
        for split in splits:
            self._emitted[split.split_id] = int(split.position.get("rows", 0))
            if split.finished:
                self._finished.add(split.split_id)
        self._note_waiting()
        rate = self._source.rows_per_second
        if rate is not None and self._splits and self._limiter is None:
            readers = min(self._parallelism, int(self._splits[0].description["of"]))
            self._limiter = RateLimiter(rate / readers, EMIT_INTERVAL_MS)

    def poll_next(self, now_ms: int) -> Polled:
        while self._current < len(self._splits) and self._splits[self._current].split_id in self._finished:
            self._current += 1
        if self._current == len(self._splits):
            return Polled(InputStatus.END_OF_INPUT)
        split = self._splits[self._current]
        if self._rest is None:
            self._rest = self._next_batch(split)
        available = self._rest.num_rows
        granted = available
        if self._limiter is not None:
            granted = self._limiter.permitted(now_ms, available)
            if not granted:
                return Polled(InputStatus.NOTHING_AVAILABLE, wake_at_ms=self._limiter.wake_at_ms(now_ms, available))
        batch = self._rest if granted == available else self._rest.slice(0, granted)
        self._rest = None if granted == available else self._rest.slice(granted)
        self._emitted[split.split_id] += granted
        finished: tuple[str, ...] = ()
        if self._emitted[split.split_id] >= split.description["rows"]:
            finished = (split.split_id,)
            self._finished.add(split.split_id)
            self._batches = None
            self._note_waiting()
        return Polled(InputStatus.MORE_AVAILABLE, batch, split_id=split.split_id, finished_splits=finished)

    def _note_waiting(self) -> None:
        self._waiting_splits.set(max(0, len(self._splits) - len(self._finished) - 1))

    def snapshot_splits(self, checkpoint_id: int) -> Sequence[SourceSplit]:
        return [
            SourceSplit(
                split.split_id,
                split.description,
                {"rows": self._emitted[split.split_id]},
                split.split_id in self._finished,
            )
            for split in self._splits
        ]

    def close(self) -> None:
        self._batches = self._rest = None
        file, self._file = self._file, None
        if file is not None:
            file[1].close()

    def _next_batch(self, split: SourceSplit) -> pa.RecordBatch:
        """The next rows of the split that were not emitted; never empty."""
        try:
            skip = 0
            if self._batches is None:
                self._batches = self._open(split)
                skip = self._emitted[split.split_id]
            for batch in self._batches:
                if batch.num_rows <= skip:
                    skip -= batch.num_rows
                    continue
                rows = batch.slice(skip).replace_schema_metadata(None)
                return self._in_one_type(rows, split.description["path"])
        except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
            raise _unreadable(split.description["path"], error) from error
        raise ConnectorError(_changed(split))

    def _in_one_type(self, batch: pa.RecordBatch, url: str) -> pa.RecordBatch:
        """The chosen columns, with offsets as wide as those of the first file, where the files differ in that."""
        rows = batch if self._source.columns is None else batch.select(list(self._source.columns))
        try:
            return rows if self._schema is None or rows.schema.equals(self._schema) else rows.cast(self._schema)
        except pa.ArrowInvalid as error:  # a time of Spark
            raise ConnectorError(f"{url}: {first_line(error)}; a FileSource with schema= has such times") from error

    def _open(self, split: SourceSplit) -> Iterator[pa.RecordBatch]:
        url, row_group = split.description["path"], int(split.description["row_group"])
        if self._file is None or self._file[0] != url:
            self.close()
            location = locate(url, self._source.storage_options)
            file = _footer(location)
            if unit := int96_unit_of(file.metadata):
                file.close()
                file = _footer(location, unit)
            self._file = (url, file)
        file = self._file[1]
        metadata = file.metadata
        if row_group >= metadata.num_row_groups or metadata.row_group(row_group).num_rows != split.description["rows"]:
            raise ConnectorError(_changed(split))
        columns = None if self._source.columns is None else list(self._source.columns)
        self._bytes_read.inc(split.description.get("bytes", 0))  # a snapshot of an older version does not know it
        batches: Iterator[pa.RecordBatch] = file.iter_batches(
            batch_size=self._source.batch_rows, row_groups=[row_group], columns=columns, use_threads=False
        )
        return batches


def _footer(file: Location, int96_unit: str | None = None) -> pq.ParquetFile:
    try:
        return pq.ParquetFile(
            file.path,
            filesystem=file.filesystem,
            pre_buffer=not file.is_local,
            coerce_int96_timestamp_unit=int96_unit,
        )
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise _unreadable(file.url, error) from error


def _read_footer(file: Location) -> tuple[pa.Schema, pq.FileMetaData]:
    """What a file says of its columns and row groups. It is closed again: there may be more than a process may have
    open."""
    with _footer(file) as opened:
        return opened.schema_arrow.remove_metadata(), opened.metadata


class _RowGroup(NamedTuple):
    """What a footer says of one row group."""

    rows: int
    compressed_bytes: int
    """The bytes in the file of the columns that are read."""
    least_times_ms: dict[str, int]
    """The least value of each column that can be event time: timestamps, and integers of 64 bits as milliseconds."""


def _row_groups(metadata: pq.FileMetaData, columns: Sequence[str] | None) -> list[_RowGroup]:
    """All row groups of a file. Ends the process for a footer that contradicts itself (see `require_sound`)."""
    schema, found = metadata.schema, []
    paths = [schema.column(number).path for number in range(metadata.num_columns)]
    wanted = [number for number, path in enumerate(paths) if columns is None or path.partition(".")[0] in columns]
    times = {number: per_ms for number in wanted if (per_ms := _units_per_ms(schema.column(number))) is not None}
    for each in range(metadata.num_row_groups):
        group, least_times_ms, size = metadata.row_group(each), {}, 0
        for number in wanted:
            chunk = group.column(number)
            if min(group.num_rows, chunk.total_compressed_size) < 0:
                raise ValueError(f"of row group {each}, its footer says a number of rows or bytes that is negative")
            size += chunk.total_compressed_size
            statistics = chunk.statistics if number in times else None
            if statistics is not None and statistics.has_min_max:
                least_times_ms[paths[number]] = int(statistics.min_raw) // times[number]
        found.append(_RowGroup(group.num_rows, size, least_times_ms))
    return found


def _readable_row_groups(url: str, footer: pq.FileMetaData, columns: Sequence[str] | None) -> list[_RowGroup]:
    """All row groups of a file whose footer is sound, which can still have less than its schema says."""
    try:
        return _row_groups(footer, columns)
    except (pa.ArrowException, IndexError, OSError, ValueError) as error:
        raise _unreadable(url, error) from error


def _units_per_ms(column: pq.ColumnSchema) -> int | None:
    """How many units of the stored integers make a millisecond; None for a column that cannot be event time."""
    if column.physical_type != "INT64" or column.max_repetition_level:
        return None
    logical = json.loads(column.logical_type.to_json())
    if logical["Type"] == "Timestamp":
        return {"milliseconds": 1, "microseconds": 1_000, "nanoseconds": 1_000_000}.get(logical["timeUnit"])
    signed = logical["Type"] == "None" or (logical["Type"] == "Int" and logical["isSigned"])
    return 1 if signed else None


def _unreadable(url: str, error: BaseException) -> ConnectorError:
    if isinstance(error, FileNotFoundError):
        return ConnectorError(f"there is no file {url}; it must be there on every machine of the cluster")
    if isinstance(error, OSError) and not isinstance(error, pa.ArrowException):
        text = first_line(error)
        if "arquet" not in text and "deserialize" not in text.lower():
            return ConnectorError(f"cannot read {url}: {text}; {advice(error)}")
    return ConnectorError(f"{url} is not a readable Parquet file: {first_line(error)}; replace it, or leave it out")


def _changed(split: SourceSplit) -> str:
    description = split.description
    return (
        f"{description['path']} has changed since the job was submitted (row group {description['row_group']} no longer has "
        f"{description['rows']} rows); files must stay as they are while a job reads them, or restores from their positions"
    )


# --- which files a path means -----------------------------------------------------------------------------------------


def _expand(location: Location) -> Sequence[Location]:
    path, filesystem = location.path, location.filesystem
    info = filesystem.get_file_info(path)
    if info.type == fs.FileType.File:
        return [location]
    if info.type == fs.FileType.Directory:
        files = [info.path for info in files_below(filesystem, path)]
        partition = next((part for file in files for part in file[len(path) :].split("/")[:-1] if "=" in part), None)
        if partition is not None:
            raise ConnectorError(
                f"{location.url} has partition directories ({partition}), whose columns are not in the files; to read the "
                f"files without them, give the glob {location.url}/**/*.parquet"
            )
        parquet = [file for file in files if file.lower().endswith(SUFFIXES)]
        if not parquet:
            raise ConnectorError(f"there are no Parquet files in the directory {location.url}")
        return [location.at(file) for file in parquet]
    base = glob_base(path)
    if base is None:
        raise ConnectorError(
            f"there is no file or directory {location.url}; it must be there on every machine of the cluster"
        )
    if filesystem.get_file_info(base or "/").type != fs.FileType.Directory:
        raise ConnectorError(f"no file matches {location.url}: there is no directory {location.at(base).url}")
    matching = files_matching(filesystem, path)
    if not matching:
        raise ConnectorError(f"no file matches {location.url}")
    return [location.at(info.path) for info in matching]


# --- which columns ----------------------------------------------------------------------------------------------------


def _selected(schema: pa.Schema, columns: Sequence[str] | None, url: str) -> pa.Schema:
    """The columns that are read; each may be null, in another file or where rows without a value come to these."""
    for name in columns or ():
        if name not in schema.names:
            near = difflib.get_close_matches(name, schema.names, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else "."
            raise ConnectorError(f"ParquetSource: no column {name!r} in {url}{hint} It has: {', '.join(schema.names)}")
    wanted = schema.names if columns is None else columns
    require_names_differ(schema, wanted, f"ParquetSource: {url}")
    fields = (schema.field(name).with_nullable(True) for name in wanted)
    return pa.schema([field.with_type(written_type(field.type)) for field in fields])


def _comparable(data_type: pa.DataType) -> pa.DataType:
    """What is the same for types of the same values, whatever the width of offsets and of the numbers of categories."""
    return narrow_type(written_type(data_type))


def _require_same_columns(
    first_url: str, first: pa.Schema, url: str, schema: pa.Schema, columns: Sequence[str] | None
) -> None:
    if schema.equals(first):
        return
    for name in columns if columns is not None else [*first.names, *(n for n in schema.names if n not in first.names)]:
        mine, theirs = _type_of(schema, name), _type_of(first, name)
        if mine == theirs or (columns is not None and theirs == "missing"):
            continue
        if "missing" in (mine, theirs) or _comparable(schema.field(name).type) != _comparable(first.field(name).type):
            raise ConnectorError(
                f"the files differ: column {name!r} is {mine} in {url} and {theirs} in {first_url}; read them apart, or choose "
                "columns that they share"
            )
    if columns is None and schema.names != first.names:
        raise ConnectorError(
            f"the files differ: {url} has its columns in another order than {first_url}; say columns=[...]"
        )


def _type_of(schema: pa.Schema, name: str) -> str:
    return str(schema.field(name).type) if name in schema.names else "missing"
