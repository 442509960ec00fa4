"""Avro: one datum a row, written with one schema that everybody knows, by fastavro (extra `avro`).

Decides how Avro's types are Arrow's. Fastavro makes Python dictionaries, so this format is several times slower than
JSON or raw bytes.
"""

from __future__ import annotations

import io
import json
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from snapline.connectors.formats.avro_bounds import check_schema
from snapline.connectors.formats.row_format import RowFormat
from snapline.dataflow.errors import ConnectorError

PRIMITIVES = {
    "boolean": pa.bool_(), "int": pa.int32(), "long": pa.int64(), "float": pa.float32(), "double": pa.float64(),
    "bytes": pa.binary(), "string": pa.string(), "null": pa.null(),
}  # fmt: skip
LOGICAL = {
    "timestamp-millis": pa.timestamp("ms", "UTC"), "timestamp-micros": pa.timestamp("us", "UTC"), "date": pa.date32(),
    "local-timestamp-millis": pa.timestamp("ms"), "local-timestamp-micros": pa.timestamp("us"),
    "time-millis": pa.time32("ms"), "time-micros": pa.time64("us"), "uuid": pa.string(),
}  # fmt: skip


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
        self.avro_schema: Mapping[str, Any] = json.loads(schema) if isinstance(schema, str) else schema
        if not isinstance(self.avro_schema, Mapping) or self.avro_schema.get("type") != "record":
            raise ConnectorError("AvroFormat: the schema must be that of a record")
        try:
            check_schema(fastavro.parse_schema(dict(self.avro_schema)))
        except (ValueError, KeyError, fastavro.schema.SchemaParseException) as error:
            raise ConnectorError(f"AvroFormat: not an Avro schema: {error}") from error
        self._schema = pa.schema([_field(field) for field in self.avro_schema["fields"]])
        self._parsed: Any = None

    def __getstate__(self) -> dict[str, Any]:
        """Pickle the format without the schema that fastavro has parsed."""
        return {**self.__dict__, "_parsed": None}

    @property
    def schema(self) -> pa.Schema:
        return self._schema

    def decode_all(self, values: Sequence[bytes]) -> pa.RecordBatch:
        import fastavro

        parsed = self._parsed_schema()
        data, end = io.BytesIO(b"".join(values)), 0
        rows: list[Any] = []
        for value in values:
            end += len(value)
            rows.append(fastavro.schemaless_reader(data, parsed, None))
            if data.tell() != end:
                raise ValueError(f"the Avro datum is {end - data.tell()} bytes shorter than the value")
        columns = [pa.array([row[field.name] for row in rows], field.type) for field in self._schema]
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)

    def encode(self, batch: pa.RecordBatch) -> Sequence[bytes | None]:
        import fastavro

        parsed = self._parsed_schema()
        values: list[bytes | None] = []
        for row in batch.select(self._schema.names).to_pylist():
            data = io.BytesIO()
            try:
                fastavro.schemaless_writer(data, parsed, row)
            except (ValueError, TypeError) as error:
                raise ConnectorError(f"AvroFormat: a row does not fit the schema: {error}") from error
            values.append(data.getvalue())
        return values

    def _parsed_schema(self) -> Any:
        if self._parsed is None:
            import fastavro

            self._parsed = fastavro.parse_schema(dict(self.avro_schema))
        return self._parsed


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
    if logical == "decimal":
        return pa.decimal128(kind["precision"], kind.get("scale", 0)), False
    if logical in LOGICAL:
        return LOGICAL[logical], False
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
