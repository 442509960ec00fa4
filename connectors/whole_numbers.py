"""Sizes, counts and times that a program gives to a source or sink: refused where they are given, by name."""

from __future__ import annotations

from collections.abc import Mapping
from numbers import Integral

from snapline.dataflow.errors import ConnectorError


def require_positive(described: str, **given: object) -> None:
    """Raise ConnectorError for the first of these that is not a whole number of at least 1.

    >>> require_positive("FileSink", compact_below=1, batch_rows="32")
    Traceback (most recent call last):
    snapline.dataflow.errors.ConnectorError: FileSink: batch_rows must be a whole number, got '32'
    """
    _require(described, 1, given)


def require_not_negative(described: str, **given: object) -> None:
    """Raise ConnectorError for the first of these that is not a whole number of at least 0.

    >>> require_not_negative("PostgresLookup shops", cache_keys=0, cache_ms="30 s")
    Traceback (most recent call last):
    snapline.dataflow.errors.ConnectorError: PostgresLookup shops: cache_ms must be a whole number, got '30 s'
    """
    _require(described, 0, given)


def _require(described: str, least: int, given: Mapping[str, object]) -> None:
    for name, number in given.items():
        if isinstance(number, bool) or not isinstance(number, Integral):
            raise ConnectorError(f"{described}: {name} must be a whole number, got {number!r}")
        if number < least:
            raise ConnectorError(f"{described}: {name} must be at least {least}, got {number}")
