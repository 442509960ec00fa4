"""A table of PostgreSQL as a target: how it is reached, which columns it has, and how rows become text for it.

Decides that the server itself reads every value from its text, so that a column takes what PostgreSQL would take, and
refuses what it would refuse: a text is never cut to a column's length. Decides which table a name means, that times are
in UTC, that passwords stand in no message, and the one line for each way in which a server refuses. It does not know
checkpoints.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from snapline.connectors.files.filesystems import first_line
from snapline.connectors.formats.json_lines import JsonFormat
from snapline.dataflow.errors import ConnectorError

ARROW_TYPES: dict[str, pa.DataType] = {
    "smallint": pa.int16(), "integer": pa.int32(), "bigint": pa.int64(), "real": pa.float32(),
    "double precision": pa.float64(), "boolean": pa.bool_(), "date": pa.date32(), "bytea": pa.binary(),
    "timestamp without time zone": pa.timestamp("us"), "timestamp with time zone": pa.timestamp("us", "UTC"),
}  # fmt: skip
"""All others but `numeric(p,s)` of up to 38 digits are read as their text."""
NUMERIC = re.compile(r"numeric\((\d+),(\d+)\)")
FRACTION = re.compile(r"^(timestamp)\(\d\)")
"""Fewer digits of seconds than a microsecond has; to Arrow these are microseconds, too."""
COPIED = re.compile(r"^COPY \S+, line \d+, (?=column)")
DETAILS = ("Key (", "Failing row ", "Partition key")
DECIMAL_DIGITS = 38
JSON_OPENS = '{"v": '
BEFORE_YEAR_1 = r"^(-\d+|0000)-(.*)$"
BYTES = (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_fixed_size_binary, pa.types.is_binary_view)
SESSION = "SET TimeZone = 'UTC'; SET DateStyle = 'ISO'; SET IntervalStyle = 'postgres'"
"""What a time without a zone means does not depend on the server's settings, nor how a value is written as text."""
REFUSED_STATES = ("28", "3D", "42")
"""Classes of errors that a retry does not cure: user and password, no such database, no such name or no right."""
REFUSED_WORDS = ("password authentication failed", "no password supplied", "does not exist", "no pg_hba.conf entry")
"""The same, as said before there is a connection."""
CONNECT_SECONDS = 10
UNWANTED_PARTS = {
    "servicefile": "PGSERVICEFILE on every machine says where it is",
    "sslkeylogfile": "whoever reads that file reads the connection",
}
"""Parts of a dsn that name no server, but a file of settings, which could be anything, or one to be written."""
WRONG_NAME = re.compile(r'invalid (connection option|URI query parameter):? "\w+"')
PORTS = re.compile(r"[0-9, ]*")
"""What stands for the ports of one host or several."""
RELATION = """
    SELECT n.nspname, c.relname, c.relkind::text FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE c.oid = to_regclass(%s)
"""
COLUMNS = """
    SELECT a.attname, format_type(a.atttypid, a.atttypmod), format_type((
        WITH RECURSIVE base (id, below) AS (
            SELECT oid, typbasetype FROM pg_type WHERE oid = a.atttypid
            UNION ALL SELECT oid, typbasetype FROM base JOIN pg_type ON oid = below)
        SELECT id FROM base WHERE below = 0), -1), a.attgenerated <> ''
    FROM pg_attribute a WHERE a.attrelid = to_regclass(%s) AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum
"""
UNIQUE = """
    SELECT (SELECT array_agg(a.attname::text) FROM unnest(i.indkey) WITH ORDINALITY AS k(number, place)
        JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.number WHERE k.place <= i.indnkeyatts)
    FROM pg_index i WHERE i.indrelid = to_regclass(%s) AND i.indisunique AND i.indimmediate AND i.indisvalid
    AND i.indpred IS NULL AND i.indexprs IS NULL
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
    """The dsn with a bound on the time to connect, unless it has one, and texts in UTF-8, however the database keeps
    them. Raises ConnectorError for one that cannot be read, without what it says, and for one that would have libpq
    load a library or write a file: a declared job brings no code, and brings a dsn."""
    conninfo = library().conninfo
    try:
        known = conninfo.conninfo_to_dict(dsn)
    except library().Error as error:
        raise _unreadable(first_line(error)) from None
    host = str(known.get("host", ""))
    if "@" in host[1:] or not PORTS.fullmatch(str(known.get("port", ""))):
        raise _unreadable("")  # these are parts of a password
    if ":" in str(known.get("sslkey", "")):
        raise ConnectorError(
            "sslkey= of dsn= has a colon, so that it names a library that would be loaded to get the key: name a file with the key"
        )
    for name, advice in UNWANTED_PARTS.items():
        if name in known:
            raise ConnectorError(f"dsn= may not have {name}=: {advice}")
    known.setdefault("connect_timeout", CONNECT_SECONDS)
    known["client_encoding"] = "UTF8"
    return str(conninfo.make_conninfo(**known))


def _unreadable(said: str) -> ConnectorError:
    """The line for a dsn that libpq cannot read, whose words have a password in them but where a name is wrong."""
    named = WRONG_NAME.match(said)
    return ConnectorError(
        f"PostgreSQL with a dsn that cannot be read{f' ({named[0]})' if named else ''}: write host=... dbname=... with a value that has "
        "spaces in quotes, or postgresql://user@host/database with letters such as @ / : % in a password as %40 %2F %3A %25"
    )


def names_of(table: str) -> Sequence[str]:
    """What a table's name may mean: first what it means in SQL, where a name without quotes is in small letters, then
    the name with its letters as they are."""
    return (table, quoted(*table.split(".")))


def quoted(*parts: str) -> str:
    """A name as SQL has it, whatever its letters are."""
    return ".".join('"{}"'.format(part.replace('"', '""')) for part in parts)


def found_table(connection: Any, table: str) -> tuple[str, str, str] | None:
    """Schema, name and kind of the table that a name means; None where there is none."""
    for name in names_of(table):
        with contextlib.suppress(library().errors.InvalidName, library().errors.SyntaxError):
            row: tuple[str, str, str] | None = connection.execute(RELATION, [name]).fetchone()
            if row is not None:
                return row
    return None


def identifier(*parts: str) -> Any:
    """A name in a statement with parameters, where a percent sign has to be written twice."""
    from psycopg import sql

    return sql.SQL(quoted(*parts).replace("%", "%%"))


def bare_type(spelled: str) -> Any:
    """A type in a statement with parameters."""
    from psycopg import sql

    return sql.SQL(spelled.replace("%", "%%"))


def place_of(dsn: str) -> str:
    """Host and database for people, without the password."""
    known = library().conninfo.conninfo_to_dict(dsn)
    return f"at {known.get('host', 'localhost')}:{known.get('port', 5432)}, database {known.get('dbname', known.get('user', ''))!r}"


def refused(dsn: str, table: str, error: Any) -> ConnectorError:
    """Say in one line what the server, or the way to it, has against what was asked."""
    psycopg = library()
    what = f"PostgreSQL {place_of(dsn)}" + (f", table {table}" if table else "")
    said = first_line(error)
    state = getattr(error, "sqlstate", None) or ""
    said += _where(error) if state.startswith(("22", "23")) else ""
    no_user = "role" in said and "does not exist" in said and not state.startswith("42")
    if "password authentication failed" in said or "no password supplied" in said or state.startswith("28") or no_user:
        return ConnectorError(f"{what}: the server refuses user and password of dsn=; correct them, or pg_hba.conf")
    if "does not exist" in said and "database" in said and isinstance(error, psycopg.OperationalError):
        return ConnectorError(f"{what}: {said}; create it, or correct dsn=")
    if state == "55000" and "prepared transactions" in said:
        return ConnectorError(f"{what}: {NO_PREPARED}")
    if (state == "53200" and "out of" not in said) or "maximum number of prepared transactions" in said:
        return ConnectorError(
            f"{what}: {said}; raise max_prepared_transactions to twice the parallelism of all such sinks at least"
        )
    if state == "55P03":
        return ConnectorError(
            f"{what}: a row is locked by another transaction ({said}); another program holds it, two checkpoints that are not "
            "committed yet have written one key, or an earlier job has left it prepared: see pg_prepared_xacts"
        )
    if state == "42501":
        return ConnectorError(f"{what}: {said}; grant INSERT, and with a key UPDATE and SELECT, to the user of dsn=")
    if isinstance(error, psycopg.OperationalError) and not state:
        return ConnectorError(f"{what}: the server does not answer ({said}); check the address, and that it runs")
    return ConnectorError(f"{what}: {said}")


def _where(error: Any) -> str:
    """The column and value, or the key, that the server says beside its first line."""
    diagnosis = error.diag
    lines = [diagnosis.message_detail or "", *(diagnosis.context or "").splitlines()]
    said = [COPIED.sub("", line) for line in lines if COPIED.match(line) or line.startswith(DETAILS)]
    return f" ({'; '.join(said)})" if said else ""


def arrow_type_of(spelled: str) -> pa.DataType:
    """Return the Arrow type of a column, by its type as the server spells it.

    >>> from snapline.connectors.postgres.postgres_table import arrow_type_of
    >>> [str(arrow_type_of(name)) for name in ("timestamp(3) without time zone", "numeric(50,2)", "numeric(5,2)")]
    ['timestamp[us]', 'string', 'decimal128(5, 2)']
    """
    known = ARROW_TYPES.get(FRACTION.sub(r"\1", spelled))
    if known is not None:
        return known
    numeric = NUMERIC.fullmatch(spelled)
    if numeric is None:
        return pa.string()
    digits, scale = int(numeric[1]), int(numeric[2])
    return pa.decimal128(digits, scale) if scale <= digits <= DECIMAL_DIGITS else pa.string()


def is_read_as_it_is(spelled: str) -> bool:
    """Whether values are not asked for as text."""
    return arrow_type_of(spelled) != pa.string()


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

    schema: str
    name: str
    types: dict[str, str]
    bare_types: dict[str, str]
    """The types without length or digits, and those below domains, which may have them: a value that is cast to one of
    these is not cut or rounded."""
    generated: frozenset[str]
    """Columns whose values the server computes."""

    @classmethod
    def read(cls, connection: Any, name: str, key: Sequence[str], what: str) -> TargetTable:
        """Raises ConnectorError where there is no such table that can be written, or nothing that makes the key
        unique."""
        found = found_table(connection, name)
        if found is None:
            raise _no_table(name, what)
        schema, relation, kind = found
        if kind not in ("r", "p", "f"):
            raise ConnectorError(f"{what}: it is no table but a view, to which rows cannot be copied; name its table")
        full = quoted(schema, relation)
        table = cls._of(schema, relation, connection.execute(COLUMNS, [full]).fetchall())
        for column in key:
            if column not in table.types:
                raise ConnectorError(f"{what}: key names {column!r}, and the table has {', '.join(table.types)}")
        if key and not any(set(found) == set(key) for (found,) in connection.execute(UNIQUE, [full]).fetchall()):
            raise ConnectorError(
                f"{what}: no primary key or unique index of the table is over {', '.join(key)} exactly, and not deferrable; add one, "
                "or give its columns as key="
            )
        return table

    @classmethod
    async def read_async(cls, connection: Any, name: str, what: str) -> TargetTable:
        """The same of any relation over an asynchronous connection, without a key."""
        for each in names_of(name):
            with contextlib.suppress(library().errors.InvalidName, library().errors.SyntaxError):
                row = await (await connection.execute(RELATION, [each])).fetchone()
                if row is not None:
                    columns = await connection.execute(COLUMNS, [quoted(*row[:2])])
                    return cls._of(row[0], row[1], await columns.fetchall())
        raise _no_table(name, what)

    @classmethod
    def read_any(cls, connection: Any, name: str, what: str) -> TargetTable:
        """A table or view that is to be read. Raises ConnectorError where there is none."""
        found = found_table(connection, name)
        if found is None:
            raise _no_table(name, what)
        return cls._of(found[0], found[1], connection.execute(COLUMNS, [quoted(*found[:2])]).fetchall())

    @classmethod
    def _of(cls, schema: str, name: str, columns: Sequence[tuple[str, str, str, bool]]) -> TargetTable:
        types = {column: spelled for column, spelled, _, _ in columns}
        bare = {column: spelled for column, _, spelled, _ in columns}
        return cls(schema, name, types, bare, frozenset(column for column, _, _, is_computed in columns if is_computed))

    @property
    def names(self) -> tuple[str, str]:
        """Schema and name, to be quoted."""
        return (self.schema, self.name)

    def require_columns(self, columns: Sequence[str], what: str) -> None:
        """Raise ConnectorError for a column of the rows that the table has not, or computes."""
        for column in columns:
            if column not in self.types:
                raise ConnectorError(
                    f"{what}: the rows have the column {column!r}, and the table has {', '.join(self.types)}; add it, or leave it out"
                )
            if column in self.generated:
                raise ConnectorError(
                    f"{what}: the table computes the column {column!r} by itself (GENERATED); leave it out of the rows"
                )


def _no_table(name: str, what: str) -> ConnectorError:
    return ConnectorError(f"{what}: there is no table {name} that the user of dsn= can see; create it first")


def texts(batch: pa.RecordBatch, types: Mapping[str, str], what: str) -> pa.RecordBatch:
    """Every value as the text that PostgreSQL reads. `types`: of the table's columns, as the server spells them."""
    columns = []
    for field, column in zip(batch.schema, batch.columns, strict=True):
        written = _as_texts(column, types.get(field.name, ""), field.name, what)
        if written is None:
            raise ConnectorError(
                f"{what}: column {field.name!r} is {field.type}, and {types.get(field.name, 'nothing')} in the table; make it a text, or "
                "columns of their own, or let the table have an array for a list, or jsonb"
            )
        columns.append(written)
    return pa.RecordBatch.from_arrays(columns, names=batch.schema.names)


