"""Arrays that grow in place."""

from __future__ import annotations

import numpy as np
import pytest

from snapline.taskmanager.state.index.slots import MAPPED_BYTES, grow_in_place


class Owner:
    """Of one array."""

    def __init__(self, array: np.ndarray) -> None:
        self.array = array


@pytest.mark.parametrize("dtype", [np.int64, np.bool_, np.float32])
def test_elements_stay_and_new_ones_are_zero(dtype: type) -> None:
    """Small, then large, then larger; as an attribute and as an item."""
    values: np.ndarray = np.arange(1000).astype(dtype)
    owner, items = Owner(values.copy()), {"array": values.copy()}
    for capacity in (500, 2000, 2 * MAPPED_BYTES, 5 * MAPPED_BYTES, 3 * MAPPED_BYTES):
        for holder in (owner, items):
            grow_in_place(holder, "array", capacity)
        for array in (owner.array, items["array"]):
            assert len(array) >= capacity
            assert np.array_equal(array[:1000], values)
            assert not array[1000:].any()
            assert array.flags.writeable and array.flags.c_contiguous and array.dtype == dtype


@pytest.mark.parametrize("somebody_looks", [False, True])
def test_growth_by_far_keeps_what_was_there(*, somebody_looks: bool) -> None:
    """Far beyond the addresses that were asked for at first, whether or not somebody else still looks at the array."""
    owner = Owner(np.zeros(10, np.int64))
    grow_in_place(owner, "array", MAPPED_BYTES // 8)
    owner.array[:] = 1
    seen = owner.array[:5] if somebody_looks else None
    for times in (2, 4, 8, 16, 32):
        grow_in_place(owner, "array", times * MAPPED_BYTES // 8)
    owner.array[MAPPED_BYTES // 8 :] = 2

    assert (owner.array[: MAPPED_BYTES // 8] == 1).all()
    assert (owner.array[MAPPED_BYTES // 8 :] == 2).all() and len(owner.array) == 4 * MAPPED_BYTES
    assert seen is None or (seen == 1).all()


def test_growth_copies_nothing_although_somebody_looks() -> None:
    """A snapshot reads the array while it doubles: the larger one lies where it lay."""
    owner = Owner(np.zeros(10, np.int64))
    grow_in_place(owner, "array", MAPPED_BYTES // 8)
    seen = owner.array[:5]
    grow_in_place(owner, "array", MAPPED_BYTES // 4)

    assert np.shares_memory(seen, owner.array)
