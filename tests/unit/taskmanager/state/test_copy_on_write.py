"""Frozen arrays show what was there, whatever is written, grown or dropped meanwhile."""

from __future__ import annotations

import threading

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from snapline.taskmanager.state.index.copy_on_write import CopyOnWrite, FrozenArrays
from snapline.taskmanager.state.index.slots import MAPPED_BYTES, grow_in_place, grown

ROWS = MAPPED_BYTES // 8  # from here on arrays grow where they lie
SLOTS = st.lists(st.integers(0, 299), max_size=40)
STEPS = st.lists(st.one_of(st.tuples(st.just("write"), SLOTS), st.tuples(st.sampled_from(["freeze", "read", "drop", "grow"]), st.just([]))), max_size=20)  # fmt: skip


@given(STEPS)
def test_any_order_of_writes_and_snapshots(steps: list[tuple[str, list[int]]]) -> None:
    """Several snapshots at once, read in any order, some never."""
    guard = CopyOnWrite()
    words, pairs = np.zeros(320, np.int64), np.zeros(640, np.uint8)
    high, value = 250, 0
    frozen = []
    for step, slots in steps:
        match step:
            case "write":
                chosen = np.array([slot for slot in slots if slot < len(words)], np.int32)
                value += 1
                guard.before_write(chosen)
                words[chosen] = value
                pairs[2 * chosen + 1] = value
            case "freeze":
                frozen.append(
                    (guard.freeze([words, pairs], high, [1, 2]), words[:high].copy(), pairs[: 2 * high].copy())
                )
            case "grow":
                words, pairs = grown(words, len(words) + 64), grown(pairs, len(pairs) + 128)
            case "drop" if frozen:
                frozen.pop()
            case "read" if frozen:
                first, was, were = frozen.pop(0)
                assert [was.tolist(), were.tolist()] == [array.tolist() for array in first.arrays()]
    for last, was, were in frozen:
        assert [was.tolist(), were.tolist()] == [array.tolist() for array in last.arrays()]
        assert not last.is_moving
    guard.before_write(np.array([0], np.int32))
    assert not guard.is_needed


@given(STEPS, st.lists(SLOTS, max_size=3))
def test_rows_that_stay_are_read_where_they_lie(steps: list[tuple[str, list[int]]], reads: list[list[int]]) -> None:
    """Several snapshots at once, of arrays that grow where they lie; each is read in parts, with writes in between."""
    guard, arrays = CopyOnWrite(), {"words": np.arange(ROWS), "flags": np.zeros(ROWS, np.bool_)}
    grow_in_place(arrays, "words", ROWS + 1)
    grow_in_place(arrays, "flags", ROWS + 1)
    high, value = 250, 0
    frozen = []

    def check(first: FrozenArrays, was: list[np.ndarray]) -> None:
        for slots in reads:
            chosen = np.array([slot for slot in slots if slot < high], np.int32)
            assert [array[chosen].tolist() for array in was] == [array.tolist() for array in first.at(chosen)]

    for step, slots in steps:
        match step:
            case "write":
                chosen = np.array(slots, np.int32)
                value += 1
                guard.before_write(chosen)
                arrays["words"][chosen] = value
                arrays["flags"][chosen] = value % 2 == 0
            case "freeze":
                now = list(arrays.values())
                frozen.append((guard.freeze(now, high, stays=True), [array[:high].copy() for array in now]))
            case "grow":
                for name, array in list(arrays.items()):
                    grow_in_place(arrays, name, len(array) + 64)
            case "drop" if frozen:
                frozen.pop()
            case "read" if frozen:
                check(*frozen[0])
    for first, was in frozen:
        check(first, was)
        assert first.is_moving


def test_read_in_another_thread_while_it_is_written() -> None:
    """Every word is that of the moment, although the writer goes on all the time."""
    guard = CopyOnWrite()
    words = np.zeros(200_000, np.int64)
    random = np.random.default_rng(3)
    for number in range(20):
        frozen = guard.freeze([words], len(words))
        found: list[np.ndarray] = []
        reader = threading.Thread(target=lambda frozen=frozen, found=found: found.extend(frozen.arrays()))
        expected = words.copy()
        reader.start()
        while reader.is_alive():
            slots = random.integers(0, len(words), 2_000).astype(np.int32)
            guard.before_write(slots)
            words[slots] = number + 1
        reader.join()
        assert np.array_equal(found[0], expected)


def test_read_in_parts_in_another_thread_while_it_is_written() -> None:
    """Nothing but what is asked for is copied, and every word is that of the moment, although the writer goes on."""
    guard = CopyOnWrite()
    words = np.zeros(200_000, np.int64)
    random = np.random.default_rng(3)
    for number in range(10):
        frozen = guard.freeze([words], len(words), stays=True)
        found: list[np.ndarray] = []

        def read(frozen: FrozenArrays = frozen, found: list[np.ndarray] = found) -> None:
            begins = range(0, len(words), 10_000)
            found.extend(frozen.at(np.arange(begin, begin + 10_000, dtype=np.int32))[0] for begin in begins)

        reader = threading.Thread(target=read)
        expected = words.copy()
        reader.start()
        while reader.is_alive():
            slots = random.integers(0, len(words), 2_000).astype(np.int32)
            guard.before_write(slots)
            words[slots] = number + 1
        reader.join()
        assert np.array_equal(np.concatenate(found), expected)
        assert frozen.is_moving
        del frozen, read


def test_freezing_costs_nothing_that_grows_with_the_arrays() -> None:
    """Nothing is copied but the pages of slots that are written."""
    guard = CopyOnWrite()
    words = np.zeros(1 << 20, np.int64)
    frozen = guard.freeze([words], len(words))
    guard.before_write(np.array([5, 6, 70], np.int32))

    assert frozen._kept.sum() == 2
