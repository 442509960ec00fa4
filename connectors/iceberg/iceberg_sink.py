"""Iceberg tables as a sink: one snapshot of the table for each checkpoint, for all subtasks, exactly once.

A writer puts Parquet files where they stay; readers follow the table's metadata and do not see them. When the
checkpoint is complete, one committer adds all of its files, and the columns that they bring, in one commit; the
snapshot's summary names job, sink and checkpoint. A commit looks for that name among the ancestors of the newest
snapshot first, and replaces exactly the state of the table that it has looked at: whoever loses the race looks again.
What no commit names is an orphan, which the table's own maintenance removes. Mirrors Iceberg's sink for Flink.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from snapline.connectors.connector_metrics import COMMIT_RETRIES
from snapline.connectors.files.file_writer import RollingPolicy, SealedFile, conformed, rolling_policy
from snapline.connectors.files.output_files import open_output
from snapline.connectors.files.partitions import names_of, split_by_keys
from snapline.connectors.files.staging import SinkPlace
from snapline.connectors.formats.file_format import ParquetFormat
from snapline.connectors.iceberg.iceberg_merge import merge_rows
from snapline.connectors.iceberg.iceberg_table import (
    Catalog,
    Partitions,
    ancestors,
    columns_of,
    failures,
    finds_partitions,
    iceberg_type,
    open_catalog,
    open_table,
    unusable,
    with_required_parts,
)
from snapline.connectors.tables.keyed_rows import KeyedRows, require_meeting, waiting_rows, without
from snapline.connectors.tables.table_columns import NewColumns, columns_to_write, require_known_years, require_no_nulls
from snapline.connectors.tables.table_commits import commit_against_others, delete_files, path_of, require_files
from snapline.connectors.tables.table_writer import TableWriter
from snapline.dataflow.api.connector_api import (
    GlobalCommittable,
    GlobalCommitter,
    Sink,
    SinkWriter,
    SourceContextInfo,
)
from snapline.dataflow.api.user_metrics import Counter
from snapline.dataflow.errors import ConnectorError

JOB, SINK, CHECKPOINT = "snapline.job", "snapline.sink", "snapline.checkpoint"
RETRIES = "commit.retry.num-retries"
S3_PROPERTIES = {
    "s3.endpoint": ("s3.endpoint",),
    "s3.access-key": ("s3.access-key-id", "client.access-key-id"),
    "s3.secret-key": ("s3.secret-access-key", "client.secret-access-key"),
    "s3.session-token": ("s3.session-token", "client.session-token"),
    "s3.region": ("s3.region", "client.region"),
}
"""What pyiceberg calls the options of our file system; catalogues say them, too, with keys that they lend."""


class IcebergSink(Sink):
    """Appends rows to an Iceberg table, which is made when there is none; a checkpoint is one snapshot.

    >>> catalog = {"type": "sql", "uri": f"sqlite:///{tmp}/catalog.db", "warehouse": f"file://{tmp}/warehouse"}
    >>> from pyiceberg.catalog import load_catalog
    >>> load_catalog("default", **catalog).create_namespace("shop")
    >>> sales = sl_connectors.IcebergSink("shop.sales", catalog=catalog, partition_by=["shop"], new_columns="add")
    >>> orders.sink_to(sales, uid="sales-table").committer.node.name
    'IcebergSink: Committer'
    >>> sales.commits_together, sales.before_writing(orders) is orders
    (True, False)
    >>> sales.described
    'IcebergSink shop.sales'
    >>> sales.validate()
    """

    def __init__(
        self,
        table: str,
        *,
        catalog: Catalog,
        partition_by: str | Sequence[str] | None = None,
        key: str | Sequence[str] = (),
        delete: str = "",
        new_columns: NewColumns = "fail",
        shuffle: bool | None = None,
        rolling: RollingPolicy | None = None,
        compression: str = "zstd",
        schema: pa.Schema | None = None,
    ) -> None:
        """`table`: its name with the namespace, `shop.sales`. `catalog`: properties of a catalogue as pyiceberg has
        them (`type`, `uri`, `warehouse`, `s3.*` ... and its `name`, else `default`), or its name in pyiceberg's
        configuration. `partition_by`: columns, by their values; default is what the table has, with its transforms.
        `key`: rows replace those of the table with the same values in these columns, and are added where there are
        none; the library writes the files anew that hold them. `delete`: with `key`, a column that is not written:
        true, or the row kind `-D`, deletes the row of the key; `-U` is passed over. `new_columns`: what becomes of
        columns that the table lacks, `fail` or `add`. `shuffle`: rows with equal `partition_by` meet in one subtask, so
        that fewer files are written (default: where it is said). `schema`: of the rows; default is that of the first
        batch."""
        if new_columns not in ("fail", "add"):
            raise ConnectorError(f"IcebergSink: new_columns is 'fail' or 'add', not {new_columns!r}")
        if "." not in table.strip("."):
            raise ConnectorError(f"IcebergSink: table needs its namespace, as in 'shop.sales', not {table!r}")
        self.table = table
        self.path: str = table
        """What errors call the place that is written to."""
        self.catalog: Catalog = catalog if isinstance(catalog, str) else dict(catalog)
        self.partition_by: tuple[str, ...] | None = None if partition_by is None else names_of(partition_by)
        self.key: tuple[str, ...] = names_of(key)
        self.delete = delete
        require_meeting("IcebergSink", self.key, delete, shuffle)
        self.new_columns: NewColumns = new_columns
        self.shuffle: bool = bool(self.partition_by) if shuffle is None else shuffle
        if self.shuffle and not self.partition_by:
            raise ConnectorError("IcebergSink: shuffle=True needs partition_by")
        self.rolling: RollingPolicy = rolling_policy(rolling, "IcebergSink")
        self.format: ParquetFormat = ParquetFormat(compression=compression)
        self.schema = schema
        self.stream_schema: pa.Schema | None = None
        """What the stream's rows are known to be, for the table of a sink without rows."""

    @property
    def described(self) -> str:
        """The sink's kind and table, for errors."""
        return f"IcebergSink {self.table}"

    @property
    def commits_together(self) -> bool:
        return True

    def validate(self) -> None:
        catalog = open_catalog(self.catalog)
        rows = rows_for(self, open_table(catalog, self.table))
        namespace = self.table.rpartition(".")[0]
        try:
            there = catalog.namespace_exists(namespace)
        except failures() as error:
            raise unusable(self.table, error) from error
        if not there:
            raise ConnectorError(
                f"{self.described}: there is no namespace {namespace!r} in the catalogue; create it first"
            )
        if self.schema is not None:
            rows.fit(self.schema)

    def before_writing(self, stream: Any) -> Any:
        self.stream_schema = getattr(stream, "schema", None)
        if self.key:
            return stream.key_by(*self.key)
        return stream.key_by(*(self.partition_by or ())) if self.shuffle else stream

    def create_writer(self, context: SourceContextInfo, restored: Sequence[dict[str, Any]]) -> SinkWriter:
        return IcebergWriter(self, context)

    def create_global_committer(self, context: SourceContextInfo) -> GlobalCommitter:
        return IcebergCommitter(self.table, self.catalog, context.metrics.counter(COMMIT_RETRIES))


