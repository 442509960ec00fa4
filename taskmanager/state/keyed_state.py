"""What every keyed state is to its backend, and the states that hold one value per key: value, reducing, aggregating.

Two faces. Row by row (`value`, `update`, `add`, ...), for the current key of the BatchScope, over a Python list that is
loaded and written back once per batch. Whole columns (`get_batch`, `put_batch`, `clear_batch`), by slot. The second
writes the first back before it looks. Mirrors Flink's HeapValueState, HeapReducingState and HeapAggregatingState;
unlike there, a value read is the function's own: change it through `update`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa

from snapline.dataflow.api.state import (
    AggregateFunction,
    AggregatingStateDescriptor,
    NamedSerializer,
    ReduceFunction,
    ReducingStateDescriptor,
    RunningAggregateDescriptor,
    StateDescriptor,
    ValueStateDescriptor,
    serializer_named,
)
from snapline.dataflow.api.state_ttl import VALUE_FIELD
from snapline.dataflow.columnar.arrow_columns import BoolArray
from snapline.dataflow.columnar.gather import gather_values
from snapline.dataflow.columnar.python_values import array_of
from snapline.dataflow.errors import StateError
from snapline.taskmanager.state.aggregate_column import AggregateColumn, Numbers
from snapline.taskmanager.state.batch_scope import BatchScope
from snapline.taskmanager.state.columns import Column, FrozenColumn, NumpyColumn, make_column
from snapline.taskmanager.state.index.slots import Slots


class KeyedState(ABC):
    """A named state of all keys of a subtask."""

    descriptor: StateDescriptor

    @abstractmethod
    def grow(self, capacity: int) -> None:
        """Make room for slots below `capacity`."""

    @abstractmethod
    def flush(self) -> None:
        """Write back what rows have changed, and forget what was loaded for them."""

    @abstractmethod
    def occupied(self, high_water: int) -> BoolArray:
        """For each slot below, whether its key has state."""

    @abstractmethod
    def freeze(self, high_water: int) -> FrozenColumn:
        """The state as it is now, as a column of `descriptor.storage_type`."""

    @abstractmethod
    def restore(self, slots: Slots, values: pa.Array) -> None:
        """Take over values of `descriptor.storage_type`; nulls are left out."""

    @abstractmethod
    def get_batch(self, slots: Slots) -> pa.Array:
        """The state of these slots, null where there is none."""

    @abstractmethod
    def clear_batch(self, slots: Slots) -> None:
        """Remove the state of these slots."""


class PythonValues:
    """Values as Python sees them: Arrow's own conversions, or a named serializer over bytes."""

    __slots__ = ("_found", "_name", "_serializer", "_type")

    def __init__(self, name: str, data_type: pa.DataType, serializer: str) -> None:
        self._name, self._type = name, data_type
        self._serializer = serializer
        self._found: NamedSerializer | None = None

    @property
    def _named(self) -> NamedSerializer:
        """The serializer, looked up when it is needed: a state that nobody asks for needs none. It stays the same, also
        when another job in this process brings one of this name."""
        if self._found is None:
            self._found = serializer_named(self._serializer)
        return self._found

    def to_python(self, values: pa.Array) -> list[Any]:
        """One object per value, None for null."""
        objects: list[Any] = values.to_pylist()
        if self._serializer:
            loads = self._named.loads
            try:
                return [None if stored is None else loads(stored) for stored in objects]
            except Exception as refusal:
                raise StateError(
                    f"state {self._name!r}: serializer {self._serializer!r} cannot read what is stored: {refusal!r}"
                ) from refusal
        return objects

    def to_arrow(self, objects: list[Any]) -> pa.Array:
        """The inverse; StateError naming the state and the first object that does not fit."""
        if self._serializer:
            dumps = self._named.dumps
            return pa.array([None if value is None else self._dump(dumps, value) for value in objects], self._type)
        try:
            return array_of(objects, self._type)
        except (pa.ArrowException, OverflowError, TypeError, ValueError) as refusal:
            culprit = next((value for value in objects if not self._fits(value)), None)
            raise StateError(
                f"state {self._name!r} holds {self._type}, which {culprit!r} ({type(culprit).__name__}) is not: {refusal}"
            ) from None

    def _fits(self, value: Any) -> bool:
        try:
            array_of([value], self._type)
        except (pa.ArrowException, OverflowError, TypeError, ValueError):
            return False
        return True

    def _dump(self, dumps: Callable[[Any], Any], value: Any) -> bytes | str:
        try:
            data = dumps(value)
            if not isinstance(data, (bytes, str)):
                raise TypeError(f"its dumps returned {data!r} and not bytes")
            return data
        except Exception as refusal:
            raise StateError(
                f"state {self._name!r}: serializer {self._serializer!r} cannot write {value!r} "
                f"({type(value).__name__}): {refusal}"
            ) from refusal


