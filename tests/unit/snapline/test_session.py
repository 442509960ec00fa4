"""Sessions of Spark that Snapline opens, uses and stops, beside a program that does so as well."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
import pytest
from pyspark import SparkContext
from pyspark.sql import SparkSession

from snapline import session
from snapline.client import RequestRefused
from snapline.dataflow.config import Configuration
from snapline.dataflow.errors import SnaplineError
from snapline.runtime.logs import silent_logger
from snapline.session import EmbeddedCluster, SparkHandle, open_spark, stop_spark
from snapline.spark.head_start import HeadStart
from snapline.spark.spark_hosts import NoSpark


class PlayedSession:
    """A session whose Java runs, or has ended."""

    def __init__(self, exit_code: int | None = None) -> None:
        process = SimpleNamespace(poll=lambda: exit_code)
        self.sparkContext: Any = SimpleNamespace(_gateway=SimpleNamespace(proc=process))
        self.stops = 0

        self.sparkContext.getConf = lambda: SimpleNamespace(getAll=lambda: self.conf.items())
        self.conf: dict[str, str] = {}

    def stop(self) -> None:
        """Do what PySpark does: after it no context is the active one, whichever was."""
        self.stops += 1
        SparkContext._active_spark_context = None


def test_a_session_that_the_program_has_stopped_is_not_stopped_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The job of the stopped session took the one away that the program had opened since, and its job failed."""
    old: Any = PlayedSession()
    new: Any = PlayedSession()
    monkeypatch.setattr(SparkContext, "_active_spark_context", new.sparkContext)

    stop_spark(SparkHandle(old, ours=True))
    assert SparkContext._active_spark_context is new.sparkContext

    stop_spark(SparkHandle(new, ours=True))
    assert (old.stops, new.stops) == (0, 1)


def test_a_program_whose_java_was_killed_is_told_so_by_its_next_job(monkeypatch: pytest.MonkeyPatch) -> None:
    """PySpark calls the context of the dead Java the active one, and said that a connection was refused."""
    monkeypatch.setattr(SparkContext, "_active_spark_context", PlayedSession(exit_code=-9).sparkContext)

    with pytest.raises(NoSpark, match=r"Spark's process is gone.*start the program again"):
        open_spark("next")


@pytest.mark.parametrize("ours", [True, False])
def test_a_session_that_would_kill_task_managers_does_not_stay(monkeypatch: pytest.MonkeyPatch, ours: bool) -> None:
    """It was refused and stayed, with the coordinator that had begun beside it, so that the next one was refused as
    well, whatever its settings. One of the program's own is not touched."""
    session: Any = PlayedSession()
    session.conf = {"spark.python.worker.killOnIdleTimeout": "true", "spark.python.worker.idleTimeoutSeconds": "5s"}
    begun = HeadStart()
    closed: list[HeadStart] = []
    monkeypatch.setattr(HeadStart, "close", lambda head_start: closed.append(head_start))
    monkeypatch.setattr(SparkContext, "_active_spark_context", session.sparkContext)
    opened = SparkHandle(session, ours=ours, head_start=begun if ours else None)
    monkeypatch.setattr("snapline.session._open_spark", lambda *_, **__: opened)

    with pytest.raises(NoSpark, match="killOnIdleTimeout would kill TaskManagers"):
        open_spark("next")

    assert session.stops == int(ours)
    assert len(closed) == int(ours)


class PlayedBuilder:
    """Notes settings, and gives this session."""

    def __init__(self, session: Any) -> None:
        self.session = session
        self.settings: dict[str, str] = {}

    def appName(self, name: str) -> PlayedBuilder:
        """Take it for noted."""
        return self

    def config(self, key: str, value: str) -> PlayedBuilder:
        """Note a setting."""
        self.settings[key] = value
        return self

    def getOrCreate(self) -> Any:
        """Give the session."""
        return self.session


@pytest.fixture
def builder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> PlayedBuilder:
    """What opens a session where there is none, without any Java."""
    session: Any = PlayedSession()
    session.sparkContext.setLogLevel = lambda _: None
    session.sparkContext.master = "as it was asked for"
    settings = SimpleNamespace(setAll=lambda _: None, contains=lambda _: False, get=lambda *_: "")
    begun = SimpleNamespace(begin=lambda **_: None, java_is_there=lambda **_: None, close=lambda: None)
    played = PlayedBuilder(session)
    for name in ("PYSPARK_PYTHON", "SPARK_LOCAL_IP"):
        monkeypatch.setenv(name, "as it was")
    monkeypatch.delenv("MASTER", raising=False)
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    monkeypatch.setattr("snapline.session.ensure_java", lambda: None)
    monkeypatch.setattr("snapline.session.start_options", lambda *_: "")
    monkeypatch.setattr("snapline.session.HeadStart", lambda: begun)
    monkeypatch.setattr("pyspark.SparkConf", lambda **_: settings)
    monkeypatch.setattr(SparkContext, "_active_spark_context", None)
    monkeypatch.setattr(SparkContext, "_ensure_initialized", lambda **_: None)
    monkeypatch.setattr(SparkSession, "builder", played)
    return played


