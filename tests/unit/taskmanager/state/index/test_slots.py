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


def test_who_looks_at_an_array_keeps_it_as_it_was() -> None:
    """It is copied then, and writes to the new one do not show in the old one."""
    owner = Owner(np.zeros(10, np.int64))
    grow_in_place(owner, "array", MAPPED_BYTES)
    owner.array[:] = 1
    seen = owner.array[: MAPPED_BYTES // 2]
    grow_in_place(owner, "array", 2 * MAPPED_BYTES)
    owner.array[:] = 2
    assert (seen == 1).all()
    del seen
    grow_in_place(owner, "array", 4 * MAPPED_BYTES)
    assert (owner.array[: 2 * MAPPED_BYTES] == 2).all()
