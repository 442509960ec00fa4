"""Changes of a table of PostgreSQL as a source: what is in it, then every insert, update and delete, exactly once.

Decides what is looked at before the job runs (the server's log, rights, the table's key, the publication), so that what
cannot work is said then, and that a replication slot has one name, which the user gives: it holds the server's log for
this job, also while the job is down. It is made by the reader. Mirrors Flink CDC's postgres-cdc and its changelog.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import pyarrow as pa

from snapline.connectors.postgres.change_log import METADATA_COLUMNS, RowsWanted, schema_of
from snapline.connectors.postgres.changed_table import ChangedTable, ensure_published, require_log
from snapline.connectors.postgres.changes_reader import ChangesReader
from snapline.connectors.postgres.postgres_table import connect, library, refused
from snapline.connectors.postgres.replication import ReplicationStream, unreadable
from snapline.connectors.whole_numbers import require_positive
from snapline.dataflow.api.connector_api import Source, SourceContextInfo, SourceReader, SourceSplit
from snapline.dataflow.errors import ConnectorError

SLOT_NAME = re.compile(r"[a-z0-9_]{1,63}")
BATCH_ROWS = 10_000
GIVE_UP_MS = 60_000
SNAPSHOT_TRANSACTION_ROWS = 1_000_000


class PostgresChangesSource(Source):
    """Reads a table's rows and then its changes, each row with a column that says what happened to it.

    >>> changes = sl_connectors.PostgresChangesSource(
    ...     "public.orders", dsn="postgresql://reader@db/shop", slot="orders_to_lake", metadata=["committed_at"]
    ... )
    >>> changes.bounded, changes.described, changes.publication
    (False, 'PostgresChangesSource public.orders', 'orders_to_lake')
    >>> changes.schema()  # asks the server
    Traceback (most recent call last):
    snapline.dataflow.errors.ConnectorError: PostgreSQL at db:5432, database 'shop': the server does not answer ...
    """

    def __init__(
        self,
        table: str,
        *,
        dsn: str,
        slot: str,
        publication: str = "",
        columns: Sequence[str] | None = None,
        snapshot: bool = True,
        before_images: bool = False,
        row_kind: str = "row_kind",
        metadata: Sequence[str] | Mapping[str, str] = (),
        on_truncate: Literal["fail", "ignore"] = "fail",
        unchanged_values: Literal["fail", "null"] = "fail",
        batch_rows: int = BATCH_ROWS,
        snapshot_transaction_rows: int = SNAPSHOT_TRANSACTION_ROWS,
        give_up_after_ms: int = GIVE_UP_MS,
    ) -> None:
        """`table`, `dsn`: as for `PostgresSink`. `slot`: the name of a replication slot for this source alone, in small
        letters, digits and `_`. `publication`: one that is there; default is one of the slot's name, which is made.
        `columns`: only these, the key among them. `snapshot`: begin with the rows of the table; False: with what
        changes from the start on, or where a slot is that was made before. `before_images`: an update is two rows, `-U`
        before it and `+U` after it (needs REPLICA IDENTITY FULL). `row_kind`: the name of the column with `+I`, `-U`,
        `+U` or `-D`. `metadata`: `lsn` (where the transaction ends in the log), `committed_at`, `transaction` (its
        number, null in rows of the snapshot) as columns; a mapping gives them names. `on_truncate`: TRUNCATE fails the
        job, or is ignored. `unchanged_values`: a large value that an update has not changed, and that the server does
        not log again, fails the job, or is null. `snapshot_transaction_rows`: so many rows of the table are read in one
        transaction of the server. `give_up_after_ms`: fail when the server has not answered for so long. Raises
        ConnectorError for what makes no sense."""
        self.table = table
        self.dsn = dsn
        self.slot = slot
        self.publication: str = publication or slot
        self.makes_publication: bool = not publication
        self.columns: tuple[str, ...] | None = None if columns is None else tuple(columns)
        self.snapshot = snapshot
        self.batch_rows = batch_rows
        self.snapshot_transaction_rows = snapshot_transaction_rows
        self.give_up_after_ms = give_up_after_ms
        named = dict(metadata) if isinstance(metadata, Mapping) else {name: name for name in metadata}
        if not SLOT_NAME.fullmatch(slot):
            raise ConnectorError(
                f"{self.described}: slot is a name of small letters, digits and _, up to 63 of them, not {slot!r}"
            )
        for name in named:
            if name not in METADATA_COLUMNS:
                raise ConnectorError(
                    f"{self.described}: unknown metadata {name!r}; there are {', '.join(METADATA_COLUMNS)}"
                )
        if on_truncate not in ("fail", "ignore"):
            raise ConnectorError(f"{self.described}: on_truncate is fail or ignore, not {on_truncate!r}")
        if unchanged_values not in ("fail", "null"):
            raise ConnectorError(f"{self.described}: unchanged_values is fail or null, not {unchanged_values!r}")
        require_positive(
            self.described, batch_rows=batch_rows, snapshot_transaction_rows=snapshot_transaction_rows, give_up_after_ms=give_up_after_ms,
        )  # fmt: skip
        self.wanted: RowsWanted = RowsWanted(
            self.described, row_kind, named, before_images, on_truncate, unchanged_values
        )
        self._read_table: ChangedTable | None = None
        self._slot_existed: bool | None = None
        self._is_submitted = False
        """Whether this is the copy that a job has."""

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_is_submitted": True}

    @property
    def described(self) -> str:
        """The source's kind and table, for errors."""
        return f"PostgresChangesSource {self.table}"

    @property
    def bounded(self) -> bool:
        return False

    def schema(self) -> pa.Schema:
        """The table's columns as the server has them, `row_kind`, and the metadata."""
        return schema_of(self.changed_table(), self.wanted)

    def changed_table(self) -> ChangedTable:
        """The table, about which the server is asked once. Raises ConnectorError.

        >>> source.changed_table().columns  # doctest: +SKIP
        """
        if self._read_table is None:
            connection = connect(self.dsn)
            try:
                self._read_table = self._checked(connection)
            except library().Error as error:
                raise refused(self.dsn, self.table, error) from error
            finally:
                connection.close()
        return self._read_table

    def enumerate_splits(self) -> Sequence[SourceSplit]:
        """One, for the whole table. Makes the publication; raises ConnectorError for whatever keeps the source from
        working that can be seen by now."""
        table = self.changed_table()
        connection = connect(self.dsn)
        try:
            existed = require_log(connection, self.slot, self.described)
            self._require_right()
            ensure_published(
                connection, table, self.publication, make=self.makes_publication,
                ignores_truncate=self.wanted.on_truncate == "ignore", what=self.described,
            )  # fmt: skip
        except library().Error as error:
            raise refused(self.dsn, self.table, error) from error
        finally:
            connection.close()
        # As a phase of a HybridSource it is asked again in the job, whose lost attempt may have made the slot by then.
        if self._slot_existed is None or not self._is_submitted:
            self._slot_existed = existed
        return [SourceSplit("changes", {"slot_existed": self._slot_existed})]

    def create_reader(self, context: SourceContextInfo) -> SourceReader:
        return ChangesReader(self, context)

    @staticmethod
    def unused_slots(dsn: str) -> list[tuple[str, int]]:
        """Name the slots of pgoutput that nobody reads now, and how many bytes of the log the server keeps for each.
        One whose job is gone for good is dropped by `SELECT pg_drop_replication_slot('name')`. Raises ConnectorError
        for a server that does not answer.

        >>> sl_connectors.PostgresChangesSource.unused_slots("postgresql://localhost/shop")  # doctest: +SKIP
        [('snapline_orders', 16384)]
        """
        connection = connect(dsn)
        try:
            found: list[tuple[str, int]] = connection.execute(
                "SELECT slot_name::text, pg_wal_lsn_diff(pg_current_wal_lsn(), restart_lsn)::bigint FROM pg_replication_slots "
                "WHERE NOT active AND plugin = 'pgoutput' ORDER BY 2 DESC NULLS LAST"
            ).fetchall()
        except library().Error as error:
            raise refused(dsn, "", error) from error
        finally:
            connection.close()
        return found

    def _checked(self, connection: Any) -> ChangedTable:
        table = ChangedTable.read(connection, self.table, self.columns, self.described)
        if self.wanted.before_images and not table.is_whole:
            raise ConnectorError(
                f"{self.described}: before_images needs rows as they were before, and the server logs their key; "
                f"ALTER TABLE {table.full_name} REPLICA IDENTITY FULL"
            )
        if not table.key and (self.snapshot or not self.wanted.before_images):
            raise ConnectorError(
                f"{self.described}: the table has no primary key, by which a snapshot is read and updates are told apart; add one, or "
                "read changes alone with snapshot=False, before_images=True"
            )
        names = [column.name for column in table.columns] + [self.wanted.row_kind, *self.wanted.metadata.values()]
        if twice := {name for name in names if names.count(name) > 1}:
            raise ConnectorError(
                f"{self.described}: two columns are called {min(twice)!r}; rename with row_kind= or metadata={{...}}"
            )
        return table

    def _require_right(self) -> None:
        """Raise ConnectorError where the user may not read the log."""
        try:
            stream = ReplicationStream(self.dsn, self.described)
            try:
                stream.identify()
            finally:
                stream.close()
        except library().Error as error:
            raise unreadable(self.described, self.dsn, self.slot, error) from error
