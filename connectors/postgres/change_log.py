"""From messages of the log to rows, and how far the log was read.

Decides which rows a change becomes (by Flink's RowKinds: +I, -U, +U, -D), which changes the rows of the snapshot hold
already, what a position is, and which changes of the table itself end the job. A position is the end of the last
transaction that was handed out whole, and how many changes of the next one were handed out: the server sends a
transaction again from its start, always in one order. A change is left out when the part of the snapshot that has its
key was read by a snapshot of the server that saw the change's transaction; since a row's writers wait for each other,
what is left out is the beginning of what happened to the row, and never a gap. It is a core: the one question that only
the server can answer, which part of the snapshot has a key, is asked by a function that it is given.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import pyarrow as pa

from snapline.connectors.postgres.changed_table import ChangedTable, column_of
from snapline.connectors.postgres.pgoutput import (
    INSERT,
    UNCHANGED,
    Began,
    Changed,
    Committed,
    Keepalive,
    Message,
    Relation,
    SeenTransactions,
    Truncated,
    Values,
    lsn_text,
)
from snapline.dataflow.errors import ConnectorError
from snapline.runtime.cores.machine import check

ADDED, BEFORE, AFTER, DELETED = "+I", "-U", "+U", "-D"
METADATA_COLUMNS: dict[str, pa.DataType] = {
    "lsn": pa.int64(),
    "committed_at": pa.timestamp("us", "UTC"),
    "transaction": pa.int64(),
}
WIDER = {("smallint", "integer"), ("smallint", "bigint"), ("integer", "bigint"), ("real", "double precision")}
TYPE_IDS = {21: "smallint", 23: "integer", 20: "bigint", 700: "real", 701: "double precision"}
Part = tuple[Sequence[str] | None, str]
"""A part of the snapshot: the greatest key in it (None: it has all further ones), and what the server's snapshot
saw."""
_Row = tuple[str, Values, int, int, int]
"""What happened, the values, where the transaction ends, when it did, and its number."""


@dataclass(frozen=True, slots=True)
class RowsWanted:
    """Which rows a source makes of changes, as its user has said."""

    what: str
    """How errors call the source."""
    row_kind: str
    """The name of the column that says what happened to the row."""
    metadata: Mapping[str, str]
    before_images: bool
    on_truncate: Literal["fail", "ignore"]
    unchanged_values: Literal["fail", "null"]


def schema_of(table: ChangedTable, wanted: RowsWanted) -> pa.Schema:
    """The columns of the rows."""
    fields = [column.field for column in table.columns]
    fields.append(pa.field(wanted.row_kind, pa.string()))
    fields += [pa.field(label, METADATA_COLUMNS[name]) for name, label in wanted.metadata.items()]
    return pa.schema(fields)


class _Layout:
    """Where in a message the columns of the source are."""

    def __init__(self, relation: Relation, table: ChangedTable, what: str) -> None:
        there = {name: (place, type_id) for place, (name, type_id) in enumerate(relation.columns)}
        for column in table.columns:
            if column.name not in there:
                raise ConnectorError(
                    f"{what}: the column {column.name!r} was dropped, renamed or left out of the publication while its changes are "
                    "read; put it back, or start the job anew without the old state, with another slot. Where the table has got it since "
                    "the snapshot that the job starts from, leave it out of columns= until the job has come to that change"
                )
            was = there[column.name][1]
            fits = column.field.type == pa.string() or (TYPE_IDS.get(was, ""), column.spelled) in WIDER
            if was != column.type_id and not fits:
                raise ConnectorError(
                    f"{what}: the type of column {column.name!r} was changed while its changes are read; start the job anew without "
                    "the old state, with another slot"
                )
        if relation.key and not set(table.key) <= set(relation.key):
            raise ConnectorError(
                f"{what}: the table's key was {', '.join(table.key)} when the job was defined, and is {', '.join(relation.key)} in these "
                "changes, which no longer say which row they are of; start the job anew without the old state, with another slot"
            )
        self.count = len(relation.columns)
        self.places = [there[column.name][0] for column in table.columns]
        self.key = [there[name][0] for name in table.key]
        self.new = sorted(set(there) - {column.name for column in table.columns})


class ChangeLog:
    """The rows of one table."""

    def __init__(
        self,
        table: ChangedTable,
        wanted: RowsWanted,
        position: Mapping[str, Any],
        part_of: Callable[[Sequence[Part], Sequence[str]], int],
    ) -> None:
        """`position`: what `position` returned. `part_of(parts, key)`: which part of the snapshot has the key."""
        self._table, self._wanted, self._part_of = table, wanted, part_of
        self.lsn = int(position["lsn"])
        """Everything before it was handed out."""
        self._begun: tuple[int, int] = (int(position.get("commit", 0)), int(position.get("rows", 0)))
        """Where the transaction ends of which a part was handed out, and how many changes these are."""
        self._parts: tuple[Part, ...] = tuple((part[0], part[1]) for part in position.get("parts", ()))
        self._until = int(position.get("until", 0))
        """Transactions that commit from here on are in no part of the snapshot."""
        self._seen: tuple[bool, ...] = ()
        """Whether the parts have the changes of the transaction."""
        self._transaction: Began | None = None
        self._skip = self._done = 0
        self._layouts: dict[int, _Layout] = {}
        self.extra_columns: list[str] = []
        """Columns that the table has got since."""
        self._rows: list[_Row] = []

    @property
    def rows(self) -> int:
        """So many wait to be taken."""
        return len(self._rows)

    def position(self) -> dict[str, Any]:
        """Return where a reader goes on that has everything that was taken."""
        commit, rows = self._progress()
        position: dict[str, Any] = {"lsn": self.lsn}
        if rows:
            position |= {"commit": commit, "rows": rows}
        if self._parts:
            position |= {"parts": [list(part) for part in self._parts], "until": self._until}
        return position

    def reconnected(self) -> None:
        """The server begins again after the last transaction that was handed out whole."""
        self._begun = self._progress()
        self._transaction, self._layouts = None, {}

    def apply(self, message: Message) -> None:
        """Take in what the server sent. Raises ConnectorError for what rows cannot say."""
        match message:
            case Changed():
                layout = self._layouts.get(message.relation_id)
                if layout is not None:
                    for values in (message.new, message.old):
                        if values is not None and len(values) != layout.count:
                            raise ConnectorError(
                                f"{self._wanted.what}: the server sent {len(values)} values of a row, and has said that there are "
                                f"{layout.count} columns; start the job from its latest checkpoint"
                            )
                    if self._done >= self._skip:
                        self._rows += self._rows_of(message, layout)
                    self._done += 1
            case Began():
                self._begin(message)
            case Committed():
                self.lsn, self._transaction = message.end_lsn, None
                self._begun = self._begun if message.end_lsn <= self._begun[0] else (0, 0)
            case Keepalive():
                if self._transaction is None and not self._begun[1]:
                    self.lsn = max(self.lsn, message.wal_end)
            case Relation():
                if message.name == (self._table.schema, self._table.name):
                    layout = self._layouts[message.relation_id] = _Layout(message, self._table, self._wanted.what)
                    self.extra_columns = layout.new
            case Truncated():
                is_in_snapshot = any(self._seen) and all(self._seen)
                is_ours = any(one in self._layouts for one in message.relation_ids)
                if self._wanted.on_truncate == "fail" and is_ours and not is_in_snapshot:
                    raise ConnectorError(
                        f"{self._wanted.what}: the table was truncated (at {lsn_text(self.lsn)}), which no row can say; start the job "
                        "anew without the old state, with another slot, or on_truncate='ignore' goes on as if nothing had happened"
                    )

    def take(self) -> pa.RecordBatch | None:
        """The rows of the changes that came since the last call; None without any."""
        rows, self._rows = self._rows, []
        if not rows:
            return None
        what = self._wanted.what
        kinds, values, lsns, times, xids = zip(*rows, strict=True)
        columns = [
            column_of(texts, column, what)
            for texts, column in zip(zip(*values, strict=True), self._table.columns, strict=True)
        ]
        columns.append(pa.array(kinds, pa.string()))
        known = {"lsn": lsns, "committed_at": times, "transaction": xids}
        columns += [pa.array(known[name], pa.int64()).cast(METADATA_COLUMNS[name]) for name in self._wanted.metadata]
        return pa.RecordBatch.from_arrays(columns, schema=schema_of(self._table, self._wanted))

    # --- one transaction ----------------------------------------------------------------------------------------------

    def _progress(self) -> tuple[int, int]:
        if self._transaction is None:
            return self._begun
        return (self._transaction.commit_lsn, max(self._done, self._skip))

    def _begin(self, message: Began) -> None:
        commit, rows = self._begun
        check(not rows or message.commit_lsn <= commit, "the server sends a transaction again of which a part was read")
        self._transaction = message
        self._done, self._skip = 0, rows if message.commit_lsn == commit else 0
        if self._parts and message.commit_lsn >= self._until:
            self._parts = ()
        self._seen = tuple(SeenTransactions.parse(saw).has(message.xid) for _, saw in self._parts)

    def _rows_of(self, message: Changed, layout: _Layout) -> list[_Row]:
        """The rows that a change becomes. Nothing is different when it raises, so that it may come again."""
        transaction = check(self._transaction, "a change is in a transaction")
        return [
            (kind, tuple(values[place] for place in layout.places), transaction.commit_lsn, transaction.committed_us, transaction.xid)
            for kind, values in self._changes(message, layout)
            if not self._is_in_snapshot(_key(values, layout))
        ]  # fmt: skip

    def _changes(self, message: Changed, layout: _Layout) -> list[tuple[str, Values]]:
        before, after = message.old, message.new
        if after is None:
            return [] if before is None else [(DELETED, before)]
        after = self._completed(after, before if message.old_is_whole else None, layout)
        if message.what == INSERT:
            return [(ADDED, after)]
        if before is not None and _key(before, layout) != _key(after, layout):
            return [(DELETED, before), (ADDED, after)]
        if not self._wanted.before_images:
            return [(AFTER, after)]
        if before is None or not message.old_is_whole:
            raise ConnectorError(
                f"{self._wanted.what}: the server no longer logs rows as they were before; ALTER TABLE "
                f"{self._table.full_name} REPLICA IDENTITY FULL, and start the job anew with another slot"
            )
        return [(BEFORE, before), (AFTER, after)]

    def _is_in_snapshot(self, key: Sequence[str]) -> bool:
        """Whether the part of the snapshot that has the key has this transaction's changes."""
        return any(self._seen) and (all(self._seen) or self._seen[self._part_of(self._parts, key)])

    def _completed(self, after: Values, before: Values | None, layout: _Layout) -> Values:
        """The row with the large values that the server did not send again."""
        if UNCHANGED not in after:
            return after
        if before is not None:
            return tuple(old if new is UNCHANGED else new for new, old in zip(after, before, strict=True))
        for place, column in zip(layout.places, self._table.columns, strict=True):
            if after[place] is UNCHANGED and (
                self._wanted.unchanged_values == "fail" or column.name in self._table.key
            ):
                raise ConnectorError(
                    f"{self._wanted.what}: a row was updated whose large value in {column.name!r} has not changed, and the server does "
                    "not log it again; unchanged_values='null' reads null there, columns= can leave the column out, and ALTER TABLE "
                    f"{self._table.full_name} REPLICA IDENTITY FULL logs it from then on"
                )
        return tuple(None if value is UNCHANGED else value for value in after)


def _key(values: Values, layout: _Layout) -> list[str]:
    return [str(values[place]) for place in layout.key]
