"""When keys outside of memory are due, by a queue of timers or by what an operator says of its own state.

An entry is a time and the number of a key. Entries lie in sorted runs, each more than twice as long as the next, so
that adding costs a logarithm and taking what is due first looks at a few of them. A key has one time; an entry with
another one is of the past and is left out when runs are merged, or when it would be the first. That a key is in memory,
or gone, is no reason to look for its entry: whoever takes it finds that out. Takes the place of the timers' column
family of Flink's RocksDBPriorityQueueSetFactory.
"""

from __future__ import annotations

import numpy as np

from snapline.dataflow.columnar.arrow_columns import Int64Array
from snapline.taskmanager.state.adopted_state import NEVER_DUE
from snapline.taskmanager.state.index.slots import Slots, distinct, doubled, grown

_REBUILD_SLACK = 1024
Run = tuple[Int64Array, Slots]
"""Times, and keys; by time."""


class DueOutside:
    """The times of one queue."""

    __slots__ = ("_count", "_runs", "_times")

    def __init__(self) -> None:
        self._runs: list[Run] = []
        self._times: Int64Array = np.full(64, NEVER_DUE)
        """When a key is due, by its number."""
        self._count = 0
        """Keys that are due sometime."""

    @property
    def earliest(self) -> int | None:
        """When the first key is due of those that have a time; None: none is due ever."""
        if any(self._times[keys[0]] != times[0] for times, keys in self._runs):
            self._runs = [run for run in map(self._without_past, self._runs) if len(run[0])]
        return min((int(times[0]) for times, _ in self._runs), default=None)

    def _without_past(self, run: Run) -> Run:
        """The run from its first entry on that still counts."""
        times, keys = run
        first, step = 0, 16
        while first < len(times):
            counts = self._times[keys[first : first + step]] == times[first : first + step]
            if counts.any():
                first += int(counts.argmax())
                break
            first, step = first + step, 2 * step
        return times[first:], keys[first:]

    def note(self, keys: Slots, times: Int64Array) -> None:
        """These are outside from now on, and due then; NEVER_DUE: never."""
        if not len(keys):
            return
        highest = int(keys.max())
        if highest >= len(self._times):
            self._times = grown(self._times, doubled(len(self._times), highest + 1), NEVER_DUE)
        known = self._times[keys]
        self._times[keys] = times
        self._count += int((times != NEVER_DUE).sum()) - int((known != NEVER_DUE).sum())
        fresh = np.flatnonzero((times != known) & (times != NEVER_DUE))
        if len(fresh):
            order = fresh[np.argsort(times[fresh], kind="stable")]
            self._runs.append((times[order], keys[order]))
            self._merge()

    def forget(self, keys: Slots) -> None:
        """These keys are gone; their numbers may be given to others."""
        self.note(keys[keys < len(self._times)], np.full(int((keys < len(self._times)).sum()), NEVER_DUE))

    def take(self, until: int, limit: int) -> Slots:
        """The keys that are due first, at this time at the latest: at most so many entries are looked at. What is taken
        is not due any more."""
        heads = [(times[:limit], keys[:limit]) for times, keys in self._runs]
        heads = [
            (times[: (count := int(np.searchsorted(times, until, side="right")))], keys[:count])
            for times, keys in heads
        ]
        if not any(len(times) for times, _ in heads):
            return np.zeros(0, np.int32)
        times, keys = _joined(heads)
        run_of = np.repeat(np.arange(len(heads)), [len(head) for head, _ in heads])
        order = np.argsort(times, kind="stable")[:limit]
        taken = np.bincount(run_of[order], minlength=len(heads)).tolist()
        self._runs = [
            (times[count:], keys[count:])
            for (times, keys), count in zip(self._runs, taken, strict=True)
            if count < len(times)
        ]
        times, keys = times[order], keys[order]
        due = distinct(keys[self._times[keys] == times])
        self._times[due] = NEVER_DUE
        self._count -= len(due)
        return due

    def _merge(self) -> None:
        runs = self._runs
        while len(runs) > 1 and len(runs[-2][0]) <= 2 * len(runs[-1][0]):
            runs[-2:] = [self._sorted(_joined(runs[-2:]))]
        if sum(len(times) for times, _ in runs) > 2 * self._count + _REBUILD_SLACK:
            self._runs = [self._sorted(_joined(runs))]
        self._runs = [run for run in self._runs if len(run[0])]

    def _sorted(self, run: Run) -> Run:
        """Return the entries that still count, by time, each key once."""
        times, keys = run
        present = np.flatnonzero(self._times[keys] == times)
        _, first = np.unique(keys[present], return_index=True)
        present = present[first]
        order = present[np.argsort(times[present], kind="stable")]
        return times[order], keys[order]


def _joined(runs: list[Run]) -> Run:
    return np.concatenate([times for times, _ in runs]), np.concatenate([keys for _, keys in runs])
