"""The Connect server of PySpark's wheel as a process on loopback.

    with connect_server(tmp_path) as remote:
        run(program, SPARK_REMOTE=remote)

It is up when the block begins; executors, and everything else that it has started, are gone with it.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyspark

from snapline.spark.java import ensure_java
from tests.services import SPARK_CONF
from tests.services.cluster import wait_until

CLASS = "org.apache.spark.sql.connect.service.SparkConnectServer"
STARTED = re.compile(r"Spark Connect server started at: .*?:(\d+)")
START_SECONDS = 180.0
LOGS = """rootLogger.level = warn
rootLogger.appenderRef.stderr.ref = stderr
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = %m%n
logger.connect.name = org.apache.spark.sql.connect.service.SparkConnectServer
logger.connect.level = info
"""
"""The port that it has chosen is said at this level."""


@contextmanager
def connect_server(directory: Path, master: str = "local[4]", **conf: str) -> Iterator[str]:
    """Start it, and give what SPARK_REMOTE takes. `conf`: settings of Spark, with underscores for dots."""
    environ = {**os.environ, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    environ |= {"SPARK_CONF_DIR": str(SPARK_CONF), "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    environ.pop("SPARK_REMOTE", None)
    ensure_java(environ)
    logs = directory / "log4j2.properties"
    logs.write_text(LOGS)
    settings = {
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": "0",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={logs.as_uri()}",
        "spark.local.dir": str(directory),
        "spark.sql.warehouse.dir": str(directory / "warehouse"),
        "spark.ui.enabled": "false",
        "spark.python.daemon.module": "snapline.spark.daemon",
        **{key.replace("_", "."): value for key, value in conf.items()},
    }
    command = [str(Path(pyspark.__file__).parent / "bin" / "spark-submit"), "--master", master, "--class", CLASS]
    for key, value in settings.items():
        command += ["--conf", f"{key}={value}"]
    written = directory / "connect-server.log"
    with written.open("wb") as log:
        process = subprocess.Popen([*command, "spark-internal"], env=environ, stdout=log, stderr=log, cwd=directory)
    try:
        wait_until(
            lambda: STARTED.search(written.read_text()) is not None or process.poll() is not None,
            "the Connect server to start",
            START_SECONDS,
            progress=lambda: written.stat().st_size,
        )
        found = STARTED.search(written.read_text())
        assert found is not None, written.read_text()[-2000:]
        yield f"sc://127.0.0.1:{found[1]}"
    finally:
        process.terminate()
        process.wait(60)
