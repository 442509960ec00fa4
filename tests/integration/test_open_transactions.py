"""What a lost job left open is shown, and committed or aborted by hand: of every kind of sink that has two phases."""

from __future__ import annotations

import json
import os
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
from tests.services.cluster import LocalCluster, wait_until

pytestmark = pytest.mark.leaks("pyiceberg keeps its threads for the whole process")
ROOT = Path(__file__).resolve().parents[2]
SCRIPT = Path(__file__).with_name("lost_job.py")
SINKS = ["delta", "files", "iceberg", "lines"]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    with LocalCluster(tmp_path_factory.mktemp("cluster"), slots=(2,)) as cluster:
        yield cluster


@pytest.fixture
def lost(cluster, tmp_path):
    """Id of a job that failed at its first commit, and its directory."""
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
    return job_id, tmp_path


def snapline(*arguments: object, coordinator: str = "", may_commit: bool = False):
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **({MAY_COMMIT: "1"} if may_commit else {})}
    if coordinator:
        environment["SNAPLINE_CONF_jobmanager__rpc__address"] = coordinator
    return subprocess.run(
        [sys.executable, "-m", "snapline.cli", "transactions", *map(str, arguments)],
        env=environment, input="n\n", capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip


def visible(directory: Path) -> dict[str, list[int]]:
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
    return {**found, "lines": sorted(lines)}


def test_what_is_open_is_shown_and_committed_once(cluster, lost):
    """By the id of the job; the rows of the checkpoint are visible then, in each sink, also when it is repeated."""
    job_id, directory = lost
    assert visible(directory) == {name: [] for name in SINKS}
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
        seen = visible(directory)
        count = len(seen["lines"])
        assert count > 0 and seen == dict.fromkeys(SINKS, seen["lines"])
        assert seen["lines"] == sorted(set(seen["lines"]))
        assert rows == {"files": count, "delta": count, "iceberg": count, "lines": None}
    assert "of sink 'delta' was committed already" in done.stdout


def test_what_is_open_is_aborted_and_leaves_nothing(cluster, lost, tmp_path):
    """After a question, of one sink or all; what a table has committed stays."""
    job_id, directory = lost
    arguments = ("abort", job_id, SCRIPT, directory)
    asked = snapline(*arguments, coordinator=cluster.address)
    assert (
        asked.returncode == 1 and "will be lost. Abort them?" in asked.stderr and "nothing was aborted" in asked.stderr
    )
    of_delta = snapline("commit", "--uid", "delta", *arguments[1:], coordinator=cluster.address, may_commit=True)
    assert of_delta.returncode == 0, of_delta.stderr
    done = snapline(*arguments[:2], "--yes", *arguments[2:], coordinator=cluster.address)
    assert done.returncode == 0, done.stderr
    assert "of sink 'delta' was committed already" in done.stdout and done.stdout.count("aborted checkpoint") == 3
    seen = visible(directory)
    assert seen.pop("delta") and list(seen.values()) == [[], [], []]
    left = [path for path in directory.rglob("*") if path.is_file() and path.suffix in {".staged", ".parquet"}]
    assert {path.relative_to(directory).parts[0] for path in left} == {"delta"}
    assert list((directory / "lines").iterdir()) == []


def test_a_snapshot_may_be_named_and_what_cannot_be_is_said_in_a_line(cluster, lost, tmp_path):
    """Without a coordinator; each line says what to do."""
    job_id, directory = lost
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
