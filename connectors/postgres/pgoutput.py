"""What PostgreSQL's plugin pgoutput says: messages of its protocol, version 1, as plain objects.

Decides nothing: it reads bytes, as PostgreSQL's manual describes them ("Logical Replication Message Formats"), and
knows which transactions a snapshot of the server saw, by the numbers that the messages carry. Messages that a reader of
rows has no use for (origins, types) are None. It has no connection.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final

INSERT, UPDATE, DELETE = "insert", "update", "delete"
UNCHANGED: Final = object()
"""A large value that an update has left as it was; the server does not send it again."""
Values = tuple[object, ...]
"""The values of the relation's columns: a text, None for null, or UNCHANGED."""
EPOCH_US = 946_684_800_000_000
"""PostgreSQL counts microseconds from 2000 on; this is that moment in microseconds since 1970."""
XIDS = 1 << 32
_WAL_DATA, _KEEPALIVE = struct.Struct("!QQQ"), struct.Struct("!QQB")
_BEGIN, _COMMIT, _STATUS = struct.Struct("!QQI"), struct.Struct("!BQQQ"), struct.Struct("!cQQQQB")
_U16, _U32, _COLUMN = struct.Struct("!H"), struct.Struct("!I"), struct.Struct("!Ii")


@dataclass(frozen=True, slots=True)
class Keepalive:
    """The server has come to `wal_end`, and everything before it that is for us was sent."""

    wal_end: int
    reply: bool


@dataclass(frozen=True, slots=True)
class Began:
    """The changes that follow are of one transaction, which has committed."""

    commit_lsn: int
    committed_us: int
    xid: int


@dataclass(frozen=True, slots=True)
class Committed:
    """All changes of the transaction were sent."""

    end_lsn: int


@dataclass(frozen=True, slots=True)
class Relation:
    """A table as it was when the changes that follow were made."""

    relation_id: int
    name: tuple[str, str]
    """The schema and the table in it."""
    columns: tuple[tuple[str, int], ...]
    """Name and number of the type."""
    key: tuple[str, ...] = ()
    """Columns by which a row that was changed is told; all where the whole row is logged."""


@dataclass(frozen=True, slots=True)
class Changed:
    """A row was inserted, updated or deleted."""

    relation_id: int
    what: str
    new: Values | None = None
    old: Values | None = None
    """The row before, or its key alone with nulls; None where the server does not say it."""
    old_is_whole: bool = False


@dataclass(frozen=True, slots=True)
class Truncated:
    """TRUNCATE has emptied these tables."""

    relation_ids: tuple[int, ...]


Message = Keepalive | Began | Committed | Relation | Changed | Truncated


def decode(data: bytes) -> Message | None:
    """One message of the replication stream. None for those that say nothing of rows. Raises ValueError for bytes
    that are no message."""
    try:
        return _decode(data)
    except (struct.error, IndexError) as error:
        raise ValueError(f"the message ends early: {error}") from error


def _decode(data: bytes) -> Message | None:
    if data[:1] == b"k":
        wal_end, _, reply = _KEEPALIVE.unpack_from(data, 1)
        return Keepalive(wal_end, bool(reply))
    if data[:1] != b"w":
        return None
    kind, at = data[25:26], 26
    if kind == b"I":
        return Changed(_u32(data, at), INSERT, _tuple(data, at + 5)[0])
    if kind == b"U":
        return _update(data, at)
    if kind == b"D":
        return Changed(_u32(data, at), DELETE, None, _tuple(data, at + 5)[0], data[at + 4 : at + 5] == b"O")
    if kind == b"B":
        commit_lsn, committed_us, xid = _BEGIN.unpack_from(data, at)
        return Began(commit_lsn, committed_us + EPOCH_US, xid)
    if kind == b"C":
        return Committed(_COMMIT.unpack_from(data, at)[2])
    if kind == b"R":
        return _relation(data, at)
    if kind == b"T":
        count = _u32(data, at)
        return Truncated(tuple(_u32(data, at + 5 + 4 * number) for number in range(count)))
    return None


def status_update(received: int, confirmed: int) -> bytes:
    """The answer to the server: how far rows were read, and up to where they will never be asked for again."""
    return _STATUS.pack(b"r", received, confirmed, confirmed, 0, 0)


def _u32(data: bytes, at: int) -> int:
    return int(_U32.unpack_from(data, at)[0])


def _update(data: bytes, at: int) -> Changed:
    relation_id, mark, at = _u32(data, at), data[at + 4 : at + 5], at + 5
    old: Values | None = None
    if mark != b"N":
        old, at = _tuple(data, at)
        at += 1
    return Changed(relation_id, UPDATE, _tuple(data, at)[0], old, mark == b"O")


def _tuple(data: bytes, at: int) -> tuple[Values, int]:
    """The values of a row, and where the message goes on."""
    (count,) = _U16.unpack_from(data, at)
    at += 2
    values: list[object] = []
    for _ in range(count):
        kind = data[at]
        at += 1
        if kind == ord("t"):
            (length,) = _U32.unpack_from(data, at)
            at += 4
            if length > len(data) - at:
                raise IndexError(f"a value of {length} bytes")
            values.append(data[at : at + length].decode())
            at += length
        elif kind in b"nu":
            values.append(None if kind == ord("n") else UNCHANGED)
        else:
            raise ValueError(f"a value is of the kind {chr(kind)!r}")
    return tuple(values), at


def _text(data: bytes, at: int) -> tuple[str, int]:
    end = data.index(0, at)
    return data[at:end].decode(), end + 1


def _relation(data: bytes, at: int) -> Relation:
    relation_id = _u32(data, at)
    schema, at = _text(data, at + 4)
    table, at = _text(data, at)
    (count,) = _U16.unpack_from(data, at + 1)
    at += 3
    columns = []
    key = []
    for _ in range(count):
        is_key = data[at] & 1
        name, at = _text(data, at + 1)
        if is_key:
            key.append(name)
        columns.append((name, int(_COLUMN.unpack_from(data, at)[0])))
        at += _COLUMN.size
    return Relation(relation_id, (schema or "pg_catalog", table), tuple(columns), tuple(key))


@dataclass(frozen=True, slots=True)
class SeenTransactions:
    """The transactions whose rows a snapshot of the server saw."""

    none_from: int
    running: frozenset[int]

    @classmethod
    def parse(cls, text: str) -> SeenTransactions:
        """As `pg_current_snapshot()` writes it, xmin:xmax:running."""
        _, high, running = text.split(":")
        return cls(int(high), frozenset(map(int, filter(None, running.split(",")))))

    def has(self, xid: int) -> bool:
        """Whether a transaction that has committed by now had done so then. `xid`: its number without the epoch, as
        messages have it."""
        offset = (xid - self.none_from) % XIDS
        whole = self.none_from + (offset if offset < XIDS // 2 else offset - XIDS)
        return whole < self.none_from and whole not in self.running


def lsn_text(lsn: int) -> str:
    """A position in the log as PostgreSQL writes it."""
    return f"{lsn >> 32:X}/{lsn & 0xFFFFFFFF:X}"


def lsn_of(text: str) -> int:
    """A position in the log from its text."""
    high, low = text.split("/")
    return (int(high, 16) << 32) + int(low, 16)