def _as_texts(column: pa.Array, spelled: str, name: str, what: str) -> pa.Array | None:
    """The values as texts; None for a type that the table's column has no text of."""
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    kind = column.type
    if pa.types.is_nested(kind) and spelled in {"json", "jsonb"}:
        return _json(column)
    if spelled.endswith("[]") and (pa.types.is_list(kind) or pa.types.is_large_list(kind)):
        return _arrays(column, spelled.removesuffix("[]"), name, what)
    if pa.types.is_nested(kind) or pa.types.is_duration(kind) or pa.types.is_interval(kind):
        return None
    if any(is_kind(kind) for is_kind in BYTES):
        return pa.array([None if value is None else f"\\x{value.hex()}" for value in column.to_pylist()], pa.string())
    if kind == pa.uuid():
        return pa.array([None if value is None else str(value) for value in column.to_pylist()], pa.string())
    is_cut = spelled == "date" and not _are_days(column)
    if is_cut or (pa.types.is_timestamp(kind) and spelled.startswith("time ")):
        return None  # the server would leave out the time of day, or the day
    if pa.types.is_timestamp(kind) or pa.types.is_date(kind):
        return _moments(column, name, what)
    return column.cast(pa.string())


def _are_days(column: pa.Array) -> bool:
    """Whether no value has a time of day, in UTC."""
    if not pa.types.is_timestamp(column.type):
        return True
    moments = column.cast(pa.timestamp(column.type.unit))
    return bool(moments.cast(pa.date32()).cast(moments.type).equals(moments))


