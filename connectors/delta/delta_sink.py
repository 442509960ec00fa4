"""Delta tables as a sink: one commit of the table for each checkpoint, for all subtasks, exactly once.

A writer puts Parquet files where they stay; readers follow the table's log and do not see them. When the checkpoint is
complete, one committer adds all of its files in one commit, which carries Delta's `txn` action: the application is job
and sink, its version the checkpoint's id. Both change in one step of the table, so a commit that is repeated finds
itself done. Every attempt looks at the table anew and commits only onto the version that it has looked at: a process
that is thought dead cannot slip in between. What no commit names is an orphan, which the table's own VACUUM removes.
Mirrors the sink of Delta's connector for Flink.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import decimal
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from snapline.connectors.connector_metrics import COMMIT_RETRIES
from snapline.connectors.delta.delta_statistics import statistics_of
from snapline.connectors.delta.delta_table import (
    columns_of,
    delta_type,
    failures,
    library,
    library_options,
    named_twice,
    open_table,
    require_conditional_writes,
    require_partitions,
    require_plain,
    unusable,
)
from snapline.connectors.files.file_writer import RollingPolicy, SealedFile, conformed, rolling_policy
from snapline.connectors.files.filesystems import PathLike, absolute
from snapline.connectors.files.output_files import OutputFiles, open_output
from snapline.connectors.files.partitions import names_of, split_by_values
from snapline.connectors.files.staging import SinkPlace, partition_directory
from snapline.connectors.formats.file_format import ParquetFormat
from snapline.connectors.tables.keyed_rows import GONE, KeyedRows, require_meeting, waiting_rows, without
from snapline.connectors.tables.table_columns import NewColumns, columns_to_write, require_no_nulls
from snapline.connectors.tables.table_commits import commit_against_others, delete_files, require_files
from snapline.connectors.tables.table_writer import TableRows, TableWriter
from snapline.dataflow.api.connector_api import (
    Committable,
    GlobalCommittable,
    GlobalCommitter,
    Sink,
    SinkWriter,
    SourceContextInfo,
)
from snapline.dataflow.api.user_metrics import Counter, MetricGroup
from snapline.dataflow.errors import ConnectorError


class DeltaSink(Sink):
    """Appends rows to a Delta table, which is made when there is none; a checkpoint is one commit.

    >>> sales = sl_connectors.DeltaSink(f"{tmp}/sales", partition_by=["shop"], new_columns="add")
    >>> orders.sink_to(sales, uid="sales").committer.node.name
    'DeltaSink: Committer'
    >>> sales.validate()
    >>> sales.commits_together, sales.before_writing(orders) is orders
    (True, False)
    >>> sales.described.startswith("DeltaSink ")
    True
    """

    def __init__(
        self,
        path: PathLike,
        *,
        partition_by: str | Sequence[str] | None = None,
        key: str | Sequence[str] = (),
        delete: str = "",
        new_columns: NewColumns = "fail",
        shuffle: bool | None = None,
        rolling: RollingPolicy | None = None,
        compression: str = "zstd",
        schema: pa.Schema | None = None,
        storage_options: Mapping[str, str] | None = None,
    ) -> None:
        """`partition_by`: default is what the table has; a table that is made here has none then. `key`: rows replace
        those of the table with the same values in these columns, and are added where there are none. `delete`: with
        `key`, a column that is not written: true, or the row kind `-D`, deletes the row of the key; `-U` is passed
        over. `new_columns`: what becomes of columns that the table lacks, `fail` or `add`. `shuffle`: rows of a
        partition meet in one subtask, so that fewer files are written (default: where partition_by is said).
        `schema`: of the rows; default is that of the first batch. `storage_options`: `s3.*` as everywhere, and
        deltalake's own."""
        if new_columns not in ("fail", "add"):
            raise ConnectorError(f"DeltaSink: new_columns is 'fail' or 'add', not {new_columns!r}")
        self.path: str = absolute(path)
        self.partition_by: tuple[str, ...] | None = None if partition_by is None else names_of(partition_by)
        self.key: tuple[str, ...] = names_of(key)
        self.delete = delete
        require_meeting("DeltaSink", self.key, delete, shuffle)
        self.new_columns: NewColumns = new_columns
        self.shuffle: bool = bool(self.partition_by) if shuffle is None else shuffle
        if self.shuffle and not self.partition_by:
            raise ConnectorError("DeltaSink: shuffle=True needs partition_by")
        self.rolling: RollingPolicy = rolling_policy(rolling, "DeltaSink")
        self.format: ParquetFormat = ParquetFormat(compression=compression)
        self.schema = schema
        self.stream_schema: pa.Schema | None = None
        """What the stream's rows are known to be, for the table of a sink without rows."""
        self.storage_options: dict[str, str] = dict(storage_options or {})

    @property
    def described(self) -> str:
        """The sink's kind and path, for errors."""
        return f"DeltaSink {self.path}"

    @property
    def commits_together(self) -> bool:
        return True

    def validate(self) -> None:
        library()
        files, location = open_output(self.path, file_options(self.storage_options))
        files.prepare(location.path)
        require_conditional_writes(self.path, self.storage_options)
        rows = rows_for(self)
        if self.schema is not None:
            rows.fit(self.schema)

    def before_writing(self, stream: Any) -> Any:
        self.stream_schema = getattr(stream, "schema", None)
        if self.key:
            return stream.key_by(*self.key)
        return stream.key_by(*(self.partition_by or ())) if self.shuffle else stream

    def create_writer(self, context: SourceContextInfo, restored: Sequence[dict[str, Any]]) -> SinkWriter:
        files, location = open_output(self.path, file_options(self.storage_options))
        place = SinkPlace.of(location.path, context)
        return DeltaWriter(self, files, place, rows_for(self), context.metrics)

    def create_global_committer(self, context: SourceContextInfo) -> GlobalCommitter:
        return DeltaCommitter(self.path, self.storage_options, context.metrics.counter(COMMIT_RETRIES))


