"""Delta tables as a source: the rows of a version, or what came since one, and with `follow=True` what comes later.

Decides which versions are read and which commits can be: rows that are added are read once, a commit that only moves
rows into other files is passed over, and one that changes or deletes rows fails the job or is left out as a whole. Data
files are splits, found by one task. The log is read as it is written, a file for each version; what a version has as a
whole is said by the deltalake library. Mirrors Spark's streaming source for Delta.
"""

from __future__ import annotations

import datetime as dt
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal
from urllib.parse import unquote

import pyarrow as pa
from pyarrow import fs

from snapline.connectors.delta.delta_sink import file_options, partition_text
from snapline.connectors.delta.delta_table import columns_of, failures, library, open_table, unusable
from snapline.connectors.files.filesystems import Location, PathLike, absolute, first_line, locate
from snapline.connectors.tables.table_discovery import milliseconds
from snapline.connectors.tables.table_source import BATCH_ROWS, DISCOVERY_INTERVAL_MS, TableSource
from snapline.dataflow.errors import ConnectorError

SPACE = re.compile(r"\s*")


class DeltaSource(TableSource):
    """Reads a Delta table that is there; with `follow=True` also what is added later.

    >>> import deltalake
    >>> deltalake.write_deltalake(f"{tmp}/clicks", pa.table({"page": ["a", "b"], "n": [1, 2]}))
    >>> clicks = sl_connectors.DeltaSource(f"{tmp}/clicks", follow=True, starting_version=0, columns=["n"])
    >>> clicks.schema().names, clicks.bounded, clicks.splits_at_once
    (['n'], False, 1)
    >>> clicks.names_in_file(pa.schema([("page", pa.string()), ("n", pa.int64())]), {})
    {'n': 'n'}
    >>> clicks.described.endswith("clicks"), clicks.location_of("part-0.parquet").path.endswith("clicks/part-0.parquet")
    (True, True)
    """

    def __init__(
        self,
        path: PathLike,
        *,
        follow: bool = False,
        starting_version: int | Literal["latest"] | None = None,
        starting_timestamp: dt.datetime | None = None,
        columns: str | Sequence[str] | None = None,
        skip_change_commits: bool = False,
        ignore_missing: bool = False,
        discovery_interval_ms: int = DISCOVERY_INTERVAL_MS,
        batch_rows: int = BATCH_ROWS,
        storage_options: Mapping[str, str] | None = None,
    ) -> None:
        """`follow`: look for new versions every `discovery_interval_ms`, for ever. Without a start the rows of the
        newest version come first. `starting_version`: only what was added by this version and later ones, or after the
        newest one (`latest`). `starting_timestamp`: the same from the first version at or after a time (UTC, unless it
        has a zone). `columns`: only these, in this order. `skip_change_commits`: leave out commits that delete or
        change rows, with all that they add. `ignore_missing`: leave out files that are gone before they are read.
        `storage_options`: as for `DeltaSink`. Raises ConnectorError for what makes no sense."""
        self.path: str = absolute(path)
        if starting_version is not None and starting_timestamp is not None:
            raise ConnectorError(f"{self.described}: give starting_version or starting_timestamp, not both")
        is_number = isinstance(starting_version, int) and not isinstance(starting_version, bool)
        if starting_version not in (None, "latest") and not is_number:
            raise ConnectorError(
                f"{self.described}: starting_version is a number or 'latest', not {starting_version!r}"
            )
        if isinstance(starting_version, int) and starting_version < 0:
            raise ConnectorError(f"{self.described}: starting_version is 0 or more, not {starting_version}")
        super().__init__(
            follow=follow, starting_timestamp=starting_timestamp, columns=columns,
            skip_change_commits=skip_change_commits, ignore_missing=ignore_missing,
            discovery_interval_ms=discovery_interval_ms, batch_rows=batch_rows,
        )  # fmt: skip
        self.starting_version: int | Literal["latest"] | None = starting_version
        self.storage_options: dict[str, str] = dict(storage_options or {})
        self.known_at = 0
        """The version in which the table had the columns that are read."""
        self._place: Location | None = None

    @property
    def described(self) -> str:
        """The source's kind and path, for errors."""
        return f"DeltaSource {self.path}"

    def _versions(self) -> DeltaVersions:
        return DeltaVersions(self)

    def _columns_in(self, table: Any) -> pa.Schema:
        self.known_at = int(table.version())
        return columns_of(table)

    def location_of(self, path: str) -> Location:
        """Where a file of the table lies, by its path in the log."""
        if self._place is None:
            self._place = locate(self.path, file_options(self.storage_options))
        if "://" in path or path.startswith("/"):
            return locate(absolute(path), file_options(self.storage_options))
        return self._place.at(f"{self._place.path}/{path}")

    def names_in_file(self, file: pa.Schema, split: Mapping[str, Any]) -> dict[str, str]:
        """Columns are known by their names."""
        return {name: name for name in self.schema().names if name in file.names}

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_place": None}


