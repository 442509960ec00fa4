"""Which columns go between Spark's DataFrames and Arrow's batches, both ways, and what is said of those that cannot.

Decides by type alone. From Spark: intervals, variants, geometries and user-defined types are refused by the name of
their column, because Parquet or Arrow would hand back something else. To Spark: Arrow's wider world is narrowed to the
types that Spark has, where values fit; unsigned integers become the next wider signed type.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    CalendarIntervalType,
    DataType,
    DayTimeIntervalType,
    MapType,
    NullType,
    StructType,
    UserDefinedType,
    VariantType,
    YearMonthIntervalType,
)

from snapline.connectors.files.filesystems import first_line
from snapline.dataflow.columnar.arrow_columns import with_null_parts
from snapline.dataflow.errors import JobDefinitionError

_WIDER = {
    pa.uint8(): pa.int16(),
    pa.uint16(): pa.int32(),
    pa.uint32(): pa.int64(),
    pa.uint64(): pa.decimal128(20, 0),
    pa.float16(): pa.float32(),
}
"""Types that Spark does not have."""
MOST_DIGITS = 38
_INTERVALS = (CalendarIntervalType, DayTimeIntervalType, YearMonthIntervalType)
_WAY_OUT = {
    "interval": "cast it to a number, such as seconds or months, or leave it out",
    "variant": "cast it to a string or a struct, or leave it out",
    "null": "cast it to the type that it stands for, or leave it out",
    "other": "select plain columns of it, or leave it out",
}


def arrow_schema_of_frame(schema: StructType, what: str) -> pa.Schema:
    """The columns of a DataFrame as its batches have them; times with a zone are in UTC. Raises JobDefinitionError that
    names the column that no batch can hold."""
    names = [field.name for field in schema.fields]
    if not names:
        raise JobDefinitionError(f"{what}: the DataFrame has no columns; select one at least")
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise JobDefinitionError(f"{what}: there are two columns {twice!r}; give one of them another name")
    for field in schema.fields:
        _check_spark_type(field.dataType, field.name, what)
    arrow = to_arrow_schema(schema, timezone="UTC").remove_metadata()
    return pa.schema([pa.field(field.name, with_null_parts(field.type)) for field in arrow])


def _check_spark_type(data_type: DataType, column: str, what: str) -> None:
    kind = (
        "interval"
        if isinstance(data_type, _INTERVALS)
        else "variant"
        if isinstance(data_type, VariantType)
        else "null"
        if isinstance(data_type, NullType)
        else "other"
        if isinstance(data_type, UserDefinedType) or data_type.typeName() in ("geometry", "geography")
        else ""
    )
    if kind:
        raise JobDefinitionError(
            f"{what}: column {column!r} is {data_type.simpleString()}, which a stream has no type for: {_WAY_OUT[kind]}"
        )
    if isinstance(data_type, StructType):
        for field in data_type.fields:
            _check_spark_type(field.dataType, f"{column}.{field.name}", what)
    elif isinstance(data_type, ArrayType):
        _check_spark_type(data_type.elementType, f"{column}.element", what)
    elif isinstance(data_type, MapType):
        _check_spark_type(data_type.keyType, f"{column}.key", what)
        _check_spark_type(data_type.valueType, f"{column}.value", what)


def spark_schema_of(schema: pa.Schema, what: str) -> StructType:
    """The columns of batches as a DataFrame has them. Raises JobDefinitionError that names the column that Spark has no
    type for."""
    if not schema.names:
        raise JobDefinitionError(f"{what}: the rows have no columns, and a DataFrame would lose them; give them one")
    for field in schema:
        _check_arrow_type(field.type, field.name, what)
    return from_arrow_schema(pa.schema([(field.name, with_null_parts(widened(field.type))) for field in schema]))


def _check_arrow_type(data_type: pa.DataType, column: str, what: str) -> None:
    if isinstance(data_type, pa.BaseExtensionType):
        raise JobDefinitionError(
            f"{what}: column {column!r} is {data_type}, which Spark has no type for: make it a text or bytes in the job, or leave it out"
        )
    if pa.types.is_duration(data_type) or pa.types.is_interval(data_type):
        raise JobDefinitionError(
            f"{what}: column {column!r} is {data_type}, an interval, which is not handed to Spark: {_WAY_OUT['interval']}"
        )
    if pa.types.is_null(data_type):
        raise JobDefinitionError(
            f"{what}: column {column!r} has no type, because it is null in every row: {_WAY_OUT['null']}"
        )
    if pa.types.is_decimal(data_type) and not 0 <= data_type.scale <= data_type.precision <= MOST_DIGITS:
        raise JobDefinitionError(
            f"{what}: column {column!r} is {data_type}, and a decimal of Spark has {MOST_DIGITS} digits at most, of which those "
            "behind the point are none or some: cast it before"
        )
    for number in range(data_type.num_fields):
        field = data_type.field(number)
        _check_arrow_type(field.type, f"{column}.{field.name}", what)


def conform_to_spark(batch: pa.RecordBatch, target: pa.Schema) -> pa.RecordBatch:
    """The batch with the types of Spark's schema, as `to_arrow_schema` gives it."""
    return pa.RecordBatch.from_arrays([_conformed(batch.column(field.name), field) for field in target], schema=target)


