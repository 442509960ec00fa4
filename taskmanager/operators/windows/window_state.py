"""Contents per key and pane of a window, by entry; in snapshots a map state from the pane's start to its contents.

A pane is a whole tumbling window, or the part of sliding windows that they share. It gets a small number while it is
alive, so that (pane, key slot) is one int64 and one look-up per batch finds the entries. Entries of a pane form a
chain, so that firing costs the entries of the due windows and nothing else; those of a key form another, so that a key
can be let out of memory. Each entry knows the last window that was emitted with it. Decides no semantics: the operator
says what is late, due and done. Mirrors Flink's window namespaces of HeapKeyedStateBackend, turned around: there each
key holds its windows, here each window its keys.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from snapline.dataflow.api.state import MapStateDescriptor
from snapline.dataflow.api.windows import PaneGeometry
from snapline.dataflow.columnar.arrow_columns import BoolArray, Int64Array
from snapline.dataflow.columnar.gather import gather_values
from snapline.dataflow.columnar.kernel import I64, VOID, BOOLs, I32s, I64s, RO_I32s, RO_I64s, kernel
from snapline.dataflow.elements import MIN_WATERMARK_MS
from snapline.dataflow.errors import StateError
from snapline.taskmanager.operators.windows.entry_maps import FrozenEntryMaps, by_start, entry_maps
from snapline.taskmanager.operators.windows.window_contents import ContentsState, WindowContents
from snapline.taskmanager.state.adopted_state import elements_of, reduce_lists
from snapline.taskmanager.state.columns import FrozenColumn
from snapline.taskmanager.state.index.chains import Chains
from snapline.taskmanager.state.index.copy_on_write import CopyOnWrite
from snapline.taskmanager.state.index.key_index import KeyIndex
from snapline.taskmanager.state.index.slots import Slots, distinct, grown

FIRED = "fired"
NEVER_FIRED = MIN_WATERMARK_MS
_FREE = -1


@kernel(I64(RO_I32s, RO_I32s, RO_I32s, I32s, I32s, I32s))
def _adopt(entries: Any, slots: Any, windows: Any, slot_of: Any, window_of: Any, new: Any) -> int:
    """Note owner and window of entries that have none yet; gather them in `new`, each once. Returns how many."""
    found = 0
    for row in range(entries.shape[0]):
        entry = entries[row]
        if slot_of[entry] < 0:
            slot_of[entry] = slots[row]
            window_of[entry] = windows[row]
            new[found] = entry
            found += 1
    return found


@kernel(VOID(RO_I32s, RO_I32s, I64s))
def _pack(windows: Any, slots: Any, keys: Any) -> None:
    for row in range(slots.shape[0]):
        keys[row] = (np.int64(windows[row]) << 32) | np.int64(slots[row])


@kernel(VOID(RO_I64s, I64, I64, I64s, I64s))
def _window_starts(times: Any, size: int, offset: int, starts: Any, bounds: Any) -> None:
    """Start of each row's window; `bounds` gets the first and the last. Neighbours mostly share a window, and a
    division is slow."""
    start = times[0] - (times[0] - offset) % size
    first = last = start
    for row in range(times.shape[0]):
        time = times[row]
        if time < start or time >= start + size:
            start = time - (time - offset) % size
            first, last = min(first, start), max(last, start)
        starts[row] = start
    bounds[0], bounds[1] = first, last


@kernel(VOID(RO_I64s, I64, I64, BOOLs))
def _mark(starts: Any, first: int, size: int, present: Any) -> None:
    previous = first - 1
    for row in range(starts.shape[0]):
        if starts[row] != previous:
            previous = starts[row]
            present[(previous - first) // size] = True


@kernel(VOID(RO_I64s, I64, I64, RO_I32s, I32s))
def _number_rows(starts: Any, first: int, size: int, numbers: Any, windows: Any) -> None:
    """`numbers[i]` belongs to the window that starts `i * size` after the first."""
    previous = first
    number = numbers[0]
    for row in range(starts.shape[0]):
        if starts[row] != previous:
            previous = starts[row]
            number = numbers[(previous - first) // size]
        windows[row] = number


def window_starts(times: Int64Array, size_ms: int, offset_ms: int) -> tuple[Int64Array, int, int]:
    """Start of each row's window, and the first and last of them; of at least one row."""
    starts, bounds = np.empty(len(times), np.int64), np.empty(2, np.int64)
    _window_starts(np.ascontiguousarray(times), size_ms, offset_ms, starts, bounds)
    return starts, int(bounds[0]), int(bounds[1])


