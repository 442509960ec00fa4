"""Turns of tasks: so many at a time, in order, and nobody keeps one that they do not need."""

from __future__ import annotations

import threading
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.clock import SystemClock
from runtime.timers import TimerService
from taskmanager.turns import FREE_MS, LONG_MS, LOOK_MS, Turn, Turns, TurnTable, waits_for_something_else

# --- the core ---------------------------------------------------------------------------------------------------------------

IDLE, BUSY = 0.1, 1.2
"""What a process computes, in cores."""


def test_turns_go_round_in_order():
    """Two at a time; who gives theirs back lets the first one that waits go on."""
    table: TurnTable[str] = TurnTable(2)
    assert [table.ask(who, 0) for who in "abcd"] == [True, True, False, False]
    assert table.give_back("b", 5) == "c"
    assert not table.ask("b", 5)
    assert [table.give_back(who, 10) for who in "acdb"] == ["d", "b", None, None]
    assert not table.somebody_waits


def test_nobody_asks_twice():
    """Whoever has a turn or waits for one does not ask for another: that would be one thread in two places."""
    table: TurnTable[str] = TurnTable(1)
    for who in "ab":
        table.ask(who, 0)
        with pytest.raises(ValueError, match=f"{who} has a turn or waits for one already"):
            table.ask(who, 0)


def test_whoever_sleeps_lends_their_turn_and_goes_without_for_a_while():
    """The next one works meanwhile, and the sleeper disturbs nobody when it wakes."""
    table: TurnTable[str] = TurnTable(1)
    table.ask("sleeper", 0)
    table.ask("worker", 0)
    assert table.lend(LOOK_MS - 1, IDLE, lambda who: 0.0) == []
    assert table.lend(LOOK_MS, IDLE, lambda who: 0.0) == ["worker"]
    assert table.give_back("sleeper", 30) is None
    assert table.ask("sleeper", 31), "it goes without"
    assert table.give_back("sleeper", 40) is None
    assert not table.ask("sleeper", LOOK_MS + FREE_MS), "the worker has the only turn"


def test_nobody_lends_to_nobody():
    """A turn that nobody wants is kept, however long."""
    table: TurnTable[str] = TurnTable(1)
    table.ask("sleeper", 0)
    assert table.lend(10_000, IDLE, lambda who: 0.0) == []


@pytest.mark.parametrize(
    ("kept_ms", "process", "thread", "waits"),
    [
        (LOOK_MS - 1, 0.0, 0.0, False),
        (LOOK_MS, 0.1, 0.0, True),
        (LOOK_MS, 1.0, 0.0, False),
        (LONG_MS, 1.0, 0.0, True),
        (LONG_MS, 1.0, 0.2, False),
        (10 * LONG_MS, 1.0, 0.9, False),
    ],
    ids=["not for long", "nobody computes", "others compute", "others compute, for long", "gets little", "computes"],
)
def test_not_to_compute_is_not_enough(kept_ms, process, thread, waits):
    """Whoever waits for Python's lock does not compute either, while others do."""
    assert waits_for_something_else(kept_ms, process, thread) is waits


ACTIONS = st.lists(
    st.tuples(st.sampled_from(["ask", "give back", "look"]), st.integers(0, 7), st.integers(0, 60)), max_size=80
)


@given(limit=st.integers(1, 3), sleepers=st.sets(st.integers(0, 7)), actions=ACTIONS)
def test_no_turn_is_lost_and_none_is_given_twice(limit, sleepers, actions):
    """Against lists: in order, never more than the limit but for those who lent theirs, nobody waits while a turn is free, and everybody
    who waits is called once."""
    table: TurnTable[int] = TurnTable(limit)
    working: set[int] = set()
    without: set[int] = set()
    waiting: list[int] = []
    now = 0

    def called(who):
        assert who == waiting.pop(0)
        working.add(who)

    for action, who, later in actions:
        now += later
        if action == "ask" and who not in working | without and who not in waiting:
            if not table.ask(who, now):
                assert len(working) == limit
                waiting.append(who)
            elif len(working) < limit and not table_lent(table, who):
                working.add(who)
            else:
                without.add(who)
        elif action == "give back" and who in working | without:
            next_one = table.give_back(who, now)
            if who in without:
                assert next_one is None
            without.discard(who)
            working.discard(who)
            if next_one is not None:
                called(next_one)
        elif action == "look":
            lenders = set(working)
            for next_one in table.lend(now, BUSY, lambda one: 0.0 if one in sleepers else 0.5):
                called(next_one)
            lent = {one for one in lenders if table_lent(table, one)}
            assert lent <= sleepers
            working -= lent
            without |= lent
        assert len(working) <= limit
        assert not waiting or len(working) == limit
        assert table.somebody_waits == bool(waiting)


def table_lent(table: TurnTable[int], who: int) -> bool:
    """Whether it goes on without a turn: what it gives back is nobody's."""
    return who not in table.holders


# --- threads ------------------------------------------------------------------------------------------------------------------


@pytest.fixture
def turns():
    clock = SystemClock()
    timers = TimerService(clock)
    yield Turns(1, timers, clock)
    timers.close()


def in_thread(work):
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


def test_one_works_at_a_time(turns):
    """Eight threads that let go of Python's lock in the middle of their turn are never two in it."""
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


def test_one_that_waits_for_another_does_not_stop_it(turns):
    """The turn of the first is lent to the second, for whom it waits: no deadlock, whatever functions do to each other."""
    has_turn, done = threading.Event(), threading.Event()

    def first():
        turn = Turn()
        turns.begin(turn)
        has_turn.set()
        done.wait(20)
        turns.end(turn)

    def second():
        turn = Turn()
        has_turn.wait(20)
        turns.begin(turn)
        done.set()
        turns.end(turn)

    for thread in (in_thread(first), in_thread(second)):
        thread.join(20)
        assert not thread.is_alive()
    assert not turns.somebody_waits