def _conformed(column: pa.Array, field: pa.Field) -> pa.Array:
    """Raises ArrowInvalid that names the column of a value that Spark has no room for."""
    try:
        return column.cast(field.type)
    except pa.ArrowInvalid as error:
        raise pa.ArrowInvalid(
            f"column {field.name!r}: {first_line(error)}; cast it in the job, before it is written"
        ) from None


def arrow_schema_for_spark(schema: StructType) -> Any:
    """What Spark wants batches of this schema to be; without a zone, PySpark stops at a timestamp."""
    return to_arrow_schema(schema, timezone="UTC")


def with_numbers_of_spark(table: pa.Table) -> pa.Table:
    """The table for `createDataFrame`, which takes every type of Arrow's but these numbers."""
    fields = [field.with_type(widened(field.type)) if _has_wider(field.type) else field for field in table.schema]
    return table.cast(pa.schema(fields))


def _has_wider(data_type: pa.DataType) -> bool:
    inner = (data_type.field(number).type for number in range(data_type.num_fields))
    return data_type in _WIDER or any(_has_wider(each) for each in inner)


def widened(data_type: pa.DataType) -> pa.DataType:
    """A type that Spark has, into which values of this type fit."""
    if data_type in _WIDER:
        return _WIDER[data_type]
    if pa.types.is_dictionary(data_type):
        return widened(data_type.value_type)
    if pa.types.is_large_list(data_type) or pa.types.is_list(data_type) or pa.types.is_fixed_size_list(data_type):
        return pa.list_(widened(data_type.value_type))
    if pa.types.is_map(data_type):
        return pa.map_(widened(data_type.key_type), widened(data_type.item_type))
    if pa.types.is_struct(data_type):
        fields = [data_type.field(number) for number in range(data_type.num_fields)]
        return pa.struct([field.with_type(widened(field.type)) for field in fields])
    if pa.types.is_timestamp(data_type):
        return pa.timestamp("us", data_type.tz)
    if pa.types.is_duration(data_type):
        return pa.duration("us")
    if pa.types.is_time(data_type):
        return pa.int64() if data_type.bit_width == 64 else pa.int32()
    if pa.types.is_date64(data_type):
        return pa.date32()
    if pa.types.is_large_string(data_type) or pa.types.is_string_view(data_type):
        return pa.string()
    if pa.types.is_large_binary(data_type) or pa.types.is_fixed_size_binary(data_type):
        return pa.binary()
    return data_type
