"""Keyed state as a user declares and uses it: descriptors, the row-style views, named serializers.

A state is typed by Arrow, or by a named serializer for objects that Arrow has no type for; both stand in the snapshot,
so that it can be read without the job's code. Nothing is ever pickled into a snapshot. Mirrors Flink's StateDescriptor
family and the State interfaces; a serializer is a name here, because Python has no type to derive it from.
"""

from __future__ import annotations

import contextlib
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, ClassVar, Protocol, TypeAlias

import cloudpickle
import pyarrow as pa

from snapline.dataflow.api.state_ttl import TTL_METADATA, VALUE_FIELD, StateTtlConfig, timed_type
from snapline.dataflow.columnar.arrow_columns import plain_type
from snapline.dataflow.columnar.column_types import kept_type
from snapline.dataflow.errors import StateError

KIND_METADATA = b"snapline.state.kind"
SERIALIZER_METADATA = b"snapline.state.serializer"
MIGRATED_METADATA = b"snapline.state.migrated"
"""Only in what a job declares: the descriptor brings a function that turns older values into its own."""


class StateKind(Enum):
    """What a state is to its user; stands in the snapshot."""

    VALUE = "value"
    LIST = "list"
    MAP = "map"
    REDUCING = "reducing"
    AGGREGATING = "aggregating"
    RUNNING_AGGREGATE = "running_aggregate"


@dataclass(frozen=True, slots=True)
class NamedSerializer:
    """Objects to bytes and back. The name stands in snapshots, so it must keep its meaning.

    >>> sl.register_serializer("text", str.encode, bytes.decode).name
    'text'
    """

    name: str
    dumps: Callable[[Any], bytes]
    loads: Callable[[bytes], Any]


_SERIALIZERS: dict[str, NamedSerializer] = {}
_SENT: dict[str, bytes] = {}
"""Pickles of serializers that came with jobs, by name; one is loaded when a state asks for it."""


def register_serializer(name: str, dumps: Callable[[Any], bytes], loads: Callable[[bytes], Any]) -> NamedSerializer:
    """Make a serializer known under a name, in this process and in the tasks of jobs that it submits from then on. The
    name stands in snapshots. Raises StateError for what is no name, one that Snapline's own serializers have, and
    what cannot be called.

    >>> _ = sl.register_serializer("text", str.encode, bytes.decode)
    >>> sl.ValueStateDescriptor("note", serializer="text").element_type
    DataType(large_binary)
    """
    if not isinstance(name, str) or not name:
        raise StateError(f"a serializer needs a name, a text, and got {name!r}")
    for part, function in (("dumps", dumps), ("loads", loads)):
        if not callable(function):
            raise StateError(f"serializer {name!r}: {part} is a function of one value, got {function!r}")
    known = _SERIALIZERS.get(name)
    if known is not None and known.dumps is not dumps and _is_own(known.dumps):
        raise StateError(f"serializer {name!r} is one of Snapline's own: give yours another name")
    named = NamedSerializer(name, dumps, loads)
    _SERIALIZERS[name] = named
    return named


def _is_own(function: Callable[..., Any]) -> bool:
    return str(getattr(function, "__module__", "")).startswith("snapline.")


def serializer_named(name: str) -> NamedSerializer:
    """Raise StateError, with the names that are known, for one that is not. What this process has registered itself
    goes first."""
    found = _SERIALIZERS.get(name)
    if found is None and name in _SENT:
        found = cloudpickle.loads(_SENT[name])
    if found is None:
        raise StateError(
            f"no serializer {name!r} is registered here (known: {', '.join(sorted({*_SERIALIZERS, *_SENT}))}): call "
            "snapline.register_serializer in a module that the job's functions import"
        )
    return found


def pickled_with_serializers(value: object) -> bytes:
    """Pickle what a job brings to its tasks, with the serializers that the program has registered. Whoever loads it
    gets the value alone, and knows them. Without any it is the pickle of the value, which older releases load."""
    pickles = {}
    for one in list(_SERIALIZERS.values()):
        if not _is_own(one.dumps):
            with contextlib.suppress(Exception):  # one that cannot be sent may be of no use to this job
                pickles[one.name] = cloudpickle.dumps(one)
    return cloudpickle.dumps(_WithSerializers(value, pickles) if pickles else value)


