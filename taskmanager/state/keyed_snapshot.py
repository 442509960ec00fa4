"""A keyed snapshot between its two parts: frozen in the task's thread, encoded in an upload thread.

Freezing copies nothing (see CopyOnWrite). Encoding takes the columns as they were, finds each key's key group, orders
the keys by it and writes a table (`snapline.dataflow.snapshot.state_format`); keys without state and timers are left
out. Mirrors Flink's FullSnapshotResources and FullSnapshotAsyncWriter.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from snapline.dataflow.columnar.arrow_columns import BoolArray
from snapline.dataflow.columnar.gather import gather_array
from snapline.dataflow.columnar.kernel import I64, BOOLs, I32s, I64s, RO_I32s, RO_U32s, U16s, kernel
from snapline.dataflow.columnar.key_hash import UInt32Array, hash_columns
from snapline.dataflow.columnar.large_arrays import TOO_LARGE, empty_array
from snapline.dataflow.errors import StateError
from snapline.dataflow.key_groups import KeyGroupRange
from snapline.dataflow.snapshot.state_format import (
    DELTA_METADATA,
    KEY_COLUMN,
    encode_keyed_state,
    read_ahead,
    with_role,
)
from snapline.runtime.cores.machine import check
from snapline.taskmanager.state.columns import FrozenColumn
from snapline.taskmanager.state.index.key_index import FrozenKeys
from snapline.taskmanager.state.index.slots import Slots

GATHERED_BYTES = 8 << 20
"""About so much is brought into order at once, and one block at the least."""

_HASHED_ROWS = 1 << 20
"""So many keys are looked at at once, so that they are not all in memory a second time."""


@kernel(I64(BOOLs, I32s))
def _true_rows(mask: Any, rows: Any) -> int:
    count = 0
    for row in range(mask.shape[0]):
        rows[count] = row
        count += mask[row]
    return count


def true_rows(mask: BoolArray) -> Slots:
    """Where it is true, ascending."""
    rows = empty_array(len(mask) + 1, np.int32)
    return rows[: _true_rows(mask, rows)]


@kernel(I64(RO_U32s, I64, I64, RO_I32s, U16s, I32s, I64s))
def _order_by_key_group(
    hashes: Any, max_parallelism: int, start: int, slots: Any, groups: Any, ordered: Any, bounds: Any
) -> int:
    """A counting sort of the slots by key group. `bounds` has two entries more than there are key groups, zero on
    entry; all but the last are the result. Returns the first row whose key group is not one of these, else -1."""
    all_groups = np.uint32(max_parallelism)
    count = bounds.shape[0] - 2
    for row in range(hashes.shape[0]):
        group = np.int64(hashes[row] % all_groups) - start
        if group < 0 or group >= count:
            return row
        groups[row] = np.uint16(group)
        bounds[group + 2] += 1
    for following in range(2, count + 2):
        bounds[following] += bounds[following - 1]
    for row in range(hashes.shape[0]):
        group = np.int64(groups[row]) + 1
        ordered[bounds[group]] = slots[row]
        bounds[group] += 1
    return -1


def _hashes(keys: FrozenKeys, slots: Slots) -> UInt32Array:
    """The hash of each key, of fewer keys at a time where their texts are more than one array has room for."""
    try:
        return hash_columns(keys.keys(slots))
    except TOO_LARGE:
        if len(slots) < 2:
            raise
        half = len(slots) // 2
        return np.concatenate([_hashes(keys, slots[:half]), _hashes(keys, slots[half:])])


def by_key_group(
    key_fields: Sequence[pa.Field], keys: FrozenKeys, slots: Slots, key_groups: KeyGroupRange, max_parallelism: int
) -> tuple[Slots, np.ndarray[Any, np.dtype[np.int64]]]:
    """The slots ordered by key group, and where each key group's begin."""
    if not len(slots):
        return slots, np.zeros(len(key_groups) + 1, np.int64)
    groups, ordered = empty_array(len(slots), np.uint16), empty_array(len(slots), np.int32)
    bounds = np.zeros(len(key_groups) + 2, np.int64)
    hashes = np.concatenate(
        [_hashes(keys, slots[first : first + _HASHED_ROWS]) for first in range(0, len(slots), _HASHED_ROWS)]
    )
    strange = _order_by_key_group(hashes, max_parallelism, key_groups.start, slots, groups, ordered, bounds)
    if strange >= 0:
        columns = keys.keys(slots[strange : strange + 1])
        key = ", ".join(
            f"{field.name}={column[0].as_py()!r}" for field, column in zip(key_fields, columns, strict=True)
        )
        raise StateError(
            f"keyed state holds the key {key} of another subtask's key group: the key was another one when the row was sent here. "
            "Key columns have to be the same in every evaluation; compute them once, before key_by, and change nothing in place"
        )
    return ordered, bounds[:-1]


