"""Reads the data files of a table in one subtask, one after the other, in bounded memory.

Decides that a data file never changes, so that a position in it is a number of rows; that a column which a file was
written without is the value of its partition, or what the table says of it; and what it means when a file is gone.
Which column of a file is which column of the table, and where files lie, is said by the table's source. It does not
know versions.
"""

from __future__ import annotations

import logging
import re
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import fs

from snapline.connectors.files.filesystems import advice, first_line
from snapline.connectors.formats.file_reading import FileRows, parquet_rows
from snapline.dataflow.api.connector_api import InputStatus, Polled, SourceContextInfo, SourceReader, SourceSplit
from snapline.dataflow.errors import ConnectorError

if TYPE_CHECKING:
    from snapline.connectors.tables.table_source import TableSource

ZONE = r"(Z|[+-]\d\d:?\d\d)$"
ESCAPED = re.compile(r"(\\u00[0-9A-Fa-f]{2})*")
log = logging.getLogger(__name__)


class DataFileReader(SourceReader):
    """The reader of one subtask."""

    def __init__(self, files: TableSource, context: SourceContextInfo) -> None:
        self._files = files
        self._schema = files.schema()
        self._splits: deque[SourceSplit] = deque()
        self._position: Mapping[str, int] = {}
        """In the first of the splits, while it is open."""
        self._rows: Iterator[FileRows] | None = None
        self._names: Mapping[str, str] = {}
        self._stream: Any = None
        self._bytes = context.metrics.counter("bytes_read")
        self._read = context.metrics.counter("files_read")
        self._lag = context.metrics.gauge("lag_ms")

    def add_splits(self, splits: Sequence[SourceSplit]) -> None:
        self._splits.extend(splits)

    def snapshot_splits(self, checkpoint_id: int) -> Sequence[SourceSplit]:
        splits = list(self._splits)
        if self._rows is not None:
            splits[0] = SourceSplit(splits[0].split_id, splits[0].description, dict(self._position))
        return splits

    def poll_next(self, now_ms: int) -> Polled:
        if not self._splits:
            return Polled(InputStatus.NOTHING_AVAILABLE)
        split = self._splits[0]
        path = str(split.description["path"])
        try:
            if self._rows is None:
                self._open(split)
                if committed_ms := split.description.get("committed_ms"):
                    self._lag.set(max(0, now_ms - int(committed_ms)))
            found = next(self._rows, None) if self._rows is not None else None
        except (FileNotFoundError, OSError, pa.ArrowException) as error:
            if self._files.ignore_missing and not split.position and self._rows is None and self._is_gone(path):
                log.warning("%s: %s is gone before it was read; it is left out", self._files.described, path)
                return self._finish()
            raise self._unreadable(path, error) from error
        if found is None:
            self._read.inc()
            self._bytes.inc(int(split.description.get("bytes", 0)))
            return self._finish()
        batch = self._fitted(found.rows, split)
        self._position = found.position
        return Polled(InputStatus.MORE_AVAILABLE, batch, split_id=split.split_id)

    def close(self) -> None:
        self._rows = None
        stream, self._stream = self._stream, None
        if stream is not None:
            stream.close()

    def _open(self, split: SourceSplit) -> None:
        location = self._files.location_of(str(split.description["path"]))
        self._stream = location.filesystem.open_input_file(location.path)
        file = pq.read_schema(self._stream)
        self._names = self._files.names_in_file(file, split.description)
        self._stream.seek(0)
        self._position = split.position
        # A file without any of the columns still says how many rows there are.
        wanted = list(self._names.values()) or file.names[:1]
        if twice := next((name for name in wanted if file.names.count(name) > 1), None):
            raise ConnectorError(
                f"{self._files.described}: {split.description['path']} has two columns {twice!r}; write the file anew without one of them"
            )
        self._rows = parquet_rows(self._stream, split.position, self._files.batch_rows, wanted, int96_unit="us")

    def _finish(self) -> Polled:
        """Go on to the next file."""
        self.close()
        return Polled(InputStatus.MORE_AVAILABLE, finished_splits=(self._splits.popleft().split_id,))

    def _fitted(self, rows: pa.RecordBatch, split: SourceSplit) -> pa.RecordBatch:
        """The rows with the columns of the source. Raises ConnectorError for values that do not fit."""
        values: Mapping[str, str | None] = split.description.get("values", {})
        columns = []
        for field in self._schema:
            if field.name in self._names:
                column = rows.column(self._names[field.name])
                renamed = self._files.renamed_inside(column.type, self._names[field.name])
                column = column if renamed == column.type else column.view(renamed)
            elif (text := values.get(field.name)) is not None:
                column = _of_partition(text, field.type).take(pa.array([0] * rows.num_rows, pa.int32()))
            else:
                column = self._files.absent(field, rows.num_rows)
            try:
                columns.append(column if column.type == field.type else _cast(column, field.type))
            except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
                raise ConnectorError(
                    f"{self._files.described}: column {field.name!r} of {split.description['path']} is {column.type}, which does not fit "
                    f"{field.type}: {first_line(error)}; the table's columns have changed: start the job again, or leave the column out "
                    "of columns="
                ) from error
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)

    def _is_gone(self, path: str) -> bool:
        location = self._files.location_of(path)
        return bool(location.filesystem.get_file_info(location.path).type == fs.FileType.NotFound)

    def _unreadable(self, path: str, error: Exception) -> ConnectorError:
        what = self._files.described
        try:
            is_gone = self._is_gone(path)
        except (OSError, ValueError):
            is_gone = False
        if is_gone:
            return ConnectorError(
                f"{what}: {path} is gone before it was read; the table's clean-up (VACUUM, expired snapshots) removes what no new version "
                "needs: let it keep files for longer than the job may be behind. ignore_missing=True leaves out such files, and their rows"
            )
        if isinstance(error, OSError):
            return ConnectorError(f"{what}: cannot read {path}: {first_line(error)}; {advice(error)}")
        return ConnectorError(
            f"{what}: {path} cannot be read as Parquet: {first_line(error)}; restore the file, or start behind the version that has it"
        )


def _of_partition(text: str, kind: pa.DataType) -> pa.Array:
    """The value of a partition, as a text; of bytes, which a table may write as escaped signs, those."""
    if pa.types.is_binary(kind) and ESCAPED.fullmatch(text):
        return pa.array([bytes.fromhex(text.replace("\\u00", ""))], kind)
    return pa.array([text], pa.string())


def _cast(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """The column in another type; texts of moments may say no zone, and are in UTC then."""
    if pa.types.is_string(column.type) and pa.types.is_timestamp(kind) and kind.tz is not None:
        said = column.cast(pa.string())
        is_zoned = pc.match_substring_regex(said, ZONE)
        return pc.if_else(is_zoned, said, pc.binary_join_element_wise(said, "Z", "")).cast(kind)
    return column.cast(kind)
