"""What the end-to-end tests share: flights, few enough to be quick, and a standalone Spark cluster on loopback."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
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

    mark: str
    """In the environment of everything that workers start."""
    directory: Path
    master: str = ""
    """spark://host:port."""
    settings: Mapping[str, str] = field(default_factory=dict)
    """More of the environment of both."""
    inside: Sequence[str] = ()
    """A command that runs both."""

    @contextmanager
    def started(
        self, program: str, name: str, says: str, *arguments: str, host: str = "127.0.0.1"
    ) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
        """A process of Spark's, and what it has said of itself."""
        spark_class = Path(pyspark.__file__).parent / "bin" / "spark-class"
        command = [
            *self.inside,
            str(spark_class),
            f"org.apache.spark.deploy.{program}",
            "--host",
            host,
            "--webui-port",
            "0",
        ]
        paths = {"SPARK_LOCAL_DIRS": str(self.directory), "PYTHONPATH": os.pathsep.join(sys.path)}
        settings = environment(self.mark, SPARK_LOCAL_IP="127.0.0.1", **paths, **self.settings)
        written = self.directory / f"{name}.log"
        with written.open("wb") as log:
            process = subprocess.Popen([*command, *arguments], env=settings, stdout=log, stderr=log, cwd=self.directory)
        try:
            deadline = time.monotonic() + PATIENCE_SECONDS
            while not (found := re.search(says, written.read_text())):
                assert time.monotonic() < deadline, f"{name} does not start: {written.read_text()[-2000:]}"
                time.sleep(0.1)
            yield process, found[0]
        finally:
            process.terminate()
            process.wait(30)

    @contextmanager
    def worker(self, name: str, host: str = "127.0.0.1") -> Iterator[subprocess.Popen[bytes]]:
        """One more, of two cores and 2 GiB. On another address of the machine it is on another host, for Spark."""
        resources = ("--cores", "2", "--memory", "2g", "--work-dir", str(self.directory / name))
        says = "Successfully registered with master"
        with self.started("worker.Worker", name, says, *resources, self.master, host=host) as (process, _):
            yield process


@pytest.fixture(scope="module")
def standalone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standalone]:
    """Spark's own cluster manager, from the PySpark that pip has installed."""
    bare = Standalone(uuid.uuid4().hex, tmp_path_factory.mktemp("standalone"))
    with bare.started("master.Master", "master", r"spark://127\.0\.0\.1:\d+", "--port", "0") as (_, master):
        ready = replace(bare, master=master)
        with ready.worker("worker"):
            yield ready
