"""From a source that goes on to tables of Delta and Iceberg at once, exactly once: with kills, and stopped with a
savepoint and restored at another parallelism. Every version of either table is a whole number of checkpoints."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

import deltalake
import polars as pl
import pytest
from pyiceberg.catalog import load_catalog
from pyiceberg.table import Table

from snapline.connectors import DeltaSink, GeneratorSource, IcebergSink
from snapline.dataflow.wire.messages import JobStatus
from tests.services.cluster import LocalCluster, wait_until

pytestmark = [pytest.mark.timeout(600), pytest.mark.leaks("pyiceberg keeps its threads for the whole process")]
SPLITS, RATE = 6, 500.0
PATIENCE = 200


class Tables:
    """Two tables below a directory, and what is in them."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.catalog = {
            "type": "sql",
            "uri": f"sqlite:///{directory}/catalog.db",
            "warehouse": f"file://{directory}/warehouse",
        }
        load_catalog("default", **self.catalog).create_namespace("golden")

    def start(self, cluster: LocalCluster, *, parallelism: int, restore: str = "") -> str:
        environment = cluster.environment(parallelism=parallelism, interval="300 ms")
        source = GeneratorSource(
            keys=3, rows_per_second=RATE, splits=SPLITS, event_time_column="at", event_interval_us=1
        )
        stream = environment.from_source(source, uid="numbers")
        stream.sink_to(DeltaSink(self.directory / "delta", partition_by=["key"]), uid="delta")
        stream.sink_to(IcebergSink("golden.rows", catalog=self.catalog, partition_by=["key"]), uid="iceberg")
        if restore:
            environment.restore_from(restore)
        return cluster.submit(environment, "tables")

    def iceberg(self) -> Table:
        return load_catalog("default", **self.catalog).load_table("golden.rows")

    def committed(self) -> int:
        """Versions of the Delta table that have rows."""
        path = str(self.directory / "delta")
        return deltalake.DeltaTable(path).version() if deltalake.DeltaTable.is_deltatable(path) else 0

    def check(self) -> None:
        """Every row that the source has come to is in both once, and no checkpoint made two versions."""
        delta = deltalake.DeltaTable(self.directory / "delta")
        commits = [one for one in delta.history() if "snapline.checkpoint" in one]
        of_delta = [(one["snapline.job"], one["snapline.checkpoint"]) for one in commits]
        assert len(set(of_delta)) == len(of_delta) == delta.version()
        table = self.iceberg()
        said = [one.summary.additional_properties for one in table.snapshots() if one.summary is not None]
        of_iceberg = [(one["snapline.job"], one["snapline.checkpoint"]) for one in said]
        assert of_iceberg == of_delta[::-1]
        rows = sorted(map(number, pl.read_delta(str(self.directory / "delta"))["at"]))
        assert sorted(map(number, pl.Series(table.scan().to_arrow()["at"]))) == rows
        for split in range(SPLITS):
            mine = [row for row in rows if row % SPLITS == split]
            assert mine == list(range(split, split + SPLITS * len(mine), SPLITS))


def number(at: dt.datetime) -> int:
    """Of a row, whose time says which one it is."""
    return round((at - dt.datetime(1970, 1, 1)).total_seconds() * 1_000_000)  # noqa: DTZ001 - as the source has it


def more_commits(cluster: LocalCluster, job_id: str, tables: Tables) -> None:
    least = tables.committed() + 2
    wait_until(lambda: tables.committed() >= least, f"version {least}", seconds=PATIENCE)
    assert cluster.status(job_id) is JobStatus.RUNNING


def test_with_kills_a_savepoint_and_another_parallelism(tmp_path):
    """A TaskManager that runs tasks dies by signal 9, twice; then the job goes on from a savepoint, at 3."""
    tables = Tables(tmp_path)
    with LocalCluster(tmp_path / "cluster", slots=(2, 2, 2, 2)) as cluster:
        cluster.wait_for_task_managers()
        job_id = tables.start(cluster, parallelism=2)
        for kill in range(2):
            more_commits(cluster, job_id, tables)
            details = cluster.client.get_job(job_id)
            busy = {s.resource_id for vertex in details.vertices for s in vertex.subtasks if s.resource_id}
            next(one for one in cluster.task_managers if one.resource_id in busy).kill()
            wait_until(lambda: cluster.client.get_job(job_id).overview.restarts > kill, "the restart", seconds=PATIENCE)  # noqa: B023
        more_commits(cluster, job_id, tables)
        path = cluster.client.stop_with_savepoint(job_id)
        job_id = tables.start(cluster, parallelism=3, restore=path)
        more_commits(cluster, job_id, tables)
        cluster.client.stop_with_savepoint(job_id)
    tables.check()
