"""A Delta table as the library shows it: how it is found, which ones can be written, and what fits their columns.

Decides the rule of schemas (columns by name; a type that the table has is never changed; a column that the table lacks
is refused or added), which tables are refused because a plain append would break what they promise, and what errors of
the library mean to a user. It writes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import pyarrow as pa

from snapline.connectors.files.filesystems import advice, first_line
from snapline.dataflow.errors import ConnectorError

NewColumns = Literal["fail", "add"]
_OPTIONS = {
    "s3.endpoint": "AWS_ENDPOINT_URL",
    "s3.access-key": "AWS_ACCESS_KEY_ID",
    "s3.secret-key": "AWS_SECRET_ACCESS_KEY",
    "s3.region": "AWS_REGION",
    "s3.allow-http": "AWS_ALLOW_HTTP",
}
_PROMISES = {
    "delta.generationExpression": "a generated column",
    "delta.invariants": "an invariant",
    "delta.identity.start": "an identity column",
}


def library() -> Any:
    """The deltalake library. Raises ConnectorError that says how to get it."""
    try:
        import deltalake
    except ImportError as error:
        raise ConnectorError("Delta tables need deltalake: pip install 'snapline[delta]'") from error
    return deltalake


def library_options(options: Mapping[str, str]) -> dict[str, str]:
    """Storage options as deltalake calls them."""
    named = {_OPTIONS.get(name, name): value for name, value in options.items()}
    if named.get("AWS_ENDPOINT_URL", "").startswith("http://"):
        named.setdefault("AWS_ALLOW_HTTP", "true")
    return named


def open_table(url: str, options: Mapping[str, str]) -> Any | None:
    """The table as it is now; None where there is none. Raises ConnectorError when it cannot be read."""
    deltalake = library()
    try:
        return deltalake.DeltaTable(url, storage_options=library_options(options))
    except deltalake.exceptions.TableNotFoundError:
        return None
    except Exception as error:
        raise unusable(url, error) from error


def unusable(url: str, error: BaseException) -> ConnectorError:
    """Say in one line that the library failed at this table."""
    return ConnectorError(f"Delta table {url}: {first_line(error)}; {advice(error)}")


def columns_of(table: Any) -> pa.Schema:
    """The table's columns with types of Arrow."""
    return pa.schema(table.schema().to_arrow())


def require_plain(table: Any, what: str) -> None:
    """Raise ConnectorError for a table whose rules a writer of plain files cannot keep."""
    configuration = table.metadata().configuration
    if configuration.get("delta.columnMapping.mode", "none") != "none":
        raise ConnectorError(f"{what}: the table maps its columns to other names, which DeltaSink cannot write")
    rule = next((name for name in configuration if name.startswith("delta.constraints.")), None)
    if rule is not None:
        raise ConnectorError(
            f"{what}: the table has the constraint {rule.rpartition('.')[2]!r}, which DeltaSink cannot check; drop it"
        )
    for field in table.schema().fields:
        for sign, kind in _PROMISES.items():
            if sign in field.metadata:
                raise ConnectorError(
                    f"{what}: column {field.name!r} of the table is {kind}, which DeltaSink cannot write"
                )


def require_partitions(table: Any, wanted: Sequence[str] | None, what: str) -> tuple[str, ...]:
    """The table's partition columns. Raises ConnectorError when others are wanted."""
    found = tuple(table.metadata().partition_columns)
    if wanted is not None and tuple(wanted) != found:
        raise ConnectorError(
            f"{what}: the table is partitioned by {', '.join(found) or 'nothing'}, and the sink by {', '.join(wanted) or 'nothing'}; "
            "leave partition_by out, or give the table's"
        )
    return found


def columns_to_write(rows: pa.Schema, table: pa.Schema | None, new_columns: NewColumns, what: str) -> pa.Schema:
    """The columns of the rows with the types that files have. Raises ConnectorError when they do not fit the table."""
    known = {} if table is None else {field.name: field for field in table}
    in_lower_case = {name.lower(): name for name in known}
    fields = []
    for field in rows:
        written, there = delta_type(field.type), known.get(field.name)
        if written is None:
            raise ConnectorError(
                f"{what}: column {field.name!r} is {field.type}, which Delta has no type for; convert it before"
            )
        other = in_lower_case.setdefault(field.name.lower(), field.name)
        if other != field.name:
            raise ConnectorError(
                f"{what}: the columns {other!r} and {field.name!r} are one to Delta; rename one of them"
            )
        if there is None:
            if table is not None and new_columns == "fail":
                raise ConnectorError(
                    f"{what}: the rows have the column {field.name!r}, and the table has not; leave it out, or say new_columns='add'"
                )
            fields.append(pa.field(field.name, written))
            continue
        if not _fits(written, there.type):
            raise ConnectorError(
                f"{what}: column {field.name!r} is {field.type} in the rows and {there.type} in the table; cast it before the sink"
            )
        fields.append(there)
    for name, field in known.items():
        if not field.nullable and name not in rows.names:
            raise ConnectorError(f"{what}: the rows lack the column {name!r}, which must not be null in the table")
    return pa.schema(fields)


def delta_type(arrow: pa.DataType) -> pa.DataType | None:
    """The type of Arrow in which a new column is written; None where Delta has none."""
    kinds = pa.types
    unsigned = {pa.uint8(): pa.int16(), pa.uint16(): pa.int32(), pa.uint32(): pa.int64(), pa.uint64(): pa.int64()}
    if arrow in unsigned:
        return unsigned[arrow]
    if kinds.is_dictionary(arrow):
        return delta_type(arrow.value_type)
    if kinds.is_timestamp(arrow):
        return pa.timestamp("us", "UTC" if arrow.tz else None)
    if kinds.is_string(arrow) or kinds.is_large_string(arrow) or kinds.is_string_view(arrow):
        return pa.string()
    if kinds.is_binary(arrow) or kinds.is_large_binary(arrow) or kinds.is_fixed_size_binary(arrow):
        return pa.binary()
    if kinds.is_date(arrow):
        return pa.date32()
    if kinds.is_float16(arrow):
        return pa.float32()
    if kinds.is_signed_integer(arrow) or kinds.is_floating(arrow) or kinds.is_boolean(arrow):
        return arrow
    if kinds.is_decimal(arrow):
        return pa.decimal128(arrow.precision, arrow.scale) if arrow.precision <= 38 else None
    if kinds.is_list(arrow) or kinds.is_large_list(arrow) or kinds.is_fixed_size_list(arrow):
        element = delta_type(arrow.value_type)
        return None if element is None else pa.list_(pa.field("element", element))
    if kinds.is_struct(arrow):
        members = [(member.name, delta_type(member.type)) for member in arrow]
        return None if any(each is None for _, each in members) else pa.struct(members)
    if kinds.is_map(arrow):
        key, item = delta_type(arrow.key_type), delta_type(arrow.item_type)
        return None if key is None or item is None else pa.map_(key, item)
    return None


def _fits(written: pa.DataType, there: pa.DataType) -> bool:
    """Whether values can be cast without a change of what they mean; whether each one can is seen when it comes."""
    kinds = pa.types
    if kinds.is_signed_integer(written):
        return bool(kinds.is_signed_integer(there) or kinds.is_decimal(there))
    if kinds.is_floating(written):
        return bool(kinds.is_floating(there) and there.bit_width >= written.bit_width)
    if kinds.is_decimal(written):
        return bool(kinds.is_decimal(there))
    return delta_type(there) == written
