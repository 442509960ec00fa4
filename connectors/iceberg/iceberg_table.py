"""An Iceberg table as the library shows it: how it is found, which tables can be written, and where its rows go.

Decides which types Iceberg has, which rows of a batch share a data file by the partition spec, which specs are refused,
and what errors of catalogue and library mean to a user. It writes nothing.
"""

from __future__ import annotations

import importlib.util
import sys
import zlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from snapline.connectors.files.filesystems import first_line, is_refusal
from snapline.connectors.files.staging import table_directory
from snapline.connectors.tables.table_columns import stored_type
from snapline.connectors.tables.table_discovery import TableUnreachable
from snapline.dataflow.errors import ConnectorError

CATALOG_ERRORS = {
    "sqlalchemy.exc": ("SQLAlchemyError",),
    "botocore.exceptions": ("ClientError", "BotoCoreError"),
    "thrift.Thrift": ("TException",),
}
"""What catalogues in SQL, AWS Glue and Hive raise, by module; those of REST raise OSErrors."""
DAMAGES: tuple[type[Exception], ...] = (
    AttributeError,
    TypeError,
    LookupError,
    ArithmeticError,
    EOFError,
    SystemError,
    RecursionError,
    NotImplementedError,
    zlib.error,
)
"""What else pyiceberg raises for metadata and manifests that are damaged, or that it does not know yet."""
STATISTICS_BYTES_MAX = 4096
"""What is longer is left out of the statistics of Parquet files, from which pyiceberg takes the partition of a file."""
Catalog = str | Mapping[str, str]
"""The name of a catalogue in pyiceberg's configuration, or its properties."""


def open_catalog(catalog: Catalog) -> Any:
    """The catalogue. Raises ConnectorError when it cannot be used."""
    try:
        from pyiceberg.catalog import load_catalog
    except ImportError as error:
        raise ConnectorError("Iceberg tables need pyiceberg: pip install 'snapline[iceberg]'") from error
    try:
        if isinstance(catalog, str):
            return load_catalog(catalog)
        # SQL catalogues keep tables under the name of the catalogue; pyiceberg's own default is this one.
        return load_catalog(catalog.get("name", "default"), **{k: v for k, v in catalog.items() if k != "name"})
    except failures() as error:
        raise ConnectorError(
            f"Iceberg catalogue {named(catalog)}: {first_line(error)}; check type and uri in catalog=, or that the name stands in "
            "pyiceberg's configuration on every machine"
        ) from error


def failures() -> tuple[type[Exception], ...]:
    """What pyiceberg and the libraries of its catalogues raise for a table or the way to it; whatever else is raised is
    a defect. The libraries are those that have been loaded."""
    from pyiceberg import exceptions

    found = [each for each in vars(exceptions).values() if isinstance(each, type) and issubclass(each, Exception)]
    for module, names in CATALOG_ERRORS.items():
        found += [getattr(sys.modules[module], name) for name in names if module in sys.modules]
    return (*found, pa.ArrowException, OSError, ValueError)


def named(catalog: Catalog) -> str:
    """The catalogue for people, without its secrets."""
    return repr(catalog) if isinstance(catalog, str) else repr(catalog.get("type", catalog.get("uri", "")))


def open_table(catalog: Any, table: str) -> Any | None:
    """The table as it is now; None where there is none. Raises ConnectorError when the catalogue does not answer."""
    from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError

    try:
        return catalog.load_table(table)
    except (NoSuchTableError, NoSuchNamespaceError):
        return None
    except (*failures(), *DAMAGES) as error:
        raise unusable(table, error) from error


def ancestors(table: Any, name: str) -> Iterator[Any]:
    """The snapshots that the table's state rests on, newest first. Raises ConnectorError for one that rests on
    itself."""
    snapshot, seen = table.current_snapshot(), set()
    while snapshot is not None:
        if snapshot.snapshot_id in seen:
            raise ConnectorError(
                f"Iceberg table {name}: snapshot {snapshot.snapshot_id} is said to be its own ancestor: the table's metadata is "
                "damaged; put an older metadata file in its place"
            )
        seen.add(snapshot.snapshot_id)
        yield snapshot
        parent = snapshot.parent_snapshot_id
        snapshot = None if parent is None else table.snapshot_by_id(parent)


