"""Look-ups in a table of PostgreSQL, for `DataStream.async_wait`: the columns that belong to a row's key.

Decides that keys are asked for many at a time, that answers are kept for a bounded time, what is a server that is away
(asked again, if a retry strategy says so) and what is an error of the job (it fails at once), and which Arrow types
columns of PostgreSQL have; the schema of the result is read when the job is defined, so that a wrong name is found
then. It does not know batches and checkpoints: rows under way are the operator's. Mirrors Flink's JDBC look-up.
"""

from __future__ import annotations

import asyncio
import datetime as dt
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import pyarrow as pa

from snapline.connectors.files.filesystems import first_line
from snapline.connectors.lookups.answers import Found
from snapline.connectors.lookups.service_lookup import Key, ServiceAway, ServiceLookup
from snapline.connectors.postgres.postgres_table import (
    SESSION,
    TargetTable,
    arrow_type_of,
    bare_type,
    connect,
    connection_info,
    identifier,
    is_away,
    is_read_as_it_is,
    library,
    refused,
)
from snapline.dataflow.api.function_contexts import Row, RuntimeContext
from snapline.dataflow.errors import ConnectorError

WIDE = {"smallint": "bigint", "integer": "bigint"}
"""Types of keys that may be larger than their column's, and then are equal to nothing; an index is used as well."""


