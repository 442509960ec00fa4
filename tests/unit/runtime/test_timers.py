"""The timer thread and the table of one shell's timers."""

from __future__ import annotations

import queue
import threading

import pytest

from snapline.runtime.clock import ManualClock, SystemClock
from snapline.runtime.cores.machine import TimerFired
from snapline.runtime.timers import MIN_CANCELLED_TO_COMPACT, TimerDue, TimerScheduler, TimerTable


@pytest.fixture
def service():
    service = TimerScheduler(SystemClock())
    yield service
    service.close()


class HandTimers:
    """A service whose time never comes by itself; tests call the callbacks."""

    def __init__(self):
        self.service = TimerScheduler(ManualClock(0))
        self.told: list[TimerDue] = []
        self.table = TimerTable(self.service, self.told.append)

    def due(self) -> list[TimerFired | None]:
        """Everything that was told meanwhile, as the table sees it."""
        told, self.told[:] = list(self.told), []
        return [self.table.fired(due) for due in told]


@pytest.fixture
def hand():
    hand = HandTimers()
    yield hand
    hand.service.close()


def test_timers_fire_in_order_of_due_time(service):
    """Also when they were scheduled in another order, and late ones at once."""
    fired: queue.Queue[str] = queue.Queue()
    now = SystemClock().now_ms()
    service.schedule(now + 30, lambda: fired.put("last"))
    service.schedule(now + 10, lambda: fired.put("second"))
    service.schedule(now - 1000, lambda: fired.put("first"))
    assert [fired.get(timeout=10) for _ in range(3)] == ["first", "second", "last"]


def test_a_cancelled_timer_does_not_fire(service):
    """Its neighbours do."""
    fired: queue.Queue[str] = queue.Queue()
    now = SystemClock().now_ms()
    service.schedule(now + 5, lambda: fired.put("cancelled")).cancel()
    service.schedule(now + 10, lambda: fired.put("kept"))
    assert fired.get(timeout=10) == "kept"


def test_a_callback_that_raises_takes_no_other_timer_with_it(service, monkeypatch):
    """It is reported with the name of the thread."""
    reported: list[threading.ExceptHookArgs] = []
    monkeypatch.setattr(threading, "excepthook", reported.append)
    fired: queue.Queue[str] = queue.Queue()
    service.schedule(0, lambda: list[str]().remove("nobody"))
    service.schedule(0, lambda: fired.put("the next"))
    assert fired.get(timeout=20) == "the next"
    (report,) = reported
    assert report.exc_type is ValueError
    assert report.thread is not None
    assert report.thread.name == "snapline-timers"


def test_cancelled_timers_do_not_pile_up(service):
    """A checkpoint timeout of ten minutes that is cancelled every second must not stay for ten minutes."""
    far = SystemClock().now_ms() + 600_000
    for _ in range(10 * MIN_CANCELLED_TO_COMPACT):
        service.schedule(far, lambda: None).cancel()
    assert len(service._heap) <= MIN_CANCELLED_TO_COMPACT + 1


def test_close_ends_the_thread_and_refuses_new_timers():
    """Nothing fires after it; closing twice is no error."""
    service = TimerScheduler(SystemClock(), name="to-be-closed")
    service.schedule(SystemClock().now_ms() + 100_000, lambda: None)
    service.close()
    service.close()
    assert service.schedule(0, lambda: None).cancelled
    assert not [thread for thread in threading.enumerate() if thread.name == "to-be-closed"]


def test_a_replaced_timer_counts_once(hand):
    """The core said StartTimer twice with an equal key: only the second firing is an event."""
    hand.table.start("k", 5)
    hand.table.start("k", 9)
    hand.told += [TimerDue("k", 1), TimerDue("k", 2)]
    assert hand.due() == [None, TimerFired("k")]
    assert len(hand.table) == 0


def test_a_firing_that_was_on_its_way_when_it_was_cancelled_is_dropped(hand):
    """The timer thread had already told; the core had said CancelTimer before it read that."""
    hand.table.start("k", 5)
    hand.told.append(TimerDue("k", 1))
    hand.table.cancel("k")
    assert hand.due() == [None]


def test_the_clock_of_tests_does_not_go_back():
    """As no clock does that a core sees."""
    clock = ManualClock(5)
    clock.advance(2)
    assert clock.now_ms() == 7
    with pytest.raises(ValueError, match="does not go back"):
        clock.advance(-1)
