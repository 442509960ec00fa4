"""A table of PostgreSQL as a target: how it is reached, which columns it has, and how rows become text for it.

Decides that the server itself reads every value from its text, so that a column takes what PostgreSQL would take; that
passwords stand in no message; and the one line for each way in which a server refuses. It does not know checkpoints.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from snapline.connectors.files.filesystems import first_line
from snapline.dataflow.errors import ConnectorError

ARROW_TYPES: dict[str, pa.DataType] = {
    "smallint": pa.int16(), "integer": pa.int32(), "bigint": pa.int64(), "real": pa.float32(),
    "double precision": pa.float64(), "boolean": pa.bool_(), "date": pa.date32(), "bytea": pa.binary(),
    "timestamp without time zone": pa.timestamp("us"), "timestamp with time zone": pa.timestamp("us", "UTC"),
}  # fmt: skip
"""All others but `numeric(p,s)` are read as their text."""
NUMERIC = re.compile(r"numeric\((\d+),(\d+)\)")
REFUSED_STATES = ("28", "3D", "42")
"""Classes of errors that a retry does not cure: user and password, no such database, no such name or no right."""
REFUSED_WORDS = ("password authentication failed", "no password supplied", "does not exist", "no pg_hba.conf entry")
"""The same, as said before there is a connection."""
CONNECT_SECONDS = 10
COLUMNS = """
    SELECT a.attname, format_type(a.atttypid, a.atttypmod) FROM pg_attribute a
    WHERE a.attrelid = to_regclass(%s) AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum
"""
UNIQUE = """
    SELECT array_agg(a.attname::text) FROM pg_index i JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = ANY (i.indkey)
    WHERE i.indrelid = to_regclass(%s) AND i.indisunique AND i.indpred IS NULL AND i.indexprs IS NULL GROUP BY i.indexrelid
