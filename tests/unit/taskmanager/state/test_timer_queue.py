"""Timers against a set: registered once, deleted, due in order and in slices, frozen and restored."""

from __future__ import annotations

from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from snapline.dataflow.errors import StateError
from snapline.taskmanager.state.batch_scope import BatchScope
from snapline.taskmanager.state.keyed_timers import KeyedTimers
from snapline.taskmanager.state.timer_order import DIGITS, SIZE, sort
from snapline.taskmanager.state.timer_queue import TimerQueue

SLOTS = 6
EVERYTHING = np.arange(SLOTS, dtype=np.int32)
timers = st.tuples(st.integers(0, 9), st.integers(0, 2), st.integers(0, SLOTS - 1))
"""(timestamp, namespace, slot): the order in which they are due."""
Timer = tuple[int, int, int]


def arrays(rows: list[Timer]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    slots = np.array([slot for _, _, slot in rows], np.int32)
    times = np.array([time for time, _, _ in rows], np.int64)
    return slots, times, np.array([namespace for _, namespace, _ in rows], np.int64)


def drain(queue: TimerQueue, until: int, limit: int) -> list[Timer]:
    fired: list[Timer] = []
    while queue.has_due(until):
        part = queue.advance(until, limit)
        assert 0 < len(part.slots) <= limit
        fired += zip(part.timestamps.tolist(), part.namespaces.tolist(), part.slots.tolist(), strict=True)
    assert len(queue.advance(until, limit).slots) == 0
    return fired


@pytest.mark.parametrize("least_run", [1, 4, 256])
@given(data=st.data())
def test_against_a_set(least_run: int, data: st.DataObject) -> None:
    """Register, delete, advance, freeze in any order and any slices, out of the heap or out of runs."""
    with patch("snapline.taskmanager.state.timer_queue.LEAST_RUN", least_run):
        against_a_set(data)


def against_a_set(data: st.DataObject) -> None:
    """Let a queue and a set do the same."""
    queue = TimerQueue()
    reference: set[Timer] = set()
    for _ in range(data.draw(st.integers(1, 8))):
        match data.draw(st.sampled_from(["register", "delete", "slice", "advance", "restore"])):
            case "register":
                rows = data.draw(st.lists(timers, max_size=12))
                queue.register(*arrays(rows))
                reference |= set(rows)
            case "delete":
                rows = data.draw(st.lists(timers, max_size=8))
                queue.delete(*arrays(rows))
                reference -= set(rows)
            case "slice":
                until, limit = data.draw(st.integers(0, 9)), data.draw(st.integers(1, 5))
                part = queue.advance(until, limit)
                due = sorted(timer for timer in reference if timer[0] <= until)[:limit]
                assert due == [*zip(*(column.tolist() for column in (part[2], part[1], part[0])), strict=True)]
                reference -= set(due)
            case "advance":
                until, limit = data.draw(st.integers(0, 9)), data.draw(st.integers(1, 5))
                due = sorted(timer for timer in reference if timer[0] <= until)
                assert due == drain(queue, until, limit)
                reference -= set(due)
            case _:
                frozen = queue.freeze(SLOTS).get(EVERYTHING)
                queue.register(EVERYTHING, np.zeros(SLOTS, np.int64))
                queue = TimerQueue()
                queue.restore(EVERYTHING[3:], frozen.slice(3))
                queue.restore(EVERYTHING[:3], frozen.slice(0, 3))
        assert len(queue) == len(reference)
        assert min((time for time, _, _ in reference), default=None) == queue.next_timestamp()
        assert [any(slot == own for _, _, own in reference) for slot in range(SLOTS)] == queue.occupied(SLOTS).tolist()

    assert sorted(reference) == drain(queue, 9, 100)


def test_deleted_timers_do_not_pile_up() -> None:
    """A timer that is moved with every row leaves nothing behind, although nothing ever fires."""
    queue = TimerQueue()
    slot, none = np.zeros(1, np.int32), np.zeros(1, np.int64)
    for time in range(5000):
        queue.register(slot, none + time)
        queue.delete(slot, none + time - 1)

    assert len(queue) == 1
    assert queue._ends[SIZE] < 3000
    assert drain(queue, 5000, 10) == [(4999, 0, 0)]


def test_many_timers_in_slices() -> None:
    """A million would come the same way: in order, no slice above the limit."""
    queue = TimerQueue()
    generator = np.random.default_rng(5)
    times = generator.integers(0, 1000, 5000)
    queue.grow(5000)
    queue.register(np.arange(5000, dtype=np.int32), times)
    fired = drain(queue, 499, 64)

    assert fired == sorted(fired)
    assert len(fired) == int((times < 500).sum())
    assert queue.next_timestamp() == 500


def test_a_timer_that_is_registered_while_others_fire_has_its_place_among_them() -> None:
    """A thousand are due at once, and have left the heap; what comes between two slices is earlier than most."""
    queue = TimerQueue()
    queue.grow(1000)
    queue.register(np.arange(1000, dtype=np.int32), np.arange(1000) * 10)
    fired = queue.advance(9_990, 300).timestamps.tolist()
    queue.register(np.array([1, 2], np.int32), np.array([5, 3_005]))
    queue.delete(np.array([301], np.int32), np.array([3_010]))
    assert fired == [10 * number for number in range(300)]
    assert queue.next_timestamp() == 5
    assert queue.advance(9_990, 4).timestamps.tolist() == [5, 3_000, 3_005, 3_020]
    assert queue.advance(3_030, 9).timestamps.tolist() == [3_030]
    assert queue.next_timestamp() == 3_040


def test_a_timer_that_is_due_together_with_one_that_was_deleted_fires() -> None:
    """A thousand are due at once, and have left the heap. The first of those that are left is deleted, and another one
    of a lower key registered for the same time: who asks what is due next does not lose it."""
    queue = TimerQueue()
    queue.grow(1000)
    queue.register(np.arange(1000, dtype=np.int32), np.full(1000, 60_000))
    assert queue.advance(60_000, 300).slots.tolist() == list(range(300))
    queue.delete(np.array([300], np.int32), np.array([60_000]))
    queue.register(np.array([7], np.int32), np.array([60_000]))
    assert queue.next_timestamp() == 60_000
    assert drain(queue, 60_000, 300) == [(60_000, 0, slot) for slot in (7, *range(301, 1000))]
    assert len(queue) == 0


def test_what_will_be_due_soon_leaves_the_heap_with_what_is() -> None:
    """Time goes on by a hundred and then by a few: the timers after them are sorted already, and those that were
    registered or deleted since have their places all the same."""
    queue = TimerQueue()
    queue.grow(2000)
    queue.register(np.arange(2000, dtype=np.int32), np.arange(2000))
    assert drain(queue, 299, 1000) == [(time, 0, time) for time in range(300)]
    assert queue._ends[SIZE] < 1100

    queue.register(np.array([7, 8], np.int32), np.array([302, 999]))
    queue.delete(np.array([303], np.int32), np.array([303]))
    assert queue.next_timestamp() == 300
    assert drain(queue, 304, 2) == [(300, 0, 300), (301, 0, 301), (302, 0, 7), (302, 0, 302), (304, 0, 304)]
    assert drain(queue, 2000, 64) == sorted([(time, 0, time) for time in range(305, 2000)] + [(999, 0, 8)])


whole = st.integers(-(2**63), 2**63 - 1)


@given(st.lists(st.tuples(whole | st.integers(0, 3), whole | st.integers(0, 3), st.integers(0, 2**31 - 1))))
def test_timers_are_sorted_whatever_their_range(rows: list[Timer]) -> None:
    """By timestamp, namespace and slot, negative ones and the ends of the range included."""
    slots, times, namespaces = arrays(rows)
    timers = times, namespaces, slots
    other = np.empty_like(times), np.empty_like(namespaces), np.empty_like(slots)
    result = other if sort(*timers, *other, np.empty(DIGITS, np.int64)) else timers
    assert [*zip(*(column.tolist() for column in result), strict=True)] == sorted(rows)


def test_timers_of_the_current_key() -> None:
    """Row by row, the last word on a timer counts; domains do not mix; without a key there is no timer."""
    scope = BatchScope()
    keyed = KeyedTimers("user-timers", scope, 64)
    first, second = sorted(set(scope.open(np.array([7, 3], np.int32), 64)))
    scope.index = first
    keyed.register_event_time_timer(5)
    keyed.register_event_time_timer(6)
    keyed.delete_event_time_timer(5)
    scope.index = second
    keyed.delete_event_time_timer(5)
    keyed.register_event_time_timer(5)
    keyed.register_processing_time_timer(9)
    keyed.flush()
    scope.close()

    assert drain(keyed.event, 10, 10) == [(5, 0, 3), (6, 0, 7)]
    assert drain(keyed.processing, 10, 10) == [(9, 0, 3)]
    with pytest.raises(StateError, match="without a current key"):
        keyed.register_event_time_timer(1)


def test_what_rows_ask_for_counts_in_their_order() -> None:
    """One that was registered, deleted and registered again is there; one that was deleted last is not; one that was
    registered twice is there once."""
    scope = BatchScope()
    timers = KeyedTimers("t", scope, 4)
    scope.open(np.array([3], np.int32), 4)
    for at_ms in (10, 10, 20, 30):
        timers.register_event_time_timer(at_ms)
    timers.delete_event_time_timer(20)
    timers.delete_event_time_timer(30)
    timers.register_event_time_timer(20)

    timers.flush()

    assert [10, 20] == timers.event.advance(100, 10).timestamps.tolist()
    timers.register_event_time_timer(10)
    timers.flush()
    assert [10] == timers.event.advance(100, 10).timestamps.tolist()


def test_frozen_timers_are_lists_by_slot() -> None:
    """In the order in which they are due, with namespaces."""
    queue = TimerQueue()
    queue.register(*arrays([(5, 1, 2), (3, 0, 2), (5, 0, 2), (1, 0, 0)]))

    column = queue.freeze(SLOTS).get(np.array([2, 1, 0], np.int32))

    column.validate(full=True)
    assert column.to_pylist() == [
        [{"timestamp": 3, "namespace": 0}, {"timestamp": 5, "namespace": 0}, {"timestamp": 5, "namespace": 1}],
        [],
        [{"timestamp": 1, "namespace": 0}],
    ]
    assert isinstance(column, pa.LargeListArray)


@given(
    st.lists(
        st.tuples(st.integers(-(2**63), 2**63 - 1) | st.integers(0, 9), st.integers(-2, 2), st.integers(0, SLOTS - 1)),
        unique=True,
        max_size=60,
    ),
    st.lists(st.integers(0, SLOTS + 1), unique=True),
)
def test_frozen_timers_are_in_the_order_in_which_they_are_due(rows: list[Timer], asked: list[int]) -> None:
    """Many of one key as well, in whatever order they were registered; a key that has none since has an empty list."""
    queue = TimerQueue()
    queue.register(*arrays(rows))
    queue.grow(SLOTS + 2)

    column = queue.freeze(SLOTS + 2).get(np.array(asked, np.int32))

    column.validate(full=True)
    assert [[(timer["timestamp"], timer["namespace"]) for timer in key] for key in column.to_pylist()] == [
        sorted((time, namespace) for time, namespace, slot in rows if slot == each) for each in asked
    ]
