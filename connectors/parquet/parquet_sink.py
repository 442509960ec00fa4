"""Parquet files as a sink, exactly once, in two phases.

A writer fills files in `<path>/_staging/<job>/`, where Spark, pyarrow datasets and globs such as `*.parquet` do not
look. At the barrier it closes and syncs them (pre-commit) and hands out where they lie and what they will be called;
the commit renames them into place. Names hold uid, subtask, checkpoint and attempt, so that no two files ever share
one, and a commit that is repeated finds its work done. A file is visible whole or not at all; what becomes visible with
one checkpoint is not one transaction over all files.

What lost attempts left behind: unfinished files are removed at the restore. Of files that were pre-committed, a subtask
cannot know then which ones the restored checkpoint holds (another subtask may have been given them). So the first
pre-commit of every attempt hands out a `sweep`: once a checkpoint of this attempt is complete, all that was restored
has been committed, and older staged files of this subtask are orphans. Other jobs' files are never touched. Mirrors
Flink's FileSink with a bulk format.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from snapline.connectors.files.filesystems import absolute, first_line
from snapline.connectors.files.output_files import failures, open_output
from snapline.connectors.parquet.parquet_source import PathLike
from snapline.dataflow.api.connector_api import Committable, Committer, Sink, SinkWriter, SourceContextInfo
from snapline.dataflow.errors import ConnectorError

STAGING = "_staging"
IN_PROGRESS = ".inprogress"
STAGED = ".staged"
ROW_GROUP_ROWS = 131_072
BUFFERED_BYTES_MAX = 64 << 20
ROLL_BYTES = 256 << 20
UID_LENGTH_MAX = 40
COMPRESSIONS = ("zstd", "snappy", "gzip", "lz4", "brotli", "none")


class ParquetSink(Sink):
    """Writes Parquet files into a directory; rows are visible once their checkpoint is complete.

    >>> _ = orders.sink_to(sl.ParquetSink(f"{tmp}/orders", compression="snappy"), uid="orders-sink")
    """

    def __init__(
        self,
        path: PathLike,
        *,
        compression: str = "zstd",
        row_group_rows: int = ROW_GROUP_ROWS,
        roll_bytes: int = ROLL_BYTES,
        schema: pa.Schema | None = None,
        storage_options: Mapping[str, str] | None = None,
        ignore_missing: bool = False,
    ) -> None:
        """`roll_bytes`: begin another file beyond this size. `schema`: default is that of the first batch.
        `ignore_missing`: a restore may find a committed file gone, because a consumer takes files away."""
        if row_group_rows < 1 or roll_bytes < 1:
            raise ConnectorError("ParquetSink: row_group_rows and roll_bytes must be positive")
        if compression not in COMPRESSIONS:
            raise ConnectorError(
                f"ParquetSink: unknown compression {compression!r}; use zstd, snappy, gzip, lz4 or none"
            )
        self.path: str = absolute(path)
        self.compression = compression
        self.row_group_rows = row_group_rows
        self.roll_bytes = roll_bytes
        self.schema = schema
        self.storage_options: dict[str, str] = dict(storage_options or {})
        self.ignore_missing = ignore_missing

    def validate(self) -> None:
        files, location = open_output(self.path, self.storage_options)
        files.prepare(location.path)

    def create_writer(self, context: SourceContextInfo, restored: Sequence[dict[str, Any]]) -> SinkWriter:
        return ParquetSinkWriter(self, context)

    def create_committer(self, context: SourceContextInfo) -> Committer:
        return ParquetCommitter(self, context)


@dataclass(frozen=True, slots=True)
class StagedName:
    """`<uid>-<subtask>-<attempt number>-<attempt>-<sequence>` and a suffix; the last four never contain a hyphen."""

    uid: str
    subtask: int
    attempt_number: int
    attempt: str
    sequence: int

    def __str__(self) -> str:
        return f"{self.uid}-{self.subtask}-{self.attempt_number}-{self.attempt}-{self.sequence}"

    @classmethod
    def parse(cls, text: str) -> StagedName | None:
        """None for a name that is not one of ours."""
        match = re.fullmatch(r"(.+)-(\d+)-(\d+)-([0-9a-f]+)-(\d+)(?:\.\w+)", text)
        if match is None:
            return None
        uid, subtask, attempt_number, attempt, sequence = match.groups()
        return cls(uid, int(subtask), int(attempt_number), attempt, int(sequence))


@dataclass(frozen=True, slots=True)
class SinkPlace:
    """Where one subtask of a sink works, and how its files are called."""

    directory: str
    staging: str
    uid: str
    subtask: int
    parallelism: int
    attempt_number: int
    attempt: str

    @classmethod
    def of(cls, directory: str, context: SourceContextInfo) -> SinkPlace:
        """From the context of a writer or committer."""
        return cls(
            directory=directory,
            staging=f"{directory}/{STAGING}/{_file_name(context.job_id)}",
            uid=_file_name(context.operator_uid),
            subtask=context.subtask_index,
            parallelism=context.parallelism,
            attempt_number=context.attempt_number,
            attempt=hashlib.blake2b(context.execution_attempt.encode(), digest_size=6).hexdigest(),
        )

    def staged(self, sequence: int) -> str:
        """Name, without suffix, of the n-th file that this attempt writes."""
        return str(StagedName(self.uid, self.subtask, self.attempt_number, self.attempt, sequence))

    def final(self, checkpoint_id: int, sequence: int) -> str:
        """Name of a committed file; ordered by subtask, then by time."""
        return (
            f"part-{self.uid}-{self.subtask:04d}-{checkpoint_id:06d}-{self.attempt_number}-{self.attempt}-{sequence:04d}"
            ".parquet"
        )

    def is_orphan(self, name: str) -> bool:
        """Whether a staged file belongs to an earlier attempt of this subtask, or of one that this one stands for since
        the parallelism was lowered."""
        staged = StagedName.parse(name)
        return (
            staged is not None
            and staged.uid == self.uid
            and staged.subtask % self.parallelism == self.subtask
            and staged.attempt != self.attempt
        )


class ParquetSinkWriter(SinkWriter):
    """Fills staged files; batches are gathered into row groups of a good size."""

    def __init__(self, sink: ParquetSink, context: SourceContextInfo) -> None:
        self._sink = sink
        self._files, location = open_output(sink.path, sink.storage_options)
        self._place = SinkPlace.of(location.path, context)
        self._in_progress_suffix = IN_PROGRESS if location.is_local else STAGED
        self._schema = sink.schema
        self._buffered: list[pa.RecordBatch] = []
        self._buffered_rows = 0
        self._buffered_bytes = 0
        self._stream: Any = None
        self._writer: pq.ParquetWriter | None = None
        self._sequence = 0
        self._sealed: list[int] = []
        """Sequence numbers of files that are durable and not handed out yet."""
        self._swept = False

    def write(self, batch: pa.RecordBatch) -> None:
        if not batch.num_rows:
            return
        if self._schema is None:
            self._schema = batch.schema.remove_metadata()
        batch = _conformed(batch, self._schema, cast=self._sink.schema is not None, path=self._sink.path)
        self._buffered.append(batch)
        self._buffered_rows += batch.num_rows
        self._buffered_bytes += batch.nbytes
        if self._buffered_rows >= self._sink.row_group_rows or self._buffered_bytes >= BUFFERED_BYTES_MAX:
            self._flush()
            if self._stream.tell() >= self._sink.roll_bytes:
                self._seal()

    def prepare_commit(self, checkpoint_id: int) -> Sequence[Committable]:
        self._flush()
        self._seal()
        place = self._place
        committables = [
            Committable(
                {
                    "staged": f"{place.staging}/{place.staged(sequence)}{STAGED}",
                    "target": f"{place.directory}/{place.final(checkpoint_id, sequence)}",
                }
            )
            for sequence in self._sealed
        ]
        self._sealed = []
        if not self._swept:
            self._swept = True
            committables.append(Committable({"sweep": place.attempt}))
        return committables

    def close(self) -> None:
        """What was not handed out is of no use to anybody."""
        self._buffered = []
        writer, self._writer = self._writer, None
        stream, self._stream = self._stream, None
        sequences = [*self._sealed, self._sequence] if stream is not None else list(self._sealed)
        self._sealed = []
        try:
            if writer is not None:
                writer.close()
        except (OSError, pa.ArrowException):
            pass
        finally:
            if stream is not None:
                stream.close()
            for sequence in sequences:
                for suffix in dict.fromkeys((self._in_progress_suffix, STAGED)):
                    self._files.delete(f"{self._place.staging}/{self._place.staged(sequence)}{suffix}")

    def _flush(self) -> None:
        """Turn what is buffered into a row group."""
        if not self._buffered:
            return
        batches, self._buffered = self._buffered, []
        self._buffered_rows = self._buffered_bytes = 0
        with failures("write", self._sink.path):
            if self._writer is None:
                path = f"{self._place.staging}/{self._place.staged(self._sequence)}{self._in_progress_suffix}"
                self._stream = self._files.open(path)
                self._writer = pq.ParquetWriter(self._stream, self._schema, compression=self._sink.compression)
            self._writer.write_table(pa.Table.from_batches(batches), row_group_size=self._sink.row_group_rows)

    def _seal(self) -> None:
        """Close the file and make it durable."""
        if self._writer is None:
            return
        with failures("write", self._sink.path):
            self._writer.close()
            self._stream.close()
        self._writer = self._stream = None
        staged = f"{self._place.staging}/{self._place.staged(self._sequence)}"
        self._sealed.append(self._sequence)
        self._sequence += 1
        self._files.seal(f"{staged}{self._in_progress_suffix}", f"{staged}{STAGED}")


class ParquetCommitter(Committer):
    """Renames staged files into place, and removes what lost attempts left."""

    def __init__(self, sink: ParquetSink, context: SourceContextInfo) -> None:
        self._sink = sink
        self._files, location = open_output(sink.path, sink.storage_options)
        self._place = SinkPlace.of(location.path, context)

    def commit(self, committables: Sequence[Committable]) -> None:
        moves = [(each.data["staged"], each.data["target"]) for each in committables if "staged" in each.data]
        missing = self._files.publish(moves) if moves else []
        if missing and not self._sink.ignore_missing:
            staged, target = missing[0]
            raise ConnectorError(
                f"ParquetSink: {len(missing)} pre-committed file(s) are gone, the first is {staged}, to become {target}. Its rows "
                "would be missing from the output. If a consumer took the committed file away, use ignore_missing=True"
            )
        if any(each.data.get("sweep") == self._place.attempt for each in committables):
            self._remove_orphans(STAGED)

    def clean_up(self, committed_and_pending: Sequence[Committable]) -> None:
        self._remove_orphans(IN_PROGRESS)

    def close(self) -> None:
        self._files.remove_directory_if_empty(self._place.staging)
        self._files.remove_directory_if_empty(f"{self._place.directory}/{STAGING}")

    def _remove_orphans(self, suffix: str) -> None:
        for name in self._files.names(self._place.staging):
            if name.endswith(suffix) and self._place.is_orphan(name):
                self._files.delete(f"{self._place.staging}/{name}")


def _file_name(text: str) -> str:
    """The text itself where it can be a file name, else something like it that differs from all others."""
    slug = re.sub(r"[^A-Za-z0-9_.]+", "-", text).strip("-.")[:UID_LENGTH_MAX] or "sink"
    return slug if slug == text else f"{slug}-{hashlib.blake2b(text.encode(), digest_size=4).hexdigest()}"


def _conformed(batch: pa.RecordBatch, schema: pa.Schema, *, cast: bool, path: str) -> pa.RecordBatch:
    """The batch with exactly the columns of the schema, in its order."""
    if batch.schema.equals(schema):
        return batch.replace_schema_metadata(None)
    try:
        if sorted(batch.schema.names) == sorted(schema.names):
            batch = batch.select(schema.names)
            if batch.schema.types == schema.types:
                return pa.RecordBatch.from_arrays(batch.columns, schema=schema)
            if cast:
                return batch.cast(schema)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise ConnectorError(f"ParquetSink {path}: a batch does not fit the schema: {first_line(error)}") from error
    raise ConnectorError(f"ParquetSink {path}: {_difference(schema, batch.schema)}")


def _difference(expected: pa.Schema, got: pa.Schema) -> str:
    """The first column that differs."""
    for field in expected:
        if field.name not in got.names:
            return f"a batch lacks the column {field.name!r}; every batch needs the columns {', '.join(expected.names)}"
        if got.field(field.name).type != field.type:
            return (
                f"column {field.name!r} is {got.field(field.name).type} in a batch and {field.type} before; cast it to one type, "
                "or give the sink a schema="
            )
    extra = next(name for name in got.names if name not in expected.names)
    return f"a batch has the column {extra!r}, which earlier ones had not; every batch needs the same columns"
