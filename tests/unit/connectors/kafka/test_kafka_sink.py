"""The Kafka sink on a broker: rows once whatever dies when, nothing left open, losses named, and what is wrong
outside."""

from __future__ import annotations

import datetime as dt
import gc
import pickle
import sys
import threading
import uuid
import weakref
from typing import Any

import pyarrow as pa
import pytest

from snapline.connectors.formats import JsonFormat
from snapline.connectors.kafka import KafkaSink, kafka_writer
from snapline.connectors.kafka.connection import how_to_reach
from snapline.connectors.kafka.transactions import TransactionName
from snapline.dataflow.errors import ConnectorError
from tests.services.cluster import wait_until
from tests.services.kafka import needs_faults
from tests.services.kafka_broker import KafkaBroker
from tests.services.measured import figures_of
from tests.unit.connectors.kafka.reading import Place

SCHEMA = pa.schema([("n", pa.int64())])
ROWS_A_CHECKPOINT = 50
QUICK = {"reconnect.backoff.max.ms": 200}


class Died(Exception):
    """The process ended here."""


class Job:
    """A sink of one subtask with its source: rows are numbers, a checkpoint holds how many were written and what was
    pre-committed.

    What it remembers between runs is the latest completed checkpoint only, as after a crash."""

    def __init__(self, kafka, topic, *, job_id="job", subtask=0, parallelism=2, **options):
        self.kafka, self.topic, self.job_id = kafka, topic, job_id
        self.subtask, self.parallelism = subtask, parallelism
        self.sink = pickle.loads(
            pickle.dumps(
                KafkaSink(
                    topic, bootstrap_servers=kafka.bootstrap, format=JsonFormat(SCHEMA), settings=QUICK, **options
                )
            )
        )
        self.completed: tuple[int, list[Any], list[Any]] = (0, [], [])
        """Rows, committables, state of the writer."""
        self.attempt = 0
        self.checkpoint = 0

    def run(self, until, die_at=""):
        """Restore, write up to so many rows with checkpoints in between, and perhaps die at a step of the last one."""
        rows, committables, states = self.completed
        self.attempt += 1
        context = Place(
            attempt_number=self.attempt, job_id=self.job_id, subtask_index=self.subtask,
            execution_attempt=f"{self.job_id}-{self.subtask}-{self.attempt}", parallelism=self.parallelism,
        )  # fmt: skip
        committer = self.sink.create_committer(context)
        writer: Any = None
        try:
            committer.commit(committables)
            writer = self.sink.create_writer(context, states)
            while rows < until:
                dies = die_at if rows + ROWS_A_CHECKPOINT >= until else ""
                batch = pa.RecordBatch.from_pydict({"n": range(rows, rows + ROWS_A_CHECKPOINT)}, SCHEMA)
                writer.write(batch.slice(0, 20))
                self.step("write", dies)
                writer.write(batch.slice(20))
                self.checkpoint += 1
                committables = list(writer.prepare_commit(self.checkpoint))
                self.step("pre-commit", dies)
                rows += ROWS_A_CHECKPOINT
                self.completed = (rows, committables, list(writer.snapshot_state(self.checkpoint)))
                self.step("complete", dies)
                committer.commit(committables)
                self.step("commit", dies)
            writer.close()
        except Died:
            if (
                writer is not None and writer._maker is not None
            ):  # only its threads are gone: a dead process closes nothing
                writer._maker.shutdown(wait=True)
            writer._current = writer._next = None
        finally:
            committer.close()

    def step(self, name, dies):
        if name == dies:
            raise Died


def numbers(kafka, topic):
    return sorted(JsonFormat(SCHEMA).decode(kafka.values(topic))[0].column("n").to_pylist())


def prefix_of_its_own():
    return f"prefix-{uuid.uuid4().hex[:8]}"


STEPS = ["write", "pre-commit", "complete", "commit"]


