"""A keyed snapshot between its two parts: frozen in the task's thread, encoded in an upload thread.

Freezing copies nothing (see CopyOnWrite). Encoding takes the columns as they were, finds each key's key group, orders the keys by it and writes a table (`dataflow.state_format`); keys without state and
timers are left out. Mirrors Flink's FullSnapshotResources and FullSnapshotAsyncWriter.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from dataflow.arrow_columns import BoolArray
from dataflow.gather import gather_array
from dataflow.handles import KeyGroupRange
from dataflow.key_groups import assign_to_key_groups
from dataflow.key_partition import order_by_part
from dataflow.state import StateError
from dataflow.state_format import DELTA_METADATA, KEY_COLUMN, encode_keyed_state, with_role
from runtime.machine import check
from taskmanager.state.columns import FrozenColumn
from taskmanager.state.key_index import FrozenKeys
from taskmanager.state.slots import Slots

GATHERED_BYTES = 8 << 20
"""About so much is brought into order at once, and one block at the least."""


class FrozenField(NamedTuple):
    """A column of the snapshot."""

    field: pa.Field
    """With its role."""
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
        """All rows."""
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
        """Its values."""
        return self._column.get(self._slots[rows])


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
        """`occupied`: which slots to write; asked in the asynchronous part. `is_delta`: only some keys, which replace what
        earlier files say of them."""
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
        """What the snapshot covers."""
        return self._range

    def encode(self) -> bytes:
        """The file."""
        keys, occupied = self._keys, self._occupied
        check(keys is not None and occupied is not None, "a keyed snapshot was encoded after its release")
        assert keys is not None and occupied is not None  # noqa: S101 - for the type checker
        slots = np.flatnonzero(occupied()).astype(np.int32)
        slots, row_offsets = self._by_key_group(keys, slots)
        self.row_count = len(slots)
        metadata = {DELTA_METADATA: b"1"} if self._is_delta else None
        schema = pa.schema([*self._key_fields, *(field for field, _ in self._fields)], metadata=metadata)

        gathered, begin = pa.RecordBatch.from_arrays([pa.nulls(0, field.type) for field in schema], schema=schema), 0

        def read_rows(first: int, end: int) -> pa.RecordBatch:
            nonlocal gathered, begin
            if end > begin + gathered.num_rows:  # many blocks at once: each call waits for the interpreter's lock
                rows = GATHERED_BYTES * gathered.num_rows // max(1, gathered.nbytes)
                chosen, begin = slots[first : max(end, first + rows)], first
                columns = [*keys.keys(chosen), *(column.get(chosen) for _, column in self._fields)]
                gathered = pa.RecordBatch.from_arrays(columns, schema=schema)
            return gathered.slice(first - begin, end - first)

        return encode_keyed_state(schema, self._range, self._max_parallelism, row_offsets, read_rows)

    def release(self) -> None:
        """Let go of what was frozen."""
        self._keys = self._occupied = None
        self._fields = []

    def _by_key_group(self, keys: FrozenKeys, slots: Slots) -> tuple[Slots, np.ndarray[Any, np.dtype[np.int64]]]:
        """The slots ordered by key group, and where each key group's begin."""
        if not len(slots):
            return slots, np.zeros(len(self._range) + 1, np.int64)
        groups = assign_to_key_groups(keys.keys(slots), self._max_parallelism).astype(np.int32) - self._range.start
        if groups.min() < 0 or groups.max() >= len(self._range):
            strange = np.flatnonzero((groups < 0) | (groups >= len(self._range)))
            columns = keys.keys(slots[strange[:1]])
            key = ", ".join(
                f"{field.name}={column[0].as_py()!r}" for field, column in zip(self._key_fields, columns, strict=True)
            )
            raise StateError(
                f"keyed state holds the key {key} of another subtask's key group: the key was another one when the row was sent here. "
                "Key columns have to be the same in every evaluation; compute them once, before key_by, and change nothing in place"
            )
        order, row_offsets = order_by_part(groups.astype(np.uint16), len(self._range))
        return slots[order], row_offsets
