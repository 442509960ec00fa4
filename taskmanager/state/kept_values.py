"""What a row puts into a state is at once what its column keeps of it.

A value that was put and read within a batch would else be another one than after it, so that results would depend on
where batches end: floats of less than 64 bits are rounded, days have no time of day, decimals the digits of their type
and moments its zone; a struct has all of its fields and no others, a map is a list of pairs, a list no tuple, bytes no
bytearray, and none of them changes with the object that was put. Numbers, truth values and texts are left as they are,
since equal ones do as well, and so are lists and maps that a function of a reducing or aggregating state fills: to look
through them for each row would take the square. Decides for which types there is something to do; all other states are
made without any of this.
"""

from __future__ import annotations

import ctypes
import datetime as dt
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from decimal import Decimal
from math import isnan
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from snapline.dataflow.api.state import (
    AggregateFunction,
    AggregatingStateDescriptor,
    ReducingStateDescriptor,
    StateKind,
)
from snapline.dataflow.api.state_ttl import VALUE_FIELD
from snapline.dataflow.columnar.python_values import array_of

Keeping = Callable[[Any], Any]
_FLOATS = (float, np.floating)


def keeping_of(data_type: pa.DataType, *, copies: bool) -> Keeping | None:
    """What makes of a Python value the one that a column of this type gives back, or None where that is the same.

    A value that stays is the same object, with `copies` only if it cannot change in place; what is no value of the type
    is left for the column to refuse. Without `copies` lists and maps are what a function has made of two values: they
    may grow with each row, and are looked through only where floats are to be rounded."""
    types = pa.types
    if not copies and _may_grow(data_type) and not _has_narrow_floats(data_type):
        return None
    if types.is_struct(data_type):
        found = ((field.name, keeping_of(field.type, copies=copies)) for field in data_type)
        fields = [(name, keep) for name, keep in found if keep is not None]
        names = tuple(field.name for field in data_type)
        return _keeping_of_structs(data_type, names, fields, copies=copies)
    if types.is_map(data_type):
        of_key, of_item = (keeping_of(one, copies=copies) for one in (data_type.key_type, data_type.item_type))
        return lambda value: _map(value, data_type, of_key, of_item, copies=copies)
    if types.is_list(data_type) or types.is_large_list(data_type) or types.is_fixed_size_list(data_type):
        of_element = keeping_of(data_type.value_type, copies=copies)
        return lambda value: _list(value, data_type, of_element, copies=copies)
    if types.is_dictionary(data_type):
        return keeping_of(data_type.value_type, copies=copies)
    if types.is_float32(data_type) or types.is_float16(data_type):
        narrow = _single if types.is_float32(data_type) else _half
        return lambda value: _rounded(value, narrow) if isinstance(value, _FLOATS) else value
    if types.is_timestamp(data_type) and data_type.tz is not None and data_type.unit != "ns":
        zone = pa.lib.string_to_tzinfo(data_type.tz)
        return lambda value: value if value is None else _in_zone(value, zone, data_type)
    is_kept = _check_of(data_type)
    return is_kept and (lambda value: value if value is None or is_kept(value) else _through_column(value, data_type))


def _as_it_is(value: Any) -> Any:
    return value


def _may_grow(data_type: pa.DataType) -> bool:
    types = pa.types
    return bool(types.is_map(data_type) or types.is_list(data_type) or types.is_large_list(data_type))


def _has_narrow_floats(data_type: pa.DataType) -> bool:
    parts = (data_type.field(place).type for place in range(data_type.num_fields))
    narrow = pa.types.is_float32(data_type) or pa.types.is_float16(data_type)
    return bool(narrow) or any(map(_has_narrow_floats, parts))


