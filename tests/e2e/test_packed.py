"""Executors with nothing but Python: Snapline comes in the archive of `snapline pack`, the job brings the rest."""

from __future__ import annotations

import shlex
import zipfile
from pathlib import Path

import pyspark
import pytest

from tests.e2e.programs import ROOT, Ended, python, run, snapline
from tests.unit.snapline.test_job_files import wheel

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(600)]
SPARK_BIN = Path(pyspark.__file__).parent / "bin"
JOB = """
import importlib.util, sys
sys.path.insert(0, sys.argv[1])  # of the driver alone
import snapline as sl

PACKED = sys.argv[2]

env = sl.StreamExecutionEnvironment.get_execution_environment().set_parallelism(1)
env.add_file("factor.txt").add_archive("model.zip", "model").add_requirements("requirements.txt")

def computed(row):
    import rates_of_a_test, pyarrow
    assert all(PACKED in package.__file__ for package in (pyarrow, sl))
    assert not PACKED or importlib.util.find_spec("pytest") is None
    weight = (sl.job_file("model") / "one.txt").read_text()
    return {"n": row["n"] * int(sl.job_file("factor.txt").read_text()) + int(weight) + rates_of_a_test.RATE}

rows = env.from_collection([{"n": 1}, {"n": 2}]).map(computed).execute_and_collect()
print(sorted(row["n"] for row in rows))
"""


@pytest.fixture
def job(tmp_path):
    """A job, and what it brings."""
    (tmp_path / "factor.txt").write_text("10")
    with zipfile.ZipFile(tmp_path / "model.zip", "w") as archive:
        archive.writestr("one.txt", "100")
    (tmp_path / "requirements.txt").write_text(f"--no-index\n{wheel(tmp_path)}\n")
    (tmp_path / "job.py").write_text(JOB)
    return tmp_path


def submitted(job: Path, *arguments: str, packed: str = "") -> Ended:
    """Run it on executors in processes of their own."""
    return run(
        [SPARK_BIN / "spark-submit", "--master", "local-cluster[1,1,1024]", *arguments, "job.py", ROOT, packed],
        cwd=job,
        PYTHONPATH="" if packed else str(ROOT),
        SPARK_LOCAL_IP="127.0.0.1",
        XDG_CACHE_HOME=str(job / "cache"),
    )


@pytest.mark.rare
def test_what_a_job_brings_is_on_its_executors(job):
    """A file, an archive and packages that pip has installed."""
    done = submitted(job)
    assert (0, "[117, 127]\n") == (done.code, done.printed), done.printed


@pytest.mark.rare
def test_executors_with_nothing_but_python_run_a_packed_job(job):
    """By the line that is printed, with a Python without any package; it takes a minute to pack, send and unpack."""
    run(python("-m", "venv", "--without-pip", "bare"), cwd=job)
    packed = run(snapline("pack", "--python", job / "bare" / "bin" / "python"), cwd=job)
    assert packed.code == 0, packed.err
    program, *arguments, script = shlex.split(packed.out)
    assert (program, script) == ("spark-submit", "job.py")

    done = submitted(job, *arguments, packed="/environment/lib/")

    assert (0, "[117, 127]\n") == (done.code, done.printed), done.err
