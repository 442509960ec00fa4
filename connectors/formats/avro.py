"""Avro: one datum a row, written with one schema that everybody knows, by fastavro (extra `avro`).

Decides how Avro's types are Arrow's. Fastavro makes Python dictionaries, so this format is several times slower than
JSON or raw bytes.
"""

from __future__ import annotations

import datetime as dt
import io
import json
import uuid
from collections import Counter
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from snapline.connectors.formats.avro_bounds import bound_decimals, check_schema
from snapline.connectors.formats.casts import cast_unchanged
from snapline.connectors.formats.row_format import RowFormat
from snapline.dataflow.errors import ConnectorError

PRIMITIVES = {
    "boolean": pa.bool_(), "int": pa.int32(), "long": pa.int64(), "float": pa.float32(), "double": pa.float64(),
    "bytes": pa.binary(), "string": pa.string(), "null": pa.null(),
}  # fmt: skip
DECIMAL_DIGITS = 38
LOGICAL = {
    ("long", "timestamp-millis"): pa.timestamp("ms", "UTC"), ("long", "timestamp-micros"): pa.timestamp("us", "UTC"),
    ("long", "local-timestamp-millis"): pa.timestamp("ms"), ("long", "local-timestamp-micros"): pa.timestamp("us"),
    ("int", "time-millis"): pa.time32("ms"), ("long", "time-micros"): pa.time64("us"), ("int", "date"): pa.date32(),
    ("string", "uuid"): pa.string(),
}  # fmt: skip
"""A logical type means nothing on another type, as Avro has it."""


class AvroFormat(RowFormat):
    """One Avro datum a row.

    >>> record = {"type": "record", "name": "N", "fields": [{"name": "n", "type": "long"}]}
    >>> avro = sl_connectors.AvroFormat(record)
    >>> avro.decode_all(avro.encode(pa.RecordBatch.from_pydict({"n": [1, 2]}))).to_pydict(), avro.schema.names
    ({'n': [1, 2]}, ['n'])
    """

    def __init__(self, schema: str | Mapping[str, Any]) -> None:
        """`schema`: Avro's, of a record, as JSON text or what it parses to. Raises ConnectorError when it is none, or
        has a type that has no column (a union of several types)."""
        try:
            import fastavro
        except ImportError as error:
            raise ConnectorError("AvroFormat needs fastavro: pip install 'snapline[avro]'") from error
        self._parsed: Any = None
        try:
            self.avro_schema: Mapping[str, Any] = json.loads(schema) if isinstance(schema, str) else schema
            if not isinstance(self.avro_schema, Mapping) or self.avro_schema.get("type") != "record":
                raise ConnectorError("AvroFormat: the schema must be that of a record")
            check_schema(self.parsed_schema())
            self._schema = pa.schema([_field(field) for field in self.avro_schema["fields"]])
            if twice := [name for name, count in Counter(self._schema.names).items() if count > 1]:
                raise ValueError(f"the field {twice[0]!r} is there twice")
        except KeyError as error:
            raise ConnectorError(f"AvroFormat: not an Avro schema: {error} is missing") from error
        except (ValueError, TypeError, AttributeError, RecursionError, fastavro.schema.SchemaParseException) as error:
            raise ConnectorError(f"AvroFormat: not an Avro schema: {error}") from error

    def __getstate__(self) -> dict[str, Any]:
        """Pickle the format without the schema that fastavro has parsed."""
        return {**self.__dict__, "_parsed": None}

    @property
    def schema(self) -> pa.Schema:
        return self._schema

    def decode_all(self, values: Sequence[bytes]) -> pa.RecordBatch:
        import fastavro

        bound_decimals()
        parsed = self.parsed_schema()
        data, end = io.BytesIO(b"".join(values)), 0
        rows: list[Any] = []
        for value in values:
            end += len(value)
            rows.append(fastavro.schemaless_reader(data, parsed, None))
            if data.tell() != end:
                raise ValueError(f"the Avro datum is {end - data.tell()} bytes shorter than the value")
        return self.batch_of(rows)

    def batch_of(self, records: Sequence[Mapping[str, Any]]) -> pa.RecordBatch:
        """Return what fastavro has read as a batch.

        >>> avro = sl_connectors.AvroFormat({"type": "record", "name": "N", "fields": [{"name": "n", "type": "int"}]})
        >>> avro.batch_of([{"n": 1}]).to_pydict()
        {'n': [1]}
        """
        columns = [_array([record[field.name] for record in records], field.type) for field in self._schema]
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)

    def records_of(self, rows: pa.RecordBatch | pa.Table) -> list[dict[str, Any]]:
        """Return rows as fastavro writes them. Raises ConnectorError for values that the schema's types do not hold.

        >>> avro = sl_connectors.AvroFormat({"type": "record", "name": "N", "fields": [{"name": "n", "type": "int"}]})
        >>> avro.records_of(pa.table({"n": ["1", "2"]}))
        Traceback (most recent call last):
        snapline.dataflow.errors.ConnectorError: AvroFormat: column 'n' is string, and int32 in the schema; cast it before
        """
        columns: list[Any] = []
        for field in self._schema:
            column = rows.column(field.name)
            try:
                fitting = _fitting(column, field.type)
            except pa.ArrowException as error:
                raise ConnectorError(
                    f"AvroFormat: a row does not fit the schema: column {field.name!r}: {str(error).splitlines()[0]}"
                ) from error
            if fitting is None:
                raise ConnectorError(
                    f"AvroFormat: column {field.name!r} is {column.type}, and {field.type} in the schema; cast it before"
                )
            columns.append(fitting)
        records: list[dict[str, Any]] = pa.table(columns, self._schema.names).to_pylist()
        for field in self._schema:
            if pa.types.is_nested(field.type):
                for record in records:
                    record[field.name] = _plain(record[field.name], field.type)
        return records

    def encode(self, batch: pa.RecordBatch) -> Sequence[bytes | None]:
        import fastavro

        parsed = self.parsed_schema()
        values: list[bytes | None] = []
        for row in self.records_of(batch):
            data = io.BytesIO()
            try:
                fastavro.schemaless_writer(data, parsed, row)
            except (ValueError, TypeError, OverflowError) as error:
                raise ConnectorError(f"AvroFormat: a row does not fit the schema: {error}") from error
            values.append(data.getvalue())
        return values

    def parsed_schema(self) -> Any:
        """Return the schema as fastavro reads and writes by it.

        >>> record = {"type": "record", "name": "N", "fields": [{"name": "n", "type": "long"}]}
        >>> sl_connectors.AvroFormat(record).parsed_schema()["fields"]
        [{'name': 'n', 'type': 'long'}]
        """
        if self._parsed is None:
            import fastavro

            parsed = fastavro.parse_schema(dict(self.avro_schema))
            _make_defaults_values(parsed)
            self._parsed = parsed
        return self._parsed


