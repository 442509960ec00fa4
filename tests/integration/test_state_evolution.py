"""A job whose state has another schema than its savepoint: taken over, or refused at submission, before anything
runs."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow.dataset as ds
import pytest

from snapline.client import RequestRefused
from tests.integration.evolving_job import build
from tests.integration.test_snapshot_commands import command
from tests.services.cluster import LocalCluster, files_below

SCRIPT = Path(__file__).with_name("evolving_job.py")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    with LocalCluster(tmp_path_factory.mktemp("cluster"), slots=(3,)) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def savepoint(cluster, tmp_path_factory):
    """Of the first version, whose job runs no more."""
    job_id = start(cluster, tmp_path_factory.mktemp("first") / "out", "first version")
    cluster.wait_for_checkpoints(job_id, 2)
    return Path(cluster.client.stop_with_savepoint(job_id))


def start(cluster, output, name, *arguments, restore="", **settings):
    environment = build(cluster.environment(**settings), ["--output", str(output), *arguments])
    if restore:
        environment.restore_from(str(restore))
    return cluster.submit(environment, name)


def test_columns_added_and_widened(cluster, savepoint, tmp_path):
    """Counts go on where they were, at another parallelism; the new column has its default."""
    before = dict(files_and_bytes(savepoint))
    job_id = start(
        cluster, tmp_path / "out", "second version", "--version", "second", "--parallelism", "3", restore=savepoint
    )
    cluster.wait_for_checkpoints(job_id, 2)
    cluster.cancel(job_id)
    table = ds.dataset(tmp_path / "out", format="parquet").to_table()
    assert set(table.column("tier").to_pylist()) == {"basic"}
    assert min(table.column("n").to_pylist()) > 1
    assert dict(files_and_bytes(savepoint)) == before


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            ("--version", "narrow"),
            "operator 'profiles': column 'profile.n' is int32 in the snapshot and int16 in the job",
        ),
        (("--version", "dropping"), r"column 'profile.city' \(string\) is in the snapshot .* --drop-state-columns"),
        (("--key", "text"), "the state was written for the key key int64, the operator is now keyed by key string"),
    ],
)
def test_what_does_not_fit_is_refused_at_submission(cluster, savepoint, tmp_path, arguments, said):
    """By column, with the way out; no job is there afterwards, nothing was written, and the plan says the same."""
    with pytest.raises(RequestRefused, match=said):
        start(cluster, tmp_path / "out", "refused", *arguments, restore=savepoint)
    assert "refused" not in {job.name for job in cluster.client.list_jobs()}
    assert list(files_below(tmp_path)) == []
    plan = ["plan", "--from", savepoint, "-o", "json", SCRIPT, "--", "--output", tmp_path / "out", *arguments]
    done = command(*plan)
    assert done.returncode == 1
    answer = json.loads(done.stdout)
    assert answer["refusal"].startswith("operator 'profiles': ")
    (problem,) = [operator["problem"] for operator in answer["operators"] if operator["problem"]]
    assert problem == answer["refusal"]


def test_columns_are_dropped_with_leave(cluster, savepoint, tmp_path):
    """As a setting of the job, and as an option of the plan."""
    settings = {"state__schema-evolution__drop-columns": "true"}
    job_id = start(cluster, tmp_path / "out", "dropping", "--version", "dropping", restore=savepoint, **settings)
    cluster.wait_for_checkpoints(job_id, 2)
    cluster.cancel(job_id)
    assert min(ds.dataset(tmp_path / "out", format="parquet").to_table().column("n").to_pylist()) > 1
    arguments = ["--output", tmp_path / "plan", "--version", "dropping"]
    done = command("plan", "--from", savepoint, "--drop-state-columns", SCRIPT, "--", *arguments)
    assert done.returncode == 0, done.stdout
    assert "would start from it" in done.stdout


def files_and_bytes(directory):
    return [(file, file.read_bytes()) for file in files_below(directory)]
