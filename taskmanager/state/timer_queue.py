"""Timers of keys: a set of (slot, namespace, timestamp) and the order in which they are due.

Registering twice is once. `advance` hands out what is due in bounded slices, ordered by timestamp, then namespace, then
slot, so that a barrier never waits for a million of them. The set is the truth; the heap may also hold what was deleted
since, which is skipped when its time comes. Where much of the heap is due at once it is taken out and sorted, which
costs a tenth of what the heap does. A namespace is a number that the operator gives a meaning to (a window's
start; 0 for the timers of a KeyedProcessFunction). Mirrors Flink's InternalTimerServiceImpl and HeapPriorityQueueSet.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from snapline.dataflow.columnar.arrow_columns import BoolArray, Int64Array, numpy_values
from snapline.dataflow.columnar.kernel import I64, BOOLs, I64s, RO_I32s, kernel
from snapline.taskmanager.state.columns import FrozenColumn
from snapline.taskmanager.state.frozen_timers import WORDS, FrozenTimers, timers_of
from snapline.taskmanager.state.index.copy_on_write import CopyOnWrite
from snapline.taskmanager.state.index.slots import Slots, doubled, grown
from snapline.taskmanager.state.index.word_key_index import WordKeyIndex
from snapline.taskmanager.state.timer_order import DIGITS, RUN_AT, SIZE, pop, push, sort, take_due

VOID_NAMESPACE = 0
_ONE = np.int32(1)
"""With a number of another type than the counts' numpy takes 53 ns for each slot, and 2 with this one."""
_REBUILD_SLACK = 1024
LEAST_RUN = 256
"""Fewer timers are taken out of the heap one by one."""
RUN_SHARE = 32
"""So is what is less than one in so many of the heap."""
RUN_AHEAD = 7
"""With what has become due, timers are taken out of the heap that will be when time has gone on so many times as far:
each time some are taken out, all others are looked at."""
LONGEST_RUN = 1 << 18
"""Roughly as many, and half of the heap, are taken out at most before they are due."""
_SAMPLES = 64


@kernel(I64(RO_I32s, BOOLs, I64s))
def _note_registered(entries: Any, registered: Any, rows: Any) -> int:
    """Note these entries as registered; the first row of each that was not."""
    count = 0
    for row in range(entries.shape[0]):
        if not registered[entries[row]]:
            registered[entries[row]] = True
            rows[count] = row
            count += 1
    return count


class FiredTimers(NamedTuple):
    """Timers that were due, in order; they are no longer registered."""

    slots: Slots
    namespaces: Int64Array
    timestamps: Int64Array


