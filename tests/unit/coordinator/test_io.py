"""Slow work: exactly one answer for each piece, however it goes."""

from __future__ import annotations

import queue
import threading

import pytest

from snapline.coordinator.ha.high_availability import LeadershipLost
from snapline.coordinator.io import LANE_QUEUE, LANE_THREADS, STUCK_MS, IoExecutor, TookTooLong, TooMuchWaits
from snapline.runtime.clock import SystemClock
from snapline.runtime.logs import silent_logger
from snapline.runtime.timers import TimerScheduler


class Desk:
    def __init__(self, threads=2, stuck_ms=STUCK_MS):
        self.timers = TimerScheduler(SystemClock())
        self.lost: list[LeadershipLost] = []
        self.io = IoExecutor(self.timers, SystemClock(), silent_logger(), threads, self.lost.append, stuck_ms=stuck_ms)
        self.told: queue.Queue[object] = queue.Queue()

    def submit(self, work, limit_ms=60_000, owner=""):
        self.io.lane(owner).submit("work", work, self.told.put, lambda error: error, limit_ms)

    def next(self):
        return self.told.get(timeout=20)


@pytest.fixture
def desk():
    desk = Desk(stuck_ms=20)
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


def test_work_that_fails_after_it_was_given_up_has_failed_once(desk):
    """Who tries again after a failure tried twice: a second JobMaster was started beside the first, and one that was
    answered twice broke."""
    hangs = threading.Event()

    def work():
        hangs.wait()
        raise OSError("the storage says at last that it cannot")

    desk.io.submit("work", work, desk.told.put, desk.told.put, 500)
    assert isinstance(desk.next(), TookTooLong)
    hangs.set()
    desk.io.close()
    assert desk.told.empty()


def test_work_that_was_given_up_while_it_waited_is_never_begun(desk):
    """Whoever asked for it has been told that it failed, and went on: a late write would undo what came after."""
    hangs, done = threading.Event(), []
    for _ in range(LANE_THREADS):
        desk.submit(lambda: hangs.wait() and None)
    desk.submit(lambda: done.append("late"), limit_ms=1)
    assert isinstance(desk.next(), TookTooLong)
    hangs.set()
    desk.io.close()
    assert done == []


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


def test_storage_that_never_answers_holds_threads_of_its_own_job(desk):
    """Eight reads that hang held all eight threads; now they hold four of their job, and others are answered."""
    hangs, begun = threading.Event(), threading.Semaphore(0)

    def read():
        begun.release()
        hangs.wait()

    for _ in range(8):
        desk.submit(read, owner="hanging")
    for _ in range(LANE_THREADS):
        assert begun.acquire(timeout=20)
    desk.submit(lambda: "checkpoint", owner="other")
    desk.submit(lambda: "submission")

    assert {desk.next(), desk.next()} == {"checkpoint", "submission"}
    assert not begun.acquire(blocking=False)
    assert len(desk.io._threads) <= LANE_THREADS + 2
    hangs.set()


def test_many_jobs_with_hanging_storage_hold_no_thread_of_another(desk):
    """Work that is stuck does not count among the threads that all share, and the surplus ends when it is stuck no
    more."""
    hangs = threading.Event()
    for number in range(10):
        desk.submit(lambda: hangs.wait() and None, owner=f"hanging-{number}")
    for number in range(50):
        desk.submit(lambda number=number: number, owner="other")
    assert sorted(desk.next() for _ in range(50)) == list(range(50))

    hangs.set()
    for number in range(50):
        desk.submit(lambda number=number: number)
    assert sorted(desk.next() for _ in range(50)) == list(range(50))


def test_more_work_than_a_lane_holds_is_refused_at_once(desk):
    """An owner whose storage hangs may not queue for ever; the others are not concerned."""
    hangs = threading.Event()
    for _ in range(LANE_THREADS + LANE_QUEUE + 1):
        desk.submit(lambda: hangs.wait() and None, owner="hanging")
    desk.submit(lambda: "next")

    refused = list(iter(desk.next, "next"))
    assert refused and all(isinstance(each, TooMuchWaits) for each in refused)
    hangs.set()
