"""How keys that are not in memory lie in a key-value store: their rows, when they have timers due, and what was
changed.

Decides the layout of keys and values, which is private to the process:

    0, key group (2 bytes, big endian), key cells          -> number of the layout (2 bytes), a cell per column
    1, timer queue (2), time (8, sorts by value), key      -> nothing; one entry per key and queue, its earliest timer
    2, epoch (4), key                                      -> nothing; the key was evicted after a change in this epoch

A layout is the list of columns (fields with all they say of themselves) that the states and timers had when the row was
written; a state that came later is null in older rows. It does not know what is in memory. Whole batches at a time.
Mirrors the column families of Flink's RocksDBKeyedStateBackend, where each state has one and each entry a row of its
own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from snapline.dataflow.columnar.arrow_columns import Int64Array
from snapline.dataflow.columnar.key_partition import assign_to_key_groups
from snapline.taskmanager.state.cell_encoding import decode_rows, encode_rows, join_rows, split_rows
from snapline.taskmanager.state.rocksdb.key_value_store import KeyValueStore

_ROW, _TIMER, _CHANGE = b"\x00", b"\x01", b"\x02"
_END = b"\x03"
_TIMER_PREFIX = 11
_CHANGE_PREFIX = 5
_BIAS = 1 << 63


class RowColumns(NamedTuple):
    """Rows that have one layout, and their columns."""

    rows: Int64Array
    """The numbers of the found rows among those asked for."""
    columns: list[tuple[pa.Field, pa.Array]]


class ColdRows:
    """The rows of one operator. Keys here are bytes: key group and key cells."""

    def __init__(self, store: KeyValueStore, key_types: Sequence[pa.DataType], max_parallelism: int) -> None:
        self._store = store
        self._key_types = list(key_types)
        self._max_parallelism = max_parallelism
        self._layouts: list[pa.Schema] = []

    # --- keys -------------------------------------------------------------------------------------------------------

    def keys_of(self, columns: Sequence[pa.Array]) -> list[bytes]:
        """The keys of these columns, as KeyIndex.keys gives them."""
        groups = assign_to_key_groups(list(columns), self._max_parallelism)
        offsets, cells = encode_rows(columns, b"\0\0")
        starts = offsets[:-1]
        cells[starts], cells[starts + 1] = groups >> 8, groups & 0xFF
        return split_rows(offsets, cells)

    def columns_of(self, keys: Sequence[bytes]) -> list[pa.Array]:
        """Return the columns of the rows with these keys: the inverse of `keys_of`."""
        offsets, data = join_rows(keys)
        return decode_rows(self._key_types, data, offsets[:-1] + 2)

    # --- rows -------------------------------------------------------------------------------------------------------

    def encode(self, columns: Sequence[tuple[pa.Field, pa.Array]]) -> list[bytes]:
        """Encode these columns as rows of the store."""
        layout = pa.schema([field for field, _ in columns])
        number = next((at for at, known in enumerate(self._layouts) if known.equals(layout, check_metadata=True)), -1)
        if number < 0:
            number = len(self._layouts)
            self._layouts.append(layout)
        prefix = number.to_bytes(2, "little")
        return split_rows(*encode_rows([column for _, column in columns], prefix))

    def decode(self, rows: Sequence[bytes]) -> list[RowColumns]:
        """The inverse, by layout. Also called from upload threads: layouts are only ever added."""
        if not rows:
            return []
        offsets, data = join_rows(rows)
        starts = offsets[:-1]
        layouts = data[starts].astype(np.int64) | data[starts + 1].astype(np.int64) << 8
        found = []
        for number in np.unique(layouts).tolist():
            chosen = np.flatnonzero(layouts == number)
            layout = self._layouts[number]
            columns = decode_rows(layout.types, data, starts[chosen] + 2)
            found.append(RowColumns(chosen, list(zip(layout, columns, strict=True))))
        return found

    def read(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """The row of each key; asked for in the order of the keys, which is what is fast."""
        order = sorted(range(len(keys)), key=keys.__getitem__)
        found = self._store.get_many([_ROW + keys[number] for number in order])
        rows: list[bytes | None] = [None] * len(keys)
        for number, row in zip(order, found, strict=True):
            rows[number] = row
        return rows

    def write(self, puts: Iterable[tuple[bytes, bytes]], deletes: Iterable[bytes]) -> None:
        """Set rows, and forget rows."""
        self._store.write(((_ROW + key, row) for key, row in puts), (_ROW + key for key in deletes))

    def scan(self, first_group: int, last_group: int) -> Iterator[tuple[bytes, bytes]]:
        """Keys and rows of these key groups, as they are now; by key group, to be read in any thread."""
        begin, end = first_group.to_bytes(2, "big"), (last_group + 1).to_bytes(2, "big")
        return ((key[1:], row) for key, row in self._store.scan(_ROW + begin, _ROW + end))

    def scan_after(self, key: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Keys after this one, and their rows."""
        return ((key[1:], row) for key, row in self._store.scan(_ROW + key + b"\0", _TIMER))

    def lookup(self) -> Callable[[bytes], bytes | None]:
        """Rows as they are now, one by one."""
        find = self._store.lookup()
        return lambda key: find(_ROW + key)

    # --- timers -----------------------------------------------------------------------------------------------------

    def note_timers(self, queue: int, entries: Iterable[tuple[int, bytes]]) -> None:
        """The earliest timers of these keys."""
        prefix = _timer_prefix(queue)
        self._store.write((prefix + _sortable(time) + key, b"") for time, key in entries)

    def forget_timers(self, queue: int, entries: Iterable[tuple[int, bytes]]) -> None:
        """The keys are not here any more."""
        prefix = _timer_prefix(queue)
        self._store.write((), (prefix + _sortable(time) + key for time, key in entries))

    def timers(self, queue: int, earliest: int, limit: int) -> list[tuple[int, bytes]]:
        """(time, key) of the first so many entries that are not before `earliest`."""
        prefix = _timer_prefix(queue)
        found = self._store.scan(prefix + _sortable(earliest), _timer_prefix(queue + 1))
        return [
            (int.from_bytes(key[3:_TIMER_PREFIX], "big") - _BIAS, key[_TIMER_PREFIX:])
            for key, _ in islice(found, limit)
        ]

    # --- changes ----------------------------------------------------------------------------------------------------

    def note_changes(self, epoch: int, keys: Iterable[bytes]) -> None:
        """These were changed, and left memory in this epoch."""
        prefix = _CHANGE + epoch.to_bytes(4, "big")
        self._store.write((prefix + key, b"") for key in keys)

    def forget_changes(self, until_epoch: int) -> None:
        """Forget the changes of this epoch and of all before it."""
        self._store.delete_range(_CHANGE, _CHANGE + (until_epoch + 1).to_bytes(4, "big"))

    def changes(self) -> Iterator[bytes]:
        """All keys that were noted, as of now; a key may come more than once. To be read in any thread."""
        return (key[_CHANGE_PREFIX:] for key, _ in self._store.scan(_CHANGE, _END))

    def close(self) -> None:
        """Close the store and delete everything in it."""
        self._store.close()


def _timer_prefix(queue: int) -> bytes:
    return _TIMER + queue.to_bytes(2, "big")


def _sortable(time: int) -> bytes:
    return (time + _BIAS).to_bytes(8, "big")