@pytest.mark.parametrize("step", STEPS)
def test_a_process_that_dies_at_any_step(kafka, step):
    """Every row once, for a read_committed reader; transactions of the lost attempt are ended, one way or the other."""
    topic, prefix = kafka.topic(2), prefix_of_its_own()
    job = Job(kafka, topic, transactional_id_prefix=prefix)
    job.run(100, die_at=step)
    visible = numbers(kafka, topic)
    job.run(200)

    assert visible == list(range({"commit": 100}.get(step, 50)))
    assert list(range(200)) == numbers(kafka, topic)
    assert [] == kafka.open_transactions(prefix)


@pytest.mark.parametrize(
    "steps", [("pre-commit", "write"), ("complete", "complete"), ("complete", "pre-commit", "write")]
)
def test_several_deaths_one_after_the_other(kafka, steps):
    """Also when a restored attempt dies before its first checkpoint."""
    topic, prefix = kafka.topic(), prefix_of_its_own()
    job = Job(kafka, topic, transactional_id_prefix=prefix)
    for step in steps:
        job.run(job.completed[0] + 50, die_at=step)
    job.run(job.completed[0] + 100)

    assert list(range(job.completed[0])) == numbers(kafka, topic)
    assert [] == kafka.open_transactions(prefix)


def test_a_checkpoint_is_restored_as_often_as_one_likes(kafka):
    """To commit what is committed already is no error, and brings no row twice."""
    topic = kafka.topic()
    job = Job(kafka, topic)
    job.run(100, die_at="complete")
    old = job.completed
    for _ in range(3):
        job.completed = old
        job.run(100)

    assert list(range(100)) == numbers(kafka, topic)


@needs_faults
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("action", ["disconnect", "crash"])
def test_a_commit_whose_answer_is_lost(kafka, action, when):
    """The connection breaks, or all brokers die, before EndTxn is done or after it: it is asked again, and done
    once."""
    topic = kafka.topic(2)
    job = Job(kafka, topic)
    kafka.broker.fail("EndTxn", action, when=when, restart=True)
    job.run(100)

    assert list(range(100)) == numbers(kafka, topic)
    assert [] == kafka.broker.open_transactions()


@needs_faults
@pytest.mark.parametrize(
    "fact", [("transaction", 1), ("append", 1), ("append", 2), ("end_offsets", 1), ("transaction", 2)]
)
def test_brokers_that_die_while_they_commit(kafka, fact):
    """Between the decision and any of the markers."""
    topic = kafka.topic(2)
    job = Job(kafka, topic)
    job.run(100, die_at="complete")
    kafka.broker.crash_after(*fact)
    job.run(200)

    assert list(range(200)) == numbers(kafka, topic)
    assert [] == kafka.broker.open_transactions()


@needs_faults
@pytest.mark.parametrize(
    "fault",
    [
        {"api": "InitProducerId", "action": "error", "code": 51, "count": 2},
        {"api": "EndTxn", "action": "error", "code": 16, "count": 2},
        {"api": "EndTxn", "action": "error", "code": 51},
        {"api": "FindCoordinator", "action": "disconnect", "count": 2},
        {"api": "AddPartitionsToTxn", "action": "disconnect", "when": "after"},
        {"api": "Produce", "action": "disconnect", "when": "after", "count": 2},
        {"api": "Produce", "action": "crash", "when": "after", "restart": True},
    ],
)
def test_faults_that_pass(kafka, fault):
    """Are waited for."""
    topic = kafka.topic(2)
    kafka.broker.fail(**fault)
    job = Job(kafka, topic)
    job.run(150)

    assert list(range(150)) == numbers(kafka, topic)
    assert [] == kafka.broker.open_transactions()


def test_what_a_lost_job_left_open_is_aborted_by_hand(kafka):
    """As `snapline transactions abort` does; nobody waits for it any more, and its rows are never seen."""
    topic = kafka.topic()
    job = Job(kafka, topic)
    job.run(100, die_at="complete")
    _, committables, _ = job.completed
    committer = job.sink.create_committer(Place(execution_attempt="by hand"))
    committer.abort(committables)
    committer.close()
    assert list(range(50)) == numbers(kafka, topic)
    assert [] == kafka.broker.open_transactions()


