"""What sinks have committed, as Spark reads it: a directory of files, or a table.

Decides what an offset is and which parts lie between two of them. Of a directory: `snapline.committed_files`; it is
listed twice, and the second list is cut at the first, so that no list sees a file and misses an older one of its
subtask. Of a table: a version, and how many of the files that came with it. What is in a file is read by the connectors
of Snapline.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq
from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    InputPartition,
    LessThan,
    LessThanOrEqual,
)
from pyspark.sql.types import StructType

from snapline.committed_files import NOTHING, CommittedFile, Offset, advance, between, committed, missing
from snapline.connectors.delta.delta_source import DeltaSource, DeltaVersions
from snapline.connectors.files.file_source import FileSource
from snapline.connectors.files.filesystems import Location, advice, first_line, locate
from snapline.connectors.files.listing import files_below
from snapline.connectors.files.staging import NULL_PARTITION, file_name
from snapline.connectors.iceberg.iceberg_source import IcebergSource, IcebergVersions
from snapline.connectors.tables.data_file_reader import DataFileReader
from snapline.connectors.tables.table_discovery import TableVersions
from snapline.dataflow.api.connector_api import SourceSplit
from snapline.dataflow.api.user_metrics import MetricGroup
from snapline.dataflow.errors import ConnectorError
from snapline.spark.frame_types import arrow_schema_for_spark, conform_to_spark

FORMAT = "snapline"
_SAID = f'format("{FORMAT}")'
_BATCH_ROWS = 65_536
_COLUMNAR = ("parquet", "orc")
_COMPARISONS = {
    EqualTo: pc.equal,
    GreaterThan: pc.greater,
    GreaterThanOrEqual: pc.greater_equal,
    LessThan: pc.less,
    LessThanOrEqual: pc.less_equal,
}
Condition = tuple[type[Filter], str, Any]
"""A comparison of a column with a constant: rows for which it does not hold may be left out, and need not be."""


@dataclass(frozen=True)
class Part(InputPartition):
    """A file, which one task reads."""

    described: Mapping[str, Any]


class CommittedRows(Protocol):
    """What one sink, or several, have committed. It travels to the executors."""

    def schema(self) -> pa.Schema:
        """The columns of the rows. Raises ConnectorError when they are not known."""
        ...

    def parts(self) -> Sequence[Part]:
        """All that is committed now."""
        ...

    def newest(self) -> Offset:
        """What `advance` does not go beyond, from now on."""
        ...

    def advance(self, start: Offset, end: Offset | None, most: int | None) -> Offset:
        """The offset behind the oldest `most` files after `start`, or behind all; never beyond `end`."""
        ...

    def between(self, start: Offset, end: Offset) -> Sequence[Part]:
        """The same files whenever Spark asks. Raises ConnectorError when one is gone."""
        ...

    def read(self, part: Part, schema: StructType, conditions: Sequence[Condition]) -> Iterator[pa.RecordBatch]:
        """The rows of one part, as Spark wants them."""
        ...


def is_comparison(one: Filter) -> bool:
    """Whether a filter can be a condition."""
    return type(one) in _COMPARISONS or isinstance(one, In)


def _expression(conditions: Sequence[Condition], columns: pa.Schema) -> ds.Expression | None:
    """Those of the conditions that are about these columns. Times are compared in the unit and zone of their column,
    and by Spark alone where that does not hold them: of others Arrow compares some with an error, as it does some
    numbers."""
    whole: ds.Expression | None = None
    for kind, column, value in conditions:
        if column not in columns.names:
            continue
        values = [each for each in value if each is not None] if kind is In else [value]
        data_type = columns.field(column).type
        if pa.types.is_timestamp(data_type):
            try:
                values = pa.array(values).cast(data_type)
            except pa.ArrowException:
                continue
        one = (
            ds.field(column).isin(values) if kind is In else _COMPARISONS[kind](ds.field(column), ds.scalar(values[0]))
        )
        try:
            pa.table({column: pa.nulls(1, data_type)}).filter(one)
        except pa.ArrowException:
            continue
        whole = one if whole is None else whole & one
    return whole


# --- files ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class CommittedDirectory:
    """The directory of a sink of files, in any format that can be read, perhaps with partitions."""

    path: str
    storage_options: Mapping[str, str] = field(default_factory=dict)
    uid: str = ""
    columns: tuple[str, ...] = ()

    @property
    def _location(self) -> Location:
        return locate(self.path, self.storage_options)

    def _files(self) -> list[CommittedFile]:
        """What is committed now; complete for each subtask up to its last file."""
        seen = advance(NOTHING, self._list())
        return [file for file in self._list() if not file.is_after(seen)]

    def _list(self) -> list[CommittedFile]:
        location = self._location
        try:
            infos = files_below(location.filesystem, location.path)
        except FileNotFoundError:
            raise ConnectorError(
                f"{_SAID}: there is no directory {self.path}; the sink of a job makes it, and every machine has to reach it"
            ) from None
        except OSError as error:
            raise ConnectorError(f"{_SAID}: cannot read {self.path}: {first_line(error)}; {advice(error)}") from error
        found = committed(info.path[len(location.path.rstrip("/")) + 1 :] for info in infos)
        wanted = file_name(self.uid) if self.uid else ""
        return [file for file in found if not wanted or file.sink_uid == wanted]

    def schema(self) -> pa.Schema:
        files = self._files()
        if not files:
            raise ConnectorError(
                f"{_SAID}: nothing is committed in {self.path} yet, so its columns are not known; give .schema(...)"
            )
        first, location = files[0], self._location
        place = f"{location.path}/{first.name}"
        if first.format == "parquet":
            schema = pq.read_schema(place, filesystem=location.filesystem)
        elif first.format == "orc":
            schema = ds.dataset(place, filesystem=location.filesystem, format="orc").schema
        else:
            paths = [f"{self.path}/{file.name}" for file in files if file.format == first.format]
            schema = FileSource(paths, first.format, storage_options=self.storage_options).schema()
        for name in _values_of(first.directory):
            schema = schema.append(pa.field(name, pa.string()))
        for name in self.columns:
            if name not in schema.names:
                raise ConnectorError(
                    f"{_SAID}: there is no column {name!r} in {self.path}; columns: {', '.join(schema.names)}"
                )
        return pa.schema([schema.field(name) for name in self.columns or schema.names])

    def parts(self) -> Sequence[Part]:
        return [_part_of(file) for file in self._files()]

    def newest(self) -> Offset:
        return advance(NOTHING, self._files())

    def advance(self, start: Offset, end: Offset | None, most: int | None) -> Offset:
        files = [file for file in self._files() if end is None or not file.is_after(end)]
        return advance(start, files, most)

    def between(self, start: Offset, end: Offset) -> Sequence[Part]:
        files = self._files()
        gone = missing(files, end, start)
        if gone:
            raise ConnectorError(
                f"{_SAID}: files of {gone[0]} that the query has to read are gone from {self.path}; put them back, or start "
                "the query with another checkpointLocation"
            )
        return [_part_of(file) for file in between(files, start, end)]

    def read(self, part: Part, schema: StructType, conditions: Sequence[Condition]) -> Iterator[pa.RecordBatch]:
        target, name = arrow_schema_for_spark(schema), part.described["name"]
        values = {key: value for key, value in _values_of(part.described["directory"]).items() if key in target.names}
        try:
            constants = pa.table({key: pa.array([value]).cast(target.field(key).type) for key, value in values.items()})
            hides = _expression(conditions, constants.schema)
            if hides is not None and not constants.filter(hides).num_rows:
                return
            inside = pa.schema([each for each in target if each.name not in values])
            for batch in self._batches(name, part.described["format"], inside, conditions):
                rows = pa.array([0] * batch.num_rows, pa.int32())
                for key in values:
                    batch = batch.append_column(key, constants[key].combine_chunks().take(rows))  # noqa: PLW2901
                if batch.num_rows:
                    yield conform_to_spark(batch, target)
        except (OSError, pa.ArrowException) as error:
            raise ConnectorError(f"{_SAID}: cannot read {self.path}/{name}: {first_line(error)}") from error

    def _batches(
        self, name: str, kind: str, wanted: pa.Schema, conditions: Sequence[Condition]
    ) -> Iterator[pa.RecordBatch]:
        """The rows of a file, with at least the wanted columns that it has to have."""
        location = self._location
        place = f"{location.path}/{name}"
        if kind in _COLUMNAR:
            data = ds.dataset(place, filesystem=location.filesystem, format=kind)
            self._require(name, wanted, data.schema)
            there = (data.schema.field(name) for name in wanted.names)
            # Spark has a number for a time of day.
            condition = _expression(conditions, pa.schema([one for one in there if not pa.types.is_time(one.type)]))
            yield from data.to_batches(columns=wanted.names, filter=condition, batch_size=_BATCH_ROWS)
            return
        source = FileSource(
            f"{self.path}/{name}",
            kind,
            schema=None if kind == "avro" else wanted,
            storage_options=self.storage_options,
        )
        self._require(name, wanted, source.schema())
        with location.filesystem.open_input_file(place) as stream:
            for found in source.format.read(stream, {}, batch_rows=_BATCH_ROWS, columns=wanted.names):
                if found.bad:
                    line = found.bad[0]
                    raise ConnectorError(f"{_SAID}: line {line.number} of {self.path}/{name} is no row: {line.reason}")
                yield found.rows

    def _require(self, name: str, wanted: pa.Schema, there: pa.Schema) -> None:
        lacking = [column for column in wanted.names if column not in there.names]
        if lacking:
            raise ConnectorError(f"{_SAID}: {self.path}/{name} has no column {lacking[0]!r}")


def _part_of(file: CommittedFile) -> Part:
    return Part({"name": file.name, "format": file.format, "directory": file.directory})


def _values_of(directory: str) -> dict[str, str | None]:
    """The columns of a partition, as text."""
    pairs = (each.split("=", 1) for each in directory.split("/") if each)
    return {unquote(name): None if text == NULL_PARTITION else unquote(text) for name, text in pairs}


# --- tables -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _NoSubtask:
    """What a connector's reader may know of its subtask, where there is none."""

    subtask_index: int = 0
    parallelism: int = 1
    attempt_number: int = 0
    job_id: str = ""
    operator_uid: str = FORMAT
    execution_attempt: str = ""
    metrics: MetricGroup = field(default_factory=lambda: MetricGroup(FORMAT))


