"""Which entries (rows of joins, sessions) may be due: by buckets of their deadlines, so that a watermark asks those of
the buckets that it has reached and no others. An entry is in one bucket at most; whether it is due is the owner's to
say.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable

import numpy as np

from snapline.dataflow.columnar.arrow_columns import BoolArray, Int64Array
from snapline.taskmanager.state.index.slots import Slots, grown

_NOWHERE = -(2**63)
_MANY_PIECES = 64


class Calendar:
    """The deadlines of entries, which are known by their numbers, in buckets of time."""

    __slots__ = ("_bucket_ms", "_bucket_of", "_heap", "_pieces", "_position_of")

    def __init__(self, bucket_ms: int) -> None:
        self._bucket_ms = bucket_ms
        self._bucket_of: Int64Array = np.full(64, _NOWHERE, np.int64)
        self._position_of: Slots = np.zeros(64, np.int32)
        """Scratch: what is not clean means nothing."""
        self._pieces: dict[int, list[Slots]] = {}
        """Entries by bucket; some of them have moved on since, some may be named twice."""
        self._heap: list[int] = []
        """Heap of the buckets' times, the earliest first."""

    def grow(self, capacity: int) -> None:
        """Make room for entries below `capacity`."""
        self._bucket_of = grown(self._bucket_of, capacity, _NOWHERE)
        self._position_of = grown(self._position_of, capacity)

    def remind(self, entries: Slots, deadlines_ms: Int64Array) -> None:
        """Have `take` look at these entries once time has reached their deadlines."""
        buckets = deadlines_ms // self._bucket_ms
        moved = buckets != self._bucket_of[entries]
        if not moved.all():
            entries, buckets = entries[moved], buckets[moved]
        if not len(entries):
            return
        self._bucket_of[entries] = buckets
        first, last = int(buckets.min()), int(buckets.max())
        for bucket in [first] if first == last else np.unique(buckets).tolist():
            if bucket not in self._pieces:
                self._pieces[bucket] = []
                heapq.heappush(self._heap, bucket)
            pieces = self._pieces[bucket]
            pieces.append(entries if first == last else entries[buckets == bucket])
            if len(pieces) >= _MANY_PIECES:
                self._pieces[bucket] = [self._in(bucket, pieces)]

    def forget(self, entries: Slots) -> None:
        """These have no deadline any more."""
        self._bucket_of[entries] = _NOWHERE

    def earliest_ms(self) -> int | None:
        """No deadline is earlier; None without any."""
        return self._heap[0] * self._bucket_ms if self._heap else None

    def may_be_due(self, time_ms: int) -> bool:
        """Whether `take` is worth asking."""
        return bool(self._heap) and self._heap[0] <= time_ms // self._bucket_ms

    def take(self, time_ms: int, is_over: Callable[[Slots], BoolArray]) -> Slots:
        """Entries whose deadlines time has reached and that are over, each once. They are not in the calendar any
        more."""
        found: list[Slots] = []
        kept: list[tuple[int, Slots]] = []
        while self.may_be_due(time_ms):
            bucket = heapq.heappop(self._heap)
            entries = self._in(bucket, self._pieces.pop(bucket))
            over = is_over(entries)
            found.append(entries[over])
            self._bucket_of[entries[over]] = _NOWHERE
            if not over.all():
                kept.append((bucket, entries[~over]))
        for bucket, entries in kept:
            self._pieces[bucket] = [entries]
            heapq.heappush(self._heap, bucket)
        return np.concatenate(found) if found else np.zeros(0, np.int32)

    def _in(self, bucket: int, pieces: list[Slots]) -> Slots:
        """The entries that are there now, each once, in the order in which they came."""
        entries = np.concatenate(pieces)
        here = self._bucket_of[entries] == bucket
        if len(pieces) > 1:
            positions = np.arange(len(entries), dtype=np.int32)
            self._position_of[entries] = positions
            here &= self._position_of[entries] == positions
        return entries[here]