class DeltaWriter(TableWriter):
    """Writes data files, and the table itself where the first checkpoint has no rows."""

    def __init__(
        self, sink: DeltaSink, files: OutputFiles, place: SinkPlace, rows: TableRows, metrics: MetricGroup
    ) -> None:
        super().__init__(sink, files, place, rows, metrics)
        self._sink_of_no_rows: DeltaSink | None = None if place.subtask else sink

    def prepare_commit(self, checkpoint_id: int) -> Sequence[Committable]:
        committables = super().prepare_commit(checkpoint_id)
        sink, self._sink_of_no_rows = self._sink_of_no_rows, None
        if sink is not None and not committables:
            make_table(sink)
        return committables


def file_options(options: Mapping[str, str]) -> dict[str, str]:
    """Those storage options that our own file system has."""
    return {name: value for name, value in options.items() if name.startswith("s3.")}


def rows_for(sink: DeltaSink) -> DeltaRows | KeyedRows:
    """How the sink's rows become files of its table: to be added, or to be merged."""
    rows = DeltaRows(sink)
    return KeyedRows(rows, sink.key, sink.delete, sink.described) if sink.key else rows


def make_table(sink: DeltaSink) -> None:
    """Make the table, without rows, if it is not there and the columns of the rows are known: readers find it then that
    would fail without."""
    columns = sink.schema or sink.stream_schema
    if columns is not None and open_table(sink.path, sink.storage_options) is None:
        schema = library().Schema.from_arrow(rows_for(sink).fit(columns))
        create_table(sink.path, sink.storage_options, schema, sink.partition_by or ())