@dataclass(frozen=True)
class _WithSerializers:
    value: object
    pickles: dict[str, bytes]

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        """The value once it is loaded."""
        return _with_serializers, (self.value, self.pickles)


def _with_serializers(value: object, pickles: dict[str, bytes]) -> object:
    _SENT.update(pickles)
    return value


def _json_dumps(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":"), sort_keys=True, ensure_ascii=False).encode()


register_serializer("json", _json_dumps, json.loads)


class AggregateFunction(ABC):
    """Folds values into an accumulator (Flink: AggregateFunction). Accumulators are treated as immutable.

    >>> class Average(sl.AggregateFunction):
    ...     def create_accumulator(self):
    ...         return {"n": 0, "total": 0}
    ...     def add(self, value, accumulator):
    ...         return {"n": accumulator["n"] + 1, "total": accumulator["total"] + value}
    ...     def get_result(self, accumulator):
    ...         return accumulator["total"] / accumulator["n"]
    ...     def merge(self, left, right):
    ...         return {"n": left["n"] + right["n"], "total": left["total"] + right["total"]}
    >>> pair = pa.struct([("n", pa.int64()), ("total", pa.int64())])
    >>> _ = sl.AggregatingStateDescriptor("average", Average(), pair)
    """

    @abstractmethod
    def create_accumulator(self) -> Any:
        """Return the accumulator before any value has been added."""

    @abstractmethod
    def add(self, value: Any, accumulator: Any) -> Any:
        """The accumulator with the value in it."""

    @abstractmethod
    def get_result(self, accumulator: Any) -> Any:
        """What the accumulator amounts to."""

    def merge(self, left: Any, right: Any) -> Any:
        """Both accumulators in one; only merging windows ask for it."""
        raise StateError(f"{type(self).__name__} has no merge, which merging (session) windows need")


ValueType: TypeAlias = pa.DataType | pa.Schema | None
Migrate: TypeAlias = Callable[[pa.Array], pa.Array]
"""Elements of another type (or serializer) that a snapshot holds, as an array, to as many of the declared one. It is
asked when the two differ, and only then."""


class StateDescriptor(ABC):
    """Name, kind and types of a keyed state; the base of the five kinds.

    >>> state = sl.ListStateDescriptor("last", pa.int64())
    >>> state.storage_type, state.to_field().name
    (LargeListType(large_list<item: int64>), 'last')
    """

    __slots__ = ()

    kind: ClassVar[StateKind]
    name: str
    serializer: str
    ttl: StateTtlConfig | None
    migrate: Migrate | None

    @property
    @abstractmethod
    def storage_type(self) -> pa.DataType:
        """The Arrow type of the state's column in a snapshot: one value per key."""

    def to_field(self) -> pa.Field:
        """The state's column in a snapshot; its metadata say all that is needed to use it again."""
        metadata = {KIND_METADATA: self.kind.value.encode(), SERIALIZER_METADATA: self.serializer.encode()}
        if self.ttl is not None:
            metadata[TTL_METADATA] = self.ttl.to_metadata()
        return pa.field(self.name, self.storage_type, nullable=True, metadata=metadata)


def _element_type(
    name: str, what: str, declared: ValueType, serializer: str, ttl: StateTtlConfig | None
) -> pa.DataType:
    """The Arrow type of one element as it is stored: with the time when it was touched, if it has one to live."""
    plain = _declared_type(name, what, declared, serializer)
    return plain if ttl is None else timed_type(plain)


def _check_name(name: str) -> None:
    if not name:
        raise StateError("a state needs a name")
    try:
        str.encode(name)
    except (TypeError, UnicodeEncodeError):  # a snapshot has its name as UTF-8
        raise StateError(f"a state's name is text in UTF-8, got {name!r}") from None


