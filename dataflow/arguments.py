"""What numbers a program may give: refused where they are given, in one line that says what would do.

Decides nothing else. Windows, joins, watermarks and operators ask here, so that text such as `"10 s"` does not travel
to a TaskManager before it is found to be no number.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from snapline.dataflow.config import parse_duration_ms
from snapline.dataflow.errors import InvalidArgument

MOST_MS = 253_402_300_799_999
"""From 1970 to the end of the year 9999: windows and their lateness are added to event times, in 64 bits."""


def check_whole(what: str, value: Any, least: int, most: int | None = None) -> None:
    """InvalidArgument unless the value is a whole number within the bounds.

    >>> from snapline.dataflow.arguments import check_whole
    >>> check_whole("parallelism", 2, 1)
    >>> check_whole("parallelism", "2", 1)
    Traceback (most recent call last):
    snapline.dataflow.errors.InvalidArgument: parallelism must be a whole number, at least 1, got '2'
    """
    bounds = f"at least {least}" if most is None else f"{least} to {most}"
    if not _is_whole(value) or value < least or (most is not None and value > most):
        raise InvalidArgument(f"{what} must be a whole number, {bounds}, got {value!r}")


def check_milliseconds(what: str, value: Any, *, least: int | None = 1) -> None:
    """InvalidArgument unless the value is a whole number of milliseconds, at least so many (None: of any sign), and at
    most `MOST_MS`.

    >>> from snapline.dataflow.arguments import check_milliseconds
    >>> check_milliseconds("a window's size", 10_000)
    >>> check_milliseconds("a window's size", "10 s")
    Traceback (most recent call last):
    snapline.dataflow.errors.InvalidArgument: a window's size is whole milliseconds, got '10 s': write 10000
    """
    if not _is_whole(value):
        meant = _meant_ms(value)
        raise InvalidArgument(f"{what} is whole milliseconds, got {value!r}{f': write {meant}' if meant else ''}")
    if least is not None and value < least:
        rule = "be positive" if least == 1 else f"be at least {least} ms" if least else "not be negative"
        raise InvalidArgument(f"{what} must {rule}, got {value} ms")
    if abs(value) > MOST_MS:
        raise InvalidArgument(f"{what} must be at most {MOST_MS} ms, which is 8,000 years, got {value} ms")


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _meant_ms(value: Any) -> int | None:
    if isinstance(value, timedelta):
        return round(value.total_seconds() * 1000)
    try:
        return parse_duration_ms(value) if isinstance(value, str) else None
    except ValueError:
        return None
