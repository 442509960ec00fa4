"""What cannot work on an executor is said once, with the way out, and not tried again."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from snapline.client import CoordinatorUnreachable
from snapline.dataflow.config import COORDINATOR_ADDRESS, Configuration
from snapline.spark.executor import TaskManagerLaunch, derive_token, executor_id, is_orphan, run, wait_for_the_original
from snapline.spark.pool import _judge
from tests.services.cluster import wait_until


def test_another_python_version_is_unusable():
    """Byte code of functions does not travel between versions."""
    (outcome,) = run(TaskManagerLaunch("tm-0", "127.0.0.1:1", 1, (3, 8)))
    assert outcome.kind == "unusable"
    assert "the driver runs 3.8" in outcome.detail and "PYSPARK_PYTHON" in outcome.detail


def test_a_missing_spark_secret_is_unusable(monkeypatch: pytest.MonkeyPatch):
    """With spark.authenticate, the token is derived on both sides."""
    monkeypatch.delenv("_SPARK_AUTH_SECRET", raising=False)
    launch = TaskManagerLaunch("tm-0", "127.0.0.1:1", 1, sys.version_info[:2], token_from_spark=True)
    (outcome,) = run(launch)
    assert (outcome.kind, "_SPARK_AUTH_SECRET" in outcome.detail) == ("unusable", True)
    assert derive_token("a") != derive_token("b")


@pytest.mark.parametrize(
    ("program", "parent", "group", "orphan"),
    [
        ("pyspark.daemon", 100, 100, False),
        ("snapline.spark.daemon", 100, 100, False),
        ("snapline.spark.daemon", 1, 100, True),
        ("pyspark.daemon", 1, 100, True),
        ("pyspark.worker", 50, 100, False),
        (None, 50, 100, False),
    ],
)
def test_a_worker_whose_daemon_is_gone_is_an_orphan(monkeypatch: pytest.MonkeyPatch, program, parent, group, orphan):
    """The daemon leads the process group of its workers; a worker that Java started itself has no daemon."""
    spec = None if program is None else SimpleNamespace(name=program)
    monkeypatch.setitem(sys.modules, "__main__", SimpleNamespace(__spec__=spec))
    monkeypatch.setattr("os.getppid", lambda: parent)
    monkeypatch.setattr("os.getpgrp", lambda: group)
    assert is_orphan() is orphan


@pytest.mark.parametrize(
    ("environ", "name"),
    [
        ({}, "driver"),
        ({"SPARK_EXECUTOR_DIRS": "/tmp/spark-1/executor-2/blockmgr-3"}, "blockmgr-3"),
        ({"SPARK_EXECUTOR_ID": "7", "SPARK_EXECUTOR_DIRS": ""}, "7"),
        ({"CONTAINER_ID": "container_1_2_01_3"}, "container_1_2_01_3"),
    ],
)
def test_every_executor_has_a_name(environ, name):
    """A TaskManager without one would count as started by hand, and never rest."""
    assert executor_id(environ) == name


HOST = """
import os, sys
from snapline.client import CoordinatorUnreachable
from snapline.spark.executor import TaskManagerLaunch, run
if os.fork():
    os.wait()
    sys.exit(3)
print(os.getpid(), flush=True)
list(run(TaskManagerLaunch("tm-0", "127.0.0.1:1", 1, sys.version_info[:2])))
"""


def test_a_worker_ends_itself_when_its_host_is_killed(tmp_path):
    """Nobody else could end it. Until then it looks for the coordinator, which is not there."""
    with (tmp_path / "log").open("wb") as log:
        host = subprocess.Popen([sys.executable, "-c", HOST], stdout=subprocess.PIPE, stderr=log, text=True)
    said = host.stdout
    assert said is not None
    try:
        worker = int(said.readline())
        wait_until(lambda: "TaskManager starts" in (tmp_path / "log").read_text(), "the TaskManager to start")
    finally:
        host.kill()
        host.wait()
        said.close()

    wait_until(lambda: not Path(f"/proc/{worker}").exists(), "the worker to end")


LAUNCH = TaskManagerLaunch("tm-0", "beside:1", 1, (3, 8))


class Says:
    """A coordinator's client that gives these answers, the last one again and again."""

    def __init__(self, *answers: str) -> None:
        self.answers = list(answers)
        self.asked = ""

    def __call__(self, configuration: Configuration) -> Says:
        self.asked = configuration.get_option(COORDINATOR_ADDRESS)
        return self

    def __enter__(self) -> Says:
        return self

    def __exit__(self, *_: object) -> None:
        return

    def state_of_task_manager(self, resource_id: str) -> str:
        assert resource_id == "tm-0"
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if answer == "away":
            raise CoordinatorUnreachable("nobody answers")
        return answer