def _declared_type(name: str, what: str, declared: ValueType, serializer: str) -> pa.DataType:
    """The Arrow type of one element: as declared, or bytes if a serializer makes them."""
    _check_name(name)
    if (declared is None) == (not serializer):
        raise StateError(
            f"state {name!r}: say its {what} as an Arrow type or schema, or name a serializer (serializer='json'); one of them"
        )
    if declared is None:
        return pa.large_binary()
    if isinstance(declared, pa.Schema):
        return pa.struct(list(declared))
    if not isinstance(declared, pa.DataType):
        raise StateError(
            f"state {name!r}: {declared!r} is no Arrow type: use pa.int64(), pa.string(), a pa.schema, ..."
        )
    if pa.types.is_null(declared):
        raise StateError(f"state {name!r}: a {what} of type null cannot hold anything")
    return kept_type(declared)


@dataclass(frozen=True, slots=True)
class ValueStateDescriptor(StateDescriptor):
    """One value per key: an Arrow type, or a schema for a struct, or the name of a serializer. Raises StateError unless
    exactly one is given.

    >>> state = sl.ValueStateDescriptor("total", pa.int64())
    >>> state.element_type, state.storage_type
    (DataType(int64), DataType(int64))
    """

    kind: ClassVar[StateKind] = StateKind.VALUE
    name: str
    value_type: ValueType = None
    serializer: str = ""
    ttl: StateTtlConfig | None = None
    migrate: Migrate | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        """StateError unless exactly one of type and serializer is given."""
        self.element_type  # noqa: B018

    @property
    def element_type(self) -> pa.DataType:
        """Return the type of the value."""
        return _element_type(self.name, "value_type", self.value_type, self.serializer, self.ttl)

    @property
    def storage_type(self) -> pa.DataType:
        """Return the type of the value, which is stored as it is."""
        return self.element_type


@dataclass(frozen=True, slots=True)
class ListStateDescriptor(StateDescriptor):
    """A list per key; the type is that of an element. Raises StateError unless exactly one of type and serializer is
    given.

    >>> state = sl.ListStateDescriptor("last", pa.float64())
    >>> state.element_type, state.storage_type
    (DataType(double), LargeListType(large_list<item: double>))
    """

    kind: ClassVar[StateKind] = StateKind.LIST
    name: str
    value_type: ValueType = None
    serializer: str = ""
    ttl: StateTtlConfig | None = None
    migrate: Migrate | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        """StateError unless exactly one of type and serializer is given."""
        self.element_type  # noqa: B018

    @property
    def element_type(self) -> pa.DataType:
        """Return the type of one element of the list."""
        return _element_type(self.name, "value_type", self.value_type, self.serializer, self.ttl)

    @property
    def storage_type(self) -> pa.DataType:
        """Return the type of a list of elements, as it is stored."""
        return pa.large_list(self.element_type)


@dataclass(frozen=True, slots=True)
class MapStateDescriptor(StateDescriptor):
    """A map per key. Map keys are of a type that a stream can be keyed by. Raises StateError without one.

    >>> state = sl.MapStateDescriptor("prices", pa.string(), pa.int64())
    >>> state.element_type, state.storage_type
    (DataType(int64), MapType(map<string, int64>))
    """

    kind: ClassVar[StateKind] = StateKind.MAP
    name: str
    key_type: pa.DataType = None
    value_type: ValueType = None
    serializer: str = ""
    ttl: StateTtlConfig | None = None
    migrate: Migrate | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        """StateError without a key type, and unless exactly one of value type and serializer is given."""
        if not isinstance(self.key_type, pa.DataType):
            raise StateError(f"map state {self.name!r} needs an Arrow type for its keys, got {self.key_type!r}")
        try:
            plain = plain_type(self.key_type)
        except TypeError as refusal:
            raise StateError(f"map state {self.name!r}: {refusal}") from None
        if plain != self.key_type:
            raise StateError(f"map state {self.name!r}: declare its key type {self.key_type} as {plain}")
        self.element_type  # noqa: B018

    @property
    def element_type(self) -> pa.DataType:
        """Return the type of one value of the map."""
        return _element_type(self.name, "value_type", self.value_type, self.serializer, self.ttl)

    @property
    def storage_type(self) -> pa.DataType:
        """A map of keys to values."""
        return pa.map_(self.key_type, self.element_type)


ReduceFunction = Callable[[Any, Any], Any]


