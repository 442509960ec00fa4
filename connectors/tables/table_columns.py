"""What fits into the columns of a table.

Decides the rule of schemas that sinks of tables share: columns are matched by name; a type that the table has is never
changed, and values are cast where none changes its meaning; a column that the table lacks is refused or added. Which
types a table can have is said by the caller. It knows no table format.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import pyarrow as pa
import pyarrow.compute as pc

from snapline.dataflow.errors import ConnectorError

FIRST_DAY, LAST_DAY, DAY_US = -719_162, 2_932_896, 86_400_000_000
"""0001-01-01 and 9999-12-31, in days since 1970."""
NewColumns = Literal["fail", "add"]
StoredType = Callable[[pa.DataType], pa.DataType | None]
"""The type in which a new column of some type is written; None where the table has none."""


def columns_to_write(
    rows: pa.Schema, table: pa.Schema | None, new_columns: NewColumns, stored: StoredType, what: str
) -> pa.Schema:
    """The columns of the rows with the types that files have. Raises ConnectorError when they do not fit the table."""
    known = {} if table is None else {field.name: field for field in table}
    in_lower_case = {name.lower(): name for name in known}
    fields = []
    for field in rows:
        written, there = stored(field.type), known.get(field.name)
        if written is None:
            raise ConnectorError(
                f"{what}: column {field.name!r} is {field.type}, which such a table has no type for; convert it before"
            )
        other = in_lower_case.setdefault(field.name.lower(), field.name)
        if other != field.name:
            raise ConnectorError(
                f"{what}: the columns {other!r} and {field.name!r} are one to a table; rename one of them"
            )
        if there is None:
            if table is not None and new_columns == "fail":
                raise ConnectorError(
                    f"{what}: the rows have the column {field.name!r}, and the table has not; leave it out, or say new_columns='add'"
                )
            fields.append(pa.field(field.name, written))
            continue
        if not _fits(written, there.type, stored):
            raise ConnectorError(
                f"{what}: column {field.name!r} is {field.type} in the rows and {there.type} in the table; cast it before the sink"
            )
        fields.append(there)
    for name, field in known.items():
        if not field.nullable and name not in rows.names:
            raise ConnectorError(f"{what}: the rows lack the column {name!r}, which must not be null in the table")
    return pa.schema(fields)


def require_no_nulls(batch: pa.RecordBatch, what: str) -> None:
    """Raise ConnectorError for a null where the table must have none."""
    for field, column in zip(batch.schema, batch.columns, strict=True):
        if not field.nullable and column.null_count:
            raise ConnectorError(
                f"{what}: column {field.name!r} must not be null in the table, and a row has a null there"
            )


def require_known_years(batch: pa.RecordBatch, what: str) -> None:
    """Raise ConnectorError for a time or day that the library of the table cannot put into words: its footers are read
    with Python's, which end at 9999."""
    for field, column in zip(batch.schema, batch.columns, strict=True):
        kind = field.type
        if not (pa.types.is_timestamp(kind) or pa.types.is_date32(kind)) or column.null_count == len(column):
            continue
        least, greatest = pc.min_max(column.cast(pa.int64() if pa.types.is_timestamp(kind) else pa.int32())).values()
        first, last = (
            (FIRST_DAY, LAST_DAY) if pa.types.is_date32(kind) else (FIRST_DAY * DAY_US, (LAST_DAY + 1) * DAY_US - 1)
        )
        if least.as_py() < first or greatest.as_py() > last:
            raise ConnectorError(
                f"{what}: column {field.name!r} has a time in a year before 1 or after 9999, which the table's library cannot read "
                "back; correct it, or make it null, before the sink"
            )


def stored_type(arrow: pa.DataType, simple: StoredType) -> pa.DataType | None:
    """The type of a new column, by what becomes of types that are not nested; tables have no unsigned numbers, no times
    finer than microseconds, and zones are UTC."""
    kinds = pa.types
    unsigned = {pa.uint8(): pa.int16(), pa.uint16(): pa.int32(), pa.uint32(): pa.int64(), pa.uint64(): pa.int64()}
    if arrow in unsigned:
        return simple(unsigned[arrow])
    if kinds.is_dictionary(arrow):
        return stored_type(arrow.value_type, simple)
    if kinds.is_timestamp(arrow):
        return pa.timestamp("us", "UTC" if arrow.tz else None)
    if kinds.is_string(arrow) or kinds.is_large_string(arrow) or kinds.is_string_view(arrow):
        return pa.string()
    if kinds.is_binary(arrow) or kinds.is_large_binary(arrow) or kinds.is_binary_view(arrow):
        return pa.binary()
    if kinds.is_date(arrow):
        return pa.date32()
    if kinds.is_float16(arrow):
        return pa.float32()
    if kinds.is_floating(arrow) or kinds.is_boolean(arrow):
        return arrow
    if kinds.is_decimal(arrow):
        return pa.decimal128(arrow.precision, arrow.scale) if arrow.precision <= 38 else None
    if kinds.is_list(arrow) or kinds.is_large_list(arrow) or kinds.is_fixed_size_list(arrow):
        element = stored_type(arrow.value_type, simple)
        return None if element is None else pa.list_(pa.field("element", element))
    if kinds.is_struct(arrow):
        members = [(member.name, stored_type(member.type, simple)) for member in arrow]
        return None if any(each is None for _, each in members) else pa.struct(members)
    if kinds.is_map(arrow):
        key, item = stored_type(arrow.key_type, simple), stored_type(arrow.item_type, simple)
        return None if key is None or item is None else pa.map_(key, item)
    return simple(arrow)


def _fits(written: pa.DataType, there: pa.DataType, stored: StoredType) -> bool:
    """Whether values can be cast without a change of what they mean; whether each one can is seen when it comes."""
    kinds = pa.types
    if kinds.is_signed_integer(written):
        return bool(kinds.is_signed_integer(there) or kinds.is_decimal(there))
    if kinds.is_floating(written):
        return bool(kinds.is_floating(there) and there.bit_width >= written.bit_width)
    if kinds.is_decimal(written):
        return bool(kinds.is_decimal(there))
    if isinstance(there, pa.BaseExtensionType) and there.storage_type == written:
        return True
    return stored(there) == written
