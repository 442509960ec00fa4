"""Global windows with a count trigger: a key's result whenever it has got so many more rows.

Decides which rows of a batch belong to which firing: each stretch of `count` rows of a key is folded apart, all at
once, and comes out when it is full; what is not full waits for the next batch. Without purging, a full stretch is added
to all before it. There are no times in it. Mirrors Flink's GlobalWindows with CountTrigger, and PurgingTrigger around
it (countWindow).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from snapline.dataflow.api.state import ValueStateDescriptor
from snapline.dataflow.api.triggers import MOST_ROWS, CountTrigger
from snapline.dataflow.columnar.arrow_columns import BoolArray, Int64Array, bitmap_of
from snapline.dataflow.columnar.kernel import VOID, I64s, RO_I32s, kernel
from snapline.dataflow.elements import MAX_WATERMARK_MS, MIN_WATERMARK_MS
from snapline.runtime.cores.machine import check
from snapline.taskmanager.operators.windows.window_contents import (
    ContentsMaker,
    ContentsState,
    FiredWindows,
    WindowContents,
)
from snapline.taskmanager.operators.windows.window_operator import WindowOperator
from snapline.taskmanager.state.columns import FrozenColumn
from snapline.taskmanager.state.index.slots import SlotAllocator, Slots, grown

STATE_PREFIX = "global-window-"
SINCE_FIRED = "rows_since_fired"
_NONE = -1


@kernel(VOID(RO_I32s, I64s, I64s))
def _number_in_key(slots: Any, counts: Any, numbers: Any) -> None:
    """The how-manieth row of its key each row is, from `counts` on, which go on."""
    for row in range(slots.shape[0]):
        slot = slots[row]
        numbers[row] = counts[slot]
        counts[slot] += 1


class GlobalWindowState(ContentsState):
    """One window per key: its contents' entry, and the rows since it fired."""

    def __init__(self, name: str, contents: WindowContents, count: int = MOST_ROWS) -> None:
        """`count`: with how many rows a window fires."""
        self.contents, self._name, self._count = contents, name, count
        self.describe()
        self._allocator = SlotAllocator()
        self.entry_of: Slots = np.full(64, _NONE, np.int32)
        self.since_fired: Int64Array = np.zeros(64, np.int64)

    def describe(self) -> None:
        fields = [*self.contents.fields, pa.field(SINCE_FIRED, pa.int64())]
        self.descriptor: ValueStateDescriptor = ValueStateDescriptor(self._name, pa.struct(fields))

    def allocate(self, count: int) -> Slots:
        """Return so many entries that were not in use."""
        entries = self._allocator.allocate(count)
        self.contents.grow(self._allocator.capacity)
        return entries

    def release(self, entries: Slots) -> None:
        """Empty entries, each named once."""
        self.contents.clear(entries)
        self._allocator.release(entries)

    def grow(self, capacity: int) -> None:
        self.entry_of = grown(self.entry_of, capacity, _NONE)
        self.since_fired = grown(self.since_fired, capacity)

    def occupied(self, high_water: int) -> BoolArray:
        return self.entry_of[:high_water] >= 0

    def freeze(self, high_water: int) -> FrozenColumn:
        columns = self.contents.freeze(self._allocator.high_water)
        return _FrozenWindows(
            self.descriptor, self.entry_of[:high_water].copy(), self.since_fired[:high_water].copy(), columns
        )

    def restore(self, slots: Slots, values: pa.Array) -> None:
        if values.null_count:
            present = np.asarray(values.is_valid())
            slots, values = slots[present], values.drop_null()
        if not len(slots):
            return
        *contents, since = values.flatten()
        entries = self.allocate(len(slots))
        self.entry_of[slots] = entries
        # the job before may have asked for larger windows: what is full already comes out with the next row
        self.since_fired[slots] = np.minimum(since.to_numpy(), self._count - 1)
        self.contents.restore(entries, contents)

    def get_batch(self, slots: Slots) -> pa.Array:
        return _as_column(
            self.descriptor.storage_type, self.entry_of[slots], self.since_fired[slots], self.contents.get
        )

    def clear_batch(self, slots: Slots) -> None:
        slots = np.unique(slots)
        entries = self.entry_of[slots]
        self.release(entries[entries >= 0])
        self.entry_of[slots] = _NONE
        self.since_fired[slots] = 0


