"""The table whose changes are read: its columns, the key by which its rows are told apart, and how texts become Arrow.

Decides which tables can be read so that nothing is lost or ambiguous, with one line for each that cannot, and that a
publication is made for a table that has none. Texts are those that the server writes with ISO dates in UTC, in its log
and in its copies alike. It does not know where in the log a reader is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from snapline.connectors.files.filesystems import first_line
from snapline.connectors.postgres.postgres_table import arrow_type_of, found_table, quoted
from snapline.dataflow.errors import ConnectorError

LEAST_VERSION = 130000
TABLE = """
    SELECT n.nspname, c.relname, c.relkind::text, c.relreplident::text, has_table_privilege(c.oid, 'SELECT'), current_user::text,
    EXISTS (SELECT FROM pg_inherits i WHERE i.inhparent = c.oid)
    FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = to_regclass(%s)
"""
COLUMNS = """
    SELECT a.attname, format_type(a.atttypid, a.atttypmod), a.atttypid::bigint, (
        SELECT quote_ident(n.nspname) || '.' || quote_ident(l.collname) FROM pg_collation l
        JOIN pg_namespace n ON n.oid = l.collnamespace WHERE l.oid = a.attcollation AND l.collname <> 'default')
    FROM pg_attribute a
    WHERE a.attrelid = to_regclass(%s) AND a.attnum > 0 AND NOT a.attisdropped AND a.attgenerated = '' ORDER BY a.attnum
"""
KEY = """
    SELECT a.attname::text FROM pg_index i, unnest(i.indkey) WITH ORDINALITY AS k(number, place)
    JOIN pg_attribute a ON a.attnum = k.number
    WHERE i.indrelid = to_regclass(%(table)s) AND a.attrelid = i.indrelid AND k.place <= i.indnkeyatts
    AND CASE WHEN %(identity)s = 'i' THEN i.indisreplident ELSE i.indisprimary END ORDER BY k.place
"""
PUBLISHED = """
    SELECT p.pubname IS NOT NULL, to_jsonb(p) ->> 'rowfilter',
    b.pubinsert AND b.pubupdate AND b.pubdelete AND (b.pubtruncate OR %s), to_jsonb(p) -> 'attnames' FROM pg_publication b
    LEFT JOIN pg_publication_tables p ON p.pubname = b.pubname AND p.schemaname = %s AND p.tablename = %s WHERE b.pubname = %s
"""


@dataclass(frozen=True, slots=True)
class ChangedColumn:
    """A column as the server has it."""

    name: str
    spelled: str
    """The column's type in the server's words."""
    type_id: int
    collation: str | None
    """How its texts are ordered, where that is not the database's way."""

    @property
    def field(self) -> pa.Field:
        """The column as rows have it."""
        return pa.field(self.name, arrow_type_of(self.spelled))


@dataclass(frozen=True, slots=True)
class ChangedTable:
    """A table that can be read."""

    schema: str
    name: str
    columns: tuple[ChangedColumn, ...]
    """Those that are read, in the order of the rows."""
    key: tuple[str, ...]
    """The columns by which the server says which row has changed, in the order of their index; perhaps none."""
    is_whole: bool
    """Whether the server logs rows that were changed as they had been before (REPLICA IDENTITY FULL)."""

    @property
    def full_name(self) -> str:
        """Schema and table, as SQL has them."""
        return quoted(self.schema, self.name)

    @property
    def key_columns(self) -> tuple[ChangedColumn, ...]:
        """The columns of the key, in its order."""
        return tuple(next(column for column in self.columns if column.name == name) for name in self.key)

    @classmethod
    def read(cls, connection: Any, name: str, wanted: Sequence[str] | None, what: str) -> ChangedTable:
        """Ask the server. Raises ConnectorError for a table that is not there or cannot be read."""
        if connection.info.server_version < LEAST_VERSION:
            raise ConnectorError(
                f"{what}: the server is PostgreSQL {connection.info.server_version // 10000}; it must be 13 or newer"
            )
        meant = found_table(connection, name)
        row = None if meant is None else connection.execute(TABLE, [quoted(*meant[:2])]).fetchone()
        if row is None:
            raise ConnectorError(f"{what}: there is no table {name} that the user of dsn= can see; create it first")
        schema, table, kind, identity, may_read, user, is_inherited = row
        name = quoted(schema, table)
        if kind not in ("r", "p"):
            raise ConnectorError(f"{what}: it is no table, and only changes of tables are logged; name its table")
        if kind == "r" and is_inherited:
            raise ConnectorError(
                f"{what}: other tables inherit from it (INHERITS), whose rows are among its own, and whose changes the server logs "
                "under their names alone; make it a partitioned table, or read a table without such ones"
            )
        if not may_read:
            raise ConnectorError(f"{what}: the user {user} of dsn= may not read it; GRANT SELECT ON {name} TO {user}")
        columns = [ChangedColumn(*one) for one in connection.execute(COLUMNS, [name]).fetchall()]
        found = connection.execute(KEY, {"table": name, "identity": identity}).fetchall()
        key = tuple(column for (column,) in found)
        if identity == "n" or (not key and identity != "f"):
            raise ConnectorError(
                f"{what}: the table has no replica identity, by which the server logs which row has changed; give it a primary key, "
                f"or ALTER TABLE {name} REPLICA IDENTITY FULL (without it, UPDATE and DELETE fail once the table is published)"
            )
        if wanted is not None:
            there = {column.name: column for column in columns}
            for column in (*wanted, *key):
                if column not in there:
                    raise ConnectorError(
                        f"{what}: columns= names {column!r}, and the table has {', '.join(there)} (generated columns are not logged)"
                    )
                if column not in wanted:
                    raise ConnectorError(f"{what}: columns= lacks {column!r}, which is in the table's key; add it")
            columns = [there[column] for column in wanted]
        return cls(schema, table, tuple(columns), key, identity == "f")


