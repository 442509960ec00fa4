"""Turns of tasks: so many at a time, in order, as many as can work, and nobody stops the others."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from snapline.runtime.clock import ManualClock, SystemClock
from snapline.runtime.timers import TimerScheduler
from snapline.taskmanager.threads.turns import LATE_MS, LONG_MS, LOOK_MS, Turn, Turns, TurnTable

# --- the core ---------------------------------------------------------------------------------------------------------

IDLE, BUSY = 0.3, 1.2
"""What a process computes, in cores."""
MANY = "abcdefghijklmnopqrst"


def table(least: int = 2, cores: int = 2) -> TurnTable[str]:
    return TurnTable(least, cores)


def crowd(least: int = 2, cores: int = 2) -> TurnTable[str]:
    """Twenty that have work, since time 0."""
    turns = table(least, cores)
    for who in MANY:
        turns.ask(who, 0)
    return turns


def test_turns_go_round_in_order():
    """Two at a time; who gives theirs back lets the first one that waits go on."""
    turns = table()
    assert [turns.ask(who, 0) for who in "abcd"] == [True, True, False, False]
    assert turns.give_back("b", 5) == ["c"]
    assert not turns.ask("b", 5)
    assert [turns.give_back(who, 10) for who in "acdb"] == [["d"], ["b"], [], []]
    assert not turns.somebody_waits


def test_nobody_asks_twice():
    """Whoever has a turn or waits for one does not ask for another: that would be one thread in two places."""
    turns = table(least=1)
    for who in "ab":
        turns.ask(who, 0)
        with pytest.raises(ValueError, match=f"{who} has a turn or waits for one already"):
            turns.ask(who, 0)


def test_tasks_that_wait_for_something_else_are_joined_by_others():
    """Functions that ask a database: as many as there are work at a time, within some looks."""
    turns = crowd()
    assert turns.look(LOOK_MS, IDLE, 0) == ["c", "d"]
    assert turns.look(2 * LOOK_MS, IDLE, 0) == list("efgh")
    assert turns.look(3 * LOOK_MS, IDLE, 0) == list("ijklmnop")
    assert turns.look(4 * LOOK_MS, IDLE, 0) == list("qrst")
    assert turns.limit == len(MANY)
    assert turns.needs_a_look, "they may compute later"


def test_tasks_that_compute_become_fewer():
    """Half as many with each look; who has a turn keeps it to its end, and is not replaced."""
    turns = crowd()
    for look in range(4):
        turns.look(look, IDLE, 0)
    assert len(turns.holders) == len(MANY)
    assert [turns.look(10, BUSY, 0) for _ in range(4)] == [[]] * 4
    assert turns.limit == 2
    assert all(
        turns.ask(who, 11) is False for who in MANY if turns.give_back(who, 10) == [] and len(turns.holders) >= 2
    )
    assert len(turns.holders) == 2


def test_who_looks_late_adds_nobody():
    """A process that computes little because others have the machine, or one thread keeps Python's lock, gets no more
    threads."""
    turns = crowd()
    assert turns.look(LOOK_MS + LATE_MS, IDLE, LATE_MS) == []
    assert turns.limit == 2


def test_what_computes_outside_of_python_uses_all_cores():
    """Two tasks that compute two cores full get a third; in the end there is one for each core, and one less when
    Python is the limit again."""
    turns = crowd(cores=4)
    assert [len(turns.look(look, float(turns.limit), 0)) for look in range(4)] == [1, 1, 0, 0]
    assert turns.limit == 4
    turns.look(5, BUSY, 0)
    assert turns.limit == 2


def test_a_process_that_is_well_used_is_left_as_it_is():
    """Neither idle nor full."""
    turns = crowd()
    turns.look(1, IDLE, 0)
    turns.look(2, 0.8, 0)
    assert turns.limit == 4


def test_a_step_without_end_stops_nobody():
    """Both turns are in the hands of tasks that compute for minutes: the others go on, and get them back one by one."""
    turns = table()
    for who in "abcd":
        turns.ask(who, 0)
    assert turns.look(LONG_MS - 1, 2.0, 0) == []
    assert turns.look(LONG_MS, 2.0, 0) == ["c", "d"]
    assert turns.give_back("a", LONG_MS + 1) == [], "it had none any more"
    assert not turns.ask("a", LONG_MS + 1)
    assert turns.give_back("c", LONG_MS + 2) == ["a"]


def test_nobody_loses_a_turn_that_nobody_wants():
    """However long the step."""
    turns = table()
    turns.ask("a", 0)
    assert turns.look(100 * LONG_MS, BUSY, 0) == []
    assert turns.holders == {"a"}


@pytest.mark.parametrize(("who", "called"), [("a", ["b"]), ("b", [])])
def test_whoever_ends_leaves_nothing_behind(who, called):
    """Neither a turn nor a place in the queue."""
    turns = table(least=1)
    turns.ask("a", 0)
    turns.ask("b", 0)
    assert turns.leave(who, 0) == called
    assert not turns.somebody_waits
    assert len(turns.holders) == 1


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["ask", "give back", "leave", "look"]), st.integers(0, 7), st.integers(0, 60), st.floats(0, 4)
    ),
    max_size=80,
)


@given(least=st.integers(1, 3), cores=st.integers(1, 4), steps=STEPS)
def test_no_turn_is_lost_and_none_is_given_twice(least, cores, steps):
    """Against lists: who waits is called once and in order, never more than the limit but for those in long steps, and
    nobody waits while a turn is free."""
    turns: TurnTable[int] = TurnTable(least, cores)
    since: dict[int, int] = {}
    without: set[int] = set()
    waiting: list[int] = []
    now = 0
    for step, who, later, share in steps:
        now += later
        called: list[int] = []
        if step == "ask" and who not in since and who not in without and who not in waiting:
            waiting.append(who)
            called = [who] if turns.ask(who, now) else []
        elif step == "give back" and (who in since or who in without):
            called = turns.give_back(who, now)
            since.pop(who, None)
            without.discard(who)
        elif step == "leave":
            called = turns.leave(who, now)
            since.pop(who, None)
            without.discard(who)
            waiting = [one for one in waiting if one != who]
        elif step == "look":
            called = turns.look(now, share, later - LOOK_MS)
            if waiting:
                without |= {one for one, begun in since.items() if now - begun >= LONG_MS}
                since = {one: begun for one, begun in since.items() if now - begun < LONG_MS}
        assert called == waiting[: len(called)]
        waiting = waiting[len(called) :]
        since.update(dict.fromkeys(called, now))
        assert turns.holders == set(since)
        assert turns.somebody_waits == bool(waiting)
        assert least <= turns.limit <= max(least, cores, 8)
        assert not called or len(since) <= turns.limit
        assert not waiting or len(since) >= turns.limit


# --- the shell, by hand -----------------------------------------------------------------------------------------------


class HandTimers(TimerScheduler):
    """Calls back when it is told to."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__(clock)
        self.due: list[tuple[int, Callable[[], None]]] = []

    def schedule(self, at_ms, callback):
        self.due.append((at_ms, callback))


