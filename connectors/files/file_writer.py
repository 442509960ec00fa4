"""Fills the files of one subtask of a sink, one at a time for each partition.

Decides when rows are encoded (when a row group is full), when a file is closed (at the barrier, beyond a size or an
age, or when too many partitions have one open), and, for plain files, that every batch has the columns of the first. It
does not know what becomes of files that it handed out. Writers of tables share the base.
"""

from __future__ import annotations

import contextlib
import hashlib
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import pyarrow as pa

from snapline.connectors.connector_metrics import BYTES_WRITTEN, FILES_WRITTEN
from snapline.connectors.files.filesystems import first_line
from snapline.connectors.files.output_files import OutputFiles, failures
from snapline.connectors.files.partitions import split_by_partition
from snapline.connectors.files.staging import IN_PROGRESS, STAGED, SinkPlace, partition_directory
from snapline.connectors.formats.casts import cast_unchanged
from snapline.connectors.formats.file_format import FileEncoder, FileFormat, LinesFormat, require_mergeable
from snapline.connectors.whole_numbers import require_positive
from snapline.dataflow.api.connector_api import Committable, SinkWriter
from snapline.dataflow.api.user_metrics import Counter, MetricGroup
from snapline.dataflow.columnar.arrow_columns import differ_in_offsets_only
from snapline.dataflow.errors import ConnectorError

if TYPE_CHECKING:
    from snapline.connectors.files.file_sink import FileSink

ROLL_BYTES = 256 << 20
BUFFERED_BYTES_MAX = 64 << 20
OPEN_PARTITIONS_MAX = 200
BATCH_BYTES_MAX = 1 << 30
"""A larger batch is written in parts: texts of `large_string` may be more than the columns of a table have room for."""


def monotonic_ms() -> int:
    """The time by which the age of a file is told."""
    return time.monotonic_ns() // 1_000_000


class FilesWanted(Protocol):
    """What a sink says of the files that its writers fill."""

    @property
    def path(self) -> str:
        """Where they go, for errors."""
        ...

    @property
    def format(self) -> FileFormat:
        """The format that all files have."""
        ...

    @property
    def rolling(self) -> RollingPolicy:
        """When a file is closed before the barrier."""
        ...


@dataclass(frozen=True, slots=True)
class RollingPolicy:
    """When a file is closed before its checkpoint's barrier, which closes all.

    >>> sl_connectors.RollingPolicy(max_bytes=64 << 20, max_age_ms=60_000).max_age_ms
    60000
    """

    max_bytes: int = ROLL_BYTES
    max_age_ms: int | None = None
    """Looked at when rows come."""

    def __post_init__(self) -> None:
        require_positive("RollingPolicy", max_bytes=self.max_bytes)
        if self.max_age_ms is not None:
            require_positive("RollingPolicy", max_age_ms=self.max_age_ms)


def rolling_policy(given: RollingPolicy | None, sink: str) -> RollingPolicy:
    """The policy that was given to the sink, or the default. ConnectorError for what is none."""
    if given is not None and not isinstance(given, RollingPolicy):
        raise ConnectorError(f"{sink}: rolling is a RollingPolicy, not {given!r}; write RollingPolicy(max_bytes=...)")
    return given or RollingPolicy()


@dataclass(frozen=True, slots=True)
class SealedFile:
    """A file that is durable and not handed out yet."""

    begun_path: str
    path: str
    sequence: int
    partition: str
    columns: pa.Schema
    rows: int
    size_bytes: int
    summary: Any
    """What the writer wants to know of the file's content."""


@dataclass(slots=True)
class OpenFile:
    """The rows of one partition since the last file was closed."""

    partition: str
    begun_ms: int
    sequence: int = -1
    """Below zero: everything is buffered yet."""
    path: str = ""
    sealed_path: str = ""
    columns: pa.Schema | None = None
    buffered: list[pa.RecordBatch] = field(default_factory=list)
    buffered_rows: int = 0
    buffered_bytes: int = 0
    rows: int = 0
    stream: Any = None
    encoder: FileEncoder | None = None


