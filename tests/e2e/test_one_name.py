"""Jobs with Snapline from a wheel, in a Python that knows nothing of the repository: `snapline` is all that there is of
ours."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pyspark
import pytest

from tests.e2e.programs import run
from tests.services.packages import Packages, build, install, virtualenv

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(600)]
SPARK_SUBMIT = Path(pyspark.__file__).parent / "bin" / "spark-submit"
THEIRS = ("coordinator", "dataflow", "protos", "runtime", "taskmanager")

OWN_PACKAGES = """
import pyarrow as pa, pyarrow.parquet as pq
import coordinator, dataflow, protos, runtime, taskmanager
from protos.checkpoint_pb2 import Checkpoint
from runtime.numbers import runtime as one_more
import snapline as sl

def written(batch):
    from google.protobuf import descriptor_pool
    assert descriptor_pool.Default().FindFileByName("protos/checkpoint.proto").package == "snapline.v1"
    messages = [Checkpoint(n=one_more(n)).SerializeToString() for n in batch.column("n").to_pylist()]
    return pa.record_batch({"message": messages, "whose": [dataflow.WHOSE + taskmanager.WHOSE] * len(messages)})

env = sl.StreamExecutionEnvironment.get_execution_environment()
env.set_parallelism(2)
stream = env.from_collection([{"n": n} for n in range(10)])
stream.map_batches(written, uid="written").sink_to(sl.ParquetSink("out"), uid="sink")
print(env.execute("own packages").status, coordinator.WHOSE, protos.WHOSE, runtime.WHOSE)
print(sorted(Checkpoint.FromString(message).n for message in pq.read_table("out").column("message").to_pylist()))
"""
"""With code that protoc has generated from a file of a name and a package that Snapline has, too."""

NAMES_ON_AN_EXECUTOR = """
import pyarrow as pa
import snapline as sl

def names(batch):
    import importlib, snapline
    found = []
    for name in ("connectors", "coordinator", "dataflow", "protos", "runtime", "taskmanager", "snapline"):
        try:
            found.append(importlib.import_module(name).__name__)
        except ImportError:
            pass
    return pa.record_batch({"found": [",".join(found)], "file": [snapline.__file__]})

env = sl.StreamExecutionEnvironment.get_execution_environment()
env.set_parallelism(1)
env.from_collection([{"n": 1}]).map_batches(names, uid="names").sink_to(sl.ParquetSink("out"), uid="sink")
print(env.execute("names").status)
"""


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Packages:
    return build(tmp_path_factory.mktemp("packages"))


@pytest.fixture(scope="module")
def installed(packages: Packages, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Python with the wheel that was built from the source archive."""
    python = virtualenv(tmp_path_factory.mktemp("venv"))
    install(python, packages.wheel_of_archive)
    return python


def own_packages(directory: Path) -> Path:
    """A job beside packages with the names that Snapline's rooms had in Python."""
    directory.mkdir()
    for name in THEIRS:
        (directory / name).mkdir()
        (directory / name / "__init__.py").write_text("WHOSE = 'mine'\n")
    (directory / "runtime" / "numbers.py").write_text("def runtime(n):\n    return n + 1\n")
    (directory / "protos" / "checkpoint.proto").write_text(
        'syntax = "proto3";\npackage snapline.v1;\nmessage Checkpoint { int64 n = 1; }\n'
    )
    command = [sys.executable, "-m", "grpc_tools.protoc", "-I.", "--python_out=.", "protos/checkpoint.proto"]
    subprocess.run(command, cwd=directory, check=True)
    (directory / "job.py").write_text(OWN_PACKAGES)
    return directory


@pytest.mark.parametrize("master", ["local[*]", pytest.param("local-cluster[2,1,1024]", marks=pytest.mark.rare)])
def test_a_job_beside_packages_of_its_own_with_the_names_of_our_rooms(installed, tmp_path, master):
    """Driver and executors use both, theirs and ours, and protobuf's default pool has theirs."""
    job = own_packages(tmp_path / "job")
    done = run(
        [installed, job / "job.py"],
        cwd=tmp_path,
        MASTER=master,
        PYSPARK_PYTHON=str(installed),
        PYTHONPATH=str(job),
    )
    assert (0, [], "FINISHED mine mine mine\n[1, 2, 3, 4, 5, 6, 7, 8, 9, 10]\n") == (done.code, done.errors, done.out)
    assert {"minemine"} == set(pq.read_table(tmp_path / "out").column("whose").to_pylist())


@pytest.mark.rare
def test_py_files_bring_snapline_and_no_other_name(packages, tmp_path):
    """The wheel as a zip, to executors whose Python has the dependencies only; none of the rooms can be imported
    there."""
    bare = virtualenv(tmp_path / "venv")
    archive = shutil.copy(packages.wheel, tmp_path / "snapline.zip")
    (tmp_path / "job.py").write_text(NAMES_ON_AN_EXECUTOR)
    submit = [SPARK_SUBMIT, "--master", "local-cluster[1,1,1024]", "--py-files", archive, tmp_path / "job.py"]
    done = run(
        submit,
        cwd=tmp_path,
        SPARK_LOCAL_DIRS=str(tmp_path),
        SPARK_LOCAL_IP="127.0.0.1",
        PYSPARK_PYTHON=str(bare),
        PYSPARK_DRIVER_PYTHON=str(bare),
        PYTHONPATH="",
    )
    assert (0, "FINISHED\n") == (done.code, done.printed), done.err
    (row,) = pq.read_table(tmp_path / "out").to_pylist()
    assert ("snapline", f"snapline.zip{os.sep}snapline") == (row["found"], str(Path(*Path(row["file"]).parts[-3:-1])))