@dataclass(frozen=True, slots=True)
class ReducingStateDescriptor(StateDescriptor):
    """One value per key, combined by a function of two values.

    >>> state = sl.ReducingStateDescriptor("most", max, pa.int64())
    >>> state.element_type, state.storage_type
    (DataType(int64), DataType(int64))
    """

    kind: ClassVar[StateKind] = StateKind.REDUCING
    name: str
    reduce_function: ReduceFunction | None = None
    value_type: ValueType = None
    serializer: str = ""
    ttl: StateTtlConfig | None = None
    migrate: Migrate | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        """StateError without a function, and unless exactly one of type and serializer is given."""
        if self.reduce_function is not None and not callable(self.reduce_function):
            raise StateError(f"reducing state {self.name!r}: {self.reduce_function!r} is not a function of two values")
        self.element_type  # noqa: B018

    @property
    def element_type(self) -> pa.DataType:
        """Return the type of the reduced value."""
        return _element_type(self.name, "value_type", self.value_type, self.serializer, self.ttl)

    @property
    def storage_type(self) -> pa.DataType:
        """Return the type of the reduced value, which is stored as it is."""
        return self.element_type


@dataclass(frozen=True, slots=True)
class AggregatingStateDescriptor(StateDescriptor):
    """One accumulator per key, of an AggregateFunction; `value_type` is the accumulator's.

    >>> class Count(sl.AggregateFunction):
    ...     def create_accumulator(self):
    ...         return 0
    ...     def add(self, value, accumulator):
    ...         return accumulator + 1
    ...     def get_result(self, accumulator):
    ...         return accumulator
    >>> state = sl.AggregatingStateDescriptor("n", Count(), pa.int64())
    >>> state.element_type, state.storage_type
    (DataType(int64), DataType(int64))
    """

    kind: ClassVar[StateKind] = StateKind.AGGREGATING
    name: str
    aggregate_function: AggregateFunction | None = None
    value_type: ValueType = None
    serializer: str = ""
    ttl: StateTtlConfig | None = None
    migrate: Migrate | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        """StateError unless exactly one of type and serializer is given."""
        self.element_type  # noqa: B018

    @property
    def element_type(self) -> pa.DataType:
        """Return the type of the accumulator."""
        return _element_type(self.name, "value_type", self.value_type, self.serializer, self.ttl)

    @property
    def storage_type(self) -> pa.DataType:
        """Return the type of the accumulator, which is stored as it is."""
        return self.element_type


RUNNING_AGGREGATES = ("sum", "min", "max")


@dataclass(frozen=True, slots=True)
class RunningAggregateDescriptor(StateDescriptor):
    """Count and, as asked, sum, min and max of a column per key, computed on whole batches. No counterpart in Flink.

    Nulls are not counted and change nothing. Integers are summed as int64 (wrapping, as in numpy), floats as float64.
    """

    kind: ClassVar[StateKind] = StateKind.RUNNING_AGGREGATE
    name: str
    input_type: pa.DataType
    aggregates: tuple[str, ...] = ("sum",)
    serializer: str = field(default="", init=False)
    ttl: StateTtlConfig | None = field(default=None, init=False)
    migrate: Migrate | None = field(default=None, init=False, compare=False)

    def __post_init__(self) -> None:
        """StateError for an unknown aggregate or a column that is not numeric."""
        _check_name(self.name)
        for aggregate in self.aggregates:
            if aggregate not in RUNNING_AGGREGATES:
                known = ", ".join(RUNNING_AGGREGATES)
                raise StateError(
                    f"running aggregate {self.name!r}: unknown {aggregate!r}, one of {known} (count is always there)"
                )
        if not (pa.types.is_integer(self.input_type) or pa.types.is_floating(self.input_type)):
            raise StateError(
                f"running aggregate {self.name!r}: {self.input_type} is no integer or float; cast the column"
            )

    @property
    def accumulator_type(self) -> pa.DataType:
        """int64 for integers, float64 for floats."""
        return pa.float64() if pa.types.is_floating(self.input_type) else pa.int64()

    @property
    def storage_type(self) -> pa.DataType:
        """A struct of `count` and the aggregates."""
        others = [pa.field(aggregate, self.accumulator_type) for aggregate in self.aggregates]
        return pa.struct([pa.field("count", pa.int64()), *others])


