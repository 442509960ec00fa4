"""What the memory of this process is used for: the types whose objects take most, and the places that have kept most.

Types come from the garbage collector's list, with what those objects hold directly (texts, bytes and numbers are on no
list). Places come from `tracemalloc`, which is on between `begin` and `end` only, because it makes every allocation
dearer: they show what was allocated meanwhile and is still there. Memory of libraries that do not tell Python (Arrow's
buffers) is in neither.
"""

from __future__ import annotations

import contextlib
import gc
import linecache
import sys
import threading
import tracemalloc

from snapline.dataflow.wire.messages import AllocationSite, HeapType

MAX_TYPES = 20
MAX_SITES = 10
MAX_FRAMES = 16
"""The most frames of each place, the innermost ones, so that the user's function is among them when a library allocates
for it."""
MAX_OBJECTS = 100_000
"""Objects of the garbage collector's list that are looked at: of a longer one each n-th, which then counts n times,
because looking keeps other threads waiting."""
LARGE = 1_000
"""A container of so many is always looked at: it may be what has grown."""
MAX_LINE = 120

_one_at_a_time = threading.Lock()


class HeapReading:
    """One reading; others that begin meanwhile see nothing."""

    def __init__(self) -> None:
        self._traces = False

    def begin(self) -> None:
        """Follow allocations from now on."""
        self._traces = _one_at_a_time.acquire(blocking=False)
        if self._traces:
            tracemalloc.start(MAX_FRAMES)

    def end(self) -> tuple[tuple[HeapType, ...], tuple[AllocationSite, ...]]:
        """Types and places, those that take most first; allocations are not followed any more."""
        if not self._traces:
            return (), ()
        try:
            snapshot = tracemalloc.take_snapshot()
        finally:
            tracemalloc.stop()
            _one_at_a_time.release()
        kept = snapshot.filter_traces([tracemalloc.Filter(False, tracemalloc.__file__)])
        sites = tuple(_site(each) for each in kept.statistics("traceback")[:MAX_SITES])
        return _types(), sites


def _site(found: tracemalloc.Statistic) -> AllocationSite:
    frames = []
    for frame in found.traceback:  # outermost first
        line = linecache.getline(frame.filename, frame.lineno).strip()[:MAX_LINE]
        frames.append(f"{line or '?'} ({frame.filename}:{frame.lineno})")
    return AllocationSite(tuple(frames), found.count, found.size)


def _types() -> tuple[HeapType, ...]:
    counted: dict[type, list[int]] = {}
    seen: set[int] = set()

    def count(thing: object, times: int) -> None:
        if id(thing) in seen:
            return
        seen.add(id(thing))
        entry = counted.setdefault(type(thing), [0, 0])
        entry[0] += times
        with contextlib.suppress(Exception):  # __sizeof__ may be anybody's
            entry[1] += times * sys.getsizeof(thing)

    everything = gc.get_objects()
    each_counts = 1 + len(everything) // MAX_OBJECTS
    for number, thing in enumerate(everything):
        holds = type(thing) in (list, dict, tuple, set, frozenset)
        is_large = holds and len(thing) >= LARGE
        if number % each_counts and not is_large:
            continue
        times = 1 if is_large else each_counts
        count(thing, times)
        for held in gc.get_referents(thing)[:MAX_OBJECTS] if holds else ():
            if not gc.is_tracked(held):
                count(held, times)
    most = sorted(counted.items(), key=lambda entry: -entry[1][1])[:MAX_TYPES]
    return tuple(
        HeapType(f"{kind.__module__}.{kind.__qualname__}".removeprefix("builtins."), number, size)
        for kind, (number, size) in most
    )
