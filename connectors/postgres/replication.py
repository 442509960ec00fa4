"""Connections to a server whose log is read: the stream of messages, and questions about the replication slot.

Decides how the replication protocol is spoken through libpq (psycopg has no words for it, but lends libpq's own calls,
none of which waits), and the one line for each way in which the server refuses a reader. It does not know rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from snapline.connectors.files.filesystems import first_line
from snapline.connectors.postgres.pgoutput import lsn_of, lsn_text, status_update
from snapline.connectors.postgres.postgres_table import connection_info, is_away, library, place_of, refused
from snapline.dataflow.errors import ConnectorError

SETTINGS = {
    "TimeZone": "UTC", "DateStyle": "ISO", "IntervalStyle": "postgres", "bytea_output": "hex", "extra_float_digits": "1",
    "row_security": "off", "wal_sender_timeout": "600s", "statement_timeout": "0", "idle_in_transaction_session_timeout": "0",
}  # fmt: skip
"""Settings that make texts read in one way; no row is left out silently, and a source that waits for its sink is not
cut off."""
SLOT = """
    SELECT s.active_pid, coalesce(a.application_name, ''), s.confirmed_flush_lsn::text FROM pg_replication_slots s
    LEFT JOIN pg_stat_activity a ON a.pid = s.active_pid WHERE s.slot_name = %s
"""


def open_connection(dsn: str, who: str, *, replication: bool = False) -> Any:
    """A connection that writes texts as this package reads them, perhaps one for the log. Raises psycopg's errors."""
    psycopg = library()
    known = psycopg.conninfo.conninfo_to_dict(connection_info(dsn))
    settings = " ".join(f"-c {name}={value}" for name, value in SETTINGS.items())
    known["options"] = f"{known.get('options', '')} {settings}".strip()
    known["application_name"] = who
    if replication:
        known["replication"] = "database"
    return psycopg.connect(psycopg.conninfo.make_conninfo(**known), autocommit=True)


def unreadable(what: str, dsn: str, slot: str, error: Any) -> ConnectorError:
    """Say in one line why the log cannot be read."""
    state, said = error.sqlstate or "", first_line(error)
    if state == "42501" and "permission denied for" in said:
        return ConnectorError(f"{what}: the user of dsn= may not read the table ({said}); GRANT SELECT on it")
    if state == "42501" or "permission denied to start WAL sender" in said:
        return ConnectorError(
            f"{what}: the user of dsn= may not read the server's log ({said}); ALTER ROLE ... REPLICATION"
        )
    if state == "53400":
        return ConnectorError(
            f"{what}: {said}; drop replication slots that nobody needs, or raise max_replication_slots and max_wal_senders"
        )
    if state == "42704" and "replication slot" in said:
        return slot_is_gone(what, slot)
    if is_given_up(error):
        return ConnectorError(
            f"{what}: the server has given up the replication slot {slot!r} ({said}), because the job was behind by more than "
            f"max_slot_wal_keep_size; changes are lost to this job. {anew(slot)}"
        )
    return ConnectorError(f"{what}: {refused(dsn, '', error)}")


def is_given_up(error: Any) -> bool:
    """Whether the server keeps the log for the slot no longer, so that waiting does not help."""
    said = first_line(error)
    return error.sqlstate == "55000" and ("slot" in said or "invalidated" in said)


def slot_is_gone(what: str, slot: str) -> ConnectorError:
    """The line for a slot that somebody has dropped."""
    return ConnectorError(
        f"{what}: the replication slot {slot!r} is gone; somebody dropped it, or it was not copied to this server. Changes are lost to "
        f"this job. {anew(slot)}"
    )


def anew(slot: str) -> str:
    """The way out where the log has a gap."""
    return f"Start the job anew without the old state, after SELECT pg_drop_replication_slot('{slot}') if it is there"


