"""Sessions of Spark that Snapline opens, uses and stops, beside a program that does so as well."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from pyspark import SparkContext

from snapline.session import SparkHandle, stop_spark


class PlayedSession:
    """A session of which nobody has stopped Java."""

    def __init__(self) -> None:
        self.sparkContext: Any = SimpleNamespace(_gateway=SimpleNamespace(proc=SimpleNamespace(poll=lambda: None)))
        self.stops = 0

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
