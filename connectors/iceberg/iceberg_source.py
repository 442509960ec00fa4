"""Iceberg tables as a source: the rows of a snapshot, or what came since one, and with `follow=True` what comes later.

Decides which snapshots are read and which can be: appended files are read once, a snapshot that only replaces files is
passed over, and one that changes or deletes rows fails the job or is left out as a whole. Data files are splits, found
by one task; columns are known by their ids, as the table knows them. Mirrors Iceberg's source for Flink.
"""

from __future__ import annotations

import contextlib
import datetime as dt
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa

from snapline.connectors.files.filesystems import Location, locate
from snapline.connectors.iceberg.iceberg_sink import data_directory
from snapline.connectors.iceberg.iceberg_table import (
    DAMAGES,
    Catalog,
    ancestors,
    columns_of,
    failures,
    open_catalog,
    open_table,
    unusable,
)
from snapline.connectors.tables.table_discovery import milliseconds
from snapline.connectors.tables.table_source import BATCH_ROWS, DISCOVERY_INTERVAL_MS, TableSource
from snapline.dataflow.api.connector_api import SourceContextInfo, SourceReader
from snapline.dataflow.errors import ConnectorError

FIELD_ID = b"PARQUET:field_id"
CHANGES = ("overwrite", "delete")


class IcebergSource(TableSource):
    """Reads an Iceberg table that is there; with `follow=True` also what is added later.

    >>> catalog = {"type": "sql", "uri": f"sqlite:///{tmp}/source.db", "warehouse": f"file://{tmp}/warehouse"}
    >>> from pyiceberg.catalog import load_catalog
    >>> load_catalog("default", **catalog).create_namespace("web")
    >>> _ = load_catalog("default", **catalog).create_table("web.clicks", pa.schema([("page", pa.string())]))
    >>> clicks = sl_connectors.IcebergSource("web.clicks", catalog=catalog, follow=True)
    >>> clicks.schema().names, clicks.bounded, clicks.splits_at_once, clicks.described
    (['page'], False, 1, 'IcebergSource web.clicks')
    >>> clicks.names_in_file(pa.schema([("page", pa.string())]), {})
    {'page': 'page'}
    >>> clicks.renamed_inside(pa.list_(pa.string()))
    ListType(list<item: string>)
    >>> clicks.absent(pa.field("page", pa.string()), 2).to_pylist()
    [None, None]
    >>> clicks.location_of("file:///data/part-0.parquet").path
    '/data/part-0.parquet'
    """

    def __init__(
        self,
        table: str,
        *,
        catalog: Catalog,
        follow: bool = False,
        starting_snapshot: int | None = None,
        starting_timestamp: dt.datetime | None = None,
        columns: str | Sequence[str] | None = None,
        skip_change_commits: bool = False,
        ignore_missing: bool = False,
        discovery_interval_ms: int = DISCOVERY_INTERVAL_MS,
        batch_rows: int = BATCH_ROWS,
    ) -> None:
        """`table`, `catalog`: as for `IcebergSink`. `follow`: look for new snapshots every `discovery_interval_ms`, for
        ever. Without a start the rows of the newest snapshot come first. `starting_snapshot`: only what was added by
        the snapshot of this id and later ones. `starting_timestamp`: the same from the first snapshot at or after a
        time (UTC, unless it has a zone). `columns`: only these, in this order. `skip_change_commits`: leave out
        snapshots that delete or change rows, with all that they add. `ignore_missing`: leave out files that are gone
        before they are read. Raises ConnectorError for what makes no sense."""
        self.table = table
        if starting_snapshot is not None and starting_timestamp is not None:
            raise ConnectorError(f"{self.described}: give starting_snapshot or starting_timestamp, not both")
        super().__init__(
            follow=follow, starting_timestamp=starting_timestamp, columns=columns,
            skip_change_commits=skip_change_commits, ignore_missing=ignore_missing,
            discovery_interval_ms=discovery_interval_ms, batch_rows=batch_rows,
        )  # fmt: skip
        self.catalog: Catalog = catalog if isinstance(catalog, str) else dict(catalog)
        self.starting_snapshot = starting_snapshot
        self.field_ids: dict[int, str] = {}
        """The columns of the rows by their id in the table, once the table was looked at."""
        self.named: dict[str, int] = {}
        """Ids of columns by their name, for files that have no ids."""
        self._defaults: dict[str, Any] = {}
        """What columns are in files that were written before these were added, where it is not null."""
        self._options: dict[str, str] = {}
        self._parts: dict[tuple[str, ...], int] = {}
        """Ids of columns and their parts by their path, for files that have no ids."""
        self._names_by_id: dict[int, str] = {}
        """What columns, and the parts of records, lists and maps, are called in the table."""

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        """Be a source that was pickled, perhaps by an older version, which knew no defaults and no paths of parts."""
        self.__dict__.update({"named": state.get("_named", {}), "_defaults": {}, "_parts": {}, **state})

    @property
    def described(self) -> str:
        """The source's kind and table, for errors."""
        return f"IcebergSource {self.table}"

    def _versions(self) -> IcebergVersions:
        return IcebergVersions(self)

    def _columns_in(self, table: Any) -> pa.Schema:
        return columns_of(table)

    def _look_at(self, table: Any) -> None:
        """Take over the columns that are read with their ids, and how the table's files are reached."""
        from pyiceberg.schema import index_by_id

        super()._look_at(table)
        ids = {field.name: field.field_id for field in table.schema().fields}
        self.field_ids = {ids[name]: name for name in self.schema().names}
        self.named = ids_by_name(table)
        self._parts = dict(ids_by_path(table.name_mapping() or ()))
        said = {field.name: field.initial_default for field in table.schema().fields}
        self._defaults = {name: value for name, value in said.items() if value is not None}
        self._options = data_directory(table)[1]
        self._names_by_id = {number: field.name for number, field in index_by_id(table.schema()).items()}

    def create_reader(self, context: SourceContextInfo) -> SourceReader:
        """A reader with the keys that the catalogue lends now: they are good for less time than the job runs."""
        if "s3.session-token" in self._options:
            self._options = data_directory(self._versions().table)[1]
        return super().create_reader(context)

    def location_of(self, path: str) -> Location:
        """Where a data file lies, by its name in the table, in which nothing is escaped."""
        return locate(path.removeprefix("file://") if path.startswith("file:///") else path, self._options)

    def absent(self, field: pa.Field, rows: int) -> pa.Array:
        """The default that a column was added with, as far as it has one."""
        if field.name not in self._defaults:
            return super().absent(field, rows)
        return pa.repeat(pa.scalar(self._defaults[field.name], field.type), rows)

    def names_in_file(self, file: pa.Schema, split: Mapping[str, Any]) -> dict[str, str]:
        """Columns are known by the ids that the file's columns have; a file without ids by the names that the table had
        for them when the file was found."""
        self.schema()
        names, named = {}, split.get("named", self.named)
        for field in file:
            known = (field.metadata or {}).get(FIELD_ID)
            number = named.get(field.name) if known is None else int(known)
            if number in self.field_ids:
                names[self.field_ids[number]] = field.name
        return names

    def renamed_inside(self, kind: pa.DataType, *path: str) -> pa.DataType:
        """Parts of records are known by their ids, too, or in files without by the names that the table had for them;
        one that the table has no more gets a name that it has not."""
        if pa.types.is_struct(kind):
            return pa.struct([self._renamed(field, *path, field.name) for field in kind])
        if pa.types.is_list(kind):
            return pa.list_(self._renamed(kind.value_field, *path, "element"))
        if pa.types.is_large_list(kind):
            return pa.large_list(self._renamed(kind.value_field, *path, "element"))
        if pa.types.is_map(kind):
            key, item = self._renamed(kind.key_field, *path, "key"), self._renamed(kind.item_field, *path, "value")
            return pa.map_(key, item)
        return kind

    def _renamed(self, field: pa.Field, *path: str) -> pa.Field:
        known = (field.metadata or {}).get(FIELD_ID)
        number = self._parts.get(path) if known is None else int(known)
        name = field.name if number is None else self._names_by_id.get(number, f"{field.name}#{number}")
        return field.with_name(name).with_type(self.renamed_inside(field.type, *path))


