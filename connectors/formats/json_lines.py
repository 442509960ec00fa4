"""JSON: one object a row. Read by pyarrow, whole batches at once; written column by column.

Decides that a value must be one object and nothing else, that fields which the schema does not name are left out, that
missing ones are null, and how types are written: times and durations in ISO 8601, times with a zone in UTC; what is no
number in JSON (not-a-number, infinity) as null, decimals as strings, maps as objects, bytes as strings in Base64 (which
reads back as that string). What Arrow does not read from JSON is read in other shapes first (`json_shapes`).
"""

from __future__ import annotations

import base64
import codecs
import datetime as dt
import json
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

from snapline.connectors.formats.json_shapes import from_shape, has_maps, shape_of, with_pairs
from snapline.connectors.formats.row_format import (
    RowFormat,
    has_narrow_floats,
    require_digits,
    require_narrow_floats,
    require_years,
)
from snapline.dataflow.errors import ConnectorError

NEW_LINE, OPEN, CLOSE = b"\n{}"
ASCII_END = 128
JSON_TEXT = re.compile(rb'"(?:[^"\\]|\\.)*"', re.DOTALL)
"""A string, with what is written in it."""
CONTROL_CHARACTERS = r"[\x00-\x1f]"
TIMESPECS = {"s": "seconds", "ms": "milliseconds"}
"""Digits of a time within another value: more than its unit has are refused when they are read."""