def descriptor_of(column: pa.Field) -> StateDescriptor:
    """The inverse of `to_field`, without the functions, which are code; StateError for a kind that is not known, and
    for a type that no state of the kind and serializer is stored as."""
    found = _described(column)
    if found.storage_type != column.type:
        raise StateError(
            f"state {column.name!r} is written as {column.type}, where a {found.kind.value} state"
            f"{f' with the serializer {found.serializer!r}' if found.serializer else ''} is stored as {found.storage_type}: "
            "the snapshot is damaged, or not one of ours, so restore an older one"
        )
    return found


def _described(column: pa.Field) -> StateDescriptor:
    metadata = column.metadata or {}
    serializer = metadata.get(SERIALIZER_METADATA, b"").decode()
    written = metadata.get(KIND_METADATA, b"").decode()
    known = {kind.value: kind for kind in StateKind}
    if written not in known:
        raise StateError(f"state {column.name!r} is of the kind {written!r}, which this version does not know")
    kind, data_type = known[written], column.type
    if kind is StateKind.RUNNING_AGGREGATE:
        names = tuple(data_type.field(i).name for i in range(1, data_type.num_fields))
        floating = any(pa.types.is_floating(data_type.field(i).type) for i in range(1, data_type.num_fields))
        return RunningAggregateDescriptor(column.name, pa.float64() if floating else pa.int64(), names)
    ttl = StateTtlConfig.from_metadata(metadata.get(TTL_METADATA, b""))

    def declared(stored: pa.DataType) -> pa.DataType | None:
        """The type of one element, as the user has declared it."""
        plain = stored if ttl is None else stored.field(VALUE_FIELD).type
        return None if serializer else plain

    if kind is StateKind.MAP:
        return MapStateDescriptor(column.name, data_type.key_type, declared(data_type.item_type), serializer, ttl)
    if kind is StateKind.LIST:
        return ListStateDescriptor(column.name, declared(data_type.value_type), serializer, ttl)
    if kind is StateKind.REDUCING:
        return ReducingStateDescriptor(column.name, None, declared(data_type), serializer, ttl)
    if kind is StateKind.AGGREGATING:
        return AggregatingStateDescriptor(column.name, None, declared(data_type), serializer, ttl)
    return ValueStateDescriptor(column.name, declared(data_type), serializer, ttl)


class ValueState(Protocol):
    """One value of the current key (Flink: ValueState); `RuntimeContext.get_state` gives it.

    >>> class Total(sl.KeyedProcessFunction):
    ...     def open(self, context):
    ...         self.total: sl.ValueState = context.get_state(sl.ValueStateDescriptor("total", pa.int64()))
    ...     def process_element(self, row, context):
    ...         self.total.update((self.total.value() or 0) + row["cents"])
    ...         if self.total.value() > 10_000:
    ...             self.total.clear()
    >>> _ = orders.key_by("customer").process(Total(), uid="total")
    """

    def value(self) -> Any:
        """The value, None if there is none."""
        ...

    def update(self, value: Any) -> None:
        """Set the value; None clears it."""
        ...

    def clear(self) -> None:
        """Remove the value of the current key."""
        ...


class ListState(Protocol):
    """A list of the current key (Flink: ListState); `RuntimeContext.get_list_state` gives it.

    >>> class LastThree(sl.KeyedProcessFunction):
    ...     def open(self, context):
    ...         self.last: sl.ListState = context.get_list_state(sl.ListStateDescriptor("last", pa.int64()))
    ...     def process_element(self, row, context):
    ...         self.last.add(row["cents"])
    ...         self.last.update(self.last.get()[-3:])
    ...         if row["coupon"] == "forget":
    ...             self.last.clear()
    ...             self.last.add_all([0, 0])
    >>> _ = orders.key_by("customer").process(LastThree(), uid="last")
    """

    def get(self) -> list[Any]:
        """All elements, in the order in which they were added."""
        ...

    def add(self, value: Any) -> None:
        """Append one element to the list of the current key."""
        ...

    def add_all(self, values: Sequence[Any]) -> None:
        """Append several elements to the list of the current key."""
        ...

    def update(self, values: Sequence[Any]) -> None:
        """Replace the list of the current key by these values."""
        ...

    def clear(self) -> None:
        """Remove all elements of the current key."""
        ...


