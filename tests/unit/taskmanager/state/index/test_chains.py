"""Chains of entries beside lists, and as they were when they were frozen."""

from __future__ import annotations

from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from snapline.taskmanager.state.index.chains import Chains

SLOTS, ENTRIES = 4, 40


def numbers(values: list[int]) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
    return np.array(values, np.int32)


@given(st.randoms(use_true_random=False))
def test_frozen_chains_stay_as_they_were(chance: Random) -> None:
    """Entries are appended, taken out in any order and used again, while several snapshots look at the chains."""
    chains, free = Chains(ENTRIES), list(range(ENTRIES))
    known: list[list[int]] = [[] for _ in range(SLOTS)]
    frozen: list[tuple[Any, list[list[int]]]] = []
    for _ in range(30):
        slots = [chance.randrange(SLOTS) for _ in range(chance.randrange(12))]
        if chance.random() < 0.3:
            frozen.append((chains.freeze(SLOTS, ENTRIES), [list(each) for each in known]))
        if chance.random() < 0.5:
            chance.shuffle(free)
            slots = slots[: len(free)]
            entries = [free.pop() for _ in slots]
            chains.append(numbers(slots), numbers(entries))
            for slot, entry in zip(slots, entries, strict=True):
                known[slot].append(entry)
        else:
            gone = [(slot, entry) for slot, chain in enumerate(known) for entry in chain if chance.random() < 0.5]
            chance.shuffle(gone)
            chains.unlink(numbers([slot for slot, _ in gone]), numbers([entry for _, entry in gone]))
            for slot, entry in gone:
                known[slot].remove(entry)
                free.append(entry)
    frozen.append((chains, known))
    for look, were in frozen:
        offsets, entries = look.entries(numbers(list(range(SLOTS))))
        assert [list(entries[offsets[slot] : offsets[slot + 1]]) for slot in range(SLOTS)] == were


@pytest.mark.timeout(30)
def test_taking_out_a_long_run_under_a_snapshot_looks_at_each_entry_once() -> None:
    """Where a key had so many rows that ended at one time, the task stood still for minutes after a checkpoint."""
    chains, count = Chains(131_072), 131_072
    slots, entries = np.zeros(count, np.int32), np.arange(count, dtype=np.int32)
    chains.append(slots, entries)
    frozen = chains.freeze(1, count)
    chains.unlink(slots, entries)
    assert (frozen.entries(slots[:1])[1] == entries).all()
    assert len(chains.entries(slots[:1])[1]) == 0
