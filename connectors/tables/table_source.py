"""What sources of tables share: which columns are read, and that the versions of a table are found by one task and its
data files read by all.

Decides that what can be seen to be wrong is said at submission: a table that is not there, a column that it has not, a
start from which nothing can be read. It knows no table format, which says what the versions are.
"""

from __future__ import annotations

import datetime as dt
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from snapline.connectors.files.filesystems import Location
from snapline.connectors.files.partitions import names_of
from snapline.connectors.tables.data_file_reader import DataFileReader
from snapline.connectors.tables.table_discovery import TableEnumerator, TableVersions
from snapline.connectors.whole_numbers import require_positive
from snapline.dataflow.api.connector_api import Source, SourceContextInfo, SourceReader, SourceSplit, SplitEnumerator
from snapline.dataflow.errors import ConnectorError

BATCH_ROWS = 16_384
DISCOVERY_INTERVAL_MS = 10_000


class TableSource(Source):
    """Reads a table that is there; with `follow=True` also what is added later."""

    def __init__(
        self, *, follow: bool, starting_timestamp: dt.datetime | None, columns: str | Sequence[str] | None,
        skip_change_commits: bool, ignore_missing: bool, discovery_interval_ms: int, batch_rows: int,
    ) -> None:  # fmt: skip
        """Raises ConnectorError for what makes no sense; `described` must be known by then."""
        require_positive(self.described, batch_rows=batch_rows, discovery_interval_ms=discovery_interval_ms)
        self.follow = follow
        self.columns: tuple[str, ...] | None = None if columns is None else names_of(columns)
        if self.columns is not None and not 0 < len(set(self.columns)) == len(self.columns):
            raise ConnectorError(
                f"{self.described}: columns= names each column once, and at least one, not {columns!r}"
            )
        if starting_timestamp is not None and not isinstance(starting_timestamp, dt.datetime):
            raise ConnectorError(f"{self.described}: starting_timestamp is a datetime, not {starting_timestamp!r}")
        self.starting_timestamp = starting_timestamp
        self.skip_change_commits = skip_change_commits
        self.ignore_missing = ignore_missing
        self.discovery_interval_ms = discovery_interval_ms
        self.batch_rows = batch_rows
        self.known_schema: pa.Schema | None = None
        """The columns that are read, once the table was looked at."""

    @property
    @abstractmethod
    def described(self) -> str:
        """The source's kind and table, for errors."""

    @abstractmethod
    def _versions(self) -> TableVersions:
        """The versions of the table as it is now. Raises ConnectorError when there is none that can be read."""

    @abstractmethod
    def _columns_in(self, table: Any) -> pa.Schema:
        """The columns that a table has."""

    @abstractmethod
    def location_of(self, path: str) -> Location:
        """Where a data file lies, by the path that its split has."""

    @abstractmethod
    def names_in_file(self, file: pa.Schema, split: Mapping[str, Any]) -> Mapping[str, str]:
        """How columns of the rows are called in a file, as far as it has them. `split`: what was said of the file."""

    def renamed_inside(self, kind: pa.DataType, *path: str) -> pa.DataType:
        """The type of a column in a file, with the names that the table has for the parts of records in it. `path`: the
        column's name in the file."""
        return kind

    def absent(self, field: pa.Field, rows: int) -> pa.Array:
        """The values of a column that neither a file has nor its partition."""
        return pa.nulls(rows, field.type)

    @property
    def bounded(self) -> bool:
        return not self.follow

    @property
    def splits_at_once(self) -> int:
        return 1

    def schema(self) -> pa.Schema:
        """The table's columns, or those that were asked for. Raises ConnectorError when there is no table."""
        if self.known_schema is None:
            self._look_at(self._versions().table)
        return self.known_schema

    def _look_at(self, table: Any) -> None:
        """Take over the columns that are read. Raises ConnectorError for one that the table has not."""
        found = self._columns_in(table)
        wanted = found.names if self.columns is None else self.columns
        for name in wanted:
            if name not in found.names:
                raise ConnectorError(
                    f"{self.described}: there is no column {name!r} in the table, but {', '.join(found.names)}"
                )
        self.known_schema = pa.schema([found.field(name).with_nullable(True).remove_metadata() for name in wanted])

    def enumerate_splits(self) -> Sequence[SourceSplit]:
        """None: files are found in the cluster. Raises ConnectorError for what can be seen to be wrong by now."""
        versions = self._versions()
        self._look_at(versions.table)
        start = versions.start()
        if start["at"] is not None and not start["done"]:
            versions.files(start["at"], whole=start["whole"])
        return ()

    def create_enumerator(self, splits: Sequence[SourceSplit]) -> SplitEnumerator:
        interval_ms = self.discovery_interval_ms
        return TableEnumerator(self._versions(), follow=self.follow, interval_ms=interval_ms, what=self.described)

    def create_reader(self, context: SourceContextInfo) -> SourceReader:
        return DataFileReader(self, context)
