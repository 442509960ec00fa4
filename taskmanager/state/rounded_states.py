"""States of small floats: what a row puts is rounded at once, as it is when the batch is written back.

Python's floats have 64 bits. Where a state's type has fewer, a value that was put and read within a batch would be
another one than after it, so that results would depend on where batches end. Decides for which types that is so; all
other states are made without any of this.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import replace
from math import isnan
from typing import Any

import numpy as np
import pyarrow as pa

from snapline.dataflow.api.state import (
    AggregateFunction,
    AggregatingStateDescriptor,
    ReducingStateDescriptor,
    StateKind,
)
from snapline.dataflow.api.state_ttl import VALUE_FIELD

Rounding = Callable[[Any], Any]
_FLOATS = (float, np.floating)


def rounding_of(data_type: pa.DataType) -> Rounding | None:
    """What makes of a Python value the one that a column of this type holds; a value that stays is the same object, and
    what is no such value is left for the column to refuse. None where there is nothing to round."""
    if pa.types.is_float32(data_type):
        return lambda value: (
            _unless_equal(value, ctypes.c_float(float(value)).value) if isinstance(value, _FLOATS) else value
        )
    if pa.types.is_float16(data_type):
        return lambda value: _unless_equal(value, _half(value)) if isinstance(value, _FLOATS) else value
    if pa.types.is_struct(data_type):
        found = ((field.name, rounding_of(field.type)) for field in data_type)
        fields = [(name, rounding) for name, rounding in found if rounding is not None]
        return (lambda value: _rounded_struct(value, fields)) if fields else None
    if pa.types.is_map(data_type):
        of_key, of_item = (rounding_of(one) or _as_it_is for one in (data_type.key_type, data_type.item_type))
        if of_key is of_item is _as_it_is:
            return None
        return lambda value: _rounded_map(value, of_key, of_item)
    inner = rounding_of(data_type.value_type) if hasattr(data_type, "value_type") else None
    return inner and (lambda value: [inner(one) for one in value] if isinstance(value, (list, tuple)) else value)


def _as_it_is(value: Any) -> Any:
    return value


def _unless_equal(value: float | np.floating[Any], rounded: float) -> float | np.floating[Any]:
    return value if type(value) is float and (rounded == value or isnan(value)) else rounded


def _half(value: float | np.floating[Any]) -> float:
    with np.errstate(over="ignore"):
        return float(np.float16(value))


def _rounded_struct(value: Any, fields: Sequence[tuple[str, Rounding]]) -> Any:
    if not isinstance(value, dict):
        return value
    changed = {name: rounding(value[name]) for name, rounding in fields if name in value}
    return value if all(value[name] is one for name, one in changed.items()) else {**value, **changed}


def _rounded_map(value: Any, of_key: Rounding, of_item: Rounding) -> Any:
    if isinstance(value, dict):
        return {of_key(key): of_item(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)) and all(isinstance(pair, tuple) and len(pair) == 2 for pair in value):
        return [(of_key(key), of_item(item)) for key, item in value]
    return value


class _Rounded:
    """Mixed into a class of states, whose instances then have the rounding."""

    __slots__ = ()
    _rounding: Rounding


class _RoundedValue(_Rounded):
    __slots__ = ()

    def update(self, value: Any) -> None:
        super().update(self._rounding(value))  # type: ignore[misc]


class _RoundedReducing(_Rounded):
    __slots__ = ()

    def use(self, descriptor: ReducingStateDescriptor) -> None:
        reduce, rounding = descriptor.reduce_function, self._rounding
        rounded_reduce = reduce and (lambda left, right: rounding(reduce(left, right)))
        super().use(replace(descriptor, reduce_function=rounded_reduce))  # type: ignore[misc]

    def add(self, value: Any) -> None:
        super().add(self._rounding(value))  # type: ignore[misc]


class _RoundedAggregating(_Rounded):
    __slots__ = ()

    def use(self, descriptor: AggregatingStateDescriptor) -> None:
        function = descriptor.aggregate_function and _RoundedFunction(descriptor.aggregate_function, self._rounding)
        super().use(replace(descriptor, aggregate_function=function))  # type: ignore[misc]


class _RoundedFunction(AggregateFunction):
    def __init__(self, function: AggregateFunction, rounding: Rounding) -> None:
        self._function, self._rounding = function, rounding

    def create_accumulator(self) -> Any:
        return self._function.create_accumulator()

    def add(self, value: Any, accumulator: Any) -> Any:
        return self._rounding(self._function.add(value, accumulator))

    def get_result(self, accumulator: Any) -> Any:
        return self._function.get_result(accumulator)


class _RoundedList(_Rounded):
    __slots__ = ()

    def add(self, value: Any) -> None:
        super().add(self._rounding(value))  # type: ignore[misc]

    def update(self, values: Sequence[Any]) -> None:
        super().update([self._rounding(value) for value in values])  # type: ignore[misc]


class _RoundedMap(_Rounded):
    __slots__ = ()

    def put(self, key: Any, value: Any) -> None:
        super().put(key, self._rounding(value))  # type: ignore[misc]


_MIXED_IN: dict[StateKind, type[_Rounded]] = {
    StateKind.VALUE: _RoundedValue,
    StateKind.REDUCING: _RoundedReducing,
    StateKind.AGGREGATING: _RoundedAggregating,
    StateKind.LIST: _RoundedList,
    StateKind.MAP: _RoundedMap,
}


def rounded(make: type[Any], descriptor: Any) -> type[Any]:
    """The class of a state, or one below it that rounds, if values of the descriptor's type are to be."""
    if descriptor.kind not in _MIXED_IN or descriptor.serializer:
        return make
    element_type = descriptor.element_type
    rounding = rounding_of(element_type if descriptor.ttl is None else element_type.field(VALUE_FIELD).type)
    if rounding is None:
        return make
    members = {"__slots__": (), "_rounding": staticmethod(rounding)}
    return type(make.__name__, (_MIXED_IN[descriptor.kind], make), members)
