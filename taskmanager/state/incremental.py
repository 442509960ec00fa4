"""Incremental snapshots of keyed state: a full one now and then, between them only the keys that were touched since.

Every row that a batch brings marks its key; a snapshot writes the marked keys, those without state (any more) among
them as rows of nulls, and refers to the files of the last checkpoint that completed. What was not confirmed stays
marked. The chain begins anew when its deltas are many, or half as large as what they build on, so that a restore reads
at most about one and a half times the state. Savepoints are full and refer to nothing. A restore reads the newest file
first and takes each key once. Mirrors the role of Flink's RocksIncrementalSnapshotStrategy for state in memory; the
parts are key-wise here, not sorted runs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from snapline.dataflow.columnar.arrow_columns import BoolArray
from snapline.dataflow.columnar.kernel import VOID, BOOLs, RO_I32s, kernel
from snapline.dataflow.key_groups import KeyGroupRange
from snapline.dataflow.snapshot.handles import KeyedStateHandle, StreamStateHandle
from snapline.taskmanager.state.index.slots import Slots, grown

MAX_DELTAS = 10
SMALL_ROWS = 1000
"""A state below this counts as one of so many keys."""
MAX_UNCONFIRMED = 16
"""So many snapshots in a row without one that completes: begin anew, and forget what was touched when."""


@kernel(VOID(RO_I32s, BOOLs))
def _mark(slots: Any, touched: Any) -> None:
    for row in range(slots.shape[0]):
        touched[slots[row]] = True


class KeyedChanges:
    """Which slots were touched since the last checkpoint that completed."""

    __slots__ = ("_before", "_capacity", "_now", "active", "must_restart")

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._now: BoolArray = np.zeros(capacity, np.bool_)
        self._before: dict[int, BoolArray] = {}
        """Snapshots that did not complete (yet), and what had been touched since the one before."""
        self.active = False
        """Nothing needs to be marked before the first snapshot."""
        self.must_restart = False
        """The next snapshot has to be full."""

    def mark(self, slots: Slots) -> None:
        """These are going to be used."""
        if self.active:
            _mark(slots, self._now)

    def grow(self, capacity: int) -> None:
        """Make room for slots below `capacity`."""
        self._capacity = capacity
        self._now = grown(self._now, capacity)

    def touched(self, high_water: int) -> BoolArray:
        """For each slot below, whether it was touched since."""
        touched = self._now[:high_water].copy()
        for earlier in self._before.values():
            touched[: min(high_water, len(earlier))] |= earlier[:high_water]
        return touched

    def begin_anew(self) -> None:
        """What earlier snapshots hold of the keys is of another type: the next one is full."""
        self.must_restart = self.active

    def snapshot(self, checkpoint_id: int) -> None:
        """What is touched from now on is not in this one."""
        if self.active:
            self._before[checkpoint_id] = self._now
            self._now = np.zeros(self._capacity, np.bool_)
        self.active = True

    def forget(self, slots: Slots) -> None:
        """These belong to no key any more, or to another one."""
        self._now[slots] = False
        for earlier in self._before.values():
            earlier[slots[slots < len(earlier)]] = False

    def confirm(self, checkpoint_id: int) -> None:
        """Note that the checkpoint has completed, so later increments may refer to it."""
        self._before = {known: touched for known, touched in self._before.items() if known > checkpoint_id}

    @property
    def unconfirmed(self) -> int:
        """Snapshots that did not complete (yet)."""
        return len(self._before)

    def restart(self) -> None:
        """Forget the increments: the next snapshot is a full one."""
        self._before.clear()
        self._now = np.zeros(self._capacity, np.bool_)
        self.active = self.must_restart = False


class EncodablePart(Protocol):
    """Keyed state that can be encoded on another thread (KeyedSnapshot)."""

    @property
    def key_group_range(self) -> KeyGroupRange: ...
    @property
    def row_count(self) -> int: ...
    def encode(self) -> bytes | memoryview: ...
    def release(self) -> None: ...


@dataclass(frozen=True, slots=True)
class _Link:
    """The durable parts of one snapshot of the chain."""

    handles: tuple[KeyedStateHandle, ...]
    rows: int


@dataclass(slots=True)
class IncrementalPart:
    """A part of a snapshot that is written (SharedKeyedSnapshotPart), and those of earlier ones that it builds on."""

    shared_key: str
    references: tuple[KeyedStateHandle, ...]
    """Parts of earlier checkpoints, oldest first; they go before this one."""
    _part: EncodablePart
    rows: int = 0
    """Known once it is encoded."""
    handle: KeyedStateHandle | None = None
    """Known once it is durable."""

    @property
    def key_group_range(self) -> KeyGroupRange:
        """Return the key groups that the part covers."""
        return self._part.key_group_range

    def encode(self) -> bytes | memoryview:
        """Return the bytes of the part's file."""
        data = self._part.encode()
        self.rows = self._part.row_count
        return data

    def release(self) -> None:
        """Let go of what was frozen."""
        self._part.release()

    def stored(self, handle: StreamStateHandle) -> KeyedStateHandle:
        """Note where the part is durable now. Called from an upload thread."""
        self.handle = KeyedStateHandle(self.key_group_range, handle, self.shared_key)
        return self.handle


