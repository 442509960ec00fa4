"""What the methods of a source or sink return, looked at where they return it: a wrong kind is said with the method."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from snapline.dataflow.api.connector_api import SourceSplit
from snapline.dataflow.errors import ConnectorError

SHOWN_LETTERS = 80


def answer(value: Any, kind: type[Any], of: object, method: str) -> Any:
    """Return the value. Raises ConnectorError unless it is of this kind."""
    if isinstance(value, kind):
        return value
    raise ConnectorError(
        f"{type(of).__name__}.{method} must return a {kind.__name__}, not {repr(value)[:SHOWN_LETTERS]}"
    )


def answers(values: Any, kind: type[Any], of: object, method: str) -> list[Any]:
    """Return the values. Raises ConnectorError unless all of them are of this kind."""
    if isinstance(values, (str, bytes, Mapping)) or not isinstance(values, Iterable):
        raise ConnectorError(
            f"{type(of).__name__}.{method} must return a list of {kind.__name__}, not {repr(values)[:SHOWN_LETTERS]}"
        )
    given = list(values)
    for value in given:  # ten thousand splits at each checkpoint
        if not isinstance(value, kind):
            answer(value, kind, of, f"{method}, in its list,")
    return given


def splits_of(values: Any, of: object, method: str, waiting: Iterable[SourceSplit] = ()) -> list[SourceSplit]:
    """Return new splits. Raises ConnectorError unless each has an id of its own, also beside those that wait: what was
    read of a split is known by its id."""
    splits = answers(values, SourceSplit, of, method)
    seen = {split.split_id for split in waiting} if splits else set()
    for split in splits:
        split_id: object = split.split_id
        if not isinstance(split_id, str):
            raise ConnectorError(f"{type(of).__name__}.{method}: the id of a split must be a text, not {split_id!r}")
        if split_id in seen:
            raise ConnectorError(
                f"{type(of).__name__}.{method}: two splits have the id {split_id!r}; give each its own"
            )
        seen.add(split_id)
    return splits