def _make_defaults_values(kind: Any) -> None:
    """Put values in the place of defaults in a parsed schema, which fastavro gives to rows as they are written there:
    bytes are texts in JSON, a letter each."""
    match kind:
        case {"type": "record", "fields": fields}:
            for field in fields:
                _make_defaults_values(field["type"])
                if "default" in field:
                    field["default"] = _default(field["default"], field["type"])
        case list():
            for each in kind:
                _make_defaults_values(each)
        case {"items": inner} | {"values": inner} | {"type": (dict() | list()) as inner}:
            _make_defaults_values(inner)


def _default(value: Any, kind: Any) -> Any:
    match kind:
        case list():
            fitting = (one for one in kind if (one == "null") == (value is None))
            return _default(value, next(fitting, "null"))
        case {"type": "bytes" | "fixed", "logicalType": "decimal"}:
            number = int.from_bytes(value.encode("latin-1"), "big", signed=True)
            return Decimal((int(number < 0), tuple(map(int, str(abs(number)))), -kind.get("scale", 0)))
        case "bytes" | {"type": "bytes" | "fixed"}:
            return value.encode("latin-1")
        case {"type": "record", "fields": fields}:
            known = {each["name"]: each["default"] for each in fields if "default" in each}
            given = {
                each["name"]: _default(value[each["name"]], each["type"]) for each in fields if each["name"] in value
            }
            return {**known, **given}
        case {"type": "array", "items": inner}:
            return [_default(each, inner) for each in value]
        case {"type": "map", "values": inner}:
            return {key: _default(each, inner) for key, each in value.items()}
        case {"type": (dict() | list()) as inner}:
            return _default(value, inner)
    return value


def _field(field: Mapping[str, Any]) -> pa.Field:
    kind, nullable = _type(field["type"], field["name"])
    return pa.field(field["name"], kind, nullable)


