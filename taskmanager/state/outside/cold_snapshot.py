"""Snapshot parts of rows that lie outside of memory: written in upload threads, from segments that do not change.

A part is a file like any other of keyed state (`snapline.dataflow.snapshot.state_format`): the rows of one segment, or
those that were changed. It may hold rows that are out of date because the key is in memory: the part with what is in
memory follows as a delta, and what comes last counts. Takes the place of Flink's RocksFullSnapshotStrategy and its
iterators.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from snapline.dataflow.columnar.gather import gather_array
from snapline.dataflow.key_groups import KeyGroupRange
from snapline.dataflow.snapshot.state_format import (
    DELTA_METADATA,
    TIMERS_COLUMN,
    column_role,
    encode_keyed_state,
    read_ahead,
)
from snapline.runtime.cores.machine import check
from snapline.taskmanager.state.index.slots import Slots
from snapline.taskmanager.state.keyed_snapshot import FrozenRows, by_key_group
from snapline.taskmanager.state.outside.cold_rows import ChangedOutside, ColdRows, RowColumns
from snapline.taskmanager.state.outside.row_log import FrozenSegment, RowsAt

_CHUNK_ROWS = 1 << 14
"""So many rows are decoded at once."""


class FileOfRows(NamedTuple):
    """What rows become in a file."""

    schema: pa.Schema
    """With roles; the key's columns first."""
    key_columns: int
    key_groups: KeyGroupRange
    max_parallelism: int
    as_now: Callable[[pa.Field, pa.Array], pa.Array]
    """Turns a column as it was written into what the schema says; called from an upload thread."""


class ColdSnapshot:
    """What the synchronous part leaves to the asynchronous one (KeyedSnapshotPart)."""

    __slots__ = ("_cold", "_format", "_rows", "row_count")

    def __init__(self, cold: ColdRows, rows: FrozenSegment | ChangedOutside, file_of_rows: FileOfRows) -> None:
        """`rows`: of a segment, or those that were changed, which makes it a delta."""
        self._cold = cold
        self._rows: FrozenSegment | ChangedOutside | None = rows
        self._format = file_of_rows
        self.row_count = 0
        """Keys in the file; known once it is encoded."""

    @property
    def key_group_range(self) -> KeyGroupRange:
        """Return the key groups that the part covers."""
        return self._format.key_groups

    def encode(self) -> memoryview:
        """Return the bytes of the snapshot's file."""
        schema, key_columns, key_groups, max_parallelism, _ = self._format
        keys, rows = self._frozen()
        if isinstance(self._rows, ChangedOutside):
            schema = schema.with_metadata({DELTA_METADATA: b"1"})
        self.row_count = len(keys[0])
        numbers = np.arange(len(keys[0]), dtype=np.int32)
        key_fields = list(schema)[:key_columns]
        order, offsets = by_key_group(key_fields, FrozenRows(keys), numbers, key_groups, max_parallelism)
        decoded, begin = self._batch(schema, keys, rows, order[:0]), 0

        def decode(first: int, end: int) -> pa.RecordBatch:
            return self._batch(schema, keys, rows, order[first:end])

        def read_rows(first: int, end: int) -> pa.RecordBatch:
            nonlocal decoded, begin
            if first < begin or end > begin + decoded.num_rows:
                decoded, begin = read_ahead(decode, first, end, first + _CHUNK_ROWS), first
            return decoded.slice(first - begin, end - first)

        return encode_keyed_state(schema, key_groups, max_parallelism, offsets, read_rows)

    def _frozen(self) -> tuple[list[pa.Array], RowsAt]:
        """The key columns, and the rows of the first keys."""
        if isinstance(self._rows, ChangedOutside):
            return self._rows
        rows, _ = check(self._rows, "a part of a snapshot was encoded after its release").live()
        pieces = []
        for first in range(0, max(1, len(rows.positions)), _CHUNK_ROWS):
            offsets, data = rows.read(np.arange(first, min(first + _CHUNK_ROWS, len(rows.positions)), dtype=np.int32))
            pieces.append(self._cold.decode_keys(data, offsets[:-1]))
        return [pa.concat_arrays(columns) for columns in zip(*pieces, strict=True)], rows

    def release(self) -> None:
        """Let go of the segments."""
        self._rows = None

    def _batch(self, schema: pa.Schema, keys: Sequence[pa.Array], rows: RowsAt, chosen: Slots) -> pa.RecordBatch:
        """Rows of the file, in this order; keys behind the last row have none any more."""
        present = np.flatnonzero(chosen < len(rows.positions))
        offsets, data = rows.read(chosen[present])
        groups = self._cold.decode(data, offsets[:-1])
        places = np.full(len(chosen), -1, np.int64)
        places[present[np.concatenate([group.rows for group in groups])] if groups else present] = np.arange(
            len(present)
        )
        columns = [gather_array(column, chosen) for column in keys]
        for field in list(schema)[self._format.key_columns :]:
            parts = [self._column(group, field) for group in groups]
            column = pa.concat_arrays(parts) if len(parts) > 1 else parts[0] if parts else pa.nulls(0, field.type)
            if len(groups) != 1 or len(present) < len(chosen):
                column = column.take(pa.array(places, mask=places < 0))
            columns.append(_without_null_lists(column) if column_role(field) == TIMERS_COLUMN else column)
        return pa.RecordBatch.from_arrays(columns, schema=schema)

    def _column(self, group: RowColumns, field: pa.Field) -> Any:
        for written, column in group.columns:
            if written.name == field.name:
                return self._format.as_now(written, column)
        return pa.nulls(len(group.rows), field.type)


def _without_null_lists(timers: pa.Array) -> pa.Array:
    """No timers are an empty list."""
    return pa.LargeListArray.from_arrays(timers.offsets, timers.values) if timers.null_count else timers
