"""Operator (not keyed) state of one operator: named lists of elements that are redistributed one by one.

Decides how elements become bytes (a named serializer of `snapline.dataflow.api.state`) and that a name keeps its mode
and serializer for the life of the operator. It does not know who redistributes. Mirrors Flink's
DefaultOperatorStateBackend and PartitionableListState.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from snapline.dataflow.api.function_contexts import OperatorListState
from snapline.dataflow.api.state import serializer_named
from snapline.dataflow.errors import JobDefinitionError, StateError
from snapline.dataflow.snapshot.handles import UNION_STATES_OF_THE_ENGINE, OperatorStateMode
from snapline.taskmanager.operators.base.operator_contract import OperatorListSnapshot


class ListStateOfOperator:
    """One named list (OperatorListState). Elements are serialised when they enter, so that later changes to an object
    do not leak into a snapshot."""

    def __init__(self, name: str, mode: OperatorStateMode, serializer: str, restored: Sequence[bytes]) -> None:
        self.name = name
        self.mode = mode
        self.serializer = serializer
        self._named = serializer_named(serializer)
        self._elements: list[bytes] = list(restored)

    def get(self) -> list[Any]:
        """All elements that this subtask holds."""
        loads = self._named.loads
        try:
            return [loads(element) for element in self._elements]
        except Exception as error:
            raise StateError(
                f"list state {self.name!r}: serializer {self.serializer!r} cannot read what is stored: {error!r}"
            ) from error

    def update(self, values: Sequence[Any]) -> None:
        """Replace all elements of the list by these."""
        self._elements = [self._dump(value) for value in values]

    def add(self, value: Any) -> None:
        """Append one element to the list."""
        self._elements.append(self._dump(value))

    def clear(self) -> None:
        """Remove all elements from the list."""
        self._elements = []

    def freeze(self) -> OperatorListSnapshot:
        """The list as it is now."""
        return OperatorListSnapshot(self.name, self.mode, tuple(self._elements))

    def _dump(self, value: Any) -> bytes:
        try:
            data: Any = self._named.dumps(value)
            if not isinstance(data, bytes):
                raise TypeError(f"its dumps returned {data!r} and not bytes")
            return data
        except Exception as error:
            raise StateError(
                f"list state {self.name!r}: {value!r} cannot be written by the serializer {self.serializer!r} ({error}): use "
                "another serializer, or a value that it can write"
            ) from error


class OperatorStateBackend:
    """All list states of one operator (OperatorStateStore)."""

    def __init__(
        self,
        restored: Mapping[str, tuple[bytes, ...]] | None = None,
        kept_modes: Mapping[str, OperatorStateMode] = MappingProxyType({}),
    ) -> None:
        """`kept_modes`: restored lists that are part of each snapshot, even if they are not asked for."""
        self._restored: dict[str, tuple[bytes, ...]] = dict(restored or {})
        self._kept_modes = kept_modes
        self._states: dict[str, ListStateOfOperator] = {}

    def get_list_state(self, name: str, serializer: str = "json") -> OperatorListState:
        """Split evenly over the subtasks on a rescale."""
        return self._of_a_function(name, OperatorStateMode.SPLIT_DISTRIBUTE, serializer)

    def get_union_list_state(self, name: str, serializer: str = "json") -> OperatorListState:
        """Every subtask gets all elements on restore."""
        return self._of_a_function(name, OperatorStateMode.UNION, serializer)

    def list_state(self, name: str, mode: OperatorStateMode, serializer: str = "json") -> ListStateOfOperator:
        """The state of this name, with what was restored for it. StateError when it was declared otherwise before."""
        state = self._states.get(name)
        stored = self._kept_modes.get(name, mode)
        if stored is not mode:
            raise StateError(
                f"list state {name!r} is {stored.value} in the snapshot, and is now asked for as {mode.value}, so that elements "
                "would be lost or come more than once: ask for it as before, or use another name"
            )
        if state is None:
            state = ListStateOfOperator(name, mode, serializer, self._restored.pop(name, ()))
            self._states[name] = state
        elif (state.mode, state.serializer) != (mode, serializer):
            raise StateError(
                f"list state {name!r} was declared as {state.mode.value} with serializer {state.serializer!r} before, and is "
                f"now asked for as {mode.value} with {serializer!r}: use one declaration, or another name"
            )
        return state

    def _of_a_function(self, name: str, mode: OperatorStateMode, serializer: str) -> ListStateOfOperator:
        if name in UNION_STATES_OF_THE_ENGINE:
            raise JobDefinitionError(  # no restart mends it
                f"list state {name!r} is a name under which operators keep something of their own: use another name"
            )
        return self.list_state(name, mode, serializer)

    def snapshot(self) -> tuple[OperatorListSnapshot, ...]:
        """All lists as they are now, in the order of their declaration, and behind them those that are kept."""
        kept = (
            OperatorListSnapshot(name, self._kept_modes[name], elements)
            for name, elements in self._restored.items()
            if elements and name in self._kept_modes
        )
        return (*(state.freeze() for state in self._states.values()), *kept)
