"""What the end-to-end tests share: flights, few enough to be quick, and a standalone Spark cluster on loopback."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pyspark
import pytest

from examples.demo import FLIGHTS
from tests.e2e.kill_matrix import some_flights
from tests.e2e.programs import PATIENCE_SECONDS, environment

ROWS = 40_000


@pytest.fixture(scope="session")
def flights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The first flights of the year."""
    if not FLIGHTS.exists():
        pytest.fail(f"{FLIGHTS} is not there: make data")
    return some_flights(ROWS, tmp_path_factory.mktemp("flights") / "flights.parquet")


@dataclass(frozen=True)
class Standalone:
    """A master and a worker."""

    master: str
    """spark://host:port."""
    mark: str
    """In the environment of everything that the worker starts."""


@pytest.fixture(scope="module")
def standalone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standalone]:
    """Spark's own cluster manager, from the PySpark that pip has installed."""
    directory = tmp_path_factory.mktemp("standalone")
    mark = uuid.uuid4().hex
    spark_class = Path(pyspark.__file__).parent / "bin" / "spark-class"
    settings = environment(
        mark, SPARK_LOCAL_IP="127.0.0.1", SPARK_LOCAL_DIRS=str(directory), PYTHONPATH=os.pathsep.join(sys.path)
    )

    def start(name: str, *arguments: str) -> subprocess.Popen[bytes]:
        with (directory / f"{name}.log").open("wb") as log:
            command = [str(spark_class), f"org.apache.spark.deploy.{name}", "--host", "127.0.0.1", *arguments]
            return subprocess.Popen(command, env=settings, stdout=log, stderr=log, cwd=directory)

    def wait_for(name: str, pattern: str) -> str:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while time.monotonic() < deadline:
            found = re.search(pattern, (directory / f"{name}.log").read_text())
            if found:
                return found[0]
            time.sleep(0.1)
        raise AssertionError(f"{name} does not start: {(directory / f'{name}.log').read_text()[-2000:]}")

    processes = [start("master.Master", "--port", "0", "--webui-port", "0")]
    try:
        master = wait_for("master.Master", r"spark://127\.0\.0\.1:\d+")
        resources = ("--cores", "2", "--memory", "2g", "--work-dir", str(directory / "work"), "--webui-port", "0")
        processes.append(start("worker.Worker", *resources, master))
        wait_for("worker.Worker", "Successfully registered with master")
        yield Standalone(master, mark)
    finally:
        for process in reversed(processes):
            process.terminate()
        for process in processes:
            process.wait(30)
