"""A changelog to keys of real servers of Redis and PostgreSQL, idempotent and exactly once, and to HBase over its wire,
and to files with what Redis has for each row: TaskManagers and both servers are killed, and the job goes on from a
savepoint at another parallelism. In the end each key has its newest value, and each row is in the files once."""

from __future__ import annotations

from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pytest
import redis

import snapline as sl
from snapline.connectors import FileSink, FileSource, HBaseSink, JsonFormat, PostgresSink, RedisLookup, RedisSink
from tests.golden.test_lookups import kill_one
from tests.services.cluster import LocalCluster, wait_until
from tests.services.hbase import Memory, running_hbase
from tests.services.postgres import PostgresServer, programs
from tests.services.redis_server import RedisServer

pytestmark = [
    pytest.mark.timeout(600),
    pytest.mark.rare,
    pytest.mark.skipif(programs() is None, reason="there is no PostgreSQL on this machine"),
]
SCHEMA = pa.schema([("key", pa.int64()), ("n", pa.int64()), ("row_kind", pa.string())])
FILES, ROWS, KEYS, PATIENCE = 6, 300, 97, 200
TABLES: dict[str, Any] = {"upserted": "idempotent", "prepared": "exactly_once"}


class Run:
    """A job over files that appear, and the keys that they leave."""

    def __init__(self, tmp_path: Path, server: RedisServer, postgres: PostgresServer) -> None:
        self.tmp_path, self.server, self.postgres = tmp_path, server, postgres
        self.hbase: tuple[Memory, int] = (Memory(), 0)
        self.expected: dict[int, int] = {}
        self.joined: Counter[tuple[int, int, str | None]] = Counter()
        """Rows with the town of their key, which every third one has."""
        self.last: dict[int, int] = {}
        """The same where a row that deletes is a row like others."""
        (tmp_path / "in").mkdir()
        for table in TABLES:
            postgres.run(f"CREATE TABLE {table} (key bigint PRIMARY KEY, n bigint, row_kind text)")

    def add_portion(self, number: int) -> None:
        """More files; all rows of a key are in one, so that their order is known."""
        for file in range(FILES):
            lines = []
            for n in range(ROWS):
                key, value = (number * FILES + file) * KEYS + n % KEYS, n
                kind = "-D" if n >= ROWS - 10 else "+U"
                lines.append(f'{{"key": {key}, "n": {value}, "row_kind": "{kind}"}}\n')
                self.expected[key] = self.last[key] = value
                self.joined[key, value, f"town {key}" if key % 3 == 0 else None] += 1
                if kind == "-D":
                    del self.expected[key]
            with self.server.client() as client:
                first = (number * FILES + file) * KEYS
                client.mset({f"town:{key}": f"town {key}" for key in range(first, first + KEYS) if key % 3 == 0})
            hidden = self.tmp_path / "in" / f"_{number}-{file}"
            hidden.write_text("".join(lines))
            hidden.rename(self.tmp_path / "in" / f"{number}-{file}.json")

    def start(self, cluster: LocalCluster, parallelism: int, restore: str = "") -> str:
        """Submit the job."""
        environment = cluster.environment(parallelism=parallelism, interval="200 ms")
        source = FileSource(
            self.tmp_path / "in", JsonFormat(SCHEMA), follow=True, discovery_interval_ms=50, batch_rows=50
        )
        rows = environment.from_source(source, uid="in")
        url = self.server.url
        at_once = RedisSink("key", url=url, prefix="idempotent:", value="n", delete="row_kind", timeout_ms=2_000)
        once = RedisSink(
            "key",
            url=url,
            prefix="exactly_once:",
            value="n",
            delete="row_kind",
            guarantee="exactly_once",
            timeout_ms=2_000,
        )
        towns = RedisLookup(
            "key", url=url, prefix="town:", value="string", columns={"town": pa.string()}, cache_keys=50, batch_keys=20
        )
        retry = sl.AsyncRetryStrategy.exponential_backoff(100, 50, 500, retry_if_exception=towns.is_away)
        looked_up = rows.async_wait(towns, capacity=40, retry=retry, ordered=False, uid="towns")
        looked_up.sink_to(FileSink(self.tmp_path / "out"), uid="files")
        rows.sink_to(at_once, uid="idempotent")
        rows.sink_to(once, uid="exactly_once")
        in_hbase = HBaseSink("totals", host="127.0.0.1", port=self.hbase[1], row_key="key", family="d", batch_rows=100)
        rows.sink_to(in_hbase, uid="hbase")
        for table, guarantee in TABLES.items():
            in_table = PostgresSink(table, dsn=self.postgres.dsn, key=["key"], guarantee=guarantee)
            rows.sink_to(in_table, uid=table)
        if restore:
            environment.restore_from(restore)
        return cluster.submit(environment, "redis")

    def found(self, prefix: str) -> dict[int, int]:
        """The keys of a sink."""
        try:
            with self.server.client() as client:
                names = client.keys(f"{prefix}:*")
                values = client.mget(names) if names else []
        except redis.ConnectionError:
            return {}
        there = zip(names, values, strict=True)  # what was deleted in between has no value
        return {int(name.split(b":")[1]): int(value) for name, value in there if value is not None}

    def with_towns(self) -> Counter[tuple[int, int, str | None]]:
        """Rows that were looked up and committed."""
        files = [str(path) for path in (self.tmp_path / "out").glob("*.parquet")]
        rows = ds.dataset(files).to_table().to_pylist() if files else []
        return Counter((row["key"], row["n"], row["town"]) for row in rows)

    def upserted(self) -> dict[str, dict[int, int]]:
        """The rows of the tables."""
        cells = self.hbase[0].rows
        found = {"hbase": {int(key): int(row[b"d:n"]) for key, row in list(cells.items())}}
        return found | {table: dict(self.postgres.rows(f"SELECT key, n FROM {table}")) for table in TABLES}

    def wait_until_all_are_there(self) -> None:
        """All sinks have what the files leave."""
        prefixes = ("idempotent", "exactly_once")
        wait_until(
            lambda: (
                all(self.found(prefix) == self.expected for prefix in prefixes)
                and all(found == self.last for found in self.upserted().values())
                and self.with_towns() == self.joined
            ),
            "the keys",
            seconds=PATIENCE,
            progress=lambda: [len(self.found(prefix)) for prefix in prefixes],
        )


