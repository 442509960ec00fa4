"""Arrays that are large and short-lived: made so that the operating system hands out their memory in few large pages.

Touching fresh memory page by page (4 KiB) costs more than what is then written there. numpy asks for huge pages from 4
MiB on; an array of half of that or more is the beginning of one that large here. What is not touched takes no memory.
What Arrow raises where a column would be too large is named here, too.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

HUGE_PAGES_BYTES = 4 << 20
"""From here on numpy asks for huge pages."""
TOO_LARGE = (pa.ArrowInvalid, pa.ArrowCapacityError, OverflowError)
"""What is raised for more text, or more elements, than the 32 bits of an array's offsets can say."""


def empty_array(length: int, dtype: Any) -> np.ndarray[Any, Any]:
    """Return what `np.empty` returns, in memory that the system takes back when it is freed."""
    itemsize = np.dtype(dtype).itemsize
    if 2 * length * itemsize < HUGE_PAGES_BYTES:
        return np.empty(length, dtype)
    return np.empty(max(length, HUGE_PAGES_BYTES // itemsize + 1), dtype)[:length]


def copied(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """A copy of an array of one dimension."""
    copy = empty_array(len(array), array.dtype)
    np.copyto(copy, array)
    return copy