@pytest.mark.parametrize(
    ("answers", "looks"),
    [
        (["lost"], 0),
        (["registered"] * 3 + ["lost"], 3),
        (["unknown", "registered", "away", "away", "unknown", "registered", "lost"], 6),
    ],
    ids=["after a loss", "speculation", "it was starting, and later the coordinator was"],
)
def test_a_copy_by_speculation_does_not_return_before_the_original_is_gone(
    monkeypatch: pytest.MonkeyPatch, answers, looks
):
    """Spark would kill the original, for the copy was faster. After a loss there is nothing to wait for."""
    waited: list[float] = []
    monkeypatch.setattr("time.sleep", waited.append)
    monkeypatch.setattr("snapline.client.ClusterClient.from_configuration", Says(*answers))
    wait_for_the_original(LAUNCH, "a token", lambda: False)
    assert len(waited) == looks


def test_a_copy_whose_original_is_never_known_ends(monkeypatch: pytest.MonkeyPatch):
    """After the time within which the original would have ended itself; at once when its own host is gone."""
    now_s = iter(range(100))
    waited: list[float] = []
    monkeypatch.setattr("time.monotonic", lambda: float(next(now_s)))
    monkeypatch.setattr("time.sleep", waited.append)
    monkeypatch.setattr("snapline.client.ClusterClient.from_configuration", Says("unknown", "away"))
    launch = replace(LAUNCH, settings={"taskmanager.registration.timeout": "7 s"})
    wait_for_the_original(launch, "a token", lambda: False)
    assert len(waited) == 6
    wait_for_the_original(LAUNCH, "a token", lambda: True)
    assert len(waited) == 6


@pytest.mark.parametrize(
    ("settings", "asked"),
    [({}, "beside:1"), ({"resourcemanager.rpc.address": "service:2,standby:3"}, "service:2,standby:3")],
)
def test_a_copy_asks_who_knows_its_original(monkeypatch: pytest.MonkeyPatch, settings, asked):
    """The coordinator beside the driver, or the one whose ResourceManager is used."""
    knows = Says("lost")
    monkeypatch.setattr("snapline.client.ClusterClient.from_configuration", knows)
    wait_for_the_original(replace(LAUNCH, settings=settings), "", lambda: False)
    assert knows.asked == asked


@pytest.mark.parametrize(
    ("text", "kind", "said"),
    [
        ("... ModuleNotFoundError: No module named 'snapline'", "unusable", "'/bin/py' cannot import Snapline"),
        (
            'x\njava.io.IOException: Cannot run program "./e/bin/python": error=13, no\n at',
            "unusable",
            '"./e/bin/python": error=13, no: set',
        ),
        ("[PYTHON_VERSION_MISMATCH] Python in worker has ...", "unusable", "of another version than the driver's"),
        ("Py4JJavaError\nPython worker exited unexpectedly (crashed)", "failed", "Python worker exited unexpectedly"),
        ("", "failed", "RuntimeError"),
    ],
)
def test_what_spark_says_about_a_python_worker(text, kind, said):
    """A worker that was killed is replaced; a Python that will never do is not."""
    found, detail = _judge(RuntimeError(text), "/bin/py")
    assert found == kind
    assert said in detail