class PartitionedFileWriter(SinkWriter, ABC):
    """Fills files; batches are gathered into row groups of a good size. A subclass says which rows go where, how files
    are called, and what is handed out of those that `take_sealed` returns."""

    def __init__(
        self, sink: FilesWanted, files: OutputFiles, clock_ms: Callable[[], int], metrics: MetricGroup | None
    ) -> None:
        """`metrics`: of the subtask, where it has any."""
        self._wanted = sink
        self._bytes_written = metrics.counter(BYTES_WRITTEN) if metrics is not None else Counter()
        self._files_written = metrics.counter(FILES_WRITTEN) if metrics is not None else Counter()
        self._files = files
        self._clock_ms = clock_ms
        self._open: dict[str, OpenFile] = {}
        """The open files by partition, the one that was written least recently first."""
        self._buffered_bytes = 0
        self._sequence = 0
        self._sealed: list[SealedFile] = []

    @abstractmethod
    def split(self, batch: pa.RecordBatch) -> Iterator[tuple[str, pa.RecordBatch]]:
        """(partition, its rows as they are in the file) for a batch of rows."""

    @abstractmethod
    def paths(self, partition: str, sequence: int) -> tuple[str, str]:
        """Where the n-th file is filled, and where it lies when it is durable."""

    def summary(self, encoder: FileEncoder) -> Any:
        """What to keep of a file that was just finished."""
        return None

    def write(self, batch: pa.RecordBatch) -> None:
        if batch.nbytes > BATCH_BYTES_MAX and batch.num_rows > 1:
            half = batch.num_rows // 2
            self.write(batch.slice(0, half))
            self.write(batch.slice(half))
        elif batch.num_rows:
            for partition, rows in self.split(batch):
                self._add(partition, rows)

    def take_sealed(self) -> list[SealedFile]:
        """Close all files; return those that were not returned before. They are whoever's asked for them."""
        for file in list(self._open.values()):
            self._seal(file)
        sealed, self._sealed = self._sealed, []
        return sealed

    def close(self) -> None:
        """What was not handed out is of no use to anybody."""
        useless = [path for file in self._open.values() if file.path for path in (file.path, file.sealed_path)]
        useless += [path for sealed in self._sealed for path in (sealed.begun_path, sealed.path)]
        try:
            for file in self._open.values():
                _abandon(file)
        finally:
            self._open = {}
            self._sealed = []
            for path in dict.fromkeys(useless):
                self._files.delete(path)

    def _add(self, partition: str, rows: pa.RecordBatch) -> None:
        file = self._open.pop(partition, None)
        if file is None:
            if len(self._open) >= OPEN_PARTITIONS_MAX:
                self._seal(next(iter(self._open.values())))
            file = OpenFile(partition, self._clock_ms())
        self._open[partition] = file
        file.buffered.append(rows)
        file.buffered_rows += rows.num_rows
        file.buffered_bytes += rows.nbytes
        self._buffered_bytes += rows.nbytes
        if file.buffered_rows >= self._wanted.format.batch_rows or file.buffered_bytes >= BUFFERED_BYTES_MAX:
            self._flush_or_seal(file)
        while self._buffered_bytes >= BUFFERED_BYTES_MAX:
            self._flush_or_seal(max(self._open.values(), key=lambda each: each.buffered_bytes))
        max_age_ms = self._wanted.rolling.max_age_ms
        if max_age_ms is not None:
            old = self._clock_ms() - max_age_ms
            for each in [each for each in self._open.values() if each.begun_ms <= old]:
                self._seal(each)

    def _flush_or_seal(self, file: OpenFile) -> None:
        """Encode the rows that are buffered, and close the file where it is large enough then."""
        self._flush(file)
        if file.stream.tell() >= self._wanted.rolling.max_bytes:
            self._seal(file)

    def _flush(self, file: OpenFile) -> None:
        """Encode the rows that are buffered."""
        if not file.buffered:
            return
        batches, file.buffered = file.buffered, []
        self._buffered_bytes -= file.buffered_bytes
        file.rows += file.buffered_rows
        file.buffered_rows = file.buffered_bytes = 0
        with failures("write", self._wanted.path):
            self._encoder_of(file, batches[0].schema).write(pa.Table.from_batches(batches))

    def _encoder_of(self, file: OpenFile, schema: pa.Schema) -> FileEncoder:
        """What writes the file, which is begun if it is not."""
        if file.encoder is None:
            file.sequence, self._sequence = self._sequence, self._sequence + 1
            file.path, file.sealed_path = self.paths(file.partition, file.sequence)
            file.columns = schema
            file.stream = self._files.open(file.path)
            file.encoder = self._wanted.format.open(file.stream, schema)
        return file.encoder

    def _seal(self, file: OpenFile) -> None:
        """Close the file and make it durable."""
        self._flush(file)
        self._open.pop(file.partition, None)
        if file.encoder is None:
            return
        with failures("write", self._wanted.path):
            file.encoder.close()
            if file.stream.closed:
                kind = type(self._wanted.format).__name__
                raise ConnectorError(
                    f"{kind}: close() of what open() returned has closed the stream, which must stay open"
                )
            size_bytes = file.stream.tell()
            file.stream.close()
        self._bytes_written.inc(size_bytes)
        self._files_written.inc()
        summary = self.summary(file.encoder)
        self._sealed.append(
            SealedFile(
                file.path, file.sealed_path, file.sequence, file.partition, file.columns, file.rows, size_bytes, summary
            )
        )
        self._files.seal(file.path, file.sealed_path)


