"""States whose values have a time to live: those of the row-wise states, each value paired with when it was last
touched.

What has expired reads as if it were not there, and is removed: when it is read, and a bounded number of keys at a time
while the job runs (`expire`). Writing renews; reading, too, where the configuration says so. Time is the task's
processing time. Mirrors Flink's TtlValueState, TtlListState, TtlMapState, TtlReducingState and TtlAggregatingState.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from snapline.dataflow.api.state import StateDescriptor, StateKind
from snapline.dataflow.api.state_ttl import StateTtlConfig
from snapline.dataflow.errors import StateError
from snapline.runtime.cores.machine import check
from snapline.taskmanager.state.batch_scope import BatchScope
from snapline.taskmanager.state.columns import Column, NumpyColumn, StructColumn
from snapline.taskmanager.state.index.slots import Slots
from snapline.taskmanager.state.kept_values import with_kept_values
from snapline.taskmanager.state.keyed_list_state import KeyedListState
from snapline.taskmanager.state.keyed_map_state import KeyedMapState
from snapline.taskmanager.state.keyed_state import (
    KeyedAggregatingState,
    KeyedReducingState,
    KeyedState,
    KeyedValueState,
    apart,
)

CLEANUP_SLOTS = 4096
"""So many keys are looked at when a batch ends."""


class TtlState(KeyedState):
    """What they have in common."""

    __slots__ = ()
    _scope: BatchScope
    ttl: StateTtlConfig

    def use_ttl(self, ttl: StateTtlConfig) -> None:
        """Values live as long as this says, from now on; also those that came with a snapshot."""
        if self._scope.now_ms is None:
            raise StateError(f"state {self.descriptor.name!r} has a time-to-live, and its operator has no clock")
        self.ttl = ttl

    def now(self) -> int:
        """Return processing time in milliseconds since the epoch."""
        clock = self._scope.now_ms
        check(clock is not None, "a state with a time-to-live without a clock")
        return clock()  # type: ignore[misc]

    def is_alive(self, touched: int, now: int) -> bool:
        """Whether a value that was touched then is still there."""
        return touched + self.ttl.ttl_ms > now

    @abstractmethod
    def expire(self, slots: Slots) -> Slots:
        """Remove what of these keys' state has expired; returns whose it was."""

    def _expired(self, column: Column, places: Slots) -> Any:
        """Which of these places of a column of timed values hold what has expired."""
        touched = column.children[1] if isinstance(column, StructColumn) else None
        if not isinstance(touched, NumpyColumn):
            raise StateError(f"state {self.descriptor.name!r} has values without the time when they were touched")
        return touched.valid[places] & (touched.values[places] <= self.now() - self.ttl.ttl_ms)


class _TtlSlotState(TtlState):
    """One timed value per key; mixed into the states of that shape."""

    __slots__ = ()
    column: Column
    _cache: list[Any] | None
    _dirty: bytearray
    _load: Callable[[], list[Any]]

    def read(self) -> Any:
        """The value, None if there is none (any more)."""
        cache = self._cache
        if cache is None:
            cache = self._load()
        index = self._scope.index
        stored = cache[index]
        if stored is None:
            return None
        now = self.now()
        if not self.is_alive(stored[1], now):
            cache[index] = None
        elif self.ttl.renews_on_read and stored[1] != now:
            cache[index] = (stored[0], now)
        else:
            return stored[0]
        self._dirty[index] = 1
        return None if cache[index] is None else stored[0]

    def write(self, value: Any) -> None:
        """Set the value; None clears it."""
        cache = self._cache
        if cache is None:
            cache = self._load()
        index = self._scope.index
        cache[index] = None if value is None else (value, self.now())
        self._dirty[index] = 1

    def expire(self, slots: Slots) -> Slots:
        gone = slots[self._expired(self.column, slots)]
        if len(gone):
            self.column.clear(gone)
        return gone


class TtlValueState(_TtlSlotState, KeyedValueState):
    """Value state whose values expire (implements snapline.dataflow.api.state.ValueState)."""

    __slots__ = ("ttl",)

    def value(self) -> Any:
        return apart(self.read(), flat=self._flat)

    def update(self, value: Any) -> None:
        self.write(value)


