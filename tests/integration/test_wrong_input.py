"""What a user gets wrong: one clear line that names the culprit and the way out, exit code 1, nothing lost or half
written."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from snapline.coordinator.coordinator_process import CoordinatorProcess
from tests.services.cluster import LocalCluster

ROOT = Path(__file__).resolve().parents[2]
JOB = ROOT / "tests" / "integration" / "wrong_job.py"


@pytest.fixture(scope="module")
def numbers(tmp_path_factory):
    """Rows 0 to 4999 in row groups of a thousand."""
    path = tmp_path_factory.mktemp("numbers") / "numbers.parquet"
    table = pa.table({"n": range(5000), "word": [f"word {n % 7}" for n in range(5000)]})
    pq.write_table(table, path, row_group_size=1000)
    return path


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    with LocalCluster(tmp_path_factory.mktemp("cluster"), slots=(1,)) as cluster:
        yield cluster


def run(*arguments: str | Path, cwd: Path, coordinator: str = "", **extra: str) -> subprocess.CompletedProcess[str]:
    """A user's script, against a coordinator or else for an embedded one."""
    variables = {name: value for name, value in os.environ.items() if not name.startswith("SNAPLINE_")}
    if coordinator:
        variables["SNAPLINE_CONF_jobmanager__rpc__address"] = coordinator
    return subprocess.run(
        [sys.executable, *map(str, arguments)],
        capture_output=True,
        text=True,
        cwd=cwd,
        env={**variables, **extra},
        timeout=100,
        check=False,
    )


def not_news(done: subprocess.CompletedProcess[str]) -> list[str]:
    """What standard error has besides the status of the job."""
    return [
        line
        for line in done.stderr.splitlines()
        if not line.startswith(("snapline: job 'wrong' RUNNING", "snapline: job 'wrong': waiting"))
    ]


def one_line(done: subprocess.CompletedProcess[str]) -> str:
    """The only line on standard error; exit code 1."""
    assert done.returncode == 1, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    (line,) = done.stderr.splitlines()
    assert line.startswith("snapline: ")
    return line


@pytest.mark.parametrize(
    ("case", "said"),
    [
        ("source column", ["'wrod'", "n, word"]),
        ("key column", ["'wrod'", "n, word"]),
        ("value column", ["'m'", "n, word"]),
        ("value type", ["'word'", "string"]),
        ("time type", ["'word'", "string"]),
        ("no uid", ["running_aggregate", "uid='...'"]),
        ("pickle", ["'locked'", "cannot be pickled", "open()"]),
        ("setting", ["execution.checkpointing.intervall", "did you mean", "execution.checkpointing.interval"]),
    ],
)
def test_what_is_wrong_with_a_job_is_said_before_anything_runs(numbers, tmp_path, case, said):
    """By name, with what there is instead; not even Spark was started."""
    line = one_line(run(JOB, case, numbers, tmp_path / "out", cwd=tmp_path))
    assert all(part in line for part in said), line
    assert list((tmp_path / "out").glob("**/*")) == []


def test_a_missing_or_unreadable_input_is_named(tmp_path):
    """The path, and what is the matter with it."""
    assert str(tmp_path / "none.parquet") in one_line(run(JOB, "", tmp_path / "none.parquet", "out", cwd=tmp_path))
    broken = tmp_path / "broken.parquet"
    broken.write_bytes(b"PAR1 this is not Parquet PAR1")
    line = one_line(run(JOB, "", broken, "out", cwd=tmp_path))
    assert str(broken) in line and "Parquet" in line


def test_a_checkpoint_path_that_cannot_be_written_is_named(numbers, cluster, tmp_path):
    """Before the job runs; a relative path is one of the directory where the program was started."""
    (tmp_path / "taken").write_text("")
    extra = {"SNAPLINE_CONF_execution__checkpointing__dir": "taken/below"}
    line = one_line(run(JOB, "", numbers, "out", cwd=tmp_path, coordinator=cluster.address, **extra))
    assert str(tmp_path / "taken") in line
    assert list((tmp_path / "out").glob("*.parquet")) == []


def test_no_place_for_checkpoints_is_said_at_submission(numbers, tmp_path):
    """Neither the job nor the coordinator names one. With the job's own, it runs, and its checkpoints go there."""
    coordinator = CoordinatorProcess.start(log_to=tmp_path / "log")
    try:
        line = one_line(run(JOB, "", numbers, "out", cwd=tmp_path, coordinator=coordinator.address))
        assert "no place for checkpoints" in line and "execution.checkpointing.dir" in line
    finally:
        coordinator.stop()
    with LocalCluster(tmp_path, slots=(1,), settings={"execution.checkpointing.dir": ""}) as cluster:
        environment = cluster.environment(1, execution__checkpointing__dir=str(tmp_path / "own"))
        stream = environment.from_source(_generator(), uid="source")
        stream.sink_to(_nowhere(), uid="sink")
        job_id = cluster.submit(environment, "own directory")
        cluster.wait_for_checkpoints(job_id, 1)
        assert list((tmp_path / "own").glob(f"{job_id}/chk-*/_metadata"))