class CommittedTable:
    """A table of Delta or Iceberg."""

    def __init__(self, source: DeltaSource | IcebergSource) -> None:
        self._source = source
        source.schema()  # looked up here, and taken along

    def _versions(self) -> TableVersions:
        if isinstance(self._source, DeltaSource):
            return DeltaVersions(self._source)
        return IcebergVersions(self._source)

    def schema(self) -> pa.Schema:
        return self._source.schema()

    def parts(self) -> Sequence[Part]:
        versions = self._versions()
        newest = versions.newest()
        return [] if newest is None else [Part(file) for file in versions.files(newest, whole=True)]

    def newest(self) -> Offset:
        return {"version": self._versions().newest()}

    def advance(self, start: Offset, end: Offset | None, most: int | None) -> Offset:
        offset, taken = start, 0
        for reached, file in self._walk(start, end):
            taken += file is not None
            if most is not None and taken > most:
                break
            offset = reached
        return offset

    def between(self, start: Offset, end: Offset) -> Sequence[Part]:
        return [Part(file) for _, file in self._walk(start, end) if file is not None]

    def _walk(self, start: Offset, end: Offset | None) -> Iterator[tuple[Offset, dict[str, Any] | None]]:
        """Each file after `start`, up to `end`, and the offset behind it; None: a version without any is passed."""
        if start == end:
            return
        versions, last = self._versions(), (end or {}).get("version")
        at, taken, whole = start.get("version"), start.get("files", 0), start.get("whole", False)
        if at is None:  # all that the newest version has; or what it was when Spark asked first
            at = versions.newest() if end is None else end.get("first", last)
            taken, whole = 0, True
        first = start.get("first", at)
        while at is not None:
            files = versions.files(at, whole=whole)
            for number in range(taken, max(len(files), 1)):
                reached = {"version": at, "files": number + 1, "whole": whole, "first": first}
                yield reached, files[number] if files else None
                if reached == end:
                    return
            if at == last:
                return
            at, taken, whole = versions.after(at), 0, False

    def read(self, part: Part, schema: StructType, conditions: Sequence[Condition]) -> Iterator[pa.RecordBatch]:
        target = arrow_schema_for_spark(schema)
        lacking = [name for name in target.names if name not in self._source.schema().names]
        if lacking:
            raise ConnectorError(f"{_SAID}: {self._source.described} has no column {lacking[0]!r}")
        reader = DataFileReader(self._source, _NoSubtask())
        reader.add_splits([SourceSplit("", dict(part.described))])
        while not (polled := reader.poll_next(0)).finished_splits:
            if polled.batch is not None:
                yield conform_to_spark(polled.batch, target)
