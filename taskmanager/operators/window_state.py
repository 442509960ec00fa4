"""Contents per key and pane of a window, by entry; in snapshots a map state from the pane's start to its contents.

A pane is a whole tumbling window, or the part of sliding windows that they share. It gets a small number while it is alive,
so that (pane, key slot) is one int64 and one look-up per batch finds the entries. Entries of a pane form a chain, so that
firing costs the entries of the due windows and nothing else. Each entry knows the last window that was emitted with it. Decides no
semantics: the operator says what is late, due and done. Mirrors Flink's window namespaces of HeapKeyedStateBackend, turned
around: there each key holds its windows, here each window its keys.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dataflow.arrow_columns import BoolArray, Int64Array, bitmap_of
from dataflow.elements import MIN_WATERMARK_MS
from dataflow.gather import gather_values
from dataflow.kernel import I64, VOID, BOOLs, I32s, I64s, RO_I32s, RO_I64s, kernel
from dataflow.state import MapStateDescriptor
from taskmanager.operators.window_contents import WindowContents
from taskmanager.state.chains import Chains
from taskmanager.state.columns import FrozenColumn
from taskmanager.state.key_index import KeyIndex
from taskmanager.state.keyed_state import KeyedState
from taskmanager.state.slots import Slots, grown

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


@kernel(VOID(RO_I32s, I64, I32s))
def _add_counts(slots: Any, amount: int, counts: Any) -> None:
    for row in range(slots.shape[0]):
        counts[slots[row]] += np.int32(amount)


@kernel(VOID(RO_I64s, I64, I64, I64s, I64s))
def _window_starts(times: Any, size: int, offset: int, starts: Any, bounds: Any) -> None:
    """Start of each row's window; `bounds` gets the first and the last. Neighbours mostly share a window, and a division is
    slow."""
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


class WindowState(KeyedState):
    """Contents by entry."""

    def __init__(self, name: str, contents: WindowContents) -> None:
        self.contents = contents
        self.fired: Int64Array = np.full(64, NEVER_FIRED, np.int64)
        """By entry: start of the last window that was emitted with it, or that was over before it came."""
        entry_type = pa.struct([*contents.fields, pa.field(FIRED, pa.int64())])
        self.descriptor: MapStateDescriptor = MapStateDescriptor(name, pa.int64(), entry_type)
        self._index = KeyIndex([pa.field("entry", pa.int64())])
        self._entry_capacity = 64
        self._slot_of: Slots = np.full(64, _FREE, np.int32)
        self._window_of: Slots = np.full(64, _FREE, np.int32)
        self._entries_of_key: Slots = np.zeros(64, np.int32)
        self._chains = Chains()
        self._numbers: dict[int, int] = {}
        """Window start to number."""
        self._starts: Int64Array = np.zeros(64, np.int64)
        """Number to window start."""
        self._free_numbers: list[int] = []

    # --- windows --------------------------------------------------------------------------------------------------------

    @property
    def window_starts(self) -> list[int]:
        """Windows that have entries, or have had some and were not dropped."""
        return list(self._numbers)

    @property
    def window_count(self) -> int:
        """How many."""
        return len(self._numbers)

    def window_number(self, start_ms: int) -> int:
        """The number of a window; a new one gets one."""
        number = self._numbers.get(start_ms)
        if number is None:
            number = self._free_numbers.pop() if self._free_numbers else len(self._numbers)
            self._numbers[start_ms] = number
            if number >= len(self._starts):
                self._starts = grown(self._starts, 2 * number)
                self._chains.grow_slots(len(self._starts))
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

    # --- entries --------------------------------------------------------------------------------------------------------

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
            self.fired[added] = fired_until
            self._chains.append(gather_values(self._window_of, added), added)
            _add_counts(gather_values(self._slot_of, added), 1, self._entries_of_key)
        return entries

    def _grow_entries(self, capacity: int) -> None:
        self._entry_capacity = capacity
        self._slot_of = grown(self._slot_of, capacity, _FREE)
        self._window_of = grown(self._window_of, capacity, _FREE)
        self.fired = grown(self.fired, capacity, NEVER_FIRED)
        self._chains.grow_entries(capacity)
        self.contents.grow(capacity)

    def entries_of_windows(self, starts_ms: Sequence[int]) -> Slots:
        """All entries of these windows, window after window, oldest entry first."""
        numbers = np.array([self._numbers[start_ms] for start_ms in starts_ms], np.int32)
        return self._chains.entries(numbers)[1]

    def slots_of(self, entries: Slots) -> Slots:
        """The key slot of each entry."""
        return gather_values(self._slot_of, entries)

    def starts_of(self, entries: Slots) -> Int64Array:
        """The window start of each entry."""
        return self._starts[gather_values(self._window_of, entries)]

    def remove(self, entries: Slots) -> None:
        """Forget these entries, each named once."""
        if not len(entries):
            return
        self._chains.unlink(gather_values(self._window_of, entries), entries)
        _add_counts(gather_values(self._slot_of, entries), -1, self._entries_of_key)
        self._slot_of[entries] = _FREE
        self._index.remove(entries)
        self.contents.clear(entries)

    # --- KeyedState -----------------------------------------------------------------------------------------------------

    def grow(self, capacity: int) -> None:
        self._entries_of_key = grown(self._entries_of_key, capacity)

    def flush(self) -> None:
        """Nothing is done row by row."""

    def occupied(self, high_water: int) -> BoolArray:
        return self._entries_of_key[:high_water] > 0

    def freeze(self, high_water: int) -> FrozenColumn:
        entries = self._index.live_slots()
        used = self._index.high_water
        return _FrozenWindows(
            self.descriptor,
            entries,
            self.slots_of(entries),
            self.starts_of(entries),
            self.fired[:used].copy(),
            self.contents.freeze(used),
        )

    def restore(self, slots: Slots, values: pa.Array) -> None:
        if values.null_count:
            present = np.asarray(values.is_valid())
            slots, values = slots[present], values.drop_null()
        if not len(slots):
            return
        offsets = values.offsets.to_numpy()
        first, length = int(offsets[0]), int(offsets[-1] - offsets[0])
        starts = values.keys.slice(first, length).to_numpy()
        items = values.items.slice(first, length)
        windows = np.array([self.window_number(start) for start in starts.tolist()], np.int32)
        entries = self.entries_of_rows(np.repeat(slots, np.diff(offsets)), windows)
        *contents, fired = items.flatten()
        self.contents.restore(entries, contents)
        self.fired[entries] = fired.to_numpy()

    def get_batch(self, slots: Slots) -> pa.Array:
        return self.freeze(int(slots.max(initial=-1)) + 1).get(slots)

    def clear_batch(self, slots: Slots) -> None:
        entries = self._index.live_slots()
        self.remove(entries[np.isin(self.slots_of(entries), slots)])


class _FrozenWindows:
    """Entries grouped by key on first use, which is in the asynchronous part of a snapshot."""

    def __init__(
        self,
        descriptor: MapStateDescriptor,
        entries: Slots,
        owners: Slots,
        starts: Int64Array,
        fired: Int64Array,
        columns: Sequence[FrozenColumn],
    ) -> None:
        self._descriptor = descriptor
        self._entries, self._owners, self._starts = entries, owners, starts
        self._fired, self._columns = fired, columns
        self._sorted = False

    def get(self, slots: Slots) -> pa.Array:
        if not self._sorted:
            order = np.lexsort((self._starts, self._owners))
            self._entries, self._owners, self._starts = self._entries[order], self._owners[order], self._starts[order]
            self._sorted = True
        first = np.searchsorted(self._owners, slots, "left")
        lengths = np.searchsorted(self._owners, slots, "right") - first
        offsets: npt.NDArray[np.int64] = np.zeros(len(slots) + 1, np.int64)
        np.cumsum(lengths, out=offsets[1:])
        positions = np.repeat(first - offsets[:-1], lengths) + np.arange(offsets[-1])
        entries = self._entries[positions]
        children = [column.get(entries) for column in self._columns]
        item_type = self._descriptor.element_type
        items = pa.StructArray.from_arrays([*children, pa.array(self._fired[entries])], fields=list(item_type))
        data_type = self._descriptor.storage_type
        keys = pa.array(self._starts[positions])
        pairs = pa.StructArray.from_arrays([keys, items], fields=[data_type.key_field, data_type.item_field])
        buffers = [bitmap_of(lengths > 0), pa.py_buffer(offsets.astype(np.int32))]
        return pa.Array.from_buffers(data_type, len(slots), buffers, children=[pairs])