class PostgresLookup(ServiceLookup):
    """Adds columns of a table to each row, found by a key.

    >>> shops = sl_connectors.PostgresLookup(
    ...     "shops", dsn="postgresql://reader@db/shop", on={"shop": "id"}, columns=["town"], cache_ms=5_000
    ... )
    >>> shops.on, shops.columns
    ({'shop': 'id'}, {'town': 'town'})
    >>> shops.described
    'PostgresLookup shops'
    >>> retry = sl.AsyncRetryStrategy.exponential_backoff(8, 100, 5_000, retry_if_exception=shops.is_away)
    >>> towns = pa.schema([*orders.schema, ("town", pa.string())])  # without schema= the table is asked for its types
    >>> _ = orders.async_wait(shops, retry=retry, uid="towns", schema=towns)
    >>> shops.is_away(ValueError("not the server's"))
    False
    """

    def __init__(
        self,
        table: str,
        *,
        dsn: str,
        on: str | Sequence[str] | Mapping[str, str],
        columns: Sequence[str] | Mapping[str, str],
        how: Literal["left", "inner"] = "left",
        cache_keys: int = 10_000,
        cache_ms: int = 60_000,
        cache_absent_ms: int | None = None,
        connections: int = 2,
        batch_keys: int = 200,
        query_timeout_ms: int = 10_000,
    ) -> None:
        """`table`, `dsn`: as for `PostgresSink`. `on`: the key, columns of the rows; a mapping {column: the table's
        column} where names differ. `columns` of the table that are added; a mapping gives them other names. `how`: a
        row whose key has none gets nulls (`left`), or is left out (`inner`); one whose key has several leaves once for
        each. `cache_keys`: each subtask keeps the answers to so many keys, for `cache_ms` milliseconds, those without a
        row for `cache_absent_ms` (None: as long); 0 keeps none. `connections` of a subtask, each with a question for up
        to `batch_keys` keys at a time. `query_timeout_ms`: a server that takes longer counts as away. Raises
        ConnectorError for what makes no sense."""
        self.table = table
        self.dsn = dsn
        self.on: dict[str, str] = _named(on)
        self.columns: dict[str, str] = _named(columns)
        """The name that it has in the rows, by the table's column."""
        super().__init__(
            self.on, self.columns.values(), how=how, cache_keys=cache_keys, cache_ms=cache_ms,
            cache_absent_ms=cache_absent_ms, connections=connections, batch_keys=batch_keys, query_timeout_ms=query_timeout_ms,
        )  # fmt: skip
        if not self.on or not self.columns:
            raise ConnectorError(
                f"PostgresLookup {table}: give at least one column of the key in on=, and one in columns="
            )

    @property
    def described(self) -> str:
        """Return the table, as errors name it."""
        return f"PostgresLookup {self.table}"

    # --- before the job runs ------------------------------------------------------------------------------------------

    def result_schema(self, schema: pa.Schema | None) -> pa.Schema | None:
        """Ask the server for the types of the columns; None where those of the rows are not known. Raises
        ConnectorError for a server that cannot be asked, and for columns that are not there."""
        connection = connect(self.dsn)
        try:
            types = self._types(TargetTable.read_any(connection, self.table, self.described))
        except library().Error as error:
            raise refused(self.dsn, self.table, error) from error
        finally:
            connection.close()
        if schema is None:
            return None
        for column in self.on:
            if column not in schema.names:
                raise ConnectorError(
                    f"{self.described}: on= names {column!r}, and the rows have {', '.join(schema.names)}"
                )
            if pa.types.is_nested(schema.field(column).type):
                raise ConnectorError(
                    f"{self.described}: on= names {column!r}, which is {schema.field(column).type}; make it a text"
                )
        fields = [pa.field(name, arrow_type_of(types[column])) for column, name in self.columns.items()]
        for field in fields:
            if field.name in schema.names:
                raise ConnectorError(
                    f"{self.described}: the rows have a column {field.name!r} already; give another name in columns={{...}}"
                )
        return pa.schema([*schema, *fields])

    def _types(self, table: TargetTable) -> dict[str, str]:
        for option, named in (("on", self.on.values()), ("columns", self.columns)):
            for column in named:
                if column not in table.types:
                    raise ConnectorError(
                        f"{self.described}: {option}= names {column!r}, and the table has {', '.join(table.types)}"
                    )
        return table.types

    # --- in the task --------------------------------------------------------------------------------------------------

    def open(self, context: RuntimeContext) -> None:
        """Begin with nothing known and no connection."""
        super().open(context)
        self._open: dict[int, Any] = {}
        """The connections, by number of the worker."""
        self._query: Any = None
        self._decimals: list[int] = []
        """Places of columns that are decimals, which to PostgreSQL may be no numbers."""

    async def _found_for(self, worker: int, keys: Sequence[Key]) -> Mapping[Key, Found]:
        """Ask the server for all of these keys in one question, but for those that nothing there can be equal to."""
        found: dict[Key, list[Row]] = {key: [] for key in keys}
        keys = [key for key in keys if not any(isinstance(value, str) and "\0" in value for value in key)]
        try:
            rows = await asyncio.wait_for(self._rows(worker, keys), self.query_timeout_ms / 1000)
        except TimeoutError as error:
            self._drop(worker)
            why = f"the server has not answered within query_timeout_ms = {self.query_timeout_ms}"
            raise ServiceAway(f"{self.described}: {why}; raise it, or see why the server is slow") from error
        except library().DataError as error:
            self._drop(worker)
            line = refused(self.dsn, self.table, error)
            raise line if error.sqlstate else self._beyond(first_line(error)) from error
        except library().Error as error:
            self._drop(worker)
            line = refused(self.dsn, self.table, error)
            raise (ServiceAway(str(line)) if is_away(error) else line) from error
        names = tuple(self.columns.values())
        for number, *values in rows:
            for place in self._decimals:
                if values[place] is not None and not values[place].is_finite():
                    raise self._beyond(f"{names[place]!r} is {values[place]} where the key is {keys[number - 1]}")
            found[keys[number - 1]].append(dict(zip(names, values, strict=True)))
        return found

    async def _rows(self, worker: int, keys: Sequence[Key]) -> list[tuple[Any, ...]]:
        """The rows of these keys, each behind the number of its key."""
        parameters = [[_text(key[place]) for key in keys] for place in range(len(self.on))]
        connection = self._open.get(worker)
        if connection is not None:
            try:
                return await self._execute(connection, parameters)
            except library().Error as error:
                if not is_away(error):
                    raise
                self._drop(worker)  # the server has been restarted, say, since it was used last
        psycopg = library()
        connection = await psycopg.AsyncConnection.connect(connection_info(self.dsn), autocommit=True)
        self._open[worker] = connection
        await connection.execute(SESSION)
        return await self._execute(connection, parameters)

    async def _execute(self, connection: Any, parameters: Sequence[Sequence[str]]) -> list[tuple[Any, ...]]:
        if self._query is None:
            self._query = await self._made_query(connection)
        cursor = await connection.execute(self._query, parameters)
        rows: list[tuple[Any, ...]] = await cursor.fetchall()
        return rows

    async def _made_query(self, connection: Any) -> Any:
        """One question for any number of keys. Each is handed over as text and read by the server as a value of its
        column's type, so that an index on the key is used."""
        from psycopg import sql

        table = await TargetTable.read_async(connection, self.table, self.described)
        types = self._types(table)
        self._decimals = [
            place for place, column in enumerate(self.columns) if pa.types.is_decimal(arrow_type_of(types[column]))
        ]
        places = [sql.Identifier(f"k{number}") for number in range(len(self.on))]
        kinds = (table.bare_types[column] for column in self.on.values())
        matches = [
            sql.SQL("t.{} = k.{}::{}").format(identifier(column), place, bare_type(WIDE.get(kind, kind)))
            for column, place, kind in zip(self.on.values(), places, kinds, strict=True)
        ]
        wanted = [
            sql.SQL("t.{}" if is_read_as_it_is(types[column]) else "t.{}::text").format(identifier(column))
            for column in self.columns
        ]
        return sql.SQL("SELECT k.n, {} FROM unnest({}) WITH ORDINALITY AS k({}, n) JOIN {} AS t ON {}").format(
            sql.SQL(", ").join(wanted),
            sql.SQL(", ").join([sql.SQL("%s::text[]")] * len(places)),
            sql.SQL(", ").join(places),
            identifier(*table.names),
            sql.SQL(" AND ").join(matches),
        )

    def _beyond(self, said: str) -> ConnectorError:
        """The line for a value that the server has and Arrow has not: not-a-number, infinity, years beyond 9999."""
        return ConnectorError(
            f"{self.described}: {said}, which the column's type in the rows has no value for; name a view in its place that makes the "
            "column a text (::text) or such values null"
        )

    def _drop(self, worker: int) -> None:
        """Close a connection without a word to the server; the next question makes another one."""
        connection = self._open.pop(worker, None)
        if connection is not None:
            connection.pgconn.finish()

    def close(self) -> None:
        """Close the connections; the event loop has ended."""
        for worker in list(self._open):
            self._drop(worker)


def _named(given: str | Sequence[str] | Mapping[str, str]) -> dict[str, str]:
    if isinstance(given, Mapping):
        return dict(given)
    return {name: name for name in ([given] if isinstance(given, str) else given)}


def _text(value: Any) -> str:
    """A value as PostgreSQL reads it."""
    if isinstance(value, bytes):
        return f"\\x{value.hex()}"
    if isinstance(value, dt.datetime) and value.tzinfo is not None:
        value = value.astimezone(dt.UTC)
    if isinstance(value, (dt.datetime, dt.date, dt.time)):
        return value.isoformat()
    return str(value)
