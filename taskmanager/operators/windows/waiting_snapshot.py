"""Rows that wait for their window, as the file of the state that they are not in.

The upload thread puts them into a state of its own, and writes that: the file is the one that the task would have
written, had it taken them in, and the task neither makes that state nor has to clear it away again. Decides how rows
come into a state of windows, and how they leave one to wait; not when that is worth it. Nothing in Flink is like it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby

import numpy as np

from snapline.dataflow.key_groups import KeyGroupRange
from snapline.runtime.cores.machine import check
from snapline.taskmanager.operators.windows.whole_windows import WaitedRows, WaitingRows, one_batch
from snapline.taskmanager.operators.windows.window_contents import WholeWindowContents
from snapline.taskmanager.operators.windows.window_state import WindowState
from snapline.taskmanager.state.keyed_backend import KeyedStateBackend


def take_in(
    windows: WindowState, backend: KeyedStateBackend, key_columns: Sequence[Sequence[str]], waited: WaitedRows
) -> None:
    """Rows of these windows come into the state, those of an input and a schema together: rows that a state let out are
    plain, where those that came may be dictionaries. `key_columns`: their names in each."""
    for input_index, names in enumerate(key_columns):
        found = [(start, batch) for start, parts in waited for number, batch in parts if number == input_index]
        for _, run in groupby(found, lambda each: each[1].schema):
            starts, batches = zip(*run, strict=True)
            batch = one_batch(batches)
            numbers = np.repeat(
                np.array([windows.window_number(start) for start in starts], np.int32),
                [each.num_rows for each in batches],
            )
            slots = backend.slots([batch.column(name) for name in names])
            windows.contents.fold(windows.entries_of_rows(slots, numbers), batch, input_index)


def let_out(
    windows: WindowState, contents: WholeWindowContents, key_columns: Sequence[Sequence[str]], waiting: WaitingRows
) -> bool:
    """All rows of the state wait again, before those that wait now; whether that was possible. Windows that have fired
    stay, and so do all when their rows do not have the key."""
    for side, names in zip(contents.sides, key_columns, strict=True):
        if any(side.schema.get_field_index(name) < 0 for name in names):
            return not windows.entry_count
    for start in windows.window_starts if windows.entry_count else ():
        entries = windows.entries_of_windows([start])
        entries = entries[windows.fired[entries] < start]
        if not len(entries):
            continue
        for input_index, side in enumerate(contents.sides):
            _, rows = side.rows_of(entries)
            if len(rows):
                waiting.put_first(start, input_index, side.take(rows))
        windows.remove(entries)
    return not windows.entry_count


class WaitingSnapshot:
    """Frozen rows that wait. Implements operators.contract.KeyedSnapshotPart."""

    __slots__ = ("_key_columns", "_make_state", "_range", "_waited")

    def __init__(
        self,
        key_group_range: KeyGroupRange,
        make_state: Callable[[], tuple[KeyedStateBackend, WindowState]],
        key_columns: Sequence[Sequence[str]],
        waited: WaitedRows,
    ) -> None:
        """`make_state`: an empty state of the same windows and contents, whose use does not touch the operator's."""
        self._range = key_group_range
        self._make_state = make_state
        self._key_columns = key_columns
        self._waited: WaitedRows | None = waited

    @property
    def key_group_range(self) -> KeyGroupRange:
        """Return the key groups that the snapshot covers."""
        return self._range

    def encode(self) -> bytes | memoryview:
        """Return the bytes of the snapshot's file."""
        waited = check(self._waited, "rows that wait were encoded after their release")
        backend, windows = self._make_state()
        take_in(windows, backend, self._key_columns, waited)
        return backend.snapshot().encode()

    def release(self) -> None:
        """Let go of what was frozen."""
        self._waited = None
