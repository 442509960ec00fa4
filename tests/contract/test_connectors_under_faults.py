"""Our own connectors in the suite that any connector passes: killed and failed at every step, rescaled, adopted,
restored twice, stopped, and to the end of their input."""

from __future__ import annotations

import json
import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import deltalake
import polars as pl
import pyarrow as pa
import pytest
from pyiceberg.catalog import load_catalog

import snapline as sl
from snapline.connectors import (
    DeltaSink,
    DeltaSource,
    FileSink,
    FileSource,
    HBaseSink,
    HybridSource,
    IcebergSink,
    IcebergSource,
    JsonFormat,
    KafkaSink,
    KafkaSource,
    ParquetFormat,
    ParquetSource,
    PostgresChangesSource,
    PostgresSink,
    RedisSink,
)
from snapline.connectors.kafka.transactions import Transactions
from snapline.testing import ConnectorReport, check_sink, check_source
from tests.services import kafka as services
from tests.services.cluster import wait_until
from tests.services.hbase import running_hbase
from tests.services.postgres import PostgresServer, programs
from tests.services.redis_server import RedisServer

pytestmark = pytest.mark.timeout(1800)
SCHEMA = pa.schema([("n", pa.int64()), ("text", pa.string())])
ROWS: list[dict[str, Any]] = [{"n": n, "text": f"row {n}"} for n in range(24)]
QUICK = {"reconnect.backoff.max.ms": 200}


def lines(rows: list[dict[str, Any]]) -> str:
    """One JSON object a line."""
    return "".join(json.dumps(row) + "\n" for row in rows)


def emptied(directory: Path) -> Path:
    """The directory, with nothing in it."""
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir()
    return directory


def files_that_follow(directory: Path, runs: int | None) -> ConnectorReport:
    """A source of lines that finds a file while it runs; a batch has a line or two."""

    def create() -> sl.Source:
        (emptied(directory) / "a.json").write_text(lines(ROWS[:6]))
        (directory / "b.json").write_text(lines(ROWS[6:9]))
        return FileSource(directory, JsonFormat(SCHEMA), follow=True, discovery_interval_ms=20, batch_rows=2)

    def one_more() -> None:
        (directory / ".c").write_text(lines(ROWS[9:16]))
        (directory / ".c").rename(directory / "c.json")

    return check_source(create, ROWS[:16], arrivals=[one_more], runs=runs)


def files_written(directory: Path, runs: int | None, form: Any = "parquet", **options: Any) -> ConnectorReport:
    """A sink of files, read as other tools read them."""

    def create() -> sl.Sink:
        return FileSink(emptied(directory), form, **options)

    def read() -> list[dict[str, Any]]:
        found = sorted(path for path in directory.rglob("*.*") if "_staging" not in path.parts)
        if form == "parquet":
            tables = [pl.read_parquet(path, hive_partitioning=True).select("n", "text") for path in found]
            return [row for table in tables for row in table.to_dicts()]
        return [json.loads(line) for path in found for line in path.read_text().splitlines()]

    def staged() -> list[str]:
        return [path.name for path in directory.rglob("*") if "_staging" in path.parts and path.is_file()]

    return check_sink(create, read, ROWS, leftovers=staged, runs=runs)


def delta_written(directory: Path, runs: int | None) -> ConnectorReport:
    """A table of Delta, read by the library at its newest version."""

    def read() -> list[dict[str, Any]]:
        path = str(directory)
        return pl.read_delta(path).select("n", "text").to_dicts() if deltalake.DeltaTable.is_deltatable(path) else []

    return check_sink(lambda: DeltaSink(emptied(directory)), read, ROWS, runs=runs)


def test_files_that_are_followed(tmp_path: Path) -> None:
    """Some of all runs."""
    files_that_follow(tmp_path / "arriving", 6)


def test_files_that_are_written(tmp_path: Path) -> None:
    """Some of all runs, as lines."""
    files_written(tmp_path / "out", 6, JsonFormat(SCHEMA))


@pytest.mark.rare
def test_files_that_are_followed_in_all_runs(tmp_path: Path) -> None:
    """Killed and failed at every step of enumerator and reader."""
    files_that_follow(tmp_path / "arriving", None)