def test_keys_with_kills_of_both_sides_and_another_parallelism(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """A TaskManager dies while rows come, then the server, then the job goes on at 3."""
    with ExitStack() as servers:
        server = RedisServer(tmp_path_factory.mktemp("redis"))
        servers.callback(server.close)
        postgres = PostgresServer(tmp_path_factory.mktemp("postgres"))
        servers.callback(postgres.close)
        run = Run(tmp_path, server, postgres)
        run.hbase = servers.enter_context(running_hbase())
        with LocalCluster(tmp_path / "cluster", slots=(2, 2, 2, 2)) as cluster:
            cluster.wait_for_task_managers()
            job_id = run.start(cluster, 2)
            run.add_portion(0)
            wait_until(lambda: bool(run.found("idempotent")), "the first keys", seconds=PATIENCE)
            kill_one(cluster, job_id)
            run.wait_until_all_are_there()
            both: tuple[RedisServer | PostgresServer, ...] = (server, postgres)
            for portion, killed in enumerate(both, 1):
                restarts = cluster.client.get_job(job_id).overview.restarts
                if killed is server:  # towns are set while it is there
                    run.add_portion(portion)
                killed.kill()
                if killed is not server:
                    run.add_portion(portion)
                wait_until(
                    lambda: cluster.client.get_job(job_id).overview.restarts > restarts,  # noqa: B023 - asked at once
                    "a restart", seconds=PATIENCE,
                )  # fmt: skip
                killed.start()
                run.wait_until_all_are_there()
            path = cluster.client.stop_with_savepoint(job_id)
            run.add_portion(3)
            job_id = run.start(cluster, 3, path)
            run.wait_until_all_are_there()
            cluster.client.stop_with_savepoint(job_id)
        assert postgres.rows("SELECT gid FROM pg_prepared_xacts") == []
