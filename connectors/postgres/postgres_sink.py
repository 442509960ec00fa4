"""Tables of PostgreSQL as a sink: idempotent by a key, or exactly once by prepared transactions.

Decides what a transaction is. Idempotent: rows are upserted by their key and committed as they come, so that what comes
again after a failure changes nothing in the end. Exactly once: all rows of a subtask and checkpoint are one
transaction, which the barrier prepares and the completion commits. Its name tells job, sink, subtask, attempt and
checkpoint, and its number lets the server say later whether it was committed, so a commit may come as often as it
likes. What lost attempts prepared for checkpoints after the restored one is rolled back before anything is written,
because it may hold locks on the very rows that come again. Mirrors Flink's JDBC sink with XA.
"""

from __future__ import annotations

import hashlib
import io
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv

from snapline.connectors.connector_metrics import BYTES_WRITTEN
from snapline.connectors.files.partitions import names_of
from snapline.connectors.files.staging import file_name
from snapline.connectors.own_output import require_kind, require_own
from snapline.connectors.postgres.postgres_table import (
    NO_PREPARED,
    TargetTable,
    bare_type,
    connect,
    identifier,
    library,
    place_of,
    quoted,
    refused,
    texts,
)
from snapline.dataflow.api.connector_api import Committable, Committer, Sink, SinkWriter, SourceContextInfo
from snapline.dataflow.api.user_metrics import Counter
from snapline.dataflow.errors import ConnectorError

BUFFERED_ROWS_MAX = 20_000
BUFFERED_BYTES_MAX = 64 << 20
"""Rows that are upserted wait for so many others, or bytes."""
LOCK_SECONDS = 10
PAUSE_SECONDS = 0.05
ATTEMPTS = 3
"""So often rows are upserted that other transactions cross."""
PLAIN_KEYS = frozenset({"smallint", "integer", "bigint", "text", "character varying"})
"""Types of which two texts that differ are two values, nearly always; those of UUIDs, say, may have small or capital
letters."""
BEGIN = (
    f"BEGIN; SET LOCAL lock_timeout = '{LOCK_SECONDS}s'; SET LOCAL TimeZone = 'UTC'; "
    "SET LOCAL idle_in_transaction_session_timeout = 0"
)
"""A time without a zone is one of UTC, whatever the server's own is, and a transaction waits for rows as long as they
take."""
PREFIX = "snapline"