@pytest.mark.rare
@pytest.mark.parametrize(
    ("form", "options"),
    [
        ("parquet", {}),
        ("parquet", {"partition_by": ["text"]}),
        (JsonFormat(SCHEMA), {}),
        ("parquet", {"compact_below": 1 << 20}),
    ],
    ids=["parquet", "partitions", "lines", "compacted"],
)
def test_files_that_are_written_in_all_runs(tmp_path: Path, form: Any, options: dict[str, Any]) -> None:
    """Killed and failed at every step of writer and committer; nothing stays in `_staging`."""
    files_written(tmp_path / "out", None, form, **options)


@pytest.mark.rare
@pytest.mark.parametrize("follow", [False, True])
def test_a_hybrid_source_in_all_runs(tmp_path: Path, follow: bool) -> None:
    """Files, and then other files; the switch is in the checkpoint."""

    def create() -> sl.Source:
        (emptied(tmp_path / "old") / "a.json").write_text(lines(ROWS[:8]))
        (emptied(tmp_path / "new") / "b.json").write_text(lines(ROWS[8:16]))
        old = FileSource(tmp_path / "old", JsonFormat(SCHEMA), batch_rows=2)
        new = FileSource(tmp_path / "new", JsonFormat(SCHEMA), follow=follow, discovery_interval_ms=20, batch_rows=2)
        return HybridSource(old, new)

    check_source(create, ROWS[:16])


@pytest.mark.rare
def test_parquet_files_in_all_runs(tmp_path: Path) -> None:
    """Row groups are the splits."""
    with (tmp_path / "rows.parquet").open("wb") as file:
        encoder = ParquetFormat(row_group_rows=4).open(file, SCHEMA)
        encoder.write(pa.Table.from_pylist(ROWS, SCHEMA))
        encoder.close()
    check_source(lambda: ParquetSource(str(tmp_path / "rows.parquet"), batch_rows=2), ROWS)


@pytest.mark.rare
def test_delta_in_all_runs(tmp_path: Path) -> None:
    """Killed and failed at every step of writers and the one committer."""
    delta_written(tmp_path / "table", None)


@pytest.mark.rare
@pytest.mark.leaks("pyiceberg keeps its threads for the whole process")
@pytest.mark.parametrize("key", [(), ("n",)], ids=["added", "by key"])
def test_iceberg_in_all_runs(tmp_path: Path, key: tuple[str, ...]) -> None:
    """Killed and failed at every step of writers and the one committer; each run has a table of its own."""
    catalog = {"type": "sql", "uri": f"sqlite:///{tmp_path}/catalog.db", "warehouse": f"file://{tmp_path}/warehouse"}
    load_catalog("default", **catalog).create_namespace("shop")
    tables: list[str] = []

    def create() -> sl.Sink:
        tables.append(f"shop.rows_{len(tables)}")
        return IcebergSink(tables[-1], catalog=catalog, key=key)

    def read() -> list[dict[str, Any]]:
        found = load_catalog("default", **catalog)
        if not found.table_exists(tables[-1]):
            return []
        rows: list[dict[str, Any]] = found.load_table(tables[-1]).scan().to_arrow().to_pylist()
        return rows

    check_sink(create, read, ROWS)


@pytest.fixture(scope="module")
def postgres(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PostgresServer]:
    """A real server."""
    running = PostgresServer(tmp_path_factory.mktemp("postgres"))
    yield running
    running.close()


@pytest.mark.rare
@pytest.mark.skipif(programs() is None, reason="there is no PostgreSQL on this machine")
@pytest.mark.parametrize(
    ("guarantee", "key"), [("exactly_once", ()), ("exactly_once", ("n",)), ("idempotent", ("n",))], ids=str
)
def test_postgres_in_all_runs(postgres: PostgresServer, guarantee: Any, key: tuple[str, ...]) -> None:
    """By key, and in prepared transactions, none of which is left."""

    def create() -> sl.Sink:
        with postgres.connect() as connection:
            connection.execute("DROP TABLE IF EXISTS totals")
            connection.execute("CREATE TABLE totals (n bigint PRIMARY KEY, text text)")
        return PostgresSink("totals", dsn=postgres.dsn, guarantee=guarantee, key=key)

    def read() -> list[dict[str, Any]]:
        return [{"n": n, "text": text} for n, text in postgres.rows("SELECT n, text FROM totals")]

    check_sink(
        create, read, ROWS, guarantee=guarantee, leftovers=lambda: postgres.rows("SELECT gid FROM pg_prepared_xacts")
    )