def ids_by_path(mapping: Iterable[Any], *path: str) -> Iterator[tuple[tuple[str, ...], int]]:
    """Which column, or part of one, a path in a file without ids means, by what the table says of names."""
    for field in mapping:
        for name in field.names:
            if field.field_id is not None:
                yield (*path, name), field.field_id
            yield from ids_by_path(field.fields, *path, name)


def ids_by_name(table: Any) -> dict[str, int]:
    """Which column a name in a file without ids means."""
    mapping = table.name_mapping()
    if mapping is None:
        return {field.name: field.field_id for field in table.schema().fields}
    return {name: field.field_id for field in mapping for name in field.names if field.field_id is not None}


class IcebergVersions:
    """The snapshots that the table's state rests on."""

    def __init__(self, source: IcebergSource) -> None:
        self._source = source
        self._catalog = open_catalog(source.catalog)
        self.table: Any = None
        self._chain: list[int] = []
        """Ids of snapshots, oldest first."""
        self.refresh()

    def refresh(self) -> None:
        source = self._source
        table = open_table(self._catalog, source.table)
        if table is None:
            raise ConnectorError(f"{source.described}: there is no such table; create it first")
        self.table = table
        self._chain = [snapshot.snapshot_id for snapshot in ancestors(table, source.table)][::-1]
        self._require_columns()

    def newest(self) -> int | None:
        return self._chain[-1] if self._chain else None

    def start(self) -> dict[str, Any]:
        source, first = self._source, self._source.starting_snapshot
        if source.starting_timestamp is not None:
            at_ms = milliseconds(source.starting_timestamp)
            first = next((one for one in self._chain if self.table.snapshot_by_id(one).timestamp_ms >= at_ms), None)
            if first is None:
                return {"at": self.newest(), "whole": False, "done": True}
        if first is None:
            return {"at": self.newest(), "whole": True, "done": self.newest() is None}
        self._place_of(first)
        return {"at": first, "whole": False, "done": False}

    def after(self, version: int | None) -> int | None:
        place = -1 if version is None else self._place_of(version)
        return self._chain[place + 1] if place + 1 < len(self._chain) else None

    def files(self, version: int, *, whole: bool) -> Sequence[dict[str, Any]]:
        try:
            return self._all_files(version) if whole else self._added_files(version)
        except (*failures(), *DAMAGES) as error:
            raise unusable(self._source.table, error) from error

    def _place_of(self, snapshot_id: int) -> int:
        if snapshot_id in self._chain:
            return self._chain.index(snapshot_id)
        raise ConnectorError(
            f"{self._source.described}: snapshot {snapshot_id} is none of those that the table rests on; it has expired, or the table was "
            "rolled back, and what was added after it is not known. Start anew, with a snapshot or another starting_snapshot"
        )

    def _all_files(self, version: int) -> list[dict[str, Any]]:
        tasks = list(self.table.scan(snapshot_id=version).plan_files())
        if any(task.delete_files for task in tasks):
            raise self._has_deletes(version)
        return sorted((self._said(task.file) for task in tasks), key=lambda file: str(file["path"]))

    def _added_files(self, version: int) -> list[dict[str, Any]]:
        source, snapshot = self._source, self.table.snapshot_by_id(version)
        operation = "append" if snapshot.summary is None else snapshot.summary.operation.value
        if operation == "replace":
            return []
        if operation in CHANGES:
            if source.skip_change_commits:
                return []
            following = self.after(version)
            behind = f", or start behind it with starting_snapshot={following}" if following is not None else ""
            raise ConnectorError(
                f"{source.described}: snapshot {version} deletes or changes rows ({operation}), which a source of added rows cannot say; "
                f"skip_change_commits=True leaves such snapshots out with all that they add{behind}"
            )
        files = []
        for manifest in snapshot.manifests(self.table.io):
            if manifest.added_snapshot_id != version:
                continue
            if manifest.content != 0:
                raise self._has_deletes(version)
            entries = manifest.fetch_manifest_entry(self.table.io, discard_deleted=True)
            files += [self._said(entry.data_file) for entry in entries if entry.snapshot_id in (None, version)]
        ordered = sorted(files, key=lambda file: str(file["path"]))
        return [{**file, "committed_ms": snapshot.timestamp_ms} for file in ordered]

    def _has_deletes(self, version: int) -> ConnectorError:
        return ConnectorError(
            f"{self._source.described}: snapshot {version} has delete files, which IcebergSource cannot apply; rewrite_data_files of the "
            "table's own maintenance puts them away"
        )

    def _require_columns(self) -> None:
        """Raise ConnectorError when the table has lost a column that is read, or its type."""
        source = self._source
        if not source.field_ids:
            return
        columns, fields = columns_of(self.table), {field.field_id: field.name for field in self.table.schema().fields}
        for number, name in source.field_ids.items():
            is_now = columns.field(fields[number]).type if number in fields else "gone"
            if is_now != source.schema().field(name).type:
                raise ConnectorError(
                    f"{source.described}: column {name!r} of the table, which was {source.schema().field(name).type}, is {is_now}; start the "
                    "job again, or leave the column out of columns="
                )

    def _said(self, file: Any) -> dict[str, Any]:
        """What a split says of a file; other programs add files without the columns that their partition has a value
        of."""
        schema, names, values = self.table.schema(), self._source.field_ids, {}
        for field, value in zip(self.table.specs()[file.spec_id].fields, file.partition, strict=True):
            if str(field.transform) == "identity" and field.source_id in names:
                with contextlib.suppress(OverflowError):  # years that Python has no dates of
                    values[names[field.source_id]] = _text(field.transform, schema.find_type(field.source_id), value)
        said = {"path": file.file_path, "bytes": int(file.file_size_in_bytes), "values": values}
        now, then = (
            {name: number for name, number in named.items() if number in names}
            for named in (ids_by_name(self.table), self._source.named)
        )
        return said if now == then else {**said, "named": now}


def _text(transform: Any, kind: Any, value: Any) -> str | None:
    """A partition's value as Arrow reads it; None for null, and for bytes, which have no text."""
    return None if value is None or isinstance(value, bytes) else str(transform.to_human_string(kind, value))
