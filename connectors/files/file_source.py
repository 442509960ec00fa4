"""Files as a source, in any format that can be read: those that are there, or those that appear as well.

Decides on the driver which columns the rows have, said or as a first file has them, and that the input is there. A file
is a split; one task finds files (see `file_discovery`) and hands them to readers in their order, so that faster readers
read more of them. Mirrors Flink's FileSource.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from typing import Literal

import pyarrow as pa
from pyarrow import fs

from snapline.connectors.files.file_discovery import FileEnumerator, FoundFile, find_files
from snapline.connectors.files.file_reader import FileReader
from snapline.connectors.files.filesystems import PathLike, absolute, advice, first_line, locate
from snapline.connectors.files.listing import glob_base
from snapline.connectors.formats.file_format import (
    INFERRED,
    FileFormat,
    ParquetFormat,
    file_format_of,
    readable_format_of,
)
from snapline.connectors.formats.row_format import RowFormat, require_names_differ
from snapline.connectors.whole_numbers import require_positive
from snapline.dataflow.api.bad_rows import OnError, why_wrong
from snapline.dataflow.api.connector_api import Source, SourceContextInfo, SourceReader, SourceSplit, SplitEnumerator
from snapline.dataflow.columnar.arrow_columns import with_null_parts
from snapline.dataflow.errors import ConnectorError

BATCH_ROWS = 16_384
DISCOVERY_INTERVAL_MS = 10_000
REMEMBER = 10_000
ORDERS = ("modified", "path")
log = logging.getLogger(__name__)


class FileSource(Source):
    r"""Reads files on a local disk, in an object store or in HDFS; with `follow=True` also those that appear later.

    >>> with open(f"{tmp}/orders.csv", "w") as file:
    ...     _ = file.write("order,cents\n1,250\n2,99\n")
    >>> source = sl_connectors.FileSource(f"{tmp}/orders*.csv", "csv", follow=True, order="path")
    >>> source.schema().names, source.bounded, source.format.suffix
    (['order', 'cents'], False, '.csv')
    """

    def __init__(
        self,
        paths: PathLike | Sequence[PathLike],
        format: FileFormat | RowFormat | str = "parquet",  # noqa: A002 - the word that people look for
        *,
        follow: bool = False,
        order: Literal["modified", "path"] = "modified",
        schema: pa.Schema | None = None,
        columns: Sequence[str] | None = None,
        on_error: OnError = "fail",
        discovery_interval_ms: int = DISCOVERY_INTERVAL_MS,
        remember: int = REMEMBER,
        ignore_missing: bool = False,
        batch_rows: int = BATCH_ROWS,
        storage_options: Mapping[str, str] | None = None,
    ) -> None:
        """`paths`: a file, a directory, a glob (`*`, `?`, `[...]`, `**`) or several of them; URLs too. `format`:
        `parquet`, `orc`, `avro`, `json` (an object a line), `csv` (with a header), or a format that `FileSink` and
        Kafka take as well. `follow`: look for new files every `discovery_interval_ms`, for ever. `order`: files are
        handed out by the time of their last change, then path, or by path alone. `schema`: columns and types; without
        it they are those of the first file. `columns`: only these, in this order. `on_error`: a line that is no row
        fails the job, is dropped and counted, or goes to `stream.bad_rows()` (`side_output`). `remember`: a new file
        may appear behind so many files that come after it in the order. `ignore_missing`: a file that is gone before it
        is read is left out."""
        given = [paths] if isinstance(paths, (str, os.PathLike)) else list(paths)
        if not given:
            raise ConnectorError("FileSource: no path given")
        require_positive(
            "FileSource", batch_rows=batch_rows, remember=remember, discovery_interval_ms=discovery_interval_ms
        )
        if order not in ORDERS:
            raise ConnectorError(f"FileSource: order is one of {', '.join(ORDERS)}, not {order!r}")
        if why := why_wrong(on_error):
            raise ConnectorError(f"FileSource: {why}")
        if schema is not None and (isinstance(format, RowFormat) or format == "avro"):
            raise ConnectorError("FileSource: the format has a schema; leave out schema=, or give columns=[...]")
        if columns is not None and len(set(columns)) != len(columns):
            raise ConnectorError(f"FileSource: a column is asked for twice in {list(columns)}")
        self.paths: tuple[str, ...] = tuple(absolute(path) for path in given)
        self._format = readable_format_of(format, schema)
        self.follow = follow
        self.order = order
        self.on_error = on_error
        self.discovery_interval_ms = discovery_interval_ms
        self.remember = remember
        self.ignore_missing = ignore_missing
        self.batch_rows = batch_rows
        self.storage_options: dict[str, str] = dict(storage_options or {})
        self._columns: tuple[str, ...] | None = tuple(columns) if columns is not None else None
        self._schema: pa.Schema | None = None
        if schema is None and isinstance(self._format, FileFormat):
            schema = self._format.schema
        if schema is not None:
            self._schema = self._selected(schema.remove_metadata(), "the schema")

    @property
    def bounded(self) -> bool:
        return not self.follow

    @property
    def sets_bad_rows_aside(self) -> bool:
        return self.on_error == "side_output"

    @property
    def format(self) -> FileFormat:
        """The format of the files, as far as a file had to say it after `schema` or `enumerate_splits`."""
        if isinstance(self._format, str):
            raise ConnectorError(f"FileSource: the columns of format {self._format!r} are not known yet; ask schema()")
        return self._format

    def schema(self) -> pa.Schema:
        """The schema of the batches: as it was given, or as the first file has it, which is read then."""
        if self._schema is None:
            self._infer(self._files_there())
        return self._schema

    def enumerate_splits(self) -> Sequence[SourceSplit]:
        """None: files are found in the cluster. Raises ConnectorError when there is no file, and none can appear."""
        found = self._files_there()
        if not found and not self.follow:
            raise ConnectorError(
                f"no file matches {', '.join(self.paths)}; with follow=True the job would wait for one"
            )
        if self._schema is None:
            self._infer(found)
        return ()

    def create_enumerator(self, splits: Sequence[SourceSplit]) -> SplitEnumerator:
        return FileEnumerator(self)

    @property
    def splits_at_once(self) -> int:
        return 1

    def create_reader(self, context: SourceContextInfo) -> SourceReader:
        return FileReader(self, context)

    def _files_there(self) -> list[FoundFile]:
        """The files that are there, where at least their directory has to be."""
        for path in self.paths:
            location = locate(path, self.storage_options)
            base = glob_base(location.path)
            directory = location.path if base is None else base or "/"
            if location.is_local and all(
                each.type == fs.FileType.NotFound
                for each in location.filesystem.get_file_info([location.path, directory])
            ):
                raise ConnectorError(
                    f"there is no file or directory {directory}; it must be there on every machine of the cluster, before "
                    "the job starts"
                )
        try:
            return find_files(self)
        except OSError as error:
            raise ConnectorError(
                f"cannot read {', '.join(self.paths)}: {first_line(error)}; {advice(error)}"
            ) from error

    def _infer(self, found: Sequence[FoundFile]) -> None:
        """Take the columns from the first file that is not empty."""
        first = next((file for file in found if file.size), None)
        if first is None:
            raise ConnectorError(
                f"no file matches {', '.join(self.paths)} that could say the columns; give schema=, or a format with a schema"
            )
        location = locate(first.url, self.storage_options)
        try:
            with location.filesystem.open_input_file(location.path) as stream:
                if isinstance(self._format, str):
                    rows = INFERRED[self._format](stream)
                    made = file_format_of(rows, None)
                    schema = made.schema_of(stream)
                else:
                    made, schema = self._format, self._format.schema_of(stream)
        except (pa.ArrowException, OSError, ValueError) as error:
            raise ConnectorError(
                f"FileSource: {first.url} does not say the columns: {first_line(error)}; give schema=, or replace the file"
            ) from error
        self._format = made
        self._schema = self._selected(schema, first.url)
        columns = ", ".join(f"{field.name} {field.type}" for field in self._schema)
        log.info("FileSource reads %s with the columns of %s: %s", ", ".join(self.paths), first.url, columns)

    def _selected(self, schema: pa.Schema, where: str) -> pa.Schema:
        require_names_differ(schema, schema.names if self._columns is None else self._columns, f"FileSource: {where}")
        if isinstance(self._format, ParquetFormat):  # of whose files some may say that parts of records are never null
            schema = pa.schema([field.with_type(with_null_parts(field.type)) for field in schema])
        if self._columns is None:
            return pa.schema([field.with_nullable(True) for field in schema])
        for name in self._columns:
            if name not in schema.names:
                raise ConnectorError(f"FileSource: no column {name!r} in {where}; it has {', '.join(schema.names)}")
        return pa.schema([schema.field(name).with_nullable(True) for name in self._columns])