def require_log(connection: Any, slot: str, what: str) -> bool:
    """Raise ConnectorError where the server cannot log changes for another reader. Returns whether the slot is there
    already."""
    level, most, used = connection.execute(
        "SELECT current_setting('wal_level'), current_setting('max_replication_slots')::int, count(*) FROM pg_replication_slots"
    ).fetchone()
    if level != "logical":
        raise ConnectorError(
            f"{what}: the server logs too little (wal_level = {level}); set wal_level = logical and restart the server"
        )
    row = connection.execute(
        "SELECT plugin, database = current_database() FROM pg_replication_slots WHERE slot_name = %s", [slot]
    ).fetchone()
    if row is None:
        if used >= most:
            raise ConnectorError(
                f"{what}: all {most} replication slots are in use; drop those that nobody needs (PostgresChangesSource.unused_slots "
                "names them), or raise max_replication_slots and restart the server"
            )
        return False
    if row != ("pgoutput", True):
        raise ConnectorError(
            f"{what}: the replication slot {slot!r} is of another database or plugin than pgoutput; give another name in slot="
        )
    return True


def ensure_published(
    connection: Any, table: ChangedTable, publication: str, *, make: bool, ignores_truncate: bool, what: str
) -> None:
    """Make the publication where it is missing and `make` says so. Raises ConnectorError for one that leaves out
    changes."""
    from psycopg import errors, sql

    query = [ignores_truncate, table.schema, table.name, publication]
    found = connection.execute(PUBLISHED, query).fetchone()
    if found is None:
        name = sql.Identifier(publication)
        statement = sql.SQL("CREATE PUBLICATION {} FOR TABLE {} WITH (publish_via_partition_root = true)").format(
            name, sql.Identifier(table.schema, table.name)
        )
        if not make:
            raise ConnectorError(f"{what}: there is no publication {publication!r}; {statement.as_string(connection)}")
        try:
            connection.execute(statement)
        except errors.InsufficientPrivilege as error:
            raise ConnectorError(
                f"{what}: the user of dsn= may not publish the table ({first_line(error)}); let its owner say "
                f"{statement.as_string(connection)}"
            ) from error
        except (errors.DuplicateObject, errors.UniqueViolation):
            pass  # somebody else was faster; whether it is the right one is seen below
        found = connection.execute(PUBLISHED, query).fetchone()
    if reason := left_out(found, publication):
        is_listed = found is not None and found[0]
        advice = "name another one" if is_listed else f"ALTER PUBLICATION {publication} ADD TABLE {table.full_name}"
        raise ConnectorError(f"{what}: {reason}; {advice}")
    published = found[3] if found is not None else None  # None before PostgreSQL 15, which publishes all columns
    if published is not None and (lacking := [each.name for each in table.columns if each.name not in published]):
        raise ConnectorError(
            f"{what}: the publication {publication!r} leaves out the column {lacking[0]!r}; add it there, or leave it out with columns="
        )


def left_out(found: tuple[bool, str | None, bool, list[str] | None] | None, publication: str) -> str:
    """Which changes of the table a publication leaves out; empty where none. `found`: what the server answers to
    `PUBLISHED`."""
    is_listed, row_filter, is_complete, _ = found or (False, None, False, None)
    if not is_listed:
        return f"the publication {publication!r} leaves the table out"
    if row_filter is not None or not is_complete:
        return (
            f"the publication {publication!r} leaves out some changes (a row filter, or a publish option; one of truncate is needed "
            "unless on_truncate='ignore')"
        )
    return ""


def column_of(texts: Sequence[object] | pa.Array, column: ChangedColumn, what: str) -> pa.Array:
    """The values of a column from their texts. Raises ConnectorError for one that Arrow's type has no value for."""
    kind = arrow_type_of(column.spelled)
    try:
        values = texts if isinstance(texts, pa.Array) else pa.array(texts, pa.string())
        if kind == pa.bool_():
            return pc.equal(values, "t")
        if kind == pa.binary():
            return pa.array([None if text is None else bytes.fromhex(text[2:]) for text in values.to_pylist()], kind)
        return values.cast(kind)
    except (ValueError, TypeError) as error:
        raise ConnectorError(
            f"{what}: column {column.name!r} has a value that is no {kind}: {first_line(error)}; leave the column out of columns=, "
            "or correct the row"
        ) from error