@needs_faults
def test_a_transaction_that_timed_out_is_a_loss_with_a_name(kafka, caplog):
    """How many rows of which checkpoint; the job fails again and again, unless it is told to go on, and then it says
    it."""
    topic = kafka.topic()
    job = Job(kafka, topic, transaction_timeout_ms=10_000)
    job.run(100, die_at="complete")
    kafka.broker.advance(11_000)
    lost = r"50 rows of checkpoint 2 \(transaction snapline:job:kafka:0:\w+:1\) are lost: Kafka aborted the transaction.*a later snapshot"
    for _ in range(2):
        with pytest.raises(ConnectorError, match=lost):
            job.run(200)
    job.sink.on_lost_transaction = "report"
    job.run(200)

    assert [*range(50), *range(100, 200)] == numbers(kafka, topic)
    assert 1 == sum("50 rows of checkpoint 2" in record.message for record in caplog.records)


@needs_faults
def test_a_transaction_that_kafka_has_forgotten(kafka):
    """It cannot be known what became of it, and that is said."""
    topic = kafka.topic()
    job = Job(kafka, topic)
    job.run(100, die_at="commit")
    known = kafka.broker.cluster.transactions
    kafka.broker.call(lambda: [kafka.broker.cluster.record("forget", name) for name in list(known)])
    with pytest.raises(
        ConnectorError, match=r"whether 50 rows of checkpoint 2 .* were committed is not known any more"
    ):
        job.run(150)


def test_two_jobs_with_one_prefix_are_noticed(kafka, caplog):
    """The one that comes later ends what the other has open, and says whose it was; the other fails with a line that
    names the cause."""
    topic, prefix = kafka.topic(), prefix_of_its_own()
    one = Job(kafka, topic, job_id="one", transactional_id_prefix=prefix)
    one.run(50, die_at="complete")
    Job(kafka, topic, job_id="two", transactional_id_prefix=prefix).run(50)

    assert any(f"job one left open under the prefix '{prefix}'" in record.getMessage() for record in caplog.records)
    with pytest.raises(ConnectorError, match="or because another job with this transactional_id_prefix runs"):
        one.run(100)


def test_jobs_without_a_prefix_leave_each_other_alone(kafka):
    """Their names have the job's id."""
    topic = kafka.topic()
    one, two = Job(kafka, topic, job_id=f"one-{uuid.uuid4()}"), Job(kafka, topic, job_id=f"two-{uuid.uuid4()}")
    one.run(50, die_at="complete")
    two.run(50)
    one.run(100)

    assert sorted([*range(100), *range(50)]) == numbers(kafka, topic)


def test_a_job_that_goes_on_from_the_state_of_another_ends_what_that_left(kafka):
    """A savepoint is restored as a new job: what it holds is committed, what the old one began later is aborted."""
    topic, old_id = kafka.topic(), f"old-{uuid.uuid4()}"
    old = Job(kafka, topic, job_id=old_id)
    old.run(100, die_at="write")
    new = Job(kafka, topic, job_id=f"new-{uuid.uuid4()}")
    new.completed, new.attempt, new.checkpoint = old.completed, 0, 1
    new.run(100)

    assert list(range(100)) == numbers(kafka, topic)
    assert [] == kafka.open_transactions(f"snapline:{old_id}")


def test_a_job_of_more_subtasks_ends_what_the_old_one_left(kafka):
    """The old subtask's state went to another one than the one of its number, which knows nothing of the old job."""
    topic, old_id, new_id = kafka.topic(), f"old-{uuid.uuid4()}", f"new-{uuid.uuid4()}"
    old = Job(kafka, topic, job_id=old_id, subtask=1)
    old.run(100, die_at="write")
    for subtask, completed in ((1, (0, [], [])), (2, old.completed)):
        new = Job(kafka, topic, job_id=new_id, subtask=subtask, parallelism=3)
        new.completed = completed
        new.run(100)

    assert [] == kafka.open_transactions(f"snapline:{old_id}")


