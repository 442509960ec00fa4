"""An exception inside an operator, with whose it is and where in the input it happened.

Decides nothing about restarts. The innermost operator that sees an exception wraps it, so that a failure in the middle
of a chain is not blamed on its head. Row-wise operators add the row. Mirrors Flink's
ExceptionInChainedOperatorException.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from hashlib import blake2b
from operator import length_hint
from typing import Any

from snapline.runtime.cores.machine import InvariantViolation


def _said(cause: BaseException) -> str:
    try:
        return repr(cause)
    except KeyboardInterrupt:
        raise
    except BaseException:
        return type(cause).__name__


class OperatorFailure(Exception):
    """`__cause__` is what was raised."""

    def __init__(self, operator_uid: str, operator_name: str, activity: str, cause: BaseException) -> None:
        super().__init__(f"operator {operator_name!r} (uid {operator_uid!r}) failed in {activity}: {_said(cause)}")
        self.operator_uid = operator_uid
        self.operator_name = operator_name
        self.activity = activity
        self.cause = cause


class RowFailure(Exception):
    """A row-wise function raised. `__cause__` is what it raised."""

    def __init__(self, row_index: int, cause: BaseException, digest: str = "") -> None:
        super().__init__(f"row {row_index} of the batch: {_said(cause)}")
        self.row_index = row_index
        self.cause = cause
        self.digest = digest
        """The digest of what the function was given, by which the row is known again after a restart."""


def is_of_operator(error: BaseException) -> bool:
    """Whether an exception fails the operator that it comes out of, by name. What is no Exception does as well, such as
    that of sys.exit(), the panic of a library in Rust and the timeout of gevent; but for Ctrl-C, which ends a local
    run, and what the engine ends its own processes with."""
    if isinstance(error, Exception):
        return not isinstance(error, (OperatorFailure, InvariantViolation))
    return not isinstance(error, KeyboardInterrupt) and not type(error).__module__.startswith("snapline.")


def failed_row(index: int, row: Any, cause: BaseException) -> RowFailure:
    """The failure of a function at this row."""
    try:
        said = repr(row)
    except Exception:
        said = ""
    return RowFailure(index, cause, blake2b(said.encode(errors="replace"), digest_size=8).hexdigest() if said else "")


def failed_read(rows: Sequence[Any], iterator: Iterator[Any], cause: BaseException) -> RowFailure:
    """The failure of a function at the item that was last taken from `iterator`, an iterator over the list `rows`."""
    index = len(rows) - length_hint(iterator) - 1
    return failed_row(index, rows[index], cause)
