"""Timers as they were when a snapshot was taken, by key, in the order in which they are due.

They are brought into order on first use, which is in the asynchronous part of a snapshot: by counting, digit by digit,
because there are many and their times are near to each other. What is here does not know queues. Takes the role of the
copy that Flink's HeapPriorityQueueStateSnapshot makes.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from snapline.dataflow.columnar.arrow_columns import BoolArray, Int64Array
from snapline.dataflow.columnar.kernel import I64, VOID, I32s, I64s, RO_I32s, RO_I64s, kernel
from snapline.taskmanager.state.index.copy_on_write import FrozenArrays
from snapline.taskmanager.state.index.slots import Slots
from snapline.taskmanager.state.index.word_key_index import FrozenWords

TIMERS_TYPE = pa.large_list(pa.struct([pa.field("timestamp", pa.int64()), pa.field("namespace", pa.int64())]))
"""A key's timers in a snapshot."""
WORDS = 3
"""Slot, namespace and time: a timer as a key of its queue's index."""
DIGIT_BITS = 11
"""One pass of a sort looks at so many bits of each number."""


@kernel(VOID(RO_I64s, I64, I64, I64s, RO_I32s, I32s))
def _order_by_digit(numbers: Any, least: int, shift: int, places: Any, order: Any, ordered: Any) -> None:
    """A counting sort by one digit of the numbers above the least. `places`: zero on entry, one more than there are
    digits. `order`: the rows as those that were looked at before have them, which is kept among equal ones."""
    last_digit = places.shape[0] - 2
    for row in range(numbers.shape[0]):
        places[(((numbers[row] - least) >> shift) & last_digit) + 1] += 1
    for digit in range(1, last_digit + 1):
        places[digit] += places[digit - 1]
    for number in range(order.shape[0]):
        row = order[number]
        digit = ((numbers[row] - least) >> shift) & last_digit
        ordered[places[digit]] = row
        places[digit] += 1


@kernel(VOID(RO_I32s, RO_I64s, RO_I64s, RO_I32s, I64s, I64s, I64s))
def _order_by_slot(
    owners: Any, all_times: Any, all_names: Any, order: Any, begins: Any, times: Any, names: Any
) -> None:
    """A counting sort by slot. `begins` has two entries more than there are slots, zero on entry: where each slot's
    begin, and behind them twice how many there are."""
    for row in range(owners.shape[0]):
        begins[owners[row] + 2] += 1
    for slot in range(2, begins.shape[0]):
        begins[slot] += begins[slot - 1]
    for number in range(order.shape[0]):
        row = order[number]
        place = begins[owners[row] + 1]
        times[place], names[place] = all_times[row], all_names[row]
        begins[owners[row] + 1] = place + 1


def _order_of(numbers: Int64Array, order: Slots) -> Slots:
    """The rows in the order of their numbers; in the given order among equal ones."""
    least, most = (int(numbers.min()), int(numbers.max())) if len(numbers) else (0, 0)
    for shift in range(0, (most - least).bit_length(), DIGIT_BITS):
        ordered = np.empty_like(order)
        _order_by_digit(numbers, least, shift, np.zeros((1 << DIGIT_BITS) + 1, np.int64), order, ordered)
        order = ordered
    return order


def timers_of(keys: FrozenWords, entries: Slots) -> tuple[Slots, Int64Array, Int64Array]:
    """Slot, namespace and time of these entries of a queue's index."""
    words = keys.gather(entries)[0].reshape(-1, WORDS)
    owners = words[:, 0].astype(np.int32)
    return owners, np.ascontiguousarray(words[:, 1]), np.ascontiguousarray(words[:, 2])


class FrozenTimers:
    """The timers of one queue, which are read by slot (FrozenColumn)."""

    __slots__ = ("_begins", "_counts", "_entries", "_keys", "_names", "_times")

    def __init__(self, keys: FrozenWords, entries: Slots | None, counts: FrozenArrays | None = None) -> None:
        """`keys`: those of a queue's index. `entries`: None for all that there were.
        `counts`: how many each slot has; None: nobody will ask which have any."""
        self._keys, self._entries, self._counts = keys, entries, counts
        self._begins: Int64Array | None = None

    def get(self, slots: Slots) -> pa.Array:
        """The timers of these slots (TIMERS_TYPE)."""
        if self._begins is None:
            self._begins = self._bring_into_order()
        begins = self._begins
        slots = np.minimum(slots, len(begins) - 2)
        first = begins[slots]
        lengths = begins[slots + 1] - first
        offsets = np.zeros(len(slots) + 1, np.int64)
        np.cumsum(lengths, out=offsets[1:])
        positions = np.repeat(first - offsets[:-1], lengths) + np.arange(offsets[-1])
        stamps = pa.StructArray.from_arrays(
            [pa.array(self._times[positions]), pa.array(self._names[positions])], fields=list(TIMERS_TYPE.value_type)
        )
        return pa.LargeListArray.from_arrays(pa.array(offsets), stamps)

    def _bring_into_order(self) -> Int64Array:
        entries = self._keys.live_slots() if self._entries is None else self._entries
        owners, names, times = timers_of(self._keys, entries)
        order = _order_of(times, _order_of(names, np.arange(len(owners), dtype=np.int32)))
        begins = np.zeros(int(owners.max(initial=-1)) + 3, np.int64)
        self._times, self._names = np.empty(len(owners), np.int64), np.empty(len(owners), np.int64)
        _order_by_slot(owners, times, names, order, begins, self._times, self._names)
        return begins

    def occupied(self) -> BoolArray:
        """For each slot, whether it had timers."""
        if self._counts is None:
            return np.zeros(0, np.bool_)
        occupied: BoolArray = self._counts.arrays()[0] > 0
        return occupied