class _FrozenWindows:
    def __init__(
        self, descriptor: ValueStateDescriptor, entry_of: Slots, since: Int64Array, columns: Sequence[FrozenColumn]
    ) -> None:
        self._type = descriptor.storage_type
        self._entry_of, self._since, self._columns = entry_of, since, columns

    def get(self, slots: Slots) -> pa.Array:
        return _as_column(
            self._type,
            self._entry_of[slots],
            self._since[slots],
            lambda entries: [column.get(entries) for column in self._columns],
        )

    def occupied(self) -> BoolArray:
        return self._entry_of >= 0


def _as_column(
    data_type: pa.DataType, entries: Slots, since: Int64Array, get: Callable[[Slots], list[pa.Array]]
) -> pa.Array:
    """A struct for each key; null for a key without an entry."""
    present = entries >= 0
    found = pa.array(np.cumsum(present) - 1, mask=~present)
    children = [column.take(found) for column in get(entries[present])]
    children.append(pa.array(since))
    return pa.Array.from_buffers(data_type, len(entries), [bitmap_of(present)], children=children)


class CountWindowOperator(WindowOperator[GlobalWindowState]):
    """Fires windows of so many rows, within the batch that fills them."""

    def __init__(self, key_columns: tuple[str, ...], trigger: CountTrigger, maker: ContentsMaker) -> None:
        self._count = trigger.count
        self._purge = trigger.purge
        super().__init__(key_columns, maker, STATE_PREFIX, "purging" if self._purge else "keeping")

    def make_state(self, contents: WindowContents) -> GlobalWindowState:
        """Create empty state with one window for each key."""
        return GlobalWindowState(self._state_name, contents, self._count)

    def contents_fields(self, field: pa.Field) -> list[pa.Field]:
        """Return the fields of the contents, which are all but the count."""
        return [child for child in field.type if child.name != SINCE_FIRED]

    def refusal(self, windows: str) -> str:
        """Return why state of the other trigger cannot be taken over."""
        return (
            f"its count trigger was {windows} before, and is {self._state_name.removeprefix(STATE_PREFIX)} now: keep it"
        )

    def process_batch(self, batch: pa.RecordBatch, input_index: int = 0) -> None:
        if not batch.num_rows:
            return
        slots = self.slots_of(batch)
        state = self.state_for(batch)
        numbers = np.empty(len(slots), np.int64)
        _number_in_key(slots, state.since_fired, numbers)
        stretches = numbers // self._count
        distinct, inverse = np.unique((stretches << 32) | slots.astype(np.int64), return_inverse=True)
        owners = (distinct & 0xFFFFFFFF).astype(np.int32)
        stretch_of = distinct >> 32
        entries = np.full(len(distinct), _NONE, np.int32)
        goes_on = stretch_of == 0
        entries[goes_on] = state.entry_of[owners[goes_on]]
        missing = entries < 0
        entries[missing] = state.allocate(int(missing.sum()))
        state.contents.fold(entries[inverse], batch)
        full = (stretch_of + 1) * self._count <= state.since_fired[owners]
        for stretch in np.unique(stretch_of).tolist():  # a key's stretches in their order
            chosen = stretch_of == stretch
            self._end_stretch(state, owners[chosen], entries[chosen], full[chosen])
        state.since_fired[owners] %= self._count

    def _end_stretch(self, state: GlobalWindowState, slots: Slots, entries: Slots, full: BoolArray) -> None:
        if not self._purge:
            before = state.entry_of[slots]
            apart = (before >= 0) & (before != entries)
            if apart.any():
                state.contents.merge(before[apart], entries[apart])
                state.release(entries[apart])
                entries = np.where(apart, before, entries)
        state.entry_of[slots] = entries
        if full.any():
            self._emit(state, slots[full], entries[full])
            if self._purge:
                state.entry_of[slots[full]] = _NONE
                state.release(entries[full])

    def _emit(self, state: GlobalWindowState, slots: Slots, entries: Slots) -> None:
        backend = self.backend
        backend = check(backend, "there is no backend, although there are rows")
        always = np.full(len(entries), MIN_WATERMARK_MS), np.full(len(entries), MAX_WATERMARK_MS)
        fired = FiredWindows(backend.key_fields, backend.keys(slots), *always, entries, timeless=True)
        state.contents.emit(fired, self.output)
