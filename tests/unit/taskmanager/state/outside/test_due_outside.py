"""When keys outside are due, beside a dictionary."""

from __future__ import annotations

from itertools import chain

import numpy as np
import pytest

from snapline.taskmanager.state.adopted_state import NEVER_DUE
from snapline.taskmanager.state.outside.due_outside import DueOutside


def note(due: DueOutside, times: dict[int, int]) -> None:
    due.note(np.array(list(times), np.int32), np.array(list(times.values()), np.int64))


def take_all(due: DueOutside, until: int, limit: int) -> list[list[int]]:
    """What is taken, slice by slice."""
    taken = []
    while (earliest := due.earliest) is not None and earliest <= until:
        taken.append(due.take(until, limit).tolist())
    return taken


def test_what_is_due_first_comes_first() -> None:
    """At most so many at once, once each; what was not due stays."""
    due = DueOutside()
    note(due, {7: 30, 1: 10, 5: NEVER_DUE})
    note(due, {2: 20, 3: 10, 4: 40})

    assert take_all(due, 30, 2) == [[1, 3], [2, 7]]
    assert due.earliest == 40
    assert take_all(due, 100, 2) == [[4]]


def test_the_last_word_counts() -> None:
    """A key that is due later, earlier, never, gone or its old time again is due once."""
    due = DueOutside()
    note(due, {1: 10, 2: 50, 3: 10, 4: 10, 5: 10})
    note(due, {1: 60, 2: 20, 3: NEVER_DUE, 5: 70})
    note(due, {5: 10})
    due.forget(np.array([4, 999], np.int32))

    assert sorted(chain.from_iterable(take_all(due, 50, 3))) == [2, 5]
    assert take_all(due, 100, 3) == [[1]]


@pytest.mark.parametrize("seed", range(3))
def test_keys_that_come_and_go(seed: int) -> None:
    """As a dictionary has it; entries stay in proportion to keys, however often these are noted."""
    random = np.random.default_rng(seed)
    due, known = DueOutside(), {}
    for clock in range(0, 20_000, 100):
        keys = random.permutation(500)[: random.integers(1, 200)]
        times = {int(key): int(clock + random.integers(0, 5_000)) for key in keys}
        note(due, times)
        known.update(times)
        gone = random.permutation(500)[:5].astype(np.int32)
        due.forget(gone)
        for key in gone.tolist():
            known.pop(key, None)
        expected = {key for key, time in known.items() if time <= clock}
        taken = list(chain.from_iterable(take_all(due, clock, 7)))
        assert len(taken) == len(set(taken))
        assert set(taken) == expected
        for key in expected:
            del known[key]
        assert sum(len(times) for times, _ in due._runs) < 4_000