@pytest.mark.parametrize(("graph", "number"), [("graph", 10), ("of-another-leader", 0)])
def test_an_attempt_that_hears_late_of_its_first_checkpoint(kafka: Any, graph: str, number: int) -> None:
    """Its process stood still, and another attempt has taken its place: the transaction of that one stays open."""
    topic = kafka.topic()
    sink = sink_of(kafka, topic, format=JsonFormat(SCHEMA))
    held: list[Any] = []
    for value, attempt, of in ((0, 9, "graph"), (1, number, graph)):
        place: Any = Place(attempt_number=attempt, execution_attempt=f"{of}_vertex_0_{attempt}")
        committer, writer = sink.create_committer(place), sink.create_writer(place, [])
        writer.write(pa.RecordBatch.from_pydict({"n": [value]}, SCHEMA))
        held.append((committer, writer.prepare_commit(value + 1)))
        writer.close()
    for committer, committables in held:
        committer.commit(committables)
        committer.close()

    assert [0, 1] == numbers(kafka, topic)


def test_a_transaction_that_could_not_be_prepared_in_time(kafka: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """No broker was there when it was prepared; the first rows, which came when there was one, ended the task."""
    topic, tried, ready = kafka.topic(), threading.Event(), kafka_writer.OneTransaction.ready

    def away_at_first(transaction: kafka_writer.OneTransaction) -> kafka_writer.OneTransaction:
        if not tried.is_set():
            tried.set()
            raise ConnectorError("no Kafka broker answers")
        return ready(transaction)

    monkeypatch.setattr(kafka_writer.OneTransaction, "ready", away_at_first)
    sink = sink_of(kafka, topic, format=JsonFormat(SCHEMA))
    writer: Any = sink.create_writer(Place(), [])
    committer: Any = sink.create_committer(Place())
    wait_until(lambda: writer._next.done(), "the failure")
    writer.write(pa.RecordBatch.from_pydict({"n": [1]}, SCHEMA))
    committer.commit(writer.prepare_commit(1))
    writer.close()
    committer.close()

    assert [1] == numbers(kafka, topic)


def test_at_least_once_writes_without_transactions(kafka):
    """Rows are there at the barrier, for every reader."""
    topic = kafka.topic()
    sink = KafkaSink(topic, bootstrap_servers=kafka.bootstrap, format=JsonFormat(SCHEMA), guarantee="at_least_once")
    sink.validate()
    writer = sink.create_writer(Place(), [])
    writer.write(pa.RecordBatch.from_pydict({"n": range(50_000)}, SCHEMA))
    committables = writer.prepare_commit(1)
    found = numbers(kafka, topic)
    writer.close()

    assert ([], False) == (list(committables), sink.two_phase)
    assert list(range(50_000)) == found


def test_a_machine_without_the_library_that_commits_is_said_before_a_row_is_written(kafka, monkeypatch):
    """Where confluent-kafka was installed by itself the first commit was Python's error of a missing module, and so
    was each one after a restart."""
    sink = KafkaSink(kafka.topic(), bootstrap_servers=kafka.bootstrap, format=JsonFormat(SCHEMA))
    monkeypatch.setitem(sys.modules, "kafka", None)
    for begin in (sink.validate, lambda: sink.create_committer(Place())):
        with pytest.raises(
            ConnectorError, match=r"through kafka-python, which is not there: pip install 'snapline\[kafka"
        ):
            begin()


def test_a_sink_that_becomes_at_least_once_commits_what_its_snapshot_holds(kafka):
    """A savepoint of a job that was cancelled before its next checkpoint: its transaction was forgotten."""
    topic = kafka.topic()
    options = {"bootstrap_servers": kafka.bootstrap, "format": JsonFormat(SCHEMA)}
    once = KafkaSink(topic, **options).create_writer(Place(), [])
    once.write(pa.RecordBatch.from_pydict({"n": [1, 2]}, SCHEMA))
    left = once.prepare_commit(7)
    once.close()
    committer = KafkaSink(topic, guarantee="at_least_once", **options).create_committer(Place())
    committer.commit(left)
    committer.close()
    assert numbers(kafka, topic) == [1, 2]


def test_a_transaction_that_waits_for_rows_piles_nothing_up(kafka, monkeypatch):
    """Librdkafka's statistics are taken in, although nothing is written and nothing is committed."""
    heard = threading.Semaphore(0)
    monkeypatch.setattr(kafka_writer, "SERVE_SECONDS", 0.01)
    monkeypatch.setattr(kafka_writer._Identity, "on_statistics", note_identity(heard))
    writer = sink_of(kafka, kafka.topic(), format=JsonFormat(SCHEMA)).create_writer(Place(), [])
    try:
        writer._next.result()
        assert all(heard.acquire(timeout=30) for _ in range(10))
        writer.write(pa.RecordBatch.from_pydict({"n": [1]}, SCHEMA))
        writer._next.result()
        assert all(heard.acquire(timeout=30) for _ in range(20)), "of the one that has a row, and of the next one"
    finally:
        writer.close()


def test_a_transaction_leaves_no_producer_behind(kafka):
    """A producer has threads, connections and statistics that nobody asks for: it goes with its transaction, and does
    not wait for Python to look for cycles, which may take hours."""
    writer = sink_of(kafka, kafka.topic(), format=JsonFormat(SCHEMA)).create_writer(Place(), [])
    gc.disable()
    try:
        writer.write(pa.RecordBatch.from_pydict({"n": [1]}, SCHEMA))
        current, coming = weakref.ref(writer._current), weakref.ref(writer._next.result())
        writer.prepare_commit(1)
        assert current() is None
        writer.close()
        assert coming() is None
    finally:
        gc.enable()
        writer.close()


@pytest.mark.parametrize("guarantee", ["at_least_once", "exactly_once"])
def test_a_writer_that_nobody_has_any_more_leaves_no_producer_behind(kafka, guarantee):
    """Whatever was under way: its rows do not keep it."""
    writer = sink_of(kafka, kafka.topic(), format=JsonFormat(SCHEMA), guarantee=guarantee).create_writer(Place(), [])
    gc.disable()
    try:
        writer.write(pa.RecordBatch.from_pydict({"n": range(1_000)}, SCHEMA))
        producer = weakref.ref(writer._plain if guarantee == "at_least_once" else writer._current.out)
        server, maker = writer._server, writer._maker
        writer._closed.set()
        if maker is not None:
            server.join()
            maker.shutdown(wait=True)
        del writer
        assert producer() is None
    finally:
        gc.enable()


def note_identity(heard):
    """The method, and a note that it was called."""
    method = kafka_writer._Identity.on_statistics

    def noting(self, text):
        method(self, text)
        heard.release()

    return noting


@pytest.mark.parametrize("guarantee", ["at_least_once", "exactly_once"])
def test_what_is_written_is_measured(kafka, guarantee):
    """Values as they lie in the topic, and errors of the way to the brokers."""
    sink = sink_of(kafka, kafka.topic(), format=JsonFormat(SCHEMA), guarantee=guarantee)
    place = Place()
    writer = sink.create_writer(place, [])
    writer.write(pa.RecordBatch.from_pydict({"n": [1, 22]}, SCHEMA))
    writer.prepare_commit(1)
    writer.close()

    measured = figures_of(place.metrics)
    assert {"bytes_written": len('{"n": 1}{"n": 22}'), "connection_errors": 0} == measured


@pytest.mark.parametrize("headers", [None, "h"])
def test_columns_become_keys_times_headers_and_partitions(kafka, headers):
    """A key that is no bytes is text; null is no key; the time is the column's."""
    topic = kafka.topic(3)
    kind = pa.list_(pa.struct([("name", pa.string()), ("value", pa.binary())]))
    schema = pa.schema(
        [("value", pa.string()), ("k", pa.int64()), ("t", pa.timestamp("us")), ("h", kind), ("p", pa.int32())]
    )
    time = dt.datetime(2020, 1, 1)  # noqa: DTZ001 - as Arrow has it
    rows = [
        {"value": "a", "k": 7, "t": time, "h": [{"name": "x", "value": b"1"}], "p": 2},
        {"value": "b", "k": None, "t": time, "h": None, "p": 0},
    ]
    sink = KafkaSink(
        topic,
        bootstrap_servers=kafka.bootstrap,
        key="k",
        timestamp="t",
        headers=headers,
        partition="p",
        guarantee="at_least_once",
    )
    writer = sink.create_writer(Place(), [])
    writer.write(pa.RecordBatch.from_pylist(rows, schema))
    writer.prepare_commit(1)
    writer.close()

    found = sorted((m.value(), m.key(), m.timestamp()[1], m.headers(), m.partition()) for m in kafka.read(topic))
    expected = [("x", b"1")] if headers else None
    assert [(b"a", b"7", 1_577_836_800_000, expected, 2), (b"b", None, 1_577_836_800_000, None, 0)] == found


# --- wrong input ------------------------------------------------------------------------------------------------------


def sink_of(kafka, topic, **options):
    return KafkaSink(topic, bootstrap_servers=kafka.bootstrap, **options)


def test_a_topic_that_is_not_there(kafka):
    """Said at submission."""
    with pytest.raises(ConnectorError, match=r"KafkaSink: topic 'nowhere' cannot be read: .*; create it first"):
        sink_of(kafka, "nowhere").validate()


def test_a_timeout_that_brokers_do_not_grant(kafka):
    """Said at submission, with both settings."""
    with pytest.raises(
        ConnectorError, match=r"transaction_timeout_ms=2000000000 is longer than the brokers' transaction.max"
    ):
        sink_of(
            kafka, kafka.topic(), transaction_timeout_ms=2_000_000_000, settings={"message.timeout.ms": 1000}
        ).validate()


@pytest.mark.parametrize("guarantee", ["at_least_once", "exactly_once"])
@pytest.mark.parametrize("bytes_", [5_000, 3_000_000])
def test_a_row_that_is_too_large(kafka, guarantee, bytes_):
    """For the topic or for the client: one line with both settings, and nothing is written."""
    topic = kafka.topic(1, **{"max.message.bytes": "1000"})
    writer = sink_of(kafka, topic, guarantee=guarantee).create_writer(Place(), [])
    with pytest.raises(
        ConnectorError, match=f"a row of {bytes_} bytes is too large; raise message.max.bytes in settings="
    ):
        writer.write(pa.RecordBatch.from_pydict({"value": [b"x" * bytes_]}))
        writer.prepare_commit(1)
    writer.close()

    assert [] == kafka.values(topic)


def test_wrong_credentials(tmp_path, monkeypatch):
    """At submission; a committer whose password is wrong says it, too."""
    monkeypatch.setattr("snapline.connectors.kafka.connection.METADATA_SECONDS", 3.0)
    with KafkaBroker(tmp_path, users={"ann": "secret"}) as broker:
        broker.create_topic("t")

        def sink(password):
            login = {"sasl.mechanism": "PLAIN", "sasl.username": "ann", "sasl.password": password}
            return KafkaSink(
                "t", bootstrap_servers=broker.bootstrap, settings={"security.protocol": "SASL_PLAINTEXT", **login}
            )

        with pytest.raises(ConnectorError, match="refuses the credentials"):
            sink("hunter2").validate()
        sink("secret").validate()
        writer = sink("secret").create_writer(Place(), [])
        writer.write(pa.RecordBatch.from_pydict({"value": [b"x"]}))
        committables = writer.prepare_commit(1)
        writer.close()
        with pytest.raises(ConnectorError, match="refuses the credentials"):
            sink("hunter2").create_committer(Place())
        committer = sink("secret").create_committer(Place())
        committer.commit(committables)
        committer.close()
        assert [] == broker.open_transactions()


@needs_faults
def test_brokers_that_are_gone_when_it_is_to_be_committed(kafka, monkeypatch):
    """After a while the task fails, and the restore commits."""
    monkeypatch.setattr("snapline.connectors.kafka.transactions.PATIENCE_SECONDS", 1.0)
    topic = kafka.topic()
    job = Job(kafka, topic)
    job.run(100, die_at="complete")
    kafka.broker.crash()
    with pytest.raises(ConnectorError, match="no Kafka broker answers at"):
        job.run(200)
    kafka.broker.restart()
    job.run(200)

    assert list(range(200)) == numbers(kafka, topic)


@needs_faults
@pytest.mark.timeout(90)
@pytest.mark.parametrize("guarantee", ["exactly_once", "at_least_once"])
def test_a_writer_ends_while_no_broker_is_there(kafka: Any, monkeypatch: pytest.MonkeyPatch, guarantee: Any) -> None:
    """It waited for brokers for as long as they were away, until the task was given up and its TaskManager with it."""
    monkeypatch.setattr(kafka_writer, "CLOSE_SECONDS", 0.5)
    writer: Any = sink_of(kafka, kafka.topic(), guarantee=guarantee).create_writer(Place(), [])
    writer.write(pa.RecordBatch.from_pydict({"value": [b"x"]}))
    if guarantee == "exactly_once":
        writer._next.result()
    kafka.broker.crash()
    writer.write(pa.RecordBatch.from_pydict({"value": [b"y"]}))
    writer.close()
    kafka.broker.restart()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"topic": ""}, "no topic given"),
        ({"guarantee": "perhaps"}, "guarantee is exactly_once or at_least_once, not 'perhaps'"),
        ({"on_lost_transaction": "cry"}, "on_lost_transaction is fail or report"),
        ({"transaction_timeout_ms": 0}, "transaction_timeout_ms must be at least 1, got 0"),
        ({"settings": {"transactional.id": "x"}}, "transactional.id is not to be set; say transactional_id_prefix="),
        (
            {"settings": {"sasl.oauthbearer.config": "x"}},
            "sasl.oauthbearer.config cannot be used with guarantee='exactly_once'",
        ),
        (
            {"settings": {"enable.ssl.certificate.verification": False}},
            "enable.ssl.certificate.verification cannot be used with guarantee='exactly_once'",
        ),
    ],
)
def test_arguments_that_cannot_be(options, message):
    """Said where they are given."""
    with pytest.raises(ConnectorError, match=message):
        KafkaSink(**{"topic": "t", "bootstrap_servers": "localhost:9092", **options})