def test_a_session_whose_start_was_interrupted_does_not_stay(
    builder: PlayedBuilder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C waits until Spark is there, whose directory was removed then and which stayed: the next cell of a notebook
    took it for one of the program's own, and it could keep no file."""

    @contextmanager
    def interrupted() -> Iterator[None]:
        yield
        raise KeyboardInterrupt

    monkeypatch.setattr("snapline.session.interrupt_waits", interrupted)

    with pytest.raises(KeyboardInterrupt):
        open_spark("next")

    assert builder.session.stops == 1


@pytest.mark.parametrize(
    ("variable", "master"), [("", "spark://10.0.0.9:7077"), ("spark://10.0.0.8:7077", "spark://10.0.0.8:7077")]
)
def test_what_spark_defaults_say_counts(
    builder: PlayedBuilder, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, variable: str, master: str
) -> None:
    """A program, or `snapline taskmanagers` of the unit for systemd, ran all on its own machine, whatever they said."""
    monkeypatch.setenv("MASTER", variable)
    said = "# of us all\nspark.master\t spark://10.0.0.9:7077 \nspark.driver.extraJavaOptions=-Dours=1\n"
    (tmp_path / "spark-defaults.conf").write_text(said)

    stop_spark(open_spark("next"))

    left_to_spark = {"spark.driver.host", "spark.driver.extraJavaOptions"}
    assert builder.settings["spark.master"] == master
    assert left_to_spark.isdisjoint(builder.settings)
    assert builder.settings["spark.ui.enabled"] == "false"


def test_without_a_word_of_spark_defaults_all_runs_here(builder: PlayedBuilder) -> None:
    """As on a machine where nothing is configured."""
    stop_spark(open_spark("next"))

    assert (builder.settings["spark.master"], builder.settings["spark.driver.host"]) == ("local[*]", "127.0.0.1")


def test_who_ends_is_told_to_whichever_coordinator_of_a_service_listens() -> None:
    """Only the first one of `resourcemanager.rpc.address` was asked: when that was gone, the service heard of no
    TaskManager that had ended, and nobody here what its jobs need."""
    server = grpc.server(ThreadPoolExecutor(1))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    host = SimpleNamespace(conf=dict, secret=str, master="local[1]", coordinator_host=lambda: "127.0.0.1", cores=1)
    spark: Any = SimpleNamespace(host=host)
    addresses = f"127.0.0.1:1, 127.0.0.1:{port}"
    settings = {"resourcemanager.rpc.address": addresses, "execution.checkpointing.dir": "/nowhere"}
    cluster = EmbeddedCluster(spark, Configuration(settings), 1, silent_logger())
    cluster._coordinator = SimpleNamespace(address="127.0.0.1:1")  # type: ignore[assignment]
    try:
        with (
            cluster._open_client(cluster._resource_manager) as client,
            pytest.raises(RequestRefused, match="is of an older Snapline"),
        ):
            client.list_jobs()
    finally:
        server.stop(None).wait()


def test_a_program_does_not_take_its_own_job_over(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Of two jobs that were started at once with one directory of high availability, the second never ran: its
    coordinator ended that of the first one, and went on with that job."""
    host = SimpleNamespace(conf=dict, master="local[2]", cores=2, coordinator_host=lambda: "127.0.0.1")
    spark: Any = SimpleNamespace(host=host, ours=False, head_start=None, session=None)
    settings = {"high-availability.type": "embedded", "high-availability.storageDir": "/ha"}
    settings["execution.checkpointing.dir"] = str(tmp_path)
    monkeypatch.setitem(session._leading, "/ha", SimpleNamespace(is_alive=True))
    monkeypatch.setattr(session, "LEAVES_SECONDS", 0)

    with pytest.raises(
        SnaplineError, match=r"another job of this program runs with high-availability\.storageDir = /ha"
    ):
        EmbeddedCluster(spark, Configuration(settings), 1, None).__enter__()
