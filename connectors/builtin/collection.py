"""Rows given in the program as a source, and rows gathered in the process as a sink: for tests and first steps.

The data travels inside the job. A source has one split by default, so that order is kept, as in Flink's fromData. The
sink is a full two-phase one: its committables carry the rows, and a commit that comes again is recognised.
"""

from __future__ import annotations

import base64
import datetime as dt
import threading
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import Any

import pyarrow as pa

from snapline.connectors.formats.casts import require_unchanged
from snapline.connectors.whole_numbers import require_positive
from snapline.dataflow.api.connector_api import (
    Committable,
    Committer,
    InputStatus,
    Polled,
    Sink,
    SinkWriter,
    Source,
    SourceContextInfo,
    SourceReader,
    SourceSplit,
)
from snapline.dataflow.columnar.python_values import check_levels, misspelled, table_in_arrow, table_of
from snapline.dataflow.errors import ConnectorError

BATCH_ROWS = 1024


class CollectionSource(Source):
    """Batches that the program holds.

    >>> source = sl_connectors.CollectionSource.of_rows([{"n": 1}, {"n": 2}], splits=2)
    >>> source.schema().names, len(source.enumerate_splits())
    (['n'], 2)
    """

    def __init__(self, batches: Sequence[pa.RecordBatch], *, splits: int = 1, schema: pa.Schema | None = None) -> None:
        """Batch i belongs to split i modulo `splits`. Raises ConnectorError for what is no list of batches with equal
        columns."""
        require_positive("CollectionSource", splits=splits)
        self._batches = tuple(batches) if isinstance(batches, Iterable) else (batches,)
        wrong = [type(batch).__name__ for batch in self._batches if not isinstance(batch, pa.RecordBatch)]
        if wrong:
            raise ConnectorError(
                f"CollectionSource takes a list of RecordBatches, not of {wrong[0]}; CollectionSource.of_rows takes dictionaries and tables"
            )
        self._splits = splits
        self._schema = schema if schema is not None else (self._batches[0].schema if self._batches else None)
        for number, batch in enumerate(self._batches):
            if batch.schema != self._schema:
                raise ConnectorError(
                    f"CollectionSource: batch {number} has other columns than the first: {batch.schema}"
                )
        if self._schema is not None and not all(field.nullable for field in self._schema):
            # Rows that meet these, or take their place, may be null.
            fields = [field.with_nullable(True) for field in self._schema]
            self._schema = pa.schema(fields, self._schema.metadata)
            self._batches = tuple(pa.RecordBatch.from_arrays(b.columns, schema=self._schema) for b in self._batches)

    @classmethod
    def of_rows(
        cls,
        rows: Iterable[Mapping[str, Any]] | Any,
        *,
        schema: pa.Schema | None = None,
        splits: int = 1,
        batch_rows: int = BATCH_ROWS,
    ) -> CollectionSource:
        """Dictionaries, column name to value, or a table that Arrow can read (of pyarrow, Polars or pandas). Types come
        from `schema`, else from the values or the table.

        >>> sl_connectors.CollectionSource.of_rows(pa.table({"n": [1, 2]})).schema().names
        ['n']
        """
        require_positive("CollectionSource", splits=splits, batch_rows=batch_rows)
        if schema is not None and not isinstance(schema, pa.Schema):
            raise ConnectorError(
                f"CollectionSource: {schema!r} is no schema: say which columns there are by pyarrow.schema([(name, type), ...])"
            )
        try:
            if hasattr(rows, "__arrow_c_stream__"):
                if not hasattr(rows, "select_dtypes"):  # it may be one that is read once
                    rows = table_in_arrow(rows)
                table = table_in_arrow(rows, schema)
                if schema is not None:
                    _require_same_values(rows, table)
                rows = table
            else:
                rows = [dict(row) for row in rows]
                if schema is None:
                    check_levels(value for row in rows for value in row.values())
                    schema = pa.Table.from_pylist(rows).schema
                    _check_inferred(schema, rows)
                elif found := misspelled(rows, schema.names):
                    raise ConnectorError(f"CollectionSource: row {found[0]} {found[1]}, as schema= says")
                table = table_of(rows, schema)
        except (KeyError, OverflowError, TypeError, ValueError) as error:
            raise ConnectorError(
                f"CollectionSource: the rows do not fit together ({str(error).splitlines()[0]}); give every row the same "
                "columns and types, or say schema="
            ) from error
        if not table.column_names and rows:
            raise ConnectorError(
                "CollectionSource: the rows have no columns, and would be lost: give them one, or no rows"
            )
        per_split = max(1, min(batch_rows, -(-len(table) // splits)))
        return cls(table.to_batches(max_chunksize=per_split), splits=splits, schema=table.schema)

    def schema(self) -> pa.Schema | None:
        return self._schema

    def enumerate_splits(self) -> Sequence[SourceSplit]:
        return [SourceSplit(f"collection-{number}", {"number": number}) for number in range(self._splits)]

    def create_reader(self, context: SourceContextInfo) -> SourceReader:
        return CollectionReader(self._batches, self._splits)


def _require_same_values(given: Any, found: pa.Table) -> None:
    """Raises ArrowInvalid where a column of a table got other values with its type. What pandas keeps as objects was
    made into the type from the values themselves."""
    if hasattr(given, "select_dtypes"):
        given = given[[name for name in found.column_names if name in given.columns]].select_dtypes(exclude="object")
    plain = table_in_arrow(given)
    for name in set(found.column_names) & set(plain.column_names):
        try:
            # Not in one piece, in which categories may be too many for the type of their numbers.
            for batch in pa.table([plain.column(name), found.column(name)], ["before", "after"]).to_batches():
                require_unchanged(*batch.columns)
        except pa.ArrowInvalid as error:
            raise pa.ArrowInvalid(f"column {name!r}: {error}") from None


def _check_inferred(schema: pa.Schema, rows: Sequence[Mapping[str, Any]]) -> None:
    """Raises ConnectorError where pyarrow, which asks the first row for the columns, for the zone of times and for
    dates, would change the others without a word."""
    late = {name for row in rows for name in row} - set(schema.names)
    if late:
        raise ConnectorError(
            f"CollectionSource: the first row has no {min(late)!r}, which a later one has; give every row the same "
            "columns, or say schema="
        )
    for field in schema:
        if pa.types.is_date(field.type) and any(isinstance(row.get(field.name), dt.datetime) for row in rows):
            raise ConnectorError(
                f"CollectionSource: {field.name!r} has dates and times of day; give it one of them, or say schema="
            )
        times = [row.get(field.name) for row in rows] if pa.types.is_timestamp(field.type) else ()
        if len({getattr(time, "tzinfo", None) is None for time in times if time is not None}) > 1:
            raise ConnectorError(
                f"CollectionSource: some times in {field.name!r} have a zone and some have none; give all of them a "
                "zone, or none, or say schema=, which takes those without one for UTC"
            )


class CollectionReader(SourceReader):
    """Reads whole batches; the position of a split is the number of its batches that were emitted."""

    def __init__(self, batches: Sequence[pa.RecordBatch], splits: int) -> None:
        self._batches = batches
        self._number_of_splits = splits
        self._splits: dict[str, SourceSplit] = {}
        self._emitted: dict[str, int] = {}

    def add_splits(self, splits: Sequence[SourceSplit]) -> None:
        for split in splits:
            self._splits[split.split_id] = split
            self._emitted[split.split_id] = int(split.position.get("batches", 0))

    def poll_next(self, now_ms: int) -> Polled:
        finished: list[str] = []
        for split_id, split in self._splits.items():
            mine = self._batches[split.description["number"] :: self._number_of_splits]
            position = self._emitted[split_id]
            if split.finished:
                continue
            if position < len(mine):
                self._emitted[split_id] = position + 1
                return Polled(
                    InputStatus.MORE_AVAILABLE,
                    mine[position],
                    split_id=split_id,
                    finished_splits=self._finish([*finished, *([split_id] if position + 1 == len(mine) else [])]),
                )
            finished.append(split_id)
        return Polled(InputStatus.END_OF_INPUT, finished_splits=self._finish(finished))

    def _finish(self, split_ids: Sequence[str]) -> tuple[str, ...]:
        for split_id in split_ids:
            split = self._splits[split_id]
            self._splits[split_id] = SourceSplit(split_id, split.description, finished=True)
        return tuple(split_ids)

    def snapshot_splits(self, checkpoint_id: int) -> Sequence[SourceSplit]:
        return [
            SourceSplit(split_id, split.description, {"batches": self._emitted[split_id]}, split.finished)
            for split_id, split in self._splits.items()
        ]


_collected: dict[str, dict[str, list[pa.RecordBatch]]] = {}
"""Sink name -> id of what was committed -> its batches, in order of commit."""
_collected_lock = threading.Lock()


class CollectSink(Sink):
    """Gathers what was committed in this process, under a name; exactly once, like the sinks that write files.

    For jobs whose tasks run in the test's own process. Tasks in Spark executors are other processes: use a ParquetSink
    into a temporary directory there.

    >>> _ = orders.sink_to(sl_connectors.CollectSink("here"), uid="here")
    >>> sl_connectors.CollectSink.rows("here"), sl_connectors.CollectSink.batches("here")
    ([], [])
    >>> sl_connectors.CollectSink.clear("here")
    """

    def __init__(self, name: str) -> None:
        self.name = name

    @staticmethod
    def batches(name: str) -> list[pa.RecordBatch]:
        """What was committed so far, in order of commit."""
        with _collected_lock:
            return [batch for batches in _collected.get(name, {}).values() for batch in batches]

    @staticmethod
    def rows(name: str) -> list[dict[str, Any]]:
        """Return the collected rows as dictionaries, one for each row."""
        return [row for batch in CollectSink.batches(name) for row in batch.to_pylist()]

    @staticmethod
    def clear(name: str) -> None:
        """Forget what was gathered under the name."""
        with _collected_lock:
            _collected.pop(name, None)

    def create_writer(self, context: SourceContextInfo, restored: Sequence[dict[str, Any]]) -> SinkWriter:
        return CollectWriter(f"{context.execution_attempt}/{context.operator_uid}/{context.subtask_index}")

    def create_committer(self, context: SourceContextInfo) -> Committer:
        return CollectCommitter(self.name)


class CollectWriter(SinkWriter):
    """Buffers; a committable holds rows of the same columns, one after the other, as an Arrow IPC stream."""

    def __init__(self, identity: str) -> None:
        self._identity = identity
        self._sequence = 0
        self._buffered: list[pa.RecordBatch] = []

    def write(self, batch: pa.RecordBatch) -> None:
        self._buffered.append(batch)

    def prepare_commit(self, checkpoint_id: int) -> Sequence[Committable]:
        buffered, self._buffered = self._buffered, []
        streams = groupby(buffered, lambda batch: batch.schema)
        return [self._committable(checkpoint_id, schema, batches) for schema, batches in streams]

    def _committable(self, checkpoint_id: int, schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> Committable:
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, schema) as writer:
            for batch in batches:
                writer.write_batch(batch)
        self._sequence += 1
        encoded = base64.b64encode(sink.getvalue()).decode("ascii")
        return Committable({"id": f"{self._identity}/{checkpoint_id}/{self._sequence}", "rows": encoded})


class CollectCommitter(Committer):
    """Adds to the gathered rows what is not there yet."""

    def __init__(self, name: str) -> None:
        self._name = name

    def commit(self, committables: Sequence[Committable]) -> None:
        for committable in committables:
            batches = list(pa.ipc.open_stream(base64.b64decode(committable.data["rows"])))
            with _collected_lock:
                _collected.setdefault(self._name, {}).setdefault(committable.data["id"], batches)