def test_what_reaches_a_cluster_is_told_to_whoever_asks_before_the_job() -> None:
    """The look at submission checked certificates that the user does not want checked, and could get no token."""
    said = {"security.protocol": "SASL_SSL", "enable.ssl.certificate.verification": False, "oauth_cb": print}
    assert said == how_to_reach({**said, "linger.ms": 5})


def test_a_column_that_is_not_there(kafka):
    """Named, with those that are."""
    writer = sink_of(kafka, kafka.topic(), key="k", guarantee="at_least_once").create_writer(Place(), [])
    with pytest.raises(ConnectorError, match=r"there is no column 'k' for key; there are \['value'\]"):
        writer.write(pa.RecordBatch.from_pydict({"value": [b"x"]}))
    writer.close()


@pytest.mark.parametrize("uid", ["sink", "a:b:1", "ünï code"])
def test_names_of_transactions_say_whose_they_are(uid):
    """And those of others are not taken for ours."""
    name = TransactionName("p", "job-1", uid, 3, "0a1b", 17)

    assert name == TransactionName.parse(str(name), "p", uid)
    assert [None, None, None] == [
        TransactionName.parse(text, prefix, of)
        for text, prefix, of in ((str(name), "q", uid), (str(name), "p", "other"), ("p:submission", "p", uid))
    ]


@pytest.mark.parametrize("place", ["subtask", "number", "attempt"])
def test_a_number_of_any_length_in_the_name_of_a_transaction_is_none(place):
    """Anybody who may write to the cluster can give a transaction such a name; no subtask could commit beside it."""
    own = TransactionName("p", "job-1", "sink", 3, "0a1b_2", 17)
    digits = "9" * 5_000
    made = {"subtask": f"p:job-1:sink:{digits}:x:1", "number": f"p:job-1:sink:3:x:{digits}"}
    name = TransactionName.parse(made.get(place, f"p:job-1:sink:3:0a1b_{digits}:1"), "p", "sink")

    assert (name is None) is (place != "attempt")
    assert name is None or not name.follows(own)
