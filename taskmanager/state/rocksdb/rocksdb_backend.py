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

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice, pairwise
from typing import Protocol

import numpy as np
import pyarrow as pa

from snapline.dataflow.api.state import StateDescriptor, descriptor_of
from snapline.dataflow.columnar.arrow_columns import BoolArray, Int64Array
from snapline.dataflow.key_groups import KeyGroupRange
from snapline.dataflow.snapshot.state_evolution import convert
from snapline.dataflow.snapshot.state_format import (
    KEY_COLUMN,
    STATE_COLUMN,
    KeyedStateHeader,
    decode_keyed_state,
    read_header,
    with_role,
)
from snapline.taskmanager.state.adopted_state import NEVER_DUE, NOTHING_DUE, AdoptedState
from snapline.taskmanager.state.cell_encoding import check_encodable, encode_rows
from snapline.taskmanager.state.incremental import EncodablePart, IncrementalSnapshots, KeyedChanges
from snapline.taskmanager.state.index.key_index import Column
from snapline.taskmanager.state.index.slots import Slots
from snapline.taskmanager.state.keyed_backend import (
    FIRST_SWEEP_KEYS,
    KeyedStateBackend,
    StateFile,
    is_alike,
    timers_field,
)
from snapline.taskmanager.state.keyed_state import KeyedState
from snapline.taskmanager.state.keyed_timers import KeyedTimers
from snapline.taskmanager.state.rocksdb.cold_rows import ColdRows, RowColumns
from snapline.taskmanager.state.rocksdb.cold_snapshot import ColdSnapshot
from snapline.taskmanager.state.rocksdb.hot_keys import CHANGED, LOADED, STORED, HotKeys
from snapline.taskmanager.state.rocksdb.key_value_store import KeyValueStore
from snapline.taskmanager.state.rocksdb.spilled_timers import SpilledTimerQueue

PART_BYTES = 24 << 20
"""What lies outside is written in files of about this size, as far as key groups allow."""
_SAMPLE = 512
_SAMPLE_EVERY_BATCHES = 256
_SAMPLE_ADOPTED_EVERY_BATCHES = 32
"""What windows and joins keep of a key grows with every batch."""
_ROOM = 3
"""Memory that a row takes, by its size."""
_OVERHEAD_BYTES = 64
"""Per key: its place in the index, flags."""
_CHUNK_ROWS = 8192
_FIRST_ADOPTED = 1 << 15
"""Numbers of queues: timers from 0 on, adopted states from here on."""
_CLEANUP_ROWS = 256
"""So many keys outside are looked at, for states with a time-to-live, when there have been as many rows."""