def test_no_pyspark_says_what_to_install(numbers, tmp_path):
    """A client without PySpark can still do everything else."""
    (tmp_path / "job.py").write_text(f"import sys\nsys.modules['pyspark'] = None\nsys.path.insert(0, {str(ROOT)!r})\n"
                                     f"exec(open({str(JOB)!r}).read())\n")  # fmt: skip
    line = one_line(run(tmp_path / "job.py", "", numbers, "out", cwd=tmp_path))
    assert "PySpark is not installed" in line and "pip install 'snapline[spark]'" in line


def test_a_port_in_use_is_named(cluster, tmp_path):
    """The address that was wanted."""
    done = run("-m", "snapline.cli", "coordinator", "--bind", cluster.address, cwd=tmp_path)
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert cluster.address in line and "in use" in line


def test_an_exception_of_a_user_function_comes_with_its_place(numbers, cluster, tmp_path):
    """The user's own frames and no others, the operator's uid, and the batch; committed output stays as it was."""
    first = run(JOB, "", numbers, tmp_path / "out", cwd=tmp_path, coordinator=cluster.address)
    assert first.returncode == 0
    assert first.stderr.splitlines()[-1].startswith("snapline: job 'wrong' FINISHED in ")
    before = pq.read_table(tmp_path / "out").num_rows
    done = run(JOB, "exception", numbers, tmp_path / "out", cwd=tmp_path, coordinator=cluster.address)
    assert done.returncode == 1
    lines = not_news(done)
    assert "operator 'divide' (uid 'divide')" in lines[0] and "ZeroDivisionError" in lines[0]
    assert "batch" in lines[0] and "rows" in lines[0]
    assert lines[1] == "Traceback of the user's code (most recent call last):"
    assert "in divide" in done.stderr and "taskmanager/" not in done.stderr
    assert pq.read_table(tmp_path / "out").num_rows == before == 5000
    assert list((tmp_path / "out").glob("_staging/*/*")) == []


def test_a_row_function_that_fails_names_the_row(numbers, cluster, tmp_path):
    """Within its batch."""
    done = run(JOB, "row exception", numbers, tmp_path / "out", cwd=tmp_path, coordinator=cluster.address)
    assert done.returncode == 1
    line = not_news(done)[0]
    assert "'to-number'" in line and "invalid literal for int() with base 10: 'word 0'" in line and "row 0" in line


@pytest.mark.parametrize("kind", ["format", "damaged", "other job", "nothing"])
def test_a_checkpoint_that_a_job_cannot_start_from_is_refused(numbers, cluster, tmp_path, kind):
    """Of another format or version, damaged, of another job, or not there; the snapshot itself is not touched."""
    source = tmp_path / "snapshot"
    endless = cluster.environment(1)
    stream = endless.from_source(_generator(), uid="other-source").key_by("key")
    stream.running_aggregate(uid="other-sums", total=_sum()).sink_to(_nowhere(), uid="other-sink")
    job_id = cluster.submit(endless, "other job")
    cluster.wait_for_checkpoints(job_id, 1)
    path = Path(cluster.client.stop_with_savepoint(job_id, str(source)).removeprefix("file://"))
    metadata = path / "_metadata"
    if kind == "format":
        metadata.write_bytes(b"this is somebody else's file")
    elif kind == "damaged":
        content = bytearray(metadata.read_bytes())
        content[len(content) // 2] ^= 0xFF
        metadata.write_bytes(content)
    elif kind == "nothing":
        metadata.unlink()
    before = {file: file.read_bytes() for file in source.rglob("*") if file.is_file()}
    extra = {"SNAPLINE_RESTORE_FROM": str(path)}
    done = run(JOB, "", numbers, "out", cwd=tmp_path, coordinator=cluster.address, **extra)
    line = one_line(done)
    assert str(path) in line, line
    if kind == "other job":
        assert "other-sums" in line and "--allow-non-restored-state" in line
    assert {file: file.read_bytes() for file in source.rglob("*") if file.is_file()} == before
    assert list((tmp_path / "out").glob("*.parquet")) == []


def _generator():
    from snapline.connectors.builtin.generator import GeneratorSource

    return GeneratorSource(keys=5, splits=1, rows_per_second=1000)


def _sum():
    import snapline as sl

    return sl.sum("value")


def _nowhere():
    from snapline.connectors.builtin.sinks import DiscardingSink

    return DiscardingSink()
