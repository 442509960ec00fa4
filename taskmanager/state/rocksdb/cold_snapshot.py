"""Snapshot parts of rows that lie in a key-value store: written in upload threads, from views that do not move.

A part is a file like any other of keyed state (`snapline.dataflow.snapshot.state_format`), for some key groups, or for
the keys that were changed. It may hold rows that are out of date because the key is in memory: the part with what is in
memory follows as a delta, and what comes last counts. Takes the place of Flink's RocksFullSnapshotStrategy and its
iterators.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice

import numpy as np
import pyarrow as pa

from snapline.dataflow.key_groups import KeyGroupRange
from snapline.dataflow.snapshot.state_format import DELTA_METADATA, TIMERS_COLUMN, column_role, encode_keyed_state
from snapline.taskmanager.state.rocksdb.cold_rows import ColdRows, RowColumns

_CHUNK_ROWS = 8192
Entry = tuple[bytes, bytes | None]
"""A key and its row; None: it has none."""


class ColdSnapshot:
    """What the synchronous part leaves to the asynchronous one (KeyedSnapshotPart)."""

    __slots__ = (
        "_as_now",
        "_cold",
        "_entries",
        "_key_columns",
        "_max_parallelism",
        "_schema",
        "key_group_range",
        "row_count",
    )

    def __init__(
        self,
        cold: ColdRows,
        entries: Iterable[Entry],
        schema: pa.Schema,
        key_columns: int,
        key_group_range: KeyGroupRange,
        max_parallelism: int,
        as_now: Callable[[pa.Field, pa.Array], pa.Array],
        *,
        is_delta: bool = False,
    ) -> None:
        """`entries`: in the order of their key groups. `schema`: with roles, the key's columns first. `as_now` turns a
        column as it was written into what the schema says; it is called from an upload thread."""
        self._cold = cold
        self._as_now = as_now
        self._entries: Iterator[Entry] | None = iter(entries)
        self._schema = schema.with_metadata({DELTA_METADATA: b"1"}) if is_delta else schema
        self._key_columns = key_columns
        self.key_group_range = key_group_range
        self._max_parallelism = max_parallelism
        self.row_count = 0
        """Keys in the file; known once it is encoded."""

    def encode(self) -> bytes | memoryview:
        """Return the bytes of the snapshot's file."""
        counts = np.zeros(len(self.key_group_range), np.int64)
        batches = []
        while entries := list(islice(self._entries or (), _CHUNK_ROWS)):
            keys = [key for key, _ in entries]
            groups = np.frombuffer(b"".join(key[:2] for key in keys), ">u2").astype(np.int64)
            counts += np.bincount(groups - self.key_group_range.start, minlength=len(counts))
            batches.append(self._batch(keys, [row for _, row in entries]))
        offsets = np.zeros(len(counts) + 1, np.int64)
        np.cumsum(counts, out=offsets[1:])
        self.row_count = int(offsets[-1])
        table = pa.Table.from_batches(batches, schema=self._schema)

        def read_rows(first: int, end: int) -> pa.RecordBatch:
            columns = [column.combine_chunks() for column in table.slice(first, end - first).columns]
            return pa.RecordBatch.from_arrays(columns, schema=self._schema)

        return encode_keyed_state(self._schema, self.key_group_range, self._max_parallelism, offsets, read_rows)

    def release(self) -> None:
        """Let go of the view."""
        self._entries = None

    def _batch(self, keys: Sequence[bytes], rows: Sequence[bytes | None]) -> pa.RecordBatch:
        present = np.flatnonzero(np.array([row is not None for row in rows], np.bool_))
        groups = self._cold.decode([row for row in rows if row is not None])
        order = np.concatenate([present[group.rows] for group in groups]) if groups else np.zeros(0, np.int64)
        places = np.full(len(keys), -1, np.int64)
        places[order] = np.arange(len(order))
        in_order = np.array_equal(places, np.arange(len(keys)))
        columns = self._cold.columns_of(keys)
        for field in list(self._schema)[self._key_columns :]:
            parts = [self._column(group, field) for group in groups]
            column = pa.concat_arrays(parts) if parts else pa.nulls(0, field.type)
            if not in_order:
                column = column.take(pa.array(places, mask=places < 0))
            columns.append(_without_null_lists(column) if column_role(field) == TIMERS_COLUMN else column)
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)

    def _column(self, group: RowColumns, field: pa.Field) -> pa.Array:
        for written, column in group.columns:
            if written.name == field.name:
                return self._as_now(written, column)
        return pa.nulls(len(group.rows), field.type)


def _without_null_lists(timers: pa.Array) -> pa.Array:
    """No timers are an empty list."""
    return pa.LargeListArray.from_arrays(timers.offsets, timers.values) if timers.null_count else timers