@pytest.mark.rare
def test_hbase_in_all_runs() -> None:
    """Puts may come twice, and the table is the same in the end."""
    with running_hbase() as (memory, port):

        def create() -> sl.Sink:
            memory.rows.clear()
            return HBaseSink("totals", host="127.0.0.1", port=port, row_key="n", family="d")

        def read() -> list[dict[str, Any]]:
            return [{"n": int(key), "text": cells[b"d:text"].decode()} for key, cells in memory.rows.items()]

        check_sink(create, read, ROWS, guarantee="idempotent")


@pytest.fixture
def kafka(tmp_path: Path) -> Iterator[services.Kafka]:
    """Two nodes of the test broker, or the real cluster."""
    running = services.start(tmp_path, nodes=2)
    yield running
    services.stop(running)


@pytest.mark.rare
def test_a_topic_that_is_read_in_all_runs(kafka: services.Kafka) -> None:
    """Two partitions up to their end; positions are offsets."""
    topic = kafka.topic(partitions=2)
    for row in ROWS:
        kafka.send(topic, [json.dumps(row).encode()], partition=row["n"] % 2)

    def create() -> sl.Source:
        return KafkaSource(
            topic, bootstrap_servers=kafka.bootstrap, format=JsonFormat(SCHEMA), stop="latest", settings=QUICK,
            batch_rows=3,
        )  # fmt: skip

    check_source(create, ROWS, real_pause_ms=2)