class FrozenField(NamedTuple):
    """A column of the snapshot."""

    field: pa.Field
    """The field of the column, whose metadata says its role."""
    column: FrozenColumn


class FrozenRows:
    """Rows that were gathered already, by their number (FrozenKeys and FrozenColumn)."""

    __slots__ = ("_columns",)

    def __init__(self, columns: Sequence[pa.Array]) -> None:
        self._columns = columns

    def keys(self, rows: Slots) -> list[pa.Array]:
        """The rows of all columns."""
        return [gather_array(column, rows) for column in self._columns]

    def live_slots(self) -> Slots:
        """Return the numbers of all rows."""
        return np.arange(len(self._columns[0]), dtype=np.int32)

    def get(self, rows: Slots) -> pa.Array:
        """The rows of the only column."""
        return gather_array(self._columns[0], rows)


class FrozenSelection:
    """A frozen column, by the number of a row in a selection of slots."""

    __slots__ = ("_column", "_slots")

    def __init__(self, column: FrozenColumn, slots: Slots) -> None:
        self._column, self._slots = column, slots

    def get(self, rows: Slots) -> pa.Array:
        """Return the frozen values of the rows."""
        return self._column.get(self._slots[rows])


class FrozenSelectedKeys:
    """The keys of a selection of slots, by the number of a row in it (FrozenKeys)."""

    __slots__ = ("_keys", "_slots")

    def __init__(self, keys: FrozenKeys, slots: Slots) -> None:
        self._keys, self._slots = keys, slots

    def keys(self, rows: Slots) -> list[pa.Array]:
        """Return the key columns of the rows."""
        return self._keys.keys(self._slots[rows])

    def live_slots(self) -> Slots:
        """Return the numbers of all rows."""
        return np.arange(len(self._slots), dtype=np.int32)


class KeyedSnapshot:
    """What the synchronous part leaves to the asynchronous one. Implements operators.contract.KeyedSnapshotPart."""

    __slots__ = ("_fields", "_is_delta", "_key_fields", "_keys", "_max_parallelism", "_occupied", "_range", "row_count")

    def __init__(
        self,
        key_fields: Sequence[pa.Field],
        keys: FrozenKeys,
        occupied: Callable[[], BoolArray],
        fields: Sequence[FrozenField],
        key_group_range: KeyGroupRange,
        max_parallelism: int,
        *,
        is_delta: bool = False,
    ) -> None:
        """`occupied`: which slots to write; asked in the asynchronous part. `is_delta`: only some keys, which replace
        what earlier files say of them."""
        self._key_fields = [with_role(field, KEY_COLUMN) for field in key_fields]
        self._keys: FrozenKeys | None = keys
        self._occupied: Callable[[], BoolArray] | None = occupied
        self._fields = list(fields)
        self._range = key_group_range
        self._max_parallelism = max_parallelism
        self._is_delta = is_delta
        self.row_count = 0
        """Keys in the file; known once it is encoded."""

    @property
    def key_group_range(self) -> KeyGroupRange:
        """Return the key groups that the snapshot covers."""
        return self._range

    def encode(self) -> bytes | memoryview:
        """Return the bytes of the snapshot's file."""
        keys, occupied = self._keys, self._occupied
        check(keys is not None and occupied is not None, "a keyed snapshot was encoded after its release")
        keys = check(keys, "there is no keys")
        occupied = check(occupied, "there is no occupied")
        slots = true_rows(occupied())
        slots, row_offsets = by_key_group(self._key_fields, keys, slots, self._range, self._max_parallelism)
        self.row_count = len(slots)
        metadata = {DELTA_METADATA: b"1"} if self._is_delta else None
        schema = pa.schema([*self._key_fields, *(field for field, _ in self._fields)], metadata=metadata)

        gathered, begin = pa.RecordBatch.from_arrays([pa.nulls(0, field.type) for field in schema], schema=schema), 0

        def gather(first: int, end: int) -> pa.RecordBatch:
            chosen = slots[first:end]
            columns = [*keys.keys(chosen), *(column.get(chosen) for _, column in self._fields)]
            return pa.RecordBatch.from_arrays(columns, schema=schema)

        def read_rows(first: int, end: int) -> pa.RecordBatch:
            nonlocal gathered, begin
            if (
                first < begin or end > begin + gathered.num_rows
            ):  # many blocks at once: each call waits for the interpreter's lock
                rows = GATHERED_BYTES * gathered.num_rows // max(1, gathered.nbytes)
                gathered, begin = read_ahead(gather, first, end, first + rows), first
            return gathered.slice(first - begin, end - first)

        return encode_keyed_state(schema, self._range, self._max_parallelism, row_offsets, read_rows)

    def release(self) -> None:
        """Let go of what was frozen."""
        self._keys = self._occupied = None
        self._fields = []