class MapState(Protocol):
    """A map of the current key (Flink: MapState); `RuntimeContext.get_map_state` gives it.

    >>> class Bought(sl.KeyedProcessFunction):
    ...     def open(self, context):
    ...         prices = sl.MapStateDescriptor("prices", pa.string(), pa.int64())
    ...         self.prices: sl.MapState = context.get_map_state(prices)
    ...     def process_element(self, row, context):
    ...         if not self.prices.contains(row["shop"]):
    ...             self.prices.put(row["shop"], row["cents"])
    ...         known = self.prices.get(row["shop"])
    ...         yield {"shops": len(list(self.prices.keys())), "least": min(self.prices.values()), "known": known}
    ...     def on_timer(self, timestamp_ms, context):
    ...         for shop, cents in list(self.prices.items()):
    ...             self.prices.remove(shop)
    ...         if self.prices.is_empty():
    ...             self.prices.put_all({"none": 0})
    ...         self.prices.clear()
    >>> _ = orders.key_by("customer").process(Bought(), uid="bought")
    """

    def get(self, key: Any) -> Any:
        """The value under the key, None if there is none."""
        ...

    def put(self, key: Any, value: Any) -> None:
        """Set the value under the key."""
        ...

    def put_all(self, mapping: dict[Any, Any]) -> None:
        """Set several pairs in the map of the current key."""
        ...

    def remove(self, key: Any) -> None:
        """Remove the key, if it is there."""
        ...

    def contains(self, key: Any) -> bool:
        """Whether the key is there."""
        ...

    def keys(self) -> Iterable[Any]:
        """All keys; the order is open."""
        ...

    def values(self) -> Iterable[Any]:
        """All values, in the order of keys()."""
        ...

    def items(self) -> Iterable[tuple[Any, Any]]:
        """Return all pairs of the current key's map (Flink: entries)."""
        ...

    def is_empty(self) -> bool:
        """Whether there is no key."""
        ...

    def clear(self) -> None:
        """Remove all pairs of the current key's map."""
        ...


class ReducingState(Protocol):
    """A combined value of the current key (Flink: ReducingState); `RuntimeContext.get_reducing_state` gives it.

    >>> class Most(sl.KeyedProcessFunction):
    ...     def open(self, context):
    ...         most = sl.ReducingStateDescriptor("most", max, pa.int64())
    ...         self.most: sl.ReducingState = context.get_reducing_state(most)
    ...     def process_element(self, row, context):
    ...         self.most.add(row["cents"])
    ...         yield {"most": self.most.get()}
    ...     def on_timer(self, timestamp_ms, context):
    ...         self.most.clear()
    >>> _ = orders.key_by("customer").process(Most(), uid="most")
    """

    def get(self) -> Any:
        """The value so far, None if nothing was added."""
        ...

    def add(self, value: Any) -> None:
        """Combine the value with what is there."""
        ...

    def clear(self) -> None:
        """Forget what was reduced for the current key."""
        ...


class AggregatingState(Protocol):
    """An aggregate of the current key (Flink: AggregatingState); `RuntimeContext.get_aggregating_state` gives it.

    >>> class Count(sl.AggregateFunction):
    ...     def create_accumulator(self):
    ...         return 0
    ...     def add(self, value, accumulator):
    ...         return accumulator + 1
    ...     def get_result(self, accumulator):
    ...         return accumulator
    >>> class Counted(sl.KeyedProcessFunction):
    ...     def open(self, context):
    ...         count = sl.AggregatingStateDescriptor("n", Count(), pa.int64())
    ...         self.n: sl.AggregatingState = context.get_aggregating_state(count)
    ...     def process_element(self, row, context):
    ...         self.n.add(row)
    ...         yield {"n": self.n.get()}
    ...     def on_timer(self, timestamp_ms, context):
    ...         self.n.clear()
    >>> _ = orders.key_by("customer").process(Counted(), uid="counted")
    """

    def get(self) -> Any:
        """The result so far, None if nothing was added."""
        ...

    def add(self, value: Any) -> None:
        """Add one value to the accumulator of the current key."""
        ...

    def clear(self) -> None:
        """Forget the accumulator of the current key."""
        ...