class IcebergWriter(SinkWriter):
    """Writes data files where the table wants them. Where it is to be made, that is known when the first rows come,
    since the catalogue decides it: so a subtask makes the table, empty, and others find it."""

    def __init__(self, sink: IcebergSink, context: SourceContextInfo) -> None:
        self._sink = sink
        self._context = context
        self._writer: TableWriter | None = None
        self._may_make_table = context.subtask_index == 0

    def write(self, batch: pa.RecordBatch) -> None:
        if batch.num_rows:
            self._opened(batch.schema).write(batch)

    def prepare_commit(self, checkpoint_id: int) -> Sequence[Any]:
        if self._writer is not None:
            return self._writer.prepare_commit(checkpoint_id)
        columns = self._sink.schema or self._sink.stream_schema
        if self._may_make_table and columns is not None:  # so that readers find one that has no rows yet
            self._opened(columns)
        self._may_make_table = False
        return []

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()

    def _opened(self, rows: pa.Schema) -> TableWriter:
        if self._writer is None:
            sink = self._sink
            catalog = open_catalog(sink.catalog)
            table = open_table(catalog, sink.table)
            if table is None:
                table = create_table(catalog, sink, rows_for(sink, None).fit(sink.schema or rows))
            directory, options = data_directory(table)
            files, location = open_output(directory, options)
            place = SinkPlace.of(location.path, self._context)
            self._writer = TableWriter(sink, files, place, rows_for(sink, table, directory), self._context.metrics)
        return self._writer


