"""Large arrays are arrays like others."""

from __future__ import annotations

import numpy as np
import pytest

from snapline.dataflow.columnar.large_arrays import HUGE_PAGES_BYTES, copied, empty_array


@pytest.mark.parametrize(
    "length", [0, 1, HUGE_PAGES_BYTES // 16, HUGE_PAGES_BYTES // 16 + 1, HUGE_PAGES_BYTES // 8 + 3]
)
def test_length_and_content(length: int) -> None:
    """Whatever they are cut from."""
    array = empty_array(length, np.int64)
    assert array.shape == (length,) and array.dtype == np.int64 and array.flags.c_contiguous
    array[:] = np.arange(length)

    assert np.array_equal(copied(array), np.arange(length))
