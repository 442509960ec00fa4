"""Messages of one poll as columns: the value by its format, and what Kafka knows of each message.

Decides the types of the metadata columns and what becomes of values that the format cannot read. They are grouped by
partition, so that one decoding serves all and each partition's rows are a slice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import methodcaller
from typing import Any

import numpy as np
import pyarrow as pa

from snapline.connectors.formats import BadValue, RowFormat
from snapline.dataflow.api.bad_rows import ON_ERROR, BadRow

METADATA_COLUMNS: dict[str, pa.DataType] = {
    "key": pa.binary(),
    "topic": pa.string(),
    "partition": pa.int32(),
    "offset": pa.int64(),
    "timestamp": pa.timestamp("ms"),
    "headers": pa.list_(pa.struct([("name", pa.string()), ("value", pa.binary())])),
}
BAD_COLUMNS = (pa.field("bad_value", pa.binary()), pa.field("bad_reason", pa.string()))
ON_ERROR_OF_KAFKA = (*ON_ERROR, "keep")
HEADERS_OF = methodcaller("headers")
"""Asked so, and once, because a call that Python has made fast does not look for the client's error: the list then has
a name that is no object, and touching it ends the process."""
NO_TIME = -1
"""What producers write that say no time."""
Place = tuple[str, int]
Headers = list[dict[str, Any]] | None
"""The headers of a message, as a column has them; None where it has none."""


@dataclass(frozen=True, slots=True)
class PartitionRows:
    """Rows of one partition, and the offset behind the last message that they come from."""

    place: Place
    batch: pa.RecordBatch
    next_offset: int
    bad: Sequence[BadRow] = ()
    """Values among them that are to leave aside."""


@dataclass(frozen=True, slots=True)
class BadMessage:
    """A value that is no row, where it is."""

    place: Place
    offset: int
    bad: BadValue


def by_partition(messages: Sequence[Any], topics: int) -> dict[Place, list[Any]]:
    """Messages of each partition, in order. `topics`: how many there are to tell apart."""
    if topics == 1:
        topic, numbers = messages[0].topic(), [message.partition() for message in messages]
        if numbers.count(numbers[0]) == len(numbers):
            return {(topic, numbers[0]): list(messages)}
        by_number: dict[int, list[Any]] = {number: [] for number in set(numbers)}
        for number, message in zip(numbers, messages, strict=True):
            by_number[number].append(message)
        return {(topic, number): found for number, found in by_number.items()}
    found: dict[Place, list[Any]] = {}
    for message in messages:
        found.setdefault((message.topic(), message.partition()), []).append(message)
    return found


def partition_rows(
    grouped: Mapping[Place, Sequence[Any]], row_format: RowFormat, metadata: Mapping[str, str], on_error: str
) -> tuple[list[PartitionRows], list[BadMessage]]:
    """The rows of each partition in order, and the messages that are none. With `keep` these are rows too, with `drop`
    and `side_output` they are not, and with `fail` the caller raises. One decoding serves all partitions."""
    messages = [message for group in grouped.values() for message in group]
    values = [message.value() for message in messages]
    decoded, bad = row_format.decode(values)
    headers, unreadable = _headers(messages) if "headers" in metadata else ([], [])
    bad = sorted({row.index: row for row in (*unreadable, *bad)}.values(), key=lambda row: row.index)
    columns = [*decoded.columns, *(_column(name, messages, headers) for name in metadata)]
    names = [*decoded.schema.names, *metadata.values()]
    if on_error == "keep":
        reasons: list[str | None] = [None] * len(values)
        raw: list[bytes | None] = [None] * len(values)
        for row in bad:
            reasons[row.index], raw[row.index] = row.reason, values[row.index]
        columns += [pa.array(raw, pa.binary()), pa.array(reasons, pa.string())]
        names += [field.name for field in BAD_COLUMNS]
    batch = pa.RecordBatch.from_arrays(columns, names=names)
    keep = np.ones(len(values), bool)
    if on_error in {"drop", "side_output"}:
        keep[[row.index for row in bad]] = False
    aside: dict[Place, list[BadRow]] = {}
    if on_error == "side_output":
        for row in bad:
            message = messages[row.index]
            topic, partition = message.topic(), message.partition()
            one = BadRow(f"{topic}-{partition}", message.offset(), values[row.index], row.reason)
            aside.setdefault((topic, partition), []).append(one)
    found = []
    end = 0
    for place, group in grouped.items():
        start, end = end, end + len(group)
        rows = batch.slice(start, end - start)
        if not keep[start:end].all():
            rows = rows.filter(pa.array(keep[start:end]))
        found.append(PartitionRows(place, rows, group[-1].offset() + 1, aside.get(place, ())))
    places = [(messages[row.index].topic(), messages[row.index].partition()) for row in bad]
    return found, [BadMessage(place, messages[row.index].offset(), row) for place, row in zip(places, bad, strict=True)]


def _headers(messages: Sequence[Any]) -> tuple[list[Headers], list[BadValue]]:
    """The headers of each message, and the messages whose headers the client cannot read."""
    found: list[Headers] = []
    unreadable = []
    for index, message in enumerate(messages):
        try:
            headers = HEADERS_OF(message)
        except SystemError:  # what the client makes of a name that is not UTF-8
            headers = None
            unreadable.append(BadValue(index, "a name among its headers is not UTF-8"))
        found.append(None if headers is None else [{"name": name, "value": value} for name, value in headers])
    return found, unreadable


def _column(name: str, messages: Sequence[Any], headers: Sequence[Headers]) -> pa.Array:
    kind = METADATA_COLUMNS[name]
    match name:
        case "key":
            found = [message.key() for message in messages]
        case "topic":
            found = [message.topic() for message in messages]
        case "partition":
            found = [message.partition() for message in messages]
        case "offset":
            found = [message.offset() for message in messages]
        case "timestamp":
            times = [message.timestamp() for message in messages]
            found = [time_ms if known and time_ms != NO_TIME else None for known, time_ms in times]
        case _:
            found = list(headers)
    return pa.array(found, kind)