def rows_for(sink: IcebergSink, table: Any | None, directory: str = "") -> IcebergRows | KeyedRows:
    """How the sink's rows become files of the table, or of one that is to be made: to be added, or to be merged."""
    rows = IcebergRows(sink, table, directory)
    if sink.key or (table is not None and not finds_partitions(table)):
        rows.partitions.require_rewriting(sink.described)
    if not sink.key:
        return rows
    return KeyedRows(rows, sink.key, sink.delete, sink.described, takes_nan=False)


def create_table(catalog: Any, sink: IcebergSink, columns: pa.Schema) -> Any:
    """Make an empty table for such rows; somebody else may be faster."""
    try:
        with catalog.create_table_transaction(sink.table, columns) as transaction, transaction.update_spec() as spec:
            for name in sink.partition_by or ():
                spec.add_identity(name)
    except failures() as error:
        table = open_table(catalog, sink.table)
        if table is None:
            raise unusable(sink.table, error) from error
        return table
    return open_table(catalog, sink.table)


def data_directory(table: Any) -> tuple[str, dict[str, str]]:
    """Where data files go, and how our file system reaches it."""
    directory = table.properties.get("write.data.path") or f"{table.location().rstrip('/')}/data"
    properties = table.io.properties
    found = {ours: next(filter(None, map(properties.get, names)), "") for ours, names in S3_PROPERTIES.items()}
    options = {ours: value for ours, value in found.items() if value}
    return directory.removeprefix("file://") if directory.startswith("file:///") else directory, options


def is_below(table: Any, directory: str) -> bool:
    """Whether a directory is where files of the table go, or below the table."""
    bases = {data_directory(table)[0], table.location().removeprefix("file://")}
    is_there = any(f"{directory}/".startswith(f"{base.rstrip('/')}/") for base in bases)
    return is_there and ".." not in directory.split("/")


def require_directory(table: Any, note: Mapping[str, Any], what: str) -> None:
    """Raise ConnectorError for files to delete that lie neither where those of the table go nor below the table."""
    if not is_below(table, directory := note["directory"]):
        raise ConnectorError(
            f"{what}: the snapshot names files in {directory!r:.300}, which is no directory of the table: it was changed, or the "
            "table has moved; take another one"
        )


def require_known_keys(sink: IcebergSink, columns: pa.Schema) -> None:
    """Raise ConnectorError for a key by which the library finds no rows."""
    for name in sink.key:
        if name in columns.names and columns.field(name).type == pa.uuid():
            raise ConnectorError(
                f"{sink.described}: key= names {name!r}, which is a UUID, and pyiceberg finds no rows by one; give the table a text or "
                "fixed[16] in its place, or take another key"
            )