class TimedValues(PythonValues):
    """Values of states with a time-to-live: pairs of the value and when it was touched."""

    __slots__ = ("_values",)

    def __init__(self, name: str, data_type: pa.StructType, serializer: str) -> None:
        super().__init__(name, data_type, "")
        self._values = PythonValues(name, data_type.field(VALUE_FIELD).type, serializer)

    def to_python(self, values: pa.Array) -> list[Any]:
        stored, touched = values.flatten()
        pairs = zip(self._values.to_python(stored), touched.to_pylist(), strict=True)
        return [None if at is None else (value, at) for value, at in pairs]

    def to_arrow(self, objects: list[Any]) -> pa.Array:
        values = self._values.to_arrow([None if pair is None else pair[0] for pair in objects])
        touched = pa.array([None if pair is None else pair[1] for pair in objects], pa.int64())
        missing = touched.is_null() if touched.null_count else None
        return pa.StructArray.from_arrays([values, touched], fields=list(self._type), mask=missing)


def python_values(descriptor: StateDescriptor, element_type: pa.DataType) -> PythonValues:
    """How elements of this type look in Python."""
    make = PythonValues if descriptor.ttl is None else TimedValues
    return make(descriptor.name, element_type, descriptor.serializer)


def is_flat(descriptor: StateDescriptor, element_type: pa.DataType) -> bool | None:
    """Whether lists and dictionaries of this state hold nothing that can be changed in place, as far as its type says;
    None: its values cannot be changed themselves, or are objects of a serializer of one's own, which may hold one
    another and are handed out as they are kept."""
    if descriptor.serializer:
        return False if descriptor.serializer == "json" else None
    user_type = element_type if descriptor.ttl is None else element_type.field(VALUE_FIELD).type
    if not pa.types.is_nested(user_type):
        return None
    inner = [user_type.field(place).type for place in range(user_type.num_fields)]
    return not any(map(pa.types.is_nested, inner))


def apart(value: Any, *, flat: bool | None) -> Any:
    """The value with lists and dictionaries of its own: what a function changes in place is neither in the state then,
    nor in rows that it has put out before."""
    kind = value.__class__
    if flat is None or (kind is not dict and kind is not list):
        return value
    if flat:
        return value.copy()
    if kind is list:
        return [apart(each, flat=False) for each in value]
    return {key: apart(each, flat=False) for key, each in value.items()}


class _SlotState(KeyedState):
    """Base of the states that have one value for each slot."""

    __slots__ = ("_cache", "_dirty", "_flat", "_plain", "_python", "_scope", "column", "descriptor")

    def __init__(self, descriptor: StateDescriptor, scope: BatchScope, capacity: int) -> None:
        self.descriptor = descriptor
        self.column: Column = make_column(descriptor.storage_type, capacity)
        self._scope = scope
        self._python = python_values(descriptor, descriptor.storage_type)
        self._flat = is_flat(descriptor, descriptor.storage_type)
        self._cache: list[Any] | None = None
        self._dirty = bytearray()
        kinds = (pa.types.is_integer, pa.types.is_floating, pa.types.is_boolean)
        self._plain = any(is_kind(descriptor.storage_type) for is_kind in kinds)

    def clear(self) -> None:
        cache = self._cache
        if cache is None:
            cache = self._load()
        index = self._scope.index
        cache[index] = None
        self._dirty[index] = 1

    def flush(self) -> None:
        cache = self._cache
        if cache is None:
            return
        self._cache = None
        changed = np.flatnonzero(np.frombuffer(self._dirty, np.uint8))
        if not len(changed):
            return
        slots = self._scope.slots
        if len(changed) < len(cache):
            slots = slots[changed]
            cache = [cache[index] for index in changed.tolist()]
        self.column.put(slots, self._python.to_arrow(cache))

    def grow(self, capacity: int) -> None:
        self.column.grow(capacity)

    def occupied(self, high_water: int) -> BoolArray:
        return self.column.occupied(high_water)

    def freeze(self, high_water: int) -> FrozenColumn:
        return self.column.freeze(high_water)

    def restore(self, slots: Slots, values: pa.Array) -> None:
        if values.null_count:
            present = np.asarray(values.is_valid())
            slots, values = slots[present], values.drop_null()
        self.column.put(slots, values)

    def get_batch(self, slots: Slots) -> pa.Array:
        self.flush()
        return self.column.get(slots)

    def put_batch(self, slots: Slots, values: pa.Array) -> None:
        """Set the state of these slots; a null removes, a slot that occurs twice keeps the last."""
        self.flush()
        if values.type != self.descriptor.storage_type:
            raise StateError(
                f"state {self.descriptor.name!r} holds {self.descriptor.storage_type}, the column to put is {values.type}: cast it"
            )
        self.column.put(slots, values)

    def clear_batch(self, slots: Slots) -> None:
        self.flush()
        self.column.clear(slots)

    def _load(self) -> list[Any]:
        """The values of the batch's keys."""
        scope = self._scope
        scope.check_open(self.descriptor.name)
        column = self.column
        if self._plain and isinstance(column, NumpyColumn):
            values: list[Any] = column.get_values(scope.slots).tolist()
            for index in np.flatnonzero(~gather_values(column.valid, scope.slots)).tolist():
                values[index] = None
        else:
            values = self._python.to_python(column.get(scope.slots))
        self._dirty = bytearray(len(values))
        self._cache = values
        return values


