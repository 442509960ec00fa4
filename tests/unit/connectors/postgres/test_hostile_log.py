"""Messages of a log that are none, or of another table: one line each, and never a value that is not the row's."""

from __future__ import annotations

import struct
from types import SimpleNamespace
from typing import Any

import pytest

from snapline.connectors.postgres.change_log import RowsWanted
from snapline.connectors.postgres.changed_table import ChangedColumn, ChangedTable
from snapline.connectors.postgres.changes_reader import ChangesReader
from snapline.connectors.postgres.pgoutput import decode
from snapline.dataflow.api.connector_api import SourceSplit
from snapline.dataflow.errors import ConnectorError
from tests.unit.connectors.parquet.places import Place

psycopg = pytest.importorskip("psycopg")
WANTED = RowsWanted(
    "changes of t", "row_kind", {"lsn": "lsn"}, before_images=False, on_truncate="fail", unchanged_values="fail"
)


def message(kind: bytes, body: bytes) -> bytes:
    """One of the stream's, with the positions that all have before them."""
    return b"w" + bytes(24) + kind + body


def row(*values: bytes | None) -> bytes:
    """The values of a row as texts."""
    texts = [b"n" if value is None else b"t" + struct.pack("!I", len(value)) + value for value in values]
    return struct.pack("!H", len(values)) + b"".join(texts)


def inserted(values: bytes) -> bytes:
    return message(b"I", struct.pack("!I", 5) + b"N" + values)


RELATION = message(
    b"R", struct.pack("!I", 5) + b"public\0t\0d" + struct.pack("!H", 2)
    + b"\x01id\0" + struct.pack("!Ii", 23, -1) + b"\0v\0" + struct.pack("!Ii", 17, -1),
)  # fmt: skip
BEGIN = message(b"B", struct.pack("!QQI", 7, 0, 3))


def read(*messages: bytes) -> Any:
    """The rows that a reader makes of the log."""
    columns = (ChangedColumn("id", "integer", 23, None), ChangedColumn("v", "bytea", 17, None))
    table = ChangedTable("public", "t", columns, ("id",), is_whole=False)
    source: Any = SimpleNamespace(
        changed_table=lambda: table, dsn="", slot="s", described="PostgresChangesSource t", wanted=WANTED, batch_rows=10, columns=None
    )  # fmt: skip
    reader = ChangesReader(source, Place())
    reader.add_splits([SourceSplit("t", {}, {"phase": "log", "lsn": 1})])
    stream: Any = SimpleNamespace(receive=lambda: iter(messages))
    reader._stream, reader._next_lag_ms = stream, 1 << 60
    batch = reader.poll_next(0).batch
    return None if batch is None else batch.to_pylist()


def test_a_message_that_ends_early_is_none():
    """Each was another error of Python, and a value was cut where its message ended."""
    for whole in (RELATION, BEGIN, inserted(row(b"1", b"\\x00")), message(b"T", struct.pack("!IBI", 1, 0, 5))):
        for end in range(26, len(whole)):
            with pytest.raises(ValueError, match=r"ends early|not found"):
                decode(whole[:end])


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (inserted(row(b"1", b"\\x00")[:-2]), "a message at 0/1 that cannot be read .*ends early: a value of 4 bytes"),
        (inserted(row(b"\xff", None)), "a message at 0/1 that cannot be read .*can't decode byte 0xff"),
        (inserted(b"\0\2b" + row(b"1")[3:] + b"n"), "a message at 0/1 that cannot be read .*of the kind 'b'"),
        (inserted(row(b"1")), "the server sent 1 values of a row, and has said that there are 2 columns"),
        (inserted(row(b"1", None, b"2")), "the server sent 3 values of a row"),
        (inserted(row(b"1", b"\\x0")), "column 'v' has a value that is no binary"),
        (inserted(row(b"one", None)), "column 'id' has a value that is no int32"),
    ],
    ids=["short", "no text", "unknown kind", "too few", "too many", "no bytes", "no number"],
)
def test_what_is_no_change_of_the_table_is_one_line(change, says):
    """Some were an error of Python, and others rows with what the server did not say."""
    assert [{"id": 1, "v": b"\0", "row_kind": "+I", "lsn": 7}] == read(RELATION, BEGIN, inserted(row(b"1", b"\\x00")))
    with pytest.raises(ConnectorError, match=says) as raised:
        read(RELATION, BEGIN, change)
    assert "\n" not in str(raised.value)