class Hand:
    """Turns whose time and CPU time are given."""

    def __init__(self, least: int) -> None:
        self.clock = ManualClock(1_000)
        self.timers = HandTimers(self.clock)
        self.cpu = 0.0
        self.turns = Turns(least, self.timers, self.clock, lambda: self.cpu)

    def look(self, *, cpu: float, late_ms: int = 0) -> None:
        ((at_ms, look),) = self.timers.due
        self.timers.due.clear()
        self.clock.advance(at_ms - self.clock.now_ms() + late_ms)
        self.cpu += cpu
        look()


def in_thread(work):
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


def waiting(hand: Hand, turn: Turn) -> threading.Thread:
    """A thread that waits for its turn, for certain."""
    before = len(hand.turns._table._waiting)
    thread = in_thread(lambda: hand.turns.begin(turn))
    while len(hand.turns._table._waiting) == before:
        assert thread.is_alive(), "it did not wait"
        time.sleep(0)
    return thread


def test_looks_measure_what_the_process_has_computed():
    """Little: the next one goes on. Much: it waits; late: it waits, too. No look when nobody waits and there are
    few."""
    hand = Hand(1)
    first = Turn()
    hand.turns.begin(first)
    assert hand.timers.due == []
    second = waiting(hand, Turn())
    wait = []
    for cpu, late_ms in ((0.020, 0), (0.001, LATE_MS), (0.001, 0)):
        hand.look(cpu=cpu, late_ms=late_ms)
        wait.append(hand.turns.somebody_waits)
    assert wait == [True, True, False]
    second.join(20)
    assert not second.is_alive()
    assert len(hand.timers.due) == 1, "there is one more than the least number"


def test_looks_end_when_there_is_no_reason_for_them():
    """And begin again with the next one that waits."""
    hand = Hand(1)
    first = Turn()
    hand.turns.begin(first)
    second = waiting(hand, other := Turn())
    hand.turns.end(first)
    second.join(20)
    hand.look(cpu=0.020)
    assert hand.timers.due == []
    third = waiting(hand, Turn())
    assert len(hand.timers.due) == 1
    hand.turns.leave(other)
    third.join(20)
    assert not third.is_alive()


# --- the shell, with threads ------------------------------------------------------------------------------------------


def test_one_works_at_a_time():
    """Eight threads that let go of Python's lock in the middle of their turn are never two in it, as long as nobody
    looks."""
    turns = Hand(1).turns
    inside, most = [], []

    def work():
        turn = Turn()
        for _ in range(20):
            turns.begin(turn)
            inside.append(1)
            most.append(len(inside))
            time.sleep(0)
            inside.pop()
            turns.end(turn)

    for thread in [in_thread(work) for _ in range(8)]:
        thread.join(20)
        assert not thread.is_alive()
    assert len(most) == 160
    assert set(most) == {1}


def test_one_that_waits_for_another_does_not_stop_it():
    """All of them wait for the last one, each in its turn: no deadlock, whatever functions do to each other."""
    clock = SystemClock()
    timers = TimerScheduler(clock)
    turns = Turns(1, timers, clock)
    has_turn, done, ended = threading.Event(), threading.Event(), []

    def waits():
        turn = Turn()
        turns.begin(turn)
        has_turn.set()
        done.wait()
        turns.end(turn)
        ended.append("waits")

    def last():
        turn = Turn()
        turns.begin(turn)
        ended.append("last")
        done.set()
        turns.end(turn)

    threads = [in_thread(waits) for _ in range(5)]
    has_turn.wait()
    threads.append(in_thread(last))
    for thread in threads:
        thread.join(20)
        assert not thread.is_alive()
    timers.close()
    assert ended == ["last", *["waits"] * 5]
    assert not turns.somebody_waits
