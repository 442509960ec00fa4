"""What the command line says about snapshots: plan, dispose, and every kind of snapshot that cannot be started from."""

from __future__ import annotations

import json
import os
import re
import shutil
import struct
import subprocess
import sys
import zlib
from pathlib import Path

import pytest

from snapline.client import RequestRefused
from snapline.dataflow.wire.messages import JobStatus
from snapline.runtime.storage.object_storage import open_storage
from tests.integration.savepoint_job import assert_exactly_once, build
from tests.services.cluster import LocalCluster, files_below
from tests.services.s3 import BUCKET

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = Path(__file__).with_name("savepoint_job.py")
NOTED = """
import sys
from pathlib import Path
from snapline import StreamExecutionEnvironment
from tests.integration.savepoint_job import build

Path(__file__).with_suffix(".ran").touch()
build(StreamExecutionEnvironment.get_execution_environment({settings}), sys.argv[1:]).execute("noted")
"""
"""The same job, with settings of its own, in a script that leaves a file behind."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    with LocalCluster(tmp_path_factory.mktemp("cluster"), slots=(2,)) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def savepoint(cluster, tmp_path_factory):
    """A savepoint whose job runs no more, and the output that the job had committed."""
    output = tmp_path_factory.mktemp("output") / "out"
    environment = build(cluster.environment(), ["--output", str(output)])
    job_id = cluster.submit(environment, "origin")
    cluster.wait_for_checkpoints(job_id, 1)
    return Path(cluster.client.stop_with_savepoint(job_id))


def command(*arguments, coordinator="", limit_s=60):
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    if coordinator:
        environment["SNAPLINE_CONF_jobmanager__rpc__address"] = coordinator
    return subprocess.run(
        [sys.executable, "-m", "snapline.cli", *map(str, arguments)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=limit_s,
        check=False,
    )


def plan(savepoint, tmp_path, *arguments, options=()):
    run = command("plan", "--from", savepoint, "-o", "json", *options, SCRIPT, "--", "--output", tmp_path, *arguments)
    return run.returncode, json.loads(run.stdout), run


# --- plan -------------------------------------------------------------------------------------------------------------


def test_a_plan_of_the_same_job_maps_everything(savepoint, tmp_path):
    """No coordinator is there, none is asked; state names, kinds, sizes and parallelism come from the snapshot's own
    files."""
    code, answer, _ = plan(savepoint, tmp_path, "--parallelism", "4")
    assert code == 0
    assert answer["would_start"]
    assert answer["snapshot"] == str(savepoint)
    assert answer["snapshot_type"] == "SAVEPOINT_SUSPEND"
    assert answer["snapshot_job_name"] == "origin"
    by_uid = {operator["uid"]: operator for operator in answer["operators"]}
    assert {uid: operator["verdict"] for uid, operator in by_uid.items()} == {
        "generator": "maps",
        "sums": "maps",
        "sink": "maps",
    }
    sums = by_uid["sums"]
    assert (sums["snapshot_parallelism"], sums["job_parallelism"]) == (2, 4)
    assert sums["state_size_bytes"] >= sums["keyed_state_bytes"] > 0
    assert {state["elements"] for state in sums["states"] if state["kind"] == "running aggregate"} == {40}
    assert by_uid["generator"]["operator_state_bytes"] > 0
    assert not list(tmp_path.iterdir())


def test_a_plan_says_what_is_lost_and_what_is_new(savepoint, tmp_path):
    """Exit code 1 while state would be dropped without leave, 0 with it."""
    code, answer, _ = plan(savepoint, tmp_path, "--uid", "others")
    assert code == 1
    verdicts = {operator["uid"]: operator["verdict"] for operator in answer["operators"]}
    assert verdicts == {"generator": "maps", "others": "new", "sink": "maps", "sums": "dropped"}
    assert "--allow-non-restored-state" in answer["refusal"]
    code, answer, _ = plan(savepoint, tmp_path, "--uid", "others", options=["--allow-non-restored-state"])
    assert (code, answer["refusal"]) == (0, "")


def test_a_plan_checks_parallelism_and_files(savepoint, tmp_path):
    """The max parallelism belongs to the state; a file that is missing or shorter is seen before anything runs."""
    code, answer, _ = plan(savepoint, tmp_path, "--parallelism", "200", "--max-parallelism", "256")
    assert code == 1
    by_uid = {operator["uid"]: operator for operator in answer["operators"]}
    assert "taken with max parallelism 128" in by_uid["sums"]["problem"]
    copy = tmp_path / "copy"
    shutil.copytree(savepoint, copy)
    segments = [file for file in files_below(copy) if file.name != "_metadata"]
    for segment in segments:
        segment.unlink()
    code, answer, _ = plan(copy, tmp_path, "--parallelism", "2")
    assert code == (1 if segments else 0)
    assert ("is missing" in answer["refusal"]) == bool(segments)


def test_a_plan_for_people(savepoint, tmp_path):
    """A table with a line per operator, and the verdict."""
    run = command("plan", "--from", savepoint, SCRIPT, "--", "--output", tmp_path)
    assert run.returncode == 0, run.stderr
    assert "would start from it" in run.stdout
    assert all(uid in run.stdout for uid in ("generator", "sums", "sink"))


def test_a_script_without_a_job_has_no_plan(savepoint, tmp_path):
    """One line behind what it prints, exit code 1."""
    script = tmp_path / "nothing.py"
    script.write_text("print('no job here')\n")
    run = command("plan", "--from", savepoint, script)
    line = f"snapline: {script} does not call execute(): there is no job to plan"
    assert (1, "", ["no job here", line]) == (run.returncode, run.stdout, run.stderr.splitlines())


@pytest.mark.s3
def test_a_plan_reaches_an_object_store_with_the_settings_of_the_script(savepoint, tmp_path, s3_server):
    """Nothing else knows where the store is: its snapshots are looked for when the script has run."""
    storage = open_storage(f"s3://{BUCKET}/planned", s3_server.configuration)
    for file in files_below(savepoint):
        storage.put(str(file.relative_to(savepoint)), file.read_bytes())
    script = tmp_path / "job.py"
    script.write_text(NOTED.format(settings=s3_server.configuration))
    run = command("plan", "--from", storage.url, script, "--", "--output", tmp_path / "out")
    assert run.returncode == 0, run.stderr
    assert "would start from it" in run.stdout
    run = command("plan", "--from", f"{storage.url}/nowhere", script, "--", "--output", tmp_path / "out", "--rows", "9")
    nothing = f"there is no checkpoint or savepoint in {storage.url}/nowhere: name a directory that holds _metadata"
    assert (run.returncode, run.stderr) == (1, f"snapline: {nothing}\n")


# --- snapshots that cannot be started from ----------------------------------------------------------------------------


def missing(copy: Path) -> None:
    shutil.rmtree(copy)


def truncated(copy: Path) -> None:
    data = (copy / "_metadata").read_bytes()
    (copy / "_metadata").write_bytes(data[:-7])


def empty(copy: Path) -> None:
    (copy / "_metadata").write_bytes(b"")


def flipped(copy: Path) -> None:
    data = bytearray((copy / "_metadata").read_bytes())
    data[len(data) // 2] ^= 0x10
    (copy / "_metadata").write_bytes(data)


def of_another_version(copy: Path) -> None:
    """As a later release would write it: with a header checksum that fits."""
    data = (copy / "_metadata").read_bytes()
    header = struct.pack(">I", 99) + data[16:56]
    (copy / "_metadata").write_bytes(data[:8] + struct.pack(">I", zlib.crc32(header)) + header + data[56:])


def something_else(copy: Path) -> None:
    (copy / "_metadata").write_text("these are not the bytes that you are looking for, however many there may be here")


def intact(copy: Path) -> None:
    pass


UNUSABLE = [
    (missing, "there is no checkpoint or savepoint in"),
    (truncated, "copy the snapshot again"),
    (empty, "ends after 0 bytes"),
    (flipped, "is damaged: its checksum does not fit"),
    (of_another_version, "has format version 99, this release reads 1"),
    (something_else, "is not the metadata of a checkpoint"),
]
"""Whatever the job is."""


@pytest.mark.parametrize(("damage", "line"), UNUSABLE, ids=lambda value: value.__name__ if callable(value) else None)
def test_a_plan_looks_at_the_snapshot_before_the_script_runs(savepoint, tmp_path, damage, line):
    """One line that names the culprit, exit code 1; nothing was done of all that a script may do before it executes its
    job."""
    copy = tmp_path / "copy"
    shutil.copytree(savepoint, copy)
    damage(copy)
    script = tmp_path / "job.py"
    script.write_text(NOTED.format(settings={}))
    run = command("plan", "--from", copy, script, "--", "--output", tmp_path / "out")
    assert run.returncode == 1
    assert run.stdout == ""
    assert len(run.stderr.splitlines()) == 1
    assert run.stderr.startswith("snapline: ")
    assert line in run.stderr
    assert str(copy) in run.stderr
    assert not script.with_suffix(".ran").exists()


@pytest.mark.parametrize(
    ("damage", "arguments", "line"),
    [
        *((damage, [], line) for damage, line in UNUSABLE),
        (intact, ["--uid", "others"], "holds state of 'sums'"),
        (intact, ["--parallelism", "200", "--max-parallelism", "256"], "taken with max parallelism 128"),
        (intact, ["--max-parallelism", "64"], "was taken with 128, which cannot change"),
    ],
    ids=lambda value: value.__name__ if callable(value) else None,
)
def test_what_cannot_be_started_from_is_refused_at_submission(cluster, savepoint, tmp_path, damage, arguments, line):
    """One line that names the culprit, exit code 1, no job, nothing written; the snapshot itself is as it was."""
    before = {file: file.read_bytes() for file in files_below(savepoint)}
    jobs = len(cluster.client.list_jobs())
    copy = tmp_path / "copy"
    shutil.copytree(savepoint, copy)
    damage(copy)
    run = command(
        "run",
        "--from-savepoint",
        copy,
        SCRIPT,
        "--",
        "--output",
        tmp_path / "out",
        "--rows",
        "9",
        *arguments,
        coordinator=cluster.address,
    )
    assert run.returncode == 1
    assert len(run.stderr.splitlines()) == 1
    assert run.stderr.startswith("snapline: ")
    assert line in run.stderr
    assert str(copy) in run.stderr
    assert len(cluster.client.list_jobs()) == jobs
    assert not (tmp_path / "out").exists() or not list(files_below(tmp_path / "out"))
    assert {file: file.read_bytes() for file in files_below(savepoint)} == before


def test_after_all_refusals_an_older_checkpoint_is_usable(cluster, tmp_path):
    """The job that could not start from a damaged savepoint goes on from its retained checkpoint."""
    output = tmp_path / "out"
    retain = {"execution__checkpointing__externalized_checkpoint_retention": "RETAIN_ON_CANCELLATION"}
    environment = build(cluster.environment(**retain), ["--output", str(output)])
    job_id = cluster.submit(environment, "retained")
    cluster.wait_for_checkpoints(job_id, 2)
    path = Path(cluster.client.trigger_savepoint(job_id, str(tmp_path / "savepoints")))
    cluster.cancel(job_id)
    truncated(path)
    run = command("run", "-s", path, SCRIPT, "--", "--output", output, coordinator=cluster.address)
    assert run.returncode == 1
    retained = cluster.client.list_checkpoints(job_id).latest_completed.path
    environment = build(cluster.environment(), ["--output", str(output)])
    environment.restore_from(retained)
    second = cluster.submit(environment, "goes on")
    cluster.wait_for_checkpoints(second, 2)
    cluster.client.stop_with_savepoint(second)
    assert cluster.status(second) is JobStatus.FINISHED
    assert_exactly_once(output)


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        (
            {
                "execution__checkpointing__mode": "AT_LEAST_ONCE",
                "execution__checkpointing__unaligned__enabled": "true",
            },
            "execution.checkpointing.unaligned.enabled needs execution.checkpointing.mode = EXACTLY_ONCE",
        ),
        (
            {
                "execution__checkpointing__max_concurrent_checkpoints": "2",
                "execution__checkpointing__unaligned__enabled": "true",
            },
            "execution.checkpointing.max-concurrent-checkpoints is 2",
        ),
    ],
)
def test_settings_that_contradict_each_other_are_refused_by_name(cluster, tmp_path, settings, line):
    """At submission, not when the JobMaster is built."""
    environment = build(cluster.environment(**settings), ["--output", str(tmp_path / "out")])
    with pytest.raises(RequestRefused, match=re.escape(line)):
        cluster.submit(environment, "contradiction")


# --- dispose ----------------------------------------------------------------------------------------------------------


def test_dispose_deletes_a_savepoint_and_nothing_else(savepoint, tmp_path):
    """All files of it; what somebody else put into its directory stays, and is named."""
    copy = tmp_path / "copy"
    shutil.copytree(savepoint, copy)
    run = command("savepoint", "dispose", copy)
    assert run.returncode == 0, run.stderr
    assert not copy.exists()
    shutil.copytree(savepoint, copy)
    (copy / "notes.txt").write_text("mine")
    run = command("savepoint", "dispose", copy / "_metadata", "-o", "json")
    assert json.loads(run.stdout)["kept"] == ["notes.txt"]
    assert [file.name for file in files_below(tmp_path)] == ["notes.txt"]


def test_dispose_refuses_what_is_no_savepoint(cluster, savepoint, tmp_path):
    """A directory without one, a damaged one, and a checkpoint, whose files others may share."""
    run = command("savepoint", "dispose", tmp_path)
    assert run.returncode == 1
    assert "there is no checkpoint or savepoint in" in run.stderr
    copy = tmp_path / "copy"
    shutil.copytree(savepoint, copy)
    flipped(copy)
    assert command("savepoint", "dispose", copy).returncode == 1
    retain = {"execution__checkpointing__externalized_checkpoint_retention": "RETAIN_ON_CANCELLATION"}
    environment = build(cluster.environment(**retain), ["--output", str(tmp_path / "out")])
    job_id = cluster.submit(environment, "with a checkpoint")
    cluster.wait_for_checkpoints(job_id, 1)
    cluster.cancel(job_id)
    checkpoint = cluster.client.list_checkpoints(job_id).latest_completed.path
    run = command("savepoint", "dispose", checkpoint)
    assert run.returncode == 1
    assert "is a checkpoint of job 'with a checkpoint', not a savepoint" in run.stderr
    assert list(files_below(Path(checkpoint.removeprefix("file://"))))


def test_savepoint_alone_triggers_one(cluster, tmp_path):
    """`snapline savepoint JOB DIRECTORY`, and `snapline stop` afterwards."""
    environment = build(cluster.environment(), ["--output", str(tmp_path / "out")])
    job_id = cluster.submit(environment, "by name")
    cluster.wait_for(job_id, JobStatus.RUNNING)
    run = command("savepoint", "by name", tmp_path / "savepoints", coordinator=cluster.address)
    assert run.returncode == 0, run.stderr
    assert (Path(run.stdout.strip()) / "_metadata").is_file()
    run = command("stop", "by name", "-p", tmp_path / "savepoints", "-o", "json", coordinator=cluster.address)
    assert run.returncode == 0, run.stderr
    assert (Path(json.loads(run.stdout)["path"]) / "_metadata").is_file()


def test_a_plan_tries_operators_of_the_engine_without_a_row(savepoint, tmp_path):
    """An aggregate that is new starts empty; one that is gone is refused by column, before anything runs."""
    code, answer, _ = plan(savepoint, tmp_path, "--smallest", "--only-counts")
    assert code == 1
    assert (
        "operator 'sums': column 'value': sum of it is in the snapshot and not in the job any more" in answer["refusal"]
    )
    by_uid = {operator["uid"]: operator["problem"] for operator in answer["operators"]}
    assert [uid for uid, problem in by_uid.items() if problem] == ["sums"]


def test_a_program_that_would_lose_what_came_before_is_refused_at_submission(cluster, savepoint, tmp_path):
    """In one line; the coordinator has not heard of the job."""
    arguments = ["--output", tmp_path / "out", "--only-counts"]
    run = command("run", "--from-savepoint", savepoint, SCRIPT, "--", *arguments, coordinator=cluster.address)
    assert run.returncode == 1
    assert "sum of it is in the snapshot" in run.stderr and str(savepoint) in run.stderr
    assert "savepoint job" not in {job.name for job in cluster.client.list_jobs()}