class TtlReducingState(_TtlSlotState, KeyedReducingState):
    """Reducing state whose values expire (implements snapline.dataflow.api.state.ReducingState)."""

    __slots__ = ("ttl",)

    def get(self) -> Any:
        return apart(self.read(), flat=self._flat)

    def add(self, value: Any) -> None:
        if self._reduce is None:
            raise StateError(f"reducing state {self.descriptor.name!r} was declared without a reduce function")
        current = self.read()
        self.write(apart(value, flat=self._flat) if current is None else self._reduce(current, value))


class TtlAggregatingState(_TtlSlotState, KeyedAggregatingState):
    """Aggregating state whose values expire (implements snapline.dataflow.api.state.AggregatingState)."""

    __slots__ = ("ttl",)

    def get(self) -> Any:
        accumulator = self.read()
        return None if accumulator is None else apart(self._known_function().get_result(accumulator), flat=False)

    def add(self, value: Any) -> None:
        function = self._known_function()
        accumulator = self.read()
        self.write(function.add(value, function.create_accumulator() if accumulator is None else accumulator))


class TtlListState(TtlState, KeyedListState):
    """snapline.dataflow.api.state.ListState; every element lives by itself."""

    __slots__ = ("ttl",)

    def get(self) -> list[Any]:
        stored, now = KeyedListState.get(self), self.now()
        alive = [value for value, touched in stored if self.is_alive(touched, now)]
        if len(alive) < len(stored) or (alive and self.ttl.renews_on_read):
            times = [touched for _, touched in stored if self.is_alive(touched, now)]
            renewed = [now] * len(alive) if self.ttl.renews_on_read else times
            KeyedListState.update(self, list(zip(alive, renewed, strict=True)))
        return [apart(value, flat=self._flat) for value in alive]

    def add(self, value: Any) -> None:
        KeyedListState.add(self, (value, self.now()))

    def update(self, values: Sequence[Any]) -> None:
        now = self.now()
        KeyedListState.update(self, [(value, now) for value in values])

    def expire(self, slots: Slots) -> Slots:
        return self.remove_entries(slots, lambda entries: self._expired(self._values, entries))


class TtlMapState(TtlState, KeyedMapState):
    """snapline.dataflow.api.state.MapState; every pair lives by itself."""

    __slots__ = ("ttl",)

    def get(self, key: Any) -> Any:
        found = self._alive(key)
        return None if found is None else apart(found[0], flat=self._flat)

    def contains(self, key: Any) -> bool:
        return self._alive(key) is not None

    def put(self, key: Any, value: Any) -> None:
        KeyedMapState.put(self, key, (value, self.now()))

    def items(self) -> Iterable[tuple[Any, Any]]:
        now = self.now()
        pairs = []
        for key, (value, touched) in KeyedMapState.items(self):
            if not self.is_alive(touched, now):
                self.remove(key)
                continue
            if self.ttl.renews_on_read and touched != now:
                KeyedMapState.put(self, key, (value, now))
            pairs.append((key, apart(value, flat=self._flat)))
        return pairs

    def _alive(self, key: Any) -> tuple[Any, int] | None:
        found: tuple[Any, int] | None = KeyedMapState.get(self, key)
        if found is None:
            return None
        now = self.now()
        if not self.is_alive(found[1], now):
            self.remove(key)
            return None
        if self.ttl.renews_on_read and found[1] != now:
            KeyedMapState.put(self, key, (found[0], now))
        return found

    def expire(self, slots: Slots) -> Slots:
        return self.remove_entries(slots, lambda entries: self._expired(self._values, entries))


TTL_STATES: dict[StateKind, type[Any]] = {
    StateKind.VALUE: TtlValueState,
    StateKind.LIST: TtlListState,
    StateKind.MAP: TtlMapState,
    StateKind.REDUCING: TtlReducingState,
    StateKind.AGGREGATING: TtlAggregatingState,
}


def make_ttl_state(descriptor: StateDescriptor, ttl: StateTtlConfig, scope: BatchScope, capacity: int) -> TtlState:
    """The state of a descriptor with a time-to-live."""
    state: TtlState = with_kept_values(TTL_STATES[descriptor.kind], descriptor)(descriptor, scope, capacity)
    state.use_ttl(ttl)
    return state


def next_slots(cursor: int, high_water: int) -> Slots:
    """The keys to look at next, after those below `cursor`; from the start again at the end."""
    first = 0 if cursor >= high_water else cursor
    return np.arange(first, min(first + CLEANUP_SLOTS, high_water), dtype=np.int32)