class DeltaVersions:
    """The versions of the table, as its log has them."""

    def __init__(self, source: DeltaSource) -> None:
        self._source = source
        self._schema = source.known_schema
        self.table: Any = self._opened()
        self._newest = int(self.table.version())
        self._require_names(self.table.metadata().configuration)

    def _opened(self) -> Any:
        source = self._source
        table = open_table(source.path, source.storage_options)
        if table is None:
            raise ConnectorError(f"{source.described}: there is no Delta table; create it first")
        return table

    def _is_logged(self, version: int) -> bool:
        location = self._source.location_of(f"_delta_log/{version:020d}.json")
        try:
            return bool(location.filesystem.get_file_info(location.path).type == fs.FileType.File)
        except OSError as error:
            raise unusable(self._source.path, error) from error

    def refresh(self) -> None:
        deltalake = library()
        try:
            self.table.update_incremental()
        except deltalake.exceptions.TableNotFoundError as error:
            raise ConnectorError(f"{self._source.described}: the table is gone; put it back") from error
        except failures() as error:
            if self._is_logged(self._newest):
                raise unusable(self._source.path, error) from error
        # The library looks for later versions only, or fails, where the table was created again with fewer.
        if int(self.table.version()) == self._newest and not self._is_logged(self._newest):
            self.table = self._opened()
        self._newest = int(self.table.version())

    def newest(self) -> int:
        return self._newest

    def start(self) -> dict[str, Any]:
        source, version = self._source, self._source.starting_version
        if source.starting_timestamp is not None:
            version = self._version_since(milliseconds(source.starting_timestamp))
        if version is None:
            return {"at": self._newest, "whole": True, "done": False}
        if version == "latest":
            return {"at": self._newest, "whole": False, "done": True}
        if version > self._newest + 1:
            raise ConnectorError(
                f"{source.described}: starting_version is {version}, and the table's newest version is {self._newest}"
            )
        if version > self._newest:
            return {"at": self._newest, "whole": False, "done": True}
        return {"at": version, "whole": False, "done": False}

    def after(self, version: int | None) -> int | None:
        self._require_there(version)
        following = 0 if version is None else version + 1
        return following if following <= self._newest else None

    def files(self, version: int, *, whole: bool) -> Sequence[dict[str, Any]]:
        self._require_there(version)
        if whole:
            return self._all_files(version)
        try:
            return self._added_files(version)
        except (AttributeError, KeyError, RecursionError, TypeError, ValueError) as error:
            raise ConnectorError(
                f"{self._source.described}: what the table's log says of version {version} makes no sense ({type(error).__name__}: "
                f"{first_line(error)}); put the file back as it was, or start behind it with starting_version={version + 1}"
            ) from error

    def _require_there(self, version: int | None) -> None:
        """Raise ConnectorError when the job has come to a version that the table has not yet: it is another table."""
        if version is not None and version > self._newest:
            raise ConnectorError(
                f"{self._source.described}: this job has come to version {version}, and the table's newest version is {self._newest}: the "
                "table was deleted and created again. Start a new job without the old state"
            )

    def _all_files(self, version: int) -> list[dict[str, Any]]:
        deltalake, source = library(), self._source
        try:
            table = self.table if version == self.table.version() else deltalake.DeltaTable(
                source.path, version=version, storage_options=self.table._storage_options  # noqa: SLF001 - as it was opened
            )  # fmt: skip
            if len(pa.table(table.deletion_vectors())):
                raise self._has_deletion_vectors(version)
            found = pa.table(table.get_add_actions(flatten=True)).to_pylist()
            names = table.metadata().partition_columns
        except failures() as error:
            raise unusable(source.path, error) from error
        files = [
            {"path": unquote(file["path"]), "bytes": file["size_bytes"],
             "values": {name: partition_text(file[f"partition.{name}"]) for name in names}}
            for file in found
        ]  # fmt: skip
        return sorted(files, key=lambda file: str(file["path"]))

    def _added_files(self, version: int) -> list[dict[str, Any]]:
        source = self._source
        actions = self._actions(version)
        committed_ms = next((int(a["commitInfo"].get("timestamp") or 0) for a in actions if "commitInfo" in a), None)
        for action in actions:
            if "metaData" in action:
                self._require_names(action["metaData"].get("configuration") or {})
                self._require_columns(action["metaData"]["schemaString"], version)
        changed = [action["remove"] for action in actions if action.get("remove", {}).get("dataChange")]
        if changed:
            if source.skip_change_commits:
                return []
            raise ConnectorError(
                f"{source.described}: version {version} deletes or changes rows (of {len(changed)} files), which a source of added rows "
                "cannot say; skip_change_commits=True leaves such versions out with all that they add, or start behind it with "
                f"starting_version={version + 1}"
            )
        files = []
        for number, add in enumerate(action["add"] for action in actions if action.get("add", {}).get("dataChange")):
            if add.get("deletionVector"):
                raise self._has_deletion_vectors(version)
            path = unquote(add["path"])
            values = {name: text or None for name, text in (add.get("partitionValues") or {}).items()}
            if not all(text is None or isinstance(text, str) for text in values.values()):
                raise TypeError(f"partitionValues {values} are no texts")
            files.append(
                {"path": path, "bytes": int(add["size"]), "values": values, "committed_ms": committed_ms, "of": number}
            )
        return files

    def _actions(self, version: int) -> list[dict[str, Any]]:
        """What the log says of a version. Raises ConnectorError when it does not any more."""
        source = self._source
        location = source.location_of(f"_delta_log/{version:020d}.json")
        try:
            with location.filesystem.open_input_file(location.path) as stream:
                return _actions_of(str(stream.read_buffer(), "utf-8"))
        except FileNotFoundError as error:
            raise ConnectorError(
                f"{source.described}: version {version} is gone from the table's log, which is cleaned up "
                "(delta.logRetentionDuration); what it added is lost to this job. Start anew, with a snapshot or a later starting_version"
            ) from error
        except OSError as error:
            raise unusable(source.path, error) from error

    def _require_names(self, configuration: Mapping[str, str]) -> None:
        """Raise ConnectorError for a table in whose files columns have other names."""
        if configuration.get("delta.columnMapping.mode", "none") != "none":
            raise ConnectorError(
                f"{self._source.described}: the table maps its columns to other names, which DeltaSource cannot read"
            )

    def _require_columns(self, schema: str, version: int) -> None:
        """Raise ConnectorError when the table has lost a column that is read, or its type. Earlier versions may not
        have had it yet."""
        if self._schema is None or version <= self._source.known_at:
            return
        now = pa.schema(library().Schema.from_json(schema).to_arrow())
        for field in self._schema:
            if field.name not in now.names or now.field(field.name).type != field.type:
                is_now = f"{now.field(field.name).type}" if field.name in now.names else "gone"
                raise ConnectorError(
                    f"{self._source.described}: with version {version} column {field.name!r}, which was {field.type}, is {is_now}; start "
                    "the job again, or leave the column out of columns="
                )

    def _has_deletion_vectors(self, version: int) -> ConnectorError:
        return ConnectorError(
            f"{self._source.described}: version {version} has deletion vectors, which DeltaSource cannot apply; REORG TABLE ... APPLY (PURGE) "
            "writes the files anew"
        )

    def _version_since(self, at_ms: int) -> int:
        """The first version at or after a time, or the one that will follow the newest."""
        try:
            found = self.table.history()
        except failures() as error:
            raise unusable(self._source.path, error) from error
        later = [int(one["version"]) for one in found if int(one.get("timestamp", 0)) >= at_ms]
        return min(later, default=self._newest + 1)


def _actions_of(text: str) -> list[dict[str, Any]]:
    """The actions of a version, each a value of JSON: most writers begin a line for each, and the library does not ask
    for it. What is null is as good as not there."""
    decoder, found, at = json.JSONDecoder(), [], 0
    while (begin := SPACE.match(text, at)) and (at := begin.end()) < len(text):
        action, at = decoder.raw_decode(text, at)
        found.append({name: said for name, said in action.items() if said is not None})
    return found