def unusable(table: str, error: BaseException) -> ConnectorError:
    """Say in one line what kept the catalogue or the library from doing what was asked."""
    from pyiceberg import exceptions

    unknown = isinstance(error, (exceptions.UnauthorizedError, exceptions.ForbiddenError, exceptions.OAuthError))
    if unknown or is_refusal(error):
        return ConnectorError(f"Iceberg table {table}: {first_line(error)}; check the credentials in catalog=")
    if isinstance(error, exceptions.NoSuchNamespaceError):
        return ConnectorError(f"Iceberg table {table}: {first_line(error)}; create the namespace first")
    if isinstance(error, DAMAGES):
        return ConnectorError(
            f"Iceberg table {table}: its metadata or a manifest cannot be read ({type(error).__name__}: {first_line(error)}); it is damaged, "
            "or newer than pyiceberg: put an older metadata file in its place, or update pyiceberg"
        )
    return TableUnreachable(
        f"Iceberg table {table}: {first_line(error)}; check that catalogue and warehouse can be reached"
    )


def columns_of(table: Any) -> pa.Schema:
    """The table's columns with types of Arrow, as they are written."""
    try:
        return pa.schema(
            [field.with_type(iceberg_type(field.type)).remove_metadata() for field in table.schema().as_arrow()]
        )
    except DAMAGES as error:
        raise unusable(".".join(table.name()), error) from error


def with_required_parts(table: Any) -> frozenset[str]:
    """The columns that have parts which must not be null: fields of records, elements of lists, values of maps."""
    return frozenset(field.name for field in table.schema().as_arrow() if _has_required_part(field.type))


def _has_required_part(kind: pa.DataType) -> bool:
    is_map = pa.types.is_map(kind)
    parts = [kind.item_field] if is_map else [kind.field(place) for place in range(kind.num_fields)]
    return any(not part.nullable or _has_required_part(part.type) for part in parts)


def iceberg_type(arrow: pa.DataType) -> pa.DataType | None:
    """The type in which a new column is written; None where Iceberg has none."""
    return stored_type(arrow, _simple)


def _simple(arrow: pa.DataType) -> pa.DataType | None:
    kinds = pa.types
    if kinds.is_signed_integer(arrow):
        return pa.int64() if arrow.bit_width == 64 else pa.int32()
    if kinds.is_time(arrow):
        return pa.time64("us")
    return arrow if kinds.is_fixed_size_binary(arrow) or arrow == pa.uuid() else None


def finds_partitions(table: Any) -> bool:
    """Whether the library finds the partition of a file that it adds, for which it takes the bounds of columns, as far
    as the properties of the table let it keep some: without bounds a partition is null, and a field that was removed
    must have none."""
    from pyiceberg.io.pyarrow import MetricModeTypes, compute_statistics_plan

    try:
        kept = compute_statistics_plan(table.schema(), table.properties)
    except failures() as error:
        raise unusable(".".join(table.name()), error) from error
    modes = (MetricModeTypes.FULL, MetricModeTypes.TRUNCATE)
    bounded = {number for number, column in kept.items() if column.mode.type in modes}
    return all((field.source_id in bounded) != (str(field.transform) == "void") for field in table.spec().fields)


