"""Reads the files of one subtask, one after the other, in bounded memory.

Decides that a file which is not as it was when it was found fails the job, because positions in it mean nothing then;
only one that changed before its reading began, in a source that follows, is left to the discovery, which finds it again
with its new time. Also how a file's columns become those of the source, and what becomes of lines that are no rows. It
does not know formats.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyarrow import fs

from snapline.connectors.connector_metrics import BYTES_READ, LAG_MS
from snapline.connectors.files.filesystems import Location, advice, first_line, locate
from snapline.connectors.formats.casts import cast_unchanged
from snapline.connectors.formats.file_reading import BadLine, FileRows
from snapline.dataflow.api.bad_rows import BAD_ROWS_METRIC, BadRow
from snapline.dataflow.api.connector_api import InputStatus, Polled, SourceContextInfo, SourceReader, SourceSplit
from snapline.dataflow.errors import ConnectorError

if TYPE_CHECKING:
    from snapline.connectors.files.file_source import FileSource

NS_PER_SECOND = 1_000_000_000
NS_PER_MILLISECOND = 1_000_000
UNREADABLE = (pa.ArrowException, OSError, ValueError, TypeError, KeyError, IndexError, EOFError)
log = logging.getLogger(__name__)


class FileReader(SourceReader):
    """The reader of one subtask."""

    def __init__(self, source: FileSource, context: SourceContextInfo) -> None:
        self._source = source
        self._schema = source.schema()
        self._splits: deque[SourceSplit] = deque()
        self._position: Mapping[str, int] = {}
        """In the first of the splits, while it is open."""
        self._rows: Iterator[FileRows] | None = None
        self._stream: Any = None
        self._store: Location | None = None
        self._bytes_read = context.metrics.counter(BYTES_READ)
        self._lag = context.metrics.gauge(LAG_MS)
        self._bad_rows = context.metrics.counter(BAD_ROWS_METRIC) if source.on_error != "fail" else None

    def add_splits(self, splits: Sequence[SourceSplit]) -> None:
        self._splits.extend(splits)

    def snapshot_splits(self, checkpoint_id: int) -> Sequence[SourceSplit]:
        splits = list(self._splits)
        if self._rows is not None:
            splits[0] = SourceSplit(
                splits[0].split_id, splits[0].description, dict(self._position), False, splits[0].least_times_ms
            )
        return splits

    def poll_next(self, now_ms: int) -> Polled:
        if not self._splits:
            return Polled(InputStatus.NOTHING_AVAILABLE)
        split = self._splits[0]
        location = self._location(str(split.description["path"]))
        try:
            if self._rows is None:
                if not self._open(split, location):
                    return self._finish()
                self._lag.set(max(0, now_ms - int(split.description["modified_ns"]) // NS_PER_MILLISECOND))
            found = self._next(location)
            batch = None if found is None else self._fitted(found.rows, location.url)
        except ConnectorError:
            raise
        except UNREADABLE as error:
            raise self._unreadable(split, location, error) from error
        if found is None:
            self._require_same(split, location)
            self._bytes_read.inc(int(split.description["size"]))
            return self._finish()
        bad = self._on_bad(found.bad, location.url) if found.bad else ()
        self._position = found.position
        return Polled(InputStatus.MORE_AVAILABLE, batch, split_id=split.split_id, bad_rows=bad)

    def close(self) -> None:
        self._rows = None
        stream, self._stream = self._stream, None
        if stream is not None:
            stream.close()

    def _next(self, location: Location) -> FileRows | None:
        """The next rows of the file, if there are any. Raises what the format raises, with the name of the file."""
        try:
            return next(self._rows, None) if self._rows is not None else None
        except ConnectorError as error:
            raise ConnectorError(f"FileSource: {location.url}: {error}") from error

    # --- one file ---------------------------------------------------------------------------------------------------

    def _location(self, url: str) -> Location:
        """Where a file is; the connection to the store is kept."""
        known = None if self._store is None else self._store.of_url(url)
        self._store = known or locate(url, self._source.storage_options)
        return self._store

    def _open(self, split: SourceSplit, location: Location) -> bool:
        """Begin or go on to read; False when the file is to be left out."""
        begun = bool(split.position)
        why = self._difference(split, location)
        if why:
            modified_ns = int(location.filesystem.get_file_info(location.path).mtime_ns or 0)
            if why == GONE and self._source.ignore_missing and not begun:
                log.warning("FileSource: %s is gone before it was read; it is left out", location.url)
                return False
            is_newer = self._source.order == "modified" and modified_ns > int(split.description["modified_ns"])
            if why != GONE and self._source.follow and is_newer and not begun:
                log.info(
                    "FileSource: %s has changed before it was read; it is read when it is found again", location.url
                )
                return False
            raise self._changed(location, why)
        self._stream = location.filesystem.open_input_file(location.path)
        self._position = split.position
        self._rows = self._source.format.read(
            self._stream, split.position, batch_rows=self._source.batch_rows, columns=self._schema.names
        )
        return True

    def _finish(self) -> Polled:
        """Go on to the next file."""
        self.close()
        return Polled(InputStatus.MORE_AVAILABLE, finished_splits=(self._splits.popleft().split_id,))

    def _difference(self, split: SourceSplit, location: Location) -> str:
        """How the file is not as it was found; empty when it is."""
        info = location.filesystem.get_file_info(location.path)
        if info.type != fs.FileType.File:
            return GONE
        size, modified_ns = int(split.description["size"]), int(split.description["modified_ns"])
        if info.size != size:
            return f"it had {size} bytes when it was found, and has {info.size}"
        now_ns = int(info.mtime_ns or 0)
        # Object stores say fractions of a second in listings, and none for one object.
        if now_ns != modified_ns if location.is_local else now_ns // NS_PER_SECOND != modified_ns // NS_PER_SECOND:
            return "it was written again since it was found"
        return ""

    def _require_same(self, split: SourceSplit, location: Location) -> None:
        try:
            why = self._difference(split, location)
        except OSError as error:
            raise ConnectorError(f"cannot read {location.url}: {first_line(error)}; {advice(error)}") from error
        if why and why != GONE:
            raise self._changed(location, why)

    def _changed(self, location: Location, why: str) -> ConnectorError:
        if why == GONE:
            return ConnectorError(
                f"FileSource: {location.url} is gone before it was read to its end; it must stay until then, on every machine "
                "(ignore_missing=True leaves out files that are gone before they are begun)"
            )
        return ConnectorError(
            f"FileSource: {location.url} has changed while it is read: {why}. Write files under a name that begins with '_' or '.', "
            "and rename them when they are whole"
        )

    def _unreadable(self, split: SourceSplit, location: Location, error: BaseException) -> ConnectorError:
        """What a failed read means: the file has changed, cannot be reached, or is no such file."""
        try:
            why = self._difference(split, location)
        except OSError:
            why = ""
        if why:
            return self._changed(location, why)
        if isinstance(error, OSError) and error.errno:
            return ConnectorError(f"cannot read {location.url}: {first_line(error)}; {advice(error)}")
        kind = type(self._source.format).__name__
        return ConnectorError(
            f"FileSource: {location.url} cannot be read as {kind}: {first_line(error)}; replace it, or leave it out"
        )

    # --- rows -------------------------------------------------------------------------------------------------------

    def _fitted(self, rows: pa.RecordBatch, url: str) -> pa.RecordBatch:
        """The rows with the columns of the source. Raises ConnectorError for a column that is not there, or of a type
        that does not fit."""
        if rows.schema.equals(self._schema):
            return rows.replace_schema_metadata(None)
        columns = []
        for field in self._schema:
            place = rows.schema.get_field_index(field.name)
            if place < 0:
                there = ", ".join(rows.schema.names)
                raise ConnectorError(
                    f"FileSource: {url} has no column {field.name!r}, but {there}; read such files apart, or say columns=[...]"
                )
            column = rows.column(place)
            try:
                columns.append(column if column.type == field.type else cast_unchanged(column, field.type))
            except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
                raise ConnectorError(
                    f"FileSource: column {field.name!r} of {url} is {column.type}, which does not fit {field.type}: "
                    f"{first_line(error)}; read such files apart, or say schema="
                ) from error
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)

    def _on_bad(self, bad: Sequence[BadLine], url: str) -> Sequence[BadRow]:
        """Fail, or count them; returns those that are to leave aside."""
        first = bad[0]
        if self._bad_rows is None:
            raise ConnectorError(
                f"FileSource: line {first.number} of {url} is no row: {first.reason}; on_error='drop' leaves such lines out, on_error='side_output' sets them aside"
            )
        self._bad_rows.inc(len(bad))
        if self._source.sets_bad_rows_aside:
            return [BadRow(url, line.number, line.value, line.reason) for line in bad]
        log.warning(
            "FileSource dropped %d lines that are no rows, the first is line %d of %s: %s",
            len(bad), first.number, url, first.reason,
        )  # fmt: skip
        return ()


GONE = "gone"
