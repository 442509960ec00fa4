"""Whose turn it is while a batch is processed row by row: the keys of the batch, numbered, and the current one.

Row-style state reads the values of all keys of a batch at once into Python lists, on first use, and writes back what
was changed when the batch ends; rows of the same key share one entry, so they see each other's updates. That takes the
place of Flink's setCurrentKey per record; here the operator sets one integer per row.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from snapline.dataflow.columnar.kernel import I64, I32s, RO_I32s, kernel
from snapline.dataflow.errors import StateError
from snapline.taskmanager.state.index.slots import Slots, grown

_NO_SLOTS: Slots = np.zeros(0, np.int32)


@kernel(I64(RO_I32s, I32s, I32s, I32s))
def number_slots(slots: Any, numbers: Any, distinct: Any, rows: Any) -> int:
    """Number the distinct slots in order of appearance. `numbers` is by slot and need not be clean: a number is
    believed only if `distinct` confirms it."""
    count = 0
    for row in range(slots.shape[0]):
        slot = slots[row]
        number = numbers[slot]
        if number < 0 or number >= count or distinct[number] != slot:
            number = np.int32(count)
            distinct[count] = slot
            numbers[slot] = number
            count += 1
        rows[row] = number
    return count


class BatchScope:
    """The keys of the batch in progress. `index` is the number of the current key, set by the operator for each row."""

    __slots__ = ("_numbers", "index", "is_open", "now_ms", "slots")

    def __init__(self) -> None:
        self.index = 0
        self.slots: Slots = _NO_SLOTS
        """The slots of the distinct keys of the batch, by number."""
        self.is_open = False
        self._numbers: Slots = np.zeros(64, np.int32)
        self.now_ms: Callable[[], int] | None = None
        """The task's clock, which states with a time-to-live need."""

    def open(self, slots: Slots, capacity: int) -> list[int]:
        """Begin: the number of each row's key."""
        self._numbers = grown(self._numbers, capacity)
        distinct, rows = np.empty(len(slots), np.int32), np.empty(len(slots), np.int32)
        count = number_slots(slots, self._numbers, distinct, rows)
        self.slots = distinct[:count]
        self.index = 0
        self.is_open = True
        return rows.tolist()

    def close(self) -> None:
        """End: there is no current key any more."""
        self.slots = _NO_SLOTS
        self.is_open = False

    def check_open(self, state_name: str) -> None:
        """StateError unless a row is being processed."""
        if not self.is_open:
            raise StateError(
                f"state {state_name!r} was used without a current key: keyed state exists only while a row or a timer of a "
                "keyed stream is processed, not in open() or close()"
            )