class TimerQueue:
    """The timers of one time domain, for all keys of a subtask."""

    __slots__ = ("_counts", "_ends", "_guard", "_index", "_namespaces", "_registered", "_run", "_slots", "_times")

    def __init__(self) -> None:
        self._index = WordKeyIndex(WORDS)
        self._registered: BoolArray = np.zeros(64, np.bool_)
        """Whether an entry of the index stands for a timer, by entry."""
        self._times: Int64Array = np.zeros(64, np.int64)
        self._namespaces: Int64Array = np.zeros(64, np.int64)
        self._slots: Slots = np.zeros(64, np.int32)
        self._ends: Int64Array = np.zeros(2, np.int64)
        """How many are in the heap, and how many of the run have been handed out."""
        self._run = _timers(0)
        """Timers that were due together, in order; they are not in the heap any more."""
        self._counts: Slots = np.zeros(64, np.int32)
        self._guard = CopyOnWrite()

    def __len__(self) -> int:
        """Return how many timers are registered."""
        return len(self._index)

    def grow(self, capacity: int) -> None:
        """Make room for slots below `capacity`."""
        self._counts = grown(self._counts, capacity)

    def register(self, slots: Slots, timestamps: Int64Array, namespaces: Int64Array | None = None) -> None:
        """Add timers; those that are there stay as they are."""
        names = _namespaces_or_void(namespaces, len(slots))
        entries = self._index.lookup_or_insert(_words(slots, names, timestamps), None)
        self._registered = grown(self._registered, self._index.allocator.capacity)
        rows = np.empty(len(slots), np.int64)
        rows = rows[: _note_registered(entries, self._registered, rows)]
        if not len(rows):
            return
        slots, timestamps = slots[rows], np.asarray(timestamps)
        self._guard.before_write(slots)
        np.add.at(self._counts, slots, _ONE)
        self._make_room(len(rows))
        push(timestamps[rows], names[rows], slots, self._ends, self._times, self._namespaces, self._slots)

    def delete(self, slots: Slots, timestamps: Int64Array, namespaces: Int64Array | None = None) -> None:
        """Forget timers; those that are not there are skipped."""
        names = _namespaces_or_void(namespaces, len(slots))
        entries = self._index.lookup(_words(slots, names, timestamps), None)
        entries, rows = np.unique(entries, return_index=True)
        known = entries >= 0
        self._forget(entries[known], slots[rows[known]])
        if self._ends[SIZE] > 2 * len(self._index) + _REBUILD_SLACK:
            self._rebuild()

    def take_slots(self, slots: Slots) -> pa.Array:
        """The timers of these slots, each named once, as `restore` takes them (TIMERS_TYPE); they are forgotten."""
        entries = self._index.allocator.live_slots() if self._counts[slots].any() else np.zeros(0, np.int32)
        owners, _, _ = timers_of(self._index.view(), entries)
        chosen = np.zeros(len(self._counts), np.bool_)
        chosen[slots] = True
        entries = entries[chosen[owners]]
        taken = FrozenTimers(self._index.view(), entries).get(slots)
        self._forget(entries, owners[chosen[owners]])
        if self._ends[SIZE] > 2 * len(self._index) + _REBUILD_SLACK:
            self._rebuild()
        return taken

    def has_due(self, timestamp: int) -> bool:
        """Whether `advance(timestamp)` would hand out anything."""
        following = self.next_timestamp()
        return following is not None and following <= timestamp

    def next_timestamp(self) -> int | None:
        """When the earliest timer is due; None without timers."""
        while True:
            times, names, slots = self._first()
            if not len(slots):
                return None
            if self._index.lookup(_words(slots, names, times), None)[0] >= 0:
                return int(times[0])
            self._take(int(times[0]), 1)

    def advance(self, timestamp: int, limit: int) -> FiredTimers:
        """At most `limit` timers that are due at `timestamp`, in order. Fewer only when no more are due."""
        parts: list[FiredTimers] = []
        found = 0
        while found < limit:
            slots, names, times = self._take(timestamp, limit - found)
            if not len(slots):
                break
            # a timer that was deleted and registered again may be in the heap twice: the second one is not there
            entries = self._index.take(_words(slots, names, times))
            live = entries >= 0
            self._uncount(entries[live], slots[live])
            parts.append(FiredTimers(slots[live], names[live], times[live]))
            found += len(parts[-1].slots)
        if len(parts) == 1:
            return parts[0]
        if not parts:
            return FiredTimers(np.zeros(0, np.int32), np.zeros(0, np.int64), np.zeros(0, np.int64))
        return FiredTimers(*(np.concatenate([part[i] for part in parts]) for i in range(3)))

    def occupied(self, high_water: int) -> BoolArray:
        """For each slot below, whether it has timers."""
        return self._counts[:high_water] > 0

    def restore(self, slots: Slots, timers: pa.Array) -> None:
        """Register what `freeze` gave out (TIMERS_TYPE per slot)."""
        lengths = np.diff(timers.offsets.to_numpy())
        stamps = timers.flatten()
        times, names = (numpy_values(column) for column in stamps.flatten())
        self.register(np.repeat(slots, lengths), times, names)

    def freeze(self, high_water: int) -> FrozenColumn:
        """The timers as they are now, as a column of TIMERS_TYPE."""
        return FrozenTimers(self._index.freeze(), None, self._guard.freeze([self._counts], high_water))

    def _first(self) -> tuple[Int64Array, Int64Array, Slots]:
        """The earliest of the heap and of the run, deleted or not; empty: there is none."""
        top, at = slice(0, min(1, int(self._ends[SIZE]))), int(self._ends[RUN_AT])
        heap = self._times[top], self._namespaces[top], self._slots[top]
        run = self._run[0][at : at + 1], self._run[1][at : at + 1], self._run[2][at : at + 1]
        earliest = [column.tolist() for column in heap], [column.tolist() for column in run]
        return heap if not len(run[0]) or (len(heap[0]) and earliest[0] < earliest[1]) else run

    def _take(self, timestamp: int, limit: int) -> tuple[Slots, Int64Array, Int64Array]:
        """Some that are due, in order; none when none are. Where a run ends, the next one begins before more leave the
        heap one by one."""
        left = len(self._run[0]) - int(self._ends[RUN_AT])
        if not left:
            self._begin_run(timestamp)
            left = len(self._run[0])
        times, names, slots = taken = _timers(min(limit, left or int(self._ends[SIZE])))
        count = pop(timestamp, self._ends, self._times, self._namespaces, self._slots, *self._run, *taken)
        return slots[:count], names[:count], times[:count]

    def _begin_run(self, timestamp: int) -> None:
        """Take what is due out of the heap, in order, and what will be soon at this pace, where that is much of it; a
        sample of the heap says whether to count."""
        self._run = _timers(0)
        self._ends[RUN_AT] = 0
        size = int(self._ends[SIZE])
        if size < LEAST_RUN or self._times[0] > timestamp:
            return
        sample = np.sort(self._times[: size : max(1, size // _SAMPLES)])
        at_most = int(sample[len(sample) * min(size // 2, LONGEST_RUN) // size])
        until = max(timestamp, min(at_most, timestamp + RUN_AHEAD * (timestamp - int(self._times[0]))))
        if np.count_nonzero(sample <= until) * RUN_SHARE < len(sample):
            return
        due = int(np.count_nonzero(self._times[:size] <= until))
        if due < LEAST_RUN or due * RUN_SHARE < size:
            return
        first, second = _timers(due), _timers(due)
        take_due(until, self._ends, self._times, self._namespaces, self._slots, *first)
        self._run = second if sort(*first, *second, np.empty(DIGITS, np.int64)) else first

    def _forget(self, entries: Slots, slots: Slots) -> None:
        self._index.remove(entries)
        self._uncount(entries, slots)

    def _uncount(self, entries: Slots, slots: Slots) -> None:
        """These timers are not in the index any more."""
        self._registered[entries] = False
        self._guard.before_write(slots)
        np.subtract.at(self._counts, slots, _ONE)

    def _make_room(self, rows: int) -> None:
        capacity = doubled(len(self._times), int(self._ends[SIZE]) + rows)
        self._times, self._namespaces = grown(self._times, capacity), grown(self._namespaces, capacity)
        self._slots = grown(self._slots, capacity)

    def _rebuild(self) -> None:
        """Leave the deleted ones behind: ascending order is a heap."""
        slots, names, times = timers_of(self._index.view(), self._index.allocator.live_slots())
        order = np.lexsort((slots, names, times))
        self._run, self._ends[RUN_AT], self._ends[SIZE] = _timers(0), 0, len(order)
        self._times[: len(order)] = times[order]
        self._namespaces[: len(order)] = names[order]
        self._slots[: len(order)] = slots[order]


def _timers(count: int) -> tuple[Int64Array, Int64Array, Slots]:
    return np.empty(count, np.int64), np.empty(count, np.int64), np.empty(count, np.int32)


def _words(slots: Slots, namespaces: Int64Array, timestamps: Int64Array) -> Int64Array:
    """Timers as keys of the index."""
    words = np.empty((len(slots), WORDS), np.int64)
    words[:, 0], words[:, 1], words[:, 2] = slots, namespaces, timestamps
    return words.reshape(-1)


def _namespaces_or_void(namespaces: Int64Array | None, length: int) -> Int64Array:
    return np.full(length, VOID_NAMESPACE, np.int64) if namespaces is None else namespaces
