"""What a lost job left open is shown, and committed or aborted by hand: of every kind of sink that has two phases."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import deltalake
import polars as pl
import pyarrow.dataset as ds
import pytest
from pyiceberg.catalog import load_catalog

from snapline.client import RequestRefused
from snapline.dataflow.wire.messages import JobStatus
from tests.integration.lost_job import MAY_COMMIT, build, catalog_in
from tests.services import kafka as services
from tests.services.cluster import LocalCluster, wait_until
from tests.services.kafka import Kafka
from tests.services.postgres import PostgresServer, programs
from tests.services.redis_server import RedisServer

pytestmark = pytest.mark.leaks("pyiceberg keeps its threads for the whole process")
ROOT = Path(__file__).resolve().parents[2]
SCRIPT = Path(__file__).with_name("lost_job.py")
SINKS = ["compacted", "delta", "files", "iceberg", "kafka", "lines", *(["postgres"] if programs() else []), "redis"]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    with LocalCluster(tmp_path_factory.mktemp("cluster"), slots=(2,)) as cluster:
        yield cluster


class Servers:
    """What the job writes to beside its directory."""

    def __init__(self, directory: Path, kafka: Kafka, redis: RedisServer, postgres: PostgresServer | None) -> None:
        self.kafka, self.redis, self.postgres = kafka, redis, postgres
        self.topic, self.table = kafka.topic(), f"rows_{secrets.token_hex(4)}"
        if postgres is not None:
            postgres.run(f"CREATE TABLE {self.table} (n bigint PRIMARY KEY, v bigint)")
        said = {"kafka": kafka.bootstrap, "topic": self.topic, "redis": redis.url, "table": self.table}
        said["postgres"] = postgres.dsn if postgres is not None else ""
        (directory / "servers.json").write_text(json.dumps(said))

    def visible(self) -> dict[str, list[int]]:
        """Rows that each shows."""
        with self.redis.client() as client:
            keys = sorted(int(key) for key in client.keys("*") if key.isdigit())
        found = {"kafka": sorted(json.loads(value)["n"] for value in self.kafka.values(self.topic)), "redis": keys}
        if self.postgres is not None:
            found["postgres"] = [n for (n,) in self.postgres.rows(f"SELECT n FROM {self.table} ORDER BY n")]
        return found

    def open(self, job_id: str) -> list[object]:
        """What of a job waits in them for its end."""
        prepared = f"SELECT gid FROM pg_prepared_xacts WHERE gid LIKE 'snapline:{job_id}:%'"
        in_postgres = self.postgres.rows(prepared) if self.postgres is not None else []
        return [*self.kafka.open_transactions(self.topic), *in_postgres]


@pytest.fixture(scope="module")
def servers(tmp_path_factory):
    kafka, redis = services.start(tmp_path_factory.mktemp("kafka")), RedisServer(tmp_path_factory.mktemp("redis"))
    postgres = PostgresServer(tmp_path_factory.mktemp("postgres")) if programs() else None
    yield kafka, redis, postgres
    services.stop(kafka)
    redis.close()
    if postgres is not None:
        postgres.close()


@pytest.fixture
def lost(cluster, servers, tmp_path):
    """Id of a job that failed at its first commit, its directory, and the servers that it wrote to."""
    with servers[1].client() as client:
        client.flushall()
    beside = Servers(tmp_path, *servers)
    load_catalog("default", **catalog_in(tmp_path)).create_namespace("lost")
    (tmp_path / "lines").mkdir()
    environment = cluster.environment(
        interval="10 min",
        restart_strategy__type="none",
        execution__checkpointing__externalized_checkpoint_retention="RETAIN_ON_CANCELLATION",
    )
    job_id = cluster.submit(build(environment, tmp_path), "lost")
    lines = tmp_path / "lines"
    wait_until(lambda: any(each.stat().st_size for each in lines.iterdir()), "rows: without them nothing is open")
    with suppress(RequestRefused):  # the job may fail before it can say that the checkpoint is complete
        cluster.client.trigger_checkpoint(job_id)
    cluster.wait_for(job_id, JobStatus.FAILED)
    return job_id, tmp_path, beside


def snapline(*arguments: object, coordinator: str = "", may_commit: bool = False):
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **({MAY_COMMIT: "1"} if may_commit else {})}
    if coordinator:
        environment["SNAPLINE_CONF_jobmanager__rpc__address"] = coordinator
    return subprocess.run(
        [sys.executable, "-m", "snapline.cli", "transactions", *map(str, arguments)],
        env=environment, input="n\n", capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip


def visible(directory: Path, beside: Servers) -> dict[str, list[int]]:
    """Rows that each sink shows, by their number."""
    files = ds.dataset(directory / "files", format="parquet", exclude_invalid_files=True)
    delta = directory / "delta"
    in_delta = pl.read_delta(str(delta))["at"].to_list() if deltalake.DeltaTable.is_deltatable(str(delta)) else []
    iceberg = (
        load_catalog("default", **catalog_in(directory)).load_table("lost.rows").scan().to_arrow()["at"].to_pylist()
    )
    of_files = files.to_table()["at"].to_pylist() if files.files else []
    lines = [int(line) for each in (directory / "lines").glob("*.lines") for line in each.read_text().split()]
    times = {"files": of_files, "delta": in_delta, "iceberg": iceberg}
    found = {name: sorted(each.microsecond + each.second * 1_000_000 for each in rows) for name, rows in times.items()}
    compacted = ds.dataset(directory / "compacted", format="parquet", exclude_invalid_files=True)
    found["compacted"] = sorted(compacted.to_table()["n"].to_pylist() if compacted.files else [])
    return {**found, "lines": sorted(lines), **beside.visible()}


def test_what_is_open_is_shown_and_committed_once(cluster, lost):
    """By the id of the job; the rows of the checkpoint are visible then, in each sink, also when it is repeated."""
    job_id, directory, beside = lost
    assert visible(directory, beside) == {name: [] for name in SINKS}
    shown = snapline("ls", job_id, coordinator=cluster.address)
    assert shown.returncode == 0, shown.stderr
    lines = shown.stdout.splitlines()
    assert lines[0].split() == ["SINK", "JOB", "CHECKPOINT", "COMMITTABLES", "ROWS", "WHAT"]
    assert sorted(line.split()[0] for line in lines[1:]) == SINKS
    described = json.loads(snapline("ls", job_id, "-o", "json", coordinator=cluster.address).stdout)
    rows = {each["sink_uid"]: each["rows"] for each in described}

    refused = snapline("commit", job_id, SCRIPT, directory, coordinator=cluster.address)
    assert refused.returncode == 1 and "the process that commits is lost" in refused.stderr
    for _ in range(2):
        done = snapline("commit", job_id, SCRIPT, directory, coordinator=cluster.address, may_commit=True)
        assert done.returncode == 0, done.stderr
        seen = visible(directory, beside)
        count = len(seen["lines"])
        assert count > 0 and seen == dict.fromkeys(SINKS, seen["lines"])
        assert seen["lines"] == sorted(set(seen["lines"]))
        assert rows == {**dict.fromkeys(SINKS, count), "lines": None}
        assert beside.open(job_id) == []
    assert "of sink 'delta' was committed already" in done.stdout


def test_what_is_open_is_aborted_and_leaves_nothing(cluster, lost, tmp_path):
    """After a question, of one sink or all; what a table has committed stays."""
    job_id, directory, beside = lost
    arguments = ("abort", job_id, SCRIPT, directory)
    asked = snapline(*arguments, coordinator=cluster.address)
    assert (
        asked.returncode == 1 and "will be lost. Abort them?" in asked.stderr and "nothing was aborted" in asked.stderr
    )
    of_delta = snapline("commit", "--uid", "delta", *arguments[1:], coordinator=cluster.address, may_commit=True)
    assert of_delta.returncode == 0, of_delta.stderr
    done = snapline(*arguments[:2], "--yes", *arguments[2:], coordinator=cluster.address)
    assert done.returncode == 0, done.stderr
    assert (
        "of sink 'delta' was committed already" in done.stdout
        and done.stdout.count("aborted checkpoint") == len(SINKS) - 1
    )
    seen = visible(directory, beside)
    assert seen.pop("delta") and not any(seen.values())
    assert beside.open(job_id) == []
    left = [path for path in directory.rglob("*") if path.is_file() and path.suffix in {".staged", ".parquet"}]
    assert {path.relative_to(directory).parts[0] for path in left} == {"delta"}
    assert list((directory / "lines").iterdir()) == []


def test_a_snapshot_may_be_named_and_what_cannot_be_is_said_in_a_line(cluster, lost, tmp_path):
    """Without a coordinator; each line says what to do."""
    job_id, directory, _ = lost
    history = cluster.client.list_checkpoints(job_id).history
    snapshot = next(each.path for each in history if each.path)
    assert sorted(line.split()[0] for line in snapline("ls", snapshot).stdout.splitlines()[1:]) == SINKS
    other = shutil.copy(SCRIPT, tmp_path / "other.py")
    Path(other).write_text(SCRIPT.read_text().replace('uid="delta"', 'uid="renamed"'))
    running = cluster.submit(build(cluster.environment(interval="10 min"), tmp_path), "runs")
    for arguments, says in (
        (("commit", snapshot, other, directory), "the program has no sink 'delta-committer' as the snapshot knows it"),
        (("commit", "--uid", "x", snapshot, SCRIPT, directory), "holds nothing of a sink 'x' that is pre-committed"),
        (("ls", tmp_path), "there is no checkpoint or savepoint in"),
        (("abort", "-y", running, SCRIPT, directory), "ends its transactions itself; cancel it first"),
        (("ls", running), "has no checkpoint that is still there; name the directory of a savepoint"),
    ):
        refused = snapline(*arguments, coordinator=cluster.address)
        assert refused.returncode == 1 and says in refused.stderr and len(refused.stderr.splitlines()) == 1
    cluster.cancel(running)