@pytest.mark.rare
@pytest.mark.parametrize("guarantee", ["exactly_once", "at_least_once"])
def test_a_topic_that_is_written_in_all_runs(
    kafka: services.Kafka, guarantee: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A read_committed reader sees each row once, and no transaction stays open."""
    topics: list[str] = []
    connected: list[Transactions] = []
    make = Transactions.__init__

    def remembered(self: Transactions, *arguments: Any) -> None:
        make(self, *arguments)
        connected.append(self)

    monkeypatch.setattr(Transactions, "__init__", remembered)

    def create() -> sl.Sink:
        while connected:  # a simulated process that dies leaves what a real one takes along: a thread and its sockets
            connected.pop().close()
        topics.append(kafka.topic(partitions=2))
        return KafkaSink(
            topics[-1], bootstrap_servers=kafka.bootstrap, format=JsonFormat(SCHEMA), guarantee=guarantee,
            settings=QUICK, transactional_id_prefix=f"p-{uuid.uuid4().hex[:8]}",
        )  # fmt: skip

    def read() -> list[dict[str, Any]]:
        return [json.loads(value) for value in kafka.values(topics[-1])]

    check_sink(create, read, ROWS, guarantee=guarantee, leftovers=lambda: kafka.open_transactions("p-"))


@pytest.mark.rare
def test_delta_by_key_in_all_runs(tmp_path: Path) -> None:
    """Rows are merged, and the files in which they waited are none of the table's."""

    def read() -> list[dict[str, Any]]:
        path = str(tmp_path / "table")
        return pl.read_delta(path).select("n", "text").to_dicts() if deltalake.DeltaTable.is_deltatable(path) else []

    check_sink(lambda: DeltaSink(emptied(tmp_path / "table"), key=["n"]), read, ROWS)


def delta_followed(directory: Path, runs: int | None) -> ConnectorReport:
    """A source of a table with versions that are there, and one that comes."""

    def add(rows: list[dict[str, Any]]) -> None:
        deltalake.write_deltalake(directory, pa.Table.from_pylist(rows, SCHEMA), mode="append")

    def create() -> sl.Source:
        emptied(directory)
        for start in (0, 5):
            add(ROWS[start : start + 5])
        return DeltaSource(directory, follow=True, discovery_interval_ms=20, batch_rows=2)

    return check_source(create, ROWS[:16], arrivals=[lambda: add(ROWS[10:16])], runs=runs)


def test_a_delta_table_that_is_followed(tmp_path: Path) -> None:
    """Some of all runs."""
    delta_followed(tmp_path / "table", 4)


@pytest.mark.rare
def test_a_delta_table_that_is_followed_in_all_runs(tmp_path: Path) -> None:
    """Killed and failed at every step of enumerator and reader."""
    delta_followed(tmp_path / "table", None)


@pytest.mark.rare
@pytest.mark.leaks("pyiceberg keeps its threads for the whole process")
def test_an_iceberg_table_that_is_followed_in_all_runs(tmp_path: Path) -> None:
    """Snapshots that are there, and one that comes; each run has a table of its own."""
    catalog = {"type": "sql", "uri": f"sqlite:///{tmp_path}/catalog.db", "warehouse": f"file://{tmp_path}/warehouse"}
    load_catalog("default", **catalog).create_namespace("shop")
    tables: list[str] = []

    def add(rows: list[dict[str, Any]]) -> None:
        load_catalog("default", **catalog).load_table(tables[-1]).append(pa.Table.from_pylist(rows, SCHEMA))

    def create() -> sl.Source:
        tables.append(f"shop.rows_{len(tables)}")
        load_catalog("default", **catalog).create_table(tables[-1], SCHEMA)
        for start in (0, 5):
            add(ROWS[start : start + 5])
        return IcebergSource(tables[-1], catalog=catalog, follow=True, discovery_interval_ms=20, batch_rows=2)

    check_source(create, ROWS[:16], arrivals=[lambda: add(ROWS[10:16])])


@pytest.mark.rare
@pytest.mark.skipif(programs() is None, reason="there is no PostgreSQL on this machine")
def test_changes_of_a_table_in_all_runs(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Rows of the table and of its log; each run has a slot of its own, and the one before is dropped."""
    running = PostgresServer(tmp_path_factory.mktemp("postgres"), wal_level="logical")
    slots: list[str] = []

    def insert(start: int, stop: int) -> None:
        running.run(f"INSERT INTO rows SELECT n, 'row ' || n FROM generate_series({start}, {stop - 1}) n")

    def create() -> sl.Source:
        running.rows("SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE active")
        wait_until(lambda: not running.rows("SELECT FROM pg_replication_slots WHERE active"), "the end of readers")
        running.rows("SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots")
        running.run("DROP TABLE IF EXISTS rows", "CREATE TABLE rows (n bigint PRIMARY KEY, text text)")
        insert(0, 6)
        slots.append(f"slot_{len(slots)}")
        return PostgresChangesSource("rows", dsn=running.dsn, slot=slots[-1], batch_rows=2, give_up_after_ms=100_000)

    try:
        expected = [{**row, "row_kind": "+I"} for row in ROWS[:16]]
        check_source(create, expected, arrivals=[lambda: insert(6, 16)], real_pause_ms=2)
    finally:
        running.close()


def redis_written(directory: Path, runs: int | None, guarantee: Any) -> ConnectorReport:
    """A sink of keys of a real server, read by its client."""
    running = RedisServer(directory)

    def create() -> sl.Sink:
        with running.client() as client:
            client.flushall()
        return RedisSink("n", url=running.url, prefix="row:", value="text", guarantee=guarantee)

    def read() -> list[dict[str, Any]]:
        with running.client() as client:
            found = client.keys("row:*")
            return [{"n": int(key[4:]), "text": client.get(key).decode()} for key in found]

    try:
        return check_sink(create, read, ROWS, guarantee=guarantee, runs=runs)
    finally:
        running.close()


def test_redis(tmp_path: Path) -> None:
    """Some of all runs, exactly once."""
    redis_written(tmp_path, 4, "exactly_once")


@pytest.mark.rare
@pytest.mark.parametrize("guarantee", ["idempotent", "exactly_once"])
def test_redis_in_all_runs(tmp_path: Path, guarantee: Any) -> None:
    """Keys are set as rows come, or when their checkpoint is complete."""
    redis_written(tmp_path, None, guarantee)