class PostgresSink(Sink):
    """Writes rows to a table that is there; columns are matched by name.

    >>> sink = sl_connectors.PostgresSink("totals", dsn="postgresql://writer@db/shop", key=["shop"])
    >>> sink.two_phase, sl_connectors.PostgresSink("log", dsn="host=db dbname=shop", guarantee="exactly_once").two_phase
    (False, True)
    >>> sink.before_writing(orders).key_columns
    ('shop',)
    >>> sink.described
    'PostgresSink totals'
    """

    def __init__(
        self,
        table: str,
        *,
        dsn: str,
        key: str | Sequence[str] = (),
        guarantee: Literal["idempotent", "exactly_once"] = "idempotent",
    ) -> None:
        """`table`: perhaps with its schema, `public.totals`. `dsn`: as libpq has it, `postgresql://user@host/db` or
        `host=... dbname=...`; a password is better in PGPASSFILE or a service file on every machine. `key`: columns of
        a primary key or unique index; rows that are there are replaced. Rows of one key meet in one subtask.
        `exactly_once`: rows are visible when their checkpoint is complete; the server must allow prepared
        transactions."""
        if guarantee not in ("idempotent", "exactly_once"):
            raise ConnectorError(f"PostgresSink: guarantee is idempotent or exactly_once, not {guarantee!r}")
        self.table = table
        self.dsn = dsn
        self.key: tuple[str, ...] = names_of(key)
        self.guarantee = guarantee
        self.stream_schema: pa.Schema | None = None
        """What the stream's rows are known to be."""
        self._table: TargetTable | None = None
        """The table as it was when the target was looked at."""
        if guarantee == "idempotent" and not self.key:
            raise ConnectorError(
                "PostgresSink: guarantee='idempotent' needs key=, the columns by which rows replace each other; without one there is "
                "guarantee='exactly_once'"
            )

    @property
    def described(self) -> str:
        """The sink's kind and table, for errors."""
        return f"PostgresSink {self.table}"

    @property
    def two_phase(self) -> bool:
        return self.guarantee == "exactly_once"

    def validate(self) -> None:
        connection = connect(self.dsn)
        try:
            self._table = TargetTable.read(connection, self.table, self.key, self.described)
            self._require_columns()
            if self.two_phase:
                require_prepared_transactions(connection, self.described)
        except library().Error as error:
            raise refused(self.dsn, self.table, error) from error
        finally:
            connection.close()

    def before_writing(self, stream: Any) -> Any:
        self.stream_schema = getattr(stream, "schema", None)
        self._require_columns()
        return stream.key_by(*self.key) if self.key else stream

    def _require_columns(self) -> None:
        """Raise ConnectorError for rows that the table does not take, once both are known: the table is looked at
        before the stream comes."""
        if self._table is not None and self.stream_schema is not None:
            self._table.require_columns(self.stream_schema.names, self.described)
            texts(no_rows(self.stream_schema), self._table.bare_types, self.described)

    def create_writer(self, context: SourceContextInfo, restored: Sequence[dict[str, Any]]) -> SinkWriter:
        return PostgresWriter(self, TransactionOf.attempt_of(context), context.metrics.counter(BYTES_WRITTEN))

    def create_committer(self, context: SourceContextInfo) -> Committer:
        """Idempotent, too: the snapshot may be of a job that wrote exactly once, and hold what nobody has committed."""
        return PostgresCommitter(self, TransactionOf.attempt_of(context), context.parallelism)


def require_prepared_transactions(connection: Any, what: str) -> None:
    """Raise ConnectorError where the server has none."""
    (allowed,) = connection.execute("SELECT current_setting('max_prepared_transactions')::int").fetchone()
    if not allowed:
        raise ConnectorError(f"{what}: {NO_PREPARED}")


@dataclass(frozen=True, slots=True)
class TransactionOf:
    """Whose a prepared transaction is; as text, its name on the server, which is never used twice."""

    job: str
    uid: str
    subtask: int
    attempt_number: int
    graph: str
    """Stands for the execution graph of the attempt; each leader of the job that restarts it has another one."""
    checkpoint_id: int = 0

    @classmethod
    def attempt_of(cls, context: SourceContextInfo) -> TransactionOf:
        """The name for a subtask's attempt, which has come to no checkpoint yet."""
        job, uid = file_name(context.job_id), file_name(context.operator_uid)
        graph = hashlib.blake2b(context.execution_attempt.rsplit("_", 2)[0].encode(), digest_size=6).hexdigest()
        return cls(job, uid, context.subtask_index, context.attempt_number, graph)

    def __str__(self) -> str:
        return f"{self.whose}{self.subtask}:{self.attempt}:{self.checkpoint_id}"

    @property
    def attempt(self) -> str:
        """What no other attempt of the subtask has."""
        return f"{self.attempt_number}:{self.graph}"

    def follows(self, other: TransactionOf) -> bool:
        """Whether the other attempt is over: an earlier one of this execution graph, or one of another leader."""
        return self.graph != other.graph or self.attempt_number > other.attempt_number

    @property
    def whose(self) -> str:
        """What the names of all transactions of this job and sink begin with."""
        return f"{PREFIX}:{self.job}:{self.uid}:"

    def is_of_same_sink(self, name: object) -> bool:
        """Whether a transaction with this name is of the same sink, in this job or in one that it goes on from."""
        pattern = rf"{PREFIX}:[^:]+:{re.escape(self.uid)}:\d+:\d+:[0-9a-f]+:\d+"
        return isinstance(name, str) and re.fullmatch(pattern, name) is not None

    def parse(self, text: str) -> TransactionOf | None:
        """Read the name of a transaction of the same job and sink; None for another's."""
        found = re.fullmatch(r"(\d+):(\d+):([0-9a-f]+):(\d+)", text.removeprefix(self.whose))
        if not text.startswith(self.whose) or found is None:
            return None
        subtask, number, graph, checkpoint_id = found.groups()
        return TransactionOf(self.job, self.uid, int(subtask), int(number), graph, int(checkpoint_id))


