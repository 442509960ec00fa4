"""The Java of tests: one that starts Spark in half the CPU time, because it reads Spark's classes from an archive.

Java has the classes of an earlier run, parsed and verified, in a file (class data sharing). Here that run is a small
program on Spark; `make test` has it written once, into the virtualenv. Java itself checks that the archive is of this
Java and of these jars, in this order, and goes without it if not. An archive allows no directory with files on the
class path, and Spark's directory of configuration is the first thing on it: so that directory is empty, and options
stand in a script `bin/java` before Snapline's own.
"""

from __future__ import annotations

import hashlib
import os
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

from snapline.spark.java import SHIM_MARK, ensure_java
from tests.services import SPARK_CONF

OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""A Java that lives for seconds spends more on its best compiler, and on the threads of its collector, than they
bring."""
QUIET = "-Xlog:disable -Xlog:all=error:stderr"
"""What Java says when it goes without the archive is no matter of the program that it runs."""
DIRECTORY = SPARK_CONF.parent

PROGRAM = """
import sys
from pyspark.sql import SparkSession

spark = SparkSession.builder.master("local[2]").config("spark.sql.shuffle.partitions", "1").getOrCreate()
frame = spark.createDataFrame([(1, "a"), (2, "b")], "n long, s string")
frame.groupBy("s").count().write.parquet(sys.argv[1])
frame.createOrReplaceTempView("rows")
assert spark.read.parquet(sys.argv[1]).join(frame, "s").count() == 2
assert spark.sql("select sum(n), max(s) from rows where n > 0").collect()[0][0] == 3
assert spark.sparkContext.parallelize(range(4), 2).barrier().mapPartitions(list).sum() == 6
for name in ("executor.CoarseGrainedExecutorBackend", "deploy.master.Master", "deploy.worker.Worker"):
    spark._jvm.java.lang.Class.forName("org.apache.spark." + name)
spark.stop()
"""
"""What Spark does in most tests."""


def ensure_quick_java() -> None:
    """Let JAVA_HOME, for everything that this process starts, name a Java that starts fast."""
    home = ensure_java()
    if home.path.parent == DIRECTORY:
        return
    SPARK_CONF.mkdir(parents=True, exist_ok=True)
    archive = _archive(home.java)
    shared = f" {QUIET} -XX:SharedArchiveFile={shlex.quote(str(archive))}" if archive.is_file() else ""
    quick = DIRECTORY / f"{archive.stem}{'-shared' if shared else ''}"
    _write_script(quick, home.version, home.java, OPTIONS + shared)
    os.environ["JAVA_HOME"] = str(quick)


def write_archive() -> None:
    """Run the program and let its Java write the archive at its end, if there is none of this Java and this Spark. A
    Java that writes none, as one without an archive of its own classes, is asked once."""
    home = ensure_java()
    archive = _archive(home.java)
    asked_before = archive.with_suffix(".none")
    if archive.is_file() or asked_before.is_file():
        return
    SPARK_CONF.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=DIRECTORY) as directory:
        written = Path(directory, "classes.jsa")
        options = f"{OPTIONS} -XX:ArchiveClassesAtExit={shlex.quote(str(written))}"
        _write_script(Path(directory), home.version, home.java, options, only="org.apache.spark.deploy.SparkSubmit")
        environment = {**os.environ, "JAVA_HOME": directory, "SPARK_CONF_DIR": str(SPARK_CONF)}
        environment |= {"SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable}
        command = [sys.executable, "-c", PROGRAM, str(Path(directory, "rows"))]
        # Java holds the other end of both streams until it has written: `run` returns when it has ended
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=300)
        if done.returncode == 0 and written.is_file():
            written.replace(archive)
        else:
            asked_before.write_text(done.stderr)
            print(f"Java {home.version} writes no archive of Spark's classes: tests take longer.", file=sys.stderr)


def _archive(java: Path) -> Path:
    """The file for this Java and this Spark."""
    import pyspark

    which = f"{java.read_text(errors='replace')}{pyspark.__file__}{pyspark.__version__}{PROGRAM}{OPTIONS}"
    return DIRECTORY / f"{hashlib.sha256(which.encode()).hexdigest()[:12]}.jsa"


def _write_script(home: Path, version: int, java: Path, options: str, *, only: str = "") -> None:
    """A `bin/java` that has these options first; `only` for a class with this name. Snapline takes it for its own."""
    script = home / "bin" / "java"
    text = (
        f"#!/bin/sh\n{SHIM_MARK}\n# version {version}\n"
        f'case " $* " in *" {only}"*) set -- {options} "$@" ;; esac\n'
        f'exec {shlex.quote(str(java))} "$@"\n'
    )
    script.parent.mkdir(parents=True, exist_ok=True)
    fresh = script.with_name(f"java.{os.getpid()}")
    fresh.write_text(text)
    fresh.chmod(0o755)
    fresh.replace(script)


if __name__ == "__main__":
    write_archive()
