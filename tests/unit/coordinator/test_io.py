"""Slow work: exactly one answer for each piece, however it goes."""

from __future__ import annotations

import queue
import threading

import pytest

from snapline.coordinator.ha.high_availability import LeadershipLost
from snapline.coordinator.io import IoExecutor, TookTooLong
from snapline.runtime.clock import SystemClock
from snapline.runtime.logs import silent_logger
from snapline.runtime.timers import TimerScheduler


class Desk:
    def __init__(self, threads=2):
        self.timers = TimerScheduler(SystemClock())
        self.lost: list[LeadershipLost] = []
        self.io = IoExecutor(self.timers, SystemClock(), silent_logger(), threads, self.lost.append)
        self.told: queue.Queue[object] = queue.Queue()

    def submit(self, work, limit_ms=60_000):
        self.io.submit("work", work, self.told.put, lambda error: error, limit_ms)

    def next(self):
        return self.told.get(timeout=20)


@pytest.fixture
def desk():
    desk = Desk()
    yield desk
    desk.io.close(1)
    desk.timers.close()


def test_what_work_returns_is_told(desk):
    """More pieces than threads."""
    for number in range(20):
        desk.submit(lambda number=number: number)
    assert sorted(desk.next() for _ in range(20)) == list(range(20))


def test_what_work_raises_is_told_as_its_failure(desk):
    """Also what nobody expected."""
    desk.submit(lambda: 1 / 0)
    assert isinstance(desk.next(), ZeroDivisionError)


def test_work_that_finds_another_leader_ends_the_leadership(desk):
    """Trying again would never succeed; the core is answered as ever."""

    def write():
        raise LeadershipLost("another coordinator has taken over")

    desk.submit(lambda: 1 / 0)
    desk.next()
    assert desk.lost == []
    desk.submit(write)
    answer = desk.next()
    assert isinstance(answer, LeadershipLost)
    desk.io.close()
    assert desk.lost == [answer]


def test_work_that_hangs_is_given_up_once(desk):
    """Its late result is dropped, and it does not stop the others."""
    hangs = threading.Event()
    desk.submit(hangs.wait, limit_ms=1)
    assert isinstance(desk.next(), TookTooLong)
    desk.submit(lambda: "next")
    assert desk.next() == "next"
    hangs.set()
    desk.io.close()
    assert desk.told.empty()


def test_no_answer_is_possible(desk):
    """Effects that nobody waits for."""
    desk.submit(lambda: None)
    desk.submit(lambda: "next")
    assert desk.next() == "next"


def test_close_finishes_what_was_submitted(desk):
    """And takes nothing more."""
    for number in range(5):
        desk.submit(lambda number=number: number)
    desk.io.close()
    desk.io.close()
    desk.submit(lambda: "too late")
    assert sorted(desk.told.get(block=False) for _ in range(5)) == list(range(5))
    assert desk.told.empty()