class JsonFormat(RowFormat):
    """One JSON object a row.

    >>> json = sl_connectors.JsonFormat(pa.schema([("n", pa.int64())]))
    >>> json.decode_all([b'{"n": 1}', b'{"n": 2, "m": 3}']).to_pydict(), json.schema.names
    ({'n': [1, 2]}, ['n'])
    >>> len(json.encode(pa.RecordBatch.from_pydict({"n": [1]})))
    1
    """

    def __init__(self, schema: pa.Schema) -> None:
        """`schema`: columns that are read and written; other fields of an object are not looked at."""
        self._schema = schema.remove_metadata()
        self._shapes, self._shapes_of_numbers = (
            pa.schema([field.with_type(shape_of(field.type, days_are_numbers=numbers)) for field in self._schema])
            for numbers in (False, True)
        )
        """What Arrow's reader is asked for, first and then."""
        self._maps = pa.schema([field for field in self._schema if has_maps(field.type)])
        self._has_narrow_floats = any(has_narrow_floats(kind) for kind in self._schema.types)

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        """Be a format that was pickled, perhaps by an older version: what is made of the schema is made anew."""
        self.__dict__.update(state)
        JsonFormat.__init__(self, self._schema)

    @property
    def schema(self) -> pa.Schema:
        return self._schema

    def decode_all(self, values: Sequence[bytes]) -> pa.RecordBatch:
        text = b"\n".join(values)
        if not _is_object_a_line(np.frombuffer(text, np.uint8), len(values)):
            # Between tokens a line break is a space, and inside a string it is written as \n.
            if any(b"\n" in text for value in values if b"\n" in value.strip() for text in JSON_TEXT.findall(value)):
                raise ValueError("a string of the JSON object has a line break in it, which is written as \\n")
            values = [value.strip().replace(b"\n", b" ") for value in values]
            if not all(value[:1] == b"{" and value[-1:] == b"}" for value in values):
                raise ValueError("not a JSON object")
            text = b"\n".join(values)
        return self._read(text, len(values))

    def read_text(self, text: bytes | pa.Buffer, count: int) -> pa.RecordBatch:
        r"""Decode a text of `count` objects, one a line. Raises ValueError (pa.ArrowInvalid is one) when a line is
        none.

        >>> json = sl_connectors.JsonFormat(pa.schema([("n", pa.int64())]))
        >>> json.read_text(b'{"n": 1}\n{"n": 2}\n', 2).to_pydict()
        {'n': [1, 2]}
        """
        letters = np.frombuffer(text, np.uint8)
        letters = letters[:-1] if len(letters) and letters[-1] == NEW_LINE else letters
        if not _is_object_a_line(letters, count):
            raise ValueError("not a JSON object")
        return self._read(text, count)

    def _read(self, text: bytes | pa.Buffer, count: int) -> pa.RecordBatch:
        if np.frombuffer(text, np.uint8).max(initial=0) >= ASCII_END:
            codecs.utf_8_decode(text, "strict", True)  # raises; Arrow would make texts of any bytes
        try:
            return self._read_valid(text, count)
        except pa.ArrowNotImplementedError as error:
            raise ConnectorError(
                f"JsonFormat: {str(error).splitlines()[0]}; leave such columns out of the schema, or read them as other types"
            ) from error

    def _read_valid(self, text: bytes | pa.Buffer, count: int) -> pa.RecordBatch:
        """Read a text that is UTF-8. Raises ArrowNotImplementedError for a type that JSON is not read as."""
        pairs: bytes | None = None

        def read_as(schema: pa.Schema) -> pa.Table:
            nonlocal pairs
            names = self._maps.names
            table = _read_objects(text, pa.schema([field for field in schema if field.name not in names]))
            if not names:
                return table
            if pairs is None:  # behind the look at the text, which says what is no object
                lines = bytes(text).strip(b"\n").split(b"\n")
                pairs = b"\n".join(with_pairs(line, self._maps) for line in lines)
            of_maps = _read_objects(pairs, pa.schema([schema.field(name) for name in names]))
            for name in names:
                table = table.append_column(name, of_maps.column(name))
            return table.select(schema.names)

        try:
            table = read_as(self._shapes)
        except pa.ArrowInvalid:
            if self._shapes == self._shapes_of_numbers:
                raise
            table = read_as(self._shapes_of_numbers)  # days may be numbers
        if table.num_rows != count:
            raise ValueError("more than one JSON object in a row")
        if self._has_narrow_floats:
            require_narrow_floats(table, read_as)
        batch = table.combine_chunks().to_batches()[0]
        if not self._schema.names:
            return pa.RecordBatch.from_struct_array(pa.nulls(count, pa.struct([])))
        columns = [from_shape(column, kind) for column, kind in zip(batch.columns, self._schema.types, strict=True)]
        found = pa.RecordBatch.from_arrays(columns, self._schema.names).cast(self._schema)
        require_digits(found)
        return found

    def encode(self, batch: pa.RecordBatch) -> Sequence[bytes | None]:
        names = self._schema.names
        require_years(batch.select(names), "JsonFormat")
        parts: list[Any] = []
        for number, name in enumerate(names):
            label = ("{" if number == 0 else ", ") + json.dumps(name) + ": "
            column = batch.column(name)
            try:
                parts += [pa.scalar(label), _texts(column)]
            except (OverflowError, ValueError) as error:
                raise ConnectorError(
                    f"JsonFormat: column {name!r} is {column.type}, of which a value has no text in JSON ({error}); cast it before the sink"
                ) from error
        lines = pc.binary_join_element_wise(*parts, pa.scalar("}"), pa.scalar(""))
        return lines.cast(pa.binary()).to_pylist()


def _read_objects(text: bytes | pa.Buffer, schema: pa.Schema) -> pa.Table:
    """The objects of the text with the columns of the schema."""
    return pj.read_json(
        pa.BufferReader(text),
        read_options=pj.ReadOptions(use_threads=False, block_size=len(text) + 1),
        parse_options=pj.ParseOptions(explicit_schema=schema, unexpected_field_behavior="ignore"),
    ).select(schema.names)


