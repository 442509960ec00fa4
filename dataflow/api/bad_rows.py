"""Rows that cannot be read, or that a function raises for: what may become of them, and how they look set aside.

Decides the three ways (`on_error`), which are the same for sources and for functions over rows: fail the job, drop and
count, or hand on in a stream of their own, which moves with the positions of the source and so has each bad row once.
Also what is no fault of a row: a service that is away and an error in the use of Snapline fail the job, whatever
`on_error` says. Flink leaves this to each format (`ignore-parse-errors`) and to the user's function.
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import pyarrow as pa

from snapline.dataflow.errors import SnaplineError
from snapline.dataflow.failures import message_of

OnError = Literal["fail", "drop", "side_output"]
ON_ERROR: tuple[str, ...] = ("fail", "drop", "side_output")
BAD_ROWS_TAG = "snapline.bad-rows"
"""Side output of an operator whose bad rows are set aside."""
BAD_ROWS_METRIC = "bad_rows"
BAD_ROWS_SCHEMA = pa.schema(
    [
        ("operator", pa.string()), ("split", pa.string()), ("position", pa.int64()), ("value", pa.binary()),
        ("error", pa.string()),
    ]
)  # fmt: skip
NOT_OF_THE_ROW = (OSError, MemoryError, SnaplineError)
"""What a function raises because of something else than its row."""
ERROR_LENGTH_MAX = 1_000


@dataclass(frozen=True, slots=True)
class BadRow:
    """A row that a source cannot read, with its place; a reader of yours hands it out in `Polled.bad_rows`.

    >>> sl.BadRow("orders.csv", 12, b"one,two", "no number: 'one'").position
    12
    """

    split: str | None
    """Where it was read: the path of a file, a topic and its partition. None: a function raised for it."""
    position: int | None
    """The number of the line, the offset."""
    value: bytes | None
    """The row as it came, undecoded."""
    error: str
    """Why it is no row, in one line."""


def bad_rows_batch(operator_uid: str, rows: Sequence[BadRow]) -> pa.RecordBatch:
    """Return the rows as they leave by the side output of this operator."""
    columns = [
        pa.array([operator_uid] * len(rows), pa.string()),
        pa.array([row.split for row in rows], pa.string()),
        pa.array([row.position for row in rows], pa.int64()),
        pa.array([row.value for row in rows], pa.binary()),
        pa.array([row.error for row in rows], pa.string()),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=BAD_ROWS_SCHEMA)


def refused_row(row: Mapping[str, Any], error: BaseException) -> BadRow:
    """Return a row that a function raised for. Its value is a JSON object: times in ISO 8601, bytes in Base64, what has
    no other form as Python prints it."""
    text = json.dumps(_without_nan(row), default=_as_text, ensure_ascii=False)
    reason = " ".join(f"{type(error).__name__}: {message_of(error)}".split())[:ERROR_LENGTH_MAX]
    # What Python's text may hold and UTF-8 may not is replaced, so that a bad row never fails the job after all.
    return BadRow(None, None, text.encode(errors="replace"), reason.encode(errors="replace").decode())


def why_wrong(on_error: object) -> str:
    """What is wrong with the word that was given for `on_error`; empty: nothing."""
    return "" if on_error in ON_ERROR else f"on_error is one of {', '.join(ON_ERROR)}, not {on_error!r}"


def _without_nan(value: Any) -> Any:
    """What Python's json would write as NaN and Infinity, which are no JSON, as text."""
    if isinstance(value, Mapping):
        return {name: _without_nan(one) for name, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_without_nan(one) for one in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _as_text(value: Any) -> str:
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    isoformat = getattr(value, "isoformat", None)
    return str(isoformat() if callable(isoformat) else value)
