"""Sessions per key: intervals of event time that merge, with contents by entry; in snapshots a map from start to
contents.

Decides how new rows and what is there become sessions: sorted by key and time, intervals that touch are one. A key's
sessions form a chain; a calendar knows which may be due, without asking all of them. Decides nothing about watermarks.
Mirrors Flink's MergingWindowSet.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from snapline.dataflow.api.state import MapStateDescriptor
from snapline.dataflow.columnar.arrow_columns import BoolArray, Int64Array
from snapline.dataflow.columnar.gather import gather_values
from snapline.dataflow.columnar.kernel import I64, I64s, RO_I32s, RO_I64s, kernel
from snapline.taskmanager.operators.base.deadline_buckets import Calendar
from snapline.taskmanager.operators.windows.entry_maps import FrozenEntryMaps, by_start, entry_maps
from snapline.taskmanager.operators.windows.window_contents import ContentsState, WindowContents
from snapline.taskmanager.state.adopted_state import NOTHING_DUE, elements_of, reduce_lists
from snapline.taskmanager.state.columns import FrozenColumn
from snapline.taskmanager.state.index.chains import Chains
from snapline.taskmanager.state.index.copy_on_write import CopyOnWrite
from snapline.taskmanager.state.index.slots import SlotAllocator, Slots, grown

END, FIRED = "end", "fired"
NEW = -1
_BUCKETS_PER_GAP = 16


@kernel(I64(RO_I32s, RO_I64s, RO_I64s, I64s))
def _group_intervals(slots: Any, starts: Any, ends: Any, groups: Any) -> int:
    """Number the runs of intervals, sorted by slot and start, that overlap. Returns how many."""
    count = -1
    end = np.int64(0)
    for row in range(slots.shape[0]):
        if row == 0 or slots[row] != slots[row - 1] or starts[row] >= end:
            count += 1
            end = ends[row]
        elif ends[row] > end:
            end = ends[row]
        groups[row] = count
    return count + 1


class SessionState(ContentsState):
    """The sessions of all keys in columns, by entry."""

    def __init__(self, name: str, contents: WindowContents, gap_ms: int, lateness_ms: int) -> None:
        """`lateness_ms`: how long a session stays after its result."""
        self.contents, self._name = contents, name
        self.gap_ms, self._lateness_ms = gap_ms, lateness_ms
        self.describe()
        self._allocator = SlotAllocator()
        self._chains = Chains()
        self.slot_of: Slots = np.zeros(64, np.int32)
        self.starts: Int64Array = np.zeros(64, np.int64)
        self.ends: Int64Array = np.zeros(64, np.int64)
        """End of each session: the time of its last row plus the gap."""
        self.fired: BoolArray = np.zeros(64, np.bool_)
        self._guard = CopyOnWrite()
        """The guard of starts, ends and `fired`, which a snapshot may be reading."""
        self._bucket_ms = max(1, gap_ms // _BUCKETS_PER_GAP)
        self._calendar = Calendar(self._bucket_ms)

    def describe(self) -> None:
        fields = [*self.contents.fields, pa.field(END, pa.int64()), pa.field(FIRED, pa.bool_())]
        self.descriptor: MapStateDescriptor = MapStateDescriptor(self._name, pa.int64(), pa.struct(fields))

    def __len__(self) -> int:
        """Return how many sessions there are."""
        return len(self._allocator)

    def sessions_of(self, slots: Slots) -> tuple[Int64Array, Slots]:
        """(offsets, entries) of keys, each named once."""
        return self._chains.entries(slots)

    def add_rows(self, slots: Slots, times: Int64Array) -> tuple[Slots, Slots]:
        """Each row's session, merged with whatever it overlaps; and all sessions that have changed, each once."""
        order = np.lexsort((times, slots))
        owners, at = slots[order], times[order]
        other_key = np.ones(len(order), np.bool_)
        other_key[1:] = owners[1:] != owners[:-1]
        new = other_key.copy()
        new[1:] |= at[1:] >= at[:-1] + self.gap_ms
        first = np.flatnonzero(new)
        last = np.append(first[1:], len(order)) - 1
        _, known = self._chains.entries(owners[other_key])
        interval_slots = np.concatenate([self.slot_of[known], owners[first]])
        starts = np.concatenate([self.starts[known], at[first]])
        ends = np.concatenate([self.ends[known], at[last] + self.gap_ms])
        entries = np.concatenate([known, np.full(len(first), NEW, np.int32)])
        by_start = np.lexsort((starts, interval_slots))
        groups = np.empty(len(by_start), np.int64)
        ends_sorted = ends[by_start]
        count = _group_intervals(interval_slots[by_start], starts[by_start], ends_sorted, groups)
        bounds = np.searchsorted(groups, np.arange(count))
        group_owners = interval_slots[by_start][bounds]
        targets = self._merge_groups(groups, entries[by_start], group_owners)
        self.slot_of[targets] = group_owners
        self._guard.before_write(targets)
        self.starts[targets] = starts[by_start][bounds]
        self.ends[targets] = np.maximum.reduceat(ends_sorted, bounds)
        group_of_interval = np.empty(len(groups), np.int64)
        group_of_interval[by_start] = groups
        of_new = group_of_interval[len(known) :]  # ascending, as keys and times are
        entry_of_row = np.empty(len(order), np.int32)
        entry_of_row[order] = np.repeat(targets[of_new], last - first + 1)
        changed = np.ones(len(of_new), np.bool_)
        changed[1:] = of_new[1:] != of_new[:-1]
        return entry_of_row, targets[of_new[changed]]

    def _merge_groups(self, groups: Int64Array, entries: Slots, owners: Slots) -> Slots:
        """The entry that each group lives on in; the others' contents go there."""
        targets = np.full(len(owners), NEW, np.int32)
        known = np.flatnonzero(entries >= 0)
        found, first = np.unique(groups[known], return_index=True)
        targets[found] = entries[known[first]]
        others = np.ones(len(known), np.bool_)
        others[first] = False
        if others.any():
            gone = known[others]
            self.contents.merge(targets[groups[gone]], entries[gone])
            self.remove(entries[gone])
        missing = targets < 0
        if missing.any():
            added = self._allocator.allocate(int(missing.sum()))
            self._make_room()
            targets[missing] = added
            self.set_fired(added, fired=np.zeros(len(added), np.bool_))
            self._chains.append(owners[missing], added)
        return targets

    def _make_room(self) -> None:
        capacity = self._allocator.capacity
        if capacity > len(self.slot_of):
            self.slot_of = grown(self.slot_of, capacity)
            self.starts, self.ends = grown(self.starts, capacity), grown(self.ends, capacity)
            self.fired = grown(self.fired, capacity)
            self._calendar.grow(capacity)
            self._chains.grow_entries(capacity)
            self.contents.grow(capacity)

    def set_fired(self, entries: Slots, fired: BoolArray) -> None:
        """Whether their results are out."""
        self._guard.before_write(entries)
        self.fired[entries] = fired

    def still_there(self, entries: Slots) -> Slots:
        """Those that did not become part of others."""
        return entries[self._allocator.live[entries]]

    def remove(self, entries: Slots) -> None:
        """Forget sessions, each named once."""
        if not len(entries):
            return
        self._chains.unlink(self.slot_of[entries], entries)
        self.contents.clear(entries)
        self._calendar.forget(entries)
        self._allocator.release(entries)

    # --- what is due --------------------------------------------------------------------------------------------------

    def _deadlines(self, ends: Int64Array, fired: BoolArray) -> Int64Array:
        return ends - 1 + np.where(fired, self._lateness_ms, 0)

    def remind(self, entries: Slots) -> None:
        """Have `due` look at these entries, which have changed, once time has reached their deadlines."""
        self._calendar.remind(entries, self._deadlines(self.ends[entries], self.fired[entries]))

    def may_be_due(self, time_ms: int) -> bool:
        """Whether `due` is worth asking."""
        return self._calendar.may_be_due(time_ms)

    def next_look_ms(self) -> int:
        """A time by which the first of all sessions is over: it may be a sixteenth of the gap too late."""
        earliest = self._calendar.earliest_ms()
        return NOTHING_DUE + 1 if earliest is None else earliest + self._bucket_ms + 1

    def due(self, time_ms: int) -> Slots:
        """Entries that are over: not fired and past their end, or fired and past the lateness, too. They are not in the
        calendar any more."""
        return self._calendar.take(
            time_ms, lambda entries: self._deadlines(self.ends[entries], self.fired[entries]) <= time_ms
        )

    # --- AdoptedState -------------------------------------------------------------------------------------------------

    def due_times(self, values: pa.Array) -> Int64Array:
        _, items = elements_of(values)
        fired = items.field(FIRED).to_numpy(zero_copy_only=False)
        return reduce_lists(values, self._deadlines(items.field(END).to_numpy(), fired), np.minimum)

    def grow(self, capacity: int) -> None:
        self._chains.grow_slots(capacity)

    def occupied(self, high_water: int) -> BoolArray:
        return self._chains.occupied(high_water)

    def freeze(self, high_water: int) -> FrozenColumn:
        used = self._allocator.high_water
        numbers = self._guard.freeze([self.starts, self.ends, self.fired], used)
        return FrozenEntryMaps(
            self.descriptor, self._chains.freeze(high_water, used), numbers, self.contents.freeze(used)
        )

    def restore(self, slots: Slots, values: pa.Array) -> None:
        starts, items = elements_of(values)
        if not len(starts):
            return
        *contents, ends, fired = items.flatten()
        entries = self._allocator.allocate(len(starts))
        self._make_room()
        owners = np.repeat(slots, np.diff(values.offsets.to_numpy())).astype(np.int32)
        self.slot_of[entries] = owners
        self._guard.before_write(entries)
        self.starts[entries] = starts.to_numpy()
        self.ends[entries] = ends.to_numpy()
        self.fired[entries] = fired.to_numpy(zero_copy_only=False)
        self._chains.append(owners, entries)
        self.contents.restore(entries, contents)
        self.remind(entries)

    def get_batch(self, slots: Slots) -> pa.Array:
        offsets, entries = self._chains.entries(slots)
        entries, starts = by_start(offsets, entries, gather_values(self.starts, entries))
        ends, fired = pa.array(gather_values(self.ends, entries)), pa.array(self.fired[entries])
        return entry_maps(self.descriptor, offsets, starts, [*self.contents.get(entries), ends, fired])

    def clear_batch(self, slots: Slots) -> None:
        self.remove(self._chains.entries(np.unique(slots))[1])