"""


def library() -> Any:
    """The psycopg library. Raises ConnectorError that says how to get it."""
    try:
        import psycopg
    except ImportError as error:
        raise ConnectorError("PostgreSQL needs psycopg: pip install 'snapline[postgres]'") from error
    return psycopg


def connect(dsn: str) -> Any:
    """A connection that commits each statement, unless it is told to begin. Raises ConnectorError."""
    psycopg = library()
    try:
        return psycopg.connect(connection_info(dsn), autocommit=True)
    except psycopg.Error as error:
        raise refused(dsn, "", error) from error


def connection_info(dsn: str) -> str:
    """The dsn with a bound on the time to connect, unless it has one. Raises psycopg's error for one that cannot be
    read."""
    conninfo = library().conninfo
    known = conninfo.conninfo_to_dict(dsn)
    known.setdefault("connect_timeout", CONNECT_SECONDS)
    return str(conninfo.make_conninfo(**known))


def place_of(dsn: str) -> str:
    """Host and database for people, without the password."""
    try:
        known = library().conninfo.conninfo_to_dict(dsn)
    except library().Error:
        return "with a dsn that cannot be read"
    return f"at {known.get('host', 'localhost')}:{known.get('port', 5432)}, database {known.get('dbname', known.get('user', ''))!r}"


def refused(dsn: str, table: str, error: Any) -> ConnectorError:
    """Say in one line what the server, or the way to it, has against what was asked."""
    psycopg = library()
    what = f"PostgreSQL {place_of(dsn)}" + (f", table {table}" if table else "")
    said = first_line(error)
    state = getattr(error, "sqlstate", None) or ""
    no_user = "role" in said and "does not exist" in said and not state.startswith("42")
    if "password authentication failed" in said or "no password supplied" in said or state.startswith("28") or no_user:
        return ConnectorError(f"{what}: the server refuses user and password of dsn=; correct them, or pg_hba.conf")
    if "does not exist" in said and "database" in said and isinstance(error, psycopg.OperationalError):
        return ConnectorError(f"{what}: {said}; create it, or correct dsn=")
    if state == "55000" and "prepared transactions" in said:
        return ConnectorError(f"{what}: {NO_PREPARED}")
    if state == "53200" or "maximum number of prepared transactions" in said:
        return ConnectorError(
            f"{what}: {said}; raise max_prepared_transactions to twice the parallelism of all such sinks at least"
        )
    if state == "55P03":
        return ConnectorError(
            f"{what}: a row is locked by another transaction ({said}); another program holds it, or two checkpoints that are not "
            "committed yet have written one key"
        )
    if state == "42501":
        return ConnectorError(f"{what}: {said}; grant INSERT, and with a key UPDATE and SELECT, to the user of dsn=")
    if isinstance(error, psycopg.OperationalError) and not state:
        return ConnectorError(f"{what}: the server does not answer ({said}); check the address, and that it runs")
    return ConnectorError(f"{what}: {said}")


def arrow_type_of(spelled: str) -> pa.DataType:
    """Return the Arrow type of a column, by its type as the server spells it."""
    known = ARROW_TYPES.get(spelled)
    if known is not None:
        return known
    numeric = NUMERIC.fullmatch(spelled)
    return pa.string() if numeric is None else pa.decimal128(int(numeric[1]), int(numeric[2]))


def is_read_as_it_is(spelled: str) -> bool:
    """Whether values are not asked for as text."""
    return spelled in ARROW_TYPES or NUMERIC.fullmatch(spelled) is not None


def is_away(error: Any) -> bool:
    """Whether an error of psycopg means that the server, or the way to it, is away for now."""
    psycopg = library()
    if not isinstance(error, (psycopg.OperationalError, psycopg.InterfaceError)):
        return False
    state = error.sqlstate or ""
    return not state.startswith(REFUSED_STATES) and not any(word in first_line(error) for word in REFUSED_WORDS)


NO_PREPARED = (
    "the server allows no prepared transactions (max_prepared_transactions = 0); set it to twice the parallelism of all such sinks at "
    "least and restart the server, or use key= with guarantee='idempotent'"
)


@dataclass(frozen=True, slots=True)
class TargetTable:
    """Columns of a table and their types, as the server spells them."""

    name: str
    types: dict[str, str]

    @classmethod
    def read(cls, connection: Any, name: str, key: Sequence[str], what: str) -> TargetTable:
        """Raises ConnectorError where there is no such table, or nothing that makes the key unique."""
        types = _there(connection.execute(COLUMNS, [name]).fetchall(), name, what)
        for column in key:
            if column not in types:
                raise ConnectorError(f"{what}: key names {column!r}, and the table has {', '.join(types)}")
        if key and not any(set(found) == set(key) for (found,) in connection.execute(UNIQUE, [name]).fetchall()):
            raise ConnectorError(
                f"{what}: no primary key or unique index of the table is over {', '.join(key)} exactly; add one, or give its columns "
                "as key="
            )
        return cls(name, types)

    @classmethod
    async def read_async(cls, connection: Any, name: str, what: str) -> TargetTable:
        """The same over an asynchronous connection, without a key."""
        cursor = await connection.execute(COLUMNS, [name])
        return cls(name, _there(await cursor.fetchall(), name, what))

    def require_columns(self, columns: Sequence[str], what: str) -> None:
        """Raise ConnectorError for a column of the rows that the table has not."""
        for column in columns:
            if column not in self.types:
                raise ConnectorError(
                    f"{what}: the rows have the column {column!r}, and the table has {', '.join(self.types)}; add it, or leave it out"
                )


def _there(found: Sequence[tuple[str, str]], name: str, what: str) -> dict[str, str]:
    if not found:
        raise ConnectorError(f"{what}: there is no table {name} that the user of dsn= can see; create it first")
    return dict(found)


def texts(batch: pa.RecordBatch, what: str) -> pa.RecordBatch:
    """Every value as the text that PostgreSQL reads."""
    columns = []
    for field, column in zip(batch.schema, batch.columns, strict=True):
        kind = field.type
        if pa.types.is_nested(kind) or pa.types.is_duration(kind):
            raise ConnectorError(f"{what}: column {field.name!r} is {kind}; make it a text, or columns of their own")
        if any(test(kind) for test in (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_fixed_size_binary)):
            written = [None if value is None else f"\\x{value.hex()}" for value in column.to_pylist()]
            columns.append(pa.array(written, pa.string()))
        else:
            columns.append(column.cast(pa.string()))
    return pa.RecordBatch.from_arrays(columns, names=batch.schema.names)