def _json(column: pa.Array) -> pa.Array:
    """Lists and records as JSON; null stays null."""
    form = JsonFormat(pa.schema([("v", column.type)]))
    lines = form.encode(pa.RecordBatch.from_arrays([column], names=["v"]))
    found = [line[len(JSON_OPENS) : -1].decode() if line else None for line in lines]
    return pc.if_else(column.is_valid(), pa.array(found, pa.string()), pa.scalar(None, pa.string()))


def _arrays(column: pa.Array, spelled: str, name: str, what: str) -> pa.Array | None:
    """Lists as PostgreSQL writes arrays. `spelled`: the type of their elements, which of lists is the same."""
    is_deeper = pa.types.is_list(column.type.value_type) or pa.types.is_large_list(column.type.value_type)
    elements = pc.list_flatten(column)
    written = _arrays(elements, spelled, name, what) if is_deeper else _as_texts(elements, spelled, name, what)
    if written is None:
        return None
    if not is_deeper:
        escaped = pc.replace_substring(pc.replace_substring(written, "\\", "\\\\"), '"', '\\"')
        written = pc.binary_join_element_wise('"', escaped, '"', "")
    parts, found, at = pc.fill_null(written, "NULL").to_pylist(), list[str | None](), 0
    for length in pc.list_value_length(column).to_pylist():
        found.append(None if length is None else "{" + ",".join(parts[at : at + length]) + "}")
        at += length or 0
    return pa.array(found, pa.string())


def _moments(column: pa.Array, name: str, what: str) -> pa.Array:
    """Days and times as texts: those with a zone in UTC, so that a column without one gets no other hours by the zone
    of the rows, and years before the first one as PostgreSQL has them."""
    if pa.types.is_timestamp(column.type) and column.type.tz is not None:
        column = column.cast(pa.timestamp(column.type.unit, "UTC"))
    found = column.cast(pa.string())
    if pc.any(pc.match_substring(found, "out of range")).as_py():
        number = pc.index(pc.match_substring(found, "out of range"), True).as_py()
        raise ConnectorError(
            f"{what}: column {name!r} has {column[number].value} ({column.type} since 1970), which is no year that "
            "can be written; correct it, or make it null, before the sink"
        )
    if not pc.any(pc.match_substring_regex(found, BEFORE_YEAR_1)).as_py():
        return found
    return pa.array([None if text is None else _before_christ(text) for text in found.to_pylist()], pa.string())


def _before_christ(text: str) -> str:
    early = re.match(BEFORE_YEAR_1, text)
    return text if early is None else f"{1 - int(early[1]):04}-{early[2]} BC"
