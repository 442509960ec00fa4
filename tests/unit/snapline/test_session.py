"""Sessions of Spark that Snapline opens, uses and stops, beside a program that does so as well."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from pyspark import SparkContext

from snapline.session import SparkHandle, open_spark, stop_spark
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
