"""The rows of keys that are not in memory: found through an index of all such keys, in a log of segments.

A key outside has a number, from a KeyIndex like the one of `hashmap`, and by that number where its row is. A row, after
the log's header: number of the layout (2 bytes), a cell for each key column, a cell for each state and timer queue. A
layout is the list of columns (fields with all they say of themselves) that the states and timers had when the row was
written; a state that came later is null in older rows. Everything goes by whole batches. It does not know what is in
memory. Mirrors the column families of Flink's RocksDBKeyedStateBackend, where each state has one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from snapline.dataflow.columnar.arrow_columns import BoolArray, BytesArray, Int64Array
from snapline.dataflow.columnar.gather import gather_values
from snapline.taskmanager.state.cell_encoding import decode_rows, encode_cells, join_pieces, row_lengths, skip_cells
from snapline.taskmanager.state.index.key_index import KeyIndex
from snapline.taskmanager.state.index.slots import Slots, grow_in_place, grown
from snapline.taskmanager.state.outside.row_log import HEADER_BYTES, FrozenSegment, RowLog, RowsAt
from snapline.taskmanager.state.outside.segment_space import SegmentSpace

_ALIGNMENT = 8


class RowColumns(NamedTuple):
    """Rows that have one layout, and their columns."""

    rows: Int64Array
    """The numbers of the rows among those asked for."""
    columns: list[tuple[pa.Field, pa.Array]]


class ChangedOutside(NamedTuple):
    """What was changed and has left memory since some checkpoint."""

    keys: list[pa.Array]
    rows: RowsAt
    """The rows of the first keys; the others have none any more."""


class ColdRows:
    """The rows of one operator."""

    def __init__(self, space: SegmentSpace, key_fields: Sequence[pa.Field]) -> None:
        self._key_fields = list(key_fields)
        self._key_types = [field.type for field in key_fields]
        self._index = KeyIndex(key_fields)
        self._positions: Int64Array = np.zeros(self._index.capacity, np.int64)
        self._log = RowLog(space)
        self._layouts: list[pa.Schema] = []
        self._changed: dict[int, BoolArray] = {}
        """Keys that were changed and have left memory, by epoch and number."""
        self._gone: dict[int, KeyIndex] = {}
        """Keys that were changed and have no row any more, by epoch."""

    def __len__(self) -> int:
        """Return how many keys have a row."""
        return len(self._index)

    # --- keys -------------------------------------------------------------------------------------------------------

    def find(self, keys: Sequence[pa.Array]) -> Slots:
        """The numbers of these keys, -1 for one that has no row."""
        if not len(self._index):
            return np.full(len(keys[0]), -1, np.int32)
        return self._index.lookup(keys)

    def keys(self, numbers: Slots) -> list[pa.Array]:
        """The key columns of these numbers."""
        return self._index.keys(numbers)

    def numbers(self) -> Slots:
        """The numbers of all keys, ascending."""
        return self._index.live_slots()

    def numbers_from(self, first: int, count: int) -> tuple[Slots, int]:
        """Those of so many numbers from this one on that belong to a key, and where to go on; 0 after the last."""
        end = min(first + count, self._index.high_water)
        return self.still(np.arange(first, end, dtype=np.int32)), 0 if end == self._index.high_water else end

    def still(self, numbers: Slots) -> Slots:
        """Those of these numbers that belong to a key."""
        return numbers[self._index.are_live(numbers)]

    # --- rows -------------------------------------------------------------------------------------------------------

    def read(self, numbers: Slots) -> list[RowColumns]:
        """The rows of these keys, by layout."""
        if not len(numbers):
            return []
        offsets, data = self._log.read(gather_values(self._positions, numbers))
        return self.decode(data, offsets[:-1])

    def decode(self, data: BytesArray, starts: Int64Array) -> list[RowColumns]:
        """The columns of the rows that begin at `starts`, by layout. Also called from upload threads: layouts are only
        ever added."""
        starts = starts + HEADER_BYTES
        numbers = data[starts].astype(np.int64) | data[starts + 1].astype(np.int64) << 8
        found = []
        for number in _distinct(numbers):
            chosen = np.flatnonzero(numbers == number)
            layout = self._layouts[number]
            begin = starts[chosen] + 2
            columns = decode_rows(layout.types, data, skip_cells(self._key_types, data, begin))
            found.append(RowColumns(chosen, list(zip(layout, columns, strict=True))))
        return found

    def decode_keys(self, data: BytesArray, starts: Int64Array) -> list[pa.Array]:
        """The key columns of the rows that begin at `starts`."""
        return decode_rows(self._key_types, data, starts + (HEADER_BYTES + 2))

    def put(self, numbers: Slots, keys: Sequence[pa.Array], columns: Sequence[tuple[pa.Field, pa.Array]]) -> Slots:
        """Set the rows of these keys, each of which comes once; `numbers`: -1 for a key that had no row. Returns the
        numbers."""
        if not len(numbers):
            return numbers
        fresh = numbers < 0
        if fresh.all():
            numbers = self._insert(keys)
        elif fresh.any():
            rows = pa.array(np.flatnonzero(fresh))
            self._log.kill(self._positions[numbers[~fresh]])
            numbers = numbers.copy()
            numbers[fresh] = self._insert([column.take(rows) for column in keys])
        else:
            self._log.kill(self._positions[numbers])
        self._positions[numbers] = self._log.append(numbers, *self._encode(keys, columns))
        self._tidy()
        return numbers

    def forget(self, numbers: Slots) -> None:
        """These keys have no row any more."""
        if len(numbers):
            self._log.kill(self._positions[numbers])
            self._index.remove(numbers)
            self._tidy()

    def freeze(self) -> list[FrozenSegment]:
        """All rows as they are now, to be read in any thread."""
        return self._log.freeze()

    def close(self) -> None:
        """Let go of all rows. What was frozen can still be read."""
        self._log.close()

    def _insert(self, keys: Sequence[pa.Array]) -> Slots:
        numbers = self._index.lookup_or_insert(keys)
        if self._index.capacity > len(self._positions):
            grow_in_place(self, "_positions", self._index.capacity)
        return numbers

    def _encode(
        self, keys: Sequence[pa.Array], columns: Sequence[tuple[pa.Field, pa.Array]]
    ) -> tuple[Int64Array, BytesArray]:
        """Offsets and bytes of the rows, with room for the log's header."""
        layout = pa.schema([field for field, _ in columns])
        number = next((at for at, known in enumerate(self._layouts) if known.equals(layout, check_metadata=True)), -1)
        if number < 0:
            number = len(self._layouts)
            self._layouts.append(layout)
        length = len(keys[0])
        prefix = np.frombuffer(bytes(HEADER_BYTES) + number.to_bytes(2, "little"), np.uint8)
        pieces = [(len(prefix), np.tile(prefix, length)), *encode_cells([*keys, *(column for _, column in columns)])]
        padding = -row_lengths(pieces, length) % _ALIGNMENT
        return join_pieces([*pieces, (padding, np.zeros(int(padding.sum()), np.uint8))], length)

    def _tidy(self) -> None:
        """Write what is alive of segments that are mostly dead anew. Amortised, a row costs one that is dead."""
        while (segment := self._log.worn()) is not None:
            numbers, offsets, data = self._log.live(segment)
            if len(numbers):
                self._positions[numbers] = self._log.append(numbers, offsets, data)
            self._log.drop(segment)

    # --- changes ----------------------------------------------------------------------------------------------------

    def note_changed(self, epoch: int, numbers: Slots) -> None:
        """These were changed, and left memory in this epoch."""
        known = self._changed.get(epoch)
        if known is None or len(known) < self._index.capacity:
            known = np.zeros(0, np.bool_) if known is None else known
            known = self._changed[epoch] = grown(known, self._index.capacity)
        known[numbers] = True

    def note_gone(self, epoch: int, keys: Sequence[pa.Array]) -> None:
        """These keys were changed and have no row any more."""
        self._gone.setdefault(epoch, KeyIndex(self._key_fields)).lookup_or_insert(keys)

    def forget_changes(self, until_epoch: int) -> None:
        """Forget the changes of this epoch and of all before it."""
        self._changed = {epoch: known for epoch, known in self._changed.items() if epoch > until_epoch}
        self._gone = {epoch: known for epoch, known in self._gone.items() if epoch > until_epoch}

    def changes(self) -> ChangedOutside:
        """All keys that were noted, and their rows as they are now."""
        touched = np.zeros(self._index.capacity, np.bool_)
        for known in self._changed.values():
            touched[: len(known)] |= known
        numbers = self.still(np.flatnonzero(touched).astype(np.int32))
        keys = self._index.keys(numbers)
        gone = KeyIndex(self._key_fields)
        for absent in self._gone.values():
            columns = absent.keys(absent.live_slots())
            without_row = pa.array(self.find(columns) < 0)
            gone.lookup_or_insert([column.filter(without_row) for column in columns])
        if len(gone):
            keys = [pa.concat_arrays(pair) for pair in zip(keys, gone.keys(gone.live_slots()), strict=True)]
        return ChangedOutside(keys, self._log.at(self._positions[numbers]))


def _distinct(numbers: Int64Array) -> list[int]:
    """The different ones; mostly there is one."""
    if not len(numbers):
        return []
    lowest = int(numbers.min())
    found: list[int] = [lowest] if lowest == numbers.max() else np.unique(numbers).tolist()
    return found
