"""The block of docs/security.md for spark-submit, executed on Spark's own cluster manager."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import uuid
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tests.e2e.conftest import Standalone
from tests.e2e.programs import ROOT, run
from tests.unit.docs.test_security_page import BLOCKS, BLOCKS_OF_THE_START

pytestmark = [pytest.mark.spark, pytest.mark.rare, pytest.mark.slow, pytest.mark.timeout(600)]

PATH = f"{Path(sys.executable).parent}:{os.environ['PATH']}"

JOB = """
import snapline as sl

env = sl.StreamExecutionEnvironment.get_execution_environment()
env.set_parallelism(2).enable_checkpointing(200)
numbers = env.from_collection([{"k": n % 7, "n": n} for n in range(2_000)], uid="numbers")
numbers.key_by("k").running_aggregate(uid="sums", total=sl.sum("n")).sink_to(sl.ParquetSink("out"), uid="sink")
print(env.execute("secure").status)
"""


@pytest.fixture
def pki(tmp_path: Path) -> Path:
    """What the first command of the page makes."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed: certificates cannot be made")
    subprocess.run(["bash", "-c", BLOCKS_OF_THE_START[0]], cwd=tmp_path, check=True, env={**os.environ, "PATH": PATH})
    return tmp_path / "pki"


@pytest.fixture
def cluster(tmp_path: Path, pki: Path) -> Iterator[Standalone]:
    """A master and a worker that ask for Spark's secret, on another machine as far as files go: where the driver has
    those of coordinators they have those of TaskManagers."""
    if os.geteuid() or shutil.which("unshare") is None:
        pytest.skip("who is not root has no file systems of their own")
    conf = tmp_path / "conf"
    conf.mkdir()
    settings = f"spark.authenticate true\nspark.authenticate.secret {uuid.uuid4().hex}\n"
    (conf / "spark-defaults.conf").write_text(settings)
    (tmp_path / "etc").mkdir()
    elsewhere = f'mount --bind {pki / "taskmanager"} {tmp_path / "etc"} && exec "$@"'
    inside = ("unshare", "--mount", "bash", "-c", elsewhere, "elsewhere")
    bare = Standalone(uuid.uuid4().hex, tmp_path, settings={"SPARK_CONF_DIR": str(conf)}, inside=inside)
    with bare.started("master.Master", "master", r"spark://127\.0\.0\.1:\d+", "--port", "0") as (_, master):
        ready = replace(bare, master=master)
        with ready.worker("worker"):
            yield ready


def test_the_block_for_spark_submit_runs_a_job(cluster: Standalone, tmp_path: Path) -> None:
    """As it stands, but that /etc/snapline lies in a directory of the test, nobody becomes another user, and the master
    is another one."""
    (block,) = (block for block in BLOCKS if any("spark_submit.sh" in line for line in block))
    (tmp_path / "deploy").symlink_to(ROOT / "deploy")
    (tmp_path / "job.py").write_text(JOB)
    steps = "\n".join(["set -e", *(line.removeprefix("$ ").removeprefix("sudo ") for line in block)])
    for word, instead in (
        ("/etc/snapline", str(tmp_path / "etc")),
        ("-o spark ", ""),
        ("spark://host:7077", cluster.master),
    ):
        assert word in steps
        steps = steps.replace(word, instead)
    done = run(
        ["bash", "-c", steps],
        cwd=tmp_path,
        timeout=500,
        PATH=PATH,
        PYTHONPATH=str(ROOT),
        SPARK_LOCAL_IP="127.0.0.1",
        SPARK_LOCAL_DIRS=str(tmp_path),
        EXECUTORS="2",
        CORES="1",
        MEMORY="512m",
        SPARK_CONF_DIR=cluster.settings["SPARK_CONF_DIR"],
    )
    assert (0, "FINISHED\n") == (done.code, done.printed), done.err
    assert 2_000 == pq.read_table(tmp_path / "out").num_rows
