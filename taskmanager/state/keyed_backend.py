"""The `hashmap` backend: all keyed state of one operator in one subtask, in memory, columnar.

Keys become slots through the KeyIndex, states are columns by slot. The unit is the batch: `slots(key_columns)`, then
the states' `..._batch` methods; or, for row-wise functions, `begin_batch(slots)`, one assignment to `scope.index` per
row, and `end_batch()`. Keys whose state has all been cleared are removed when the table would grow otherwise, so a
stream of ever new keys does not fill the memory. It does not know operators, barriers or storage. Mirrors Flink's
HeapKeyedStateBackend.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol, TypeVar, cast

import numpy as np
import pyarrow as pa

from snapline.dataflow.api.state import (
    AggregatingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    RunningAggregateDescriptor,
    StateDescriptor,
    StateKind,
    ValueStateDescriptor,
    descriptor_of,
)
from snapline.dataflow.columnar.arrow_columns import BoolArray
from snapline.dataflow.columnar.large_arrays import TOO_LARGE
from snapline.dataflow.errors import StateError
from snapline.dataflow.key_groups import KeyGroupRange
from snapline.dataflow.snapshot.state_evolution import convert, evolution_of, key_problem
from snapline.dataflow.snapshot.state_format import (
    STATE_COLUMN,
    TIMERS_COLUMN,
    KeyedStateHeader,
    decode_keyed_state,
    read_header,
    refusing_unfit,
    with_role,
)
from snapline.runtime.cores.machine import check
from snapline.taskmanager.state.adopted_state import NOTHING_DUE, AdoptedState
from snapline.taskmanager.state.batch_scope import BatchScope
from snapline.taskmanager.state.columns import FrozenColumn, FrozenState
from snapline.taskmanager.state.frozen_timers import TIMERS_TYPE
from snapline.taskmanager.state.incremental import EncodablePart, IncrementalSnapshots, KeyedChanges
from snapline.taskmanager.state.index.key_index import Column, FrozenKeys, KeyIndex
from snapline.taskmanager.state.index.slots import Slots
from snapline.taskmanager.state.kept_values import with_kept_values
from snapline.taskmanager.state.keyed_list_state import KeyedListState
from snapline.taskmanager.state.keyed_map_state import KeyedMapState
from snapline.taskmanager.state.keyed_snapshot import (
    FrozenField,
    FrozenRows,
    FrozenSelectedKeys,
    FrozenSelection,
    KeyedSnapshot,
)
from snapline.taskmanager.state.keyed_state import (
    KeyedAggregatingState,
    KeyedReducingState,
    KeyedState,
    KeyedValueState,
    RunningAggregateState,
)
from snapline.taskmanager.state.keyed_timers import EVENT_TIME, PROCESSING_TIME, KeyedTimers
from snapline.taskmanager.state.ttl_states import TtlState, make_ttl_state, next_slots

FIRST_SWEEP_KEYS = 1 << 16
"""Below this many keys, empty ones are not worth looking for."""
_EVOLVED_AT_ONCE = 1 << 16
"""Keys whose state is turned into another type in one step."""
_TIME_DOMAINS = (("/", EVENT_TIME), ("/", PROCESSING_TIME))
_RESERVED_KEYS = 1 << 22
"""A restore makes room for so many keys before they come; beyond that the table grows as they do."""
StateT = TypeVar("StateT", bound=KeyedState)


class StateFile(Protocol):
    """A keyed state file to restore from (the part of operator_contract.KeyedStateInput that a backend needs)."""

    def read_range(self, offset: int, size: int) -> bytes:
        """Read these bytes of the file."""
        ...


_STATES: dict[StateKind, type[Any]] = {
    StateKind.VALUE: KeyedValueState,
    StateKind.LIST: KeyedListState,
    StateKind.MAP: KeyedMapState,
    StateKind.REDUCING: KeyedReducingState,
    StateKind.AGGREGATING: KeyedAggregatingState,
    StateKind.RUNNING_AGGREGATE: RunningAggregateState,
}


class KeyedStateBackend:
    """State of the keys (columns `key_schema`) whose key groups lie in `key_group_range`."""

    def __init__(self, key_schema: pa.Schema, key_group_range: KeyGroupRange, max_parallelism: int) -> None:
        """TypeError for a key column of a type that cannot be (part of) a key."""
        self._index = KeyIndex(list(key_schema))
        self.key_group_range = key_group_range
        self.max_parallelism = max_parallelism
        self.scope = BatchScope()
        self._states: dict[str, KeyedState] = {}
        self._timers: dict[str, KeyedTimers] = {}
        self._capacity = self._index.capacity
        self._sweep_at = FIRST_SWEEP_KEYS
        self._current_keys: list[Any] | None = None
        self._changes: KeyedChanges | None = None
        self._ttl_states: list[TtlState] = []
        self._expiry_cursor = 0
        self.drop_columns = False
        """Whether columns that a snapshot has and a descriptor has not may go."""
        self._asked_for: set[str] = set()
        self.restored_states: set[str] = set()
        """The states of the snapshot, by name."""
        self._removed: set[str] = set()
        self._older: dict[tuple[str, pa.DataType, str], StateDescriptor] = {}
        """How files of a snapshot declare a state otherwise than the newest one, by name, type and serializer."""
        self._restored_ms = 0
        """When the snapshot was taken over: what has a new time-to-live counts as touched then."""

    # -- keys ---------------------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        """Number of keys that have a slot."""
        return len(self._index)

    @property
    def key_fields(self) -> list[pa.Field]:
        """The key columns; types without dictionaries and views."""
        return self._index.fields

    def slots(self, key_columns: Sequence[Column]) -> Slots:
        """The slot of each row's key, new keys included. A slot stays the key's as long as the key has state or timers;
        one without may be handed to another key by the next call."""
        if len(self._index) >= self._sweep_at and not self.scope.is_open:
            self._sweep()
        slots = self._index.lookup_or_insert(key_columns)
        if self._index.capacity != self._capacity:
            self._grow()
        if self._changes is not None:
            self._changes.mark(slots)
        return slots

    def touch(self, slots: Slots) -> None:
        """The state of these slots, which do not come from `slots` just now, is going to change."""
        if self._changes is not None:
            self._changes.mark(slots)

    def update_all(self, update: Callable[[Slots], None]) -> None:
        """Change the state of every key: `update` is called with slots until there has been one for each key. Keys may
        move meanwhile: slots that were looked up before have to be looked up again."""
        slots = self._index.live_slots()
        self.touch(slots)
        update(slots)

    def lookup(self, key_columns: Sequence[Column]) -> Slots:
        """The slot of each row's key, -1 for a key that has none."""
        return self._index.lookup(key_columns)

    def keys(self, slots: Slots) -> list[pa.Array]:
        """The key columns of slots."""
        return self._index.keys(slots)

    # -- states -------------------------------------------------------------------------------------------------------

    def get_state(self, descriptor: ValueStateDescriptor) -> KeyedValueState:
        """The value state of this name; created, or taken over from the snapshot. StateError if it is another there."""
        return self._state(descriptor, KeyedValueState)

    def get_list_state(self, descriptor: ListStateDescriptor) -> KeyedListState:
        """The list state of this name."""
        return self._state(descriptor, KeyedListState)

    def get_map_state(self, descriptor: MapStateDescriptor) -> KeyedMapState:
        """The map state of this name."""
        return self._state(descriptor, KeyedMapState)

    def get_reducing_state(self, descriptor: ReducingStateDescriptor) -> KeyedReducingState:
        """The reducing state of this name."""
        state = self._state(descriptor, KeyedReducingState)
        state.use(descriptor)
        return state

    def get_aggregating_state(self, descriptor: AggregatingStateDescriptor) -> KeyedAggregatingState:
        """The aggregating state of this name."""
        state = self._state(descriptor, KeyedAggregatingState)
        state.use(descriptor)
        return state

    def get_running_aggregate(self, descriptor: RunningAggregateDescriptor) -> RunningAggregateState:
        """The running aggregate of this name."""
        return self._state(descriptor, RunningAggregateState)

    def state_of(self, descriptor: StateDescriptor) -> KeyedState:
        """The state of this name, whatever its kind, for whole columns."""
        self._asked_for.add(descriptor.name)
        return self._known_state(descriptor)

    def has_state(self, name: str) -> bool:
        """Whether a state of this name was asked for, or came with a snapshot."""
        return name in self._states

    @property
    def asked_for(self) -> frozenset[str]:
        """The states that were asked for so far, by name."""
        return frozenset(self._asked_for)

    @property
    def state_names(self) -> list[str]:
        """The states that were asked for, or came with a snapshot, by name."""
        return list(self._states)

    def adopt_state(self, state: AdoptedState) -> None:
        """A state that the operator has made itself, in a form of its own. Before `restore`, and before the first
        batch."""
        check(state.descriptor.name not in self._states, f"state {state.descriptor.name!r} exists already")
        state.grow(self._capacity)
        self._states[state.descriptor.name] = state
        self._asked_for.add(state.descriptor.name)

    def due_outside_ms(self, name: str) -> int:
        """When the first key that is not in memory is due, by what the adopted state of this name says."""
        return NOTHING_DUE

    def load_due(self, name: str, time_ms: int, limit: int) -> None:
        """Bring keys into memory that are due at this time, those that are due first: at most so many, and no more than
        there is room for. Slots, and entries of adopted states, that were looked up before mean nothing afterwards."""

    def remove_state(self, name: str) -> None:
        """Forget a state that came with a snapshot, of all keys. What lies elsewhere of it is not read any more."""
        del self._states[name]
        self._removed.add(name)
        self.restored_states.discard(name)
        if self._changes is not None:
            self._changes.begin_anew()

    def get_timers(self, name: str = "user-timers") -> KeyedTimers:
        """The timers of this name."""
        timers = self._timers.get(name)
        if timers is None:
            timers = self._timers[name] = self._make_timers(name)
        return timers

    # -- row by row ---------------------------------------------------------------------------------------------------

    def begin_batch(self, slots: Slots) -> list[int]:
        """Rows of these slots are about to be processed one by one: for each the number to put into `scope.index`."""
        self.end_batch()
        self.touch(slots)
        return self.scope.open(slots, self._capacity)

    def end_batch(self) -> None:
        """Write back what rows have changed. Nothing happens without a batch."""
        if not self.scope.is_open:
            return
        for state in self._states.values():
            state.flush()
        for timers in self._timers.values():
            timers.flush()
        self.scope.close()
        self._current_keys = None
        if self._ttl_states:
            self._expire_some()

    @property
    def current_key(self) -> Any:
        """The key of the current row: a value for one key column, a tuple for several."""
        if self._current_keys is None:
            self.scope.check_open("current key")
            columns = [column.to_pylist() for column in self._index.keys(self.scope.slots)]
            self._current_keys = columns[0] if len(columns) == 1 else list(zip(*columns, strict=True))
        return self._current_keys[self.scope.index]

    # -- snapshots ----------------------------------------------------------------------------------------------------

    def snapshot(self) -> KeyedSnapshot:
        """Freeze the keyed state: the synchronous part of a snapshot."""
        self.end_batch()
        return self._frozen(None, is_delta=False)

    def _frozen(self, also: BoolArray | None, *, is_delta: bool) -> KeyedSnapshot:
        """The state of the keys that have any, and of these slots."""
        high_water = self._index.high_water
        fields = [
            FrozenField(with_role(state.descriptor.to_field(), STATE_COLUMN), state.freeze(high_water))
            for state in self._states.values()
        ]
        for timers in self._timers.values():
            for domain, queue in timers.queues():
                fields.append(FrozenField(timers_field(timers.name, domain), queue.freeze(high_water)))
        later = [field.column for field in fields if isinstance(field.column, FrozenState)]
        known = np.zeros(high_water, np.bool_) if also is None else also

        def occupied() -> BoolArray:
            for column in later:
                np.logical_or(known, column.occupied(), out=known)
            return known

        return KeyedSnapshot(
            self.key_fields, self._index.freeze(), occupied, fields, self.key_group_range, self.max_parallelism,
            is_delta=is_delta,
        )  # fmt: skip

    def snapshot_parts(self) -> tuple[EncodablePart, ...]:
        """The synchronous part, for as many files as it takes; what later ones say of a key counts."""
        return (self.snapshot(),)

    def close(self) -> None:
        """Give back what is not memory."""

    def incremental_snapshots(self, owner: str) -> IncrementalSnapshots:
        """From now on say what changes. All changes go by `slots`, `begin_batch` or `touch`. `owner`: see there."""
        self._changes = KeyedChanges(self._capacity)
        return IncrementalSnapshots(
            self._changes,
            owner,
            self.snapshot_parts,
            lambda touched: (self._delta(touched),),
            lambda: self._index.high_water,
        )

    def _delta(self, touched: BoolArray) -> KeyedSnapshot:
        """The keys that were touched, whether they have state or not. The synchronous part: it costs these keys, and
        what of the timers is frozen."""
        self.end_batch()
        slots = np.flatnonzero(touched).astype(np.int32)
        slots = slots[self._index.are_live(slots)]
        fields = [
            FrozenField(with_role(state.descriptor.to_field(), STATE_COLUMN), self._frozen_rows(state, slots))
            for state in self._states.values()
        ]
        for timers in self._timers.values():
            for domain, queue in timers.queues():
                frozen = FrozenSelection(queue.freeze(self._index.high_water), slots)
                fields.append(FrozenField(timers_field(timers.name, domain), frozen))
        return KeyedSnapshot(
            self.key_fields, self._frozen_keys(slots), lambda: np.ones(len(slots), np.bool_), fields,
            self.key_group_range, self.max_parallelism, is_delta=True,
        )  # fmt: skip

    def _frozen_keys(self, slots: Slots) -> FrozenKeys:
        """These keys, as `_frozen_rows` has their state."""
        try:
            return FrozenRows(self._index.keys(slots))
        except TOO_LARGE:
            return FrozenSelectedKeys(self._index.freeze(), slots)

    def _frozen_rows(self, state: KeyedState, slots: Slots) -> FrozenColumn:
        """The state of these keys as it is now: gathered, unless that is too much for one array."""
        try:
            return FrozenRows([state.get_batch(slots)])
        except TOO_LARGE:
            return FrozenSelection(state.freeze(self._index.high_water), slots)

    def restore(self, inputs: Iterable[StateFile]) -> None:
        """Take over, from each file, the key groups that are this subtask's; only their byte ranges are read. Before
        the first use. States that nobody asks for stay, and are part of later snapshots. Deltas follow what they build
        on. StateError for files that say what no state can be."""
        files = list(inputs)
        self._restored_ms = 0 if self.scope.now_ms is None else self.scope.now_ms()
        with refusing_unfit():
            headers = [read_header(file.read_range) for file in files]
            self._expect_all(headers)
            self._take_over(files, headers)

    def _take_over(self, files: Sequence[StateFile], headers: Sequence[KeyedStateHeader]) -> None:
        sources = list(zip(files, headers, strict=True))
        has_deltas = any(header.is_delta for _, header in sources)
        self._reserve(headers, has_deltas=has_deltas)
        for source, header in reversed(sources) if has_deltas else sources:
            _, batches = decode_keyed_state(source.read_range, self.key_group_range, header)
            for batch in batches:
                self._restore_rows(header, self._without_known_keys(header, batch) if has_deltas else batch)

    def _reserve(self, headers: Sequence[KeyedStateHeader], *, has_deltas: bool) -> None:
        """Make room for the keys of these files. Deltas name keys again, so that the largest file counts there; a
        header that lies about their number gets no more than addresses for a few million."""
        bounds = [header.key_group_offsets.rows_of(self.key_group_range) for header in headers]
        rows = [end - first for first, end in bounds]
        self._index.reserve(min(max(rows, default=0) if has_deltas else sum(rows), _RESERVED_KEYS))
        if self._index.capacity != self._capacity:
            self._grow()

    def _expect_all(self, headers: Sequence[KeyedStateHeader]) -> None:
        """Make the states of these files. StateError for files of another key or that do not fit together."""
        written: dict[str, list[StateDescriptor]] = {}
        for header in headers:
            self._check_same_key(header)
            self._check_timers(header)
            for descriptor in header.state_descriptors:
                written.setdefault(descriptor.name, []).append(descriptor)
        self.restored_states.update(written)
        for name, descriptors in written.items():
            self._expect(name, descriptors)

    def _expect(self, name: str, written: Sequence[StateDescriptor]) -> None:
        """Make the state that all of these can become: some subtasks may have gone over to a newer one, others not
        yet."""
        known = self._states.get(name)
        candidates = written[::-1] if known is None else [known.descriptor]
        refusals: list[StateError] = []
        for candidate in candidates:
            older = [one for one in written if not is_alike(one, candidate)]
            try:
                for one in older:
                    self._check_evolves(one, candidate)
            except StateError as refusal:
                refusals.append(refusal)
                continue
            self._known_state(candidate)
            self._older.update({(name, one.storage_type, one.serializer): one for one in older})
            return
        raise refusals[0]

    def _without_known_keys(self, header: KeyedStateHeader, batch: pa.RecordBatch) -> pa.RecordBatch:
        """A newer file has said all of the keys that are known."""
        known = self._index.lookup(batch.columns[: len(header.key_fields)]) >= 0
        return batch.filter(pa.array(~known)) if known.any() else batch

    def _restore_rows(self, header: KeyedStateHeader, batch: pa.RecordBatch) -> None:
        columns, known = iter(batch.columns), len(self._index)
        slots = self._index.lookup_or_insert([next(columns) for _ in header.key_fields])
        if len(self._index) != known + len(slots):
            raise ValueError("a key has two rows")
        if self._index.capacity != self._capacity:
            self._grow()
        for field in header.state_fields:
            self._restore_state(field, slots, next(columns))
        for field in header.timer_fields:
            name, domain = field.name.rsplit("/", 1)
            dict(self.get_timers(name).queues())[domain].restore(slots, next(columns))

    def _restore_state(self, field: pa.Field, slots: Slots, values: pa.Array) -> None:
        state = self._states[field.name]
        if self._older:
            written = self._older.get((field.name, field.type, descriptor_of(field).serializer))
            if written is not None and not is_alike(written, state.descriptor):
                present = np.asarray(values.is_valid())
                slots = slots[present]
                values = convert(values.drop_null(), written, state.descriptor, self._restored_ms)
        state.restore(slots, values)

    def _check_same_key(self, header: KeyedStateHeader) -> None:
        if header.max_parallelism != self.max_parallelism:
            raise StateError(
                f"the state was written with max parallelism {header.max_parallelism}, the operator now has "
                f"{self.max_parallelism}: set it back, it fixes the key groups"
            )
        problem = key_problem(header.key_fields, self.key_fields)
        if problem:
            raise StateError(problem)

    def _check_timers(self, header: KeyedStateHeader) -> None:
        for field in header.timer_fields:
            if field.type != TIMERS_TYPE or field.name.rpartition("/")[1:] not in _TIME_DOMAINS:
                raise StateError(f"the timers {field.name!r} are of the type {field.type}, which no timers have")

    def _expire_some(self) -> None:
        """Look at some keys, and remove what of their state has expired."""
        slots = next_slots(self._expiry_cursor, self._index.high_water)
        self._expiry_cursor = int(slots[-1]) + 1 if len(slots) else 0
        for state in self._ttl_states:
            self.touch(state.expire(slots))

    # -- housekeeping -------------------------------------------------------------------------------------------------

    def _state(self, descriptor: StateDescriptor, expected: type[StateT]) -> StateT:
        if not isinstance(descriptor, StateDescriptor):
            raise StateError(
                f"{descriptor!r} is no state descriptor, such as ValueStateDescriptor('total', pa.int64())"
            )
        state = self._known_state(descriptor)
        self._asked_for.add(descriptor.name)
        return cast(StateT, state)

    def _known_state(self, descriptor: StateDescriptor) -> KeyedState:
        known = self._states.get(descriptor.name)
        if known is None:
            known = self._states[descriptor.name] = self._make_state(descriptor)
        elif not is_alike(known.descriptor, descriptor):
            known = self._evolved(known, descriptor)
        if isinstance(known, TtlState) and descriptor.ttl is not None:
            known.use_ttl(descriptor.ttl)
        return known

    def _evolved(self, known: KeyedState, descriptor: StateDescriptor) -> KeyedState:
        """A state that came with a snapshot becomes what the job declares now. StateError, by column, if it cannot."""
        if descriptor.name in self._asked_for:
            raise StateError(f"{_both(known.descriptor, descriptor)}: declare it as it was, or under another name")
        self._check_evolves(known.descriptor, descriptor)
        state = self._make_state(descriptor)
        slots = self._index.live_slots()
        for first in range(0, len(slots), _EVOLVED_AT_ONCE):
            some = slots[first : first + _EVOLVED_AT_ONCE]
            values = known.get_batch(some)
            present = np.asarray(values.is_valid())
            state.restore(some[present], convert(values.drop_null(), known.descriptor, descriptor, self._restored_ms))
        if isinstance(known, TtlState):
            self._ttl_states.remove(known)
        self._states[descriptor.name] = state
        if self._changes is not None:
            self._changes.begin_anew()
        return state

    def _check_evolves(self, written: StateDescriptor, declared: StateDescriptor) -> None:
        evolution = evolution_of(written, declared, drop_columns=self.drop_columns)
        if evolution.problems:
            raise StateError(f"{_both(written, declared)}: {'; '.join(evolution.problems)}")

    def _make_state(self, descriptor: StateDescriptor) -> KeyedState:
        if descriptor.ttl is None:
            return with_kept_values(_STATES[descriptor.kind], descriptor)(descriptor, self.scope, self._capacity)
        state = make_ttl_state(descriptor, descriptor.ttl, self.scope, self._capacity)
        self._ttl_states.append(state)
        return state

    def _make_timers(self, name: str) -> KeyedTimers:
        return KeyedTimers(name, self.scope, self._capacity)

    def _grow(self) -> None:
        self._capacity = self._index.capacity
        for state in self._states.values():
            state.grow(self._capacity)
        for timers in self._timers.values():
            timers.grow(self._capacity)
        if self._changes is not None:
            self._changes.grow(self._capacity)

    def _occupied(self) -> BoolArray:
        """For each slot ever used, whether its key has state or timers."""
        high_water = self._index.high_water
        occupied = np.zeros(high_water, np.bool_)
        for state in self._states.values():
            occupied |= state.occupied(high_water)
        for timers in self._timers.values():
            for _, queue in timers.queues():
                occupied |= queue.occupied(high_water)
        return occupied

    def _sweep(self) -> None:
        """Remove keys that have neither state nor timers; next time when there are twice as many as are left."""
        live = self._index.live_slots()
        gone = ~self._occupied()[live]
        if self._changes is not None:  # that a key has no state any more is still to be written
            gone &= ~self._changes.touched(self._index.high_water)[live]
        self._index.remove(live[gone])
        self._sweep_at = max(FIRST_SWEEP_KEYS, 2 * len(self._index))


def timers_field(name: str, domain: str) -> pa.Field:
    """The column of a timer queue in a snapshot."""
    return with_role(pa.field(f"{name}/{domain}", TIMERS_TYPE), TIMERS_COLUMN)


def is_alike(one: StateDescriptor, other: StateDescriptor) -> bool:
    """Whether what one has written the other reads as it is."""
    return (one.kind, one.storage_type, one.serializer) == (other.kind, other.storage_type, other.serializer)


def _both(written: StateDescriptor, declared: StateDescriptor) -> str:
    return f"state {declared.name!r} is {_described(written)}, and is asked for as {_described(declared)}"


def _described(descriptor: StateDescriptor) -> str:
    by = f" (serializer {descriptor.serializer!r})" if descriptor.serializer else ""
    return f"a {descriptor.kind.value} state of {descriptor.storage_type}{by}"