class Partitions:
    """Which rows share a data file: those for which every field of the partition spec has one value."""

    def __init__(self, table: Any | None, wanted: Sequence[str] | None, what: str) -> None:
        """Take the columns of the table as it is, or of one that is to be made."""
        self.fields: list[tuple[str, str, str]] = []
        """Name of the field, the column it is computed from, and how."""
        self.spec_id: int | None = None if table is None else table.spec().spec_id
        self._what = what
        if table is None:
            self.fields = [(name, name, "identity") for name in wanted or ()]
            return
        schema = table.schema()
        for field in table.spec().fields:
            how = str(field.transform)
            if how == "void":
                continue
            if how.partition("[")[0] not in ("identity", "year", "month", "day", "hour", "truncate"):
                raise ConnectorError(
                    f"{what}: the table is partitioned by {how} of {schema.find_column_name(field.source_id)!r}, which pyiceberg "
                    "cannot add files to; use identity, truncate, or a part of a time"
                )
            self.fields.append((field.name, schema.find_column_name(field.source_id), how))
        found = [column for _, column, _ in self.fields]
        if wanted is not None and list(wanted) != found:
            raise ConnectorError(
                f"{what}: the table is partitioned by {', '.join(found) or 'nothing'}, and the sink by {', '.join(wanted) or 'nothing'}; "
                "leave partition_by out, or give the table's"
            )

    def require_rewriting(self, what: str) -> None:
        """Raise ConnectorError when the library could not write files of the table anew."""
        computed = [(column, how) for _, column, how in self.fields if how != "identity"]
        if computed and importlib.util.find_spec("pyiceberg_core") is None:
            column, how = computed[0]
            raise ConnectorError(
                f"{what}: the table is partitioned by {how} of {column!r}, where rows that are written anew need another library: "
                "pip install 'pyiceberg[pyiceberg-core]'"
            )

    def require_columns(self, written: pa.Schema, what: str) -> None:
        """Raise ConnectorError when rows have not what the table is partitioned by."""
        for _, column, _ in self.fields:
            if column not in written.names:
                raise ConnectorError(f"{what}: the table is partitioned by {column!r}, which the rows have not")
            kind = written.field(column).type
            if pa.types.is_nested(kind) or pa.types.is_floating(kind) or pa.types.is_binary(kind):
                raise ConnectorError(
                    f"{what}: partition_by names {column!r}, which is {kind}; use a column of another type"
                )

    def values(self, batch: pa.RecordBatch) -> list[pa.Array]:
        """For each field, an array that is equal for two rows if and only if their partition is. Raises ConnectorError
        for rows whose partition the library cannot say."""
        for _, name, how in self.fields:
            if why := _why_without_partition(batch.column(name), how):
                raise ConnectorError(
                    f"{self._what}: column {name!r}, by whose {how} the table is partitioned, has {why}; change it before the sink"
                )
        return [_parts(batch.column(column), how) for _, column, how in self.fields]

    def directory(self, values: Sequence[object]) -> str:
        """Where files of a partition lie; for people, since the table itself knows the partition of each file."""
        names = [name for name, _, _ in self.fields]
        texts = [None if value is None else str(value) for value in values]
        return table_directory(zip(names, texts, strict=True))


def _parts(column: pa.Array, how: str) -> pa.Array:
    if how == "identity":
        return column.storage if isinstance(column, pa.ExtensionArray) else column
    if how.startswith("truncate"):
        width = int(how[len("truncate[") : -1])
        if pa.types.is_string(column.type):
            return pc.utf8_slice_codeunits(column, 0, width)
        places = [None if value is None else str(int(value) // width) for value in _digits(column).to_pylist()]
        return pa.array(places, pa.string())
    return pc.floor_temporal(column, unit=how)


def _why_without_partition(column: pa.Array, how: str) -> str:
    """What a column has of which the library cannot say the partition; empty where there is nothing."""
    kind = column.type
    if pa.types.is_string(kind) and (pc.max(pc.binary_length(column)).as_py() or 0) > STATISTICS_BYTES_MAX:
        return f"a text of more than {STATISTICS_BYTES_MAX} bytes, of which Parquet's statistics say nothing"
    least = pc.min(_digits(column)).as_py() if how.startswith("truncate") and not pa.types.is_string(kind) else None
    if least is not None:
        width = int(how[len("truncate[") : -1])
        bound = 1 - 10**kind.precision if pa.types.is_decimal(kind) else -(1 << (kind.bit_width - 1))
        if int(least) // width * width < bound:
            return f"{pc.min(column).as_py()}, which {kind} has no room for when it is truncated"
    return ""


def _digits(column: pa.Array) -> pa.Array:
    """The numbers that are truncated: of decimals all digits, wherever the point is."""
    return column.view(pa.decimal128(column.type.precision, 0)) if pa.types.is_decimal(column.type) else column