class ReplicationStream:
    """The log from a position on, over a connection of its own."""

    def __init__(self, dsn: str, who: str) -> None:
        self._connection = open_connection(dsn, who, replication=True)
        self._pg = self._connection.pgconn

    def begin_to_create(self, slot: str) -> None:
        """Ask for a new slot; the server waits for the transactions that run."""
        self._pg.send_query(f'CREATE_REPLICATION_SLOT "{slot}" LOGICAL pgoutput NOEXPORT_SNAPSHOT'.encode())

    def created(self) -> int | None:
        """Where the new slot begins; None: not yet. Raises psycopg's errors."""
        self._pg.consume_input()
        if self._pg.is_busy():
            return None
        result = self._pg.get_result()
        self._require(result, library().pq.ExecStatus.TUPLES_OK)
        while self._pg.get_result() is not None:
            pass
        return lsn_of(result.get_value(0, 1).decode())

    def identify(self) -> None:
        """Raise psycopg's error where the user may not read the log."""
        self._require(self._pg.exec_(b"IDENTIFY_SYSTEM"), library().pq.ExecStatus.TUPLES_OK)

    def start(self, slot: str, lsn: int, publication: str) -> None:
        """Begin to send. Raises psycopg's errors."""
        escaped = publication.replace('"', '""').replace("'", "''")
        statement = f"""START_REPLICATION SLOT "{slot}" LOGICAL {lsn_text(lsn)} (proto_version '1', publication_names '"{escaped}"')"""
        self._require(self._pg.exec_(statement.encode()), library().pq.ExecStatus.COPY_BOTH)

    def receive(self) -> Iterator[bytes]:
        """The messages that have arrived. Raises psycopg's errors."""
        is_fresh = False
        while True:
            length, data = self._pg.get_copy_data(1)
            if length > 0:
                yield bytes(data)
                continue
            if length < 0:
                self._require(self._pg.get_result(), None)
            if is_fresh:
                return
            self._pg.consume_input()  # raises where the server has ended the connection
            is_fresh = True

    def report(self, received: int, confirmed: int) -> None:
        """Tell the server how far the log was read, and up to where it may be forgotten."""
        self._pg.put_copy_data(status_update(received, confirmed))
        self._pg.flush()

    def close(self) -> None:
        """End the connection; the slot stays."""
        self._pg.finish()

    def _require(self, result: Any, status: Any) -> None:
        psycopg = library()
        if result is not None and result.status == status:
            return
        if result is not None and result.status == psycopg.pq.ExecStatus.FATAL_ERROR:
            raise psycopg.errors.error_from_result(result)
        raise psycopg.OperationalError(
            self._pg.error_message.decode(errors="replace") or "the server has ended the stream"
        )


class ServerQuestions:
    """What a reader asks the server about besides the log, over a connection that is made when it is needed."""

    def __init__(self, dsn: str, who: str) -> None:
        self._dsn, self._who = dsn, who
        self._connection: Any = None

    def rows(self, query: Any, parameters: Any = None) -> list[tuple[Any, ...]]:
        """The answer. Without parameters a percent sign is one. Raises psycopg's errors."""
        if self._connection is None:
            self._connection = open_connection(self._dsn, self._who)
        try:
            found: list[tuple[Any, ...]] = self._connection.execute(query, parameters).fetchall()
        except library().Error as error:
            if is_away(error):
                self.close()
            raise
        return found

    def slot(self, name: str) -> tuple[int | None, str, int] | None:
        """Who reads a slot (process and application), and what was confirmed; None where there is none."""
        found = self.rows(SLOT, [name])
        if not found:
            return None
        process, application, confirmed = found[0]
        return process, application, lsn_of(confirmed or "0/0")

    def take_from_lost_attempt(self, slot: str) -> bool:
        """Whether nobody reads the slot. What an attempt of this very source left connected is ended. Raises
        ConnectorError when another program reads it."""
        known = self.slot(slot)
        if known is None or known[0] is None:
            return True
        process, application, _ = known
        if application == self._who:
            self.rows("SELECT pg_terminate_backend(%s)", [process])
        return False

    def close(self) -> None:
        """End the connection, if there is one."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.pgconn.finish()


def in_use(what: str, slot: str, dsn: str, application: str) -> ConnectorError:
    """The line for a slot that two want."""
    return ConnectorError(
        f"{what}: the replication slot {slot!r} ({place_of(dsn)}) is read by another program ({application or 'unknown'}); a slot is for "
        "one job: stop the other one, or give another name in slot="
    )