class IcebergRows:
    """How rows become data files of one table, as the table was when the writer began."""

    def __init__(self, sink: IcebergSink, table: Any | None, directory: str = "") -> None:
        self._sink = sink
        self._directory = directory
        self.partitions = Partitions(table, sink.partition_by, sink.described)
        self._table = None if table is None else columns_of(table)
        require_known_keys(sink, self._table or pa.schema([]))
        self._unfit = frozenset[str]() if table is None else with_required_parts(table)
        self._expected: pa.Schema | None = None if sink.schema is None else without(sink.schema, sink.delete)
        self._written: pa.Schema | None = None

    def fit(self, rows: pa.Schema) -> pa.Schema:
        """The columns that are written for such rows. Raises ConnectorError when they do not fit."""
        what = self._sink.described
        written = columns_to_write(rows, self._table, self._sink.new_columns, iceberg_type, what)
        if name := next((name for name in written.names if name in self._unfit), None):
            raise ConnectorError(
                f"{what}: column {name!r} of the table has parts that must not be null, which the rows cannot promise; make them optional "
                "in the table, or leave the column out"
            )
        self.partitions.require_columns(written, what)
        require_known_keys(self._sink, written)
        return written

    def prepared(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The rows with the columns that are written. Raises ConnectorError when they do not fit."""
        what = self._sink.described
        if self._expected is None:
            self._expected = batch.schema.remove_metadata()
        if self._written is None:
            self._written = self.fit(self._expected)
        batch = conformed(batch, self._expected, cast=self._sink.schema is not None, what=what)
        batch = conformed(batch, self._written, cast=True, what=what)
        require_known_years(batch, what)
        return batch

    def split(self, batch: pa.RecordBatch) -> Iterator[tuple[str, pa.RecordBatch]]:
        batch = self.prepared(batch)
        require_no_nulls(batch, self._sink.described)
        for values, rows in split_by_keys(batch, self.partitions.values(batch)):
            yield self.partitions.directory(values), rows

    def note(self) -> dict[str, Any]:
        columns = pa.schema(self._written).serialize().to_pybytes().hex()
        return {"table": self._sink.table, "directory": self._directory, "columns": columns,
                "new_columns": self._sink.new_columns, "spec": self.partitions.spec_id}  # fmt: skip

    def note_of_file(self, file: SealedFile) -> dict[str, Any]:
        return {}


class IcebergCommitter(GlobalCommitter):
    """Adds the files of a checkpoint to the table they were written for. What it is told suffices, so that any process
    can commit."""

    def __init__(self, table: str, catalog: Catalog, retries: Counter) -> None:
        self._name = table
        self._retries = retries
        self._catalog = open_catalog(catalog)

    def last_committed(self, job_id: str, sink_uid: str) -> int | None:
        table = open_table(self._catalog, self._name)
        return None if table is None else committed(table, job_id, sink_uid)

    def commit(self, together: GlobalCommittable) -> None:
        what = f"Iceberg table {self._name}"
        commit_against_others(lambda: self._try(together), what, together.checkpoint_id, self._retries)

    def abort(self, together: GlobalCommittable) -> None:
        table = open_table(self._catalog, self._name)
        if table is None:
            raise ConnectorError(
                f"Iceberg table {self._name} is gone, and with it where its files lie: delete them by hand"
            )
        for each in together.committables:
            require_directory(table, each.data, f"Iceberg table {self._name}")
            delete_files(each.data["directory"], data_directory(table)[1], each.data["files"])

    def _try(self, together: GlobalCommittable) -> bool:
        """Commit onto the table as it is now. Returns False when somebody else has changed it meanwhile."""
        from pyiceberg.exceptions import CommitFailedException

        notes = [each.data for each in together.committables]
        what = f"Iceberg table {self._name}, checkpoint {together.checkpoint_id}"
        table = open_table(self._catalog, self._name)
        if self._is_elsewhere(together, table, what):
            return True
        if table is None:
            raise ConnectorError(
                f"{what}: the table is gone since its rows were written; put it back, or start the job anew"
            )
        done = committed(table, together.job_id, together.sink_uid)
        if done is not None and done >= together.checkpoint_id:
            return True
        if together.may_repeat:
            for note in notes:
                require_files(note["directory"], data_directory(table)[1], note["files"], what)
        paths = [path_of(note["directory"], file) for note in notes for file in note["files"]]
        before = table.metadata_location
        summary = {JOB: together.job_id, SINK: together.sink_uid, CHECKPOINT: str(together.checkpoint_id)}
        # Files that were written for other partitions, or whose partition nobody finds, cannot be added, and their rows
        # are written anew.
        is_respread = any(note.get("spec", table.spec().spec_id) != table.spec().spec_id for note in notes)
        lacking = [columns_lacking(table, note, what) for note in {note["columns"]: note for note in notes}.values()]
        # The library would commit again by itself, without another look at what was committed meanwhile.
        table.metadata = table.metadata.model_copy(update={"properties": {**table.metadata.properties, RETRIES: "0"}})
        try:
            is_respread = is_respread or not finds_partitions(table)
            with table.transaction() as transaction:
                for columns in lacking:
                    if columns is not None:
                        with transaction.update_schema() as update:
                            update.union_by_name(columns)
                if key := notes[0].get("key"):
                    waiting = waiting_rows(notes[0]["directory"], data_directory(table)[1], notes)
                    required = [field.name for field in columns_of(table) if not field.nullable]
                    merge_rows(transaction, waiting, key, required, summary)
                elif is_respread:
                    transaction.append(rows_of_files(table, notes), summary)
                else:
                    transaction.add_files(paths, summary, check_duplicate_files=together.may_repeat)
        except CommitFailedException as error:
            newest = open_table(self._catalog, self._name)
            if newest is not None and newest.metadata_location == before:
                raise unusable(self._name, error) from error
            return False
        except failures() as error:
            raise unusable(self._name, error) from error
        if key or is_respread:
            self.abort(together)  # the rows are in the table's own files
        return True

    def _is_elsewhere(self, together: GlobalCommittable, table: Any | None, what: str) -> bool:
        """Whether another table has the rows, for which they were written. Raises ConnectorError when it has them not:
        a job that starts from a snapshot with another table brings this one nothing that went there."""
        for note in (each.data for each in together.committables):
            name = note.get("table", self._name)
            if name == self._name or (table is not None and is_below(table, note["directory"])):  # it was renamed
                continue
            other = open_table(self._catalog, name)
            done = None if other is None else committed(other, together.job_id, together.sink_uid)
            if done is not None and done >= together.checkpoint_id:
                return True
            raise ConnectorError(
                f"{what}: the snapshot has rows that were written for the table {name}, and not committed there: start the job with that "
                "table once more, or give the sink another uid"
            )
        return False


def committed(table: Any, job_id: str, sink_uid: str) -> int | None:
    """The checkpoint that the newest snapshot of this job and sink names, among those that the table's state rests
    on."""
    for snapshot in ancestors(table, ".".join(table.name())):
        said = snapshot.summary.additional_properties if snapshot.summary is not None else {}
        if (said.get(JOB), said.get(SINK)) == (job_id, sink_uid):
            return int(said[CHECKPOINT])
    return None


def rows_of_files(table: Any, notes: Sequence[Mapping[str, Any]]) -> pa.Table:
    """The rows of a checkpoint's files."""
    tables = []
    for note in notes:
        files, location = open_output(note["directory"], data_directory(table)[1])
        for file in note["files"]:
            with files.read(path_of(location.path, file)) as stream:
                tables.append(pq.read_table(stream))
    return pa.concat_tables(tables, promote_options="default")


def columns_lacking(table: Any, note: Mapping[str, Any], what: str) -> pa.Schema | None:
    """What files have and the table lacks, which may be added; None where there is nothing. Raises ConnectorError when
    the table was changed so that the files do not fit."""
    written = pa.ipc.read_schema(pa.py_buffer(bytes.fromhex(note["columns"])))
    columns = columns_of(table)
    columns_to_write(written, columns, note["new_columns"], iceberg_type, f"{what}: the table has changed")
    lacking = [field for field in written if field.name not in columns.names]
    return pa.schema(lacking) if lacking else None
