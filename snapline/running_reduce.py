"""The function behind `KeyedStream.reduce`: a key's rows so far, combined two by two.

Decides that the first row of a key is its first result, and that a result has the columns of the stream: what it lacks
is null, but for the key, and what it has besides is an error of the function. Mirrors Flink's
StreamGroupedReduceOperator.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

import pyarrow as pa

from snapline.dataflow.api.function_contexts import Row
from snapline.dataflow.api.functions import KeyedProcessFunction
from snapline.dataflow.api.state import ValueStateDescriptor

if TYPE_CHECKING:
    from snapline.dataflow.api.function_contexts import ProcessContext, RuntimeContext


class RunningReduce(KeyedProcessFunction):
    """Keeps one row for each key."""

    _keys: frozenset[str] = frozenset()  # functions of earlier releases, in jobs that go on, have none

    def __init__(self, function: Callable[[Row, Row], Row], schema: pa.Schema, keys: tuple[str, ...]) -> None:
        self._function = function
        self._keys = frozenset(keys)
        self._names = frozenset(schema.names)
        self._type = pa.struct(list(schema))

    def open(self, context: RuntimeContext) -> None:
        self._reduced = context.get_state(ValueStateDescriptor("reduced", self._type))
        if callable(opener := getattr(self._function, "open", None)):
            opener(context)

    def close(self) -> None:
        if callable(closer := getattr(self._function, "close", None)):
            closer()

    def process_element(self, row: Row, context: ProcessContext) -> Iterable[Row]:
        known = self._reduced.value()
        reduced = row if known is None else self._function(known, row)
        if not isinstance(reduced, dict) or not self._names.issuperset(reduced):
            raise TypeError(
                f"reduce: {getattr(self._function, '__name__', self._function)!s} gives a row with the columns "
                f"{', '.join(sorted(self._names))}, not {reduced!r}"
            )
        if lacking := sorted(self._keys.difference(reduced)):
            raise TypeError(f"reduce: a row without its key {', '.join(lacking)} is none of the key's: {reduced!r}")
        self._reduced.update(reduced)
        return (dict(reduced),)