class DeltaRows:
    """How rows become data files of one table, as the table was when the writer began."""

    def __init__(self, sink: DeltaSink) -> None:
        self._sink = sink
        self._table: pa.Schema | None = None
        self._partition_by = sink.partition_by or ()
        table = open_table(sink.path, sink.storage_options)
        if table is not None:
            require_plain(table, sink.described)
            self._partition_by = require_partitions(table, sink.partition_by, sink.described)
            self._table = columns_of(table)
        self._expected: pa.Schema | None = None if sink.schema is None else without(sink.schema, sink.delete)
        self._written: pa.Schema | None = None
        self._values: dict[str, dict[str, str | None]] = {}
        """The values of partitions that rows have come for, by their directory."""
        self._with_nan: set[str] = set()
        """Columns in which not-a-number has come."""

    def fit(self, rows: pa.Schema) -> pa.Schema:
        """The columns that are written for such rows. Raises ConnectorError when they do not fit."""
        what = self._sink.described
        written = columns_to_write(rows, self._table, self._sink.new_columns, delta_type, what)
        for field in written:
            if twice := named_twice(field.type):
                raise ConnectorError(
                    f"{what}: two parts of a record in column {field.name!r} are called {twice!r} but for capitals, and are one to "
                    "Delta; rename one of them"
                )
        for name in self._partition_by:
            if name not in written.names:
                raise ConnectorError(f"{what}: the table is partitioned by {name!r}, which the rows have not")
            kind = written.field(name).type
            if pa.types.is_nested(kind) or pa.types.is_floating(kind) or pa.types.is_binary(kind):
                raise ConnectorError(
                    f"{what}: partition_by names {name!r}, which is {kind}; use a column of another type"
                )
        return written

    def prepared(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The rows with the columns that are written. Raises ConnectorError when they do not fit."""
        what = self._sink.described
        if self._expected is None:
            self._expected = batch.schema.remove_metadata()
        if self._written is None:
            self._written = self.fit(self._expected)
        batch = conformed(batch, self._expected, cast=self._sink.schema is not None, what=what)
        return conformed(batch, self._written, cast=True, what=what)

    def split(self, batch: pa.RecordBatch) -> Iterator[tuple[str, pa.RecordBatch]]:
        what = self._sink.described
        batch = self.prepared(batch)
        require_no_nulls(batch, what)
        for name, column in zip(batch.schema.names, batch.columns, strict=True):
            if pa.types.is_floating(column.type) and pc.any(pc.is_nan(column)).as_py():
                self._with_nan.add(name)
        for values, rows in split_by_values(batch, self._partition_by, what):
            texts = dict(zip(self._partition_by, map(partition_text, values), strict=True)) if values else {}
            directory = partition_directory(tuple(texts), tuple(texts.values()), safe="")
            self._values.setdefault(directory, texts)
            yield directory, rows

    def note(self) -> dict[str, Any]:
        schema = library().Schema.from_arrow(self._written)
        return {"table": self._sink.path, "schema": schema.to_json(), "partition_by": list(self._partition_by),
                "new_columns": self._sink.new_columns}  # fmt: skip

    def note_of_file(self, file: SealedFile) -> dict[str, Any]:
        return {"partition": self._values[file.partition], "statistics": statistics_of(file.summary, self._with_nan)}


def partition_text(value: Any) -> str | None:
    """A value of a partition column as Delta's log has it; to Delta, an empty string is null."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, dt.datetime):
        return value.replace(tzinfo=None).isoformat(" ", "microseconds")
    if isinstance(value, decimal.Decimal):
        return f"{value:f}"
    if isinstance(value, bytes):
        return value.decode(errors="replace") or None
    return None if value is None else str(value) or None


def create_table(path: str, options: Mapping[str, str], schema: Any, partition_by: Sequence[str]) -> None:
    """Make an empty table with this schema of deltalake's; somebody else may be faster."""
    try:
        library().DeltaTable.create(
            path,
            schema=schema,
            mode="ignore",
            partition_by=list(partition_by),
            storage_options=library_options(options),
        )
    except failures() as error:
        if open_table(path, options) is None:
            raise unusable(path, error) from error


class DeltaCommitter(GlobalCommitter):
    """Adds the files of a checkpoint to the table they were written for. What it is told suffices, so that any process
    can commit."""

    def __init__(self, path: str, storage_options: Mapping[str, str], retries: Counter) -> None:
        self._path = path
        self._retries = retries
        self._options = storage_options
        self._table: Any = None

    def last_committed(self, job_id: str, sink_uid: str) -> int | None:
        table = self._newest()
        with self._failures():
            return None if table is None else table.transaction_version(application(job_id, sink_uid))

    def commit(self, together: GlobalCommittable) -> None:
        what = f"Delta table {self._path}"
        commit_against_others(lambda: self._try(together), what, together.checkpoint_id, self._retries)

    def abort(self, together: GlobalCommittable) -> None:
        for each in together.committables:
            delete_files(self._path, file_options(self._options), each.data["files"])

    def _try(self, together: GlobalCommittable) -> bool:
        """Commit onto the table as it is now. Returns False when somebody else has changed it meanwhile."""
        deltalake = library()
        notes = [each.data for each in together.committables]
        what = f"Delta table {self._path}, checkpoint {together.checkpoint_id}"
        table = self._newest()
        if table is None:
            self._create(notes[0], what, is_restored=together.may_repeat)
            return False
        who = application(together.job_id, together.sink_uid)
        with self._failures():
            done = table.transaction_version(who)
        if done is not None and done >= together.checkpoint_id:
            return True
        require_plain(table, what)
        partition_by = require_partitions(table, notes[0]["partition_by"], what)
        if together.may_repeat:
            self._require_files(notes, what)
        version = table.version()
        properties = deltalake.CommitProperties(
            custom_metadata={
                "snapline.job": together.job_id,
                "snapline.sink": together.sink_uid,
                "snapline.checkpoint": str(together.checkpoint_id),
            },
            max_commit_retries=0,
            app_transactions=[deltalake.Transaction(who, together.checkpoint_id)],
        )
        try:
            if self._add_columns(table, notes, what):
                return False
            if key := notes[0].get("key"):
                merge(table, waiting_rows(self._path, file_options(self._options), notes), key, properties)
                if table.version() == version:  # nothing has changed, and a repeated commit has to find itself done
                    self._add(table, [], partition_by, properties)
                self.abort(together)  # the rows are in the table's own files
                return True
            added = [action(file) for data in notes for file in data["files"]]
            self._add(table, added, partition_by, properties)
        except deltalake.exceptions.CommitFailedError as error:
            newest = self._newest()
            if newest is not None and newest.version() == version:
                raise unusable(self._path, error) from error
            return False
        except failures() as error:
            raise unusable(self._path, error) from error
        return True

    @staticmethod
    def _add(table: Any, added: Sequence[Any], partition_by: Sequence[str], properties: Any) -> None:
        table.create_write_transaction(
            added, "append", table.schema(), list(partition_by), commit_properties=properties
        )

    def _newest(self) -> Any:
        """The table as it is now; None where there is none."""
        if self._table is None:
            self._table = open_table(self._path, self._options)
            return self._table
        with self._failures():
            is_there = library().DeltaTable.is_deltatable(self._path, library_options(self._options))
            if is_there:
                self._table.update_incremental()
        if not is_there:
            raise ConnectorError(
                f"Delta table {self._path}: the table is gone since this job began to write it; put it back, or start the job "
                "anew with another path"
            )
        return self._table

    def _create(self, note: Mapping[str, Any], what: str, *, is_restored: bool) -> None:
        """Make an empty table for these rows; somebody else may be faster."""
        if is_restored:
            self._require_files([note], what)
        create_table(self._path, self._options, library().Schema.from_json(note["schema"]), note["partition_by"])

    def _add_columns(self, table: Any, notes: Sequence[Mapping[str, Any]], what: str) -> bool:
        """Give the table the columns that files have and it lacks, in a commit of its own. Returns whether it did."""
        deltalake = library()
        columns = columns_of(table)
        lacking: dict[str, Any] = {}
        for note in {note["schema"]: note for note in notes}.values():
            schema = deltalake.Schema.from_json(note["schema"])
            written = pa.schema(schema.to_arrow())
            fitting = columns_to_write(
                written, columns, note["new_columns"], delta_type, f"{what}: the table has changed"
            )
            pairs = zip(written, fitting, strict=True)
            changed = next((a.name for a, b in pairs if a.type != b.type and a.name in columns.names), None)
            if changed is not None:
                raise ConnectorError(f"{what}: the type of column {changed!r} has changed since the files were written")
            for field in schema.fields:
                if field.name not in columns.names:
                    lacking.setdefault(field.name, field)
        if not lacking:
            return False
        table.alter.add_columns(
            list(lacking.values()), commit_properties=deltalake.CommitProperties(max_commit_retries=0)
        )
        return True

    def _require_files(self, notes: Sequence[Mapping[str, Any]], what: str) -> None:
        for note in notes:
            require_files(self._path, file_options(self._options), note["files"], what)

    @contextlib.contextmanager
    def _failures(self) -> Iterator[None]:
        try:
            yield
        except failures() as error:
            raise unusable(self._path, error) from error


def application(job_id: str, sink_uid: str) -> str:
    """Who commits, for Delta: one counter of versions for each."""
    return f"snapline/{job_id}/{sink_uid}"


def action(file: Mapping[str, Any]) -> Any:
    """What the log says of a new file; the library encodes its path."""
    from deltalake.transaction import AddAction

    return AddAction(
        file["path"],
        file["bytes"],
        file["partition"],
        time.time_ns() // 1_000_000,
        data_change=True,
        stats=file["statistics"],
    )


def merge(table: Any, rows: pa.Table, key: Sequence[str], properties: Any) -> None:
    """Take the rows into the table in one commit: those of known keys are updated in the columns that came, deleted
    where they say so, and the rest is inserted. Raises what deltalake raises."""
    values = {_quoted(name): f"s.{_quoted(name)}" for name in rows.column_names if name != GONE}
    same = " AND ".join(f"t.{_quoted(name)} = s.{_quoted(name)}" for name in key)
    merger = table.merge(rows, same, source_alias="s", target_alias="t", commit_properties=properties)
    merger = merger.when_matched_delete(f"s.{GONE}")
    merger = merger.when_matched_update(values, predicate=f"NOT s.{GONE}")
    merger.when_not_matched_insert(values, predicate=f"NOT s.{GONE}").execute()


def _quoted(name: str) -> str:
    return '"{}"'.format(name.replace('"', '""'))
