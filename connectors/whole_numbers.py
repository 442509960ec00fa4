"""Sizes, counts and times that a program gives to a source or sink: refused where they are given, by name."""

from __future__ import annotations

from numbers import Integral

from snapline.dataflow.errors import ConnectorError


def require_positive(described: str, **given: object) -> None:
    """Raise ConnectorError for the first of these that is not a whole number of at least 1.

    >>> require_positive("FileSink", compact_below=1, batch_rows="32")
    Traceback (most recent call last):
    snapline.dataflow.errors.ConnectorError: FileSink: batch_rows must be a whole number, got '32'
    """
    for name, number in given.items():
        if isinstance(number, bool) or not isinstance(number, Integral):
            raise ConnectorError(f"{described}: {name} must be a whole number, got {number!r}")
        if number < 1:
            raise ConnectorError(f"{described}: {name} must be at least 1, got {number}")
