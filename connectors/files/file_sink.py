"""Files as a sink, exactly once, in two phases, in any format, perhaps in partitions.

A writer fills files in `<path>/_staging/<job>/`, where Spark, pyarrow datasets and globs such as `*.parquet` do not
look. At the barrier it closes and syncs them (pre-commit) and hands out where they lie and what they will be called;
the commit renames them into place. Names hold job, uid, subtask, checkpoint and attempt, so that no two files ever
share one, and a commit that is repeated finds its work done. Where nothing lies yet and the first checkpoint brings no
rows, one file without rows is written (with partitions: in that of nulls), because no reader opens a directory without
files.
A file is visible whole or not at all; what becomes visible with one checkpoint is not one transaction over all files.
To put small files together, one committer serves all subtasks: before they are committed, those of a partition and
checkpoint become one, whose name follows from these.

What lost attempts left behind: unfinished files are removed at the restore. Of files that were pre-committed, a subtask
cannot know then which ones the restored checkpoint holds (another subtask may have been given them). So the first
pre-commit of every attempt hands out a `sweep`: once a checkpoint of this attempt is complete, all that was restored
has been committed, and older staged files of this subtask are orphans. Other jobs' files are never touched. Mirrors
Flink's FileSink.
"""

from __future__ import annotations

import hashlib
import itertools
import posixpath
import secrets
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pyarrow as pa

from snapline.connectors.files import output_files
from snapline.connectors.files.file_writer import FileSinkWriter, RollingPolicy, digest_of, rolling_policy
from snapline.connectors.files.filesystems import PathLike, absolute
from snapline.connectors.files.output_files import OutputFiles, failures
from snapline.connectors.files.partitions import names_of
from snapline.connectors.files.staging import (
    IN_PROGRESS,
    STAGED,
    STAGING,
    SinkPlace,
    StagedName,
    file_name,
    is_of_sink,
    suffix_of,
)
from snapline.connectors.formats.file_format import NAMED_LINES, FileFormat, file_format_of, require_types
from snapline.connectors.formats.row_format import RowFormat
from snapline.connectors.own_output import require_kind, require_own
from snapline.connectors.whole_numbers import require_positive
from snapline.dataflow.api.connector_api import (
    Committable,
    Committer,
    GlobalCommittable,
    GlobalCommitter,
    Sink,
    SinkWriter,
    SourceContextInfo,
)
from snapline.dataflow.errors import ConnectorError
from snapline.runtime.cores.machine import check

COMPACTION_THREADS = 4
MERGING = ".merging"
MERGED_BYTES_MAX = 4 << 30
"""To publish a file in S3 is to copy it there, and more than 5 GB are not copied at once."""