class RocksDBKeyedStateBackend(KeyedStateBackend):
    """KeyedStateBackend with room for more than fits into memory."""

    def __init__(
        self,
        key_schema: pa.Schema,
        key_group_range: KeyGroupRange,
        max_parallelism: int,
        store: KeyValueStore,
        memory_bytes: int,
    ) -> None:
        """`memory_bytes`: about what the keys in memory may take. The store is this backend's alone, and closed by
        it."""
        super().__init__(key_schema, key_group_range, max_parallelism)
        self._cold = ColdRows(store, [field.type for field in self.key_fields], max_parallelism)
        self._memory_bytes = memory_bytes
        self._hot = HotKeys(self._capacity)
        self._due: dict[str, _DueOutside] = {}
        """What is due outside of adopted states, by name."""
        self._stored_keys = 0
        """Keys with a row outside, those in memory among them."""
        self._row_bytes = 32.0
        self._sample_at = 1
        self._batches = 0
        self._epoch = 0
        self._cleaned_until = b""
        self._rows_since_cleanup = 0
        self._have_left = False
        """Keys have been let go of."""

    # -- keys ---------------------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        live = self._index.live_slots()
        return len(live) + self._stored_keys - int(self._hot.have(live, STORED).sum())

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
        if not self._stored_keys:
            return
        rows = self._scan()
        while chunk := [key for key, _ in islice(rows, _CHUNK_ROWS)]:
            self._make_room()
            slots = self._load_keys(chunk)
            self.touch(slots)
            update(slots)

    def lookup(self, key_columns: Sequence[Column]) -> Slots:
        known = self._index.lookup(key_columns) >= 0
        slots = self.slots(key_columns)
        return np.where(known | self._hot.have(slots, STORED), slots, np.int32(-1))

    def adopt_state(self, state: AdoptedState) -> None:
        check_encodable(state.descriptor.name, state.descriptor.storage_type)
        super().adopt_state(state)
        self._due[state.descriptor.name] = _DueOutside(_FIRST_ADOPTED + len(self._due), state.due_times)

    def due_outside_ms(self, name: str) -> int:
        earliest = self._due[name].earliest_outside
        return NOTHING_DUE if earliest is None else earliest

    def load_due(self, name: str, time_ms: int, limit: int) -> None:
        due = self._due[name]
        self._load_due(due.number, due, time_ms, max(1, min(limit, self._most_keys // 2)))

    # -- between memory and outside -----------------------------------------------------------------------------------

    def _know(self, slots: Slots, *, changes: bool) -> None:
        """These are used: load what is missing."""
        if self._index.capacity != self._capacity:
            self._grow()
        fresh = self._hot.use(slots, changes=changes)
        if len(fresh) and self._stored_keys:
            self._load(fresh)

    def _load_keys(self, keys: Sequence[bytes]) -> Slots:
        """The slots of these keys, in memory now."""
        slots = self._index.lookup_or_insert(self._cold.columns_of(keys))
        self._know(slots, changes=False)
        return slots

    def _load(self, slots: Slots) -> None:
        """Take over the rows of keys that have come into memory just now."""
        keys = self._cold.keys_of(self._index.keys(slots))
        rows = self._cold.read(keys)
        found = np.flatnonzero(np.array([row is not None for row in rows], np.bool_))
        if not len(found):
            return
        self._hot.add(slots[found], STORED)
        queues = self._queues()
        for group in self._cold.decode([row for row in rows if row is not None]):
            numbers = found[group.rows]
            self._forget_due(group, [keys[at] for at in numbers.tolist()])
            for field, column in group.columns:
                if field.name in self._states:
                    self._restore_state(field, slots[numbers], column)
                elif field.name not in self._removed:
                    queues[field.name][1].restore(slots[numbers], column)

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
        return max(1, int(self._memory_bytes / (self._row_bytes + _OVERHEAD_BYTES)))

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
            timers = sum(len(queue) for _, queue in self._queues().values())
            self._row_bytes = _ROOM * int(offsets[-1]) / len(chosen) + 80 * timers / len(live)

    def _let_go(self, slots: Slots) -> None:
        """Write the rows of keys that were changed, and forget the keys here."""
        if not len(slots):
            return
        self._have_left = True
        columns = [(state.descriptor.to_field(), state.get_batch(slots)) for state in self._states.values()]
        empty = np.ones(len(slots), np.bool_)
        keys = self._cold.keys_of(self._index.keys(slots))
        for _, column in columns:
            empty &= np.asarray(column.is_null())
        for name, (_, queue) in self._queues().items():
            timers = queue.take_slots(slots)
            empty &= np.diff(np.asarray(timers.offsets)) == 0
            columns.append((pa.field(name, timers.type), timers))
        self._note_due(columns, keys)
        stored = self._hot.have(slots, STORED)
        written = np.flatnonzero(self._hot.have(slots, CHANGED) & ~empty)
        gone = np.flatnonzero(empty & stored)
        if len(written) < len(slots):
            columns = [(field, column.take(pa.array(written))) for field, column in columns]
        rows = self._cold.encode(columns) if columns else []
        self._cold.write(
            zip((keys[at] for at in written.tolist()), rows, strict=True), [keys[at] for at in gone.tolist()]
        )
        self._stored_keys += int((~stored[written]).sum()) - len(gone)
        if self._changes is not None:
            changed = np.flatnonzero(self._changes.touched(self._index.high_water)[slots])
            if len(changed):
                self._cold.note_changes(self._epoch, [keys[at] for at in changed.tolist()])
            self._changes.forget(slots)
        for state in self._states.values():
            state.clear_batch(slots)
        self._hot.forget(slots)
        self._index.remove(slots)

    def _expire_some(self) -> None:
        super()._expire_some()
        if not self._stored_keys or self._rows_since_cleanup < _CLEANUP_ROWS:
            return
        self._rows_since_cleanup = 0
        keys = [key for key, _ in islice(self._cold.scan_after(self._cleaned_until), _CLEANUP_ROWS)]
        self._cleaned_until = keys[-1] if keys else b""
        if keys:
            slots = self._load_keys(keys)
            for state in self._ttl_states:
                self.touch(state.expire(slots))

    def _queues(self) -> dict[str, tuple[int, SpilledTimerQueue]]:
        """Column name to number and queue. Numbers stay: queues are only ever added."""
        queues = [
            (f"{timers.name}/{domain}", queue)
            for timers in self._timers.values()
            for domain, queue in timers.queues()
            if isinstance(queue, SpilledTimerQueue)
        ]
        return {name: (number, queue) for number, (name, queue) in enumerate(queues)}

    def _make_timers(self, name: str) -> KeyedTimers:
        def make(domain: str) -> SpilledTimerQueue:
            column = f"{name}/{domain}"
            return SpilledTimerQueue(lambda timestamp, limit: self._load_due(*self._queues()[column], timestamp, limit))

        return KeyedTimers(name, self.scope, self._capacity, make)

    def _due_entries(
        self, columns: Iterable[tuple[pa.Field, pa.Array]], keys: Sequence[bytes]
    ) -> Iterator[tuple[int, _Queue, list[tuple[int, bytes]]]]:
        """When these keys are due, by queue, from columns of their rows."""
        queues = self._queues()
        for field, column in columns:
            if field.name in self._due:
                due = self._due[field.name]
                yield due.number, due, due.entries(column, keys)
            elif field.name in queues:
                yield *queues[field.name], _earliest(column, keys)

    def _note_due(self, columns: Iterable[tuple[pa.Field, pa.Array]], keys: Sequence[bytes]) -> None:
        """These keys are outside from now on."""
        for number, queue, entries in self._due_entries(columns, keys):
            if entries:
                self._cold.note_timers(number, entries)
                queue.expect(min(time for time, _ in entries))

    def _forget_due(self, rows: RowColumns, keys: Sequence[bytes]) -> None:
        """These rows count no more."""
        for number, _, entries in self._due_entries(rows.columns, keys):
            if entries:
                self._cold.forget_timers(number, entries)

    def _load_due(self, number: int, queue: _Queue, timestamp: int, limit: int) -> None:
        """Load the keys that are due first, so many or all."""
        self._make_room()
        loaded = 0
        while queue.earliest_outside is not None and queue.earliest_outside <= timestamp and loaded < limit:
            entries = self._cold.timers(number, queue.earliest_outside, limit + 1)
            due = [entry for entry in entries[:limit] if entry[0] <= timestamp]
            queue.earliest_outside = entries[len(due)][0] if len(entries) > len(due) else None
            if due:
                self._cold.forget_timers(number, due)
                self._load_keys([key for _, key in due])
                loaded += len(due)

    # -- snapshots ----------------------------------------------------------------------------------------------------

    def snapshot_parts(self) -> tuple[EncodablePart, ...]:
        if not self._stored_keys:
            return (self.snapshot(),)
        self.end_batch()
        return (*self._cold_parts(), self._frozen(self._hot.stored(self._index.high_water), is_delta=True))

    def _cold_parts(self) -> Iterator[ColdSnapshot]:
        """What lies outside, a file for every few key groups."""
        schema, groups, as_now = self._schema(), self.key_group_range, self._conversion()
        size_bytes = self._stored_keys * (self._row_bytes / _ROOM + _OVERHEAD_BYTES)
        files = max(1, min(len(groups), int(size_bytes / PART_BYTES)))
        bounds = [groups.start + len(groups) * number // files for number in range(files + 1)]
        for first, end in pairwise(bounds):
            part = KeyGroupRange(first, end - 1)
            rows = self._cold.scan(part.start, part.end)
            yield ColdSnapshot(self._cold, rows, schema, len(self.key_fields), part, self.max_parallelism, as_now)

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
        changes, find = self._cold.changes(), self._cold.lookup()
        entries = ((key, find(key)) for key in sorted(set(changes)))
        schema, as_now = self._schema(), self._conversion()
        outside = ColdSnapshot(
            self._cold, entries, schema, len(self.key_fields), self.key_group_range, self.max_parallelism, as_now,
            is_delta=True,
        )  # fmt: skip
        return (outside, here)

    def _epoch_ended(self) -> int:
        self._epoch += 1
        return self._epoch - 1

    def _epoch_confirmed(self, epoch: int) -> None:
        self._cold.forget_changes(epoch)

    def _schema(self) -> pa.Schema:
        fields = [with_role(field, KEY_COLUMN) for field in self.key_fields]
        fields += [with_role(state.descriptor.to_field(), STATE_COLUMN) for state in self._states.values()]
        for timers in self._timers.values():
            fields += [timers_field(timers.name, domain) for domain, _ in timers.queues()]
        return pa.schema(fields)

    def restore(self, inputs: Iterable[StateFile]) -> None:
        """Into memory if it fits, else to where it lies when memory is full."""
        files = list(inputs)
        headers = [read_header(file.read_range) for file in files]
        needed = sum(map(self._needed_bytes, headers))
        if needed <= self._memory_bytes:
            super().restore(files)
            live = self._index.live_slots()
            self._hot.add(live, LOADED | CHANGED)
            return
        self._expect_all(headers)
        for header in headers:
            for field in header.timer_fields:
                self.get_timers(field.name.rsplit("/", 1)[0])
        for file, header in zip(files, headers, strict=True):
            _, batches = decode_keyed_state(file.read_range, self.key_group_range, header)
            for batch in batches:
                for first in range(0, batch.num_rows, _CHUNK_ROWS):
                    self._restore_outside(header, batch.slice(first, _CHUNK_ROWS))
        outside: list[tuple[int, _Queue]] = [*self._queues().values()]
        outside += [(due.number, due) for due in self._due.values()]
        for number, queue in outside:
            if queue.earliest_outside is not None:  # what was due first may have been replaced
                first_due = self._cold.timers(number, queue.earliest_outside, 1)
                queue.earliest_outside = first_due[0][0] if first_due else None

    def _needed_bytes(self, header: KeyedStateHeader) -> int:
        first, end = header.key_group_offsets.rows_of(self.key_group_range)
        wanted = [block for block in header.blocks if block.first_row < end and block.first_row + block.rows > first]
        return 2 * sum(block.length for block in wanted) + _OVERHEAD_BYTES * (end - first)

    def _restore_outside(self, header: KeyedStateHeader, batch: pa.RecordBatch) -> None:
        """Rows of a file go where keys lie that are not used; what comes later replaces what came before."""
        width = len(header.key_fields)
        keys = self._cold.keys_of(batch.columns[:width])
        fields = [*header.state_fields, *header.timer_fields]
        columns = list(zip(fields, batch.columns[width:], strict=True))
        empty = np.ones(len(keys), np.bool_)
        timer_names = {field.name for field in header.timer_fields}
        for field, column in columns:
            is_timers = field.name in timer_names
            empty &= np.diff(np.asarray(column.offsets)) == 0 if is_timers else np.asarray(column.is_null())
        rows = self._cold.encode(columns)
        puts, gone = np.flatnonzero(~empty).tolist(), np.flatnonzero(empty).tolist()
        if header.is_delta:
            replaced = self._cold.read(keys)
            known = np.array([row is not None for row in replaced], np.bool_)
            numbers = np.flatnonzero(known)
            for group in self._cold.decode([row for row in replaced if row is not None]):
                self._forget_due(group, [keys[at] for at in numbers[group.rows].tolist()])
            self._stored_keys += int((~known & ~empty).sum()) - int((known & empty).sum())
        else:
            self._stored_keys += len(puts)
        self._note_due(columns, keys)
        self._cold.write(((keys[at], rows[at]) for at in puts), [keys[at] for at in gone])

    # -- housekeeping -------------------------------------------------------------------------------------------------

    def close(self) -> None:
        self._cold.close()

    def _scan(self) -> Iterator[tuple[bytes, bytes]]:
        return self._cold.scan(self.key_group_range.start, self.key_group_range.end)

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
        now_ms, older = self._now_ms(), dict(self._older)
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


class _Queue(Protocol):
    """What is known of keys outside that are due sometime."""

    earliest_outside: int | None

    def expect(self, timestamp: int) -> None: ...


class _DueOutside:
    """When keys outside are due, by an adopted state."""

    __slots__ = ("_due_times", "earliest_outside", "number")

    def __init__(self, number: int, due_times: Callable[[pa.Array], Int64Array]) -> None:
        self.number = number
        self._due_times = due_times
        self.earliest_outside: int | None = None
        """No key outside is due before; None: none is due ever."""

    def expect(self, timestamp: int) -> None:
        """A key with this time has left."""
        known = self.earliest_outside
        self.earliest_outside = timestamp if known is None else min(timestamp, known)

    def entries(self, values: pa.Array, keys: Sequence[bytes]) -> list[tuple[int, bytes]]:
        """(time, key) of the keys with these values that are due sometime."""
        times = self._due_times(values)
        rows = np.flatnonzero(times != NEVER_DUE)
        return [(time, keys[row]) for time, row in zip(times[rows].tolist(), rows.tolist(), strict=True)]


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


def _earliest(timers: pa.Array, keys: Sequence[bytes]) -> list[tuple[int, bytes]]:
    """(time, key) of the first timer of each key that has any; timers of a key are in order."""
    offsets = np.asarray(timers.offsets)
    rows = np.flatnonzero(np.diff(offsets))
    times = np.asarray(timers.values.field(0))[offsets[rows]]
    return [(time, keys[row]) for time, row in zip(times.tolist(), rows.tolist(), strict=True)]