class FileSinkWriter(PartitionedFileWriter):
    """Fills staged files and hands out where they lie and what they will be called."""

    def __init__(
        self,
        sink: FileSink,
        files: OutputFiles,
        place: SinkPlace,
        *,
        is_local: bool,
        clock_ms: Callable[[], int] = monotonic_ms,
        metrics: MetricGroup | None = None,
    ) -> None:
        super().__init__(sink, files, clock_ms, metrics)
        self._sink = sink
        self._place = place
        self._in_progress_suffix = IN_PROGRESS if is_local else STAGED
        self._row_schema: pa.Schema | None = sink.schema
        self._file_schema: pa.Schema | None = sink.format.schema
        self._swept = False

    def split(self, batch: pa.RecordBatch) -> Iterator[tuple[str, pa.RecordBatch]]:
        if self._row_schema is None:
            self._row_schema = batch.schema.remove_metadata()
        name = self._sink.described
        batch = conformed(batch, self._row_schema, cast=self._sink.schema is not None, what=name)
        for partition, rows in split_by_partition(batch, self._sink.partition_by):
            if self._file_schema is None:
                self._file_schema = rows.schema
            elif self._sink.format.schema is not None:
                rows = conformed(rows, self._file_schema, cast=True, what=name)  # noqa: PLW2901
            if self._sink.compact_below is not None:
                require_mergeable(self._sink.format, rows, name)
            yield partition, rows

    def paths(self, partition: str, sequence: int) -> tuple[str, str]:
        staged = f"{self._place.staging}/{self._place.staged(sequence)}"
        return f"{staged}{self._in_progress_suffix}", f"{staged}{STAGED}"

    def prepare_commit(self, checkpoint_id: int) -> Sequence[Committable]:
        place = self._place
        files = self.take_sealed()
        if not self._swept and not files:
            self._seal_without_rows()
            files = self.take_sealed()
        committables = []
        for sealed in files:
            final = place.final(checkpoint_id, sealed.sequence, self._sink.format.suffix)
            directory = f"{place.directory}/{sealed.partition}" if sealed.partition else place.directory
            committables.append(
                Committable(
                    {
                        "staged": sealed.path,
                        "target": f"{directory}/{final}",
                        "checkpoint_id": checkpoint_id,
                        "rows": sealed.rows,
                        "bytes": sealed.size_bytes,
                        "small": sealed.size_bytes < (self._sink.compact_below or 0),
                        "columns": digest_of(sealed.columns, self._sink.format),
                    }
                )
            )
        if not self._swept:
            self._swept = True
            sweep = {"sweep": place.sweep, "subtask": place.subtask, "parallelism": place.parallelism}
            committables.append(Committable(sweep))
        return committables

    def _seal_without_rows(self) -> None:
        """Close a file without rows, by one subtask, where readers would find nothing that they could open."""
        sink, suffix, directory = self._sink, self._sink.format.suffix, self._place.directory
        columns = self._file_schema or sink.schema or sink.stream_schema
        if columns is None or self._place.subtask or self._files.has_partitions(directory):
            return
        fields = [each for each in columns if each.name not in sink.partition_by]
        if fields and not any(name.endswith(suffix) for name in self._files.names(directory)):
            file = OpenFile(partition_directory(sink.partition_by, (None,) * len(sink.partition_by)), self._clock_ms())
            with failures("write", sink.path):
                self._encoder_of(file, pa.schema(fields)).write(pa.schema(fields).empty_table())
            self._seal(file)