class FileSink(Sink):
    """Writes files into a directory; rows are visible once their checkpoint is complete.

    >>> orders_of_a_shop = sl_connectors.FileSink(f"{tmp}/by-shop", "parquet", partition_by=["shop"])
    >>> end = orders.sink_to(orders_of_a_shop, uid="by-shop")
    >>> lines = sl_connectors.JsonFormat(pa.schema([("customer", pa.string()), ("cents", pa.int64())]))
    >>> compacted = sl_connectors.FileSink(f"{tmp}/lines", lines, compression="gzip", compact_below=32 << 20)
    >>> compacted.commits_together, compacted.described.startswith("FileSink ")
    (True, True)
    >>> compacted.validate()
    >>> compacted.before_writing(orders) is orders
    True
    """

    def __init__(
        self,
        path: PathLike,
        format: FileFormat | RowFormat | str = "parquet",  # noqa: A002 - the word that people look for
        *,
        partition_by: str | Sequence[str] = (),
        rolling: RollingPolicy | None = None,
        compact_below: int | None = None,
        compression: str | None = None,
        shuffle: bool | None = None,
        schema: pa.Schema | None = None,
        storage_options: Mapping[str, str] | None = None,
        ignore_missing: bool = False,
    ) -> None:
        """`format`: `parquet`, `orc`, `json` or `csv` (with a header) with the stream's columns, a format of
        rows (JsonFormat, CsvFormat: a line a row; AvroFormat) or another FileFormat. `partition_by`: columns
        that are directories, `column=value`, in place of columns of the file. `shuffle`: rows of a partition
        meet in one subtask, so that fewer files are written (default: where there are partitions).
        `compact_below`: files of a partition and checkpoint with fewer bytes become one before they are
        committed. `schema`: of the rows; default is that of the first batch. `ignore_missing`: a restore may
        find a committed file gone, because a consumer takes files away."""
        self.path: str = absolute(path)
        self._lines = format if isinstance(format, str) and format in NAMED_LINES else ""
        """The name of a format that is made once the stream's columns are known."""
        self._compression = compression
        self.format: FileFormat = file_format_of(
            NAMED_LINES[self._lines](pa.schema([])) if self._lines else format, compression
        )
        self.partition_by: tuple[str, ...] = names_of(partition_by)
        self.rolling: RollingPolicy = rolling_policy(rolling, "FileSink")
        if self.path.startswith(("s3:", "s3a:")) and self.rolling.max_bytes > MERGED_BYTES_MAX:
            raise ConnectorError(
                f"FileSink {self.path}: S3 publishes no file of more than 5 GB, and one gets larger than max_bytes by what is written at once; "
                f"give RollingPolicy max_bytes={MERGED_BYTES_MAX} at most"
            )
        if compact_below is not None:
            require_positive("FileSink", compact_below=compact_below)
        self.compact_below = compact_below
        self.shuffle: bool = bool(self.partition_by) if shuffle is None else shuffle
        self.schema = schema
        self.stream_schema: pa.Schema | None = None
        """What the stream's rows are known to be, for the file of a sink without rows."""
        self.storage_options: dict[str, str] = dict(storage_options or {})
        self.ignore_missing = ignore_missing
        in_both = set(self.partition_by) & set(self.format.schema.names if self.format.schema else ())
        if in_both:
            raise ConnectorError(
                f"FileSink: column {min(in_both)!r} is in partition_by, so that it is in the path; leave it out of the format's schema"
            )
        if self.shuffle and not self.partition_by:
            raise ConnectorError("FileSink: shuffle=True needs partition_by")

    @property
    def described(self) -> str:
        """The sink's kind and path, for errors."""
        return f"{type(self).__name__} {self.path}"

    @property
    def commits_together(self) -> bool:
        return self.compact_below is not None

    def validate(self) -> None:
        files, location = output_files.open_output(self.path, self.storage_options)
        files.prepare(location.path)
        if files.exists(f"{location.path}/{STAGING}"):
            raise ConnectorError(
                f"{self.described}: {STAGING} there is a file, and what is not committed is staged in a directory of that name: move "
                "it away, or write into another directory"
            )

    def before_writing(self, stream: Any) -> Any:
        self.stream_schema = getattr(stream, "schema", None)
        if self._lines:
            columns = self.schema or self.stream_schema
            if columns is None:
                raise ConnectorError(
                    f"{self.described}: the columns of the stream are not known here; give schema=, or a return type to the "
                    "function before it"
                )
            fields = [each for each in columns if each.name not in self.partition_by]
            self.format = file_format_of(NAMED_LINES[self._lines](pa.schema(fields)), self._compression)
        columns = self.format.schema or self.schema or self.stream_schema
        if columns is not None:
            in_files = pa.schema([each for each in columns if each.name not in self.partition_by])
            require_types(self.format, in_files, self.described)
        return stream.key_by(*self.partition_by) if self.shuffle else stream

    def create_writer(self, context: SourceContextInfo, restored: Sequence[dict[str, Any]]) -> SinkWriter:
        files, location = output_files.open_output(self.path, self.storage_options)
        place = SinkPlace.of(location.path, context)
        return FileSinkWriter(self, files, place, is_local=location.is_local, metrics=context.metrics)

    def create_committer(self, context: SourceContextInfo) -> Committer:
        return FileCommitter(self, context)

    def create_global_committer(self, context: SourceContextInfo) -> GlobalCommitter:
        return CompactingCommitter(self, context)