def _is_object_a_line(letters: npt.NDArray[np.uint8], count: int) -> bool:
    """Whether the text has so many lines, each of which begins and ends as an object does. What is read as so many
    objects then has one in each line: an object cannot go on in a line that begins with a brace, behind one."""
    breaks = np.flatnonzero(letters == NEW_LINE)
    if len(breaks) != count - 1 or not len(letters) or letters[0] != OPEN or letters[-1] != CLOSE:
        return False
    return bool(np.all(letters[breaks + 1] == OPEN) and np.all(letters[breaks - 1] == CLOSE))


def _texts(column: pa.Array) -> pa.Array:
    """Return each value of the column as JSON text."""
    kind = column.type
    if pa.types.is_dictionary(kind):
        return _texts(column.cast(kind.value_type))
    if pa.types.is_integer(kind):
        texts = column.cast(pa.string())
    elif pa.types.is_boolean(kind):
        texts = pc.if_else(column, "true", "false")
    elif pa.types.is_floating(kind):
        finite = pc.is_finite(column)
        texts = pc.if_else(finite, column.cast(pa.float64()).cast(pa.string()), "null")
    elif pa.types.is_string(kind) and not pc.any(pc.match_substring_regex(column, CONTROL_CHARACTERS)).as_py():
        escaped = pc.replace_substring(pc.replace_substring(column, "\\", "\\\\"), '"', '\\"')
        texts = pc.binary_join_element_wise('"', escaped, '"', "")
    elif pa.types.is_timestamp(kind):
        # Z says UTC, and strftime the hour of the column's zone.
        column = column if kind.tz is None else column.cast(pa.timestamp(kind.unit, "UTC"))
        texts = pc.strftime(column, format="%Y-%m-%dT%H:%M:%S" if kind.tz is None else "%Y-%m-%dT%H:%M:%SZ")
        texts = pc.binary_join_element_wise('"', texts, '"', "")
    elif kind == pa.time64("ns"):  # Python's times of day end at microseconds
        texts = pc.binary_join_element_wise('"', column.cast(pa.string()), '"', "")
    else:
        texts = pa.array([json.dumps(_plain(value, kind)) for value in column.to_pylist()], pa.string())
    return pc.fill_null(texts, "null")


def _plain(value: Any, kind: pa.DataType) -> Any:
    """Return what JSON has for a value of this type."""
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if pa.types.is_struct(kind):
        return {field.name: _plain(value.get(field.name), field.type) for field in kind}
    if pa.types.is_map(kind):
        items = {_key_text(key, kind.key_type): _plain(item, kind.item_type) for key, item in value}
        if len(items) != len(value):
            raise ConnectorError(
                "JsonFormat: a map has two keys that are one in an object of JSON, and one of their values would be lost; make them differ before"
            )
        return items
    if pa.types.is_interval(kind):
        raise ValueError("months, days and nanoseconds are no one number")
    if isinstance(value, (list, tuple)):
        return [_plain(item, kind.value_type) for item in value]
    if isinstance(value, dt.datetime):
        digits = TIMESPECS.get(kind.unit, "auto")
        return (value if value.tzinfo is None else value.astimezone(dt.UTC)).isoformat(timespec=digits)
    return _duration_text(value) if isinstance(value, dt.timedelta) else str(value)


def _duration_text(value: Any) -> str:
    """Return a duration in seconds, as ISO 8601 and Polars write it; one of nanoseconds is of pandas."""
    nanoseconds = value.value if hasattr(value, "value") else value // dt.timedelta(microseconds=1) * 1000
    seconds, rest = divmod(abs(nanoseconds), 10**9)
    fraction = f".{rest:09d}".rstrip("0") if rest else ""
    return f"{'-' if nanoseconds < 0 else ''}PT{seconds}{fraction}S" if nanoseconds else "P0D"


def _key_text(key: Any, kind: pa.DataType) -> str:
    """Return the key of a map as an object has it: as the same value is written elsewhere, and without its quotes."""
    said = key if isinstance(key, float) else _plain(key, kind)
    return said if isinstance(said, str) else json.dumps(said)
