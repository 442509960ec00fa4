"""The `rocksdb` backend: as many keys in memory as the setting allows, in columns as `hashmap` has them, the others
outside.

A batch's keys are loaded before its rows are processed, all that are missing in one read; keys that were not used
lately make room, in one write. So what is used often costs what it does in `hashmap`, and state may be larger than
memory. A key goes as a whole: its row holds all its states and timers; one key's list or map has to fit. Timers, and
states that an operator has made itself (windows, joins), say when a key has to be back. Snapshots are files like those
of `hashmap`: first what lies outside, by key groups, then what is in memory, as a delta over it. It does not know
operators, barriers or storage. Mirrors Flink's RocksDBKeyedStateBackend, which reads and writes each entry by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pyarrow as pa

from snapline.dataflow.api.state import StateDescriptor, descriptor_of
from snapline.dataflow.columnar.arrow_columns import BoolArray, Int64Array, validity
from snapline.dataflow.key_groups import KeyGroupRange
from snapline.dataflow.snapshot.state_evolution import convert
from snapline.dataflow.snapshot.state_format import (
    KEY_COLUMN,
    STATE_COLUMN,
    KeyedStateHeader,
    decode_keyed_state,
    with_role,
)
from snapline.taskmanager.state.adopted_state import NEVER_DUE, NOTHING_DUE, AdoptedState
from snapline.taskmanager.state.cell_encoding import check_encodable, encode_rows
from snapline.taskmanager.state.frozen_timers import TIMERS_TYPE
from snapline.taskmanager.state.incremental import EncodablePart, IncrementalSnapshots, KeyedChanges
from snapline.taskmanager.state.index.key_index import Column
from snapline.taskmanager.state.index.slots import Slots, distinct
from snapline.taskmanager.state.keyed_backend import (
    FIRST_SWEEP_KEYS,
    KeyedStateBackend,
    StateFile,
    is_alike,
    timers_field,
)
from snapline.taskmanager.state.keyed_state import KeyedState
from snapline.taskmanager.state.keyed_timers import KeyedTimers
from snapline.taskmanager.state.outside.cold_rows import ColdRows
from snapline.taskmanager.state.outside.cold_snapshot import ColdSnapshot, FileOfRows
from snapline.taskmanager.state.outside.due_outside import DueOutside
from snapline.taskmanager.state.outside.hot_keys import CHANGED, LOADED, HotKeys
from snapline.taskmanager.state.outside.segment_space import SegmentSpace
from snapline.taskmanager.state.outside.spilled_timers import SpilledTimerQueue

_SAMPLE = 512
_SAMPLE_EVERY_BATCHES = 256
_SAMPLE_ADOPTED_EVERY_BATCHES = 32
"""What windows and joins keep of a key grows with every batch."""
_ROOM = 3
"""Memory that a row takes, by its size."""
_OVERHEAD_BYTES = 64
"""Per key: its place in the index, flags."""
_OUTSIDE_BYTES = 40
"""Memory that a key outside takes, for its place in the index; up to half of what there is comes off for that."""
_CHUNK_ROWS = 8192
"""So many rows of a restored file, or of all keys outside, are looked at in one step."""
_CLEANUP_ROWS = 256
"""So many keys outside are looked at, for states with a time-to-live, when there have been as many rows."""


class SpillingKeyedStateBackend(KeyedStateBackend):
    """KeyedStateBackend with room for more than fits into memory."""

    def __init__(
        self,
        key_schema: pa.Schema,
        key_group_range: KeyGroupRange,
        max_parallelism: int,
        space: SegmentSpace,
        memory_bytes: int,
    ) -> None:
        """`memory_bytes`: about what the keys in memory may take. The space is this backend's alone."""
        super().__init__(key_schema, key_group_range, max_parallelism)
        self._cold = ColdRows(space, self.key_fields)
        self._memory_bytes = memory_bytes
        self._hot = HotKeys(self._capacity)
        self._due: dict[str, _DueOutside] = {}
        """What is due outside of adopted states, by name."""
        self._row_bytes = 32.0
        self._sample_at = 1
        self._batches = 0
        self._epoch = 0
        self._cleaned_until = 0
        self._rows_since_cleanup = 0
        self._have_left = False
        """Keys have been let go of."""

    # -- keys ---------------------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        live = self._index.live_slots()
        return len(live) + len(self._cold) - int((self._hot.outside(live) >= 0).sum())

    def slots(self, key_columns: Sequence[Column]) -> Slots:
        if not self.scope.is_open:
            if len(self._index) >= self._sweep_at:
                self._sweep()
            self._make_room()
        slots = self._index.lookup_or_insert(key_columns)
        self._rows_since_cleanup += len(slots)
        self._know(slots, changes=True)
        if self._changes is not None:
            self._changes.mark(slots)
        return slots

    def touch(self, slots: Slots) -> None:
        self._hot.use(slots, changes=True)
        super().touch(slots)

    def update_all(self, update: Callable[[Slots], None]) -> None:
        """A key that moves meanwhile may come twice."""
        super().update_all(update)
        outside = self._cold.numbers()
        for first in range(0, len(outside), _CHUNK_ROWS):
            self._make_room()
            slots = self._load_keys(self._cold.still(outside[first : first + _CHUNK_ROWS]))
            self.touch(slots)
            update(slots)

    def lookup(self, key_columns: Sequence[Column]) -> Slots:
        known = self._index.lookup(key_columns) >= 0
        slots = self.slots(key_columns)
        return np.where(known | (self._hot.outside(slots) >= 0), slots, np.int32(-1))

    def adopt_state(self, state: AdoptedState) -> None:
        check_encodable(state.descriptor.name, state.descriptor.storage_type)
        super().adopt_state(state)
        self._due[state.descriptor.name] = _DueOutside(state.due_times)

    def due_outside_ms(self, name: str) -> int:
        earliest = self._due[name].outside.earliest
        return NOTHING_DUE if earliest is None else earliest

    def load_due(self, name: str, time_ms: int, limit: int) -> None:
        self._load_due(self._due[name].outside, time_ms, max(1, min(limit, self._most_keys // 2)))

    # -- between memory and outside -----------------------------------------------------------------------------------

    def _know(self, slots: Slots, *, changes: bool) -> None:
        """These are used: load what is missing."""
        if self._index.capacity != self._capacity:
            self._grow()
        fresh = self._hot.use(slots, changes=changes)
        if len(fresh) and len(self._cold):
            self._load(fresh)

    def _load_keys(self, numbers: Slots) -> Slots:
        """The slots of these keys, which have rows outside; they are in memory now."""
        slots = self._index.lookup_or_insert(self._cold.keys(numbers))
        self._know(slots, changes=False)
        return slots

    def _load(self, slots: Slots) -> None:
        """Take over the rows of keys that have come into memory just now."""
        numbers = self._cold.find(self._index.keys(slots))
        found = np.flatnonzero(numbers >= 0)
        if len(found) < len(slots):
            slots, numbers = slots[found], numbers[found]
        self._hot.lie_outside(slots, numbers)
        queues = self._queues()
        for group in self._cold.read(numbers):
            chosen = slots[group.rows]
            for field, column in group.columns:
                if field.name in self._states:
                    self._restore_state(field, chosen, column)
                elif field.name not in self._removed:
                    queues[field.name].restore(chosen, column)

    def _make_room(self) -> None:
        """Let keys go when there are more than memory is meant for."""
        if self.scope.is_open:
            return
        self._batches += 1
        count = len(self._index)
        every = _SAMPLE_ADOPTED_EVERY_BATCHES if self._due else _SAMPLE_EVERY_BATCHES
        if count >= self._sample_at or self._batches % every == 0:
            self._sample()
        limit = self._most_keys
        if count > limit:
            going = self._hot.next_to_go(min(count, count - limit + limit // 16), self._index.high_water)
            self._let_go(going)

    @property
    def _most_keys(self) -> int:
        """So many may be in memory."""
        room = max(self._memory_bytes // 2, self._memory_bytes - _OUTSIDE_BYTES * len(self._cold))
        return max(1, int(room / (self._row_bytes + _OVERHEAD_BYTES)))

    def _sample(self) -> None:
        """How large rows are in memory: columns have up to twice the room that they use, and some more while they are
        rewritten."""
        live = self._index.live_slots()
        self._sample_at = len(live) + len(live) // 4 + 1024
        if not len(live):
            return
        chosen = np.ascontiguousarray(live[:: max(1, len(live) // _SAMPLE)])
        columns = [state.get_batch(chosen) for state in self._states.values()]
        if columns:
            offsets, _ = encode_rows(columns)
            timers = sum(len(queue) for queue in self._queues().values())
            self._row_bytes = _ROOM * int(offsets[-1]) / len(chosen) + 80 * timers / len(live)

    def _let_go(self, slots: Slots) -> None:
        """Write the rows of keys that were changed, and forget the keys here."""
        if not len(slots):
            return
        self._have_left = True
        columns = [(state.descriptor.to_field(), state.get_batch(slots)) for state in self._states.values()]
        columns += [(pa.field(name, TIMERS_TYPE), queue.take_slots(slots)) for name, queue in self._queues().items()]
        empty = self._are_empty(columns, len(slots))
        keys, numbers = self._index.keys(slots), self._hot.outside(slots)
        written = self._hot.have(slots, CHANGED) & ~empty
        if written.all():
            numbers = self._cold.put(numbers, keys, columns)
        elif written.any():
            rows = pa.array(np.flatnonzero(written))
            some = [(field, column.take(rows)) for field, column in columns]
            numbers[written] = self._cold.put(numbers[written], [key.take(rows) for key in keys], some)
        self._note_due(columns, numbers)
        gone = numbers[empty & (numbers >= 0)]
        self._forget_due(gone)
        self._cold.forget(gone)
        if self._changes is not None:
            changed = self._changes.touched(self._index.high_water)[slots]
            if changed.any():
                self._cold.note_changed(self._epoch, numbers[changed & ~empty])
                rows = np.flatnonzero(changed & empty)
                if len(rows):
                    self._cold.note_gone(self._epoch, [key.take(pa.array(rows)) for key in keys])
            self._changes.forget(slots)
        for state in self._states.values():
            state.clear_batch(slots)
        self._hot.forget(slots)
        self._index.remove(slots)

    def _are_empty(self, columns: Sequence[tuple[pa.Field, pa.Array]], count: int) -> BoolArray:
        """Which rows of these columns hold nothing."""
        empty = np.ones(count, np.bool_)
        queues = self._queues()
        for field, column in columns:
            if field.name in queues:
                empty &= np.diff(np.asarray(column.offsets)) == 0
            else:
                valid = validity(column)
                empty &= np.False_ if valid is None else ~valid
        return empty

    def _expire_some(self) -> None:
        super()._expire_some()
        if not len(self._cold) or self._rows_since_cleanup < _CLEANUP_ROWS:
            return
        self._rows_since_cleanup = 0
        numbers, self._cleaned_until = self._cold.numbers_from(self._cleaned_until, _CLEANUP_ROWS)
        if len(numbers):
            slots = self._load_keys(numbers)
            for state in self._ttl_states:
                self.touch(state.expire(slots))

    def _queues(self) -> dict[str, SpilledTimerQueue]:
        """The timer queues by the name of their column."""
        return {
            f"{timers.name}/{domain}": queue
            for timers in self._timers.values()
            for domain, queue in timers.queues()
            if isinstance(queue, SpilledTimerQueue)
        }

    def _make_timers(self, name: str) -> KeyedTimers:
        return KeyedTimers(name, self.scope, self._capacity, lambda _: SpilledTimerQueue(self._load_due))

    def _note_due(self, columns: Sequence[tuple[pa.Field, pa.Array]], numbers: Slots) -> None:
        """These rows are outside from now on, under these numbers; -1: one that is empty."""
        queues = self._queues()
        present = numbers >= 0
        for field, column in columns:
            if field.name in self._due:
                due = self._due[field.name]
                due.outside.note(numbers[present], due.times(column)[present])
            elif field.name in queues:
                queues[field.name].outside.note(numbers[present], _earliest(column)[present])

    def _forget_due(self, numbers: Slots) -> None:
        """These keys have no row any more."""
        for outside in [due.outside for due in self._due.values()] + [
            queue.outside for queue in self._queues().values()
        ]:
            outside.forget(numbers)

    def _load_due(self, outside: DueOutside, timestamp: int, limit: int) -> None:
        """Load the keys that are due first, so many or all."""
        self._make_room()
        loaded = 0
        while loaded < limit and (earliest := outside.earliest) is not None and earliest <= timestamp:
            numbers = self._cold.still(outside.take(timestamp, limit - loaded))
            if len(numbers):
                self._load_keys(numbers)
                loaded += len(numbers)

    # -- snapshots ----------------------------------------------------------------------------------------------------

    def snapshot_parts(self) -> tuple[EncodablePart, ...]:
        if not len(self._cold):
            return (self.snapshot(),)
        self.end_batch()
        file_of_rows = self._format()
        outside = [ColdSnapshot(self._cold, segment, file_of_rows) for segment in self._cold.freeze()]
        return (*outside, self._frozen(self._hot.stored(self._index.high_water), is_delta=True))

    def incremental_snapshots(self, owner: str) -> IncrementalSnapshots:
        self._changes = _LoggedChanges(self._capacity, self._epoch_ended, self._epoch_confirmed)
        return IncrementalSnapshots(
            self._changes, owner, self.snapshot_parts, self._delta_parts, lambda: self._index.high_water
        )

    def _delta_parts(self, touched: BoolArray) -> tuple[EncodablePart, ...]:
        """What was changed and has left memory since, then what was changed and is here."""
        here = self._delta(touched)
        if not self._have_left:
            return (here,)
        return (ColdSnapshot(self._cold, self._cold.changes(), self._format()), here)

    def _epoch_ended(self) -> int:
        self._epoch += 1
        return self._epoch - 1

    def _epoch_confirmed(self, epoch: int) -> None:
        self._cold.forget_changes(epoch)

    def _format(self) -> FileOfRows:
        fields = [with_role(field, KEY_COLUMN) for field in self.key_fields]
        fields += [with_role(state.descriptor.to_field(), STATE_COLUMN) for state in self._states.values()]
        for timers in self._timers.values():
            fields += [timers_field(timers.name, domain) for domain, _ in timers.queues()]
        return FileOfRows(
            pa.schema(fields), len(self.key_fields), self.key_group_range, self.max_parallelism, self._conversion()
        )

    def _take_over(self, files: Sequence[StateFile], headers: Sequence[KeyedStateHeader]) -> None:
        """Into memory if it fits, else to where it lies when memory is full."""
        needed = sum(map(self._needed_bytes, headers))
        if needed <= self._memory_bytes:
            super()._take_over(files, headers)
            live = self._index.live_slots()
            self._hot.add(live, LOADED | CHANGED)
            return
        for header in headers:
            for field in header.timer_fields:
                self.get_timers(field.name.rsplit("/", 1)[0])
        for file, header in zip(files, headers, strict=True):
            _, batches = decode_keyed_state(file.read_range, self.key_group_range, header)
            for batch in batches:
                for first in range(0, batch.num_rows, _CHUNK_ROWS):
                    self._restore_outside(header, batch.slice(first, _CHUNK_ROWS))

    def _needed_bytes(self, header: KeyedStateHeader) -> int:
        first, end = header.key_group_offsets.rows_of(self.key_group_range)
        wanted = [block for block in header.blocks if block.first_row < end and block.first_row + block.rows > first]
        return 2 * sum(block.length for block in wanted) + _OVERHEAD_BYTES * (end - first)

    def _restore_outside(self, header: KeyedStateHeader, batch: pa.RecordBatch) -> None:
        """Rows of a file go where keys lie that are not used; what comes later replaces what came before."""
        width = len(header.key_fields)
        keys = batch.columns[:width]
        columns = list(zip([*header.state_fields, *header.timer_fields], batch.columns[width:], strict=True))
        empty = self._are_empty(columns, batch.num_rows)
        numbers = self._cold.find(keys)
        gone = numbers[empty & (numbers >= 0)]
        self._forget_due(gone)
        self._cold.forget(gone)
        if empty.any():
            rows = pa.array(np.flatnonzero(~empty))
            keys, columns = [key.take(rows) for key in keys], [(field, column.take(rows)) for field, column in columns]
        numbers = self._cold.put(numbers[~empty], keys, columns)
        if len(distinct(numbers)) != len(numbers):
            raise ValueError("a key has two rows")
        self._note_due(columns, numbers)

    # -- housekeeping -------------------------------------------------------------------------------------------------

    def close(self) -> None:
        self._cold.close()

    def _sweep(self) -> None:
        live = self._index.live_slots()
        self._let_go(live[~self._occupied()[live]])
        self._sweep_at = max(FIRST_SWEEP_KEYS, 2 * len(self._index))

    def _grow(self) -> None:
        super()._grow()
        self._hot.grow(self._capacity)

    def _evolved(self, known: KeyedState, descriptor: StateDescriptor) -> KeyedState:
        written = known.descriptor
        state = super()._evolved(known, descriptor)
        self._older[written.name, written.storage_type, written.serializer] = written  # rows outside
        return state

    def _conversion(self) -> Callable[[pa.Field, pa.Array], pa.Array]:
        """Columns as they were written to what the states are now, in whatever thread."""
        now_ms, older = self._restored_ms, dict(self._older)
        states = {name: state.descriptor for name, state in self._states.items()}

        def as_now(field: pa.Field, values: pa.Array) -> pa.Array:
            descriptor = states.get(field.name)
            written = older.get((field.name, field.type, descriptor_of(field).serializer)) if descriptor else None
            if descriptor is None or written is None or is_alike(written, descriptor):
                return values
            converted = convert(values.drop_null(), written, descriptor, now_ms)
            if not values.null_count:
                return converted
            present = np.asarray(values.is_valid())
            return converted.take(pa.array(np.cumsum(present) - 1, mask=~present))

        return as_now

    def _make_state(self, descriptor: StateDescriptor) -> KeyedState:
        check_encodable(descriptor.name, descriptor.storage_type)
        return super()._make_state(descriptor)


class _DueOutside:
    """When keys outside are due, by an adopted state."""

    __slots__ = ("outside", "times")

    def __init__(self, times: Callable[[pa.Array], Int64Array]) -> None:
        """`times`: of values of the state."""
        self.times = times
        self.outside = DueOutside()


class _LoggedChanges(KeyedChanges):
    """KeyedChanges that also knows epochs: what was changed and left memory is noted outside, by epoch."""

    __slots__ = ("_confirmed", "_end_epoch", "_epochs")

    def __init__(self, capacity: int, end_epoch: Callable[[], int], confirmed: Callable[[int], None]) -> None:
        super().__init__(capacity)
        self._end_epoch, self._confirmed = end_epoch, confirmed
        self._epochs: dict[int, int] = {}

    def snapshot(self, checkpoint_id: int) -> None:
        super().snapshot(checkpoint_id)
        self._epochs[checkpoint_id] = self._end_epoch()

    def confirm(self, checkpoint_id: int) -> None:
        super().confirm(checkpoint_id)
        ended = [epoch for known, epoch in self._epochs.items() if known <= checkpoint_id]
        self._epochs = {known: epoch for known, epoch in self._epochs.items() if known > checkpoint_id}
        if ended:
            self._confirmed(max(ended))

    def restart(self) -> None:
        super().restart()
        self._epochs.clear()
        self._confirmed(self._end_epoch())


def _earliest(timers: pa.Array) -> Int64Array:
    """When the first timer of each key is due; timers of a key are in order. One that is for the end of all time is due
    with it, and not never."""
    offsets = np.asarray(timers.offsets)
    rows = np.flatnonzero(np.diff(offsets))
    times = np.full(len(timers), NEVER_DUE)
    times[rows] = np.minimum(np.asarray(timers.values.field(0))[offsets[rows]], NEVER_DUE - 1)
    return times