class FileCommitter(Committer):
    """Renames staged files into place, and removes what lost attempts left."""

    def __init__(self, sink: FileSink, context: SourceContextInfo) -> None:
        self._sink = sink
        self._files, location = output_files.open_output(sink.path, sink.storage_options)
        self._place = SinkPlace.of(location.path, context)
        self._there = staged_there(self._files, self._place)

    def commit(self, committables: Sequence[Committable]) -> None:
        require_staged(self._sink, self._place.uid, committables)
        publish(self._sink, self._files, committables)
        if any(each.data.get("sweep") == self._place.sweep for each in committables):
            remove_orphans(self._files, self._place, STAGED, self._there)

    def clean_up(self, committed_and_pending: Sequence[Committable]) -> None:
        remove_orphans(self._files, self._place, IN_PROGRESS, self._there)

    def abort(self, committables: Sequence[Committable]) -> bool:
        require_staged(self._sink, self._place.uid, committables)
        return remove_staged(self._files, committables)

    def close(self) -> None:
        close_staging(self._files, self._place)


class CompactingCommitter(GlobalCommitter):
    """Puts small files of a partition and checkpoint together, and renames all into place, for every subtask."""

    def __init__(self, sink: FileSink, context: SourceContextInfo) -> None:
        self._sink = sink
        self._files, location = output_files.open_output(sink.path, sink.storage_options)
        self._place = SinkPlace.of(location.path, context)
        self._there = staged_there(self._files, self._place)
        self._threads = ThreadPoolExecutor(COMPACTION_THREADS, thread_name_prefix="file-compaction")

    def last_committed(self, job_id: str, sink_uid: str) -> int | None:
        """Nobody notes it: every rename and every merge finds by its names whether it is done."""
        return None

    def commit(self, together: GlobalCommittable) -> None:
        require_staged(self._sink, file_name(together.sink_uid), together.committables)
        checkpoints: dict[int, dict[str, list[Committable]]] = {}
        for each in together.committables:
            if "staged" in each.data:
                groups = checkpoints.setdefault(each.data["checkpoint_id"], {})
                groups.setdefault(posixpath.dirname(each.data["target"]), []).append(each)
        # A group is what the writers handed out for one checkpoint: the same whenever it is committed again.
        for checkpoint_id, groups in sorted(checkpoints.items()):  # readers of committed files go by this order
            merging = [
                self._threads.submit(self._merged, together, directory, checkpoint_id, group)
                for directory, group in groups.items()
            ]
            publish(self._sink, self._files, [each for future in merging for each in future.result()])
        for each in together.committables:
            is_numbered = "-" in each.data.get("sweep", "")  # one that was in flight in an older snapshot is not
            if is_numbered and not together.may_repeat:
                writer = self._place.of_sweep(file_name(together.sink_uid), each.data)
                remove_orphans(self._files, writer, STAGED, self._there)
                remove_orphans(self._files, writer, IN_PROGRESS, self._there)

    def abort(self, together: GlobalCommittable) -> bool:
        require_staged(self._sink, file_name(together.sink_uid), together.committables)
        return remove_staged(self._files, together.committables)

    def close(self) -> None:
        self._threads.shutdown()
        close_staging(self._files, self._place)

    def _merged(
        self, together: GlobalCommittable, directory: str, checkpoint_id: int, group: Sequence[Committable]
    ) -> list[Committable]:
        """The group with one file in place of its small ones, as far as they have the same columns as most and make no
        file that is too large; what was merged is deleted only when it is visible. Which ones are small, the writers
        have said, because the limit may be another one when the group is committed again.
        """
        limit = self._sink.compact_below or 0
        small = sorted(
            (each for each in group if each.data.get("small", each.data["bytes"] < limit)),
            key=_place_among_rows,
        )
        columns = Counter(str(each.data.get("columns", "")) for each in small).most_common(1)
        small = [each for each in small if str(each.data.get("columns", "")) == columns[0][0]]
        sizes = itertools.accumulate(each.data["bytes"] for each in small)
        small = [each for each, size in zip(small, sizes, strict=True) if size <= MERGED_BYTES_MAX]
        if len(small) < 2:
            return list(group)
        job, uid = file_name(together.job_id), file_name(together.sink_uid)
        suffix = suffix_of(small[0].data["target"], self._sink.format.suffix)
        name = f"part-{job}-{uid}-all-{checkpoint_id:06d}{suffix}"
        target = f"{directory}/{name}"
        sources = [str(each.data["staged"]) for each in small]
        if not self._files.exists(target):
            form = self._sink.format
            is_other = form.schema is not None and columns[0][0] != digest_of(form.schema, form)
            if suffix != form.suffix or is_other:
                return list(group)  # the job has another format now, or other columns, which cannot read them
            staging = posixpath.dirname(sources[0])
            gone = [source for source in sources if not self._files.exists(source)]
            if gone:
                require_nothing_missing(self._sink, [(gone[0], target)])
                return [each for each in group if each not in small]
            partition = hashlib.blake2b(directory.encode(), digest_size=12).hexdigest()
            own = f"{partition}-{name}-"
            begun = f"{staging}/{own}{secrets.token_hex(8)}{MERGING}"  # who is thought dead may be at it as well
            with failures("write", target):
                opened = [self._files.read(source) for source in sources]
                try:
                    with self._files.open(begun) as stream:
                        form.merge(opened, stream)
                finally:
                    for each in opened:
                        each.close()
            sealed = f"{begun}{STAGED}"
            self._files.seal(begun, sealed)
            self._files.publish([(sealed, target)])
            if together.may_repeat:  # somebody may have died in the middle of it
                for left in self._files.names(staging):
                    if left.startswith(own):
                        self._files.delete(f"{staging}/{left}")
        for source in sources:
            self._files.delete(source)
        return [each for each in group if each not in small]