class WindowState(ContentsState):
    """The windows of all keys and their contents, by entry."""

    def __init__(
        self,
        name: str,
        contents: WindowContents,
        geometry: PaneGeometry,
        due_of: Callable[[Int64Array, Int64Array], Int64Array],
    ) -> None:
        """`due_of`: when an entry is due next, by start and `fired`."""
        self.contents, self._name, self._geometry = contents, name, geometry
        self._due_of = due_of
        self.describe()
        self.fired: Int64Array = np.full(64, NEVER_FIRED, np.int64)
        """The start, by entry, of the last window that was emitted with it, or that was over before it came."""
        self._index = KeyIndex([pa.field("entry", pa.int64())])
        self._entry_capacity = 64
        self._slot_of: Slots = np.full(64, _FREE, np.int32)
        self._window_of: Slots = np.full(64, _FREE, np.int32)
        self._start_of: Int64Array = np.zeros(64, np.int64)
        self._guard = CopyOnWrite()
        """Freezes copies of `_start_of` and `fired` when they are about to change."""
        self._of_key = Chains()
        self._of_window = Chains()
        self._numbers: dict[int, int] = {}
        """The number of each window, by its start."""
        self._starts: Int64Array = np.zeros(64, np.int64)
        """The start of each window, by its number."""
        self._free_numbers: list[int] = []

    def describe(self) -> None:
        entry_type = pa.struct([*self.contents.fields, pa.field(FIRED, pa.int64())])
        self.descriptor: MapStateDescriptor = MapStateDescriptor(self._name, pa.int64(), entry_type)

    # --- windows ------------------------------------------------------------------------------------------------------

    @property
    def window_starts(self) -> list[int]:
        """Windows that have entries, or have had some and were not dropped."""
        return list(self._numbers)

    @property
    def window_count(self) -> int:
        """Return how many windows there are."""
        return len(self._numbers)

    def window_number(self, start_ms: int) -> int:
        """The number of a window; a new one gets one."""
        number = self._numbers.get(start_ms)
        if number is None:
            number = self._free_numbers.pop() if self._free_numbers else len(self._numbers)
            self._numbers[start_ms] = number
            if number >= len(self._starts):
                self._starts = grown(self._starts, 2 * number)
                self._of_window.grow_slots(len(self._starts))
            self._starts[number] = start_ms
        return number

    def number_rows(self, starts: Int64Array, first: int, last: int, size_ms: int) -> Slots:
        """The number of each row's window, which start between `first` and `last`."""
        if first == last:
            return np.full(len(starts), self.window_number(first), np.int32)
        span = (last - first) // size_ms + 1
        if span <= max(4 * len(starts), 1024):
            present = np.zeros(span, np.bool_)
            _mark(starts, first, size_ms, present)
            numbers = np.zeros(span, np.int32)
            for offset in np.flatnonzero(present).tolist():
                numbers[offset] = self.window_number(first + offset * size_ms)
            windows = np.empty(len(starts), np.int32)
            _number_rows(starts, first, size_ms, numbers, windows)
            return windows
        distinct, inverse = np.unique(starts, return_inverse=True)
        return np.array([self.window_number(start) for start in distinct.tolist()], np.int32)[inverse]

    def drop_windows(self, starts_ms: Sequence[int]) -> None:
        """Give back the numbers of windows without entries."""
        for start_ms in starts_ms:
            self._free_numbers.append(self._numbers.pop(start_ms))

    # --- entries ------------------------------------------------------------------------------------------------------

    @property
    def entry_count(self) -> int:
        """Return how many entries there are, of all keys and windows."""
        return len(self._index)

    def entries_of_rows(self, slots: Slots, windows: Slots, fired_until: int = NEVER_FIRED) -> Slots:
        """The entry of each row; new ones are made, too late for windows that start at or before `fired_until`."""
        keys = np.empty(len(slots), np.int64)
        _pack(windows, slots, keys)
        entries = self._index.lookup_or_insert([pa.array(keys)])
        if self._index.capacity > self._entry_capacity:
            self._grow_entries(self._index.capacity)
        new = np.empty(len(entries), np.int32)
        count = _adopt(entries, slots, windows, self._slot_of, self._window_of, new)
        if count:
            added = new[:count]
            windows_of_added = gather_values(self._window_of, added)
            self._guard.before_write(added)
            self.fired[added] = fired_until
            self._start_of[added] = gather_values(self._starts, windows_of_added)
            self._of_window.append(windows_of_added, added)
            self._of_key.append(gather_values(self._slot_of, added), added)
        return entries

    def _grow_entries(self, capacity: int) -> None:
        self._entry_capacity = capacity
        self._slot_of = grown(self._slot_of, capacity, _FREE)
        self._window_of = grown(self._window_of, capacity, _FREE)
        self.fired = grown(self.fired, capacity, NEVER_FIRED)
        self._start_of = grown(self._start_of, capacity)
        self._of_window.grow_entries(capacity)
        self._of_key.grow_entries(capacity)
        self.contents.grow(capacity)

    def entries_of_windows(self, starts_ms: Sequence[int]) -> Slots:
        """All entries of these windows, window after window, oldest entry first."""
        numbers = np.array([self._numbers[start_ms] for start_ms in starts_ms], np.int32)
        return self._of_window.entries(numbers)[1]

    def set_fired(self, entries: Slots, starts: Int64Array) -> None:
        """These windows were emitted with these entries."""
        self._guard.before_write(entries)
        self.fired[entries] = starts

    def slots_of(self, entries: Slots) -> Slots:
        """The key slot of each entry."""
        return gather_values(self._slot_of, entries)

    def starts_of(self, entries: Slots) -> Int64Array:
        """The window start of each entry."""
        return gather_values(self._start_of, entries)

    def remove(self, entries: Slots) -> None:
        """Forget these entries, each named once."""
        if not len(entries):
            return
        self._of_window.unlink(gather_values(self._window_of, entries), entries)
        self._of_key.unlink(gather_values(self._slot_of, entries), entries)
        self._slot_of[entries] = _FREE
        self._index.remove(entries)
        self.contents.clear(entries)

    # --- AdoptedState -------------------------------------------------------------------------------------------------

    def due_times(self, values: pa.Array) -> Int64Array:
        starts, items = elements_of(values)
        times = self._due_of(self._checked(starts), items.field(FIRED).to_numpy())
        return reduce_lists(values, times, np.minimum)

    def _checked(self, starts: pa.Array) -> Int64Array:
        """The starts of panes as a snapshot has them. StateError if no pane starts at one of them: it would never
        fire."""
        times, geometry = starts.to_numpy(), self._geometry
        astray = np.flatnonzero((times - geometry.offset_ms) % geometry.pane_ms)
        if len(astray):
            raise StateError(
                f"the state {self._name!r} has rows of a window from {times[astray[0]]} ms on, where none of its windows "
                "begins: the snapshot is damaged, or not one of ours, so restore an older one"
            )
        return times

    def grow(self, capacity: int) -> None:
        self._of_key.grow_slots(capacity)

    def occupied(self, high_water: int) -> BoolArray:
        return self._of_key.occupied(high_water)

    def freeze(self, high_water: int) -> FrozenColumn:
        used = self._index.high_water
        numbers = self._guard.freeze([self._start_of, self.fired], used)
        return FrozenEntryMaps(
            self.descriptor, self._of_key.freeze(high_water, used), numbers, self.contents.freeze(used)
        )

    def restore(self, slots: Slots, values: pa.Array) -> None:
        if values.null_count:
            present = np.asarray(values.is_valid())
            slots, values = slots[present], values.drop_null()
        if not len(slots):
            return
        starts, items = elements_of(values)
        distinct, windows = np.unique(self._checked(starts), return_inverse=True)
        numbers = np.array([self.window_number(start) for start in distinct.tolist()], np.int32)[windows]
        entries = self.entries_of_rows(np.repeat(slots, np.diff(values.offsets.to_numpy())), numbers)
        *contents, fired = items.flatten()
        self.contents.restore(entries, contents)
        self.set_fired(entries, fired.to_numpy())

    def get_batch(self, slots: Slots) -> pa.Array:
        offsets, entries = self._of_key.entries(slots)
        entries, starts = by_start(offsets, entries, self.starts_of(entries))
        children = [*self.contents.get(entries), pa.array(gather_values(self.fired, entries))]
        return entry_maps(self.descriptor, offsets, starts, children)

    def clear_batch(self, slots: Slots) -> None:
        self.remove(self._of_key.entries(distinct(slots))[1])