@dataclass(frozen=True, slots=True)
class _Taken:
    """A snapshot, and what it builds on."""

    links: tuple[_Link, ...]
    parts: tuple[IncrementalPart, ...]

    def chain(self) -> tuple[_Link, ...]:
        """All links, once this one is durable; empty before."""
        handles = tuple(part.handle for part in self.parts if part.handle is not None)
        if len(handles) < len(self.parts):
            return ()
        return (*self.links, _Link(handles, sum(part.rows for part in self.parts)))


class IncrementalSnapshots:
    """The chain of one operator in one subtask."""

    def __init__(
        self,
        changes: KeyedChanges,
        owner: str,
        full: Callable[[], Sequence[EncodablePart]],
        delta: Callable[[BoolArray], Sequence[EncodablePart]],
        high_water: Callable[[], int],
    ) -> None:
        """`full` and `delta` give at least one part. `owner` is unique to the attempt and operator: shared keys begin
        with it."""
        self._changes = changes
        self._owner = owner
        self._full, self._delta, self._high_water = full, delta, high_water
        self._chain: tuple[_Link, ...] = ()
        self._taken: dict[int, _Taken] = {}

    def snapshot(self, checkpoint_id: int, *, full: bool = False) -> tuple[IncrementalPart, ...]:
        """The synchronous part. `full`: it builds on nothing, and later ones on it."""
        if self._changes.unconfirmed >= MAX_UNCONFIRMED or self._changes.must_restart:
            self._chain = ()
            self._taken.clear()
            self._changes.restart()
        links = () if full or self._is_due() else self._chain
        parts = self._delta(self._changes.touched(self._high_water())) if links else self._full()
        self._changes.snapshot(checkpoint_id)
        references = tuple(handle for link in links for handle in link.handles)
        taken = tuple(
            IncrementalPart(f"{self._owner}-{checkpoint_id}-{number}", () if number else references, part)
            for number, part in enumerate(parts)
        )
        self._taken[checkpoint_id] = _Taken(links, taken)
        return taken

    def completed(self, checkpoint_id: int) -> None:
        """Later ones build on this one."""
        taken = self._taken.get(checkpoint_id)
        self._taken = {known: part for known, part in self._taken.items() if known > checkpoint_id}
        chain = () if taken is None else taken.chain()
        if chain:
            self._chain = chain
            self._changes.confirm(checkpoint_id)

    def aborted(self, checkpoint_id: int) -> None:
        """Nothing builds on this one."""
        self._taken.pop(checkpoint_id, None)

    def _is_due(self) -> bool:
        """Whether the next one is to be full."""
        if not self._chain:
            return True
        base, *deltas = self._chain
        return len(deltas) >= MAX_DELTAS or 2 * sum(delta.rows for delta in deltas) > max(base.rows, SMALL_ROWS)
