"""Timers as they were when a snapshot was taken, by key, in the order in which they are due.

Brought into order on first use, which is in the asynchronous part of a snapshot: counted by slot, and sorted within
each. It does not know queues. Takes the role of the copy that Flink's HeapPriorityQueueStateSnapshot makes.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from snapline.dataflow.columnar.arrow_columns import BoolArray, Int64Array, numpy_values
from snapline.dataflow.columnar.kernel import I64, VOID, I64s, RO_I32s, RO_I64s, inlined, kernel
from snapline.taskmanager.state.index.copy_on_write import FrozenArrays
from snapline.taskmanager.state.index.slots import Slots

TIMERS_TYPE = pa.large_list(pa.struct([pa.field("timestamp", pa.int64()), pa.field("namespace", pa.int64())]))
"""A key's timers in a snapshot."""


@inlined
def _comes_before(times: Any, names: Any, left: Any, right: Any) -> Any:
    if times[left] != times[right]:
        return times[left] < times[right]
    return names[left] < names[right]


@inlined
def _exchange(times: Any, names: Any, left: Any, right: Any) -> None:
    times[left], times[right] = times[right], times[left]
    names[left], names[right] = names[right], names[left]


@inlined
def _sink(times: Any, names: Any, begin: Any, parent: Any, size: Any) -> None:
    """Let an element of the heap at `begin` go down to where none below comes after it."""
    while True:
        child = 2 * parent + 1
        if child >= size:
            break
        if child + 1 < size and _comes_before(times, names, begin + child, begin + child + 1):
            child += 1
        if not _comes_before(times, names, begin + parent, begin + child):
            break
        _exchange(times, names, begin + parent, begin + child)
        parent = child


@kernel(VOID(RO_I32s, RO_I64s, RO_I64s, I64, I64s, I64s, I64s))
def _order_by_slot(
    owners: Any, all_times: Any, all_names: Any, slots: int, begins: Any, times: Any, names: Any
) -> None:
    """A counting sort by slot, and a heap sort within each. `begins` has two entries more than there are slots, zero on
    entry: where each slot's begin, and behind them twice how many there are."""
    for row in range(owners.shape[0]):
        begins[owners[row] + 2] += 1
    for slot in range(2, slots + 2):
        begins[slot] += begins[slot - 1]
    for row in range(owners.shape[0]):
        place = begins[owners[row] + 1]
        times[place], names[place] = all_times[row], all_names[row]
        begins[owners[row] + 1] = place + 1
    for slot in range(slots):
        begin = begins[slot]
        size = begins[slot + 1] - begin
        for turn in range(size // 2):
            _sink(times, names, begin, size // 2 - 1 - turn, size)
        for turn in range(size - 1):
            last = size - 1 - turn
            _exchange(times, names, begin, begin + last)
            _sink(times, names, begin, 0, last)


class FrozenTimers:
    """The timers of one queue, which are read by slot (FrozenColumn)."""

    __slots__ = ("_begins", "_counts", "_entries", "_keys", "_names", "_times")

    def __init__(self, keys: Any, entries: Slots | None, counts: FrozenArrays | None = None) -> None:
        """`keys`: slot, namespace and time of each entry of a queue's index. `entries`: None for all that there were.
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
        owners, names, times = (numpy_values(column) for column in self._keys.keys(entries))
        slots = int(owners.max()) + 1 if len(owners) else 0
        begins = np.zeros(slots + 2, np.int64)
        self._times, self._names = np.empty(len(owners), np.int64), np.empty(len(owners), np.int64)
        _order_by_slot(owners, times, names, slots, begins, self._times, self._names)
        return begins

    def occupied(self) -> BoolArray:
        """For each slot, whether it had timers."""
        if self._counts is None:
            return np.zeros(0, np.bool_)
        occupied: BoolArray = self._counts.arrays()[0] > 0
        return occupied
