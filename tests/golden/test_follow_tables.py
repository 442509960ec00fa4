"""Sources that follow a table of Delta and one of Iceberg, exactly once: versions appear while the job runs,
TaskManagers are killed, and the job goes on from a savepoint at another parallelism. Every row comes out once."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import deltalake
import pyarrow as pa
import pyarrow.dataset as ds
import pytest
from pyiceberg.catalog import load_catalog

from snapline.connectors import DeltaSource, FileSink, IcebergSource
from tests.golden.test_lookups import kill_one
from tests.services.cluster import LocalCluster, wait_until

pytestmark = [
    pytest.mark.timeout(600),
    pytest.mark.rare,
    pytest.mark.leaks("pyiceberg keeps its threads for the whole process"),
]
VERSIONS, ROWS, PATIENCE = 5, 400, 200
COLUMNS = pa.schema([("n", pa.int64()), ("part", pa.string())])


class Tables:
    """Two tables that grow, and the job that reads them."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        uri, warehouse = f"sqlite:///{directory}/catalog.db", f"file://{directory}/warehouse"
        self.catalog = {"type": "sql", "uri": uri, "warehouse": warehouse}
        load_catalog("default", **self.catalog).create_namespace("golden")
        with load_catalog("default", **self.catalog).create_table("golden.rows", COLUMNS).update_spec() as spec:
            spec.add_identity("part")
        self.versions = 0
        self.grow()

    def grow(self) -> None:
        """Add some versions to both tables, of one file and of several."""
        for _ in range(VERSIONS):
            numbers = range(self.versions * ROWS, (self.versions + 1) * ROWS)
            rows = pa.table({"n": list(numbers), "part": [f"p {n % 3}" for n in numbers]}, COLUMNS)
            deltalake.write_deltalake(self.directory / "delta", rows, mode="append", partition_by=["part"])
            load_catalog("default", **self.catalog).load_table("golden.rows").append(rows)
            self.versions += 1

    def start(self, cluster: LocalCluster, parallelism: int, restore: str = "") -> str:
        """Submit the job."""
        environment = cluster.environment(parallelism=parallelism, interval="200 ms")
        delta = DeltaSource(self.directory / "delta", follow=True, discovery_interval_ms=50, batch_rows=50)
        iceberg = IcebergSource(
            "golden.rows", catalog=self.catalog, follow=True, discovery_interval_ms=50, batch_rows=50
        )
        rows = {
            "delta": environment.from_source(delta, uid="delta"),
            "iceberg": environment.from_source(iceberg, uid="iceberg"),
        }
        for name, stream in rows.items():
            stream.sink_to(FileSink(self.directory / f"{name}-out"), uid=f"{name}-out")
        if restore:
            environment.restore_from(restore)
        return cluster.submit(environment, "tables")

    def committed(self, name: str) -> Counter[tuple[int, str]]:
        """What readers of the output see."""
        files = [str(path) for path in (self.directory / f"{name}-out").glob("*.parquet")]
        rows = ds.dataset(files).to_table().to_pylist() if files else []
        return Counter((row["n"], row["part"]) for row in rows)

    def wait_for_rows(self, least: int) -> None:
        """So many are committed from each table."""
        names = ("delta", "iceberg")
        wait_until(
            lambda: all(self.committed(name).total() >= least for name in names), f"{least} rows", seconds=PATIENCE
        )


def test_tables_that_grow_kills_and_another_parallelism(tmp_path: Path) -> None:
    """Each portion of versions is partly read when a TaskManager dies; the last one comes after a savepoint."""
    tables = Tables(tmp_path)
    with LocalCluster(tmp_path / "cluster", slots=(2, 2, 2, 2, 2)) as cluster:
        cluster.wait_for_task_managers()
        job_id = tables.start(cluster, 2)
        for _ in range(2):
            tables.wait_for_rows((tables.versions - VERSIONS) * ROWS + 1)
            kill_one(cluster, job_id)
            tables.grow()
        path = cluster.client.stop_with_savepoint(job_id)
        job_id = tables.start(cluster, 3, path)
        tables.wait_for_rows(tables.versions * ROWS)
        cluster.client.stop_with_savepoint(job_id)
    expected = Counter((n, f"p {n % 3}") for n in range(tables.versions * ROWS))
    assert expected == tables.committed("delta")
    assert expected == tables.committed("iceberg")
