"""The rows that a table has, read in the order of its key, each part of them in one transaction of the server.

Decides how a reader goes on after the key that it came to, with a snapshot of the server of its own: what each part saw
is noted, so that the log can leave out what is in it. It does not know the log.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.csv as pacsv

from snapline.connectors.formats.csv_lines import BYTE_ORDER_MARK
from snapline.connectors.postgres.change_log import ADDED, METADATA_COLUMNS, Part, RowsWanted, schema_of
from snapline.connectors.postgres.changed_table import ChangedTable, column_of
from snapline.connectors.postgres.replication import open_connection

BLOCK_BYTES_MAX = 1 << 30
"""One row may be as large as PostgreSQL lets it be."""


class TablePart:
    """One transaction that reads rows behind a key."""

    def __init__(
        self, dsn: str, who: str, table: ChangedTable, wanted: RowsWanted, after: Sequence[str] | None, most: int
    ) -> None:
        """`most`: so many rows at most. Raises psycopg's errors."""
        self._table, self._wanted, self._most = table, wanted, most
        self._connection = open_connection(dsn, who)
        self._connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
        self.saw: str
        self.saw, self._now_us = self._connection.execute(
            "SELECT pg_current_snapshot()::text, (extract(epoch FROM now()) * 1000000)::bigint"
        ).fetchone()
        self._copying = self._connection.cursor().copy(self._statement(after))
        self._copy = self._copying.__enter__()
        self.rows = 0

    def read(self, rows: int, lsn: int) -> tuple[pa.RecordBatch, list[str]] | None:
        """The next rows and the key of the last of them; None at the end. Raises psycopg's errors."""
        lines: list[bytes] = []
        while len(lines) < rows and (line := self._copy.read()):
            lines.append(bytes(line))
        if not lines:
            return None
        self.rows += len(lines)
        names = [column.name for column in self._table.columns]
        texts = pacsv.read_csv(
            io.BytesIO(b"".join((BYTE_ORDER_MARK, *lines))),  # Arrow leaves out one, which may be a letter of the first row
            pacsv.ReadOptions(column_names=names, block_size=min(BLOCK_BYTES_MAX, sum(map(len, lines)) + len(BYTE_ORDER_MARK) + 1), use_threads=False),
            pacsv.ParseOptions(newlines_in_values=True, ignore_empty_lines=False),
            pacsv.ConvertOptions(
                column_types=dict.fromkeys(names, pa.string()), null_values=[""], strings_can_be_null=True, quoted_strings_can_be_null=False
            ),
        ).combine_chunks()  # fmt: skip
        columns = [
            column_of(texts.column(column.name).combine_chunks(), column, self._wanted.what)
            for column in self._table.columns
        ]
        count = len(lines)
        columns.append(pa.array([ADDED] * count, pa.string()))
        known = {"lsn": lsn, "committed_at": self._now_us, "transaction": None}
        columns += [
            pa.array([known[name]] * count, pa.int64()).cast(METADATA_COLUMNS[name]) for name in self._wanted.metadata
        ]
        key = [str(texts.column(name)[-1].as_py()) for name in self._table.key]
        return pa.RecordBatch.from_arrays(columns, schema=schema_of(self._table, self._wanted)), key

    @property
    def is_last(self) -> bool:
        """Whether the end of the part was the end of the table."""
        return self.rows < self._most

    def close(self) -> None:
        """End the transaction and its connection."""
        self._connection.pgconn.finish()

    def _statement(self, after: Sequence[str] | None) -> Any:
        from psycopg import sql

        key = sql.SQL(", ").join(map(sql.Identifier, self._table.key))
        where: Any = sql.SQL("")
        if after is not None:
            where = sql.SQL(" WHERE ({}) > ({})").format(key, _literals(self._table, after))
        return sql.SQL("COPY (SELECT {} FROM {}{} ORDER BY {} LIMIT {}) TO STDOUT (FORMAT csv)").format(
            sql.SQL(", ").join(sql.Identifier(column.name) for column in self._table.columns),
            sql.Identifier(self._table.schema, self._table.name), where, key, sql.Literal(self._most),
        )  # fmt: skip


def part_query(table: ChangedTable, parts: Sequence[Part], key: Sequence[str]) -> Any:
    """Ask which of these parts, in order, has the key: for each that has an end, whether the key lies within it."""
    from psycopg import sql

    ends = [end for end, _ in parts if end is not None]
    tests = [sql.SQL("({}) <= ({})").format(_literals(table, key, collate=True), _literals(table, end)) for end in ends]
    return sql.SQL("SELECT {}").format(sql.SQL(", ").join(tests))


def _literals(table: ChangedTable, key: Sequence[str], *, collate: bool = False) -> Any:
    from psycopg import sql

    values = []
    for text, column in zip(key, table.key_columns, strict=True):
        value = sql.SQL("{}::{}").format(sql.Literal(text), sql.SQL(column.spelled))
        if collate and column.collation is not None:
            value = sql.SQL("{} COLLATE {}").format(value, sql.SQL(column.collation))
        values.append(value)
    return sql.SQL(", ").join(values)