def digest_of(columns: pa.Schema, form: FileFormat) -> str:
    """The same for two files if and only if they have the same columns, and begin with the same line of their names, if
    with any."""
    text = columns.to_string(show_field_metadata=False, show_schema_metadata=False)
    header = form.header() if isinstance(form, LinesFormat) else b""
    return hashlib.blake2b(text.encode() + header, digest_size=6).hexdigest()


def _abandon(file: OpenFile) -> None:
    """Close what nobody will read, whatever a full disk says to that."""
    for each in (file.encoder, file.stream):
        if each is not None:
            with contextlib.suppress(OSError, pa.ArrowException):
                each.close()


def conformed(batch: pa.RecordBatch, schema: pa.Schema, *, cast: bool, what: str) -> pa.RecordBatch:
    """The batch with exactly the columns of the schema, in its order."""
    if batch.schema.equals(schema):
        return batch.replace_schema_metadata(None)
    try:
        if sorted(batch.schema.names) == sorted(schema.names):
            batch = batch.select(schema.names)
            if batch.schema.types == schema.types:
                return pa.RecordBatch.from_arrays(batch.columns, schema=schema)
            if cast or differ_in_offsets_only(batch.schema, schema):
                columns = [cast_unchanged(batch.column(field.name), field.type) for field in schema]
                return pa.RecordBatch.from_arrays(columns, schema.names).cast(schema)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise ConnectorError(
            f"{what}: a batch does not fit the schema: {_misfit(batch, schema)}{first_line(error)}"
        ) from error
    raise ConnectorError(f"{what}: {_difference(schema, batch.schema)}")


def _misfit(batch: pa.RecordBatch, schema: pa.Schema) -> str:
    """Which column cannot be cast."""
    for name, kind in zip(schema.names, schema.types, strict=True):
        try:
            cast_unchanged(batch.column(name), kind)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
            return f"column {name!r}: "
    return ""


def _difference(expected: pa.Schema, got: pa.Schema) -> str:
    """The first column that differs."""
    for wanted in expected:
        if wanted.name not in got.names:
            return (
                f"a batch lacks the column {wanted.name!r}; every batch needs the columns {', '.join(expected.names)}"
            )
        if got.field(wanted.name).type != wanted.type:
            return (
                f"column {wanted.name!r} is {got.field(wanted.name).type} in a batch and {wanted.type} before; cast it to one type, "
                "or give the sink a schema="
            )
    extra = next(name for name in got.names if name not in expected.names)
    return f"a batch has the column {extra!r}, which earlier ones had not; every batch needs the same columns"
