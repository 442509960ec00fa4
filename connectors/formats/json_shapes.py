"""What Arrow's reader of JSON is asked for in place of types that it does not read.

Days, times of day and categories are read as texts, maps as lists of pairs, large lists as lists.

Decides that a map is an object whose fields may have any names, that its keys are texts in the key's type, and that the
last of two equal names counts, as in Flink's JSON format and in every reader of objects. It knows no columns and no
lines.
"""

from __future__ import annotations

import contextlib
import json
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

KEY, ITEM = "k", "v"
"""The fields of a pair."""


def shape_of(kind: pa.DataType, *, days_are_numbers: bool = False) -> pa.DataType:
    """The type in which Arrow's reader gets what is written for this one.

    >>> from snapline.connectors.formats.json_shapes import shape_of
    >>> shape_of(pa.list_(pa.date32())).value_type
    DataType(string)
    """
    types = pa.types

    def inner(field: pa.Field) -> pa.Field:
        return field.with_type(shape_of(field.type, days_are_numbers=days_are_numbers))

    if types.is_time(kind) or (types.is_date(kind) and not days_are_numbers):
        return pa.string()
    if types.is_dictionary(kind):
        return shape_of(kind.value_type, days_are_numbers=days_are_numbers)
    if types.is_struct(kind):
        return pa.struct([inner(field) for field in kind])
    if types.is_map(kind):
        return pa.list_(pa.struct([pa.field(KEY, pa.string()), inner(kind.item_field).with_name(ITEM)]))
    if types.is_list(kind) or types.is_large_list(kind):
        return pa.list_(inner(kind.value_field))
    return pa.string() if types.is_large_string(kind) else kind


def has_maps(kind: pa.DataType) -> bool:
    """Whether a type is a map, or has one inside.

    >>> from snapline.connectors.formats.json_shapes import has_maps
    >>> has_maps(pa.list_(pa.map_(pa.string(), pa.int64()))), has_maps(pa.int64())
    (True, False)
    """
    return bool(pa.types.is_map(kind)) or any(has_maps(kind.field(place).type) for place in range(kind.num_fields))


def with_pairs(line: bytes, columns: pa.Schema) -> bytes:
    r"""Return an object of JSON with these columns alone, and a list of pairs for each map of theirs.

    Arrow has read the line without these columns, so it is an object. Raises ValueError when it is nested too deep, or
    has another value than an object for a map.

    >>> from snapline.connectors.formats.json_shapes import with_pairs
    >>> with_pairs(b'{"m": {"a": 1}, "n": 2}', pa.schema([("m", pa.map_(pa.string(), pa.int64()))]))
    b'{"m": [{"k": "a", "v": 1}]}'
    """
    try:
        row = json.loads(line, parse_float=Decimal)
        shaped = {field.name: _with_pairs(row[field.name], field.type) for field in columns if field.name in row}
        return json.dumps(shaped, default=float).encode()
    except RecursionError as error:
        raise ValueError("the JSON object is nested too deep") from error


def _with_pairs(value: Any, kind: pa.DataType) -> Any:
    """The value with pairs in place of maps; what is not of its type stays, and is refused by who reads it."""
    if isinstance(value, dict):
        if pa.types.is_map(kind):
            return [{KEY: key, ITEM: _with_pairs(item, kind.item_type)} for key, item in value.items()]
        if pa.types.is_struct(kind):
            return {field.name: _with_pairs(value[field.name], field.type) for field in kind if field.name in value}
    elif pa.types.is_map(kind) and value is not None:
        raise ValueError("a map is an object in JSON")
    elif isinstance(value, list) and (pa.types.is_list(kind) or pa.types.is_large_list(kind)):
        return [_with_pairs(item, kind.value_type) for item in value]
    elif isinstance(value, Decimal) and pa.types.is_decimal(kind):
        return str(value)
    return value


def from_shape(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """A column as Arrow's reader gave it in the type that it is to have. Raises ArrowInvalid for texts that have no
    value there, ArrowNotImplementedError for keys of a type for which no text stands.

    >>> from snapline.connectors.formats.json_shapes import from_shape
    >>> from_shape(pa.array(["23:59:59"]), pa.time32("s")).to_pylist()
    [datetime.time(23, 59, 59)]
    """
    types = pa.types
    if types.is_time(kind) and types.is_string(column.type):
        return _times_of_day(column, kind)
    if types.is_map(kind):
        pairs = column.values
        parts = [_keys(pairs.field(KEY), kind.key_type), from_shape(pairs.field(ITEM), kind.item_type)]
        inside = pa.StructArray.from_arrays(parts, fields=[kind.key_field, kind.item_field])
    elif types.is_list(kind) or types.is_large_list(kind):
        if types.is_large_list(kind):
            column = column.cast(pa.large_list(column.type.value_field))
        inside = from_shape(column.values, kind.value_type)
    elif types.is_struct(kind):
        parts = [from_shape(column.field(place), kind.field(place).type) for place in range(kind.num_fields)]
        return pa.Array.from_buffers(kind, len(column), column.buffers()[:1], column.null_count, children=parts)
    else:
        return column.cast(kind)
    return pa.Array.from_buffers(kind, len(column), column.buffers()[:2], column.null_count, children=[inside])


def _keys(names: pa.Array, kind: pa.DataType) -> pa.Array:
    if not pa.types.is_nested(kind):
        with contextlib.suppress(pa.ArrowNotImplementedError):
            return from_shape(names, kind)
    raise pa.ArrowNotImplementedError(f"JSON conversion to keys of {kind} is not supported")


def _times_of_day(texts: pa.Array, kind: pa.DataType) -> pa.Array:
    """Arrow has no cast from texts to times of day."""
    moments = pc.binary_join_element_wise("1970-01-01T", texts, "").cast(
        pa.timestamp("ns" if kind == pa.time64("ns") else "us")
    )
    return moments.cast(pa.timestamp(kind.unit)).cast(kind)
