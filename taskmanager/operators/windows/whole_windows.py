"""Rows of tumbling windows that wait as they came, without an entry for each key, until their window fires whole.

An index over keys, windows and rows costs more than the join or the function that a window is for. Where a window fires
before anybody asks for its state by key, it need not exist: its batches are put together once, and its rows are grouped
by key. A snapshot asks by key: it makes that state beside the task (`waiting_snapshot`). Whoever has more rows than may
wait takes them into the state as if they came now. Decides what may wait and what is worth it; it does not know when a
window is due. Nothing in Flink is like it, whose window state is asked once per record.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa

from snapline.dataflow.columnar.arrow_columns import Int64Array
from snapline.dataflow.columnar.batch_bytes import BatchBytes
from snapline.dataflow.columnar.column_types import joined, kept_schema
from snapline.dataflow.columnar.gather import gather_batch
from snapline.dataflow.columnar.kernel import VOID, I32s, I64s, RO_I32s, kernel
from snapline.taskmanager.operators.base.stateless import conform
from snapline.taskmanager.state.index.key_index import KeyIndex
from snapline.taskmanager.state.index.slots import Slots

MAX_WAITING_ROWS = 1_048_576
"""Rows of one operator that may wait; an upload thread makes them into a file for each checkpoint."""
MAX_ROWS_TO_TAKE_IN = 32_768
"""Rows that may wait where checkpoints are incremental: these take them into the state before they go on, a pause of
6 ms."""
MAX_WAITING_BYTES = 128 << 20
MAX_WINDOWS_OF_A_BATCH = 16
"""Rows of a batch that belong to more windows do not wait: its parts are too small to be worth a list."""

WaitedRows = Sequence[tuple[int, Sequence[tuple[int, pa.RecordBatch]]]]
"""Windows, by their starts, and their batches, each with its input, in the order of their arrival."""


@kernel(VOID(RO_I32s, I64s, I32s))
def _group(owners: Any, ends: Any, rows: Any) -> None:
    """The rows of owner 0, then of owner 1, in their order. `ends`: where each owner begins; in the end, where it
    ends."""
    for row in range(owners.shape[0]):
        owner = owners[row]
        rows[ends[owner]] = row
        ends[owner] += 1


class GroupedRows:
    """Rows of one batch by owner, for reading only: what `RowStore` is for rows that come and go."""

    def __init__(self, batch: pa.RecordBatch, owners: Slots, count: int) -> None:
        """`owners`: of each row, below `count`."""
        self.schema = batch.schema
        self._batch = batch
        self._offsets: Int64Array = np.zeros(count + 1, np.int64)
        np.cumsum(np.bincount(owners, minlength=count), out=self._offsets[1:])
        self._rows = np.empty(len(owners), np.int32)
        _group(owners, self._offsets[:-1].copy(), self._rows)

    def rows_of(self, owners: Slots) -> tuple[Int64Array, Slots]:
        """(offsets, rows): owners[i], which follow each other without a gap, has rows[offsets[i]:offsets[i + 1]]."""
        first, last = int(owners[0]), int(owners[-1]) + 1
        begin, end = self._offsets[first], self._offsets[last]
        return self._offsets[first : last + 1] - begin, self._rows[begin:end]

    def counts(self, owners: Slots) -> Int64Array:
        """Return how many rows each owner has."""
        return self._offsets[owners + 1] - self._offsets[owners]

    def take(self, rows: Slots) -> pa.RecordBatch:
        """The rows of these numbers."""
        return gather_batch(self._batch, np.ascontiguousarray(rows, np.int32))


class WaitingRows:
    """Batches by window and input, in the order of their arrival."""

    def __init__(self, inputs: int) -> None:
        self._windows: dict[int, list[tuple[int, pa.RecordBatch]]] = {}
        self._rows: dict[int, int] = {}
        self._sizes = [BatchBytes() for _ in range(inputs)]
        self.rows = 0
        """How many wait, of all windows."""
        self.size_bytes = 0
        """What the batches came with; a part of a batch keeps the whole of it."""

    def is_full(self, *, taken_in: bool) -> bool:
        """Whether no more rows should wait. `taken_in`: a checkpoint takes them into the state."""
        most = min(MAX_ROWS_TO_TAKE_IN, MAX_WAITING_ROWS) if taken_in else MAX_WAITING_ROWS
        return self.rows > most or self.size_bytes > MAX_WAITING_BYTES

    @property
    def starts(self) -> list[int]:
        """The starts of the windows that have rows, the first one first."""
        return sorted(self._windows)

    def rows_of(self, start: int) -> int:
        """How many rows of this window wait."""
        return self._rows.get(start, 0)

    def add(
        self, starts: Int64Array, first: int, last: int, batch: pa.RecordBatch, input_index: int
    ) -> list[int] | None:
        """Let the rows of a batch wait, whose windows start between `first` and `last`. Returns the windows, or None
        when the rows shall not wait, because they belong to too many."""
        if first == last:
            parts = [(first, batch)]
        else:
            borders = np.flatnonzero(starts[1:] != starts[:-1]) + 1
            if len(borders) >= MAX_WINDOWS_OF_A_BATCH:
                return None
            bounds = [0, *borders.tolist(), len(starts)]
            parts = [(int(starts[begin]), batch.slice(begin, end - begin)) for begin, end in pairwise(bounds)]
        self.size_bytes += self._sizes[input_index].of(batch)
        for start, part in parts:
            self._windows.setdefault(start, []).append((input_index, part))
            self._rows[start] = self._rows.get(start, 0) + part.num_rows
        self.rows += batch.num_rows
        return [start for start, _ in parts]

    def put_first(self, start: int, input_index: int, batch: pa.RecordBatch) -> None:
        """Let rows of a window wait that came before all that wait now."""
        self._windows.setdefault(start, []).insert(0, (input_index, batch))
        self._rows[start] = self._rows.get(start, 0) + batch.num_rows
        self.size_bytes += self._sizes[input_index].of(batch)
        self.rows += batch.num_rows

    @property
    def waited(self) -> WaitedRows:
        """The windows that have rows, with them, the first window first."""
        return [(start, list(self._windows[start])) for start in self.starts]

    def take(self, start: int) -> list[tuple[int, pa.RecordBatch]]:
        """The batches of a window, each with its input, which wait no longer."""
        rows = self._rows.pop(start, 0)
        self.size_bytes -= self.size_bytes * rows // max(self.rows, 1)
        self.rows -= rows
        return self._windows.pop(start, [])


class WholeWindow:
    """A window that fires with all of its rows: one entry for each key, in the order in which the keys came."""

    def __init__(
        self,
        start: int,
        parts: Sequence[tuple[int, pa.RecordBatch]],
        schemas: Sequence[pa.Schema],
        key_fields: Sequence[pa.Field],
        key_columns: Sequence[Sequence[str]],
    ) -> None:
        """`schemas`: of the rows of each input, as they are kept. `key_columns`: their names in each input."""
        self.start = start
        self.position = 0
        """The first entry that was not emitted."""
        self._parts = parts
        self._index = KeyIndex(key_fields)
        batches: list[list[pa.RecordBatch]] = [[] for _ in schemas]
        owners: list[list[Slots]] = [[] for _ in schemas]
        for input_index, batch in _runs(parts):
            keys = [batch.column(name) for name in key_columns[input_index]]
            owners[input_index].append(self._index.lookup_or_insert(keys))
            batches[input_index].append(conform(batch, schemas[input_index]))
        self.entries: Slots = np.arange(len(self._index), dtype=np.int32)
        self._owners = [
            np.concatenate(of_input) if len(of_input) > 1 else of_input[0] if of_input else self.entries[:0]
            for of_input in owners
        ]
        self._batches = [
            one_batch(of_input) if of_input else pa.RecordBatch.from_pylist([], schema=schema)
            for of_input, schema in zip(batches, schemas, strict=True)
        ]
        self.sides = [
            GroupedRows(batch, of_input, len(self.entries))
            for batch, of_input in zip(self._batches, self._owners, strict=True)
        ]
        """The rows of each input, by entry."""

    def keys(self, entries: Slots) -> list[pa.Array]:
        """The key columns of these entries."""
        return self._index.keys(entries)

    def remaining(self) -> list[tuple[int, pa.RecordBatch]]:
        """The rows of entries that were not emitted."""
        if not self.position:
            return list(self._parts)
        rest = []
        for input_index, owners in enumerate(self._owners):
            rows = np.flatnonzero(owners >= self.position)
            if len(rows):
                rest.append((input_index, self._batches[input_index].take(pa.array(rows))))
        return rest


def _runs(parts: Sequence[tuple[int, pa.RecordBatch]]) -> list[tuple[int, pa.RecordBatch]]:
    """Batches of one input that follow each other, as one."""
    runs: list[tuple[int, list[pa.RecordBatch]]] = []
    for input_index, batch in parts:
        if not runs or runs[-1][0] != input_index or not runs[-1][1][0].schema.equals(batch.schema):
            runs.append((input_index, []))
        runs[-1][1].append(batch)
    return [(input_index, one_batch(batches)) for input_index, batches in runs]


def one_batch(batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    """The rows of these batches of one schema, of which there is one at least; without dictionaries, where theirs do
    not go together."""
    whole = joined(batches)
    if whole is None:
        schema = kept_schema(batches[0].schema)
        whole = pa.concat_batches([conform(batch, schema) for batch in batches])
    return whole
