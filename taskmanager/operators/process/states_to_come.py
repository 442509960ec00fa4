"""Keyed states that a function asks for in `open` before the types of the key are known.

Where nothing was restored, a row has to come before there is a backend. A function that has work before that (rules
that are broadcast to it, a checkpoint) is opened all the same: what it asks for stands for the state until that comes.
There is nothing like it in Flink, whose jobs know the types of their keys.
"""

from __future__ import annotations

from functools import partialmethod
from typing import Any

from snapline.dataflow.api.state import StateDescriptor
from snapline.taskmanager.operators.base.function_operator import FunctionRuntimeContext
from snapline.taskmanager.operators.base.operator_contract import OperatorContext
from snapline.taskmanager.state.batch_scope import BatchScope
from snapline.taskmanager.state.keyed_backend import KeyedStateBackend


class StateToCome:
    """A keyed state that was asked for before the types of the key were known."""

    def __init__(self, method: str, descriptor: StateDescriptor) -> None:
        """`method`: of the backend, which gives the state."""
        self._method, self._descriptor = method, descriptor
        self.state: Any = None

    def come(self, backend: KeyedStateBackend) -> None:
        """Be the state of this backend from now on."""
        self.state = getattr(backend, self._method)(self._descriptor)

    def __getattr__(self, name: str) -> Any:
        if self.state is None:
            BatchScope().check_open(self._descriptor.name)
        return getattr(self.state, name)


class ContextBeforeKeys(FunctionRuntimeContext):
    """A RuntimeContext whose keyed states are still to come."""

    def __init__(self, context: OperatorContext) -> None:
        super().__init__(context)
        self.to_come: list[StateToCome] = []

    def _await(self, method: str, descriptor: StateDescriptor) -> Any:
        self.to_come.append(StateToCome(method, descriptor))
        return self.to_come[-1]

    get_state = partialmethod(_await, "get_state")
    get_list_state = partialmethod(_await, "get_list_state")
    get_map_state = partialmethod(_await, "get_map_state")
    get_reducing_state = partialmethod(_await, "get_reducing_state")
    get_aggregating_state = partialmethod(_await, "get_aggregating_state")