def _check_of(data_type: pa.DataType) -> Callable[[Any], bool] | None:
    """Whether a value that is no container is what its column gives back; None: it is, or equal."""
    types = pa.types
    if types.is_binary(data_type) or types.is_large_binary(data_type) or types.is_fixed_size_binary(data_type):
        return lambda value: value.__class__ is bytes
    if types.is_date(data_type):
        return lambda value: value.__class__ is dt.date
    if types.is_decimal(data_type):
        exponent = -data_type.scale
        return lambda value: (
            value.__class__ is Decimal
            and value.as_tuple().exponent == exponent
            and bool(value or not value.is_signed())  # columns have one zero
        )
    if types.is_timestamp(data_type) and data_type.unit != "ns":
        return lambda value: value.__class__ is dt.datetime and value.tzinfo is None
    if types.is_timestamp(data_type):
        zone = None if data_type.tz is None else pa.lib.string_to_tzinfo(data_type.tz)
        return lambda value: hasattr(value, "nanosecond") and value.tzinfo is zone
    if types.is_duration(data_type) and data_type.unit == "ns":
        return lambda value: hasattr(value, "nanoseconds")
    if types.is_time(data_type):
        return lambda value: value.__class__ is dt.time and value.tzinfo is None
    return (lambda value: value.__class__ is dt.timedelta) if types.is_duration(data_type) else None


def _in_zone(value: Any, zone: dt.tzinfo, data_type: pa.DataType) -> Any:
    if value.__class__ is not dt.datetime or value.tzinfo is None:
        return _through_column(value, data_type)
    try:
        moment = value.astimezone(dt.UTC).astimezone(zone)  # by way of UTC, for an hour that clocks pass over
    except OverflowError:
        return value
    return value if value.tzinfo is zone and (value, value.fold) == (moment, moment.fold) else moment


def _rounded(value: float | np.floating[Any], narrow: Callable[[float], float]) -> float | np.floating[Any]:
    rounded = narrow(float(value))
    return value if value.__class__ is float and (rounded == value or isnan(value)) else rounded


def _single(value: float) -> float:
    return ctypes.c_float(value).value


def _half(value: float) -> float:
    with np.errstate(over="ignore"):
        return float(np.float16(value))


def _through_column(value: Any, data_type: pa.DataType) -> Any:
    try:
        return array_of([value], data_type).to_pylist()[0]
    except (pa.ArrowException, OverflowError, TypeError, ValueError):
        return value


def _keeping_of_structs(
    data_type: pa.DataType, names: tuple[str, ...], fields: Sequence[tuple[str, Keeping]], *, copies: bool
) -> Keeping:
    known = frozenset(names)

    def tidied(value: Any) -> Any:
        if value.__class__ is not dict or tuple(value) != names:
            if not isinstance(value, Mapping):
                return None if value is None else _through_column(value, data_type)
            if not value.keys() <= known and not known <= value.keys():  # bytes, or misspelled
                return _through_column(value, data_type)
            return {name: value.get(name) for name in names}
        return value.copy() if copies else value

    def keep(value: Any) -> Any:
        value = tidied(value)
        if value.__class__ is not dict:
            return value
        try:
            changed = {name: kept for name, keep in fields if (kept := keep(value[name])) is not value[name]}
        except KeyError:  # a misspelled name is refused when the record is written
            return value
        return {**value, **changed} if changed else value

    return keep if fields else tidied


def _map(value: Any, data_type: pa.DataType, of_key: Keeping | None, of_item: Keeping | None, *, copies: bool) -> Any:
    if isinstance(value, Mapping):
        value = list(value.items())
    elif value.__class__ is not list or not all(pair.__class__ is tuple and len(pair) == 2 for pair in value):
        return None if value is None else _through_column(value, data_type)
    elif copies:
        value = value.copy()
    if of_key is of_item is None:
        return value
    keys = [key if of_key is None else of_key(key) for key, _ in value]
    items = [item if of_item is None else of_item(item) for _, item in value]
    is_same = all(pair[0] is key and pair[1] is item for pair, key, item in zip(value, keys, items, strict=True))
    return value if is_same else list(zip(keys, items, strict=True))