class PostgresWriter(SinkWriter):
    """Writes rows of one subtask, in a transaction that is open until the barrier, or in many small ones."""

    gathers_rows = True

    def __init__(self, sink: PostgresSink, name: TransactionOf, bytes_written: Counter) -> None:
        self._sink = sink
        self._bytes_written = bytes_written
        self._name = name
        self._connection = connect(sink.dsn)
        self._target: TargetTable | None = None
        self._buffered: list[pa.RecordBatch] = []
        self._buffered_rows = self._buffered_bytes = 0
        self._rows = 0
        """In the transaction that is open, or that the rows in the buffer will make."""
        self._is_open = False
        self._swept = False
        self._are_texts_keys = True
        """Until the server has found two texts to be one key: 1 and 01, or letters that its collation takes for one."""

    def write(self, batch: pa.RecordBatch) -> None:
        if not batch.num_rows:
            return
        what = self._sink.described
        self._rows += batch.num_rows
        target = self._run(self._known_target)
        target.require_columns(batch.schema.names, what)
        written = texts(batch, target.bare_types, what)
        if not self._sink.key:
            self._run(lambda: self._append(written), written)
            return
        for name in self._sink.key:
            if name in written.schema.names and written.column(name).null_count:
                raise ConnectorError(
                    f"{what}: a row has no key: {name!r} is null, which equals nothing, so that the row would be there once more after "
                    "each failure; leave such rows out, or give them a value"
                )
        self._buffered.append(written)
        self._buffered_rows += written.num_rows
        self._buffered_bytes += written.nbytes
        # Prepared rows of the checkpoint before may hold locks, and are committed by this very thread: then wait.
        is_full = self._buffered_rows >= BUFFERED_ROWS_MAX or self._buffered_bytes >= BUFFERED_BYTES_MAX
        if not self._sink.two_phase and is_full:
            self._run(self._flush)

    def prepare_commit(self, checkpoint_id: int) -> Sequence[Committable]:
        if not self._sink.two_phase:
            self._run(self._flush)
            return ()
        committables = []
        if not self._swept:
            self._swept = True
            committables.append(Committable({"sweep": self._name.attempt}))
        if self._rows:
            committables.append(self._run(lambda: self._prepare(checkpoint_id)))
        return committables

    def close(self) -> None:
        """What is not prepared is rolled back by the server."""
        self._connection.close()

    def _run(self, action: Any, rows: pa.RecordBatch | pa.Table | None = None) -> Any:
        """Do it. Raises ConnectorError with what the server has against it. `rows`: that are written."""
        psycopg = library()
        try:
            return action()
        except psycopg.DataError as error:
            found = None if rows is None else self._named(rows)
            raise found or refused(self._sink.dsn, self._sink.table, error) from error
        except psycopg.Error as error:
            raise refused(self._sink.dsn, self._sink.table, error) from error

    def _named(self, rows: pa.RecordBatch | pa.Table) -> ConnectorError | None:
        """The line that names the column and the value which the server refuses: it says so of rows that are copied.
        None where it takes them so."""
        what = self._sink.described
        for name, column in zip(rows.schema.names, rows.columns, strict=True):
            if pc.any(pc.match_substring(column, "\0")).as_py():
                return ConnectorError(
                    f"{what}: column {name!r} has a text with a character NUL in it, which PostgreSQL cannot keep; replace it before "
                    "the sink, or write bytes (bytea)"
                )
        if self._target is None:
            return None
        like = f"CREATE TEMP TABLE snapline_refused (LIKE {quoted(*self._target.names)}) ON COMMIT DROP"
        try:
            self._connection.execute("ROLLBACK")
            self._connection.execute(f"{BEGIN}; {like}")
            self._copy(("snapline_refused",), rows)
        except library().DataError as error:
            return refused(self._sink.dsn, self._sink.table, error)
        except library().Error:
            pass
        return None

    def _begin(self) -> TargetTable:
        """The table, in a transaction."""
        if not self._is_open:
            self._outside(lambda: self._connection.execute(BEGIN))
            self._is_open = True
        return self._known_target()

    def _known_target(self) -> TargetTable:
        if self._target is None:
            sink = self._sink
            self._target = self._outside(
                lambda: TargetTable.read(self._connection, sink.table, sink.key, sink.described)
            )
        return self._target

    def _outside(self, action: Any) -> Any:
        """Do what begins outside of a transaction, over a new connection where the server has ended the one before."""
        try:
            return action()
        except library().OperationalError:
            if not self._connection.closed:
                raise
        self._connection = connect(self._sink.dsn)
        return action()

    def _append(self, batch: pa.RecordBatch) -> None:
        target = self._begin()
        self._bytes_written.inc(self._copy(target.names, batch))

    def _copy(self, table: Sequence[str], rows: pa.RecordBatch | pa.Table) -> int:
        """Append the rows; returns their bytes."""
        from psycopg import sql

        columns = sql.SQL(", ").join(map(sql.Identifier, rows.schema.names))
        statement = sql.SQL("COPY {} ({}) FROM STDIN (FORMAT csv)").format(sql.Identifier(*table), columns)
        lines = io.BytesIO()
        pacsv.write_csv(rows, lines, pacsv.WriteOptions(include_header=False, quoting_style="all_valid"))
        with self._connection.cursor().copy(statement) as copy:
            copy.write(lines.getbuffer())
        return lines.tell()

    def _flush(self) -> None:
        """Upsert what is buffered, of each key the last row; commits, unless the barrier does."""
        if not self._buffered:
            return
        batches, self._buffered, self._buffered_rows, self._buffered_bytes = self._buffered, [], 0, 0
        tables = [pa.Table.from_batches([batch]).select(sorted(batch.schema.names)) for batch in batches]
        table = last_of_each_key(pa.concat_tables(tables), self._sink.key)
        self._run(lambda: self._upsert_all(table), table)
        self._bytes_written.inc(table.nbytes)
        if not self._sink.two_phase:
            self._rows = 0

    def _upsert_all(self, table: pa.Table) -> None:
        """Upsert these rows, once more when the server has chosen the transaction, which has nothing else in it, as the
        victim of a deadlock, or has found two of them to have one key."""
        from psycopg import errors

        for attempt in range(ATTEMPTS):
            try:
                for part in parts_of(table):
                    self._upsert(part)
                if not self._sink.two_phase:
                    self._connection.execute("COMMIT")
                    self._is_open = False
                return
            except (errors.DeadlockDetected, errors.SerializationFailure, errors.CardinalityViolation) as error:
                if attempt == ATTEMPTS - 1:
                    raise
                self._are_texts_keys &= not isinstance(error, errors.CardinalityViolation)
                self._connection.execute("ROLLBACK")
                self._is_open = False

    def _upsert(self, table: pa.Table) -> None:
        from psycopg import sql

        names, key = table.column_names, self._sink.key
        target = self._begin()
        places = [sql.Identifier(f"c{number}") for number in range(len(names))]
        values = {
            name: sql.SQL("{}::{}").format(place, bare_type(target.bare_types[name]))
            for place, name in zip(places, names, strict=True)
        }
        rest = [name for name in names if name not in key]
        replaced = sql.SQL(", ").join(sql.SQL("{0} = EXCLUDED.{0}").format(identifier(name)) for name in rest)
        keys = sql.SQL(", ").join(values[name] for name in key)
        is_plain = self._are_texts_keys and all(target.bare_types[name] in PLAIN_KEYS for name in key)
        statement = sql.SQL(
            "INSERT INTO {} ({}) OVERRIDING SYSTEM VALUE SELECT {} {} FROM unnest({}) WITH ORDINALITY AS r({}, n) {} "
            "ON CONFLICT ({}) DO {}"
        ).format(
            identifier(*target.names),
            sql.SQL(", ").join(map(identifier, names)),
            sql.SQL("" if is_plain else "DISTINCT ON ({})").format(keys),
            sql.SQL(", ").join(values.values()),
            sql.SQL(", ").join([sql.SQL("%s::text[]")] * len(names)),
            sql.SQL(", ").join(places),
            sql.SQL("" if is_plain else "ORDER BY {}, n DESC").format(keys),
            sql.SQL(", ").join(map(identifier, key)),
            sql.SQL("UPDATE SET {}").format(replaced) if rest else sql.SQL("NOTHING"),
        )
        self._connection.execute(statement, [column.to_pylist() for column in table.columns])

    def _prepare(self, checkpoint_id: int) -> Committable:
        from psycopg import sql

        self._flush()
        name = str(replace(self._name, checkpoint_id=checkpoint_id))
        (number,) = self._connection.execute("SELECT txid_current()").fetchone()
        self._connection.execute(sql.SQL("PREPARE TRANSACTION {}").format(sql.Literal(name)))
        rows, self._rows, self._is_open = self._rows, 0, False
        return Committable({"transaction": name, "number": number, "rows": rows, "checkpoint_id": checkpoint_id})