class KeyedValueState(_SlotState):
    """Value state in a column (implements snapline.dataflow.api.state.ValueState)."""

    __slots__ = ()

    def __init__(self, descriptor: ValueStateDescriptor, scope: BatchScope, capacity: int) -> None:
        super().__init__(descriptor, scope, capacity)

    def value(self) -> Any:
        cache = self._cache
        if cache is None:
            cache = self._load()
        value = cache[self._scope.index]
        return value if self._flat is None else apart(value, flat=self._flat)

    def update(self, value: Any) -> None:
        cache = self._cache
        if cache is None:
            cache = self._load()
        index = self._scope.index
        cache[index] = value
        self._dirty[index] = 1


class KeyedReducingState(_SlotState):
    """Reducing state in a column (implements snapline.dataflow.api.state.ReducingState)."""

    __slots__ = ("_reduce",)

    def __init__(self, descriptor: ReducingStateDescriptor, scope: BatchScope, capacity: int) -> None:
        super().__init__(descriptor, scope, capacity)
        self._reduce: ReduceFunction | None = descriptor.reduce_function

    def use(self, descriptor: ReducingStateDescriptor) -> None:
        """Take the function of a descriptor for a state that came from a snapshot."""
        self._reduce = descriptor.reduce_function

    def get(self) -> Any:
        cache = self._cache
        if cache is None:
            cache = self._load()
        return apart(cache[self._scope.index], flat=self._flat)

    def add(self, value: Any) -> None:
        cache = self._cache
        if cache is None:
            cache = self._load()
        if self._reduce is None:
            raise StateError(f"reducing state {self.descriptor.name!r} was declared without a reduce function")
        index = self._scope.index
        current = cache[index]
        cache[index] = apart(value, flat=self._flat) if current is None else self._reduce(current, value)
        self._dirty[index] = 1


class KeyedAggregatingState(_SlotState):
    """Aggregating state in a column (implements snapline.dataflow.api.state.AggregatingState)."""

    __slots__ = ("_function",)

    def __init__(self, descriptor: AggregatingStateDescriptor, scope: BatchScope, capacity: int) -> None:
        super().__init__(descriptor, scope, capacity)
        self._function: AggregateFunction | None = descriptor.aggregate_function

    def use(self, descriptor: AggregatingStateDescriptor) -> None:
        """Take the function of a descriptor for a state that came from a snapshot."""
        self._function = descriptor.aggregate_function

    def get(self) -> Any:
        cache = self._cache
        if cache is None:
            cache = self._load()
        accumulator = cache[self._scope.index]
        return None if accumulator is None else apart(self._known_function().get_result(accumulator), flat=False)

    def add(self, value: Any) -> None:
        cache = self._cache
        if cache is None:
            cache = self._load()
        function = self._known_function()
        index = self._scope.index
        accumulator = cache[index]
        if accumulator is None:
            accumulator = function.create_accumulator()
        cache[index] = function.add(value, accumulator)
        self._dirty[index] = 1

    def _known_function(self) -> AggregateFunction:
        if self._function is None:
            raise StateError(f"aggregating state {self.descriptor.name!r} was declared without an aggregate function")
        return self._function


class RunningAggregateState(KeyedState):
    """Count, sum, min and max per key, on whole batches only (see AggregateColumn)."""

    __slots__ = ("column", "descriptor")

    def __init__(self, descriptor: RunningAggregateDescriptor, scope: BatchScope, capacity: int) -> None:
        self.descriptor: RunningAggregateDescriptor = descriptor
        self.column = AggregateColumn(descriptor, capacity)

    def fold_batch(self, slots: Slots, values: pa.Array | Numbers, *, running: bool = True) -> dict[str, Numbers]:
        """Fold a column in, row by row in order. With `running`: `count` and each aggregate as they stand after each
        row."""
        return self.column.fold(slots, values, running=running)

    def flush(self) -> None:
        """Nothing is done row by row."""

    def grow(self, capacity: int) -> None:
        self.column.grow(capacity)

    def occupied(self, high_water: int) -> BoolArray:
        return self.column.occupied(high_water)

    def freeze(self, high_water: int) -> FrozenColumn:
        return self.column.freeze(high_water)

    def restore(self, slots: Slots, values: pa.Array) -> None:
        self.column.put(slots, values)

    def get_batch(self, slots: Slots) -> pa.Array:
        return self.column.get(slots)

    def clear_batch(self, slots: Slots) -> None:
        self.column.clear(slots)
