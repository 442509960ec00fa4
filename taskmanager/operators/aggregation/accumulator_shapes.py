"""Which accumulators the subtasks of an operator have, in its snapshot: all of them have to go on with the same, also
those without a key.

A union list of operator state. Decides nothing about them: `AggregatePlan.start_from` does.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from snapline.dataflow.config import DROP_STATE_COLUMNS
from snapline.dataflow.errors import StateError
from snapline.dataflow.snapshot.handles import OperatorStateMode
from snapline.taskmanager.operators.aggregation.aggregate_plan import Shape
from snapline.taskmanager.operators.base.keyed_operator import KeyedOperator
from snapline.taskmanager.operators.base.operator_state import OperatorStateBackend

SHAPES_STATE = "accumulators"


def restored_shapes(operator_state: OperatorStateBackend) -> list[Shape]:
    """The accumulators that the subtasks of a snapshot had; none before they had any, and of older snapshots. What a
    subtask had that ended before something was dropped counts for nothing."""
    stored = operator_state.list_state(SHAPES_STATE, OperatorStateMode.UNION).get()
    found: dict[str, Shape] = {}
    for name, *aggregates in stored:
        known = found.get(name, Shape(name, tuple(aggregates)))
        found[name] = Shape(name, tuple(function for function in known.aggregates if function in aggregates))
    return list(found.values())


def keep_shapes(operator_state: OperatorStateBackend, shapes: Sequence[Shape]) -> None:
    """Keep the shapes in operator state, where `restored_shapes` finds them."""
    stored = operator_state.list_state(SHAPES_STATE, OperatorStateMode.UNION)
    stored.update([[shape.name, *shape.aggregates] for shape in shapes])


class _GoesOn(Protocol):
    def start_from(self, known: Sequence[Shape], *, drop: bool) -> None: ...


def start_from(shapes: Sequence[Shape], plan: _GoesOn, operator: KeyedOperator) -> bool:
    """Have a plan go on with these, if there are any. StateError that names the operator and the column."""
    if shapes:
        try:
            plan.start_from(shapes, drop=operator.setting(DROP_STATE_COLUMNS))
        except StateError as error:
            raise StateError(f"operator {operator.context.operator_uid!r}: {error}") from None
    return bool(shapes)