def no_rows(schema: pa.Schema) -> pa.RecordBatch:
    """An empty batch, of whatever types."""
    return pa.RecordBatch.from_arrays([pa.nulls(0, kind) for kind in schema.types], schema=schema)


def last_of_each_key(table: pa.Table, key: Sequence[str]) -> pa.Table:
    """The rows of which no later one has the same key, in their order; one statement cannot replace a row twice."""
    names = [str(number) for number in range(len(key))]
    numbered = table.select(list(key)).rename_columns(names)
    numbered = numbered.append_column("row", pa.array(range(table.num_rows), pa.int64()))
    last = numbered.group_by(names).aggregate([("row", "max")]).column("row_max")
    return table if len(last) == table.num_rows else table.take(last.sort())


def parts_of(table: pa.Table) -> Iterator[pa.Table]:
    """Parts with so many rows and bytes that a statement takes them, whose parameters have a gigabyte at most."""
    parts = -(-table.nbytes // BUFFERED_BYTES_MAX) or 1
    rows = max(1, min(BUFFERED_ROWS_MAX, table.num_rows // parts))
    for start in range(0, table.num_rows, rows):
        yield table.slice(start, rows)


class PostgresCommitter(Committer):
    """Ends prepared transactions, its own and those of attempts that are lost."""

    def __init__(self, sink: PostgresSink, own: TransactionOf, parallelism: int) -> None:
        self._sink = sink
        self._own = own
        self._parallelism = parallelism
        self._began: Any = 0
        """The time of the server at the start: a connection of a pool is older than the attempt."""
        if sink.two_phase:
            self._began = next(iter(self._connection.execute("SELECT extract(epoch FROM clock_timestamp())")))[0]

    @cached_property
    def _connection(self) -> Any:
        """Made when it is needed, which that of an idempotent sink hardly ever is."""
        return connect(self._sink.dsn)

    def _execute(self, *query: Any) -> Any:
        """Ask the server, over a new connection where it has ended the one before: to end a transaction again, or ask
        about one, does no harm."""
        try:
            return self._connection.execute(*query)
        except library().OperationalError:
            if not self._connection.closed:
                raise
        del self._connection
        return self._connection.execute(*query)

    def restored_from(self, checkpoint_id: int) -> None:
        """What earlier attempts prepared for later checkpoints is in no snapshot, and may hold locks. Rows of a key
        come from any subtask, so that all have been restarted; without one others may run on, and what they have
        prepared is committed with their next checkpoint."""
        if self._sink.two_phase:
            self._roll_back(
                lambda name: name.checkpoint_id > checkpoint_id and (bool(self._sink.key) or self._is_of_subtask(name))
            )

    def commit(self, committables: Sequence[Committable]) -> None:
        self._require_own(committables)
        for each in committables:
            if "transaction" in each.data:
                self._commit(each.data)
        if any(each.data.get("sweep") == self._own.attempt for each in committables):
            # A checkpoint of this attempt is complete: what was restored has been committed by whoever got it.
            self._roll_back(self._is_of_subtask)

    def abort(self, committables: Sequence[Committable]) -> bool:
        from psycopg import errors

        self._require_own(committables)
        was_open = False
        for each in committables:
            if "transaction" in each.data:
                try:
                    self._end("ROLLBACK", each.data["transaction"])
                    was_open = True
                except errors.UndefinedObject:
                    continue  # somebody has ended it
                except library().Error as error:
                    raise refused(self._sink.dsn, self._sink.table, error) from error
        return was_open

    def close(self) -> None:
        if "_connection" in self.__dict__:
            self._connection.close()

    def _require_own(self, committables: Sequence[Committable]) -> None:
        """Raise ConnectorError for a transaction that no job's sink of this name has prepared, before one is ended."""
        require_kind(self._sink.described, committables, "transaction")
        names = [each.data["transaction"] for each in committables if "transaction" in each.data]
        require_own(self._sink.described, "transaction", names, self._own.is_of_same_sink, whose=repr(self._own.uid))

    def _commit(self, data: Mapping[str, Any]) -> None:
        from psycopg import errors

        try:
            self._end("COMMIT", data["transaction"])
        except errors.UndefinedObject:
            self._require_committed(data)
        except library().Error as error:
            raise refused(self._sink.dsn, self._sink.table, error) from error

    def _require_committed(self, data: Mapping[str, Any]) -> None:
        """The server has no such prepared transaction any more: it says what became of it."""
        what = f"{self._sink.described}: {data['rows']} rows of checkpoint {data['checkpoint_id']} (prepared transaction {data['transaction']})"
        try:
            (status,) = self._execute("SELECT txid_status(%s)", [data["number"]]).fetchone()
        except library().Error:
            status = None  # a number that this server has not come to
        if status == "committed":
            return
        if status == "aborted":
            raise ConnectorError(
                f"{what} are lost: somebody has rolled it back. Where a job went on after the savepoint that holds them, and failed before "
                "its next checkpoint, it has written them again: start from a later snapshot of it, else from an earlier one"
            )
        raise ConnectorError(
            f"{what}: the server {place_of(self._sink.dsn)} knows nothing of it; is it another server, one that was restored from a "
            "backup, or is the snapshot very old? Look whether the rows are there, and start without this sink's state"
        )

    def _is_of_subtask(self, name: TransactionOf) -> bool:
        """Whether this subtask ends what the name's has left, whatever the parallelism was."""
        return name.subtask % self._parallelism == self._own.subtask

    def _roll_back(self, is_lost: Any) -> None:
        """Roll back those transactions of earlier attempts of this job for which `is_lost`. What another execution
        graph has prepared since this attempt began is of a leader that has taken the job over."""
        from psycopg import errors

        try:
            found = self._execute(
                "SELECT gid, extract(epoch FROM prepared) < %s FROM pg_prepared_xacts WHERE database = current_database() AND starts_with(gid, %s)",
                [self._began, self._own.whose],
            ).fetchall()
            for text, is_older in found:
                name = self._own.parse(text)
                if name is None or not self._own.follows(name) or not (is_older or name.graph == self._own.graph):
                    continue
                if is_lost(name):
                    try:
                        self._end("ROLLBACK", text)
                    except errors.UndefinedObject:
                        continue  # another subtask was faster
        except library().Error as error:
            raise refused(self._sink.dsn, self._sink.table, error) from error

    def _end(self, how: str, name: str) -> None:
        """Commit or roll back; what another subtask, or a process that is thought dead, ends just now is busy."""
        from psycopg import errors, sql

        deadline = time.monotonic() + LOCK_SECONDS
        while True:
            try:
                self._execute(sql.SQL("{} PREPARED {}").format(sql.SQL(how), sql.Literal(name)))
                return
            except errors.ObjectNotInPrerequisiteState:
                if time.monotonic() > deadline:
                    raise
                time.sleep(PAUSE_SECONDS)