def _type(kind: Any, name: str) -> tuple[pa.DataType, bool]:
    """Arrow's type, and whether null is a value."""
    if isinstance(kind, list):
        others = [one for one in kind if one != "null"]
        if len(others) != 1:
            raise ConnectorError(f"AvroFormat: field {name!r} is a union of several types, which no column can be")
        return _type(others[0], name)[0], "null" in kind
    if isinstance(kind, str):
        if kind not in PRIMITIVES:
            raise ConnectorError(
                f"AvroFormat: field {name!r} has the named type {kind!r}; write it out where it is used"
            )
        return PRIMITIVES[kind], kind == "null"
    logical = kind.get("logicalType")
    if logical == "decimal" and kind["type"] in ("bytes", "fixed"):
        digits, scale = kind.get("precision"), kind.get("scale", 0)
        if not isinstance(digits, int) or not isinstance(scale, int) or not 1 <= digits <= DECIMAL_DIGITS:
            raise ConnectorError(
                f"AvroFormat: field {name!r} is a decimal of {digits} digits, and columns have {DECIMAL_DIGITS} at most; "
                "make it a string, or its bytes without the logical type"
            )
        return pa.decimal128(digits, scale), False
    if isinstance(kind["type"], str) and (kind["type"], logical) in LOGICAL:
        return LOGICAL[kind["type"], logical], False
    match kind["type"]:
        case "record":
            return pa.struct([_field(field) for field in kind["fields"]]), False
        case "array":
            item, nullable = _type(kind["items"], name)
            return pa.list_(pa.field("item", item, nullable)), False
        case "map":
            value, nullable = _type(kind["values"], name)
            return pa.map_(pa.string(), pa.field("value", value, nullable)), False
        case "enum":
            return pa.string(), False
        case "fixed":
            return pa.binary(kind["size"]), False
        case inner:
            return _type(inner, name)


def _array(values: list[Any], kind: pa.DataType) -> pa.Array:
    """A column of what fastavro has read, which has objects for UUIDs."""
    try:
        return pa.array(values, kind)
    except pa.ArrowTypeError:
        return pa.array([_with_texts(value) for value in values], kind)


def _with_texts(value: Any) -> Any:
    if isinstance(value, uuid.UUID):
        return str(value)
    if isinstance(value, dict):
        return {key: _with_texts(item) for key, item in value.items()}
    return [_with_texts(item) for item in value] if isinstance(value, list) else value


def _fitting(column: pa.Array, kind: pa.DataType) -> pa.Array | None:
    """The column with values that fastavro writes unchanged; None where it would write something else.

    A time is as fine as the schema says. One without a zone is in UTC, and not in that of the machine."""
    types = pa.types
    if types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    if types.is_timestamp(kind) and types.is_timestamp(column.type):
        column = pc.floor_temporal(column, unit="microsecond") if column.type.unit == "ns" else column
        zone = column.type.tz if kind.tz is None or column.type.tz is not None else "UTC"
        return column.cast(pa.timestamp("us", zone))
    if types.is_integer(kind) or types.is_decimal(kind):
        numbers = (types.is_integer, types.is_floating, types.is_decimal, types.is_boolean, types.is_null)
        return column.cast(kind) if any(is_kind(column.type) for is_kind in numbers) else None
    if types.is_float32(kind) and types.is_float64(column.type):
        return cast_unchanged(column, kind)
    if types.is_floating(kind) and types.is_integer(column.type):
        return column.cast(kind)
    if types.is_null(column.type) or (types.is_date(kind) and not types.is_timestamp(column.type)):
        return column
    same = (types.is_boolean, types.is_date, types.is_struct, types.is_map, _is_list)
    return column if all(is_kind(column.type) == is_kind(kind) for is_kind in same) else None


def _is_list(kind: pa.DataType) -> bool:
    """Whether values are lists, of whatever layout."""
    return bool(pa.types.is_nested(kind) and not (pa.types.is_struct(kind) or pa.types.is_map(kind)))


def _plain(value: Any, kind: pa.DataType) -> Any:
    """A value inside of lists, records and maps as fastavro writes it: pairs of a map are a dictionary, and a time
    without a zone is in UTC."""
    if value is None:
        return None
    if pa.types.is_map(kind):
        items = {key: _plain(item, kind.item_type) for key, item in value}
        if len(items) != len(value):
            raise ConnectorError(
                "AvroFormat: a map has a key twice, and one of its values would be lost; make them differ before"
            )
        return items
    if pa.types.is_struct(kind):
        return {field.name: _plain(value.get(field.name), field.type) for field in kind}
    if pa.types.is_list(kind):
        return [_plain(item, kind.value_type) for item in value]
    if pa.types.is_timestamp(kind) and kind.tz is not None and isinstance(value, dt.datetime) and value.tzinfo is None:
        return value.replace(tzinfo=dt.UTC)
    return value
