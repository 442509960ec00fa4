"""An exception inside an operator, with whose it is and where in the input it happened.

Decides nothing about restarts. The innermost operator that sees an exception wraps it, so that a failure in the middle
of a chain is not blamed on its head. Row-wise operators add the row. Mirrors Flink's
ExceptionInChainedOperatorException.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from operator import length_hint
from typing import Any


class OperatorFailure(Exception):
    """`__cause__` is what was raised."""

    def __init__(self, operator_uid: str, operator_name: str, activity: str, cause: BaseException) -> None:
        super().__init__(f"operator {operator_name!r} (uid {operator_uid!r}) failed in {activity}: {cause!r}")
        self.operator_uid = operator_uid
        self.operator_name = operator_name
        self.activity = activity
        self.cause = cause


class RowFailure(Exception):
    """A row-wise function raised. `__cause__` is what it raised."""

    def __init__(self, row_index: int, cause: BaseException) -> None:
        super().__init__(f"row {row_index} of the batch: {cause!r}")
        self.row_index = row_index
        self.cause = cause


def row_being_read(rows: Sequence[Any], iterator: Iterator[Any]) -> int:
    """Index of the item that was last taken from `iterator`, an iterator over the list `rows`."""
    return len(rows) - length_hint(iterator) - 1