def _place_among_rows(each: Committable) -> tuple[int, int, int]:
    """Where a staged file stands in one that is put together: rows of a subtask keep their order."""
    name = check(StagedName.parse(posixpath.basename(each.data["staged"])), "require_staged has let it pass")
    return name.subtask, name.attempt_number, name.sequence


def require_staged(sink: FileSink, uid: str, committables: Sequence[Committable]) -> None:
    """Raise ConnectorError for what no sink of this name has staged, before anything is moved or deleted."""
    require_kind(sink.described, committables, "staged")
    moves = [(each.data["staged"], each.data.get("target")) for each in committables if "staged" in each.data]
    require_own(
        sink.described, "staged file and its place", moves, lambda move: is_of_sink(uid, *move), whose=repr(uid)
    )


def publish(sink: FileSink, files: OutputFiles, committables: Sequence[Committable]) -> None:
    """Rename what is staged into place, or find that it was. Raises ConnectorError when it is in neither place."""
    moves = [(each.data["staged"], each.data["target"]) for each in committables if "staged" in each.data]
    missing = files.publish(moves) if moves else []
    if missing:
        require_nothing_missing(sink, missing)


def require_nothing_missing(sink: FileSink, missing: Sequence[tuple[str, str]]) -> None:
    """Raise ConnectorError for files that are gone, unless a consumer may have taken them."""
    if sink.ignore_missing:
        return
    staged, target = missing[0]
    raise ConnectorError(
        f"{type(sink).__name__}: {len(missing)} pre-committed file(s) are gone, the first is {staged}, to become {target}. Its rows "
        f"would be missing from the output. Where a job went on after the savepoint that holds them, and failed before its next checkpoint, "
        f"it has written these rows again: start from a later snapshot of it. Else somebody cleaned {STAGING}; if a consumer took the "
        "committed file away, use ignore_missing=True"
    )


def remove_staged(files: OutputFiles, committables: Sequence[Committable]) -> bool:
    """Delete what is staged; files that were published lie elsewhere by now. Returns whether there was any."""
    staged = [each.data["staged"] for each in committables if "staged" in each.data]
    there = [path for path in staged if files.exists(path)]
    for path in there:
        files.delete(path)
    return bool(there)


def staged_there(files: OutputFiles, place: SinkPlace) -> frozenset[StagedName | None]:
    """What attempts of this job have staged by now; those of other jobs and programs count as none."""
    return frozenset(map(StagedName.parse, files.names(place.staging)))


def remove_orphans(files: OutputFiles, place: SinkPlace, suffix: str, there: frozenset[StagedName | None]) -> None:
    """Delete staged files that lost attempts of this subtask left behind. `there`: see `SinkPlace.is_orphan`."""
    for name in files.names(place.staging):
        if name.endswith(suffix) and place.is_orphan(name, there):
            files.delete(f"{place.staging}/{name}")


def close_staging(files: OutputFiles, place: SinkPlace) -> None:
    """Remove the staging directories when nothing is in them."""
    files.remove_directory_if_empty(place.staging)
    files.remove_directory_if_empty(f"{place.directory}/{STAGING}")
