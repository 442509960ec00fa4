"""Ctrl-C while something is started that must not be left half started."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from types import SimpleNamespace
from typing import Any

import pytest

from snapline import task_manager_launcher
from snapline.dataflow.config import Configuration
from snapline.interrupts import interrupt_only_raises, interrupt_waits

pytestmark = pytest.mark.skipif(
    threading.current_thread() is not threading.main_thread(), reason="only the main thread gets signals"
)


@pytest.fixture(autouse=True)
def interrupts() -> Iterator[None]:
    """What a shell starts in the background is started with interrupts ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_an_interrupt_comes_when_the_block_has_ended():
    """And who listened before listens again."""
    before = signal.getsignal(signal.SIGINT)
    done = []
    with pytest.raises(KeyboardInterrupt), interrupt_waits():
        signal.raise_signal(signal.SIGINT)
        done.append("to the end")

    assert ["to the end"] == done
    assert before == signal.getsignal(signal.SIGINT)


def test_the_second_interrupt_does_not_wait():
    """Somebody really wants to leave."""
    done = []
    with pytest.raises(KeyboardInterrupt), interrupt_waits():
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
        done.append("not reached")

    assert [] == done


def test_without_an_interrupt_nothing_changes():
    """Also in a thread that gets none, where handlers cannot be set."""
    before = signal.getsignal(signal.SIGINT)
    with interrupt_waits():
        pass
    done = []

    def elsewhere() -> None:
        with interrupt_waits():
            done.append("here")

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert ["here"] == done
    assert before == signal.getsignal(signal.SIGINT)


def test_a_handler_that_would_do_more_is_not_asked_while_a_job_is_waited_for():
    """SparkContext's cancels all jobs of Spark, which looks as if TaskManagers had failed; afterwards it is back."""
    asked = []
    before = signal.signal(signal.SIGINT, lambda number, _frame: asked.append(number))
    try:
        theirs = signal.getsignal(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt), interrupt_only_raises():
            signal.raise_signal(signal.SIGINT)
        assert ([], theirs) == (asked, signal.getsignal(signal.SIGINT))
    finally:
        signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("within", [interrupt_waits, interrupt_only_raises])
def test_a_job_in_the_background_does_not_hear_the_interrupt_of_another_program(
    within: Callable[[], AbstractContextManager[None]],
) -> None:
    """A script that starts it with & has SIGINT ignored, since Ctrl-C is meant for what runs in the foreground."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with within():
            signal.raise_signal(signal.SIGINT)
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


def test_an_end_of_the_application_with_task_managers_waits_for_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever waits for the end looks twice a second, and holds a lock then for which the handler waited."""

    class Looking(threading.Event):
        """The event, in the moment in which its lock is held by who waits for it."""

        def wait(self, timeout: float | None = None) -> bool:
            with self._cond:  # type: ignore[attr-defined]
                signal.raise_signal(signal.SIGTERM)
            return super().wait()

        def set(self) -> None:
            assert threading.current_thread() is not threading.main_thread()
            super().set()

    stopped: list[str] = []
    spark: Any = SimpleNamespace(host=None, ours=True)
    pool: Any = SimpleNamespace(start=lambda: None, stop=lambda: stopped.append("pool"), fatal_error="")
    reports: Any = SimpleNamespace(start=lambda: None, stop=lambda: stopped.append("reports"))
    monkeypatch.setattr(task_manager_launcher, "open_spark", lambda _: spark)
    monkeypatch.setattr(task_manager_launcher, "stop_spark", lambda _: stopped.append("Spark"))
    monkeypatch.setattr(task_manager_launcher, "TaskManagerPool", lambda *_: pool)
    monkeypatch.setattr(task_manager_launcher, "WorkerReports", lambda *_: reports)
    monkeypatch.setattr(task_manager_launcher, "threading", SimpleNamespace(Event=Looking, Thread=threading.Thread))
    before = signal.getsignal(signal.SIGTERM)
    try:
        task_manager_launcher.bring_task_managers(Configuration(), instances=1, slots=1)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert stopped == ["pool", "reports", "Spark"]
