"""A Delta table as the library shows it: how it is found, which ones can be written, and what fits their columns.

Decides which types Delta has, which tables are refused because a plain append would break what they promise, and what
errors of the library mean to a user. It writes nothing but a probe of the store.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa

from snapline.connectors.files.filesystems import S3_SCHEMES, advice, first_line
from snapline.connectors.tables.table_columns import stored_type
from snapline.connectors.tables.table_discovery import TableUnreachable
from snapline.dataflow.errors import ConnectorError
from snapline.runtime.storage.object_storage import open_storage
from snapline.runtime.storage.storage_port import StorageAlreadyExists, StorageError

LOCKING = "AWS_S3_LOCKING_PROVIDER"
"""With it, deltalake keeps its commits apart by a table of DynamoDB instead."""

_OPTIONS = {
    "s3.endpoint": "AWS_ENDPOINT_URL",
    "s3.access-key": "AWS_ACCESS_KEY_ID",
    "s3.secret-key": "AWS_SECRET_ACCESS_KEY",
    "s3.session-token": "AWS_SESSION_TOKEN",
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
    except failures() as error:
        raise unusable(url, error) from error


def require_conditional_writes(url: str, options: Mapping[str, str]) -> None:
    """Raise ConnectorError for an object store that overwrites a file which must not be there, as some that look like
    S3 do: a commit of one process would replace another's, and nobody would see it."""
    if urlsplit(url).scheme not in S3_SCHEMES or LOCKING in {**os.environ, **options}:
        return
    try:
        storage = open_storage(url, {name: value for name, value in options.items() if name.startswith("s3.")})
        path = f".probe-{secrets.token_hex(8)}"
        storage.create(path, b"first")
        try:
            storage.create(path, b"second")
        except StorageAlreadyExists:
            return
        finally:
            storage.delete(path)
    except StorageError as error:
        raise ConnectorError(f"Delta table {url}: {first_line(error)}") from error
    raise ConnectorError(
        f"Delta table {url}: the store ignores conditional writes (If-None-Match), so that a commit could replace another's; "
        "use a store that honours them"
    )


def failures() -> tuple[type[Exception], ...]:
    """What deltalake raises for a table, its files or the way to them; whatever else is raised is a defect."""
    return (library().exceptions.DeltaError, OSError, ValueError, NotImplementedError)


def unusable(url: str, error: BaseException) -> TableUnreachable:
    """Say in one line that the library failed at this table."""
    return TableUnreachable(f"Delta table {url}: {first_line(error)}; {advice(error)}")


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


def delta_type(arrow: pa.DataType) -> pa.DataType | None:
    """The type in which a new column is written; None where Delta has none."""
    return stored_type(arrow, lambda simple: simple if pa.types.is_signed_integer(simple) else _bytes_or_none(simple))


def _bytes_or_none(simple: pa.DataType) -> pa.DataType | None:
    return pa.binary() if pa.types.is_fixed_size_binary(simple) else None


def named_twice(kind: pa.DataType) -> str:
    """What two parts of one record are called but for capitals, at any depth; empty where there are none."""
    parts, seen = [kind.field(place) for place in range(kind.num_fields)], set[str]()
    for part in parts:
        if pa.types.is_struct(kind) and part.name.lower() in seen:
            return str(part.name)
        seen.add(part.name.lower())
    return next(filter(None, (named_twice(part.type) for part in parts)), "")
