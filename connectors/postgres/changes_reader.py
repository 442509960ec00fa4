"""Reads the changes of a table in one subtask: makes the slot, reads the table, and then the log, for ever.

Decides which of these three comes next, when a connection is made anew, and what is confirmed to the server: the
position of a checkpoint, when it is complete, and nothing else, because the server forgets what was confirmed. A poll
asks for what has arrived and does not wait. What a position in the log means is decided by `ChangeLog`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from snapline.connectors.files.filesystems import first_line
from snapline.connectors.kafka.offsets import CheckpointedOffsets
from snapline.connectors.postgres.change_log import ChangeLog, Part
from snapline.connectors.postgres.changed_table import PUBLISHED, left_out
from snapline.connectors.postgres.pgoutput import Keepalive, decode, lsn_of, lsn_text
from snapline.connectors.postgres.postgres_table import is_away, library
from snapline.connectors.postgres.replication import (
    ReplicationStream,
    ServerQuestions,
    anew,
    in_use,
    is_given_up,
    slot_is_gone,
    unreadable,
)
from snapline.connectors.postgres.table_snapshot import TablePart, part_query
from snapline.dataflow.api.connector_api import InputStatus, Polled, SourceContextInfo, SourceReader, SourceSplit
from snapline.dataflow.errors import ConnectorError

if TYPE_CHECKING:
    from snapline.connectors.postgres.changes_source import PostgresChangesSource

AGAIN_MS = 200
"""So long after a server was not there, or a slot not free, it is tried again."""
LAG_EVERY_MS = 10_000
"""So often the server is asked how far its log goes, and whether the table is published."""
BYTES_AT_ONCE = 32 << 20
"""So much of the log becomes one batch at most."""
NOTHING = Polled(InputStatus.NOTHING_AVAILABLE)
log = logging.getLogger(__name__)


class ChangesReader(SourceReader):
    """The reader of one subtask; the one that has the split reads, others have nothing to do."""

    def __init__(self, source: PostgresChangesSource, context: SourceContextInfo) -> None:
        self._source = source
        self._table = source.changed_table()
        who = f"snapline {context.job_id}"[:40] + f" {context.operator_uid}"[:23]
        self._who: str = who.encode("ascii", "replace").decode()
        """How the server calls the connections of this source, whichever attempt has made them."""
        self._ask = ServerQuestions(source.dsn, self._who)
        self._split: SourceSplit | None = None
        self._step: Callable[[int], Polled] = self._create_slot
        self._stream: ReplicationStream | None = None
        self._part: TablePart | None = None
        self._position: dict[str, Any] = {}
        """While the table is read; then the log has it."""
        self._log: ChangeLog | None = None
        self._confirmed = CheckpointedOffsets()
        self._confirm = 0
        self._away_since_ms: int | None = None
        self._next_lag_ms = 0
        self._warned: set[str] = set()
        self._lag = context.metrics.gauge("lag_bytes")
        self._bytes = context.metrics.counter("bytes_read")
        self._errors = context.metrics.counter("connection_errors")

    # --- splits and checkpoints ---------------------------------------------------------------------------------------

    def add_splits(self, splits: Sequence[SourceSplit]) -> None:
        for split in splits:
            self._split = split
            position = dict(split.position)
            if not position:
                continue
            if position.pop("phase") == "log":
                self._go_on_with_log(position)
                continue
            self._position, self._step = _between_parts(position), self._wait_for_older_transactions

    def snapshot_splits(self, checkpoint_id: int) -> Sequence[SourceSplit]:
        if self._split is None:
            return ()
        if self._log is not None:
            position = {"phase": "log", **self._log.position()}
            self._confirmed.update({"log": self._log.lsn})
            self._confirmed.snapshot(checkpoint_id)
        else:
            position = {"phase": "table", **self._position} if self._position else {}
        return [SourceSplit(self._split.split_id, self._split.description, position)]

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        published = self._confirmed.notify_checkpoint_complete(checkpoint_id)
        if published and self._log is not None:
            self._confirm = published["log"]
            self._report()

    def notify_checkpoint_aborted(self, checkpoint_id: int) -> None:
        self._confirmed.notify_checkpoint_aborted(checkpoint_id)

    def close(self) -> None:
        self._disconnect()
        self._end_part()
        self._ask.close()

    def poll_next(self, now_ms: int) -> Polled:
        if self._split is None:
            return Polled(InputStatus.END_OF_INPUT)
        try:
            return self._step(now_ms)
        except library().Error as error:
            self._errors.inc()
            self._disconnect()
            self._end_part()
            self._position = _between_parts(self._position)
            if not is_away(error) or is_given_up(error):
                raise unreadable(self._source.described, self._source.dsn, self._source.slot, error) from error
            return self._wait_for_server(now_ms, error)

    # --- the slot -----------------------------------------------------------------------------------------------------

    def _create_slot(self, now_ms: int) -> Polled:
        source = self._source
        if self._stream is None:
            known = self._ask.slot(source.slot)
            if known is not None and not source.snapshot:
                self._go_on_with_log({"lsn": known[2]})
                return NOTHING
            if known is not None and self._split is not None and self._split.description["slot_existed"]:
                raise ConnectorError(
                    f"{source.described}: the replication slot {source.slot!r} was there before this job, which has no state of it: another "
                    "job may use it. Give another name in slot=, start from a savepoint, read on without a snapshot (snapshot=False), or "
                    f"SELECT pg_drop_replication_slot('{source.slot}')"
                )
            if known is not None:  # an attempt of this job made it, and was lost before its first checkpoint
                if not self._is_free(now_ms):
                    return Polled(InputStatus.NOTHING_AVAILABLE, wake_at_ms=now_ms + AGAIN_MS)
                with suppress(library().errors.UndefinedObject):  # it was being made, and went with that attempt
                    self._ask.rows("SELECT pg_drop_replication_slot(%s)", [source.slot])
            self._stream = ReplicationStream(source.dsn, self._who)
            self._stream.begin_to_create(source.slot)
            return NOTHING
        lsn = self._stream.created()
        if lsn is None:
            return self._wait_for_transactions(now_ms)
        self._away_since_ms = None
        self._disconnect()
        log.info("%s: made the replication slot %s at %s", source.described, source.slot, lsn_text(lsn))
        if not source.snapshot:
            self._go_on_with_log({"lsn": lsn})
            return NOTHING
        ((newest,),) = self._ask.rows("SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint")
        self._position = {"lsn": lsn, "older_than": newest, "parts": [], "after": None}
        self._step = self._wait_for_older_transactions
        return NOTHING

    def _is_free(self, now_ms: int) -> bool:
        """Whether nobody reads the slot; raises ConnectorError when another one does so for too long."""
        if self._ask.take_from_lost_attempt(self._source.slot):
            return True
        known = self._ask.slot(self._source.slot)
        self._away_since_ms = now_ms if self._away_since_ms is None else self._away_since_ms
        if known is not None and now_ms - self._away_since_ms >= self._source.give_up_after_ms:
            raise in_use(self._source.described, self._source.slot, self._source.dsn, known[1])
        return False

    # --- the table ----------------------------------------------------------------------------------------------------

    def _wait_for_older_transactions(self, now_ms: int) -> Polled:
        """A transaction whose end is in the log before the slot may not be visible yet. When all that ran then have
        ended, each is either in the table or in the log."""
        ((oldest,),) = self._ask.rows("SELECT pg_snapshot_xmin(pg_current_snapshot())::text::bigint")
        self._away_since_ms = None
        if oldest < self._position["older_than"] and not self._position["parts"]:
            return self._wait_for_transactions(now_ms)
        self._step = self._read_table
        return NOTHING

    def _wait_for_transactions(self, now_ms: int) -> Polled:
        """Nothing for now. Says so now and then: one of them may be open for ever."""
        self._away_since_ms = None
        if now_ms >= self._next_lag_ms:
            if self._next_lag_ms:
                log.warning("%s: waits for transactions of the server that began before it; see pg_stat_activity and pg_prepared_xacts",
                            self._source.described)  # fmt: skip
            self._next_lag_ms = now_ms + LAG_EVERY_MS
        return Polled(InputStatus.NOTHING_AVAILABLE, wake_at_ms=now_ms + 50)

    def _read_table(self, now_ms: int) -> Polled:
        source, position = self._source, self._position
        if self._part is None:
            most = source.snapshot_transaction_rows
            self._part = TablePart(source.dsn, self._who, self._table, source.wanted, position["after"], most)
        found = self._part.read(source.batch_rows, position["lsn"])
        if found is not None:
            batch, key = found
            self._away_since_ms = None
            self._position = {**position, "after": key, "saw": self._part.saw}
            self._bytes.inc(batch.nbytes)
            return Polled(InputStatus.MORE_AVAILABLE, batch, split_id=self._split_id)
        saw, is_last = self._part.saw, self._part.is_last
        self._end_part()
        parts = [*position["parts"], [None if is_last else position["after"], saw]]
        if is_last:
            ((until,),) = self._ask.rows("SELECT pg_current_wal_insert_lsn()::text")
            log.info("%s: the table was read, changes follow", source.described)
            self._go_on_with_log({"lsn": position["lsn"], "parts": parts, "until": lsn_of(until)})
            return Polled(InputStatus.MORE_AVAILABLE)
        self._position = {**{name: value for name, value in position.items() if name != "saw"}, "parts": parts}
        return Polled(InputStatus.MORE_AVAILABLE)

    def _end_part(self) -> None:
        part, self._part = self._part, None
        if part is not None:
            part.close()

    # --- the log ------------------------------------------------------------------------------------------------------

    def _go_on_with_log(self, position: dict[str, Any]) -> None:
        self._log = ChangeLog(self._table, self._source.wanted, position, self._part_of)
        self._position, self._step = {}, self._read_log
        self._confirm = self._log.lsn

    def _read_log(self, now_ms: int) -> Polled:
        changes = self._log
        if changes is None or (self._stream is None and not self._start(changes, now_ms)):
            return Polled(InputStatus.NOTHING_AVAILABLE, wake_at_ms=now_ms + AGAIN_MS)
        if self._stream is None:
            return NOTHING
        received, answer = 0, False
        for data in self._stream.receive():
            received += len(data)
            try:
                message = decode(data)
            except ValueError as error:
                raise ConnectorError(
                    f"{self._source.described}: the server sent a message at {lsn_text(changes.lsn)} that cannot be read ({first_line(error)}); "
                    "a text of the table is not in the database's encoding, or dsn= names no PostgreSQL"
                ) from error
            if message is not None:
                changes.apply(message)
                answer |= isinstance(message, Keepalive) and message.reply
            if changes.rows >= self._source.batch_rows or received >= BYTES_AT_ONCE:
                break
        self._away_since_ms = None
        if answer:
            self._report()
        if now_ms >= self._next_lag_ms:
            self._next_lag_ms = now_ms + LAG_EVERY_MS
            self._require_published()
            self._measure_lag(changes)
        if not received:
            return NOTHING
        self._bytes.inc(received)
        self._warn_of_new_columns(changes)
        batch = changes.take()
        return Polled(InputStatus.MORE_AVAILABLE, batch, split_id=self._split_id)

    def _start(self, changes: ChangeLog, now_ms: int) -> bool:
        """Whether the server sends the log from the position on."""
        source = self._source
        known = self._ask.slot(source.slot)
        if known is None:
            raise slot_is_gone(source.described, source.slot)
        if known[2] > changes.lsn:
            raise ConnectorError(
                f"{source.described}: the replication slot {source.slot!r} was confirmed up to {lsn_text(known[2])}, and this snapshot is at "
                f"{lsn_text(changes.lsn)}: a later checkpoint of the job, or another job, has read on, and the server has forgotten the "
                f"changes between. Start from the latest snapshot. {anew(source.slot)}"
            )
        if not self._is_free(now_ms):
            return False
        self._stream = ReplicationStream(source.dsn, self._who)
        changes.reconnected()
        self._stream.start(source.slot, changes.lsn, source.publication)
        return True

    def _wait_for_server(self, now_ms: int, error: Any) -> Polled:
        """Try again until it was away for too long. What came before it went is handed out, since positions have it."""
        if self._away_since_ms is None:
            self._away_since_ms = now_ms
            log.warning("%s: the server is away (%s); trying on", self._source.described, first_line(error))
        if now_ms - self._away_since_ms >= self._source.give_up_after_ms:
            raise unreadable(self._source.described, self._source.dsn, self._source.slot, error) from error
        batch = None if self._log is None else self._log.take()
        if batch is not None:
            return Polled(InputStatus.MORE_AVAILABLE, batch, split_id=self._split_id)
        return Polled(InputStatus.NOTHING_AVAILABLE, wake_at_ms=now_ms + AGAIN_MS)

    def _report(self) -> None:
        """Tell the server what was read and what is confirmed; one that is away hears it from the next connection."""
        if self._stream is None or self._log is None:
            return
        try:
            self._stream.report(self._log.lsn, self._confirm)
        except library().Error as error:
            log.info("%s: the position was not confirmed yet: %s", self._source.described, first_line(error))

    def _require_published(self) -> None:
        """Raise ConnectorError where the server no longer sends all changes of the table: it says so by no message."""
        source, table = self._source, self._table
        query = [True, table.schema, table.name, source.publication]  # jobs of before may have one without TRUNCATE
        found = self._ask.rows(PUBLISHED, query)
        if reason := left_out(found[0] if found else None, source.publication):
            raise ConnectorError(
                f"{source.described}: {reason}, while its changes are read: the table was dropped or renamed, or the publication was "
                f"altered, and what changed since then is lost to this job. {anew(source.slot)}"
            )

    def _measure_lag(self, changes: ChangeLog) -> None:
        ((end,),) = self._ask.rows("SELECT pg_current_wal_lsn()::text")
        self._lag.set(max(0, lsn_of(end) - changes.lsn))

    def _part_of(self, parts: Sequence[Part], key: Sequence[str]) -> int:
        """Which part of the snapshot has the key, in the server's own order."""
        if len(parts) == 1:
            return 0
        (within,) = self._ask.rows(part_query(self._table, parts, key))
        return next((number for number, is_within in enumerate(within) if is_within), len(parts) - 1)

    def _warn_of_new_columns(self, changes: ChangeLog) -> None:
        for name in changes.extra_columns:
            if self._source.columns is None and name not in self._warned:
                self._warned.add(name)
                log.warning("%s: the table has got a column %r, which the job reads when it is started again from a savepoint",
                            self._source.described, name)  # fmt: skip

    def _disconnect(self) -> None:
        stream, self._stream = self._stream, None
        if stream is not None:
            stream.close()

    @property
    def _split_id(self) -> str:
        return "" if self._split is None else self._split.split_id


def _between_parts(position: Mapping[str, Any]) -> dict[str, Any]:
    """The position of a reader of the table that has no part under way: what it has read of one is a part."""
    rest = {name: value for name, value in position.items() if name != "saw"}
    if position.get("after") is not None and position.get("saw"):
        rest["parts"] = [*position["parts"], [position["after"], position["saw"]]]
    return rest