def _list(value: Any, data_type: pa.DataType, of_element: Keeping | None, *, copies: bool) -> Any:
    if value.__class__ is not list:
        if value.__class__ is not tuple:
            return None if value is None else _through_column(value, data_type)
        value = list(value)
    elif copies:
        value = value.copy()
    if of_element is None:
        return value
    kept = [of_element(each) for each in value]
    return value if all(one is each for one, each in zip(kept, value, strict=True)) else kept


class _FunctionAsKept(AggregateFunction):
    def __init__(self, function: AggregateFunction, same: Keeping, copied: Keeping) -> None:
        self._function, self._same, self._copied = function, same, copied

    def create_accumulator(self) -> Any:
        return self._function.create_accumulator()

    def add(self, value: Any, accumulator: Any) -> Any:
        result = self._function.add(value, accumulator)
        return (self._copied if result is value else self._same)(result)

    def get_result(self, accumulator: Any) -> Any:
        return self._function.get_result(accumulator)


class _Ways(NamedTuple):
    copied: Keeping
    """Makes a copy of what a row puts as it is kept."""
    same: Keeping
    """Keeps what is already so as the same object: what a function made of two values is not copied for each row."""


# Each of these returns the methods that take the place of those of `make`, a class of states; without super(), which
# every row would pay for.


def _values(make: type[Any], ways: _Ways) -> dict[str, Any]:
    put, copied = make.update, ways.copied

    def update(self: Any, value: Any) -> None:
        put(self, copied(value))

    return {"update": update}


def _maps(make: type[Any], ways: _Ways) -> dict[str, Any]:
    put_one, copied = make.put, ways.copied

    def put(self: Any, key: Any, value: Any) -> None:
        put_one(self, key, copied(value))

    return {"put": put}


def _lists(make: type[Any], ways: _Ways) -> dict[str, Any]:
    add_one, put_values, copied = make.add, make.update, ways.copied

    def add(self: Any, value: Any) -> None:
        add_one(self, copied(value))

    def update(self: Any, values: Sequence[Any]) -> None:
        if self.descriptor.ttl is None:
            self.replace(values, copied)
        else:
            put_values(self, [copied(value) for value in values])

    return {"add": add, "update": update}


def _reducing(make: type[Any], ways: _Ways) -> dict[str, Any]:
    use_of, add_one = make.use, make.add
    copied, same = ways

    def use(self: Any, descriptor: ReducingStateDescriptor) -> None:
        reduce = descriptor.reduce_function
        kept_reduce = reduce and (lambda left, right: same(reduce(left, right)))
        use_of(self, replace(descriptor, reduce_function=kept_reduce))

    def add(self: Any, value: Any) -> None:
        add_one(self, copied(value))

    return {"use": use, "add": add}


def _aggregating(make: type[Any], ways: _Ways) -> dict[str, Any]:
    use_of = make.use
    copied, same = ways

    def use(self: Any, descriptor: AggregatingStateDescriptor) -> None:
        function = descriptor.aggregate_function
        use_of(self, replace(descriptor, aggregate_function=function and _FunctionAsKept(function, same, copied)))

    return {"use": use}


_METHODS: dict[StateKind, Callable[[type[Any], _Ways], dict[str, Any]]] = {
    StateKind.VALUE: _values,
    StateKind.MAP: _maps,
    StateKind.LIST: _lists,
    StateKind.REDUCING: _reducing,
    StateKind.AGGREGATING: _aggregating,
}


def with_kept_values(make: type[Any], descriptor: Any) -> type[Any]:
    """The class of a state, or one below it that makes of what is put what is kept, if that may be another value."""
    if descriptor.kind not in _METHODS or descriptor.serializer:
        return make
    element_type = descriptor.element_type
    user_type = element_type if descriptor.ttl is None else element_type.field(VALUE_FIELD).type
    copied, same = keeping_of(user_type, copies=True), keeping_of(user_type, copies=False)
    if copied is None:
        return make
    methods = _METHODS[descriptor.kind](make, _Ways(copied, same or _as_it_is))
    return type(make.__name__, (make,), {"__slots__": (), **methods})
