"""Rules for every test: a Java for those that start Spark, and nothing may be left behind.

A test fails when, after all its fixtures are down, it leaves a non-daemon thread, a child process or a running pykka
actor that was not there before. Fixtures of a wider scope are up before the count and do not matter. A test that must
leave something says so: `@pytest.mark.leaks("why")`.
"""

from __future__ import annotations

import gc
import os
import sys
import threading
import time
from collections.abc import Generator, Iterator
from pathlib import Path

import pykka
import pytest
from hypothesis import settings

from tests.services import SPARK_CONF
from tests.services.s3 import S3Server, start_s3
from tests.services.zookeeper import ZooKeeperEnsemble, start_ensemble

GRACE_SECONDS = 3.0
LONG = {"e2e", "golden", "simulation"}
"""Folders whose tests take tens of seconds each."""
WAITING = {"integration", "contract", "kafka", "external"}
"""Folders whose tests take seconds, half of which they wait for processes and servers."""
LAST_START = 0.8
"""The part of the other files that has begun when the last file of WAITING begins; the rest takes as long as it may."""

# Property tests: the same examples in every run, and no timing (the first example may compile a kernel).
settings.register_profile("snapline", deadline=None, derandomize=True, database=None)
settings.load_profile("snapline")

gc.set_threshold(50_000, 20, 20)  # Python's own 700 takes a tenth of the time of what makes many small objects


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Before the first test that starts Java: say which Java and which Python, and stay on the loopback device."""
    if any(item.get_closest_marker(name) for item in items for name in ("spark", "zookeeper")):
        from tests.services.spark_java import ensure_quick_java

        ensure_quick_java()
        os.environ.pop("SPARK_HOME", None)  # the tests are about the installed PySpark
        os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
        os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
        os.environ["SPARK_CONF_DIR"] = str(SPARK_CONF)
    for item in items:  # servers are up before anything counts what a test leaves behind
        for marker, fixture in (("s3", "s3_server"), ("zookeeper", "zookeeper_ensemble")):
            if item.get_closest_marker(marker) and isinstance(item, pytest.Function):
                item.fixturenames.insert(0, fixture)
    _order_files(items)


def _order_files(items: list[pytest.Item]) -> None:
    """Let long files come first, because one that comes last is waited for by workers that have nothing else to do.
    Those that wait come between those that compute, because workers that all wait leave the processors idle."""
    paths = list(dict.fromkeys(item.path for item in items))
    places = {path: -1.0 for path in paths if LONG.intersection(path.parts)}
    waiting = [path for path in paths if path not in places and WAITING.intersection(path.parts)]
    places |= {path: LAST_START * number / len(waiting) for number, path in enumerate(waiting)}
    others = [path for path in paths if path not in places]
    places |= {path: number / len(others) for number, path in enumerate(others)}
    items.sort(key=lambda item: places[item.path])


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A test that failed with a cluster of processes shows the ends of their logs."""
    report = yield
    logs = getattr(getattr(item, "funcargs", {}).get("cluster"), "logs", None)
    if report.failed and callable(logs):
        report.sections.append(("The cluster's logs", logs()))
    return report


@pytest.fixture(scope="session")
def s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """One S3 server for all tests of the session."""
    server = start_s3(tmp_path_factory.mktemp("s3"))
    yield server
    server.stop()


@pytest.fixture(scope="session")
def zookeeper_ensemble(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeperEnsemble]:
    """Three servers for all tests of the session."""
    ensemble = start_ensemble(tmp_path_factory.mktemp("zookeeper"))
    yield ensemble
    ensemble.stop()


@pytest.fixture(autouse=True)
def nothing_left_behind(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fail the test that leaks, not the one that happens to run after it."""
    threads_before = set(threading.enumerate())
    children_before = set(_children())
    actors_before = {ref.actor_urn for ref in pykka.ActorRegistry.get_all()}
    yield
    if request.node.get_closest_marker("leaks"):
        return
    with_spark = request.node.get_closest_marker("spark") is not None
    deadline = time.monotonic() + GRACE_SECONDS
    while left := _left(threads_before, children_before, actors_before, with_spark=with_spark):
        if time.monotonic() > deadline:
            pytest.fail(f"left behind: {'; '.join(left)}", pytrace=False)
        time.sleep(0.02)  # something is about to end; a clean test never comes here


def _left(threads: set[threading.Thread], children: set[int], actors: set[str], *, with_spark: bool) -> list[str]:
    running = [ref for ref in pykka.ActorRegistry.get_all() if ref.actor_urn not in actors]
    return [
        *(f"actor {ref}" for ref in running),
        *(f"thread {t.name}" for t in threading.enumerate() if t not in threads and not t.daemon and t.is_alive()),
        *(f"process {pid}: {command}" for pid, command in _children().items()
          if pid not in children and not _expected(command, with_spark=with_spark)),
    ]  # fmt: skip


def _expected(command: str, *, with_spark: bool) -> bool:
    """PySpark keeps its Java gateway until Python ends, and multiprocessing its resource tracker."""
    return "resource_tracker" in command or (with_spark and "org.apache.spark.deploy.SparkSubmit" in command)


def _children() -> dict[int, str]:
    """The child processes of this one and their command lines. Reads /proc: a test can afford that, psutil it
    cannot."""
    found: dict[int, str] = {}
    for task in Path("/proc/self/task").iterdir():
        try:
            pids = (task / "children").read_text().split()
        except OSError:
            continue
        for pid in pids:
            try:
                command = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            except OSError:
                continue
            found[int(pid)] = command.strip()[:200] or "ended, but nobody waited for it"
    return found
