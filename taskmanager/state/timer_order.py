"""The order in which timers are due: by timestamp, then namespace, then slot, in a heap and in sorted runs.

Kernels over three arrays of the same length. `ends` has two numbers: how many timers are in the heap, and how many of
the run have been handed out. What is handed out comes from whichever of the two has the earlier one, so that a timer
that is registered while others fire has its place among them. Knows neither keys nor which timers were deleted.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from snapline.dataflow.columnar.kernel import I64, VOID, I32s, I64s, RO_I32s, RO_I64s, inlined, kernel

SIZE, RUN_AT = 0, 1
"""Where each of the two numbers stands in `ends`."""
DIGIT_BITS = 11
DIGITS = 1 << DIGIT_BITS
"""Counters of a pass of `sort`, which stay in the first cache."""


@inlined
def _before(times: Any, namespaces: Any, slots: Any, left: Any, right: Any) -> Any:
    if times[left] != times[right]:
        return times[left] < times[right]
    if namespaces[left] != namespaces[right]:
        return namespaces[left] < namespaces[right]
    return slots[left] < slots[right]


@inlined
def _swap(times: Any, namespaces: Any, slots: Any, left: Any, right: Any) -> None:
    times[left], times[right] = times[right], times[left]
    namespaces[left], namespaces[right] = namespaces[right], namespaces[left]
    slots[left], slots[right] = slots[right], slots[left]


@inlined
def _sink(times: Any, namespaces: Any, slots: Any, parent: Any, size: Any) -> None:
    """Let the timer go down to where none below it is earlier."""
    while True:
        child = 2 * parent + 1
        if child >= size:
            break
        if child + 1 < size and _before(times, namespaces, slots, child + 1, child):
            child += 1
        if not _before(times, namespaces, slots, child, parent):
            break
        _swap(times, namespaces, slots, child, parent)
        parent = child


@kernel(VOID(RO_I64s, RO_I64s, RO_I32s, I64s, I64s, I64s, I32s))
def push(
    new_times: Any, new_namespaces: Any, new_slots: Any, ends: Any, times: Any, namespaces: Any, slots: Any
) -> None:
    """Put timers into the heap, which has room for them."""
    size = ends[SIZE]
    for row in range(new_times.shape[0]):
        child = size + row
        times[child], namespaces[child], slots[child] = new_times[row], new_namespaces[row], new_slots[row]
        while child > 0:
            parent = (child - 1) // 2
            if not _before(times, namespaces, slots, child, parent):
                break
            _swap(times, namespaces, slots, child, parent)
            child = parent
    ends[SIZE] = size + new_times.shape[0]


@kernel(I64(I64, I64s, I64s, I64s, I32s, RO_I64s, RO_I64s, RO_I32s, I64s, I64s, I32s))
def pop(
    until: int,
    ends: Any,
    times: Any,
    namespaces: Any,
    slots: Any,
    run_times: Any,
    run_namespaces: Any,
    run_slots: Any,
    out_times: Any,
    out_namespaces: Any,
    out_slots: Any,
) -> int:
    """Move what is due from heap and run to the outputs, in order, until they are full; returns how many."""
    taken, size, at = 0, ends[SIZE], ends[RUN_AT]
    while taken < out_times.shape[0]:
        in_heap = size > 0 and times[0] <= until
        in_run = at < run_times.shape[0] and run_times[at] <= until
        if in_heap and in_run:
            if times[0] != run_times[at]:
                in_run = run_times[at] < times[0]
            elif namespaces[0] != run_namespaces[at]:
                in_run = run_namespaces[at] < namespaces[0]
            else:
                in_run = run_slots[at] <= slots[0]
        if in_run:
            out_times[taken], out_namespaces[taken], out_slots[taken] = run_times[at], run_namespaces[at], run_slots[at]
            at += 1
        elif in_heap:
            out_times[taken], out_namespaces[taken], out_slots[taken] = times[0], namespaces[0], slots[0]
            size -= 1
            times[0], namespaces[0], slots[0] = times[size], namespaces[size], slots[size]
            _sink(times, namespaces, slots, 0, size)
        else:
            break
        taken += 1
    ends[SIZE], ends[RUN_AT] = size, at
    return taken


@kernel(VOID(I64, I64s, I64s, I64s, I32s, I64s, I64s, I32s))
def take_due(
    until: int, ends: Any, times: Any, namespaces: Any, slots: Any, out_times: Any, out_namespaces: Any, out_slots: Any
) -> None:
    """Move all that is due to the outputs, which have room for just that, in no order; what stays is a heap again."""
    due = kept = 0
    for place in range(ends[SIZE]):
        if times[place] <= until:
            out_times[due], out_namespaces[due], out_slots[due] = times[place], namespaces[place], slots[place]
            due += 1
        else:
            times[kept], namespaces[kept], slots[kept] = times[place], namespaces[place], slots[place]
            kept += 1
    for parent in range(kept // 2 - 1, -1, -1):
        _sink(times, namespaces, slots, parent, kept)
    ends[SIZE] = kept


@kernel(I64(I64s, I64s, I32s, I64s, I64s, I32s, I64s))
def sort(
    times: Any, namespaces: Any, slots: Any, other_times: Any, other_namespaces: Any, other_slots: Any, counts: Any
) -> int:
    """Sort timers, by counting digits from the least one of the slot to the greatest one of the timestamp that differ;
    0: the result is where they were, 1: in the other arrays."""
    rows = times.shape[0]
    passes = 0
    for key in range(3):
        least = greatest = np.int64(0)
        for row in range(rows):
            value = np.int64(slots[row]) if key == 0 else namespaces[row] if key == 1 else times[row]
            if row == 0:
                least = greatest = value
            least, greatest = min(least, value), max(greatest, value)
        rest = np.uint64(greatest) - np.uint64(least)
        shift = np.uint64(0)
        while rest > np.uint64(0):
            counts[:] = 0
            for row in range(rows):
                value = np.int64(slots[row]) if key == 0 else namespaces[row] if key == 1 else times[row]
                counts[((np.uint64(value) - np.uint64(least)) >> shift) & np.uint64(DIGITS - 1)] += 1
            before = np.int64(0)
            for counter in range(DIGITS):
                counts[counter], before = before, before + counts[counter]
            for row in range(rows):
                value = np.int64(slots[row]) if key == 0 else namespaces[row] if key == 1 else times[row]
                digit = ((np.uint64(value) - np.uint64(least)) >> shift) & np.uint64(DIGITS - 1)
                place = counts[digit]
                counts[digit] = place + 1
                other_times[place], other_namespaces[place] = times[row], namespaces[row]
                other_slots[place] = slots[row]
            times, other_times = other_times, times
            namespaces, other_namespaces = other_namespaces, namespaces
            slots, other_slots = other_slots, slots
            passes += 1
            shift += np.uint64(DIGIT_BITS)
            rest >>= np.uint64(DIGIT_BITS)
    return passes & 1
